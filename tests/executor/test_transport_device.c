/* Tests of executor/transport/device.h: tensors in device memory arrive and are summed as
 * in host memory, staged (reference backend) and on the device (emulated GPU). */
#include "executor/transport/device.h"

#include <string.h>

#include "executor/transport/local.h"
#include "tests/executor/emulated.h"

#define N_RANKS 3
#define N 40 /* floats */

typedef struct {
    ExecLocalHub *hub;
    const char *device;
    int32_t rank;
} Start;

static ExecGroup
everyone(int32_t rank)
{
    static const int32_t ranks[N_RANKS] = {0, 1, 2};

    return (ExecGroup){.ranks = ranks, .n = N_RANKS, .index = rank};
}

/* What rank @rank begins with. */
static float
number(int32_t rank, int64_t i)
{
    return (float)(100 * rank + i);
}

/* The first @n floats of @x are @expected(i). */
#define CHECK(backend, x, n, i, expected)                                                          \
    do {                                                                                           \
        float host_[N];                                                                            \
        (backend)->ops->download((backend), sizeof host_, (x), host_);                             \
        g_assert_true((backend)->ops->synchronize((backend), NULL));                               \
        for (int64_t i = 0; i < (n); i++)                                                          \
            g_assert_cmpfloat((double)host_[i], ==, (double)(expected));                           \
    } while (0)

static void
fill(ExecBackend *backend, int32_t rank, float *x)
{
    float host[N];

    for (int64_t i = 0; i < N; i++)
        host[i] = number(rank, i);
    backend->ops->upload(backend, sizeof host, host, x);
}

/* Around the ring, twice: the sender overwrites its tensor at once. */
static void
pass_on(ExecTransport *t, ExecBackend *backend, float *x)
{
    const int32_t to = (t->rank + 1) % N_RANKS, from = (t->rank + N_RANKS - 1) % N_RANKS;
    g_autoptr(GError) error = NULL;

    for (int64_t tag = 0; tag < 2; tag++) {
        fill(backend, t->rank, x);
        g_assert_true(t->ops->send(t, to, tag, x, N * sizeof *x, &error));
        backend->ops->zero(backend, N * sizeof *x, x);
        g_assert_true(t->ops->receive(t, from, tag, x, N * sizeof *x, &error));
        CHECK(backend, x, N, i, number(from, i));
    }
    g_assert_cmpint(t->sent_bytes, ==, 2 * N * (int64_t)sizeof *x);
}

static void
collect(ExecTransport *t, ExecBackend *backend, float *x, float *y)
{
    const ExecGroup group = everyone(t->rank);
    const int64_t piece = 4 * (int64_t)sizeof *x;
    const int64_t pieces[N_RANKS] = {piece, piece, piece};
    const ExecExchange exchange = {.out = x, .out_bytes = pieces, .in = y, .in_bytes = pieces};
    const int32_t mine = t->rank;
    g_autoptr(GError) error = NULL;

    fill(backend, mine, x);
    g_assert_true(t->ops->all_reduce(t, &group, DTYPE_FP32, x, N, &error));
    CHECK(backend, x, N, i, 300 + 3 * (int)i);
    fill(backend, mine, x);
    g_assert_true(t->ops->broadcast(t, &group, 1, x, N * sizeof *x, &error));
    CHECK(backend, x, N, i, number(1, i));
    fill(backend, mine, x);
    g_assert_true(t->ops->all_gather(t, &group, DTYPE_FP32, x, 3, &error));
    CHECK(backend, x, 3, i, number((int32_t)i, i));
    fill(backend, mine, x);
    g_assert_true(t->ops->reduce_scatter(t, &group, DTYPE_FP32, x, 3, &error));
    CHECK(backend, x + mine, 1, i, 300 + 3 * mine);
    fill(backend, mine, x);
    g_assert_true(t->ops->all_to_all(t, &group, &exchange, &error));
    CHECK(backend, y, 12, i, number((int32_t)i / 4, 4 * mine + i % 4));
    g_assert_true(t->ops->barrier(t, &group, &error));
}

static gpointer
rank_main(gpointer user_data)
{
    const Start *start = user_data;
    g_autoptr(GError) error = NULL;
    g_autoptr(ExecBackend) backend = exec_backend_open(start->device, 0, DTYPE_FP32, &error);
    ExecTransport inner = exec_local_transport(start->hub, start->rank);

    g_assert_no_error(error);
    ExecTransport *device = exec_device_transport_new(&inner, backend, true);
    float *x = backend->ops->alloc(backend, 2 * N * sizeof *x, "x", &error);
    float *y = backend->ops->alloc(backend, N * sizeof *y, "y", &error);
    backend->ops->zero(backend, 2 * N * sizeof *x, x); /* CHECK reads N from any rank's place */
    pass_on(device, backend, x);
    collect(device, backend, x, y);
    exec_device_transport_free(device);
    backend->ops->release(backend, x);
    backend->ops->release(backend, y);
    return NULL;
}

static void
run_on(const char *device)
{
    g_autoptr(ExecLocalHub) hub = exec_local_hub_new(N_RANKS, 10);
    GThread *threads[N_RANKS];
    Start starts[N_RANKS];

    for (int32_t r = 0; r < N_RANKS; r++) {
        starts[r] = (Start){.hub = hub, .device = device, .rank = r};
        threads[r] = g_thread_new("rank", rank_main, &starts[r]);
    }
    for (int32_t r = 0; r < N_RANKS; r++)
        g_thread_join(threads[r]);
}

static void
test_staged_through_the_host(void)
{
    run_on("reference");
}

static void
test_messages_stay_on_the_device(void)
{
    if (!emulated_gpu_or_skip())
        return;
    run_on("cuda");
    g_setenv("FAKE_CUDA", "async=1", TRUE); /* what is not waited for comes too late */
    run_on("cuda");
    g_unsetenv("FAKE_CUDA");
}

/* --- the bits of transport local, without a copy to the host --- */

#define N_SUM 1001 /* not divisible by the ranks */

typedef struct {
    ExecLocalHub *hub;
    Dtype dtype;
    int32_t rank;
    uint32_t host[N_SUM], device[N_SUM]; /* sums, in host memory and on the device */
} Sum;

/* Magnitudes differ, so that another order of additions has other bits. */
static void
fill_unequal(int32_t rank, Dtype dtype, uint32_t *x)
{
    for (int32_t i = 0; i < N_SUM; i++) {
        const float value = (float)((i * 37 + rank * 101) % 97 - 48) *
                            (1.0f + (float)((i + rank) % 7) * 1e3f) / 3.0f;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        if (dtype == DTYPE_FP32)
            x[i] = bits;
        else
            ((uint16_t *)x)[i] = (uint16_t)(bits >> 16);
    }
}

static gpointer
sum_main(gpointer user_data)
{
    Sum *sum = user_data;
    const ExecGroup group = everyone(sum->rank);
    ExecTransport inner = exec_local_transport(sum->hub, sum->rank);
    g_autoptr(GError) error = NULL;
    g_autoptr(ExecBackend) backend = exec_backend_open("cuda", 0, sum->dtype, &error);

    g_assert_no_error(error);
    ExecTransport *t = exec_device_transport_new(&inner, backend, true);
    fill_unequal(sum->rank, sum->dtype, sum->host);
    void *x = backend->ops->alloc(backend, sizeof sum->host, "x", &error);
    backend->ops->upload(backend, sizeof sum->host, sum->host, x);
    g_assert_true(t->ops->all_reduce(t, &group, sum->dtype, x, N_SUM, &error));
    g_assert_no_error(error);
    g_assert_true(inner.ops->all_reduce(&inner, &group, sum->dtype, sum->host, N_SUM, &error));
    g_assert_true(inner.ops->barrier(&inner, &group, &error)); /* all ranks have summed */
    if (sum->rank == 0)
        g_setenv("FAKE_CUDA", "", TRUE); /* the emulated device downloads again */
    g_assert_true(inner.ops->barrier(&inner, &group, &error));
    backend->ops->download(backend, sizeof sum->device, x, sum->device);
    g_assert_true(backend->ops->synchronize(backend, &error));
    backend->ops->release(backend, x);
    exec_device_transport_free(t);
    return NULL;
}

static void
test_collectives_stay_on_the_device(void)
{
    static const Dtype dtypes[] = {DTYPE_FP32, DTYPE_BF16};

    if (!emulated_gpu_or_skip())
        return;
    for (size_t d = 0; d < G_N_ELEMENTS(dtypes); d++) {
        const size_t n_bytes = N_SUM * (size_t)dtype_bytes(dtypes[d]);
        g_autoptr(ExecLocalHub) hub = exec_local_hub_new(N_RANKS, 10);
        GThread *threads[N_RANKS];
        Sum sums[N_RANKS];
        g_setenv("FAKE_CUDA", "downloads=0,async=1", TRUE);
        for (int32_t r = 0; r < N_RANKS; r++) {
            sums[r] = (Sum){.hub = hub, .dtype = dtypes[d], .rank = r};
            threads[r] = g_thread_new("rank", sum_main, &sums[r]);
        }
        for (int32_t r = 0; r < N_RANKS; r++)
            g_thread_join(threads[r]);
        for (int32_t r = 0; r < N_RANKS; r++)
            g_assert_true(memcmp(sums[r].host, sums[r].device, n_bytes) == 0);
    }
    g_unsetenv("FAKE_CUDA");
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/transport-device/staged-through-the-host",
                    test_staged_through_the_host);
    g_test_add_func("/executor/transport-device/messages-stay-on-the-device",
                    test_messages_stay_on_the_device);
    g_test_add_func("/executor/transport-device/collectives-stay-on-the-device",
                    test_collectives_stay_on_the_device);
    return g_test_run();
}
