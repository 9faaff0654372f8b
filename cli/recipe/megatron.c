/*
 * Megatron-LM's arguments, in flags or YAML, and Megatron-Bridge's overrides, which have the same
 * names: the inverse of cli/export/megatron.c.
 *
 * Defaults are those of megatron/training/arguments.py at d98e8a64 (2026-08).
 */
#include <string.h>

#include "base/units.h"
#include "cli/recipe/layout_string.h"
#include "cli/recipe/megatron_model.h"
#include "cli/recipe/recipe.h"

#define MAX_DEGREE SCHEDULE_MAX_RANKS

/* What matters and is not in the prediction: the key, the value that changes nothing, why. */
static const struct {
    const char *key, *usual, *what;
} unmodelled[] = {
    {"distribute_saved_activations", NULL, "saved activations are not split over tp"},
    {"mtp_use_repeated_layer", NULL, "MTP modules do not share one layer"},
    {"moe_shared_expert_overlap", NULL, "shared experts do not overlap with messages"},
    {"delay_wgrad_compute", NULL, "weight gradients are not delayed"},
    {"cpu_offloading", NULL, "activations are not offloaded"},
    {"cpu_offloading_num_layers", "0", "activations are not offloaded"},
    {"fine_grained_activation_offloading", NULL, "activations are not offloaded"},
    {"fp8_param_gather", NULL, "parameters are gathered in the model's format"},
    {"fp8_param", NULL, "parameters are kept in the model's format"},
    {"hierarchical_context_parallel_sizes", NULL, "context parallelism has one level"},
    {"use_torch_fsdp2", NULL, "FSDP2 counts as ZeRO 3"},
    {"main_grads_dtype", "fp32", "main gradients are as --grad-dtype"},
    {"exp_avg_dtype", "fp32", "the optimizer's state is in fp32"},
    {"hybrid_attention_ratio", "0.0", "no layer is one half"},
    {"hybrid_mlp_ratio", "0.0", "no layer is one half"},
    {"step_batch_size_schedule", NULL, "the batch is the largest one"},
    {"rampup_batch_size", NULL, "the batch is the largest one"},
};

/* --- the split --- */

/* Sets the layers of all stages, @layers of int64_t; MTP modules are on the last. */
static void
set_stages(Recipe *recipe, GArray *layers)
{
    g_autoptr(GString) text = g_string_new(NULL);

    g_array_index(layers, int64_t, layers->len - 1) += recipe->arch->mtp.n;
    for (guint i = 0; i < layers->len; i++)
        g_string_append_printf(text, "%s" INT, i > 0 ? "," : "", g_array_index(layers, int64_t, i));
    recipe_flag(recipe, "stage-layers", "%s", text->str);
}

/* Layers of stages that are not equal, into @layers; false: they are, or are refused. */
static bool
read_stages(Recipe *recipe, int64_t pp, int64_t vpp, GArray *layers)
{
    RecipeSettings *s = recipe->settings;
    const int64_t n = recipe->arch->n_layers;
    /* BigScience's: the embedding and the tied head count as layers. */
    const char *partition = recipe_string(s, "pp_partition_method", "");
    const bool both = strstr(partition, "embedding") != NULL,
               embedding = both || megatron_flag(recipe, "account_for_embedding_in_pipeline_split"),
               loss = both || megatron_flag(recipe, "account_for_loss_in_pipeline_split");
    int64_t first = recipe_int(s, "decoder_first_pipeline_num_layers", 0, n,
                               recipe_int(s, "num_layers_in_first_pipeline_stage", 0, n, -1)),
            last = recipe_int(s, "decoder_last_pipeline_num_layers", 0, n,
                              recipe_int(s, "num_layers_in_last_pipeline_stage", 0, n, -1));
    const int64_t stages = pp * vpp;

    if (pp == 1)
        return false;
    if (embedding || loss) {
        const int64_t all = n + embedding + loss;
        if (all % stages != 0) {
            recipe_break(recipe, "layers",
                         INT " layers with embedding and loss, not a multiple of " INT " stages",
                         all, stages);
            return false;
        }
        for (int64_t i = 0; i < stages; i++) {
            const int64_t here = all / stages - (i == 0 && embedding) - (i == stages - 1 && loss);
            g_array_append_val(layers, here);
        }
        return true;
    }
    /* The first and the last rank have so many layers in all their chunks together. */
    const int64_t ranks = pp - (first >= 0) - (last >= 0), left = n - MAX(0, first) - MAX(0, last);
    if (first < 0 && last < 0 && left % (ranks * vpp) != 0) {
        recipe_break(recipe, "layers", INT " layers are no multiple of " INT " stages", n, stages);
        return false;
    }
    if (ranks < 1 || left < 0 || left % (ranks * vpp) != 0 || (first > 0 && first % vpp != 0) ||
        (last > 0 && last % vpp != 0)) {
        recipe_break(recipe, "layers",
                     INT " layers between the first and the last stage are no multiple of " INT,
                     left, MAX(1, ranks) * vpp);
        return false;
    }
    for (int64_t i = 0; i < stages; i++) {
        const int64_t rank = i % pp;
        const int64_t here = (rank == 0 && first >= 0       ? first
                              : rank == pp - 1 && last >= 0 ? last
                                                            : left / ranks) /
                             vpp;
        g_array_append_val(layers, here);
    }
    return first >= 0 || last >= 0 || recipe->arch->mtp.n > 0;
}

/* Sets the stages of a layout string; returns the chunks of a rank. */
static int64_t
read_layout(Recipe *recipe, const char *string, int64_t pp)
{
    static const char key[] = "pipeline_model_parallel_layout";
    g_autofree char *text = g_strdup(string), *message = NULL;
    g_autoptr(GString) layers = g_string_new(NULL);

    /* Quotes of YAML within those of a shell. */
    while (*text != 0 && strchr("'\" ", text[strlen(text) - 1]) != NULL)
        text[strlen(text) - 1] = 0;
    g_autoptr(GArray) stages = layout_string_read(text + strspn(text, "'\" "), &message);
    if (stages == NULL) {
        recipe_fail(recipe->settings, key, "expected stages as \"Et*3|(tt|)*29,m|L\"");
        return 1;
    }
    message = layout_string_refusal(stages, pp, recipe->arch->n_layers, recipe->arch->mtp.n);
    if (message != NULL)
        recipe_break(recipe, "layout", "%s", message);
    for (guint i = 0; i < stages->len; i++) {
        const LayoutStage *stage = &g_array_index(stages, LayoutStage, i);
        g_string_append_printf(layers, "%s" INT, i > 0 ? "," : "", stage->n_layers + stage->n_mtp);
    }
    recipe_flag(recipe, "stage-layers", "%s", layers->str);
    return MAX(1, stages->len / pp);
}

/* Sets the stages between the bars of a hybrid's pattern; returns the chunks of a rank. */
static int64_t
read_hybrid(Recipe *recipe, int64_t pp)
{
    const char *text = recipe_string(recipe->settings, "hybrid_layer_pattern", NULL);
    g_autofree char *own = layout_string_write_hybrid(NULL, recipe->arch);

    g_auto(GStrv) stages = g_strsplit(text, "|", -1);
    g_autofree char *all = g_strjoinv("", stages);
    if (g_strcmp0(all, own) != 0) {
        recipe_fail(recipe->settings, "hybrid_layer_pattern", "expected the layers of %s",
                    recipe->arch->name);
        return 1;
    }
    const int64_t n = g_strv_length(stages);
    if (n % pp != 0)
        recipe_break(recipe, "layout", INT " stages are no multiple of " INT " ranks", n, pp);
    g_autoptr(GString) layers = g_string_new(NULL);
    for (int64_t i = 0; i < n; i++)
        g_string_append_printf(layers, "%s" INT, i > 0 ? "," : "",
                               (int64_t)strcspn(stages[i], "/") +
                                   (i + 1 == n ? recipe->arch->mtp.n : 0));
    recipe_flag(recipe, "stage-layers", "%s", layers->str);
    return MAX(1, n / pp);
}

static int64_t
read_pipeline(Recipe *recipe, int64_t pp)
{
    RecipeSettings *s = recipe->settings;
    const int64_t n = recipe->arch->n_layers;
    const char *text = recipe_string(s, "pipeline_model_parallel_layout", NULL);
    const int64_t per_chunk = recipe_int(s, "num_layers_per_virtual_pipeline_stage", 1, n, 0);
    g_autoptr(GArray) layers = g_array_new(false, false, sizeof(int64_t));
    int64_t vpp = recipe_int(
        s, "num_virtual_stages_per_pipeline_rank", 1, SCHEDULE_MAX_CHUNKS,
        recipe_int(s, "virtual_pipeline_model_parallel_size", 1, SCHEDULE_MAX_CHUNKS, 1));

    if (per_chunk > 0 && n / pp / per_chunk >= 1)
        vpp = n / pp / per_chunk;
    if (text != NULL && pp > 1)
        return read_layout(recipe, text, pp);
    if (pp > 1 && strchr(recipe_string(s, "hybrid_layer_pattern", ""), '|') != NULL &&
        recipe->arch->n_kinds > 0)
        return read_hybrid(recipe, pp);
    if (read_stages(recipe, pp, vpp, layers))
        set_stages(recipe, layers);
    else if (per_chunk > 0 && pp > 1 && n % pp == 0 && n / pp % per_chunk != 0)
        recipe_break(recipe, "layers", INT " layers of a chunk do not divide " INT " of a rank",
                     per_chunk, n / pp);
    return vpp;
}

static void
read_split(Recipe *recipe)
{
    RecipeSettings *s = recipe->settings;
    const int64_t tp = megatron_number(
                      recipe, "tensor_model_parallel_size", MAX_DEGREE,
                      megatron_number(recipe, "model_parallel_size", MAX_DEGREE, 1)),
                  pp = megatron_number(recipe, "pipeline_model_parallel_size", MAX_DEGREE, 1),
                  cp = megatron_number(recipe, "context_parallel_size", MAX_DEGREE, 1),
                  ep = megatron_number(recipe, "expert_model_parallel_size", MAX_DEGREE, 1),
                  etp = megatron_number(recipe, "expert_tensor_parallel_size", MAX_DEGREE, tp),
                  micro_batch = megatron_number(recipe, "micro_batch_size", 1 << 20, 1);
    const int64_t vpp = read_pipeline(recipe, pp);
    const int64_t group =
        recipe_int(s, "microbatch_group_size_per_virtual_pipeline_stage", 1, 1 << 20,
                   recipe_int(s, "microbatch_group_size_per_vp_stage", 1, 1 << 20, 0));
    const char *cp_comm = recipe_string(s, "cp_comm_type", "p2p");

    recipe_flag(recipe, "tp", INT, tp);
    recipe_flag(recipe, "pp", INT, pp);
    recipe_flag(recipe, "vpp", INT, vpp);
    recipe_flag(recipe, "cp", INT, cp);
    recipe_flag(recipe, "schedule", "%s", vpp > 1 ? "interleaved" : "1f1b");
    if (recipe->arch->experts.n_experts > 0) {
        recipe_flag(recipe, "ep", INT, ep);
        recipe_flag(recipe, "expert-tp", INT, etp);
    }
    if (vpp > 1 && group > 0)
        recipe_flag(recipe, "group", INT, group);
    if (cp > 1 && strcmp(cp_comm, "a2a") == 0)
        recipe_flag(recipe, "cp-comm-type", "a2a");
    else if (cp > 1 && strcmp(cp_comm, "p2p") != 0)
        recipe_note(s, "cp_comm_type %s: costed as p2p", cp_comm);
    if (megatron_flag(recipe, "use_tp_pp_dp_mapping"))
        recipe_flag(recipe, "rank-order", "tp-cp-pp-dp");
    /* Megatron switches it off itself where there is no tp. */
    recipe_flag(recipe, "sequence-parallel", "%s",
                megatron_flag(recipe, "sequence_parallel") && tp > 1 ? "on" : "off");
    if (!recipe_has(s, "micro_batch_size"))
        recipe_note(s, "the micro-batch is taken to be 1 (--micro-batch)");
    recipe_flag(recipe, "micro-batch", INT, micro_batch);
    recipe_batch(recipe, tp, pp, cp, micro_batch,
                 recipe_int(s, "global_batch_size", 1, INT64_C(1) << 31, 0), 1);
}

/* --- replicas, numbers, recompute --- */

static int
zero_stage(Recipe *recipe)
{
    static const char *const strategies[] = {"no_shard", "optim", "optim_grads",
                                             "optim_grads_params"};
    RecipeSettings *s = recipe->settings;
    const bool is_fsdp =
        megatron_flag(recipe, "use_megatron_fsdp") || megatron_flag(recipe, "use_custom_fsdp");
    const char *strategy = recipe_string(s, "data_parallel_sharding_strategy", "no_shard");

    if (recipe->framework == PLAN_FRAMEWORK_MEGATRON_DEEPSPEED) {
        /* The flag, or DeepSpeed's JSON, whose keys have lost their objects' names. */
        const int stage =
            (int)recipe_int(s, "zero_stage", 0, 3, (int)recipe_int(s, "stage", 0, 3, 0));
        const bool shards = stage == 0 && megatron_flag(recipe, "bf16");

        /* DeepSpeed's BF16_Optimizer, which is for stage 0, shards its state itself. */
        if (shards)
            recipe_note(s, "stage 0 in bf16 shards the optimizer's state: ZeRO 1");
        return shards ? 1 : stage;
    }
    if (recipe_bool(s, "use_torch_fsdp2", false))
        return 3;
    for (int i = 0; is_fsdp && i < (int)G_N_ELEMENTS(strategies); i++)
        if (strcmp(strategy, strategies[i]) == 0)
            return i;
    if (is_fsdp)
        recipe_fail(s, "data_parallel_sharding_strategy",
                    "expected one of no_shard, optim, optim_grads, optim_grads_params");
    return megatron_flag(recipe, "use_distributed_optimizer") ||
                   recipe_is(s, "optimizer", "dist_muon") ||
                   megatron_flag(recipe, "use_layer_wise_distributed_optimizer")
               ? 1
               : 0;
}

static void
read_optimizer(Recipe *recipe)
{
    RecipeSettings *s = recipe->settings;
    const char *name = recipe_string(s, "optimizer", "adam");
    const bool is_muon = strcmp(name, "muon") == 0 || strcmp(name, "dist_muon") == 0;
    /* Megatron's default is blockwise. */
    const char *mode = recipe_string(s, "muon_tp_mode", "blockwise");

    recipe_flag(recipe, "optimizer", "%s", is_muon ? "muon" : "adamw");
    if (is_muon && !g_strv_contains(plan_muon_tp_names, mode))
        recipe_fail(s, "muon_tp_mode",
                    "expected blockwise, duplicated, distributed or layer_sharded");
    else if (is_muon)
        recipe_flag(recipe, "muon-tp-mode", "%s", mode);
    else if (strcmp(name, "adam") != 0 && strcmp(name, "adamw") != 0)
        recipe_note(s, "the optimizer is Adam, not %s", name);
}

static bool
has_experts(const Recipe *recipe)
{
    return recipe->arch->experts.n_experts > 0;
}

static void
add_overlap(GString *list, const char *axis, bool overlaps)
{
    if (overlaps)
        g_string_append_printf(list, "%s%s", list->len > 0 ? "," : "", axis);
}

static void
read_replicas(Recipe *recipe)
{
    RecipeSettings *s = recipe->settings;
    const int zero = zero_stage(recipe);
    const bool dp = recipe_bool(s, "overlap_grad_reduce",
                                recipe->framework == PLAN_FRAMEWORK_MEGATRON_BRIDGE) ||
                    recipe_is(s, "DDP_impl", "torch"),
               tp = megatron_flag(recipe, "tp_comm_overlap"),
               pp = recipe_bool(s, "overlap_p2p_communication", true) &&
                    recipe_bool(s, "overlap_p2p_comm", true) &&
                    !megatron_flag(recipe, "no_overlap_p2p_communication"),
               ep =
                   megatron_flag(recipe, "overlap_moe_expert_parallel_comm") && has_experts(recipe);
    const char *vpp = "1";

    for (guint i = 0; i < recipe->flags->len; i += 2)
        if (strcmp(g_ptr_array_index(recipe->flags, i), "vpp") == 0)
            vpp = g_ptr_array_index(recipe->flags, i + 1);
    const bool overlaps_pp = pp && strcmp(vpp, "1") != 0;
    recipe_flag(recipe, "zero", "%d", zero);
    const int64_t instances =
        megatron_number(recipe, "num_distributed_optimizer_instances", MAX_DEGREE, 1);
    if (instances > 1 && zero == 1)
        recipe_flag(recipe, "optimizer-instances", INT, instances);
    else if (instances > 1)
        recipe_unmodelled(s, "num_distributed_optimizer_instances", NULL,
                          "its replicas of shards are not modelled with ZeRO 2 and 3");
    /* 0: of all micro-batches. */
    const int64_t limit = recipe_int(s, "wgrad_deferral_limit", 0, INT32_MAX, 0);
    if (megatron_flag(recipe, "defer_embedding_wgrad_compute"))
        recipe_flag(recipe, "defer-gradients", INT, limit > 0 ? limit : (int64_t)INT32_MAX);
    g_autoptr(GString) overlaps = g_string_new(NULL);
    add_overlap(overlaps, "dp", dp);
    add_overlap(overlaps, "pp", overlaps_pp);
    add_overlap(overlaps, "tp", tp);
    add_overlap(overlaps, "ep", ep);
    recipe_flag(recipe, "overlap", "%s", overlaps->len > 0 ? overlaps->str : "none");
    if (recipe_bool(s, "overlap_param_gather", false) && zero == 0 &&
        recipe->framework != PLAN_FRAMEWORK_MEGATRON_BRIDGE)
        recipe_break(recipe, "overlap-param-gather",
                     "--overlap-param-gather needs --use-distributed-optimizer");
    if (recipe_bool(s, "overlap_param_gather", false) && !dp)
        recipe_break(recipe, "overlap-param-gather",
                     "--overlap-param-gather needs --overlap-grad-reduce");
    if (megatron_flag(recipe, "optimizer_cpu_offload")) {
        recipe_flag(recipe, "offload", "cpu");
        const double share = recipe_double(s, "optimizer_offload_fraction", 1.0);
        if (share < 1.0)
            recipe_note(s, "all of the optimizer's state is taken to be offloaded");
    }
    recipe_bool(s, "use_precision_aware_optimizer", false);
}

/* What numbers of fp8 share a scale, where it is said: as the device is usually run else, which exports leave out too. */
static void
read_scales(Recipe *recipe, const char *precision)
{
    static const struct {
        const char *recipe, *part, *quantise;
    } scales[] = {
        {"tensorwise", "current_scaling", "tensor"},
        {"delayed", "delayed_scaling", "delayed"},
        {"mxfp8", "mxfp8", "block"},
    };
    RecipeSettings *s = recipe->settings;
    const char *given = recipe_string(s, "fp8_recipe", "");

    for (size_t i = 0; i < G_N_ELEMENTS(scales); i++)
        if (strcmp(given, scales[i].recipe) == 0 ||
            (given[0] == 0 && strstr(precision, scales[i].part) != NULL)) {
            recipe_flag(recipe, "quantise", "%s", scales[i].quantise);
            return;
        }
    if (given[0] != 0 || precision[0] != 0)
        recipe_note(s, "fp8 of %s: scales are as the device is usually run",
                    given[0] != 0 ? given : precision);
}

static void
read_numbers(Recipe *recipe)
{
    RecipeSettings *s = recipe->settings;
    const char *precision = recipe_string(s, "mixed_precision", "");
    const bool fp16 = megatron_flag(recipe, "fp16") || g_str_has_prefix(precision, "fp16"),
               bf16 = megatron_flag(recipe, "bf16") || g_str_has_prefix(precision, "bf16") ||
                      recipe->framework == PLAN_FRAMEWORK_MEGATRON_BRIDGE,
               fp8 = recipe_has(s, "fp8_format") || recipe_has(s, "fp8") ||
                     recipe_has(s, "fp8_hybrid") || strstr(precision, "fp8") != NULL,
               fp4 = recipe_has(s, "fp4_format") || recipe_has(s, "fp4") ||
                     strstr(precision, "fp4") != NULL;
    const bool sums = recipe_bool(s, "accumulate_allreduce_grads_in_fp32", bf16);

    if (megatron_flag(recipe, "fp16") && megatron_flag(recipe, "bf16"))
        recipe_break(recipe, "dtype", "--fp16 and --bf16 exclude each other");
    recipe_flag(recipe, "dtype", "%s",
                fp4    ? "nvfp4"
                : fp8  ? "fp8"
                : fp16 ? "fp16"
                : bf16 ? "bf16"
                       : "fp32");
    recipe_flag(recipe, "grad-dtype", "%s",
                megatron_flag(recipe, "grad_reduce_in_bf16") ||
                        !recipe_bool(s, "grad_reduce_in_fp32", true)
                    ? "bf16"
                    : "fp32");
    if (fp16 && !sums)
        recipe_note(s, "gradients in fp16 are costed as in fp32");
    if (fp8 && !fp4)
        read_scales(recipe, precision);
}

/* How rows go to experts.  Megatron's default of the flex dispatcher is DeepEP. */
static void
read_experts(Recipe *recipe)
{
    RecipeSettings *s = recipe->settings;
    const char *type = recipe_string(s, "moe_token_dispatcher_type", "alltoall"),
               *backend = recipe_string(s, "moe_flex_dispatcher_backend", "deepep");
    const bool is_flex = strcmp(type, "flex") == 0 || megatron_flag(recipe, "moe_enable_deepep");
    const double capacity = recipe_double(s, "moe_expert_capacity_factor", -1);
    const bool pads = megatron_flag(recipe, "moe_pad_expert_input_to_capacity");

    if (!has_experts(recipe) || !plan_framework(recipe->framework)->sorts_received)
        return;
    if (is_flex && strcmp(backend, "deepep") != 0 && strcmp(backend, "hybridep") != 0)
        recipe_note(s, "moe_flex_dispatcher_backend %s: costed as an all-to-all", backend);
    else if (is_flex)
        recipe_flag(recipe, "dispatcher", "%s", backend);
    else if (strcmp(type, "alltoall") != 0)
        recipe_note(s, "moe_token_dispatcher_type %s: costed as an all-to-all", type);
    if (capacity > 0 && (capacity < 1 || is_flex)) {
        recipe_unmodelled(s, "moe_expert_capacity_factor", NULL, "no tokens are dropped here");
    } else if (capacity > 0) {
        recipe_flag(recipe, "expert-capacity", "%g", capacity);
        if (!pads)
            recipe_note(s, "experts are taken to be filled up to their capacity");
    }
}

/* What one launch replays, by the words of --cuda-graph-impl and --cuda-graph-scope, and by those of 2024. */
static const char *
graphs(Recipe *recipe)
{
    RecipeSettings *s = recipe->settings;
    const char *impl =
        recipe_string(s, "cuda_graph_impl",
                      megatron_flag(recipe, "external_cuda_graph") ? "transformer_engine"
                      : megatron_flag(recipe, "enable_cuda_graph") ? "local"
                                                                   : "none");
    g_auto(GStrv) scope = g_strsplit_set(recipe_string(s, "cuda_graph_scope", ""), " ,+[]\"'", -1);
    bool names_any = false;

    if (strcmp(impl, "none") == 0)
        return NULL;
    if (strcmp(impl, "full_iteration") == 0 ||
        g_strv_contains((const char *const *)scope, "full_iteration"))
        return "iteration";
    for (char **word = scope; *word != NULL; word++)
        names_any = names_any || ((*word)[0] != 0 && strcmp(*word, "full") != 0);
    if (!names_any)
        return "layer";
    if (g_strv_contains((const char *const *)scope, "attn"))
        return "attention";
    if (g_strv_contains((const char *const *)scope, "moe_router"))
        return "router";
    recipe_unmodelled(s, "cuda_graph_scope", NULL, "these graphs are not modelled");
    return NULL;
}

static void
read_kernels(Recipe *recipe)
{
    RecipeSettings *s = recipe->settings;
    const char *backend = recipe_string(s, "attention_backend", "auto");
    const bool local =
        recipe_is(s, "transformer_impl", "local") || megatron_flag(recipe, "use_legacy_models");
    const double attention = recipe_double(s, "attention_dropout", 0.1),
                 hidden = recipe_double(s, "hidden_dropout", 0.1);
    const bool is_bridge = recipe->framework == PLAN_FRAMEWORK_MEGATRON_BRIDGE;

    const bool flash = megatron_flag(recipe, "use_flash_attn"),
               unfused = strcmp(backend, "unfused") == 0 || strcmp(backend, "local") == 0 || local;

    if (!flash && unfused)
        recipe_flag(recipe, "attention", "unfused");
    else if (flash || strcmp(backend, "auto") != 0)
        recipe_flag(recipe, "attention", "flash");
    if (!is_bridge || recipe_has(s, "attention_dropout"))
        recipe_flag(recipe, "dropout", "%s", attention > 0 || hidden > 0 ? "on" : "off");
    if (is_bridge && !recipe_bool(s, "cross_entropy_loss_fusion", true))
        recipe_flag(recipe, "loss", "plain");
    else if (megatron_flag(recipe, "cross_entropy_loss_fusion"))
        recipe_flag(recipe, "loss", "%s",
                    recipe_is(s, "cross_entropy_fusion_impl", "te") ? "fused" : "compiled");
    if (megatron_flag(recipe, "deterministic_mode"))
        recipe_flag(recipe, "deterministic-kernels", "on");
    const char *captured = graphs(recipe);
    if (captured != NULL && plan_framework(recipe->framework)->captures_graphs)
        recipe_flag(recipe, "cuda-graphs", "%s", captured);
}

/* A list, with commas or blanks, of modules; those that are not modelled are named.  Without one
 * Megatron's own, core_attn, is meant, as in a plan that names none. */
static void
read_modules(Recipe *recipe)
{
    const char *list = recipe_string(recipe->settings, "recompute_modules", "");
    g_auto(GStrv) words = g_strsplit_set(list, " ,+[]\"'", -1);
    g_autoptr(GString) known = g_string_new(NULL);

    for (size_t i = 0; words[i] != NULL; i++) {
        if (words[i][0] == 0)
            continue;
        if (g_strv_contains(plan_module_names, words[i]) && strcmp(words[i], "op") != 0)
            g_string_append_printf(known, "%s%s", known->len > 0 ? "," : "", words[i]);
        else
            recipe_note(recipe->settings, "recompute of the module \"%s\" is not modelled",
                        words[i]);
    }
    if (known->len > 0)
        recipe_flag(recipe, "recompute-modules", "%s", known->str);
}

static void
read_recompute(Recipe *recipe)
{
    RecipeSettings *s = recipe->settings;
    const char *kind =
        recipe_string(s, "recompute_granularity",
                      megatron_flag(recipe, "recompute_activations") ? "selective" : "none");
    const char *method = recipe_string(
        s, "recompute_method",
        recipe_string(s, "activations_checkpoint_method",
                      megatron_flag(recipe, "checkpoint_activations") ||
                              megatron_flag(recipe, "deepspeed_activation_checkpointing")
                          ? "uniform"
                          : NULL));
    const int64_t n =
        recipe_int(s, "recompute_num_layers", 0, MODEL_MAX_LAYERS,
                   recipe_int(s, "activations_checkpoint_num_layers", 0, MODEL_MAX_LAYERS, 1));

    /* Before 2022 the method alone said so. */
    if (strcmp(kind, "none") == 0 && method != NULL && !recipe_has(s, "recompute_method"))
        kind = "full";
    if (strcmp(kind, "none") != 0 && strcmp(kind, "full") != 0 && strcmp(kind, "selective") != 0)
        recipe_fail(s, "recompute_granularity", "expected full or selective");
    if (strcmp(kind, "full") == 0 && method != NULL && strcmp(method, "block") == 0 && n == 0)
        kind = "none"; /* the first 0 layers */
    recipe_flag(recipe, "recompute", "%s", kind);
    if (strcmp(kind, "selective") == 0)
        read_modules(recipe);
    if (strcmp(kind, "full") != 0)
        return;
    if (method == NULL)
        recipe_break(recipe, "recompute-method",
                     "full recompute needs --recompute-method uniform or block");
    else if (strcmp(method, "block") == 0)
        recipe_flag(recipe, "recompute-method", "block");
    if (method != NULL && (n > 1 || strcmp(method, "block") == 0))
        recipe_flag(recipe, "recompute-num-layers", INT, n);
}

void
recipe_read_megatron(Recipe *recipe)
{
    RecipeSettings *s = recipe->settings;

    /* Words of 2019 to 2022. */
    if (recipe->framework == PLAN_FRAMEWORK_MEGATRON_CORE &&
        (recipe_has(s, "DDP_impl") || recipe_has(s, "checkpoint_activations") ||
         recipe_has(s, "activations_checkpoint_method") || recipe_has(s, "model_parallel_size")))
        recipe->framework = PLAN_FRAMEWORK_MEGATRON_LM;
    if (megatron_flag(recipe, "deepspeed")) {
        recipe->framework = PLAN_FRAMEWORK_MEGATRON_DEEPSPEED;
        recipe->excused = "stages"; /* its partition_method says where layers go, and we read it */
        if (megatron_flag(recipe, "no_pipeline_parallel"))
            recipe_settings_add(s, "pipeline_model_parallel_size", "1", 0);
    }
    /* --model takes the place of what the recipe says. */
    if (recipe->arch == NULL)
        recipe_read_megatron_model(recipe);
    if (recipe->arch != NULL && recipe->given_layers > 0)
        recipe->arch->n_layers = recipe->given_layers;
    if (recipe->arch == NULL || s->error != NULL)
        return;
    recipe->arch->mtp.n = recipe_int(s, "mtp_num_layers", 0, MODEL_MAX_MTP, recipe->arch->mtp.n);
    recipe->arch->mtp.loss_factor =
        recipe_double(s, "mtp_loss_scaling_factor", recipe->arch->mtp.loss_factor);
    const int64_t seq_len =
        megatron_number(recipe, "seq_length", MODEL_MAX_SEQ_LEN,
                        megatron_number(recipe, "encoder_seq_length", MODEL_MAX_SEQ_LEN,
                                        recipe->arch->max_seq_len));
    recipe_flag(recipe, "framework", "%s", plan_framework(recipe->framework)->name);
    recipe_flag(recipe, "seq-len", INT, seq_len);
    read_split(recipe);
    read_replicas(recipe);
    read_optimizer(recipe);
    read_numbers(recipe);
    read_kernels(recipe);
    read_experts(recipe);
    read_recompute(recipe);
    for (size_t i = 0; i < G_N_ELEMENTS(unmodelled); i++)
        recipe_unmodelled(s, unmodelled[i].key, unmodelled[i].usual, unmodelled[i].what);
}
