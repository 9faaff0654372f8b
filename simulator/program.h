/*
 * simulator/program.h - SimProgram: a Schedule and a Workload compiled for the sweep.
 *
 * Ops are renumbered in topological order ("steps"), so that one pass over one array computes all
 * times; what an op costs is an index into a small table, because the ops of one (stage, class,
 * slice, kind) cost the same.  Internal to simulator/ (simulate.h is the public face).
 *
 * The sweep, both kinds of messages in one formula: a step begins when its rank is free and its
 * message is ready, keeps the compute stream busy for busy_ns, and its own message is ready lag_ns
 * after that.
 *
 *   begin = max(free(rank), ready(producer));  free = begin + busy;  ready = free + lag
 *   overlapped: busy = op, lag = message (it travels on streams of its own)
 *   blocking:   busy = receive + op + send, lag = -send (ready when the op ends; a send lasts as
 *               long as the sender waits: without what the transport buffers)
 *
 * Messages of one rank to another go one after the other, on a stream of their own.  Two at once
 * would share its links: then the sweep's times do not hold, and contend.h takes over.  (Messages
 * of a Workload without links are mere delays.)
 *
 * Data-parallel communication beside ops: finish.h; few ops are concerned, and the sweep goes fast
 * over the others.
 *
 * An op of time_ns takes time_ns + op_overhead_ns.  The message of F goes to the next stage, that
 * of B and I to the stage before, unless that stage lies on the same rank.
 *
 * Limits: the sum of everything that every rank does stays below SIM_MAX_NS, so no sum of times
 * overflows.
 *
 * Thread-safety: immutable once built.
 */
#ifndef SIMULATOR_PROGRAM_H
#define SIMULATOR_PROGRAM_H

#include "profiles/workload/workload.h"
#include "schedule/trace.h"
#include "simulator/finish.h"

G_BEGIN_DECLS

/* 146 years: half of what int64_t holds. */
#define SIM_MAX_NS (INT64_MAX / 2)

/* ScheduleOpKind, and an I whose unit has no W: it takes the time of an I and ends the unit. */
enum {
    SIM_KIND_LONE_INPUT = SCHEDULE_OP_N,
    SIM_KIND_N
};

/* One op in topological order. */
typedef struct {
    uint32_t producer; /* 1 + step of the op whose message it needs; 0: none */
    uint32_t cost;     /* index into SimProgram.costs */
} SimStep;

typedef struct {
    int64_t busy_ns, lag_ns; /* see above */
    int32_t rank;            /* where ops of this cost are */
    int32_t stream;          /* of sim_stream(), that their messages leave on; 0: none */
} SimCost;

/* A message between ranks; all 0 where there is none. */
typedef struct {
    int64_t ns, bytes;
    int64_t compute_ns; /* of ns: how long it occupies the compute stream; 0 when overlapped */
    bool exists;        /* a neighbour on another rank, and ns or bytes to send */
    int32_t peer;       /* the other rank */
} SimMessage;

/* What SimCost adds up. */
typedef struct {
    int64_t op_ns;
    SimMessage in, out; /* what the op needs, what it sends */
    int32_t rank;       /* where ops of this cost are */
} SimCostDetail;

/* Two costs whose ops run overlapped: what the pair takes, and by how much each is shorter in it
 * than alone. */
typedef struct {
    uint32_t first, second;
    int64_t ns, first_saved_ns, second_saved_ns;
} SimPairKind;

struct SimProgram {
    const Schedule *schedule; /* (borrowed) */
    const Workload *workload; /* (borrowed) */
    int64_t n_ops;
    SimStep *steps;         /* (owned) [step] */
    uint32_t *step_of;      /* (owned) [index into schedule->ops] */
    int64_t n_costs;        /* chains * stages * classes * slices * SIM_KIND_N */
    SimCost *costs;         /* (owned) [cost] */
    SimCostDetail *details; /* (owned) [cost] */
    int64_t *counts;        /* (owned) [cost] number of ops */
    /* (owned, nullable) [index into schedule->ops] of its workspace beyond that of its cost: what
     * is gathered ahead for later ops [ahead.h]; NULL: none */
    int64_t *ahead_bytes;
    int32_t *in_flight; /* (owned) [rank] largest number of units in flight */
    int64_t *first;     /* (owned) [rank] step of its first op, or -1 */
    uint32_t *pairs;    /* (owned, nullable) ascending: the first step of each overlapped pair;
                           the second is the next step  [pairs.h] */
    int64_t n_pairs;
    /* Distinct pairs of costs, and of which kind each pair is [pairs.h]. */
    SimPairKind *pair_kinds; /* (owned, nullable) [n_pair_kinds] */
    int32_t *kind_of_pair;   /* (owned, nullable) [n_pairs] */
    int32_t n_pair_kinds;
    /* (owned) [rank * n_chunks + chunk] steps of its first F and of its last op that is no F, or -1
     */
    int64_t *first_forward, *last_backward;
    SimBeside beside;
};

/* An op that took longer than its cost says. */
typedef struct {
    uint32_t step;
    int64_t extra_ns;
} SimLonger;

/* Compute stream of one step, if it was followed event by event. */
typedef struct {
    int64_t begin_ns, start_ns, free_ns; /* as SimOpTimes */
} SimFollowed;

/* Of one rank: what its ops took beyond their costs, and for what. */
typedef struct {
    int64_t extra_ns;   /* all of it */
    int64_t wait_ns;    /* of it, waiting for parameters */
    int64_t receive_ns; /* of it, because blocking messages shared links */
    int64_t shared_ns;  /* of it, because collectives inside ops did */
    int64_t message_ns; /* messages in and out were under way; where followed */
} SimExtra;

/* When everything happens: filled by a sweep (or by an engine that follows links). */
typedef struct {
    int64_t *ready_ns;     /* (owned) [1 + step]; [0] is before everything */
    int64_t *free_ns;      /* (owned) [rank] after its last op */
    SimFinish *finish;     /* (owned) [rank] */
    SimExtra *extra;       /* (owned) [rank] */
    GArray *pieces;        /* of SimPiece, by rank and number */
    GArray *longer;        /* of SimLonger, steps ascend; none where followed */
    SimFollowed *followed; /* (owned, nullable) [step] */
    /* With overlapped pairs only [pairs.h]; else NULL: */
    int64_t *free_of_step_ns; /* (owned, nullable) [step] when the rank is free after it */
    int64_t *saved_ns;        /* (owned, nullable) [step] by how much it is shorter than alone */
    int32_t n_ranks;
    bool meets; /* the sweep has seen two messages on one stream at once */
} SimTimes;

/*
 * Compiles.  @schedule and @workload outlive the program.
 * Returns NULL on SCHEDULE_ERROR_INCOMPLETE or _DEADLOCK (the schedule cannot run), _SHAPE
 * (@workload is made for another shape) or _LIMIT (times negative or beyond int64_t, no memory).
 * Cost: O(ops + costs).
 */
SimProgram *sim_program_new(const Schedule *schedule, const Workload *workload, GError **error);
void sim_program_free(SimProgram *program);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(SimProgram, sim_program_free)

/* Sets SCHEDULE_ERROR_LIMIT: there is no memory for @n of @what, and how much there is.  Returns:
 * false. */
bool sim_fail_memory(GError **error, int64_t n, const char *what);

/* Room for the times of @program.  Returns false on SCHEDULE_ERROR_LIMIT. */
bool sim_times_init(SimTimes *times, const SimProgram *program, GError **error);
void sim_times_clear(SimTimes *times);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(SimTimes, sim_times_clear)

/* Fills @times as if no link were shared (sweep.c).  Cost: O(ops), 24 bytes of memory traffic and 1
 * to 3 ns each. */
void sim_program_sweep(const SimProgram *program, SimTimes *times);

/* Forgets what a sweep has found but for the room. */
void sim_times_reset(SimTimes *times);

/* Puts pieces into their order. */
void sim_times_sort_pieces(SimTimes *times);

/* Streams of messages: 1 + 2 rank to the next rank, 2 + 2 rank to the one before; 0 is none. */
static inline int32_t
sim_stream(const SimProgram *program, int32_t from, int32_t to)
{
    return 1 + 2 * from + (to != (from + 1) % program->schedule->n_ranks);
}

/* The WorkloadOp that ops of @cost are priced by. */
static inline const WorkloadOp *
sim_program_workload_op(const SimProgram *program, int64_t cost)
{
    return &program->workload->ops[cost / SIM_KIND_N];
}

/*
 * The recurrence above, which every sweep runs: over fixed times, over pairs, over varied times.
 * What they differ in is how long the rank is busy with a step, and how long its message takes.
 */
typedef struct {
    int64_t *ready_ns; /* (borrowed) as in SimTimes */
    int64_t *free_ns;  /* (borrowed) [rank] after what it has run so far */
    int64_t *sent_ns;  /* (borrowed, nullable) [sim_stream()] when its last message arrived */
} SimClock;

/* When a step of @rank begins that needs the message of @producer (as SimStep has it). */
static inline int64_t
sim_clock_begin(SimClock clock, uint32_t producer, int32_t rank)
{
    const int64_t message_ns = clock.ready_ns[producer], free_ns = clock.free_ns[rank];

    return message_ns > free_ns ? message_ns : free_ns;
}

/*
 * @step leaves @rank free at @free_ns, and its message arrives @lag_ns later, on @stream (0: none).
 * Returns whether the message before it on that stream is still under way.
 */
static inline bool
sim_clock_end(SimClock clock, int64_t step, int32_t rank, int32_t stream, int64_t free_ns,
              int64_t lag_ns)
{
    clock.free_ns[rank] = free_ns;
    clock.ready_ns[step + 1] = free_ns + lag_ns;
    if (clock.sent_ns == NULL || stream == 0)
        return false;
    const bool meets = clock.sent_ns[stream] > free_ns;
    clock.sent_ns[stream] = free_ns + lag_ns;
    return meets;
}

/* When what the op of a step does happens on its compute stream. */
typedef struct {
    int64_t begin_ns;         /* of the blocking receive, if there is one */
    int64_t start_ns, end_ns; /* of the op */
    int64_t free_ns;          /* after the blocking send, if there is one */
} SimOpTimes;

/* What @step took beyond its cost: few steps did. */
int64_t sim_times_extra(const SimTimes *times, uint32_t step);

static inline SimOpTimes
sim_times_step(const SimTimes *times, const SimProgram *program, uint32_t step)
{
    const uint32_t cost = program->steps[step].cost;
    const SimCostDetail *detail = &program->details[cost];

    if (times->followed != NULL)
        return (SimOpTimes){
            .begin_ns = times->followed[step].begin_ns,
            .start_ns = times->followed[step].start_ns,
            .end_ns = times->followed[step].free_ns - detail->out.compute_ns,
            .free_ns = times->followed[step].free_ns,
        };
    const int64_t extra_ns = times->saved_ns != NULL   ? -times->saved_ns[step]
                             : times->longer->len == 0 ? 0
                                                       : sim_times_extra(times, step);
    const int64_t free_ns = times->free_of_step_ns != NULL
                                ? times->free_of_step_ns[step]
                                : times->ready_ns[step + 1] - program->costs[cost].lag_ns;
    const int64_t begin_ns = free_ns - program->costs[cost].busy_ns - extra_ns;

    return (SimOpTimes){
        .begin_ns = begin_ns,
        .start_ns = begin_ns + detail->in.compute_ns,
        .end_ns = free_ns - detail->out.compute_ns,
        .free_ns = free_ns,
    };
}

G_END_DECLS

#endif /* SIMULATOR_PROGRAM_H */
