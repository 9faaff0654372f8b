#include "cli/recipe/megatron_model.h"

#include <math.h>
#include <string.h>

#include "base/units.h"
#include "cli/recipe/layer_list.h"

/* Vocabularies of tokenizers, by a part of their type's or file's name. */
static const struct {
    const char *part;
    int64_t vocab;
} vocabularies[] = {
    {"llama-3", 128256},  {"llama3", 128256}, {"mixtral", 32000},
    {"mistral", 32000},   {"llama", 32000},   {"deepseek-v3", 129280},
    {"deepseek", 102400}, {"qwen", 151936},   {"gpt2", 50257},
};

static int64_t
vocabulary(Recipe *recipe)
{
    RecipeSettings *s = recipe->settings;
    const char *type = recipe_string(s, "tokenizer_type", "");
    const int64_t vocab = recipe_int(s, "vocab_size", 1, MODEL_MAX_VOCAB, 0);

    const int64_t padded = recipe_int(s, "pad_vocab_size_to", 1, MODEL_MAX_VOCAB, vocab);

    if (padded > 0)
        return MAX(vocab, padded);
    RecipeSetting *file = g_hash_table_lookup(s->by_key, "tokenizer_model");
    g_autofree char *names = g_strconcat(file == NULL ? "" : file->value, " ", type, NULL);
    g_autofree char *lower = g_ascii_strdown(names, -1);
    for (size_t i = 0; i < G_N_ELEMENTS(vocabularies); i++)
        if (strstr(lower, vocabularies[i].part) != NULL) {
            recipe_note(s, "the vocabulary is taken to be that of %s: " INT " (--vocab)",
                        vocabularies[i].part, vocabularies[i].vocab);
            return vocabularies[i].vocab;
        }
    recipe_note(s, "the vocabulary is taken to be GPT-2's: 50257 (--vocab)");
    return 50257;
}

/* --- which layer is what --- */

/* Parts of a layer; without any it is attention over all keys, with positions, and an MLP. */
enum {
    HAS_MAMBA = 1,
    HAS_DELTA_NET = 2,
    HAS_WINDOW = 4,
    HAS_NO_POSITIONS = 8,
    HAS_EXPERTS = 16,
    HAS_NO_MIXER = 32,
    HAS_NO_FFN = 64,
};

typedef struct {
    int64_t n;
    uint8_t *parts;    /* (owned) of each layer */
    int64_t n_modules; /* of MTP, that the pattern of a hybrid has */
    uint8_t module;    /* their parts */
    int64_t n_dense;   /* first layers without experts, where nothing else differs */
    bool is_hybrid;
    bool is_named; /* layers are of several kinds, or are halves */
} Layers;

/* What the list @key says: 1 for each layer that is in it; NULL: it is not given, or is wrong. */
static uint8_t *
list_of(Recipe *recipe, const char *key, int64_t n_layers, LayerListEvery every)
{
    RecipeSettings *s = recipe->settings;
    const char *text = recipe_string(s, key, NULL);
    uint8_t *list = text == NULL ? NULL : layer_list_read(text, n_layers, every);

    if (text != NULL && list == NULL)
        recipe_fail(s, key, "expected a number, or a list of 0 or 1 for each of " INT " layers",
                    n_layers);
    return list;
}

/* Adds @part to the layers that the list @key has; @all without one.  Layers with @but do not have it. */
static void
add_part(Recipe *recipe, Layers *layers, const char *key, LayerListEvery every, bool all,
         uint8_t part, uint8_t but)
{
    g_autofree uint8_t *list = list_of(recipe, key, layers->n, every);

    for (int64_t i = 0; i < layers->n; i++)
        if ((list != NULL ? list[i] : all) && (layers->parts[i] & but) == 0)
            layers->parts[i] |= part;
}

static bool
is_delta_net(Recipe *recipe)
{
    RecipeSettings *s = recipe->settings;
    const char *variant = recipe_string(s, "experimental_attention_variant", "");

    if (strcmp(variant, "gdn2") == 0)
        recipe_note(s, "experimental_attention_variant gdn2: costed as gdn");
    return g_str_has_prefix(variant, "gdn") || strcmp(variant, "gated_delta_net") == 0;
}

/* Keys that a query sees, of "127,0" or "(127, 0)"; 0: all. */
static int64_t
window_of(Recipe *recipe)
{
    RecipeSettings *s = recipe->settings;
    g_autofree char *text = g_strdup(recipe_string(s, "window_size", ""));
    g_auto(GStrv) ends = g_strsplit(g_strstrip(g_strdelimit(text, "()[]'\"", ' ')), ",", -1);
    int64_t before;

    if (text[0] == 0)
        return 0;
    if (g_strv_length(ends) != 2 || !units_parse_int64(g_strstrip(ends[0]), "window_size", -1,
                                                       MODEL_MAX_SEQ_LEN - 1, &before, NULL)) {
        recipe_fail(s, "window_size", "expected two numbers as \"127,0\"");
        return 0;
    }
    return before + 1;
}

/* All layers with attention have the window, or those that are listed. */
static void
add_windows(Recipe *recipe, Layers *layers)
{
    static const LayerListEvery but_last_of = {.first = 1, .value = false};

    add_part(recipe, layers, "window_attn_skip_freq", but_last_of, true, HAS_WINDOW,
             HAS_DELTA_NET | HAS_MAMBA | HAS_NO_MIXER);
}

static void
read_lists(Recipe *recipe, Layers *layers, bool has_experts)
{
    static const LayerListEvery first_of = {.first = 0, .value = true},
                                but_last_of = {.first = 1, .value = false},
                                last_of = {.first = 1, .value = true};

    if (is_delta_net(recipe))
        add_part(recipe, layers, "linear_attention_freq", but_last_of, false, HAS_DELTA_NET, 0);
    if (window_of(recipe) > 0)
        add_windows(recipe, layers);
    add_part(recipe, layers, "no_rope_freq", last_of, false, HAS_NO_POSITIONS, HAS_DELTA_NET);
    if (has_experts)
        add_part(recipe, layers, "moe_layer_freq", first_of, true, HAS_EXPERTS, 0);
}

/* Parts of a letter of a hybrid's pattern; 0: it is none. */
static uint8_t
letter_parts(char letter)
{
    switch (letter) {
    case 'M':
        return HAS_MAMBA | HAS_NO_FFN;
    case 'G':
        return HAS_DELTA_NET | HAS_NO_FFN;
    case '*':
    case '+':
        return HAS_NO_FFN;
    case '-':
        return HAS_NO_MIXER;
    case 'E':
        return HAS_NO_MIXER | HAS_EXPERTS;
    default:
        return 0;
    }
}

/* (nullable) The key of a hybrid's pattern, by its name of 2026 or that of before. */
static const char *
pattern_key(RecipeSettings *s)
{
    return recipe_has(s, "hybrid_layer_pattern")      ? "hybrid_layer_pattern"
           : recipe_has(s, "hybrid_override_pattern") ? "hybrid_override_pattern"
                                                      : NULL;
}

/* The module of MTP that @text describes: one letter, or a mixer's and an MLP's. */
static bool
read_module(const char *text, uint8_t *parts)
{
    const uint8_t first = letter_parts(text[0]), second = first == 0 ? 0 : letter_parts(text[1]);

    *parts = first;
    if (first == 0 || (text[1] != 0 && text[2] != 0))
        return false;
    if (text[1] == 0)
        return true;
    *parts = (uint8_t)((first | second) & ~(HAS_NO_FFN | HAS_NO_MIXER));
    return (first & HAS_NO_FFN) != 0 && (second & HAS_NO_MIXER) != 0;
}

/* Layers, bars between stages, and modules behind slashes; false: it is not so. */
static bool
read_pattern(RecipeSettings *s, Layers *layers)
{
    g_auto(GStrv) parts = g_strsplit(recipe_string(s, pattern_key(s), ""), "/", MODEL_MAX_MTP + 2);
    const char *modules = recipe_string(s, "mtp_hybrid_override_pattern", NULL);
    g_autoptr(GByteArray) all = g_byte_array_new();

    for (const char *letter = parts[0]; *letter != 0; letter++) {
        const uint8_t here = letter_parts(*letter);
        if ((here == 0 && *letter != '|') || all->len >= MODEL_MAX_LAYERS)
            return false;
        if (here != 0)
            g_byte_array_append(all, &here, 1);
    }
    layers->n = all->len;
    layers->n_modules = g_strv_length(parts) - 1;
    layers->parts = g_byte_array_free(g_steal_pointer(&all), FALSE);
    if (layers->n == 0 || layers->n_modules > MODEL_MAX_MTP)
        return false;
    for (int64_t i = 0; i < layers->n_modules; i++)
        if (strcmp(parts[1 + i], parts[1]) != 0)
            return false;
    if (layers->n_modules > 0)
        return read_module(parts[1], &layers->module);
    layers->n_modules = modules == NULL ? 0 : recipe_int(s, "mtp_num_layers", 0, MODEL_MAX_MTP, 0);
    return layers->n_modules == 0 || read_module(modules, &layers->module);
}

static void
read_layers(Recipe *recipe, Layers *layers, bool has_experts)
{
    RecipeSettings *s = recipe->settings;
    const char *key = pattern_key(s);

    recipe_bool(s, "is_hybrid_model", false);
    layers->is_hybrid = key != NULL;
    if (layers->is_hybrid && !read_pattern(s, layers)) {
        recipe_fail(s, key,
                    "expected a letter M, G, *, +, - or E for each layer, with bars between "
                    "stages, and up to %d equal MTP modules behind slashes",
                    MODEL_MAX_MTP);
        return;
    }
    if (layers->is_hybrid && window_of(recipe) > 0)
        add_windows(recipe, layers);
    if (!layers->is_hybrid) {
        layers->n = megatron_number(recipe, "num_layers", MODEL_MAX_LAYERS, 1);
        layers->parts = g_new0(uint8_t, (size_t)layers->n);
        read_lists(recipe, layers, has_experts);
    }
    while (layers->n_dense < layers->n && layers->parts[layers->n_dense] == 0)
        layers->n_dense++;
    if (layers->n_dense == layers->n || layers->parts[layers->n_dense] != HAS_EXPERTS)
        layers->n_dense = 0;
    layers->is_named = layers->is_hybrid;
    for (int64_t i = layers->n_dense; i < layers->n; i++)
        layers->is_named |= layers->parts[i] != layers->parts[layers->n - 1];
}

/* --- the model in our words --- */

static void
write_experts(Recipe *recipe, JsonWriter *writer, const Layers *layers, bool has_biases)
{
    RecipeSettings *s = recipe->settings;
    const int64_t n = recipe_int(s, "num_experts", 1, MODEL_MAX_EXPERTS,
                                 recipe_int(s, "num_moe_experts", 1, MODEL_MAX_EXPERTS, 1)),
                  ffn_hidden = megatron_number(
                      recipe, "ffn_hidden_size", MODEL_MAX_FFN_HIDDEN,
                      4 * megatron_number(recipe, "hidden_size", MODEL_MAX_HIDDEN, 1));
    const int64_t width =
        megatron_number(recipe, "moe_ffn_hidden_size", MODEL_MAX_FFN_HIDDEN, ffn_hidden);
    const int64_t shared =
        recipe_int(s, "moe_shared_expert_intermediate_size", 0, MODEL_MAX_FFN_HIDDEN, 0);
    const int64_t latent = recipe_int(s, "moe_latent_size", 0, MODEL_MAX_HIDDEN, 0);

    json_write_object(writer, "experts");
    json_write_int64(writer, "n_experts", n);
    json_write_int64(writer, "top_k", megatron_number(recipe, "moe_router_topk", n, MIN(2, n)));
    json_write_int64(writer, "ffn_hidden", width);
    json_write_int64(writer, "n_shared", shared % width == 0 ? shared / width : 1);
    if (shared % width != 0)
        json_write_int64(writer, "shared_hidden", shared);
    if (shared > 0 && megatron_flag(recipe, "moe_shared_expert_gate"))
        json_write_bool(writer, "shared_gate", true);
    if (latent > 0)
        json_write_int64(writer, "latent", latent);
    if (has_biases) {
        json_write_bool(writer, "bias", true);
        json_write_bool(writer, "router_bias", true);
    }
    if (!layers->is_named)
        json_write_int64(writer, "first_dense_layers", layers->n_dense);
    if (recipe_is(s, "moe_router_score_function", "sqrtsoftplus"))
        recipe_note(s, "moe_router_score_function sqrtsoftplus: costed as softmax");
    json_write_string(writer, "router_scores",
                      recipe_is(s, "moe_router_score_function", "sigmoid") ? "sigmoid"
                      : megatron_flag(recipe, "moe_router_pre_softmax")    ? "softmax-all"
                                                                           : "softmax");
    json_write_double(writer, "router_scale",
                      recipe_double(s, "moe_router_topk_scaling_factor", 1));
    json_write_object_end(writer);
}

static void
write_state(Recipe *recipe, JsonWriter *writer, bool is_mamba)
{
    const int64_t hidden = megatron_number(recipe, "hidden_size", MODEL_MAX_HIDDEN, 1),
                  head_dim = megatron_number(recipe, "mamba_head_dim", MODEL_MAX_HEADS, 64);

    json_write_object(writer, "state");
    json_write_int64(writer, "n_heads",
                     is_mamba
                         ? megatron_number(recipe, "mamba_num_heads", MODEL_MAX_HIDDEN,
                                           MAX(1, 2 * hidden / head_dim))
                         : megatron_number(recipe, "linear_num_value_heads", MODEL_MAX_HEADS, 32));
    json_write_int64(writer, "n_key_heads",
                     is_mamba
                         ? megatron_number(recipe, "mamba_num_groups", MODEL_MAX_HIDDEN, 8)
                         : megatron_number(recipe, "linear_num_key_heads", MODEL_MAX_HEADS, 16));
    json_write_int64(writer, "key_dim",
                     is_mamba
                         ? megatron_number(recipe, "mamba_state_dim", MODEL_MAX_HEADS, 128)
                         : megatron_number(recipe, "linear_key_head_dim", MODEL_MAX_HEADS, 128));
    json_write_int64(writer, "value_dim",
                     is_mamba
                         ? head_dim
                         : megatron_number(recipe, "linear_value_head_dim", MODEL_MAX_HEADS, 128));
    json_write_int64(
        writer, "conv",
        is_mamba ? 4 : megatron_number(recipe, "linear_conv_kernel_dim", MODEL_MAX_HEADS, 4));
    if (is_mamba) {
        json_write_int64(writer, "chunk", 128);
        json_write_bool(writer, "conv_bias", true);
    }
    json_write_object_end(writer);
}

/* What @parts adds to a layer. */
static void
write_parts(Recipe *recipe, JsonWriter *writer, const Layers *layers, uint8_t parts,
            bool has_biases)
{
    const bool is_mamba = (parts & HAS_MAMBA) != 0, has_state = is_mamba || (parts & HAS_DELTA_NET);

    if (parts & HAS_NO_MIXER)
        json_write_string(writer, "mixer", "none");
    else if (has_state)
        json_write_string(writer, "mixer", is_mamba ? "mamba2" : "delta_net");
    if (has_state)
        write_state(recipe, writer, is_mamba);
    if (parts & HAS_NO_FFN)
        json_write_string(writer, "ffn", "none");
    if (parts & HAS_WINDOW)
        json_write_int64(writer, "window", window_of(recipe));
    if (parts & HAS_NO_POSITIONS)
        json_write_string(writer, "positions", "none");
    if (parts & HAS_EXPERTS)
        write_experts(recipe, writer, layers, has_biases);
}

/* (owned) What a kind of layers is called. */
static char *
kind_name(uint8_t parts)
{
    const char *ffn = parts & HAS_EXPERTS ? "moe" : "dense",
               *mixer = parts & HAS_MAMBA       ? "mamba2"
                        : parts & HAS_DELTA_NET ? "delta_net"
                        : parts & HAS_WINDOW    ? "sliding"
                                                : "full";

    if (parts & HAS_NO_MIXER)
        return g_strdup(ffn);
    return g_strconcat(mixer, parts & HAS_NO_POSITIONS ? "_nope" : "",
                       parts & HAS_NO_FFN    ? ""
                       : parts & HAS_EXPERTS ? "_moe"
                                             : "_dense",
                       NULL);
}

static void
write_kinds(Recipe *recipe, JsonWriter *writer, const Layers *layers, bool has_biases)
{
    g_autoptr(GString) text = g_string_new(NULL);
    bool is_written[256] = {false};

    json_write_object(writer, "kinds");
    for (int64_t i = 0; i < layers->n + (layers->n_modules > 0); i++) {
        const uint8_t parts = i < layers->n ? layers->parts[i] : layers->module;
        g_autofree char *name = kind_name(parts);
        if (i < layers->n)
            g_string_append_printf(text, "%s%s", i > 0 ? ", " : "", name);
        if (is_written[parts])
            continue;
        is_written[parts] = true;
        json_write_object(writer, name);
        write_parts(recipe, writer, layers, parts, has_biases);
        json_write_object_end(writer);
    }
    json_write_object_end(writer);
    json_write_string(writer, "layers", text->str);
    if (layers->n_modules == 0)
        return;
    g_autofree char *name = kind_name(layers->module);
    json_write_object(writer, "mtp");
    json_write_int64(writer, "n", layers->n_modules);
    json_write_string(writer, "kind", name);
    json_write_object_end(writer);
}

static void
write_indexer(Recipe *recipe, JsonWriter *writer)
{
    RecipeSettings *s = recipe->settings;

    if (!recipe_is(s, "experimental_attention_variant", "dsa"))
        return;
    recipe_note(s, "attention of dsa is costed as latent attention that is not absorbed");
    json_write_object(writer, "indexer");
    json_write_int64(writer, "n_heads",
                     megatron_number(recipe, "dsa_indexer_n_heads", MODEL_MAX_HEADS, 64));
    json_write_int64(writer, "head_dim",
                     megatron_number(recipe, "dsa_indexer_head_dim", MODEL_MAX_HEADS, 128));
    json_write_int64(writer, "top_k",
                     megatron_number(recipe, "dsa_indexer_topk", MODEL_MAX_SEQ_LEN, 2048));
    json_write_object_end(writer);
}

/* Norms of queries and keys; MLA's hang on the same flag. */
static void
write_qk_norm(Recipe *recipe, JsonWriter *writer, bool is_mla)
{
    const bool has_scale = megatron_flag(recipe, "qk_layernorm"),
               is_plain = megatron_flag(recipe, "qk_l2_norm");

    json_write_bool(writer, "qk_norm", !is_mla && (has_scale || is_plain));
    if (!is_mla && is_plain)
        json_write_string(writer, "qk_norm_kind", "plain");
}

static void
write_attention(Recipe *recipe, JsonWriter *writer, bool is_mla)
{
    RecipeSettings *s = recipe->settings;
    const int64_t n_heads = megatron_number(recipe, "num_attention_heads", MODEL_MAX_HEADS, 0),
                  hidden = megatron_number(recipe, "hidden_size", MODEL_MAX_HIDDEN, 1);
    const bool grouped =
        megatron_flag(recipe, "group_query_attention") ||
        (recipe->framework == PLAN_FRAMEWORK_MEGATRON_BRIDGE && recipe_has(s, "num_query_groups"));
    const int64_t groups = megatron_number(recipe, "num_query_groups", MODEL_MAX_HEADS, 1),
                  head_dim = megatron_number(recipe, "kv_channels", MODEL_MAX_HEADS,
                                             MAX(1, hidden / MAX(1, n_heads)));
    const double rotated = recipe_double(s, "rotary_percent", 1);

    json_write_int64(writer, "n_heads", n_heads);
    write_qk_norm(recipe, writer, is_mla);
    if (recipe_is(s, "softmax_type", "learnable"))
        json_write_bool(writer, "sinks", true);
    else if (recipe_is(s, "softmax_type", "off-by-one"))
        recipe_note(s, "softmax_type off-by-one: costed as the usual softmax");
    if (megatron_flag(recipe, "attention_output_gate"))
        json_write_string(writer, "output_gate", "element");
    write_indexer(recipe, writer);
    if (is_mla) {
        json_write_object(writer, "mla");
        json_write_int64(writer, "q_lora_rank",
                         recipe_int(s, "q_lora_rank", 0, MODEL_MAX_HIDDEN, 0));
        json_write_int64(writer, "kv_lora_rank",
                         megatron_number(recipe, "kv_lora_rank", MODEL_MAX_HIDDEN, 512));
        json_write_int64(writer, "qk_nope_head_dim",
                         megatron_number(recipe, "qk_head_dim", MODEL_MAX_HIDDEN, 128));
        json_write_int64(writer, "qk_rope_head_dim",
                         megatron_number(recipe, "qk_pos_emb_head_dim", MODEL_MAX_HIDDEN, 64));
        json_write_int64(writer, "v_head_dim",
                         megatron_number(recipe, "v_head_dim", MODEL_MAX_HIDDEN, 128));
        json_write_object_end(writer);
        return;
    }
    if (grouped)
        json_write_int64(writer, "n_kv_heads", groups);
    if (recipe_has(s, "kv_channels"))
        json_write_int64(writer, "head_dim", head_dim);
    if (rotated > 0 && rotated < 1)
        json_write_int64(writer, "rotary_dim", MAX(1, (int64_t)(rotated * (double)head_dim)));
}

/* What is neither a size nor attention's. */
typedef struct {
    bool
        is_gpt; /* LayerNorm, biases everywhere, GELU: what else there is is family llama's, key by key */
    bool is_rms, has_biases;
    const char *activation; /* of family llama; NULL: SwiGLU */
    const char *positions;
} Style;

static Style
read_style(Recipe *recipe)
{
    RecipeSettings *s = recipe->settings;
    /* Getters take "none" for a setting that is not there. */
    const RecipeSetting *embedding = g_hash_table_lookup(s->by_key, "position_embedding_type");
    const bool has_none = embedding != NULL && g_ascii_strcasecmp(embedding->value, "none") == 0;
    const bool is_gated = megatron_flag(recipe, "swiglu") || megatron_flag(recipe, "quick_geglu") ||
                          recipe_is(s, "activation_func", "silu") ||
                          megatron_flag(recipe, "gated_linear_unit");
    const bool is_relu2 = megatron_flag(recipe, "squared_relu"),
               is_rope = recipe_is(s, "position_embedding_type", "rope") ||
                         recipe_is(s, "position_embedding_type", "yarn") ||
                         megatron_flag(recipe, "use_rotary_position_embeddings") ||
                         megatron_flag(recipe, "enable_gpt_oss") /* its model has YaRN */;
    Style style = {
        .is_rms = recipe_is(s, "normalization", "RMSNorm"),
        .has_biases = !megatron_flag(recipe, "disable_bias_linear") &&
                      recipe_bool(s, "add_bias_linear", true),
        .activation = is_relu2   ? "relu2"
                      : is_gated ? NULL
                                 : "gelu",
        .positions = is_rope                                            ? "rotary"
                     : has_none                                         ? "none"
                     : recipe_is(s, "position_embedding_type", "alibi") ? "alibi"
                                                                        : "learned",
    };

    recipe_bool(s, "no_position_embedding", false);
    if (megatron_flag(recipe, "quick_geglu"))
        recipe_note(s, "quick_geglu: costed as SwiGLU");
    style.is_gpt = !is_gated && !is_relu2 && !style.is_rms && style.has_biases;
    return style;
}

static void
write_style(Recipe *recipe, JsonWriter *writer, const Style *style)
{
    json_write_bool(writer, "qkv_bias", style->has_biases || megatron_flag(recipe, "add_qkv_bias"));
    if (strcmp(style->positions, style->is_gpt ? "learned" : "rotary") != 0)
        json_write_string(writer, "positions", style->positions);
    if (style->is_gpt)
        return;
    if (style->has_biases) {
        json_write_bool(writer, "proj_bias", true);
        json_write_bool(writer, "mlp_bias", true);
    }
    if (!style->is_rms)
        json_write_string(writer, "norm", "layer");
    if (style->activation != NULL)
        json_write_string(writer, "activation", style->activation);
}

static void
write_model(Recipe *recipe, JsonWriter *writer, const Style *style, const Layers *layers)
{
    RecipeSettings *s = recipe->settings;
    g_autofree char *base = g_path_get_basename(s->path);
    const bool is_mla =
        megatron_flag(recipe, "multi_latent_attention") ||
        (layers->is_hybrid && strchr(recipe_string(s, pattern_key(s), ""), '+') != NULL);
    const int64_t hidden = megatron_number(recipe, "hidden_size", MODEL_MAX_HIDDEN, 1),
                  seq_len = megatron_number(
                      recipe, "seq_length", MODEL_MAX_SEQ_LEN,
                      megatron_number(recipe, "encoder_seq_length", MODEL_MAX_SEQ_LEN, 2048));
    const int64_t ffn =
        megatron_number(recipe, "ffn_hidden_size", MODEL_MAX_FFN_HIDDEN,
                        style->activation == NULL ? hidden * 8 / 3 / 64 * 64 : 4 * hidden);
    const bool untied = megatron_flag(recipe, "untie_embeddings_and_output_weights") ||
                        !recipe_bool(s, "share_embeddings_and_output_weights", true);
    const bool has_biases = style->has_biases && !style->is_gpt;

    json_write_object(writer, NULL);
    json_write_string(writer, "name", base);
    json_write_string(writer, "family", style->is_gpt ? "gpt" : "llama");
    json_write_int64(writer, "n_layers", layers->n);
    json_write_int64(writer, "hidden", hidden);
    write_attention(recipe, writer, is_mla);
    json_write_int64(writer, "ffn_hidden", ffn);
    json_write_int64(writer, "vocab", vocabulary(recipe));
    json_write_int64(writer, "max_seq_len",
                     MAX(seq_len, megatron_number(recipe, "max_position_embeddings",
                                                  MODEL_MAX_SEQ_LEN, seq_len)));
    json_write_bool(writer, "tied_embeddings", !untied);
    write_style(recipe, writer, style);
    json_write_double(
        writer, "norm_epsilon",
        recipe_double(s, "norm_epsilon",
                      recipe_double(s, "layernorm_epsilon", MODEL_USUAL_NORM_EPSILON)));
    json_write_double(writer, "rope_base", recipe_double(s, "rotary_base", MODEL_USUAL_ROPE_BASE));
    if (layers->is_named)
        write_kinds(recipe, writer, layers, has_biases);
    else
        write_parts(recipe, writer, layers, layers->parts[layers->n - 1], has_biases);
    json_write_object_end(writer);
}

/* The model as a degas-model, which is then read as a file is. */
static void
read_model(Recipe *recipe)
{
    RecipeSettings *s = recipe->settings;
    g_autoptr(JsonWriter) writer = json_writer_new();
    const Style style = read_style(recipe);
    Layers layers = {0};
    size_t n_bytes;

    read_layers(recipe, &layers,
                recipe_int(s, "num_experts", 0, MODEL_MAX_EXPERTS,
                           recipe_int(s, "num_moe_experts", 0, MODEL_MAX_EXPERTS, 0)) > 1);
    if (s->error == NULL)
        write_model(recipe, writer, &style, &layers);
    g_free(layers.parts);
    if (s->error != NULL)
        return;
    g_autofree char *text = json_writer_steal(writer, &n_bytes);
    g_autofree char *name = g_strdup_printf("%s: the model", s->path);
    g_autoptr(JsonDoc) doc = json_doc_parse(name, text, n_bytes, &s->error);
    if (doc == NULL)
        return;
    g_autoptr(ModelArch) arch = model_arch_read(doc, json_doc_root(doc, NULL, 0));
    if (json_doc_finish(doc, &s->error))
        recipe->arch = g_steal_pointer(&arch);
}

/* Whether @name is the stem of a recipe of Megatron-Bridge that is @n letters long, or one of its recipes. */
static bool
is_of_stem(const char *name, const char *stem, size_t n)
{
    static const char *const tasks[] = {"_pretrain_", "_sft_", "_peft_"};

    if (strncmp(name, stem, n) != 0)
        return false;
    for (size_t i = 0; i < G_N_ELEMENTS(tasks); i++)
        if (g_str_has_prefix(name + n, tasks[i]))
            return true;
    return name[n] == 0;
}

/* The model of a recipe of Megatron-Bridge, "gpt_oss_120b_pretrain_...", whatever devices it is for, or of its
 * stem, "gpt_oss_120b". */
static void
read_recipe(Recipe *recipe, const char *key)
{
    const char *name = recipe_string(recipe->settings, key, "");
    const PlanFrameworkModel *model = plan_framework(PLAN_FRAMEWORK_MEGATRON_BRIDGE)->rules->models;

    for (; model->model != NULL; model++) {
        const char *end = model->flavour == NULL ? NULL : strstr(model->flavour, "_pretrain_");
        if (end != NULL && is_of_stem(name, model->flavour, (size_t)(end - model->flavour))) {
            recipe->arch = model_arch_load(model->model, NULL, &recipe->settings->error);
            return;
        }
    }
    recipe_model(recipe, key);
}

void
recipe_read_megatron_model(Recipe *recipe)
{
    RecipeSettings *s = recipe->settings;

    if (recipe_has(s, "hidden_size") && (recipe_has(s, "num_layers") || pattern_key(s) != NULL))
        read_model(recipe);
    else
        read_recipe(recipe, recipe_has(s, "recipe")        ? "recipe"
                            : recipe_has(s, "recipe_name") ? "recipe_name"
                                                           : "model");
}
