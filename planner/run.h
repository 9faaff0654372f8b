/*
 * planner/run.h - one walk over the points of a space: what was found so far, on several threads.
 *
 * Internal to planner/.  Waves: a fixed number of points is evaluated at once, all against the best
 * plans of the waves before, and merged in their order.  So threads change neither the answer nor
 * the counts.
 */
#ifndef PLANNER_RUN_H
#define PLANNER_RUN_H

#include "planner/trial/trial.h"

G_BEGIN_DECLS

/* Points of a wave: enough for many threads; the first ones are smaller, to lose little before good
 * plans are known. */
#define PLAN_WAVE 64
#define PLAN_FIRST_WAVE 2
typedef struct {
    PlanEvaluation evaluation;
    const PlanRequest *request; /* (borrowed) */
    PlanSpace *space;           /* (borrowed) */
    PlanOutcome total;          /* found: the best top + 1, in order */
    int64_t known_limit;        /* objective values above it are of no interest: better is known */
    int64_t lower_bound_ns;     /* of what was not simulated */
    PlanMemo *memo;             /* (owned, nullable) if the request has none */
} PlanRun;

typedef void (*PlanRunFunc)(const PlanEvaluation *evaluation, const PlanPoint *point, int64_t limit,
                            PlanOutcome *outcome);

typedef struct {
    const PlanRun *run;
    PlanRunFunc evaluate;
    const PlanPoint *points[PLAN_WAVE]; /* (borrowed) */
    PlanOutcome outcomes[PLAN_WAVE];
    int n;
    int64_t limit;
    int next; /* atomic */
} PlanWave;

/* What is in @space but for what it left out is still to be walked. */
void plan_run_init(PlanRun *run, const PlanRequest *request, PlanSpace *space,
                   PlanEvaluateFunc evaluate, void *user_data);
void plan_run_clear(PlanRun *run);

/* Objective values above it are of no interest: known_limit before top + 1 plans are found. */
int64_t plan_run_limit(const PlanRun *run);

/* (owned) the space's points in the order of @compare, which gets const PlanPoint **. */
const PlanPoint **plan_run_sort(const PlanRun *run, GCompareFunc compare);

/* Counts a point that does not fit, and remembers the one that comes nearest. */
void plan_run_note_large(PlanRun *run, const PlanPoint *point);

/* Fills the outcomes of the wave's points; the caller clears them. */
void plan_run_threads(PlanRun *run, PlanWave *wave);

/* Evaluates the wave's points and merges what they found. */
void plan_run_wave(PlanRun *run, PlanWave *wave);

/* Of the rough plans found finds the one that is best; after the last wave. */
void plan_run_settle(PlanRun *run);

G_END_DECLS

#endif /* PLANNER_RUN_H */
