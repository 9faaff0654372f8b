/*
 * executor/model/moe_parts.h - what lies in the blocks of ExecMoe (moe.h), and where.
 *
 * As in mixer.h the same functions count bytes and cut tensors off.
 *
 * Private to executor/model/moe*.c.
 */
#pragma once

#include "executor/model/layer.h"

/* The routing block. */
typedef struct {
    int32_t *expert; /* [n_rows, top_k] */
    float *weight;   /* [n_rows, top_k] p */
    int32_t *slot;   /* [n_rows, top_k] where the choice lies among the rows that are sent */
    int32_t *row;    /* [n_sent] which row was sent there */
    int32_t *choice; /* [n_sent] for which choice: row * top_k + k */
    float *scores;   /* [n_rows, n_experts]; NULL where the factors alone give their gradient */
} ExecMoeRouting;

/* The experts' block and that of their products (x, active). */
typedef struct {
    int32_t *arrived; /* [n_received] where the i-th row by expert lies among those that arrived */
    int32_t *inverse; /* [n_received] of that permutation */
    float *weight;    /* [n_received] p, ordered by expert like all that follows */
    void *up;         /* [n_received, expert_up] */
    void *x;          /* [n_received, expert_input] */
    void *active; /* [n_received, expert_hidden] scaled by p; where backward makes it again, in a
                         * block of its own */
    void *stored; /* [n_received] p in the storage, where biases are multiplied with it */
    void *latent; /* [n_rows, expert_input] sums of results, where experts are latent */
} ExecMoeExperts;

/* The kept block. */
typedef struct {
    void *d_out;    /* [n_received, expert_input] gradient of the experts' outputs */
    void *d_up;     /* [n_received, expert_up] */
    void *d_scores; /* [n_rows, n_experts] */
    void *d_rows;   /* latent: [n_rows, hidden] gradient of the rows' results */
    void *d_latent; /* latent: [n_rows, expert_input] gradient of what is sent */
} ExecMoeKept;

/* Whether rows go to their experts narrow. */
bool exec_moe_is_latent(const ExecWidths *w);

/* Whether factors are the softmax over the chosen, as they are. */
bool exec_moe_has_plain_factors(const ExecWidths *w);

/* Cut the tensors of a block, or count its bytes: that of routing; those of experts and of their products;
 * the kept one. */
ExecMoeRouting exec_moe_cut_routing(const ExecWidths *w, const ExecMoe *moe, ExecCutter *cutter);
ExecMoeExperts exec_moe_cut_experts(const ExecWidths *w, const ExecMoe *moe, ExecCutter *experts,
                                    ExecCutter *products);
ExecMoeKept exec_moe_cut_kept(const ExecWidths *w, const ExecMoe *moe, ExecCutter *cutter);

/* The same of the blocks that @moe has. */
ExecMoeRouting exec_moe_routing(const ExecWidths *w, const ExecMoe *moe);
ExecMoeExperts exec_moe_experts(const ExecWidths *w, const ExecMoe *moe);
ExecMoeKept exec_moe_kept(const ExecWidths *w, const ExecMoe *moe);

/* Takes a block of the pool unless it is taken already.  False once anything of this rank's step
 * has failed: then sizes mean nothing. */
bool exec_moe_take(const ExecLayer *layer, TraceMemoryOwner owner, int64_t n_bytes,
                   ExecBlock *block);
