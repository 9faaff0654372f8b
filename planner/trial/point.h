/*
 * planner/trial/point.h - one point of the space: its families and slices, bounded, then simulated.
 *
 * Internal to planner/.  The outcome of a point depends on the point and on the limit it is given,
 * nothing else, so points can be evaluated on any thread.
 */
#ifndef PLANNER_TRIAL_POINT_H
#define PLANNER_TRIAL_POINT_H

#include "planner/bounds/flight.h"
#include "planner/partition/partitions.h"
#include "planner/space/space.h"

G_BEGIN_DECLS

typedef struct {
    const PlanSpace *space; /* (borrowed) */
    PlanEvaluateFunc evaluate;
    void *user_data;
    PlanMemo *memo;             /* (borrowed) */
    int64_t memory_limit_bytes; /* of the largest device, or the user's */
    int64_t least_bytes;        /* of what did not fit so far; INT64_MAX: all did */
    bool is_timeless;           /* the objective is memory: nothing is pruned by its time */
    int64_t most_estimate_ns;   /* points that are estimated to take longer are not sliced */
    const int *stop;            /* (borrowed, nullable) of the request */
} PlanEvaluation;

/* A plan that fits, with its prediction.  Smaller is better: objective, other one, index. */
typedef struct {
    Plan *plan; /* (owned) */
    int64_t first, second, index, order;
    bool is_rough; /* second is a bound on the time, and predicted is not to be used */
} PlanFound;

/*
 * Whether plans are simulated without following links: of the least memory, which links do not
 * change, the time matters only between equals.  Alternatives are wanted with theirs.
 */
static inline bool
plan_evaluation_is_rough(const PlanEvaluation *evaluation)
{
    return evaluation->is_timeless && evaluation->space->request->top == 0;
}

/* Whether the search is to end. */
static inline bool
plan_evaluation_is_stopped(const PlanEvaluation *evaluation)
{
    return evaluation->stop != NULL && g_atomic_int_get(evaluation->stop) != 0;
}

void plan_found_free(PlanFound *found);
int plan_found_compare(const void *a, const void *b); /* of PlanFound ** */

/* What an evaluation adds. */
typedef struct {
    int64_t considered, pruned, simulated, infeasible;
    GPtrArray *found;        /* of (owned) PlanFound * */
    int64_t least_bytes;     /* of what did not fit; INT64_MAX: all fitted */
    int64_t limit_bytes;     /* there */
    Plan *least;             /* (owned, nullable) that plan */
    int64_t least_pruned_ns; /* the least bound of what was pruned */
    int64_t estimate_ns;     /* of plan_estimate_slices() */
    GError *error;           /* (owned, nullable) of the simulator */
} PlanOutcome;

void plan_outcome_init(PlanOutcome *outcome);
void plan_outcome_clear(PlanOutcome *outcome);
/* Moves all of @more to @outcome. */
void plan_outcome_merge(PlanOutcome *outcome, PlanOutcome *more);

/*
 * Tries the families of @point on whole sequences, or as the request slices them (not AUTO).
 * @limit  objective values above it are pruned.
 */
void plan_evaluate_point(const PlanEvaluation *evaluation, const PlanPoint *point, int64_t limit,
                         PlanOutcome *outcome);

/* Slices AUTO: tries the families of @point on the best slices found for it. */
void plan_evaluate_slices(const PlanEvaluation *evaluation, const PlanPoint *point, int64_t limit,
                          PlanOutcome *outcome);

/*
 * How long @point may take with slices: the bound of 16 equal ones under 1F1B's or TeraPipe's
 * order, INT64_MAX if that does not fit; or less than that, but more than is worth a look
 * (most_estimate_ns).  Only outcome->estimate_ns is set.
 */
void plan_estimate_slices(const PlanEvaluation *evaluation, const PlanPoint *point, int64_t limit,
                          PlanOutcome *outcome);

/* Gives @plan balanced layers if @point says so.  False: they are the even ones. */
bool plan_evaluate_set_layers(const PlanEvaluation *evaluation, const PlanPoint *point,
                              const ScheduleFamily *family, Plan *plan);

/* Cuts the plan's sequences into @n nearly equal slices; false where the degrees forbid it. */
bool plan_evaluate_set_uniform(Plan *plan, int64_t n);

G_END_DECLS

#endif /* PLANNER_TRIAL_POINT_H */
