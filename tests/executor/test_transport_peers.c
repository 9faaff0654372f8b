/* Tests of executor/transport/peers.h: ranks that meet by sockets exchange what they
 * should, large messages in both directions too, and an abort ends their waits; on one machine and
 * between machines, where strangers may call; a flipped bit and another version are named. */
#include "executor/transport/peers.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "executor/device/clock.h"
#include "executor/transport/addresses.h"

#define N_RANKS 4

/* The wire: of a send of @flips bytes it flips one bit, once. */
static atomic_int_fast64_t flips;

ssize_t
send(int fd, const void *data, size_t n, int flags)
{
    int_fast64_t damaged = (int_fast64_t)n;

    if (n == 0 || !atomic_compare_exchange_strong(&flips, &damaged, 0))
        return sendto(fd, data, n, flags, NULL, 0);
    g_autofree char *copy = g_memdup2(data, n);
    copy[n / 2] ^= 16;
    return sendto(fd, copy, n, flags, NULL, 0);
}

typedef struct {
    char secret[64];
    int32_t rank;
    /* False: without a common end, or with an error. */
    bool (*body)(ExecTransport *transport, GError **error);
} Start;

static ExecGroup
everyone(const ExecTransport *t)
{
    static const int32_t ranks[N_RANKS] = {0, 1, 2, 3};

    return (ExecGroup){.ranks = ranks, .n = N_RANKS, .index = t->rank};
}

static gpointer
rank_main(gpointer user_data)
{
    const Start *start = user_data;
    g_autoptr(GError) error = NULL;
    ExecTransport t;

    exec_peers_open(
        &(ExecPeersOptions){.meeting = start->secret, .rank = start->rank, .n_ranks = N_RANKS}, &t,
        &error);
    g_assert_no_error(error);
    g_assert_cmpint(t.rank, ==, start->rank);
    const bool whole = start->body(&t, &error);
    g_assert_no_error(error);
    if (whole)
        exec_peers_close(&t, &error);
    g_assert_no_error(error);
    return NULL;
}

/* A port of this machine that nobody listens on. */
static int
free_port(void)
{
    g_autofree char *where = NULL;
    const int fd = exec_addresses_listen(false, 0, &where);

    g_assert_cmpint(fd, >=, 0);
    close(fd);
    return atoi(strrchr(where, ':') + 1);
}

/* @port  0: the ranks are of one machine; else they meet there */
static void
run_at(bool (*body)(ExecTransport *, GError **), int port)
{
    static int n_runs;
    GThread *threads[N_RANKS];
    Start starts[N_RANKS];

    n_runs++;
    for (int32_t r = 0; r < N_RANKS; r++) {
        starts[r] = (Start){.rank = r, .body = body};
        if (port == 0)
            g_snprintf(starts[r].secret, sizeof starts[r].secret, "test%d%d", (int)getpid(),
                       n_runs);
        else
            g_snprintf(starts[r].secret, sizeof starts[r].secret, "run@localhost:%d", port);
        threads[r] = g_thread_new("rank", rank_main, &starts[r]);
    }
    for (int32_t r = 0; r < N_RANKS; r++)
        g_thread_join(threads[r]);
}

static void
run(bool (*body)(ExecTransport *, GError **))
{
    run_at(body, 0);
    run_at(body, free_port());
}

/* Far more than a socket holds, to all before anybody receives. */
static bool
exchange(ExecTransport *t, GError **error)
{
    const int64_t n = INT64_C(1) << 20;
    g_autofree char *data = g_malloc((size_t)n);

    for (int32_t r = 0; r < N_RANKS; r++) {
        memset(data, 'a' + t->rank, (size_t)n);
        if (!t->ops->send(t, r, 7, data, n, error))
            return false;
    }
    for (int32_t r = 0; r < N_RANKS; r++) {
        if (!t->ops->receive(t, r, 7, data, n, error))
            return false;
        g_assert_cmpint(data[0], ==, 'a' + r);
        g_assert_cmpint(data[n - 1], ==, 'a' + r);
    }
    g_assert_cmpint(t->sent_bytes, ==, N_RANKS * n);
    return true;
}

static void
test_large_messages_cross(void)
{
    run(exchange);
}

/* Sum of r + 1 over ranks is 10; the k-th element adds k each. */
static bool
collect(ExecTransport *t, GError **error)
{
    const ExecGroup group = everyone(t);
    char letters[N_RANKS] = {0};
    float x[10];

    for (int k = 0; k < 10; k++)
        x[k] = (float)(t->rank + 1 + k);
    letters[t->rank] = (char)('a' + t->rank);
    if (!t->ops->all_reduce(t, &group, DTYPE_FP32, x, 10, error) ||
        !t->ops->all_gather(t, &group, DTYPE_FP8, letters, N_RANKS, error) ||
        !t->ops->barrier(t, &group, error))
        return false;
    for (int k = 0; k < 10; k++)
        g_assert_cmpfloat((double)x[k], ==, 10.0 + 4.0 * k);
    g_assert_true(memcmp(letters, "abcd", N_RANKS) == 0);
    return true;
}

static void
test_collectives(void)
{
    run(collect);
}

/* Rank 1 waits for what never comes; the thread of its process that watches aborts. */
static gpointer
abort_soon(gpointer user_data)
{
    ExecTransport *transport = user_data;

    g_usleep(50000);
    transport->ops->abort(transport, "rank 0 is gone");
    return NULL;
}

static bool
wait_in_vain(ExecTransport *t, GError **error)
{
    g_autoptr(GError) reason = NULL;
    char byte;

    if (t->rank != 1)
        return false;
    GThread *watch = g_thread_new("watch", abort_soon, t);
    g_assert_false(t->ops->receive(t, 0, 1, &byte, 1, &reason));
    g_assert_error(reason, EXEC_ERROR, EXEC_ERROR_RANK_DIED);
    g_assert_cmpstr(reason->message, ==, "rank 0 is gone");
    g_thread_join(watch);
    return false;
}

static void
test_abort_ends_waits(void)
{
    run(wait_in_vain);
}

/* --- strangers --- */

/* Calls rank 0 while the ranks meet: half of the calls say something, which is no greeting. */
static gpointer
call_as_a_stranger(gpointer user_data)
{
    const int64_t begin = exec_now_ns();
    char noise[1024];

    for (int n_calls = 0; n_calls < 8 && exec_seconds_since(begin) < 10;) {
        const int fd = exec_addresses_connect(user_data);
        if (fd < 0)
            continue;
        memset(noise, n_calls, sizeof noise);
        if (n_calls++ % 2 == 0)
            (void)!send(fd, noise, sizeof noise, MSG_NOSIGNAL);
        close(fd);
    }
    return NULL;
}

/* A rank of another run calls at the same port, as long as it may. */
static gpointer
call_from_another_run(gpointer user_data)
{
    ExecTransport t;

    exec_peers_open(
        &(ExecPeersOptions){.meeting = user_data, .rank = 1, .n_ranks = N_RANKS, .timeout_s = 1},
        &t, NULL);
    return NULL;
}

static void
test_strangers_are_sent_away(void)
{
    static char where[64], other[64]; /* the other run outlives the test */
    const int port = free_port();

    g_snprintf(where, sizeof where, "localhost:%d", port);
    g_snprintf(other, sizeof other, "other@%s", where);
    g_thread_unref(g_thread_new("other", call_from_another_run, other));
    GThread *stranger = g_thread_new("stranger", call_as_a_stranger, where);
    run_at(collect, port);
    g_thread_join(stranger);
}

/* 4321 bytes for rank 3, with their header; everybody else ends at once. */
static bool
expect_damage(ExecTransport *t, const char *words, GError **error)
{
    char data[4321] = {0};

    if (t->rank == 1)
        return t->ops->send(t, 3, 17, data, sizeof data, error) && false;
    if (t->rank != 3)
        return false;
    g_assert_false(t->ops->receive(t, 1, 17, data, sizeof data, error));
    g_assert_error(*error, EXEC_ERROR, EXEC_ERROR_RANK_DIED);
    g_assert_cmpstr((*error)->message, ==, words);
    g_clear_error(error);
    return false;
}

static bool
expect_damaged_bytes(ExecTransport *t, GError **error)
{
    return expect_damage(t,
                         "a message of rank 1 to rank 3 (tag 17, 4321 bytes) was damaged on its "
                         "way: its checksum is not the one that was sent",
                         error);
}

static bool
expect_damaged_header(ExecTransport *t, GError **error)
{
    return expect_damage(t, "the header of a message of rank 1 to rank 3 was damaged on its way",
                         error);
}

static void
test_damage_is_named(void)
{
    static const int64_t header_bytes = 32;

    atomic_store(&flips, 4321);
    run_at(expect_damaged_bytes, 0);
    g_assert_cmpint(atomic_load(&flips), ==, 0);
    atomic_store(&flips, header_bytes);
    run_at(expect_damaged_header, free_port());
    g_assert_cmpint(atomic_load(&flips), ==, 0);
}

/* What every version says first (peers.c). */
static gpointer
call_as_version_1(gpointer user_data)
{
    struct {
        uint32_t magic;
        int32_t from, to, n_ranks;
        char name[64], where[256];
    } greeting = {.magic = UINT32_C(0x64677031), .from = 1, .to = 0, .n_ranks = 2, .name = "run"};
    int fd = -1;

    while ((fd = exec_addresses_connect(user_data)) < 0)
        g_usleep(1000);
    g_assert_cmpint(write(fd, &greeting, sizeof greeting), ==, sizeof greeting);
    while (read(fd, &greeting, sizeof greeting) > 0)
        ;
    close(fd);
    return NULL;
}

static void
test_another_version_is_named(void)
{
    g_autoptr(GError) error = NULL;
    ExecTransport t;
    char meeting[64];

    g_snprintf(meeting, sizeof meeting, "run@localhost:%d", free_port());
    GThread *old = g_thread_new("old", call_as_version_1, strchr(meeting, '@') + 1);
    g_assert_false(exec_peers_open(&(ExecPeersOptions){.meeting = meeting, .rank = 0, .n_ranks = 2},
                                   &t, &error));
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_FAILED);
    g_assert_cmpstr(error->message, ==,
                    "rank 1 sends messages of version 1, rank 0 those of version 2: all ranks need "
                    "the same degas");
    g_thread_join(old);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/transport-peers/large-messages-cross", test_large_messages_cross);
    g_test_add_func("/executor/transport-peers/collectives", test_collectives);
    g_test_add_func("/executor/transport-peers/abort-ends-waits", test_abort_ends_waits);
    g_test_add_func("/executor/transport-peers/strangers-are-sent-away",
                    test_strangers_are_sent_away);
    g_test_add_func("/executor/transport-peers/damage-is-named", test_damage_is_named);
    g_test_add_func("/executor/transport-peers/another-version-is-named",
                    test_another_version_is_named);
    return g_test_run();
}
