#include "planner/flight.h"

#include <string.h>

/* Larger schedules are not built only to count. */
#define MAX_OPS (INT64_C(1) << 21)

struct PlanFlights {
    GMutex lock;
    GHashTable *known; /* of (owned) Key * -> (owned) int32_t[n_ranks]; looked up only */
};

typedef struct {
    const ScheduleFamily *family;
    ScheduleShape shape;
} Key;

static guint
hash_key(gconstpointer data)
{
    const Key *key = data;
    const ScheduleShape *s = &key->shape;
    uint64_t hash = (uint64_t)(uintptr_t)key->family;

    hash = hash * 31 + (uint64_t)s->n_ranks;
    hash = hash * 31 + (uint64_t)s->n_chunks;
    hash = hash * 31 + (uint64_t)s->n_microbatches;
    hash = hash * 31 + (uint64_t)s->n_slices;
    hash = hash * 31 + (uint64_t)s->group;
    return (guint)(hash ^ hash >> 32);
}

static gboolean
keys_equal(gconstpointer a, gconstpointer b)
{
    const Key *x = a, *y = b;

    return x->family == y->family && x->shape.n_ranks == y->shape.n_ranks &&
           x->shape.n_chunks == y->shape.n_chunks &&
           x->shape.n_microbatches == y->shape.n_microbatches &&
           x->shape.n_slices == y->shape.n_slices && x->shape.group == y->shape.group;
}

PlanFlights *
plan_flights_new(void)
{
    PlanFlights *flights = g_new0(PlanFlights, 1);

    g_mutex_init(&flights->lock);
    flights->known = g_hash_table_new_full(hash_key, keys_equal, g_free, g_free);
    return flights;
}

void
plan_flights_free(PlanFlights *flights)
{
    if (flights == NULL)
        return;
    g_hash_table_unref(flights->known);
    g_mutex_clear(&flights->lock);
    g_free(flights);
}

/* Families whose number is known without building; -1: this is none. */
static int64_t
closed_form(const ScheduleFamily *family, const ScheduleShape *shape, int32_t rank)
{
    const int64_t all = shape->n_microbatches * shape->n_chunks * shape->n_slices;

    if (strcmp(family->name, "gpipe") == 0 || strcmp(family->name, "terapipe") == 0 ||
        strcmp(family->name, "looped-bfs") == 0)
        return all;
    if (strcmp(family->name, "1f1b") == 0 || strcmp(family->name, "seq1f1b") == 0)
        return MIN(all, shape->n_ranks - rank + shape->n_slices - 1);
    return strcmp(family->name, "naive") == 0 ? shape->n_slices : -1;
}

/* The largest number of units between F and B or I on a rank: a W finds only part of a unit. */
static int32_t
whole_in_flight(const Schedule *schedule, int32_t rank)
{
    int32_t now = 0, most = 0;

    for (int64_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
        if (schedule->ops[i].kind == SCHEDULE_OP_FORWARD)
            now++;
        else if (schedule->ops[i].kind != SCHEDULE_OP_BACKWARD_WEIGHT)
            now--;
        most = MAX(most, now);
    }
    return most;
}

/* (owned) by rank; NULL where the schedule cannot be built. */
static int32_t *
count(const ScheduleFamily *family, const ScheduleShape *shape)
{
    g_autoptr(Schedule) schedule = schedule_new(family->name, shape, NULL);

    if (schedule == NULL)
        return NULL;
    int32_t *counts = g_new(int32_t, (size_t)schedule->n_ranks);
    for (int32_t r = 0; r < schedule->n_ranks; r++)
        counts[r] = whole_in_flight(schedule, r);
    return counts;
}

int64_t
plan_flights_least(PlanFlights *flights, const ScheduleFamily *family, const ScheduleShape *shape,
                   int32_t rank)
{
    const int64_t closed = closed_form(family, shape, rank);
    const Key key = {family, *shape};
    int64_t n_ops;

    if (closed >= 0)
        return closed;
    if (__builtin_mul_overflow(shape->n_microbatches * 3, shape->n_chunks * shape->n_slices,
                               &n_ops) ||
        __builtin_mul_overflow(n_ops, shape->n_ranks, &n_ops) || n_ops > MAX_OPS)
        return 1;
    g_mutex_lock(&flights->lock);
    const int32_t *counts = g_hash_table_lookup(flights->known, &key);
    g_mutex_unlock(&flights->lock);
    if (counts == NULL) {
        /* Built without the lock; two threads may build the same one, equal ones. */
        int32_t *fresh = count(family, shape);
        if (fresh == NULL)
            return 1;
        g_mutex_lock(&flights->lock);
        counts = g_hash_table_lookup(flights->known, &key);
        if (counts == NULL) {
            g_hash_table_insert(flights->known, g_memdup2(&key, sizeof key), fresh);
            counts = fresh;
        } else {
            g_free(fresh);
        }
        g_mutex_unlock(&flights->lock);
    }
    return counts[rank];
}
