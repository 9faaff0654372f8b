/* Tests of base/host_steal.h: what a text says, what it does not, and the share of a time. */
#include "base/host_steal.h"

#include <math.h>

static const bool second_only[] = {false, true};

static void
test_stolen_time_is_added_up(void)
{
    static const struct {
        const char *text;
        const bool *counts;
        size_t n_counts;
        double stolen_s;
        int64_t n_cores;
    } cases[] = {
        /* The sum of all cores does not count beside them, nor does what follows them. */
        {"cpu  9 9 9 9 9 9 9 900 9 9\ncpu0 1 2 3 4 5 6 7 150 0 0\ncpu1 1 2 3 4 5 6 7 50 0 0\n"
         "intr 8 8 8 8 8 8 8 8 8\nctxt 1\n",
         NULL, 0, 2.0, 2},
        {"cpu0 1 2 3 4 5 6 7 150 0 0\ncpu1 1 2 3 4 5 6 7 50 0 0\n", second_only, 2, 0.5, 1},
        /* A core beyond those that are known does not count. */
        {"cpu1 0 0 0 0 0 0 0 50\ncpu2 0 0 0 0 0 0 0 900\ncpu18446744073709551616 0 0 0 0 0 0 0 9\n",
         second_only, 2, 0.5, 1},
        /* Cores may be missing; the file may end in a line. */
        {"cpu0 0 0 0 0 0 0 0 1\ncpu12 0 0 0 0 0 0 0 2", NULL, 0, 0.03, 2},
        {"cpu0\t1  2 3 4 5 6 7 100\n", NULL, 0, 1.0, 1},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        int64_t n_cores = -1;
        const double stolen_s =
            host_steal_parse_s(cases[i].text, cases[i].counts, cases[i].n_counts, 100.0, &n_cores);
        g_assert_cmpfloat(stolen_s, ==, cases[i].stolen_s);
        g_assert_cmpint(n_cores, ==, cases[i].n_cores);
    }
}

/* NaN, not a number of another line, of another column or of nothing. */
static void
test_what_is_not_said_is_not_known(void)
{
    static const char *const texts[] = {
        "",
        "\n\n",
        "cpu",
        "cpu  1 2 3 4 5 6 7 8\n", /* no core of its own */
        "xcpu0 1 2 3 4 5 6 7 8\n",
        "cpu0",
        "cpu0 1 2 3 4\n",               /* before Linux 2.6.11 */
        "cpu0 1 2 3 4 5 6 7\n8 9 10\n", /* the eighth is in the next line */
        "cpu0 1 2 3 4 5 6 7 \n8",       /* likewise */
        "cpu0 1 2 3 4 5 6 7 -8\n",      /* nobody gives time back */
        "cpu0 1 2 3 4 5 6 7 8.5\n",     /* no ticks */
        "cpu0 1 2 3 4 5 6 7 nan\n",
        "cpu0x 1 2 3 4 5 6 7 8\n",
        "cpu0 1 2 3 4 5 6 7 8\ncpu1 1 2\n", /* one of them does not say */
        "cpu0,1,2,3,4,5,6,7,8\n",
    };

    for (size_t i = 0; i < G_N_ELEMENTS(texts); i++) {
        int64_t n_cores;
        g_assert_true(isnan(host_steal_parse_s(texts[i], NULL, 0, 100.0, &n_cores)));
    }
}

static void
test_numbers_beyond_all_bounds_stay_finite(void)
{
    int64_t n_cores;
    const double stolen_s = host_steal_parse_s(
        "cpu0 1 2 3 4 5 6 7 99999999999999999999999999999999999999\n", NULL, 0, 100.0, &n_cores);

    g_assert_cmpfloat(stolen_s, ==, (double)UINT64_MAX / 100.0);
}

static void
test_share_of_the_time_between(void)
{
    const HostSteal begin = {.stolen_s = 10.0, .n_cores = 2, .at_us = 5000000};
    static const struct {
        HostSteal end;
        double fraction; /* NaN: not known */
    } cases[] = {
        {{11.0, 2, 15000000}, 0.05}, /* a second of two cores' ten */
        {{10.0, 2, 15000000}, 0.0},
        {{30.0, 2, 15000000}, 1.0},
        {{99.0, 2, 15000000}, 1.0}, /* ticks are rounded */
        {{9.0, 2, 15000000}, 0.0},  /* Linux may count back when the machine moves */
        {{(double)NAN, 2, 15000000}, (double)NAN},
        {{11.0, 1, 15000000}, (double)NAN}, /* of other cores */
        {{10.01, 2, 5500000}, 0.01},        /* the least that there is a share of */
        {{10.01, 2, 5499000}, (double)NAN},
        {{11.0, 2, 5000000}, (double)NAN},
        {{11.0, 2, 4000000}, (double)NAN},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const double fraction = host_steal_fraction(&begin, &cases[i].end);
        if (isnan(cases[i].fraction))
            g_assert_true(isnan(fraction));
        else
            g_assert_cmpfloat_with_epsilon(fraction, cases[i].fraction, 1e-12);
    }
    const HostSteal unknown = {.stolen_s = (double)NAN, .n_cores = 2};
    g_assert_true(isnan(host_steal_fraction(&unknown, &begin)));
}

/* This system: it says something of as many cores as the thread may use, or nothing. */
static void
test_this_system(void)
{
    const HostSteal begin = host_steal_now();
    HostSteal end = host_steal_now();

    g_assert_cmpint(end.at_us, >=, begin.at_us);
    g_assert_cmpint(end.n_cores, ==, begin.n_cores);
    if (isnan(begin.stolen_s)) {
        g_test_skip("this system does not say what its host takes");
        return;
    }
    g_assert_cmpfloat(begin.stolen_s, >=, 0.0);
    g_assert_cmpint(begin.n_cores, >=, 1);
    g_assert_cmpint(begin.n_cores, <=, g_get_num_processors());
    g_assert_cmpfloat(end.stolen_s, >=, begin.stolen_s);
    end.at_us += (int64_t)(HOST_STEAL_LEAST_S * 1e6);
    const double fraction = host_steal_fraction(&begin, &end);
    g_assert_true(fraction >= 0.0 && fraction <= 1.0);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/base/host-steal/stolen-time-is-added-up", test_stolen_time_is_added_up);
    g_test_add_func("/base/host-steal/what-is-not-said-is-not-known",
                    test_what_is_not_said_is_not_known);
    g_test_add_func("/base/host-steal/numbers-beyond-all-bounds-stay-finite",
                    test_numbers_beyond_all_bounds_stay_finite);
    g_test_add_func("/base/host-steal/share-of-the-time-between", test_share_of_the_time_between);
    g_test_add_func("/base/host-steal/this-system", test_this_system);
    return g_test_run();
}
