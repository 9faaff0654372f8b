/* Tests of schedule/schedule.h: shapes, placements, names, and the closed forms of the families. */
#include "schedule/schedule.h"

#include <string.h>

#include "schedule/check.h"
#include "schedule/build.h"
#include "tests/schedule/evaluate.h"
#include "tests/schedule/in_flight.h"

static Schedule *
build(const char *family, int64_t p, int64_t v, int64_t m, int64_t s)
{
    g_autoptr(GError) error = NULL;
    const ScheduleShape shape = {p, v, m, s, 0, NULL};
    Schedule *schedule = schedule_new(family, &shape, &error);

    g_assert_no_error(error);
    g_assert_nonnull(schedule);
    return schedule;
}

static void
test_unknown_family_suggests(void)
{
    g_autoptr(GError) error = NULL;

    g_assert_null(schedule_family_find("gpip", &error));
    g_assert_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_UNKNOWN);
    g_assert_nonnull(strstr(error->message, "\"gpipe\""));
    g_assert_null(strstr(error->message, "expected one of"));
    /* What is like none of them is answered with all of them. */
    g_clear_error(&error);
    g_assert_null(schedule_family_find("qqqqqqqqqqqq", &error));
    g_assert_nonnull(strstr(error->message, "; expected one of "));
    g_assert_nonnull(strstr(error->message, "1f1b, "));
    g_assert_nonnull(strstr(error->message, "dualpipe"));
}

static void
test_refuses_shapes(void)
{
    static const struct {
        const char *family;
        ScheduleShape shape;
        int code;
        const char *says;
    } cases[] = {
        {"gpipe", {0, 1, 1, 1, 0, NULL}, SCHEDULE_ERROR_SHAPE, "pp must be at least 1, got 0"},
        {"gpipe", {4, -1, 1, 1, 0, NULL}, SCHEDULE_ERROR_SHAPE, "vpp must be at least 1, got -1"},
        {"1f1b", {4, 2, 8, 1, 0, NULL}, SCHEDULE_ERROR_SHAPE, "vpp must be 1, got 2"},
        {"1f1b",
         {4, 1, 0, 1, 0, NULL},
         SCHEDULE_ERROR_SHAPE,
         "microbatches must be at least 1, got 0"},
        {"1f1b", {4, 1, 8, 0, 0, NULL}, SCHEDULE_ERROR_SHAPE, "slices must be at least 1, got 0"},
        {"naive", {4, 1, 8, 2, 0, NULL}, SCHEDULE_ERROR_SHAPE, "slices must be 1, got 2"},
        {"gpipe", {4, 1, 8, 1, 3, NULL}, SCHEDULE_ERROR_SHAPE, "group must be 0, got 3"},
        {"gpipe",
         {4, 1, 8, 65537, 0, NULL},
         SCHEDULE_ERROR_LIMIT,
         "slices is 65537, the limit is 65536"},
        {"gpipe", {4, 1, 1000000000, 1, 0, NULL}, SCHEDULE_ERROR_LIMIT, "more than 268435456 ops"},
        {"gpipe",
         {4, 1, INT64_MAX, 1, 0, NULL},
         SCHEDULE_ERROR_LIMIT,
         "microbatches is 9223372036854775807"},
        {"dualpipe", {3, 2, 8, 1, 0, NULL}, SCHEDULE_ERROR_SHAPE, "must be even"},
        {"zb-h1",
         {4, 1, 8, 1, 0, NULL, true},
         SCHEDULE_ERROR_SHAPE,
         "no forwards and backwards of two micro-batches to merge"},
        {"1f1b", {4, 1, 8, 2, 0, NULL, true}, SCHEDULE_ERROR_SHAPE, "merges passes of whole"},
        {"dualpipe", {4, 2, 6, 1, 0, NULL}, SCHEDULE_ERROR_SHAPE, "microbatches at least 2 * pp"},
        {"dualpipev", {4, 2, 7, 1, 0, NULL}, SCHEDULE_ERROR_SHAPE, "at least 2 * pp"},
        {"dualpipev", {4, 1, 8, 1, 0, NULL}, SCHEDULE_ERROR_SHAPE, "vpp must be 2, got 1"},
        {"interleaved",
         {4, 1, 8, 1, 0, NULL},
         SCHEDULE_ERROR_SHAPE,
         "vpp must be from 2 to 256, got 1"},
        {"interleaved",
         {4, 2, 8, 1, -1, NULL},
         SCHEDULE_ERROR_SHAPE,
         "group must be at least 1, got -1"},
        {"terapipe", {1 << 20, 1, INT32_MAX, 65536, 0, NULL}, SCHEDULE_ERROR_LIMIT, "ops"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_assert_null(schedule_new(cases[i].family, &cases[i].shape, &error));
        g_assert_error(error, SCHEDULE_ERROR, cases[i].code);
        g_assert_nonnull(strstr(error->message, cases[i].family));
        if (strstr(error->message, cases[i].says) == NULL)
            g_error("\"%s\" does not say \"%s\"", error->message, cases[i].says);
    }
}

/* loop: c*p + r; v: c*p + r, or p-1-r for odd c; bidir: r, or p-1-r for chunk 1. */
static void
test_placements_invert(void)
{
    for (SchedulePlacement placement = 0; placement < SCHEDULE_PLACEMENT_N; placement++) {
        const Schedule s = {.n_ranks = 5, .n_chunks = 2, .placement = placement};
        for (int32_t rank = 0; rank < 5; rank++)
            for (int32_t chunk = 0; chunk < 2; chunk++) {
                const int32_t stage = schedule_stage(&s, rank, chunk);
                const int32_t loop[3] = {chunk * 5 + rank, chunk == 0 ? rank : 5 + 4 - rank,
                                         chunk == 0 ? rank : 4 - rank};
                g_assert_cmpint(stage, ==, loop[placement]);
                g_assert_cmpint(stage, <, schedule_n_stages(&s));
                g_assert_cmpint(schedule_rank_of_stage(&s, stage, chunk), ==, rank);
                g_assert_cmpint(schedule_chunk_of_stage(&s, stage, chunk), ==, chunk);
            }
    }
}

static void
test_op_names_parse_back(void)
{
    g_autoptr(Schedule) plain = build("gpipe", 2, 1, 12, 1);
    g_autoptr(Schedule) sliced = build("gpipe", 2, 1, 12, 11);
    static const char *const bad[] = {"",
                                      "F",
                                      "X0.0",
                                      "f0.0",
                                      "F12.0",
                                      "F0.1",
                                      "F-1.0",
                                      "F00.0",
                                      "F0.0 ",
                                      "F0",
                                      "F0.",
                                      "F.0",
                                      "F1.0x",
                                      "F1.0s0",
                                      " F1.0",
                                      "F+1.0",
                                      "F99999999999999999999.0"};
    ScheduleOp op;

    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++)
        if (i == 13)
            g_assert_true(schedule_op_parse(plain, bad[i], &op)); /* slice 0 of one */
        else
            g_assert_false(schedule_op_parse(plain, bad[i], &op));
    g_assert_false(schedule_op_parse(sliced, "F1.0", &op));
    g_assert_false(schedule_op_parse(sliced, "F1.0s11", &op));
    for (int64_t i = 0; i < schedule_n_ops(sliced); i++) {
        char name[32];
        schedule_op_name(sliced, sliced->ops[i], name);
        g_assert_true(schedule_op_parse(sliced, name, &op));
        g_assert_cmpint(memcmp(&op, &sliced->ops[i], sizeof op), ==, 0);
    }
}

/* m micro-batches, one at a time through p stages and back: m * p * (F + B). */
static void
test_naive_closed_form(void)
{
    for (int64_t p = 1; p <= 6; p++)
        for (int64_t m = 1; m <= 6; m++) {
            g_autoptr(Schedule) s = build("naive", p, 1, m, 1);
            const Evaluation e = evaluate(s, unit_times);
            g_assert_true(e.complete);
            g_assert_cmpint(e.makespan, ==, m * p * 3);
            for (int32_t r = 0; r < p; r++)
                g_assert_cmpint(peak_in_flight(s, r), ==, 1);
        }
}

/* Makespan (n + p-1)(F + B) with n = m * slices units: bubble (p-1)/(n+p-1)  [1811.06965]. */
static void
test_gpipe_closed_form(void)
{
    static const char *const families[] = {"gpipe", "terapipe"};

    for (size_t f = 0; f < G_N_ELEMENTS(families); f++)
        for (int64_t p = 1; p <= 6; p++)
            for (int64_t m = 1; m <= 9; m++)
                for (int64_t n = 1; n <= 3; n++) {
                    g_autoptr(Schedule) s = build(families[f], p, 1, m, n);
                    const Evaluation e = evaluate(s, unit_times);
                    g_assert_true(e.complete);
                    g_assert_cmpint(e.makespan, ==, (m * n + p - 1) * 3);
                    for (int32_t r = 0; r < p; r++) {
                        g_assert_cmpint(e.busy[r], ==, m * n * 3);
                        g_assert_cmpint(peak_in_flight(s, r), ==, m * n);
                    }
                }
}

/* Same time as GPipe, min(m, p-r) in flight  [2104.04473]; with slices (m n + p-1)(F + B), so a
 * bubble n times smaller, and min(m*n, p-r + n-1)  [Seq1F1B 2406.03488]. */
static void
test_one_f_one_b_closed_form(void)
{
    for (int64_t p = 1; p <= 6; p++)
        for (int64_t m = 1; m <= 9; m++)
            for (int64_t n = 1; n <= 3; n++) {
                g_autoptr(Schedule) s = build(n == 1 ? "1f1b" : "seq1f1b", p, 1, m, n);
                const Evaluation e = evaluate(s, unit_times);
                g_assert_true(e.complete);
                g_assert_cmpint(e.makespan, ==, (m * n + p - 1) * 3);
                for (int32_t r = 0; r < p; r++) {
                    const int64_t peak = MIN(m * n, p - r + n - 1);
                    g_assert_cmpint(peak_in_flight(s, r), ==, peak);
                    g_assert_cmpint(e.peak[r], ==, peak);
                }
            }
}

/*
 * m a multiple of p, groups of p: v m (F + B) of work and a bubble of (p-1)(F + B) stage times,
 * that is 1/v (p-1)/m of the work  [2104.04473 section 2.2]; rank r holds its warm-up and one more.
 */
static void
test_interleaved_closed_form(void)
{
    for (int64_t p = 1; p <= 5; p++)
        for (int64_t v = 2; v <= 4; v++)
            for (int64_t rounds = 1; rounds <= 4; rounds++) {
                const int64_t m = rounds * p;
                g_autoptr(Schedule) s = build("interleaved", p, v, m, 1);
                const Evaluation e = evaluate(s, unit_times);
                g_assert_cmpint(e.makespan, ==, 3 * v * m + 3 * (p - 1));
                for (int64_t r = 0; r < p; r++)
                    g_assert_cmpint(e.peak[r], ==, MIN(v * m, 2 * (p - 1 - r) + (v - 1) * p + 1));
            }
}

/*
 * The same work and bubble as interleaved 1F1B, (p-1)(F + B) of stage times, but all v m chunks are
 * in flight; any m >= p  [Lamy-Poirier 2211.05953 section 4.1].
 */
static void
test_looped_bfs_closed_form(void)
{
    for (int64_t p = 1; p <= 6; p++)
        for (int64_t v = 1; v <= 4; v++)
            for (int64_t m = p; m <= 3 * p + 2; m++) {
                g_autoptr(Schedule) s = build("looped-bfs", p, v, m, 1);
                const Evaluation e = evaluate(s, unit_times);
                g_assert_cmpint(e.makespan, ==, 3 * v * m + 3 * (p - 1));
                for (int64_t r = 0; r < p; r++)
                    g_assert_cmpint(e.peak[r], ==, v * m);
            }
}

/*
 * Interleaved, cut in n slices, 2p micro-batches or a multiple: v m n slices of work and, where n
 * divides p, (p-1)(F + B) of bubble, n times smaller than without; in flight no more than the
 * interleaved schedule has, in tokens, and less from 2 slices on  [Seq1F1B 2406.03488 section 3.3].
 * Other n cost at most one more turn of p slices over all chunks.
 */
static void
test_sliced_interleaved_closed_form(void)
{
    for (int64_t p = 2; p <= 5; p++)
        for (int64_t v = 2; v <= 3; v++)
            for (int64_t m = 2 * p; m <= 6 * p; m += 2 * p) {
                g_autoptr(Schedule) whole = build("interleaved", p, v, m, 1);
                for (int64_t n = 1; n <= 4; n++) {
                    g_autoptr(Schedule) s = build("seq1f1b-interleaved", p, v, m, n);
                    const Evaluation e = evaluate(s, unit_times);
                    const int64_t least = 3 * v * m * n + 3 * (p - 1);
                    if (p % n == 0)
                        g_assert_cmpint(e.makespan, ==, least);
                    else
                        g_assert_cmpint(e.makespan, <=, least + 3 * v * p);
                    for (int32_t r = 0; p % n == 0 && r < p; r++)
                        g_assert_cmpint(e.peak[r], <=, n * peak_in_flight(whole, r) - (n > 1));
                }
            }
}

/*
 * Interleaved with W put off, m a multiple of p, F = I = W = 1: of 1F1B's 3 (p-1) a third is left,
 * as in ZB-H1; v p chunks in flight on every rank  [torch.distributed.pipelining,
 * ScheduleInterleavedZeroBubble, after 2401.10241].
 */
static void
test_interleaved_zero_bubble_closed_form(void)
{
    for (int64_t p = 1; p <= 6; p++)
        for (int64_t v = 2; v <= 4; v++)
            for (int64_t m = p; m <= 4 * p; m += p) {
                g_autoptr(Schedule) s = build("interleaved-zb", p, v, m, 1);
                const Evaluation e = evaluate(s, unit_times);
                g_assert_cmpint(e.makespan, ==, 3 * v * m + p - 1);
                for (int64_t r = 0; r < p; r++)
                    g_assert_cmpint(e.peak[r], ==, v * p);
            }
}

/* Any m from p on, also those that Megatron-LM and PyTorch refuse: the default group costs at most
 * one more turn of p micro-batches over all chunks. */
static void
test_default_group_does_not_stall(void)
{
    static const char *const names[] = {"interleaved", "interleaved-zb", "seq1f1b-interleaved"};

    for (size_t f = 0; f < G_N_ELEMENTS(names); f++)
        for (int64_t p = 2; p <= 8; p++)
            for (int64_t m = p; m <= 4 * p; m++)
                for (int64_t n = 1; n <= (f == 2 ? 4 : 1); n++) {
                    g_autoptr(Schedule) s = build(names[f], p, 2, m, n);
                    const Evaluation e = evaluate(s, unit_times);
                    g_assert_cmpint(e.makespan, <=, 3 * 2 * m * n + 3 * (p - 1) + 3 * 2 * p);
                }
}

/* By hand: the smallest group from p / n on whose last one has p - 1 slices at the least.  Of 9
 * micro-batches in twos one is left, of 2 slices, so it is threes; of 19 on 8 ranks, in fours three
 * are left: of 4 slices each that is enough, of 2 it is not, but of fives four are. */
static void
test_default_group_counts_slices(void)
{
    static const struct {
        int64_t p, m, n, group;
    } cases[] = {{4, 9, 2, 3}, {4, 9, 4, 1}, {8, 19, 4, 4}, {8, 19, 2, 5}};

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        ScheduleShape shape = {cases[i].p, 2, cases[i].m, cases[i].n, 0, NULL};
        g_autoptr(Schedule) usual = schedule_new("seq1f1b-interleaved", &shape, NULL);
        const size_t n_bytes = sizeof *usual->ops * (size_t)schedule_n_ops(usual);
        shape.group = cases[i].group;
        g_autoptr(Schedule) stated = schedule_new("seq1f1b-interleaved", &shape, NULL);
        shape.group++;
        g_autoptr(Schedule) other = schedule_new("seq1f1b-interleaved", &shape, NULL);

        g_assert_true(memcmp(usual->ops, stated->ops, n_bytes) == 0);
        g_assert_true(memcmp(usual->ops, other->ops, n_bytes) != 0);
    }
}

/* Of whole sequences as PyTorch has it: m / p rounds of equal size where m is a multiple of
 * their number, so that 15 micro-batches on 4 ranks are three rounds of 5, 8 on 3 two of 4, and
 * 14 on 5 two of 7. */
static void
test_default_group_makes_equal_rounds(void)
{
    static const struct {
        int64_t p, m, group;
    } cases[] = {{4, 15, 5}, {3, 8, 4}, {5, 14, 7}, {4, 8, 4}, {4, 3, 3}};

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const ScheduleShape shape = {cases[i].p, 2, cases[i].m, 1, 0, NULL};
        g_assert_cmpint(schedule_group(&shape), ==, cases[i].group);
    }
}

/* Any group size runs, also those that Megatron-LM refuses (smaller than p, or a rest that is). */
static void
test_any_group_runs(void)
{
    static const char *const names[] = {"interleaved", "interleaved-zb", "seq1f1b-interleaved"};

    for (size_t f = 0; f < G_N_ELEMENTS(names); f++)
        for (int64_t p = 1; p <= 7; p++)
            for (int64_t m = 1; m <= 17; m++)
                for (int64_t g = 0; g <= m + 1; g++) {
                    g_autoptr(GError) error = NULL;
                    const ScheduleShape shape = {p, 3, m, f == 2 ? 1 + m % 3 : 1, g, NULL};
                    g_autoptr(Schedule) s = schedule_new(names[f], &shape, &error);
                    g_assert_no_error(error);
                    schedule_check(s, &error);
                    g_assert_no_error(error);
                }
}

/*
 * At F = I = W = 1, m large enough: ZB-H1 has a third of 1F1B's bubble of 3(p-1) and p in flight;
 * ZB-H2 none between a rank's first and last op, with 2p  [2401.10241 table 2]; ZB-V none with 2p
 * half stages.  Ranks start one after the other, so the makespan is longer by p-1.
 */
static void
test_zero_bubble_closed_forms(void)
{
    for (int64_t p = 1; p <= 8; p++)
        for (int64_t m = 2 * p; m <= 4 * p; m++) {
            g_autoptr(Schedule) h1 = build("zb-h1", p, 1, m, 1);
            g_autoptr(Schedule) h2 = build("zb-h2", p, 1, m, 1);
            g_autoptr(Schedule) v = build("zb-v", p, 2, m, 1);
            const Evaluation e1 = evaluate(h1, unit_times);
            const Evaluation e2 = evaluate(h2, unit_times);
            const Evaluation ev = evaluate(v, unit_times);
            g_assert_cmpint(e1.makespan, ==, 3 * m + p - 1);
            g_assert_cmpint(e2.makespan, ==, 3 * m + p - 1);
            g_assert_cmpint(e2.span, ==, 3 * m);
            g_assert_cmpint(ev.makespan, ==, 6 * m + p - 1);
            g_assert_cmpint(ev.span, ==, 6 * m);
            for (int32_t r = 0; r < p; r++) {
                g_assert_cmpint(e1.peak[r], ==, p);
                g_assert_cmpint(e2.peak[r], <=, 2 * p);
                g_assert_cmpint(ev.peak[r], <=, 2 * p);
            }
        }
}

/* 1F1B holds 2p half stages; V-Half half and V-Min a third of them, plus a few.  At F = I = W = 1
 * the bubble is at most half and two thirds of 1F1B's 6 (p-1) half stages, whatever m is
 * [2405.15362 table 1, section 3.2]. */
static void
test_controlled_memory(void)
{
    for (int64_t p = 1; p <= 10; p++) {
        int64_t bubble[2] = {-1, -1};
        for (int64_t m = 2 * p; m <= 4 * p; m++)
            for (int f = 0; f < 2; f++) {
                g_autoptr(Schedule) s = build(f == 0 ? "v-half" : "v-min", p, 2, m, 1);
                const Evaluation e = evaluate(s, unit_times);
                g_assert_cmpint(e.makespan - 6 * m, <=, (f == 0 ? 3 : 4) * (p - 1));
                if (bubble[f] < 0)
                    bubble[f] = e.makespan - 6 * m;
                g_assert_cmpint(e.makespan - 6 * m, ==, bubble[f]);
            }
    }

    for (int64_t p = 1; p <= 24; p++)
        for (int64_t m = 1; m <= 6 * p + 30; m += 7) {
            g_autoptr(Schedule) half = build("v-half", p, 2, m, 1);
            g_autoptr(Schedule) min = build("v-min", p, 2, m, 1);
            for (int32_t r = 0; r < p; r++) {
                g_assert_cmpint(peak_in_flight(half, r), <=, p + 2);
                g_assert_cmpint(3 * peak_in_flight(min, r), <=, 2 * p + 8);
            }
        }
}

/* p+1 micro-batches in flight on every rank  [2412.19437 table 2]; folded, in half stages, 2p+1. */
static void
test_dualpipe_memory(void)
{
    for (int64_t p = 2; p <= 8; p += 2)
        for (int64_t m = 2 * p; m <= 4 * p; m += 2) {
            g_autoptr(Schedule) dual = build("dualpipe", p, 2, m, 1);
            g_autoptr(Schedule) folded = build("dualpipev", p, 2, m, 1);
            for (int32_t r = 0; r < p; r++) {
                g_assert_cmpint(peak_in_flight(dual, r), ==, p + 1);
                g_assert_cmpint(peak_in_flight(folded, r), ==, 2 * p + 1);
            }
            /* An overlapped pair is an F and a B of different chunks. */
            for (guint i = 0; i < dual->overlap_pairs->len; i++) {
                const int64_t at = g_array_index(dual->overlap_pairs, int64_t, i);
                g_assert_cmpint(dual->ops[at].kind, ==, SCHEDULE_OP_FORWARD);
                g_assert_cmpint(dual->ops[at + 1].kind, ==, SCHEDULE_OP_BACKWARD);
                g_assert_cmpint(dual->ops[at].chunk, !=, dual->ops[at + 1].chunk);
            }
        }
}

/* Two forwards to warm up for each rank behind this one, and one more; then pairs of a forward
 * and a backward of different micro-batches, as many as there are forwards left  [Megatron-Core:
 * combined_1f1b.py, get_pp_rank_microbatches()]. */
static void
test_merged_pairs(void)
{
    for (int64_t p = 1; p <= 8; p++)
        for (int64_t v = 1; v <= 3; v++)
            for (int64_t m = p; m <= 3 * p; m += p) {
                const ScheduleShape shape = {p, v, m, 1, 0, NULL, true};
                g_autoptr(GError) error = NULL;
                g_autoptr(Schedule) s =
                    schedule_new(v == 1 ? "1f1b" : "interleaved", &shape, &error);
                int64_t n_pairs = 0;
                g_assert_no_error(error);
                g_assert_true(schedule_check(s, &error));
                for (int64_t r = 0; r < p; r++) {
                    const int64_t usual = 2 * (p - 1 - r) + (v - 1) * p;
                    const int64_t warmup = MIN(m * v, usual + 1);
                    for (int64_t i = 0; i < m * v - warmup; i++)
                        g_assert_cmpint(g_array_index(s->overlap_pairs, int64_t, n_pairs++), ==,
                                        s->rank_begin[r] + warmup + 2 * i);
                    if (v == 1)
                        g_assert_cmpint(peak_in_flight(s, (int32_t)r), ==, MIN(m, 2 * (p - r)));
                }
                g_assert_cmpint(s->overlap_pairs->len, ==, n_pairs);
            }
}

static void
test_peak_counts_weight_gradients(void)
{
    /* I0 has no W: it counts down itself; I1 waits for its W. */
    static const char *const ranks[] = {"F0.0 F1.0 I0.0 I1.0 F2.0 W1.0 B2.0"};
    const ScheduleShape shape = {1, 1, 3, 1, 0, NULL};
    g_autoptr(Schedule) s = schedule_from_text(&shape, SCHEDULE_PLACEMENT_LOOP, ranks);

    g_assert_cmpint(peak_in_flight(s, 0), ==, 2);
}

/* Every family, many shapes: complete, free of deadlock, the rank's work as much as it must be. */
static void
test_families_pass_the_checker(void)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(7);

    for (const ScheduleFamily *const *f = schedule_families(); *f != NULL; f++) {
        int n_built = 0;
        for (int i = 0; i < 400; i++) {
            g_autoptr(GError) error = NULL;
            const ScheduleShape shape = {
                .n_ranks = g_rand_int_range(rand, 1, 10),
                .n_chunks = g_rand_int_range(rand, (*f)->min_chunks,
                                             MIN((*f)->max_chunks, (*f)->min_chunks + 3) + 1),
                .n_micro_batches = g_rand_int_range(rand, 1, 40),
                .n_slices = (*f)->slices ? g_rand_int_range(rand, 1, 6) : 1,
                .group = (*f)->groups ? g_rand_int_range(rand, 0, 12) : 0,
            };
            g_autoptr(Schedule) s = schedule_new((*f)->name, &shape, &error);
            if (s == NULL) {
                g_assert_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_SHAPE);
                continue;
            }
            n_built++;
            schedule_check(s, &error);
            if (error != NULL)
                g_error("%s p %" G_GINT64_FORMAT " v %" G_GINT64_FORMAT " m %" G_GINT64_FORMAT
                        " s %" G_GINT64_FORMAT " g %" G_GINT64_FORMAT ": %s",
                        (*f)->name, shape.n_ranks, shape.n_chunks, shape.n_micro_batches,
                        shape.n_slices, shape.group, error->message);
            g_assert_cmpstr(s->name, ==, (*f)->name);
            /* One chunk lies in a V as it does in a row. */
            if (s->n_chunks > 1 || s->placement != SCHEDULE_PLACEMENT_LOOP)
                g_assert_cmpint(s->placement, ==, (*f)->placement);
            const Evaluation e = evaluate(s, unit_times);
            g_assert_true(e.complete);
            for (int32_t r = 0; r < s->n_ranks; r++)
                g_assert_cmpint(e.busy[r], ==, schedule_n_virtual_ids(s) * 3);
        }
        g_assert_cmpint(n_built, >=, 20);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/schedule/schedule/unknown-family-suggests", test_unknown_family_suggests);
    g_test_add_func("/schedule/schedule/refuses-shapes", test_refuses_shapes);
    g_test_add_func("/schedule/schedule/placements-invert", test_placements_invert);
    g_test_add_func("/schedule/schedule/op-names-parse-back", test_op_names_parse_back);
    g_test_add_func("/schedule/schedule/naive-closed-form", test_naive_closed_form);
    g_test_add_func("/schedule/schedule/gpipe-closed-form", test_gpipe_closed_form);
    g_test_add_func("/schedule/schedule/1f1b-closed-form", test_one_f_one_b_closed_form);
    g_test_add_func("/schedule/schedule/interleaved-closed-form", test_interleaved_closed_form);
    g_test_add_func("/schedule/schedule/looped-bfs-closed-form", test_looped_bfs_closed_form);
    g_test_add_func("/schedule/schedule/sliced-interleaved-closed-form",
                    test_sliced_interleaved_closed_form);
    g_test_add_func("/schedule/schedule/interleaved-zero-bubble-closed-form",
                    test_interleaved_zero_bubble_closed_form);
    g_test_add_func("/schedule/schedule/default-group-does-not-stall",
                    test_default_group_does_not_stall);
    g_test_add_func("/schedule/schedule/default-group-counts-slices",
                    test_default_group_counts_slices);
    g_test_add_func("/schedule/schedule/default-group-makes-equal-rounds",
                    test_default_group_makes_equal_rounds);
    g_test_add_func("/schedule/schedule/any-group-runs", test_any_group_runs);
    g_test_add_func("/schedule/schedule/zero-bubble-closed-forms", test_zero_bubble_closed_forms);
    g_test_add_func("/schedule/schedule/controlled-memory", test_controlled_memory);
    g_test_add_func("/schedule/schedule/dualpipe-memory", test_dualpipe_memory);
    g_test_add_func("/schedule/schedule/merged-pairs", test_merged_pairs);
    g_test_add_func("/schedule/schedule/peak-counts-weight-gradients",
                    test_peak_counts_weight_gradients);
    g_test_add_func("/schedule/schedule/families-pass-the-checker", test_families_pass_the_checker);
    return g_test_run();
}
