/*
 * tests/profiles/workload_case.h - plans on the cluster of fixture.h for the tests of workload.h.
 */
#pragma once

#include "profiles/workload/workload.h"

#include "tests/profiles/fixture.h"

/* GPT with f = 4h, as the papers' formulas want it. */
static inline ModelArch
gpt(int64_t n_layers, int64_t vocab)
{
    return (ModelArch){
        .name = (char *)"test",
        .family = MODEL_FAMILY_GPT,
        .n_layers = n_layers,
        .hidden = 1024,
        .n_heads = 16,
        .n_kv_heads = 16,
        .head_dim = 64,
        .ffn_hidden = 4096,
        .vocab = vocab,
        .max_seq_len = 2048,
        .tied_embeddings = true,
        .qkv_bias = true,
    };
}

typedef struct {
    PlanDegrees degrees;
    int64_t micro_batch, n_micro_batches, seq_len, n_slices;
    const char *schedule;
    PlanFramework framework;
    PlanRecompute recompute;
    int32_t zero_stage;
    PlanOffload offload;
    bool offload_parameters;
    int32_t n_ahead; /* prefetch_layers plus one; 0: the framework's */
    bool sequence_parallel;
    Dtype dtype;
    int32_t stack; /* month of the software; 0: that of the framework's row */
} PlanSpec;

/* What is 0 in @spec becomes 1 sequence, 1 micro-batch, 512 tokens, 1 slice, gpipe, fp16. */
static inline Plan *
plan_of(const ModelArch *arch, const PlanSpec *spec)
{
    Plan *plan = plan_new();
    int64_t n_slices = MAX(1, spec->n_slices);

    plan->degrees = spec->degrees;
    plan->micro_batch = MAX(1, spec->micro_batch);
    plan->n_micro_batches = MAX(1, spec->n_micro_batches);
    plan->global_batch = plan->micro_batch * plan->n_micro_batches * spec->degrees.dp;
    plan->seq_len = spec->seq_len > 0 ? spec->seq_len : 512;
    plan->dtype = spec->dtype == DTYPE_FP32 ? DTYPE_FP16 : spec->dtype;
    plan->zero_stage = spec->zero_stage;
    plan->offload = spec->offload;
    plan->offload_parameters = spec->offload_parameters;
    plan->prefetch_layers = spec->n_ahead > 0 ? spec->n_ahead - 1 : PLAN_PREFETCH_AUTO;
    plan->sequence_parallel = spec->sequence_parallel;
    plan->conventions = plan_conventions(spec->framework);
    plan->conventions.stack = spec->stack;
    g_free(plan->schedule);
    plan->schedule = g_strdup(spec->schedule != NULL ? spec->schedule : "gpipe");
    plan_set_even_stages(plan, model_n_stacked(arch), arch->vocab > 0, SCHEDULE_PLACEMENT_LOOP,
                         spec->recompute);
    for (int64_t i = 0; i < n_slices; i++) {
        int64_t tokens = plan->seq_len / n_slices;

        g_array_append_val(plan->slices, tokens);
    }
    return plan;
}

static inline Workload *
workload_of(const ModelArch *arch, const Profile *profile, const PlanSpec *spec)
{
    g_autoptr(Plan) plan = plan_of(arch, spec);
    g_autoptr(GError) error = NULL;
    Workload *workload = workload_new(arch, profile, plan, 0, &error);

    g_assert_no_error(error);
    return workload;
}

static inline int64_t
owned(const Workload *workload, int32_t rank, TraceMemoryOwner owner)
{
    return workload->ranks[rank].static_bytes[owner];
}
