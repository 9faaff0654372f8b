#include "executor/run/muon.h"

#include <math.h>
#include <string.h>

#include "executor/model/state.h"
#include "schedule/optimizer.h"

/* --- one matrix --- */

static void
multiply(ExecBackend *backend, bool trans_b, int64_t m, int64_t n, int64_t k, const float *a,
         const float *b, float *c)
{
    exec_gemm(backend, &(ExecGemm){.trans_b = trans_b,
                                   .m = m,
                                   .n = n,
                                   .k = k,
                                   .a = a,
                                   .lda = k,
                                   .b = b,
                                   .ldb = trans_b ? k : n,
                                   .c = c,
                                   .ldc = n});
}

static void
transpose(int64_t rows, int64_t cols, const float *from, float *to)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            to[c * rows + r] = from[r * cols + c];
}

/* @x has at most as many rows as columns. */
static void
iterate(ExecBackend *backend, int64_t rows, int64_t cols, float *x)
{
    g_autofree float *gram = g_new(float, (size_t)(rows * rows));
    g_autofree float *square = g_new(float, (size_t)(rows * rows));
    g_autofree float *product = g_new(float, (size_t)(rows * cols));

    for (int i = 0; i < PLAN_MUON_ITERATIONS; i++) {
        multiply(backend, true, rows, rows, cols, x, x, gram);
        multiply(backend, false, rows, rows, rows, gram, gram, square);
        for (int64_t j = 0; j < rows * rows; j++)
            /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): filled by the backend */
            gram[j] = (float)PLAN_MUON_B * gram[j] + (float)PLAN_MUON_C * square[j];
        multiply(backend, false, rows, cols, rows, gram, x, product);
        for (int64_t j = 0; j < rows * cols; j++)
            /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): filled by the backend */
            x[j] = (float)PLAN_MUON_A * x[j] + product[j];
    }
}

void
exec_muon_orthogonalise(ExecBackend *backend, int64_t rows, int64_t cols, float *x)
{
    double squares = 0;

    for (int64_t i = 0; i < rows * cols; i++)
        /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): filled by who calls */
        squares += (double)x[i] * (double)x[i];
    if (!(squares > 0))
        return;
    for (int64_t i = 0; i < rows * cols; i++)
        x[i] = (float)((double)x[i] / sqrt(squares));
    if (rows <= cols) {
        iterate(backend, rows, cols, x);
        return;
    }
    g_autofree float *turned = g_new(float, (size_t)(rows * cols));
    transpose(rows, cols, x, turned);
    iterate(backend, cols, rows, turned);
    transpose(cols, rows, turned, x);
}

/* --- a parameter: several matrices below and beside each other --- */

/* A parameter that is being stepped.  All memory is the host's. */
typedef struct {
    ExecRank *rank;
    guint number;
    const ExecParameter *p;
    int64_t begin, n; /* its own elements */
    int64_t first;    /* the element of the whole parameter at which `whole` begins */
    int64_t n_whole;
    float *whole; /* of all columns: all rows or, of experts, those of this rank's experts */
} Step;

/* Calls with every run of own elements that lies together: @i of the own ones, @at of whole. */
static void
put(const Step *s, bool there, float *own)
{
    for (int64_t i = 0, together; i < s->n; i += together) {
        float *at = s->whole + exec_shard_at(&s->p->shard, s->begin + i, &together) - s->first;
        together = MIN(together, s->n - i);
        memcpy(there ? at : own + i, there ? own + i : at, (size_t)together * sizeof *own);
    }
}

/* Momentum and what is orthogonalised of the own elements, into whole. */
static bool
update(const Step *s, float factor, bool contributes, float *own, float *momentum, GError **error)
{
    ExecModel *model = s->rank->model;
    ExecBackend *backend = model->backend;
    const float mu = EXEC_MUON_MOMENTUM;

    memset(s->whole, 0, (size_t)s->n_whole * sizeof *s->whole);
    if (s->n == 0)
        return true;
    backend->ops->download(backend, (size_t)s->n * sizeof *own,
                           exec_model_own_gradients(model, s->p, s->begin), own);
    if (!backend->ops->synchronize(backend, error) ||
        !exec_model_move_state(model, false, EXEC_STATE_MOMENT1, s->p, s->begin, s->n, momentum,
                               error))
        return false;
    for (int64_t i = 0; i < s->n; i++) {
        const float g = factor * own[i];
        momentum[i] = mu * momentum[i] + (1 - mu) * g;
        own[i] = (1 - mu) * g + mu * momentum[i];
    }
    if (contributes)
        put(s, true, own);
    return exec_model_move_state(model, true, EXEC_STATE_MOMENT1, s->p, s->begin, s->n, momentum,
                                 error);
}

static void
orthogonalise(const Step *s, ExecBackend *host)
{
    const int64_t rows = s->p->matrix_rows, cols = s->p->matrix_cols, width = s->p->shard.cols;
    const int64_t n_rows = s->n_whole / width;
    g_autofree float *x = g_new(float, (size_t)(rows * cols));

    for (int64_t r = 0; r < n_rows; r += rows)
        for (int64_t c = 0; c < width; c += cols) {
            for (int64_t i = 0; i < rows; i++)
                memcpy(x + i * cols, s->whole + (r + i) * width + c, (size_t)cols * sizeof *x);
            exec_muon_orthogonalise(host, rows, cols, x);
            for (int64_t i = 0; i < rows; i++)
                memcpy(s->whole + (r + i) * width + c, x + i * cols, (size_t)cols * sizeof *x);
        }
}

static bool
apply(const Step *s, float learning_rate, float weight_decay, float *own, float *weights,
      GError **error)
{
    ExecModel *model = s->rank->model;
    const double longer = (double)MAX(s->p->matrix_rows, s->p->matrix_cols);
    const float scale = (float)((double)learning_rate * EXEC_MUON_SCALE * sqrt(longer));
    const float kept = 1 - learning_rate * weight_decay;
    ExecBlock staging = {0};

    if (s->n == 0)
        return true;
    if (!exec_model_move_state(model, false, EXEC_STATE_MASTER, s->p, s->begin, s->n, weights,
                               error))
        return false;
    put(s, false, own);
    for (int64_t i = 0; i < s->n; i++)
        weights[i] = kept * weights[i] - scale * own[i];
    if (!exec_model_move_state(model, true, EXEC_STATE_MASTER, s->p, s->begin, s->n, weights,
                               error))
        return false;
    if (model->backend->storage == DTYPE_FP32)
        return true;
    if (!exec_pool_take(model->pool, TRACE_MEMORY_WORKSPACE, s->n * (int64_t)sizeof *weights,
                        &staging, error))
        return false;
    const bool ok =
        exec_model_write_weights(model, s->p, s->begin, s->n, weights, staging.data, error) &&
        model->backend->ops->synchronize(model->backend, error);
    exec_pool_give(model->pool, &staging);
    return ok;
}

/* Makes whole what ranks have put into it. */
static bool
exchange(const Step *s, bool over_replicas, bool over_tp, GError **error)
{
    ExecRank *rank = s->rank;
    const ExecUnit *unit = exec_model_unit(rank->model, s->p->unit);
    const ExecDim dims[] = {exec_region_dim(unit->region), EXEC_DIM_TP};
    const bool wanted[] = {over_replicas, over_tp};

    for (size_t i = 0; i < G_N_ELEMENTS(dims); i++) {
        const ExecGroup *group = &rank->comm.groups[dims[i]];
        if (wanted[i] && group->n > 1 &&
            !rank->transport.ops->all_reduce(&rank->transport, group, DTYPE_FP32, s->whole,
                                             s->n_whole, error))
            return false;
    }
    return true;
}

static bool
step_parameter(ExecRank *rank, guint number, ExecBackend *host, float learning_rate,
               float weight_decay, float factor, GError **error)
{
    const ExecModel *model = rank->model;
    const ExecParameter *p = exec_model_parameter(model, number);
    const ExecRegion *region = exec_model_region(model, exec_model_unit(model, p->unit));
    const bool is_expert = p->share == EXEC_SHARE_EXPERT;
    const bool split = !is_expert && (p->shard.n_rows != p->shard.rows ||
                                      exec_shard_cols(&p->shard) != p->shard.cols);
    /* Of ranks with the same keys and values the first one speaks. */
    const bool contributes =
        !split || p->share != EXEC_SHARE_KV || rank->comm.groups[EXEC_DIM_KV + p->kind].index == 0;
    Step s = {.rank = rank, .number = number, .p = p};

    s.n = exec_model_own_elements(model, p, &s.begin);
    s.first = is_expert ? p->shard.row_begin * p->shard.cols : 0;
    s.n_whole = (is_expert ? p->shard.n_rows : p->shard.rows) * p->shard.cols;
    g_autofree float *whole = g_new(float, (size_t)s.n_whole);
    g_autofree float *own = g_new(float, (size_t)MAX(1, s.n));
    g_autofree float *other = g_new(float, (size_t)MAX(1, s.n));

    s.whole = whole;
    if (!update(&s, factor, contributes, own, other, error) ||
        !exchange(&s, region->sharded[EXEC_CONTENT_OPTIMIZER], split, error))
        return false;
    orthogonalise(&s, host);
    return apply(&s, learning_rate, weight_decay, own, other, error);
}

bool
exec_rank_muon(ExecRank *rank, float learning_rate, float weight_decay, float factor,
               GError **error)
{
    const ExecModel *model = rank->model;
    const bool narrow = rank->backend->storage != DTYPE_FP32;
    g_autoptr(ExecBackend) opened =
        narrow ? exec_backend_open(rank->shared->device, 0, DTYPE_FP32, error) : NULL;
    ExecBackend *host = narrow ? opened : rank->backend;

    if (host == NULL)
        return false;
    for (guint i = 0; i < exec_model_n_parameters(model); i++) {
        const ExecParameter *p = exec_model_parameter(model, i);
        if (p->matrix_rows == 0)
            continue;
        exec_rank_set_doing(rank, EXEC_DOING_OPTIMIZER, 0);
        if (!step_parameter(rank, i, host, learning_rate, p->decays ? weight_decay : 0, factor,
                            error))
            return false;
        exec_model_zero_gradients(rank->model, p);
    }
    return true;
}
