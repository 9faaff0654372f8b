/*
 * schedule/stack.h - the date of the software that runs a plan, and what came with which release.
 *
 * A framework's row (framework.h) describes the code of one date.  Older code lacks features that the
 * row has, and older libraries are slower: a plan may name the month of its stack, and then the rules of
 * planner/rules/ refuse what had not been released, and profiles (ProfileStackFactor in
 * profiles/profile.h) say what libraries of before reached.
 *
 * A month is year * 12 + (1 to 12) - 1; 0: none is named.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "schedule/framework.h"

/* Features of frameworks that their first releases lacked. */
typedef enum {
    PLAN_FEATURE_INTERLEAVED,       /* several chunks on a pipeline rank */
    PLAN_FEATURE_SEQUENCE_PARALLEL, /* tp ranks split norms and residuals by tokens */
    PLAN_FEATURE_SELECTIVE,         /* selective recompute */
    PLAN_FEATURE_ZERO1,             /* the optimizer's state is sharded */
    PLAN_FEATURE_ZERO3,             /* gradients, and parameters, are sharded */
    PLAN_FEATURE_FP8,
    PLAN_FEATURE_CONTEXT_PARALLEL,
    PLAN_FEATURE_EXPERTS,        /* models with experts */
    PLAN_FEATURE_UNEVEN,         /* stages of different numbers of layers */
    PLAN_FEATURE_EXPERT_FOLDING, /* experts are split by another tp than everything else */
    PLAN_FEATURE_MTP,
    PLAN_FEATURE_MODULES, /* selective recompute of other modules than the core of attention */
    PLAN_FEATURE_GRAPHS,  /* CUDA graphs of layers */
    PLAN_FEATURE_DEEPEP,  /* dispatchers that send one copy for each place */
    PLAN_FEATURE_HYBRIDEP,
    PLAN_FEATURE_MERGED_PASSES,  /* experts' exchanges run behind another micro-batch */
    PLAN_FEATURE_STATE_CP,       /* context parallelism of layers with states */
    PLAN_FEATURE_EXPERTS_GRAPH,  /* a graph of the whole iteration, experts and all */
    PLAN_FEATURE_DENSE_LAYERS,   /* layers without experts among those with */
    PLAN_FEATURE_HYBRIDS,        /* Mamba of any width, in layers of one half */
    PLAN_FEATURE_SOME_POSITIONS, /* layers without positions among those with rotary ones */
    PLAN_FEATURE_SOME_WINDOWS,   /* windows, of some layers or of all */
    PLAN_FEATURE_SINKS,
    PLAN_FEATURE_EXPERT_BIASES, /* biases of experts' products */
    PLAN_FEATURE_LATENT_EXPERTS,
    PLAN_FEATURE_GATES,               /* of attention's result, and of shared experts */
    PLAN_FEATURE_DELTA_NET,           /* gated delta nets in place of attention */
    PLAN_FEATURE_COMPILED_LOSS,       /* where modules are compiled, so is the loss */
    PLAN_FEATURE_STAGE_OUTPUTS_FREED, /* stages but the last give their results back */
    PLAN_FEATURE_LOGITS_FREED,        /* ... and so does the last */
    PLAN_FEATURE_SUMS_BESIDE, /* tp sums gradients of inputs while it computes those of weights */
    PLAN_FEATURE_N
} PlanFeature;

/* Since when a feature is in a family of frameworks. */
typedef struct {
    int32_t since;       /* month */
    const char *release; /* "Megatron Core 0.4.0" */
    const char *what;    /* "context parallelism" */
} PlanFeatureInfo;

/* Reads "2025-02", or "2025", which is its December; false: neither. */
bool plan_stack_read(const char *text, int32_t *stack);

/* "2025-02" into @text; 0 gives "". */
#define PLAN_STACK_TEXT 8
void plan_stack_text(int32_t stack, char text[PLAN_STACK_TEXT]);

/* The month of the stack that @conventions mean: theirs, or that of the framework's row.  0: the
 * framework has no date, and lacks nothing. */
int32_t plan_stack(const PlanConventions *conventions);

/* Whether the loss is compiled unless a plan says otherwise. */
bool plan_stack_compiles_loss(const PlanConventions *conventions);

/* Whether tp's collectives of products' inputs run beside the backward's products (sums_beside of
 * PlanFrameworkFacts). */
bool plan_stack_sums_beside(const PlanConventions *conventions);

/* (static, nullable) what the stack of @conventions lacks of @feature: when it came.  NULL: it is there,
 * or the framework's releases are not told apart. */
const PlanFeatureInfo *plan_stack_lacks(const PlanConventions *conventions, PlanFeature feature);
