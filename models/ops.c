#include "models/ops.h"

#include <math.h>

#include "base/units.h"
#include "models/ops_list.h"

/* Heads, head sizes and widths of this rank's share of attention. */
typedef struct {
    int64_t heads, kv_heads; /* per tp rank */
    int64_t qk_dim, v_dim;   /* per head */
    double q_width, k_width, v_width;
} Heads;

static Heads
heads_of_rank(const OpsList *list)
{
    const ModelArch *arch = list->arch;
    Heads heads = {
        .heads = model_ceil_div(arch->n_heads, list->shape->tp),
        .kv_heads = model_ceil_div(arch->n_kv_heads, list->shape->tp),
        .qk_dim = arch->head_dim,
        .v_dim = model_v_dim(arch),
    };

    heads.q_width = (double)heads.heads * (double)heads.qk_dim;
    heads.k_width = (double)heads.kv_heads * (double)heads.qk_dim;
    heads.v_width = (double)heads.kv_heads * (double)heads.v_dim;
    return heads;
}

/* Notes that @op's result is (partly) queries, keys or values, which attention keeps. */
static void
keep_qkv(const OpsList *list, ModelOp *op, double q_width, double kv_width)
{
    op->saved_kv_bytes = ops_bytes(list->rows * kv_width * list->e);
    op->saved_bytes =
        ops_bytes((double)op->saved_bytes + list->rows * (q_width + kv_width) * list->e);
}

/*
 * Rotates queries and keys.  Fused: read once, written once, each way.  Eager, forward: negate and
 * join the halves (2 e, 2 e), two products with tables (2 e each), their sum (3 e): 10 e an
 * element; backward: two products (2 e each), the halves' gradients padded and added (4 e), the sum
 * (3 e).
 */
static void
add_rope(OpsList *list, const Heads *heads)
{
    const ModelArch *arch = list->arch;
    /* Of a head that is rotated in part the rest stays where it is. */
    const double part =
        arch->rotary_dim > 0 ? (double)arch->rotary_dim / (double)arch->head_dim : 1.0;
    double elements = list->rows * (heads->q_width + heads->k_width) * part;
    /* Eager: the rotated copies are new tensors; the values, a view, keep all that "qkv" wrote. */
    if (list->eager)
        ops_add_memory(list, "rope", 10.0 * elements * list->e, 11.0 * elements * list->e,
                       elements * list->e, 10, 12);
    else
        ops_add_memory(list, "rope", 2.0 * elements * list->e, 2.0 * elements * list->e, 0.0, 2, 2);
}

/* --- attention --- */

/* The product of the layer's input that makes the queries, and keys and values of @kv_width. */
static ModelOp *
add_queries(OpsList *list, const Heads *heads, const char *name, int64_t columns, double kv_width)
{
    const ModelArch *arch = list->arch;

    ops_add_tp_input(list, "attention_input", arch->hidden);
    const bool bias = arch->qkv_bias && !model_has_mla(arch);
    ModelOp *gemm = ops_add_gemm(list, name, list->rows, arch->hidden, columns, bias);
    keep_qkv(list, gemm, heads->q_width, kv_width);
    ops_add_tp_input_again(list, "attention_input_again", arch->hidden);
    return gemm;
}

/* Elements of the scales of queries' and keys' norms. */
static double
qk_norm_elements(const ModelArch *arch, const Heads *heads)
{
    switch (arch->qk_norm_kind) {
    case MODEL_QK_NORM_HEAD:
        return 2.0 * (double)arch->head_dim;
    case MODEL_QK_NORM_PLAIN:
        return 0.0;
    default:
        return heads->q_width + heads->k_width;
    }
}

static void
add_qkv(OpsList *list, const Heads *heads)
{
    const ModelArch *arch = list->arch;
    const int64_t k = heads->kv_heads * arch->head_dim, v = heads->kv_heads * heads->v_dim;
    const int64_t q = model_qkv_columns(arch, list->shape->tp) - k - v;
    ModelOp *gemm;

    if (list->separate_matrices) {
        gemm = add_queries(list, heads, "q", q, 0.0);
        keep_qkv(list, ops_add_next_gemm(list, "k", list->rows, arch->hidden, k, arch->qkv_bias),
                 0.0, heads->k_width);
        keep_qkv(list, ops_add_next_gemm(list, "v", list->rows, arch->hidden, v, arch->qkv_bias),
                 0.0, heads->v_width);
        ops_add_input_sum(list, "attention_input_sum", list->rows * (double)arch->hidden, 3);
    } else {
        gemm = add_queries(list, heads, "qkv", q + k + v, heads->k_width + heads->v_width);
    }
    ops_keep_input(list, gemm, list->local_rows * (double)arch->hidden);
    if (arch->qk_norm) {
        double bytes = list->rows * (heads->q_width + heads->k_width) * list->e;
        ModelOp *op = ops_add_memory(list, "qk_norm", 2.0 * bytes, 3.0 * bytes, bytes, 2, 4);

        op->weight_bytes = ops_bytes(qk_norm_elements(arch, heads) * list->e);
        op->stored_operands = true;
        /* Sums of squares over all heads of a token, of queries and of keys, in fp32. */
        if (arch->qk_norm_kind == MODEL_QK_NORM_ROW)
            ops_add_collective(list, "qk_norm_sum", MODEL_GROUP_TP, MODEL_COMM_ALL_REDUCE,
                               MODEL_COMM_ALL_REDUCE, 8.0 * list->rows);
    }
}

/* The sigmoid of the gate's columns, and the product with attention's result, each way; the gate is
 * kept, and attention's result, which the product that follows does not read any more. */
static void
add_output_gate(OpsList *list, const Heads *heads)
{
    const ModelOutputGate kind = list->arch->output_gate;
    const double result = list->rows * (double)heads->heads * (double)heads->v_dim * list->e;
    const double gate =
        kind == MODEL_OUTPUT_GATE_ELEMENT ? result : list->rows * (double)heads->heads * list->e;

    if (kind == MODEL_OUTPUT_GATE_NONE)
        return;
    /* Elsewhere a part of the product that makes the queries. */
    if (model_has_mla(list->arch))
        ops_add_gemm(list, "gate", list->rows, list->arch->hidden,
                     heads->heads * model_gate_columns(list->arch), false);
    ops_add_memory(list, "output_gate", 2.0 * result + gate, 3.0 * result + 2.0 * gate,
                   result + gate, 2, 2);
}

/* Queries of MLA come directly, or through a low-rank latent that needs no tp communication of its
 * own (it travels with the key/value latent). */
static void
add_mla(OpsList *list, const Heads *heads)
{
    const ModelArch *arch = list->arch;
    const ModelMla *mla = &arch->mla;
    int64_t q_rank = mla->q_lora_rank, kv_rank = mla->kv_lora_rank;
    int64_t latent = q_rank + kv_rank + mla->qk_rope_head_dim;
    int64_t kv_columns = heads->heads * (mla->qk_nope_head_dim + mla->v_head_dim);
    double rows = list->local_rows;
    ModelOp *gemm;

    if (q_rank > 0) {
        ops_add_gemm(list, "q_down", rows, arch->hidden, q_rank, arch->qkv_bias);
        ops_add_norm(list, "q_norm", rows, q_rank);
    } else {
        add_queries(list, heads, "q_up", heads->heads * heads->qk_dim, 0.0);
    }
    gemm = ops_add_gemm(list, "kv_down", rows, arch->hidden, kv_rank + mla->qk_rope_head_dim,
                        arch->qkv_bias);
    /* One tensor for both down-projections. */
    ops_keep_input(list, gemm, rows * (double)arch->hidden);
    ops_add_norm(list, "kv_norm", rows, kv_rank);
    ops_add_tp_input(list, "latent", latent);
    if (q_rank > 0) {
        gemm = ops_add_gemm(list, "q_up", list->rows, q_rank, heads->heads * heads->qk_dim, false);
        ops_keep_input(list, gemm, rows * (double)q_rank);
        keep_qkv(list, gemm, heads->q_width, 0.0);
    }
    gemm = ops_add_gemm(list, "kv_up", list->rows, kv_rank, kv_columns, false);
    ops_keep_input(list, gemm, rows * (double)kv_rank);
    /* Every head keeps its own copy of the rotary part of the key. */
    keep_qkv(list, gemm, 0.0, heads->k_width + heads->v_width);
    ops_add_tp_input_again(list, "latent_again", latent);
}

/*
 * What gathering K and V, @bytes of all ranks, copies besides: forward a rank's own to their place
 * among the others' and then all, which came rank after rank, into the order of the sequence.
 * Backward does the same again, zeroes the gradients of all, copies them back to the order of the
 * ranks and adds its own part of their sum.
 */
static void
add_kv_order(OpsList *list, double bytes)
{
    double own = bytes / (double)list->shape->cp;
    double gather = 2.0 * (own + bytes);
    ModelOp *op = ops_add_memory(list, "kv_order", gather, gather + bytes + 2.0 * bytes + 3.0 * own,
                                 0.0, 2, 5);
    op->memory_kind = MODEL_MEMORY_COPY;
    op->group = MODEL_GROUP_CP;
}

/* --- what of the scores is needed --- */

/* Scores of the first @n queries of a sequence. */
static double
needed_scores(const ModelArch *arch, double n)
{
    const double window = (double)arch->window, chunk = (double)arch->chunk;

    if (chunk > 0.0) {
        const double rest = n - floor(n / chunk) * chunk;
        return floor(n / chunk) * chunk * (chunk + 1.0) / 2.0 + rest * (rest + 1.0) / 2.0;
    }
    if (window == 0.0 || n <= window)
        return n * (n + 1.0) / 2.0;
    return window * (window + 1.0) / 2.0 + (n - window) * window;
}

/* Keys that the slice's queries see, its own among them. */
static int64_t
n_keys(const ModelArch *arch, const ModelShape *shape)
{
    int64_t before = shape->context;

    if (arch->window > 0)
        before = MIN(before, arch->window - 1);
    if (arch->chunk > 0)
        before = before % arch->chunk;
    return before + shape->tokens;
}

/* Keys and values of the whole context pass round the ring of cp ranks; in backward again, and
 * their gradients with them  [ring attention, 2310.01889].  Or they are gathered, and the gradients
 * scattered  [Llama 3's, 2407.21783 3.3.2]. */
static void
add_kv_exchange(OpsList *list, const Heads *heads)
{
    const ModelShape *shape = list->shape;
    const bool gathers = shape->gathered_kv;
    const ModelComm there = gathers ? MODEL_COMM_ALL_GATHER : MODEL_COMM_RING_EXCHANGE;
    const ModelComm back = gathers ? MODEL_COMM_REDUCE_SCATTER : MODEL_COMM_RING_EXCHANGE;
    double bytes = (double)shape->batch * (double)n_keys(list->arch, shape) *
                   (heads->k_width + heads->v_width) * list->e;

    ops_add_collective(list, "kv_exchange", MODEL_GROUP_CP, there, there, bytes);
    ops_add_collective(list, "kv_gradient_exchange", MODEL_GROUP_CP, MODEL_COMM_NONE, back, bytes);
    if (gathers && shape->cp > 1)
        add_kv_order(list, bytes);
}

/* Fewer keys, and other numbers of queries, keys and heads than multiples, have no kernel
 * [Megatron-LM, fused_softmax.py]. */
#define SOFTMAX_KERNEL_MORE_KEYS_THAN 16
#define SOFTMAX_KERNEL_MULTIPLE 4

/* Whether the softmax of @op runs as PyTorch's operations one by one. */
static bool
is_softmax_eager(const ModelShape *shape, const ModelOp *op)
{
    const int64_t most = shape->softmax_keys, multiple = SOFTMAX_KERNEL_MULTIPLE;

    /* In 4 bytes there are no casts, and no kernel: what the operations cost is not modelled. */
    if (shape->eager_softmax || most == 0 || dtype_bytes(shape->dtype) > 2)
        return shape->eager_softmax;
    return op->n <= SOFTMAX_KERNEL_MORE_KEYS_THAN || op->n > most || op->m % multiple != 0 ||
           op->n % multiple != 0 || op->count % multiple != 0;
}

/*
 * Softmax by PyTorch's operations, against one kernel's 2 e and 3 e.  Forward: scale (2 w), mask
 * (2 w), cast (e + 4), softmax (8), cast (4 + e); backward the same way back, softmax's gradient of
 * two inputs (12).  w is the size of what is scaled and masked: before the cast e, after it, as
 * Megatron does, 4.  The softmax stays in fp32 besides.
 */
static void
set_eager_softmax(const OpsList *list, ModelOp *op, double scores)
{
    const double e = list->e, w = list->shape->eager_softmax ? e : 4.0;

    op->forward_bytes = ops_bytes((double)op->forward_bytes + scores * (4.0 * w + 16.0));
    op->backward_bytes = ops_bytes((double)op->backward_bytes + scores * (4.0 * w + 20.0 - e));
    op->saved_bytes = ops_bytes((double)op->saved_bytes + 4.0 * scores);
    /* At the softmax its input is there in both formats, its result not yet in the model's; at its
     * gradient, that of the result in both formats, and its own in fp32. */
    op->forward_transient_bytes = ops_bytes(4.0 * scores);
    op->backward_transient_bytes = ops_bytes((e + 8.0) * scores);
    op->n_kernels_forward += 4;
    op->n_kernels_backward += 4;
}

/* What the unfused form adds: the m x n scores pass through memory between its kernels. */
static void
set_unfused(const OpsList *list, ModelOp *op, double scores)
{
    double e = list->e;

    /* Forward: product writes; softmax reads, writes; [dropout reads, writes and its mask]; product
     * reads.  Backward: product writes dP; the value gradient reads P; [dropout reads, writes,
     * mask]; softmax reads dP and P, writes dS; two products read dS. */
    op->forward_bytes = ops_bytes((double)op->forward_bytes +
                                  scores * (4.0 * e + (list->masks ? 2.0 * e + 1.0 : 0.0)));
    op->backward_bytes = ops_bytes((double)op->backward_bytes +
                                   scores * (7.0 * e + (list->masks ? 2.0 * e + 1.0 : 0.0)));
    op->saved_bytes = ops_bytes(scores * (list->masks ? 2.0 * e + 1.0 : e));
    /* Two products, softmax, [dropout], and the copy that puts heads side by side again; backward
     * twice the products, and gathers the gradients of q, k, v. */
    op->n_kernels_forward = list->masks ? 5 : 4;
    op->n_kernels_backward = list->masks ? 8 : 7;
    if (is_softmax_eager(list->shape, op))
        set_eager_softmax(list, op, scores);
}

/* Rows of all tokens of some heads instead of all heads of some tokens: the way there, of @width
 * elements per row  [DeepSpeed-Ulysses, 2309.14509]. */
void
ops_add_head_exchange(OpsList *list, const char *name, double width)
{
    if (list->shape->cp > 1)
        ops_add_collective(list, name, MODEL_GROUP_CP, MODEL_COMM_ALL_TO_ALL, MODEL_COMM_ALL_TO_ALL,
                           list->rows * width * list->e);
}

/* Of the @scores between all queries and all keys of the slice: sets what share of those that count
 * is needed.  Returns: what share of them counts. */
static double
set_needed(const OpsList *list, double scores, ModelOp *op)
{
    const ModelShape *shape = list->shape;
    const double begin = (double)shape->context, end = begin + (double)shape->tokens;
    ModelArch bound = *list->arch;

    /* Which keys an indexer chooses does not matter. */
    if (bound.indexer.n_heads > 0)
        bound.window = bound.indexer.top_k;
    const double needed = needed_scores(&bound, end) - needed_scores(&bound, begin);
    const double counted = fmin(scores, 2.0 * needed);
    op->causal_fraction = needed / counted;
    op->needed_fraction = needed / scores;
    return counted / scores;
}

/* The scores by which each query's keys are chosen: two products, the scores of few small heads in
 * the format of the stored weights, and the choice, which reads them twice.  Not trained with the
 * rest: nothing of it has a gradient here. */
static void
add_indexer(OpsList *list)
{
    const ModelArch *arch = list->arch;
    const ModelIndexer *indexer = &arch->indexer;
    const int64_t input = arch->mla.q_lora_rank > 0 ? arch->mla.q_lora_rank : arch->hidden;
    const double rows = list->rows;

    if (indexer->n_heads == 0)
        return;
    ops_add_gemm(list, "index_queries", rows, input, indexer->n_heads * indexer->head_dim, false);
    ops_add_gemm(list, "index_key", rows, arch->hidden, indexer->head_dim, false);
    const double keys = rows * (double)indexer->head_dim * list->e;
    ModelOp *norm = ops_add_memory(list, "index_norm", 2.0 * keys, 3.0 * keys, keys, 1, 2);
    norm->weight_bytes = ops_bytes(2.0 * (double)indexer->head_dim * list->e);
    norm->stored_operands = true;
    ops_add_gemm(list, "index_weights", rows, arch->hidden, indexer->n_heads, false);
    ModelArch all = *arch;
    all.window = all.chunk = 0;
    const double begin = (double)list->shape->context;
    const double needed =
        needed_scores(&all, begin + (double)list->shape->tokens) - needed_scores(&all, begin);
    ModelOp *op = ops_add(list, "index_scores", MODEL_OP_SCAN);
    op->count = list->shape->batch * indexer->n_heads;
    op->m = ops_bytes(rows / (double)list->shape->batch);
    op->n = list->shape->context + list->shape->tokens;
    op->k = indexer->head_dim;
    op->forward_flops =
        2.0 * (double)op->count * needed / (double)list->shape->cp * (double)indexer->head_dim;
    /* The sums over heads in fp32, written, read and read again; the choice is kept. */
    op->forward_bytes =
        ops_bytes(12.0 * (double)list->shape->batch * needed / (double)list->shape->cp);
    op->saved_bytes = ops_bytes(4.0 * rows * (double)MIN(indexer->top_k, op->n));
    op->n_kernels_forward = 3;
    op->core_attention = true;
}

static void
add_attention(OpsList *list, const Heads *heads)
{
    const ModelShape *shape = list->shape;
    /* Ways in which the queries, and the heads, are cut. */
    int64_t query_parts = shape->all_to_all ? 1 : shape->cp;
    double head_parts = shape->all_to_all ? (double)shape->cp : 1.0;
    double tokens = (double)shape->tokens, context = (double)shape->context;
    double keys = (double)n_keys(list->arch, shape);
    const bool is_bound = list->arch->window > 0 || list->arch->chunk > 0;
    ModelOp *op = ops_add(list, "attention", MODEL_OP_ATTENTION);

    op->count = ops_bytes((double)shape->batch * (double)heads->heads / head_parts);
    op->m = model_ceil_div(shape->tokens, query_parts);
    op->n = n_keys(list->arch, shape);
    op->k = heads->qk_dim;
    op->causal_fraction = (context + (tokens + 1.0) / 2.0) / keys;
    op->needed_fraction = op->causal_fraction;
    op->core_attention = true;
    if (list->arch->sinks) {
        op->weight_bytes = ops_bytes((double)heads->heads * list->e);
        op->stored_operands = true;
    }
    const double scores = (double)op->count * (double)op->m * (double)op->n;
    double counted = scores;
    if (is_bound || list->arch->indexer.n_heads > 0)
        counted *= set_needed(list, tokens * keys, op);
    op->forward_flops = 2.0 * counted * ((double)heads->qk_dim + (double)heads->v_dim);
    op->backward_flops = 2.0 * op->forward_flops;

    const double q_bytes = list->rows * heads->q_width * list->e;
    const double out_bytes = list->rows * (double)heads->heads * (double)heads->v_dim * list->e;
    const double kv_bytes =
        (double)shape->batch * keys * (heads->k_width + heads->v_width) / head_parts * list->e;
    op->forward_bytes = ops_bytes(q_bytes + kv_bytes + out_bytes);
    /* Reads q, k, v, the output's gradient; writes three gradients. */
    op->backward_bytes = ops_bytes(2.0 * (q_bytes + kv_bytes) + out_bytes);
    if (shape->flash_attention) {
        double rows = (double)op->count * (double)op->m;

        /* With fp8 the next product keeps a copy in its own format, not the output itself. */
        op->saved_bytes = ops_bytes(4.0 * rows + (list->operand_e < list->e ? out_bytes : 0.0));
        op->backward_bytes = ops_bytes((double)op->backward_bytes + out_bytes);
        op->n_kernels_forward = 1;
        op->flash_version = shape->flash_version;
        /* Row sums of gradient times output, the fused kernel, conversion of dq  [2307.08691]. */
        op->n_kernels_backward = 3;
    } else {
        set_unfused(list, op, scores);
    }
}

/*
 * What rings of kernels that see one share of K and V each do besides: cp - 1 partial results are
 * scaled and added to the first, read twice and written each; in backward the gradients of queries,
 * keys and values are.  Cut in two chunks, one early and one late, each rank's queries or keys meet
 * half of most shares, and the half is copied before.  Of the fullest ranks: forward the last,
 * which adds whole results and copies halves of K and V; backward the first, which copies halves of
 * queries, results and their gradients, and adds half of the queries' gradient
 * [transformer-engine: cost-model.md 3.1].
 */
static void
add_ring_merge(OpsList *list, const Heads *heads)
{
    const ModelShape *shape = list->shape;
    const double steps = (double)shape->cp - 1.0;
    const double keys = (double)shape->context + (double)shape->tokens;
    const double q = list->rows * heads->q_width * list->e;
    const double out = list->rows * (double)heads->heads * (double)heads->v_dim * list->e;
    const double kv = (double)shape->batch * keys / (double)shape->cp *
                      (heads->k_width + heads->v_width) * list->e;

    if (shape->gathered_kv || shape->all_to_all || shape->cp == 1)
        return;
    ModelOp *op = ops_add_memory(list, "attention_merge", 2.0 * out + steps * (3.0 * out + kv),
                                 steps * (2.5 * q + 2.0 * out + 3.0 * kv), 0.0,
                                 3 * (shape->cp - 1) + 1, 6 * (shape->cp - 1));
    op->core_attention = true;
}

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

/* Everything of attention from the layer's normed input to what is added to it. */
static void
add_attention_mixer(OpsList *list)
{
    const ModelArch *arch = list->arch;
    const Heads heads = heads_of_rank(list);
    const int64_t proj_rows = heads.heads * heads.v_dim;
    const bool all_to_all = list->shape->all_to_all;

    if (model_has_mla(arch))
        add_mla(list, &heads);
    else
        add_qkv(list, &heads);
    if (model_positions(arch) == MODEL_POSITIONS_ROTARY)
        add_rope(list, &heads);
    add_indexer(list);
    if (!all_to_all)
        add_kv_exchange(list, &heads);
    if (all_to_all)
        ops_add_head_exchange(list, "heads_split", heads.q_width + heads.k_width + heads.v_width);
    add_attention(list, &heads);
    add_ring_merge(list, &heads);
    if (all_to_all)
        ops_add_head_exchange(list, "heads_merge", (double)proj_rows);
    add_output_gate(list, &heads);
    ModelOp *gemm =
        ops_add_gemm(list, "proj", list->rows, proj_rows, arch->hidden, model_has_proj_bias(arch));
    ops_keep_input(list, gemm, list->rows * (double)proj_rows);
    ops_add_tp_output(list, "attention_output", arch->hidden);
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
        add_attention_mixer(list);
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
    ops_set_again(list);
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
    ops_add_tp_output(list, "embedding_output", arch->hidden);
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
 * PyTorch's cross entropy of logits.float(), over @columns of the vocabulary.  Cast
 * (e + 4), logarithms (8); backward zeroes and fills the gradient of the logarithms (4), reads it
 * and them and writes (12), casts (4 + e).  Logits in both formats and their logarithms stay;
 * backward has two gradients in fp32 at once.
 */
static void
add_eager_loss(OpsList *list, int64_t columns)
{
    const double logits = list->rows * (double)columns;
    ModelOp *op = ops_add_memory(list, "loss", logits * (list->e + 12.0), logits * (list->e + 20.0),
                                 logits * (list->e + 8.0), 4, 5);
    op->memory_kind = MODEL_MEMORY_LOSS;
    op->backward_transient_bytes = ops_bytes(8.0 * logits);
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

static void
add_head(OpsList *list)
{
    const ModelArch *arch = list->arch;
    const int64_t columns = model_ceil_div(arch->vocab, list->shape->tp);

    list->operand_e = list->e;
    if (!arch->no_final_norm)
        ops_add_norm(list, "final_norm", list->local_rows, arch->hidden);
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
    const bool is_gathered = list->eager && !list->shape->splits_eager_loss;
    if (is_gathered)
        ops_add_collective(list, "logits_gather", MODEL_GROUP_TP, MODEL_COMM_ALL_GATHER,
                           MODEL_COMM_NONE, list->rows * (double)arch->vocab * list->e);
    else
        add_loss_sums(list);
    if (list->eager)
        add_eager_loss(list, is_gathered ? arch->vocab : columns);
    else
        add_loss(list, columns);
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

    const ModelArch padded = part == MODEL_PART_LAYER
                                 ? model_layer_arch(arch, layer)
                                 : model_arch_padded(arch, shape->tp, shape->vocab_multiple);
    OpsList list = ops_list(&padded, shape, ops);
    switch (part) {
    case MODEL_PART_EMBEDDING:
        if (arch->vocab > 0)
            add_embedding(&list);
        break;
    case MODEL_PART_LAYER:
        add_mixer(&list);
        add_ffn(&list);
        ops_set_again(&list);
        break;
    case MODEL_PART_HEAD:
        if (arch->vocab > 0)
            add_head(&list);
        break;
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

/* Of one sequence's forward. */
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

    for (size_t i = 0; i < n_ops; i++)
        flops += which == FLOPS_ALL ? ops[i].forward_flops
                 : ops[i].kind == MODEL_OP_ATTENTION
                     ? ops[i].forward_flops * (1.0 - ops[i].causal_fraction)
                     : 0.0;
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
    return 3.0 * n_sequences * flops;
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

/* --- shapes --- */

#define refuse(error, ...)                                                                         \
    (g_set_error(error, MODEL_ARCH_ERROR, MODEL_ARCH_ERROR_SHAPE, __VA_ARGS__), false)

#define MAX_TP_LIMITS 6

/* One divisor of the model; @tp may also be a multiple of it where @or_multiple. */
typedef struct {
    const char *what;
    int64_t size;
    bool or_multiple;
} TpLimit;

static bool
tp_limit_holds(const TpLimit *limit, int64_t tp)
{
    return limit->size % tp == 0 || (limit->or_multiple && tp % limit->size == 0);
}

/* Returns: (owned) "1, 2, 4": the degrees up to @max that satisfy all limits, at most 16 named. */
static char *
legal_tp(const TpLimit *limits, size_t n_limits, int64_t max)
{
    g_autoptr(GString) text = g_string_new(NULL);
    int n_named = 0;

    for (int64_t tp = 1; tp <= max && n_named < 16; tp++) {
        bool holds = true;

        for (size_t i = 0; i < n_limits && holds; i++)
            holds = tp_limit_holds(&limits[i], tp);
        if (holds) {
            g_string_append_printf(text, "%s" INT, n_named > 0 ? ", " : "", tp);
            n_named++;
        }
    }
    return g_string_free(g_steal_pointer(&text), FALSE);
}

/* What tp divides in layers like @arch. */
static size_t
tp_limits(const ModelArch *arch, TpLimit limits[MAX_TP_LIMITS])
{
    size_t n = 0;

    if (model_has_attention(arch)) {
        limits[n++] = (TpLimit){"heads", arch->n_heads, false};
        limits[n++] = (TpLimit){"key/value heads", arch->n_kv_heads, true};
    }
    if (model_has_state(arch)) {
        limits[n++] = (TpLimit){"heads of the state", arch->state.n_heads, false};
        limits[n++] = (TpLimit){"key heads of the state", arch->state.n_key_heads, true};
    }
    if (arch->ffn != MODEL_FFN_NONE && arch->experts.n_experts == 0)
        limits[n++] = (TpLimit){"MLP columns", arch->ffn_hidden, false};
    if (model_shared_hidden(&arch->experts) > 0)
        limits[n++] =
            (TpLimit){"shared experts' columns", model_shared_hidden(&arch->experts), false};
    return n;
}

/* Has limits of all kinds of layers, those with attention first. */
static bool
tp_check(const ModelArch *arch, int64_t tp, GError **error)
{
    TpLimit limits[MODEL_MAX_KINDS * MAX_TP_LIMITS];
    size_t n = 0;

    for (int32_t i = 0; i < model_n_kinds(arch); i++) {
        const ModelArch kind = model_kind_arch(arch, i);
        n += tp_limits(&kind, limits + n);
    }
    for (size_t i = 0; i < n; i++) {
        if (!tp_limit_holds(&limits[i], tp)) {
            g_autofree char *legal = legal_tp(limits, n, MIN(limits[0].size, 4096));

            return refuse(error, "tp " INT " does not divide the " INT " %s of %s; legal: %s", tp,
                          limits[i].size, limits[i].what, arch->name, legal);
        }
    }
    return true;
}

static bool
ep_check(const ModelArch *arch, int64_t ep, GError **error)
{
    TpLimit limits[MODEL_MAX_KINDS];
    size_t n = 0;

    for (int32_t i = 0; i < model_n_kinds(arch); i++) {
        const int64_t n_experts = model_kind_arch(arch, i).experts.n_experts;
        if (n_experts > 0)
            limits[n++] = (TpLimit){"experts", n_experts, false};
    }
    if (n == 0 && ep > 1)
        return refuse(error, "ep " INT ": %s has no experts; legal: 1", ep, arch->name);
    for (size_t i = 0; i < n; i++) {
        if (limits[i].size % ep == 0)
            continue;
        g_autofree char *legal = legal_tp(limits, n, limits[i].size);
        return refuse(error, "ep " INT " does not divide the " INT " experts of %s; legal: %s", ep,
                      limits[i].size, arch->name, legal);
    }
    return true;
}

/* Shares of tokens become shares of heads: where attention is asked to, around a scan always. */
static bool
cp_check(const ModelArch *arch, const ModelShape *shape, GError **error)
{
    const int64_t parts = shape->tp * shape->cp;

    for (int32_t i = 0; i < model_n_kinds(arch); i++) {
        const ModelArch kind = model_kind_arch(arch, i);
        if (shape->all_to_all && model_has_attention(&kind) &&
            (kind.n_heads % parts != 0 || kind.n_kv_heads % parts != 0))
            return refuse(error,
                          "cp " INT " by all-to-all: tp * cp = " INT " must divide the " INT
                          " heads and " INT " key/value heads of %s",
                          shape->cp, parts, kind.n_heads, kind.n_kv_heads, arch->name);
        if (shape->cp > 1 && model_has_state(&kind) && kind.state.n_heads % parts != 0)
            return refuse(error,
                          "cp " INT ": tp * cp = " INT " must divide the " INT
                          " heads of the state of %s",
                          shape->cp, parts, kind.state.n_heads, arch->name);
    }
    return true;
}

static bool
expert_tp_check(const ModelArch *arch, const ModelShape *shape, GError **error)
{
    const int64_t etp = MAX(1, shape->etp);

    for (int32_t i = 0; i < model_n_kinds(arch); i++) {
        const ModelExperts experts = model_kind_arch(arch, i).experts;
        if (shape->tp % etp != 0 || (experts.n_experts > 0 && experts.ffn_hidden % etp != 0))
            return refuse(error,
                          "expert tp " INT " does not divide tp " INT " and the " INT
                          " columns of an expert of %s",
                          etp, shape->tp, experts.ffn_hidden, arch->name);
    }
    return true;
}

/* Whether no count of bytes of one layer reaches saturation. */
static bool
bytes_check(const ModelArch *arch, const ModelShape *shape, GError **error)
{
    ModelOp ops[MODEL_MAX_OPS];

    /* The ends, then the kinds. */
    for (int32_t i = -2; i < model_n_kinds(arch); i++) {
        const ModelPart part = i == -2   ? MODEL_PART_EMBEDDING
                               : i == -1 ? MODEL_PART_HEAD
                                         : MODEL_PART_LAYER;
        const int64_t layer = i < 0 ? 0 : model_first_of_kind(arch, i);
        size_t n_ops = layer < 0 ? 0 : model_ops(arch, part, layer, shape, ops);
        double bytes = 0.0;

        for (size_t j = 0; j < n_ops; j++)
            bytes += (double)ops[j].forward_bytes + (double)ops[j].backward_bytes +
                     (double)ops[j].saved_bytes + (double)ops[j].comm_bytes;
        if (bytes >= (double)MODEL_MAX_BYTES)
            return refuse(error,
                          INT " sequences of " INT
                              " tokens: one layer of %s would touch more than 4.5e15 bytes",
                          shape->batch, shape->context + shape->tokens, arch->name);
    }
    return true;
}

bool
model_shape_check(const ModelArch *arch, const ModelShape *shape, GError **error)
{
    g_return_val_if_fail(arch != NULL && shape != NULL, false);

    const struct {
        const char *what;
        int64_t value, min, max;
    } sizes[] = {
        {"micro-batch", shape->batch, 1, MODEL_MAX_SEQ_LEN},
        {"tokens", shape->tokens, 1, MODEL_MAX_SEQ_LEN},
        {"context", shape->context, 0, MODEL_MAX_SEQ_LEN},
        {"tp", shape->tp, 1, MODEL_MAX_HEADS},
        {"cp", shape->cp, 1, MODEL_MAX_SEQ_LEN},
        {"ep", shape->ep, 1, MODEL_MAX_EXPERTS},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++)
        if (sizes[i].value < sizes[i].min || sizes[i].value > sizes[i].max)
            return refuse(error, "%s " INT ": expected " INT " to " INT, sizes[i].what,
                          sizes[i].value, sizes[i].min, sizes[i].max);
    /* Written so that NaN fails. */
    if (!(shape->expert_imbalance >= 1.0 && shape->expert_imbalance <= 1e6))
        return refuse(error, "expert imbalance: expected a factor from 1 to 1e6");
    return tp_check(arch, shape->tp, error) && ep_check(arch, shape->ep, error) &&
           cp_check(arch, shape, error) && expert_tp_check(arch, shape, error) &&
           bytes_check(arch, shape, error);
}
