/*
 * simulator/contest.h - what contend.c and contend_dp.c share: the state of one run of the engine
 * over a SimProgram.  Internal to those two.
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
    RUNNER_IDLE,
    RUNNER_RECEIVES, /* a blocking message */
    RUNNER_WAITS,    /* for parameters */
    RUNNER_COMPUTES, /* one segment of an op */
    RUNNER_SENDS,    /* waits for what the transport does not buffer */
    RUNNER_FINISHES, /* no op is left */
} RunnerState;

/* A rank: its compute stream and its dp stream. */
typedef struct {
    Contest *contest; /* (borrowed) */
    int32_t rank;
    RunnerState state;
    uint32_t step; /* running, or run last */
    int64_t next;  /* index into schedule->ops of its next op */
    int64_t wait_since_ns;
    int32_t n_messages; /* overlapped ones that come or go */
    SimFlow flow;
    /* The op at hand: */
    const SimSpecial *special; /* (borrowed, nullable) */
    int64_t segment, n_segments;
    int64_t next_special; /* index into program->beside.specials */
    /* dp stream: pieces [n_done, n_queued) of those that dp_piece() knows by number */
    SimFlow dp_flow;
    int64_t n_gathers, n_reduces; /* chunks that gather ahead, and reduce behind */
    int64_t n_queued, n_done;
    int64_t dp_since_ns;
} Runner;

/* Overlapped messages from one rank to another. */
typedef struct {
    Contest *contest; /* (borrowed) */
    SimFlow flow;
    GArray *queue; /* of uint32_t: steps that have sent; (owned, nullable) made when needed */
    guint first;   /* of the queue that is under way, or next */
    int64_t since_ns;
} Stream;

struct Contest {
    const SimProgram *program;      /* (borrowed) */
    const SimNetwork *network;      /* (borrowed, nullable) */
    SimTimes *times;                /* (borrowed) */
    SimEngine *engine;              /* (owned) */
    const int64_t *now_ns;          /* (borrowed) its clock */
    SimLinks *links;                /* (owned) */
    Runner *runners;                /* (owned) [rank] */
    Stream *streams;                /* (owned) [sim_stream()] */
    uint32_t *step_of;              /* (owned) [index into schedule->ops] */
    double dp_speed, message_speed; /* of computing beside them */
};

static inline const SimCostDetail *
contest_detail(const Contest *contest, uint32_t step)
{
    return &contest->program->details[contest->program->steps[step].cost];
}

static inline SimWay
contest_way(const Contest *contest, int64_t way)
{
    return contest->network == NULL ? (SimWay){.device_bytes_per_s = 1, .visible = 1}
                                    : sim_network_way(contest->network, way);
}

/* --- speed of computing --- */

static inline double
contest_speed(const Contest *contest, const Runner *runner)
{
    return (runner->n_done < runner->n_queued ? contest->dp_speed : 1) *
           (runner->n_messages > 0 ? contest->message_speed : 1);
}

/* After what runs beside the rank's ops has changed. */
static inline void
contest_change_speed(Contest *contest, Runner *runner)
{
    if (runner->state == RUNNER_COMPUTES)
        sim_flow_set_limit(&runner->flow, contest_speed(contest, runner));
}

/* contend.c: starts the segment at hand of the rank's op, or waits for its parameters. */
void contest_start_segment(Contest *contest, Runner *runner);

/* contend_dp.c: queues the rank's next @n collectives. */
void contest_queue_dp(Contest *contest, Runner *runner, int64_t n);

/* contend_dp.c: the rank has run all its ops: now its reduction must end, then comes the optimizer.
 */
void contest_finish_rank(Contest *contest, Runner *runner);

/* The bucket of parameters that the segment at hand needs, counted from the first of the rank. */
static inline int64_t
contest_bucket(const Runner *runner)
{
    return runner->special->chunk * runner->n_segments + runner->segment;
}

G_END_DECLS

#endif /* SIMULATOR_CONTEST_H */
