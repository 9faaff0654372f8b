/*
 * schedule/build.h - what the schedule families share: appending ops, and the list of families.
 *
 * Internal to schedule/.  A family fills one rank after the other; the invariant while it does is
 * rank_begin[r] = ops emitted before rank r.
 */
#pragma once

#include "schedule/schedule.h"

/* The families, in the order of docs/formats.md: a new one is one line here. */
#define SCHEDULE_FAMILIES(X)                                                                       \
    X(naive)                                                                                       \
    X(gpipe)                                                                                       \
    X(1f1b)                                                                                        \
    X(interleaved)                                                                                 \
    X(terapipe)                                                                                    \
    X(seq1f1b)                                                                                     \
    X(seq1f1b_interleaved)                                                                         \
    X(zb_h1)                                                                                       \
    X(zb_h2)                                                                                       \
    X(zb_v)                                                                                        \
    X(v_half)                                                                                      \
    X(v_min)                                                                                       \
    X(interleaved_zb)                                                                              \
    X(zb_auto)                                                                                     \
    X(dualpipe)                                                                                    \
    X(dualpipev)                                                                                   \
    X(looped_bfs)                                                                                  \
    X(hanayo)

#define SCHEDULE_DECLARE_FAMILY(family) extern const ScheduleFamily schedule_family_##family;
SCHEDULE_FAMILIES(SCHEDULE_DECLARE_FAMILY)
#undef SCHEDULE_DECLARE_FAMILY

/* Appends ops; @n is the number of ops so far. */
typedef struct {
    ScheduleOp *ops; /* (borrowed) the schedule's */
    int64_t n;
} ScheduleEmitter;

static inline void
schedule_emit(ScheduleEmitter *emitter, ScheduleOpKind kind, int32_t micro_batch, int32_t chunk,
              int32_t slice)
{
    emitter->ops[emitter->n++] = (ScheduleOp){
        .micro_batch = micro_batch,
        .slice = (uint16_t)slice,
        .chunk = (uint8_t)chunk,
        .kind = (uint8_t)kind,
    };
}

/* As schedule_alloc() with room for @kinds ops of every (rank, micro-batch, chunk, slice); defined
 * in schedule.c. */
Schedule *schedule_alloc_full(const ScheduleFamily *family, const ScheduleShape *shape,
                              int64_t kinds, GError **error);

/* How 1F1B runs the (micro-batch, chunk, slice) triples of a rank: some forwards to warm up, then a
 * forward and a backward in turn. */
typedef struct {
    int64_t group;       /* micro-batches that pass one chunk before the next chunk's turn */
    int64_t warmup_last; /* forwards before the first pair of forward and backward, last rank */
    int64_t warmup_step; /* and so many more on every rank before it */
    bool splits;         /* I and W apart; rank r runs W r backwards after its I */
} ScheduleInterleaving;

/* Builds such a schedule: one_f_one_b.c. */
Schedule *schedule_build_interleaved(const ScheduleFamily *family, const ScheduleShape *shape,
                                     const ScheduleInterleaving *how, GError **error);

/* Micro-batches per group: the shape's, at most all, or what frameworks take: one_f_one_b.c. */
int64_t schedule_group(const ScheduleShape *shape);
