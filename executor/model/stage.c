#include "executor/model/stage.h"

#include "executor/model/stage_state.h"

/* --- lifecycle --- */

ExecStageRun *
exec_stage_run_new(const ExecStageOptions *options)
{
    ExecStageRun *run = g_new0(ExecStageRun, 1);
    const size_t n_slices = (size_t)options->n_slices;

    run->o = *options;
    run->micro_batches = g_new0(ExecMicroBatchState, (size_t)options->n_micro_batches);
    run->slices = g_new0(ExecSliceState, (size_t)options->n_micro_batches * n_slices);
    for (size_t i = 0; i < (size_t)options->n_micro_batches * n_slices; i++) {
        run->slices[i].parts = g_new0(ExecPartBlocks, (size_t)options->stage->n_layers + 1);
        if (options->stage->n_dense < options->stage->n_layers)
            run->slices[i].moe = g_new0(ExecMoe, (size_t)options->stage->n_layers);
    }
    run->context = g_new0(int64_t, n_slices);
    for (size_t i = 1; i < n_slices; i++)
        run->context[i] = run->context[i - 1] + options->slices[i - 1];
    return run;
}

/* Of layer @layer, or the head: what only B or I reads; what W reads. */
static void
give_inputs(const ExecStageRun *run, ExecSliceState *state, int64_t layer)
{
    exec_pool_give(run->o.pool, &state->parts[layer].inputs);
    if (state->moe != NULL && layer < run->o.stage->n_layers)
        exec_moe_clear_inputs(&state->moe[layer], run->o.pool);
}

static void
give_products(const ExecStageRun *run, ExecSliceState *state, int64_t layer)
{
    exec_pool_give(run->o.pool, &state->parts[layer].products);
    exec_pool_give(run->o.pool, &state->parts[layer].gradients);
    if (state->moe != NULL && layer < run->o.stage->n_layers)
        exec_moe_clear(&state->moe[layer], run->o.pool);
}

/* A block of @n_bytes; of none nothing. */
static bool
take(ExecStageRun *run, TraceMemoryOwner owner, int64_t n_bytes, ExecBlock *block, GError **error)
{
    return n_bytes == 0 || exec_pool_take(run->o.pool, owner, n_bytes, block, error);
}

/* What lives inside an op only; end_op() ends it. */
static bool
begin_op(ExecStageRun *run, const ExecSlice *s, ScheduleOpKind kind, GError **error)
{
    const int64_t layer =
        exec_layer_scratch_bytes(run->o.widths, exec_slice_rows(s), s->sequences, kind);

    run->kind = kind;
    return take(run, TRACE_MEMORY_WORKSPACE, layer, &run->layer, error) &&
           take(run, TRACE_MEMORY_WORKSPACE, exec_stage_again_bytes(run, s), &run->again, error);
}

static void
end_op(ExecStageRun *run)
{
    exec_pool_give(run->o.pool, &run->again);
    exec_pool_give(run->o.pool, &run->layer);
}

void
exec_stage_run_free(ExecStageRun *run)
{
    if (run == NULL)
        return;
    for (int32_t i = 0; i < run->o.n_micro_batches * run->o.n_slices; i++) {
        for (int64_t l = 0; l <= run->o.stage->n_layers; l++) {
            give_inputs(run, &run->slices[i], l);
            give_products(run, &run->slices[i], l);
        }
        g_free(run->slices[i].parts);
        g_free(run->slices[i].moe);
    }
    for (int32_t i = 0; i < run->o.n_micro_batches; i++) {
        exec_pool_give(run->o.pool, &run->micro_batches[i].kv);
        exec_pool_give(run->o.pool, &run->micro_batches[i].d_kv);
    }
    end_op(run);
    g_free(run->micro_batches);
    g_free(run->slices);
    g_free(run->context);
    g_free(run);
}

ExecSlice
exec_stage_slice(const ExecStageRun *run, int32_t micro_batch, int32_t slice)
{
    const int64_t cp = run->o.widths->cp;

    return (ExecSlice){
        .sequences = run->o.sequences[micro_batch],
        .tokens = run->o.slices[slice],
        .context = run->context[slice],
        .own_tokens = run->o.slices[slice] / cp,
        .own_context = run->context[slice] / cp,
        .lengths = run->o.slices,
        .index = slice,
    };
}

int64_t
exec_stage_boundary_bytes(const ExecStageRun *run, int32_t micro_batch, int32_t slice)
{
    const ExecSlice s = exec_stage_slice(run, micro_batch, slice);

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
        apart =
            apart || (opening.units[i] >= 0 &&
                      exec_model_weights_apart(model, exec_model_unit(model, opening.units[i])));
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
backward_needs(bool split)
{
    return split ? EXEC_OPEN_WEIGHTS : EXEC_OPEN_WEIGHTS | EXEC_OPEN_GRADIENTS;
}

/* --- forward --- */

bool
exec_stage_begin_forward(ExecStageRun *run, int32_t micro_batch, int32_t slice, void **x,
                         GError **error)
{
    const int64_t n_layers = run->o.stage->n_layers;
    ExecPartBlocks *parts = exec_stage_slice_state(run, micro_batch, slice)->parts;
    ExecMicroBatchState *whole = &run->micro_batches[micro_batch];
    const ExecSlice s = exec_stage_slice(run, micro_batch, slice);
    const int64_t kv = exec_stage_kv_bytes_kept(run, &s);

    g_assert(parts[0].inputs.data == NULL);
    for (int64_t l = 0; l <= n_layers; l++) {
        const bool again = l < n_layers && exec_stage_recomputes_all(run);
        if (!take(run, TRACE_MEMORY_ACTIVATIONS, exec_stage_input_bytes(run, &s, l),
                  &parts[l].inputs, error) ||
            (!again && !take(run, TRACE_MEMORY_ACTIVATIONS, exec_stage_product_bytes(run, &s, l),
                             &parts[l].products, error)))
            return false;
    }
    if (whole->kv.data == NULL && !take(run, TRACE_MEMORY_KV, kv, &whole->kv, error))
        return false;
    *x = parts[0].inputs.data;
    return begin_op(run, &s, SCHEDULE_OP_FORWARD, error);
}

const void *
exec_stage_forward(ExecStageRun *run, int32_t micro_batch, int32_t slice, const int32_t *tokens,
                   const int32_t *targets, double *loss)
{
    const ExecStage *stage = run->o.stage;
    const ExecSlice s = exec_stage_slice(run, micro_batch, slice);
    ExecSliceState *state = exec_stage_slice_state(run, micro_batch, slice);
    const ExecLayerScratch scratch = exec_stage_scratch_at(run, &s);
    const ExecLayer common =
        exec_stage_layer_at(run, micro_batch, slice, stage->n_layers, &scratch);
    void *x = state->parts[0].inputs.data;
    ExecOpenUnits open;

    if (stage->embedding && open_embedding(run, EXEC_OPEN_WEIGHTS, &open)) {
        exec_embedding_forward(&common, &stage->ends, tokens, x);
        exec_units_close(&open);
    }
    for (int64_t l = 0; l < stage->n_layers; l++) {
        const ExecLayer layer = exec_stage_layer_at(run, micro_batch, slice, l, &scratch);
        x = exec_stage_output_at(run, micro_batch, slice, l);
        if (!open_layer(run, l, EXEC_OPEN_WEIGHTS, &open))
            break;
        exec_layer_forward(&layer, x);
        exec_units_close(&open);
        if (exec_stage_recomputes_all(run) && state->moe != NULL)
            exec_moe_clear(&state->moe[l], run->o.pool);
        exec_comm_poll(run->o.comm);
    }
    if (stage->head && open_head(run, EXEC_OPEN_WEIGHTS, &open)) {
        const ExecHeadActivations head = exec_stage_head_at(run, micro_batch, slice);
        exec_head_forward(&common, &stage->ends, &head, targets, run->o.loss_factor,
                          run->o.scratch->stats, loss);
        exec_units_close(&open);
    }
    end_op(run);
    return x;
}

/* --- backward --- */

void *
exec_stage_gradient(ExecStageRun *run)
{
    return run->o.scratch->d;
}

/* After B or I: gives back K and V that no slice reads any more. */
static void
finish_inputs(ExecStageRun *run, int32_t micro_batch)
{
    ExecMicroBatchState *whole = &run->micro_batches[micro_batch];

    if (++whole->n_backward < run->o.n_slices)
        return;
    whole->n_backward = 0;
    exec_pool_give(run->o.pool, &whole->kv);
}

/* After B or W: their gradients. */
static void
finish(ExecStageRun *run, int32_t micro_batch)
{
    ExecMicroBatchState *whole = &run->micro_batches[micro_batch];

    if (++whole->n_done < run->o.n_slices)
        return;
    whole->n_done = 0;
    exec_pool_give(run->o.pool, &whole->d_kv);
}

/* The accumulator of K's and V's gradients begins at zero with the micro-batch's first backward. */
static bool
begin_backward(ExecStageRun *run, int32_t micro_batch, int32_t slice, bool split, GError **error)
{
    ExecBackend *backend = run->o.comm->backend;
    const ExecSlice s = exec_stage_slice(run, micro_batch, slice);
    ExecMicroBatchState *whole = &run->micro_batches[micro_batch];
    const int64_t kv = exec_stage_kv_bytes_kept(run, &s);

    if (kv > 0 && whole->d_kv.data == NULL) {
        if (!exec_pool_take(run->o.pool, TRACE_MEMORY_KV, kv, &whole->d_kv, error))
            return false;
        backend->ops->zero(backend, (size_t)kv, whole->d_kv.data);
    }
    return begin_op(run, &s, split ? SCHEDULE_OP_BACKWARD_INPUT : SCHEDULE_OP_BACKWARD, error);
}

static void
head_backward(ExecStageRun *run, int32_t micro_batch, int32_t slice, bool split,
              const ExecLayer *common)
{
    const ExecEndTensors *ends = &run->o.stage->ends;
    const ExecHeadActivations head = exec_stage_head_at(run, micro_batch, slice);
    ExecSliceState *state = exec_stage_slice_state(run, micro_batch, slice);
    ExecOpenUnits open;

    if (!open_head(run, backward_needs(split), &open))
        return;
    exec_head_backward(common, ends, &head, run->o.scratch->d);
    if (!split)
        exec_head_weight(common, ends, &head);
    exec_units_close(&open);
    give_inputs(run, state, run->o.stage->n_layers);
    if (!split)
        give_products(run, state, run->o.stage->n_layers);
}

/* Room for what I leaves to W of a layer. */
static bool
take_kept(ExecStageRun *run, const ExecSlice *s, int64_t layer, ExecPartBlocks *part)
{
    GError *error = NULL;
    const bool ok = (!exec_stage_recomputes_all(run) ||
                     take(run, TRACE_MEMORY_ACTIVATIONS, exec_stage_product_bytes(run, s, layer),
                          &part->products, &error)) &&
                    take(run, TRACE_MEMORY_ACTIVATIONS, exec_stage_gradient_bytes(run, s, layer),
                         &part->gradients, &error);

    if (!ok)
        exec_comm_fail(run->o.comm, error);
    return ok;
}

static void
layer_backward(ExecStageRun *run, int32_t micro_batch, int32_t slice, int64_t l, bool split,
               const ExecLayerScratch *scratch)
{
    const ExecSlice s = exec_stage_slice(run, micro_batch, slice);
    ExecSliceState *state = exec_stage_slice_state(run, micro_batch, slice);
    ExecOpenUnits open;

    if (split && !take_kept(run, &s, l, &state->parts[l]))
        return;
    const ExecLayer layer = exec_stage_layer_at(run, micro_batch, slice, l, scratch);
    if (!open_layer(run, l, backward_needs(split), &open))
        return;
    /* The output was kept or sent away: the second one goes nowhere. */
    if (exec_stage_recomputes_all(run))
        exec_layer_forward(&layer, scratch->kept.d_up);
    if (split) {
        const ExecLayerKept kept = exec_stage_kept_at(run, micro_batch, slice, l);
        exec_layer_backward(&layer, &kept, run->o.scratch->d);
    } else {
        exec_layer_backward(&layer, NULL, run->o.scratch->d);
    }
    exec_units_close(&open);
    give_inputs(run, state, l);
    if (!split)
        give_products(run, state, l);
    exec_comm_poll(run->o.comm);
}

bool
exec_stage_backward(ExecStageRun *run, int32_t micro_batch, int32_t slice, const int32_t *tokens,
                    bool split, const void **dx, GError **error)
{
    const ExecStage *stage = run->o.stage;
    const ExecSlice s = exec_stage_slice(run, micro_batch, slice);
    ExecSliceState *state = exec_stage_slice_state(run, micro_batch, slice);
    void *d = run->o.scratch->d;
    ExecOpenUnits open;

    g_assert(state->parts[0].inputs.data != NULL);
    if (!begin_backward(run, micro_batch, slice, split, error))
        return false;
    const ExecLayerScratch scratch = exec_stage_scratch_at(run, &s);
    const ExecLayer common =
        exec_stage_layer_at(run, micro_batch, slice, stage->n_layers, &scratch);
    if (stage->head)
        head_backward(run, micro_batch, slice, split, &common);
    for (int64_t l = stage->n_layers - 1; l >= 0 && run->o.comm->error == NULL; l--)
        layer_backward(run, micro_batch, slice, l, split, &scratch);
    exec_pool_give(run->o.pool, &run->again);
    if (stage->embedding && open_embedding(run, EXEC_OPEN_GRADIENTS, &open)) {
        exec_embedding_weight(&common, &stage->ends, tokens, d);
        exec_units_close(&open);
    }
    end_op(run);
    give_inputs(run, state, stage->n_layers); /* of a stage without layers */
    if (!split)
        finish(run, micro_batch);
    finish_inputs(run, micro_batch);
    *dx = d;
    return true;
}

void
exec_stage_backward_weight(ExecStageRun *run, int32_t micro_batch, int32_t slice)
{
    const ExecStage *stage = run->o.stage;
    const ExecSlice s = exec_stage_slice(run, micro_batch, slice);
    ExecSliceState *state = exec_stage_slice_state(run, micro_batch, slice);
    ExecOpenUnits open;
    GError *error = NULL;

    if (!begin_op(run, &s, SCHEDULE_OP_BACKWARD_WEIGHT, &error)) {
        exec_comm_fail(run->o.comm, error);
        return;
    }
    const ExecLayerScratch scratch = exec_stage_scratch_at(run, &s);
    const ExecLayer common =
        exec_stage_layer_at(run, micro_batch, slice, stage->n_layers, &scratch);
    if (stage->head && open_head(run, EXEC_OPEN_GRADIENTS, &open)) {
        const ExecHeadActivations head = exec_stage_head_at(run, micro_batch, slice);
        exec_head_weight(&common, &stage->ends, &head);
        exec_units_close(&open);
        give_products(run, state, stage->n_layers);
    }
    for (int64_t l = stage->n_layers - 1; l >= 0; l--) {
        const ExecLayer layer = exec_stage_layer_at(run, micro_batch, slice, l, &scratch);
        const ExecLayerKept kept = exec_stage_kept_at(run, micro_batch, slice, l);
        if (!open_layer(run, l, EXEC_OPEN_GRADIENTS, &open))
            break;
        exec_layer_backward_weight(&layer, &kept);
        exec_units_close(&open);
        give_products(run, state, l);
        exec_comm_poll(run->o.comm);
    }
    end_op(run);
    finish(run, micro_batch);
}
