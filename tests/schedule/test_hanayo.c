/* Tests of the schedule family hanayo (schedule/hanayo.c): a wave of chunks, in an order made for given times. */
#include "schedule/check.h"
#include "schedule/schedule.h"
#include "tests/schedule/evaluate.h"
#include "tests/schedule/in_flight.h"

static Schedule *
build(int64_t p, int64_t v, int64_t m, const ScheduleTimes *times)
{
    g_autoptr(GError) error = NULL;
    const ScheduleShape shape = {p, v, m, 1, 0, times};
    Schedule *schedule = schedule_new("hanayo", &shape, &error);

    g_assert_no_error(error);
    g_assert_true(schedule_check(schedule, &error));
    return schedule;
}

/* Chunk c begins where chunk c - 1 ends: on the last rank, on the first, and so on. */
static void
test_chunks_lie_in_a_wave(void)
{
    g_autoptr(Schedule) s = build(3, 4, 2, NULL);
    static const int32_t ranks[] = {0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0};

    for (int32_t stage = 0; stage < 12; stage++)
        g_assert_cmpint(schedule_rank_of_stage(s, stage, 0), ==, ranks[stage]);
}

/* Equal stages, two chunks, twice as many micro-batches as ranks or more: the work and the bubble of interleaved
 * 1F1B, v m (F + B) and (p-1)(F + B), in no more memory than its first rank has, (v-1) p + 2 (p-1) + 1. */
static void
test_equal_stages_take_what_interleaved_takes(void)
{
    for (int64_t p = 1; p <= 8; p++)
        for (int64_t m = 2 * p; m <= 5 * p; m++) {
            g_autoptr(Schedule) s = build(p, 2, m, NULL);
            const Evaluation e = evaluate(s, unit_times);
            g_assert_cmpint(e.makespan, ==, 3 * 2 * m + 3 * (p - 1));
            for (int32_t r = 0; r < p; r++)
                g_assert_cmpint(e.peak[r], <=, p + 2 * (p - 1) + 1);
        }
}

static void
draw_stages(GRand *rand, ScheduleStageTimes *stages, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        stages[i] = (ScheduleStageTimes){
            .forward_ns = g_rand_int_range(rand, 1, 10),
            .input_ns = g_rand_int_range(rand, 1, 10),
            .weight_ns = g_rand_int_range(rand, 1, 10),
            .forward_message_ns = g_rand_int_range(rand, 0, 2),
            .backward_message_ns = g_rand_int_range(rand, 0, 2),
            .activation_bytes = g_rand_int_range(rand, 1, 10),
        };
}

/* What @s takes with the times of @stages, messages included, by the dependencies alone: each op again and again
 * as late as its rank and its input make it, until nothing moves. */
static int64_t
makespan(const Schedule *s, const ScheduleStageTimes *stages)
{
    const int32_t last = schedule_n_stages(s) - 1, m = s->n_micro_batches;
    int64_t *ends[2] = {g_new0(int64_t, (size_t)(last + 1) * (size_t)m),
                        g_new0(int64_t, (size_t)(last + 1) * (size_t)m)};
    int64_t longest = 0;

    for (bool moved = true; moved;) {
        moved = false;
        for (int32_t r = 0; r < s->n_ranks; r++)
            for (int64_t i = s->rank_begin[r], now = 0; i < s->rank_begin[r + 1]; i++) {
                const ScheduleOp op = s->ops[i];
                const int32_t stage = schedule_stage(s, r, op.chunk);
                const bool back = op.kind == SCHEDULE_OP_BACKWARD;
                const int32_t from = back ? MIN(stage + 1, last) : stage - 1;
                const bool turns = back && stage == last;
                int64_t ready = 0;
                if (from >= 0)
                    ready = ends[back && !turns][(int64_t)from * m + op.micro_batch];
                if (from >= 0 && schedule_rank_of_stage(s, from, 0) != r)
                    ready +=
                        back ? stages[from].backward_message_ns : stages[from].forward_message_ns;
                now = MAX(now, ready) + (back ? stages[stage].input_ns + stages[stage].weight_ns
                                              : stages[stage].forward_ns);
                int64_t *end = &ends[back][(int64_t)stage * m + op.micro_batch];
                moved = moved || now > *end;
                *end = now;
                longest = MAX(longest, now);
            }
    }
    for (int back = 0; back < 2; back++)
        g_free(ends[back]);
    return longest;
}

/* What a schedule takes beyond the work of its busiest rank, which no order is faster than: at given times the order
 * that is made for them leaves less than three quarters of what the order for equal stages does. */
static void
test_order_is_made_for_the_times(void)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(3);
    double own_sum = 0.0, unit_sum = 0.0;

    for (int i = 0; i < 200; i++) {
        const int64_t p = g_rand_int_range(rand, 2, 6), v = g_rand_int_range(rand, 2, 5);
        const int64_t m = 3 * p;
        ScheduleStageTimes stages[32];
        const ScheduleTimes times = {.stages = stages, .n_stages = p * v};
        int64_t load[8] = {0};
        draw_stages(rand, stages, p * v);
        g_autoptr(Schedule) own = build(p, v, m, &times);
        g_autoptr(Schedule) unit = build(p, v, m, NULL);
        int64_t busiest = 0;
        for (int32_t k = 0; k < p * v; k++) {
            int64_t *rank = &load[schedule_rank_of_stage(own, k, 0)];
            *rank += m * (stages[k].forward_ns + stages[k].input_ns + stages[k].weight_ns);
            busiest = MAX(busiest, *rank);
        }
        const int64_t own_ns = makespan(own, stages), unit_ns = makespan(unit, stages);
        g_assert_cmpint(own_ns, >=, busiest);
        own_sum += (double)(own_ns - busiest) / (double)busiest;
        unit_sum += (double)(unit_ns - busiest) / (double)busiest;
    }
    g_test_message("%.3f of the busiest rank's work beyond it, %.3f for equal stages",
                   own_sum / 200, unit_sum / 200);
    g_assert_cmpfloat(own_sum, <=, unit_sum * 3 / 4);
}

/* A rank that may hold one micro-batch of each of its chunks, or more, never holds more. */
static void
test_memory_is_kept(void)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(4);

    for (int i = 0; i < 300; i++) {
        const int64_t p = g_rand_int_range(rand, 1, 6), v = g_rand_int_range(rand, 2, 5);
        const int64_t m = g_rand_int_range(rand, 1, 12);
        ScheduleStageTimes stages[32];
        int64_t limits[8];
        const ScheduleTimes times = {.stages = stages, .n_stages = p * v, .limit_bytes = limits};
        draw_stages(rand, stages, p * v);
        for (int32_t r = 0; r < p; r++) {
            limits[r] = g_rand_int_range(rand, 0, 40);
            for (int32_t c = 0; c < v; c++)
                limits[r] +=
                    stages[schedule_placement_stage(SCHEDULE_PLACEMENT_V, (int32_t)p, r, c)]
                        .activation_bytes;
        }
        g_autoptr(Schedule) s = build(p, v, m, &times);
        for (int32_t r = 0; r < p; r++) {
            int64_t bytes = 0;
            for (int64_t j = s->rank_begin[r]; j < s->rank_begin[r + 1]; j++) {
                const int64_t each = stages[schedule_stage(s, r, s->ops[j].chunk)].activation_bytes;
                bytes += s->ops[j].kind == SCHEDULE_OP_FORWARD ? each : -each;
                g_assert_cmpint(bytes, <=, limits[r]);
            }
            g_assert_cmpint(bytes, ==, 0);
        }
    }
}

/* So many micro-batches, each in all chunks. */
static void
test_micro_batches_in_flight_are_kept(void)
{
    static const ScheduleStageTimes unit = {.forward_ns = 1, .input_ns = 1, .weight_ns = 1};

    for (int64_t p = 1; p <= 4; p++)
        for (int64_t v = 2; v <= 4; v++)
            for (int64_t n = 1; n <= 3; n++) {
                const ScheduleTimes times = {
                    .stages = &unit, .n_stages = 1, .limit_micro_batches = n};
                g_autoptr(Schedule) s = build(p, v, 8, &times);
                for (int32_t r = 0; r < p; r++)
                    g_assert_cmpint(peak_in_flight(s, r), <=, n * v);
            }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/schedule/hanayo/chunks-lie-in-a-wave", test_chunks_lie_in_a_wave);
    g_test_add_func("/schedule/hanayo/equal-stages-take-what-interleaved-takes",
                    test_equal_stages_take_what_interleaved_takes);
    g_test_add_func("/schedule/hanayo/order-is-made-for-the-times",
                    test_order_is_made_for_the_times);
    g_test_add_func("/schedule/hanayo/memory-is-kept", test_memory_is_kept);
    g_test_add_func("/schedule/hanayo/micro-batches-in-flight-are-kept",
                    test_micro_batches_in_flight_are_kept);
    return g_test_run();
}
