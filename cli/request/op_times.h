/*
 * cli/request/op_times.h - plain op times for schedules without a model: --op-times F=1,B=2.
 *
 *   F, B, I, W   an op's time; comm: a message's, each way
 *   F=1          of all stages
 *   F=1/2/3/4    of each stage of the chain, in its order
 *   F@rank=1/2   of each rank
 *   FB=2         an overlapped pair of a forward and a backward (DualPipe); absent: one after the
 *                other, as if they were no pair
 *   slices=1/1.5 factors of the token slices' ops, first slice first (messages keep theirs)
 *
 * Seconds or with a unit.  What is absent: F is 1, B is 2 F (or I + W), I and W share B (half each,
 * or what the other leaves), comm is 0.
 */
#ifndef CLI_REQUEST_OP_TIMES_H
#define CLI_REQUEST_OP_TIMES_H

#include "cli/request/options.h"
#include "profiles/workload/workload.h"

G_BEGIN_DECLS

/* Opaque; see op_times.c. */
typedef struct OpTimes OpTimes;

/* Reads the option "op-times".  Never NULL; what is wrong is found by options_finish(). */
OpTimes *op_times_read(Options *options);
void op_times_free(OpTimes *times);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(OpTimes, op_times_free)

/*
 * The times of @schedule's ops.
 * Returns: (owned) NULL with CMD_ERROR_USAGE where a list has not one value per stage, rank or
 * slice.
 */
Workload *op_times_workload(const OpTimes *times, const Schedule *schedule, GError **error);

#define OP_TIMES_OPTION                                                                            \
    {                                                                                              \
        "op-times", "LIST",                                                                        \
            "times of ops, e.g. F=1,B=2,I=1,W=1,comm=0 (seconds, or F=3ms); by stage F=1/2/1/2, "  \
            "by rank F@rank=1/2, factors by slice slices=1/1.5",                                   \
            0                                                                                      \
    }

G_END_DECLS

#endif /* CLI_REQUEST_OP_TIMES_H */
