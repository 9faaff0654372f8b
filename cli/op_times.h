/*
 * cli/op_times.h - plain op times for schedules without a model: --op-times F=1,B=2.
 */
#ifndef CLI_OP_TIMES_H
#define CLI_OP_TIMES_H

#include "cli/options.h"
#include "schedule/schedule.h"

G_BEGIN_DECLS

typedef struct {
    int64_t time_ns[SCHEDULE_OP_N];
    int64_t message_ns;
} OpTimes;

/*
 * Reads the option "op-times": letters F, B, I, W and comm, seconds or with a unit.  What is
 * absent: F is 1, B is 2 F (or I + W), I and W share B (half each), comm is 0.
 */
OpTimes op_times_read(Options *options);

#define OP_TIMES_OPTION                                                                            \
    {                                                                                              \
        "op-times", "LIST", "times of ops, e.g. F=1,B=2,I=1,W=1,comm=0 (seconds, or F=3ms)", 0     \
    }

G_END_DECLS

#endif /* CLI_OP_TIMES_H */
