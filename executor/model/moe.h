/*
 * executor/model/moe.h - experts in place of a layer's MLP: y = x2 + sum over the row's top_k experts of
 * p_e (swiglu(n2 Wup_e) Wdown_e), + shared experts, a dense MLP that sees every row.
 *
 * The router's scores n2 Wr are fp32; the top_k largest are chosen (of equal ones the lower
 * expert), p is the softmax over the chosen  [Jiang et al. 2401.04088 section 2.1].  No row is
 * dropped, no balancing loss is added; ExecRunOptions.balance_experts sends rows to the experts in
 * turn.
 *
 * Expert parallelism: a rank holds n_experts / ep experts.  Every rank of the ep group routes its
 * own rows - of tp ranks with the same rows each its share, whose results are gathered - and sends
 * them, with p, to their experts' ranks; the results come back the same way.  p scales the
 * activation, so that nothing is kept for it.  Rows of an expert are in the order of (rank, row,
 * choice): sums have one order, whatever arrives first.
 *
 * How many rows go where is known on the host only: this is the one place of a layer that reads
 * device memory back (the chosen experts) and waits for it.  Blocks whose size depends on it are
 * taken from the pool inside F, I and B.
 *
 * Private to executor/.
 */
#ifndef EXECUTOR_MODEL_MOE_H
#define EXECUTOR_MODEL_MOE_H

#include "executor/device/pool.h"

G_BEGIN_DECLS

struct ExecLayer;

/* Kept by one (micro-batch, slice, layer) from F to B, or W.  Zero: nothing taken. */
typedef struct {
    ExecBlock routing;  /* of the rows that this rank routes: until B or I */
    ExecBlock experts;  /* of the rows that came to its experts: until B or I */
    ExecBlock products; /* what weight gradients read of these: until B or W */
    ExecBlock kept;     /* from I to W */
    int64_t n_rows, n_sent, n_received;
    /* (owned) bounds of what goes to and comes from each rank, of @n_ranks + 1; and of the rows
     * of each expert here */
    int64_t *sent, *received, *expert_begin;
} ExecMoe;

void exec_moe_clear(ExecMoe *moe, ExecPool *pool);
/* What is left is enough for W. */
void exec_moe_clear_inputs(ExecMoe *moe, ExecPool *pool);

/* As the halves of layer.h; shared experts use their @d_up. */
void exec_moe_forward(const struct ExecLayer *layer, void *y);
/* Leaves what the experts' weight gradients need in layer->moe->kept.  @d  this rank's rows; @dy
 * (nullable without shared experts) all. */
const void *exec_moe_backward(const struct ExecLayer *layer, void *d_up, const void *d,
                              const void *dy);
void exec_moe_weight(const struct ExecLayer *layer, const void *d_up, const void *d_down);

G_END_DECLS

#endif /* EXECUTOR_MODEL_MOE_H */
