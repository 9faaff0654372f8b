#include "simulator/simulate.h"

#include "base/host_memory.h"
#include "simulator/account.h"
#include "simulator/contend.h"
#include "simulator/events.h"
#include "simulator/vary.h"

void
sim_result_clear(SimResult *result)
{
    g_clear_pointer(&result->report, report_free);
    g_clear_pointer(&result->trace, trace_free);
    g_clear_pointer(&result->levels, g_free);
}

/* Until when the sweep's @times hold, as nothing meets on a link that is too small for all of it. */
static int64_t
sweep_holds_until(const SimProgram *program, const SimNetwork *network, const SimTimes *times)
{
    const Workload *workload = program->workload;

    /* What messages do to computing beside them is followed only event by event. */
    if (workload->message_interference_fraction > 0 && !workload->blocking_messages)
        return 0;
    return times->meets ? 0 : sim_network_suffices_until(network, program, times);
}

/* Sharing links only delays, so a sweep that ends too late is enough to know. */
static bool
ends_after(const SimTimes *times, int64_t limit_ns)
{
    int64_t end_ns = 0;

    for (int32_t rank = 0; rank < times->n_ranks; rank++)
        end_ns = MAX(end_ns, times->free_ns[rank]);
    return limit_ns > 0 && end_ns > limit_ns;
}

static bool
find_times(const SimProgram *program, SimBy by, int64_t limit_ns, SimTimes *times, GError **error)
{
    g_auto(SimNetwork) network = {0};

    const bool pairs_block = program->n_pairs > 0 && program->workload->blocking_messages;

    if (by != SIM_BY_EVENTS || pairs_block)
        sim_program_sweep(program, times);
    if (by == SIM_BY_SWEEP || pairs_block ||
        (by == SIM_BY_EITHER && program->workload->links == NULL))
        return true;
    if (program->workload->links == NULL)
        return sim_program_contend(program, NULL, SIM_FOLLOW_ALL, times, error);
    if (by == SIM_BY_EITHER && ends_after(times, limit_ns))
        return true;
    if (!sim_network_init(&network, program, error))
        return false;
    const int64_t known_ns =
        by == SIM_BY_EVENTS ? SIM_FOLLOW_ALL : sweep_holds_until(program, &network, times);
    return known_ns == INT64_MAX || sim_program_contend(program, &network, known_ns, times, error);
}

static bool
all_fit(const Workload *workload, const SimPeak *peaks)
{
    for (int32_t rank = 0; rank < workload->n_ranks; rank++)
        if (!sim_peak_fits(&workload->ranks[rank], &peaks[rank]))
            return false;
    return true;
}

bool
sim_run(const Schedule *schedule, const Workload *workload, const SimOptions *options,
        SimResult *result, GError **error)
{
    static const SimOptions plain = {0};
    g_auto(SimTimes) times = {0};
    g_autoptr(Trace) trace = NULL;
    g_autofree SimPeak *peaks = NULL;
    g_autofree SimLevel *levels = NULL;

    g_return_val_if_fail(schedule != NULL && workload != NULL && result != NULL, false);
    if (options == NULL)
        options = &plain;
    g_autoptr(SimProgram) program = sim_program_new(schedule, workload, error);
    if (program == NULL)
        return false;
    if (!sim_times_init(&times, program, error))
        return false;
    if (options->want_memory) {
        peaks = g_new(SimPeak, (size_t)schedule->n_ranks);
        if (!sim_memory_peaks(program, peaks, error))
            return false;
        if (options->want_levels) {
            levels = pages_try_malloc((size_t)MAX(program->n_ops, 1), sizeof *levels);
            if (levels == NULL)
                return sim_fail_memory(error, program->n_ops, "levels of memory");
            sim_memory_levels(program, levels);
        }
    }
    const bool is_useless = options->only_if_fits && peaks != NULL && !all_fit(workload, peaks);
    if (!find_times(program, is_useless ? SIM_BY_SWEEP : options->by, options->limit_ns, &times,
                    error))
        return false;
    if (options->want_trace) {
        trace = options->glimpse != NULL ? sim_glimpse(program, &times, options->glimpse)
                                         : sim_events(program, &times, options->want_memory, error);
        if (trace == NULL)
            return false;
    }
    ReportJitter jitter = {0};
    if (options->jitter != NULL &&
        !sim_vary(program, &times, peaks, options->jitter, &jitter, error))
        return false;
    *result = (SimResult){
        .report = sim_account(program, &times, peaks),
        .trace = g_steal_pointer(&trace),
        .levels = g_steal_pointer(&levels),
    };
    result->report->jitter = jitter;
    if (result->trace != NULL)
        result->trace->bubble_fraction = result->report->bubble_fraction;
    return true;
}

bool
sim_run_report(const Schedule *schedule, const Workload *workload, bool want_memory,
               Report **report, void *user_data)
{
    const SimOptions options = {.want_memory = want_memory};
    g_auto(SimResult) result = {0};

    if (!sim_run(schedule, workload, &options, &result, NULL))
        return false;
    *report = g_steal_pointer(&result.report);
    return true;
}
