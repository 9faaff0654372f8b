/*
 * executor/watch/keeper.h - a process that ends what a launcher started, should the launcher be killed.
 *
 * Internal to executor/.  mpirun gets SIGTERM when its launcher dies (PR_SET_PDEATHSIG), but one
 * whose output nobody reads any more may not act on it: Open MPI 4 then stays, waiting for
 * children that are dead.  The keeper sleeps until the launcher or mpirun has ended; if the
 * launcher was first, mpirun and its process group have EXEC_KEEPER_GRACE_S to end by themselves,
 * then they get SIGKILL.  Then it removes the folder in which they kept their files.
 */
#ifndef EXECUTOR_WATCH_KEEPER_H
#define EXECUTOR_WATCH_KEEPER_H

#include <sys/types.h>

/* Of the 5 s within which nothing of a run is left. */
#define EXEC_KEEPER_GRACE_S 2

typedef struct {
    pid_t pid; /* 0: none */
    int alive; /* the end of a pipe that closes with this process */
} ExecKeeper;

/*
 * Starts the keeper of @child, a child of this process that leads a session and is not reaped yet.
 * @scratch  (nullable) a folder.
 * Without room for one more process, or on a kernel before 5.9, @keeper has none and nothing else
 * changes.
 */
void exec_keeper_start(ExecKeeper *keeper, pid_t child, const char *scratch);

/* Ends the keeper and reaps it; @child, ended or not, is left alone. */
void exec_keeper_end(ExecKeeper *keeper);

#endif /* EXECUTOR_WATCH_KEEPER_H */
