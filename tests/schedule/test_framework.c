/* Tests of schedule/framework.h: rows of the table are whole, and what depends on the plan too. */
#include "schedule/framework.h"

static void
test_rows_are_whole(void)
{
    const char *const *names = plan_framework_names();

    for (PlanFramework f = 0; f < PLAN_FRAMEWORK_N; f++) {
        const PlanFrameworkFacts *facts = plan_framework(f);

        g_assert_nonnull(facts->name);
        g_assert_cmpstr(names[f], ==, facts->name);
        for (PlanFramework other = 0; other < f; other++)
            g_assert_cmpstr(facts->name, !=, names[other]);
        /* What is fetched ahead must fit what may be gathered. */
        g_assert_cmpint(facts->prefetch_elements, <=, facts->live_elements);
    }
    g_assert_null(names[PLAN_FRAMEWORK_N]);
}

static void
test_conventions(void)
{
    for (PlanFramework f = 0; f < PLAN_FRAMEWORK_N; f++) {
        g_assert_cmpint(plan_conventions(f).framework, ==, f);
        g_assert_true(plan_conventions(f).optimizer_step);
    }
    const PlanConventions tera = plan_conventions(PLAN_FRAMEWORK_TERAPIPE);
    g_assert_cmpint(tera.attention, ==, PLAN_ATTENTION_UNFUSED);
    g_assert_cmpint(tera.grad_dtype, ==, DTYPE_FP16);
    g_assert_false(tera.overlap_dp || tera.overlap_pp || tera.dropout || tera.scatter_gather_p2p);
    g_assert_true(tera.broadcast_p2p);
}

static void
test_overlap_of_messages(void)
{
    /* Megatron overlaps its messages in the interleaved schedule only. */
    g_assert_true(plan_framework_overlaps_pp(PLAN_FRAMEWORK_MEGATRON_LM, "interleaved", 2));
    g_assert_false(plan_framework_overlaps_pp(PLAN_FRAMEWORK_MEGATRON_LM, "1f1b", 1));
    g_assert_true(plan_framework_overlaps_pp(PLAN_FRAMEWORK_DEGAS, "1f1b", 1));
    g_assert_false(plan_framework_overlaps_pp(PLAN_FRAMEWORK_TERAPIPE, "interleaved", 2));
}

static void
test_fused_accumulation(void)
{
    PlanConventions lm = plan_conventions(PLAN_FRAMEWORK_MEGATRON_LM);
    const PlanConventions core = plan_conventions(PLAN_FRAMEWORK_MEGATRON_CORE);
    const PlanConventions fsdp = plan_conventions(PLAN_FRAMEWORK_FSDP);

    g_assert_true(plan_framework_fuses_accumulation(&core, false, false));
    g_assert_false(plan_framework_fuses_accumulation(&fsdp, true, true));
    /* Megatron-LM: any of the three that came with the release of 2022. */
    g_assert_false(plan_framework_fuses_accumulation(&lm, false, false));
    g_assert_true(plan_framework_fuses_accumulation(&lm, true, false));
    g_assert_true(plan_framework_fuses_accumulation(&lm, false, true));
    lm.overlap_tp = true;
    g_assert_true(plan_framework_fuses_accumulation(&lm, false, false));
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/schedule/framework/rows-are-whole", test_rows_are_whole);
    g_test_add_func("/schedule/framework/conventions", test_conventions);
    g_test_add_func("/schedule/framework/overlap-of-messages", test_overlap_of_messages);
    g_test_add_func("/schedule/framework/fused-accumulation", test_fused_accumulation);
    return g_test_run();
}
