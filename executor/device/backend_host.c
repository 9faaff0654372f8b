#include "executor/device/backend_host.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "executor/device/vector.h"

/* --- memory --- */

void *
exec_host_alloc(ExecBackend *backend, size_t n_bytes, const char *what, GError **error)
{
    size_t rounded = 0;
    void *memory = NULL;

    if (!__builtin_add_overflow(n_bytes, (size_t)63, &rounded))
        memory = aligned_alloc(64, MAX(rounded / 64 * 64, 64));
    if (memory == NULL)
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_MEMORY,
                    "no memory for %" G_GSIZE_FORMAT " bytes of %s", n_bytes, what);
    return memory;
}

void
exec_host_release(ExecBackend *backend, void *memory)
{
    free(memory);
}

void
exec_host_move(ExecBackend *backend, size_t n_bytes, const void *from, void *to)
{
    if (n_bytes > 0)
        memcpy(to, from, n_bytes);
}

bool
exec_host_synchronize(ExecBackend *backend, GError **error)
{
    return true;
}

void
exec_host_zero(ExecBackend *backend, size_t n_bytes, void *x)
{
    if (n_bytes > 0)
        memset(x, 0, n_bytes);
}

float *
exec_host_scratch(ExecScratch *scratch, int64_t n)
{
    if (n <= scratch->n)
        return scratch->data;
    free(scratch->data);
    scratch->n = n + n / 4;
    scratch->data = aligned_alloc(64, ((size_t)scratch->n * sizeof(float) + 63) & ~63ul);
    if (scratch->data == NULL)
        g_error("failed to allocate %" G_GINT64_FORMAT " floats of scratch", scratch->n);
    return scratch->data;
}

int64_t
exec_host_scratch_bytes(const ExecScratch *scratch)
{
    return scratch->n * (int64_t)sizeof *scratch->data;
}

/* --- moves --- */

void
exec_host_to_storage(ExecBackend *backend, int64_t n, const float *x, void *y)
{
    exec_host_move(backend, (size_t)n * sizeof *x, x, y);
}

void
exec_host_from_storage(ExecBackend *backend, int64_t n, const void *x, float *y)
{
    exec_host_move(backend, (size_t)n * sizeof *y, x, y);
}

void
exec_host_rope(ExecBackend *backend, const ExecRope *rope, void *x)
{
    const int64_t d = rope->head_dim, n = exec_rotary_dim(rope), half = n / 2;
    const float sign = rope->inverse ? -1.0f : 1.0f;

    for (int64_t row = 0; row < rope->rows; row++) {
        const float *cosine = rope->turns + rope->position[row / rope->sequences] * n;
        const float *sine = cosine + half;
        for (int64_t head = 0; head < rope->n_heads; head++) {
            float *v = (float *)x + row * rope->stride + head * d;
            for (int64_t i = 0; i < half; i++) {
                const float a = v[i], b = v[i + half];
                v[i] = a * cosine[i] - sign * b * sine[i];
                v[i + half] = b * cosine[i] + sign * a * sine[i];
            }
        }
    }
}

/* The row's line of the table here; -1: it is elsewhere. */
static int64_t
table_row(const ExecEmbedding *e, int64_t row)
{
    const int64_t i = e->token[row] - e->first_token;

    return i >= 0 && i < e->n_tokens ? i : -1;
}

void
exec_host_begin_gradients(const ExecAttention *a, const ExecAttentionGradients *g)
{
    const size_t k_bytes = (size_t)(a->n_kv_heads * a->head_dim) * sizeof(float);
    const size_t v_bytes = (size_t)(a->n_kv_heads * exec_attention_v_dim(a)) * sizeof(float);

    for (int64_t row = 0; !g->sums && row < (a->context + a->tokens) * a->sequences; row++) {
        memset((float *)g->dk + row * a->kv_stride, 0, k_bytes);
        memset((float *)g->dv + row * a->kv_stride, 0, v_bytes);
    }
}

void
exec_host_embedding_forward(ExecBackend *backend, const ExecEmbedding *e, const void *table,
                            const void *positions, void *x)
{
    for (int64_t row = 0; row < e->rows; row++) {
        const int64_t at = table_row(e, row);
        float *to = (float *)x + row * e->cols;
        const float *from = (const float *)table + at * e->cols;
        for (int64_t i = 0; i < e->cols; i++)
            to[i] = at < 0 ? 0.0f : e->scale * from[i];
        if (positions == NULL)
            continue;
        from = (const float *)positions + e->position[row / e->sequences] * e->cols;
        for (int64_t i = 0; i < e->cols; i++)
            to[i] += from[i];
    }
}

void
exec_host_embedding_backward(ExecBackend *backend, const ExecEmbedding *e, const void *dx,
                             float *dtable, float *dpositions)
{
    for (int64_t row = 0; row < e->rows; row++) {
        const int64_t at = table_row(e, row);
        const float *from = (const float *)dx + row * e->cols;
        for (int64_t i = 0; at >= 0 && i < e->cols; i++)
            dtable[at * e->cols + i] += e->scale * from[i];
        if (dpositions == NULL)
            continue;
        float *to = dpositions + e->position[row / e->sequences] * e->cols;
        for (int64_t i = 0; i < e->cols; i++)
            to[i] += from[i];
    }
}

/* --- sums --- */

void
exec_host_merge_stats(const ExecCrossEntropy *e, int64_t row, double *lse, double *target)
{
    const int64_t part = 3 * e->rows;
    double largest = -INFINITY, sum = 0;

    *target = 0;
    for (int64_t p = 0; p < e->n_parts; p++)
        largest = fmax(largest, (double)e->stats[p * part + row]);
    for (int64_t p = 0; p < e->n_parts; p++) {
        const double own = (double)e->stats[p * part + row];
        sum += (double)e->stats[p * part + e->rows + row] * exp(own - largest);
        *target += (double)e->stats[p * part + 2 * e->rows + row];
    }
    *lse = largest + log(sum);
}

/* Eight sums, so that additions need not wait for one another. */
EXEC_CLONES EXEC_VECTORIZE static double
sum_squares(int64_t n, const float *x)
{
    double lanes[8] = {0}, sum = 0;
    const int64_t whole = n / 8 * 8;

    for (int64_t i = 0; i < whole; i += 8)
        for (int j = 0; j < 8; j++)
            lanes[j] += (double)x[i + j] * (double)x[i + j];
    for (int j = 0; j < 8; j++)
        sum += lanes[j];
    for (int64_t i = whole; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

void
exec_host_sum_squares(ExecBackend *backend, int64_t n, const float *x, ExecClip *clip)
{
    clip->squares[0] += sum_squares(n, x);
}

void
exec_host_clip(ExecBackend *backend, int64_t n, double limit, ExecClip *clip)
{
    for (int64_t i = 1; i < n; i++)
        clip->squares[0] += clip->squares[i];
    const double norm = sqrt(clip->squares[0]);
    clip->factor = norm > limit ? (float)(limit / norm) : 1.0f;
}

/* --- experts --- */

/* The best expert of @scores after those already chosen; of equal ones the lowest. */
static int32_t
best(const float *scores, int64_t n_experts, const int32_t *chosen, int64_t n_chosen)
{
    int32_t result = -1;

    for (int32_t e = 0; e < n_experts; e++) {
        bool taken = false;
        for (int64_t i = 0; i < n_chosen; i++)
            taken |= chosen[i] == e;
        if (!taken && (result < 0 || scores[e] > scores[result]))
            result = e;
    }
    return result;
}

void
exec_host_route(ExecBackend *backend, int64_t rows, int64_t n_experts, int64_t top_k,
                const float *scores, int32_t *expert, float *weight)
{
    for (int64_t row = 0; row < rows; row++) {
        const float *s = scores + row * n_experts;
        int32_t *e = expert + row * top_k;
        double sum = 0;
        for (int64_t k = 0; k < top_k; k++) {
            e[k] = best(s, n_experts, e, k);
            sum += exp((double)s[e[k]] - (double)s[e[0]]);
        }
        for (int64_t k = 0; k < top_k; k++)
            weight[row * top_k + k] = (float)(exp((double)s[e[k]] - (double)s[e[0]]) / sum);
    }
}

void
exec_host_route_backward(ExecBackend *backend, int64_t rows, int64_t n_experts, int64_t top_k,
                         const int32_t *expert, const float *weight, const float *d_weight,
                         void *d_scores)
{
    memset(d_scores, 0, (size_t)(rows * n_experts) * sizeof(float));
    for (int64_t row = 0; row < rows; row++) {
        const float *w = weight + row * top_k, *dw = d_weight + row * top_k;
        double mean = 0;
        for (int64_t k = 0; k < top_k; k++)
            mean += (double)w[k] * (double)dw[k];
        for (int64_t k = 0; k < top_k; k++)
            ((float *)d_scores)[row * n_experts + expert[row * top_k + k]] =
                (float)((double)w[k] * ((double)dw[k] - mean));
    }
}

void
exec_host_gather_rows(ExecBackend *backend, int64_t rows, int64_t row_bytes, const int32_t *from,
                      const void *x, void *y)
{
    for (int64_t row = 0; row < rows; row++)
        memcpy((char *)y + row * row_bytes, (const char *)x + from[row] * row_bytes,
               (size_t)row_bytes);
}

void
exec_host_sum_rows(ExecBackend *backend, int64_t rows, int64_t cols, int64_t n, const int32_t *from,
                   const void *x, void *y)
{
    for (int64_t row = 0; row < rows; row++)
        for (int64_t k = 0; k < n; k++) {
            const float *a = (const float *)x + from[row * n + k] * cols;
            float *to = (float *)y + row * cols;
            for (int64_t i = 0; i < cols; i++)
                to[i] += a[i];
        }
}

void
exec_host_scale_rows(ExecBackend *backend, int64_t rows, int64_t cols, const float *factor, void *x)
{
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < cols; i++)
            ((float *)x)[row * cols + i] *= factor[row];
}

void
exec_host_dot_rows(ExecBackend *backend, int64_t rows, int64_t cols, const void *x, const void *y,
                   float *dot)
{
    for (int64_t row = 0; row < rows; row++) {
        double sum = 0;
        for (int64_t i = 0; i < cols; i++)
            sum += (double)((const float *)x)[row * cols + i] *
                   (double)((const float *)y)[row * cols + i];
        dot[row] = (float)sum;
    }
}
