#include "executor/model.h"

#include "executor/random.h"

/* --- views --- */

static bool
has_two_chains(const Plan *plan)
{
    const ScheduleFamily *family = schedule_family_find(plan->schedule, NULL);

    return family != NULL && family->placement == SCHEDULE_PLACEMENT_BIDIR;
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
            .layers = g_new0(ExecLayerTensors, n_layers),
        };
        while (stage.n_dense < stage.n_layers &&
               !model_layer_is_moe(o->arch, stage.first_layer + stage.n_dense))
            stage.n_dense++;
        g_array_append_val(model->stages, stage);
    }
}

static void
bind(ExecModel *model, const ExecBinding *binding)
{
    const ExecParameter *p = &g_array_index(model->parameters, ExecParameter, binding->parameter);
    ExecStage *stage = &g_array_index(model->stages, ExecStage, binding->stage);
    char *tensors =
        binding->layer < 0 ? (char *)&stage->ends : (char *)&stage->layers[binding->layer];

    *(ExecTensor *)(void *)(tensors + binding->member) = (ExecTensor){
        .weight = exec_at(model->backend, model->weights.data, p->offset),
        .gradient = exec_model_gradients(model) + p->offset,
    };
}

/* --- lifecycle --- */

enum {
    PIECE = 4096 /* values at a time through host memory */
};

static void
initial_values(const ExecParameter *p, uint64_t key, int64_t at, int64_t n, float *values)
{
    for (int64_t i = 0; i < n;) {
        int64_t together;
        const int64_t whole = exec_shard_at(&p->shard, at + i, &together);
        for (int64_t j = 0; j < together && i < n; j++, i++)
            values[i] = p->init == EXEC_INIT_ONE ? 1.0f
                        : p->init == EXEC_INIT_ZERO
                            ? 0.0f
                            : p->deviation * exec_random_normal(key, (uint64_t)(whole + j));
    }
}

/* Fills in host memory, a piece at a time, and uploads: device memory is not addressable. */
static void
initialize(ExecModel *model, uint64_t seed)
{
    const ExecBackendOps *ops = model->backend->ops;
    g_autofree float *piece = g_new(float, PIECE);
    float *master = model->master.data != NULL ? model->master.data : NULL;

    for (guint i = 0; i < model->parameters->len; i++) {
        const ExecParameter *p = &g_array_index(model->parameters, ExecParameter, i);
        const uint64_t key = exec_random_key(seed, p->name);
        for (int64_t at = 0; at < p->n; at += PIECE) {
            const int64_t n = MIN(PIECE, p->n - at);
            float *to = (float *)model->weights.data + p->offset + at;
            initial_values(p, key, at, n, piece);
            if (model->backend->storage != DTYPE_FP32)
                to = master != NULL ? master + p->offset + at : exec_model_gradients(model);
            ops->upload(model->backend, (size_t)n * sizeof *piece, piece, to);
            if (model->backend->storage != DTYPE_FP32)
                ops->to_storage(model->backend, n, to,
                                exec_at(model->backend, model->weights.data, p->offset + at));
        }
    }
}

static bool
take_buffers(ExecModel *model, bool optimizer, GError **error)
{
    const int64_t fp32 = (int64_t)sizeof(float);
    const bool narrow = model->backend->storage != DTYPE_FP32;
    const struct {
        ExecBlock *block;
        int64_t element_bytes;
        TraceMemoryOwner owner;
        bool wanted;
    } buffers[] = {
        {&model->weights, dtype_bytes(model->backend->storage), TRACE_MEMORY_WEIGHTS, true},
        {&model->gradients, fp32, TRACE_MEMORY_GRADIENTS, true},
        {&model->master, fp32, TRACE_MEMORY_OPTIMIZER, optimizer && narrow},
        {&model->moments1, fp32, TRACE_MEMORY_OPTIMIZER, optimizer},
        {&model->moments2, fp32, TRACE_MEMORY_OPTIMIZER, optimizer},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(buffers); i++) {
        const int64_t n_bytes = model->n * buffers[i].element_bytes;
        if (!buffers[i].wanted)
            continue;
        if (!exec_pool_take(model->pool, buffers[i].owner, n_bytes, buffers[i].block, error))
            return false;
        model->backend->ops->zero(model->backend, (size_t)n_bytes, buffers[i].block->data);
    }
    return true;
}

ExecModel *
exec_model_new(const ExecModelOptions *options, ExecBackend *backend, ExecPool *pool,
               GError **error)
{
    g_autoptr(ExecModel) model = g_new0(ExecModel, 1);
    ExecLayout layout = exec_layout_new(options);

    model->widths = exec_widths(options, backend->storage);
    model->parameters = g_array_ref(layout.parameters);
    model->stages = g_array_new(false, true, sizeof(ExecStage));
    model->n = layout.n;
    model->n_dense = layout.n_dense;
    model->backend = backend;
    model->pool = pool;
    if (layout.overflow)
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_MEMORY,
                    "the parameters of pipeline rank %d are more than memory can hold",
                    options->pipeline_rank);
    const bool ok = !layout.overflow && take_buffers(model, options->optimizer, error);
    if (ok) {
        add_stages(model, options);
        for (guint i = 0; i < layout.bindings->len; i++)
            bind(model, &g_array_index(layout.bindings, ExecBinding, i));
        initialize(model, options->seed);
        backend->ops->zero(backend, (size_t)model->gradients.n_bytes, model->gradients.data);
    }
    exec_layout_clear(&layout);
    return ok ? g_steal_pointer(&model) : NULL;
}

void
exec_model_free(ExecModel *model)
{
    if (model == NULL)
        return;
    for (guint i = 0; i < model->stages->len; i++)
        g_free(g_array_index(model->stages, ExecStage, i).layers);
    g_array_unref(model->stages);
    g_array_unref(model->parameters);
    exec_pool_give(model->pool, &model->weights);
    exec_pool_give(model->pool, &model->gradients);
    exec_pool_give(model->pool, &model->master);
    exec_pool_give(model->pool, &model->moments1);
    exec_pool_give(model->pool, &model->moments2);
    g_free(model);
}

const ExecParameter *
exec_model_find(const ExecModel *model, const char *name)
{
    for (guint i = 0; i < model->parameters->len; i++) {
        const ExecParameter *p = &g_array_index(model->parameters, ExecParameter, i);
        if (g_str_equal(p->name, name))
            return p;
    }
    return NULL;
}

int64_t
exec_model_elements(const ExecModelOptions *options)
{
    ExecLayout layout = exec_layout_new(options);
    const int64_t n = layout.overflow ? -1 : layout.n;

    exec_layout_clear(&layout);
    return n;
}

void
exec_model_adamw(ExecModel *model, const ExecAdamw *constants, float weight_decay)
{
    ExecBackend *backend = model->backend;
    const bool narrow = backend->storage != DTYPE_FP32;
    float *master = narrow ? model->master.data : model->weights.data;
    float *moments1 = model->moments1.data, *moments2 = model->moments2.data;

    for (guint i = 0; i < model->parameters->len; i++) {
        const ExecParameter *p = &g_array_index(model->parameters, ExecParameter, i);
        float *gradients = exec_model_gradients(model) + p->offset;
        ExecAdamw c = *constants;
        c.weight_decay = p->decays ? weight_decay : 0.0f;
        backend->ops->adamw(backend, p->n, master + p->offset,
                            narrow ? exec_at(backend, model->weights.data, p->offset) : NULL,
                            gradients, moments1 + p->offset, moments2 + p->offset, &c);
        backend->ops->zero(backend, (size_t)p->n * sizeof *gradients, gradients);
    }
}
