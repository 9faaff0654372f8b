/* Tests of the reference backend's backward slots: central differences of its forward slots. */
#include "executor/backend.h"

#include "tests/executor/tensors.h"

/* A function of x as loss = sum(weights * f(x)). */
typedef double (*LossFunc)(ExecBackend *backend, void *data);

/*
 * Compares @gradient . v with the central difference along a random direction v.  Outputs are fp32,
 * so h balances their rounding (eps/h) and the third derivative (h^2): 1e-2 gives 1e-4 or better
 * relative to the loss's scale.
 */
static void
check_derivative(ExecBackend *backend, LossFunc loss, void *data, float *x, const float *gradient,
                 int64_t n)
{
    const double h = 1e-2;
    g_autofree float *v = numbers("direction", n, 1), *x0 = copy_of(x, n);
    const double expected = dot(gradient, v, n);
    double f[2];

    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < n; i++)
            x[i] = x0[i] + (float)(side == 0 ? -h : h) * v[i];
        f[side] = loss(backend, data);
    }
    for (int64_t i = 0; i < n; i++)
        x[i] = x0[i];
    const double difference = (f[1] - f[0]) / (2 * h);
    const double norm = sqrt(dot(gradient, gradient, n));
    g_assert_cmpfloat(fabs(difference - expected), <=, 2e-3 * norm + 1e-6);
    g_assert_cmpfloat(norm, >, 1e-3);
}

static double
attention_loss(ExecBackend *backend, void *data)
{
    Attention *t = data;

    backend->ops->attention_forward(backend, &t->a);
    return dot(t->out, t->dout, t->n_q);
}

static void
test_attention_derivatives(void)
{
    g_autoptr(ExecBackend) backend = open_or_skip("reference");

    for (size_t i = 1; i < G_N_ELEMENTS(attention_shapes); i++) {
        const int64_t *s = attention_shapes[i];
        Attention t = attention_new(s[0], s[1], s[2], s[3], s[4], s[5]);
        for (int64_t j = 0; j < t.n_kv; j++)
            t.dkv[j] = 0;
        attention_run(backend, &t);
        check_derivative(backend, attention_loss, &t, t.q, t.dq, t.n_q);
        check_derivative(backend, attention_loss, &t, t.kv, t.dkv, t.n_kv);
        attention_clear(&t);
    }
}

typedef struct {
    int64_t rows, cols;
    float *x, *gain, *shift, *y, *w, *mean, *rstd;
} Rows;

static double
layernorm_loss(ExecBackend *backend, void *data)
{
    const Rows *r = data;

    backend->ops->layernorm_forward(backend, r->rows, r->cols, r->x, r->gain, r->shift, r->y,
                                    r->mean, r->rstd);
    return dot(r->y, r->w, r->rows * r->cols);
}

static void
test_layernorm_derivatives(void)
{
    enum {
        ROWS = 5,
        COLS = 19
    };
    const int64_t n = ROWS * COLS;
    g_autoptr(ExecBackend) backend = open_or_skip("reference");
    g_autofree float *x = numbers("x", n, 2), *gain = numbers("gain", COLS, 1);
    g_autofree float *shift = numbers("shift", COLS, 1), *w = numbers("w", n, 1);
    float y[ROWS * COLS], mean[ROWS], rstd[ROWS];
    float dx[ROWS * COLS] = {0}, dgain[COLS] = {0}, dshift[COLS] = {0};
    Rows r = {ROWS, COLS, x, gain, shift, y, w, mean, rstd};

    layernorm_loss(backend, &r);
    backend->ops->layernorm_backward(backend, ROWS, COLS, x, gain, mean, rstd, w, dx, dgain,
                                     dshift);
    check_derivative(backend, layernorm_loss, &r, x, dx, n);
    check_derivative(backend, layernorm_loss, &r, gain, dgain, COLS);
    check_derivative(backend, layernorm_loss, &r, shift, dshift, COLS);
}

static double
gelu_loss(ExecBackend *backend, void *data)
{
    const Rows *r = data;

    backend->ops->gelu_forward(backend, r->cols, r->x, r->y);
    return dot(r->y, r->w, r->cols);
}

static void
test_gelu_derivative(void)
{
    enum {
        N = 200
    };
    g_autoptr(ExecBackend) backend = open_or_skip("reference");
    g_autofree float *x = numbers("x", N, 2), *w = numbers("w", N, 1), *dx = copy_of(w, N);
    float y[N];
    Rows r = {.cols = N, .x = x, .y = y, .w = w};

    backend->ops->gelu_backward(backend, N, x, dx);
    check_derivative(backend, gelu_loss, &r, x, dx, N);
}

static double
entropy_loss(ExecBackend *backend, void *data)
{
    static const int32_t target[] = {0, 4, 2};
    const Rows *r = data;

    for (int64_t i = 0; i < r->rows * r->cols; i++)
        r->y[i] = r->x[i];
    return backend->ops->cross_entropy(backend, r->rows, r->cols, target, 1, r->y);
}

static void
test_cross_entropy_derivative(void)
{
    enum {
        ROWS = 3,
        COLS = 11
    };
    g_autoptr(ExecBackend) backend = open_or_skip("reference");
    g_autofree float *x = numbers("x", ROWS * COLS, 1);
    float y[ROWS * COLS], dx[ROWS * COLS];
    Rows r = {.rows = ROWS, .cols = COLS, .x = x, .y = y};

    entropy_loss(backend, &r);
    for (int64_t i = 0; i < ROWS * COLS; i++)
        dx[i] = y[i];
    check_derivative(backend, entropy_loss, &r, x, dx, ROWS * COLS);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/derivatives/attention-is-the-derivative",
                    test_attention_derivatives);
    g_test_add_func("/executor/derivatives/layernorm-is-the-derivative",
                    test_layernorm_derivatives);
    g_test_add_func("/executor/derivatives/gelu-is-the-derivative", test_gelu_derivative);
    g_test_add_func("/executor/derivatives/cross-entropy-is-the-derivative",
                    test_cross_entropy_derivative);
    return g_test_run();
}
