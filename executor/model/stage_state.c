#include "executor/model/stage_state.h"

/* --- sizes --- */

int64_t
exec_stage_kv_bytes(const ExecWidths *w, int64_t sequences)
{
    return exec_stage_padded(w->seq_len / w->cp * sequences * 2 * w->kv_width *
                             dtype_bytes(w->storage));
}

int64_t
exec_stage_boundary_of(const ExecWidths *w, int64_t rows)
{
    return exec_local_rows(w, rows) * w->hidden * dtype_bytes(w->storage);
}

static bool
is_moe(const ExecStageRun *run, int64_t layer)
{
    return layer >= run->o.stage->n_dense;
}

static ExecLayerBytes
layer_bytes(const ExecStageRun *run, int64_t rows, bool moe)
{
    return exec_layer_activation_bytes(run->o.widths, rows, moe, run->o.stage->recompute);
}

static int64_t
boundary_bytes(const ExecStageRun *run, int64_t rows)
{
    return exec_stage_padded(exec_stage_boundary_of(run->o.widths, rows));
}

/* A layer's K and V, or their gradients, in a block of its own slice. */
static int64_t
own_kv_bytes(const ExecStageRun *run, const ExecSlice *s)
{
    return run->o.n_slices > 1 ? 0 : exec_stage_kv_bytes(run->o.widths, s->sequences);
}

int64_t
exec_stage_input_bytes(const ExecStageRun *run, const ExecSlice *s, int64_t layer)
{
    const ExecStage *stage = run->o.stage;
    const int64_t rows = exec_slice_rows(s), boundary = boundary_bytes(run, rows);

    /* A stage without layers still has its input. */
    if (layer == stage->n_layers)
        return stage->head || layer == 0 ? boundary : 0;
    if (exec_stage_recomputes_all(run))
        return boundary;
    return boundary + layer_bytes(run, rows, is_moe(run, layer)).inputs + own_kv_bytes(run, s);
}

int64_t
exec_stage_product_bytes(const ExecStageRun *run, const ExecSlice *s, int64_t layer)
{
    const int64_t rows = exec_slice_rows(s);

    if (layer == run->o.stage->n_layers)
        return run->o.stage->head ? exec_head_bytes(run->o.widths, rows) : 0;
    return layer_bytes(run, rows, is_moe(run, layer)).products;
}

int64_t
exec_stage_gradient_bytes(const ExecStageRun *run, const ExecSlice *s, int64_t layer)
{
    if (layer == run->o.stage->n_layers)
        return 0;
    return exec_layer_kept_bytes(run->o.widths, exec_slice_rows(s), is_moe(run, layer)) +
           own_kv_bytes(run, s);
}

int64_t
exec_stage_kv_bytes_kept(const ExecStageRun *run, const ExecSlice *s)
{
    return run->o.n_slices > 1
               ? run->o.stage->n_layers * exec_stage_kv_bytes(run->o.widths, s->sequences)
               : 0;
}

/* The larger of both kinds of layers that the stage has. */
typedef int64_t (*LayerBytes)(const ExecStageRun *run, int64_t rows, bool moe);

static int64_t
larger(const ExecStageRun *run, int64_t rows, LayerBytes bytes)
{
    const ExecStage *stage = run->o.stage;

    return MAX(stage->n_dense > 0 ? bytes(run, rows, false) : 0,
               stage->n_dense < stage->n_layers ? bytes(run, rows, true) : 0);
}

static int64_t
inputs_of(const ExecStageRun *run, int64_t rows, bool moe)
{
    return run->kind == SCHEDULE_OP_FORWARD ? exec_layer_passing_bytes(run->o.widths, rows, moe)
                                            : layer_bytes(run, rows, moe).inputs;
}

/* F passes; an I's layers have their products in a block of their own. */
static int64_t
products_of(const ExecStageRun *run, int64_t rows, bool moe)
{
    return run->kind == SCHEDULE_OP_BACKWARD ? layer_bytes(run, rows, moe).products : 0;
}

/* A layer's activations, its K and V, the inputs of its products: where each begins in again. */
static int64_t
again_kv_at(const ExecStageRun *run, int64_t rows)
{
    return larger(run, rows, inputs_of);
}

int64_t
exec_stage_again_bytes(const ExecStageRun *run, const ExecSlice *s)
{
    const int64_t rows = exec_slice_rows(s);

    if (!exec_stage_recomputes_all(run) || run->kind == SCHEDULE_OP_BACKWARD_WEIGHT)
        return 0;
    return again_kv_at(run, rows) + own_kv_bytes(run, s) + larger(run, rows, products_of);
}

/* --- views --- */

/* Nothing is anywhere in a block that was given back: W has no inputs. */
static void *
at(const ExecBlock *block, int64_t offset)
{
    return block->data == NULL ? NULL : (char *)block->data + offset;
}

static const ExecPartBlocks *
part_at(const ExecStageRun *run, int32_t micro_batch, int32_t slice, int64_t layer)
{
    return &exec_stage_slice_state(run, micro_batch, slice)->parts[layer];
}

static ExecLayerActivations
activations_at(const ExecStageRun *run, const ExecPartBlocks *part, const ExecSlice *s, bool moe)
{
    const int64_t rows = exec_slice_rows(s);
    const bool again = exec_stage_recomputes_all(run);

    if (again && run->kind == SCHEDULE_OP_FORWARD)
        return exec_layer_passing(run->o.widths, rows, moe, run->again.data);
    void *inputs = again ? run->again.data : at(&part->inputs, boundary_bytes(run, rows));
    void *products = part->products.data != NULL
                         ? part->products.data
                         : at(&run->again, again_kv_at(run, rows) + own_kv_bytes(run, s));

    return exec_layer_activations(run->o.widths, rows, moe, run->o.stage->recompute, inputs,
                                  products);
}

/* K and V of @layer; their gradient. */
static void
set_kv(const ExecStageRun *run, int32_t micro_batch, const ExecPartBlocks *part, int64_t layer,
       ExecLayer *result)
{
    const ExecMicroBatchState *whole = &run->micro_batches[micro_batch];
    const ExecSlice *s = &result->slice;
    const int64_t rows = exec_slice_rows(s), kv = exec_stage_kv_bytes(run->o.widths, s->sequences);
    const bool moe = is_moe(run, layer);

    result->d_kv_begins = run->o.n_slices == 1;
    if (run->o.n_slices > 1) {
        result->kv = at(&whole->kv, layer * kv);
        result->d_kv = at(&whole->d_kv, layer * kv);
        return;
    }
    result->kv =
        exec_stage_recomputes_all(run)
            ? at(&run->again, again_kv_at(run, rows))
            : at(&part->inputs, boundary_bytes(run, rows) + layer_bytes(run, rows, moe).inputs);
    result->d_kv = part->gradients.data != NULL
                       ? at(&part->gradients, exec_layer_kept_bytes(run->o.widths, rows, moe))
                       : result->scratch->own_d_kv;
}

ExecLayer
exec_stage_layer_at(const ExecStageRun *run, int32_t micro_batch, int32_t slice, int64_t layer,
                    const ExecLayerScratch *scratch)
{
    const ExecSlice s = exec_stage_slice(run, micro_batch, slice);
    const ExecStage *stage = run->o.stage;
    const ExecPartBlocks *part = part_at(run, micro_batch, slice, layer);
    ExecLayer result = {
        .backend = run->o.comm->backend,
        .comm = run->o.comm,
        .pool = run->o.pool,
        .widths = run->o.widths,
        .scratch = scratch,
        .turns = run->o.scratch->turns,
        .positions = run->o.scratch->positions + s.own_context,
        .slice = s,
        .x = part->inputs.data,
    };

    if (layer >= stage->n_layers)
        return result;
    result.tensors = &stage->layers[layer];
    if (is_moe(run, layer))
        result.moe = &exec_stage_slice_state(run, micro_batch, slice)->moe[layer];
    result.a = activations_at(run, part, &s, is_moe(run, layer));
    if (stage->recompute == PLAN_RECOMPUTE_SELECTIVE) {
        result.core_again = true;
        result.a.lse = run->o.scratch->lse;
    }
    set_kv(run, micro_batch, part, layer, &result);
    return result;
}

ExecLayerScratch
exec_stage_scratch_at(const ExecStageRun *run, const ExecSlice *s)
{
    return exec_layer_scratch(run->o.widths, exec_slice_rows(s), s->sequences, run->kind,
                              run->layer.data);
}

ExecHeadActivations
exec_stage_head_at(const ExecStageRun *run, int32_t micro_batch, int32_t slice)
{
    const ExecSlice s = exec_stage_slice(run, micro_batch, slice);
    const ExecPartBlocks *part = part_at(run, micro_batch, slice, run->o.stage->n_layers);

    return exec_head_activations(run->o.widths, exec_slice_rows(&s), part->inputs.data,
                                 part->products.data);
}

void *
exec_stage_output_at(const ExecStageRun *run, int32_t micro_batch, int32_t slice, int64_t layer)
{
    if (layer + 1 == run->o.stage->n_layers && !run->o.stage->head)
        return run->o.scratch->d;
    return part_at(run, micro_batch, slice, layer + 1)->inputs.data;
}

ExecLayerKept
exec_stage_kept_at(const ExecStageRun *run, int32_t micro_batch, int32_t slice, int64_t layer)
{
    const ExecSlice s = exec_stage_slice(run, micro_batch, slice);

    return exec_layer_kept(run->o.widths, exec_slice_rows(&s), is_moe(run, layer),
                           part_at(run, micro_batch, slice, layer)->gradients.data);
}
