/*
 * cli/request/searches.h - runs many plan searches: the points of a sweep, the what-ifs of an
 * explanation, the points of a Pareto front.
 *
 * Several searches run at the same time, the heaviest first, and share the threads evenly, since
 * one search with several threads keeps them less busy than several searches do.  The plans that
 * are found do not depend on the number of threads.
 *
 * Progress is shown as one line on stderr, if that is a terminal.  On SIGINT or SIGTERM
 * (cmd_interrupt_watch()) all searches stop; a search that had not ended counts as not done.
 */
#pragma once

#include "cli/request/request.h"

/* One search; the array of searches owns it. */
typedef struct {
    Request *request; /* (owned) searches_run() sets its threads and stop */
    double weight;    /* how long it may take, relative to the others */
    bool is_done;     /* it ended, with a plan or an error */
    Plan *plan;       /* (owned, nullable) */
    Plan *so_far;     /* (owned, nullable) the best plan that a stopped search has found */
    GError *error;    /* (owned, nullable) why there is none */
} Search;

/* Returns: (owned) an array of (owned) Search *. */
GPtrArray *searches_new(void);

/* Adds a search of @request (taken).  Returns: its index. */
guint searches_add(GPtrArray *searches, Request *request, double weight);

/*
 * Runs all searches that are not done.
 * @what  names them in the progress line and in messages: "points".
 * Returns false with CMD_ERROR_INTERRUPTED; every other failure belongs to its search.
 */
bool searches_run(GPtrArray *searches, int64_t threads, const char *what, GError **error);

static inline const Search *
searches_at(const GPtrArray *searches, guint i)
{
    return (const Search *)g_ptr_array_index(searches, i);
}
