/*
 * planner/search.h - model + profile + limits -> the best Plan, with a bound on what could still be
 * gained.
 *
 * What the request fixes is fixed; the rest is searched.  The objective is the simulator itself,
 * passed in as a function; closed forms serve only as lower bounds for pruning:
 *
 *   lower_bound_s <= time of every plan of the space searched;  gap = 1 - lower_bound_s / time.
 *
 * The space: all dp * tp * pp * cp = devices, ep, micro-batches (up to 4096 sequences) that divide
 * the batch, ZeRO stage, offload, sequence parallelism, all schedule families (but those that
 * search for an order themselves, unless named) with all numbers of chunks; stages even (as
 * plan_set_even_stages()), divided so that the longest is shortest on the devices where they lie
 * (plan_partition()), or so that they fit with least recompute; recompute of each stage: with one
 * stage per rank every combination, with chunks one way for all and one in which each rank saves no
 * more than it must.  Of these the answer is the best: it equals full enumeration.  With
 * PLAN_SLICES_AUTO also every way to slice the sequences, and where replicas have few of them and
 * no micro-batch is asked for, micro-batches that differ in size: where an estimate promises a
 * gain, all that lie on eighths of the sequence and may be better (until 2^19 ops were simulated at
 * a point under a family), and what slice.h finds, improved step by step by the simulator; finer
 * ones are not enumerated but bounded, so the gap may stay open: slices may take all bubbles away,
 * but not the work of profiles/cost/cost_floor.h.  The order of dimensions over ranks, where it is
 * searched: of all 24 one of those in which groups lie alike on the cluster, the first; sequences
 * that are not given in slices are sliced in the default alone, and least memory, which no order
 * changes, is looked for there. Objectives cost and energy also choose how many devices to use,
 * where neither n_devices nor all degrees say so: powers of two up to what the cluster has, and all
 * of it. Left out, since they are never better: ZeRO without replicas, chunks or split backwards
 * without a pipeline, and families whose order of ops another one repeats.
 *
 * Counts of the search: considered candidates (a point of the space and a family), pruned by their
 * bound, simulated, infeasible for memory (some of them only once simulated).
 *
 * Ties are broken by a total order on plans (time, memory, order of enumeration), and nothing that
 * is counted depends on threads.
 */
#ifndef PLANNER_SEARCH_H
#define PLANNER_SEARCH_H

#include "planner/memo.h"
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

/*
 * Returns: (owned) the best plan with predicted, lower_bound_s, gap, search counts and
 * alternatives, or NULL on PLAN_ERROR_INVALID (contradictory request: names the flags) or
 * PLAN_ERROR_INFEASIBLE (names the tightest constraint and, unless is_terse, the nearest change
 * that would fit; or that the search was stopped before it found a plan).
 */
Plan *plan_search(const PlanRequest *request, PlanEvaluateFunc evaluate, void *user_data,
                  GError **error);

/*
 * The plan that a request with every degree fixed describes, not searched (slices AUTO and stages
 * may still be optimised); for `degas simulate MODEL CLUSTER ...`.  It need not fit in memory.
 */
Plan *plan_from_request(const PlanRequest *request, GError **error);

G_END_DECLS

#endif /* PLANNER_SEARCH_H */
