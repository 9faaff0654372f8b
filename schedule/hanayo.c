/*
 * schedule/hanayo.c - a wave: 1F1B over any number of chunks that lie as a V repeated
 * [Liu et al. 2308.15762, Hanayo].
 *
 * Where one chunk ends on a rank, the next one begins there: a micro-batch turns around at the ends
 * of the pipeline without a message.  The first and the last stage of a V are on one rank, and of
 * more chunks every second one runs backwards, so that a rank has early and late stages: layers that
 * grow or repeat along a model are spread otherwise than by a loop.
 *
 * No closed order is good where stages differ, so the order is made for given times, by list
 * scheduling: a rank that is free runs what has its input.  Of several backwards that of the earliest
 * chunk, which ends a micro-batch sooner; of several forwards that of the latest chunk, which is
 * nearest to its backward; of both a backward, or, as 1F1B, the one that the rank's last op was not.
 * A forward of chunk 0 lets another micro-batch in: only while the rank holds less than a number of
 * (micro-batch, chunk) pairs.  All others may run at any time, so that the order comes to its end.
 * Both rules are tried with what interleaved 1F1B holds at the most, and with what its micro-batches
 * hold that pass the pipeline at once, and with less only if memory is short; the shortest makespan
 * within the memory wins.  With equal stages and two chunks it is that of interleaved 1F1B.
 *
 * All micro-batches are alike and pass each stage one after the other.
 *
 * Cost: O(ops (log p + v)) for each try: four, or as many as memory asks for.
 */
#include "schedule/build.h"

#include <string.h>

/* So many tries are compared; those with smaller numbers are for memory that is short. */
#define N_COMPARED 4

/* Something happens on a rank: an op ended, or a message is there. */
typedef struct {
    int64_t ns;
    int32_t rank;
} Event;

typedef struct {
    bool alternates;   /* after a backward a rank runs a forward first */
    int32_t most_held; /* a rank with so many pairs lets no other micro-batch in */
} Rule;

typedef struct {
    const ScheduleTimes *times;
    Rule rule;
    Schedule *schedule; /* (owned) the order of the last run */
    int32_t p, v, m;
    int64_t *ready_ns[2]; /* (owned) [stage * m + k]: the k-th input of a forward, of a backward */
    int32_t *arrived[2];  /* (owned) [stage] inputs that were sent */
    int32_t *done[2];     /* (owned) [stage] ops that have begun */
    int64_t *free_ns;     /* (owned) [rank] end of its last op */
    int64_t *bytes;       /* (owned) [rank] of activations */
    int32_t *held;  /* (owned) [rank] pairs between their forward and the end of their backward */
    bool *was_back; /* (owned) [rank] its last op was a backward */
    int64_t *n_ops; /* (owned) [rank] */
    GArray *events; /* (owned) of Event: a heap, the earliest first, of equals the first rank */
    bool fits;      /* no rank exceeded its limit */
    int64_t makespan_ns;
} Wave;

static const ScheduleStageTimes *
times_of(const Wave *w, int32_t stage)
{
    return &w->times->stages[w->times->n_stages == 1 ? 0 : stage];
}

static int64_t
backward_ns(const ScheduleStageTimes *times)
{
    return times->backward_ns > 0 ? times->backward_ns : times->input_ns + times->weight_ns;
}

/* --- events --- */

static bool
earlier(const Event *a, const Event *b)
{
    return a->ns < b->ns || (a->ns == b->ns && a->rank < b->rank);
}

static void
add_event(Wave *w, int64_t ns, int32_t rank)
{
    const Event event = {ns, rank};
    guint i = w->events->len;

    g_array_append_val(w->events, event);
    Event *heap = (Event *)(void *)w->events->data;
    for (; i > 0 && earlier(&event, &heap[(i - 1) / 2]); i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = event;
}

static Event
take_event(Wave *w)
{
    Event *heap = (Event *)(void *)w->events->data;
    const guint n = w->events->len - 1;
    const Event first = heap[0], last = heap[n];
    guint i = 0;

    g_array_set_size(w->events, n);
    for (guint child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && earlier(&heap[child + 1], &heap[child]))
            child++;
        if (!earlier(&heap[child], &last))
            break;
        heap[i] = heap[child];
    }
    if (n > 0)
        heap[i] = last;
    return first;
}

/* --- ops --- */

/* Whether the next op of @stage, a backward if @back, could begin. */
static bool
is_ready(const Wave *w, int32_t stage, int back, int64_t now_ns)
{
    const int32_t k = w->done[back][stage];

    return k < w->arrived[back][stage] && w->ready_ns[back][(int64_t)stage * w->m + k] <= now_ns;
}

static void
send(Wave *w, int32_t to, int back, int64_t ns)
{
    w->ready_ns[back][(int64_t)to * w->m + w->arrived[back][to]++] = ns;
    add_event(w, ns, schedule_rank_of_stage(w->schedule, to, 0));
}

/* The next op of @stage begins. */
static void
run_op(Wave *w, int32_t rank, int32_t chunk, int back, int64_t now_ns)
{
    const int32_t stage = schedule_stage(w->schedule, rank, chunk), last = w->p * w->v - 1;
    const ScheduleStageTimes *times = times_of(w, stage);
    const int64_t end_ns = now_ns + (back ? backward_ns(times) : times->forward_ns);
    const int32_t to = back ? stage - 1 : MIN(stage + 1, last);

    w->schedule->ops[w->schedule->rank_begin[rank] + w->n_ops[rank]++] = (ScheduleOp){
        .micro_batch = w->done[back][stage]++,
        .chunk = (uint8_t)chunk,
        .kind = (uint8_t)(back ? SCHEDULE_OP_BACKWARD : SCHEDULE_OP_FORWARD),
    };
    w->free_ns[rank] = end_ns;
    w->was_back[rank] = back;
    w->makespan_ns = MAX(w->makespan_ns, end_ns);
    /* A backward gives back when it ends, which is when the rank decides again. */
    w->held[rank] += back ? -1 : 1;
    w->bytes[rank] += back ? -times->activation_bytes : times->activation_bytes;
    if (w->times->limit_bytes != NULL && w->bytes[rank] > w->times->limit_bytes[rank])
        w->fits = false;
    if (w->times->limit_micro_batches > 0 && w->held[rank] > w->times->limit_micro_batches * w->v)
        w->fits = false;
    add_event(w, end_ns, rank);
    if (to >= 0) {
        const bool turns = to == stage, stays = schedule_rank_of_stage(w->schedule, to, 0) == rank;
        const int64_t message_ns = stays  ? 0
                                   : back ? times->backward_message_ns
                                          : times->forward_message_ns;
        send(w, to, back || turns, end_ns + message_ns);
    }
}

/* The chunk of the op of @rank that goes before others, a backward if @back; -1: none is ready. */
static int32_t
choose(const Wave *w, int32_t rank, int back, int64_t now_ns)
{
    for (int32_t i = 0; i < w->v; i++) {
        const int32_t chunk = back ? i : w->v - 1 - i;
        if (!back && chunk == 0 && w->held[rank] >= w->rule.most_held)
            continue;
        if (is_ready(w, schedule_stage(w->schedule, rank, chunk), back, now_ns))
            return chunk;
    }
    return -1;
}

/* Lets @rank, which is free, begin what the rule says, if anything. */
static void
decide(Wave *w, int32_t rank, int64_t now_ns)
{
    int back = w->rule.alternates && w->was_back[rank] ? 0 : 1;
    int32_t chunk = choose(w, rank, back, now_ns);

    if (chunk < 0)
        chunk = choose(w, rank, back = 1 - back, now_ns);
    if (chunk >= 0)
        run_op(w, rank, chunk, back, now_ns);
}

/* Fills w->schedule by w->rule. */
static void
run(Wave *w)
{
    const size_t n_stages = (size_t)w->p * (size_t)w->v, p = (size_t)w->p;

    for (int back = 0; back < 2; back++) {
        memset(w->arrived[back], 0, n_stages * sizeof(int32_t));
        memset(w->done[back], 0, n_stages * sizeof(int32_t));
    }
    memset(w->free_ns, 0, p * sizeof(int64_t));
    memset(w->bytes, 0, p * sizeof(int64_t));
    memset(w->held, 0, p * sizeof(int32_t));
    memset(w->was_back, 0, p * sizeof(bool));
    memset(w->n_ops, 0, p * sizeof(int64_t));
    w->fits = true;
    w->makespan_ns = 0;
    memset(w->ready_ns[0], 0, (size_t)w->m * sizeof(int64_t));
    w->arrived[0][0] = w->m;
    add_event(w, 0, 0);
    while (w->events->len > 0) {
        const Event event = take_event(w);
        if (w->free_ns[event.rank] <= event.ns)
            decide(w, event.rank, event.ns);
    }
}

/* --- the family --- */

static void
wave_clear(Wave *w)
{
    for (int back = 0; back < 2; back++) {
        g_free(w->ready_ns[back]);
        g_free(w->arrived[back]);
        g_free(w->done[back]);
    }
    g_free(w->free_ns);
    g_free(w->bytes);
    g_free(w->held);
    g_free(w->was_back);
    g_free(w->n_ops);
    g_array_unref(w->events);
    schedule_free(w->schedule);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Wave, wave_clear)

static bool
wave_alloc(Wave *w, GError **error)
{
    const size_t n_stages = (size_t)w->p * (size_t)w->v, p = (size_t)w->p;

    for (int back = 0; back < 2; back++) {
        w->ready_ns[back] = g_try_new(int64_t, n_stages * (size_t)w->m);
        w->arrived[back] = g_new(int32_t, n_stages);
        w->done[back] = g_new(int32_t, n_stages);
    }
    w->free_ns = g_new(int64_t, p);
    w->bytes = g_new(int64_t, p);
    w->held = g_new(int32_t, p);
    w->was_back = g_new(bool, p);
    w->n_ops = g_new(int64_t, p);
    w->events = g_array_new(false, false, sizeof(Event));
    if (w->ready_ns[0] != NULL && w->ready_ns[1] != NULL)
        return true;
    return schedule_refuse(error, LIMIT,
                           "schedule hanayo: no memory to order %d ranks with %d micro-batches",
                           w->p, w->m);
}

static Schedule *
build(const ScheduleFamily *family, const ScheduleShape *shape, GError **error)
{
    static const ScheduleStageTimes unit = {.forward_ns = 1, .input_ns = 1, .weight_ns = 1};
    static const ScheduleTimes units = {.stages = &unit, .n_stages = 1};
    g_autoptr(Schedule) best = NULL;
    int64_t best_ns = INT64_MAX;
    g_auto(Wave) w = {
        .times = shape->times != NULL ? shape->times : &units,
        .p = (int32_t)shape->n_ranks,
        .v = (int32_t)shape->n_chunks,
        .m = (int32_t)shape->n_micro_batches,
    };
    if (!wave_alloc(&w, error))
        return NULL;
    int32_t least = w.v * w.p - 1;
    for (int i = 0; i < N_COMPARED || (best_ns == INT64_MAX && least > 1); i++) {
        if (w.schedule == NULL)
            w.schedule = schedule_alloc_full(family, shape, 2, error);
        if (w.schedule == NULL)
            return NULL;
        for (int32_t rank = 0; rank <= w.p; rank++)
            w.schedule->rank_begin[rank] = (int64_t)rank * 2 * w.v * w.m;
        if (i >= N_COMPARED)
            least = least * 3 / 4;
        w.rule = (Rule){i % 2 == 0, i < 2 ? (w.v + 1) * w.p - 1 : least};
        run(&w);
        /* Of orders that do not fit the last one, which lets the fewest in. */
        if (w.fits ? w.makespan_ns < best_ns : best_ns == INT64_MAX) {
            Schedule *before = g_steal_pointer(&best);
            best = w.schedule;
            w.schedule = before;
            best_ns = w.fits ? w.makespan_ns : INT64_MAX;
        }
    }
    return g_steal_pointer(&best);
}

const ScheduleFamily schedule_family_hanayo = {
    .name = "hanayo",
    .summary =
        "1F1B over chunks in a wave, a V repeated, built for given times (Hanayo, 2308.15762)",
    .reads_times = true,
    .min_chunks = 2,
    .max_chunks = SCHEDULE_MAX_CHUNKS,
    .placement = SCHEDULE_PLACEMENT_V,
    .build = build,
};
