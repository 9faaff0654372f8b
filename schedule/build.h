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
extern const ScheduleFamily schedule_family_terapipe;

/* Appends ops; @n is the number of ops so far. */
typedef struct {
    ScheduleOp *ops; /* (borrowed) the schedule's */
    int64_t n;
} ScheduleEmitter;

static inline void
schedule_emit(ScheduleEmitter *emitter, ScheduleOpKind kind, int32_t microbatch, int32_t chunk,
              int32_t slice)
{
    emitter->ops[emitter->n++] = (ScheduleOp){
        .microbatch = microbatch,
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

G_END_DECLS

#endif /* SCHEDULE_BUILD_H */
