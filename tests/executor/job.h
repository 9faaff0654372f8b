/*
 * tests/executor/job.h - a small model and plans for the tests of runs.
 */
#pragma once

#include "executor/run/run.h"

static inline ModelArch
model(bool tied)
{
    return (ModelArch){
        .name = (char *)"small",
        .family = MODEL_FAMILY_GPT,
        .n_layers = 4,
        .hidden = 48,
        .n_heads = 4,
        .n_kv_heads = 4,
        .head_dim = 12,
        .ffn_hidden = 100,
        .vocab = 256,
        .max_seq_len = 30,
        .norm_epsilon = MODEL_USUAL_NORM_EPSILON,
        .rope_base = MODEL_USUAL_ROPE_BASE,
        .tied_embeddings = tied,
        .qkv_bias = true,
    };
}

typedef struct {
    const char *schedule;
    int64_t dp, pp, vpp, n_micro_batches, micro_batch;
    const char *slices;
    SchedulePlacement placement;
} Job;

static inline Plan *
plan_of(const Job *job, int64_t n_layers)
{
    Plan *plan = plan_new();
    g_auto(GStrv) slices = g_strsplit(job->slices, ",", -1);

    plan->dtype = DTYPE_FP32;
    plan->degrees.dp = job->dp;
    plan->degrees.pp = job->pp;
    plan->degrees.vpp = MAX(job->vpp, 1);
    plan->n_micro_batches = job->n_micro_batches;
    plan->micro_batch = job->micro_batch;
    plan->global_batch = job->dp * job->n_micro_batches * job->micro_batch;
    g_free(plan->schedule);
    plan->schedule = g_strdup(job->schedule);
    plan->seq_len = 0;
    for (size_t i = 0; slices[i] != NULL; i++) {
        const int64_t tokens = g_ascii_strtoll(slices[i], NULL, 10);
        g_array_append_val(plan->slices, tokens);
        plan->seq_len += tokens;
    }
    plan_set_even_stages(plan, n_layers, true, job->placement, PLAN_RECOMPUTE_NONE);
    return plan;
}

static inline ExecRunOptions
options_of(const ModelArch *arch, const Plan *plan, const char *device)
{
    return (ExecRunOptions){
        .arch = arch,
        .plan = plan,
        .device = device,
        .transport = "local",
        .n_steps = 1,
        .seed = 7,
        .learning_rate = 1e-3f,
        .verify_tolerance = 1e-5,
        .timeout_s = 60,
        .want_trace = true,
    };
}

static inline const char *
fast_device(void)
{
    g_autoptr(ExecBackend) cpu = exec_backend_open("cpu", 0, DTYPE_FP32, NULL);

    return cpu != NULL ? "cpu" : "reference";
}

static const Job one_device = {"gpipe", 1, 1, 1, 1, 8, "30", SCHEDULE_PLACEMENT_LOOP};
static const Job split_job = {"1f1b", 2, 4, 1, 2, 2, "12,10,8", SCHEDULE_PLACEMENT_LOOP};
