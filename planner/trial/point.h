/*
 * planner/trial/point.h - one point of the space on whole sequences, or on the slices that the
 * request fixes: its families, the partitions of its layers, and what its stages recompute.
 *
 * With one stage per rank, each rank takes its fastest recompute kind that fits.  With chunks, all
 * stages take one kind, or each rank recomputes no more than it must.  On fixed slices all stages
 * take one kind.  What a sketch (bounds/sketch.h) says is too slow is not priced.
 */
#pragma once

#include "planner/trial/trial.h"

/*
 * Tries the families of @point; adds what is found and counted to @outcome.
 * @limit  plans of a larger objective are pruned
 */
void plan_evaluate_point(const PlanEvaluation *evaluation, const PlanPoint *point, int64_t limit,
                         PlanOutcome *outcome);
