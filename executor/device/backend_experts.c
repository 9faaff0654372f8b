/* The slots of experts for fp32 backends in host memory: backend_host.h. */
#include <math.h>
#include <string.h>

#include "executor/device/backend_host.h"

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
