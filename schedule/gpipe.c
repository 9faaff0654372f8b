/*
 * schedule/gpipe.c - GPipe: all forwards, then all backwards  [Huang et al. 1811.06965].
 *
 * With equal stages and no communication the bubble is (p-1)/(m+p-1); every rank holds all m
 * micro-batches at the turn.  Backwards run in the order of the forwards, as in PyTorch's
 * ScheduleGPipe; token slices of a micro-batch run backward last first, because the gradients of K
 * and V of a slice are complete only after all later slices.
 */
#include "schedule/build.h"

Schedule *
schedule_build_forwards_then_backwards(const ScheduleFamily *family, const ScheduleShape *shape,
                                       GError **error)
{
    Schedule *schedule = schedule_alloc_full(family, shape, 2, error);
    if (schedule == NULL)
        return NULL;
    ScheduleEmitter emitter = {schedule->ops, 0};
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++) {
        schedule->rank_begin[rank] = emitter.n;
        for (int32_t m = 0; m < schedule->n_micro_batches; m++)
            for (int32_t s = 0; s < schedule->n_slices; s++)
                schedule_emit(&emitter, SCHEDULE_OP_FORWARD, m, 0, s);
        for (int32_t m = 0; m < schedule->n_micro_batches; m++)
            for (int32_t s = schedule->n_slices - 1; s >= 0; s--)
                schedule_emit(&emitter, SCHEDULE_OP_BACKWARD, m, 0, s);
    }
    schedule->rank_begin[schedule->n_ranks] = emitter.n;
    return schedule;
}

static Schedule *
build(const ScheduleShape *shape, GError **error)
{
    return schedule_build_forwards_then_backwards(&schedule_family_gpipe, shape, error);
}

const ScheduleFamily schedule_family_gpipe = {
    .name = "gpipe",
    .summary = "all forwards, then all backwards (GPipe, 1811.06965)",
    .slices = true,
    .forwards_first = true,
    .min_chunks = 1,
    .max_chunks = 1,
    .placement = SCHEDULE_PLACEMENT_LOOP,
    .build = build,
};
