#include "models/arch.h"

#include <string.h>

#include "base/units.h"

/* Keys are those of transformers' configuration classes, defaults too where a class has one
 * (configuration_gpt2.py, configuration_llama.py, ... of transformers 4.57). */

/* One import under way. */
typedef struct {
    JsonDoc *doc;
    const JsonValue *config;
    ModelArch *arch;
    GPtrArray *warnings; /* (nullable) */
    const char *type;    /* model_type */
} Import;

static void G_GNUC_PRINTF(2, 3) warn(const Import *import, const char *format, ...)
{
    va_list arguments;

    if (import->warnings == NULL)
        return;
    va_start(arguments, format);
    g_ptr_array_add(import->warnings, g_strdup_vprintf(format, arguments));
    va_end(arguments);
}

/* An integer; absent and null mean @fallback (transformers writes both). */
static int64_t
number_or(const Import *import, const char *key, int64_t min, int64_t max, int64_t fallback)
{
    const JsonValue *value = json_member(import->doc, import->config, key);

    if (value == NULL || json_is_null(value))
        return fallback;
    return json_value_int64(import->doc, value, min, max);
}

static int64_t
number(const Import *import, const char *key, int64_t min, int64_t max)
{
    return json_int64(import->doc, import->config, key, min, max);
}

/* A positive number; absent and null mean @fallback. */
static double
real_or(const Import *import, const JsonValue *object, const char *key, double min, double max,
        double fallback)
{
    const JsonValue *value = json_member(import->doc, object, key);

    return value == NULL || json_is_null(value) ? fallback
                                                : json_double(import->doc, object, key, min, max);
}

static bool
flag_or(const Import *import, const char *key, bool fallback)
{
    const JsonValue *value = json_member(import->doc, import->config, key);

    if (value == NULL || json_is_null(value))
        return fallback;
    return json_bool(import->doc, import->config, key);
}

static void
check_activation(const Import *import, const char *key, const char *const *known)
{
    const JsonValue *value = json_member(import->doc, import->config, key);

    if (value == NULL || json_is_null(value))
        return;
    const char *name = json_value_string(import->doc, value);
    if (!g_strv_contains(known, name))
        warn(import, "%s \"%s\": costed as \"%s\"", key, name, known[0]);
}

/* --- what the families share --- */

/* The base of rotary positions: a key of its own until transformers 4, one of "rope_parameters"
 * since 5. */
static void
read_rope(const Import *import, double usual)
{
    const JsonValue *v5 = json_object_or_null(import->doc, import->config, "rope_parameters"),
                    *v4 = json_object_or_null(import->doc, import->config, "rope_scaling"),
                    *scaling = v5 != NULL ? v5 : v4;
    const char *type = NULL;

    import->arch->rope_base =
        real_or(import, v5 != NULL ? v5 : import->config, "rope_theta", 1, 1e12, usual);
    for (size_t i = 0; scaling != NULL && type == NULL && i < 2; i++) {
        static const char *const keys[] = {"rope_type", "type"};
        if (json_has(import->doc, scaling, keys[i]))
            type = json_string(import->doc, scaling, keys[i]);
    }
    if (type != NULL && strcmp(type, "default") != 0)
        warn(import, "rotary positions of type \"%s\": taken without that scaling", type);
}

/* Whether the shares of the chosen experts are divided by their sum, and the factor on them. */
static void
read_router(const Import *import, ModelRouterScores scores, bool divided, double scale)
{
    ModelExperts *experts = &import->arch->experts;

    divided = flag_or(import, "norm_topk_prob", divided);
    if (scores == MODEL_ROUTER_SOFTMAX && !divided)
        scores = MODEL_ROUTER_SOFTMAX_ALL;
    else if (scores == MODEL_ROUTER_SIGMOID && !divided)
        warn(import, "norm_topk_prob false: sigmoids are taken to be divided by their sum");
    experts->router_scores = scores;
    experts->router_scale =
        real_or(import, import->config, "routed_scaling_factor", 1e-9, 1e9, scale);
}

static void
read_llama_widths(const Import *import, double usual_epsilon, double usual_base)
{
    static const char *const activations[] = {"silu", "swish", NULL};
    ModelArch *arch = import->arch;

    arch->family = MODEL_FAMILY_LLAMA;
    arch->n_layers = number(import, "num_hidden_layers", 1, MODEL_MAX_LAYERS);
    arch->hidden = number(import, "hidden_size", 1, MODEL_MAX_HIDDEN);
    arch->ffn_hidden = number(import, "intermediate_size", 1, MODEL_MAX_FFN_HIDDEN);
    arch->n_heads = number(import, "num_attention_heads", 1, MODEL_MAX_HEADS);
    arch->n_kv_heads = number_or(import, "num_key_value_heads", 1, MODEL_MAX_HEADS, arch->n_heads);
    arch->vocab = number(import, "vocab_size", 1, MODEL_MAX_VOCAB);
    arch->max_seq_len = number(import, "max_position_embeddings", 1, MODEL_MAX_SEQ_LEN);
    arch->tied_embeddings = flag_or(import, "tie_word_embeddings", false);
    arch->norm_epsilon = real_or(import, import->config, "rms_norm_eps", 1e-30, 1, usual_epsilon);
    read_rope(import, usual_base);
    check_activation(import, "hidden_act", activations);
    if (flag_or(import, "mlp_bias", false))
        warn(import, "mlp_bias: biases of the MLP are left out");
}

/* head_dim, or @usual where it is absent; 0: hidden / heads. */
static void
read_head_dim(const Import *import, int64_t usual)
{
    ModelArch *arch = import->arch;
    const JsonValue *value = json_member(import->doc, import->config, "head_dim");
    bool absent = value == NULL || json_is_null(value);

    if (absent && usual == 0 && arch->hidden % arch->n_heads != 0)
        json_fail(import->doc, import->config,
                  "num_attention_heads " INT " does not divide hidden_size " INT
                  ", and there is no head_dim",
                  arch->n_heads, arch->hidden);
    arch->head_dim = number_or(import, "head_dim", 1, MODEL_MAX_HEADS,
                               usual > 0 ? usual : MAX(1, arch->hidden / arch->n_heads));
}

/* attention_bias is of all four projections. */
static void
read_attention_bias(const Import *import)
{
    import->arch->qkv_bias = import->arch->proj_bias = flag_or(import, "attention_bias", false);
}

static void
warn_sliding_window(const Import *import)
{
    int64_t window = number_or(import, "sliding_window", 0, MODEL_MAX_SEQ_LEN, 0);

    if (window > 0 && window < import->arch->max_seq_len)
        warn(import, "sliding_window " INT ": left out; attention is costed over all tokens",
             window);
}

/* --- one reader per model_type --- */

static void
read_gpt2(const Import *import)
{
    static const char *const activations[] = {"gelu_new", "gelu", "gelu_fast", "gelu_pytorch_tanh",
                                              NULL};
    ModelArch *arch = import->arch;

    arch->family = MODEL_FAMILY_GPT;
    arch->n_layers = number(import, "n_layer", 1, MODEL_MAX_LAYERS);
    arch->hidden = number(import, "n_embd", 1, MODEL_MAX_HIDDEN);
    arch->n_heads = number(import, "n_head", 1, MODEL_MAX_HEADS);
    arch->n_kv_heads = arch->n_heads;
    arch->ffn_hidden = number_or(import, "n_inner", 1, MODEL_MAX_FFN_HIDDEN, 4 * arch->hidden);
    arch->vocab = number(import, "vocab_size", 1, MODEL_MAX_VOCAB);
    arch->max_seq_len = number(import, "n_positions", 1, MODEL_MAX_SEQ_LEN);
    arch->tied_embeddings = flag_or(import, "tie_word_embeddings", true);
    arch->qkv_bias = true;
    arch->norm_epsilon =
        real_or(import, import->config, "layer_norm_epsilon", 1e-30, 1, MODEL_USUAL_NORM_EPSILON);
    if (arch->hidden % arch->n_heads != 0)
        json_fail(import->doc, json_member(import->doc, import->config, "n_head"),
                  INT " does not divide n_embd " INT, arch->n_heads, arch->hidden);
    arch->head_dim = MAX(1, arch->hidden / arch->n_heads);
    check_activation(import, "activation_function", activations);
}

static void
read_llama(const Import *import)
{
    read_llama_widths(import, 1e-6, 1e4);
    read_head_dim(import, 0);
    read_attention_bias(import);
}

static void
read_mistral(const Import *import)
{
    read_llama_widths(import, 1e-6, 1e4);
    read_head_dim(import, 0);
    warn_sliding_window(import);
}

/* Biases of q, k, v although no key says so. */
static void
read_qwen2(const Import *import)
{
    read_llama_widths(import, 1e-6, 1e4);
    read_head_dim(import, 0);
    import->arch->qkv_bias = true;
    if (flag_or(import, "use_sliding_window", false))
        warn_sliding_window(import);
}

static void
read_qwen3(const Import *import)
{
    read_llama_widths(import, 1e-6, 1e4);
    read_head_dim(import, 128);
    read_attention_bias(import);
    import->arch->qk_norm = true;
    if (flag_or(import, "use_sliding_window", false))
        warn_sliding_window(import);
}

/* mlp_only_layers must be the first k layers: [0, 1, ... k-1] in any order is what we can express.
 */
static int64_t
read_mlp_only_layers(const Import *import)
{
    const JsonValue *array = json_array_or_null(import->doc, import->config, "mlp_only_layers");
    size_t n = array == NULL ? 0 : json_length(array);
    g_autofree bool *seen = g_new0(bool, n + 1);

    if (n == 0)
        return 0;
    for (const JsonValue *v = json_first(array); v != NULL; v = json_next(v)) {
        int64_t layer = json_value_int64(import->doc, v, 0, MODEL_MAX_LAYERS);

        if (layer >= (int64_t)n || seen[layer]) {
            json_fail(import->doc, v, "expected the first layers only, each once");
            return 0;
        }
        seen[layer] = true;
    }
    return (int64_t)n;
}

static void
read_qwen3_moe(const Import *import)
{
    ModelExperts *experts = &import->arch->experts;
    int64_t step = number_or(import, "decoder_sparse_step", 1, MODEL_MAX_LAYERS, 1);

    read_qwen3(import);
    /* Called so since transformers 5. */
    experts->n_experts =
        number(import,
               json_has(import->doc, import->config, "num_local_experts") ? "num_local_experts"
                                                                          : "num_experts",
               1, MODEL_MAX_EXPERTS);
    experts->top_k = number(import, "num_experts_per_tok", 1, MODEL_MAX_EXPERTS);
    experts->ffn_hidden = number(import, "moe_intermediate_size", 1, MODEL_MAX_FFN_HIDDEN);
    experts->first_dense_layers = read_mlp_only_layers(import);
    read_router(import, MODEL_ROUTER_SOFTMAX, false, 1);
    if (step != 1)
        json_fail(import->doc, json_member(import->doc, import->config, "decoder_sparse_step"),
                  "expected 1: experts in every layer but the first ones");
}

static void
read_mixtral(const Import *import)
{
    ModelExperts *experts = &import->arch->experts;

    read_llama_widths(import, 1e-5, 1e6);
    read_head_dim(import, 0);
    experts->n_experts = number(import, "num_local_experts", 1, MODEL_MAX_EXPERTS);
    experts->top_k = number(import, "num_experts_per_tok", 1, MODEL_MAX_EXPERTS);
    experts->ffn_hidden = import->arch->ffn_hidden;
    read_router(import, MODEL_ROUTER_SOFTMAX, true, 1);
    warn_sliding_window(import);
}

static void
read_deepseek_v3(const Import *import)
{
    ModelArch *arch = import->arch;
    ModelExperts *experts = &arch->experts;
    ModelMla *mla = &arch->mla;
    int64_t step = number_or(import, "moe_layer_freq", 1, MODEL_MAX_LAYERS, 1);
    int64_t n_mtp = number_or(import, "num_nextn_predict_layers", 0, MODEL_MAX_LAYERS, 0);
    static const char *const functions[] = {"softmax", "sigmoid", NULL};
    const bool is_softmax = json_has(import->doc, import->config, "scoring_func") &&
                            json_enum(import->doc, import->config, "scoring_func", functions) == 0;

    read_llama_widths(import, 1e-6, 1e4);
    arch->n_kv_heads = arch->n_heads;
    read_attention_bias(import);
    mla->q_lora_rank = number_or(import, "q_lora_rank", 1, MODEL_MAX_HIDDEN, 0);
    mla->kv_lora_rank = number(import, "kv_lora_rank", 1, MODEL_MAX_HIDDEN);
    mla->qk_nope_head_dim = number(import, "qk_nope_head_dim", 1, MODEL_MAX_HEADS);
    mla->qk_rope_head_dim = number(import, "qk_rope_head_dim", 0, MODEL_MAX_HEADS);
    mla->v_head_dim = number(import, "v_head_dim", 1, MODEL_MAX_HEADS);
    arch->head_dim = mla->qk_nope_head_dim + mla->qk_rope_head_dim;
    experts->n_experts = number(import, "n_routed_experts", 1, MODEL_MAX_EXPERTS);
    experts->top_k = number(import, "num_experts_per_tok", 1, MODEL_MAX_EXPERTS);
    experts->ffn_hidden = number(import, "moe_intermediate_size", 1, MODEL_MAX_FFN_HIDDEN);
    experts->n_shared = number_or(import, "n_shared_experts", 0, MODEL_MAX_EXPERTS, 0);
    experts->first_dense_layers =
        number_or(import, "first_k_dense_replace", 0, MODEL_MAX_LAYERS, 0);
    read_router(import, is_softmax ? MODEL_ROUTER_SOFTMAX : MODEL_ROUTER_SIGMOID, true, 2.5);
    if (step != 1)
        json_fail(import->doc, json_member(import->doc, import->config, "moe_layer_freq"),
                  "expected 1: experts in every layer but the first ones");
    warn(import, "multi-head latent attention: trained decompressed, keys and values of all heads "
                 "kept");
    if (n_mtp > 0)
        warn(import, "num_nextn_predict_layers " INT ": MTP layers are left out", n_mtp);
}

static const struct {
    const char *type;
    void (*read)(const Import *import);
} readers[] = {
    {"gpt2", read_gpt2},       {"llama", read_llama},
    {"mistral", read_mistral}, {"qwen2", read_qwen2},
    {"qwen3", read_qwen3},     {"qwen3_moe", read_qwen3_moe},
    {"mixtral", read_mixtral}, {"deepseek_v3", read_deepseek_v3},
};

/* --- the import --- */

/* The object with the widths: the document's, or "text_config" of a wrapper (a model of several
 * modalities). */
static const JsonValue *
find_config(JsonDoc *doc)
{
    const JsonValue *root = json_doc_root(doc, NULL, 1);

    if (!json_is_object(root)) {
        json_fail(doc, root, "expected an object");
        return root;
    }
    const JsonValue *text = json_object_or_null(doc, root, "text_config");
    return text != NULL ? text : root;
}

/* Something consistent to return when nothing could be read. */
static void
set_placeholder(ModelArch *arch)
{
    arch->family = MODEL_FAMILY_GPT;
    arch->n_layers = arch->hidden = arch->n_heads = arch->n_kv_heads = 1;
    arch->head_dim = arch->ffn_hidden = arch->max_seq_len = 1;
    arch->norm_epsilon = MODEL_USUAL_NORM_EPSILON;
    arch->rope_base = MODEL_USUAL_ROPE_BASE;
}

ModelArch *
model_arch_read_huggingface(JsonDoc *doc, const char *name, GPtrArray *warnings)
{
    const JsonValue *config = find_config(doc);
    ModelArch *arch = g_new0(ModelArch, 1);
    Import import = {.doc = doc, .config = config, .arch = arch, .warnings = warnings};

    arch->name = g_strdup(name);
    set_placeholder(arch);
    if (json_doc_failed(doc))
        return arch;
    import.type = json_string(doc, config, "model_type");
    if (json_doc_failed(doc))
        return arch;
    arch->source = g_strdup_printf("Hugging Face config.json, model_type %s", import.type);
    if (config != json_doc_root(doc, NULL, 1))
        warn(&import, "only text_config is read; parts for other modalities are left out");
    for (size_t i = 0; i < G_N_ELEMENTS(readers); i++) {
        if (strcmp(readers[i].type, import.type) == 0) {
            readers[i].read(&import);
            model_arch_check(doc, config, arch);
            return arch;
        }
    }
    json_fail(doc, json_member(doc, config, "model_type"),
              "expected one of gpt2, llama, mistral, qwen2, qwen3, qwen3_moe, mixtral, "
              "deepseek_v3");
    return arch;
}
