/*
 * profiles/workload/prefetch.h - WorkloadPrefetch: which whole weights a rank holds for ops to
 * come.
 *
 * With ZeRO 3 a rank gathers the weights of a part (a layer, the embedding, the head) before it
 * computes with them.  Where the order of these gathers is known (framework degas), each op counts
 * the weights that are whole while it runs (docs/cost-model.md 6.3): those of the part at work, and
 * those of the next `depth` gathers in the rank's order of ops, up to the first with which they
 * would exceed `most_bytes`.  Gathers for later parts of the same op are counted in
 * WorkloadOp.workspace_bytes; those for later ops depend on the schedule, and whoever knows it adds them:
 * simulator/program.c.
 */
#pragma once

#include "profiles/workload/workload.h"

/* Stands for "no part of this op has that many gathers of later ops ahead of it". */
#define WORKLOAD_PREFETCH_NONE INT64_MIN

struct WorkloadPrefetch {
    int32_t depth;       /* how many gathers are ahead of the part at work; >= 1 */
    int64_t *most_bytes; /* (owned) [rank] the most that gathers ahead may hold at once */
    /* What a stage gathers.  Its F gathers bytes[begin[stage]] to bytes[begin[stage + 1] - 1] in
     * this order.  Its B and I gather the same in the reverse order, but not the embedding, which
     * is the first where is_first is 1.  Its W gathers nothing.  Stages are numbered chain after
     * chain. */
    int64_t *begin;   /* (owned) [n_chains * n_stages + 1] */
    int64_t *bytes;   /* (owned) */
    int8_t *is_first; /* (owned) [n_chains * n_stages] */
    /* The workspace that an op needs at least while the part is at work that has r gathers of later
     * ops ahead of it, not counting these gathers; WORKLOAD_PREFETCH_NONE where there is no such
     * part.  [(op * SCHEDULE_OP_N + kind) * depth + r - 1], op as in Workload.ops. */
    int64_t *last_bytes; /* (owned) */
};

/* @prefetch is nullable. */
void workload_prefetch_free(WorkloadPrefetch *prefetch);

/* How many gathers an op of @kind of @stage makes. */
static inline int64_t
workload_prefetch_n(const WorkloadPrefetch *prefetch, int64_t stage, ScheduleOpKind kind)
{
    const int64_t n = prefetch->begin[stage + 1] - prefetch->begin[stage];

    return kind == SCHEDULE_OP_FORWARD           ? n
           : kind == SCHEDULE_OP_BACKWARD_WEIGHT ? 0
                                                 : n - prefetch->is_first[stage];
}

/* The bytes of gather number @i of an op of @kind of @stage. */
static inline int64_t
workload_prefetch_bytes(const WorkloadPrefetch *prefetch, int64_t stage, ScheduleOpKind kind,
                        int64_t i)
{
    return kind == SCHEDULE_OP_FORWARD ? prefetch->bytes[prefetch->begin[stage] + i]
                                       : prefetch->bytes[prefetch->begin[stage + 1] - 1 - i];
}

/* last_bytes of op number @op and @kind: [depth]. */
static inline int64_t *
workload_prefetch_last(const WorkloadPrefetch *prefetch, int64_t op, ScheduleOpKind kind)
{
    return &prefetch->last_bytes[(op * SCHEDULE_OP_N + kind) * prefetch->depth];
}

/* The most that the workspace of op number @op and @kind may be, whatever @rank runs after it. */
int64_t workload_prefetch_most(const Workload *workload, int64_t op, ScheduleOpKind kind,
                               int32_t rank);

/* The first gathers of the ops after one, of one rank. */
typedef struct {
    int64_t *bytes; /* (borrowed) [depth] room for the bytes of each, in their order */
    int32_t n;
} WorkloadLater;

/* Returns: the workspace of op number @op (as in Workload.ops) and @kind on @rank, with what it has of
 * @later ops. */
int64_t workload_prefetch_workspace(const Workload *workload, const WorkloadLater *later,
                                    int64_t op, ScheduleOpKind kind, int32_t rank);

/* The gathers of op number @op and @kind come before those of @later. */
void workload_prefetch_put_before(const Workload *workload, WorkloadLater *later, int64_t op,
                                  ScheduleOpKind kind);
