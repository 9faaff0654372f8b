/*
 * planner/memo.h - what searches that differ in little need not find twice.
 *
 * What schedules hold at once depends on their shape alone, what layers cost and how they are
 * divided evenly by time on model and devices; a search asks for each thousands of times.
 * Remembering changes no answer.
 *
 * Thread-safety: searches on several threads may share one.
 */
#ifndef PLANNER_MEMO_H
#define PLANNER_MEMO_H

#include <glib.h>

G_BEGIN_DECLS

/*
 * Opaque; see run.c.  For searches (PlanRequest.memo) of one model, sequence length, number format
 * and conventions on devices of equal speeds and links; degrees, batch, schedules, slices,
 * recompute, ZeRO stage and memory limits may differ.
 */
typedef struct PlanMemo PlanMemo;

PlanMemo *plan_memo_new(void);
void plan_memo_free(PlanMemo *memo);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(PlanMemo, plan_memo_free)

G_END_DECLS

#endif /* PLANNER_MEMO_H */
