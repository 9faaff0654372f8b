/* Runs of the simulator with everything in the trace, checked, and a look at its events. */
#pragma once

#include "simulator/simulate.h"

static inline void
run(const Schedule *schedule, const Workload *workload, SimBy by, SimResult *result)
{
    const SimOptions options = {.by = by, .want_trace = true, .want_memory = true};
    g_autoptr(GError) error = NULL;

    g_assert_true(sim_run(schedule, workload, &options, result, &error));
    g_assert_no_error(error);
    g_assert_true(trace_check(result->trace, &error));
    g_assert_no_error(error);
}

static inline const TraceEvent *
event_at(const Trace *trace, guint i)
{
    return &g_array_index(trace->events, TraceEvent, i);
}
