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
        .scale = layer->widths->arch.embedding_scale > 0.0
                     ? (float)layer->widths->arch.embedding_scale
                     : 1.0f,
    };
}

ExecEmbeddingActivations
exec_embedding_activations(const ExecWidths *w, int64_t rows, ExecCutter *cutter)
{
    const int64_t local_rows = exec_local_rows(w, rows);
    ExecEmbeddingActivations embedding = {0};

    if (!w->arch.embedding_norm)
        return embedding;
    embedding.x = exec_cut(cutter, local_rows * w->hidden);
    embedding.mean = w->norm == MODEL_NORM_RMS ? NULL : exec_cut_words(cutter, local_rows);
    embedding.rstd = exec_cut_words(cutter, local_rows);
    return embedding;
}

static ExecNorm
embedding_norm(const ExecLayer *layer, const ExecEndTensors *ends,
               const ExecEmbeddingActivations *embedding)
{
    return (ExecNorm){
        .rows = exec_local_rows(layer->widths, exec_slice_rows(&layer->slice)),
        .cols = layer->widths->hidden,
        .x = embedding->x,
        .gain = ends->embedding_gain.weight,
        .shift = ends->embedding_shift.weight,
        .mean = embedding->mean,
        .rstd = embedding->rstd,
        .epsilon = layer->widths->norm_epsilon,
    };
}

/* Multiplies @n elements with @factor where that is given: 0 stands for 1. */
static void
scale(const ExecLayer *layer, int64_t n, double factor, void *x)
{
    if (factor > 0.0)
        layer->backend->ops->scale(layer->backend, n, (float)factor, x);
}

/* Of several tp ranks, the first one adds the positions to what it sums up. */
void
exec_embedding_forward(const ExecLayer *layer, const ExecEndTensors *ends,
                       const ExecEmbeddingActivations *kept, const int32_t *tokens, void *x)
{
    const ExecWidths *w = layer->widths;
    const ExecEmbedding embedding = embedding_of(layer, tokens);
    const bool first = layer->comm->groups[EXEC_DIM_TP].index == 0;
    const int64_t n = exec_local_rows(w, embedding.rows) * w->hidden;
    void *to = kept->x != NULL ? kept->x : x;
    void *sum = w->sequence_parallel ? layer->scratch->partial : to;

    layer->backend->ops->embedding_forward(layer->backend, &embedding, ends->token_table.weight,
                                           first ? ends->position_table.weight : NULL, sum);
    const void *own = exec_reduce_rows(layer, sum);
    if (own != to)
        layer->backend->ops->copy(layer->backend, (size_t)exec_storage_bytes(layer->backend, n),
                                  own, to);
    if (kept->x != NULL) {
        const ExecNorm norm = embedding_norm(layer, ends, kept);
        layer->backend->ops->norm_forward(layer->backend, &norm, x);
    }
}

void
exec_embedding_weight(const ExecLayer *layer, const ExecEndTensors *ends,
                      const ExecEmbeddingActivations *kept, const int32_t *tokens, const void *d)
{
    const ExecEmbedding embedding = embedding_of(layer, tokens);
    const ExecWidths *w = layer->widths;
    ExecBackend *backend = layer->backend;
    const int64_t n = exec_local_rows(w, embedding.rows) * w->hidden;
    void *before = layer->scratch->partial;

    if (kept->x != NULL) {
        const ExecNorm norm = embedding_norm(layer, ends, kept);
        backend->ops->zero(backend, (size_t)exec_storage_bytes(backend, n), before);
        backend->ops->norm_backward(backend, &norm, d, before, ends->embedding_gain.gradient,
                                    ends->embedding_shift.gradient);
        d = before;
    }
    backend->ops->embedding_backward(backend, &embedding, exec_gather_rows(layer, d),
                                     ends->token_table.gradient, ends->position_table.gradient);
}

/* --- head --- */

ExecHeadActivations
exec_head_activations(const ExecWidths *w, int64_t rows, void *x, ExecCutter *cutter)
{
    const int64_t local_rows = exec_local_rows(w, rows);
    ExecHeadActivations head = {.x = x, .n = 1 + w->arch.mtp.n};

    head.in[0] = exec_cut(cutter, local_rows * w->hidden);
    head.mean = exec_cut_words(cutter, local_rows);
    if (w->norm == MODEL_NORM_RMS)
        head.mean = NULL;
    head.rstd = exec_cut_words(cutter, local_rows);
    for (int64_t i = 0; i < head.n; i++) {
        if (i > 0)
            head.in[i] = exec_cut(cutter, local_rows * w->hidden);
        head.logits[i] = exec_cut(cutter, rows * w->padded_vocab);
        if (w->arch.logits_cap > 0.0)
            head.capped[i] = exec_cut(cutter, rows * w->padded_vocab);
    }
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

/* Loss @i, and the logits' gradient in their place.  Several tp ranks give each other statistics
 * of their columns first; the first of them reports the loss. */
static void
cross_entropy(const ExecLayer *layer, const ExecHeadActivations *head, int64_t i,
              const int32_t *targets, float factor, float *stats, double *loss)
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
        .factor = factor * (float)model_loss_weight(&w->arch, i),
        .logits = head->logits[i],
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

/* What becomes of the product: logits, scaled and capped. */
static void
finish_logits(const ExecLayer *layer, const ExecHeadActivations *head, int64_t i)
{
    const ModelArch *arch = &layer->widths->arch;
    ExecBackend *backend = layer->backend;
    const int64_t n = exec_slice_rows(&layer->slice) * layer->widths->padded_vocab;

    scale(layer, n, arch->logits_scale, head->logits[i]);
    if (head->capped[i] == NULL)
        return;
    backend->ops->cap(backend, n, (float)arch->logits_cap, head->logits[i]);
    backend->ops->copy(backend, (size_t)exec_storage_bytes(backend, n), head->logits[i],
                       head->capped[i]);
}

/* From the gradient of the logits to that of the product, in its place. */
static void
begin_gradient(const ExecLayer *layer, const ExecHeadActivations *head, int64_t i)
{
    const ModelArch *arch = &layer->widths->arch;
    const int64_t n = exec_slice_rows(&layer->slice) * layer->widths->padded_vocab;

    if (head->capped[i] != NULL)
        layer->backend->ops->cap_backward(layer->backend, n, (float)arch->logits_cap,
                                          head->capped[i], head->logits[i]);
    scale(layer, n, arch->logits_scale, head->logits[i]);
}

/* Result @i's logits, loss and gradient. */
static void
loss_forward(const ExecLayer *layer, const ExecEndTensors *ends, const ExecHeadActivations *head,
             int64_t i, const int32_t *targets, float factor, float *stats, double *loss)
{
    const ExecWidths *w = layer->widths;

    exec_gemm(layer->backend, &(ExecGemm){
                                  .trans_b = true,
                                  .m = exec_slice_rows(&layer->slice),
                                  .n = w->padded_vocab,
                                  .k = w->hidden,
                                  .a = exec_gather_rows(layer, head->in[i]),
                                  .lda = w->hidden,
                                  .b = ends->head_table.weight,
                                  .ldb = w->hidden,
                                  .c = head->logits[i],
                                  .ldc = w->padded_vocab,
                                  .bias = ends->head_bias.weight,
                              });
    finish_logits(layer, head, i);
    cross_entropy(layer, head, i, targets, factor, stats, loss);
    begin_gradient(layer, head, i);
}

void
exec_head_forward(const ExecLayer *layer, const ExecEndTensors *ends,
                  const ExecHeadActivations *head, const int32_t *const *targets, float factor,
                  float *stats, double *losses)
{
    ExecBackend *backend = layer->backend;
    const ExecNorm norm = norm_of(layer, ends, head);

    if (layer->widths->arch.no_final_norm)
        backend->ops->copy(backend, (size_t)exec_storage_bytes(backend, norm.rows * norm.cols),
                           head->x, head->in[0]);
    else
        backend->ops->norm_forward(backend, &norm, head->in[0]);
    for (int64_t i = 0; i < head->n; i++)
        loss_forward(layer, ends, head, i, targets[i], factor, stats, &losses[i]);
}

void
exec_head_backward(const ExecLayer *layer, const ExecEndTensors *ends,
                   const ExecHeadActivations *head, void *d)
{
    ExecBackend *backend = layer->backend;
    const ExecNorm norm = norm_of(layer, ends, head);
    const ExecLinear table = table_of(layer, ends);
    const int64_t n = norm.rows * norm.cols;
    const size_t n_bytes = (size_t)exec_storage_bytes(backend, n);

    for (int64_t i = 0; i < head->n; i++) {
        void *d_result = exec_at(backend, d, i * n);
        exec_linear_forward(backend, &table, head->logits[i], NULL, layer->scratch->partial);
        const void *d_in = exec_reduce_rows(layer, layer->scratch->partial);
        if (i > 0 || layer->widths->arch.no_final_norm) {
            backend->ops->copy(backend, n_bytes, d_in, d_result);
            continue;
        }
        backend->ops->zero(backend, n_bytes, d_result);
        backend->ops->norm_backward(backend, &norm, d_in, d_result, ends->norm_gain.gradient,
                                    ends->norm_shift.gradient);
    }
}

void
exec_head_weight(const ExecLayer *layer, const ExecEndTensors *ends,
                 const ExecHeadActivations *head)
{
    const ExecLinear table = table_of(layer, ends);

    for (int64_t i = 0; i < head->n; i++) {
        exec_linear_weight(layer->backend, &table, head->logits[i],
                           exec_gather_rows(layer, head->in[i]));
        if (ends->head_bias.gradient != NULL)
            layer->backend->ops->bias_backward(layer->backend, table.rows, table.inputs,
                                               head->logits[i], table.inputs,
                                               ends->head_bias.gradient);
    }
}
