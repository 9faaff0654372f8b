#include "planner/bounds/rank_kinds.h"

#include <math.h>

#include "base/real.h"

/* Of pipeline rank @r in the order that @mesh has: the slowest of its kinds, at which ops are priced
 * (profiles/workload/location.c). */
static int32_t
kind_of_rank(const PlanRequest *request, const ProfileMesh *mesh, int64_t r)
{
    const ModelCluster *cluster = request->profile->cluster;
    const ProfileGroup stage = profile_group_of_rank(mesh, PROFILE_GROUP_STAGE, r);
    const ModelDevice *slowest = NULL;
    int64_t begin = 0;
    int32_t kind = -1;

    for (guint i = 0; i < cluster->nodes->len; i++) {
        const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, i);
        const ModelDevice *device =
            &g_array_index(cluster->devices, ModelDevice, (guint)nodes->device);
        const int64_t end = begin + nodes->n_devices * nodes->n_nodes;
        if (profile_group_count(&stage, begin, end) > 0) {
            if (slowest == NULL || profile_is_slower(device, slowest, request->dtype)) {
                slowest = device;
                kind = (int32_t)i;
            } else if (!profile_is_slower(slowest, device, request->dtype)) {
                return -1;
            }
        }
        begin = end;
    }
    return kind;
}

void
plan_rank_kinds(const PlanRequest *request, const PlanPoint *point, int32_t *kinds)
{
    PlanDegrees d = point->degrees;

    for (int64_t r = 0; r < d.pp; r++)
        kinds[r] = 0;
    if (request->profile->cluster->nodes->len == 1)
        return;
    bool is_first = true;
    for (uint32_t orders = plan_point_orders(point); orders != 0; orders &= orders - 1) {
        d.rank_order = g_bit_nth_lsf(orders, -1);
        const ProfileMesh mesh = plan_layer_mesh(request, &d);
        for (int64_t r = 0; r < d.pp; r++) {
            const int32_t kind = kind_of_rank(request, &mesh, r);
            /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): of the first order */
            kinds[r] = is_first || kinds[r] == kind ? kind : -1;
        }
        is_first = false;
    }
}

/* Whether layers cost the same in the groups @a and @b. */
static bool
are_alike(const PlanRequest *request, const ProfileGroup *a, const ProfileGroup *b)
{
    for (int i = 0; i < MODEL_GROUP_N; i++)
        if (!profile_groups_cost_alike(request->profile, &a[i], &b[i]))
            return false;
    return true;
}

GArray *
plan_rank_places(const PlanRequest *request, const PlanPoint *point, int32_t *places)
{
    const uint32_t orders = plan_point_orders(point);
    PlanDegrees d = point->degrees;

    d.rank_order = g_bit_nth_lsf(orders, -1);
    const ProfileMesh mesh = plan_layer_mesh(request, &d);
    if ((orders & (orders - 1)) != 0 || request->profile->cluster->nodes->len > 1 ||
        profile_mesh_is_aligned(&mesh))
        return NULL;
    GArray *groups = g_array_new(FALSE, FALSE, sizeof(ProfileGroup));
    for (int64_t r = 0; r < d.pp; r++) {
        ProfileGroup here[MODEL_GROUP_N];
        guint at = 0;
        for (int i = 0; i < MODEL_GROUP_N; i++)
            here[i] = profile_group_of_rank(&mesh, (ProfileGroupKind)i, r);
        while (at < groups->len &&
               !are_alike(request, here, &g_array_index(groups, ProfileGroup, at)))
            at += MODEL_GROUP_N;
        if (at == groups->len)
            g_array_append_vals(groups, here, MODEL_GROUP_N);
        places[r] = (int32_t)(at / MODEL_GROUP_N);
    }
    return groups;
}

/* The groups of a pipeline rank in which its ops have collectives: [kind below PROFILE_GROUP_STAGE]. */
typedef struct {
    ProfileGroup of[PROFILE_GROUP_STAGE];
} RankGroups;

/* Gives each rank the first one of those that @likes says are alike whose first @n_kinds groups lie as its own. */
static void
split_likes(const Profile *profile, const RankGroups *groups, int n_kinds, int64_t pp,
            int32_t *likes)
{
    g_autofree int32_t *before = g_memdup2(likes, (size_t)pp * sizeof *likes);

    for (int64_t r = 0; r < pp; r++) {
        int64_t q = 0;
        for (; q < r; q++) {
            bool is_like = likes[q] == q && before[q] == before[r];
            for (int i = 0; i < n_kinds && is_like; i++)
                is_like = profile_groups_cost_alike(profile, &groups[q].of[i], &groups[r].of[i]);
            if (is_like)
                break;
        }
        likes[r] = (int32_t)q;
    }
}

void
plan_rank_likes(const PlanRequest *request, const PlanPoint *point, const int32_t *kinds,
                int32_t *likes)
{
    const int64_t pp = point->degrees.pp;
    const int n_kinds = point->zero_stage >= 3 ? PROFILE_GROUP_STAGE : MODEL_GROUP_N;
    PlanDegrees d = point->degrees;
    g_autofree RankGroups *groups = g_new(RankGroups, (size_t)pp);

    for (int64_t r = 0; r < pp; r++) {
        int64_t q = 0;
        while (q < r && (kinds[r] < 0 || kinds[q] != kinds[r]))
            q++;
        likes[r] = (int32_t)q;
    }
    for (uint32_t orders = plan_point_orders(point); orders != 0; orders &= orders - 1) {
        d.rank_order = g_bit_nth_lsf(orders, -1);
        const ProfileMesh mesh = plan_layer_mesh(request, &d);
        for (int64_t r = 0; r < pp; r++)
            for (int i = 0; i < n_kinds; i++)
                groups[r].of[i] = profile_group_of_rank(&mesh, (ProfileGroupKind)i, r);
        split_likes(request->profile, groups, n_kinds, pp, likes);
    }
}

const PlanLayerCost **
plan_rank_costs(PlanMemo *memo, const PlanRequest *request, const PlanPoint *point)
{
    const int64_t pp = point->degrees.pp;

    if (request->profile->cluster->nodes->len == 1)
        return NULL;
    g_autofree int32_t *kinds = g_new(int32_t, (size_t)pp);
    const PlanLayerCost **costs = g_new(const PlanLayerCost *, (size_t)pp);
    plan_rank_kinds(request, point, kinds);
    for (int64_t r = 0; r < pp; r++) {
        PlanLayerShape shape = plan_point_layer_shape(point);
        shape.only_nodes = kinds[r] + 1;
        costs[r] = &plan_layer_uniform_cost(memo, request, &shape, 1)->whole;
    }
    return costs;
}

typedef struct {
    const PlanRequest *request;
    const PlanDegrees *degrees;
} ReductionQuestion;

/* PlanMemoMakeFunc. */
static void *
make_reductions(const void *data)
{
    const ReductionQuestion *asked = data;
    const Profile *profile = asked->request->profile;
    const ProfileMesh mesh = plan_layer_mesh(asked->request, asked->degrees);
    const int64_t n_ranks = profile_mesh_is_aligned(&mesh) ? 1 : asked->degrees->pp;
    GArray *all = g_array_new(FALSE, FALSE, sizeof(PlanReductionGroups));

    for (int64_t r = 0; r < n_ranks; r++) {
        const PlanReductionGroups here = {profile_group_of_rank(&mesh, PROFILE_GROUP_DENSE, r),
                                          profile_group_of_rank(&mesh, PROFILE_GROUP_EXPERT, r)};
        bool is_known = false;
        for (guint i = 0; i < all->len && !is_known; i++) {
            const PlanReductionGroups *known = &g_array_index(all, PlanReductionGroups, i);
            is_known = profile_groups_cost_alike(profile, &here.dense, &known->dense) &&
                       profile_groups_cost_alike(profile, &here.expert, &known->expert);
        }
        if (!is_known)
            g_array_append_val(all, here);
    }
    return all;
}

static void
free_array(gpointer data)
{
    g_array_unref(data);
}

const GArray *
plan_rank_reductions(const PlanRequest *request, const PlanDegrees *degrees)
{
    const ReductionQuestion question = {request, degrees};
    const struct {
        PlanMemoKey memo;
        int64_t dp, tp, pp, cp, ep, rank_order;
    } key = {PLAN_MEMO_KEY(key, PLAN_MEMO_REDUCTIONS),
             degrees->dp,
             degrees->tp,
             degrees->pp,
             degrees->cp,
             degrees->ep,
             degrees->rank_order};

    return request->memo == NULL
               ? NULL
               : plan_memo_get(request->memo, &key.memo, make_reductions, &question, free_array);
}

/* The least of what parts take on nodes of @kind against what they take on the fastest ones. */
static double
slowness(PlanMemo *memo, const PlanRequest *request, const PlanPoint *point, int32_t kind)
{
    PlanLayerShape shape = plan_point_layer_shape(point);
    const PlanLayerCost *least = &plan_layer_uniform_cost(memo, request, &shape, 1)->whole;
    double ratio = INFINITY;

    shape.only_nodes = kind + 1;
    const PlanLayerCost *here = &plan_layer_uniform_cost(memo, request, &shape, 1)->whole;
    for (int part = 0; part < PLAN_PART_N; part++) {
        const double *a = (const double *)&least->parts[part];
        const double *b = (const double *)&here->parts[part];
        for (size_t i = 0; i < PLAN_PART_N_LEAST && least->n[part] > 0; i++)
            if (a[i] > 0.0)
                ratio = real_min(ratio, b[i] / a[i]);
    }
    return isinf(ratio) ? 1.0 : ratio;
}

double
plan_rank_fast(PlanMemo *memo, const PlanRequest *request, const PlanPoint *point)
{
    const int64_t pp = point->degrees.pp;

    if (request->profile->cluster->nodes->len == 1)
        return (double)pp;
    g_autofree int32_t *kinds = g_new(int32_t, (size_t)pp);
    double sum = 0.0;
    plan_rank_kinds(request, point, kinds);
    for (int64_t r = 0; r < pp; r++)
        sum += kinds[r] < 0 ? 1.0 : 1.0 / slowness(memo, request, point, kinds[r]);
    return real_min((double)pp, sum * (1.0 + 1e-9));
}
