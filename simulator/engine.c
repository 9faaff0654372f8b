#include "simulator/engine.h"

/* Children of a node: 64 bytes. */
#define FANOUT 8
#define FANOUT_BITS 3
/* 8^10 timers are more than there can be. */
#define MAX_LEVELS 11

struct SimEngine {
    int64_t now_ns;
    int32_t n_timers;
    int32_t n_levels;
    /* (owned) level[0] are the timers, NEVER behind the last, level[k][i] is the earliest of
     * level[k - 1] [8 i .. 8 i + 8), the last level is one node */
    int64_t *level[MAX_LEVELS];
};

SimEngine *
sim_engine_new(int32_t n_timers)
{
    g_return_val_if_fail(n_timers > 0 && n_timers <= 1 << 29, NULL);
    SimEngine *engine = g_new0(SimEngine, 1);
    size_t n = (size_t)n_timers;

    engine->n_timers = n_timers;
    /* The levels below n_levels are there; the next one has n nodes. */
    for (bool is_last = false; !is_last; n = (n + FANOUT - 1) / FANOUT) {
        const size_t room = (n + FANOUT - 1) / FANOUT * FANOUT;
        int64_t *level = g_new(int64_t, room);
        for (size_t i = 0; i < room; i++)
            level[i] = SIM_ENGINE_NEVER;
        engine->level[engine->n_levels++] = level;
        is_last = n == 1;
    }
    return engine;
}

void
sim_engine_free(SimEngine *engine)
{
    if (engine == NULL)
        return;
    for (int32_t k = 0; k < engine->n_levels; k++)
        g_free(engine->level[k]);
    g_free(engine);
}

const int64_t *
sim_engine_clock(const SimEngine *engine)
{
    g_return_val_if_fail(engine != NULL, NULL);
    return &engine->now_ns;
}

/* Of a node's children.  No branches: which one it is cannot be guessed. */
static inline int64_t
earliest(const int64_t *children)
{
    int64_t ns = children[0];

#pragma GCC unroll 8
    for (int k = 1; k < FANOUT; k++)
        ns = MIN(ns, children[k]);
    return ns;
}

/* The first of a node's children that is at @at_ns, as one is. */
static inline size_t
first_at(const int64_t *children, int64_t at_ns)
{
    size_t first = FANOUT - 1;

#pragma GCC unroll 8
    for (int k = FANOUT - 2; k >= 0; k--)
        first = children[k] == at_ns ? (size_t)k : first;
    return first;
}

static inline void
put(SimEngine *engine, size_t timer, int64_t at_ns)
{
    size_t i = timer;

    engine->level[0][i] = at_ns;
    /* All nodes but the ancestors of the timer hold the earliest of their children. */
    for (int32_t k = 1; k < engine->n_levels; k++) {
        i >>= FANOUT_BITS;
        const int64_t ns = earliest(&engine->level[k - 1][i << FANOUT_BITS]);
        if (engine->level[k][i] == ns)
            return;
        engine->level[k][i] = ns;
    }
}

void
sim_engine_set(SimEngine *engine, int32_t timer, int64_t at_ns)
{
    g_return_if_fail(engine != NULL && timer >= 0 && timer < engine->n_timers);
    g_return_if_fail(at_ns >= engine->now_ns);
    put(engine, (size_t)timer, at_ns);
}

int64_t
sim_engine_next_ns(const SimEngine *engine)
{
    g_return_val_if_fail(engine != NULL, SIM_ENGINE_NEVER);
    return engine->level[engine->n_levels - 1][0];
}

int32_t
sim_engine_next(SimEngine *engine)
{
    const int64_t at_ns = sim_engine_next_ns(engine);
    size_t i = 0;

    if (at_ns == SIM_ENGINE_NEVER)
        return -1;
    for (int32_t k = engine->n_levels - 2; k >= 0; k--) {
        i <<= FANOUT_BITS;
        i += first_at(&engine->level[k][i], at_ns);
    }
    put(engine, i, SIM_ENGINE_NEVER);
    engine->now_ns = at_ns;
    return (int32_t)i;
}
