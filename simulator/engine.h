/*
 * simulator/engine.h - the simulated clock and its queue of future events.
 *
 * The engine fires events in time order and knows nothing else: no stages, no
 * links, no memory.  Resource models (resource.h) turn "this op needs 3.2 ms
 * of stage 4" into events; the engine only decides who is next.
 *
 * Why integers: a makespan is a long sum of durations.  In doubles the sum
 * depends on its order, so two events that should tie may not, and the trace
 * changes with an unrelated refactoring.  int64_t nanoseconds add exactly and
 * reach 292 years.
 *
 * Why a sequence number: equal-time events fire in the order they were added,
 * hence one schedule has exactly one trace, on every machine.
 *
 * Queue: binary heap, O(log n) per event, n = events pending.  See Jones, "An
 * Empirical Comparison of Priority-Queue and Event-Set Implementations",
 * CACM 29(4), 1986, for when a heap stops being enough.
 *
 * Thread-safety: none; one engine belongs to one thread.
 */
#ifndef SIMULATOR_ENGINE_H
#define SIMULATOR_ENGINE_H

#include <glib.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

G_BEGIN_DECLS

#define SIM_ENGINE_ERROR (sim_engine_error_quark())
GQuark sim_engine_error_quark(void);

typedef enum {
    SIM_ENGINE_ERROR_EVENT_LIMIT, /* more than max_events fired: a livelock */
} SimEngineError;

/* Opaque; see engine.c.  Invariant: now_ns <= time of every pending event. */
typedef struct SimEngine SimEngine;

/*
 * What happens at an event.  May add events; must not free the engine.
 * Returns false and sets @error to stop the simulation.
 */
typedef bool (*SimEventFunc)(SimEngine *engine, void *user_data, GError **error);

/* Returns: (owned) an engine at time 0 with nothing pending; never NULL. */
SimEngine *sim_engine_new(void);
void sim_engine_free(SimEngine *engine);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(SimEngine, sim_engine_free)

/* Simulated nanoseconds since sim_engine_new(). */
int64_t sim_engine_now_ns(const SimEngine *engine);

/* Where sim_engine_now_ns() reads: (borrowed) for who asks at every event. */
const int64_t *sim_engine_clock(const SimEngine *engine);

size_t sim_engine_n_pending(const SimEngine *engine);

/*
 * Adds an event: @fire is called with @user_data when the clock reads @at_ns.
 *
 * @at_ns      absolute, >= now.  The past is a bug in the caller, not a
 *             runtime error: it is rejected with a critical warning.
 * @user_data  (borrowed, nullable) must outlive the event.
 */
void sim_engine_add(SimEngine *engine, int64_t at_ns, SimEventFunc fire, void *user_data);

/*
 * Fires events until none is pending.  Afterwards now_ns is the time of the
 * last one, i.e. the makespan of whatever was simulated.
 *
 * @max_events  stop a livelock after this many; 0 means no limit.
 *
 * Errors: SIM_ENGINE_ERROR_EVENT_LIMIT, or whatever an event reported.  The
 * engine then stays where it stopped, so that a caller can show the state.
 */
bool sim_engine_run(SimEngine *engine, uint64_t max_events, GError **error);

G_END_DECLS

#endif /* SIMULATOR_ENGINE_H */
