#include "schedule/framework.h"

#include "base/text.h"
#include "schedule/plan.h"

const char *const plan_attention_names[PLAN_ATTENTION_N + 1] = {
    "unfused", "flash", "torch", "flash1", "flash2", "triton", NULL};
const char *const plan_kernels_names[PLAN_KERNELS_N + 1] = {"fused", "norms", "eager", NULL};
const char *const plan_cp_comm_names[PLAN_CP_N + 1] = {"p2p", "a2a", NULL};
const char *const plan_dispatcher_names[PLAN_DISPATCHER_N + 1] = {"alltoall", "deepep", "hybridep",
                                                                  NULL};
const char *const plan_graphs_names[PLAN_GRAPHS_N + 1] = {"none",  "router",    "attention",
                                                          "layer", "iteration", NULL};
const char *const plan_module_names[PLAN_MODULE_N + 1] = {
    "core_attn", "layernorm", "mlp", "moe", "moe_act", "mla_up_proj", "shared_experts", "op", NULL};
const char *const plan_recompute_method_names[PLAN_RECOMPUTE_METHOD_N + 1] = {"uniform", "block",
                                                                              NULL};
const char *const plan_loss_names[PLAN_LOSS_N + 1] = {"plain", "compiled", "fused", NULL};

const char *const plan_quantise_names[PLAN_QUANTISE_N + 1] = {"usual", "tensor", "delayed",
                                                              "block", "row",    NULL};

/* --- what quantising moves --- */

/*
 *   tensor   the largest number (reads 2), the cast (reads 2, writes 1), the transposed copy (reads
 *            and writes 1)
 *   delayed  a kernel that casts and transposes (reads 2, writes 1 and 1), and notes the largest
 *   block    one kernel casts along rows and columns: reads 2, writes 1 + 1 and a scale for each 32
 *   row      each orientation has largest numbers and a cast of its own: 2 + 2 + 1, that of columns
 *            at 1.4 of the 2.2 TB/s that others reach  [pytorch/pytorch 133242]: 5 + 5 2.2 / 1.4;
 *            products of backward are scaled by a kernel of its own  [pytorch/ao 1325]: 2 + 2
 */
static const PlanQuantiseBytes quantise_bytes[PLAN_QUANTISE_N] = {
    [PLAN_QUANTISE_TENSOR] = {5.0, 2.0},
    [PLAN_QUANTISE_DELAYED] = {3.0, 1.0},
    [PLAN_QUANTISE_BLOCK] = {4.0625, 0.0},
    [PLAN_QUANTISE_ROW] = {12.9, 0.0, 4.0},
};
/* nvfp4, whose weight gradients read operands that are rotated: the largest numbers of rows and of
 * rotated columns (reads 2), then one kernel casts rows and one rotates and casts columns (each
 * reads 2, writes 1/2 and a scale for each 16)  [Transformer Engine: NVFP4Quantizer]. */
static const PlanQuantiseBytes nvfp4_bytes = {7.125, 0.0};

PlanQuantiseBytes
plan_quantise_bytes(PlanQuantise quantise, Dtype dtype)
{
    g_return_val_if_fail(quantise < PLAN_QUANTISE_N, (PlanQuantiseBytes){0});

    return dtype == DTYPE_NVFP4 ? nvfp4_bytes
           : dtype == DTYPE_FP8 ? quantise_bytes[quantise]
                                : (PlanQuantiseBytes){0};
}

/* --- rules --- */

/* Bits of the sets in PlanFrameworkRules; the recompute kinds are PlanRecompute's of plan.h. */
#define BIT(i) (UINT32_C(1) << (i))
#define NONE_OR_FULL (BIT(PLAN_RECOMPUTE_NONE) | BIT(PLAN_RECOMPUTE_FULL))
#define ANY_RECOMPUTE (NONE_OR_FULL | BIT(PLAN_RECOMPUTE_SELECTIVE))
#define ANY_ZERO (BIT(0) | BIT(1) | BIT(2) | BIT(3))
#define ADAMW BIT(PLAN_OPTIMIZER_ADAMW)
#define HALF_OR_FLOAT (BIT(DTYPE_BF16) | BIT(DTYPE_FP16) | BIT(DTYPE_FP32))

static const char *const schedules_of_megatron[] = {"1f1b", "interleaved", NULL};
static const char *const schedules_of_deepspeed[] = {"1f1b", NULL};
static const char *const schedules_of_terapipe[] = {"terapipe", "gpipe", NULL};
/* Those with a torch_class. */
static const char *const schedules_of_torch[] = {
    "1f1b",           "interleaved", "gpipe",  "looped-bfs", "naive",     "zb-h1",   "zb-h2",
    "interleaved-zb", "zb-v",        "v-half", "v-min",      "dualpipev", "zb-auto", NULL};

/* Megatron-LM at d98e8a64 (2026-08): megatron/training/arguments.py,
 * core/model_parallel_config.py, pipeline_parallel/schedules.py, transformer/
 * pipeline_parallel_layer_layout.py (validate_layer_layout()).  Uneven stages are a layout.  The
 * mesh of Megatron-FSDP, which is ZeRO 2 and 3, has no pipeline (_init_dist_index); offloading is
 * the distributed optimizer's, which is ZeRO 1.  What overlap_moe_expert_parallel_comm asks for is
 * asserted in core/transformer/transformer_config.py.  Transformer Engine's ring of context parallelism has
 * neither windows nor sinks (attention/dot_product_attention/utils.py, get_attention_backend()). */
#define RULES_OF_MEGATRON(has, lora)                                                               \
    {                                                                                              \
        .models = (has), .schedules = schedules_of_megatron, .described_by_flags = true,           \
        .chunks = true, .uneven = true, .empty_stages = true, .mtp = true, .adapters = (lora),     \
        .cp = true, .ring_is_plain = true, .ep = true, .tp_with_pp = true, .pp_before_dp = true,   \
        .merges_chunks = true, .groups = PLAN_GROUPS_AT_LEAST_PP,                                  \
        .kv_heads = PLAN_KV_HEADS_COPIED, .recomputes = ANY_RECOMPUTE,                             \
        .optimizers = ADAMW | BIT(PLAN_OPTIMIZER_MUON), .modules = BIT(PLAN_MODULE_OPS) - 1,       \
        .dtypes = HALF_OR_FLOAT | BIT(DTYPE_FP8) | BIT(DTYPE_NVFP4),                               \
        .grad_dtypes = BIT(DTYPE_FP32) | BIT(DTYPE_BF16), .zero = ANY_ZERO,                        \
        .zero_with_pp = BIT(0) | BIT(1), .zero_with_tp = ANY_ZERO, .zero_with_cp = ANY_ZERO,       \
        .zero_on_cpu = BIT(1),                                                                     \
    }
static const PlanFrameworkRules rules_of_megatron = RULES_OF_MEGATRON(NULL, false);

/* Megatron-Bridge at 067f987 (2026-08): the classes of Hugging Face that its AutoBridge makes models of
 * (models: register_bridge), and its recipes of pretraining for Hoppers (recipes: h100), whatever layers they
 * have: Megatron-Core's provider takes them from code, not from flags.  Adapters are its own (peft/).  Gemma 3's class has the vision encoder
 * besides, MiniMax-M2 and Mistral Large have no recipe.  DeepSeek-V3.2, Llama 4 and OLMo 3 have no bridge. */
#define RECIPE(stem, suffix) stem "_pretrain_" suffix "_h100_bf16_config"
static const PlanFrameworkModel models_of_megatron_bridge[] = {
    {"deepseek-v2-lite", "deepseek-ai/DeepSeek-V2-Lite", RECIPE("deepseek_v2_lite", "8gpu"), true},
    {"deepseek-v2", "deepseek-ai/DeepSeek-V2", RECIPE("deepseek_v2", "128gpu"), true},
    {"deepseek-v3", "deepseek-ai/DeepSeek-V3", RECIPE("deepseek_v3", "1024gpu"), true},
    {"gemma3-12b", "google/gemma-3-12b-pt", NULL, false},
    {"gemma3-27b", "google/gemma-3-27b-pt", NULL, false},
    {"glm-4.5-air", "zai-org/GLM-4.5-Air", RECIPE("glm45_air_106b", "32gpu"), false},
    {"glm-4.5", "zai-org/GLM-4.5", RECIPE("glm45_355b", "128gpu"), false},
    {"gpt-oss-120b", "openai/gpt-oss-120b", RECIPE("gpt_oss_120b", "64gpu"), false},
    {"gpt-oss-20b", "openai/gpt-oss-20b", RECIPE("gpt_oss_20b", "16gpu"), false},
    {"kimi-k2", "moonshotai/Kimi-K2-Instruct", RECIPE("kimi_k2", "512gpu"), true},
    {"llama2-7b", "meta-llama/Llama-2-7b-hf", RECIPE("llama2_7b", "2gpu"), true},
    {"llama3-405b", "meta-llama/Meta-Llama-3.1-405B", RECIPE("llama31_405b", "256gpu"), true},
    {"llama3-70b", "meta-llama/Meta-Llama-3-70B", RECIPE("llama3_70b", "32gpu"), true},
    {"llama3-8b", "meta-llama/Meta-Llama-3-8B", RECIPE("llama3_8b", "2gpu"), false},
    {"minimax-m2", "MiniMaxAI/MiniMax-M2", NULL, false},
    {"mistral-large", "mistralai/Mistral-Large-Instruct-2407", NULL, false},
    {"nemotron-h-56b", "nvidia/Nemotron-H-56B-Base-8K", RECIPE("nemotronh_56b", "8gpu"), true},
    {"nemotron3-nano", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
     RECIPE("nemotron_3_nano", "8gpu"), true},
    {"nemotron3-super", "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16",
     RECIPE("nemotron_3_super", "16gpu"), false},
    {"nemotron3-ultra", "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16",
     RECIPE("nemotron_3_ultra", "24gpu"), false},
    {"qwen2.5-72b", "Qwen/Qwen2.5-72B", RECIPE("qwen25_72b", "32gpu"), false},
    {"qwen3-235b-a22b", "Qwen/Qwen3-235B-A22B", RECIPE("qwen3_235b_a22b", "256gpu"), false},
    {"qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B", RECIPE("qwen3_30b_a3b", "8gpu"), false},
    {"qwen3-32b", "Qwen/Qwen3-32B", RECIPE("qwen3_32b", "16gpu"), false},
    {"qwen3-next-80b", "Qwen/Qwen3-Next-80B-A3B-Instruct", RECIPE("qwen3_next_80b_a3b", "32gpu"),
     false},
    {NULL, NULL, NULL, false},
};
static const PlanFrameworkRules rules_of_megatron_bridge =
    RULES_OF_MEGATRON(models_of_megatron_bridge, true);

/* DeepSpeed at edaa722: runtime/config.py, runtime/zero/config.py, runtime/pipe/module.py.
 * PipelineModule asserts ZeRO below 2, and tensor_parallel.autotp_size is not for it; Ulysses'
 * all-to-all and experts are arguments of the model's code.  With Megatron's layers tp is theirs.
 * Which stages get the layers that do not divide, its partition_method says, not we.  Adapters are
 * PEFT's, which changes the model before the engine has it. */
#define RULES_OF_DEEPSPEED(with_pp)                                                                \
    {                                                                                              \
        .schedules = schedules_of_deepspeed, .adapters = !(with_pp), .tp_with_pp = (with_pp),      \
        .offload_parameters = true, .sequence_parallel = PLAN_SEQUENCE_PARALLEL_NEVER,             \
        .recomputes = NONE_OR_FULL, .dtypes = HALF_OR_FLOAT, .grad_dtypes = HALF_OR_FLOAT,         \
        .zero = ANY_ZERO, .zero_with_pp = BIT(0) | BIT(1),                                         \
        .zero_with_tp = BIT(0) | BIT(1) | BIT(2), .zero_on_cpu = BIT(1) | BIT(2) | BIT(3),         \
        .zero_on_nvme = BIT(3),                                                                    \
    }
static const PlanFrameworkRules rules_of_deepspeed = RULES_OF_DEEPSPEED(false);
static const PlanFrameworkRules rules_of_megatron_deepspeed = RULES_OF_DEEPSPEED(true);

/* torchtitan at v0.2.2 and 0.3.0: distributed/parallel_dims.py, pipeline_parallel.py.  Replicas that are not
 * sharded (DDP) are alone: not with a pipeline or context parallelism; FSDP shards gradients with
 * the optimizer's state, over dp and cp.  Its selective policies save attention.  Its asynchronous
 * tensor parallelism is a pass of torch.compile, and a compiled layer is one node of autograd, whose
 * whole backward I and W would both run; torch 2.15's classes of zero-bubble schedules refuse
 * compiled stages (pipelining/schedules.py: _check_torch_compile_compatibility). */
#define RULES_OF_TORCH(has, steps, lora)                                                           \
    {                                                                                              \
        .schedules = schedules_of_torch, .models = (has), .optimizers = (steps),                   \
        .adapters = (lora), .chunks = true, .uneven = true, .cp = true, .ep = true,                \
        .tp_with_pp = true, .tokens_by_tp_and_cp = true, .offload_parameters = true,               \
        .compiles_overlap_tp = true, .groups = PLAN_GROUPS_ROUNDS,                                 \
        .kv_heads = PLAN_KV_HEADS_DIVIDED, .sequence_parallel = PLAN_SEQUENCE_PARALLEL_ALWAYS,     \
        .recomputes = NONE_OR_FULL, .dtypes = BIT(DTYPE_BF16) | BIT(DTYPE_FP32),                   \
        .grad_dtypes = BIT(DTYPE_FP32), .zero = BIT(0) | BIT(2) | BIT(3),                          \
        .zero_with_pp = BIT(2) | BIT(3), .zero_with_tp = BIT(0) | BIT(2) | BIT(3),                 \
        .zero_with_cp = BIT(2) | BIT(3), .zero_on_cpu = BIT(2) | BIT(3),                           \
    }
static const PlanFrameworkModel models_of_torchtitan[] = {
    {"llama3-8b", "llama3", "8B", false},          {"llama3-70b", "llama3", "70B", false},
    {"llama3-405b", "llama3", "405B", false},      {"qwen3-32b", "qwen3", "32B", false},
    {"deepseek-v3", "deepseek_v3", "671B", false}, {NULL, NULL, NULL, false},
};
static const PlanFrameworkRules rules_of_torchtitan =
    RULES_OF_TORCH(models_of_torchtitan, ADAMW, false);
/* FSDP2 in the user's own script, with PEFT's adapters. */
static const PlanFrameworkRules rules_of_fsdp = RULES_OF_TORCH(NULL, 0, true);

/* TeraPipe at 1a17aa2: terapipe.py, test_transformer_terapipe.py.  All slices forward, then all
 * backward; replicas are DDP's, activations are checkpointed by --checkpoint-gradients.  It gives
 * the layers that do not divide to the first stages, our plans to the last: stages are equal. */
static const PlanFrameworkRules rules_of_terapipe = {
    .schedules = schedules_of_terapipe,
    .slices = true,
    .tp_with_pp = true,
    .sequence_parallel = PLAN_SEQUENCE_PARALLEL_NEVER,
    .recomputes = NONE_OR_FULL,
    .optimizers = ADAMW,
    .dtypes = BIT(DTYPE_FP16) | BIT(DTYPE_FP32),
    .grad_dtypes = BIT(DTYPE_FP16) | BIT(DTYPE_FP32),
    .zero = BIT(0),
    .zero_with_pp = BIT(0),
    .zero_with_tp = BIT(0),
};

/* --- the table --- */

/* The host time of a framework is known for a GPT layer with unfused attention and dropout, @layer_s in
 * both passes, of which forward, whose modules are Python, has the share @forward; it is shared among
 * the 14 kernels of the forward and the 29 of the backward (cost-model.md 2.5). */
#define HOST_OF_LAYER(layer_s, forward)                                                            \
    .host_kernel_s = (forward) * (layer_s) / 14.0,                                                 \
    .host_backward_kernel_s = (1.0 - (forward)) * (layer_s) / 29.0

/* Megatron-LM at d98e8a64 (2026): flash or cuDNN attention, fp32 main_grads, and its published
 * runs set --overlap-grad-reduce; messages are [seq/C/(T if sequence-parallel), mbs, hidden]
 * (core/pipeline_parallel/schedules.py), so nothing is left to scatter.  Its softmax kernel takes
 * rows of up to 4096 keys [fused_softmax.py]; its FSDP gathers one flat layer ahead. */
#define FACTS_OF_MEGATRON_CORE                                                                     \
    .stack = "2026-08", .releases = PLAN_RELEASES_MEGATRON,                                        \
    .preset.attention = PLAN_ATTENTION_FLASH, .preset.grad_dtype = DTYPE_FP32,                     \
    .preset.overlap_dp = true, .preset.pads_vocab = true, HOST_OF_LAYER(5.3e-3, 0.40),             \
    .host_expert_s = 40e-6, .softmax_keys = 4096, .accumulation = PLAN_ACCUMULATION_MAIN,          \
    .fused_accumulation = PLAN_FUSED_ACCUMULATION_ALWAYS, .merges_passes = true,                   \
    .captures_graphs = true, .sorts_received = true, .instances = BIT(1),                          \
    .defers_gradients = true, .adds_expert_bias = true, .local_if_unfused = true,                  \
    .gradient_placeholders = true, .separate_step_kernels = true, .overlaps_pp_interleaved = true, \
    .shards_whole_matrices = true, .bucket_elements = 40e6, .bucket_elements_per_replica = 1e6,    \
    .gathers_ahead = true

/* PyTorch FSDP2 as torchtitan runs it: mixed_precision_reduce float32, reduce-scatter under the
 * backward, pipeline messages on streams of their own (batch_isend_irecv); not compiled.  It gathers
 * the next block behind the one that computes, forward (its gathers are issued from another stream,
 * limit_all_gathers keeps two) and backward (BACKWARD_PRE).  Attention is
 * scaled_dot_product_attention, whose kernel is FlashAttention 2.  With tp the loss is that of
 * torch.distributed.tensor.parallel.loss_parallel: logits stay split by vocabulary. */
#define FACTS_OF_FSDP                                                                              \
    .stack = "2025", .preset.attention = PLAN_ATTENTION_FLASH2, .preset.grad_dtype = DTYPE_FP32,   \
    .preset.kernels = PLAN_KERNELS_EAGER, .preset.overlap_dp = true, .preset.overlap_pp = true,    \
    HOST_OF_LAYER(0.8e-3, 0.40), .fp32_parameters = true, .separate_matrices = true,               \
    .sums_apart = true, .modules = BIT(PLAN_MODULE_OPS), .overlaps_tp_forward = true,              \
    .splits_eager_loss = true, .quantised_gathers = true, .torch_loss = true,                      \
    .collects_outputs = true, .releases = PLAN_RELEASES_TORCHTITAN,                                \
    .shards_singly_since = 2024 * 12 + 4 - 1, .torch_ring = true, .instances = BIT(2) | BIT(3)

static const PlanFrameworkFacts frameworks[PLAN_FRAMEWORK_N] = {
    /* What our executor does: sends wait for nobody; gradients are reduced after the last op
     * (executor/run/optimize.c).  Of equal copies on tensor ranks each sends its share and the
     * receivers gather [2104.04473 section 4.1]: 8 copies through one adapter are nobody's plan.
     * It has no Python; what it gathers and keeps is in executor/model/. */
    [PLAN_FRAMEWORK_DEGAS] =
        {
            .name = "degas",
            .preset.attention = PLAN_ATTENTION_FLASH,
            .preset.grad_dtype = DTYPE_FP32,
            .preset.overlap_pp = true,
            .preset.scatter_gather_p2p = true,
            .accumulation = PLAN_ACCUMULATION_READS_SUM,
            .gathers_kv = true,
            .pads_slow_vocab = true,
            .joins_kv = true,
            .loss_in_place = true,
            .row_blocks = true,
            .pairs_in_turn = true,
            .merges_passes = true,
            .merges_pairs = true,
            .any_rank_order = true,
            .gathers_ahead = true,
            .recompute_shares_gather = true,
            .embedding_gathers_once = true,
            .bounds_gathers = true,
            .counts_gathered = true,
        },
    /* The code of 2104.04473 (2020-2022): materialised attention scores (2205.05198 eq. 1 counts
     * them), fp32 main gradients (--accumulate-allreduce-grads-in-fp32), dropout 0.1,
     * scatter/gather of messages (2104.04473 section 4.1), data-parallel reduction after the last
     * backward.  Its softmax kernel takes rows of up to 2048 keys [fused_softmax.py,
     * is_kernel_available()]; buckets are its --ddp-bucket-size. */
    [PLAN_FRAMEWORK_MEGATRON_LM] =
        {
            .name = "megatron-lm",
            .stack = "2022",
            .releases = PLAN_RELEASES_MEGATRON,
            .rules = &rules_of_megatron,
            .exporter = "megatron",
            .preset.attention = PLAN_ATTENTION_UNFUSED,
            .preset.grad_dtype = DTYPE_FP32,
            .preset.dropout = true,
            .preset.scatter_gather_p2p = true,
            .preset.pads_vocab = true,
            HOST_OF_LAYER(2.7e-3, 0.55),
            .sums_apart = true,
            .softmax_keys = 2048,
            .accumulation = PLAN_ACCUMULATION_MAIN,
            .fused_accumulation = PLAN_FUSED_ACCUMULATION_SINCE_2022,
            .overlaps_pp_interleaved = true,
            .sums_beside = true,
            .bucket_elements = 40e6,
            .bucket_elements_per_replica = 1e6,
        },
    [PLAN_FRAMEWORK_MEGATRON_CORE] =
        {
            .name = "megatron-core",
            .rules = &rules_of_megatron,
            .exporter = "megatron",
            FACTS_OF_MEGATRON_CORE,
        },
    /* The same layers as the recipes of Megatron-Bridge run them (recipes/common.py:
     * overlap_grad_reduce, overlap_param_gather, grad_reduce_in_fp32): their loss is Transformer
     * Engine's kernel (cross_entropy_fusion_impl "te"). */
    [PLAN_FRAMEWORK_MEGATRON_BRIDGE] =
        {
            .name = "megatron-bridge",
            .rules = &rules_of_megatron_bridge,
            .exporter = "megatron-bridge",
            .preset.loss = PLAN_LOSS_FUSED,
            FACTS_OF_MEGATRON_CORE,
        },
    /* Megatron's model under DeepSpeed's PipelineEngine: fp16 gradients of its fp16 optimizer,
     * ReduceGrads after all backwards (runtime/pipe/schedule.py TrainSchedule), messages
     * partitioned over tensor ranks ("pipeline": {"pipe_partitioned": true}, the default).  ZeRO 3
     * of 2021 (partition_parameters.py) gathers matrix by matrix and keeps what is below its
     * persistence threshold; reduce_bucket_size is 5e8 elements. */
    [PLAN_FRAMEWORK_MEGATRON_DEEPSPEED] =
        {
            .name = "megatron-deepspeed",
            .stack = "2021",
            .rules = &rules_of_megatron_deepspeed,
            .exporter = "deepspeed",
            .splits_layers = true,
            .preset.attention = PLAN_ATTENTION_UNFUSED,
            .preset.grad_dtype = DTYPE_FP16,
            .preset.dropout = true,
            .preset.scatter_gather_p2p = true,
            .preset.pads_vocab = true,
            HOST_OF_LAYER(2.7e-3, 0.55),
            .sums_apart = true,
            .softmax_keys = 2048,
            .bucket_elements = 5e8,
            .synchronous_gathers = true,
            .gathers_matrices = true,
        },
    /* The same engine with today's models, written in PyTorch's operations (transformers' modules);
     * "overlap_comm" defaults to true for ZeRO 3 only.  "stage3_prefetch_bucket_size" elements are
     * fetched ahead, a parameter at least, in the order of modules of the first iteration
     * (partitioned_param_coordinator.py); "stage3_max_live_parameters" bounds what is gathered. */
    [PLAN_FRAMEWORK_DEEPSPEED] =
        {
            .name = "deepspeed",
            .stack = "2026",
            .rules = &rules_of_deepspeed,
            .exporter = "deepspeed",
            .grads_as_model = true,
            .preset.attention = PLAN_ATTENTION_FLASH,
            .preset.grad_dtype = DTYPE_BF16,
            .preset.kernels = PLAN_KERNELS_EAGER,
            .preset.scatter_gather_p2p = true,
            HOST_OF_LAYER(1.6e-3, 0.40),
            .sums_apart = true,
            .softmax_keys = 2048,
            .bucket_elements = 5e8,
            .separate_matrices = true,
            .prefetch_elements = 50000000,
            .live_elements = 1000000000,
            .gathers_matrices = true,
        },
    [PLAN_FRAMEWORK_TORCHTITAN] =
        {
            .name = "torchtitan",
            .rules = &rules_of_torchtitan,
            .exporter = "torchtitan",
            .complex_rotary = true,
            FACTS_OF_FSDP,
        },
    /* Its plans are exported to torchtitan, where that has the model. */
    [PLAN_FRAMEWORK_FSDP] =
        {
            .name = "fsdp",
            .rules = &rules_of_fsdp,
            FACTS_OF_FSDP,
        },
    /* TeraPipe at 1a17aa2 (2021): materialised scores, pure fp16, NCCL calls in the compute stream,
     * one tensor rank sends and the receiving group broadcasts; its runs have no dropout.  Its
     * attention is transformer_models.py's, PyTorch's operations one by one behind a cache of keys and values.
     * Gradients are reduced by PyTorch's DDP, whose buckets have 25 MiB. */
    [PLAN_FRAMEWORK_TERAPIPE] =
        {
            .name = "terapipe",
            .stack = "2021",
            .rules = &rules_of_terapipe,
            .preset.attention = PLAN_ATTENTION_TORCH,
            .preset.grad_dtype = DTYPE_FP16,
            .preset.broadcast_p2p = true,
            HOST_OF_LAYER(1.5e-3, 0.55),
            .sums_apart = true,
            .half_softmax = true,
            .caches_kv = true,
            .bucket_bytes = 25.0 * 1024 * 1024,
        },
};

const PlanFrameworkFacts *
plan_framework(PlanFramework framework)
{
    g_return_val_if_fail(framework < PLAN_FRAMEWORK_N, &frameworks[PLAN_FRAMEWORK_DEGAS]);
    return &frameworks[framework];
}

const char *const *
plan_framework_names(void)
{
    static const char *const *names;

    return text_names(&names, &frameworks[0].name, sizeof frameworks[0], PLAN_FRAMEWORK_N);
}

PlanConventions
plan_conventions(PlanFramework framework)
{
    PlanConventions result = plan_framework(framework)->preset;

    result.framework = framework;
    result.optimizer_step = true;
    return result;
}

/* --- what depends on the plan too --- */

uint32_t
plan_framework_modules(const PlanConventions *conventions)
{
    const uint32_t usual = plan_framework(conventions->framework)->modules;

    return conventions->recompute_modules != 0 ? conventions->recompute_modules
           : usual != 0                        ? usual
                                               : BIT(PLAN_MODULE_CORE_ATTENTION);
}

char *
plan_modules_text(uint32_t set)
{
    GString *text = g_string_new(NULL);

    for (int i = 0; i < PLAN_MODULE_N; i++)
        if (set >> i & 1)
            g_string_append_printf(text, "%s%s", text->len > 0 ? "," : "", plan_module_names[i]);
    return g_string_free(text, false);
}

bool
plan_framework_overlaps_pp(PlanFramework framework, const char *schedule, int64_t vpp)
{
    const PlanFrameworkFacts *facts = plan_framework(framework);

    if (!facts->overlaps_pp_interleaved)
        return facts->preset.overlap_pp;
    return vpp > 1 && g_strv_contains(facts->rules->schedules, schedule);
}

bool
plan_framework_pads_vocab(PlanFramework framework, bool aligns)
{
    const PlanFrameworkFacts *facts = plan_framework(framework);

    return facts->preset.pads_vocab || (facts->pads_slow_vocab && aligns);
}

bool
plan_framework_fuses_accumulation(const PlanConventions *conventions, bool sequence_parallel,
                                  bool selective)
{
    switch (plan_framework(conventions->framework)->fused_accumulation) {
    case PLAN_FUSED_ACCUMULATION_NEVER:
        break;
    case PLAN_FUSED_ACCUMULATION_SINCE_2022:
        return sequence_parallel || conventions->overlap_tp || selective;
    case PLAN_FUSED_ACCUMULATION_ALWAYS:
        return true;
    }
    return false;
}

bool
plan_framework_gathers_ahead(const PlanConventions *conventions)
{
    return conventions->overlap_dp && plan_framework(conventions->framework)->gathers_ahead;
}
