/* Tests of executor/cuda/nccl.h on emulated GPUs with a fake NCCL (fake_nccl.c); ranks
 * are threads here, and processes in tests/cli/test_nccl.sh. */
#include "executor/cuda/nccl.h"

#include <string.h>

#include "executor/device/plugin.h"
#include "executor/transport/local.h"
#include "tests/executor/emulated.h"

#define N_RANKS 3
#define N 40 /* floats: not divisible by the ranks */

typedef struct {
    ExecTransport *t;
    ExecBackend *backend;
    float *x, *y; /* on the device */
} Rank;

typedef struct {
    ExecLocalHub *hub;
    const ExecNcclPlugin *plugin;
    int32_t rank;
    bool one_device;
    bool (*body)(Rank *rank); /* false: the ranks do not end together */
    GError *error;
} Start;

static ExecGroup
everyone(int32_t rank)
{
    static const int32_t ranks[N_RANKS] = {0, 1, 2};

    return (ExecGroup){.ranks = ranks, .n = N_RANKS, .index = rank};
}

static float
number(int32_t rank, int64_t i)
{
    return (float)(100 * rank + i);
}

static void
fill(const Rank *rank, int32_t as, float *x)
{
    float host[N];

    for (int64_t i = 0; i < N; i++)
        host[i] = number(as, i);
    rank->backend->ops->upload(rank->backend, sizeof host, host, x);
}

/* The first @n floats of @x are @expected(i). */
#define CHECK(rank, x, n, i, expected)                                                             \
    do {                                                                                           \
        ExecBackend *b_ = (rank)->backend;                                                         \
        float host_[N];                                                                            \
        b_->ops->download(b_, sizeof host_, (x), host_);                                           \
        g_assert_true(b_->ops->synchronize(b_, NULL));                                             \
        for (int64_t i = 0; i < (n); i++)                                                          \
            g_assert_cmpfloat((double)host_[i], ==, (double)(expected));                           \
    } while (0)

static gpointer
rank_main(gpointer user_data)
{
    Start *start = user_data;
    const ExecBackendOptions backend_options = {
        .device = start->one_device ? 0 : start->rank,
        .storage = DTYPE_FP32,
    };
    const ExecNcclOptions options = {.machine = "here", .timeout_ns = INT64_C(20000000000)};
    g_autoptr(GError) error = NULL;
    g_autoptr(ExecBackend) backend = exec_backend_open_with("cuda", &backend_options, &error);
    ExecTransport host = exec_local_transport(start->hub, start->rank), t = {0};
    Rank rank = {.t = &t, .backend = backend};

    g_assert_no_error(error);
    rank.x = backend->ops->alloc(backend, N * sizeof(float), "x", &error);
    rank.y = backend->ops->alloc(backend, N * sizeof(float), "y", &error);
    backend->ops->zero(backend, N * sizeof(float), rank.y);
    if (start->plugin->open(&host, backend, &options, &t, &start->error) && start->body(&rank))
        g_assert_true(start->plugin->close(&t, &error));
    start->plugin->free(&t);
    backend->ops->release(backend, rank.x);
    backend->ops->release(backend, rank.y);
    return NULL;
}

/* Runs @body on all ranks; @starts (nullable) has how opening went. */
static void
run(const char *fake_cuda, bool one_device, bool (*body)(Rank *), Start *starts)
{
    g_autoptr(ExecLocalHub) hub = exec_local_hub_new(N_RANKS, 20);
    g_autoptr(GError) error = NULL;
    const ExecNcclPlugin *plugin = exec_plugin_symbol("cuda", EXEC_NCCL_PLUGIN, "test", &error);
    GThread *threads[N_RANKS];
    Start own[N_RANKS];

    g_assert_no_error(error);
    g_assert_true(plugin->check(&error));
    g_setenv("FAKE_CUDA", fake_cuda, TRUE);
    for (int32_t r = 0; r < N_RANKS; r++) {
        own[r] = (Start){
            .hub = hub, .plugin = plugin, .rank = r, .one_device = one_device, .body = body};
        threads[r] = g_thread_new("rank", rank_main, &own[r]);
    }
    for (int32_t r = 0; r < N_RANKS; r++)
        g_thread_join(threads[r]);
    g_unsetenv("FAKE_CUDA");
    for (int32_t r = 0; r < N_RANKS; r++) {
        if (starts != NULL)
            starts[r] = own[r];
        else
            g_assert_no_error(own[r].error);
    }
}

/* At once, and with streams that lag behind. */
static void
run_both(bool (*body)(Rank *))
{
    run("devices=3", false, body, NULL);
    run("devices=3,async=1", false, body, NULL);
}

/* --- collectives --- */

static bool
collect(Rank *rank)
{
    static const int64_t sent[N_RANKS][N_RANKS] = {{4, 8, 0}, {12, 4, 4}, {0, 8, 4}};
    ExecTransport *t = rank->t;
    const int32_t own = t->rank;
    const ExecGroup group = everyone(own);
    const int64_t received[N_RANKS] = {sent[0][own], sent[1][own], sent[2][own]};
    const ExecExchange exchange = {
        .out = rank->x, .out_bytes = sent[own], .in = rank->y, .in_bytes = received};
    g_autoptr(GError) error = NULL;
    float *x = rank->x;

    fill(rank, own, x);
    g_assert_true(t->ops->all_reduce(t, &group, DTYPE_FP32, x, N, &error));
    CHECK(rank, x, N, i, 300 + 3 * i);
    fill(rank, own, x);
    g_assert_true(t->ops->broadcast(t, &group, 1, x, N * sizeof *x, &error));
    CHECK(rank, x, N, i, number(1, i));
    for (int64_t n = 3; n <= N; n += N - 3) { /* equal chunks, and 13, 13, 14 */
        fill(rank, own, x);
        g_assert_true(t->ops->all_gather(t, &group, DTYPE_FP32, x, n, &error));
        CHECK(rank, x, n, i,
              number((i >= exec_group_chunk_begin(&group, n, 1)) +
                         (i >= exec_group_chunk_begin(&group, n, 2)),
                     i));
        fill(rank, own, x);
        g_assert_true(t->ops->reduce_scatter(t, &group, DTYPE_FP32, x, n, &error));
        const int64_t begin = exec_group_chunk_begin(&group, n, own);
        CHECK(rank, x, exec_group_chunk_begin(&group, n, own + 1), i,
              i < begin ? host_[i] : 300 + 3 * (float)i);
    }
    fill(rank, own, x);
    g_assert_true(t->ops->all_to_all(t, &group, &exchange, &error));
    /* What rank 1 gets: floats 1, 2 of rank 0's, 3 of its own, 0, 1 of rank 2's. */
    static const float of_1[] = {1, 2, 103, 200, 201};
    if (own == 1)
        CHECK(rank, rank->y, 5, i, of_1[i]);
    g_assert_true(t->ops->barrier(t, &group, &error));
    return true;
}

static void
test_collectives(void)
{
    if (emulated_gpu_or_skip())
        run_both(collect);
}

/* --- messages --- */

/* All send three to everybody, themselves too, before anybody receives, and want them in another
 * order: NCCL has no tags, and a send of it waits for its receiver. */
static bool
cross(Rank *rank)
{
    ExecTransport *t = rank->t;
    const int64_t n_bytes = N * sizeof(float);
    g_autoptr(GError) error = NULL;

    for (int32_t a = 0; a < N_RANKS; a++)
        for (int32_t b = 0; b < N_RANKS; b++) {
            const int32_t members[] = {a, b};
            const ExecGroup pair = {.ranks = members, .n = 2, .index = t->rank == b};
            if (a != b && (t->rank == a || t->rank == b))
                g_assert_true(t->ops->meet(t, &pair, true, &error));
        }
    for (int32_t to = 0; to < N_RANKS; to++)
        for (int64_t tag = 1; tag <= 3; tag++) {
            fill(rank, 10 * t->rank + (int32_t)tag, rank->x);
            g_assert_true(t->ops->send(t, to, tag, rank->x, n_bytes, &error));
            rank->backend->ops->zero(rank->backend, (size_t)n_bytes, rank->x); /* it was copied */
        }
    for (int32_t from = N_RANKS - 1; from >= 0; from--)
        for (int64_t tag = 3; tag >= 1; tag--) {
            g_assert_true(t->ops->receive(t, from, tag, rank->y, n_bytes, &error));
            CHECK(rank, rank->y, N, i, number(10 * from + (int32_t)tag, i));
        }
    g_assert_cmpint(t->sent_bytes, ==, 9 * n_bytes);
    return true;
}

static void
test_messages_cross_in_any_order(void)
{
    if (emulated_gpu_or_skip())
        run_both(cross);
}

/* --- what is refused, and aborts --- */

static void
test_refuses_two_ranks_on_a_device(void)
{
    Start starts[N_RANKS];

    if (!emulated_gpu_or_skip())
        return;
    run("devices=1", true, NULL, starts);
    for (int32_t r = 0; r < N_RANKS; r++) {
        g_assert_error(starts[r].error, EXEC_ERROR, EXEC_ERROR_UNSUPPORTED);
        g_assert_true(g_pattern_match_simple("*ranks 0 and 1 have the same device, cuda:0*refuses*",
                                             starts[r].error->message));
        g_error_free(starts[r].error);
    }
}

static gpointer
abort_soon(gpointer user_data)
{
    ExecTransport *t = user_data;

    while (t->ops->waiting_for(t) != EXEC_WAITING_FOR_GROUP) /* a device that waits for others */
        g_usleep(1000);
    t->ops->abort(t, "rank 2 is gone");
    return NULL;
}

/* Rank 2 never joins the second sum; whoever watches the others says so. */
static bool
wait_in_vain(Rank *rank)
{
    const ExecGroup group = everyone(rank->t->rank);
    g_autoptr(GError) error = NULL;
    ExecTransport *t = rank->t;

    g_assert_true(t->ops->all_reduce(t, &group, DTYPE_FP32, rank->y, N, &error));
    g_assert_true(rank->backend->ops->synchronize(rank->backend, &error));
    if (t->rank == 2)
        return false;
    g_assert_true(t->ops->all_reduce(t, &group, DTYPE_FP32, rank->y, N, &error));
    GThread *watch = g_thread_new("watch", abort_soon, t);
    g_assert_false(rank->backend->ops->synchronize(rank->backend, &error));
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_RANK_DIED);
    g_assert_cmpstr(error->message, ==, "rank 2 is gone");
    g_clear_error(&error);
    g_assert_false(t->ops->all_reduce(t, &group, DTYPE_FP32, rank->y, N, &error));
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_RANK_DIED);
    g_thread_join(watch);
    return false;
}

/* NCCL connects a group at its first call, which does not end before all have come. */
static bool
wait_for_the_first_call(Rank *rank)
{
    const ExecGroup group = everyone(rank->t->rank);
    g_autoptr(GError) error = NULL;
    ExecTransport *t = rank->t;

    g_assert_true(t->ops->meet(t, &group, false, &error));
    if (t->rank == 2)
        return false;
    GThread *watch = g_thread_new("watch", abort_soon, t);
    g_assert_false(t->ops->all_reduce(t, &group, DTYPE_FP32, rank->y, N, &error));
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_RANK_DIED);
    g_assert_cmpstr(error->message, ==, "rank 2 is gone");
    g_thread_join(watch);
    return false;
}

static void
test_abort_ends_the_wait_for_others(void)
{
    if (emulated_gpu_or_skip())
        run("devices=3", false, wait_for_the_first_call, NULL);
}

static void
test_abort_ends_the_wait_for_the_device(void)
{
    if (emulated_gpu_or_skip())
        run("devices=3", false, wait_in_vain, NULL);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/transport-nccl/collectives", test_collectives);
    g_test_add_func("/executor/transport-nccl/messages-cross-in-any-order",
                    test_messages_cross_in_any_order);
    g_test_add_func("/executor/transport-nccl/refuses-two-ranks-on-a-device",
                    test_refuses_two_ranks_on_a_device);
    g_test_add_func("/executor/transport-nccl/abort-ends-the-wait-for-others",
                    test_abort_ends_the_wait_for_others);
    g_test_add_func("/executor/transport-nccl/abort-ends-the-wait-for-the-device",
                    test_abort_ends_the_wait_for_the_device);
    return g_test_run();
}
