#include "simulator/contend.h"

#include <string.h>

#include "base/host_memory.h"
#include "simulator/pairs.h"
#include "simulator/rivals.h"

/* The message has not arrived yet. */
#define UNKNOWN INT64_C(-1)
/* None is asked about. */
#define NO_HAND INT64_MAX
/* Of messages that wait for each other's being sent ahead of the clock. */
#define MAX_DEPTH 2

/* What a rank's compute stream does. */
typedef enum {
    RUNNER_IDLE,     /* waits for a message, or has gone on as far as it could */
    RUNNER_BEGINS,   /* its next op, when the clock has come to it */
    RUNNER_RECEIVES, /* a blocking message */
    RUNNER_WAITS,    /* for parameters */
    RUNNER_COMPUTES, /* one segment of an op */
    RUNNER_SENDS,    /* waits for what the transport does not buffer */
    RUNNER_ENDS,     /* has run all its ops, when the clock has come to their end */
    RUNNER_FINISHES, /* no op is left */
} RunnerState;

/* A rank: its compute stream and its dp stream. */
typedef struct {
    int32_t rank;
    RunnerState state;
    bool is_ready;   /* stands in Contest.ready */
    uint32_t step;   /* the op that the engine follows, or followed last */
    int64_t next;    /* index into schedule->ops of its next op */
    int64_t free_ns; /* after the op before that; may lie ahead of the clock */
    int64_t wait_since_ns;
    int32_t n_messages; /* overlapped ones that come or go, where that slows computing */
    /* The op at hand: */
    const SimPairKind *pair; /* (borrowed, nullable) it is the first or, then, the second of one */
    bool is_second;
    const SimSpecial *special; /* (borrowed, nullable) */
    int64_t segment, n_segments;
    int64_t next_special; /* index into program->beside.specials */
    /* dp stream: pieces [n_done, n_queued) of those that dp_piece() knows by number */
    int64_t n_gathers, n_reduces; /* chunks that gather ahead, and reduce behind */
    int64_t n_queued, n_done;
    int64_t dp_since_ns;
} Runner;

/* A message that waits for its stream, from @at_ns on. */
typedef struct {
    int64_t at_ns;
    uint32_t step;
} Posted;

/* Overlapped messages from one rank to another. */
typedef struct {
    bool is_followed; /* some of its messages share links, or slow computing */
    bool is_sending;  /* followed: the first of the queue is under way */
    int64_t hand_ns; /* when the message begins that is asked about at this moment; NO_HAND: none */
    int64_t free_ns; /* after the last message */
    int32_t from, to; /* ranks */
    Posted *queue;    /* (owned, nullable) */
    int64_t first;    /* of the queue that is under way, or next */
    int64_t n, room;  /* all before n have been posted */
    int64_t since_ns;
} Stream;

typedef struct {
    const SimProgram *program; /* (borrowed) */
    const SimNetwork *network; /* (borrowed, nullable) */
    SimTimes *times;           /* (borrowed) */
    SimEngine *engine;         /* (owned) */
    const int64_t *now_ns;     /* (borrowed) its clock */
    SimLinks *links;           /* (owned) */
    SimRivals rivals; /* of streams that are followed; empty where messages slow computing */
    Runner *runners;  /* (owned) [rank] */
    Stream *streams;  /* (owned) [sim_stream()] */
    int32_t *ready;   /* (owned) [rank] ring of ranks that may go on, from first_ready on */
    int32_t first_ready, n_ready;
    double dp_speed, message_speed; /* of computing beside them */
    int64_t known_ns;               /* as sim_program_contend() has it */
} Contest;

/* Numbers of timers and flows: of a rank's compute stream, of a stream of messages, of a rank's dp
 * stream. */
static inline int32_t
compute_timer(int32_t rank)
{
    return rank;
}

static inline int32_t
stream_timer(const Contest *contest, int32_t stream)
{
    return contest->program->schedule->n_ranks + stream;
}

static inline int32_t
dp_timer(const Contest *contest, int32_t rank)
{
    return 3 * contest->program->schedule->n_ranks + 1 + rank;
}

static inline int32_t
n_timers(const Contest *contest)
{
    return 4 * contest->program->schedule->n_ranks + 1;
}

static inline const SimCostDetail *
detail_of(const Contest *contest, uint32_t step)
{
    return &contest->program->details[contest->program->steps[step].cost];
}

static inline const SimRoute *
route_of(const Contest *contest, int64_t route)
{
    static const SimRoute alone = {.device_bytes_per_s = 1, .visible = 1};

    return contest->network == NULL ? &alone : &contest->network->routes[route];
}

/* Whether what takes @route may meet others on a link. */
static inline bool
crosses(const Contest *contest, int64_t route)
{
    return contest->network != NULL && contest->network->routes[route].n_crossed > 0;
}

/* What the op at hand takes beside others' flows. */
static inline const SimRoute *
op_route_of(const Contest *contest, const Runner *runner)
{
    return route_of(contest, runner->pair != NULL
                                 ? sim_route_of_pair(contest->program, runner->pair)
                                 : sim_route_of_op(contest->program->steps[runner->step].cost));
}

/* A message between two ranks was under way for @ns. */
static inline void
add_message_time(Contest *contest, int32_t from, int32_t to, int64_t ns)
{
    contest->times->extra[from].message_ns += ns;
    contest->times->extra[to].message_ns += ns;
}

/* --- speed of computing --- */

static inline bool
dp_works(const Runner *runner)
{
    return runner->n_done < runner->n_queued;
}

static inline double
speed_of(const Contest *contest, const Runner *runner)
{
    return (dp_works(runner) ? contest->dp_speed : 1) *
           (runner->n_messages > 0 ? contest->message_speed : 1);
}

/* After what runs beside the rank's ops has changed. */
static inline void
change_speed(Contest *contest, Runner *runner)
{
    if (runner->state == RUNNER_COMPUTES)
        sim_flow_set_limit(contest->links, compute_timer(runner->rank), speed_of(contest, runner));
}

/* The bucket of parameters that the segment at hand needs, counted from the first of the rank. */
static inline int64_t
bucket_of(const Runner *runner)
{
    return runner->special->chunk * runner->n_segments + runner->segment;
}

static void
contest_clear(Contest *contest)
{
    const int32_t n = 1 + 2 * contest->program->schedule->n_ranks;

    g_clear_pointer(&contest->links, sim_links_free);
    g_clear_pointer(&contest->engine, sim_engine_free);
    for (int32_t i = 0; contest->streams != NULL && i < n; i++)
        g_free(contest->streams[i].queue);
    g_free(contest->streams);
    sim_rivals_clear(&contest->rivals);
    g_free(contest->runners);
    g_free(contest->ready);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Contest, contest_clear)

/* --- messages --- */

/* The rank may go on.  In a ring, not on a stack: ranks that get on alike know more of each other
 * (rivals.h). */
static inline void
add_ready(Contest *contest, Runner *runner)
{
    const int32_t n_ranks = contest->program->schedule->n_ranks;
    const int32_t end = contest->first_ready + contest->n_ready++;

    runner->is_ready = true;
    contest->ready[end < n_ranks ? end : end - n_ranks] = runner->rank;
}

/* The message of @step to rank @to (or to none: -1) is there at @at_ns. */
static inline void
arrive(Contest *contest, uint32_t step, int32_t to, int64_t at_ns)
{
    contest->times->ready_ns[step + 1] = at_ns;
    if (to < 0)
        return;
    Runner *peer = &contest->runners[to];
    if (peer->is_ready || peer->state != RUNNER_IDLE)
        return;
    add_ready(contest, peer);
}

/* One message more, or less, comes to or goes from both ends. */
static void
count_message(Contest *contest, const SimCostDetail *detail, int32_t change)
{
    Runner *ends[] = {&contest->runners[detail->rank], &contest->runners[detail->out.peer]};

    for (size_t i = 0; i < G_N_ELEMENTS(ends); i++) {
        ends[i]->n_messages += change;
        change_speed(contest, ends[i]);
    }
}

static inline Posted
first_posted(const Stream *stream)
{
    return stream->queue[stream->first];
}

/* Makes room for one message more behind the last of the queue. */
static void
grow_queue(Stream *stream)
{
    if (stream->first > 0) {
        stream->n -= stream->first;
        memmove(stream->queue, stream->queue + stream->first,
                sizeof *stream->queue * (size_t)stream->n);
        stream->first = 0;
    }
    if (2 * stream->n < stream->room)
        return;
    stream->room = MAX(8, 2 * stream->room);
    stream->queue = g_renew(Posted, stream->queue, (size_t)stream->room);
}

/* Until when nothing more is posted on the stream @number, or until now. */
static int64_t
silent_until(Contest *contest, int32_t number)
{
    const Runner *runner = &contest->runners[sim_rival_rank(&contest->rivals, number)];
    const bool is_beside = number > contest->rivals.n_streams;

    if (runner->state == RUNNER_ENDS || runner->state == RUNNER_FINISHES)
        return is_beside ? *contest->now_ns : SIM_MAX_NS;
    if (runner->state != RUNNER_IDLE)
        return *contest->now_ns;
    return sim_rivals_silent_until(&contest->rivals, number, runner->next,
                                   MAX(runner->free_ns, *contest->now_ns));
}

static void send_ahead(Contest *contest, Stream *stream, int depth);

/* Whether what waits on @rival, if anything does, cannot meet a message from @start_ns to @end_ns.
 * What waits for an earlier time may be known to meet nobody by now, and need not wait. */
static bool
keeps_away(Contest *contest, Stream *rival, int64_t start_ns, int64_t end_ns, int depth)
{
    if (rival->hand_ns < end_ns)
        return false;
    if (rival->first == rival->n)
        return true;
    if (depth > 0 && !rival->is_sending && rival->hand_ns == NO_HAND &&
        first_posted(rival).at_ns < start_ns)
        send_ahead(contest, rival, depth - 1);
    return rival->first == rival->n || (!rival->is_sending && first_posted(rival).at_ns >= end_ns);
}

/* Whether a message on @stream from @start_ns to @end_ns is certainly alone on all links that can
 * fill.  Then no rival's message that is alone can meet it either: that one's bound was @stream's. */
static bool
is_sent_alone(Contest *contest, Stream *stream, int64_t start_ns, int64_t end_ns, int depth)
{
    const SimRivals *rivals = &contest->rivals;
    const int32_t at = (int32_t)(stream - contest->streams);
    bool is_alone = true;

    if (rivals->begin == NULL || rivals->begin[at] == rivals->begin[at + 1])
        return false;
    stream->hand_ns = start_ns;
    for (int32_t i = rivals->begin[at] + 1; i < rivals->begin[at + 1] && is_alone; i++) {
        const int32_t number = g_array_index(rivals->rivals, int32_t, i);
        is_alone = (number > rivals->n_streams ||
                    keeps_away(contest, &contest->streams[number], start_ns, end_ns, depth)) &&
                   (rivals->silent_ns[number] >= end_ns || silent_until(contest, number) >= end_ns);
    }
    stream->hand_ns = NO_HAND;
    return is_alone;
}

/* The message of @step, which meets no other, goes on @stream for @ns from @start_ns on. */
static void
send_alone(Contest *contest, Stream *stream, uint32_t step, int64_t start_ns, int64_t ns)
{
    stream->free_ns = start_ns + ns;
    add_message_time(contest, stream->from, stream->to, ns);
    arrive(contest, step, stream->to, stream->free_ns);
}

/* Sends the first messages of @stream's queue, none of which is under way, that certainly meet
 * nobody.  Returns whether any is left. */
static bool
send_those_alone(Contest *contest, Stream *stream, int64_t until_ns, int depth)
{
    for (; stream->first < stream->n; stream->first++) {
        const Posted posted = first_posted(stream);
        const int64_t ns = detail_of(contest, posted.step)->out.ns;
        const int64_t start_ns = MAX(posted.at_ns, stream->free_ns);

        if (start_ns > until_ns || !is_sent_alone(contest, stream, start_ns, start_ns + ns, depth))
            return true;
        send_alone(contest, stream, posted.step, start_ns, ns);
    }
    stream->first = stream->n = 0;
    return false;
}

/* The same ahead of the clock. */
static void
send_ahead(Contest *contest, Stream *stream, int depth)
{
    const int32_t timer = stream_timer(contest, (int32_t)(stream - contest->streams));
    const int64_t first = stream->first;
    const bool is_left = send_those_alone(contest, stream, SIM_MAX_NS, depth);

    if (!is_left)
        sim_engine_set(contest->engine, timer, SIM_ENGINE_NEVER);
    else if (stream->first > first)
        sim_engine_set(contest->engine, timer,
                       MAX(*contest->now_ns, MAX(first_posted(stream).at_ns, stream->free_ns)));
}

/* Sends the first messages of @stream's queue, if there are any, when they may be sent. */
static void
send_first(Contest *contest, Stream *stream)
{
    const int32_t timer = stream_timer(contest, (int32_t)(stream - contest->streams));

    if (!send_those_alone(contest, stream, *contest->now_ns, MAX_DEPTH))
        return;
    const Posted posted = first_posted(stream);
    const uint32_t cost = contest->program->steps[posted.step].cost;
    const SimCostDetail *detail = &contest->program->details[cost];
    const int64_t start_ns = MAX(posted.at_ns, stream->free_ns);
    if (start_ns > *contest->now_ns) {
        sim_engine_set(contest->engine, timer, start_ns);
        return;
    }
    stream->is_sending = true;
    stream->since_ns = *contest->now_ns;
    if (contest->message_speed < 1)
        count_message(contest, detail, 1);
    sim_flow_start(contest->links, timer, detail->out.ns,
                   route_of(contest, sim_route_of_message(cost)), 1);
}

/* The timer of @stream has gone off. */
static void
stream_fires(Contest *contest, Stream *stream)
{
    g_assert(stream->queue != NULL); /* it waits for a message */
    const Posted posted = first_posted(stream);
    const SimCostDetail *detail = detail_of(contest, posted.step);

    if (!stream->is_sending) {
        send_first(contest, stream);
        return;
    }
    stream->is_sending = false;
    sim_flow_end(contest->links, stream_timer(contest, (int32_t)(stream - contest->streams)));
    add_message_time(contest, detail->rank, detail->out.peer, *contest->now_ns - stream->since_ns);
    if (contest->message_speed < 1)
        count_message(contest, detail, -1);
    stream->free_ns = *contest->now_ns;
    stream->first++;
    send_first(contest, stream);
    arrive(contest, posted.step, detail->out.peer, *contest->now_ns);
}

/* The op of @step ends at @at_ns, now or later, and sends a message of @ns. */
static void
post_message(Contest *contest, Stream *stream, uint32_t step, int64_t ns, int64_t at_ns)
{
    const int64_t start_ns = MAX(stream->free_ns, at_ns);

    if (!stream->is_followed ||
        (stream->n == 0 && is_sent_alone(contest, stream, start_ns, start_ns + ns, MAX_DEPTH))) {
        send_alone(contest, stream, step, start_ns, ns);
        return;
    }
    if (stream->n == stream->room)
        grow_queue(stream);
    stream->queue[stream->n++] = (Posted){at_ns, step};
    if (stream->n == stream->first + 1)
        send_first(contest, stream);
}

/* The op of @step ends at @at_ns, now or later: its message leaves, or what needs it may begin. */
static void
op_ends(Contest *contest, uint32_t step, const SimCostDetail *detail, int64_t at_ns)
{
    const SimProgram *program = contest->program;

    if (program->workload->blocking_messages || detail->out.ns == 0)
        arrive(contest, step, detail->out.peer, at_ns);
    else
        post_message(contest,
                     &contest->streams[sim_stream(program, detail->rank, detail->out.peer)], step,
                     detail->out.ns, at_ns);
}

/* --- the dp stream --- */

static void start_segment(Contest *contest, Runner *runner);

static void go_on_after_dp(Contest *contest, Runner *runner);

/* The @number-th collective of a rank: gathered ahead, then reduced behind, then after the ops. */
static SimPiece
dp_piece(const Contest *contest, const Runner *runner, int64_t number, int64_t *ns)
{
    const WorkloadRank *work = &contest->program->workload->ranks[runner->rank];
    const int64_t n = sim_n_buckets(work);
    const int64_t n_ahead = n * runner->n_gathers, n_behind = n * runner->n_reduces;
    const bool reduces_at_end = n_behind == 0 && sim_reduces(work);
    SimPiece piece = {.rank = runner->rank, .number = (int32_t)number};
    int64_t all_ns, all_bytes, n_chunks = 1, n_parts = 1;

    const bool ahead = number < n_ahead;
    const bool gathers =
        ahead || (number >= n_ahead + n_behind && !(reduces_at_end && number == n_ahead));
    all_ns = gathers ? work->dp_gather_ns : work->dp_reduce_ns;
    all_bytes = gathers ? work->dp_gather_bytes : work->dp_reduce_bytes;
    piece.kind = gathers ? TRACE_EVENT_DP_GATHER : TRACE_EVENT_DP_REDUCE;
    number -= ahead ? 0 : n_ahead;
    if (ahead || number < n_behind) {
        n_chunks = ahead ? runner->n_gathers : runner->n_reduces;
        n_parts = n;
    } else {
        number = 0;
    }
    *ns = sim_share(sim_share(all_ns, n_chunks, number / n_parts), n_parts, number % n_parts);
    piece.bytes =
        sim_share(sim_share(all_bytes, n_chunks, number / n_parts), n_parts, number % n_parts);
    return piece;
}

static void
start_piece(Contest *contest, Runner *runner)
{
    int64_t ns;
    const SimPiece piece = dp_piece(contest, runner, runner->n_done, &ns);
    const bool gathers = piece.kind == TRACE_EVENT_DP_GATHER;

    runner->dp_since_ns = *contest->now_ns;
    sim_flow_start(contest->links, dp_timer(contest, runner->rank), ns,
                   route_of(contest, sim_route_of_dp(contest->program, runner->rank, gathers)), 1);
}

/* Queues the rank's next @n collectives. */
static void
queue_dp(Contest *contest, Runner *runner, int64_t n)
{
    const bool was_idle = runner->n_done == runner->n_queued;

    runner->n_queued += n;
    if (!was_idle || n == 0)
        return;
    start_piece(contest, runner);
    change_speed(contest, runner);
}

/* The timer of the rank's dp stream has gone off: one of its collectives ends. */
static void
end_dp(Contest *contest, Runner *runner)
{
    int64_t ns;
    SimPiece piece = dp_piece(contest, runner, runner->n_done, &ns);

    sim_flow_end(contest->links, dp_timer(contest, runner->rank));
    piece.start_ns = runner->dp_since_ns;
    piece.end_ns = *contest->now_ns;
    g_array_append_val(contest->times->pieces, piece);
    runner->n_done++;
    if (runner->n_done < runner->n_queued)
        start_piece(contest, runner);
    else
        change_speed(contest, runner);
    go_on_after_dp(contest, runner);
}

/* --- after the last op --- */

/* The optimizer of a rank that finishes ends. */
static void
end_optimizer(Contest *contest, Runner *runner)
{
    const WorkloadRank *work = &contest->program->workload->ranks[runner->rank];
    SimFinish *finish = &contest->times->finish[runner->rank];

    finish->optimizer_end_ns = finish->end_ns = *contest->now_ns;
    if (sim_gathers(work) && runner->n_gathers == 0)
        queue_dp(contest, runner, 1);
}

/* The rank has run all its ops: now its reduction must end, then comes the optimizer. */
static void
finish_rank(Contest *contest, Runner *runner)
{
    const WorkloadRank *work = &contest->program->workload->ranks[runner->rank];

    runner->state = RUNNER_FINISHES;
    contest->times->finish[runner->rank] = (SimFinish){
        .free_ns = *contest->now_ns,
        .optimizer_start_ns = UNKNOWN,
        .optimizer_end_ns = UNKNOWN,
    };
    if (sim_reduces(work) && runner->n_reduces == 0)
        queue_dp(contest, runner, 1);
    go_on_after_dp(contest, runner);
}

/* Whoever waits for the dp stream goes on if it has what it waits for. */
static void
go_on_after_dp(Contest *contest, Runner *runner)
{
    SimFinish *finish = &contest->times->finish[runner->rank];
    const int64_t now_ns = *contest->now_ns;

    if (runner->state == RUNNER_WAITS && runner->n_done > bucket_of(runner)) {
        contest->times->extra[runner->rank].wait_ns += now_ns - runner->wait_since_ns;
        start_segment(contest, runner);
    }
    if (runner->state != RUNNER_FINISHES || runner->n_done < runner->n_queued)
        return;
    if (finish->optimizer_start_ns == UNKNOWN) {
        finish->optimizer_start_ns = now_ns;
        sim_engine_set(contest->engine, compute_timer(runner->rank),
                       now_ns + contest->program->workload->ranks[runner->rank].optimizer_ns);
    } else if (finish->optimizer_end_ns != UNKNOWN) {
        finish->end_ns = now_ns;
    }
}

/* --- ops that the engine follows --- */

/* What the op of @step, none before the rank's next one, has beside it; NULL: nothing. */
static const SimSpecial *
special_of(const Contest *contest, Runner *runner, uint32_t step)
{
    const SimBeside *beside = &contest->program->beside;

    if (beside->begin == NULL)
        return NULL;
    const int64_t end = beside->begin[runner->rank + 1];
    while (runner->next_special < end && beside->specials[runner->next_special].step < step)
        runner->next_special++;
    const SimSpecial *special = &beside->specials[runner->next_special];
    if (runner->next_special == end || special->step != step)
        return NULL;
    /* With pairs parameters are gathered at the end. */
    return special->gathers && contest->program->n_pairs > 0 ? NULL : special;
}

static void
begin_op(Contest *contest, Runner *runner)
{
    contest->times->followed[runner->step].start_ns = *contest->now_ns;
    runner->special = special_of(contest, runner, runner->step);
    runner->segment = 0;
    runner->n_segments = runner->special == NULL
                             ? 1
                             : sim_n_buckets(&contest->program->workload->ranks[runner->rank]);
    start_segment(contest, runner);
}

/* How long the op at hand computes by itself; of a pair, its share. */
static int64_t
work_ns(const Contest *contest, const Runner *runner)
{
    const int64_t op_ns = detail_of(contest, runner->step)->op_ns;

    return runner->pair == NULL ? op_ns
           : runner->is_second  ? op_ns - runner->pair->second_saved_ns
                                : op_ns - runner->pair->first_saved_ns;
}

/* Starts the segment at hand of the rank's op, or waits for its parameters. */
static void
start_segment(Contest *contest, Runner *runner)
{
    if (runner->special != NULL && runner->special->gathers &&
        runner->n_done <= bucket_of(runner)) {
        runner->state = RUNNER_WAITS;
        runner->wait_since_ns = *contest->now_ns;
        return;
    }
    runner->state = RUNNER_COMPUTES;
    sim_flow_start(contest->links, compute_timer(runner->rank),
                   sim_share(work_ns(contest, runner), runner->n_segments, runner->segment),
                   op_route_of(contest, runner), speed_of(contest, runner));
}

/* The runner's op, whose message is there, begins now: with the receiving of a blocking one. */
static void
begin_with_message(Contest *contest, Runner *runner)
{
    const SimProgram *program = contest->program;
    const SimStep step = program->steps[runner->step];
    const SimMessage *in = &program->details[step.cost].in;

    contest->times->followed[runner->step].begin_ns = *contest->now_ns;
    if (in->compute_ns == 0) {
        begin_op(contest, runner);
        return;
    }
    runner->state = RUNNER_RECEIVES;
    sim_flow_start(contest->links, compute_timer(runner->rank), in->ns,
                   route_of(contest, sim_route_of_message(program->steps[step.producer - 1].cost)),
                   1);
}

static void
message_is_received(Contest *contest, Runner *runner)
{
    const SimMessage *in = &detail_of(contest, runner->step)->in;
    const int64_t ns = *contest->now_ns - contest->times->followed[runner->step].begin_ns;

    sim_flow_end(contest->links, compute_timer(runner->rank));
    contest->times->extra[runner->rank].receive_ns += ns - in->ns;
    add_message_time(contest, runner->rank, in->peer, ns);
    begin_op(contest, runner);
}

/* The rank may go on to its next op. */
static void
become_idle(Contest *contest, Runner *runner)
{
    runner->state = RUNNER_IDLE;
    add_ready(contest, runner);
}

/* The op at hand leaves the rank's stream. */
static void
leave_stream(Contest *contest, Runner *runner)
{
    const SimCostDetail *detail = detail_of(contest, runner->step);
    SimFollowed *at = &contest->times->followed[runner->step];

    at->free_ns = runner->free_ns = *contest->now_ns;
    contest->times->extra[runner->rank].extra_ns +=
        at->free_ns - at->begin_ns -
        (detail->in.compute_ns + work_ns(contest, runner) + detail->out.compute_ns);
}

static void
rank_is_free(Contest *contest, Runner *runner)
{
    leave_stream(contest, runner);
    become_idle(contest, runner);
}

/* After the first op of a pair the second begins at once. */
static void
begin_second(Contest *contest, Runner *runner)
{
    leave_stream(contest, runner);
    runner->step++;
    runner->is_second = true;
    contest->times->followed[runner->step].begin_ns = *contest->now_ns;
    begin_op(contest, runner);
}

static void
segment_ends(Contest *contest, Runner *runner)
{
    const SimCostDetail *detail = detail_of(contest, runner->step);
    const int32_t timer = compute_timer(runner->rank);

    contest->times->extra[runner->rank].shared_ns +=
        (int64_t)(sim_flow_end(contest->links, timer) + 0.5);
    runner->state = RUNNER_SENDS; /* if no segment follows */
    if (runner->special != NULL && !runner->special->gathers)
        queue_dp(contest, runner, 1);
    if (++runner->segment < runner->n_segments) {
        start_segment(contest, runner);
        return;
    }
    if (runner->pair != NULL && !runner->is_second) {
        begin_second(contest, runner);
        return;
    }
    if (runner->pair != NULL)
        op_ends(contest, runner->step - 1, detail_of(contest, runner->step - 1), *contest->now_ns);
    op_ends(contest, runner->step, detail, *contest->now_ns);
    if (detail->out.compute_ns == 0)
        rank_is_free(contest, runner);
    else
        sim_engine_set(contest->engine, timer, *contest->now_ns + detail->out.compute_ns);
}

/* The timer of the rank's compute stream has gone off. */
static void
runner_fires(Contest *contest, Runner *runner)
{
    switch (runner->state) {
    case RUNNER_BEGINS:
        begin_with_message(contest, runner);
        break;
    case RUNNER_RECEIVES:
        message_is_received(contest, runner);
        break;
    case RUNNER_COMPUTES:
        segment_ends(contest, runner);
        break;
    case RUNNER_SENDS:
        rank_is_free(contest, runner);
        break;
    case RUNNER_ENDS:
        finish_rank(contest, runner);
        break;
    case RUNNER_FINISHES:
        end_optimizer(contest, runner);
        break;
    default:
        g_assert_not_reached();
    }
}

/* --- ahead of the clock --- */

/* Whether nothing that happens elsewhere can change how long the op of @step takes, from its
 * blocking message on; or the @pair (nullable) whose first it is. */
static inline bool
is_alone(const Contest *contest, Runner *runner, uint32_t step, const SimPairKind *pair)
{
    const SimProgram *program = contest->program;
    const SimStep s = program->steps[step];

    if (contest->message_speed < 1 || (contest->dp_speed < 1 && dp_works(runner)) ||
        special_of(contest, runner, step) != NULL)
        return false;
    if (pair != NULL)
        return !crosses(contest, sim_route_of_pair(program, pair)) &&
               special_of(contest, runner, step + 1) == NULL;
    return !crosses(contest, sim_route_of_op(s.cost)) &&
           !(program->workload->blocking_messages && program->details[s.cost].in.compute_ns > 0 &&
             crosses(contest, sim_route_of_message(program->steps[s.producer - 1].cost)));
}

/* Runs an op that is alone, from @begin_ns on, which may lie ahead of the clock. */
static void
run_alone(Contest *contest, Runner *runner, uint32_t step, int64_t begin_ns)
{
    const SimCost *cost = &contest->program->costs[contest->program->steps[step].cost];
    const SimCostDetail *detail = detail_of(contest, step);

    /* Most ops: nothing blocks, and what is sent goes on a stream. */
    if (cost->stream != 0) {
        runner->free_ns = begin_ns + cost->busy_ns;
        contest->times->followed[step] = (SimFollowed){begin_ns, begin_ns, runner->free_ns};
        post_message(contest, &contest->streams[cost->stream], step, cost->lag_ns, runner->free_ns);
        return;
    }
    const int64_t start_ns = begin_ns + detail->in.compute_ns;
    const int64_t end_ns = start_ns + detail->op_ns;

    runner->free_ns = end_ns + detail->out.compute_ns;
    contest->times->followed[step] = (SimFollowed){begin_ns, start_ns, runner->free_ns};
    if (detail->in.compute_ns > 0)
        add_message_time(contest, runner->rank, detail->in.peer, detail->in.ns);
    op_ends(contest, step, detail, end_ns);
}

/* Likewise a pair. */
static void
run_pair_alone(Contest *contest, Runner *runner, uint32_t step, const SimPairKind *pair,
               int64_t begin_ns)
{
    const SimCostDetail *first = detail_of(contest, step);
    const int64_t middle_ns = begin_ns + first->op_ns - pair->first_saved_ns;

    runner->free_ns = begin_ns + pair->ns;
    contest->times->followed[step] = (SimFollowed){begin_ns, begin_ns, middle_ns};
    contest->times->followed[step + 1] = (SimFollowed){middle_ns, middle_ns, runner->free_ns};
    op_ends(contest, step, first, runner->free_ns);
    op_ends(contest, step + 1, detail_of(contest, step + 1), runner->free_ns);
}

/* Ends the rank's ops, or waits for the clock to do so. */
static void
end_ops(Contest *contest, Runner *runner)
{
    contest->times->free_ns[runner->rank] = runner->free_ns;
    if (runner->free_ns <= *contest->now_ns) {
        finish_rank(contest, runner);
        return;
    }
    runner->state = RUNNER_ENDS;
    sim_engine_set(contest->engine, compute_timer(runner->rank), runner->free_ns);
}

/* When the messages that the op of @step, or the @pair (nullable) that it begins, needs are there.
 */
static inline int64_t
ready_at(const Contest *contest, uint32_t step, const SimPairKind *pair)
{
    const SimStep *steps = contest->program->steps;
    const int64_t *ready_ns = contest->times->ready_ns;
    const int64_t first_ns = ready_ns[steps[step].producer];

    if (pair == NULL || first_ns == UNKNOWN)
        return first_ns;
    const int64_t second_ns = ready_ns[steps[step + 1].producer];
    return second_ns == UNKNOWN ? UNKNOWN : MAX(first_ns, second_ns);
}

/* Lets the rank go on as far as it can without the clock.  What it does there concerns nobody who
 * shares a link: those things begin in the order of the clock, and all that can begin before the
 * next timer goes off is known before it does, since what is unknown depends on a timer. */
static void
go_on(Contest *contest, Runner *runner)
{
    const SimProgram *program = contest->program;
    const int64_t end = program->schedule->rank_begin[runner->rank + 1];

    while (runner->state == RUNNER_IDLE && runner->next < end) {
        const uint32_t step = program->step_of[runner->next];
        const SimPairKind *pair = program->n_pairs == 0 ? NULL : sim_pair_at(program, step);
        const int64_t ready_ns = ready_at(contest, step, pair);
        if (ready_ns == UNKNOWN)
            return;
        const int64_t begin_ns = MAX(runner->free_ns, ready_ns);
        runner->next += pair == NULL ? 1 : 2;
        /* Steps of one rank are far apart: the next one's are on their way while this op runs. */
        if (runner->next < end) {
            const uint32_t ahead = program->step_of[runner->next];
            __builtin_prefetch(&program->steps[ahead]);
            __builtin_prefetch(&contest->times->followed[ahead], 1);
        }
        if (is_alone(contest, runner, step, pair)) {
            if (pair == NULL)
                run_alone(contest, runner, step, begin_ns);
            else
                run_pair_alone(contest, runner, step, pair, begin_ns);
            continue;
        }
        runner->pair = pair;
        runner->is_second = false;
        runner->step = step;
        runner->state = RUNNER_BEGINS;
        if (begin_ns > *contest->now_ns)
            sim_engine_set(contest->engine, compute_timer(runner->rank), begin_ns);
        else
            begin_with_message(contest, runner);
    }
    if (runner->state == RUNNER_IDLE)
        end_ops(contest, runner);
}

/* All ranks that may go on do, as far as they can without the clock. */
static void
go_on_all(Contest *contest)
{
    while (contest->n_ready > 0) {
        Runner *runner = &contest->runners[contest->ready[contest->first_ready]];
        contest->first_ready = (contest->first_ready + 1) % contest->program->schedule->n_ranks;
        contest->n_ready--;
        runner->is_ready = false;
        go_on(contest, runner);
    }
}

/* --- all of it --- */

/* At any time something gets on at full speed, or at that beside others, or several that share a
 * link do together: so the iteration is no longer than everything one after the other at the lowest
 * speed, which the compiler has found to be less than SIM_MAX_NS at full speed. */
static bool
check_times(const SimProgram *program, GError **error)
{
    static const char *const too_long = "what takes longer than 26 days cannot share links";
    const Workload *workload = program->workload;

    if (!(workload->interference_fraction >= 0 && workload->interference_fraction <= 1) ||
        !(workload->message_interference_fraction >= 0 &&
          workload->message_interference_fraction <= 1))
        return sim_fail_limit(error, "interference is not between 0 and 1");
    for (int64_t cost = 0; cost < program->n_costs; cost++)
        if (program->counts[cost] > 0 && (program->details[cost].op_ns > SIM_FLOW_MAX_NS ||
                                          program->details[cost].out.ns > SIM_FLOW_MAX_NS))
            return sim_fail_limit(error, too_long);
    for (int32_t rank = 0; rank < workload->n_ranks; rank++)
        if (workload->ranks[rank].dp_reduce_ns > SIM_FLOW_MAX_NS ||
            workload->ranks[rank].dp_gather_ns > SIM_FLOW_MAX_NS ||
            workload->ranks[rank].optimizer_ns > SIM_FLOW_MAX_NS)
            return sim_fail_limit(error, too_long);
    return true;
}

/* Which streams the engine must follow. */
static void
init_streams(Contest *contest)
{
    const SimProgram *program = contest->program;

    contest->streams = g_new0(Stream, 1 + 2 * (size_t)program->schedule->n_ranks);
    for (int32_t i = 0; i <= 2 * program->schedule->n_ranks; i++)
        contest->streams[i].hand_ns = NO_HAND;
    if (program->workload->blocking_messages)
        return;
    for (int64_t cost = 0; cost < program->n_costs; cost++) {
        const SimCostDetail *detail = &program->details[cost];
        if (program->counts[cost] == 0 || detail->out.ns == 0)
            continue;
        Stream *stream = &contest->streams[sim_stream(program, detail->rank, detail->out.peer)];
        stream->from = detail->rank;
        stream->to = detail->out.peer;
        if (contest->message_speed == 1 && !crosses(contest, sim_route_of_message(cost)))
            continue;
        stream->is_followed = true;
    }
}

/* Whether ops and messages can be taken over from a sweep until known_ns: where only messages share
 * links while there are ops. */
static bool
is_known(const Contest *contest)
{
    const SimProgram *program = contest->program;

    if (contest->known_ns <= 0 || contest->message_speed < 1 || program->n_pairs > 0 ||
        program->beside.begin != NULL || program->workload->blocking_messages)
        return false;
    for (int64_t cost = 0; cost < program->n_costs; cost++)
        if (program->counts[cost] > 0 && crosses(contest, sim_route_of_op(cost)))
            return false;
    return true;
}

/* Takes over from the sweep whose times are known: ops that begin before known_ns, which have run,
 * and messages that have arrived then.  Those on their way are posted: they are sent at the times that
 * the sweep knows, too, and meet only others that are posted, or follow.  The rest is UNKNOWN. */
static void
take_known(Contest *contest)
{
    const SimProgram *program = contest->program;
    SimTimes *times = contest->times;

    for (int64_t step = 0; step < program->n_ops; step++) {
        const SimCost *cost = &program->costs[program->steps[step].cost];
        const int64_t ready_ns = times->ready_ns[step + 1], free_ns = ready_ns - cost->lag_ns;
        Runner *runner = &contest->runners[cost->rank];

        if (free_ns - cost->busy_ns >= contest->known_ns) {
            times->ready_ns[step + 1] = UNKNOWN;
            continue;
        }
        times->followed[step] =
            (SimFollowed){free_ns - cost->busy_ns, free_ns - cost->busy_ns, free_ns};
        runner->free_ns = free_ns;
        runner->next++;
        if (cost->stream == 0)
            continue;
        Stream *stream = &contest->streams[cost->stream];
        if (!stream->is_followed || ready_ns <= contest->known_ns) {
            stream->free_ns = ready_ns;
            add_message_time(contest, stream->from, stream->to, cost->lag_ns);
            continue;
        }
        times->ready_ns[step + 1] = UNKNOWN;
        if (stream->n == stream->room)
            grow_queue(stream);
        stream->queue[stream->n++] = (Posted){free_ns, (uint32_t)step};
    }
    for (int32_t i = 1; i <= 2 * program->schedule->n_ranks; i++)
        if (contest->streams[i].n > 0)
            send_first(contest, &contest->streams[i]);
}

static bool
contest_init(Contest *contest, GError **error)
{
    const SimProgram *program = contest->program;
    const Schedule *schedule = program->schedule;
    const size_t n = (size_t)program->n_ops, n_ranks = (size_t)schedule->n_ranks;
    SimTimes *times = contest->times;

    sim_times_reset(times);
    times->followed = pages_try_malloc(MAX(n, 1), sizeof *times->followed);
    if (times->followed == NULL) {
        sim_fail_memory(error, program->n_ops, "times");
        return false; /* said here, since checkers of one file do not see that it always fails */
    }
    contest->dp_speed = program->n_pairs > 0 ? 1 : sim_speed_beside_dp(program->workload);
    sim_pairs_note_saved(program, times);
    contest->message_speed = 1.0 / (1.0 + program->workload->message_interference_fraction);
    contest->engine = sim_engine_new(n_timers(contest));
    contest->now_ns = sim_engine_clock(contest->engine);
    contest->links = sim_links_new(contest->engine, n_timers(contest),
                                   contest->network == NULL ? NULL : contest->network->bytes_per_s,
                                   contest->network == NULL ? 0 : contest->network->n_links);
    contest->ready = g_new(int32_t, n_ranks);
    init_streams(contest);
    if (contest->known_ns != SIM_FOLLOW_ALL && contest->network != NULL &&
        contest->message_speed == 1 && program->n_pairs == 0 &&
        !program->workload->blocking_messages)
        sim_rivals_init(&contest->rivals, program, contest->network);
    contest->runners = g_new0(Runner, n_ranks);
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++) {
        Runner *runner = &contest->runners[rank];
        *runner = (Runner){.rank = rank, .next = schedule->rank_begin[rank]};
        if (program->beside.begin == NULL)
            continue;
        runner->next_special = program->beside.begin[rank];
        if (program->n_pairs == 0)
            runner->n_gathers = sim_beside_n_chunks(&program->beside, rank, true);
        runner->n_reduces = sim_beside_n_chunks(&program->beside, rank, false);
    }
    if (is_known(contest)) {
        take_known(contest);
    } else {
        memset(times->ready_ns, 0xff, (n + 1) * sizeof *times->ready_ns); /* UNKNOWN */
        times->ready_ns[0] = 0;
    }
    return true;
}

/* Everything that happens at the next instant.  Returns false when nothing is left. */
static bool
advance(Contest *contest)
{
    const int32_t n_ranks = contest->program->schedule->n_ranks;
    const int32_t timer = sim_engine_next(contest->engine);

    if (timer < 0)
        return false;
    if (timer < n_ranks)
        runner_fires(contest, &contest->runners[timer]);
    else if (timer < dp_timer(contest, 0))
        stream_fires(contest, &contest->streams[timer - stream_timer(contest, 0)]);
    else
        end_dp(contest, &contest->runners[timer - dp_timer(contest, 0)]);
    go_on_all(contest);
    if (sim_engine_next_ns(contest->engine) > *contest->now_ns)
        sim_links_share(contest->links);
    return true;
}

bool
sim_program_contend(const SimProgram *program, const SimNetwork *network, int64_t known_ns,
                    SimTimes *times, GError **error)
{
    g_auto(Contest)
        contest = {.program = program, .network = network, .known_ns = known_ns, .times = times};

    if (!check_times(program, error) || !contest_init(&contest, error))
        return false;
    for (int32_t rank = 0; rank < program->schedule->n_ranks; rank++) {
        Runner *runner = &contest.runners[rank];
        queue_dp(&contest, runner,
                 runner->n_gathers * sim_n_buckets(&program->workload->ranks[rank]));
        become_idle(&contest, runner);
    }
    go_on_all(&contest);
    sim_links_share(contest.links);
    /* The compiler has shown that the order of the ops is free of cycles, so this ends. */
    while (advance(&contest))
        ;
    sim_times_sort_pieces(times);
    return true;
}
