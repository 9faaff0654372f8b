/*
 * planner/partition/partition.h - layers to stages: the split whose longest stage is shortest,
 * under memory.
 *
 * A stage is run in one of several ways (what it recomputes): a faster way keeps more per unit in
 * flight.  Stages may lie on devices of different kinds; the first and last stage carry what comes
 * with embedding and head.  Integers only.
 *
 * Exact dynamic programming over (layers so far, stages so far), each stage in its fastest way that
 * fits.  Where several stages share a rank's memory (chunks), that choice is no longer each stage's
 * own; then branch and bound, with the program of unshared memory as its bound.
 */
#ifndef PLANNER_PARTITION_PARTITION_H
#define PLANNER_PARTITION_PARTITION_H

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

G_BEGIN_DECLS

#define PLAN_PARTITION_MAX_RECOMPUTES 8

/* Times and bytes are >= 0; sums saturate at INT64_MAX.  All arrays are borrowed. */
typedef struct {
    int64_t n_layers, n_stages;
    int64_t n_recomputes;       /* to run a stage, at most the above; 0: one */
    const int64_t *layer_ns;    /* [(kind * n_recomputes + way) * n_layers + layer] both passes */
    const int64_t *end_ns;      /* (nullable) [kind * 2]: embedding, on stage 0; + 1: head, last */
    const int32_t *stage_kind;  /* (nullable) [stage] kind of device; NULL: 0 */
    const int64_t *layer_bytes; /* (nullable) [layer] that stay: parameters' state */
    const int64_t *kept_bytes;  /* (nullable) [way * n_layers + layer] of one unit in flight */
    const int64_t *workspace_bytes_of; /* (nullable) [way] once per stage: workspace */
    const int64_t *end_bytes;          /* (nullable) [2] that stay on the first and last stage */
    const int64_t *end_kept_bytes;     /* (nullable) [2] of one unit in flight there */
    const int64_t *stage_in_flight;    /* (nullable) [stage] units in flight; NULL: one */
    const int64_t *stage_limit_bytes;  /* (nullable) [stage]; 0: none */
    /* (nullable) [stage] 0 <= rank < n_stages: stages of one rank share its limit, which is that
     * of its first stage */
    const int32_t *stage_rank;
    bool allow_empty; /* a stage may have no layer */
} PlanPartition;

/* Steps of the branch and bound of shared memory; then the best split so far is the answer. */
#define PLAN_PARTITION_MAX_STEPS (INT64_C(1) << 18)

/*
 * @counts  (out, caller's) n_stages layer counts that minimise the longest stage; among equals the
 *          least sum of squared stage times, then more layers on earlier stages (of two splits the
 *          one whose first different stage has more).
 * @ways    (out, nullable, caller's) [stage] the fastest way that fits, of equal ones the first.
 * Returns false with PLAN_ERROR_INFEASIBLE when no split fits the limits, or more stages than
 * layers may not be empty; the message names the stage.
 * Cost: O(n_layers^2 * n_recomputes) time as a rule, * n_stages at most; O(n_layers * n_stages)
 * memory.
 */
bool plan_partition(const PlanPartition *partition, int64_t *counts, int32_t *recomputes,
                    GError **error);

G_END_DECLS

#endif /* PLANNER_PARTITION_PARTITION_H */
