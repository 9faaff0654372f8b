/*
 * planner/partition.h - layers to stages: the split whose fullest stage is least, under memory.
 *
 * Exact dynamic programming over (layers so far, stages so far); the first and last stage carry
 * what comes with embedding and head.  Integers only.
 */
#ifndef PLANNER_PARTITION_H
#define PLANNER_PARTITION_H

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

G_BEGIN_DECLS

typedef struct {
    int64_t n_layers, n_stages;
    const int64_t *layer_ns;    /* (borrowed) forward + backward time of each layer */
    const int64_t *layer_bytes; /* (borrowed, nullable) memory that a layer adds to a stage */
    int64_t first_ns, last_ns;  /* embedding on stage 0, head on the last */
    int64_t first_bytes, last_bytes;
    /* (borrowed, nullable) per stage: activations of one layer in flight there, and the device's
     * limit (0: none) */
    const int64_t *stage_layer_bytes;
    const int64_t *stage_limit_bytes;
    bool allow_empty; /* a stage may have no layer */
} PlanPartition;

/*
 * Times and bytes are >= 0; sums saturate at INT64_MAX.
 * @counts  (out, caller's) n_stages layer counts that minimise the largest stage time; among equals
 * the least sum of squared stage times, then more layers on earlier stages (of two splits the
 * one whose first different stage has more).  Returns false with PLAN_ERROR_INFEASIBLE when no
 * split fits the limits, or more stages than layers may not be empty; the message names the stage.
 * Cost: O(n_layers^2 * n_stages) time, O(n_layers * n_stages) memory.
 */
bool plan_partition(const PlanPartition *partition, int64_t *counts, GError **error);

G_END_DECLS

#endif /* PLANNER_PARTITION_H */
