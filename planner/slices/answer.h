/*
 * planner/slices/answer.h - an answer of the slicer: a batch as groups of sequences, and the slices
 * of each group.
 *
 * Thread-safety: pure.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

/* A group of sequences that pass through the pipeline together, cut alike. */
typedef struct {
    int64_t batch;  /* sequences of the group */
    int64_t round;  /* the round that it is in (problem.h); 0 where there is only one */
    GArray *slices; /* (owned) of int64_t tokens, in order */
} PlanSliceGroup;

/* Returns: (owned) a group in round 0 without slices. */
PlanSliceGroup *plan_slice_group_new(int64_t batch);

/* Frees a PlanSliceGroup, as a GDestroyNotify. */
void plan_slice_group_free(void *group);

/* Returns: (owned) a copy of @groups (of PlanSliceGroup *), all in round 0. */
GPtrArray *plan_slice_groups_copy(const GPtrArray *groups);

/* Returns: (owned) a copy of @groups in the opposite order. */
GPtrArray *plan_slice_groups_reversed(const GPtrArray *groups);

/* Returns: (owned) @batch sequences as @n groups whose sizes differ by at most one, the larger ones
 * first, all cut as @slices. */
GPtrArray *plan_slice_groups_even(int64_t batch, int64_t n, const GArray *slices);

typedef struct {
    int64_t latency;      /* of the answer, in the unit of the costs */
    int64_t lower_bound;  /* of every answer; equal to latency where the answer is proven optimal */
    int64_t max_slice;    /* the longest slice; forward alone where the directions are apart */
    int64_t max_backward; /* the longest backward where the directions are apart (problem.h) */
    GPtrArray *groups;    /* (owned) of PlanSliceGroup *; of a formula the largest groups first */
    int64_t n_rounds;     /* how often the pipeline is filled (problem.h) */
    int64_t n_solves;     /* dynamic programs that were run, or simulations */
} PlanSliceResult;

void plan_slice_result_free(PlanSliceResult *result);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(PlanSliceResult, plan_slice_result_free)

/* Returns: how many slices all groups have together. */
int64_t plan_slice_count(const PlanSliceResult *result);

/* The order of two answers of the same latency: fewer slices first, then larger groups, then longer
 * slices at the front.  Returns: < 0 where @a is better, > 0 where @b is, 0: they are equal. */
int plan_slice_result_compare(const PlanSliceResult *a, const PlanSliceResult *b);
