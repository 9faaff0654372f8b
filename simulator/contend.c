#include "simulator/contend.h"

#include <math.h>
#include <string.h>

#include "simulator/pages.h"
#include "simulator/resource.h"

/* The message has not arrived yet. */
#define UNKNOWN INT64_C(-1)

typedef struct Contest Contest;

/* A rank and what it does. */
typedef struct {
    Contest *contest; /* (borrowed) */
    int32_t rank;
    bool busy;
    uint32_t step; /* running, or run last */
    int64_t next;  /* index into schedule->ops of its next op */
} Runner;

/* A message under way. */
typedef struct {
    Contest *contest; /* (borrowed) */
    uint32_t step;    /* that sent it */
} Letter;

struct Contest {
    const SimProgram *program;   /* (borrowed) */
    const SimTopology *topology; /* (borrowed) */
    SimTimes *times;             /* (borrowed) */
    SimEngine *engine;           /* (owned) */
    SimLinks *links;             /* (owned) */
    Runner *runners;             /* (owned) [rank] */
    uint32_t *step_of;           /* (owned) [index into schedule->ops] */
    GPtrArray *letters;          /* of (owned) Letter: all */
    GPtrArray *idle;             /* of (borrowed) Letter: those that can be used again */
};

static void
contest_clear(Contest *contest)
{
    g_clear_pointer(&contest->links, sim_links_free);
    g_clear_pointer(&contest->engine, sim_engine_free);
    g_free(contest->runners);
    g_free(contest->step_of);
    g_clear_pointer(&contest->letters, g_ptr_array_unref);
    g_clear_pointer(&contest->idle, g_ptr_array_unref);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Contest, contest_clear)

/* --- links --- */

/* Numbers of links: rank r's port out 4 r, in 4 r + 1; node k's way out 4 k + 2, in 4 k + 3. */
static int32_t
way_of(const Contest *contest, int32_t from, int32_t to, int32_t crossed[SIM_FLOW_MAX_LINKS])
{
    const int32_t *node = contest->topology->node;

    crossed[0] = 4 * from;
    crossed[1] = 4 * to + 1;
    if (node == NULL || node[from] == node[to])
        return 2;
    crossed[2] = 4 * node[from] + 2;
    crossed[3] = 4 * node[to] + 3;
    return 4;
}

static bool
check_topology(const SimProgram *program, const SimTopology *topology, GError **error)
{
    const int32_t n_ranks = program->schedule->n_ranks;

    if (!(topology->port_capacity >= 0) || !(topology->node_capacity >= 0)) {
        g_set_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_SHAPE,
                    "the topology's capacities are not all 0 or more");
        return false;
    }
    for (int32_t rank = 0; topology->node != NULL && rank < n_ranks; rank++)
        if (topology->node[rank] < 0 || topology->node[rank] >= n_ranks) {
            g_set_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_SHAPE,
                        "rank %d is on node %d, which is not among the first %d", rank,
                        topology->node[rank], n_ranks);
            return false;
        }
    return true;
}

/*
 * At any time an op runs or messages get on by at least the smallest capacity together, so the
 * iteration is no longer than all ops and all messages one after the other at that capacity.
 */
static bool
check_sum(const SimProgram *program, const SimTopology *topology, GError **error)
{
    double slowest = 1, sum_ns = 0;

    if (topology->port_capacity > 0)
        slowest = MIN(slowest, topology->port_capacity);
    if (topology->node_capacity > 0)
        slowest = MIN(slowest, topology->node_capacity);
    for (int64_t cost = 0; cost < program->n_costs; cost++) {
        const SimCostDetail *detail = &program->details[cost];
        if (program->counts[cost] == 0)
            continue;
        sum_ns += (double)program->counts[cost] * ((double)detail->out.ns / slowest);
        if (detail->out.ns > SIM_FLOW_MAX_NS || !(sum_ns < (double)SIM_MAX_NS / 2)) {
            g_set_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_LIMIT,
                        "workload: messages could take longer than 73 years on shared links");
            return false;
        }
    }
    return true;
}

static SimLinks *
links_new(const Contest *contest)
{
    const int32_t n = contest->program->schedule->n_ranks;
    const SimTopology *t = contest->topology;
    g_autofree double *capacity = g_new(double, 4 * (size_t)n);

    for (int32_t i = 0; i < 4 * n; i++) {
        const double own = i % 4 < 2 ? t->port_capacity : t->node_capacity;
        capacity[i] = own > 0 ? own : (double)INFINITY;
    }
    return sim_links_new(contest->engine, capacity, 4 * n);
}

/* --- events --- */

static bool op_ends(SimEngine *engine, void *user_data, GError **error);

/* Starts the next op of @rank if the rank is free and the op's message is there. */
static void
try_rank(Contest *contest, int32_t rank)
{
    const SimProgram *program = contest->program;
    Runner *runner = &contest->runners[rank];

    if (runner->busy || runner->next == program->schedule->rank_begin[rank + 1])
        return;
    const uint32_t step = contest->step_of[runner->next];
    if (contest->times->ready_ns[program->steps[step].producer] == UNKNOWN)
        return;
    const SimCostDetail *detail = &program->details[program->steps[step].cost];
    runner->busy = true;
    runner->step = step;
    runner->next++;
    sim_engine_add(contest->engine,
                   sim_engine_now_ns(contest->engine) + detail->in.compute_ns + detail->op_ns,
                   op_ends, runner);
}

/* The message of @step is there. */
static void
arrive(Contest *contest, uint32_t step)
{
    const SimProgram *program = contest->program;
    const int32_t peer = program->details[program->steps[step].cost].out.peer;

    contest->times->ready_ns[step + 1] = sim_engine_now_ns(contest->engine);
    if (peer >= 0)
        try_rank(contest, peer);
}

static bool
letter_arrives(SimEngine *engine, void *user_data, GError **error)
{
    Letter *letter = user_data;

    g_ptr_array_add(letter->contest->idle, letter);
    arrive(letter->contest, letter->step);
    return true;
}

static void
send(Contest *contest, uint32_t step, const SimCostDetail *detail)
{
    int32_t crossed[SIM_FLOW_MAX_LINKS];
    Letter *letter;

    if (contest->idle->len > 0) {
        letter = g_ptr_array_steal_index_fast(contest->idle, contest->idle->len - 1);
    } else {
        letter = g_new(Letter, 1);
        g_ptr_array_add(contest->letters, letter);
    }
    *letter = (Letter){contest, step};
    const int32_t n = way_of(contest, detail->rank, detail->out.peer, crossed);
    sim_links_start(contest->links, detail->out.ns, crossed, n, letter_arrives, letter);
}

static bool
rank_is_free(SimEngine *engine, void *user_data, GError **error)
{
    Runner *runner = user_data;
    Contest *contest = runner->contest;
    const int64_t now_ns = sim_engine_now_ns(engine);

    contest->times->free_of_step_ns[runner->step] = now_ns;
    contest->times->free_ns[runner->rank] = now_ns;
    runner->busy = false;
    try_rank(contest, runner->rank);
    return true;
}

static bool
op_ends(SimEngine *engine, void *user_data, GError **error)
{
    Runner *runner = user_data;
    Contest *contest = runner->contest;
    const uint32_t step = runner->step;
    const SimCostDetail *detail = &contest->program->details[contest->program->steps[step].cost];
    const bool blocking = contest->program->workload->blocking_messages;

    if (!blocking && detail->out.ns > 0)
        send(contest, step, detail);
    else
        arrive(contest, step);
    if (detail->out.compute_ns == 0)
        return rank_is_free(engine, runner, error);
    sim_engine_add(engine, sim_engine_now_ns(engine) + detail->out.compute_ns, rank_is_free,
                   runner);
    return true;
}

/* --- all --- */

static bool
contest_init(Contest *contest, GError **error)
{
    const SimProgram *program = contest->program;
    const Schedule *schedule = program->schedule;
    const size_t n = (size_t)program->n_ops;
    SimTimes *times = contest->times;

    times->free_of_step_ns = sim_pages_try_malloc(MAX(n, 1), sizeof *times->free_of_step_ns);
    contest->step_of = sim_program_steps_in_order(program);
    if (times->free_of_step_ns == NULL || contest->step_of == NULL) {
        g_set_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_LIMIT,
                    "no memory for the times of %" G_GINT64_FORMAT " ops", program->n_ops);
        return false;
    }
    memset(times->ready_ns, 0xff, (n + 1) * sizeof *times->ready_ns); /* UNKNOWN */
    times->ready_ns[0] = 0;
    contest->engine = sim_engine_new();
    contest->links = links_new(contest);
    contest->letters = g_ptr_array_new_with_free_func(g_free);
    contest->idle = g_ptr_array_new();
    contest->runners = g_new0(Runner, (size_t)schedule->n_ranks);
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++)
        contest->runners[rank] =
            (Runner){.contest = contest, .rank = rank, .next = schedule->rank_begin[rank]};
    return true;
}

bool
sim_program_contend(const SimProgram *program, const SimTopology *topology, SimTimes *times,
                    GError **error)
{
    g_auto(Contest) contest = {.program = program, .topology = topology, .times = times};

    if (!check_topology(program, topology, error) || !check_sum(program, topology, error) ||
        !contest_init(&contest, error))
        return false;
    for (int32_t rank = 0; rank < program->schedule->n_ranks; rank++)
        try_rank(&contest, rank);
    /* Each op ends, is followed by a free rank, and sends a message whose flow is looked at again
     * when it was slowed: the compiler has shown that the order of the ops is free of cycles. */
    return sim_engine_run(contest.engine, 0, error);
}
