/*
 * cli/run/processes.h - degas run --transport mpi or nccl: which of the run's processes this one
 * is.
 *
 * Errors of ranks are printed once, by the process that watches over them: the one that the user
 * started, or where somebody's mpirun or srun started the ranks, a child of rank 0's.
 */
#ifndef CLI_RUN_PROCESSES_H
#define CLI_RUN_PROCESSES_H

#include "executor/run/run.h"

G_BEGIN_DECLS

typedef struct {
    const char *hosts; /* (nullable) --hosts */
    const int *stop;   /* of cmd_interrupt_watch() */
    GString *output;   /* (borrowed, nullable) gets the product instead of standard output */
    void (*progress)(int64_t step, double loss, double step_s, void *user_data); /* (nullable) */
    void *user_data;
} RunProcessesOptions;

/* This process is a rank: exec_run() is next. */
#define RUN_PROCESSES_RANK (-2)

/*
 * Returns RUN_PROCESSES_RANK after it has set @exec's process_rank, watch_where (@where, out,
 * owned) and without_mpi; otherwise the run is over, and this is the exit status, or -1 with
 * @error.
 */
int run_processes_begin(ExecRunOptions *exec, const RunProcessesOptions *options, char **where,
                        GError **error);

/*
 * For a rank whose exec_run() failed.  Does not return where another process prints the error: it
 * ends this one with the error's status, whatever its threads do.
 */
void run_processes_fail(const ExecRunOptions *exec, bool told, const GError *error);

G_END_DECLS

#endif /* CLI_RUN_PROCESSES_H */
