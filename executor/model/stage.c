#include "executor/model/stage.h"

#include <math.h>

#include "executor/model/attention.h"
#include "executor/model/ends.h"

/* What a layer, or the head, keeps: stage.h. */
typedef struct {
    ExecBlock inputs;    /* until B or I */
    ExecBlock products;  /* until B or W */
    ExecBlock gradients; /* from I to W */
} PartBlocks;

/* A (micro-batch, slice) in flight. */
typedef struct {
    PartBlocks *parts; /* (owned) [n_layers + 1]: the head's comes last */
    ExecMoe *moe;      /* (owned) [n_layers]: of layers with experts */
    ExecBlock embedding; /* until B or I */
} SliceState;

/* A micro-batch in flight that is sliced. */
typedef struct {
    ExecBlock memory, d_memory; /* of all layers' mixers (mixer.h) */
    int32_t n_backward;         /* slices whose B or I has ended */
} MicroBatchState;

struct ExecStageRun {
    ExecStageOptions o;
    int64_t *context;               /* (owned) tokens before each slice */
    MicroBatchState *micro_batches; /* (owned) */
    SliceState *slices;             /* (owned) [micro_batch][slice] */
    /* During an op: the scratch of the layer at work; with recompute full its activations and the
     * inputs of its products. */
    ExecBlock layer, again;
};

/* An op that is being computed. */
typedef struct {
    ExecStageRun *run;
    const ExecWidths *widths; /* of the ends */
    const ExecStage *stage;
    ScheduleOpKind kind;
    ExecSlice slice;
    int64_t rows;
    MicroBatchState *micro_batch;
    SliceState *state;
    ExecLayerScratch end_scratch; /* of embedding and head */
} Op;

/* --- sizes --- */

static int64_t
boundary_of(const ExecWidths *w, int64_t rows)
{
    return exec_local_rows(w, rows) * w->hidden * dtype_bytes(w->storage);
}

static int64_t
boundary_bytes(const Op *op)
{
    return exec_padded_bytes(boundary_of(op->widths, op->rows));
}

static bool
recomputes_all(const Op *op)
{
    return op->stage->recompute == PLAN_RECOMPUTE_FULL;
}

static bool
is_moe(const Op *op, int64_t layer)
{
    return op->stage->widths[layer]->n_experts > 0;
}

/* Layer @l as its code sees it; n_layers: embedding and head. */
static ExecLayerShape
shape_of(const Op *op, int64_t l)
{
    return (ExecLayerShape){
        .widths = l == op->stage->n_layers ? op->widths : op->stage->widths[l],
        .slice = op->slice,
        .op = op->kind,
        .recompute = op->stage->recompute,
        .again = op->stage->again,
    };
}

/* Bytes of one layer's memory, or of its gradient, in the micro-batch's block. */
static int64_t
memory_bytes(const Op *op, int64_t l, bool gradient)
{
    const ExecLayerShape shape = shape_of(op, l);

    if (!shape.widths->has_mixer)
        return 0;
    return exec_padded_bytes(exec_mixer(shape.widths)->memory_bytes(&shape, gradient));
}

/* The same of the layers before layer @end. */
static int64_t
memory_before(const Op *op, int64_t end, bool gradient)
{
    int64_t n_bytes = 0;

    for (int64_t l = 0; l < end; l++)
        n_bytes += memory_bytes(op, l, gradient);
    return n_bytes;
}

/* Bytes of a layer's activations: of those that only input gradients read, or of those that weight
 * gradients read (@of_products). */
static int64_t
activation_bytes(const Op *op, int64_t l, bool of_products)
{
    const ExecLayerShape shape = shape_of(op, l);
    ExecCutter inputs = {.storage = op->widths->storage}, products = inputs;

    exec_layer_activations(&shape, &inputs, &products);
    return of_products ? products.n_bytes : inputs.n_bytes;
}

static int64_t
kept_bytes(const Op *op, int64_t l)
{
    const ExecLayerShape shape = shape_of(op, l);
    ExecCutter cutter = {.storage = op->widths->storage};

    exec_layer_kept(&shape, &cutter);
    return cutter.n_bytes;
}

/* Bytes of the blocks of layer @layer, or of the head (n_layers). */
static int64_t
input_bytes(const Op *op, int64_t layer)
{
    const int64_t boundary = boundary_bytes(op);

    /* A stage without layers has its input here. */
    if (layer == op->stage->n_layers)
        return op->stage->head || layer == 0 ? boundary : 0;
    if (recomputes_all(op))
        return boundary;
    return boundary + activation_bytes(op, layer, false);
}

static int64_t
product_bytes(const Op *op, int64_t layer)
{
    if (layer == op->stage->n_layers)
        return op->stage->head ? exec_head_bytes(op->widths, op->rows) : 0;
    return activation_bytes(op, layer, true);
}

/* The most that any layer of the stage needs; the ends have none of that. */
static int64_t
most(const Op *op, int64_t (*bytes)(const Op *op, int64_t layer))
{
    int64_t n_bytes = 0;

    for (int64_t l = 0; l < op->stage->n_layers; l++)
        if (l == 0 || op->stage->widths[l] != op->stage->widths[l - 1])
            n_bytes = MAX(n_bytes, bytes(op, l));
    return n_bytes;
}

/* Bytes of a layer's activations in `again`. */
static int64_t
again_activations(const Op *op, int64_t l)
{
    const ExecLayerShape shape = shape_of(op, l);
    ExecCutter cutter = {.storage = op->widths->storage};

    if (op->kind != SCHEDULE_OP_FORWARD)
        return activation_bytes(op, l, false);
    exec_layer_passing(&shape, &cutter);
    return cutter.n_bytes;
}

/* Bytes of the inputs of a layer's products in `again`, behind the activations: F does not keep them
 * apart, and the layers of an I have blocks of their own for them. */
static int64_t
again_products(const Op *op, int64_t l)
{
    return op->kind == SCHEDULE_OP_BACKWARD ? activation_bytes(op, l, true) : 0;
}

static int64_t
again_bytes(const Op *op)
{
    if (!recomputes_all(op) || op->kind == SCHEDULE_OP_BACKWARD_WEIGHT)
        return 0;
    return most(op, again_activations) + most(op, again_products);
}

/* --- where everything lies --- */

/* An address in a block; NULL where the block was given back, as the inputs are before W. */
static void *
at(const ExecBlock *block, int64_t offset)
{
    return block->data == NULL ? NULL : (char *)block->data + offset;
}

static ExecLayerActivations
activations_at(const Op *op, const PartBlocks *part, int64_t l)
{
    const ExecStageRun *run = op->run;
    const ExecLayerShape shape = shape_of(op, l);
    const Dtype storage = op->widths->storage;
    const bool again = recomputes_all(op);
    ExecCutter inputs = {.block = run->again.data, .storage = storage}, products = inputs;

    if (again && op->kind == SCHEDULE_OP_FORWARD)
        return exec_layer_passing(&shape, &inputs);
    if (!again)
        inputs.block = at(&part->inputs, boundary_bytes(op));
    products.block = part->products.data != NULL ? part->products.data
                                                 : at(&run->again, most(op, again_activations));
    return exec_layer_activations(&shape, &inputs, &products);
}

/* Layer @l of the op.  For n_layers only what all layers have in common is set. */
static ExecLayer
layer_at(const Op *op, int64_t l)
{
    const ExecStageRun *run = op->run;
    const PartBlocks *part = &op->state->parts[l];
    const MicroBatchState *whole = op->micro_batch;
    const ExecLayerShape shape = shape_of(op, l);
    ExecLayer layer = {
        .backend = run->o.comm->backend,
        .comm = run->o.comm,
        .pool = run->o.pool,
        .widths = shape.widths,
        .scratch = &op->end_scratch,
        .positions = run->o.scratch->positions + op->slice.own_context,
        .slice = op->slice,
        .op = shape.op,
        .recompute = shape.recompute,
        .again = shape.again,
        .x = part->inputs.data,
    };

    if (l >= op->stage->n_layers)
        return layer;
    layer.scratch = NULL;
    layer.turns = run->o.scratch->turns[shape.widths->kind];
    layer.tensors = &op->stage->layers[l];
    layer.number = op->stage->first_layer + l;
    if (is_moe(op, l))
        layer.moe = &op->state->moe[l];
    layer.a = activations_at(op, part, l);
    if (memory_bytes(op, l, false) > 0)
        layer.memory = at(&whole->memory, memory_before(op, l, false));
    if (memory_bytes(op, l, true) > 0)
        layer.d_memory = at(&whole->d_memory, memory_before(op, l, true));
    return layer;
}

/* The scratch of layer @l, which the block of the op is large enough for. */
static ExecLayerScratch
scratch_at(const Op *op, int64_t l)
{
    const ExecLayerShape shape = shape_of(op, l);
    ExecCutter cutter = {.block = op->run->layer.data, .storage = op->widths->storage};

    return exec_layer_scratch(&shape, &cutter);
}

static int64_t
embedding_bytes(const Op *op)
{
    ExecCutter cutter = {.storage = op->widths->storage};

    if (op->stage->embedding)
        exec_embedding_activations(op->widths, op->rows, &cutter);
    return cutter.n_bytes;
}

static ExecEmbeddingActivations
embedding_at(const Op *op)
{
    ExecCutter cutter = {.block = op->state->embedding.data, .storage = op->widths->storage};

    return exec_embedding_activations(op->widths, op->rows, &cutter);
}

static ExecHeadActivations
head_at(const Op *op)
{
    const PartBlocks *part = &op->state->parts[op->stage->n_layers];
    ExecCutter cutter = {.block = part->products.data, .storage = op->widths->storage};

    return exec_head_activations(op->widths, op->rows, part->inputs.data, &cutter);
}

/* Where layer @l's output goes. */
static void *
output_at(const Op *op, int64_t l)
{
    return l + 1 == op->stage->n_layers && !op->stage->head ? op->run->o.scratch->d
                                                            : op->state->parts[l + 1].inputs.data;
}

/* What I keeps of layer @l for W. */
static ExecLayerKept
kept_at(const Op *op, int64_t l)
{
    const ExecLayerShape shape = shape_of(op, l);
    ExecCutter cutter = {.block = op->state->parts[l].gradients.data,
                         .storage = op->widths->storage};

    return exec_layer_kept(&shape, &cutter);
}

/* --- blocks --- */

/* Gives back what only B or I reads of layer @layer, or of the head. */
static void
give_inputs(const ExecStageRun *run, SliceState *state, int64_t layer)
{
    exec_pool_give(run->o.pool, &state->parts[layer].inputs);
    if (layer < run->o.stage->n_layers)
        exec_moe_clear_inputs(&state->moe[layer], run->o.pool);
}

/* Gives back what W reads. */
static void
give_products(const ExecStageRun *run, SliceState *state, int64_t layer)
{
    exec_pool_give(run->o.pool, &state->parts[layer].products);
    exec_pool_give(run->o.pool, &state->parts[layer].gradients);
    if (layer < run->o.stage->n_layers)
        exec_moe_clear(&state->moe[layer], run->o.pool);
}

/* Takes a block of @n_bytes; none if that is 0. */
static bool
take(ExecStageRun *run, TraceMemoryOwner owner, int64_t n_bytes, ExecBlock *block, GError **error)
{
    return n_bytes == 0 || exec_pool_take(run->o.pool, owner, n_bytes, block, error);
}

/* Sets op->end_scratch.  Returns: the bytes of the op's scratch, which is large enough for layers of
 * every kind. */
static int64_t
set_scratch(Op *op)
{
    const ExecModel *model = op->run->o.model;
    ExecLayerShape shape = shape_of(op, op->stage->n_layers);
    ExecCutter cutter = {.block = op->run->layer.data, .storage = op->widths->storage};

    op->end_scratch = exec_end_scratch(&shape, &cutter);
    int64_t n_bytes = cutter.n_bytes;
    for (int32_t i = 0; i < model->n_kinds; i++) {
        ExecCutter layer = {.storage = op->widths->storage};
        shape.widths = &model->kinds[i];
        exec_layer_scratch(&shape, &layer);
        n_bytes = MAX(n_bytes, layer.n_bytes);
    }
    return n_bytes;
}

/* The op of @kind on a slice.  Its scratch is there once the op has begun. */
static Op
op_at(ExecStageRun *run, int32_t micro_batch, int32_t slice, ScheduleOpKind kind)
{
    Op op = {
        .run = run,
        .widths = &run->o.model->widths,
        .stage = run->o.stage,
        .kind = kind,
        .slice = exec_stage_slice(run, micro_batch, slice),
        .micro_batch = &run->micro_batches[micro_batch],
        .state = &run->slices[micro_batch * run->o.n_slices + slice],
    };

    op.rows = exec_slice_rows(&op.slice);
    set_scratch(&op);
    return op;
}

/* Takes what lives only during the op; end_op() gives it back. */
static bool
begin_op(Op *op, GError **error)
{
    ExecStageRun *run = op->run;

    if (!take(run, TRACE_MEMORY_WORKSPACE, set_scratch(op), &run->layer, error) ||
        !take(run, TRACE_MEMORY_WORKSPACE, again_bytes(op), &run->again, error))
        return false;
    set_scratch(op);
    return true;
}

static void
end_op(ExecStageRun *run)
{
    exec_pool_give(run->o.pool, &run->again);
    exec_pool_give(run->o.pool, &run->layer);
}

/* --- lifecycle --- */

ExecStageRun *
exec_stage_run_new(const ExecStageOptions *options)
{
    ExecStageRun *run = g_new0(ExecStageRun, 1);
    const size_t n_slices = (size_t)options->n_slices;

    run->o = *options;
    run->micro_batches = g_new0(MicroBatchState, (size_t)options->n_micro_batches);
    run->slices = g_new0(SliceState, (size_t)options->n_micro_batches * n_slices);
    for (size_t i = 0; i < (size_t)options->n_micro_batches * n_slices; i++) {
        run->slices[i].parts = g_new0(PartBlocks, (size_t)options->stage->n_layers + 1);
        run->slices[i].moe = g_new0(ExecMoe, (size_t)options->stage->n_layers);
    }
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
    for (int32_t i = 0; i < run->o.n_micro_batches * run->o.n_slices; i++) {
        for (int64_t l = 0; l <= run->o.stage->n_layers; l++) {
            give_inputs(run, &run->slices[i], l);
            give_products(run, &run->slices[i], l);
        }
        exec_pool_give(run->o.pool, &run->slices[i].embedding);
        g_free(run->slices[i].parts);
        g_free(run->slices[i].moe);
    }
    for (int32_t i = 0; i < run->o.n_micro_batches; i++) {
        exec_pool_give(run->o.pool, &run->micro_batches[i].memory);
        exec_pool_give(run->o.pool, &run->micro_batches[i].d_memory);
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
    const int64_t cp = run->o.model->widths.cp;

    return (ExecSlice){
        .sequences = run->o.sequences[micro_batch],
        .tokens = run->o.slices[slice],
        .context = run->context[slice],
        .own_tokens = run->o.slices[slice] / cp,
        .own_context = run->context[slice] / cp,
        .lengths = run->o.slices,
        .index = slice,
        .n = run->o.n_slices,
    };
}

int64_t
exec_stage_boundary_bytes(const ExecStageRun *run, int32_t micro_batch, int32_t slice)
{
    const ExecSlice s = exec_stage_slice(run, micro_batch, slice);

    return boundary_of(&run->o.model->widths, exec_slice_rows(&s));
}

/* --- opening units --- */

/* Stands for the embedding where a layer's number is expected; n_layers is the head. */
enum {
    EMBEDDING = -1
};

/* The units of layer @part, of the embedding, or of the head. */
static ExecOpening
units_of(const ExecStage *stage, int64_t part)
{
    if (part == EMBEDDING)
        return (ExecOpening){{stage->ends.token_unit, stage->ends.position_unit}};
    if (part == stage->n_layers)
        return (ExecOpening){{stage->ends.head_unit, stage->ends.bias_unit}};
    return (ExecOpening){{stage->layers[part].dense_unit, stage->layers[part].experts_unit}};
}

static bool
open_part(const Op *op, int64_t part, unsigned what, ExecOpenUnits *open)
{
    const ExecStageOptions *o = &op->run->o;
    const ExecOpening opening = units_of(op->stage, part);

    return exec_units_open(open, o->units, o->comm, what, opening.units[0], opening.units[1]);
}

static void
add_opening(const ExecModel *model, const ExecStage *stage, int64_t part, GArray *openings)
{
    const ExecOpening opening = units_of(stage, part);
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
        add_opening(model, stage, EMBEDDING, openings);
    if (!forward && stage->head)
        add_opening(model, stage, stage->n_layers, openings);
    for (int64_t i = 0; i < stage->n_layers; i++)
        add_opening(model, stage, forward ? i : stage->n_layers - 1 - i, openings);
    if (forward && stage->head)
        add_opening(model, stage, stage->n_layers, openings);
}

/* What B opens, or I (@split): I adds to no gradients of products. */
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
    Op op = op_at(run, micro_batch, slice, SCHEDULE_OP_FORWARD);
    const int64_t n_layers = op.stage->n_layers;
    PartBlocks *parts = op.state->parts;
    ExecBlock *memory = &op.micro_batch->memory;

    g_assert(parts[0].inputs.data == NULL);
    for (int64_t l = 0; l <= n_layers; l++) {
        const bool again = l < n_layers && recomputes_all(&op);
        if (!take(run, TRACE_MEMORY_ACTIVATIONS, input_bytes(&op, l), &parts[l].inputs, error) ||
            (!again && !take(run, TRACE_MEMORY_ACTIVATIONS, product_bytes(&op, l),
                             &parts[l].products, error)))
            return false;
    }
    if (!take(run, TRACE_MEMORY_ACTIVATIONS, embedding_bytes(&op), &op.state->embedding, error))
        return false;
    if (memory->data == NULL &&
        !take(run, TRACE_MEMORY_KV, memory_before(&op, n_layers, false), memory, error))
        return false;
    *x = parts[0].inputs.data;
    return begin_op(&op, error);
}

const void *
exec_stage_forward(ExecStageRun *run, int32_t micro_batch, int32_t slice, const int32_t *tokens,
                   const int32_t *targets, double *loss)
{
    const Op op = op_at(run, micro_batch, slice, SCHEDULE_OP_FORWARD);
    const ExecStage *stage = op.stage;
    const ExecLayer common = layer_at(&op, stage->n_layers);
    void *x = op.state->parts[0].inputs.data;
    ExecOpenUnits open;

    if (stage->embedding && open_part(&op, EMBEDDING, EXEC_OPEN_WEIGHTS, &open)) {
        const ExecEmbeddingActivations embedding = embedding_at(&op);
        exec_embedding_forward(&common, &stage->ends, &embedding, tokens, x);
        exec_units_close(&open);
    }
    for (int64_t l = 0; l < stage->n_layers; l++) {
        const ExecLayerScratch scratch = scratch_at(&op, l);
        ExecLayer layer = layer_at(&op, l);
        layer.scratch = &scratch;
        exec_layer_use_scratch(&layer);
        x = output_at(&op, l);
        if (!open_part(&op, l, EXEC_OPEN_WEIGHTS, &open))
            break;
        exec_layer_forward(&layer, x);
        exec_units_close(&open);
        if (recomputes_all(&op))
            exec_moe_clear(&op.state->moe[l], run->o.pool);
        exec_comm_poll(run->o.comm);
    }
    if (stage->head && open_part(&op, stage->n_layers, EXEC_OPEN_WEIGHTS, &open)) {
        const ExecHeadActivations head = head_at(&op);
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

/* Counts a slice whose B or I has ended.  After the last one what went from slice to slice goes
 * back. */
static void
finish(const ExecStageRun *run, MicroBatchState *micro_batch)
{
    if (++micro_batch->n_backward < run->o.n_slices)
        return;
    micro_batch->n_backward = 0;
    exec_pool_give(run->o.pool, &micro_batch->d_memory);
    exec_pool_give(run->o.pool, &micro_batch->memory);
}

/* Begins a B or I.  With the first one of a micro-batch, the gradient of what goes from slice to
 * slice begins at zero. */
static bool
begin_backward(Op *op, GError **error)
{
    ExecBackend *backend = op->run->o.comm->backend;
    ExecBlock *d_memory = &op->micro_batch->d_memory;
    const int64_t n_bytes = memory_before(op, op->stage->n_layers, true);

    if (n_bytes > 0 && d_memory->data == NULL) {
        if (!exec_pool_take(op->run->o.pool, TRACE_MEMORY_KV, n_bytes, d_memory, error))
            return false;
        backend->ops->zero(backend, (size_t)n_bytes, d_memory->data);
    }
    return begin_op(op, error);
}

static void
head_backward(const Op *op, bool split, const ExecLayer *common)
{
    const ExecEndTensors *ends = &op->stage->ends;
    const ExecHeadActivations head = head_at(op);
    ExecOpenUnits open;

    if (!open_part(op, op->stage->n_layers, backward_needs(split), &open))
        return;
    exec_head_backward(common, ends, &head, op->run->o.scratch->d);
    if (!split)
        exec_head_weight(common, ends, &head);
    exec_units_close(&open);
    give_inputs(op->run, op->state, op->stage->n_layers);
    if (!split)
        give_products(op->run, op->state, op->stage->n_layers);
}

/* Takes memory for what I keeps of layer @l for W. */
static bool
take_kept(const Op *op, int64_t l)
{
    ExecStageRun *run = op->run;
    PartBlocks *part = &op->state->parts[l];
    GError *error = NULL;
    const bool ok =
        (!recomputes_all(op) ||
         take(run, TRACE_MEMORY_ACTIVATIONS, product_bytes(op, l), &part->products, &error)) &&
        take(run, TRACE_MEMORY_ACTIVATIONS, kept_bytes(op, l), &part->gradients, &error);

    if (!ok)
        exec_comm_fail(run->o.comm, error);
    return ok;
}

static void
layer_backward(const Op *op, int64_t l, bool split)
{
    ExecStageRun *run = op->run;
    ExecOpenUnits open;

    if (split && !take_kept(op, l))
        return;
    const ExecLayerScratch scratch = scratch_at(op, l);
    ExecLayer layer = layer_at(op, l);
    layer.scratch = &scratch;
    exec_layer_use_scratch(&layer);
    if (!open_part(op, l, backward_needs(split), &open))
        return;
    /* F has kept the output or sent it away: nobody reads this second one. */
    if (recomputes_all(op))
        exec_layer_forward(&layer, scratch.kept.d_up);
    const ExecLayerKept kept = kept_at(op, l);
    exec_layer_backward(&layer, split ? &kept : NULL, run->o.scratch->d);
    exec_units_close(&open);
    give_inputs(run, op->state, l);
    if (!split)
        give_products(run, op->state, l);
    exec_comm_poll(run->o.comm);
}

bool
exec_stage_backward(ExecStageRun *run, int32_t micro_batch, int32_t slice, const int32_t *tokens,
                    bool split, const void **dx, GError **error)
{
    Op op =
        op_at(run, micro_batch, slice, split ? SCHEDULE_OP_BACKWARD_INPUT : SCHEDULE_OP_BACKWARD);
    const ExecStage *stage = op.stage;
    ExecOpenUnits open;

    g_assert(op.state->parts[0].inputs.data != NULL);
    if (!begin_backward(&op, error))
        return false;
    const ExecLayer common = layer_at(&op, stage->n_layers);
    if (stage->head)
        head_backward(&op, split, &common);
    for (int64_t l = stage->n_layers - 1; l >= 0 && run->o.comm->error == NULL; l--)
        layer_backward(&op, l, split);
    exec_pool_give(run->o.pool, &run->again);
    if (stage->embedding && open_part(&op, EMBEDDING, EXEC_OPEN_GRADIENTS, &open)) {
        const ExecEmbeddingActivations embedding = embedding_at(&op);
        exec_embedding_weight(&common, &stage->ends, &embedding, tokens, run->o.scratch->d);
        exec_units_close(&open);
        exec_pool_give(run->o.pool, &op.state->embedding);
    }
    end_op(run);
    give_inputs(run, op.state, stage->n_layers); /* of a stage without layers */
    finish(run, op.micro_batch);
    *dx = run->o.scratch->d;
    return true;
}

void
exec_stage_backward_weight(ExecStageRun *run, int32_t micro_batch, int32_t slice)
{
    Op op = op_at(run, micro_batch, slice, SCHEDULE_OP_BACKWARD_WEIGHT);
    const ExecStage *stage = op.stage;
    ExecOpenUnits open;
    GError *error = NULL;

    if (!begin_op(&op, &error)) {
        exec_comm_fail(run->o.comm, error);
        return;
    }
    const ExecLayer common = layer_at(&op, stage->n_layers);
    if (stage->head && open_part(&op, stage->n_layers, EXEC_OPEN_GRADIENTS, &open)) {
        const ExecHeadActivations head = head_at(&op);
        exec_head_weight(&common, &stage->ends, &head);
        exec_units_close(&open);
        give_products(run, op.state, stage->n_layers);
    }
    for (int64_t l = stage->n_layers - 1; l >= 0; l--) {
        const ExecLayerScratch scratch = scratch_at(&op, l);
        const ExecLayerKept kept = kept_at(&op, l);
        ExecLayer layer = layer_at(&op, l);
        layer.scratch = &scratch;
        exec_layer_use_scratch(&layer);
        if (!open_part(&op, l, EXEC_OPEN_GRADIENTS, &open))
            break;
        exec_layer_backward_weight(&layer, &kept);
        exec_units_close(&open);
        give_products(run, op.state, l);
        exec_comm_poll(run->o.comm);
    }
    end_op(run);
}

/* --- scratch and tables of all stages --- */

/* Uploads the positions of this rank's tokens, slice after slice. */
static void
upload_positions(const ExecStageScratch *scratch, const ExecScratchOptions *o)
{
    const ExecWidths *w = &o->model->widths;
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

/* Uploads the rotations of all positions for layers of @w's kind [Su et al. 2104.09864 section
 * 3.2.2]. */
static void
upload_turns(const ExecScratchOptions *o, const ExecWidths *w, float *to)
{
    const int64_t d = w->rotary_dim, n = w->seq_len * d;
    g_autofree float *turns = g_new(float, (size_t)n);

    for (int64_t position = 0; position < w->seq_len; position++)
        for (int64_t i = 0; i < d / 2; i++) {
            const double angle = (double)position * pow(w->rope_base, -2.0 * (double)i / (double)d);
            turns[position * d + i] = (float)cos(angle);
            turns[position * d + d / 2 + i] = (float)sin(angle);
        }
    o->comm->backend->ops->upload(o->comm->backend, (size_t)n * sizeof *turns, turns, to);
}

/* The first kind whose rotations are those of @kind; @kind itself where it is the first. */
static int32_t
same_turns(const ExecModel *model, int32_t kind)
{
    const ExecWidths *w = &model->kinds[kind];

    for (int32_t i = 0; i < kind; i++) {
        const ExecWidths *other = &model->kinds[i];
        if (other->rotary && other->rotary_dim == w->rotary_dim &&
            other->rope_base <= w->rope_base && other->rope_base >= w->rope_base)
            return i;
    }
    return kind;
}

/* Sets the pointers of @scratch into its block.  Returns: the block's bytes. */
static int64_t
cut_scratch(ExecStageScratch *scratch, const ExecScratchOptions *o)
{
    const ExecWidths *w = &o->model->widths;
    ExecCutter cutter = {.block = scratch->block.data, .storage = w->storage};
    int64_t tokens = 0;

    for (int32_t s = 0; s < o->n_slices; s++)
        tokens = MAX(tokens, o->lengths[s] / w->cp);
    const int64_t rows = o->sequences * tokens;
    scratch->d = exec_cut_bytes(&cutter, boundary_of(w, rows));
    scratch->stats = exec_cut_words(&cutter, w->tp > 1 ? w->tp * 3 * rows : 0);
    scratch->positions = exec_cut_words(&cutter, w->seq_len / w->cp);
    for (int32_t i = 0; i < o->model->n_kinds; i++) {
        const int32_t same = same_turns(o->model, i);
        const int64_t n = w->seq_len * o->model->kinds[i].rotary_dim;
        if (o->model->kinds[i].rotary)
            scratch->turns[i] = same == i ? exec_cut_words(&cutter, n) : scratch->turns[same];
    }
    return cutter.n_bytes;
}

bool
exec_stage_scratch_init(ExecStageScratch *scratch, const ExecScratchOptions *o, GError **error)
{
    *scratch = (ExecStageScratch){0};
    if (!exec_pool_take(o->pool, TRACE_MEMORY_WORKSPACE, cut_scratch(scratch, o), &scratch->block,
                        error))
        return false;
    cut_scratch(scratch, o);
    upload_positions(scratch, o);
    for (int32_t i = 0; i < o->model->n_kinds; i++)
        if (o->model->kinds[i].rotary && same_turns(o->model, i) == i)
            upload_turns(o, &o->model->kinds[i], scratch->turns[i]);
    return true;
}

void
exec_stage_scratch_clear(ExecStageScratch *scratch, ExecPool *pool)
{
    exec_pool_give(pool, &scratch->block);
}
