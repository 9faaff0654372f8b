/*
 * simulator/engine.h - the simulated clock and its timers.
 *
 * The engine says which timer goes off next and knows nothing else: no ranks, no links, no ops.
 * Whatever waits for one thing at a time has one timer, such as a rank's compute stream or a stream
 * of messages.  Setting a timer again replaces its former time, so no outdated event is ever
 * pending.
 *
 * Why integers: a makespan is a long sum of durations.  In doubles the sum depends on its order, so
 * two events that should tie may not, and the trace changes with an unrelated refactoring.  int64_t
 * nanoseconds add exactly and reach 292 years.
 *
 * Ties: of timers of one instant the one with the lower number is first, whenever they were set;
 * hence one schedule has exactly one trace, on every machine.
 *
 * Timers are the leaves of a tree of minima (a tournament: Knuth, TAOCP 3, 5.4.1) whose nodes have
 * eight children, one cache line: most timers that are set are not the earliest of their eight, so
 * that nothing above changes.  With two children it takes thrice the instructions; a heap of events
 * needs twice the time of that: its entries are four times as large and move, and what is set again
 * leaves dead ones behind.
 *
 * Thread-safety: none; one engine belongs to one thread.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

/* The time of a timer that is not set. */
#define SIM_ENGINE_NEVER INT64_MAX

/* Opaque; see engine.c.  Invariant: now_ns <= the time of every timer that is set. */
typedef struct SimEngine SimEngine;

/* Returns: (owned) an engine at time 0 with @n_timers timers, none of them set; never NULL. */
SimEngine *sim_engine_new(int32_t n_timers);
void sim_engine_free(SimEngine *engine);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(SimEngine, sim_engine_free)

/* Returns: (borrowed) the clock, which is kept there: simulated nanoseconds since
 * sim_engine_new(). */
const int64_t *sim_engine_clock(const SimEngine *engine);

/*
 * Lets @timer go off when the clock reads @at_ns, in place of the time it was set to before.
 *
 * @at_ns  absolute, >= now; SIM_ENGINE_NEVER: not at all.  The past is a bug in the caller, not a
 *         runtime error: it is rejected with a critical warning.
 * Cost: O(log timers); O(1) where another of its eight is earlier, before and after.
 */
void sim_engine_set(SimEngine *engine, int32_t timer, int64_t at_ns);

/* When the next timer goes off, or SIM_ENGINE_NEVER. */
int64_t sim_engine_next_ns(const SimEngine *engine);

/* Moves the clock to the next timer, which is then no longer set.  Returns: its number; -1: none is
 * set, and the clock stays. */
int32_t sim_engine_next(SimEngine *engine);
