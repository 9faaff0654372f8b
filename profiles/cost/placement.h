/*
 * profiles/cost/placement.h - where the groups of a plan lie on a cluster.
 *
 * The devices of a group follow from the plan's degrees and their order (schedule/rank_order.h).  A
 * stage's groups of one kind do the same at the same time; where they do not all lie alike, the one
 * that spans the outermost level stands for them.
 *
 * Thread-safety: pure.
 */
#ifndef PROFILES_COST_PLACEMENT_H
#define PROFILES_COST_PLACEMENT_H

#include "profiles/cost/cost.h"
#include "schedule/plan.h"

G_BEGIN_DECLS

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

/* A plan's degrees and what of its conventions decides groups, on a cluster.  All borrowed. */
typedef struct {
    const ModelCluster *cluster;
    const PlanDegrees *degrees;
    const PlanConventions *conventions;
} ProfileMesh;

/* The group of @kind that holds pipeline rank @rank's first device, were that device @first. */
ProfileGroup profile_group_at(const ProfileMesh *mesh, ProfileGroupKind kind, int64_t first);

/* The group of @kind that stands for those of pipeline rank @rank. */
ProfileGroup profile_group_of_rank(const ProfileMesh *mesh, ProfileGroupKind kind, int64_t rank);

/* Two devices that stand for those of stages @from and @to with equal coordinates: one of @from
 * first. */
ProfileGroup profile_group_pair(const ProfileMesh *mesh, int64_t from, int64_t to);

/*
 * Whether all stages, and all groups of a kind, lie alike: one kind of nodes, and every product of
 * degrees from the fastest on divides the groups of every level, or is divided by them.  With pp
 * slowest only whole stages are asked.
 */
bool profile_mesh_is_aligned(const ProfileMesh *mesh);

/*
 * Of an aligned plan: how many ranks of the group of each kind lie in one group of each level.
 * Orders with equal counts cost the same.  @counts [level][kind]; the levels are the cluster's.
 */
typedef struct {
    int64_t n[MODEL_CLUSTER_MAX_LEVELS][PROFILE_GROUP_N];
} ProfileMeshCounts;

void profile_mesh_counts(const ProfileMesh *mesh, ProfileMeshCounts *counts);

G_END_DECLS

#endif /* PROFILES_COST_PLACEMENT_H */
