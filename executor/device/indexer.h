/*
 * executor/device/indexer.h - what sparse attention asks of a backend: the choice of the keys of each query by the
 * scores of a few small heads, and the gradients of what makes these scores.
 *
 * The plain definition of DeepSeek-V3.2 [2512.02556 section 2.1 and its code, without what fp8 needs]:
 *
 *   I[t, s] = c sum_j w[t, j] relu(q[t, j] . k[s])          c = 1 / sqrt(n_heads head_dim)
 *
 * of the keys s that attention's row t sees, those with the n_chosen largest scores are chosen, of equal ones the
 * first; all of them where there are no more.  Nothing passes through the choice.
 *
 * The scores learn from attention [equation 4]: the loss of a row is the divergence KL(p || softmax(I)) over the
 * chosen keys, with p the sum over all heads of attention's probabilities, divided by its own sum.  p is a constant
 * here, and so is what q, k and w were made of: the gradients go to the indexer's parameters alone.
 *
 * Host backends compute all of it in indexer.c, from either storage and in double.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

/* Rows are those of an ExecAttention, [tokens, sequences]; keys those of its context and its own. */
typedef struct {
    int64_t n_heads, head_dim, n_chosen;
    const void *q;      /* [rows, n_heads * head_dim] */
    const void *k;      /* [context + tokens, sequences, head_dim] */
    const void *weight; /* [rows, n_heads] */
    int32_t *chosen;    /* [rows, n_chosen] keys in ascending order; then -1 */
} ExecIndexer;

typedef struct {
    const float
        *share; /* [rows, n_chosen] of each chosen key the probabilities of all heads, summed up */
    float factor; /* that gradients are multiplied by */
    void *dq, *d_weight;
    float *dk; /* the form of k; added to */
} ExecIndexerGradients;
