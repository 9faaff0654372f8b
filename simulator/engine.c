#include "simulator/engine.h"

struct SimEngine {
    int64_t now_ns;
    int32_t n_timers;
    int32_t n_leaves; /* a power of two */
    /* (owned) [1 .. 2 n_leaves): node i is the earlier of 2 i and 2 i + 1; timer t is n_leaves + t
     */
    int64_t *first_ns;
    int32_t fired; /* went off and was not set since: still in the tree; -1: none */
};

SimEngine *
sim_engine_new(int32_t n_timers)
{
    g_return_val_if_fail(n_timers > 0 && n_timers <= 1 << 29, NULL);
    SimEngine *engine = g_new0(SimEngine, 1);

    engine->n_timers = n_timers;
    for (engine->n_leaves = 1; engine->n_leaves < n_timers;)
        engine->n_leaves *= 2;
    engine->first_ns = g_new(int64_t, 2 * (size_t)engine->n_leaves);
    for (int32_t i = 0; i < 2 * engine->n_leaves; i++)
        engine->first_ns[i] = SIM_ENGINE_NEVER;
    engine->fired = -1;
    return engine;
}

void
sim_engine_free(SimEngine *engine)
{
    if (engine == NULL)
        return;
    g_free(engine->first_ns);
    g_free(engine);
}

int64_t
sim_engine_now_ns(const SimEngine *engine)
{
    g_return_val_if_fail(engine != NULL, 0);
    return engine->now_ns;
}

const int64_t *
sim_engine_clock(const SimEngine *engine)
{
    g_return_val_if_fail(engine != NULL, NULL);
    return &engine->now_ns;
}

static void
put(SimEngine *engine, int32_t timer, int64_t at_ns)
{
    int64_t *first_ns = engine->first_ns;
    int32_t i = engine->n_leaves + timer;

    first_ns[i] = at_ns;
    /* All nodes but the ancestors of i hold the earlier of their children. */
    for (i /= 2; i > 0; i /= 2) {
        const int64_t a = first_ns[2 * i], b = first_ns[2 * i + 1];
        const int64_t earlier = a < b ? a : b;
        if (first_ns[i] == earlier)
            break;
        first_ns[i] = earlier;
    }
}

void
sim_engine_set(SimEngine *engine, int32_t timer, int64_t at_ns)
{
    g_return_if_fail(engine != NULL && timer >= 0 && timer < engine->n_timers);
    g_return_if_fail(at_ns >= engine->now_ns);
    if (timer == engine->fired)
        engine->fired = -1;
    put(engine, timer, at_ns);
}

/* Most timers that go off are set again at once: only those that were not leave the tree here. */
static void
drop_fired(SimEngine *engine)
{
    if (engine->fired < 0)
        return;
    put(engine, engine->fired, SIM_ENGINE_NEVER);
    engine->fired = -1;
}

int64_t
sim_engine_next_ns(SimEngine *engine)
{
    g_return_val_if_fail(engine != NULL, SIM_ENGINE_NEVER);
    drop_fired(engine);
    return engine->first_ns[1];
}

int32_t
sim_engine_next(SimEngine *engine)
{
    g_return_val_if_fail(engine != NULL, -1);
    drop_fired(engine);
    const int64_t at_ns = engine->first_ns[1];
    int32_t i = 1;

    if (at_ns == SIM_ENGINE_NEVER)
        return -1;
    /* The first leaf of those below i that is at at_ns. */
    while (i < engine->n_leaves)
        i = 2 * i + (engine->first_ns[2 * i] != at_ns);
    engine->now_ns = at_ns;
    engine->fired = i - engine->n_leaves;
    return engine->fired;
}
