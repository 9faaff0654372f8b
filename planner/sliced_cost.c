#include "planner/sliced_cost.h"

#include <string.h>

#include "planner/given_slices.h"
#include "planner/words_key.h"

struct PlanSlicedCosts {
    GMutex lock;
    GHashTable *known; /* of (owned) Key * -> (owned) PlanSlicedCost *; looked up only */
};

/* What the costs depend on; no padding, compared as bytes. */
typedef struct {
    int64_t tp, cp, ep, micro_batch, sequence_parallel, recompute, n_slices;
    ProfileGroup groups[MODEL_GROUP_N];
} Key;

PLAN_DEFINE_WORDS_KEY(Key)

PlanSlicedCosts *
plan_sliced_costs_new(void)
{
    PlanSlicedCosts *costs = g_new0(PlanSlicedCosts, 1);

    g_mutex_init(&costs->lock);
    costs->known = g_hash_table_new_full(hash_key, keys_equal, g_free, g_free);
    return costs;
}

void
plan_sliced_costs_free(PlanSlicedCosts *costs)
{
    if (costs == NULL)
        return;
    g_hash_table_unref(costs->known);
    g_mutex_clear(&costs->lock);
    g_free(costs);
}

const PlanSlicedCost *
plan_sliced_costs_get(PlanSlicedCosts *costs, const PlanRequest *request,
                      const PlanLayerShape *shape, int64_t n_slices)
{
    const PlanDegrees *d = &shape->degrees;
    Key key = {
        .tp = d->tp,
        .cp = d->cp,
        .ep = d->ep,
        .micro_batch = shape->micro_batch,
        .sequence_parallel = shape->sequence_parallel,
        .recompute = request->recompute,
        .n_slices = n_slices,
    };

    plan_layer_groups(request, d, key.groups);
    g_mutex_lock(&costs->lock);
    PlanSlicedCost *known = g_hash_table_lookup(costs->known, &key);
    g_mutex_unlock(&costs->lock);
    if (known != NULL)
        return known;
    g_autoptr(GArray) slices = g_array_new(FALSE, FALSE, sizeof(int64_t));
    if (!plan_given_uniform(request->seq_len, plan_given_granularity(shape), n_slices, slices))
        return NULL;
    /* Made without the lock; two threads may make the same one, equal ones. */
    PlanSlicedCost *fresh = g_new(PlanSlicedCost, 1);
    *fresh = plan_layer_sliced_cost(request, shape, slices);
    g_mutex_lock(&costs->lock);
    known = g_hash_table_lookup(costs->known, &key);
    if (known == NULL) {
        g_hash_table_insert(costs->known, g_memdup2(&key, sizeof key), fresh);
        known = fresh;
    } else {
        g_free(fresh);
    }
    g_mutex_unlock(&costs->lock);
    return known;
}
