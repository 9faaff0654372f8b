/*
 * simulator/contest.h - what contend.c, contend_ahead.c and contend_dp.c share: the state of one
 * run of the engine over a SimProgram.  Internal to those.
 */
#ifndef SIMULATOR_CONTEST_H
#define SIMULATOR_CONTEST_H

#include "simulator/contend.h"

G_BEGIN_DECLS

/* The message has not arrived yet. */
#define UNKNOWN INT64_C(-1)

typedef struct Contest Contest;

/* What a rank's compute stream does. */
typedef enum {
    RUNNER_IDLE,     /* waits for a message, or has gone on as far as it could */
    RUNNER_BEGINS,   /* its next op, when the clock has come to it */
    RUNNER_RECEIVES, /* a blocking message */
    RUNNER_WAITS,    /* for parameters */
    RUNNER_COMPUTES, /* one segment of an op */
    RUNNER_SENDS,    /* waits for what the transport does not buffer */
    RUNNER_ENDS,     /* has run all its ops, when the clock has come to their end */
    RUNNER_FINISHES, /* no op is left */
} RunnerState;

/* A rank: its compute stream and its dp stream. */
typedef struct {
    int32_t rank;
    RunnerState state;
    bool is_ready;   /* stands in Contest.ready */
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
} Runner;

/* A message that waits for its stream, from @at_ns on. */
typedef struct {
    int64_t at_ns;
    uint32_t step;
} Posted;

/* Overlapped messages from one rank to another. */
typedef struct {
    bool is_followed; /* some of its messages share links, or slow computing */
    bool is_sending;  /* followed: the first of the queue is under way */
    int64_t free_ns;  /* not followed: after the last message */
    int32_t from, to; /* ranks */
    Posted *queue;    /* (owned, nullable) */
    int64_t first;    /* of the queue that is under way, or next */
    int64_t n, room;  /* all before n have been posted */
    int64_t since_ns;
} Stream;

struct Contest {
    const SimProgram *program; /* (borrowed) */
    const SimNetwork *network; /* (borrowed, nullable) */
    SimTimes *times;           /* (borrowed) */
    SimEngine *engine;         /* (owned) */
    const int64_t *now_ns;     /* (borrowed) its clock */
    SimLinks *links;           /* (owned) */
    Runner *runners;           /* (owned) [rank] */
    Stream *streams;           /* (owned) [sim_stream()] */
    int32_t *ready;            /* (owned) stack of ranks that may go on */
    int32_t n_ready;
    double dp_speed, message_speed; /* of computing beside them */
};

/* Numbers of timers and flows: of a rank's compute stream, of a stream of messages, of a rank's dp
 * stream. */
static inline int32_t
contest_compute_timer(int32_t rank)
{
    return rank;
}

static inline int32_t
contest_stream_timer(const Contest *contest, int32_t stream)
{
    return contest->program->schedule->n_ranks + stream;
}

static inline int32_t
contest_dp_timer(const Contest *contest, int32_t rank)
{
    return 3 * contest->program->schedule->n_ranks + 1 + rank;
}

static inline int32_t
contest_n_timers(const Contest *contest)
{
    return 4 * contest->program->schedule->n_ranks + 1;
}

static inline const SimCostDetail *
contest_detail(const Contest *contest, uint32_t step)
{
    return &contest->program->details[contest->program->steps[step].cost];
}

static inline const SimRoute *
contest_route(const Contest *contest, int64_t route)
{
    static const SimRoute alone = {.device_bytes_per_s = 1, .visible = 1};

    return contest->network == NULL ? &alone : &contest->network->routes[route];
}

/* Whether what goes @way meets others. */
static inline bool
contest_crosses(const Contest *contest, int64_t route)
{
    return contest->network != NULL && contest->network->routes[route].n_crossed > 0;
}

/* What the op at hand takes beside others' flows. */
static inline const SimRoute *
contest_op_route(const Contest *contest, const Runner *runner)
{
    return contest_route(contest,
                         runner->pair != NULL
                             ? sim_route_of_pair(contest->program, runner->pair)
                             : sim_route_of_op(contest->program->steps[runner->step].cost));
}

/* A message between two ranks was under way for @ns. */
static inline void
contest_add_message_time(Contest *contest, int32_t from, int32_t to, int64_t ns)
{
    contest->times->extra[from].message_ns += ns;
    contest->times->extra[to].message_ns += ns;
}

/* --- speed of computing --- */

static inline bool
contest_dp_works(const Runner *runner)
{
    return runner->n_done < runner->n_queued;
}

static inline double
contest_speed(const Contest *contest, const Runner *runner)
{
    return (contest_dp_works(runner) ? contest->dp_speed : 1) *
           (runner->n_messages > 0 ? contest->message_speed : 1);
}

/* After what runs beside the rank's ops has changed. */
static inline void
contest_change_speed(Contest *contest, Runner *runner)
{
    if (runner->state == RUNNER_COMPUTES)
        sim_flow_set_limit(contest->links, contest_compute_timer(runner->rank),
                           contest_speed(contest, runner));
}

/* contend.c: the op of @step ends at @at_ns, now or later, and sends a message of @ns. */
void contest_post(Contest *contest, Stream *stream, uint32_t step, int64_t ns, int64_t at_ns);

/* contend.c: the op of @step ends at @at_ns, now or later: its message leaves, or what needs it may
 * begin. */
void contest_op_ends(Contest *contest, uint32_t step, const SimCostDetail *detail, int64_t at_ns);

/* contend.c: the runner's op, whose message is there, begins now: with the receiving of a blocking
 * one. */
void contest_begin_op(Contest *contest, Runner *runner);

/* contend.c: the rank may go on to its next op. */
void contest_become_idle(Contest *contest, Runner *runner);

/* contend_ahead.c: all ranks that may go on do, as far as they can without the clock. */
void contest_go_on(Contest *contest);

/* contend_ahead.c: what the op of @step, none before the rank's next one, has beside it; NULL:
 * nothing. */
const SimSpecial *contest_special(const Contest *contest, Runner *runner, uint32_t step);

/* contend.c: starts the segment at hand of the rank's op, or waits for its parameters. */
void contest_start_segment(Contest *contest, Runner *runner);

/* contend_dp.c: queues the rank's next @n collectives. */
void contest_queue_dp(Contest *contest, Runner *runner, int64_t n);

/* contend_dp.c: the timer of the rank's dp stream has gone off: one of its collectives ends. */
void contest_end_dp(Contest *contest, Runner *runner);

/* contend_dp.c: the rank has run all its ops: now its reduction must end, then comes the optimizer.
 */
void contest_finish_rank(Contest *contest, Runner *runner);

/* contend_dp.c: the optimizer of a rank that finishes ends. */
void contest_end_optimizer(Contest *contest, Runner *runner);

/* The bucket of parameters that the segment at hand needs, counted from the first of the rank. */
static inline int64_t
contest_bucket(const Runner *runner)
{
    return runner->special->chunk * runner->n_segments + runner->segment;
}

G_END_DECLS

#endif /* SIMULATOR_CONTEST_H */
