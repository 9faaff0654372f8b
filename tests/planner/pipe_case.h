/*
 * Pipelines that leave out nothing that the bounds of planner/bounds count: layers without
 * attention, which take as long on any slice of so many tokens, over a network that takes no time
 * but a latency.  What bounds say of them is what the simulator says, or a formula of it.
 */
#pragma once

#include <math.h>

#include "planner/bounds/point_bound.h"
#include "planner/bounds/rank_kinds.h"
#include "planner/partition/partitions.h"
#include "planner/space/space.h"
#include "schedule/rank_order.h"
#include "tests/planner/search_case.h"

#define LENGTH 8192

/* Layers that are an MLP and nothing else. */
G_GNUC_UNUSED static ModelArch *
mlp_arch(int64_t n_layers, int64_t vocab)
{
    ModelArch *arch = long_arch(n_layers, vocab);
    ModelArch *kinds = g_new0(ModelArch, MODEL_MAX_KINDS);

    kinds[0] = model_kind_arch(arch, 0);
    kinds[0].name = g_strdup("mlp");
    kinds[0].source = NULL;
    kinds[0].mixer = MODEL_MIXER_NONE;
    kinds[0].ffn = MODEL_FFN_MLP;
    arch->kinds = kinds;
    arch->n_kinds = 1;
    arch->n_pattern = n_layers;
    arch->pattern = g_new0(uint8_t, (size_t)n_layers);
    arch->max_seq_len = LENGTH;
    return arch;
}

typedef struct {
    const char *family; /* NULL: that of slices */
    int64_t p, v, m, dp;
    int64_t n_layers, vocab;
    int64_t micro_batch;
    int32_t zero_stage;
    bool is_small;    /* of 512 columns and tokens, with attention */
    bool attends;     /* the layers have attention, too */
    int64_t group;    /* 0: the family's */
    int recompute;    /* PLAN_AUTO: it is open */
    double latency_s; /* of messages, which take nothing else */
    double slow;      /* the rate of half of the ranks; 0: all are alike */
    bool slow_first;
    bool is_tied; /* the head has the embedding's table */
    PlanFramework framework;
    bool is_real; /* the network takes its time */
    bool is_fine; /* devices of one multiprocessor, on which no wave of tiles is left unfilled */
} Pipe;

/* What is asked of one pipeline. */
typedef struct {
    ModelArch *arch;
    Profile *profile;
    PlanMemo *memo;
    PlanRequest request;
    PlanPoint point;
    const ScheduleFamily *family;
    int64_t *counts;
    const PlanLayerCost *cost;
} Job;

static void
job_clear(Job *job)
{
    flights = NULL;
    g_free(job->counts);
    plan_memo_free(job->memo);
    profile_free(job->profile);
    model_arch_free(job->arch);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Job, job_clear)

static void
set_network(const Pipe *pipe, ModelCluster *cluster)
{
    for (guint i = 0; i < cluster->levels->len; i++) {
        ModelLevel *level = &g_array_index(cluster->levels, ModelLevel, i);
        if (!pipe->is_real) {
            level->latency_s = pipe->latency_s;
            level->bytes_per_s = 1e15;
            level->shared_bytes_per_s = 0.0;
        }
    }
}

/* Half of the devices of @cluster become slower ones. */
static void
set_slow(const Pipe *pipe, ModelCluster *cluster)
{
    ModelDevice slow = g_array_index(cluster->devices, ModelDevice, 0);
    ModelNodes nodes = g_array_index(cluster->nodes, ModelNodes, 0);

    slow.name = g_strdup("slow");
    for (int i = 0; i < DTYPE_N; i++)
        slow.flops_per_s[i] *= pipe->slow;
    slow.memory_bytes_per_s *= pipe->slow;
    g_array_append_val(cluster->devices, slow);
    nodes.n_nodes = 1;
    nodes.n_devices = pipe->p * pipe->dp / 2;
    g_array_set_size(cluster->nodes, 0);
    nodes.device = pipe->slow_first ? 1 : 0;
    g_array_append_val(cluster->nodes, nodes);
    nodes.device = 1 - nodes.device;
    g_array_append_val(cluster->nodes, nodes);
}

G_GNUC_UNUSED static void
job_init(Job *job, const Pipe *pipe)
{
    const int64_t n = pipe->p * pipe->dp;

    job->arch = pipe->is_small  ? small_arch(pipe->n_layers, 0, pipe->vocab)
                : pipe->attends ? long_arch(pipe->n_layers, pipe->vocab)
                                : mlp_arch(pipe->n_layers, pipe->vocab);
    job->arch->tied_embeddings = pipe->is_tied;
    job->profile = cluster_of("dgx-a100-80g", n);
    set_network(pipe, job->profile->cluster);
    if (pipe->is_fine)
        g_array_index(job->profile->cluster->devices, ModelDevice, 0).n_multiprocessors = 1;
    if (pipe->slow > 0.0)
        set_slow(pipe, job->profile->cluster);
    job->memo = flights = plan_memo_new();
    job->family = schedule_family_find(pipe->family != NULL ? pipe->family
                                       : pipe->v > 1        ? "seq1f1b-interleaved"
                                                            : "seq1f1b",
                                       NULL);
    job->request = request_of(job->arch, job->profile, pipe->dp * pipe->m * pipe->micro_batch);
    job->request.memo = job->memo;
    job->request.conventions = plan_conventions(pipe->framework);
    job->request.slices_mode = pipe->family != NULL ? PLAN_SLICES_OFF : PLAN_SLICES_AUTO;
    job->request.recompute = pipe->recompute;
    job->request.n_devices = n;
    job->request.micro_batch = pipe->micro_batch;
    job->request.group = pipe->group;
    job->point = (PlanPoint){
        .degrees = {pipe->dp, 1, pipe->p, pipe->v, 1, 1, PLAN_RANK_ORDER_DEFAULT},
        .micro_batch = pipe->micro_batch,
        .n_micro_batches = pipe->m,
        .zero_stage = pipe->zero_stage,
        .recompute =
            pipe->recompute == PLAN_AUTO ? PLAN_RECOMPUTE_NONE : (PlanRecompute)pipe->recompute,
    };
    const PlanLayerShape layer = plan_point_layer_shape(&job->point);
    job->cost = &plan_layer_uniform_cost(job->memo, &job->request, &layer, 1)->whole;
    job->counts = plan_partition_even(&job->request, &job->point, job->family);
    job->point.n_fast_ranks = plan_rank_fast(job->memo, &job->request, &job->point);
    plan_point_bound_bytes(&job->request, job->cost, INT64_MAX, &job->point);
}

/* (owned) the plan with @slices of LENGTH / n tokens for each n, and stages that recompute as
 * @recomputes says. */
G_GNUC_UNUSED static Plan *
job_plan(const Job *job, const int64_t *tokens, int64_t k, const int *recomputes)
{
    Plan *plan = plan_space_plan(&job->request, &job->point, job->family);

    plan_partition_apply(job->counts, plan_point_chain_length(&job->point.degrees, job->family),
                         recomputes, plan);
    if (tokens != NULL) {
        g_array_set_size(plan->slices, 0);
        g_array_append_vals(plan->slices, tokens, (guint)k);
    }
    return plan;
}

G_GNUC_UNUSED static int64_t
plan_ns(const Job *job, const Plan *plan, int64_t *peak_bytes)
{
    g_autoptr(Workload) workload = workload_new(job->arch, job->profile, plan, 0, NULL);
    g_autoptr(Report) report = NULL;

    g_assert_nonnull(workload);
    g_assert_true(simulate(plan, workload, INT64_MAX, &report, NULL, NULL));
    if (peak_bytes != NULL)
        *peak_bytes = report->peak_memory_bytes;
    return report->iteration_ns;
}
