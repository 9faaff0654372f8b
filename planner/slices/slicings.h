/*
 * planner/slices/slicings.h - token slices for a plan: what the fill-drain formula finds best, and
 * near it.
 *
 * Internal to planner/.  The costs of all (length, context) come from Workloads of probe plans of
 * up to three stages with the longest stage of the plan, at five contexts per length, straight
 * lines between them; messages count for both of their ends when they block.  The formula is sum
 * over micro-batches, chunks and slices of t + (pp - 1) max t, by slice.h; the simulator judges.
 */
#ifndef PLANNER_SLICES_SLICINGS_H
#define PLANNER_SLICES_SLICINGS_H

#include "planner/cost/request.h"

G_BEGIN_DECLS

/* One way to slice and what the formula says of it. */
typedef struct {
    GArray *slices; /* (owned) of int64_t tokens */
    int64_t formula_ns;
} PlanSlicing;

void plan_slicing_free(PlanSlicing *slicing);

/*
 * Ways to slice @plan (of one slice and set stages), best formula first: the proven best ones at
 * pp, 2 pp and 4 pp stages (more slices need less memory), and all equal ones within a tenth of the
 * best.
 * @unit  (out, nullable) tokens that all slices are multiples of; 0 if nothing can be cut
 * Returns: (owned) GPtrArray of PlanSlicing *, NULL on a
 * PLAN_ERROR; empty where the sequence cannot be cut.
 */
GPtrArray *plan_slicings_new(const PlanRequest *request, const Plan *plan, int64_t *multiple_tokens,
                             GError **error);

G_END_DECLS

#endif /* PLANNER_SLICES_SLICINGS_H */
