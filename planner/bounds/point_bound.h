/*
 * planner/bounds/point_bound.h - how long a point of the space takes, and what it holds, at the
 * least.
 *
 * Time.  Let T be the time of one micro-batch through all layers on the devices of one rank, m the
 * number of micro-batches, p of ranks, w_r the time of the layers of rank r, and f the least share
 * of w that is the forward of its first slice; with unsplit backwards, for which the ranks before
 * wait too, f counts the backward of that slice as well, so for whole sequences f is 1.  However
 * the layers are divided into p stages, every rank r has
 *
 *   iteration >= m w_r + f (w_0 + ... + w_(r-1))
 *
 * since it waits for the ranks before it.  The maximum over r is least, over all divisions, where
 * all are equal, which they are for w_(r+1) = w_r (1 - f / m):
 *
 *   iteration >= T f / (1 - (1 - f / m)^p)     -> m T / p for large m
 *
 * Even stages have the sharper bound of their last rank.  With v chunks of n layers each at least,
 * which take t each, iteration >= (m v + p - 1) n t for unsplit backwards.
 *
 * Memory: the state of the parameters of an average rank, sharded as the ZeRO stage says, and its
 * share of the activations of one micro-batch.  What does not fit without recompute is saved at the
 * least time per byte.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "planner/cost/point.h"

/* What some of the families of a point do. */
typedef struct {
    bool splits_backward, bidirectional, overlaps;
} PlanPointFamilies;

/* What @family alone does. */
static inline PlanPointFamilies
plan_point_family(const ScheduleFamily *family)
{
    return (PlanPointFamilies){family->splits_backward,
                               schedule_placement_n_chains(family->placement) > 1,
                               family->overlaps};
}

/*
 * Sets bound_bytes, sliced_bytes, recompute_s, end_s and, of ZeRO 3, gather_s and scatter_s of
 * @point.
 *
 * Why end_s is a bound: a collective of b bytes takes a + b / rate, or the least of several such,
 * so the time per byte falls with b; and the gradients of the ranks add up to those of the model.
 * So an average rank takes at least its share of what one collective of all of them would.  The
 * optimizer's step takes a constant and a time per parameter (profiles/workload/step.h).
 */
void plan_point_bound_bytes(const PlanRequest *request, const PlanLayerCost *cost,
                            int64_t memory_bytes, PlanPoint *point);

/*
 * Returns: what a rank that always holds @static_bytes or more may hold besides at the most;
 * INFINITY: there is no limit; negative: it does not fit.  The allocator loses a share of what comes
 * and goes (profiles/workload/buffers.h), unless the request has a limit of its own.
 * @memory_bytes  of the largest device, or the request's limit; INT64_MAX: none
 */
double plan_point_usable_bytes(const PlanRequest *request, const PlanDegrees *degrees,
                               int64_t memory_bytes, double static_bytes);

/* Sets sliced_bytes, larger than @memory_bytes if nothing fits, and sliced_recompute_s of @point to those of plans whose largest micro-batch has
 * @group sequences.  What has to be recomputed for it is recomputed for all micro-batches. */
void plan_point_set_group(const PlanRequest *request, const PlanLayerCost *cost,
                          int64_t memory_bytes, int64_t group, PlanPoint *point);

/* Returns: what recompute kind @kind adds at the least to what a layer of @part takes of one micro-batch with kind
 * @plain, with any slices. */
double plan_point_sliced_added_s(const PlanPartCost *part, int plain, int kind);

/* Returns: how many bytes of those that layers keep of one micro-batch a second of recompute saves at
 * the most, with any slices; INFINITY: recompute is free, or not known; 0: it saves nothing. */
double plan_point_sliced_rate(const PlanRequest *request, const PlanLayerCost *cost);

/* Returns: what an average rank holds at the least where all forwards of whole sequences run first:
 * the activations of every micro-batch. */
int64_t plan_point_forwards_first_bytes(const PlanRequest *request, const PlanLayerCost *cost,
                                        const PlanPoint *point);

/*
 * Returns: a bound on the time of @point with the cheapest of @families at its number of chunks.
 * @slice  costs of the first slice, for which alone other ranks wait; @cost where sequences are
 * whole
 */
int64_t plan_point_bound_ns(const PlanRequest *request, const PlanLayerCost *cost,
                            const PlanLayerCost *slice, const PlanPoint *point,
                            const PlanPointFamilies *families);

/*
 * Returns: a bound on the time of @point whatever its ZeRO stage, offload, families and stages: the
 * work of all layers on an average rank.  It is at most plan_point_bound_ns(), and cheaper.
 * @most_chunks  that a rank may have
 * @overlaps     some family overlaps pairs of ops
 */
int64_t plan_point_least_ns(const PlanRequest *request, const PlanLayerCost *cost,
                            const PlanPoint *point, int64_t most_chunks, bool overlaps);

/* Returns: a bound on any slicing of the sequences at @point: no bubble at all, and what
 * profiles/cost/cost.h says that slices cannot save. */
int64_t plan_point_sliced_ns(const PlanRequest *request, const PlanLayerCost *cost,
                             const PlanPoint *point);
