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
