#include "simulator/contest.h"

/* --- the dp stream --- */

static void go_on_after_dp(Contest *contest, Runner *runner);

/* The @number-th collective of a rank: gathered ahead first, then reduced behind, then what follows
 * the ops. */
static SimPiece
dp_piece(const Contest *contest, const Runner *runner, int64_t number, int64_t *ns)
{
    const WorkloadRank *work = &contest->program->workload->ranks[runner->rank];
    const int64_t n = sim_n_buckets(work);
    const int64_t n_ahead = n * runner->n_gathers, n_behind = n * runner->n_reduces;
    const bool reduces_at_end =
        n_behind == 0 && (work->dp_reduce_ns > 0 || work->dp_reduce_bytes > 0);
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
    sim_flow_start(contest->links, contest_dp_timer(contest, runner->rank), ns,
                   contest_route(contest, sim_route_of_dp(contest->program, runner->rank, gathers)),
                   1);
}

void
contest_queue_dp(Contest *contest, Runner *runner, int64_t n)
{
    const bool was_idle = runner->n_done == runner->n_queued;

    runner->n_queued += n;
    if (!was_idle || n == 0)
        return;
    start_piece(contest, runner);
    contest_change_speed(contest, runner);
}

void
contest_end_dp(Contest *contest, Runner *runner)
{
    int64_t ns;
    SimPiece piece = dp_piece(contest, runner, runner->n_done, &ns);

    sim_flow_end(contest->links, contest_dp_timer(contest, runner->rank));
    piece.start_ns = runner->dp_since_ns;
    piece.end_ns = *contest->now_ns;
    g_array_append_val(contest->times->pieces, piece);
    runner->n_done++;
    if (runner->n_done < runner->n_queued)
        start_piece(contest, runner);
    else
        contest_change_speed(contest, runner);
    go_on_after_dp(contest, runner);
}

/* --- after the last op --- */

void
contest_end_optimizer(Contest *contest, Runner *runner)
{
    const WorkloadRank *work = &contest->program->workload->ranks[runner->rank];
    SimFinish *finish = &contest->times->finish[runner->rank];

    finish->optimizer_end_ns = finish->end_ns = *contest->now_ns;
    if ((work->dp_gather_ns > 0 || work->dp_gather_bytes > 0) && runner->n_gathers == 0)
        contest_queue_dp(contest, runner, 1);
}

void
contest_finish_rank(Contest *contest, Runner *runner)
{
    const WorkloadRank *work = &contest->program->workload->ranks[runner->rank];

    runner->state = RUNNER_FINISHES;
    contest->times->finish[runner->rank] = (SimFinish){
        .free_ns = *contest->now_ns,
        .optimizer_start_ns = UNKNOWN,
        .optimizer_end_ns = UNKNOWN,
    };
    if ((work->dp_reduce_ns > 0 || work->dp_reduce_bytes > 0) && runner->n_reduces == 0)
        contest_queue_dp(contest, runner, 1);
    go_on_after_dp(contest, runner);
}

/* Whoever waits for the dp stream goes on if it has what it waits for. */
static void
go_on_after_dp(Contest *contest, Runner *runner)
{
    SimFinish *finish = &contest->times->finish[runner->rank];
    const int64_t now_ns = *contest->now_ns;

    if (runner->state == RUNNER_WAITS && runner->n_done > contest_bucket(runner)) {
        contest->times->extra[runner->rank].wait_ns += now_ns - runner->wait_since_ns;
        contest_start_segment(contest, runner);
    }
    if (runner->state != RUNNER_FINISHES || runner->n_done < runner->n_queued)
        return;
    if (finish->optimizer_start_ns == UNKNOWN) {
        finish->optimizer_start_ns = now_ns;
        sim_engine_set(contest->engine, contest_compute_timer(runner->rank),
                       now_ns + contest->program->workload->ranks[runner->rank].optimizer_ns);
    } else if (finish->optimizer_end_ns != UNKNOWN) {
        finish->end_ns = now_ns;
    }
}
