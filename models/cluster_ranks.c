#include "models/cluster.h"

/* --- devices --- */

int64_t
model_cluster_n_devices(const ModelCluster *cluster)
{
    int64_t n = 0;

    g_return_val_if_fail(cluster != NULL, 0);

    for (guint i = 0; i < cluster->nodes->len; i++) {
        const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, i);

        n += nodes->n_devices * nodes->n_nodes;
    }
    return n;
}

/* Where a device stands. */
typedef struct {
    const ModelNodes *nodes; /* (nullable) NULL: no such device */
    int64_t node;            /* counted over the whole cluster */
    int64_t index;           /* in its node */
} DevicePosition;

static DevicePosition
find_place(const ModelCluster *cluster, int64_t rank)
{
    int64_t first_rank = 0, first_node = 0;

    for (guint i = 0; i < cluster->nodes->len; i++) {
        const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, i);
        int64_t n = nodes->n_devices * nodes->n_nodes;

        if (rank - first_rank < n)
            return (DevicePosition){
                .nodes = nodes,
                .node = first_node + (rank - first_rank) / nodes->n_devices,
                .index = (rank - first_rank) % nodes->n_devices,
            };
        first_rank += n;
        first_node += nodes->n_nodes;
    }
    return (DevicePosition){.nodes = NULL};
}

const ModelDevice *
model_cluster_device(const ModelCluster *cluster, int64_t rank)
{
    DevicePosition position;

    g_return_val_if_fail(cluster != NULL && rank >= 0, NULL);

    position = find_place(cluster, rank);
    g_return_val_if_fail(position.nodes != NULL, NULL);
    return &g_array_index(cluster->devices, ModelDevice, position.nodes->device);
}

double
model_cluster_price_per_hour(const ModelCluster *cluster, int64_t rank)
{
    const ModelDevice *device = model_cluster_device(cluster, rank);

    g_return_val_if_fail(device != NULL, 0.0);
    return device->price_per_hour > 0.0 ? device->price_per_hour : cluster->price_per_device_hour;
}

/* --- links --- */

static ModelLink
link_of(const ModelCluster *cluster, const ModelNodes *nodes, size_t level)
{
    const ModelLevel *of_all = &g_array_index(cluster->levels, ModelLevel, level);

    if (nodes->has_link[level])
        return nodes->links[level];
    return (ModelLink){of_all->bytes_per_s, of_all->shared_bytes_per_s, of_all->latency_s};
}

ModelLink
model_cluster_link(const ModelCluster *cluster, int64_t rank, size_t level)
{
    return model_cluster_slowest_link(cluster, rank, rank, level);
}

ModelLink
model_cluster_slowest_link(const ModelCluster *cluster, int64_t first, int64_t last, size_t level)
{
    ModelLink slowest = {0};
    int64_t begin = 0;
    bool any = false;

    g_return_val_if_fail(cluster != NULL && level < cluster->levels->len, slowest);
    g_return_val_if_fail(first >= 0 && first <= last, slowest);

    /* Devices [begin, end) are those of group i. */
    for (guint i = 0; i < cluster->nodes->len; i++) {
        const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, i);
        const int64_t end = begin + nodes->n_devices * nodes->n_nodes;

        if (begin <= last && first < end) {
            const ModelLink link = link_of(cluster, nodes, level);
            const double shared = link.shared_bytes_per_s;

            if (!any)
                slowest = link;
            any = true;
            slowest.bytes_per_s = MIN(slowest.bytes_per_s, link.bytes_per_s);
            slowest.latency_s = MAX(slowest.latency_s, link.latency_s);
            if (shared > 0.0 &&
                (slowest.shared_bytes_per_s <= 0.0 || shared < slowest.shared_bytes_per_s))
                slowest.shared_bytes_per_s = shared;
        }
        begin = end;
    }
    g_return_val_if_fail(any, slowest);
    return slowest;
}

/* --- levels --- */

static int64_t
largest_node(const ModelCluster *cluster)
{
    int64_t largest = 0;

    for (guint i = 0; i < cluster->nodes->len; i++)
        largest = MAX(largest, g_array_index(cluster->nodes, ModelNodes, i).n_devices);
    return largest;
}

size_t
model_cluster_level_between(const ModelCluster *cluster, int64_t rank_a, int64_t rank_b)
{
    DevicePosition a, b;
    int64_t node_devices;

    g_return_val_if_fail(cluster != NULL && cluster->levels->len > 0, 0);
    g_return_val_if_fail(rank_a >= 0 && rank_b >= 0, 0);

    a = find_place(cluster, rank_a);
    b = find_place(cluster, rank_b);
    g_return_val_if_fail(a.nodes != NULL && b.nodes != NULL, 0);
    node_devices = largest_node(cluster);
    for (guint i = 0; i + 1 < cluster->levels->len; i++) {
        int64_t group = g_array_index(cluster->levels, ModelLevel, i).group_devices;

        if (group <= node_devices ? a.node == b.node && a.index / group == b.index / group
                                  : rank_a / group == rank_b / group)
            return i;
    }
    return cluster->levels->len - 1;
}

void
model_cluster_group(const ModelCluster *cluster, size_t level, int64_t rank, int64_t *first,
                    int64_t *n)
{
    g_return_if_fail(cluster != NULL && level < cluster->levels->len && rank >= 0);
    const int64_t n_all = model_cluster_n_devices(cluster);
    const int64_t group = g_array_index(cluster->levels, ModelLevel, level).group_devices;
    int64_t end = n_all;
    const DevicePosition position = find_place(cluster, rank);

    g_return_if_fail(position.nodes != NULL);
    *first = 0;
    if (group > 0 && group <= largest_node(cluster)) {
        *first = rank - position.index % group;
        end = rank - position.index + position.nodes->n_devices;
    } else if (group > 0) {
        *first = rank - rank % group;
    }
    *n = MIN(end, group > 0 ? *first + group : n_all) - *first;
}

/* --- resizing --- */

/* Appends @n_nodes nodes, if any, of the kind of @nodes but of @n_devices. */
static void
append_nodes(GArray *groups, const ModelNodes *nodes, int64_t n_devices, int64_t n_nodes)
{
    ModelNodes some = *nodes;

    some.n_devices = n_devices;
    some.n_nodes = n_nodes;
    if (n_nodes > 0)
        g_array_append_val(groups, some);
}

ModelCluster *
model_cluster_resized(const ModelCluster *cluster, int64_t n_devices)
{
    ModelCluster *resized;
    int64_t missing = n_devices;
    const ModelNodes *nodes = NULL;

    g_return_val_if_fail(cluster != NULL && cluster->nodes->len > 0, NULL);
    g_return_val_if_fail(n_devices >= 1 && n_devices <= MODEL_CLUSTER_MAX_DEVICES, NULL);

    resized = model_cluster_copy(cluster);
    g_array_set_size(resized->nodes, 0);
    /* Invariant: the groups before i hold n_devices - missing devices, all of them whole; the group
     * that ends the loop is @nodes, from which what is missing is taken. */
    for (guint i = 0; i < cluster->nodes->len; i++) {
        nodes = &g_array_index(cluster->nodes, ModelNodes, i);
        if (i + 1 == cluster->nodes->len || missing < nodes->n_devices * nodes->n_nodes)
            break;
        append_nodes(resized->nodes, nodes, nodes->n_devices, nodes->n_nodes);
        missing -= nodes->n_devices * nodes->n_nodes;
    }
    append_nodes(resized->nodes, nodes, nodes->n_devices, missing / nodes->n_devices);
    if (missing % nodes->n_devices != 0)
        append_nodes(resized->nodes, nodes, missing % nodes->n_devices, 1);
    return resized;
}
