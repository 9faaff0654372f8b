/*
 * schedule/interleaved.c - 1F1B over several chunks per rank  [Narayanan et al. 2104.04473].
 *
 * Each rank holds v chunks, p stages apart.  Micro-batches pass in groups of g: chunk 0 of all g,
 * then chunk 1 of all g, ...; backwards in the same order with the chunks reversed.  Rank r warms
 * up with 2(p-1-r) + (v-1) g forwards, then alternates: the order of Megatron-LM
 * core/pipeline_parallel/schedules.py at d98e8a64 (get_schedule_table, get_pp_rank_microbatches),
 * where g is --microbatch-group-size-per-virtual-pipeline-stage and the last group may be smaller.
 *
 * With m a multiple of p and g = p, equal stages and no communication, the bubble is (p-1)/v stage
 * times: 1/v (p-1)/m of the work  [2104.04473 section 2.2].
 */
#include "schedule/build.h"

/* A walk over all (micro-batch, chunk, slice) of a rank, group after group. */
typedef struct {
    int32_t group_begin, group_end; /* micro-batches of the group in hand */
    int32_t chunk, micro_batch, slice;
} Walk;

/* What a walk does not change. */
typedef struct {
    int32_t n_micro_batches, n_chunks, n_slices, group;
} WalkShape;

static Walk
walk_begin(const WalkShape *shape)
{
    return (Walk){.group_end = MIN(shape->group, shape->n_micro_batches)};
}

static inline void
walk_next(Walk *walk, const WalkShape *shape)
{
    if (++walk->slice < shape->n_slices)
        return;
    walk->slice = 0;
    if (++walk->micro_batch < walk->group_end)
        return;
    if (++walk->chunk == shape->n_chunks) {
        walk->chunk = 0;
        walk->group_begin = walk->group_end;
        walk->group_end += MIN(shape->group, shape->n_micro_batches - walk->group_end);
    }
    walk->micro_batch = walk->group_begin;
}

static inline void
emit_forward(ScheduleEmitter *emitter, Walk *walk, const WalkShape *shape)
{
    schedule_emit(emitter, SCHEDULE_OP_FORWARD, walk->micro_batch, walk->chunk, walk->slice);
    walk_next(walk, shape);
}

/* Backwards and weight gradients walk the same way, with chunks and slices reversed. */
static inline void
emit_reverse(ScheduleEmitter *emitter, ScheduleOpKind kind, Walk *walk, const WalkShape *shape)
{
    schedule_emit(emitter, kind, walk->micro_batch, shape->n_chunks - 1 - walk->chunk,
                  shape->n_slices - 1 - walk->slice);
    walk_next(walk, shape);
}

static void
emit_rank(ScheduleEmitter *emitter, const WalkShape *shape, int64_t n_virtual_ids, int64_t warmup,
          int64_t weight_delay)
{
    const bool splits = weight_delay >= 0;
    Walk forward = walk_begin(shape), backward = forward, weight = forward;

    for (int64_t i = 0; i < warmup; i++)
        emit_forward(emitter, &forward, shape);
    for (int64_t i = 0; i < n_virtual_ids; i++) {
        if (i < n_virtual_ids - warmup)
            emit_forward(emitter, &forward, shape);
        emit_reverse(emitter, splits ? SCHEDULE_OP_BACKWARD_INPUT : SCHEDULE_OP_BACKWARD, &backward,
                     shape);
        if (splits && i >= weight_delay)
            emit_reverse(emitter, SCHEDULE_OP_BACKWARD_WEIGHT, &weight, shape);
    }
    for (int64_t i = 0; splits && i < MIN(weight_delay, n_virtual_ids); i++)
        emit_reverse(emitter, SCHEDULE_OP_BACKWARD_WEIGHT, &weight, shape);
}

/*
 * The least warm-up that cannot deadlock, beyond what how->warmup_last gives the last rank.
 *
 * In a group of g units, rank 0 starts chunk c + 1 of a unit g forwards after its chunk c, whose
 * result must have come from the last rank; and the last rank runs chunk c backward g backwards
 * after its chunk c + 1, whose gradient must have come from rank 0.  Each of these ranks
 * alternates, so the circle closes unless warm-up(rank 0) - warm-up(rank p-1) <= 2 g: wherever
 * groups have at least p - 1 units, as Megatron-LM requires of them.  Smaller groups, which it
 * refuses, are ours: all ranks warm up long enough.
 */
static int64_t
safe_warmup(const Schedule *schedule, const ScheduleInterleaving *how, int32_t group)
{
    const int32_t rest = schedule->n_micro_batches % group;
    const int64_t least_group = (int64_t)(rest > 0 ? rest : group) * schedule->n_slices;

    if (group == schedule->n_micro_batches)
        return 0;
    return how->warmup_last + how->warmup_step * (schedule->n_ranks - 1) - 2 * least_group;
}

Schedule *
schedule_build_interleaved(const ScheduleFamily *family, const ScheduleShape *shape,
                           const ScheduleInterleaving *how, GError **error)
{
    Schedule *schedule = schedule_alloc_full(family, shape, how->splits ? 3 : 2, error);
    if (schedule == NULL)
        return NULL;
    ScheduleEmitter emitter = {schedule->ops, 0};
    const int64_t n_virtual_ids = schedule_n_virtual_ids(schedule);
    const WalkShape walk = {
        .n_micro_batches = schedule->n_micro_batches,
        .n_chunks = schedule->n_chunks,
        .n_slices = schedule->n_slices,
        .group = (int32_t)MIN(how->group, schedule->n_micro_batches),
    };
    const int64_t least_warmup = safe_warmup(schedule, how, walk.group);
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++) {
        const int64_t by_rank =
            how->warmup_last + how->warmup_step * (schedule->n_ranks - 1 - rank);
        const int64_t warmup = MIN(MAX(by_rank, least_warmup), n_virtual_ids);
        schedule->rank_begin[rank] = emitter.n;
        emit_rank(&emitter, &walk, n_virtual_ids, warmup, how->splits ? rank : -1);
    }
    schedule->rank_begin[schedule->n_ranks] = emitter.n;
    return schedule;
}

/*
 * Megatron-LM takes p and wants m to be a multiple of it; PyTorch (distributed/pipelining at
 * 00722e648) makes m / p rounds of equal size, which is the same where both exist.  Where neither
 * does: the smallest group from p on whose last one does not stall all ranks (safe_warmup()).
 */
int64_t
schedule_group(const ScheduleShape *shape)
{
    const int64_t rounds = MAX(1, shape->n_micro_batches / shape->n_ranks);

    if (shape->group > 0)
        return MIN(shape->group, shape->n_micro_batches);
    if (shape->n_micro_batches % rounds == 0)
        return shape->n_micro_batches / rounds;
    return schedule_group_from(shape->n_ranks, shape);
}

int64_t
schedule_group_from(int64_t least, const ScheduleShape *shape)
{
    const int64_t m = shape->n_micro_batches;
    int64_t group = MIN(least, m);

    while (m % group != 0 && m % group * shape->n_slices < shape->n_ranks - 1)
        group++;
    return group;
}

static Schedule *
build(const ScheduleShape *shape, GError **error)
{
    const int64_t group = schedule_group(shape);
    const ScheduleInterleaving how = {
        .group = group,
        .warmup_last = (shape->n_chunks - 1) * group,
        .warmup_step = 2,
    };

    return schedule_build_interleaved(&schedule_family_interleaved, shape, &how, error);
}

const ScheduleFamily schedule_family_interleaved = {
    .name = "interleaved",
    .summary = "1F1B over several chunks per rank (Megatron-LM, 2104.04473)",
    .groups = true,
    .min_chunks = 2,
    .max_chunks = SCHEDULE_MAX_CHUNKS,
    .placement = SCHEDULE_PLACEMENT_LOOP,
    .build = build,
};
