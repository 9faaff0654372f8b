/*
 * schedule/positions.h - where every F and every B or I stands in its rank's order.
 *
 * Internal to schedule/ (check.h and graph.h are the public face).  Building it is the
 * completeness check: afterwards every (rank, micro-batch, chunk, slice) has exactly one F, exactly
 * one B or I, and at most one W, which only an I may have.
 */
#pragma once

#include "schedule/schedule.h"

/* The positions of all ranks' ops. */
typedef struct {
    int64_t n_virtual_ids; /* of a rank: schedule_virtual_id() is below it */
    /* (owned) [rank * n_virtual_ids + virtual id]: the position of its F, and of its B or I, among
     * the rank's ops. */
    uint32_t *forward, *backward;
} SchedulePositions;

/*
 * NULL with SCHEDULE_ERROR_INCOMPLETE naming the first op that is missing, twice there or outside
 * of the schedule's shape, or SCHEDULE_ERROR_LIMIT.  Memory is O(ops), whatever the shape claims.
 */
SchedulePositions *schedule_positions_new(const Schedule *schedule, GError **error);
void schedule_positions_free(SchedulePositions *positions);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(SchedulePositions, schedule_positions_free)

/* The neighbours of a (rank, chunk) in its chain of stages; rank -1: none. */
typedef struct {
    int32_t previous_rank, previous_chunk;
    int32_t next_rank, next_chunk;
} ScheduleNeighbours;

/* Returns: (owned) array indexed by rank * n_chunks + chunk. */
ScheduleNeighbours *schedule_neighbours_new(const Schedule *schedule);
