/* Tests of the parts of zb-auto's search, each alone: schedule/zb_order.h, schedule/zb_bound.h.  The
 * orders and times are worked out by hand. */
#include "schedule/zb_auto.h"
#include "schedule/zb_bound.h"
#include "schedule/zb_order.h"
#include "tests/schedule/in_flight.h"
#include "tests/schedule/zb_exact.h"

/* --- problems of one chunk --- */

typedef struct {
    ScheduleStageTimes stages[4];
    int64_t limit_bytes[4];
    ScheduleTimes times;
    ScheduleShape shape;
    ZbProblem zb;
    ZbTimes now;
    ZbOrder order;
} Case;

static void
case_open(Case *c, int64_t p, int64_t m, ScheduleObjective objective)
{
    g_autoptr(GError) error = NULL;

    c->times = (ScheduleTimes){
        .stages = c->stages,
        .n_stages = p,
        .limit_bytes = c->limit_bytes[0] > 0 ? c->limit_bytes : NULL,
        .limit_micro_batches = c->limit_bytes[0] > 0 ? 0 : m,
        .objective = objective,
    };
    c->shape = (ScheduleShape){p, 1, m, 1, 0, &c->times};
    g_assert_true(zb_problem_init(&c->zb, &c->shape, &error));
    g_assert_true(zb_times_init(&c->now, &c->zb, &error));
    g_assert_true(zb_order_init(&c->order, &c->zb, &error));
}

static void
case_clear(Case *c)
{
    zb_order_clear(&c->order);
    zb_times_clear(&c->now);
    zb_problem_clear(&c->zb);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Case, case_clear)

/* The ops of @rank by their letters: F, B, I, W. */
static char *
text_of(const Case *c, int32_t rank)
{
    GString *text = g_string_new(NULL);
    const uint8_t *types = zb_order_rank(&c->order, &c->zb, rank);

    for (int64_t i = 0; i < c->order.length[rank]; i++)
        g_string_append_c(text, schedule_op_letters[zb_kind(types[i])]);
    return g_string_free(text, FALSE);
}

static int64_t
makespan_of(Case *c)
{
    return zb_order_value(&c->zb, &c->order, &c->now).ns;
}

/* --- the list scheduler --- */

static void
test_policies_are_copied_whole(void)
{
    g_auto(Case) c = {.stages = {{.forward_ns = 1, .input_ns = 1, .weight_ns = 1},
                                 {.forward_ns = 1, .input_ns = 1, .weight_ns = 1}}};
    case_open(&c, 2, 1, SCHEDULE_OBJECTIVE_MAKESPAN);
    ZbPolicy from = {.ranks = g_malloc0_n(2, sizeof *from.ranks),
                     .forward_first = true,
                     .first_chunk = {true, true}};
    ZbPolicy to = {.ranks = g_malloc0_n(2, sizeof *to.ranks)};

    from.ranks[1].ahead = 7;
    from.ranks[1].pending = 8;
    from.ranks[1].patience = 9;
    void *const own = to.ranks;
    zb_policy_copy(&to, &from, &c.zb);
    g_assert_true(to.ranks == own); /* each keeps an array of its own */
    g_assert_true(to.forward_first && to.first_chunk[0] && to.first_chunk[1]);
    g_assert_cmpint(to.ranks[1].ahead, ==, 7);
    g_assert_cmpint(to.ranks[1].pending, ==, 8);
    g_assert_cmpint(to.ranks[1].patience, ==, 9);
    g_free(from.ranks);
    g_free(to.ranks);
}

/*
 * Two micro-batches on two ranks.  Rank 0 runs its two F until 200, while rank 1 has F 0 at 100 to 115 and I 0
 * until 130; the next message comes at 200.  With a patience of 8 eighths its W starts then only if it ends
 * by that: if it takes at most 70.  Rank 0 has I 0 at 200 to 205 and knows of no message, so W follows.
 * With a patience of 4 half of the W is enough, with 0 no wait is too short.
 */
static void
test_weights_fill_waits(void)
{
    static const struct {
        int64_t weight_ns;
        int32_t pending;
        uint8_t patience;
        const char *rank_1;
    } cases[] = {
        {70, 99, 8, "FIWFIW"},  {71, 99, 8, "FIFIWW"},
        {72, 99, 8, "FIFIWW"},  {140, 99, 4, "FIWFIW"},
        {142, 99, 4, "FIFIWW"}, {560, 99, 1, "FIWFIW"},
        {568, 99, 1, "FIFIWW"}, {1000, 99, 0, "FIWFIW"},
        {72, 1, 8, "FIWFIW"}, /* no I may be without its W */
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_auto(Case)
            c = {.stages = {{.forward_ns = 100, .input_ns = 5, .weight_ns = 5},
                            {.forward_ns = 15, .input_ns = 15, .weight_ns = cases[i].weight_ns}}};
        case_open(&c, 2, 2, SCHEDULE_OBJECTIVE_MAKESPAN);
        ZbPolicy policy = {.ranks = g_malloc0_n(2, sizeof *policy.ranks)};
        for (int r = 0; r < 2; r++) {
            policy.ranks[r].ahead = 2;
            policy.ranks[r].pending = cases[i].pending;
            policy.ranks[r].patience = cases[i].patience;
        }
        g_assert_true(zb_greedy(&c.zb, &policy, &c.now, &c.order));
        g_autofree char *rank_0 = text_of(&c, 0);
        g_autofree char *rank_1 = text_of(&c, 1);
        g_assert_cmpstr(rank_0, ==, "FFIWIW");
        g_assert_cmpstr(rank_1, ==, cases[i].rank_1);
        g_free(policy.ranks);
    }
}

/*
 * All ops take 10, and rank 1 has F 0 at 10.  With one F ahead rank 0 waits for I 0 at 30, runs F 1 next and W 0
 * while that travels.  With two it runs F 2 after I 0, since I 1 ends at 50 only.  With three all F come first.
 * Memory for one or two micro-batches does the same, where I gives all back; where it gives nothing back,
 * a W comes before each F that has no room.  Where F go first, rank 1 takes F 1 at 20 instead of I 0.
 */
static void
test_forwards_go_ahead(void)
{
    static const struct {
        int32_t ahead;
        bool forward_first;
        int64_t limit_bytes, kept_bytes;
        const char *rank_0, *rank_1;
    } cases[] = {
        {1, false, 0, 0, "FIFWIFWIW", "FIWFIWFIW"},  {2, false, 0, 0, "FFIFIWIWW", "FIFIFIWWW"},
        {3, false, 0, 0, "FFFIWIWIW", "FIFIFIWWW"},  {2, true, 0, 0, "FFIFIWIWW", "FFIIWFIWW"},
        {3, false, 10, 0, "FIFWIFWIW", "FIWFIWFIW"}, {3, false, 20, 0, "FFIFIWIWW", "FIFIFIWWW"},
        {3, false, 10, 10, "FIWFIWFIW", NULL},       {3, false, 20, 10, "FFIWIFWIW", NULL},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_auto(Case) c = {.limit_bytes = {cases[i].limit_bytes, 1000}};
        for (int r = 0; r < 2; r++)
            c.stages[r] = (ScheduleStageTimes){.forward_ns = 10,
                                               .input_ns = 10,
                                               .weight_ns = 10,
                                               .activation_bytes = 10,
                                               .weight_activation_bytes = cases[i].kept_bytes};
        case_open(&c, 2, 3, SCHEDULE_OBJECTIVE_MAKESPAN);
        ZbPolicy policy = {.ranks = g_malloc0_n(2, sizeof *policy.ranks),
                           .forward_first = cases[i].forward_first};
        for (int r = 0; r < 2; r++) {
            policy.ranks[r].ahead = r == 0 ? cases[i].ahead : 3;
            policy.ranks[r].pending = 99;
            policy.ranks[r].patience = 8;
        }
        g_assert_true(zb_greedy(&c.zb, &policy, &c.now, &c.order));
        g_autofree char *rank_0 = text_of(&c, 0);
        g_autofree char *rank_1 = text_of(&c, 1);
        g_assert_cmpstr(rank_0, ==, cases[i].rank_0);
        if (cases[i].rank_1 != NULL)
            g_assert_cmpstr(rank_1, ==, cases[i].rank_1);
        g_free(policy.ranks);
    }
}

/* --- bounds --- */

/* Of one micro-batch from rank 0 to rank 1 and back, without W. */
static int64_t
round_trip_ns(const Case *c)
{
    const ScheduleStageTimes *a = &c->stages[0], *b = &c->stages[1];

    return a->forward_ns + a->forward_message_ns + b->forward_ns + b->input_ns +
           b->backward_message_ns + a->input_ns;
}

/*
 * Rank 0 has room for one micro-batch, so that each takes its way before the next begins.  Where an I leaves
 * little behind, W fill the waits, and only the last one counts: m round trips and a W.  Where it leaves
 * all, each W must end before the next F: m times both.  The serial order takes just that.
 */
static void
test_bound_with_room_for_one(void)
{
    for (int leaves_all = 0; leaves_all < 2; leaves_all++)
        for (int64_t m = 1; m <= 4; m++) {
            g_auto(Case) c = {.stages = {{.forward_ns = 3,
                                          .input_ns = 4,
                                          .weight_ns = 5,
                                          .forward_message_ns = 2,
                                          .backward_message_ns = 1,
                                          .activation_bytes = 10,
                                          .weight_activation_bytes = leaves_all ? 10 : 1},
                                         {.forward_ns = 6,
                                          .input_ns = 7,
                                          .weight_ns = 8,
                                          .forward_message_ns = 2,
                                          .backward_message_ns = 1,
                                          .activation_bytes = 10,
                                          .weight_activation_bytes = 1}},
                              .limit_bytes = {leaves_all ? 10 : 11, 1000}};
            ZbBound bound;
            case_open(&c, 2, m, SCHEDULE_OBJECTIVE_MAKESPAN);
            const int64_t expected = leaves_all ? m * (round_trip_ns(&c) + c.stages[0].weight_ns)
                                                : m * round_trip_ns(&c) + c.stages[0].weight_ns;
            g_assert_true(zb_bound_init(&bound, &c.zb, SCHEDULE_OBJECTIVE_MAKESPAN, true, NULL));
            g_assert_cmpint(zb_bound_root_ns(&bound), ==, expected);
            zb_bound_clear(&bound);
            ScheduleZbAutoFacts facts;
            g_autoptr(Schedule) best = schedule_zb_auto(&c.shape, &facts, NULL);
            g_assert_cmpint(facts.makespan_ns, ==, expected);
            g_assert_cmpint(facts.bound_ns, ==, expected);
        }
}

/* Rank 1 is the slow one: from its first F on it never waits.  Its span is its work; the makespan begins
 * on rank 0. */
static void
test_bound_of_each_objective(void)
{
    g_auto(Case)
        c = {.stages = {{.forward_ns = 1, .input_ns = 1, .weight_ns = 1, .forward_message_ns = 2},
                        {.forward_ns = 10, .input_ns = 10, .weight_ns = 10}}};
    ZbBound bound;

    case_open(&c, 2, 6, SCHEDULE_OBJECTIVE_SPAN);
    g_assert_true(zb_bound_init(&bound, &c.zb, SCHEDULE_OBJECTIVE_SPAN, true, NULL));
    g_assert_cmpint(zb_bound_root_ns(&bound), ==, 6 * 30);
    zb_bound_clear(&bound);
    g_assert_true(zb_bound_init(&bound, &c.zb, SCHEDULE_OBJECTIVE_MAKESPAN, true, NULL));
    g_assert_cmpint(zb_bound_root_ns(&bound), ==, 1 + 2 + 6 * 30);
    zb_bound_clear(&bound);
}

/* --- the bounded search --- */

/*
 * Two problems whose optimum is known: with room for one micro-batch each waits for its messages
 * (test_bound_with_room_for_one); without a limit rank 1 never waits after its first F, since while its last I
 * goes back to rank 0, whose I and W follow, there are W of its own to run.  Asked for an order
 * below one nanosecond more the search finds the optimum; below the optimum it proves that there is none.
 */
static void
test_beam_finds_and_proves(void)
{
    for (int has_limit = 0; has_limit < 2; has_limit++) {
        g_auto(Case) c = {.stages = {{.forward_ns = 3,
                                      .input_ns = 4,
                                      .weight_ns = 5,
                                      .forward_message_ns = 2,
                                      .backward_message_ns = 1,
                                      .activation_bytes = 10,
                                      .weight_activation_bytes = 1},
                                     {.forward_ns = 6,
                                      .input_ns = 7,
                                      .weight_ns = 8,
                                      .forward_message_ns = 2,
                                      .backward_message_ns = 1,
                                      .activation_bytes = 10,
                                      .weight_activation_bytes = 1}},
                          .limit_bytes = {has_limit ? 11 : 0, 1000}};
        ZbBound bound;

        case_open(&c, 2, 3, SCHEDULE_OBJECTIVE_MAKESPAN);
        const int64_t optimum = has_limit ? 3 * round_trip_ns(&c) + 5 : 3 + 2 + 3 * (6 + 7 + 8);
        g_assert_true(zb_bound_init(&bound, &c.zb, SCHEDULE_OBJECTIVE_MAKESPAN, false, NULL));
        int64_t work = 1000000;
        g_assert_cmpint(zb_beam(&c.zb, &bound, &c.order, optimum + 1, &work), ==, ZB_BEAM_BETTER);
        g_assert_cmpint(makespan_of(&c), ==, optimum);
        g_assert_cmpint(work, <, 1000000);
        g_assert_cmpint(zb_beam(&c.zb, &bound, &c.order, optimum, &work), ==, ZB_BEAM_NONE_EXISTS);
        zb_bound_clear(&bound);
    }
}

/* Where the bound alone does not say so, the search proves the optimum of the tests' own branch and bound. */
static void
test_beam_proves_the_optimum(void)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(16);
    int n_searched = 0;

    for (int i = 0; i < 120; i++) {
        g_auto(Case) c = {0};
        ExactProblem exact = {
            .p = g_rand_int_range(rand, 2, 4), .m = g_rand_int_range(rand, 2, 4), .limit = 99};
        ZbBound bound;
        int64_t work = 1000000;
        for (int r = 0; r < exact.p; r++) {
            c.stages[r] = (ScheduleStageTimes){
                .forward_ns = exact.ns[r][EXACT_F] = g_rand_int_range(rand, 1, 9),
                .input_ns = exact.ns[r][EXACT_I] = g_rand_int_range(rand, 1, 9),
                .weight_ns = exact.ns[r][EXACT_W] = g_rand_int_range(rand, 1, 9),
                .forward_message_ns = exact.forward_message_ns[r] = g_rand_int_range(rand, 0, 5),
                .backward_message_ns = exact.backward_message_ns[r] = g_rand_int_range(rand, 0, 5),
            };
        }
        case_open(&c, exact.p, exact.m, SCHEDULE_OBJECTIVE_MAKESPAN);
        const int64_t optimum = exact_solve(&exact, INT64_MAX, 1000000, NULL);
        g_assert_cmpint(optimum, >, 0);
        g_assert_true(zb_bound_init(&bound, &c.zb, SCHEDULE_OBJECTIVE_MAKESPAN, false, NULL));
        g_assert_cmpint(zb_bound_root_ns(&bound), <=, optimum);
        n_searched += zb_bound_root_ns(&bound) < optimum;
        g_assert_cmpint(zb_beam(&c.zb, &bound, &c.order, optimum + 1, &work), ==, ZB_BEAM_BETTER);
        g_assert_cmpint(makespan_of(&c), ==, optimum);
        g_assert_cmpint(zb_beam(&c.zb, &bound, &c.order, optimum, &work), ==, ZB_BEAM_NONE_EXISTS);
        zb_bound_clear(&bound);
    }
    g_test_message("%d of 120 are above their bound", n_searched);
    g_assert_cmpint(n_searched, >, 5);
}

/* --- halves of stages --- */

/* Where stages may be halved, each half has half of a rank's bytes: with what 1F1B holds, p micro-batches, the V
 * of halves leaves no wait on any rank (ZB-V, 2401.10241 section 6), which whole stages cannot. */
static void
test_halves_keep_the_limit_in_bytes(void)
{
    enum {
        P = 4,
        M = 12
    };
    static const ScheduleStageTimes whole = {.forward_ns = 2,
                                             .input_ns = 2,
                                             .weight_ns = 2,
                                             .activation_bytes = 10,
                                             .weight_activation_bytes = 10};
    static const int64_t limits[P] = {10 * P, 10 * P, 10 * P, 10 * P};
    const ScheduleTimes times = {.stages = &whole,
                                 .n_stages = 1,
                                 .limit_bytes = limits,
                                 .objective = SCHEDULE_OBJECTIVE_SPAN,
                                 .may_fold = true};
    const ScheduleShape shape = {P, 1, M, 1, 0, &times};
    ScheduleZbAutoFacts facts;
    g_autoptr(GError) error = NULL;
    g_autoptr(Schedule) schedule = schedule_zb_auto(&shape, &facts, &error);

    g_assert_no_error(error);
    g_assert_cmpint(schedule->n_chunks, ==, 2);
    g_assert_cmpint(facts.span_ns, ==, 6 * M);
    for (int32_t r = 0; r < P; r++)
        g_assert_cmpint(peak_in_flight(schedule, r), <=, 2 * P);
}

/* --- what an answer comes from --- */

/* One micro-batch has one order, the serial one.  At unit times with room for p, ZB-H1 reaches the bound,
 * which 1F1B misses. */
static void
test_origins(void)
{
    static const ScheduleStageTimes unit = {.forward_ns = 1, .input_ns = 1, .weight_ns = 1};
    static const struct {
        int64_t p, v, m;
        const char *origin;
    } cases[] = {{1, 1, 1, "serial"}, {3, 1, 1, "serial"}, {1, 2, 1, "serial"}, {4, 1, 8, "zb-h1"}};

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const ScheduleTimes times = {
            .stages = &unit, .n_stages = 1, .limit_micro_batches = cases[i].p};
        const ScheduleShape shape = {cases[i].p, cases[i].v, cases[i].m, 1, 0, &times};
        ScheduleZbAutoFacts facts;
        g_autoptr(Schedule) schedule = schedule_zb_auto(&shape, &facts, NULL);
        g_assert_nonnull(schedule);
        g_assert_cmpstr(facts.origin, ==, cases[i].origin);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/schedule/zb-search/policies-are-copied-whole",
                    test_policies_are_copied_whole);
    g_test_add_func("/schedule/zb-search/weights-fill-waits", test_weights_fill_waits);
    g_test_add_func("/schedule/zb-search/forwards-go-ahead", test_forwards_go_ahead);
    g_test_add_func("/schedule/zb-search/bound-with-room-for-one", test_bound_with_room_for_one);
    g_test_add_func("/schedule/zb-search/bound-of-each-objective", test_bound_of_each_objective);
    g_test_add_func("/schedule/zb-search/beam-finds-and-proves", test_beam_finds_and_proves);
    g_test_add_func("/schedule/zb-search/beam-proves-the-optimum", test_beam_proves_the_optimum);
    g_test_add_func("/schedule/zb-search/halves-keep-the-limit-in-bytes",
                    test_halves_keep_the_limit_in_bytes);
    g_test_add_func("/schedule/zb-search/origins", test_origins);
    return g_test_run();
}
