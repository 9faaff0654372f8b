/*
 * cli/request/searches.h - many plan searches: the points of a sweep, the what-ifs of an
 * explanation.
 *
 * Searches run beside each other, the heaviest first, each with its share of the threads: one
 * search keeps several threads less busy than several searches do.  What is found does not depend
 * on that.
 *
 * Progress is one line on stderr, if that is a terminal.  On SIGINT or SIGTERM
 * (cmd_interrupt_watch()) all searches stop; those that were not at their end count as not done.
 */
#ifndef CLI_REQUEST_SEARCHES_H
#define CLI_REQUEST_SEARCHES_H

#include "cli/request/request.h"

G_BEGIN_DECLS

/* One of them, owned by whoever runs them. */
typedef struct {
    Request *request; /* (owned); threads and stop are set when it runs */
    double weight;    /* how long it may take, against others */
    bool is_done;     /* it came to its end, with a plan or an error */
    Plan *plan;       /* (owned, nullable) */
    GError *error;    /* (owned, nullable) why there is none */
} Search;

/* Returns: (owned) an array of (owned) Search *. */
GPtrArray *searches_new(void);

/* Adds one and returns its index.  @request (taken). */
guint searches_add(GPtrArray *searches, Request *request, double weight);

/*
 * Runs all that are not done.  @what names them in the progress line and in messages ("points").
 * Returns false with CMD_ERROR_INTERRUPTED; every other failure belongs to its search.
 */
bool searches_run(GPtrArray *searches, int64_t threads, const char *what, GError **error);

static inline const Search *
searches_at(const GPtrArray *searches, guint i)
{
    return (const Search *)g_ptr_array_index(searches, i);
}

G_END_DECLS

#endif /* CLI_REQUEST_SEARCHES_H */
