/* Tests of planner/bounds/order_path.h and of the bound that is made of it: at the times that a way
 * is the longest at, it takes as long as the simulator says; at others no longer. */
#include "planner/bounds/plan_bound.h"
#include "simulator/simulate.h"

/* All that the bound asks of a plan. */
static Plan *
plan_of(const char *family, const ScheduleShape *shape)
{
    Plan *plan = plan_new();

    g_free(plan->schedule);
    plan->schedule = g_strdup(family);
    plan->degrees.pp = shape->n_ranks;
    plan->degrees.vpp = shape->n_chunks;
    plan->n_micro_batches = shape->n_micro_batches;
    g_array_set_size(plan->slices, 0);
    for (int64_t i = 0; i < shape->n_slices; i++) {
        const int64_t tokens = 1;
        g_array_append_val(plan->slices, tokens);
    }
    return plan;
}

static int64_t
simulated_ns(const Schedule *schedule, const Workload *workload)
{
    static const SimOptions options = {0};
    g_auto(SimResult) result = {0};
    g_autoptr(GError) error = NULL;

    g_assert_true(sim_run(schedule, workload, &options, &result, &error));
    return result.report->iteration_ns;
}

/* All ops of the stage, of all chains, by @ns. */
static void
lengthen(Workload *workload, int64_t stage, int64_t ns)
{
    for (int32_t slice = 0; slice < workload->n_slices; slice++)
        for (int kind = 0; kind < SCHEDULE_OP_N; kind++) {
            WorkloadOp *op = &workload->ops[stage * workload->n_slices + slice];
            op->time_ns[kind] += ns;
            op->part_ns[kind][PROFILE_PART_COMPUTE] += ns;
        }
}

/* The times of the ways, and others of each stage. */
static void
check_order(const Plan *plan, const Schedule *schedule, PlanMemo *flights, GRand *rng)
{
    const PlanFlight *flight = plan_bound_flight(plan, flights);

    g_assert_nonnull(flight->paths);
    for (int path = 0; path < PLAN_PATH_N; path++) {
        int64_t time_ns[SCHEDULE_OP_N];
        for (int kind = 0; kind < SCHEDULE_OP_N; kind++)
            time_ns[kind] = plan_path_times[path][kind];
        g_autoptr(Workload) workload = workload_new_plain(schedule, time_ns, PLAN_PATH_MESSAGE);
        for (int32_t chain = 0; chain < workload->n_chains; chain++)
            lengthen(workload, (chain + 1) * workload->n_stages - 1, PLAN_PATH_HEAD);
        g_assert_cmpint(plan_bound_path_ns(plan, workload, flight), ==,
                        simulated_ns(schedule, workload));
        for (int64_t i = 0; i < (int64_t)workload->n_chains * workload->n_stages; i++)
            for (int kind = 0; kind < SCHEDULE_OP_N; kind++) {
                WorkloadOp *op = &workload->ops[i * workload->n_slices];
                const int64_t ns = g_rand_int_range(rng, 0, 50);
                for (int32_t slice = 0; slice < workload->n_slices; slice++)
                    op[slice].time_ns[kind] = op[slice].part_ns[kind][PROFILE_PART_COMPUTE] = ns;
            }
        workload->blocking_messages = g_rand_boolean(rng);
        g_assert_cmpint(plan_bound_path_ns(plan, workload, flight), <=,
                        simulated_ns(schedule, workload));
    }
}

/* Families whose order is counted without being built (flight.h), that overlap, that search or that are
 * built for the stages' times, have no ways. */
static bool
has_paths(const ScheduleFamily *family)
{
    return !family->overlaps && !family->searches && !family->reads_times &&
           !family->forwards_first && family->in_flight == NULL;
}

static void
test_a_way_takes_what_is_simulated(void)
{
    const ScheduleFamily *const *families = schedule_families();
    g_autoptr(PlanMemo) flights = plan_memo_new();
    g_autoptr(GRand) rng = g_rand_new_with_seed(20261122);
    int n_orders = 0, n_families = 0;

    for (size_t i = 0; families[i] != NULL; i++) {
        int n_of_family = 0;
        for (int64_t p = 1; p <= 6; p++)
            for (int64_t v = 1; v <= 4; v++)
                for (int64_t m = 1; m <= 12; m++)
                    for (int64_t n = 1; n <= 3; n++) {
                        const ScheduleShape shape = {
                            .n_ranks = p, .n_chunks = v, .n_micro_batches = m, .n_slices = n};
                        if (!has_paths(families[i]) ||
                            !schedule_shape_check(families[i], &shape, NULL))
                            continue;
                        g_autoptr(Plan) plan = plan_of(families[i]->name, &shape);
                        g_autoptr(Schedule) schedule =
                            schedule_new(families[i]->name, &shape, NULL);
                        check_order(plan, schedule, flights, rng);
                        n_of_family++;
                    }
        n_orders += n_of_family;
        n_families += n_of_family > 0;
    }
    /* interleaved and its kin, zb-h1 and its, the four of a V, bidir */
    g_assert_cmpint(n_families, >=, 8);
    g_assert_cmpint(n_orders, >, 500);
}

/* Two ops overlap in no more time than one may take: no sum of them is a bound. */
static void
test_overlapped_orders_have_none(void)
{
    const ScheduleShape shape = {.n_ranks = 4, .n_chunks = 2, .n_micro_batches = 8, .n_slices = 1};
    g_autoptr(Schedule) schedule = schedule_new("dualpipev", &shape, NULL);

    g_assert_nonnull(schedule);
    g_assert_null(plan_order_paths_new(schedule));
}

/* Rank 0 waits for a backward that rank 1 runs only after a forward that never comes. */
static void
test_orders_that_cannot_run_have_none(void)
{
    const ScheduleShape shape = {.n_ranks = 2, .n_chunks = 1, .n_micro_batches = 2, .n_slices = 1};
    g_autoptr(Schedule) schedule = schedule_new("1f1b", &shape, NULL);

    g_assert_nonnull(schedule);
    g_autoptr(PlanOrderPaths) path = plan_order_paths_new(schedule);
    g_assert_nonnull(path);
    /* F0 F1 B0 B1 becomes F0 B1 F1 B0. */
    ScheduleOp *ops = schedule->ops;
    g_assert_cmpint(ops[1].kind, ==, SCHEDULE_OP_FORWARD);
    const ScheduleOp forward = ops[1], last = ops[3];
    ops[1] = last;
    ops[3] = ops[2];
    ops[2] = forward;
    g_assert_null(plan_order_paths_new(schedule));
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/planner/order-path/a-way-takes-what-is-simulated",
                    test_a_way_takes_what_is_simulated);
    g_test_add_func("/planner/order-path/overlapped-orders-have-none",
                    test_overlapped_orders_have_none);
    g_test_add_func("/planner/order-path/orders-that-cannot-run-have-none",
                    test_orders_that_cannot_run_have_none);
    return g_test_run();
}
