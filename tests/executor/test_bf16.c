/* Tests of executor/device/backend_bf16.c: bf16 storage, sums in fp32. */
#include "executor/device/backend.h"

#include "tests/executor/tensors.h"

/* To nearest even: 1 + 2^-8 is half way between 1 and 1 + 2^-7; NaN with low bits only stays one.
 */
static void
test_rounds_to_nearest_even(void)
{
    static const struct {
        uint32_t from;
        uint16_t to;
    } cases[] = {
        {0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f808001, 0x3f81}, {0x3f818000, 0x3f82},
        {0x3f817fff, 0x3f81}, {0x7f7fffff, 0x7f80}, {0x7f800000, 0x7f80}, {0xff800000, 0xff80},
        {0x7f800001, 0x7fc0}, {0x80000000, 0x8000}, {0x00008000, 0x0000}, {0x00018000, 0x0002},
    };
    g_autoptr(ExecBackend) backend = exec_backend_open("reference", 0, DTYPE_BF16, NULL);

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        uint16_t to;
        float from, back;
        memcpy(&from, &cases[i].from, sizeof from);
        backend->ops->to_storage(backend, 1, &from, &to);
        g_assert_cmphex(to, ==, cases[i].to);
        backend->ops->from_storage(backend, 1, &to, &back);
        g_assert_true(isnan(from)
                          ? isnan(back)
                          : fabs((double)from) > 1e38 || back == from ||
                                fabs((double)(back - from)) <= fabs((double)from) / 256 + 1e-40);
    }
}

/* Products of bf16 operands are the fp32 product of the widened ones, rounded once; dW is fp32. */
static void
test_products_accumulate_in_fp32(void)
{
    enum {
        M = 5,
        N = 7,
        K = 300
    };
    g_autoptr(ExecBackend) narrow = exec_backend_open("reference", 0, DTYPE_BF16, NULL);
    g_autoptr(ExecBackend) reference = open_or_skip("reference");
    g_autofree float *a = numbers("a", M * K, 1), *b = numbers("b", K * N, 1);
    uint16_t a16[M * K], b16[K * N], c16[M * N], expected16[M * N];
    float c[M * N] = {0}, expected[M * N] = {0};

    narrow->ops->to_storage(narrow, M * K, a, a16);
    narrow->ops->to_storage(narrow, K * N, b, b16);
    narrow->ops->from_storage(narrow, M * K, a16, a);
    narrow->ops->from_storage(narrow, K * N, b16, b);
    ExecGemm gemm = {
        .m = M, .n = N, .k = K, .a = a, .lda = K, .b = b, .ldb = N, .c = expected, .ldc = N};
    exec_gemm(reference, &gemm);
    narrow->ops->to_storage(narrow, M * N, expected, expected16);
    gemm.a = a16;
    gemm.b = b16;
    gemm.c = c16;
    exec_gemm(narrow, &gemm);
    g_assert_cmpint(memcmp(c16, expected16, sizeof c16), ==, 0);
    gemm.c = c;
    gemm.c_fp32 = gemm.accumulate = true;
    exec_gemm(narrow, &gemm);
    g_assert_cmpfloat(distance(c, expected, M * N), <=, 1e-6);
}

/* What a slot stores is the fp32 backend's result on the widened operands, rounded once. */
static void
test_rows_are_rounded_once(void)
{
    enum {
        ROWS = 5,
        COLS = 17,
        N = ROWS * COLS
    };
    g_autoptr(ExecBackend) narrow = exec_backend_open("reference", 0, DTYPE_BF16, NULL);
    g_autoptr(ExecBackend) reference = open_or_skip("reference");
    g_autofree float *x = numbers("x", N, 2), *gain = numbers("gain", COLS, 1);
    uint16_t x16[N], gain16[COLS], y16[N], expected16[N];
    float y[N], rstd[ROWS], narrow_rstd[ROWS];

    narrow->ops->to_storage(narrow, N, x, x16);
    narrow->ops->from_storage(narrow, N, x16, x);
    narrow->ops->to_storage(narrow, COLS, gain, gain16);
    narrow->ops->from_storage(narrow, COLS, gain16, gain);
    ExecNorm norm = {ROWS, COLS, x, gain, NULL, NULL, rstd, 1e-3f};
    reference->ops->norm_forward(reference, &norm, y);
    narrow->ops->to_storage(narrow, N, y, expected16);
    norm = (ExecNorm){ROWS, COLS, x16, gain16, NULL, NULL, narrow_rstd, 1e-3f};
    narrow->ops->norm_forward(narrow, &norm, y16);
    g_assert_cmpint(memcmp(y16, expected16, sizeof y16), ==, 0);
    g_assert_cmpint(memcmp(rstd, narrow_rstd, sizeof rstd), ==, 0);
    reference->ops->gelu_forward(reference, N, x, y);
    narrow->ops->to_storage(narrow, N, y, expected16);
    narrow->ops->gelu_forward(narrow, N, x16, y16);
    g_assert_cmpint(memcmp(y16, expected16, sizeof y16), ==, 0);
}

/* Steps smaller than bf16's spacing add up in the master weights, and show in the weights at last.
 */
static void
test_small_steps_add_up(void)
{
    g_autoptr(ExecBackend) narrow = exec_backend_open("reference", 0, DTYPE_BF16, NULL);
    float master = 1, gradient = -1, m = 0, v = 0, seen = 0;
    uint16_t weight = 0;

    for (int64_t step = 1; step <= 100; step++) {
        const ExecAdamw constants = {1e-4f, 0.9f, 0.95f, 1e-8f, 0, step, NULL};
        gradient = -1;
        narrow->ops->adamw(
            narrow, 1, &(ExecAdamwPart){1, &master, &weight, &gradient, &m, &v, true}, &constants);
    }
    narrow->ops->from_storage(narrow, 1, &weight, &seen);
    g_assert_cmpfloat(fabs((double)master - 1.01), <, 1e-5);
    g_assert_cmpfloat(fabs((double)seen - 1.01), <=, 1.0 / 256);
    g_assert_cmpfloat((double)seen, >, 1);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/bf16/rounds-to-nearest-even", test_rounds_to_nearest_even);
    g_test_add_func("/executor/bf16/products-accumulate-in-fp32", test_products_accumulate_in_fp32);
    g_test_add_func("/executor/bf16/rows-are-rounded-once", test_rows_are_rounded_once);
    g_test_add_func("/executor/bf16/small-steps-add-up", test_small_steps_add_up);
    return g_test_run();
}
