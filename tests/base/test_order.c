/* Tests of base/order.h and base/saturate.h. */
#include "base/order.h"

#include <stdlib.h>
#include <string.h>

#include "base/saturate.h"

static void
test_sorts_ascending(void)
{
    int64_t numbers[] = {3, INT64_MIN, INT64_MAX, -1, 3};
    double reals[] = {2.5, -1e300, 0.0, 2.5};
    const char *names[] = {"b", "", "ab", "a"};

    qsort(numbers, G_N_ELEMENTS(numbers), sizeof *numbers, order_int64s);
    for (size_t i = 1; i < G_N_ELEMENTS(numbers); i++)
        g_assert_cmpint(numbers[i - 1], <=, numbers[i]);
    qsort(reals, G_N_ELEMENTS(reals), sizeof *reals, order_doubles);
    for (size_t i = 1; i < G_N_ELEMENTS(reals); i++)
        g_assert_cmpfloat(reals[i - 1], <=, reals[i]);
    qsort(names, G_N_ELEMENTS(names), sizeof *names, order_names);
    for (size_t i = 1; i < G_N_ELEMENTS(names); i++)
        g_assert_cmpint(strcmp(names[i - 1], names[i]), <, 0);
}

static void
test_stops_at_the_bound(void)
{
    const int64_t most = INT64_MAX / 8;
    static const struct {
        int64_t a, b, sum, product;
    } cases[] = {
        {2, 3, 5, 6},
        {INT64_MAX / 8, 1, INT64_MAX / 8, INT64_MAX / 8},
        {INT64_MAX, INT64_MAX, INT64_MAX / 8, INT64_MAX / 8},
        {INT64_MAX, 0, INT64_MAX / 8, 0},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_assert_cmpint(saturate_sum(cases[i].a, cases[i].b, most), ==, cases[i].sum);
        g_assert_cmpint(saturate_product(cases[i].a, cases[i].b, most), ==, cases[i].product);
    }
    /* A bound of INT64_MAX itself is none but for overflow. */
    g_assert_cmpint(saturate_sum(INT64_MAX, 1, INT64_MAX), ==, INT64_MAX);
    g_assert_cmpint(saturate_product(INT64_MAX, 2, INT64_MAX), ==, INT64_MAX);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/base/order/sorts-ascending", test_sorts_ascending);
    g_test_add_func("/base/saturate/stops-at-the-bound", test_stops_at_the_bound);
    return g_test_run();
}
