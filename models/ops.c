#include "models/ops.h"

#include <math.h>

#include "base/units.h"
#include "models/ops_list.h"

/* x + [dropout] f(x); backward also sums the gradients of the two branches. */
static void
add_residual(OpsList *list, const char *name)
{
    double elements = list->local_rows * (double)list->arch->hidden;
    double mask = list->masks ? 1.0 : 0.0;
    ops_add_memory(list, name, elements * (3.0 * list->e + mask),
                   elements * (3.0 * list->e + mask * (2.0 * list->e + 1.0)), elements * mask, 1,
                   1 + list->masks);
}

/* The mixer's half of a layer. */
static void
add_mixer(OpsList *list)
{
    const ModelArch *arch = list->arch;

    if (arch->mixer == MODEL_MIXER_NONE)
        return;
    list->scope = MODEL_SCOPE_ATTENTION;
    if (arch->norm_place != MODEL_NORM_PLACE_POST)
        ops_add_norm(list, "norm1", list->local_rows, arch->hidden);
    if (model_has_attention(arch))
        ops_add_attention(list);
    if (model_has_state(arch))
        ops_add_state_mixer(list, !model_has_attention(arch));
    if (arch->norm_place != MODEL_NORM_PLACE_PRE)
        ops_add_norm(list, "post_norm1", list->local_rows, arch->hidden);
    add_residual(list, "residual1");
}

/* The feed-forward's half. */
static void
add_ffn(OpsList *list)
{
    const ModelArch *arch = list->arch;
    const bool is_moe = arch->experts.n_experts > 0;
    /* In a parallel block the mixer has kept the input that both read. */
    const bool shares =
        arch->blocks == MODEL_BLOCKS_PARALLEL_ONE_NORM && arch->mixer != MODEL_MIXER_NONE;

    if (arch->ffn == MODEL_FFN_NONE)
        return;
    list->scope = is_moe ? MODEL_SCOPE_ROUTER : MODEL_SCOPE_LAYER;
    if (arch->norm_place != MODEL_NORM_PLACE_POST && !shares)
        ops_add_norm(list, "norm2", list->local_rows, arch->hidden);
    if (is_moe)
        ops_add_experts(list, !shares);
    else
        ops_add_mlp(list, !shares);
    if (arch->norm_place != MODEL_NORM_PLACE_PRE)
        ops_add_norm(list, "post_norm2", list->local_rows, arch->hidden);
    add_residual(list, "residual2");
}

/* --- embedding, head and loss --- */

static void
add_embedding(OpsList *list)
{
    const ModelArch *arch = list->arch;
    double h = (double)arch->hidden;
    double bytes = list->rows * h * list->e;
    double table_bytes = (double)model_ceil_div(arch->vocab, list->shape->tp) * h * list->e;
    /* Forward reads a table row and writes it; backward writes the table's whole gradient, zeroes
     * first, then adds the rows.  The table itself is not read through: weight_bytes is 0.  Token
     * numbers are kept.  Of other tp ranks' rows kernels compare, mask, zero. */
    ops_add_memory(list, "embedding", 2.0 * bytes, 3.0 * bytes + table_bytes, 8.0 * list->rows,
                   list->shape->tp > 1 ? 4 : 1, 2);
    ops_add_tp_output(list, "embedding_output", arch->hidden, NULL);
    if (model_positions(arch) == MODEL_POSITIONS_LEARNED) {
        double elements = list->local_rows * h;
        double mask = list->masks ? 1.0 : 0.0;

        ops_add_memory(list, "positions", elements * (3.0 * list->e + mask * (2.0 * list->e + 1.0)),
                       elements * (2.0 * list->e + mask * (2.0 * list->e + 1.0)), elements * mask,
                       2 + list->masks, 1 + list->masks);
    }
    if (arch->embedding_norm)
        ops_add_norm(list, "embedding_norm", list->local_rows, arch->hidden);
}

/*
 * What an MTP module does before its layer: the embedding of the tokens further on, whose norm and
 * that of the input are joined, [h; h], and projected to h.
 */
static void
add_mtp(OpsList *list)
{
    const int64_t h = list->arch->hidden;
    const double elements = list->local_rows * 2.0 * (double)h;
    const bool sp = list->shape->sequence_parallel;

    list->scope = MODEL_SCOPE_ITERATION;
    add_embedding(list);
    ops_add_norm(list, "mtp_embedding_norm", list->local_rows, h);
    ops_add_norm(list, "mtp_hidden_norm", list->local_rows, h);
    ops_add_memory(list, "mtp_join", 2.0 * elements * list->e, 2.0 * elements * list->e, 0.0, 1, 1);
    ops_add_tp_input(list, "mtp_input", 2 * h);
    ModelOp *gemm = ops_add_gemm(list, "mtp_proj", list->rows, 2 * h,
                                 model_ceil_div(h, list->shape->tp), false);
    ops_keep_input(list, gemm, elements);
    ops_add_tp_input_again(list, "mtp_input_again", 2 * h);
    ops_add_collective(list, "mtp_gather", MODEL_GROUP_TP, MODEL_COMM_ALL_GATHER,
                       sp ? MODEL_COMM_ALL_GATHER : MODEL_COMM_NONE,
                       list->rows * (double)h * list->e);
}

/*
 * PyTorch's cross entropy of logits.float(), over @columns of the vocabulary.  Cast
 * (e + 4), logarithms (8); backward zeroes and fills the gradient of the logarithms (4), reads it
 * and them and writes (12), casts (4 + e).  Backward has two gradients in fp32 at once (8).
 *
 * From forward to backward stay the logarithms (4), which log_softmax and nll_loss save: PyTorch's
 * derivatives.yaml has their backwards in terms of "result" and "self".  A training loop that gives
 * back the logits (drops_logits; torchtitan's "del pred") keeps nothing else; logits in both formats
 * are there in forward.  Of others logits in both formats are counted from forward to backward:
 * those in fp32 are free by then, but pipeline engines hold the logits of earlier micro-batches, and
 * large blocks that come and go lose most to the allocator (cost-model.md 5.3).
 */
static void
add_eager_loss(OpsList *list, int64_t columns)
{
    const double logits = list->rows * (double)columns, e = list->e;
    const bool drops = list->shape->drops_logits;
    ModelOp *op = ops_add_memory(list, "loss", logits * (e + 12.0), logits * (e + 20.0),
                                 logits * (drops ? 4.0 : e + 8.0), 4, 5);
    op->memory_kind = MODEL_MEMORY_LOSS;
    op->forward_transient_bytes = drops ? ops_bytes((e + 4.0) * logits) : 0;
    op->backward_transient_bytes = ops_bytes(8.0 * logits);
}

/*
 * The same as torch.compile makes it: the logits are read for their largest and for the sum (2 e), and
 * again for their gradient (2 e with writing it).  They stay; backward has their gradient besides.
 */
static void
add_whole_compiled_loss(OpsList *list, int64_t columns)
{
    const double bytes = list->rows * (double)columns * list->e;
    ModelOp *op = ops_add_memory(list, "loss", 2.0 * bytes, 2.0 * bytes, bytes, 2, 1);

    op->memory_kind = MODEL_MEMORY_LOSS;
    op->backward_transient_bytes = ops_bytes(bytes);
}

/*
 * The loss over a vocabulary split by tp: three all-reduces of one number per row, in fp32.
 *
 * Compiled: cast and maximum (e + 4), subtraction, exponential and sum (8), division (8), out of
 * place: logits in fp32 are there beside their exponentials.  Backward scales and casts (4 + e).
 * Fused: one kernel reads the logits for maximum and sum, again for the gradient, and writes that;
 * backward scales it.  Else passes of Megatron-LM's vocab-parallel cross entropy: cast to fp32 (e +
 * 4), maximum (4), subtract (8), exponential (8), sum (4), divide (8); backward scale (8), cast (4
 * + e).
 */
static void
add_loss(OpsList *list, int64_t columns)
{
    const double logits = list->rows * (double)columns, e = list->e;
    ModelOp *op;

    if (list->shape->compiled_loss) {
        op = ops_add_memory(list, "loss", logits * (e + 20.0), logits * (e + 4.0), 4.0 * logits, 5,
                            1);
        op->forward_transient_bytes = ops_bytes((e + 4.0) * logits);
    } else if (list->shape->fused_loss) {
        op = ops_add_memory(list, "loss", logits * 3.0 * e, logits * 2.0 * e, logits * e, 2, 1);
    } else {
        op = ops_add_memory(list, "loss", logits * (e + 36.0), logits * (e + 12.0), 4.0 * logits,
                            14, 5);
    }
    op->memory_kind = MODEL_MEMORY_LOSS;
    if (list->shape->loss_in_place)
        op->saved_bytes = ops_bytes(logits * e);
}

/* What tp ranks tell each other of a loss over a vocabulary that they split. */
static void
add_loss_sums(OpsList *list)
{
    static const char *const reduced[] = {"loss_max", "loss_target", "loss_sum"};

    for (size_t i = 0; i < G_N_ELEMENTS(reduced); i++)
        ops_add_collective(list, reduced[i], MODEL_GROUP_TP, MODEL_COMM_ALL_REDUCE, MODEL_COMM_NONE,
                           4.0 * list->rows);
}

/* Logits and loss of the model's or an MTP module's result. */
static void
add_logits(OpsList *list)
{
    const ModelArch *arch = list->arch;
    const int64_t columns = model_ceil_div(arch->vocab, list->shape->tp);

    ops_add_tp_input(list, "head_input", arch->hidden);
    ModelOp *gemm =
        ops_add_gemm(list, "logits", list->rows, arch->hidden, columns, arch->head_bias);
    ops_keep_input(list, gemm, list->local_rows * (double)arch->hidden);
    gemm->output_stays = list->shape->loss_in_place;
    ops_add_tp_input_again(list, "head_input_again", arch->hidden);
    if (arch->logits_cap > 0.0) {
        /* c tanh(x / c), in place; its result gives its gradient. */
        const double logits = list->rows * (double)columns * list->e;
        ops_add_memory(list, "logits_cap", 2.0 * logits, 3.0 * logits, logits, 1, 1);
    }
    const bool is_whole = list->shape->torch_loss && list->shape->compiled_loss;
    const bool is_eager = list->shape->torch_loss
                              ? !list->shape->compiled_loss && !list->shape->fused_loss
                              : list->eager;
    const bool is_gathered = is_eager && !list->shape->splits_eager_loss;
    if (is_gathered)
        ops_add_collective(list, "logits_gather", MODEL_GROUP_TP, MODEL_COMM_ALL_GATHER,
                           MODEL_COMM_NONE, list->rows * (double)arch->vocab * list->e);
    else
        add_loss_sums(list);
    if (is_whole)
        add_whole_compiled_loss(list, columns);
    else if (is_eager)
        add_eager_loss(list, is_gathered ? arch->vocab : columns);
    else
        add_loss(list, columns);
}

static void
add_head(OpsList *list)
{
    list->operand_e = list->e;
    if (!list->arch->no_final_norm)
        ops_add_norm(list, "final_norm", list->local_rows, list->arch->hidden);
    for (int64_t i = 0; i <= list->arch->mtp.n; i++)
        add_logits(list);
}

/* --- public --- */

static bool
shape_is_sound(const ModelShape *shape)
{
    return shape->batch >= 1 && shape->tokens >= 1 && shape->context >= 0 && shape->tp >= 1 &&
           shape->cp >= 1 && shape->ep >= 1 && shape->expert_imbalance >= 1.0;
}

size_t
model_ops(const ModelArch *arch, ModelPart part, int64_t layer, const ModelShape *shape,
          ModelOp ops[MODEL_MAX_OPS])
{
    g_return_val_if_fail(arch != NULL && shape != NULL && ops != NULL, 0);
    g_return_val_if_fail(shape_is_sound(shape), 0);

    const ModelArch of_part = part == MODEL_PART_LAYER ? model_layer_arch(arch, layer) : *arch;
    const ModelArch padded = model_arch_padded(&of_part, shape->tp, shape->vocab_multiple);
    OpsList list = ops_list(&padded, shape, ops);
    switch (part) {
    case MODEL_PART_EMBEDDING:
        if (arch->vocab > 0)
            add_embedding(&list);
        break;
    case MODEL_PART_LAYER:
        if (padded.is_mtp)
            add_mtp(&list);
        add_mixer(&list);
        add_ffn(&list);
        if (padded.is_mtp)
            ops_add_norm(&list, "mtp_final_norm", list.local_rows, padded.hidden);
        break;
    case MODEL_PART_HEAD:
        if (arch->vocab > 0)
            add_head(&list);
        break;
    }
    ops_add_adapters(&list, part);
    if (part == MODEL_PART_LAYER)
        ops_set_again(&list);
    for (size_t i = 0; i < list.n; i++) {
        ops[i].captured = (int)ops[i].scope <= shape->graphs;
        ops[i].one_kernel = shape->graphs >= (int)MODEL_SCOPE_ITERATION;
        ops[i].quantise_bytes = shape->quantise_bytes;
        /* Only the product of a weight's gradient takes operands along the other dimension. */
        ops[i].transpose_bytes = ops[i].frozen ? 0.0 : shape->transpose_bytes;
        ops[i].rescale_bytes = shape->rescale_bytes;
    }
    return list.n;
}

int64_t
model_boundary_bytes(const ModelArch *arch, const ModelShape *shape)
{
    g_return_val_if_fail(arch != NULL && shape != NULL, 0);

    OpsList list = ops_list(arch, shape, NULL);
    return ops_bytes(list.local_rows * (double)arch->hidden * list.e);
}

/* --- FLOPs --- */

/* Which operations are counted. */
typedef enum {
    FLOPS_ALL,
    FLOPS_IDLE, /* scores that count, and that no query needs */
} Flops;

/* Of one sequence, forward and backward. */
static double
part_flops(const ModelArch *arch, ModelPart part, int64_t layer, int64_t seq_len, Flops which)
{
    const ModelShape shape = {
        .batch = 1,
        .tokens = seq_len,
        .tp = 1,
        .cp = 1,
        .ep = 1,
        .dtype = DTYPE_BF16,
        .expert_imbalance = 1.0,
    };
    ModelOp ops[MODEL_MAX_OPS];
    size_t n_ops = model_ops(arch, part, layer, &shape, ops);
    double flops = 0.0;

    for (size_t i = 0; i < n_ops; i++) {
        const double n_passes = ops[i].frozen && ops[i].kind == MODEL_OP_GEMM ? 2.0 : 3.0;

        if (which == FLOPS_ALL)
            flops += n_passes * ops[i].forward_flops;
        else if (ops[i].kind == MODEL_OP_ATTENTION)
            flops += n_passes * ops[i].forward_flops * (1.0 - ops[i].causal_fraction);
    }
    return flops;
}

/* Forward and backward of all layers and the head. */
static double
iteration_flops(const ModelArch *arch, double n_sequences, int64_t seq_len, Flops which)
{
    int64_t counts[MODEL_MAX_KINDS];
    double flops = part_flops(arch, MODEL_PART_HEAD, 0, seq_len, which);

    model_count_kinds(arch, counts);
    for (int32_t i = 0; i < model_n_kinds(arch); i++)
        if (counts[i] > 0)
            flops += (double)counts[i] * part_flops(arch, MODEL_PART_LAYER,
                                                    model_first_of_kind(arch, i), seq_len, which);
    return n_sequences * flops;
}

double
model_flops_per_iteration(const ModelArch *arch, double n_sequences, int64_t seq_len)
{
    g_return_val_if_fail(arch != NULL && seq_len >= 1, 0.0);

    return iteration_flops(arch, n_sequences, seq_len, FLOPS_ALL);
}

double
model_causal_fraction(const ModelArch *arch, int64_t seq_len)
{
    g_return_val_if_fail(arch != NULL && seq_len >= 1, 1.0);

    const double all = iteration_flops(arch, 1, seq_len, FLOPS_ALL);

    return all > 0 ? 1 - iteration_flops(arch, 1, seq_len, FLOPS_IDLE) / all : 1;
}
