#include "planner/layout.h"

#include <string.h>

#include "planner/layer_cost.h"
#include "planner/partition.h"

struct PlanLayouts {
    GMutex lock;
    GHashTable *known; /* of (owned) Key * -> (owned) PlanLayout *; looked up only */
};

/* What the times of layers depend on; no padding, compared as bytes. */
typedef struct {
    int64_t tp, cp, ep, micro_batch, sequence_parallel, recompute, length;
} Key;

static guint
hash_key(gconstpointer data)
{
    const int64_t *words = data;
    uint64_t hash = 0;

    for (size_t i = 0; i < sizeof(Key) / sizeof *words; i++)
        hash = hash * 1000003 + (uint64_t)words[i];
    return (guint)(hash ^ hash >> 32);
}

static gboolean
keys_equal(gconstpointer a, gconstpointer b)
{
    return memcmp(a, b, sizeof(Key)) == 0;
}

static void
layout_free(gpointer data)
{
    PlanLayout *layout = data;

    g_free(layout->counts);
    g_free(layout->stage_ns);
    g_free(layout);
}

PlanLayouts *
plan_layouts_new(void)
{
    PlanLayouts *layouts = g_new0(PlanLayouts, 1);

    g_mutex_init(&layouts->lock);
    layouts->known = g_hash_table_new_full(hash_key, keys_equal, g_free, layout_free);
    return layouts;
}

void
plan_layouts_free(PlanLayouts *layouts)
{
    if (layouts == NULL)
        return;
    g_hash_table_unref(layouts->known);
    g_mutex_clear(&layouts->lock);
    g_free(layouts);
}

/* (owned) */
static PlanLayout *
layout_new(const PlanRequest *request, const PlanPoint *point, int64_t length)
{
    const int64_t n_layers = request->arch->n_layers;
    g_autofree int64_t *layer_ns = g_new(int64_t, (size_t)n_layers);
    PlanPartition partition = {.n_layers = n_layers, .n_stages = length, .layer_ns = layer_ns};
    PlanLayout *layout = g_new0(PlanLayout, 1);

    layout->counts = g_new0(int64_t, (size_t)length);
    layout->stage_ns = g_new0(int64_t, (size_t)length);
    plan_layer_times(request, point, layer_ns, &partition.first_ns, &partition.last_ns);
    if (!plan_partition(&partition, layout->counts, NULL))
        return layout;
    for (int64_t i = 0, layer = 0; i < length; i++) {
        /* Even: floor, the last few one more (plan_set_even_stages()). */
        const int64_t even = n_layers / length + (i >= length - n_layers % length ? 1 : 0);
        layout->differs = layout->differs || layout->counts[i] != even;
        /* A Workload rounds once per op, not per layer. */
        for (int64_t k = 0; k < layout->counts[i]; k++, layer++)
            layout->stage_ns[i] += MAX(0, layer_ns[layer] - 1);
        if (i == 0)
            layout->stage_ns[i] += MAX(0, partition.first_ns - 1);
        if (i == length - 1)
            layout->stage_ns[i] += MAX(0, partition.last_ns - 1);
        layout->stage_ns[i] = MAX(0, layout->stage_ns[i] - 2);
    }
    return layout;
}

const PlanLayout *
plan_layouts_get(PlanLayouts *layouts, const PlanRequest *request, const PlanPoint *point,
                 int64_t length)
{
    const Key key = {
        .tp = point->degrees.tp,
        .cp = point->degrees.cp,
        .ep = point->degrees.ep,
        .micro_batch = point->micro_batch,
        .sequence_parallel = point->sequence_parallel,
        .recompute = point->recompute,
        .length = length,
    };

    g_mutex_lock(&layouts->lock);
    PlanLayout *layout = g_hash_table_lookup(layouts->known, &key);
    g_mutex_unlock(&layouts->lock);
    if (layout != NULL)
        return layout;
    /* Made without the lock; two threads may make the same one, equal ones. */
    PlanLayout *fresh = layout_new(request, point, length);
    g_mutex_lock(&layouts->lock);
    layout = g_hash_table_lookup(layouts->known, &key);
    if (layout == NULL) {
        g_hash_table_insert(layouts->known, g_memdup2(&key, sizeof key), fresh);
        layout = fresh;
    } else {
        layout_free(fresh);
    }
    g_mutex_unlock(&layouts->lock);
    return layout;
}

int64_t
plan_layout_bound_ns(const PlanLayout *layout, const PlanPoint *point, const ScheduleFamily *family)
{
    const int64_t p = point->degrees.pp, length = plan_space_chain_length(&point->degrees, family);
    const double m = (double)point->n_microbatches;
    const bool waits =
        length == p && !family->splits_backward && family->placement != SCHEDULE_PLACEMENT_BIDIR;
    double best = 0.0, before = 0.0;

    if (family->placement == SCHEDULE_PLACEMENT_V)
        return 0;
    /* Loop: rank r has stages r, r + p, ...; bidir: r and p - 1 - r, half of the time each. */
    for (int64_t r = 0; r < p; r++) {
        double work = 0.0;
        for (int64_t k = r; k < length; k += p)
            work += (double)layout->stage_ns[k];
        if (family->placement == SCHEDULE_PLACEMENT_BIDIR)
            work = ((double)layout->stage_ns[r] + (double)layout->stage_ns[p - 1 - r]) / 2.0;
        best = MAX(best, m * work + (waits ? before : 0.0));
        before += work;
    }
    return (int64_t)(MIN(best, 9e18) * (1.0 - 1e-9));
}

void
plan_layout_apply(const PlanLayout *layout, int64_t length, Plan *plan)
{
    int64_t first = 0;

    /* The second chain of bidir divides the layers as the first. */
    for (guint i = 0; i < plan->stages->len; i++) {
        PlanStage *stage = &g_array_index(plan->stages, PlanStage, i);
        if (i % length == 0)
            first = 0;
        stage->first_layer = first;
        stage->n_layers = layout->counts[i % length];
        first += stage->n_layers;
    }
}
