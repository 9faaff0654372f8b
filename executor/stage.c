#include "executor/stage.h"

/* Of one (micro-batch, slice) in flight. */
typedef struct {
    ExecBlock activations;
    ExecBlock kept; /* from I to W */
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
padded(int64_t n)
{
    return (n + 15) / 16 * 16;
}

/* Of one layer of a micro-batch, K and V of the whole sequence. */
static int64_t
kv_floats(const ExecStageRun *run, int32_t microbatch)
{
    const ExecWidths *w = run->o.widths;

    return padded(w->seq_len * run->o.sequences[microbatch] * 2 * w->kv_width);
}

bool
exec_stage_scratch_init(ExecStageScratch *scratch, const ExecWidths *widths, int64_t sequences,
                        int64_t tokens, ExecBackend *backend, ExecPool *pool, GError **error)
{
    const int64_t rows = sequences * tokens;
    const int64_t boundary = padded(rows * widths->hidden);
    const int64_t kv = padded(widths->seq_len * sequences * 2 * widths->kv_width);
    const int64_t layer = exec_layer_scratch_floats(widths, rows);
    const int64_t n = 2 * boundary + kv + layer + padded(widths->seq_len);
    g_autofree int32_t *positions = g_new(int32_t, (size_t)widths->seq_len);

    if (!exec_pool_take(pool, TRACE_MEMORY_WORKSPACE, n, &scratch->block, error))
        return false;
    scratch->d = scratch->block.data;
    scratch->edge = scratch->d + boundary;
    scratch->d_kv = scratch->edge + boundary;
    scratch->layer = scratch->d_kv + kv;
    scratch->positions = (int32_t *)(void *)(scratch->layer + layer);
    for (int64_t i = 0; i < widths->seq_len; i++)
        positions[i] = (int32_t)i;
    backend->ops->upload(backend, (size_t)widths->seq_len * sizeof *positions, positions,
                         scratch->positions);
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
    run->context = g_new0(int64_t, n_slices);
    for (size_t i = 1; i < n_slices; i++)
        run->context[i] = run->context[i - 1] + options->slices[i - 1];
    return run;
}

void
exec_stage_run_free(ExecStageRun *run)
{
    if (run == NULL)
        return;
    for (int32_t i = 0; i < run->o.n_microbatches * run->o.n_slices; i++) {
        exec_pool_give(run->o.pool, &run->slices[i].activations);
        exec_pool_give(run->o.pool, &run->slices[i].kept);
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
    return (ExecSlice){
        .sequences = run->o.sequences[microbatch],
        .tokens = run->o.slices[slice],
        .context = run->context[slice],
    };
}

int64_t
exec_stage_boundary_floats(const ExecStageRun *run, int32_t microbatch, int32_t slice)
{
    return run->o.sequences[microbatch] * run->o.slices[slice] * run->o.widths->hidden;
}

static inline SliceState *
slice_state(ExecStageRun *run, int32_t microbatch, int32_t slice)
{
    return &run->slices[microbatch * run->o.n_slices + slice];
}

/* --- views --- */

/* What the head keeps. */
typedef struct {
    float *x; /* the last layer's output */
    float *norm, *mean, *rstd;
    float *logits; /* after F: their gradient */
} HeadActivations;

/*
 * A slice's block: input; per layer its activations and its output (the next one's input; the last
 * output goes to the edge unless a head follows); the head's.
 */
typedef struct {
    int64_t boundary, layer, stride, total; /* floats */
    bool keeps_output;
} SliceLayout;

static SliceLayout
layout_of(const ExecStageRun *run, int64_t rows)
{
    const ExecWidths *w = run->o.widths;
    const ExecStage *stage = run->o.stage;
    SliceLayout layout = {
        .boundary = padded(rows * w->hidden),
        .layer = exec_layer_activation_floats(w, rows),
        .keeps_output = stage->head,
    };

    layout.stride = layout.layer + layout.boundary;
    layout.total = layout.boundary + stage->n_layers * layout.stride;
    if (!layout.keeps_output && stage->n_layers > 0)
        layout.total -= layout.boundary;
    if (stage->head)
        layout.total += layout.boundary + 2 * padded(rows) + padded(rows * w->vocab);
    return layout;
}

static float *
layer_input(const SliceLayout *layout, float *block, int64_t layer)
{
    return layer == 0 ? block : block + layer * layout->stride;
}

static ExecLayer
layer_at(ExecStageRun *run, int32_t microbatch, int32_t slice, int64_t layer)
{
    const ExecSlice s = exec_stage_slice(run, microbatch, slice);
    const SliceLayout layout = layout_of(run, exec_slice_rows(&s));
    const MicrobatchState *state = &run->microbatches[microbatch];
    float *block = slice_state(run, microbatch, slice)->activations.data;
    const int64_t kv = kv_floats(run, microbatch);

    return (ExecLayer){
        .widths = run->o.widths,
        .weights = &run->o.stage->weights.layers[layer],
        .gradients = &run->o.stage->gradients.layers[layer],
        .x = layer_input(&layout, block, layer),
        .activations = exec_layer_activations(run->o.widths, exec_slice_rows(&s),
                                              block + layout.boundary + layer * layout.stride),
        .kv = state->kv.data + layer * kv,
        .d_kv = state->d_kv.data != NULL ? state->d_kv.data + layer * kv : run->o.scratch->d_kv,
    };
}

static HeadActivations
head_at(ExecStageRun *run, int32_t microbatch, int32_t slice)
{
    const ExecSlice s = exec_stage_slice(run, microbatch, slice);
    const int64_t rows = exec_slice_rows(&s);
    const SliceLayout layout = layout_of(run, rows);
    float *block = slice_state(run, microbatch, slice)->activations.data;
    HeadActivations head = {.x = layer_input(&layout, block, run->o.stage->n_layers)};

    head.norm = head.x + layout.boundary;
    head.mean = head.norm + layout.boundary;
    head.rstd = head.mean + padded(rows);
    head.logits = head.rstd + padded(rows);
    return head;
}

/* What I keeps for W: a block of all layers, then the embedding's gradient. */
static ExecLayerKept
kept_at(ExecStageRun *run, int32_t microbatch, int32_t slice, int64_t layer)
{
    const ExecSlice s = exec_stage_slice(run, microbatch, slice);
    const int64_t rows = exec_slice_rows(&s);

    return exec_layer_kept(run->o.widths, rows,
                           slice_state(run, microbatch, slice)->kept.data +
                               layer * exec_layer_kept_floats(run->o.widths, rows));
}

/* --- forward --- */

bool
exec_stage_begin_forward(ExecStageRun *run, int32_t microbatch, int32_t slice, float **x,
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
                        run->o.stage->n_layers * kv_floats(run, microbatch), &whole->kv, error))
        return false;
    *x = state->activations.data;
    return true;
}

static ExecNorm
norm_of(const ExecStageRun *run, int64_t rows, const HeadActivations *head)
{
    return (ExecNorm){
        .rows = rows,
        .cols = run->o.widths->hidden,
        .x = head->x,
        .gain = run->o.stage->weights.norm_gain,
        .shift = run->o.stage->weights.norm_shift,
        .mean = head->mean,
        .rstd = head->rstd,
    };
}

static ExecEmbedding
embedding_of(const ExecStageRun *run, const ExecSlice *s, const int32_t *tokens)
{
    return (ExecEmbedding){
        .rows = exec_slice_rows(s),
        .sequences = s->sequences,
        .cols = run->o.widths->hidden,
        .n_tokens = run->o.widths->vocab,
        .token = tokens,
        .position = run->o.scratch->positions + s->context,
    };
}

/* Logits against the table [vocab, hidden], then the loss and the logits' gradient in their place.
 */
static void
head_forward(ExecStageRun *run, int64_t rows, const HeadActivations *head, const int32_t *targets,
             double *loss)
{
    const ExecBackendOps *ops = run->o.backend->ops;
    const ExecWidths *w = run->o.widths;
    const ExecStageTensors *t = &run->o.stage->weights;
    const ExecNorm norm = norm_of(run, rows, head);

    ops->norm_forward(run->o.backend, &norm, head->norm);
    ops->gemm(run->o.backend, &(ExecGemm){
                                  .trans_b = true,
                                  .m = rows,
                                  .n = w->vocab,
                                  .k = w->hidden,
                                  .a = head->norm,
                                  .lda = w->hidden,
                                  .b = t->head_table,
                                  .ldb = w->hidden,
                                  .c = head->logits,
                                  .ldc = w->vocab,
                              });
    ops->cross_entropy(run->o.backend, &(ExecCrossEntropy){
                                           .rows = rows,
                                           .vocab = w->vocab,
                                           .target = targets,
                                           .factor = run->o.loss_factor,
                                           .logits = head->logits,
                                           .loss = loss,
                                       });
}

const float *
exec_stage_forward(ExecStageRun *run, int32_t microbatch, int32_t slice, const int32_t *tokens,
                   const int32_t *targets, double *loss)
{
    const ExecStage *stage = run->o.stage;
    const ExecSlice s = exec_stage_slice(run, microbatch, slice);
    const int64_t rows = exec_slice_rows(&s);
    const SliceLayout layout = layout_of(run, rows);
    float *block = slice_state(run, microbatch, slice)->activations.data;
    float *x = block;

    if (stage->embedding) {
        const ExecEmbedding embedding = embedding_of(run, &s, tokens);
        run->o.backend->ops->embedding_forward(run->o.backend, &embedding,
                                               stage->weights.token_table,
                                               stage->weights.position_table, x);
    }
    for (int64_t l = 0; l < stage->n_layers; l++) {
        const ExecLayer layer = layer_at(run, microbatch, slice, l);
        const bool last = l + 1 == stage->n_layers;
        x = last && !layout.keeps_output ? run->o.scratch->edge
                                         : layer_input(&layout, block, l + 1);
        exec_layer_forward(run->o.backend, &layer, &s, x);
    }
    if (stage->head) {
        const HeadActivations head = head_at(run, microbatch, slice);
        head_forward(run, rows, &head, targets, loss);
    }
    return x;
}

/* --- backward --- */

float *
exec_stage_gradient(ExecStageRun *run)
{
    return run->o.scratch->d;
}

/* d = gradient of the last layer's output. */
static void
head_backward(ExecStageRun *run, int64_t rows, const HeadActivations *head, float *d)
{
    const ExecBackendOps *ops = run->o.backend->ops;
    const ExecWidths *w = run->o.widths;
    const ExecStageTensors *t = &run->o.stage->weights, *g = &run->o.stage->gradients;
    const ExecLayerScratch scratch = exec_layer_scratch(w, rows, run->o.scratch->layer);
    const ExecNorm norm = norm_of(run, rows, head);

    ops->gemm(run->o.backend, &(ExecGemm){
                                  .m = rows,
                                  .n = w->hidden,
                                  .k = w->vocab,
                                  .a = head->logits,
                                  .lda = w->vocab,
                                  .b = t->head_table,
                                  .ldb = w->hidden,
                                  .c = scratch.d_norm,
                                  .ldc = w->hidden,
                              });
    ops->zero(run->o.backend, (size_t)exec_storage_bytes(run->o.backend, rows * w->hidden), d);
    ops->norm_backward(run->o.backend, &norm, scratch.d_norm, d, g->norm_gain, g->norm_shift);
}

static void
head_weight(ExecStageRun *run, int64_t rows, const HeadActivations *head)
{
    const ExecWidths *w = run->o.widths;

    run->o.backend->ops->gemm(run->o.backend, &(ExecGemm){
                                                  .trans_a = true,
                                                  .accumulate = true,
                                                  .m = w->vocab,
                                                  .n = w->hidden,
                                                  .k = rows,
                                                  .a = head->logits,
                                                  .lda = w->vocab,
                                                  .b = head->norm,
                                                  .ldb = w->hidden,
                                                  .c = run->o.stage->gradients.head_table,
                                                  .ldc = w->hidden,
                                              });
}

static void
embedding_weight(ExecStageRun *run, const ExecSlice *s, const int32_t *tokens, const float *d)
{
    const ExecStage *stage = run->o.stage;
    const ExecEmbedding embedding = embedding_of(run, s, tokens);

    run->o.backend->ops->embedding_backward(run->o.backend, &embedding, d,
                                            stage->gradients.token_table,
                                            stage->gradients.position_table);
}

/* Gives back what this slice, and with the last one the micro-batch, held. */
static void
finish(ExecStageRun *run, int32_t microbatch, int32_t slice)
{
    SliceState *state = slice_state(run, microbatch, slice);
    MicrobatchState *whole = &run->microbatches[microbatch];

    exec_pool_give(run->o.pool, &state->activations);
    exec_pool_give(run->o.pool, &state->kept);
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
    const ExecSlice s = exec_stage_slice(run, microbatch, slice);
    SliceState *state = slice_state(run, microbatch, slice);
    MicrobatchState *whole = &run->microbatches[microbatch];
    const int64_t kv = stage->n_layers * kv_floats(run, microbatch);
    const int64_t kept =
        stage->n_layers * exec_layer_kept_floats(run->o.widths, exec_slice_rows(&s)) +
        (stage->embedding ? exec_slice_rows(&s) * run->o.widths->hidden : 0);

    if ((run->o.n_slices > 1 || run->o.splits_backward) && whole->d_kv.data == NULL) {
        if (!exec_pool_take(run->o.pool, TRACE_MEMORY_KV, kv, &whole->d_kv, error))
            return false;
        run->o.backend->ops->zero(run->o.backend, (size_t)exec_storage_bytes(run->o.backend, kv),
                                  whole->d_kv.data);
    }
    return !run->o.splits_backward ||
           exec_pool_take(run->o.pool, TRACE_MEMORY_ACTIVATIONS, kept, &state->kept, error);
}

static void
backward_layers(ExecStageRun *run, int32_t microbatch, int32_t slice, float *d)
{
    const ExecSlice s = exec_stage_slice(run, microbatch, slice);
    const ExecLayerScratch scratch =
        exec_layer_scratch(run->o.widths, exec_slice_rows(&s), run->o.scratch->layer);

    for (int64_t l = run->o.stage->n_layers - 1; l >= 0; l--) {
        const ExecLayer layer = layer_at(run, microbatch, slice, l);
        if (layer.d_kv == run->o.scratch->d_kv)
            run->o.backend->ops->zero(
                run->o.backend,
                (size_t)exec_storage_bytes(run->o.backend, kv_floats(run, microbatch)), layer.d_kv);
        if (run->o.splits_backward) {
            const ExecLayerKept kept = kept_at(run, microbatch, slice, l);
            exec_layer_backward(run->o.backend, &layer, &s, &scratch, &kept, d);
        } else {
            exec_layer_backward(run->o.backend, &layer, &s, &scratch, NULL, d);
        }
    }
}

bool
exec_stage_backward(ExecStageRun *run, int32_t microbatch, int32_t slice, const int32_t *tokens,
                    const float **dx, GError **error)
{
    const ExecStage *stage = run->o.stage;
    const ExecSlice s = exec_stage_slice(run, microbatch, slice);
    const int64_t rows = exec_slice_rows(&s);
    float *d = run->o.scratch->d;

    g_assert(slice_state(run, microbatch, slice)->activations.data != NULL);
    if (!begin_backward(run, microbatch, slice, error))
        return false;
    if (stage->head) {
        const HeadActivations head = head_at(run, microbatch, slice);
        head_backward(run, rows, &head, d);
        if (!run->o.splits_backward)
            head_weight(run, rows, &head);
    }
    backward_layers(run, microbatch, slice, d);
    if (run->o.splits_backward && stage->embedding)
        run->o.backend->ops->copy(
            run->o.backend,
            (size_t)exec_storage_bytes(run->o.backend, rows * run->o.widths->hidden), d,
            kept_at(run, microbatch, slice, stage->n_layers).d_q);
    if (!run->o.splits_backward) {
        if (stage->embedding)
            embedding_weight(run, &s, tokens, d);
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

    if (stage->head) {
        const HeadActivations head = head_at(run, microbatch, slice);
        head_weight(run, exec_slice_rows(&s), &head);
    }
    for (int64_t l = stage->n_layers - 1; l >= 0; l--) {
        const ExecLayer layer = layer_at(run, microbatch, slice, l);
        const ExecLayerKept kept = kept_at(run, microbatch, slice, l);
        exec_layer_backward_weight(run->o.backend, &layer, &s, &kept);
    }
    if (stage->embedding)
        embedding_weight(run, &s, tokens, kept_at(run, microbatch, slice, stage->n_layers).d_q);
    finish(run, microbatch, slice);
}
