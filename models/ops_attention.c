#include <math.h>

#include "base/real.h"
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
 * (3 e).  As complex numbers, compiled or not: a cast to fp32 (e + 4), the product (8), and a cast back
 * (4 + e), of queries and of keys, each way  [torchtitan, apply_rotary_emb()].
 */
static void
add_rope(OpsList *list, const Heads *heads)
{
    const ModelArch *arch = list->arch;
    /* Of a head that is rotated in part the rest stays where it is. */
    const double part =
        arch->rotary_dim > 0 ? (double)arch->rotary_dim / (double)arch->head_dim : 1.0;
    double elements = list->rows * (heads->q_width + heads->k_width) * part;
    const double complex_bytes = elements * (2.0 * list->e + 16.0);
    /* Eager: the rotated copies are new tensors; the values, a view, keep all that "qkv" wrote. */
    const double kept = list->eager ? elements * list->e : 0.0;
    /* torchtitan's models with norms of queries and keys (Qwen 3) have tables of cosines and sines. */
    if (list->shape->complex_rotary && !arch->qk_norm)
        ops_add_memory(list, "rope", complex_bytes, complex_bytes, kept, 6, 6);
    else if (list->eager)
        ops_add_memory(list, "rope", 10.0 * elements * list->e, 11.0 * elements * list->e, kept, 10,
                       12);
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
    ops_quantise_input(list, gemm);
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

/* Norms of queries and keys. */
static void
add_qk_norm(OpsList *list, const Heads *heads)
{
    const ModelArch *arch = list->arch;

    if (!arch->qk_norm)
        return;
    double bytes = list->rows * (heads->q_width + heads->k_width) * list->e;
    ModelOp *op = ops_add_memory(list, "qk_norm", 2.0 * bytes, 3.0 * bytes, bytes, 2, 4);

    op->weight_bytes = ops_bytes(qk_norm_elements(arch, heads) * list->e);
    op->stored_operands = true;
    /* Sums of squares over all heads of a token, of queries and of keys, in fp32. */
    if (arch->qk_norm_kind == MODEL_QK_NORM_ROW)
        ops_add_collective(list, "qk_norm_sum", MODEL_GROUP_TP, MODEL_COMM_ALL_REDUCE,
                           MODEL_COMM_ALL_REDUCE, 8.0 * list->rows);
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

/* Columns of the keys and values that pass between cp ranks. */
static double
ring_kv_width(const OpsList *list, const Heads *heads)
{
    return list->shape->torch_ring ? (double)(heads->heads * (list->arch->head_dim + heads->v_dim))
                                   : heads->k_width + heads->v_width;
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
                   ring_kv_width(list, heads) * list->e;

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
 * Megatron does, 4.  The softmax stays in fp32 besides.  With half_softmax: mask in place (2 w), which
 * has no gradient, softmax (e + 4), cast (4 + e); backward a cast (e + 4), softmax's gradient (8 + e).
 */
static void
set_eager_softmax(const OpsList *list, ModelOp *op, double scores)
{
    const double e = list->e, w = list->shape->eager_softmax ? e : 4.0;
    const bool half = list->shape->half_softmax && list->shape->dtype == DTYPE_FP16;

    op->forward_bytes =
        ops_bytes((double)op->forward_bytes + scores * (half ? 2.0 * w + 8.0 : 4.0 * w + 16.0));
    op->backward_bytes =
        ops_bytes((double)op->backward_bytes + scores * (half ? 12.0 - e : 4.0 * w + 20.0 - e));
    op->saved_bytes = ops_bytes((double)op->saved_bytes + 4.0 * scores);
    /* At the softmax its input is there in both formats, its result not yet in the model's; at its
     * gradient, that of the result in both formats, and its own in fp32. */
    op->forward_transient_bytes = ops_bytes(4.0 * scores);
    op->backward_transient_bytes = ops_bytes((e + 8.0) * scores);
    /* Queries are scaled, and the mask is made by four kernels; backward has no mask. */
    op->n_kernels_forward += half ? 7 : 4;
    op->n_kernels_backward += half ? 2 : 4;
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
    const double counted = real_min(scores, 2.0 * needed);
    op->causal_fraction = needed / counted;
    op->needed_fraction = needed / scores;
    return counted / scores;
}

/* A product of all rows on every tp rank, whose result is kept. */
static void
add_index_product(OpsList *list, const char *name, int64_t k, int64_t n)
{
    ModelOp *gemm = ops_add_gemm(list, name, list->rows, k, n, false);

    gemm->saved_bytes = ops_bytes((double)gemm->saved_bytes + list->rows * (double)n * list->e);
}

/* Scores between the slice's queries and keys that @arch's windows let pass, of a rank's share. */
static double
scores_of_slice(const OpsList *list, const ModelArch *arch)
{
    const double begin = (double)list->shape->context;

    return (needed_scores(arch, begin + (double)list->shape->tokens) - needed_scores(arch, begin)) /
           (double)list->shape->cp;
}

/*
 * The scores by which each query's keys are chosen: three products, the scores of few small heads in
 * the format of the stored weights, and the choice, which reads them twice.  It learns from attention's
 * probabilities of the chosen keys [2512.02556 equation 4], of which backward makes the products again: no
 * gradient of the layer's input comes of it.
 */
static void
add_indexer(OpsList *list, const Heads *heads)
{
    const ModelArch *arch = list->arch;
    const ModelIndexer *indexer = &arch->indexer;
    const int64_t input = arch->mla.q_lora_rank > 0 ? arch->mla.q_lora_rank : arch->hidden;
    const double rows = list->rows;

    if (indexer->n_heads == 0)
        return;
    add_index_product(list, "index_queries", input, indexer->n_heads * indexer->head_dim);
    add_index_product(list, "index_key", arch->hidden, indexer->head_dim);
    const double keys = rows * (double)indexer->head_dim * list->e;
    ModelOp *norm =
        ops_add_memory(list, "index_norm", 2.0 * keys, 3.0 * keys, keys + 8.0 * rows, 1, 2);
    norm->saved_kv_bytes = ops_bytes(keys);
    norm->weight_bytes = ops_bytes(2.0 * (double)indexer->head_dim * list->e);
    norm->stored_operands = true;
    add_index_product(list, "index_weights", arch->hidden, indexer->n_heads);
    ModelArch all = *arch, chosen = *arch;
    all.window = all.chunk = 0;
    chosen.window = indexer->top_k;
    const double batch = (double)list->shape->batch;
    const double needed = scores_of_slice(list, &all), kept = scores_of_slice(list, &chosen);
    ModelOp *op = ops_add(list, "index_scores", MODEL_OP_SCAN);
    op->count = list->shape->batch * indexer->n_heads;
    op->m = ops_bytes(rows / (double)list->shape->batch);
    op->n = list->shape->context + list->shape->tokens;
    op->k = indexer->head_dim;
    op->forward_flops = 2.0 * (double)op->count * needed * (double)indexer->head_dim;
    /* The chosen keys' scores again and their two gradients; attention's scores again. */
    op->backward_flops = kept * (6.0 * (double)op->count * (double)indexer->head_dim +
                                 2.0 * batch * (double)heads->heads * (double)heads->qk_dim);
    /* The sums over heads in fp32, written, read and read again; the choice is kept. */
    op->forward_bytes = ops_bytes(12.0 * batch * needed);
    op->backward_bytes = ops_bytes(12.0 * batch * kept);
    op->saved_bytes = ops_bytes(4.0 * rows * (double)MIN(indexer->top_k, op->n));
    op->n_kernels_forward = 3;
    op->n_kernels_backward = 4;
    op->core_attention = true;
    /* What the heads of all ranks give the chosen keys, in fp32. */
    ops_add_collective(list, "index_shares", MODEL_GROUP_TP, MODEL_COMM_NONE, MODEL_COMM_ALL_REDUCE,
                       4.0 * rows * (double)MIN(indexer->top_k, op->n));
}

/*
 * Keys and values in tensors of the whole sequence (T bytes of both), into which each slice writes its own
 * and of which it reads the first [TeraPipe, transformer_models.py: _AssignCache].  Backward, autograd
 * makes the gradient of what was read a whole one (T zeros, and a copy), adds that of the next slice
 * (3 T), and hands a copy without this slice's part to the slice before (2 T).
 */
static void
add_kv_cache(OpsList *list, const Heads *heads)
{
    const ModelShape *shape = list->shape;
    const double token = (double)shape->batch * (heads->k_width + heads->v_width) * list->e;
    const int64_t read = shape->context + shape->tokens;
    const int64_t whole = shape->whole_tokens > 0 ? shape->whole_tokens : read;
    const double own = token * (double)shape->tokens, all = token * (double)whole;
    const bool is_last = read == whole;
    ModelOp *op =
        ops_add_memory(list, "kv_cache", 2.0 * own,
                       2.0 * all + own + (is_last ? 0.0 : 4.0 * all + 2.0 * token * (double)read),
                       0.0, 2, is_last ? 4 : 10);

    op->memory_kind = MODEL_MEMORY_COPY;
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
        op->flash = shape->flash;
        /* Row sums of gradient times output, the fused kernel, conversion of dq  [2307.08691]. */
        op->n_kernels_backward = 3;
    } else {
        set_unfused(list, op, scores);
    }
}

/*
 * The same in PyTorch, operation by operation, bytes of an element of e (_SDPAMerger, and
 * _templated_ring_attention_backward()).  Forward: the first result is cast to fp32 (e + 4) and the last one
 * back (4 + e); each other is cast (e + 4), its difference to the sum (12) is scaled (8) and taken from it (12);
 * before each but the last K and V of all heads are joined to be sent (2 e).  Backward: gradients in fp32 are
 * zeroed (4), those of each share are added (8 + e), those of K and V are joined to be sent (8), and cast in
 * the end (4 + e); K and V are joined again (2 e).  K and V of all ranks are there beside it (_AllGatherRotater).
 */
static void
add_torch_merge(OpsList *list, const Heads *heads, double keys)
{
    const double steps = (double)list->shape->cp - 1.0, e = list->e;
    const double q = list->rows * heads->q_width;
    const double out = list->rows * (double)heads->heads * (double)heads->v_dim;
    const double kv = (double)list->shape->batch * keys * ring_kv_width(list, heads);
    const double forward = out * (2.0 * (4.0 + e) + steps * (36.0 + e)) + kv * steps * 2.0 * e;
    const double backward = (q + kv) * (8.0 + e + (steps + 1.0) * (8.0 + e)) +
                            kv * ((steps + 1.0) * 8.0 + steps * 2.0 * e);
    ModelOp *op = ops_add_memory(list, "attention_merge", forward, backward, 0.0,
                                 5 * (list->shape->cp - 1) + 2, 5 * list->shape->cp + 5);

    op->core_attention = true;
    op->forward_transient_bytes = op->backward_transient_bytes = ops_bytes((steps + 1.0) * kv * e);
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
    if (shape->torch_ring) {
        add_torch_merge(list, heads, keys / (double)shape->cp);
        return;
    }
    ModelOp *op = ops_add_memory(list, "attention_merge", 2.0 * out + steps * (3.0 * out + kv),
                                 steps * (2.5 * q + 2.0 * out + 3.0 * kv), 0.0,
                                 3 * (shape->cp - 1) + 1, 6 * (shape->cp - 1));
    op->core_attention = true;
}

void
ops_add_attention(OpsList *list)
{
    const ModelArch *arch = list->arch;
    const Heads heads = heads_of_rank(list);
    const int64_t proj_rows = heads.heads * heads.v_dim;
    const bool all_to_all = list->shape->all_to_all;

    if (model_has_mla(arch))
        add_mla(list, &heads);
    else
        add_qkv(list, &heads);
    add_qk_norm(list, &heads);
    if (model_positions(arch) == MODEL_POSITIONS_ROTARY)
        add_rope(list, &heads);
    add_indexer(list, &heads);
    if (!all_to_all)
        add_kv_exchange(list, &heads);
    if (all_to_all)
        ops_add_head_exchange(list, "heads_split", heads.q_width + heads.k_width + heads.v_width);
    if (list->shape->caches_kv)
        add_kv_cache(list, &heads);
    add_attention(list, &heads);
    add_ring_merge(list, &heads);
    if (all_to_all)
        ops_add_head_exchange(list, "heads_merge", (double)proj_rows);
    add_output_gate(list, &heads);
    ModelOp *gemm =
        ops_add_summed_gemm(list, "proj", proj_rows, arch->hidden, model_has_proj_bias(arch));
    ops_keep_input(list, gemm, list->rows * (double)proj_rows);
    ops_add_tp_output(list, "attention_output", arch->hidden, gemm);
}
