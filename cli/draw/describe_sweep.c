#include "cli/draw/describe_sweep.h"

#include <math.h>

#include "base/text.h"
#include "cli/draw/describe.h"
#include "cli/request/output.h"
#include "schedule/rank_order.h"

/* The optional columns.  A value that is the same in all rows, or unknown in all, has none. */
typedef struct {
    bool has_cluster, has_batch, has_seq_len, has_cost, has_energy, has_days, has_slices,
        has_failures;
} Columns;

static Columns
find_columns(const Sweep *sweep)
{
    Columns columns = {
        .has_batch = sweep_varies(sweep, offsetof(SweepPoint, global_batch)),
        .has_seq_len = sweep_varies(sweep, offsetof(SweepPoint, seq_len)),
        .has_failures = isfinite(sweep->reliability.device_mtbf_s),
    };

    for (guint i = 0; i < sweep->points->len; i++) {
        const SweepPoint *point = sweep_at(sweep, i);

        columns.has_cluster |= point->cluster != NULL;
        columns.has_cost |= isfinite(point->effective_cost);
        columns.has_energy |= isfinite(point->effective_energy_j);
        columns.has_days |= isfinite(point->effective_days);
        columns.has_slices |= point->n_slices > 1;
    }
    return columns;
}

/* A cell for each of the columns, whether it is shown or not. */
static OutputTable *
table_with_header(const Columns *columns, const char *currency)
{
    g_autofree char *cost = g_strdup_printf("cost [%s]", currency == NULL ? "?" : currency);
    const bool has_days = columns->has_days;
    const char *const header[] = {
        columns->has_cluster ? "<cluster" : OUTPUT_HIDDEN,
        "devices",
        columns->has_batch ? "batch" : OUTPUT_HIDDEN,
        columns->has_seq_len ? "tokens" : OUTPUT_HIDDEN,
        "<split",
        "?micro-batch",
        "?<schedule",
        columns->has_slices ? "slices" : OUTPUT_HIDDEN,
        "?<recompute",
        "?zero",
        "iteration",
        "tokens/s",
        "?per device",
        "MFU",
        "memory",
        columns->has_failures ? "goodput" : OUTPUT_HIDDEN,
        has_days ? "days" : OUTPUT_HIDDEN,
        has_days && columns->has_cost ? cost : OUTPUT_HIDDEN,
        has_days && columns->has_energy ? "energy" : OUTPUT_HIDDEN,
        NULL,
    };

    return output_table_new_of(header);
}

/* "3.42 GWh" */
static UnitsText
energy_text(double energy_j)
{
    static const char *const names[] = {"kWh", "MWh", "GWh", "TWh"};
    double value = energy_j / 3.6e6;
    UnitsText text = {"-"};
    size_t i = 0;

    if (!isfinite(energy_j))
        return text;
    for (; value >= 1000 && i + 1 < G_N_ELEMENTS(names); i++)
        value /= 1000;
    g_snprintf(text.text, sizeof text.text, "%s %s", output_number(value).text, names[i]);
    return text;
}

/* Days: tenths below a hundred. */
UnitsText
describe_days(double days)
{
    UnitsText text = {"-"};

    if (isfinite(days))
        g_ascii_formatd(text.text, sizeof text.text,
                        days < 10    ? "%.2f"
                        : days < 100 ? "%.1f"
                                     : "%.0f",
                        days);
    return text;
}

static void
add_row(OutputTable *table, const SweepPoint *point, guint *n_reasons)
{
    /* Files from before there were orders say nothing. */
    const int order = point->rank_order == NULL ? 0 : plan_rank_order_find(point->rank_order);
    PlanDegrees degrees = point->degrees;

    output_table_row(table, point->cluster == NULL ? "" : point->cluster,
                     output_int64(point->n_devices).text, output_int64(point->global_batch).text,
                     output_int64(point->seq_len).text, NULL);
    if (!point->is_feasible) {
        output_table_printf(table, "no plan [%u]", ++*n_reasons);
        for (int i = 0; i < 14; i++)
            output_table_add(table, "-");
        return;
    }
    degrees.rank_order = MAX(0, order);
    output_table_take(table, describe_split(&degrees));
    output_table_row(
        table, output_int64(point->micro_batch).text, point->schedule,
        output_int64(point->n_slices).text, point->recompute, output_int64(point->zero_stage).text,
        output_seconds(point->iteration_s).text, units_format_count(point->tokens_per_s).text,
        units_format_count(point->tokens_per_s_per_device).text,
        output_percent(point->model_flops_utilization_fraction).text,
        units_format_bytes((double)point->peak_memory_bytes).text,
        output_percent(point->goodput.goodput_fraction).text,
        describe_days(point->effective_days).text,
        isfinite(point->effective_cost) ? units_format_count(point->effective_cost).text : "-",
        energy_text(point->effective_energy_j).text, NULL);
}

static void
print_reasons(const Sweep *sweep)
{
    guint n = 0;

    for (guint i = 0; i < sweep->points->len; i++) {
        const SweepPoint *point = sweep_at(sweep, i);

        if (point->is_feasible)
            continue;
        g_autofree char *reason =
            text_escape(point->reason == NULL ? "unknown" : point->reason, 1000);
        output_printf("%s[%u] %s\n", n == 0 ? "\n" : "", n + 1, reason);
        n++;
    }
}

/* "fastest: 1024 devices, batch 512: 12.3 days" */
static void
print_best(const Sweep *sweep, const Columns *columns, const char *what, size_t offset, int sign,
           UnitsText (*format)(double), const char *unit)
{
    const SweepPoint *best = sweep_best(sweep, offset, sign);

    if (best == NULL)
        return;
    output_printf("%s  " INT " devices", what, best->n_devices);
    if (best->cluster != NULL)
        output_printf(" of %s", best->cluster);
    if (columns->has_batch)
        output_printf(", batch " INT, best->global_batch);
    if (columns->has_seq_len)
        output_printf(", " INT " tokens", best->seq_len);
    output_printf(": %s %s\n",
                  format(*(const double *)(const void *)((const char *)best + offset)).text,
                  unit == NULL ? "" : unit);
}

char *
describe_point(const Sweep *sweep, const SweepPoint *point)
{
    GString *text = g_string_new(NULL);

    g_string_append_printf(text, INT " device%s", point->n_devices,
                           point->n_devices == 1 ? "" : "s");
    if (point->cluster != NULL)
        g_string_append_printf(text, " of %s", point->cluster);
    if (isfinite(point->effective_days))
        g_string_append_printf(text, ": %s days", describe_days(point->effective_days).text);
    else
        g_string_append_printf(text, ": %s per iteration", output_seconds(point->iteration_s).text);
    if (isfinite(point->effective_cost))
        g_string_append_printf(text, ", %s %s", units_format_count(point->effective_cost).text,
                               sweep->currency == NULL ? "?" : sweep->currency);
    return g_string_free(text, FALSE);
}

/* The point that makes one of the two conditions at the least of the other. */
static const SweepPoint *
nearest(const Sweep *sweep, bool keeps_days)
{
    Sweep relaxed = *sweep;

    if (keeps_days)
        relaxed.budget = NAN;
    else
        relaxed.within_days = NAN;
    return sweep_answer(&relaxed);
}

/* Prints which point is the answer to --within and --budget, or how near the nearest are. */
static void
print_answer(const Sweep *sweep)
{
    const SweepPoint *answer = sweep_answer(sweep);
    const bool has_days = isfinite(sweep->within_days), has_budget = isfinite(sweep->budget);

    if (!has_days && !has_budget)
        return;
    if (answer != NULL) {
        g_autofree char *text = describe_point(sweep, answer);

        output_printf("%s  %s%s\n",
                      !has_days                          ? "fastest in budget"
                      : isfinite(answer->effective_cost) ? "cheapest in time "
                                                         : "least device time",
                      text,
                      has_days && !isfinite(answer->effective_cost)
                          ? "; --price would say what it costs"
                          : "");
        return;
    }
    output_printf("nothing makes it%s\n", sweep->is_complete ? "" : " so far");
    for (int keeps_days = 0; has_days && has_budget && keeps_days < 2; keeps_days++) {
        const SweepPoint *point = nearest(sweep, keeps_days == 1);

        if (point == NULL)
            continue;
        g_autofree char *text = describe_point(sweep, point);
        output_printf("%s  %s\n", keeps_days == 1 ? "cheapest in time " : "fastest in budget",
                      text);
    }
}

/* With its days: few devices are cheap, and take years. */
static void
print_cheapest(const Sweep *sweep)
{
    const SweepPoint *best = sweep_best(sweep, offsetof(SweepPoint, effective_cost), 1);
    g_autofree char *text = best == NULL ? NULL : describe_point(sweep, best);

    if (text != NULL)
        output_printf("cheapest           %s\n", text);
}

static void
print_all_best(const Sweep *sweep, const Columns *columns)
{
    output_text("\n");
    print_answer(sweep);
    if (!columns->has_days)
        print_best(sweep, columns, "fastest          ",
                   offsetof(SweepPoint, effective_tokens_per_s), -1, units_format_count,
                   "tokens/s after failures");
    else
        print_best(sweep, columns, "fastest          ", offsetof(SweepPoint, effective_days), 1,
                   describe_days, "days");
    if (columns->has_days && columns->has_cost)
        print_cheapest(sweep);
    print_best(sweep, columns, "best per device  ", offsetof(SweepPoint, tokens_per_s_per_device),
               -1, units_format_count, "tokens/s");
}

/* Prints what goodput and cost rest on, and the source of values that are defaults. */
static void
print_assumptions(const Sweep *sweep)
{
    const SweepReliability *r = &sweep->reliability;
    const double bytes_per_s = r->checkpoint_bytes_per_s > 0 ? r->checkpoint_bytes_per_s
                                                             : PLAN_GOODPUT_BYTES_PER_S_PER_DEVICE;

    if (!isfinite(r->device_mtbf_s)) {
        output_text("goodput: nothing fails (--mtbf none)\n");
    } else {
        output_printf(
            "goodput: a device fails every %s days%s, restart %s%s,\n"
            "  checkpoints at %s MB/s%s, at Daly's interval\n",
            describe_days(r->device_mtbf_s / 86400).text,
            r->device_mtbf_s == PLAN_GOODPUT_DEVICE_MTBF_S ? " (Llama 3, arXiv:2407.21783)" : "",
            units_format_s(r->restart_s).text,
            r->restart_s == PLAN_GOODPUT_RESTART_S ? " (MegaScale, arXiv:2402.15627)" : "",
            output_number(bytes_per_s / 1e6).text,
            r->checkpoint_bytes_per_s > 0 ? "" : " per device (Llama 3: 2 TB/s for 16384)");
    }
    if (sweep->price_per_device_hour > 0 && sweep->points->len > 0 &&
        sweep_at(sweep, 0)->cluster == NULL) {
        g_autofree char *currency = text_escape(sweep->currency, 20);
        g_autofree char *source = text_escape(
            sweep->price_source == NULL ? "the cluster file" : sweep->price_source, 200);

        output_printf("price: %s %s per device-hour (%s)\n",
                      output_number(sweep->price_per_device_hour).text, currency, source);
    }
}

void
describe_sweep(const Sweep *sweep)
{
    const Columns columns = find_columns(sweep);
    g_autofree char *model = text_escape(sweep->model, 60);
    g_autofree char *cluster = text_escape(sweep->cluster, 60);
    guint n_reasons = 0;

    output_printf("%s on %s, %s", model, cluster, sweep->dtype);
    if (sweep->points->len > 0 && !columns.has_batch)
        output_printf(", batch " INT, sweep_at(sweep, 0)->global_batch);
    if (sweep->points->len > 0 && !columns.has_seq_len)
        output_printf(", sequences of " INT " tokens", sweep_at(sweep, 0)->seq_len);
    if (isfinite(sweep->tokens))
        output_printf(", %s tokens to train", units_format_count(sweep->tokens).text);
    if (isfinite(sweep->within_days))
        output_printf(" within %s days", describe_days(sweep->within_days).text);
    if (isfinite(sweep->budget))
        output_printf(" for %s %s", units_format_count(sweep->budget).text,
                      sweep->currency == NULL ? "?" : sweep->currency);
    output_text("\n\n");
    g_autoptr(OutputTable) table = table_with_header(&columns, sweep->currency);
    for (guint i = 0; i < sweep->points->len; i++)
        add_row(table, sweep_at(sweep, i), &n_reasons);
    output_table_print(table, 0);
    print_reasons(sweep);
    if (n_reasons < sweep->points->len)
        print_all_best(sweep, &columns);
    output_text("\n");
    print_assumptions(sweep);
}
