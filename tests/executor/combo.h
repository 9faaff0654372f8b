/*
 * tests/executor/combo.h - plans of all dimensions for tiny models, and one step of them against
 * a single device.
 *
 * Initial weights are spread out (deviation 0.2 at 16 wide): at GPT-2's 0.02 attention is nearly
 * uniform, and wrong positions, masks or heads would hardly show.
 */
#pragma once

#include "executor/run/run.h"
#include "schedule/rank_order.h"
#include "tests/executor/attention_kinds.h"
#include "tests/executor/kinds.h"
#include "tests/executor/states.h"

typedef struct {
    ModelFamily family;
    bool tied;
    int64_t n_layers; /* at least; 0: two, or one for every stage */
    int variety;      /* 1 + one of kinds_varieties; 0: none */
    int64_t n_kv_heads;
    int64_t n_experts, n_shared, first_dense; /* n_experts 0: none */
    bool
        mixed; /* layers of several kinds, with other heads and widths; the last kind has experts */
    int64_t mtp;       /* MTP modules */
    bool lone_head;    /* the last stage has no layers */
    int state;         /* which mixer of states.h takes turns with attention, from 1; 0: none */
    int64_t attention; /* every second layer has that of attention_kinds[attention - 1]; 0: plain */
    int64_t dp, tp, cp, pp, vpp, ep, rank_order;
    bool sequence_parallel, scatter_p2p, broadcast_p2p;
    bool pads_vocab; /* 128 columns on every tp rank: the first has all 29 tokens */
    const char *schedule;
    bool merges; /* forwards and backwards of two micro-batches compute in turns */
    int64_t n_micro_batches, micro_batch;
    bool uneven;       /* every second micro-batch has one sequence more */
    int64_t slices[4]; /* tokens; those after the last are 0 */
    Dtype dtype;
    PlanRecompute recompute;
    uint32_t modules; /* of selective recompute; 0: the usual */
    int64_t
        recompute_layers;  /* full recompute repeats so many layers together; 0: each by itself */
    bool recompute_block;  /* ... or the first so many of each stage alone */
    bool recompute_varies; /* of stage i: the i-th after @recompute */
    int32_t zero_stage;
    PlanOffload offload;
    bool offload_parameters;
    int32_t prefetch_layers;
    PlanOptimizer optimizer;
} Combo;

/* What every combination varies. */
static inline Combo
combo_default(void)
{
    return (Combo){
        .tied = true,
        .n_kv_heads = 4,
        .dp = 1,
        .tp = 1,
        .cp = 1,
        .pp = 1,
        .vpp = 1,
        .ep = 1,
        .schedule = "1f1b",
        .n_micro_batches = 2,
        .micro_batch = 1,
        .slices = {24},
        .dtype = DTYPE_FP32,
        .prefetch_layers = PLAN_PREFETCH_AUTO,
    };
}

static inline ModelArch
combo_arch(const Combo *c)
{
    ModelArch arch = {
        .name = (char *)"combo",
        .family = c->family,
        .n_layers = MAX(MAX(2, c->n_layers), c->pp * c->vpp - c->mtp),
        .hidden = 16,
        .n_heads = 4,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = 6,
        .ffn_hidden = 24,
        .vocab = 29, /* not divisible by tp */
        .max_seq_len = 24,
        .norm_epsilon = 1e-4,
        .rope_base = 500,
        .tied_embeddings = c->tied,
        .qkv_bias = c->family == MODEL_FAMILY_GPT,
    };

    arch.mtp = (ModelMtp){.n = c->mtp, .loss_factor = 0.7};
    if (c->n_experts > 0)
        arch.experts = (ModelExperts){
            .n_experts = c->n_experts,
            .top_k = 2,
            .ffn_hidden = 12,
            .n_shared = c->n_shared,
            .first_dense_layers = c->first_dense,
            .router_scale = 1,
        };
    /* Where results are normed, the epsilon is all that keeps rounding errors from growing a hundredfold in tokens that
     * have nearly none, as states_mix() says; which slots of the CPU's backend sum in double changes little. */
    if (c->variety > 0)
        arch.norm_epsilon = 1e-2;
    if (c->variety > 0)
        kinds_varieties[c->variety - 1].vary(&arch);
    /* In bf16 all of them: rounding would change the choice. */
    if (c->dtype != DTYPE_FP32)
        arch.experts.top_k = arch.experts.n_experts;
    if (c->mixed && arch.n_kinds == 0)
        kinds_mix(&arch);
    if (c->state > 0)
        states_mix(&arch, c->state - 1);
    if (c->attention > 0 && arch.n_kinds == 0) {
        attention_mix(&arch, (size_t)c->attention - 1);
        if (c->dtype != DTYPE_FP32) /* so it would change the choice of keys */
            arch.kinds[1].indexer.top_k *= arch.max_seq_len;
    }
    return arch;
}

static inline Plan *
combo_plan(const Combo *c)
{
    const ModelArch arch = combo_arch(c);
    const ScheduleFamily *family = schedule_family_find(c->schedule, NULL);
    Plan *plan = plan_new();

    plan->dtype = c->dtype;
    plan->degrees = (PlanDegrees){
        .dp = c->dp,
        .tp = c->tp,
        .pp = c->pp,
        .vpp = c->vpp,
        .cp = c->cp,
        .ep = c->ep,
        .rank_order = c->rank_order,
    };
    plan->sequence_parallel = c->sequence_parallel;
    plan->zero_stage = c->zero_stage;
    plan->offload = c->offload;
    plan->offload_parameters = c->offload_parameters;
    plan->prefetch_layers = c->prefetch_layers;
    plan->conventions.pads_vocab = c->pads_vocab;
    plan->conventions.optimizer = c->optimizer;
    plan->conventions.overlap_ep = c->merges;
    plan->conventions.recompute_modules = c->modules;
    plan->conventions.recompute_layers = c->recompute_layers;
    plan->conventions.recompute_method =
        c->recompute_block ? PLAN_RECOMPUTE_BLOCK : PLAN_RECOMPUTE_UNIFORM;
    plan->conventions.scatter_gather_p2p = c->scatter_p2p;
    plan->conventions.broadcast_p2p = c->broadcast_p2p;
    plan->n_micro_batches = c->n_micro_batches;
    plan->micro_batch = c->micro_batch;
    plan->global_batch = c->dp * c->n_micro_batches * c->micro_batch;
    if (c->uneven) {
        plan->micro_batch_sequences = g_array_new(false, false, sizeof(int64_t));
        for (int64_t m = 0; m < c->n_micro_batches; m++) {
            const int64_t n = c->micro_batch + (m * m + m / 2) % 2;
            g_array_append_val(plan->micro_batch_sequences, n);
            plan->global_batch += c->dp * (n - c->micro_batch);
            plan->micro_batch = MAX(plan->micro_batch, n);
        }
    }
    g_free(plan->schedule);
    plan->schedule = g_strdup(c->schedule);
    plan->seq_len = 0;
    for (size_t i = 0; i < G_N_ELEMENTS(c->slices) && c->slices[i] > 0; i++) {
        g_array_append_val(plan->slices, c->slices[i]);
        plan->seq_len += c->slices[i];
    }
    plan_set_even_stages(plan, model_n_stacked(&arch), true, family->placement, c->recompute);
    if (c->lone_head && plan->stages->len > 1) {
        PlanStage *last = &g_array_index(plan->stages, PlanStage, plan->stages->len - 1);
        last[-1].n_layers += last->n_layers;
        last->first_layer += last->n_layers;
        last->n_layers = 0;
    }
    for (guint i = 0; c->recompute_varies && i < plan->stages->len; i++)
        g_array_index(plan->stages, PlanStage, i).recompute =
            (PlanRecompute)((c->recompute + i) % PLAN_RECOMPUTE_N);
    return plan;
}

/* Returns: (owned) what the combination is, for messages. */
static inline char *
combo_text(const Combo *c)
{
    return g_strdup_printf(
        "%s%s%s %s mtp %d%s state %d kv %d, experts %d + %d after %d, dp %d tp %d%s%s%s%s cp %d pp "
        "%d vpp "
        "%d ep %d "
        "in "
        "%s, "
        "%s%s, "
        "%d x %d%s, slices %d,%d,%d,%d, %s, recompute %s%s %x %d%s, zero %d, %d ahead, offload "
        "%s%s",
        model_family_names[c->family], c->tied ? " tied" : "", c->mixed ? " mixed" : "",
        c->variety > 0     ? kinds_varieties[c->variety - 1].name
        : c->attention > 0 ? attention_kinds[c->attention - 1].name
                           : "usual",
        (int)c->mtp, c->lone_head ? " lone head" : "", c->state, (int)c->n_kv_heads,
        (int)c->n_experts, (int)c->n_shared, (int)c->first_dense, (int)c->dp, (int)c->tp,
        c->sequence_parallel ? " sp" : "", c->scatter_p2p ? " scatter" : "",
        c->broadcast_p2p ? " broadcast" : "", c->pads_vocab ? " padded" : "", (int)c->cp,
        (int)c->pp, (int)c->vpp, (int)c->ep, plan_rank_order_names[c->rank_order], c->schedule,
        c->merges ? " merged" : "", (int)c->n_micro_batches, (int)c->micro_batch,
        c->uneven ? " uneven" : "", (int)c->slices[0], (int)c->slices[1], (int)c->slices[2],
        (int)c->slices[3], dtype_names[c->dtype], plan_recompute_names[c->recompute],
        c->recompute_varies ? " and others" : "", c->modules, (int)c->recompute_layers,
        c->recompute_block ? " block" : "", c->zero_stage, (int)c->prefetch_layers,
        plan_offload_names[c->offload], c->offload_parameters ? " with parameters" : "");
}

static inline bool
combo_supported(const Combo *c)
{
    const ModelArch arch = combo_arch(c);
    g_autoptr(Plan) plan = combo_plan(c);

    return exec_plan_supported(&arch, plan, "cpu", NULL);
}

static inline ExecRunOptions
combo_options(const Combo *c, const ModelArch *arch, const Plan *plan)
{
    g_autoptr(ExecBackend) cpu = exec_backend_open("cpu", 0, DTYPE_FP32, NULL);

    return (ExecRunOptions){
        .arch = arch,
        .plan = plan,
        .device = cpu != NULL ? "cpu" : "reference",
        .transport = "local",
        .n_steps = 1,
        .seed = 7,
        .init_deviation = c->dtype == DTYPE_FP32 ? 0.2f : 0.05f,
        .learning_rate = 1e-3f,
        .verify = true,
        /* 16 wide and 48 rows: few summands to average bf16 roundings out; and where results are
         * normed, these are as large as the residual stream, and a state's vectors have one or two
         * elements for each head. */
        .verify_tolerance = c->dtype == DTYPE_FP32           ? exec_verify_tolerance(c->dtype)
                            : c->variety > 0 || c->state > 0 ? 6e-2
                                                             : 3e-2,
        .timeout_s = 60,
    };
}

/* How far the gradients of the same step are off on one such device, a sequence at a time: what the device's
 * arithmetic makes of the model, before anything is split. */
static inline double
combo_error_unsplit(const Combo *c, const ModelArch *arch, int64_t global_batch)
{
    Combo one = combo_default();
    g_auto(ExecRunResult) result = {0};
    g_autoptr(GError) error = NULL;

    memcpy(one.slices, c->slices, sizeof one.slices);
    one.micro_batch = 1;
    one.n_micro_batches = global_batch;
    g_autoptr(Plan) plan = combo_plan(&one);
    plan_set_even_stages(plan, model_n_stacked(arch), true, SCHEDULE_PLACEMENT_LOOP,
                         PLAN_RECOMPUTE_NONE);
    const ExecRunOptions options = combo_options(&one, arch, plan);
    exec_run(&options, &result, &error);
    g_assert_no_error(error);
    return result.max_gradient_error;
}

/* One step with loss and every gradient compared; aborts the test beyond the tolerance. */
static inline void
combo_check(const Combo *c)
{
    const ModelArch arch = combo_arch(c);
    g_autoptr(Plan) plan = combo_plan(c);
    g_autoptr(GError) error = NULL;
    g_auto(ExecRunResult) result = {0};
    g_autofree char *text = combo_text(c);
    const ExecRunOptions options = combo_options(c, &arch, plan);

    const bool ok = exec_run(&options, &result, &error);
    if (!ok || !result.passed || g_test_verbose())
        g_test_message("%s: %s, %.2e at %s, loss %.7f against %.7f", text,
                       ok ? "ran" : error->message, result.max_gradient_error,
                       result.worst_tensor != NULL ? result.worst_tensor : "-",
                       ok ? result.losses[0] : 0, result.reference_loss);
    g_assert_true(ok);
    if (c->variety == 0 || c->dtype != DTYPE_FP32 || result.passed) {
        g_assert_true(result.passed);
        return;
    }
    /* Rounding errors of the forward pass grow where results are normed: in 5 of 2000 draws beyond 1e-5, on one
     * device, too.  What splits it may not add more than that again. */
    const double unsplit = combo_error_unsplit(c, &arch, plan->global_batch);
    g_test_message("%.2e, unsplit %.2e", result.max_gradient_error, unsplit);
    g_assert_cmpfloat(unsplit, <=, 5 * options.verify_tolerance);
    g_assert_cmpfloat(result.max_gradient_error, <=, 2 * unsplit);
    g_assert_cmpfloat(fabs(result.losses[0] - result.reference_loss), <=,
                      options.verify_tolerance * result.reference_loss);
}
