/*
 * planner/trial/recompute.h - what the stages of one family's plan recompute.
 *
 * Internal to planner/.  One stage per rank: each rank in its fastest way that fits.  Chunks: all
 * stages in one way, and each rank saving no more than it must; given slices: one way alone.  What
 * the sketch of given ways (sketch.h) says is too slow is not priced.
 */
#ifndef PLANNER_TRIAL_RECOMPUTE_H
#define PLANNER_TRIAL_RECOMPUTE_H

#include "planner/trial/trial.h"

G_BEGIN_DECLS

/* A family at a point: its sketch and what it is made of. */
typedef struct {
    PlanTrial *trial;             /* (borrowed) */
    const ScheduleFamily *family; /* (borrowed) */
    PlanSketchInput input;
    PlanSketch sketch;
    int64_t length; /* stages of a chain */
    Plan *plan;     /* (owned by the caller, nullable) made, and its stages set, for each try */
} PlanFamilyTrial;

/* Tries the sketched layers in their ways, unless the sketch says that it is no use. */
void plan_recompute_try(PlanFamilyTrial *f);

G_END_DECLS

#endif /* PLANNER_TRIAL_RECOMPUTE_H */
