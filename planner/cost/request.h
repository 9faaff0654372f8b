/*
 * planner/cost/request.h - what a search for a plan is asked: what is fixed, what is searched, and
 * what judges a plan.
 */
#ifndef PLANNER_COST_REQUEST_H
#define PLANNER_COST_REQUEST_H

#include "planner/cost/memo.h"
#include "profiles/workload/workload.h"

G_BEGIN_DECLS

typedef enum {
    PLAN_OBJECTIVE_TIME,
    PLAN_OBJECTIVE_COST,
    PLAN_OBJECTIVE_ENERGY,
    PLAN_OBJECTIVE_MEMORY,
    PLAN_OBJECTIVE_N
} PlanObjective;
extern const char *const plan_objective_names[PLAN_OBJECTIVE_N + 1];

typedef enum {
    PLAN_SLICES_OFF,
    PLAN_SLICES_AUTO,
    PLAN_SLICES_UNIFORM,
    PLAN_SLICES_GIVEN
} PlanSlicesMode;

#define PLAN_AUTO (-1) /* an int of the request that is searched */

/* Zero or PLAN_AUTO degrees are searched. */
typedef struct {
    const ModelArch *arch;  /* (borrowed) */
    const Profile *profile; /* (borrowed) its cluster has the devices to use */
    int64_t global_batch, seq_len;
    Dtype dtype;
    int64_t dp, tp, pp, vpp, cp, ep, micro_batch; /* 0: searched */
    int rank_order;                               /* of plan_rank_order_names, or PLAN_AUTO */
    int64_t n_devices;            /* 0: all of the cluster (or dp*tp*pp*cp when fixed) */
    const char *const *schedules; /* (borrowed, nullable) NULL-terminated; NULL: automatic choice */
    int64_t group;                /* interleaved; 0: default */
    PlanSlicesMode slices_mode;
    int64_t n_slices;        /* UNIFORM */
    const int64_t *slices;   /* GIVEN: n_slices lengths, (borrowed) */
    int recompute;           /* PlanRecompute or PLAN_AUTO */
    int zero_stage;          /* or PLAN_AUTO */
    int offload;             /* PlanOffload or PLAN_AUTO */
    bool offload_parameters; /* plans with ZeRO 3 and offloading only */
    int32_t prefetch_layers; /* of ZeRO 3, or PLAN_PREFETCH_AUTO */
    int sequence_parallel;   /* 0, 1 or PLAN_AUTO */
    PlanConventions conventions;
    bool overlap_pp_given;      /* conventions.overlap_pp is asked for; else the framework's rule */
    int64_t memory_limit_bytes; /* 0: the devices' */
    PlanObjective objective;
    int64_t top;     /* alternatives to keep besides the best */
    int64_t threads; /* >= 1 */
    bool is_terse;   /* where nothing fits, the nearest change that would is not looked for */
    /* (borrowed, nullable) read atomically: once it is not 0 the search ends with the best so far,
     * whose lower bound then covers all that was not looked at */
    const int *stop;
    /* A plan with these degrees may be good, where they are not fixed; 0: nothing is known.  A
     * search that is told so is sooner at its end, with the same plan and other counts. */
    int64_t near_tp, near_pp;
    PlanMemo *memo; /* (borrowed, nullable) shared with other searches; NULL: its own */
} PlanRequest;

/*
 * Simulates one plan.  @workload is the plan's; fills @report (owned by the caller).  May be called
 * from several threads at once.
 * @limit_ns  a plan that takes longer is of no use: once that is certain its exact time need not be
 *            found, any above the limit and no later will do (what it holds in memory is still
 *            exact).
 *            INT64_MAX: none.  The same holds of a plan that does not fit.
 */
typedef bool (*PlanEvaluateFunc)(const Plan *plan, const Workload *workload, int64_t limit_ns,
                                 Report **report, void *user_data, GError **error);

G_END_DECLS

#endif /* PLANNER_COST_REQUEST_H */
