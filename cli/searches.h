/*
 * cli/searches.h - many plan searches: the points of a sweep, the what-ifs of an explanation.
 *
 * Searches run beside each other, the heaviest first, each with its share of the threads: a search
 * alone keeps several threads less busy than several searches do.  What is found does not depend on
 * that.
 *
 * Progress is one line on stderr, if that is a terminal.  On SIGINT or SIGTERM searches_run()
 * returns at once; what is done stays readable, what is under way goes on until the process ends.
 * So everything that a search reads is owned here and shared by reference counts.
 */
#ifndef CLI_SEARCHES_H
#define CLI_SEARCHES_H

#include "cli/request.h"

G_BEGIN_DECLS

/* Opaque; see searches.c. */
typedef struct Searches Searches;

Searches *searches_new(void);
void searches_free(Searches *searches);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Searches, searches_free)

/*
 * @request  (taken); its number of threads is set when it runs.
 * @weight   how long it may take, against others.
 * Returns: the search's index.  Not to be called while searches run.
 */
guint searches_add(Searches *searches, Request *request, double weight);

guint searches_n(const Searches *searches);

/*
 * Runs all that were added and are not done.  @what names them for the progress line ("points").
 * Returns false with CMD_ERROR_INTERRUPTED; every other failure belongs to its search.
 */
bool searches_run(Searches *searches, int64_t threads, const char *what, GError **error);

/* Whether search @i came to its end, with a plan or an error. */
bool searches_is_done(Searches *searches, guint i);
/* (borrowed, nullable) the plan found; NULL: none exists, or the search is not done. */
const Plan *searches_plan(Searches *searches, guint i);
/* (borrowed, nullable) why there is none. */
const GError *searches_error(Searches *searches, guint i);
/* (borrowed) */
const Request *searches_request(const Searches *searches, guint i);

G_END_DECLS

#endif /* CLI_SEARCHES_H */
