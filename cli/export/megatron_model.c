#include "cli/export/megatron_model.h"

#include "cli/recipe/layer_list.h"
#include "cli/recipe/layout_string.h"
#include "planner/rules/layer_flags.h"

/* --- lines --- */

void
megatron_flag(GString *text, const char *name)
{
    g_string_append_printf(text, "--%s\n", name);
}

void
megatron_int(GString *text, const char *name, int64_t value)
{
    g_string_append_printf(text, "--%s " INT "\n", name, value);
}

void
megatron_word(GString *text, const char *name, const char *value)
{
    g_string_append_printf(text, "--%s %s\n", name, value);
}

/* Python's float() reads it, and Megatron's int() where it is whole. */
static void
add_real(GString *text, const char *name, double value)
{
    char number[G_ASCII_DTOSTR_BUF_SIZE];

    megatron_word(text, name, g_ascii_formatd(number, sizeof number, "%.15g", value));
}

/* --- layers --- */

/* Whether a layer of @kind has what a list lists. */
typedef bool (*HasFunc)(const ModelArch *kind);

static bool
has_experts(const ModelArch *kind)
{
    return kind->experts.n_experts > 0;
}

static bool
has_window(const ModelArch *kind)
{
    return kind->window > 0;
}

static bool
has_no_positions(const ModelArch *kind)
{
    return model_positions(kind) == MODEL_POSITIONS_NONE;
}

static bool
has_delta_net(const ModelArch *kind)
{
    return kind->mixer == MODEL_MIXER_DELTA_NET;
}

/* --@name with 1 for each layer that @has. */
static void
add_list(GString *text, const char *name, const ModelArch *arch, HasFunc has)
{
    g_autofree uint8_t *values = g_new(uint8_t, (size_t)arch->n_layers);

    for (int64_t i = 0; i < arch->n_layers; i++) {
        const ModelArch kind = model_layer_arch(arch, i);
        values[i] = has(&kind);
    }
    g_autofree char *list = layer_list_write(values, arch->n_layers);
    megatron_word(text, name, list);
}

static void
add_attention(GString *text, const ModelArch *layer)
{
    megatron_int(text, "num-attention-heads", layer->n_heads);
    if (layer->mla.kv_lora_rank > 0) {
        megatron_flag(text, "multi-latent-attention");
        if (layer->mla.q_lora_rank > 0)
            megatron_int(text, "q-lora-rank", layer->mla.q_lora_rank);
        megatron_int(text, "kv-lora-rank", layer->mla.kv_lora_rank);
        megatron_int(text, "qk-head-dim", layer->mla.qk_nope_head_dim);
        megatron_int(text, "qk-pos-emb-head-dim", layer->mla.qk_rope_head_dim);
        megatron_int(text, "v-head-dim", layer->mla.v_head_dim);
        return;
    }
    if (layer->n_kv_heads != layer->n_heads) {
        megatron_flag(text, "group-query-attention");
        megatron_int(text, "num-query-groups", layer->n_kv_heads);
    }
    megatron_int(text, "kv-channels", layer->head_dim);
}

/* A window reaches back over all of its keys but the query's own. */
static void
add_mask(GString *text, const ModelArch *arch, const PlanLayerFlags *flags)
{
    if (flags->window > 0)
        g_string_append_printf(text, "--window-size " INT ",0\n", flags->window - 1);
    if (flags->window > 0 && flags->has_full)
        add_list(text, "window-attn-skip-freq", arch, has_window);
    if (flags->layer.sinks)
        megatron_word(text, "softmax-type", "learnable");
    if (flags->layer.output_gate != MODEL_OUTPUT_GATE_NONE)
        megatron_flag(text, "attention-output-gate");
}

static void
add_state(GString *text, const ModelArch *arch, const ModelArch *layer)
{
    const ModelState *state = &layer->state;

    if (layer->mixer == MODEL_MIXER_MAMBA2) {
        megatron_int(text, "mamba-num-heads", state->n_heads);
        megatron_int(text, "mamba-head-dim", state->value_dim);
        megatron_int(text, "mamba-num-groups", state->n_key_heads);
        megatron_int(text, "mamba-state-dim", state->key_dim);
    } else if (layer->mixer == MODEL_MIXER_DELTA_NET) {
        megatron_word(text, "experimental-attention-variant", "gdn");
        add_list(text, "linear-attention-freq", arch, has_delta_net);
        megatron_int(text, "linear-num-value-heads", state->n_heads);
        megatron_int(text, "linear-num-key-heads", state->n_key_heads);
        megatron_int(text, "linear-value-head-dim", state->value_dim);
        megatron_int(text, "linear-key-head-dim", state->key_dim);
        megatron_int(text, "linear-conv-kernel-dim", state->conv);
    }
}

/* The embedding's positions are those of attention, wherever it has any. */
static void
add_positions(GString *text, const ModelArch *arch, const PlanLayerFlags *flags)
{
    const ModelArch *layer = &flags->layer;

    if (flags->has_rotary) {
        megatron_word(text, "position-embedding-type", "rope");
        add_real(text, "rotary-base", layer->rope_base);
        if (layer->rotary_dim > 0 && layer->rotary_dim < layer->head_dim)
            add_real(text, "rotary-percent", (double)layer->rotary_dim / (double)layer->head_dim);
        if (flags->has_no_positions)
            add_list(text, "no-rope-freq", arch, has_no_positions);
    } else if (model_positions(layer) != MODEL_POSITIONS_LEARNED) {
        megatron_word(text, "position-embedding-type", "none");
    }
}

static void
add_norms_and_biases(GString *text, const ModelArch *arch, const PlanLayerFlags *flags)
{
    static const char *const activations[MODEL_ACTIVATION_N] = {
        [MODEL_ACTIVATION_SWIGLU] = "swiglu", [MODEL_ACTIVATION_RELU2] = "squared-relu"};
    const char *activation = activations[model_activation(&flags->layer)];

    if (activation != NULL)
        megatron_flag(text, activation);
    if (model_norm(&flags->layer) == MODEL_NORM_RMS)
        megatron_word(text, "normalization", "RMSNorm");
    if (flags->biases != PLAN_LAYER_BIASES_ALL)
        megatron_flag(text, "disable-bias-linear");
    add_positions(text, arch, flags);
    if (flags->biases == PLAN_LAYER_BIASES_QKV)
        megatron_flag(text, "add-qkv-bias");
    /* Norms of the latent vectors of MLA hang on the same flag. */
    if (flags->layer.qk_norm || flags->layer.mla.kv_lora_rank > 0)
        megatron_flag(text, "qk-layernorm");
}

static void
add_experts(GString *text, const ModelArch *arch, const PlanLayerFlags *flags)
{
    const ModelExperts *experts = &flags->experts;

    if (experts->n_experts == 0)
        return;
    megatron_int(text, "num-experts", experts->n_experts);
    megatron_int(text, "moe-router-topk", experts->top_k);
    megatron_int(text, "moe-ffn-hidden-size", experts->ffn_hidden);
    megatron_word(text, "moe-router-score-function",
                  experts->router_scores == MODEL_ROUTER_SIGMOID ? "sigmoid" : "softmax");
    if (experts->router_scores == MODEL_ROUTER_SOFTMAX_ALL)
        megatron_flag(text, "moe-router-pre-softmax");
    if (experts->router_scale != 1)
        add_real(text, "moe-router-topk-scaling-factor", experts->router_scale);
    if (experts->n_shared > 0)
        megatron_int(text, "moe-shared-expert-intermediate-size", model_shared_hidden(experts));
    if (experts->n_shared > 0 && experts->shared_gate)
        megatron_flag(text, "moe-shared-expert-gate");
    if (experts->latent > 0)
        megatron_int(text, "moe-latent-size", experts->latent);
    if (flags->has_dense && !flags->is_hybrid)
        add_list(text, "moe-layer-freq", arch, has_experts);
    megatron_flag(text, "moe-grouped-gemm");
}

/* Which layer is what in a hybrid, with bars between stages. */
static void
add_pattern(GString *text, const ModelArch *arch, const Plan *plan)
{
    g_autofree char *pattern = layout_string_write_hybrid(plan, arch);

    g_string_append(text,
                    "--spec megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec\n");
    megatron_word(text, "hybrid-layer-pattern", pattern);
}

static void
add_layers(GString *text, const ModelArch *arch, const Plan *plan, const PlanLayerFlags *flags)
{
    megatron_int(text, "num-layers", arch->n_layers);
    megatron_int(text, "hidden-size", arch->hidden);
    megatron_int(text, "ffn-hidden-size", flags->layer.ffn_hidden);
    add_attention(text, &flags->layer);
    add_mask(text, arch, flags);
    add_state(text, arch, &flags->state);
    add_real(text, "norm-epsilon", flags->layer.norm_epsilon);
    add_norms_and_biases(text, arch, flags);
    add_experts(text, arch, flags);
    if (flags->is_hybrid)
        add_pattern(text, arch, plan);
}

/* --- what carries rows to experts --- */

static void
add_dispatcher(GString *text, const Plan *plan)
{
    if (plan->conventions.expert_capacity > 0.0) {
        add_real(text, "moe-expert-capacity-factor", plan->conventions.expert_capacity);
        megatron_flag(text, "moe-pad-expert-input-to-capacity");
    }
    if (plan->conventions.dispatcher == PLAN_DISPATCHER_ALLTOALL) {
        megatron_word(text, "moe-token-dispatcher-type", "alltoall");
    } else {
        megatron_word(text, "moe-token-dispatcher-type", "flex");
        megatron_word(text, "moe-flex-dispatcher-backend",
                      plan_dispatcher_names[plan->conventions.dispatcher]);
    }
    megatron_int(text, "expert-model-parallel-size", plan->degrees.ep);
    megatron_int(text, "expert-tensor-parallel-size",
                 plan_expert_tp(&plan->degrees, &plan->conventions));
}

void
megatron_model(GString *text, const ModelArch *arch, const Plan *plan)
{
    PlanLayerFlags flags;
    g_autofree char *unsaid = plan_layer_flags(arch, &flags);

    if (unsaid == NULL)
        add_layers(text, arch, plan, &flags);
    megatron_int(text, "seq-length", plan->seq_len);
    megatron_int(text, "max-position-embeddings", MAX(arch->max_seq_len, plan->seq_len));
    megatron_int(text, "vocab-size", arch->vocab);
    megatron_int(text, "make-vocab-size-divisible-by",
                 MAX(1, plan_vocab_multiple(&plan->conventions)));
    if (!arch->tied_embeddings)
        megatron_flag(text, "untie-embeddings-and-output-weights");
    if (!plan->conventions.dropout) {
        megatron_word(text, "attention-dropout", "0");
        megatron_word(text, "hidden-dropout", "0");
    }
    if (arch->mtp.n > 0)
        megatron_int(text, "mtp-num-layers", arch->mtp.n);
    if (arch->mtp.n > 0 && arch->mtp.loss_factor > 0.0)
        add_real(text, "mtp-loss-scaling-factor", arch->mtp.loss_factor);
    if (arch->experts.n_experts > 0)
        add_dispatcher(text, plan);
}
