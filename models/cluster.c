#include "models/cluster.h"

#include "base/json_fields.h"

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

ModelCluster *
model_cluster_new(void)
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
    g_return_val_if_fail(cluster != NULL, NULL);

    ModelCluster *copy = model_cluster_new();
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

/* --- keys --- */

/* Rates beyond these are typing errors: 1e21 FLOP/s and 1e18 bytes/s per device. */
#define MAX_FLOPS_PER_S 1e21
#define MAX_BYTES_PER_S 1e18
#define MAX_BYTES (INT64_C(1) << 50)
#define MAX_LATENCY_S 10.0
#define MAX_PRICE 1e6

#define DEVICE(member) JSON_FIELD_OF(ModelDevice, member)
#define NODES(member) JSON_FIELD_OF(ModelNodes, member)
#define LINK(member) JSON_FIELD_OF(ModelLink, member)
#define LEVEL(member) JSON_FIELD_OF(ModelLevel, member)
#define CLUSTER(member) JSON_FIELD_OF(ModelCluster, member)
#define SPARSE (JSON_OPTIONAL | JSON_SPARSE)
#define UNIT JSON_WITH_UNIT

static const JsonField device_fields[] = {
    {"name", DEVICE(name)},
    {"flops_per_s", JSON_FIELD_AS(JSON_DOUBLE, ModelDevice, flops_per_s), 0.0, MAX_FLOPS_PER_S,
     SPARSE | UNIT, .keys = dtype_names},
    {"vector_flops_per_s", DEVICE(vector_flops_per_s), 1.0, MAX_FLOPS_PER_S, UNIT},
    {"memory_bytes", DEVICE(memory_bytes), 1, MAX_BYTES, UNIT},
    {"memory_bytes_per_s", DEVICE(memory_bytes_per_s), 1.0, MAX_BYTES_PER_S, UNIT},
    {"n_multiprocessors", DEVICE(n_multiprocessors), 0, 1 << 20, JSON_OPTIONAL},
    {"l2_bytes", DEVICE(l2_bytes), 0, MAX_BYTES, JSON_OPTIONAL | UNIT},
    {"power_w", DEVICE(power_w), 0.0, 1e6, JSON_OPTIONAL},
    {"price_per_hour", DEVICE(price_per_hour), 0.0, MAX_PRICE, SPARSE},
    {.key = NULL},
};

static const JsonField nodes_fields[] = {
    {"n_devices", NODES(n_devices), 1, MODEL_CLUSTER_MAX_DEVICES},
    {"n_nodes", NODES(n_nodes), 1, MODEL_CLUSTER_MAX_DEVICES},
    {.key = NULL},
};

/* What a link leaves out has the level's value. */
static const JsonField link_fields[] = {
    {"bytes_per_s", LINK(bytes_per_s), 1.0, MAX_BYTES_PER_S, JSON_OPTIONAL | UNIT},
    {"shared_bytes_per_s", LINK(shared_bytes_per_s), 0.0, MAX_BYTES_PER_S, JSON_OPTIONAL | UNIT},
    {"latency_s", LINK(latency_s), 0.0, MAX_LATENCY_S, JSON_OPTIONAL | UNIT},
    {.key = NULL},
};

static const JsonField level_fields[] = {
    {"name", LEVEL(name)},
    {"group_devices", LEVEL(group_devices), 0, MODEL_CLUSTER_MAX_DEVICES},
    {"bytes_per_s", LEVEL(bytes_per_s), 1.0, MAX_BYTES_PER_S, UNIT},
    {"shared_bytes_per_s", LEVEL(shared_bytes_per_s), 0.0, MAX_BYTES_PER_S, JSON_OPTIONAL | UNIT},
    {"latency_s", LEVEL(latency_s), 0.0, MAX_LATENCY_S, UNIT},
    {.key = NULL},
};

static const JsonField price_fields[] = {
    {"price_per_device_hour", CLUSTER(price_per_device_hour), 0.0, MAX_PRICE, JSON_OPTIONAL},
    {"currency", CLUSTER(currency), .flags = SPARSE},
    {"price_source", CLUSTER(price_source), .flags = SPARSE},
    {.key = NULL},
};

/* --- reading --- */

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
        ModelDevice device = {0};

        json_fields_read_object(doc, v, device_fields, &device);
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
        nodes->links[at] =
            (ModelLink){level->bytes_per_s, level->shared_bytes_per_s, level->latency_s};
        json_fields_read_object(doc, v, link_fields, &nodes->links[at]);
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
        ModelNodes nodes = {.device = find_device(doc, v, cluster->devices)};

        json_fields_read(doc, v, nodes_fields, &nodes);
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
        ModelLevel level = {0};

        json_fields_read_object(doc, v, level_fields, &level);
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
    ModelCluster *cluster = model_cluster_new();

    cluster->name = g_strdup(json_string(doc, object, "name"));
    read_devices(doc, object, cluster);
    read_levels(doc, object, cluster);
    read_nodes(doc, object, cluster); /* may name levels */
    json_fields_read(doc, object, price_fields, cluster);
    const JsonValue *sources = json_array_or_null(doc, object, "sources");
    if (sources != NULL) {
        for (const JsonValue *v = json_first(sources); v != NULL; v = json_next(v))
            g_ptr_array_add(cluster->sources, g_strdup(json_value_string(doc, v)));
    }
    json_object_end(doc, object);
    return cluster;
}

/* --- writing --- */

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
        json_fields_write(writer, link_fields, &nodes->links[i]);
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
    for (guint i = 0; i < cluster->devices->len; i++) {
        json_write_object(writer, NULL);
        json_fields_write(writer, device_fields, &g_array_index(cluster->devices, ModelDevice, i));
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
    json_write_array(writer, "nodes");
    for (guint i = 0; i < cluster->nodes->len; i++) {
        const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, i);

        json_write_object_inline(writer, NULL);
        json_write_string(writer, "device",
                          g_array_index(cluster->devices, ModelDevice, nodes->device).name);
        json_fields_write(writer, nodes_fields, nodes);
        write_links(writer, cluster, nodes);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
    json_fields_write_rows(writer, "levels", level_fields, cluster->levels);
    json_fields_write(writer, price_fields, cluster);
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
    g_return_val_if_fail(cluster != NULL && rank >= 0, NULL);

    DevicePosition position = find_position(cluster, rank);
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
    g_return_val_if_fail(cluster != NULL && cluster->levels->len > 0, 0);
    g_return_val_if_fail(rank_a >= 0 && rank_b >= 0, 0);

    DevicePosition a = find_position(cluster, rank_a);
    DevicePosition b = find_position(cluster, rank_b);
    g_return_val_if_fail(a.nodes != NULL && b.nodes != NULL, 0);
    int64_t node_devices = largest_node(cluster);
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
    int64_t missing = n_devices;
    const ModelNodes *nodes = NULL;

    g_return_val_if_fail(cluster != NULL && cluster->nodes->len > 0, NULL);
    g_return_val_if_fail(n_devices >= 1 && n_devices <= MODEL_CLUSTER_MAX_DEVICES, NULL);

    ModelCluster *resized = model_cluster_copy(cluster);
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

/* What is left of @shared, the adapters of a node of @had devices, where it has @has. */
static double
trimmed_share(double shared, int64_t had, int64_t has)
{
    return shared * (double)has / (double)had;
}

ModelCluster *
model_cluster_trimmed(const ModelCluster *cluster, int64_t n_devices)
{
    g_return_val_if_fail(cluster != NULL && cluster->nodes->len > 0 && n_devices >= 1, NULL);

    ModelCluster *trimmed = model_cluster_copy(cluster);
    const int64_t had = largest_node(cluster);
    for (guint i = 0; i < trimmed->nodes->len; i++) {
        ModelNodes *nodes = &g_array_index(trimmed->nodes, ModelNodes, i);
        const int64_t has = MIN(nodes->n_devices, n_devices);

        for (guint level = 0; level < trimmed->levels->len; level++)
            nodes->links[level].shared_bytes_per_s =
                trimmed_share(nodes->links[level].shared_bytes_per_s, nodes->n_devices, has);
        nodes->n_devices = has;
    }
    for (guint i = 0; i < trimmed->levels->len && had > n_devices; i++) {
        ModelLevel *level = &g_array_index(trimmed->levels, ModelLevel, i);
        const int64_t inside =
            i == 0 ? 1 : g_array_index(cluster->levels, ModelLevel, i - 1).group_devices;

        /* Shared by the devices of a group of the level inside: a node, unless it is smaller. */
        if (inside == had)
            level->shared_bytes_per_s = trimmed_share(level->shared_bytes_per_s, had, n_devices);
        if (level->group_devices > n_devices && level->group_devices <= had)
            level->group_devices = n_devices;
    }
    return trimmed;
}
