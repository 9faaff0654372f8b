/*
 * schedule/trace.h - Trace: start and end of everything that happened in one iteration.
 *
 * A trace is predicted by the simulator or measured by the executor; both have this one form, so
 * that they can be compared event by event.  Times are integer nanoseconds from the iteration's
 * start, on one clock.
 *
 * File: one JSON object that is both a "degas-trace" (all of it can be read back, exact to the ns)
 * and a Chrome trace: chrome://tracing and ui.perfetto.dev open it.  One process per rank, one
 * thread per stream, flow arrows for messages, counters for memory by owner.
 *
 * Invariant: events of one stream of one rank do not overlap; they are sorted by (rank, stream,
 * start).
 */
#pragma once

#include "base/json.h"
#include "schedule/schedule.h"

typedef enum {
    TRACE_STREAM_COMPUTE,
    TRACE_STREAM_SEND, /* pipeline messages leaving */
    TRACE_STREAM_RECEIVE,
    TRACE_STREAM_DP, /* gradient reduction, parameter gathering */
    TRACE_STREAM_EP, /* experts' exchanges, where another micro-batch computes meanwhile */
    TRACE_STREAM_N,
} TraceStream;

extern const char *const trace_stream_names[TRACE_STREAM_N + 1];

/* What an event is.  The first four equal ScheduleOpKind. */
typedef enum {
    TRACE_EVENT_FORWARD,
    TRACE_EVENT_BACKWARD,
    TRACE_EVENT_BACKWARD_INPUT,
    TRACE_EVENT_BACKWARD_WEIGHT,
    TRACE_EVENT_SEND,
    TRACE_EVENT_RECEIVE,
    TRACE_EVENT_WAIT,      /* measured: blocked in a receive on the compute stream */
    TRACE_EVENT_DP_REDUCE, /* gradients over data-parallel ranks */
    TRACE_EVENT_DP_GATHER, /* parameters, ZeRO */
    TRACE_EVENT_OPTIMIZER,
    TRACE_EVENT_EXCHANGE, /* rows to experts, back, or their gradients */
    TRACE_EVENT_N,
} TraceEventKind;

extern const char *const trace_event_names[TRACE_EVENT_N + 1];

typedef struct {
    int64_t start_ns, end_ns;
    ScheduleOp op;  /* of the op, or of the op whose message this is; zero for the rest */
    int32_t rank;   /* pipeline rank (predicted); process rank (measured, see n_replicas) */
    int32_t peer;   /* messages: the other rank; else -1 */
    int64_t bytes;  /* messages and collectives; else 0 */
    uint8_t stream; /* TraceStream */
    uint8_t kind;   /* TraceEventKind */
    float recompute_fraction; /* of a predicted backward: the share of its time in which the
                                 forward is computed again */
} TraceEvent;

/* What memory is held for. */
typedef enum {
    TRACE_MEMORY_WEIGHTS,
    TRACE_MEMORY_GRADIENTS,
    TRACE_MEMORY_OPTIMIZER,
    TRACE_MEMORY_ACTIVATIONS,
    TRACE_MEMORY_KV,
    TRACE_MEMORY_BUFFERS,
    TRACE_MEMORY_WORKSPACE,
    TRACE_MEMORY_N,
} TraceMemoryOwner;

extern const char *const trace_memory_names[TRACE_MEMORY_N + 1];

/* An allocation (> 0) or a free (< 0). */
typedef struct {
    int64_t at_ns;
    int64_t delta_bytes;
    int32_t rank;
    uint8_t owner; /* TraceMemoryOwner */
} TraceMemory;

typedef struct {
    bool measured;
    char *schedule; /* (owned) family name */
    int32_t n_ranks, n_chunks, n_micro_batches, n_slices;
    int64_t makespan_ns;
    /* Report.bubble_fraction: events alone do not say why a rank is idle.  NaN: the file is older
     * than this key. */
    double bubble_fraction;
    GArray *events; /* of TraceEvent */
    GArray *memory; /* of TraceMemory, sorted by (rank, at_ns); empty when not simulated */
} Trace;

Trace *trace_new(const Schedule *schedule, bool measured);
void trace_free(Trace *trace);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Trace, trace_free)

/* Sorts events and memory into their total order. */
void trace_sort(Trace *trace);

/* Checks the invariants: no two events at once on a stream, start <= end <= makespan, memory never
 * negative.  Returns false with SCHEDULE_ERROR_INCOMPLETE naming the first offence. */
bool trace_check(const Trace *trace, GError **error);

/* Returns: (owned) the JSON text described above. */
char *trace_to_json(const Trace *trace, size_t *n_bytes);
/* NULL on JSON_ERROR_INVALID or G_FILE_ERROR. */
Trace *trace_load(const char *path, GError **error);
/* As trace_load(), from a document that the caller has parsed to see its format; finishes @doc. */
Trace *trace_read(JsonDoc *doc, GError **error);
