#include "profiles/workload/build.h"

#include <math.h>
#include <string.h>

#include "schedule/rank_order.h"

/* What is made. */
typedef struct {
    const WorkloadBuild *build; /* (borrowed) */
    GArray *bytes_per_s;        /* of double */
    GArray *crossings;          /* of WorkloadCrossing */
    GArray *shared;             /* of WorkloadCrossing: of the rank at hand, level by level */
    /* Groups of devices after which the ranks repeat are one.  0: none do. */
    int64_t period;
    GHashTable
        *links; /* of (owned) SharedGroup * -> (owned) int32_t: link, or -1; looked up only */
} Maker;

/* A group of devices of the level inside, on its way out into @level; no padding. */
typedef struct {
    int64_t level, first, n;
} SharedGroup;

static guint
hash_group(gconstpointer data)
{
    const SharedGroup *group = data;

    return (guint)(group->first * MODEL_CLUSTER_MAX_LEVELS + group->level);
}

static gboolean
groups_equal(gconstpointer a, gconstpointer b)
{
    return memcmp(a, b, sizeof(SharedGroup)) == 0;
}

void
workload_links_free(WorkloadLinks *links)
{
    if (links == NULL)
        return;
    g_free(links->bytes_per_s);
    g_free(links->begin);
    g_free(links->crossings);
    g_free(links);
}

/* What messages and collectives together get of a link's rate: the larger of the two shares. */
static double
fraction_of(const Profile *profile, size_t level, int64_t device)
{
    const ProfileParameters *p = &profile->parameters;

    return profile_level_is_network(profile, level, device)
               ? fmax(p->network_fraction, p->network_p2p_fraction)
               : fmax(p->link_fraction, p->p2p_fraction);
}

static int32_t
new_link(Maker *maker, double bytes_per_s)
{
    g_array_append_val(maker->bytes_per_s, bytes_per_s);
    return (int32_t)maker->bytes_per_s->len - 1;
}

static void
cross(GArray *crossings, int32_t link, int64_t n_devices)
{
    const WorkloadCrossing crossing = {link, (int32_t)n_devices};

    g_array_append_val(crossings, crossing);
}

/* The link of the way out of @group, or -1 if nothing there is shared. */
static int32_t
link_of_group(Maker *maker, const SharedGroup *group, int64_t device)
{
    const Profile *profile = maker->build->profile;
    const size_t level = (size_t)group->level;
    gpointer known;

    if (g_hash_table_lookup_extended(maker->links, group, NULL, &known))
        return *(const int32_t *)known;
    const ModelLink link = model_cluster_slowest_link(profile->cluster, device, device, level);
    const int32_t made =
        link.shared_bytes_per_s > 0.0
            ? new_link(maker, fraction_of(profile, level, device) * link.shared_bytes_per_s)
            : -1;
    g_hash_table_insert(maker->links, g_memdup2(group, sizeof *group),
                        g_memdup2(&made, sizeof made));
    return made;
}

/*
 * The way out of the group of the level inside that holds @device into @level, for the devices
 * @stage of one rank.  A group of theirs alone has a link of its own; one that they have in common
 * with others the same link as those.  Returns the group's end.
 */
static int64_t
cross_shared(Maker *maker, size_t level, int64_t device, const ProfileGroup *stage)
{
    int64_t first, n;

    model_cluster_group(maker->build->profile->cluster, level - 1, device, &first, &n);
    const SharedGroup group = {(int64_t)level, maker->period > 0 ? first % maker->period : first,
                               n};
    const int32_t link = link_of_group(maker, &group, device);
    bool crossed = link < 0;
    for (guint i = 0; i < maker->shared->len && !crossed; i++)
        crossed = g_array_index(maker->shared, WorkloadCrossing, i).link == link;
    if (!crossed)
        cross(maker->shared, link, profile_group_count(stage, first, first + n));
    return first + n;
}

/* All ways out into @level of a run of the stage's devices, @first to @end - 1: those of the first
 * and of the last group, which others may use too, and the slowest of those between. */
static void
cross_level(Maker *maker, size_t level, int64_t first, int64_t end, const ProfileGroup *stage)
{
    const ModelCluster *cluster = maker->build->profile->cluster;
    const int64_t inner_end = cross_shared(maker, level, first, stage);
    int64_t last, n;

    if (inner_end >= end)
        return;
    model_cluster_group(cluster, level - 1, end - 1, &last, &n);
    if (inner_end < last) {
        const ModelLink link = model_cluster_slowest_link(cluster, inner_end, last - 1, level);
        int64_t begin, n_group;

        model_cluster_group(cluster, level - 1, inner_end, &begin, &n_group);
        if (link.shared_bytes_per_s > 0.0)
            cross(maker->shared,
                  new_link(maker, fraction_of(maker->build->profile, level, inner_end) *
                                      link.shared_bytes_per_s),
                  n_group);
    }
    cross_shared(maker, level, end - 1, stage);
}

/* Whether devices @apart apart are in the same place in their groups of every level. */
static bool
repeats(const ModelCluster *cluster, int64_t apart)
{
    if (cluster->nodes->len != 1 ||
        apart % g_array_index(cluster->nodes, ModelNodes, 0).n_devices != 0)
        return false;
    for (guint i = 0; i + 1 < cluster->levels->len; i++)
        if (apart % g_array_index(cluster->levels, ModelLevel, i).group_devices != 0)
            return false;
    return true;
}

/* Runs of a stage's devices until they lie as the first one again. */
static int64_t
n_different_runs(const ModelCluster *cluster, const PlanDegrees *d)
{
    const int64_t run = plan_stage_run(d), n = plan_stage_devices(d) / run;
    int64_t i = 1;

    while (i < n && !repeats(cluster, i * run * d->pp))
        i++;
    return i;
}

/* Appends the crossings of pipeline rank @rank, of whose runs of devices @n_runs differ: at every
 * level its devices' own link, and the ways out of their groups up to there. */
static void
cross_rank(Maker *maker, int32_t rank, int64_t n_runs, int64_t *begin)
{
    const Profile *profile = maker->build->profile;
    const PlanDegrees *d = &maker->build->plan->degrees;
    const size_t n_levels = profile->cluster->levels->len;
    const int64_t run = plan_stage_run(d);
    const ProfileGroup stage = workload_build_group(maker->build, PROFILE_GROUP_STAGE, rank);

    g_array_set_size(maker->shared, 0);
    for (size_t level = 0; level < n_levels; level++) {
        const ModelLink own = model_cluster_slowest_link(profile->cluster, stage.first,
                                                         profile_group_last(&stage), level);

        for (int64_t i = 0; level > 0 && i < n_runs; i++) {
            const int64_t first = plan_stage_device(d, rank, i * run);
            cross_level(maker, level, first, first + run, &stage);
        }
        begin[level] = maker->crossings->len;
        cross(maker->crossings,
              new_link(maker, fraction_of(profile, level, stage.first) * own.bytes_per_s), 0);
        g_array_append_vals(maker->crossings, maker->shared->data, maker->shared->len);
    }
}

WorkloadLinks *
workload_build_links(const WorkloadBuild *build)
{
    const PlanDegrees *d = &build->plan->degrees;
    const size_t n_levels = build->profile->cluster->levels->len;
    const bool one_sends =
        build->plan->conventions.broadcast_p2p && !build->plan->sequence_parallel;
    WorkloadLinks *links = g_new0(WorkloadLinks, 1);
    const int64_t n_runs = n_different_runs(build->profile->cluster, d);
    Maker maker = {
        .build = build,
        .bytes_per_s = g_array_new(FALSE, FALSE, sizeof(double)),
        .crossings = g_array_new(FALSE, FALSE, sizeof(WorkloadCrossing)),
        .shared = g_array_new(FALSE, FALSE, sizeof(WorkloadCrossing)),
        .period =
            n_runs < plan_stage_devices(d) / plan_stage_run(d) ? plan_stage_run(d) * d->pp : 0,
        .links = g_hash_table_new_full(hash_group, groups_equal, g_free, g_free),
    };

    links->n_levels = (int32_t)n_levels;
    links->senders_fraction = one_sends ? 1.0 / (double)d->tp : 1.0;
    links->begin = g_new(int64_t, (size_t)d->pp * n_levels + 1);
    for (int32_t rank = 0; rank < d->pp; rank++)
        cross_rank(&maker, rank, n_runs, &links->begin[(size_t)rank * n_levels]);
    links->begin[(size_t)d->pp * n_levels] = maker.crossings->len;
    links->n_links = (int32_t)maker.bytes_per_s->len;
    links->bytes_per_s = (double *)(void *)g_array_free(maker.bytes_per_s, FALSE);
    links->crossings = (WorkloadCrossing *)(void *)g_array_free(maker.crossings, FALSE);
    g_array_unref(maker.shared);
    g_hash_table_unref(maker.links);
    return links;
}

void
workload_build_add_traffic(const WorkloadBuild *build, const WorkloadLocation *location,
                           const ModelOp *ops, size_t n, ProfilePass pass,
                           double traffic_bytes[MODEL_CLUSTER_MAX_LEVELS])
{
    if (pass == PROFILE_PASS_BACKWARD_WEIGHT)
        return;
    for (size_t i = 0; i < n; i++)
        if (ops[i].kind == MODEL_OP_COLLECTIVE)
            profile_collective_traffic(
                build->profile,
                pass == PROFILE_PASS_FORWARD ? ops[i].forward_comm : ops[i].backward_comm,
                profile_carried_bytes(build->profile, &ops[i], &location->groups[ops[i].group]),
                &location->groups[ops[i].group], traffic_bytes);
}
