/*
 * cli/profile_gpus.h - the part of degas profile --device cuda that needs a process for every GPU:
 * messages and collectives between them, over NCCL.
 *
 * The command starts itself once for each GPU, as degas run --transport nccl does
 * (run_processes.h); it begins with this, before it has touched a GPU itself.
 */
#ifndef CLI_PROFILE_GPUS_H
#define CLI_PROFILE_GPUS_H

#include "executor/measure/measure.h"

G_BEGIN_DECLS

typedef struct {
    const ExecMeasureOptions *measure; /* (borrowed) what else is asked for */
    int64_t n_gpus;                    /* --gpus; 0: all */
} ProfileGpusOptions;

/* Whether this process is one of those that were started. */
bool profile_gpus_is_rank(void);

/* The life of such a process.  Returns its exit status, or -1 with @error. */
int profile_gpus_run_rank(const ProfileGpusOptions *options, GError **error);

/*
 * @collectives  (out, owned, nullable) for ExecMeasureOptions.collectives
 * @why_not      (out, owned, nullable) why there are none, unless that was asked for
 * False on a usage error, and on what exec_run() fails with: the message names the rank.
 */
bool profile_gpus_time(const ProfileGpusOptions *options, char **collectives, char **why_not,
                       GError **error);

G_END_DECLS

#endif /* CLI_PROFILE_GPUS_H */
