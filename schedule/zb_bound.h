/*
 * schedule/zb_bound.h - how soon an order that is begun can end at best.
 *
 * Each rank is taken alone: its ops that are left start no earlier than the chains of F, I and W
 * let them (head), and after an op the chains need so much more (tail).  Without the order of the
 * other ranks, and with ops that may be interrupted, the rank runs the op with the longest tail
 * whenever it can; the largest end + tail is a bound  [Jackson's preemptive schedule; Carlier
 * 1982]. The memory limit adds links to the chains: F of a chunk waits for the W so many
 * micro-batches before it, and so on.
 *
 * Internal to schedule/.
 */
#pragma once

#include "schedule/zb_order.h"

enum {
    ZB_F,
    ZB_I,
    ZB_W,
    ZB_N_STEPS
};

/* A chain: the ops of one step of one chunk on one rank.  Chains are numbered
 * (rank * v + chunk) * ZB_N_STEPS + step. */
typedef struct {
    int32_t rank;
    int64_t ns, message_ns;
    int32_t next;           /* chain that its message goes to, or -1 */
    int32_t limit_by, room; /* its op k waits for op k - room of chain limit_by; -1: none */
} ZbChain;

typedef struct {
    const ZbProblem *problem; /* (borrowed) */
    int32_t n_chains;
    ZbChain *chains;    /* (owned) */
    int32_t *in_order;  /* (owned) [n_chains] chains as a micro-batch passes them */
    int32_t *previous;  /* (owned) [chain] whose message it needs, or -1 */
    int64_t *offset_ns; /* (owned) [rank] added to its end */
    int64_t *tail_ns;   /* (owned) [chain * m + k] from the op's end on */
    int64_t *head_ns;   /* (owned) [chain * m + k] scratch */
} ZbBound;

/* What is done: where a partial order stands. */
typedef struct {
    int32_t *done;    /* [chain] */
    int64_t *free_ns; /* [rank] */
    int64_t *end_ns;  /* [chain * m + k] of what is done */
} ZbState;

/* @relaxed: bound for orders with B too, which may be quicker than I and W; else for those without.
 * Returns false on SCHEDULE_ERROR_LIMIT. */
bool zb_bound_init(ZbBound *bound, const ZbProblem *problem, ScheduleObjective objective,
                   bool relaxed, GError **error);
void zb_bound_clear(ZbBound *bound);

/* The bound in units of the objective; *sum_ns (nullable) is that of all ranks' own bounds.
 * Cost: O(ops left). */
int64_t zb_bound_ns(ZbBound *bound, const ZbState *state, int64_t *sum_ns);

/* Before anything is done. */
int64_t zb_bound_root_ns(ZbBound *bound);

typedef enum {
    ZB_BEAM_NOTHING,     /* none found */
    ZB_BEAM_BETTER,      /* @order is one */
    ZB_BEAM_NONE_EXISTS, /* proven, among orders without B */
} ZbBeamResult;

/* Searches an order whose objective is below @below_ns, for about *work visits of ops, which are
 * taken off: zb_beam.c.  @bound is that of orders without B. */
ZbBeamResult zb_beam(const ZbProblem *problem, ZbBound *bound, ZbOrder *order, int64_t below_ns,
                     int64_t *work);
