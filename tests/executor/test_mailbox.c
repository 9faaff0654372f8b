/* Tests of executor/transport/mailbox.h by the slots of executor/transport/transport.h (local):
 * messages that are lent, and places that await them. */
#include <string.h>

#include "executor/transport/transport.h"
#include "executor/transport/local.h"

enum {
    N = 1 << 18, /* bytes of a message */
};

/* Bytes that depend on place and @seed. */
static void
fill(char *data, int64_t n_bytes, int seed)
{
    for (int64_t i = 0; i < n_bytes; i++)
        data[i] = (char)(i * 7 + (int64_t)seed * 31 + i / 251);
}

static void
check(const char *data, int64_t n_bytes, int seed)
{
    g_autofree char *expect = g_malloc((size_t)n_bytes);

    fill(expect, n_bytes, seed);
    g_assert_cmpint(memcmp(data, expect, (size_t)n_bytes), ==, 0);
}

typedef struct {
    ExecLocalHub *hub; /* (owned) */
    ExecTransport a, b;
    char *from, *to; /* (owned) of two messages */
} Pair;

static void
pair_init(Pair *pair, double timeout_s)
{
    pair->hub = exec_local_hub_new(2, timeout_s);
    pair->a = exec_local_transport(pair->hub, 0);
    pair->b = exec_local_transport(pair->hub, 1);
    pair->from = g_malloc((size_t)2 * N);
    pair->to = g_malloc0((size_t)2 * N);
    fill(pair->from, N, 1);
    fill(pair->from + N, N, 2);
}

static void
pair_clear(Pair *pair)
{
    g_free(pair->from);
    g_free(pair->to);
    g_clear_pointer(&pair->hub, exec_local_hub_free);
}

/* --- every order --- */

/* Two messages of one tag, in which order whatever happens: 'l' lends the next one, 's' sends it,
 * 'e' expects the next one in its place, 'r' receives the next one. */
static void
play(const char *script)
{
    g_autoptr(GError) error = NULL;
    Pair pair;
    int n_given = 0, n_expected = 0, n_received = 0;

    pair_init(&pair, 5);
    ExecTransport *a = &pair.a, *b = &pair.b;
    for (const char *at = script; *at != 0; at++) {
        bool ok = false;
        if (*at == 'l')
            ok = a->ops->lend(a, 1, 3, pair.from + N * n_given++, N, &error);
        else if (*at == 's')
            ok = a->ops->send(a, 1, 3, pair.from + N * n_given++, N, &error);
        else if (*at == 'e')
            ok = b->ops->expect(b, 0, 3, pair.to + N * n_expected++, N, &error);
        else
            ok = b->ops->receive(b, 0, 3, pair.to + N * n_received++, N, &error);
        g_assert_no_error(error);
        g_assert_true(ok);
    }
    g_assert_cmpint(n_received, ==, 2);
    check(pair.to, N, 1);
    check(pair.to + N, N, 2);
    g_assert_true(a->ops->regain(a, NULL, 0, &error));
    pair_clear(&pair);
}

static void
test_comes_in_order_whoever_is_first(void)
{
    static const char *const scripts[] = {
        "lelerr", "elelrr", "eellrr", "lleerr", "lerler", /* lent and awaited */
        "llrr",   "lrlr",                                 /* lent, received at once */
        "sesrer", "eessrr", "sseerr", "elsrer",           /* copied where nobody waits */
        "lserer", "sleerr", "esrelr",
    };

    for (size_t i = 0; i < G_N_ELEMENTS(scripts); i++)
        play(scripts[i]);
}

static void
test_lent_messages_take_no_memory(void)
{
    g_autoptr(GError) error = NULL;
    Pair pair;

    pair_init(&pair, 5);
    ExecTransport *a = &pair.a, *b = &pair.b;
    g_assert_true(a->ops->lend(a, 1, 0, pair.from, N, &error));
    g_assert_true(b->ops->expect(b, 0, 0, pair.to, N, &error));
    g_assert_true(b->ops->expect(b, 0, 1, pair.to + N, N, &error));
    g_assert_true(a->ops->lend(a, 1, 1, pair.from + N, N, &error));
    g_assert_true(b->ops->receive(b, 0, 0, pair.to, N, &error));
    g_assert_true(b->ops->receive(b, 0, 1, pair.to + N, N, &error));
    g_assert_cmpint(b->ops->buffer_bytes(b), ==, 0);
    /* A copy does, once. */
    for (int i = 0; i < 2; i++) {
        g_assert_true(a->ops->send(a, 1, 0, pair.from, N, &error));
        g_assert_true(b->ops->receive(b, 0, 0, pair.to, N, &error));
        g_assert_cmpint(b->ops->buffer_bytes(b), ==, N);
    }
    pair_clear(&pair);
}

static void
test_another_length_is_an_error(void)
{
    static const char *const names[] = {"expected first", "lent first"};

    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autoptr(GError) error = NULL;
        Pair pair;
        pair_init(&pair, 1);
        ExecTransport *a = &pair.a, *b = &pair.b;
        if (i == 0)
            g_assert_true(b->ops->expect(b, 0, 0, pair.to, 12, &error));
        g_assert_true(a->ops->lend(a, 1, 0, pair.from, 8, &error));
        if (i == 1)
            g_assert_true(b->ops->expect(b, 0, 0, pair.to, 12, &error));
        g_assert_false(b->ops->receive(b, 0, 0, pair.to, 12, &error));
        g_assert_error(error, EXEC_ERROR, EXEC_ERROR_FAILED);
        g_assert_cmpstr(error->message, ==, "rank 1 expected 12 bytes of rank 0, got 8");
        pair_clear(&pair);
    }
}

/* --- what is lent comes back --- */

static gpointer
expect_late(gpointer user_data)
{
    Pair *pair = user_data;
    ExecTransport *b = &pair->b;

    g_usleep(30000);
    g_assert_true(b->ops->expect(b, 0, 0, pair->to, N, NULL));
    return NULL;
}

static void
test_regain_waits_for_the_receiver(void)
{
    g_autoptr(GError) error = NULL;
    Pair pair;

    pair_init(&pair, 5);
    ExecTransport *a = &pair.a, *b = &pair.b;
    g_assert_true(a->ops->lend(a, 1, 0, pair.from, N, &error));
    /* Of other bytes there is nothing to wait for. */
    g_assert_true(a->ops->regain(a, pair.from + N, N, &error));
    g_assert_cmpint(a->waited_ns, ==, 0);
    GThread *thread = g_thread_new("late", expect_late, &pair);
    g_assert_true(a->ops->regain(a, pair.from + N - 1, N, &error));
    g_assert_no_error(error);
    g_assert_cmpint(a->waited_ns, >, 10000000);
    fill(pair.from, N, 9); /* ours again */
    g_thread_join(thread);
    g_assert_true(b->ops->receive(b, 0, 0, pair.to, N, &error));
    check(pair.to, N, 1);
    pair_clear(&pair);
}

static void
test_regain_ends_at_the_limit(void)
{
    g_autoptr(GError) error = NULL;
    Pair pair;

    pair_init(&pair, 0.05);
    ExecTransport *a = &pair.a;
    g_assert_true(a->ops->lend(a, 1, 0, pair.from, N, &error));
    g_assert_false(a->ops->regain(a, NULL, 0, &error));
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_RANK_HUNG);
    g_assert_nonnull(strstr(error->message, "rank 1"));
    pair_clear(&pair);
}

/* After withdraw() the memory of both sides may go: messages of the other are for nobody. */
static void
test_withdrawn_memory_is_not_touched(void)
{
    g_autoptr(GError) error = NULL;
    Pair pair;

    pair_init(&pair, 0.05);
    ExecTransport *a = &pair.a, *b = &pair.b;
    g_assert_true(a->ops->lend(a, 1, 0, pair.from, N, &error));
    g_assert_true(a->ops->lend(a, 1, 1, pair.from, N, &error));
    g_assert_true(b->ops->expect(b, 0, 2, pair.to, N, &error));
    a->ops->withdraw(a);
    b->ops->withdraw(b);
    memset(pair.from, 5, N);
    g_assert_true(a->ops->send(a, 1, 2, pair.from, N, &error)); /* kept as a copy */
    g_assert_cmpint(pair.to[0], ==, 0);
    g_assert_true(a->ops->regain(a, NULL, 0, &error));
    g_assert_true(b->ops->expect(b, 0, 0, pair.to, N, &error));
    g_assert_false(b->ops->receive(b, 0, 0, pair.to, N, &error));
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_RANK_HUNG);
    g_assert_cmpint(pair.to[0], ==, 0);
    pair_clear(&pair);
}

/* --- at the same time --- */

enum {
    ROUNDS = 400,
    AHEAD = 3,
    SMALL = 4096,
};

/* Each lends AHEAD rounds ahead of what it receives, from buffers that it takes back. */
static gpointer
exchange(gpointer user_data)
{
    ExecTransport *t = user_data;
    const int32_t other = 1 - t->rank;
    g_autofree char *from = g_malloc((size_t)SMALL * (AHEAD + 1));
    g_autofree char *to = g_malloc((size_t)SMALL * (AHEAD + 1));
    g_autoptr(GRand) random = g_rand_new_with_seed((guint32)t->rank);

    for (int round = 0; round < ROUNDS + AHEAD; round++) {
        char *lent = from + round % (AHEAD + 1) * SMALL;
        char *place = to + round % (AHEAD + 1) * SMALL;
        if (round < ROUNDS) {
            g_assert_true(t->ops->regain(t, lent, SMALL, NULL));
            fill(lent, SMALL, round);
            g_assert_true(t->ops->expect(t, other, 0, place, SMALL, NULL));
            g_assert_true(t->ops->lend(t, other, 0, lent, SMALL, NULL));
        }
        if (g_rand_int_range(random, 0, 8) == 0)
            g_usleep(100);
        if (round < AHEAD)
            continue;
        place = to + (round - AHEAD) % (AHEAD + 1) * SMALL;
        g_assert_true(t->ops->receive(t, other, 0, place, SMALL, NULL));
        check(place, SMALL, round - AHEAD);
    }
    g_assert_cmpint(t->ops->buffer_bytes(t), ==, 0);
    t->ops->withdraw(t);
    return NULL;
}

static void
test_both_sides_at_once(void)
{
    g_autoptr(ExecLocalHub) hub = exec_local_hub_new(2, 20);
    ExecTransport a = exec_local_transport(hub, 0), b = exec_local_transport(hub, 1);
    GThread *threads[] = {g_thread_new("a", exchange, &a), g_thread_new("b", exchange, &b)};

    for (size_t i = 0; i < G_N_ELEMENTS(threads); i++)
        g_thread_join(threads[i]);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/mailbox/comes-in-order-whoever-is-first",
                    test_comes_in_order_whoever_is_first);
    g_test_add_func("/executor/mailbox/lent-messages-take-no-memory",
                    test_lent_messages_take_no_memory);
    g_test_add_func("/executor/mailbox/another-length-is-an-error",
                    test_another_length_is_an_error);
    g_test_add_func("/executor/mailbox/regain-waits-for-the-receiver",
                    test_regain_waits_for_the_receiver);
    g_test_add_func("/executor/mailbox/regain-ends-at-the-limit", test_regain_ends_at_the_limit);
    g_test_add_func("/executor/mailbox/withdrawn-memory-is-not-touched",
                    test_withdrawn_memory_is_not_touched);
    g_test_add_func("/executor/mailbox/both-sides-at-once", test_both_sides_at_once);
    return g_test_run();
}
