#include "models/huggingface_types.h"

#include <math.h>
#include <string.h>

#include "base/units.h"

/* --- what single types have besides --- */

/* The usual scale of scores is not said. */
static void
set_attention_scale(const HfImport *import, double scale)
{
    if (fabs(scale * sqrt((double)import->arch->head_dim) - 1.0) > 1e-6)
        import->arch->attention_scale = scale;
}

static void
read_gpt2(HfImport *import)
{
    import->arch->qkv_bias = true;
}

static void
read_gpt_bigcode(HfImport *import)
{
    import->arch->qkv_bias = true;
    if (hf_flag_or(import, "multi_query", true))
        import->arch->n_kv_heads = 1;
}

static void
read_gpt_neo(HfImport *import)
{
    import->arch->positions = MODEL_POSITIONS_LEARNED;
    import->arch->rotary_dim = 0;
    import->arch->attention_scale = 1.0;
    import->window = hf_number_or(import, "window_size", 1, MODEL_MAX_SEQ_LEN, 256);
    if (!hf_read_mixes(import, "attention_layers"))
        for (int64_t layer = 1; layer < import->arch->n_layers; layer += 2)
            import->mix[layer] = HF_MIX_SLIDING;
}

static void
read_gpt_neox(HfImport *import)
{
    const bool bias = hf_flag_or(import, "attention_bias", true);

    import->arch->qkv_bias = import->arch->proj_bias = bias;
    if (!hf_flag_or(import, "use_parallel_residual", true))
        import->arch->blocks = MODEL_BLOCKS_SERIAL;
}

static void
read_bloom(HfImport *import)
{
    import->arch->positions = MODEL_POSITIONS_ALIBI;
    import->arch->embedding_norm = true;
}

static void
read_mpt(HfImport *import)
{
    ModelArch *arch = import->arch;
    const JsonValue *attention = json_object_or_null(import->doc, import->config, "attn_config");
    const bool no_bias = hf_flag_or(import, "no_bias", true);

    arch->ffn_hidden = hf_number_or(import, "expansion_ratio", 1, 64, 4) * arch->hidden;
    arch->positions = attention == NULL || json_bool_or(import->doc, attention, "alibi", true)
                          ? MODEL_POSITIONS_ALIBI
                          : MODEL_POSITIONS_LEARNED;
    if (!no_bias)
        json_fail(import->doc, json_member(import->doc, import->config, "no_bias"),
                  "expected true: only models without biases are read");
}

static void
read_opt(HfImport *import)
{
    ModelArch *arch = import->arch;

    arch->positions = MODEL_POSITIONS_LEARNED;
    arch->position_rows = arch->max_seq_len + 2;
    if (!hf_flag_or(import, "enable_bias", true))
        arch->qkv_bias = arch->proj_bias = arch->mlp_bias = false;
    if (hf_number_or(import, "word_embed_proj_dim", 1, MODEL_MAX_HIDDEN, arch->hidden) !=
            arch->hidden ||
        !hf_flag_or(import, "do_layer_norm_before", true))
        json_fail(import->doc, import->config,
                  "only models whose embedding is as wide as hidden_size, with norms before "
                  "attention and MLP, are read");
}

static void
read_biogpt(HfImport *import)
{
    ModelArch *arch = import->arch;

    arch->positions = MODEL_POSITIONS_LEARNED;
    arch->position_rows = arch->max_seq_len + 2;
    if (hf_flag_or(import, "scale_embedding", true))
        arch->embedding_scale = sqrt((double)arch->hidden);
}

/* Sines that are added to the embedding are no parameters. */
static void
read_xglm(HfImport *import)
{
    import->arch->positions = MODEL_POSITIONS_NONE;
    if (hf_flag_or(import, "scale_embedding", true))
        import->arch->embedding_scale = sqrt((double)import->arch->hidden);
}

static void
read_falcon(HfImport *import)
{
    ModelArch *arch = import->arch;
    const bool is_new = hf_flag_or(import, "new_decoder_architecture", false);

    arch->qkv_bias = arch->proj_bias = arch->mlp_bias = hf_flag_or(import, "bias", false);
    if (!is_new)
        arch->n_kv_heads = hf_flag_or(import, "multi_query", true) ? 1 : arch->n_heads;
    if (is_new)
        arch->blocks = hf_number_or(import, "num_ln_in_parallel_attn", 1, 2, 2) == 2
                           ? MODEL_BLOCKS_PARALLEL
                           : MODEL_BLOCKS_PARALLEL_ONE_NORM;
    else if (!hf_flag_or(import, "parallel_attn", true))
        arch->blocks = MODEL_BLOCKS_SERIAL;
    if (hf_flag_or(import, "alibi", false))
        arch->positions = MODEL_POSITIONS_ALIBI;
}

static void
read_stablelm(HfImport *import)
{
    import->arch->qkv_bias = hf_flag_or(import, "use_qkv_bias", false);
    import->arch->qk_norm = hf_flag_or(import, "qk_layernorm", false);
    import->arch->qk_norm_kind = import->arch->qk_norm ? MODEL_QK_NORM_HEADS : MODEL_QK_NORM_HEAD;
    if (hf_flag_or(import, "use_parallel_residual", false))
        import->arch->blocks = MODEL_BLOCKS_PARALLEL_ONE_NORM;
}

static void
read_phi(HfImport *import)
{
    import->arch->qk_norm = hf_flag_or(import, "qk_layernorm", false);
}

static void
read_phimoe(HfImport *import)
{
    import->arch->head_bias = hf_flag_or(import, "lm_head_bias", false);
}

static void
read_cohere(HfImport *import)
{
    ModelArch *arch = import->arch;

    arch->logits_scale = hf_real_or(import, import->config, "logit_scale", 1e-9, 1e9, 0.0625);
    arch->qk_norm = hf_flag_or(import, "use_qk_norm", false);
    arch->qk_norm_kind = arch->qk_norm ? MODEL_QK_NORM_HEADS : MODEL_QK_NORM_HEAD;
}

/* Layers that see all tokens are not rotated. */
static void
unrotate_full(HfImport *import)
{
    for (int64_t layer = 0; layer < import->arch->n_layers; layer++)
        import->is_unrotated[layer] = import->mix[layer] == HF_MIX_FULL;
}

static void
read_cohere2(HfImport *import)
{
    read_cohere(import);
    unrotate_full(import);
}

static void
read_gemma(HfImport *import)
{
    ModelArch *arch = import->arch;

    arch->embedding_scale = sqrt((double)arch->hidden);
    arch->logits_cap = hf_real_or(import, import->config, "final_logit_softcapping", 0.0, 1e9, 0.0);
    arch->attention_cap =
        hf_real_or(import, import->config, "attn_logit_softcapping", 0.0, 1e9, 0.0);
    if (hf_has(import, "query_pre_attn_scalar"))
        set_attention_scale(import,
                            1.0 / sqrt(hf_real_or(import, import->config, "query_pre_attn_scalar",
                                                  1e-9, 1e9, 1.0)));
}

static void
read_granite(HfImport *import)
{
    ModelArch *arch = import->arch;
    const double scaling = hf_real_or(import, import->config, "logits_scaling", 1e-9, 1e9, 1.0);

    arch->embedding_scale = hf_factor(import, "embedding_multiplier");
    arch->residual_scale = hf_factor(import, "residual_multiplier");
    arch->logits_scale = scaling == 1.0 ? 0.0 : 1.0 / scaling;
    set_attention_scale(import,
                        hf_real_or(import, import->config, "attention_multiplier", 1e-9, 1e9, 1.0));
}

static void
read_granite_swa(HfImport *import)
{
    read_granite(import);
    import->arch->sinks = true;
}

static void
read_hyperclovax(HfImport *import)
{
    read_granite(import);
    if (hf_flag_or(import, "use_post_norm", true))
        import->arch->norm_place = MODEL_NORM_PLACE_SANDWICH;
}

static void
read_seed_oss(HfImport *import)
{
    import->arch->proj_bias = hf_flag_or(import, "attention_out_bias", false);
}

static void
read_glm4_moe(HfImport *import)
{
    import->arch->qk_norm = hf_flag_or(import, "use_qk_norm", false);
}

static void
read_gpt_oss(HfImport *import)
{
    ModelArch *arch = import->arch;

    arch->qkv_bias = arch->proj_bias = hf_flag_or(import, "attention_bias", true);
    arch->sinks = true;
    arch->experts.bias = arch->experts.router_bias = true;
}

/* Corrections of the router's scores are counted as parameters, though no gradient makes them. */
static void
count_corrections(HfImport *import)
{
    import->arch->experts.router_bias = import->arch->experts.n_experts > 0;
}

static void
read_ernie4_5_moe(HfImport *import)
{
    const int64_t n = import->arch->n_layers;
    const int64_t begin = hf_number_or(import, "moe_layer_start_index", 0, MODEL_MAX_LAYERS, 1);
    const int64_t every = hf_number_or(import, "moe_layer_interval", 1, MODEL_MAX_LAYERS, 1);
    int64_t end = hf_number_or(import, "moe_layer_end_index", -1, MODEL_MAX_LAYERS, -1);

    count_corrections(import);
    if (end < 0)
        end = n - 1;
    for (int64_t layer = 0; layer < n; layer++)
        import->ffn[layer] = (layer + 1) % every == 0 && layer >= begin && layer <= end
                                 ? HF_FFN_EXPERTS
                                 : HF_FFN_DENSE;
}

static void
read_afmoe(HfImport *import)
{
    count_corrections(import);
    import->arch->experts.router_scale =
        hf_real_or(import, import->config, "route_scale", 1e-9, 1e9, 1.0);
    import->arch->output_gate = MODEL_OUTPUT_GATE_ELEMENT;
    unrotate_full(import);
    if (hf_flag_or(import, "mup_enabled", false))
        import->arch->embedding_scale = sqrt((double)import->arch->hidden);
}

static void
read_laguna(HfImport *import)
{
    count_corrections(import);
    if (hf_flag_or(import, "gating", true))
        import->arch->output_gate = MODEL_OUTPUT_GATE_HEAD;
    hf_warn(import, "num_attention_heads_per_layer: all layers are taken to have "
                    "num_attention_heads");
}

static void
read_qwen2_moe(HfImport *import)
{
    import->arch->experts.shared_gate = import->arch->experts.n_experts > 0;
}

static void
read_smollm3(HfImport *import)
{
    const JsonValue *list = hf_array_of(import, "no_rope_layers");
    const int64_t n = import->arch->n_layers;
    const int64_t every = hf_number_or(import, "no_rope_layer_interval", 1, MODEL_MAX_LAYERS, 4);
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
vary_llama4(const HfImport *import, HfMix mix, ModelArch *kind)
{
    kind->qk_norm = kind->qk_norm && kind->positions != MODEL_POSITIONS_NONE;
    if (kind->experts.n_experts == 0)
        kind->ffn_hidden = hf_number_or(import, "intermediate_size_mlp", 1, MODEL_MAX_FFN_HIDDEN,
                                        kind->ffn_hidden);
}

static void
read_llama4(HfImport *import)
{
    ModelArch *arch = import->arch;
    const int64_t n = arch->n_layers;
    const JsonValue *list = hf_array_of(import, "moe_layers");
    const int64_t step = hf_number_or(import, "interleave_moe_layer_step", 1, MODEL_MAX_LAYERS, 1);

    read_smollm3(import);
    import->chunk = hf_number_or(import, "attention_chunk_size", 1, MODEL_MAX_SEQ_LEN, 8192);
    if (import->chunk > arch->max_seq_len)
        import->chunk = 0;
    if (!hf_read_mixes(import, "layer_types"))
        for (int64_t layer = 0; layer < n; layer++)
            import->mix[layer] = import->is_unrotated[layer] ? HF_MIX_FULL : HF_MIX_CHUNKED;
    arch->qk_norm = hf_flag_or(import, "use_qk_norm", true);
    arch->qk_norm_kind = MODEL_QK_NORM_PLAIN;
    arch->experts.n_shared = 1;
    for (int64_t layer = 0; layer < n; layer++)
        import->ffn[layer] =
            (layer + 1) % step == 0 && list == NULL ? HF_FFN_EXPERTS : HF_FFN_DENSE;
    if (list != NULL)
        JSON_EACH (v, list, import->doc)
            import->ffn[json_value_int64(import->doc, v, 0, n - 1)] = HF_FFN_EXPERTS;
    import->vary = vary_llama4;
}

static void
vary_mimo(const HfImport *import, HfMix mix, ModelArch *kind)
{
    if (mix != HF_MIX_SLIDING)
        return;
    kind->n_kv_heads =
        hf_number_or(import, "swa_num_key_value_heads", 1, MODEL_MAX_HEADS, 2 * kind->n_kv_heads);
    kind->sinks = hf_flag_or(import, "add_swa_attention_sink_bias", true);
}

static void
read_mimo(HfImport *import)
{
    import->arch->v_dim =
        hf_number_or(import, "v_head_dim", 1, MODEL_MAX_HEADS, import->arch->head_dim);
    import->vary = vary_mimo;
}

static void
read_indexer(HfImport *import)
{
    import->arch->indexer = (ModelIndexer){
        .n_heads = hf_number_or(import, "index_n_heads", 1, MODEL_MAX_HEADS, 64),
        .head_dim = hf_number_or(import, "index_head_dim", 1, MODEL_MAX_HEADS, 128),
        .top_k = hf_number_or(import, "index_topk", 1, MODEL_MAX_SEQ_LEN, 2048),
    };
    hf_read_mixes(import, "layer_types");
}

static void
read_minicpm3(HfImport *import)
{
    ModelArch *arch = import->arch;
    const double depth = hf_real_or(import, import->config, "scale_depth", 1e-9, 1e9, 1.0);

    arch->embedding_scale = hf_factor(import, "scale_emb");
    arch->residual_scale = depth / sqrt((double)arch->n_layers);
    arch->logits_scale =
        hf_real_or(import, import->config, "dim_model_base", 1e-9, 1e9, (double)arch->hidden) /
        (double)arch->hidden;
}

static void
read_nanochat(HfImport *import)
{
    import->arch->qk_norm_kind = MODEL_QK_NORM_PLAIN;
    import->arch->logits_cap =
        hf_real_or(import, import->config, "final_logit_softcapping", 0.0, 1e9, 15.0);
}

/* --- types whose layers have a state --- */

/* Gated delta nets of Qwen3-Next and its like. */
static void
set_delta_net(HfImport *import)
{
    import->state_mixer = MODEL_MIXER_DELTA_NET;
    import->state = (ModelState){
        .n_heads = hf_number(import, "linear_num_value_heads", 1, MODEL_MAX_HIDDEN),
        .n_key_heads = hf_number(import, "linear_num_key_heads", 1, MODEL_MAX_HIDDEN),
        .key_dim = hf_number(import, "linear_key_head_dim", 1, MODEL_MAX_HEADS),
        .value_dim = hf_number(import, "linear_value_head_dim", 1, MODEL_MAX_HEADS),
        .conv = hf_number(import, "linear_conv_kernel_dim", 0, MODEL_MAX_HEADS),
        .chunk = MODEL_STATE_CHUNK,
    };
    if (!hf_read_mixes(import, "layer_types"))
        hf_set_every(import,
                     hf_number_or(import, "full_attention_interval", 1, MODEL_MAX_LAYERS, 4),
                     HF_MIX_STATE);
}

static void
read_qwen3_next(HfImport *import)
{
    import->arch->output_gate = MODEL_OUTPUT_GATE_ELEMENT;
    import->arch->experts.shared_gate = import->arch->experts.n_experts > 0;
    set_delta_net(import);
}

static void
vary_olmo_hybrid(const HfImport *import, HfMix mix, ModelArch *kind)
{
    if (mix == HF_MIX_FULL)
        kind->norm_place = MODEL_NORM_PLACE_POST;
}

static void
read_olmo_hybrid(HfImport *import)
{
    set_delta_net(import);
    import->vary = vary_olmo_hybrid;
}

/* In full attention no layer is rotated; KDA needs no positions either. */
static void
read_kimi_linear(HfImport *import)
{
    const JsonValue *old = json_object_or_null(import->doc, import->config, "linear_attn_config");
    int64_t heads = hf_number_or(import, "linear_num_heads", 1, MODEL_MAX_HIDDEN, 32);
    int64_t size = hf_number_or(import, "linear_head_dim", 1, MODEL_MAX_HEADS, 128);
    int64_t conv = hf_number_or(import, "linear_conv_kernel_dim", 0, MODEL_MAX_HEADS, 4);

    if (old != NULL) {
        heads = json_int64(import->doc, old, "num_heads", 1, MODEL_MAX_HIDDEN);
        size = json_int64(import->doc, old, "head_dim", 1, MODEL_MAX_HEADS);
        conv = json_int64(import->doc, old, "short_conv_kernel_size", 0, MODEL_MAX_HEADS);
        for (const JsonValue *v = json_first(json_array(import->doc, old, "kda_layers"));
             v != NULL && !json_doc_failed(import->doc); v = json_next(v))
            import->mix[json_value_int64(import->doc, v, 1, import->arch->n_layers) - 1] =
                HF_MIX_STATE;
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
    hf_read_mixes(import, "layer_types");
}

static void
read_bailing_hybrid(HfImport *import)
{
    ModelArch *arch = import->arch;

    import->state_mixer = MODEL_MIXER_KDA;
    import->state = (ModelState){
        .n_heads = arch->n_heads,
        .n_key_heads = arch->n_heads,
        .key_dim = arch->mla.v_head_dim,
        .value_dim = arch->mla.v_head_dim,
        .conv = hf_number_or(import, "short_conv_kernel_size", 0, MODEL_MAX_HEADS, 4),
        .chunk = MODEL_STATE_CHUNK,
    };
    arch->output_gate = MODEL_OUTPUT_GATE_HEAD;
    if (!hf_read_mixes(import, "layer_types"))
        hf_set_every(import, hf_number_or(import, "layer_group_size", 1, MODEL_MAX_LAYERS, 6),
                     HF_MIX_STATE);
}

static void
read_minimax(HfImport *import)
{
    const ModelArch *arch = import->arch;

    import->state_mixer = MODEL_MIXER_LIGHTNING;
    import->state = (ModelState){
        .n_heads = arch->n_heads,
        .n_key_heads = arch->n_heads,
        .key_dim = arch->head_dim,
        .value_dim = arch->head_dim,
        .chunk = hf_number_or(import, "block_size", 1, MODEL_MAX_SEQ_LEN, 256),
    };
    if (!hf_read_mixes(import, "layer_types"))
        json_fail(import->doc, import->config, "expected layer_types");
}

/* "auto" is what is left of the width. */
static int64_t
state_head_dim(const HfImport *import)
{
    const char *key = hf_pick(import, "mamba_d_head|mamba_head_dim|head_dim");
    const JsonValue *value = json_member(import->doc, import->config, key);
    const int64_t heads =
        hf_number_or(import, "mamba_n_heads|mamba_num_heads|num_heads", 1, MODEL_MAX_HIDDEN, 1);

    if (value != NULL && json_is_string(value))
        return MAX(1, hf_number_or(import, "mamba_expand|expand", 1, 64, 2) * import->arch->hidden /
                          heads);
    return hf_number(import, key, 1, MODEL_MAX_HEADS);
}

/* Mamba-2, by the keys of Bamba, Falcon-H1 and Granite; of Nemotron-H and Mamba-2 itself. */
static void
set_mamba2(HfImport *import)
{
    import->state_mixer = MODEL_MIXER_MAMBA2;
    import->state = (ModelState){
        .n_heads =
            hf_number(import, "mamba_n_heads|mamba_num_heads|num_heads", 1, MODEL_MAX_HIDDEN),
        .n_key_heads = hf_number_or(import, "mamba_n_groups|n_groups", 1, MODEL_MAX_HIDDEN, 1),
        .key_dim = hf_number(import, "mamba_d_state|ssm_state_size|state_size", 1, MODEL_MAX_HEADS),
        .value_dim = state_head_dim(import),
        .conv = hf_number_or(import, "mamba_d_conv|conv_kernel", 0, MODEL_MAX_HEADS, 4),
        .conv_bias = hf_flag_or(import, hf_pick(import, "mamba_conv_bias|use_conv_bias"), true),
        .bias = hf_flag_or(import, hf_pick(import, "mamba_proj_bias|use_bias"), false),
        .chunk = hf_number_or(import, "mamba_chunk_size|chunk_size", 1, MODEL_MAX_SEQ_LEN, 256),
    };
}

/* The first version of Mamba. */
static void
set_mamba(HfImport *import)
{
    const int64_t expand = hf_number_or(import, "mamba_expand|expand", 1, 64, 2);
    const int64_t width = (import->type->is & HF_TYPE_STATES_ONLY) != 0
                              ? hf_number_or(import, "intermediate_size", 1, MODEL_MAX_HIDDEN,
                                             expand * import->arch->hidden)
                              : expand * import->arch->hidden;

    import->state_mixer = MODEL_MIXER_MAMBA;
    import->state = (ModelState){
        .n_heads = MIN(width, MODEL_MAX_HIDDEN),
        .n_key_heads = 1,
        .key_dim = hf_number_or(import, "mamba_d_state|state_size", 1, MODEL_MAX_HEADS, 16),
        .value_dim = 1,
        .conv = hf_number_or(import, "mamba_d_conv|conv_kernel", 0, MODEL_MAX_HEADS, 4),
        .conv_bias = hf_flag_or(import, hf_pick(import, "mamba_conv_bias|use_conv_bias"), true),
        .bias = hf_flag_or(import, hf_pick(import, "mamba_proj_bias|use_bias"), false),
        .rank = hf_number_or(import, "mamba_dt_rank|time_step_rank", 1, MODEL_MAX_HIDDEN,
                             model_ceil_div(import->arch->hidden, 16)),
        .chunk = MODEL_STATE_CHUNK,
        .no_norm = true,
    };
}

/* Every layer is a mixer and nothing else. */
static void
set_mixers_only(HfImport *import)
{
    memset(import->mix, HF_MIX_STATE, (size_t)import->arch->n_layers);
    memset(import->ffn, HF_FFN_NONE, (size_t)import->arch->n_layers);
    import->arch->rotary_dim = 0;
}

static void
read_mamba(HfImport *import)
{
    set_mamba(import);
    set_mixers_only(import);
}

static void
read_mamba2(HfImport *import)
{
    set_mamba2(import);
    set_mixers_only(import);
}

static void
read_bamba(HfImport *import)
{
    const JsonValue *list = hf_array_of(import, "attn_layer_indices");

    set_mamba2(import);
    if (hf_read_mixes(import, "layer_types"))
        return;
    memset(import->mix, HF_MIX_STATE, (size_t)import->arch->n_layers);
    if (list != NULL)
        JSON_EACH (v, list, import->doc)
            import->mix[json_value_int64(import->doc, v, 0, import->arch->n_layers - 1)] =
                HF_MIX_FULL;
}

static void
vary_falcon_h1(const HfImport *import, HfMix mix, ModelArch *kind)
{
    kind->mixer = MODEL_MIXER_ATTENTION_MAMBA2;
    kind->state = import->state;
}

static void
read_falcon_h1(HfImport *import)
{
    set_mamba2(import);
    import->state.no_norm = !hf_flag_or(import, "mamba_rms_norm", false);
    import->arch->embedding_scale = hf_factor(import, "embedding_multiplier");
    import->arch->logits_scale = hf_factor(import, "lm_head_multiplier");
    import->vary = vary_falcon_h1;
}

static void
read_granitemoehybrid(HfImport *import)
{
    ModelArch *arch = import->arch;

    read_granite(import);
    set_mamba2(import);
    if (!hf_read_mixes(import, "layer_types") && !hf_read_mixes(import, "layers_block_type"))
        memset(import->mix, HF_MIX_STATE, (size_t)arch->n_layers);
    /* Without experts the shared one is all there is. */
    if (arch->experts.n_experts == 0)
        arch->ffn_hidden = hf_number(import, "shared_intermediate_size", 1, MODEL_MAX_FFN_HIDDEN);
    if (hf_has(import, "position_embedding_type") &&
        strcmp(json_string(import->doc, import->config, "position_embedding_type"), "nope") == 0)
        arch->positions = MODEL_POSITIONS_NONE;
}

static void
read_jamba(HfImport *import)
{
    const int64_t n = import->arch->n_layers;
    const int64_t every = hf_number_or(import, "attn_layer_period", 1, MODEL_MAX_LAYERS, 8);
    const int64_t at = hf_number_or(import, "attn_layer_offset", 0, MODEL_MAX_LAYERS, 4);
    const int64_t experts_every =
        hf_number_or(import, "expert_layer_period", 1, MODEL_MAX_LAYERS, 2);
    const int64_t experts_at = hf_number_or(import, "expert_layer_offset", 0, MODEL_MAX_LAYERS, 1);

    set_mamba(import);
    import->state.inner_norms = true;
    import->arch->positions = MODEL_POSITIONS_NONE;
    for (int64_t layer = 0; layer < n; layer++) {
        import->mix[layer] = layer % every == at ? HF_MIX_FULL : HF_MIX_STATE;
        import->ffn[layer] = layer % experts_every == experts_at ? HF_FFN_EXPERTS : HF_FFN_DENSE;
    }
}

/* One half of a layer each: "M", "*", "-" and "E" of hybrid_override_pattern until transformers 4. */
static void
read_nemotron_h(HfImport *import)
{
    ModelArch *arch = import->arch;
    const int64_t n = arch->n_layers;
    const JsonValue *types = hf_array_of(import, "layers_block_type");
    int64_t layer = 0;

    set_mamba2(import);
    arch->positions = MODEL_POSITIONS_NONE;
    arch->rotary_dim = 0;
    if (types != NULL) {
        hf_read_mixes(import, "layers_block_type");
        JSON_EACH (v, types, import->doc) {
            const char *word = json_value_string(import->doc, v);
            if (layer < n)
                import->ffn[layer++] = strcmp(word, "moe") == 0   ? HF_FFN_EXPERTS
                                       : strcmp(word, "mlp") == 0 ? HF_FFN_DENSE
                                                                  : HF_FFN_NONE;
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
        import->mix[layer] = c == 'M' ? HF_MIX_STATE : c == '*' ? HF_MIX_FULL : HF_MIX_NONE;
        import->ffn[layer] = c == 'E' ? HF_FFN_EXPERTS : c == '-' ? HF_FFN_DENSE : HF_FFN_NONE;
    }
}

/* Short convolutions; the MLP's width is adjusted as the reference does. */
static void
read_lfm2(HfImport *import)
{
    ModelArch *arch = import->arch;
    const JsonValue *full = hf_array_of(import, "full_attn_idxs");
    const bool bias = hf_flag_or(import, "conv_bias", false);

    if (hf_flag_or(import, "block_auto_adjust_ff_dim", strcmp(import->type->name, "lfm2") == 0)) {
        const int64_t multiple =
            hf_number_or(import, "block_multiple_of", 1, MODEL_MAX_HIDDEN, 256);
        const double width =
            hf_real_or(import, import->config, "block_ffn_dim_multiplier", 1e-3, 1e3, 1.0) *
            floor(2.0 * (double)arch->ffn_hidden / 3.0);
        arch->ffn_hidden =
            CLAMP(model_ceil_div((int64_t)width, multiple) * multiple, 1, MODEL_MAX_FFN_HIDDEN);
    }
    import->state_mixer = MODEL_MIXER_CONV;
    import->state =
        (ModelState){.n_heads = arch->hidden,
                     .n_key_heads = 1,
                     .key_dim = 1,
                     .value_dim = 1,
                     .conv = hf_number_or(import, "conv_L_cache", 0, MODEL_MAX_HEADS, 3),
                     .conv_bias = bias,
                     .bias = bias,
                     .chunk = MODEL_STATE_CHUNK,
                     .no_norm = true};
    if (hf_read_mixes(import, "layer_types"))
        return;
    memset(import->mix, HF_MIX_STATE, (size_t)arch->n_layers);
    if (full != NULL)
        JSON_EACH (v, full, import->doc)
            import->mix[json_value_int64(import->doc, v, 0, arch->n_layers - 1)] = HF_MIX_FULL;
}

static void
read_lfm3(HfImport *import)
{
    read_lfm2(import);
    if (hf_flag_or(import, "use_sandwich_norm", true))
        import->arch->norm_place = MODEL_NORM_PLACE_SANDWICH;
    if (hf_flag_or(import, "use_attention_gate", true))
        import->arch->output_gate = MODEL_OUTPUT_GATE_HEAD;
}

/* --- the types --- */

#define PLAIN HF_TYPE_PLAIN
#define TIED HF_TYPE_TIED
#define ALL_BIASES (HF_TYPE_QKV_BIAS | HF_TYPE_PROJ_BIAS | HF_TYPE_MLP_BIAS)
#define BIAS_KEYS (HF_TYPE_BIAS_KEY | HF_TYPE_MLP_BIAS_KEY)
#define EXPERTS HF_TYPE_EXPERTS
#define WIDE_EXPERTS (HF_TYPE_EXPERTS | HF_TYPE_EXPERT_FFN)
#define LAYER MODEL_NORM_LAYER
#define SCALE MODEL_NORM_LAYER_SCALE
#define PRE MODEL_NORM_PLACE_PRE
#define POST MODEL_NORM_PLACE_POST
#define SANDWICH MODEL_NORM_PLACE_SANDWICH
#define PARALLEL MODEL_BLOCKS_PARALLEL
#define ONE_NORM MODEL_BLOCKS_PARALLEL_ONE_NORM

static const HfType types[] = {
    {"gpt2", HF_TYPE_GPT | PLAIN | TIED, read_gpt2, .epsilon = 1e-5},
    {"llama", BIAS_KEYS},
    {"mistral", HF_TYPE_WINDOW},
    {"qwen2", HF_TYPE_QKV_BIAS | HF_TYPE_MAYBE_WINDOW},
    {"qwen3", HF_TYPE_QK_NORM | HF_TYPE_BIAS_KEY | HF_TYPE_MAYBE_WINDOW, .head_dim = 128},
    {"qwen3_moe", HF_TYPE_QK_NORM | HF_TYPE_BIAS_KEY | HF_TYPE_MAYBE_WINDOW | EXPERTS},
    {"mixtral", WIDE_EXPERTS | HF_TYPE_WINDOW, .epsilon = 1e-5, .base = 1e6},
    {"deepseek_v3", HF_TYPE_MLA | HF_TYPE_BIAS_KEY | EXPERTS | HF_TYPE_SIGMOID},
    {"afmoe", HF_TYPE_QK_NORM | EXPERTS | HF_TYPE_SIGMOID | HF_TYPE_WINDOWS, read_afmoe, 0,
     SANDWICH, .every = 4},
    {"arcee", PLAIN | BIAS_KEYS},
    {"bailing_hybrid", HF_TYPE_MLA | EXPERTS | HF_TYPE_SIGMOID, read_bailing_hybrid},
    {"bamba", BIAS_KEYS, read_bamba},
    {"biogpt", PLAIN | TIED | ALL_BIASES, read_biogpt, LAYER},
    {"bloom", PLAIN | TIED | ALL_BIASES, read_bloom, LAYER, .positions = 2048},
    {"codegen", PLAIN | HF_TYPE_MLP_BIAS | HF_TYPE_HEAD_BIAS, NULL, LAYER, PRE, ONE_NORM},
    {"cohere", TIED | HF_TYPE_BIAS_KEY, read_cohere, SCALE, PRE, ONE_NORM},
    {"cohere2", TIED | HF_TYPE_BIAS_KEY | HF_TYPE_WINDOWS, read_cohere2, SCALE, PRE, ONE_NORM,
     .every = 4},
    {"cohere2_moe", TIED | HF_TYPE_BIAS_KEY | HF_TYPE_WINDOWS | WIDE_EXPERTS, read_cohere2, SCALE,
     PRE, ONE_NORM, .every = 4},
    {"cwm", HF_TYPE_WINDOWS},
    {"deepseek_v2", HF_TYPE_MLA | HF_TYPE_BIAS_KEY | EXPERTS},
    {"deepseek_v32", HF_TYPE_MLA | HF_TYPE_BIAS_KEY | EXPERTS | HF_TYPE_SIGMOID, read_indexer},
    {"dots1", HF_TYPE_QK_NORM | HF_TYPE_BIAS_KEY | EXPERTS | HF_TYPE_SIGMOID | HF_TYPE_WINDOWS},
    {"ernie4_5", TIED | HF_TYPE_USE_BIAS, .head_dim = 128},
    {"ernie4_5_moe", TIED | HF_TYPE_USE_BIAS | EXPERTS, read_ernie4_5_moe},
    {"exaone4", HF_TYPE_QK_NORM | HF_TYPE_WINDOWS, NULL, 0, POST, .every = 4},
    {"exaone_moe", HF_TYPE_QK_NORM | HF_TYPE_WINDOWS | EXPERTS | HF_TYPE_SIGMOID, .every = 4},
    {"falcon", PLAIN | TIED, read_falcon, LAYER, PRE, ONE_NORM, .positions = 2048},
    {"falcon_h1", BIAS_KEYS, read_falcon_h1},
    {"falcon_mamba", HF_TYPE_STATES_ONLY | TIED, read_mamba, .positions = 1 << 20},
    {"flex_olmo", HF_TYPE_QK_ROW_NORM | HF_TYPE_BIAS_KEY | WIDE_EXPERTS, NULL, 0, POST},
    {"gemma", TIED | HF_TYPE_BIAS_KEY | HF_TYPE_GELU, read_gemma, .vocab = 256000, .head_dim = 256},
    {"gemma2", TIED | HF_TYPE_BIAS_KEY | HF_TYPE_GELU | HF_TYPE_WINDOWS, read_gemma, 0, SANDWICH,
     .vocab = 256000, .positions = 8192, .head_dim = 256, .every = 2},
    {"gemma3_text", TIED | HF_TYPE_BIAS_KEY | HF_TYPE_GELU | HF_TYPE_WINDOWS | HF_TYPE_QK_NORM,
     read_gemma, 0, SANDWICH, .vocab = 262208, .positions = 131072, .head_dim = 256, .heads = 8,
     .kv_heads = 4, .every = 6, .base = 1e6, .local_base = 1e4},
    {"glm", HF_TYPE_QKV_BIAS_KEY, .head_dim = 128},
    {"glm4", HF_TYPE_QKV_BIAS_KEY, NULL, 0, SANDWICH, .head_dim = 128},
    {"glm4_moe", HF_TYPE_QKV_BIAS_KEY | EXPERTS | HF_TYPE_SIGMOID | HF_TYPE_FLOORED, read_glm4_moe},
    {"glm4_moe_lite", HF_TYPE_MLA | HF_TYPE_BIAS_KEY | EXPERTS | HF_TYPE_SIGMOID},
    {"glm_moe_dsa", HF_TYPE_MLA | HF_TYPE_BIAS_KEY | EXPERTS | HF_TYPE_SIGMOID, read_indexer},
    {"gpt_bigcode", HF_TYPE_GPT | PLAIN | TIED, read_gpt_bigcode, .epsilon = 1e-5},
    {"gpt_neo", PLAIN | TIED | HF_TYPE_PROJ_BIAS | HF_TYPE_MLP_BIAS, read_gpt_neo, LAYER},
    {"gpt_neox", PLAIN | HF_TYPE_MLP_BIAS, read_gpt_neox, LAYER, PRE, PARALLEL},
    {"gpt_oss", WIDE_EXPERTS | HF_TYPE_WINDOWS, read_gpt_oss, .head_dim = 64, .every = 2},
    {"gptj", PLAIN | HF_TYPE_MLP_BIAS | HF_TYPE_HEAD_BIAS, NULL, LAYER, PRE, ONE_NORM},
    {"granite", BIAS_KEYS, read_granite},
    {"granite_swa", BIAS_KEYS | HF_TYPE_WINDOWS, read_granite_swa},
    {"granitemoe", HF_TYPE_BIAS_KEY | WIDE_EXPERTS, read_granite},
    {"granitemoe_swa", HF_TYPE_BIAS_KEY | WIDE_EXPERTS | HF_TYPE_WINDOWS, read_granite_swa},
    {"granitemoehybrid", HF_TYPE_BIAS_KEY | WIDE_EXPERTS, read_granitemoehybrid},
    {"granitemoeshared", HF_TYPE_BIAS_KEY | WIDE_EXPERTS, read_granite},
    {"helium", HF_TYPE_QKV_BIAS_KEY | HF_TYPE_MLP_BIAS_KEY, .head_dim = 128},
    {"hunyuan_v1_dense", HF_TYPE_QK_NORM | HF_TYPE_BIAS_KEY},
    {"hy_v3", HF_TYPE_QK_NORM | BIAS_KEYS | EXPERTS | HF_TYPE_SIGMOID},
    {"hyperclovax", BIAS_KEYS, read_hyperclovax},
    {"internlm3", BIAS_KEYS},
    {"iquestcoder", BIAS_KEYS},
    {"jais2", PLAIN | BIAS_KEYS, NULL, LAYER},
    {"jamba", WIDE_EXPERTS, read_jamba},
    {"kimi_k2", HF_TYPE_MLA | HF_TYPE_BIAS_KEY | EXPERTS | HF_TYPE_SIGMOID},
    {"kimi_linear", HF_TYPE_MLA | EXPERTS | HF_TYPE_SIGMOID, read_kimi_linear},
    {"laguna", HF_TYPE_QK_NORM | HF_TYPE_BIAS_KEY | EXPERTS | HF_TYPE_WINDOWS, read_laguna},
    {"lfm2", TIED | HF_TYPE_QK_NORM, read_lfm2},
    {"lfm2_moe", TIED | HF_TYPE_QK_NORM | EXPERTS | HF_TYPE_SIGMOID, read_lfm2},
    {"lfm3", TIED | HF_TYPE_QK_NORM | HF_TYPE_BIAS_KEY | HF_TYPE_WINDOWS, read_lfm3},
    {"llama4_text", HF_TYPE_BIAS_KEY | WIDE_EXPERTS | HF_TYPE_SIGMOID, read_llama4, .vocab = 202048,
     .positions = 131072, .head_dim = 128},
    {"mamba", HF_TYPE_STATES_ONLY | TIED, read_mamba, .positions = 1 << 20},
    {"mamba2", HF_TYPE_STATES_ONLY, read_mamba2, .positions = 1 << 20},
    {"mellum", HF_TYPE_QK_NORM | HF_TYPE_BIAS_KEY | EXPERTS | HF_TYPE_WINDOWS},
    {"mimo_v2_flash", HF_TYPE_BIAS_KEY | EXPERTS | HF_TYPE_SIGMOID | HF_TYPE_WINDOWS, read_mimo},
    {"minicpm3", HF_TYPE_MLA | TIED | BIAS_KEYS, read_minicpm3},
    {"minimax", WIDE_EXPERTS, read_minimax},
    {"minimax_m2", HF_TYPE_QK_ROW_NORM | WIDE_EXPERTS | HF_TYPE_SIGMOID},
    {"ministral", HF_TYPE_WINDOWS},
    {"ministral3", 0},
    {"mpt", PLAIN | TIED, read_mpt, SCALE},
    {"nanochat", PLAIN | HF_TYPE_QK_NORM | HF_TYPE_BIAS_KEY, read_nanochat, MODEL_NORM_PLAIN},
    {"nemotron", PLAIN | BIAS_KEYS, NULL, LAYER},
    {"nemotron_h", PLAIN | BIAS_KEYS | EXPERTS | HF_TYPE_MAYBE_EXPERTS | HF_TYPE_SIGMOID,
     read_nemotron_h, .head_dim = 128},
    {"olmo", HF_TYPE_BIAS_KEY, NULL, MODEL_NORM_PLAIN},
    {"olmo2", HF_TYPE_QK_ROW_NORM | HF_TYPE_BIAS_KEY, NULL, 0, POST},
    {"olmo3", HF_TYPE_QK_ROW_NORM | HF_TYPE_BIAS_KEY | HF_TYPE_WINDOWS, NULL, 0, POST, .every = 4},
    {"olmo_hybrid", HF_TYPE_QK_ROW_NORM | HF_TYPE_BIAS_KEY, read_olmo_hybrid},
    {"olmoe", HF_TYPE_QK_ROW_NORM | HF_TYPE_BIAS_KEY | WIDE_EXPERTS},
    {"opt", PLAIN | TIED | ALL_BIASES, read_opt, LAYER},
    {"persimmon", PLAIN | ALL_BIASES, read_phi, LAYER},
    {"phi", PLAIN | ALL_BIASES | HF_TYPE_HEAD_BIAS, read_phi, LAYER, PRE, ONE_NORM},
    {"phi3", HF_TYPE_WINDOW},
    {"phimoe", HF_TYPE_BIAS_KEY | WIDE_EXPERTS | HF_TYPE_WINDOW, read_phimoe, LAYER},
    {"qwen2_moe", HF_TYPE_QK_BIAS_FIRST | HF_TYPE_MAYBE_WINDOW | EXPERTS, read_qwen2_moe},
    {"qwen3_5_moe_text", HF_TYPE_QK_NORM | HF_TYPE_BIAS_KEY | EXPERTS, read_qwen3_next,
     .head_dim = 256},
    {"qwen3_5_text", HF_TYPE_QK_NORM | HF_TYPE_BIAS_KEY, read_qwen3_next, .head_dim = 256},
    {"qwen3_next", HF_TYPE_QK_NORM | HF_TYPE_BIAS_KEY | EXPERTS, read_qwen3_next, .head_dim = 256},
    {"seed_oss", HF_TYPE_QKV_BIAS_KEY | HF_TYPE_MLP_BIAS_KEY, read_seed_oss, .head_dim = 128},
    {"smollm3", TIED | BIAS_KEYS, read_smollm3},
    {"solar_open", HF_TYPE_BIAS_KEY | EXPERTS | HF_TYPE_SIGMOID, .head_dim = 128},
    {"stablelm", 0, read_stablelm, LAYER},
    {"starcoder2", PLAIN | TIED | HF_TYPE_USE_BIAS | HF_TYPE_WINDOW, NULL, LAYER},
    {"vaultgemma", TIED | HF_TYPE_BIAS_KEY | HF_TYPE_GELU | HF_TYPE_WINDOWS, read_gemma,
     .head_dim = 256, .every = 2},
    {"xglm", PLAIN | TIED | ALL_BIASES, read_xglm, LAYER},
    {"youtu", HF_TYPE_MLA | TIED | HF_TYPE_BIAS_KEY},
};

const HfType *
hf_types(size_t *n)
{
    *n = G_N_ELEMENTS(types);
    return types;
}
