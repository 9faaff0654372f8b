/* Tests of executor/measure/grid.h: corners first, then where it is needed, and when it ends. */
#include "executor/measure/grid.h"

#include <math.h>

static const int64_t batches[] = {1, 2, 4}, slices[] = {256, 128, 64, 32, 16};

static ExecGrid *
grid_new(void)
{
    return exec_grid_new(batches, G_N_ELEMENTS(batches), slices, G_N_ELEMENTS(slices));
}

static bool
is_timed(const ExecGrid *grid, size_t candidate)
{
    bool found = false;

    for (size_t i = 0; i < grid->timed->len; i++)
        found |= g_array_index(grid->timed, size_t, i) == candidate;
    return found;
}

static ExecGridPoint
next(const ExecGrid *grid)
{
    const int candidate = exec_grid_next(grid, INFINITY, INFINITY);

    g_assert_cmpint(candidate, >=, 0);
    g_assert_false(is_timed(grid, (size_t)candidate));
    return grid->candidates[(size_t)candidate].point;
}

/* Times what comes next; @error is that of every point. */
static void
time_next(ExecGrid *grid, double error)
{
    exec_grid_note(grid, (size_t)exec_grid_next(grid, INFINITY, INFINITY), error, 1);
}

static void
time_corners(ExecGrid *grid)
{
    for (int i = 0; i < 4; i++) {
        const ExecGridPoint point = next(grid);
        g_assert_true(point.batch == 1 || point.batch == 4);
        g_assert_true(point.tokens == 256 || point.tokens == 16);
        time_next(grid, (double)NAN);
    }
}

/* Of batches 1, 2, 4 and five halvings the farthest from all four corners, by logarithms, is (2,
 * 64): (1, 2) from each. */
static void
test_corners_then_the_middle(void)
{
    g_autoptr(ExecGrid) grid = grid_new();

    time_corners(grid);
    const ExecGridPoint point = next(grid);
    g_assert_cmpint(point.batch, ==, 2);
    g_assert_cmpint(point.tokens, ==, 64);
}

/* Three points in a row that were predicted well end it; a bad one between them begins anew. */
static void
test_ends_when_predictions_are_good(void)
{
    g_autoptr(ExecGrid) grid = grid_new();

    time_corners(grid);
    time_next(grid, 0.01);
    time_next(grid, 0.01);
    time_next(grid, 0.5);
    time_next(grid, 0.001);
    time_next(grid, 0.019);
    g_assert_cmpint(exec_grid_next(grid, INFINITY, INFINITY), >=, 0);
    time_next(grid, 0.0);
    g_assert_cmpint(exec_grid_next(grid, INFINITY, INFINITY), ==, -1);
    g_assert_cmpuint(grid->timed->len, ==, 10);
    g_assert_cmpuint(grid->n, ==, 15);
}

/* Where a point was predicted badly its neighbourhood is timed next, though others are as far. */
static void
test_bad_points_attract(void)
{
    g_autoptr(ExecGrid) grid = grid_new();
    bool found = false;

    time_corners(grid);
    time_next(grid, 0.01); /* (2, 64) */
    for (size_t i = 0; i < grid->n; i++) {
        const ExecGridPoint point = grid->candidates[i].point;
        if (point.batch == 4 && point.tokens == 128)
            exec_grid_note(grid, i, 0.4, 1);
    }
    const ExecGridPoint point = next(grid);
    /* One step from it: (2, 128), (4, 64) or (4, 256), which is timed. */
    found = (point.batch == 2 && point.tokens == 128) || (point.batch == 4 && point.tokens == 64);
    g_assert_true(found);
}

static void
test_all_when_wanted(void)
{
    g_autoptr(ExecGrid) grid = grid_new();

    grid->want_all = true;
    for (int i = 0; i < 15; i++)
        time_next(grid, 0.0);
    g_assert_cmpint(exec_grid_next(grid, INFINITY, INFINITY), ==, -1);
    g_assert_cmpuint(grid->timed->len, ==, 15);
}

static void
test_one_candidate(void)
{
    static const int64_t one = 7;
    g_autoptr(ExecGrid) grid = exec_grid_new(&one, 1, &one, 1);

    g_assert_cmpint(exec_grid_next(grid, INFINITY, INFINITY), ==, 0);
    time_next(grid, (double)NAN);
    g_assert_cmpint(exec_grid_next(grid, INFINITY, INFINITY), ==, -1);
}

/* --- time --- */

/* A machine on which a sequence takes @sequence_s, slices of 16 tokens twice as long, on a clock
 * that only goes on while points are timed.  Returns what all points took; @n becomes their
 * number. */
static double
spend(ExecGrid *grid, double budget_s, double sequence_s, size_t *n)
{
    double now_s = 0;

    for (;;) {
        const int next_one = exec_grid_next(grid, budget_s - now_s, budget_s / 2 - now_s);
        if (next_one < 0)
            break;
        const ExecGridPoint point = grid->candidates[(size_t)next_one].point;
        const double seconds = sequence_s * (double)point.batch * (point.tokens == 16 ? 2 : 1);
        now_s += seconds;
        exec_grid_note(grid, (size_t)next_one, 0.5, seconds);
    }
    *n = grid->timed->len;
    return now_s;
}

/* All 15 points take 7 sequences at each of 4 lengths and 14 at one: 42 in all.  Whatever the
 * budget, what is spent is within it but for the first point, and for the first one of 16 tokens,
 * which takes twice what was expected: one sequence more. */
static void
test_budgets_hold(void)
{
    for (double budget_s = 0; budget_s <= 120; budget_s += 0.5) {
        g_autoptr(ExecGrid) grid = grid_new();
        size_t n = 0;
        const double spent_s = spend(grid, budget_s, 1, &n);

        g_assert_cmpuint(n, >=, 1);
        g_assert_cmpfloat(spent_s, <=, MAX(budget_s, 1) + 1);
        /* Half of the budget is for more than the corners; of the last point at most twice as much
         * is expected as it takes, 4 sequences more. */
        if (budget_s >= 2 * (42 + 4))
            g_assert_cmpuint(n, ==, 15);
        if (budget_s < 2 * 42)
            g_assert_cmpuint(n, <, 15);
    }
}

/* The cheapest first: one sequence, in one slice. */
static void
test_the_cheapest_first(void)
{
    g_autoptr(ExecGrid) grid = grid_new();
    size_t n = 0;

    g_assert_cmpfloat(spend(grid, 0.5, 1, &n), ==, 1);
    g_assert_cmpuint(n, ==, 1);
    const ExecGridPoint first = grid->candidates[g_array_index(grid->timed, size_t, 0)].point;
    g_assert_cmpint(first.batch, ==, 1);
    g_assert_cmpint(first.tokens, ==, 256);
}

/* After one sequence of 3 s and one of 6 s (16 tokens) there are 4 s: not enough for two; or 11 s:
 * enough for two, not for four. */
static void
test_smaller_batches_where_large_ones_do_not_fit(void)
{
    g_autoptr(ExecGrid) grid = grid_new();
    size_t n_two = 0, n = 0;

    spend(grid, 13, 3, &n);
    for (size_t i = 0; i < n; i++) {
        const ExecGridPoint point = grid->candidates[g_array_index(grid->timed, size_t, i)].point;
        g_assert_cmpint(point.batch, <, 4);
        n_two += point.batch == 2;
    }
    g_assert_cmpuint(n_two, ==, 0);
    g_autoptr(ExecGrid) longer = grid_new();
    spend(longer, 20, 3, &n);
    for (size_t i = 0; i < n; i++) {
        g_assert_cmpint(longer->candidates[g_array_index(longer->timed, size_t, i)].point.batch, <,
                        4);
        n_two += longer->candidates[g_array_index(longer->timed, size_t, i)].point.batch == 2;
    }
    g_assert_cmpuint(n_two, >, 0);
}

/* Somebody asked for all of them. */
static void
test_lists_are_timed_whatever_they_take(void)
{
    g_autoptr(ExecGrid) grid = grid_new();
    size_t n = 0;

    grid->want_all = true;
    g_assert_cmpfloat(spend(grid, 1, 1, &n), ==, 42);
    g_assert_cmpuint(n, ==, 15);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/measure-grid/corners-then-the-middle", test_corners_then_the_middle);
    g_test_add_func("/executor/measure-grid/ends-when-predictions-are-good",
                    test_ends_when_predictions_are_good);
    g_test_add_func("/executor/measure-grid/bad-points-attract", test_bad_points_attract);
    g_test_add_func("/executor/measure-grid/all-when-wanted", test_all_when_wanted);
    g_test_add_func("/executor/measure-grid/one-candidate", test_one_candidate);
    g_test_add_func("/executor/measure-grid/budgets-hold", test_budgets_hold);
    g_test_add_func("/executor/measure-grid/the-cheapest-first", test_the_cheapest_first);
    g_test_add_func("/executor/measure-grid/smaller-batches-where-large-ones-do-not-fit",
                    test_smaller_batches_where_large_ones_do_not_fit);
    g_test_add_func("/executor/measure-grid/lists-are-timed-whatever-they-take",
                    test_lists_are_timed_whatever_they_take);
    return g_test_run();
}
