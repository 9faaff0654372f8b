#include "models/ops_list.h"
#include "models/modules.h"

int64_t
ops_bytes(double bytes)
{
    return bytes < (double)MODEL_MAX_BYTES ? (int64_t)bytes : MODEL_MAX_BYTES;
}

OpsList
ops_list(const ModelArch *arch, const ModelShape *shape, ModelOp *ops)
{
    int64_t tokens = model_ceil_div(shape->tokens, shape->cp);
    OpsList list = {
        .arch = arch,
        .shape = shape,
        .ops = ops,
        .e = MAX(2.0, (double)dtype_bytes(shape->dtype)),
        .operand_e = (double)dtype_bytes(shape->dtype),
        .rows = (double)shape->batch * (double)tokens,
        /* Megatron splits the sequence's tokens, not the rows. */
        .tp_rows = (double)shape->batch * (double)model_ceil_div(tokens, shape->tp),
        .scope = MODEL_SCOPE_ITERATION,
        .eager = shape->eager,
        .eager_norms = shape->eager_norms && model_norm(arch) == MODEL_NORM_RMS,
        .separate_matrices = shape->separate_matrices && arch->family == MODEL_FAMILY_LLAMA,
        .masks = shape->dropout && arch->family == MODEL_FAMILY_GPT,
    };

    list.local_rows = shape->sequence_parallel ? list.tp_rows : list.rows;
    return list;
}

ModelOp *
ops_add(OpsList *list, const char *name, ModelOpKind kind)
{
    g_assert(list->n < MODEL_MAX_OPS);
    ModelOp *op = &list->ops[list->n++];
    *op = (ModelOp){.name = name, .kind = kind, .scope = list->scope};
    return op;
}

/* ops_add_gemm() with a bias that is added to @bias_rows rows. */
static ModelOp *
add_gemm(OpsList *list, const char *name, double rows, double bias_rows, int64_t k, int64_t n,
         bool bias)
{
    const bool sums_bias = bias && list->shape->sums_biases;
    if (sums_bias)
        ops_add_memory(list, "bias_sum", 0.0, bias_rows * (double)n * list->e, 0.0, 0, 1);
    ModelOp *op = ops_add(list, name, MODEL_OP_GEMM);
    double weight = (double)k * (double)n + (bias ? (double)n : 0.0);
    double input = rows * (double)k, output = rows * (double)n;

    op->count = 1;
    op->columns = list->splits_columns ? MODEL_COLUMNS_PRODUCT : MODEL_COLUMNS_NONE;
    op->m = ops_bytes(rows);
    op->n = n;
    op->k = k;
    op->forward_flops = 2.0 * rows * (double)k * (double)n;
    op->backward_flops = 2.0 * op->forward_flops;
    op->weight_bytes = ops_bytes(weight * list->operand_e);
    op->stored_operands = list->operand_e >= list->e;
    if (!op->stored_operands) {
        op->quantised_forward = input;
        op->quantised_backward = output;
    }
    op->output_gradient_bytes = ops_bytes(output * list->operand_e);
    op->forward_bytes = ops_bytes(input * list->operand_e + output * list->e);
    /* dA = dC B^T reads dC, writes dA; dB = A^T dC reads A and dC. */
    op->backward_bytes = ops_bytes((2.0 * output + input) * list->operand_e + input * list->e);
    op->n_kernels_forward = 1;
    op->n_kernels_backward = bias && !sums_bias ? 3 : 2;
    return op;
}

ModelOp *
ops_add_gemm(OpsList *list, const char *name, double rows, int64_t k, int64_t n, bool bias)
{
    return add_gemm(list, name, rows, rows, k, n, bias);
}

ModelOp *
ops_add_summed_gemm(OpsList *list, const char *name, int64_t k, int64_t n, bool bias)
{
    return add_gemm(list, name, list->rows, list->local_rows, k, n, bias);
}

ModelOp *
ops_add_next_gemm(OpsList *list, const char *name, double rows, int64_t k, int64_t n, bool bias)
{
    ModelOp *op = ops_add_gemm(list, name, rows, k, n, bias);

    op->quantised_forward = 0.0;
    return op;
}

void
ops_keep_input(const OpsList *list, ModelOp *gemm, double elements)
{
    gemm->saved_for_weight_bytes = ops_bytes(elements * list->operand_e);
    gemm->saved_bytes = ops_bytes((double)gemm->saved_bytes + elements * list->operand_e);
}

void
ops_add_input_sum(OpsList *list, const char *name, double elements, int64_t n)
{
    ops_add_memory(list, name, 0.0, 3.0 * (double)(n - 1) * elements * list->e, 0.0, 0, n - 1);
}

ModelOp *
ops_add_memory(OpsList *list, const char *name, double forward_bytes, double backward_bytes,
               double saved_bytes, int64_t n_forward, int64_t n_backward)
{
    ModelOp *op = ops_add(list, name, MODEL_OP_MEMORY);

    op->count = 1;
    op->forward_bytes = ops_bytes(forward_bytes);
    op->backward_bytes = ops_bytes(backward_bytes);
    op->saved_bytes = ops_bytes(saved_bytes);
    op->n_kernels_forward = n_forward;
    op->n_kernels_backward = n_backward;
    return op;
}

/*
 * Backward reads the gradient and the input, writes the gradient; a second kernel reduces the
 * parameters' gradients, from sums that the first has left or, with sums_norms, from the gradient and
 * the input, which it reads again.
 *
 * Eager: RMSNorm as PyTorch's operations, in fp32 between casts; bytes per element, e of the
 * model's format.  Forward: cast (e + 4), square (8), mean (4), times the root (8), cast (4 + e),
 * times the weight (2 e).  Backward: weight (2 e), its gradient (3 e written and summed: 4 e), cast
 * (e + 4), times the root (8), the root's gradient (16), of the mean (4), of the square (8, 8, 12),
 * sum of both ways (12), cast (4 + e).  Three stay: the input in fp32 (squared), as it came (times
 * the root), and the result before the weight.
 */
void
ops_add_norm(OpsList *list, const char *name, double rows, int64_t width)
{
    const double e = list->e, elements = rows * (double)width, bytes = elements * e;
    const ModelNorm norm = model_norm(list->arch);
    const bool sums_again = list->shape->sums_norms && norm == MODEL_NORM_LAYER;
    ModelOp *op = list->eager_norms ? ops_add_memory(list, name, elements * (4.0 * e + 28.0),
                                                     elements * (8.0 * e + 76.0),
                                                     elements * (4.0 + 2.0 * e), 7, 13)
                                    : ops_add_memory(list, name, 2.0 * bytes,
                                                     (sums_again ? 5.0 : 3.0) * bytes, bytes, 1, 2);
    double n_vectors = norm == MODEL_NORM_LAYER ? 2.0 : norm == MODEL_NORM_PLAIN ? 0.0 : 1.0;

    op->weight_bytes = ops_bytes(n_vectors * (double)width * list->e);
    op->stored_operands = true;
}

/* Ranks of a group at this shape. */
static int64_t
group_ranks(const ModelShape *shape, ModelGroup group)
{
    switch (group) {
    case MODEL_GROUP_TP:
        return shape->tp;
    case MODEL_GROUP_CP:
        return shape->cp;
    case MODEL_GROUP_EP:
        return shape->ep;
    case MODEL_GROUP_ETP:
        return MAX(1, shape->etp);
    case MODEL_GROUP_N:
        break;
    }
    g_return_val_if_reached(1);
}

ModelOp *
ops_add_collective(OpsList *list, const char *name, ModelGroup group, ModelComm forward,
                   ModelComm backward, double bytes)
{
    if (group_ranks(list->shape, group) == 1 ||
        (forward == MODEL_COMM_NONE && backward == MODEL_COMM_NONE))
        return NULL;
    ModelOp *op = ops_add(list, name, MODEL_OP_COLLECTIVE);
    op->group = group;
    op->forward_comm = forward;
    op->backward_comm = backward;
    op->comm_bytes = ops_bytes(bytes);
    op->n_kernels_forward = forward != MODEL_COMM_NONE;
    op->n_kernels_backward = backward != MODEL_COMM_NONE;
    return op;
}

/* Added up by the ranks themselves: see ops_add_tp_output(). */
static const char parts_sum[] = "parts_sum";

/* --- selective recompute --- */

/* What the op-level policy keeps of an op's results; @n_products of the ones before it are counted. */
static double
kept_by_policy(const OpsList *list, ModelOp *op, int64_t *n_products)
{
    op->again_fraction = 1.0;
    if (op->core_attention || (op->kind == MODEL_OP_COLLECTIVE && op->group == MODEL_GROUP_CP))
        op->again_fraction = 0.0;
    if (op->kind == MODEL_OP_ATTENTION) { /* its result, and what its backward reads of it */
        const ModelArch *arch = list->arch;
        const int64_t width = arch->mla.kv_lora_rank > 0 ? arch->mla.v_head_dim : arch->head_dim;
        return (double)op->count * (double)op->m * (4.0 + (double)width * list->e);
    }
    if (op->kind == MODEL_OP_COLLECTIVE && op->forward_comm == MODEL_COMM_REDUCE_SCATTER) {
        op->again_fraction = 0.0;
        return list->local_rows * (double)list->arch->hidden * list->e;
    }
    if (strcmp(op->name, parts_sum) == 0) /* it makes what the scatter keeps */
        op->again_fraction = 0.0;
    /* One kernel for all experts' products is none of the policy's list. */
    if (op->kind != MODEL_OP_GEMM || op->count > 1)
        return 0.0;
    if (++*n_products % 2 == 0)
        return 0.0;
    op->again_fraction = 0.0;
    return (double)op->m * (double)op->n * list->e;
}

static void
set_policy(OpsList *list)
{
    /* The layer's input, which the first norm keeps without recompute. */
    double more = list->local_rows * (double)list->arch->hidden * list->e;
    int64_t n_products = 0;
    size_t last = 0;

    for (size_t i = 0; i < list->n; i++) {
        ModelOp *op = &list->ops[i];

        if (op->kind == MODEL_OP_GEMM)
            last = i;
        const int64_t again =
            op->saved_bytes - ops_bytes(kept_by_policy(list, op, &n_products) + more);
        op->again_kv_bytes = CLAMP(again, 0, op->saved_kv_bytes);
        op->again_bytes = again - op->again_kv_bytes;
        more = 0.0;
    }
    for (size_t i = last; i < list->n; i++)
        list->ops[i].again_fraction = 0.0;
}

void
ops_set_again(OpsList *list)
{
    if (list->shape->recompute_modules >> MODEL_MODULE_OPS & 1)
        set_policy(list);
    else
        ops_set_modules(list);
}

/* --- around tensor-parallel products --- */

/* Whether the tp ranks quantise their shards of what the product in between reads before they
 * gather them. */
static bool
gathers_quantised(const OpsList *list)
{
    return list->shape->quantised_gathers && list->shape->sequence_parallel &&
           list->operand_e < list->e;
}

void
ops_add_tp_input(OpsList *list, const char *name, int64_t width)
{
    bool sp = list->shape->sequence_parallel;
    const double elements = list->rows * (double)width;
    const ModelComm sum = sp ? MODEL_COMM_REDUCE_SCATTER : MODEL_COMM_ALL_REDUCE;
    ModelComm forward = sp ? MODEL_COMM_ALL_GATHER : MODEL_COMM_NONE;

    if (gathers_quantised(list)) {
        ops_add_collective(list, name, MODEL_GROUP_TP, forward, MODEL_COMM_NONE,
                           elements * list->operand_e);
        forward = MODEL_COMM_NONE;
    }
    ModelOp *op = ops_add_collective(list, name, MODEL_GROUP_TP, forward, sum, elements * list->e);
    if (op != NULL)
        op->columns = MODEL_COLUMNS_GRADIENT;
    list->splits_columns = true;
}

void
ops_quantise_input(const OpsList *list, ModelOp *gemm)
{
    if (gathers_quantised(list) && list->shape->tp > 1)
        gemm->quantised_forward *= list->local_rows / list->rows;
}

void
ops_add_tp_input_again(OpsList *list, const char *name, int64_t width)
{
    ModelOp *op =
        list->shape->sequence_parallel
            ? ops_add_collective(list, name, MODEL_GROUP_TP, MODEL_COMM_NONE, MODEL_COMM_ALL_GATHER,
                                 list->rows * (double)width * list->e)
            : NULL;
    if (op != NULL)
        op->columns = MODEL_COLUMNS_AGAIN;
    list->splits_columns = false;
}

/*
 * With sums_parts the product writes its tp parts, each is copied to the rank of its rows, and a kernel reads the tp
 * parts that came and writes their sum  [PyTorch's _fused_matmul_reduce_scatter(): stacked_partials, reduce_fn].
 * The sums of an embedding are no product's.
 */
void
ops_add_tp_output(OpsList *list, const char *name, int64_t width, ModelOp *gemm)
{
    bool sp = list->shape->sequence_parallel;
    const double elements = list->rows * (double)width;
    const ModelComm sum = sp ? MODEL_COMM_REDUCE_SCATTER : MODEL_COMM_ALL_REDUCE;

    if (gemm != NULL && gathers_quantised(list) && list->shape->tp > 1) {
        gemm->quantised_backward *= list->local_rows / list->rows;
        ops_add_collective(list, name, MODEL_GROUP_TP, sum, MODEL_COMM_NONE, elements * list->e);
        ops_add_collective(list, name, MODEL_GROUP_TP, MODEL_COMM_NONE, MODEL_COMM_ALL_GATHER,
                           elements * list->operand_e);
    } else {
        ops_add_collective(list, name, MODEL_GROUP_TP, sum,
                           sp ? MODEL_COMM_ALL_GATHER : MODEL_COMM_NONE, elements * list->e);
    }
    if (gemm != NULL && sp && list->shape->sums_parts && list->shape->tp > 1)
        ops_add_memory(list, parts_sum, (elements + list->local_rows * (double)width) * list->e,
                       0.0, 0.0, 1, 0);
}
