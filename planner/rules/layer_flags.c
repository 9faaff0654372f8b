#include "planner/rules/layer_flags.h"

/* What Megatron-Core's mixers have without a flag: mamba_mixer.py's d_conv, its kernel's chunk and flash-linear-
 * attention's. */
#define MAMBA_CONV 4
#define MAMBA_CHUNK 128
#define DELTA_NET_CHUNK MODEL_STATE_CHUNK

/* Kinds that layers of the model are of; MTP modules are the last one. */
static bool
is_used(const ModelArch *arch, int32_t kind)
{
    return model_first_of_kind(arch, kind) >= 0;
}

bool
plan_layers_are_hybrid(const ModelArch *arch)
{
    for (int32_t i = 0; i < model_n_kinds(arch); i++) {
        const ModelArch kind = model_kind_arch(arch, i);
        if (is_used(arch, i) && (kind.mixer == MODEL_MIXER_NONE || kind.ffn == MODEL_FFN_NONE))
            return true;
    }
    return false;
}

size_t
plan_layer_letters(const ModelArch *kind, char letters[2])
{
    size_t n = 0;

    if (kind->mixer == MODEL_MIXER_MAMBA2)
        letters[n++] = 'M';
    else if (kind->mixer == MODEL_MIXER_ATTENTION && kind->mla.kv_lora_rank == 0)
        letters[n++] = '*';
    else if (kind->mixer != MODEL_MIXER_NONE)
        return 0;
    if (kind->ffn != MODEL_FFN_NONE)
        letters[n++] = kind->experts.n_experts > 0 ? 'E' : '-';
    return n;
}

/* --- what no flag says --- */

typedef struct {
    bool is_there;
    const char *what;
} Thing;

static const char *
first_thing(const Thing *things, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (things[i].is_there)
            return things[i].what;
    return NULL;
}

static const char *
unsaid_end(const ModelArch *arch)
{
    const Thing things[] = {
        {arch->head_bias, "a head with a bias"},
        {arch->embedding_norm, "a normed embedding"},
        {arch->no_final_norm, "a head without a norm"},
        {arch->position_rows > 0, "a table of positions of a length of its own"},
        {arch->embedding_scale > 0.0 || arch->logits_scale > 0.0, "scaled embeddings or logits"},
        {arch->logits_cap > 0.0, "capped logits"},
    };

    return first_thing(things, G_N_ELEMENTS(things));
}

static const char *
unsaid_attention(const ModelArch *kind)
{
    const ModelPositions positions = model_positions(kind);
    const double share = (double)kind->rotary_dim / (double)kind->head_dim;
    const bool is_mla = kind->mla.kv_lora_rank > 0;
    const Thing things[] = {
        {kind->chunk > 0, "chunked attention"},
        {kind->indexer.n_heads > 0, "an indexer of sparse attention"},
        {kind->output_gate == MODEL_OUTPUT_GATE_HEAD ||
             (is_mla && kind->output_gate != MODEL_OUTPUT_GATE_NONE),
         "gates of attention's result but by element"},
        {kind->qk_norm && kind->qk_norm_kind != MODEL_QK_NORM_HEAD,
         "norms of queries and keys but by head"},
        {kind->attention_cap > 0.0, "capped scores"},
        {kind->attention_scale > 0.0, "scores with a scale of their own"},
        {kind->v_dim > 0, "values of a size of their own"},
        {positions == MODEL_POSITIONS_ALIBI, "positions that are added to scores"},
        {kind->rotary_dim > 0 &&
             (is_mla || (int64_t)(share * (double)kind->head_dim) != kind->rotary_dim),
         "this share of rotated elements"},
    };

    return model_has_attention(kind) ? first_thing(things, G_N_ELEMENTS(things)) : NULL;
}

static const char *
unsaid_state(const ModelArch *kind)
{
    const ModelState *state = &kind->state;
    const bool is_mamba = kind->mixer == MODEL_MIXER_MAMBA2;
    const Thing things[] = {
        {!is_mamba && kind->mixer != MODEL_MIXER_DELTA_NET, "this mixer with a state"},
        {is_mamba && state->conv != MAMBA_CONV,
         "a convolution before Mamba of a length of its own"},
        {state->chunk != (is_mamba ? MAMBA_CHUNK : DELTA_NET_CHUNK),
         "a scan whose kernel takes other chunks"},
        {state->bias || state->conv_bias != is_mamba, "biases of a mixer with a state"},
        {state->no_norm || state->inner_norms || state->rank > 0,
         "norms or products of a mixer with a state"},
    };

    return model_has_state(kind) ? first_thing(things, G_N_ELEMENTS(things)) : NULL;
}

static const char *
unsaid_layer(const ModelArch *kind)
{
    const ModelActivation activation = model_activation(kind);
    const ModelNorm norm = model_norm(kind);
    const Thing things[] = {
        {kind->residual_scale > 0.0, "scaled residuals"},
        {activation != MODEL_ACTIVATION_SWIGLU && activation != MODEL_ACTIVATION_GELU &&
             activation != MODEL_ACTIVATION_RELU2,
         "this activation"},
        {norm != MODEL_NORM_RMS && norm != MODEL_NORM_LAYER, "this norm"},
        {kind->norm_place != MODEL_NORM_PLACE_PRE, "norms behind attention and MLP"},
        {kind->blocks != MODEL_BLOCKS_SERIAL, "parallel blocks"},
        {kind->experts.n_redundant > 0, "copies of hot experts"},
    };
    const char *what = first_thing(things, G_N_ELEMENTS(things));

    what = what != NULL ? what : unsaid_attention(kind);
    return what != NULL ? what : unsaid_state(kind);
}

/* --- what is alike --- */

/* What is said of the parts that @kind has; false: otherwise than of a kind before. */
static bool
add_parts(PlanLayerFlags *flags, const ModelArch *kind, bool is_first)
{
    const ModelPositions positions = model_positions(kind);

    if (is_first)
        flags->layer = *kind;
    if (model_has_attention(kind)) {
        if (!model_has_attention(&flags->layer) ||
            (positions == MODEL_POSITIONS_ROTARY && !flags->has_rotary))
            flags->layer = *kind;
        if (kind->window > 0 && flags->window > 0 && kind->window != flags->window)
            return false;
        flags->window = MAX(flags->window, kind->window);
        flags->has_full |= kind->window == 0;
        flags->has_rotary |= positions == MODEL_POSITIONS_ROTARY;
        flags->has_no_positions |= positions == MODEL_POSITIONS_NONE;
    }
    if (model_has_state(kind))
        flags->state = *kind;
    if (kind->experts.n_experts > 0)
        flags->experts = kind->experts;
    else if (kind->ffn == MODEL_FFN_MLP)
        flags->has_dense = true;
    return true;
}

/* (owned, nullable) how @kind differs from what is said of its parts. */
static char *
difference_of(const PlanLayerFlags *flags, const ModelArch *kind)
{
    ModelArch said = flags->layer;

    said.mixer = kind->mixer;
    said.ffn = kind->ffn;
    said.window = kind->window;
    said.is_mtp = kind->is_mtp;
    said.lora = kind->lora;
    said.state = kind->state;
    if (model_has_state(kind)) {
        said.mixer = flags->state.mixer;
        said.state = flags->state.state;
    }
    said.experts = kind->experts.n_experts > 0 ? flags->experts : kind->experts;
    /* Rotary positions may be left out of some layers, and mean nothing where there is no attention. */
    if (!model_has_attention(kind) || model_positions(kind) == MODEL_POSITIONS_NONE)
        said.positions = kind->positions;
    return model_arch_difference(kind, &said);
}

static bool
find_biases(const ModelArch *arch, PlanLayerFlags *flags)
{
    bool has_qkv = false, lacks_qkv = false, has_other = false, lacks_other = false;

    for (int32_t i = 0; i < model_n_kinds(arch); i++) {
        const ModelArch kind = model_kind_arch(arch, i);
        const bool is_dense = kind.ffn == MODEL_FFN_MLP && kind.experts.n_experts == 0;
        const bool has_experts = kind.experts.n_experts > 0;
        if (!is_used(arch, i))
            continue;
        if (model_has_attention(&kind)) {
            has_qkv |= kind.qkv_bias;
            lacks_qkv |= !kind.qkv_bias;
            has_other |= model_has_proj_bias(&kind);
            lacks_other |= !model_has_proj_bias(&kind);
        }
        has_other |= (is_dense && model_has_mlp_bias(&kind)) ||
                     (has_experts && (model_has_expert_bias(&kind) || kind.experts.router_bias));
        lacks_other |=
            (is_dense && !model_has_mlp_bias(&kind)) ||
            (has_experts && (!model_has_expert_bias(&kind) ||
                             (kind.family == MODEL_FAMILY_LLAMA && !kind.experts.router_bias)));
    }
    flags->biases = has_other ? PLAN_LAYER_BIASES_ALL
                    : has_qkv ? PLAN_LAYER_BIASES_QKV
                              : PLAN_LAYER_BIASES_NONE;
    return !(has_other && (lacks_other || lacks_qkv)) && !(has_qkv && lacks_qkv);
}

char *
plan_layer_flags(const ModelArch *arch, PlanLayerFlags *flags)
{
    const char *what = unsaid_end(arch);
    bool is_first = true;

    *flags = (PlanLayerFlags){.is_hybrid = plan_layers_are_hybrid(arch)};
    for (int32_t i = 0; what == NULL && i < model_n_kinds(arch); i++) {
        const ModelArch kind = model_kind_arch(arch, i);
        char letters[2];
        if (!is_used(arch, i))
            continue;
        what = unsaid_layer(&kind);
        if (what == NULL && !add_parts(flags, &kind, is_first))
            what = "windows of several sizes";
        is_first = false;
        const size_t n_letters = plan_layer_letters(&kind, letters);
        if (what == NULL && flags->is_hybrid &&
            (n_letters == 0 || (n_letters > 1 && !kind.is_mtp) ||
             (kind.window > 0 && arch->mtp.n > 0)))
            what = "these halves of layers";
        if (what == NULL && !flags->is_hybrid && kind.mixer == MODEL_MIXER_MAMBA2)
            what = "Mamba and an MLP in one layer";
    }
    if (what == NULL && flags->has_no_positions && !flags->has_rotary &&
        model_positions(&flags->layer) != MODEL_POSITIONS_NONE)
        what = "layers without positions among those with learned ones";
    if (what != NULL)
        return g_strdup(what);
    for (int32_t i = 0; i < model_n_kinds(arch); i++) {
        const ModelArch kind = model_kind_arch(arch, i);
        g_autofree char *difference = is_used(arch, i) ? difference_of(flags, &kind) : NULL;
        if (difference != NULL)
            return g_strdup_printf("layers that differ in this: %s", difference);
    }
    return find_biases(arch, flags)
               ? NULL
               : g_strdup("biases but in all matrices, in none or in QKV alone");
}
