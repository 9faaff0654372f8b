/*
 * executor/model/context_parallel.h - the tokens of a slice over the cp ranks, and their K and V.
 *
 * A slice of T tokens is cut into 2 cp equal chunks, of which rank c holds chunks c and
 * 2 cp - 1 - c, so that every rank has the same number of scores to compute  [the zigzag of ring
 * attention, Brandon et al. 2311.09431]; where 2 cp does not divide T, into cp chunks in order.
 * Positions are those of the whole sequence, so that causal masks and rotary angles stay right.
 *
 * K and V of a layer, of all tokens up to the slice's end, are gathered over cp before attention,
 * again in backward, and their gradients reduced over cp after it: the exchanges of cost-model.md
 * 3.1.  They live in scratch for one layer; kept are a rank's own.
 *
 * Private to executor/.
 */
#ifndef EXECUTOR_MODEL_CONTEXT_PARALLEL_H
#define EXECUTOR_MODEL_CONTEXT_PARALLEL_H

#include "executor/model/layer.h"

G_BEGIN_DECLS

/* Consecutive tokens of a slice on one rank. */
typedef struct {
    int64_t begin, n;
} ExecChunk;

/* The chunks of rank @index of @cp, of a slice of @tokens; positions count from the slice's first.
 * Returns: how many, 1 or 2. */
int exec_slice_chunks(int64_t tokens, int64_t cp, int64_t index, ExecChunk chunks[2]);

/* K and V of all tokens up to the slice's end, in their order: layer->kv, or gathered. */
const void *exec_kv_gather(const ExecLayer *layer);

/* Adds the gradients in scratch->d_kv, of all ranks, to this rank's rows of layer->d_kv. */
void exec_kv_reduce(const ExecLayer *layer);

G_END_DECLS

#endif /* EXECUTOR_MODEL_CONTEXT_PARALLEL_H */
