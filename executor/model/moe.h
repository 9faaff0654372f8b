/*
 * executor/model/moe.h - experts in place of a layer's MLP: y = x2 + sum over the row's top_k
 * experts of p_e (swiglu(n2 Wup_e) Wdown_e), plus shared experts, which are one dense MLP that sees
 * every row.
 *
 * The router's scores n2 Wr are fp32.  The top_k largest are chosen (of equal ones the lower
 * expert), and p is the softmax over the chosen  [Jiang et al. 2401.04088 section 2.1].  No row is
 * dropped and no balancing loss is added; ExecRunOptions.balance_experts sends rows to the experts
 * in turn.
 *
 * Expert parallelism: a rank holds n_experts / ep experts.  Every rank of the ep group routes its
 * own rows and sends them, with p, to the ranks of their experts; the results come back by the same
 * exchange.  Where tp ranks have the same rows, each routes its share of them, and the results are
 * gathered over tp.  p scales the activation, so that nothing is kept for it.  An expert's rows are
 * ordered by (rank, row, choice): sums have one order, whatever arrives first.
 *
 * Only the host can decide sizes, so this is the one part of a layer that reads device memory back
 * (the chosen experts) and waits for it.  Blocks whose size depends on the routing are taken from
 * the pool inside F, I and B.
 *
 * Errors are kept in the layer's comm (comm.h).  Private to executor/.
 */
#pragma once

#include "executor/device/pool.h"

struct ExecLayer;

/* What one (micro-batch, slice, layer) keeps from F to B or W.  All zero: nothing is taken. */
typedef struct {
    ExecBlock routing;  /* of the rows that this rank routes: until B or I */
    ExecBlock experts;  /* of the rows that came to its experts: until B or I */
    ExecBlock products; /* what weight gradients read of these rows: until B or W */
    ExecBlock kept;     /* from I to W */
    ExecBlock active; /* inputs of the second products where they are not kept: in F, again in B, or
                         from I to W */
    bool repeats_active; /* ... because selective recompute has the module of activations */
    int64_t n_rows;      /* that this rank routes */
    int64_t n_sent;      /* n_rows top_k */
    int64_t n_received;  /* rows that came to its experts */
    /* (owned) Rows [sent[r], sent[r + 1]) go to rank r of the ep group, rows [received[r],
     * received[r + 1]) come from it, and rows [expert_begin[e], expert_begin[e + 1]) are those of
     * expert e of this rank. */
    int64_t *sent, *received, *expert_begin;
} ExecMoe;

/* Gives everything back. */
void exec_moe_clear(ExecMoe *moe, ExecPool *pool);

/* Gives back what W does not need. */
void exec_moe_clear_inputs(ExecMoe *moe, ExecPool *pool);

/* These do what exec_mlp_forward(), _backward() and _weight() of layer.h do; shared experts use
 * @d_up. */
void exec_moe_forward(const struct ExecLayer *layer, const void *in, const void *residual, void *y);

/* Leaves what the experts' weight gradients need in layer->moe->kept.  @d  the gradient of y, this
 * rank's rows; @dy  of all rows (nullable where no expert is shared). */
void *exec_moe_backward(const struct ExecLayer *layer, void *d_up, const void *d, const void *dy);
void exec_moe_weight(const struct ExecLayer *layer, const void *in, const void *d_up,
                     const void *d_down);
