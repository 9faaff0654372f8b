/*
 * planner/bounds/point_bound.h - how long a point of the space takes at the least, and what it
 * holds.
 *
 * Internal to planner/.  With T the time of one micro-batch through all layers on one rank's
 * devices, m micro-batches, p ranks, w_r the time of rank r's layers, and a share of w of at least
 * f that is its first slice's forward: however the layers are divided into p stages, all ranks r
 * have
 *
 *   iteration >= m w_r + f (w_0 + ... + w_(r-1))   (r waits for the ranks before it)
 *
 * and with unsplit backwards the first slice's backward counts too (they wait for it): of whole
 * sequences f is 1.  The least maximum over all divisions is
 * where all are equal, w_(r+1) = w_r (1 - f / m):
 *
 *   iteration >= T f / (1 - (1 - f / m)^p)     -> m T / p for large m
 *
 * Even stages have the sharper bound of their last rank; with chunks, n layers each at least,
 * iteration >= (m v + p - 1) n t for unsplit backwards.
 *
 * Memory: the parameters' state of an average rank, sharded as the ZeRO stage says, and its share
 * of the activations of one micro-batch.  What does not fit without recompute
 * is saved at the least time per byte.
 */
#ifndef PLANNER_BOUNDS_POINT_BOUND_H
#define PLANNER_BOUNDS_POINT_BOUND_H

#include "planner/cost/point.h"

G_BEGIN_DECLS

/* What the families of a point do. */
typedef struct {
    bool splits_backward, bidirectional, overlaps; /* some of them */
} PlanSpaceFamilies;

/* What @family alone does. */
static inline PlanSpaceFamilies
plan_space_family(const ScheduleFamily *family)
{
    return (PlanSpaceFamilies){family->splits_backward,
                               schedule_placement_n_chains(family->placement) > 1,
                               family->overlaps};
}

/*
 * Fills bound_bytes, sliced_bytes, recompute_s and end_s of @point.
 *
 * A collective of b bytes takes a + b / rate, or the least of such, so the time per byte falls with
 * b; and the ranks' gradients add up to the model's: an average rank takes at least its share of
 * what one collective of them all would.
 */
void plan_space_bound_bytes(const PlanRequest *request, const PlanLayerCost *cost,
                            int64_t memory_bytes, PlanPoint *point);

/* What an average rank holds at the least of whole sequences where all forwards run first: the
 * activations of every micro-batch. */
int64_t plan_space_forwards_first_bytes(const PlanRequest *request, const PlanLayerCost *cost,
                                        const PlanPoint *point);

/*
 * A bound on @point's time with the cheapest of the space's families at its vpp.
 * @unit  of the first slice (layer_cost.h), which alone other ranks wait for; whole sequences:
 * @cost
 */
int64_t plan_space_bound_ns(const PlanRequest *request, const PlanLayerCost *cost,
                            const PlanLayerCost *slice, const PlanPoint *point,
                            const PlanSpaceFamilies *families);

/*
 * A bound on @point's time whatever its savers, families and stages: the work
 * of all layers on an average rank.  Less than plan_space_bound_ns(), at less cost.
 * @most_chunks  that a rank may have.
 * @overlaps     some family overlaps pairs of ops.
 */
int64_t plan_space_least_ns(const PlanRequest *request, const PlanLayerCost *cost,
                            const PlanPoint *point, int64_t most_chunks, bool overlaps);

/* A bound on any slicing of @point's sequences: no bubble at all, and what
 * profiles/cost/cost.h says that slices cannot save. */
int64_t plan_space_sliced_ns(const PlanRequest *request, const PlanLayerCost *cost,
                             const PlanPoint *point);

G_END_DECLS

#endif /* PLANNER_BOUNDS_POINT_BOUND_H */
