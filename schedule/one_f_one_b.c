/*
 * schedule/one_f_one_b.c - 1F1B: a few forwards to warm up, then one forward, one backward in turn.
 *
 * 1f1b, PipeDream-flush / DAPPLE early backward [Narayanan et al. 1806.03377, 2006.09503; Fan et
 *   al. 2007.01045]; the order of Megatron-LM core/pipeline_parallel/schedules.py at d98e8a64: rank
 *   r runs min(p-1-r, m) forwards first.  Same time as GPipe, but only min(m, p-r) micro-batches in
 *   flight.
 *
 * seq1f1b [2406.03488 section 3.2]: the same over token slices.  The first backward is that of the
 *   last slice, hence s-1 more forwards before it: min(p-1-r + s-1, m*s) warm-up, and backwards
 *   take slices of a micro-batch last first.
 *
 * interleaved [Narayanan et al. 2104.04473]: each rank holds v chunks, p stages apart.
 *   Micro-batches pass in groups of g: chunk 0 of all g, then chunk 1 of all g, ...; backwards in
 *   the same order with the chunks reversed.  Rank r warms up with 2(p-1-r) + (v-1) g forwards, then
 *   alternates: the order of Megatron-LM (get_schedule_table, get_pp_rank_microbatches), where g is
 *   --microbatch-group-size-per-virtual-pipeline-stage and the last group may be smaller.  With m a
 *   multiple of p and g = p, equal stages and no communication, the bubble is (p-1)/v stage times:
 *   1/v (p-1)/m of the work  [section 2.2].
 *
 * seq1f1b-interleaved: interleaved over slices: rank r warms up with 2(p-1-r) + (v-1) g s + s-1
 *   slices, where a group is g micro-batches; the authors' program (Seq1F1B at 6893466,
 *   core/pipeline_parallel/schedules.py) has groups of p slices, which is g = p / s where s divides
 *   p.  Where it does not, g is rounded up, ours: a group must hold whole micro-batches, else the
 *   first backward, of a last slice, would wait for a forward after it.  And it is the smallest
 *   that leaves no last group of fewer than p-1 slices, which would stall all ranks (safe_warmup).
 *
 * zb-h1 and interleaved-zb, the same with the backward split, are in zero_bubble.c.
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

/* Backwards and weight gradients walk in the same order, with chunks and slices reversed. */
static inline void
emit_reverse(ScheduleEmitter *emitter, ScheduleOpKind kind, Walk *walk, const WalkShape *shape)
{
    schedule_emit(emitter, kind, walk->micro_batch, shape->n_chunks - 1 - walk->chunk,
                  shape->n_slices - 1 - walk->slice);
    walk_next(walk, shape);
}

/* @pairs  (nullable) gets the forwards that are merged with the backwards behind them */
static void
emit_rank(ScheduleEmitter *emitter, const WalkShape *shape, int64_t n_virtual_ids, int64_t warmup,
          int64_t weight_delay, GArray *pairs)
{
    const bool splits = weight_delay >= 0;
    Walk forward = {.group_end = MIN(shape->group, shape->n_micro_batches)};
    Walk backward = forward, weight = forward;

    for (int64_t i = 0; i < warmup; i++)
        emit_forward(emitter, &forward, shape);
    for (int64_t i = 0; i < n_virtual_ids; i++) {
        if (i < n_virtual_ids - warmup) {
            if (pairs != NULL)
                g_array_append_val(pairs, emitter->n);
            emit_forward(emitter, &forward, shape);
        }
        emit_reverse(emitter, splits ? SCHEDULE_OP_BACKWARD_INPUT : SCHEDULE_OP_BACKWARD, &backward,
                     shape);
        if (splits && i >= weight_delay)
            emit_reverse(emitter, SCHEDULE_OP_BACKWARD_WEIGHT, &weight, shape);
    }
    for (int64_t i = 0; splits && i < MIN(weight_delay, n_virtual_ids); i++)
        emit_reverse(emitter, SCHEDULE_OP_BACKWARD_WEIGHT, &weight, shape);
}

/* The same for one chunk of whole micro-batches, in half the time. */
static void
emit_whole(ScheduleEmitter *emitter, int32_t n_micro_batches, int32_t warmup)
{
    ScheduleEmitter to = *emitter;

    for (int32_t m = 0; m < warmup; m++)
        schedule_emit(&to, SCHEDULE_OP_FORWARD, m, 0, 0);
    for (int32_t m = warmup; m < n_micro_batches; m++) {
        schedule_emit(&to, SCHEDULE_OP_FORWARD, m, 0, 0);
        schedule_emit(&to, SCHEDULE_OP_BACKWARD, m - warmup, 0, 0);
    }
    for (int32_t m = n_micro_batches - warmup; m < n_micro_batches; m++)
        schedule_emit(&to, SCHEDULE_OP_BACKWARD, m, 0, 0);
    *emitter = to;
}

/*
 * The least warm-up that cannot deadlock, beyond what how->warmup_last gives the last rank.
 *
 * In a group of g (micro-batch, slice) pairs, rank 0 starts chunk c + 1 of a pair g forwards after
 * its chunk c, whose result must have come from the last rank; and the last rank runs chunk c
 * backward g backwards after its chunk c + 1, whose gradient must have come from rank 0.  Each of
 * these ranks alternates, so the circle closes unless warm-up(rank 0) - warm-up(rank p-1) <= 2 g:
 * wherever groups have at least p - 1 pairs, as Megatron-LM requires of them.  Smaller groups,
 * which it refuses, are ours: all ranks warm up long enough.
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
    if (shape->merges)
        schedule->overlap_pairs = g_array_new(false, false, sizeof(int64_t));
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++) {
        const int64_t by_rank =
            how->warmup_last + how->warmup_step * (schedule->n_ranks - 1 - rank);
        const int64_t warmup = MIN(MAX(by_rank, least_warmup) + shape->merges, n_virtual_ids);
        schedule->rank_begin[rank] = emitter.n;
        if (walk.n_chunks == 1 && walk.n_slices == 1 && !how->splits && !shape->merges)
            emit_whole(&emitter, walk.n_micro_batches, (int32_t)warmup);
        else
            emit_rank(&emitter, &walk, n_virtual_ids, warmup, how->splits ? rank : -1,
                      schedule->overlap_pairs);
    }
    schedule->rank_begin[schedule->n_ranks] = emitter.n;
    return schedule;
}

/* The smallest group from @least micro-batches on that leaves no last group of fewer than p - 1
 * slices. */
static int64_t
group_from(int64_t least, const ScheduleShape *shape)
{
    const int64_t m = shape->n_micro_batches;
    int64_t group = MIN(least, m);

    while (m % group != 0 && m % group * shape->n_slices < shape->n_ranks - 1)
        group++;
    return group;
}

/* Megatron-LM takes p and wants m to be a multiple of it; PyTorch (distributed/pipelining at
 * 00722e648) makes m / p rounds of equal size, which is the same where both exist.  Where neither
 * does: the smallest group from p on whose last one does not stall all ranks (safe_warmup()). */
int64_t
schedule_group(const ScheduleShape *shape)
{
    const int64_t rounds = MAX(1, shape->n_micro_batches / shape->n_ranks);

    if (shape->group > 0)
        return MIN(shape->group, shape->n_micro_batches);
    if (shape->n_micro_batches % rounds == 0)
        return shape->n_micro_batches / rounds;
    return group_from(shape->n_ranks, shape);
}

/* --- families --- */

/* Both messages of a pair leave at its end: a rank whose pairs give the next rank's one a forward and wait for its
 * backward would wait for each of them, were it not two forwards ahead. */
static int64_t
merged_step(const ScheduleShape *shape)
{
    return shape->merges ? 2 : 1;
}

static Schedule *
build_1f1b(const ScheduleFamily *family, const ScheduleShape *shape, GError **error)
{
    const ScheduleInterleaving how = {
        .group = shape->n_micro_batches,
        .warmup_last = shape->n_slices - 1,
        .warmup_step = merged_step(shape),
    };

    return schedule_build_interleaved(family, shape, &how, error);
}

static int64_t
in_flight_1f1b(const ScheduleShape *shape, int64_t rank)
{
    return MIN(shape->n_micro_batches * shape->n_slices,
               merged_step(shape) * (shape->n_ranks - 1 - rank) + shape->n_slices + shape->merges);
}

const ScheduleFamily schedule_family_1f1b = {
    .name = "1f1b",
    .summary = "one forward, one backward after a short warm-up (DAPPLE 2007.01045, "
               "PipeDream-flush 2006.09503)",
    .slices = true,
    .merges = true,
    .seeds_search = true,
    .min_chunks = 1,
    .max_chunks = 1,
    .sliced = &schedule_family_seq1f1b,
    .torch_class = "1F1B",
    .in_flight = in_flight_1f1b,
    .build = build_1f1b,
};

const ScheduleFamily schedule_family_seq1f1b = {
    .name = "seq1f1b",
    .summary = "1F1B over token slices (Seq1F1B, 2406.03488)",
    .slices = true,
    .min_chunks = 1,
    .max_chunks = 1,
    .whole = &schedule_family_1f1b,
    .in_flight = in_flight_1f1b,
    .build = build_1f1b,
};

/* With whole sequences the group is what frameworks take, with slices what Seq1F1B takes. */
int64_t
schedule_interleaved_group(const ScheduleShape *shape)
{
    const int64_t n = shape->n_slices;

    return shape->group > 0 || n == 1 ? schedule_group(shape)
                                      : group_from((shape->n_ranks + n - 1) / n, shape);
}

static Schedule *
build_interleaved(const ScheduleFamily *family, const ScheduleShape *shape, GError **error)
{
    const int64_t n = shape->n_slices, group = schedule_interleaved_group(shape);
    const ScheduleInterleaving how = {
        .group = group,
        .warmup_last = (shape->n_chunks - 1) * group * n + n - 1,
        .warmup_step = 2,
    };

    return schedule_build_interleaved(family, shape, &how, error);
}

const ScheduleFamily schedule_family_interleaved = {
    .name = "interleaved",
    .summary = "1F1B over several chunks per rank (Megatron-LM, 2104.04473)",
    .groups = true,
    .merges = true,
    .min_chunks = 2,
    .max_chunks = SCHEDULE_MAX_CHUNKS,
    .sliced = &schedule_family_seq1f1b_interleaved,
    .torch_class = "Interleaved1F1B",
    .build = build_interleaved,
};

const ScheduleFamily schedule_family_seq1f1b_interleaved = {
    .name = "seq1f1b-interleaved",
    .summary = "interleaved 1F1B over token slices (Seq1F1B, 2406.03488)",
    .slices = true,
    .groups = true,
    .min_chunks = 2,
    .max_chunks = SCHEDULE_MAX_CHUNKS,
    .whole = &schedule_family_interleaved,
    .build = build_interleaved,
};
