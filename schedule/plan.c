#include "schedule/plan.h"

#include <math.h>
#include <string.h>

#include "base/json_fields.h"
#include "base/units.h"
#include "schedule/rank_order.h"

G_DEFINE_QUARK(plan_error, plan_error)

const char *const plan_recompute_names[PLAN_RECOMPUTE_N + 1] = {"none", "selective", "full", NULL};
const char *const plan_offload_names[PLAN_OFFLOAD_N + 1] = {"none", "cpu", "nvme", NULL};

/* --- lifecycle --- */

Plan *
plan_new(void)
{
    Plan *plan = g_new0(Plan, 1);

    plan->global_batch = 1;
    plan->seq_len = 1;
    plan->dtype = DTYPE_BF16;
    plan->degrees = (PlanDegrees){1, 1, 1, 1, 1, 1, 0};
    plan->micro_batch = 1;
    plan->n_micro_batches = 1;
    plan->schedule = g_strdup(schedule_family_usual(1, false)->name);
    plan->stages = g_array_new(false, true, sizeof(PlanStage));
    plan->slices = g_array_new(false, true, sizeof(int64_t));
    plan->prefetch_layers = PLAN_PREFETCH_AUTO;
    plan->conventions = plan_conventions(PLAN_FRAMEWORK_DEGAS);
    plan->lower_bound_s = NAN;
    plan->physical_bound_s = NAN;
    plan->optimality_gap_fraction = NAN;
    return plan;
}

void
plan_free(Plan *plan)
{
    if (plan == NULL)
        return;
    g_free(plan->schedule);
    g_array_unref(plan->stages);
    g_array_unref(plan->slices);
    g_clear_pointer(&plan->micro_batch_sequences, g_array_unref);
    report_free(plan->predicted);
    g_clear_pointer(&plan->alternatives, g_ptr_array_unref);
    g_free(plan);
}

Plan *
plan_copy(const Plan *plan)
{
    Plan *copy = g_memdup2(plan, sizeof *plan);

    copy->schedule = g_strdup(plan->schedule);
    copy->stages = g_array_copy(plan->stages);
    copy->slices = g_array_copy(plan->slices);
    copy->micro_batch_sequences =
        plan->micro_batch_sequences == NULL ? NULL : g_array_copy(plan->micro_batch_sequences);
    copy->predicted = plan->predicted == NULL ? NULL : report_copy(plan->predicted);
    if (plan->alternatives != NULL) {
        copy->alternatives = g_ptr_array_new_with_free_func((GDestroyNotify)plan_free);
        for (guint i = 0; i < plan->alternatives->len; i++)
            g_ptr_array_add(copy->alternatives,
                            plan_copy(g_ptr_array_index(plan->alternatives, i)));
    }
    return copy;
}

/* --- stages --- */

/* How many stages one chain has. */
static int64_t
chain_length(const Plan *plan, SchedulePlacement placement)
{
    return schedule_placement_n_stages(placement, plan->degrees.pp, plan->degrees.vpp);
}

/* Where position @i of the list of stages lies; bidir lists chain 0, then chain 1. */
static void
place_of_stage(const Plan *plan, SchedulePlacement placement, int64_t i, int32_t *rank,
               int32_t *chunk)
{
    const int32_t pp = (int32_t)plan->degrees.pp;
    const int64_t length = chain_length(plan, placement);

    *rank = schedule_placement_rank(placement, pp, (int32_t)(i % length), (int32_t)(i / length));
    *chunk = schedule_placement_chunk(placement, pp, (int32_t)(i % length), (int32_t)(i / length));
}

void
plan_set_even_stages(Plan *plan, int64_t n_layers, bool has_vocab, SchedulePlacement placement,
                     PlanRecompute recompute)
{
    const int64_t n_stages = plan->degrees.pp * plan->degrees.vpp;
    const int64_t length = chain_length(plan, placement);

    g_return_if_fail(plan->degrees.pp >= 1 && plan->degrees.pp <= SCHEDULE_MAX_RANKS);
    g_return_if_fail(plan->degrees.vpp >= 1 && plan->degrees.vpp <= SCHEDULE_MAX_CHUNKS);
    g_array_set_size(plan->stages, 0);
    for (int64_t i = 0; i < n_stages; i++) {
        const int64_t at = i % length;
        const int64_t longer = n_layers % length;
        const int64_t n = n_layers / length;
        /* The first length - longer stages have n layers, the others one more. */
        const int64_t before = MAX(0, at - (length - longer));
        PlanStage stage = {
            .first_layer = at * n + before,
            .n_layers = n + (at >= length - longer ? 1 : 0),
            .embedding = has_vocab && at == 0,
            .head = has_vocab && at == length - 1,
            .recompute = recompute,
        };
        place_of_stage(plan, placement, i, &stage.rank, &stage.chunk);
        g_array_append_val(plan->stages, stage);
    }
}

int64_t
plan_micro_batch_sequences(const Plan *plan, int64_t i)
{
    g_return_val_if_fail(i >= 0 && i < plan->n_micro_batches, plan->micro_batch);
    return plan->micro_batch_sequences == NULL
               ? plan->micro_batch
               : g_array_index(plan->micro_batch_sequences, int64_t, i);
}

const char *
plan_recompute_name(const Plan *plan)
{
    if (plan->stages->len == 0)
        return "-";
    const PlanRecompute first = g_array_index(plan->stages, PlanStage, 0).recompute;
    for (guint i = 1; i < plan->stages->len; i++)
        if (g_array_index(plan->stages, PlanStage, i).recompute != first)
            return "mixed";
    return plan_recompute_names[first];
}

int64_t
plan_n_devices(const Plan *plan)
{
    return plan->degrees.dp * plan->degrees.tp * plan->degrees.pp * plan->degrees.cp;
}

/* --- keys of degrees --- */

#define DEGREE(member) JSON_FIELD_OF(PlanDegrees, member)

static const JsonField degree_fields[] = {
    {"dp", DEGREE(dp), 1, SCHEDULE_MAX_RANKS, JSON_OPTIONAL},
    {"tp", DEGREE(tp), 1, SCHEDULE_MAX_RANKS, JSON_OPTIONAL},
    {"pp", DEGREE(pp), 1, SCHEDULE_MAX_RANKS, JSON_OPTIONAL},
    {"vpp", DEGREE(vpp), 1, SCHEDULE_MAX_CHUNKS, JSON_OPTIONAL},
    {"cp", DEGREE(cp), 1, SCHEDULE_MAX_RANKS, JSON_OPTIONAL},
    {"ep", DEGREE(ep), 1, SCHEDULE_MAX_RANKS, JSON_OPTIONAL},
    {.key = NULL},
};

/* --- checks --- */

static bool
check_degrees(const Plan *plan, GError **error)
{
    const PlanDegrees *d = &plan->degrees;
    int64_t n = 1;

    for (const JsonField *field = degree_fields; field->key != NULL; field++) {
        const int64_t value = json_field_int64(field, d);

        if (value < 1)
            return plan_invalid(error, "degrees.%s: must be at least 1, got " INT, field->key,
                                value);
        if (value > SCHEDULE_MAX_RANKS)
            return plan_invalid(error, "degrees.%s: " INT " is more than the limit of " INT,
                                field->key, value, SCHEDULE_MAX_RANKS);
        if (strcmp(field->key, "vpp") != 0 && strcmp(field->key, "ep") != 0 &&
            (__builtin_mul_overflow(n, value, &n) || n > SCHEDULE_MAX_RANKS))
            return plan_invalid(
                error, "degrees: dp * tp * pp * cp is more than the limit of " INT " devices",
                SCHEDULE_MAX_RANKS);
    }
    if (d->vpp > SCHEDULE_MAX_CHUNKS)
        return plan_invalid(error, "degrees.vpp: " INT " is more than the limit of %d", d->vpp,
                            SCHEDULE_MAX_CHUNKS);
    /* Experts are spread over the devices of one stage. */
    if (d->dp * d->tp * d->cp % d->ep != 0)
        return plan_invalid(error, "degrees.ep: " INT " does not divide dp * tp * cp = " INT, d->ep,
                            d->dp * d->tp * d->cp);
    if (plan->conventions.expert_tp > 1 && d->tp % plan->conventions.expert_tp != 0)
        return plan_invalid(error, "conventions.expert_tp: " INT " does not divide tp = " INT,
                            plan->conventions.expert_tp, d->tp);
    if (d->dp * d->tp * d->cp / plan_expert_tp(d, &plan->conventions) % d->ep != 0)
        return plan_invalid(error,
                            "degrees.ep: " INT " does not divide dp * tp * cp / expert_tp = " INT,
                            d->ep, d->dp * d->tp * d->cp / plan_expert_tp(d, &plan->conventions));
    if (d->rank_order < 0 || d->rank_order >= PLAN_RANK_ORDER_N)
        return plan_invalid(error, "rank_order: no such order");
    return plan_rank_order_check(d, &plan->conventions, error);
}

static bool
check_batch(const Plan *plan, GError **error)
{
    int64_t sequences = 0, largest = 0;

    if (plan->global_batch < 1 || plan->micro_batch < 1 || plan->n_micro_batches < 1)
        return plan_invalid(error,
                            "global_batch " INT ", micro_batch " INT " and n_microbatches " INT
                            " must be at least 1",
                            plan->global_batch, plan->micro_batch, plan->n_micro_batches);
    if (plan->micro_batch_sequences == NULL) {
        if (__builtin_mul_overflow(plan->micro_batch, plan->n_micro_batches, &sequences))
            sequences = 0;
    } else {
        if (plan->micro_batch_sequences->len != plan->n_micro_batches)
            return plan_invalid(error, "batch_slices: %u entries for " INT " micro-batches",
                                plan->micro_batch_sequences->len, plan->n_micro_batches);
        for (guint i = 0; i < plan->micro_batch_sequences->len; i++) {
            const int64_t n = g_array_index(plan->micro_batch_sequences, int64_t, i);
            if (n < 1 || n > plan->global_batch - sequences)
                return plan_invalid(error,
                                    "batch_slices[%u]: " INT " sequences after " INT
                                    " of a global_batch of " INT,
                                    i, n, sequences, plan->global_batch);
            sequences += n;
            largest = MAX(largest, n);
        }
        if (largest != plan->micro_batch)
            return plan_invalid(error,
                                "micro_batch: " INT " is not the largest of batch_slices, " INT,
                                plan->micro_batch, largest);
    }
    int64_t total = 0;
    if (__builtin_mul_overflow(sequences, plan->degrees.dp, &total) || total != plan->global_batch)
        return plan_invalid(error,
                            "global_batch: " INT " is not dp " INT
                            " times the sequences of all n_microbatches (" INT " of up to " INT ")",
                            plan->global_batch, plan->degrees.dp, plan->n_micro_batches,
                            plan->micro_batch);
    return true;
}

static bool
check_slices(const Plan *plan, GError **error)
{
    int64_t tokens = 0;

    if (plan->seq_len < 1)
        return plan_invalid(error, "seq_len: must be at least 1, got " INT, plan->seq_len);
    if (plan->slices->len < 1 || plan->slices->len > SCHEDULE_MAX_SLICES)
        return plan_invalid(error, "slices: from 1 to %d slices, got %u", SCHEDULE_MAX_SLICES,
                            plan->slices->len);
    for (guint i = 0; i < plan->slices->len; i++) {
        const int64_t n = g_array_index(plan->slices, int64_t, i);
        if (n < 1 || n > plan->seq_len - tokens)
            return plan_invalid(error,
                                "slices[%u]: " INT " tokens after " INT " of a sequence of " INT, i,
                                n, tokens, plan->seq_len);
        tokens += n;
    }
    if (tokens != plan->seq_len)
        return plan_invalid(error, "slices: sum to " INT " tokens, seq_len is " INT, tokens,
                            plan->seq_len);
    if (plan->seq_len % plan->degrees.cp != 0)
        return plan_invalid(error, "degrees.cp: " INT " does not divide seq_len " INT,
                            plan->degrees.cp, plan->seq_len);
    return true;
}

static bool
check_stage(const Plan *plan, SchedulePlacement placement, guint i, int64_t *next_layer,
            bool has_vocab, GError **error)
{
    const PlanStage *stage = &g_array_index(plan->stages, PlanStage, i);
    const int64_t length = chain_length(plan, placement);
    const bool first = i % length == 0, last = i % length == length - 1;
    int32_t rank, chunk;

    if (first)
        *next_layer = 0;
    place_of_stage(plan, placement, i, &rank, &chunk);
    if (stage->rank != rank || stage->chunk != chunk)
        return plan_invalid(
            error,
            "stages[%u]: lies on rank %d, chunk %d; schedule %s (placement %s) has it on "
            "rank %d, chunk %d",
            i, stage->rank, stage->chunk, plan->schedule, schedule_placement_names[placement], rank,
            chunk);
    if (stage->first_layer != *next_layer)
        return plan_invalid(error, "stages[%u].first_layer: expected " INT ", got " INT, i,
                            *next_layer, stage->first_layer);
    if (stage->embedding != (has_vocab && first))
        return plan_invalid(
            error,
            "stages[%u].embedding: belongs on the first stage, with the head on the "
            "last",
            i);
    if (stage->head != (has_vocab && last))
        return plan_invalid(error,
                            "stages[%u].head: belongs on the last stage, with the embedding on the "
                            "first",
                            i);
    if (stage->n_layers < 0)
        return plan_invalid(error, "stages[%u].n_layers: must be at least 0, got " INT, i,
                            stage->n_layers);
    if ((plan->conventions.recompute_modules >> PLAN_MODULE_OPS & 1) != 0 &&
        plan->conventions.recompute_modules != UINT32_C(1) << PLAN_MODULE_OPS)
        return plan_invalid(error, "conventions.recompute_modules: op is chosen alone");
    if (stage->recompute >= PLAN_RECOMPUTE_N)
        return plan_invalid(error, "stages[%u].recompute: no such choice", i);
    *next_layer += stage->n_layers;
    return true;
}

static bool
check_stages(const Plan *plan, SchedulePlacement placement, int64_t n_layers, GError **error)
{
    const int64_t length = chain_length(plan, placement);
    const int64_t n_stages = plan->degrees.pp * plan->degrees.vpp;
    int64_t next_layer = 0;

    if (plan->stages->len != n_stages)
        return plan_invalid(error, "stages: %u stages, but pp * vpp is " INT, plan->stages->len,
                            n_stages);
    const bool has_vocab = g_array_index(plan->stages, PlanStage, 0).embedding;
    for (guint i = 0; i < plan->stages->len; i++) {
        const PlanStage *stage = &g_array_index(plan->stages, PlanStage, i);
        if (stage->n_layers > n_layers)
            return plan_invalid(error, "stages[%u].n_layers: " INT " of a model of " INT " layers",
                                i, stage->n_layers, n_layers);
        if (!check_stage(plan, placement, i, &next_layer, has_vocab, error))
            return false;
        if (i % length == length - 1 && next_layer != n_layers)
            return plan_invalid(error, "stages: cover " INT " layers, the model has " INT,
                                next_layer, n_layers);
    }
    return true;
}

ScheduleShape
plan_shape(const Plan *plan)
{
    return (ScheduleShape){
        .n_ranks = plan->degrees.pp,
        .n_chunks = plan->degrees.vpp,
        .n_micro_batches = plan->n_micro_batches,
        .n_slices = plan->slices->len,
        .group = plan->group,
        .merges = plan_merges_pairs(&plan->conventions, &plan->degrees),
    };
}

bool
plan_check(const Plan *plan, int64_t n_layers, GError **error)
{
    g_return_val_if_fail(plan != NULL, false);
    if (!check_degrees(plan, error) || !check_batch(plan, error) || !check_slices(plan, error))
        return false;
    if (plan->zero_stage < 0 || plan->zero_stage > 3)
        return plan_invalid(error, "zero_stage: must be from 0 to 3, got %d", plan->zero_stage);
    if (plan->offload_parameters && plan->zero_stage != 3)
        return plan_invalid(error, "offload_parameters: needs zero_stage 3, got %d",
                            plan->zero_stage);
    const uint32_t instances = plan_framework(plan->conventions.framework)->instances;
    if (plan->conventions.optimizer_instances > 1 && (instances >> plan->zero_stage & 1) == 0)
        return plan_invalid(error,
                            "conventions.optimizer_instances: zero_stage %d of %s has one group",
                            plan->zero_stage, plan_framework(plan->conventions.framework)->name);
    if (plan->conventions.optimizer_instances > 1 &&
        plan->degrees.dp % plan->conventions.optimizer_instances != 0)
        return plan_invalid(error,
                            "conventions.optimizer_instances: " INT " does not divide dp = " INT,
                            plan->conventions.optimizer_instances, plan->degrees.dp);
    if (plan->offload_parameters && plan->offload == PLAN_OFFLOAD_NONE)
        return plan_invalid(error, "offload_parameters: needs offload cpu or nvme, got none");
    g_autoptr(GError) refused = NULL;
    const ScheduleFamily *family = schedule_family_find(plan->schedule, &refused);
    const ScheduleShape shape = plan_shape(plan);
    if (family == NULL || !schedule_shape_check(family, &shape, &refused))
        return plan_invalid(error, "schedule: %s", refused->message);
    return check_stages(plan, family->placement, n_layers, error);
}

Schedule *
plan_build_schedule(const Plan *plan, const ScheduleTimes *times, GError **error)
{
    g_return_val_if_fail(plan != NULL, NULL);
    ScheduleShape shape = plan_shape(plan);

    shape.times = times;
    return schedule_new(plan->schedule, &shape, error);
}

/* --- the keys of "degas-plan" that are the plan's own --- */

#define PLAN(member) JSON_FIELD_OF(Plan, member)
#define STAGE(member) JSON_FIELD_OF(PlanStage, member)
#define CONVENTION(member) JSON_FIELD_OF(PlanConventions, member)
/* What few plans say is written where it is said. */
#define SPARSE (JSON_OPTIONAL | JSON_SPARSE)

static const JsonField split_fields[] = {
    {"global_batch", PLAN(global_batch), 1, JSON_MAX_INT},
    {"seq_len", PLAN(seq_len), 1, JSON_MAX_INT},
    {"dtype", PLAN(dtype), .names = dtype_names},
    {"degrees", PLAN(degrees), .fields = degree_fields},
    {"rank_order", PLAN(degrees.rank_order), .flags = SPARSE, .usual = PLAN_RANK_ORDER_DEFAULT,
     .names = plan_rank_order_names},
    {"micro_batch", PLAN(micro_batch), 1, JSON_MAX_INT},
    {"n_microbatches", PLAN(n_micro_batches), 1, INT32_MAX},
    {"schedule", PLAN(schedule)},
    {"group", PLAN(group), 0, INT32_MAX, SPARSE},
    {.key = NULL},
};

static const JsonField stage_fields[] = {
    {"rank", STAGE(rank), 0, SCHEDULE_MAX_RANKS - 1},
    {"chunk", STAGE(chunk), 0, SCHEDULE_MAX_CHUNKS - 1, JSON_OPTIONAL},
    {"first_layer", STAGE(first_layer), 0, INT32_MAX},
    {"n_layers", STAGE(n_layers), 0, INT32_MAX},
    {"embedding", STAGE(embedding), .flags = JSON_OPTIONAL},
    {"head", STAGE(head), .flags = JSON_OPTIONAL},
    {"recompute", STAGE(recompute), .flags = JSON_OPTIONAL, .names = plan_recompute_names},
    {.key = NULL},
};

static const JsonField memory_fields[] = {
    {"zero_stage", PLAN(zero_stage), 0, 3, JSON_OPTIONAL},
    {"offload", PLAN(offload), .flags = JSON_OPTIONAL, .names = plan_offload_names},
    {"offload_parameters", PLAN(offload_parameters), .flags = SPARSE},
    {"prefetch_layers", PLAN(prefetch_layers), 0, PLAN_MAX_PREFETCH, SPARSE,
     .usual = PLAN_PREFETCH_AUTO},
    {"sequence_parallel", PLAN(sequence_parallel), .flags = JSON_OPTIONAL},
    {.key = NULL},
};

/* After "framework", whose conventions absent keys take. */
static const JsonField convention_fields[] = {
    {"attention", CONVENTION(attention), .flags = JSON_OPTIONAL, .names = plan_attention_names},
    {"grad_dtype", CONVENTION(grad_dtype), .flags = JSON_OPTIONAL, .names = dtype_names},
    {"overlap_dp", CONVENTION(overlap_dp), .flags = JSON_OPTIONAL},
    {"overlap_pp", CONVENTION(overlap_pp), .flags = JSON_OPTIONAL},
    {"overlap_tp", CONVENTION(overlap_tp), .flags = JSON_OPTIONAL},
    {"dropout", CONVENTION(dropout), .flags = JSON_OPTIONAL},
    {"kernels", CONVENTION(kernels), .flags = JSON_OPTIONAL, .names = plan_kernels_names},
    {"scatter_gather_p2p", CONVENTION(scatter_gather_p2p), .flags = JSON_OPTIONAL},
    {"broadcast_p2p", CONVENTION(broadcast_p2p), .flags = JSON_OPTIONAL},
    {"optimizer_step", CONVENTION(optimizer_step), .flags = JSON_OPTIONAL},
    {"recompute_method", CONVENTION(recompute_method), .flags = SPARSE,
     .names = plan_recompute_method_names},
    {"recompute_layers", CONVENTION(recompute_layers), 0, INT32_MAX, SPARSE},
    {"optimizer", CONVENTION(optimizer), .flags = SPARSE, .names = plan_optimizer_names},
    {"muon_tp", CONVENTION(muon_tp), .flags = SPARSE, .names = plan_muon_tp_names},
    {"optimizer_instances", CONVENTION(optimizer_instances), 0, SCHEDULE_MAX_RANKS, SPARSE},
    {"deferred_gradients", CONVENTION(deferred_gradients), 0, INT32_MAX, SPARSE},
    {"cp_comm", CONVENTION(cp_comm), .flags = SPARSE, .names = plan_cp_comm_names},
    {"loss", CONVENTION(loss), .flags = SPARSE, .names = plan_loss_names},
    {"expert_tp", CONVENTION(expert_tp), 1, SCHEDULE_MAX_RANKS, SPARSE, .usual = 1},
    {"expert_imbalance", CONVENTION(expert_imbalance), 1.0, PLAN_MAX_IMBALANCE, SPARSE},
    {"expert_capacity", CONVENTION(expert_capacity), 1.0, PLAN_MAX_IMBALANCE, SPARSE},
    {"overlap_ep", CONVENTION(overlap_ep), .flags = SPARSE},
    {"dispatcher", CONVENTION(dispatcher), .flags = SPARSE, .names = plan_dispatcher_names},
    {"cuda_graphs", CONVENTION(cuda_graphs), .flags = SPARSE, .names = plan_graphs_names},
    {"quantise", CONVENTION(quantise), .flags = SPARSE, .names = plan_quantise_names},
    {"deterministic", CONVENTION(deterministic), .flags = SPARSE},
    {"wide_reduction", CONVENTION(wide_reduction), .flags = SPARSE},
    {.key = NULL},
};

static const JsonField bound_fields[] = {
    {"lower_bound_s", PLAN(lower_bound_s), 0, G_MAXDOUBLE, SPARSE | JSON_NULLABLE, .usual = NAN},
    {"physical_bound_s", PLAN(physical_bound_s), 0, G_MAXDOUBLE, SPARSE | JSON_NULLABLE,
     .usual = NAN},
    {"optimality_gap_fraction", PLAN(optimality_gap_fraction), 0, G_MAXDOUBLE,
     SPARSE | JSON_NULLABLE, .usual = NAN},
    {.key = NULL},
};

static const JsonField search_fields[] = {
    {"considered", PLAN(search.considered), 0, JSON_MAX_INT},
    {"pruned", PLAN(search.pruned), 0, JSON_MAX_INT},
    {"simulated", PLAN(search.simulated), 0, JSON_MAX_INT},
    {"infeasible", PLAN(search.infeasible), 0, JSON_MAX_INT},
    {.key = NULL},
};

/* --- writing --- */

static void
write_int64s(JsonWriter *writer, const char *key, const GArray *values)
{
    json_write_array_inline(writer, key);
    for (guint i = 0; i < values->len; i++)
        json_write_int64(writer, NULL, g_array_index(values, int64_t, i));
    json_write_array_end(writer);
}

static void
write_conventions(JsonWriter *writer, PlanConventions c)
{
    c.expert_tp = MAX(c.expert_tp, 1);
    json_write_object_inline(writer, "conventions");
    json_write_string(writer, "framework", plan_framework(c.framework)->name);
    json_fields_write(writer, convention_fields, &c);
    /* The first of the words, which is left out where it is usual. */
    if (c.loss == PLAN_LOSS_PLAIN && plan_conventions(c.framework).loss != PLAN_LOSS_PLAIN)
        json_write_string(writer, "loss", plan_loss_names[c.loss]);
    if (c.pads_vocab != plan_conventions(c.framework).pads_vocab)
        json_write_bool(writer, "pad_vocab", c.pads_vocab);
    if (c.stack > 0) {
        char stack[PLAN_STACK_TEXT];
        plan_stack_text(c.stack, stack);
        json_write_string(writer, "stack", stack);
    }
    if (c.recompute_modules != 0) {
        json_write_array_inline(writer, "recompute_modules");
        for (int i = 0; i < PLAN_MODULE_N; i++)
            if (c.recompute_modules >> i & 1)
                json_write_string(writer, NULL, plan_module_names[i]);
        json_write_array_end(writer);
    }
    json_write_object_end(writer);
}

/* What the planner found out; nothing of a hand-written plan. */
static void
write_results(JsonWriter *writer, const Plan *plan)
{
    if (plan->predicted != NULL) {
        json_write_object(writer, "predicted");
        report_write(writer, plan->predicted);
        json_write_object_end(writer);
    }
    json_fields_write(writer, bound_fields, plan);
    if (plan->search.considered > 0)
        json_fields_write_object(writer, "search", search_fields, plan);
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
plan_write_degrees(JsonWriter *writer, const PlanDegrees *degrees)
{
    json_fields_write_object(writer, "degrees", degree_fields, degrees);
}

void
plan_write_members(JsonWriter *writer, const Plan *plan)
{
    json_fields_write(writer, split_fields, plan);
    json_fields_write_rows(writer, "stages", stage_fields, plan->stages);
    write_int64s(writer, "slices", plan->slices);
    if (plan->micro_batch_sequences != NULL)
        write_int64s(writer, "batch_slices", plan->micro_batch_sequences);
    json_fields_write(writer, memory_fields, plan);
    write_conventions(writer, plan->conventions);
    write_results(writer, plan);
}

/* --- reading --- */

static void
read_int64s(JsonDoc *doc, const JsonValue *list, GArray *values)
{
    JSON_EACH (v, list, doc) {
        const int64_t value = json_value_int64(doc, v, 1, JSON_MAX_INT);
        g_array_append_val(values, value);
    }
}

static uint32_t
read_modules(JsonDoc *doc, const JsonValue *list)
{
    uint32_t set = 0;

    JSON_EACH (v, list, doc) {
        const char *name = json_value_string(doc, v);
        int i = 0;
        while (i < PLAN_MODULE_N && strcmp(plan_module_names[i], name) != 0)
            i++;
        if (i == PLAN_MODULE_N)
            json_fail(doc, v,
                      "expected core_attn, layernorm, mlp, moe, moe_act, mla_up_proj, "
                      "shared_experts or op");
        else
            set |= UINT32_C(1) << i;
    }
    return set;
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
    c.expert_tp = 1;
    json_fields_read(doc, v, convention_fields, &c);
    c.pads_vocab = json_bool_or(doc, v, "pad_vocab", c.pads_vocab);
    const char *stack = json_string_or(doc, v, "stack", NULL);
    if (stack != NULL && !plan_stack_read(stack, &c.stack))
        json_fail(doc, json_member(doc, v, "stack"), "expected a month as YYYY-MM");
    const JsonValue *modules = json_array_or_null(doc, v, "recompute_modules");
    if (modules != NULL)
        c.recompute_modules = read_modules(doc, modules);
    json_object_end(doc, v);
    return c;
}

static Plan *read_plan(JsonDoc *doc, const JsonValue *object, bool outermost);

static void
read_results(JsonDoc *doc, const JsonValue *object, bool outermost, Plan *plan)
{
    const JsonValue *predicted = json_object_or_null(doc, object, "predicted");
    const JsonValue *search = json_object_or_null(doc, object, "search");

    if (predicted != NULL)
        plan->predicted = report_read(doc, predicted);
    json_fields_read(doc, object, bound_fields, plan);
    if (search != NULL)
        json_fields_read_object(doc, search, search_fields, plan);
    if (!outermost)
        return; /* alternatives of alternatives are unknown keys */
    const JsonValue *list = json_array_or_null(doc, object, "alternatives");
    if (list == NULL)
        return;
    plan->alternatives = g_ptr_array_new_with_free_func((GDestroyNotify)plan_free);
    JSON_EACH (v, list, doc) {
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

    json_fields_read(doc, object, split_fields, plan);
    json_fields_read_rows(doc, json_array(doc, object, "stages"), stage_fields, plan->stages);
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
    json_fields_read(doc, object, memory_fields, plan);
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
