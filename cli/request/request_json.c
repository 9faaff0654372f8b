#include "cli/request/request_json.h"

static ModelArch *
read_model(JsonDoc *doc, const JsonValue *object, GError **error)
{
    const JsonValue *value = json_member(doc, object, "model");

    if (value != NULL && json_is_object(value)) {
        g_autoptr(ModelArch) arch = model_arch_read(doc, value);

        return json_doc_finish(doc, error) ? g_steal_pointer(&arch) : NULL;
    }
    const char *name = json_string(doc, object, "model");

    return json_doc_finish(doc, error) ? model_arch_load(name, NULL, error) : NULL;
}

/* A profile, or the cluster in it alone. */
static Profile *
read_cluster(JsonDoc *doc, const JsonValue *object, GError **error)
{
    const JsonValue *value = json_member(doc, object, "cluster");

    if (value != NULL && json_is_object(value)) {
        g_autoptr(Profile) profile = NULL;

        if (json_has(doc, value, "cluster")) {
            profile = profile_read(doc, value);
        } else {
            ModelCluster *cluster = model_cluster_read(doc, value);

            profile = profile_new(cluster->name, cluster);
        }
        return json_doc_finish(doc, error) ? g_steal_pointer(&profile) : NULL;
    }
    const char *name = json_string(doc, object, "cluster");

    return json_doc_finish(doc, error) ? profile_load(name, error) : NULL;
}

Request *
request_read(JsonDoc *doc, const JsonValue *object, const Profile *given, Conditions *conditions,
             GError **error)
{
    static const OptionInfo *const tables[] = {request_options, request_fixed_options,
                                               conditions_options, NULL};
    static const OptionInfo *const fewer[] = {request_options, request_fixed_options, NULL};
    g_autoptr(ModelArch) arch = NULL;
    g_autoptr(Profile) profile = NULL;
    g_autoptr(Options) options = NULL;

    json_ignore(doc, object, "id");
    arch = read_model(doc, object, error);
    if (arch == NULL)
        return NULL;
    if (given != NULL)
        json_ignore(doc, object, "cluster");
    profile = given != NULL ? profile_copy(given) : read_cluster(doc, object, error);
    if (profile == NULL)
        return NULL;
    options = options_read(conditions == NULL ? fewer : tables, doc, object);
    if (!json_doc_finish(doc, error))
        return NULL;
    if (conditions != NULL)
        conditions_read(conditions, options);
    return request_new(g_steal_pointer(&arch), g_steal_pointer(&profile), options, REQUEST_FIXED,
                       error);
}
