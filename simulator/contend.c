#include "simulator/contend.h"

#include <string.h>

#include "simulator/contest.h"
#include "simulator/pages.h"

static void
contest_clear(Contest *contest)
{
    const int32_t n = 1 + 2 * contest->program->schedule->n_ranks;

    g_clear_pointer(&contest->links, sim_links_free);
    g_clear_pointer(&contest->engine, sim_engine_free);
    for (int32_t i = 0; contest->streams != NULL && i < n; i++)
        g_clear_pointer(&contest->streams[i].queue, g_array_unref);
    g_free(contest->streams);
    g_free(contest->runners);
    g_free(contest->step_of);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Contest, contest_clear)

/* --- ops --- */

static bool segment_ends(SimEngine *engine, void *user_data, GError **error);
static bool message_is_received(SimEngine *engine, void *user_data, GError **error);
static void begin_op(Contest *contest, Runner *runner);

/* Starts the next op of @rank if the rank is free and the op's message is there. */
static void
try_rank(Contest *contest, int32_t rank)
{
    const SimProgram *program = contest->program;
    Runner *runner = &contest->runners[rank];

    if (runner->state != RUNNER_IDLE)
        return;
    if (runner->next == program->schedule->rank_begin[rank + 1]) {
        contest_finish_rank(contest, runner);
        return;
    }
    const uint32_t step = contest->step_of[runner->next];
    const uint32_t producer = program->steps[step].producer;
    if (contest->times->ready_ns[producer] == UNKNOWN)
        return;
    const SimCostDetail *detail = contest_detail(contest, step);
    runner->step = step;
    runner->next++;
    /* Steps of one rank are far apart: the next one's are on their way while this op runs. */
    if (runner->next < program->schedule->rank_begin[rank + 1]) {
        const uint32_t ahead = contest->step_of[runner->next];
        __builtin_prefetch(&program->steps[ahead]);
        __builtin_prefetch(&contest->times->followed[ahead], 1);
    }
    contest->times->followed[step].begin_ns = *contest->now_ns;
    if (detail->in.compute_ns == 0) {
        begin_op(contest, runner);
        return;
    }
    runner->state = RUNNER_RECEIVES;
    sim_flow_start(contest->links, &runner->flow, detail->in.ns,
                   contest_way(contest, sim_way_of_message(program->steps[producer - 1].cost)), 1,
                   message_is_received, runner);
}

static bool
message_is_received(SimEngine *engine, void *user_data, GError **error)
{
    Runner *runner = user_data;
    Contest *contest = runner->contest;
    const SimMessage *in = &contest_detail(contest, runner->step)->in;
    const int64_t ns = *contest->now_ns - contest->times->followed[runner->step].begin_ns;

    contest->times->extra[runner->rank].receive_ns += ns - in->ns;
    contest->times->extra[runner->rank].message_ns += ns;
    contest->times->extra[in->peer].message_ns += ns;
    begin_op(contest, runner);
    return true;
}

static void
begin_op(Contest *contest, Runner *runner)
{
    const SimBeside *beside = &contest->program->beside;

    contest->times->followed[runner->step].start_ns = *contest->now_ns;
    runner->special = NULL;
    runner->segment = 0;
    runner->n_segments = 1;
    if (beside->begin != NULL && runner->next_special < beside->begin[runner->rank + 1] &&
        beside->specials[runner->next_special].step == runner->step) {
        runner->special = &beside->specials[runner->next_special++];
        runner->n_segments = sim_n_buckets(&contest->program->workload->ranks[runner->rank]);
    }
    contest_start_segment(contest, runner);
}

void
contest_start_segment(Contest *contest, Runner *runner)
{
    const uint32_t cost = contest->program->steps[runner->step].cost;

    if (runner->special != NULL && runner->special->gathers &&
        runner->n_done <= contest_bucket(runner)) {
        runner->state = RUNNER_WAITS;
        runner->wait_since_ns = *contest->now_ns;
        return;
    }
    runner->state = RUNNER_COMPUTES;
    sim_flow_start(
        contest->links, &runner->flow,
        sim_share(contest->program->details[cost].op_ns, runner->n_segments, runner->segment),
        contest_way(contest, sim_way_of_op(cost)), contest_speed(contest, runner), segment_ends,
        runner);
}

static void send(Contest *contest, uint32_t step, const SimCostDetail *detail);
static void arrive(Contest *contest, uint32_t step);

static bool
rank_is_free(SimEngine *engine, void *user_data, GError **error)
{
    Runner *runner = user_data;
    Contest *contest = runner->contest;
    const int64_t now_ns = *contest->now_ns;
    SimFollowed *at = &contest->times->followed[runner->step];

    at->free_ns = now_ns;
    contest->times->free_ns[runner->rank] = now_ns;
    contest->times->extra[runner->rank].extra_ns +=
        now_ns - at->begin_ns -
        contest->program->costs[contest->program->steps[runner->step].cost].busy_ns;
    runner->state = RUNNER_IDLE;
    try_rank(contest, runner->rank);
    return true;
}

static bool
segment_ends(SimEngine *engine, void *user_data, GError **error)
{
    Runner *runner = user_data;
    Contest *contest = runner->contest;
    const uint32_t step = runner->step;
    const SimCostDetail *detail = contest_detail(contest, step);

    contest->times->extra[runner->rank].shared_ns += (int64_t)(runner->flow.shared_ns + 0.5);
    runner->state = RUNNER_SENDS; /* if no segment follows */
    if (runner->special != NULL && !runner->special->gathers)
        contest_queue_dp(contest, runner, 1);
    if (++runner->segment < runner->n_segments) {
        contest_start_segment(contest, runner);
        return true;
    }
    if (!contest->program->workload->blocking_messages && detail->out.ns > 0)
        send(contest, step, detail);
    else
        arrive(contest, step);
    if (detail->out.compute_ns == 0)
        return rank_is_free(engine, runner, error);
    sim_flow_start(contest->links, &runner->flow, detail->out.compute_ns,
                   (SimWay){.device_bytes_per_s = 1, .visible = 1}, 1, rank_is_free, runner);
    return true;
}

/* --- overlapped messages --- */

/* The message of @step is there. */
static void
arrive(Contest *contest, uint32_t step)
{
    const int32_t peer = contest_detail(contest, step)->out.peer;

    contest->times->ready_ns[step + 1] = *contest->now_ns;
    if (peer >= 0)
        try_rank(contest, peer);
}

/* One message more, or less, comes to or goes from both ends. */
static void
count_message(Contest *contest, const SimCostDetail *detail, int32_t change)
{
    Runner *ends[] = {&contest->runners[detail->rank], &contest->runners[detail->out.peer]};

    for (size_t i = 0; i < G_N_ELEMENTS(ends); i++) {
        ends[i]->n_messages += change;
        if (contest->message_speed < 1)
            contest_change_speed(contest, ends[i]);
    }
}

static bool message_arrives(SimEngine *engine, void *user_data, GError **error);

static void
start_message(Contest *contest, Stream *stream)
{
    const uint32_t step = g_array_index(stream->queue, uint32_t, stream->first);
    const uint32_t cost = contest->program->steps[step].cost;
    const SimCostDetail *detail = &contest->program->details[cost];

    stream->since_ns = *contest->now_ns;
    count_message(contest, detail, 1);
    sim_flow_start(contest->links, &stream->flow, detail->out.ns,
                   contest_way(contest, sim_way_of_message(cost)), 1, message_arrives, stream);
}

static bool
message_arrives(SimEngine *engine, void *user_data, GError **error)
{
    Stream *stream = user_data;
    Contest *contest = stream->contest;
    const uint32_t step = g_array_index(stream->queue, uint32_t, stream->first);
    const SimCostDetail *detail = contest_detail(contest, step);
    const int64_t ns = *contest->now_ns - stream->since_ns;

    contest->times->extra[detail->rank].message_ns += ns;
    contest->times->extra[detail->out.peer].message_ns += ns;
    count_message(contest, detail, -1);
    stream->first++;
    if (stream->first < stream->queue->len) {
        start_message(contest, stream);
    } else {
        stream->first = 0;
        g_array_set_size(stream->queue, 0);
    }
    arrive(contest, step);
    return true;
}

static void
send(Contest *contest, uint32_t step, const SimCostDetail *detail)
{
    Stream *stream =
        &contest->streams[sim_stream(contest->program, detail->rank, detail->out.peer)];

    if (stream->queue == NULL)
        stream->queue = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    g_array_append_val(stream->queue, step);
    if (stream->queue->len == 1)
        start_message(contest, stream);
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

static bool
contest_init(Contest *contest, GError **error)
{
    const SimProgram *program = contest->program;
    const Schedule *schedule = program->schedule;
    const size_t n = (size_t)program->n_ops, n_ranks = (size_t)schedule->n_ranks;
    SimTimes *times = contest->times;

    sim_times_reset(times);
    times->followed = sim_pages_try_malloc(MAX(n, 1), sizeof *times->followed);
    contest->step_of = sim_program_steps_in_order(program);
    if (times->followed == NULL || contest->step_of == NULL) {
        g_set_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_LIMIT,
                    "no memory for the times of %" G_GINT64_FORMAT " ops", program->n_ops);
        return false;
    }
    memset(times->ready_ns, 0xff, (n + 1) * sizeof *times->ready_ns); /* UNKNOWN */
    times->ready_ns[0] = 0;
    contest->dp_speed = sim_speed_beside_dp(program->workload);
    contest->message_speed = 1.0 / (1.0 + program->workload->message_interference_fraction);
    contest->engine = sim_engine_new();
    contest->now_ns = sim_engine_clock(contest->engine);
    contest->links = contest->network == NULL
                         ? sim_links_new(contest->engine, NULL, 0)
                         : sim_links_new(contest->engine, contest->network->bytes_per_s,
                                         contest->network->n_links);
    contest->streams = g_new0(Stream, 1 + 2 * n_ranks);
    for (size_t i = 0; i < 1 + 2 * n_ranks; i++)
        contest->streams[i].contest = contest;
    contest->runners = g_new0(Runner, n_ranks);
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++) {
        Runner *runner = &contest->runners[rank];
        *runner = (Runner){.contest = contest, .rank = rank, .next = schedule->rank_begin[rank]};
        if (program->beside.begin == NULL)
            continue;
        runner->next_special = program->beside.begin[rank];
        runner->n_gathers = sim_beside_n_chunks(&program->beside, rank, true);
        runner->n_reduces = sim_beside_n_chunks(&program->beside, rank, false);
    }
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
    }
    for (int32_t rank = 0; rank < program->schedule->n_ranks; rank++)
        try_rank(&contest, rank);
    /* The compiler has shown that the order of the ops is free of cycles, so this ends. */
    if (!sim_engine_run(contest.engine, 0, error))
        return false;
    sim_times_sort_pieces(times);
    return true;
}
