/*
 * planner/trial/trial.h - one plan at one point: bounded, then simulated; and what is known of the
 * point after it.
 *
 * The room trial/ chooses, at a point of the space, families, layers of stages and recompute kinds
 * (point.h) and slices (slices.h), and tries the plans that they make.  The outcome depends on the
 * point and on the limit that it is given, and on nothing else, so points can be evaluated on any
 * thread.
 */
#pragma once

#include "planner/space/space.h"

/* --- what all points of a search have in common --- */

typedef struct {
    const PlanSpace *space; /* (borrowed) */
    PlanEvaluateFunc evaluate;
    void *user_data;
    PlanMemo *memo;             /* (borrowed) */
    int64_t memory_limit_bytes; /* of the largest device, or the user's */
    int64_t least_bytes;        /* of what did not fit so far; INT64_MAX: everything did */
    bool is_timeless;           /* the objective is memory: nothing is pruned by its time */
    int64_t most_estimate_ns;   /* points that are estimated to take longer are not sliced */
    bool slices_briefly;  /* few slicings of a point are simulated, unless one is the best so far */
    bool skips_divisions; /* layers are not divided in all ways, few as they may be */
    const int *stop;      /* (borrowed, nullable) of the request */
} PlanEvaluation;

/* Whether the search is to end now. */
static inline bool
plan_evaluation_is_stopped(const PlanEvaluation *evaluation)
{
    return evaluation->stop != NULL && g_atomic_int_get(evaluation->stop) != 0;
}

/* --- what is found at a point --- */

/* A plan that fits, with its prediction. */
typedef struct {
    Plan *plan;                   /* (owned) */
    int64_t first;                /* the objective: time in ns, or bytes */
    int64_t second, index, order; /* ties: the other one of the two, the point, the plan there */
    bool is_rough; /* second is only a bound on the time, and predicted is not to be used */
    char *choices; /* (owned, nullable) what a person would change; NULL: nobody asks for others */
} PlanFound;

/* Returns: (owned) what a person would change of @plan, in one word: plans with the same are alike. */
char *plan_choices(const Plan *plan);

/* Keeps the first @most plans of @found, which is in order; of plans with the same choices only the
 * first.  Choices are degrees, micro-batch, schedule, whether sequences are sliced, recompute, ZeRO,
 * offload and sequence parallelism; stages, slices and the order of ranks are none. */
void plan_found_keep(GPtrArray *found, guint most);

/* The total order of plans, of PlanFound **: by first, second, index, order; smaller is better. */
int plan_found_compare(const void *a, const void *b);

/* What an evaluation adds to a search. */
typedef struct {
    int64_t considered, pruned, simulated, infeasible;
    GPtrArray *found;    /* (owned) of (owned) PlanFound * */
    int64_t least_bytes; /* the least memory of what did not fit; INT64_MAX: everything fitted */
    int64_t limit_bytes; /* what would have been allowed there */
    Plan *least;         /* (owned, nullable) that plan */
    int64_t least_pruned_ns; /* the least bound of what was pruned */
    int64_t estimate_ns;     /* set by plan_estimate_slices() alone */
    GError *error;           /* (owned, nullable) the first one of the simulator */
} PlanOutcome;

void plan_outcome_init(PlanOutcome *outcome);
void plan_outcome_clear(PlanOutcome *outcome);
/* Moves all of @more to @outcome. */
void plan_outcome_merge(PlanOutcome *outcome, PlanOutcome *more);

/* --- plans at one point --- */

typedef struct {
    const PlanEvaluation *evaluation; /* (borrowed) */
    const PlanPoint *point;           /* (borrowed) */
    int64_t limit;                    /* plans of a larger objective are pruned */
    PlanOutcome *outcome;             /* (borrowed) */
    int64_t order;                    /* of the next plan, for ties */
    int64_t *limits_bytes;            /* (owned) [rank] memory; 0: no limit */
} PlanTrial;

void plan_trial_init(PlanTrial *trial, const PlanEvaluation *evaluation, const PlanPoint *point,
                     int64_t limit, PlanOutcome *outcome);
void plan_trial_clear(PlanTrial *trial);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(PlanTrial, plan_trial_clear)

typedef enum {
    PLAN_TRIED_FITS,
    PLAN_TRIED_LARGE,  /* it does not fit */
    PLAN_TRIED_PRUNED, /* by its bound, or by its simulated time */
    PLAN_TRIED_FAILED, /* it cannot be priced or simulated */
} PlanTried;

/*
 * Prices, bounds and simulates @plan; counts it as pruned, infeasible or simulated.
 * @large  (out, nullable, owned by the caller) the report of a plan that does not fit; where it is
 *         asked for, such a plan is simulated even if its bound says that it does not fit
 */
PlanTried plan_trial_plan(PlanTrial *trial, const Plan *plan, const ScheduleFamily *family,
                          Report **large);

/* The same in every rank order of the point; the first of them says what is returned, and sets
 * @large. */
PlanTried plan_trial_orders(PlanTrial *trial, const Plan *plan, const ScheduleFamily *family,
                            Report **large);

/* Simulates a rough plan to its end, so that its second and its prediction are exact. */
bool plan_trial_settle(const PlanEvaluation *evaluation, PlanFound *found, GError **error);

/* Remembers @plan if it comes nearest to fitting of all that do not. */
void plan_trial_note_large(PlanTrial *trial, const Plan *plan, int64_t bytes);
/* Whether a plan that takes @ns at the least is too slow; remembered if so.  Not for an objective
 * other than time. */
bool plan_trial_is_slow(PlanTrial *trial, int64_t ns);
/* Remembers @error (taken), if it is the first. */
void plan_trial_note_error(PlanTrial *trial, GError *error);

/* Returns: what a peak may reach on the rank where it may reach most; INT64_MAX: no limit. */
int64_t plan_trial_most_usable_bytes(const Workload *workload);
