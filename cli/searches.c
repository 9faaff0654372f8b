#include "cli/searches.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/job.h"

/* The progress line comes when a user begins to wonder, and changes no faster than is read. */
#define PROGRESS_AFTER_US (G_USEC_PER_SEC / 2)
#define POLL_US (G_USEC_PER_SEC / 10)

typedef struct {
    Request *request; /* (owned) */
    double weight;
    bool is_done;
    Plan *plan;    /* (owned, nullable) */
    GError *error; /* (owned, nullable) */
} Search;

struct Searches {
    GPtrArray *all; /* of (owned) Search; fixed while searches run */
    GMutex mutex;   /* of what follows, and of the results */
    GCond changed;
    GPtrArray *queue; /* of (borrowed) Search, the next one last */
    guint n_done, n_running_threads;
    int64_t threads_of_search;
};

static void
search_free(void *data)
{
    Search *search = data;

    request_free(search->request);
    plan_free(search->plan);
    g_clear_error(&search->error);
    g_free(search);
}

static void
clear(void *data)
{
    Searches *searches = data;

    g_ptr_array_unref(searches->all);
    g_ptr_array_unref(searches->queue);
    g_mutex_clear(&searches->mutex);
    g_cond_clear(&searches->changed);
}

Searches *
searches_new(void)
{
    Searches *searches = g_atomic_rc_box_new0(Searches);

    searches->all = g_ptr_array_new_with_free_func(search_free);
    searches->queue = g_ptr_array_new();
    g_mutex_init(&searches->mutex);
    g_cond_init(&searches->changed);
    return searches;
}

void
searches_free(Searches *searches)
{
    if (searches != NULL)
        g_atomic_rc_box_release_full(searches, clear);
}

guint
searches_add(Searches *searches, Request *request, double weight)
{
    Search *search = g_new0(Search, 1);

    search->request = request;
    search->weight = weight;
    g_ptr_array_add(searches->all, search);
    return searches->all->len - 1;
}

guint
searches_n(const Searches *searches)
{
    return searches->all->len;
}

/* --- interruption --- */

static volatile sig_atomic_t is_interrupted;

static void
note_signal(int number)
{
    is_interrupted = 1;
    signal(number, SIG_DFL); /* a second one ends the program */
}

/* A signal that the parent has us ignore stays ignored. */
static void
catch_signal(int number, struct sigaction *old)
{
    struct sigaction action = {.sa_handler = note_signal, .sa_flags = SA_RESTART};

    sigemptyset(&action.sa_mask);
    sigaction(number, NULL, old);
    if (old->sa_handler != SIG_IGN)
        sigaction(number, &action, NULL);
}

/* --- workers --- */

static gpointer
work(gpointer data)
{
    Searches *searches = data;

    g_mutex_lock(&searches->mutex);
    while (searches->queue->len > 0) {
        Search *search = g_ptr_array_steal_index(searches->queue, searches->queue->len - 1);
        GError *error = NULL;

        search->request->plan.threads = searches->threads_of_search;
        g_mutex_unlock(&searches->mutex);
        Plan *plan = plan_search(&search->request->plan, job_evaluate, NULL, &error);
        g_mutex_lock(&searches->mutex);
        search->plan = plan;
        search->error = error;
        search->is_done = true;
        searches->n_done++;
        g_cond_signal(&searches->changed);
    }
    searches->n_running_threads--;
    g_cond_signal(&searches->changed);
    g_mutex_unlock(&searches->mutex);
    searches_free(searches);
    return NULL;
}

/* The lightest first, equal ones the last first: workers take from the end. */
static int
compare_weights(const void *a, const void *b)
{
    const Search *x = *(const Search *const *)a, *y = *(const Search *const *)b;

    return x->weight < y->weight ? -1 : x->weight > y->weight;
}

static void
fill_queue(Searches *searches)
{
    g_ptr_array_set_size(searches->queue, 0);
    for (guint i = searches->all->len; i-- > 0;) {
        Search *search = searches->all->pdata[i];

        if (!search->is_done)
            g_ptr_array_add(searches->queue, search);
    }
    g_ptr_array_sort(searches->queue, compare_weights); /* stable: a merge sort */
}

static void
print_progress(const Searches *searches, const char *what, gint64 since_us, bool *is_shown)
{
    const gint64 elapsed_us = g_get_monotonic_time() - since_us;

    if (!isatty(STDERR_FILENO) || elapsed_us < PROGRESS_AFTER_US)
        return;
    fprintf(stderr, "\rsearching: %u of %u %s, %.0f s\033[K", searches->n_done, searches->all->len,
            what, (double)elapsed_us / G_USEC_PER_SEC);
    fflush(stderr);
    *is_shown = true;
}

/* Returns when all threads ended, or at once when interrupted.  The mutex is held. */
static void
wait_for_end(Searches *searches, const char *what)
{
    const gint64 since_us = g_get_monotonic_time();
    bool is_shown = false;

    while (searches->n_running_threads > 0 && !is_interrupted) {
        g_cond_wait_until(&searches->changed, &searches->mutex, g_get_monotonic_time() + POLL_US);
        print_progress(searches, what, since_us, &is_shown);
    }
    if (is_shown)
        fputs("\r\033[K", stderr);
}

bool
searches_run(Searches *searches, int64_t threads, const char *what, GError **error)
{
    struct sigaction old_int, old_term;
    bool done;

    is_interrupted = 0;
    catch_signal(SIGINT, &old_int);
    catch_signal(SIGTERM, &old_term);
    g_mutex_lock(&searches->mutex);
    fill_queue(searches);
    const guint n_workers = (guint)CLAMP(threads, 1, (int64_t)MAX(searches->queue->len, 1));
    searches->threads_of_search = MAX(1, threads / n_workers);
    searches->n_running_threads = n_workers;
    for (guint i = 0; i < n_workers; i++) {
        GThread *thread = g_thread_try_new("search", work, g_atomic_rc_box_acquire(searches), NULL);

        if (thread != NULL) {
            g_thread_unref(thread);
        } else {
            searches->n_running_threads--;
            g_atomic_rc_box_release(searches);
        }
    }
    if (searches->n_running_threads == 0) {
        g_mutex_unlock(&searches->mutex);
        work(g_atomic_rc_box_acquire(searches)); /* no thread can be had: this one does it */
        g_mutex_lock(&searches->mutex);
    }
    wait_for_end(searches, what);
    g_ptr_array_set_size(searches->queue, 0);
    done = searches->n_done == searches->all->len;
    if (!done)
        g_set_error(error, CMD_ERROR, CMD_ERROR_INTERRUPTED, "interrupted after %u of %u %s",
                    searches->n_done, searches->all->len, what);
    g_mutex_unlock(&searches->mutex);
    sigaction(SIGINT, &old_int, NULL);
    sigaction(SIGTERM, &old_term, NULL);
    return done;
}

/* --- results --- */

static const Search *
locked_search(Searches *searches, guint i)
{
    const Search *search;

    g_mutex_lock(&searches->mutex);
    search = searches->all->pdata[i];
    return search;
}

bool
searches_is_done(Searches *searches, guint i)
{
    const bool is_done = locked_search(searches, i)->is_done;

    g_mutex_unlock(&searches->mutex);
    return is_done;
}

const Plan *
searches_plan(Searches *searches, guint i)
{
    const Plan *plan = locked_search(searches, i)->plan;

    g_mutex_unlock(&searches->mutex);
    return plan;
}

const GError *
searches_error(Searches *searches, guint i)
{
    const GError *failure = locked_search(searches, i)->error;

    g_mutex_unlock(&searches->mutex);
    return failure;
}

const Request *
searches_request(const Searches *searches, guint i)
{
    return ((const Search *)searches->all->pdata[i])->request;
}
