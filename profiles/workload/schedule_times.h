/*
 * profiles/workload/schedule_times.h - a Workload's times and memory, as families that search read
 * them.
 *
 * zb-auto (schedule/zb_auto.h) builds a schedule for ScheduleTimes; here they are made of a plan's
 * Workload, so that it is built for the times with which it is then simulated and run:
 *
 *   times     of each stage, with the overhead that every op has.  Blocking messages occupy the
 *             compute stream: they are added to the ops that wait in them.  Where micro-batches
 *             differ in size, each number is that of the largest.
 *   limit     of each rank, for activations: its device's memory less what stays all the time and
 *             less the largest workspace of its ops; at least what one micro-batch needs, as a plan
 *             that fits nowhere is simulated all the same.  No limit known: the family's default.
 *   objective makespan: what a report calls the iteration
 */
#ifndef PROFILES_WORKLOAD_SCHEDULE_TIMES_H
#define PROFILES_WORKLOAD_SCHEDULE_TIMES_H

#include "profiles/workload/workload.h"

G_BEGIN_DECLS

/* By value; opaque but for times. */
typedef struct {
    ScheduleTimes times;        /* borrows the two below */
    ScheduleStageTimes *stages; /* (owned) */
    int64_t *limit_bytes;       /* (owned, nullable) */
} WorkloadScheduleTimes;

/* @placement of the family that will read them: loop or v.  One token slice.  Cost: O(ops of the
 * workload). */
void workload_schedule_times_init(WorkloadScheduleTimes *self, const Workload *workload,
                                  SchedulePlacement placement);
void workload_schedule_times_clear(WorkloadScheduleTimes *self);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(WorkloadScheduleTimes, workload_schedule_times_clear)

G_END_DECLS

#endif /* PROFILES_WORKLOAD_SCHEDULE_TIMES_H */
