/*
 * executor/watch/watcher_state.h - what the watcher knows of its ranks, shared by watcher.c, which hears
 * and tells, and watcher_judge.c, which finds what is wrong.
 *
 * Private to both.
 */
#ifndef EXECUTOR_WATCH_WATCHER_STATE_H
#define EXECUTOR_WATCH_WATCHER_STATE_H

#include "executor/watch/starting.h"
#include "executor/watch/watch_wire.h"
#include "executor/watch/watcher.h"

G_BEGIN_DECLS

/* What a rank does that has not said more than hello. */
#define EXEC_WATCHER_PREPARATIONS "its preparations"

typedef struct {
    int fd; /* -1: not there (yet, or any more) */
    bool said_hello, done;
    ExecWatchRecord in, last; /* arriving; the last one complete */
    size_t n_in;
    int64_t heard_ns;     /* when */
    char *host, *machine; /* (owned) of the hello */
} ExecWatcherLine;

struct ExecWatcher {
    ExecWatcherOptions o;
    int listener;
    char secret[EXEC_WATCH_SECRET + 1];
    char *where;            /* (owned) */
    GArray *guests;         /* of ExecWatcherLine: connected, no hello yet */
    ExecWatcherLine *lines; /* (owned) by rank */
    ExecStarting *starting; /* (owned) by rank */
    int64_t looked_for_starting_ns;
    int32_t own_starter_pid; /* 0: another has started the ranks */
    char *machine;           /* (owned) this one: exec_watch_machine() */
    bool failed, stops;      /* the ranks have been told to end: at once; after their step */
    int64_t looked_ns;
    int64_t failure_ns; /* when a rank first said it had failed; 0: none has */
    int32_t failure_rank;
    int64_t begin_ns, first_hello_ns; /* of the watch; of any rank, 0: none yet */
};

/* Returns: (owned, nullable) what is wrong at @now_ns.  Looks for ranks that are starting. */
GError *exec_watcher_judge(ExecWatcher *watcher, int64_t now_ns);

/* A rank's line has ended without a word: it died, or it was ended because one that had not said
 * hello had died before.  Returns: (owned) */
GError *exec_watcher_death(ExecWatcher *watcher, int32_t rank);

G_END_DECLS

#endif /* EXECUTOR_WATCH_WATCHER_STATE_H */
