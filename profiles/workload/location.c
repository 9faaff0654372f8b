/* Where the stages of a pipeline rank run, and which shapes they have. */
#include "profiles/workload/build.h"

/* --- groups and shapes --- */

ProfileGroup
workload_build_group(const WorkloadBuild *build, ProfileGroupKind kind, int32_t rank)
{
    const ProfileMesh mesh = workload_build_mesh(build);

    return profile_group_of_rank(&mesh, kind, rank);
}

int64_t *
workload_build_contexts(const Plan *plan)
{
    int64_t *contexts = g_new0(int64_t, plan->slices->len);

    for (guint i = 1; i < plan->slices->len; i++)
        contexts[i] = contexts[i - 1] + g_array_index(plan->slices, int64_t, i - 1);
    return contexts;
}

ModelShape
workload_build_shape(const WorkloadBuild *build, int32_t class_, int32_t slice)
{
    const Plan *plan = build->plan;

    ModelShape shape = {
        .batch = build->class_sequences[class_],
        .tokens = g_array_index(plan->slices, int64_t, (guint)slice),
        .context = build->contexts[slice],
        .whole_tokens = plan->seq_len,
        .tp = plan->degrees.tp,
        .cp = plan->degrees.cp,
        .ep = plan->degrees.ep,
        .sequence_parallel = plan->sequence_parallel,
        .dtype = plan->dtype,
    };

    workload_set_conventions(&plan->conventions, &build->profile->parameters, &shape);
    return shape;
}

/* --- where a stage runs --- */

WorkloadLocation
workload_build_location(const WorkloadBuild *build, int32_t rank)
{
    const ModelCluster *cluster = build->profile->cluster;
    const ProfileGroup stage = workload_build_group(build, PROFILE_GROUP_STAGE, rank);
    int64_t begin = 0;
    WorkloadLocation location = {
        .device_rank = stage.first,
        .device = model_cluster_device(cluster, stage.first),
    };

    for (int i = 0; i < MODEL_GROUP_N; i++)
        location.groups[i] = workload_build_group(build, (ProfileGroupKind)i, rank);
    location.memory_bytes = location.device->memory_bytes;
    for (guint i = 0; i < cluster->nodes->len; i++) {
        const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, i);
        int64_t next = begin + nodes->n_devices * nodes->n_nodes;

        if (profile_group_count(&stage, begin, next) > 0) {
            int64_t at = profile_group_member(&stage, profile_group_count(&stage, 0, begin));
            const ModelDevice *device = model_cluster_device(cluster, at);

            if (profile_is_slower(device, location.device, build->plan->dtype)) {
                location.device = device;
                location.device_rank = at;
            }
            location.memory_bytes = MIN(location.memory_bytes, device->memory_bytes);
        }
        begin = next;
    }
    return location;
}

/* Whether both groups lie alike: nodes of one size, one level, links of the same rates. */
static bool
same_group_costs(const ModelCluster *cluster, const ProfileGroup *a, const ProfileGroup *b)
{
    const int64_t last_a = profile_group_last(a), last_b = profile_group_last(b);
    const size_t level = model_cluster_level_between(cluster, a->first, last_a);
    int64_t first_a, n_a, first_b, n_b;

    model_cluster_node(cluster, a->first, &first_a, &n_a);
    model_cluster_node(cluster, b->first, &first_b, &n_b);
    if (n_a != n_b || model_cluster_level_between(cluster, b->first, last_b) != level)
        return false;
    for (size_t i = 0; i <= level; i++) {
        const ModelLink la = model_cluster_slowest_link(cluster, a->first, last_a, i);
        const ModelLink lb = model_cluster_slowest_link(cluster, b->first, last_b, i);

        if (la.bytes_per_s != lb.bytes_per_s || la.latency_s != lb.latency_s ||
            la.shared_bytes_per_s != lb.shared_bytes_per_s)
            return false;
    }
    return true;
}

bool
workload_build_same_costs(const WorkloadBuild *build, const WorkloadLocation *a,
                          const WorkloadLocation *b)
{
    if (a->device != b->device)
        return false;
    for (size_t i = 0; i < G_N_ELEMENTS(a->groups); i++)
        if (a->groups[i].n > 1 &&
            !same_group_costs(build->profile->cluster, &a->groups[i], &b->groups[i]))
            return false;
    return true;
}

void
workload_build_set_rates(const WorkloadBuild *build, Workload *workload)
{
    const ModelCluster *cluster = build->profile->cluster;
    const int64_t n = plan_n_devices(build->plan);
    double price = 0.0, power_w = 0.0;
    bool all_priced = true, all_powered = true;
    int64_t begin = 0;

    /* Devices before begin are in the sums. */
    for (guint i = 0; i < cluster->nodes->len && begin < n; i++) {
        const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, i);
        const ModelDevice *device = model_cluster_device(cluster, begin);
        const int64_t end = MIN(n, begin + nodes->n_devices * nodes->n_nodes);
        const double of_one = model_cluster_price_per_hour(cluster, begin);

        price += (double)(end - begin) * of_one;
        power_w += (double)(end - begin) * device->power_w;
        all_priced = all_priced && of_one > 0.0;
        all_powered = all_powered && device->power_w > 0.0;
        begin = end;
    }
    workload->price_per_device_hour = all_priced ? price / (double)n : 0.0;
    workload->power_w_per_device = all_powered ? power_w / (double)n : 0.0;
}
