/*
 * executor/device/backend_host_heads.c - slots that attention of more than plain queries, keys and
 * values needs: norms of heads and latents, blocks of columns, gates.  They are bound by memory, so
 * plain loops serve every backend in host memory.
 */
#include <math.h>
#include <string.h>

#include "executor/device/backend_host.h"

/* --- norms of groups --- */

typedef struct {
    double mean, rstd;
} Moments;

/* Of group @g of row @r. */
static inline Moments
moments(const ExecGroupNorm *norm, int64_t r, int64_t g)
{
    const int64_t at = r * norm->groups + g, n = norm->rows * norm->groups;
    Moments m = {.mean = norm->centred ? (double)norm->sums[n + at] / (double)norm->n : 0.0};
    const double variance = (double)norm->sums[at] / (double)norm->n - m.mean * m.mean;

    m.rstd = 1.0 / sqrt(fmax(variance, 0.0) + (double)norm->epsilon);
    return m;
}

static inline const float *
group_of(const ExecGroupNorm *norm, int64_t r, int64_t g)
{
    return (const float *)norm->x + r * norm->x_stride + g * norm->cols;
}

static inline double
gain_of(const ExecGroupNorm *norm, int64_t g, int64_t c)
{
    return norm->gain != NULL ? (double)((const float *)norm->gain)[g * norm->gain_step + c] : 1.0;
}

void
exec_host_group_norm_sums(ExecBackend *backend, const ExecGroupNorm *norm)
{
    const int64_t n = norm->rows * norm->groups;

    for (int64_t i = 0; i < n; i++) {
        const float *x = group_of(norm, i / norm->groups, i % norm->groups);
        double squares = 0, sum = 0;
        for (int64_t c = 0; c < norm->cols; c++) {
            squares += (double)x[c] * (double)x[c];
            sum += (double)x[c];
        }
        norm->sums[i] = (float)squares;
        if (norm->centred)
            norm->sums[n + i] = (float)sum;
    }
}

void
exec_host_group_norm_forward(ExecBackend *backend, const ExecGroupNorm *norm, void *y,
                             int64_t y_stride)
{
    for (int64_t r = 0; r < norm->rows; r++)
        for (int64_t g = 0; g < norm->groups; g++) {
            const Moments m = moments(norm, r, g);
            const float *x = group_of(norm, r, g);
            const float *shift = norm->shift;
            float *to = (float *)y + r * y_stride + g * norm->cols;
            for (int64_t c = 0; c < norm->cols; c++)
                to[c] = (float)(((double)x[c] - m.mean) * m.rstd * gain_of(norm, g, c) +
                                (shift != NULL ? (double)shift[g * norm->gain_step + c] : 0.0));
        }
}

void
exec_host_group_norm_backward_sums(ExecBackend *backend, const ExecGroupNorm *norm, const void *dy,
                                   int64_t dy_stride, float *d_sums)
{
    const int64_t n = norm->rows * norm->groups;

    for (int64_t i = 0; i < n; i++) {
        const int64_t r = i / norm->groups, g = i % norm->groups;
        const Moments m = moments(norm, r, g);
        const float *x = group_of(norm, r, g);
        const float *from = (const float *)dy + r * dy_stride + g * norm->cols;
        double products = 0, sum = 0;
        for (int64_t c = 0; c < norm->cols; c++) {
            const double slope = (double)from[c] * gain_of(norm, g, c);
            products += slope * ((double)x[c] - m.mean) * m.rstd;
            sum += slope;
        }
        d_sums[i] = (float)products;
        if (norm->centred)
            d_sums[n + i] = (float)sum;
    }
}

/* dx = rstd (g - mean(g) - z mean(g z)): see backend_reference.c.  The gradients of gains and shifts
 * are summed over rows in double. */
void
exec_host_group_norm_backward(ExecBackend *backend, const ExecGroupNorm *norm, const float *d_sums,
                              void *d, int64_t d_stride, float *dgain, float *dshift)
{
    const int64_t n = norm->rows * norm->groups;
    const int64_t n_gains = norm->cols + (norm->groups - 1) * norm->gain_step;
    g_autofree double *gains = g_new0(double, (size_t)n_gains);
    g_autofree double *shifts = g_new0(double, (size_t)n_gains);

    for (int64_t i = 0; i < n; i++) {
        const int64_t r = i / norm->groups, g = i % norm->groups;
        const Moments m = moments(norm, r, g);
        const float *x = group_of(norm, r, g);
        float *to = (float *)d + r * d_stride + g * norm->cols;
        const double product = (double)d_sums[i] / (double)norm->n;
        const double mean = norm->centred ? (double)d_sums[n + i] / (double)norm->n : 0.0;
        for (int64_t c = 0; c < norm->cols; c++) {
            const double z = ((double)x[c] - m.mean) * m.rstd, dy = (double)to[c];
            gains[g * norm->gain_step + c] += dy * z;
            shifts[g * norm->gain_step + c] += dy;
            to[c] = (float)(m.rstd * (dy * gain_of(norm, g, c) - mean - z * product));
        }
    }
    for (int64_t i = 0; dgain != NULL && i < n_gains; i++)
        dgain[i] += (float)gains[i];
    for (int64_t i = 0; dshift != NULL && i < n_gains; i++)
        dshift[i] += (float)shifts[i];
}

/* --- blocks of columns --- */

void
exec_host_copy_blocks(ExecBackend *backend, const ExecBlocks *b, const void *x, void *y)
{
    for (int64_t r = 0; r < b->rows; r++)
        for (int64_t i = 0; i < b->blocks; i++)
            memcpy((float *)y + r * b->to_stride + i * b->to_step,
                   (const float *)x + r * b->from_stride + i * b->from_step,
                   (size_t)b->cols * sizeof(float));
}

void
exec_host_sum_blocks(ExecBackend *backend, const ExecBlocks *b, const void *x, void *y)
{
    for (int64_t r = 0; r < b->rows; r++)
        for (int64_t c = 0; c < b->cols; c++) {
            double sum = 0;
            for (int64_t i = 0; i < b->blocks; i++)
                sum += (double)((const float *)x)[r * b->from_stride + i * b->from_step + c];
            ((float *)y)[r * b->to_stride + c] = (float)sum;
        }
}

/* --- gates --- */

static inline int64_t
gate_at(const ExecGate *gate, int64_t r, int64_t c)
{
    return gate->per_row ? r : r * gate->cols + c;
}

static inline double
sigmoid(const ExecGate *gate, int64_t r, int64_t c)
{
    return 1.0 / (1.0 + exp(-(double)((const float *)gate->gate)[gate_at(gate, r, c)]));
}

void
exec_host_gate_forward(ExecBackend *backend, const ExecGate *gate, void *y)
{
    for (int64_t r = 0; r < gate->rows; r++)
        for (int64_t c = 0; c < gate->cols; c++) {
            const int64_t at = r * gate->cols + c;
            ((float *)y)[at] = (float)((double)((const float *)gate->x)[at] * sigmoid(gate, r, c));
        }
}

/* With s the sigmoid: dx = dy s, dgate = dy x s (1 - s), of a row's gate the sum over its columns.
 */
void
exec_host_gate_backward(ExecBackend *backend, const ExecGate *gate, void *d, void *dgate)
{
    for (int64_t r = 0; r < gate->rows; r++) {
        double sum = 0;
        for (int64_t c = 0; c < gate->cols; c++) {
            const int64_t at = r * gate->cols + c;
            const double s = sigmoid(gate, r, c), dy = (double)((float *)d)[at];
            const double slope = dy * (double)((const float *)gate->x)[at] * s * (1.0 - s);
            ((float *)d)[at] = (float)(dy * s);
            sum += slope;
            if (!gate->per_row)
                ((float *)dgate)[at] = (float)slope;
        }
        if (gate->per_row)
            ((float *)dgate)[r] = (float)sum;
    }
}
