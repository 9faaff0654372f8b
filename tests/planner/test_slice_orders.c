/* Tests of planner/slices/orders.h: against all answers, simulated, and against its bound. */
#include "tests/planner/slice_case.h"

typedef struct {
    const Case *k;
    const char *family;
    int64_t n_chunks;
} Judge;

/* Of a workload that is made here. */
static int64_t
judge(const GPtrArray *groups, const Judge *j)
{
    return simulate(j->k, j->family, j->n_chunks, groups);
}

static PlanSliceOrder
order_of(const Judge *j)
{
    return (PlanSliceOrder){
        .problem = &j->k->problem,
        .stages = j->k->stages,
        .n_ranks = j->k->problem.n_stages / j->n_chunks,
        .schedule = j->family,
        .simulate = sim_run_report,
    };
}

/* The least of all answers with common slices: bit c of @cuts ends a slice after cell c. */
static Best
exhaustive_order(const Judge *j)
{
    const int64_t n = j->k->problem.costs.n_cells, batch = j->k->problem.costs.batch;
    Best best = {INT64_MAX, 0};

    for (int64_t cuts = 0; cuts < 1 << (n - 1); cuts++)
        for (int64_t breaks = 0; breaks < 1 << (batch - 1); breaks++) {
            GPtrArray *groups = g_ptr_array_new();
            bool fits = true;
            int64_t n_slices = 0;
            for (int64_t x = 0, b = 1; x < batch; x++, b++) {
                if (x + 1 < batch && !(breaks >> x & 1))
                    continue;
                PlanSliceGroup *one = g_new0(PlanSliceGroup, 1);
                *one = (PlanSliceGroup){b, 0, g_array_new(FALSE, FALSE, sizeof(int64_t))};
                for (int64_t c = 0, tokens = 8; c < n; c++, tokens += 8) {
                    if (c + 1 < n && !(cuts >> c & 1))
                        continue;
                    g_array_append_val(one->slices, tokens);
                    tokens = 0;
                }
                fits = fits && (j->k->problem.max_group == 0 || b <= j->k->problem.max_group);
                n_slices += one->slices->len;
                b = 0;
                g_ptr_array_add(groups, one);
            }
            const int64_t time = fits ? judge(groups, j) : INT64_MAX;
            if (time < best.latency || (time == best.latency && n_slices < best.n_slices))
                best = (Best){time, n_slices};
            free_groups(groups);
        }
    return best;
}

static void
test_orders_equal_all_answers(void)
{
    static const char *const families[] = {"seq1f1b", "seq1f1b-interleaved", "gpipe", "1f1b"};
    uint32_t state = 23;
    int n_feasible = 0, n_unequal = 0, n_impossible = 0, n_limited = 0;

    for (int i = 0; i < 480; i++) {
        g_auto(Case) k;
        const Judge j = {&k, families[i % 4], i % 4 == 1 ? 2 : 1};
        draw_case(&state, &k, i % 8 < 4, 4, 5);
        k.problem.n_stages = i % 4 == 1 ? 4 : k.problem.n_stages;
        if (k.stages[0].backward == NULL || (i % 8 == 1 && k.stages[3].forward == NULL))
            continue;
        const bool is_limited = k.problem.limit_bytes > 0;
        const Best best = exhaustive_order(&j);
        const PlanSliceOrder order = order_of(&j);
        g_autoptr(GError) error = NULL;
        g_autoptr(PlanSliceResult) result = plan_slice_solve_order(&order, &error);
        if (best.latency == INT64_MAX) {
            g_assert_error(error, PLAN_SLICE_ERROR, PLAN_SLICE_ERROR_INFEASIBLE);
            n_impossible++;
            continue;
        }
        g_assert_no_error(error);
        g_assert_cmpint(result->latency, ==, best.latency);
        g_assert_cmpint(result->lower_bound, ==, best.latency);
        k.problem.limit_bytes = 0; /* of rounds: there are none */
        g_assert_cmpint(check_answer(&k, result), ==, best.n_slices);
        n_feasible++;
        n_limited += is_limited;
        const PlanSliceGroup *first = result->groups->pdata[0];
        for (guint g = 1; g < result->groups->len; g++)
            n_unequal += ((PlanSliceGroup *)result->groups->pdata[g])->batch != first->batch;
    }
    g_assert_cmpint(n_feasible, >, 60);
    g_assert_cmpint(n_unequal, >, 5);
    g_assert_cmpint(n_limited, >, 20);
    g_assert_cmpint(n_impossible, >, 3);
}

static void
test_orders_on_large_grids_keep_their_bound(void)
{
    static const char *const families[] = {"seq1f1b", "seq1f1b-interleaved"};
    uint32_t state = 29;

    for (size_t i = 0; i < 2 * G_N_ELEMENTS(large); i++) {
        g_auto(Case) k;
        const Judge j = {&k, families[i % 2], 1 + (int64_t)i % 2};
        large_case(&k, &large[i / 2], 4, i < 4 ? 1.0 : 1.25);
        const PlanSliceOrder order = order_of(&j);
        g_autoptr(PlanSliceResult) result = plan_slice_solve_order(&order, NULL);
        g_autoptr(PlanSliceResult) formula = plan_slice_solve_problem(&k.problem, NULL);
        g_assert_cmpint(result->latency, ==, judge(result->groups, &j));
        g_assert_cmpint(result->lower_bound, <=, result->latency);
        if (is_common(formula->groups)) /* the fill-drain formula's own answer */
            g_assert_cmpint(result->latency, <=, judge(formula->groups, &j));
        for (int n = 0; n < 100; n++) {
            GPtrArray *groups = random_groups(&state, &k, true);
            const int64_t time = judge(groups, &j);
            g_assert_cmpint(result->lower_bound, <=, time);
            g_assert_cmpint(result->latency, <=, time);
            free_groups(groups);
        }
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/planner/slice-orders/equal-all-answers", test_orders_equal_all_answers);
    g_test_add_func("/planner/slice-orders/on-large-grids-keep-their-bound",
                    test_orders_on_large_grids_keep_their_bound);
    return g_test_run();
}
