#include "executor/model/model.h"

#include <math.h>
#include <stddef.h>

#include "executor/model/random.h"
#include "executor/model/state.h"

/* --- stages --- */

static bool
has_two_chains(const Plan *plan)
{
    const ScheduleFamily *family = schedule_family_find(plan->schedule, NULL);

    return family != NULL && schedule_placement_n_chains(family->placement) > 1;
}

static void
add_stages(ExecModel *model, const ExecModelOptions *o)
{
    const int32_t pp = (int32_t)o->plan->degrees.pp;
    const bool two_chains = has_two_chains(o->plan);

    for (guint i = 0; i < o->plan->stages->len; i++) {
        const PlanStage *from = &g_array_index(o->plan->stages, PlanStage, i);
        const size_t n_layers = (size_t)MAX(from->n_layers, 1);
        if (from->rank != o->pipeline_rank)
            continue;
        ExecStage stage = {
            .stage = two_chains ? (int32_t)i % pp : (int32_t)i,
            .chain = two_chains ? (int32_t)i / pp : 0,
            .chunk = from->chunk,
            .first_layer = from->first_layer,
            .n_layers = from->n_layers,
            .embedding = from->embedding,
            .head = from->head,
            .recompute = from->recompute,
            .again = from->recompute == PLAN_RECOMPUTE_SELECTIVE
                         ? plan_framework_modules(&o->plan->conventions)
                         : 0,
            .in_units = from->recompute == PLAN_RECOMPUTE_FULL &&
                        plan_full_repeats_all(&o->plan->conventions) &&
                        o->plan->conventions.recompute_layers > 1,
            .first_repeated = g_new0(int64_t, n_layers),
            .layers = g_new0(ExecLayerTensors, n_layers),
            .widths = g_new0(const ExecWidths *, n_layers),
        };
        for (int64_t l = 0; l < stage.n_layers; l++) {
            stage.n_repeated +=
                plan_layer_recompute(&o->plan->conventions, from, l) == PLAN_RECOMPUTE_FULL;
            stage.first_repeated[l] =
                plan_recompute_first(&o->plan->conventions, from, l, o->arch->n_layers);
            stage.widths[l] = &model->kinds[model_layer_kind(o->arch, stage.first_layer + l)];
        }
        g_array_append_val(model->stages, stage);
    }
}

/* Notes in the stage's tensors that the one of @binding is in unit @unit. */
static void
note_unit(const ExecModel *model, const ExecBinding *binding, int32_t unit)
{
    ExecStage *stage = &g_array_index(model->stages, ExecStage, binding->stage);
    const ExecRegionKind region = exec_model_unit(model, unit)->region;

    if (region == EXEC_REGION_NORMS)
        return;
    if (binding->layer >= 0 && region == EXEC_REGION_EXPERTS)
        stage->layers[binding->layer].experts_unit = unit;
    else if (binding->layer >= 0)
        stage->layers[binding->layer].dense_unit = unit;
    else if (binding->member == offsetof(ExecEndTensors, token_table))
        stage->ends.token_unit = unit;
    else if (binding->member == offsetof(ExecEndTensors, position_table))
        stage->ends.position_unit = unit;
    else if (binding->member == offsetof(ExecEndTensors, head_bias))
        stage->ends.bias_unit = unit;
    else
        stage->ends.head_unit = unit;
}

static void
note_units(ExecModel *model)
{
    for (guint i = 0; i < model->stages->len; i++) {
        ExecStage *stage = &g_array_index(model->stages, ExecStage, i);
        stage->ends.token_unit = stage->ends.position_unit = -1;
        stage->ends.head_unit = stage->ends.bias_unit = -1;
        for (int64_t l = 0; l < stage->n_layers; l++)
            stage->layers[l].dense_unit = stage->layers[l].experts_unit = -1;
    }
    for (guint i = 0; i < model->layout.bindings->len; i++) {
        const ExecBinding *binding = &g_array_index(model->layout.bindings, ExecBinding, i);
        note_unit(model, binding, exec_model_parameter(model, binding->parameter)->unit);
    }
}

/* --- initial values --- */

enum {
    PIECE = 1 << 18 /* how many values are in host memory at a time, at most */
};

/* Of element @i of the whole parameter. */
static float
initial_value(const ExecParameter *p, uint64_t key, int64_t i)
{
    const double uniform = (double)(random_at(key, (uint64_t)i) >> 11) * 0x1p-53;

    switch (p->init) {
    case EXEC_INIT_ZERO:
        return 0.0f;
    case EXEC_INIT_ONE:
        return 1.0f;
    case EXEC_INIT_NORMAL:
        return p->deviation * exec_random_normal(key, (uint64_t)i);
    case EXEC_INIT_RATE:
        return (float)log(1.0 + 15.0 * uniform);
    case EXEC_INIT_STEP: {
        const double step = 1e-3 * pow(100.0, uniform);
        return (float)(step + log(-expm1(-step)));
    }
    case EXEC_INIT_COUNT:
        return (float)log(1.0 + (double)(i % p->shard.cols));
    }
    g_return_val_if_reached(0.0f);
}

static void
initial_values(const ExecParameter *p, uint64_t key, int64_t at, int64_t n, float *values)
{
    for (int64_t i = 0; i < n;) {
        int64_t together;
        const int64_t whole = exec_shard_at(&p->shard, at + i, &together);
        for (int64_t j = 0; j < together && i < n; j++, i++)
            values[i] = initial_value(p, key, whole + j);
    }
}

/* Writes @n initial values of @p from @at on to the weights and master weights of this rank. */
static bool
store_initial(ExecModel *model, const ExecParameter *p, int64_t at, int64_t n, float *values,
              float *staging, GError **error)
{
    const ExecUnit *unit = exec_model_unit(model, p->unit);
    const bool apart = exec_model_weights_apart(model, unit);
    const bool has_master = model->master.data != NULL || model->offload != NULL;
    int64_t own, n_own = exec_model_own_elements(model, p, &own);
    const int64_t begin = MAX(at, own), end = MIN(at + n, own + n_own);

    if (!apart && !exec_model_write_weights(model, p, at, n, values, staging, error))
        return false;
    if (begin >= end)
        return true;
    if (apart && !exec_model_write_weights(model, p, begin, end - begin, values + (begin - at),
                                           staging, error))
        return false;
    return staging == NULL || !has_master ||
           exec_model_move_state(model, true, EXEC_STATE_MASTER, p, begin, end - begin,
                                 values + (begin - at), error);
}

/* Makes the values in host memory, a piece at a time, and uploads them: the host cannot address the
 * device's memory. */
static bool
initialize(ExecModel *model, uint64_t seed, GError **error)
{
    const bool narrow = model->backend->storage != DTYPE_FP32;
    ExecBlock staging = {0};
    int64_t most = 1;

    for (guint i = 0; i < exec_model_n_parameters(model); i++)
        most = MAX(most, exec_model_parameter(model, i)->n);
    most = MIN(most, PIECE);
    g_autofree float *piece = g_new(float, (size_t)most);
    if (narrow && !exec_pool_take(model->pool, TRACE_MEMORY_WORKSPACE,
                                  most * (int64_t)sizeof *piece, &staging, error))
        return false;
    for (guint i = 0; i < exec_model_n_parameters(model); i++) {
        const ExecParameter *p = exec_model_parameter(model, i);
        const uint64_t key = exec_random_key(seed, p->name);
        for (int64_t at = 0; at < p->n; at += most) {
            const int64_t n = MIN(most, p->n - at);
            initial_values(p, key, at, n, piece);
            if (!store_initial(model, p, at, n, piece, staging.data, error))
                return false;
        }
    }
    exec_pool_give(model->pool, &staging);
    return true;
}

/* --- lifecycle --- */

/* Second moments lie as everything else does, but with Muon those of AdamW's parameters alone, one
 * behind the other.  Returns how many there are. */
static int64_t
place_moments2(ExecModel *model, const ExecModelOptions *o)
{
    int64_t n = 0;

    if (!plan_optimizer(o->plan->conventions.optimizer)->orthogonalises)
        return exec_layout_content_elements(model->layout.regions, EXEC_CONTENT_OPTIMIZER);
    model->moments2_at = g_new(int64_t, exec_model_n_parameters(model));
    for (guint i = 0; i < exec_model_n_parameters(model); i++) {
        const ExecParameter *p = exec_model_parameter(model, i);
        int64_t begin;

        model->moments2_at[i] = p->matrix_rows > 0 ? -1 : n;
        if (p->matrix_rows == 0)
            n += (exec_model_own_elements(model, p, &begin) + 15) / 16 * 16;
    }
    return n;
}

static bool
take_buffers(ExecModel *model, const ExecModelOptions *o, GError **error)
{
    const int64_t fp32 = (int64_t)sizeof(float);
    const bool narrow = model->backend->storage != DTYPE_FP32;
    const bool optimizer = o->optimizer && o->offload == NULL;
    const int64_t n_moments2 = optimizer ? place_moments2(model, o) : 0;
    const struct {
        ExecBlock *block;
        ExecContent content;
        int64_t element_bytes;
        TraceMemoryOwner owner;
        bool wanted;
    } buffers[] = {
        {&model->weights, EXEC_CONTENT_WEIGHTS, dtype_bytes(model->backend->storage),
         TRACE_MEMORY_WEIGHTS, true},
        {&model->gradients, EXEC_CONTENT_GRADIENTS, fp32, TRACE_MEMORY_GRADIENTS, true},
        {&model->master, EXEC_CONTENT_OPTIMIZER, fp32, TRACE_MEMORY_OPTIMIZER, optimizer && narrow},
        {&model->moments1, EXEC_CONTENT_OPTIMIZER, fp32, TRACE_MEMORY_OPTIMIZER, optimizer},
        {&model->moments2, EXEC_CONTENT_OPTIMIZER, fp32, TRACE_MEMORY_OPTIMIZER, optimizer},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(buffers); i++) {
        const int64_t n_bytes =
            (buffers[i].block == &model->moments2
                 ? n_moments2
                 : exec_layout_content_elements(model->layout.regions, buffers[i].content)) *
            buffers[i].element_bytes;
        if (!buffers[i].wanted)
            continue;
        if (!exec_pool_take(model->pool, buffers[i].owner, n_bytes, buffers[i].block, error))
            return false;
        model->backend->ops->zero(model->backend, (size_t)n_bytes, buffers[i].block->data);
    }
    if (!o->optimizer)
        return true;
    model->clip = model->backend->ops->alloc(model->backend, sizeof *model->clip,
                                             "the gradient's norm", error);
    if (model->clip == NULL)
        return false;
    if (o->offload == NULL)
        return true;
    ExecOffloadOptions offload = *o->offload;
    offload.parameters = o->plan->offload_parameters;
    offload.narrow = offload.parameters && narrow;
    offload.storage = model->backend->storage;
    model->offload = exec_offload_new(
        &offload, exec_layout_content_elements(model->layout.regions, EXEC_CONTENT_OPTIMIZER),
        narrow || offload.parameters ? 3 : 2, error);
    return model->offload != NULL;
}

/* Binds the tensors to what the rank keeps whole. */
static void
bind_what_stays(ExecModel *model)
{
    for (guint i = 0; i < model->layout.units->len; i++) {
        const ExecUnit *unit = exec_model_unit(model, (int32_t)i);
        exec_model_bind(model, unit, exec_model_kept_weights(model, unit),
                        exec_model_kept_gradients(model, unit));
    }
}

ExecModel *
exec_model_new(const ExecModelOptions *options, ExecBackend *backend, ExecPool *pool,
               GError **error)
{
    g_autoptr(ExecModel) model = g_new0(ExecModel, 1);

    model->widths = exec_end_widths(options, backend->storage);
    model->n_kinds = model_n_kinds(options->arch);
    for (int32_t i = 0; i < model->n_kinds; i++)
        model->kinds[i] = exec_kind_widths(options, backend->storage, i);
    model->layout = exec_layout_new(options);
    model->stages = g_array_new(false, true, sizeof(ExecStage));
    model->backend = backend;
    model->pool = pool;
    if (model->layout.overflow)
        return EXEC_FAIL_NULL(error, EXEC_ERROR_MEMORY,
                              "the parameters of pipeline rank %d are more than memory can hold",
                              options->pipeline_rank);
    if (!take_buffers(model, options, error))
        return NULL;
    add_stages(model, options);
    note_units(model);
    bind_what_stays(model);
    return initialize(model, options->seed, error) ? g_steal_pointer(&model) : NULL;
}

void
exec_model_free(ExecModel *model)
{
    if (model == NULL)
        return;
    for (guint i = 0; i < model->stages->len; i++) {
        g_free(g_array_index(model->stages, ExecStage, i).layers);
        g_free(g_array_index(model->stages, ExecStage, i).widths);
        g_free(g_array_index(model->stages, ExecStage, i).first_repeated);
    }
    g_array_unref(model->stages);
    exec_layout_clear(&model->layout);
    exec_pool_give(model->pool, &model->weights);
    exec_pool_give(model->pool, &model->gradients);
    exec_pool_give(model->pool, &model->master);
    exec_pool_give(model->pool, &model->moments1);
    exec_pool_give(model->pool, &model->moments2);
    g_free(model->moments2_at);
    model->backend->ops->release(model->backend, model->clip);
    exec_offload_free(model->offload);
    g_free(model);
}

const ExecStage *
exec_model_stage_of_chunk(const ExecModel *model, int32_t chunk)
{
    for (guint i = 0; i < model->stages->len; i++)
        if (exec_model_stage(model, i)->chunk == chunk)
            return exec_model_stage(model, i);
    g_return_val_if_reached(NULL);
}

const ExecParameter *
exec_model_find(const ExecModel *model, const char *name)
{
    guint i;

    return exec_layout_find(&model->layout, name, &i) ? exec_model_parameter(model, i) : NULL;
}

/* --- this rank's shards, and whole units --- */

int64_t
exec_model_own_shard(const ExecModel *model, const ExecUnit *unit, int64_t *begin)
{
    const ExecRegion *region = exec_model_region(model, unit);

    *begin = unit->begin;
    if (!region->sharded[EXEC_CONTENT_OPTIMIZER])
        return unit->n;
    *begin += unit->n / region->n_replicas * region->replica;
    return unit->n / region->n_replicas;
}

int64_t
exec_model_own_elements(const ExecModel *model, const ExecParameter *p, int64_t *begin)
{
    const ExecUnit *unit = exec_model_unit(model, p->unit);
    int64_t shard_begin;
    const int64_t shard_end = exec_model_own_shard(model, unit, &shard_begin) + shard_begin;

    *begin = CLAMP(shard_begin - p->offset, 0, p->n);
    return CLAMP(shard_end - p->offset, 0, p->n) - *begin;
}

int64_t
exec_model_at(const ExecModel *model, ExecContent content, const ExecUnit *unit, int64_t i)
{
    const ExecRegion *region = exec_model_region(model, unit);
    int64_t shard_begin;

    if (!region->sharded[content])
        return region->at[content] + i - region->begin;
    exec_model_own_shard(model, unit, &shard_begin);
    return region->at[content] + (unit->begin - region->begin) / region->n_replicas + i -
           shard_begin;
}

int64_t
exec_model_parameter_at(const ExecModel *model, ExecContent content, const ExecParameter *p,
                        int64_t i)
{
    return exec_model_at(model, content, exec_model_unit(model, p->unit), p->offset + i);
}

bool
exec_model_weights_apart(const ExecModel *model, const ExecUnit *unit)
{
    const ExecRegion *region = exec_model_region(model, unit);

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
    if (exec_model_region(model, unit)->sharded[EXEC_CONTENT_GRADIENTS])
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
        const ExecBinding *binding = &g_array_index(model->layout.bindings, ExecBinding, i);
        const int64_t at = exec_model_parameter(model, binding->parameter)->offset - unit->begin;
        ExecStage *stage = &g_array_index(model->stages, ExecStage, binding->stage);
        char *tensors =
            binding->layer < 0 ? (char *)&stage->ends : (char *)&stage->layers[binding->layer];
        *(ExecTensor *)(void *)(tensors + binding->member) = (ExecTensor){
            .weight = weights == NULL ? NULL : exec_at(model->backend, weights, at),
            .gradient = gradients == NULL ? NULL : gradients + at,
        };
    }
}
