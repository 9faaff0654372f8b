/*
 * cli/explain/explain.h - why a plan won: what every other choice costs, what limits it, and what
 * one more unit of each resource would give.
 *
 * There is no formula here.  Every answer is a search of its own, of the same request with one
 * thing changed:
 *
 *   dimensions   tp (or pp, schedule, ...) fixed at each other value, all else searched again
 *   resources    faster links, more memory, faster devices, more devices, a larger batch
 *
 * and differences are those of the simulator's breakdown, whose classes add up to the iteration.
 *
 * Plans are compared by the objective; time, cost and energy per token, since the batch may differ.
 *
 * Errors: CMD_ERROR_INTERRUPTED; what was searched until then is kept.
 */
#ifndef CLI_EXPLAIN_EXPLAIN_H
#define CLI_EXPLAIN_EXPLAIN_H

#include "cli/request/searches.h"

G_BEGIN_DECLS

/* The breakdown of a report, in its order; names are those of its keys. */
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

/* One other value of a dimension. */
typedef struct {
    ExplainDimension dimension;
    char *value;  /* (owned) "8", "gpipe", "none" */
    guint search; /* index in searches */
} ExplainChoice;

/* One more of something. */
typedef struct {
    char *resource; /* (owned) "link nvlink", "memory", "compute", "devices", "batch" */
    char *change;   /* (owned) "+10 %", "+1 GiB", "x2" */
    char *after;    /* (owned) "330 GB/s" */
    guint search;
} ExplainResource;

/* How much of the objective something costs: what is known to be gained without it. */
typedef struct {
    const char *limit; /* "memory", "link", "bubble", "divisibility", "batch" */
    double fraction;   /* of the iteration, or of the objective per token */
    char *how;         /* (owned) where the number comes from */
} ExplainLimit;

typedef struct {
    const Request *request;       /* (borrowed) */
    const Plan *plan, *runner_up; /* (borrowed; nullable) */
    GPtrArray *searches;          /* of Search * */
    PlanMemo *memo;               /* (owned) of the searches that change neither speeds nor links */
    GArray *choices;              /* of ExplainChoice, by dimension, values ascending */
    GArray *resources;            /* of ExplainResource */
    GArray *limits;               /* of ExplainLimit, the largest first */
} Explanation;

/* Sets up the searches for @plan, which @request found; both outlive the explanation. */
Explanation *explanation_new(const Request *request, const Plan *plan, const Plan *runner_up);
void explanation_free(Explanation *explanation);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Explanation, explanation_free)

/* Searches, then fills limits. */
bool explanation_run(Explanation *explanation, int64_t threads, GError **error);

/* --- readers --- */

/* (owned) the value that @plan has. */
char *explain_value(ExplainDimension dimension, const Plan *plan);

/* What the objective counts, per token where that makes sense; less is better. */
double explain_score(const Explanation *explanation, const Plan *plan);

/* Seconds of each class of @plan beyond those of the winner. */
void explain_difference(const Explanation *explanation, const Plan *plan,
                        double class_s[EXPLAIN_N_CLASSES]);

/* The best other choice in @dimension; NULL if there is none that fits. */
const ExplainChoice *explain_best_choice(const Explanation *explanation,
                                         ExplainDimension dimension);

/* --- products (defined in write.c) --- */

/* The "explain" object of plan's JSON, into the open object. */
void explain_write(JsonWriter *writer, const Explanation *explanation);

/* A screen for people. */
void explain_print(const Explanation *explanation);

G_END_DECLS

#endif /* CLI_EXPLAIN_EXPLAIN_H */
