#include "cli/request/searches.h"

#include <stdio.h>
#include <unistd.h>

#include "base/order.h"
#include "cli/request/command.h"
#include "cli/request/job.h"

/* The progress line comes when a user begins to wonder, and changes no faster than is read. */
#define PROGRESS_AFTER_US (G_USEC_PER_SEC / 2)
#define PROGRESS_EVERY_US (G_USEC_PER_SEC / 5)

/* What the searches share. */
typedef struct {
    GAsyncQueue *ended; /* of (borrowed) Search, done or stopped */
    int64_t threads;    /* of each search */
    const int *stop;
} Work;

static void
search_free(void *data)
{
    Search *search = data;

    request_free(search->request);
    plan_free(search->plan);
    plan_free(search->so_far);
    g_clear_error(&search->error);
    g_free(search);
}

GPtrArray *
searches_new(void)
{
    return g_ptr_array_new_with_free_func(search_free);
}

guint
searches_add(GPtrArray *searches, Request *request, double weight)
{
    Search *search = g_new0(Search, 1);

    search->request = request;
    search->weight = weight;
    g_ptr_array_add(searches, search);
    return searches->len - 1;
}

/* A GFunc of the pool. */
static void
run_search(void *data, void *user_data)
{
    Search *search = data;
    const Work *work = user_data;

    if (g_atomic_int_get(work->stop) == 0) {
        search->request->plan.threads = work->threads;
        search->request->plan.stop = work->stop;
        search->plan = plan_search(&search->request->plan, job_evaluate, NULL, &search->error);
    }
    /* What was stopped is no answer. */
    search->is_done = g_atomic_int_get(work->stop) == 0;
    if (!search->is_done) {
        plan_free(search->so_far);
        search->so_far = g_steal_pointer(&search->plan);
        g_clear_error(&search->error);
    }
    g_async_queue_push(work->ended, search);
}

/* The heaviest first. */
static int
compare_weights(const void *a, const void *b)
{
    const Search *x = *(const Search *const *)a, *y = *(const Search *const *)b;

    return ORDER(y->weight, x->weight);
}

static GPtrArray *
queue_new(const GPtrArray *searches)
{
    GPtrArray *queue = g_ptr_array_new();

    for (guint i = 0; i < searches->len; i++)
        if (!searches_at(searches, i)->is_done)
            g_ptr_array_add(queue, g_ptr_array_index(searches, i));
    g_ptr_array_sort(queue, compare_weights); /* stable */
    return queue;
}

/* Waits until @n searches have ended.  Returns: how many of them are done. */
static guint
wait_for_searches(const Work *work, guint n, const char *what)
{
    const gint64 since_us = g_get_monotonic_time();
    gint64 next_us = since_us + PROGRESS_AFTER_US;
    bool is_shown = false;
    guint n_done = 0;

    for (guint n_ended = 0; n_ended < n;) {
        const Search *search = g_async_queue_timeout_pop(work->ended, PROGRESS_EVERY_US);
        const gint64 now_us = g_get_monotonic_time();

        n_ended += search != NULL;
        n_done += search != NULL && search->is_done;
        if (isatty(STDERR_FILENO) && now_us > next_us) {
            g_autofree char *share =
                n > 1 ? g_strdup_printf(": %u of %u %s", n_done, n, what) : g_strdup("");
            fprintf(stderr, "\rsearching%s, %.0f s\033[K", share,
                    (double)(now_us - since_us) / G_USEC_PER_SEC);
            fflush(stderr);
            next_us = now_us + PROGRESS_EVERY_US;
            is_shown = true;
        }
    }
    if (is_shown)
        fputs("\r\033[K", stderr);
    return n_done;
}

bool
searches_run(GPtrArray *searches, int64_t threads, const char *what, GError **error)
{
    g_autoptr(GPtrArray) queue = queue_new(searches);
    g_autoptr(GAsyncQueue) ended = g_async_queue_new();
    const guint n = queue->len;
    const gint n_threads = (gint)CLAMP(threads, 1, (int64_t)MAX(n, 1));
    Work work = {
        .ended = ended,
        .threads = MAX(1, threads / n_threads),
        .stop = cmd_interrupt_watch(),
    };
    /* A thread that cannot be had is not needed: without any, this one does the work. */
    GThreadPool *pool = g_thread_pool_new(run_search, &work, n_threads, TRUE, NULL);
    const bool has_threads = g_thread_pool_get_num_threads(pool) > 0;

    for (guint i = 0; i < n; i++) {
        if (has_threads)
            g_thread_pool_push(pool, g_ptr_array_index(queue, i), NULL);
        else
            run_search(g_ptr_array_index(queue, i), &work);
    }
    const guint n_done = wait_for_searches(&work, n, what);
    g_thread_pool_free(pool, FALSE, TRUE);
    if (n_done < n)
        g_set_error(error, CMD_ERROR, CMD_ERROR_INTERRUPTED, "interrupted after %u of %u %s",
                    n_done, n, what);
    return n_done == n;
}
