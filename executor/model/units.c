#include "executor/model/units.h"

#include "executor/model/units_state.h"

ExecDim
exec_region_dim(ExecRegionKind region)
{
    return region == EXEC_REGION_EXPERTS ? EXEC_DIM_EXPERT : EXEC_DIM_DENSE;
}

/* --- parts --- */

int64_t
exec_units_part_at(const ExecUnits *units, int32_t unit, int64_t *n)
{
    int64_t begin;

    *n = exec_model_own_part(units->o.model, exec_units_unit(units, unit), &begin);
    return begin - exec_units_unit(units, unit)->begin;
}

void *
exec_units_part(const ExecUnits *units, int32_t unit, ExecContent content)
{
    const ExecModel *model = units->o.model;
    int64_t begin;

    exec_model_own_part(model, exec_units_unit(units, unit), &begin);
    const int64_t at = exec_model_at(model, content, exec_units_unit(units, unit), begin);
    return content == EXEC_CONTENT_WEIGHTS ? exec_at(model->backend, model->weights.data, at)
                                           : (float *)model->gradients.data + at;
}

bool
exec_units_take(const ExecUnits *units, int64_t n_bytes, ExecBlock *block)
{
    GError *error = NULL;

    if (exec_pool_take(units->o.model->pool, TRACE_MEMORY_BUFFERS, n_bytes, block, &error))
        return true;
    exec_comm_fail(units->o.comm, error);
    return false;
}

/* --- lifecycle --- */

ExecUnits *
exec_units_new(const ExecUnitsOptions *options)
{
    ExecUnits *units = g_new0(ExecUnits, 1);

    units->o = *options;
    units->gatherings = g_new0(ExecGathering, options->openings->len);
    units->prefetches = g_new0(ExecPrefetch, exec_units_n_slots(units));
    return units;
}

void
exec_units_free(ExecUnits *units)
{
    if (units == NULL)
        return;
    if (units->o.by == EXEC_GATHER_MESSAGES && units->o.comm->transport->ops->withdraw != NULL)
        units->o.comm->transport->ops->withdraw(units->o.comm->transport);
    g_array_unref(units->o.openings);
    for (guint i = 0; units->o.by == EXEC_GATHER_ASIDE && i < exec_units_n_slots(units); i++)
        units->o.model->backend->ops->forget(units->o.model->backend, units->prefetches[i].there);
    g_free(units->gatherings);
    g_free(units->prefetches);
    g_free(units);
}

/* --- gradients --- */

static bool
open_gradients(ExecOpenUnits *open, int i)
{
    const ExecUnits *units = open->owner;
    ExecBackend *backend = units->o.model->backend;
    const int32_t unit = open->units[i];
    int64_t n;
    const int64_t at = exec_units_part_at(units, unit, &n);

    if (!exec_units_take(units, exec_units_unit(units, unit)->n * (int64_t)sizeof(float),
                         &open->gradients[i]))
        return false;
    float *gradients = open->gradients[i].data;
    backend->ops->zero(backend, (size_t)open->gradients[i].n_bytes, gradients);
    backend->ops->copy(backend, (size_t)n * sizeof *gradients,
                       exec_units_part(units, unit, EXEC_CONTENT_GRADIENTS), gradients + at);
    return true;
}

/* --- opening and closing --- */

static bool
open_unit(ExecOpenUnits *open, int i, unsigned what)
{
    ExecModel *model = open->owner->o.model;
    const ExecUnit *unit = exec_units_unit(open->owner, open->units[i]);
    const bool sharded = model->regions[unit->region].sharded[EXEC_CONTENT_GRADIENTS];

    if (what & EXEC_OPEN_GRADIENTS && sharded && !open_gradients(open, i))
        return false;
    const ExecBlock *weights = &open->weights[i], *gradients = &open->gradients[i];
    if (sharded || exec_model_weights_apart(model, unit))
        exec_model_bind(
            model, unit,
            weights->data != NULL ? weights->data : exec_model_kept_weights(model, unit),
            gradients->data != NULL ? gradients->data : exec_model_kept_gradients(model, unit));
    return true;
}

bool
exec_units_open(ExecOpenUnits *open, ExecUnits *units, ExecComm *comm, unsigned what, int32_t a,
                int32_t b)
{
    *open = (ExecOpenUnits){.owner = units, .units = {a, b}};
    if (units == NULL || comm->error != NULL)
        return comm->error == NULL;
    if (what & EXEC_OPEN_WEIGHTS &&
        (exec_units_is_apart(units, a) || exec_units_is_apart(units, b)) &&
        !exec_units_open_weights(open))
        return false;
    for (int i = 0; i < 2; i++)
        if (open->units[i] >= 0 && !open_unit(open, i, what))
            return false;
    return comm->error == NULL;
}

static void
close_unit(ExecOpenUnits *open, int i)
{
    ExecUnits *units = open->owner;
    ExecModel *model = units->o.model;
    ExecBackend *backend = model->backend;
    const ExecUnit *unit = exec_units_unit(units, open->units[i]);
    int64_t n;
    const int64_t at = exec_units_part_at(units, open->units[i], &n);

    if (open->gradients[i].data != NULL) {
        float *gradients = open->gradients[i].data;
        exec_comm_reduce_scatter(units->o.comm, exec_region_dim(unit->region), DTYPE_FP32, unit->n,
                                 gradients);
        backend->ops->copy(backend, (size_t)n * sizeof *gradients, gradients + at,
                           exec_units_part(units, open->units[i], EXEC_CONTENT_GRADIENTS));
    }
    if (open->weights[i].data != NULL || open->gradients[i].data != NULL)
        exec_model_bind(model, unit, exec_model_kept_weights(model, unit),
                        exec_model_kept_gradients(model, unit));
    exec_pool_give(model->pool, &open->weights[i]);
    exec_pool_give(model->pool, &open->gradients[i]);
}

void
exec_units_close(ExecOpenUnits *open)
{
    for (int i = 0; open->owner != NULL && i < 2; i++)
        if (open->units[i] >= 0)
            close_unit(open, i);
}
