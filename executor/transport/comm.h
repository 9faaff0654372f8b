/*
 * executor/transport/comm.h - ExecComm: the groups that a rank belongs to, and collectives over
 * them for layers.
 *
 * Ranks are numbered in the plan's order of dimensions (schedule/rank_order.h).  The ranks of a
 * group are in ascending order.
 *
 *   TP      the tp ranks that share a layer
 *   CP      the cp ranks that share a sequence
 *   EP      ep consecutive ranks of a pipeline rank, whatever their tp, cp and dp, that share the
 *           experts (cost-model.md 5.3)
 *   DENSE   the dp * cp ranks that have copies of a dense parameter
 *   EXPERT  the dp * cp * tp / ep ranks, every ep-th of a pipeline rank, that have copies of an
 *           expert
 *   KV      the TP ranks that have copies of one K/V head, where there are fewer heads than ranks:
 *           a group for each kind of layers, EXEC_DIM_KV + kind; empty beyond the kinds
 *
 * Collectives return nothing, as compute slots do: the first failure is kept, later collectives do
 * nothing, and exec_comm_check() reports the failure before a result is used.
 *
 * Private to executor/.
 */
#pragma once

#include "executor/transport/transport.h"
#include "executor/transport/turns.h"
#include "models/arch.h"
#include "schedule/plan.h"

typedef enum {
    EXEC_DIM_TP,
    EXEC_DIM_CP,
    EXEC_DIM_EP,
    EXEC_DIM_DENSE,
    EXEC_DIM_EXPERT,
    EXEC_DIM_KV,
    EXEC_DIM_N = EXEC_DIM_KV + MODEL_MAX_KINDS,
} ExecDim;

typedef struct {
    ExecBackend *backend;     /* (borrowed) */
    ExecTransport *transport; /* (borrowed) */
    ExecGroup groups[EXEC_DIM_N];
    int32_t *members[EXEC_DIM_N]; /* (owned) */
    GError *error;                /* (owned, nullable) the first failure */
    ExecTurns *turns; /* (borrowed, nullable) of the rank's overlapped pairs; NULL: it has none */
} ExecComm;

void exec_comm_init(ExecComm *comm, const ModelArch *arch, const Plan *plan, ExecBackend *backend,
                    ExecTransport *transport);
void exec_comm_clear(ExecComm *comm);

/* For a rank that is alone: it is the only member of every group. */
void exec_comm_init_alone(ExecComm *comm, ExecBackend *backend);

/* Keeps a failure that happened elsewhere (taken), unless there is one already. */
void exec_comm_fail(ExecComm *comm, GError *error);

/* Returns false with the first failure since the last call, if there was one. */
bool exec_comm_check(ExecComm *comm, GError **error);

/* The collectives of transport.h, in place on @n elements.  A group of one rank needs nothing. */
void exec_comm_all_reduce(ExecComm *comm, ExecDim dim, Dtype dtype, int64_t n, void *data);
void exec_comm_reduce_scatter(ExecComm *comm, ExecDim dim, Dtype dtype, int64_t n, void *data);
void exec_comm_all_gather(ExecComm *comm, ExecDim dim, Dtype dtype, int64_t n, void *data);
/* Where the group has one rank, it copies what the rank gives to itself. */
void exec_comm_all_to_all(ExecComm *comm, ExecDim dim, const ExecExchange *exchange);

/* The same; where the rank is at work on an overlapped pair, the other op computes meanwhile. */
void exec_comm_exchange(ExecComm *comm, ExecDim dim, const ExecExchange *exchange);

/* Moves on messages that are under way (ExecTransportOps.poll), between pieces of computing. */
void exec_comm_poll(ExecComm *comm);

/* Returns how many of @n elements are in this rank's chunk, and in @begin where they begin. */
int64_t exec_comm_chunk(const ExecComm *comm, ExecDim dim, int64_t n, int64_t *begin);
