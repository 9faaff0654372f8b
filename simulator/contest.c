#include "simulator/contest.h"

#include <string.h>

#include "base/host_memory.h"
#include "simulator/contend.h"

/* Makes room for one message more behind the last of the queue. */
static void
grow_queue(SimMessages *stream)
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
    stream->queue = g_renew(SimPosted, stream->queue, (size_t)stream->room);
}

void
sim_stream_post(SimMessages *stream, uint32_t step, int64_t at_ns)
{
    if (stream->n == stream->room)
        grow_queue(stream);
    stream->queue[stream->n++] = (SimPosted){at_ns, step};
}

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
init_streams(SimContest *contest)
{
    const SimProgram *program = contest->program;

    contest->streams = g_new0(SimMessages, 1 + 2 * (size_t)program->schedule->n_ranks);
    for (int32_t i = 0; i <= 2 * program->schedule->n_ranks; i++)
        contest->streams[i].hand_ns = SIM_NO_HAND;
    if (program->workload->blocking_messages)
        return;
    for (int64_t cost = 0; cost < program->n_costs; cost++) {
        const SimCostDetail *detail = &program->details[cost];
        if (program->counts[cost] == 0 || detail->out.ns == 0)
            continue;
        SimMessages *stream =
            &contest->streams[sim_stream(program, detail->rank, detail->out.peer)];
        stream->from = detail->rank;
        stream->to = detail->out.peer;
        if (contest->message_speed == 1 && !sim_crosses(contest, sim_route_of_message(cost)))
            continue;
        stream->is_followed = true;
    }
}

/* Whether ops and messages can be taken over from a sweep until known_ns: where only messages share
 * links while there are ops. */
static bool
is_known(const SimContest *contest)
{
    const SimProgram *program = contest->program;

    if (contest->known_ns <= 0 || contest->message_speed < 1 || program->n_pairs > 0 ||
        program->beside.begin != NULL || program->workload->blocking_messages)
        return false;
    for (int64_t cost = 0; cost < program->n_costs; cost++)
        if (program->counts[cost] > 0 && sim_crosses(contest, sim_route_of_op(cost)))
            return false;
    return true;
}

/* Takes over from the sweep whose times are known: ops that begin before known_ns, which have run,
 * and messages that have arrived then.  Those on their way are posted: they are sent at the times that
 * the sweep knows, too, and meet only others that are posted, or follow.  The rest is SIM_UNKNOWN. */
static void
take_known(SimContest *contest)
{
    const SimProgram *program = contest->program;
    SimTimes *times = contest->times;

    for (int64_t step = 0; step < program->n_ops; step++) {
        const SimCost *cost = &program->costs[program->steps[step].cost];
        const int64_t ready_ns = times->ready_ns[step + 1], free_ns = ready_ns - cost->lag_ns;
        SimRunner *runner = &contest->runners[cost->rank];

        if (free_ns - cost->busy_ns >= contest->known_ns) {
            times->ready_ns[step + 1] = SIM_UNKNOWN;
            continue;
        }
        times->followed[step] =
            (SimFollowed){free_ns - cost->busy_ns, free_ns - cost->busy_ns, free_ns};
        runner->free_ns = free_ns;
        runner->next++;
        if (cost->stream == 0)
            continue;
        SimMessages *stream = &contest->streams[cost->stream];
        if (!stream->is_followed || ready_ns <= contest->known_ns) {
            stream->free_ns = ready_ns;
            sim_add_message_time(contest, stream->from, stream->to, cost->lag_ns);
            continue;
        }
        times->ready_ns[step + 1] = SIM_UNKNOWN;
        sim_stream_post(stream, (uint32_t)step, free_ns);
    }
}

bool
sim_contest_init(SimContest *contest, GError **error)
{
    const SimProgram *program = contest->program;
    const Schedule *schedule = program->schedule;
    const size_t n = (size_t)program->n_ops, n_ranks = (size_t)schedule->n_ranks;
    SimTimes *times = contest->times;

    if (!check_times(program, error))
        return false;
    sim_times_reset(times);
    times->followed = pages_try_malloc(MAX(n, 1), sizeof *times->followed);
    if (times->followed == NULL) {
        sim_fail_memory(error, program->n_ops, "times");
        return false; /* said here, since checkers of one file do not see that it always fails */
    }
    contest->dp_speed = program->n_pairs > 0 ? 1 : sim_speed_beside_dp(program->workload);
    sim_pairs_note_saved(program, times);
    contest->message_speed = 1.0 / (1.0 + program->workload->message_interference_fraction);
    contest->engine = sim_engine_new(sim_n_timers(contest));
    contest->now_ns = sim_engine_clock(contest->engine);
    contest->links = sim_links_new(contest->engine, sim_n_timers(contest),
                                   contest->network == NULL ? NULL : contest->network->bytes_per_s,
                                   contest->network == NULL ? 0 : contest->network->n_links);
    contest->ready = g_new(int32_t, n_ranks);
    init_streams(contest);
    if (contest->known_ns != SIM_FOLLOW_ALL && contest->network != NULL &&
        contest->message_speed == 1 && program->n_pairs == 0 &&
        !program->workload->blocking_messages)
        sim_rivals_init(&contest->rivals, program, contest->network);
    contest->runners = g_new0(SimRunner, n_ranks);
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++) {
        SimRunner *runner = &contest->runners[rank];
        *runner = (SimRunner){.rank = rank, .next = schedule->rank_begin[rank]};
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
        memset(times->ready_ns, 0xff, (n + 1) * sizeof *times->ready_ns); /* SIM_UNKNOWN */
        times->ready_ns[0] = 0;
    }
    return true;
}

void
sim_contest_clear(SimContest *contest)
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
