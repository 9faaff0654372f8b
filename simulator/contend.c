#include "simulator/contend.h"

#include <string.h>

#include "base/host_memory.h"
#include "simulator/contest.h"
#include "simulator/pairs.h"

static void
contest_clear(Contest *contest)
{
    const int32_t n = 1 + 2 * contest->program->schedule->n_ranks;

    g_clear_pointer(&contest->links, sim_links_free);
    g_clear_pointer(&contest->engine, sim_engine_free);
    for (int32_t i = 0; contest->streams != NULL && i < n; i++)
        g_free(contest->streams[i].queue);
    g_free(contest->streams);
    g_free(contest->runners);
    g_free(contest->ready);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Contest, contest_clear)

/* --- messages --- */

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
    peer->is_ready = true;
    contest->ready[contest->n_ready++] = to;
}

/* One message more, or less, comes to or goes from both ends. */
static void
count_message(Contest *contest, const SimCostDetail *detail, int32_t change)
{
    Runner *ends[] = {&contest->runners[detail->rank], &contest->runners[detail->out.peer]};

    for (size_t i = 0; i < G_N_ELEMENTS(ends); i++) {
        ends[i]->n_messages += change;
        contest_change_speed(contest, ends[i]);
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

/* Sends the first message of @stream's queue when it may. */
static void
send_first(Contest *contest, Stream *stream)
{
    const int32_t timer = contest_stream_timer(contest, (int32_t)(stream - contest->streams));
    const Posted posted = first_posted(stream);
    const uint32_t cost = contest->program->steps[posted.step].cost;
    const SimCostDetail *detail = &contest->program->details[cost];

    if (posted.at_ns > *contest->now_ns) {
        sim_engine_set(contest->engine, timer, posted.at_ns);
        return;
    }
    stream->is_sending = true;
    stream->since_ns = *contest->now_ns;
    if (contest->message_speed < 1)
        count_message(contest, detail, 1);
    sim_flow_start(contest->links, timer, detail->out.ns,
                   contest_route(contest, sim_route_of_message(cost)), 1);
}

/* The timer of @stream has gone off. */
static void
stream_fires(Contest *contest, Stream *stream)
{
    const Posted posted = first_posted(stream);
    const SimCostDetail *detail = contest_detail(contest, posted.step);

    if (!stream->is_sending) {
        send_first(contest, stream);
        return;
    }
    stream->is_sending = false;
    sim_flow_end(contest->links,
                 contest_stream_timer(contest, (int32_t)(stream - contest->streams)));
    contest_add_message_time(contest, detail->rank, detail->out.peer,
                             *contest->now_ns - stream->since_ns);
    if (contest->message_speed < 1)
        count_message(contest, detail, -1);
    if (++stream->first < stream->n)
        send_first(contest, stream);
    else
        stream->first = stream->n = 0;
    arrive(contest, posted.step, detail->out.peer, *contest->now_ns);
}

void
contest_post(Contest *contest, Stream *stream, uint32_t step, int64_t ns, int64_t at_ns)
{
    if (!stream->is_followed) {
        stream->free_ns = MAX(stream->free_ns, at_ns) + ns;
        contest_add_message_time(contest, stream->from, stream->to, ns);
        arrive(contest, step, stream->to, stream->free_ns);
        return;
    }
    if (stream->n == stream->room)
        grow_queue(stream);
    stream->queue[stream->n++] = (Posted){at_ns, step};
    if (stream->n == stream->first + 1)
        send_first(contest, stream);
}

void
contest_op_ends(Contest *contest, uint32_t step, const SimCostDetail *detail, int64_t at_ns)
{
    const SimProgram *program = contest->program;

    if (program->workload->blocking_messages || detail->out.ns == 0)
        arrive(contest, step, detail->out.peer, at_ns);
    else
        contest_post(contest,
                     &contest->streams[sim_stream(program, detail->rank, detail->out.peer)], step,
                     detail->out.ns, at_ns);
}

/* --- ops that the engine follows --- */

static void
begin_op(Contest *contest, Runner *runner)
{
    contest->times->followed[runner->step].start_ns = *contest->now_ns;
    runner->special = contest_special(contest, runner, runner->step);
    runner->segment = 0;
    runner->n_segments = runner->special == NULL
                             ? 1
                             : sim_n_buckets(&contest->program->workload->ranks[runner->rank]);
    contest_start_segment(contest, runner);
}

/* How long the op at hand computes by itself; of a pair, its share. */
static int64_t
work_ns(const Contest *contest, const Runner *runner)
{
    const int64_t op_ns = contest_detail(contest, runner->step)->op_ns;

    return runner->pair == NULL ? op_ns
           : runner->is_second  ? op_ns - runner->pair->second_saved_ns
                                : op_ns - runner->pair->first_saved_ns;
}

void
contest_start_segment(Contest *contest, Runner *runner)
{
    if (runner->special != NULL && runner->special->gathers &&
        runner->n_done <= contest_bucket(runner)) {
        runner->state = RUNNER_WAITS;
        runner->wait_since_ns = *contest->now_ns;
        return;
    }
    runner->state = RUNNER_COMPUTES;
    sim_flow_start(contest->links, contest_compute_timer(runner->rank),
                   sim_share(work_ns(contest, runner), runner->n_segments, runner->segment),
                   contest_op_route(contest, runner), contest_speed(contest, runner));
}

/* The runner's op, whose message is there, begins now: with the receiving of a blocking one. */
void
contest_begin_op(Contest *contest, Runner *runner)
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
    sim_flow_start(
        contest->links, contest_compute_timer(runner->rank), in->ns,
        contest_route(contest, sim_route_of_message(program->steps[step.producer - 1].cost)), 1);
}

static void
message_is_received(Contest *contest, Runner *runner)
{
    const SimMessage *in = &contest_detail(contest, runner->step)->in;
    const int64_t ns = *contest->now_ns - contest->times->followed[runner->step].begin_ns;

    sim_flow_end(contest->links, contest_compute_timer(runner->rank));
    contest->times->extra[runner->rank].receive_ns += ns - in->ns;
    contest_add_message_time(contest, runner->rank, in->peer, ns);
    begin_op(contest, runner);
}

/* The rank may go on to its next op. */
void
contest_become_idle(Contest *contest, Runner *runner)
{
    runner->state = RUNNER_IDLE;
    runner->is_ready = true;
    contest->ready[contest->n_ready++] = runner->rank;
}

/* The op at hand leaves the rank's stream. */
static void
leave_stream(Contest *contest, Runner *runner)
{
    const SimCostDetail *detail = contest_detail(contest, runner->step);
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
    contest_become_idle(contest, runner);
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
    const SimCostDetail *detail = contest_detail(contest, runner->step);
    const int32_t timer = contest_compute_timer(runner->rank);

    contest->times->extra[runner->rank].shared_ns +=
        (int64_t)(sim_flow_end(contest->links, timer) + 0.5);
    runner->state = RUNNER_SENDS; /* if no segment follows */
    if (runner->special != NULL && !runner->special->gathers)
        contest_queue_dp(contest, runner, 1);
    if (++runner->segment < runner->n_segments) {
        contest_start_segment(contest, runner);
        return;
    }
    if (runner->pair != NULL && !runner->is_second) {
        begin_second(contest, runner);
        return;
    }
    if (runner->pair != NULL)
        contest_op_ends(contest, runner->step - 1, contest_detail(contest, runner->step - 1),
                        *contest->now_ns);
    contest_op_ends(contest, runner->step, detail, *contest->now_ns);
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
        contest_begin_op(contest, runner);
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
        contest_finish_rank(contest, runner);
        break;
    case RUNNER_FINISHES:
        contest_end_optimizer(contest, runner);
        break;
    default:
        g_assert_not_reached();
    }
}

/* --- all --- */

static bool
fail_limit(GError **error, const char *what)
{
    g_set_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_LIMIT, "workload: %s", what);
    return false;
}

/*
 * At any time something gets on at full speed, or at that beside others, or several that share a
 * link do together: so the iteration is no longer than everything one after the other at the lowest
 * speed, which the compiler has found to be less than SIM_MAX_NS at full speed.
 */
static bool
check_times(const SimProgram *program, GError **error)
{
    static const char *const too_long = "what takes longer than 26 days cannot share links";
    const Workload *workload = program->workload;

    if (!(workload->interference_fraction >= 0 && workload->interference_fraction <= 1) ||
        !(workload->message_interference_fraction >= 0 &&
          workload->message_interference_fraction <= 1))
        return fail_limit(error, "interference is not between 0 and 1");
    for (int64_t cost = 0; cost < program->n_costs; cost++)
        if (program->counts[cost] > 0 && (program->details[cost].op_ns > SIM_FLOW_MAX_NS ||
                                          program->details[cost].out.ns > SIM_FLOW_MAX_NS))
            return fail_limit(error, too_long);
    for (int32_t rank = 0; rank < workload->n_ranks; rank++)
        if (workload->ranks[rank].dp_reduce_ns > SIM_FLOW_MAX_NS ||
            workload->ranks[rank].dp_gather_ns > SIM_FLOW_MAX_NS ||
            workload->ranks[rank].optimizer_ns > SIM_FLOW_MAX_NS)
            return fail_limit(error, too_long);
    return true;
}

/* Which streams the engine must follow. */
static void
init_streams(Contest *contest)
{
    const SimProgram *program = contest->program;

    contest->streams = g_new0(Stream, 1 + 2 * (size_t)program->schedule->n_ranks);
    if (program->workload->blocking_messages)
        return;
    for (int64_t cost = 0; cost < program->n_costs; cost++) {
        const SimCostDetail *detail = &program->details[cost];
        if (program->counts[cost] == 0 || detail->out.ns == 0)
            continue;
        Stream *stream = &contest->streams[sim_stream(program, detail->rank, detail->out.peer)];
        stream->from = detail->rank;
        stream->to = detail->out.peer;
        if (contest->message_speed == 1 && !contest_crosses(contest, sim_route_of_message(cost)))
            continue;
        stream->is_followed = true;
    }
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
    if (times->followed == NULL)
        return sim_fail_memory(error, program->n_ops, "times");
    memset(times->ready_ns, 0xff, (n + 1) * sizeof *times->ready_ns); /* UNKNOWN */
    times->ready_ns[0] = 0;
    contest->dp_speed = program->n_pairs > 0 ? 1 : sim_speed_beside_dp(program->workload);
    sim_pairs_note_saved(program, times);
    contest->message_speed = 1.0 / (1.0 + program->workload->message_interference_fraction);
    contest->engine = sim_engine_new(contest_n_timers(contest));
    contest->now_ns = sim_engine_clock(contest->engine);
    contest->links = sim_links_new(contest->engine, contest_n_timers(contest),
                                   contest->network == NULL ? NULL : contest->network->bytes_per_s,
                                   contest->network == NULL ? 0 : contest->network->n_links);
    contest->ready = g_new(int32_t, n_ranks);
    init_streams(contest);
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
    else if (timer < contest_dp_timer(contest, 0))
        stream_fires(contest, &contest->streams[timer - contest_stream_timer(contest, 0)]);
    else
        contest_end_dp(contest, &contest->runners[timer - contest_dp_timer(contest, 0)]);
    contest_go_on(contest);
    if (sim_engine_next_ns(contest->engine) > *contest->now_ns)
        sim_links_share(contest->links);
    return true;
}

bool
sim_program_contend(const SimProgram *program, const SimNetwork *network, SimTimes *times,
                    GError **error)
{
    g_auto(Contest) contest = {.program = program, .network = network, .times = times};

    if (!check_times(program, error) || !contest_init(&contest, error))
        return false;
    for (int32_t rank = 0; rank < program->schedule->n_ranks; rank++) {
        Runner *runner = &contest.runners[rank];
        contest_queue_dp(&contest, runner,
                         runner->n_gathers * sim_n_buckets(&program->workload->ranks[rank]));
        contest_become_idle(&contest, runner);
    }
    contest_go_on(&contest);
    sim_links_share(contest.links);
    /* The compiler has shown that the order of the ops is free of cycles, so this ends. */
    while (advance(&contest))
        ;
    sim_times_sort_pieces(times);
    return true;
}
