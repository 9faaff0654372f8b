#include "schedule/stack.h"

#include <string.h>

#include "base/units.h"

#define MONTH(year, month) ((year)*12 + (month)-1)

/*
 * Megatron-LM, and Megatron Core since 2023: CHANGELOG.md names the release of a feature, PyPI the day
 * of a release of megatron-core; before these, the papers that describe the code; of today's, whose users
 * build the main branch, the month in which they came there.
 */
static const PlanFeatureInfo megatron[PLAN_FEATURE_N] = {
    [PLAN_FEATURE_INTERLEAVED] = {MONTH(2021, 4), "the code of 2104.04473",
                                  "interleaved schedules"},
    [PLAN_FEATURE_SUMS_BESIDE] = {MONTH(2021, 9), "ColumnParallelLinearWithAsyncAllreduce",
                                  "sums over tp beside products of weights' gradients"},
    [PLAN_FEATURE_SEQUENCE_PARALLEL] = {MONTH(2022, 5), "the code of 2205.05198",
                                        "sequence parallelism"},
    [PLAN_FEATURE_SELECTIVE] = {MONTH(2022, 5), "the code of 2205.05198", "selective recompute"},
    [PLAN_FEATURE_ZERO1] = {MONTH(2022, 5), "Megatron-LM 3.0", "a distributed optimizer (ZeRO 1)"},
    [PLAN_FEATURE_FP8] = {MONTH(2023, 5), "Megatron Core 0.1.0", "fp8"},
    [PLAN_FEATURE_CONTEXT_PARALLEL] = {MONTH(2023, 12), "Megatron Core 0.4.0",
                                       "context parallelism"},
    [PLAN_FEATURE_EXPERTS] = {MONTH(2023, 12), "Megatron Core 0.4.0", "experts"},
    [PLAN_FEATURE_UNEVEN] = {MONTH(2024, 10), "Megatron Core 0.9.0", "uneven stages"},
    [PLAN_FEATURE_GRAPHS] = {MONTH(2024, 10), "Megatron Core 0.9.0", "CUDA graphs of layers"},
    [PLAN_FEATURE_EXPERT_FOLDING] = {MONTH(2025, 2), "Megatron Core 0.10.0",
                                     "an --expert-tp other than tp"},
    [PLAN_FEATURE_ZERO3] = {MONTH(2025, 5), "Megatron Core 0.12.0", "FSDP (ZeRO 2 and 3)"},
    [PLAN_FEATURE_MTP] = {MONTH(2025, 5), "Megatron Core 0.12.0", "MTP modules"},
    [PLAN_FEATURE_DEEPEP] = {MONTH(2025, 5), "Megatron Core 0.12.0", "DeepEP"},
    [PLAN_FEATURE_HYBRIDEP] = {MONTH(2025, 11), "Megatron-LM's pull request 2176", "HybridEP"},
    [PLAN_FEATURE_MERGED_PASSES] = {MONTH(2025, 8), "Megatron-LM's merge request 3470",
                                    "exchanges of experts behind another micro-batch"},
    [PLAN_FEATURE_STATE_CP] = {MONTH(2025, 6), "Megatron-LM's merge request 2276",
                               "context parallelism of layers with states"},
    [PLAN_FEATURE_EXPERTS_GRAPH] = {MONTH(2026, 5), "Megatron-LM's pull request 4247",
                                    "graphs of an iteration with experts"},
    [PLAN_FEATURE_DENSE_LAYERS] = {MONTH(2024, 12), "Megatron-LM's merge request 2230",
                                   "dense layers among those with experts"},
    [PLAN_FEATURE_HYBRIDS] = {MONTH(2025, 4), "Megatron-LM's merge request 2601",
                              "Mamba of any width"},
    [PLAN_FEATURE_SOME_POSITIONS] = {MONTH(2025, 4), "Megatron-LM's merge request 3167",
                                     "layers without positions among others"},
    [PLAN_FEATURE_SOME_WINDOWS] = {MONTH(2025, 9), "Megatron-LM's merge request 3855", "windows"},
    [PLAN_FEATURE_SINKS] = {MONTH(2025, 9), "Megatron-LM's merge request 3856", "sinks"},
    [PLAN_FEATURE_EXPERT_BIASES] = {MONTH(2025, 9), "Megatron-LM's merge request 3858",
                                    "experts with biases"},
    [PLAN_FEATURE_LATENT_EXPERTS] = {MONTH(2025, 12), "Megatron-LM's pull request 2296",
                                     "latent experts"},
    [PLAN_FEATURE_GATES] = {MONTH(2026, 1), "Megatron-LM's pull requests 2751 and 2752",
                            "gates of attention and of shared experts"},
    [PLAN_FEATURE_DELTA_NET] = {MONTH(2026, 1), "Megatron-LM's pull request 1989",
                                "gated delta nets"},
    [PLAN_FEATURE_MODULES] = {MONTH(2025, 7), "Megatron Core 0.13.0",
                              "recompute of modules but the core of attention"},
};

/*
 * torchtitan's history and that of torch.distributed.pipelining: pull requests 1033 (the loss was compiled
 * before, too, until PR 755 turned that off in 2024-12) and 1922 of torchtitan, 153383 of PyTorch.
 */
static const PlanFeatureInfo torchtitan[PLAN_FEATURE_N] = {
    [PLAN_FEATURE_COMPILED_LOSS] = {MONTH(2025, 4), "torchtitan PR 1033", "a compiled loss"},
    [PLAN_FEATURE_STAGE_OUTPUTS_FREED] = {MONTH(2025, 5), "PyTorch PR 153383",
                                          "stages that give their results back"},
    [PLAN_FEATURE_LOGITS_FREED] = {MONTH(2025, 10), "torchtitan PR 1922",
                                   "a last stage that gives its logits back"},
};

/* (nullable) by PlanReleases. */
static const PlanFeatureInfo *const tables[PLAN_RELEASES_N] = {
    [PLAN_RELEASES_UNKNOWN] = NULL,
    [PLAN_RELEASES_MEGATRON] = megatron,
    [PLAN_RELEASES_TORCHTITAN] = torchtitan,
};

/* --- months --- */

bool
plan_stack_read(const char *text, int32_t *stack)
{
    static const char form[] = "dddd-dd";
    const size_t n = strlen(text);

    if (n != strlen("YYYY") && n != strlen("YYYY-MM"))
        return false;
    for (size_t i = 0; i < n; i++)
        if (form[i] == 'd' ? !g_ascii_isdigit(text[i]) : text[i] != form[i])
            return false;
    const int year = (int)g_ascii_strtoll(text, NULL, 10);
    const int month = n == strlen("YYYY") ? 12 : (int)g_ascii_strtoll(text + 5, NULL, 10);
    if (year == 0 || month < 1 || month > 12)
        return false;
    *stack = MONTH(year, month);
    return true;
}

void
plan_stack_text(int32_t stack, char text[PLAN_STACK_TEXT])
{
    if (stack <= 0)
        *text = 0;
    else
        g_snprintf(text, PLAN_STACK_TEXT, "%04u-%02u", (unsigned)(stack / 12) % 10000U,
                   (unsigned)(stack % 12) + 1U);
}

int32_t
plan_stack(const PlanConventions *conventions)
{
    const char *usual = plan_framework(conventions->framework)->stack;
    int32_t stack = 0;

    if (conventions->stack > 0)
        return conventions->stack;
    return usual != NULL && plan_stack_read(usual, &stack) ? stack : 0;
}

/* --- features --- */

const PlanFeatureInfo *
plan_stack_lacks(const PlanConventions *conventions, PlanFeature feature)
{
    const PlanFeatureInfo *table = tables[plan_framework(conventions->framework)->releases];

    g_return_val_if_fail(feature < PLAN_FEATURE_N, NULL);
    if (table == NULL || plan_stack(conventions) >= table[feature].since)
        return NULL;
    return &table[feature];
}

bool
plan_stack_sums_beside(const PlanConventions *conventions)
{
    return plan_framework(conventions->framework)->sums_beside &&
           plan_stack_lacks(conventions, PLAN_FEATURE_SUMS_BESIDE) == NULL;
}

bool
plan_stack_compiles_loss(const PlanConventions *conventions)
{
    return plan_framework(conventions->framework)->torch_loss &&
           conventions->kernels == PLAN_KERNELS_FUSED &&
           plan_stack_lacks(conventions, PLAN_FEATURE_COMPILED_LOSS) == NULL;
}
