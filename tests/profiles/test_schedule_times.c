/* Tests of profiles/workload/schedule_times.h: a Workload's numbers as a family that searches gets them. */
#include "profiles/workload/schedule_times.h"

/* Two ranks with one stage each; micro-batches of two classes, the second twice as large. */
typedef struct {
    WorkloadOp ops[4]; /* [stage * 2 + class] */
    WorkloadRank ranks[2];
    Workload workload;
} Fixture;

static void
fixture_init(Fixture *f)
{
    *f = (Fixture){0};
    for (int i = 0; i < 4; i++) {
        const int64_t n = 1 + i % 2;
        f->ops[i] = (WorkloadOp){
            .time_ns = {100 * n, 190 * n, 110 * n, 90 * n},
            .forward_message.ns = i < 2 ? 20 * n : 0,
            .forward_message.buffered_ns = i < 2 ? 5 : 0,
            .backward_message.ns = i < 2 ? 0 : 30 * n,
            .activation_bytes = 1000 * n,
            .weight_activation_bytes = 600 * n,
            .workspace_bytes = {10, 50 * n, 40, 0},
        };
    }
    f->ranks[0] = (WorkloadRank){.static_bytes = {3000, 2000}, .memory_limit_bytes = 20000};
    f->ranks[1] = (WorkloadRank){.static_bytes = {3000}, .memory_limit_bytes = 4000};
    f->workload = (Workload){
        .n_stages = 2,
        .n_ranks = 2,
        .n_classes = 2,
        .n_slices = 1,
        .n_chains = 1,
        .ops = f->ops,
        .ranks = f->ranks,
        .op_overhead_ns = 7,
    };
}

static void
test_times_are_those_of_the_largest_micro_batch(void)
{
    Fixture f;
    g_auto(WorkloadScheduleTimes) t = {0};

    fixture_init(&f);
    workload_schedule_times_init(&t, &f.workload, SCHEDULE_PLACEMENT_LOOP);
    g_assert_cmpint(t.times.n_stages, ==, 2);
    g_assert_cmpint(t.times.objective, ==, SCHEDULE_OBJECTIVE_MAKESPAN);
    for (int s = 0; s < 2; s++) {
        g_assert_cmpint(t.stages[s].forward_ns, ==, 200 + 7);
        g_assert_cmpint(t.stages[s].backward_ns, ==, 380 + 7);
        g_assert_cmpint(t.stages[s].input_ns, ==, 220 + 7);
        g_assert_cmpint(t.stages[s].weight_ns, ==, 180 + 7);
        g_assert_cmpint(t.stages[s].activation_bytes, ==, 2000);
        g_assert_cmpint(t.stages[s].weight_activation_bytes, ==, 1200);
    }
    g_assert_cmpint(t.stages[0].forward_message_ns, ==, 40);
    g_assert_cmpint(t.stages[1].backward_message_ns, ==, 60);
}

/* The receiver waits for all of a message, the sender for what is not buffered. */
static void
test_blocking_messages_belong_to_ops(void)
{
    Fixture f;
    g_auto(WorkloadScheduleTimes) t = {0};

    fixture_init(&f);
    f.workload.blocking_messages = true;
    workload_schedule_times_init(&t, &f.workload, SCHEDULE_PLACEMENT_LOOP);
    g_assert_cmpint(t.stages[0].forward_ns, ==, 200 + 7 + 35);
    g_assert_cmpint(t.stages[1].forward_ns, ==, 200 + 7 + 40);
    g_assert_cmpint(t.stages[1].input_ns, ==, 220 + 7 + 60);
    g_assert_cmpint(t.stages[0].input_ns, ==, 220 + 7 + 60);
    g_assert_cmpint(t.stages[0].weight_ns, ==, 180 + 7);
    g_assert_cmpint(t.stages[0].forward_message_ns, ==, 0);
    g_assert_cmpint(t.stages[1].backward_message_ns, ==, 0);
}

static void
test_limit_is_what_is_left(void)
{
    Fixture f;
    g_auto(WorkloadScheduleTimes) t = {0}, unknown = {0};

    fixture_init(&f);
    workload_schedule_times_init(&t, &f.workload, SCHEDULE_PLACEMENT_LOOP);
    g_assert_cmpint(t.limit_bytes[0], ==, 20000 - 5000 - 100);
    g_assert_cmpint(t.limit_bytes[1], ==, 2000); /* 900 are left, one micro-batch needs this */
    f.ranks[1].memory_limit_bytes = 0;
    workload_schedule_times_init(&unknown, &f.workload, SCHEDULE_PLACEMENT_LOOP);
    g_assert_null(unknown.times.limit_bytes);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/profiles/schedule-times/times-are-those-of-the-largest-micro-batch",
                    test_times_are_those_of_the_largest_micro_batch);
    g_test_add_func("/profiles/schedule-times/blocking-messages-belong-to-ops",
                    test_blocking_messages_belong_to_ops);
    g_test_add_func("/profiles/schedule-times/limit-is-what-is-left", test_limit_is_what_is_left);
    return g_test_run();
}
