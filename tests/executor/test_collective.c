/* Tests of executor/transport/collective.h, over the local transport of transport.h. */
#include "executor/transport/collective.h"

#include <string.h>

#include "executor/transport/local.h"
#include "executor/transport/turns.h"
#include "tests/executor/hub_peers.h"

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
                    g_assert_cmpint(peers[r].transport.sent_bytes, ==, 2 * (g - 1) * (n / g) * 4);
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
            sent += peers[r].transport.sent_bytes;
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
        g_assert_cmpint(peers[r].transport.sent_bytes, ==, 2 * (G - 1) * (N / G) * 2);
    }
    clear_peers(peers, G);
}

/* --- exchanges in two halves --- */

/* Two exchanges are under way at once, a whole one between their halves. */
static bool
exchange_in_halves(ExecTransport *transport, float *data, int64_t n, GError **error)
{
    enum {
        G = 3
    };
    const ExecGroup group = everyone(transport);
    const int64_t bytes[G] = {4, 4, 4};
    float out[3][G], in[3][G];
    ExecExchange x[3];

    for (int k = 0; k < 3; k++) {
        for (int r = 0; r < G; r++)
            out[k][r] = (float)(100 * k + 10 * transport->rank + r);
        x[k] = (ExecExchange){out[k], bytes, in[k], bytes};
    }
    if (!transport->ops->begin_exchange(transport, &group, &x[0], error) ||
        !transport->ops->begin_exchange(transport, &group, &x[1], error))
        return false;
    memset(out, 0, sizeof out[0]); /* what was given may change */
    if (!transport->ops->all_to_all(transport, &group, &x[2], error) ||
        !transport->ops->end_exchange(transport, &group, &x[0], error) ||
        !transport->ops->end_exchange(transport, &group, &x[1], error))
        return false;
    for (int k = 0; k < 3; k++)
        for (int r = 0; r < G && k * G + r < n; r++)
            data[k * G + r] = in[k][r];
    return true;
}

static void
test_exchanges_in_halves(void)
{
    enum {
        G = 3
    };
    g_autoptr(ExecLocalHub) hub = exec_local_hub_new(G, 10);
    Peer peers[16];

    run_peers(hub, peers, G, 3 * G, exchange_in_halves);
    for (int32_t r = 0; r < G; r++) {
        g_assert_no_error(peers[r].error);
        for (int k = 0; k < 3; k++)
            for (int from = 0; from < G; from++)
                g_assert_cmpfloat((double)peers[r].data[k * G + from], ==,
                                  (double)(100 * k + 10 * from + r));
    }
    clear_peers(peers, G);
}

/* --- turns --- */

/* An op that notes its letter and then passes the turn, several times. */
typedef struct {
    ExecTurns *turns;
    GString *log;
    char letter;
    int n;
} Talker;

static void
talk(void *user_data)
{
    Talker *t = user_data;

    for (int i = 0; i < t->n; i++) {
        g_string_append_c(t->log, t->letter);
        exec_turns_pass(t->turns);
    }
    g_string_append_c(t->log, (char)g_ascii_toupper(t->letter));
}

/* The order follows from how often each passes alone; who is left goes on by itself. */
static void
test_ops_take_turns(void)
{
    static const struct {
        int n[2];
        const char *expect;
    } cases[] = {{{2, 2}, "ababAB"}, {{0, 2}, "AbbB"}, {{3, 1}, "abaBaA"}, {{1, 3}, "abAbbB"}};

    for (size_t k = 0; k < G_N_ELEMENTS(cases); k++)
        for (int again = 0; again < 20; again++) {
            g_autoptr(ExecTurns) turns = exec_turns_new();
            g_autoptr(GString) log = g_string_new(NULL);
            Talker a = {turns, log, 'a', cases[k].n[0]}, b = {turns, log, 'b', cases[k].n[1]};
            int64_t busy_ns[2];
            g_assert_false(exec_turns_at_work(turns));
            g_assert_true(exec_turns_run(turns, talk, &a, talk, &b, busy_ns, NULL));
            g_assert_false(exec_turns_at_work(turns));
            g_assert_cmpstr(log->str, ==, cases[k].expect);
            g_assert_cmpint(busy_ns[0], >=, 0);
            g_assert_cmpint(busy_ns[1], >=, 0);
        }
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
    g_test_add_func("/executor/transport/exchanges-in-halves", test_exchanges_in_halves);
    g_test_add_func("/executor/transport/ops-take-turns", test_ops_take_turns);
    g_test_add_func("/executor/transport/broadcast-reaches-all", test_broadcast_reaches_all);
    g_test_add_func("/executor/transport/bf16-sums-round-to-nearest-even",
                    test_bf16_sums_round_to_nearest_even);
    g_test_add_func("/executor/transport/all-reduce-of-bf16-moves-half-the-bytes",
                    test_all_reduce_of_bf16_moves_half_the_bytes);
    return g_test_run();
}
