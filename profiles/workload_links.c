#include "profiles/workload_build.h"

#include <math.h>

/* What is made. */
typedef struct {
    const WorkloadBuild *build; /* (borrowed) */
    int64_t n_devices;          /* of a pipeline rank */
    GArray *bytes_per_s;        /* of double */
    GArray *crossings;          /* of WorkloadCrossing */
    GArray *shared;             /* of WorkloadCrossing: of the rank at hand, level by level */
    /* [level] the last group of devices that got a link: its first device, and the link. */
    int64_t group[MODEL_CLUSTER_MAX_LEVELS];
    int32_t link_of_group[MODEL_CLUSTER_MAX_LEVELS];
} Maker;

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

/*
 * The way out of the group of the level inside that holds @device into @level, for devices @first
 * to @end - 1 of one rank.  A group of theirs alone has a link of its own; one that they have in
 * common with others the same link as those.  Returns the group's end.
 */
static int64_t
cross_shared(Maker *maker, size_t level, int64_t device, int64_t first, int64_t end)
{
    const Profile *profile = maker->build->profile;
    const double fraction = fraction_of(profile, level, device);
    int64_t group, n;

    model_cluster_group(profile->cluster, level - 1, device, &group, &n);
    const int64_t mine = MIN(end, group + n) - MAX(first, group);
    if (maker->group[level] != group) {
        const ModelLink link = model_cluster_slowest_link(profile->cluster, device, device, level);
        maker->group[level] = group;
        maker->link_of_group[level] = link.shared_bytes_per_s > 0.0
                                          ? new_link(maker, fraction * link.shared_bytes_per_s)
                                          : -1;
    }
    if (maker->link_of_group[level] >= 0)
        cross(maker->shared, maker->link_of_group[level], mine);
    return group + n;
}

/* All ways out into @level of devices @first to @end - 1: those of the first and of the last group,
 * which others may use too, and the slowest of those between. */
static void
cross_level(Maker *maker, size_t level, int64_t first, int64_t end)
{
    const ModelCluster *cluster = maker->build->profile->cluster;
    const int64_t inner_end = cross_shared(maker, level, first, first, end);
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
    cross_shared(maker, level, end - 1, first, end);
}

/* Appends the crossings of pipeline rank @rank: at every level its devices' own link, and the ways
 * out of their groups up to there. */
static void
cross_rank(Maker *maker, int64_t rank, int64_t *begin)
{
    const Profile *profile = maker->build->profile;
    const size_t n_levels = profile->cluster->levels->len;
    const int64_t first = rank * maker->n_devices, end = first + maker->n_devices;

    g_array_set_size(maker->shared, 0);
    for (size_t level = 0; level < n_levels; level++) {
        const ModelLink own = model_cluster_slowest_link(profile->cluster, first, end - 1, level);

        if (level > 0)
            cross_level(maker, level, first, end);
        begin[level] = maker->crossings->len;
        cross(maker->crossings,
              new_link(maker, fraction_of(profile, level, first) * own.bytes_per_s), 0);
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
    Maker maker = {
        .build = build,
        .n_devices = d->dp * d->cp * d->tp,
        .bytes_per_s = g_array_new(FALSE, FALSE, sizeof(double)),
        .crossings = g_array_new(FALSE, FALSE, sizeof(WorkloadCrossing)),
        .shared = g_array_new(FALSE, FALSE, sizeof(WorkloadCrossing)),
    };

    for (size_t i = 0; i < G_N_ELEMENTS(maker.group); i++)
        maker.group[i] = -1;
    links->n_levels = (int32_t)n_levels;
    links->senders_fraction = one_sends ? 1.0 / (double)d->tp : 1.0;
    links->begin = g_new(int64_t, (size_t)d->pp * n_levels + 1);
    for (int64_t rank = 0; rank < d->pp; rank++)
        cross_rank(&maker, rank, &links->begin[(size_t)rank * n_levels]);
    links->begin[(size_t)d->pp * n_levels] = maker.crossings->len;
    links->n_links = (int32_t)maker.bytes_per_s->len;
    links->bytes_per_s = (double *)(void *)g_array_free(maker.bytes_per_s, FALSE);
    links->crossings = (WorkloadCrossing *)(void *)g_array_free(maker.crossings, FALSE);
    g_array_unref(maker.shared);
    return links;
}

void
workload_build_add_traffic(const WorkloadBuild *build, const WorkloadPlace *place,
                           const ProfileQuery *query, ProfilePass pass,
                           double traffic_bytes[MODEL_CLUSTER_MAX_LEVELS])
{
    ModelOp ops[MODEL_MAX_OPS];
    const size_t n = model_ops(query->arch, query->part, query->layer, &query->shape, ops);

    if (pass == PROFILE_PASS_BACKWARD_WEIGHT)
        return;
    for (size_t i = 0; i < n; i++)
        if (ops[i].kind == MODEL_OP_COLLECTIVE)
            profile_collective_traffic(
                build->profile,
                pass == PROFILE_PASS_FORWARD ? ops[i].forward_comm : ops[i].backward_comm,
                ops[i].comm_bytes, &place->groups[ops[i].group], traffic_bytes);
}
