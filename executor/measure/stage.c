#include "executor/measure/rank.h"

#include "executor/device/clock.h"

/* Micro-batches in flight while timing: as a pipeline does, backward does not meet the activations
 * of the forward just before, still in the cache. */
#define N_MICRO_BATCHES 2

static int32_t
n_slices(int64_t seq_len, int64_t tokens)
{
    return (int32_t)((seq_len + tokens - 1) / tokens);
}

ExecStageRun *
exec_measure_stage_run(ExecMeasureRank *rank, int32_t stage, const ExecGridPoint *point,
                       int32_t n_micro_batches)
{
    const int64_t seq_len = rank->shared->plan->seq_len;
    const int32_t n = n_slices(seq_len, point->tokens);

    g_array_set_size(rank->slices, 0);
    g_array_set_size(rank->sequences, 0);
    for (int32_t s = 0; s < n; s++) {
        const int64_t tokens = MIN(point->tokens, seq_len - s * point->tokens);
        g_array_append_val(rank->slices, tokens);
    }
    for (int32_t m = 0; m < n_micro_batches; m++)
        g_array_append_val(rank->sequences, point->batch);
    return exec_stage_run_new(&(ExecStageOptions){
        .widths = &rank->model->widths,
        .stage = &g_array_index(rank->model->stages, ExecStage, stage),
        .comm = &rank->comm,
        .pool = rank->pool,
        .scratch = &rank->scratch,
        .n_micro_batches = n_micro_batches,
        .n_slices = n,
        .sequences = &g_array_index(rank->sequences, int64_t, 0),
        .slices = &g_array_index(rank->slices, int64_t, 0),
        .loss_factor = 1.0f / (float)(point->batch * seq_len),
    });
}

/* The work itself. */
static bool
run_op(ExecMeasureRank *rank, ExecStageRun *run, ProfilePass pass, int32_t micro_batch,
       int32_t slice, GError **error)
{
    const void *dx;

    switch (pass) {
    case PROFILE_PASS_FORWARD:
        exec_stage_forward(run, micro_batch, slice, rank->tokens, rank->tokens, rank->loss);
        break;
    case PROFILE_PASS_BACKWARD_WEIGHT:
        exec_stage_backward_weight(run, micro_batch, slice);
        break;
    case PROFILE_PASS_BACKWARD:
    case PROFILE_PASS_BACKWARD_INPUT:
    case PROFILE_PASS_N:
        if (!exec_stage_backward(run, micro_batch, slice, rank->tokens,
                                 pass == PROFILE_PASS_BACKWARD_INPUT, &dx, error))
            return false;
    }
    return exec_comm_check(&rank->comm, error);
}

/* Stamps in it are the kinds'; around it, whether it was disturbed. */
static bool
run_op_by_kind(ExecMeasureRank *rank, ExecStageRun *run, const ProfileMeasurement *key,
               int32_t micro_batch, int32_t slice, GError **error)
{
    ExecMeasureTiming whole = {.key = *key};

    whole.thread_begin_ns = exec_thread_ns();
    whole.begin_ns = exec_now_ns();
    if (!run_op(rank, run, key->pass, micro_batch, slice, error))
        return false;
    whole.end_ns = exec_now_ns();
    whole.thread_end_ns = exec_thread_ns();
    if (exec_measure_is_disturbed(rank, &whole))
        exec_kinds_set_disturbed(rank->kinds);
    return true;
}

/* What the op gets from its neighbours. */
static bool
bring_input(ExecMeasureRank *rank, ExecStageRun *run, int32_t stage, ProfilePass pass,
            int32_t micro_batch, int32_t slice, GError **error)
{
    const ExecBackendOps *ops = rank->backend->ops;
    const size_t n_bytes = (size_t)exec_stage_boundary_bytes(run, micro_batch, slice);
    void *in;

    if (pass == PROFILE_PASS_FORWARD) {
        if (!exec_stage_begin_forward(run, micro_batch, slice, &in, error))
            return false;
        if (stage != EXEC_MEASURE_EMBEDDING)
            ops->copy(rank->backend, n_bytes, rank->x.data, in);
    } else if (pass != PROFILE_PASS_BACKWARD_WEIGHT && stage != EXEC_MEASURE_HEAD) {
        ops->copy(rank->backend, n_bytes, rank->dx.data, exec_stage_gradient(run));
    }
    return true;
}

bool
exec_measure_op(ExecMeasureRank *rank, ExecStageRun *run, int32_t stage, ProfilePass pass,
                int32_t micro_batch, int32_t slice, GError **error)
{
    static const ProfileOp ops[] = {PROFILE_OP_EMBEDDING, PROFILE_OP_LAYER, PROFILE_OP_HEAD};
    const ExecSlice s = exec_stage_slice(run, micro_batch, slice);
    const int64_t n_layers = g_array_index(rank->model->stages, ExecStage, stage).n_layers;
    const ProfileMeasurement key = {
        .op = ops[stage],
        .pass = pass,
        .batch = s.sequences,
        .tokens = s.tokens,
        .context = s.context,
        .tp = rank->shared->plan->degrees.tp,
    };

    if (!exec_measure_goes_on(rank, error) ||
        !bring_input(rank, run, stage, pass, micro_batch, slice, error))
        return false;
    if (rank->by_kind)
        return exec_kinds_begin(rank->kinds, &key, error) &&
               run_op_by_kind(rank, run, &key, micro_batch, slice, error);
    return exec_measure_begin(rank, error) && run_op(rank, run, pass, micro_batch, slice, error) &&
           exec_measure_end(rank, &key, 1.0 / (double)MAX(n_layers, 1), error);
}

/* A micro-batch in one pass, slice after slice; all busy threads begin together. */
static bool
time_pass(ExecMeasureRank *rank, ExecStageRun *run, int32_t stage, ProfilePass pass,
          int32_t micro_batch, int32_t n, GError **error)
{
    if (!exec_measure_meet(rank, error))
        return false;
    if (!rank->busy)
        return true;
    for (int32_t i = 0; i < n; i++) {
        const int32_t slice = pass == PROFILE_PASS_FORWARD ? i : n - 1 - i;

        if (!exec_measure_op(rank, run, stage, pass, micro_batch, slice, error) ||
            (pass == PROFILE_PASS_BACKWARD_INPUT &&
             !exec_measure_op(rank, run, stage, PROFILE_PASS_BACKWARD_WEIGHT, micro_batch, slice,
                              error)))
            return false;
    }
    return exec_measure_collect(rank, error);
}

static bool
time_stage(ExecMeasureRank *rank, int32_t stage, const ExecGridPoint *point, bool splits_backward,
           GError **error)
{
    const ProfilePass passes[] = {
        PROFILE_PASS_FORWARD,
        splits_backward ? PROFILE_PASS_BACKWARD_INPUT : PROFILE_PASS_BACKWARD,
    };
    const int32_t n = n_slices(rank->shared->plan->seq_len, point->tokens);
    g_autoptr(ExecStageRun) run = exec_measure_stage_run(rank, stage, point, N_MICRO_BATCHES);

    for (size_t pass = 0; pass < G_N_ELEMENTS(passes); pass++)
        for (int32_t m = 0; m < N_MICRO_BATCHES; m++)
            if (!time_pass(rank, run, stage, passes[pass], m, n, error))
                return false;
    return true;
}

/* The layers once more, op by op. */
static bool
time_kinds(ExecMeasureRank *rank, const ExecGridPoint *point, GError **error)
{
    const double n_layers =
        (double)g_array_index(rank->model->stages, ExecStage, EXEC_MEASURE_LAYERS).n_layers;
    bool ok = true;

    rank->by_kind = true;
    rank->comm.backend = exec_kinds_backend(rank->kinds);
    for (int splits = 0; ok && splits <= 1; splits++)
        ok = time_stage(rank, EXEC_MEASURE_LAYERS, point, splits != 0, error);
    rank->comm.backend = rank->backend;
    rank->by_kind = false;
    return ok &&
           exec_kinds_collect(rank->kinds, 1.0 / n_layers,
                              rank->record && rank->busy ? rank->shared->samples : NULL, error);
}

bool
exec_measure_point(ExecMeasureRank *rank, const ExecGridPoint *point, bool by_kind, GError **error)
{
    for (int32_t stage = 0; stage < EXEC_MEASURE_STAGES; stage++)
        for (int splits = 0; splits <= 1; splits++)
            if (!time_stage(rank, stage, point, splits != 0, error))
                return false;
    return !by_kind || time_kinds(rank, point, error);
}
