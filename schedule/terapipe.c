/*
 * schedule/terapipe.c - TeraPipe: GPipe over token slices  [Li et al. 2102.07988 section 3.2].
 *
 * Slices of one sequence follow each other through the pipeline, so that it fills even with a
 * single micro-batch: with equal slices and no communication the bubble is (p-1)/(m*s+p-1).  The
 * order is gpipe.c's; the paper's contribution, where to cut, is the planner's.
 */
#include "schedule/build.h"

static Schedule *
build(const ScheduleShape *shape, GError **error)
{
    return schedule_build_forwards_then_backwards(&schedule_family_terapipe, shape, error);
}

const ScheduleFamily schedule_family_terapipe = {
    .name = "terapipe",
    .summary = "all forwards, then all backwards, over token slices (TeraPipe, 2102.07988)",
    .slices = true,
    .forwards_first = true,
    .min_chunks = 1,
    .max_chunks = 1,
    .placement = SCHEDULE_PLACEMENT_LOOP,
    .build = build,
};
