/*
 * Flags of a job and its split, one by one, as fields of a PlanRequest.
 */
#include "cli/request/request_read.h"

#include <string.h>

#include "base/text.h"
#include "schedule/rank_order.h"

#define MAX_SLICES 65536

/* The first of bf16, fp16, fp32 that every kind of device computes in. */
static Dtype
default_dtype(const ModelCluster *cluster)
{
    static const Dtype order[] = {DTYPE_BF16, DTYPE_FP16};

    for (size_t i = 0; i < G_N_ELEMENTS(order); i++) {
        bool everywhere = true;

        for (guint d = 0; d < cluster->devices->len; d++)
            everywhere &= g_array_index(cluster->devices, ModelDevice, d).flops_per_s[order[i]] > 0;
        if (everywhere)
            return order[i];
    }
    return DTYPE_FP32;
}

/* An int of the request: the index in @names, or PLAN_AUTO for "auto". */
static int
choice_or_auto(Options *options, const char *name, const char *const *names, int fallback)
{
    const char *text = options_string(options, name, NULL);

    if (text != NULL && strcmp(text, "auto") == 0)
        return PLAN_AUTO;
    return options_choice(options, name, names, fallback);
}

static void
read_slices(Request *request, Options *options, RequestKind kind)
{
    PlanRequest *plan = &request->plan;
    const char *text = options_string(options, "slices", NULL);

    plan->slices_mode = kind == REQUEST_SEARCHED ? PLAN_SLICES_AUTO : PLAN_SLICES_OFF;
    if (text == NULL)
        return;
    if (strcmp(text, "auto") == 0) {
        plan->slices_mode = PLAN_SLICES_AUTO;
    } else if (strcmp(text, "off") == 0) {
        plan->slices_mode = PLAN_SLICES_OFF;
    } else if (strchr(text, ',') == NULL) {
        plan->slices_mode = PLAN_SLICES_UNIFORM;
        plan->n_slices = options_int64(options, "slices", 1, MAX_SLICES, 1);
    } else {
        int64_t sum = 0;

        plan->slices_mode = PLAN_SLICES_GIVEN;
        request->slices = options_int64s(options, "slices", 1, MODEL_MAX_SEQ_LEN);
        plan->slices = (const int64_t *)(void *)request->slices->data;
        plan->n_slices = request->slices->len;
        if (plan->n_slices > MAX_SLICES) {
            options_fail(options, "slices", "more than %d slices", MAX_SLICES);
            return;
        }
        for (int64_t i = 0; i < plan->n_slices; i++)
            sum += plan->slices[i];
        if (sum != plan->seq_len)
            options_fail(options, "slices",
                         "the lengths add up to %" G_GINT64_FORMAT
                         ", but a sequence has %" G_GINT64_FORMAT " tokens (--seq-len)",
                         sum, plan->seq_len);
    }
}

static void
read_schedules(Request *request, Options *options, RequestKind kind)
{
    const char *text = options_string(options, "schedule", NULL);
    GError *error = NULL;

    if (text != NULL && strcmp(text, "auto") != 0) {
        request->schedules = options_words(options, "schedule");
        for (size_t i = 0; request->schedules[i] != NULL && *request->schedules[i] != 0; i++) {
            if (schedule_family_find(request->schedules[i], &error) == NULL) {
                options_fail(options, "schedule", "%s", error->message);
                g_clear_error(&error);
            }
        }
        if (kind == REQUEST_FIXED && g_strv_length(request->schedules) > 1)
            options_fail(options, "schedule", "one schedule can be simulated, not several");
    }
    request->plan.schedules = (const char *const *)request->schedules;
}

static void
read_overlap(PlanConventions *conventions, Options *options)
{
    g_auto(GStrv) words = options_words(options, "overlap");

    if (words == NULL)
        return;
    conventions->overlap_dp = conventions->overlap_pp = conventions->overlap_tp = false;
    if (strcmp(words[0], "none") == 0 && words[1] == NULL)
        return;
    for (size_t i = 0; words[i] != NULL; i++) {
        if (strcmp(words[i], "dp") == 0)
            conventions->overlap_dp = true;
        else if (strcmp(words[i], "pp") == 0)
            conventions->overlap_pp = true;
        else if (strcmp(words[i], "tp") == 0)
            conventions->overlap_tp = true;
        else
            options_fail(options, "overlap", "expected none or some of dp,pp,tp, got \"%s\"",
                         words[i]);
    }
}

static void
read_conventions(PlanConventions *conventions, Options *options)
{
    static const char *const attentions[] = {"auto", "unfused", "flash", "torch", "flash1", NULL};
    const int framework =
        options_choice(options, "framework", plan_framework_names(), PLAN_FRAMEWORK_DEGAS);
    static const char *const kernels[] = {"auto", "fused", "norms", "eager", NULL};
    int attention, kernel;

    *conventions = plan_conventions((PlanFramework)framework);
    attention = options_choice(options, "attention", attentions, 0);
    if (attention > 0)
        conventions->attention = (PlanAttention)(attention - 1);
    kernel = options_choice(options, "kernels", kernels, 0);
    if (kernel > 0)
        conventions->kernels = (PlanKernels)(kernel - 1);
    conventions->dropout = options_on_off(options, "dropout", conventions->dropout);
    conventions->loss =
        (PlanLoss)options_choice(options, "loss", plan_loss_names, (int)conventions->loss);
    conventions->cp_comm = (PlanCpComm)options_choice(options, "cp-comm-type", plan_cp_comm_names,
                                                      (int)conventions->cp_comm);
    conventions->expert_tp = options_int64(options, "expert-tp", 1, SCHEDULE_MAX_RANKS, 1);
    conventions->expert_imbalance =
        options_quantity(options, "expert-imbalance", UNITS_KIND_NUMBER, 0.0);
    if (options_has(options, "expert-imbalance") &&
        !(conventions->expert_imbalance >= 1.0 &&
          conventions->expert_imbalance <= PLAN_MAX_IMBALANCE))
        options_fail(options, "expert-imbalance", "expected a factor from 1 to 1e6");
    conventions->deterministic =
        options_on_off(options, "deterministic-kernels", conventions->deterministic);
    conventions->pads_vocab = options_on_off(options, "pad-vocab", conventions->pads_vocab);
    conventions->grad_dtype =
        (Dtype)options_choice(options, "grad-dtype", dtype_names, (int)conventions->grad_dtype);
    read_overlap(conventions, options);
    conventions->optimizer_step =
        options_on_off(options, "optimizer-step", conventions->optimizer_step);
}

/* The data-parallel degree that --gpus leaves when everything is fixed. */
static int64_t
remaining_dp(const PlanRequest *plan, Options *options)
{
    const int64_t gpus = options_int64(options, "gpus", 1, MODEL_CLUSTER_MAX_DEVICES, 0);
    int64_t used;

    if (gpus == 0)
        return 1;
    if (__builtin_mul_overflow(plan->tp * plan->pp, plan->cp, &used) || gpus % used != 0) {
        options_fail(options, "gpus",
                     "%" G_GINT64_FORMAT
                     " devices are no multiple of tp x pp x cp = %" G_GINT64_FORMAT,
                     gpus, used);
        return 1;
    }
    return gpus / used;
}

/* The index of --rank-order.  Without the flag a framework that lays out its ranks in one way
 * only has the default order. */
static int
read_rank_order(const PlanConventions *conventions, Options *options, RequestKind kind)
{
    const char *text = options_string(options, "rank-order", NULL);
    const bool is_auto = text != NULL && strcmp(text, "auto") == 0;

    if (text == NULL)
        return kind == REQUEST_SEARCHED && plan_framework(conventions->framework)->any_rank_order
                   ? PLAN_AUTO
                   : PLAN_RANK_ORDER_DEFAULT;
    if (is_auto && kind == REQUEST_SEARCHED)
        return PLAN_AUTO;
    const int order = plan_rank_order_find(text);
    if (order >= 0)
        return order;
    g_autofree char *shown = text_escape(text, 64);
    options_fail(options, "rank-order",
                 "expected %stp, cp, dp and pp, each once, from the fastest to the slowest, as "
                 "tp-cp-dp-pp, got \"%s\"",
                 kind == REQUEST_SEARCHED ? "auto or " : "", shown);
    return PLAN_RANK_ORDER_DEFAULT;
}

static void
read_degrees(PlanRequest *plan, Options *options, RequestKind kind)
{
    const int64_t fallback = kind == REQUEST_FIXED ? 1 : 0;

    plan->tp = options_int64(options, "tp", 1, SCHEDULE_MAX_RANKS, fallback);
    plan->pp = options_int64(options, "pp", 1, SCHEDULE_MAX_RANKS, fallback);
    plan->vpp = options_int64(options, "vpp", 1, SCHEDULE_MAX_CHUNKS, fallback);
    plan->cp = options_int64(options, "cp", 1, SCHEDULE_MAX_RANKS, fallback);
    plan->ep = options_int64(options, "ep", 1, SCHEDULE_MAX_RANKS, fallback);
    plan->micro_batch = options_int64(options, "micro-batch", 1, JSON_MAX_INT, fallback);
    plan->dp = options_int64(options, "dp", 1, MODEL_CLUSTER_MAX_DEVICES,
                             kind == REQUEST_FIXED ? remaining_dp(plan, options) : 0);
}

void
request_read_plan(Request *request, Options *options, RequestKind kind)
{
    static const char *const zero_stages[] = {"0", "1", "2", "3", NULL};
    static const char *const off_on[] = {"off", "on", NULL};
    PlanRequest *plan = &request->plan;
    const bool fixed = kind == REQUEST_FIXED;

    plan->arch = request->arch;
    plan->profile = request->profile;
    if (!options_has(options, "global-batch"))
        options_fail(options, "global-batch",
                     "is missing; it is the number of sequences of one iteration");
    plan->global_batch = options_int64(options, "global-batch", 1, INT64_C(1) << 31, 1);
    plan->seq_len =
        options_int64(options, "seq-len", 1, MODEL_MAX_SEQ_LEN, request->arch->max_seq_len);
    plan->dtype = (Dtype)options_choice(options, "dtype", dtype_names,
                                        (int)default_dtype(request->profile->cluster));
    read_degrees(plan, options, kind);
    plan->n_devices = options_int64(options, "gpus", 1, MODEL_CLUSTER_MAX_DEVICES, 0);
    plan->group = options_int64(options, "group", 1, INT32_MAX, 0);
    read_schedules(request, options, kind);
    read_slices(request, options, kind);
    plan->recompute = choice_or_auto(options, "recompute", plan_recompute_names,
                                     fixed ? PLAN_RECOMPUTE_NONE : PLAN_AUTO);
    plan->zero_stage = choice_or_auto(options, "zero", zero_stages, fixed ? 0 : PLAN_AUTO);
    plan->offload = choice_or_auto(options, "offload", plan_offload_names, PLAN_OFFLOAD_NONE);
    plan->offload_parameters = options_choice(options, "offload-parameters", off_on, 0) == 1;
    plan->prefetch_layers = (int32_t)options_int64(options, "prefetch-layers", 0, PLAN_MAX_PREFETCH,
                                                   PLAN_PREFETCH_AUTO);
    plan->sequence_parallel =
        choice_or_auto(options, "sequence-parallel", off_on, fixed ? 0 : PLAN_AUTO);
    read_conventions(&plan->conventions, options);
    plan->rank_order = read_rank_order(&plan->conventions, options, kind);
    plan->overlap_pp_given = options_has(options, "overlap");
    plan->memory_limit_bytes = options_bytes(options, "memory-limit", 0);
    if (options_has(options, "memory-limit") && plan->memory_limit_bytes == 0)
        options_fail(options, "memory-limit", "expected more than nothing");
    plan->objective = PLAN_OBJECTIVE_TIME;
    plan->threads = 1;
}
