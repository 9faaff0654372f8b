/*
 * executor/watch/launch.h - runs whose ranks are processes: who am I, and starting them with
 * mpirun.
 *
 * Ways into a run with transport mpi or nccl:
 *   alone      `degas run --transport mpi`: starts mpirun on itself, watches, passes on the product
 *   launched   a rank of such a run: it finds EXEC_WATCH_VARIABLE in its environment
 *   joined     a rank that somebody's mpirun or srun started: rank 0 forks the watcher
 *   starter    on one machine transport nccl needs no MPI: this process takes mpirun's place
 */
#ifndef EXECUTOR_WATCH_LAUNCH_H
#define EXECUTOR_WATCH_LAUNCH_H

#include "executor/device/backend.h"

G_BEGIN_DECLS

typedef enum {
    EXEC_ROLE_ALONE,
    EXEC_ROLE_LAUNCHED,
    EXEC_ROLE_JOINED,
    EXEC_ROLE_STARTER,
} ExecRole;

typedef struct {
    ExecRole role;
    int32_t rank, n_ranks; /* as the environment says; alone: 0 of 1 */
} ExecJobRank;

/* From the variables that Open MPI, MPICH (PMI), PMIx and Slurm set, and our own starter. */
ExecJobRank exec_job_rank(void);
/* The same of a process with this environment. */
ExecJobRank exec_job_rank_of(char **environment);

/* Set for the ranks that our own starter has started: which of how many. */
#define EXEC_RANK_VARIABLE "DEGAS_RANK"
#define EXEC_RANKS_VARIABLE "DEGAS_RANKS"
/* Set for the starter: how many. */
#define EXEC_START_VARIABLE "DEGAS_START"

/* What all ranks of a run that our own starter has started know, and nobody else: a name for
 * peers.h.  Returns: (owned, nullable) NULL: another has started this process. */
char *exec_job_secret(void);

/* The starter's work: a process for every rank, this program with these @arguments.  They end with
 * it, and it ends them when one ends badly.  Returns that one's exit status, else 0. */
int exec_start_ranks(char **arguments);

typedef struct {
    const char *transport; /* for messages: "mpi" */
    bool without_mpi;      /* by the starter, on this machine */
    int32_t n_ranks;
    double timeout_s;  /* ExecRunOptions */
    const char *hosts; /* (nullable) "node1,node2": where; else here */
    char **arguments;  /* (borrowed) NULL-terminated: of the program, its name first */
    const int *stop;   /* (nullable) not 0: somebody wants the run to end */
    /* (nullable) told now and then which step has ended, its loss, and what steps take of late. */
    void (*progress)(int64_t step, double loss, double step_s, void *user_data);
    /* (nullable) told what the ranks noted on stderr, when the run went well. */
    void (*note)(const char *text, void *user_data);
    void *user_data;
} ExecLaunchOptions;

/*
 * Starts @n_ranks processes, under mpirun or the starter, and watches them until all have gone.
 *
 * @output  (out, owned) what the ranks wrote to standard output, complete
 * @status  (out) the exit status of the ranks: of the first that ended badly
 *
 * False on: EXEC_ERROR_MISSING (no plugin, no mpirun, or it failed before a rank began: its first
 * words are in the message), EXEC_ERROR_RANK_DIED, EXEC_ERROR_RANK_HUNG, EXEC_ERROR_INTERRUPTED
 * (@stop, and the step did not end within EXEC_STOP_S; @output is then of what had ended), or what
 * a rank failed with.  Afterwards no process of the run is left on this machine; those elsewhere
 * end by themselves.
 */
bool exec_launch(const ExecLaunchOptions *options, GString *output, int *status, GError **error);

/* Seconds that a step may take to end when a run is interrupted. */
#define EXEC_STOP_S 2.5

/*
 * Of a joined run's rank 0: forks the process that watches.  In the parent @where (out, owned) is
 * what to tell the ranks; in the child, when all is over, *in_child is true and the return value
 * says how it went.
 *
 * @tell  called in the child as soon as something is wrong, with the error that will be returned:
 *        the other processes end in the meantime, and stderr with them
 */
bool exec_fork_watcher(int32_t n_ranks, double timeout_s, void (*tell)(const GError *error),
                       char **where, bool *in_child, GError **error);

G_END_DECLS

#endif /* EXECUTOR_WATCH_LAUNCH_H */
