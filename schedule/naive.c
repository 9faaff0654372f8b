/*
 * schedule/naive.c - model parallelism without a pipeline: one micro-batch at a time.
 *
 * The baseline of GPipe figure 2(b) [Huang et al. 1811.06965]: only one rank works at any time, so
 * with equal stages and no communication m micro-batches take m * p * (f + b).
 */
#include "schedule/build.h"

static Schedule *
build(const ScheduleShape *shape, GError **error)
{
    Schedule *schedule = schedule_alloc_full(&schedule_family_naive, shape, 2, error);
    if (schedule == NULL)
        return NULL;
    ScheduleEmitter emitter = {schedule->ops, 0};
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++) {
        schedule->rank_begin[rank] = emitter.n;
        for (int32_t m = 0; m < schedule->n_micro_batches; m++) {
            schedule_emit(&emitter, SCHEDULE_OP_FORWARD, m, 0, 0);
            schedule_emit(&emitter, SCHEDULE_OP_BACKWARD, m, 0, 0);
        }
    }
    schedule->rank_begin[schedule->n_ranks] = emitter.n;
    return schedule;
}

const ScheduleFamily schedule_family_naive = {
    .name = "naive",
    .summary = "model parallelism without pipelining, one micro-batch at a time "
               "(GPipe fig. 2b, 1811.06965)",
    .min_chunks = 1,
    .max_chunks = 1,
    .placement = SCHEDULE_PLACEMENT_LOOP,
    .build = build,
};
