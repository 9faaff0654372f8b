#include "executor/stage.h"

#include <math.h>

#include "executor/context_parallel.h"

/* Of one (micro-batch, slice) in flight. */
typedef struct {
    ExecBlock activations;
    ExecBlock kept; /* from I to W */
    ExecMoe *moe;   /* (owned, nullable) [layer] where the stage has experts */
} SliceState;

/* Of one micro-batch in flight. */
typedef struct {
    ExecBlock kv, d_kv;
    int32_t n_done; /* slices whose B or W has ended */
} MicrobatchState;

struct ExecStageRun {
    ExecStageOptions o;
    int64_t *context;              /* (owned) tokens before each slice */
    MicrobatchState *microbatches; /* (owned) */
    SliceState *slices;            /* (owned) [microbatch][slice] */
};

/* --- sizes --- */

static inline int64_t
padded(int64_t n_bytes)
{
    return (n_bytes + 63) / 64 * 64;
}

/* One layer's K and V of this rank's tokens of @sequences. */
static int64_t
kv_bytes(const ExecWidths *w, int64_t sequences)
{
    return padded(w->seq_len / w->cp * sequences * 2 * w->kv_width * dtype_bytes(w->storage));
}

static int64_t
boundary_bytes(const ExecWidths *w, int64_t rows)
{
    return exec_local_rows(w, rows) * w->hidden * dtype_bytes(w->storage);
}

/* --- scratch --- */

/* The positions of this rank's tokens, slice after slice. */
static void
upload_positions(const ExecStageScratch *scratch, const ExecScratchOptions *o)
{
    const ExecWidths *w = o->widths;
    g_autofree int32_t *positions = g_new(int32_t, (size_t)w->seq_len);
    int64_t n = 0, context = 0;

    for (int32_t s = 0; s < o->n_slices; s++) {
        ExecChunk chunks[2];
        const int n_chunks =
            exec_slice_chunks(o->lengths[s], w->cp, o->comm->groups[EXEC_DIM_CP].index, chunks);
        for (int i = 0; i < n_chunks; i++)
            for (int64_t t = 0; t < chunks[i].n; t++)
                positions[n++] = (int32_t)(context + chunks[i].begin + t);
        context += o->lengths[s];
    }
    o->comm->backend->ops->upload(o->comm->backend, (size_t)n * sizeof *positions, positions,
                                  scratch->positions);
}

/* Base 10000 [Su et al. 2104.09864 section 3.2.2]. */
static void
upload_turns(const ExecStageScratch *scratch, const ExecScratchOptions *o)
{
    const int64_t d = o->widths->head_dim, n = o->widths->seq_len * d;
    g_autofree float *turns = g_new(float, (size_t)n);

    for (int64_t position = 0; position < o->widths->seq_len; position++)
        for (int64_t i = 0; i < d / 2; i++) {
            const double angle = (double)position * pow(10000.0, -2.0 * (double)i / (double)d);
            turns[position * d + i] = (float)cos(angle);
            turns[position * d + d / 2 + i] = (float)sin(angle);
        }
    o->comm->backend->ops->upload(o->comm->backend, (size_t)n * sizeof *turns, turns,
                                  scratch->turns);
}

bool
exec_stage_scratch_init(ExecStageScratch *scratch, const ExecScratchOptions *o, GError **error)
{
    const ExecWidths *w = o->widths;
    int64_t tokens = 0;

    for (int32_t s = 0; s < o->n_slices; s++)
        tokens = MAX(tokens, o->lengths[s] / w->cp);
    const int64_t rows = o->sequences * tokens;
    const int64_t boundary = padded(boundary_bytes(w, rows));
    const int64_t sizes[] = {
        boundary,
        boundary,
        kv_bytes(w, o->sequences),
        exec_layer_scratch_bytes(w, rows, o->sequences),
        w->tp > 1 ? padded(w->tp * 3 * rows * (int64_t)sizeof(float)) : 0,
        padded(w->seq_len / w->cp * (int64_t)sizeof(int32_t)),
        w->rotary ? padded(w->seq_len * w->head_dim * (int64_t)sizeof(float)) : 0,
    };
    char *at[G_N_ELEMENTS(sizes)];
    int64_t n_bytes = 0;

    for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++)
        n_bytes += sizes[i];
    if (!exec_pool_take(o->pool, TRACE_MEMORY_WORKSPACE, n_bytes, &scratch->block, error))
        return false;
    at[0] = scratch->block.data;
    for (size_t i = 1; i < G_N_ELEMENTS(sizes); i++)
        at[i] = at[i - 1] + sizes[i - 1];
    scratch->d = at[0];
    scratch->edge = at[1];
    scratch->d_kv = at[2];
    scratch->layer = at[3];
    scratch->stats = (float *)(void *)at[4];
    scratch->positions = (int32_t *)(void *)at[5];
    scratch->turns = w->rotary ? (float *)(void *)at[6] : NULL;
    upload_positions(scratch, o);
    if (w->rotary)
        upload_turns(scratch, o);
    return true;
}

void
exec_stage_scratch_clear(ExecStageScratch *scratch, ExecPool *pool)
{
    exec_pool_give(pool, &scratch->block);
}

/* --- lifecycle --- */

ExecStageRun *
exec_stage_run_new(const ExecStageOptions *options)
{
    ExecStageRun *run = g_new0(ExecStageRun, 1);
    const size_t n_slices = (size_t)options->n_slices;

    run->o = *options;
    run->microbatches = g_new0(MicrobatchState, (size_t)options->n_microbatches);
    run->slices = g_new0(SliceState, (size_t)options->n_microbatches * n_slices);
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
clear_moe(const ExecStageRun *run, SliceState *state)
{
    for (int64_t l = 0; state->moe != NULL && l < run->o.stage->n_layers; l++)
        exec_moe_clear(&state->moe[l], run->o.pool);
}

void
exec_stage_run_free(ExecStageRun *run)
{
    if (run == NULL)
        return;
    for (int32_t i = 0; i < run->o.n_microbatches * run->o.n_slices; i++) {
        exec_pool_give(run->o.pool, &run->slices[i].activations);
        exec_pool_give(run->o.pool, &run->slices[i].kept);
        clear_moe(run, &run->slices[i]);
        g_free(run->slices[i].moe);
    }
    for (int32_t i = 0; i < run->o.n_microbatches; i++) {
        exec_pool_give(run->o.pool, &run->microbatches[i].kv);
        exec_pool_give(run->o.pool, &run->microbatches[i].d_kv);
    }
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

    return boundary_bytes(run->o.widths, exec_slice_rows(&s));
}

static inline SliceState *
slice_state(ExecStageRun *run, int32_t microbatch, int32_t slice)
{
    return &run->slices[microbatch * run->o.n_slices + slice];
}

/* --- views --- */

/*
 * A slice's block: input; per layer its activations and its output (the next one's input; the last
 * output goes to the edge unless a head follows); the head's.
 */
typedef struct {
    int64_t n_dense;                     /* leading layers without experts */
    int64_t boundary, dense, moe, total; /* bytes; of a layer with its output */
    bool keeps_output;
} SliceLayout;

static SliceLayout
layout_of(const ExecStageRun *run, int64_t rows)
{
    const ExecWidths *w = run->o.widths;
    const ExecStage *stage = run->o.stage;
    SliceLayout layout = {
        .boundary = padded(boundary_bytes(w, rows)),
        .n_dense = stage->n_dense,
        .dense = exec_layer_activation_bytes(w, rows, false),
        .moe = exec_layer_activation_bytes(w, rows, true),
        .keeps_output = stage->head,
    };

    layout.dense += layout.boundary;
    layout.moe += layout.boundary;
    layout.total = layout.boundary + stage->n_dense * layout.dense +
                   (stage->n_layers - stage->n_dense) * layout.moe;
    if (!layout.keeps_output && stage->n_layers > 0)
        layout.total -= layout.boundary;
    if (stage->head)
        layout.total += exec_head_bytes(w, rows);
    return layout;
}

static char *
layer_input(const SliceLayout *layout, char *block, int64_t layer)
{
    const int64_t n_dense = MIN(layer, layout->n_dense);

    return block + n_dense * layout->dense + (layer - n_dense) * layout->moe;
}

/* Layer @layer of the stage at work; @layer may be n_layers, which has only what is common. */
static ExecLayer
layer_at(ExecStageRun *run, int32_t microbatch, int32_t slice, int64_t layer,
         const ExecLayerScratch *scratch)
{
    const ExecSlice s = exec_stage_slice(run, microbatch, slice);
    const ExecWidths *w = run->o.widths;
    const SliceLayout layout = layout_of(run, exec_slice_rows(&s));
    const MicrobatchState *state = &run->microbatches[microbatch];
    const SliceState *state_of = slice_state(run, microbatch, slice);
    char *block = state_of->activations.data;
    const int64_t kv = kv_bytes(w, s.sequences);
    ExecLayer result = {
        .backend = run->o.comm->backend,
        .comm = run->o.comm,
        .pool = run->o.pool,
        .widths = w,
        .scratch = scratch,
        .turns = run->o.scratch->turns,
        .positions = run->o.scratch->positions + s.own_context,
        .slice = s,
        .x = layer_input(&layout, block, layer),
    };

    if (layer >= run->o.stage->n_layers)
        return result;
    result.tensors = &run->o.stage->layers[layer];
    result.moe = layer < run->o.stage->n_dense ? NULL : &state_of->moe[layer];
    result.a = exec_layer_activations(w, exec_slice_rows(&s), result.moe != NULL,
                                      layer_input(&layout, block, layer) + layout.boundary);
    result.kv = (char *)state->kv.data + layer * kv;
    result.d_kv =
        state->d_kv.data != NULL ? (char *)state->d_kv.data + layer * kv : run->o.scratch->d_kv;
    return result;
}

static ExecLayerScratch
scratch_at(const ExecStageRun *run, const ExecSlice *s)
{
    return exec_layer_scratch(run->o.widths, exec_slice_rows(s), s->sequences,
                              run->o.scratch->layer);
}

static ExecHeadActivations
head_at(ExecStageRun *run, int32_t microbatch, int32_t slice)
{
    const ExecSlice s = exec_stage_slice(run, microbatch, slice);
    const SliceLayout layout = layout_of(run, exec_slice_rows(&s));
    char *x = layer_input(&layout, slice_state(run, microbatch, slice)->activations.data,
                          run->o.stage->n_layers);

    return exec_head_activations(run->o.widths, exec_slice_rows(&s), x, x + layout.boundary);
}

/* Bytes that I keeps of the first @n_layers layers. */
static int64_t
kept_bytes(const ExecStageRun *run, int64_t rows, int64_t n_layers)
{
    const int64_t n_dense = MIN(n_layers, run->o.stage->n_dense);

    return n_dense * exec_layer_kept_bytes(run->o.widths, rows, false) +
           (n_layers - n_dense) * exec_layer_kept_bytes(run->o.widths, rows, true);
}

/* What I keeps for W: a block of all layers, then the embedding's gradient. */
static char *
kept_data(ExecStageRun *run, int32_t microbatch, int32_t slice, int64_t layer)
{
    const ExecSlice s = exec_stage_slice(run, microbatch, slice);

    return (char *)slice_state(run, microbatch, slice)->kept.data +
           kept_bytes(run, exec_slice_rows(&s), layer);
}

static ExecLayerKept
kept_at(ExecStageRun *run, int32_t microbatch, int32_t slice, int64_t layer)
{
    const ExecSlice s = exec_stage_slice(run, microbatch, slice);

    return exec_layer_kept(run->o.widths, exec_slice_rows(&s), layer >= run->o.stage->n_dense,
                           kept_data(run, microbatch, slice, layer));
}

/* --- forward --- */

bool
exec_stage_begin_forward(ExecStageRun *run, int32_t microbatch, int32_t slice, void **x,
                         GError **error)
{
    SliceState *state = slice_state(run, microbatch, slice);
    MicrobatchState *whole = &run->microbatches[microbatch];
    const ExecSlice s = exec_stage_slice(run, microbatch, slice);
    const SliceLayout layout = layout_of(run, exec_slice_rows(&s));

    g_assert(state->activations.data == NULL);
    if (!exec_pool_take(run->o.pool, TRACE_MEMORY_ACTIVATIONS, layout.total, &state->activations,
                        error))
        return false;
    if (whole->kv.data == NULL &&
        !exec_pool_take(run->o.pool, TRACE_MEMORY_KV,
                        run->o.stage->n_layers * kv_bytes(run->o.widths, s.sequences), &whole->kv,
                        error))
        return false;
    *x = state->activations.data;
    return true;
}

const void *
exec_stage_forward(ExecStageRun *run, int32_t microbatch, int32_t slice, const int32_t *tokens,
                   const int32_t *targets, double *loss)
{
    const ExecStage *stage = run->o.stage;
    const ExecSlice s = exec_stage_slice(run, microbatch, slice);
    const SliceLayout layout = layout_of(run, exec_slice_rows(&s));
    const ExecLayerScratch scratch = scratch_at(run, &s);
    const ExecLayer common = layer_at(run, microbatch, slice, stage->n_layers, &scratch);
    char *block = slice_state(run, microbatch, slice)->activations.data;
    void *x = block;

    if (stage->embedding)
        exec_embedding_forward(&common, &stage->ends, tokens, x);
    for (int64_t l = 0; l < stage->n_layers; l++) {
        const ExecLayer layer = layer_at(run, microbatch, slice, l, &scratch);
        const bool last = l + 1 == stage->n_layers;
        x = last && !layout.keeps_output ? run->o.scratch->edge
                                         : layer_input(&layout, block, l + 1);
        exec_layer_forward(&layer, x);
        exec_comm_poll(run->o.comm);
    }
    if (stage->head) {
        const ExecHeadActivations head = head_at(run, microbatch, slice);
        exec_head_forward(&common, &stage->ends, &head, targets, run->o.loss_factor,
                          run->o.scratch->stats, loss);
    }
    return x;
}

/* --- backward --- */

void *
exec_stage_gradient(ExecStageRun *run)
{
    return run->o.scratch->d;
}

/* Gives back what this slice, and with the last one the micro-batch, held. */
static void
finish(ExecStageRun *run, int32_t microbatch, int32_t slice)
{
    SliceState *state = slice_state(run, microbatch, slice);
    MicrobatchState *whole = &run->microbatches[microbatch];

    exec_pool_give(run->o.pool, &state->activations);
    exec_pool_give(run->o.pool, &state->kept);
    clear_moe(run, state);
    if (++whole->n_done < run->o.n_slices)
        return;
    whole->n_done = 0;
    exec_pool_give(run->o.pool, &whole->kv);
    exec_pool_give(run->o.pool, &whole->d_kv);
}

/* The accumulator of K's and V's gradients begins at zero with the micro-batch's first backward. */
static bool
begin_backward(ExecStageRun *run, int32_t microbatch, int32_t slice, GError **error)
{
    const ExecStage *stage = run->o.stage;
    ExecBackend *backend = run->o.comm->backend;
    const ExecSlice s = exec_stage_slice(run, microbatch, slice);
    SliceState *state = slice_state(run, microbatch, slice);
    MicrobatchState *whole = &run->microbatches[microbatch];
    const int64_t rows = exec_slice_rows(&s);
    const int64_t kv = stage->n_layers * kv_bytes(run->o.widths, s.sequences);
    const int64_t kept = kept_bytes(run, rows, stage->n_layers) +
                         (stage->embedding ? boundary_bytes(run->o.widths, rows) : 0);

    if ((run->o.n_slices > 1 || run->o.splits_backward) && whole->d_kv.data == NULL) {
        if (!exec_pool_take(run->o.pool, TRACE_MEMORY_KV, kv, &whole->d_kv, error))
            return false;
        backend->ops->zero(backend, (size_t)kv, whole->d_kv.data);
    }
    return !run->o.splits_backward ||
           exec_pool_take(run->o.pool, TRACE_MEMORY_ACTIVATIONS, kept, &state->kept, error);
}

static void
backward_layers(ExecStageRun *run, int32_t microbatch, int32_t slice,
                const ExecLayerScratch *scratch, void *d)
{
    ExecBackend *backend = run->o.comm->backend;

    for (int64_t l = run->o.stage->n_layers - 1; l >= 0; l--) {
        const ExecLayer layer = layer_at(run, microbatch, slice, l, scratch);
        if (layer.d_kv == run->o.scratch->d_kv)
            backend->ops->zero(backend, (size_t)kv_bytes(run->o.widths, layer.slice.sequences),
                               layer.d_kv);
        if (run->o.splits_backward) {
            const ExecLayerKept kept = kept_at(run, microbatch, slice, l);
            exec_layer_backward(&layer, &kept, d);
        } else {
            exec_layer_backward(&layer, NULL, d);
        }
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
    const ExecLayerScratch scratch = scratch_at(run, &s);
    const ExecLayer common = layer_at(run, microbatch, slice, stage->n_layers, &scratch);
    void *d = run->o.scratch->d;

    g_assert(slice_state(run, microbatch, slice)->activations.data != NULL);
    if (!begin_backward(run, microbatch, slice, error))
        return false;
    if (stage->head) {
        const ExecHeadActivations head = head_at(run, microbatch, slice);
        exec_head_backward(&common, &stage->ends, &head, d);
        if (!run->o.splits_backward)
            exec_head_weight(&common, &stage->ends, &head);
    }
    backward_layers(run, microbatch, slice, &scratch, d);
    if (run->o.splits_backward && stage->embedding)
        backend->ops->copy(backend, (size_t)exec_stage_boundary_bytes(run, microbatch, slice), d,
                           kept_data(run, microbatch, slice, stage->n_layers));
    if (!run->o.splits_backward) {
        if (stage->embedding)
            exec_embedding_weight(&common, &stage->ends, tokens, d);
        finish(run, microbatch, slice);
    }
    *dx = d;
    return true;
}

void
exec_stage_backward_weight(ExecStageRun *run, int32_t microbatch, int32_t slice,
                           const int32_t *tokens)
{
    const ExecStage *stage = run->o.stage;
    const ExecSlice s = exec_stage_slice(run, microbatch, slice);
    const ExecLayerScratch scratch = scratch_at(run, &s);
    const ExecLayer common = layer_at(run, microbatch, slice, stage->n_layers, &scratch);

    if (stage->head) {
        const ExecHeadActivations head = head_at(run, microbatch, slice);
        exec_head_weight(&common, &stage->ends, &head);
    }
    for (int64_t l = stage->n_layers - 1; l >= 0; l--) {
        const ExecLayer layer = layer_at(run, microbatch, slice, l, &scratch);
        const ExecLayerKept kept = kept_at(run, microbatch, slice, l);
        exec_layer_backward_weight(&layer, &kept);
        exec_comm_poll(run->o.comm);
    }
    if (stage->embedding)
        exec_embedding_weight(&common, &stage->ends, tokens,
                              kept_data(run, microbatch, slice, stage->n_layers));
    finish(run, microbatch, slice);
}
