/*
 * planner/layout.h - balanced stages: layers divided by plan_partition(), remembered.
 *
 * Internal to planner/.  The division depends on how long layers take, not on replicas, ZeRO stage
 * or schedule family, so many points of the space share it.
 *
 * Thread-safety: all functions may be called from several threads at once; answers do not depend on
 * the order of calls.
 */
#ifndef PLANNER_LAYOUT_H
#define PLANNER_LAYOUT_H

#include "planner/space.h"

G_BEGIN_DECLS

/* Opaque; see layout.c. */
typedef struct PlanLayouts PlanLayouts;

typedef struct {
    int64_t *counts;   /* (owned) layers of each stage of a chain */
    int64_t *stage_ns; /* (owned) both passes of one micro-batch, without what a Workload adds */
    bool differs;      /* from the even stages */
} PlanLayout;

PlanLayouts *plan_layouts_new(void);
void plan_layouts_free(PlanLayouts *layouts);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(PlanLayouts, plan_layouts_free)

/* Returns: (borrowed) the division of all layers into a chain of @length stages at @point. */
const PlanLayout *plan_layouts_get(PlanLayouts *layouts, const PlanRequest *request,
                                   const PlanPoint *point, int64_t length);

/*
 * A bound on the time of @layout at @point under @family: the work of the rank with most, and with
 * single chunks and whole backwards also its wait for the ranks before it.
 */
int64_t plan_layout_bound_ns(const PlanLayout *layout, const PlanPoint *point,
                             const ScheduleFamily *family);

/* Gives @plan's stages the layout's layers. */
void plan_layout_apply(const PlanLayout *layout, int64_t length, Plan *plan);

G_END_DECLS

#endif /* PLANNER_LAYOUT_H */
