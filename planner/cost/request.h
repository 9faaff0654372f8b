/*
 * planner/cost/request.h - what a search for a plan is asked: what is fixed, what is open, and what
 * judges a plan.
 *
 * The room cost/ lies below all others of the planner.  It knows what is asked (this file), the
 * points that a request leaves open (point.h), what a layer takes and keeps at the least
 * (layer_cost.h), and how to remember answers (memo.h).
 */
#pragma once

#include "planner/cost/memo.h"
#include "planner/rules/rules.h"
#include "profiles/workload/workload.h"

typedef enum {
    PLAN_OBJECTIVE_TIME,
    PLAN_OBJECTIVE_COST,
    PLAN_OBJECTIVE_ENERGY,
    PLAN_OBJECTIVE_MEMORY,
    PLAN_OBJECTIVE_N
} PlanObjective;
extern const char *const plan_objective_names[PLAN_OBJECTIVE_N + 1];

typedef enum {
    PLAN_SLICES_OFF,     /* whole sequences */
    PLAN_SLICES_AUTO,    /* the search chooses */
    PLAN_SLICES_UNIFORM, /* so many nearly equal slices */
    PLAN_SLICES_GIVEN    /* these lengths */
} PlanSlicesMode;

/* An int of the request that is open: the search chooses it. */
#define PLAN_AUTO (-1)

typedef struct {
    const ModelArch *arch;  /* (borrowed) */
    const Profile *profile; /* (borrowed) its cluster has the devices to use */
    int64_t global_batch, seq_len;
    Dtype dtype;
    int64_t dp, tp, pp, vpp, cp, ep, micro_batch; /* 0: open */
    int rank_order;                               /* index of plan_rank_order_names, or PLAN_AUTO */
    int64_t n_devices;            /* 0: those of the fixed degrees if all are, else the cluster's */
    const char *const *schedules; /* (borrowed, nullable) NULL-terminated; NULL or "auto": open */
    int64_t group;                /* micro-batches per group of interleaved families; 0: default */
    PlanSlicesMode slices_mode;
    int64_t n_slices;        /* of UNIFORM and GIVEN */
    const int64_t *slices;   /* (borrowed) of GIVEN: n_slices lengths in tokens */
    int recompute;           /* PlanRecompute of all stages, or PLAN_AUTO */
    bool searches_modules;   /* what selective recompute repeats is open: modules.h */
    int zero_stage;          /* or PLAN_AUTO */
    int offload;             /* PlanOffload, or PLAN_AUTO */
    bool offload_parameters; /* only plans with ZeRO 3 and offloading are looked at */
    int32_t prefetch_layers; /* of ZeRO 3, or PLAN_PREFETCH_AUTO */
    int sequence_parallel;   /* 0, 1 or PLAN_AUTO */
    PlanConventions conventions;
    const PlanFrameworkRules *rules; /* (borrowed, nullable) that plans keep; NULL: none */
    bool model_runs;       /* the framework is known to run the model: no rule asks about that */
    bool overlap_pp_given; /* conventions.overlap_pp is asked for; else the framework's rule */
    int64_t memory_limit_bytes; /* of a device; 0: what each device has */
    PlanObjective objective;
    int64_t top;     /* alternatives to keep besides the best, no two alike (trial/trial.h) */
    int64_t threads; /* >= 1 */
    bool is_terse;   /* where nothing fits, no change of the request that would is looked for */
    /* (borrowed, nullable) Read atomically.  Once it is not 0 the search ends with the best plan so
     * far, and its lower bound then covers all that was not looked at. */
    const int *stop;
    bool waits; /* a search that is stopped before it has any plan goes on until it has the first */
    /* Degrees at which a plan may be good, where they are open; 0: nothing is known.  A search that
     * is told so ends sooner, with the same plan and other counts.  With the first two, the others
     * say more exactly where. */
    int64_t near_tp, near_pp;
    int64_t near_cp, near_vpp, near_micro_batch;
    PlanMemo *memo;   /* (borrowed, nullable) shared with other searches; NULL: its own */
    PlanMemo *beside; /* (borrowed, nullable) where memo is NULL: of plan_memo_new_beside() */
    /* Nobody asks how much faster a plan could be: slices are not bounded, nor are points sliced that only
     * their bounds point at, and lower_bound_s is NaN. */
    bool skips_bound;
} PlanRequest;

/*
 * Simulates one plan.  May be called from several threads at once.
 * @workload  of the plan
 * @limit_ns  a plan that takes longer is of no use, nor is one that does not fit.  Once that is
 *            certain, any time above the limit and no later than the exact one will do; what the
 *            plan holds in memory is exact in any case.  INT64_MAX: no limit.
 * @report    (out, owned by the caller)
 */
typedef bool (*PlanEvaluateFunc)(const Plan *plan, const Workload *workload, int64_t limit_ns,
                                 Report **report, void *user_data, GError **error);

/* Checks each number of the request alone, and the slices against the sequence.  Returns false with
 * PLAN_ERROR_INVALID, which names the flag. */
bool plan_request_check(const PlanRequest *request, GError **error);

/* Returns: how many units a division into stages can put one by one: the layers, and all MTP modules
 * as one. */
int64_t plan_request_n_units(const PlanRequest *request);

/* Returns: how many stages the units of the model, and its embedding and head alone, can fill. */
int64_t plan_request_most_stages(const PlanRequest *request);

/* Sets @n_devices to how many devices plans lie on.  Returns false with PLAN_ERROR_INVALID or
 * _INFEASIBLE if the fixed degrees do not multiply to a number that there is: names the nearest. */
bool plan_request_find_devices(const PlanRequest *request, int64_t *n_devices, GError **error);

/* Whether the request leaves the schedule family open. */
bool plan_request_opens_schedule(const PlanRequest *request);

/* Returns: (owned) GPtrArray of (borrowed) const ScheduleFamily *, those that the request names, in
 * its order, or all that do not search for an order themselves; NULL with PLAN_ERROR_INVALID. */
GPtrArray *plan_request_families(const PlanRequest *request, GError **error);

/* Returns: the most memory that any device may use; INT64_MAX: there is no limit. */
int64_t plan_request_largest_memory(const PlanRequest *request);

/* --- rules --- */

/* Has plans keep the rules of the request's framework; after all that a user fixes. */
void plan_request_set_rules(PlanRequest *request);

/* Returns: what all plans of the request have, as rules look at it. */
PlanRuleCase plan_request_case(const PlanRequest *request);

/* Sets PLAN_ERROR_INVALID, which names the framework and its rule; its value is false. */
bool plan_request_refuse(const PlanRequest *request, const PlanBreach *breach, GError **error);

/* --- recompute --- */

/* Whether the request allows the recompute kind @recompute. */
static inline bool
plan_request_allows(const PlanRequest *request, int recompute)
{
    if (request->recompute == recompute)
        return true;
    if (request->recompute != PLAN_AUTO)
        return false;
    return request->rules == NULL ||
           ((request->rules->recomputes >> recompute & 1) != 0 &&
            (recompute != PLAN_RECOMPUTE_FULL ||
             !plan_rules_merge(request->rules, &request->conventions, request->arch,
                               request->ep)) &&
            (recompute != PLAN_RECOMPUTE_SELECTIVE ||
             plan_stack_lacks(&request->conventions, PLAN_FEATURE_SELECTIVE) == NULL));
}

/* Whether the request allows stages of different numbers of layers. */
static inline bool
plan_request_allows_uneven(const PlanRequest *request)
{
    return request->rules == NULL ||
           (request->rules->uneven &&
            plan_stack_lacks(&request->conventions, PLAN_FEATURE_UNEVEN) == NULL);
}

/* Returns: the fastest recompute kind that the request allows and that is slower than @recompute;
 * -1: there is none. */
static inline int
plan_request_slower_recompute(const PlanRequest *request, int recompute)
{
    for (recompute++; recompute < PLAN_RECOMPUTE_N; recompute++)
        if (plan_request_allows(request, recompute))
            return recompute;
    return -1;
}

/* Returns: the fastest recompute kind that the request allows. */
static inline int
plan_request_fastest_recompute(const PlanRequest *request)
{
    return request->recompute == PLAN_AUTO ? PLAN_RECOMPUTE_NONE : request->recompute;
}

/* --- slices --- */

/* Returns: how many slices the request fixes; 1: sequences stay whole, or the search chooses. */
int64_t plan_request_n_slices(const PlanRequest *request);

/* Returns: the tokens of which every slice is a multiple at these degrees. */
static inline int64_t
plan_granularity(const PlanDegrees *degrees, bool sequence_parallel)
{
    return degrees->cp * (sequence_parallel ? degrees->tp : 1);
}

/* Fills @slices (of int64_t) with @n nearly equal slices of @seq_len tokens, the longer ones first.
 * Returns false where @granularity forbids so many. */
bool plan_uniform_slices(int64_t seq_len, int64_t granularity, int64_t n, GArray *slices);

/* Fills @slices (of int64_t) with those that the request fixes, or the whole sequence.  Returns
 * false where @granularity forbids them. */
bool plan_request_slices(const PlanRequest *request, int64_t granularity, GArray *slices);
