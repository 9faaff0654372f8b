#include "executor/model/layer.h"

#include "executor/model/attention.h"
#include "executor/model/linear.h"

/* --- what a layer needs of memory --- */

/* Columns of the products of the MLP, or of the shared experts. */
static int64_t
ffn_width(const ExecWidths *w, bool moe)
{
    return moe ? w->shared_hidden : w->ffn_hidden;
}

static int64_t
up_width(const ExecWidths *w, bool moe)
{
    return moe ? 2 * w->shared_hidden : w->up_width;
}

/* A layer of experts of which none is shared has no MLP. */
static bool
has_mlp(const ExecWidths *w, bool moe)
{
    return !moe || w->shared_hidden > 0;
}

ExecLayerActivations
exec_layer_activations(const ExecWidths *w, int64_t rows, bool moe, PlanRecompute recompute,
                       ExecCutter *inputs, ExecCutter *products)
{
    const int64_t local_rows = exec_local_rows(w, rows);
    ExecLayerActivations a = {0};

    a.norm1 = exec_cut(products, local_rows * w->hidden);
    a.attention = exec_cut(products, rows * w->q_width);
    a.norm2 = exec_cut(products, local_rows * w->hidden);
    a.active = exec_cut(products, rows * ffn_width(w, moe));
    a.q = exec_cut(inputs, rows * w->q_width);
    a.x2 = exec_cut(inputs, local_rows * w->hidden);
    a.up = exec_cut(inputs, rows * up_width(w, moe));
    a.mean1 = w->rms_norm ? NULL : exec_cut_words(inputs, local_rows);
    a.rstd1 = exec_cut_words(inputs, local_rows);
    a.mean2 = w->rms_norm ? NULL : exec_cut_words(inputs, local_rows);
    a.rstd2 = exec_cut_words(inputs, local_rows);
    if (recompute != PLAN_RECOMPUTE_SELECTIVE)
        a.lse = exec_cut_words(inputs, rows * w->n_heads);
    return a;
}

ExecLayerActivations
exec_layer_passing(const ExecWidths *w, int64_t rows, bool moe, ExecCutter *cutter)
{
    const int64_t local_rows = exec_local_rows(w, rows);
    ExecLayerActivations a = {.x2 = exec_cut(cutter, local_rows * w->hidden)};
    ExecCutter mlp = *cutter; /* attention is over when the MLP begins */

    a.norm1 = exec_cut(cutter, local_rows * w->hidden);
    a.q = exec_cut(cutter, rows * w->q_width);
    a.attention = exec_cut(cutter, rows * w->q_width);
    a.lse = exec_cut_words(cutter, rows * w->n_heads);
    a.mean1 = w->rms_norm ? NULL : exec_cut_words(cutter, local_rows);
    a.rstd1 = exec_cut_words(cutter, local_rows);
    a.norm2 = exec_cut(&mlp, local_rows * w->hidden);
    a.up = exec_cut(&mlp, rows * up_width(w, moe));
    a.active = exec_cut(&mlp, rows * ffn_width(w, moe));
    a.mean2 = w->rms_norm ? NULL : exec_cut_words(&mlp, local_rows);
    a.rstd2 = exec_cut_words(&mlp, local_rows);
    cutter->n_bytes = MAX(cutter->n_bytes, mlp.n_bytes);
    return a;
}

ExecLayerKept
exec_layer_kept(const ExecWidths *w, int64_t rows, bool moe, ExecCutter *cutter)
{
    ExecLayerKept kept;

    kept.d_q = exec_cut(cutter, rows * w->q_width);
    kept.d_kv = exec_cut(cutter, rows * 2 * w->kv_width);
    kept.d_proj = exec_cut(cutter, rows * w->hidden);
    kept.d_up = exec_cut(cutter, rows * up_width(w, moe));
    kept.d_down = exec_cut(cutter, has_mlp(w, moe) ? rows * w->hidden : 0);
    return kept;
}

/* F needs memory for collectives, B also for what an I leaves in its ExecLayerKept; W reads that.
 */
ExecLayerScratch
exec_layer_scratch(const ExecWidths *w, int64_t rows, int64_t sequences, ScheduleOpKind kind,
                   ExecCutter *cutter)
{
    const bool forward = kind == SCHEDULE_OP_FORWARD, whole = kind == SCHEDULE_OP_BACKWARD;
    const bool backward = whole || kind == SCHEDULE_OP_BACKWARD_INPUT;
    const int64_t kv = w->cp == 1 ? 0 : w->seq_len * sequences * 2 * w->kv_width;
    /* The activation's gradient is read before the input's is written. */
    const int64_t active = w->gated ? MAX(w->ffn_hidden, w->shared_hidden) : 0;
    const int64_t up = MAX(w->up_width, 2 * w->shared_hidden);
    ExecLayerScratch scratch = {0};

    scratch.rows = exec_cut(cutter, w->sequence_parallel ? rows * w->hidden : 0);
    if (backward)
        scratch.partial = scratch.d_active = exec_cut(cutter, rows * MAX(w->hidden, active));
    else if (forward)
        scratch.partial = exec_cut(cutter, w->sequence_parallel ? rows * w->hidden : 0);
    ExecCutter mlp = *cutter; /* attention and the MLP do not need the rest at the same time */
    scratch.d_attention = exec_cut(cutter, backward ? rows * w->q_width : 0);
    scratch.kv = exec_cut(cutter, forward || backward ? kv : 0);
    scratch.d_kv = exec_cut_words(cutter, backward ? kv : 0);
    scratch.ring = exec_cut(cutter, forward || backward ? kv : 0);
    scratch.kept.d_q = exec_cut(cutter, whole ? rows * w->q_width : 0);
    scratch.kept.d_kv = exec_cut(cutter, whole ? rows * 2 * w->kv_width : 0);
    if (backward)
        scratch.kept.d_up = exec_cut(&mlp, rows * (whole ? MAX(w->hidden, up) : w->hidden));
    cutter->n_bytes = MAX(cutter->n_bytes, mlp.n_bytes);
    return scratch;
}

/* --- the MLP --- */

static int64_t
ffn_of(const ExecLayer *layer)
{
    return ffn_width(layer->widths, layer->moe != NULL);
}

static ExecLinear
up_of(const ExecLayer *layer)
{
    return exec_layer_linear(layer, layer->widths->hidden,
                             (layer->widths->gated ? 2 : 1) * ffn_of(layer),
                             &layer->tensors->mlp_up_weight, &layer->tensors->mlp_up_bias);
}

static ExecLinear
down_of(const ExecLayer *layer)
{
    return exec_layer_linear(layer, ffn_of(layer), layer->widths->hidden,
                             &layer->tensors->mlp_down_weight, &layer->tensors->mlp_down_bias);
}

void
exec_mlp_forward(const ExecLayer *layer, void *y)
{
    const ExecLinear up = up_of(layer), down = down_of(layer);
    const ExecLayerActivations *a = &layer->a;
    const bool gated = layer->widths->gated;

    exec_linear_forward(layer->backend, &up, exec_gather_rows(layer, a->norm2),
                        gated ? NULL : a->active, a->up);
    if (gated)
        layer->backend->ops->swiglu_forward(layer->backend, down.rows, down.inputs, a->up,
                                            a->active);
    exec_row_split_forward(layer, &down, a->active, a->x2, y);
}

void *
exec_mlp_backward(const ExecLayer *layer, void *d_up, const void *dy)
{
    const ExecLinear up = up_of(layer), down = down_of(layer);
    const ExecLayerScratch *scratch = layer->scratch;

    if (layer->widths->gated) {
        exec_linear_backward(layer->backend, &down, dy, false, NULL, scratch->d_active);
        layer->backend->ops->swiglu_backward(layer->backend, down.rows, down.inputs, layer->a.up,
                                             scratch->d_active, d_up);
    } else {
        exec_linear_backward(layer->backend, &down, dy, false, layer->a.up, d_up);
    }
    exec_linear_backward(layer->backend, &up, d_up, false, NULL, scratch->partial);
    return exec_reduce_rows(layer, scratch->partial);
}

void
exec_mlp_weight(const ExecLayer *layer, const void *d_up, const void *d_down)
{
    const ExecLinear up = up_of(layer), down = down_of(layer);

    exec_linear_weight(layer->backend, &down, layer->a.active, d_down);
    exec_linear_weight(layer->backend, &up, exec_gather_rows(layer, layer->a.norm2), d_up);
}

/* --- the layer --- */

static int64_t
local_rows(const ExecLayer *layer)
{
    return exec_local_rows(layer->widths, exec_slice_rows(&layer->slice));
}

/* Norm 1 or 2 at work. */
static ExecNorm
norm_of(const ExecLayer *layer, bool second)
{
    const ExecLayerTensors *t = layer->tensors;
    const ExecLayerActivations *a = &layer->a;

    return (ExecNorm){
        .rows = local_rows(layer),
        .cols = layer->widths->hidden,
        .x = second ? a->x2 : layer->x,
        .gain = second ? t->norm2_gain.weight : t->norm1_gain.weight,
        .shift = second ? t->norm2_shift.weight : t->norm1_shift.weight,
        .mean = second ? a->mean2 : a->mean1,
        .rstd = second ? a->rstd2 : a->rstd1,
        .epsilon = layer->widths->norm_epsilon,
    };
}

void
exec_layer_forward(const ExecLayer *layer, void *y)
{
    const ExecNorm norm1 = norm_of(layer, false), norm2 = norm_of(layer, true);

    layer->backend->ops->norm_forward(layer->backend, &norm1, layer->a.norm1);
    exec_attention_forward(layer);
    layer->backend->ops->norm_forward(layer->backend, &norm2, layer->a.norm2);
    if (layer->moe != NULL)
        exec_moe_forward(layer, y);
    else
        exec_mlp_forward(layer, y);
}

static void
mlp_weight(const ExecLayer *layer, const void *d_up, const void *d_down)
{
    if (layer->moe != NULL)
        exec_moe_weight(layer, d_up, d_down);
    else
        exec_mlp_weight(layer, d_up, d_down);
}

/* All rows of gradient @d, and for W a copy in @kept (nullable), because d changes. */
static const void *
gather_gradient(const ExecLayer *layer, const void *d, void *kept)
{
    const void *rows = exec_gather_rows(layer, d);
    const int64_t n = exec_slice_rows(&layer->slice) * layer->widths->hidden;

    if (kept != NULL)
        layer->backend->ops->copy(layer->backend, (size_t)exec_storage_bytes(layer->backend, n),
                                  rows, kept);
    return rows;
}

/* d is first the gradient of y, then that of x2, then that of x; each is read (B) or copied (I)
 * before the next norm adds to it. */
void
exec_layer_backward(const ExecLayer *layer, const ExecLayerKept *kept, void *d)
{
    ExecBackend *backend = layer->backend;
    const ExecBackendOps *ops = backend->ops;
    const ExecLayerTensors *t = layer->tensors;
    const ExecNorm norm1 = norm_of(layer, false), norm2 = norm_of(layer, true);
    const ExecLayerKept *to = kept != NULL ? kept : &layer->scratch->kept;
    const void *dy = NULL;

    if (has_mlp(layer->widths, layer->moe != NULL))
        dy = gather_gradient(layer, d, kept != NULL ? kept->d_down : NULL);
    const void *d_norm = layer->moe != NULL ? exec_moe_backward(layer, to->d_up, d, dy)
                                            : exec_mlp_backward(layer, to->d_up, dy);
    if (kept == NULL)
        mlp_weight(layer, to->d_up, dy);
    ops->norm_backward(backend, &norm2, d_norm, d, t->norm2_gain.gradient, t->norm2_shift.gradient);
    dy = gather_gradient(layer, d, kept != NULL ? kept->d_proj : NULL);
    d_norm = exec_attention_backward(layer, to, dy);
    if (kept == NULL)
        exec_attention_weight(layer, to, dy);
    ops->norm_backward(backend, &norm1, d_norm, d, t->norm1_gain.gradient, t->norm1_shift.gradient);
}

void
exec_layer_backward_weight(const ExecLayer *layer, const ExecLayerKept *kept)
{
    mlp_weight(layer, kept->d_up, kept->d_down);
    exec_attention_weight(layer, kept, kept->d_proj);
}
