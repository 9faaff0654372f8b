#include "cli/request/sweep.h"

#include <math.h>
#include <string.h>

#include "base/json_fields.h"
#include "base/units.h"
#include "cli/request/output.h"
#include "profiles/workload/state.h"
#include "schedule/rank_order.h"

#define DAY_S 86400.0

/* --- columns --- */

#define POINT(member) JSON_FIELD_OF(SweepPoint, member)
#define SWEEP(member) JSON_FIELD_OF(Sweep, member)

/* The keys of a point, which are also the TSV's columns, with their units.  A point without a plan
 * has the first of these tables only. */
static const JsonField request_fields[] = {
    {"n_devices", POINT(n_devices), 0, JSON_MAX_INT},
    {"global_batch", POINT(global_batch), 0, JSON_MAX_INT},
    {"seq_len", POINT(seq_len), 0, JSON_MAX_INT},
    {"feasible", POINT(is_feasible)},
    {"reason", POINT(reason), .flags = JSON_OPTIONAL | JSON_NULLABLE},
    {"cluster", POINT(cluster), .flags = JSON_OPTIONAL | JSON_NULLABLE | JSON_SPARSE},
    {.key = NULL},
};
static const JsonField degree_fields[] = {
    {"dp", POINT(degrees.dp), 0, JSON_MAX_INT},
    {"tp", POINT(degrees.tp), 0, JSON_MAX_INT},
    {"pp", POINT(degrees.pp), 0, JSON_MAX_INT},
    {"vpp", POINT(degrees.vpp), 0, JSON_MAX_INT},
    {"cp", POINT(degrees.cp), 0, JSON_MAX_INT},
    {"ep", POINT(degrees.ep), 0, JSON_MAX_INT},
    {.key = NULL},
};
static const JsonField plan_fields[] = {
    {"micro_batch", POINT(micro_batch), 0, JSON_MAX_INT},
    {"n_microbatches", POINT(n_micro_batches), 0, JSON_MAX_INT},
    {"schedule", POINT(schedule), .flags = JSON_OPTIONAL | JSON_NULLABLE},
    {"n_slices", POINT(n_slices), 0, JSON_MAX_INT},
    {"recompute", POINT(recompute), .flags = JSON_OPTIONAL | JSON_NULLABLE},
    {"zero_stage", POINT(zero_stage), 0, JSON_MAX_INT},
    {"offload", POINT(offload), .flags = JSON_OPTIONAL | JSON_NULLABLE},
    {"sequence_parallel", POINT(sequence_parallel)},
    {"rank_order", POINT(rank_order), .flags = JSON_OPTIONAL | JSON_NULLABLE},
    {"iteration_s", POINT(iteration_s), 0, 1e300, JSON_NULLABLE},
    {"tokens_per_s", POINT(tokens_per_s), 0, 1e300, JSON_NULLABLE},
    {"tokens_per_s_per_device", POINT(tokens_per_s_per_device), 0, 1e300, JSON_NULLABLE},
    {"model_flops_per_s_per_device", POINT(model_flops_per_s_per_device), 0, 1e300, JSON_NULLABLE},
    {"model_flops_utilization_fraction", POINT(model_flops_utilization_fraction), 0, 1e300,
     JSON_NULLABLE},
    {"bubble_fraction", POINT(bubble_fraction), 0, 1e300, JSON_NULLABLE},
    {"peak_memory_bytes", POINT(peak_memory_bytes), 0, JSON_MAX_INT},
    {"memory_limit_bytes", POINT(memory_limit_bytes), 0, JSON_MAX_INT},
    {"lower_bound_s", POINT(lower_bound_s), 0, 1e300, JSON_NULLABLE},
    {"optimality_gap_fraction", POINT(optimality_gap_fraction), 0, 1e300, JSON_NULLABLE},
    {"cost_per_iteration", POINT(cost_per_iteration), 0, 1e300, JSON_NULLABLE},
    {"energy_per_iteration_j", POINT(energy_per_iteration_j), 0, 1e300, JSON_NULLABLE},
    {"job_mtbf_s", POINT(goodput.job_mtbf_s), 0, 1e300, JSON_NULLABLE},
    {"checkpoint_bytes", POINT(checkpoint_bytes), 0, 1e300, JSON_NULLABLE},
    {"checkpoint_s", POINT(goodput.checkpoint_s), 0, 1e300, JSON_NULLABLE},
    {"checkpoint_interval_s", POINT(goodput.interval_s), 0, 1e300, JSON_NULLABLE},
    {"checkpoint_interval_iterations", POINT(goodput.interval_iterations), 0, JSON_MAX_INT},
    {"goodput_fraction", POINT(goodput.goodput_fraction), 0, 1e300, JSON_NULLABLE},
    {"checkpoint_loss_fraction", POINT(goodput.checkpoint_loss_fraction), 0, 1e300, JSON_NULLABLE},
    {"failure_loss_fraction", POINT(goodput.failure_loss_fraction), 0, 1e300, JSON_NULLABLE},
    {"effective_tokens_per_s", POINT(effective_tokens_per_s), 0, 1e300, JSON_NULLABLE},
    {"days", POINT(days), 0, 1e300, JSON_NULLABLE},
    {"cost", POINT(cost), 0, 1e300, JSON_NULLABLE},
    {"energy_j", POINT(energy_j), 0, 1e300, JSON_NULLABLE},
    {"effective_days", POINT(effective_days), 0, 1e300, JSON_NULLABLE},
    {"effective_cost", POINT(effective_cost), 0, 1e300, JSON_NULLABLE},
    {"effective_energy_j", POINT(effective_energy_j), 0, 1e300, JSON_NULLABLE},
    {.key = NULL},
};
static const JsonField *const tables[] = {request_fields, degree_fields, plan_fields};

static const JsonField sweep_fields[] = {
    {"model", SWEEP(model)},
    {"cluster", SWEEP(cluster)},
    {"dtype", SWEEP(dtype)},
    {"objective", SWEEP(objective)},
    {"tokens", SWEEP(tokens), 0, 1e300, JSON_NULLABLE},
    {"within_days", SWEEP(within_days), 0, 1e300, JSON_OPTIONAL | JSON_NULLABLE | JSON_SPARSE,
     .usual = NAN},
    {"budget", SWEEP(budget), 0, 1e300, JSON_OPTIONAL | JSON_NULLABLE | JSON_SPARSE, .usual = NAN},
    {"price_per_device_hour", SWEEP(price_per_device_hour), 0, 1e300, JSON_NULLABLE},
    {"currency", SWEEP(currency), .flags = JSON_OPTIONAL | JSON_NULLABLE},
    {"price_source", SWEEP(price_source), .flags = JSON_OPTIONAL | JSON_NULLABLE},
    {"device_mtbf_s", SWEEP(reliability.device_mtbf_s), 1e-9, 1e300, JSON_NULLABLE},
    {"checkpoint_bytes_per_s", SWEEP(reliability.checkpoint_bytes_per_s), 1e-9, 1e300,
     JSON_NULLABLE},
    {"restart_s", SWEEP(reliability.restart_s), 0, 1e300, JSON_NULLABLE},
    {"complete", SWEEP(is_complete)},
    {.key = NULL},
};

static void *
cell(const SweepPoint *point, const JsonField *column)
{
    return (char *)point + column->offset;
}

/* A point of which nothing is known. */
static SweepPoint
empty_point(void)
{
    SweepPoint point = {0};

    for (const JsonField *c = plan_fields; c->key != NULL; c++)
        if (c->type == JSON_DOUBLE)
            *(double *)cell(&point, c) = NAN;
    return point;
}

static void
point_clear(void *data)
{
    for (size_t i = 0; i < G_N_ELEMENTS(tables); i++)
        for (const JsonField *c = tables[i]; c->key != NULL; c++)
            if (c->type == JSON_TEXT)
                g_free(*(char **)cell(data, c));
}

Sweep *
sweep_new(void)
{
    Sweep *sweep = g_new0(Sweep, 1);

    sweep->tokens = sweep->within_days = sweep->budget = NAN;
    sweep->points = g_array_new(FALSE, FALSE, sizeof(SweepPoint));
    g_array_set_clear_func(sweep->points, point_clear);
    return sweep;
}

void
sweep_free(Sweep *sweep)
{
    if (sweep == NULL)
        return;
    g_free(sweep->model);
    g_free(sweep->cluster);
    g_free(sweep->dtype);
    g_free(sweep->objective);
    g_free(sweep->currency);
    g_free(sweep->price_source);
    g_array_unref(sweep->points);
    g_free(sweep);
}

/* --- a point --- */

static void
set_plan(SweepPoint *point, const Plan *plan)
{
    point->degrees = plan->degrees;
    point->micro_batch = plan->micro_batch;
    point->n_micro_batches = plan->n_micro_batches;
    point->schedule = g_strdup(plan->schedule);
    point->n_slices = plan->slices->len;
    point->recompute = g_strdup(plan_recompute_name(plan));
    point->zero_stage = plan->zero_stage;
    point->offload = g_strdup(plan_offload_names[plan->offload]);
    point->sequence_parallel = plan->sequence_parallel;
    point->rank_order = g_strdup(plan_rank_order_names[plan->degrees.rank_order]);
    point->lower_bound_s = plan->lower_bound_s;
    point->optimality_gap_fraction = plan->optimality_gap_fraction;
}

static void
set_report(SweepPoint *point, const Report *report)
{
    point->iteration_s = units_s_from_ns(report->iteration_ns);
    point->tokens_per_s = report->tokens_per_s;
    point->tokens_per_s_per_device = report->tokens_per_s / (double)point->n_devices;
    point->model_flops_per_s_per_device = report->model_flops_per_s_per_device;
    point->model_flops_utilization_fraction = report->model_flops_utilization_fraction;
    point->bubble_fraction = report->bubble_fraction;
    point->peak_memory_bytes = report->peak_memory_bytes;
    point->memory_limit_bytes = report->memory_limit_bytes;
    point->cost_per_iteration = report->cost_per_iteration;
    point->energy_per_iteration_j = report->energy_per_iteration_j;
}

static void
set_goodput(SweepPoint *point, const SweepReliability *reliability)
{
    const PlanGoodputRequest request = {
        .n_devices = point->n_devices,
        .device_mtbf_s = reliability->device_mtbf_s,
        .checkpoint_bytes = point->checkpoint_bytes,
        .checkpoint_bytes_per_s =
            reliability->checkpoint_bytes_per_s > 0
                ? reliability->checkpoint_bytes_per_s
                : PLAN_GOODPUT_BYTES_PER_S_PER_DEVICE * (double)point->n_devices,
        .restart_s = reliability->restart_s,
        .iteration_s = point->iteration_s,
    };

    point->goodput = plan_goodput(&request);
    point->effective_tokens_per_s = point->tokens_per_s * point->goodput.goodput_fraction;
}

static void
set_training(SweepPoint *point, double tokens)
{
    const double n_iterations = tokens / ((double)point->global_batch * (double)point->seq_len);

    point->days = tokens / point->tokens_per_s / DAY_S;
    point->cost = n_iterations * point->cost_per_iteration;
    point->energy_j = n_iterations * point->energy_per_iteration_j;
    /* Devices are paid for, and powered, while they wait. */
    point->effective_days = point->days / point->goodput.goodput_fraction;
    point->effective_cost = point->cost / point->goodput.goodput_fraction;
    point->effective_energy_j = point->energy_j / point->goodput.goodput_fraction;
}

void
sweep_add(Sweep *sweep, const Request *request, const Plan *plan, const char *reason)
{
    SweepPoint point = empty_point();

    point.n_devices =
        plan != NULL ? plan_n_devices(plan) : model_cluster_n_devices(request->profile->cluster);
    point.global_batch = request->plan.global_batch;
    point.seq_len = request->plan.seq_len;
    point.is_feasible = plan != NULL;
    point.reason = g_strdup(reason);
    if (plan != NULL) {
        set_plan(&point, plan);
        set_report(&point, plan->predicted);
        point.checkpoint_bytes = workload_checkpoint_bytes(request->arch, plan);
        set_goodput(&point, &sweep->reliability);
        set_training(&point, sweep->tokens);
    }
    g_array_append_val(sweep->points, point);
}

bool
sweep_varies(const Sweep *sweep, size_t offset)
{
    for (guint i = 1; i < sweep->points->len; i++)
        if (memcmp((const char *)sweep_at(sweep, i) + offset,
                   (const char *)sweep_at(sweep, i - 1) + offset, sizeof(int64_t)) != 0)
            return true;
    return false;
}

const SweepPoint *
sweep_best(const Sweep *sweep, size_t offset, int sign)
{
    const SweepPoint *best = NULL;
    double least = INFINITY;

    for (guint i = 0; i < sweep->points->len; i++) {
        const SweepPoint *point = sweep_at(sweep, i);
        const double value = sign * *(const double *)(const void *)((const char *)point + offset);

        if (point->is_feasible && value < least) {
            least = value;
            best = point;
        }
    }
    return best;
}

bool
sweep_makes_it(const Sweep *sweep, const SweepPoint *point)
{
    return point->is_feasible && !(point->effective_days > sweep->within_days) &&
           !(point->effective_cost > sweep->budget);
}

/* What the answer has least of, in any unit. */
static double
spent(const Sweep *sweep, const SweepPoint *point)
{
    if (isnan(sweep->tokens))
        return g_str_equal(sweep->objective, "cost")     ? point->cost_per_iteration
               : g_str_equal(sweep->objective, "energy") ? point->energy_per_iteration_j
               : g_str_equal(sweep->objective, "memory") ? (double)point->peak_memory_bytes
                                                         : point->iteration_s;
    if (isnan(sweep->within_days) && isfinite(sweep->budget))
        return point->effective_days;
    return isfinite(point->effective_cost) ? point->effective_cost
                                           : point->effective_days * (double)point->n_devices;
}

const SweepPoint *
sweep_answer(const Sweep *sweep)
{
    const SweepPoint *best = NULL;

    for (guint i = 0; i < sweep->points->len; i++) {
        const SweepPoint *point = sweep_at(sweep, i);

        if (sweep_makes_it(sweep, point) &&
            (best == NULL || spent(sweep, point) < spent(sweep, best)))
            best = point;
    }
    return best;
}

/* --- files --- */

static void
write_point(JsonWriter *writer, const SweepPoint *point)
{
    json_write_object(writer, NULL);
    json_fields_write(writer, request_fields, point);
    if (point->is_feasible) {
        json_fields_write_object(writer, "degrees", degree_fields, point);
        json_fields_write(writer, plan_fields, point);
    }
    json_write_object_end(writer);
}

JsonWriter *
sweep_write(const Sweep *sweep)
{
    JsonWriter *writer = output_json_new("degas-sweep");
    Sweep known = *sweep;

    if (!(known.price_per_device_hour > 0))
        known.price_per_device_hour = NAN;
    if (!(known.reliability.checkpoint_bytes_per_s > 0))
        known.reliability.checkpoint_bytes_per_s = NAN;
    json_fields_write(writer, sweep_fields, &known);
    json_write_array(writer, "points");
    for (guint i = 0; i < sweep->points->len; i++)
        write_point(writer, sweep_at(sweep, i));
    json_write_array_end(writer);
    json_write_object_end(writer);
    return writer;
}

/* As json_fields_read(); a number may be null, but its key is there. */
static void
read_fields(JsonDoc *doc, const JsonValue *object, const JsonField *fields, void *record)
{
    for (const JsonField *field = fields; field->key != NULL; field++)
        if (field->type == JSON_DOUBLE && (field->flags & JSON_OPTIONAL) == 0 &&
            !json_has(doc, object, field->key))
            json_fail(doc, object, "\"%s\" is missing", field->key);
    json_fields_read(doc, object, fields, record);
}

static SweepPoint
read_point(JsonDoc *doc, const JsonValue *object)
{
    SweepPoint point = empty_point();

    json_fields_read(doc, object, request_fields, &point);
    if (point.is_feasible) {
        json_fields_read(doc, json_object(doc, object, "degrees"), degree_fields, &point);
        read_fields(doc, object, plan_fields, &point);
    }
    json_object_end(doc, object);
    if (point.is_feasible && !(point.iteration_s > 0))
        json_fail(doc, object, "a feasible point needs an iteration_s above 0");
    if (point.n_devices < 1 || point.global_batch < 1 || point.seq_len < 1)
        json_fail(doc, object, "n_devices, global_batch and seq_len are at least 1");
    return point;
}

Sweep *
sweep_read(JsonDoc *doc, const JsonValue *root)
{
    Sweep *sweep = sweep_new();
    SweepReliability *reliability = &sweep->reliability;

    read_fields(doc, root, sweep_fields, sweep);
    if (isnan(sweep->price_per_device_hour))
        sweep->price_per_device_hour = 0;
    if (isnan(reliability->device_mtbf_s))
        reliability->device_mtbf_s = INFINITY;
    if (isnan(reliability->checkpoint_bytes_per_s))
        reliability->checkpoint_bytes_per_s = 0;
    if (isnan(reliability->restart_s))
        reliability->restart_s = 0;
    const JsonValue *points = json_array(doc, root, "points");
    JSON_EACH (v, points, doc) {
        const SweepPoint point = read_point(doc, v);

        g_array_append_val(sweep->points, point);
    }
    json_object_end(doc, root);
    return sweep;
}

Table *
sweep_table(const Sweep *sweep)
{
    const char *header[64] = {NULL};
    size_t n = 0;

    for (size_t i = 0; i < G_N_ELEMENTS(tables); i++)
        for (const JsonField *c = tables[i]; c->key != NULL; c++)
            header[n++] = c->key;
    Table *table = table_new(header);
    for (guint p = 0; p < sweep->points->len; p++) {
        const SweepPoint *point = sweep_at(sweep, p);

        for (size_t i = 0; i < G_N_ELEMENTS(tables); i++)
            for (const JsonField *c = tables[i]; c->key != NULL; c++) {
                const char *text;

                if (c->type == JSON_DOUBLE) {
                    table_add_double(table, *(const double *)cell(point, c));
                } else if (c->type != JSON_TEXT) {
                    table_add_int64(table, json_field_int64(c, point));
                } else {
                    text = *(char *const *)cell(point, c);
                    table_add_text(table, text == NULL ? "-" : text);
                }
            }
    }
    return table;
}
