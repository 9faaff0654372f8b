#include "executor/units.h"

ExecDim
exec_region_dim(ExecRegionKind region)
{
    return region == EXEC_REGION_EXPERTS ? EXEC_DIM_EXPERT : EXEC_DIM_DENSE;
}

static const ExecUnit *
unit_of(const ExecOpenUnits *open, int i)
{
    return &g_array_index(open->model->units, ExecUnit, open->units[i]);
}

/* Where this rank's part is in the whole unit. */
static int64_t
part_at(const ExecOpenUnits *open, int i, int64_t *n)
{
    int64_t begin;

    *n = exec_model_own_part(open->model, unit_of(open, i), &begin);
    return begin - unit_of(open, i)->begin;
}

static void *
part_of(const ExecOpenUnits *open, int i, ExecContent content)
{
    const ExecModel *model = open->model;
    const ExecUnit *unit = unit_of(open, i);
    int64_t begin;

    exec_model_own_part(model, unit, &begin);
    const int64_t at = exec_model_at(model, content, unit, begin);
    return content == EXEC_CONTENT_WEIGHTS ? exec_at(model->backend, model->weights.data, at)
                                           : (float *)model->gradients.data + at;
}

static bool
take(const ExecOpenUnits *open, int64_t n_bytes, ExecBlock *block)
{
    GError *error = NULL;

    if (exec_pool_take(open->model->pool, TRACE_MEMORY_BUFFERS, n_bytes, block, &error))
        return true;
    exec_comm_fail(open->comm, error);
    return false;
}

static bool
open_weights(ExecOpenUnits *open, int i)
{
    ExecBackend *backend = open->model->backend;
    const ExecUnit *unit = unit_of(open, i);
    int64_t n;
    const int64_t at = part_at(open, i, &n);

    if (!take(open, exec_storage_bytes(backend, unit->n), &open->weights[i]))
        return false;
    backend->ops->copy(backend, (size_t)exec_storage_bytes(backend, n),
                       part_of(open, i, EXEC_CONTENT_WEIGHTS),
                       exec_at(backend, open->weights[i].data, at));
    exec_comm_all_gather(open->comm, exec_region_dim(unit->region), backend->storage, unit->n,
                         open->weights[i].data);
    return open->comm->error == NULL;
}

static bool
open_gradients(ExecOpenUnits *open, int i)
{
    ExecBackend *backend = open->model->backend;
    int64_t n;
    const int64_t at = part_at(open, i, &n);

    if (!take(open, unit_of(open, i)->n * (int64_t)sizeof(float), &open->gradients[i]))
        return false;
    float *gradients = open->gradients[i].data;
    backend->ops->zero(backend, (size_t)open->gradients[i].n_bytes, gradients);
    backend->ops->copy(backend, (size_t)n * sizeof *gradients,
                       part_of(open, i, EXEC_CONTENT_GRADIENTS), gradients + at);
    return true;
}

static bool
open_unit(ExecOpenUnits *open, int i, unsigned what)
{
    ExecModel *model = open->model;
    const ExecUnit *unit = unit_of(open, i);
    const bool *sharded = model->regions[unit->region].sharded;
    void *weights = exec_model_kept_weights(model, unit);
    float *gradients = exec_model_kept_gradients(model, unit);

    if (what & EXEC_OPEN_WEIGHTS && sharded[EXEC_CONTENT_WEIGHTS]) {
        if (!open_weights(open, i))
            return false;
        weights = open->weights[i].data;
    }
    if (what & EXEC_OPEN_GRADIENTS && sharded[EXEC_CONTENT_GRADIENTS]) {
        if (!open_gradients(open, i))
            return false;
        gradients = open->gradients[i].data;
    }
    if (sharded[EXEC_CONTENT_WEIGHTS] || sharded[EXEC_CONTENT_GRADIENTS])
        exec_model_bind(model, unit, weights, gradients);
    return true;
}

bool
exec_units_open(ExecOpenUnits *open, ExecModel *model, ExecComm *comm, unsigned what, int32_t a,
                int32_t b)
{
    *open = (ExecOpenUnits){.model = model, .comm = comm, .units = {a, b}};
    for (int i = 0; model != NULL && i < 2; i++)
        if (open->units[i] >= 0 && !open_unit(open, i, what))
            return false;
    return comm->error == NULL;
}

static void
close_unit(ExecOpenUnits *open, int i)
{
    ExecModel *model = open->model;
    ExecBackend *backend = model->backend;
    const ExecUnit *unit = unit_of(open, i);
    int64_t n;
    const int64_t at = part_at(open, i, &n);

    if (open->gradients[i].data != NULL) {
        float *gradients = open->gradients[i].data;
        exec_comm_reduce_scatter(open->comm, exec_region_dim(unit->region), DTYPE_FP32, unit->n,
                                 gradients);
        backend->ops->copy(backend, (size_t)n * sizeof *gradients, gradients + at,
                           part_of(open, i, EXEC_CONTENT_GRADIENTS));
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
    for (int i = 0; open->model != NULL && i < 2; i++)
        if (open->units[i] >= 0)
            close_unit(open, i);
}
