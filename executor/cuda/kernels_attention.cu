/*
 * executor/cuda/kernels_attention.cu - attention of a slice against its context for any head size
 * and both number formats, and with all that ExecAttention may have besides (windows, chunks, caps, slopes, sinks,
 * values of a size of their own): a warp per query row (forward, dQ) or key row (dK, dV).
 *
 * The other side is taken 32 rows at a time: lane l computes the dot products with row l of those,
 * then the lanes share the head's columns for the sums.  Where kernels_flash.cu has the shape
 * it is used instead; this one is for fp32 and odd head sizes.
 */
#include "executor/cuda/kernels.cuh"

#define N_WARPS 4
#define THREADS (N_WARPS * WARP)
#define MAX_OWN (KERNELS_MAX_HEAD_DIM / WARP) /* columns per lane */

template <typename T>
__device__ __forceinline__ float
dot(const T *a, const T *b, int64_t n)
{
    float sum = 0.0f;

    for (int64_t i = 0; i < n; i++)
        sum += to_float(a[i]) * to_float(b[i]);
    return sum;
}

/* Offsets of head @h of row @t of sequence @b. */
__device__ __forceinline__ int64_t
query_at(const ExecAttention &a, int64_t t, int64_t b, int64_t h)
{
    return ((t * a.sequences + b) * a.n_heads + h) * a.head_dim;
}

__device__ __forceinline__ int64_t
key_at(const ExecAttention &a, int64_t t, int64_t b, int64_t h)
{
    return (t * a.sequences + b) * a.kv_stride + h / (a.n_heads / a.n_kv_heads) * a.head_dim;
}

__device__ __forceinline__ int64_t
v_dim_of(const ExecAttention &a)
{
    return a.v_dim > 0 ? a.v_dim : a.head_dim;
}

/* The same of values, and of the result and its gradient. */
__device__ __forceinline__ int64_t
value_at(const ExecAttention &a, int64_t t, int64_t b, int64_t h)
{
    return (t * a.sequences + b) * a.kv_stride + h / (a.n_heads / a.n_kv_heads) * v_dim_of(a);
}

__device__ __forceinline__ int64_t
out_at(const ExecAttention &a, int64_t t, int64_t b, int64_t h)
{
    return ((t * a.sequences + b) * a.n_heads + h) * v_dim_of(a);
}

/* exec_attention_first_key(), and its counterpart: behind the last of the slice's rows that see key @key. */
__device__ __forceinline__ int64_t
first_key(const ExecAttention &a, int64_t row)
{
    const int64_t own = a.context + row;
    int64_t first = 0;

    if (a.window > 0 && own - a.window + 1 > first)
        first = own - a.window + 1;
    if (a.chunk > 0 && own - own % a.chunk > first)
        first = own - own % a.chunk;
    return first;
}

__device__ __forceinline__ int64_t
end_row(const ExecAttention &a, int64_t key)
{
    int64_t end = a.tokens;

    if (a.window > 0 && key + a.window - a.context < end)
        end = key + a.window - a.context;
    if (a.chunk > 0 && (key / a.chunk + 1) * a.chunk - a.context < end)
        end = (key / a.chunk + 1) * a.chunk - a.context;
    return end;
}

/* exec_attention_slope(). */
__device__ __forceinline__ float
slope_of(const ExecAttention &a, int64_t head)
{
    const int64_t number = a.first_head + head;
    int64_t n = 1;

    if (a.alibi_heads == 0)
        return 0.0f;
    while (2 * n <= a.alibi_heads)
        n *= 2;
    return number < n ? exp2f(-8.0f * (float)(number + 1) / (float)n)
                      : exp2f(-4.0f * (float)(2 * (number - n) + 1) / (float)n);
}

/* The score of a dot product of a query with the key @distance tokens before it.  @slope  (out) its derivative by
 * the product, the scale included */
__device__ __forceinline__ float
score_of(const ExecAttention &a, float product, float alibi, int64_t distance, float *slope)
{
    float score = a.scale * product;

    *slope = a.scale;
    if (a.cap > 0.0f) {
        const float t = tanhf(score / a.cap);
        score = a.cap * t;
        *slope *= 1.0f - t * t;
    }
    return score - alibi * (float)distance;
}

/* own[i] += sum over the lanes' rows r of weight_r * x[r][lane + 32 i]; row r is @stride on. */
template <typename T>
__device__ __forceinline__ void
add_weighted(float (&own)[MAX_OWN], float weight, const T *x, int64_t stride, int64_t n_rows,
             int64_t head_dim)
{
    const int lane = (int)threadIdx.x % WARP;

    for (int r = 0; r < n_rows; r++) {
        const float w = __shfl_sync(FULL, weight, (unsigned)r);
#pragma unroll
        for (int i = 0; i < MAX_OWN; i++)
            if (lane + WARP * i < head_dim)
                own[i] += w * to_float(x[r * stride + lane + WARP * i]);
    }
}

/* This warp's (row, sequence, head) of @n_heads heads; false beyond the last. */
__device__ __forceinline__ bool
warp_job(const ExecAttention &a, int64_t n_rows, int64_t n_heads, int64_t *t, int64_t *b,
         int64_t *h)
{
    const int64_t job = (int64_t)blockIdx.x * N_WARPS + threadIdx.x / WARP;

    *h = job % n_heads;
    *b = job / n_heads % a.sequences;
    *t = job / n_heads / a.sequences;
    return *t < n_rows;
}

template <typename T>
__global__ void
__launch_bounds__(THREADS) attention_forward(ExecAttention a)
{
    const int lane = (int)threadIdx.x % WARP;
    const int64_t v_dim = v_dim_of(a);
    int64_t t, b, h;

    if (!warp_job(a, a.tokens, a.n_heads, &t, &b, &h))
        return;
    const T *q = (const T *)a.q + query_at(a, t, b, h);
    const int64_t own_key = a.context + t, kv_row = a.sequences * a.kv_stride;
    const float alibi = slope_of(a, h);
    float own[MAX_OWN] = {0.0f}, largest = -INFINITY, sum = 0.0f;

    if (a.sink != NULL) { /* a score without a value */
        largest = to_float(((const T *)a.sink)[h]);
        sum = 1.0f;
    }
    for (int64_t first = first_key(a, t); first <= own_key; first += WARP) {
        const int64_t at = key_at(a, first, b, h);
        const int64_t n = own_key + 1 - first < WARP ? own_key + 1 - first : WARP;
        float p = -INFINITY, slope;
        if (lane < n)
            p = score_of(a, dot(q, (const T *)a.k + at + lane * kv_row, a.head_dim), alibi,
                         own_key - first - lane, &slope);
        const float new_largest = fmaxf(largest, warp_max(p)), factor = expf(largest - new_largest);
        p = expf(p - new_largest);
        sum = sum * factor + warp_sum(p);
        for (int i = 0; i < MAX_OWN; i++)
            own[i] *= factor;
        add_weighted(own, p, (const T *)a.v + value_at(a, first, b, h), kv_row, n, v_dim);
        largest = new_largest;
    }
    T *out = (T *)a.out + out_at(a, t, b, h);
    for (int i = 0; i < MAX_OWN; i++)
        if (lane + WARP * i < v_dim)
            out[lane + WARP * i] = from_float<T>(own[i] / sum);
    if (lane == 0)
        a.lse[(t * a.sequences + b) * a.n_heads + h] = largest + logf(sum);
}

/* dq, and delta = sum over the head of dO times O for the keys' kernel, which runs after. */
template <typename T>
__global__ void
__launch_bounds__(THREADS)
    attention_backward_queries(ExecAttention a, ExecAttentionGradients g, float *delta)
{
    const int lane = (int)threadIdx.x % WARP;
    int64_t t, b, h;

    if (!warp_job(a, a.tokens, a.n_heads, &t, &b, &h))
        return;
    const int64_t at_q = query_at(a, t, b, h), stat = (t * a.sequences + b) * a.n_heads + h;
    const int64_t at_out = out_at(a, t, b, h), v_dim = v_dim_of(a);
    const T *q = (const T *)a.q + at_q, *dout = (const T *)g.dout + at_out;
    const T *out = (const T *)a.out + at_out;
    const int64_t own_key = a.context + t, kv_row = a.sequences * a.kv_stride;
    const float alibi = slope_of(a, h);
    float own[MAX_OWN] = {0.0f}, weighted = 0.0f;

    for (int64_t i = lane; i < v_dim; i += WARP)
        weighted += to_float(dout[i]) * to_float(out[i]);
    weighted = warp_sum(weighted);
    if (lane == 0)
        delta[stat] = weighted;
    for (int64_t first = first_key(a, t); first <= own_key; first += WARP) {
        const int64_t at = key_at(a, first, b, h);
        const int64_t n = own_key + 1 - first < WARP ? own_key + 1 - first : WARP;
        float ds = 0.0f;
        if (lane < n) {
            const T *k = (const T *)a.k + at + lane * kv_row;
            const T *v = (const T *)a.v + value_at(a, first, b, h) + lane * kv_row;
            float slope;
            const float score =
                score_of(a, dot(q, k, a.head_dim), alibi, own_key - first - lane, &slope);
            ds = slope * expf(score - a.lse[stat]) * (dot(dout, v, v_dim) - weighted);
        }
        add_weighted(own, ds, (const T *)a.k + at, kv_row, n, a.head_dim);
    }
    for (int i = 0; i < MAX_OWN; i++)
        if (lane + WARP * i < a.head_dim)
            ((T *)g.dq)[at_q + lane + WARP * i] = from_float<T>(own[i]);
}

/* A block per head: a sink has its own share of every row, and no value: its gradient is -p delta. */
template <typename T>
__global__ void
__launch_bounds__(THREADS)
    attention_backward_sinks(ExecAttention a, ExecAttentionGradients g, const float *delta)
{
    __shared__ float scratch[N_WARPS];
    const int64_t h = blockIdx.x, rows = a.tokens * a.sequences;
    const float sink = to_float(((const T *)a.sink)[h]);
    float sum = 0.0f;

    for (int64_t row = threadIdx.x; row < rows; row += THREADS)
        sum -= expf(sink - a.lse[row * a.n_heads + h]) * delta[row * a.n_heads + h];
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0)
        g.dsink[h] += sum;
}

/* A warp per key row and K/V head: all queries that see it, of all heads that share it. */
template <typename T>
__global__ void
__launch_bounds__(THREADS)
    attention_backward_keys(ExecAttention a, ExecAttentionGradients g, const float *delta)
{
    const int lane = (int)threadIdx.x % WARP;
    const int64_t group = a.n_heads / a.n_kv_heads, v_dim = v_dim_of(a);
    const int64_t q_row = a.sequences * a.n_heads * a.head_dim;
    const int64_t out_row = a.sequences * a.n_heads * v_dim;
    int64_t key, b, kv_head;

    if (!warp_job(a, a.context + a.tokens, a.n_kv_heads, &key, &b, &kv_head))
        return;
    const int64_t at = key_at(a, key, b, kv_head * group),
                  at_v = value_at(a, key, b, kv_head * group);
    const int64_t end = end_row(a, key);
    const T *k = (const T *)a.k + at, *v = (const T *)a.v + at_v;
    float dk[MAX_OWN] = {0.0f}, dv[MAX_OWN] = {0.0f};

    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
        const float alibi = slope_of(a, h);
        for (int64_t first = key > a.context ? key - a.context : 0; first < end; first += WARP) {
            const int64_t n = end - first < WARP ? end - first : WARP;
            const int64_t at_q = query_at(a, first, b, h), at_out = out_at(a, first, b, h);
            float p = 0.0f, ds = 0.0f;
            if (lane < n) {
                const int64_t stat = ((first + lane) * a.sequences + b) * a.n_heads + h;
                const T *q = (const T *)a.q + at_q + lane * q_row;
                const T *dout = (const T *)g.dout + at_out + lane * out_row;
                float slope;
                p = expf(score_of(a, dot(q, k, a.head_dim), alibi, a.context + first + lane - key,
                                  &slope) -
                         a.lse[stat]);
                ds = slope * p * (dot(dout, v, v_dim) - delta[stat]);
            }
            add_weighted(dv, p, (const T *)g.dout + at_out, out_row, n, v_dim);
            add_weighted(dk, ds, (const T *)a.q + at_q, q_row, n, a.head_dim);
        }
    }
    for (int i = 0; i < MAX_OWN; i++) {
        const int64_t j = lane + WARP * i;
        if (j < a.head_dim && g.sums)
            ((float *)g.dk)[at + j] += dk[i];
        else if (j < a.head_dim)
            ((T *)g.dk)[at + j] = from_float<T>(dk[i]);
        if (j < v_dim && g.sums)
            ((float *)g.dv)[at_v + j] += dv[i];
        else if (j < v_dim)
            ((T *)g.dv)[at_v + j] = from_float<T>(dv[i]);
    }
}

/* Whether a lane has room for its columns. */
static bool
fits(const ExecAttention *a)
{
    return a->head_dim <= KERNELS_MAX_HEAD_DIM && exec_attention_v_dim(a) <= KERNELS_MAX_HEAD_DIM;
}

cudaError_t
kernels_attention_forward(Dtype storage, const ExecAttention *a, cudaStream_t stream)
{
    if (!fits(a))
        return cudaErrorInvalidValue;
    return for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        return launch(attention_forward<T>,
                      blocks_for(a->tokens * a->sequences * a->n_heads, N_WARPS), THREADS, 0,
                      stream, *a);
    });
}

cudaError_t
kernels_attention_backward(Dtype storage, const ExecAttention *a, const ExecAttentionGradients *g,
                           float *delta, cudaStream_t stream)
{
    if (!fits(a))
        return cudaErrorInvalidValue;
    return for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        TRY(launch(attention_backward_queries<T>,
                   blocks_for(a->tokens * a->sequences * a->n_heads, N_WARPS), THREADS, 0, stream,
                   *a, *g, delta));
        if (g->dsink != NULL)
            TRY(launch(attention_backward_sinks<T>, (unsigned)a->n_heads, THREADS, 0, stream, *a,
                       *g, (const float *)delta));
        return launch(attention_backward_keys<T>,
                      blocks_for((a->context + a->tokens) * a->sequences * a->n_kv_heads, N_WARPS),
                      THREADS, 0, stream, *a, *g, (const float *)delta);
    });
}
