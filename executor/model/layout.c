#include "executor/model/layout.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/order.h"
#include "executor/model/layout_build.h"
#include "executor/model/mixer.h"
#include "executor/model/mtp.h"

/* --- widths --- */

/* What layers of all kinds and the ends have in common. */
static ExecWidths
common_widths(const ExecModelOptions *options, const ModelArch *arch, Dtype storage)
{
    const Plan *plan = options->plan;

    return (ExecWidths){
        .arch = *arch,
        .kind = -1,
        .storage = storage,
        .hidden = arch->hidden,
        .seq_len = plan->seq_len,
        .max_seq_len = arch->max_seq_len,
        .tp = plan->degrees.tp,
        .cp = plan->degrees.cp,
        .sequence_parallel = plan->sequence_parallel && plan->degrees.tp > 1,
        .norm = model_norm(arch),
        .norm_epsilon = (float)arch->norm_epsilon,
    };
}

ExecWidths
exec_end_widths(const ExecModelOptions *options, Dtype storage)
{
    const ModelArch *arch = options->arch;
    const Plan *plan = options->plan;
    const int64_t tp = plan->degrees.tp;
    const ModelArch padded = model_arch_padded(arch, tp, plan_vocab_multiple(&plan->conventions));
    const int64_t rows = model_ceil_div(padded.vocab, tp);
    ExecWidths w = common_widths(options, arch, storage);

    w.first_token = MIN(arch->vocab, options->tp_index * rows);
    w.vocab = MIN(arch->vocab, w.first_token + rows) - w.first_token;
    w.padded_vocab = rows;
    return w;
}

/* Which halves a layer has, and which norms: as models/ops.c lists them. */
static void
set_block(const ModelArch *arch, ExecWidths *w)
{
    const bool pre = arch->norm_place != MODEL_NORM_PLACE_POST;
    const bool post = arch->norm_place != MODEL_NORM_PLACE_PRE;

    w->has_mixer = arch->mixer != MODEL_MIXER_NONE;
    w->has_ffn = arch->ffn != MODEL_FFN_NONE;
    w->parallel = arch->blocks != MODEL_BLOCKS_SERIAL && w->has_mixer && w->has_ffn;
    w->has_norm[EXEC_NORM_1] = w->has_mixer && pre;
    w->has_norm[EXEC_NORM_2] =
        w->has_ffn && pre && !(w->parallel && arch->blocks == MODEL_BLOCKS_PARALLEL_ONE_NORM);
    w->has_norm[EXEC_NORM_POST_1] = w->has_mixer && post;
    w->has_norm[EXEC_NORM_POST_2] = w->has_ffn && post;
    w->residual_scale = arch->residual_scale > 0.0 ? (float)arch->residual_scale : 1.0f;
}

static ExecActivation
activation_of(const ModelArch *arch)
{
    static const ExecActivation activations[MODEL_ACTIVATION_N] = {
        [MODEL_ACTIVATION_SWIGLU] = EXEC_ACTIVATION_SWIGLU,
        [MODEL_ACTIVATION_GEGLU] = EXEC_ACTIVATION_GEGLU,
        [MODEL_ACTIVATION_RELUGLU] = EXEC_ACTIVATION_RELUGLU,
        [MODEL_ACTIVATION_GELU] = EXEC_ACTIVATION_GELU,
        [MODEL_ACTIVATION_RELU2] = EXEC_ACTIVATION_RELU2,
        [MODEL_ACTIVATION_RELU] = EXEC_ACTIVATION_RELU,
        [MODEL_ACTIVATION_SILU] = EXEC_ACTIVATION_SILU,
    };

    return activations[model_activation(arch)];
}

static ExecRouterScores
router_scores_of(const ModelExperts *experts)
{
    static const ExecRouterScores scores[MODEL_ROUTER_N] = {
        [MODEL_ROUTER_SOFTMAX] = EXEC_ROUTER_SOFTMAX,
        [MODEL_ROUTER_SOFTMAX_ALL] = EXEC_ROUTER_SOFTMAX_ALL,
        [MODEL_ROUTER_SIGMOID] = EXEC_ROUTER_SIGMOID,
    };

    return scores[experts->router_scores];
}

ExecWidths
exec_kind_widths(const ExecModelOptions *options, Dtype storage, int32_t kind)
{
    const ModelArch arch = model_kind_arch(options->arch, kind);
    const int64_t tp = options->plan->degrees.tp, ep = options->plan->degrees.ep;
    const ModelExperts *experts = &arch.experts;
    const int64_t mlp = experts->n_experts > 0       ? model_shared_hidden(experts)
                        : arch.ffn != MODEL_FFN_NONE ? arch.ffn_hidden
                                                     : 0;
    ExecWidths w = common_widths(options, &arch, storage);

    w.kind = kind;
    set_block(&arch, &w);
    w.rotary = model_positions(&arch) == MODEL_POSITIONS_ROTARY;
    w.rope_base = arch.rope_base;
    w.n_heads = arch.n_heads / tp;
    w.n_kv_heads = MAX(1, arch.n_kv_heads / tp);
    w.head_dim = arch.head_dim;
    w.v_dim = model_v_dim(&arch);
    w.rotary_dim = model_has_mla(&arch)  ? arch.mla.qk_rope_head_dim
                   : arch.rotary_dim > 0 ? arch.rotary_dim
                                         : arch.head_dim;
    w.q_width = w.n_heads * w.head_dim;
    w.k_width = w.n_kv_heads * w.head_dim;
    w.v_width = w.n_kv_heads * w.v_dim;
    w.kv_width = w.k_width + w.v_width;
    w.out_width = w.n_heads * w.v_dim;
    w.activation = activation_of(&arch);
    w.gated = model_is_gated(&arch);
    w.ffn_hidden = mlp / tp;
    w.up_width = w.gated ? 2 * w.ffn_hidden : w.ffn_hidden;
    w.n_experts = experts->n_experts;
    w.top_k = experts->top_k;
    w.n_local_experts = experts->n_experts / ep;
    w.first_expert = options->ep_index * w.n_local_experts;
    w.expert_input = experts->latent > 0 ? experts->latent : arch.hidden;
    w.expert_hidden = experts->ffn_hidden;
    w.expert_up = (w.gated ? 2 : 1) * w.expert_hidden;
    w.router_scores = router_scores_of(experts);
    w.router_scale = (float)experts->router_scale;
    w.balance_experts = options->balance_experts;
    return w;
}

/* --- shards --- */

int64_t
exec_shard_cols(const ExecShard *shard)
{
    int64_t n = 0;

    for (int32_t i = 0; i < shard->n_runs; i++)
        n += shard->runs[i].n;
    return n;
}

int64_t
exec_shard_n(const ExecShard *shard)
{
    return shard->n_rows * exec_shard_cols(shard);
}

int64_t
exec_shard_at(const ExecShard *shard, int64_t i, int64_t *n)
{
    const int64_t cols = exec_shard_cols(shard);
    g_assert(cols > 0); /* there is an element i */
    int64_t col = i % cols;
    int32_t run = 0;

    while (col >= shard->runs[run].n)
        col -= shard->runs[run++].n;
    *n = shard->runs[run].n - col;
    return (shard->row_begin + i / cols) * shard->cols + shard->runs[run].begin + col;
}

ExecShard
exec_shard_whole(int64_t rows, int64_t cols)
{
    return (ExecShard){
        .rows = rows, .cols = cols, .n_rows = rows, .n_runs = 1, .runs = {{0, cols}}};
}

ExecShard
exec_shard_rows(int64_t rows, int64_t cols, int64_t begin, int64_t n)
{
    ExecShard shard = exec_shard_whole(rows, cols);

    shard.row_begin = begin;
    shard.n_rows = n;
    return shard;
}

/* The @index-th of @n equal parts of each of @n_blocks blocks of columns. */
ExecShard
exec_shard_columns(int64_t rows, int64_t cols, int32_t n_blocks, int64_t index, int64_t n)
{
    ExecShard shard = exec_shard_whole(rows, cols);
    const int64_t block = cols / n_blocks;

    shard.n_runs = n_blocks;
    for (int32_t b = 0; b < n_blocks; b++) {
        shard.runs[b].begin = b * block + index * (block / n);
        shard.runs[b].n = block / n;
    }
    return shard;
}

/* --- regions --- */

static void
set_replicas(ExecRegion *regions, const ExecModelOptions *o)
{
    const PlanDegrees *d = &o->plan->degrees;
    const ExecRegion dense = {.n_replicas = (int32_t)(d->dp * d->cp), .replica = o->dense_index};

    regions[EXEC_REGION_NORMS] = regions[EXEC_REGION_DENSE] = dense;
    regions[EXEC_REGION_EXPERTS] = (ExecRegion){
        .n_replicas = (int32_t)(d->dp * d->cp * d->tp / d->ep), .replica = o->expert_index};
}

/* How many elements a region has in the blocks of a content on the device. */
static int64_t
region_elements(const ExecRegion *region, ExecContent content)
{
    if (content == EXEC_CONTENT_WEIGHTS && region->weights_off)
        return 0;
    return region->sharded[content] ? region->n / region->n_replicas : region->n;
}

int64_t
exec_layout_content_elements(const ExecRegion *regions, ExecContent content)
{
    int64_t n = 0;

    for (int r = 0; r < EXEC_REGION_N; r++)
        n += region_elements(&regions[r], content);
    return n;
}

/* Sets what is sharded or off the device, and where the regions, whose lengths are known, then
 * begin in the blocks. */
static void
set_sharded(ExecRegion *regions, const Plan *plan)
{
    static const int32_t from_stage[EXEC_CONTENT_N] = {
        [EXEC_CONTENT_WEIGHTS] = 3, [EXEC_CONTENT_GRADIENTS] = 2, [EXEC_CONTENT_OPTIMIZER] = 1};

    for (int r = 0; r < EXEC_REGION_N; r++) {
        ExecRegion *region = &regions[r];
        region->weights_off = plan->offload_parameters && r != EXEC_REGION_NORMS;
        for (int content = 0; content < EXEC_CONTENT_N; content++) {
            region->sharded[content] =
                region->n_replicas > 1 && plan->zero_stage >= from_stage[content] &&
                (r != EXEC_REGION_NORMS || content == EXEC_CONTENT_OPTIMIZER);
            if (r > 0)
                region->at[content] =
                    region[-1].at[content] + region_elements(&region[-1], (ExecContent)content);
        }
    }
}

/* --- building --- */

/* Units' lengths are multiples of this, so that shards begin at cache lines in either storage. */
static int64_t
unit_multiple(const ExecLayoutBuilder *b)
{
    return b->o->plan->zero_stage > 0 ? 32 * b->layout->regions[b->region].n_replicas : 32;
}

/* Makes a unit of all parameters that were added since the last unit. */
static void
end_unit(ExecLayoutBuilder *b)
{
    ExecLayout *layout = b->layout;
    const int64_t multiple = unit_multiple(b);
    ExecUnit unit = {.begin = b->unit_begin, .region = b->region};

    if (layout->overflow || layout->parameters->len == b->first_parameter)
        return;
    unit.n = (layout->n - unit.begin + multiple - 1) / multiple * multiple;
    layout->n = b->unit_begin = unit.begin + unit.n;
    b->first_parameter = layout->parameters->len;
    g_array_append_val(layout->units, unit);
}

bool
exec_layout_find(const ExecLayout *layout, const char *name, guint *parameter)
{
    for (guint i = 0; i < layout->parameters->len; i++)
        if (g_str_equal(g_array_index(layout->parameters, ExecParameter, i).name, name)) {
            *parameter = i;
            return true;
        }
    return false;
}

/* How many matrices lie beside each other: as many as there are runs, if these are equal. */
static int64_t
n_equal_blocks(const ExecShard *shard)
{
    for (int32_t i = 1; i < shard->n_runs; i++)
        if (shard->runs[i].n != shard->runs[0].n)
            return 1;
    return shard->n_runs;
}

/* Adds a parameter, and binds it to the tensor at @member.  One that the rank already holds (a tied
 * table, where the rank has embedding and head) is only bound. */
static void
add_to(ExecLayoutBuilder *b, ExecRegionKind region, const char *name, size_t member,
       ExecShard shard, ExecShare share, ExecInit init, double deviation)
{
    ExecLayout *layout = b->layout;
    ExecBinding binding = {.stage = b->stage, .layer = b->layer, .member = member};
    const bool is_matrix = b->layer >= 0 && region != EXEC_REGION_NORMS && init == EXEC_INIT_NORMAL;
    ExecParameter parameter = {
        .shard = shard,
        .offset = layout->n,
        .init = init,
        .deviation = (float)deviation,
        .decays = init == EXEC_INIT_NORMAL && shard.rows > 1,
        .matrix_rows = !is_matrix                   ? 0
                       : share == EXEC_SHARE_EXPERT ? shard.rows / b->w->n_experts
                                                    : shard.rows,
        .matrix_cols = is_matrix ? shard.cols / n_equal_blocks(&shard) : 0,
        .share = share,
        .kind = b->layer < 0 ? -1 : b->w->kind,
        .unit = (int32_t)layout->units->len,
    };

    if (region != b->region)
        return;
    if (b->layer < 0)
        g_strlcpy(parameter.name, name, sizeof parameter.name);
    else
        g_snprintf(parameter.name, sizeof parameter.name, "layer.%" G_GINT64_FORMAT ".%s",
                   b->number, name);
    /* Only tables are asked for twice, and only they are searched for. */
    if (b->layer >= 0 || !exec_layout_find(layout, parameter.name, &binding.parameter)) {
        int64_t n;
        layout->overflow |= __builtin_mul_overflow(shard.n_rows + shard.n_padding_rows,
                                                   exec_shard_cols(&shard), &n) ||
                            __builtin_add_overflow(layout->n, n, &layout->n) ||
                            layout->n > INT64_MAX / 64;
        parameter.n = layout->overflow ? 0 : exec_shard_n(&shard);
        if (layout->overflow)
            layout->n = 0;
        layout->n = (layout->n + 31) / 32 * 32; /* a cache line in either storage */
        binding.parameter = layout->parameters->len;
        g_array_append_val(layout->parameters, parameter);
    }
    g_array_append_val(layout->bindings, binding);
}

void
exec_layout_add_weight(ExecLayoutBuilder *b, const char *name, size_t member, ExecShard shard,
                       ExecShare share, double deviation)
{
    add_to(b, share == EXEC_SHARE_EXPERT ? EXEC_REGION_EXPERTS : EXEC_REGION_DENSE, name, member,
           shard, share, EXEC_INIT_NORMAL, deviation);
}

void
exec_layout_add_bias(ExecLayoutBuilder *b, const char *name, size_t member, ExecShard shard,
                     ExecShare share)
{
    add_to(b, EXEC_REGION_DENSE, name, member, shard, share, EXEC_INIT_ZERO, 0);
}

void
exec_layout_add_norm(ExecLayoutBuilder *b, const char *name, size_t member, ExecShard shard,
                     ExecShare share, ExecInit init)
{
    add_to(b, EXEC_REGION_NORMS, name, member, shard, share, init, 0);
}

void
exec_layout_add_taps(ExecLayoutBuilder *b, const char *name, size_t member, ExecShard shard,
                     double deviation)
{
    add_to(b, EXEC_REGION_NORMS, name, member, shard, EXEC_SHARE_OWN, EXEC_INIT_NORMAL, deviation);
}

#define LAYER(tensor) EXEC_LAYER_TENSOR(tensor)
#define END(tensor) offsetof(ExecEndTensors, tensor)

/* With sequence parallelism the norms of a tp rank see only its own rows. */
static void
add_norm(ExecLayoutBuilder *b, const char *gain, size_t gain_member, const char *shift,
         size_t shift_member)
{
    const ExecShard shard = exec_shard_whole(1, b->w->hidden);
    const ExecShare share = b->w->sequence_parallel ? EXEC_SHARE_TP : EXEC_SHARE_OWN;

    if (b->w->norm != MODEL_NORM_PLAIN)
        exec_layout_add_norm(b, gain, gain_member, shard, share, EXEC_INIT_ONE);
    if (b->w->norm == MODEL_NORM_LAYER)
        exec_layout_add_norm(b, shift, shift_member, shard, share, EXEC_INIT_ZERO);
}

static void
add_layer_norm(ExecLayoutBuilder *b, ExecLayerNorm norm)
{
    static const char *const names[EXEC_NORM_N][2] = {{"norm1.gain", "norm1.shift"},
                                                      {"norm2.gain", "norm2.shift"},
                                                      {"post_norm1.gain", "post_norm1.shift"},
                                                      {"post_norm2.gain", "post_norm2.shift"}};
    const size_t offset = (size_t)norm * sizeof(ExecTensor);

    if (b->w->has_norm[norm])
        add_norm(b, names[norm][0], LAYER(norm_gain) + offset, names[norm][1],
                 LAYER(norm_shift) + offset);
}

/* The columns of the projection are split: mtp.h. */
static void
add_mtp(ExecLayoutBuilder *b)
{
    static const char *const names[EXEC_MTP_NORM_N][2] = {
        [EXEC_MTP_HIDDEN] = {"mtp_hidden_norm.gain", "mtp_hidden_norm.shift"},
        [EXEC_MTP_EMBEDDING] = {"mtp_embedding_norm.gain", "mtp_embedding_norm.shift"},
        [EXEC_MTP_FINAL] = {"mtp_final_norm.gain", "mtp_final_norm.shift"},
    };
    const ExecWidths *w = b->w;

    for (size_t i = 0; i < EXEC_MTP_NORM_N; i++)
        add_norm(b, names[i][0], LAYER(mtp_norm_gain) + i * sizeof(ExecTensor), names[i][1],
                 LAYER(mtp_norm_shift) + i * sizeof(ExecTensor));
    exec_layout_add_weight(b, "mtp_proj.weight", LAYER(mtp_proj),
                           exec_shard_columns(2 * w->hidden, w->hidden, 1, b->o->tp_index, w->tp),
                           EXEC_SHARE_OWN, b->deviation);
}

/* A dense MLP, or the shared experts: every tp rank has its share of the columns. */
static void
add_mlp(ExecLayoutBuilder *b, const char *const names[4])
{
    const ExecWidths *w = b->w;
    const int32_t n_blocks = w->gated ? 2 : 1;
    const int64_t index = b->o->tp_index, part = w->ffn_hidden, ffn = part * w->tp;
    const bool bias = model_has_mlp_bias(&w->arch);

    exec_layout_add_weight(b, names[0], LAYER(mlp_up_weight),
                           exec_shard_columns(w->hidden, n_blocks * ffn, n_blocks, index, w->tp),
                           EXEC_SHARE_OWN, b->deviation);
    if (bias)
        exec_layout_add_bias(b, names[1], LAYER(mlp_up_bias),
                             exec_shard_columns(1, n_blocks * ffn, n_blocks, index, w->tp),
                             EXEC_SHARE_OWN);
    exec_layout_add_weight(b, names[2], LAYER(mlp_down_weight),
                           exec_shard_rows(ffn, w->hidden, index * part, part), EXEC_SHARE_OWN,
                           b->projection);
    if (bias)
        exec_layout_add_bias(b, names[3], LAYER(mlp_down_bias), exec_shard_whole(1, w->hidden),
                             EXEC_SHARE_OWN);
}

/* The vectors of one expert lie behind those of the one before. */
static void
add_expert_bias(ExecLayoutBuilder *b, const char *name, size_t member, int64_t n)
{
    const ExecWidths *w = b->w;

    add_to(b, EXEC_REGION_EXPERTS, name, member,
           exec_shard_rows(w->n_experts, n, w->first_expert, w->n_local_experts), EXEC_SHARE_EXPERT,
           EXEC_INIT_ZERO, 0);
}

/* Router and latent products see only the rows that their tp rank routes, with sequence parallelism
 * or without: moe.h.  The gate of shared experts sees this rank's rows between products. */
static void
add_experts(ExecLayoutBuilder *b)
{
    static const char *const shared[] = {"shared_up.weight", "shared_up.bias", "shared_down.weight",
                                         "shared_down.bias"};
    const ExecWidths *w = b->w;
    const int64_t f = w->expert_hidden, in = w->expert_input;
    ExecShard up = exec_shard_rows(w->n_experts * in, w->expert_up, w->first_expert * in,
                                   w->n_local_experts * in);

    /* All columns, of both halves. */
    if (w->gated) {
        up.n_runs = 2;
        up.runs[0].n = up.runs[1].n = up.runs[1].begin = f;
    }
    exec_layout_add_weight(b, "router.weight", LAYER(router_weight),
                           exec_shard_whole(w->hidden, w->n_experts), EXEC_SHARE_TP, b->deviation);
    if (w->arch.experts.router_bias)
        exec_layout_add_bias(b, "router.bias", LAYER(router_bias),
                             exec_shard_whole(1, w->n_experts), EXEC_SHARE_TP);
    if (w->arch.experts.latent > 0) {
        exec_layout_add_weight(b, "latent_down.weight", LAYER(latent_down),
                               exec_shard_whole(w->hidden, in), EXEC_SHARE_TP, b->deviation);
        exec_layout_add_weight(b, "latent_up.weight", LAYER(latent_up),
                               exec_shard_whole(in, w->hidden), EXEC_SHARE_TP, b->projection);
    }
    exec_layout_add_weight(b, "experts_up.weight", LAYER(experts_up_weight), up, EXEC_SHARE_EXPERT,
                           b->deviation);
    exec_layout_add_weight(
        b, "experts_down.weight", LAYER(experts_down_weight),
        exec_shard_rows(w->n_experts * f, in, w->first_expert * f, w->n_local_experts * f),
        EXEC_SHARE_EXPERT, w->arch.experts.latent > 0 ? b->deviation : b->projection);
    if (model_has_expert_bias(&w->arch)) {
        add_expert_bias(b, "experts_up.bias", LAYER(experts_up_bias), w->expert_up);
        add_expert_bias(b, "experts_down.bias", LAYER(experts_down_bias), in);
    }
    if (w->ffn_hidden > 0)
        add_mlp(b, shared);
    if (w->arch.experts.shared_gate && w->ffn_hidden > 0)
        exec_layout_add_weight(b, "shared_gate.weight", LAYER(shared_gate),
                               exec_shard_whole(w->hidden, 1),
                               w->sequence_parallel ? EXEC_SHARE_TP : EXEC_SHARE_OWN, b->deviation);
}

static void
add_layer(ExecLayoutBuilder *b)
{
    static const char *const dense[] = {"mlp_up.weight", "mlp_up.bias", "mlp_down.weight",
                                        "mlp_down.bias"};

    b->w = &b->kinds[model_layer_kind(b->o->arch, b->number)];
    if (b->w->arch.is_mtp)
        add_mtp(b);
    add_layer_norm(b, EXEC_NORM_1);
    if (b->w->has_mixer)
        exec_mixer(b->w)->add_parameters(b);
    add_layer_norm(b, EXEC_NORM_POST_1);
    add_layer_norm(b, EXEC_NORM_2);
    if (b->w->n_experts > 0)
        add_experts(b);
    else if (b->w->has_ffn)
        add_mlp(b, dense);
    add_layer_norm(b, EXEC_NORM_POST_2);
    end_unit(b);
    b->w = &b->ends;
}

/* The rows of a table that belong to this rank's tokens. */
static void
add_table(ExecLayoutBuilder *b, const char *name, size_t member)
{
    const ExecWidths *w = b->w;
    ExecShard shard = exec_shard_rows(b->o->arch->vocab, w->hidden, w->first_token, w->vocab);

    shard.n_padding_rows = w->padded_vocab - w->vocab;
    exec_layout_add_weight(b, name, member, shard, EXEC_SHARE_OWN, b->deviation);
}

/* Positions are added to all rows of the embedding, before these are split over tp. */
static void
add_embedding(ExecLayoutBuilder *b)
{
    const ModelArch *arch = b->o->arch;

    add_table(b, "embedding.token", END(token_table));
    /* A unit of its own: the head's rank has the tied table without the positions. */
    end_unit(b);
    if (model_positions(arch) == MODEL_POSITIONS_LEARNED)
        exec_layout_add_weight(
            b, "embedding.position", END(position_table),
            exec_shard_whole(arch->position_rows > 0 ? arch->position_rows : arch->max_seq_len,
                             arch->hidden),
            EXEC_SHARE_OWN, b->deviation);
    if (arch->embedding_norm)
        add_norm(b, "embedding_norm.gain", END(embedding_gain), "embedding_norm.shift",
                 END(embedding_shift));
    end_unit(b);
}

/* Of a column of the logits each, in the order of the table's rows. */
static void
add_head_bias(ExecLayoutBuilder *b)
{
    const ExecWidths *w = b->w;
    ExecShard shard = exec_shard_rows(b->o->arch->vocab, 1, w->first_token, w->vocab);

    shard.n_padding_rows = w->padded_vocab - w->vocab;
    exec_layout_add_bias(b, "head.bias", END(head_bias), shard, EXEC_SHARE_OWN);
}

static void
add_head(ExecLayoutBuilder *b)
{
    const ModelArch *arch = b->o->arch;

    if (!arch->no_final_norm)
        add_norm(b, "norm.gain", END(norm_gain), "norm.shift", END(norm_shift));
    add_table(b, arch->tied_embeddings ? "embedding.token" : "head.weight", END(head_table));
    end_unit(b);
    if (arch->head_bias)
        add_head_bias(b);
    end_unit(b);
}

/* MTP modules embed, too. */
static void
add_copy_of_table(ExecLayoutBuilder *b)
{
    add_table(b, "embedding.token", END(token_table));
    end_unit(b);
}

static bool
has_mtp(const ModelArch *arch, const PlanStage *stage)
{
    return stage->n_layers > 0 &&
           model_n_mtp_before(arch, stage->first_layer + stage->n_layers) > 0;
}

static void
add_stages(ExecLayoutBuilder *b)
{
    const Plan *plan = b->o->plan;

    b->stage = 0;
    for (guint i = 0; i < plan->stages->len; i++) {
        const PlanStage *stage = &g_array_index(plan->stages, PlanStage, i);
        if (stage->rank != b->o->pipeline_rank)
            continue;
        b->layer = -1;
        if (stage->embedding)
            add_embedding(b);
        else if (has_mtp(b->o->arch, stage))
            add_copy_of_table(b);
        for (b->layer = 0; b->layer < stage->n_layers; b->layer++) {
            b->number = stage->first_layer + b->layer;
            add_layer(b);
        }
        b->layer = -1;
        if (stage->head)
            add_head(b);
        b->stage++;
    }
}

static int
compare_bindings(const void *a, const void *b)
{
    return ORDER(((const ExecBinding *)a)->parameter, ((const ExecBinding *)b)->parameter);
}

/* Sorts the bindings by parameter, and notes in every unit which are its own. */
static void
index_bindings(ExecLayout *layout)
{
    g_array_sort(layout->bindings, compare_bindings);
    for (guint i = 0; i < layout->bindings->len; i++) {
        const guint parameter = g_array_index(layout->bindings, ExecBinding, i).parameter;
        ExecUnit *unit =
            &g_array_index(layout->units, ExecUnit,
                           g_array_index(layout->parameters, ExecParameter, parameter).unit);
        if (unit->n_bindings++ == 0)
            unit->first_binding = i;
    }
}

ExecLayout
exec_layout_new(const ExecModelOptions *options)
{
    ExecLayout layout = {
        .parameters = g_array_new(false, true, sizeof(ExecParameter)),
        .bindings = g_array_new(false, true, sizeof(ExecBinding)),
        .units = g_array_new(false, true, sizeof(ExecUnit)),
    };
    ExecLayoutBuilder b = {
        .o = options, .ends = exec_end_widths(options, DTYPE_FP32), .layout = &layout};

    b.w = &b.ends;
    for (int32_t i = 0; i < model_n_kinds(options->arch); i++)
        b.kinds[i] = exec_kind_widths(options, DTYPE_FP32, i);

    b.deviation = options->init_deviation > 0 ? (double)options->init_deviation : 0.02;
    b.projection = b.deviation / sqrt(2.0 * (double)options->arch->n_layers);

    set_replicas(layout.regions, options);
    for (b.region = 0; b.region < EXEC_REGION_N; b.region++) {
        ExecRegion *region = &layout.regions[b.region];
        region->begin = layout.n;
        add_stages(&b);
        region->n = layout.n - region->begin;
    }
    set_sharded(layout.regions, options->plan);
    if (!layout.overflow)
        index_bindings(&layout);
    return layout;
}

void
exec_layout_clear(ExecLayout *layout)
{
    g_array_unref(layout->parameters);
    g_array_unref(layout->bindings);
    g_array_unref(layout->units);
}

static int
compare_names(const void *a, const void *b, void *parameters)
{
    const ExecSharedParameter *x = a, *y = b;

    return strcmp(g_array_index((GArray *)parameters, ExecParameter, x->parameter).name,
                  g_array_index((GArray *)parameters, ExecParameter, y->parameter).name);
}

GArray *
exec_layout_shared_parameters(const ExecModelOptions *options)
{
    g_autoptr(GArray) all = g_array_new(false, false, sizeof(ExecSharedParameter));
    GArray *result = g_array_new(false, false, sizeof(ExecSharedParameter));
    ExecLayout own = exec_layout_new(options);
    g_autoptr(GHashTable) names = g_hash_table_new(g_str_hash, g_str_equal);

    for (guint i = 0; i < own.parameters->len; i++) {
        const ExecSharedParameter held = {.parameter = i};
        g_hash_table_insert(names, g_array_index(own.parameters, ExecParameter, i).name,
                            GUINT_TO_POINTER(i + 1));
        g_array_append_val(all, held);
    }
    for (int32_t rank = 0; rank < options->plan->degrees.pp; rank++) {
        ExecModelOptions other = *options;
        other.pipeline_rank = rank;
        ExecLayout layout = exec_layout_new(&other);
        for (guint i = 0; i < layout.parameters->len; i++) {
            const guint found = GPOINTER_TO_UINT(g_hash_table_lookup(
                names, g_array_index(layout.parameters, ExecParameter, i).name));
            if (found == 0)
                continue;
            ExecSharedParameter *held = &g_array_index(all, ExecSharedParameter, found - 1);
            g_assert(held->n < EXEC_MAX_SHARERS);
            held->ranks[held->n++] = rank;
        }
        exec_layout_clear(&layout);
    }
    for (guint i = 0; i < all->len; i++)
        if (g_array_index(all, ExecSharedParameter, i).n > 1)
            g_array_append_val(result, g_array_index(all, ExecSharedParameter, i));
    g_array_sort_with_data(result, compare_names, own.parameters);
    exec_layout_clear(&own);
    return result;
}

double
exec_layout_bytes(const ExecModelOptions *options)
{
    static const double moments = 8;
    ExecLayout layout = exec_layout_new(options);
    const Dtype dtype = options->plan->dtype;
    const double of_element[EXEC_CONTENT_N] = {
        [EXEC_CONTENT_WEIGHTS] = (double)dtype_bytes(dtype),
        [EXEC_CONTENT_GRADIENTS] = 4,
        [EXEC_CONTENT_OPTIMIZER] = dtype == DTYPE_FP32 ? moments : moments + 4,
    };
    double sum = layout.overflow ? (double)INFINITY : 0;

    /* Weights in host memory, where everything else of the offload is too. */
    if (!layout.overflow && options->optimizer && options->plan->offload_parameters)
        sum += of_element[EXEC_CONTENT_WEIGHTS] *
               (double)exec_layout_content_elements(layout.regions, EXEC_CONTENT_OPTIMIZER);
    for (int content = 0; content < EXEC_CONTENT_N && !layout.overflow; content++)
        if (content != EXEC_CONTENT_OPTIMIZER || options->optimizer)
            sum += of_element[content] *
                   (double)exec_layout_content_elements(layout.regions, (ExecContent)content);
    exec_layout_clear(&layout);
    return sum;
}
