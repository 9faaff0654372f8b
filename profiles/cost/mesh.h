/*
 * profiles/cost/mesh.h - which devices of a cluster form the groups of a plan.
 *
 * The devices of a group follow from the plan's degrees and their order (schedule/rank_order.h).
 * All groups of one kind of a pipeline rank run the same collective at the same time; where they do
 * not lie alike on the cluster, the one that spans the outermost level stands for all.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "profiles/cost/cost.h"
#include "schedule/plan.h"

typedef enum {
    PROFILE_GROUP_TP = MODEL_GROUP_TP,
    PROFILE_GROUP_CP = MODEL_GROUP_CP,
    PROFILE_GROUP_EP = MODEL_GROUP_EP,
    PROFILE_GROUP_ETP = MODEL_GROUP_ETP,
    PROFILE_GROUP_DENSE = MODEL_GROUP_N, /* the ranks that hold the same dense parameters */
    PROFILE_GROUP_EXPERT,                /* ... and the same expert parameters */
    PROFILE_GROUP_STAGE,                 /* all of a pipeline rank */
    PROFILE_GROUP_N,
} ProfileGroupKind;

/* A plan's degrees laid over the devices of a cluster.  All members are borrowed. */
typedef struct {
    const ModelCluster *cluster;
    const PlanDegrees *degrees;
    const PlanConventions *conventions;
} ProfileMesh;

/* The group of @kind that begins with device @first, as if a pipeline rank began there. */
ProfileGroup profile_group_at(const ProfileMesh *mesh, ProfileGroupKind kind, int64_t first);

/* The group of @kind that stands for all groups of that kind of pipeline rank @rank. */
ProfileGroup profile_group_of_rank(const ProfileMesh *mesh, ProfileGroupKind kind, int64_t rank);

/* Two devices that send each other the messages between stages @from and @to, and that stand for
 * all such pairs; the device of the lower stage comes first. */
ProfileGroup profile_group_pair(const ProfileMesh *mesh, int64_t from, int64_t to);

/*
 * Whether all pipeline ranks, and all groups of one kind, lie alike on the cluster: there is one
 * kind of nodes, and every product of degrees from the fastest dimension on divides the groups of
 * every level or is a multiple of them.  In the default order only the product of a whole stage
 * counts.
 */
bool profile_mesh_is_aligned(const ProfileMesh *mesh);

/* How many ranks of the group of each kind lie in one group of each level of the cluster, for a
 * mesh that is aligned.  Rank orders with equal counts cost the same. */
typedef struct {
    int64_t n[MODEL_CLUSTER_MAX_LEVELS][PROFILE_GROUP_N]; /* [level][kind] */
} ProfileMeshCounts;

void profile_mesh_counts(const ProfileMesh *mesh, ProfileMeshCounts *counts);
