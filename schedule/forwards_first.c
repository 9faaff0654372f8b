/*
 * schedule/forwards_first.c - all forwards, then all backwards: gpipe, terapipe, looped-bfs, naive.
 *
 * gpipe [Huang et al. 1811.06965]: with equal stages and no communication the bubble is
 *   (p-1)/(m+p-1); every rank holds all m micro-batches at the turn.  Backwards run in the order of
 *   the forwards, as in PyTorch's ScheduleGPipe.
 *
 * terapipe [Li et al. 2102.07988 section 3.2]: the same over token slices.  Slices of one sequence
 *   follow each other through the pipeline, so that it fills even with a single micro-batch: with
 *   equal slices the bubble is (p-1)/(m*s+p-1).  Slices run backward last first, because the
 *   gradients of K and V of a slice are complete only after all later slices.  Where to cut, the
 *   paper's contribution, is the planner's.
 *
 * looped-bfs [Lamy-Poirier 2211.05953, breadth-first pipeline parallelism]: every chunk runs all
 *   micro-batches before the next one.  Backwards take the chunks and the micro-batches last first,
 *   as PyTorch's ScheduleLoopedBFS (distributed/pipelining/schedules.py at 00722e648).
 *   Communication of a chunk's gradients can start early; memory holds all micro-batches of all
 *   chunks.
 *
 * naive [GPipe figure 2(b)]: model parallelism without a pipeline, the baseline: one micro-batch at
 *   a time, and only one rank works at any time, so that with equal stages and no communication m
 *   micro-batches take m * p * (f + b).
 */
#include "schedule/build.h"

/* All forwards of micro-batches [@begin, @end), then all backwards; these from the first or from
 * the last micro-batch on. */
static void
emit_round(ScheduleEmitter *emitter, const Schedule *schedule, int32_t begin, int32_t end,
           bool last_first)
{
    const int32_t n_chunks = schedule->n_chunks, n_slices = schedule->n_slices;
    const int32_t first = last_first ? end - 1 : begin, step = last_first ? -1 : 1;
    ScheduleEmitter to = *emitter;

    for (int32_t c = 0; c < n_chunks; c++)
        for (int32_t m = begin; m < end; m++)
            for (int32_t s = 0; s < n_slices; s++)
                schedule_emit(&to, SCHEDULE_OP_FORWARD, m, c, s);
    for (int32_t c = n_chunks - 1; c >= 0; c--)
        for (int32_t i = 0, m = first; i < end - begin; i++, m += step)
            for (int32_t s = n_slices - 1; s >= 0; s--)
                schedule_emit(&to, SCHEDULE_OP_BACKWARD, m, c, s);
    *emitter = to;
}

/* One round, or as many as micro-batches. */
static Schedule *
build(const ScheduleFamily *family, const ScheduleShape *shape, GError **error)
{
    const int32_t n_together = family->forwards_first ? (int32_t)shape->n_micro_batches : 1;
    const bool last_first = family == &schedule_family_looped_bfs;
    Schedule *schedule = schedule_alloc_full(family, shape, 2, error);
    if (schedule == NULL)
        return NULL;
    ScheduleEmitter emitter = {schedule->ops, 0};
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++) {
        schedule->rank_begin[rank] = emitter.n;
        for (int32_t m = 0; m < schedule->n_micro_batches; m += n_together)
            emit_round(&emitter, schedule, m, m + n_together, last_first);
    }
    schedule->rank_begin[schedule->n_ranks] = emitter.n;
    return schedule;
}

const ScheduleFamily schedule_family_gpipe = {
    .name = "gpipe",
    .summary = "all forwards, then all backwards (GPipe, 1811.06965)",
    .slices = true,
    .forwards_first = true,
    .min_chunks = 1,
    .max_chunks = 1,
    .sliced = &schedule_family_terapipe,
    .torch_class = "GPipe",
    .build = build,
};

const ScheduleFamily schedule_family_terapipe = {
    .name = "terapipe",
    .summary = "all forwards, then all backwards, over token slices (TeraPipe, 2102.07988)",
    .slices = true,
    .forwards_first = true,
    .min_chunks = 1,
    .max_chunks = 1,
    .whole = &schedule_family_gpipe,
    .build = build,
};

const ScheduleFamily schedule_family_looped_bfs = {
    .name = "looped-bfs",
    .summary = "every chunk runs all micro-batches before the next (breadth first, 2211.05953)",
    .forwards_first = true,
    .min_chunks = 1,
    .max_chunks = SCHEDULE_MAX_CHUNKS,
    .torch_class = "LoopedBFS",
    .build = build,
};

static int64_t
in_flight_naive(const ScheduleShape *shape, int64_t rank)
{
    return shape->n_slices;
}

const ScheduleFamily schedule_family_naive = {
    .name = "naive",
    .summary = "model parallelism without pipelining, one micro-batch at a time "
               "(GPipe fig. 2b, 1811.06965)",
    .min_chunks = 1,
    .max_chunks = 1,
    .torch_class = "1F1B",
    .torch_reads_ops = true,
    .in_flight = in_flight_naive,
    .build = build,
};
