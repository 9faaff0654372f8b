/*
 * simulator/program.h - SimProgram: a Schedule and a Workload compiled for the sweep.
 *
 * Ops are renumbered in topological order ("steps"), so that one pass over one array computes all
 * times; what an op costs is an index into a small table, because the ops of one (stage, class,
 * slice, kind) cost the same.  Internal to simulator/ (simulate.h is the public face).
 *
 * Times are found by the sweep (sweep.h), or event by event where links are shared (contend.h).
 *
 * An op of time_ns takes time_ns + op_overhead_ns.  The message of F goes to the next stage, that
 * of B and I to the stage before, unless that stage lies on the same rank.
 *
 * Limits: the sum of everything that every rank does stays below SIM_MAX_NS, so no sum of times
 * overflows.
 *
 * Thread-safety: immutable once built.
 */
#pragma once

#include "profiles/workload/workload.h"
#include "schedule/trace.h"
#include "simulator/finish.h"

/* 146 years: half of what int64_t holds. */
#define SIM_MAX_NS (INT64_MAX / 2)

/* ScheduleOpKind, and an I that no W follows: it takes the time of an I, and what it holds is freed
 * at its end. */
enum {
    SIM_KIND_LONE_INPUT = SCHEDULE_OP_N,
    SIM_KIND_N
};

/* One op in topological order. */
typedef struct {
    uint32_t producer; /* 1 + step of the op whose message it needs; 0: none */
    uint32_t cost;     /* index into SimProgram.costs */
} SimStep;

/* What every op of one cost takes. */
typedef struct {
    int64_t busy_ns, lag_ns; /* as sweep.h has them */
    int32_t rank;            /* that runs the ops of this cost */
    int32_t stream;          /* as sim_stream(): on which their messages leave; 0: they send none */
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
    int32_t rank;       /* that runs the ops of this cost */
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
     * is gathered ahead for later ops; NULL: none */
    int64_t *ahead_bytes;
    int32_t *in_flight; /* (owned) [rank] most virtual micro-batches in flight */
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

/*
 * Compiles @schedule with the times of @workload.  @schedule and @workload outlive the program.
 * Returns NULL on SCHEDULE_ERROR_INCOMPLETE or _DEADLOCK (the schedule cannot run), _SHAPE
 * (@workload is made for another shape) or _LIMIT (times negative or beyond int64_t, no memory).
 * Cost: O(ops + costs).
 */
SimProgram *sim_program_new(const Schedule *schedule, const Workload *workload, GError **error);
void sim_program_free(SimProgram *program);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(SimProgram, sim_program_free)

/* Sets SCHEDULE_ERROR_LIMIT with what is out of range of the workload.  Returns: false. */
bool sim_fail_limit(GError **error, const char *what);

/* Sets SCHEDULE_ERROR_LIMIT, no memory for @n of @what, with how much there is.  Returns: false. */
bool sim_fail_memory(GError **error, int64_t n, const char *what);

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

/* Returns: the kind of the ops of @cost. */
static inline ScheduleOpKind
sim_op_kind(int64_t cost)
{
    const int kind = (int)(cost % SIM_KIND_N);

    return kind == SIM_KIND_LONE_INPUT ? SCHEDULE_OP_BACKWARD_INPUT : (ScheduleOpKind)kind;
}

/* Returns: how long an op of @cost takes in each of its parts, ns [PROFILE_PART_N]. */
static inline const int64_t *
sim_part_ns(const SimProgram *program, int64_t cost)
{
    return sim_program_workload_op(program, cost)->part_ns[sim_op_kind(cost)];
}

/* Returns: for how long an op of @cost is in collectives that a pair hides behind its other op. */
static inline int64_t
sim_hidden_ns(const SimProgram *program, int64_t cost)
{
    return program->workload->merges_pairs
               ? sim_part_ns(program, cost)[PROFILE_PART_EP]
               : workload_collectives_ns(sim_program_workload_op(program, cost), sim_op_kind(cost));
}

/* Returns: how long an op of @cost takes in its collectives, ns. */
static inline int64_t
sim_collectives_ns(const SimProgram *program, int64_t cost)
{
    return workload_collectives_ns(sim_program_workload_op(program, cost), sim_op_kind(cost));
}
