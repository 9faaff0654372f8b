/*
 * executor/cuda/kernels_attention.cu - attention of a slice against its context for any head size
 * and both number formats: a warp per query row (forward, dQ) or key row (dK, dV).
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
    int64_t t, b, h;

    if (!warp_job(a, a.tokens, a.n_heads, &t, &b, &h))
        return;
    const T *q = (const T *)a.q + query_at(a, t, b, h);
    const int64_t n_keys = a.context + t + 1, kv_row = a.sequences * a.kv_stride;
    float own[MAX_OWN] = {0.0f}, largest = -INFINITY, sum = 0.0f;

    for (int64_t first = 0; first < n_keys; first += WARP) {
        const int64_t at = key_at(a, first, b, h),
                      n = n_keys - first < WARP ? n_keys - first : WARP;
        float p = -INFINITY;
        if (lane < n)
            p = a.scale * dot(q, (const T *)a.k + at + lane * kv_row, a.head_dim);
        const float new_largest = fmaxf(largest, warp_max(p)), factor = expf(largest - new_largest);
        p = expf(p - new_largest);
        sum = sum * factor + warp_sum(p);
        for (int i = 0; i < MAX_OWN; i++)
            own[i] *= factor;
        add_weighted(own, p, (const T *)a.v + at, kv_row, n, a.head_dim);
        largest = new_largest;
    }
    T *out = (T *)a.out + query_at(a, t, b, h);
    for (int i = 0; i < MAX_OWN; i++)
        if (lane + WARP * i < a.head_dim)
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
    const T *q = (const T *)a.q + at_q, *dout = (const T *)g.dout + at_q;
    const T *out = (const T *)a.out + at_q;
    const int64_t n_keys = a.context + t + 1, kv_row = a.sequences * a.kv_stride;
    float own[MAX_OWN] = {0.0f}, weighted = 0.0f;

    for (int64_t i = lane; i < a.head_dim; i += WARP)
        weighted += to_float(dout[i]) * to_float(out[i]);
    weighted = warp_sum(weighted);
    if (lane == 0)
        delta[stat] = weighted;
    for (int64_t first = 0; first < n_keys; first += WARP) {
        const int64_t at = key_at(a, first, b, h),
                      n = n_keys - first < WARP ? n_keys - first : WARP;
        float ds = 0.0f;
        if (lane < n) {
            const T *k = (const T *)a.k + at + lane * kv_row;
            const T *v = (const T *)a.v + at + lane * kv_row;
            const float p = expf(a.scale * dot(q, k, a.head_dim) - a.lse[stat]);
            ds = a.scale * p * (dot(dout, v, a.head_dim) - weighted);
        }
        add_weighted(own, ds, (const T *)a.k + at, kv_row, n, a.head_dim);
    }
    for (int i = 0; i < MAX_OWN; i++)
        if (lane + WARP * i < a.head_dim)
            ((T *)g.dq)[at_q + lane + WARP * i] = from_float<T>(own[i]);
}

/* A warp per key row and K/V head: all queries that see it, of all heads that share it. */
template <typename T>
__global__ void
__launch_bounds__(THREADS)
    attention_backward_keys(ExecAttention a, ExecAttentionGradients g, const float *delta)
{
    const int lane = (int)threadIdx.x % WARP;
    const int64_t group = a.n_heads / a.n_kv_heads, q_row = a.sequences * a.n_heads * a.head_dim;
    int64_t key, b, kv_head;

    if (!warp_job(a, a.context + a.tokens, a.n_kv_heads, &key, &b, &kv_head))
        return;
    const int64_t at = key_at(a, key, b, kv_head * group);
    const T *k = (const T *)a.k + at, *v = (const T *)a.v + at;
    float dk[MAX_OWN] = {0.0f}, dv[MAX_OWN] = {0.0f};

    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h++)
        for (int64_t first = key > a.context ? key - a.context : 0; first < a.tokens;
             first += WARP) {
            const int64_t n = a.tokens - first < WARP ? a.tokens - first : WARP;
            const int64_t at_q = query_at(a, first, b, h);
            float p = 0.0f, ds = 0.0f;
            if (lane < n) {
                const int64_t stat = ((first + lane) * a.sequences + b) * a.n_heads + h;
                const T *q = (const T *)a.q + at_q + lane * q_row;
                const T *dout = (const T *)g.dout + at_q + lane * q_row;
                p = expf(a.scale * dot(q, k, a.head_dim) - a.lse[stat]);
                ds = a.scale * p * (dot(dout, v, a.head_dim) - delta[stat]);
            }
            add_weighted(dv, p, (const T *)g.dout + at_q, q_row, n, a.head_dim);
            add_weighted(dk, ds, (const T *)a.q + at_q, q_row, n, a.head_dim);
        }
    for (int i = 0; i < MAX_OWN; i++) {
        const int64_t j = at + lane + WARP * i;
        if (lane + WARP * i >= a.head_dim)
            continue;
        if (g.sums) {
            ((float *)g.dk)[j] += dk[i];
            ((float *)g.dv)[j] += dv[i];
        } else {
            ((T *)g.dk)[j] = from_float<T>(dk[i]);
            ((T *)g.dv)[j] = from_float<T>(dv[i]);
        }
    }
}

cudaError_t
kernels_attention_forward(Dtype storage, const ExecAttention *a, cudaStream_t stream)
{
    if (a->head_dim > KERNELS_MAX_HEAD_DIM)
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
    if (a->head_dim > KERNELS_MAX_HEAD_DIM)
        return cudaErrorInvalidValue;
    return for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        TRY(launch(attention_backward_queries<T>,
                   blocks_for(a->tokens * a->sequences * a->n_heads, N_WARPS), THREADS, 0, stream,
                   *a, *g, delta));
        return launch(attention_backward_keys<T>,
                      blocks_for((a->context + a->tokens) * a->sequences * a->n_kv_heads, N_WARPS),
                      THREADS, 0, stream, *a, *g, (const float *)delta);
    });
}
