/* A sweep for people: the table, the best points, what goodput was computed from. */
#include <math.h>
#include <string.h>

#include "base/text.h"
#include "base/units.h"
#include "cli/draw/describe.h"
#include "cli/request/output.h"
#include "cli/request/sweep.h"
#include "schedule/rank_order.h"

/* What is the same in all rows, or known in none, has no column. */
typedef struct {
    bool has_batch, has_seq_len, has_cost, has_energy, has_days, has_slices, has_failures;
} Columns;

static const SweepPoint *
point_at(const Sweep *sweep, guint i)
{
    return &g_array_index(sweep->points, SweepPoint, i);
}

static Columns
find_columns(const Sweep *sweep)
{
    Columns columns = {.has_failures = isfinite(sweep->reliability.device_mtbf_s)};

    for (guint i = 0; i < sweep->points->len; i++) {
        const SweepPoint *first = point_at(sweep, 0), *point = point_at(sweep, i);

        columns.has_batch |= point->global_batch != first->global_batch;
        columns.has_seq_len |= point->seq_len != first->seq_len;
        columns.has_cost |= isfinite(point->effective_cost);
        columns.has_energy |= isfinite(point->effective_energy_j);
        columns.has_days |= isfinite(point->effective_days);
        columns.has_slices |= point->n_slices > 1;
    }
    return columns;
}

static OutputTable *
table_with_header(const Columns *columns, const char *currency)
{
    g_autofree char *cost = g_strdup_printf("cost [%s]", currency == NULL ? "?" : currency);
    const char *header[24] = {"devices"};
    size_t n = 1;

    if (columns->has_batch)
        header[n++] = "batch";
    if (columns->has_seq_len)
        header[n++] = "tokens";
    header[n++] = "<split";
    header[n++] = "micro-batch";
    header[n++] = "<schedule";
    if (columns->has_slices)
        header[n++] = "slices";
    header[n++] = "<recompute";
    header[n++] = "zero";
    header[n++] = "iteration";
    header[n++] = "tokens/s";
    header[n++] = "per device";
    header[n++] = "MFU";
    header[n++] = "memory";
    if (columns->has_failures)
        header[n++] = "goodput";
    if (columns->has_days)
        header[n++] = "days";
    if (columns->has_days && columns->has_cost)
        header[n++] = cost;
    if (columns->has_days && columns->has_energy)
        header[n++] = "energy";
    return output_table_new(header);
}

static void
add_plan(OutputTable *table, const SweepPoint *point, const Columns *columns)
{
    /* Files from before there were orders say nothing. */
    const int order = point->rank_order == NULL ? 0 : plan_rank_order_find(point->rank_order);
    const PlanDegrees degrees = {point->dp, point->tp, point->pp,    point->vpp,
                                 point->cp, point->ep, MAX(0, order)};

    output_table_take(table, describe_split(&degrees));
    output_table_printf(table, "%" G_GINT64_FORMAT, point->micro_batch);
    output_table_add(table, point->schedule);
    if (columns->has_slices)
        output_table_printf(table, "%" G_GINT64_FORMAT, point->n_slices);
    output_table_add(table, point->recompute);
    output_table_printf(table, "%" G_GINT64_FORMAT, point->zero_stage);
    output_table_take(table, output_seconds(point->iteration_s));
    output_table_take(table, units_format_count(point->tokens_per_s));
    output_table_take(table, units_format_count(point->tokens_per_s_per_device));
    output_table_take(table, output_percent(point->model_flops_utilization_fraction));
    output_table_take(table, units_format_bytes((double)point->peak_memory_bytes));
}

/* "3.42 GWh" */
static char *
energy_text(double energy_j)
{
    static const char *const names[] = {"kWh", "MWh", "GWh", "TWh"};
    double value = energy_j / 3.6e6;
    size_t i = 0;

    if (!isfinite(energy_j))
        return g_strdup("-");
    for (; value >= 1000 && i + 1 < G_N_ELEMENTS(names); i++)
        value /= 1000;
    g_autofree char *number = output_number(value);
    return g_strdup_printf("%s %s", number, names[i]);
}

/* Days: tenths below a hundred. */
static char *
days_text(double days)
{
    char digits[G_ASCII_DTOSTR_BUF_SIZE];

    if (!isfinite(days))
        return g_strdup("-");
    return g_strdup(g_ascii_formatd(digits, sizeof digits,
                                    days < 10    ? "%.2f"
                                    : days < 100 ? "%.1f"
                                                 : "%.0f",
                                    days));
}

static void
add_training(OutputTable *table, const SweepPoint *point, const Columns *columns)
{
    if (columns->has_failures)
        output_table_take(table, output_percent(point->goodput_fraction));
    if (columns->has_days)
        output_table_take(table, days_text(point->effective_days));
    if (columns->has_days && columns->has_cost)
        output_table_take(table, isfinite(point->effective_cost)
                                     ? units_format_count(point->effective_cost)
                                     : g_strdup("-"));
    if (columns->has_days && columns->has_energy)
        output_table_take(table, energy_text(point->effective_energy_j));
}

static void
add_row(OutputTable *table, const SweepPoint *point, const Columns *columns, guint *n_reasons)
{
    output_table_printf(table, "%" G_GINT64_FORMAT, point->n_devices);
    if (columns->has_batch)
        output_table_printf(table, "%" G_GINT64_FORMAT, point->global_batch);
    if (columns->has_seq_len)
        output_table_printf(table, "%" G_GINT64_FORMAT, point->seq_len);
    if (point->is_feasible) {
        add_plan(table, point, columns);
        add_training(table, point, columns);
        return;
    }
    output_table_printf(table, "no plan [%u]", ++*n_reasons);
    for (int i = 0; i < 9 + columns->has_slices + columns->has_failures +
                            columns->has_days * (1 + columns->has_cost + columns->has_energy);
         i++)
        output_table_add(table, "-");
}

static void
print_reasons(const Sweep *sweep)
{
    guint n = 0;

    for (guint i = 0; i < sweep->points->len; i++) {
        const SweepPoint *point = point_at(sweep, i);
        g_autofree char *reason = NULL;

        if (point->is_feasible)
            continue;
        reason = text_escape(point->reason == NULL ? "unknown" : point->reason, 1000);
        output_printf("%s[%u] %s\n", n == 0 ? "\n" : "", n + 1, reason);
        n++;
    }
}

/* "fastest: 1024 devices, batch 512: 12.3 days" */
static void
print_best(const Sweep *sweep, const Columns *columns, const char *what, size_t offset, int sign,
           char *(*format)(double), const char *unit)
{
    const SweepPoint *best = sweep_best(sweep, offset, sign);
    g_autofree char *value = NULL;

    if (best == NULL)
        return;
    value = format(*(const double *)(const void *)((const char *)best + offset));
    output_printf("%s  %" G_GINT64_FORMAT " devices", what, best->n_devices);
    if (columns->has_batch)
        output_printf(", batch %" G_GINT64_FORMAT, best->global_batch);
    if (columns->has_seq_len)
        output_printf(", %" G_GINT64_FORMAT " tokens", best->seq_len);
    output_printf(": %s %s\n", value, unit == NULL ? "" : unit);
}

static void
print_all_best(const Sweep *sweep, const Columns *columns)
{
    output_text("\n");
    if (!columns->has_days)
        print_best(sweep, columns, "fastest          ",
                   offsetof(SweepPoint, effective_tokens_per_s), -1, units_format_count,
                   "tokens/s after failures");
    else
        print_best(sweep, columns, "fastest          ", offsetof(SweepPoint, effective_days), 1,
                   days_text, "days");
    if (columns->has_days && columns->has_cost)
        print_best(sweep, columns, "cheapest         ", offsetof(SweepPoint, effective_cost), 1,
                   units_format_count, sweep->currency);
    print_best(sweep, columns, "best per device  ", offsetof(SweepPoint, tokens_per_s_per_device),
               -1, units_format_count, "tokens/s");
}

/* Where a value is the default, whose it is. */
static void
print_assumptions(const Sweep *sweep)
{
    const SweepReliability *r = &sweep->reliability;
    g_autofree char *mtbf = days_text(r->device_mtbf_s / 86400);
    g_autofree char *restart = units_format_s(r->restart_s);
    const double bytes_per_s = r->checkpoint_bytes_per_s > 0 ? r->checkpoint_bytes_per_s
                                                             : PLAN_GOODPUT_BYTES_PER_S_PER_DEVICE;
    g_autofree char *rate = output_number(bytes_per_s / 1e6);

    if (!isfinite(r->device_mtbf_s)) {
        output_text("goodput: nothing fails (--mtbf none)\n");
    } else {
        output_printf(
            "goodput: a device fails every %s days%s, restart %s%s,\n"
            "  checkpoints at %s MB/s%s, at Daly's interval\n",
            mtbf,
            r->device_mtbf_s == PLAN_GOODPUT_DEVICE_MTBF_S ? " (Llama 3, arXiv:2407.21783)" : "",
            restart, r->restart_s == PLAN_GOODPUT_RESTART_S ? " (MegaScale, arXiv:2402.15627)" : "",
            rate, r->checkpoint_bytes_per_s > 0 ? "" : " per device (Llama 3: 2 TB/s for 16384)");
    }
    if (sweep->price_per_device_hour > 0) {
        g_autofree char *price = output_number(sweep->price_per_device_hour);
        g_autofree char *currency = text_escape(sweep->currency, 20);
        g_autofree char *source = text_escape(
            sweep->price_source == NULL ? "the cluster file" : sweep->price_source, 200);

        output_printf("price: %s %s per device-hour (%s)\n", price, currency, source);
    }
}

void
sweep_describe(const Sweep *sweep)
{
    const Columns columns = find_columns(sweep);
    g_autofree char *model = text_escape(sweep->model, 60);
    g_autofree char *cluster = text_escape(sweep->cluster, 60);
    guint n_reasons = 0;

    output_printf("%s on %s, %s", model, cluster, sweep->dtype);
    if (sweep->points->len > 0 && !columns.has_batch)
        output_printf(", batch %" G_GINT64_FORMAT, point_at(sweep, 0)->global_batch);
    if (sweep->points->len > 0 && !columns.has_seq_len)
        output_printf(", sequences of %" G_GINT64_FORMAT " tokens", point_at(sweep, 0)->seq_len);
    if (isfinite(sweep->tokens)) {
        g_autofree char *tokens = units_format_count(sweep->tokens);

        output_printf(", %s tokens to train", tokens);
    }
    output_text("\n\n");
    g_autoptr(OutputTable) table = table_with_header(&columns, sweep->currency);
    for (guint i = 0; i < sweep->points->len; i++)
        add_row(table, point_at(sweep, i), &columns, &n_reasons);
    output_table_print(table, 0);
    print_reasons(sweep);
    if (n_reasons < sweep->points->len)
        print_all_best(sweep, &columns);
    output_text("\n");
    print_assumptions(sweep);
}
