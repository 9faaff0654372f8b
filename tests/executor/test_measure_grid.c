/* Tests of executor/measure_grid.h: corners first, then where it is needed, and when it ends. */
#include "executor/measure_grid.h"

#include <math.h>

static const int64_t batches[] = {1, 2, 4}, slices[] = {256, 128, 64, 32, 16};

static ExecGrid *
grid_new(void)
{
    return exec_grid_new(batches, G_N_ELEMENTS(batches), slices, G_N_ELEMENTS(slices));
}

static ExecGridPoint
next(const ExecGrid *grid)
{
    const int candidate = exec_grid_next(grid);

    g_assert_cmpint(candidate, >=, 0);
    g_assert_false(exec_grid_is_timed(grid, (size_t)candidate));
    return exec_grid_point(grid, (size_t)candidate);
}

/* Times what comes next; @error is that of every point. */
static void
time_next(ExecGrid *grid, double error)
{
    exec_grid_note(grid, (size_t)exec_grid_next(grid), error);
}

static void
time_corners(ExecGrid *grid)
{
    for (int i = 0; i < 4; i++) {
        const ExecGridPoint point = next(grid);
        g_assert_true(point.batch == 1 || point.batch == 4);
        g_assert_true(point.tokens == 256 || point.tokens == 16);
        g_assert_false(exec_grid_has_corners(grid));
        time_next(grid, (double)NAN);
    }
    g_assert_true(exec_grid_has_corners(grid));
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
    g_assert_cmpint(exec_grid_next(grid), >=, 0);
    time_next(grid, 0.0);
    g_assert_cmpint(exec_grid_next(grid), ==, -1);
    g_assert_cmpuint(exec_grid_n_timed(grid), ==, 10);
    g_assert_cmpuint(exec_grid_n_candidates(grid), ==, 15);
}

/* Where a point was predicted badly its neighbourhood is timed next, though others are as far. */
static void
test_bad_points_attract(void)
{
    g_autoptr(ExecGrid) grid = grid_new();
    bool found = false;

    time_corners(grid);
    time_next(grid, 0.01); /* (2, 64) */
    for (size_t i = 0; i < exec_grid_n_candidates(grid); i++) {
        const ExecGridPoint point = exec_grid_point(grid, i);
        if (point.batch == 4 && point.tokens == 128)
            exec_grid_note(grid, i, 0.4);
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

    exec_grid_want_all(grid);
    for (int i = 0; i < 15; i++)
        time_next(grid, 0.0);
    g_assert_cmpint(exec_grid_next(grid), ==, -1);
    g_assert_cmpuint(exec_grid_n_timed(grid), ==, 15);
}

static void
test_one_candidate(void)
{
    static const int64_t one = 7;
    g_autoptr(ExecGrid) grid = exec_grid_new(&one, 1, &one, 1);

    g_assert_cmpint(exec_grid_next(grid), ==, 0);
    time_next(grid, (double)NAN);
    g_assert_cmpint(exec_grid_next(grid), ==, -1);
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
    return g_test_run();
}
