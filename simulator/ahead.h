/*
 * simulator/ahead.h - what ops have whole of the weights of later ops (profiles/workload/prefetch.h).
 *
 * Whole weights that a rank gathers ahead are those that its next ops need: the order of its ops
 * says which, so an op's workspace is known when the schedule is.
 *
 * Internal to simulator/.
 */
#ifndef SIMULATOR_AHEAD_H
#define SIMULATOR_AHEAD_H

#include "simulator/program.h"

G_BEGIN_DECLS

/*
 * Sets ahead_bytes of a compiled @program whose Workload says what is gathered.
 * Returns false on SCHEDULE_ERROR_LIMIT.  Cost: O(ops * depth).
 */
bool sim_ahead_init(SimProgram *program, GError **error);

G_END_DECLS

#endif /* SIMULATOR_AHEAD_H */
