#include "executor/model/ends.h"

#include "executor/model/linear.h"

/* --- embedding --- */

static ExecEmbedding
embedding_of(const ExecLayer *layer, const int32_t *tokens)
{
    return (ExecEmbedding){
        .rows = exec_slice_rows(&layer->slice),
        .sequences = layer->slice.sequences,
        .cols = layer->widths->hidden,
        .first_token = layer->widths->first_token,
        .n_tokens = layer->widths->vocab,
        .token = tokens,
        .position = layer->positions,
    };
}

/* Of several tp ranks, the first one adds the positions to what it sums up. */
void
exec_embedding_forward(const ExecLayer *layer, const ExecEndTensors *ends, const int32_t *tokens,
                       void *x)
{
    const ExecWidths *w = layer->widths;
    const ExecEmbedding embedding = embedding_of(layer, tokens);
    const bool first = layer->comm->groups[EXEC_DIM_TP].index == 0;
    void *sum = w->sequence_parallel ? layer->scratch->partial : x;

    layer->backend->ops->embedding_forward(layer->backend, &embedding, ends->token_table.weight,
                                           first ? ends->position_table.weight : NULL, sum);
    const void *own = exec_reduce_rows(layer, sum);
    if (own != x)
        layer->backend->ops->copy(
            layer->backend,
            (size_t)exec_storage_bytes(layer->backend,
                                       exec_local_rows(w, embedding.rows) * w->hidden),
            own, x);
}

void
exec_embedding_weight(const ExecLayer *layer, const ExecEndTensors *ends, const int32_t *tokens,
                      const void *d)
{
    const ExecEmbedding embedding = embedding_of(layer, tokens);

    layer->backend->ops->embedding_backward(layer->backend, &embedding, exec_gather_rows(layer, d),
                                            ends->token_table.gradient,
                                            ends->position_table.gradient);
}

/* --- head --- */

ExecHeadActivations
exec_head_activations(const ExecWidths *w, int64_t rows, void *x, ExecCutter *cutter)
{
    const int64_t local_rows = exec_local_rows(w, rows);
    ExecHeadActivations head = {.x = x};

    head.norm = exec_cut(cutter, local_rows * w->hidden);
    head.mean = exec_cut_words(cutter, local_rows);
    if (w->norm == MODEL_NORM_RMS)
        head.mean = NULL;
    head.rstd = exec_cut_words(cutter, local_rows);
    head.logits = exec_cut(cutter, rows * w->padded_vocab);
    return head;
}

int64_t
exec_head_bytes(const ExecWidths *w, int64_t rows)
{
    ExecCutter cutter = {.storage = w->storage};

    exec_head_activations(w, rows, NULL, &cutter);
    return cutter.n_bytes;
}

static ExecNorm
norm_of(const ExecLayer *layer, const ExecEndTensors *ends, const ExecHeadActivations *head)
{
    return (ExecNorm){
        .rows = exec_local_rows(layer->widths, exec_slice_rows(&layer->slice)),
        .cols = layer->widths->hidden,
        .x = head->x,
        .gain = ends->norm_gain.weight,
        .shift = ends->norm_shift.weight,
        .mean = head->mean,
        .rstd = head->rstd,
        .epsilon = layer->widths->norm_epsilon,
    };
}

/* The table [padded_vocab, hidden] as a weight.  The head multiplies with its transpose, so that
 * its forward is the backward of such a product, and its backward the forward. */
static ExecLinear
table_of(const ExecLayer *layer, const ExecEndTensors *ends)
{
    const ExecWidths *w = layer->widths;

    return exec_layer_linear(layer, w->padded_vocab, w->hidden, &ends->head_table, NULL);
}

/* The loss, and the logits' gradient in their place.  Several tp ranks give each other statistics
 * of their columns first; the first of them reports the loss. */
static void
cross_entropy(const ExecLayer *layer, const ExecHeadActivations *head, const int32_t *targets,
              float factor, float *stats, double *loss)
{
    const ExecWidths *w = layer->widths;
    const int64_t n = 3 * exec_slice_rows(&layer->slice);
    const int32_t index = layer->comm->groups[EXEC_DIM_TP].index;
    ExecCrossEntropy entropy = {
        .rows = exec_slice_rows(&layer->slice),
        .vocab = w->vocab,
        .stride = w->padded_vocab,
        .first = w->first_token,
        .target = targets,
        .factor = factor,
        .logits = head->logits,
        .loss = loss,
    };

    if (w->tp > 1) {
        layer->backend->ops->cross_entropy_stats(layer->backend, &entropy, stats + index * n);
        exec_comm_all_gather(layer->comm, EXEC_DIM_TP, DTYPE_FP32, w->tp * n, stats);
        entropy.stats = stats;
        entropy.n_parts = w->tp;
    }
    layer->backend->ops->cross_entropy(layer->backend, &entropy);
    if (index > 0)
        layer->backend->ops->zero(layer->backend, sizeof *loss, loss);
}

void
exec_head_forward(const ExecLayer *layer, const ExecEndTensors *ends,
                  const ExecHeadActivations *head, const int32_t *targets, float factor,
                  float *stats, double *loss)
{
    const ExecNorm norm = norm_of(layer, ends, head);
    const ExecLinear table = table_of(layer, ends);

    layer->backend->ops->norm_forward(layer->backend, &norm, head->norm);
    exec_linear_backward(layer->backend, &table, exec_gather_rows(layer, head->norm), false, NULL,
                         head->logits);
    cross_entropy(layer, head, targets, factor, stats, loss);
}

void
exec_head_backward(const ExecLayer *layer, const ExecEndTensors *ends,
                   const ExecHeadActivations *head, void *d)
{
    ExecBackend *backend = layer->backend;
    const ExecNorm norm = norm_of(layer, ends, head);
    const ExecLinear table = table_of(layer, ends);

    exec_linear_forward(backend, &table, head->logits, NULL, layer->scratch->partial);
    const void *d_norm = exec_reduce_rows(layer, layer->scratch->partial);
    backend->ops->zero(backend, (size_t)exec_storage_bytes(backend, norm.rows * norm.cols), d);
    backend->ops->norm_backward(backend, &norm, d_norm, d, ends->norm_gain.gradient,
                                ends->norm_shift.gradient);
}

void
exec_head_weight(const ExecLayer *layer, const ExecEndTensors *ends,
                 const ExecHeadActivations *head)
{
    const ExecLinear table = table_of(layer, ends);

    exec_linear_weight(layer->backend, &table, head->logits, exec_gather_rows(layer, head->norm));
}
