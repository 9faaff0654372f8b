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
#pragma once

#include "simulator/simulate.h"
#include "simulator/sweep.h"

/*
 * Writes everything that happens in the iteration.
 *
 * @want_memory  also write memory events; only after sim_memory_peaks() has checked the bytes
 * Returns: (owned) NULL with SCHEDULE_ERROR_LIMIT where there is no memory for the events.
 */
Trace *sim_events(const SimProgram *program, const SimTimes *times, bool want_memory,
                  GError **error);

/* Writes the part of sim_events() that a picture shows: for each rank that is shown, the ops that
 * run at one of the picture's instants, the optimizer, and the dp stream.  Overlapped messages and
 * memory are left out.  Cost: O(ops) reads, and O(instants log ops) per rank. */
Trace *sim_glimpse(const SimProgram *program, const SimTimes *times, const SimGlimpse *glimpse);
