#include "cli/request/sweep.h"

#include <math.h>
#include <string.h>

#include "base/units.h"
#include "cli/request/output.h"
#include "profiles/workload/memory.h"
#include "schedule/rank_order.h"

#define DAY_S 86400.0

/* --- columns --- */

typedef enum {
    COLUMN_INT64,
    COLUMN_DOUBLE,
    COLUMN_TEXT,
    COLUMN_BOOL,
} ColumnKind;

typedef struct {
    const char *name;  /* of the key and the TSV column, with its unit */
    const char *group; /* (nullable) the JSON object that holds it */
    ColumnKind kind;
    size_t offset; /* in SweepPoint */
} Column;

#define COLUMN(kind, group, member)                                                                \
    {                                                                                              \
#member, group, kind, offsetof(SweepPoint, member)                                         \
    }
#define COUNT(member) COLUMN(COLUMN_INT64, NULL, member)
#define DOUBLE(member) COLUMN(COLUMN_DOUBLE, NULL, member)
#define TEXT(member) COLUMN(COLUMN_TEXT, NULL, member)
#define DEGREE(member) COLUMN(COLUMN_INT64, "degrees", member)

/* Ends with a NULL name. */
static const Column columns[] = {
    COUNT(n_devices),
    COUNT(global_batch),
    COUNT(seq_len),
    {"feasible", NULL, COLUMN_BOOL, offsetof(SweepPoint, is_feasible)},
    TEXT(reason),
    DEGREE(dp),
    DEGREE(tp),
    DEGREE(pp),
    DEGREE(vpp),
    DEGREE(cp),
    DEGREE(ep),
    COUNT(micro_batch),
    {"n_microbatches", NULL, COLUMN_INT64, offsetof(SweepPoint, n_micro_batches)},
    TEXT(schedule),
    COUNT(n_slices),
    TEXT(recompute),
    COUNT(zero_stage),
    TEXT(offload),
    COLUMN(COLUMN_BOOL, NULL, sequence_parallel),
    TEXT(rank_order),
    DOUBLE(iteration_s),
    DOUBLE(tokens_per_s),
    DOUBLE(tokens_per_s_per_device),
    DOUBLE(model_flops_per_s_per_device),
    DOUBLE(model_flops_utilization_fraction),
    DOUBLE(bubble_fraction),
    COUNT(peak_memory_bytes),
    COUNT(memory_limit_bytes),
    DOUBLE(lower_bound_s),
    DOUBLE(optimality_gap_fraction),
    DOUBLE(cost_per_iteration),
    DOUBLE(energy_per_iteration_j),
    DOUBLE(job_mtbf_s),
    DOUBLE(checkpoint_bytes),
    DOUBLE(checkpoint_s),
    DOUBLE(checkpoint_interval_s),
    COUNT(checkpoint_interval_iterations),
    DOUBLE(goodput_fraction),
    DOUBLE(checkpoint_loss_fraction),
    DOUBLE(failure_loss_fraction),
    DOUBLE(effective_tokens_per_s),
    DOUBLE(days),
    DOUBLE(cost),
    DOUBLE(energy_j),
    DOUBLE(effective_days),
    DOUBLE(effective_cost),
    DOUBLE(effective_energy_j),
    {NULL, NULL, COLUMN_INT64, 0},
};

static void *
cell(const SweepPoint *point, const Column *column)
{
    return (char *)point + column->offset;
}

/* A point of which nothing is known. */
static SweepPoint
empty_point(void)
{
    SweepPoint point = {0};

    for (const Column *c = columns; c->name != NULL; c++)
        if (c->kind == COLUMN_DOUBLE)
            *(double *)cell(&point, c) = NAN;
    return point;
}

static void
point_clear(void *data)
{
    for (const Column *c = columns; c->name != NULL; c++)
        if (c->kind == COLUMN_TEXT)
            g_free(*(char **)cell(data, c));
}

Sweep *
sweep_new(void)
{
    Sweep *sweep = g_new0(Sweep, 1);

    sweep->tokens = NAN;
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
    const PlanDegrees *d = &plan->degrees;

    point->dp = d->dp;
    point->tp = d->tp;
    point->pp = d->pp;
    point->vpp = d->vpp;
    point->cp = d->cp;
    point->ep = d->ep;
    point->micro_batch = plan->micro_batch;
    point->n_micro_batches = plan->n_micro_batches;
    point->schedule = g_strdup(plan->schedule);
    point->n_slices = plan->slices->len;
    point->recompute = g_strdup(plan_recompute_name(plan));
    point->zero_stage = plan->zero_stage;
    point->offload = g_strdup(plan_offload_names[plan->offload]);
    point->sequence_parallel = plan->sequence_parallel;
    point->rank_order = g_strdup(plan_rank_order_names[d->rank_order]);
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
    const PlanGoodput goodput = plan_goodput(&request);

    point->job_mtbf_s = goodput.job_mtbf_s;
    point->checkpoint_s = goodput.checkpoint_s;
    point->checkpoint_interval_s = goodput.interval_s;
    point->checkpoint_interval_iterations = goodput.interval_iterations;
    point->goodput_fraction = goodput.goodput_fraction;
    point->checkpoint_loss_fraction = goodput.checkpoint_loss_fraction;
    point->failure_loss_fraction = goodput.failure_loss_fraction;
    point->effective_tokens_per_s = point->tokens_per_s * goodput.goodput_fraction;
}

static void
set_training(SweepPoint *point, double tokens)
{
    const double n_iterations = tokens / ((double)point->global_batch * (double)point->seq_len);

    point->days = tokens / point->tokens_per_s / DAY_S;
    point->cost = n_iterations * point->cost_per_iteration;
    point->energy_j = n_iterations * point->energy_per_iteration_j;
    /* Devices are paid for, and powered, while they wait. */
    point->effective_days = point->days / point->goodput_fraction;
    point->effective_cost = point->cost / point->goodput_fraction;
    point->effective_energy_j = point->energy_j / point->goodput_fraction;
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
    const char *first = sweep->points->data + offset;

    for (guint i = 1; i < sweep->points->len; i++)
        if (memcmp((const char *)sweep_at(sweep, i) + offset, first, sizeof(int64_t)) != 0)
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

/* --- files --- */

static void
write_cell(JsonWriter *writer, const Column *column, const SweepPoint *point)
{
    const void *value = cell(point, column);

    switch (column->kind) {
    case COLUMN_INT64:
        json_write_int64(writer, column->name, *(const int64_t *)value);
        return;
    case COLUMN_DOUBLE:
        json_write_double(writer, column->name, *(const double *)value);
        return;
    case COLUMN_TEXT:
        json_write_string(writer, column->name, *(char *const *)value);
        return;
    default:
        json_write_bool(writer, column->name, *(const bool *)value);
    }
}

/* A row of a point without a plan ends with its reason. */
static bool
is_last(const Column *column, const SweepPoint *point)
{
    return !point->is_feasible && column->offset == offsetof(SweepPoint, reason);
}

static void
write_point(JsonWriter *writer, const SweepPoint *point)
{
    const char *group = NULL;

    json_write_object(writer, NULL);
    for (const Column *c = columns; c->name != NULL; c++) {
        if (group != NULL && c->group != group)
            json_write_object_end(writer);
        if (c->group != NULL && c->group != group)
            json_write_object_inline(writer, c->group);
        group = c->group;
        write_cell(writer, c, point);
        if (is_last(c, point))
            break;
    }
    json_write_object_end(writer);
}

JsonWriter *
sweep_write(const Sweep *sweep)
{
    JsonWriter *writer = output_json_new("degas-sweep");

    json_write_string(writer, "model", sweep->model);
    json_write_string(writer, "cluster", sweep->cluster);
    json_write_string(writer, "dtype", sweep->dtype);
    json_write_string(writer, "objective", sweep->objective);
    json_write_double(writer, "tokens", sweep->tokens);
    json_write_double(writer, "price_per_device_hour",
                      sweep->price_per_device_hour > 0 ? sweep->price_per_device_hour : NAN);
    json_write_string(writer, "currency", sweep->currency);
    json_write_string(writer, "price_source", sweep->price_source);
    json_write_double(writer, "device_mtbf_s", sweep->reliability.device_mtbf_s);
    json_write_double(writer, "checkpoint_bytes_per_s",
                      sweep->reliability.checkpoint_bytes_per_s > 0
                          ? sweep->reliability.checkpoint_bytes_per_s
                          : NAN);
    json_write_double(writer, "restart_s", sweep->reliability.restart_s);
    json_write_bool(writer, "complete", sweep->is_complete);
    json_write_array(writer, "points");
    for (guint i = 0; i < sweep->points->len; i++)
        write_point(writer, sweep_at(sweep, i));
    json_write_array_end(writer);
    json_write_object_end(writer);
    return writer;
}

static double
double_or_null(JsonDoc *doc, const JsonValue *object, const char *key, double min, double fallback)
{
    const JsonValue *value = json_member(doc, object, key);

    if (value == NULL) {
        json_fail(doc, object, "\"%s\" is missing", key);
        return fallback;
    }
    return json_is_null(value) ? fallback : json_value_double(doc, value, min, 1e300);
}

static char *
text_or_null(JsonDoc *doc, const JsonValue *object, const char *key)
{
    const JsonValue *value = json_member(doc, object, key);

    return value == NULL || json_is_null(value) ? NULL : g_strdup(json_value_string(doc, value));
}

static void
read_cell(JsonDoc *doc, const JsonValue *object, const Column *column, SweepPoint *point)
{
    void *value = cell(point, column);

    switch (column->kind) {
    case COLUMN_INT64:
        *(int64_t *)value = json_int64(doc, object, column->name, 0, JSON_MAX_INT);
        return;
    case COLUMN_DOUBLE:
        *(double *)value = double_or_null(doc, object, column->name, 0, NAN);
        return;
    case COLUMN_TEXT:
        *(char **)value = text_or_null(doc, object, column->name);
        return;
    default:
        *(bool *)value = json_bool(doc, object, column->name);
    }
}

static SweepPoint
read_point(JsonDoc *doc, const JsonValue *object)
{
    SweepPoint point = empty_point();
    const JsonValue *place = object;
    const char *group = NULL;

    for (const Column *c = columns; c->name != NULL && !json_doc_failed(doc); c++) {
        if (c->group != group)
            place = c->group == NULL ? object : json_object(doc, object, c->group);
        group = c->group;
        read_cell(doc, place, c, &point);
        if (is_last(c, &point))
            break;
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
    const JsonValue *points;

    sweep->model = g_strdup(json_string(doc, root, "model"));
    sweep->cluster = g_strdup(json_string(doc, root, "cluster"));
    sweep->dtype = g_strdup(json_string(doc, root, "dtype"));
    sweep->objective = g_strdup(json_string(doc, root, "objective"));
    sweep->tokens = double_or_null(doc, root, "tokens", 0, NAN);
    sweep->price_per_device_hour = double_or_null(doc, root, "price_per_device_hour", 0, 0);
    sweep->currency = text_or_null(doc, root, "currency");
    sweep->price_source = text_or_null(doc, root, "price_source");
    sweep->reliability.device_mtbf_s = double_or_null(doc, root, "device_mtbf_s", 1e-9, INFINITY);
    sweep->reliability.checkpoint_bytes_per_s =
        double_or_null(doc, root, "checkpoint_bytes_per_s", 1e-9, 0);
    sweep->reliability.restart_s = double_or_null(doc, root, "restart_s", 0, 0);
    sweep->is_complete = json_bool(doc, root, "complete");
    points = json_array(doc, root, "points");
    for (const JsonValue *v = json_first(points); v != NULL && !json_doc_failed(doc);
         v = json_next(v)) {
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
    Table *table;

    for (size_t i = 0; columns[i].name != NULL; i++)
        header[i] = columns[i].name;
    table = table_new(header);
    for (guint i = 0; i < sweep->points->len; i++) {
        const SweepPoint *point = sweep_at(sweep, i);

        for (const Column *c = columns; c->name != NULL; c++) {
            const void *value = cell(point, c);

            if (c->kind == COLUMN_INT64)
                table_add_int64(table, *(const int64_t *)value);
            else if (c->kind == COLUMN_DOUBLE)
                table_add_double(table, *(const double *)value);
            else if (c->kind == COLUMN_BOOL)
                table_add_int64(table, *(const bool *)value);
            else
                table_add_text(table, *(char *const *)value == NULL ? "-" : *(char *const *)value);
        }
    }
    return table;
}
