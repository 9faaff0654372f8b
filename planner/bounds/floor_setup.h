/*
 * planner/bounds/floor_setup.h - what all slicings of a point have in common (floor_layers.h): its stages,
 * where ranks lie, their orders, and where paths of slices begin and turn.
 *
 * Internal to bounds/.  Thread-safety: as the memo.
 */
#pragma once

#include "planner/bounds/floor_layers.h"

/* Sets all of @floor but its group and its table, from what it borrows.  Returns: what rank 0 does after
 * its last op at the least.  Cost: O(ranks * (ranks + stages)). */
double plan_floor_init(PlanFloor *floor, const PlanFloorAsked *asked,
                       const PlanFloorMemory *memory);

/* The largest micro-batch has @group sequences.  @is_rough: layers are priced roughly (floor_table.h). */
void plan_floor_set_group(PlanFloor *floor, PlanMemo *memo, int64_t group, bool is_rough);

/* Has the ends of the model priced on slices of the group, unless they are. */
void plan_floor_set_ends(PlanFloor *floor, PlanMemo *memo);

void plan_floor_clear(PlanFloor *floor);
