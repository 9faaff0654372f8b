/*
 * executor/watch/mpirun.h - the process that starts the ranks of a run: mpirun, or, where there is no
 * MPI, our own starter in its place; and what it and the ranks write.
 *
 * Private to executor/watch/launch.c and mpirun.c.  Thread-safety: none.
 */
#ifndef EXECUTOR_WATCH_MPIRUN_H
#define EXECUTOR_WATCH_MPIRUN_H

#include "executor/watch/launch.h"

G_BEGIN_DECLS

typedef struct {
    const char *transport, *name; /* (borrowed) for messages */
    GPid pid;
    int out, err; /* -1: closed */
    bool ended;
    int status;         /* wait's, once it has ended */
    int64_t stopped_ns; /* since when it is known to be stopped (SIGSTOP); 0: it is not */
    GString *output;    /* (borrowed) */
    GString *noise;     /* (owned) the beginning of stderr that is not the ranks' */
    GString *line;      /* (owned) of stderr, incomplete */
    GPtrArray *notes;   /* (owned) lines "degas: ...", without that */
    char *scratch; /* (owned, nullable) of this run alone, for what Open MPI shares in memory */
} ExecMpirun;

/* Nothing is started yet.  @output  (borrowed) receives what the ranks write to standard output. */
void exec_mpirun_init(ExecMpirun *mpirun, const ExecLaunchOptions *options, GString *output);
/* Removes the scratch folder too: an mpirun that is killed leaves its files behind. */
void exec_mpirun_clear(ExecMpirun *mpirun);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(ExecMpirun, exec_mpirun_clear)

/* @where  the watcher's, for the ranks.  False on EXEC_ERROR_MISSING: no plugin or mpirun, or files
 * may not be as long here (RLIMIT_FSIZE) as those of Open MPI, which would hang or break. */
bool exec_mpirun_start(ExecMpirun *mpirun, const ExecLaunchOptions *options, const char *where,
                       GError **error);

/* How long exec_mpirun_read() waits. */
#define EXEC_MPIRUN_LOOK_MS 20

/* What comes within EXEC_MPIRUN_LOOK_MS. */
void exec_mpirun_read(ExecMpirun *mpirun);

/* Looks what has become of it: @status or @stopped_ns. */
bool exec_mpirun_has_ended(ExecMpirun *mpirun);

/* Reads its pipes to their end (it would crash otherwise) and reaps it; after a failure it is told
 * to end, and killed after a while. */
void exec_mpirun_finish(ExecMpirun *mpirun, bool failed);

/* Of the process that has ended: what a shell would say, 128 + N for signal N. */
int exec_mpirun_status(const ExecMpirun *mpirun);

/* Whether a signal has ended it, not a rank. */
bool exec_mpirun_was_killed(const ExecMpirun *mpirun);

/* Returns: (owned) of what it said the line that names a rank which died, else the first one with
 * words. */
char *exec_mpirun_words(const ExecMpirun *mpirun);

G_END_DECLS

#endif /* EXECUTOR_WATCH_MPIRUN_H */
