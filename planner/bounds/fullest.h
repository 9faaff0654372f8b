/*
 * planner/bounds/fullest.h - what each rank of a schedule holds when an op of each kind and chunk
 * starts, where that is most.
 *
 * The moments of flight.h say when a rank is fullest, but not which op starts then, so the least
 * workspace of the rank's ops has to be added to them.  Where the ops of a rank differ much (with
 * many chunks; a head that makes the gradient of a vocabulary; the halves of a split backward, of
 * which only the weight's has whole gradients), that is far less than the peak.  Here each op has
 * the workspace of its own kind and chunk.
 *
 * It is known for orders that are made without times and whose ops do not overlap.  A few KiB to
 * some tens for each shape: it is asked only where memory decides.
 *
 * Thread-safety: all functions may be called from several threads at once.
 */
#pragma once

#include <stdbool.h>

#include "planner/cost/memo.h"
#include "schedule/schedule.h"

/* Of so many ops after one it is known what they are: whose weights ZeRO 3 may gather ahead. */
#define PLAN_FULLEST_NEXT 3
/* The measures of fullest. */
#define PLAN_FULLEST_N 2

/* The first op of those of its rank, kind and chunk at whose start the most virtual micro-batches are
 * whole or half (flight.h), of equal ones the most whole: with its own at an F, I or W.  On ranks that split
 * backwards also the one at whose start the most are half, as halves may be the larger ones. */
typedef struct {
    int32_t rank;
    uint8_t chunk;
    uint8_t kind;   /* ScheduleOpKind */
    bool by_halves; /* it is the one at which most are half */
    bool halves;    /* an I that is half afterwards */
    /* Those after it on its rank, in order, but for Ws, which gather no weights. */
    uint8_t n_next;
    uint8_t next_chunk[PLAN_FULLEST_NEXT];
    uint8_t next_kind[PLAN_FULLEST_NEXT];
} PlanFullestOp;

typedef struct {
    int32_t n_chunks;
    int32_t n_ops;      /* 0: nothing is known of this schedule */
    PlanFullestOp *ops; /* (owned) rank after rank */
    /* (owned) [(op * 2 + half) * n_chunks + chunk] virtual micro-batches that are whole (half 0) or
     * half (1) then; never more than there are */
    uint16_t *held;
} PlanFullest;

/* Returns: (borrowed from @memo) what the family's schedule of @shape holds.  Cost: O(ops) where it is
 * not known. */
const PlanFullest *plan_fullest_get(PlanMemo *memo, const ScheduleFamily *family,
                                    const ScheduleShape *shape);

/* Returns: how many virtual micro-batches of @chunk are whole (@half 0) or half (1) when op number @op
 * starts. */
static inline int32_t
plan_fullest_n_held(const PlanFullest *fullest, int32_t op, int half, int32_t chunk)
{
    return fullest->held[((int64_t)op * 2 + half) * fullest->n_chunks + chunk];
}
