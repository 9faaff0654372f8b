/*
 * simulator/contend.h - times of a SimProgram where messages share links.
 *
 * What the sweep of program.h does in one pass the engine does here event by event, because how
 * long a message takes depends on what else is under way: an op begins when its rank is free and
 * its message has arrived; when it ends, its message becomes a flow over the links of its way
 * (resource.h).  Where no link ever fills, every message takes its own time, and the result equals
 * that of the sweep to the ns.
 *
 * Only overlapped messages share links.  Blocking ones are part of their rank's own time.
 *
 * Internal to simulator/.
 */
#ifndef SIMULATOR_CONTEND_H
#define SIMULATOR_CONTEND_H

#include "simulator/program.h"
#include "simulator/topology.h"

G_BEGIN_DECLS

/*
 * Fills @times, which sim_times_init() has prepared.
 * Returns false on SCHEDULE_ERROR_LIMIT (no memory, times) or SCHEDULE_ERROR_SHAPE (a capacity that
 * is no number or negative, a node out of range).  Cost: O(ops log ranks), and what sharing costs.
 */
bool sim_program_contend(const SimProgram *program, const SimTopology *topology, SimTimes *times,
                         GError **error);

G_END_DECLS

#endif /* SIMULATOR_CONTEND_H */
