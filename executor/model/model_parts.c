/* What a rank has of every unit, and where: ZeRO.  model.h. */
#include "executor/model/model.h"

/* --- regions --- */

void
exec_regions_set_copies(ExecRegion *regions, const ExecModelOptions *o)
{
    const PlanDegrees *d = &o->plan->degrees;
    const ExecRegion dense = {.n_replicas = (int32_t)(d->dp * d->cp), .index = o->dense_index};

    regions[EXEC_REGION_NORMS] = regions[EXEC_REGION_DENSE] = dense;
    regions[EXEC_REGION_EXPERTS] = (ExecRegion){
        .n_replicas = (int32_t)(d->dp * d->cp * d->tp / d->ep), .index = o->expert_index};
}

/* Of a region, on the device. */
static int64_t
region_elements(const ExecRegion *region, ExecContent content)
{
    if (content == EXEC_CONTENT_WEIGHTS && region->weights_off)
        return 0;
    return region->sharded[content] ? region->n / region->n_replicas : region->n;
}

int64_t
exec_regions_elements(const ExecRegion *regions, ExecContent content)
{
    int64_t n = 0;

    for (int r = 0; r < EXEC_REGION_N; r++)
        n += region_elements(&regions[r], content);
    return n;
}

void
exec_regions_set_sharded(ExecRegion *regions, const Plan *plan)
{
    static const int32_t from_stage[EXEC_CONTENT_N] = {
        [EXEC_CONTENT_WEIGHTS] = 3, [EXEC_CONTENT_GRADIENTS] = 2, [EXEC_CONTENT_OPTIMIZER] = 1};

    for (int r = 0; r < EXEC_REGION_N; r++) {
        ExecRegion *region = &regions[r];
        region->weights_off = plan->offload_parameters && r != EXEC_REGION_NORMS;
        for (int content = 0; content < EXEC_CONTENT_N; content++) {
            region->sharded[content] =
                region->n_replicas > 1 && plan->zero_stage >= from_stage[content] &&
                (r != EXEC_REGION_NORMS || content == EXEC_CONTENT_OPTIMIZER);
            if (r > 0)
                region->at[content] =
                    region[-1].at[content] + region_elements(&region[-1], (ExecContent)content);
        }
    }
}

/* --- parts --- */

int64_t
exec_model_own_part(const ExecModel *model, const ExecUnit *unit, int64_t *begin)
{
    const ExecRegion *region = &model->regions[unit->region];

    *begin = unit->begin;
    if (!region->sharded[EXEC_CONTENT_OPTIMIZER])
        return unit->n;
    *begin += unit->n / region->n_replicas * region->index;
    return unit->n / region->n_replicas;
}

int64_t
exec_model_own_elements(const ExecModel *model, const ExecParameter *p, int64_t *begin)
{
    const ExecUnit *unit = &g_array_index(model->units, ExecUnit, p->unit);
    int64_t part_begin;
    const int64_t part_end = exec_model_own_part(model, unit, &part_begin) + part_begin;

    *begin = CLAMP(part_begin - p->offset, 0, p->n);
    return CLAMP(part_end - p->offset, 0, p->n) - *begin;
}

int64_t
exec_model_at(const ExecModel *model, ExecContent content, const ExecUnit *unit, int64_t i)
{
    const ExecRegion *region = &model->regions[unit->region];
    int64_t part_begin;

    if (!region->sharded[content])
        return region->at[content] + i - region->begin;
    exec_model_own_part(model, unit, &part_begin);
    return region->at[content] + (unit->begin - region->begin) / region->n_replicas + i -
           part_begin;
}

int64_t
exec_model_parameter_at(const ExecModel *model, ExecContent content, const ExecParameter *p,
                        int64_t i)
{
    return exec_model_at(model, content, &g_array_index(model->units, ExecUnit, p->unit),
                         p->offset + i);
}

bool
exec_model_weights_apart(const ExecModel *model, const ExecUnit *unit)
{
    const ExecRegion *region = &model->regions[unit->region];

    return region->sharded[EXEC_CONTENT_WEIGHTS] || region->weights_off;
}

void *
exec_model_kept_weights(const ExecModel *model, const ExecUnit *unit)
{
    if (exec_model_weights_apart(model, unit))
        return NULL;
    return exec_at(model->backend, model->weights.data,
                   exec_model_at(model, EXEC_CONTENT_WEIGHTS, unit, unit->begin));
}

float *
exec_model_kept_gradients(const ExecModel *model, const ExecUnit *unit)
{
    if (model->regions[unit->region].sharded[EXEC_CONTENT_GRADIENTS])
        return NULL;
    return (float *)model->gradients.data +
           exec_model_at(model, EXEC_CONTENT_GRADIENTS, unit, unit->begin);
}

float *
exec_model_own_gradients(const ExecModel *model, const ExecParameter *p, int64_t i)
{
    return (float *)model->gradients.data +
           exec_model_parameter_at(model, EXEC_CONTENT_GRADIENTS, p, i);
}

void
exec_model_bind(ExecModel *model, const ExecUnit *unit, void *weights, float *gradients)
{
    for (guint i = unit->first_binding; i < unit->first_binding + unit->n_bindings; i++) {
        const ExecBinding *binding = &g_array_index(model->bindings, ExecBinding, i);
        const int64_t at =
            g_array_index(model->parameters, ExecParameter, binding->parameter).offset -
            unit->begin;
        ExecStage *stage = &g_array_index(model->stages, ExecStage, binding->stage);
        char *tensors =
            binding->layer < 0 ? (char *)&stage->ends : (char *)&stage->layers[binding->layer];
        *(ExecTensor *)(void *)(tensors + binding->member) = (ExecTensor){
            .weight = weights == NULL ? NULL : exec_at(model->backend, weights, at),
            .gradient = gradients == NULL ? NULL : gradients + at,
        };
    }
}

void
exec_model_zero_gradients(ExecModel *model, const ExecParameter *p)
{
    const ExecUnit *unit = &g_array_index(model->units, ExecUnit, p->unit);
    const bool part = model->regions[unit->region].sharded[EXEC_CONTENT_GRADIENTS];
    int64_t begin = 0;
    const int64_t n = part ? exec_model_own_elements(model, p, &begin) : p->n;

    if (n > 0)
        model->backend->ops->zero(model->backend, (size_t)n * sizeof(float),
                                  exec_model_own_gradients(model, p, begin));
}
