/*
 * schedule/zb_bound.h - a lower bound on the objective of every order that continues a partial one.
 *
 * The bound looks at each rank alone.  An op that is left starts no earlier than its chain of F, I
 * and W allows (its head), and after it the chain still needs some time (its tail).  A rank that
 * ignores the other ranks' orders and may interrupt its ops does best if it always runs the op with
 * the longest tail; the largest end + tail is then a lower bound  [Jackson's preemptive schedule;
 * Carlier 1982].  The memory limit adds links between chains: F of a chunk waits for the W of a
 * micro-batch so many before it, and so on.
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

/* A chain is the ops of one step of one chunk on one rank.  Chains are numbered
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
    int32_t *previous;  /* (owned) [chain] the chain whose message it needs, or -1 */
    int64_t *offset_ns; /* (owned) [rank] added to the rank's end */
    int64_t *tail_ns;   /* (owned) [chain * m + k] least time from the op's end to the end of all */
    int64_t *head_ns;   /* (owned) [chain * m + k] scratch */
} ZbBound;

/* Where a partial order stands: what it has done. */
typedef struct {
    int32_t *done;    /* [chain] */
    int64_t *free_ns; /* [rank] */
    int64_t *end_ns;  /* [chain * m + k] of what is done */
} ZbState;

/* Prepares bounds for @problem.
 * @relaxed  the bound also holds for orders with B, which may be quicker than I and W together; else
 *           only for orders without B
 * Returns false on SCHEDULE_ERROR_LIMIT. */
bool zb_bound_init(ZbBound *bound, const ZbProblem *problem, ScheduleObjective objective,
                   bool relaxed, GError **error);
void zb_bound_clear(ZbBound *bound);

/* Returns the bound on the objective of every order that continues @state, and in *sum_ns (nullable)
 * the sum of the ranks' own bounds.  Cost: O(ops left). */
int64_t zb_bound_ns(ZbBound *bound, const ZbState *state, int64_t *sum_ns);

/* Returns the bound on the objective of every order. */
int64_t zb_bound_root_ns(ZbBound *bound);

typedef enum {
    ZB_BEAM_NOTHING,     /* no better order was found */
    ZB_BEAM_BETTER,      /* @order is a better order */
    ZB_BEAM_NONE_EXISTS, /* it is proven that no order without B is better */
} ZbBeamResult;

/* Searches for an order whose objective is below @below_ns; defined in zb_beam.c.  @bound must be
 * that of orders without B.  The search visits about *work ops and subtracts what it visited. */
ZbBeamResult zb_beam(const ZbProblem *problem, ZbBound *bound, ZbOrder *order, int64_t below_ns,
                     int64_t *work);
