/*
 * simulator/simulate.h - interprets a Schedule with a Workload's times and bytes: Trace and Report.
 *
 * Time, where links are not shared: every op starts when its rank is free and its message is there.
 *   overlapped messages: start = max(free(rank), end(producer) + message)
 *   blocking messages:   start = max(free(rank), end(producer)) + message, and the sender's compute
 *                        stream is busy after the op for as much of the message as the transport
 *                        does not buffer: what synchronous sends and receives do
 * (docs/cost-model.md 3.4.)  One sweep in topological order, O(ops), integers only, so equal inputs
 * give equal traces.
 *
 * Where links are shared (SimOptions.topology), overlapped messages become flows, and the event
 * engine takes the place of the sweep: contend.h.  Where both apply they give the same trace.
 *
 * An op takes its time_ns and the workload's op_overhead_ns.  Messages exist between ranks only.
 * Pairs of ops that a framework runs overlapped (Schedule.overlap_pairs) hide the collectives of
 * one behind the computing of the other: pairs.h.  A schedule with pairs is swept, whatever links
 * are shared.
 *
 * After its last op a rank reduces gradients over dp, steps the optimizer, gathers parameters;
 * with overlap_dp the reduction runs behind the last backward of each chunk: finish.h.
 *
 * Memory: memory.h walks the same ops and turns them into allocations and frees with owners.
 * The report's sums: account.h.  The trace's streams: events.h.
 *
 * Thread-safety: pure; inputs are shared read-only.
 */
#ifndef SIMULATOR_SIMULATE_H
#define SIMULATOR_SIMULATE_H

#include "profiles/workload.h"
#include "schedule/schedule.h"
#include "simulator/jitter.h"
#include "simulator/memory.h"
#include "simulator/topology.h"

G_BEGIN_DECLS

typedef struct {
    /* (borrowed, nullable) links that messages share; NULL: every message has its own */
    const SimTopology *topology;
    const SimJitter *jitter; /* (borrowed, nullable) also run it many times with varied times */
    bool want_trace;         /* events; the report is always made */
    bool want_levels;        /* with want_memory: what ranks hold at and after every op */
    bool want_memory;        /* memory events and peaks; else peaks are 0 and fits is true */
} SimOptions;

typedef struct {
    Report *report;   /* (owned) */
    Trace *trace;     /* (owned, nullable) */
    SimLevel *levels; /* (owned, nullable) [index into schedule->ops] with want_levels */
} SimResult;

void sim_result_clear(SimResult *result);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(SimResult, sim_result_clear)

/*
 * Runs one iteration.  @workload must be made for the same shape as @schedule.
 * Returns false on SCHEDULE_ERROR_INCOMPLETE or _DEADLOCK (the schedule cannot run), _SHAPE (the
 * workload is for another shape) or _LIMIT (times or bytes negative or beyond int64_t, no memory);
 * @result is then untouched.  Cost: O(ops).
 */
bool sim_run(const Schedule *schedule, const Workload *workload, const SimOptions *options,
             SimResult *result, GError **error);

G_END_DECLS

#endif /* SIMULATOR_SIMULATE_H */
