/*
 * executor/run/rank_state.h - a rank's thread: its own things, and its parts in rank_*.c.
 *
 * Private to executor/rank*.c.
 */
#ifndef EXECUTOR_RUN_RANK_STATE_H
#define EXECUTOR_RUN_RANK_STATE_H

#include "executor/run/rank.h"
#include "executor/model/stage.h"
#include "executor/transport/device.h"
#include "executor/cuda/nccl.h"

G_BEGIN_DECLS

/* A thread's own things. */
typedef struct {
    ExecShared *shared;
    ExecRankRecord *record;
    int32_t rank;
    ExecCoordinates coordinates; /* of the rank in the plan */
    int64_t step;
    ExecBackend *backend; /* (owned) */
    ExecPool *pool;       /* (owned) */
    ExecModel *model;     /* (owned) */
    ExecUnits *units;     /* (owned, nullable) where parameters are apart */
    ExecStageRun **runs;  /* (owned) by chunk */
    ExecStageScratch scratch;
    ExecTransport transport;
    ExecComm comm;
    int64_t *sequences;      /* (owned) of each micro-batch */
    int64_t *micro_batch_at; /* (owned) first row of tokens of each micro-batch */
    int64_t *slice_at;       /* (owned) first of this rank's tokens of each slice */
    /* (owned by the backend, nullable) [micro-batch][token, sequence], this rank's tokens */
    int32_t *tokens, *targets;
    GArray *shared_parameters; /* (owned) of ExecSharedParameter */
    bool splits_backward;      /* the schedule has W apart; else an I is a B */
    bool graphs;               /* ops are given to the device as one: ExecRunOptions.graphs */
    double *losses; /* (owned) [micro-batch of the data][slice] of this step, for reading */
    /* (owned by the backend, nullable: no head here) the same where they are computed */
    double *device_losses;
    GArray *events; /* (borrowed, nullable: before the first one) of this step */
    /* (owned) begin and end of this step's ops so far, and where their events are */
    int64_t *op_times;
    guint *op_events;
    int64_t n_op_times;
    /* For a device: the transport of host memory that `transport` then wraps. */
    bool on_device;
    ExecTransport host_transport;
    ExecDeviceTransport *device_transport; /* (owned, nullable) */
    const ExecNcclPlugin *nccl;            /* (nullable) whose `transport` is */
} ExecRank;

/* --- rank_prepare.c --- */

/* Backend, parameters, memory; @rank must be zero but for its numbers, record and transport. */
bool exec_rank_prepare(ExecRank *rank, GError **error);
void exec_rank_clear(ExecRank *rank);

/* Whether ZeRO 3's weights become whole in the device's second queue: ahead of use, or because they
 * come from the host.  From when the backend and its transport are open. */
bool exec_rank_gathers_aside(const ExecRank *rank);

/* Reads this replica's sequences of the step: replica r has the r-th share of the global batch, and
 * of each sequence the tokens of its place in cp. */
bool exec_rank_load_tokens(ExecRank *rank, GError **error);

/* For what lies in host memory, whatever the device: results, clocks, checkpoints. */
static inline ExecTransport *
exec_rank_host_transport(ExecRank *rank)
{
    return rank->on_device ? &rank->host_transport : &rank->transport;
}

/* --- rank_reduce.c --- */

/* Sums the step's gradients over all that hold copies of a parameter: afterwards the own part of
 * every unit is whole. */
bool exec_rank_reduce_gradients(ExecRank *rank, GError **error);
/* Where every copy has a part of the optimizer: gives the others its part of the weights. */
bool exec_rank_gather_weights(ExecRank *rank, GError **error);
/* Of all ranks with copies of the parameter, exactly one speaks for each own element. */
bool exec_rank_speaks_for(const ExecRank *rank, guint parameter);

/* --- rank_optimize.c --- */

/* Clips the reduced gradients, steps, and gathers the weights. */
bool exec_rank_optimize(ExecRank *rank, GError **error);

/* --- rank_messages.c --- */

/* A stage's tensor on its way: @n_bytes from @from_stage to @to_stage, next to each other in a
 * chain; forward or backward. */
typedef struct {
    ScheduleOp op; /* that receives or has sent it */
    int32_t chain, from_stage, to_stage;
    int64_t n_bytes;
} ExecMessage;

/* Recorded with the wait.  With tp ranks: each has its own copy or shard; or, by the plan's
 * conventions, they share the work: plan.h, scatter_gather_p2p and broadcast_p2p. */
bool exec_rank_receive(ExecRank *rank, const ExecMessage *message, void *to, GError **error);
/* Lets the transfer of what will be received begin; once for each message. */
bool exec_rank_expect(ExecRank *rank, const ExecMessage *message, GError **error);
bool exec_rank_send(ExecRank *rank, const ExecMessage *message, const void *data, GError **error);
/* Before the first step: all groups and neighbours of the run meet, where the transport wants it.
 */
bool exec_rank_meet(ExecRank *rank, GError **error);

/* The tag after those of all messages of a step. */
int64_t exec_rank_free_tag(const ExecRank *rank);

/* --- rank.c --- */

/* One step: barrier, ops, reductions, optimizer; its events go to the record. */
bool exec_rank_run_step(ExecRank *rank, GError **error);

/* All ranks of the run, as this one sees them. */
static inline ExecGroup
exec_rank_everyone(const ExecRank *rank)
{
    return (ExecGroup){
        .ranks = rank->shared->everyone, .n = rank->shared->n_ranks, .index = rank->rank};
}

/* --- rank_ops.c --- */

/* Publishes what the rank is doing from now on. */
void exec_rank_set_doing(ExecRank *rank, ExecDoing doing, int64_t op);

void exec_rank_add_event(ExecRank *rank, TraceStream stream, TraceEventKind kind, int64_t start_ns,
                         int64_t end_ns, ScheduleOp op, int32_t peer, int64_t bytes);

/* The micro-batch of the data that @op works on: the second chain has the second half. */
int64_t exec_rank_micro_batch(const ExecRank *rank, ScheduleOp op, const ExecStage *stage);

/* Writes the times of this step's ops into their events; after synchronize(). */
void exec_rank_read_op_times(ExecRank *rank);

/* Op @index of the schedule: its message in, its work, its message out. */
bool exec_rank_run_op(ExecRank *rank, int64_t index, GError **error);

G_END_DECLS

#endif /* EXECUTOR_RUN_RANK_STATE_H */
