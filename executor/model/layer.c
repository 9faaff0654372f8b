#include "executor/model/layer.h"

#include "executor/model/linear.h"

/* --- views into blocks --- */

/* Cuts pieces off a block; every piece begins at a multiple of 64 bytes. */
typedef struct {
    char *block; /* NULL while only the size is asked for */
    int64_t n_bytes;
    Dtype storage;
} Cutter;

static void *
cut_bytes(Cutter *cutter, int64_t n_bytes)
{
    void *piece = cutter->block == NULL ? NULL : cutter->block + cutter->n_bytes;

    cutter->n_bytes += (n_bytes + 63) / 64 * 64;
    return piece;
}

/* @n elements of storage, or fp32 values. */
static void *
cut(Cutter *cutter, int64_t n)
{
    return cut_bytes(cutter, n * dtype_bytes(cutter->storage));
}

static float *
cut_floats(Cutter *cutter, int64_t n)
{
    return cut_bytes(cutter, n * (int64_t)sizeof(float));
}

/* Columns of the MLP's first product, or of the shared experts'. */
static int64_t
up_width(const ExecWidths *w, bool moe)
{
    return moe ? 2 * w->shared_hidden : w->up_width;
}

/* Experts alone have none. */
static bool
has_mlp(const ExecWidths *w, bool moe)
{
    return !moe || w->shared_hidden > 0;
}

/* From two blocks; either may be asked for alone. */
static ExecLayerActivations
cut_activations(Cutter *inputs, Cutter *products, const ExecWidths *w, int64_t rows, bool moe,
                PlanRecompute recompute)
{
    const int64_t local_rows = exec_local_rows(w, rows);
    ExecLayerActivations a = {
        .norm1 = cut(products, local_rows * w->hidden),
        .attention = cut(products, rows * w->q_width),
        .norm2 = cut(products, local_rows * w->hidden),
        .active = cut(products, rows * (moe ? w->shared_hidden : w->ffn_hidden)),
        .q = cut(inputs, rows * w->q_width),
        .x2 = cut(inputs, local_rows * w->hidden),
        .up = cut(inputs, rows * up_width(w, moe)),
        .mean1 = w->rms_norm ? NULL : cut_floats(inputs, local_rows),
        .rstd1 = cut_floats(inputs, local_rows),
        .mean2 = w->rms_norm ? NULL : cut_floats(inputs, local_rows),
        .rstd2 = cut_floats(inputs, local_rows),
    };

    if (recompute != PLAN_RECOMPUTE_SELECTIVE)
        a.lse = cut_floats(inputs, rows * w->n_heads);
    return a;
}

ExecLayerBytes
exec_layer_activation_bytes(const ExecWidths *widths, int64_t rows, bool moe,
                            PlanRecompute recompute)
{
    Cutter inputs = {.storage = widths->storage}, products = inputs;

    cut_activations(&inputs, &products, widths, rows, moe, recompute);
    return (ExecLayerBytes){inputs.n_bytes, products.n_bytes};
}

ExecLayerActivations
exec_layer_activations(const ExecWidths *widths, int64_t rows, bool moe, PlanRecompute recompute,
                       void *inputs_block, void *products_block)
{
    Cutter inputs = {.block = inputs_block, .storage = widths->storage};
    Cutter products = {.block = products_block, .storage = widths->storage};

    return cut_activations(&inputs, &products, widths, rows, moe, recompute);
}

/* The halves of a layer follow each other: they share what comes after the sum between them. */
static ExecLayerActivations
cut_passing(Cutter *cutter, const ExecWidths *w, int64_t rows, bool moe)
{
    const int64_t local_rows = exec_local_rows(w, rows);
    ExecLayerActivations a = {.x2 = cut(cutter, local_rows * w->hidden)};
    Cutter mlp = *cutter;

    a.norm1 = cut(cutter, local_rows * w->hidden);
    a.q = cut(cutter, rows * w->q_width);
    a.attention = cut(cutter, rows * w->q_width);
    a.lse = cut_floats(cutter, rows * w->n_heads);
    a.mean1 = w->rms_norm ? NULL : cut_floats(cutter, local_rows);
    a.rstd1 = cut_floats(cutter, local_rows);
    a.norm2 = cut(&mlp, local_rows * w->hidden);
    a.up = cut(&mlp, rows * up_width(w, moe));
    a.active = cut(&mlp, rows * (moe ? w->shared_hidden : w->ffn_hidden));
    a.mean2 = w->rms_norm ? NULL : cut_floats(&mlp, local_rows);
    a.rstd2 = cut_floats(&mlp, local_rows);
    cutter->n_bytes = MAX(cutter->n_bytes, mlp.n_bytes);
    return a;
}

int64_t
exec_layer_passing_bytes(const ExecWidths *widths, int64_t rows, bool moe)
{
    Cutter cutter = {.storage = widths->storage};

    cut_passing(&cutter, widths, rows, moe);
    return cutter.n_bytes;
}

ExecLayerActivations
exec_layer_passing(const ExecWidths *widths, int64_t rows, bool moe, void *block)
{
    Cutter cutter = {.block = block, .storage = widths->storage};

    return cut_passing(&cutter, widths, rows, moe);
}

static ExecLayerKept
cut_kept(Cutter *cutter, const ExecWidths *w, int64_t rows, bool moe)
{
    ExecLayerKept kept;

    kept.d_q = cut(cutter, rows * w->q_width);
    kept.d_proj = cut(cutter, rows * w->hidden);
    kept.d_up = cut(cutter, rows * up_width(w, moe));
    kept.d_down = cut(cutter, has_mlp(w, moe) ? rows * w->hidden : 0);
    return kept;
}

int64_t
exec_layer_kept_bytes(const ExecWidths *widths, int64_t rows, bool moe)
{
    Cutter cutter = {.storage = widths->storage};

    cut_kept(&cutter, widths, rows, moe);
    return cutter.n_bytes;
}

ExecLayerKept
exec_layer_kept(const ExecWidths *widths, int64_t rows, bool moe, void *block)
{
    Cutter cutter = {.block = block, .storage = widths->storage};

    return cut_kept(&cutter, widths, rows, moe);
}

/* F needs what collectives need; I keeps what B lets go; W reads what is kept. */
static ExecLayerScratch
cut_scratch(Cutter *cutter, const ExecWidths *w, int64_t rows, int64_t sequences,
            ScheduleOpKind kind)
{
    const bool forward = kind == SCHEDULE_OP_FORWARD, whole = kind == SCHEDULE_OP_BACKWARD;
    const bool backward = whole || kind == SCHEDULE_OP_BACKWARD_INPUT;
    const int64_t kv = w->cp == 1 ? 0 : w->seq_len * sequences * 2 * w->kv_width;
    /* The activation's gradient is read before the input's is written. */
    const int64_t active = w->gated ? MAX(w->ffn_hidden, w->shared_hidden) : 0;
    const int64_t up = MAX(w->up_width, 2 * w->shared_hidden);
    ExecLayerScratch scratch = {0};

    scratch.rows = cut(cutter, w->sequence_parallel ? rows * w->hidden : 0);
    if (backward)
        scratch.partial = scratch.d_active = cut(cutter, rows * MAX(w->hidden, active));
    else if (forward)
        scratch.partial = cut(cutter, w->sequence_parallel ? rows * w->hidden : 0);
    /* The halves of a layer follow each other: they share what comes now. */
    Cutter mlp = *cutter;
    scratch.d_attention = cut(cutter, backward ? rows * w->q_width : 0);
    scratch.kv = cut(cutter, forward || backward ? kv : 0);
    scratch.d_kv = cut(cutter, backward ? kv : 0);
    scratch.ring = cut(cutter, forward || backward ? kv : 0);
    scratch.own_d_kv = cut(cutter, whole ? w->seq_len / w->cp * sequences * 2 * w->kv_width : 0);
    scratch.kept.d_q = cut(cutter, whole ? rows * w->q_width : 0);
    if (backward)
        scratch.kept.d_up = cut(&mlp, rows * (whole ? MAX(w->hidden, up) : w->hidden));
    cutter->n_bytes = MAX(cutter->n_bytes, mlp.n_bytes);
    return scratch;
}

int64_t
exec_layer_scratch_bytes(const ExecWidths *widths, int64_t rows, int64_t sequences,
                         ScheduleOpKind kind)
{
    Cutter cutter = {.storage = widths->storage};

    cut_scratch(&cutter, widths, rows, sequences, kind);
    return cutter.n_bytes;
}

ExecLayerScratch
exec_layer_scratch(const ExecWidths *widths, int64_t rows, int64_t sequences, ScheduleOpKind kind,
                   void *block)
{
    Cutter cutter = {.block = block, .storage = widths->storage};

    return cut_scratch(&cutter, widths, rows, sequences, kind);
}

/* --- the layer --- */

static int64_t
local_rows(const ExecLayer *layer)
{
    return exec_local_rows(layer->widths, exec_slice_rows(&layer->slice));
}

static ExecNorm
norm1_of(const ExecLayer *layer)
{
    return (ExecNorm){
        .rows = local_rows(layer),
        .cols = layer->widths->hidden,
        .x = layer->x,
        .gain = layer->tensors->norm1_gain.weight,
        .shift = layer->tensors->norm1_shift.weight,
        .mean = layer->a.mean1,
        .rstd = layer->a.rstd1,
    };
}

static ExecNorm
norm2_of(const ExecLayer *layer)
{
    return (ExecNorm){
        .rows = local_rows(layer),
        .cols = layer->widths->hidden,
        .x = layer->a.x2,
        .gain = layer->tensors->norm2_gain.weight,
        .shift = layer->tensors->norm2_shift.weight,
        .mean = layer->a.mean2,
        .rstd = layer->a.rstd2,
    };
}

void
exec_layer_forward(const ExecLayer *layer, void *y)
{
    const ExecNorm norm1 = norm1_of(layer), norm2 = norm2_of(layer);

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

/* All rows of gradient @d, and for W (@kept) a copy: d changes. */
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

/* d changes from the gradient of y to that of x2 to that of x; each is read (B) or copied (I)
 * before the next norm adds to it. */
void
exec_layer_backward(const ExecLayer *layer, const ExecLayerKept *kept, void *d)
{
    ExecBackend *backend = layer->backend;
    const ExecBackendOps *ops = backend->ops;
    const ExecLayerTensors *t = layer->tensors;
    const ExecNorm norm1 = norm1_of(layer), norm2 = norm2_of(layer);
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
    d_norm = exec_attention_backward(layer, to->d_q, dy);
    if (kept == NULL)
        exec_attention_weight(layer, to->d_q, dy);
    ops->norm_backward(backend, &norm1, d_norm, d, t->norm1_gain.gradient, t->norm1_shift.gradient);
}

void
exec_layer_backward_weight(const ExecLayer *layer, const ExecLayerKept *kept)
{
    mlp_weight(layer, kept->d_up, kept->d_down);
    exec_attention_weight(layer, kept->d_q, kept->d_proj);
}
