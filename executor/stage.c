#include "executor/stage.h"

#include "executor/stage_state.h"

/* --- lifecycle --- */

ExecStageRun *
exec_stage_run_new(const ExecStageOptions *options)
{
    ExecStageRun *run = g_new0(ExecStageRun, 1);
    const size_t n_slices = (size_t)options->n_slices;

    run->o = *options;
    run->microbatches = g_new0(ExecMicrobatchState, (size_t)options->n_microbatches);
    run->slices = g_new0(ExecSliceState, (size_t)options->n_microbatches * n_slices);
    for (size_t i = 0; options->stage->n_dense < options->stage->n_layers &&
                       i < (size_t)options->n_microbatches * n_slices;
         i++)
        run->slices[i].moe = g_new0(ExecMoe, (size_t)options->stage->n_layers);
    run->context = g_new0(int64_t, n_slices);
    for (size_t i = 1; i < n_slices; i++)
        run->context[i] = run->context[i - 1] + options->slices[i - 1];
    return run;
}

static void
clear_moe(const ExecStageRun *run, const ExecSliceState *state, int64_t layer)
{
    if (state->moe != NULL)
        exec_moe_clear(&state->moe[layer], run->o.pool);
}

void
exec_stage_run_free(ExecStageRun *run)
{
    if (run == NULL)
        return;
    for (int32_t i = 0; i < run->o.n_microbatches * run->o.n_slices; i++) {
        exec_pool_give(run->o.pool, &run->slices[i].activations);
        exec_pool_give(run->o.pool, &run->slices[i].products);
        exec_pool_give(run->o.pool, &run->slices[i].kept);
        for (int64_t l = 0; l < run->o.stage->n_layers; l++)
            clear_moe(run, &run->slices[i], l);
        g_free(run->slices[i].moe);
    }
    for (int32_t i = 0; i < run->o.n_microbatches; i++) {
        exec_pool_give(run->o.pool, &run->microbatches[i].kv);
        exec_pool_give(run->o.pool, &run->microbatches[i].d_kv);
    }
    exec_pool_give(run->o.pool, &run->again);
    g_free(run->microbatches);
    g_free(run->slices);
    g_free(run->context);
    g_free(run);
}

ExecSlice
exec_stage_slice(const ExecStageRun *run, int32_t microbatch, int32_t slice)
{
    const int64_t cp = run->o.widths->cp;

    return (ExecSlice){
        .sequences = run->o.sequences[microbatch],
        .tokens = run->o.slices[slice],
        .context = run->context[slice],
        .own_tokens = run->o.slices[slice] / cp,
        .own_context = run->context[slice] / cp,
        .lengths = run->o.slices,
        .index = slice,
    };
}

int64_t
exec_stage_boundary_bytes(const ExecStageRun *run, int32_t microbatch, int32_t slice)
{
    const ExecSlice s = exec_stage_slice(run, microbatch, slice);

    return exec_stage_boundary_of(run->o.widths, exec_slice_rows(&s));
}

/* --- sharded parameters --- */

/* As exec_units_open(): a layer's; the embedding's; the head's. */
static bool
open_layer(const ExecStageRun *run, int64_t layer, unsigned what, ExecOpenUnits *open)
{
    const ExecLayerTensors *tensors = &run->o.stage->layers[layer];

    return exec_units_open(open, run->o.units, run->o.comm, what, tensors->dense_unit,
                           tensors->experts_unit);
}

static bool
open_embedding(const ExecStageRun *run, unsigned what, ExecOpenUnits *open)
{
    const ExecEndTensors *ends = &run->o.stage->ends;

    return exec_units_open(open, run->o.units, run->o.comm, what, ends->token_unit,
                           ends->position_unit);
}

static bool
open_head(const ExecStageRun *run, unsigned what, ExecOpenUnits *open)
{
    return exec_units_open(open, run->o.units, run->o.comm, what, run->o.stage->ends.head_unit, -1);
}

static void
add_opening(const ExecModel *model, int32_t a, int32_t b, GArray *openings)
{
    const ExecOpening opening = {{a, b}};
    bool apart = false;

    for (int i = 0; i < 2; i++)
        apart = apart || (opening.units[i] >= 0 &&
                          exec_model_weights_apart(
                              model, &g_array_index(model->units, ExecUnit, opening.units[i])));
    if (apart)
        g_array_append_val(openings, opening);
}

void
exec_stage_add_openings(const ExecModel *model, const ExecStage *stage, ScheduleOpKind kind,
                        GArray *openings)
{
    const bool forward = kind == SCHEDULE_OP_FORWARD;

    if (kind == SCHEDULE_OP_BACKWARD_WEIGHT)
        return;
    if (forward && stage->embedding)
        add_opening(model, stage->ends.token_unit, stage->ends.position_unit, openings);
    if (!forward && stage->head)
        add_opening(model, stage->ends.head_unit, -1, openings);
    for (int64_t i = 0; i < stage->n_layers; i++) {
        const ExecLayerTensors *layer = &stage->layers[forward ? i : stage->n_layers - 1 - i];
        add_opening(model, layer->dense_unit, layer->experts_unit, openings);
    }
    if (forward && stage->head)
        add_opening(model, stage->ends.head_unit, -1, openings);
}

/* What the backward of products needs, or only I's part of it. */
static unsigned
backward_needs(const ExecStageRun *run)
{
    return run->o.splits_backward ? EXEC_OPEN_WEIGHTS : EXEC_OPEN_WEIGHTS | EXEC_OPEN_GRADIENTS;
}

/* --- forward --- */

static bool
recomputes_all(const ExecStageRun *run)
{
    return run->o.stage->recompute == PLAN_RECOMPUTE_FULL;
}

/* What lives inside an op only; give_again() ends it. */
static bool
take_again(ExecStageRun *run, const ExecSlice *s, GError **error)
{
    return !recomputes_all(run) ||
           exec_pool_take(run->o.pool, TRACE_MEMORY_WORKSPACE, exec_stage_again_bytes(run, s),
                          &run->again, error);
}

static void
give_again(ExecStageRun *run)
{
    exec_pool_give(run->o.pool, &run->again);
}

bool
exec_stage_begin_forward(ExecStageRun *run, int32_t microbatch, int32_t slice, void **x,
                         GError **error)
{
    ExecSliceState *state = exec_stage_slice_state(run, microbatch, slice);
    ExecMicrobatchState *whole = &run->microbatches[microbatch];
    const ExecSlice s = exec_stage_slice(run, microbatch, slice);
    const int64_t kv = exec_stage_kv_bytes_kept(run, &s);
    const int64_t products = exec_stage_product_bytes(run, &s);

    g_assert(state->activations.data == NULL);
    if (!exec_pool_take(run->o.pool, TRACE_MEMORY_ACTIVATIONS, exec_stage_activation_bytes(run, &s),
                        &state->activations, error))
        return false;
    if (products > 0 &&
        !exec_pool_take(run->o.pool, TRACE_MEMORY_ACTIVATIONS, products, &state->products, error))
        return false;
    if (kv > 0 && whole->kv.data == NULL &&
        !exec_pool_take(run->o.pool, TRACE_MEMORY_KV, kv, &whole->kv, error))
        return false;
    *x = state->activations.data;
    return take_again(run, &s, error);
}

const void *
exec_stage_forward(ExecStageRun *run, int32_t microbatch, int32_t slice, const int32_t *tokens,
                   const int32_t *targets, double *loss)
{
    const ExecStage *stage = run->o.stage;
    const ExecSlice s = exec_stage_slice(run, microbatch, slice);
    const ExecSliceState *state = exec_stage_slice_state(run, microbatch, slice);
    const ExecLayerScratch scratch = exec_stage_scratch_at(run, &s);
    const ExecLayer common = exec_stage_layer_at(run, microbatch, slice, stage->n_layers, &scratch);
    void *x = state->activations.data;
    ExecOpenUnits open;

    if (stage->embedding && open_embedding(run, EXEC_OPEN_WEIGHTS, &open)) {
        exec_embedding_forward(&common, &stage->ends, tokens, x);
        exec_units_close(&open);
    }
    for (int64_t l = 0; l < stage->n_layers; l++) {
        const ExecLayer layer = exec_stage_layer_at(run, microbatch, slice, l, &scratch);
        x = exec_stage_output_at(run, microbatch, slice, l);
        if (!open_layer(run, l, EXEC_OPEN_WEIGHTS, &open))
            break;
        exec_layer_forward(&layer, x);
        exec_units_close(&open);
        if (recomputes_all(run))
            clear_moe(run, state, l);
        exec_comm_poll(run->o.comm);
    }
    give_again(run);
    if (stage->head && open_head(run, EXEC_OPEN_WEIGHTS, &open)) {
        const ExecHeadActivations head = exec_stage_head_at(run, microbatch, slice);
        exec_head_forward(&common, &stage->ends, &head, targets, run->o.loss_factor,
                          run->o.scratch->stats, loss);
        exec_units_close(&open);
    }
    return x;
}

/* --- backward --- */

void *
exec_stage_gradient(ExecStageRun *run)
{
    return run->o.scratch->d;
}

/* After B or I: gives back what only they read. */
static void
finish_inputs(ExecStageRun *run, int32_t microbatch, int32_t slice)
{
    ExecMicrobatchState *whole = &run->microbatches[microbatch];

    exec_pool_give(run->o.pool, &exec_stage_slice_state(run, microbatch, slice)->activations);
    if (++whole->n_backward < run->o.n_slices)
        return;
    whole->n_backward = 0;
    exec_pool_give(run->o.pool, &whole->kv);
}

/* After B or W: gives back all that is left. */
static void
finish(ExecStageRun *run, int32_t microbatch, int32_t slice)
{
    ExecSliceState *state = exec_stage_slice_state(run, microbatch, slice);
    ExecMicrobatchState *whole = &run->microbatches[microbatch];

    exec_pool_give(run->o.pool, &state->products);
    exec_pool_give(run->o.pool, &state->kept);
    for (int64_t l = 0; l < run->o.stage->n_layers; l++)
        clear_moe(run, state, l);
    if (++whole->n_done < run->o.n_slices)
        return;
    whole->n_done = 0;
    exec_pool_give(run->o.pool, &whole->d_kv);
}

/* The accumulator of K's and V's gradients begins at zero with the micro-batch's first backward. */
static bool
begin_backward(ExecStageRun *run, int32_t microbatch, int32_t slice, GError **error)
{
    ExecBackend *backend = run->o.comm->backend;
    const ExecSlice s = exec_stage_slice(run, microbatch, slice);
    ExecSliceState *state = exec_stage_slice_state(run, microbatch, slice);
    ExecMicrobatchState *whole = &run->microbatches[microbatch];
    const int64_t kv = run->o.stage->n_layers * exec_stage_kv_bytes(run->o.widths, s.sequences);

    if ((run->o.n_slices > 1 || run->o.splits_backward) && whole->d_kv.data == NULL) {
        if (!exec_pool_take(run->o.pool, TRACE_MEMORY_KV, kv, &whole->d_kv, error))
            return false;
        backend->ops->zero(backend, (size_t)kv, whole->d_kv.data);
    }
    if (run->o.splits_backward &&
        !exec_pool_take(run->o.pool, TRACE_MEMORY_ACTIVATIONS, exec_stage_kept_bytes(run, &s),
                        &state->kept, error))
        return false;
    return take_again(run, &s, error);
}

static void
backward_layers(ExecStageRun *run, int32_t microbatch, int32_t slice,
                const ExecLayerScratch *scratch, void *d)
{
    const ExecSliceState *state = exec_stage_slice_state(run, microbatch, slice);
    ExecOpenUnits open;

    for (int64_t l = run->o.stage->n_layers - 1; l >= 0; l--) {
        const ExecLayer layer = exec_stage_layer_at(run, microbatch, slice, l, scratch);
        if (!open_layer(run, l, backward_needs(run), &open))
            return;
        /* The output was kept or sent away: the second one goes nowhere. */
        if (recomputes_all(run))
            exec_layer_forward(&layer, scratch->kept.d_up);
        if (run->o.splits_backward) {
            const ExecLayerKept kept = exec_stage_kept_at(run, microbatch, slice, l);
            exec_layer_backward(&layer, &kept, d);
        } else {
            exec_layer_backward(&layer, NULL, d);
            clear_moe(run, state, l);
        }
        exec_units_close(&open);
        exec_comm_poll(run->o.comm);
    }
}

bool
exec_stage_backward(ExecStageRun *run, int32_t microbatch, int32_t slice, const int32_t *tokens,
                    const void **dx, GError **error)
{
    const ExecStage *stage = run->o.stage;
    ExecBackend *backend = run->o.comm->backend;
    const ExecSlice s = exec_stage_slice(run, microbatch, slice);
    const ExecLayerScratch scratch = exec_stage_scratch_at(run, &s);
    const ExecLayer common = exec_stage_layer_at(run, microbatch, slice, stage->n_layers, &scratch);
    void *d = run->o.scratch->d;
    ExecOpenUnits open;

    g_assert(exec_stage_slice_state(run, microbatch, slice)->activations.data != NULL);
    if (!begin_backward(run, microbatch, slice, error))
        return false;
    if (stage->head && open_head(run, backward_needs(run), &open)) {
        const ExecHeadActivations head = exec_stage_head_at(run, microbatch, slice);
        exec_head_backward(&common, &stage->ends, &head, d);
        if (!run->o.splits_backward)
            exec_head_weight(&common, &stage->ends, &head);
        exec_units_close(&open);
    }
    backward_layers(run, microbatch, slice, &scratch, d);
    give_again(run);
    if (run->o.splits_backward && stage->embedding)
        backend->ops->copy(backend, (size_t)exec_stage_boundary_bytes(run, microbatch, slice), d,
                           exec_stage_kept_embedding(run, microbatch, slice));
    if (!run->o.splits_backward) {
        if (stage->embedding && open_embedding(run, EXEC_OPEN_GRADIENTS, &open)) {
            exec_embedding_weight(&common, &stage->ends, tokens, d);
            exec_units_close(&open);
        }
        finish(run, microbatch, slice);
    }
    finish_inputs(run, microbatch, slice);
    *dx = d;
    return true;
}

void
exec_stage_backward_weight(ExecStageRun *run, int32_t microbatch, int32_t slice,
                           const int32_t *tokens)
{
    const ExecStage *stage = run->o.stage;
    const ExecSlice s = exec_stage_slice(run, microbatch, slice);
    const ExecLayerScratch scratch = exec_stage_scratch_at(run, &s);
    const ExecLayer common = exec_stage_layer_at(run, microbatch, slice, stage->n_layers, &scratch);
    ExecOpenUnits open;

    if (stage->head && open_head(run, EXEC_OPEN_GRADIENTS, &open)) {
        const ExecHeadActivations head = exec_stage_head_at(run, microbatch, slice);
        exec_head_weight(&common, &stage->ends, &head);
        exec_units_close(&open);
    }
    for (int64_t l = stage->n_layers - 1; l >= 0; l--) {
        const ExecLayer layer = exec_stage_layer_at(run, microbatch, slice, l, &scratch);
        const ExecLayerKept kept = exec_stage_kept_at(run, microbatch, slice, l);
        if (!open_layer(run, l, EXEC_OPEN_GRADIENTS, &open))
            break;
        exec_layer_backward_weight(&layer, &kept);
        exec_units_close(&open);
        exec_comm_poll(run->o.comm);
    }
    if (stage->embedding && open_embedding(run, EXEC_OPEN_GRADIENTS, &open)) {
        exec_embedding_weight(&common, &stage->ends, tokens,
                              exec_stage_kept_embedding(run, microbatch, slice));
        exec_units_close(&open);
    }
    finish(run, microbatch, slice);
}
