/*
 * profiles/workload/explain.h - where a rank's time goes, op by op: how often, how long, by which
 * formula, with which parameters.
 *
 * No second formula: every time is asked of cost.h and workload.h again, and which parameters it
 * rests on is found by changing each a little, so an explanation cannot disagree with the model.
 *
 *   elasticity = relative change of the time / relative change of the parameter
 *
 * -1 for the share of peak of a product that computes all the time, 0.3 for a launch time that is
 * 30 % of a kernel's.  Parameters of value 0 are not changed and so not named.
 */
#ifndef PROFILES_WORKLOAD_EXPLAIN_H
#define PROFILES_WORKLOAD_EXPLAIN_H

#include "profiles/workload/workload.h"

G_BEGIN_DECLS

#define PROFILE_EXPLAIN_PARAMETERS 4

typedef struct {
    int parameter; /* row of parameter.h */
    double elasticity;
} ProfileInfluence;

typedef struct {
    char *what;          /* (owned) "layer mlp_up, forward" */
    char *inputs;        /* (owned) "m 8192, n 20480, k 5120" */
    const char *formula; /* (static) with its place in docs/cost-model.md */
    int64_t n;           /* how often in an iteration, on the rank */
    double total_s;
    ProfileInfluence influences[PROFILE_EXPLAIN_PARAMETERS]; /* largest first */
    size_t n_influences;
} ProfileCostLine;

/* Bytes kept by one op of the rank's layers from forward to backward, for one micro-batch. */
typedef struct {
    char *what; /* (owned) */
    int64_t bytes;
} ProfileMemoryLine;

typedef struct {
    GArray *costs;  /* (owned) of ProfileCostLine, largest first; sums to the rank's busy time */
    GArray *memory; /* (owned) of ProfileMemoryLine, largest first */
} ProfileExplanation;

void profile_explanation_clear(ProfileExplanation *explanation);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(ProfileExplanation, profile_explanation_clear)

/* Of pipeline rank @rank; the plan must be one that workload_new() accepts.  Micro-batches of
 * different sizes are explained as if all were of the largest. */
bool profile_explain(const ModelArch *arch, const Profile *profile, const Plan *plan, int32_t rank,
                     ProfileExplanation *explanation, GError **error);

/* (owned) where parameter @i of @profile has its value from. */
char *profile_parameter_source(const Profile *profile, int i);

G_END_DECLS

#endif /* PROFILES_WORKLOAD_EXPLAIN_H */
