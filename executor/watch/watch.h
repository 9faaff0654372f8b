/*
 * executor/watch/watch.h - who hangs, among ranks that wait for one another.
 *
 * Every rank publishes how long it has not moved and for whom it waits.  A rank that waits is
 * innocent: the culprit is at the end of its chain of waits, the earliest op whose inputs are there
 * and which has not ended.  Knows nothing of threads, processes or sockets.
 *
 * Private to executor/.
 */
#ifndef EXECUTOR_WATCH_WATCH_H
#define EXECUTOR_WATCH_WATCH_H

#include "executor/transport/transport.h"

G_BEGIN_DECLS

/* One rank at one moment. */
typedef struct {
    bool ended;
    int64_t idle_ns;     /* since it last began something or a wait of it ended */
    int32_t waiting_for; /* as ExecTransportOps.waiting_for */
} ExecWatched;

typedef struct {
    int32_t culprit;
    int32_t
        waiter;  /* a rank that waits for it, however indirectly; the culprit itself: none known */
    bool circle; /* everybody waits: the culprit is one of the circle */
} ExecHung;

/* Whether a rank has not moved for more than @limit_ns, and by whose fault. */
bool exec_watch_find_hung(const ExecWatched *ranks, int32_t n_ranks, int64_t limit_ns,
                          ExecHung *hung);

/* Returns: (owned) EXEC_ERROR_RANK_HUNG: "rank 4 hangs in B1.0 of step 1 for 2.0 s; rank 5 waits
 * for it".  @who  "rank 4" or more about it. */
GError *exec_watch_hung_error(const ExecHung *hung, const char *who, const char *doing,
                              int64_t idle_ns);

G_END_DECLS

#endif /* EXECUTOR_WATCH_WATCH_H */
