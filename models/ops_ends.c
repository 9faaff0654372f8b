/* Embedding, head and loss: the ends of a model. */
#include "models/ops_list.h"

void
ops_add_embedding(OpsList *list)
{
    const ModelArch *arch = list->arch;
    double h = (double)arch->hidden;
    double bytes = list->rows * h * list->e;
    double table_bytes = (double)ops_ceil_div(arch->vocab, list->shape->tp) * h * list->e;
    /* Forward reads a table row and writes it; backward writes the table's whole gradient, zeroes
     * first, then adds the rows.  The table itself is not read through: weight_bytes is 0. */
    ModelOp *op = ops_add_memory(list, "embedding", 2.0 * bytes, 3.0 * bytes + table_bytes, 2);

    op->saved_bytes = ops_bytes(8.0 * list->rows); /* token numbers */
    if (list->shape->tp > 1)
        op->n_kernels_forward += 3; /* rows of other ranks: compare, mask, zero */
    ops_add_tp_output(list, "embedding_output", arch->hidden);
    if (arch->family == MODEL_FAMILY_GPT) {
        double elements = list->local_rows * h;
        double mask = list->masks ? 1.0 : 0.0;

        op = ops_add_memory(list, "positions",
                            elements * (3.0 * list->e + mask * (2.0 * list->e + 1.0)),
                            elements * (2.0 * list->e + mask * (2.0 * list->e + 1.0)), 1);
        op->n_kernels_forward = 2 + list->masks;
        op->n_kernels_backward += list->masks;
        op->saved_bytes = ops_bytes(elements * mask);
    }
}

/*
 * PyTorch's cross entropy of logits.float(), over the whole vocabulary on every tp rank.  Cast
 * (e + 4), logarithms (8); backward zeroes and fills the gradient of the logarithms (4), reads it
 * and them and writes (12), casts (4 + e).  Logits in both formats and their logarithms stay;
 * backward has two gradients in fp32 at once.
 */
static void
add_eager_loss(OpsList *list)
{
    double logits = list->rows * (double)list->arch->vocab;
    ModelOp *op;

    ops_add_collective(list, "logits_gather", MODEL_GROUP_TP, MODEL_COMM_ALL_GATHER,
                       MODEL_COMM_NONE, logits * list->e);
    op = ops_add_memory(list, "loss", logits * (list->e + 12.0), logits * (list->e + 20.0), 5);
    op->memory_kind = MODEL_MEMORY_LOSS;
    op->n_kernels_forward = 4;
    op->saved_bytes = ops_bytes(logits * (list->e + 8.0));
    op->backward_transient_bytes = ops_bytes(8.0 * logits);
}

/* Compiled: cast and maximum (e + 4), subtraction, exponential and sum (8), division (8), out of
 * place: logits in fp32 are there beside their exponentials.  Backward scales and casts (4 + e). */
static void
set_compiled_loss(const OpsList *list, ModelOp *op, double logits)
{
    op->forward_bytes = ops_bytes(logits * (list->e + 20.0));
    op->backward_bytes = ops_bytes(logits * (list->e + 4.0));
    op->forward_transient_bytes = ops_bytes((list->e + 4.0) * logits);
    op->n_kernels_forward = 5;
    op->n_kernels_backward = 1;
}

/* One kernel reads the logits for maximum and sum, again for the gradient, and writes that;
 * backward scales it. */
static void
set_fused_loss(const OpsList *list, ModelOp *op, double logits)
{
    op->forward_bytes = ops_bytes(logits * 3.0 * list->e);
    op->backward_bytes = ops_bytes(logits * 2.0 * list->e);
    op->saved_bytes = ops_bytes(logits * list->e);
    op->n_kernels_forward = 2;
    op->n_kernels_backward = 1;
}

/* The loss over a vocabulary split by tp: three all-reduces of one number per row, in fp32. */
static void
add_loss(OpsList *list, int64_t columns)
{
    double logits = list->rows * (double)columns;
    double row_bytes = 4.0 * list->rows;
    ModelOp *op;

    ops_add_collective(list, "loss_max", MODEL_GROUP_TP, MODEL_COMM_ALL_REDUCE, MODEL_COMM_NONE,
                       row_bytes);
    ops_add_collective(list, "loss_target", MODEL_GROUP_TP, MODEL_COMM_ALL_REDUCE, MODEL_COMM_NONE,
                       row_bytes);
    ops_add_collective(list, "loss_sum", MODEL_GROUP_TP, MODEL_COMM_ALL_REDUCE, MODEL_COMM_NONE,
                       row_bytes);
    /* Passes of Megatron-LM's vocab-parallel cross entropy: cast to fp32 (e + 4), maximum (4),
     * subtract (8), exponential (8), sum (4), divide (8); backward scale (8), cast (4 + e). */
    op = ops_add_memory(list, "loss", logits * (list->e + 36.0), logits * (list->e + 12.0), 5);
    op->memory_kind = MODEL_MEMORY_LOSS;
    op->n_kernels_forward = 14;
    op->saved_bytes = ops_bytes(4.0 * logits);
    if (list->shape->compiled_loss)
        set_compiled_loss(list, op, logits);
    else if (list->shape->fused_loss)
        set_fused_loss(list, op, logits);
    if (list->shape->loss_in_place)
        op->saved_bytes = ops_bytes(logits * list->e);
}

void
ops_add_head(OpsList *list)
{
    const ModelArch *arch = list->arch;
    int64_t columns = ops_ceil_div(arch->vocab, list->shape->tp);
    ModelOp *gemm;

    if (list->shape->vocab_multiple > 0)
        columns = ops_ceil_div(columns, list->shape->vocab_multiple) * list->shape->vocab_multiple;

    ops_add_norm(list, "final_norm", list->local_rows, arch->hidden);
    ops_add_tp_input(list, "head_input", arch->hidden);
    gemm = ops_add_gemm(list, "logits", list->rows, arch->hidden, columns, false);
    ops_keep_input(list, gemm, list->local_rows * (double)arch->hidden);
    gemm->output_stays = list->shape->loss_in_place;
    ops_add_tp_input_again(list, "head_input_again", arch->hidden);
    if (list->eager)
        add_eager_loss(list);
    else
        add_loss(list, columns);
}
