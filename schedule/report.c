#include "schedule/report.h"

#include <math.h>

#include "base/json_fields.h"
#include "base/units.h"

/* 2^52 ns, 52 days: seconds as doubles then round back to the same ns. */
#define TIME_MAX_S 4503599.0

Report *
report_new(int32_t n_ranks)
{
    Report *report = g_new0(Report, 1);

    report->physical_bound_s = NAN;
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

/* --- keys --- */

const char *const report_share_names[REPORT_SHARES_N + 1] = {"p10", "p50", "p90", NULL};

#define REPORT(member) JSON_FIELD_OF(Report, member)
#define RANK(member) JSON_FIELD_OF(ReportRank, member)
#define JITTER(member) JSON_FIELD_OF(ReportJitter, member)
/* A number; what is null or absent is not known: NaN. */
#define UNKNOWN (JSON_OPTIONAL | JSON_NULLABLE)

static const JsonField report_fields[] = {
    {"iteration_s", JSON_FIELD_AS(JSON_NS, Report, iteration_ns), 0, TIME_MAX_S},
    {"span_s", JSON_FIELD_AS(JSON_NS, Report, span_ns), 0, TIME_MAX_S},
    {"physical_bound_s", REPORT(physical_bound_s), 0, G_MAXDOUBLE, UNKNOWN | JSON_SPARSE,
     .usual = NAN},
    {"tokens_per_s", REPORT(tokens_per_s), 0, G_MAXDOUBLE, UNKNOWN},
    {"model_flops_per_s_per_device", REPORT(model_flops_per_s_per_device), 0, G_MAXDOUBLE, UNKNOWN},
    {"model_flops_utilization_fraction", REPORT(model_flops_utilization_fraction), 0, G_MAXDOUBLE,
     UNKNOWN},
    {"bubble_fraction", REPORT(bubble_fraction), 0, 1},
    {"peak_memory_bytes", REPORT(peak_memory_bytes), 0, JSON_MAX_INT},
    {"memory_limit_bytes", REPORT(memory_limit_bytes), 0, JSON_MAX_INT},
    {"memory_usable_bytes", REPORT(memory_usable_bytes), 0, JSON_MAX_INT, JSON_OPTIONAL},
    {"fits", REPORT(fits)},
    {.key = NULL},
};

static const JsonField rank_fields[] = {
    {"busy_s", JSON_FIELD_AS(JSON_NS, ReportRank, busy_ns), 0, TIME_MAX_S},
    {"bubble_s", JSON_FIELD_AS(JSON_NS, ReportRank, bubble_ns), 0, TIME_MAX_S},
    {"communication_s", JSON_FIELD_AS(JSON_NS, ReportRank, communication_ns), 0, TIME_MAX_S},
    {"peak_memory_bytes", RANK(peak_memory_bytes), 0, JSON_MAX_INT},
    {"peak_time_s", JSON_FIELD_AS(JSON_NS, ReportRank, peak_time_ns), 0, TIME_MAX_S},
    {"peak_op", JSON_FIELD_AS(JSON_CHARS, ReportRank, peak_op), .flags = UNKNOWN},
    {"memory_bytes", JSON_FIELD_AS(JSON_INT, ReportRank, memory_bytes), 0, JSON_MAX_INT,
     .keys = trace_memory_names},
    {"peak_in_flight", RANK(peak_in_flight), 0, INT32_MAX},
    {.key = NULL},
};

static const JsonField breakdown_fields[] = {
    {"compute", REPORT(breakdown.compute_s), 0, G_MAXDOUBLE},
    {"tp", REPORT(breakdown.tp_s), 0, G_MAXDOUBLE},
    {"pp", REPORT(breakdown.pp_s), 0, G_MAXDOUBLE},
    {"dp", REPORT(breakdown.dp_s), 0, G_MAXDOUBLE},
    {"cp", REPORT(breakdown.cp_s), 0, G_MAXDOUBLE},
    {"ep", REPORT(breakdown.ep_s), 0, G_MAXDOUBLE},
    {"recompute", REPORT(breakdown.recompute_s), 0, G_MAXDOUBLE},
    {"optimizer", REPORT(breakdown.optimizer_s), 0, G_MAXDOUBLE},
    {"bubble", REPORT(breakdown.bubble_s), 0, G_MAXDOUBLE},
    {.key = NULL},
};

static const JsonField source_fields[] = {
    {"measured_fraction", REPORT(sources.measured_fraction), 0, G_MAXDOUBLE, UNKNOWN},
    {"interpolated_fraction", REPORT(sources.interpolated_fraction), 0, G_MAXDOUBLE, UNKNOWN},
    {"modelled_fraction", REPORT(sources.modelled_fraction), 0, G_MAXDOUBLE, UNKNOWN},
    {.key = NULL},
};

/* What follows the ranks.  The sources are absent in the reports of others. */
static const JsonField part_fields[] = {
    {"breakdown_s", .type = JSON_OBJECT, .fields = breakdown_fields},
    {"op_time_sources", .type = JSON_OBJECT, .flags = JSON_OPTIONAL, .fields = source_fields},
    {.key = NULL},
};

static const JsonField cost_fields[] = {
    {"cost_per_iteration", REPORT(cost_per_iteration), 0, G_MAXDOUBLE, UNKNOWN},
    {"energy_per_iteration_j", REPORT(energy_per_iteration_j), 0, G_MAXDOUBLE, UNKNOWN},
    {.key = NULL},
};

static const JsonField run_fields[] = {
    {"runs", JITTER(n_runs), 1, JSON_MAX_INT},
    {"seed", JITTER(seed), 0, JSON_MAX_INT},
    {.key = NULL},
};

static const JsonField jitter_fields[] = {
    {"op_sigma_fraction", JITTER(op_sigma), 0, G_MAXDOUBLE},
    {"correlation_s", JITTER(correlation_s), 0, G_MAXDOUBLE, JSON_OPTIONAL | JSON_SPARSE},
    {"rank_sigma_fraction", JITTER(rank_sigma), 0, G_MAXDOUBLE},
    {"memory_sigma_fraction", JITTER(memory_sigma), 0, G_MAXDOUBLE},
    {"straggler_fraction", JITTER(straggler_fraction), 0, 1},
    {"straggler_slowdown", JITTER(straggler_slowdown), 1, G_MAXDOUBLE},
    {"iteration_s", JSON_FIELD_AS(JSON_NS, ReportJitter, iteration_ns), 0, TIME_MAX_S,
     .keys = report_share_names},
    {"peak_memory_bytes", JSON_FIELD_AS(JSON_INT, ReportJitter, peak_memory_bytes), 0, JSON_MAX_INT,
     .keys = report_share_names},
    {"fit_fraction", JITTER(fit_fraction), 0, 1},
    {.key = NULL},
};

static const char *const load_names[REPORT_LOAD_N + 1] = {"p50", "p95", NULL};

static const JsonField load_fields[] = {
    {"steps", JSON_FIELD_OF(ReportLoad, n_steps), 1, JSON_MAX_INT},
    {"seed", JSON_FIELD_OF(ReportLoad, seed), 0, JSON_MAX_INT},
    {"imbalance", JSON_FIELD_AS(JSON_DOUBLE, ReportLoad, imbalance), 1, G_MAXDOUBLE,
     .keys = load_names},
    {"iteration_s", JSON_FIELD_AS(JSON_NS, ReportLoad, iteration_ns), 0, TIME_MAX_S,
     .keys = load_names},
    {"peak_memory_bytes", JSON_FIELD_AS(JSON_INT, ReportLoad, peak_memory_bytes), 0, JSON_MAX_INT,
     .keys = load_names},
    {"fit_fraction", JSON_FIELD_OF(ReportLoad, fit_fraction), 0, 1},
    {.key = NULL},
};

/* --- writing --- */

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
    json_write_double(writer, "time_s", units_s_from_ns(r->peak_time_ns));
    json_write_string(writer, "peak_op", *r->peak_op == 0 ? NULL : r->peak_op);
    json_write_string(writer, "owner", trace_memory_names[report_peak_owner(r)]);
    json_write_object_end(writer);
}

static void
write_jitter(JsonWriter *writer, const ReportJitter *jitter)
{
    json_write_object(writer, "jitter");
    json_fields_write(writer, run_fields, jitter);
    json_write_string(writer, "distribution",
                      jitter->correlation_s > 0 ? "log-normal, mean 1" : "log-normal, median 1");
    json_fields_write(writer, jitter_fields, jitter);
    json_write_object_end(writer);
}

void
report_write(JsonWriter *writer, const Report *report)
{
    json_write_string(writer, "format", "degas-report");
    json_write_int64(writer, "version", 1);
    json_fields_write(writer, report_fields, report);
    write_peak(writer, report);
    json_write_array(writer, "ranks");
    for (guint rank = 0; rank < report->ranks->len; rank++) {
        json_write_object_inline(writer, NULL);
        json_write_int64(writer, "rank", rank);
        json_fields_write(writer, rank_fields, &g_array_index(report->ranks, ReportRank, rank));
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
    json_fields_write(writer, part_fields, report);
    if (report->jitter.n_runs > 0)
        write_jitter(writer, &report->jitter);
    if (report->load.n_steps > 0)
        json_fields_write_object(writer, "expert_load", load_fields, &report->load);
    json_fields_write(writer, cost_fields, report);
}

/* --- reading --- */

static void
read_rank(JsonDoc *doc, const JsonValue *v, Report *report)
{
    ReportRank rank = {0};

    if (!json_is_object(v)) {
        json_fail(doc, v, "expected an object");
        return;
    }
    /* Ranks stand in order: the number is for people. */
    json_int64(doc, v, "rank", report->ranks->len, report->ranks->len);
    json_fields_read_object(doc, v, rank_fields, &rank);
    g_array_append_val(report->ranks, rank);
}

Report *
report_read(JsonDoc *doc, const JsonValue *object)
{
    Report *report = report_new(0);
    const JsonValue *jitter = json_object_or_null(doc, object, "jitter");

    if (g_strcmp0(json_string_or(doc, object, "format", "degas-report"), "degas-report") != 0)
        json_fail(doc, object, "expected a \"degas-report\"");
    json_int64_or(doc, object, "version", 1, 1, 1);
    json_fields_read(doc, object, report_fields, report);
    json_ignore(doc, object, "peak");        /* follows from ranks */
    json_ignore(doc, object, "explanation"); /* of simulate --explain, for people */
    const JsonValue *ranks = json_array(doc, object, "ranks");
    JSON_EACH (v, ranks, doc)
        read_rank(doc, v, report);
    json_fields_read(doc, object, part_fields, report);
    if (jitter != NULL) {
        json_ignore(doc, jitter, "distribution");
        json_fields_read(doc, jitter, run_fields, &report->jitter);
        json_fields_read_object(doc, jitter, jitter_fields, &report->jitter);
    }
    const JsonValue *load = json_object_or_null(doc, object, "expert_load");
    if (load != NULL)
        json_fields_read_object(doc, load, load_fields, &report->load);
    json_fields_read_object(doc, object, cost_fields, report);
    return report;
}
