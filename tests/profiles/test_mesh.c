/* Tests of profiles/cost/mesh.h: groups against the coordinates of every device, and what they
 * cost on two levels. */
#include "profiles/cost/mesh.h"

#include "schedule/rank_order.h"
#include "tests/profiles/fixture.h"

#define N_DEVICES 16

/* Whether two devices of a stage are in one group of @kind, from their coordinates. */
static bool
are_together(const PlanDegrees *d, ProfileGroupKind kind, int64_t a, int64_t b)
{
    const PlanCoordinates x = plan_coordinates_of(d, a), y = plan_coordinates_of(d, b);
    const int64_t i = plan_stage_index(d, a), k = plan_stage_index(d, b);
    bool same[PLAN_DIM_N];

    for (int dim = 0; dim < PLAN_DIM_N; dim++)
        same[dim] = x.at[dim] == y.at[dim];
    if (!same[PLAN_DIM_PP])
        return false;
    switch (kind) {
    case PROFILE_GROUP_TP:
        return same[PLAN_DIM_CP] && same[PLAN_DIM_DP];
    case PROFILE_GROUP_CP:
        return same[PLAN_DIM_TP] && same[PLAN_DIM_DP];
    case PROFILE_GROUP_EP:
        return i / d->ep == k / d->ep;
    case PROFILE_GROUP_ETP:
        return a == b;
    case PROFILE_GROUP_DENSE:
        return same[PLAN_DIM_TP];
    case PROFILE_GROUP_EXPERT:
        return i % d->ep == k % d->ep;
    case PROFILE_GROUP_STAGE:
    case PROFILE_GROUP_N:
        break;
    }
    return true;
}

static size_t
level_of(const ModelCluster *cluster, const ProfileGroup *group)
{
    return model_cluster_level_between(cluster, group->first, profile_group_last(group));
}

/* The group has the members that the coordinates say; no other group of the stage spans more. */
static void
check_group(const ModelCluster *cluster, const PlanDegrees *d, const ProfileGroup *group,
            ProfileGroupKind kind, int64_t rank)
{
    int64_t n = 0;
    size_t outermost = 0;

    for (int64_t i = 0; i < plan_stage_devices(d); i++) {
        const int64_t device = plan_stage_device(d, rank, i);
        for (int64_t k = 0; k < plan_stage_devices(d); k++) {
            const int64_t other = plan_stage_device(d, rank, k);
            if (are_together(d, kind, device, other))
                outermost = MAX(outermost, model_cluster_level_between(cluster, device, other));
        }
        if (!are_together(d, kind, group->first, device))
            continue;
        g_assert_cmpint(profile_group_member(group, n), ==, device);
        g_assert_cmpint(profile_group_count(group, 0, device), ==, n);
        g_assert_cmpint(profile_group_count(group, device, device + 1), ==, 1);
        n++;
    }
    g_assert_cmpint(n, ==, group->n);
    if (plan_rank_order_plain(d) != PLAN_RANK_ORDER_DEFAULT)
        g_assert_cmpuint(level_of(cluster, group), ==, outermost);
}

static void
test_groups_are_those_of_the_coordinates(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    const PlanConventions conventions = plan_conventions(PLAN_FRAMEWORK_DEGAS);
    int64_t n_checked = 0, n_aligned = 0;

    for (int64_t code = 0; code < 4 * 4 * 4 * 4 * 3; code++)
        for (int64_t order = 0; order < PLAN_RANK_ORDER_N; order++) {
            const PlanDegrees d = {
                .dp = 1 + code % 4,
                .tp = 1 + code / 4 % 4,
                .pp = 1 + code / 16 % 4,
                .vpp = 1,
                .cp = 1 + code / 64 % 4,
                .ep = 1 + code / 256,
                .rank_order = order,
            };
            const ProfileMesh mesh = {profile->cluster, &d, &conventions};
            if (d.dp * d.tp * d.pp * d.cp > N_DEVICES || d.dp * d.tp * d.cp % d.ep != 0 ||
                !plan_rank_order_check(&d, &conventions, NULL))
                continue;
            n_checked++;
            n_aligned += profile_mesh_is_aligned(&mesh);
            for (int64_t rank = 0; rank < d.pp; rank++)
                for (int kind = 0; kind < PROFILE_GROUP_N; kind++) {
                    const ProfileGroup group =
                        profile_group_of_rank(&mesh, (ProfileGroupKind)kind, rank);
                    check_group(profile->cluster, &d, &group, (ProfileGroupKind)kind, rank);
                }
        }
    g_assert_cmpint(n_checked, >, 1000);
    g_assert_cmpint(n_aligned, >, 500);
}

/* Fixture: 100 GB/s and 1 us inside, 10 GB/s per device, 20 GB/s per node and 10 us outside.  Two
 * replicas of 8 stages: a node has one device of each stage, whose reduction has the adapters for
 * itself but for what others send; with pp slowest the pair is in one node. */
static void
test_cost_follows_the_order(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    const PlanConventions conventions = plan_conventions(PLAN_FRAMEWORK_DEGAS);
    static const struct {
        int64_t dp, tp, pp, order;
        double bytes_per_s, latency_s;
    } cases[] = {
        {2, 1, 8, PLAN_RANK_ORDER_DEFAULT, 100e9, 1e-6},
        {2, 1, 8, PLAN_RANK_ORDER_PP_BEFORE_DP, 10e9, 1e-5},
        /* four devices of a stage in a node, two of each replica pair's ring outside */
        {2, 4, 2, PLAN_RANK_ORDER_PP_BEFORE_DP, 5e9, 1e-5},
        {2, 4, 2, PLAN_RANK_ORDER_DEFAULT, 100e9, 1e-6},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const PlanDegrees d = {.dp = cases[i].dp,
                               .tp = cases[i].tp,
                               .pp = cases[i].pp,
                               .vpp = 1,
                               .cp = 1,
                               .ep = 1,
                               .rank_order = cases[i].order};
        const ProfileMesh mesh = {profile->cluster, &d, &conventions};
        const ProfileGroup dense = profile_group_of_rank(&mesh, PROFILE_GROUP_DENSE, 0);
        const double expect = 2.0 * (cases[i].latency_s + 0.5 * 100e6 / cases[i].bytes_per_s);
        g_assert_cmpfloat_with_epsilon(
            profile_cost_collective_s(profile, MODEL_COMM_ALL_REDUCE, 100000000, &dense), expect,
            1e-9 * expect);
    }
}

/* Each part of a group is a run of its members, and parts' members of one number are what lies across: together they
 * are all members, whether these form one run or several. */
static void
test_parts_of_groups_are_their_members(void)
{
    const ProfileGroup groups[] = {
        {.first = 3, .stride = 2, .n = 12},
        {.first = 1, .stride = 2, .n = 12, .per_run = 4, .run_stride = 100},
    };

    for (size_t g = 0; g < G_N_ELEMENTS(groups); g++)
        for (int64_t parts = 1; parts <= 12; parts++) {
            if (12 % parts != 0 ||
                (groups[g].per_run > 0 && 12 / parts % 4 != 0 && 4 % (12 / parts) != 0))
                continue;
            const ProfileGroup run = profile_group_run(&groups[g], parts);
            const ProfileGroup across = profile_group_across(&groups[g], parts);
            g_assert_cmpint(run.n, ==, 12 / parts);
            g_assert_cmpint(across.n, ==, parts);
            for (int64_t i = 0; i < run.n; i++)
                g_assert_cmpint(profile_group_member(&run, i), ==,
                                profile_group_member(&groups[g], i));
            for (int64_t i = 0; i < parts; i++)
                g_assert_cmpint(profile_group_member(&across, i), ==,
                                profile_group_member(&groups[g], i * run.n));
        }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/profiles/mesh/groups-are-those-of-the-coordinates",
                    test_groups_are_those_of_the_coordinates);
    g_test_add_func("/profiles/mesh/cost-follows-the-order", test_cost_follows_the_order);
    g_test_add_func("/profiles/mesh/parts-of-groups-are-their-members",
                    test_parts_of_groups_are_their_members);
    return g_test_run();
}
