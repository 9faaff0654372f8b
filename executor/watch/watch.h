/*
 * executor/watch/watch.h - finds the rank that hangs among ranks that wait for one another.
 *
 * The room executor/watch/ is for everything around a run's ranks: it starts them as processes,
 * notices that one died or hangs, and ends the others.  MPI itself notices a dead rank only after
 * seconds, and one that hangs never.  Only executor/run/, executor/measure/, cli/ and tests come
 * in.
 *
 *   watch.h     who is to blame for a standstill; ranks may be threads or processes
 *   launch.h    which rank of a job this process is; starting a job's processes and ending them
 *   watcher.h   the process that hears from all ranks, and judges
 *   member.h    what a rank tells its watcher and hears from it
 *   starting.h  ranks that have not connected yet, as the system's table of processes shows them
 *
 * Every rank computes in one thread and tells the watcher from another, several times a second,
 * what it does, for how long it has not moved, and for whom it waits.  The first trouble ends all
 * ranks and is printed once.  Ranks that are threads (transport local) need no watcher: the thread
 * that started them asks exec_watch_find_hung() itself.
 *
 * A rank that waits is innocent.  The culprit stands at the end of the chain of waits: it runs the
 * earliest op whose inputs have arrived and which has not ended.
 */
#pragma once

#include "executor/transport/transport.h"

/* How long a rank may not move before the first steps have shown how long a step takes.  The first
 * step may be of a large model, and nothing is known of it; ten minutes end even such a run. */
#define EXEC_WATCH_FIRST_LIMIT_NS (INT64_C(600) * 1000000000)

/* Whoever watches looks at least ten times a second.  When it finds that it has not looked for so
 * long, it was stopped itself (Ctrl-Z stops the whole job), and the time does not count as silence
 * of the ranks. */
#define EXEC_WATCH_OWN_PAUSE_NS INT64_C(1000000000)

/* One rank at one moment. */
typedef struct {
    bool ended;
    int64_t idle_ns;     /* since it last began an op, or last got what it waited for */
    int32_t waiting_for; /* a rank, or a value below 0 as in ExecTransportOps.waiting_for */
} ExecWatched;

typedef struct {
    int32_t culprit;
    int32_t waiter; /* a rank that waits for the culprit, maybe through others; the culprit itself
                     * where no such rank is known */
    bool circle;    /* every rank waits: the culprit is one rank of a circle of waits */
} ExecHung;

/*
 * Returns whether a rank has not moved for more than @limit_ns, and whose fault it is.
 *
 * @hung  (out) is valid only when the answer is true.
 */
bool exec_watch_find_hung(const ExecWatched *ranks, int32_t n_ranks, int64_t limit_ns,
                          ExecHung *hung);

/*
 * Returns: (owned) EXEC_ERROR_RANK_HUNG: "rank 4 hangs in B1.0 of step 1 for 2.0 s; rank 5 waits
 * for it".
 *
 * @who    the culprit in words: "rank 4", or more about it
 * @doing  what it does: "B1.0 of step 1"
 */
GError *exec_watch_hung_error(const ExecHung *hung, const char *who, const char *doing,
                              int64_t idle_ns);
