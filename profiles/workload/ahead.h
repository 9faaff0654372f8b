/*
 * profiles/workload/ahead.h - WorkloadAhead: whole weights that a rank has for an op and gathers
 * ahead for those after it (ZeRO 3), where the executor's order is known: framework degas
 * (docs/cost-model.md 6.3).
 *
 * An op of a stage gathers its parts one after the other.  While one is at work, the next `depth`
 * gatherings of the rank's order of ops are whole too, but none from the first on with which they
 * were more than `most_bytes`.  Those of the same op are in WorkloadOp.workspace_bytes; what comes
 * from later ops depends on the schedule, and is added where that is known (simulator/ahead.h).
 */
#ifndef PROFILES_WORKLOAD_AHEAD_H
#define PROFILES_WORKLOAD_AHEAD_H

#include "profiles/workload/workload.h"

G_BEGIN_DECLS

/* No part of an op has so many gatherings of later ops ahead of it. */
#define WORKLOAD_NONE_AHEAD INT64_MIN

struct WorkloadAhead {
    int32_t depth;       /* >= 1 */
    int64_t *most_bytes; /* (owned) [rank] */
    /* Of a stage, chain after chain: what its F gathers is [begin[stage] .. begin[stage + 1]) of
     * bytes, in order; B and I gather the same in the other order, without the first where it is
     * the embedding; W nothing. */
    int64_t *begin;   /* (owned) [n_chains * n_stages + 1] */
    int64_t *bytes;   /* (owned) */
    int8_t *is_first; /* (owned) [n_chains * n_stages] 1: the first is the embedding */
    /* What the workspace is, at the least, while the part is at work that has r gatherings of later
     * ops ahead of it, those not counted: [(op * SCHEDULE_OP_N + kind) * depth + r - 1], op as in
     * Workload.ops; or WORKLOAD_NONE_AHEAD. */
    int64_t *last_bytes; /* (owned) */
};

/* (nullable) */
void workload_ahead_free(WorkloadAhead *ahead);

static inline int64_t
workload_ahead_n(const WorkloadAhead *ahead, int64_t stage, ScheduleOpKind kind)
{
    const int64_t n = ahead->begin[stage + 1] - ahead->begin[stage];

    return kind == SCHEDULE_OP_FORWARD           ? n
           : kind == SCHEDULE_OP_BACKWARD_WEIGHT ? 0
                                                 : n - ahead->is_first[stage];
}

/* Gathering @i of an op of @kind. */
static inline int64_t
workload_ahead_bytes(const WorkloadAhead *ahead, int64_t stage, ScheduleOpKind kind, int64_t i)
{
    return kind == SCHEDULE_OP_FORWARD ? ahead->bytes[ahead->begin[stage] + i]
                                       : ahead->bytes[ahead->begin[stage + 1] - 1 - i];
}

static inline int64_t *
workload_ahead_last(const WorkloadAhead *ahead, int64_t op, ScheduleOpKind kind)
{
    return &ahead->last_bytes[(op * SCHEDULE_OP_N + kind) * ahead->depth];
}

/* The most that the workspace of (op, kind) may become, whatever the rank of it runs next. */
int64_t workload_ahead_most(const Workload *workload, int64_t op, ScheduleOpKind kind,
                            int32_t rank);

G_END_DECLS

#endif /* PROFILES_WORKLOAD_AHEAD_H */
