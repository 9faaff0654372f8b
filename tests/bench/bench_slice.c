/*
 * Times of plan_slice_solve() and of its variants, without filling the grid; --tiny: small cases,
 * as a test.
 *
 * The three sizes of the first lines are the promise: 0.15 s, 1 s and 1 s on one core.
 */
#include <stdio.h>
#include <string.h>

#include "base/units.h"
#include "planner/slices/orders.h"
#include "simulator/simulate.h"
#include "tests/bench/slice_costs.h"

#define K (INT64_C(1) << 10)

/* start, token, pair: a layer of GPT-3 175B on eight V100, and of a small model on a fast device.
 */
static const SliceCase cases[] = {
    {"L8192 B8 K96", 8, 8 * K, 8, 96, 2000000000, 45000000, 610, 256, 0, 0},
    {"L8192 B32 K96", 32, 8 * K, 8, 96, 2000000000, 45000000, 610, 256, 0, 0},
    {"L131072 g64 B1 K96", 1, 128 * K, 64, 96, 2000000000, 45000000, 610, 256, 0, 0},
    {"L8192 B8 K96 tiled", 8, 8 * K, 8, 96, 2000000000, 45000000, 610, 256, 128, 0},
    {"L8192 B8 K96 noisy", 8, 8 * K, 8, 96, 2000000000, 45000000, 610, 256, 0, 500000000},
    {"L8192 B8 K96 noisier", 8, 8 * K, 8, 96, 2000000000, 45000000, 610, 256, 0, 20000000000},
    {"L8192 B8 K96 fast", 8, 8 * K, 8, 96, 60000000, 500000, 20, 128, 0, 0},
    {"L8192 B8 K96 fast noisy", 8, 8 * K, 8, 96, 60000000, 500000, 20, 128, 0, 10000000},
    {"L8192 B8 K96 floor", 8, 8 * K, 8, 96, 2000000000, 6000000, 80, 3072, 0, 0},
    {"L8192 B8 K4", 8, 8 * K, 8, 4, 2000000000, 45000000, 610, 256, 0, 0},
    {"L8192 B8 K2 noisy", 8, 8 * K, 8, 2, 2000000000, 45000000, 610, 256, 0, 500000000},
    {"L8192 B8 K1", 8, 8 * K, 8, 1, 2000000000, 45000000, 610, 256, 0, 0},
    {"L8192 B32 K96 noisy", 32, 8 * K, 8, 96, 2000000000, 45000000, 610, 256, 0, 500000000},
    {"L8192 B32 K8 tiled", 32, 8 * K, 8, 8, 2000000000, 45000000, 610, 256, 128, 0},
    {"L131072 g64 B1 K8 noisy", 1, 128 * K, 64, 8, 2000000000, 45000000, 610, 256, 0, 500000000},
};

static const SliceCase tiny[] = {
    {"L256 B2 K8 noisy", 2, 256, 8, 8, 2000000000, 45000000, 610, 64, 0, 500000000},
};

/* --- variants --- */

typedef struct {
    SliceCase grid;
    bool apart, delays;
    int64_t n_rounds;     /* memory for a batch in so many; 1: no limit */
    double ends_factor;   /* of the first and the last stage; 1: all are equal */
    const char *schedule; /* NULL: fill and drain */
    int64_t n_chunks;
} Variant;

#define SLOW(name, batch, tokens, stages)                                                          \
    {                                                                                              \
        name, batch, tokens, 8, stages, 2000000000, 45000000, 610, 256, 0, 0                       \
    }
#define FAST(name, batch, tokens, stages)                                                          \
    {                                                                                              \
        name, batch, tokens, 8, stages, 60000000, 500000, 20, 128, 0, 10000000                     \
    }

static const Variant variants[] = {
    {SLOW("L8192 B8 K96 apart", 8, 8 * K, 96), true, false, 1, 1, NULL, 1},
    {FAST("L8192 B8 K96 apart fast", 8, 8 * K, 96), true, false, 1, 1, NULL, 1},
    {SLOW("L8192 B8 K96 delays", 8, 8 * K, 96), false, true, 1, 1, NULL, 1},
    {SLOW("L8192 B8 K96 rounds", 8, 8 * K, 96), false, false, 4, 1, NULL, 1},
    {SLOW("L8192 B8 K96 all of it", 8, 8 * K, 96), true, true, 4, 1, NULL, 1},
    {SLOW("L2048 B8 K48 differ", 8, 2 * K, 48), false, false, 1, 1.25, NULL, 1},
    {SLOW("L2048 B8 K48 differ apart", 8, 2 * K, 48), true, true, 1, 1.25, NULL, 1},
    {SLOW("L2048 B8 K8 seq1f1b", 8, 2 * K, 8), true, false, 1, 1, "seq1f1b", 1},
    {SLOW("L2048 B2 K48 seq1f1b", 2, 2 * K, 48), true, false, 1, 1, "seq1f1b", 1},
    {SLOW("L2048 B8 K8 interleaved", 8, 2 * K, 8), true, false, 1, 1, "seq1f1b-interleaved", 2},
};

static const Variant tiny_variants[] = {
    {SLOW("L256 B2 K4 all of it", 2, 256, 4), true, true, 2, 1.25, NULL, 1},
    {SLOW("L256 B2 K4 seq1f1b", 2, 256, 4), true, false, 1, 1, "seq1f1b", 1},
};

/* @cost: both directions; becomes forward's third where @backward, the rest, is returned (owned).
 */
static int64_t *
split(const SliceCase *k, int64_t *cost)
{
    const int64_t side = k->seq_len / k->granularity + 1, n = (k->batch + 1) * side * side;
    int64_t *backward = g_new(int64_t, (size_t)n);

    for (int64_t i = 0; i < n; i++) {
        backward[i] = cost[i];
        if (cost[i] == PLAN_SLICE_INFINITE)
            continue;
        cost[i] = cost[i] / 3 + k->start / 10;
        backward[i] -= cost[i];
    }
    return backward;
}

static PlanSliceResult *
solve_variant(const Variant *v, const PlanSliceProblem *problem, GError **error)
{
    g_autofree PlanSliceStage *stages = g_new(PlanSliceStage, problem->n_stages);
    const PlanSliceOrder order = {.problem = problem,
                                  .stages = stages,
                                  .n_ranks = v->grid.n_stages,
                                  .schedule = v->schedule,
                                  .simulate = sim_run_report};

    for (int64_t i = 0; i < problem->n_stages; i++)
        stages[i] = (PlanSliceStage){problem->costs.cost, problem->backward,
                                     (i == 0 || i == problem->n_stages - 1 ? v->ends_factor : 1.0) /
                                         (double)v->n_chunks};
    if (v->schedule != NULL)
        return plan_slice_solve_order(&order, error);
    return v->ends_factor == 1.0 ? plan_slice_solve_problem(problem, error)
                                 : plan_slice_solve_stages(problem, stages, error);
}

static void
print_result(const char *name, int64_t us, const PlanSliceResult *result)
{
    printf("%s\t%.4f\t%.9f\t%.9f\t%u\t%u\t%" G_GINT64_FORMAT "\t%.4f\n", name, (double)us * 1e-6,
           (double)result->latency * 1e-12, (double)result->max_slice * 1e-12, result->groups->len,
           ((PlanSliceGroup *)result->groups->pdata[0])->slices->len, result->n_solves,
           1.0 - (double)result->lower_bound / (double)result->latency);
}

static bool
run_variant(const Variant *v)
{
    const SliceCase *k = &v->grid;
    const int64_t n = k->seq_len / k->granularity, n_rows = (k->batch + 1) * (n + 1);
    g_autofree int64_t *cost = slice_case_grid(k);
    g_autofree int64_t *backward = v->apart ? split(k, cost) : NULL;
    g_autofree int64_t *delay = g_new0(int64_t, (size_t)n_rows);
    const PlanSliceProblem problem = {
        .costs = {k->batch, n, k->granularity, cost},
        .backward = backward,
        .delay = v->delays ? delay : NULL,
        .n_stages = k->n_stages * v->n_chunks,
        .token_bytes = 1,
        .limit_bytes = v->n_rounds == 1 ? 0 : k->batch * k->seq_len / v->n_rounds,
    };
    g_autoptr(GError) error = NULL;

    for (int64_t i = 0; i < n_rows; i++)
        delay[i] = k->start / 100 + i / (n + 1) * (i % (n + 1)) * k->token / 20;
    const int64_t start_us = g_get_monotonic_time();
    g_autoptr(PlanSliceResult) result = solve_variant(v, &problem, &error);
    const int64_t end_us = g_get_monotonic_time();
    if (result == NULL)
        fprintf(stderr, "%s: %s\n", k->name, error->message);
    else
        print_result(k->name, end_us - start_us, result);
    return result != NULL;
}

int
main(int argc, char **argv)
{
    const bool is_tiny = argc > 1 && strcmp(argv[1], "--tiny") == 0;
    const SliceCase *list = is_tiny ? tiny : cases;
    const size_t n = is_tiny ? G_N_ELEMENTS(tiny) : G_N_ELEMENTS(cases);

    printf("case\tsolve_s\tlatency_s\tmax_slice_s\tgroups\tfirst_slices\tdp_solves\tgap\n");
    for (size_t i = 0; i < n; i++) {
        const SliceCase *k = &list[i];
        g_autofree int64_t *cost = slice_case_grid(k);
        const PlanSliceCosts costs = {k->batch, k->seq_len / k->granularity, k->granularity, cost};
        g_autoptr(GError) error = NULL;
        const int64_t start_us = g_get_monotonic_time();
        g_autoptr(PlanSliceResult) result = plan_slice_solve(&costs, k->n_stages, 0, &error);
        const int64_t end_us = g_get_monotonic_time();
        if (result == NULL) {
            fprintf(stderr, "%s: %s\n", k->name, error->message);
            return 1;
        }
        print_result(k->name, end_us - start_us, result);
    }
    const Variant *all = is_tiny ? tiny_variants : variants;
    for (size_t i = 0; i < (is_tiny ? G_N_ELEMENTS(tiny_variants) : G_N_ELEMENTS(variants)); i++)
        if (!run_variant(&all[i]))
            return 1;
    return 0;
}
