#include "models/arch.h"

#include "base/embedded.h"
#include "base/text.h"

#include <math.h>
#include <string.h>

/* --- reading --- */

/* 2/3 of 4 hidden, rounded up to a multiple of 256 [Touvron et al.'s code; 2302.13971 section 2.2]
 */
static int64_t
usual_ffn_hidden(const ModelArch *arch)
{
    if (arch->family == MODEL_FAMILY_GPT)
        return 4 * arch->hidden;
    return (8 * arch->hidden / 3 + 255) / 256 * 256;
}

/* As model_parameters(), in double: before anything is known to fit int64_t. */
static double
parameters_estimate(const ModelArch *arch)
{
    double h = (double)arch->hidden, heads = (double)arch->n_heads;
    double ffn = fmax((double)arch->ffn_hidden,
                      ((double)arch->experts.n_experts + (double)arch->experts.n_shared) *
                          (double)arch->experts.ffn_hidden);
    double ranks = (double)arch->mla.q_lora_rank + (double)arch->mla.kv_lora_rank +
                   (double)arch->mla.v_head_dim;
    double attention =
        4.0 * h * heads * (double)arch->head_dim +
        2.0 * ranks * (h + heads * (double)arch->head_dim) +
        2.0 * heads * (double)arch->mla.v_head_dim * (h + (double)arch->mla.kv_lora_rank);

    return (double)arch->n_layers *
               (attention + 4.0 * h * (ffn + (double)arch->experts.n_experts + 4.0)) +
           2.0 * h * ((double)arch->vocab + (double)arch->max_seq_len);
}

/* Where @key of a degas model stands; in foreign files, whose keys differ, the whole object. */
static const JsonValue *
place(JsonDoc *doc, const JsonValue *value, const char *outer, const char *key)
{
    if (!json_has(doc, value, "n_layers"))
        return value;
    if (outer != NULL && json_has(doc, value, outer))
        value = json_member(doc, value, outer);
    return json_has(doc, value, key) ? json_member(doc, value, key) : value;
}

void
model_arch_check(JsonDoc *doc, const JsonValue *value, const ModelArch *arch)
{
    const ModelExperts *experts = &arch->experts;

    if (json_doc_failed(doc))
        return;
    if (arch->n_heads % arch->n_kv_heads != 0)
        json_fail(doc, place(doc, value, NULL, "n_kv_heads"),
                  "n_kv_heads %" G_GINT64_FORMAT " does not divide n_heads %" G_GINT64_FORMAT,
                  arch->n_kv_heads, arch->n_heads);
    else if (arch->family == MODEL_FAMILY_LLAMA && arch->mla.kv_lora_rank == 0 &&
             arch->head_dim % 2 != 0)
        json_fail(doc, place(doc, value, NULL, "head_dim"),
                  "head_dim %" G_GINT64_FORMAT ": expected an even number (rotary pairs)",
                  arch->head_dim);
    else if (arch->mla.qk_rope_head_dim % 2 != 0)
        json_fail(doc, place(doc, value, "mla", "qk_rope_head_dim"),
                  "qk_rope_head_dim %" G_GINT64_FORMAT ": expected an even number (rotary pairs)",
                  arch->mla.qk_rope_head_dim);
    else if (experts->top_k > experts->n_experts)
        json_fail(doc, place(doc, value, "experts", "top_k"),
                  "top_k %" G_GINT64_FORMAT " is more than the %" G_GINT64_FORMAT " experts",
                  experts->top_k, experts->n_experts);
    else if (experts->first_dense_layers > arch->n_layers)
        json_fail(doc, place(doc, value, "experts", "first_dense_layers"),
                  "first_dense_layers %" G_GINT64_FORMAT " is more than the %" G_GINT64_FORMAT
                  " layers",
                  experts->first_dense_layers, arch->n_layers);
    else if (!(parameters_estimate(arch) < (double)MODEL_MAX_PARAMETERS))
        json_fail(doc, value, "too large: more than 9e15 parameters");
}

static void
read_experts(JsonDoc *doc, const JsonValue *object, ModelArch *arch)
{
    ModelExperts *experts = &arch->experts;

    experts->n_experts = json_int64(doc, object, "n_experts", 1, MODEL_MAX_EXPERTS);
    experts->top_k = json_int64(doc, object, "top_k", 1, MODEL_MAX_EXPERTS);
    experts->ffn_hidden = json_int64(doc, object, "ffn_hidden", 1, MODEL_MAX_FFN_HIDDEN);
    experts->n_shared = json_int64_or(doc, object, "n_shared", 0, MODEL_MAX_EXPERTS, 0);
    experts->first_dense_layers =
        json_int64_or(doc, object, "first_dense_layers", 0, MODEL_MAX_LAYERS, 0);
    json_object_end(doc, object);
}

static void
read_mla(JsonDoc *doc, const JsonValue *object, ModelMla *mla)
{
    mla->q_lora_rank = json_int64_or(doc, object, "q_lora_rank", 0, MODEL_MAX_HIDDEN, 0);
    mla->kv_lora_rank = json_int64(doc, object, "kv_lora_rank", 1, MODEL_MAX_HIDDEN);
    mla->qk_nope_head_dim = json_int64(doc, object, "qk_nope_head_dim", 1, MODEL_MAX_HEADS);
    mla->qk_rope_head_dim = json_int64(doc, object, "qk_rope_head_dim", 0, MODEL_MAX_HEADS);
    mla->v_head_dim = json_int64(doc, object, "v_head_dim", 1, MODEL_MAX_HEADS);
    json_object_end(doc, object);
}

/* n_kv_heads and head_dim, which MLA fixes. */
static void
read_heads(JsonDoc *doc, const JsonValue *object, ModelArch *arch)
{
    const JsonValue *mla = json_object_or_null(doc, object, "mla");
    int64_t head_dim = 1;

    arch->n_heads = json_int64(doc, object, "n_heads", 1, MODEL_MAX_HEADS);
    arch->n_kv_heads = json_int64_or(doc, object, "n_kv_heads", 1, MODEL_MAX_HEADS, arch->n_heads);
    if (mla != NULL) {
        read_mla(doc, mla, &arch->mla);
        head_dim = arch->mla.qk_nope_head_dim + arch->mla.qk_rope_head_dim;
        if (arch->n_kv_heads != arch->n_heads)
            json_fail(doc, json_member(doc, object, "n_kv_heads"),
                      "with \"mla\": expected n_heads, %" G_GINT64_FORMAT, arch->n_heads);
        if (json_has(doc, object, "head_dim") &&
            json_int64(doc, object, "head_dim", 1, MODEL_MAX_HEADS) != head_dim)
            json_fail(
                doc, json_member(doc, object, "head_dim"),
                "with \"mla\": expected qk_nope_head_dim + qk_rope_head_dim, %" G_GINT64_FORMAT,
                head_dim);
    } else {
        if (!json_has(doc, object, "head_dim") && arch->hidden % arch->n_heads != 0)
            json_fail(doc, object,
                      "n_heads %" G_GINT64_FORMAT " does not divide hidden %" G_GINT64_FORMAT
                      ", and there is no head_dim",
                      arch->n_heads, arch->hidden);
        head_dim = json_int64_or(doc, object, "head_dim", 1, MODEL_MAX_HEADS,
                                 MAX(arch->hidden / arch->n_heads, 1));
    }
    arch->head_dim = head_dim;
}

static void
read_format(JsonDoc *doc, const JsonValue *object)
{
    if (json_has(doc, object, "format") &&
        strcmp(json_string(doc, object, "format"), "degas-model") != 0)
        json_fail(doc, json_member(doc, object, "format"), "expected \"degas-model\"");
    json_int64_or(doc, object, "version", 1, 1, 1);
}

ModelArch *
model_arch_read(JsonDoc *doc, const JsonValue *object)
{
    ModelArch *arch = g_new0(ModelArch, 1);
    const JsonValue *experts;
    bool is_gpt;

    read_format(doc, object);
    arch->name = g_strdup(json_string_or(doc, object, "name", "custom"));
    arch->source = g_strdup(json_string_or(doc, object, "source", NULL));
    arch->family = (ModelFamily)json_enum(doc, object, "family", model_family_names);
    is_gpt = arch->family == MODEL_FAMILY_GPT;
    arch->n_layers = json_int64(doc, object, "n_layers", 1, MODEL_MAX_LAYERS);
    arch->hidden = json_int64(doc, object, "hidden", 1, MODEL_MAX_HIDDEN);
    read_heads(doc, object, arch);
    arch->ffn_hidden =
        json_int64_or(doc, object, "ffn_hidden", 1, MODEL_MAX_FFN_HIDDEN, usual_ffn_hidden(arch));
    arch->vocab = json_int64(doc, object, "vocab", 0, MODEL_MAX_VOCAB);
    arch->max_seq_len = json_int64(doc, object, "max_seq_len", 1, MODEL_MAX_SEQ_LEN);
    arch->tied_embeddings = json_bool_or(doc, object, "tied_embeddings", is_gpt);
    arch->qkv_bias = json_bool_or(doc, object, "qkv_bias", is_gpt);
    arch->qk_norm = json_bool_or(doc, object, "qk_norm", false);
    experts = json_object_or_null(doc, object, "experts");
    if (experts != NULL)
        read_experts(doc, experts, arch);
    json_object_end(doc, object);
    model_arch_check(doc, object, arch);
    return arch;
}

/* --- writing --- */

void
model_arch_write(JsonWriter *writer, const char *key, const ModelArch *arch)
{
    g_return_if_fail(writer != NULL && arch != NULL);

    json_write_object(writer, key);
    json_write_string(writer, "format", "degas-model");
    json_write_int64(writer, "version", 1);
    json_write_string(writer, "name", arch->name);
    if (arch->source != NULL)
        json_write_string(writer, "source", arch->source);
    json_write_string(writer, "family", model_family_names[arch->family]);
    json_write_int64(writer, "n_layers", arch->n_layers);
    json_write_int64(writer, "hidden", arch->hidden);
    json_write_int64(writer, "n_heads", arch->n_heads);
    json_write_int64(writer, "n_kv_heads", arch->n_kv_heads);
    json_write_int64(writer, "head_dim", arch->head_dim);
    json_write_int64(writer, "ffn_hidden", arch->ffn_hidden);
    json_write_int64(writer, "vocab", arch->vocab);
    json_write_int64(writer, "max_seq_len", arch->max_seq_len);
    json_write_bool(writer, "tied_embeddings", arch->tied_embeddings);
    json_write_bool(writer, "qkv_bias", arch->qkv_bias);
    json_write_bool(writer, "qk_norm", arch->qk_norm);
    if (arch->experts.n_experts > 0) {
        json_write_object_inline(writer, "experts");
        json_write_int64(writer, "n_experts", arch->experts.n_experts);
        json_write_int64(writer, "top_k", arch->experts.top_k);
        json_write_int64(writer, "ffn_hidden", arch->experts.ffn_hidden);
        json_write_int64(writer, "n_shared", arch->experts.n_shared);
        json_write_int64(writer, "first_dense_layers", arch->experts.first_dense_layers);
        json_write_object_end(writer);
    }
    if (arch->mla.kv_lora_rank > 0) {
        json_write_object_inline(writer, "mla");
        json_write_int64(writer, "q_lora_rank", arch->mla.q_lora_rank);
        json_write_int64(writer, "kv_lora_rank", arch->mla.kv_lora_rank);
        json_write_int64(writer, "qk_nope_head_dim", arch->mla.qk_nope_head_dim);
        json_write_int64(writer, "qk_rope_head_dim", arch->mla.qk_rope_head_dim);
        json_write_int64(writer, "v_head_dim", arch->mla.v_head_dim);
        json_write_object_end(writer);
    }
    json_write_object_end(writer);
}

/* --- loading --- */

GPtrArray *
model_arch_builtin_names(void)
{
    return embedded_names("models/", ".json");
}

/* (nullable) */
static const EmbeddedFile *
find_builtin(const char *name)
{
    g_autofree char *path = g_strconcat("models/", name, ".json", NULL);

    return embedded_find(path);
}

/* A name that is neither built in nor a file. */
static void
set_unknown_error(GError **error, const char *name)
{
    g_autoptr(GPtrArray) names = model_arch_builtin_names();
    g_autofree char *shown = text_escape(name, 200);
    g_autofree char *suggestion = NULL;

    g_ptr_array_add(names, NULL);
    suggestion = text_suggestion(name, (const char *const *)names->pdata);
    g_set_error(error, G_FILE_ERROR, G_FILE_ERROR_NOENT,
                "%s: neither a built-in model nor a file%s", shown, suggestion);
}

/* "dir/llama.json" -> "llama", "dir/mistral-7b/config.json" -> "mistral-7b", "-" -> "custom". */
static char *
name_from_path(const char *path)
{
    g_autofree char *base = g_path_get_basename(path);

    if (strcmp(path, "-") == 0)
        return g_strdup("custom");
    if (strcmp(base, "config.json") == 0) {
        g_autofree char *folder = g_path_get_dirname(path);
        g_autofree char *folder_base = g_path_get_basename(folder);

        if (strcmp(folder_base, ".") != 0 && strcmp(folder_base, "/") != 0)
            return g_steal_pointer(&folder_base);
        return g_strdup("custom");
    }
    if (g_str_has_suffix(base, ".json"))
        base[strlen(base) - strlen(".json")] = '\0';
    return g_utf8_make_valid(base, -1);
}

/* Ours says "format"; a foreign file is taken for Hugging Face's if it says what kind of model it
 * is.
 */
static ModelArch *
read_any(JsonDoc *doc, const char *path, GPtrArray *warnings)
{
    const JsonValue *root = json_doc_root(doc, NULL, 1);
    g_autofree char *name = NULL;

    if (json_doc_format(doc) != NULL)
        return model_arch_read(doc, json_doc_root(doc, "degas-model", 1));
    if (!json_has(doc, root, "model_type") && !json_has(doc, root, "text_config"))
        json_fail(doc, root,
                  "neither a degas model (\"format\": \"degas-model\") nor a Hugging Face "
                  "config.json (\"model_type\")");
    name = name_from_path(path);
    return model_arch_read_huggingface(doc, name, warnings);
}

ModelArch *
model_arch_load(const char *name_or_path, GPtrArray **warnings, GError **error)
{
    g_autoptr(JsonDoc) doc = NULL;
    g_autoptr(ModelArch) arch = NULL;
    g_autoptr(GPtrArray) lines = g_ptr_array_new_with_free_func(g_free);
    const EmbeddedFile *builtin;

    g_return_val_if_fail(name_or_path != NULL, NULL);

    builtin = find_builtin(name_or_path);
    if (builtin != NULL) {
        doc = json_doc_parse(builtin->path, builtin->text, (size_t)(builtin->end - builtin->text),
                             error);
    } else if (strcmp(name_or_path, "-") != 0 && !g_file_test(name_or_path, G_FILE_TEST_EXISTS)) {
        set_unknown_error(error, name_or_path);
        return NULL;
    } else {
        doc = json_doc_load(name_or_path, error);
    }
    if (doc == NULL)
        return NULL;
    arch = read_any(doc, name_or_path, lines);
    if (!json_doc_finish(doc, error))
        return NULL;
    if (warnings != NULL)
        *warnings = g_steal_pointer(&lines);
    return g_steal_pointer(&arch);
}
