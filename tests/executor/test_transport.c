/* Tests of executor/transport/transport.h (local): barrier, messages, time limits, abort. */
#include "executor/transport/transport.h"

#include <stdatomic.h>
#include <string.h>

#include "executor/transport/local.h"
#include "tests/executor/hub_peers.h"

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
}

/* Rank 0 gives up; the others, blocked in different waits, all end with its reason. */
static bool
abort_body(ExecTransport *transport, float *data, int64_t n, GError **error)
{
    if (transport->rank == 0) {
        g_usleep(20000);
        transport->ops->abort(transport, "rank 0 failed in F1.0: out of ideas");
        transport->ops->abort(transport, "a later reason");
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

    run_peers(hub, peers, G, 1, abort_body); /* at the hub's limit ranks would be called hung */
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
    return ok && transport->waited_ns > 0; /* on a busy machine it may begin to wait late */
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
