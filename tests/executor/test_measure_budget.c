/* Tests of executor/measure/budget.h: what there is time for, from seconds that are made up. */
#include "executor/measure/budget.h"

#include <math.h>

/* 100 s for two rounds, 5 s and as long as ranks take to make for each of two numbers of ranks. */
static ExecBudget
limit(void)
{
    return (ExecBudget){.total_s = 100, .is_limit = true, .n_rounds = 2, .n_beside = 2};
}

static void
test_rounds_share_what_is_left(void)
{
    ExecBudget budget = limit();

    /* (100 - 2 x 5 - spent) / rounds left */
    g_assert_cmpfloat(exec_budget_round_s(&budget, 0, 0), ==, 45);
    g_assert_cmpfloat(exec_budget_round_s(&budget, 0, 10), ==, 40);
    g_assert_cmpfloat(exec_budget_round_s(&budget, 1, 60), ==, 30);
    g_assert_cmpfloat(exec_budget_round_s(&budget, 1, 95), ==, -5);
    budget.setup_s = 3; /* for each number of ranks */
    g_assert_cmpfloat(exec_budget_round_s(&budget, 1, 60), ==, 24);
}

/* A target is divided among rounds; what comes before and behind is not in it. */
static void
test_a_target_is_for_rounds(void)
{
    ExecBudget budget = limit();

    budget.is_limit = false;
    budget.setup_s = 3;
    g_assert_cmpfloat(exec_budget_round_s(&budget, 0, 0), ==, 50);
    g_assert_cmpfloat(exec_budget_round_s(&budget, 1, 60), ==, 50);
    g_assert_true(exec_budget_has_time(&budget, 1000, 1000));
}

static void
test_nothing_is_begun_that_ends_late(void)
{
    const ExecBudget budget = limit();

    g_assert_true(exec_budget_has_time(&budget, 90, 10));
    g_assert_false(exec_budget_has_time(&budget, 90, 10.5));
    g_assert_false(exec_budget_has_time(&budget, 101, 0));
}

/* Of 10 s: 3 repetitions at the least, 5 at the most. */
static void
test_repetitions(void)
{
    static const struct {
        double spent_s, expected_s;
        int32_t n;
        bool by_limit, by_target;
    } cases[] = {
        {8, 2, 0, true, true},     {8, 2, 4, true, true},      {8, 2, 5, false, false},
        {8, 2.5, 3, false, false}, {8, 2.5, 2, false, true},   {8, 7, 2, false, true},
        {8, 7.5, 2, false, false}, {10.5, 0, 2, false, true},  {0, 0, 5, false, false},
        {16, 0, 0, false, false},  {9.5, 0.25, 4, true, true},
    };
    ExecBudget budget = limit();

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const ExecBudgetRepetitions repetitions = {
            .round_s = 10,
            .spent_s = cases[i].spent_s,
            .expected_s = cases[i].expected_s,
            .n = cases[i].n,
            .least = 3,
            .most = 5,
        };
        budget.is_limit = true;
        g_assert_cmpint(exec_budget_repeats(&budget, &repetitions), ==, cases[i].by_limit);
        budget.is_limit = false;
        g_assert_cmpint(exec_budget_repeats(&budget, &repetitions), ==, cases[i].by_target);
    }
}

/* A repetition that was mostly disturbed is made again, but not for ever. */
static void
test_disturbed_repetitions_are_made_again(void)
{
    ExecBudgetRepetitions repetitions = {
        .round_s = 10, .spent_s = 1, .expected_s = 1, .n = 4, .least = 3, .most = 5};
    const ExecBudget budget = limit();

    g_assert_true(exec_budget_counts(0, 0));
    g_assert_true(exec_budget_counts(10, 5));
    g_assert_false(exec_budget_counts(10, 6));
    repetitions.n_disturbed = 4;
    g_assert_true(exec_budget_repeats(&budget, &repetitions));
    repetitions.n_disturbed = 5;
    g_assert_false(exec_budget_repeats(&budget, &repetitions));
}

/* --- links --- */

typedef struct {
    ProfileOp op;
    int64_t n_ranks, size;
} Asked;

/* On a machine where they take 1 s for 1000 bytes or elements. */
static const Asked asked[] = {
    {PROFILE_OP_OPTIMIZER, 1, 500},    {PROFILE_OP_OPTIMIZER, 1, 1000},
    {PROFILE_OP_ALL_REDUCE, 2, 1000},  {PROFILE_OP_ALL_REDUCE, 2, 4000},
    {PROFILE_OP_ALL_REDUCE, 2, 16000}, {PROFILE_OP_ALL_REDUCE, 4, 1000},
    {PROFILE_OP_ALL_REDUCE, 4, 4000},  {PROFILE_OP_P2P, 2, 2000},
    {PROFILE_OP_P2P, 2, 500},
};

/* A pass; returns what it took, @timed becomes which were. */
static double
pass(ExecBudgetLinks *links, bool timed[G_N_ELEMENTS(asked)])
{
    double spent_s = 0;

    exec_budget_links_begin(links);
    for (size_t i = 0; i < G_N_ELEMENTS(asked); i++) {
        const double seconds = (double)asked[i].size / 1000;
        timed[i] = exec_budget_links_next(links, asked[i].op, asked[i].n_ranks, asked[i].size);
        if (!timed[i])
            continue;
        exec_budget_links_note(links, seconds);
        spent_s += seconds;
    }
    return spent_s;
}

/* Whatever a pass may take: the first of every op and ranks is timed (4.5 s in all), a pass is
 * within that or the limit plus the firsts, and every pass has the same. */
static void
test_passes_hold(void)
{
    static const bool is_first[] = {true, false, true, false, false, true, false, true, false};

    for (double pass_s = 0; pass_s <= 40; pass_s += 0.25) {
        g_autoptr(ExecBudgetLinks) links = exec_budget_links_new(pass_s);
        bool timed[G_N_ELEMENTS(asked)], again[G_N_ELEMENTS(asked)];
        const double spent_s = pass(links, timed);

        g_assert_cmpfloat(spent_s, <=, pass_s + 4.5);
        g_assert_cmpfloat(exec_budget_links_pass_s(links), ==, spent_s);
        g_assert_cmpfloat(pass(links, again), ==, spent_s);
        for (size_t i = 0; i < G_N_ELEMENTS(asked); i++) {
            g_assert_true(timed[i] || !is_first[i]);
            g_assert_true(timed[i] == again[i]);
            g_assert_true(timed[i] || pass_s < 30);
        }
    }
}

/* 8 s: 0.5, 1, 1 and 4 make 6.5; 16 more are too many; 1 more is a first; then 4 are too many, 2 a
 * first, and 0.5 too much. */
static void
test_large_ones_are_left_out(void)
{
    g_autoptr(ExecBudgetLinks) links = exec_budget_links_new(8);
    bool timed[G_N_ELEMENTS(asked)];

    g_assert_cmpfloat(pass(links, timed), ==, 9.5);
    g_autofree char *text = exec_budget_links_left_out(links);
    g_assert_cmpstr(text, ==,
                    "all_reduce from 16000 bytes on between 2 ranks, all_reduce from 4000 bytes on "
                    "between 4 ranks, p2p from 500 bytes on between 2 ranks");
}

static void
test_all_are_timed_without_end(void)
{
    g_autoptr(ExecBudgetLinks) links = exec_budget_links_new((double)INFINITY);
    bool timed[G_N_ELEMENTS(asked)];

    g_assert_cmpfloat(pass(links, timed), ==, 30);
    g_assert_null(exec_budget_links_left_out(links));
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/measure-budget/rounds-share-what-is-left",
                    test_rounds_share_what_is_left);
    g_test_add_func("/executor/measure-budget/a-target-is-for-rounds", test_a_target_is_for_rounds);
    g_test_add_func("/executor/measure-budget/nothing-is-begun-that-ends-late",
                    test_nothing_is_begun_that_ends_late);
    g_test_add_func("/executor/measure-budget/repetitions", test_repetitions);
    g_test_add_func("/executor/measure-budget/disturbed-repetitions-are-made-again",
                    test_disturbed_repetitions_are_made_again);
    g_test_add_func("/executor/measure-budget/passes-hold", test_passes_hold);
    g_test_add_func("/executor/measure-budget/large-ones-are-left-out",
                    test_large_ones_are_left_out);
    g_test_add_func("/executor/measure-budget/all-are-timed-without-end",
                    test_all_are_timed_without_end);
    return g_test_run();
}
