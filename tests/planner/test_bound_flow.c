/* Tests of planner/bounds/flow.h: against the simulator on random ops, and against the formula. */
#include "planner/bounds/flow.h"

#include "simulator/simulate.h"

static int64_t
draw_to(GRand *random, int64_t most)
{
    return g_rand_int_range(random, 0, (gint32)most + 1);
}

static int64_t
simulated_ns(const Schedule *schedule, const Workload *workload)
{
    const SimOptions options = {0};
    g_auto(SimResult) result = {0};
    g_autoptr(GError) error = NULL;

    g_assert_true(sim_run(schedule, workload, &options, &result, &error));
    g_assert_no_error(error);
    return result.report->iteration_ns;
}

/* Random times of @n_classes classes, which micro-batches have at random. */
static Workload *
random_workload(GRand *random, const Schedule *schedule, int32_t n_classes)
{
    static const int64_t none[SCHEDULE_OP_N];
    Workload *w = workload_new_plain(schedule, none, 1);
    const int64_t n_ops = (int64_t)w->n_stages * n_classes * w->n_slices;
    const int64_t most = g_rand_boolean(random) ? 9 : 100;
    WorkloadOp *ops = g_new0(WorkloadOp, (size_t)n_ops);

    for (int64_t i = 0; i < n_ops; i++) {
        const WorkloadOp *plain = &w->ops[i / w->n_slices / n_classes * w->n_slices];
        WorkloadOp *op = &ops[i];
        op->time_ns[SCHEDULE_OP_FORWARD] = draw_to(random, most);
        op->time_ns[SCHEDULE_OP_BACKWARD] = draw_to(random, 2 * most);
        if (plain->forward_message.ns > 0)
            op->forward_message.ns = draw_to(random, most / 3);
        if (plain->backward_message.ns > 0)
            op->backward_message.ns = draw_to(random, most / 3);
        op->forward_message.buffered_ns = draw_to(random, op->forward_message.ns);
        op->backward_message.buffered_ns = draw_to(random, op->backward_message.ns);
    }
    g_free(w->ops);
    w->ops = ops;
    w->n_classes = n_classes;
    w->blocking_messages = g_rand_boolean(random);
    w->op_overhead_ns = draw_to(random, 3);
    w->class_of_micro_batch = g_new(int32_t, (size_t)schedule->n_micro_batches);
    for (int32_t i = 0; i < schedule->n_micro_batches; i++)
        w->class_of_micro_batch[i] = (int32_t)draw_to(random, n_classes - 1);
    return w;
}

static void
test_no_simulated_time_is_less(void)
{
    static const char *const families[] = {"terapipe", "seq1f1b", "seq1f1b-interleaved"};
    GRand *random = g_rand_new_with_seed(4);
    int n_tried = 0, n_exact = 0;

    while (n_tried < 3000) {
        const size_t which = (size_t)draw_to(random, 2);
        const ScheduleShape shape = {
            .n_ranks = 2 + draw_to(random, 3),
            .n_chunks = which == 2 ? 2 + draw_to(random, 1) : 1,
            .n_micro_batches = 1 + draw_to(random, 5),
            .n_slices = 1 + draw_to(random, 4),
        };
        g_autoptr(Schedule) schedule = schedule_new(families[which], &shape, NULL);
        if (schedule == NULL)
            continue;
        g_autoptr(Workload) workload =
            random_workload(random, schedule, (int32_t)(1 + draw_to(random, 2)));
        const int64_t bound_ns = plan_bound_flow_ns(workload, shape.n_micro_batches, which == 0);
        const int64_t time_ns = simulated_ns(schedule, workload);
        g_assert_cmpint(bound_ns, <=, time_ns);
        n_exact += bound_ns == time_ns;
        /* No stage's messages keep its neighbours: the shops are all there is. */
        if (which == 0 && !workload->blocking_messages && workload->class_of_micro_batch != NULL)
            g_assert_cmpint(bound_ns, ==, time_ns);
        n_tried++;
    }
    /* It is worth something: one in eight is the time itself. */
    g_assert_cmpint(n_exact, >, n_tried / 8);
    g_rand_free(random);
}

/* Equal stages without messages: m sum t + (p - 1) (max f + max b) of one size of micro-batch,
 * which is TeraPipe's time, and which no order beats. */
static void
test_equal_stages_have_the_formula(void)
{
    static const int64_t forward_ns[] = {7, 11, 5}, backward_ns[] = {10, 24, 13};
    const int64_t p = 4, m = 3, expect = m * (23 + 47) + (p - 1) * (11 + 24);
    const ScheduleShape shape = {.n_ranks = p, .n_chunks = 1, .n_micro_batches = m, .n_slices = 3};
    g_autoptr(Schedule) schedule = schedule_new("terapipe", &shape, NULL);
    static const int64_t none[SCHEDULE_OP_N];
    g_autoptr(Workload) workload = workload_new_plain(schedule, none, 0);

    for (int32_t i = 0; i < workload->n_stages * 3; i++) {
        workload->ops[i].time_ns[SCHEDULE_OP_FORWARD] = forward_ns[i % 3];
        workload->ops[i].time_ns[SCHEDULE_OP_BACKWARD] = backward_ns[i % 3];
    }
    g_assert_cmpint(plan_bound_flow_ns(workload, m, true), ==, expect);
    g_assert_cmpint(simulated_ns(schedule, workload), ==, expect);
}

/* Absurd times saturate. */
static void
test_sums_do_not_overflow(void)
{
    static const int64_t absurd[SCHEDULE_OP_N] = {INT64_MAX / 2, INT64_MAX / 2};
    const ScheduleShape shape = {
        .n_ranks = 4, .n_chunks = 1, .n_micro_batches = 64, .n_slices = 16};
    g_autoptr(Schedule) schedule = schedule_new("seq1f1b", &shape, NULL);
    g_autoptr(Workload) workload = workload_new_plain(schedule, absurd, INT64_MAX / 2);

    g_assert_cmpint(plan_bound_flow_ns(workload, 64, false), >, INT64_MAX / 16);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/planner/bound-flow/no-simulated-time-is-less",
                    test_no_simulated_time_is_less);
    g_test_add_func("/planner/bound-flow/equal-stages-have-the-formula",
                    test_equal_stages_have_the_formula);
    g_test_add_func("/planner/bound-flow/sums-do-not-overflow", test_sums_do_not_overflow);
    return g_test_run();
}
