#include "profiles/workload_build.h"

/* --- groups and shapes --- */

ProfileGroup
workload_build_dense_group(const WorkloadBuild *build, int32_t rank)
{
    const PlanDegrees *d = &build->plan->degrees;

    return (ProfileGroup){workload_build_first_device(build, rank), d->tp, d->cp * d->dp};
}

/* Experts are spread over ep consecutive devices of the stage, whatever their tp, cp and dp. */
ProfileGroup
workload_build_expert_group(const WorkloadBuild *build, int32_t rank)
{
    const PlanDegrees *d = &build->plan->degrees;

    return (ProfileGroup){workload_build_first_device(build, rank), d->ep,
                          MAX(1, d->tp * d->cp * d->dp / d->ep)};
}

ModelShape
workload_build_shape(const WorkloadBuild *build, int32_t class_, int32_t slice)
{
    const Plan *plan = build->plan;

    return (ModelShape){
        .batch = build->class_sequences[class_],
        .tokens = g_array_index(plan->slices, int64_t, (guint)slice),
        .context = build->contexts[slice],
        .tp = plan->degrees.tp,
        .cp = plan->degrees.cp,
        .ep = plan->degrees.ep,
        .sequence_parallel = plan->sequence_parallel,
        .flash_attention = plan->conventions.attention == PLAN_ATTENTION_FLASH,
        .dropout = plan->conventions.dropout,
        .dtype = plan->dtype,
        .expert_imbalance = 1.0,
    };
}

int
workload_build_layer_kind(const WorkloadBuild *build, int64_t layer)
{
    return model_layer_is_moe(build->arch, layer) ? 1 : 0;
}

int64_t
workload_build_layer_of_kind(const WorkloadBuild *build, int kind)
{
    int64_t layer = kind == 0 ? 0 : build->arch->n_layers - 1;

    return workload_build_layer_kind(build, layer) == kind ? layer : -1;
}

/* --- where a stage runs --- */

static bool
is_slower(const ModelDevice *a, const ModelDevice *b, Dtype dtype)
{
    if (a->flops_per_s[dtype] != b->flops_per_s[dtype])
        return a->flops_per_s[dtype] < b->flops_per_s[dtype];
    return a->memory_bytes_per_s < b->memory_bytes_per_s;
}

WorkloadPlace
workload_build_place(const WorkloadBuild *build, int32_t rank)
{
    const ModelCluster *cluster = build->profile->cluster;
    const PlanDegrees *d = &build->plan->degrees;
    int64_t first = workload_build_first_device(build, rank);
    int64_t end = first + d->dp * d->cp * d->tp, begin = 0;
    WorkloadPlace place = {
        .device_rank = first,
        .device = model_cluster_device(cluster, first),
        .groups =
            {
                [MODEL_GROUP_TP] = {first, 1, d->tp},
                [MODEL_GROUP_CP] = {first, d->tp, d->cp},
                [MODEL_GROUP_EP] = {first, 1, d->ep},
            },
    };

    place.memory_bytes = place.device->memory_bytes;
    for (guint i = 0; i < cluster->nodes->len && begin < end; i++) {
        const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, i);
        int64_t next = begin + nodes->n_devices * nodes->n_nodes;

        if (next > first) {
            int64_t at = MAX(begin, first);
            const ModelDevice *device = model_cluster_device(cluster, at);

            if (is_slower(device, place.device, build->plan->dtype)) {
                place.device = device;
                place.device_rank = at;
            }
            place.memory_bytes = MIN(place.memory_bytes, device->memory_bytes);
        }
        begin = next;
    }
    return place;
}

/* Devices of the node of @rank, and the first of them. */
void
workload_build_node(const ModelCluster *cluster, int64_t rank, int64_t *first, int64_t *n)
{
    int64_t begin = 0;

    *first = 0;
    *n = 1;
    for (guint i = 0; i < cluster->nodes->len; i++) {
        const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, i);
        int64_t end = begin + nodes->n_devices * nodes->n_nodes;

        if (rank < end) {
            *n = nodes->n_devices;
            *first = begin + (rank - begin) / nodes->n_devices * nodes->n_devices;
            return;
        }
        begin = end;
    }
}

/* Whether ops at both places cost the same: device kind, and how every group lies. */
bool
workload_build_same_costs(const WorkloadBuild *build, const WorkloadPlace *a,
                          const WorkloadPlace *b)
{
    const ModelCluster *cluster = build->profile->cluster;

    if (a->device != b->device)
        return false;
    for (size_t i = 0; i < G_N_ELEMENTS(a->groups); i++) {
        const ProfileGroup *ga = &a->groups[i], *gb = &b->groups[i];
        int64_t first_a, n_a, first_b, n_b;

        if (ga->n == 1)
            continue;
        workload_build_node(cluster, ga->first, &first_a, &n_a);
        workload_build_node(cluster, gb->first, &first_b, &n_b);
        if (n_a != n_b ||
            model_cluster_level_between(cluster, ga->first, ga->first + (ga->n - 1) * ga->stride) !=
                model_cluster_level_between(cluster, gb->first,
                                            gb->first + (gb->n - 1) * gb->stride))
            return false;
    }
    return true;
}
