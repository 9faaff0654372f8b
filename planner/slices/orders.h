/*
 * planner/slices/orders.h - groups and slices for 1F1B, interleaved and other families, found by
 * simulating answers.
 *
 * The groups of the answer are the micro-batches of a Schedule, so all of them are cut alike; they
 * may have different numbers of sequences.  Candidates are, for every number of micro-batches, the
 * proven best slicings of the fill-drain formula at an eighth to four times the number of stages
 * (fewer and more slices), and equal slices.  The simulator judges them, and judge.h improves the
 * best.
 *
 * The lower bound.  Whatever the order of ops: a rank does all of its work; its first op waits for
 * the first slice of some group to pass the stages before the rank's first chunk; and its last op,
 * the backward of the first slice of perhaps another group, is followed by the backwards of the
 * same stages.  The least of this over all answers is found exactly.
 *
 * Where all stages are alike, and the order of ops is the same on all ranks, as in all families
 * that slice, the last of n ranks runs forwards only before its first backward, among them all of
 * some group g: a flow shop, in which it idles for (n - 1) max f over the slices of g.  After its
 * last forward, the last slice of some group h, it runs backwards only, among them all of h, and
 * the ranks before it need (n - 1) max b more.  So
 *
 *   time >= sum of a rank's work + (n - 1) (max over g of f + max over h of b)
 *
 * which for groups of one size is the fill-drain formula: no order beats it.  The least is found
 * exactly for every pair of sizes of g and h, with each slice of the other sequences in its best
 * groups.
 *
 * Thread-safety: pure, if the simulation is.
 */
#pragma once

#include "planner/slices/stages.h"
#include "profiles/workload/workload.h"

/* Simulates one answer.  Fills @report (owned by the caller), with peaks if @want_memory. */
typedef bool (*PlanSliceSimulateFunc)(const Schedule *schedule, const Workload *workload,
                                      bool want_memory, Report **report, void *user_data);

typedef struct {
    /* Its n_stages are those of the chain, chunk after chunk: stage c * n_ranks + r is chunk c of
     * rank r.  Its bytes are those of a rank, whose peak must be within the limit.  Its cost and
     * backward are not read. */
    const PlanSliceProblem *problem;
    const PlanSliceStage *stages; /* with backward */
    int64_t n_ranks;
    const char *schedule; /* a family that slices, with n_stages / n_ranks chunks */
    PlanSliceSimulateFunc simulate;
    void *user_data; /* (borrowed) */
} PlanSliceOrder;

/* Returns: (owned) the answer; n_solves counts simulations, max_slice and max_backward are the
 * longest on any stage.  NULL on a PLAN_SLICE_ERROR. */
PlanSliceResult *plan_slice_solve_order(const PlanSliceOrder *order, GError **error);
