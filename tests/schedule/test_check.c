/* Tests of schedule/check.h and schedule/graph.h: edges, order, and what cannot run. */
#include "schedule/check.h"

#include <string.h>

#include "schedule/graph.h"
#include "tests/schedule/evaluate.h"

/*
 * Whether a transport that keeps order per pair of ranks (NCCL, MPI without tags) can run it: the
 * order in which a rank sends to another equals the order in which that one receives. Returns false
 * with SCHEDULE_ERROR_DEADLOCK naming the first pair out of order.
 */
static bool
check_message_order(const Schedule *schedule, GError **error)
{
    g_return_val_if_fail(schedule != NULL, false);
    g_autoptr(ScheduleGraph) graph = schedule_graph_new(schedule, error);
    if (graph == NULL)
        return false;
    /* last[a]: the newest message from rank a that the rank in hand has received, if reader[a] is
     * that rank. */
    g_autofree int64_t *last = g_new0(int64_t, (size_t)schedule->n_ranks);
    g_autofree int32_t *reader = g_new(int32_t, (size_t)schedule->n_ranks);
    memset(reader, 0xff, sizeof(int32_t) * (size_t)schedule->n_ranks);
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++)
        for (int64_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
            const int64_t sender_op = graph->producer[i];
            if (sender_op == SCHEDULE_GRAPH_NONE)
                continue;
            const int32_t sender = schedule_graph_rank(schedule, sender_op);
            if (reader[sender] == rank && last[sender] > sender_op) {
                char sent[32], before[32];
                schedule_op_name(schedule, schedule->ops[sender_op], sent);
                schedule_op_name(schedule, schedule->ops[last[sender]], before);
                g_set_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_DEADLOCK,
                            "rank %d sends the result of %s to rank %d before that of %s, but rank "
                            "%d receives it after",
                            sender, sent, rank, before, rank);
                return false;
            }
            reader[sender] = rank;
            last[sender] = sender_op;
        }
    return true;
}

static const ScheduleShape two_by_two = {2, 1, 2, 1, 0, NULL};

static Schedule *
build(const char *family, const ScheduleShape *shape)
{
    g_autoptr(GError) error = NULL;
    Schedule *schedule = schedule_new(family, shape, &error);

    g_assert_no_error(error);
    return schedule;
}

static void
test_says_what_is_wrong(void)
{
    static const struct {
        const char *ranks[2];
        int code;
        const char *message;
    } cases[] = {
        {{"F0.0 F1.0 B0.0 B1.0", "F0.0 B0.0 F1.0"},
         SCHEDULE_ERROR_INCOMPLETE,
         "rank 1: B1.0 is missing"},
        {{"F0.0 B0.0 B1.0", "F0.0 B0.0 F1.0 B1.0"},
         SCHEDULE_ERROR_INCOMPLETE,
         "rank 0: F1.0 is missing"},
        {{"F0.0 F1.0 B0.0 B1.0", "F0.0 I0.0 W0.0 F1.0 W1.0"},
         SCHEDULE_ERROR_INCOMPLETE,
         "rank 1: I1.0 is missing"},
        {{"F0.0 F1.0 F1.0 B0.0 B1.0", "F0.0 B0.0 F1.0 B1.0"},
         SCHEDULE_ERROR_INCOMPLETE,
         "rank 0: F1.0 is there twice"},
        {{"F0.0 F1.0 B0.0 I1.0 W1.0 W1.0", "F0.0 B0.0 F1.0 B1.0"},
         SCHEDULE_ERROR_INCOMPLETE,
         "rank 0: W1.0 is there twice"},
        {{"F0.0 F1.0 B0.0 B1.0 I1.0", "F0.0 B0.0 F1.0 B1.0"},
         SCHEDULE_ERROR_INCOMPLETE,
         "rank 0: I1.0 is there beside the other kind of backward"},
        {{"F0.0 F1.0 B0.0 B1.0 W1.0", "F0.0 B0.0 F1.0 B1.0"},
         SCHEDULE_ERROR_INCOMPLETE,
         "rank 0: W1.0 belongs to a B, which computes the weights' gradients itself"},
        {{"F0.0 B1.0 F1.0 B0.0", "F0.0 B0.0 F1.0 B1.0"},
         SCHEDULE_ERROR_DEADLOCK,
         "rank 0 waits in B1.0 for F1.0, which comes later in its own order"},
        {{"F0.0 F1.0 W0.0 I0.0 B1.0", "F0.0 B0.0 F1.0 B1.0"},
         SCHEDULE_ERROR_DEADLOCK,
         "rank 0 waits in W0.0 for I0.0, which comes later in its own order"},
        /* Rank 0 wants to run 0 back before it sends 1; rank 1 wants 1 first. */
        {{"F0.0 B0.0 F1.0 B1.0", "F1.0 F0.0 B0.0 B1.0"},
         SCHEDULE_ERROR_DEADLOCK,
         "deadlock: rank 0 waits in B0.0 for B0.0 of rank 1, which waits in F1.0 for F1.0 of rank "
         "0"},
        {{"F0.0 F1.0 B0.0 I1.0", "F0.0 I0.0 W0.0 F1.0 B1.0"}, 0, NULL}, /* an I without W is fine */
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Schedule) s =
            schedule_from_text(&two_by_two, SCHEDULE_PLACEMENT_LOOP, cases[i].ranks);
        const bool ok = schedule_check(s, &error);
        g_assert_cmpint(ok, ==, cases[i].message == NULL);
        if (cases[i].message == NULL)
            continue;
        g_assert_error(error, SCHEDULE_ERROR, cases[i].code);
        g_assert_cmpstr(error->message, ==, cases[i].message);
    }
}

/* The last op of a rank and the first of the next one are no pair; nor are two that share an op. */
static void
test_pairs_are_of_one_rank(void)
{
    static const char *const ranks[] = {"F0.0 F1.0 B0.0 B1.0", "F0.0 B0.0 F1.0 B1.0"};
    static const struct {
        int64_t at[2];
        bool refused;
    } cases[] = {{{1, 6}, false}, {{3, 6}, true}, {{1, 2}, true}, {{1, 7}, true}};

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Schedule) s = schedule_from_text(&two_by_two, SCHEDULE_PLACEMENT_LOOP, ranks);

        g_assert_null(s->overlap_pairs);
        s->overlap_pairs = g_array_new(FALSE, FALSE, sizeof(int64_t));
        g_array_append_vals(s->overlap_pairs, cases[i].at, 2);
        schedule_check_pairs(s, &error);
        g_assert_true((error != NULL && strstr(error->message, "is not two ops of one rank")) ==
                      cases[i].refused);
    }
}

static void
test_slices_order(void)
{
    static const ScheduleShape shape = {1, 1, 1, 2, 0, NULL};
    static const struct {
        const char *rank;
        const char *message;
    } cases[] = {
        {"F0.0s0 F0.0s1 B0.0s1 B0.0s0", NULL},
        {"F0.0s1 F0.0s0 B0.0s1 B0.0s0",
         "rank 0 waits in F0.0s1 for F0.0s0, which comes later in its own order"},
        {"F0.0s0 F0.0s1 B0.0s0 B0.0s1",
         "rank 0 waits in B0.0s0 for B0.0s1, which comes later in its own order"},
        {"F0.0s0 B0.0s0 F0.0s1 B0.0s1",
         "rank 0 waits in B0.0s0 for B0.0s1, which comes later in its own order"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Schedule) s = schedule_from_text(&shape, SCHEDULE_PLACEMENT_LOOP, &cases[i].rank);
        g_assert_cmpint(schedule_check(s, &error), ==, cases[i].message == NULL);
        g_assert_cmpstr(error == NULL ? NULL : error->message, ==, cases[i].message);
    }
}

/* A shape that claims 2^31 - 1 micro-batches costs no more than the ops that are there. */
static void
test_hostile_shape_is_cheap(void)
{
    static const char *const ranks[] = {"F0.0 B0.0 F1.0 B2.0", "F0.0 B0.0"};
    static const ScheduleShape shape = {2, 256, INT32_MAX, 65536, 0, NULL};
    static const ScheduleShape small = {2, 1, 3, 1, 0, NULL};
    g_autoptr(GError) error = NULL;
    g_autoptr(Schedule) s = schedule_from_text(&small, SCHEDULE_PLACEMENT_LOOP, ranks);

    s->n_micro_batches = (int32_t)shape.n_micro_batches;
    s->n_chunks = (int32_t)shape.n_chunks;
    s->n_slices = (int32_t)shape.n_slices;
    g_assert_false(schedule_check(s, &error));
    g_assert_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_INCOMPLETE);
    g_assert_cmpstr(error->message, ==, "rank 0: F0.0s1 is missing");
}

static void
test_out_of_shape(void)
{
    g_autoptr(Schedule) s = build("gpipe", &two_by_two);
    const ScheduleOp good = s->ops[1];
    const ScheduleOp bad[] = {
        {.micro_batch = 2}, {.micro_batch = -1}, {.chunk = 1}, {.slice = 1}, {.kind = 4}};

    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autoptr(GError) error = NULL;
        s->ops[1] = bad[i];
        g_assert_false(schedule_check(s, &error));
        g_assert_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_INCOMPLETE);
        g_assert_nonnull(strstr(error->message, "outside of the schedule's shape"));
    }
    s->ops[1] = good;
    g_assert_true(schedule_check(s, NULL));
}

/* Takes op @from out of the list and puts it back at @to, maybe on another rank. */
static void
move_op(Schedule *s, int64_t from, int64_t to, int32_t from_rank, int32_t to_rank)
{
    const ScheduleOp op = s->ops[from];

    if (from < to)
        memmove(&s->ops[from], &s->ops[from + 1], sizeof op * (size_t)(to - from));
    else
        memmove(&s->ops[to + 1], &s->ops[to], sizeof op * (size_t)(from - to));
    s->ops[to] = op;
    for (int32_t r = from_rank; r < to_rank; r++)
        s->rank_begin[r + 1]--;
    for (int32_t r = to_rank; r < from_rank; r++)
        s->rank_begin[r + 1]++;
}

/* Every mutation of a good schedule is judged as the evaluator judges it. */
static void
test_catches_mutations(void)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(11);
    int n_deadlocks = 0;

    for (int i = 0; i < 2000; i++) {
        const ScheduleShape shape = {g_rand_int_range(rand, 1, 5), 1, g_rand_int_range(rand, 1, 6),
                                     g_rand_int_range(rand, 1, 4), 0, NULL};
        g_autoptr(Schedule) s = build(i % 2 == 0 ? "1f1b" : "gpipe", &shape);
        g_autoptr(GError) error = NULL;
        const int64_t n = schedule_n_ops(s);
        const int64_t at = g_rand_int_range(rand, 0, (int32_t)n);
        const int32_t rank = schedule_graph_rank(s, at);
        int expected = SCHEDULE_ERROR_INCOMPLETE;
        switch (i % 4) {
        case 0: /* drop */
            memmove(&s->ops[at], &s->ops[at + 1], sizeof(ScheduleOp) * (size_t)(n - at - 1));
            for (int32_t r = rank; r < s->n_ranks; r++)
                s->rank_begin[r + 1]--;
            break;
        case 1: /* one op in place of another */
            if (n < 2)
                continue;
            s->ops[at] =
                s->ops[s->rank_begin[rank] + (at - s->rank_begin[rank] + 1) %
                                                 (s->rank_begin[rank + 1] - s->rank_begin[rank])];
            break;
        case 2: /* to the wrong rank */
            if (s->n_ranks == 1)
                continue;
            if (rank > 0)
                move_op(s, at, s->rank_begin[rank], rank, rank - 1);
            else
                move_op(s, at, s->rank_begin[1] - 1, 0, 1);
            break;
        default: { /* elsewhere on the same rank */
            const int64_t to = g_rand_int_range(rand, (int32_t)s->rank_begin[rank],
                                                (int32_t)s->rank_begin[rank + 1]);
            move_op(s, at, to, rank, rank);
            const Evaluation e = evaluate(s, unit_times);
            expected = e.complete ? -1 : SCHEDULE_ERROR_DEADLOCK;
            n_deadlocks += !e.complete;
        }
        }
        if (expected < 0) {
            g_assert_true(schedule_check(s, &error));
            g_assert_no_error(error);
        } else {
            g_assert_false(schedule_check(s, &error));
            g_assert_error(error, SCHEDULE_ERROR, expected);
        }
    }
    g_assert_cmpint(n_deadlocks, >, 100);
}

static void
test_graph_edges(void)
{
    /* p = 2: rank 0 is ops 0..3 (F0 F1 B0 B1), rank 1 is ops 4..7 (F0 B0 F1 B1). */
    static const int64_t producers[] = {-1, -1, 5, 7, 0, -1, 1, -1};
    static const int64_t consumers[] = {4, 6, -1, -1, -1, 2, -1, 3};
    g_autoptr(GError) error = NULL;
    g_autoptr(Schedule) s = build("1f1b", &two_by_two);
    g_autoptr(ScheduleGraph) graph = schedule_graph_new(s, &error);

    g_assert_no_error(error);
    for (int i = 0; i < 8; i++) {
        g_assert_cmpint(graph->producer[i], ==, producers[i]);
        g_assert_cmpint(graph->consumer[i], ==, consumers[i]);
        g_assert_cmpint(schedule_graph_rank(s, i), ==, i / 4);
    }
}

/* The order is a permutation in which every op follows its predecessor and its producer; and the
 * edges are as many as the neighbouring stages on different ranks say. */
static void
test_graph_order_is_topological(void)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(3);

    for (const ScheduleFamily *const *f = schedule_families(); *f != NULL; f++)
        for (int i = 0; i < 30; i++) {
            const ScheduleShape shape = {
                .n_ranks = g_rand_int_range(rand, 1, 9),
                .n_chunks = g_rand_int_range(rand, (*f)->min_chunks,
                                             MIN((*f)->max_chunks, (*f)->min_chunks + 2) + 1),
                .n_micro_batches = g_rand_int_range(rand, 1, 33),
                .n_slices = (*f)->slices ? g_rand_int_range(rand, 1, 4) : 1,
            };
            g_autoptr(Schedule) s = schedule_new((*f)->name, &shape, NULL);
            if (s == NULL)
                continue;
            g_autoptr(GError) error = NULL;
            g_autoptr(ScheduleGraph) graph = schedule_graph_new(s, &error);
            g_assert_no_error(error);
            const int64_t n = schedule_n_ops(s);
            g_autofree int64_t *place = g_new(int64_t, (size_t)n);
            for (int64_t k = 0; k < n; k++)
                place[k] = -1;
            for (int64_t k = 0; k < n; k++) {
                g_assert_cmpint(place[graph->order[k]], ==, -1);
                place[graph->order[k]] = k;
            }
            for (int64_t k = 0; k < n; k++) {
                const int64_t producer = graph->producer[k];
                const int32_t rank = schedule_graph_rank(s, k);
                if (k > s->rank_begin[rank])
                    g_assert_cmpint(place[k - 1], <, place[k]);
                if (producer == SCHEDULE_GRAPH_NONE)
                    continue;
                g_assert_cmpint(place[producer], <, place[k]);
                g_assert_cmpint(graph->consumer[producer], ==, k);
                g_assert_cmpint(schedule_graph_rank(s, producer), !=, rank);
            }
        }
}

static void
test_message_order(void)
{
    static const struct {
        const char *ranks[2];
        bool ok;
    } cases[] = {
        {{"F0.0 F1.0 B0.0 B1.0", "F0.0 B0.0 F1.0 B1.0"}, true},
        {{"F0.0 F1.0 B0.0 B1.0", "F1.0 F0.0 B0.0 B1.0"}, false},
        {{"F0.0 F1.0 B1.0 B0.0", "F0.0 F1.0 B0.0 B1.0"}, false},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Schedule) s =
            schedule_from_text(&two_by_two, SCHEDULE_PLACEMENT_LOOP, cases[i].ranks);
        g_assert_true(schedule_check(s, NULL));
        g_assert_cmpint(check_message_order(s, &error), ==, cases[i].ok);
        if (cases[i].ok)
            continue;
        g_assert_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_DEADLOCK);
        if (i == 1)
            g_assert_cmpstr(error->message, ==,
                            "rank 0 sends the result of F0.0 to rank 1 before that of F1.0, but "
                            "rank 1 receives it after");
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/schedule/check/pairs-are-of-one-rank", test_pairs_are_of_one_rank);
    g_test_add_func("/schedule/check/says-what-is-wrong", test_says_what_is_wrong);
    g_test_add_func("/schedule/check/slices-order", test_slices_order);
    g_test_add_func("/schedule/check/hostile-shape-is-cheap", test_hostile_shape_is_cheap);
    g_test_add_func("/schedule/check/out-of-shape", test_out_of_shape);
    g_test_add_func("/schedule/check/catches-mutations", test_catches_mutations);
    g_test_add_func("/schedule/check/message-order", test_message_order);
    g_test_add_func("/schedule/graph/edges", test_graph_edges);
    g_test_add_func("/schedule/graph/order-is-topological", test_graph_order_is_topological);
    return g_test_run();
}
