/*
 * planner/space/refusal.h - why combinations were left out of a space, to say so if none is left.
 *
 * Internal to planner/.
 */
#ifndef PLANNER_SPACE_REFUSAL_H
#define PLANNER_SPACE_REFUSAL_H

#include "planner/space/space.h"

G_BEGIN_DECLS

/* The first reason of each kind.  (owned, nullable) */
typedef struct {
    char *shape;           /* the model's against the degrees */
    char *batch;           /* the batch is no multiple */
    char *family;          /* the schedule's against the shape */
    int64_t nearest_batch; /* one that would not be refused so; 0: absurd */
} PlanSpaceRefusals;

void plan_space_refusals_clear(PlanSpaceRefusals *refusals);

/* The request's batch is no multiple of @dp replicas' micro-batches. */
void plan_space_refuse_batch(PlanSpaceRefusals *refusals, const PlanRequest *request, int64_t dp);

/* (owned) why the first family does not exist at @point. */
char *plan_space_refusal_of_family(const PlanSpace *space, const PlanPoint *point, int64_t vpp);

/* Nothing is left: PLAN_ERROR_INVALID or _INFEASIBLE with what came furthest, and what would do. */
void plan_space_set_empty(const PlanSpace *space, const PlanSpaceRefusals *refusals,
                          GError **error);

G_END_DECLS

#endif /* PLANNER_SPACE_REFUSAL_H */
