#include "executor/model/layer.h"

#include "executor/model/linear.h"

/* --- what a layer needs of memory --- */

/* A layer of experts of which none is shared has no MLP. */
static bool
has_mlp(const ExecWidths *w)
{
    return w->ffn_hidden > 0;
}

static bool
is_scaled(const ExecWidths *w)
{
    return w->residual_scale < 1.0f || w->residual_scale > 1.0f;
}

/* Bytes of the mixer's blocks. */
static ExecMixerCutters
mixer_blocks(const ExecLayerShape *shape)
{
    const ExecCutter empty = {.storage = shape->widths->storage};
    ExecMixerCutters blocks = {empty, empty, empty, empty};

    if (shape->widths->has_mixer)
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
cut_norm(const ExecLayerShape *shape, ExecCutter *cutter, ExecLayerActivations *a,
         ExecLayerNorm norm)
{
    const ExecWidths *w = shape->widths;

    if (!w->has_norm[norm])
        return;
    if (w->norm != MODEL_NORM_RMS)
        a->mean[norm] = exec_cut_words(cutter, local_rows_of(shape));
    a->rstd[norm] = exec_cut_words(cutter, local_rows_of(shape));
}

/* A half's result and the statistics of its norms. */
static void
cut_half(const ExecLayerShape *shape, ExecCutter *cutter, ExecLayerActivations *a, int half)
{
    const ExecLayerNorm norm = half == 0 ? EXEC_NORM_1 : EXEC_NORM_2;
    const ExecLayerNorm post = half == 0 ? EXEC_NORM_POST_1 : EXEC_NORM_POST_2;

    if (shape->widths->has_norm[post])
        a->result[half] = exec_cut(cutter, local_rows_of(shape) * shape->widths->hidden);
    cut_norm(shape, cutter, a, norm);
    cut_norm(shape, cutter, a, post);
}

static bool
has_gate(const ExecWidths *w)
{
    return has_mlp(w) && w->arch.experts.shared_gate;
}

/* What a gate of shared experts reads; nothing where there is none. */
static void
cut_gate(const ExecLayerShape *shape, ExecCutter *cutter, void **shared, void **gate)
{
    if (!has_gate(shape->widths))
        return;
    *shared = exec_cut(cutter, local_rows_of(shape) * shape->widths->hidden);
    *gate = exec_cut(cutter, local_rows_of(shape));
}

/* Whether the feed-forward reads the tensor that the mixer reads: what one norm has made, or the
 * layer's input as it is. */
static bool
shares_input(const ExecWidths *w)
{
    return w->parallel && w->has_mixer && w->has_ffn && !w->has_norm[EXEC_NORM_2];
}

/* Whether the feed-forward reads x2 as it is. */
static bool
reads_x2(const ExecWidths *w)
{
    return w->has_mixer && w->has_ffn && !w->parallel && !w->has_norm[EXEC_NORM_2];
}

/* Whether backward computes the norm of half @half again, or what is inside of the MLP. */
static bool
norm_again(const ExecLayerShape *shape, int half)
{
    const ExecWidths *w = shape->widths;

    return exec_is_again(shape, PLAN_MODULE_LAYERNORM) && !w->parallel &&
           w->has_norm[half == 0 ? EXEC_NORM_1 : EXEC_NORM_2];
}

/* ... which is that of the shared experts in a layer with experts. */
static bool
mlp_again(const ExecLayerShape *shape)
{
    const bool again = shape->widths->n_experts == 0
                           ? exec_is_again(shape, PLAN_MODULE_MLP)
                           : exec_is_again(shape, PLAN_MODULE_SHARED_EXPERTS) ||
                                 exec_is_again(shape, PLAN_MODULE_MOE);

    return again && has_mlp(shape->widths);
}

/* Whether backward routes again, and computes all of the experts. */
static bool
moe_again(const ExecLayerShape *shape)
{
    return exec_is_again(shape, PLAN_MODULE_MOE) && shape->widths->n_experts > 0;
}

ExecLayerActivations
exec_layer_activations(const ExecLayerShape *shape, ExecCutter *inputs, ExecCutter *products)
{
    const ExecWidths *w = shape->widths;
    const int64_t rows = exec_slice_rows(&shape->slice), n = local_rows_of(shape) * w->hidden;
    const ExecMixerCutters mixer = mixer_blocks(shape);
    ExecLayerActivations a = {0};

    /* The layer's input is copied to here where it is not normed. */
    if (!norm_again(shape, 0))
        a.in[0] = exec_cut(products, w->has_mixer ? n : 0);
    a.mixer_products = exec_cut_bytes(products, mixer.products.n_bytes);
    if (!norm_again(shape, 1))
        a.in[1] = shares_input(w) ? a.in[0] : exec_cut(products, w->has_ffn ? n : 0);
    if (!mlp_again(shape))
        a.active = exec_cut(products, rows * w->ffn_hidden);
    a.mixer_inputs = exec_cut_bytes(inputs, mixer.inputs.n_bytes);
    a.x2 = reads_x2(w) ? a.in[1] : exec_cut(inputs, w->has_mixer && w->has_ffn ? n : 0);
    if (!mlp_again(shape)) {
        a.up = exec_cut(inputs, rows * w->up_width);
        cut_gate(shape, inputs, &a.shared, &a.gate);
    }
    cut_half(shape, inputs, &a, 0);
    cut_half(shape, inputs, &a, 1);
    return a;
}

ExecLayerActivations
exec_layer_passing(const ExecLayerShape *shape, ExecCutter *cutter)
{
    const ExecWidths *w = shape->widths;
    const int64_t rows = exec_slice_rows(&shape->slice), n = local_rows_of(shape) * w->hidden;
    const ExecMixerCutters mixer = mixer_blocks(shape);
    ExecLayerActivations a = {.x2 = exec_cut(cutter, w->has_mixer && w->has_ffn ? n : 0)};

    if (shares_input(w))
        a.in[0] = a.in[1] = exec_cut(cutter, n);
    ExecCutter mlp = *cutter; /* the mixer is done when the MLP begins */
    if (!shares_input(w))
        a.in[0] = exec_cut(cutter, w->has_mixer ? n : 0);
    a.mixer_products = exec_cut_bytes(cutter, mixer.products.n_bytes);
    a.mixer_inputs = exec_cut_bytes(cutter, mixer.inputs.n_bytes);
    cut_half(shape, cutter, &a, 0);
    if (reads_x2(w))
        a.in[1] = a.x2;
    else if (!shares_input(w))
        a.in[1] = exec_cut(&mlp, w->has_ffn ? n : 0);
    a.up = exec_cut(&mlp, rows * w->up_width);
    a.active = exec_cut(&mlp, rows * w->ffn_hidden);
    cut_gate(shape, &mlp, &a.shared, &a.gate);
    cut_half(shape, &mlp, &a, 1);
    cutter->n_bytes = MAX(cutter->n_bytes, mlp.n_bytes);
    return a;
}

/* What products read that backward makes again, of each half. */
static void
cut_again(const ExecLayerShape *shape, int half, ExecCutter *cutter, ExecLayerKept *kept)
{
    const ExecWidths *w = shape->widths;

    if (norm_again(shape, half))
        kept->in[half] = exec_cut(cutter, local_rows_of(shape) * w->hidden);
    if (half == 1 && mlp_again(shape))
        kept->active = exec_cut(cutter, exec_slice_rows(&shape->slice) * w->ffn_hidden);
}

ExecLayerKept
exec_layer_kept(const ExecLayerShape *shape, ExecCutter *cutter)
{
    const ExecWidths *w = shape->widths;
    const int64_t rows = exec_slice_rows(&shape->slice);
    ExecLayerKept kept = {0};

    kept.mixer = exec_cut_bytes(cutter, mixer_blocks(shape).kept.n_bytes);
    kept.d_proj = exec_cut(cutter, w->has_mixer ? rows * w->hidden : 0);
    kept.d_up = exec_cut(cutter, rows * w->up_width);
    kept.d_down = exec_cut(cutter, has_mlp(w) ? rows * w->hidden : 0);
    kept.d_gate = exec_cut(cutter, has_gate(w) ? local_rows_of(shape) : 0);
    cut_again(shape, 0, cutter, &kept);
    cut_again(shape, 1, cutter, &kept);
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

    if (exec_is_backward(shape)) {
        const int64_t n = local_rows_of(shape) * w->hidden;
        const bool post = w->has_norm[EXEC_NORM_POST_1] || w->has_norm[EXEC_NORM_POST_2];
        scratch.d_result = exec_cut(cutter, post ? n : 0);
        scratch.d_scaled = exec_cut(cutter, is_scaled(w) ? n : 0);
        scratch.d_second = exec_cut(cutter, w->parallel ? n : 0);
        scratch.d_shared = exec_cut(cutter, has_gate(w) ? n : 0);
        scratch.kept.d_gate = exec_cut(cutter, has_gate(w) ? local_rows_of(shape) : 0);
    }
    ExecCutter mlp = *cutter; /* mixer and MLP do not need the rest at the same time */
    if (whole || exec_is_forward(shape)) {
        cut_again(shape, 0, cutter, &scratch.kept);
        cut_again(shape, 1, &mlp, &scratch.kept);
    }
    if ((exec_is_backward(shape) || exec_is_forward(shape)) && mlp_again(shape)) {
        scratch.up = exec_cut(&mlp, rows * w->up_width);
        cut_gate(shape, &mlp, &scratch.shared, &scratch.gate);
    }
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

/* --- the gate of shared experts --- */

static ExecLinear
gate_linear(const ExecLayer *layer)
{
    return (ExecLinear){
        .rows = exec_local_rows(layer->widths, exec_slice_rows(&layer->slice)),
        .inputs = layer->widths->hidden,
        .cols = 1,
        .weight = &layer->tensors->shared_gate,
    };
}

static ExecGate
gate_of(const ExecLayer *layer)
{
    return (ExecGate){
        .rows = exec_local_rows(layer->widths, exec_slice_rows(&layer->slice)),
        .cols = layer->widths->hidden,
        .per_row = true,
        .x = layer->a.shared,
        .gate = layer->a.gate,
    };
}

void
exec_shared_forward(const ExecLayer *layer, const void *x, const void *residual, void *y)
{
    const ExecLinear linear = gate_linear(layer);
    const ExecGate gate = gate_of(layer);
    ExecBackend *backend = layer->backend;

    if (!has_gate(layer->widths)) {
        exec_mlp_forward(layer, x, residual, y);
        return;
    }
    exec_mlp_forward(layer, x, NULL, layer->a.shared);
    exec_linear_forward(backend, &linear, x, NULL, layer->a.gate);
    backend->ops->gate_forward(backend, &gate, y);
    if (residual != NULL)
        backend->ops->add(backend, gate.rows * gate.cols, residual, y);
}

/* From the gradient of what the feed-forward gave to that of its MLP: the same unless shared experts
 * have a gate. */
static const void *
gate_backward(const ExecLayer *layer, const void *d, void *d_gate)
{
    const ExecGate gate = gate_of(layer);
    ExecBackend *backend = layer->backend;
    void *d_shared = layer->scratch->d_shared;

    if (!has_gate(layer->widths))
        return d;
    backend->ops->copy(backend, (size_t)exec_storage_bytes(backend, gate.rows * gate.cols), d,
                       d_shared);
    backend->ops->gate_backward(backend, &gate, d_shared, d_gate);
    return d_shared;
}

/* The products of these fuse GELU, and every device has both. */
static bool
is_gelu(const ExecLayer *layer)
{
    return layer->widths->activation == EXEC_ACTIVATION_GELU;
}

/* What is inside of the MLP, from its input @x. */
static void
mlp_inside(const ExecLayer *layer, const void *x)
{
    const ExecLinear up = up_of(layer), down = down_of(layer);
    const ExecLayerActivations *a = &layer->a;

    exec_linear_forward(layer->backend, &up, exec_gather_rows(layer, x),
                        is_gelu(layer) ? a->active : NULL, a->up);
    if (!is_gelu(layer))
        exec_activate(layer->backend, layer->widths->activation, down.rows, down.inputs, a->up,
                      a->active);
}

void
exec_mlp_forward(const ExecLayer *layer, const void *x, const void *residual, void *y)
{
    const ExecLinear down = down_of(layer);

    mlp_inside(layer, x);
    exec_row_split_forward(layer, &down, layer->a.active, residual, y);
}

/* Makes what backward reads of the MLP, or of shared experts and their gate. */
static void
mlp_repeat(const ExecLayer *layer, const void *x)
{
    const ExecLinear gate = gate_linear(layer);

    if (!has_gate(layer->widths)) {
        mlp_inside(layer, x);
        return;
    }
    exec_mlp_forward(layer, x, NULL, layer->a.shared);
    exec_linear_forward(layer->backend, &gate, x, NULL, layer->a.gate);
}

void *
exec_mlp_backward(const ExecLayer *layer, void *d_up, const void *dy)
{
    const ExecLinear up = up_of(layer), down = down_of(layer);
    const ExecLayerScratch *scratch = layer->scratch;

    if (is_gelu(layer)) {
        exec_linear_backward(layer->backend, &down, dy, false, layer->a.up, d_up);
    } else {
        void *d_active = layer->widths->gated ? scratch->d_active : d_up;
        exec_linear_backward(layer->backend, &down, dy, false, NULL, d_active);
        exec_activate_backward(layer->backend, layer->widths->activation, down.rows, down.inputs,
                               layer->a.up, d_active, d_up);
    }
    exec_linear_backward(layer->backend, &up, d_up, false, NULL, scratch->partial);
    return exec_reduce_rows(layer, scratch->partial);
}

void
exec_mlp_weight(const ExecLayer *layer, const void *x, const void *d_up, const void *d_down)
{
    const ExecLinear up = up_of(layer), down = down_of(layer);

    exec_linear_weight(layer->backend, &down, layer->a.active, d_down);
    exec_linear_weight(layer->backend, &up, exec_gather_rows(layer, x), d_up);
}

/* --- the halves of a layer --- */

/* Elements of the layer's input. */
static int64_t
n_elements(const ExecLayer *layer)
{
    return exec_local_rows(layer->widths, exec_slice_rows(&layer->slice)) * layer->widths->hidden;
}

static void
copy(const ExecLayer *layer, const void *x, void *y)
{
    layer->backend->ops->copy(layer->backend,
                              (size_t)exec_storage_bytes(layer->backend, n_elements(layer)), x, y);
}

/* One of the layer's norms at work on @x. */
static ExecNorm
norm_of(const ExecLayer *layer, ExecLayerNorm norm, const void *x)
{
    const ExecLayerTensors *t = layer->tensors;

    return (ExecNorm){
        .rows = exec_local_rows(layer->widths, exec_slice_rows(&layer->slice)),
        .cols = layer->widths->hidden,
        .x = x,
        .gain = t->norm_gain[norm].weight,
        .shift = t->norm_shift[norm].weight,
        .mean = layer->a.mean[norm],
        .rstd = layer->a.rstd[norm],
        .epsilon = layer->widths->norm_epsilon,
    };
}

/* @d += the gradient of the norm's input @x, from that of its result. */
static void
norm_backward(const ExecLayer *layer, ExecLayerNorm norm, const void *x, const void *dy, void *d)
{
    const ExecNorm n = norm_of(layer, norm, x);

    layer->backend->ops->norm_backward(layer->backend, &n, dy, d,
                                       layer->tensors->norm_gain[norm].gradient,
                                       layer->tensors->norm_shift[norm].gradient);
}

/* What half @half reads before it is normed. */
static const void *
input_of(const ExecLayer *layer, int half)
{
    const ExecWidths *w = layer->widths;

    return half == 0 || w->parallel || !w->has_mixer ? layer->x : layer->a.x2;
}

/* y = half(in) + residual (nullable). */
static void
compute_half(const ExecLayer *layer, int half, const void *residual, void *y)
{
    const void *in = layer->a.in[half];

    if (half == 0)
        exec_mixer(layer->widths)->forward(layer, in, residual, y);
    else if (layer->moe != NULL)
        exec_moe_forward(layer, in, residual, y);
    else
        exec_mlp_forward(layer, in, residual, y);
    const ExecLayerShape shape = exec_layer_shape(layer);
    if (half == 1 && exec_is_forward(&shape) && moe_again(&shape))
        exec_moe_clear(layer->moe, layer->pool);
}

/* y = residual + s post(half(norm(x))). */
static void
half_forward(const ExecLayer *layer, int half, const void *residual, void *y)
{
    const ExecWidths *w = layer->widths;
    ExecBackend *backend = layer->backend;
    const ExecLayerNorm norm = half == 0 ? EXEC_NORM_1 : EXEC_NORM_2;
    const ExecLayerNorm post = half == 0 ? EXEC_NORM_POST_1 : EXEC_NORM_POST_2;
    const void *x = input_of(layer, half);

    if (w->has_norm[norm]) {
        const ExecNorm n = norm_of(layer, norm, x);
        backend->ops->norm_forward(backend, &n, layer->a.in[half]);
    } else if (layer->a.in[half] != x && !(half == 1 && shares_input(w))) {
        copy(layer, x, layer->a.in[half]);
    }
    if (!w->has_norm[post] && !is_scaled(w)) {
        compute_half(layer, half, residual, y);
        return;
    }
    compute_half(layer, half, NULL, w->has_norm[post] ? layer->a.result[half] : y);
    if (w->has_norm[post]) {
        const ExecNorm n = norm_of(layer, post, layer->a.result[half]);
        backend->ops->norm_forward(backend, &n, y);
    }
    if (is_scaled(w))
        backend->ops->scale(backend, n_elements(layer), w->residual_scale, y);
    backend->ops->add(backend, n_elements(layer), residual, y);
}

/* The gradient of what compute_half() gave, from @d, that of the half's sum: @d itself, or made of
 * it in scratch. */
static const void *
result_gradient(const ExecLayer *layer, int half, const void *d)
{
    const ExecWidths *w = layer->widths;
    ExecBackend *backend = layer->backend;
    const ExecLayerScratch *scratch = layer->scratch;
    const ExecLayerNorm post = half == 0 ? EXEC_NORM_POST_1 : EXEC_NORM_POST_2;

    if (is_scaled(w)) {
        copy(layer, d, scratch->d_scaled);
        backend->ops->scale(backend, n_elements(layer), w->residual_scale, scratch->d_scaled);
        d = scratch->d_scaled;
    }
    if (!w->has_norm[post])
        return d;
    backend->ops->zero(backend, (size_t)exec_storage_bytes(backend, n_elements(layer)),
                       scratch->d_result);
    norm_backward(layer, post, layer->a.result[half], d, scratch->d_result);
    return scratch->d_result;
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

static void
ffn_weight(const ExecLayer *layer, const ExecLayerKept *kept, const void *d_down)
{
    if (layer->moe != NULL)
        exec_moe_weight(layer, layer->a.in[1], kept->d_up, d_down);
    else
        exec_mlp_weight(layer, layer->a.in[1], kept->d_up, d_down);
    if (has_gate(layer->widths)) {
        const ExecLinear gate = gate_linear(layer);
        exec_linear_weight(layer->backend, &gate, layer->a.in[1], kept->d_gate);
    }
}

/* Computes again what F has not kept of the half. */
static void
repeat(const ExecLayer *layer, int half)
{
    const ExecLayerShape shape = exec_layer_shape(layer);

    if (norm_again(&shape, half)) {
        const ExecNorm n =
            norm_of(layer, half == 0 ? EXEC_NORM_1 : EXEC_NORM_2, input_of(layer, half));
        layer->backend->ops->norm_forward(layer->backend, &n, layer->a.in[half]);
    }
    if (half == 0 && exec_mixer(layer->widths)->repeat != NULL)
        exec_mixer(layer->widths)->repeat(layer, layer->a.in[0]);
    if (half == 1 && moe_again(&shape))
        exec_moe_forward(layer, layer->a.in[1], NULL, layer->scratch->kept.d_up);
    else if (half == 1 && mlp_again(&shape))
        mlp_repeat(layer, layer->a.in[1]);
}

/* From @d, the gradient of the half's sum, to that of what the half reads (normed); and, in a B
 * (@kept NULL), the gradients of weights.  Returns: (borrowed) in scratch->partial. */
static void *
half_backward(const ExecLayer *layer, int half, const ExecLayerKept *kept, const void *d)
{
    const ExecLayerKept *to = kept != NULL ? kept : &layer->scratch->kept;
    repeat(layer, half);
    const void *d_result = result_gradient(layer, half, d), *dy = NULL;
    void *d_in;

    if (half == 0) {
        dy = gather_gradient(layer, d_result, kept != NULL ? kept->d_proj : NULL);
        d_in = exec_mixer(layer->widths)->backward(layer, to->mixer, dy);
        if (kept == NULL)
            exec_mixer_weight(layer, layer->a.in[0], to->mixer, dy);
        return d_in;
    }
    if (has_mlp(layer->widths))
        dy = gather_gradient(layer, gate_backward(layer, d_result, to->d_gate),
                             kept != NULL ? kept->d_down : NULL);
    d_in = layer->moe != NULL ? exec_moe_backward(layer, to->d_up, d_result, dy)
                              : exec_mlp_backward(layer, to->d_up, dy);
    if (has_gate(layer->widths)) {
        const ExecLinear gate = gate_linear(layer);
        exec_linear_backward(layer->backend, &gate, to->d_gate, true, NULL, d_in);
    }
    if (kept == NULL)
        ffn_weight(layer, to, dy);
    return d_in;
}

/* --- the layer --- */

void
exec_layer_place_again(ExecLayer *layer, const ExecLayerKept *kept)
{
    const ExecLayerShape shape = exec_layer_shape(layer);
    const bool split =
        shape.op == SCHEDULE_OP_BACKWARD_INPUT || shape.op == SCHEDULE_OP_BACKWARD_WEIGHT;
    const ExecLayerKept *again = split ? kept : &layer->scratch->kept;

    for (int half = 0; half < 2; half++)
        if (norm_again(&shape, half))
            layer->a.in[half] = again->in[half];
    if (mlp_again(&shape)) {
        layer->a.active = again->active;
        layer->a.up = layer->scratch->up;
        layer->a.shared = layer->scratch->shared;
        layer->a.gate = layer->scratch->gate;
    }
}

void
exec_layer_forward(const ExecLayer *layer, void *y)
{
    const ExecWidths *w = layer->widths;

    if (w->has_mixer)
        half_forward(layer, 0, layer->x, w->has_ffn ? layer->a.x2 : y);
    if (w->has_ffn)
        half_forward(layer, 1, w->has_mixer ? layer->a.x2 : layer->x, y);
}

/* Adds to @d the gradient of the input of half @half, from that of what the half reads. */
static void
add_input_gradient(const ExecLayer *layer, int half, const void *d_in, void *d)
{
    const ExecLayerNorm norm = half == 0 ? EXEC_NORM_1 : EXEC_NORM_2;

    if (layer->widths->has_norm[norm])
        norm_backward(layer, norm, input_of(layer, half), d_in, d);
    else
        layer->backend->ops->add(layer->backend, n_elements(layer), d_in, d);
}

/* d is first the gradient of y, then that of x2, then that of x; each is read (B) or copied (I)
 * before the next norm adds to it.  In parallel blocks both halves read the gradient of y, so that
 * the second adds to a sum of its own; what shares the mixer's input is added before its norm. */
void
exec_layer_backward(const ExecLayer *layer, const ExecLayerKept *kept, void *d)
{
    const ExecWidths *w = layer->widths;
    ExecBackend *backend = layer->backend;
    void *second = w->parallel ? layer->scratch->d_second : d;

    if (w->parallel)
        backend->ops->zero(backend, (size_t)exec_storage_bytes(backend, n_elements(layer)), second);
    if (w->has_ffn)
        add_input_gradient(layer, 1, half_backward(layer, 1, kept, d), second);
    if (!w->has_mixer)
        return;
    void *d_in = half_backward(layer, 0, kept, d);
    if (shares_input(w))
        backend->ops->add(backend, n_elements(layer), second, d_in);
    add_input_gradient(layer, 0, d_in, d);
    if (w->parallel && !shares_input(w))
        backend->ops->add(backend, n_elements(layer), second, d);
}

void
exec_layer_backward_weight(const ExecLayer *layer, const ExecLayerKept *kept)
{
    if (layer->widths->has_ffn)
        ffn_weight(layer, kept, kept->d_down);
    if (layer->widths->has_mixer)
        exec_mixer_weight(layer, layer->a.in[0], kept->mixer, kept->d_proj);
}
