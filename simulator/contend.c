#include "simulator/contend.h"

#include "simulator/contest.h"

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(SimContest, sim_contest_clear)

/* Of messages that wait for each other's being sent ahead of the clock. */
#define MAX_DEPTH 2

/* What the op at hand takes beside others' flows. */
static inline const SimRoute *
op_route_of(const SimContest *contest, const SimRunner *runner)
{
    return sim_route(contest, runner->pair != NULL
                                  ? sim_route_of_pair(contest->program, runner->pair)
                                  : sim_route_of_op(contest->program->steps[runner->step].cost));
}

/* --- speed of computing --- */

static inline bool
dp_works(const SimRunner *runner)
{
    return runner->n_done < runner->n_queued;
}

static inline double
speed_of(const SimContest *contest, const SimRunner *runner)
{
    return (dp_works(runner) ? contest->dp_speed : 1) *
           (runner->n_messages > 0 ? contest->message_speed : 1);
}

/* After what runs beside the rank's ops has changed. */
static inline void
change_speed(SimContest *contest, SimRunner *runner)
{
    if (runner->state == SIM_RUNNER_COMPUTES)
        sim_flow_set_limit(contest->links, sim_compute_timer(runner->rank),
                           speed_of(contest, runner));
}

/* The bucket of parameters that the segment at hand needs, counted from the first of the rank. */
static inline int64_t
bucket_of(const SimRunner *runner)
{
    return runner->special->chunk * runner->n_segments + runner->segment;
}

/* --- messages --- */

/* The rank may go on.  In a ring, not on a stack: ranks that get on alike know more of each other
 * (rivals.h). */
static inline void
add_ready(SimContest *contest, SimRunner *runner)
{
    const int32_t n_ranks = contest->program->schedule->n_ranks;
    const int32_t end = contest->first_ready + contest->n_ready++;

    runner->is_ready = true;
    contest->ready[end < n_ranks ? end : end - n_ranks] = runner->rank;
}

/* The message of @step to rank @to (or to none: -1) is there at @at_ns. */
static inline void
arrive(SimContest *contest, uint32_t step, int32_t to, int64_t at_ns)
{
    contest->times->ready_ns[step + 1] = at_ns;
    if (to < 0)
        return;
    SimRunner *peer = &contest->runners[to];
    if (peer->is_ready || peer->state != SIM_RUNNER_IDLE)
        return;
    add_ready(contest, peer);
}

/* One message more, or less, comes to or goes from both ends. */
static void
count_message(SimContest *contest, const SimCostDetail *detail, int32_t change)
{
    SimRunner *ends[] = {&contest->runners[detail->rank], &contest->runners[detail->out.peer]};

    for (size_t i = 0; i < G_N_ELEMENTS(ends); i++) {
        ends[i]->n_messages += change;
        change_speed(contest, ends[i]);
    }
}

static inline SimPosted
first_posted(const SimMessages *stream)
{
    return stream->queue[stream->first];
}

/* Until when nothing more is posted on the stream @number, or until now. */
static int64_t
silent_until(SimContest *contest, int32_t number)
{
    const SimRunner *runner = &contest->runners[sim_rival_rank(&contest->rivals, number)];
    const bool is_beside = number > contest->rivals.n_streams;

    if (runner->state == SIM_RUNNER_ENDS || runner->state == SIM_RUNNER_FINISHES)
        return is_beside ? *contest->now_ns : SIM_MAX_NS;
    if (runner->state != SIM_RUNNER_IDLE)
        return *contest->now_ns;
    return sim_rivals_silent_until(&contest->rivals, number, runner->next,
                                   MAX(runner->free_ns, *contest->now_ns));
}

static void send_ahead(SimContest *contest, SimMessages *stream, int depth);

/* Whether what waits on @rival, if anything does, cannot meet a message from @start_ns to @end_ns.
 * What waits for an earlier time may be known to meet nobody by now, and need not wait. */
static bool
keeps_away(SimContest *contest, SimMessages *rival, int64_t start_ns, int64_t end_ns, int depth)
{
    if (rival->hand_ns < end_ns)
        return false;
    if (rival->first == rival->n)
        return true;
    if (depth > 0 && !rival->is_sending && rival->hand_ns == SIM_NO_HAND &&
        first_posted(rival).at_ns < start_ns)
        send_ahead(contest, rival, depth - 1);
    return rival->first == rival->n || (!rival->is_sending && first_posted(rival).at_ns >= end_ns);
}

/* Whether a message on @stream from @start_ns to @end_ns is certainly alone on all links that can
 * fill.  Then no rival's message that is alone can meet it either: that one's bound was @stream's. */
static bool
is_sent_alone(SimContest *contest, SimMessages *stream, int64_t start_ns, int64_t end_ns, int depth)
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
    stream->hand_ns = SIM_NO_HAND;
    return is_alone;
}

/* The message of @step, which meets no other, goes on @stream for @ns from @start_ns on. */
static void
send_alone(SimContest *contest, SimMessages *stream, uint32_t step, int64_t start_ns, int64_t ns)
{
    stream->free_ns = start_ns + ns;
    sim_add_message_time(contest, stream->from, stream->to, ns);
    arrive(contest, step, stream->to, stream->free_ns);
}

/* Sends the first messages of @stream's queue, none of which is under way, that certainly meet
 * nobody.  Returns whether any is left. */
static bool
send_those_alone(SimContest *contest, SimMessages *stream, int64_t until_ns, int depth)
{
    for (; stream->first < stream->n; stream->first++) {
        const SimPosted posted = first_posted(stream);
        const int64_t ns = sim_detail_of(contest, posted.step)->out.ns;
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
send_ahead(SimContest *contest, SimMessages *stream, int depth)
{
    const int32_t timer = sim_stream_timer(contest, (int32_t)(stream - contest->streams));
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
send_first(SimContest *contest, SimMessages *stream)
{
    const int32_t timer = sim_stream_timer(contest, (int32_t)(stream - contest->streams));

    if (!send_those_alone(contest, stream, *contest->now_ns, MAX_DEPTH))
        return;
    const SimPosted posted = first_posted(stream);
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
                   sim_route(contest, sim_route_of_message(cost)), 1);
}

/* The timer of @stream has gone off. */
static void
stream_fires(SimContest *contest, SimMessages *stream)
{
    g_assert(stream->queue != NULL); /* it waits for a message */
    const SimPosted posted = first_posted(stream);
    const SimCostDetail *detail = sim_detail_of(contest, posted.step);

    if (!stream->is_sending) {
        send_first(contest, stream);
        return;
    }
    stream->is_sending = false;
    sim_flow_end(contest->links, sim_stream_timer(contest, (int32_t)(stream - contest->streams)));
    sim_add_message_time(contest, detail->rank, detail->out.peer,
                         *contest->now_ns - stream->since_ns);
    if (contest->message_speed < 1)
        count_message(contest, detail, -1);
    stream->free_ns = *contest->now_ns;
    stream->first++;
    send_first(contest, stream);
    arrive(contest, posted.step, detail->out.peer, *contest->now_ns);
}

/* The op of @step ends at @at_ns, now or later, and sends a message of @ns. */
static void
post_message(SimContest *contest, SimMessages *stream, uint32_t step, int64_t ns, int64_t at_ns)
{
    const int64_t start_ns = MAX(stream->free_ns, at_ns);

    if (!stream->is_followed ||
        (stream->n == 0 && is_sent_alone(contest, stream, start_ns, start_ns + ns, MAX_DEPTH))) {
        send_alone(contest, stream, step, start_ns, ns);
        return;
    }
    sim_stream_post(stream, step, at_ns);
    if (stream->n == stream->first + 1)
        send_first(contest, stream);
}

/* The op of @step ends at @at_ns, now or later: its message leaves, or what needs it may begin. */
static void
op_ends(SimContest *contest, uint32_t step, const SimCostDetail *detail, int64_t at_ns)
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

static void start_segment(SimContest *contest, SimRunner *runner);

static void go_on_after_dp(SimContest *contest, SimRunner *runner);

/* The @number-th collective of a rank: gathered ahead, then reduced behind, then after the ops. */
static SimPiece
dp_piece(const SimContest *contest, const SimRunner *runner, int64_t number, int64_t *ns)
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
start_piece(SimContest *contest, SimRunner *runner)
{
    int64_t ns;
    const SimPiece piece = dp_piece(contest, runner, runner->n_done, &ns);
    const bool gathers = piece.kind == TRACE_EVENT_DP_GATHER;

    runner->dp_since_ns = *contest->now_ns;
    sim_flow_start(contest->links, sim_dp_timer(contest, runner->rank), ns,
                   sim_route(contest, sim_route_of_dp(contest->program, runner->rank, gathers)), 1);
}

/* Queues the rank's next @n collectives. */
static void
queue_dp(SimContest *contest, SimRunner *runner, int64_t n)
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
end_dp(SimContest *contest, SimRunner *runner)
{
    int64_t ns;
    SimPiece piece = dp_piece(contest, runner, runner->n_done, &ns);

    sim_flow_end(contest->links, sim_dp_timer(contest, runner->rank));
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
end_optimizer(SimContest *contest, SimRunner *runner)
{
    const WorkloadRank *work = &contest->program->workload->ranks[runner->rank];
    SimFinish *finish = &contest->times->finish[runner->rank];

    finish->optimizer_end_ns = finish->end_ns = *contest->now_ns;
    if (sim_gathers(work) && runner->n_gathers == 0)
        queue_dp(contest, runner, 1);
}

/* The rank has run all its ops: now its reduction must end, then comes the optimizer. */
static void
finish_rank(SimContest *contest, SimRunner *runner)
{
    const WorkloadRank *work = &contest->program->workload->ranks[runner->rank];

    runner->state = SIM_RUNNER_FINISHES;
    contest->times->finish[runner->rank] = (SimFinish){
        .free_ns = *contest->now_ns,
        .optimizer_start_ns = SIM_UNKNOWN,
        .optimizer_end_ns = SIM_UNKNOWN,
    };
    if (sim_reduces(work) && runner->n_reduces == 0)
        queue_dp(contest, runner, 1);
    go_on_after_dp(contest, runner);
}

/* Whoever waits for the dp stream goes on if it has what it waits for. */
static void
go_on_after_dp(SimContest *contest, SimRunner *runner)
{
    SimFinish *finish = &contest->times->finish[runner->rank];
    const int64_t now_ns = *contest->now_ns;

    if (runner->state == SIM_RUNNER_WAITS && runner->n_done > bucket_of(runner)) {
        contest->times->extra[runner->rank].wait_ns += now_ns - runner->wait_since_ns;
        start_segment(contest, runner);
    }
    if (runner->state != SIM_RUNNER_FINISHES || runner->n_done < runner->n_queued)
        return;
    if (finish->optimizer_start_ns == SIM_UNKNOWN) {
        finish->optimizer_start_ns = now_ns;
        sim_engine_set(contest->engine, sim_compute_timer(runner->rank),
                       now_ns + contest->program->workload->ranks[runner->rank].optimizer_ns);
    } else if (finish->optimizer_end_ns != SIM_UNKNOWN) {
        finish->end_ns = now_ns;
    }
}

/* --- ops that the engine follows --- */

/* What the op of @step, none before the rank's next one, has beside it; NULL: nothing. */
static const SimSpecial *
special_of(const SimContest *contest, SimRunner *runner, uint32_t step)
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
begin_op(SimContest *contest, SimRunner *runner)
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
work_ns(const SimContest *contest, const SimRunner *runner)
{
    const int64_t op_ns = sim_detail_of(contest, runner->step)->op_ns;

    return runner->pair == NULL ? op_ns
           : runner->is_second  ? op_ns - runner->pair->second_saved_ns
                                : op_ns - runner->pair->first_saved_ns;
}

/* Starts the segment at hand of the rank's op, or waits for its parameters. */
static void
start_segment(SimContest *contest, SimRunner *runner)
{
    if (runner->special != NULL && runner->special->gathers &&
        runner->n_done <= bucket_of(runner)) {
        runner->state = SIM_RUNNER_WAITS;
        runner->wait_since_ns = *contest->now_ns;
        return;
    }
    runner->state = SIM_RUNNER_COMPUTES;
    sim_flow_start(contest->links, sim_compute_timer(runner->rank),
                   sim_share(work_ns(contest, runner), runner->n_segments, runner->segment),
                   op_route_of(contest, runner), speed_of(contest, runner));
}

/* The runner's op, whose message is there, begins now: with the receiving of a blocking one. */
static void
begin_with_message(SimContest *contest, SimRunner *runner)
{
    const SimProgram *program = contest->program;
    const SimStep step = program->steps[runner->step];
    const SimMessage *in = &program->details[step.cost].in;

    contest->times->followed[runner->step].begin_ns = *contest->now_ns;
    if (in->compute_ns == 0) {
        begin_op(contest, runner);
        return;
    }
    runner->state = SIM_RUNNER_RECEIVES;
    sim_flow_start(contest->links, sim_compute_timer(runner->rank), in->ns,
                   sim_route(contest, sim_route_of_message(program->steps[step.producer - 1].cost)),
                   1);
}

static void
message_is_received(SimContest *contest, SimRunner *runner)
{
    const SimMessage *in = &sim_detail_of(contest, runner->step)->in;
    const int64_t ns = *contest->now_ns - contest->times->followed[runner->step].begin_ns;

    sim_flow_end(contest->links, sim_compute_timer(runner->rank));
    contest->times->extra[runner->rank].receive_ns += ns - in->ns;
    sim_add_message_time(contest, runner->rank, in->peer, ns);
    begin_op(contest, runner);
}

/* The rank may go on to its next op. */
static void
become_idle(SimContest *contest, SimRunner *runner)
{
    runner->state = SIM_RUNNER_IDLE;
    add_ready(contest, runner);
}

/* The op at hand leaves the rank's stream. */
static void
leave_stream(SimContest *contest, SimRunner *runner)
{
    const SimCostDetail *detail = sim_detail_of(contest, runner->step);
    SimFollowed *at = &contest->times->followed[runner->step];

    at->free_ns = runner->free_ns = *contest->now_ns;
    contest->times->extra[runner->rank].extra_ns +=
        at->free_ns - at->begin_ns -
        (detail->in.compute_ns + work_ns(contest, runner) + detail->out.compute_ns);
}

static void
rank_is_free(SimContest *contest, SimRunner *runner)
{
    leave_stream(contest, runner);
    become_idle(contest, runner);
}

/* After the first op of a pair the second begins at once. */
static void
begin_second(SimContest *contest, SimRunner *runner)
{
    leave_stream(contest, runner);
    runner->step++;
    runner->is_second = true;
    contest->times->followed[runner->step].begin_ns = *contest->now_ns;
    begin_op(contest, runner);
}

static void
segment_ends(SimContest *contest, SimRunner *runner)
{
    const SimCostDetail *detail = sim_detail_of(contest, runner->step);
    const int32_t timer = sim_compute_timer(runner->rank);

    contest->times->extra[runner->rank].shared_ns +=
        (int64_t)(sim_flow_end(contest->links, timer) + 0.5);
    runner->state = SIM_RUNNER_SENDS; /* if no segment follows */
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
        op_ends(contest, runner->step - 1, sim_detail_of(contest, runner->step - 1),
                *contest->now_ns);
    op_ends(contest, runner->step, detail, *contest->now_ns);
    if (detail->out.compute_ns == 0)
        rank_is_free(contest, runner);
    else
        sim_engine_set(contest->engine, timer, *contest->now_ns + detail->out.compute_ns);
}

/* The timer of the rank's compute stream has gone off. */
static void
runner_fires(SimContest *contest, SimRunner *runner)
{
    switch (runner->state) {
    case SIM_RUNNER_BEGINS:
        begin_with_message(contest, runner);
        break;
    case SIM_RUNNER_RECEIVES:
        message_is_received(contest, runner);
        break;
    case SIM_RUNNER_COMPUTES:
        segment_ends(contest, runner);
        break;
    case SIM_RUNNER_SENDS:
        rank_is_free(contest, runner);
        break;
    case SIM_RUNNER_ENDS:
        finish_rank(contest, runner);
        break;
    case SIM_RUNNER_FINISHES:
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
is_alone(const SimContest *contest, SimRunner *runner, uint32_t step, const SimPairKind *pair)
{
    const SimProgram *program = contest->program;
    const SimStep s = program->steps[step];

    if (contest->message_speed < 1 || (contest->dp_speed < 1 && dp_works(runner)) ||
        special_of(contest, runner, step) != NULL)
        return false;
    if (pair != NULL)
        return !sim_crosses(contest, sim_route_of_pair(program, pair)) &&
               special_of(contest, runner, step + 1) == NULL;
    return !sim_crosses(contest, sim_route_of_op(s.cost)) &&
           !(program->workload->blocking_messages && program->details[s.cost].in.compute_ns > 0 &&
             sim_crosses(contest, sim_route_of_message(program->steps[s.producer - 1].cost)));
}

/* Runs an op that is alone, from @begin_ns on, which may lie ahead of the clock. */
static void
run_alone(SimContest *contest, SimRunner *runner, uint32_t step, int64_t begin_ns)
{
    const SimCost *cost = &contest->program->costs[contest->program->steps[step].cost];
    const SimCostDetail *detail = sim_detail_of(contest, step);

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
        sim_add_message_time(contest, runner->rank, detail->in.peer, detail->in.ns);
    op_ends(contest, step, detail, end_ns);
}

/* Likewise a pair. */
static void
run_pair_alone(SimContest *contest, SimRunner *runner, uint32_t step, const SimPairKind *pair,
               int64_t begin_ns)
{
    const SimCostDetail *first = sim_detail_of(contest, step);
    const int64_t middle_ns = begin_ns + first->op_ns - pair->first_saved_ns;

    runner->free_ns = begin_ns + pair->ns;
    contest->times->followed[step] = (SimFollowed){begin_ns, begin_ns, middle_ns};
    contest->times->followed[step + 1] = (SimFollowed){middle_ns, middle_ns, runner->free_ns};
    op_ends(contest, step, first, runner->free_ns);
    op_ends(contest, step + 1, sim_detail_of(contest, step + 1), runner->free_ns);
}

/* Ends the rank's ops, or waits for the clock to do so. */
static void
end_ops(SimContest *contest, SimRunner *runner)
{
    contest->times->free_ns[runner->rank] = runner->free_ns;
    if (runner->free_ns <= *contest->now_ns) {
        finish_rank(contest, runner);
        return;
    }
    runner->state = SIM_RUNNER_ENDS;
    sim_engine_set(contest->engine, sim_compute_timer(runner->rank), runner->free_ns);
}

/* When the messages that the op of @step, or the @pair (nullable) that it begins, needs are there.
 */
static inline int64_t
ready_at(const SimContest *contest, uint32_t step, const SimPairKind *pair)
{
    const SimStep *steps = contest->program->steps;
    const int64_t *ready_ns = contest->times->ready_ns;
    const int64_t first_ns = ready_ns[steps[step].producer];

    if (pair == NULL || first_ns == SIM_UNKNOWN)
        return first_ns;
    const int64_t second_ns = ready_ns[steps[step + 1].producer];
    return second_ns == SIM_UNKNOWN ? SIM_UNKNOWN : MAX(first_ns, second_ns);
}

/* Lets the rank go on as far as it can without the clock.  What it does there concerns nobody who
 * shares a link: those things begin in the order of the clock, and all that can begin before the
 * next timer goes off is known before it does, since what is unknown depends on a timer. */
static void
go_on(SimContest *contest, SimRunner *runner)
{
    const SimProgram *program = contest->program;
    const int64_t end = program->schedule->rank_begin[runner->rank + 1];

    while (runner->state == SIM_RUNNER_IDLE && runner->next < end) {
        const uint32_t step = program->step_of[runner->next];
        const SimPairKind *pair = program->n_pairs == 0 ? NULL : sim_pair_at(program, step);
        const int64_t ready_ns = ready_at(contest, step, pair);
        if (ready_ns == SIM_UNKNOWN)
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
        runner->state = SIM_RUNNER_BEGINS;
        if (begin_ns > *contest->now_ns)
            sim_engine_set(contest->engine, sim_compute_timer(runner->rank), begin_ns);
        else
            begin_with_message(contest, runner);
    }
    if (runner->state == SIM_RUNNER_IDLE)
        end_ops(contest, runner);
}

/* All ranks that may go on do, as far as they can without the clock. */
static void
go_on_all(SimContest *contest)
{
    while (contest->n_ready > 0) {
        SimRunner *runner = &contest->runners[contest->ready[contest->first_ready]];
        contest->first_ready = (contest->first_ready + 1) % contest->program->schedule->n_ranks;
        contest->n_ready--;
        runner->is_ready = false;
        go_on(contest, runner);
    }
}

/* --- all of it --- */

/* Everything that happens at the next instant.  Returns false when nothing is left. */
static bool
advance(SimContest *contest)
{
    const int32_t n_ranks = contest->program->schedule->n_ranks;
    const int32_t timer = sim_engine_next(contest->engine);

    if (timer < 0)
        return false;
    if (timer < n_ranks)
        runner_fires(contest, &contest->runners[timer]);
    else if (timer < sim_dp_timer(contest, 0))
        stream_fires(contest, &contest->streams[timer - sim_stream_timer(contest, 0)]);
    else
        end_dp(contest, &contest->runners[timer - sim_dp_timer(contest, 0)]);
    go_on_all(contest);
    if (sim_engine_next_ns(contest->engine) > *contest->now_ns)
        sim_links_share(contest->links);
    return true;
}

bool
sim_program_contend(const SimProgram *program, const SimNetwork *network, int64_t known_ns,
                    SimTimes *times, GError **error)
{
    g_auto(SimContest)
        contest = {.program = program, .network = network, .known_ns = known_ns, .times = times};

    if (!sim_contest_init(&contest, error))
        return false;
    for (int32_t i = 1; i <= 2 * program->schedule->n_ranks; i++)
        send_first(&contest, &contest.streams[i]); /* what a sweep has left on its way */
    for (int32_t rank = 0; rank < program->schedule->n_ranks; rank++) {
        SimRunner *runner = &contest.runners[rank];
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
