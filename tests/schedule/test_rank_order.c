/* Tests of schedule/rank_order.h: names, coordinates there and back, stages, published mappings. */
#include "schedule/rank_order.h"

#include <string.h>

static const char *const dim_names[PLAN_DIM_N] = {"tp", "cp", "dp", "pp"};

/* Every name is another permutation, and says what the dimensions are. */
static void
test_names_are_permutations(void)
{
    for (int order = 0; order < PLAN_RANK_ORDER_N; order++) {
        PlanDim dims[PLAN_DIM_N];
        unsigned seen = 0;

        plan_rank_order_dims(order, dims);
        g_autofree char *name =
            g_strdup_printf("%s-%s-%s-%s", dim_names[dims[0]], dim_names[dims[1]],
                            dim_names[dims[2]], dim_names[dims[3]]);
        g_assert_cmpstr(plan_rank_order_names[order], ==, name);
        for (int i = 0; i < PLAN_DIM_N; i++)
            seen |= 1u << dims[i];
        g_assert_cmpuint(seen, ==, 15);
        for (int other = 0; other < order; other++)
            g_assert_cmpstr(plan_rank_order_names[other], !=, name);
    }
    g_assert_null(plan_rank_order_names[PLAN_RANK_ORDER_N]);
    g_assert_cmpstr(plan_rank_order_names[PLAN_RANK_ORDER_DEFAULT], ==, "tp-cp-dp-pp");
    g_assert_cmpstr(plan_rank_order_names[PLAN_RANK_ORDER_PP_BEFORE_DP], ==, "tp-cp-pp-dp");
}

/* Megatron-Core's groups of 16 ranks at tp 2, pp 4: its default has the dp group 0, 2 and the pp
 * group 0, 4, 8, 12 (docstring of initialize_model_parallel()); with --use-tp-pp-dp-mapping pp is
 * next after tp. */
static void
test_published_groups(void)
{
    static const struct {
        int64_t order, dp[2], pp[4];
    } cases[] = {
        {PLAN_RANK_ORDER_DEFAULT, {0, 2}, {0, 4, 8, 12}},
        {PLAN_RANK_ORDER_PP_BEFORE_DP, {0, 8}, {0, 2, 4, 6}},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const PlanDegrees d = {2, 2, 4, 1, 1, 1, cases[i].order};
        for (int64_t k = 0; k < 4; k++) {
            const PlanCoordinates pp = {{[PLAN_DIM_PP] = k}}, dp = {{[PLAN_DIM_DP] = k}};
            g_assert_cmpint(plan_device_at(&d, &pp), ==, cases[i].pp[k]);
            if (k < 2)
                g_assert_cmpint(plan_device_at(&d, &dp), ==, cases[i].dp[k]);
        }
    }
}

/* Devices and coordinates are one to one; so are devices and (stage, index), in ascending order;
 * the first of equal orders places all alike. */
static void
test_coordinates_there_and_back(void)
{
    for (int64_t order = 0; order < PLAN_RANK_ORDER_N; order++)
        for (int64_t dp = 1; dp <= 3; dp++)
            for (int64_t cp = 1; cp <= 2; cp++) {
                const PlanDegrees d = {dp, 2, 3, 1, cp, 1, order};
                PlanDegrees plain = d;
                const int64_t n = plan_stage_devices(&d);
                plain.rank_order = plan_rank_order_plain(&d);
                g_assert_cmpint(plan_rank_order_is_default(&d), ==,
                                plain.rank_order == PLAN_RANK_ORDER_DEFAULT);
                g_assert_cmpint(plain.rank_order, <=, order);
                for (int64_t device = 0; device < 3 * n; device++) {
                    const PlanCoordinates c = plan_coordinates_of(&d, device);
                    const PlanCoordinates same = plan_coordinates_of(&plain, device);
                    const int64_t index = plan_stage_index(&d, device);
                    g_assert_cmpint(plan_device_at(&d, &c), ==, device);
                    g_assert_true(memcmp(&c, &same, sizeof c) == 0);
                    g_assert_cmpint(plan_stage_device(&d, c.at[PLAN_DIM_PP], index), ==, device);
                    if (index > 0)
                        g_assert_cmpint(plan_stage_device(&d, c.at[PLAN_DIM_PP], index - 1), <,
                                        device);
                }
            }
}

/* Experts need whole groups: 3 ranks before pp hold neither 2 nor half of 2. */
static void
test_experts_need_whole_groups(void)
{
    static const struct {
        PlanDegrees degrees;
        const char *expect; /* NULL: fine */
    } cases[] = {
        {{2, 2, 2, 1, 1, 2, 1}, NULL},
        {{4, 1, 2, 1, 1, 4, 1}, NULL}, /* one rank before pp, groups of four */
        {{2, 3, 2, 1, 1, 2, 1}, "groups of ep * expert_tp = 2 ranks"},
        {{2, 2, 2, 1, 1, 2, 12}, "tp must come before cp"}, /* dp first */
        {{2, 2, 2, 1, 1, 1, 12}, NULL},
        {{1, 2, 2, 1, 1, 2, 12}, NULL}, /* dp 1: as the default */
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        const PlanConventions conventions = plan_conventions(PLAN_FRAMEWORK_DEGAS);
        const bool ok = plan_rank_order_check(&cases[i].degrees, &conventions, &error);
        g_assert_cmpint(ok, ==, cases[i].expect == NULL);
        if (!ok) {
            g_assert_error(error, PLAN_ERROR, PLAN_ERROR_INVALID);
            g_assert_nonnull(strstr(error->message, cases[i].expect));
        }
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/schedule/rank-order/names-are-permutations", test_names_are_permutations);
    g_test_add_func("/schedule/rank-order/published-groups", test_published_groups);
    g_test_add_func("/schedule/rank-order/coordinates-there-and-back",
                    test_coordinates_there_and_back);
    g_test_add_func("/schedule/rank-order/experts-need-whole-groups",
                    test_experts_need_whole_groups);
    return g_test_run();
}
