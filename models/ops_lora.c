/* What freezing a model's weights changes in its ops, and the adapters that are trained instead. */
#include <string.h>

#include "models/lora.h"
#include "models/ops_list.h"

/* --- frozen weights --- */

/* Whether nothing that is trained, or whose gradient something trained needs, comes of @op's backward: the
 * embedding is before all adapters, and biases have no gradients. */
static bool
has_no_backward(const ModelOp *op, ModelPart part)
{
    return part == MODEL_PART_EMBEDDING || strcmp(op->name, "bias_sum") == 0;
}

/* Attention in one kernel reads its result in backward, which is counted at the product behind it; a gate
 * keeps that result itself. */
static bool
keeps_attention(const OpsList *list, const ModelOp *op)
{
    return strcmp(op->name, "proj") == 0 && list->shape->flash_attention &&
           list->arch->output_gate == MODEL_OUTPUT_GATE_NONE;
}

static void
freeze_product(const OpsList *list, ModelOp *op)
{
    const int64_t input = op->saved_for_weight_bytes;

    op->backward_flops = op->forward_flops;
    op->n_kernels_backward = op->n_kernels_forward;
    op->output_gradient_bytes = op->saved_for_weight_bytes = 0;
    op->saved_bytes -= input;
    if (keeps_attention(list, op))
        op->saved_bytes += ops_bytes((double)op->m * (double)op->k * list->e);
}

static void
freeze(const OpsList *list, ModelPart part, ModelOp *op)
{
    op->frozen = op->weight_bytes > 0;
    if (op->kind == MODEL_OP_GEMM)
        freeze_product(list, op);
    if (!has_no_backward(op, part))
        return;
    op->backward_flops = 0.0;
    op->backward_bytes = op->saved_bytes = op->saved_for_weight_bytes = 0;
    op->backward_transient_bytes = 0;
    op->n_kernels_backward = 0;
    op->backward_comm = MODEL_COMM_NONE;
}

/* Whether @op is there for gradients of weights alone. */
static bool
is_for_weights(const ModelOp *op)
{
    return op->columns == MODEL_COLUMNS_AGAIN || strcmp(op->name, "bias_sum") == 0 ||
           (op->kind == MODEL_OP_COLLECTIVE && op->forward_comm == MODEL_COMM_NONE &&
            op->backward_comm == MODEL_COMM_NONE);
}

/* --- adapters --- */

/* Of each module: the products beside which it is, of which a list has the last one last, and its ops. */
static const struct {
    const char *products[3];
    const char *a, *a_sum, *a_gather, *b, *b_gather, *add, *input_sum;
} names[MODEL_LORA_N] = {
#define OPS(module)                                                                                \
    module "_lora_a", module "_lora_a_sum", module "_lora_a_gather", module "_lora_b",             \
        module "_lora_b_gather", module "_lora_add", module "_lora_input_sum"
    [MODEL_LORA_QKV] = {{"qkv", "v"}, OPS("qkv")},
    [MODEL_LORA_Q] = {{"qkv", "v"}, OPS("q")},
    [MODEL_LORA_K] = {{"qkv", "v"}, OPS("k")},
    [MODEL_LORA_V] = {{"qkv", "v"}, OPS("v")},
    [MODEL_LORA_PROJ] = {{"proj"}, OPS("proj")},
    [MODEL_LORA_FC1] = {{"mlp_up", "mlp_gate"}, OPS("fc1")},
    [MODEL_LORA_FC1_GATE] = {{"mlp_up", "mlp_gate"}, OPS("fc1_gate")},
    [MODEL_LORA_FC1_UP] = {{"mlp_up", "mlp_gate"}, OPS("fc1_up")},
    [MODEL_LORA_FC2] = {{"mlp_down"}, OPS("fc2")},
#undef OPS
};

/* The index behind the product of @module in @ops, and behind the collectives of tp that follow it; 0: it is
 * not there. */
static size_t
place_of(const ModelOp *ops, size_t n, ModelLoraModule module)
{
    size_t place = 0;

    for (size_t i = 0; i < n; i++)
        for (int j = 0; j < 3 && names[module].products[j] != NULL; j++)
            if (strcmp(ops[i].name, names[module].products[j]) == 0)
                place = i + 1;
    while (place > 0 && place < n && ops[place].kind == MODEL_OP_COLLECTIVE &&
           ops[place].group == MODEL_GROUP_TP)
        place++;
    return place;
}

/*
 * The ops of one adapter  [Megatron-Bridge 067f987, peft/utils.py, ParallelLinearAdapter.forward(),
 * lora_layers.py, LoRALinear.forward()].  Products have operands as they are stored.  A keeps its input: of
 * all rows, since the product beside it, whose columns are split, gives the rows that it has gathered (return_layernorm_output_gathered).
 *
 *   columns split  A: h x rank/tp, gathered (backward: B's gradients of the narrow rows are added),
 *                  B: rank x n
 *   rows split     A: k x rank, added up (backward: as above), B: rank x n/tp, gathered to whole rows, of
 *                  which a rank takes its own with sequence parallelism (backward: gathers them)
 *
 * B's result is scaled (2 e each way) and added to the product's (3 e); the gradients of the input, of A
 * and of the product, are added (3 e).
 */
static void
add_adapter(OpsList *list, const ModelLoraAdapter *adapter)
{
    const int64_t tp = list->shape->tp, rank = list->arch->lora.rank;
    const bool by_rows = adapter->splits_rows, sp = list->shape->sequence_parallel;
    const double rows = list->rows, narrow = rows * (double)rank * list->e;
    const double out = (by_rows ? list->local_rows : rows) * (double)adapter->n * list->e;
    const double in = rows * (double)adapter->k;
    const int64_t middle = by_rows ? rank : model_ceil_div(rank, tp);
    const int64_t columns = by_rows ? model_ceil_div(adapter->n, tp) : adapter->n;
    const char *product = names[adapter->module].products[0];
    const double operand_e = list->operand_e;
    const size_t first = list->n;

    list->operand_e = list->e;
    ops_keep_input(
        list, ops_add_gemm(list, names[adapter->module].a, rows, adapter->k, middle, false), in);
    if (by_rows)
        ops_add_collective(list, names[adapter->module].a_sum, MODEL_GROUP_TP,
                           MODEL_COMM_ALL_REDUCE, MODEL_COMM_ALL_REDUCE, narrow);
    else
        ops_add_collective(list, names[adapter->module].a_gather, MODEL_GROUP_TP,
                           MODEL_COMM_ALL_GATHER, MODEL_COMM_ALL_REDUCE, narrow);
    ops_keep_input(list, ops_add_gemm(list, names[adapter->module].b, rows, rank, columns, false),
                   rows * (double)rank);
    if (by_rows)
        ops_add_collective(list, names[adapter->module].b_gather, MODEL_GROUP_TP,
                           MODEL_COMM_ALL_GATHER, sp ? MODEL_COMM_ALL_GATHER : MODEL_COMM_NONE,
                           rows * (double)adapter->n * list->e);
    /* The product's result is there beside B's and the scaled one. */
    ops_add_memory(list, names[adapter->module].add, 5.0 * out, 2.0 * out, 0.0, 2, 1)
        ->forward_transient_bytes = ops_bytes(2.0 * out);
    ops_add_input_sum(list, names[adapter->module].input_sum, in, 2);
    list->operand_e = operand_e;
    for (size_t i = first; i < list->n; i++)
        list->ops[i].adapts = product;
}

void
ops_add_adapters(OpsList *list, ModelPart part)
{
    ModelLoraAdapter adapters[MODEL_LORA_N];
    ModelOp plain[MODEL_MAX_OPS];
    const size_t n_plain = list->n;
    size_t n = 0, places[MODEL_LORA_N];

    if (list->arch->lora.rank == 0)
        return;
    if (part == MODEL_PART_LAYER)
        n = model_lora_adapters(list->arch, list->shape->tp, adapters);
    memcpy(plain, list->ops, n_plain * sizeof *plain);
    for (size_t j = 0; j < n; j++)
        places[j] = place_of(plain, n_plain, adapters[j].module);
    list->n = 0;
    list->splits_columns = false;
    for (size_t i = 0; i <= n_plain; i++) {
        for (size_t j = 0; j < n; j++)
            if (places[j] == i && i > 0) {
                list->scope = plain[i - 1].scope;
                add_adapter(list, &adapters[j]);
            }
        if (i == n_plain)
            break;
        freeze(list, part, &plain[i]);
        if (!is_for_weights(&plain[i]))
            list->ops[list->n++] = plain[i];
    }
    /* What the adapter beside it keeps, the product that attention's result goes to does not keep again. */
    for (size_t i = 0; i + 1 < list->n; i++)
        for (size_t j = 0; j < n; j++)
            if (adapters[j].module == MODEL_LORA_PROJ && keeps_attention(list, &list->ops[i]))
                list->ops[i].saved_bytes = 0;
}
