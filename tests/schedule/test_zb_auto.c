/* Tests of schedule/zb_auto.h: never worse than its families, within the limit, near the optimum.
 */
#include "schedule/zb_auto.h"

#include <string.h>

#include "schedule/check.h"
#include "schedule/zb_order.h"
#include "tests/schedule/in_flight.h"
#include "tests/schedule/timed.h"
#include "tests/schedule/zb_cbc.h"
#include "tests/schedule/zb_exact.h"

/* --- random problems --- */

typedef struct {
    ScheduleStageTimes stages[16];
    int64_t limit_bytes[16];
    ScheduleTimes times;
    ScheduleShape shape; /* its times are not set: the struct moves */
} Problem;

static ScheduleStageTimes
random_stage(GRand *rand, int32_t most_ns, bool has_bytes)
{
    ScheduleStageTimes stage = {
        .forward_ns = g_rand_int_range(rand, 1, most_ns + 1),
        .input_ns = g_rand_int_range(rand, 1, most_ns + 1),
        .weight_ns = g_rand_int_range(rand, 0, most_ns + 1),
        .forward_message_ns = g_rand_int_range(rand, 0, most_ns / 4 + 1),
        .backward_message_ns = g_rand_int_range(rand, 0, most_ns / 4 + 1),
    };

    /* B takes I + W, or less. */
    if (g_rand_int_range(rand, 0, 4) == 0)
        stage.backward_ns =
            stage.input_ns + g_rand_int_range(rand, 0, (int32_t)stage.weight_ns + 1);
    if (has_bytes) {
        stage.activation_bytes = g_rand_int_range(rand, 1, 20);
        stage.weight_activation_bytes = g_rand_int_range(rand, 0, 25);
    }
    return stage;
}

static Problem
random_problem(GRand *rand, int32_t n_chunks)
{
    Problem problem = {0};
    const int32_t p = g_rand_int_range(rand, 1, 9);
    const bool has_bytes = g_rand_boolean(rand), uneven = g_rand_boolean(rand);
    const int32_t most_ns = g_rand_boolean(rand) ? 4 : 100;
    const int32_t n = g_rand_int_range(rand, 1, 2 * p + 2);

    for (int32_t s = 0; s < p * n_chunks; s++)
        problem.stages[s] =
            s > 0 && !uneven ? problem.stages[0] : random_stage(rand, most_ns, has_bytes);
    for (int32_t r = 0; r < p; r++) {
        int64_t one = 0;
        for (int32_t c = 0; c < n_chunks; c++) {
            const ScheduleStageTimes *s = &problem.stages[c == 0 ? r : 2 * p - 1 - r];
            one += MAX(s->activation_bytes, s->weight_activation_bytes);
        }
        problem.limit_bytes[r] = n * one + g_rand_int_range(rand, 0, (int32_t)one + 1);
    }
    problem.times = (ScheduleTimes){
        .n_stages = uneven ? p * n_chunks : 1,
        .limit_micro_batches = has_bytes ? 0 : n,
        .objective = (ScheduleObjective)g_rand_int_range(rand, 0, SCHEDULE_OBJECTIVE_N),
    };
    problem.shape = (ScheduleShape){
        .n_ranks = p,
        .n_chunks = n_chunks,
        .n_micro_batches = g_rand_int_range(rand, 1, 21),
        .n_slices = 1,
    };
    return problem;
}

static void
problem_link(Problem *problem)
{
    problem->times.stages = problem->stages;
    problem->times.limit_bytes =
        problem->times.limit_micro_batches == 0 ? problem->limit_bytes : NULL;
    problem->shape.times = &problem->times;
}

static int64_t
objective_of(const Timed *timed, ScheduleObjective objective)
{
    return objective == SCHEDULE_OBJECTIVE_SPAN ? timed->span_ns : timed->makespan_ns;
}

/* The schedule runs, keeps the limit, and takes what the facts say. */
static Timed
assert_sound(const Schedule *schedule, const ScheduleTimes *times, const ScheduleZbAutoFacts *facts)
{
    g_autoptr(GError) error = NULL;

    schedule_check(schedule, &error);
    g_assert_no_error(error);
    const Timed timed = timed_run(schedule, times);
    g_assert_true(timed.complete);
    for (int32_t r = 0; r < schedule->n_ranks; r++)
        g_assert_cmpint(timed.peak_bytes[r], <=, timed_limit(schedule, times, r));
    g_assert_cmpint(timed.makespan_ns, ==, facts->makespan_ns);
    g_assert_cmpint(timed.span_ns, ==, facts->span_ns);
    g_assert_cmpint(objective_of(&timed, times->objective), >=, facts->bound_ns);
    return timed;
}

/* --- never worse --- */

/* Counts into @n_met the families that keep the limit. */
static void
assert_beats(const char *const *families, const Problem *problem, int64_t ours_ns, int *n_met)
{
    for (size_t f = 0; families[f] != NULL; f++) {
        g_autoptr(Schedule) theirs = schedule_new(families[f], &problem->shape, NULL);
        g_assert_nonnull(theirs);
        if (!timed_fits(theirs, &problem->times))
            continue;
        const Timed timed = timed_run(theirs, &problem->times);
        g_assert_cmpint(ours_ns, <=, objective_of(&timed, problem->times.objective));
        ++*n_met;
    }
}

static void
test_never_loses_to_its_families(void)
{
    static const char *const row[] = {"1f1b", "zb-h1", "zb-h2", NULL};
    static const char *const folded[] = {"zb-v", "v-half", "v-min", NULL};
    g_autoptr(GRand) rand = g_rand_new_with_seed(11);
    int n_met[2] = {0, 0};

    for (int i = 0; i < 160; i++) {
        Problem problem = random_problem(rand, 1 + i % 2);
        g_autoptr(GError) error = NULL;
        ScheduleZbAutoFacts facts;
        problem_link(&problem);
        g_autoptr(Schedule) ours = schedule_zb_auto(&problem.shape, &facts, &error);
        g_assert_no_error(error);
        const Timed timed = assert_sound(ours, &problem.times, &facts);
        assert_beats(i % 2 == 0 ? row : folded, &problem,
                     objective_of(&timed, problem.times.objective), &n_met[i % 2]);
    }
    g_test_message("%d and %d families keep the limit", n_met[0], n_met[1]);
    g_assert_cmpint(n_met[0], >, 50);
    g_assert_cmpint(n_met[1], >, 50);
}

/* With halves of stages allowed it loses to neither kind: times are even, so that halves are. */
static void
test_folding_never_loses(void)
{
    static const char *const row[] = {"1f1b", "zb-h1", "zb-h2", NULL};
    static const char *const folded[] = {"zb-v", "v-half", "v-min", NULL};
    g_autoptr(GRand) rand = g_rand_new_with_seed(12);
    int n_met = 0, n_folded = 0;

    for (int i = 0; i < 40; i++) {
        Problem whole = random_problem(rand, 1);
        ScheduleStageTimes half = random_stage(rand, 50, false);
        g_autoptr(GError) error = NULL;
        ScheduleZbAutoFacts facts;
        half.backward_ns = 0;
        whole.stages[0] = half;
        whole.stages[0].forward_ns *= 2;
        whole.stages[0].input_ns *= 2;
        whole.stages[0].weight_ns *= 2;
        whole.times.n_stages = 1;
        whole.times.limit_micro_batches = g_rand_int_range(rand, 1, 10);
        whole.times.may_fold = true;
        problem_link(&whole);
        Problem halves = whole;
        halves.stages[0] = half;
        halves.shape.n_chunks = 2;
        problem_link(&halves);
        g_autoptr(Schedule) ours = schedule_zb_auto(&whole.shape, &facts, &error);
        g_assert_no_error(error);
        n_folded += ours->n_chunks == 2;
        const Timed timed =
            assert_sound(ours, ours->n_chunks == 2 ? &halves.times : &whole.times, &facts);
        const int64_t ns = objective_of(&timed, whole.times.objective);
        assert_beats(row, &whole, ns, &n_met);
        assert_beats(folded, &halves, ns, &n_met);
    }
    g_test_message("%d of 40 are folded", n_folded);
    g_assert_cmpint(n_met, >, 40);
    g_assert_cmpint(n_folded, >, 5);
    g_assert_cmpint(n_folded, <, 40);
}

/* --- the optimum --- */

static Problem
small_problem(GRand *rand, int32_t max_ranks, int32_t max_micro_batches, ExactProblem *exact)
{
    Problem problem = {0};
    const int32_t p = g_rand_int_range(rand, 2, max_ranks + 1);
    const bool uneven = g_rand_boolean(rand);
    const int32_t most_ns = g_rand_boolean(rand) ? 4 : 12;
    int64_t reach_ns = 0;

    problem.shape = (ScheduleShape){
        .n_ranks = p,
        .n_chunks = 1,
        .n_micro_batches = g_rand_int_range(rand, 1, max_micro_batches + 1),
        .n_slices = 1,
    };
    problem.times = (ScheduleTimes){
        .n_stages = p,
        .limit_micro_batches = g_rand_int_range(rand, 1, 2 * p + 1),
        .objective = (ScheduleObjective)g_rand_int_range(rand, 0, SCHEDULE_OBJECTIVE_N),
    };
    *exact = (ExactProblem){
        .p = p,
        .m = (int)problem.shape.n_micro_batches,
        .limit = (int)problem.times.limit_micro_batches,
    };
    for (int32_t r = 0; r < p; r++) {
        ScheduleStageTimes *stage = &problem.stages[r];
        *stage = r > 0 && !uneven ? problem.stages[0] : random_stage(rand, most_ns, false);
        stage->backward_ns = 0;
        stage->weight_ns = MAX(stage->weight_ns, 1);
        exact->ns[r][EXACT_F] = stage->forward_ns;
        exact->ns[r][EXACT_I] = stage->input_ns;
        exact->ns[r][EXACT_W] = stage->weight_ns;
        exact->forward_message_ns[r] = stage->forward_message_ns;
        exact->backward_message_ns[r] = stage->backward_message_ns;
        /* A rank starts when micro-batch 0 reaches it. */
        if (problem.times.objective == SCHEDULE_OBJECTIVE_SPAN)
            exact->offset_ns[r] = -reach_ns;
        reach_ns += stage->forward_ns + stage->forward_message_ns;
    }
    return problem;
}

static int64_t
solve(Problem *problem, ScheduleZbAutoFacts *facts)
{
    g_autoptr(GError) error = NULL;

    problem_link(problem);
    g_autoptr(Schedule) ours = schedule_zb_auto(&problem->shape, facts, &error);
    g_assert_no_error(error);
    const Timed timed = assert_sound(ours, &problem->times, facts);
    return objective_of(&timed, problem->times.objective);
}

/* Gaps to the proven optimum, in permille.  At most one in a hundred is above it, and by 3%. */
static void
test_small_problems_reach_the_optimum(void)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(13);
    int n_proven = 0, n_equal = 0, n_known = 0;
    int64_t worst = 0, sum = 0;

    for (int i = 0; i < 250; i++) {
        ExactProblem exact;
        Problem problem = small_problem(rand, 4, i < 200 ? 5 : 8, &exact);
        ScheduleZbAutoFacts facts;
        const int64_t ours = solve(&problem, &facts);
        /* Given no schedule to start from, so that it proves what it says. */
        const int64_t optimum = exact_solve(&exact, INT64_MAX, 100000, NULL);
        if (optimum < 0)
            continue;
        n_proven++;
        g_assert_cmpint(ours, >=, optimum);
        g_assert_cmpint(facts.bound_ns, <=, optimum);
        n_equal += ours == optimum;
        n_known += facts.bound_ns == optimum;
        worst = MAX(worst, (ours - optimum) * 1000 / optimum);
        sum += (ours - optimum) * 1000 / optimum;
    }
    g_test_message("%d of 250 proven, %d equal, %d by zb-auto itself; gap at most %d, mean %.3f "
                   "permille",
                   n_proven, n_equal, n_known, (int)worst, (double)sum / n_proven);
    g_assert_cmpint(n_proven, >=, 245);
    g_assert_cmpint(n_equal * 100, >=, n_proven * 99);
    g_assert_cmpint(worst, <=, 30);
    /* Lower bounds and beam search alone leave nothing to prove, mostly. */
    g_assert_cmpint(n_known * 10, >=, n_proven * 9);
}

/* The branch and bound of these tests against a solver of mixed integer programs. */
static void
test_optimum_is_that_of_cbc(void)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(14);
    g_autofree char *program = g_find_program_in_path("cbc");
    int n_proven = 0;

    if (program == NULL) {
        g_test_skip("no program cbc (Debian package coinor-cbc)");
        return;
    }
    for (int i = 0; i < 6; i++) {
        ExactProblem exact;
        Problem problem = small_problem(rand, 3, 3, &exact);
        ScheduleZbAutoFacts facts;
        const int64_t optimum = exact_solve(&exact, INT64_MAX, 1000000, NULL);
        const int64_t cbc = cbc_solve(program, &exact, 5);
        g_assert_cmpint(optimum, >=, 0);
        if (cbc == CBC_NOT_PROVEN)
            continue;
        n_proven++;
        g_assert_cmpint(cbc, ==, optimum);
        g_assert_cmpint(solve(&problem, &facts), ==, cbc);
    }
    g_test_message("%d of 6 proven by cbc", n_proven);
    g_assert_cmpint(n_proven, >, 0);
}

/* --- closed forms --- */

/*
 * F = I = W = 1, room for p: 3m + p-1, of which no order takes less, as the last rank starts after
 * p-1.  Room for 2p (the default): no rank idles between its first and last op once m >= 2p-1.
 */
static void
test_unit_times_reach_closed_forms(void)
{
    static const ScheduleStageTimes unit = {.forward_ns = 1, .input_ns = 1, .weight_ns = 1};

    for (int64_t p = 1; p <= 8; p++)
        for (int64_t m = p; m <= 4 * p; m += p) {
            const ScheduleTimes times = {.stages = &unit, .n_stages = 1, .limit_micro_batches = p};
            const ScheduleShape half = {p, 1, m, 1, 0, &times}, full = {p, 1, m, 1, 0, NULL};
            ScheduleZbAutoFacts facts;
            g_autoptr(Schedule) h1 = schedule_zb_auto(&half, &facts, NULL);
            g_assert_cmpint(facts.makespan_ns, ==, 3 * m + p - 1);
            g_assert_cmpint(facts.bound_ns, ==, facts.makespan_ns);
            for (int32_t r = 0; r < p; r++)
                g_assert_cmpint(peak_in_flight(h1, r), <=, p);
            g_autoptr(Schedule) h2 = schedule_zb_auto(&full, &facts, NULL);
            g_assert_cmpint(facts.makespan_ns, ==, 3 * m + p - 1);
            if (m >= 2 * p - 1)
                g_assert_cmpint(facts.span_ns, ==, 3 * m);
            for (int32_t r = 0; r < p; r++)
                g_assert_cmpint(peak_in_flight(h2, r), <=, 2 * p);
        }
}

static void
test_is_deterministic(void)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(15);

    for (int i = 0; i < 10; i++) {
        Problem problem = random_problem(rand, 1 + i % 2);
        problem_link(&problem);
        g_autoptr(Schedule) a = schedule_new("zb-auto", &problem.shape, NULL);
        g_autoptr(Schedule) b = schedule_new("zb-auto", &problem.shape, NULL);
        g_assert_cmpint(schedule_n_ops(a), ==, schedule_n_ops(b));
        g_assert_cmpint(memcmp(a->ops, b->ops, sizeof(ScheduleOp) * (size_t)schedule_n_ops(a)), ==,
                        0);
    }
}

/* B that is much quicker than I and W together is used: 1F1B's own time is kept. */
static void
test_uses_quick_whole_backwards(void)
{
    static const ScheduleStageTimes stage = {
        .forward_ns = 10, .input_ns = 10, .weight_ns = 10, .backward_ns = 12};
    const ScheduleTimes times = {.stages = &stage, .n_stages = 1, .limit_micro_batches = 4};
    const ScheduleShape shape = {4, 1, 12, 1, 0, &times};
    ScheduleZbAutoFacts facts;
    g_autoptr(Schedule) schedule = schedule_zb_auto(&shape, &facts, NULL);

    assert_sound(schedule, &times, &facts);
    g_test_message("%d, of 1F1B %d", (int)facts.makespan_ns, (12 + 3) * (10 + 12));
    g_assert_cmpint(facts.makespan_ns, <, (12 + 3) * (10 + 12));
}

/* --- limits --- */

static void
test_refuses(void)
{
    static const int64_t limits[2] = {100, 7};
    static const ScheduleStageTimes one = {
        .forward_ns = 1, .activation_bytes = 8, .weight_activation_bytes = 2};
    static const ScheduleStageTimes negative = {.forward_ns = 1, .weight_ns = -1};
    static const ScheduleStageTimes huge = {.forward_ns = INT64_MAX / 4};
    static const struct {
        ScheduleTimes times;
        const char *says;
    } cases[] = {
        {{.stages = &one, .n_stages = 3}, "times of 3 stages, expected 1 or 2"},
        {{.stages = NULL, .n_stages = 1}, "times of 1 stages"},
        {{.stages = &negative, .n_stages = 1}, "times and bytes of stage 0"},
        {{.stages = &huge, .n_stages = 1}, "times and bytes of stage 0"},
        {{.stages = &one, .n_stages = 1, .limit_micro_batches = -1},
         "must be at least 1 micro-batch, got -1"},
        {{.stages = &one, .n_stages = 1, .limit_bytes = limits},
         "rank 1 may hold 7 bytes, one micro-batch needs 8"},
        {{.stages = &one, .n_stages = 1, .objective = SCHEDULE_OBJECTIVE_N}, "objective 2"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const ScheduleShape shape = {2, 1, 4, 1, 0, &cases[i].times};
        g_autoptr(GError) error = NULL;
        g_assert_null(schedule_new("zb-auto", &shape, &error));
        g_assert_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_SHAPE);
        if (strstr(error->message, cases[i].says) == NULL)
            g_error("\"%s\" does not say \"%s\"", error->message, cases[i].says);
    }
}

/* A rank with less memory than others: its own limit counts. */
static void
test_limits_differ_by_rank(void)
{
    static const ScheduleStageTimes stage = {.forward_ns = 3,
                                             .input_ns = 4,
                                             .weight_ns = 2,
                                             .activation_bytes = 5,
                                             .weight_activation_bytes = 3};
    static const int64_t limits[4] = {40, 9, 25, 6};
    const ScheduleTimes times = {.stages = &stage, .n_stages = 1, .limit_bytes = limits};
    const ScheduleShape shape = {4, 1, 16, 1, 0, &times};
    ScheduleZbAutoFacts facts;
    g_autoptr(Schedule) schedule = schedule_zb_auto(&shape, &facts, NULL);

    assert_sound(schedule, &times, &facts);
}

static void
test_large_shapes_end(void)
{
    static const ScheduleStageTimes stage = {.forward_ns = 100,
                                             .input_ns = 130,
                                             .weight_ns = 60,
                                             .forward_message_ns = 10,
                                             .backward_message_ns = 10};
    /* Less room than ZB-H1 has, so that no bound ends the search early. */
    static const struct {
        ScheduleShape shape;
        int64_t limit;
    } cases[] = {{{32, 1, 128, 1, 0, NULL}, 24},
                 {{16, 2, 64, 1, 0, NULL}, 12},
                 {{8, 1, 20000, 1, 0, NULL}, 6}};

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const ScheduleTimes times = {
            .stages = &stage, .n_stages = 1, .limit_micro_batches = cases[i].limit};
        ScheduleShape shape = cases[i].shape;
        ScheduleZbAutoFacts facts;
        shape.times = &times;
        const int64_t start_us = g_get_monotonic_time();
        g_autoptr(Schedule) schedule = schedule_zb_auto(&shape, &facts, NULL);
        g_test_message(
            "%d ops: %d ms, from %s, %.2f%% above the bound", (int)schedule_n_ops(schedule),
            (int)((g_get_monotonic_time() - start_us) / 1000), facts.origin,
            100.0 * (double)(facts.makespan_ns - facts.bound_ns) / (double)MAX(facts.bound_ns, 1));
        assert_sound(schedule, &times, &facts);
    }
}

/* What zb_order.h says of a rank's string: no I before its F, no W before its I, none missing, and
 * never more bytes than the limit. */
static void
test_valid_orders_of_a_rank(void)
{
    const ScheduleStageTimes stage = {.forward_ns = 1,
                                      .input_ns = 1,
                                      .weight_ns = 1,
                                      .activation_bytes = 10,
                                      .weight_activation_bytes = 4};
    const int64_t limits[] = {15, 1000};
    const ScheduleTimes times = {.stages = &stage, .n_stages = 1, .limit_bytes = limits};
    const ScheduleShape shape = {
        .n_ranks = 2, .n_chunks = 1, .n_micro_batches = 2, .n_slices = 1, .times = &times};
    static const struct {
        const char *ops;
        bool fits;
    } cases[] = {
        {"FIWFIW", true},  /* holds 10, 4, 0, 10, ... */
        {"FIFWIW", true},  /* 10, 4, 14, 10, 4, 0 */
        {"FFIWIW", false}, /* 20 */
        {"FIWIFW", false}, {"FWIFIW", false}, {"FIWFI", false},
        {"FIWF", false},   {"FIW", false}, /* neither F nor I of the second */
        {"FBFB", true},    {"FBF", false},    {"", false},
    };
    ZbProblem problem = {0};
    ZbOrder order = {0};
    g_autoptr(GError) error = NULL;

    g_assert_true(zb_problem_init(&problem, &shape, &error));
    g_assert_true(zb_order_init(&order, &problem, &error));
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const char *ops = cases[i].ops;
        uint8_t *types = zb_order_rank(&order, &problem, 0);
        order.length[0] = (int64_t)strlen(ops);
        for (int64_t j = 0; j < order.length[0]; j++)
            types[j] = zb_type(ops[j] == 'F'   ? SCHEDULE_OP_FORWARD
                               : ops[j] == 'I' ? SCHEDULE_OP_BACKWARD_INPUT
                               : ops[j] == 'W' ? SCHEDULE_OP_BACKWARD_WEIGHT
                                               : SCHEDULE_OP_BACKWARD,
                               0);
        if (zb_order_fits(&problem, &order, 0) != cases[i].fits)
            g_test_fail_printf("%s: %d is wrong", ops, !cases[i].fits);
    }
    zb_order_clear(&order);
    zb_problem_clear(&problem);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/schedule/zb-auto/never-loses-to-its-families",
                    test_never_loses_to_its_families);
    g_test_add_func("/schedule/zb-auto/folding-never-loses", test_folding_never_loses);
    g_test_add_func("/schedule/zb-auto/small-problems-reach-the-optimum",
                    test_small_problems_reach_the_optimum);
    g_test_add_func("/schedule/zb-auto/optimum-is-that-of-cbc", test_optimum_is_that_of_cbc);
    g_test_add_func("/schedule/zb-auto/unit-times-reach-closed-forms",
                    test_unit_times_reach_closed_forms);
    g_test_add_func("/schedule/zb-auto/is-deterministic", test_is_deterministic);
    g_test_add_func("/schedule/zb-auto/uses-quick-whole-backwards",
                    test_uses_quick_whole_backwards);
    g_test_add_func("/schedule/zb-auto/refuses", test_refuses);
    g_test_add_func("/schedule/zb-auto/limits-differ-by-rank", test_limits_differ_by_rank);
    g_test_add_func("/schedule/zb-auto/large-shapes-end", test_large_shapes_end);
    g_test_add_func("/schedule/zb-auto/valid-orders-of-a-rank", test_valid_orders_of_a_rank);
    return g_test_run();
}
