/*
 * simulator/pairs.h - ops that a framework runs overlapped in pairs (Schedule.overlap_pairs): a
 * forward and a backward of different micro-batches, as DualPipe's  [DeepSeek-V3 2412.19437 3.2.1].
 *
 * A pair begins when its rank is free and the messages of both ops have arrived, and both its
 * messages leave when it ends: the framework receives both, runs one interleaved sequence of
 * kernels and sends both.  With C the computing of an op and K its collectives (tp, cp, ep, ZeRO
 * 3), which run on a stream of their own,
 *
 *   time = max(C1 + C2, K1 + K2, C1 + K1, C2 + K2)
 *
 * at best: kernels are dealt out so that one of the two streams never waits.  Where passes are merged
 * for their experts alone (Workload.merges_pairs), K is the exchanges with these, and all else is
 * computing.  So what a pair gains
 * is communication hidden behind the other op's computing.  Plain op times have none: their pairs
 * are taken apart unless a pair's time is given (Workload.pair_ns).  With blocking messages the
 * compute stream waits in the collectives too: nothing is gained, but the pair is still one.
 *
 * On shared links (contend.h) a pair takes of them what both ops send, spread over its time; it
 * waits for the collectives only as far as they are longer than the computing.  The dp stream does
 * not slow pairs, nor what stands beside them in such a schedule, and parameters are gathered at
 * the end.  With blocking messages pairs are not followed on links.
 *
 * In the trace the two ops share the pair's time in proportion to what each takes alone, one after
 * the other.
 *
 * Internal to simulator/.
 */
#pragma once

#include "simulator/sweep.h"

/* Finds the distinct kinds of pairs of a compiled @program. */
void sim_pairs_init(SimProgram *program);

/* Returns: (borrowed, nullable) the kind of the pair that @step is the first or second op of; NULL
 * if it is in no pair.  Cost: O(log pairs). */
const SimPairKind *sim_pair_at(const SimProgram *program, uint32_t step);

/* Whether @step is the first op of a pair.  Cost: O(log pairs). */
bool sim_pair_is_first(const SimProgram *program, uint32_t step);

/* Where in a pair's time, from @begin_ns to @end_ns, its ops' exchanges with experts are: those of the second op
 * behind the first one's computing, then those of the first behind the second's.  As long as they take alone
 * where the pair takes what @kind says, and in proportion.  @at  (out) [first, second][begin, end] */
void sim_pair_exchanges(const SimProgram *program, const SimPairKind *kind, int64_t begin_ns,
                        int64_t end_ns, int64_t at[2][2]);

/* Fills times->saved_ns if it is there: what pairs save does not depend on when they run. */
void sim_pairs_note_saved(const SimProgram *program, SimTimes *times);
