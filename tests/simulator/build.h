/*
 * tests/simulator/build.h - schedules of a family, for tests of the simulator.
 */
#pragma once

#include "schedule/schedule.h"

/* Returns: (owned) of @p ranks, @m micro-batches and @slices. */
static inline Schedule *
build(const char *family, int64_t p, int64_t m, int64_t slices)
{
    const ScheduleShape shape = {
        .n_ranks = p, .n_chunks = 1, .n_micro_batches = m, .n_slices = slices};
    g_autoptr(GError) error = NULL;
    Schedule *schedule = schedule_new(family, &shape, &error);

    g_assert_no_error(error);
    return schedule;
}
