#include "cli/request/searches.h"

#include <stdio.h>
#include <unistd.h>

#include "cli/request/command.h"
#include "cli/request/job.h"

/* The progress line comes when a user begins to wonder, and changes no faster than is read. */
#define PROGRESS_AFTER_US (G_USEC_PER_SEC / 2)
#define PROGRESS_EVERY_US (G_USEC_PER_SEC / 5)

/* What the workers share. */
typedef struct {
    GMutex mutex;
    GCond changed;
    GPtrArray *queue; /* of (borrowed) Search, the next one last */
    guint n_done, n_threads;
    int64_t threads; /* of each search */
    const int *stop;
} Work;

static void
search_free(void *data)
{
    Search *search = data;

    request_free(search->request);
    plan_free(search->plan);
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

static void
run_search(Search *search, const Work *work)
{
    search->request->plan.threads = work->threads;
    search->request->plan.stop = work->stop;
    search->plan = plan_search(&search->request->plan, job_evaluate, NULL, &search->error);
    /* What was stopped is no answer. */
    search->is_done = g_atomic_int_get(work->stop) == 0;
    if (!search->is_done) {
        plan_free(g_steal_pointer(&search->plan));
        g_clear_error(&search->error);
    }
}

static gpointer
run_worker(gpointer data)
{
    Work *work = data;

    g_mutex_lock(&work->mutex);
    while (work->queue->len > 0 && g_atomic_int_get(work->stop) == 0) {
        Search *search = g_ptr_array_steal_index(work->queue, work->queue->len - 1);

        g_mutex_unlock(&work->mutex);
        run_search(search, work);
        g_mutex_lock(&work->mutex);
        work->n_done += search->is_done;
    }
    work->n_threads--;
    g_cond_signal(&work->changed);
    g_mutex_unlock(&work->mutex);
    return NULL;
}

/* The lightest first, since workers take from the end; of equal ones the last. */
static int
compare_weights(const void *a, const void *b)
{
    const Search *x = *(const Search *const *)a, *y = *(const Search *const *)b;

    return x->weight < y->weight ? -1 : x->weight > y->weight;
}

static GPtrArray *
queue_new(const GPtrArray *searches)
{
    GPtrArray *queue = g_ptr_array_new();

    for (guint i = searches->len; i-- > 0;) {
        Search *search = g_ptr_array_index(searches, i);

        if (!search->is_done)
            g_ptr_array_add(queue, search);
    }
    g_ptr_array_sort(queue, compare_weights); /* stable */
    return queue;
}

/* Returns when all workers ended.  The mutex is held. */
static void
wait_for_workers(Work *work, guint n, const char *what)
{
    const gint64 since_us = g_get_monotonic_time();
    bool is_shown = false;

    while (work->n_threads > 0) {
        const gint64 now_us = g_get_monotonic_time();

        if (isatty(STDERR_FILENO) && now_us - since_us > PROGRESS_AFTER_US) {
            fprintf(stderr, "\rsearching: %u of %u %s, %.0f s\033[K", work->n_done, n, what,
                    (double)(now_us - since_us) / G_USEC_PER_SEC);
            fflush(stderr);
            is_shown = true;
        }
        g_cond_wait_until(&work->changed, &work->mutex, now_us + PROGRESS_EVERY_US);
    }
    if (is_shown)
        fputs("\r\033[K", stderr);
}

static void
run_threads(Work *work, guint n, const char *what)
{
    const guint n_threads = work->n_threads;
    GThread **workers = g_new0(GThread *, n_threads);

    /* A thread that cannot be had is not needed: without any, this one does the work. */
    for (guint i = 0; i < n_threads; i++)
        workers[i] = g_thread_try_new("search", run_worker, work, NULL);
    g_mutex_lock(&work->mutex);
    for (guint i = 0; i < n_threads; i++)
        work->n_threads -= workers[i] == NULL;
    wait_for_workers(work, n, what);
    work->n_threads++;
    g_mutex_unlock(&work->mutex);
    run_worker(work);
    for (guint i = 0; i < n_threads; i++)
        if (workers[i] != NULL)
            g_thread_join(workers[i]);
    g_free(workers);
}

bool
searches_run(GPtrArray *searches, int64_t threads, const char *what, GError **error)
{
    g_autoptr(GPtrArray) queue = queue_new(searches);
    const guint n = queue->len;
    Work work = {
        .queue = queue,
        .n_threads = (guint)CLAMP(threads, 1, (int64_t)MAX(n, 1)),
        .stop = cmd_interrupt_watch(),
    };

    work.threads = MAX(1, threads / work.n_threads);
    g_mutex_init(&work.mutex);
    g_cond_init(&work.changed);
    run_threads(&work, n, what);
    g_mutex_clear(&work.mutex);
    g_cond_clear(&work.changed);
    if (work.n_done < n)
        g_set_error(error, CMD_ERROR, CMD_ERROR_INTERRUPTED, "interrupted after %u of %u %s",
                    work.n_done, n, what);
    return work.n_done == n;
}
