#include "profiles/own.h"

#include <string.h>

#include "base/text.h"
#include "base/units.h"
#include "profiles/change.h"

/* Keys with units, and the numbers of change.h that they are. */
static const struct {
    const char *key, *name; /* @name NULL: the innermost level */
} changes[] = {
    {"flops", "flops"},     {"memory", "memory"},   {"memory_bandwidth", "memory-bandwidth"},
    {"power", "power"},     {"network", "network"}, {"latency", "latency"},
    {"node_network", NULL}, {"price", "price"},
};

/* How many of these a device of which nothing is known has to have, the first ones. */
#define N_REQUIRED 3

#define MAX_NODE_DEVICES 1024

Profile *
profile_of_device(const char *device)
{
    g_autoptr(GPtrArray) names = profile_builtin_names();

    g_return_val_if_fail(device != NULL, NULL);
    for (guint i = 0; i < names->len; i++) {
        g_autoptr(Profile) profile = profile_load(names->pdata[i], NULL);

        if (profile != NULL && profile->cluster->devices->len == 1 &&
            strcmp(g_array_index(profile->cluster->devices, ModelDevice, 0).name, device) == 0)
            return g_steal_pointer(&profile);
    }
    return NULL;
}

/* Records that @key names no device of a built-in cluster. */
static void
fail_device(JsonDoc *doc, const JsonValue *object, const char *key, const char *name)
{
    g_autoptr(GPtrArray) clusters = profile_builtin_names();
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
    g_autofree char *shown = text_escape(name, 64);

    for (guint i = 0; i < clusters->len; i++) {
        g_autoptr(Profile) profile = profile_load(clusters->pdata[i], NULL);

        if (profile != NULL && profile->cluster->devices->len == 1)
            g_ptr_array_add(
                names, g_strdup(g_array_index(profile->cluster->devices, ModelDevice, 0).name));
    }
    g_ptr_array_add(names, NULL);
    g_autofree char *suggestion = text_suggestion(name, (const char *const *)names->pdata);
    json_fail(
        doc, json_member(doc, object, key),
        "no built-in cluster has a \"%s\"%s; degas list clusters names them%s", shown, suggestion,
        strcmp(key, "device") == 0 ? ", and \"like\" says which one a new device is like" : "");
}

/* (owned, nullable) The built-in cluster of that name, or with that device. */
static Profile *
find_builtin(const char *name)
{
    g_autoptr(GPtrArray) names = profile_builtin_names();

    return g_ptr_array_find_with_equal_func(names, name, g_str_equal, NULL)
               ? profile_load(name, NULL)
               : profile_of_device(name);
}

/* (owned, nullable) The profile that @object's device gives; NULL with an error in @doc.  @is_new:
 * its device is another, of which little is known. */
static Profile *
find_base(JsonDoc *doc, const JsonValue *object, bool *is_new)
{
    const char *device = json_string(doc, object, "device");
    const char *like = json_string_or(doc, object, "like", NULL);
    Profile *profile = NULL;

    *is_new = false;
    if (json_doc_failed(doc))
        return NULL;
    profile = like == NULL ? profile_of_device(device) : find_builtin(like);
    if (profile == NULL) {
        fail_device(doc, object, like == NULL ? "device" : "like", like == NULL ? device : like);
        return NULL;
    }
    ModelDevice *kind = &g_array_index(profile->cluster->devices, ModelDevice, 0);
    *is_new = strcmp(kind->name, device) != 0;
    if (*is_new) {
        g_free(kind->name);
        kind->name = g_strdup(device);
        kind->n_multiprocessors = 0;
        kind->l2_bytes = 0;
        kind->power_w = 0;
    }
    return profile;
}

/* A text with its unit, or a plain number. */
static void
change(JsonDoc *doc, const JsonValue *object, const char *key, const char *name, Profile *profile)
{
    const JsonValue *value = json_member(doc, object, key);
    g_autoptr(GError) error = NULL;

    if (value == NULL || json_doc_failed(doc))
        return;
    g_autofree char *text = json_is_number(value)
                                ? json_format_double(json_value_double(doc, value, 0, 1e300))
                                : g_strdup(json_value_string(doc, value));
    if (!profile_change(profile, name, text, &error))
        json_fail(doc, value, "%s", error->message);
}

/* One group of nodes.  The level that joined a node still does, levels inside it that are no longer
 * smaller than a node end, and the adapters of a node grow with it. */
static void
set_nodes(JsonDoc *doc, const JsonValue *object, ModelCluster *cluster)
{
    ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, 0);
    const int64_t had = nodes->n_devices;

    g_array_set_size(cluster->nodes, 1);
    nodes->n_nodes = json_int64_or(doc, object, "nodes", 1, MODEL_CLUSTER_MAX_DEVICES, 1);
    nodes->n_devices = json_int64_or(doc, object, "node_devices", 1, MAX_NODE_DEVICES, had);
    if (nodes->n_nodes * nodes->n_devices > MODEL_CLUSTER_MAX_DEVICES)
        json_fail(doc, object, "more than " INT " devices in all", MODEL_CLUSTER_MAX_DEVICES);
    if (nodes->n_devices == had)
        return;
    for (guint i = 0; i + 1 < cluster->levels->len;) {
        ModelLevel *level = &g_array_index(cluster->levels, ModelLevel, i);

        if (nodes->n_devices > 1 && level->group_devices == had) {
            level->group_devices = nodes->n_devices;
            i++;
        } else if (level->group_devices < nodes->n_devices || level->group_devices > had) {
            i++;
        } else {
            g_array_remove_index(cluster->levels, i);
        }
    }
    g_array_index(cluster->levels, ModelLevel, cluster->levels->len - 1).shared_bytes_per_s *=
        (double)nodes->n_devices / (double)had;
    if (nodes->n_devices == 1 && json_has(doc, object, "node_network"))
        json_fail(doc, json_member(doc, object, "node_network"), "a node has one device");
}

Profile *
profile_read_own(JsonDoc *doc, const JsonValue *object)
{
    bool is_new;
    Profile *profile = find_base(doc, object, &is_new);

    if (profile == NULL) {
        /* All keys are asked for, so that all that are missing are told. */
        for (size_t i = 0; i < G_N_ELEMENTS(changes); i++)
            json_member(doc, object, changes[i].key);
        profile = profile_new("", model_cluster_new());
        return profile;
    }
    ModelCluster *cluster = profile->cluster;
    const char *name = json_string_or(doc, object, "name", "own cluster");
    g_autofree char *file = g_path_get_basename(json_doc_name(doc));
    set_nodes(doc, object, cluster);
    for (size_t i = 0; i < G_N_ELEMENTS(changes); i++) {
        if (is_new && i < N_REQUIRED && !json_has(doc, object, changes[i].key))
            json_string(doc, object, changes[i].key); /* is missing */
        change(doc, object, changes[i].key,
               changes[i].name == NULL ? g_array_index(cluster->levels, ModelLevel, 0).name
                                       : changes[i].name,
               profile);
    }
    g_free(profile->name);
    profile->name = g_strdup(name);
    g_free(cluster->name);
    cluster->name = g_strdup(name);
    const char *currency = json_string_or(doc, object, "currency", "USD");
    const char *price_source = json_string_or(doc, object, "price_source", file);
    if (json_has(doc, object, "price")) {
        g_free(cluster->currency);
        cluster->currency = g_strdup(currency);
        g_free(cluster->price_source);
        cluster->price_source = g_strdup(price_source);
    }
    g_ptr_array_add(cluster->sources, g_strdup(json_string_or(doc, object, "source", file)));
    json_object_end(doc, object);
    return profile;
}
