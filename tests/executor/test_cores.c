/* Tests of executor/device/cores.h: every iteration once, and no bit of a backend depends on it. */
#include "executor/device/cores.h"

#include "tests/executor/tensors.h"

/* The numbers that @n_threads leave behind after each slot that is shared out. */
static GByteArray *
bytes_with_threads(int n_threads)
{
    const ExecBackendOptions options = {.storage = DTYPE_FP32, .n_threads = n_threads};
    g_autoptr(ExecBackend) backend = exec_backend_open_with("reference", &options, NULL);
    const ExecBackendOps *ops = backend->ops;
    const int64_t m = 37, n = 71, k = 19;
    const int32_t target[3] = {70, 0, 31};
    double loss = 0;
    g_autofree float *a = numbers("a", m * k, 1), *b = numbers("b", k * n, 1);
    g_autofree float *c = numbers("c", m * n, 1), *v = numbers("v", m * n, 0);
    const ExecCrossEntropy entropy = {
        .rows = 3,
        .vocab = n,
        .stride = n,
        .target = target,
        .factor = 0.5f,
        .logits = c,
        .loss = &loss,
    };
    const ExecAdamw adam = {0.1f, 0.9f, 0.95f, 1e-8f, 0.1f, 3, NULL};
    Attention t = attention_new(3, 4, 2, 7, 9, 4);
    GByteArray *bytes = g_byte_array_new();

    ops->gemm(backend, &(ExecGemm){.m = m,
                                   .n = n,
                                   .k = k,
                                   .a = a,
                                   .lda = k,
                                   .b = b,
                                   .ldb = n,
                                   .c = c,
                                   .ldc = n,
                                   .accumulate = true});
    ops->gelu_forward(backend, m * n, c, v);
    ops->gelu_backward(backend, m * n, c, v);
    ops->cross_entropy(backend, &entropy);
    ops->adamw(backend, 1, &(ExecAdamwPart){m * k, a, NULL, b, c, v, true}, &adam);
    attention_run(backend, &t);
    g_byte_array_append(bytes, (const guint8 *)a, (guint)(m * k * 4));
    g_byte_array_append(bytes, (const guint8 *)c, (guint)(m * n * 4));
    g_byte_array_append(bytes, (const guint8 *)v, (guint)(m * n * 4));
    g_byte_array_append(bytes, (const guint8 *)&loss, sizeof loss);
    g_byte_array_append(bytes, (const guint8 *)t.out, (guint)(t.n_q * 4));
    g_byte_array_append(bytes, (const guint8 *)t.dq, (guint)(t.n_q * 4));
    g_byte_array_append(bytes, (const guint8 *)t.dkv, (guint)(t.n_kv * 4));
    attention_clear(&t);
    return bytes;
}

/* More threads than columns, heads or rows too. */
static void
test_threads_change_no_bit(void)
{
    g_autoptr(GByteArray) one = bytes_with_threads(1);

    for (int n = 2; n <= 9; n += n == 3 ? 6 : 1) {
        g_autoptr(GByteArray) many = bytes_with_threads(n);
        g_assert_cmpuint(many->len, ==, one->len);
        g_assert_true(memcmp(many->data, one->data, one->len) == 0);
    }
}

static void
count(int64_t begin, int64_t end, void *user_data)
{
    for (int64_t i = begin; i < end; i++)
        ((int *)user_data)[i]++;
}

/* Every iteration once, whatever divides. */
static void
test_shares_out_each_iteration_once(void)
{
    for (int threads = 0; threads <= 7; threads++)
        for (int64_t n = 0; n <= 20; n++) {
            int seen[21] = {0};
            exec_share_out(threads, n, count, seen);
            for (int64_t i = 0; i < 21; i++)
                g_assert_cmpint(seen[i], ==, i < n);
        }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/backend/threads-change-no-bit", test_threads_change_no_bit);
    g_test_add_func("/executor/backend/shares-out-each-iteration-once",
                    test_shares_out_each_iteration_once);
    return g_test_run();
}
