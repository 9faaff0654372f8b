/*
 * planner/given_slices.h - the slices that a request gives, and what they take at the least.
 *
 * Internal to planner/.
 */
#ifndef PLANNER_GIVEN_SLICES_H
#define PLANNER_GIVEN_SLICES_H

#include "planner/layer_cost.h"

G_BEGIN_DECLS

/* How many: 1 unless slices are UNIFORM or GIVEN. */
int64_t plan_given_n_slices(const PlanRequest *request);

/*
 * Fills @slices (of int64_t) with @n nearly equal ones of @seq_len tokens.
 * @unit  what every slice must be a multiple of; false where it forbids so many.
 */
bool plan_given_uniform(int64_t seq_len, int64_t unit, int64_t n, GArray *slices);

/* Fills @slices with those that @request gives; false where the degrees forbid them. */
bool plan_given_slices(const PlanRequest *request, const PlanLayerShape *shape, GArray *slices);

/* Of one micro-batch in all its slices, through all layers, embedding and head. */
typedef struct {
    double whole_s; /* both passes */
    /* Of a part's time in them, at the least of all parts: its first slice's forward; and that with
     * its backward. */
    double first_forward_fraction, first_fraction;
} PlanGivenTimes;

/* What the request's slices take at the fastest place of the cluster, nothing recomputed but what
 * the request fixes.  All 0 where the degrees forbid them. */
PlanGivenTimes plan_given_times(const PlanRequest *request, const PlanLayerShape *shape);

G_END_DECLS

#endif /* PLANNER_GIVEN_SLICES_H */
