#include "models/arch.h"

#include <string.h>

#include "base/units.h"
#include "models/huggingface_types.h"

static const char *const mix_names[HF_MIX_N] = {"full", "sliding", "chunked", "state", "none"};

/* --- widths --- */

static void
read_activation(const HfImport *import)
{
    const bool plain = (import->type->is & HF_TYPE_PLAIN) != 0;
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
    const char *key = hf_pick(import, "hidden_activation|hidden_act|mlp_hidden_act|"
                                      "activation_function|activation");
    /* Classes that have no key, or leave it out: what most of them have. */
    const char *name = plain || (import->type->is & HF_TYPE_GELU) != 0 ? "gelu" : "silu";
    ModelActivation activation = MODEL_ACTIVATION_N;

    if (hf_has(import, key))
        name = json_string(import->doc, import->config, key);
    for (size_t i = 0; i < G_N_ELEMENTS(known); i++)
        if (strcmp(known[i].name, name) == 0)
            activation = plain ? known[i].plain : known[i].gated;
    if (activation == MODEL_ACTIVATION_N) {
        hf_warn(import, "%s \"%s\": costed as \"%s\"", key, name, plain ? "gelu" : "silu");
        activation = plain ? MODEL_ACTIVATION_GELU : MODEL_ACTIVATION_SWIGLU;
    }
    import->arch->activation = MODEL_ACTIVATION_USUAL;
    if (model_activation(import->arch) != activation)
        import->arch->activation = activation;
}

/* Of rotary positions: the base, the part of a head, and what else there is.  A key of its own until
 * transformers 4, one of "rope_parameters" since 5, there by the layers' type where these differ. */
static void
read_rope(HfImport *import)
{
    ModelArch *arch = import->arch;
    const double usual = import->type->base > 0.0 ? import->type->base : 1e4;
    const JsonValue *v5 = json_object_or_null(import->doc, import->config, "rope_parameters"),
                    *v4 = json_object_or_null(import->doc, import->config, "rope_scaling");
    const char *type = NULL;

    if (v5 != NULL && json_has(import->doc, v5, "sliding_attention"))
        import->local_base = hf_real_or(import, json_object(import->doc, v5, "sliding_attention"),
                                        "rope_theta", 1, 1e12, usual);
    else if (hf_has(import, "rope_local_base_freq"))
        import->local_base =
            hf_real_or(import, import->config, "rope_local_base_freq", 1, 1e12, usual);
    if (import->local_base == 0.0)
        import->local_base = import->type->local_base;
    if (v5 != NULL && json_has(import->doc, v5, "full_attention"))
        v5 = json_object(import->doc, v5, "full_attention");
    const JsonValue *scaling = v5 != NULL ? v5 : v4;
    arch->rope_base = hf_real_or(import, v5 != NULL ? v5 : import->config,
                                 v5 == NULL && hf_has(import, "rotary_emb_base") ? "rotary_emb_base"
                                                                                 : "rope_theta",
                                 1, 1e12, usual);
    for (size_t i = 0; scaling != NULL && type == NULL && i < 2; i++) {
        static const char *const keys[] = {"rope_type", "type"};
        if (json_has(import->doc, scaling, keys[i]))
            type = json_string(import->doc, scaling, keys[i]);
    }
    if (type != NULL && strcmp(type, "default") != 0)
        hf_warn(import, "rotary positions of type \"%s\": taken without that scaling", type);
    double part = hf_real_or(import, import->config, "partial_rotary_factor", 0.0, 1.0,
                             hf_real_or(import, import->config, "rotary_pct", 0.0, 1.0, 1.0));
    if (v5 != NULL)
        part = hf_real_or(import, v5, "partial_rotary_factor", 0.0, 1.0, part);
    const int64_t rotary = hf_number_or(import, "rotary_dim", 1, MODEL_MAX_HEADS,
                                        (int64_t)((double)arch->head_dim * part));
    if (!model_has_mla(arch) && rotary / 2 * 2 < arch->head_dim)
        arch->rotary_dim = rotary / 2 * 2;
}

/* head_dim, or hidden / heads. */
static void
read_head_dim(const HfImport *import, const char *hidden, const char *heads)
{
    ModelArch *arch = import->arch;
    const int64_t usual = import->type->head_dim;
    const bool absent = !hf_has(import, hf_pick(import, "head_dim|kv_channels"));

    if (absent && usual == 0 && (import->type->is & HF_TYPE_MLA) == 0 &&
        arch->hidden % arch->n_heads != 0 && (import->type->is & HF_TYPE_FLOORED) == 0)
        json_fail(import->doc, json_member(import->doc, import->config, heads),
                  "%s " INT " does not divide %s " INT ", and there is no head_dim", heads,
                  arch->n_heads, hidden, arch->hidden);
    arch->head_dim = hf_number_or(import, "head_dim|kv_channels", 1, MODEL_MAX_HEADS,
                                  usual > 0 ? usual : MAX(1, arch->hidden / arch->n_heads));
}

static void
read_mla(const HfImport *import)
{
    ModelArch *arch = import->arch;
    ModelMla *mla = &arch->mla;

    mla->q_lora_rank = hf_number_or(import, "q_lora_rank", 1, MODEL_MAX_HIDDEN, 0);
    mla->kv_lora_rank = hf_number(import, "kv_lora_rank", 1, MODEL_MAX_HIDDEN);
    mla->qk_nope_head_dim = hf_number(import, "qk_nope_head_dim", 1, MODEL_MAX_HEADS);
    mla->qk_rope_head_dim = hf_number(import, "qk_rope_head_dim", 0, MODEL_MAX_HEADS);
    mla->v_head_dim = hf_number(import, "v_head_dim", 1, MODEL_MAX_HEADS);
    arch->n_kv_heads = arch->n_heads;
    arch->head_dim = mla->qk_nope_head_dim + mla->qk_rope_head_dim;
    hf_warn(import,
            "multi-head latent attention: trained decompressed, keys and values of all heads "
            "kept");
}

static void
read_biases(const HfImport *import)
{
    ModelArch *arch = import->arch;
    const unsigned is = import->type->is;
    const bool attention = hf_flag_or(import, "attention_bias", false);
    const bool all = (is & HF_TYPE_USE_BIAS) != 0 && hf_flag_or(import, "use_bias", false);

    arch->qkv_bias = all || (is & HF_TYPE_QKV_BIAS) != 0 ||
                     ((is & (HF_TYPE_BIAS_KEY | HF_TYPE_QKV_BIAS_KEY)) != 0 && attention) ||
                     ((is & HF_TYPE_QK_BIAS_FIRST) != 0 && hf_flag_or(import, "qkv_bias", true));
    arch->proj_bias =
        all || (is & HF_TYPE_PROJ_BIAS) != 0 || ((is & HF_TYPE_BIAS_KEY) != 0 && attention);
    arch->mlp_bias = all || (is & HF_TYPE_MLP_BIAS) != 0 ||
                     ((is & HF_TYPE_MLP_BIAS_KEY) != 0 && hf_flag_or(import, "mlp_bias", false));
    if ((is & HF_TYPE_GPT) != 0)
        arch->proj_bias = arch->mlp_bias = false; /* which family gpt always has */
    arch->head_bias = (is & HF_TYPE_HEAD_BIAS) != 0;
}

/* transformers has no MTP modules, whatever the file says; whoever asks for them gets them. */
static void
read_mtp(HfImport *import)
{
    const char *key =
        hf_pick(import, "num_nextn_predict_layers|mtp_num_hidden_layers|num_mtp_modules");
    const int64_t n = hf_number_or(import, key, 0, MODEL_MAX_LAYERS, 0);

    if (n > 0)
        hf_warn(import, "%s " INT ": MTP modules are left out, as transformers does (--mtp)", key,
                n);
    import->arch->mtp.published = n;
}

static void
read_widths(HfImport *import)
{
    const HfType *type = import->type;
    ModelArch *arch = import->arch;
    const char *hidden = hf_pick(import, "hidden_size|n_embd|d_model");
    const char *heads =
        hf_pick(import, "num_attention_heads|n_head|num_heads|n_heads|attention_heads");

    arch->family = (type->is & HF_TYPE_GPT) != 0 ? MODEL_FAMILY_GPT : MODEL_FAMILY_LLAMA;
    arch->norm = type->norm;
    arch->norm_place = type->place;
    arch->blocks = type->blocks;
    const JsonValue *list = hf_array_of(import, "layers_block_type");
    arch->n_layers = hf_number_from(
        import,
        (type->is & HF_TYPE_GPT) != 0 ? "n_layer" : "num_hidden_layers|n_layer|num_layers|n_layers",
        MODEL_MAX_LAYERS, list == NULL ? 0 : (int64_t)json_length(list));
    arch->hidden = hf_number(import, hidden, 1, MODEL_MAX_HIDDEN);
    arch->n_heads = (type->is & HF_TYPE_STATES_ONLY) != 0
                        ? 1
                        : hf_number_from(import, heads, MODEL_MAX_HEADS, type->heads);
    arch->n_kv_heads =
        (type->is & HF_TYPE_STATES_ONLY) != 0
            ? 1
            : hf_number_or(import, "num_key_value_heads|num_kv_heads", 1, MODEL_MAX_HEADS,
                           type->kv_heads > 0 ? type->kv_heads : arch->n_heads);
    arch->ffn_hidden = hf_number_or(
        import, "intermediate_size|ffn_hidden_size|n_inner|ffn_dim|moe_intermediate_size", 1,
        MODEL_MAX_FFN_HIDDEN, 4 * arch->hidden);
    arch->vocab = hf_number_from(import, "vocab_size", MODEL_MAX_VOCAB, type->vocab);
    arch->max_seq_len = hf_number_from(import,
                                       "max_position_embeddings|n_positions|max_seq_len|"
                                       "model_max_length",
                                       MODEL_MAX_SEQ_LEN, type->positions);
    arch->tied_embeddings =
        hf_flag_or(import, "tie_word_embeddings", (type->is & HF_TYPE_TIED) != 0);
    arch->norm_epsilon = type->epsilon > 0.0 ? type->epsilon : 1e-6;
    static const char *const epsilons[] = {"rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps",
                                           "norm_eps", "norm_epsilon"};
    for (size_t i = 0; i < G_N_ELEMENTS(epsilons); i++)
        arch->norm_epsilon =
            hf_real_or(import, import->config, epsilons[i], 1e-30, 1, arch->norm_epsilon);
    read_head_dim(import, hidden, heads);
    if ((type->is & HF_TYPE_MLA) != 0)
        read_mla(import);
    read_rope(import);
    read_activation(import);
    read_biases(import);
    arch->qk_norm = (type->is & (HF_TYPE_QK_NORM | HF_TYPE_QK_ROW_NORM)) != 0;
    if ((type->is & HF_TYPE_QK_ROW_NORM) != 0)
        arch->qk_norm_kind = MODEL_QK_NORM_ROW;
    read_mtp(import);
}

/* --- experts --- */

/* Whether the shares of the chosen experts are divided by their sum, and the factor on them. */
static void
read_router(const HfImport *import, ModelRouterScores scores, bool divided)
{
    ModelExperts *experts = &import->arch->experts;

    divided = hf_flag_or(import, "norm_topk_prob", divided);
    if (scores == MODEL_ROUTER_SOFTMAX && !divided)
        scores = MODEL_ROUTER_SOFTMAX_ALL;
    else if (scores == MODEL_ROUTER_SIGMOID && !divided)
        hf_warn(import, "norm_topk_prob false: sigmoids are taken to be divided by their sum");
    experts->router_scores = scores;
    experts->router_scale = hf_real_or(import, import->config, "routed_scaling_factor", 1e-9, 1e9,
                                       strcmp(import->type->name, "deepseek_v3") == 0 ? 2.5 : 1.0);
}

static void
read_experts(HfImport *import)
{
    static const char *const functions[] = {"softmax", "sigmoid", NULL};
    ModelArch *arch = import->arch;
    ModelExperts *experts = &arch->experts;
    bool is_sigmoid = (import->type->is & HF_TYPE_SIGMOID) != 0;

    if ((import->type->is & HF_TYPE_MAYBE_EXPERTS) != 0 &&
        !hf_has(import, hf_pick(import, "num_local_experts|n_routed_experts")))
        return;
    experts->n_experts =
        hf_number(import, "num_local_experts|num_experts|n_routed_experts|moe_num_experts", 0,
                  MODEL_MAX_EXPERTS);
    if (experts->n_experts == 0)
        return;
    static const char top_k[] =
        "num_experts_per_tok|num_experts_per_token|moe_k|moe_topk|moe_top_k";
    if (!hf_has(import, hf_pick(import, top_k)) &&
        json_has(import->doc, import->config, hf_pick(import, top_k))) {
        hf_warn(import, "%s is null: costed as 1", hf_pick(import, top_k));
        experts->top_k = 1;
    } else {
        experts->top_k = hf_number(import, top_k, 1, MODEL_MAX_EXPERTS);
    }
    experts->ffn_hidden = (import->type->is & HF_TYPE_EXPERT_FFN) != 0
                              ? arch->ffn_hidden
                              : hf_number(import, "moe_intermediate_size", 1, MODEL_MAX_FFN_HIDDEN);
    experts->n_shared =
        hf_number_or(import, "n_shared_experts|num_shared_experts|moe_num_shared_experts", 0,
                     MODEL_MAX_EXPERTS, 0);
    experts->shared_hidden =
        hf_number_or(import,
                     "shared_expert_intermediate_size|shared_intermediate_size|"
                     "moe_shared_expert_intermediate_size",
                     0, MODEL_MAX_FFN_HIDDEN, 0);
    if (experts->shared_hidden > 0 && experts->n_shared == 0)
        experts->n_shared = 1;
    if (experts->shared_hidden == experts->n_shared * experts->ffn_hidden)
        experts->shared_hidden = 0;
    if (hf_has(import, "scoring_func"))
        is_sigmoid = json_enum(import->doc, import->config, "scoring_func", functions) == 1;
    read_router(import, is_sigmoid ? MODEL_ROUTER_SIGMOID : MODEL_ROUTER_SOFTMAX,
                is_sigmoid || (import->type->is & HF_TYPE_EXPERT_FFN) != 0);
}

/* Which layers have experts: by their types, or but for the first ones, and of the others every
 * n-th. */
static void
set_ffns(HfImport *import)
{
    const int64_t n = import->arch->n_layers;
    const JsonValue *types = hf_array_of(import, "mlp_layer_types");
    const JsonValue *dense = hf_array_of(import, "mlp_only_layers");
    const int64_t step = hf_number_or(import, "decoder_sparse_step", 1, MODEL_MAX_LAYERS, 1);
    const int64_t every = hf_number_or(import, "moe_layer_freq", 1, MODEL_MAX_LAYERS, 1);
    const int64_t first =
        hf_number_or(import, "first_k_dense_replace|num_dense_layers", 0, MODEL_MAX_LAYERS, 0);
    int64_t layer = 0;

    if (first > n)
        json_fail(import->doc, import->config,
                  "first_dense_layers " INT " is more than the " INT " layers", first, n);
    if (import->arch->experts.n_experts == 0)
        return;
    for (; layer < n; layer++)
        import->ffn[layer] = layer < first || (layer + 1) % step != 0 || layer % every != 0
                                 ? HF_FFN_DENSE : HF_FFN_EXPERTS;
    if (dense != NULL)
        JSON_EACH (v, dense, import->doc)
            import->ffn[json_value_int64(import->doc, v, 0, n - 1)] = HF_FFN_DENSE;
    layer = 0;
    if (types != NULL)
        JSON_EACH (v, types, import->doc) {
            const bool is_dense = strcmp(json_value_string(import->doc, v), "dense") == 0;
            if (layer < n)
                import->ffn[layer++] = is_dense ? HF_FFN_DENSE : HF_FFN_EXPERTS;
        }
}

/* --- windows --- */

static void
read_windows(HfImport *import)
{
    const unsigned is = import->type->is;
    const int64_t n = import->arch->n_layers;
    const int64_t window = hf_number_or(import, "sliding_window", 0, MODEL_MAX_SEQ_LEN, 0);
    const bool off =
        (is & HF_TYPE_MAYBE_WINDOW) != 0 && !hf_flag_or(import, "use_sliding_window", false);

    if ((is & (HF_TYPE_WINDOW | HF_TYPE_WINDOWS | HF_TYPE_MAYBE_WINDOW)) == 0)
        return;
    import->window = window < import->arch->max_seq_len && !off ? window : 0;
    if (hf_read_mixes(import, "layer_types") || import->window == 0)
        return;
    if ((is & HF_TYPE_WINDOWS) != 0)
        hf_set_every(import,
                     hf_number_or(import,
                                  "sliding_window_pattern|_sliding_window_pattern|"
                                  "global_attn_every_n_layers",
                                  1, MODEL_MAX_LAYERS, MAX(2, import->type->every)),
                     HF_MIX_SLIDING);
    /* Qwen 2's later layers alone are sliding. */
    const int64_t first = (is & HF_TYPE_MAYBE_WINDOW) != 0
                              ? hf_number_or(import, "max_window_layers", 0, MODEL_MAX_LAYERS, 0)
                              : 0;
    for (int64_t layer = first; layer < n && (is & HF_TYPE_WINDOWS) == 0; layer++)
        import->mix[layer] = HF_MIX_SLIDING;
}

/* --- kinds --- */

static ModelArch
kind_of(const HfImport *import, int64_t layer)
{
    const HfMix mix = import->mix[layer];
    ModelArch kind = *import->arch;

    kind.name = kind.source = NULL;
    if (import->ffn[layer] != HF_FFN_EXPERTS)
        kind.experts = (ModelExperts){0};
    if (import->ffn[layer] == HF_FFN_NONE)
        kind.ffn = MODEL_FFN_NONE;
    if (import->is_unrotated[layer])
        kind.positions = MODEL_POSITIONS_NONE;
    if (mix == HF_MIX_SLIDING) {
        kind.window = import->window;
        if (import->local_base > 0.0)
            kind.rope_base = import->local_base;
    } else if (mix == HF_MIX_CHUNKED) {
        kind.chunk = import->chunk;
    } else if (mix == HF_MIX_STATE) {
        kind.mixer = import->state_mixer;
        kind.state = import->state;
    } else if (mix == HF_MIX_NONE) {
        kind.mixer = MODEL_MIXER_NONE;
    }
    if (import->vary != NULL)
        import->vary(import, mix, &kind);
    return kind;
}

/* Which values the layers have, as sets of bits: all in one, and by HfMix. */
typedef struct {
    unsigned mixes, ffns[HF_MIX_N], rotations[HF_MIX_N];
} Values;

static Values
values_of(const HfImport *import)
{
    Values values = {0};

    for (int64_t layer = 0; layer < import->arch->n_layers; layer++) {
        const HfMix mix = import->mix[layer];
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
kind_name(const HfImport *import, const Values *values, int64_t layer)
{
    static const char *const ffns[] = {"-dense", "-experts", "-alone"};
    const HfMix mix = import->mix[layer];
    const bool ffns_differ = !is_one(values->ffns[mix]);
    const bool rotations_differ = !is_one(values->rotations[mix]);

    if (mix == HF_MIX_NONE || (is_one(values->mixes) && ffns_differ && !rotations_differ))
        return g_strdup(ffns[import->ffn[layer]] + 1);
    return g_strconcat(mix == HF_MIX_STATE ? model_mixer_names[import->state_mixer]
                                           : mix_names[mix],
                       ffns_differ ? ffns[import->ffn[layer]] : "",
                       rotations_differ && import->is_unrotated[layer] ? "-unrotated" : "", NULL);
}

/* Whether the first layers have no experts, and all layers are alike otherwise. */
static bool
is_dense_first(const HfImport *import, int64_t *n_dense)
{
    const int64_t n = import->arch->n_layers;

    *n_dense = 0;
    for (int64_t layer = 0; layer < n; layer++) {
        if (import->mix[layer] != import->mix[0] ||
            import->is_unrotated[layer] != import->is_unrotated[0])
            return false;
        if (import->ffn[layer] == HF_FFN_DENSE && layer == *n_dense)
            ++*n_dense;
        else if (import->ffn[layer] != HF_FFN_EXPERTS)
            return false;
    }
    return true;
}

static void
set_kinds(HfImport *import)
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
    arch->kinds = g_new0(ModelArch, MODEL_MAX_NAMED_KINDS);
    arch->pattern = g_new0(uint8_t, (size_t)n);
    arch->n_pattern = n;
    for (int64_t layer = 0; layer < n; layer++) {
        g_autofree char *name = kind_name(import, &values, layer);
        int32_t i = 0;

        while (i < arch->n_kinds && g_strcmp0(arch->kinds[i].name, name) != 0)
            i++;
        if (i == MODEL_MAX_NAMED_KINDS) {
            json_fail(import->doc, import->config, "layers of more than %d kinds",
                      MODEL_MAX_NAMED_KINDS);
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
    size_t n_types;
    const HfType *types = hf_types(&n_types);

    for (size_t i = 0; i < n_types; i++)
        g_string_append_printf(names, "%s%s", i > 0 ? ", " : "", types[i].name);
    json_fail(doc, json_member(doc, config, "model_type"), "expected one of %s", names->str);
}

static void
read_type(HfImport *import)
{
    read_widths(import);
    if (json_doc_failed(import->doc))
        return;
    const size_t n = (size_t)import->arch->n_layers;
    import->mix = g_new0(uint8_t, n);
    import->ffn = g_new0(uint8_t, n);
    import->is_unrotated = g_new0(bool, n);
    if ((import->type->is & HF_TYPE_EXPERTS) != 0)
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
    HfImport import = {.doc = doc, .config = config, .arch = arch, .warnings = warnings};

    arch->name = g_strdup(name);
    set_placeholder(arch);
    if (json_doc_failed(doc))
        return arch;
    const char *type = json_string(doc, config, "model_type");
    if (json_doc_failed(doc))
        return arch;
    arch->source = g_strdup_printf("Hugging Face config.json, model_type %s", type);
    size_t n_types;
    const HfType *types = hf_types(&n_types);
    for (size_t i = 0; i < n_types && import.type == NULL; i++)
        if (strcmp(types[i].name, type) == 0)
            import.type = &types[i];
    if (import.type == NULL) {
        refuse_type(doc, config);
        return arch;
    }
    if (config != json_doc_root(doc, NULL, 1))
        hf_warn(&import, "only text_config is read; parts for other modalities are left out");
    read_type(&import);
    model_arch_check(doc, config, arch);
    return arch;
}
