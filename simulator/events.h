/*
 * simulator/events.h - the Trace of a simulated iteration.
 *
 * compute   the ops; blocking receives and sends (with the peer and the bytes); the optimizer
 * send, receive   overlapped messages.  Where links are not shared, messages of one rank can travel
 *           at the same time.  So that a stream shows one thing at a time, a message's event ends
 *           when the message arrives and begins when it left, or when the message that arrived
 *           before it on that stream did, if that is later: an event's end is exact, its length is
 *           what the message adds to the time that the stream is in use.
 * dp        pieces of the reduction, the gathering
 *
 * A message of neither time nor bytes has no event.  Events come out in the total order of
 * trace_sort().
 *
 * Internal to simulator/.
 */
#ifndef SIMULATOR_EVENTS_H
#define SIMULATOR_EVENTS_H

#include "simulator/simulate.h"
#include "simulator/sweep.h"

G_BEGIN_DECLS

/*
 * @want_memory  memory events too (sim_memory_peaks() has found the bytes sound)
 * Returns: (owned) NULL with SCHEDULE_ERROR_LIMIT where there is no memory for the events.
 */
Trace *sim_events(const SimProgram *program, const SimTimes *times, bool want_memory,
                  GError **error);

/*
 * A part of sim_events(), for pictures: of the compute streams of the ranks that are shown what is
 * under way at one of the instants, their optimizers, their dp streams.  No messages on streams of
 * their own, no memory.  Cost: O(ops) reads, and O(instants log ops) per rank.
 */
Trace *sim_glimpse(const SimProgram *program, const SimTimes *times, const SimGlimpse *glimpse);

G_END_DECLS

#endif /* SIMULATOR_EVENTS_H */
