/*
 * simulator/compile.h - from a Schedule to steps in topological order, checked on the way.
 *
 * A worklist over ranks: each runs its ops in order until one needs a message that was not sent
 * yet.  It finds producers by arithmetic on (rank, unit), with the dependencies as
 * schedule/schedule.h states them, and meets each op once; deriving a ScheduleGraph first and then
 * compiling that costs some three times as much, and three times the memory.
 *
 * Anything that is not as it should be (an op missing, twice there, out of order, a deadlock) ends
 * the walk; then schedule_graph_new(), which judges schedules for everyone, names it.
 *
 * Internal to simulator/.
 */
#ifndef SIMULATOR_COMPILE_H
#define SIMULATOR_COMPILE_H

#include "simulator/program.h"

G_BEGIN_DECLS

/*
 * Fills steps, step_of, counts, in_flight, first, first_forward and last_backward of a priced
 * @program. Returns false on SCHEDULE_ERROR_INCOMPLETE, _DEADLOCK or _LIMIT.  Cost: O(ops).
 */
bool sim_program_compile(SimProgram *program, GError **error);

G_END_DECLS

#endif /* SIMULATOR_COMPILE_H */
