#include "cli/request/subject.h"

#include <string.h>

#include "cli/request/command.h"
#include "cli/request/output.h"
#include "models/lora.h"
#include "profiles/change.h"

/* --- the model --- */

ModelArch *
request_load_model(const char *name_or_path, GError **error)
{
    g_autoptr(GPtrArray) warnings = NULL;
    g_autoptr(GPtrArray) clusters = profile_builtin_names();
    ModelArch *arch = model_arch_load(name_or_path, &warnings, error);

    if (arch == NULL &&
        g_ptr_array_find_with_equal_func(clusters, name_or_path, g_str_equal, NULL)) {
        g_clear_error(error);
        g_set_error(error, CMD_ERROR, CMD_ERROR_USAGE,
                    "%s: a cluster where a model is expected: the model comes first", name_or_path);
    } else if (arch == NULL) {
        cmd_blame_name(name_or_path, error);
    }
    for (guint i = 0; warnings != NULL && i < warnings->len; i++)
        output_note("note: %s", (const char *)g_ptr_array_index(warnings, i));
    return arch;
}

/* Gives every kind of layer with experts so many copies; false: there is none. */
static bool
set_redundant(ModelArch *arch, int64_t n_redundant)
{
    bool any = arch->experts.n_experts > 0;

    if (any)
        arch->experts.n_redundant = n_redundant;
    for (int32_t i = 0; i < arch->n_kinds; i++) {
        ModelExperts *experts = &arch->kinds[i].experts;

        if (experts->n_experts == 0)
            continue;
        experts->n_redundant = n_redundant;
        any = true;
    }
    return any;
}

/* Says of what a file of the model would be refused for that options have made it so.  Returns: false. */
static bool
blame_options(GError **error)
{
    g_autoptr(GError) refused = NULL;

    if (error == NULL)
        return false;
    refused = g_steal_pointer(error);
    const char *place = strstr(refused->message, "$");
    const bool of_lora = place != NULL && g_str_has_prefix(place, "$.lora");
    g_set_error(error, CMD_ERROR, CMD_ERROR_USAGE, "%s: %s",
                of_lora ? "--lora-rank, --lora-modules" : "--layers, --mtp, --vocab",
                place == NULL ? refused->message : place);
    return false;
}

/* Reads which adapters the model has. */
static void
read_lora(Options *options, ModelLora *lora)
{
    const char *modules = options_string(options, "lora-modules", NULL);
    g_autofree char *message = NULL;

    lora->rank = options_int64(options, "lora-rank", 0, MODEL_MAX_LORA_RANK, lora->rank);
    if (lora->rank == 0 && modules != NULL)
        options_fail(options, "lora-modules", "expected --lora-rank, too");
    if (lora->rank == 0)
        lora->modules = 0;
    else if (lora->modules == 0)
        lora->modules = MODEL_LORA_USUAL;
    if (modules != NULL)
        lora->modules = model_lora_read_modules(modules, &message);
    if (message != NULL)
        options_fail(options, "lora-modules", "%s", message);
}

bool
request_change_model(Request *request, Options *options, GError **error)
{
    size_t n_bytes;

    if (!options_has(options, "layers") && !options_has(options, "vocab") &&
        !options_has(options, "mtp") && !options_has(options, "redundant-experts") &&
        !options_has(options, "lora-rank") && !options_has(options, "lora-modules"))
        return true;
    request->arch->n_layers =
        options_int64(options, "layers", 1, MODEL_MAX_LAYERS, request->arch->n_layers);
    request->arch->mtp.n = options_int64(options, "mtp", 0, MODEL_MAX_MTP, request->arch->mtp.n);
    read_lora(options, &request->arch->lora);
    const int64_t n_redundant =
        options_int64(options, "redundant-experts", 0, MODEL_MAX_EXPERTS, 0);
    if (options_has(options, "redundant-experts") && !set_redundant(request->arch, n_redundant))
        options_fail(options, "redundant-experts", "model %s has no experts", request->arch->name);
    request->arch->vocab =
        options_int64(options, "vocab", 0, MODEL_MAX_VOCAB, request->arch->vocab);
    if (!options_finish(options, error))
        return false;
    g_autoptr(JsonWriter) writer = json_writer_new();
    model_arch_write(writer, NULL, request->arch);
    g_autofree char *text = json_writer_steal(writer, &n_bytes);
    g_autoptr(JsonDoc) doc = json_doc_parse("the model", text, n_bytes, error);
    if (doc == NULL)
        return blame_options(error);
    g_autoptr(ModelArch) changed = model_arch_read(doc, json_doc_root(doc, "degas-model", 1));
    if (!json_doc_finish(doc, error))
        return blame_options(error);
    model_arch_free(request->arch);
    request->arch = g_steal_pointer(&changed);
    return true;
}

/* --- the cluster --- */

Profile *
request_load_cluster(const char *name_or_path, GError **error)
{
    Profile *profile = profile_load(name_or_path, error);

    if (profile == NULL)
        cmd_blame_name(name_or_path, error);
    return profile;
}

void
request_resize(Request *request, int64_t n_devices)
{
    ModelCluster *resized = model_cluster_resized(request->profile->cluster, n_devices);

    model_cluster_free(request->profile->cluster);
    request->profile->cluster = resized;
}

bool
request_set(Profile *profile, Options *options)
{
    g_auto(GStrv) words = options_words(options, "set");
    bool has_price = false;

    for (size_t i = 0; words != NULL && words[i] != NULL && *words[i] != 0; i++) {
        g_auto(GStrv) pair = g_strsplit(words[i], "=", 2);
        g_autoptr(GError) error = NULL;

        if (pair[1] == NULL)
            options_fail(options, "set", "expected KEY=VALUE, such as network=400Gbps");
        else if (!profile_change(profile, pair[0], pair[1], &error))
            options_fail(options, "set", "%s", error->message);
        has_price |= g_str_equal(pair[0], "price");
    }
    if (words != NULL) {
        g_autofree char *all = g_strjoinv(", ", words);
        char *name = g_strdup_printf("%s with %s", profile->name, all);

        g_free(profile->name);
        profile->name = name;
        g_ptr_array_add(profile->cluster->sources, g_strconcat("--set: ", all, NULL));
    }
    return has_price;
}

/* @has_price  --set gave one. */
static void
change_price(ModelCluster *cluster, Options *options, bool has_price)
{
    const char *currency = options_string(options, "currency", NULL);

    if (has_price && options_has(options, "price"))
        options_fail(options, "price", "--set gives the price, too");

    if (has_price) {
        g_free(cluster->price_source);
        cluster->price_source = g_strdup("--set");
    } else if (options_has(options, "price")) {
        cluster->price_per_device_hour = options_quantity(options, "price", UNITS_KIND_NUMBER, 0);
        if (!(cluster->price_per_device_hour > 0 && cluster->price_per_device_hour <= 1e6))
            options_fail(options, "price", "expected a value above 0 and at most 1e6");
        for (guint i = 0; i < cluster->devices->len; i++)
            g_array_index(cluster->devices, ModelDevice, i).price_per_hour = 0;
        g_free(cluster->price_source);
        cluster->price_source = g_strdup("--price");
    } else if (currency != NULL) {
        options_fail(options, "currency", "needs --price: the cluster's price is not converted");
    }
    if (currency != NULL || (cluster->currency == NULL && cluster->price_per_device_hour > 0)) {
        g_free(cluster->currency);
        cluster->currency = g_strdup(currency == NULL ? "USD" : currency);
    }
}

bool
request_change_cluster(Request *request, Options *options, GError **error)
{
    const int64_t n = options_int64(options, "gpus", 1, MODEL_CLUSTER_MAX_DEVICES, 0);

    change_price(request->profile->cluster, options, request_set(request->profile, options));
    const int64_t of_node = options_int64(options, "node-devices", 1, MODEL_CLUSTER_MAX_DEVICES, 0);
    if (!options_finish(options, error))
        return false;
    if (of_node > 0) {
        ModelCluster *trimmed = model_cluster_trimmed(request->profile->cluster, of_node);

        model_cluster_free(request->profile->cluster);
        request->profile->cluster = trimmed;
    }
    if (n > 0)
        request_resize(request, n);
    return true;
}

bool
request_fit_cluster(Request *request, Options *options, GError **error)
{
    const PlanRequest *plan = &request->plan;
    const int64_t has = model_cluster_n_devices(request->profile->cluster);
    int64_t needs;

    if (options_has(options, "gpus"))
        return true;
    if (__builtin_mul_overflow(plan->dp, plan->tp, &needs) ||
        __builtin_mul_overflow(needs, plan->pp, &needs) ||
        __builtin_mul_overflow(needs, plan->cp, &needs) || needs > MODEL_CLUSTER_MAX_DEVICES)
        return cmd_fail(error, CMD_ERROR_LIMIT, "dp x tp x pp x cp is more than " INT " devices",
                        MODEL_CLUSTER_MAX_DEVICES);
    if (needs > has)
        request_resize(request, needs);
    return true;
}
