/*
 * cli/request/op_times.h - plain op times for schedules without a model: --op-times F=1,B=2.
 *
 *   F, B, I, W   an op's time; comm: a message's, each way
 *   F=1          the same in all stages
 *   F=1/2/3/4    one for each stage of the chain, in its order
 *   F@rank=1/2   one for each rank
 *   FB=2         a forward and a backward that overlap as a pair (DualPipe); absent: they run one
 *                after the other
 *   slices=1/1.5 by which factors the ops of the token slices take longer, first slice first;
 *                messages take the same time for all slices
 *
 * Times are in seconds or have a unit.  Defaults: F is 1; B is I + W, or else 2 F; I and W share B,
 * half each or what the other leaves; comm is 0.
 */
#pragma once

#include "cli/request/options.h"
#include "profiles/workload/workload.h"

/* Opaque; see op_times.c. */
typedef struct OpTimes OpTimes;

/* Reads the option "op-times".  Returns: (owned) never NULL; options_finish() reports what is
 * wrong. */
OpTimes *op_times_read(Options *options);
/* The defaults.  Returns: (owned). */
OpTimes *op_times_usual(void);
/* From now on compute times are those of ranks-many equal stages: where a schedule's chain has more,
 * each op takes so much less, so that different schedules do the same work. */
void op_times_of_a_rank(OpTimes *times);
/* Takes the times of @workload: of each kind of op those of one micro-batch on one pipeline rank, all
 * its chunks and slices together, and of a message, each the mean over ranks; op_times_of_a_rank()
 * follows. */
void op_times_of_workload(OpTimes *times, const Workload *workload);
void op_times_free(OpTimes *times);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(OpTimes, op_times_free)

/* Gives @schedule's ops these times.  Returns: (owned) NULL with CMD_ERROR_USAGE where a list has
 * not one value per stage, rank or slice. */
Workload *op_times_workload(const OpTimes *times, const Schedule *schedule, GError **error);

#define OP_TIMES_OPTION                                                                            \
    {                                                                                              \
        "op-times", "LIST",                                                                        \
            "times of forward, backward, input gradient, weight gradient and messages, e.g. "      \
            "F=1,B=2,I=1,W=1,comm=0 (seconds) or F=3ms; F=1/2/1/2: one for each stage; "           \
            "F@rank=1/2: one for each rank; slices=1/1.5: a factor for each slice"                 \
    }
