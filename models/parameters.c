/* The counts of parameters that models/arch.h declares. */
#include "models/arch.h"

#include <math.h>

#include "models/lora.h"

/* --- norms --- */

static int64_t
norm_parameters(const ModelArch *arch, int64_t width)
{
    switch (model_norm(arch)) {
    case MODEL_NORM_LAYER:
        return 2 * width;
    case MODEL_NORM_PLAIN:
        return 0;
    default:
        return width;
    }
}

/* Norms of the layer's width. */
static int64_t
n_layer_norms(const ModelArch *arch)
{
    const int64_t n_branches = (arch->mixer != MODEL_MIXER_NONE) + (arch->ffn != MODEL_FFN_NONE);

    if (arch->blocks == MODEL_BLOCKS_PARALLEL_ONE_NORM)
        return 1;
    return n_branches * (arch->norm_place == MODEL_NORM_PLACE_SANDWICH ? 2 : 1);
}

/* --- attention --- */

static int64_t
indexer_parameters(const ModelArch *arch)
{
    const ModelIndexer *indexer = &arch->indexer;
    const int64_t input = arch->mla.q_lora_rank > 0 ? arch->mla.q_lora_rank : arch->hidden;

    if (indexer->n_heads == 0)
        return 0;
    /* Queries, the key and its LayerNorm, the weights of heads. */
    return input * indexer->n_heads * indexer->head_dim + arch->hidden * indexer->head_dim +
           2 * indexer->head_dim + arch->hidden * indexer->n_heads;
}

static int64_t
mla_parameters(const ModelArch *arch, int64_t heads)
{
    const ModelMla *mla = &arch->mla;
    int64_t qk_dim = mla->qk_nope_head_dim + mla->qk_rope_head_dim;
    int64_t n = 0;

    if (mla->q_lora_rank > 0) {
        n += arch->hidden * mla->q_lora_rank + mla->q_lora_rank; /* down, norm */
        n += mla->q_lora_rank * heads * qk_dim;
    } else {
        n += arch->hidden * heads * qk_dim;
    }
    n += arch->hidden * (mla->kv_lora_rank + mla->qk_rope_head_dim) + mla->kv_lora_rank;
    n += mla->kv_lora_rank * heads * (mla->qk_nope_head_dim + mla->v_head_dim);
    n += heads * mla->v_head_dim * arch->hidden + arch->hidden * heads * model_gate_columns(arch);
    if (arch->qkv_bias)
        n += mla->q_lora_rank + mla->kv_lora_rank + mla->qk_rope_head_dim;
    return arch->proj_bias ? n + arch->hidden : n;
}

static int64_t
qk_norm_parameters(const ModelArch *arch, int64_t heads)
{
    switch (arch->qk_norm_kind) {
    case MODEL_QK_NORM_HEAD:
        return 2 * arch->head_dim * (arch->norm == MODEL_NORM_LAYER ? 2 : 1);
    case MODEL_QK_NORM_ROW:
    case MODEL_QK_NORM_HEADS:
        return heads * arch->head_dim;
    default:
        return 0;
    }
}

static int64_t
attention_parameters(const ModelArch *arch, int64_t tp)
{
    const int64_t heads = model_ceil_div(arch->n_heads, tp);
    const int64_t kv_heads = model_ceil_div(arch->n_kv_heads, tp);

    int64_t n = indexer_parameters(arch);

    if (arch->qk_norm)
        n += qk_norm_parameters(arch, heads + kv_heads);
    if (arch->sinks)
        n += heads;
    if (model_has_mla(arch))
        return n + mla_parameters(arch, heads);
    const int64_t columns = model_qkv_columns(arch, tp);
    n += arch->hidden * columns + heads * model_v_dim(arch) * arch->hidden;
    if (arch->qkv_bias)
        n += columns;
    if (model_has_proj_bias(arch))
        n += arch->hidden;
    return n;
}

int64_t
model_v_dim(const ModelArch *arch)
{
    if (model_has_mla(arch))
        return arch->mla.v_head_dim;
    return arch->v_dim > 0 ? arch->v_dim : arch->head_dim;
}

int64_t
model_gate_columns(const ModelArch *arch)
{
    return arch->output_gate == MODEL_OUTPUT_GATE_ELEMENT ? model_v_dim(arch)
           : arch->output_gate == MODEL_OUTPUT_GATE_HEAD  ? 1
                                                          : 0;
}

int64_t
model_qkv_columns(const ModelArch *arch, int64_t tp)
{
    const int64_t heads = model_ceil_div(arch->n_heads, tp);
    const int64_t kv_heads = model_ceil_div(arch->n_kv_heads, tp);

    return heads * (arch->head_dim + model_gate_columns(arch)) +
           kv_heads * (arch->head_dim + model_v_dim(arch));
}

/* --- mixers with a state --- */

ModelMixer
model_state_mixer(const ModelArch *arch)
{
    return arch->mixer == MODEL_MIXER_ATTENTION_MAMBA2 ? MODEL_MIXER_MAMBA2 : arch->mixer;
}

ModelStateWidths
model_state_widths(const ModelArch *arch, int64_t tp)
{
    const ModelState *s = &arch->state;
    const ModelMixer mixer = model_state_mixer(arch);
    const int64_t heads = model_ceil_div(s->n_heads, tp);
    const int64_t key_heads = model_ceil_div(s->n_key_heads, tp);
    ModelStateWidths w = {
        .heads = heads,
        .keys = key_heads * s->key_dim,
        .values = heads * s->value_dim,
    };

    switch (mixer) {
    case MODEL_MIXER_DELTA_NET: /* queries, keys, values; their gate; rates of writing, forgetting */
        w.conv = 2 * w.keys + w.values;
        w.in = w.conv + w.values + 2 * heads;
        w.gates = w.rates = heads;
        w.vectors = 2 * heads;
        w.norm = s->value_dim;
        break;
    case MODEL_MIXER_KDA: /* the same, with both gates through a narrow middle */
        w.conv = 2 * w.keys + w.values;
        w.in = w.conv + heads + (s->rank == 0 ? heads * s->key_dim + w.values : 0);
        w.down = 2 * s->rank;
        w.gates = heads * s->key_dim;
        w.rates = heads;
        w.up_rows = s->rank;
        w.up = s->rank == 0 ? 0 : heads * s->key_dim + w.values;
        w.vectors = heads + heads * s->key_dim;
        w.norm = s->value_dim;
        break;
    case MODEL_MIXER_MAMBA2: /* gate, values, B, C, time steps; A, D and the steps' bias */
        w.conv = w.values + 2 * w.keys;
        w.in = w.values + w.conv + heads;
        w.gates = w.rates = heads;
        w.vectors = 3 * heads;
        w.norm = w.values;
        break;
    case MODEL_MIXER_MAMBA: /* gate and values; then B, C and time steps of every channel */
        w.keys = s->key_dim;
        w.conv = heads;
        w.in = 2 * heads;
        w.rates = heads;
        w.middle = s->rank + 2 * s->key_dim;
        w.up_rows = s->rank;
        w.up = heads;
        w.vectors = heads + heads * s->key_dim + heads;
        break;
    case MODEL_MIXER_LIGHTNING: /* queries, keys, values; the gate of the result */
        w.in = 2 * w.keys + 2 * w.values;
        w.norm = w.values;
        break;
    case MODEL_MIXER_CONV: /* two gates and what they gate */
        w.conv = heads;
        w.in = 3 * heads;
        break;
    default:
        break;
    }
    if (s->no_norm)
        w.norm = 0;
    if (mixer == MODEL_MIXER_MAMBA && s->inner_norms)
        w.vectors += w.middle;
    return w;
}

static int64_t
state_parameters(const ModelArch *arch, int64_t tp)
{
    const ModelState *s = &arch->state;
    const ModelStateWidths w = model_state_widths(arch, tp);
    int64_t n = arch->hidden * (w.in + w.down) + w.up_rows * w.up + w.values * w.middle +
                w.vectors + w.norm + w.values * arch->hidden;

    if (s->conv > 0)
        n += w.conv * (s->conv + (s->conv_bias ? 1 : 0));
    return s->bias ? n + w.in + arch->hidden : n;
}

/* --- feed-forwards --- */

/* An MLP on rows of @rows elements, of @width columns on this rank. */
static int64_t
mlp_parameters(const ModelArch *arch, int64_t rows, int64_t width, bool bias)
{
    const int64_t n_up = model_is_gated(arch) ? 2 : 1;

    return (n_up + 1) * rows * width + (bias ? n_up * width + rows : 0);
}

static int64_t
expert_parameters(const ModelArch *arch, int64_t etp)
{
    const ModelExperts *experts = &arch->experts;

    return mlp_parameters(arch, experts->latent > 0 ? experts->latent : arch->hidden,
                          model_ceil_div(experts->ffn_hidden, etp), model_has_expert_bias(arch));
}

int64_t
model_expert_parameters(const ModelArch *arch, int64_t layer, int64_t ep, int64_t etp)
{
    g_return_val_if_fail(arch != NULL && ep >= 1 && etp >= 1, 0);

    const ModelArch kind = model_layer_arch(arch, layer);
    if (kind.experts.n_experts == 0)
        return 0;
    return model_n_local_experts(&kind.experts, ep) * expert_parameters(&kind, etp);
}

/* What experts need besides themselves. */
static int64_t
routing_parameters(const ModelArch *arch, int64_t tp)
{
    const ModelExperts *experts = &arch->experts;
    const int64_t shared = model_shared_hidden(experts);
    int64_t n = (arch->hidden + (experts->router_bias ? 1 : 0)) * experts->n_experts;

    n += 2 * arch->hidden * experts->latent;
    if (shared > 0)
        n += mlp_parameters(arch, arch->hidden, model_ceil_div(shared, tp),
                            model_has_mlp_bias(arch));
    return experts->shared_gate ? n + arch->hidden : n;
}

/* --- layers and ends --- */

/* @arch as model_kind_arch() has it.  An MTP module has two norms and a projection before its layer,
 * and a norm behind it. */
static int64_t
kind_parameters(const ModelArch *arch, int64_t tp, int64_t ep, int64_t etp)
{
    int64_t n =
        (n_layer_norms(arch) + (arch->is_mtp ? 3 : 0)) * norm_parameters(arch, arch->hidden);

    n += model_lora_parameters(arch, tp);
    if (arch->is_mtp)
        n += 2 * arch->hidden * model_ceil_div(arch->hidden, tp);
    if (model_has_attention(arch))
        n += attention_parameters(arch, tp);
    if (model_has_state(arch))
        n += state_parameters(arch, tp);
    if (arch->ffn == MODEL_FFN_NONE)
        return n;
    if (arch->experts.n_experts == 0)
        return n + mlp_parameters(arch, arch->hidden, model_ceil_div(arch->ffn_hidden, tp),
                                  model_has_mlp_bias(arch));
    return n + routing_parameters(arch, tp) +
           model_n_local_experts(&arch->experts, ep) * expert_parameters(arch, etp);
}

ModelArch
model_arch_padded(const ModelArch *arch, int64_t tp, int64_t multiple)
{
    ModelArch padded = *arch;

    g_return_val_if_fail(tp >= 1 && multiple >= 0, padded);
    if (multiple > 0)
        padded.vocab = model_ceil_div(arch->vocab, tp * multiple) * tp * multiple;
    return padded;
}

static int64_t
embedding_parameters(const ModelArch *arch, int64_t table)
{
    if (arch->vocab == 0)
        return 0;
    if (model_positions(arch) == MODEL_POSITIONS_LEARNED)
        table += (arch->position_rows > 0 ? arch->position_rows : arch->max_seq_len) * arch->hidden;
    return arch->embedding_norm ? table + norm_parameters(arch, arch->hidden) : table;
}

int64_t
model_table_parameters(const ModelArch *arch, int64_t tp)
{
    g_return_val_if_fail(arch != NULL && tp >= 1, 0);

    return model_ceil_div(arch->vocab, tp) * arch->hidden;
}

int64_t
model_part_parameters(const ModelArch *arch, ModelPart part, int64_t layer, int64_t tp, int64_t ep,
                      int64_t etp, bool tied_copy)
{
    g_return_val_if_fail(arch != NULL && tp >= 1 && ep >= 1 && etp >= 1, 0);

    const int64_t rows = model_ceil_div(arch->vocab, tp), table = model_table_parameters(arch, tp);
    switch (part) {
    case MODEL_PART_EMBEDDING:
        return embedding_parameters(arch, table);
    case MODEL_PART_LAYER: {
        const ModelArch kind = model_layer_arch(arch, layer);
        return kind_parameters(&kind, tp, ep, etp);
    }
    case MODEL_PART_HEAD:
        if (arch->vocab == 0)
            return 0;
        return (arch->no_final_norm ? 0 : norm_parameters(arch, arch->hidden)) +
               (arch->head_bias ? rows : 0) + (!arch->tied_embeddings || tied_copy ? table : 0);
    }
    g_return_val_if_reached(0);
}

int64_t
model_part_trained(const ModelArch *arch, ModelPart part, int64_t layer, int64_t tp, int64_t ep,
                   int64_t etp, bool tied_copy)
{
    g_return_val_if_fail(arch != NULL && tp >= 1, 0);

    if (arch->lora.rank == 0)
        return model_part_parameters(arch, part, layer, tp, ep, etp, tied_copy);
    if (part != MODEL_PART_LAYER)
        return 0;
    const ModelArch kind = model_layer_arch(arch, layer);
    return model_lora_parameters(&kind, tp);
}

int64_t
model_parameters(const ModelArch *arch)
{
    g_return_val_if_fail(arch != NULL, 0);

    int64_t counts[MODEL_MAX_KINDS];
    int64_t n = model_part_parameters(arch, MODEL_PART_EMBEDDING, 0, 1, 1, 1, false) +
                model_part_parameters(arch, MODEL_PART_HEAD, 0, 1, 1, 1, false);

    model_count_kinds(arch, counts);
    for (int32_t i = 0; i < model_n_kinds(arch); i++) {
        const ModelArch kind = model_kind_arch(arch, i);
        if (counts[i] > 0)
            n += counts[i] * kind_parameters(&kind, 1, 1, 1);
    }
    return n;
}

int64_t
model_trained_parameters(const ModelArch *arch)
{
    int64_t counts[MODEL_MAX_KINDS], n = 0;

    g_return_val_if_fail(arch != NULL, 0);

    if (arch->lora.rank == 0)
        return model_parameters(arch);
    model_count_kinds(arch, counts);
    for (int32_t i = 0; i < model_n_kinds(arch); i++) {
        const ModelArch kind = model_kind_arch(arch, i);
        n += counts[i] * model_lora_parameters(&kind, 1);
    }
    return n;
}

int64_t
model_active_parameters(const ModelArch *arch)
{
    g_return_val_if_fail(arch != NULL, 0);

    int64_t counts[MODEL_MAX_KINDS], n = model_parameters(arch);

    model_count_kinds(arch, counts);
    for (int32_t i = 0; i < model_n_kinds(arch); i++) {
        const ModelArch kind = model_kind_arch(arch, i);
        const int64_t idle = kind.experts.n_experts - kind.experts.top_k;
        n -= counts[i] * idle * expert_parameters(&kind, 1);
    }
    return n;
}

double
model_parameters_estimate(const ModelArch *arch)
{
    const double h = (double)arch->hidden, heads = (double)arch->n_heads;
    const ModelExperts *e = &arch->experts;
    const ModelState *s = &arch->state;
    const double v = fmax((double)arch->mla.v_head_dim, (double)arch->v_dim);
    const double ffn = fmax((double)arch->ffn_hidden,
                            ((double)e->n_experts + (double)e->n_shared) * (double)e->ffn_hidden +
                                (double)e->shared_hidden) +
                       2.0 * (double)e->latent;
    const double ranks = (double)arch->mla.q_lora_rank + (double)arch->mla.kv_lora_rank + v;
    const double attention = 4.0 * h * heads * (double)arch->head_dim +
                             2.0 * ranks * (h + heads * (double)arch->head_dim) +
                             4.0 * heads * v * (h + (double)arch->mla.kv_lora_rank);
    const double index = (double)arch->indexer.n_heads * (double)arch->indexer.head_dim *
                         (h + (double)arch->mla.q_lora_rank + 2.0);
    const double state_width =
        (double)s->n_heads * ((double)s->key_dim + (double)s->value_dim + 3.0);
    const double state = state_width * (6.0 * h + (double)s->conv + 4.0 * (double)s->rank +
                                        (double)s->key_dim + 8.0);
    /* Seven adapters at the most, of which each has the width and one more side. */
    const double lora = (double)arch->lora.rank *
                        (7.0 * h + heads * (3.0 * (double)arch->head_dim + 2.0 * v) + 3.0 * ffn);

    return ((double)arch->n_layers + (double)arch->mtp.n) *
               ((arch->mtp.n > 0 ? 2.0 * h * h : 0.0) + attention + index + state + lora +
                4.0 * h * (ffn + (double)e->n_experts + 8.0)) +
           2.0 * h *
               ((double)arch->vocab + (double)arch->max_seq_len + (double)arch->position_rows);
}
