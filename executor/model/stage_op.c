#include "executor/model/stage_op.h"

/* --- sizes --- */

int64_t
exec_stage_op_result_bytes(const ExecStageOp *op)
{
    const ExecWidths *w = op->widths;

    return exec_local_rows(w, op->rows) * w->hidden * dtype_bytes(w->storage);
}

static int64_t
boundary_bytes(const ExecStageOp *op)
{
    return exec_padded_bytes(exec_stage_op_result_bytes(op));
}

static bool
is_moe(const ExecStageOp *op, int64_t layer)
{
    return op->stage->widths[layer]->n_experts > 0;
}

/* Layer @l as its code sees it; n_layers: embedding and head. */
static ExecLayerShape
shape_of(const ExecStageOp *op, int64_t l)
{
    return (ExecLayerShape){
        .widths = l == op->stage->n_layers ? op->widths : op->stage->widths[l],
        .slice = op->slice,
        .op = op->kind,
        .again = op->stage->again,
    };
}

/* Bytes of one layer's memory, or of its gradient, in the micro-batch's block. */
static int64_t
memory_bytes(const ExecStageOp *op, int64_t l, bool gradient)
{
    const ExecLayerShape shape = shape_of(op, l);

    if (!shape.widths->has_mixer)
        return 0;
    return exec_padded_bytes(exec_mixer(shape.widths)->memory_bytes(&shape, gradient));
}

/* The same of the layers before layer @end. */
static int64_t
memory_before(const ExecStageOp *op, int64_t end, bool gradient)
{
    int64_t n_bytes = 0;

    for (int64_t l = 0; l < end; l++)
        n_bytes += memory_bytes(op, l, gradient);
    return n_bytes;
}

/* Bytes of a layer's activations: of those that only input gradients read, or of those that weight
 * gradients read (@of_products). */
static int64_t
activation_bytes(const ExecStageOp *op, int64_t l, bool of_products)
{
    const ExecLayerShape shape = shape_of(op, l);
    ExecCutter inputs = {.storage = op->widths->storage}, products = inputs;

    if (exec_stage_op_is_mtp(op, l))
        exec_mtp_activations(&shape, &inputs, &products);
    exec_layer_activations(&shape, &inputs, &products);
    return of_products ? products.n_bytes : inputs.n_bytes;
}

static int64_t
kept_bytes(const ExecStageOp *op, int64_t l)
{
    const ExecLayerShape shape = shape_of(op, l);
    ExecCutter cutter = {.storage = op->widths->storage};

    if (exec_stage_op_is_mtp(op, l))
        exec_mtp_kept(&shape, &cutter);
    exec_layer_kept(&shape, &cutter);
    return cutter.n_bytes;
}

/* Whether what layer @l makes lies in `again` during the op: in an F of which nothing is kept, and
 * where backward repeats the layer by itself. */
static bool
in_again(const ExecStageOp *op, int64_t l)
{
    return exec_stage_op_repeats(op, l) &&
           (op->kind == SCHEDULE_OP_FORWARD || !exec_stage_op_in_unit(op, l));
}

/* Bytes of the blocks of layer @layer, or of the head (n_layers). */
static int64_t
input_bytes(const ExecStageOp *op, int64_t layer)
{
    const int64_t boundary = boundary_bytes(op);

    /* A stage without layers has its input here; but for the head, results of MTP modules, which come
     * with it, pass by. */
    if (layer == op->stage->n_layers)
        return op->stage->head || (layer == 0 && exec_stage_op_mtp_after(op) == 0) ? boundary : 0;
    /* Of an MTP module it is the result before it. */
    if (in_again(op, layer))
        return op->stage->first_repeated[layer] == layer ? boundary : 0;
    return boundary + activation_bytes(op, layer, false);
}

static int64_t
product_bytes(const ExecStageOp *op, int64_t layer)
{
    if (layer == op->stage->n_layers)
        return op->stage->head ? exec_head_bytes(op->widths, op->rows) : 0;
    return activation_bytes(op, layer, true);
}

/* The most that any layer needs of what lies in `again`. */
static int64_t
most(const ExecStageOp *op, int64_t (*bytes)(const ExecStageOp *op, int64_t layer))
{
    int64_t n_bytes = 0;

    for (int64_t l = 0; l < op->stage->n_repeated; l++)
        if (in_again(op, l))
            n_bytes = MAX(n_bytes, bytes(op, l));
    return n_bytes;
}

/* Bytes of a layer's activations in `again`. */
static int64_t
again_activations(const ExecStageOp *op, int64_t l)
{
    const ExecLayerShape shape = shape_of(op, l);
    ExecCutter cutter = {.storage = op->widths->storage};

    if (op->kind != SCHEDULE_OP_FORWARD)
        return activation_bytes(op, l, false);
    if (exec_stage_op_is_mtp(op, l))
        exec_mtp_activations(&shape, &cutter, &cutter);
    exec_layer_passing(&shape, &cutter);
    return cutter.n_bytes;
}

/* Bytes of the inputs of a layer's products in `again`, behind the activations: F does not keep them
 * apart, and the layers of an I have blocks of their own for them. */
static int64_t
again_products(const ExecStageOp *op, int64_t l)
{
    return op->kind == SCHEDULE_OP_BACKWARD ? activation_bytes(op, l, true) : 0;
}

static int64_t
again_bytes(const ExecStageOp *op)
{
    if (op->kind == SCHEDULE_OP_BACKWARD_WEIGHT)
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

/* The cutters of what layer @l keeps, or of what the second forward makes: of its inputs and of its
 * products'. */
static void
find_activations(const ExecStageOp *op, int64_t l, ExecCutter *inputs, ExecCutter *products)
{
    const ExecPartBlocks *part = &op->state->parts[l];
    const Dtype storage = op->widths->storage;

    *inputs = *products = (ExecCutter){.block = op->blocks->again.data, .storage = storage};
    if (!in_again(op, l))
        inputs->block = at(&part->inputs, boundary_bytes(op));
    products->block = part->products.data != NULL
                          ? part->products.data
                          : at(&op->blocks->again, most(op, again_activations));
}

/* Whether F keeps nothing of layer @l but its input, so that all of it passes by. */
static bool
passes(const ExecStageOp *op, int64_t l)
{
    return exec_stage_op_repeats(op, l) && op->kind == SCHEDULE_OP_FORWARD;
}

/* What an MTP module has before its layer's activations, in the same blocks. */
static ExecMtpActivations
mtp_activations(const ExecStageOp *op, int64_t l, ExecCutter *inputs, ExecCutter *products)
{
    const ExecLayerShape shape = shape_of(op, l);

    return exec_mtp_activations(&shape, inputs, passes(op, l) ? inputs : products);
}

/* @x  (out) an MTP module's: the input of its layer */
static ExecLayerActivations
activations_at(const ExecStageOp *op, int64_t l, const void **x)
{
    const ExecLayerShape shape = shape_of(op, l);
    ExecCutter inputs, products;

    find_activations(op, l, &inputs, &products);
    if (exec_stage_op_is_mtp(op, l))
        *x = mtp_activations(op, l, &inputs, &products).x;
    return passes(op, l) ? exec_layer_passing(&shape, &inputs)
                         : exec_layer_activations(&shape, &inputs, &products);
}

/* What I keeps of layer @l for W; of an MTP module first what is not the layer's (@own). */
static ExecLayerKept
kept_at(const ExecStageOp *op, int64_t l, void **own)
{
    const ExecLayerShape shape = shape_of(op, l);
    ExecCutter cutter = {.block = op->state->parts[l].gradients.data,
                         .storage = op->widths->storage};

    if (exec_stage_op_is_mtp(op, l))
        *own = exec_mtp_kept(&shape, &cutter);
    return exec_layer_kept(&shape, &cutter);
}

ExecLayerKept
exec_stage_op_kept(const ExecStageOp *op, int64_t l)
{
    void *own = NULL;

    return kept_at(op, l, &own);
}

ExecLayer
exec_stage_op_layer(const ExecStageOp *op, int64_t l, ExecLayerScratch *scratch)
{
    const ExecStageRun *run = op->run;
    const ExecPartBlocks *part = &op->state->parts[l];
    const ExecMicroBatchState *whole = op->micro_batch;
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
        .again = shape.again,
        .x = part->inputs.data,
    };

    if (l >= op->stage->n_layers)
        return layer;
    ExecCutter cutter = {.block = op->blocks->layer.data, .storage = op->widths->storage};
    *scratch = exec_layer_scratch(&shape, &cutter);
    layer.scratch = scratch;
    layer.turns = run->o.scratch->turns[shape.widths->kind];
    layer.tensors = &op->stage->layers[l];
    layer.number = op->stage->first_layer + l;
    layer.loss_factor = run->o.loss_factor;
    if (is_moe(op, l))
        layer.moe = &op->state->moe[l];
    layer.a = activations_at(op, l, &layer.x);
    if (memory_bytes(op, l, false) > 0)
        layer.memory = at(&whole->memory, memory_before(op, l, false));
    if (memory_bytes(op, l, true) > 0)
        layer.d_memory = at(&whole->d_memory, memory_before(op, l, true));
    const ExecLayerKept kept = exec_stage_op_kept(op, l);
    exec_layer_place_again(&layer, &kept);
    return layer;
}

static int64_t
embedding_bytes(const ExecStageOp *op)
{
    ExecCutter cutter = {.storage = op->widths->storage};

    if (op->stage->embedding)
        exec_embedding_activations(op->widths, op->rows, &cutter);
    return cutter.n_bytes;
}

ExecEmbeddingActivations
exec_stage_op_embedding(const ExecStageOp *op)
{
    ExecCutter cutter = {.block = op->state->embedding.data, .storage = op->widths->storage};

    return exec_embedding_activations(op->widths, op->rows, &cutter);
}

ExecHeadActivations
exec_stage_op_head(const ExecStageOp *op)
{
    const ExecPartBlocks *part = &op->state->parts[op->stage->n_layers];
    ExecCutter cutter = {.block = part->products.data, .storage = op->widths->storage};

    return exec_head_activations(op->widths, op->rows, part->inputs.data, &cutter);
}

void *
exec_stage_op_result(const ExecStageOp *op, int64_t i)
{
    return (char *)op->results + i * exec_stage_op_result_bytes(op);
}

/* What comes with results of MTP modules lies with them until a module or the head takes it. */
void *
exec_stage_op_input(const ExecStageOp *op)
{
    const int64_t first = op->stage->n_layers > 0 ? 0 : op->stage->n_layers;

    return exec_stage_op_mtp_before(op) > 0 || exec_stage_op_is_mtp(op, first)
               ? exec_stage_op_result(op, 0)
               : op->state->parts[first].inputs.data;
}

void *
exec_stage_op_output(const ExecStageOp *op, int64_t l)
{
    const bool is_last = l + 1 == op->stage->n_layers;

    return exec_stage_op_is_mtp(op, l + 1) || (is_last && !op->stage->head)
               ? exec_stage_op_result(op, 0)
               : op->state->parts[l + 1].inputs.data;
}

ExecMtp
exec_stage_op_mtp(const ExecStageOp *op, int64_t l, const ExecLayer *layer)
{
    const ExecLayerShape shape = shape_of(op, l);
    ExecCutter scratch = {.block = op->blocks->layer.data, .storage = op->widths->storage};
    ExecCutter inputs, products;

    find_activations(op, l, &inputs, &products);
    return (ExecMtp){
        .layer = layer,
        .a = mtp_activations(op, l, &inputs, &products),
        .scratch = exec_mtp_scratch(&shape, &scratch),
        .h = op->state->parts[l].inputs.data,
    };
}

void *
exec_stage_op_mtp_kept(const ExecStageOp *op, int64_t l)
{
    void *own = NULL;

    kept_at(op, l, &own);
    return own;
}

/* --- blocks --- */

void
exec_stage_op_give_inputs(const ExecStageRun *run, ExecSliceState *state, int64_t l)
{
    exec_pool_give(run->o.pool, &state->parts[l].inputs);
    if (l < run->o.stage->n_layers)
        exec_moe_clear_inputs(&state->moe[l], run->o.pool);
}

void
exec_stage_op_give_products(const ExecStageRun *run, ExecSliceState *state, int64_t l)
{
    exec_pool_give(run->o.pool, &state->parts[l].products);
    exec_pool_give(run->o.pool, &state->parts[l].gradients);
    if (l < run->o.stage->n_layers)
        exec_moe_clear(&state->moe[l], run->o.pool);
}

/* Takes a block of @n_bytes; none if that is 0. */
static bool
take(ExecStageRun *run, TraceMemoryOwner owner, int64_t n_bytes, ExecBlock *block, GError **error)
{
    return n_bytes == 0 || exec_pool_take(run->o.pool, owner, n_bytes, block, error);
}

/* Sets op->end_scratch.  Returns: the bytes of the op's scratch, which is large enough for all layers
 * of the stage. */
static int64_t
set_scratch(ExecStageOp *op)
{
    ExecLayerShape shape = shape_of(op, op->stage->n_layers);
    ExecCutter cutter = {.block = op->blocks->layer.data, .storage = op->widths->storage};

    op->end_scratch = exec_end_scratch(&shape, &cutter);
    int64_t n_bytes = cutter.n_bytes;
    for (int64_t l = 0; l < op->stage->n_layers; l++) {
        ExecCutter layer = {.storage = op->widths->storage};
        shape = shape_of(op, l);
        if (l > 0 && shape.widths == op->stage->widths[l - 1])
            continue;
        exec_layer_scratch(&shape, &layer);
        n_bytes = MAX(n_bytes, layer.n_bytes);
        layer.n_bytes = 0;
        if (shape.widths->arch.is_mtp)
            exec_mtp_scratch(&shape, &layer);
        n_bytes = MAX(n_bytes, layer.n_bytes);
    }
    return n_bytes;
}

ExecStageOp
exec_stage_op(ExecStageRun *run, int32_t micro_batch, int32_t slice, ScheduleOpKind kind)
{
    ExecStageOp op = {
        .run = run,
        .widths = &run->o.model->widths,
        .stage = run->o.stage,
        .kind = kind,
        .slice = exec_stage_slice(run, micro_batch, slice),
        .micro_batch = &run->micro_batches[micro_batch],
        .state = &run->slices[micro_batch * run->o.n_slices + slice],
        .blocks = &run->blocks[kind != SCHEDULE_OP_FORWARD],
        .results = kind == SCHEDULE_OP_FORWARD ? run->o.scratch->results : run->o.scratch->d,
    };

    op.rows = exec_slice_rows(&op.slice);
    set_scratch(&op);
    return op;
}

bool
exec_stage_op_begin(ExecStageOp *op, GError **error)
{
    ExecStageRun *run = op->run;

    if (!take(run, TRACE_MEMORY_WORKSPACE, set_scratch(op), &op->blocks->layer, error) ||
        !take(run, TRACE_MEMORY_WORKSPACE, again_bytes(op), &op->blocks->again, error))
        return false;
    set_scratch(op);
    return true;
}

void
exec_stage_op_end(const ExecStageOp *op)
{
    exec_pool_give(op->run->o.pool, &op->blocks->again);
    exec_pool_give(op->run->o.pool, &op->blocks->layer);
}

/* --- blocks that outlive the op --- */

bool
exec_stage_op_take_forward(const ExecStageOp *op, GError **error)
{
    const int64_t n_layers = op->stage->n_layers;
    ExecPartBlocks *parts = op->state->parts;
    ExecBlock *memory = &op->micro_batch->memory;
    ExecStageRun *run = op->run;

    for (int64_t l = 0; l <= n_layers; l++) {
        const bool again = l < n_layers && exec_stage_op_repeats(op, l);
        if (!take(run, TRACE_MEMORY_ACTIVATIONS, input_bytes(op, l), &parts[l].inputs, error) ||
            (!again &&
             !take(run, TRACE_MEMORY_ACTIVATIONS, product_bytes(op, l), &parts[l].products, error)))
            return false;
    }
    if (!take(run, TRACE_MEMORY_ACTIVATIONS, embedding_bytes(op), &op->state->embedding, error))
        return false;
    return memory->data != NULL ||
           take(run, TRACE_MEMORY_KV, memory_before(op, n_layers, false), memory, error);
}

bool
exec_stage_op_take_passing(const ExecStageOp *op, int64_t l, GError **error)
{
    return take(op->run, TRACE_MEMORY_ACTIVATIONS, boundary_bytes(op), &op->state->parts[l].inputs,
                error);
}

bool
exec_stage_op_take_again(const ExecStageOp *op, int64_t l, GError **error)
{
    ExecBackend *backend = op->run->o.comm->backend;
    ExecPartBlocks *part = &op->state->parts[l];
    ExecBlock input = part->inputs; /* of the first of the unit; else none */

    part->inputs = (ExecBlock){0};
    const bool ok =
        take(op->run, TRACE_MEMORY_ACTIVATIONS, input_bytes(op, l), &part->inputs, error) &&
        take(op->run, TRACE_MEMORY_ACTIVATIONS, product_bytes(op, l), &part->products, error);
    if (ok && input.data != NULL)
        backend->ops->copy(backend, (size_t)exec_stage_op_result_bytes(op), input.data,
                           part->inputs.data);
    exec_pool_give(op->run->o.pool, &input);
    return ok;
}

bool
exec_stage_op_take_kept(const ExecStageOp *op, int64_t l, GError **error)
{
    ExecPartBlocks *part = &op->state->parts[l];

    return (!in_again(op, l) || take(op->run, TRACE_MEMORY_ACTIVATIONS, product_bytes(op, l),
                                     &part->products, error)) &&
           take(op->run, TRACE_MEMORY_ACTIVATIONS, kept_bytes(op, l), &part->gradients, error);
}

bool
exec_stage_op_take_gradient(const ExecStageOp *op, GError **error)
{
    ExecBackend *backend = op->run->o.comm->backend;
    ExecBlock *d_memory = &op->micro_batch->d_memory;
    const int64_t n_bytes = memory_before(op, op->stage->n_layers, true);

    if (n_bytes == 0 || d_memory->data != NULL)
        return true;
    if (!exec_pool_take(op->run->o.pool, TRACE_MEMORY_KV, n_bytes, d_memory, error))
        return false;
    backend->ops->zero(backend, (size_t)n_bytes, d_memory->data);
    return true;
}
