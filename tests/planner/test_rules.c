/* Tests of planner/rules/rules.h: what the stack of a date lacks; other rules are tested where plans are
 * searched (test_search_space.c) and exported. */
#include "planner/rules/rules.h"

#include "models/lora.h"

#include <string.h>

#include "planner/rules/layer_flags.h"

/* A plan of megatron-core, one year before @since and in its month. */
static PlanRuleCase
case_of(const ModelArch *arch, const PlanConventions *conventions)
{
    return (PlanRuleCase){
        .rules = plan_framework(conventions->framework)->rules,
        .arch = arch,
        .conventions = conventions,
        .seq_len = 2048,
        .dtype = DTYPE_BF16,
        .n_slices = 1,
        .degrees = {.dp = 2, .tp = 1, .pp = 1, .vpp = 1, .cp = 1, .ep = 1},
        .schedule = "1f1b",
        .family = schedule_family_find("1f1b", NULL),
        .n_micro_batches = 8,
        .least_layers = 4,
        .most_layers = 4,
        .zero_stage = 0,
        .recompute = PLAN_RECOMPUTE_NONE,
    };
}

/* The dates of CHANGELOG.md and PyPI: refused in the month before, allowed in that of the release. */
static void
test_dates(void)
{
    static const struct {
        const char *since, *before, *text;
        PlanAspect aspect;
        int cp, zero;
        Dtype dtype;
    } rows[] = {
        {"2023-12", "2023-11", "context parallelism: Megatron Core 0.4.0, 2023-12",
         PLAN_ASPECT_DEGREES, 2, 0, DTYPE_BF16},
        {"2025-05", "2025-04", "FSDP (ZeRO 2 and 3): Megatron Core 0.12.0, 2025-05",
         PLAN_ASPECT_SAVERS, 1, 3, DTYPE_BF16},
        {"2022-05", "2022-04", "a distributed optimizer (ZeRO 1): Megatron-LM 3.0, 2022-05",
         PLAN_ASPECT_SAVERS, 1, 1, DTYPE_BF16},
        {"2023-05", "2023-04", "fp8: Megatron Core 0.1.0, 2023-05", PLAN_ASPECT_JOB, 1, 0,
         DTYPE_FP8},
    };
    g_autoptr(ModelArch) arch = model_arch_load("gpt3-13b", NULL, NULL);
    PlanConventions conventions = plan_conventions(PLAN_FRAMEWORK_MEGATRON_CORE);

    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        PlanRuleCase c = case_of(arch, &conventions);
        PlanBreach breach = {0};

        c.degrees.cp = rows[i].cp;
        c.zero_stage = rows[i].zero;
        c.dtype = rows[i].dtype;
        g_assert_true(plan_stack_read(rows[i].since, &conventions.stack));
        g_assert_true(plan_rules_keep(&c, rows[i].aspect, NULL));
        g_assert_true(plan_stack_read(rows[i].before, &conventions.stack));
        g_assert_false(plan_rules_keep(&c, rows[i].aspect, &breach));
        g_assert_cmpstr(breach.rule, ==, "stack");
        g_assert_nonnull(strstr(breach.text, rows[i].before));
        g_assert_nonnull(strstr(breach.text, rows[i].text));
        plan_breach_clear(&breach);
    }
    /* The row of megatron-core is of 2026. */
    conventions.stack = 0;
    PlanRuleCase c = case_of(arch, &conventions);
    c.zero_stage = 3;
    g_assert_true(plan_rules_keep(&c, PLAN_ASPECT_SAVERS, NULL));
    /* That of megatron-lm is of 2022, and lacks context parallelism unless told otherwise. */
    conventions = plan_conventions(PLAN_FRAMEWORK_MEGATRON_LM);
    c.zero_stage = 1;
    g_assert_true(plan_rules_keep(&c, PLAN_ASPECT_SAVERS, NULL));
    c.degrees.cp = 2;
    g_assert_false(plan_rules_keep(&c, PLAN_ASPECT_DEGREES, NULL));
}

/* Each model that a framework has is a built-in one, with as many MTP modules as one likes, and runs; cut short it
 * is another one. */
static void
test_models(void)
{
    const PlanFramework all[] = {PLAN_FRAMEWORK_MEGATRON_BRIDGE, PLAN_FRAMEWORK_TORCHTITAN};

    for (size_t i = 0; i < G_N_ELEMENTS(all); i++) {
        const PlanConventions conventions = plan_conventions(all[i]);
        const PlanFrameworkRules *rules = plan_framework(all[i])->rules;
        for (const PlanFrameworkModel *row = rules->models; row->model != NULL; row++) {
            g_autoptr(ModelArch) arch = model_arch_load(row->model, NULL, NULL);
            g_assert_nonnull(arch);
            const PlanRuleCase c = case_of(arch, &conventions);
            g_assert_true(plan_rules_keep(&c, PLAN_ASPECT_JOB, NULL));
            g_assert_true(plan_rules_model(rules, arch) == row);
            arch->mtp.n = 1;
            g_assert_true((plan_rules_model(rules, arch) == row) == rules->mtp);
            arch->mtp.n = 0;
            arch->lora = (ModelLora){8, UINT32_C(1) << MODEL_LORA_PROJ};
            g_assert_true(plan_rules_model(rules, arch) == row);
            g_assert_true(plan_rules_keep(&c, PLAN_ASPECT_JOB, NULL) == rules->adapters);
            arch->lora.rank = 0;
            arch->n_layers--;
            g_assert_null(plan_rules_model(rules, arch));
        }
    }
    g_assert_null(plan_framework(PLAN_FRAMEWORK_MEGATRON_CORE)->rules->models);
}

/* The months in which pull and merge requests 3470, 2176, 4247 and 2276 came to Megatron-LM's main branch. */
static void
test_dates_of_the_main_branch(void)
{
    static const struct {
        const char *model, *since, *before, *text;
        PlanAspect aspect;
        int cp;
        bool overlap_ep;
        PlanDispatcher dispatcher;
        PlanGraphs graphs;
    } rows[] = {
        {"mixtral-8x7b", "2025-08", "2025-07", "request 3470", PLAN_ASPECT_JOB, 1, true,
         PLAN_DISPATCHER_ALLTOALL, PLAN_GRAPHS_NONE},
        {"mixtral-8x7b", "2025-11", "2025-10", "request 2176", PLAN_ASPECT_JOB, 1, false,
         PLAN_DISPATCHER_HYBRIDEP, PLAN_GRAPHS_NONE},
        {"mixtral-8x7b", "2026-05", "2026-04", "request 4247", PLAN_ASPECT_JOB, 1, false,
         PLAN_DISPATCHER_ALLTOALL, PLAN_GRAPHS_ITERATION},
        {"nemotron-h-56b", "2025-06", "2025-05", "request 2276", PLAN_ASPECT_DEGREES, 2, false,
         PLAN_DISPATCHER_ALLTOALL, PLAN_GRAPHS_NONE},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autoptr(ModelArch) arch = model_arch_load(rows[i].model, NULL, NULL);
        g_autoptr(ModelArch) dense = model_arch_load("gpt3-13b", NULL, NULL);
        PlanConventions conventions = plan_conventions(PLAN_FRAMEWORK_MEGATRON_CORE);
        PlanRuleCase c = case_of(arch, &conventions);
        g_auto(PlanBreach) breach = {0};

        c.model_runs = true;
        c.degrees.cp = rows[i].cp;
        conventions.overlap_ep = rows[i].overlap_ep;
        conventions.dispatcher = rows[i].dispatcher;
        conventions.cuda_graphs = rows[i].graphs;
        g_assert_true(plan_stack_read(rows[i].since, &conventions.stack));
        g_assert_true(plan_rules_keep(&c, rows[i].aspect, NULL));
        g_assert_true(plan_stack_read(rows[i].before, &conventions.stack));
        g_assert_false(plan_rules_keep(&c, rows[i].aspect, &breach));
        g_assert_nonnull(strstr(breach.text, rows[i].text));
        /* Layers without experts or states do not ask for it; a dispatcher is asked for by name. */
        c.arch = dense;
        g_assert_true(plan_rules_keep(&c, rows[i].aspect, NULL) ==
                      (rows[i].dispatcher == PLAN_DISPATCHER_ALLTOALL));
    }
}

/* The months in which flags for layers came to Megatron-LM's main branch; a model that is known to run has them. */
static void
test_dates_of_layers(void)
{
    static const struct {
        const char *model, *since, *before, *text;
    } rows[] = {
        {"deepseek-v2", "2024-12", "2024-11", "merge request 2230"},
        {"nemotron-h-56b", "2025-04", "2025-03", "merge request 2601"},
        {"gpt-oss-20b", "2025-09", "2025-08", "merge request 3855"},
        {"nemotron3-super", "2025-12", "2025-11", "pull request 2296"},
        {"qwen3-next-80b", "2026-01", "2025-12", "pull requests 2751 and 2752"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autoptr(ModelArch) arch = model_arch_load(rows[i].model, NULL, NULL);
        PlanConventions conventions = plan_conventions(PLAN_FRAMEWORK_MEGATRON_CORE);
        PlanRuleCase c = case_of(arch, &conventions);
        g_auto(PlanBreach) breach = {0};

        g_assert_true(plan_stack_read(rows[i].since, &conventions.stack));
        g_assert_true(plan_rules_keep(&c, PLAN_ASPECT_JOB, NULL));
        g_assert_true(plan_stack_read(rows[i].before, &conventions.stack));
        g_assert_false(plan_rules_keep(&c, PLAN_ASPECT_JOB, &breach));
        g_assert_cmpstr(breach.rule, ==, "stack");
        g_assert_nonnull(strstr(breach.text, rows[i].text));
        c.model_runs = true;
        g_assert_true(plan_rules_keep(&c, PLAN_ASPECT_JOB, NULL));
    }
}

/* What no flag says is refused by name, and who has the model all the same is told. */
static void
test_layers_without_flags(void)
{
    static const struct {
        const char *model, *text, *change;
    } rows[] = {
        {"gemma3-27b", "no flag for scaled embeddings or logits; megatron-bridge has the model",
         "--framework megatron-bridge"},
        {"minimax-m2", "no flag for norms of queries and keys but by head; megatron-bridge",
         "--framework megatron-bridge"},
        {"llama4-scout", "no flag for chunked attention", NULL},
        {"deepseek-v3.2", "no flag for an indexer of sparse attention", NULL},
        {"olmo3-32b", "no flag for norms behind attention and MLP", NULL},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autoptr(ModelArch) arch = model_arch_load(rows[i].model, NULL, NULL);
        PlanConventions conventions = plan_conventions(PLAN_FRAMEWORK_MEGATRON_CORE);
        PlanRuleCase c = case_of(arch, &conventions);
        g_auto(PlanBreach) breach = {0};

        g_assert_false(plan_rules_keep(&c, PLAN_ASPECT_JOB, &breach));
        g_assert_cmpstr(breach.rule, ==, "model");
        g_assert_nonnull(strstr(breach.text, rows[i].text));
        g_assert_cmpstr(breach.change, ==, rows[i].change);
    }
}

/* One thing of a model that has flags is changed to one that has none: @change of gpt-oss-20b or nemotron-h-56b. */
static void
test_one_thing_without_a_flag(void)
{
    enum {
        WINDOW,
        SOME_BIAS,
        CHUNK,
        BASE,
        POSITIONS,
        CONV,
        SCAN,
        MLA,
        N
    };
    static const char *const texts[N] = {
        [WINDOW] = "windows of several sizes",
        [SOME_BIAS] = "biases but in all matrices, in none or in QKV alone",
        [CHUNK] = "chunked attention",
        [BASE] = "layers that differ in this: rope_base is 500, not 150000",
        [POSITIONS] = "positions that are added to scores",
        [CONV] = "a convolution before Mamba of a length of its own",
        [SCAN] = "a scan whose kernel takes other chunks",
        [MLA] = "these halves of layers",
    };

    for (int i = 0; i < N; i++) {
        const bool is_hybrid = i == CONV || i == SCAN || i == MLA;
        g_autoptr(ModelArch) arch =
            model_arch_load(is_hybrid ? "nemotron-h-56b" : "gpt-oss-20b", NULL, NULL);
        PlanLayerFlags flags;

        g_assert_null(plan_layer_flags(arch, &flags));
        g_assert_true(flags.is_hybrid == is_hybrid);
        ModelArch *first = &arch->kinds[0], *second = &arch->kinds[1];
        switch (i) {
        case WINDOW:
            second->window = 256;
            break;
        case SOME_BIAS:
            second->proj_bias = first->proj_bias = false;
            break;
        case CHUNK:
            second->chunk = 128;
            break;
        case BASE:
            second->rope_base = 500;
            break;
        case POSITIONS:
            second->positions = MODEL_POSITIONS_ALIBI;
            break;
        case CONV:
            first->state.conv = 3;
            break;
        case SCAN:
            first->state.chunk = 256;
            break;
        default:
            arch->kinds[2].mla.kv_lora_rank = 512;
            break;
        }
        g_autofree char *text = plan_layer_flags(arch, &flags);
        g_assert_cmpstr(text, ==, texts[i]);
    }
}

/* Before 0.10.0 experts were split by the tp of everything else. */
static void
test_expert_tp(void)
{
    const PlanDegrees degrees = {.dp = 8, .tp = 4, .pp = 1, .vpp = 1, .cp = 1, .ep = 2};
    PlanConventions conventions = plan_conventions(PLAN_FRAMEWORK_MEGATRON_CORE);

    conventions.expert_tp = 1;
    g_assert_cmpint(plan_expert_tp(&degrees, &conventions), ==, 1);
    g_assert_true(plan_stack_read("2025-02", &conventions.stack));
    g_assert_cmpint(plan_expert_tp(&degrees, &conventions), ==, 1);
    g_assert_true(plan_stack_read("2025-01", &conventions.stack));
    g_assert_cmpint(plan_expert_tp(&degrees, &conventions), ==, 4);
    g_assert_cmpint(plan_expert_replicas(&degrees, &conventions), ==, 8 * 4 / (2 * 4));
}

/* OLMo 3 norms what attention and MLP give, for which Megatron-LM has no flag: a plan of it is refused, unless it is
 * known that the program runs the model.  No other rule is left out then. */
static void
test_a_model_that_runs(void)
{
    g_autoptr(ModelArch) arch = model_arch_load("olmo3-32b", NULL, NULL);
    const PlanConventions conventions = plan_conventions(PLAN_FRAMEWORK_MEGATRON_CORE);
    PlanRuleCase c = case_of(arch, &conventions);
    g_auto(PlanBreach) breach = {0};

    g_assert_false(plan_rules_keep(&c, PLAN_ASPECT_JOB, &breach));
    g_assert_cmpstr(breach.rule, ==, "model");
    plan_breach_clear(&breach);
    c.model_runs = true;
    g_assert_true(plan_rules_keep(&c, PLAN_ASPECT_JOB, NULL));
    c.n_slices = 2;
    g_assert_false(plan_rules_keep(&c, PLAN_ASPECT_JOB, &breach));
    g_assert_cmpstr(breach.rule, ==, "slices");
}

/* core/transformer/transformer_config.py of Megatron-LM asserts these of overlap_moe_expert_parallel_comm: with
 * a pipeline virtual stages, no full recompute, "moe" not among recomputed modules, at most one MTP module.
 * Without experts' ranks, or the overlap, none of it matters. */
static void
test_merged_passes(void)
{
    static const struct {
        const char *rule;
        PlanAspect aspect;
        int64_t pp, vpp, mtp;
        int recompute;
        uint32_t modules;
    } rows[] = {
        {NULL, PLAN_ASPECT_SCHEDULE, 1, 1, 1, PLAN_RECOMPUTE_NONE, 0},
        {NULL, PLAN_ASPECT_SCHEDULE, 4, 2, 1, PLAN_RECOMPUTE_NONE, 0},
        {"overlap-ep-with-pp", PLAN_ASPECT_SCHEDULE, 4, 1, 1, PLAN_RECOMPUTE_NONE, 0},
        {NULL, PLAN_ASPECT_DEGREES, 1, 1, 1, PLAN_RECOMPUTE_NONE, 0},
        {"overlap-ep-with-mtp", PLAN_ASPECT_DEGREES, 1, 1, 2, PLAN_RECOMPUTE_NONE, 0},
        {"overlap-ep-with-recompute", PLAN_ASPECT_RECOMPUTE, 1, 1, 1, PLAN_RECOMPUTE_FULL, 0},
        {NULL, PLAN_ASPECT_RECOMPUTE, 1, 1, 1, PLAN_RECOMPUTE_SELECTIVE,
         1U << PLAN_MODULE_MOE_ACTIVATION},
        {"overlap-ep-with-recompute", PLAN_ASPECT_RECOMPUTE, 1, 1, 1, PLAN_RECOMPUTE_SELECTIVE,
         1U << PLAN_MODULE_MOE},
    };
    g_autoptr(ModelArch) arch = model_arch_load("deepseek-v3", NULL, NULL);
    PlanConventions conventions = plan_conventions(PLAN_FRAMEWORK_MEGATRON_CORE);

    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        PlanRuleCase c = case_of(arch, &conventions);
        g_auto(PlanBreach) breach = {0};

        arch->mtp.n = rows[i].mtp;
        conventions.recompute_modules = rows[i].modules;
        c.degrees.pp = rows[i].pp;
        c.degrees.vpp = rows[i].vpp;
        c.schedule = rows[i].vpp > 1 ? "interleaved" : "1f1b";
        c.recompute = rows[i].recompute;
        for (int way = 0; way < 3; way++) {
            conventions.overlap_ep = way != 1;
            c.degrees.ep = way != 2 ? 2 : 1;
            const bool keeps = plan_rules_keep(&c, rows[i].aspect, way == 0 ? &breach : NULL);
            g_assert_true(keeps == (way > 0 || rows[i].rule == NULL));
        }
        g_assert_cmpstr(breach.rule, ==, rows[i].rule);
    }
    /* The executor of degas merges passes in pipelines of one chunk. */
    const PlanConventions own = plan_conventions(PLAN_FRAMEWORK_DEGAS);
    PlanRuleCase c = case_of(arch, &own);
    g_assert_null(c.rules);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/planner/rules/models", test_models);
    g_test_add_func("/planner/rules/dates", test_dates);
    g_test_add_func("/planner/rules/dates-of-the-main-branch", test_dates_of_the_main_branch);
    g_test_add_func("/planner/rules/dates-of-layers", test_dates_of_layers);
    g_test_add_func("/planner/rules/layers-without-flags", test_layers_without_flags);
    g_test_add_func("/planner/rules/one-thing-without-a-flag", test_one_thing_without_a_flag);
    g_test_add_func("/planner/rules/expert-tp", test_expert_tp);
    g_test_add_func("/planner/rules/a-model-that-runs", test_a_model_that_runs);
    g_test_add_func("/planner/rules/merged-passes", test_merged_passes);
    return g_test_run();
}
