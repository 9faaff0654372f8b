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
 * but not the work of profiles/cost/cost.h.  The order of dimensions over ranks, where it is
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

#include "planner/cost/request.h"

G_BEGIN_DECLS

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
