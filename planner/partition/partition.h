/*
 * planner/partition/partition.h - divides layers into stages so that the longest stage is as short
 * as possible and every stage fits in memory.
 *
 * The room partition/ has this program, which knows nothing but integers, the partitions that are
 * tried at a point of the space (partitions.h), and all divisions where they are few (divisions.h).
 *
 * A stage can be run with one of several recompute kinds: a faster kind keeps more of every
 * micro-batch in flight.  Each stage takes its fastest kind that fits.  Stages may lie on devices
 * of different kinds.  The first and last stage carry what comes with embedding and head.
 *
 * How: the shortest longest stage is found by bisection, each stage taking as many layers as it
 * can; where that is not exact, by dynamic programming over (layers so far, stages so far).  A
 * second program finds the least sum of squares at that length.
 *
 * Thread-safety: pure.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#define PLAN_PARTITION_MAX_RECOMPUTES 8

/* Times and bytes are >= 0; their sums stop at INT64_MAX.  All arrays are borrowed.  The index
 * recompute goes through the recompute kinds, the index kind through the kinds of devices. */
typedef struct {
    int64_t n_layers, n_stages;
    bool lone_ends;            /* the first and the last of several stages may have no layers */
    int64_t n_recomputes;      /* recompute kinds of a stage, at most MAX_RECOMPUTES; 0: one */
    const int64_t *layer_ns;   /* [(kind * n_recomputes + recompute) * n_layers + layer] F and B */
    const int64_t *end_ns;     /* (nullable) [kind * 2]: the embedding, on stage 0; + 1: the head */
    const int32_t *stage_kind; /* (nullable) [stage] kind of its devices; NULL: all 0 */
    const int64_t *layer_bytes; /* (nullable) [layer] of parameters' state */
    const int64_t *kept_bytes;  /* (nullable) [recompute * n_layers + layer] for each in flight */
    const int64_t *workspace_bytes_of; /* (nullable) [recompute] of a stage */
    const int64_t *end_bytes;          /* (nullable) [2] state of embedding and head */
    const int64_t *end_kept_bytes;     /* (nullable) [2] what they keep for each in flight */
    const int64_t *stage_in_flight;    /* (nullable) [stage] micro-batches in flight; NULL: one */
    const int64_t *stage_limit_bytes;  /* (nullable) [stage]; 0: no limit */
} PlanPartition;

/*
 * @counts      (out, caller's) [stage] layers, at least one each but of lone ends: those with the shortest longest
 *              stage; among equals the least sum of squared stage times, then the one whose first
 *              different stage has more layers
 * @recomputes  (out, nullable, caller's) [stage] the fastest kind that fits, of equal ones the
 * first Returns false if there are more stages than layers and lone ends, or no partition fits. Cost:
 * O(n_layers^2 * n_recomputes) time as a rule, at most n_stages times that; O(n_layers * n_stages)
 * memory.
 */
bool plan_partition(const PlanPartition *partition, int64_t *counts, int32_t *recomputes);
