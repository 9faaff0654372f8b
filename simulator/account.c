#include "simulator/account.h"

#include <string.h>

#include "base/units.h"

/* Where the compute stream of one rank spends its time. */
typedef struct {
    int64_t op_ns; /* all of the ops, with what follows */
    int64_t tp_ns, cp_ns, ep_ns, recompute_ns;
    int64_t dp_ns;      /* inside ops: ZeRO 3 */
    int64_t blocked_ns; /* in messages */
    int64_t message_ns; /* of all messages in and out */
    int64_t shared_ns;  /* of collectives inside ops, beyond what they take alone */
    int64_t dp_blocked_ns, optimizer_ns;
    int64_t hidden_ns; /* of collectives in overlapped pairs, behind computing */
    int64_t end_ns;
} Usage;

static void
add_cost(const SimProgram *program, int64_t cost, Usage *usage)
{
    const int64_t n = program->counts[cost];
    const SimCostDetail *detail = &program->details[cost];
    const int64_t *part = sim_part_ns(program, cost);

    usage->op_ns += n * detail->op_ns;
    usage->tp_ns += n * part[PROFILE_PART_TP];
    usage->cp_ns += n * part[PROFILE_PART_CP];
    usage->ep_ns += n * part[PROFILE_PART_EP];
    usage->recompute_ns += n * part[PROFILE_PART_RECOMPUTE];
    usage->dp_ns += n * part[PROFILE_PART_DP];
    usage->blocked_ns += n * (detail->in.compute_ns + detail->out.compute_ns);
}

/* Shares links' time out to the parts that use them, and to messages. */
static void
share_out(Usage *usage)
{
    int64_t *parts[] = {&usage->tp_ns, &usage->cp_ns, &usage->ep_ns, &usage->dp_ns};
    double sum = 0;
    int64_t left_ns = usage->shared_ns;

    for (size_t i = 0; i < G_N_ELEMENTS(parts); i++)
        sum += (double)*parts[i];
    for (size_t i = 0; i < G_N_ELEMENTS(parts) && sum > 0; i++) {
        const int64_t ns = (int64_t)((double)usage->shared_ns * ((double)*parts[i] / sum));
        *parts[i] += MIN(ns, left_ns);
        left_ns -= MIN(ns, left_ns);
    }
    /* What is left by rounding, or of hidden collectives, counts as computing. */
}

/* Fills one rank but for its bubble, which needs the makespan.  Returns the rank's span. */
static int64_t
account_rank(const SimProgram *program, const SimTimes *times, int32_t rank, Usage *usage,
             ReportRank *row)
{
    const WorkloadRank *work = &program->workload->ranks[rank];
    const int64_t first = program->first[rank];
    const SimFinish *finish = &times->finish[rank];
    const SimExtra *extra = &times->extra[rank];

    usage->end_ns = finish->end_ns;
    usage->op_ns += extra->extra_ns - extra->receive_ns;
    usage->blocked_ns += extra->receive_ns;
    usage->dp_ns += extra->wait_ns;
    usage->shared_ns = extra->shared_ns;
    usage->dp_blocked_ns = sim_finish_blocked_ns(finish);
    usage->optimizer_ns = work->optimizer_ns;
    row->busy_ns = usage->op_ns - usage->hidden_ns + usage->blocked_ns + usage->dp_blocked_ns +
                   usage->optimizer_ns;
    row->communication_ns = usage->message_ns + usage->tp_ns + usage->cp_ns + usage->ep_ns +
                            usage->dp_ns - extra->wait_ns + usage->shared_ns;
    row->peak_in_flight = program->in_flight[rank];
    if (first < 0)
        return finish->end_ns;
    return finish->end_ns - sim_times_step(times, program, (uint32_t)first).begin_ns;
}

static void
account_memory(const SimProgram *program, const SimTimes *times, const SimPeak *peaks,
               Report *report)
{
    for (int32_t rank = 0; rank < program->schedule->n_ranks; rank++) {
        const int64_t limit = program->workload->ranks[rank].memory_limit_bytes;
        if (limit > 0 && (report->memory_limit_bytes == 0 || limit < report->memory_limit_bytes))
            report->memory_limit_bytes = limit;
        if (peaks == NULL)
            continue;
        const SimPeak *peak = &peaks[rank];
        ReportRank *row = &g_array_index(report->ranks, ReportRank, rank);
        row->peak_memory_bytes = peak->bytes;
        if (peak->step >= 0) {
            row->peak_time_ns = sim_times_step(times, program, (uint32_t)peak->step).start_ns;
            schedule_op_name(program->schedule, program->schedule->ops[peak->op], row->peak_op);
        }
        memcpy(row->memory_bytes, peak->owner_bytes, sizeof row->memory_bytes);
        if (peak->bytes > report->peak_memory_bytes)
            report->memory_usable_bytes = workload_usable_bytes(&program->workload->ranks[rank]);
        report->peak_memory_bytes = MAX(report->peak_memory_bytes, peak->bytes);
        report->fits = report->fits && sim_peak_fits(&program->workload->ranks[rank], peak);
    }
}

/* The share of an op's collectives that pairs do not hide. */
static double
shown_share(const Usage *u)
{
    const int64_t all_ns = u->tp_ns + u->cp_ns + u->ep_ns + u->dp_ns;

    return all_ns == 0 ? 1 : 1 - (double)MIN(u->hidden_ns, all_ns) / (double)all_ns;
}

/* Means over ranks; they add up to the iteration but for rounding of doubles. */
static void
account_breakdown(const Usage *usages, Report *report)
{
    const double n = report->ranks->len;
    double bubble_s = 0;

    for (guint rank = 0; rank < report->ranks->len; rank++) {
        const Usage *u = &usages[rank];
        const double shown = shown_share(u);
        const int64_t all_ns = u->tp_ns + u->cp_ns + u->ep_ns + u->dp_ns;
        /* Given times of pairs may be shorter than what is computed. */
        const int64_t compute_ns =
            u->op_ns - all_ns - u->recompute_ns - MAX(0, u->hidden_ns - all_ns);
        report->breakdown.compute_s += units_s_from_ns(compute_ns) / n;
        report->breakdown.tp_s += shown * units_s_from_ns(u->tp_ns) / n;
        report->breakdown.cp_s += shown * units_s_from_ns(u->cp_ns) / n;
        report->breakdown.ep_s += shown * units_s_from_ns(u->ep_ns) / n;
        report->breakdown.recompute_s += units_s_from_ns(u->recompute_ns) / n;
        report->breakdown.pp_s += units_s_from_ns(u->blocked_ns) / n;
        report->breakdown.dp_s +=
            (units_s_from_ns(u->dp_blocked_ns) + shown * units_s_from_ns(u->dp_ns)) / n;
        report->breakdown.optimizer_s += units_s_from_ns(u->optimizer_ns) / n;
        bubble_s += units_s_from_ns(g_array_index(report->ranks, ReportRank, rank).bubble_ns);
    }
    report->breakdown.bubble_s = bubble_s / n;
    if (report->iteration_ns > 0)
        report->bubble_fraction = bubble_s / (n * units_s_from_ns(report->iteration_ns));
}

/* Shares of the ops' time by what it was priced with.  Plain op times have no model: left NaN. */
static void
account_sources(const SimProgram *program, Report *report)
{
    double by_source[PROFILE_SOURCE_MEASURED + 1] = {0}, sum = 0;

    if (program->workload->n_devices <= 0)
        return;
    for (int64_t cost = 0; cost < program->n_costs; cost++) {
        const double ns = (double)program->counts[cost] * (double)program->details[cost].op_ns;

        if (program->counts[cost] == 0)
            continue;
        by_source[sim_program_workload_op(program, cost)->source] += ns;
        sum += ns;
    }
    if (sum <= 0)
        return;
    report->sources.measured_fraction = by_source[PROFILE_SOURCE_MEASURED] / sum;
    report->sources.interpolated_fraction = by_source[PROFILE_SOURCE_INTERPOLATED] / sum;
    report->sources.modelled_fraction = by_source[PROFILE_SOURCE_MODELLED] / sum;
}

/* What needs a model, a device, a price: NaN where it is not known. */
static void
account_rates(const Workload *workload, Report *report)
{
    const double iteration_s = units_s_from_ns(report->iteration_ns);
    const double n_devices = (double)workload->n_devices;
    double device_flops_per_s = 0;

    for (int32_t rank = 0; rank < workload->n_ranks; rank++)
        device_flops_per_s += workload->ranks[rank].device_flops_per_s / workload->n_ranks;
    if (workload->physical_bound_s > 0)
        report->physical_bound_s = workload->physical_bound_s;
    if (iteration_s <= 0)
        return;
    if (workload->tokens > 0)
        report->tokens_per_s = workload->tokens / iteration_s;
    if (workload->n_devices <= 0)
        return;
    if (workload->model_flops > 0) {
        report->model_flops_per_s_per_device = workload->model_flops / iteration_s / n_devices;
        if (device_flops_per_s > 0)
            report->model_flops_utilization_fraction =
                report->model_flops_per_s_per_device / device_flops_per_s;
    }
    if (workload->price_per_device_hour > 0)
        report->cost_per_iteration =
            workload->price_per_device_hour * n_devices * iteration_s / 3600;
    if (workload->power_w_per_device > 0)
        report->energy_per_iteration_j = workload->power_w_per_device * n_devices * iteration_s;
}

static void
add_hidden(const SimProgram *program, const SimTimes *times, Usage *usages)
{
    for (int64_t k = 0; times->saved_ns != NULL && k < program->n_pairs; k++) {
        const uint32_t step = program->pairs[k];
        usages[program->details[program->steps[step].cost].rank].hidden_ns +=
            times->saved_ns[step] + times->saved_ns[step + 1];
    }
}

/* Messages, as long as they are under way: alone what they take, on shared links longer. */
static void
add_messages(const SimProgram *program, const SimTimes *times, Usage *usages)
{
    for (int32_t rank = 0; times->followed != NULL && rank < program->schedule->n_ranks; rank++)
        usages[rank].message_ns = times->extra[rank].message_ns;
    for (int64_t cost = 0; times->followed == NULL && cost < program->n_costs; cost++) {
        const SimCostDetail *detail = &program->details[cost];
        if (program->counts[cost] > 0)
            usages[detail->rank].message_ns +=
                program->counts[cost] * (detail->in.ns + detail->out.ns);
    }
}

Report *
sim_account(const SimProgram *program, const SimTimes *times, const SimPeak *peaks)
{
    const int32_t n_ranks = program->schedule->n_ranks;
    Report *report = report_new(n_ranks);
    g_autofree Usage *usages = g_new0(Usage, (size_t)n_ranks);

    for (int64_t cost = 0; cost < program->n_costs; cost++)
        if (program->counts[cost] > 0)
            add_cost(program, cost, &usages[program->details[cost].rank]);
    add_messages(program, times, usages);
    add_hidden(program, times, usages);
    for (int32_t rank = 0; rank < n_ranks; rank++) {
        ReportRank *row = &g_array_index(report->ranks, ReportRank, rank);
        const int64_t span_ns = account_rank(program, times, rank, &usages[rank], row);
        report->span_ns = MAX(report->span_ns, span_ns);
        report->iteration_ns = MAX(report->iteration_ns, usages[rank].end_ns);
    }
    for (guint i = 0; i < times->pieces->len; i++) {
        const SimPiece *piece = &g_array_index(times->pieces, SimPiece, i);
        g_array_index(report->ranks, ReportRank, piece->rank).communication_ns +=
            piece->end_ns - piece->start_ns;
    }
    for (int32_t rank = 0; rank < n_ranks; rank++) {
        ReportRank *row = &g_array_index(report->ranks, ReportRank, rank);
        row->bubble_ns = report->iteration_ns - row->busy_ns;
        share_out(&usages[rank]);
    }
    account_memory(program, times, peaks, report);
    account_breakdown(usages, report);
    account_sources(program, report);
    account_rates(program->workload, report);
    return report;
}
