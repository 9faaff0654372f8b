/*
 * planner/space/refusals.h - why combinations of degrees, batches and families are none, and what is said
 * when none is left.
 *
 * Thread-safety: each of the threads that enumerate has reasons of its own.
 */
#pragma once

#include "planner/space/space.h"

/* The first reason of each kind.  (owned, nullable) */
typedef struct {
    char *shape;           /* the degrees against the model */
    char *batch;           /* the batch is no multiple */
    char *family;          /* the shape against the schedule family */
    int64_t nearest_batch; /* one that would not be refused so; 0: it is absurdly large */
    PlanBreach rule;       /* the framework's that came furthest; its text is NULL: none */
    PlanAspect aspect;     /* of that rule */
} PlanRefusals;

void plan_refusals_clear(PlanRefusals *refusals);

/* Takes from @more, which was noted later, the reasons of kinds that @refusals has not, and the rule if it
 * came further. */
void plan_refusals_join(PlanRefusals *refusals, PlanRefusals *more);

/* Whether @c keeps the rules of @aspect; else the first one that it breaks is noted, if none came
 * further. */
bool plan_refusals_keep_rules(PlanRefusals *refusals, const PlanRuleCase *c, PlanAspect aspect);

/* Notes that the batch is no multiple of the micro-batches of @dp replicas. */
void plan_refusals_note_batch(PlanRefusals *refusals, const PlanRequest *request, int64_t dp);

/* Returns: (owned) why the family, the usual one of a search, does not exist at @point with @vpp chunks. */
char *plan_refusal_of_family(const PlanSpace *space, const PlanPoint *point, int64_t vpp);

/* Nothing is left: PLAN_ERROR_INVALID or _INFEASIBLE with what came furthest, and what would do. */
void plan_refusals_set_error(const PlanSpace *space, const PlanRefusals *refusals, GError **error);
