/* Tests of the reference backend's backward slots: central differences of its forward slots. */
#include "executor/device/backend.h"

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

static ExecNorm
norm_of(const Rows *r)
{
    return (ExecNorm){
        .rows = r->rows,
        .cols = r->cols,
        .x = r->x,
        .gain = r->gain,
        .shift = r->shift,
        .mean = r->mean,
        .rstd = r->rstd,
        .epsilon = 1e-3f,
    };
}

static double
norm_loss(ExecBackend *backend, void *data)
{
    const Rows *r = data;
    const ExecNorm norm = norm_of(r);

    backend->ops->norm_forward(backend, &norm, r->y);
    return dot(r->y, r->w, r->rows * r->cols);
}

/* LayerNorm, and RMSNorm: without shift and mean. */
static void
check_norm_derivatives(bool rms)
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
    Rows r = {ROWS, COLS, x, gain, rms ? NULL : shift, y, w, rms ? NULL : mean, rstd};

    norm_loss(backend, &r);
    const ExecNorm norm = norm_of(&r);
    backend->ops->norm_backward(backend, &norm, w, dx, dgain, rms ? NULL : dshift);
    check_derivative(backend, norm_loss, &r, x, dx, n);
    check_derivative(backend, norm_loss, &r, gain, dgain, COLS);
    if (!rms)
        check_derivative(backend, norm_loss, &r, shift, dshift, COLS);
}

static void
test_norm_derivatives(void)
{
    check_norm_derivatives(false);
    check_norm_derivatives(true);
}

static double
swiglu_loss(ExecBackend *backend, void *data)
{
    const Rows *r = data;

    backend->ops->swiglu_forward(backend, r->rows, r->cols, r->x, r->y);
    return dot(r->y, r->w, r->rows * r->cols);
}

static void
test_swiglu_derivative(void)
{
    enum {
        ROWS = 5,
        COLS = 19
    };
    g_autoptr(ExecBackend) backend = open_or_skip("reference");
    g_autofree float *x = numbers("x", 2 * ROWS * COLS, 2), *w = numbers("w", ROWS * COLS, 1);
    float y[ROWS * COLS], dx[2 * ROWS * COLS];
    Rows r = {.rows = ROWS, .cols = COLS, .x = x, .y = y, .w = w};

    backend->ops->swiglu_backward(backend, ROWS, COLS, x, w, dx);
    check_derivative(backend, swiglu_loss, &r, x, dx, 2 * ROWS * COLS);
}

/* A rotation keeps lengths, its inverse undoes it, and the product of two rotated vectors depends
 * on the difference of their positions only. */
static void
test_rope_turns_by_position(void)
{
    enum {
        D = 6,
        N = 9
    };
    g_autoptr(ExecBackend) backend = open_or_skip("reference");
    g_autofree float *q = numbers("q", D, 1), *k = numbers("k", D, 1);
    float turns[N * D], a[D], b[D];
    double products[2];

    for (int p = 0; p < N; p++)
        for (int i = 0; i < D / 2; i++) {
            const double angle = p * pow(10000, -2.0 * i / D);
            turns[p * D + i] = (float)cos(angle);
            turns[p * D + D / 2 + i] = (float)sin(angle);
        }
    for (int trial = 0; trial < 2; trial++) {
        const int32_t at_q = trial == 0 ? 7 : 4, at_k = trial == 0 ? 5 : 2;
        ExecRope rope = {1, 1, 1, D, D, false, &at_q, turns};
        memcpy(a, q, sizeof a);
        memcpy(b, k, sizeof b);
        backend->ops->rope(backend, &rope, a);
        g_assert_cmpfloat(fabs(dot(a, a, D) - dot(q, q, D)), <, 1e-5);
        rope.position = &at_k;
        backend->ops->rope(backend, &rope, b);
        products[trial] = dot(a, b, D);
        rope.inverse = true;
        backend->ops->rope(backend, &rope, b);
        g_assert_cmpfloat(distance(b, k, D), <, 1e-6);
    }
    g_assert_cmpfloat(fabs(products[0] - products[1]), <, 1e-5);
    g_assert_cmpfloat(fabs(products[0] - dot(q, k, D)), >, 1e-3);
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
    double loss;
    backend->ops->cross_entropy(backend, &(ExecCrossEntropy){.rows = r->rows,
                                                             .vocab = r->cols,
                                                             .stride = r->cols,
                                                             .target = target,
                                                             .factor = 1,
                                                             .logits = r->y,
                                                             .loss = &loss});
    return loss;
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

/* Of four scores the two largest, the lower of equal ones first; the softmax' derivative stays
 * among the chosen. */
static void
test_route_chooses_and_learns(void)
{
    g_autoptr(ExecBackend) backend = open_or_skip("reference");
    float scores[] = {1, 3, 3, 2, 0, 0, 0, -1};
    const float d_weight[] = {0.5f, -1, 2, 3};
    int32_t expert[4];
    float weight[4], d_scores[8];

    backend->ops->route(backend, 2, 4, 2, scores, expert, weight);
    g_assert_cmpint(expert[0], ==, 1);
    g_assert_cmpint(expert[1], ==, 2);
    g_assert_cmpint(expert[2], ==, 0);
    g_assert_cmpint(expert[3], ==, 1);
    for (int i = 0; i < 4; i++)
        g_assert_cmpfloat((double)weight[i], ==, 0.5);
    backend->ops->route_backward(backend, 2, 4, 2, expert, weight, d_weight, d_scores);
    /* w (dw - mean): 0.5 (0.5 + 0.25), 0.5 (-1 + 0.25); 0.5 (2 - 2.5), 0.5 (3 - 2.5). */
    const float expected[] = {0, 0.375f, -0.375f, 0, -0.25f, 0.25f, 0, 0};
    g_assert_cmpint(memcmp(d_scores, expected, sizeof expected), ==, 0);
    scores[3] = 4;
    backend->ops->route(backend, 1, 4, 2, scores, expert, weight);
    g_assert_cmpint(expert[0], ==, 3);
    g_assert_cmpint(expert[1], ==, 1);
    g_assert_cmpfloat(fabs((double)weight[0] - 1 / (1 + exp(-1))), <, 1e-7);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/derivatives/attention-is-the-derivative",
                    test_attention_derivatives);
    g_test_add_func("/executor/derivatives/norms-are-the-derivative", test_norm_derivatives);
    g_test_add_func("/executor/derivatives/swiglu-is-the-derivative", test_swiglu_derivative);
    g_test_add_func("/executor/derivatives/route-chooses-and-learns",
                    test_route_chooses_and_learns);
    g_test_add_func("/executor/derivatives/rope-turns-by-position", test_rope_turns_by_position);
    g_test_add_func("/executor/derivatives/gelu-is-the-derivative", test_gelu_derivative);
    g_test_add_func("/executor/derivatives/cross-entropy-is-the-derivative",
                    test_cross_entropy_derivative);
    return g_test_run();
}
