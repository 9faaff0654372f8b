#include "profiles/cost/mesh.h"

#include <string.h>

#include "schedule/rank_order.h"

/* --- groups --- */

/* Along one or two dimensions, the nearer first; those of degree 1 do not count. */
static ProfileGroup
along(const PlanDegrees *d, int64_t first, PlanDim a, PlanDim b)
{
    int64_t strides[PLAN_DIM_N];

    plan_strides(d, strides);
    const PlanDim near = strides[a] <= strides[b] ? a : b, far = near == a ? b : a;
    const int64_t n_near = plan_degree(d, near), n_far = near == far ? 1 : plan_degree(d, far);
    ProfileGroup group = {.first = first, .stride = strides[near], .n = n_near * n_far};

    if (group.n == 1)
        group.stride = 1;
    else if (n_near == 1)
        group.stride = strides[far];
    else if (n_far > 1 && strides[far] != strides[near] * n_near)
        group.per_run = n_near, group.run_stride = strides[far];
    return group;
}

/* Every @stride-th device of a stage, by their index in it. */
static ProfileGroup
of_stage(const PlanDegrees *d, int64_t first, int64_t stride, int64_t n)
{
    const int64_t run = plan_stage_run(d);
    ProfileGroup group = {.first = first, .stride = stride, .n = n};

    if (n == 1)
        group.stride = 1;
    if (plan_stages_are_runs(d) || n == 1)
        return group;
    if (stride >= run)
        group.stride = stride * d->pp;
    else if (stride * n > run)
        group.per_run = run / stride, group.run_stride = run * d->pp;
    return group;
}

ProfileGroup
profile_group_at(const ProfileMesh *mesh, ProfileGroupKind kind, int64_t first)
{
    const PlanDegrees *d = mesh->degrees;
    const int64_t etp = plan_expert_tp(d, mesh->conventions);
    ProfileGroup group = {.first = first, .stride = 1, .n = 1};

    switch (kind) {
    case PROFILE_GROUP_TP:
        group = along(d, first, PLAN_DIM_TP, PLAN_DIM_TP);
        break;
    case PROFILE_GROUP_CP:
        group = along(d, first, PLAN_DIM_CP, PLAN_DIM_CP);
        break;
    case PROFILE_GROUP_EP:
        group = of_stage(d, first, etp, d->ep);
        break;
    case PROFILE_GROUP_ETP:
        group = of_stage(d, first, 1, etp);
        break;
    case PROFILE_GROUP_DENSE:
        group = along(d, first, PLAN_DIM_CP, PLAN_DIM_DP);
        break;
    case PROFILE_GROUP_EXPERT:
        group = of_stage(d, first, d->ep * etp, plan_expert_replicas(d, mesh->conventions));
        break;
    case PROFILE_GROUP_STAGE:
        group = of_stage(d, first, 1, plan_stage_devices(d));
        break;
    case PROFILE_GROUP_N:
        g_return_val_if_reached(group);
    }
    /* Of one that lies in one run, all that is near does the same. */
    if (!plan_stages_are_runs(d) && profile_group_last(&group) - first >= plan_stage_run(d))
        group.busy = plan_stage_run(d), group.period = group.busy * d->pp;
    return group;
}

/* --- those that stand for others --- */

static size_t
level_of(const ModelCluster *cluster, const ProfileGroup *group)
{
    return model_cluster_level_between(cluster, group->first, profile_group_last(group));
}

/* Whether @device is the first of its group of the shape of @group: its digits along the group's
 * dimensions are 0. */
static bool
begins_group(const ProfileGroup *group, int64_t device)
{
    if (group->per_run == 0)
        return device / group->stride % group->n == 0;
    return device / group->stride % group->per_run == 0 &&
           device / group->run_stride % (group->n / group->per_run) == 0;
}

/* Of the groups of pipeline rank @rank that have the shape of @group the first of those that span
 * the outermost level.  @is_pair: every device of the stage begins one. */
static ProfileGroup
widest(const ProfileMesh *mesh, ProfileGroup group, int64_t rank, bool is_pair)
{
    const PlanDegrees *d = mesh->degrees;
    const int64_t n = plan_stage_devices(d), run = plan_stage_run(d);
    int64_t begin = group.first; /* of the run that device i lies in */
    ProfileGroup best = group;
    size_t outermost = level_of(mesh->cluster, &group);

    /* None spans more than the outermost level. */
    for (int64_t i = 1; i < n && outermost + 1 < mesh->cluster->levels->len; i++) {
        if (i % run == 0)
            begin = plan_stage_device(d, rank, i);
        group.first = begin + i % run;
        if (!is_pair && !begins_group(&group, group.first))
            continue;
        const size_t level = level_of(mesh->cluster, &group);
        if (level > outermost) {
            outermost = level;
            best = group;
        }
    }
    return best;
}

static bool
may_differ(const ProfileMesh *mesh, const ProfileGroup *group)
{
    return group->n > 1 && !plan_rank_order_is_default(mesh->degrees) &&
           !profile_mesh_is_aligned(mesh);
}

ProfileGroup
profile_group_of_rank(const ProfileMesh *mesh, ProfileGroupKind kind, int64_t rank)
{
    const ProfileGroup group =
        profile_group_at(mesh, kind, plan_stage_device(mesh->degrees, rank, 0));

    return kind != PROFILE_GROUP_STAGE && may_differ(mesh, &group)
               ? widest(mesh, group, rank, false)
               : group;
}

ProfileGroup
profile_group_pair(const ProfileMesh *mesh, int64_t from, int64_t to)
{
    const PlanDegrees *d = mesh->degrees;
    ProfileGroup group =
        profile_group_at(mesh, PROFILE_GROUP_STAGE, plan_stage_device(d, MIN(from, to), 0));

    group.stride = ABS(to - from) * plan_stage_run(d);
    group.n = 2;
    group.per_run = group.run_stride = 0;
    return may_differ(mesh, &group) ? widest(mesh, group, MIN(from, to), true) : group;
}

/* --- alignment --- */

static bool
nests(int64_t a, int64_t b)
{
    return a <= 0 || b <= 0 || a % b == 0 || b % a == 0;
}

/* Whether runs of @n devices, one after the other, nest with nodes and groups of all levels. */
static bool
nests_everywhere(const ModelCluster *cluster, int64_t n)
{
    if (!nests(g_array_index(cluster->nodes, ModelNodes, 0).n_devices, n))
        return false;
    for (guint i = 0; i < cluster->levels->len; i++)
        if (!nests(g_array_index(cluster->levels, ModelLevel, i).group_devices, n))
            return false;
    return true;
}

bool
profile_mesh_is_aligned(const ProfileMesh *mesh)
{
    const ModelCluster *cluster = mesh->cluster;
    const PlanDegrees *d = mesh->degrees;
    const int64_t experts = d->ep * plan_expert_tp(d, mesh->conventions);
    const int64_t run = plan_stage_run(d);
    PlanDim dims[PLAN_DIM_N];
    int64_t n = 1;

    if (cluster->nodes->len != 1)
        return false;
    if (plan_rank_order_is_default(d))
        return nests_everywhere(cluster, run);
    plan_rank_order_dims(d->rank_order, dims);
    for (int i = 0; i < PLAN_DIM_N; i++) {
        n *= plan_degree(d, dims[i]);
        if (!nests_everywhere(cluster, n))
            return false;
    }
    return nests_everywhere(cluster, experts <= run ? experts : experts * d->pp);
}

void
profile_mesh_counts(const ProfileMesh *mesh, ProfileMeshCounts *counts)
{
    const ModelCluster *cluster = mesh->cluster;

    memset(counts, 0, sizeof *counts);
    for (int kind = 0; kind < PROFILE_GROUP_N; kind++) {
        const ProfileGroup group = profile_group_at(mesh, (ProfileGroupKind)kind, 0);
        for (guint i = 0; i < cluster->levels->len; i++) {
            int64_t first, n;
            model_cluster_group(cluster, i, 0, &first, &n);
            counts->n[i][kind] = profile_group_count(&group, first, first + n);
        }
    }
}
