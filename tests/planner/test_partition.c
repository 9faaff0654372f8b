/* Tests of planner/partition/partition.h: exact against exhaustive search, ties, what does not fit;
 * and of divisions.h. */
#include "planner/partition/divisions.h"
#include "planner/partition/partition.h"

#include <string.h>

#define MAX_STAGES 5

static uint32_t
draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* --- a random instance --- */

#define MAX_LAYERS 12
#define MAX_RECOMPUTES 3
#define MAX_KINDS 2

typedef struct {
    int64_t layer_ns[MAX_KINDS * MAX_RECOMPUTES * MAX_LAYERS], end_ns[MAX_KINDS * 2];
    int64_t layer_bytes[MAX_LAYERS], kept_bytes[MAX_RECOMPUTES * MAX_LAYERS],
        workspace_bytes_of[MAX_RECOMPUTES];
    int64_t end_bytes[2], end_kept_bytes[2], units[MAX_STAGES], limits[MAX_STAGES];
    int32_t kinds[MAX_STAGES];
    PlanPartition p;
} Instance;

/* Each recompute kind takes a little longer than the one before and keeps less.  Layers are
 * unequal: dense ones, then (sometimes) longer ones with experts. */
static void
fill_instance(Instance *in, uint32_t *state)
{
    const uint32_t spread = (uint32_t[]){1, 3, 1000}[draw(state) % 3];
    const uint32_t room = 30 + draw(state) % 200;
    PlanPartition *p = &in->p;

    *p =
        (PlanPartition){.n_layers = 1 + draw(state) % MAX_LAYERS,
                        .n_stages = 1 + draw(state) % MAX_STAGES,
                        .lone_ends = draw(state) % 2 == 0,
                        .n_recomputes = draw(state) % 2 == 0 ? 0 : 1 + draw(state) % MAX_RECOMPUTES,
                        .layer_ns = in->layer_ns,
                        .end_ns = draw(state) % 4 == 0 ? NULL : in->end_ns,
                        .stage_kind = draw(state) % 2 == 0 ? NULL : in->kinds,
                        .layer_bytes = in->layer_bytes,
                        .kept_bytes = in->kept_bytes,
                        .workspace_bytes_of = in->workspace_bytes_of,
                        .end_bytes = in->end_bytes,
                        .end_kept_bytes = in->end_kept_bytes,
                        .stage_in_flight = in->units,
                        .stage_limit_bytes = in->limits};
    const int64_t n_recomputes = MAX(1, p->n_recomputes), n_dense = draw(state) % (MAX_LAYERS + 1);
    for (int64_t i = 0; i < p->n_layers; i++) {
        in->layer_bytes[i] = 1 + draw(state) % 10;
        for (int64_t recompute = 0; recompute < n_recomputes; recompute++) {
            in->kept_bytes[recompute * p->n_layers + i] = (8 + draw(state) % 4) / (1 + recompute);
            for (int64_t kind = 0; kind < MAX_KINDS; kind++)
                in->layer_ns[(kind * n_recomputes + recompute) * p->n_layers + i] =
                    (kind + 1) *
                    (10 + 3 * recompute + draw(state) % spread + (i >= n_dense ? 7 : 0));
        }
    }
    for (int i = 0; i < MAX_RECOMPUTES; i++)
        in->workspace_bytes_of[i] = draw(state) % 5;
    for (int i = 0; i < 2; i++) {
        in->end_bytes[i] = draw(state) % 10;
        in->end_kept_bytes[i] = draw(state) % 3;
        in->end_ns[i] = draw(state) % 30;
        in->end_ns[2 + i] = draw(state) % 60;
    }
    for (int s = 0; s < MAX_STAGES; s++) {
        in->units[s] = 1 + draw(state) % 5;
        in->kinds[s] = (int32_t)(draw(state) % MAX_KINDS);
        in->limits[s] = draw(state) % 4 == 0 ? 0 : 15 + draw(state) % room;
    }
}

/* --- oracle: every split and every recompute kind of every stage --- */

typedef struct {
    const PlanPartition *p;
    int64_t counts[MAX_STAGES], best[MAX_STAGES];
    int32_t recomputes[MAX_STAGES], best_recomputes[MAX_STAGES];
    int64_t longest, squares;
    bool found;
} Oracle;

static void
judge(Oracle *oracle)
{
    const PlanPartition *p = oracle->p;
    const int64_t n_recomputes = MAX(1, p->n_recomputes);
    int64_t longest = 0, squares = 0, layer = 0;

    for (int64_t s = 0; s < p->n_stages; s++) {
        const int64_t kind = p->stage_kind != NULL ? p->stage_kind[s] : 0,
                      recompute = oracle->recomputes[s];
        int64_t time = 0, kept = 0, used = p->workspace_bytes_of[recompute];
        for (int end = 0; end < 2; end++)
            if (s == (end == 0 ? 0 : p->n_stages - 1)) {
                time += p->end_ns != NULL ? p->end_ns[kind * 2 + end] : 0;
                used += p->end_bytes[end];
                kept += p->end_kept_bytes[end];
            }
        for (int64_t k = 0; k < oracle->counts[s]; k++, layer++) {
            time += p->layer_ns[(kind * n_recomputes + recompute) * p->n_layers + layer];
            used += p->layer_bytes[layer];
            kept += p->kept_bytes[recompute * p->n_layers + layer];
        }
        used += p->stage_in_flight[s] * kept;
        if (p->stage_limit_bytes[s] != 0 && used > p->stage_limit_bytes[s])
            return;
        longest = MAX(longest, time);
        squares += time * time;
    }
    /* Enumerated with more layers on earlier stages first: only a better one replaces. */
    if (oracle->found &&
        (longest > oracle->longest || (longest == oracle->longest && squares >= oracle->squares)))
        return;
    oracle->found = true;
    oracle->longest = longest;
    oracle->squares = squares;
    memcpy(oracle->best, oracle->counts, sizeof oracle->best);
    memcpy(oracle->best_recomputes, oracle->recomputes, sizeof oracle->best_recomputes);
}

static void
enumerate_recomputes(Oracle *oracle, int64_t stage)
{
    if (stage == oracle->p->n_stages) {
        judge(oracle);
        return;
    }
    for (int32_t recompute = 0; recompute < MAX(1, oracle->p->n_recomputes); recompute++) {
        oracle->recomputes[stage] = recompute;
        enumerate_recomputes(oracle, stage + 1);
    }
}

static void
enumerate(Oracle *oracle, int64_t stage, int64_t left)
{
    if (stage == oracle->p->n_stages - 1) {
        oracle->counts[stage] = left;
        if (left > 0 || (oracle->p->lone_ends && stage > 0))
            enumerate_recomputes(oracle, 0);
        return;
    }
    for (int64_t count = left; count >= (oracle->p->lone_ends && stage == 0 ? 0 : 1); count--) {
        oracle->counts[stage] = count;
        enumerate(oracle, stage + 1, left - count);
    }
}

/* Checks the time of the answer; equal times may be different recompute kinds, of which the first
 * is asked for. */
static void
check_answer(const Oracle *oracle, const int64_t *counts, const int32_t *recomputes)
{
    Oracle answer = {.p = oracle->p};

    memcpy(answer.counts, counts, sizeof answer.counts);
    memcpy(answer.recomputes, recomputes, sizeof answer.recomputes);
    judge(&answer);
    g_assert_true(answer.found);
    g_assert_cmpint(answer.longest, ==, oracle->longest);
    g_assert_cmpint(answer.squares, ==, oracle->squares);
    for (int64_t s = 0; s < oracle->p->n_stages; s++)
        g_assert_cmpint(counts[s], ==, oracle->best[s]);
}

static void
check_instances(uint32_t seed, int n_rounds)
{
    uint32_t state = seed;
    int n_feasible = 0, n_infeasible = 0, n_slower = 0;

    for (int round = 0; round < n_rounds; round++) {
        Instance in = {0};
        fill_instance(&in, &state);
        Oracle oracle = {.p = &in.p};
        int64_t counts[MAX_STAGES] = {0};
        int32_t recomputes[MAX_STAGES] = {0};

        if (in.p.lone_ends || in.p.n_layers >= in.p.n_stages)
            enumerate(&oracle, 0, in.p.n_layers);
        const bool done = plan_partition(&in.p, counts, recomputes);
        g_assert_cmpint(done, ==, oracle.found);
        if (!done) {
            n_infeasible++;
            continue;
        }
        n_feasible++;
        check_answer(&oracle, counts, recomputes);
        for (int64_t s = 0; s < in.p.n_stages; s++)
            n_slower += recomputes[s] > 0;
    }
    g_assert_cmpint(n_feasible, >, n_rounds / 5);
    g_assert_cmpint(n_infeasible, >, n_rounds / 20);
    g_assert_cmpint(n_slower, >, n_rounds / 20);
}

static void
test_equals_exhaustive_search(void)
{
    check_instances(3, 6000);
}

/* Twice as fast devices take twice the layers: 2 x against 4 of 12 layers. */
static void
test_fast_devices_take_more_layers(void)
{
    int64_t layer_ns[24], counts[2];
    static const int32_t kinds[2] = {0, 1};

    for (int i = 0; i < 12; i++) {
        layer_ns[i] = 10;
        layer_ns[12 + i] = 20;
    }
    const PlanPartition partition = {
        .n_layers = 12, .n_stages = 2, .layer_ns = layer_ns, .stage_kind = kinds};
    g_assert_true(plan_partition(&partition, counts, NULL));
    g_assert_cmpint(counts[0], ==, 8);
    g_assert_cmpint(counts[1], ==, 4);
}

/* 1F1B on four ranks holds 4, 3, 2, 1 micro-batches: only the ranks that must recompute do. */
static void
test_recompute_is_chosen_per_stage(void)
{
    static const int64_t layer_ns[8] = {30, 30, 30, 30, 40, 40, 40, 40};
    static const int64_t kept[8] = {10, 10, 10, 10, 1, 1, 1, 1};
    static const int64_t units[4] = {4, 3, 2, 1}, limits[4] = {25, 25, 25, 25};
    const PlanPartition partition = {.n_layers = 4,
                                     .n_stages = 4,
                                     .n_recomputes = 2,
                                     .layer_ns = layer_ns,
                                     .kept_bytes = kept,
                                     .stage_in_flight = units,
                                     .stage_limit_bytes = limits};
    int64_t counts[4];
    int32_t recomputes[4];

    g_assert_true(plan_partition(&partition, counts, recomputes));
    for (int s = 0; s < 4; s++)
        g_assert_cmpint(recomputes[s], ==, 10 * units[s] > 25 ? 1 : 0);
}

static void
test_embedding_and_head_lighten_the_ends(void)
{
    /* 2+16 | 16 | 6+8 and 2+12 | 16 | 6+12 share maximum 18 and squares: more layers come first. */
    static const int64_t layer_ns[10] = {4, 4, 4, 4, 4, 4, 4, 4, 4, 4};
    const PlanPartition partition = {
        .n_layers = 10, .n_stages = 3, .layer_ns = layer_ns, .end_ns = (const int64_t[]){2, 6}};
    int64_t counts[3];

    g_assert_true(plan_partition(&partition, counts, NULL));
    g_assert_cmpint(counts[0], ==, 4);
    g_assert_cmpint(counts[1], ==, 4);
    g_assert_cmpint(counts[2], ==, 2);
}

typedef struct {
    int64_t n, length, n_layers, n_mtp;
    int64_t before[MAX_LAYERS];
} Divisions;

/* A PlanDivisionFunc: ascending, so that none comes twice; whole; MTP modules on one stage, the last
 * one that has layers. */
static void
check_division(const int64_t *counts, void *user_data)
{
    Divisions *d = user_data;
    int64_t sum = 0, last = 0;
    bool is_later = d->n == 0;

    for (int64_t k = 0, is_equal = 1; k < d->length; k++) {
        sum += counts[k];
        last = counts[k] > 0 ? counts[k] : last;
        is_later = is_later || (is_equal && counts[k] > d->before[k]);
        is_equal = is_equal && counts[k] == d->before[k];
        d->before[k] = counts[k];
        g_assert_cmpint(counts[k], >=, k > 0 && k + 1 < d->length ? 1 : 0);
    }
    g_assert_true(is_later);
    g_assert_cmpint(sum, ==, d->n_layers + d->n_mtp);
    g_assert_cmpint(last, >=, d->n_mtp);
    d->n++;
}

/* C(n - 1, p - 1) ways to give n units to p stages, C(n + 1, p - 1) with ends that may be alone: as
 * many as there are binary words of the borders. */
static void
test_divisions_are_all_there_are(void)
{
    for (int64_t n = 1; n <= 8; n++)
        for (int64_t p = 1; p <= 6; p++)
            for (int i = 0; i < 4; i++) {
                const bool has_vocab = i % 2 == 1 && p > 1;
                const ModelArch arch = {
                    .n_layers = n, .vocab = i % 2 == 1 ? 100 : 0, .mtp.n = i / 2 == 1 ? 2 : 0};
                const PlanRequest request = {.arch = &arch};
                const int64_t n_borders = n + (i / 2) + (has_vocab ? 2 : 0) - 1;
                Divisions d = {.length = p, .n_layers = n, .n_mtp = arch.mtp.n};
                int64_t expected = 0;

                for (uint32_t word = 0; word < UINT32_C(1) << n_borders; word++)
                    expected += __builtin_popcount(word) == p - 1;
                g_assert_cmpint(plan_divisions_n(&request, p), ==, expected);
                plan_divisions_each(&request, p, check_division, &d);
                g_assert_cmpint(d.n, ==, expected);
            }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/planner/partition/equals-exhaustive-search", test_equals_exhaustive_search);
    g_test_add_func("/planner/partition/fast-devices-take-more-layers",
                    test_fast_devices_take_more_layers);
    g_test_add_func("/planner/partition/recompute-is-chosen-per-stage",
                    test_recompute_is_chosen_per_stage);
    g_test_add_func("/planner/partition/embedding-and-head-lighten-the-ends",
                    test_embedding_and_head_lighten_the_ends);
    g_test_add_func("/planner/partition/divisions-are-all-there-are",
                    test_divisions_are_all_there_are);
    return g_test_run();
}
