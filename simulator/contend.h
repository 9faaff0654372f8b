/*
 * simulator/contend.h - the event engine: when every step of a SimProgram happens where links are
 * shared.
 *
 * The sweep (sweep.h) finds times in one pass.  Here they are found event by event, because how
 * long something takes depends on what else happens at that time.  Each rank has
 *
 *   a compute stream     ops, one after the other; an op whose collectives cross links is a flow
 *                        over them (resource.h); so is a blocking message, on its receiver's stream
 *   a stream to each     overlapped messages, in the order in which their ops ended, one at a time
 *   neighbour
 *   a dp stream          what finish.h puts on it, one collective at a time
 *
 * and what different streams take of the links is shared, max-min fair.  While the dp stream works,
 * or an overlapped message comes or goes, computing runs at the workload's share of its speed.
 *
 * Only what can meet something else has events: transfers over links that can fill (network.h),
 * unless they are messages that certainly meet no other (rivals.h), and computing beside the dp
 * stream.  A rank runs everything else ahead of the clock, at once, as soon
 * as it knows what it needs.  What begins and ends at one instant does so in the order of the
 * timers, compute streams before messages before dp streams, ranks ascending; rates follow once,
 * when all of it has happened.
 *
 * Where only messages share links, what happens before they first do is taken over from the sweep.
 *
 * Where no link is wanted too much, everything takes its own time, and the result equals that of
 * the sweep to the ns.
 *
 * Internal to simulator/.
 */
#pragma once

#include "simulator/network.h"
#include "simulator/sweep.h"

/* Of sim_program_contend(). */
#define SIM_FOLLOW_ALL INT64_C(-1)

/*
 * Fills @times, which sim_times_init() has prepared.
 * @network   (nullable) of @program; NULL: nothing crosses links.
 * @known_ns  until when the times of a sweep, which are in @times, hold (sim_network_suffices_until());
 *            0: none are known.  SIM_FOLLOW_ALL: likewise, and messages that certainly meet no other
 *            are followed, too, which is slower and gives the same.
 * Returns false on SCHEDULE_ERROR_LIMIT (no memory, times).
 * Cost: O(ops) and, for those that have events, O(log ranks) each, and what sharing costs.
 */
bool sim_program_contend(const SimProgram *program, const SimNetwork *network, int64_t known_ns,
                         SimTimes *times, GError **error);
