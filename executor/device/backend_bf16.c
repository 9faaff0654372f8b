/*
 * executor/device/backend_bf16.c - bf16 storage for any host backend: operands are widened to fp32,
 * the fp32 backend computes, what it wrote is rounded once.
 *
 * So sums are those of fp32 and only what is stored loses bits, as on a device whose products
 * accumulate in fp32.  The point is exactness, not speed: processors without bf16 units gain
 * nothing from the format but memory.
 */
#include "executor/device/backend_host.h"

#include <stdlib.h>
#include <string.h>

#include "executor/device/recurrence_host.h"

/* The operands of a slot call, at most: attention_backward() has as many. */
#define MAX_OPERANDS 9

typedef struct {
    ExecBackend *inner; /* (owned) */
    ExecScratch scratch[MAX_OPERANDS];
} Bf16State;

static void
to_storage(ExecBackend *backend, int64_t n, const float *x, void *y)
{
    for (int64_t i = 0; i < n; i++)
        ((uint16_t *)y)[i] = bf16_from_float(x[i]);
}

static void
from_storage(ExecBackend *backend, int64_t n, const void *x, float *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = bf16_to_float(((const uint16_t *)x)[i]);
}

static ExecBackend *
inner_of(const ExecBackend *backend)
{
    return ((Bf16State *)backend->state)->inner;
}

/* In a slot: calls the fp32 backend's slot of this name. */
#define INNER(slot, ...) inner_of(backend)->ops->slot(inner_of(backend), __VA_ARGS__)

/* Operand @i of the call: room for @n floats. */
static float *
room(ExecBackend *backend, int i, int64_t n)
{
    return exec_host_scratch(&((Bf16State *)backend->state)->scratch[i], n);
}

/* Operand @i widened; NULL stays NULL. */
static float *
wide(ExecBackend *backend, int i, const void *x, int64_t n)
{
    if (x == NULL)
        return NULL;
    float *copy = room(backend, i, n);
    from_storage(backend, n, x, copy);
    return copy;
}

/* --- moves --- */

static void
add(ExecBackend *backend, int64_t n, const void *x, void *y)
{
    uint16_t *to = y;

    for (int64_t i = 0; i < n; i++)
        to[i] = bf16_from_float(bf16_to_float(to[i]) + bf16_to_float(((const uint16_t *)x)[i]));
}

/* --- products --- */

/* Elements of a matrix as stored: @rows rows of @cols, @stride apart. */
static inline int64_t
extent(int64_t rows, int64_t cols, int64_t stride)
{
    return rows == 0 ? 0 : (rows - 1) * stride + cols;
}

/* Rows of C only: the columns between them are nobody's. */
static void
round_rows(ExecBackend *backend, int64_t rows, int64_t cols, int64_t stride, const float *from,
           void *to)
{
    for (int64_t r = 0; r < rows; r++)
        to_storage(backend, cols, from + r * stride, (uint16_t *)to + r * stride);
}

static void
gemm(ExecBackend *backend, const ExecGemm *g)
{
    const int64_t n_c = extent(g->m, g->n, g->ldc);
    ExecGemm wider = *g;

    wider.a = wide(backend, 0, g->a,
                   g->trans_a ? extent(g->k, g->m, g->lda) : extent(g->m, g->k, g->lda));
    wider.b = wide(backend, 1, g->b,
                   g->trans_b ? extent(g->n, g->k, g->ldb) : extent(g->k, g->n, g->ldb));
    wider.bias = wide(backend, 2, g->bias, g->n);
    wider.residual = wide(backend, 3, g->residual, n_c);
    if (!g->c_fp32)
        wider.c = g->accumulate ? wide(backend, 4, g->c, n_c) : room(backend, 4, n_c);
    INNER(gemm, &wider);
    if (!g->c_fp32)
        round_rows(backend, g->m, g->n, g->ldc, wider.c, g->c);
}

static void
bias_backward(ExecBackend *backend, int64_t rows, int64_t cols, const void *dy, int64_t stride,
              float *db)
{
    INNER(bias_backward, rows, cols, wide(backend, 0, dy, extent(rows, cols, stride)), stride, db);
}

/* --- rows --- */

static ExecNorm
wide_norm(ExecBackend *backend, const ExecNorm *norm)
{
    ExecNorm wider = *norm;

    wider.x = wide(backend, 0, norm->x, norm->rows * norm->cols);
    wider.gain = wide(backend, 1, norm->gain, norm->cols);
    wider.shift = wide(backend, 2, norm->shift, norm->cols);
    return wider;
}

static void
norm_forward(ExecBackend *backend, const ExecNorm *norm, void *y)
{
    const ExecNorm wider = wide_norm(backend, norm);
    float *result = room(backend, 3, norm->rows * norm->cols);

    INNER(norm_forward, &wider, result);
    to_storage(backend, norm->rows * norm->cols, result, y);
}

static void
norm_backward(ExecBackend *backend, const ExecNorm *norm, const void *dy, void *dx, float *dgain,
              float *dshift)
{
    const int64_t n = norm->rows * norm->cols;
    const ExecNorm wider = wide_norm(backend, norm);
    float *result = wide(backend, 4, dx, n);

    INNER(norm_backward, &wider, wide(backend, 3, dy, n), result, dgain, dshift);
    to_storage(backend, n, result, dx);
}

static void
gelu_forward(ExecBackend *backend, int64_t n, const void *x, void *y)
{
    float *result = room(backend, 1, n);

    INNER(gelu_forward, n, wide(backend, 0, x, n), result);
    to_storage(backend, n, result, y);
}

static void
gelu_backward(ExecBackend *backend, int64_t n, const void *x, void *dy)
{
    float *result = wide(backend, 1, dy, n);

    INNER(gelu_backward, n, wide(backend, 0, x, n), result);
    to_storage(backend, n, result, dy);
}

static void
swiglu_forward(ExecBackend *backend, int64_t rows, int64_t width, const void *x, void *y)
{
    float *result = room(backend, 1, rows * width);

    INNER(swiglu_forward, rows, width, wide(backend, 0, x, rows * 2 * width), result);
    to_storage(backend, rows * width, result, y);
}

static void
swiglu_backward(ExecBackend *backend, int64_t rows, int64_t width, const void *x, const void *dy,
                void *dx)
{
    float *result = room(backend, 2, rows * 2 * width);

    INNER(swiglu_backward, rows, width, wide(backend, 0, x, rows * 2 * width),
          wide(backend, 1, dy, rows * width), result);
    to_storage(backend, rows * 2 * width, result, dx);
}

static void
rope(ExecBackend *backend, const ExecRope *r, void *x)
{
    const int64_t cols = (r->n_heads - 1) * r->head_dim + exec_rotary_dim(r);
    float *result = wide(backend, 0, x, extent(r->rows, cols, r->stride));

    INNER(rope, r, result);
    round_rows(backend, r->rows, cols, r->stride, result, x);
}

/* --- attention --- */

/* Elements of the operands of attention. */
typedef struct {
    int64_t q, out;
    int64_t rows, k_cols, v_cols; /* of K and V */
    int64_t k, v;                 /* to the end of the last row that is read */
} AttentionSizes;

static AttentionSizes
attention_sizes(const ExecAttention *a)
{
    const int64_t heads = a->tokens * a->sequences * a->n_heads;
    AttentionSizes n = {
        .q = heads * a->head_dim,
        .out = heads * exec_attention_v_dim(a),
        .rows = (a->context + a->tokens) * a->sequences,
        .k_cols = a->n_kv_heads * a->head_dim,
        .v_cols = a->n_kv_heads * exec_attention_v_dim(a),
    };

    n.k = extent(n.rows, n.k_cols, a->kv_stride);
    n.v = extent(n.rows, n.v_cols, a->kv_stride);
    return n;
}

/* Keys before those of the first row are not read, so they are not widened. */
static float *
wide_keys(ExecBackend *backend, int i, const ExecAttention *a, const void *x, int64_t n)
{
    const int64_t begin = exec_attention_first_key(a, 0) * a->sequences * a->kv_stride;
    float *copy = room(backend, i, n);

    from_storage(backend, n - begin, (const uint16_t *)x + begin, copy + begin);
    return copy;
}

static ExecAttention
wide_attention(ExecBackend *backend, const ExecAttention *a, const AttentionSizes *n)
{
    ExecAttention wider = *a;

    wider.q = wide(backend, 0, a->q, n->q);
    wider.k = wide_keys(backend, 1, a, a->k, n->k);
    wider.v = wide_keys(backend, 2, a, a->v, n->v);
    wider.out = wide(backend, 3, a->out, n->out);
    wider.sink = wide(backend, 8, a->sink, a->n_heads);
    return wider;
}

static void
attention_forward(ExecBackend *backend, const ExecAttention *a)
{
    const AttentionSizes n = attention_sizes(a);
    const ExecAttention wider = wide_attention(backend, a, &n);

    INNER(attention_forward, &wider);
    to_storage(backend, n.out, wider.out, a->out);
}

static void
attention_backward(ExecBackend *backend, const ExecAttention *a, const ExecAttentionGradients *g)
{
    const AttentionSizes n = attention_sizes(a);
    const ExecAttention wider = wide_attention(backend, a, &n);
    const ExecAttentionGradients gradients = {
        .dout = wide(backend, 4, g->dout, n.out),
        .dq = room(backend, 5, n.q),
        .dk = g->sums ? g->dk : room(backend, 6, n.k),
        .dv = g->sums ? g->dv : room(backend, 7, n.v),
        .sums = g->sums,
        .dsink = g->dsink,
    };

    INNER(attention_backward, &wider, &gradients);
    to_storage(backend, n.q, gradients.dq, g->dq);
    if (g->sums)
        return;
    round_rows(backend, n.rows, n.k_cols, a->kv_stride, gradients.dk, g->dk);
    round_rows(backend, n.rows, n.v_cols, a->kv_stride, gradients.dv, g->dv);
}

/* --- unusual layers --- */

static void
activate(ExecBackend *backend, ExecActivation activation, int64_t rows, int64_t width,
         const void *x, void *y)
{
    const int64_t n = rows * width, n_x = exec_activation_is_gated(activation) ? 2 * n : n;
    float *result = room(backend, 1, n);

    INNER(activate, activation, rows, width, wide(backend, 0, x, n_x), result);
    to_storage(backend, n, result, y);
}

static void
activate_backward(ExecBackend *backend, ExecActivation activation, int64_t rows, int64_t width,
                  const void *x, const void *dy, void *dx)
{
    const int64_t n = rows * width, n_x = exec_activation_is_gated(activation) ? 2 * n : n;
    float *result = room(backend, 2, n_x);

    INNER(activate_backward, activation, rows, width, wide(backend, 0, x, n_x),
          wide(backend, 1, dy, n), result);
    to_storage(backend, n_x, result, dx);
}

static void
scale(ExecBackend *backend, int64_t n, float factor, void *x)
{
    float *result = wide(backend, 0, x, n);

    INNER(scale, n, factor, result);
    to_storage(backend, n, result, x);
}

static void
cap(ExecBackend *backend, int64_t n, float limit, void *x)
{
    float *result = wide(backend, 0, x, n);

    INNER(cap, n, limit, result);
    to_storage(backend, n, result, x);
}

static void
cap_backward(ExecBackend *backend, int64_t n, float limit, const void *y, void *d)
{
    float *result = wide(backend, 1, d, n);

    INNER(cap_backward, n, limit, wide(backend, 0, y, n), result);
    to_storage(backend, n, result, d);
}

static void
route_factors_backward(ExecBackend *backend, const ExecRoute *route, const float *d_weight,
                       void *d_scores)
{
    const int64_t n = route->rows * route->n_experts;
    float *result = room(backend, 0, n);

    exec_host_route_factors_backward(backend, route, d_weight, result);
    to_storage(backend, n, result, d_scores);
}

/* --- norms of groups, blocks, gates --- */

static ExecGroupNorm
wide_group_norm(ExecBackend *backend, const ExecGroupNorm *norm)
{
    const int64_t cols = norm->groups * norm->cols;
    ExecGroupNorm wider = *norm;

    wider.x = wide(backend, 0, norm->x, extent(norm->rows, cols, norm->x_stride));
    wider.gain = wide(backend, 1, norm->gain, norm->gain_step == 0 ? norm->cols : cols);
    wider.shift = wide(backend, 3, norm->shift, norm->gain_step == 0 ? norm->cols : cols);
    return wider;
}

static void
group_norm_sums(ExecBackend *backend, const ExecGroupNorm *norm)
{
    const ExecGroupNorm wider = wide_group_norm(backend, norm);

    INNER(group_norm_sums, &wider);
}

static void
group_norm_forward(ExecBackend *backend, const ExecGroupNorm *norm, void *y, int64_t y_stride)
{
    const int64_t cols = norm->groups * norm->cols;
    const ExecGroupNorm wider = wide_group_norm(backend, norm);
    float *result = room(backend, 2, extent(norm->rows, cols, y_stride));

    INNER(group_norm_forward, &wider, result, y_stride);
    round_rows(backend, norm->rows, cols, y_stride, result, y);
}

static void
group_norm_backward_sums(ExecBackend *backend, const ExecGroupNorm *norm, const void *dy,
                         int64_t dy_stride, float *d_sums)
{
    const ExecGroupNorm wider = wide_group_norm(backend, norm);

    INNER(group_norm_backward_sums, &wider,
          wide(backend, 2, dy, extent(norm->rows, norm->groups * norm->cols, dy_stride)), dy_stride,
          d_sums);
}

static void
group_norm_backward(ExecBackend *backend, const ExecGroupNorm *norm, const float *d_sums, void *d,
                    int64_t d_stride, float *dgain, float *dshift)
{
    const int64_t cols = norm->groups * norm->cols;
    const ExecGroupNorm wider = wide_group_norm(backend, norm);
    float *result = wide(backend, 2, d, extent(norm->rows, cols, d_stride));

    INNER(group_norm_backward, &wider, d_sums, result, d_stride, dgain, dshift);
    round_rows(backend, norm->rows, cols, d_stride, result, d);
}

static void
copy_blocks(ExecBackend *backend, const ExecBlocks *b, const void *x, void *y)
{
    for (int64_t r = 0; r < b->rows; r++)
        for (int64_t i = 0; i < b->blocks; i++)
            memcpy((uint16_t *)y + r * b->to_stride + i * b->to_step,
                   (const uint16_t *)x + r * b->from_stride + i * b->from_step,
                   (size_t)b->cols * sizeof(uint16_t));
}

static void
sum_blocks(ExecBackend *backend, const ExecBlocks *b, const void *x, void *y)
{
    const int64_t n = (b->rows - 1) * b->from_stride + (b->blocks - 1) * b->from_step + b->cols;
    float *result = room(backend, 1, extent(b->rows, b->cols, b->to_stride));

    INNER(sum_blocks, b, wide(backend, 0, x, n), result);
    round_rows(backend, b->rows, b->cols, b->to_stride, result, y);
}

static ExecGate
wide_gate(ExecBackend *backend, const ExecGate *gate)
{
    const int64_t n = gate->rows * gate->cols;
    ExecGate wider = *gate;

    wider.x = wide(backend, 0, gate->x, n);
    wider.gate = wide(backend, 1, gate->gate, gate->per_row ? gate->rows : n);
    return wider;
}

static void
gate_forward(ExecBackend *backend, const ExecGate *gate, void *y)
{
    const ExecGate wider = wide_gate(backend, gate);
    float *result = room(backend, 2, gate->rows * gate->cols);

    INNER(gate_forward, &wider, result);
    to_storage(backend, gate->rows * gate->cols, result, y);
}

static void
gate_backward(ExecBackend *backend, const ExecGate *gate, void *d, void *dgate)
{
    const int64_t n = gate->rows * gate->cols, n_gates = gate->per_row ? gate->rows : n;
    const ExecGate wider = wide_gate(backend, gate);
    float *result = wide(backend, 2, d, n), *result_gate = room(backend, 3, n_gates);

    INNER(gate_backward, &wider, result, result_gate);
    to_storage(backend, n, result, d);
    to_storage(backend, n_gates, result_gate, dgate);
}

/* --- embedding, loss, optimizer --- */

/* The table is read by rows, so it is not widened. */
static void
embedding_forward(ExecBackend *backend, const ExecEmbedding *e, const void *table,
                  const void *positions, void *x)
{
    for (int64_t row = 0; row < e->rows; row++) {
        const int64_t i = e->token[row] - e->first_token;
        const bool here = i >= 0 && i < e->n_tokens;
        const uint16_t *from = (const uint16_t *)table + (here ? i : 0) * e->cols;
        const uint16_t *position = positions;
        uint16_t *to = (uint16_t *)x + row * e->cols;
        if (position != NULL)
            position += e->position[row / e->sequences] * e->cols;
        for (int64_t j = 0; j < e->cols; j++)
            to[j] = bf16_from_float((here ? e->scale * bf16_to_float(from[j]) : 0.0f) +
                                    (position != NULL ? bf16_to_float(position[j]) : 0.0f));
    }
}

static void
embedding_backward(ExecBackend *backend, const ExecEmbedding *e, const void *dx, float *dtable,
                   float *dpositions)
{
    exec_host_embedding_backward(backend, e, wide(backend, 0, dx, e->rows * e->cols), dtable,
                                 dpositions);
}

static void
cross_entropy_stats(ExecBackend *backend, const ExecCrossEntropy *e, float *stats)
{
    ExecCrossEntropy wider = *e;

    wider.logits = wide(backend, 0, e->logits, e->rows * e->stride);
    INNER(cross_entropy_stats, &wider, stats);
}

static void
cross_entropy(ExecBackend *backend, const ExecCrossEntropy *e)
{
    ExecCrossEntropy wider = *e;

    wider.logits = wide(backend, 0, e->logits, e->rows * e->stride);
    INNER(cross_entropy, &wider);
    to_storage(backend, e->rows * e->stride, wider.logits, e->logits);
}

static void
adamw(ExecBackend *backend, int64_t n_parts, const ExecAdamwPart *parts, const ExecAdamw *constants)
{
    INNER(adamw, n_parts, parts, constants);
    for (const ExecAdamwPart *p = parts; p < parts + n_parts; p++)
        to_storage(backend, p->n, p->master, p->weights);
}

/* --- experts --- */

static void
route_backward(ExecBackend *backend, int64_t rows, int64_t n_experts, int64_t top_k,
               const int32_t *expert, const float *weight, const float *d_weight, void *d_scores)
{
    float *result = room(backend, 0, rows * n_experts);

    exec_host_route_backward(backend, rows, n_experts, top_k, expert, weight, d_weight, result);
    to_storage(backend, rows * n_experts, result, d_scores);
}

/* Which rows of x are read is in @from: they are added one by one, rounded once. */
static void
sum_rows(ExecBackend *backend, int64_t rows, int64_t cols, int64_t n, const int32_t *from,
         const void *x, void *y)
{
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < cols; i++) {
            uint16_t *to = (uint16_t *)y + row * cols + i;
            float sum = bf16_to_float(*to);
            for (int64_t k = 0; k < n; k++)
                sum += bf16_to_float(((const uint16_t *)x)[from[row * n + k] * cols + i]);
            *to = bf16_from_float(sum);
        }
}

static void
scale_rows(ExecBackend *backend, int64_t rows, int64_t cols, const float *factor, void *x)
{
    float *result = wide(backend, 0, x, rows * cols);

    exec_host_scale_rows(backend, rows, cols, factor, result);
    to_storage(backend, rows * cols, result, x);
}

static void
dot_rows(ExecBackend *backend, int64_t rows, int64_t cols, const void *x, const void *y, float *dot)
{
    exec_host_dot_rows(backend, rows, cols, wide(backend, 0, x, rows * cols),
                       wide(backend, 1, y, rows * cols), dot);
}

/* --- lifecycle --- */

static char *
describe(const ExecBackend *backend)
{
    g_autofree char *inner = exec_backend_describe(inner_of(backend));

    return g_strdup_printf("%s, stored as bf16", inner);
}

static int64_t
workspace_bytes(const ExecBackend *backend)
{
    const Bf16State *state = backend->state;
    int64_t n = 0;

    for (int i = 0; i < MAX_OPERANDS; i++)
        n += exec_host_scratch_bytes(&state->scratch[i]);
    return n + exec_backend_workspace_bytes(state->inner);
}

static void
close_bf16(ExecBackend *backend)
{
    Bf16State *state = backend->state;

    for (int i = 0; i < MAX_OPERANDS; i++)
        free(state->scratch[i].data);
    exec_backend_close(state->inner);
    g_free(state);
    g_free(backend);
}

static const ExecBackendOps ops = {
    EXEC_HOST_MEMORY_SLOTS,
    EXEC_OWN_SLOTS,
    EXEC_HOST_RECURRENCE_SLOTS,
    EXEC_HOST_INDEXER_SLOTS,
    .to_storage = to_storage,
    .from_storage = from_storage,
    .rope = rope,
    .embedding_forward = embedding_forward,
    .embedding_backward = embedding_backward,
    .route = exec_host_route,
    .route_backward = route_backward,
    .activate = activate,
    .activate_backward = activate_backward,
    .scale = scale,
    .cap = cap,
    .cap_backward = cap_backward,
    .route_factors = exec_host_route_factors,
    .route_factors_backward = route_factors_backward,
    .gather_rows = exec_host_gather_rows,
    .sum_rows = sum_rows,
    .scale_rows = scale_rows,
    .dot_rows = dot_rows,
    .group_norm_sums = group_norm_sums,
    .group_norm_forward = group_norm_forward,
    .group_norm_backward_sums = group_norm_backward_sums,
    .group_norm_backward = group_norm_backward,
    .copy_blocks = copy_blocks,
    .sum_blocks = sum_blocks,
    .gate_forward = gate_forward,
    .gate_backward = gate_backward,
    .describe = describe,
    .workspace_bytes = workspace_bytes,
    .close = close_bf16,
};

ExecBackend *
exec_backend_bf16_new(ExecBackend *inner)
{
    ExecBackend *backend = g_new0(ExecBackend, 1);
    Bf16State *state = g_new0(Bf16State, 1);

    state->inner = inner;
    backend->ops = &ops;
    backend->storage = DTYPE_BF16;
    backend->state = state;
    backend->n_threads = inner->n_threads;
    return backend;
}
