/*
 * profiles/workload/build.h - what the parts of workload*.c share while a Workload is made.
 * Internal to profiles/.
 */
#ifndef PROFILES_WORKLOAD_BUILD_H
#define PROFILES_WORKLOAD_BUILD_H

#include "base/saturate.h"
#include "profiles/cost/mesh.h"
#include "profiles/workload/ahead.h"

G_BEGIN_DECLS

/* Dense and MoE layers differ. */
#define WORKLOAD_LAYER_KINDS 2

/* What is built, from what.  All borrowed. */
typedef struct {
    const ModelArch *arch;
    const Profile *profile;
    const Plan *plan;
    const PlanFrameworkFacts *facts; /* of the plan's framework */
    int32_t n_stages, n_chains, n_slices, n_classes;
    const int64_t *class_sequences; /* n_classes */
    const int64_t *contexts;        /* n_slices: tokens before each slice */
    const WorkloadAhead *ahead;     /* (nullable) that of the Workload */
} WorkloadBuild;

/* One pipeline rank's place; equal places have equal costs. */
typedef struct {
    int64_t device_rank; /* the slowest of its devices */
    const ModelDevice *device;
    ProfileGroup groups[MODEL_GROUP_N];
    int64_t memory_bytes; /* the least */
} WorkloadLocation;

static inline int64_t
workload_build_element_bytes(const Plan *plan)
{
    return dtype_bytes(dtype_stored(plan->dtype));
}

static inline const PlanStage *
workload_build_stage(const WorkloadBuild *build, int32_t chain, int32_t stage)
{
    return &g_array_index(build->plan->stages, PlanStage, chain * build->n_stages + stage);
}

/* Where the plan's groups lie. */
static inline ProfileMesh
workload_build_mesh(const WorkloadBuild *build)
{
    return (ProfileMesh){build->profile->cluster, &build->plan->degrees, &build->plan->conventions};
}

/* The group of @kind that stands for those of pipeline rank @rank. */
ProfileGroup workload_build_group(const WorkloadBuild *build, ProfileGroupKind kind, int32_t rank);

/* Shape of (class, slice). */
ModelShape workload_build_shape(const WorkloadBuild *build, int32_t class_, int32_t slice);

/* Which of the two kinds of layer, and a layer of that kind (-1: the model has none). */
int workload_build_layer_kind(const WorkloadBuild *build, int64_t layer);
int64_t workload_build_layer_of_kind(const WorkloadBuild *build, int kind);

/* --- workload_place.c --- */

WorkloadLocation workload_build_location(const WorkloadBuild *build, int32_t rank);

/* Price and power of a device, means over the plan's devices; 0 where one is not known. */
void workload_build_set_rates(const WorkloadBuild *build, Workload *workload);

/* Whether ops at both places cost the same: device kind, and how every group lies. */
bool workload_build_same_costs(const WorkloadBuild *build, const WorkloadLocation *a,
                               const WorkloadLocation *b);

/* --- workload_links.c --- */

/* Returns: (owned) the links of the plan's ranks. */
WorkloadLinks *workload_build_links(const WorkloadBuild *build);

/* Adds what a device gives to each level of the network in the collectives of one part's @pass. */
void workload_build_add_traffic(const WorkloadBuild *build, const WorkloadLocation *location,
                                const ProfileQuery *query, ProfilePass pass,
                                double traffic_bytes[MODEL_CLUSTER_MAX_LEVELS]);

/* --- workload_ops.c --- */

/* What a pass of a layer, the embedding or the head asks of cost.h. */
ProfileQuery workload_build_query(const WorkloadBuild *build, const WorkloadLocation *location,
                                  ModelPart part, int64_t layer, const ModelShape *shape);

/* Fills workload->ops; @places by pipeline rank. */
void workload_build_set_ops(const WorkloadBuild *build, const WorkloadLocation *locations,
                            Workload *workload);

/* --- workload_zero3.c --- */

/* What one part costs, by ScheduleOpKind. */
typedef struct {
    ProfileCost cost[SCHEDULE_OP_N];
    double
        zero3_s[SCHEDULE_OP_N]; /* collectives of ZeRO 3, in cost from workload_build_hide() on */
    double waits_s[SCHEDULE_OP_N]; /* of them: gathers that are never ahead of use */
    double traffic_bytes[SCHEDULE_OP_N][MODEL_CLUSTER_MAX_LEVELS];
} WorkloadPartCost;

/* Sets zero3_s, waits_s and adds its traffic: parameters are gathered for forward, for what is
 * computed again and for backward, and gradients scattered after it. */
void workload_build_zero3(const WorkloadBuild *build, const WorkloadLocation *location,
                          int32_t rank, ModelPart part, int64_t layer, PlanRecompute recompute,
                          WorkloadPartCost *cost);

/* Adds to the costs of an op's parts, in the order of its forward, what computing does not hide of
 * zero3_s, and what it is slowed down by the rest. */
void workload_build_hide(const WorkloadBuild *build, int64_t n, WorkloadPartCost *const *parts);

/* Whether a part's collectives run behind other parts than it; else each can be priced alone. */
bool workload_build_parts_meet(const WorkloadBuild *build);

/* Elements of the model's first layer on a device. */
int64_t workload_build_first_layer(const ModelArch *arch, const Plan *plan);

/* --- workload_state.c, workload_memory.c --- */

/* Products and sums of bytes that saturate far beyond any memory, so that sums of them still fit.
 */
static inline int64_t
workload_build_mul(int64_t a, int64_t b)
{
    return saturate_product(a, b, INT64_MAX / 16);
}

static inline void
workload_build_add(int64_t *sum, int64_t bytes)
{
    *sum = saturate_sum(*sum, bytes, INT64_MAX / 64);
}

/* Parameters one device holds of a pipeline rank's stages. */
typedef struct {
    int64_t dense, expert;
    int64_t tied; /* of dense: the table that the first and last stage both hold */
} WorkloadParameters;

WorkloadParameters workload_build_parameters(const WorkloadBuild *build, int32_t rank);

/* Fills static_bytes of @rank; ops of all stages must be there (messages). */
void workload_build_static(const WorkloadBuild *build, const Workload *workload, int32_t rank,
                           int64_t static_bytes[TRACE_MEMORY_N]);

/* Fills activation, kv and workspace bytes of one op, and its @last_bytes (nullable)
 * [SCHEDULE_OP_N * depth] of build->ahead. */
void workload_build_op_memory(const WorkloadBuild *build, const PlanStage *stage, int32_t class_,
                              int32_t slice, WorkloadOp *op, int64_t *last_bytes);

/* The executor's attention has K and V, and their gradients, of a micro-batch in one block: the
 * first slice's from then on, as its forward is the first and its backward the last. */
void workload_build_join_kv(const WorkloadBuild *build, Workload *workload);

/* --- workload_whole.c --- */

/* Returns: (owned, nullable) what the stages gather; last_bytes are to be set. */
WorkloadAhead *workload_build_ahead(const WorkloadBuild *build);

/* Of a layer or an end: what it keeps, and what the executor has whole while it is at work where
 * the rank keeps a share of it: weights (ZeRO 3), and gradients until they are reduced (2, 3). */
typedef struct {
    int64_t kept_bytes, weight_kept_bytes;
    int64_t weights_bytes, gradients_bytes;
    int64_t own_bytes[SCHEDULE_OP_N]; /* while it is at work, beside the op's workspace */
    int layer_kind;                   /* -1: an end */
} WorkloadWholePart;

WorkloadWholePart workload_build_whole(const WorkloadBuild *build, ModelPart part, int64_t layer,
                                       const WorkloadHeldBytes *held);

/* The parts of an op in the order of its forward. */
typedef struct {
    const WorkloadWholePart *parts;
    int64_t n_parts;
    bool embedding;           /* the first part is */
    int64_t again_bytes;      /* of the workspace: what a layer computes again */
    int64_t ahead_most_bytes; /* WorkloadAhead.most_bytes of the rank */
} WorkloadWhole;

/* To the workspaces of @op, whose other bytes are there.  @last_bytes as above. */
void workload_build_add_whole(const WorkloadBuild *build, const WorkloadWhole *whole,
                              WorkloadOp *op, int64_t *last_bytes);

G_END_DECLS

#endif /* PROFILES_WORKLOAD_BUILD_H */
