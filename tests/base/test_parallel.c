/* Tests of base/parallel.h: each piece is done once, by however many threads there are. */
#include "base/parallel.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#define N 1000

/* --- threads that cannot be had --- */

static int n_granted; /* how many threads may still be made; below 0: any number */

/* Stands before the C library's in the link order. */
int
pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
               void *data)
{
    static int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "pthread_create");
    if (n_granted == 0)
        return EAGAIN;
    n_granted--;
    return next(thread, attributes, start, data);
}

/* --- tests --- */

static void
count(int64_t i, void *user_data)
{
    atomic_fetch_add(&((atomic_int *)user_data)[i], 1);
}

static void
test_each_piece_is_done_once(void)
{
    static const struct {
        int64_t n, n_threads;
        int n_granted;
    } cases[] = {
        {0, 4, -1},   {1, 4, -1}, {N, 1, -1}, {N, 4, -1},
        {3, 100, -1}, {N, 0, -1}, {N, 4, 0},  {N, 4, 1},
    };

    for (size_t c = 0; c < G_N_ELEMENTS(cases); c++) {
        atomic_int done[N] = {0};

        n_granted = cases[c].n_granted;
        parallel_each(cases[c].n, cases[c].n_threads, count, done);
        for (int i = 0; i < N; i++)
            g_assert_cmpint(done[i], ==, i < cases[c].n);
    }
    n_granted = -1;
}

/* Each of two pieces waits until the other has begun. */
static void
meet(int64_t i, void *user_data)
{
    atomic_int *n_begun = user_data;

    atomic_fetch_add(n_begun, 1);
    while (atomic_load(n_begun) < 2)
        g_thread_yield();
}

static void
test_pieces_run_beside_each_other(void)
{
    atomic_int n_begun = 0;

    parallel_each(2, 2, meet, &n_begun);
    g_assert_cmpint(n_begun, ==, 2);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/base/parallel/each-piece-is-done-once", test_each_piece_is_done_once);
    g_test_add_func("/base/parallel/pieces-run-beside-each-other",
                    test_pieces_run_beside_each_other);
    return g_test_run();
}
