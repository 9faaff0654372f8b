#include "executor/model/moe_experts.h"

#include "executor/model/linear.h"
#include "executor/model/moe_parts.h"

/* --- products --- */

/* Expert @e's rows of a matrix [n_received, cols]. */
static void *
expert_rows(const ExecLayer *layer, const void *x, int64_t e, int64_t cols)
{
    return exec_at(layer->backend, x, layer->moe->expert_begin[e] * cols);
}

/* Row @e of @all, whose rows have @n elements; of NULL NULL. */
static ExecTensor
part_of(const ExecLayer *layer, const ExecTensor *all, int64_t e, int64_t n)
{
    return (ExecTensor){
        .weight = all->weight == NULL ? NULL : exec_at(layer->backend, all->weight, e * n),
        .gradient = all->gradient == NULL ? NULL : all->gradient + e * n,
    };
}

/* A product of expert @e; @tensors  (out) its weights and biases, which the product points to.  The
 * biases of the second product are multiplied with p: second_biases(). */
static ExecLinear
expert_linear(const ExecLayer *layer, int64_t e, bool down, ExecTensor tensors[2])
{
    const ExecWidths *w = layer->widths;
    const ExecTensor *all =
        down ? &layer->tensors->experts_down_weight : &layer->tensors->experts_up_weight;
    const int64_t inputs = down ? w->expert_hidden : w->expert_input;
    const int64_t cols = down ? w->expert_input : w->expert_up;

    tensors[0] = part_of(layer, all, e, inputs * cols);
    tensors[1] = (ExecTensor){0};
    if (!down)
        tensors[1] = part_of(layer, &layer->tensors->experts_up_bias, e, cols);
    return (ExecLinear){
        .rows = layer->moe->expert_begin[e + 1] - layer->moe->expert_begin[e],
        .inputs = inputs,
        .cols = cols,
        .weight = &tensors[0],
        .bias = &tensors[1],
    };
}

/* What a product of the experts is part of. */
typedef enum {
    FORWARD,  /* @from  inputs, @to  outputs */
    BACKWARD, /* @from  gradients of the outputs, @to  those of the inputs */
    WEIGHT,   /* @from  inputs, @to  gradients of the outputs, which are read too */
} Pass;

/* Computes the up or down product of every expert with its rows. */
static void
each_expert(const ExecLayer *layer, Pass pass, bool down, const void *from, void *to)
{
    for (int64_t e = 0; e < layer->widths->n_local_experts; e++) {
        ExecTensor tensors[2];
        const ExecLinear linear = expert_linear(layer, e, down, tensors);
        const bool backward = pass == BACKWARD;
        void *x = expert_rows(layer, from, e, backward ? linear.cols : linear.inputs);
        void *y = expert_rows(layer, to, e, backward ? linear.inputs : linear.cols);
        switch (pass) {
        case FORWARD:
            exec_linear_forward(layer->backend, &linear, x, NULL, y);
            break;
        case BACKWARD:
            exec_linear_backward(layer->backend, &linear, x, false, NULL, y);
            break;
        case WEIGHT:
            exec_linear_weight(layer->backend, &linear, x, y);
            break;
        }
    }
}

/* The biases of the experts' second products, as products with one row: y += p b.  WEIGHT: @y is
 * the gradient of the experts' results, and that of b is added up.  BACKWARD: so is that of p to
 * @d_weight. */
static void
second_biases(const ExecLayer *layer, Pass pass, void *y, float *d_weight)
{
    const ExecWidths *w = layer->widths;
    const int64_t cols = w->expert_input;
    const ExecMoeExperts x = exec_moe_experts(w, layer->moe);

    for (int64_t e = 0; x.stored != NULL && e < w->n_local_experts; e++) {
        const ExecTensor bias = part_of(layer, &layer->tensors->experts_down_bias, e, cols);
        const int64_t begin = layer->moe->expert_begin[e];
        const int64_t rows = layer->moe->expert_begin[e + 1] - begin;
        const ExecLinear linear = {.rows = rows, .inputs = 1, .cols = cols, .weight = &bias};
        void *of_rows = expert_rows(layer, y, e, cols);
        const void *p = exec_at(layer->backend, x.stored, begin);
        if (pass == WEIGHT)
            exec_linear_weight(layer->backend, &linear, p, of_rows);
        else
            exec_gemm(layer->backend, &(ExecGemm){
                                          .accumulate = true,
                                          .c_fp32 = pass == BACKWARD,
                                          .m = rows,
                                          .n = pass == BACKWARD ? 1 : cols,
                                          .k = pass == BACKWARD ? cols : 1,
                                          .a = pass == BACKWARD ? of_rows : p,
                                          .lda = pass == BACKWARD ? cols : 1,
                                          .b = bias.weight,
                                          .ldb = pass == BACKWARD ? 1 : cols,
                                          .c = pass == BACKWARD ? d_weight + begin : of_rows,
                                          .ldc = pass == BACKWARD ? 1 : cols,
                                      });
    }
}

/* Makes what the second products read, of the results of the first ones.  False once anything has
 * failed. */
bool
exec_moe_activate(const ExecLayer *layer)
{
    ExecMoe *moe = layer->moe;
    const int64_t f = layer->widths->expert_hidden, n = moe->n_received;
    ExecBackend *backend = layer->backend;

    if (moe->repeats_active && !exec_moe_take(layer, TRACE_MEMORY_ACTIVATIONS,
                                              exec_storage_bytes(backend, n * f), &moe->active))
        return false;
    const ExecMoeExperts x = exec_moe_experts(layer->widths, moe);
    exec_activate(backend, layer->widths->activation, n, f, x.up, x.active);
    backend->ops->scale_rows(backend, n, f, x.weight, x.active);
    return true;
}

void
exec_moe_experts_forward(const ExecLayer *layer, void *y)
{
    const ExecMoe *moe = layer->moe;
    ExecBackend *backend = layer->backend;
    ExecMoeExperts x = exec_moe_experts(layer->widths, moe);

    each_expert(layer, FORWARD, false, x.x, x.up);
    if (!exec_moe_activate(layer))
        return;
    x = exec_moe_experts(layer->widths, moe);
    each_expert(layer, FORWARD, true, x.active, y);
    exec_pool_give(layer->pool, &layer->moe->active);
    if (x.stored != NULL)
        backend->ops->to_storage(backend, moe->n_received, x.weight, x.stored);
    second_biases(layer, FORWARD, y, NULL);
}

/* Computes kept.d_up, d_x and d_weight from kept.d_out.  With u = d_out Wdown^T: the gradient
 * of p is u . swiglu, and that of swiglu is p u. */
void
exec_moe_experts_backward(const ExecLayer *layer, void *d_active, void *d_x, float *d_weight)
{
    const ExecWidths *w = layer->widths;
    const ExecMoeExperts x = exec_moe_experts(w, layer->moe);
    const ExecMoeKept kept = exec_moe_kept(w, layer->moe);
    const int64_t f = w->expert_hidden, n = layer->moe->n_received;
    ExecBackend *backend = layer->backend;
    void *active = kept.d_up; /* the activation lies there until d_up is computed */

    each_expert(layer, BACKWARD, true, kept.d_out, d_active);
    exec_activate(backend, w->activation, n, f, x.up, active);
    backend->ops->dot_rows(backend, n, f, d_active, active, d_weight);
    second_biases(layer, BACKWARD, kept.d_out, d_weight);
    backend->ops->scale_rows(backend, n, f, x.weight, d_active);
    exec_activate_backward(backend, w->activation, n, f, x.up, d_active, kept.d_up);
    each_expert(layer, BACKWARD, false, kept.d_up, d_x);
}

void
exec_moe_experts_weight(const ExecLayer *layer)
{
    const ExecMoeExperts x = exec_moe_experts(layer->widths, layer->moe);
    const ExecMoeKept kept = exec_moe_kept(layer->widths, layer->moe);

    each_expert(layer, WEIGHT, false, x.x, kept.d_up);
    each_expert(layer, WEIGHT, true, x.active, kept.d_out);
    second_biases(layer, WEIGHT, kept.d_out, NULL);
}
