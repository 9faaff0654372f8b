/*
 * executor/model/state_mixer.c - mixers with a state (mixer.h): gated delta net, KDA, Mamba-2, Mamba,
 * lightning attention, short gated convolution.
 *
 *   in = x Win;  c = silu(convolution(in));  decays, rates from in
 *   s = scan(c);  r = norm and gate of s;  y = r Wout + residual
 *
 * with the columns and narrow products of state_parts.h, and the slots of
 * executor/device/recurrence.h.  Every tp rank has some of the heads, so that only Mamba's middle and
 * lightning's norm, which spans all heads, need sums of their own.  A tp rank has whole key heads, as
 * the Mamba-2 paper asks for [2405.21060 section 8.1]: no published way trains states whose key heads
 * tp does not divide, and such plans are refused.
 *
 * layer->memory holds what each slice but the last hands on, layer->d_memory the gradient of what
 * the slice at work was handed: state_parts.h; with cp
 * on the first rank, and states pass between ranks as state_pieces.h says.  With recompute selective backward scans again.
 */
#include <math.h>

#include "executor/model/linear.h"
#include "executor/model/state_pieces.h"

/* What slice @index hands on; NULL: nothing. */
static float *
handed(const ExecStateWork *work, int32_t index)
{
    const ExecSlice *slice = &work->layer->slice;

    if (index < 0 || index >= slice->n - 1)
        return NULL;
    return (float *)work->layer->memory + index * exec_state_handed(&work->s, slice->sequences);
}

static ExecStateWork
work_of(const ExecLayer *layer, void *kept)
{
    const ExecLayerShape shape = exec_layer_shape(layer);
    ExecMixerCutters cutters = exec_mixer_cutters(layer, kept);
    ExecStateWork work = {
        .layer = layer,
        .backend = layer->backend,
        .w = layer->tensors,
        .s = exec_state_shape(layer->widths),
        .t = exec_state_cut(&shape, &cutters),
        .rows = exec_slice_rows(&layer->slice),
        .tokens = layer->slice.own_tokens,
        .d_state = layer->d_memory,
    };

    work.start = handed(&work, layer->slice.index - 1);
    work.end = handed(&work, layer->slice.index);
    return work;
}

static void
cut(const ExecLayerShape *shape, ExecMixerCutters *cutters)
{
    exec_state_cut(shape, cutters);
}

static int64_t
memory_bytes(const ExecLayerShape *shape, bool gradient)
{
    const ExecStateShape s = exec_state_shape(shape->widths);
    const int64_t n = exec_is_sliced(shape) ? (gradient ? 1 : shape->slice.n - 1) : 0;

    return n * exec_state_handed(&s, shape->slice.sequences) * (int64_t)sizeof(float);
}

/* Where the convolution's part of @state begins. */
static float *
convolution_part(const ExecStateWork *work, float *state)
{
    return state == NULL ? NULL
                         : state + exec_state_handed_scan(&work->s, work->layer->slice.sequences);
}

static void *
part_at(const ExecStateWork *work, void *in, ExecStatePart part)
{
    return exec_at(work->backend, in, work->s.at[part]);
}

/* --- products --- */

static ExecLinear
in_of(const ExecStateWork *work)
{
    return exec_layer_linear(work->layer, work->layer->widths->hidden, work->s.w.in,
                             &work->w->state_in_weight, &work->w->state_in_bias);
}

static ExecLinear
down_of(const ExecStateWork *work)
{
    return exec_layer_linear(work->layer, work->layer->widths->hidden, work->s.w.down,
                             &work->w->state_down_weight, NULL);
}

static ExecLinear
middle_of(const ExecStateWork *work)
{
    return exec_layer_linear(work->layer, work->s.w.values, work->s.w.middle,
                             &work->w->state_middle_weight, NULL);
}

static ExecLinear
out_of(const ExecStateWork *work)
{
    return exec_layer_linear(work->layer, work->s.w.values, work->layer->widths->hidden,
                             &work->w->state_out_weight, &work->w->state_out_bias);
}

/* A product of some of the columns of the middle with a weight [rank, cols]. */
typedef struct {
    const ExecTensor *weight;
    int64_t first, cols;
} Narrow;

static Narrow
steps_of(const ExecStateWork *work)
{
    return (Narrow){&work->w->state_steps_weight, 0, work->s.n_gates};
}

static Narrow
gate_of(const ExecStateWork *work)
{
    return (Narrow){&work->w->state_gate_weight, work->s.rank, work->s.w.values};
}

static void
narrow_forward(const ExecStateWork *work, const Narrow *n, void *y)
{
    exec_gemm(work->backend, &(ExecGemm){
                                 .m = work->rows,
                                 .n = n->cols,
                                 .k = work->s.rank,
                                 .a = exec_at(work->backend, work->t.middle, n->first),
                                 .lda = exec_state_middle_columns(work),
                                 .b = n->weight->weight,
                                 .ldb = n->cols,
                                 .c = y,
                                 .ldc = n->cols,
                             });
}

static void
narrow_backward(const ExecStateWork *work, const Narrow *n, const void *dy)
{
    exec_gemm(work->backend, &(ExecGemm){
                                 .trans_b = true,
                                 .m = work->rows,
                                 .n = work->s.rank,
                                 .k = n->cols,
                                 .a = dy,
                                 .lda = n->cols,
                                 .b = n->weight->weight,
                                 .ldb = n->cols,
                                 .c = exec_at(work->backend, work->t.d_middle, n->first),
                                 .ldc = exec_state_middle_columns(work),
                             });
}

static void
narrow_weight(const ExecStateWork *work, const Narrow *n, const void *dy)
{
    exec_gemm(work->backend, &(ExecGemm){
                                 .trans_a = true,
                                 .accumulate = true,
                                 .c_fp32 = true,
                                 .m = work->s.rank,
                                 .n = n->cols,
                                 .k = work->rows,
                                 .a = exec_at(work->backend, work->t.middle, n->first),
                                 .lda = exec_state_middle_columns(work),
                                 .b = dy,
                                 .ldb = n->cols,
                                 .c = n->weight->gradient,
                                 .ldc = n->cols,
                             });
}

/* --- norms of the middle --- */

static ExecGroupNorm
inner_norm_of(const ExecStateWork *work, int number)
{
    const ExecStateInner inner = exec_state_inner(&work->s, number);

    return (ExecGroupNorm){
        .rows = work->rows,
        .groups = 1,
        .cols = inner.n,
        .n = inner.n,
        .epsilon = work->layer->widths->norm_epsilon,
        .x = exec_at(work->backend, work->t.raw_middle, inner.at),
        .x_stride = exec_state_middle_columns(work),
        .gain = work->w->state_inner_gain[number].weight,
        .sums = work->t.inner_sums + number * work->rows,
    };
}

static void
inner_norms_forward(const ExecStateWork *work)
{
    for (int i = 0; work->s.inner_norms && i < EXEC_STATE_INNER_NORMS; i++) {
        const ExecGroupNorm norm = inner_norm_of(work, i);
        work->backend->ops->group_norm_sums(work->backend, &norm);
        work->backend->ops->group_norm_forward(
            work->backend, &norm,
            exec_at(work->backend, work->t.middle, exec_state_inner(&work->s, i).at),
            norm.x_stride);
    }
}

/* The gradient of what is normed, in its place, from that of the norms' results. */
static void
inner_norms_backward(const ExecStateWork *work)
{
    for (int i = 0; work->s.inner_norms && i < EXEC_STATE_INNER_NORMS; i++) {
        const ExecGroupNorm norm = inner_norm_of(work, i);
        void *d = exec_at(work->backend, work->t.d_middle, exec_state_inner(&work->s, i).at);
        work->backend->ops->group_norm_backward_sums(work->backend, &norm, d, norm.x_stride,
                                                     work->t.d_inner_sums);
        work->backend->ops->group_norm_backward(work->backend, &norm, work->t.d_inner_sums, d,
                                                norm.x_stride,
                                                work->w->state_inner_gain[i].gradient, NULL);
    }
}

/* --- what the slots are asked --- */

static ExecConvolution
convolution_of(const ExecStateWork *work)
{
    const bool inner = work->s.n[EXEC_STATE_INNER] > 0;

    return (ExecConvolution){
        .sequences = work->layer->slice.sequences,
        .tokens = work->tokens,
        .channels = work->s.w.conv,
        .width = MAX(work->s.taps, 1),
        .silu = !inner,
        .x = work->t.in,
        .stride = work->s.w.in,
        .gate = inner ? part_at(work, work->t.in, EXEC_STATE_INNER) : NULL,
        .weight = work->w->state_conv_weight.weight,
        .bias = work->w->state_conv_bias.weight,
        .before = convolution_part(work, work->start),
        .after = convolution_part(work, work->end),
        .y = work->t.convolved,
    };
}

static ExecGates
gates_of(const ExecStateWork *work)
{
    const ExecStateShape *s = &work->s;
    const bool narrow = s->rank > 0, rates = s->n[EXEC_STATE_RATES] > 0;

    return (ExecGates){
        .rows = work->rows,
        .n_heads = s->w.heads,
        .n_channels = s->n_channels,
        .x = narrow ? work->t.steps : part_at(work, work->t.in, EXEC_STATE_DECAYS),
        .stride = narrow ? s->n_gates : s->w.in,
        .x_rate = rates ? part_at(work, work->t.in, EXEC_STATE_RATES) : NULL,
        .rate_stride = s->w.in,
        .bias = work->w->state_step_bias.weight,
        .a_log = s->by_value ? NULL : work->w->state_a_log.weight,
        .decay = work->t.decays,
        .rate = work->t.rates,
    };
}

/* Where in the middle Mamba's B and C are. */
static int64_t
middle_at(const ExecStateWork *work, ExecStatePart part)
{
    return work->s.rank + (part == EXEC_STATE_QUERIES ? work->s.key_dim : 0);
}

static ExecScan
scan_of(const ExecStateWork *work)
{
    const ExecStateShape *s = &work->s;
    const bool convolved = s->convolves, by_value = s->by_value;
    void *from = convolved ? work->t.convolved : work->t.in;
    const int64_t stride = convolved ? s->w.conv : s->w.in;

    return (ExecScan){
        .sequences = work->layer->slice.sequences,
        .tokens = work->tokens,
        .n_heads = s->w.heads,
        .n_key_heads = s->n_key_heads,
        .key_dim = s->key_dim,
        .value_dim = s->value_dim,
        .q = by_value ? exec_at(work->backend, work->t.middle, middle_at(work, EXEC_STATE_QUERIES))
                      : part_at(work, from, EXEC_STATE_QUERIES),
        .k = by_value ? exec_at(work->backend, work->t.middle, middle_at(work, EXEC_STATE_KEYS))
                      : part_at(work, from, EXEC_STATE_KEYS),
        .v = part_at(work, from, EXEC_STATE_VALUES),
        .key_stride = by_value ? s->w.middle : stride,
        .value_stride = stride,
        .silu = !convolved,
        .normalised = s->delta,
        .scale = s->delta ? 1.0f / sqrtf((float)s->key_dim) : 1.0f,
        .delta = s->delta,
        .decay = s->fixed ? work->t.fixed : work->t.decays,
        .channels = s->n_channels > 1,
        .fixed = s->fixed,
        .rate = s->n_rates > 0 ? work->t.rates : NULL,
        .a_log = by_value ? work->w->state_a_log.weight : NULL,
        .skip = work->w->state_skip.weight,
        .start = work->start,
        .end = work->end,
        .out = work->t.scanned,
    };
}

static ExecResult
result_of(const ExecStateWork *work)
{
    const ExecStateShape *s = &work->s;
    const bool narrow = work->t.gate != NULL && s->w.down > 0;

    return (ExecResult){
        .rows = work->rows,
        .cols = s->w.values,
        .kind = s->gate,
        .gate_first = s->gate_first,
        .x = work->t.scanned,
        .z = narrow ? work->t.gate : part_at(work, work->t.in, EXEC_STATE_GATE),
        .stride = narrow ? s->w.values : s->w.in,
        .n_groups = s->n_groups,
        .gain = work->w->state_norm_gain.weight,
        .gain_n = s->w.norm,
        .group_cols = s->group_cols,
        .epsilon = work->layer->widths->norm_epsilon,
        .squares = work->t.squares,
    };
}

/* A norm over all heads is one over all tp ranks. */
static void
sum_groups(const ExecStateWork *work, float *sums)
{
    if (work->s.sums_groups)
        exec_comm_all_reduce(work->layer->comm, EXEC_DIM_TP, DTYPE_FP32,
                             work->rows * work->s.n_groups, sums);
}

/*
 * Lightning's decays: head i of n, from 1, of layer l of N forgets by exp(-f 2^(-8 i / n)), with
 * f = 1 - l / (N - 1) + 1e-5, so that the last layers remember  [MiniMax-01 2501.08313 and its
 * released code].
 */
static void
set_fixed(const ExecStateWork *work)
{
    const ModelArch *arch = &work->layer->widths->arch;
    const int64_t heads = work->s.w.heads, n = heads * work->s.tp;
    const int64_t first = work->layer->comm->groups[EXEC_DIM_TP].index * heads;
    /* MTP modules are as the last layer. */
    const double number = (double)MIN(work->layer->number, arch->n_layers - 1);
    const double factor = 1.0 - number / ((double)arch->n_layers - 1.0 + 1e-5) + 1e-5;
    g_autofree float *decays = g_new(float, (size_t)heads);

    for (int64_t i = 0; i < heads; i++)
        decays[i] = (float)(-factor * pow(2.0, -8.0 * (double)(first + i + 1) / (double)n));
    work->backend->ops->upload(work->backend, (size_t)heads * sizeof *decays, decays,
                               work->t.fixed);
}

/* --- forward --- */

static void
scan_forward(const ExecStateWork *work)
{
    const ExecScan scan = scan_of(work);

    work->backend->ops->scan_forward(work->backend, &scan);
}

static void
convolution_forward(const ExecStateWork *work)
{
    const ExecConvolution convolution = convolution_of(work);

    work->backend->ops->convolve_forward(work->backend, &convolution);
}

static void
core_forward(const ExecStateWork *work)
{
    const ExecBackendOps *ops = work->backend->ops;
    const Narrow steps = steps_of(work);
    const ExecLinear middle = middle_of(work);

    if (work->s.convolves)
        exec_state_each_piece(work, false, convolution_forward);
    if (work->s.w.middle > 0) {
        exec_linear_forward(work->backend, &middle, scan_of(work).v, NULL, work->t.raw_middle);
        exec_comm_all_reduce(work->layer->comm, EXEC_DIM_TP, work->backend->storage,
                             work->rows * work->s.w.middle, work->t.raw_middle);
        inner_norms_forward(work);
    }
    if (work->s.rank > 0)
        narrow_forward(work, &steps, work->t.steps);
    if (work->s.n_gates > 0) {
        const ExecGates gates = gates_of(work);
        ops->gates_forward(work->backend, &gates);
    }
    if (work->s.fixed)
        set_fixed(work);
    if (work->s.scans)
        exec_state_each_piece(work, true, scan_forward);
}

static void
forward(const ExecLayer *layer, const void *x, const void *residual, void *y)
{
    const ExecStateWork work = work_of(layer, NULL);
    const ExecLinear in = in_of(&work), down = down_of(&work), out = out_of(&work);
    const Narrow gate = gate_of(&work);
    const void *rows = exec_gather_rows(layer, x);

    exec_linear_forward(work.backend, &in, rows, NULL, work.t.in);
    if (work.s.w.down > 0) {
        exec_linear_forward(work.backend, &down, rows, NULL, work.t.middle);
        narrow_forward(&work, &gate, work.t.gate);
    }
    core_forward(&work);
    const ExecResult result = result_of(&work);
    if (work.s.n_groups > 0) {
        work.backend->ops->result_squares(work.backend, &result);
        sum_groups(&work, work.t.squares);
    }
    work.backend->ops->result_forward(work.backend, &result, work.t.result);
    exec_row_split_forward(layer, &out, work.t.result, residual, y);
}

/* --- backward --- */

/* From the gradient of the last product's input, in d_result, to that of the scan's result, there
 * too. */
static void
result_backward(const ExecStateWork *work)
{
    const ExecBackendOps *ops = work->backend->ops;
    const ExecResult result = result_of(work);

    if (work->s.n_groups > 0) {
        ops->result_dots(work->backend, &result, work->t.d_result, work->t.dots);
        sum_groups(work, work->t.dots);
    }
    ops->result_backward(work->backend, &result,
                         &(ExecResultGradients){
                             .dy = work->t.d_result,
                             .dx = work->s.scans ? work->t.d_result : work->t.d_convolved,
                             .dz = work->s.w.down > 0
                                       ? work->t.d_gate
                                       : part_at(work, work->t.d_in, EXEC_STATE_GATE),
                             .d_gain = work->w->state_norm_gain.gradient,
                             .dots = work->t.dots,
                         });
}

static void
scan_backward(const ExecStateWork *work)
{
    const ExecScan scan = scan_of(work);
    const bool by_value = work->s.by_value;
    void *to = work->s.convolves ? work->t.d_convolved : work->t.d_in;

    work->backend->ops->scan_backward(
        work->backend, &scan,
        &(ExecScanGradients){
            .dout = work->t.d_result,
            .dq = by_value ? exec_at(work->backend, work->t.d_middle,
                                     middle_at(work, EXEC_STATE_QUERIES))
                           : part_at(work, to, EXEC_STATE_QUERIES),
            .dk = by_value
                      ? exec_at(work->backend, work->t.d_middle, middle_at(work, EXEC_STATE_KEYS))
                      : part_at(work, to, EXEC_STATE_KEYS),
            .dv = part_at(work, to, EXEC_STATE_VALUES),
            .d_decay = work->t.d_decays,
            .d_rate = work->t.d_rates,
            .d_a_log = work->w->state_a_log.gradient,
            .d_skip = work->w->state_skip.gradient,
            .d_state = work->d_state,
        });
}

static void
gates_backward(const ExecStateWork *work)
{
    const bool narrow = work->s.rank > 0;
    const ExecGates gates = gates_of(work);

    work->backend->ops->gates_backward(
        work->backend, &gates,
        &(ExecGatesGradients){
            .d_decay = work->t.d_decays,
            .d_rate = work->t.d_rates,
            .dx = narrow ? work->t.d_steps : part_at(work, work->t.d_in, EXEC_STATE_DECAYS),
            .dx_rate = part_at(work, work->t.d_in, EXEC_STATE_RATES),
            .d_bias = work->w->state_step_bias.gradient,
            .d_a_log = work->w->state_a_log.gradient,
        });
}

/* To d_middle, and with Mamba through it to the values. */
static void
narrow_products_backward(const ExecStateWork *work)
{
    const Narrow steps = steps_of(work), gate = gate_of(work);
    const ExecLinear middle = middle_of(work);

    if (work->s.rank > 0)
        narrow_backward(work, &steps, work->t.d_steps);
    if (work->s.w.down > 0)
        narrow_backward(work, &gate, work->t.d_gate);
    if (work->s.w.middle == 0)
        return;
    exec_comm_all_reduce(work->layer->comm, EXEC_DIM_TP, work->backend->storage,
                         work->rows * work->s.w.middle, work->t.d_middle);
    inner_norms_backward(work);
    exec_linear_backward(work->backend, &middle, work->t.d_middle, true, NULL, work->t.d_convolved);
}

static void
convolution_backward(const ExecStateWork *work)
{
    const ExecConvolution convolution = convolution_of(work);

    work->backend->ops->convolve_backward(
        work->backend, &convolution,
        &(ExecConvolutionGradients){
            .dy = work->t.d_convolved,
            .dx = work->t.d_in,
            .d_gate = part_at(work, work->t.d_in, EXEC_STATE_INNER),
            .d_weight = work->w->state_conv_weight.gradient,
            .d_bias = work->w->state_conv_bias.gradient,
            .d_state = convolution_part(work, work->d_state),
        });
}

static void *
backward(const ExecLayer *layer, void *kept, const void *dy)
{
    const ExecStateWork work = work_of(layer, kept);
    const ExecLinear in = in_of(&work), down = down_of(&work), out = out_of(&work);
    void *dx = layer->scratch->partial;

    exec_linear_backward(work.backend, &out, dy, false, NULL, work.t.d_result);
    if (work.s.fixed)
        set_fixed(&work);
    if ((layer->again >> PLAN_MODULE_CORE_ATTENTION & 1) != 0 && work.s.scans)
        exec_state_each_piece_again(&work, scan_forward);
    result_backward(&work);
    if (work.s.scans)
        exec_state_each_piece_back(&work, true, scan_backward);
    if (work.s.n_gates > 0)
        gates_backward(&work);
    narrow_products_backward(&work);
    if (work.s.convolves)
        exec_state_each_piece_back(&work, false, convolution_backward);
    exec_linear_backward(work.backend, &in, work.t.d_in, false, NULL, dx);
    if (work.s.w.down > 0)
        exec_linear_backward(work.backend, &down, work.t.d_middle, true, NULL, dx);
    return exec_reduce_rows(layer, dx);
}

static void
weight_out(const ExecLayer *layer, void *kept, const void *dy)
{
    const ExecStateWork work = work_of(layer, kept);
    const ExecLinear out = out_of(&work);

    exec_linear_weight(work.backend, &out, work.t.result, dy);
}

static void
weight_in(const ExecLayer *layer, const void *x, void *kept)
{
    const ExecStateWork work = work_of(layer, kept);
    const ExecLinear in = in_of(&work), down = down_of(&work), middle = middle_of(&work);
    const Narrow steps = steps_of(&work), gate = gate_of(&work);

    if (work.s.w.middle > 0)
        exec_linear_weight(work.backend, &middle, scan_of(&work).v, work.t.d_middle);
    if (work.s.rank > 0)
        narrow_weight(&work, &steps, work.t.d_steps);
    const void *rows = exec_gather_rows(layer, x);
    exec_linear_weight(work.backend, &in, rows, work.t.d_in);
    if (work.s.w.down == 0)
        return;
    narrow_weight(&work, &gate, work.t.d_gate);
    exec_linear_weight(work.backend, &down, rows, work.t.d_middle);
}

const ExecMixer exec_mixer_state = {
    .add_parameters = exec_state_add_parameters,
    .cut = cut,
    .memory_bytes = memory_bytes,
    .forward = forward,
    .backward = backward,
    .weight_out = weight_out,
    .weight_in = weight_in,
};
