#include "executor/stage_state.h"

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
recomputes_all(const ExecStageRun *run)
{
    return run->o.stage->recompute == PLAN_RECOMPUTE_FULL;
}

static bool
is_moe(const ExecStageRun *run, int64_t layer)
{
    return layer >= run->o.stage->n_dense;
}

/* Sums over the first @n_layers layers of a dense one's and a MoE one's bytes. */
static int64_t
sum_layers(const ExecStageRun *run, int64_t n_layers, int64_t dense, int64_t moe)
{
    const int64_t n_dense = MIN(n_layers, run->o.stage->n_dense);

    return n_dense * dense + (n_layers - n_dense) * moe;
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

/* Where layer @layer's input lies in a slice's activations. */
static int64_t
input_at(const ExecStageRun *run, int64_t rows, int64_t layer)
{
    const int64_t boundary = boundary_bytes(run, rows);

    if (recomputes_all(run))
        return layer * boundary;
    return sum_layers(run, layer, boundary + layer_bytes(run, rows, false).inputs,
                      boundary + layer_bytes(run, rows, true).inputs);
}

/* Where the inputs of layer @layer's products lie in a slice's products; n_layers: the head's. */
static int64_t
products_at(const ExecStageRun *run, int64_t rows, int64_t layer)
{
    if (recomputes_all(run))
        return 0;
    return sum_layers(run, layer, layer_bytes(run, rows, false).products,
                      layer_bytes(run, rows, true).products);
}

int64_t
exec_stage_activation_bytes(const ExecStageRun *run, const ExecSlice *s)
{
    const int64_t rows = exec_slice_rows(s), n_layers = run->o.stage->n_layers;
    const int64_t boundary = boundary_bytes(run, rows);

    if (run->o.stage->head)
        return input_at(run, rows, n_layers) + boundary;
    /* The last output goes out; a stage without layers still has its input. */
    return MAX(boundary, input_at(run, rows, n_layers));
}

int64_t
exec_stage_product_bytes(const ExecStageRun *run, const ExecSlice *s)
{
    const int64_t rows = exec_slice_rows(s);

    return products_at(run, rows, run->o.stage->n_layers) +
           (run->o.stage->head ? exec_head_bytes(run->o.widths, rows) : 0);
}

static int64_t
kept_layer_bytes(const ExecStageRun *run, int64_t rows, bool moe)
{
    return exec_layer_kept_bytes(run->o.widths, rows, moe) +
           (recomputes_all(run) ? layer_bytes(run, rows, moe).products : 0);
}

static int64_t
kept_layer_at(const ExecStageRun *run, int64_t rows, int64_t layer)
{
    return sum_layers(run, layer, kept_layer_bytes(run, rows, false),
                      kept_layer_bytes(run, rows, true));
}

int64_t
exec_stage_kept_bytes(const ExecStageRun *run, const ExecSlice *s)
{
    const int64_t rows = exec_slice_rows(s);

    return kept_layer_at(run, rows, run->o.stage->n_layers) +
           (run->o.stage->embedding ? exec_stage_boundary_of(run->o.widths, rows) : 0);
}

/* Whether later slices read a slice's K and V, or its own backward does. */
static bool
keeps_kv(const ExecStageRun *run)
{
    return !recomputes_all(run) || run->o.n_slices > 1;
}

int64_t
exec_stage_kv_bytes_kept(const ExecStageRun *run, const ExecSlice *s)
{
    return keeps_kv(run) ? run->o.stage->n_layers * exec_stage_kv_bytes(run->o.widths, s->sequences)
                         : 0;
}

/* A layer's activations, the inputs of its products, K and V: where each begins in again. */
static int64_t
again_products_at(const ExecStageRun *run, int64_t rows)
{
    const ExecStage *stage = run->o.stage;

    return MAX(stage->n_dense > 0 ? layer_bytes(run, rows, false).inputs : 0,
               stage->n_dense < stage->n_layers ? layer_bytes(run, rows, true).inputs : 0);
}

static int64_t
again_kv_at(const ExecStageRun *run, int64_t rows)
{
    const ExecStage *stage = run->o.stage;

    return again_products_at(run, rows) +
           MAX(stage->n_dense > 0 ? layer_bytes(run, rows, false).products : 0,
               stage->n_dense < stage->n_layers ? layer_bytes(run, rows, true).products : 0);
}

int64_t
exec_stage_again_bytes(const ExecStageRun *run, const ExecSlice *s)
{
    return again_kv_at(run, exec_slice_rows(s)) +
           (keeps_kv(run) ? 0 : exec_stage_kv_bytes(run->o.widths, s->sequences));
}

/* --- views --- */

/* Nothing is anywhere in a block that was given back: W has no activations. */
static void *
at(const ExecBlock *block, int64_t offset)
{
    return block->data == NULL ? NULL : (char *)block->data + offset;
}

/* Where layer @layer's input lies. */
static void *
input_of(const ExecStageRun *run, int32_t microbatch, int32_t slice, int64_t layer)
{
    const ExecSlice s = exec_stage_slice(run, microbatch, slice);

    return at(&exec_stage_slice_state(run, microbatch, slice)->activations,
              input_at(run, exec_slice_rows(&s), layer));
}

/* The kept block's part of @layer; n_layers: the embedding's. */
static char *
kept_data(const ExecStageRun *run, int32_t microbatch, int32_t slice, int64_t layer)
{
    const ExecSlice s = exec_stage_slice(run, microbatch, slice);

    return (char *)exec_stage_slice_state(run, microbatch, slice)->kept.data +
           kept_layer_at(run, exec_slice_rows(&s), layer);
}

static ExecLayerActivations
activations_at(const ExecStageRun *run, int32_t microbatch, int32_t slice, int64_t layer)
{
    const ExecSlice s = exec_stage_slice(run, microbatch, slice);
    const ExecSliceState *state = exec_stage_slice_state(run, microbatch, slice);
    const int64_t rows = exec_slice_rows(&s);
    const bool moe = is_moe(run, layer);
    void *inputs = run->again.data, *products;

    if (!recomputes_all(run)) {
        inputs = at(&state->activations, input_at(run, rows, layer) + boundary_bytes(run, rows));
        products = at(&state->products, products_at(run, rows, layer));
    } else if (state->kept.data == NULL) {
        products = at(&run->again, again_products_at(run, rows));
    } else {
        products = kept_data(run, microbatch, slice, layer) +
                   exec_layer_kept_bytes(run->o.widths, rows, moe);
    }
    return exec_layer_activations(run->o.widths, rows, moe, run->o.stage->recompute, inputs,
                                  products);
}

ExecLayer
exec_stage_layer_at(const ExecStageRun *run, int32_t microbatch, int32_t slice, int64_t layer,
                    const ExecLayerScratch *scratch)
{
    const ExecSlice s = exec_stage_slice(run, microbatch, slice);
    const ExecStage *stage = run->o.stage;
    const ExecMicrobatchState *whole = &run->microbatches[microbatch];
    const int64_t rows = exec_slice_rows(&s), kv = exec_stage_kv_bytes(run->o.widths, s.sequences);
    ExecLayer result = {
        .backend = run->o.comm->backend,
        .comm = run->o.comm,
        .pool = run->o.pool,
        .widths = run->o.widths,
        .scratch = scratch,
        .turns = run->o.scratch->turns,
        .positions = run->o.scratch->positions + s.own_context,
        .slice = s,
        .x = input_of(run, microbatch, slice, layer),
    };

    if (layer >= stage->n_layers)
        return result;
    result.tensors = &stage->layers[layer];
    if (is_moe(run, layer))
        result.moe = &exec_stage_slice_state(run, microbatch, slice)->moe[layer];
    result.a = activations_at(run, microbatch, slice, layer);
    if (stage->recompute == PLAN_RECOMPUTE_SELECTIVE) {
        result.core_again = true;
        result.a.lse = run->o.scratch->lse;
    }
    result.kv = whole->kv.data != NULL ? at(&whole->kv, layer * kv)
                                       : at(&run->again, again_kv_at(run, rows));
    result.d_kv_begins = whole->d_kv.data == NULL;
    result.d_kv = result.d_kv_begins ? scratch->own_d_kv : at(&whole->d_kv, layer * kv);
    return result;
}

ExecLayerScratch
exec_stage_scratch_at(const ExecStageRun *run, const ExecSlice *s)
{
    return exec_layer_scratch(run->o.widths, exec_slice_rows(s), s->sequences,
                              run->o.scratch->layer);
}

ExecHeadActivations
exec_stage_head_at(const ExecStageRun *run, int32_t microbatch, int32_t slice)
{
    const ExecSlice s = exec_stage_slice(run, microbatch, slice);
    const int64_t rows = exec_slice_rows(&s), n_layers = run->o.stage->n_layers;
    const ExecBlock *products = &exec_stage_slice_state(run, microbatch, slice)->products;

    return exec_head_activations(run->o.widths, rows, input_of(run, microbatch, slice, n_layers),
                                 at(products, products_at(run, rows, n_layers)));
}

void *
exec_stage_output_at(const ExecStageRun *run, int32_t microbatch, int32_t slice, int64_t layer)
{
    if (layer + 1 == run->o.stage->n_layers && !run->o.stage->head)
        return run->o.scratch->d;
    return input_of(run, microbatch, slice, layer + 1);
}

ExecLayerKept
exec_stage_kept_at(const ExecStageRun *run, int32_t microbatch, int32_t slice, int64_t layer)
{
    const ExecSlice s = exec_stage_slice(run, microbatch, slice);

    return exec_layer_kept(run->o.widths, exec_slice_rows(&s), is_moe(run, layer),
                           kept_data(run, microbatch, slice, layer));
}

void *
exec_stage_kept_embedding(const ExecStageRun *run, int32_t microbatch, int32_t slice)
{
    return kept_data(run, microbatch, slice, run->o.stage->n_layers);
}
