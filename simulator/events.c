#include "simulator/events.h"

#include <stdlib.h>

#include "base/host_memory.h"
#include "base/order.h"
#include "simulator/memory.h"
#include "simulator/pairs.h"

/* GArray counts in 32 bits. */
#define MAX_EVENTS (INT64_C(1) << 31)

typedef struct {
    const SimProgram *program;
    const SimTimes *times;
    const SimMemoryChange *changes; /* (nullable) */
    Trace *trace;
    TraceEvent *events;  /* (borrowed) the trace's, while it grows */
    TraceEvent *event;   /* where the next one goes */
    TraceMemory *memory; /* likewise */
    guint piece;         /* index into times->pieces of the next one */
    TraceEvent *first;   /* of the (rank, stream) that is being filled */
    bool ties;           /* two events of a stream have equal times: trace_sort() orders them */
    bool unsorted;       /* memory events of a rank do not ascend */
    /* Of the rank at hand, by position in its order: steps are scattered, so they are read once. */
    SimOpTimes *at; /* (owned) */
} Writer;

/* Notes whether @event, on the stream that is being filled, has the times of the one before. */
static inline void
note_tie(Writer *writer, const TraceEvent *event)
{
    if (event > writer->first && event[-1].start_ns == event->start_ns &&
        event[-1].end_ns == event->end_ns)
        writer->ties = true;
}

static inline void
put(Writer *writer, const TraceEvent *event)
{
    g_assert(writer->event != NULL);
    *writer->event = *event;
    note_tie(writer, writer->event++);
}

static void
read_rank(Writer *writer, int32_t rank)
{
    const SimProgram *program = writer->program;
    const int64_t begin = program->schedule->rank_begin[rank];

    for (int64_t i = begin; i < program->schedule->rank_begin[rank + 1]; i++)
        writer->at[i - begin] = sim_times_step(writer->times, program, writer->program->step_of[i]);
}

/* --- compute --- */

/* The op of @producer (a step), whose message @op needs. */
static ScheduleOp
producer_op(const SimProgram *program, ScheduleOp op, uint32_t producer)
{
    const Workload *workload = program->workload;
    const uint32_t cost = program->steps[producer].cost;
    const int64_t place = cost / SIM_KIND_N / ((int64_t)workload->n_classes * workload->n_slices);

    /* Of the same micro-batch and slice. */
    op.kind = (uint8_t)sim_op_kind(cost);
    op.chunk =
        (uint8_t)schedule_chunk_of_stage(program->schedule, (int32_t)(place % workload->n_stages),
                                         (int32_t)(place / workload->n_stages));
    return op;
}

/* The message that the op at @index, at @step, sends or receives; without times. */
static TraceEvent
message_event(const SimProgram *program, int64_t index, uint32_t step, TraceEventKind kind)
{
    const SimStep *s = &program->steps[step];
    const bool receives = kind == TRACE_EVENT_RECEIVE;
    const SimMessage *message =
        receives ? &program->details[s->cost].in : &program->details[s->cost].out;
    const ScheduleOp op = program->schedule->ops[index];

    return (TraceEvent){
        .op = receives ? producer_op(program, op, s->producer - 1) : op,
        .rank = (int32_t)program->costs[s->cost].rank,
        .peer = message->peer,
        .bytes = message->bytes,
        .stream = TRACE_STREAM_COMPUTE,
        .kind = (uint8_t)kind,
    };
}

/* What of the op at @step does the forward again. */
static float
recompute_fraction(const SimProgram *program, uint32_t step)
{
    const uint32_t cost = program->steps[step].cost;
    const int64_t part_ns = sim_op_kind(cost) == SCHEDULE_OP_FORWARD
                                ? 0
                                : sim_part_ns(program, cost)[PROFILE_PART_RECOMPUTE];

    return part_ns == 0 ? 0 : (float)((double)part_ns / (double)program->details[cost].op_ns);
}

/* The op at @index of the schedule's order on its rank's compute stream: at most 3 events. */
static void
write_op(Writer *writer, int32_t rank, int64_t index, const SimOpTimes *at)
{
    const SimProgram *program = writer->program;
    const bool blocking = program->workload->blocking_messages;
    const uint32_t step = writer->program->step_of[index];
    const SimCostDetail *detail = &program->details[program->steps[step].cost];
    const ScheduleOp op = program->schedule->ops[index];

    if (blocking && detail->in.exists) {
        TraceEvent receive = message_event(program, index, step, TRACE_EVENT_RECEIVE);
        receive.start_ns = at->begin_ns;
        receive.end_ns = at->start_ns;
        put(writer, &receive);
    }
    put(writer, &(TraceEvent){
                    .start_ns = at->start_ns,
                    .end_ns = at->end_ns,
                    .recompute_fraction = recompute_fraction(program, step),
                    .op = op,
                    .rank = rank,
                    .peer = -1,
                    .stream = TRACE_STREAM_COMPUTE,
                    .kind = op.kind,
                });
    if (blocking && detail->out.exists) {
        TraceEvent send = message_event(program, index, step, TRACE_EVENT_SEND);
        send.start_ns = at->end_ns;
        send.end_ns = at->free_ns;
        put(writer, &send);
    }
}

static void
write_optimizer(Writer *writer, int32_t rank)
{
    const SimFinish *finish = &writer->times->finish[rank];

    if (finish->optimizer_end_ns > finish->optimizer_start_ns)
        put(writer, &(TraceEvent){
                        .start_ns = finish->optimizer_start_ns,
                        .end_ns = finish->optimizer_end_ns,
                        .rank = rank,
                        .peer = -1,
                        .stream = TRACE_STREAM_COMPUTE,
                        .kind = TRACE_EVENT_OPTIMIZER,
                    });
}

static void
write_compute(Writer *writer, int32_t rank)
{
    const int64_t *rank_begin = writer->program->schedule->rank_begin;

    writer->first = writer->event;
    for (int64_t i = rank_begin[rank]; i < rank_begin[rank + 1]; i++)
        write_op(writer, rank, i, &writer->at[i - rank_begin[rank]]);
    write_optimizer(writer, rank);
}

/* --- messages on streams of their own --- */

static int
compare_ends(const void *left, const void *right)
{
    const TraceEvent *a = left, *b = right;

    /* Which of two equal messages is shown at full length must not depend on the sort. */
    ORDER_BY(a->end_ns, b->end_ns);
    ORDER_BY(a->start_ns, b->start_ns);
    ORDER_BY(a->op.micro_batch, b->op.micro_batch);
    ORDER_BY(a->op.chunk, b->op.chunk);
    ORDER_BY(a->op.slice, b->op.slice);
    return ORDER(a->op.kind, b->op.kind);
}

/* Writes what @rank sends, or receives, with the times at which it leaves and arrives.  Returns
 * whether arrivals ascend. */
static bool
collect_messages(Writer *writer, int32_t rank, TraceStream stream)
{
    const SimProgram *program = writer->program;
    const Schedule *schedule = program->schedule;
    const bool receives = stream == TRACE_STREAM_RECEIVE;
    const int64_t begin = schedule->rank_begin[rank];
    bool ascends = true;

    writer->first = writer->event;
    for (int64_t i = begin; i < schedule->rank_begin[rank + 1]; i++) {
        const uint32_t step = writer->program->step_of[i];
        const SimCostDetail *detail = &program->details[program->steps[step].cost];
        const SimMessage *message = receives ? &detail->in : &detail->out;
        if (!message->exists)
            continue;
        TraceEvent *event = writer->event++;
        *event = message_event(program, i, step, receives ? TRACE_EVENT_RECEIVE : TRACE_EVENT_SEND);
        event->stream = (uint8_t)stream;
        /* Overlapped: it leaves when the op has ended, and is ready when it arrives. */
        const uint32_t from = receives ? program->steps[step].producer - 1 : step;
        event->start_ns = sim_times_step(writer->times, program, from).end_ns;
        event->end_ns = writer->times->ready_ns[from + 1];
        ascends = ascends && (event == writer->first || event[-1].end_ns < event->end_ns);
    }
    return ascends;
}

static void
write_messages(Writer *writer, int32_t rank, TraceStream stream)
{
    TraceEvent *const first = writer->event;
    int64_t before_ns = 0;

    const bool ascends = collect_messages(writer, rank, stream);
    TraceEvent *const end = writer->event;
    if (!ascends)
        qsort(first, (size_t)(end - first), sizeof *first, compare_ends);
    /* Before @event, no two overlap, and the last ends at @before_ns. */
    for (TraceEvent *event = first; event < end; event++) {
        event->start_ns = MAX(event->start_ns, before_ns);
        before_ns = event->end_ns;
        note_tie(writer, event);
    }
}

/* --- data parallelism, memory --- */

static void
write_dp(Writer *writer, int32_t rank)
{
    const GArray *pieces = writer->times->pieces;

    writer->first = writer->event;
    /* Pieces are in the order of ranks; a glimpse leaves out some. */
    while (writer->piece < pieces->len &&
           g_array_index(pieces, SimPiece, writer->piece).rank < rank)
        writer->piece++;
    for (; writer->piece < pieces->len; writer->piece++) {
        const SimPiece *piece = &g_array_index(pieces, SimPiece, writer->piece);
        if (piece->rank != rank)
            break;
        put(writer, &(TraceEvent){
                        .start_ns = piece->start_ns,
                        .end_ns = piece->end_ns,
                        .bytes = piece->bytes,
                        .rank = rank,
                        .peer = -1,
                        .stream = TRACE_STREAM_DP,
                        .kind = piece->kind,
                    });
    }
}

/* What merged pairs exchange with experts.  The exchanges of other ops are within the ops. */
static void
write_exchanges(Writer *writer, int32_t rank)
{
    const SimProgram *program = writer->program;
    const int64_t *rank_begin = program->schedule->rank_begin;

    writer->first = writer->event;
    for (int64_t i = rank_begin[rank]; program->workload->merges_pairs && i < rank_begin[rank + 1];
         i++) {
        const uint32_t step = program->step_of[i];
        int64_t at[2][2];
        if (!sim_pair_is_first(program, step))
            continue;
        const SimOpTimes *times = &writer->at[i - rank_begin[rank]];
        sim_pair_exchanges(program, sim_pair_at(program, step), times[0].start_ns, times[1].end_ns,
                           at);
        for (int op = 1; op >= 0; op--)
            if (at[op][1] > at[op][0])
                put(writer, &(TraceEvent){
                                .start_ns = at[op][0],
                                .end_ns = at[op][1],
                                .op = program->schedule->ops[i + op],
                                .rank = rank,
                                .peer = -1,
                                .stream = TRACE_STREAM_EP,
                                .kind = TRACE_EVENT_EXCHANGE,
                            });
    }
}

static void
write_memory(Writer *writer, int32_t rank)
{
    const SimProgram *program = writer->program;
    const int64_t begin = program->schedule->rank_begin[rank];
    int64_t late_before = 0;

    writer->memory = sim_memory_write_static(program, rank, writer->memory);
    for (int64_t i = begin; i < program->schedule->rank_begin[rank + 1]; i++) {
        const uint32_t step = program->step_of[i], cost = program->steps[step].cost;
        SimOpTimes at = writer->at[i - begin];
        int64_t late_bytes = -late_before;
        /* The first of a pair keeps what it has taken until both end. */
        late_before = 0;
        if (sim_pair_is_first(program, step)) {
            at.end_ns = writer->at[i + 1 - begin].end_ns;
            late_bytes = late_before = writer->changes[cost].late_bytes;
            writer->unsorted = true;
        }
        writer->memory = sim_memory_write_op(program, i, &writer->changes[cost], &at, late_bytes,
                                             rank, writer->memory);
    }
}

/* --- all --- */

static int64_t
count_events(const SimProgram *program, const SimTimes *times)
{
    int64_t n = 0;

    for (int64_t cost = 0; cost < program->n_costs; cost++) {
        const SimCostDetail *detail = &program->details[cost];
        n += program->counts[cost] * (1 + detail->in.exists + detail->out.exists);
    }
    /* optimizers, pieces of reductions and gatherings, exchanges of pairs */
    return n + program->schedule->n_ranks + times->pieces->len + 2 * program->n_pairs;
}

/* Gives @array @n elements of whatever content. */
static bool
reserve(GArray *array, int64_t n, GError **error)
{
    /* GArray rounds up to a power of two and aborts without memory: so try before. */
    const size_t bytes = (size_t)n * g_array_get_element_size(array);
    void *probe = n < MAX_EVENTS && host_memory_has(bytes) ? g_try_malloc_n(bytes, 2) : NULL;

    if (probe == NULL && n > 0)
        return sim_fail_memory(error, n, "events of a trace");
    g_free(probe);
    g_array_set_size(array, (guint)n);
    pages_prepare(array->data, bytes);
    return true;
}

static bool
writer_init(Writer *writer, GError **error)
{
    const SimProgram *program = writer->program;
    int64_t longest = 0;

    for (int32_t rank = 0; rank < program->schedule->n_ranks; rank++)
        longest = MAX(longest, program->schedule->rank_begin[rank + 1] -
                                   program->schedule->rank_begin[rank]);
    writer->at = g_try_new(SimOpTimes, (size_t)MAX(longest, 1));
    if (writer->at == NULL)
        return sim_fail_memory(error, longest, "times");
    if (!reserve(writer->trace->events, count_events(program, writer->times), error))
        return false;
    if (writer->changes != NULL &&
        !reserve(writer->trace->memory, sim_memory_n_events(program, writer->changes), error))
        return false;
    writer->event = (TraceEvent *)(void *)writer->trace->events->data;
    writer->memory = (TraceMemory *)(void *)writer->trace->memory->data;
    return true;
}

static void
write_rank(Writer *writer, int32_t rank)
{
    writer->trace->makespan_ns =
        MAX(writer->trace->makespan_ns, writer->times->finish[rank].end_ns);
    read_rank(writer, rank);
    write_compute(writer, rank);
    if (!writer->program->workload->blocking_messages) {
        write_messages(writer, rank, TRACE_STREAM_SEND);
        write_messages(writer, rank, TRACE_STREAM_RECEIVE);
    }
    write_dp(writer, rank);
    write_exchanges(writer, rank);
    if (writer->changes != NULL)
        write_memory(writer, rank);
}

Trace *
sim_events(const SimProgram *program, const SimTimes *times, bool want_memory, GError **error)
{
    g_autoptr(Trace) trace = trace_new(program->schedule, false);
    g_autofree SimMemoryChange *changes = want_memory ? sim_memory_changes(program) : NULL;
    Writer writer = {.program = program, .times = times, .changes = changes, .trace = trace};

    const bool ok = writer_init(&writer, error);
    for (int32_t rank = 0; ok && rank < program->schedule->n_ranks; rank++)
        write_rank(&writer, rank);
    if (ok) {
        const TraceEvent *events = (const TraceEvent *)(const void *)trace->events->data;
        g_array_set_size(trace->events, (guint)(writer.event - events));
    }
    g_free(writer.at);
    if (!ok)
        return NULL;
    if (writer.ties || writer.unsorted)
        trace_sort(trace);
    return g_steal_pointer(&trace);
}

/* --- a glimpse --- */

/* Makes room for @n events more. */
static void
make_room(Writer *writer, size_t n)
{
    GArray *events = writer->trace->events;
    const size_t used = (size_t)(writer->event - writer->events);

    if (used + n <= events->len)
        return;
    g_array_set_size(events, (guint)(2 * used + n));
    writer->events = (TraceEvent *)(void *)events->data;
    writer->first = writer->event = writer->events + used;
}

static int64_t
free_ns_at(const Writer *writer, int64_t index)
{
    return sim_times_step(writer->times, writer->program, writer->program->step_of[index]).free_ns;
}

/* The first op of [@begin, @end), all of one rank, after which the rank is free at @at_ns or later;
 * near @begin. */
static int64_t
op_until(const Writer *writer, int64_t begin, int64_t end, int64_t at_ns)
{
    int64_t stride = 1, limit;

    /* Ops before begin end before at_ns. */
    while (begin + stride < end && free_ns_at(writer, begin + stride - 1) < at_ns) {
        begin += stride;
        stride *= 2;
    }
    limit = MIN(begin + stride, end);
    /* Those from limit on, if any, do not. */
    while (begin < limit) {
        const int64_t middle = begin + (limit - begin) / 2;
        if (free_ns_at(writer, middle) < at_ns)
            begin = middle + 1;
        else
            limit = middle;
    }
    return begin;
}

/* The ops of @rank that are under way at one of @n_instants. */
static void
glimpse_ops(Writer *writer, int32_t rank, int32_t n_instants)
{
    const SimProgram *program = writer->program;
    const int64_t end = program->schedule->rank_begin[rank + 1];
    const int64_t makespan_ns = writer->trace->makespan_ns;
    /* What who draws may round a time by. */
    const int64_t margin_ns = 1 + (makespan_ns >> 40);
    int64_t next = program->schedule->rank_begin[rank];

    for (int32_t k = 0; k < n_instants; k++) {
        const int64_t at_ns = (int64_t)((k + 0.5) / n_instants * (double)makespan_ns);
        next = op_until(writer, next, end, at_ns - margin_ns);
        for (; next < end; next++) {
            const SimOpTimes at =
                sim_times_step(writer->times, program, writer->program->step_of[next]);
            if (at.begin_ns > at_ns + margin_ns)
                break;
            make_room(writer, 3);
            write_op(writer, rank, next, &at);
        }
    }
}

Trace *
sim_glimpse(const SimProgram *program, const SimTimes *times, const SimGlimpse *glimpse)
{
    g_autoptr(Trace) trace = trace_new(program->schedule, false);
    const int32_t n_ranks = program->schedule->n_ranks;
    Writer writer = {.program = program, .times = times, .trace = trace};

    for (int32_t rank = 0; rank < n_ranks; rank++)
        trace->makespan_ns = MAX(trace->makespan_ns, times->finish[rank].end_ns);
    for (int32_t rank = 0; rank < n_ranks; rank++) {
        if (glimpse->is_shown != NULL && !glimpse->is_shown[rank])
            continue;
        glimpse_ops(&writer, rank, glimpse->n_instants);
        make_room(&writer, 1 + (size_t)times->pieces->len);
        write_optimizer(&writer, rank);
        write_dp(&writer, rank);
    }
    g_array_set_size(trace->events, (guint)(writer.event - writer.events));
    return g_steal_pointer(&trace);
}
