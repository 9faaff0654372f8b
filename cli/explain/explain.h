/*
 * cli/explain/explain.h - Explanation: why a plan is the best: what every other choice costs, what
 * limits the plan, and what more of each resource would give.
 *
 * The main header of the room explain/, which answers degas plan --explain and degas simulate
 * --explain; only these two commands come in.
 *
 * There is no formula here.  Every answer is a search of its own, for the same request with one
 * thing changed:
 *
 *   dimensions   tp (or pp, schedule, ...) is fixed at another value, all else is searched again
 *   resources    faster links, more memory, faster devices, more devices, a larger batch
 *
 * Where the time of two plans differs is read off the simulator's breakdown, whose classes add up
 * to the iteration.  Plans are compared by the request's objective: time, cost and energy per
 * token, since the batch may differ, or memory.
 *
 * Errors: CMD_ERROR_INTERRUPTED; what was searched until then is kept.
 */
#pragma once

#include "cli/request/job.h"
#include "cli/request/searches.h"

/* The classes of a report's breakdown, in its order, named as its keys. */
#define EXPLAIN_N_CLASSES 9
extern const char *const explain_class_names[EXPLAIN_N_CLASSES + 1];

typedef enum {
    EXPLAIN_DP,
    EXPLAIN_TP,
    EXPLAIN_PP,
    EXPLAIN_VPP,
    EXPLAIN_CP,
    EXPLAIN_EP,
    EXPLAIN_MICRO_BATCH,
    EXPLAIN_SCHEDULE,
    EXPLAIN_SLICES,
    EXPLAIN_RECOMPUTE,
    EXPLAIN_ZERO,
    EXPLAIN_SEQUENCE_PARALLEL,
    EXPLAIN_RANK_ORDER,
    EXPLAIN_N_DIMENSIONS
} ExplainDimension;
extern const char *const explain_dimension_names[EXPLAIN_N_DIMENSIONS + 1];

/* Another value of a dimension than the plan has. */
typedef struct {
    ExplainDimension dimension;
    char *value;  /* (owned) "8", "gpipe", "none" */
    guint search; /* index in searches: the best plan with that value */
} ExplainChoice;

/* More of a resource. */
typedef struct {
    char *resource; /* (owned) "link nvlink", "memory", "compute", "devices", "batch" */
    char *change;   /* (owned) "+10 %", "+1 GiB", "x2" */
    char *after;    /* (owned) "330 GB/s" */
    guint search;
} ExplainResource;

/* Something that limits the plan, and what part of the objective is surely gained without it. */
typedef struct {
    const char *limit; /* "memory", "link", "bubble", "divisibility", "batch" */
    double fraction;   /* of the iteration, or of the objective per token */
    char *how;         /* (owned) how the number was found */
} ExplainLimit;

typedef struct {
    const Request *request;       /* (borrowed) */
    const Plan *plan, *runner_up; /* (borrowed; nullable) */
    /* (owned, nullable) The plan with its layers divided equally by count; NULL: it has them so. */
    Plan *equal;
    GPtrArray *searches; /* of Search * */
    GArray *choices;     /* of ExplainChoice, by dimension, values ascending */
    GArray *resources;   /* of ExplainResource */
    GArray *limits;      /* of ExplainLimit, the largest first */
} Explanation;

/* Sets up the searches that explain @plan, the best of @request, which share its memo where devices
 * and links stay as they are.  Both, and @runner_up (nullable), the second best, must outlive the
 * explanation. */
Explanation *explanation_new(const Request *request, const Plan *plan, const Plan *runner_up);
void explanation_free(Explanation *explanation);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Explanation, explanation_free)

/* Runs the searches, then finds the limits.  Returns false with CMD_ERROR_INTERRUPTED. */
bool explanation_run(Explanation *explanation, int64_t threads, GError **error);

/* --- readers --- */

/* Returns: (owned) the value that @plan has in @dimension. */
char *explain_value(ExplainDimension dimension, const Plan *plan);

/* By which fraction the objective of @plan is above the explained plan's: less than 0 is better. It
 * is counted per token unless it is memory. */
double explain_change(const Explanation *explanation, const Plan *plan);

/* Sets the seconds of each class by which @other takes longer than @plan; both are predicted. */
void explain_difference(const Plan *plan, const Plan *other, double class_s[EXPLAIN_N_CLASSES]);

/* The choice in @dimension with the best plan; NULL if no other value has a plan. */
const ExplainChoice *explain_best_choice(const Explanation *explanation,
                                         ExplainDimension dimension);

/* --- products (defined in write.c) --- */

/* Writes the member "explain" of a plan file into the open object. */
void explain_write(JsonWriter *writer, const Explanation *explanation);

/* Prints the explanation for people on stdout. */
void explain_print(const Explanation *explanation);

/* --- degas simulate --explain (defined in costs.c) --- */

/*
 * Prints for people on stdout, or writes as the member "explanation" of an open object, the largest
 * costs of the busiest rank of a simulated iteration and the largest holders of memory of the
 * fullest: each with its formula, the parameters that it rests on, and where their values come
 * from.  Errors: those of profile_explain().
 */
bool explain_costs_print(const Job *job, const Report *report, GError **error);
bool explain_costs_write(JsonWriter *writer, const Job *job, const Report *report, GError **error);
