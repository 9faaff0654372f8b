#include "models/arch.h"

#include "base/embedded.h"
#include <string.h>

G_DEFINE_QUARK(model_arch_error, model_arch_error)

const char *const model_family_names[MODEL_FAMILY_N + 1] = {"gpt", "llama", NULL};

const char *const model_router_scores_names[MODEL_ROUTER_N + 1] = {"softmax", "softmax-all",
                                                                   "sigmoid", NULL};

void
model_arch_free(ModelArch *arch)
{
    if (arch == NULL)
        return;
    for (int32_t i = 0; i < arch->n_kinds; i++)
        g_free(arch->kinds[i].name);
    g_free(arch->kinds);
    g_free(arch->pattern);
    g_free(arch->name);
    g_free(arch->source);
    g_free(arch);
}

ModelArch *
model_arch_copy(const ModelArch *arch)
{
    g_return_val_if_fail(arch != NULL, NULL);

    ModelArch *copy = g_new(ModelArch, 1);
    *copy = *arch;
    copy->name = g_strdup(arch->name);
    copy->source = g_strdup(arch->source);
    copy->kinds = g_memdup2(arch->kinds, (size_t)arch->n_kinds * sizeof *arch->kinds);
    copy->pattern = g_memdup2(arch->pattern, (size_t)arch->n_pattern);
    for (int32_t i = 0; i < arch->n_kinds; i++)
        copy->kinds[i].name = g_strdup(arch->kinds[i].name);
    return copy;
}

/* --- kinds of layers --- */

/* Without that of MTP modules. */
static int32_t
n_layer_kinds(const ModelArch *arch)
{
    if (arch->n_kinds > 0)
        return arch->n_kinds;
    return arch->experts.n_experts > 0 && arch->experts.first_dense_layers > 0 ? 2 : 1;
}

int32_t
model_n_kinds(const ModelArch *arch)
{
    return n_layer_kinds(arch) + (arch->mtp.n > 0);
}

int32_t
model_layer_kind(const ModelArch *arch, int64_t layer)
{
    if (arch->mtp.n > 0 && layer >= arch->n_layers)
        return n_layer_kinds(arch);
    if (arch->n_kinds > 0)
        return arch->pattern[layer % arch->n_pattern];
    return n_layer_kinds(arch) == 2 && layer >= arch->experts.first_dense_layers;
}

void
model_count_kinds(const ModelArch *arch, int64_t n[MODEL_MAX_KINDS])
{
    memset(n, 0, MODEL_MAX_KINDS * sizeof *n);
    for (int64_t layer = 0; layer < model_n_stacked(arch); layer++)
        n[model_layer_kind(arch, layer)]++;
}

int64_t
model_first_of_kind(const ModelArch *arch, int32_t kind)
{
    for (int64_t layer = 0; layer < model_n_stacked(arch); layer++)
        if (model_layer_kind(arch, layer) == kind)
            return layer;
    return -1;
}

ModelArch
model_kind_arch(const ModelArch *arch, int32_t kind)
{
    const bool is_mtp = kind >= n_layer_kinds(arch);

    if (is_mtp)
        kind = arch->mtp.kind > 0 ? arch->mtp.kind - 1 : model_layer_kind(arch, arch->n_layers - 1);
    ModelArch one = *(arch->n_kinds > 0 ? &arch->kinds[kind] : arch);

    if (arch->n_kinds == 0 && kind == 0 && arch->experts.first_dense_layers > 0)
        one.experts = (ModelExperts){0};
    one.experts.first_dense_layers = 0;
    one.n_layers = arch->n_layers;
    one.vocab = arch->vocab;
    one.is_mtp = is_mtp;
    one.mtp = (ModelMtp){0};
    one.lora = arch->lora;
    return one;
}

ModelArch
model_layer_arch(const ModelArch *arch, int64_t layer)
{
    return model_kind_arch(arch, model_layer_kind(arch, layer));
}

const char *
model_kind_name(const ModelArch *arch, int32_t kind)
{
    if (kind >= n_layer_kinds(arch))
        return "mtp";
    if (arch->n_kinds > 0)
        return arch->kinds[kind].name;
    if (arch->experts.n_experts == 0)
        return "layer";
    return kind == n_layer_kinds(arch) - 1 ? "experts" : "dense";
}

bool
model_layer_is_moe(const ModelArch *arch, int64_t layer)
{
    return model_layer_arch(arch, layer).experts.n_experts > 0;
}

int64_t
model_n_moe_layers(const ModelArch *arch)
{
    int64_t n = 0;

    for (int64_t layer = 0; layer < model_n_stacked(arch); layer++)
        n += model_layer_is_moe(arch, layer);
    return n;
}

ModelNorm
model_norm(const ModelArch *arch)
{
    if (arch->norm != MODEL_NORM_USUAL)
        return arch->norm;
    return arch->family == MODEL_FAMILY_GPT ? MODEL_NORM_LAYER : MODEL_NORM_RMS;
}

ModelActivation
model_activation(const ModelArch *arch)
{
    if (arch->activation != MODEL_ACTIVATION_USUAL)
        return arch->activation;
    return arch->family == MODEL_FAMILY_GPT ? MODEL_ACTIVATION_GELU : MODEL_ACTIVATION_SWIGLU;
}

ModelPositions
model_positions(const ModelArch *arch)
{
    if (arch->positions != MODEL_POSITIONS_USUAL)
        return arch->positions;
    return arch->family == MODEL_FAMILY_GPT ? MODEL_POSITIONS_LEARNED : MODEL_POSITIONS_ROTARY;
}

/* --- loading --- */

GPtrArray *
model_arch_builtin_names(void)
{
    return embedded_names("models/", ".json");
}

/* "dir/llama.json" -> "llama", "dir/mistral-7b/config.json" -> "mistral-7b", "config.json" and "-" ->
 * NULL: no name. */
static char *
name_from_path(const char *path)
{
    g_autofree char *base = g_path_get_basename(path);

    if (strcmp(path, "-") == 0)
        return NULL;
    if (strcmp(base, "config.json") == 0) {
        g_autofree char *folder = g_path_get_dirname(path);
        g_autofree char *folder_base = g_path_get_basename(folder);

        if (strcmp(folder_base, ".") != 0 && strcmp(folder_base, "/") != 0)
            return g_steal_pointer(&folder_base);
        return NULL;
    }
    if (g_str_has_suffix(base, ".json"))
        base[strlen(base) - strlen(".json")] = '\0';
    return g_utf8_make_valid(base, -1);
}

/* Ours says "format"; a foreign file is taken for Hugging Face's if it names its model_type. */
static ModelArch *
read_any(JsonDoc *doc, const char *path, GPtrArray *warnings)
{
    const JsonValue *root = json_doc_root(doc, NULL, 1);

    if (json_doc_format(doc) != NULL)
        return model_arch_read(doc, json_doc_root(doc, "degas-model", 1));
    if (!json_has(doc, root, "model_type") && !json_has(doc, root, "text_config"))
        json_fail(doc, root,
                  "neither a degas model (\"format\": \"degas-model\") nor a Hugging Face "
                  "config.json (\"model_type\")");
    g_autofree char *name = name_from_path(path);
    if (name == NULL)
        name = g_strdup(json_has(doc, root, "model_type") ? json_string(doc, root, "model_type")
                                                          : "custom");
    return model_arch_read_huggingface(doc, name, warnings);
}

/* Of a folder (a checkpoint of transformers) its config.json; owned. */
static char *
file_of(const char *name_or_path)
{
    g_autofree char *builtin = g_strconcat("models/", name_or_path, ".json", NULL);

    return embedded_find(builtin) == NULL && g_file_test(name_or_path, G_FILE_TEST_IS_DIR)
               ? g_build_filename(name_or_path, "config.json", NULL)
               : g_strdup(name_or_path);
}

ModelArch *
model_arch_load(const char *name_or_path, GPtrArray **warnings, GError **error)
{
    g_return_val_if_fail(name_or_path != NULL, NULL);

    g_autoptr(GPtrArray) lines = g_ptr_array_new_with_free_func(g_free);
    g_autofree char *path = file_of(name_or_path);
    g_autoptr(JsonDoc) doc = json_doc_load_builtin(
        "models", path, "neither a built-in model (degas list models) nor a file", error);
    if (doc == NULL)
        return NULL;
    g_autoptr(ModelArch) arch = read_any(doc, path, lines);
    if (!json_doc_finish(doc, error))
        return NULL;
    if (warnings != NULL)
        *warnings = g_steal_pointer(&lines);
    return g_steal_pointer(&arch);
}
