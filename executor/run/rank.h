/*
 * executor/run/rank.h - ExecRank is one rank: its thread opens the transport, prepares, runs the
 * ops of its pipeline rank step after step, and leaves its record behind.
 *
 *   prepare.h   the backend, the parameters and the memory of a rank
 *   ops.h       the ops of a step with their messages
 *   optimize.h  the end of a step: sums of gradients, clipping, AdamW, weights for the replicas
 *
 * Private to executor/run/.
 */
#pragma once

#include "executor/cuda/nccl.h"
#include "executor/model/stage.h"
#include "executor/run/shared.h"
#include "executor/transport/device.h"

typedef struct {
    ExecShared *shared;
    ExecRankRecord *record;
    int32_t rank;
    int32_t pipeline, dp, cp, tp; /* its place in the plan */
    int64_t step;
    ExecBackend *backend; /* (owned) */
    ExecPool *pool;       /* (owned) */
    ExecModel *model;     /* (owned) */
    ExecUnits *units;     /* (owned, nullable) NULL: all weights and gradients are kept whole */
    ExecStageRun **runs;  /* (owned) by chunk */
    ExecStageScratch scratch;
    ExecTransport transport; /* of tensors in the backend's memory */
    ExecComm comm;
    int64_t *sequences;      /* (owned) of each micro-batch */
    int64_t *micro_batch_at; /* (owned) the row of tokens at which each micro-batch begins */
    int64_t *slice_at;       /* (owned) the token of this rank at which each slice begins */
    /* (owned by the backend, nullable) [micro-batch][token, sequence] of this rank's tokens; NULL
     * where it has neither embedding nor head */
    int32_t *tokens, *targets;
    GArray *shared_parameters; /* (owned) of ExecSharedParameter */
    bool splits_backward;      /* the schedule has W; else an I is computed as B */
    bool graphs;               /* ExecRunOptions.graphs, and the rank's ops can be captured */
    double *losses;            /* (owned) [micro-batch of the data][slice] of this step */
    double *device_losses; /* (owned by the backend, nullable) the same where they are computed */
    GArray *events;        /* (borrowed, nullable) of this step; NULL before the first */
    /* (owned) Of this step's ops so far: begin and end, and which event each has. */
    int64_t *op_times;
    guint *op_events;
    int64_t n_op_times;
    /* Of a device: the transport of host memory, which `transport` wraps. */
    bool on_device;
    ExecTransport host_transport;
    ExecTransport *device_transport; /* (owned, nullable) */
    const ExecNcclPlugin *nccl;      /* (nullable) whose `transport` is */
} ExecRank;

/* The function of a rank's thread; @user_data is an ExecRankStart, which it frees. */
typedef struct {
    ExecShared *shared;
    int32_t rank;
} ExecRankStart;
gpointer exec_rank_main(gpointer user_data);

/* Publishes what the rank does from now on; @op  of the schedule, for EXEC_DOING_OP. */
void exec_rank_set_doing(ExecRank *rank, ExecDoing doing, int64_t op);

/* Adds an event to the step's trace; before the first step nothing is done. */
void exec_rank_add_event(ExecRank *rank, TraceStream stream, TraceEventKind kind, int64_t start_ns,
                         int64_t end_ns, ScheduleOp op, int32_t peer, int64_t bytes);

/* The transport for what is in host memory, whatever the device: results, clocks, checkpoints. */
static inline ExecTransport *
exec_rank_host_transport(ExecRank *rank)
{
    return rank->on_device ? &rank->host_transport : &rank->transport;
}

/* All ranks of the run as one group. */
static inline ExecGroup
exec_rank_everyone(const ExecRank *rank)
{
    return (ExecGroup){
        .ranks = rank->shared->everyone, .n = rank->shared->n_ranks, .index = rank->rank};
}

/* The process rank with this rank's coordinates in pipeline rank @pipeline. */
int32_t exec_rank_peer(const ExecRank *rank, int32_t pipeline);

/* The group of this rank and its peer in pipeline rank @pipeline, in ascending order.  @members is
 * the group's memory. */
ExecGroup exec_rank_pair(const ExecRank *rank, int32_t pipeline, int32_t members[2]);

/* The rank's ops of the schedule, [returned, end). */
static inline int64_t
exec_rank_ops(const ExecRank *rank, int64_t *end)
{
    const int64_t *begin = &rank->shared->schedule->rank_begin[rank->pipeline];

    *end = begin[1];
    return begin[0];
}
