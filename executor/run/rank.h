/*
 * executor/run/rank.h - ExecRank is one rank: its thread opens the transport, prepares, runs the
 * ops of its pipeline rank step after step, and leaves its record behind.
 * The end of a step (sums of gradients, clipping, AdamW) is in optimize.h.
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
    ExecTurns *turns; /* (owned, nullable) of overlapped pairs; NULL: there are none, or in turn */
    guint next_pair;  /* of Schedule.overlap_pairs, from which on this step's are looked for */
    int64_t *sequences;      /* (owned) of each micro-batch */
    int64_t *micro_batch_at; /* (owned) the row of tokens at which each micro-batch begins */
    int64_t *slice_at;       /* (owned) the token of this rank at which each slice begins */
    /* (owned by the backend, nullable) [how much further on in the sequence][micro-batch][token,
     * sequence] of this rank's tokens; NULL where it has neither embedding nor MTP modules nor head */
    int32_t *tokens;
    GArray *shared_parameters; /* (owned) of ExecSharedParameter */
    bool splits_backward;      /* the schedule has W; else an I is computed as B */
    bool graphs;               /* ExecRunOptions.graphs, and the rank's ops can be captured */
    double *losses; /* (owned) [micro-batch of the data][slice][loss (stage.h)] of this step */
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

/* The group of the ranks with this one's coordinates in the pipeline ranks that hold @shared, in
 * ascending order.  @members is the group's memory. */
ExecGroup exec_rank_sharers(const ExecRank *rank, const ExecSharedParameter *shared,
                            int32_t members[EXEC_MAX_SHARERS]);

/* The rank's ops of the schedule, [returned, end). */
static inline int64_t
exec_rank_ops(const ExecRank *rank, int64_t *end)
{
    const int64_t *begin = &rank->shared->schedule->rank_begin[rank->pipeline];

    *end = begin[1];
    return begin[0];
}

/* --- prepare.c: what a rank needs before its first op, and the release of all that --- */

/* Prepares @rank, which is zero but for its numbers, its record and its host memory's transport. */
bool exec_rank_prepare(ExecRank *rank, GError **error);

/* Frees what exec_rank_prepare() has made, also where it failed. */
void exec_rank_clear(ExecRank *rank);

/* Whether weights are gathered in the device's second queue: with ZeRO 3, where they are prefetched
 * or come from the host.  Known once the backend and its transport are open. */
bool exec_rank_gathers_aside(const ExecRank *rank);

/* --- ops.c: each op receives its message, computes, and sends its message --- */

/* A message goes from a stage to the next one of its chain, forward or backward.  With tp ranks,
 * each sends its own copy or shard; or, where the plan's conventions say so, they share the work
 * (plan.h: scatter_gather_p2p, broadcast_p2p).  All of it becomes events of the trace. */

/* Runs op @index of the schedule, or the overlapped pair that it is the first of, and moves @index behind
 * that.  While it computes, what the next op receives is on its way. */
bool exec_rank_run_next(ExecRank *rank, int64_t *index, GError **error);

/* Writes the times of this step's ops into their events; after the backend's synchronize(), because
 * a device is not waited for between its ops. */
void exec_rank_read_op_times(ExecRank *rank);

/* Before the first step: lets all groups and neighbours meet, where the transport wants that. */
bool exec_rank_meet(ExecRank *rank, GError **error);

/* A tag that no message of a step has. */
int64_t exec_rank_free_tag(const ExecRank *rank);

/* --- gather.c: what rank 0 learns of ranks that are other processes --- */

/*
 * Hosts have clocks of their own.  Rank 0 asks every rank for its time, again and again; the answer
 * of the fastest round was given in the middle of it, to within half its length [Cristian 1989]. It
 * asks before the first step and after the last, and takes the drift in between as a straight line.
 *
 * With transport `local` nothing is done: everything is in this process's memory, on one clock.
 */

/* Sets @local_rank to how many lower ranks run on this machine.  All ranks call it at once. */
bool exec_gather_local_rank(ExecRank *rank, int32_t *local_rank, GError **error);

/* Compares the clocks of all ranks with rank 0's.  All ranks call it before the first step, and
 * again after the last (@at_end). */
bool exec_gather_clocks(ExecRank *rank, bool at_end, GError **error);

/* Sends rank 0 this rank's loss and times of the step that has just ended. */
bool exec_gather_step(ExecRank *rank, GError **error);

/* Sends rank 0 this rank's ExecRankRecord; rank 0 translates its times to its own clock. */
bool exec_gather_record(ExecRank *rank, GError **error);

/* --- checkpoint_state.c: the state of all ranks to a checkpoint (checkpoint.h) and back --- */

/* All ranks call these at the same step.  All succeed, or all have an error: the rank that fails
 * its own, and the others one that names it. */

/* Saves the state after @n_steps steps. */
bool exec_checkpoint_save(ExecRank *rank, int64_t n_steps, GError **error);

/* Replaces the rank's initial values by those of shared->checkpoint. */
bool exec_checkpoint_load(ExecRank *rank, GError **error);
