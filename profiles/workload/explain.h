/*
 * profiles/workload/explain.h - explains the time of a pipeline rank op by op: how often each
 * runs, how long, by which formula, and which parameters decide it.
 *
 * There is no second formula here: every time is asked of cost.h and workload.h again, and which
 * parameters it depends on is found by changing each of them a little.  So an explanation cannot
 * disagree with the model.
 *
 *   elasticity = relative change of the time / relative change of the parameter
 *
 * It is -1 for the share of peak that a product reaches, if the product only computes, and 0.3 for
 * the launch time of a kernel that spends 30 % of its time in it.  A parameter with the value 0 is
 * not changed and so not named.
 */
#pragma once

#include "profiles/workload/workload.h"

#define PROFILE_EXPLAIN_PARAMETERS 4

typedef struct {
    int parameter; /* its row in the table of parameter.h */
    double elasticity;
} ProfileInfluence;

typedef struct {
    char *what;          /* (owned) "layer mlp_up, forward" */
    char *inputs;        /* (owned) "m 8192, n 20480, k 5120" */
    const char *formula; /* (static) with its section in docs/cost-model.md */
    int64_t n;           /* how often the rank runs it in an iteration */
    double total_s;
    ProfileInfluence influences[PROFILE_EXPLAIN_PARAMETERS]; /* largest first */
    size_t n_influences;
} ProfileCostLine;

/* Bytes that one op of the rank's layers keeps from forward to backward of one micro-batch. */
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

/* Explains pipeline rank @rank of a plan that workload_new() accepts, else sets its error.
 * Micro-batches of different sizes are explained as if all were as large as the largest.
 * @explanation  (out) to be cleared. */
bool profile_explain(const ModelArch *arch, const Profile *profile, const Plan *plan, int32_t rank,
                     ProfileExplanation *explanation, GError **error);

/* Returns: (owned) where the value of parameter @i of @profile is from. */
char *profile_parameter_source(const Profile *profile, int i);
