#include "schedule/report.h"

#include <math.h>

#include "base/units.h"

/* 2^52 ns, 52 days: seconds as doubles then round back to the same ns. */
#define TIME_MAX_S 4503599.0

Report *
report_new(int32_t n_ranks)
{
    Report *report = g_new0(Report, 1);

    report->tokens_per_s = NAN;
    report->model_flops_per_s_per_device = NAN;
    report->model_flops_utilization_fraction = NAN;
    report->cost_per_iteration = NAN;
    report->energy_per_iteration_j = NAN;
    report->sources.measured_fraction = NAN;
    report->sources.interpolated_fraction = NAN;
    report->sources.modelled_fraction = NAN;
    report->fits = true;
    report->ranks = g_array_new(false, true, sizeof(ReportRank));
    g_array_set_size(report->ranks, (guint)MAX(n_ranks, 0));
    return report;
}

void
report_free(Report *report)
{
    if (report == NULL)
        return;
    g_array_unref(report->ranks);
    g_free(report);
}

Report *
report_copy(const Report *report)
{
    Report *copy = g_memdup2(report, sizeof *report);

    copy->ranks = g_array_copy(report->ranks);
    return copy;
}

int32_t
report_peak_rank(const Report *report)
{
    int64_t highest = 0;
    int32_t at = -1;

    for (guint r = 0; r < report->ranks->len; r++) {
        const int64_t bytes = g_array_index(report->ranks, ReportRank, r).peak_memory_bytes;
        if (bytes > highest) {
            highest = bytes;
            at = (int32_t)r;
        }
    }
    return at;
}

TraceMemoryOwner
report_peak_owner(const ReportRank *rank)
{
    int most = 0;

    for (int owner = 1; owner < TRACE_MEMORY_N; owner++)
        if (rank->memory_bytes[owner] > rank->memory_bytes[most])
            most = owner;
    return (TraceMemoryOwner)most;
}

/* --- writing --- */

static void
write_s(JsonWriter *writer, const char *key, int64_t ns)
{
    json_write_double(writer, key, units_s_from_ns(ns));
}

static void
write_peak_op(JsonWriter *writer, const ReportRank *r)
{
    if (*r->peak_op == 0)
        json_write_null(writer, "peak_op");
    else
        json_write_string(writer, "peak_op", r->peak_op);
}

/* Where the highest peak is: what ranks[] says of it, for those who look for one answer. */
static void
write_peak(JsonWriter *writer, const Report *report)
{
    const int32_t rank = report_peak_rank(report);

    if (rank < 0) {
        json_write_null(writer, "peak");
        return;
    }
    const ReportRank *r = &g_array_index(report->ranks, ReportRank, rank);
    json_write_object_inline(writer, "peak");
    json_write_int64(writer, "rank", rank);
    write_s(writer, "time_s", r->peak_time_ns);
    write_peak_op(writer, r);
    json_write_string(writer, "owner", trace_memory_names[report_peak_owner(r)]);
    json_write_object_end(writer);
}

static void
write_rank(JsonWriter *writer, int32_t rank, const ReportRank *r)
{
    json_write_object_inline(writer, NULL);
    json_write_int64(writer, "rank", rank);
    write_s(writer, "busy_s", r->busy_ns);
    write_s(writer, "bubble_s", r->bubble_ns);
    write_s(writer, "communication_s", r->communication_ns);
    json_write_int64(writer, "peak_memory_bytes", r->peak_memory_bytes);
    write_s(writer, "peak_time_s", r->peak_time_ns);
    write_peak_op(writer, r);
    json_write_object_inline(writer, "memory_bytes");
    for (int owner = 0; owner < TRACE_MEMORY_N; owner++)
        json_write_int64(writer, trace_memory_names[owner], r->memory_bytes[owner]);
    json_write_object_end(writer);
    json_write_int64(writer, "peak_in_flight", r->peak_in_flight);
    json_write_object_end(writer);
}

const char *const report_share_names[REPORT_SHARES_N] = {"p10", "p50", "p90"};

static void
write_jitter(JsonWriter *writer, const ReportJitter *jitter)
{
    json_write_object(writer, "jitter");
    json_write_int64(writer, "runs", jitter->n_runs);
    json_write_int64(writer, "seed", jitter->seed);
    json_write_string(writer, "distribution",
                      jitter->correlation_s > 0 ? "log-normal, mean 1" : "log-normal, median 1");
    json_write_double(writer, "op_sigma_fraction", jitter->op_sigma);
    if (jitter->correlation_s > 0)
        json_write_double(writer, "correlation_s", jitter->correlation_s);
    json_write_double(writer, "rank_sigma_fraction", jitter->rank_sigma);
    json_write_double(writer, "memory_sigma_fraction", jitter->memory_sigma);
    json_write_double(writer, "straggler_fraction", jitter->straggler_fraction);
    json_write_double(writer, "straggler_slowdown", jitter->straggler_slowdown);
    json_write_object_inline(writer, "iteration_s");
    for (int i = 0; i < 3; i++)
        write_s(writer, report_share_names[i], jitter->iteration_ns[i]);
    json_write_object_end(writer);
    json_write_object_inline(writer, "peak_memory_bytes");
    for (int i = 0; i < 3; i++)
        json_write_int64(writer, report_share_names[i], jitter->peak_memory_bytes[i]);
    json_write_object_end(writer);
    json_write_double(writer, "fit_fraction", jitter->fit_fraction);
    json_write_object_end(writer);
}

void
report_write(JsonWriter *writer, const char *key, const Report *report)
{
    json_write_object(writer, key);
    json_write_string(writer, "format", "degas-report");
    json_write_int64(writer, "version", 1);
    write_s(writer, "iteration_s", report->iteration_ns);
    write_s(writer, "span_s", report->span_ns);
    json_write_double(writer, "tokens_per_s", report->tokens_per_s);
    json_write_double(writer, "model_flops_per_s_per_device", report->model_flops_per_s_per_device);
    json_write_double(writer, "model_flops_utilization_fraction",
                      report->model_flops_utilization_fraction);
    json_write_double(writer, "bubble_fraction", report->bubble_fraction);
    json_write_int64(writer, "peak_memory_bytes", report->peak_memory_bytes);
    json_write_int64(writer, "memory_limit_bytes", report->memory_limit_bytes);
    json_write_bool(writer, "fits", report->fits);
    write_peak(writer, report);
    json_write_array(writer, "ranks");
    for (guint rank = 0; rank < report->ranks->len; rank++)
        write_rank(writer, (int32_t)rank, &g_array_index(report->ranks, ReportRank, rank));
    json_write_array_end(writer);
    json_write_object_inline(writer, "breakdown_s");
    json_write_double(writer, "compute", report->breakdown.compute_s);
    json_write_double(writer, "tp", report->breakdown.tp_s);
    json_write_double(writer, "pp", report->breakdown.pp_s);
    json_write_double(writer, "dp", report->breakdown.dp_s);
    json_write_double(writer, "cp", report->breakdown.cp_s);
    json_write_double(writer, "ep", report->breakdown.ep_s);
    json_write_double(writer, "recompute", report->breakdown.recompute_s);
    json_write_double(writer, "optimizer", report->breakdown.optimizer_s);
    json_write_double(writer, "bubble", report->breakdown.bubble_s);
    json_write_object_end(writer);
    json_write_object_inline(writer, "op_time_sources");
    json_write_double(writer, "measured_fraction", report->sources.measured_fraction);
    json_write_double(writer, "interpolated_fraction", report->sources.interpolated_fraction);
    json_write_double(writer, "modelled_fraction", report->sources.modelled_fraction);
    json_write_object_end(writer);
    if (report->jitter.n_runs > 0)
        write_jitter(writer, &report->jitter);
    json_write_double(writer, "cost_per_iteration", report->cost_per_iteration);
    json_write_double(writer, "energy_per_iteration_j", report->energy_per_iteration_j);
    json_write_object_end(writer);
}

/* --- reading --- */

static int64_t
read_ns(JsonDoc *doc, const JsonValue *object, const char *key)
{
    return units_ns_from_s(json_double(doc, object, key, 0, TIME_MAX_S));
}

/* A number, or null or nothing: NaN. */
static double
read_nullable(JsonDoc *doc, const JsonValue *object, const char *key)
{
    const JsonValue *v = json_member(doc, object, key);

    return v == NULL || json_is_null(v) ? (double)NAN : json_value_double(doc, v, 0, G_MAXDOUBLE);
}

static void
read_rank(JsonDoc *doc, const JsonValue *v, Report *report)
{
    if (!json_is_object(v)) {
        json_fail(doc, v, "expected an object");
        return;
    }
    const JsonValue *memory = json_object(doc, v, "memory_bytes");
    const JsonValue *peak_op = json_member(doc, v, "peak_op");
    /* Ranks stand in order: the number is for people. */
    json_int64(doc, v, "rank", report->ranks->len, report->ranks->len);
    ReportRank rank = {
        .busy_ns = read_ns(doc, v, "busy_s"),
        .bubble_ns = read_ns(doc, v, "bubble_s"),
        .communication_ns = read_ns(doc, v, "communication_s"),
        .peak_memory_bytes = json_int64(doc, v, "peak_memory_bytes", 0, JSON_MAX_INT),
        .peak_time_ns = read_ns(doc, v, "peak_time_s"),
        .peak_in_flight = (int32_t)json_int64(doc, v, "peak_in_flight", 0, INT32_MAX),
    };
    if (peak_op != NULL && !json_is_null(peak_op))
        g_strlcpy(rank.peak_op, json_value_string(doc, peak_op), sizeof rank.peak_op);
    for (int owner = 0; owner < TRACE_MEMORY_N; owner++)
        rank.memory_bytes[owner] =
            json_int64(doc, memory, trace_memory_names[owner], 0, JSON_MAX_INT);
    json_object_end(doc, memory);
    json_object_end(doc, v);
    g_array_append_val(report->ranks, rank);
}

static void
read_breakdown(JsonDoc *doc, const JsonValue *object, Report *report)
{
    const JsonValue *v = json_object(doc, object, "breakdown_s");
    const struct {
        const char *key;
        double *value;
    } parts[] = {
        {"compute", &report->breakdown.compute_s},
        {"tp", &report->breakdown.tp_s},
        {"pp", &report->breakdown.pp_s},
        {"dp", &report->breakdown.dp_s},
        {"cp", &report->breakdown.cp_s},
        {"ep", &report->breakdown.ep_s},
        {"recompute", &report->breakdown.recompute_s},
        {"optimizer", &report->breakdown.optimizer_s},
        {"bubble", &report->breakdown.bubble_s},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(parts); i++)
        *parts[i].value = json_double(doc, v, parts[i].key, 0, G_MAXDOUBLE);
    json_object_end(doc, v);
}

/* Absent in the reports of others. */
static void
read_sources(JsonDoc *doc, const JsonValue *object, Report *report)
{
    const JsonValue *v = json_object_or_null(doc, object, "op_time_sources");

    if (v == NULL)
        return;
    report->sources.measured_fraction = read_nullable(doc, v, "measured_fraction");
    report->sources.interpolated_fraction = read_nullable(doc, v, "interpolated_fraction");
    report->sources.modelled_fraction = read_nullable(doc, v, "modelled_fraction");
    json_object_end(doc, v);
}

static void
read_jitter(JsonDoc *doc, const JsonValue *object, ReportJitter *jitter)
{
    const JsonValue *v = json_object_or_null(doc, object, "jitter");

    if (v == NULL)
        return;
    const JsonValue *iteration = json_object(doc, v, "iteration_s");
    const JsonValue *peak = json_object(doc, v, "peak_memory_bytes");
    jitter->n_runs = json_int64(doc, v, "runs", 1, JSON_MAX_INT);
    jitter->seed = json_int64(doc, v, "seed", 0, JSON_MAX_INT);
    json_ignore(doc, v, "distribution");
    jitter->op_sigma = json_double(doc, v, "op_sigma_fraction", 0, G_MAXDOUBLE);
    jitter->correlation_s = json_double_or(doc, v, "correlation_s", 0, G_MAXDOUBLE, 0);
    jitter->rank_sigma = json_double(doc, v, "rank_sigma_fraction", 0, G_MAXDOUBLE);
    jitter->memory_sigma = json_double(doc, v, "memory_sigma_fraction", 0, G_MAXDOUBLE);
    jitter->straggler_fraction = json_double(doc, v, "straggler_fraction", 0, 1);
    jitter->straggler_slowdown = json_double(doc, v, "straggler_slowdown", 1, G_MAXDOUBLE);
    for (int i = 0; i < 3; i++) {
        jitter->iteration_ns[i] = read_ns(doc, iteration, report_share_names[i]);
        jitter->peak_memory_bytes[i] =
            json_int64(doc, peak, report_share_names[i], 0, JSON_MAX_INT);
    }
    jitter->fit_fraction = json_double(doc, v, "fit_fraction", 0, 1);
    json_object_end(doc, iteration);
    json_object_end(doc, peak);
    json_object_end(doc, v);
}

Report *
report_read(JsonDoc *doc, const JsonValue *object)
{
    Report *report = report_new(0);

    if (g_strcmp0(json_string_or(doc, object, "format", "degas-report"), "degas-report") != 0)
        json_fail(doc, object, "expected a \"degas-report\"");
    json_int64_or(doc, object, "version", 1, 1, 1);
    report->iteration_ns = read_ns(doc, object, "iteration_s");
    report->span_ns = read_ns(doc, object, "span_s");
    report->tokens_per_s = read_nullable(doc, object, "tokens_per_s");
    report->model_flops_per_s_per_device =
        read_nullable(doc, object, "model_flops_per_s_per_device");
    report->model_flops_utilization_fraction =
        read_nullable(doc, object, "model_flops_utilization_fraction");
    report->bubble_fraction = json_double(doc, object, "bubble_fraction", 0, 1);
    report->peak_memory_bytes = json_int64(doc, object, "peak_memory_bytes", 0, JSON_MAX_INT);
    report->memory_limit_bytes = json_int64(doc, object, "memory_limit_bytes", 0, JSON_MAX_INT);
    report->fits = json_bool(doc, object, "fits");
    json_ignore(doc, object, "peak"); /* follows from ranks */
    const JsonValue *ranks = json_array(doc, object, "ranks");
    for (const JsonValue *v = json_first(ranks); v != NULL && !json_doc_failed(doc);
         v = json_next(v))
        read_rank(doc, v, report);
    read_breakdown(doc, object, report);
    read_sources(doc, object, report);
    read_jitter(doc, object, &report->jitter);
    report->cost_per_iteration = read_nullable(doc, object, "cost_per_iteration");
    report->energy_per_iteration_j = read_nullable(doc, object, "energy_per_iteration_j");
    json_object_end(doc, object);
    return report;
}
