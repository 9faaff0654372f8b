/*
 * planner/bounds/link_bound.h - how long the links of a cluster are busy with what a plan sends.
 *
 * The time of an op holds what its collectives take where the devices of its own rank alone use the links.  Where
 * ranks lie side by side in a node they all send over the node's way out, and the simulator shares it among
 * them (simulator/network.h, docs/cost-model.md 3.5).  Whatever the order of the ops, a link carries all that
 * the iteration sends over it:
 *
 *   iteration >= sum of bytes over a link / what it carries, in each direction
 *
 * What counts: collectives of ops that are waited for, of backwards that may be split the less of both ways;
 * messages; the reduction and the gathering of ranks.  What is hidden behind computing does not count, since its
 * op ends without it; nor do overlapped pairs.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "profiles/workload/workload.h"

/* Returns: what @plan takes at the least; 0: its links share nothing.
 * Cost: O(stages * classes * slices * links of a rank), and with split backwards O(stages * links). */
int64_t plan_bound_links_ns(const Plan *plan, const Workload *workload);
