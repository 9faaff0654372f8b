/*
 * schedule/seq1f1b.c - 1F1B over token slices, with and without chunks  [Seq1F1B 2406.03488].
 *
 * Without chunks this is one_f_one_b.c with slices.  With chunks, interleaved.c over slices: rank r
 * warms up with 2(p-1-r) + (v-1) g s + s-1 slices, where a group is g micro-batches; the authors'
 * program (Seq1F1B at 6893466, core/pipeline_parallel/schedules.py) has groups of p slices, which
 * is g = p / s where s divides p.  Where it does not, g is rounded up, ours: a group must hold
 * whole micro-batches, else the first backward, of a last slice, would wait for a forward after it.
 * And it is the smallest that leaves no last group of fewer than p-1 slices, which would stall all
 * ranks (interleaved.c, safe_warmup).
 */
#include "schedule/build.h"

static Schedule *
build(const ScheduleShape *shape, GError **error)
{
    return schedule_build_one_f_one_b(&schedule_family_seq1f1b, shape, error);
}

const ScheduleFamily schedule_family_seq1f1b = {
    .name = "seq1f1b",
    .summary = "1F1B over token slices (Seq1F1B, 2406.03488)",
    .slices = true,
    .min_chunks = 1,
    .max_chunks = 1,
    .placement = SCHEDULE_PLACEMENT_LOOP,
    .build = build,
};

static Schedule *
build_interleaved(const ScheduleShape *shape, GError **error)
{
    const int64_t n = shape->n_slices;
    const int64_t group = shape->group > 0 || n == 1
                              ? schedule_group(shape)
                              : schedule_group_from((shape->n_ranks + n - 1) / n, shape);
    const ScheduleInterleaving how = {
        .group = group,
        .warmup_last = (shape->n_chunks - 1) * group * n + n - 1,
        .warmup_step = 2,
    };

    return schedule_build_interleaved(&schedule_family_seq1f1b_interleaved, shape, &how, error);
}

const ScheduleFamily schedule_family_seq1f1b_interleaved = {
    .name = "seq1f1b-interleaved",
    .summary = "interleaved 1F1B over token slices (Seq1F1B, 2406.03488)",
    .slices = true,
    .groups = true,
    .min_chunks = 2,
    .max_chunks = SCHEDULE_MAX_CHUNKS,
    .placement = SCHEDULE_PLACEMENT_LOOP,
    .build = build_interleaved,
};
