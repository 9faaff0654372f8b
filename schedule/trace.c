#include "schedule/trace.h"

#include <math.h>
#include <string.h>

const char *const trace_stream_names[TRACE_STREAM_N + 1] = {"compute", "send", "receive", "dp",
                                                            NULL};

const char *const trace_event_names[TRACE_EVENT_N + 1] = {
    "F", "B", "I", "W", "send", "receive", "wait", "dp-reduce", "dp-gather", "optimizer", NULL,
};

const char *const trace_memory_names[TRACE_MEMORY_N + 1] = {
    "weights", "gradients", "optimizer", "activations", "kv", "buffers", "workspace", NULL,
};

Trace *
trace_new(const Schedule *schedule, bool measured)
{
    Trace *trace = g_new0(Trace, 1);

    trace->measured = measured;
    trace->schedule = g_strdup(schedule->name);
    trace->n_ranks = schedule->n_ranks;
    trace->n_chunks = schedule->n_chunks;
    trace->n_micro_batches = schedule->n_micro_batches;
    trace->n_slices = schedule->n_slices;
    trace->bubble_fraction = (double)NAN;
    trace->events = g_array_new(false, false, sizeof(TraceEvent));
    trace->memory = g_array_new(false, false, sizeof(TraceMemory));
    return trace;
}

void
trace_free(Trace *trace)
{
    if (trace == NULL)
        return;
    g_free(trace->schedule);
    g_array_unref(trace->events);
    g_array_unref(trace->memory);
    g_free(trace);
}

/* --- order --- */

#define COMPARE(x, y)                                                                              \
    do {                                                                                           \
        if ((x) != (y))                                                                            \
            return (x) < (y) ? -1 : 1;                                                             \
    } while (0)

static int
compare_events(gconstpointer left, gconstpointer right)
{
    const TraceEvent *a = left, *b = right;

    COMPARE(a->rank, b->rank);
    COMPARE(a->stream, b->stream);
    COMPARE(a->start_ns, b->start_ns);
    COMPARE(a->end_ns, b->end_ns);
    COMPARE(a->kind, b->kind);
    COMPARE(a->op.micro_batch, b->op.micro_batch);
    COMPARE(a->op.chunk, b->op.chunk);
    COMPARE(a->op.slice, b->op.slice);
    COMPARE(a->op.kind, b->op.kind);
    COMPARE(a->peer, b->peer);
    COMPARE(a->bytes, b->bytes);
    return 0;
}

/* What happens at one time on one rank keeps its order: an op frees and allocates in a sequence
 * that the peak depends on.  (g_array_sort is stable.) */
static int
compare_memory(gconstpointer left, gconstpointer right)
{
    const TraceMemory *a = left, *b = right;

    COMPARE(a->rank, b->rank);
    COMPARE(a->at_ns, b->at_ns);
    return 0;
}

void
trace_sort(Trace *trace)
{
    g_array_sort(trace->events, compare_events);
    g_array_sort(trace->memory, compare_memory);
}

/* --- check --- */

#define fail(error, ...)                                                                           \
    (g_set_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_INCOMPLETE, __VA_ARGS__), false)

static bool
check_event(const Trace *trace, const TraceEvent *event, const TraceEvent *before, GError **error)
{
    if (event->rank < 0 || event->stream >= TRACE_STREAM_N || event->kind >= TRACE_EVENT_N ||
        event->op.kind >= SCHEDULE_OP_N)
        return fail(error, "trace: an event has rank %d, stream %d, kind %d, op %d, which is none",
                    event->rank, event->stream, event->kind, event->op.kind);
    const char *name = trace_event_names[event->kind];
    const char *stream = trace_stream_names[event->stream];
    if (event->start_ns < 0 || event->start_ns > event->end_ns ||
        event->end_ns > trace->makespan_ns)
        return fail(error,
                    "trace: rank %d, stream %s: %s runs from %" G_GINT64_FORMAT
                    " ns to %" G_GINT64_FORMAT " ns, outside of 0 to %" G_GINT64_FORMAT " ns",
                    event->rank, stream, name, event->start_ns, event->end_ns, trace->makespan_ns);
    if (before == NULL)
        return true;
    if (compare_events(before, event) > 0)
        return fail(error, "trace: events are not sorted at %s of rank %d", name, event->rank);
    if (before->rank == event->rank && before->stream == event->stream &&
        event->start_ns < before->end_ns)
        return fail(error,
                    "trace: rank %d, stream %s: %s begins at %" G_GINT64_FORMAT
                    " ns, before %s ends at %" G_GINT64_FORMAT " ns",
                    event->rank, stream, name, event->start_ns, trace_event_names[before->kind],
                    before->end_ns);
    return true;
}

static bool
check_memory(const Trace *trace, GError **error)
{
    int64_t total[TRACE_MEMORY_N] = {0};

    for (guint i = 0; i < trace->memory->len; i++) {
        const TraceMemory *now = &g_array_index(trace->memory, TraceMemory, i);
        if (now->rank < 0 || now->owner >= TRACE_MEMORY_N || now->at_ns < 0 ||
            now->at_ns > trace->makespan_ns)
            return fail(error,
                        "trace: memory of rank %d, owner %d at %" G_GINT64_FORMAT
                        " ns is outside of the trace",
                        now->rank, now->owner, now->at_ns);
        if (i > 0 && compare_memory(now - 1, now) > 0)
            return fail(error, "trace: memory is not sorted at rank %d", now->rank);
        if (i > 0 && now->rank != now[-1].rank)
            memset(total, 0, sizeof total);
        if (__builtin_add_overflow(total[now->owner], now->delta_bytes, &total[now->owner]) ||
            total[now->owner] < 0)
            return fail(error,
                        "trace: rank %d frees more of %s than it holds at %" G_GINT64_FORMAT " ns",
                        now->rank, trace_memory_names[now->owner], now->at_ns);
    }
    return true;
}

bool
trace_check(const Trace *trace, GError **error)
{
    g_return_val_if_fail(trace != NULL, false);
    for (guint i = 0; i < trace->events->len; i++) {
        const TraceEvent *event = &g_array_index(trace->events, TraceEvent, i);
        if (!check_event(trace, event, i > 0 ? event - 1 : NULL, error))
            return false;
    }
    return check_memory(trace, error);
}
