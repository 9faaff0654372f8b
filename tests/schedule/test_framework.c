/* Tests of schedule/framework.h: rows of the table are whole, and what depends on the plan too. */
#include "schedule/plan.h"
#include "schedule/stack.h"

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

/* Rules name schedules and models that exist, and sets that no plan satisfies are no rules. */
static void
test_rules_are_whole(void)
{
    for (PlanFramework f = 0; f < PLAN_FRAMEWORK_N; f++) {
        const PlanFrameworkRules *rules = plan_framework(f)->rules;

        if (rules == NULL) {
            g_assert_cmpint(f, ==, PLAN_FRAMEWORK_DEGAS);
            continue;
        }
        for (size_t i = 0; rules->schedules[i] != NULL; i++)
            g_assert_nonnull(schedule_family_find(rules->schedules[i], NULL));
        g_assert_cmpuint(rules->zero & rules->zero_with_pp, !=, 0);
        g_assert_cmpuint(rules->zero & rules->zero_with_tp, !=, 0);
        g_assert_true(!rules->cp || (rules->zero & rules->zero_with_cp) != 0);
        g_assert_cmpuint(rules->recomputes & 1 << PLAN_RECOMPUTE_NONE, !=, 0);
        g_assert_cmpuint(rules->grad_dtypes & UINT32_C(1) << plan_framework(f)->preset.grad_dtype,
                         !=, 0);
        /* Only PyTorch's compiler overlaps tensor parallelism by rewriting the layer. */
        g_assert_true(rules->compiles_overlap_tp ==
                      (f == PLAN_FRAMEWORK_TORCHTITAN || f == PLAN_FRAMEWORK_FSDP));
    }
    /* PyTorch runs just the schedules that it has a class for. */
    const char *const *all = plan_framework(PLAN_FRAMEWORK_TORCHTITAN)->rules->schedules;
    for (size_t i = 0; schedule_families()[i] != NULL; i++)
        g_assert_true(g_strv_contains(all, schedule_families()[i]->name) ==
                      (schedule_families()[i]->torch_class != NULL));
}

static void
test_conventions(void)
{
    for (PlanFramework f = 0; f < PLAN_FRAMEWORK_N; f++) {
        g_assert_cmpint(plan_conventions(f).framework, ==, f);
        g_assert_true(plan_conventions(f).optimizer_step);
    }
    const PlanConventions tera = plan_conventions(PLAN_FRAMEWORK_TERAPIPE);
    g_assert_cmpint(tera.attention, ==, PLAN_ATTENTION_TORCH);
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

/* Megatron pads everywhere, degas where it pays, FSDP never. */
static void
test_padding_of_the_vocabulary(void)
{
    static const PlanFramework frameworks[] = {PLAN_FRAMEWORK_MEGATRON_LM, PLAN_FRAMEWORK_DEGAS,
                                               PLAN_FRAMEWORK_FSDP};

    for (int i = 0; i < 3; i++) {
        g_assert_true(plan_framework_pads_vocab(frameworks[i], true) == (i < 2));
        g_assert_true(plan_framework_pads_vocab(frameworks[i], false) == (i < 1));
    }
}

/* MXFP8 reads 2 bytes and writes two numbers and two scales for each 32; nvfp4 reads three times and
 * writes two halves and two scales for each 16, whatever shares a scale of fp8.  By rows: each way 5,
 * the transposing one at 1.4 of 2.2 TB/s; backward results are read and written to be scaled. */
static void
test_quantise_bytes(void)
{
    static const struct {
        PlanQuantise quantise;
        Dtype dtype;
        double bytes, transposed, rescaled;
    } cases[] = {
        {PLAN_QUANTISE_USUAL, DTYPE_FP8, 0.0, 0.0, 0.0},
        {PLAN_QUANTISE_TENSOR, DTYPE_FP8, 2.0 + 2.0 + 1.0, 1.0 + 1.0, 0.0},
        {PLAN_QUANTISE_DELAYED, DTYPE_FP8, 2.0 + 1.0, 1.0, 0.0},
        {PLAN_QUANTISE_BLOCK, DTYPE_FP8, 2.0 + 2.0 * (1.0 + 1.0 / 32.0), 0.0, 0.0},
        {PLAN_QUANTISE_ROW, DTYPE_FP8, 5.0 + 5.0 * 2.2 / 1.4, 0.0, 2.0 + 2.0},
        {PLAN_QUANTISE_ROW, DTYPE_NVFP4, 3.0 * 2.0 + 2.0 * (0.5 + 1.0 / 16.0), 0.0, 0.0},
        {PLAN_QUANTISE_ROW, DTYPE_BF16, 0.0, 0.0, 0.0},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const PlanQuantiseBytes found = plan_quantise_bytes(cases[i].quantise, cases[i].dtype);
        g_assert_cmpfloat_with_epsilon(found.bytes, cases[i].bytes, 0.05);
        g_assert_cmpfloat(found.transposed, ==, cases[i].transposed);
        g_assert_cmpfloat(found.rescaled, ==, cases[i].rescaled);
    }
}

static void
test_months(void)
{
    static const struct {
        const char *text;
        int32_t month; /* 0: none */
    } rows[] = {
        {"2025-02", 2025 * 12 + 1},
        {"2021", 2021 * 12 + 11},
        {"2025-13", 0},
        {"2025-00", 0},
        {"0000-01", 0},
        {"2025-2", 0},
        {"2025/02", 0},
        {"25-02", 0},
        {"", 0},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        int32_t stack = 0;

        g_assert_true(plan_stack_read(rows[i].text, &stack) == (rows[i].month > 0));
        g_assert_cmpint(stack, ==, rows[i].month);
    }
    char text[PLAN_STACK_TEXT];
    plan_stack_text(2025 * 12 + 1, text);
    g_assert_cmpstr(text, ==, "2025-02");
    plan_stack_text(0, text);
    g_assert_cmpstr(text, ==, "");
    /* Every row's own date can be read; frameworks without one lack nothing. */
    for (PlanFramework f = 0; f < PLAN_FRAMEWORK_N; f++) {
        const PlanConventions c = plan_conventions(f);

        g_assert_true((plan_stack(&c) > 0) == (plan_framework(f)->stack != NULL));
        if (plan_framework(f)->releases == PLAN_RELEASES_UNKNOWN)
            g_assert_null(plan_stack_lacks(&c, PLAN_FEATURE_ZERO3));
    }
    /* torchtitan compiles its loss where modules are compiled, since 2025-04. */
    PlanConventions c = plan_conventions(PLAN_FRAMEWORK_TORCHTITAN);
    g_assert_false(plan_stack_compiles_loss(&c));
    c.kernels = PLAN_KERNELS_FUSED;
    g_assert_true(plan_stack_compiles_loss(&c));
    c.stack = 2025 * 12 + 2;
    g_assert_false(plan_stack_compiles_loss(&c));
    c = plan_conventions(PLAN_FRAMEWORK_MEGATRON_CORE);
    g_assert_false(plan_stack_compiles_loss(&c));
}

/* A release has one date, whatever came with it. */
static void
test_releases_have_one_date(void)
{
    for (PlanFramework f = 0; f < PLAN_FRAMEWORK_N; f++) {
        PlanConventions oldest = plan_conventions(f);
        g_autoptr(GHashTable) dates = g_hash_table_new(g_str_hash, g_str_equal);

        oldest.stack = 1;
        for (PlanFeature feature = 0; feature < PLAN_FEATURE_N; feature++) {
            const PlanFeatureInfo *info = plan_stack_lacks(&oldest, feature);
            if (info == NULL)
                continue;
            const gpointer since = GINT_TO_POINTER(info->since);
            const gpointer known = g_hash_table_lookup(dates, info->release);
            if (known != NULL && known != since)
                g_test_fail_printf("%s has two dates", info->release);
            g_hash_table_insert(dates, (gpointer)info->release, since);
        }
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/schedule/framework/rows-are-whole", test_rows_are_whole);
    g_test_add_func("/schedule/framework/rules-are-whole", test_rules_are_whole);
    g_test_add_func("/schedule/framework/conventions", test_conventions);
    g_test_add_func("/schedule/framework/overlap-of-messages", test_overlap_of_messages);
    g_test_add_func("/schedule/framework/fused-accumulation", test_fused_accumulation);
    g_test_add_func("/schedule/framework/padding-of-the-vocabulary",
                    test_padding_of_the_vocabulary);
    g_test_add_func("/schedule/framework/quantise-bytes", test_quantise_bytes);
    g_test_add_func("/schedule/framework/months", test_months);
    g_test_add_func("/schedule/framework/releases-have-one-date", test_releases_have_one_date);
    return g_test_run();
}
