#include "executor/device/loops_cpu.h"

#include <math.h>

#include "executor/device/backend_host.h"
#include "executor/device/vector.h"

EXEC_CLONES void
exec_cpu_add(int64_t n, const float *x, float *y)
{
    int64_t i = 0;

    for (; i < exec_vec_whole(n); i += EXEC_LANES) {
        ExecVec a, b;
        exec_vec_load(&a, x + i);
        exec_vec_load(&b, y + i);
        b += a;
        exec_vec_store(&b, y + i);
    }
    for (; i < n; i++)
        y[i] += x[i];
}

EXEC_CLONES void
exec_cpu_scale(int64_t n, float factor, float *x)
{
    int64_t i = 0;

    for (; i < exec_vec_whole(n); i += EXEC_LANES) {
        ExecVec a;
        exec_vec_load(&a, x + i);
        a *= factor;
        exec_vec_store(&a, x + i);
    }
    for (; i < n; i++)
        x[i] *= factor;
}

EXEC_CLONES void
exec_cpu_fill_rows(int64_t rows, int64_t cols, const float *bias, const float *residual, float *c,
                   int64_t ldc)
{
    for (int64_t r = 0; r < rows; r++) {
        float *to = c + r * ldc;
        const float *from = residual != NULL ? residual + r * ldc : NULL;
        int64_t i = 0;
        for (; i < exec_vec_whole(cols); i += EXEC_LANES) {
            ExecVec sum = {0}, term;
            if (bias != NULL)
                exec_vec_load(&sum, bias + i);
            if (from != NULL) {
                exec_vec_load(&term, from + i);
                sum += term;
            }
            exec_vec_store(&sum, to + i);
        }
        for (; i < cols; i++)
            to[i] = (bias != NULL ? bias[i] : 0.0f) + (from != NULL ? from[i] : 0.0f);
    }
}

/* Four vectors of columns at a time, so that the sums stay in registers over all rows. */
EXEC_CLONES void
exec_cpu_column_sums(int64_t rows, int64_t cols, const float *dy, int64_t stride, float *db)
{
    int64_t i = 0;

    for (; i + 4 * EXEC_LANES <= cols; i += 4 * EXEC_LANES) {
        ExecVec sum[4] = {{0}, {0}, {0}, {0}}, term;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t part = 0; part < 4; part++) {
                exec_vec_load(&term, dy + r * stride + i + part * EXEC_LANES);
                sum[part] += term;
            }
        for (int64_t part = 0; part < 4; part++) {
            exec_vec_load(&term, db + i + part * EXEC_LANES);
            term += sum[part];
            exec_vec_store(&term, db + i + part * EXEC_LANES);
        }
    }
    for (; i < cols; i++) {
        float sum = 0;
        for (int64_t r = 0; r < rows; r++)
            sum += dy[r * stride + i];
        db[i] += sum;
    }
}

/*
 * gelu(x) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3): the tanh form without tanh's
 * cancellation for negative x.
 */
#define GELU_C 0.79788456080286535588f
#define GELU_CUBE 0.044715f

EXEC_INLINE void
gelu_sigmoid(const ExecVec *x, ExecVec *sigmoid)
{
    ExecVec e = *x * (1.0f + GELU_CUBE * (*x * *x)) * (-2.0f * GELU_C);

    exec_vec_exp(&e);
    *sigmoid = 1.0f / (1.0f + e);
}

EXEC_INLINE void
gelu_slope(const ExecVec *x, ExecVec *slope)
{
    ExecVec s;

    gelu_sigmoid(x, &s);
    *slope = s + *x * s * (1.0f - s) * (2.0f * GELU_C) * (1.0f + 3.0f * GELU_CUBE * (*x * *x));
}

EXEC_CLONES void
exec_cpu_gelu_forward(int64_t n, const float *x, float *y)
{
    ExecVec v, s;
    int64_t i = 0;

    for (; i < exec_vec_whole(n); i += EXEC_LANES) {
        exec_vec_load(&v, x + i);
        gelu_sigmoid(&v, &s);
        s *= v;
        exec_vec_store(&s, y + i);
    }
    if (i < n) {
        exec_vec_load_part(&v, x + i, n - i, 0.0f);
        gelu_sigmoid(&v, &s);
        s *= v;
        exec_vec_store_part(&s, y + i, n - i);
    }
}

EXEC_CLONES void
exec_cpu_gelu_backward(int64_t n, const float *x, float *dy)
{
    ExecVec v, d, slope;
    int64_t i = 0;

    for (; i < exec_vec_whole(n); i += EXEC_LANES) {
        exec_vec_load(&v, x + i);
        exec_vec_load(&d, dy + i);
        gelu_slope(&v, &slope);
        d *= slope;
        exec_vec_store(&d, dy + i);
    }
    if (i < n) {
        exec_vec_load_part(&v, x + i, n - i, 0.0f);
        exec_vec_load_part(&d, dy + i, n - i, 0.0f);
        gelu_slope(&v, &slope);
        d *= slope;
        exec_vec_store_part(&d, dy + i, n - i);
    }
}

/* Of @n <= 16 lanes. */
EXEC_INLINE void
load_lanes(ExecVec *x, const float *from, int64_t n)
{
    if (n == EXEC_LANES)
        exec_vec_load(x, from);
    else
        exec_vec_load_part(x, from, n, 0.0f);
}

EXEC_INLINE void
store_lanes(const ExecVec *x, float *to, int64_t n)
{
    if (n == EXEC_LANES)
        exec_vec_store(x, to);
    else
        exec_vec_store_part(x, to, n);
}

/* a = silu(gate) up; or with @dy the gradients of gate (a) and up (b); of @n lanes. */
EXEC_INLINE void
swiglu_lanes(const float *gate, const float *up, const float *dy, int64_t n, float *a, float *b)
{
    ExecVec g, u, d, e, out;

    load_lanes(&g, gate, n);
    load_lanes(&u, up, n);
    e = -g;
    exec_vec_exp(&e);
    const ExecVec s = 1.0f / (1.0f + e);
    if (dy == NULL) {
        out = g * s * u;
        store_lanes(&out, a, n);
        return;
    }
    load_lanes(&d, dy, n);
    out = d * u * (s + g * s * (1.0f - s));
    store_lanes(&out, a, n);
    out = d * g * s;
    store_lanes(&out, b, n);
}

EXEC_CLONES void
exec_cpu_swiglu_forward(int64_t rows, int64_t width, const float *x, float *y)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i += EXEC_LANES)
            swiglu_lanes(x + 2 * r * width + i, x + (2 * r + 1) * width + i, NULL,
                         MIN(EXEC_LANES, width - i), y + r * width + i, NULL);
}

EXEC_CLONES void
exec_cpu_swiglu_backward(int64_t rows, int64_t width, const float *x, const float *dy, float *dx)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i += EXEC_LANES)
            swiglu_lanes(x + 2 * r * width + i, x + (2 * r + 1) * width + i, dy + r * width + i,
                         MIN(EXEC_LANES, width - i), dx + 2 * r * width + i,
                         dx + (2 * r + 1) * width + i);
}

/* exp(scale x - shift) in place; the sum of the results.  Columns from @n on are left alone. */
EXEC_INLINE float
exp_row(int64_t n, float scale, float shift, float *x)
{
    ExecVec sum = {0}, v;
    int64_t i = 0;

    for (; i < exec_vec_whole(n); i += EXEC_LANES) {
        exec_vec_load(&v, x + i);
        v = v * scale - shift;
        exec_vec_exp(&v);
        exec_vec_store(&v, x + i);
        sum += v;
    }
    float total = exec_vec_sum(&sum);
    if (i < n) {
        exec_vec_load_part(&v, x + i, n - i, 0.0f);
        v = v * scale - shift;
        exec_vec_exp(&v);
        exec_vec_store_part(&v, x + i, n - i);
        for (; i < n; i++)
            total += x[i];
    }
    return total;
}

EXEC_INLINE float
row_largest(int64_t n, const float *x)
{
    ExecVec largest, v;
    int64_t i = 0;

    exec_vec_load_part(&largest, x, MIN(n, EXEC_LANES), -INFINITY);
    for (; i < exec_vec_whole(n); i += EXEC_LANES) {
        exec_vec_load(&v, x + i);
        exec_vec_raise(&largest, &v);
    }
    float result = exec_vec_largest(&largest);
    for (; i < n; i++)
        result = x[i] > result ? x[i] : result;
    return result;
}

EXEC_INLINE void
scale_row(int64_t n, float factor, float *x)
{
    ExecVec v;
    int64_t i = 0;

    for (; i < exec_vec_whole(n); i += EXEC_LANES) {
        exec_vec_load(&v, x + i);
        v *= factor;
        exec_vec_store(&v, x + i);
    }
    for (; i < n; i++)
        x[i] *= factor;
}

EXEC_CLONES void
exec_cpu_softmax(int64_t rows, int64_t cols, int64_t context, float scale, float *score, float *lse,
                 int64_t lse_stride)
{
    for (int64_t r = 0; r < rows; r++) {
        const int64_t n = context + r + 1;
        float *row = score + r * cols;
        const float shift = row_largest(n, row) * scale;
        const float sum = exp_row(n, scale, shift, row);
        scale_row(n, 1.0f / sum, row);
        memset(row + n, 0, (size_t)(cols - n) * sizeof *row);
        lse[r * lse_stride] = shift + logf(sum);
    }
}

EXEC_INLINE float
dot(int64_t n, const float *x, const float *y)
{
    ExecVec sum = {0}, a, b;
    int64_t i = 0;

    for (; i < exec_vec_whole(n); i += EXEC_LANES) {
        exec_vec_load(&a, x + i);
        exec_vec_load(&b, y + i);
        sum += a * b;
    }
    float total = exec_vec_sum(&sum);
    for (; i < n; i++)
        total += x[i] * y[i];
    return total;
}

EXEC_CLONES void
exec_cpu_softmax_backward(int64_t rows, int64_t cols, int64_t context, float scale, int64_t d,
                          const float *lse, int64_t lse_stride, const float *out, const float *dout,
                          int64_t stride, float *score, float *dscore)
{
    for (int64_t r = 0; r < rows; r++) {
        const int64_t n = context + r + 1;
        const float shift = lse[r * lse_stride];
        const float delta = dot(d, out + r * stride, dout + r * stride);
        float *p = score + r * cols, *dp = dscore + r * cols;
        ExecVec a, b;
        int64_t i = 0;
        for (; i < exec_vec_whole(n); i += EXEC_LANES) {
            exec_vec_load(&a, p + i);
            exec_vec_load(&b, dp + i);
            a = a * scale - shift;
            exec_vec_exp(&a);
            b = (b - delta) * a * scale;
            exec_vec_store(&a, p + i);
            exec_vec_store(&b, dp + i);
        }
        if (i < n) {
            exec_vec_load_part(&a, p + i, n - i, 0.0f);
            exec_vec_load_part(&b, dp + i, n - i, 0.0f);
            a = a * scale - shift;
            exec_vec_exp(&a);
            b = (b - delta) * a * scale;
            exec_vec_store_part(&a, p + i, n - i);
            exec_vec_store_part(&b, dp + i, n - i);
        }
        memset(p + n, 0, (size_t)(cols - n) * sizeof *p);
        memset(dp + n, 0, (size_t)(cols - n) * sizeof *dp);
    }
}

EXEC_CLONES void
exec_cpu_cross_entropy_stats(const ExecCrossEntropy *e, float *stats, float *row)
{
    for (int64_t r = 0; r < e->rows; r++) {
        const float *logits = (const float *)e->logits + r * e->vocab;
        const int64_t target = e->target[r] - e->first;
        const float largest = row_largest(e->vocab, logits);
        memcpy(row, logits, (size_t)e->vocab * sizeof *row);
        stats[r] = largest;
        stats[e->rows + r] = exp_row(e->vocab, 1.0f, largest, row);
        stats[2 * e->rows + r] = target >= 0 && target < e->vocab ? logits[target] : 0.0f;
    }
}

EXEC_CLONES double
exec_cpu_cross_entropy(const ExecCrossEntropy *e)
{
    double loss = 0;

    for (int64_t r = 0; r < e->rows; r++) {
        float *row = (float *)e->logits + r * e->vocab;
        const int64_t target = e->target[r] - e->first;
        if (e->stats == NULL) {
            const float largest = row_largest(e->vocab, row);
            const double wanted = (double)row[target];
            const float sum = exp_row(e->vocab, 1.0f, largest, row);
            scale_row(e->vocab, e->factor / sum, row);
            loss += (double)largest + log((double)sum) - wanted;
        } else {
            double lse, wanted;
            exec_host_merge_stats(e, r, &lse, &wanted);
            exp_row(e->vocab, 1.0f, (float)lse, row);
            scale_row(e->vocab, e->factor, row);
            loss += lse - wanted;
        }
        if (target >= 0 && target < e->vocab)
            row[target] -= e->factor;
    }
    return loss;
}

/* Plain loop: square root and division are one instruction each when vectorised. */
EXEC_CLONES EXEC_VECTORIZE void
exec_cpu_adamw(int64_t n, float *restrict param, const float *restrict grad, float *restrict m,
               float *restrict v, const ExecAdamw *c)
{
    const float beta1 = c->beta1, beta2 = c->beta2, epsilon = c->epsilon;
    const float scale1 = (float)(1.0 / (1.0 - pow((double)beta1, (double)c->step)));
    const float scale2 = (float)(1.0 / (1.0 - pow((double)beta2, (double)c->step)));
    const float rate = c->learning_rate * scale1;
    const float keep = (float)(1.0 - (double)c->learning_rate * (double)c->weight_decay);

    for (int64_t i = 0; i < n; i++) {
        const float g = grad[i];
        m[i] = beta1 * m[i] + (1.0f - beta1) * g;
        v[i] = beta2 * v[i] + (1.0f - beta2) * g * g;
        param[i] = param[i] * keep - rate * m[i] / (sqrtf(v[i] * scale2) + epsilon);
    }
}
