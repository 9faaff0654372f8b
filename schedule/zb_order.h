/*
 * schedule/zb_order.h - the orders that zb-auto searches through: op kinds per rank, and their time.
 *
 * Internal to schedule/.  All micro-batches are alike, so an order need not name them: the k-th F
 * of a chunk on a rank is that of micro-batch k, and likewise its B or I, and its W.  (Whatever
 * order names other micro-batches, renaming them so is possible and finishes no later: among the
 * first k F of a stage are k different ones of the stage before.)  An order is therefore one string
 * of small integers per rank, and a move of the search is the move of one character.
 *
 * Time is that of simulator/simulate.h with overlapped messages: an op starts when its rank is free
 * and its message is there, start = max(free(rank), end(producer) + message); a message leaves when
 * its op ends, and costs no compute time.
 *
 * The first op of every rank is F of micro-batch 0 in chunk 0, and it starts when that micro-batch
 * reaches the rank undisturbed.  So a rank's first start is a constant of the problem, and the span
 * (longest first start to last end) is a makespan with one constant per rank taken off.
 *
 * Thread-safety: a ZbProblem is immutable once built; a ZbTimes belongs to one thread.
 */
#pragma once

#include "base/order.h"
#include "base/random.h"
#include "schedule/schedule.h"

#define ZB_MAX_CHUNKS 2
#define ZB_N_TYPES (ZB_MAX_CHUNKS * SCHEDULE_OP_N)

/* The type of an op: its kind and chunk. */
static inline uint8_t
zb_type(int kind, int chunk)
{
    return (uint8_t)(chunk * SCHEDULE_OP_N + kind);
}

static inline int
zb_kind(uint8_t type)
{
    return type % SCHEDULE_OP_N;
}

static inline int
zb_chunk(uint8_t type)
{
    return type / SCHEDULE_OP_N;
}

/* The time, memory and channels of every op of one (rank, type).  A channel carries the messages
 * for which the ops of one (stage, direction) wait, in order of micro-batches; -1: no channel. */
typedef struct {
    int64_t ns, message_ns;
    int64_t begin_bytes, end_bytes; /* added to what its rank holds when it starts, and ends */
    int32_t in, out;                /* channels */
    int32_t in_rank, out_rank;      /* the ranks that fill the first and read the second */
} ZbOp;

typedef struct {
    int32_t p, v, m;
    int32_t n_channels;
    int64_t max_length; /* ops of a rank: 3 v m */
    ScheduleObjective objective;
    bool may_fuse;                    /* some B is quicker than its I and W */
    ZbOp *ops;                        /* (owned) [rank * ZB_N_TYPES + type] */
    int64_t *limit_bytes;             /* (owned) [rank] INT64_MAX: none */
    int64_t *first_ns;                /* (owned) [rank] start of its first op */
    int64_t bound_ns, other_bound_ns; /* no order has a smaller ZbValue.ns, .other_ns; 0: unknown */
} ZbProblem;

/* Builds the problem for @shape with shape->times (or the defaults of zb_auto.h), checked already.
 * Returns false on SCHEDULE_ERROR_SHAPE (times or limits out of range) or SCHEDULE_ERROR_LIMIT. */
bool zb_problem_init(ZbProblem *problem, const ScheduleShape *shape, GError **error);
void zb_problem_clear(ZbProblem *problem);

static inline const ZbOp *
zb_op(const ZbProblem *problem, int32_t rank, uint8_t type)
{
    return &problem->ops[(int64_t)rank * ZB_N_TYPES + type];
}

/* Returns how many F each rank runs. */
static inline int64_t
zb_problem_n_forwards(const ZbProblem *problem)
{
    return (int64_t)problem->m * problem->v;
}

/* The types of all ranks' ops, in the order in which the rank runs them. */
typedef struct {
    uint8_t *types;  /* (owned) [rank * max_length + i] */
    int64_t *length; /* (owned) [rank] */
} ZbOrder;

bool zb_order_init(ZbOrder *order, const ZbProblem *problem, GError **error);
void zb_order_clear(ZbOrder *order);
void zb_order_copy(ZbOrder *to, const ZbOrder *from, const ZbProblem *problem);

static inline uint8_t *
zb_order_rank(const ZbOrder *order, const ZbProblem *problem, int32_t rank)
{
    return &order->types[rank * problem->max_length];
}

static inline int64_t
zb_order_n_ops(const ZbOrder *order, const ZbProblem *problem)
{
    int64_t n = 0;

    for (int32_t r = 0; r < problem->p; r++)
        n += order->length[r];
    return n;
}

/* How good an order is: smaller is better, from the first number on. */
typedef struct {
    int64_t ns;       /* the objective */
    int64_t other_ns; /* span if that is the makespan, and back */
    int64_t sum_ns;   /* of all ranks' ends: tells apart what the longest rank hides */
} ZbValue;

#define ZB_VALUE_NONE ((ZbValue){INT64_MAX, INT64_MAX, INT64_MAX})

static inline int
zb_value_compare(ZbValue a, ZbValue b)
{
    ORDER_BY(a.ns, b.ns);
    ORDER_BY(a.other_ns, b.other_ns);
    return ORDER(a.sum_ns, b.sum_ns);
}

static inline bool
zb_value_is_optimal(const ZbProblem *problem, ZbValue value)
{
    return value.ns <= problem->bound_ns && value.other_ns <= problem->other_bound_ns;
}

/* When everything of an order happens; filled by zb_evaluate(). */
typedef struct {
    int64_t *start_ns;      /* (owned) [rank * max_length + i] */
    int32_t *channel_index; /* (owned) [rank * max_length + i] the op's place in its channel */
    int64_t *ready_ns;      /* (owned) [channel * m + k] the k-th message is there */
    int32_t *sender;        /* (owned) [channel * m + k] which op of its rank sent it */
    int64_t *end_ns;        /* (owned) [rank] */
    int32_t *filled;        /* (owned) [channel] messages sent so far */
    int32_t *taken;         /* (owned) [channel] and received */
    int32_t *waits;         /* (owned) [rank] the channel it waits for, or -1 */
    int32_t *stack;         /* (owned) [p] ranks that may go on */
    int64_t *position;      /* (owned) [rank] */
} ZbTimes;

bool zb_times_init(ZbTimes *times, const ZbProblem *problem, GError **error);
void zb_times_clear(ZbTimes *times);

/* Times of @order.  Returns false if it comes to a stop before its end.  Cost: O(ops). */
bool zb_evaluate(const ZbProblem *problem, const ZbOrder *order, ZbTimes *times, ZbValue *value);

/* Returns whether the string of @rank is a valid order: no I stands before its F, no W before its I,
 * none is missing, and the rank never holds more bytes than its limit.  Cost: O(ops of the rank). */
bool zb_order_fits(const ZbProblem *problem, const ZbOrder *order, int32_t rank);

/* Replaces each I that is directly followed by its W by one B where that is quicker. */
void zb_order_fuse(const ZbProblem *problem, ZbOrder *order, int32_t rank);

/* Returns the value of @order if it fits and runs to its end, else ZB_VALUE_NONE. */
ZbValue zb_order_value(const ZbProblem *problem, const ZbOrder *order, ZbTimes *times);

/* --- the parts of the search, in this order --- */

/* How the list scheduler decides: zb_greedy.c. */
typedef struct {
    struct {
        int32_t ahead;    /* F that may be done without their B or I */
        int32_t pending;  /* so many I without their W: a W comes before all else */
        uint8_t patience; /* W starts if idle time ahead is this share of it, in 8ths */
    } * ranks;            /* (owned) */
    bool forward_first;   /* F goes before I where both could start */
    bool first_chunk[2];  /* of F, of I: chunk 0 before chunk 1 */
} ZbPolicy;

void zb_policy_copy(ZbPolicy *to, const ZbPolicy *from, const ZbProblem *problem);

/* Fills @order.  Returns false if the policy comes to a stop.  Cost: O(ops log p). */
bool zb_greedy(const ZbProblem *problem, const ZbPolicy *policy, ZbTimes *times, ZbOrder *order);

/* Local search from @order, for at most @work visits of ops; never makes it worse: zb_improve.c. */
void zb_improve(const ZbProblem *problem, ZbOrder *order, ZbTimes *times, ZbValue *value,
                int64_t work, uint64_t seed);

/* In [0, n). */
static inline int64_t
zb_random_below(uint64_t *state, int64_t n)
{
    return (int64_t)(random_next(state) % (uint64_t)n);
}
