#include "executor/model/linear.h"

static int64_t
x_stride(const ExecLinear *linear)
{
    return linear->x_stride > 0 ? linear->x_stride : linear->inputs;
}

static int64_t
y_stride(const ExecLinear *linear)
{
    return linear->y_stride > 0 ? linear->y_stride : linear->cols;
}

/* y = x W, without bias, activation or residual. */
static ExecGemm
forward_product(const ExecLinear *linear, const void *x, void *y)
{
    return (ExecGemm){
        .m = linear->rows,
        .n = linear->cols,
        .k = linear->inputs,
        .a = x,
        .lda = x_stride(linear),
        .b = linear->weight->weight,
        .ldb = linear->cols,
        .c = y,
        .ldc = y_stride(linear),
    };
}

static const void *
bias_of(const ExecLinear *linear)
{
    return linear->bias != NULL ? linear->bias->weight : NULL;
}

void
exec_linear_forward(ExecBackend *backend, const ExecLinear *linear, const void *x, void *gelu,
                    void *y)
{
    ExecGemm product = forward_product(linear, x, y);

    product.bias = bias_of(linear);
    product.gelu = gelu;
    exec_gemm(backend, &product);
}

void
exec_linear_add(ExecBackend *backend, const ExecLinear *linear, const void *x, void *y)
{
    ExecGemm product = forward_product(linear, x, y);

    product.accumulate = true;
    exec_gemm(backend, &product);
}

void
exec_linear_backward(ExecBackend *backend, const ExecLinear *linear, const void *dy,
                     bool accumulate, const void *gelu_input, void *dx)
{
    exec_gemm(backend, &(ExecGemm){
                           .trans_b = true,
                           .accumulate = accumulate,
                           .m = linear->rows,
                           .n = linear->inputs,
                           .k = linear->cols,
                           .a = dy,
                           .lda = y_stride(linear),
                           .b = linear->weight->weight,
                           .ldb = linear->cols,
                           .c = dx,
                           .ldc = x_stride(linear),
                           .gelu_input = gelu_input,
                       });
}

void
exec_linear_weight(ExecBackend *backend, const ExecLinear *linear, const void *x, const void *dy)
{
    exec_gemm(backend, &(ExecGemm){
                           .trans_a = true,
                           .accumulate = true,
                           .c_fp32 = true,
                           .m = linear->inputs,
                           .n = linear->cols,
                           .k = linear->rows,
                           .a = x,
                           .lda = x_stride(linear),
                           .b = dy,
                           .ldb = y_stride(linear),
                           .c = linear->weight->gradient,
                           .ldc = linear->cols,
                           .bias_gradient = linear->bias != NULL ? linear->bias->gradient : NULL,
                       });
}

const void *
exec_gather_rows(const ExecLayer *layer, const void *x)
{
    const ExecWidths *w = layer->widths;
    const int64_t n = exec_slice_rows(&layer->slice) * w->hidden;
    int64_t begin;

    if (!w->sequence_parallel)
        return x;
    const int64_t n_own = exec_comm_chunk(layer->comm, EXEC_DIM_TP, n, &begin);
    layer->backend->ops->copy(layer->backend, (size_t)exec_storage_bytes(layer->backend, n_own), x,
                              exec_at(layer->backend, layer->scratch->rows, begin));
    exec_comm_all_gather(layer->comm, EXEC_DIM_TP, w->storage, n, layer->scratch->rows);
    return layer->scratch->rows;
}

void *
exec_reduce_rows(const ExecLayer *layer, void *full)
{
    const ExecWidths *w = layer->widths;
    const int64_t n = exec_slice_rows(&layer->slice) * w->hidden;
    int64_t begin;

    if (!w->sequence_parallel) {
        exec_comm_all_reduce(layer->comm, EXEC_DIM_TP, w->storage, n, full);
        return full;
    }
    exec_comm_chunk(layer->comm, EXEC_DIM_TP, n, &begin);
    exec_comm_reduce_scatter(layer->comm, EXEC_DIM_TP, w->storage, n, full);
    return exec_at(layer->backend, full, begin);
}

/* A single rank adds bias and residual inside the product.  Of several, the first adds the bias to
 * what it sums up, and each adds the residual to its rows of the sum. */
void
exec_row_split_forward(const ExecLayer *layer, const ExecLinear *linear, const void *x,
                       const void *residual, void *y)
{
    const ExecWidths *w = layer->widths;
    ExecBackend *backend = layer->backend;
    const bool alone = w->tp == 1, first = layer->comm->groups[EXEC_DIM_TP].index == 0;
    const int64_t n_local = exec_local_rows(w, linear->rows) * linear->cols;
    void *sum = w->sequence_parallel ? layer->scratch->partial : y;

    ExecGemm product = forward_product(linear, x, sum);
    product.bias = first ? bias_of(linear) : NULL;
    product.residual = alone ? residual : NULL;
    exec_gemm(backend, &product);
    if (alone)
        return;
    const void *own = exec_reduce_rows(layer, sum);
    if (own != y)
        backend->ops->copy(backend, (size_t)exec_storage_bytes(backend, n_local), own, y);
    if (residual != NULL)
        backend->ops->add(backend, n_local, residual, y);
}
