#include "planner/rules/dated.h"

static bool
uses_fp8(const PlanRuleCase *c)
{
    return dtype_is_quantised(c->dtype);
}

static bool
uses_experts(const PlanRuleCase *c)
{
    return c->arch->experts.n_experts > 0;
}

static bool
uses_mtp(const PlanRuleCase *c)
{
    return c->arch->mtp.n > 0;
}

static bool
uses_modules(const PlanRuleCase *c)
{
    return (c->conventions->recompute_modules & ~(UINT32_C(1) << PLAN_MODULE_CORE_ATTENTION)) != 0;
}

static bool
uses_graphs(const PlanRuleCase *c)
{
    return c->conventions->cuda_graphs != PLAN_GRAPHS_NONE;
}

static bool
uses_deepep(const PlanRuleCase *c)
{
    return c->conventions->dispatcher != PLAN_DISPATCHER_ALLTOALL;
}

static bool
uses_hybridep(const PlanRuleCase *c)
{
    return c->conventions->dispatcher == PLAN_DISPATCHER_HYBRIDEP;
}

static bool
uses_merged_passes(const PlanRuleCase *c)
{
    return c->conventions->overlap_ep && uses_experts(c);
}

static bool
uses_experts_graph(const PlanRuleCase *c)
{
    return c->conventions->cuda_graphs == PLAN_GRAPHS_ITERATION && uses_experts(c);
}

static bool
uses_cp(const PlanRuleCase *c)
{
    return c->degrees.cp > 1;
}

static bool
uses_state_cp(const PlanRuleCase *c)
{
    bool has_state = false;

    for (int32_t i = 0; i < model_n_kinds(c->arch); i++) {
        const ModelArch kind = model_kind_arch(c->arch, i);
        has_state = has_state || model_has_state(&kind);
    }
    return has_state && c->degrees.cp > 1;
}

static bool
uses_sequence_parallel(const PlanRuleCase *c)
{
    return c->sequence_parallel && c->degrees.tp > 1;
}

static bool
uses_chunks(const PlanRuleCase *c)
{
    return c->degrees.vpp > 1;
}

static bool
uses_uneven(const PlanRuleCase *c)
{
    return c->most_layers != c->least_layers;
}

static bool
uses_zero1(const PlanRuleCase *c)
{
    return c->zero_stage == 1;
}

static bool
uses_zero3(const PlanRuleCase *c)
{
    return c->zero_stage > 1;
}

static bool
uses_selective(const PlanRuleCase *c)
{
    return c->recompute == PLAN_RECOMPUTE_SELECTIVE;
}

static const struct {
    PlanFeature feature;
    PlanAspect aspect;
    bool (*uses)(const PlanRuleCase *c);
    const char *change; /* (nullable) */
} dated[] = {
    {PLAN_FEATURE_FP8, PLAN_ASPECT_JOB, uses_fp8, "--dtype bf16"},
    {PLAN_FEATURE_EXPERTS, PLAN_ASPECT_JOB, uses_experts, NULL},
    {PLAN_FEATURE_MTP, PLAN_ASPECT_JOB, uses_mtp, "--mtp 0"},
    {PLAN_FEATURE_MODULES, PLAN_ASPECT_JOB, uses_modules, "--recompute-modules core_attn"},
    {PLAN_FEATURE_GRAPHS, PLAN_ASPECT_JOB, uses_graphs, "--cuda-graphs none"},
    {PLAN_FEATURE_DEEPEP, PLAN_ASPECT_JOB, uses_deepep, "--dispatcher alltoall"},
    {PLAN_FEATURE_HYBRIDEP, PLAN_ASPECT_JOB, uses_hybridep, "--dispatcher deepep"},
    {PLAN_FEATURE_MERGED_PASSES, PLAN_ASPECT_JOB, uses_merged_passes, "--overlap dp,pp"},
    {PLAN_FEATURE_EXPERTS_GRAPH, PLAN_ASPECT_JOB, uses_experts_graph, "--cuda-graphs attention"},
    {PLAN_FEATURE_CONTEXT_PARALLEL, PLAN_ASPECT_DEGREES, uses_cp, "--cp 1"},
    {PLAN_FEATURE_STATE_CP, PLAN_ASPECT_DEGREES, uses_state_cp, "--cp 1"},
    {PLAN_FEATURE_SEQUENCE_PARALLEL, PLAN_ASPECT_BATCH, uses_sequence_parallel,
     "--sequence-parallel off"},
    {PLAN_FEATURE_INTERLEAVED, PLAN_ASPECT_SCHEDULE, uses_chunks, "--vpp 1"},
    {PLAN_FEATURE_UNEVEN, PLAN_ASPECT_SHAPE, uses_uneven, NULL},
    {PLAN_FEATURE_ZERO1, PLAN_ASPECT_SAVERS, uses_zero1, "--zero 0"},
    {PLAN_FEATURE_ZERO3, PLAN_ASPECT_SAVERS, uses_zero3, "--zero 1"},
    {PLAN_FEATURE_SELECTIVE, PLAN_ASPECT_RECOMPUTE, uses_selective, "--recompute full"},
};

bool
plan_rules_dated(const PlanRuleCase *c, PlanAspect aspect, size_t *row, PlanBreach *breach)
{
    for (size_t i = *row; i < G_N_ELEMENTS(dated); i++) {
        const PlanFeatureInfo *info = plan_stack_lacks(c->conventions, dated[i].feature);
        char stack[PLAN_STACK_TEXT], since[PLAN_STACK_TEXT];

        if ((aspect != PLAN_ASPECT_N && dated[i].aspect != aspect) || info == NULL ||
            !dated[i].uses(c))
            continue;
        *row = i + 1;
        if (breach == NULL)
            return true;
        plan_stack_text(plan_stack(c->conventions), stack);
        plan_stack_text(info->since, since);
        *breach = (PlanBreach){
            .rule = "stack",
            .text = g_strdup_printf("a stack of %s has no %s: %s, %s", stack, info->what,
                                    info->release, since),
            .change = g_strdup(dated[i].change),
        };
        return true;
    }
    return false;
}
