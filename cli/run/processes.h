/*
 * cli/run/processes.h - starts the processes of degas run --transport mpi, tcp or nccl, and tells
 * each of them which part it plays.
 *
 * The process that the user started starts the ranks and watches over them.  Where somebody
 * else (mpirun, srun, torchrun, Kubernetes) started the ranks, a child of rank 0 watches over them.  Errors of ranks are
 * printed once, by the process that watches.
 */
#pragma once

#include "executor/run/run.h"

typedef struct {
    const char *hosts; /* (nullable) --hosts */
    const int *stop;   /* of cmd_interrupt_watch() */
    GString *output;   /* (borrowed, nullable) receives the product in place of stdout */
    void (*progress)(int64_t step, double loss, double step_s, void *user_data); /* (nullable) */
    void *user_data;
} RunProcessesOptions;

/* The answer of run_processes_begin() where this process is a rank, which calls exec_run() next. */
#define RUN_PROCESSES_RANK (-2)

/*
 * Plays this process's part up to where it is a rank or all is over.
 * @exec   its process_rank, without_mpi, other_machines and watch_where are set
 * @where  (out, owned) what watch_where borrows
 * Returns RUN_PROCESSES_RANK where this process is a rank; otherwise the run is over, and the
 * result is the exit status, or -1 with @error.
 */
int run_processes_begin(ExecRunOptions *exec, const RunProcessesOptions *options, char **where,
                        GError **error);

/*
 * Of a run whose ranks are threads, without --transport: false with CMD_ERROR_USAGE where srun or
 * the like has started several copies of it, each of which would be the whole run.  Only the first
 * copy returns then.
 */
bool run_processes_check_alone(ExecRunOptions *exec, GError **error);

/*
 * For a rank whose exec_run() failed.  Returns only where this process is to print the error. Where
 * another process prints it, this one ends here with the error's exit status, whatever its threads
 * are doing.
 * @told  whether the watcher has been told of the error
 */
void run_processes_fail(const ExecRunOptions *exec, bool told, const GError *error);
