#include "models/arch.h"

#include "base/embedded.h"
#include "base/json_fields.h"
#include "base/units.h"

#include <math.h>
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
    return copy;
}

/* --- keys --- */

#define ARCH(member) JSON_FIELD_OF(ModelArch, member)
#define EXPERTS(member) JSON_FIELD_OF(ModelExperts, member)
#define MLA(member) JSON_FIELD_OF(ModelMla, member)

static const JsonField experts_fields[] = {
    {"n_experts", EXPERTS(n_experts), 1, MODEL_MAX_EXPERTS},
    {"top_k", EXPERTS(top_k), 1, MODEL_MAX_EXPERTS},
    {"ffn_hidden", EXPERTS(ffn_hidden), 1, MODEL_MAX_FFN_HIDDEN},
    {"n_shared", EXPERTS(n_shared), 0, MODEL_MAX_EXPERTS, JSON_OPTIONAL},
    {"first_dense_layers", EXPERTS(first_dense_layers), 0, MODEL_MAX_LAYERS, JSON_OPTIONAL},
    {"router_scores", EXPERTS(router_scores), .flags = JSON_OPTIONAL | JSON_SPARSE,
     .names = model_router_scores_names},
    {"router_scale", EXPERTS(router_scale), 1e-9, 1e9, JSON_OPTIONAL | JSON_SPARSE, 1},
    {.key = NULL},
};

static const JsonField mla_fields[] = {
    {"q_lora_rank", MLA(q_lora_rank), 0, MODEL_MAX_HIDDEN, JSON_OPTIONAL},
    {"kv_lora_rank", MLA(kv_lora_rank), 1, MODEL_MAX_HIDDEN},
    {"qk_nope_head_dim", MLA(qk_nope_head_dim), 1, MODEL_MAX_HEADS},
    {"qk_rope_head_dim", MLA(qk_rope_head_dim), 0, MODEL_MAX_HEADS},
    {"v_head_dim", MLA(v_head_dim), 1, MODEL_MAX_HEADS},
    {.key = NULL},
};

static const JsonField name_fields[] = {
    {"name", ARCH(name), .flags = JSON_OPTIONAL},
    {"source", ARCH(source), .flags = JSON_OPTIONAL | JSON_SPARSE},
    {"family", ARCH(family), .names = model_family_names},
    {.key = NULL},
};

/* The sizes.  Those that are optional have usual values, which follow from others. */
static const JsonField size_fields[] = {
    {"n_layers", ARCH(n_layers), 1, MODEL_MAX_LAYERS},
    {"hidden", ARCH(hidden), 1, MODEL_MAX_HIDDEN},
    {"n_heads", ARCH(n_heads), 1, MODEL_MAX_HEADS},
    {"n_kv_heads", ARCH(n_kv_heads), 1, MODEL_MAX_HEADS, JSON_OPTIONAL},
    {"head_dim", ARCH(head_dim), 1, MODEL_MAX_HEADS, JSON_OPTIONAL},
    {"ffn_hidden", ARCH(ffn_hidden), 1, MODEL_MAX_FFN_HIDDEN, JSON_OPTIONAL},
    {"vocab", ARCH(vocab), 0, MODEL_MAX_VOCAB},
    {"max_seq_len", ARCH(max_seq_len), 1, MODEL_MAX_SEQ_LEN},
    {"tied_embeddings", ARCH(tied_embeddings), .flags = JSON_OPTIONAL},
    {"qkv_bias", ARCH(qkv_bias), .flags = JSON_OPTIONAL},
    {"proj_bias", ARCH(proj_bias), .flags = JSON_OPTIONAL | JSON_SPARSE},
    {"qk_norm", ARCH(qk_norm), .flags = JSON_OPTIONAL},
    {"norm_epsilon", ARCH(norm_epsilon), 1e-30, 1, JSON_OPTIONAL | JSON_SPARSE,
     MODEL_USUAL_NORM_EPSILON},
    {"rope_base", ARCH(rope_base), 1, 1e12, JSON_OPTIONAL | JSON_SPARSE, MODEL_USUAL_ROPE_BASE},
    {.key = NULL},
};

/* (owned) The value of a member as messages show it. */
static char *
member_text(const JsonField *field, const void *record)
{
    char text[G_ASCII_DTOSTR_BUF_SIZE];

    if (field->type == JSON_DOUBLE)
        return g_strdup(
            g_ascii_formatd(text, sizeof text, "%.15g",
                            *(const double *)(const void *)((const char *)record + field->offset)));
    const int64_t value = json_field_int64(field, record);
    return field->names != NULL ? g_strdup(field->names[value]) : g_strdup_printf(INT, value);
}

char *
model_arch_difference(const ModelArch *arch, const ModelArch *other)
{
    const struct {
        const char *prefix;
        const JsonField *fields;
        const void *a, *b;
    } parts[] = {
        {"", size_fields, arch, other},
        {"experts.", experts_fields, &arch->experts, &other->experts},
        {"mla.", mla_fields, &arch->mla, &other->mla},
    };

    if (arch->family != other->family)
        return g_strdup_printf("family is %s, not %s", model_family_names[arch->family],
                               model_family_names[other->family]);
    for (size_t i = 0; i < G_N_ELEMENTS(parts); i++)
        for (const JsonField *field = parts[i].fields; field->key != NULL; field++) {
            g_autofree char *a = member_text(field, parts[i].a),
                            *b = member_text(field, parts[i].b);

            if (strcmp(a, b) != 0 && strcmp(field->key, "max_seq_len") != 0)
                return g_strdup_printf("%s%s is %s, not %s", parts[i].prefix, field->key, a, b);
        }
    return NULL;
}

bool
model_layer_is_moe(const ModelArch *arch, int64_t layer)
{
    return arch->experts.n_experts > 0 && layer >= arch->experts.first_dense_layers;
}

/* --- parameters --- */

/* LayerNorm has a scale and a shift, RMSNorm a scale. */
static int64_t
norm_parameters(const ModelArch *arch)
{
    return arch->family == MODEL_FAMILY_GPT ? 2 * arch->hidden : arch->hidden;
}

static int64_t
mla_parameters(const ModelArch *arch, int64_t heads)
{
    const ModelMla *mla = &arch->mla;
    int64_t qk_dim = mla->qk_nope_head_dim + mla->qk_rope_head_dim;
    int64_t n = 0;

    if (mla->q_lora_rank > 0) {
        n += arch->hidden * mla->q_lora_rank + mla->q_lora_rank; /* down, norm */
        n += mla->q_lora_rank * heads * qk_dim;
    } else {
        n += arch->hidden * heads * qk_dim;
    }
    n += arch->hidden * (mla->kv_lora_rank + mla->qk_rope_head_dim) + mla->kv_lora_rank;
    n += mla->kv_lora_rank * heads * (mla->qk_nope_head_dim + mla->v_head_dim);
    n += heads * mla->v_head_dim * arch->hidden;
    if (arch->qkv_bias)
        n += mla->q_lora_rank + mla->kv_lora_rank + mla->qk_rope_head_dim;
    return arch->proj_bias ? n + arch->hidden : n;
}

static int64_t
attention_parameters(const ModelArch *arch, int64_t tp)
{
    int64_t heads = model_ceil_div(arch->n_heads, tp);
    int64_t kv_heads = model_ceil_div(arch->n_kv_heads, tp);
    int64_t qkv_columns = (heads + 2 * kv_heads) * arch->head_dim;

    if (arch->mla.kv_lora_rank > 0)
        return mla_parameters(arch, heads);
    int64_t n = arch->hidden * qkv_columns + heads * arch->head_dim * arch->hidden;
    if (arch->qkv_bias)
        n += qkv_columns;
    if (arch->qk_norm)
        n += 2 * arch->head_dim;
    if (arch->family == MODEL_FAMILY_GPT || arch->proj_bias)
        n += arch->hidden;
    return n;
}

/* An MLP of @width columns on this rank: GELU of one product, or SwiGLU of two. */
static int64_t
mlp_parameters(const ModelArch *arch, int64_t width)
{
    if (arch->family == MODEL_FAMILY_GPT)
        return 2 * arch->hidden * width + width + arch->hidden;
    return 3 * arch->hidden * width;
}

int64_t
model_expert_parameters(const ModelArch *arch, int64_t layer, int64_t ep, int64_t etp)
{
    g_return_val_if_fail(arch != NULL && ep >= 1 && etp >= 1, 0);

    if (!model_layer_is_moe(arch, layer))
        return 0;
    return model_ceil_div(arch->experts.n_experts, ep) *
           mlp_parameters(arch, model_ceil_div(arch->experts.ffn_hidden, etp));
}

static int64_t
layer_parameters(const ModelArch *arch, int64_t layer, int64_t tp, int64_t ep, int64_t etp)
{
    const ModelExperts *experts = &arch->experts;
    int64_t n = 2 * norm_parameters(arch) + attention_parameters(arch, tp);

    if (!model_layer_is_moe(arch, layer))
        return n + mlp_parameters(arch, model_ceil_div(arch->ffn_hidden, tp));
    n += arch->hidden * experts->n_experts; /* router */
    if (experts->n_shared > 0)
        n += mlp_parameters(arch, model_ceil_div(experts->n_shared * experts->ffn_hidden, tp));
    return n + model_expert_parameters(arch, layer, ep, etp);
}

ModelArch
model_arch_padded(const ModelArch *arch, int64_t tp, int64_t multiple)
{
    ModelArch padded = *arch;

    g_return_val_if_fail(tp >= 1 && multiple >= 0, padded);
    if (multiple > 0)
        padded.vocab = model_ceil_div(arch->vocab, tp * multiple) * tp * multiple;
    return padded;
}

int64_t
model_part_parameters(const ModelArch *arch, ModelPart part, int64_t layer, int64_t tp, int64_t ep,
                      int64_t etp, bool tied_copy)
{
    g_return_val_if_fail(arch != NULL && tp >= 1 && ep >= 1 && etp >= 1, 0);

    int64_t table = model_ceil_div(arch->vocab, tp) * arch->hidden;
    switch (part) {
    case MODEL_PART_EMBEDDING:
        if (arch->vocab > 0 && arch->family == MODEL_FAMILY_GPT)
            table += arch->max_seq_len * arch->hidden;
        return table;
    case MODEL_PART_LAYER:
        return layer_parameters(arch, layer, tp, ep, etp);
    case MODEL_PART_HEAD:
        if (arch->vocab == 0)
            return 0;
        return norm_parameters(arch) + (!arch->tied_embeddings || tied_copy ? table : 0);
    }
    g_return_val_if_reached(0);
}

int64_t
model_n_moe_layers(const ModelArch *arch)
{
    return arch->experts.n_experts > 0 ? arch->n_layers - arch->experts.first_dense_layers : 0;
}

int64_t
model_parameters(const ModelArch *arch)
{
    g_return_val_if_fail(arch != NULL, 0);

    int64_t n_moe = model_n_moe_layers(arch);
    int64_t n = model_part_parameters(arch, MODEL_PART_EMBEDDING, 0, 1, 1, 1, false) +
                model_part_parameters(arch, MODEL_PART_HEAD, 0, 1, 1, 1, false);
    if (n_moe < arch->n_layers)
        n += (arch->n_layers - n_moe) * layer_parameters(arch, 0, 1, 1, 1);
    if (n_moe > 0)
        n += n_moe * layer_parameters(arch, arch->n_layers - 1, 1, 1, 1);
    return n;
}

int64_t
model_active_parameters(const ModelArch *arch)
{
    g_return_val_if_fail(arch != NULL, 0);

    int64_t idle_experts = arch->experts.n_experts - arch->experts.top_k;
    return model_parameters(arch) -
           model_n_moe_layers(arch) * idle_experts * mlp_parameters(arch, arch->experts.ffn_hidden);
}

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
                  "n_kv_heads " INT " does not divide n_heads " INT, arch->n_kv_heads,
                  arch->n_heads);
    else if (arch->family == MODEL_FAMILY_LLAMA && arch->mla.kv_lora_rank == 0 &&
             arch->head_dim % 2 != 0)
        json_fail(doc, place(doc, value, NULL, "head_dim"),
                  "head_dim " INT ": expected an even number (rotary pairs)", arch->head_dim);
    else if (arch->mla.qk_rope_head_dim % 2 != 0)
        json_fail(doc, place(doc, value, "mla", "qk_rope_head_dim"),
                  "qk_rope_head_dim " INT ": expected an even number (rotary pairs)",
                  arch->mla.qk_rope_head_dim);
    else if (experts->top_k > experts->n_experts)
        json_fail(doc, place(doc, value, "experts", "top_k"),
                  "top_k " INT " is more than the " INT " experts", experts->top_k,
                  experts->n_experts);
    else if (experts->first_dense_layers > arch->n_layers)
        json_fail(doc, place(doc, value, "experts", "first_dense_layers"),
                  "first_dense_layers " INT " is more than the " INT " layers",
                  experts->first_dense_layers, arch->n_layers);
    else if (!(parameters_estimate(arch) < (double)MODEL_MAX_PARAMETERS))
        json_fail(doc, value, "too large: more than 9e15 parameters");
}

/* n_kv_heads and head_dim, which MLA fixes; 0 where the object has none. */
static void
complete_heads(JsonDoc *doc, const JsonValue *object, ModelArch *arch)
{
    const int64_t head_dim = arch->mla.qk_nope_head_dim + arch->mla.qk_rope_head_dim;

    if (arch->n_kv_heads == 0)
        arch->n_kv_heads = arch->n_heads;
    if (arch->mla.kv_lora_rank == 0) {
        if (arch->head_dim == 0 && arch->hidden % arch->n_heads != 0)
            json_fail(doc, object,
                      "n_heads " INT " does not divide hidden " INT ", and there is no head_dim",
                      arch->n_heads, arch->hidden);
        if (arch->head_dim == 0)
            arch->head_dim = MAX(arch->hidden / arch->n_heads, 1);
        return;
    }
    if (arch->n_kv_heads != arch->n_heads)
        json_fail(doc, json_member(doc, object, "n_kv_heads"),
                  "with \"mla\": expected n_heads, " INT, arch->n_heads);
    if (arch->head_dim != 0 && arch->head_dim != head_dim)
        json_fail(doc, json_member(doc, object, "head_dim"),
                  "with \"mla\": expected qk_nope_head_dim + qk_rope_head_dim, " INT, head_dim);
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

    read_format(doc, object);
    arch->name = g_strdup("custom");
    json_fields_read(doc, object, name_fields, arch);
    arch->tied_embeddings = arch->qkv_bias = arch->family == MODEL_FAMILY_GPT;
    arch->norm_epsilon = MODEL_USUAL_NORM_EPSILON;
    arch->rope_base = MODEL_USUAL_ROPE_BASE;
    json_fields_read(doc, object, size_fields, arch);
    const JsonValue *mla = json_object_or_null(doc, object, "mla");
    if (mla != NULL)
        json_fields_read_object(doc, mla, mla_fields, &arch->mla);
    complete_heads(doc, object, arch);
    if (arch->ffn_hidden == 0)
        arch->ffn_hidden = usual_ffn_hidden(arch);
    const JsonValue *experts = json_object_or_null(doc, object, "experts");
    arch->experts.router_scale = experts != NULL ? 1 : 0;
    if (experts != NULL)
        json_fields_read_object(doc, experts, experts_fields, &arch->experts);
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
    json_fields_write(writer, name_fields, arch);
    json_fields_write(writer, size_fields, arch);
    if (arch->experts.n_experts > 0)
        json_fields_write_object(writer, "experts", experts_fields, &arch->experts);
    if (arch->mla.kv_lora_rank > 0)
        json_fields_write_object(writer, "mla", mla_fields, &arch->mla);
    json_write_object_end(writer);
}

/* --- loading --- */

GPtrArray *
model_arch_builtin_names(void)
{
    return embedded_names("models/", ".json");
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
    g_autoptr(JsonDoc) doc =
        json_doc_load_builtin("models", path, "neither a built-in model nor a file", error);
    if (doc == NULL)
        return NULL;
    g_autoptr(ModelArch) arch = read_any(doc, path, lines);
    if (!json_doc_finish(doc, error))
        return NULL;
    if (warnings != NULL)
        *warnings = g_steal_pointer(&lines);
    return g_steal_pointer(&arch);
}
