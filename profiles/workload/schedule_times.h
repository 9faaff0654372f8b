/*
 * profiles/workload/schedule_times.h - a Workload's times and memory for families that search.
 *
 * A family such as zb-auto (schedule/zb_auto.h) builds a schedule for given ScheduleTimes.  Here
 * these are made of the Workload of a plan, so that the schedule is built for the times with which
 * it is then simulated and run:
 *
 *   times      of the ops of each stage, with the overhead of every op.  Blocking messages occupy
 *              the compute stream and are added to the ops that wait in them.  Where micro-batches
 *              differ in size, each number is the largest.
 *   limit      for the activations of each rank: the usable memory of its device less static bytes
 *              and the largest workspace of its ops; at least what one micro-batch needs, since a
 *              plan that fits nowhere is simulated too.  Without a known limit the family's default.
 *   objective  the makespan, which a report calls the iteration
 */
#pragma once

#include "profiles/workload/workload.h"

/* Only the member times is for users. */
typedef struct {
    ScheduleTimes times;        /* borrows the two below */
    ScheduleStageTimes *stages; /* (owned) */
    int64_t *limit_bytes;       /* (owned, nullable) */
} WorkloadScheduleTimes;

/*
 * @workload   must have one slice.
 * @placement  that of the family: loop or v.
 * Cost: O(ops of the workload).
 */
void workload_schedule_times_init(WorkloadScheduleTimes *self, const Workload *workload,
                                  SchedulePlacement placement);
void workload_schedule_times_clear(WorkloadScheduleTimes *self);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(WorkloadScheduleTimes, workload_schedule_times_clear)
