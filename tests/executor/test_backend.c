/* Tests of executor/device/backend.h: cpu against the reference, values that formulas give,
 * opening. */
#include "executor/device/backend.h"

#include "tests/executor/tensors.h"

/* --- gemm --- */

static void
check_gemm(ExecBackend *cpu, ExecBackend *reference, int64_t m, int64_t n, int64_t k, int form)
{
    const bool trans_a = form & 1, trans_b = form & 2, accumulate = form & 4, bias = form & 8;
    const int64_t lda = (trans_a ? m : k) + 3, ldb = (trans_b ? k : n) + 1, ldc = n + 2;
    g_autofree float *a = numbers("a", lda * MAX(m, k), 1), *b = numbers("b", ldb * MAX(n, k), 1);
    g_autofree float *c = numbers("c", ldc * m, 1), *d = copy_of(c, ldc * m);
    g_autofree float *v = numbers("bias", n, 1), *r = numbers("residual", ldc * m, 1);
    ExecGemm gemm = {
        .trans_a = trans_a,
        .trans_b = trans_b,
        .accumulate = accumulate,
        .m = m,
        .n = n,
        .k = k,
        .a = a,
        .lda = lda,
        .b = b,
        .ldb = ldb,
        .c = c,
        .ldc = ldc,
        .bias = bias && !accumulate ? v : NULL,
        .residual = bias && !accumulate && trans_a ? r : NULL,
    };

    cpu->ops->gemm(cpu, &gemm);
    gemm.c = d;
    reference->ops->gemm(reference, &gemm);
    g_assert_cmpfloat(distance(c, d, ldc * m), <=, sum_tolerance(k));
    /* The columns between the matrices' rows are nobody's. */
    for (int64_t i = 0; i < m; i++)
        g_assert_cmpfloat((double)c[i * ldc + n], ==, (double)d[i * ldc + n]);
}

static void
test_gemm_equals_reference(void)
{
    static const int64_t shapes[][3] = {
        {1, 1, 1}, {3, 5, 7}, {17, 33, 65}, {64, 48, 31}, {2, 96, 129}};
    g_autoptr(ExecBackend) reference = open_or_skip("reference");
    g_autoptr(ExecBackend) cpu = open_or_skip("cpu");

    if (cpu == NULL)
        return;
    for (size_t i = 0; i < G_N_ELEMENTS(shapes); i++)
        for (int form = 0; form < 16; form++)
            check_gemm(cpu, reference, shapes[i][0], shapes[i][1], shapes[i][2], form);
}

/* --- rows --- */

/* LayerNorm, and RMSNorm: without shift and mean. */
static void
check_norm(ExecBackend *cpu, ExecBackend *reference, int64_t rows, int64_t cols, bool rms)
{
    const int64_t n = rows * cols;
    g_autofree float *x = numbers("x", n, 3), *dy = numbers("dy", n, 1);
    g_autofree float *gain = numbers("gain", cols, 1), *shift = numbers("shift", cols, 1);
    float *y[2], *mean[2], *rstd[2], *dx[2], *sums[2];
    ExecBackend *backends[] = {cpu, reference};

    for (int i = 0; i < 2; i++) {
        const ExecBackendOps *ops = backends[i]->ops;
        y[i] = g_new(float, (size_t)n);
        mean[i] = g_new(float, (size_t)rows);
        rstd[i] = g_new(float, (size_t)rows);
        dx[i] = numbers("dx", n, 1);
        sums[i] = numbers("sums", 2 * cols, 1);
        const ExecNorm norm = {rows,    cols, x, gain, rms ? NULL : shift, rms ? NULL : mean[i],
                               rstd[i], 1e-3f};
        ops->norm_forward(backends[i], &norm, y[i]);
        ops->norm_backward(backends[i], &norm, dy, dx[i], sums[i], rms ? NULL : sums[i] + cols);
    }
    g_assert_cmpfloat(distance(y[0], y[1], n), <=, sum_tolerance(cols));
    g_assert_cmpfloat(distance(rstd[0], rstd[1], rows), <=, sum_tolerance(cols));
    g_assert_cmpfloat(distance(dx[0], dx[1], n), <=, sum_tolerance(cols));
    g_assert_cmpfloat(distance(sums[0], sums[1], 2 * cols), <=, sum_tolerance(rows));
    for (int i = 0; i < 2; i++) {
        g_free(y[i]);
        g_free(mean[i]);
        g_free(rstd[i]);
        g_free(dx[i]);
        g_free(sums[i]);
    }
}

static void
test_rows_equal_reference(void)
{
    static const int64_t shapes[][2] = {{1, 2}, {3, 15}, {5, 16}, {7, 17}, {9, 131}, {33, 64}};
    g_autoptr(ExecBackend) reference = open_or_skip("reference");
    g_autoptr(ExecBackend) cpu = open_or_skip("cpu");

    if (cpu == NULL)
        return;
    for (size_t i = 0; i < G_N_ELEMENTS(shapes); i++) {
        const int64_t rows = shapes[i][0], cols = shapes[i][1], stride = cols + 3;
        g_autofree float *dy = numbers("dy", rows * stride, 1);
        g_autofree float *a = numbers("db", cols, 1), *b = copy_of(a, cols);
        cpu->ops->bias_backward(cpu, rows, cols, dy, stride, a);
        reference->ops->bias_backward(reference, rows, cols, dy, stride, b);
        g_assert_cmpfloat(distance(a, b, cols), <=, sum_tolerance(rows));
        check_norm(cpu, reference, rows, cols, false);
        check_norm(cpu, reference, rows, cols, true);
    }
}

/* --- elementwise: no sums, so a few roundings and exp's 2 ulp --- */

static void
test_elementwise_equals_reference(void)
{
    static const int64_t lengths[] = {1, 15, 16, 17, 1000};
    g_autoptr(ExecBackend) reference = open_or_skip("reference");
    g_autoptr(ExecBackend) cpu = open_or_skip("cpu");

    if (cpu == NULL)
        return;
    for (size_t i = 0; i < G_N_ELEMENTS(lengths); i++) {
        const int64_t n = lengths[i];
        g_autofree float *x = numbers("x", n, 4), *a = numbers("y", n, 1), *b = copy_of(a, n);
        cpu->ops->gelu_backward(cpu, n, x, a);
        reference->ops->gelu_backward(reference, n, x, b);
        g_assert_cmpfloat(distance(a, b, n), <=, 1e-6);
        cpu->ops->gelu_forward(cpu, n, x, a);
        reference->ops->gelu_forward(reference, n, x, b);
        g_assert_cmpfloat(distance(a, b, n), <=, 1e-6);
        g_autofree float *gates = numbers("gates", 4 * n, 4), *c = g_new(float, (size_t)(4 * n));
        g_autofree float *d = g_new(float, (size_t)(4 * n));
        cpu->ops->swiglu_forward(cpu, 2, n, gates, c);
        reference->ops->swiglu_forward(reference, 2, n, gates, d);
        g_assert_cmpfloat(distance(c, d, 2 * n), <=, 1e-6);
        g_autofree float *dy = numbers("dy", 2 * n, 1);
        cpu->ops->swiglu_backward(cpu, 2, n, gates, dy, c);
        reference->ops->swiglu_backward(reference, 2, n, gates, dy, d);
        g_assert_cmpfloat(distance(c, d, 4 * n), <=, 1e-6);
        cpu->ops->add(cpu, n, x, a);
        reference->ops->add(reference, n, x, b);
        g_assert_cmpfloat(distance(a, b, n), <=, 1e-6);
    }
}

/* GELU at the ends: no overflow, no cancellation. */
static void
test_gelu_holds_at_the_ends(void)
{
    const float x[] = {-1e30f, -100, -10, -5, -1e-20f, 0, 1e-20f, 5, 10, 100, 1e10f};
    const float expected[] = {0, 0, 0, -2.29e-7f, -5e-21f, 0, 5e-21f, 5, 10, 100, 1e10f};
    g_autoptr(ExecBackend) cpu = open_or_skip("cpu");
    float y[G_N_ELEMENTS(x)], d[G_N_ELEMENTS(x)];

    if (cpu == NULL)
        return;
    cpu->ops->gelu_forward(cpu, G_N_ELEMENTS(x), x, y);
    for (size_t i = 0; i < G_N_ELEMENTS(x); i++)
        d[i] = 1;
    cpu->ops->gelu_backward(cpu, G_N_ELEMENTS(x), x, d);
    for (size_t i = 0; i < G_N_ELEMENTS(x); i++) {
        g_assert_true(isfinite(y[i]));
        g_assert_cmpfloat(fabs((double)y[i] - (double)expected[i]), <=,
                          2e-7 + 1e-5 * fabs((double)expected[i]));
        if (fabsf(x[i]) < 1e9f)
            g_assert_true(isfinite(d[i]));
    }
}

static void
test_adamw_equals_reference(void)
{
    const float factor = 0.3f;
    const ExecAdamw constants = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 3, &factor};
    const int64_t n = 1003;
    g_autoptr(ExecBackend) reference = open_or_skip("reference");
    g_autoptr(ExecBackend) cpu = open_or_skip("cpu");

    if (cpu == NULL)
        return;
    g_autofree float *g = numbers("g", n, 1), *p = numbers("p", n, 1), *q = copy_of(p, n);
    g_autofree float *m = numbers("m", n, 1), *m2 = copy_of(m, n), *v = numbers("v", n, 1);
    for (int64_t i = 0; i < n; i++)
        v[i] = v[i] * v[i];
    g_autofree float *v2 = copy_of(v, n), *g2 = copy_of(g, n);
    /* Two parts; only one of them decays. */
    const int64_t first = n / 3;
    cpu->ops->adamw(cpu, 2,
                    (const ExecAdamwPart[]){
                        {first, p, NULL, g, m, v, true},
                        {n - first, p + first, NULL, g + first, m + first, v + first, false}},
                    &constants);
    reference->ops->adamw(reference, 2,
                          (const ExecAdamwPart[]){{first, q, NULL, g2, m2, v2, true},
                                                  {n - first, q + first, NULL, g2 + first,
                                                   m2 + first, v2 + first, false}},
                          &constants);
    for (int64_t i = 0; i < n; i++) {
        g_assert_cmpfloat((double)g[i], ==, 0);
        g_assert_cmpfloat((double)g2[i], ==, 0);
    }
    g_assert_cmpfloat(distance(p, q, n), <=, 1e-6);
    g_assert_cmpfloat(distance(m, m2, n), <=, 1e-6);
    g_assert_cmpfloat(distance(v, v2, n), <=, 1e-6);
}

/* The first step of Adam moves every parameter by the learning rate against its gradient's sign,
 * whatever the gradient's size: m / sqrt(v) with bias correction is sign(g). */
static void
test_adamw_first_step_is_the_sign(void)
{
    const ExecAdamw constants = {0.125f, 0.9f, 0.95f, 1e-8f, 0, 1, NULL};
    static const char *const names[] = {"reference", "cpu"};

    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        float p[] = {1, 1, 1}, g[] = {1e-3f, -5, 20}, m[3] = {0}, v[3] = {0};
        g_autoptr(ExecBackend) backend = open_or_skip(names[i]);
        if (backend == NULL)
            return;
        backend->ops->adamw(backend, 1, &(ExecAdamwPart){3, p, NULL, g, m, v, true}, &constants);
        g_assert_cmpfloat(fabs((double)p[0] - 0.875), <=, 2e-6);
        g_assert_cmpfloat(fabs((double)p[1] - 1.125), <=, 2e-6);
        g_assert_cmpfloat(fabs((double)p[2] - 0.875), <=, 2e-6);
    }
}

/* Clipping is scaling before the step: the same bits as of a gradient that was scaled by itself. */
static void
test_adamw_clips(void)
{
    enum {
        N = 1003
    };
    static const char *const names[] = {"reference", "cpu"};
    const float factor = 0.37f;
    const ExecAdamw scaled = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 3, NULL};
    ExecAdamw clipped = scaled;

    clipped.factor = &factor;
    for (size_t b = 0; b < G_N_ELEMENTS(names); b++) {
        float state[2][3][N];
        g_autoptr(ExecBackend) backend = open_or_skip(names[b]);
        if (backend == NULL)
            return;
        for (int i = 0; i < 2; i++) {
            g_autofree float *g = numbers("g", N, 1);
            for (int64_t j = 0; j < N; j++) {
                g[j] *= i == 0 ? factor : 1.0f;
                for (int k = 0; k < 3; k++)
                    state[i][k][j] = (float)(j % 7) + (float)k;
            }
            backend->ops->adamw(
                backend, 1,
                &(ExecAdamwPart){N, state[i][0], NULL, g, state[i][1], state[i][2], true},
                i == 0 ? &scaled : &clipped);
        }
        g_assert_cmpint(memcmp(state[0], state[1], sizeof state[0]), ==, 0);
    }
}

/* Small integers: sums of squares are exact.  A gradient longer than the limit is clipped to it. */
static void
test_sum_of_squares(void)
{
    static const int64_t lengths[] = {0, 1, 7, 8, 1003, 65536, 140000};
    static const char *const names[] = {"reference", "cpu"};

    for (size_t b = 0; b < G_N_ELEMENTS(names); b++) {
        g_autoptr(ExecBackend) backend = open_or_skip(names[b]);
        ExecClip clip = {0};
        double expected = 0;
        if (backend == NULL)
            return;
        for (size_t i = 0; i < G_N_ELEMENTS(lengths); i++) {
            const int64_t n = lengths[i];
            g_autofree float *x = g_new(float, (size_t)n + 1);
            for (int64_t j = 0; j < n; j++) {
                x[j] = (float)(j * 31 % 17 - 8);
                expected += (double)x[j] * (double)x[j];
            }
            backend->ops->sum_squares(backend, n, x, &clip);
        }
        backend->ops->clip(backend, EXEC_PARTIAL_SUMS, sqrt(expected), &clip);
        g_assert_cmpfloat(clip.squares[0], ==, expected);
        g_assert_cmpfloat((double)clip.factor, ==, 1);
        backend->ops->clip(backend, 1, sqrt(expected) / 4, &clip);
        g_assert_cmpfloat((double)clip.factor, ==, 0.25);
    }
}

/* What exec_gemm() does after a product is what the slots do. */
static void
test_gemm_epilogues(void)
{
    enum {
        M = 6,
        N = 9,
        K = 4
    };
    static const char *const names[] = {"reference", "cpu"};

    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autoptr(ExecBackend) backend = open_or_skip(names[i]);
        if (backend == NULL)
            return;
        g_autofree float *a = numbers("a", M * K, 1), *b = numbers("b", K * N, 1);
        g_autofree float *x = numbers("x", M * N, 1);
        float c[M * N], plain[M * N], gelu[M * N], expected[M * N], db[N] = {0}, sums[N] = {0};
        ExecGemm gemm = {
            .m = M, .n = N, .k = K, .a = a, .lda = K, .b = b, .ldb = N, .c = plain, .ldc = N};
        backend->ops->gemm(backend, &gemm);
        backend->ops->gelu_forward(backend, M * N, plain, expected);
        gemm.c = c;
        gemm.gelu = gelu;
        gemm.bias_gradient = db;
        exec_gemm(backend, &gemm);
        g_assert_cmpint(memcmp(gelu, expected, sizeof gelu), ==, 0);
        backend->ops->bias_backward(backend, K, N, b, N, sums);
        g_assert_cmpint(memcmp(db, sums, sizeof db), ==, 0);
        gemm.gelu = NULL;
        gemm.gelu_input = x;
        exec_gemm(backend, &gemm);
        backend->ops->gelu_backward(backend, M * N, x, plain);
        g_assert_cmpint(memcmp(c, plain, sizeof c), ==, 0);
    }
}

/* --- attention --- */

static void
test_attention_equals_reference(void)
{
    g_autoptr(ExecBackend) reference = open_or_skip("reference");
    g_autoptr(ExecBackend) cpu = open_or_skip("cpu");

    if (cpu == NULL)
        return;
    for (size_t i = 0; i < G_N_ELEMENTS(attention_shapes); i++) {
        const int64_t *s = attention_shapes[i];
        Attention a = attention_new(s[0], s[1], s[2], s[3], s[4], s[5]);
        Attention b = attention_new(s[0], s[1], s[2], s[3], s[4], s[5]);
        const double tolerance = 2 * sum_tolerance(s[3] + s[4] + s[5]);
        attention_run(cpu, &a);
        attention_run(reference, &b);
        g_assert_cmpfloat(distance(a.out, b.out, a.n_q), <=, tolerance);
        g_assert_cmpfloat(distance(a.lse, b.lse, s[0] * s[1] * s[4]), <=, tolerance);
        g_assert_cmpfloat(distance(a.dq, b.dq, a.n_q), <=, tolerance);
        g_assert_cmpfloat(distance(a.dkv, b.dkv, a.n_kv), <=, tolerance);
        attention_clear(&a);
        attention_clear(&b);
    }
}

/* --- embedding --- */

/* Rows are [token, sequence]: row r is at position[r / sequences]. */
static void
test_embedding_places_rows(void)
{
    const float table[] = {0, 1, 10, 11, 20, 21},
                positions[] = {0, 0, 100, 100, 200, 200, 300, 300};
    const int32_t token[] = {2, 0, 1, 1};
    const float dx[] = {1, 2, 3, 4, 5, 6, 7, 8};
    float x[8], dtable[6] = {0}, dpositions[8] = {0};
    const float expected[] = {220, 221, 200, 201, 310, 311, 310, 311};
    const float expected_dtable[] = {3, 4, 12, 14, 1, 2};
    const float expected_dpositions[] = {0, 0, 0, 0, 4, 6, 12, 14};
    g_autoptr(ExecBackend) backend = open_or_skip("reference");

    const int32_t position[] = {2, 3};
    ExecEmbedding e = {4, 2, 2, 0, 3, token, position, 1.0f};

    backend->ops->embedding_forward(backend, &e, table, positions, x);
    backend->ops->embedding_backward(backend, &e, dx, dtable, dpositions);
    g_assert_cmpint(memcmp(x, expected, sizeof expected), ==, 0);
    g_assert_cmpint(memcmp(dtable, expected_dtable, sizeof dtable), ==, 0);
    g_assert_cmpint(memcmp(dpositions, expected_dpositions, sizeof dpositions), ==, 0);

    /* The part of the table with token 1 alone, twice as large: the other rows are zeros, and give it
     * nothing. */
    const float part[] = {0, 0, 0, 0, 20, 22, 20, 22}, expected_part[] = {24, 28};
    e.first_token = e.n_tokens = 1;
    e.scale = 2.0f;
    memset(dtable, 0, sizeof dtable);
    backend->ops->embedding_forward(backend, &e, table + 2, NULL, x);
    backend->ops->embedding_backward(backend, &e, dx, dtable, NULL);
    g_assert_cmpint(memcmp(x, part, sizeof part), ==, 0);
    g_assert_cmpint(memcmp(dtable, expected_part, sizeof expected_part), ==, 0);
}

/* --- opening --- */

static void
test_opens_by_name(void)
{
    static const struct {
        const char *name;
        int code;
        const char *says;
    } cases[] = {
        {"cuda", EXEC_ERROR_MISSING, "degas-cuda.so is not built"},
        {"gpu", EXEC_ERROR_UNSUPPORTED, "\"gpu\""},
        {"refrence", EXEC_ERROR_UNSUPPORTED, "did you mean \"reference\"?"},
        {"", EXEC_ERROR_UNSUPPORTED, "expected reference, cpu or cuda"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_assert_null(exec_backend_open(cases[i].name, 0, DTYPE_FP32, &error));
        g_assert_error(error, EXEC_ERROR, cases[i].code);
        g_assert_nonnull(strstr(error->message, cases[i].says));
        g_assert_null(strchr(error->message, '\n'));
    }
}

/* The kernels in use are at least AVX2's where the processor has them, unless the user chose. */
static void
test_describes_fast_kernels(void)
{
    g_autoptr(ExecBackend) cpu = open_or_skip("cpu");

    if (cpu == NULL)
        return;
    g_autofree char *text = exec_backend_describe(cpu);
    g_test_message("%s", text);
    g_assert_true(g_str_has_prefix(text, "OpenBLAS ") || g_str_has_prefix(text, "BLAS"));
    if (g_getenv("OPENBLAS_CORETYPE") == NULL)
        g_assert_null(strstr(text, "slow kernels"));
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/backend/gemm-equals-reference", test_gemm_equals_reference);
    g_test_add_func("/executor/backend/rows-equal-reference", test_rows_equal_reference);
    g_test_add_func("/executor/backend/elementwise-equals-reference",
                    test_elementwise_equals_reference);
    g_test_add_func("/executor/backend/gelu-holds-at-the-ends", test_gelu_holds_at_the_ends);
    g_test_add_func("/executor/backend/adamw-equals-reference", test_adamw_equals_reference);
    g_test_add_func("/executor/backend/sum-of-squares", test_sum_of_squares);
    g_test_add_func("/executor/backend/adamw-clips", test_adamw_clips);
    g_test_add_func("/executor/backend/adamw-first-step-is-the-sign",
                    test_adamw_first_step_is_the_sign);
    g_test_add_func("/executor/backend/gemm-epilogues", test_gemm_epilogues);
    g_test_add_func("/executor/backend/attention-equals-reference",
                    test_attention_equals_reference);
    g_test_add_func("/executor/backend/embedding-places-rows", test_embedding_places_rows);
    g_test_add_func("/executor/backend/opens-by-name", test_opens_by_name);
    g_test_add_func("/executor/backend/describes-fast-kernels", test_describes_fast_kernels);
    return g_test_run();
}
