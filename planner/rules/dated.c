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

/* Whether @has is true of some kind of layers. */
static bool
some_kind(const PlanRuleCase *c, bool (*has)(const ModelArch *kind))
{
    for (int32_t i = 0; i < model_n_kinds(c->arch); i++) {
        const ModelArch kind = model_kind_arch(c->arch, i);
        if (has(&kind))
            return true;
    }
    return false;
}

static bool
uses_state_cp(const PlanRuleCase *c)
{
    return c->degrees.cp > 1 && some_kind(c, model_has_state);
}

static bool
has_mamba(const ModelArch *kind)
{
    return kind->mixer == MODEL_MIXER_MAMBA2;
}

static bool
has_delta_net(const ModelArch *kind)
{
    return kind->mixer == MODEL_MIXER_DELTA_NET;
}

static bool
has_experts(const ModelArch *kind)
{
    return kind->experts.n_experts > 0;
}

static bool
is_dense(const ModelArch *kind)
{
    return kind->ffn == MODEL_FFN_MLP && !has_experts(kind);
}

static bool
has_rotary(const ModelArch *kind)
{
    return model_has_attention(kind) && model_positions(kind) == MODEL_POSITIONS_ROTARY;
}

static bool
has_no_positions(const ModelArch *kind)
{
    return model_has_attention(kind) && model_positions(kind) == MODEL_POSITIONS_NONE;
}

static bool
has_window(const ModelArch *kind)
{
    return kind->window > 0;
}

static bool
has_sinks(const ModelArch *kind)
{
    return model_has_attention(kind) && kind->sinks;
}

static bool
has_expert_biases(const ModelArch *kind)
{
    return kind->experts.bias;
}

static bool
has_latent_experts(const ModelArch *kind)
{
    return kind->experts.latent > 0;
}

static bool
has_gates(const ModelArch *kind)
{
    return (model_has_attention(kind) && kind->output_gate != MODEL_OUTPUT_GATE_NONE) ||
           kind->experts.shared_gate;
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
    bool (*uses)(const PlanRuleCase *c); /* NULL: some kind of layers has it, by the next two */
    const char *change;                  /* (nullable) */
    bool (*has)(const ModelArch *kind);
    bool (*and_has)(const ModelArch *kind); /* (nullable) of another kind */
} dated[] = {
    {PLAN_FEATURE_FP8, PLAN_ASPECT_JOB, uses_fp8, "--dtype bf16"},
    {PLAN_FEATURE_EXPERTS, PLAN_ASPECT_JOB, uses_experts, NULL},
    {PLAN_FEATURE_DENSE_LAYERS, PLAN_ASPECT_JOB, .has = has_experts, .and_has = is_dense},
    {PLAN_FEATURE_HYBRIDS, PLAN_ASPECT_JOB, .has = has_mamba},
    {PLAN_FEATURE_SOME_POSITIONS, PLAN_ASPECT_JOB, .has = has_rotary, .and_has = has_no_positions},
    {PLAN_FEATURE_SOME_WINDOWS, PLAN_ASPECT_JOB, .has = has_window},
    {PLAN_FEATURE_SINKS, PLAN_ASPECT_JOB, .has = has_sinks},
    {PLAN_FEATURE_EXPERT_BIASES, PLAN_ASPECT_JOB, .has = has_expert_biases},
    {PLAN_FEATURE_LATENT_EXPERTS, PLAN_ASPECT_JOB, .has = has_latent_experts},
    {PLAN_FEATURE_GATES, PLAN_ASPECT_JOB, .has = has_gates},
    {PLAN_FEATURE_DELTA_NET, PLAN_ASPECT_JOB, .has = has_delta_net},
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

/* A model that is known to run has its layers, whatever the date. */
static bool
is_used(size_t row, const PlanRuleCase *c)
{
    if (dated[row].uses != NULL)
        return dated[row].uses(c);
    return !c->model_runs && some_kind(c, dated[row].has) &&
           (dated[row].and_has == NULL || some_kind(c, dated[row].and_has));
}

bool
plan_rules_dated(const PlanRuleCase *c, PlanAspect aspect, size_t *row, PlanBreach *breach)
{
    for (size_t i = *row; i < G_N_ELEMENTS(dated); i++) {
        const PlanFeatureInfo *info = plan_stack_lacks(c->conventions, dated[i].feature);
        char stack[PLAN_STACK_TEXT], since[PLAN_STACK_TEXT];

        if ((aspect != PLAN_ASPECT_N && dated[i].aspect != aspect) || info == NULL ||
            !is_used(i, c))
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
