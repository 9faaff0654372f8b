/*
 * schedule/zb_auto.h - zb-auto: a schedule built for given times and a memory limit.
 *
 * The automatic schedules of zero bubble [Qi et al. 2401.10241 section 3; ZB-1p and ZB-2p have room
 * for p and 2p micro-batches], extended: times may differ by stage, forwards and backwards have
 * messages of their own, the limit may differ by rank, B may be quicker than I and W, stages lie in
 * a row (1 chunk) or as a V (2 chunks).
 *
 * What is made small: ScheduleTimes.objective, then the other one of makespan and span, by the time
 * that simulator/simulate.h gives where messages overlap.  Never worse than the families that seed
 * it (ScheduleFamily.seeds_search: 1f1b, zb-h1 and zb-h2 for one chunk; zb-v, v-half and v-min for
 * two) as far as these keep the same limit; with may_fold never worse than any of the six.
 *
 * How: those families; list scheduling over a grid of policies, and hill climbing on the best one's
 * numbers rank by rank (zb_greedy.c); beam search with a lower bound, which for small problems is a
 * proof (zb_beam.c, zb_bound.c); local search on the critical path (zb_improve.c).  It stops where
 * the lower bound is reached.
 *
 * Memory: F adds activation_bytes, I turns them into weight_activation_bytes, W (or B) frees what
 * is there.  No rank ever holds more than its limit_bytes, nor than the activation_bytes of
 * limit_micro_batches micro-batches, which is how the papers say "p M_B".  Where all bytes are 0,
 * micro-batches are counted from F to W: a rank then has in flight at most limit_micro_batches
 * times the chunks.  (The same limit in bytes lets more of them be in flight, as I frees a part:
 * ZB-2p needs that for its published bubbles.)
 *
 * Without shape->times: F = I = W = 1, no messages, micro-batches counted, and the limit of ZB-H2,
 * 2p.  That is also the limit where shape->times names none.
 *
 * Cost: O(ops) memory, about 150 bytes each; time 25 000 visits of every op of some 15 ns, but no
 * more than 40 * 2^20 visits (half a second to a second) beyond the dozen or two of each op that
 * building and evaluating the families takes.  Twice that with may_fold.
 *
 * Determinism: integers, one seed; the same input gives the same schedule.
 */
#pragma once

#include "schedule/schedule.h"

/* What the search knows about its answer. */
typedef struct {
    int64_t makespan_ns, span_ns;
    int64_t bound_ns;   /* no schedule with as many chunks has a smaller objective; 0: unknown */
    const char *origin; /* (static) what it grew from: "zb-h2", "greedy", "beam", ... */
} ScheduleZbAutoFacts;

/*
 * Builds for @shape with shape->times; @facts is (out, nullable).  schedule_new("zb-auto") is the
 * same without facts.
 * Returns: (owned) NULL with SCHEDULE_ERROR_SHAPE (shape, times, a limit below one micro-batch) or
 * SCHEDULE_ERROR_LIMIT.
 */
Schedule *schedule_zb_auto(const ScheduleShape *shape, ScheduleZbAutoFacts *facts, GError **error);
