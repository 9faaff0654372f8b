/* Tests of executor/run/verify.h: the distance of two tensors, by its formula. */
#include "executor/run/verify.h"

#include <math.h>

/* |actual - expected| over |expected|; over the floor's norm where that is larger; 0 of equal ones. */
static void
test_relative_error(void)
{
    static const float threes[] = {3, 4}, off[] = {3, 4.5F}, opposite[] = {-3, -4}, zero[2] = {0};
    static const float wild[] = {3, NAN}, endless[] = {3, INFINITY};

    g_assert_cmpfloat(exec_relative_error(threes, threes, 2, 0), ==, 0);
    g_assert_cmpfloat_with_epsilon(exec_relative_error(off, threes, 2, 0), 0.5 / 5, 1e-12);
    g_assert_cmpfloat_with_epsilon(exec_relative_error(opposite, threes, 2, 0), 2, 1e-12);
    g_assert_cmpfloat_with_epsilon(exec_relative_error(zero, threes, 2, 0), 1, 1e-12);
    /* 5 / (1e-3 * 1e5 * sqrt(2)) */
    g_assert_cmpfloat_with_epsilon(exec_relative_error(zero, threes, 2, 1e5),
                                   5 / (EXEC_VERIFY_FLOOR * 1e5 * sqrt(2)), 1e-12);
    g_assert_cmpfloat_with_epsilon(exec_relative_error(threes, zero, 2, 1),
                                   5 / (EXEC_VERIFY_FLOOR * sqrt(2)), 1e-9);
    g_assert_true(isinf(exec_relative_error(threes, zero, 2, 0)));
    g_assert_true(isinf(exec_relative_error(wild, threes, 2, 1)));
    g_assert_true(isinf(exec_relative_error(endless, threes, 2, 1)));
    g_assert_cmpfloat(exec_relative_error(NULL, NULL, 0, 1), ==, 0);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/verify/relative-error", test_relative_error);
    return g_test_run();
}
