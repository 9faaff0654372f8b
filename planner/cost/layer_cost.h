/*
 * planner/cost/layer_cost.h - what one layer, the embedding and the head take and keep at the
 * least.
 *
 * Times come from the same costs as those of a Workload (profiles/workload/workload.h), without
 * what a Workload adds (ZeRO 3, messages), on the fastest devices of the cluster: never more than
 * what a Workload says.  Bytes are those of a Workload, but for the scratch of degas's executor,
 * which is a layer's own here and that of its stage there.
 *
 * Thread-safety: pure, but for the memo, which is safe.
 */
#pragma once

#include <stddef.h>

#include "planner/cost/request.h"
#include "profiles/cost/mesh.h"
#include "profiles/workload/state.h"

typedef enum {
    PLAN_PART_LAYER, /* a layer of the model's first kind; those of the others follow */
    PLAN_PART_EMBEDDING = MODEL_MAX_KINDS,
    PLAN_PART_HEAD,
    PLAN_PART_N
} PlanPart;

/* One part, for one micro-batch of whole sequences or for one slice of it; by recompute kind where
 * that matters, which it does not for embedding and head.  All 0: the model has no such part. */
typedef struct {
    /* Times, nothing but double; of several kinds of nodes the least. */
    double forward_s, backward_s;
    double sliced_forward_s, sliced_backward_s; /* of all slices of any slicing, at the least */
    double sliced_core_s;                       /* of them, what selective recompute repeats */
    /* The input gradient's share of a whole backward, at most all of it; the weight gradient. */
    double input_s, weight_s;
    /* What the recompute kind adds to the backward, and to the input gradient's share of it: where
     * host and device take turns in being the longer, they differ. */
    double recompute_s[PLAN_RECOMPUTE_N], input_recompute_s[PLAN_RECOMPUTE_N];
    double accumulate_s; /* adding up gradients, in a backward that adds all of them to others */
    /* The most of all kinds of nodes: what overlapped pairs hide of both passes (plan_bound.c). */
    double hidden_s;
    /* What the device may do besides without the op taking longer, since the host does take so
     * long: of a forward, of a backward, and of its halves. */
    double forward_slack_s, host_slack_s[PLAN_RECOMPUTE_N];
    double input_slack_s[PLAN_RECOMPUTE_N], weight_slack_s;
    /* Bytes, nothing but int64_t. */
    int64_t kept_bytes[PLAN_RECOMPUTE_N]; /* from forward to backward */
    /* The same where later slices read keys and values, which no recompute frees; and what the gradients
     * of these and of states take from a micro-batch's first backward on. */
    int64_t sliced_bytes[PLAN_RECOMPUTE_N], kv_gradient_bytes;
    int64_t weight_bytes; /* from the input's gradient to the weight's */
    /* While an op runs; that of an I is on top of both kept_bytes and weight_bytes. */
    int64_t forward_workspace_bytes[PLAN_RECOMPUTE_N], backward_workspace_bytes[PLAN_RECOMPUTE_N];
    int64_t input_workspace_bytes[PLAN_RECOMPUTE_N];
    WorkloadParameterCounts parameters; /* on one device */
} PlanPartCost;
/* So many times, the first ones, are the least of several kinds of nodes. */
#define PLAN_PART_N_LEAST (offsetof(PlanPartCost, hidden_s) / sizeof(double))

typedef struct {
    PlanPartCost parts[PLAN_PART_N];
    int64_t n[PLAN_PART_N];   /* layers of each kind; 1 of each end */
    int n_kinds;              /* of layers: parts 0 to n_kinds - 1 */
    int first_kind;           /* of the model's first layer */
    int64_t tied_parameters;  /* of a head that needs its own copy of the embedding's table */
    int64_t table_parameters; /* of the vocabulary's table, which a stage of MTP modules has, too */
    int64_t boundary_bytes;   /* of a message between stages */
    PlanPartCost all;         /* times: sums over all layers, the embedding and the head */
    PlanPartCost layer;       /* times: the least of all kinds of layers */
} PlanLayerCost;

/* Adds the layers from @first on to before @last to @n, by kind. */
void plan_layer_count(const PlanRequest *request, int64_t first, int64_t last,
                      int64_t n[PLAN_PART_N]);

/* Returns: the mesh of @degrees on the cluster of the request. */
static inline ProfileMesh
plan_layer_mesh(const PlanRequest *request, const PlanDegrees *degrees)
{
    return (ProfileMesh){request->profile->cluster, degrees, &request->conventions};
}

/* Sets @groups to the first group of each kind that a layer's collectives use: all that the cost of
 * a layer depends on besides tp, cp and ep. */
static inline void
plan_layer_groups(const PlanRequest *request, const PlanDegrees *degrees,
                  ProfileGroup groups[MODEL_GROUP_N])
{
    const ProfileMesh mesh = plan_layer_mesh(request, degrees);

    for (int i = 0; i < MODEL_GROUP_N; i++)
        groups[i] = profile_group_at(&mesh, (ProfileGroupKind)i, 0);
}

/* The layers that are priced.  The degree vpp does not matter, nor, in the default rank order, do
 * dp and pp. */
typedef struct {
    PlanDegrees degrees;
    int64_t micro_batch;
    bool sequence_parallel;
    int32_t only_nodes; /* 0: devices of the fastest of the kinds of nodes; n: of the nth kind */
} PlanLayerShape;

/* Returns: the question to the profile for parts of @shape, whole sequences, on the devices from
 * @first on. */
ProfileQuery plan_layer_query(const PlanRequest *request, const PlanLayerShape *shape,
                              int64_t first);

/* The costs of sequences that are cut into slices. */
typedef struct {
    PlanLayerCost
        whole; /* all slices of a micro-batch together, with the least of their workspaces */
    PlanLayerCost slice; /* the times of the first slice, and the least bytes of any */
} PlanSlicedCost;

/*
 * Returns: the costs of @shape on sequences cut as @slices (of int64_t tokens, in order).  What the
 * sums say of many ops together may be less than the sum of what each takes: what the host leaves
 * the device to do besides is summed too.  sliced_forward_s and sliced_backward_s are set for one
 * slice only.
 */
PlanSlicedCost plan_layer_sliced_cost(const PlanRequest *request, const PlanLayerShape *shape,
                                      const GArray *slices);

/* Returns: (borrowed, nullable) the costs of @shape on whole sequences cut into @n_slices nearly
 * equal slices, from @memo; NULL where the degrees forbid so many.  They do not depend on replicas,
 * pipeline ranks or ZeRO stage. */
const PlanSlicedCost *plan_layer_uniform_cost(PlanMemo *memo, const PlanRequest *request,
                                              const PlanLayerShape *shape, int64_t n_slices);

/* Sets @cost to the costs of @shape on whole sequences: those of plan_layer_uniform_cost() with one slice.
 * @memo (nullable) keeps each part by what its own ops depend on, since a space asks for tens of thousands of
 * shapes, which have most of their parts in common. */
void plan_layer_whole_cost(PlanMemo *memo, const PlanRequest *request, const PlanLayerShape *shape,
                           PlanLayerCost *cost);

/* Returns: the state of so many parameters of a device. */
int64_t plan_layer_state_bytes(const PlanRequest *request, const PlanDegrees *degrees,
                               int32_t zero_stage, PlanOffload offload,
                               const WorkloadParameterCounts *n);

/* Adds @times times @n to @sum. */
static inline void
plan_layer_add_parameters(WorkloadParameterCounts *sum, const WorkloadParameterCounts *n,
                          int64_t times)
{
    sum->dense += times * n->dense;
    sum->expert += times * n->expert;
    sum->trained_dense += times * n->trained_dense;
    sum->trained_expert += times * n->trained_expert;
}

/* Returns: @elements of the vocabulary's table, which adapters leave untrained. */
static inline WorkloadParameterCounts
plan_layer_table(const PlanRequest *request, int64_t elements)
{
    return (WorkloadParameterCounts){.dense = elements,
                                     .trained_dense = request->arch->lora.rank > 0 ? 0 : elements};
}

/* Sets @layer_ns [layer] and @end_ns (embedding, head) to the time of both passes on the devices
 * from @first on, for dividing layers into stages. */
void plan_layer_times(const PlanRequest *request, const PlanLayerShape *shape,
                      PlanRecompute recompute, int64_t first, int64_t *layer_ns, int64_t end_ns[2]);

/*
 * Whether the recompute kind of one stage changes what other stages take: selective recompute tells
 * that Megatron-LM is of a release that adds gradients inside products (profiles/workload/ops.c).
 */
bool plan_layer_recomputes_depend(const PlanRequest *request, const PlanLayerShape *shape);

/* Returns: the share of accumulate_s that each of @n backwards of an iteration takes. */
double plan_layer_accumulated(const PlanRequest *request, const PlanLayerShape *shape, double n);
