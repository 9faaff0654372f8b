/* Tests of profiles/fit/likeness.h: distances, and expectations by hand. */
#include "profiles/fit/likeness.h"

#include "profiles/fit/calibrate.h"

#include <glib.h>

static ProfileLikeness
row_of(double number, uint64_t word)
{
    ProfileLikeness row = {.words = {word}};

    for (int i = 0; i < PROFILE_LIKENESS_NUMBERS; i++)
        row.numbers[i] = 1.0;
    row.numbers[0] = number;
    return row;
}

static void
test_distances(void)
{
    const ProfileLikeness one = row_of(1, 0), eight = row_of(8, 0), three = row_of(3, 0);
    const ProfileLikeness other = row_of(8, 1);

    g_assert_cmpfloat(profile_likeness_distance(&one, &one), ==, 0.0);
    g_assert_cmpfloat(profile_likeness_distance(&one, &eight), ==, 3.0 / 4.0);
    g_assert_cmpfloat(profile_likeness_distance(&eight, &one), ==, 3.0 / 4.0);
    g_assert_cmpfloat(profile_likeness_distance(&one, &three), ==,
                      1.5 / 4.0); /* 2 ... 4: halfway */
    g_assert_cmpfloat(profile_likeness_distance(&one, &other), ==, 3.0 / 4.0 + 0.5);
}

/*
 * Two known rows at distance 1 of each other have errors e and -e, so v = e^2: with s = sigma^2
 *
 *     (v + s  v/2)         (w, -w),  w = e / (v / 2 + s)
 *     (v/2  v + s)
 *
 * The first expects v w - v w / 2 = e (v / 2) / (v / 2 + s).  A row at the same place expects the same.
 */
static void
test_two_rows_by_hand(void)
{
    const ProfileLikeness rows[] = {row_of(1, 0), row_of(16, 0), row_of(1, 0)};
    const bool is_known[] = {true, true, false};
    const double e = 0.1, errors[] = {e, -e, 5.0}; /* the last is not known */
    const double s = PROFILE_CALIBRATE_SIGMA * PROFILE_CALIBRATE_SIGMA;
    const double expect = e * (e * e / 2.0) / (e * e / 2.0 + s);
    double expected[3];

    profile_likeness_expect(rows, 3, is_known, errors, expected);
    g_assert_cmpfloat_with_epsilon(expected[0], expect, 1e-12);
    g_assert_cmpfloat_with_epsilon(expected[1], -expect, 1e-12);
    g_assert_cmpfloat_with_epsilon(expected[2], expect, 1e-12);
}

/* Errors without order say nothing of a row that is far from all; none known, none expected. */
static void
test_far_rows_and_none(void)
{
    const ProfileLikeness rows[] = {row_of(1, 0), row_of(1e300, 7)};
    const bool first[] = {true, false}, none[] = {false, false};
    const double errors[] = {0.1, 0.0};
    double expected[2];

    profile_likeness_expect(rows, 2, first, errors, expected);
    g_assert_cmpfloat(expected[0], >, 0.09);
    g_assert_cmpfloat(expected[1], <, 0.001);
    g_assert_cmpfloat(expected[1], >, 0.0);
    profile_likeness_expect(rows, 2, none, errors, expected);
    g_assert_cmpfloat(expected[0], ==, 0.0);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/profiles/likeness/distances", test_distances);
    g_test_add_func("/profiles/likeness/two-rows-by-hand", test_two_rows_by_hand);
    g_test_add_func("/profiles/likeness/far-rows-and-none", test_far_rows_and_none);
    return g_test_run();
}
