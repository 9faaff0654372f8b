/*
 * planner/run.h - one walk over the points of a space: what was found so far, on several threads.
 *
 * Points are evaluated in waves: a fixed number of them at once, all against the best plans of the
 * waves before, and merged in their order.  So the number of threads changes neither the answer nor
 * the counts.
 *
 * Thread-safety: a run belongs to one thread, which starts the others.
 */
#pragma once

#include "planner/trial/trial.h"

/* Points of a wave: enough for many threads.  The first waves are smaller, to lose little before
 * good plans are known. */
#define PLAN_WAVE 64
#define PLAN_FIRST_WAVE 2

typedef struct {
    PlanEvaluation evaluation;
    const PlanRequest *request; /* (borrowed) */
    PlanSpace *space;           /* (borrowed) */
    PlanOutcome total;          /* its found has the best top + 1 plans, in order */
    int64_t known_limit;        /* a plan of this objective is known: larger ones are of no use */
    int64_t kept_limit; /* the objective of the last of the best top + 1 plans, once there are */
    int64_t lower_bound_ns; /* of what was not simulated */
    bool has_seed;          /* an earlier search has a plan, so a stopped one need not find any */
    PlanMemo *memo;         /* (owned, nullable) if the request has none */
} PlanRun;

/* How a point is evaluated: plan_evaluate_point(), plan_evaluate_slices() or
 * plan_estimate_slices(). */
typedef void (*PlanRunFunc)(const PlanEvaluation *evaluation, const PlanPoint *point, int64_t limit,
                            PlanOutcome *outcome);

typedef struct {
    const PlanRun *run; /* (borrowed) */
    PlanRunFunc evaluate;
    const PlanPoint *points[PLAN_WAVE]; /* (borrowed) */
    PlanOutcome outcomes[PLAN_WAVE];
    int n; /* points */
    int64_t limit;
} PlanWave;

/* Begins a run: what @space left out is counted, its points are still to be walked. */
void plan_run_init(PlanRun *run, const PlanRequest *request, PlanSpace *space,
                   PlanEvaluateFunc evaluate, void *user_data);
void plan_run_clear(PlanRun *run);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(PlanRun, plan_run_clear)

/* Returns: the request is stopped, and is not waited for: a plan is known, or need not be. */
bool plan_run_is_over(const PlanRun *run);

/* Returns: plans of a larger objective are of no use: known_limit until top + 1 plans are found,
 * then that of the last of these. */
int64_t plan_run_limit(const PlanRun *run);

/* Returns: (owned) the space's points in the order of @compare, which gets const PlanPoint **. */
const PlanPoint **plan_run_sort(const PlanRun *run, GCompareFunc compare);

/* Counts a point that does not fit, and remembers the one that comes nearest to fitting. */
void plan_run_note_large(PlanRun *run, const PlanPoint *point);

/* Fills the outcomes of the wave's points; the caller clears them.  Those of points that a stopped
 * search leaves out stay empty. */
void plan_run_threads(PlanRun *run, PlanWave *wave);

/* Evaluates the wave's points and merges what they found. */
void plan_run_wave(PlanRun *run, PlanWave *wave);

/* After the last wave: simulates rough plans to their end, the best first, until none of the best top + 1
 * plans is rough. */
void plan_run_settle(PlanRun *run);
