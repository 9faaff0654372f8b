/*
 * executor/model/attention.h - attention with its products, as a mixer (exec_mixer_attention), and
 * context parallelism: which tokens of a slice each cp rank has, and how their K and V are exchanged.
 *
 *   q, k, v = x Wq, x Wkv (q and k rotated);  y = attention(q, k, v) Wproj
 *
 * A slice of T tokens is cut into 2 cp equal chunks, of which rank c has chunks c and 2 cp - 1 - c,
 * so that every rank has the same number of scores to compute [the zigzag of ring attention,
 * Brandon et al. 2311.09431].  Where 2 cp does not divide T, it is cut into cp chunks in order.
 * Positions are those in the whole sequence, so that causal masks and rotations stay right.
 *
 * The K and V of a layer, of all tokens up to the slice's end, are gathered over cp before
 * attention and again in backward, and their gradients are reduced over cp after it: the exchanges
 * of cost-model.md 3.1.  They are in scratch for one layer at a time; a rank keeps only its own.
 *
 * Sparse attention (attention_indexer.c) chooses keys between the products and the core.
 *
 * Private to executor/.
 */
#pragma once

#include "executor/model/layer.h"

/* Consecutive tokens of a slice on one rank. */
typedef struct {
    int64_t begin, n; /* counted from the slice's first token */
} ExecChunk;

/* Sets @chunks to those of rank @index of @cp, of a slice of @tokens.  Returns: how many, 1 or 2.
 */
int exec_slice_chunks(int64_t tokens, int64_t cp, int64_t index, ExecChunk chunks[2]);
