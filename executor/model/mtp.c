#include "executor/model/mtp.h"

#include "executor/model/linear.h"

static int64_t
rows_of(const ExecMtp *mtp)
{
    return exec_slice_rows(&mtp->layer->slice);
}

/* Elements of h on this rank. */
static int64_t
n_elements(const ExecMtp *mtp)
{
    const ExecWidths *w = mtp->layer->widths;

    return exec_local_rows(w, rows_of(mtp)) * w->hidden;
}

/* Columns of the projection on this rank. */
static int64_t
n_columns(const ExecWidths *w)
{
    return w->hidden / w->tp;
}

/* --- what a module needs of memory --- */

ExecMtpActivations
exec_mtp_activations(const ExecLayerShape *shape, ExecCutter *inputs, ExecCutter *products)
{
    const ExecWidths *w = shape->widths;
    const int64_t rows = exec_local_rows(w, exec_slice_rows(&shape->slice)), n = rows * w->hidden;
    ExecMtpActivations a = {0};

    a.e = exec_cut(inputs, n);
    a.x = exec_cut(inputs, n);
    a.y = exec_cut(inputs, n);
    for (int i = 0; i < EXEC_MTP_NORM_N; i++) {
        if (w->norm != MODEL_NORM_RMS)
            a.mean[i] = exec_cut_words(inputs, rows);
        a.rstd[i] = exec_cut_words(inputs, rows);
    }
    for (int i = 0; i < 2; i++)
        a.normed[i] = exec_cut(products, n);
    return a;
}

void *
exec_mtp_kept(const ExecLayerShape *shape, ExecCutter *cutter)
{
    return exec_cut(cutter, exec_slice_rows(&shape->slice) * n_columns(shape->widths));
}

ExecMtpScratch
exec_mtp_scratch(const ExecLayerShape *shape, ExecCutter *cutter)
{
    const ExecWidths *w = shape->widths;
    const int64_t rows = exec_slice_rows(&shape->slice);
    ExecMtpScratch scratch = {.layer = exec_end_scratch(shape, cutter)};

    if (w->tp > 1 && shape->op != SCHEDULE_OP_BACKWARD_WEIGHT)
        scratch.columns = exec_cut(cutter, rows * w->hidden);
    if (shape->op == SCHEDULE_OP_BACKWARD)
        scratch.d_proj = exec_cut(cutter, rows * n_columns(w));
    return scratch;
}

/* --- parts --- */

/* The layer as functions of linear.h see it while the module is at work. */
static ExecLayer
outside(const ExecMtp *mtp)
{
    ExecLayer layer = *mtp->layer;

    layer.scratch = &mtp->scratch.layer;
    return layer;
}

static ExecNorm
norm_of(const ExecMtp *mtp, ExecMtpNorm norm)
{
    const ExecWidths *w = mtp->layer->widths;
    const ExecLayerTensors *t = mtp->layer->tensors;
    const void *const x[EXEC_MTP_NORM_N] = {
        [EXEC_MTP_HIDDEN] = mtp->h,
        [EXEC_MTP_EMBEDDING] = mtp->a.e,
        [EXEC_MTP_FINAL] = mtp->a.y,
    };

    return (ExecNorm){
        .rows = exec_local_rows(w, rows_of(mtp)),
        .cols = w->hidden,
        .x = x[norm],
        .gain = t->mtp_norm_gain[norm].weight,
        .shift = t->mtp_norm_shift[norm].weight,
        .mean = mtp->a.mean[norm],
        .rstd = mtp->a.rstd[norm],
        .epsilon = w->norm_epsilon,
    };
}

/* @dx += the gradient of the norm's input, from that of its result. */
static void
norm_backward(const ExecMtp *mtp, ExecMtpNorm norm, const void *dy, void *dx)
{
    const ExecNorm n = norm_of(mtp, norm);
    const ExecLayerTensors *t = mtp->layer->tensors;

    mtp->layer->backend->ops->norm_backward(mtp->layer->backend, &n, dy, dx,
                                            t->mtp_norm_gain[norm].gradient,
                                            t->mtp_norm_shift[norm].gradient);
}

/* The product of this rank's columns with what was normed of h (@half EXEC_MTP_HIDDEN) or e.
 * @weight  the tensor's memory. */
static ExecLinear
half_of(const ExecMtp *mtp, int half, ExecTensor *weight)
{
    const ExecWidths *w = mtp->layer->widths;
    const ExecTensor *whole = &mtp->layer->tensors->mtp_proj;
    const int64_t at = half * w->hidden * n_columns(w);

    *weight = (ExecTensor){
        .weight = whole->weight == NULL ? NULL : exec_at(mtp->layer->backend, whole->weight, at),
        .gradient = whole->gradient == NULL ? NULL : whole->gradient + at,
    };
    return exec_layer_linear(mtp->layer, w->hidden, n_columns(w), weight, NULL);
}

/* --- forward --- */

/* Makes x of every tp rank's columns: they lie as one matrix behind the other, and x has this
 * rank's rows of all. */
static void
gather_columns(const ExecMtp *mtp)
{
    const ExecLayer *layer = mtp->layer;
    const ExecWidths *w = layer->widths;
    const int64_t rows = rows_of(mtp), cols = n_columns(w), local_rows = exec_local_rows(w, rows);
    const int64_t first =
        w->sequence_parallel ? local_rows * layer->comm->groups[EXEC_DIM_TP].index : 0;

    exec_comm_all_gather(layer->comm, EXEC_DIM_TP, w->storage, rows * w->hidden,
                         mtp->scratch.columns);
    layer->backend->ops->copy_blocks(layer->backend,
                                     &(ExecBlocks){
                                         .rows = local_rows,
                                         .blocks = w->tp,
                                         .cols = cols,
                                         .from_stride = cols,
                                         .from_step = rows * cols,
                                         .to_stride = w->hidden,
                                         .to_step = cols,
                                     },
                                     exec_at(layer->backend, mtp->scratch.columns, first * cols),
                                     mtp->a.x);
}

void
exec_mtp_begin(const ExecMtp *mtp)
{
    const ExecLayer layer = outside(mtp);
    const ExecWidths *w = layer.widths;
    ExecBackend *backend = layer.backend;
    const int64_t own = layer.comm->groups[EXEC_DIM_TP].index * rows_of(mtp) * n_columns(w);
    void *y = w->tp > 1 ? exec_at(backend, mtp->scratch.columns, own) : mtp->a.x;

    for (int half = 0; half < 2; half++) {
        const ExecNorm norm = norm_of(mtp, (ExecMtpNorm)half);
        ExecTensor weight;
        const ExecLinear linear = half_of(mtp, half, &weight);

        backend->ops->norm_forward(backend, &norm, mtp->a.normed[half]);
        const void *rows = exec_gather_rows(&layer, mtp->a.normed[half]);
        if (half == 0)
            exec_linear_forward(backend, &linear, rows, NULL, y);
        else
            exec_linear_add(backend, &linear, rows, y);
    }
    if (w->tp > 1)
        gather_columns(mtp);
}

void
exec_mtp_end(const ExecMtp *mtp, void *result)
{
    const ExecNorm norm = norm_of(mtp, EXEC_MTP_FINAL);

    mtp->layer->backend->ops->norm_forward(mtp->layer->backend, &norm, result);
}

/* --- backward --- */

void
exec_mtp_end_backward(const ExecMtp *mtp, void *d)
{
    ExecBackend *backend = mtp->layer->backend;
    const size_t n_bytes = (size_t)exec_storage_bytes(backend, n_elements(mtp));
    void *d_y = mtp->scratch.layer.partial;

    backend->ops->zero(backend, n_bytes, d_y);
    norm_backward(mtp, EXEC_MTP_FINAL, d, d_y);
    backend->ops->copy(backend, n_bytes, d_y, d);
}

/* Copies this rank's columns of all rows of @d, the gradient of x, to @to. */
static void
keep_columns(const ExecMtp *mtp, const void *d, void *to)
{
    const ExecLayer layer = outside(mtp);
    const int64_t hidden = layer.widths->hidden, cols = n_columns(layer.widths);
    const void *rows = exec_gather_rows(&layer, d);

    layer.backend->ops->copy_blocks(
        layer.backend,
        &(ExecBlocks){
            .rows = rows_of(mtp),
            .blocks = 1,
            .cols = cols,
            .from_stride = hidden,
            .to_stride = cols,
        },
        exec_at(layer.backend, rows, layer.comm->groups[EXEC_DIM_TP].index * cols), to);
}

void
exec_mtp_begin_backward(const ExecMtp *mtp, void *kept, void *d, void *d_before)
{
    const ExecLayer layer = outside(mtp);
    ExecBackend *backend = layer.backend;
    void *d_proj = kept != NULL ? kept : mtp->scratch.d_proj;

    keep_columns(mtp, d, d_proj);
    backend->ops->zero(backend, (size_t)exec_storage_bytes(backend, n_elements(mtp)), d);
    for (int half = 0; half < 2; half++) {
        ExecTensor weight;
        const ExecLinear linear = half_of(mtp, half, &weight);

        exec_linear_backward(backend, &linear, d_proj, false, NULL, layer.scratch->partial);
        norm_backward(mtp, (ExecMtpNorm)half, exec_reduce_rows(&layer, layer.scratch->partial),
                      half == EXEC_MTP_HIDDEN ? d_before : d);
    }
    if (kept == NULL)
        exec_mtp_weight(mtp, d_proj);
}

void
exec_mtp_weight(const ExecMtp *mtp, const void *kept)
{
    const ExecLayer layer = outside(mtp);

    for (int half = 0; half < 2; half++) {
        ExecTensor weight;
        const ExecLinear linear = half_of(mtp, half, &weight);

        exec_linear_weight(layer.backend, &linear, exec_gather_rows(&layer, mtp->a.normed[half]),
                           kept);
    }
}
