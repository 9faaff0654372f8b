/*
 * planner/search.h - model + profile + limits -> the best plan, with a bound on what another plan
 * could still gain.
 *
 * What the request fixes is fixed, and the rest is searched.  The objective is the simulator
 * itself, which is passed in as a function; closed forms serve only as lower bounds that rule plans
 * out:
 *
 *   lower_bound_s <= time of every plan of the space searched;  gap = 1 - lower_bound_s / time.
 *
 * The space
 * - Degrees: all dp * tp * pp * cp = devices, and all ep.  Objectives cost and energy also choose
 * how many devices to use, where neither n_devices nor all degrees say so: powers of two up to what
 * the cluster has, and all of it.
 * - Micro-batches of up to 4096 sequences that divide the batch, ZeRO stage, offload, sequence
 *   parallelism.
 * - All schedule families with all numbers of chunks, but not those that search for an order
 *   themselves, unless they are named.
 * - Stages: even (plan_set_even_stages()), balanced on the devices on which they lie, or divided so
 *   that they fit with least recompute (partition/partitions.h); where there are few divisions of a
 *   chain, all of them (partition/divisions.h).
 * - Modules of selective recompute, where they are open: each set of planner/modules.h is a space of
 * its own.
 * - Recompute: with one stage per rank every combination of kinds; with chunks one kind for all
 *   stages, and one combination in which each rank saves no more than it must.
 * - Rank orders, where they are open: of all 24 those that differ in where groups lie on the
 * cluster, the first of each kind.
 * - Left out, since they are never better: ZeRO without replicas, chunks or split backwards without
 * a pipeline, and families whose order of ops another one repeats. Of these plans the answer is the
 * best: it equals full enumeration.
 *
 * With PLAN_SLICES_AUTO, slices too, and, where replicas have few sequences and the size of
 * micro-batches is open, micro-batches that differ in size.  Where an estimate promises a gain, all
 * slices that end on eighths of the sequence and may be better are tried (until 2^19 ops were
 * simulated at a point under a family), and what slices/slice.h finds, improved step by step by the
 * simulator.  Finer slices are bounded but not enumerated, so the gap may stay open: slices may
 * take all bubbles away, but not the work that profiles/cost/cost.h says they cannot save.
 * Sequences whose slices are open are sliced in the default rank order alone.
 *
 * Counts of the search: candidates (a point of the space with a family and recompute kinds) that
 * were considered; of them pruned by their bound, simulated, and infeasible for memory, some of
 * which are only known to be so once simulated.
 *
 * Ties are broken by a total order on plans (time, memory, order of enumeration), and nothing that
 * is counted depends on the number of threads.
 */
#pragma once

#include "planner/cost/request.h"

/*
 * Returns: (owned) the best plan with its prediction, lower_bound_s, gap, counts of the search and
 * alternatives; NULL on PLAN_ERROR_INVALID (the request contradicts itself: names the flags) or
 * PLAN_ERROR_INFEASIBLE (names the tightest constraint and, unless is_terse, the nearest change
 * that would fit; or says that the search was stopped before it found a plan).
 */
Plan *plan_search(const PlanRequest *request, PlanEvaluateFunc evaluate, void *user_data,
                  GError **error);

/* Looks for the plan of least memory, whatever the limit is, at the few hundred points whose
 * parameters take least.  @most_bytes: plans of more are of no interest; INT64_MAX: all are.
 * Returns: (owned, nullable) that plan with its prediction; it may need more than @most_bytes. */
Plan *plan_search_least(const PlanRequest *request, int64_t most_bytes, PlanEvaluateFunc evaluate,
                        void *user_data);

/* Returns: (owned) the plan that a request with every degree fixed describes, without a search, as
 * `degas simulate MODEL CLUSTER ...` takes it (slices AUTO may still be chosen, by formula); NULL
 * on PLAN_ERROR_INVALID.  It need not fit in memory. */
Plan *plan_from_request(const PlanRequest *request, GError **error);
