/*
 * executor/model/moe_route.h - which rows go to which expert, and their way there and back.
 *
 * Private to executor/moe*.c.
 */
#ifndef EXECUTOR_MODEL_MOE_ROUTE_H
#define EXECUTOR_MODEL_MOE_ROUTE_H

#include "executor/model/layer.h"

G_BEGIN_DECLS

/* Of the routing block. */
typedef struct {
    int32_t *expert; /* [n_rows, top_k] */
    float *weight;   /* [n_rows, top_k] p */
    int32_t *slot;   /* [n_rows, top_k] where the choice lies among what is sent */
    int32_t *row;    /* [n_sent] which row that is */
    int32_t *choice; /* [n_sent] and which choice: row * top_k + k */
} ExecMoeRouting;

/* Of the experts' block and that of their products (x, active). */
typedef struct {
    int32_t *arrived; /* [n_received] where the i-th by expert lies among what arrived */
    int32_t *inverse; /* [n_received] the inverse */
    float *weight;    /* [n_received] p, by expert like all that follows */
    void *x;          /* [n_received, hidden] */
    void *up;         /* [n_received, 2 expert_hidden] */
    void *active;     /* [n_received, expert_hidden] scaled by p */
} ExecMoeExperts;

/* Bytes of @n elements of @bytes in a block, whose pieces begin at cache lines. */
static inline int64_t
exec_moe_padded(int64_t n, int64_t bytes)
{
    return (n * bytes + 63) / 64 * 64;
}

/* Cuts such a piece off at @at. */
static inline void *
exec_moe_cut(char **at, int64_t n, int64_t bytes)
{
    void *piece = *at;

    *at += exec_moe_padded(n, bytes);
    return piece;
}

ExecMoeRouting exec_moe_routing(const ExecMoe *moe);
ExecMoeExperts exec_moe_experts(const ExecWidths *w, const ExecMoe *moe);

/* A block of the pool unless it is taken already.  False once anything of this rank's step has
 * failed: then sizes mean nothing. */
bool exec_moe_take(const ExecLayer *layer, TraceMemoryOwner owner, int64_t n_bytes,
                   ExecBlock *block);

/* The rows that this rank routes: its own, or its share of those that all tp ranks have; and n2 of
 * them. */
int64_t exec_moe_own_rows(const ExecLayer *layer, int64_t *begin);
void *exec_moe_own_input(const ExecLayer *layer);

/* Scores, choices and p; fills in layer->moe, and its blocks but for the rows themselves. */
bool exec_moe_plan_routes(const ExecLayer *layer);

/* Two buffers, one for each side of an exchange. */
typedef struct {
    ExecBlock block;
    void *out, *in;
} ExecMoeWagon;

bool exec_moe_wagon_take(const ExecLayer *layer, ExecMoeWagon *wagon);

/* Rows of @row_bytes from where they are routed to their experts, or @back. */
void exec_moe_exchange_rows(const ExecLayer *layer, int64_t row_bytes, bool back, const void *out,
                            void *in);

/* @x [own rows, hidden] to the experts: @y [n_received, hidden] by expert. */
void exec_moe_send_rows(const ExecLayer *layer, const ExecMoeWagon *wagon, const void *x, void *y);

/* @y [n_received, hidden] by expert, back: added to @x [own rows, hidden]. */
void exec_moe_return_rows(const ExecLayer *layer, const ExecMoeWagon *wagon, const void *y,
                          void *x);

/* p of the rows, to the experts' side. */
void exec_moe_send_weights(const ExecLayer *layer, const ExecMoeWagon *wagon);

G_END_DECLS

#endif /* EXECUTOR_MODEL_MOE_ROUTE_H */
