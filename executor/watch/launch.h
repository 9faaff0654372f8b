/*
 * executor/watch/launch.h - which rank of a job this process is, and starting the ranks of a job.
 *
 * A process comes into a run with transport mpi, tcp or nccl in one of four roles:
 *   alone      `degas run --transport mpi`: it starts mpirun on itself, watches, and passes on what
 *              the ranks write; ranks meet through MPI
 *   starter    on one machine tcp and nccl need no MPI: this process takes mpirun's place, and
 *              ranks meet by sockets (executor/transport/peers.h)
 *   launched   a rank of such a run: it finds EXEC_WATCH_VARIABLE in its environment
 *   joined     a rank that somebody else's mpirun, srun, torchrun or Kubernetes started: rank 0 forks
 *              the watcher.  Without MPI, ranks meet by TCP at an address of rank 0's host
 *
 * With transport nccl tensors never touch the host; results, clocks and checkpoints go by MPI or by
 * those sockets.  Rank 0 gathers the results of all ranks (executor/run/gather.c) and writes them.
 *
 * On one machine Open MPI keeps its files in a folder of this run in /dev/shm.  The launcher
 * removes it; should the launcher be killed, a process that it has left behind for this removes the
 * folder, and ends mpirun.
 */
#pragma once

#include "executor/device/backend.h"

typedef enum {
    EXEC_ROLE_ALONE,
    EXEC_ROLE_LAUNCHED,
    EXEC_ROLE_JOINED,
    EXEC_ROLE_STARTER,
} ExecRole;

typedef struct {
    ExecRole role;
    int32_t rank, n_ranks; /* as the environment says; alone: rank 0 of 1 */
    bool has_mpi;          /* whoever started this process offers MPI a way to begin */
    const char *launcher;  /* (nullable) who started a joined rank, for messages: "srun" */
} ExecJobRank;

/*
 * Which rank this process is, by the variables that Open MPI, MPICH (PMI), PMIx, torchrun and
 * Kubernetes (RANK, WORLD_SIZE, MASTER_ADDR), Slurm's steps and our own starter set, in that order.
 * The shell of a Slurm job is no rank, though SLURM_PROCID is 0 there.
 */
ExecJobRank exec_job_rank(void);
/* The same of a process with this environment. */
ExecJobRank exec_job_rank_of(char **environment);

/* Set for the ranks that our own starter has started: which rank, and of how many. */
#define EXEC_RANK_VARIABLE "DEGAS_RANK"
#define EXEC_RANKS_VARIABLE "DEGAS_RANKS"
/* Set for the starter: how many ranks to start. */
#define EXEC_START_VARIABLE "DEGAS_START"

/* Returns: (owned, nullable) a text that all ranks which our own starter has started know, and
 * nobody else: the name under which they meet (executor/transport/peers.h).  NULL: something else
 * has started this process. */
char *exec_job_secret(void);

/*
 * Returns: (owned) where the ranks of a run without MPI meet (peers.h): exec_job_secret(), or of a
 * joined rank "JOB@HOST:PORT".  HOST is MASTER_ADDR, else the first host of SLURM_STEP_NODELIST;
 * PORT is MASTER_PORT (under torchrun, whose agent may listen there, the next one), else the first
 * of SLURM_STEP_RESV_PORTS, else one of 20000 to 29999 by the numbers of job and step.  JOB tells
 * runs apart that meet at the same port by mistake.  NULL on EXEC_ERROR_MISSING: nothing says where
 * rank 0 is.
 */
char *exec_job_meeting(GError **error);
/* The same of a process with this environment. */
char *exec_job_meeting_of(char **environment, GError **error);

/* The starter's work: starts a process for every rank, this program with these @arguments.  They
 * end with it, and it ends them when one ends badly.  Returns the exit status of that one, else 0.
 */
int exec_start_ranks(char **arguments);

typedef struct {
    const char *transport; /* for messages: "mpi" */
    bool without_mpi;      /* started by our own starter, on this machine */
    int32_t n_ranks;
    double timeout_s;  /* as ExecRunOptions.timeout_s */
    const char *hosts; /* (nullable) where the ranks run: "node1,node2"; NULL: on this machine */
    char **arguments;  /* (borrowed) NULL-terminated: of the program, its name first */
    const int *stop;   /* (nullable) as ExecRunOptions.stop */
    /* (nullable) told now and then which step has ended, its loss, and how long steps take. */
    void (*progress)(int64_t step, double loss, double step_s, void *user_data);
    /* (nullable) told what the ranks noted on stderr, when the run went well. */
    void (*note)(const char *text, void *user_data);
    void *user_data;
} ExecLaunchOptions;

/*
 * Starts @n_ranks processes, under mpirun or the starter, and watches them until all have gone.
 *
 * @output  (out, owned) everything that the ranks wrote to standard output
 * @status  (out) the exit status of the ranks: of the first that ended badly
 *
 * Returns false on EXEC_ERROR_MISSING (no plugin, no mpirun, or it failed before a rank began: its
 * first words are in the message), EXEC_ERROR_RANK_DIED, EXEC_ERROR_RANK_HUNG,
 * EXEC_ERROR_INTERRUPTED (by @stop, and the step did not end within EXEC_STOP_S; @output then holds
 * what had ended), or what a rank failed with.  Afterwards no process of the run is left on this
 * machine; those on other hosts end by themselves.
 */
bool exec_launch(const ExecLaunchOptions *options, GString *output, int *status, GError **error);

/* How long the step of a run that is interrupted may take to end (docs/formats.md), ... */
#define EXEC_STOP_S 2.5
/* ... unless the interruption has this value: whoever sends it has a time limit of its own. */
#define EXEC_STOP_PATIENTLY 2

/*
 * For rank 0 of a job that somebody else has started: forks the process that watches.  In the
 * parent it returns at once, with @where (out, owned) to be told to the ranks.  In the child it
 * returns when all is over: *in_child is true, and the return value says how it went.
 *
 * @tell  called in the child as soon as something is wrong, with the error that will be returned:
 *        meanwhile the other processes end, and stderr with them
 */
bool exec_fork_watcher(int32_t n_ranks, double timeout_s, void (*tell)(const GError *error),
                       char **where, bool *in_child, GError **error);
