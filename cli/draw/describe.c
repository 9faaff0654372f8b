#include "cli/draw/describe.h"

#include <math.h>

#include "base/text.h"
#include "base/units.h"
#include "cli/request/output.h"
#include "cli/draw/timeline.h"
#include "models/ops.h"
#include "schedule/rank_order.h"

#define MAX_TIMELINE_ROWS 32

/* --- plans --- */

void
describe_job(const Job *job)
{
    const Plan *plan = job->plan;
    g_autofree char *model = text_escape(job->arch->name, 60);
    g_autofree char *cluster = text_escape(job->profile->name, 60);

    output_printf("%s on %s (" INT " of " INT " devices), " INT " x " INT " tokens, %s", model,
                  cluster, plan_n_devices(plan), model_cluster_n_devices(job->profile->cluster),
                  plan->global_batch, plan->seq_len, dtype_names[plan->dtype]);
    if (job->arch->lora.rank > 0)
        output_printf(", adapters of rank " INT, job->arch->lora.rank);
    output_printf("\n");
}

char *
describe_split(const PlanDegrees *degrees)
{
    const struct {
        const char *name;
        int64_t n;
    } all[] = {{"dp", degrees->dp},
               {"tp", degrees->tp},
               {"cp", degrees->cp},
               {"ep", degrees->ep},
               {"pp", degrees->pp}};
    GString *text = g_string_new(NULL);

    for (size_t i = 0; i < G_N_ELEMENTS(all); i++) {
        if (all[i].n > 1)
            g_string_append_printf(text, "%s%s " INT, text->len == 0 ? "" : ", ", all[i].name,
                                   all[i].n);
    }
    if (degrees->vpp > 1)
        g_string_append_printf(text, " x " INT, degrees->vpp);
    if (text->len == 0)
        g_string_append(text, "one device");
    if (!plan_rank_order_is_default(degrees))
        g_string_append_printf(text, " in %s", plan_rank_order_names[degrees->rank_order]);
    return g_string_free(text, FALSE);
}

static bool
has_other_order(const Plan *plan)
{
    return !plan_rank_order_is_default(&plan->degrees);
}

static void
add_plan(OutputTable *table, const Plan *plan, size_t i, bool is_front)
{
    const PlanDegrees *d = &plan->degrees;
    const Report *report = plan->predicted;
    const int64_t degrees[] = {d->dp, d->tp, d->pp, d->vpp, d->cp, d->ep, plan->micro_batch};

    output_table_printf(table, "%s%s", i == 0 ? "best" : output_int64((int64_t)i + 1).text,
                        is_front ? " *" : "");
    for (size_t k = 0; k < G_N_ELEMENTS(degrees); k++)
        output_table_printf(table, INT, degrees[k]);
    output_table_row(table, plan_rank_order_names[d->rank_order], plan->schedule,
                     output_int64(plan->slices->len).text, plan_recompute_name(plan),
                     output_int64(plan->zero_stage).text, NULL);
    if (report == NULL)
        output_table_row(table, "-", "-", "-", "-", NULL);
    else
        output_table_row(table, output_seconds(units_s_from_ns(report->iteration_ns)).text,
                         output_percent(report->model_flops_utilization_fraction).text,
                         output_percent(report->bubble_fraction).text,
                         units_format_bytes((double)report->peak_memory_bytes).text, NULL);
}

/* Whether none of @plans is at least as fast and as small as @plan, and better in one of both. */
static bool
is_on_front(const Plan *plan, const Plan *const *plans, size_t n)
{
    const Report *b = plan->predicted;

    for (size_t i = 0; i < n; i++) {
        const Report *a = plans[i]->predicted;

        if (plans[i] != plan && a->iteration_ns <= b->iteration_ns &&
            a->peak_memory_bytes <= b->peak_memory_bytes &&
            (a->iteration_ns < b->iteration_ns || a->peak_memory_bytes < b->peak_memory_bytes))
            return false;
    }
    return true;
}

/* What "dp" of a breakdown is: without replicas it is what the two copies of a tied table, on the first
 * and the last pipeline rank, exchange.  @plan  (nullable) */
static const char *
dp_name(const Plan *plan)
{
    return plan != NULL && plan->degrees.dp == 1 && plan->degrees.cp == 1 ? "tied table" : "dp";
}

/* Appends ", bubble 1.2 s more" where @part of a plan takes more (@sign 1) or less (-1) than that of
 * the best. */
static void
append_difference(GString *text, const char *name, double seconds, int sign, double whole_s)
{
    if (sign * seconds > 0.001 * whole_s)
        g_string_append_printf(text, "%s%s %s %s", text->len == 0 ? "" : ", ", name,
                               output_seconds(fabs(seconds)).text, sign > 0 ? "more" : "less");
}

/* (owned) How @plan differs from @best in what the table does not show: ", without sequence
 * parallelism,"; "": in nothing. */
static char *
unseen_choices(const Plan *best, const Plan *plan)
{
    GString *text = g_string_new(NULL);

    if (plan->sequence_parallel != best->sequence_parallel)
        g_string_append_printf(text, ", %s sequence parallelism",
                               plan->sequence_parallel ? "with" : "without");
    if (plan->offload != best->offload)
        g_string_append_printf(text, ", offload %s", plan_offload_names[plan->offload]);
    if (text->len > 0)
        g_string_append_c(text, ',');
    return g_string_free(text, FALSE);
}

/* Prints what plan number @i + 1 loses against the best: which parts of its iteration are longer, and
 * which are shorter. */
static void
print_loss(const Plan *best, const Plan *plan, size_t i)
{
    const Report *a = best->predicted, *b = plan->predicted;
    const struct {
        const char *name;
        double seconds;
    } parts[] = {
        {"compute", b->breakdown.compute_s - a->breakdown.compute_s},
        {"recompute", b->breakdown.recompute_s - a->breakdown.recompute_s},
        {"tp", b->breakdown.tp_s - a->breakdown.tp_s},
        {"pp", b->breakdown.pp_s - a->breakdown.pp_s},
        {dp_name(plan), b->breakdown.dp_s - a->breakdown.dp_s},
        {"cp", b->breakdown.cp_s - a->breakdown.cp_s},
        {"ep", b->breakdown.ep_s - a->breakdown.ep_s},
        {"optimizer", b->breakdown.optimizer_s - a->breakdown.optimizer_s},
        {"bubble", b->breakdown.bubble_s - a->breakdown.bubble_s},
    };
    const double whole_s = units_s_from_ns(a->iteration_ns);
    const double loss_s = units_s_from_ns(b->iteration_ns) - whole_s;
    g_autoptr(GString) text = g_string_new(NULL);

    for (int sign = 1; sign >= -1; sign -= 2)
        for (size_t k = 0; k < G_N_ELEMENTS(parts); k++)
            append_difference(text, parts[k].name, parts[k].seconds, sign, whole_s);
    g_autofree char *choices = unseen_choices(best, plan);
    if (loss_s == 0)
        output_printf("%zu%s takes as long", i + 1, choices);
    else
        output_printf("%zu%s takes %s %s", i + 1, choices, output_seconds(fabs(loss_s)).text,
                      loss_s < 0 ? "less" : "more");
    output_printf("%s%s", text->len == 0 ? "" : ": ", text->str);
    if (b->peak_memory_bytes != a->peak_memory_bytes)
        output_printf(
            "; it needs %s %s",
            units_format_bytes(fabs((double)(b->peak_memory_bytes - a->peak_memory_bytes))).text,
            b->peak_memory_bytes > a->peak_memory_bytes ? "more" : "less");
    output_text("\n");
}

void
describe_plans(const Plan *const *plans, size_t n)
{
    bool orders = false;

    for (size_t i = 0; i < n; i++)
        orders = orders || has_other_order(plans[i]);
    const char *const header[] = {
        "<",          "dp",           "tp",
        "pp",         "?vpp",         "?cp",
        "?ep",        "?micro-batch", orders ? "?<rank order" : OUTPUT_HIDDEN,
        "?<schedule", "?slices",      "?<recompute",
        "?zero",      "iteration",    "MFU",
        "?bubble",    "memory",       NULL};
    g_autoptr(OutputTable) table = output_table_new_of(header);
    for (size_t i = 0; i < n; i++)
        add_plan(table, plans[i], i, n > 1 && is_on_front(plans[i], plans, n));
    output_table_print(table, 0);
    if (n > 1)
        output_text("* of these none is faster and smaller\n");
    for (size_t i = 1; i < n; i++)
        if (plans[0]->predicted != NULL && plans[i]->predicted != NULL)
            print_loss(plans[0], plans[i], i);
}

/* Whether a stage computes modules again. */
static bool
repeats_modules(const Plan *plan)
{
    for (guint i = 0; i < plan->stages->len; i++)
        if (g_array_index(plan->stages, PlanStage, i).recompute == PLAN_RECOMPUTE_SELECTIVE)
            return true;
    return false;
}

void
describe_stages(const Plan *plan)
{
    g_autoptr(GArray) layers = g_array_new(FALSE, FALSE, sizeof(int64_t));
    g_autofree char *slices = output_int64s(plan->slices, 12);

    for (guint i = 0; i < plan->stages->len; i++)
        g_array_append_val(layers, g_array_index(plan->stages, PlanStage, i).n_layers);
    g_autofree char *layers_text = output_int64s(layers, 12);
    output_printf("%u stage%s of %s layers; " INT " micro-batch%s of " INT
                  " sequence%s per replica",
                  plan->stages->len, plan->stages->len == 1 ? "" : "s", layers_text,
                  plan->n_micro_batches, plan->n_micro_batches == 1 ? "" : "es", plan->micro_batch,
                  plan->micro_batch == 1 ? "" : "s");
    if (plan->micro_batch_sequences != NULL) {
        g_autofree char *batches = output_int64s(plan->micro_batch_sequences, 12);

        output_printf(" (%s)", batches);
    }
    output_text("\n");
    if (plan->slices->len > 1)
        output_printf("%u slices of %s tokens\n", plan->slices->len, slices);
    if (plan->conventions.recompute_modules != 0 && repeats_modules(plan)) {
        g_autofree char *modules = plan_modules_text(plan->conventions.recompute_modules);
        output_printf("selective recompute repeats %s\n", modules);
    }
    if (has_other_order(plan))
        output_printf("ranks in the order %s, the fastest dimension first\n",
                      plan_rank_order_names[plan->degrees.rank_order]);
}

/* Appends ", ranks 0 to 7 H100-SXM5-80GB" of a run of devices of one kind. */
static void
append_run(GString *text, const ModelCluster *cluster, int64_t first, int64_t last)
{
    g_autofree char *name = text_escape(model_cluster_device(cluster, first)->name, 60);

    if (first == last)
        g_string_append_printf(text, "%s" INT " %s", text->len == 0 ? "rank " : ", ", first, name);
    else
        g_string_append_printf(text, "%s" INT " to " INT " %s", text->len == 0 ? "ranks " : ", ",
                               first, last, name);
}

/* (owned) The devices of pipeline rank @stage, in runs of one kind. */
static char *
devices_text(const ModelCluster *cluster, const PlanDegrees *degrees, int64_t stage)
{
    GString *text = g_string_new(NULL);
    int64_t first = plan_stage_device(degrees, stage, 0), last = first;

    for (int64_t i = 1; i < plan_stage_devices(degrees); i++) {
        const int64_t device = plan_stage_device(degrees, stage, i);

        if (device == last + 1 &&
            model_cluster_device(cluster, device) == model_cluster_device(cluster, first)) {
            last = device;
            continue;
        }
        append_run(text, cluster, first, last);
        first = last = device;
    }
    append_run(text, cluster, first, last);
    return g_string_free(text, FALSE);
}

void
describe_devices(const Job *job)
{
    const ModelCluster *cluster = job->profile->cluster;
    const PlanDegrees *degrees = &job->plan->degrees;
    const int64_t n = plan_n_devices(job->plan);
    bool is_mixed = false;

    for (int64_t i = 1; !is_mixed && i < n; i++)
        is_mixed = model_cluster_device(cluster, i) != model_cluster_device(cluster, 0);
    if (!is_mixed)
        return;
    for (int64_t stage = 0; stage < degrees->pp; stage++) {
        g_autofree char *text = devices_text(cluster, degrees, stage);

        output_printf("pipeline rank " INT "  %s\n", stage, text);
    }
}

void
describe_utilisation(const Job *job)
{
    const double share = model_causal_fraction(job->arch, job->plan->seq_len);
    const Report *report = job->plan->predicted;

    if (report != NULL && isfinite(report->model_flops_utilization_fraction))
        output_printf(
            "MFU %s counts all attention scores, as published numbers do; %s counts those "
            "that a causal model needs\n",
            output_percent(report->model_flops_utilization_fraction).text,
            output_percent(share * report->model_flops_utilization_fraction).text);
}

/* --- reports --- */

typedef struct {
    const char *name;
    double value;
} Share;

/* Prints "title  name 12.3 %, ..." of the shares of @whole that are above 0; all are 0 % where a
 * file says that the whole is 0. */
static void
print_shares(const char *title, const Share *shares, size_t n, double whole)
{
    const char *comma = "";

    output_printf("%s  ", title);
    for (size_t i = 0; i < n; i++) {
        if (shares[i].value <= 0)
            continue;
        output_printf("%s%s %s", comma, shares[i].name,
                      output_percent(whole > 0 ? shares[i].value / whole : 0).text);
        comma = ", ";
    }
    output_text("\n");
}

static void
print_breakdown(const Report *report, const Plan *plan)
{
    const Share parts[] = {
        {"compute", report->breakdown.compute_s}, {"recompute", report->breakdown.recompute_s},
        {"tp", report->breakdown.tp_s},           {"pp", report->breakdown.pp_s},
        {dp_name(plan), report->breakdown.dp_s},  {"cp", report->breakdown.cp_s},
        {"ep", report->breakdown.ep_s},           {"optimizer", report->breakdown.optimizer_s},
        {"bubble", report->breakdown.bubble_s},
    };

    print_shares("of it", parts, G_N_ELEMENTS(parts), units_s_from_ns(report->iteration_ns));
}

/* Prints which shares of the op times were measured on the device, interpolated between measured
 * points, and modelled. */
static void
print_sources(const Report *report)
{
    const Share sources[] = {
        {"measured", report->sources.measured_fraction},
        {"interpolated", report->sources.interpolated_fraction},
        {"modelled", report->sources.modelled_fraction},
    };

    if (!isnan(report->sources.modelled_fraction))
        print_shares("op times", sources, G_N_ELEMENTS(sources), 1.0);
}

/* ", at 12.3 ms on rank 0 in F3.0: most of it activations" */
static void
print_peak(const Report *report)
{
    const int32_t r = report_peak_rank(report);
    const ReportRank *rank = &g_array_index(report->ranks, ReportRank, r);

    if (*rank->peak_op == 0)
        output_printf(", from the start on rank %d", r);
    else
        output_printf(", at %s on rank %d in %s",
                      output_seconds(units_s_from_ns(rank->peak_time_ns)).text, r, rank->peak_op);
    output_printf(": most of it %s", trace_memory_names[report_peak_owner(rank)]);
}

char *
describe_op_sigma(const ReportJitter *jitter)
{
    const UnitsText sigma = output_percent(jitter->op_sigma);

    if (jitter->correlation_s > 0)
        return g_strdup_printf("%s, forgotten within %s", sigma.text,
                               output_seconds(jitter->correlation_s).text);
    return g_strdup(sigma.text);
}

/* Prints the statistics of many iterations with times that vary. */
/* What an uneven load of experts does. */
static void
print_load(const Report *report)
{
    const ReportLoad *load = &report->load;

    if (load->n_steps == 0)
        return;
    output_printf(
        "experts  imbalance p50 %.3f, p95 %.3f; iteration p50 %s, p95 %s; memory p50 %s, p95 "
        "%s; out of memory in %s of " INT " steps\n",
        load->imbalance[REPORT_LOAD_P50], load->imbalance[REPORT_LOAD_P95],
        output_seconds(units_s_from_ns(load->iteration_ns[REPORT_LOAD_P50])).text,
        output_seconds(units_s_from_ns(load->iteration_ns[REPORT_LOAD_P95])).text,
        units_format_bytes((double)load->peak_memory_bytes[REPORT_LOAD_P50]).text,
        units_format_bytes((double)load->peak_memory_bytes[REPORT_LOAD_P95]).text,
        output_percent(1.0 - load->fit_fraction).text, load->n_steps);
}

static void
print_jitter(const Report *report)
{
    const ReportJitter *jitter = &report->jitter;

    if (jitter->n_runs == 0)
        return;
    output_printf("jitter  iteration p10 %s, p50 %s, p90 %s",
                  output_seconds(units_s_from_ns(jitter->iteration_ns[0])).text,
                  output_seconds(units_s_from_ns(jitter->iteration_ns[1])).text,
                  output_seconds(units_s_from_ns(jitter->iteration_ns[2])).text);
    if (report->memory_limit_bytes > 0)
        output_printf("; fits in %s", output_percent(jitter->fit_fraction).text);
    g_autofree char *op = describe_op_sigma(jitter);
    output_printf(" of " INT " runs (ops log-normal %s, ranks %s", jitter->n_runs, op,
                  output_percent(jitter->rank_sigma).text);
    if (jitter->straggler_fraction > 0)
        output_printf(", %s stragglers %sx", output_percent(jitter->straggler_fraction).text,
                      output_number(jitter->straggler_slowdown).text);
    output_printf("; seed " INT ")\n", jitter->seed);
}

char *
describe_usable(const Report *report)
{
    const int64_t limit = report->memory_limit_bytes, usable = report->memory_usable_bytes;
    const bool is_less = usable > 0 && usable < limit;

    if (limit <= 0)
        return NULL;
    return g_strconcat(units_format_bytes((double)(is_less ? usable : limit)).text,
                       is_less ? " usable" : "", NULL);
}

static void
print_memory(const Report *report, double fit_fraction)
{
    const int64_t lost = report->memory_limit_bytes - report->memory_usable_bytes;
    g_autofree char *usable = describe_usable(report);

    if (report->peak_memory_bytes <= 0)
        return;
    output_printf("memory %s", units_format_bytes((double)report->peak_memory_bytes).text);
    if (usable != NULL)
        output_printf(" of %s%s", usable, report->fits ? "" : ": DOES NOT FIT");
    if (!isnan(fit_fraction))
        output_printf(", P(fits) %s", output_percent(fit_fraction).text);
    print_peak(report);
    output_text("\n");
    if (usable != NULL && report->memory_usable_bytes > 0 && lost > 0)
        output_printf("usable: %s less %s of driver, communicators and what the allocator loses\n",
                      units_format_bytes((double)report->memory_limit_bytes).text,
                      units_format_bytes((double)lost).text);
}

static void
print_totals(const Report *report, const Plan *plan, const char *currency, double fit_fraction)
{
    output_printf("iteration %s, bubble %s",
                  output_seconds(units_s_from_ns(report->iteration_ns)).text,
                  output_percent(report->bubble_fraction).text);
    if (isfinite(report->tokens_per_s))
        output_printf(", %s tokens/s", units_format_count(report->tokens_per_s).text);
    if (isfinite(report->model_flops_per_s_per_device))
        output_printf(", %s per device (%s of peak)",
                      units_format_flops(report->model_flops_per_s_per_device).text,
                      output_percent(report->model_flops_utilization_fraction).text);
    output_text("\n");
    if (isfinite(report->physical_bound_s) && report->physical_bound_s > 0.0)
        output_printf(
            "no program on these devices, of any split, takes less than %s by their data "
            "sheets: this takes %s times that\n",
            output_seconds(report->physical_bound_s).text,
            output_number(units_s_from_ns(report->iteration_ns) / report->physical_bound_s).text);
    print_breakdown(report, plan);
    print_sources(report);
    print_memory(report, fit_fraction);
    print_jitter(report);
    print_load(report);
    if (isfinite(report->cost_per_iteration)) {
        g_autofree char *unit = text_escape(currency == NULL ? "" : currency, 16);

        output_printf("cost %s%s%s per iteration\n", output_number(report->cost_per_iteration).text,
                      currency == NULL ? "" : " ", unit);
    }
    if (isfinite(report->energy_per_iteration_j))
        output_printf("energy %s kWh per iteration\n",
                      output_number(report->energy_per_iteration_j / 3.6e6).text);
}

bool
describe_owner_is_used(const Report *report, TraceMemoryOwner owner)
{
    for (guint r = 0; r < report->ranks->len; r++)
        if (g_array_index(report->ranks, ReportRank, r).memory_bytes[owner] > 0)
            return true;
    return false;
}

static void
add_rank(OutputTable *table, guint r, const ReportRank *rank)
{
    output_table_row(table, output_int64(r).text,
                     output_seconds(units_s_from_ns(rank->busy_ns)).text,
                     output_seconds(units_s_from_ns(rank->bubble_ns)).text,
                     output_seconds(units_s_from_ns(rank->communication_ns)).text,
                     output_int64(rank->peak_in_flight).text,
                     units_format_bytes((double)rank->peak_memory_bytes).text, NULL);
    for (int owner = 0; owner < TRACE_MEMORY_N; owner++)
        output_table_add(table, units_format_bytes((double)rank->memory_bytes[owner]).text);
}

static void
print_ranks(const Report *report, guint max_rows)
{
    const bool has_memory = report->peak_memory_bytes > 0;
    const char *header[7 + TRACE_MEMORY_N] = {"rank", "busy", "bubble", "?messages", "?in flight"};
    const guint n = report->ranks->len;
    const guint rows = MIN(n, MAX(max_rows, 2));

    header[5] = has_memory ? "memory" : OUTPUT_HIDDEN;
    for (int owner = 0; owner < TRACE_MEMORY_N; owner++)
        header[6 + owner] = has_memory && describe_owner_is_used(report, (TraceMemoryOwner)owner)
                                ? trace_memory_names[owner]
                                : OUTPUT_HIDDEN;
    g_autoptr(OutputTable) table = output_table_new_of(header);
    for (guint i = 0; i < rows; i++) {
        /* evenly spaced, with both ends */
        const guint r = rows == 1 ? 0 : (guint)((guint64)i * (n - 1) / (rows - 1));

        add_rank(table, r, &g_array_index(report->ranks, ReportRank, r));
    }
    output_text("\n");
    output_table_print(table, 0);
    if (rows < n)
        output_printf("(%u of %u ranks; --json has all)\n", rows, n);
}

void
describe_report(const Report *report, const Plan *plan, const char *currency, double fit_fraction,
                guint max_rows)
{
    print_totals(report, plan, currency, fit_fraction);
    print_ranks(report, max_rows);
}

static TimelineText
timeline_style(bool is_unitless)
{
    return (TimelineText){
        .columns = output_columns(),
        .color = output_has_color(NULL),
        .utf8 = output_is_utf8(),
        .max_rows = MAX_TIMELINE_ROWS,
        .is_unitless = is_unitless,
    };
}

bool *
describe_glimpse(int32_t n_ranks, SimGlimpse *glimpse)
{
    const TimelineText how = timeline_style(false);
    bool *is_shown = g_new(bool, (size_t)n_ranks);

    for (int32_t rank = 0; rank < n_ranks; rank++)
        is_shown[rank] = timeline_is_shown(rank, n_ranks, how.max_rows);
    *glimpse = (SimGlimpse){timeline_n_cells(&how, n_ranks), is_shown};
    return is_shown;
}

void
describe_timeline(const Trace *trace, bool is_unitless)
{
    const TimelineText how = timeline_style(is_unitless);
    g_autoptr(GString) text = g_string_new(NULL);

    timeline_append_text(text, trace, &how);
    timeline_append_legend(text, &trace, 1, &how);
    output_text(text->str);
}

static UnitsText
time_text(int64_t ns, bool is_unitless)
{
    return is_unitless ? output_number(units_s_from_ns(ns)) : output_seconds(units_s_from_ns(ns));
}

void
describe_schedule(const Schedule *schedule, const Report *report, bool is_unitless)
{
    const ScheduleFamily *family = schedule_family_find(schedule->name, NULL);
    g_autoptr(GArray) in_flight = g_array_new(FALSE, FALSE, sizeof(int64_t));

    for (guint r = 0; r < report->ranks->len; r++) {
        const int64_t n = g_array_index(report->ranks, ReportRank, r).peak_in_flight;

        g_array_append_val(in_flight, n);
    }
    g_autofree char *in_flight_text = output_int64s(in_flight, 12);
    g_autofree char *name = text_escape(schedule->name, 60);
    output_printf("%s: %s\n", name, family == NULL ? "" : family->summary);
    output_printf("makespan %s, longest rank %s, bubble %s, in flight %s\n\n",
                  time_text(report->iteration_ns, is_unitless).text,
                  time_text(report->span_ns, is_unitless).text,
                  output_percent(report->bubble_fraction).text, in_flight_text);
}
