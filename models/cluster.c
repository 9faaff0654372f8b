#include "models/cluster.h"

#include <string.h>

static void
device_clear(void *data)
{
    g_free(((ModelDevice *)data)->name);
}

static void
level_clear(void *data)
{
    g_free(((ModelLevel *)data)->name);
}

static ModelCluster *
cluster_new(void)
{
    ModelCluster *cluster = g_new0(ModelCluster, 1);

    cluster->devices = g_array_new(FALSE, TRUE, sizeof(ModelDevice));
    g_array_set_clear_func(cluster->devices, device_clear);
    cluster->nodes = g_array_new(FALSE, TRUE, sizeof(ModelNodes));
    cluster->levels = g_array_new(FALSE, TRUE, sizeof(ModelLevel));
    g_array_set_clear_func(cluster->levels, level_clear);
    cluster->sources = g_ptr_array_new_with_free_func(g_free);
    return cluster;
}

void
model_cluster_free(ModelCluster *cluster)
{
    if (cluster == NULL)
        return;
    g_free(cluster->name);
    g_array_unref(cluster->devices);
    g_array_unref(cluster->nodes);
    g_array_unref(cluster->levels);
    g_free(cluster->currency);
    g_free(cluster->price_source);
    g_ptr_array_unref(cluster->sources);
    g_free(cluster);
}

ModelCluster *
model_cluster_copy(const ModelCluster *cluster)
{
    ModelCluster *copy;

    g_return_val_if_fail(cluster != NULL, NULL);

    copy = cluster_new();
    copy->name = g_strdup(cluster->name);
    copy->price_per_device_hour = cluster->price_per_device_hour;
    copy->currency = g_strdup(cluster->currency);
    copy->price_source = g_strdup(cluster->price_source);
    for (guint i = 0; i < cluster->devices->len; i++) {
        ModelDevice device = g_array_index(cluster->devices, ModelDevice, i);

        device.name = g_strdup(device.name);
        g_array_append_val(copy->devices, device);
    }
    for (guint i = 0; i < cluster->levels->len; i++) {
        ModelLevel level = g_array_index(cluster->levels, ModelLevel, i);

        level.name = g_strdup(level.name);
        g_array_append_val(copy->levels, level);
    }
    for (guint i = 0; i < cluster->sources->len; i++)
        g_ptr_array_add(copy->sources, g_strdup(g_ptr_array_index(cluster->sources, i)));
    g_array_append_vals(copy->nodes, cluster->nodes->data, cluster->nodes->len);
    return copy;
}

/* --- reading --- */

/* Rates beyond these are typing errors: 1e21 FLOP/s and 1e18 bytes/s per device. */
#define MAX_FLOPS_PER_S 1e21
#define MAX_BYTES_PER_S 1e18
#define MAX_BYTES (INT64_C(1) << 50)
#define MAX_LATENCY_S 10.0
#define MAX_PRICE 1e6

static ModelDevice
read_device(JsonDoc *doc, const JsonValue *object)
{
    ModelDevice device = {.name = g_strdup(json_string(doc, object, "name"))};
    const JsonValue *rates = json_object(doc, object, "flops_per_s");

    for (int i = 0; i < DTYPE_N; i++)
        device.flops_per_s[i] =
            json_double_or(doc, rates, dtype_names[i], 0.0, MAX_FLOPS_PER_S, 0.0);
    json_object_end(doc, rates);
    device.vector_flops_per_s =
        json_double(doc, object, "vector_flops_per_s", 1.0, MAX_FLOPS_PER_S);
    device.memory_bytes = json_int64(doc, object, "memory_bytes", 1, MAX_BYTES);
    device.memory_bytes_per_s =
        json_double(doc, object, "memory_bytes_per_s", 1.0, MAX_BYTES_PER_S);
    device.n_multiprocessors = json_int64_or(doc, object, "n_multiprocessors", 0, 1 << 20, 0);
    device.l2_bytes = json_int64_or(doc, object, "l2_bytes", 0, MAX_BYTES, 0);
    device.power_w = json_double_or(doc, object, "power_w", 0.0, 1e6, 0.0);
    device.price_per_hour = json_double_or(doc, object, "price_per_hour", 0.0, MAX_PRICE, 0.0);
    json_object_end(doc, object);
    return device;
}

/* The index of the device that "device" names; 0 after recording an error. */
static int64_t
find_device(JsonDoc *doc, const JsonValue *object, const GArray *devices)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new();

    for (guint i = 0; i < devices->len; i++)
        g_ptr_array_add(names, g_array_index(devices, ModelDevice, i).name);
    g_ptr_array_add(names, NULL);
    return json_enum(doc, object, "device", (const char *const *)names->pdata);
}

static void
read_devices(JsonDoc *doc, const JsonValue *object, ModelCluster *cluster)
{
    const JsonValue *array = json_array(doc, object, "devices");

    if (json_length(array) == 0)
        json_fail(doc, array, "expected at least one kind of device");
    for (const JsonValue *v = json_first(array); v != NULL; v = json_next(v)) {
        ModelDevice device = read_device(doc, v);

        for (guint i = 0; i < cluster->devices->len; i++) {
            if (strcmp(g_array_index(cluster->devices, ModelDevice, i).name, device.name) == 0)
                json_fail(doc, v, "name: given to two kinds of device");
        }
        g_array_append_val(cluster->devices, device);
    }
}

/* "links" of a group of nodes: what replaces the numbers of the levels they name. */
static void
read_links(JsonDoc *doc, const JsonValue *object, const ModelCluster *cluster, ModelNodes *nodes)
{
    const JsonValue *array = json_array_or_null(doc, object, "links");
    g_autoptr(GPtrArray) names = g_ptr_array_new();

    if (array == NULL)
        return;
    for (guint i = 0; i < cluster->levels->len; i++)
        g_ptr_array_add(names, g_array_index(cluster->levels, ModelLevel, i).name);
    g_ptr_array_add(names, NULL);
    for (const JsonValue *v = json_first(array); v != NULL; v = json_next(v)) {
        const int at = json_enum(doc, v, "level", (const char *const *)names->pdata);
        if (json_doc_failed(doc))
            return;
        const ModelLevel *level = &g_array_index(cluster->levels, ModelLevel, (guint)at);

        if (nodes->has_link[at])
            json_fail(doc, v, "level %s: given twice for these nodes", level->name);
        nodes->has_link[at] = true;
        nodes->links[at] = (ModelLink){
            json_double_or(doc, v, "bytes_per_s", 1.0, MAX_BYTES_PER_S, level->bytes_per_s),
            json_double_or(doc, v, "shared_bytes_per_s", 0.0, MAX_BYTES_PER_S,
                           level->shared_bytes_per_s),
            json_double_or(doc, v, "latency_s", 0.0, MAX_LATENCY_S, level->latency_s),
        };
        json_object_end(doc, v);
    }
}

static void
read_nodes(JsonDoc *doc, const JsonValue *object, ModelCluster *cluster)
{
    const JsonValue *array = json_array(doc, object, "nodes");
    int64_t n_devices = 0;

    if (json_length(array) == 0)
        json_fail(doc, array, "expected at least one group of nodes");
    for (const JsonValue *v = json_first(array); v != NULL; v = json_next(v)) {
        ModelNodes nodes = {
            .device = find_device(doc, v, cluster->devices),
            .n_devices = json_int64(doc, v, "n_devices", 1, MODEL_CLUSTER_MAX_DEVICES),
            .n_nodes = json_int64(doc, v, "n_nodes", 1, MODEL_CLUSTER_MAX_DEVICES),
        };

        read_links(doc, v, cluster, &nodes);
        json_object_end(doc, v);
        /* Each factor is at most 2^24 and the sum so far too: no overflow. */
        n_devices += nodes.n_devices * nodes.n_nodes;
        if (n_devices > MODEL_CLUSTER_MAX_DEVICES) {
            json_fail(doc, v, "more than %" G_GINT64_FORMAT " devices in all",
                      MODEL_CLUSTER_MAX_DEVICES);
            return;
        }
        g_array_append_val(cluster->nodes, nodes);
    }
}

static void
read_levels(JsonDoc *doc, const JsonValue *object, ModelCluster *cluster)
{
    const JsonValue *array = json_array(doc, object, "levels");
    int64_t inner_devices = 1;
    bool is_last = false;

    if (json_length(array) == 0)
        json_fail(doc, array, "expected at least one level");
    for (const JsonValue *v = json_first(array); v != NULL; v = json_next(v)) {
        ModelLevel level = {
            .name = g_strdup(json_string(doc, v, "name")),
            .group_devices = json_int64(doc, v, "group_devices", 0, MODEL_CLUSTER_MAX_DEVICES),
            .bytes_per_s = json_double(doc, v, "bytes_per_s", 1.0, MAX_BYTES_PER_S),
            .shared_bytes_per_s =
                json_double_or(doc, v, "shared_bytes_per_s", 0.0, MAX_BYTES_PER_S, 0.0),
            .latency_s = json_double(doc, v, "latency_s", 0.0, MAX_LATENCY_S),
        };

        json_object_end(doc, v);
        if (is_last)
            json_fail(doc, v, "a level outside the one whose group_devices is 0 (all)");
        else if (level.group_devices != 0 && level.group_devices <= inner_devices)
            json_fail(doc, json_member(doc, v, "group_devices"),
                      "expected more than the %" G_GINT64_FORMAT " of the level inside, or 0 (all)",
                      inner_devices);
        is_last = level.group_devices == 0;
        inner_devices = level.group_devices;
        g_array_append_val(cluster->levels, level);
    }
    if (!is_last)
        json_fail(doc, array, "the last level must have group_devices 0 (all)");
    if (cluster->levels->len > MODEL_CLUSTER_MAX_LEVELS)
        json_fail(doc, array, "more than %d levels", MODEL_CLUSTER_MAX_LEVELS);
}

ModelCluster *
model_cluster_read(JsonDoc *doc, const JsonValue *object)
{
    ModelCluster *cluster = cluster_new();
    const JsonValue *sources;

    cluster->name = g_strdup(json_string(doc, object, "name"));
    read_devices(doc, object, cluster);
    read_levels(doc, object, cluster);
    read_nodes(doc, object, cluster); /* may name levels */
    cluster->price_per_device_hour =
        json_double_or(doc, object, "price_per_device_hour", 0.0, MAX_PRICE, 0.0);
    cluster->currency = g_strdup(json_string_or(doc, object, "currency", NULL));
    cluster->price_source = g_strdup(json_string_or(doc, object, "price_source", NULL));
    sources = json_array_or_null(doc, object, "sources");
    if (sources != NULL) {
        for (const JsonValue *v = json_first(sources); v != NULL; v = json_next(v))
            g_ptr_array_add(cluster->sources, g_strdup(json_value_string(doc, v)));
    }
    json_object_end(doc, object);
    return cluster;
}

/* --- writing --- */

static void
write_device(JsonWriter *writer, const ModelDevice *device)
{
    json_write_object(writer, NULL);
    json_write_string(writer, "name", device->name);
    json_write_object_inline(writer, "flops_per_s");
    for (int i = 0; i < DTYPE_N; i++) {
        if (device->flops_per_s[i] > 0.0)
            json_write_double(writer, dtype_names[i], device->flops_per_s[i]);
    }
    json_write_object_end(writer);
    json_write_double(writer, "vector_flops_per_s", device->vector_flops_per_s);
    json_write_int64(writer, "memory_bytes", device->memory_bytes);
    json_write_double(writer, "memory_bytes_per_s", device->memory_bytes_per_s);
    json_write_int64(writer, "n_multiprocessors", device->n_multiprocessors);
    json_write_int64(writer, "l2_bytes", device->l2_bytes);
    json_write_double(writer, "power_w", device->power_w);
    if (device->price_per_hour > 0.0)
        json_write_double(writer, "price_per_hour", device->price_per_hour);
    json_write_object_end(writer);
}

static void
write_level(JsonWriter *writer, const ModelLevel *level)
{
    json_write_object_inline(writer, NULL);
    json_write_string(writer, "name", level->name);
    json_write_int64(writer, "group_devices", level->group_devices);
    json_write_double(writer, "bytes_per_s", level->bytes_per_s);
    json_write_double(writer, "shared_bytes_per_s", level->shared_bytes_per_s);
    json_write_double(writer, "latency_s", level->latency_s);
    json_write_object_end(writer);
}

static void
write_links(JsonWriter *writer, const ModelCluster *cluster, const ModelNodes *nodes)
{
    bool any = false;

    for (guint i = 0; i < cluster->levels->len; i++) {
        if (!nodes->has_link[i])
            continue;
        if (!any)
            json_write_array(writer, "links");
        any = true;
        json_write_object(writer, NULL);
        json_write_string(writer, "level", g_array_index(cluster->levels, ModelLevel, i).name);
        json_write_double(writer, "bytes_per_s", nodes->links[i].bytes_per_s);
        json_write_double(writer, "shared_bytes_per_s", nodes->links[i].shared_bytes_per_s);
        json_write_double(writer, "latency_s", nodes->links[i].latency_s);
        json_write_object_end(writer);
    }
    if (any)
        json_write_array_end(writer);
}

void
model_cluster_write(JsonWriter *writer, const char *key, const ModelCluster *cluster)
{
    g_return_if_fail(writer != NULL && cluster != NULL);

    json_write_object(writer, key);
    json_write_string(writer, "name", cluster->name);
    json_write_array(writer, "devices");
    for (guint i = 0; i < cluster->devices->len; i++)
        write_device(writer, &g_array_index(cluster->devices, ModelDevice, i));
    json_write_array_end(writer);
    json_write_array(writer, "nodes");
    for (guint i = 0; i < cluster->nodes->len; i++) {
        const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, i);

        json_write_object_inline(writer, NULL);
        json_write_string(writer, "device",
                          g_array_index(cluster->devices, ModelDevice, nodes->device).name);
        json_write_int64(writer, "n_devices", nodes->n_devices);
        json_write_int64(writer, "n_nodes", nodes->n_nodes);
        write_links(writer, cluster, nodes);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
    json_write_array(writer, "levels");
    for (guint i = 0; i < cluster->levels->len; i++)
        write_level(writer, &g_array_index(cluster->levels, ModelLevel, i));
    json_write_array_end(writer);
    json_write_double(writer, "price_per_device_hour", cluster->price_per_device_hour);
    if (cluster->currency != NULL)
        json_write_string(writer, "currency", cluster->currency);
    if (cluster->price_source != NULL)
        json_write_string(writer, "price_source", cluster->price_source);
    json_write_array(writer, "sources");
    for (guint i = 0; i < cluster->sources->len; i++)
        json_write_string(writer, NULL, g_ptr_array_index(cluster->sources, i));
    json_write_array_end(writer);
    json_write_object_end(writer);
}

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
find_position(const ModelCluster *cluster, int64_t rank)
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

    position = find_position(cluster, rank);
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

void
model_cluster_node(const ModelCluster *cluster, int64_t rank, int64_t *first, int64_t *n)
{
    const DevicePosition position = find_position(cluster, rank);

    g_return_if_fail(position.nodes != NULL);
    *first = rank - position.index;
    *n = position.nodes->n_devices;
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

    a = find_position(cluster, rank_a);
    b = find_position(cluster, rank_b);
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
    const DevicePosition position = find_position(cluster, rank);

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
