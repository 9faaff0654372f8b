#include "schedule/framework.h"

#include <string.h>

#include "schedule/schedule.h"

const char *const plan_attention_names[PLAN_ATTENTION_N + 1] = {"unfused", "flash", "torch",
                                                                "flash1", NULL};
const char *const plan_kernels_names[PLAN_KERNELS_N + 1] = {"fused", "norms", "eager", NULL};
const char *const plan_cp_comm_names[PLAN_CP_N + 1] = {"p2p", "a2a", NULL};
const char *const plan_loss_names[PLAN_LOSS_N + 1] = {"plain", "compiled", "fused", NULL};

/* --- the table --- */

/* Kernels of a GPT layer, forward and backward, with unfused attention and dropout: the host time
 * of a framework is known for such a layer and shared among them (cost-model.md 2.5). */
#define GPT_LAYER_KERNELS 43.0

static const PlanFrameworkFacts frameworks[PLAN_FRAMEWORK_N] = {
    /* What our executor does: sends wait for nobody; gradients are reduced after the last op
     * (executor/run/optimize.c).  Of equal copies on tensor ranks each sends its share and the
     * receivers gather [2104.04473 section 4.1]: 8 copies through one adapter are nobody's plan.
     * It has no Python; what it gathers and keeps is in executor/model/. */
    [PLAN_FRAMEWORK_DEGAS] =
        {
            .name = "degas",
            .preset =
                {
                    .attention = PLAN_ATTENTION_FLASH,
                    .grad_dtype = DTYPE_FP32,
                    .overlap_pp = true,
                    .scatter_gather_p2p = true,
                },
            .accumulation = PLAN_ACCUMULATION_READS_SUM,
            .gathers_kv = true,
            .joins_kv = true,
            .loss_in_place = true,
            .row_blocks = true,
            .pairs_in_turn = true,
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
            .preset =
                {
                    .attention = PLAN_ATTENTION_UNFUSED,
                    .grad_dtype = DTYPE_FP32,
                    .dropout = true,
                    .scatter_gather_p2p = true,
                    .pads_vocab = true,
                },
            .host_kernel_s = 2.7e-3 / GPT_LAYER_KERNELS,
            .softmax_keys = 2048,
            .accumulation = PLAN_ACCUMULATION_MAIN,
            .fused_accumulation = PLAN_FUSED_ACCUMULATION_SINCE_2022,
            .overlaps_pp_interleaved = true,
            .bucket_elements = 40e6,
            .bucket_elements_per_replica = 1e6,
        },
    /* Megatron-LM at d98e8a64 (2026): flash or cuDNN attention, fp32 main_grads, and its published
     * runs set --overlap-grad-reduce; messages are [seq/C/(T if sequence-parallel), mbs, hidden]
     * (core/pipeline_parallel/schedules.py), so nothing is left to scatter.  Its softmax kernel
     * takes rows of up to 4096 keys [fused_softmax.py]; its FSDP gathers one flat layer ahead. */
    [PLAN_FRAMEWORK_MEGATRON_CORE] =
        {
            .name = "megatron-core",
            .preset =
                {
                    .attention = PLAN_ATTENTION_FLASH,
                    .grad_dtype = DTYPE_FP32,
                    .overlap_dp = true,
                    .pads_vocab = true,
                },
            .host_kernel_s = 0.8e-3 / GPT_LAYER_KERNELS,
            .softmax_keys = 4096,
            .accumulation = PLAN_ACCUMULATION_MAIN,
            .fused_accumulation = PLAN_FUSED_ACCUMULATION_ALWAYS,
            .gradient_placeholders = true,
            .separate_step_kernels = true,
            .overlaps_pp_interleaved = true,
            .bucket_elements = 40e6,
            .bucket_elements_per_replica = 1e6,
            .gathers_ahead = true,
        },
    /* Megatron's model under DeepSpeed's PipelineEngine: fp16 gradients of its fp16 optimizer,
     * ReduceGrads after all backwards (runtime/pipe/schedule.py TrainSchedule), messages
     * partitioned over tensor ranks ("pipeline": {"pipe_partitioned": true}, the default).  ZeRO 3
     * of 2021 (partition_parameters.py) gathers matrix by matrix and keeps what is below its
     * persistence threshold; reduce_bucket_size is 5e8 elements. */
    [PLAN_FRAMEWORK_MEGATRON_DEEPSPEED] =
        {
            .name = "megatron-deepspeed",
            .preset =
                {
                    .attention = PLAN_ATTENTION_UNFUSED,
                    .grad_dtype = DTYPE_FP16,
                    .dropout = true,
                    .scatter_gather_p2p = true,
                    .pads_vocab = true,
                },
            .host_kernel_s = 2.7e-3 / GPT_LAYER_KERNELS,
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
            .preset =
                {
                    .attention = PLAN_ATTENTION_FLASH,
                    .grad_dtype = DTYPE_BF16,
                    .kernels = PLAN_KERNELS_EAGER,
                    .scatter_gather_p2p = true,
                },
            .host_kernel_s = 1.6e-3 / GPT_LAYER_KERNELS,
            .softmax_keys = 2048,
            .bucket_elements = 5e8,
            .prefetch_elements = 50000000,
            .live_elements = 1000000000,
            .gathers_matrices = true,
        },
    /* PyTorch FSDP2 as torchtitan runs it: mixed_precision_reduce float32, reduce-scatter under the
     * backward, pipeline messages on streams of their own (batch_isend_irecv); not compiled.  It
     * gathers the next block behind the one that computes, forward (its gathers are issued from
     * another stream, limit_all_gathers keeps two) and backward (BACKWARD_PRE). */
    [PLAN_FRAMEWORK_FSDP] =
        {
            .name = "fsdp",
            .preset =
                {
                    .attention = PLAN_ATTENTION_FLASH,
                    .grad_dtype = DTYPE_FP32,
                    .kernels = PLAN_KERNELS_EAGER,
                    .overlap_dp = true,
                    .overlap_pp = true,
                },
            .host_kernel_s = 0.8e-3 / GPT_LAYER_KERNELS,
            .fp32_parameters = true,
        },
    /* TeraPipe at 1a17aa2 (2021): materialised scores, pure fp16, NCCL calls in the compute stream,
     * one tensor rank sends and the receiving group broadcasts; its runs have no dropout.
     * Gradients are reduced by PyTorch's DDP, whose buckets have 25 MiB. */
    [PLAN_FRAMEWORK_TERAPIPE] =
        {
            .name = "terapipe",
            .preset =
                {
                    .attention = PLAN_ATTENTION_UNFUSED,
                    .grad_dtype = DTYPE_FP16,
                    .broadcast_p2p = true,
                },
            .host_kernel_s = 2.7e-3 / GPT_LAYER_KERNELS,
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
    static const char *names[PLAN_FRAMEWORK_N + 1];
    static gsize is_filled;

    if (g_once_init_enter(&is_filled)) {
        for (int i = 0; i < PLAN_FRAMEWORK_N; i++)
            names[i] = frameworks[i].name;
        g_once_init_leave(&is_filled, 1);
    }
    return names;
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

bool
plan_framework_overlaps_pp(PlanFramework framework, const char *schedule, int64_t vpp)
{
    const PlanFrameworkFacts *facts = plan_framework(framework);
    const ScheduleFamily *family = schedule_family_find(schedule, NULL);

    if (!facts->overlaps_pp_interleaved)
        return facts->preset.overlap_pp;
    return vpp > 1 && family != NULL && family->in_megatron;
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
