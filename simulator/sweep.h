/*
 * simulator/sweep.h - when every step of a SimProgram happens, found in one pass over its steps.
 *
 * One formula for both kinds of messages: a step begins when its rank is free and its message is
 * ready, keeps the compute stream busy for busy_ns, and its own message is ready lag_ns after that.
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
 * Internal to simulator/.
 */
#pragma once

#include "simulator/program.h"

/* An op that took longer than its cost says, and by how much. */
typedef struct {
    uint32_t step;
    int64_t extra_ns;
} SimLonger;

/* When one step used its compute stream, where steps were followed event by event. */
typedef struct {
    int64_t begin_ns, start_ns, free_ns; /* as SimOpTimes */
} SimFollowed;

/* The time that the ops of one rank took beyond their costs, and why. */
typedef struct {
    int64_t extra_ns;   /* all of it */
    int64_t wait_ns;    /* of it, waiting for parameters */
    int64_t receive_ns; /* of it, because blocking messages shared links */
    int64_t shared_ns;  /* of it, because collectives inside ops did */
    int64_t message_ns; /* for how long messages went in and out; where followed */
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

/* Room for the times of @program.  Returns false on SCHEDULE_ERROR_LIMIT. */
bool sim_times_init(SimTimes *times, const SimProgram *program, GError **error);
void sim_times_clear(SimTimes *times);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(SimTimes, sim_times_clear)

/* Fills @times as if no link were shared (sweep.c).  Cost: O(ops), 24 bytes of memory traffic and 1
 * to 3 ns each. */
void sim_program_sweep(const SimProgram *program, SimTimes *times);

/* Forgets what a sweep has found, and keeps the memory. */
void sim_times_reset(SimTimes *times);

/* Sorts times->pieces by rank and number. */
void sim_times_sort_pieces(SimTimes *times);

/* The recurrence above, which every sweep runs: over fixed times, over pairs, over varied times.
 * What they differ in is how long the rank is busy with a step, and how long its message takes. */
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

/* Returns: what @step took beyond its cost, ns; 0 for most steps.  Cost: O(log of those that did).
 */
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
