#include "simulator/contest.h"
#include "simulator/pairs.h"

/* What the op of @step, none before the rank's next one, has beside it; NULL: nothing. */
const SimSpecial *
contest_special(const Contest *contest, Runner *runner, uint32_t step)
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

/* Whether nothing that happens elsewhere can change how long the op of @step takes, from its
 * blocking message on; or the @pair (nullable) whose first it is. */
static inline bool
is_alone(const Contest *contest, Runner *runner, uint32_t step, const SimPairKind *pair)
{
    const SimProgram *program = contest->program;
    const SimStep s = program->steps[step];

    if (contest->message_speed < 1 || (contest->dp_speed < 1 && contest_dp_works(runner)) ||
        contest_special(contest, runner, step) != NULL)
        return false;
    if (pair != NULL)
        return !contest_crosses(contest, sim_route_of_pair(program, pair)) &&
               contest_special(contest, runner, step + 1) == NULL;
    return !contest_crosses(contest, sim_route_of_op(s.cost)) &&
           !(program->workload->blocking_messages && program->details[s.cost].in.compute_ns > 0 &&
             contest_crosses(contest, sim_route_of_message(program->steps[s.producer - 1].cost)));
}

/* Runs an op that is alone, from @begin_ns on, which may lie ahead of the clock. */
static void
run_alone(Contest *contest, Runner *runner, uint32_t step, int64_t begin_ns)
{
    const SimCost *cost = &contest->program->costs[contest->program->steps[step].cost];
    const SimCostDetail *detail = contest_detail(contest, step);

    /* Most ops: nothing blocks, and what is sent goes on a stream. */
    if (cost->stream != 0) {
        runner->free_ns = begin_ns + cost->busy_ns;
        contest->times->followed[step] = (SimFollowed){begin_ns, begin_ns, runner->free_ns};
        contest_post(contest, &contest->streams[cost->stream], step, cost->lag_ns, runner->free_ns);
        return;
    }
    const int64_t start_ns = begin_ns + detail->in.compute_ns;
    const int64_t end_ns = start_ns + detail->op_ns;

    runner->free_ns = end_ns + detail->out.compute_ns;
    contest->times->followed[step] = (SimFollowed){begin_ns, start_ns, runner->free_ns};
    if (detail->in.compute_ns > 0)
        contest_add_message_time(contest, runner->rank, detail->in.peer, detail->in.ns);
    contest_op_ends(contest, step, detail, end_ns);
}

/* Likewise a pair. */
static void
run_pair_alone(Contest *contest, Runner *runner, uint32_t step, const SimPairKind *pair,
               int64_t begin_ns)
{
    const SimCostDetail *first = contest_detail(contest, step);
    const int64_t middle_ns = begin_ns + first->op_ns - pair->first_saved_ns;

    runner->free_ns = begin_ns + pair->ns;
    contest->times->followed[step] = (SimFollowed){begin_ns, begin_ns, middle_ns};
    contest->times->followed[step + 1] = (SimFollowed){middle_ns, middle_ns, runner->free_ns};
    contest_op_ends(contest, step, first, runner->free_ns);
    contest_op_ends(contest, step + 1, contest_detail(contest, step + 1), runner->free_ns);
}

/* Ends the rank's ops, or waits for the clock to do so. */
static void
end_ops(Contest *contest, Runner *runner)
{
    contest->times->free_ns[runner->rank] = runner->free_ns;
    if (runner->free_ns <= *contest->now_ns) {
        contest_finish_rank(contest, runner);
        return;
    }
    runner->state = RUNNER_ENDS;
    sim_engine_set(contest->engine, contest_compute_timer(runner->rank), runner->free_ns);
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

/*
 * Lets the rank go on as far as it can without the clock.  What it does there concerns nobody who
 * shares a link: those things begin in the order of the clock, and all that can begin before the
 * next timer goes off is known before it does, since what is unknown depends on a timer.
 */
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
            sim_engine_set(contest->engine, contest_compute_timer(runner->rank), begin_ns);
        else
            contest_begin_op(contest, runner);
    }
    if (runner->state == RUNNER_IDLE)
        end_ops(contest, runner);
}

/* All ranks that may go on do. */
void
contest_go_on(Contest *contest)
{
    while (contest->n_ready > 0) {
        Runner *runner = &contest->runners[contest->ready[--contest->n_ready]];
        runner->is_ready = false;
        go_on(contest, runner);
    }
}
