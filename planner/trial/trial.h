/*
 * planner/trial/trial.h - one plan at one point: bounded, then simulated; and what is known of it
 * after.
 *
 * Internal to planner/.
 */
#ifndef PLANNER_TRIAL_TRIAL_H
#define PLANNER_TRIAL_TRIAL_H

#include "planner/trial/point.h"

G_BEGIN_DECLS

/* What is tried at one point. */
typedef struct {
    const PlanEvaluation *evaluation; /* (borrowed) */
    const PlanPoint *point;           /* (borrowed) */
    int64_t limit;                    /* objective values above it are pruned */
    PlanOutcome *outcome;             /* (borrowed) */
    int64_t order;                    /* of the next plan, for ties */
    int64_t *limits_bytes;            /* (owned) memory of each rank; 0: no limit */
} PlanTrial;

void plan_trial_init(PlanTrial *trial, const PlanEvaluation *evaluation, const PlanPoint *point,
                     int64_t limit, PlanOutcome *outcome);
void plan_trial_clear(PlanTrial *trial);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(PlanTrial, plan_trial_clear)

typedef enum {
    PLAN_TRIED_FITS,
    PLAN_TRIED_LARGE,  /* it does not fit */
    PLAN_TRIED_PRUNED, /* by its bound, or its simulated time */
    PLAN_TRIED_FAILED, /* it cannot be priced or simulated */
} PlanTried;

/*
 * Bounds and simulates one plan; counts it as pruned, infeasible or simulated.
 * @large  (out, nullable, owned) the report of a plan that does not fit; then it is simulated
 *         even if its bound says so.
 */
PlanTried plan_trial_simulate(PlanTrial *trial, const Plan *plan, const Workload *workload,
                              const ScheduleFamily *family, Report **large);

/* Simulates a rough plan to its end: its second and what is predicted are exact from now on. */
bool plan_trial_settle(const PlanEvaluation *evaluation, PlanFound *found, GError **error);

/* Prices @plan, then as above. */
PlanTried plan_trial_plan(PlanTrial *trial, const Plan *plan, const ScheduleFamily *family,
                          Report **large);

/* The same in every order of ranks of the trial's point, the first of which says what is returned
 * and what is @large. */
PlanTried plan_trial_orders(PlanTrial *trial, const Plan *plan, const ScheduleFamily *family,
                            Report **large);

/* Remembers @plan if it is the one that comes nearest to fitting. */
void plan_trial_note_large(PlanTrial *trial, const Plan *plan, int64_t bytes);
/* Remembers a bound that pruned. */
void plan_trial_note_slow(PlanTrial *trial, int64_t bound_ns);
/* (taken) @error, if it is the first. */
void plan_trial_note_error(PlanTrial *trial, GError *error);

/* What a peak may reach on the rank where it may reach most; INT64_MAX: no limit. */
int64_t plan_trial_most_usable(const Workload *workload);

/* The next slower way of recompute that the request allows, from -1 on; -1: there is none. */
int plan_trial_next_recompute(const PlanRequest *request, int recompute);

G_END_DECLS

#endif /* PLANNER_TRIAL_TRIAL_H */
