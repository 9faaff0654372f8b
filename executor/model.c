#include "executor/model.h"

#include <math.h>
#include <stdio.h>

#include "executor/random.h"

ExecWidths
exec_widths(const ModelArch *arch, int64_t seq_len)
{
    const int64_t q_width = arch->n_heads * arch->head_dim;
    const int64_t kv_width = arch->n_kv_heads * arch->head_dim;

    return (ExecWidths){
        .hidden = arch->hidden,
        .n_heads = arch->n_heads,
        .n_kv_heads = arch->n_kv_heads,
        .head_dim = arch->head_dim,
        .ffn_hidden = arch->ffn_hidden,
        .vocab = arch->vocab,
        .seq_len = seq_len,
        .q_width = q_width,
        .kv_width = kv_width,
        .qkv_width = q_width + 2 * kv_width,
    };
}

/* --- layout --- */

/* Appends parameters; @n is the next free offset, a multiple of 16 floats (one cache line). */
typedef struct {
    GArray *parameters;
    int64_t n;
    bool overflow;
} Layout;

static void
add(Layout *layout, const char *name, int64_t rows, int64_t cols, ExecInit init, double deviation)
{
    ExecParameter parameter = {
        .offset = layout->n,
        .init = init,
        .deviation = (float)deviation,
        .decays = rows > 1,
    };

    g_strlcpy(parameter.name, name, sizeof parameter.name);
    layout->overflow |= __builtin_mul_overflow(rows, cols, &parameter.n) ||
                        __builtin_add_overflow(layout->n, parameter.n, &layout->n) ||
                        layout->n > INT64_MAX / 64;
    if (layout->overflow)
        layout->n = 0;
    layout->n = (layout->n + 15) / 16 * 16;
    g_array_append_val(layout->parameters, parameter);
}

static void
add_layer(Layout *layout, const ExecWidths *w, int64_t layer, double projection_deviation)
{
    const struct {
        const char *name;
        int64_t rows, cols;
        ExecInit init;
        double deviation;
    } tensors[] = {
        {"norm1.gain", 1, w->hidden, EXEC_INIT_ONE, 0},
        {"norm1.shift", 1, w->hidden, EXEC_INIT_ZERO, 0},
        {"qkv.weight", w->hidden, w->qkv_width, EXEC_INIT_NORMAL, 0.02},
        {"qkv.bias", 1, w->qkv_width, EXEC_INIT_ZERO, 0},
        {"proj.weight", w->q_width, w->hidden, EXEC_INIT_NORMAL, projection_deviation},
        {"proj.bias", 1, w->hidden, EXEC_INIT_ZERO, 0},
        {"norm2.gain", 1, w->hidden, EXEC_INIT_ONE, 0},
        {"norm2.shift", 1, w->hidden, EXEC_INIT_ZERO, 0},
        {"mlp_up.weight", w->hidden, w->ffn_hidden, EXEC_INIT_NORMAL, 0.02},
        {"mlp_up.bias", 1, w->ffn_hidden, EXEC_INIT_ZERO, 0},
        {"mlp_down.weight", w->ffn_hidden, w->hidden, EXEC_INIT_NORMAL, projection_deviation},
        {"mlp_down.bias", 1, w->hidden, EXEC_INIT_ZERO, 0},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(tensors); i++) {
        char name[64];
        g_snprintf(name, sizeof name, "layer.%" G_GINT64_FORMAT ".%s", layer, tensors[i].name);
        add(layout, name, tensors[i].rows, tensors[i].cols, tensors[i].init, tensors[i].deviation);
    }
}

static int32_t
rank_with(const Plan *plan, bool head)
{
    for (guint i = 0; i < plan->stages->len; i++) {
        const PlanStage *stage = &g_array_index(plan->stages, PlanStage, i);
        if (head ? stage->head : stage->embedding)
            return stage->rank;
    }
    return -1;
}

static void
add_embedding(Layout *layout, const ModelArch *arch)
{
    add(layout, "embedding.token", arch->vocab, arch->hidden, EXEC_INIT_NORMAL, 0.02);
    add(layout, "embedding.position", arch->max_seq_len, arch->hidden, EXEC_INIT_NORMAL, 0.02);
}

static void
add_head(Layout *layout, const ModelArch *arch, const Plan *plan, int32_t rank)
{
    add(layout, "norm.gain", 1, arch->hidden, EXEC_INIT_ONE, 0);
    add(layout, "norm.shift", 1, arch->hidden, EXEC_INIT_ZERO, 0);
    if (!arch->tied_embeddings) {
        add(layout, "head.weight", arch->vocab, arch->hidden, EXEC_INIT_NORMAL, 0.02);
    } else if (rank_with(plan, false) != rank) {
        add(layout, "embedding.token", arch->vocab, arch->hidden, EXEC_INIT_NORMAL, 0.02);
        g_array_index(layout->parameters, ExecParameter, layout->parameters->len - 1).tied_copy =
            true;
    }
}

/* The order of stages on the rank is the chunks'; the plan lists stages in chain order. */
static Layout
layout_of_rank(const ModelArch *arch, const Plan *plan, int32_t rank)
{
    Layout layout = {.parameters = g_array_new(false, true, sizeof(ExecParameter))};
    const ExecWidths w = exec_widths(arch, plan->seq_len);
    const double projection = 0.02 / sqrt(2.0 * (double)arch->n_layers);

    for (guint i = 0; i < plan->stages->len; i++) {
        const PlanStage *stage = &g_array_index(plan->stages, PlanStage, i);
        if (stage->rank != rank)
            continue;
        if (stage->embedding)
            add_embedding(&layout, arch);
        for (int64_t l = 0; l < stage->n_layers; l++)
            add_layer(&layout, &w, stage->first_layer + l, projection);
        if (stage->head)
            add_head(&layout, arch, plan, rank);
    }
    return layout;
}

int64_t
exec_model_weight_bytes(const ModelArch *arch, const Plan *plan, int32_t rank)
{
    Layout layout = layout_of_rank(arch, plan, rank);

    g_array_unref(layout.parameters);
    return layout.overflow ? -1 : layout.n * (int64_t)sizeof(float);
}

/* --- views --- */

static float *
find(const ExecModel *model, float *base, const char *name)
{
    for (guint i = 0; i < model->parameters->len; i++) {
        const ExecParameter *p = &g_array_index(model->parameters, ExecParameter, i);
        if (g_str_equal(p->name, name))
            return base + p->offset;
    }
    return NULL;
}

static float *
find_in_layer(const ExecModel *model, float *base, int64_t layer, const char *name)
{
    char full[64];

    g_snprintf(full, sizeof full, "layer.%" G_GINT64_FORMAT ".%s", layer, name);
    return find(model, base, full);
}

static void
set_layer(const ExecModel *model, float *base, int64_t layer, ExecLayerTensors *t)
{
    const struct {
        const char *name;
        float **to;
    } tensors[] = {
        {"norm1.gain", &t->norm1_gain},           {"norm1.shift", &t->norm1_shift},
        {"qkv.weight", &t->qkv_weight},           {"qkv.bias", &t->qkv_bias},
        {"proj.weight", &t->proj_weight},         {"proj.bias", &t->proj_bias},
        {"norm2.gain", &t->norm2_gain},           {"norm2.shift", &t->norm2_shift},
        {"mlp_up.weight", &t->mlp_up_weight},     {"mlp_up.bias", &t->mlp_up_bias},
        {"mlp_down.weight", &t->mlp_down_weight}, {"mlp_down.bias", &t->mlp_down_bias},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(tensors); i++)
        *tensors[i].to = find_in_layer(model, base, layer, tensors[i].name);
}

static void
set_stage(const ExecModel *model, float *base, const ExecStage *stage, ExecStageTensors *t)
{
    if (stage->embedding || stage->head)
        t->token_table = find(model, base, "embedding.token");
    if (stage->embedding)
        t->position_table = find(model, base, "embedding.position");
    if (stage->head) {
        t->norm_gain = find(model, base, "norm.gain");
        t->norm_shift = find(model, base, "norm.shift");
        t->head_table = find(model, base, "head.weight");
        if (t->head_table == NULL)
            t->head_table = t->token_table;
    }
    t->layers = g_new0(ExecLayerTensors, (size_t)MAX(stage->n_layers, 1));
    for (int64_t l = 0; l < stage->n_layers; l++)
        set_layer(model, base, stage->first_layer + l, &t->layers[l]);
}

static void
set_stages(ExecModel *model, const Plan *plan, int32_t rank)
{
    for (guint i = 0; i < plan->stages->len; i++) {
        const PlanStage *from = &g_array_index(plan->stages, PlanStage, i);
        if (from->rank != rank)
            continue;
        ExecStage stage = {
            .stage = (int32_t)i,
            .chunk = from->chunk,
            .first_layer = from->first_layer,
            .n_layers = from->n_layers,
            .embedding = from->embedding,
            .head = from->head,
        };
        set_stage(model, model->weights.data, &stage, &stage.weights);
        set_stage(model, model->gradients.data, &stage, &stage.gradients);
        g_array_append_val(model->stages, stage);
    }
}

/* --- lifecycle --- */

/* Fills in host memory, a piece at a time, and uploads: device memory is not addressable. */
static void
initialize(ExecModel *model, ExecBackend *backend, uint64_t seed)
{
    enum {
        PIECE = 4096
    };
    g_autofree float *piece = g_new(float, PIECE);

    for (guint p = 0; p < model->parameters->len; p++) {
        const ExecParameter *parameter = &g_array_index(model->parameters, ExecParameter, p);
        const uint64_t key = exec_random_key(seed, parameter->name);
        for (int64_t at = 0; at < parameter->n; at += PIECE) {
            const int64_t n = MIN(PIECE, parameter->n - at);
            for (int64_t i = 0; i < n; i++)
                piece[i] = parameter->init == EXEC_INIT_ONE ? 1.0f
                           : parameter->init == EXEC_INIT_ZERO
                               ? 0.0f
                               : parameter->deviation * exec_random_normal(key, (uint64_t)(at + i));
            backend->ops->upload(backend, (size_t)n * sizeof *piece, piece,
                                 model->weights.data + parameter->offset + at);
        }
    }
}

static bool
take_buffers(ExecModel *model, bool optimizer, GError **error)
{
    const struct {
        ExecBlock *block;
        TraceMemoryOwner owner;
        bool wanted;
    } buffers[] = {
        {&model->weights, TRACE_MEMORY_WEIGHTS, true},
        {&model->gradients, TRACE_MEMORY_GRADIENTS, true},
        {&model->moments1, TRACE_MEMORY_OPTIMIZER, optimizer},
        {&model->moments2, TRACE_MEMORY_OPTIMIZER, optimizer},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(buffers); i++)
        if (buffers[i].wanted &&
            !exec_pool_take(model->pool, buffers[i].owner, model->n, buffers[i].block, error))
            return false;
    return true;
}

ExecModel *
exec_model_new(const ModelArch *arch, const Plan *plan, int32_t rank, uint64_t seed, bool optimizer,
               ExecBackend *backend, ExecPool *pool, GError **error)
{
    g_autoptr(ExecModel) model = g_new0(ExecModel, 1);
    Layout layout = layout_of_rank(arch, plan, rank);

    model->widths = exec_widths(arch, plan->seq_len);
    model->parameters = layout.parameters;
    model->stages = g_array_new(false, true, sizeof(ExecStage));
    model->n = layout.n;
    model->pool = pool;
    if (layout.overflow) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_MEMORY,
                    "the parameters of pipeline rank %d are more than memory can hold", rank);
        return NULL;
    }
    if (!take_buffers(model, optimizer, error))
        return NULL;
    const size_t n_bytes = (size_t)model->n * sizeof(float);
    backend->ops->zero(backend, n_bytes, model->weights.data);
    backend->ops->zero(backend, n_bytes, model->gradients.data);
    if (optimizer) {
        backend->ops->zero(backend, n_bytes, model->moments1.data);
        backend->ops->zero(backend, n_bytes, model->moments2.data);
    }
    initialize(model, backend, seed);
    set_stages(model, plan, rank);
    return g_steal_pointer(&model);
}

void
exec_model_free(ExecModel *model)
{
    if (model == NULL)
        return;
    for (guint i = 0; i < model->stages->len; i++) {
        g_free(g_array_index(model->stages, ExecStage, i).weights.layers);
        g_free(g_array_index(model->stages, ExecStage, i).gradients.layers);
    }
    g_array_unref(model->stages);
    g_array_unref(model->parameters);
    exec_pool_give(model->pool, &model->weights);
    exec_pool_give(model->pool, &model->gradients);
    exec_pool_give(model->pool, &model->moments1);
    exec_pool_give(model->pool, &model->moments2);
    g_free(model);
}

const ExecParameter *
exec_model_shared_table(const ExecModel *model, const ModelArch *arch, const Plan *plan,
                        int32_t rank)
{
    const int32_t first = rank_with(plan, false), last = rank_with(plan, true);

    if (!arch->tied_embeddings || first == last || (rank != first && rank != last))
        return NULL;
    for (guint i = 0; i < model->parameters->len; i++) {
        const ExecParameter *p = &g_array_index(model->parameters, ExecParameter, i);
        if (g_str_equal(p->name, "embedding.token"))
            return p;
    }
    return NULL;
}

void
exec_model_adamw(ExecModel *model, ExecBackend *backend, const ExecAdamw *constants,
                 float weight_decay)
{
    for (guint i = 0; i < model->parameters->len; i++) {
        const ExecParameter *p = &g_array_index(model->parameters, ExecParameter, i);
        ExecAdamw c = *constants;
        c.weight_decay = p->decays ? weight_decay : 0.0f;
        backend->ops->adamw(backend, p->n, model->weights.data + p->offset, NULL,
                            model->gradients.data + p->offset, model->moments1.data + p->offset,
                            model->moments2.data + p->offset, &c);
        backend->ops->zero(backend, (size_t)p->n * sizeof(float),
                           model->gradients.data + p->offset);
    }
}
