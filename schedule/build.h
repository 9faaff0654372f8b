/*
 * schedule/build.h - what the schedule families share: appending ops, and the list of families.
 *
 * Internal to schedule/.  A family fills one rank after the other; the invariant while it does is
 * rank_begin[r] = ops emitted before rank r.
 */
#ifndef SCHEDULE_BUILD_H
#define SCHEDULE_BUILD_H

#include "schedule/schedule.h"

G_BEGIN_DECLS

extern const ScheduleFamily schedule_family_naive;
extern const ScheduleFamily schedule_family_gpipe;
extern const ScheduleFamily schedule_family_1f1b;
extern const ScheduleFamily schedule_family_interleaved;
extern const ScheduleFamily schedule_family_terapipe;
extern const ScheduleFamily schedule_family_seq1f1b;
extern const ScheduleFamily schedule_family_seq1f1b_interleaved;
extern const ScheduleFamily schedule_family_zb_h1;
extern const ScheduleFamily schedule_family_zb_h2;
extern const ScheduleFamily schedule_family_zb_v;
extern const ScheduleFamily schedule_family_v_half;
extern const ScheduleFamily schedule_family_v_min;
extern const ScheduleFamily schedule_family_interleaved_zb;
extern const ScheduleFamily schedule_family_zb_auto;
extern const ScheduleFamily schedule_family_dualpipe;
extern const ScheduleFamily schedule_family_dualpipev;
extern const ScheduleFamily schedule_family_looped_bfs;

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

/* As schedule_alloc() with room for @kinds ops of every (rank, micro-batch, chunk, slice). */
Schedule *schedule_alloc_full(const ScheduleFamily *family, const ScheduleShape *shape,
                              int64_t kinds, GError **error);

/* All forwards, then all backwards, slices cut as TeraPipe: gpipe.c. */
Schedule *schedule_build_forwards_then_backwards(const ScheduleFamily *family,
                                                 const ScheduleShape *shape, GError **error);

/* One forward, one backward over (micro-batch, slice): one_f_one_b.c. */
Schedule *schedule_build_one_f_one_b(const ScheduleFamily *family, const ScheduleShape *shape,
                                     GError **error);

/* How interleaved.c orders the units of a rank. */
typedef struct {
    int64_t group;       /* micro-batches that pass one chunk before the next chunk's turn */
    int64_t warmup_last; /* forwards before the first 1F1B pair on the last rank */
    int64_t warmup_step; /* and so many more per rank before it */
    bool splits;         /* I and W apart, W later by as many backwards as the rank's number */
} ScheduleInterleaving;

/* One forward, one backward over (micro-batch, chunk, slice) in groups: interleaved.c. */
Schedule *schedule_build_interleaved(const ScheduleFamily *family, const ScheduleShape *shape,
                                     const ScheduleInterleaving *how, GError **error);

/* The smallest group from @least micro-batches on that leaves no last group of fewer than p - 1
 * slices: interleaved.c. */
int64_t schedule_group_from(int64_t least, const ScheduleShape *shape);

/* Micro-batches per group: the shape's, at most all, or what frameworks take: interleaved.c. */
int64_t schedule_group(const ScheduleShape *shape);

G_END_DECLS

#endif /* SCHEDULE_BUILD_H */
