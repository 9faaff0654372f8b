#include "profiles/profile.h"

#include "base/embedded.h"
#include "base/text.h"

#include <string.h>

const char *const profile_op_names[PROFILE_OP_N + 1] = {
    "layer",       "embedding",  "head",           "optimizer",       "p2p",
    "all_reduce",  "overhead",   "layer_gemm",     "layer_attention", "layer_norm",
    "layer_other", "all_gather", "reduce_scatter", "broadcast",       "copy_h2d",
    "copy_d2h",    "copy_d2d",   "launch",         "all_to_all",      NULL,
};

const char *const profile_beside_names[PROFILE_BESIDE_N + 1] = {
    "nothing", "compute", "copy_h2d", "copy_d2d", "all_reduce", NULL,
};

const char *const profile_pass_names[PROFILE_PASS_N + 1] = {
    "forward", "backward", "backward_input", "backward_weight", NULL,
};

static const ProfileParameters defaults = {
#define X(name, value, min, max, fit, spread, what) .name = value,
    PROFILE_PARAMETERS(X)
#undef X
};

/* --- lifecycle --- */

Profile *
profile_new(const char *name, ModelCluster *cluster)
{
    Profile *profile = g_new0(Profile, 1);

    profile->name = g_strdup(name);
    profile->cluster = cluster;
    profile->parameters = defaults;
    profile->measured_dtype = DTYPE_FP32;
    profile->measured_concurrency = 1;
    profile->measurements = g_array_new(FALSE, TRUE, sizeof(ProfileMeasurement));
    profile->interference = g_array_new(FALSE, TRUE, sizeof(ProfileInterference));
    profile->fit_errors = g_array_new(FALSE, TRUE, sizeof(ProfileFitError));
    return profile;
}

void
profile_free(Profile *profile)
{
    if (profile == NULL)
        return;
    g_free(profile->name);
    model_cluster_free(profile->cluster);
    model_arch_free(profile->measured_arch);
    g_free(profile->measured_on);
    g_free(profile->measured_attention);
    g_array_unref(profile->measurements);
    g_array_unref(profile->interference);
    g_array_unref(profile->fit_errors);
    for (int i = 0; i < PROFILE_PARAMETERS_N; i++)
        g_free(profile->parameter_sources[i]);
    g_free(profile);
}

Profile *
profile_copy(const Profile *profile)
{
    Profile *copy;

    g_return_val_if_fail(profile != NULL, NULL);

    copy = g_new(Profile, 1);
    *copy = *profile;
    copy->name = g_strdup(profile->name);
    copy->cluster = model_cluster_copy(profile->cluster);
    copy->measured_arch =
        profile->measured_arch != NULL ? model_arch_copy(profile->measured_arch) : NULL;
    copy->measured_on = g_strdup(profile->measured_on);
    copy->measured_attention = g_strdup(profile->measured_attention);
    copy->measurements = g_array_copy(profile->measurements);
    copy->interference = g_array_copy(profile->interference);
    copy->fit_errors = g_array_copy(profile->fit_errors);
    for (int i = 0; i < PROFILE_PARAMETERS_N; i++)
        copy->parameter_sources[i] = g_strdup(profile->parameter_sources[i]);
    return copy;
}

/* --- measurements --- */

/* The keys of a row, in the order of sorting. */
static int
compare_keys(const ProfileMeasurement *a, const ProfileMeasurement *b)
{
    const int64_t keys[][2] = {
        {a->op, b->op},           {a->pass, b->pass},
        {a->tp, b->tp},           {a->batch, b->batch},
        {a->tokens, b->tokens},   {a->context, b->context},
        {a->n_ranks, b->n_ranks}, {a->n_elements, b->n_elements},
        {a->bytes, b->bytes},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(keys); i++) {
        if (keys[i][0] != keys[i][1])
            return keys[i][0] < keys[i][1] ? -1 : 1;
    }
    return 0;
}

void
profile_add(Profile *profile, const ProfileMeasurement *measurement)
{
    guint low = 0, high;

    g_return_if_fail(profile != NULL && measurement != NULL);

    /* Rows below low sort before @measurement, rows from high on do not. */
    high = profile->measurements->len;
    while (low < high) {
        guint middle = low + (high - low) / 2;
        const ProfileMeasurement *row =
            &g_array_index(profile->measurements, ProfileMeasurement, middle);

        if (compare_keys(row, measurement) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < profile->measurements->len) {
        ProfileMeasurement *row = &g_array_index(profile->measurements, ProfileMeasurement, low);

        if (compare_keys(row, measurement) == 0) {
            *row = *measurement;
            return;
        }
    }
    g_array_insert_val(profile->measurements, low, *measurement);
}

bool
profile_matches(const Profile *profile, const ModelArch *arch)
{
    const ModelArch *measured;

    g_return_val_if_fail(profile != NULL && arch != NULL, false);

    measured = profile->measured_arch;
    return measured != NULL && measured->family == arch->family &&
           measured->hidden == arch->hidden && measured->n_heads == arch->n_heads &&
           measured->n_kv_heads == arch->n_kv_heads && measured->head_dim == arch->head_dim &&
           measured->ffn_hidden == arch->ffn_hidden && measured->vocab == arch->vocab &&
           measured->experts.n_experts == arch->experts.n_experts &&
           measured->experts.top_k == arch->experts.top_k &&
           measured->experts.ffn_hidden == arch->experts.ffn_hidden &&
           measured->mla.kv_lora_rank == arch->mla.kv_lora_rank;
}

/* --- loading --- */

#define LOCAL_CPU "local-cpu"

GPtrArray *
profile_builtin_names(void)
{
    GPtrArray *names = embedded_names("profiles/", ".json");
    guint i = 0;

    while (i < names->len && strcmp(g_ptr_array_index(names, i), LOCAL_CPU) < 0)
        i++;
    g_ptr_array_insert(names, (int)i, g_strdup(LOCAL_CPU));
    return names;
}

/* The whole document as a profile; NULL with its first error. */
static Profile *
read_document(JsonDoc *doc, GError **error)
{
    const JsonValue *root = json_doc_root(doc, "degas-profile", 1);
    g_autoptr(Profile) profile = profile_read(doc, root);

    if (!json_doc_finish(doc, error))
        return NULL;
    return g_steal_pointer(&profile);
}

static Profile *
parse_text(const char *name, const char *text, size_t n_bytes, GError **error)
{
    g_autoptr(JsonDoc) doc = json_doc_parse(name, text, n_bytes, error);

    return doc != NULL ? read_document(doc, error) : NULL;
}

static Profile *
load_file(const char *path, GError **error)
{
    g_autoptr(GError) local = NULL;
    g_autoptr(JsonDoc) doc = json_doc_load(path, &local);

    if (doc != NULL)
        return read_document(doc, error);
    if (g_error_matches(local, G_FILE_ERROR, G_FILE_ERROR_NOENT)) {
        g_autoptr(GPtrArray) names = profile_builtin_names();
        g_autofree char *suggestion = NULL;
        g_autofree char *shown = text_escape(path, 200);

        g_ptr_array_add(names, NULL);
        suggestion = text_suggestion(path, (const char *const *)names->pdata);
        g_set_error(error, G_FILE_ERROR, G_FILE_ERROR_NOENT,
                    "%s: no built-in cluster and no file of this name%s", shown, suggestion);
    } else {
        g_propagate_error(error, g_steal_pointer(&local));
    }
    return NULL;
}

Profile *
profile_load(const char *name_or_path, GError **error)
{
    g_autofree char *path = NULL;
    const EmbeddedFile *file;

    g_return_val_if_fail(name_or_path != NULL, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    if (strcmp(name_or_path, LOCAL_CPU) == 0) {
        g_autofree char *text = profile_describe_local_cpu();

        return parse_text(LOCAL_CPU, text, strlen(text), error);
    }
    path = g_strconcat("profiles/", name_or_path, ".json", NULL);
    file = embedded_find(path);
    if (file != NULL)
        return parse_text(file->path, file->text, (size_t)(file->end - file->text), error);
    return load_file(name_or_path, error);
}
