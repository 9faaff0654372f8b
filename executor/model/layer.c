#include "executor/model/layer.h"

#include "executor/model/linear.h"

/* --- what a layer needs of memory --- */

/* A layer of experts of which none is shared has no MLP. */
static bool
has_mlp(const ExecWidths *w)
{
    return w->ffn_hidden > 0;
}

/* Bytes of the mixer's blocks. */
static ExecMixerCutters
mixer_blocks(const ExecLayerShape *shape)
{
    const ExecCutter empty = {.storage = shape->widths->storage};
    ExecMixerCutters blocks = {empty, empty, empty, empty};

    exec_mixer(shape->widths)->cut(shape, &blocks);
    return blocks;
}

static int64_t
local_rows_of(const ExecLayerShape *shape)
{
    return exec_local_rows(shape->widths, exec_slice_rows(&shape->slice));
}

/* The statistics of a norm's rows. */
static void
cut_statistics(const ExecLayerShape *shape, ExecCutter *cutter, float **mean, float **rstd)
{
    const int64_t local_rows = local_rows_of(shape);

    *mean = shape->widths->rms_norm ? NULL : exec_cut_words(cutter, local_rows);
    *rstd = exec_cut_words(cutter, local_rows);
}

ExecLayerActivations
exec_layer_activations(const ExecLayerShape *shape, ExecCutter *inputs, ExecCutter *products)
{
    const ExecWidths *w = shape->widths;
    const int64_t rows = exec_slice_rows(&shape->slice), local_rows = local_rows_of(shape);
    const ExecMixerCutters mixer = mixer_blocks(shape);
    ExecLayerActivations a = {0};

    a.norm1 = exec_cut(products, local_rows * w->hidden);
    a.mixer_products = exec_cut_bytes(products, mixer.products.n_bytes);
    a.norm2 = exec_cut(products, local_rows * w->hidden);
    a.active = exec_cut(products, rows * w->ffn_hidden);
    a.mixer_inputs = exec_cut_bytes(inputs, mixer.inputs.n_bytes);
    a.x2 = exec_cut(inputs, local_rows * w->hidden);
    a.up = exec_cut(inputs, rows * w->up_width);
    cut_statistics(shape, inputs, &a.mean1, &a.rstd1);
    cut_statistics(shape, inputs, &a.mean2, &a.rstd2);
    return a;
}

ExecLayerActivations
exec_layer_passing(const ExecLayerShape *shape, ExecCutter *cutter)
{
    const ExecWidths *w = shape->widths;
    const int64_t rows = exec_slice_rows(&shape->slice), local_rows = local_rows_of(shape);
    const ExecMixerCutters mixer = mixer_blocks(shape);
    ExecLayerActivations a = {.x2 = exec_cut(cutter, local_rows * w->hidden)};
    ExecCutter mlp = *cutter; /* the mixer is done when the MLP begins */

    a.norm1 = exec_cut(cutter, local_rows * w->hidden);
    a.mixer_products = exec_cut_bytes(cutter, mixer.products.n_bytes);
    a.mixer_inputs = exec_cut_bytes(cutter, mixer.inputs.n_bytes);
    cut_statistics(shape, cutter, &a.mean1, &a.rstd1);
    a.norm2 = exec_cut(&mlp, local_rows * w->hidden);
    a.up = exec_cut(&mlp, rows * w->up_width);
    a.active = exec_cut(&mlp, rows * w->ffn_hidden);
    cut_statistics(shape, &mlp, &a.mean2, &a.rstd2);
    cutter->n_bytes = MAX(cutter->n_bytes, mlp.n_bytes);
    return a;
}

ExecLayerKept
exec_layer_kept(const ExecLayerShape *shape, ExecCutter *cutter)
{
    const ExecWidths *w = shape->widths;
    const int64_t rows = exec_slice_rows(&shape->slice);
    ExecLayerKept kept;

    kept.mixer = exec_cut_bytes(cutter, mixer_blocks(shape).kept.n_bytes);
    kept.d_proj = exec_cut(cutter, rows * w->hidden);
    kept.d_up = exec_cut(cutter, rows * w->up_width);
    kept.d_down = exec_cut(cutter, has_mlp(w) ? rows * w->hidden : 0);
    return kept;
}

/* What collectives need; @active more columns of gradients lie where those of a norm do. */
static ExecLayerScratch
common_scratch(const ExecLayerShape *shape, int64_t active, ExecCutter *cutter)
{
    const ExecWidths *w = shape->widths;
    const int64_t rows = exec_slice_rows(&shape->slice);
    ExecLayerScratch scratch = {0};

    scratch.rows = exec_cut(cutter, w->sequence_parallel ? rows * w->hidden : 0);
    if (exec_is_backward(shape))
        scratch.partial = scratch.d_active = exec_cut(cutter, rows * MAX(w->hidden, active));
    else if (exec_is_forward(shape))
        scratch.partial = exec_cut(cutter, w->sequence_parallel ? rows * w->hidden : 0);
    return scratch;
}

ExecLayerScratch
exec_end_scratch(const ExecLayerShape *shape, ExecCutter *cutter)
{
    return common_scratch(shape, 0, cutter);
}

/* F needs memory for collectives, B also for what an I leaves in its ExecLayerKept; W reads that.
 */
ExecLayerScratch
exec_layer_scratch(const ExecLayerShape *shape, ExecCutter *cutter)
{
    const ExecWidths *w = shape->widths;
    const int64_t rows = exec_slice_rows(&shape->slice);
    const bool whole = shape->op == SCHEDULE_OP_BACKWARD;
    const ExecMixerCutters mixer = mixer_blocks(shape);
    /* The activation's gradient is read before the input's is written. */
    ExecLayerScratch scratch = common_scratch(shape, w->gated ? w->ffn_hidden : 0, cutter);

    ExecCutter mlp = *cutter; /* mixer and MLP do not need the rest at the same time */
    scratch.mixer = exec_cut_bytes(cutter, mixer.scratch.n_bytes);
    scratch.kept.mixer = exec_cut_bytes(cutter, whole ? mixer.kept.n_bytes : 0);
    if (exec_is_backward(shape))
        scratch.kept.d_up =
            exec_cut(&mlp, rows * (whole ? MAX(w->hidden, w->up_width) : w->hidden));
    cutter->n_bytes = MAX(cutter->n_bytes, mlp.n_bytes);
    return scratch;
}

/* --- the MLP --- */

static ExecLinear
up_of(const ExecLayer *layer)
{
    return exec_layer_linear(layer, layer->widths->hidden, layer->widths->up_width,
                             &layer->tensors->mlp_up_weight, &layer->tensors->mlp_up_bias);
}

static ExecLinear
down_of(const ExecLayer *layer)
{
    return exec_layer_linear(layer, layer->widths->ffn_hidden, layer->widths->hidden,
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
    exec_mixer(layer->widths)->forward(layer, layer->a.norm1, layer->x, layer->a.x2);
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
    const ExecMixer *mixer = exec_mixer(layer->widths);
    const void *dy = NULL;

    if (has_mlp(layer->widths))
        dy = gather_gradient(layer, d, kept != NULL ? kept->d_down : NULL);
    const void *d_norm = layer->moe != NULL ? exec_moe_backward(layer, to->d_up, d, dy)
                                            : exec_mlp_backward(layer, to->d_up, dy);
    if (kept == NULL)
        mlp_weight(layer, to->d_up, dy);
    ops->norm_backward(backend, &norm2, d_norm, d, t->norm2_gain.gradient, t->norm2_shift.gradient);
    dy = gather_gradient(layer, d, kept != NULL ? kept->d_proj : NULL);
    d_norm = mixer->backward(layer, to->mixer, dy);
    if (kept == NULL)
        mixer->weight(layer, layer->a.norm1, to->mixer, dy);
    ops->norm_backward(backend, &norm1, d_norm, d, t->norm1_gain.gradient, t->norm1_shift.gradient);
}

void
exec_layer_backward_weight(const ExecLayer *layer, const ExecLayerKept *kept)
{
    mlp_weight(layer, kept->d_up, kept->d_down);
    exec_mixer(layer->widths)->weight(layer, layer->a.norm1, kept->mixer, kept->d_proj);
}
