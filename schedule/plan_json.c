/* The keys of "degas-plan" that are the plan's own; the declarations are in schedule/plan.h. */
#include "schedule/plan.h"

#include <math.h>

#include "schedule/rank_order.h"

/* --- writing --- */

static void
write_degrees(JsonWriter *writer, const PlanDegrees *degrees)
{
    json_write_object_inline(writer, "degrees");
    json_write_int64(writer, "dp", degrees->dp);
    json_write_int64(writer, "tp", degrees->tp);
    json_write_int64(writer, "pp", degrees->pp);
    json_write_int64(writer, "vpp", degrees->vpp);
    json_write_int64(writer, "cp", degrees->cp);
    json_write_int64(writer, "ep", degrees->ep);
    json_write_object_end(writer);
}

static void
write_stage(JsonWriter *writer, const PlanStage *stage)
{
    json_write_object_inline(writer, NULL);
    json_write_int64(writer, "rank", stage->rank);
    json_write_int64(writer, "chunk", stage->chunk);
    json_write_int64(writer, "first_layer", stage->first_layer);
    json_write_int64(writer, "n_layers", stage->n_layers);
    json_write_bool(writer, "embedding", stage->embedding);
    json_write_bool(writer, "head", stage->head);
    json_write_string(writer, "recompute", plan_recompute_names[stage->recompute]);
    json_write_object_end(writer);
}

static void
write_int64s(JsonWriter *writer, const char *key, const GArray *values)
{
    json_write_array_inline(writer, key);
    for (guint i = 0; i < values->len; i++)
        json_write_int64(writer, NULL, g_array_index(values, int64_t, i));
    json_write_array_end(writer);
}

static void
write_conventions(JsonWriter *writer, const PlanConventions *c)
{
    json_write_object_inline(writer, "conventions");
    json_write_string(writer, "framework", plan_framework(c->framework)->name);
    json_write_string(writer, "attention", plan_attention_names[c->attention]);
    json_write_string(writer, "grad_dtype", dtype_names[c->grad_dtype]);
    json_write_bool(writer, "overlap_dp", c->overlap_dp);
    json_write_bool(writer, "overlap_pp", c->overlap_pp);
    json_write_bool(writer, "overlap_tp", c->overlap_tp);
    json_write_bool(writer, "dropout", c->dropout);
    json_write_string(writer, "kernels", plan_kernels_names[c->kernels]);
    json_write_bool(writer, "scatter_gather_p2p", c->scatter_gather_p2p);
    json_write_bool(writer, "broadcast_p2p", c->broadcast_p2p);
    json_write_bool(writer, "optimizer_step", c->optimizer_step);
    /* What few plans say is written where it is said. */
    if (c->cp_comm != PLAN_CP_P2P)
        json_write_string(writer, "cp_comm", plan_cp_comm_names[c->cp_comm]);
    if (c->loss != PLAN_LOSS_PLAIN)
        json_write_string(writer, "loss", plan_loss_names[c->loss]);
    if (c->expert_tp > 1)
        json_write_int64(writer, "expert_tp", c->expert_tp);
    if (c->expert_imbalance > 0.0)
        json_write_double(writer, "expert_imbalance", c->expert_imbalance);
    if (c->deterministic)
        json_write_bool(writer, "deterministic", true);
    if (c->pads_vocab != plan_conventions(c->framework).pads_vocab)
        json_write_bool(writer, "pad_vocab", c->pads_vocab);
    json_write_object_end(writer);
}

/* What the planner found out; nothing of a hand-written plan. */
static void
write_results(JsonWriter *writer, const Plan *plan)
{
    if (plan->predicted != NULL)
        report_write(writer, "predicted", plan->predicted);
    if (!isnan(plan->lower_bound_s))
        json_write_double(writer, "lower_bound_s", plan->lower_bound_s);
    if (!isnan(plan->optimality_gap_fraction))
        json_write_double(writer, "optimality_gap_fraction", plan->optimality_gap_fraction);
    if (plan->search.considered > 0) {
        json_write_object_inline(writer, "search");
        json_write_int64(writer, "considered", plan->search.considered);
        json_write_int64(writer, "pruned", plan->search.pruned);
        json_write_int64(writer, "simulated", plan->search.simulated);
        json_write_int64(writer, "infeasible", plan->search.infeasible);
        json_write_object_end(writer);
    }
    if (plan->alternatives == NULL)
        return;
    json_write_array(writer, "alternatives");
    for (guint i = 0; i < plan->alternatives->len; i++) {
        json_write_object(writer, NULL);
        plan_write_members(writer, g_ptr_array_index(plan->alternatives, i));
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
}

void
plan_write_members(JsonWriter *writer, const Plan *plan)
{
    json_write_int64(writer, "global_batch", plan->global_batch);
    json_write_int64(writer, "seq_len", plan->seq_len);
    json_write_string(writer, "dtype", dtype_names[plan->dtype]);
    write_degrees(writer, &plan->degrees);
    if (plan->degrees.rank_order != PLAN_RANK_ORDER_DEFAULT)
        json_write_string(writer, "rank_order", plan_rank_order_names[plan->degrees.rank_order]);
    json_write_int64(writer, "micro_batch", plan->micro_batch);
    json_write_int64(writer, "n_microbatches", plan->n_micro_batches);
    json_write_string(writer, "schedule", plan->schedule);
    if (plan->group != 0)
        json_write_int64(writer, "group", plan->group);
    json_write_array(writer, "stages");
    for (guint i = 0; i < plan->stages->len; i++)
        write_stage(writer, &g_array_index(plan->stages, PlanStage, i));
    json_write_array_end(writer);
    write_int64s(writer, "slices", plan->slices);
    if (plan->micro_batch_sequences != NULL)
        write_int64s(writer, "batch_slices", plan->micro_batch_sequences);
    json_write_int64(writer, "zero_stage", plan->zero_stage);
    json_write_string(writer, "offload", plan_offload_names[plan->offload]);
    if (plan->offload_parameters)
        json_write_bool(writer, "offload_parameters", true);
    if (plan->prefetch_layers != PLAN_PREFETCH_AUTO)
        json_write_int64(writer, "prefetch_layers", plan->prefetch_layers);
    json_write_bool(writer, "sequence_parallel", plan->sequence_parallel);
    write_conventions(writer, &plan->conventions);
    write_results(writer, plan);
}

/* --- reading --- */

static void
read_degrees(JsonDoc *doc, const JsonValue *object, PlanDegrees *degrees)
{
    const JsonValue *v = json_object(doc, object, "degrees");

    degrees->dp = json_int64_or(doc, v, "dp", 1, SCHEDULE_MAX_RANKS, 1);
    degrees->tp = json_int64_or(doc, v, "tp", 1, SCHEDULE_MAX_RANKS, 1);
    degrees->pp = json_int64_or(doc, v, "pp", 1, SCHEDULE_MAX_RANKS, 1);
    degrees->vpp = json_int64_or(doc, v, "vpp", 1, SCHEDULE_MAX_CHUNKS, 1);
    degrees->cp = json_int64_or(doc, v, "cp", 1, SCHEDULE_MAX_RANKS, 1);
    degrees->ep = json_int64_or(doc, v, "ep", 1, SCHEDULE_MAX_RANKS, 1);
    json_object_end(doc, v);
}

static void
read_stages(JsonDoc *doc, const JsonValue *object, GArray *stages)
{
    const JsonValue *list = json_array(doc, object, "stages");

    for (const JsonValue *v = json_first(list); v != NULL && !json_doc_failed(doc);
         v = json_next(v)) {
        if (!json_is_object(v)) {
            json_fail(doc, v, "expected an object");
            return;
        }
        const PlanStage stage = {
            .rank = (int32_t)json_int64(doc, v, "rank", 0, SCHEDULE_MAX_RANKS - 1),
            .chunk = (int32_t)json_int64_or(doc, v, "chunk", 0, SCHEDULE_MAX_CHUNKS - 1, 0),
            .first_layer = json_int64(doc, v, "first_layer", 0, INT32_MAX),
            .n_layers = json_int64(doc, v, "n_layers", 0, INT32_MAX),
            .embedding = json_bool_or(doc, v, "embedding", false),
            .head = json_bool_or(doc, v, "head", false),
            .recompute = (PlanRecompute)json_enum_or(doc, v, "recompute", plan_recompute_names,
                                                     PLAN_RECOMPUTE_NONE),
        };
        json_object_end(doc, v);
        g_array_append_val(stages, stage);
    }
}

static void
read_int64s(JsonDoc *doc, const JsonValue *list, GArray *values)
{
    for (const JsonValue *v = json_first(list); v != NULL && !json_doc_failed(doc);
         v = json_next(v)) {
        const int64_t value = json_value_int64(doc, v, 1, JSON_MAX_INT);
        g_array_append_val(values, value);
    }
}

/* Absent keys take what the framework does. */
static PlanConventions
read_conventions(JsonDoc *doc, const JsonValue *object)
{
    const JsonValue *v = json_object_or_null(doc, object, "conventions");
    if (v == NULL)
        return plan_conventions(PLAN_FRAMEWORK_DEGAS);
    PlanConventions c = plan_conventions((PlanFramework)json_enum_or(
        doc, v, "framework", plan_framework_names(), PLAN_FRAMEWORK_DEGAS));
    c.attention =
        (PlanAttention)json_enum_or(doc, v, "attention", plan_attention_names, (int)c.attention);
    c.grad_dtype = (Dtype)json_enum_or(doc, v, "grad_dtype", dtype_names, (int)c.grad_dtype);
    c.overlap_dp = json_bool_or(doc, v, "overlap_dp", c.overlap_dp);
    c.overlap_pp = json_bool_or(doc, v, "overlap_pp", c.overlap_pp);
    c.overlap_tp = json_bool_or(doc, v, "overlap_tp", c.overlap_tp);
    c.dropout = json_bool_or(doc, v, "dropout", c.dropout);
    c.kernels = (PlanKernels)json_enum_or(doc, v, "kernels", plan_kernels_names, (int)c.kernels);
    c.scatter_gather_p2p = json_bool_or(doc, v, "scatter_gather_p2p", c.scatter_gather_p2p);
    c.broadcast_p2p = json_bool_or(doc, v, "broadcast_p2p", c.broadcast_p2p);
    c.optimizer_step = json_bool_or(doc, v, "optimizer_step", c.optimizer_step);
    c.cp_comm = (PlanCpComm)json_enum_or(doc, v, "cp_comm", plan_cp_comm_names, (int)c.cp_comm);
    c.loss = (PlanLoss)json_enum_or(doc, v, "loss", plan_loss_names, (int)c.loss);
    c.expert_tp = json_int64_or(doc, v, "expert_tp", 1, SCHEDULE_MAX_RANKS, 1);
    c.expert_imbalance =
        json_double_or(doc, v, "expert_imbalance", 1.0, PLAN_MAX_IMBALANCE, c.expert_imbalance);
    c.deterministic = json_bool_or(doc, v, "deterministic", c.deterministic);
    c.pads_vocab = json_bool_or(doc, v, "pad_vocab", c.pads_vocab);
    json_object_end(doc, v);
    return c;
}

static double
read_nullable(JsonDoc *doc, const JsonValue *object, const char *key)
{
    const JsonValue *v = json_member(doc, object, key);

    return v == NULL || json_is_null(v) ? (double)NAN : json_value_double(doc, v, 0, G_MAXDOUBLE);
}

static Plan *read_plan(JsonDoc *doc, const JsonValue *object, bool outermost);

static void
read_results(JsonDoc *doc, const JsonValue *object, bool outermost, Plan *plan)
{
    const JsonValue *predicted = json_object_or_null(doc, object, "predicted");
    const JsonValue *search = json_object_or_null(doc, object, "search");

    if (predicted != NULL)
        plan->predicted = report_read(doc, predicted);
    plan->lower_bound_s = read_nullable(doc, object, "lower_bound_s");
    plan->optimality_gap_fraction = read_nullable(doc, object, "optimality_gap_fraction");
    if (search != NULL) {
        plan->search.considered = json_int64(doc, search, "considered", 0, JSON_MAX_INT);
        plan->search.pruned = json_int64(doc, search, "pruned", 0, JSON_MAX_INT);
        plan->search.simulated = json_int64(doc, search, "simulated", 0, JSON_MAX_INT);
        plan->search.infeasible = json_int64(doc, search, "infeasible", 0, JSON_MAX_INT);
        json_object_end(doc, search);
    }
    if (!outermost)
        return; /* alternatives of alternatives are unknown keys */
    const JsonValue *list = json_array_or_null(doc, object, "alternatives");
    if (list == NULL)
        return;
    plan->alternatives = g_ptr_array_new_with_free_func((GDestroyNotify)plan_free);
    for (const JsonValue *v = json_first(list); v != NULL && !json_doc_failed(doc);
         v = json_next(v)) {
        if (!json_is_object(v))
            json_fail(doc, v, "expected an object");
        else
            g_ptr_array_add(plan->alternatives, read_plan(doc, v, false));
    }
}

static Plan *
read_plan(JsonDoc *doc, const JsonValue *object, bool outermost)
{
    Plan *plan = plan_new();

    plan->global_batch = json_int64(doc, object, "global_batch", 1, JSON_MAX_INT);
    plan->seq_len = json_int64(doc, object, "seq_len", 1, JSON_MAX_INT);
    plan->dtype = (Dtype)json_enum(doc, object, "dtype", dtype_names);
    read_degrees(doc, object, &plan->degrees);
    plan->degrees.rank_order =
        json_enum_or(doc, object, "rank_order", plan_rank_order_names, PLAN_RANK_ORDER_DEFAULT);
    plan->micro_batch = json_int64(doc, object, "micro_batch", 1, JSON_MAX_INT);
    plan->n_micro_batches = json_int64(doc, object, "n_microbatches", 1, INT32_MAX);
    g_free(plan->schedule);
    plan->schedule = g_strdup(json_string(doc, object, "schedule"));
    plan->group = json_int64_or(doc, object, "group", 0, INT32_MAX, 0);
    read_stages(doc, object, plan->stages);
    const JsonValue *slices = json_array_or_null(doc, object, "slices");
    if (slices != NULL)
        read_int64s(doc, slices, plan->slices);
    else
        g_array_append_val(plan->slices, plan->seq_len);
    const JsonValue *micro_batch_sequences = json_array_or_null(doc, object, "batch_slices");
    if (micro_batch_sequences != NULL) {
        plan->micro_batch_sequences = g_array_new(false, true, sizeof(int64_t));
        read_int64s(doc, micro_batch_sequences, plan->micro_batch_sequences);
    }
    plan->zero_stage = (int32_t)json_int64_or(doc, object, "zero_stage", 0, 3, 0);
    plan->offload =
        (PlanOffload)json_enum_or(doc, object, "offload", plan_offload_names, PLAN_OFFLOAD_NONE);
    plan->offload_parameters = json_bool_or(doc, object, "offload_parameters", false);
    plan->prefetch_layers = (int32_t)json_int64_or(doc, object, "prefetch_layers", 0,
                                                   PLAN_MAX_PREFETCH, PLAN_PREFETCH_AUTO);
    plan->sequence_parallel = json_bool_or(doc, object, "sequence_parallel", false);
    plan->conventions = read_conventions(doc, object);
    read_results(doc, object, outermost, plan);
    if (outermost) {
        json_ignore(doc, object, "format");
        json_ignore(doc, object, "version");
        json_ignore(doc, object, "model");
        json_ignore(doc, object, "cluster");
    }
    json_object_end(doc, object);
    return plan;
}

Plan *
plan_read(JsonDoc *doc, const JsonValue *object)
{
    return read_plan(doc, object, true);
}
