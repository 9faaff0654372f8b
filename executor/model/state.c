#include "executor/model/state.h"

#include <string.h>

/* --- access --- */

static int64_t
moments2_at(const ExecModel *model, const ExecParameter *p)
{
    return model->moments2_at[p - exec_model_parameter(model, 0)];
}

bool
exec_model_is_muon(const ExecModel *model, const ExecParameter *p)
{
    return model->moments2_at != NULL && moments2_at(model, p) < 0;
}

/* Where the second moment of element @i of @p, an own one, is; NULL: it has none. */
static float *
moment2_at(const ExecModel *model, const ExecParameter *p, int64_t i)
{
    int64_t begin;

    if (model->moments2_at == NULL)
        return (float *)model->moments2.data +
               exec_model_parameter_at(model, EXEC_CONTENT_OPTIMIZER, p, i);
    if (moments2_at(model, p) < 0)
        return NULL;
    exec_model_own_elements(model, p, &begin);
    return (float *)model->moments2.data + moments2_at(model, p) + (i - begin);
}

/* Where the state of element @i of @p is on the device. */
static float *
state_at(const ExecModel *model, ExecState state, const ExecParameter *p, int64_t i)
{
    const int64_t at = exec_model_parameter_at(model, EXEC_CONTENT_OPTIMIZER, p, i);

    switch (state) {
    case EXEC_STATE_MOMENT1:
        return (float *)model->moments1.data + at;
    case EXEC_STATE_MOMENT2:
        return moment2_at(model, p, i);
    case EXEC_STATE_MASTER:
        break;
    }
    if (model->backend->storage != DTYPE_FP32)
        return (float *)model->master.data + at;
    return (float *)model->weights.data +
           exec_model_parameter_at(model, EXEC_CONTENT_WEIGHTS, p, i);
}

static const ExecRegion *
region_of(const ExecModel *model, const ExecParameter *p)
{
    return exec_model_region(model, exec_model_unit(model, p->unit));
}

/* Whether model->offload has an array of master weights.  Weights in fp32 are their own, and are
 * there only where parameters are offloaded. */
static bool
has_master_array(const ExecModel *model)
{
    return model->backend->storage != DTYPE_FP32 ||
           model->layout.regions[EXEC_REGION_DENSE].weights_off;
}

int32_t
exec_model_weights_array(const ExecModel *model)
{
    return model->backend->storage == DTYPE_FP32 ? 0 : 3;
}

/* Whether the state of @p is off the device, and in which array of model->offload. */
static bool
is_off(const ExecModel *model, ExecState state, const ExecParameter *p, int32_t *array)
{
    const bool is_weight = state == EXEC_STATE_MASTER && model->backend->storage == DTYPE_FP32;

    *array = (int32_t)state - (has_master_array(model) ? 0 : 1);
    return model->offload != NULL && (!is_weight || region_of(model, p)->weights_off);
}

bool
exec_model_move_state(ExecModel *model, bool writes, ExecState state, const ExecParameter *p,
                      int64_t i, int64_t n, float *values, GError **error)
{
    ExecBackend *backend = model->backend;
    const size_t n_bytes = (size_t)n * sizeof *values;
    const int64_t at = exec_model_parameter_at(model, EXEC_CONTENT_OPTIMIZER, p, i);
    int32_t array;

    /* Files have zeros there. */
    if (state == EXEC_STATE_MOMENT2 && exec_model_is_muon(model, p)) {
        if (!writes)
            memset(values, 0, n_bytes);
        return true;
    }
    if (is_off(model, state, p, &array))
        return exec_offload_move(model->offload, writes, array, at, n, values, error);
    if (writes) {
        backend->ops->upload(backend, n_bytes, values, state_at(model, state, p, i));
        return true;
    }
    backend->ops->download(backend, n_bytes, state_at(model, state, p, i), values);
    return backend->ops->synchronize(backend, error);
}

/* Weights narrower than fp32 are rounded on the host. */
static bool
write_weights_off(ExecModel *model, int64_t at, int64_t n, const float *values, GError **error)
{
    ExecBackend *host = exec_offload_host(model->offload);
    const int32_t array = exec_model_weights_array(model);

    if (host->storage == DTYPE_FP32)
        return exec_offload_move(model->offload, true, array, at, n, (float *)values, error);
    g_autofree void *narrow = g_malloc((size_t)exec_storage_bytes(host, n));
    host->ops->to_storage(host, n, values, narrow);
    return exec_offload_move(model->offload, true, array, at, n, narrow, error);
}

bool
exec_model_write_weights(ExecModel *model, const ExecParameter *p, int64_t i, int64_t n,
                         const float *values, float *staging, GError **error)
{
    ExecBackend *backend = model->backend;

    if (region_of(model, p)->weights_off)
        return write_weights_off(
            model, exec_model_parameter_at(model, EXEC_CONTENT_OPTIMIZER, p, i), n, values, error);
    void *to = exec_at(backend, model->weights.data,
                       exec_model_parameter_at(model, EXEC_CONTENT_WEIGHTS, p, i));
    backend->ops->upload(backend, (size_t)n * sizeof *values, values,
                         staging == NULL ? to : staging);
    if (staging != NULL)
        backend->ops->to_storage(backend, n, staging, to);
    return true;
}

/* --- steps --- */

void
exec_model_sum_squares(ExecModel *model, bool (*counts)(guint parameter, void *user_data),
                       void *user_data)
{
    ExecBackend *backend = model->backend;
    const float *run = NULL;
    int64_t n_run = 0;

    for (guint i = 0; i < exec_model_n_parameters(model); i++) {
        const ExecParameter *p = exec_model_parameter(model, i);
        int64_t begin;
        const int64_t n = exec_model_own_elements(model, p, &begin);
        if (n == 0 || (counts != NULL && !counts(i, user_data)))
            continue;
        const float *gradients = exec_model_own_gradients(model, p, begin);
        if (run == NULL || gradients != run + n_run) {
            if (run != NULL)
                backend->ops->sum_squares(backend, n_run, run, model->clip);
            run = gradients;
            n_run = 0;
        }
        n_run += n;
    }
    if (run != NULL)
        backend->ops->sum_squares(backend, n_run, run, model->clip);
}

/* Sets to zero gradients [begin, end) of @p, which is whole on this rank. */
static void
zero_gradients(ExecModel *model, const ExecParameter *p, int64_t begin, int64_t end)
{
    if (begin < end)
        model->backend->ops->zero(model->backend, (size_t)(end - begin) * sizeof(float),
                                  exec_model_own_gradients(model, p, begin));
}

void
exec_model_zero_gradients(ExecModel *model, const ExecParameter *p)
{
    int64_t begin;
    const int64_t n = exec_model_own_elements(model, p, &begin);

    if (region_of(model, p)->sharded[EXEC_CONTENT_GRADIENTS])
        zero_gradients(model, p, begin, begin + n);
    else
        zero_gradients(model, p, 0, p->n);
}

static void
step_on_device(ExecModel *model, const ExecAdamw *constants)
{
    const guint n_parameters = exec_model_n_parameters(model);
    g_autofree ExecAdamwPart *parts = g_new(ExecAdamwPart, n_parameters);
    ExecBackend *backend = model->backend;
    const bool narrow = backend->storage != DTYPE_FP32;
    float *moments1 = model->moments1.data;
    int64_t n_parts = 0;

    for (guint i = 0; i < n_parameters; i++) {
        const ExecParameter *p = exec_model_parameter(model, i);
        int64_t begin;
        const int64_t n = exec_model_own_elements(model, p, &begin);
        const int64_t state = exec_model_parameter_at(model, EXEC_CONTENT_OPTIMIZER, p, begin);
        if (exec_model_is_muon(model, p))
            continue;
        void *weights = exec_at(backend, model->weights.data,
                                exec_model_parameter_at(model, EXEC_CONTENT_WEIGHTS, p, begin));
        if (n > 0)
            parts[n_parts++] = (ExecAdamwPart){
                .n = n,
                .master = narrow ? (float *)model->master.data + state : weights,
                .weights = narrow ? weights : NULL,
                .grad = exec_model_own_gradients(model, p, begin),
                .m = moments1 + state,
                .v = moment2_at(model, p, begin),
                .decays = p->decays,
            };
        /* What other replicas step. */
        if (!region_of(model, p)->sharded[EXEC_CONTENT_GRADIENTS]) {
            zero_gradients(model, p, 0, begin);
            zero_gradients(model, p, begin + n, p->n);
        }
    }
    backend->ops->adamw(backend, n_parts, parts, constants);
}

/* A step of state that is off the device; pieces come in the order of the layout. */
typedef struct {
    ExecModel *model;
    const ExecAdamw *constants;
    guint parameter;   /* the first that may have elements in the piece */
    float *gradients;  /* (owned) of one piece */
    float *weights;    /* (owned) of one piece */
    ExecBlock staging; /* narrower storage: a piece of fp32 weights on the device */
} OffloadStep;

/* Steps elements [begin, begin + n) of @p, whose state begins at element @at of the piece. */
static bool
step_elements(OffloadStep *s, ExecBackend *host, const ExecParameter *p, int64_t begin, int64_t n,
              int64_t at, void *const *arrays, GError **error)
{
    ExecModel *model = s->model;
    ExecBackend *backend = model->backend;
    const bool narrow = backend->storage != DTYPE_FP32, off = region_of(model, p)->weights_off;
    const bool has_master = has_master_array(model);
    const size_t n_bytes = (size_t)n * sizeof(float);
    void *weights = off ? NULL
                        : exec_at(backend, model->weights.data,
                                  exec_model_parameter_at(model, EXEC_CONTENT_WEIGHTS, p, begin));
    float *master = narrow || off ? (float *)arrays[0] + at : s->weights;
    /* The narrow array has elements for the norms too, though their weights stay on the device. */
    void *rounded = host->storage == DTYPE_FP32
                        ? NULL
                        : exec_at(host, arrays[exec_model_weights_array(model)], at);

    backend->ops->download(backend, n_bytes, exec_model_own_gradients(model, p, begin),
                           s->gradients);
    if (!narrow && !off)
        backend->ops->download(backend, n_bytes, weights, s->weights);
    if (!backend->ops->synchronize(backend, error))
        return false;
    host->ops->adamw(host, 1,
                     &(ExecAdamwPart){n, master, rounded, s->gradients,
                                      (float *)arrays[has_master] + at,
                                      (float *)arrays[has_master + 1] + at, p->decays},
                     s->constants);
    if (off)
        return true;
    backend->ops->upload(backend, n_bytes, master, narrow ? s->staging.data : weights);
    if (narrow)
        backend->ops->to_storage(backend, n, s->staging.data, weights);
    return true;
}

static bool
step_piece(ExecBackend *host, int64_t at, int64_t n, void *const *arrays, void *user_data,
           GError **error)
{
    OffloadStep *s = user_data;
    const ExecModel *model = s->model;

    for (guint i = s->parameter; i < exec_model_n_parameters(model); i++) {
        const ExecParameter *p = exec_model_parameter(model, i);
        int64_t own;
        const int64_t n_own = exec_model_own_elements(model, p, &own);
        const int64_t state = exec_model_parameter_at(model, EXEC_CONTENT_OPTIMIZER, p, own);
        const int64_t begin = MAX(state, at), end = MIN(state + n_own, at + n);
        if (n_own == 0)
            continue;
        if (state >= at + n)
            break;
        if (begin < end && !step_elements(s, host, p, own + (begin - state), end - begin,
                                          begin - at, arrays, error))
            return false;
        if (state + n_own <= at + n)
            s->parameter = i + 1; /* the next piece has none of it */
    }
    return true;
}

static bool
step_off_device(ExecModel *model, const ExecAdamw *constants, GError **error)
{
    ExecBackend *backend = model->backend;
    ExecAdamw on_host = *constants;
    OffloadStep s = {.model = model, .constants = &on_host};
    const size_t n = EXEC_OFFLOAD_PIECE;
    float factor = 1.0f;

    if (constants->factor != NULL) {
        on_host.factor = &factor;
        backend->ops->download(backend, sizeof factor, constants->factor, &factor);
        if (!backend->ops->synchronize(backend, error))
            return false;
    }
    if (backend->storage != DTYPE_FP32 &&
        !exec_pool_take(model->pool, TRACE_MEMORY_WORKSPACE, (int64_t)(n * sizeof(float)),
                        &s.staging, error))
        return false;
    s.gradients = g_new(float, n);
    s.weights = g_new(float, n);
    const bool ok = exec_offload_each(model->offload, step_piece, &s, error);
    g_free(s.gradients);
    g_free(s.weights);
    exec_pool_give(model->pool, &s.staging);
    backend->ops->zero(backend, (size_t)model->gradients.n_bytes, model->gradients.data);
    return ok;
}

bool
exec_model_adamw(ExecModel *model, const ExecAdamw *constants, GError **error)
{
    if (model->offload != NULL)
        return step_off_device(model, constants, error);
    step_on_device(model, constants);
    return true;
}
