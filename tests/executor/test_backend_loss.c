/* Tests of the cross-entropy of executor/device/backend.h: cpu against the reference, values that
 * formulas give. */
#include "executor/device/backend.h"

#include "tests/executor/tensors.h"

static void
test_cross_entropy_equals_reference(void)
{
    static const int64_t shapes[][2] = {{1, 1}, {3, 15}, {4, 50}, {2, 257}};
    g_autoptr(ExecBackend) reference = open_or_skip("reference");
    g_autoptr(ExecBackend) cpu = open_or_skip("cpu");

    if (cpu == NULL)
        return;
    for (size_t i = 0; i < G_N_ELEMENTS(shapes); i++) {
        const int64_t rows = shapes[i][0], vocab = shapes[i][1], n = rows * vocab;
        g_autofree float *x = numbers("x", n, 5), *y = copy_of(x, n);
        int32_t target[8];
        for (int64_t r = 0; r < rows; r++)
            target[r] = (int32_t)(r * 5 % vocab);
        double a, b;
        ExecCrossEntropy e = {rows, vocab, vocab, 0, target, 0.25f, x, NULL, 0, &a};
        cpu->ops->cross_entropy(cpu, &e);
        e.logits = y;
        e.loss = &b;
        reference->ops->cross_entropy(reference, &e);
        g_assert_cmpfloat(fabs(a - b), <=, sum_tolerance(vocab) * (1 + b));
        g_assert_cmpfloat(distance(x, y, n), <=, sum_tolerance(vocab));
    }
}

/* Equal logits: the loss of every row is ln(vocab), the gradient (1/vocab - one_hot) factor. */
static void
test_cross_entropy_of_equal_logits(void)
{
    static const char *const names[] = {"reference", "cpu"};

    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        float logits[] = {2, 2, 2, 2, -7, -7, -7, -7};
        const int32_t target[] = {1, 3};
        g_autoptr(ExecBackend) backend = open_or_skip(names[i]);
        if (backend == NULL)
            return;
        double loss;
        const ExecCrossEntropy e = {2, 4, 4, 0, target, 1, logits, NULL, 0, &loss};
        backend->ops->cross_entropy(backend, &e);
        g_assert_cmpfloat(fabs(loss - 2 * log(4)), <=, 1e-6);
        g_assert_cmpfloat(fabs((double)logits[0] - 0.25), <=, 1e-6);
        g_assert_cmpfloat(fabs((double)logits[1] + 0.75), <=, 1e-6);
        g_assert_cmpfloat(fabs((double)logits[7] + 0.75), <=, 1e-6);
    }
}

/* Columns cut in parts (one of them empty), merged by their statistics, are the whole. */
static void
test_cross_entropy_of_parts_is_the_whole(void)
{
    enum {
        ROWS = 4,
        VOCAB = 50,
        PARTS = 3
    };
    static const char *const names[] = {"reference", "cpu"};
    static const int64_t begin[PARTS + 1] = {0, 17, 17, VOCAB};
    static const int32_t target[ROWS] = {3, 16, 17, 49};

    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autoptr(ExecBackend) backend = open_or_skip(names[i]);
        if (backend == NULL)
            return;
        g_autofree float *whole = numbers("x", ROWS * VOCAB, 5),
                         *logits = copy_of(whole, ROWS * VOCAB);
        float stats[PARTS * 3 * ROWS], part[PARTS][ROWS * VOCAB];
        double expected, loss;
        ExecCrossEntropy e[PARTS];
        const ExecCrossEntropy all = {ROWS,  VOCAB, VOCAB, 0, target,
                                      0.25f, whole, NULL,  0, &expected};
        for (int p = 0; p < PARTS; p++) {
            const int64_t n = begin[p + 1] - begin[p];
            for (int64_t r = 0; r < ROWS; r++)
                memcpy(part[p] + r * n, logits + r * VOCAB + begin[p], (size_t)n * sizeof(float));
            e[p] = (ExecCrossEntropy){ROWS,  n,       n,     begin[p], target,
                                      0.25f, part[p], stats, PARTS,    &loss};
            backend->ops->cross_entropy_stats(backend, &e[p], stats + p * 3 * ROWS);
        }
        backend->ops->cross_entropy(backend, &all);
        for (int p = 0; p < PARTS; p++) {
            const int64_t n = begin[p + 1] - begin[p];
            backend->ops->cross_entropy(backend, &e[p]);
            g_assert_cmpfloat(fabs(loss - expected), <=, 1e-5);
            for (int64_t r = 0; r < ROWS; r++)
                for (int64_t j = 0; j < n; j++)
                    g_assert_cmpfloat(
                        fabs((double)part[p][r * n + j] - (double)whole[r * VOCAB + begin[p] + j]),
                        <=, 1e-6);
        }
    }
}

/* Statistics, loss and gradients of rows that lie @stride apart, @e->vocab columns of each; NaN
 * is behind them.  Returns: (owned) the gradients in fp32. */
static float *
padded_entropy(ExecBackend *backend, ExecCrossEntropy e, int64_t stride, const float *x,
               float *stats)
{
    const int64_t n = e.rows * stride;
    g_autofree float *wide = g_new(float, (size_t)n);
    g_autofree void *stored = g_malloc((size_t)exec_storage_bytes(backend, n));

    for (int64_t r = 0; r < e.rows; r++)
        for (int64_t j = 0; j < stride; j++)
            wide[r * stride + j] = j < e.vocab ? x[r * e.vocab + j] : NAN;
    backend->ops->to_storage(backend, n, wide, stored);
    e.stride = stride;
    e.logits = stored;
    backend->ops->cross_entropy_stats(backend, &e, stats);
    backend->ops->cross_entropy(backend, &e);
    backend->ops->from_storage(backend, n, stored, wide);
    return g_steal_pointer(&wide);
}

/* With padding every backend computes the same bits as without, whole or split, and the gradients
 * of padding are 0. */
static void
test_padding_is_not_read_and_becomes_zero(void)
{
    enum {
        ROWS = 3
    };
    static const char *const names[] = {"reference", "cpu"};
    static const Dtype formats[] = {DTYPE_FP32, DTYPE_BF16};
    static const int64_t shapes[][2] = {{1, 2}, {29, 128}, {50, 51}, {257, 384}};
    static const int32_t target[ROWS] = {0};

    for (size_t i = 0; i < 2 * 2 * 2 * G_N_ELEMENTS(shapes); i++) {
        const int64_t vocab = shapes[i / 8][0], stride = shapes[i / 8][1];
        const bool split = i / 4 % 2 != 0;
        g_autoptr(ExecBackend) backend =
            exec_backend_open(names[i % 2], 0, formats[i / 2 % 2], NULL);
        if (backend == NULL)
            continue;
        g_autofree float *x = numbers("x", ROWS * vocab, 5);
        float stats[2][2 * 3 * ROWS] = {0};
        double loss[2];
        float *gradients[2];
        for (int p = 0; p < 2; p++) {
            /* Of the other part nothing is here but its statistics. */
            for (int r = 0; r < ROWS; r++)
                stats[p][3 * ROWS + r] = 1, stats[p][4 * ROWS + r] = 2;
            const ExecCrossEntropy e = {.rows = ROWS,
                                        .vocab = vocab,
                                        .target = target,
                                        .factor = 0.25f,
                                        .stats = split ? stats[p] : NULL,
                                        .n_parts = 2,
                                        .loss = &loss[p]};
            gradients[p] = padded_entropy(backend, e, p == 0 ? vocab : stride, x, stats[p]);
        }
        g_assert_cmpint(memcmp(stats[0], stats[1], sizeof stats[0]), ==, 0);
        g_assert_true(isfinite(loss[0]) && loss[0] == loss[1]);
        for (int64_t at = 0; at < ROWS * stride; at++)
            g_assert_cmpfloat(
                (double)gradients[1][at], ==,
                at % stride < vocab ? (double)gradients[0][at / stride * vocab + at % stride] : 0);
        g_free(gradients[0]);
        g_free(gradients[1]);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/backend/cross-entropy-equals-reference",
                    test_cross_entropy_equals_reference);
    g_test_add_func("/executor/backend/cross-entropy-of-equal-logits",
                    test_cross_entropy_of_equal_logits);
    g_test_add_func("/executor/backend/cross-entropy-of-parts-is-the-whole",
                    test_cross_entropy_of_parts_is_the_whole);
    g_test_add_func("/executor/backend/padding-is-not-read-and-becomes-zero",
                    test_padding_is_not_read_and_becomes_zero);
    return g_test_run();
}
