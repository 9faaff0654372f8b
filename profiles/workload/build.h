/*
 * profiles/workload/build.h - what the files of this room share while they make a Workload.
 *
 * Internal to this room.
 */
#pragma once

#include "base/saturate.h"
#include "profiles/cost/mesh.h"
#include "profiles/workload/buffers.h"
#include "profiles/workload/memory.h"
#include "profiles/workload/ops.h"
#include "profiles/workload/prefetch.h"
#include "profiles/workload/state.h"
#include "profiles/workload/zero3.h"

/* What parts hold, as far as it was asked: whatever their stage, layers of a kind hold the same.  All
 * bits are 0 at first. */
typedef struct {
    WorkloadParameters layers[MODEL_MAX_KINDS], ends[2][2]; /* [part][tied copy] */
    bool knows_layers[MODEL_MAX_KINDS], knows_ends[2][2];
    WorkloadPartBytes *bytes; /* [(class * n_slices + slice) * n_kinds + kind] */
    bool *knows_bytes;        /* likewise */
} WorkloadPartMemo;

/* What a Workload is made of.  All pointers are borrowed. */
typedef struct {
    const ModelArch *arch;
    const Profile *profile;
    const Plan *plan;
    const PlanFrameworkFacts *facts; /* of the plan's framework */
    int32_t n_stages, n_chains, n_slices, n_classes;
    const int64_t *class_sequences;   /* [n_classes] */
    const int64_t *contexts;          /* [n_slices] tokens before each slice */
    const WorkloadPrefetch *prefetch; /* (nullable) that of the Workload */
    WorkloadPartMemo *memo;           /* (nullable) written by one thread */
} WorkloadBuild;

/* Bytes of a weight or an activation as it is stored. */
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

static inline ProfileMesh
workload_build_mesh(const WorkloadBuild *build)
{
    return (ProfileMesh){build->profile->cluster, &build->plan->degrees, &build->plan->conventions};
}

/* Products and sums of bytes that stop far beyond any memory, so that sums of them still fit. */
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

/* --- location.c --- */

/* The devices of a pipeline rank.  Ops at locations that are equal cost the same. */
typedef struct {
    int64_t device_rank; /* the number of its slowest device */
    const ModelDevice *device;
    ProfileGroup groups[MODEL_GROUP_N];
    int64_t memory_bytes; /* of the device that has least */
} WorkloadLocation;

WorkloadLocation workload_build_location(const WorkloadBuild *build, int32_t rank);

/* Whether ops cost the same at both locations: they have the same kind of device, and all groups
 * lie alike. */
bool workload_build_same_costs(const WorkloadBuild *build, const WorkloadLocation *a,
                               const WorkloadLocation *b);

/* The group of @kind that stands for all such groups of pipeline rank @rank. */
ProfileGroup workload_build_group(const WorkloadBuild *build, ProfileGroupKind kind, int32_t rank);

/* Returns: (owned) how many tokens of a sequence are before each slice of the plan. */
int64_t *workload_build_contexts(const Plan *plan);

/* The shape of a slice of a micro-batch of class @class_. */
ModelShape workload_build_shape(const WorkloadBuild *build, int32_t class_, int32_t slice);

/* Sets the mean price and power of the plan's devices; 0 where that of any of them is unknown. */
void workload_build_set_rates(const WorkloadBuild *build, Workload *workload);

/* --- links.c --- */

/* Returns: (owned) the links of the plan's pipeline ranks. */
WorkloadLinks *workload_build_links(const WorkloadBuild *build);

/* Adds the bytes that one device sends to each level in the collectives of @pass among the @n @ops of
 * a part. */
void workload_build_add_traffic(const WorkloadBuild *build, const WorkloadLocation *location,
                                const ModelOp *ops, size_t n, ProfilePass pass,
                                double traffic_bytes[MODEL_CLUSTER_MAX_LEVELS]);

/* --- ops.c --- */

/* The question to profile_cost_part() about one part at @location. */
ProfileQuery workload_build_query(const WorkloadBuild *build, const WorkloadLocation *location,
                                  ModelPart part, int64_t layer, const ModelShape *shape);

/* Fills workload->ops.  @locations is indexed by pipeline rank. */
void workload_build_set_ops(const WorkloadBuild *build, const WorkloadLocation *locations,
                            Workload *workload);

/* --- zero3.c --- */

/* What one part costs in each kind of op. */
typedef struct {
    ProfileCost cost[SCHEDULE_OP_N];
    double zero3_s[SCHEDULE_OP_N]; /* collectives of ZeRO 3; workload_build_hide() adds to cost what
                                      of them is seen */
    double waits_s[SCHEDULE_OP_N]; /* the part of zero3_s that no prefetch hides */
    double traffic_bytes[SCHEDULE_OP_N][MODEL_CLUSTER_MAX_LEVELS];
} WorkloadPartCost;

/* Sets zero3_s and waits_s of @cost and adds the traffic of ZeRO 3: parameters are gathered for the
 * forward, for what is recomputed and for the backward, and gradients are reduced after it. */
void workload_build_zero3(const WorkloadBuild *build, const WorkloadLocation *location,
                          int32_t rank, ModelPart part, int64_t layer, PlanRecompute recompute,
                          WorkloadPartCost *cost);

/* Adds to the costs of an op's @n parts, given in the order of its forward, the part of zero3_s
 * that computing does not hide, and by how much the rest slows computing down. */
void workload_build_hide(const WorkloadBuild *build, int64_t n, WorkloadPartCost *const *parts);

/* Whether the collectives of a part can run while other parts compute, so that the parts of an op
 * have to be priced together. */
bool workload_build_parts_meet(const WorkloadBuild *build);

/* Elements of the model's first layer on one device. */
int64_t workload_build_first_layer(const ModelArch *arch, const Plan *plan);

/* --- state.c --- */

WorkloadParameters workload_build_parameters(const WorkloadBuild *build, int32_t rank);

/* The same of one part, without tied.  @tied_copy as for model_part_parameters(). */
WorkloadParameters workload_build_part_parameters(const WorkloadBuild *build, ModelPart part,
                                                  int64_t layer, bool tied_copy);

/* --- buffers.c --- */

/* Whether stage number @i, of all chains, receives its input, or the gradient of its result, into buffers that are
 * there for all micro-batches: with torch.distributed.pipelining (stage.py: _prepare_forward_infra(),
 * _prepare_backward_infra()), whose frameworks are those that collect outputs. */
bool workload_build_receives_all(const WorkloadBuild *build, guint i, bool forward);

/* Fills the static_bytes of @rank.  The messages of all stages must be known. */
void workload_build_static(const WorkloadBuild *build, const Workload *workload, int32_t rank,
                           int64_t static_bytes[TRACE_MEMORY_N]);

/* --- memory.c --- */

/* Bytes of a product's result that are there while the op runs; 0: other ops, and results that the
 * next op saves. */
int64_t workload_build_output_bytes(const ModelOp *op, double element_bytes);

/* Fills the activation, kv and workspace bytes of one op, and its last_bytes of build->prefetch
 * (nullable) [SCHEDULE_OP_N * depth]. */
void workload_build_op_memory(const WorkloadBuild *build, const PlanStage *stage, int32_t class_,
                              int32_t slice, WorkloadOp *op, int64_t *last_bytes);

/* Where the framework keeps K and V of a micro-batch in one block (joins_kv), moves those of all
 * slices, and their gradients, to the first slice: its forward is the first and its backward the
 * last. */
void workload_build_join_kv(const WorkloadBuild *build, Workload *workload);

/* --- prefetch.c --- */

/* Returns: (owned, nullable) what the stages gather; its last_bytes are not set. */
WorkloadPrefetch *workload_build_prefetch(const WorkloadBuild *build);

/* One part in the course of an op: what it keeps, and what is whole while it is at work although
 * replicas split it: weights (ZeRO 3), and gradients until they are reduced (ZeRO 2 and 3). */
typedef struct {
    int64_t kept_bytes, weight_kept_bytes;
    int64_t weights_bytes, gradients_bytes;
    int64_t own_bytes[SCHEDULE_OP_N]; /* while it is at work, beyond the op's workspace */
    int64_t unit_bytes; /* in B and I: what layers before it that are repeated with it have saved */
    int layer_kind;     /* -1: the embedding, what MTP modules embed, or the head */
    bool embeds;        /* the embedding, or what an MTP module embeds */
} WorkloadCoursePart;

WorkloadCoursePart workload_build_course_part(const WorkloadBuild *build, ModelPart part,
                                              int64_t layer, const WorkloadKeptBytes *kept);

/* The parts that an op goes through, in the order of its forward. */
typedef struct {
    const WorkloadCoursePart *parts;
    int64_t n_parts;
    bool embedding;              /* the first part is the embedding */
    const int64_t *again_bytes;  /* [SCHEDULE_OP_N] of the workspace: what a layer recomputes */
    int64_t prefetch_most_bytes; /* WorkloadPrefetch.most_bytes of the rank */
} WorkloadCourse;

/* Raises the workspaces of @op, whose other bytes are set, to what its course needs.  @last_bytes
 * as for workload_build_op_memory(). */
void workload_build_add_course(const WorkloadBuild *build, const WorkloadCourse *course,
                               WorkloadOp *op, int64_t *last_bytes);
