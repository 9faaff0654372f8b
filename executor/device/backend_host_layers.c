/* Slots of unusual layers, for fp32 in host memory: plain loops. */
#include "executor/device/backend_host.h"

#include <math.h>

/* sqrt(2/pi) and the cubic's factor of GELU's tanh form [Hendrycks and Gimpel 1606.08415]. */
#define GELU_C 0.79788456080286535588
#define GELU_CUBE 0.044715

/* Returns: f(x), and in @slope its derivative. */
static double
curve(ExecActivation activation, double x, double *slope)
{
    switch (activation) {
    case EXEC_ACTIVATION_SWIGLU:
    case EXEC_ACTIVATION_SILU: {
        const double s = 1 / (1 + exp(-x));
        *slope = s * (1 + x * (1 - s));
        return x * s;
    }
    case EXEC_ACTIVATION_GEGLU:
    case EXEC_ACTIVATION_GELU: {
        const double t = tanh(GELU_C * (x + GELU_CUBE * x * x * x));
        *slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * GELU_C * (1 + 3 * GELU_CUBE * x * x);
        return 0.5 * x * (1 + t);
    }
    case EXEC_ACTIVATION_RELU2:
        *slope = 2 * fmax(x, 0);
        return fmax(x, 0) * fmax(x, 0);
    case EXEC_ACTIVATION_RELUGLU:
    case EXEC_ACTIVATION_RELU:
        break;
    }
    *slope = x > 0 ? 1 : 0;
    return fmax(x, 0);
}

void
exec_host_activate(ExecBackend *backend, ExecActivation activation, int64_t rows, int64_t width,
                   const void *x, void *y)
{
    const bool gated = exec_activation_is_gated(activation);
    double slope;

    for (int64_t r = 0; r < rows; r++) {
        const float *u = (const float *)x + r * width * (gated ? 2 : 1);
        float *to = (float *)y + r * width;
        for (int64_t i = 0; i < width; i++)
            to[i] = (float)(curve(activation, (double)u[i], &slope) *
                            (gated ? (double)u[width + i] : 1.0));
    }
}

void
exec_host_activate_backward(ExecBackend *backend, ExecActivation activation, int64_t rows,
                            int64_t width, const void *x, const void *dy, void *dx)
{
    const bool gated = exec_activation_is_gated(activation);

    for (int64_t r = 0; r < rows; r++) {
        const float *u = (const float *)x + r * width * (gated ? 2 : 1);
        const float *d = (const float *)dy + r * width;
        float *to = (float *)dx + r * width * (gated ? 2 : 1);
        for (int64_t i = 0; i < width; i++) {
            double slope;
            const double value = curve(activation, (double)u[i], &slope);
            const double from = (double)d[i], up = gated ? (double)u[width + i] : 1.0;
            to[i] = (float)(from * up * slope);
            if (gated)
                to[width + i] = (float)(from * value);
        }
    }
}

void
exec_host_scale(ExecBackend *backend, int64_t n, float factor, void *x)
{
    float *values = x;

    for (int64_t i = 0; i < n; i++)
        values[i] *= factor;
}

void
exec_host_cap(ExecBackend *backend, int64_t n, float cap, void *x)
{
    float *values = x;

    for (int64_t i = 0; i < n; i++)
        values[i] = cap * tanhf(values[i] / cap);
}

void
exec_host_cap_backward(ExecBackend *backend, int64_t n, float cap, const void *y, void *d)
{
    float *gradients = d;

    for (int64_t i = 0; i < n; i++) {
        const float bent = ((const float *)y)[i] / cap;
        gradients[i] *= 1 - bent * bent;
    }
}

/* --- routers --- */

/* Of one row: f(score) of expert @e, which factors are shares of. */
static double
share_of(const ExecRoute *r, const float *scores, int64_t e, double largest)
{
    return r->kind == EXEC_ROUTER_SIGMOID ? 1 / (1 + exp(-(double)scores[e]))
                                          : exp((double)scores[e] - largest);
}

/* The largest score of a row, and the sum of the shares of the chosen, or of all. */
static double
sum_shares(const ExecRoute *r, const float *scores, const int32_t *expert, double *largest)
{
    const bool all = r->kind == EXEC_ROUTER_SOFTMAX_ALL;
    double sum = 0;

    *largest = -INFINITY;
    for (int64_t e = 0; e < r->n_experts; e++)
        *largest = fmax(*largest, (double)scores[e]);
    for (int64_t i = 0; i < (all ? r->n_experts : r->top_k); i++)
        sum += share_of(r, scores, all ? i : expert[i], *largest);
    return sum;
}

void
exec_host_route_factors(ExecBackend *backend, const ExecRoute *r)
{
    for (int64_t row = 0; row < r->rows; row++) {
        const float *scores = r->scores + row * r->n_experts;
        const int32_t *expert = r->expert + row * r->top_k;
        double largest;
        const double sum = sum_shares(r, scores, expert, &largest);
        for (int64_t k = 0; k < r->top_k; k++)
            r->weight[row * r->top_k + k] =
                (float)((double)r->scale * share_of(r, scores, expert[k], largest) / sum);
    }
}

/* With factors w = share / sum and g the gradient of them: that of a share is (g - sum of w g) /
 * sum, which experts beyond the chosen have, too, where the sum is over all. */
void
exec_host_route_factors_backward(ExecBackend *backend, const ExecRoute *r, const float *d_weight,
                                 void *d_scores)
{
    for (int64_t row = 0; row < r->rows; row++) {
        const float *scores = r->scores + row * r->n_experts;
        const int32_t *expert = r->expert + row * r->top_k;
        const float *g = d_weight + row * r->top_k;
        float *to = (float *)d_scores + row * r->n_experts;
        double largest, dot = 0;
        const double sum = sum_shares(r, scores, expert, &largest);
        for (int64_t k = 0; k < r->top_k; k++)
            dot += (double)(g[k] * r->scale) * share_of(r, scores, expert[k], largest) / sum;
        for (int64_t e = 0; e < r->n_experts; e++)
            to[e] = r->kind == EXEC_ROUTER_SOFTMAX_ALL
                        ? (float)(-dot * share_of(r, scores, e, largest) / sum)
                        : 0.0f;
        for (int64_t k = 0; k < r->top_k; k++) {
            const double share = share_of(r, scores, expert[k], largest);
            const double slope = r->kind == EXEC_ROUTER_SIGMOID ? share * (1 - share) : share;
            to[expert[k]] = (float)(((double)(g[k] * r->scale) - dot) * slope / sum);
        }
    }
}
