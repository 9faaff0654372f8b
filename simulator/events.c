#include "simulator/events.h"

#include "simulator/finish.h"
#include "simulator/memory.h"

/* GArray counts in 32 bits. */
#define MAX_EVENTS (INT64_C(1) << 31)

typedef struct {
    const SimProgram *program;
    const SimTimes *times;
    Trace *trace;
    bool ties;   /* two events of a stream have equal times: trace_sort() must order
                    them */
    guint first; /* event of the (rank, stream) that is being filled */
} Writer;

static void
append(Writer *writer, const TraceEvent *event)
{
    GArray *events = writer->trace->events;

    if (events->len > writer->first) {
        const TraceEvent *before = &g_array_index(events, TraceEvent, events->len - 1);
        writer->ties = writer->ties ||
                       (before->start_ns == event->start_ns && before->end_ns == event->end_ns);
    }
    g_array_append_val(events, *event);
}

static int
compare_ends(gconstpointer left, gconstpointer right)
{
    const TraceEvent *a = left, *b = right;

    if (a->end_ns != b->end_ns)
        return a->end_ns < b->end_ns ? -1 : 1;
    return (a->start_ns > b->start_ns) - (a->start_ns < b->start_ns);
}

/* --- compute --- */

/* The op whose message the op at @index needs. */
static ScheduleOp
producer_op(const SimProgram *program, int64_t index)
{
    const Schedule *schedule = program->schedule;
    const Workload *workload = program->workload;
    const uint32_t producer = program->steps[program->step_of[index]].producer - 1;
    const uint32_t cost = program->steps[producer].cost;
    const int64_t place = cost / SIM_KIND_N / ((int64_t)workload->n_classes * workload->n_slices);
    const int32_t kind = (int32_t)(cost % SIM_KIND_N);
    ScheduleOp op = schedule->ops[index]; /* the same micro-batch and slice */

    op.kind = (uint8_t)(kind == SIM_KIND_LONE_INPUT ? SCHEDULE_OP_BACKWARD_INPUT : kind);
    op.chunk = (uint8_t)schedule_chunk_of_stage(schedule, (int32_t)(place % workload->n_stages),
                                                (int32_t)(place / workload->n_stages));
    return op;
}

/* @message of the op at @index, which sends it, or receives it. */
static TraceEvent
message_event(const SimProgram *program, int64_t index, int32_t rank, const SimMessage *message,
              TraceEventKind kind)
{
    const bool receives = kind == TRACE_EVENT_RECEIVE;

    return (TraceEvent){
        .op = receives ? producer_op(program, index) : program->schedule->ops[index],
        .rank = rank,
        .peer = message->peer,
        .bytes = message->bytes,
        .stream = TRACE_STREAM_COMPUTE,
        .kind = (uint8_t)kind,
    };
}

static void
write_compute(Writer *writer, int32_t rank, const SimFinish *finish)
{
    const SimProgram *program = writer->program;
    const Schedule *schedule = program->schedule;
    const bool blocking = program->workload->blocking_messages;

    for (int64_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
        const SimOpTimes at = sim_times_op(writer->times, program, i);
        const SimCostDetail *detail = &program->details[sim_program_cost(program, i)];
        if (blocking && detail->in.exists) {
            TraceEvent receive = message_event(program, i, rank, &detail->in, TRACE_EVENT_RECEIVE);
            receive.start_ns = at.begin_ns;
            receive.end_ns = at.start_ns;
            append(writer, &receive);
        }
        append(writer, &(TraceEvent){
                           .start_ns = at.start_ns,
                           .end_ns = at.end_ns,
                           .op = schedule->ops[i],
                           .rank = rank,
                           .peer = -1,
                           .stream = TRACE_STREAM_COMPUTE,
                           .kind = schedule->ops[i].kind,
                       });
        if (blocking && detail->out.exists) {
            TraceEvent send = message_event(program, i, rank, &detail->out, TRACE_EVENT_SEND);
            send.start_ns = at.end_ns;
            send.end_ns = at.free_ns;
            append(writer, &send);
        }
    }
    if (finish->optimizer_end_ns > finish->optimizer_start_ns)
        append(writer, &(TraceEvent){
                           .start_ns = finish->optimizer_start_ns,
                           .end_ns = finish->optimizer_end_ns,
                           .rank = rank,
                           .peer = -1,
                           .stream = TRACE_STREAM_COMPUTE,
                           .kind = TRACE_EVENT_OPTIMIZER,
                       });
}

/* --- messages on streams of their own --- */

/* Adds what @rank sends, or receives, with the times at which it leaves and
 * arrives. */
static void
collect_messages(const Writer *writer, int32_t rank, TraceStream stream, GArray *messages)
{
    const SimProgram *program = writer->program;
    const Schedule *schedule = program->schedule;
    const bool receives = stream == TRACE_STREAM_RECEIVE;

    g_array_set_size(messages, 0);
    for (int64_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
        const SimCostDetail *detail = &program->details[sim_program_cost(program, i)];
        const SimMessage *message = receives ? &detail->in : &detail->out;
        if (!message->exists)
            continue;
        const uint32_t step = program->step_of[i];
        const uint32_t from = receives ? program->steps[step].producer - 1 : step;
        TraceEvent event = message_event(program, i, rank, message,
                                         receives ? TRACE_EVENT_RECEIVE : TRACE_EVENT_SEND);
        event.stream = (uint8_t)stream;
        event.start_ns = sim_times_step(writer->times, program, from).end_ns;
        event.end_ns = event.start_ns + message->ns;
        g_array_append_val(messages, event);
    }
}

static void
write_messages(Writer *writer, int32_t rank, TraceStream stream, GArray *messages)
{
    int64_t before_ns = 0;

    collect_messages(writer, rank, stream, messages);
    g_array_sort(messages, compare_ends);
    writer->first = writer->trace->events->len;
    for (guint i = 0; i < messages->len; i++) {
        TraceEvent *event = &g_array_index(messages, TraceEvent, i);
        event->start_ns = MAX(event->start_ns, before_ns);
        before_ns = event->end_ns;
        append(writer, event);
    }
}

/* --- data parallelism --- */

static void
write_dp(Writer *writer, int32_t rank, const SimFinish *finish)
{
    const WorkloadRank *work = &writer->program->workload->ranks[rank];
    TraceEvent event = {.rank = rank, .peer = -1, .stream = TRACE_STREAM_DP};

    event.kind = TRACE_EVENT_DP_REDUCE;
    for (int32_t i = 0; i < finish->n_pieces; i++) {
        event.start_ns = finish->reduce[i].start_ns;
        event.end_ns = finish->reduce[i].end_ns;
        event.bytes = finish->reduce[i].bytes;
        append(writer, &event);
    }
    if (work->dp_gather_ns > 0 || work->dp_gather_bytes > 0) {
        event.kind = TRACE_EVENT_DP_GATHER;
        event.start_ns = finish->optimizer_end_ns;
        event.end_ns = finish->end_ns;
        event.bytes = work->dp_gather_bytes;
        append(writer, &event);
    }
}

/* --- all --- */

static int64_t
count_events(const SimProgram *program)
{
    int64_t n = 0;

    for (int64_t cost = 0; cost < program->n_costs; cost++) {
        const SimCostDetail *detail = &program->details[cost];
        n += program->counts[cost] * (1 + detail->in.exists + detail->out.exists);
    }
    /* optimizer, gathering, pieces of the reduction */
    return n + (int64_t)program->schedule->n_ranks * (2 + program->schedule->n_chunks);
}

/* Gives @array room for @n, which must be addable without another allocation.
 */
static bool
reserve(GArray *array, int64_t n, GError **error)
{
    const size_t bytes = (size_t)n * g_array_get_element_size(array);
    void *probe = n < MAX_EVENTS ? g_try_malloc(bytes) : NULL;

    if (probe == NULL && n > 0) {
        g_set_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_LIMIT,
                    "no memory for a trace of %" G_GINT64_FORMAT " events", n);
        return false;
    }
    g_free(probe);
    g_array_set_size(array, (guint)n);
    g_array_set_size(array, 0);
    return true;
}

Trace *
sim_events(const SimProgram *program, const SimTimes *times, bool want_memory, GError **error)
{
    g_autoptr(Trace) trace = trace_new(program->schedule, false);
    g_autoptr(GArray) messages = g_array_new(false, false, sizeof(TraceEvent));
    Writer writer = {.program = program, .times = times, .trace = trace};
    SimFinish finish;

    if (!reserve(trace->events, count_events(program), error))
        return NULL;
    if (want_memory && !reserve(trace->memory, sim_memory_n_events(program), error))
        return NULL;
    for (int32_t rank = 0; rank < program->schedule->n_ranks; rank++) {
        sim_finish_rank(program, times, rank, &finish);
        trace->makespan_ns = MAX(trace->makespan_ns, finish.end_ns);
        writer.first = trace->events->len;
        write_compute(&writer, rank, &finish);
        if (!program->workload->blocking_messages) {
            write_messages(&writer, rank, TRACE_STREAM_SEND, messages);
            write_messages(&writer, rank, TRACE_STREAM_RECEIVE, messages);
        }
        writer.first = trace->events->len;
        write_dp(&writer, rank, &finish);
        if (want_memory)
            sim_memory_append(program, times, rank, trace->memory);
    }
    if (writer.ties)
        trace_sort(trace);
    return g_steal_pointer(&trace);
}
