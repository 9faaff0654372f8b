/*
 * executor/model/attention_parts.h - what the files of attention (attention.h) share: where its
 * tensors lie, how queries, keys and values come from a layer's input, and the core between them
 * and the result.
 *
 * Queries, keys and values come either from products of the input (attention_plain.c) or through
 * latents (attention_latent.c): a table of functions each.  The core (attention_core.c) knows
 * neither.  Widths are those of the layer's widths, rows those of the slice on this rank.
 *
 * Private to executor/model/attention*.c.
 */
#pragma once

#include "executor/model/attention.h"
#include "executor/model/layout_build.h"
#include "executor/model/linear.h"

typedef struct {
    void *q;            /* [rows, q_width] */
    void *own_kv;       /* [rows, kv_width] this slice's K columns, then V; in layer->memory where
                         * there are several slices */
    void *attention;    /* [rows, out_width] */
    float *lse;         /* [rows, n_heads] */
    void *gate, *gated; /* [rows, gate_width], [rows, out_width]; where the result has a gate */
    void *d_q;          /* [rows, q_width] */
    void *d_kv;         /* [rows, kv_width] */
    void *d_gate;       /* [rows, gate_width] */
    void *d_attention;  /* [rows, out_width] */
    void *kv;           /* [seq_len, sequences, kv_width] of all ranks; cp > 1 only */
    float *d_kv_sum;    /* its gradient */
    void *ring;         /* either in the order in which cp ranks exchange it */
    /* Where queries and keys are normed: what they were before, [rows, q_width] and [rows, k_width],
     * and sums of their groups (ExecGroupNorm); those of the gradients in one after the other. */
    void *raw_q, *raw_k;
    float *q_sums, *k_sums, *d_sums;
    /* Of sparse attention (attention_indexer.c): [rows, columns of its queries]; [rows, head_dim] before the norm
     * and the own rows of all keys; [rows, heads]; the norm's sums; [rows, n_chosen]. */
    void *index_q, *index_raw_k, *index_k, *index_weight;
    float *index_sums;
    int32_t *chosen;
    void *d_index_q, *d_index_k, *d_index_weight;
    float *d_index_sums,
        *d_index_k_sum; /* d_index_k_sum: of whole sequences; of slices in d_memory */
    float *share;       /* [rows, n_chosen] */
    /* Latents: columns of the queries' (may be none), of the keys' and values', and of the part of
     * keys that is rotated. */
    void
        *raw_latent; /* [local rows, latent_width] before the norms; the last columns are not set */
    void *latent;    /* [local rows, latent_width] */
    /* Sums of squares of the local rows of the queries' latent and of the other one; of gradients. */
    float *latent_sums[2], *d_latent_sums;
    void *latents;   /* [rows, latent_width]: of all tp ranks, or latent */
    void *kv_up;     /* [rows, kv_up_width] columns of K that are not rotated, then of V; it lies
                         * where d_kv does */
    void *d_kv_up;   /* the same of gradients */
    void *d_latent;  /* [local rows, latent_width] before the norms */
    void *d_latents; /* [rows, latent_width]: to be summed over tp, or d_latent */
} ExecAttentionTensors;

/* Whether backward makes q, k and v of latents again; k and v only where later slices do not read
 * them. */
static inline bool
exec_attention_repeats_up(const ExecLayerShape *shape)
{
    const ModelArch *arch = &shape->widths->arch;

    return exec_is_again(shape, PLAN_MODULE_MLA_UP) && model_has_mla(arch) &&
           arch->mixer == MODEL_MIXER_ATTENTION;
}

/* How queries, keys and values come from the input.  All of one kind of layers. */
typedef struct {
    /* Whether the products read all rows of the input, of all tp ranks; else @x_all below is NULL
     * and @dx is not written. */
    bool (*reads_all)(const ExecWidths *w);
    void (*add_parameters)(ExecLayoutBuilder *b);
    void (*cut)(const ExecLayerShape *shape, ExecMixerCutters *c, ExecAttentionTensors *t);
    /* @x [local rows, hidden], @x_all [rows, hidden].  Writes t->q and t->own_kv. */
    void (*forward)(const ExecLayer *layer, const ExecAttentionTensors *t, const void *x,
                    const void *x_all);
    /* (nullable) Writes them once more, where exec_attention_repeats_up(). */
    void (*repeat)(const ExecLayer *layer, const ExecAttentionTensors *t, const void *x_all);
    /* From t->d_q and t->d_kv, which may change, to the gradient of x_all: @dx [rows, hidden], whose
     * sum over tp it is. */
    void (*backward)(const ExecLayer *layer, const ExecAttentionTensors *t, void *dx);
    /* (nullable) After that sum: what comes to the gradient of the own rows by another way.  @adds
     * it is added to @dx [local rows, hidden]; else it is written there. */
    void (*backward_rows)(const ExecLayer *layer, const ExecAttentionTensors *t, void *dx,
                          bool adds);
    void (*weight)(const ExecLayer *layer, const ExecAttentionTensors *t, const void *x,
                   const void *x_all);
} ExecQueries;

/* Defined in the files of their names. */
extern const ExecQueries exec_attention_plain, exec_attention_latent;

/* Defined in attention_plain.c: K/V heads are split over tp like those of q, or replicated where there
 * are fewer than tp.  Of each head there are @k elements and, in a second run of columns, @v. */
ExecShard exec_attention_kv_shard(const ExecLayoutBuilder *b, int64_t rows, int64_t k, int64_t v);

/* Defined in attention_norms.c: norms of queries and keys, where the kind has them.  Forward goes from
 * t->raw_q and own_kv, whose keys it keeps in t->raw_k, to t->q and own_kv; backward changes d_q and
 * the columns of keys of d_kv. */
void exec_attention_norms_add(ExecLayoutBuilder *b);
void exec_attention_norms_cut(const ExecLayerShape *shape, ExecMixerCutters *c,
                              ExecAttentionTensors *t);
void exec_attention_norms_forward(const ExecLayer *layer, const ExecAttentionTensors *t);
void exec_attention_norms_backward(const ExecLayer *layer, const ExecAttentionTensors *t);

/* Defined in attention_indexer.c: sparse attention, whose queries see chosen keys alone, where the kind has an
 * indexer.  exec_attention_index_forward() chooses them for the core, after queries->forward(); index_backward()
 * comes after the core's backward.  @x_all  all rows of the layer's input */
static inline bool
exec_attention_has_indexer(const ExecWidths *w)
{
    return w->arch.indexer.n_heads > 0;
}
void exec_attention_index_add(ExecLayoutBuilder *b);
void exec_attention_index_cut(const ExecLayerShape *shape, ExecMixerCutters *c,
                              ExecAttentionTensors *t);
int64_t exec_attention_index_memory_bytes(const ExecLayerShape *shape, bool gradient);
void exec_attention_index_forward(const ExecLayer *layer, const ExecAttentionTensors *t,
                                  const void *x_all);
void exec_attention_index_backward(const ExecLayer *layer, const ExecAttentionTensors *t);
void exec_attention_index_weight(const ExecLayer *layer, const ExecAttentionTensors *t,
                                 const void *x_all);

/* How many keys a query has at most. */
static inline int64_t
exec_attention_n_chosen(const ExecWidths *w)
{
    return MIN(w->arch.indexer.top_k, w->seq_len);
}

/* Defined in attention_core.c: what the core asks the backend, of a whole slice on one cp rank. */
ExecAttention exec_attention_of(const ExecLayer *layer, const ExecAttentionTensors *t);

/* Columns of the result's gate. */
static inline int64_t
exec_gate_width(const ExecWidths *w)
{
    return w->n_heads * model_gate_columns(&w->arch);
}

/* Turns the first rotary_dim elements of heads that lie @head_dim apart in rows @stride apart, if
 * the kind has rotary positions.  Defined in attention.c. */
void exec_attention_rotate(const ExecLayer *layer, int64_t n_heads, int64_t head_dim,
                           int64_t stride, bool inverse, void *x);

/* Defined in attention_core.c: from q and own_kv to attention; from the gradient d_attention to d_q
 * and d_kv, and that of the sinks.  exec_attention_cut_core() cuts what lies between them. */
void exec_attention_cut_core(const ExecLayerShape *shape, ExecMixerCutters *c,
                             ExecAttentionTensors *t);
void exec_attention_core_forward(const ExecLayer *layer, const ExecAttentionTensors *t);
void exec_attention_core_backward(const ExecLayer *layer, const ExecAttentionTensors *t);

/* Where this slice's rows begin in layer->memory and layer->d_memory. */
static inline int64_t
exec_attention_own_at(const ExecLayer *layer)
{
    const ExecSlice *s = &layer->slice;

    return s->own_context * s->sequences * layer->widths->kv_width;
}
