#include "models/arch.h"

#include <math.h>
#include <string.h>

#include "base/units.h"

/* Keys are those of transformers' configuration classes, defaults too where a class has one
 * (configuration_gpt2.py, configuration_llama.py, ... of transformers 4.57 and 5.23).  What a
 * model_type has besides its widths is a row of the table at the end. */

/* What a layer does with other tokens, as "layer_types" and its like say. */
typedef enum {
    MIX_FULL,
    MIX_SLIDING,
    MIX_CHUNKED,
    MIX_STATE, /* linear attention, Mamba, a convolution */
    MIX_NONE,
    MIX_N,
} Mix;

static const char *const mix_names[MIX_N] = {"full", "sliding", "chunked", "state", "none"};

typedef enum {
    FFN_DENSE,
    FFN_EXPERTS,
    FFN_NONE,
} Ffn;

typedef struct Type Type;

/* One import under way. */
typedef struct Import Import;
struct Import {
    JsonDoc *doc;
    const JsonValue *config;
    ModelArch
        *arch; /* what all layers have in common; experts are those of layers that have some */
    GPtrArray *warnings; /* (nullable) */
    const Type *type;
    /* By layer. */
    uint8_t *mix, *ffn;
    bool *is_unrotated;
    /* What layers of MIX_STATE have, and what else differs by Mix. */
    ModelMixer state_mixer;
    ModelState state;
    int64_t window, chunk;
    double local_base; /* of rotary positions of sliding layers; 0: that of all */
    void (*vary)(const Import *import, Mix mix, ModelArch *kind);
};

enum {
    TYPE_PLAIN = 1 << 0,         /* the MLP has no gate */
    TYPE_TIED = 1 << 1,          /* embeddings, where no key says so */
    TYPE_QKV_BIAS = 1 << 2,      /* always */
    TYPE_PROJ_BIAS = 1 << 3,     /* always */
    TYPE_MLP_BIAS = 1 << 4,      /* always */
    TYPE_BIAS_KEY = 1 << 5,      /* attention_bias is of q, k, v and the output */
    TYPE_QKV_BIAS_KEY = 1 << 6,  /* attention_bias is of q, k, v */
    TYPE_MLP_BIAS_KEY = 1 << 7,  /* mlp_bias */
    TYPE_USE_BIAS = 1 << 8,      /* use_bias is of attention and MLP */
    TYPE_QK_NORM = 1 << 9,       /* of each head */
    TYPE_QK_ROW_NORM = 1 << 10,  /* of all heads of a token */
    TYPE_EXPERTS = 1 << 11,      /* in all layers that no key takes out */
    TYPE_WINDOWS = 1 << 12,      /* layer_types may have sliding layers */
    TYPE_WINDOW = 1 << 13,       /* sliding_window is of all layers */
    TYPE_MAYBE_WINDOW = 1 << 14, /* ... where use_sliding_window says so */
    TYPE_MLA = 1 << 15,
    TYPE_GPT = 1 << 16,         /* family gpt */
    TYPE_STATES_ONLY = 1 << 17, /* no attention: no heads */
    TYPE_FLOORED = 1 << 18,     /* head_dim may be hidden / heads, rounded down */
    TYPE_HEAD_BIAS = 1 << 19,
    TYPE_EXPERT_FFN = 1 << 20,    /* experts are as wide as intermediate_size says */
    TYPE_SIGMOID = 1 << 21,       /* router */
    TYPE_QK_BIAS_FIRST = 1 << 22, /* biases of q, k, v where qkv_bias does not say otherwise */
    TYPE_MAYBE_EXPERTS = 1 << 23, /* in some models only */
    TYPE_GELU = 1 << 24,          /* is the activation where no key says so */
};

struct Type {
    const char *name;
    unsigned is;
    void (*read)(Import *import); /* (nullable) what else it has */
    ModelNorm norm;
    ModelNormPlace place;
    ModelBlocks blocks;
    /* Defaults of the class, which nested files leave out; 0: none. */
    int64_t vocab, positions, head_dim, heads, kv_heads;
    int64_t every; /* the layer that sees all tokens, of those with windows */
    double epsilon, base, local_base;
};

static void G_GNUC_PRINTF(2, 3) warn(const Import *import, const char *format, ...)
{
    va_list arguments;

    if (import->warnings == NULL)
        return;
    va_start(arguments, format);
    g_ptr_array_add(import->warnings, g_strdup_vprintf(format, arguments));
    va_end(arguments);
}

/* --- values --- */

static bool
has(const Import *import, const char *key)
{
    const JsonValue *value = json_member(import->doc, import->config, key);

    return value != NULL && !json_is_null(value);
}

/* Of @keys (separated by '|') the first that is there, else the first. */
static const char *
pick(const Import *import, const char *keys)
{
    g_auto(GStrv) list = g_strsplit(keys, "|", -1);

    for (int i = 0; list[i] != NULL; i++)
        if (has(import, list[i]))
            return g_intern_string(list[i]);
    return g_intern_string(list[0]);
}

/* An integer; absent and null mean @fallback (transformers writes both). */
static int64_t
number_or(const Import *import, const char *keys, int64_t min, int64_t max, int64_t fallback)
{
    const char *key = pick(import, keys);

    return has(import, key) ? json_int64(import->doc, import->config, key, min, max) : fallback;
}

static int64_t
number(const Import *import, const char *keys, int64_t min, int64_t max)
{
    return json_int64(import->doc, import->config, pick(import, keys), min, max);
}

/* Where @fallback is 0, it must be there. */
static int64_t
number_from(const Import *import, const char *keys, int64_t max, int64_t fallback)
{
    return fallback > 0 ? number_or(import, keys, 1, max, fallback) : number(import, keys, 1, max);
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

/* A factor, 0 where it is 1 or absent. */
static double
factor(const Import *import, const char *key)
{
    const double value = real_or(import, import->config, key, 1e-9, 1e9, 1.0);

    return value == 1.0 ? 0.0 : value;
}

static bool
flag_or(const Import *import, const char *key, bool fallback)
{
    return has(import, key) ? json_bool(import->doc, import->config, key) : fallback;
}

/* The elements of an array that is there; each is handed to the caller's loop. */
static const JsonValue *
array_of(const Import *import, const char *key)
{
    return json_array_or_null(import->doc, import->config, key);
}

/* --- widths --- */

static void
read_activation(const Import *import)
{
    const bool plain = (import->type->is & TYPE_PLAIN) != 0;
    static const struct {
        const char *name;
        ModelActivation gated, plain;
    } known[] = {
        {"silu", MODEL_ACTIVATION_SWIGLU, MODEL_ACTIVATION_SILU},
        {"swish", MODEL_ACTIVATION_SWIGLU, MODEL_ACTIVATION_SILU},
        {"gelu", MODEL_ACTIVATION_GEGLU, MODEL_ACTIVATION_GELU},
        {"gelu_new", MODEL_ACTIVATION_GEGLU, MODEL_ACTIVATION_GELU},
        {"gelu_fast", MODEL_ACTIVATION_GEGLU, MODEL_ACTIVATION_GELU},
        {"gelu_pytorch_tanh", MODEL_ACTIVATION_GEGLU, MODEL_ACTIVATION_GELU},
        {"relu", MODEL_ACTIVATION_RELUGLU, MODEL_ACTIVATION_RELU},
        {"relu2", MODEL_ACTIVATION_RELUGLU, MODEL_ACTIVATION_RELU2},
    };
    const char *key = pick(import, "hidden_activation|hidden_act|mlp_hidden_act|"
                                   "activation_function|activation");
    /* Classes that have no key, or leave it out: what most of them have. */
    const char *name = plain || (import->type->is & TYPE_GELU) != 0 ? "gelu" : "silu";
    ModelActivation activation = MODEL_ACTIVATION_N;

    if (has(import, key))
        name = json_string(import->doc, import->config, key);
    for (size_t i = 0; i < G_N_ELEMENTS(known); i++)
        if (strcmp(known[i].name, name) == 0)
            activation = plain ? known[i].plain : known[i].gated;
    if (activation == MODEL_ACTIVATION_N) {
        warn(import, "%s \"%s\": costed as \"%s\"", key, name, plain ? "gelu" : "silu");
        activation = plain ? MODEL_ACTIVATION_GELU : MODEL_ACTIVATION_SWIGLU;
    }
    import->arch->activation = MODEL_ACTIVATION_USUAL;
    if (model_activation(import->arch) != activation)
        import->arch->activation = activation;
}

/* Of rotary positions: the base, the part of a head, and what else there is.  A key of its own until
 * transformers 4, one of "rope_parameters" since 5, there by the layers' type where these differ. */
static void
read_rope(Import *import)
{
    ModelArch *arch = import->arch;
    const double usual = import->type->base > 0.0 ? import->type->base : 1e4;
    const JsonValue *v5 = json_object_or_null(import->doc, import->config, "rope_parameters"),
                    *v4 = json_object_or_null(import->doc, import->config, "rope_scaling");
    const char *type = NULL;

    if (v5 != NULL && json_has(import->doc, v5, "sliding_attention"))
        import->local_base = real_or(import, json_object(import->doc, v5, "sliding_attention"),
                                     "rope_theta", 1, 1e12, usual);
    else if (has(import, "rope_local_base_freq"))
        import->local_base =
            real_or(import, import->config, "rope_local_base_freq", 1, 1e12, usual);
    if (import->local_base == 0.0)
        import->local_base = import->type->local_base;
    if (v5 != NULL && json_has(import->doc, v5, "full_attention"))
        v5 = json_object(import->doc, v5, "full_attention");
    const JsonValue *scaling = v5 != NULL ? v5 : v4;
    arch->rope_base =
        real_or(import, v5 != NULL ? v5 : import->config,
                v5 == NULL && has(import, "rotary_emb_base") ? "rotary_emb_base" : "rope_theta", 1,
                1e12, usual);
    for (size_t i = 0; scaling != NULL && type == NULL && i < 2; i++) {
        static const char *const keys[] = {"rope_type", "type"};
        if (json_has(import->doc, scaling, keys[i]))
            type = json_string(import->doc, scaling, keys[i]);
    }
    if (type != NULL && strcmp(type, "default") != 0)
        warn(import, "rotary positions of type \"%s\": taken without that scaling", type);
    double part = real_or(import, import->config, "partial_rotary_factor", 0.0, 1.0,
                          real_or(import, import->config, "rotary_pct", 0.0, 1.0, 1.0));
    if (v5 != NULL)
        part = real_or(import, v5, "partial_rotary_factor", 0.0, 1.0, part);
    const int64_t rotary = number_or(import, "rotary_dim", 1, MODEL_MAX_HEADS,
                                     (int64_t)((double)arch->head_dim * part));
    if (!model_has_mla(arch) && rotary / 2 * 2 < arch->head_dim)
        arch->rotary_dim = rotary / 2 * 2;
}

/* head_dim, or hidden / heads. */
static void
read_head_dim(const Import *import, const char *hidden, const char *heads)
{
    ModelArch *arch = import->arch;
    const int64_t usual = import->type->head_dim;
    const bool absent = !has(import, pick(import, "head_dim|kv_channels"));

    if (absent && usual == 0 && (import->type->is & TYPE_MLA) == 0 &&
        arch->hidden % arch->n_heads != 0 && (import->type->is & TYPE_FLOORED) == 0)
        json_fail(import->doc, json_member(import->doc, import->config, heads),
                  "%s " INT " does not divide %s " INT ", and there is no head_dim", heads,
                  arch->n_heads, hidden, arch->hidden);
    arch->head_dim = number_or(import, "head_dim|kv_channels", 1, MODEL_MAX_HEADS,
                               usual > 0 ? usual : MAX(1, arch->hidden / arch->n_heads));
}

static void
read_mla(const Import *import)
{
    ModelArch *arch = import->arch;
    ModelMla *mla = &arch->mla;

    mla->q_lora_rank = number_or(import, "q_lora_rank", 1, MODEL_MAX_HIDDEN, 0);
    mla->kv_lora_rank = number(import, "kv_lora_rank", 1, MODEL_MAX_HIDDEN);
    mla->qk_nope_head_dim = number(import, "qk_nope_head_dim", 1, MODEL_MAX_HEADS);
    mla->qk_rope_head_dim = number(import, "qk_rope_head_dim", 0, MODEL_MAX_HEADS);
    mla->v_head_dim = number(import, "v_head_dim", 1, MODEL_MAX_HEADS);
    arch->n_kv_heads = arch->n_heads;
    arch->head_dim = mla->qk_nope_head_dim + mla->qk_rope_head_dim;
    warn(import, "multi-head latent attention: trained decompressed, keys and values of all heads "
                 "kept");
}

static void
read_biases(const Import *import)
{
    ModelArch *arch = import->arch;
    const unsigned is = import->type->is;
    const bool attention = flag_or(import, "attention_bias", false);
    const bool all = (is & TYPE_USE_BIAS) != 0 && flag_or(import, "use_bias", false);

    arch->qkv_bias = all || (is & TYPE_QKV_BIAS) != 0 ||
                     ((is & (TYPE_BIAS_KEY | TYPE_QKV_BIAS_KEY)) != 0 && attention) ||
                     ((is & TYPE_QK_BIAS_FIRST) != 0 && flag_or(import, "qkv_bias", true));
    arch->proj_bias = all || (is & TYPE_PROJ_BIAS) != 0 || ((is & TYPE_BIAS_KEY) != 0 && attention);
    arch->mlp_bias = all || (is & TYPE_MLP_BIAS) != 0 ||
                     ((is & TYPE_MLP_BIAS_KEY) != 0 && flag_or(import, "mlp_bias", false));
    if ((is & TYPE_GPT) != 0)
        arch->proj_bias = arch->mlp_bias = false; /* which family gpt always has */
    arch->head_bias = (is & TYPE_HEAD_BIAS) != 0;
}

static void
read_widths(Import *import)
{
    const Type *type = import->type;
    ModelArch *arch = import->arch;
    const char *hidden = pick(import, "hidden_size|n_embd|d_model");
    const char *heads =
        pick(import, "num_attention_heads|n_head|num_heads|n_heads|attention_heads");

    arch->family = (type->is & TYPE_GPT) != 0 ? MODEL_FAMILY_GPT : MODEL_FAMILY_LLAMA;
    arch->norm = type->norm;
    arch->norm_place = type->place;
    arch->blocks = type->blocks;
    const JsonValue *list = array_of(import, "layers_block_type");
    arch->n_layers = number_from(
        import,
        (type->is & TYPE_GPT) != 0 ? "n_layer" : "num_hidden_layers|n_layer|num_layers|n_layers",
        MODEL_MAX_LAYERS, list == NULL ? 0 : (int64_t)json_length(list));
    arch->hidden = number(import, hidden, 1, MODEL_MAX_HIDDEN);
    arch->n_heads = (type->is & TYPE_STATES_ONLY) != 0
                        ? 1
                        : number_from(import, heads, MODEL_MAX_HEADS, type->heads);
    arch->n_kv_heads =
        (type->is & TYPE_STATES_ONLY) != 0
            ? 1
            : number_or(import, "num_key_value_heads|num_kv_heads", 1, MODEL_MAX_HEADS,
                        type->kv_heads > 0 ? type->kv_heads : arch->n_heads);
    arch->ffn_hidden =
        number_or(import, "intermediate_size|ffn_hidden_size|n_inner|ffn_dim|moe_intermediate_size",
                  1, MODEL_MAX_FFN_HIDDEN, 4 * arch->hidden);
    arch->vocab = number_from(import, "vocab_size", MODEL_MAX_VOCAB, type->vocab);
    arch->max_seq_len = number_from(import,
                                    "max_position_embeddings|n_positions|max_seq_len|"
                                    "model_max_length",
                                    MODEL_MAX_SEQ_LEN, type->positions);
    arch->tied_embeddings = flag_or(import, "tie_word_embeddings", (type->is & TYPE_TIED) != 0);
    arch->norm_epsilon = type->epsilon > 0.0 ? type->epsilon : 1e-6;
    static const char *const epsilons[] = {"rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps",
                                           "norm_eps", "norm_epsilon"};
    for (size_t i = 0; i < G_N_ELEMENTS(epsilons); i++)
        arch->norm_epsilon =
            real_or(import, import->config, epsilons[i], 1e-30, 1, arch->norm_epsilon);
    read_head_dim(import, hidden, heads);
    if ((type->is & TYPE_MLA) != 0)
        read_mla(import);
    read_rope(import);
    read_activation(import);
    read_biases(import);
    arch->qk_norm = (type->is & (TYPE_QK_NORM | TYPE_QK_ROW_NORM)) != 0;
    if ((type->is & TYPE_QK_ROW_NORM) != 0)
        arch->qk_norm_kind = MODEL_QK_NORM_ROW;
    if (has(import, "num_nextn_predict_layers") &&
        number(import, "num_nextn_predict_layers", 0, MODEL_MAX_LAYERS) > 0)
        warn(import, "num_nextn_predict_layers " INT ": MTP layers are left out",
             number(import, "num_nextn_predict_layers", 0, MODEL_MAX_LAYERS));
}

/* --- experts --- */

/* Whether the shares of the chosen experts are divided by their sum, and the factor on them. */
static void
read_router(const Import *import, ModelRouterScores scores, bool divided)
{
    ModelExperts *experts = &import->arch->experts;

    divided = flag_or(import, "norm_topk_prob", divided);
    if (scores == MODEL_ROUTER_SOFTMAX && !divided)
        scores = MODEL_ROUTER_SOFTMAX_ALL;
    else if (scores == MODEL_ROUTER_SIGMOID && !divided)
        warn(import, "norm_topk_prob false: sigmoids are taken to be divided by their sum");
    experts->router_scores = scores;
    experts->router_scale = real_or(import, import->config, "routed_scaling_factor", 1e-9, 1e9,
                                    strcmp(import->type->name, "deepseek_v3") == 0 ? 2.5 : 1.0);
}

static void
read_experts(Import *import)
{
    static const char *const functions[] = {"softmax", "sigmoid", NULL};
    ModelArch *arch = import->arch;
    ModelExperts *experts = &arch->experts;
    bool is_sigmoid = (import->type->is & TYPE_SIGMOID) != 0;

    if ((import->type->is & TYPE_MAYBE_EXPERTS) != 0 &&
        !has(import, pick(import, "num_local_experts|n_routed_experts")))
        return;
    experts->n_experts =
        number(import, "num_local_experts|num_experts|n_routed_experts|moe_num_experts", 0,
               MODEL_MAX_EXPERTS);
    if (experts->n_experts == 0)
        return;
    static const char top_k[] =
        "num_experts_per_tok|num_experts_per_token|moe_k|moe_topk|moe_top_k";
    if (!has(import, pick(import, top_k)) &&
        json_has(import->doc, import->config, pick(import, top_k))) {
        warn(import, "%s is null: costed as 1", pick(import, top_k));
        experts->top_k = 1;
    } else {
        experts->top_k = number(import, top_k, 1, MODEL_MAX_EXPERTS);
    }
    experts->ffn_hidden = (import->type->is & TYPE_EXPERT_FFN) != 0
                              ? arch->ffn_hidden
                              : number(import, "moe_intermediate_size", 1, MODEL_MAX_FFN_HIDDEN);
    experts->n_shared =
        number_or(import, "n_shared_experts|num_shared_experts|moe_num_shared_experts", 0,
                  MODEL_MAX_EXPERTS, 0);
    experts->shared_hidden = number_or(import,
                                       "shared_expert_intermediate_size|shared_intermediate_size|"
                                       "moe_shared_expert_intermediate_size",
                                       0, MODEL_MAX_FFN_HIDDEN, 0);
    if (experts->shared_hidden > 0 && experts->n_shared == 0)
        experts->n_shared = 1;
    if (experts->shared_hidden == experts->n_shared * experts->ffn_hidden)
        experts->shared_hidden = 0;
    if (has(import, "scoring_func"))
        is_sigmoid = json_enum(import->doc, import->config, "scoring_func", functions) == 1;
    read_router(import, is_sigmoid ? MODEL_ROUTER_SIGMOID : MODEL_ROUTER_SOFTMAX,
                is_sigmoid || (import->type->is & TYPE_EXPERT_FFN) != 0);
}

/* Which layers have experts: by their types, or but for the first ones, and of the others every
 * n-th. */
static void
set_ffns(Import *import)
{
    const int64_t n = import->arch->n_layers;
    const JsonValue *types = array_of(import, "mlp_layer_types");
    const JsonValue *dense = array_of(import, "mlp_only_layers");
    const int64_t step = number_or(import, "decoder_sparse_step", 1, MODEL_MAX_LAYERS, 1);
    const int64_t every = number_or(import, "moe_layer_freq", 1, MODEL_MAX_LAYERS, 1);
    const int64_t first =
        number_or(import, "first_k_dense_replace|num_dense_layers", 0, MODEL_MAX_LAYERS, 0);
    int64_t layer = 0;

    if (first > n)
        json_fail(import->doc, import->config,
                  "first_dense_layers " INT " is more than the " INT " layers", first, n);
    if (import->arch->experts.n_experts == 0)
        return;
    for (; layer < n; layer++)
        import->ffn[layer] = layer < first || (layer + 1) % step != 0 || layer % every != 0
                                 ? FFN_DENSE : FFN_EXPERTS;
    if (dense != NULL)
        JSON_EACH (v, dense, import->doc)
            import->ffn[json_value_int64(import->doc, v, 0, n - 1)] = FFN_DENSE;
    layer = 0;
    if (types != NULL)
        JSON_EACH (v, types, import->doc) {
            const bool is_dense = strcmp(json_value_string(import->doc, v), "dense") == 0;
            if (layer < n)
                import->ffn[layer++] = is_dense ? FFN_DENSE : FFN_EXPERTS;
        }
}

/* --- what layers mix with --- */

static void
set_mix(Import *import, int64_t layer, const JsonValue *value)
{
    static const struct {
        const char *word;
        Mix mix;
    } words[] = {
        {"full_attention", MIX_FULL},
        {"attention", MIX_FULL},
        {"global", MIX_FULL},
        {"indexed_attention", MIX_FULL},
        {"*", MIX_FULL},
        {"sliding_attention", MIX_SLIDING},
        {"local", MIX_SLIDING},
        {"chunked_attention", MIX_CHUNKED},
        {"linear_attention", MIX_STATE},
        {"mamba", MIX_STATE},
        {"conv", MIX_STATE},
        {"recurrent", MIX_STATE},
        {"mlp", MIX_NONE},
        {"moe", MIX_NONE},
    };
    const char *word = json_value_string(import->doc, value);

    if (layer >= import->arch->n_layers)
        return;
    for (size_t i = 0; i < G_N_ELEMENTS(words); i++)
        if (strcmp(words[i].word, word) == 0) {
            import->mix[layer] = words[i].mix;
            return;
        }
    json_fail(import->doc, value, "a type of layers that is not known here");
}

/* Reads @key, one word for each layer.  Returns false where it is not there. */
static bool
read_mixes(Import *import, const char *key)
{
    const JsonValue *types = array_of(import, key);
    int64_t layer = 0;

    if (types == NULL || json_length(types) == 0)
        return false;
    JSON_EACH (v, types, import->doc)
        set_mix(import, layer++, v);
    if (layer < import->arch->n_layers && !json_doc_failed(import->doc))
        json_fail(import->doc, types, "%d types for " INT " layers", (int)layer,
                  import->arch->n_layers);
    return true;
}

/* All but every @n-th layer. */
static void
set_every(Import *import, int64_t n, Mix others)
{
    for (int64_t layer = 0; layer < import->arch->n_layers && n > 1; layer++)
        if ((layer + 1) % n != 0)
            import->mix[layer] = (uint8_t)others;
}

static void
read_windows(Import *import)
{
    const unsigned is = import->type->is;
    const int64_t n = import->arch->n_layers;
    const int64_t window = number_or(import, "sliding_window", 0, MODEL_MAX_SEQ_LEN, 0);
    const bool off = (is & TYPE_MAYBE_WINDOW) != 0 && !flag_or(import, "use_sliding_window", false);

    if ((is & (TYPE_WINDOW | TYPE_WINDOWS | TYPE_MAYBE_WINDOW)) == 0)
        return;
    import->window = window < import->arch->max_seq_len && !off ? window : 0;
    if (read_mixes(import, "layer_types") || import->window == 0)
        return;
    if ((is & TYPE_WINDOWS) != 0)
        set_every(import,
                  number_or(import,
                            "sliding_window_pattern|_sliding_window_pattern|"
                            "global_attn_every_n_layers",
                            1, MODEL_MAX_LAYERS, MAX(2, import->type->every)),
                  MIX_SLIDING);
    /* Qwen 2's later layers alone are sliding. */
    const int64_t first = (is & TYPE_MAYBE_WINDOW) != 0
                              ? number_or(import, "max_window_layers", 0, MODEL_MAX_LAYERS, 0)
                              : 0;
    for (int64_t layer = first; layer < n && (is & TYPE_WINDOWS) == 0; layer++)
        import->mix[layer] = MIX_SLIDING;
}

/* --- kinds --- */

static ModelArch
kind_of(const Import *import, int64_t layer)
{
    const Mix mix = import->mix[layer];
    ModelArch kind = *import->arch;

    kind.name = kind.source = NULL;
    if (import->ffn[layer] != FFN_EXPERTS)
        kind.experts = (ModelExperts){0};
    if (import->ffn[layer] == FFN_NONE)
        kind.ffn = MODEL_FFN_NONE;
    if (import->is_unrotated[layer])
        kind.positions = MODEL_POSITIONS_NONE;
    if (mix == MIX_SLIDING) {
        kind.window = import->window;
        if (import->local_base > 0.0)
            kind.rope_base = import->local_base;
    } else if (mix == MIX_CHUNKED) {
        kind.chunk = import->chunk;
    } else if (mix == MIX_STATE) {
        kind.mixer = import->state_mixer;
        kind.state = import->state;
    } else if (mix == MIX_NONE) {
        kind.mixer = MODEL_MIXER_NONE;
    }
    if (import->vary != NULL)
        import->vary(import, mix, &kind);
    return kind;
}

/* Which values the layers have, as sets of bits: all in one, and by Mix. */
typedef struct {
    unsigned mixes, ffns[MIX_N], rotations[MIX_N];
} Values;

static Values
values_of(const Import *import)
{
    Values values = {0};

    for (int64_t layer = 0; layer < import->arch->n_layers; layer++) {
        const Mix mix = import->mix[layer];
        values.mixes |= 1u << mix;
        values.ffns[mix] |= 1u << import->ffn[layer];
        values.rotations[mix] |= 1u << import->is_unrotated[layer];
    }
    return values;
}

static bool
is_one(unsigned bits)
{
    return (bits & (bits - 1)) == 0;
}

static char *
kind_name(const Import *import, const Values *values, int64_t layer)
{
    static const char *const ffns[] = {"-dense", "-experts", "-alone"};
    const Mix mix = import->mix[layer];
    const bool ffns_differ = !is_one(values->ffns[mix]);
    const bool rotations_differ = !is_one(values->rotations[mix]);

    if (mix == MIX_NONE || (is_one(values->mixes) && ffns_differ && !rotations_differ))
        return g_strdup(ffns[import->ffn[layer]] + 1);
    return g_strconcat(mix == MIX_STATE ? model_mixer_names[import->state_mixer] : mix_names[mix],
                       ffns_differ ? ffns[import->ffn[layer]] : "",
                       rotations_differ && import->is_unrotated[layer] ? "-unrotated" : "", NULL);
}

/* Whether the first layers have no experts, and all layers are alike otherwise. */
static bool
is_dense_first(const Import *import, int64_t *n_dense)
{
    const int64_t n = import->arch->n_layers;

    *n_dense = 0;
    for (int64_t layer = 0; layer < n; layer++) {
        if (import->mix[layer] != import->mix[0] ||
            import->is_unrotated[layer] != import->is_unrotated[0])
            return false;
        if (import->ffn[layer] == FFN_DENSE && layer == *n_dense)
            ++*n_dense;
        else if (import->ffn[layer] != FFN_EXPERTS)
            return false;
    }
    return true;
}

static void
set_kinds(Import *import)
{
    ModelArch *arch = import->arch;
    const int64_t n = arch->n_layers;
    const Values values = values_of(import);
    int64_t n_dense;

    const bool is_uniform = is_one(values.mixes) && is_one(values.ffns[import->mix[0]]) &&
                            is_one(values.rotations[import->mix[0]]);
    if (is_uniform || is_dense_first(import, &n_dense)) {
        const ModelArch kind = kind_of(import, n - 1);
        char *name = arch->name, *source = arch->source;
        *arch = kind;
        arch->name = name;
        arch->source = source;
        if (!is_uniform)
            arch->experts.first_dense_layers = n_dense;
        return;
    }
    arch->kinds = g_new0(ModelArch, MODEL_MAX_KINDS);
    arch->pattern = g_new0(uint8_t, (size_t)n);
    arch->n_pattern = n;
    for (int64_t layer = 0; layer < n; layer++) {
        g_autofree char *name = kind_name(import, &values, layer);
        int32_t i = 0;

        while (i < arch->n_kinds && strcmp(arch->kinds[i].name, name) != 0)
            i++;
        if (i == MODEL_MAX_KINDS) {
            json_fail(import->doc, import->config, "layers of more than %d kinds", MODEL_MAX_KINDS);
            return;
        }
        if (i == arch->n_kinds) {
            ModelArch kind = kind_of(import, layer);
            kind.n_kinds = 0;
            kind.kinds = NULL;
            kind.pattern = NULL;
            kind.name = g_steal_pointer(&name);
            arch->kinds[arch->n_kinds++] = kind;
        }
        arch->pattern[layer] = (uint8_t)i;
    }
    model_arch_settle(arch);
}

/* --- what single types have besides --- */

/* The usual scale of scores is not said. */
static void
set_attention_scale(const Import *import, double scale)
{
    if (fabs(scale * sqrt((double)import->arch->head_dim) - 1.0) > 1e-6)
        import->arch->attention_scale = scale;
}

static void
read_gpt2(Import *import)
{
    import->arch->qkv_bias = true;
}

static void
read_gpt_bigcode(Import *import)
{
    import->arch->qkv_bias = true;
    if (flag_or(import, "multi_query", true))
        import->arch->n_kv_heads = 1;
}

static void
read_gpt_neo(Import *import)
{
    import->arch->positions = MODEL_POSITIONS_LEARNED;
    import->arch->rotary_dim = 0;
    import->arch->attention_scale = 1.0;
    import->window = number_or(import, "window_size", 1, MODEL_MAX_SEQ_LEN, 256);
    if (!read_mixes(import, "attention_layers"))
        for (int64_t layer = 1; layer < import->arch->n_layers; layer += 2)
            import->mix[layer] = MIX_SLIDING;
}

static void
read_gpt_neox(Import *import)
{
    const bool bias = flag_or(import, "attention_bias", true);

    import->arch->qkv_bias = import->arch->proj_bias = bias;
    if (!flag_or(import, "use_parallel_residual", true))
        import->arch->blocks = MODEL_BLOCKS_SERIAL;
}

static void
read_bloom(Import *import)
{
    import->arch->positions = MODEL_POSITIONS_ALIBI;
    import->arch->embedding_norm = true;
}

static void
read_mpt(Import *import)
{
    ModelArch *arch = import->arch;
    const JsonValue *attention = json_object_or_null(import->doc, import->config, "attn_config");
    const bool no_bias = flag_or(import, "no_bias", true);

    arch->ffn_hidden = number_or(import, "expansion_ratio", 1, 64, 4) * arch->hidden;
    arch->positions = attention == NULL || json_bool_or(import->doc, attention, "alibi", true)
                          ? MODEL_POSITIONS_ALIBI
                          : MODEL_POSITIONS_LEARNED;
    if (!no_bias)
        json_fail(import->doc, json_member(import->doc, import->config, "no_bias"),
                  "expected true: only models without biases are read");
}

static void
read_opt(Import *import)
{
    ModelArch *arch = import->arch;

    arch->positions = MODEL_POSITIONS_LEARNED;
    arch->position_rows = arch->max_seq_len + 2;
    if (!flag_or(import, "enable_bias", true))
        arch->qkv_bias = arch->proj_bias = arch->mlp_bias = false;
    if (number_or(import, "word_embed_proj_dim", 1, MODEL_MAX_HIDDEN, arch->hidden) !=
            arch->hidden ||
        !flag_or(import, "do_layer_norm_before", true))
        json_fail(import->doc, import->config,
                  "only models whose embedding is as wide as hidden_size, with norms before "
                  "attention and MLP, are read");
}

static void
read_biogpt(Import *import)
{
    ModelArch *arch = import->arch;

    arch->positions = MODEL_POSITIONS_LEARNED;
    arch->position_rows = arch->max_seq_len + 2;
    if (flag_or(import, "scale_embedding", true))
        arch->embedding_scale = sqrt((double)arch->hidden);
}

/* Sines that are added to the embedding are no parameters. */
static void
read_xglm(Import *import)
{
    import->arch->positions = MODEL_POSITIONS_NONE;
    if (flag_or(import, "scale_embedding", true))
        import->arch->embedding_scale = sqrt((double)import->arch->hidden);
}

static void
read_falcon(Import *import)
{
    ModelArch *arch = import->arch;
    const bool is_new = flag_or(import, "new_decoder_architecture", false);

    arch->qkv_bias = arch->proj_bias = arch->mlp_bias = flag_or(import, "bias", false);
    if (!is_new)
        arch->n_kv_heads = flag_or(import, "multi_query", true) ? 1 : arch->n_heads;
    if (is_new)
        arch->blocks = number_or(import, "num_ln_in_parallel_attn", 1, 2, 2) == 2
                           ? MODEL_BLOCKS_PARALLEL
                           : MODEL_BLOCKS_PARALLEL_ONE_NORM;
    else if (!flag_or(import, "parallel_attn", true))
        arch->blocks = MODEL_BLOCKS_SERIAL;
    if (flag_or(import, "alibi", false))
        arch->positions = MODEL_POSITIONS_ALIBI;
}

static void
read_stablelm(Import *import)
{
    import->arch->qkv_bias = flag_or(import, "use_qkv_bias", false);
    import->arch->qk_norm = flag_or(import, "qk_layernorm", false);
    import->arch->qk_norm_kind = import->arch->qk_norm ? MODEL_QK_NORM_HEADS : MODEL_QK_NORM_HEAD;
    if (flag_or(import, "use_parallel_residual", false))
        import->arch->blocks = MODEL_BLOCKS_PARALLEL_ONE_NORM;
}

static void
read_phi(Import *import)
{
    import->arch->qk_norm = flag_or(import, "qk_layernorm", false);
}

static void
read_phimoe(Import *import)
{
    import->arch->head_bias = flag_or(import, "lm_head_bias", false);
}

static void
read_cohere(Import *import)
{
    ModelArch *arch = import->arch;

    arch->logits_scale = real_or(import, import->config, "logit_scale", 1e-9, 1e9, 0.0625);
    arch->qk_norm = flag_or(import, "use_qk_norm", false);
    arch->qk_norm_kind = arch->qk_norm ? MODEL_QK_NORM_HEADS : MODEL_QK_NORM_HEAD;
}

/* Layers that see all tokens are not rotated. */
static void
unrotate_full(Import *import)
{
    for (int64_t layer = 0; layer < import->arch->n_layers; layer++)
        import->is_unrotated[layer] = import->mix[layer] == MIX_FULL;
}

static void
read_cohere2(Import *import)
{
    read_cohere(import);
    unrotate_full(import);
}

static void
read_gemma(Import *import)
{
    ModelArch *arch = import->arch;

    arch->embedding_scale = sqrt((double)arch->hidden);
    arch->logits_cap = real_or(import, import->config, "final_logit_softcapping", 0.0, 1e9, 0.0);
    arch->attention_cap = real_or(import, import->config, "attn_logit_softcapping", 0.0, 1e9, 0.0);
    if (has(import, "query_pre_attn_scalar"))
        set_attention_scale(import, 1.0 / sqrt(real_or(import, import->config,
                                                       "query_pre_attn_scalar", 1e-9, 1e9, 1.0)));
}

static void
read_granite(Import *import)
{
    ModelArch *arch = import->arch;
    const double scaling = real_or(import, import->config, "logits_scaling", 1e-9, 1e9, 1.0);

    arch->embedding_scale = factor(import, "embedding_multiplier");
    arch->residual_scale = factor(import, "residual_multiplier");
    arch->logits_scale = scaling == 1.0 ? 0.0 : 1.0 / scaling;
    set_attention_scale(import,
                        real_or(import, import->config, "attention_multiplier", 1e-9, 1e9, 1.0));
}

static void
read_granite_swa(Import *import)
{
    read_granite(import);
    import->arch->sinks = true;
}

static void
read_hyperclovax(Import *import)
{
    read_granite(import);
    if (flag_or(import, "use_post_norm", true))
        import->arch->norm_place = MODEL_NORM_PLACE_SANDWICH;
}

static void
read_seed_oss(Import *import)
{
    import->arch->proj_bias = flag_or(import, "attention_out_bias", false);
}

static void
read_glm4_moe(Import *import)
{
    import->arch->qk_norm = flag_or(import, "use_qk_norm", false);
}

static void
read_gpt_oss(Import *import)
{
    ModelArch *arch = import->arch;

    arch->qkv_bias = arch->proj_bias = flag_or(import, "attention_bias", true);
    arch->sinks = true;
    arch->experts.bias = arch->experts.router_bias = true;
}

/* Corrections of the router's scores are counted as parameters, though no gradient makes them. */
static void
count_corrections(Import *import)
{
    import->arch->experts.router_bias = import->arch->experts.n_experts > 0;
}

static void
read_ernie4_5_moe(Import *import)
{
    const int64_t n = import->arch->n_layers;
    const int64_t begin = number_or(import, "moe_layer_start_index", 0, MODEL_MAX_LAYERS, 1);
    const int64_t every = number_or(import, "moe_layer_interval", 1, MODEL_MAX_LAYERS, 1);
    int64_t end = number_or(import, "moe_layer_end_index", -1, MODEL_MAX_LAYERS, -1);

    count_corrections(import);
    if (end < 0)
        end = n - 1;
    for (int64_t layer = 0; layer < n; layer++)
        import->ffn[layer] =
            (layer + 1) % every == 0 && layer >= begin && layer <= end ? FFN_EXPERTS : FFN_DENSE;
}

static void
read_afmoe(Import *import)
{
    count_corrections(import);
    import->arch->experts.router_scale =
        real_or(import, import->config, "route_scale", 1e-9, 1e9, 1.0);
    import->arch->output_gate = MODEL_OUTPUT_GATE_ELEMENT;
    unrotate_full(import);
    if (flag_or(import, "mup_enabled", false))
        import->arch->embedding_scale = sqrt((double)import->arch->hidden);
}

static void
read_laguna(Import *import)
{
    count_corrections(import);
    if (flag_or(import, "gating", true))
        import->arch->output_gate = MODEL_OUTPUT_GATE_HEAD;
    warn(import, "num_attention_heads_per_layer: all layers are taken to have "
                 "num_attention_heads");
}

static void
read_qwen2_moe(Import *import)
{
    import->arch->experts.shared_gate = import->arch->experts.n_experts > 0;
}

static void
read_smollm3(Import *import)
{
    const JsonValue *list = array_of(import, "no_rope_layers");
    const int64_t n = import->arch->n_layers;
    const int64_t every = number_or(import, "no_rope_layer_interval", 1, MODEL_MAX_LAYERS, 4);
    int64_t layer = 0;

    for (; layer < n; layer++)
        import->is_unrotated[layer] = (layer + 1) % every == 0;
    layer = 0;
    if (list != NULL && json_length(list) > 0)
        JSON_EACH (v, list, import->doc) {
            const bool rotated = json_value_int64(import->doc, v, 0, 1) == 1;
            if (layer < n)
                import->is_unrotated[layer++] = !rotated;
        }
}

/* Queries and keys are normed where they are rotated. */
static void
vary_llama4(const Import *import, Mix mix, ModelArch *kind)
{
    kind->qk_norm = kind->qk_norm && kind->positions != MODEL_POSITIONS_NONE;
    if (kind->experts.n_experts == 0)
        kind->ffn_hidden =
            number_or(import, "intermediate_size_mlp", 1, MODEL_MAX_FFN_HIDDEN, kind->ffn_hidden);
}

static void
read_llama4(Import *import)
{
    ModelArch *arch = import->arch;
    const int64_t n = arch->n_layers;
    const JsonValue *list = array_of(import, "moe_layers");
    const int64_t step = number_or(import, "interleave_moe_layer_step", 1, MODEL_MAX_LAYERS, 1);

    read_smollm3(import);
    import->chunk = number_or(import, "attention_chunk_size", 1, MODEL_MAX_SEQ_LEN, 8192);
    if (import->chunk > arch->max_seq_len)
        import->chunk = 0;
    if (!read_mixes(import, "layer_types"))
        for (int64_t layer = 0; layer < n; layer++)
            import->mix[layer] = import->is_unrotated[layer] ? MIX_FULL : MIX_CHUNKED;
    arch->qk_norm = flag_or(import, "use_qk_norm", true);
    arch->qk_norm_kind = MODEL_QK_NORM_PLAIN;
    arch->experts.n_shared = 1;
    for (int64_t layer = 0; layer < n; layer++)
        import->ffn[layer] = (layer + 1) % step == 0 && list == NULL ? FFN_EXPERTS : FFN_DENSE;
    if (list != NULL)
        JSON_EACH (v, list, import->doc)
            import->ffn[json_value_int64(import->doc, v, 0, n - 1)] = FFN_EXPERTS;
    import->vary = vary_llama4;
}

static void
vary_mimo(const Import *import, Mix mix, ModelArch *kind)
{
    if (mix != MIX_SLIDING)
        return;
    kind->n_kv_heads =
        number_or(import, "swa_num_key_value_heads", 1, MODEL_MAX_HEADS, 2 * kind->n_kv_heads);
    kind->sinks = flag_or(import, "add_swa_attention_sink_bias", true);
}

static void
read_mimo(Import *import)
{
    import->arch->v_dim =
        number_or(import, "v_head_dim", 1, MODEL_MAX_HEADS, import->arch->head_dim);
    import->vary = vary_mimo;
}

static void
read_indexer(Import *import)
{
    import->arch->indexer = (ModelIndexer){
        .n_heads = number_or(import, "index_n_heads", 1, MODEL_MAX_HEADS, 64),
        .head_dim = number_or(import, "index_head_dim", 1, MODEL_MAX_HEADS, 128),
        .top_k = number_or(import, "index_topk", 1, MODEL_MAX_SEQ_LEN, 2048),
    };
    read_mixes(import, "layer_types");
}

static void
read_minicpm3(Import *import)
{
    ModelArch *arch = import->arch;
    const double depth = real_or(import, import->config, "scale_depth", 1e-9, 1e9, 1.0);

    arch->embedding_scale = factor(import, "scale_emb");
    arch->residual_scale = depth / sqrt((double)arch->n_layers);
    arch->logits_scale =
        real_or(import, import->config, "dim_model_base", 1e-9, 1e9, (double)arch->hidden) /
        (double)arch->hidden;
}

static void
read_nanochat(Import *import)
{
    import->arch->qk_norm_kind = MODEL_QK_NORM_PLAIN;
    import->arch->logits_cap =
        real_or(import, import->config, "final_logit_softcapping", 0.0, 1e9, 15.0);
}

/* --- types whose layers have a state --- */

/* Gated delta nets of Qwen3-Next and its like. */
static void
set_delta_net(Import *import)
{
    import->state_mixer = MODEL_MIXER_DELTA_NET;
    import->state = (ModelState){
        .n_heads = number(import, "linear_num_value_heads", 1, MODEL_MAX_HIDDEN),
        .n_key_heads = number(import, "linear_num_key_heads", 1, MODEL_MAX_HIDDEN),
        .key_dim = number(import, "linear_key_head_dim", 1, MODEL_MAX_HEADS),
        .value_dim = number(import, "linear_value_head_dim", 1, MODEL_MAX_HEADS),
        .conv = number(import, "linear_conv_kernel_dim", 0, MODEL_MAX_HEADS),
        .chunk = MODEL_STATE_CHUNK,
    };
    if (!read_mixes(import, "layer_types"))
        set_every(import, number_or(import, "full_attention_interval", 1, MODEL_MAX_LAYERS, 4),
                  MIX_STATE);
}

static void
read_qwen3_next(Import *import)
{
    import->arch->output_gate = MODEL_OUTPUT_GATE_ELEMENT;
    import->arch->experts.shared_gate = import->arch->experts.n_experts > 0;
    set_delta_net(import);
}

static void
vary_olmo_hybrid(const Import *import, Mix mix, ModelArch *kind)
{
    if (mix == MIX_FULL)
        kind->norm_place = MODEL_NORM_PLACE_POST;
}

static void
read_olmo_hybrid(Import *import)
{
    set_delta_net(import);
    import->vary = vary_olmo_hybrid;
}

/* In full attention no layer is rotated; KDA needs no positions either. */
static void
read_kimi_linear(Import *import)
{
    const JsonValue *old = json_object_or_null(import->doc, import->config, "linear_attn_config");
    int64_t heads = number_or(import, "linear_num_heads", 1, MODEL_MAX_HIDDEN, 32);
    int64_t size = number_or(import, "linear_head_dim", 1, MODEL_MAX_HEADS, 128);
    int64_t conv = number_or(import, "linear_conv_kernel_dim", 0, MODEL_MAX_HEADS, 4);

    if (old != NULL) {
        heads = json_int64(import->doc, old, "num_heads", 1, MODEL_MAX_HIDDEN);
        size = json_int64(import->doc, old, "head_dim", 1, MODEL_MAX_HEADS);
        conv = json_int64(import->doc, old, "short_conv_kernel_size", 0, MODEL_MAX_HEADS);
        for (const JsonValue *v = json_first(json_array(import->doc, old, "kda_layers"));
             v != NULL && !json_doc_failed(import->doc); v = json_next(v))
            import->mix[json_value_int64(import->doc, v, 1, import->arch->n_layers) - 1] =
                MIX_STATE;
    }
    import->state_mixer = MODEL_MIXER_KDA;
    import->state = (ModelState){.n_heads = heads,
                                 .n_key_heads = heads,
                                 .key_dim = size,
                                 .value_dim = size,
                                 .conv = conv,
                                 .rank = size,
                                 .chunk = MODEL_STATE_CHUNK};
    import->arch->positions = MODEL_POSITIONS_NONE;
    import->arch->experts.router_scores = MODEL_ROUTER_SIGMOID;
    read_mixes(import, "layer_types");
}

static void
read_bailing_hybrid(Import *import)
{
    ModelArch *arch = import->arch;

    import->state_mixer = MODEL_MIXER_KDA;
    import->state = (ModelState){
        .n_heads = arch->n_heads,
        .n_key_heads = arch->n_heads,
        .key_dim = arch->mla.v_head_dim,
        .value_dim = arch->mla.v_head_dim,
        .conv = number_or(import, "short_conv_kernel_size", 0, MODEL_MAX_HEADS, 4),
        .chunk = MODEL_STATE_CHUNK,
    };
    arch->output_gate = MODEL_OUTPUT_GATE_HEAD;
    if (!read_mixes(import, "layer_types"))
        set_every(import, number_or(import, "layer_group_size", 1, MODEL_MAX_LAYERS, 6), MIX_STATE);
}

static void
read_minimax(Import *import)
{
    const ModelArch *arch = import->arch;

    import->state_mixer = MODEL_MIXER_LIGHTNING;
    import->state = (ModelState){
        .n_heads = arch->n_heads,
        .n_key_heads = arch->n_heads,
        .key_dim = arch->head_dim,
        .value_dim = arch->head_dim,
        .chunk = number_or(import, "block_size", 1, MODEL_MAX_SEQ_LEN, 256),
    };
    if (!read_mixes(import, "layer_types"))
        json_fail(import->doc, import->config, "expected layer_types");
}

/* "auto" is what is left of the width. */
static int64_t
state_head_dim(const Import *import)
{
    const char *key = pick(import, "mamba_d_head|mamba_head_dim|head_dim");
    const JsonValue *value = json_member(import->doc, import->config, key);
    const int64_t heads =
        number_or(import, "mamba_n_heads|mamba_num_heads|num_heads", 1, MODEL_MAX_HIDDEN, 1);

    if (value != NULL && json_is_string(value))
        return MAX(1, number_or(import, "mamba_expand|expand", 1, 64, 2) * import->arch->hidden /
                          heads);
    return number(import, key, 1, MODEL_MAX_HEADS);
}

/* Mamba-2, by the keys of Bamba, Falcon-H1 and Granite; of Nemotron-H and Mamba-2 itself. */
static void
set_mamba2(Import *import)
{
    import->state_mixer = MODEL_MIXER_MAMBA2;
    import->state = (ModelState){
        .n_heads = number(import, "mamba_n_heads|mamba_num_heads|num_heads", 1, MODEL_MAX_HIDDEN),
        .n_key_heads = number_or(import, "mamba_n_groups|n_groups", 1, MODEL_MAX_HIDDEN, 1),
        .key_dim = number(import, "mamba_d_state|ssm_state_size|state_size", 1, MODEL_MAX_HEADS),
        .value_dim = state_head_dim(import),
        .conv = number_or(import, "mamba_d_conv|conv_kernel", 0, MODEL_MAX_HEADS, 4),
        .conv_bias = flag_or(import, pick(import, "mamba_conv_bias|use_conv_bias"), true),
        .bias = flag_or(import, pick(import, "mamba_proj_bias|use_bias"), false),
        .chunk = number_or(import, "mamba_chunk_size|chunk_size", 1, MODEL_MAX_SEQ_LEN, 256),
    };
}

/* The first version of Mamba. */
static void
set_mamba(Import *import)
{
    const int64_t expand = number_or(import, "mamba_expand|expand", 1, 64, 2);
    const int64_t width = (import->type->is & TYPE_STATES_ONLY) != 0
                              ? number_or(import, "intermediate_size", 1, MODEL_MAX_HIDDEN,
                                          expand * import->arch->hidden)
                              : expand * import->arch->hidden;

    import->state_mixer = MODEL_MIXER_MAMBA;
    import->state = (ModelState){
        .n_heads = MIN(width, MODEL_MAX_HIDDEN),
        .n_key_heads = 1,
        .key_dim = number_or(import, "mamba_d_state|state_size", 1, MODEL_MAX_HEADS, 16),
        .value_dim = 1,
        .conv = number_or(import, "mamba_d_conv|conv_kernel", 0, MODEL_MAX_HEADS, 4),
        .conv_bias = flag_or(import, pick(import, "mamba_conv_bias|use_conv_bias"), true),
        .bias = flag_or(import, pick(import, "mamba_proj_bias|use_bias"), false),
        .rank = number_or(import, "mamba_dt_rank|time_step_rank", 1, MODEL_MAX_HIDDEN,
                          model_ceil_div(import->arch->hidden, 16)),
        .chunk = MODEL_STATE_CHUNK,
        .no_norm = true,
    };
}

/* Every layer is a mixer and nothing else. */
static void
set_mixers_only(Import *import)
{
    memset(import->mix, MIX_STATE, (size_t)import->arch->n_layers);
    memset(import->ffn, FFN_NONE, (size_t)import->arch->n_layers);
    import->arch->rotary_dim = 0;
}

static void
read_mamba(Import *import)
{
    set_mamba(import);
    set_mixers_only(import);
}

static void
read_mamba2(Import *import)
{
    set_mamba2(import);
    set_mixers_only(import);
}

static void
read_bamba(Import *import)
{
    const JsonValue *list = array_of(import, "attn_layer_indices");

    set_mamba2(import);
    if (read_mixes(import, "layer_types"))
        return;
    memset(import->mix, MIX_STATE, (size_t)import->arch->n_layers);
    if (list != NULL)
        JSON_EACH (v, list, import->doc)
            import->mix[json_value_int64(import->doc, v, 0, import->arch->n_layers - 1)] = MIX_FULL;
}

static void
vary_falcon_h1(const Import *import, Mix mix, ModelArch *kind)
{
    kind->mixer = MODEL_MIXER_ATTENTION_MAMBA2;
    kind->state = import->state;
}

static void
read_falcon_h1(Import *import)
{
    set_mamba2(import);
    import->state.no_norm = !flag_or(import, "mamba_rms_norm", false);
    import->arch->embedding_scale = factor(import, "embedding_multiplier");
    import->arch->logits_scale = factor(import, "lm_head_multiplier");
    import->vary = vary_falcon_h1;
}

static void
read_granitemoehybrid(Import *import)
{
    ModelArch *arch = import->arch;

    read_granite(import);
    set_mamba2(import);
    if (!read_mixes(import, "layer_types") && !read_mixes(import, "layers_block_type"))
        memset(import->mix, MIX_STATE, (size_t)arch->n_layers);
    /* Without experts the shared one is all there is. */
    if (arch->experts.n_experts == 0)
        arch->ffn_hidden = number(import, "shared_intermediate_size", 1, MODEL_MAX_FFN_HIDDEN);
    if (has(import, "position_embedding_type") &&
        strcmp(json_string(import->doc, import->config, "position_embedding_type"), "nope") == 0)
        arch->positions = MODEL_POSITIONS_NONE;
}

static void
read_jamba(Import *import)
{
    const int64_t n = import->arch->n_layers;
    const int64_t every = number_or(import, "attn_layer_period", 1, MODEL_MAX_LAYERS, 8);
    const int64_t at = number_or(import, "attn_layer_offset", 0, MODEL_MAX_LAYERS, 4);
    const int64_t experts_every = number_or(import, "expert_layer_period", 1, MODEL_MAX_LAYERS, 2);
    const int64_t experts_at = number_or(import, "expert_layer_offset", 0, MODEL_MAX_LAYERS, 1);

    set_mamba(import);
    import->state.inner_norms = true;
    import->arch->positions = MODEL_POSITIONS_NONE;
    for (int64_t layer = 0; layer < n; layer++) {
        import->mix[layer] = layer % every == at ? MIX_FULL : MIX_STATE;
        import->ffn[layer] = layer % experts_every == experts_at ? FFN_EXPERTS : FFN_DENSE;
    }
}

/* One half of a layer each: "M", "*", "-" and "E" of hybrid_override_pattern until transformers 4. */
static void
read_nemotron_h(Import *import)
{
    ModelArch *arch = import->arch;
    const int64_t n = arch->n_layers;
    const JsonValue *types = array_of(import, "layers_block_type");
    int64_t layer = 0;

    set_mamba2(import);
    arch->positions = MODEL_POSITIONS_NONE;
    arch->rotary_dim = 0;
    if (types != NULL) {
        read_mixes(import, "layers_block_type");
        JSON_EACH (v, types, import->doc) {
            const char *word = json_value_string(import->doc, v);
            if (layer < n)
                import->ffn[layer++] = strcmp(word, "moe") == 0   ? FFN_EXPERTS
                                       : strcmp(word, "mlp") == 0 ? FFN_DENSE
                                                                  : FFN_NONE;
        }
        return;
    }
    const char *pattern = json_string(import->doc, import->config, "hybrid_override_pattern");
    if ((int64_t)strlen(pattern) != n || strspn(pattern, "M*-E") != strlen(pattern)) {
        json_fail(import->doc, json_member(import->doc, import->config, "hybrid_override_pattern"),
                  "expected one of M, *, - and E for each of " INT " layers", n);
        return;
    }
    for (; layer < n; layer++) {
        const char c = pattern[layer];
        import->mix[layer] = c == 'M' ? MIX_STATE : c == '*' ? MIX_FULL : MIX_NONE;
        import->ffn[layer] = c == 'E' ? FFN_EXPERTS : c == '-' ? FFN_DENSE : FFN_NONE;
    }
}

/* Short convolutions; the MLP's width is adjusted as the reference does. */
static void
read_lfm2(Import *import)
{
    ModelArch *arch = import->arch;
    const JsonValue *full = array_of(import, "full_attn_idxs");
    const bool bias = flag_or(import, "conv_bias", false);

    if (flag_or(import, "block_auto_adjust_ff_dim", strcmp(import->type->name, "lfm2") == 0)) {
        const int64_t multiple = number_or(import, "block_multiple_of", 1, MODEL_MAX_HIDDEN, 256);
        const double width =
            real_or(import, import->config, "block_ffn_dim_multiplier", 1e-3, 1e3, 1.0) *
            floor(2.0 * (double)arch->ffn_hidden / 3.0);
        arch->ffn_hidden =
            CLAMP(model_ceil_div((int64_t)width, multiple) * multiple, 1, MODEL_MAX_FFN_HIDDEN);
    }
    import->state_mixer = MODEL_MIXER_CONV;
    import->state = (ModelState){.n_heads = arch->hidden,
                                 .n_key_heads = 1,
                                 .key_dim = 1,
                                 .value_dim = 1,
                                 .conv = number_or(import, "conv_L_cache", 0, MODEL_MAX_HEADS, 3),
                                 .conv_bias = bias,
                                 .bias = bias,
                                 .chunk = MODEL_STATE_CHUNK,
                                 .no_norm = true};
    if (read_mixes(import, "layer_types"))
        return;
    memset(import->mix, MIX_STATE, (size_t)arch->n_layers);
    if (full != NULL)
        JSON_EACH (v, full, import->doc)
            import->mix[json_value_int64(import->doc, v, 0, arch->n_layers - 1)] = MIX_FULL;
}

static void
read_lfm3(Import *import)
{
    read_lfm2(import);
    if (flag_or(import, "use_sandwich_norm", true))
        import->arch->norm_place = MODEL_NORM_PLACE_SANDWICH;
    if (flag_or(import, "use_attention_gate", true))
        import->arch->output_gate = MODEL_OUTPUT_GATE_HEAD;
}

/* --- the types --- */

#define PLAIN TYPE_PLAIN
#define TIED TYPE_TIED
#define ALL_BIASES (TYPE_QKV_BIAS | TYPE_PROJ_BIAS | TYPE_MLP_BIAS)
#define BIAS_KEYS (TYPE_BIAS_KEY | TYPE_MLP_BIAS_KEY)
#define EXPERTS TYPE_EXPERTS
#define WIDE_EXPERTS (TYPE_EXPERTS | TYPE_EXPERT_FFN)
#define LAYER MODEL_NORM_LAYER
#define SCALE MODEL_NORM_LAYER_SCALE
#define PRE MODEL_NORM_PLACE_PRE
#define POST MODEL_NORM_PLACE_POST
#define SANDWICH MODEL_NORM_PLACE_SANDWICH
#define PARALLEL MODEL_BLOCKS_PARALLEL
#define ONE_NORM MODEL_BLOCKS_PARALLEL_ONE_NORM

static const Type types[] = {
    {"gpt2", TYPE_GPT | PLAIN | TIED, read_gpt2, .epsilon = 1e-5},
    {"llama", BIAS_KEYS},
    {"mistral", TYPE_WINDOW},
    {"qwen2", TYPE_QKV_BIAS | TYPE_MAYBE_WINDOW},
    {"qwen3", TYPE_QK_NORM | TYPE_BIAS_KEY | TYPE_MAYBE_WINDOW, .head_dim = 128},
    {"qwen3_moe", TYPE_QK_NORM | TYPE_BIAS_KEY | TYPE_MAYBE_WINDOW | EXPERTS},
    {"mixtral", WIDE_EXPERTS | TYPE_WINDOW, .epsilon = 1e-5, .base = 1e6},
    {"deepseek_v3", TYPE_MLA | TYPE_BIAS_KEY | EXPERTS | TYPE_SIGMOID},
    {"afmoe", TYPE_QK_NORM | EXPERTS | TYPE_SIGMOID | TYPE_WINDOWS, read_afmoe, 0, SANDWICH,
     .every = 4},
    {"arcee", PLAIN | BIAS_KEYS},
    {"bailing_hybrid", TYPE_MLA | EXPERTS | TYPE_SIGMOID, read_bailing_hybrid},
    {"bamba", BIAS_KEYS, read_bamba},
    {"biogpt", PLAIN | TIED | ALL_BIASES, read_biogpt, LAYER},
    {"bloom", PLAIN | TIED | ALL_BIASES, read_bloom, LAYER, .positions = 2048},
    {"codegen", PLAIN | TYPE_MLP_BIAS | TYPE_HEAD_BIAS, NULL, LAYER, PRE, ONE_NORM},
    {"cohere", TIED | TYPE_BIAS_KEY, read_cohere, SCALE, PRE, ONE_NORM},
    {"cohere2", TIED | TYPE_BIAS_KEY | TYPE_WINDOWS, read_cohere2, SCALE, PRE, ONE_NORM,
     .every = 4},
    {"cohere2_moe", TIED | TYPE_BIAS_KEY | TYPE_WINDOWS | WIDE_EXPERTS, read_cohere2, SCALE, PRE,
     ONE_NORM, .every = 4},
    {"cwm", TYPE_WINDOWS},
    {"deepseek_v2", TYPE_MLA | TYPE_BIAS_KEY | EXPERTS},
    {"deepseek_v32", TYPE_MLA | TYPE_BIAS_KEY | EXPERTS | TYPE_SIGMOID, read_indexer},
    {"dots1", TYPE_QK_NORM | TYPE_BIAS_KEY | EXPERTS | TYPE_SIGMOID | TYPE_WINDOWS},
    {"ernie4_5", TIED | TYPE_USE_BIAS, .head_dim = 128},
    {"ernie4_5_moe", TIED | TYPE_USE_BIAS | EXPERTS, read_ernie4_5_moe},
    {"exaone4", TYPE_QK_NORM | TYPE_WINDOWS, NULL, 0, POST, .every = 4},
    {"exaone_moe", TYPE_QK_NORM | TYPE_WINDOWS | EXPERTS | TYPE_SIGMOID, .every = 4},
    {"falcon", PLAIN | TIED, read_falcon, LAYER, PRE, ONE_NORM, .positions = 2048},
    {"falcon_h1", BIAS_KEYS, read_falcon_h1},
    {"falcon_mamba", TYPE_STATES_ONLY | TIED, read_mamba, .positions = 1 << 20},
    {"flex_olmo", TYPE_QK_ROW_NORM | TYPE_BIAS_KEY | WIDE_EXPERTS, NULL, 0, POST},
    {"gemma", TIED | TYPE_BIAS_KEY | TYPE_GELU, read_gemma, .vocab = 256000, .head_dim = 256},
    {"gemma2", TIED | TYPE_BIAS_KEY | TYPE_GELU | TYPE_WINDOWS, read_gemma, 0, SANDWICH,
     .vocab = 256000, .positions = 8192, .head_dim = 256, .every = 2},
    {"gemma3_text", TIED | TYPE_BIAS_KEY | TYPE_GELU | TYPE_WINDOWS | TYPE_QK_NORM, read_gemma, 0,
     SANDWICH, .vocab = 262208, .positions = 131072, .head_dim = 256, .heads = 8, .kv_heads = 4,
     .every = 6, .base = 1e6, .local_base = 1e4},
    {"glm", TYPE_QKV_BIAS_KEY, .head_dim = 128},
    {"glm4", TYPE_QKV_BIAS_KEY, NULL, 0, SANDWICH, .head_dim = 128},
    {"glm4_moe", TYPE_QKV_BIAS_KEY | EXPERTS | TYPE_SIGMOID | TYPE_FLOORED, read_glm4_moe},
    {"glm4_moe_lite", TYPE_MLA | TYPE_BIAS_KEY | EXPERTS | TYPE_SIGMOID},
    {"glm_moe_dsa", TYPE_MLA | TYPE_BIAS_KEY | EXPERTS | TYPE_SIGMOID, read_indexer},
    {"gpt_bigcode", TYPE_GPT | PLAIN | TIED, read_gpt_bigcode, .epsilon = 1e-5},
    {"gpt_neo", PLAIN | TIED | TYPE_PROJ_BIAS | TYPE_MLP_BIAS, read_gpt_neo, LAYER},
    {"gpt_neox", PLAIN | TYPE_MLP_BIAS, read_gpt_neox, LAYER, PRE, PARALLEL},
    {"gpt_oss", WIDE_EXPERTS | TYPE_WINDOWS, read_gpt_oss, .head_dim = 64, .every = 2},
    {"gptj", PLAIN | TYPE_MLP_BIAS | TYPE_HEAD_BIAS, NULL, LAYER, PRE, ONE_NORM},
    {"granite", BIAS_KEYS, read_granite},
    {"granite_swa", BIAS_KEYS | TYPE_WINDOWS, read_granite_swa},
    {"granitemoe", TYPE_BIAS_KEY | WIDE_EXPERTS, read_granite},
    {"granitemoe_swa", TYPE_BIAS_KEY | WIDE_EXPERTS | TYPE_WINDOWS, read_granite_swa},
    {"granitemoehybrid", TYPE_BIAS_KEY | WIDE_EXPERTS, read_granitemoehybrid},
    {"granitemoeshared", TYPE_BIAS_KEY | WIDE_EXPERTS, read_granite},
    {"helium", TYPE_QKV_BIAS_KEY | TYPE_MLP_BIAS_KEY, .head_dim = 128},
    {"hunyuan_v1_dense", TYPE_QK_NORM | TYPE_BIAS_KEY},
    {"hy_v3", TYPE_QK_NORM | BIAS_KEYS | EXPERTS | TYPE_SIGMOID},
    {"hyperclovax", BIAS_KEYS, read_hyperclovax},
    {"internlm3", BIAS_KEYS},
    {"iquestcoder", BIAS_KEYS},
    {"jais2", PLAIN | BIAS_KEYS, NULL, LAYER},
    {"jamba", WIDE_EXPERTS, read_jamba},
    {"kimi_k2", TYPE_MLA | TYPE_BIAS_KEY | EXPERTS | TYPE_SIGMOID},
    {"kimi_linear", TYPE_MLA | EXPERTS | TYPE_SIGMOID, read_kimi_linear},
    {"laguna", TYPE_QK_NORM | TYPE_BIAS_KEY | EXPERTS | TYPE_WINDOWS, read_laguna},
    {"lfm2", TIED | TYPE_QK_NORM, read_lfm2},
    {"lfm2_moe", TIED | TYPE_QK_NORM | EXPERTS | TYPE_SIGMOID, read_lfm2},
    {"lfm3", TIED | TYPE_QK_NORM | TYPE_BIAS_KEY | TYPE_WINDOWS, read_lfm3},
    {"llama4_text", TYPE_BIAS_KEY | WIDE_EXPERTS | TYPE_SIGMOID, read_llama4, .vocab = 202048,
     .positions = 131072, .head_dim = 128},
    {"mamba", TYPE_STATES_ONLY | TIED, read_mamba, .positions = 1 << 20},
    {"mamba2", TYPE_STATES_ONLY, read_mamba2, .positions = 1 << 20},
    {"mellum", TYPE_QK_NORM | TYPE_BIAS_KEY | EXPERTS | TYPE_WINDOWS},
    {"mimo_v2_flash", TYPE_BIAS_KEY | EXPERTS | TYPE_SIGMOID | TYPE_WINDOWS, read_mimo},
    {"minicpm3", TYPE_MLA | TIED | BIAS_KEYS, read_minicpm3},
    {"minimax", WIDE_EXPERTS, read_minimax},
    {"minimax_m2", TYPE_QK_ROW_NORM | WIDE_EXPERTS | TYPE_SIGMOID},
    {"ministral", TYPE_WINDOWS},
    {"ministral3", 0},
    {"mpt", PLAIN | TIED, read_mpt, SCALE},
    {"nanochat", PLAIN | TYPE_QK_NORM | TYPE_BIAS_KEY, read_nanochat, MODEL_NORM_PLAIN},
    {"nemotron", PLAIN | BIAS_KEYS, NULL, LAYER},
    {"nemotron_h", PLAIN | BIAS_KEYS | EXPERTS | TYPE_MAYBE_EXPERTS | TYPE_SIGMOID, read_nemotron_h,
     .head_dim = 128},
    {"olmo", TYPE_BIAS_KEY, NULL, MODEL_NORM_PLAIN},
    {"olmo2", TYPE_QK_ROW_NORM | TYPE_BIAS_KEY, NULL, 0, POST},
    {"olmo3", TYPE_QK_ROW_NORM | TYPE_BIAS_KEY | TYPE_WINDOWS, NULL, 0, POST, .every = 4},
    {"olmo_hybrid", TYPE_QK_ROW_NORM | TYPE_BIAS_KEY, read_olmo_hybrid},
    {"olmoe", TYPE_QK_ROW_NORM | TYPE_BIAS_KEY | WIDE_EXPERTS},
    {"opt", PLAIN | TIED | ALL_BIASES, read_opt, LAYER},
    {"persimmon", PLAIN | ALL_BIASES, read_phi, LAYER},
    {"phi", PLAIN | ALL_BIASES | TYPE_HEAD_BIAS, read_phi, LAYER, PRE, ONE_NORM},
    {"phi3", TYPE_WINDOW},
    {"phimoe", TYPE_BIAS_KEY | WIDE_EXPERTS | TYPE_WINDOW, read_phimoe, LAYER},
    {"qwen2_moe", TYPE_QK_BIAS_FIRST | TYPE_MAYBE_WINDOW | EXPERTS, read_qwen2_moe},
    {"qwen3_5_moe_text", TYPE_QK_NORM | TYPE_BIAS_KEY | EXPERTS, read_qwen3_next, .head_dim = 256},
    {"qwen3_5_text", TYPE_QK_NORM | TYPE_BIAS_KEY, read_qwen3_next, .head_dim = 256},
    {"qwen3_next", TYPE_QK_NORM | TYPE_BIAS_KEY | EXPERTS, read_qwen3_next, .head_dim = 256},
    {"seed_oss", TYPE_QKV_BIAS_KEY | TYPE_MLP_BIAS_KEY, read_seed_oss, .head_dim = 128},
    {"smollm3", TIED | BIAS_KEYS, read_smollm3},
    {"solar_open", TYPE_BIAS_KEY | EXPERTS | TYPE_SIGMOID, .head_dim = 128},
    {"stablelm", 0, read_stablelm, LAYER},
    {"starcoder2", PLAIN | TIED | TYPE_USE_BIAS | TYPE_WINDOW, NULL, LAYER},
    {"vaultgemma", TIED | TYPE_BIAS_KEY | TYPE_GELU | TYPE_WINDOWS, read_gemma, .head_dim = 256,
     .every = 2},
    {"xglm", PLAIN | TIED | ALL_BIASES, read_xglm, LAYER},
    {"youtu", TYPE_MLA | TIED | TYPE_BIAS_KEY},
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

static void
refuse_type(JsonDoc *doc, const JsonValue *config)
{
    g_autoptr(GString) names = g_string_new(NULL);

    for (size_t i = 0; i < G_N_ELEMENTS(types); i++)
        g_string_append_printf(names, "%s%s", i > 0 ? ", " : "", types[i].name);
    json_fail(doc, json_member(doc, config, "model_type"), "expected one of %s", names->str);
}

static void
read_type(Import *import)
{
    read_widths(import);
    if (json_doc_failed(import->doc))
        return;
    const size_t n = (size_t)import->arch->n_layers;
    import->mix = g_new0(uint8_t, n);
    import->ffn = g_new0(uint8_t, n);
    import->is_unrotated = g_new0(bool, n);
    if ((import->type->is & TYPE_EXPERTS) != 0)
        read_experts(import);
    set_ffns(import);
    read_windows(import);
    if (import->type->read != NULL && !json_doc_failed(import->doc))
        import->type->read(import);
    if (!json_doc_failed(import->doc))
        set_kinds(import);
    g_free(import->mix);
    g_free(import->ffn);
    g_free(import->is_unrotated);
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
    const char *type = json_string(doc, config, "model_type");
    if (json_doc_failed(doc))
        return arch;
    arch->source = g_strdup_printf("Hugging Face config.json, model_type %s", type);
    for (size_t i = 0; i < G_N_ELEMENTS(types) && import.type == NULL; i++)
        if (strcmp(types[i].name, type) == 0)
            import.type = &types[i];
    if (import.type == NULL) {
        refuse_type(doc, config);
        return arch;
    }
    if (config != json_doc_root(doc, NULL, 1))
        warn(&import, "only text_config is read; parts for other modalities are left out");
    read_type(&import);
    model_arch_check(doc, config, arch);
    return arch;
}
