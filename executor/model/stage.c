#include "executor/model/stage.h"

#include "executor/model/ends.h"
#include "executor/model/mtp.h"
#include "executor/model/stage_op.h"

/* Stands for the embedding where a layer's number is expected; n_layers is the head. */
enum {
    EMBEDDING = -1
};

bool
exec_stage_is_capturable(const ExecComm *comm, const ModelArch *arch)
{
    return comm->backend->ops->begin_graph != NULL && comm->groups[EXEC_DIM_TP].n == 1 &&
           comm->groups[EXEC_DIM_CP].n == 1 && comm->groups[EXEC_DIM_EP].n == 1 &&
           arch->experts.n_experts == 0;
}

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
            exec_stage_op_give_inputs(run, &run->slices[i], l);
            exec_stage_op_give_products(run, &run->slices[i], l);
        }
        exec_pool_give(run->o.pool, &run->slices[i].embedding);
        g_free(run->slices[i].parts);
        g_free(run->slices[i].moe);
    }
    for (int32_t i = 0; i < run->o.n_micro_batches; i++) {
        exec_pool_give(run->o.pool, &run->micro_batches[i].memory);
        exec_pool_give(run->o.pool, &run->micro_batches[i].d_memory);
    }
    for (int i = 0; i < 2; i++) {
        exec_pool_give(run->o.pool, &run->blocks[i].again);
        exec_pool_give(run->o.pool, &run->blocks[i].layer);
    }
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

/* Bytes of a boundary with the results of @n_modules MTP modules. */
static int64_t
boundary_bytes(const ExecStageRun *run, int32_t micro_batch, int32_t slice, int64_t n_modules)
{
    const ExecWidths *w = &run->o.model->widths;
    const ExecSlice s = exec_stage_slice(run, micro_batch, slice);

    return (1 + n_modules) * exec_local_rows(w, exec_slice_rows(&s)) * w->hidden *
           dtype_bytes(w->storage);
}

int64_t
exec_stage_input_bytes(const ExecStageRun *run, int32_t micro_batch, int32_t slice)
{
    return boundary_bytes(
        run, micro_batch, slice,
        model_n_mtp_before(&run->o.model->widths.arch, run->o.stage->first_layer));
}

int64_t
exec_stage_output_bytes(const ExecStageRun *run, int32_t micro_batch, int32_t slice)
{
    return boundary_bytes(run, micro_batch, slice,
                          model_n_mtp_before(&run->o.model->widths.arch,
                                             run->o.stage->first_layer + run->o.stage->n_layers));
}

/* --- opening units --- */

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
open_part(const ExecStageOp *op, int64_t part, unsigned what, ExecOpenUnits *open)
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

/* Of layer @l: an MTP module embeds in F, and where backward repeats it; the layers of a unit are
 * repeated before the last one's backward. */
static void
add_layer_openings(const ExecModel *model, const ExecStage *stage, int64_t l, bool forward,
                   GArray *openings)
{
    const bool again = !forward && l < stage->n_repeated;
    const int64_t first = stage->first_repeated[l];
    const bool ends = l + 1 == stage->n_layers || stage->first_repeated[l + 1] != first;

    if (stage->widths[l]->arch.is_mtp && (forward || again))
        add_opening(model, stage, EMBEDDING, openings);
    for (int64_t j = first; again && stage->in_units && ends && j <= l; j++)
        add_opening(model, stage, j, openings);
    add_opening(model, stage, l, openings);
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
        add_layer_openings(model, stage, forward ? i : stage->n_layers - 1 - i, forward, openings);
    if (forward && stage->head)
        add_opening(model, stage, stage->n_layers, openings);
}

/* What B opens, or I (@split): I adds to no gradients of products. */
static unsigned
backward_needs(bool split)
{
    return split ? EXEC_OPEN_WEIGHTS : EXEC_OPEN_WEIGHTS | EXEC_OPEN_GRADIENTS;
}

/* --- tokens --- */

/* The tokens @n further on than @tokens. */
static const int32_t *
ahead(const ExecStageOp *op, const int32_t *tokens, int64_t n)
{
    return tokens == NULL ? NULL : tokens + n * op->run->o.token_step;
}

static const int32_t *
module_tokens(const ExecStageOp *op, const int32_t *tokens, int64_t l)
{
    return ahead(op, tokens, exec_stage_op_module(op, l) + 1);
}

static void
copy_result(const ExecStageOp *op, const void *from, void *to)
{
    ExecBackend *backend = op->run->o.comm->backend;

    backend->ops->copy(backend, (size_t)exec_stage_op_result_bytes(op), from, to);
}

/* --- forward --- */

bool
exec_stage_begin_forward(ExecStageRun *run, int32_t micro_batch, int32_t slice, void **x,
                         GError **error)
{
    ExecStageOp op = exec_stage_op(run, micro_batch, slice, SCHEDULE_OP_FORWARD);

    g_assert(!op.state->is_forwarded);
    if (!exec_stage_op_take_forward(&op, error))
        return false;
    op.state->is_forwarded = true;
    *x = exec_stage_op_input(&op);
    return exec_stage_op_begin(&op, error);
}

/* Computes layer @l, whose units are open. */
static void
compute_layer(const ExecStageOp *op, int64_t l, const ExecLayer *layer)
{
    if (!exec_stage_op_is_mtp(op, l)) {
        exec_layer_forward(layer, exec_stage_op_output(op, l));
        return;
    }
    const ExecMtp mtp = exec_stage_op_mtp(op, l, layer);
    exec_mtp_begin(&mtp);
    exec_layer_forward(layer, mtp.a.y);
    exec_mtp_end(&mtp, exec_stage_op_result(op, exec_stage_op_module(op, l) + 1));
}

/* Looks up what the MTP module at @l embeds. */
static bool
embed_ahead(const ExecStageOp *op, int64_t l, const ExecLayer *layer, const int32_t *tokens)
{
    const ExecLayer common = exec_stage_op_layer(op, op->stage->n_layers, NULL);
    const ExecMtp mtp = exec_stage_op_mtp(op, l, layer);
    ExecOpenUnits open;

    if (!open_part(op, EMBEDDING, EXEC_OPEN_WEIGHTS, &open))
        return false;
    exec_embedding_forward(&common, &op->stage->ends, &(ExecEmbeddingActivations){0},
                           module_tokens(op, tokens, l), mtp.a.e);
    exec_units_close(&open);
    return true;
}

static bool
layer_forward(const ExecStageOp *op, int64_t l, const int32_t *tokens)
{
    const bool passes_on = exec_stage_op_repeats(op, l) && l + 1 < exec_stage_op_unit_end(op, l);
    ExecLayerScratch scratch;
    GError *error = NULL;
    ExecOpenUnits open;

    if (passes_on && !exec_stage_op_take_passing(op, l + 1, &error)) {
        exec_comm_fail(op->run->o.comm, error);
        return false;
    }
    const ExecLayer layer = exec_stage_op_layer(op, l, &scratch);
    if (exec_stage_op_is_mtp(op, l)) {
        copy_result(op, exec_stage_op_result(op, exec_stage_op_module(op, l)),
                    op->state->parts[l].inputs.data);
        if (!embed_ahead(op, l, &layer, tokens))
            return false;
    }
    if (!open_part(op, l, EXEC_OPEN_WEIGHTS, &open))
        return false;
    compute_layer(op, l, &layer);
    exec_units_close(&open);
    if (exec_stage_op_repeats(op, l))
        exec_moe_clear(&op->state->moe[l], op->run->o.pool);
    if (exec_stage_op_repeats(op, l) && op->stage->first_repeated[l] < l)
        exec_stage_op_give_inputs(op->run, op->state, l);
    exec_comm_poll(op->run->o.comm);
    return true;
}

/* A device begins with what there is of the op, before the host has queued the next part. */
static void
cut(const ExecStageOp *op)
{
    ExecBackend *backend = op->run->o.comm->backend;

    if (backend->ops->cut_graph != NULL)
        backend->ops->cut_graph(backend);
}

static void
head_forward(const ExecStageOp *op, const ExecLayer *common, const int32_t *tokens, double *losses)
{
    const ExecHeadActivations head = exec_stage_op_head(op);
    const int64_t n_modules = exec_stage_op_mtp_after(op);
    const int32_t *targets[1 + MODEL_MAX_MTP];
    ExecOpenUnits open;

    for (int64_t i = 0; i <= n_modules; i++) {
        targets[i] = ahead(op, tokens, i + 1);
        if (n_modules > 0)
            copy_result(op, exec_stage_op_result(op, i), i == 0 ? head.x : head.in[i]);
    }
    if (!open_part(op, op->stage->n_layers, EXEC_OPEN_WEIGHTS, &open))
        return;
    exec_head_forward(common, &op->stage->ends, &head, targets, op->run->o.loss_factor,
                      op->run->o.scratch->stats, losses);
    exec_units_close(&open);
}

const void *
exec_stage_forward(ExecStageRun *run, int32_t micro_batch, int32_t slice, const int32_t *tokens,
                   double *losses)
{
    const ExecStageOp op = exec_stage_op(run, micro_batch, slice, SCHEDULE_OP_FORWARD);
    const ExecStage *stage = op.stage;
    const ExecLayer common = exec_stage_op_layer(&op, stage->n_layers, NULL);
    void *x = exec_stage_op_input(&op);
    ExecOpenUnits open;

    if (stage->embedding && open_part(&op, EMBEDDING, EXEC_OPEN_WEIGHTS, &open)) {
        const ExecEmbeddingActivations embedding = exec_stage_op_embedding(&op);
        exec_embedding_forward(&common, &stage->ends, &embedding, tokens, x);
        exec_units_close(&open);
    }
    for (int64_t l = 0; l < stage->n_layers && layer_forward(&op, l, tokens); l++)
        if (l + 1 < stage->n_layers || stage->head)
            cut(&op);
    if (stage->head)
        head_forward(&op, &common, tokens, losses);
    exec_stage_op_end(&op);
    return stage->n_layers > 0 ? exec_stage_op_result(&op, 0) : x;
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
finish(const ExecStageOp *op)
{
    ExecMicroBatchState *micro_batch = op->micro_batch;

    op->state->is_forwarded = false;
    if (++micro_batch->n_backward < op->run->o.n_slices)
        return;
    micro_batch->n_backward = 0;
    exec_pool_give(op->run->o.pool, &micro_batch->d_memory);
    exec_pool_give(op->run->o.pool, &micro_batch->memory);
}

static void
head_backward(const ExecStageOp *op, bool split, const ExecLayer *common)
{
    const ExecEndTensors *ends = &op->stage->ends;
    const ExecHeadActivations head = exec_stage_op_head(op);
    ExecOpenUnits open;

    if (!open_part(op, op->stage->n_layers, backward_needs(split), &open))
        return;
    exec_head_backward(common, ends, &head, op->run->o.scratch->d);
    if (!split)
        exec_head_weight(common, ends, &head);
    exec_units_close(&open);
    exec_stage_op_give_inputs(op->run, op->state, op->stage->n_layers);
    if (!split)
        exec_stage_op_give_products(op->run, op->state, op->stage->n_layers);
}

/* Computes layer @l again.  Its output, @y, is read by the next layer of a unit alone: F has sent it
 * away, or the next part has it. */
static void
repeat_layer(const ExecStageOp *op, int64_t l, const ExecLayer *layer, void *y)
{
    if (!exec_stage_op_is_mtp(op, l)) {
        exec_layer_forward(layer, y);
        return;
    }
    const ExecMtp mtp = exec_stage_op_mtp(op, l, layer);
    exec_mtp_begin(&mtp);
    exec_layer_forward(layer, mtp.a.y);
    exec_mtp_end(&mtp, y); /* makes the norm's statistics */
}

/* Computes the layers again that are repeated together up to layer @last; each puts its output where
 * the next one's input is.  False once anything has failed. */
static bool
repeat_unit(const ExecStageOp *op, int64_t last, const int32_t *tokens)
{
    const int64_t first = op->stage->first_repeated[last];
    GError *error = NULL;

    for (int64_t l = first; l <= last; l++)
        if (!exec_stage_op_take_again(op, l, &error)) {
            exec_comm_fail(op->run->o.comm, error);
            return false;
        }
    for (int64_t l = first; l <= last; l++) {
        ExecLayerScratch scratch;
        const ExecLayer layer = exec_stage_op_layer(op, l, &scratch);
        ExecOpenUnits open;

        if ((exec_stage_op_is_mtp(op, l) && !embed_ahead(op, l, &layer, tokens)) ||
            !open_part(op, l, EXEC_OPEN_WEIGHTS, &open))
            return false;
        repeat_layer(op, l, &layer,
                     l < last ? op->state->parts[l + 1].inputs.data : scratch.kept.d_up);
        exec_units_close(&open);
        exec_comm_poll(op->run->o.comm);
    }
    return true;
}

/* From the gradients of all results behind layer @l to those before it. */
static void
part_backward(const ExecStageOp *op, int64_t l, const ExecLayer *layer, bool split)
{
    const ExecLayerKept kept = exec_stage_op_kept(op, l);

    if (!exec_stage_op_is_mtp(op, l)) {
        exec_layer_backward(layer, split ? &kept : NULL, exec_stage_op_result(op, 0));
        return;
    }
    const int64_t module = exec_stage_op_module(op, l);
    const ExecMtp mtp = exec_stage_op_mtp(op, l, layer);
    void *d = exec_stage_op_result(op, module + 1);
    exec_mtp_end_backward(&mtp, d);
    exec_layer_backward(layer, split ? &kept : NULL, d);
    exec_mtp_begin_backward(&mtp, split ? exec_stage_op_mtp_kept(op, l) : NULL, d,
                            exec_stage_op_result(op, module));
}

/* Adds the gradient of what the MTP module at @l has looked up. */
static void
embedded_backward(const ExecStageOp *op, int64_t l, const int32_t *tokens)
{
    const ExecLayer common = exec_stage_op_layer(op, op->stage->n_layers, NULL);
    ExecOpenUnits open;

    if (!open_part(op, EMBEDDING, EXEC_OPEN_GRADIENTS, &open))
        return;
    exec_embedding_weight(&common, &op->stage->ends, &(ExecEmbeddingActivations){0},
                          module_tokens(op, tokens, l),
                          exec_stage_op_result(op, exec_stage_op_module(op, l) + 1));
    exec_units_close(&open);
}

static void
layer_backward(const ExecStageOp *op, int64_t l, const int32_t *tokens, bool split)
{
    ExecStageRun *run = op->run;
    const bool is_mtp = exec_stage_op_is_mtp(op, l), in_unit = exec_stage_op_in_unit(op, l);
    const bool again = exec_stage_op_repeats(op, l) && !in_unit;
    ExecLayerScratch scratch;
    GError *error = NULL;
    ExecOpenUnits open;

    if (in_unit && exec_stage_op_unit_end(op, l) == l + 1 && !repeat_unit(op, l, tokens))
        return;
    if (split && !exec_stage_op_take_kept(op, l, &error)) {
        exec_comm_fail(run->o.comm, error);
        return;
    }
    const ExecLayer layer = exec_stage_op_layer(op, l, &scratch);
    if ((again && is_mtp && !embed_ahead(op, l, &layer, tokens)) ||
        !open_part(op, l, backward_needs(split), &open))
        return;
    if (again)
        repeat_layer(op, l, &layer, scratch.kept.d_up);
    part_backward(op, l, &layer, split);
    exec_units_close(&open);
    exec_stage_op_give_inputs(run, op->state, l);
    if (!split)
        exec_stage_op_give_products(run, op->state, l);
    /* With ZeRO 2 the gradient of the whole table comes now: after the layer's activations have gone. */
    if (is_mtp)
        embedded_backward(op, l, tokens);
    exec_comm_poll(run->o.comm);
}

bool
exec_stage_backward(ExecStageRun *run, int32_t micro_batch, int32_t slice, const int32_t *tokens,
                    bool split, const void **dx, GError **error)
{
    ExecStageOp op = exec_stage_op(run, micro_batch, slice,
                                   split ? SCHEDULE_OP_BACKWARD_INPUT : SCHEDULE_OP_BACKWARD);
    const ExecStage *stage = op.stage;
    ExecOpenUnits open;

    g_assert(op.state->is_forwarded);
    if (!exec_stage_op_take_gradient(&op, error) || !exec_stage_op_begin(&op, error))
        return false;
    const ExecLayer common = exec_stage_op_layer(&op, stage->n_layers, NULL);
    if (stage->head)
        head_backward(&op, split, &common);
    for (int64_t l = stage->n_layers - 1; l >= 0 && run->o.comm->error == NULL; l--) {
        if (l + 1 < stage->n_layers || stage->head)
            cut(&op);
        layer_backward(&op, l, tokens, split);
    }
    exec_pool_give(run->o.pool, &op.blocks->again);
    if (stage->embedding && open_part(&op, EMBEDDING, EXEC_OPEN_GRADIENTS, &open)) {
        const ExecEmbeddingActivations embedding = exec_stage_op_embedding(&op);
        exec_embedding_weight(&common, &stage->ends, &embedding, tokens, run->o.scratch->d);
        exec_units_close(&open);
        exec_pool_give(run->o.pool, &op.state->embedding);
    }
    exec_stage_op_end(&op);
    exec_stage_op_give_inputs(run, op.state, stage->n_layers); /* of a stage without layers */
    finish(&op);
    *dx = run->o.scratch->d;
    return true;
}

/* W of layer @l; false once anything has failed. */
static bool
layer_weight(const ExecStageOp *op, int64_t l)
{
    ExecLayerScratch scratch;
    const ExecLayer layer = exec_stage_op_layer(op, l, &scratch);
    const ExecLayerKept kept = exec_stage_op_kept(op, l);
    ExecOpenUnits open;

    if (!open_part(op, l, EXEC_OPEN_GRADIENTS, &open))
        return false;
    exec_layer_backward_weight(&layer, &kept);
    if (exec_stage_op_is_mtp(op, l)) {
        const ExecMtp mtp = exec_stage_op_mtp(op, l, &layer);
        exec_mtp_weight(&mtp, exec_stage_op_mtp_kept(op, l));
    }
    exec_units_close(&open);
    exec_stage_op_give_products(op->run, op->state, l);
    exec_comm_poll(op->run->o.comm);
    return true;
}

void
exec_stage_backward_weight(ExecStageRun *run, int32_t micro_batch, int32_t slice)
{
    ExecStageOp op = exec_stage_op(run, micro_batch, slice, SCHEDULE_OP_BACKWARD_WEIGHT);
    const ExecStage *stage = op.stage;
    ExecOpenUnits open;
    GError *error = NULL;

    if (!exec_stage_op_begin(&op, &error)) {
        exec_comm_fail(run->o.comm, error);
        return;
    }
    const ExecLayer common = exec_stage_op_layer(&op, stage->n_layers, NULL);
    if (stage->head && open_part(&op, stage->n_layers, EXEC_OPEN_GRADIENTS, &open)) {
        const ExecHeadActivations head = exec_stage_op_head(&op);
        exec_head_weight(&common, &stage->ends, &head);
        exec_units_close(&open);
        exec_stage_op_give_products(run, op.state, stage->n_layers);
    }
    for (int64_t l = stage->n_layers - 1; l >= 0 && layer_weight(&op, l); l--)
        if (l > 0)
            cut(&op);
    exec_stage_op_end(&op);
}
