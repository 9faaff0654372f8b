/* Tests of what simulator/simulate.h refuses: workloads of another shape or beyond all limits, and
 * schedules that cannot run. */
#include "simulator/simulate.h"

#include "schedule/check.h"
#include "tests/schedule/evaluate.h"
#include "tests/simulator/build.h"
#include "tests/simulator/random.h"

typedef void (*Spoil)(Workload *workload);

static void
spoil_stages(Workload *w)
{
    w->n_stages--;
}
static void
spoil_ranks(Workload *w)
{
    w->n_ranks++;
}
static void
spoil_slices(Workload *w)
{
    w->n_slices++;
}
static void
spoil_chains(Workload *w)
{
    w->n_chains = 2;
}
static void
spoil_class(Workload *w)
{
    w->class_of_micro_batch = g_new0(int32_t, 8);
    w->class_of_micro_batch[3] = 1;
}
static void
spoil_time(Workload *w)
{
    w->ops[2].time_ns[SCHEDULE_OP_BACKWARD] = -1;
}
static void
spoil_long(Workload *w)
{
    w->ops[2].time_ns[SCHEDULE_OP_BACKWARD] = INT64_MAX / 15; /* 2^59 ns are allowed */
}
static void
spoil_part(Workload *w)
{
    w->ops[2].part_ns[SCHEDULE_OP_FORWARD][PROFILE_PART_TP] = 2;
}
static void
spoil_message(Workload *w)
{
    w->ops[1].backward_message.ns = INT64_MAX;
}
static void
spoil_sum(Workload *w)
{
    for (int i = 0; i < 4; i++)
        w->ops[i].time_ns[SCHEDULE_OP_FORWARD] = INT64_MAX / 40;
}
static void
spoil_reduce(Workload *w)
{
    w->ranks[1].dp_reduce_ns = INT64_MAX;
}
static void
spoil_optimizer(Workload *w)
{
    w->ranks[1].optimizer_ns = -5;
}

static void
test_refuses(void)
{
    static const struct {
        Spoil spoil;
        int code;
        const char *message;
    } cases[] = {
        {spoil_stages, SCHEDULE_ERROR_SHAPE, "the times are for 3 stages, the schedule has 4"},
        {spoil_ranks, SCHEDULE_ERROR_SHAPE, "the times are for 5 ranks, the schedule has 4"},
        {spoil_slices, SCHEDULE_ERROR_SHAPE, "the times are for 2 slices, the schedule has 1"},
        {spoil_chains, SCHEDULE_ERROR_SHAPE,
         "the times are for 2 chains of stages, the schedule has 1"},
        {spoil_class, SCHEDULE_ERROR_SHAPE, "micro-batch 3 is of class 1, and there are 1"},
        {spoil_time, SCHEDULE_ERROR_LIMIT, NULL},
        {spoil_long, SCHEDULE_ERROR_LIMIT,
         "workload: an op's time is negative or longer than 18 years"},
        {spoil_part, SCHEDULE_ERROR_LIMIT, NULL},
        {spoil_message, SCHEDULE_ERROR_LIMIT, NULL},
        {spoil_sum, SCHEDULE_ERROR_LIMIT, NULL},
        {spoil_reduce, SCHEDULE_ERROR_LIMIT, NULL},
        {spoil_optimizer, SCHEDULE_ERROR_LIMIT, NULL},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(Schedule) schedule = build("1f1b", 4, 8, 1);
        g_autoptr(Workload) workload = plain_workload(schedule, unit_times, 1);
        g_autoptr(GError) error = NULL;
        g_auto(SimResult) result = {0};
        cases[i].spoil(workload);
        g_assert_false(sim_run(schedule, workload, NULL, &result, &error));
        g_assert_error(error, SCHEDULE_ERROR, cases[i].code);
        if (cases[i].message != NULL)
            g_assert_cmpstr(error->message, ==, cases[i].message);
        g_assert_null(result.report);
    }
}

/* Each number of an op and of its messages alone: below 0, and what may not be as long beyond 2^59 ns. */
static void
test_refuses_each_number(void)
{
    for (int i = 0;; i++) {
        g_autoptr(Schedule) schedule = build("zb-h1", 4, 8, 1);
        g_autoptr(Workload) workload = plain_workload(schedule, unit_times, 1);
        WorkloadOp *op = &workload->ops[3];
        const struct {
            int64_t *number;
            bool is_time;
        } numbers[] = {
            {&op->time_ns[SCHEDULE_OP_FORWARD], true},
            {&op->time_ns[SCHEDULE_OP_BACKWARD_INPUT], true},
            {&op->time_ns[SCHEDULE_OP_BACKWARD_WEIGHT], true},
            {&op->forward_message.ns, true},
            {&op->backward_message.ns, true},
            {&op->forward_message.buffered_ns, false},
            {&op->backward_message.buffered_ns, false},
            {&op->forward_message.bytes, false},
            {&op->backward_message.bytes, false},
            {&op->part_ns[SCHEDULE_OP_FORWARD][PROFILE_PART_TP], false},
            {&op->part_ns[SCHEDULE_OP_BACKWARD_WEIGHT][PROFILE_PART_N - 1], false},
        };
        if (i == G_N_ELEMENTS(numbers))
            break;
        const int64_t spoilt[] = {-1, (INT64_C(1) << 59) + 1};
        for (int k = 0; k < (numbers[i].is_time ? 2 : 1); k++) {
            g_autoptr(GError) error = NULL;
            g_auto(SimResult) result = {0};
            const int64_t right = *numbers[i].number;

            *numbers[i].number = spoilt[k];
            g_assert_false(sim_run(schedule, workload, NULL, &result, &error));
            g_assert_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_LIMIT);
            *numbers[i].number = right;
        }
        g_autoptr(GError) error = NULL;
        g_auto(SimResult) result = {0};
        g_assert_true(sim_run(schedule, workload, NULL, &result, &error));
        g_assert_no_error(error);
    }
}

/* An op or a message may take an eighth of the longest sum. */
static void
test_longest_time(void)
{
    for (int i = 0; i < 4; i++) {
        g_autoptr(Schedule) schedule = build("gpipe", 4, 1, 1);
        g_autoptr(Workload) workload = plain_workload(schedule, unit_times, 1);
        WorkloadOp *op = &workload->ops[2];
        int64_t *const numbers[] = {
            &op->time_ns[SCHEDULE_OP_FORWARD],
            &op->time_ns[SCHEDULE_OP_BACKWARD],
            &op->forward_message.ns,
            &op->backward_message.ns,
        };
        const int64_t longest = (INT64_C(1) << 59) - 1;

        for (int more = 0; more <= 1; more++) {
            g_autoptr(GError) error = NULL;
            g_auto(SimResult) result = {0};

            *numbers[i] = longest + more;
            g_assert_true(sim_run(schedule, workload, NULL, &result, &error) == (more == 0));
            g_assert_true((error == NULL) == (more == 0));
        }
    }
}

static void
test_deadlock_is_an_error(void)
{
    static const char *const ranks[] = {"F0.0 B0.0 F1.0 B1.0", "F1.0 F0.0 B0.0 B1.0"};
    static const ScheduleShape shape = {2, 1, 2, 1, 0, NULL};
    g_autoptr(Schedule) schedule = schedule_from_text(&shape, SCHEDULE_PLACEMENT_LOOP, ranks);
    g_autoptr(Workload) workload = plain_workload(schedule, unit_times, 0);
    g_autoptr(GError) error = NULL;
    g_auto(SimResult) result = {0};

    g_assert_false(sim_run(schedule, workload, NULL, &result, &error));
    g_assert_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_DEADLOCK);
}

/* Whatever is done to a schedule's ops, sim_run() takes it if and only if schedule_check() does,
 * and says the same. */
static void
test_agrees_with_checker(void)
{
    int n_bad = 0;

    for (uint64_t seed = 0; seed < 20000; seed++) {
        uint64_t state = seed ^ 0xbad;
        g_autoptr(Schedule) schedule = random_schedule(&state);
        g_autoptr(Workload) workload = plain_workload(schedule, unit_times, 0);
        g_autoptr(GError) expected = NULL;
        g_autoptr(GError) error = NULL;
        g_auto(SimResult) result = {0};
        ScheduleOp *a = &schedule->ops[random_in(&state, 0, schedule_n_ops(schedule) - 1)];
        ScheduleOp *b = &schedule->ops[random_in(&state, 0, schedule_n_ops(schedule) - 1)];
        const ScheduleOp kept = *a;
        switch (random_in(&state, 0, 5)) {
        case 0: /* two ops change places */
            *a = *b;
            *b = kept;
            break;
        case 1: /* one is there twice, one is missing */
            *a = *b;
            break;
        case 2:
            a->kind = (uint8_t)random_in(&state, 0, 4);
            break;
        case 3:
            a->micro_batch += (int32_t)random_in(&state, -1, 1);
            break;
        case 4:
            a->slice = (uint16_t)random_in(&state, 0, schedule->n_slices);
            break;
        default: /* the last op is not there */
            schedule->rank_begin[schedule->n_ranks]--;
            break;
        }
        const bool can_run = schedule_check(schedule, &expected);
        n_bad += !can_run;
        g_assert_cmpint(sim_run(schedule, workload, NULL, &result, &error), ==, can_run);
        if (!can_run) {
            g_assert_error(error, SCHEDULE_ERROR, expected->code);
            g_assert_cmpstr(error->message, ==, expected->message);
        }
    }
    g_assert_cmpint(n_bad, >, 10000);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/simulator/simulate/refuses", test_refuses);
    g_test_add_func("/simulator/simulate/refuses-each-number", test_refuses_each_number);
    g_test_add_func("/simulator/simulate/longest-time", test_longest_time);
    g_test_add_func("/simulator/simulate/deadlock-is-an-error", test_deadlock_is_an_error);
    g_test_add_func("/simulator/simulate/agrees-with-checker", test_agrees_with_checker);
    return g_test_run();
}
