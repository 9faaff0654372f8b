/*
 * planner/cost/layer_cost.h - what one layer, the embedding and the head take and keep at the
 * least.
 *
 * Internal to planner/.  Times: from the same costs as profiles/workload/workload.c but without
 * what that adds (ZeRO 3, messages), at the fastest place of the cluster: never more than what a
 * Workload says.  Bytes: exactly a Workload's.
 */
#ifndef PLANNER_COST_LAYER_COST_H
#define PLANNER_COST_LAYER_COST_H

#include "planner/cost/request.h"
#include "profiles/cost/mesh.h"

G_BEGIN_DECLS

typedef enum {
    PLAN_PART_DENSE, /* a layer without experts */
    PLAN_PART_MOE,   /* a layer with experts */
    PLAN_PART_EMBEDDING,
    PLAN_PART_HEAD,
    PLAN_PART_N
} PlanPart;

/* One part, for one micro-batch of whole sequences or one slice of it; by what is computed again
 * where that matters (embedding and head never are).  All 0 where the model has none. */
typedef struct {
    double forward_s, backward_s;
    double sliced_forward_s, sliced_backward_s; /* all slices of any slicing, at the least */
    /* Of an unsplit backward until the input's gradient is there, at most all of it; the halves of
     * a split one. */
    double input_s, weight_s;
    double recompute_s[PLAN_RECOMPUTE_N];
    double accumulate_s; /* adding up gradients, when all of them are */
    double hidden_s; /* of both passes, what overlapped pairs of ops hide at the most (bound.c) */
    /* What a device may do besides without the op taking longer: the host does. */
    double forward_slack_s, host_slack_s[PLAN_RECOMPUTE_N]; /* of a backward */
    double input_slack_s[PLAN_RECOMPUTE_N], weight_slack_s; /* of its halves */
    int64_t kept_bytes[PLAN_RECOMPUTE_N];                   /* from forward to backward */
    int64_t weight_bytes; /* from the input's gradient to the weight's */
    /* While an op runs; input_: of an I, on top of both kept_bytes and weight_bytes. */
    int64_t forward_workspace_bytes[PLAN_RECOMPUTE_N], backward_workspace_bytes[PLAN_RECOMPUTE_N];
    int64_t input_workspace_bytes[PLAN_RECOMPUTE_N];
    int64_t dense_parameters, expert_parameters; /* of one device */
} PlanPartCost;

typedef struct {
    PlanPartCost parts[PLAN_PART_N];
    int64_t n_dense, n_moe;                     /* layers; the dense ones come first */
    int64_t tied_parameters;                    /* of a head that needs its own copy of the table */
    int64_t boundary_bytes;                     /* of a message between stages */
    double sliced_forward_s, sliced_backward_s; /* of them: all slices of any slicing */
    double forward_s, backward_s;               /* all layers, embedding and head */
    double input_s;                             /* of backward_s */
    double recompute_s[PLAN_RECOMPUTE_N];
    double layer_forward_s, layer_backward_s, layer_input_s; /* the shortest layer */
    double layer_recompute_s[PLAN_RECOMPUTE_N];
} PlanLayerCost;

/* Where groups of @degrees lie on the request's cluster. */
static inline ProfileMesh
plan_layer_mesh(const PlanRequest *request, const PlanDegrees *degrees)
{
    return (ProfileMesh){request->profile->cluster, degrees, &request->conventions};
}

/* Where the groups of a layer's collectives lie, the first of each: all that layers of equal tp, cp
 * and ep know of pp, dp and the order of ranks. */
static inline void
plan_layer_groups(const PlanRequest *request, const PlanDegrees *degrees,
                  ProfileGroup groups[MODEL_GROUP_N])
{
    const ProfileMesh mesh = plan_layer_mesh(request, degrees);

    for (int i = 0; i < MODEL_GROUP_N; i++)
        groups[i] = profile_group_at(&mesh, (ProfileGroupKind)i, 0);
}

/* What is priced: degrees but vpp, which does not matter, nor, in the default order, dp and pp. */
typedef struct {
    PlanDegrees degrees;
    int64_t micro_batch;
    bool sequence_parallel;
} PlanLayerShape;

/* What is asked of the profile for parts of @shape on whole sequences at device @first. */
ProfileQuery plan_layer_query(const PlanRequest *request, const PlanLayerShape *shape,
                              int64_t first);

PlanLayerCost plan_layer_cost(const PlanRequest *request, const PlanLayerShape *shape);

/* Of sequences in the slices that the request gives, or whole. */
typedef struct {
    PlanLayerCost whole; /* all slices of a micro-batch together, workspaces of the least */
    PlanLayerCost
        slice; /* times of the first slice, the least bytes of any; equal if it is whole */
} PlanSlicedCost;

/*
 * @slices  of int64_t tokens, in order.  Sums of many ops may be less than their ops' sum: what the
 *          host leaves the device to do besides is theirs together.  sliced_forward_s and
 *          sliced_backward_s are set for one slice only.
 */
PlanSlicedCost plan_layer_sliced_cost(const PlanRequest *request, const PlanLayerShape *shape,
                                      const GArray *slices);

/*
 * Returns: (borrowed, nullable) the costs of @shape on whole sequences cut into @n_slices nearly
 * equal slices, from @memo; NULL where the degrees forbid so many.  They do not depend on replicas,
 * pipeline ranks or ZeRO stage.
 */
const PlanSlicedCost *plan_layer_uniform_cost(PlanMemo *memo, const PlanRequest *request,
                                              const PlanLayerShape *shape, int64_t n_slices);

/* State of so many parameters of a device (profiles/workload/workload.h). */
int64_t plan_layer_state_bytes(const PlanRequest *request, const PlanDegrees *degrees,
                               int32_t zero_stage, PlanOffload offload, int64_t dense,
                               int64_t expert);

/* Both passes of every layer, of the embedding and of the head on the device @first, in ns, for
 * dividing layers into stages. */
void plan_layer_times(const PlanRequest *request, const PlanLayerShape *shape,
                      PlanRecompute recompute, int64_t first, int64_t *layer_ns, int64_t end_ns[2]);

/*
 * Whether what one stage recomputes changes what others take: selective recompute tells that
 * Megatron-LM is of a release that adds gradients inside products (profiles/workload/ops.c).
 */
bool plan_layer_recomputes_depend(const PlanRequest *request, const PlanLayerShape *shape);

/* The share of accumulate_s in each of @n backwards of an iteration. */
double plan_layer_accumulated(const PlanRequest *request, const PlanLayerShape *shape, double n);

G_END_DECLS

#endif /* PLANNER_COST_LAYER_COST_H */
