/*
 * planner/layer_cost.h - the least that one layer, the embedding and the head can take and keep.
 *
 * Internal to planner/.  From the same costs as profiles/workload.c but without what that adds
 * (gradient accumulation, ZeRO 3, host time of frameworks, messages), at the fastest place of the
 * cluster: never more than what a Workload says.
 */
#ifndef PLANNER_LAYER_COST_H
#define PLANNER_LAYER_COST_H

#include "planner/space.h"

G_BEGIN_DECLS

/* Seconds of one micro-batch. */
typedef struct {
    double forward_s, backward_s; /* all layers, embedding and head */
    double recompute_s[PLAN_RECOMPUTE_N];
    double layer_forward_s, layer_backward_s; /* the shortest layer */
    double layer_recompute_s[PLAN_RECOMPUTE_N];
    double head_s;                        /* both passes */
    double input_s, layer_input_s;        /* of backward_s: until the input's gradient is there */
    int64_t kept_bytes[PLAN_RECOMPUTE_N]; /* from forward to backward by the smallest layer */
} PlanLayerCost;

/* Only degrees, micro_batch and sequence_parallel of @point are read. */
PlanLayerCost plan_layer_cost(const PlanRequest *request, const PlanPoint *point);

/* The bound of space.h on @point's time with the cheapest of the space's families at its vpp. */
int64_t plan_layer_bound_ns(const PlanRequest *request, const PlanPoint *point,
                            const PlanLayerCost *cost, bool splits_backward, bool bidirectional);

/*
 * A bound on any slicing of @point's sequences: no bubble at all, and of scores that are computed
 * in full only the half that slices need.  Slices never make another op cheaper (cost-model.md 2),
 * but for how tiles happen to fill the device; hence 2% off.
 */
int64_t plan_layer_sliced_bound_ns(const PlanRequest *request, const PlanPoint *point,
                                   const PlanLayerCost *cost);

/* Both passes of every layer, of the embedding and of the head, in ns, for dividing layers into
 * stages.  @layer_ns has room for all layers. */
void plan_layer_times(const PlanRequest *request, const PlanPoint *point, int64_t *layer_ns,
                      int64_t *embedding_ns, int64_t *head_ns);

/* Bytes of the parameters of one device per pipeline rank, on average: weights, gradients,
 * optimizer; and (out) of the smallest layer alone. */
int64_t plan_layer_state_bytes(const PlanRequest *request, const PlanPoint *point,
                               int64_t *layer_bytes);

G_END_DECLS

#endif /* PLANNER_LAYER_COST_H */
