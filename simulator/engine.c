#include "simulator/engine.h"

G_DEFINE_QUARK(sim_engine_error, sim_engine_error)

typedef struct {
    int64_t at_ns;
    uint64_t number; /* how many were added before */
    SimEventFunc fire;
    void *user_data; /* (borrowed) */
} Event;

struct SimEngine {
    int64_t now_ns;
    uint64_t n_added;
    /* (owned) Heap of four children per node: half as deep as a binary one, and the four lie in two
     * cache lines.  No child is before its parent. */
    Event *heap;
    size_t n, room;
    /* heap[0] has fired: the next event added takes its place, or the last one before the next
     * fires.  Most events add one, which then sinks from the top instead of rising after another
     * has sunk. */
    bool hole;
};

SimEngine *
sim_engine_new(void)
{
    return g_new0(SimEngine, 1);
}

void
sim_engine_free(SimEngine *engine)
{
    if (engine == NULL)
        return;
    g_free(engine->heap);
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

size_t
sim_engine_n_pending(const SimEngine *engine)
{
    g_return_val_if_fail(engine != NULL, 0);
    return engine->n - engine->hole;
}

/* --- heap --- */

/* Which of two comes first is a toss-up to the branch predictor, so there is no branch. */
static inline bool
is_before(const Event *a, const Event *b)
{
    return (a->at_ns < b->at_ns) | ((a->at_ns == b->at_ns) & (a->number < b->number));
}

/* The first of the children [first .. end) of a node. */
static inline size_t
first_child(const Event *heap, size_t first, size_t end)
{
    if (end - first == 4) {
        const size_t left = first + is_before(&heap[first + 1], &heap[first]);
        const size_t right = first + 2 + is_before(&heap[first + 3], &heap[first + 2]);
        return left + (right - left) * is_before(&heap[right], &heap[left]);
    }
    size_t best = first;
    for (size_t child = first + 1; child < end; child++)
        if (is_before(&heap[child], &heap[best]))
            best = child;
    return best;
}

/* Puts @event where the hole at @at has risen to. */
static void
sift_up(Event *heap, size_t at, Event event)
{
    while (at > 0) {
        const size_t parent = (at - 1) / 4;
        if (!is_before(&event, &heap[parent]))
            break;
        heap[at] = heap[parent];
        at = parent;
    }
    heap[at] = event;
}

/* Puts @event where the hole at the top of a heap of @n has sunk to. */
static void
sift_down(Event *heap, size_t n, Event event)
{
    size_t at = 0;

    for (;;) {
        const size_t first = 4 * at + 1;
        const size_t end = MIN(first + 4, n);
        if (first >= n)
            break;
        const size_t best = first_child(heap, first, end);
        if (!is_before(&heap[best], &event))
            break;
        heap[at] = heap[best];
        at = best;
    }
    heap[at] = event;
}

static void
fill_hole(SimEngine *engine)
{
    engine->hole = false;
    engine->n--;
    if (engine->n > 0)
        sift_down(engine->heap, engine->n, engine->heap[engine->n]);
}

void
sim_engine_add(SimEngine *engine, int64_t at_ns, SimEventFunc fire, void *user_data)
{
    g_return_if_fail(engine != NULL && fire != NULL);
    g_return_if_fail(at_ns >= engine->now_ns);
    const Event event = {
        .at_ns = at_ns, .number = engine->n_added++, .fire = fire, .user_data = user_data};
    if (engine->hole) {
        engine->hole = false;
        sift_down(engine->heap, engine->n, event);
        return;
    }
    if (engine->n == engine->room) {
        engine->room = MAX(64, 2 * engine->room);
        engine->heap = g_renew(Event, engine->heap, engine->room);
    }
    engine->n++;
    sift_up(engine->heap, engine->n - 1, event);
}

bool
sim_engine_run(SimEngine *engine, uint64_t max_events, GError **error)
{
    g_return_val_if_fail(engine != NULL, false);
    for (uint64_t n_fired = 0; sim_engine_n_pending(engine) > 0; n_fired++) {
        if (engine->hole)
            fill_hole(engine);
        if (max_events > 0 && n_fired == max_events) {
            g_set_error(error, SIM_ENGINE_ERROR, SIM_ENGINE_ERROR_EVENT_LIMIT,
                        "%" G_GUINT64_FORMAT
                        " events fired and %zu are pending at %" G_GINT64_FORMAT " ns: a livelock",
                        n_fired, engine->n, engine->now_ns);
            return false;
        }
        const Event event = engine->heap[0];
        engine->hole = true;
        engine->now_ns = event.at_ns;
        if (!event.fire(engine, event.user_data, error))
            return false;
    }
    return true;
}
