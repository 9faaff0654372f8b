/*
 * planner/cost/memo.h - remembers answers that many points of a search, and many searches, ask for.
 *
 * What a schedule holds at once depends on its shape alone (bounds/flight.h), what layers cost and
 * how they are balanced depends on the model and the devices (cost/layer_cost.h,
 * partition/partitions.h); a search asks for each of these thousands of times.  An answer is made
 * once per key and stays until the memo is freed.  Remembering changes no answer.
 *
 * Thread-safety: all functions may be called from several threads at once; answers do not depend on
 * the order of calls.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

#include "schedule/schedule.h"

/* Opaque; see memo.c.  Searches may share one (PlanRequest.memo) if they are about the same model,
 * sequence length, number format and conventions, on devices of equal speeds and links; degrees,
 * batch, schedules, slices, recompute, ZeRO stage and memory limits may differ. */
typedef struct PlanMemo PlanMemo;

PlanMemo *plan_memo_new(void);

/* Returns: (owned) one for other devices, that has the answers which do not depend on devices in
 * common with @other (borrowed, nullable), which outlives it. */
PlanMemo *plan_memo_new_beside(PlanMemo *other);
void plan_memo_free(PlanMemo *memo);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(PlanMemo, plan_memo_free)

/* Which question an answer belongs to. */
typedef enum {
    PLAN_MEMO_FLIGHT,
    PLAN_MEMO_FULLEST,
    PLAN_MEMO_LAYER_COST,
    PLAN_MEMO_PART_COST,
    PLAN_MEMO_PRICED,
    PLAN_MEMO_PARTITION,
    PLAN_MEMO_FLOOR,
    PLAN_MEMO_REDUCTIONS,
    PLAN_MEMO_MESSAGES
} PlanMemoKind;

/* A key is a struct of int64_t without padding whose first member is this one; two keys are equal
 * if all of their words are. */
typedef struct {
    int64_t n_words; /* of the whole key */
    int64_t kind;    /* PlanMemoKind */
} PlanMemoKey;

/* The first member of a key of @type. */
#define PLAN_MEMO_KEY(type, kind) ((PlanMemoKey){sizeof(type) / sizeof(int64_t), (kind)})

/* How an answer is made.  Returns: (owned, nullable) NULL: there is no answer. */
typedef void *(*PlanMemoMakeFunc)(const void *question);

/*
 * Returns: (borrowed, nullable) the answer that @make gives for @question, which @key identifies.
 * NULL is not remembered.
 * A thread that asks for what another one is making waits for it: so @make may ask for other answers, but
 * not, by any detour, for its own.
 * @free_answer  frees what @make returns.
 */
const void *plan_memo_get(PlanMemo *memo, const PlanMemoKey *key, PlanMemoMakeFunc make,
                          const void *question, GDestroyNotify free_answer);

/* The question that depends on the shape of a schedule alone. */
typedef struct {
    const ScheduleFamily *family; /* (borrowed) like the shape */
    const ScheduleShape *shape;
} PlanMemoShape;

/* The same where @make's question is a PlanMemoShape. */
const void *plan_memo_get_of_shape(PlanMemo *memo, PlanMemoKind kind, const PlanMemoShape *question,
                                   PlanMemoMakeFunc make, GDestroyNotify free_answer);
