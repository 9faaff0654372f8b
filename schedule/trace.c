#include "schedule/trace.h"

#include <math.h>
#include <string.h>

#include "base/json_fields.h"
#include "base/order.h"
#include "base/text.h"
#include "base/units.h"

const char *const trace_stream_names[TRACE_STREAM_N + 1] = {"compute", "send", "receive",
                                                            "dp",      "ep",   NULL};

const char *const trace_event_names[TRACE_EVENT_N + 1] = {
    "F",    "B",         "I",         "W",         "send",     "receive",
    "wait", "dp-reduce", "dp-gather", "optimizer", "exchange", NULL,
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

static int
compare_events(gconstpointer left, gconstpointer right)
{
    const TraceEvent *a = left, *b = right;

    ORDER_BY(a->rank, b->rank);
    ORDER_BY(a->stream, b->stream);
    ORDER_BY(a->start_ns, b->start_ns);
    ORDER_BY(a->end_ns, b->end_ns);
    ORDER_BY(a->kind, b->kind);
    ORDER_BY(a->op.micro_batch, b->op.micro_batch);
    ORDER_BY(a->op.chunk, b->op.chunk);
    ORDER_BY(a->op.slice, b->op.slice);
    ORDER_BY(a->op.kind, b->op.kind);
    ORDER_BY(a->peer, b->peer);
    return ORDER(a->bytes, b->bytes);
}

/* What happens at one time on one rank keeps its order: an op frees and allocates in a sequence
 * that the peak depends on.  (g_array_sort is stable.) */
static int
compare_memory(gconstpointer left, gconstpointer right)
{
    const TraceMemory *a = left, *b = right;

    ORDER_BY(a->rank, b->rank);
    return ORDER(a->at_ns, b->at_ns);
}

void
trace_sort(Trace *trace)
{
    g_array_sort(trace->events, compare_events);
    g_array_sort(trace->memory, compare_memory);
}

/* --- check --- */

#define fail(error, ...) schedule_refuse(error, INCOMPLETE, "trace: " __VA_ARGS__)

static bool
check_event(const Trace *trace, const TraceEvent *event, const TraceEvent *before, GError **error)
{
    if (event->rank < 0 || event->stream >= TRACE_STREAM_N || event->kind >= TRACE_EVENT_N ||
        event->op.kind >= SCHEDULE_OP_N)
        return fail(error, "an event has rank %d, stream %d, kind %d, op %d, which is none",
                    event->rank, event->stream, event->kind, event->op.kind);
    const char *name = trace_event_names[event->kind];
    const char *stream = trace_stream_names[event->stream];
    if (event->start_ns < 0 || event->start_ns > event->end_ns ||
        event->end_ns > trace->makespan_ns)
        return fail(error,
                    "rank %d, stream %s: %s runs from " INT " ns to " INT
                    " ns, outside of 0 to " INT " ns",
                    event->rank, stream, name, event->start_ns, event->end_ns, trace->makespan_ns);
    if (before == NULL)
        return true;
    if (compare_events(before, event) > 0)
        return fail(error, "events are not sorted at %s of rank %d", name, event->rank);
    if (before->rank == event->rank && before->stream == event->stream &&
        event->start_ns < before->end_ns)
        return fail(error,
                    "rank %d, stream %s: %s begins at " INT " ns, before %s ends at " INT " ns",
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
            return fail(error, "memory of rank %d, owner %d at " INT " ns is outside of the trace",
                        now->rank, now->owner, now->at_ns);
        if (i > 0 && compare_memory(now - 1, now) > 0)
            return fail(error, "memory is not sorted at rank %d", now->rank);
        if (i > 0 && now->rank != now[-1].rank)
            memset(total, 0, sizeof total);
        if (__builtin_add_overflow(total[now->owner], now->delta_bytes, &total[now->owner]) ||
            total[now->owner] < 0)
            return fail(error, "rank %d frees more of %s than it holds at " INT " ns", now->rank,
                        trace_memory_names[now->owner], now->at_ns);
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

/* --- "degas-trace" in and out --- */

/*
 * Chrome's trace event format, object form:
 * docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4 (ts and dur in microseconds, fractions
 * allowed).  Three decimals of a microsecond are exactly our nanoseconds; the nearest double of
 * such a decimal, times 1000, rounds back to the same integer up to TIME_MAX_NS.
 */

/* 2^51 ns, 26 days: a double of microseconds then has an error below a quarter of a ns. */
#define TIME_MAX_NS (INT64_C(1) << 51)
#define RANK_MAX (1 << 20)

#define TRACE(member) JSON_FIELD_OF(Trace, member)

static const JsonField trace_fields[] = {
    {"measured", TRACE(measured)},
    {"schedule", TRACE(schedule)},
    {"stages", TRACE(n_ranks), 1, SCHEDULE_MAX_RANKS},
    {"virtual", TRACE(n_chunks), 1, SCHEDULE_MAX_CHUNKS},
    {"microbatches", TRACE(n_micro_batches), 1, INT32_MAX},
    {"slices", TRACE(n_slices), 1, SCHEDULE_MAX_SLICES},
    {"makespan_ns", TRACE(makespan_ns), 0, TIME_MAX_NS},
    {"bubble_fraction", TRACE(bubble_fraction), 0, 1, JSON_OPTIONAL | JSON_SPARSE, .usual = NAN},
    {.key = NULL},
};

/* --- writing --- */

static void
write_us(JsonWriter *writer, const char *key, int64_t ns)
{
    char text[48];

    g_snprintf(text, sizeof text, INT ".%03d", ns / 1000, (int)(ns % 1000));
    json_write_raw(writer, key, text);
}

/* What op names need of a schedule. */
static Schedule
op_shape(const Trace *trace)
{
    return (Schedule){
        .n_ranks = trace->n_ranks,
        .n_chunks = trace->n_chunks,
        .n_micro_batches = trace->n_micro_batches,
        .n_slices = trace->n_slices,
    };
}

/* Whether an event of this kind is about an op. */
static bool
has_op(uint8_t kind)
{
    return kind <= TRACE_EVENT_WAIT || kind == TRACE_EVENT_EXCHANGE;
}

static void
write_metadata(JsonWriter *writer, int32_t rank, int32_t stream, const char *what, const char *name,
               int64_t sort_index)
{
    json_write_object_inline(writer, NULL);
    json_write_string(writer, "ph", "M");
    json_write_int64(writer, "pid", rank);
    if (stream >= 0)
        json_write_int64(writer, "tid", stream);
    json_write_string(writer, "name", what);
    json_write_object_inline(writer, "args");
    if (name != NULL)
        json_write_string(writer, "name", name);
    else
        json_write_int64(writer, "sort_index", sort_index);
    json_write_object_end(writer);
    json_write_object_end(writer);
}

static void
write_rank_metadata(JsonWriter *writer, int32_t rank)
{
    char name[32];

    g_snprintf(name, sizeof name, "rank %d", rank);
    write_metadata(writer, rank, -1, "process_name", name, 0);
    write_metadata(writer, rank, -1, "process_sort_index", NULL, rank);
}

/* Names the processes and threads that occur, in order. */
static void
write_all_metadata(JsonWriter *writer, const Trace *trace)
{
    const TraceEvent *before = NULL;

    for (guint i = 0; i < trace->events->len; i++) {
        const TraceEvent *event = &g_array_index(trace->events, TraceEvent, i);
        const bool new_rank = before == NULL || before->rank != event->rank;
        if (new_rank)
            write_rank_metadata(writer, event->rank);
        if (new_rank || before->stream != event->stream) {
            write_metadata(writer, event->rank, event->stream, "thread_name",
                           trace_stream_names[event->stream], 0);
            write_metadata(writer, event->rank, event->stream, "thread_sort_index", NULL,
                           event->stream);
        }
        before = event;
    }
}

static void
write_event(JsonWriter *writer, const Schedule *shape, const TraceEvent *event)
{
    char op[32] = "", name[64];

    if (has_op(event->kind))
        schedule_op_name(shape, event->op, op);
    if (event->kind < SCHEDULE_OP_N)
        g_strlcpy(name, op, sizeof name);
    else
        g_snprintf(name, sizeof name, "%s%s%s", trace_event_names[event->kind],
                   *op == '\0' ? "" : " ", op);
    json_write_object_inline(writer, NULL);
    json_write_string(writer, "ph", "X");
    json_write_int64(writer, "pid", event->rank);
    json_write_int64(writer, "tid", event->stream);
    write_us(writer, "ts", event->start_ns);
    write_us(writer, "dur", event->end_ns - event->start_ns);
    json_write_string(writer, "name", name);
    json_write_string(writer, "cat", trace_event_names[event->kind]);
    json_write_object_inline(writer, "args");
    if (has_op(event->kind))
        json_write_string(writer, "op", op);
    if (event->peer >= 0)
        json_write_int64(writer, "peer", event->peer);
    if (event->bytes != 0)
        json_write_int64(writer, "bytes", event->bytes);
    if (event->recompute_fraction != 0)
        json_write_double(writer, "recompute_fraction", (double)event->recompute_fraction);
    json_write_object_end(writer);
    json_write_object_end(writer);
}

/* One end of a message, for matching sends with receives. */
typedef struct {
    int32_t from, to;
    ScheduleOp op;
    guint event; /* index into trace->events */
    bool receives;
} MessageEnd;

static int
compare_ends(gconstpointer left, gconstpointer right)
{
    const MessageEnd *a = left, *b = right;

    ORDER_BY(a->from, b->from);
    ORDER_BY(a->to, b->to);
    const int op = memcmp(&a->op, &b->op, sizeof a->op);
    if (op != 0)
        return op;
    ORDER_BY(a->receives, b->receives);
    return ORDER(a->event, b->event);
}

static void
write_flow_end(JsonWriter *writer, const TraceEvent *event, int64_t id, bool finish)
{
    json_write_object_inline(writer, NULL);
    json_write_string(writer, "ph", finish ? "f" : "s");
    if (finish)
        json_write_string(writer, "bp", "e"); /* binds to the enclosing slice */
    json_write_int64(writer, "id", id);
    json_write_int64(writer, "pid", event->rank);
    json_write_int64(writer, "tid", event->stream);
    write_us(writer, "ts", event->start_ns);
    json_write_string(writer, "name",
                      event->op.kind == SCHEDULE_OP_FORWARD ? "activations" : "gradients");
    json_write_string(writer, "cat", "message");
    json_write_object_end(writer);
}

/* An arrow for every message that has both ends, numbered from 1 in the order of the ends. */
static void
write_flows(JsonWriter *writer, const Trace *trace)
{
    g_autoptr(GArray) ends = g_array_new(false, true, sizeof(MessageEnd));

    for (guint i = 0; i < trace->events->len; i++) {
        const TraceEvent *event = &g_array_index(trace->events, TraceEvent, i);
        if (event->peer < 0 ||
            (event->kind != TRACE_EVENT_SEND && event->kind != TRACE_EVENT_RECEIVE))
            continue;
        const bool receives = event->kind == TRACE_EVENT_RECEIVE;
        const MessageEnd end = {
            .from = receives ? event->peer : event->rank,
            .to = receives ? event->rank : event->peer,
            .op = event->op,
            .event = i,
            .receives = receives,
        };
        g_array_append_val(ends, end);
    }
    g_array_sort(ends, compare_ends);
    int64_t id = 0;
    for (guint i = 0; i + 1 < ends->len; i++) {
        const MessageEnd *send = &g_array_index(ends, MessageEnd, i);
        const MessageEnd *receive = send + 1;
        if (send->receives || !receive->receives || send->from != receive->from ||
            send->to != receive->to || memcmp(&send->op, &receive->op, sizeof send->op) != 0)
            continue;
        id++;
        write_flow_end(writer, &g_array_index(trace->events, TraceEvent, send->event), id, false);
        write_flow_end(writer, &g_array_index(trace->events, TraceEvent, receive->event), id, true);
    }
}

/* One counter event per allocation or free, with the totals of all owners the rank ever has. */
static void
write_memory(JsonWriter *writer, const Trace *trace)
{
    guint i = 0;

    while (i < trace->memory->len) {
        const int32_t rank = g_array_index(trace->memory, TraceMemory, i).rank;
        int64_t total[TRACE_MEMORY_N] = {0};
        bool used[TRACE_MEMORY_N] = {false};
        guint end = i;
        for (; end < trace->memory->len; end++) {
            const TraceMemory *now = &g_array_index(trace->memory, TraceMemory, end);
            if (now->rank != rank)
                break;
            used[now->owner] = true;
        }
        for (; i < end; i++) {
            const TraceMemory *now = &g_array_index(trace->memory, TraceMemory, i);
            total[now->owner] += now->delta_bytes;
            json_write_object_inline(writer, NULL);
            json_write_string(writer, "ph", "C");
            json_write_int64(writer, "pid", rank);
            write_us(writer, "ts", now->at_ns);
            json_write_string(writer, "name", "memory_bytes");
            json_write_object_inline(writer, "args");
            for (int owner = 0; owner < TRACE_MEMORY_N; owner++)
                if (used[owner])
                    json_write_int64(writer, trace_memory_names[owner], total[owner]);
            json_write_object_end(writer);
            json_write_object_end(writer);
        }
    }
}

char *
trace_to_json(const Trace *trace, size_t *n_bytes)
{
    g_autoptr(JsonWriter) writer = json_writer_new();
    const Schedule shape = op_shape(trace);

    json_write_object(writer, NULL);
    json_write_string(writer, "format", "degas-trace");
    json_write_int64(writer, "version", 1);
    json_fields_write(writer, trace_fields, trace);
    json_write_string(writer, "displayTimeUnit", "ms");
    json_write_array(writer, "traceEvents");
    write_all_metadata(writer, trace);
    for (guint i = 0; i < trace->events->len; i++)
        write_event(writer, &shape, &g_array_index(trace->events, TraceEvent, i));
    write_flows(writer, trace);
    write_memory(writer, trace);
    json_write_array_end(writer);
    json_write_object_end(writer);
    return json_writer_steal(writer, n_bytes);
}

/* --- reading --- */

static int64_t
read_ns(JsonDoc *doc, const JsonValue *object, const char *key)
{
    return llround(json_double(doc, object, key, 0, (double)TIME_MAX_NS / 1000) * 1000);
}

static void
read_event(JsonDoc *doc, const JsonValue *v, Trace *trace)
{
    const Schedule shape = op_shape(trace);
    const JsonValue *args = json_object(doc, v, "args");
    TraceEvent event = {
        .rank = (int32_t)json_int64(doc, v, "pid", 0, RANK_MAX),
        .stream = (uint8_t)json_int64(doc, v, "tid", 0, TRACE_STREAM_N - 1),
        .start_ns = read_ns(doc, v, "ts"),
        .end_ns = read_ns(doc, v, "dur"),
        .kind = (uint8_t)json_enum(doc, v, "cat", trace_event_names),
        .peer = (int32_t)json_int64_or(doc, args, "peer", 0, RANK_MAX, -1),
        .bytes = json_int64_or(doc, args, "bytes", 0, JSON_MAX_INT, 0),
        .recompute_fraction = (float)json_double_or(doc, args, "recompute_fraction", 0, 1, 0),
    };
    event.end_ns += event.start_ns;
    if (has_op(event.kind)) {
        const char *op = json_string(doc, args, "op");
        if (!json_doc_failed(doc) && !schedule_op_parse(&shape, op, &event.op)) {
            g_autofree char *shown = text_escape(op, 40);
            json_fail(doc, json_member(doc, args, "op"),
                      "expected an op of this trace, like \"%s\", got \"%s\"",
                      shape.n_slices > 1 ? "F3.0s1" : "F3.0", shown);
        }
    }
    g_array_append_val(trace->events, event);
}

/* The totals of the rank whose counters are being read. */
typedef struct {
    int32_t rank;
    int64_t bytes[TRACE_MEMORY_N];
} Totals;

static void
read_counter(JsonDoc *doc, const JsonValue *v, Totals *totals, Trace *trace)
{
    const int32_t rank = (int32_t)json_int64(doc, v, "pid", 0, RANK_MAX);
    const int64_t at_ns = read_ns(doc, v, "ts");
    const JsonValue *args = json_object(doc, v, "args");

    if (rank != totals->rank)
        *totals = (Totals){.rank = rank};
    for (int owner = 0; owner < TRACE_MEMORY_N; owner++) {
        const int64_t now = json_int64_or(doc, args, trace_memory_names[owner], 0, JSON_MAX_INT,
                                          totals->bytes[owner]);
        const TraceMemory change = {
            .at_ns = at_ns,
            .delta_bytes = now - totals->bytes[owner],
            .rank = rank,
            .owner = (uint8_t)owner,
        };
        if (change.delta_bytes != 0)
            g_array_append_val(trace->memory, change);
        totals->bytes[owner] = now;
    }
    json_object_end(doc, args);
}

/* Metadata and arrows follow from the rest and are passed over. */
static void
read_events(JsonDoc *doc, const JsonValue *root, Trace *trace)
{
    const JsonValue *list = json_array(doc, root, "traceEvents");
    Totals totals = {.rank = -1};

    JSON_EACH (v, list, doc) {
        if (!json_is_object(v)) {
            json_fail(doc, v, "expected an event object");
            return;
        }
        const char *phase = json_string(doc, v, "ph");
        if (strcmp(phase, "X") == 0)
            read_event(doc, v, trace);
        else if (strcmp(phase, "C") == 0)
            read_counter(doc, v, &totals, trace);
    }
}

Trace *
trace_read(JsonDoc *doc, GError **error)
{
    const JsonValue *root = json_doc_root(doc, "degas-trace", 1);
    g_autoptr(Trace) trace = g_new0(Trace, 1);
    trace->events = g_array_new(false, false, sizeof(TraceEvent));
    trace->memory = g_array_new(false, false, sizeof(TraceMemory));
    trace->bubble_fraction = NAN;
    json_fields_read(doc, root, trace_fields, trace);
    json_ignore(doc, root, "displayTimeUnit");
    read_events(doc, root, trace);
    json_object_end(doc, root);
    g_autoptr(GError) refused = NULL;
    trace_sort(trace);
    if (!json_doc_failed(doc) && !trace_check(trace, &refused))
        json_fail(doc, NULL, "%s", refused->message);
    return json_doc_finish(doc, error) ? g_steal_pointer(&trace) : NULL;
}

Trace *
trace_load(const char *path, GError **error)
{
    g_autoptr(JsonDoc) doc = json_doc_load(path, error);

    return doc == NULL ? NULL : trace_read(doc, error);
}
