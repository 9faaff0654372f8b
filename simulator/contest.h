/*
 * simulator/contest.h - SimContest: the state of the event engine (contend.h), and how it begins.
 *
 * contend.c moves it on; contest.c makes it, from nothing or from what a sweep knows.
 *
 * Internal to simulator/.
 */
#pragma once

#include "simulator/network.h"
#include "simulator/pairs.h"
#include "simulator/rivals.h"

/* The message has not arrived yet. */
#define SIM_UNKNOWN INT64_C(-1)
/* None is asked about. */
#define SIM_NO_HAND INT64_MAX

/* What a rank's compute stream does. */
typedef enum {
    SIM_RUNNER_IDLE,     /* waits for a message, or has gone on as far as it could */
    SIM_RUNNER_BEGINS,   /* its next op, when the clock has come to it */
    SIM_RUNNER_RECEIVES, /* a blocking message */
    SIM_RUNNER_WAITS,    /* for parameters */
    SIM_RUNNER_COMPUTES, /* one segment of an op */
    SIM_RUNNER_SENDS,    /* waits for what the transport does not buffer */
    SIM_RUNNER_ENDS,     /* has run all its ops, when the clock has come to their end */
    SIM_RUNNER_FINISHES, /* no op is left */
} SimRunnerState;

/* A rank: its compute stream and its dp stream. */
typedef struct {
    int32_t rank;
    SimRunnerState state;
    bool is_ready;   /* stands in SimContest.ready */
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
} SimRunner;

/* A message that waits for its stream, from @at_ns on. */
typedef struct {
    int64_t at_ns;
    uint32_t step;
} SimPosted;

/* Overlapped messages from one rank to another. */
typedef struct {
    bool is_followed; /* some of its messages share links, or slow computing */
    bool is_sending;  /* followed: the first of the queue is under way */
    int64_t hand_ns;  /* when the message begins that is asked about; SIM_NO_HAND: none is */
    int64_t free_ns;  /* after the last message */
    int32_t from, to; /* ranks */
    SimPosted *queue; /* (owned, nullable) */
    int64_t first;    /* of the queue that is under way, or next */
    int64_t n, room;  /* all before n have been posted */
    int64_t since_ns;
} SimMessages;

typedef struct {
    const SimProgram *program; /* (borrowed) */
    const SimNetwork *network; /* (borrowed, nullable) */
    SimTimes *times;           /* (borrowed) */
    SimEngine *engine;         /* (owned) */
    const int64_t *now_ns;     /* (borrowed) its clock */
    SimLinks *links;           /* (owned) */
    SimRivals rivals;     /* of streams that are followed; empty where messages slow computing */
    SimRunner *runners;   /* (owned) [rank] */
    SimMessages *streams; /* (owned) [sim_stream()] */
    int32_t *ready;       /* (owned) [rank] ring of ranks that may go on, from first_ready on */
    int32_t first_ready, n_ready;
    double dp_speed, message_speed; /* of computing beside them */
    int64_t known_ns;               /* as sim_program_contend() has it */
} SimContest;

/* Numbers of timers and flows: of a rank's compute stream, of a stream of messages, of a rank's dp
 * stream. */
static inline int32_t
sim_compute_timer(int32_t rank)
{
    return rank;
}

static inline int32_t
sim_stream_timer(const SimContest *contest, int32_t stream)
{
    return contest->program->schedule->n_ranks + stream;
}

static inline int32_t
sim_dp_timer(const SimContest *contest, int32_t rank)
{
    return 3 * contest->program->schedule->n_ranks + 1 + rank;
}

static inline int32_t
sim_n_timers(const SimContest *contest)
{
    return 4 * contest->program->schedule->n_ranks + 1;
}

static inline const SimCostDetail *
sim_detail_of(const SimContest *contest, uint32_t step)
{
    return &contest->program->details[contest->program->steps[step].cost];
}

static inline const SimRoute *
sim_route(const SimContest *contest, int64_t route)
{
    static const SimRoute alone = {.device_bytes_per_s = 1, .visible = 1};

    return contest->network == NULL ? &alone : &contest->network->routes[route];
}

/* Whether what takes @route may meet others on a link. */
static inline bool
sim_crosses(const SimContest *contest, int64_t route)
{
    return contest->network != NULL && contest->network->routes[route].n_crossed > 0;
}

/* A message between two ranks was under way for @ns. */
static inline void
sim_add_message_time(SimContest *contest, int32_t from, int32_t to, int64_t ns)
{
    contest->times->extra[from].message_ns += ns;
    contest->times->extra[to].message_ns += ns;
}

/* Puts the message of @step, which is there at @at_ns, behind the last of the queue. */
void sim_stream_post(SimMessages *stream, uint32_t step, int64_t at_ns);

/*
 * Fills @contest, whose program, network, times and known_ns are set: at time 0, no rank has run an
 * op, unless the times of a sweep hold until known_ns.  Then ops that begin before that have run, and
 * messages that arrive after it wait in their queues.
 * Returns false on SCHEDULE_ERROR_LIMIT: no memory, or times that the engine cannot follow.
 */
bool sim_contest_init(SimContest *contest, GError **error);
void sim_contest_clear(SimContest *contest);
