#include "profiles/cost/collective.h"

#include "profiles/cost/measured.h"

#include <math.h>

#include "base/real.h"

/* --- groups --- */

int64_t
profile_group_member(const ProfileGroup *group, int64_t i)
{
    if (group->per_run == 0)
        return group->first + i * group->stride;
    return group->first + i / group->per_run * group->run_stride +
           i % group->per_run * group->stride;
}

int64_t
profile_group_last(const ProfileGroup *group)
{
    return profile_group_member(group, group->n - 1);
}

ProfileGroup
profile_group_run(const ProfileGroup *group, int64_t n_parts)
{
    ProfileGroup run = *group;

    g_return_val_if_fail(n_parts >= 1 && group->n % n_parts == 0, run);
    run.n = group->n / n_parts;
    if (run.n <= run.per_run)
        run.per_run = run.run_stride = 0;
    if (run.n == 1)
        run.stride = 1;
    return run;
}

ProfileGroup
profile_group_across(const ProfileGroup *group, int64_t n_parts)
{
    const int64_t each = group->n / n_parts;
    ProfileGroup across = *group;

    g_return_val_if_fail(n_parts >= 1 && group->n % n_parts == 0, across);
    across.n = n_parts;
    across.per_run = across.run_stride = 0;
    if (n_parts == 1) {
        across.stride = 1;
    } else if (group->per_run == 0 || each * n_parts <= group->per_run) {
        across.stride = each * group->stride;
    } else if (each % group->per_run == 0) {
        across.stride = each / group->per_run * group->run_stride;
    } else { /* several in each run: per_run is a multiple of each */
        across.stride = each * group->stride;
        across.per_run = group->per_run / each;
        across.run_stride = group->run_stride;
    }
    return across;
}

/* How many of its ranks are devices before @end. */
static int64_t
count_before(const ProfileGroup *group, int64_t end)
{
    const int64_t n = end - group->first;

    if (n <= 0)
        return 0;
    if (group->per_run == 0)
        return MIN(group->n, (n + group->stride - 1) / group->stride);
    const int64_t runs = n / group->run_stride, rest = n % group->run_stride;
    return MIN(group->n, runs * group->per_run +
                             MIN(group->per_run, (rest + group->stride - 1) / group->stride));
}

int64_t
profile_group_count(const ProfileGroup *group, int64_t begin, int64_t end)
{
    return count_before(group, end) - count_before(group, begin);
}

/* Of @n devices one after the other, the first of which is one of them: how many are in the group,
 * the most; how many in groups that do the same at the same time. */
static int64_t
members_among(const ProfileGroup *group, int64_t n)
{
    if (group->per_run == 0)
        return CLAMP(n / group->stride, 1, group->n);
    if (n < group->run_stride)
        return CLAMP(n / group->stride, 1, group->per_run);
    return MIN(n / group->run_stride * group->per_run, group->n);
}

static int64_t
busy_among(const ProfileGroup *group, int64_t n)
{
    if (group->period == 0)
        return n;
    return n / group->period * group->busy + MIN(n % group->period, group->busy);
}

/* --- topology --- */

static const ModelLevel *
level_at(const ModelCluster *cluster, size_t i)
{
    return &g_array_index(cluster->levels, ModelLevel, i);
}

static int64_t
node_devices(const ModelCluster *cluster, int64_t rank)
{
    int64_t first, n = 1;

    model_cluster_node(cluster, rank, &first, &n);
    return n;
}

/* Level 0 is inside a node whatever its size; others are between nodes when they hold more devices
 * than one. */
bool
profile_level_is_network(const Profile *profile, size_t level, int64_t rank)
{
    int64_t group = level_at(profile->cluster, level)->group_devices;

    return level > 0 && (group == 0 || group > node_devices(profile->cluster, rank));
}

/* How a group lies on the topology. */
typedef struct {
    bool network;             /* between nodes */
    int64_t n;                /* ranks */
    int64_t n_inner;          /* of which in one group of the level below; 1 at level 0 */
    double bytes_per_s;       /* rate at which every rank of a ring can send at once */
    double leave_bytes_per_s; /* one rank's rate out of its inner group, when all send at once */
    double inner_bytes_per_s; /* one rank's rate inside it */
    double latency_s, inner_latency_s;
    double step_s, inner_step_s; /* of a ring, at the outer level and inside */
} GroupLinks;

/* All groups of one kind of a pipeline rank communicate at once, since its devices run the same
 * program: a node's adapters, shared_bytes_per_s, serve its D devices, and a ring with g ranks in
 * the node gets the share g / D of them (cost-model.md 3.2). */
static GroupLinks
links(const Profile *profile, const ProfileGroup *group)
{
    const ModelCluster *cluster = profile->cluster;
    int64_t last = profile_group_last(group);
    size_t level = model_cluster_level_between(cluster, group->first, last);
    const ModelLink link = model_cluster_slowest_link(cluster, group->first, last, level);
    const ModelLink *outer = &link;
    bool network = profile_level_is_network(profile, level, group->first);
    double fraction =
        network ? profile->parameters.network_fraction : profile->parameters.link_fraction;
    double inside_s = profile->parameters.link_step_s; /* beyond a link's latency, in a node */
    GroupLinks links = {
        .network = network,
        .n = group->n,
        .n_inner = 1,
        .bytes_per_s = fraction * outer->bytes_per_s,
        .leave_bytes_per_s = fraction * outer->bytes_per_s,
        .inner_bytes_per_s = fraction * outer->bytes_per_s,
        .latency_s = outer->latency_s,
        .step_s = network ? real_max(outer->latency_s, profile->parameters.network_step_s)
                          : outer->latency_s + inside_s,
        .inner_latency_s = outer->latency_s,
        .inner_step_s = outer->latency_s + (network ? 0.0 : inside_s),
    };

    if (level > 0) {
        const ModelLink inner = model_cluster_slowest_link(cluster, group->first, last, level - 1);
        int64_t devices = level_at(cluster, level - 1)->group_devices;

        if (network && (devices == 0 || devices > node_devices(cluster, group->first)))
            devices = node_devices(cluster, group->first);
        devices = MAX(devices, 1);
        links.n_inner = members_among(group, devices);
        links.inner_latency_s = inner.latency_s;
        links.inner_step_s =
            network ? real_max(inner.latency_s, profile->parameters.network_inner_step_s)
                    : inner.latency_s + inside_s;
        links.inner_bytes_per_s = profile->parameters.link_fraction * inner.bytes_per_s;
        if (network || outer->shared_bytes_per_s > 0.0) {
            double per_device = outer->bytes_per_s;

            if (outer->shared_bytes_per_s > 0.0)
                per_device = real_min(per_device, outer->shared_bytes_per_s /
                                                      (double)busy_among(group, devices));
            links.leave_bytes_per_s = fraction * per_device;
            links.bytes_per_s = links.leave_bytes_per_s * (double)links.n_inner;
            if (outer->shared_bytes_per_s > 0.0)
                links.bytes_per_s =
                    real_min(links.bytes_per_s, fraction * outer->shared_bytes_per_s);
            /* Between nodes every adapter carries a ring of its own; in a node all of a ring's
             * channels cross from one device to one other. */
            if (!network)
                links.bytes_per_s = real_min(links.bytes_per_s, fraction * outer->bytes_per_s);
            if (links.n_inner > 1)
                links.bytes_per_s = real_min(links.bytes_per_s, links.inner_bytes_per_s);
        }
    }
    return links;
}

int64_t
profile_group_nodes(const Profile *profile, const ProfileGroup *group)
{
    if (group->n == 1)
        return 1;
    const GroupLinks where = links(profile, group);
    return where.network ? model_ceil_div(where.n, where.n_inner) : 1;
}

int64_t
profile_carried_bytes(const Profile *profile, const ModelOp *op, const ProfileGroup *group)
{
    const double k = (double)op->copies;

    if (op->copies == 0 || group->n == 1)
        return op->comm_bytes;
    const GroupLinks where = links(profile, group);
    const double m =
        where.network ? ceil((double)where.n / (double)where.n_inner) : (double)where.n;
    const double reached = m * (1.0 - pow(1.0 - 1.0 / m, k));
    const double bytes =
        (double)op->comm_bytes + (double)op->place_bytes / (where.network ? m : 1.0);
    return (int64_t)ceil(bytes * real_min(1.0, reached / k));
}

bool
profile_groups_cost_alike(const Profile *profile, const ProfileGroup *a, const ProfileGroup *b)
{
    if (a->n == 1 || b->n == 1)
        return a->n == b->n;
    const GroupLinks x = links(profile, a), y = links(profile, b);
    return x.network == y.network && x.n == y.n && x.n_inner == y.n_inner &&
           x.bytes_per_s == y.bytes_per_s && x.leave_bytes_per_s == y.leave_bytes_per_s &&
           x.inner_bytes_per_s == y.inner_bytes_per_s && x.latency_s == y.latency_s &&
           x.inner_latency_s == y.inner_latency_s && x.step_s == y.step_s &&
           x.inner_step_s == y.inner_step_s;
}

/* --- algorithms --- */

/* Messages that follow one another round a ring of all ranks: one per rank and step, most of them
 * inside the inner groups. */
static double
ring_latency_s(const GroupLinks *links)
{
    double n_outer = ceil((double)links->n / (double)links->n_inner);

    if (links->n_inner == 1)
        return ((double)links->n - 1.0) * links->step_s;
    return ((double)links->n - n_outer) * links->inner_step_s + n_outer * links->step_s;
}

/* Up or down a tree over nodes, with a chain inside each  [NCCL's double binary trees]. */
static double
tree_latency_s(const GroupLinks *links)
{
    double n_outer = ceil((double)links->n / (double)links->n_inner);

    if (!links->network)
        return ring_latency_s(links);
    return ceil(log2(real_max(n_outer, 1.0))) * links->latency_s +
           (double)(links->n_inner - 1) * links->inner_latency_s;
}

/* Every rank sends its share of @bytes to every other: what leaves the inner group and what stays
 * travel at once. */
static double
all_to_all_s(const GroupLinks *links, double bytes)
{
    double n = (double)links->n, inner = (double)links->n_inner;
    double leaving = bytes * (n - inner) / n / links->leave_bytes_per_s;
    double staying = bytes * (inner - 1.0) / n / links->inner_bytes_per_s;

    if (links->n_inner == 1)
        leaving = bytes * (n - 1.0) / n / links->leave_bytes_per_s;
    return links->latency_s + real_max(leaving, staying);
}

/* The measured rows of each collective; PROFILE_OP_N: none are. */
static const ProfileOp measured_ops[] = {
    [MODEL_COMM_NONE] = PROFILE_OP_N,
    [MODEL_COMM_ALL_REDUCE] = PROFILE_OP_ALL_REDUCE,
    [MODEL_COMM_ALL_GATHER] = PROFILE_OP_ALL_GATHER,
    [MODEL_COMM_REDUCE_SCATTER] = PROFILE_OP_REDUCE_SCATTER,
    [MODEL_COMM_ALL_TO_ALL] = PROFILE_OP_ALL_TO_ALL,
    [MODEL_COMM_RING_EXCHANGE] = PROFILE_OP_N,
};

double
profile_cost_collective_s(const Profile *profile, ModelComm comm, int64_t bytes,
                          const ProfileGroup *group)
{
    double ring_s, tree_s;

    g_return_val_if_fail(profile != NULL && group != NULL && group->n >= 1, 0.0);
    g_return_val_if_fail(bytes >= 0 && group->stride >= 1 && group->first >= 0, 0.0);

    if (group->n == 1 || comm == MODEL_COMM_NONE)
        return 0.0;
    if (profile_measured_bytes_s(profile, measured_ops[comm], group->n, bytes, &ring_s))
        return ring_s;
    GroupLinks where = links(profile, group);
    /* The part of the buffer that a rank sends in one half of a ring all-reduce
     * [Patarasuk and Yuan 2009]. */
    double share = ((double)where.n - 1.0) / (double)where.n * (double)bytes / where.bytes_per_s;
    switch (comm) {
    case MODEL_COMM_ALL_REDUCE:
        ring_s = 2.0 * (ring_latency_s(&where) + share);
        tree_s = 2.0 * (tree_latency_s(&where) + (double)bytes / where.bytes_per_s);
        return profile->parameters.collective_s + real_min(ring_s, tree_s);
    case MODEL_COMM_ALL_TO_ALL:
        return profile->parameters.collective_s + all_to_all_s(&where, (double)bytes);
    case MODEL_COMM_ALL_GATHER:
    case MODEL_COMM_REDUCE_SCATTER:
    case MODEL_COMM_RING_EXCHANGE:
        return profile->parameters.collective_s + ring_latency_s(&where) + share;
    case MODEL_COMM_NONE:
        break;
    }
    g_return_val_if_reached(0.0);
}

double
profile_cost_broadcast_s(const Profile *profile, int64_t bytes, const ProfileGroup *group)
{
    double seconds;

    g_return_val_if_fail(profile != NULL && group != NULL && group->n >= 1 && bytes >= 0, 0.0);

    if (group->n == 1)
        return 0.0;
    if (profile_measured_bytes_s(profile, PROFILE_OP_BROADCAST, group->n, bytes, &seconds))
        return seconds;
    GroupLinks where = links(profile, group);
    return profile->parameters.collective_s + ring_latency_s(&where) +
           (double)bytes / where.bytes_per_s;
}

/* The slower of two devices' links to @level, of which @n devices share the first one's way out. */
static double
path_bytes_per_s(const ModelCluster *cluster, size_t level, int64_t rank_a, int64_t rank_b,
                 int64_t n, bool is_outermost)
{
    const ModelLink a = model_cluster_link(cluster, rank_a, level);
    const ModelLink b = model_cluster_link(cluster, rank_b, level);
    double rate = is_outermost ? real_min(a.bytes_per_s, b.bytes_per_s) : INFINITY;

    if (a.shared_bytes_per_s > 0.0)
        rate = real_min(rate, a.shared_bytes_per_s / (double)n);
    if (b.shared_bytes_per_s > 0.0)
        rate = real_min(rate, b.shared_bytes_per_s / (double)n);
    return rate;
}

double
profile_cost_p2p_s(const Profile *profile, int64_t bytes, int64_t rank_a, int64_t rank_b,
                   const ProfileGroup *senders)
{
    double rate = INFINITY, latency_s, seconds;

    g_return_val_if_fail(profile != NULL && bytes >= 0 && senders->n >= 1, 0.0);

    const ModelCluster *cluster = profile->cluster;
    if (rank_a == rank_b)
        return 0.0;
    if (profile_measured_bytes_s(profile, PROFILE_OP_P2P, 2, bytes, &seconds))
        return seconds;
    size_t outermost = model_cluster_level_between(cluster, rank_a, rank_b);
    /* On its way out a message leaves one group of devices after the other. */
    for (size_t i = 0; i <= outermost; i++) {
        int64_t first = rank_a, n = 1;

        if (i > 0)
            model_cluster_group(cluster, i - 1, rank_a, &first, &n);
        n = MAX(1, profile_group_count(senders, first, first + n));
        rate = real_min(rate, path_bytes_per_s(cluster, i, rank_a, rank_b, n, i == outermost));
    }
    latency_s = real_max(model_cluster_link(cluster, rank_a, outermost).latency_s,
                         model_cluster_link(cluster, rank_b, outermost).latency_s);
    rate *= profile_level_is_network(profile, outermost, rank_a)
                ? profile->parameters.network_p2p_fraction
                : profile->parameters.p2p_fraction;
    return profile->parameters.p2p_s + latency_s + (double)bytes / rate;
}

/* --- traffic --- */

/* Of @group: how many of its ranks lie in the group of the level below @level of its first. */
static double
members_below(const ModelCluster *cluster, const ProfileGroup *group, size_t level)
{
    int64_t first, n;

    if (level == 0)
        return 1.0;
    model_cluster_group(cluster, level - 1, group->first, &first, &n);
    return (double)profile_group_count(group, first, first + n);
}

void
profile_collective_traffic(const Profile *profile, ModelComm comm, int64_t bytes,
                           const ProfileGroup *group,
                           double traffic_bytes[MODEL_CLUSTER_MAX_LEVELS])
{
    const double n = (double)group->n;
    double round_bytes = (double)bytes * (n - 1.0) / n; /* that a rank of a ring sends */
    double below = 1.0;
    size_t outermost;

    if (group->n == 1 || comm == MODEL_COMM_NONE)
        return;
    if (comm == MODEL_COMM_ALL_REDUCE)
        round_bytes *= 2.0;
    outermost =
        model_cluster_level_between(profile->cluster, group->first, profile_group_last(group));
    /* Of the group, @below ranks lie in one group of the level inside, @here in one of level i. */
    for (size_t i = 0; i <= outermost; i++) {
        const double here = i == outermost ? n : members_below(profile->cluster, group, i + 1);

        if (comm == MODEL_COMM_ALL_TO_ALL)
            traffic_bytes[i] += (double)bytes / n * (here - below);
        else if (i == outermost)
            traffic_bytes[i] += round_bytes / below;
        else
            traffic_bytes[i] += round_bytes * (1.0 / below - 1.0 / here);
        below = here;
    }
}
