/*
 * schedule/one_f_one_b.c - 1F1B: a backward as early as possible, then one forward, one backward.
 *
 * PipeDream-flush / DAPPLE early backward [Narayanan et al. 1806.03377, 2006.09503; Fan et al.
 * 2007.01045]; the order of Megatron-LM core/pipeline_parallel/schedules.py at d98e8a64: rank r
 * runs min(p-1-r, m) forwards first.  Same time as GPipe, but only min(m, p-r) micro-batches in
 * flight.
 *
 * With token slices the unit is a slice: Seq1F1B [2406.03488 section 3.2].  The first backward is
 * that of the last slice, hence s-1 more forwards before it: min(p-1-r + s-1, m*s) warm-up, and
 * backwards take slices of a micro-batch last first.
 */
#include "schedule/build.h"

/* The next unit of a walk over micro-batches ascending, slices ascending or descending. */
typedef struct {
    int32_t micro_batch, slice;
} Cursor;

static inline void
emit_forward(ScheduleEmitter *emitter, Cursor *next, int32_t n_slices)
{
    schedule_emit(emitter, SCHEDULE_OP_FORWARD, next->micro_batch, 0, next->slice);
    if (++next->slice == n_slices)
        *next = (Cursor){next->micro_batch + 1, 0};
}

static inline void
emit_backward(ScheduleEmitter *emitter, Cursor *next, int32_t n_slices)
{
    schedule_emit(emitter, SCHEDULE_OP_BACKWARD, next->micro_batch, 0, next->slice);
    if (next->slice-- == 0)
        *next = (Cursor){next->micro_batch + 1, n_slices - 1};
}

Schedule *
schedule_build_one_f_one_b(const ScheduleFamily *family, const ScheduleShape *shape, GError **error)
{
    Schedule *schedule = schedule_alloc_full(family, shape, 2, error);
    if (schedule == NULL)
        return NULL;
    ScheduleEmitter emitter = {schedule->ops, 0};
    const int32_t n_slices = schedule->n_slices;
    const int64_t n_virtual_ids = schedule_n_virtual_ids(schedule);
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++) {
        const int64_t warmup =
            MIN((int64_t)schedule->n_ranks - 1 - rank + n_slices - 1, n_virtual_ids);
        Cursor forward = {0, 0};
        Cursor backward = {0, n_slices - 1};
        schedule->rank_begin[rank] = emitter.n;
        for (int64_t i = 0; i < warmup; i++)
            emit_forward(&emitter, &forward, n_slices);
        for (int64_t i = warmup; i < n_virtual_ids; i++) {
            emit_forward(&emitter, &forward, n_slices);
            emit_backward(&emitter, &backward, n_slices);
        }
        for (int64_t i = 0; i < warmup; i++)
            emit_backward(&emitter, &backward, n_slices);
    }
    schedule->rank_begin[schedule->n_ranks] = emitter.n;
    return schedule;
}

static Schedule *
build(const ScheduleShape *shape, GError **error)
{
    return schedule_build_one_f_one_b(&schedule_family_1f1b, shape, error);
}

const ScheduleFamily schedule_family_1f1b = {
    .name = "1f1b",
    .summary = "one forward, one backward after a short warm-up (DAPPLE 2007.01045, "
               "PipeDream-flush 2006.09503)",
    .slices = true,
    .min_chunks = 1,
    .max_chunks = 1,
    .placement = SCHEDULE_PLACEMENT_LOOP,
    .build = build,
};
