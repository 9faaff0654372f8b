/* Tests of executor/transport.h (local) and collective.h: matching, collectives, time limits,
 * abort. */
#include "executor/collective.h"

#include <stdatomic.h>
#include <string.h>

/* A rank's thread of a test. */
typedef struct {
    ExecTransport transport;
    int64_t n;
    float *data; /* (owned) */
    GError *error;
    bool ok;
    bool (*body)(ExecTransport *transport, float *data, int64_t n, GError **error);
} Peer;

static gpointer
peer_main(gpointer user_data)
{
    Peer *peer = user_data;

    peer->ok = peer->body(&peer->transport, peer->data, peer->n, &peer->error);
    return NULL;
}

/* Runs @body on all ranks of @hub, each with its own @n floats. */
static void
run_peers(ExecLocalHub *hub, Peer *peers, int32_t n_peers, int64_t n,
          bool (*body)(ExecTransport *, float *, int64_t, GError **))
{
    GThread *threads[16];

    g_assert_cmpint(n_peers, <=, 16);
    for (int32_t r = 0; r < n_peers; r++) {
        peers[r] = (Peer){.transport = exec_local_transport(hub, r), .n = n, .body = body};
        peers[r].data = g_new0(float, (size_t)MAX(n, 1));
        for (int64_t i = 0; i < n; i++)
            peers[r].data[i] = (float)((r + 1) * 100 + i % 50);
        threads[r] = g_thread_new("peer", peer_main, &peers[r]);
    }
    for (int32_t r = 0; r < n_peers; r++)
        g_thread_join(threads[r]);
}

static void
clear_peers(Peer *peers, int32_t n_peers)
{
    for (int32_t r = 0; r < n_peers; r++) {
        g_free(peers[r].data);
        g_clear_error(&peers[r].error);
    }
}

static ExecGroup
everyone(const ExecTransport *transport)
{
    static const int32_t ranks[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

    return (ExecGroup){.ranks = ranks, .n = transport->n_ranks, .index = transport->rank};
}

/* --- collectives --- */

static bool
all_reduce(ExecTransport *transport, float *data, int64_t n, GError **error)
{
    const ExecGroup group = everyone(transport);

    return transport->ops->all_reduce(transport, &group, DTYPE_FP32, data, n, error);
}

/* Small integers: sums are exact.  Where n divides, each rank sends 2(n-1)/n of the bytes
 * [Patarasuk and Yuan 2009]. */
static void
test_all_reduce_sums_with_ring_traffic(void)
{
    static const int32_t ranks[] = {1, 2, 3, 4, 8};
    static const int64_t lengths[] = {0, 1, 7, 24, 24000};

    for (size_t i = 0; i < G_N_ELEMENTS(ranks); i++)
        for (size_t j = 0; j < G_N_ELEMENTS(lengths); j++) {
            const int32_t g = ranks[i];
            const int64_t n = lengths[j];
            g_autoptr(ExecLocalHub) hub = exec_local_hub_new(g, 10);
            Peer peers[16];
            run_peers(hub, peers, g, n, all_reduce);
            for (int32_t r = 0; r < g; r++) {
                g_assert_no_error(peers[r].error);
                for (int64_t k = 0; k < n; k++)
                    g_assert_cmpfloat((double)peers[r].data[k], ==,
                                      (double)(100 * g * (g + 1) / 2 + g * (k % 50)));
                if (n % g == 0)
                    g_assert_cmpint(peers[r].transport.bytes_sent, ==, 2 * (g - 1) * (n / g) * 4);
            }
            clear_peers(peers, g);
        }
}

/* However long the data, no more than a segment of 256 KiB for every member waits at one of them,
 * and their buffers are used again. */
static void
test_rings_need_bounded_buffers(void)
{
    enum {
        N = 1000003,
        SEGMENT_BYTES = 256 * 1024
    };

    for (int32_t g = 2; g <= 4; g++) {
        g_autoptr(ExecLocalHub) hub = exec_local_hub_new(g, 10);
        Peer peers[16];
        run_peers(hub, peers, g, N, all_reduce);
        for (int32_t r = 0; r < g; r++) {
            ExecTransport *t = &peers[r].transport;
            g_assert_no_error(peers[r].error);
            for (int64_t k = 0; k < N; k++)
                g_assert_cmpfloat((double)peers[r].data[k], ==,
                                  (double)(100 * g * (g + 1) / 2 + g * (k % 50)));
            g_assert_cmpint(t->ops->buffer_bytes(t), <=, (g + 1) * SEGMENT_BYTES);
        }
        clear_peers(peers, g);
    }
}

static bool
reduce_scatter_only(ExecTransport *transport, float *data, int64_t n, GError **error)
{
    const ExecGroup group = everyone(transport);

    return transport->ops->reduce_scatter(transport, &group, DTYPE_FP32, data, n, error);
}

static bool
all_gather_only(ExecTransport *transport, float *data, int64_t n, GError **error)
{
    const ExecGroup group = everyone(transport);

    return transport->ops->all_gather(transport, &group, DTYPE_FP32, data, n, error);
}

static void
test_halves_own_chunks(void)
{
    enum {
        G = 3,
        N = 10
    }; /* chunks [0,3) [3,6) [6,10) */
    static const int64_t begin[] = {0, 3, 6, 10};
    g_autoptr(ExecLocalHub) hub = exec_local_hub_new(G, 10);
    Peer peers[16];

    run_peers(hub, peers, G, N, reduce_scatter_only);
    for (int32_t r = 0; r < G; r++)
        for (int64_t i = begin[r]; i < begin[r + 1]; i++)
            g_assert_cmpfloat((double)peers[r].data[i], ==, (double)(600 + 3 * i));
    clear_peers(peers, G);
    run_peers(hub, peers, G, N, all_gather_only);
    for (int32_t r = 0; r < G; r++)
        for (int32_t c = 0; c < G; c++)
            for (int64_t i = begin[c]; i < begin[c + 1]; i++)
                g_assert_cmpfloat((double)peers[r].data[i], ==, (double)(100 * (c + 1) + i));
    clear_peers(peers, G);
}

/* Sums of unequal magnitudes: every member gets the same bits, and so does every repetition. */
static bool
reduce_fractions(ExecTransport *transport, float *data, int64_t n, GError **error)
{
    const ExecGroup group = everyone(transport);

    for (int64_t i = 0; i < n; i++)
        data[i] = 1.0f / (float)(1 + i * 7 + transport->rank * transport->rank * 13);
    return transport->ops->all_reduce(transport, &group, DTYPE_FP32, data, n, error);
}

static void
test_all_reduce_is_deterministic(void)
{
    enum {
        G = 5,
        N = 1001
    };
    float first[N];

    for (int repetition = 0; repetition < 10; repetition++) {
        g_autoptr(ExecLocalHub) hub = exec_local_hub_new(G, 10);
        Peer peers[16];
        run_peers(hub, peers, G, N, reduce_fractions);
        if (repetition == 0)
            memcpy(first, peers[0].data, sizeof first);
        for (int32_t r = 0; r < G; r++)
            g_assert_cmpint(memcmp(first, peers[r].data, sizeof first), ==, 0);
        clear_peers(peers, G);
    }
}

/* Member i gives member j i + 2j + 1 bytes (0 from 2 to 1), all of value 16 i + j. */
static int64_t
piece_bytes(int32_t from, int32_t to)
{
    return from == 2 && to == 1 ? 0 : from + 2 * to + 1;
}

static bool
exchange_body(ExecTransport *transport, float *data, int64_t n, GError **error)
{
    const ExecGroup group = everyone(transport);
    const int32_t me = transport->rank;
    uint8_t out[256], in[256];
    int64_t out_bytes[16], in_bytes[16];
    size_t at = 0;

    for (int32_t j = 0; j < group.n; j++) {
        out_bytes[j] = piece_bytes(me, j);
        in_bytes[j] = piece_bytes(j, me);
        memset(out + at, 16 * me + j, (size_t)out_bytes[j]);
        at += (size_t)out_bytes[j];
    }
    const ExecExchange exchange = {
        .out = out, .out_bytes = out_bytes, .in = in, .in_bytes = in_bytes};
    if (!transport->ops->all_to_all(transport, &group, &exchange, error))
        return false;
    at = 0;
    for (int32_t j = 0; j < group.n; j++)
        for (int64_t k = 0; k < in_bytes[j]; k++)
            if (in[at++] != 16 * j + me) {
                g_set_error(error, EXEC_ERROR, EXEC_ERROR_FAILED, "byte %zu", at - 1);
                return false;
            }
    return true;
}

static void
test_all_to_all_delivers_uneven_pieces(void)
{
    for (int32_t g = 1; g <= 6; g++) {
        g_autoptr(ExecLocalHub) hub = exec_local_hub_new(g, 10);
        Peer peers[16];
        run_peers(hub, peers, g, 0, exchange_body);
        for (int32_t r = 0; r < g; r++)
            g_assert_no_error(peers[r].error);
        clear_peers(peers, g);
    }
}

/* Every member in turn is the root. */
static bool
broadcast_body(ExecTransport *transport, float *data, int64_t n, GError **error)
{
    const ExecGroup group = everyone(transport);

    for (int32_t root = 0; root < group.n; root++) {
        data[0] = (float)(transport->rank == root ? 1000 + root : -1);
        if (!transport->ops->broadcast(transport, &group, root, data, 4, error))
            return false;
        if (data[0] != (float)(1000 + root)) {
            g_set_error(error, EXEC_ERROR, EXEC_ERROR_FAILED, "root %d: %g", root, (double)data[0]);
            return false;
        }
    }
    return true;
}

static void
test_broadcast_reaches_all(void)
{
    for (int32_t g = 1; g <= 9; g++) {
        g_autoptr(ExecLocalHub) hub = exec_local_hub_new(g, 10);
        Peer peers[16];
        int64_t sent = 0;
        run_peers(hub, peers, g, 1, broadcast_body);
        for (int32_t r = 0; r < g; r++) {
            g_assert_no_error(peers[r].error);
            sent += peers[r].transport.bytes_sent;
        }
        g_assert_cmpint(sent, ==, g * (g - 1) * 4); /* nobody hears it twice */
        clear_peers(peers, g);
    }
}

/* bf16 has 8 bits of mantissa: 256 + 1 lies between 256 and 258 and goes to the even one, 258 + 1
 * between 258 and 260 and goes to 260. */
static void
test_bf16_sums_round_to_nearest_even(void)
{
    static const struct {
        uint16_t a, b, expect;
    } cases[] = {
        {0x3f80, 0x4000, 0x4040}, /* 1 + 2 = 3 */
        {0x4380, 0x3f80, 0x4380}, /* 256 + 1 -> 256 */
        {0x4381, 0x3f80, 0x4382}, /* 258 + 1 -> 260 */
        {0x7f80, 0x3f80, 0x7f80}, /* infinity stays */
        {0x7f7f, 0x7f7f, 0x7f80}, /* the largest twice is infinite */
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        uint16_t sum = cases[i].a;
        exec_add(DTYPE_BF16, &sum, &cases[i].b, 1);
        g_assert_cmphex(sum, ==, cases[i].expect);
    }
    uint16_t nan = 0x7fff, one = 0x3f80;
    exec_add(DTYPE_BF16, &nan, &one, 1);
    g_assert_cmphex(nan & 0x7f80, ==, 0x7f80);
    g_assert_cmphex(nan & 0x007f, !=, 0);
}

static bool
reduce_bf16(ExecTransport *transport, float *data, int64_t n, GError **error)
{
    const ExecGroup group = everyone(transport);
    uint16_t *x = (uint16_t *)data;

    for (int64_t i = 0; i < n; i++)
        x[i] = 0x3f80; /* 1 */
    return transport->ops->all_reduce(transport, &group, DTYPE_BF16, x, n, error);
}

static void
test_all_reduce_of_bf16_moves_half_the_bytes(void)
{
    enum {
        G = 4,
        N = 24
    };
    g_autoptr(ExecLocalHub) hub = exec_local_hub_new(G, 10);
    Peer peers[16];

    run_peers(hub, peers, G, N, reduce_bf16);
    for (int32_t r = 0; r < G; r++) {
        g_assert_no_error(peers[r].error);
        for (int i = 0; i < N; i++)
            g_assert_cmphex(((uint16_t *)peers[r].data)[i], ==, 0x4080); /* 4 */
        g_assert_cmpint(peers[r].transport.bytes_sent, ==, 2 * (G - 1) * (N / G) * 2);
    }
    clear_peers(peers, G);
}

static atomic_int n_entered;

static bool
barrier_body(ExecTransport *transport, float *data, int64_t n, GError **error)
{
    const ExecGroup group = everyone(transport);

    for (int round = 1; round <= 20; round++) {
        atomic_fetch_add(&n_entered, 1);
        if (!transport->ops->barrier(transport, &group, error))
            return false;
        /* Nobody leaves round k before all have entered it. */
        if (atomic_load(&n_entered) < round * transport->n_ranks) {
            g_set_error(error, EXEC_ERROR, EXEC_ERROR_FAILED, "left early");
            return false;
        }
    }
    return true;
}

static void
test_barrier_waits_for_all(void)
{
    for (int32_t g = 1; g <= 6; g++) {
        g_autoptr(ExecLocalHub) hub = exec_local_hub_new(g, 10);
        Peer peers[16];
        atomic_store(&n_entered, 0);
        run_peers(hub, peers, g, 0, barrier_body);
        for (int32_t r = 0; r < g; r++)
            g_assert_no_error(peers[r].error);
        clear_peers(peers, g);
    }
}

/* --- messages --- */

static void
test_messages_match_by_sender_and_tag(void)
{
    g_autoptr(ExecLocalHub) hub = exec_local_hub_new(3, 1);
    ExecTransport a = exec_local_transport(hub, 0), b = exec_local_transport(hub, 1),
                  c = exec_local_transport(hub, 2);
    g_autoptr(GError) error = NULL;
    const float one = 1, two = 2, three = 3, four = 4;
    float got = 0;

    g_assert_true(a.ops->send(&a, 2, 7, &one, 4, &error));
    g_assert_true(a.ops->send(&a, 2, 8, &two, 4, &error));
    g_assert_true(b.ops->send(&b, 2, 7, &three, 4, &error));
    g_assert_true(a.ops->send(&a, 2, 7, &four, 4, &error));
    static const struct {
        int32_t from;
        int64_t tag;
        double expect;
    } order[] = {{0, 8, 2}, {1, 7, 3}, {0, 7, 1}, {0, 7, 4}};
    for (size_t i = 0; i < G_N_ELEMENTS(order); i++) {
        g_assert_true(c.ops->receive(&c, order[i].from, order[i].tag, &got, 4, &error));
        g_assert_cmpfloat((double)got, ==, order[i].expect);
    }
    /* Buffers are used again: four messages of one float were in flight at once. */
    g_assert_true(a.ops->send(&a, 2, 7, &one, 4, &error));
    g_assert_cmpint(c.ops->buffer_bytes(&c), ==, 16);
}

static void
test_length_mismatch_is_an_error(void)
{
    g_autoptr(ExecLocalHub) hub = exec_local_hub_new(2, 1);
    ExecTransport a = exec_local_transport(hub, 0), b = exec_local_transport(hub, 1);
    g_autoptr(GError) error = NULL;
    float x[3] = {0};

    g_assert_true(a.ops->send(&a, 1, 0, x, 8, &error));
    g_assert_false(b.ops->receive(&b, 0, 0, x, 12, &error));
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_FAILED);
}

static void
test_wait_ends_at_the_limit(void)
{
    g_autoptr(ExecLocalHub) hub = exec_local_hub_new(2, 0.1);
    ExecTransport b = exec_local_transport(hub, 1);
    g_autoptr(GError) error = NULL;
    float x = 0;
    const int64_t begin = g_get_monotonic_time();

    g_assert_false(b.ops->receive(&b, 0, 0, &x, 4, &error));
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_RANK_HUNG);
    g_assert_nonnull(strstr(error->message, "rank 1"));
    g_assert_nonnull(strstr(error->message, "rank 0"));
    g_assert_cmpint(g_get_monotonic_time() - begin, >=, 100000);
    g_assert_cmpint(g_get_monotonic_time() - begin, <, 1000000);
}

/* Rank 0 gives up; the others, blocked in different waits, all end with its reason. */
static bool
abort_body(ExecTransport *transport, float *data, int64_t n, GError **error)
{
    if (transport->rank == 0) {
        g_usleep(20000);
        exec_transport_abort(transport, "rank 0 failed in F1.0: out of ideas");
        exec_transport_abort(transport, "a later reason");
        return true;
    }
    return transport->rank == 1 ? transport->ops->receive(transport, 0, 0, data, n * 4, error)
                                : barrier_body(transport, data, n, error);
}

static void
test_abort_ends_all_waits(void)
{
    enum {
        G = 4
    };
    g_autoptr(ExecLocalHub) hub = exec_local_hub_new(G, 30);
    Peer peers[16];
    const int64_t begin = g_get_monotonic_time();

    run_peers(hub, peers, G, 1, abort_body);
    g_assert_cmpint(g_get_monotonic_time() - begin, <, 2000000);
    for (int32_t r = 1; r < G; r++) {
        g_assert_error(peers[r].error, EXEC_ERROR, EXEC_ERROR_RANK_DIED);
        g_assert_cmpstr(peers[r].error->message, ==, "rank 0 failed in F1.0: out of ideas");
        g_assert_false(
            peers[r].transport.ops->send(&peers[r].transport, 0, 0, peers[r].data, 4, NULL));
    }
    clear_peers(peers, G);
}

/* A rank that waits long sleeps: its thread uses a small part of the time it waits. */
static bool
slow_body(ExecTransport *transport, float *data, int64_t n, GError **error)
{
    if (transport->rank == 0) {
        g_usleep(300000);
        return transport->ops->send(transport, 1, 0, data, n * 4, error);
    }
    struct timespec begin, end;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    const bool ok = transport->ops->receive(transport, 0, 0, data, n * 4, error);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    data[0] =
        (float)((double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec));
    return ok && transport->waited_ns > 250000000;
}

static void
test_waiting_sleeps(void)
{
    g_autoptr(ExecLocalHub) hub = exec_local_hub_new(2, 10);
    Peer peers[16];

    run_peers(hub, peers, 2, 1, slow_body);
    g_assert_true(peers[1].ok);
    g_assert_cmpfloat((double)peers[1].data[0], <, 0.03);
    clear_peers(peers, 2);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/transport/rings-need-bounded-buffers",
                    test_rings_need_bounded_buffers);
    g_test_add_func("/executor/transport/all-reduce-sums-with-ring-traffic",
                    test_all_reduce_sums_with_ring_traffic);
    g_test_add_func("/executor/transport/halves-own-chunks", test_halves_own_chunks);
    g_test_add_func("/executor/transport/all-reduce-is-deterministic",
                    test_all_reduce_is_deterministic);
    g_test_add_func("/executor/transport/all-to-all-delivers-uneven-pieces",
                    test_all_to_all_delivers_uneven_pieces);
    g_test_add_func("/executor/transport/broadcast-reaches-all", test_broadcast_reaches_all);
    g_test_add_func("/executor/transport/bf16-sums-round-to-nearest-even",
                    test_bf16_sums_round_to_nearest_even);
    g_test_add_func("/executor/transport/all-reduce-of-bf16-moves-half-the-bytes",
                    test_all_reduce_of_bf16_moves_half_the_bytes);
    g_test_add_func("/executor/transport/barrier-waits-for-all", test_barrier_waits_for_all);
    g_test_add_func("/executor/transport/messages-match-by-sender-and-tag",
                    test_messages_match_by_sender_and_tag);
    g_test_add_func("/executor/transport/length-mismatch-is-an-error",
                    test_length_mismatch_is_an_error);
    g_test_add_func("/executor/transport/wait-ends-at-the-limit", test_wait_ends_at_the_limit);
    g_test_add_func("/executor/transport/abort-ends-all-waits", test_abort_ends_all_waits);
    g_test_add_func("/executor/transport/waiting-sleeps", test_waiting_sleeps);
    return g_test_run();
}
