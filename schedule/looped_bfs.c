/*
 * schedule/looped_bfs.c - breadth first: every chunk runs all micro-batches before the next one.
 *
 * Lamy-Poirier 2211.05953 (breadth-first pipeline parallelism).  The order is that of PyTorch's
 * ScheduleLoopedBFS (distributed/pipelining/schedules.py at 00722e648): backwards take the chunks
 * and the micro-batches last first.  Communication of a chunk's gradients can start early; memory
 * holds all micro-batches of all chunks.
 */
#include "schedule/build.h"

static Schedule *
build(const ScheduleShape *shape, GError **error)
{
    Schedule *schedule = schedule_alloc_full(&schedule_family_looped_bfs, shape, 2, error);
    if (schedule == NULL)
        return NULL;
    ScheduleEmitter emitter = {schedule->ops, 0};
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++) {
        schedule->rank_begin[rank] = emitter.n;
        for (int32_t c = 0; c < schedule->n_chunks; c++)
            for (int32_t m = 0; m < schedule->n_micro_batches; m++)
                schedule_emit(&emitter, SCHEDULE_OP_FORWARD, m, c, 0);
        for (int32_t c = schedule->n_chunks - 1; c >= 0; c--)
            for (int32_t m = schedule->n_micro_batches - 1; m >= 0; m--)
                schedule_emit(&emitter, SCHEDULE_OP_BACKWARD, m, c, 0);
    }
    schedule->rank_begin[schedule->n_ranks] = emitter.n;
    return schedule;
}

const ScheduleFamily schedule_family_looped_bfs = {
    .name = "looped-bfs",
    .summary = "every chunk runs all micro-batches before the next (breadth first, 2211.05953)",
    .forwards_first = true,
    .min_chunks = 1,
    .max_chunks = SCHEDULE_MAX_CHUNKS,
    .placement = SCHEDULE_PLACEMENT_LOOP,
    .build = build,
};
