/* The norms of loops_cpu.h. */
#include "executor/device/loops_cpu.h"

#include <math.h>

#include "executor/device/vector.h"

/* Sum of x, or of (x - mean)^2 when @squares. */
EXEC_INLINE float
row_sum(int64_t cols, const float *x, float mean, bool squares)
{
    ExecVec sum = {0}, v;
    int64_t i = 0;

    for (; i < exec_vec_whole(cols); i += EXEC_LANES) {
        exec_vec_load(&v, x + i);
        if (squares) {
            v -= mean;
            v *= v;
        }
        sum += v;
    }
    float total = exec_vec_sum(&sum);
    for (; i < cols; i++)
        total += squares ? (x[i] - mean) * (x[i] - mean) : x[i];
    return total;
}

EXEC_CLONES void
exec_cpu_norm_forward(const ExecNorm *norm, float *y)
{
    const int64_t cols = norm->cols;
    const float *gain = norm->gain, *shift = norm->shift;

    for (int64_t r = 0; r < norm->rows; r++) {
        const float *from = (const float *)norm->x + r * cols;
        float *to = y + r * cols;
        const float m = norm->mean != NULL ? row_sum(cols, from, 0.0f, false) / (float)cols : 0.0f;
        const float s =
            1.0f / sqrtf(row_sum(cols, from, m, true) / (float)cols + EXEC_NORM_EPSILON);
        int64_t i = 0;
        for (; i < exec_vec_whole(cols); i += EXEC_LANES) {
            ExecVec v, g, b = {0};
            exec_vec_load(&v, from + i);
            exec_vec_load(&g, gain + i);
            if (shift != NULL)
                exec_vec_load(&b, shift + i);
            v = (v - m) * s * g + b;
            exec_vec_store(&v, to + i);
        }
        for (; i < cols; i++)
            to[i] = (from[i] - m) * s * gain[i] + (shift != NULL ? shift[i] : 0.0f);
        if (norm->mean != NULL)
            norm->mean[r] = m;
        norm->rstd[r] = s;
    }
}

/* Sums of g and g z of a row (see backend_reference.c), and the parameters' sums on the way. */
EXEC_INLINE void
norm_row_sums(int64_t cols, const float *x, const float *gain, float m, float s, const float *dy,
              float *gain_sum, float *shift_sum, float *sum_g, float *sum_gz)
{
    ExecVec g_total = {0}, gz_total = {0};
    int64_t i = 0;

    for (; i < exec_vec_whole(cols); i += EXEC_LANES) {
        ExecVec v, w, d, a, b;
        exec_vec_load(&v, x + i);
        exec_vec_load(&w, gain + i);
        exec_vec_load(&d, dy + i);
        exec_vec_load(&a, gain_sum + i);
        exec_vec_load(&b, shift_sum + i);
        const ExecVec z = (v - m) * s;
        const ExecVec g = d * w;
        a += d * z;
        b += d;
        exec_vec_store(&a, gain_sum + i);
        exec_vec_store(&b, shift_sum + i);
        g_total += g;
        gz_total += g * z;
    }
    *sum_g = exec_vec_sum(&g_total);
    *sum_gz = exec_vec_sum(&gz_total);
    for (; i < cols; i++) {
        const float z = (x[i] - m) * s;
        gain_sum[i] += dy[i] * z;
        shift_sum[i] += dy[i];
        *sum_g += dy[i] * gain[i];
        *sum_gz += dy[i] * gain[i] * z;
    }
}

EXEC_CLONES void
exec_cpu_norm_backward(const ExecNorm *norm, const float *dy, float *dx, float *dgain,
                       float *dshift, float *sums)
{
    const int64_t cols = norm->cols;
    const float *gain = norm->gain;

    memset(sums, 0, 2 * (size_t)cols * sizeof *sums);
    for (int64_t r = 0; r < norm->rows; r++) {
        const float *from = (const float *)norm->x + r * cols, *d = dy + r * cols;
        const float m = norm->mean != NULL ? norm->mean[r] : 0.0f, s = norm->rstd[r];
        float *to = dx + r * cols;
        float mean_g = 0, mean_gz = 0;
        int64_t i = 0;
        norm_row_sums(cols, from, gain, m, s, d, sums, sums + cols, &mean_g, &mean_gz);
        mean_g = norm->mean != NULL ? mean_g / (float)cols : 0.0f;
        mean_gz /= (float)cols;
        for (; i < exec_vec_whole(cols); i += EXEC_LANES) {
            ExecVec v, w, e, old;
            exec_vec_load(&v, from + i);
            exec_vec_load(&w, gain + i);
            exec_vec_load(&e, d + i);
            exec_vec_load(&old, to + i);
            old += s * (e * w - mean_g - (v - m) * s * mean_gz);
            exec_vec_store(&old, to + i);
        }
        for (; i < cols; i++)
            to[i] += s * (d[i] * gain[i] - mean_g - (from[i] - m) * s * mean_gz);
    }
    exec_cpu_add(cols, sums, dgain);
    if (dshift != NULL)
        exec_cpu_add(cols, sums + cols, dshift);
}
