/*
 * schedule/dualpipe.c - DualPipe and DualPipeV: forward and backward of different micro-batches run
 * overlapped  [DeepSeek-V3 2412.19437 section 3.2.1].
 *
 * DualPipe feeds micro-batches from both ends into two chains of p stages; each rank holds a stage
 * of both (twice the parameters), p+1 activations.  DualPipeV folds it: a V of 2p stages on p
 * ranks.  Both run the same eight steps (github.com/deepseek-ai/DualPipe at 3da1bbe, step() of
 * dualpipe.py and dualpipev.py), where a rank's depth d counts from the end that a chain enters
 * (DualPipe: min(r, p-1-r) of p/2; DualPipeV: r of p), stream 0 is the chain that enters nearer and
 * stream 1 the other, M micro-batches per stream:
 *
 *   1. 2(n-1-d)  F0            5. n-1-d   B1 [F1 B0]
 *   2. d+1       F0 F1         6. d+1     B1 B0, the second half with W put off
 *   3. n-1-d     I1 W F1       7. n-1-d   W I0
 *   4. M-2n+d+1  [F0 B1][F1 B0]   8. d+1  W
 *
 * with n = p/2 or p; [x y] is an overlapped pair.  W takes what was put off, oldest first.
 */
#include "schedule/build.h"

/* A backward whose W was put off. */
typedef struct {
    int32_t chunk, micro_batch;
} Pending;

typedef struct {
    Schedule *schedule;
    ScheduleEmitter emitter;
    int32_t chunk[2];      /* of stream 0 and 1 on this rank */
    int32_t n_forward[2];  /* forwards so far, per stream */
    int32_t n_backward[2]; /* backwards so far */
    GArray *pending;       /* of Pending */
    guint first_pending;   /* those before it are done */
} Builder;

static void
forward(Builder *b, int stream)
{
    schedule_emit(&b->emitter, SCHEDULE_OP_FORWARD, b->n_forward[stream]++, b->chunk[stream], 0);
}

static void
backward(Builder *b, int stream, bool put_off_weights)
{
    const Pending now = {b->chunk[stream], b->n_backward[stream]++};

    schedule_emit(&b->emitter, put_off_weights ? SCHEDULE_OP_BACKWARD_INPUT : SCHEDULE_OP_BACKWARD,
                  now.micro_batch, now.chunk, 0);
    if (put_off_weights)
        g_array_append_val(b->pending, now);
}

static void
weights(Builder *b)
{
    const Pending *next = &g_array_index(b->pending, Pending, b->first_pending);

    g_assert(b->first_pending < b->pending->len);
    schedule_emit(&b->emitter, SCHEDULE_OP_BACKWARD_WEIGHT, next->micro_batch, next->chunk, 0);
    b->first_pending++;
}

static void
pair(Builder *b, int forward_stream, bool overlapped)
{
    if (overlapped)
        g_array_append_val(b->schedule->overlap_pairs, b->emitter.n);
    forward(b, forward_stream);
    backward(b, 1 - forward_stream, false);
}

/* @depth  of @n; @m micro-batches per stream, at least 2n. */
static void
emit_rank(Builder *b, int32_t n, int32_t depth, int32_t m)
{
    const int32_t away = n - 1 - depth;

    for (int32_t i = 0; i < 2 * away; i++)
        forward(b, 0);
    for (int32_t i = 0; i <= depth; i++) {
        forward(b, 0);
        forward(b, 1);
    }
    for (int32_t i = 0; i < away; i++) {
        backward(b, 1, true);
        weights(b);
        forward(b, 1);
    }
    for (int32_t i = 0; i < m - 2 * n + depth + 1; i++) {
        /* The authors run the first pair where the chain turns apart: a smaller bubble. */
        pair(b, 0, i > 0 || away > 0);
        pair(b, 1, true);
    }
    for (int32_t i = 0; i < away; i++) {
        backward(b, 1, false);
        pair(b, 1, true);
    }
    const int32_t steps = depth + 1;
    for (int32_t i = 0; i < steps; i++) {
        const bool later = i > steps / 2;
        const bool half = i == steps / 2;
        backward(b, 1, later || (half && depth % 2 == 1));
        backward(b, 0, later || half);
    }
    for (int32_t i = 0; i < away; i++) {
        weights(b);
        backward(b, 0, true);
    }
    for (int32_t i = 0; i < steps; i++)
        weights(b);
    g_assert(b->first_pending == b->pending->len);
}

/* Room for I and W of all, then cut: pairs keep their B whole. */
static Schedule *
build(const ScheduleFamily *family, const ScheduleShape *shape, GError **error)
{
    const bool bidir = family->placement == SCHEDULE_PLACEMENT_BIDIR;
    const int32_t n = (int32_t)shape->n_ranks / (bidir ? 2 : 1);
    const int32_t m = (int32_t)shape->n_micro_batches / (bidir ? 2 : 1);
    Schedule *schedule = schedule_alloc_full(family, shape, 3, error);
    if (schedule == NULL)
        return NULL;
    Builder b = {
        .schedule = schedule,
        .emitter = {schedule->ops, 0},
        .pending = g_array_new(false, false, sizeof(Pending)),
    };
    schedule->overlap_pairs = g_array_new(false, false, sizeof(int64_t));
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++) {
        const bool mirrored = bidir && rank >= n;
        b.chunk[0] = mirrored ? 1 : 0;
        b.chunk[1] = 1 - b.chunk[0];
        b.n_forward[0] = b.n_forward[1] = b.n_backward[0] = b.n_backward[1] = 0;
        b.first_pending = 0;
        g_array_set_size(b.pending, 0);
        schedule->rank_begin[rank] = b.emitter.n;
        emit_rank(&b, n, mirrored ? schedule->n_ranks - 1 - rank : rank, m);
    }
    schedule->rank_begin[schedule->n_ranks] = b.emitter.n;
    g_array_unref(b.pending);
    schedule->ops = g_realloc_n(schedule->ops, (size_t)b.emitter.n, sizeof(ScheduleOp));
    return schedule;
}

/* --- DualPipe --- */

static bool
check(const ScheduleShape *shape, GError **error)
{
    if (shape->n_ranks % 2 == 0 && shape->n_micro_batches % 2 == 0 &&
        shape->n_micro_batches >= 2 * shape->n_ranks)
        return true;
    return schedule_refuse(error, SHAPE,
                           "schedule dualpipe: pp and microbatches must be even and microbatches "
                           "at least 2 * pp; got pp %" G_GINT64_FORMAT
                           ", microbatches %" G_GINT64_FORMAT,
                           shape->n_ranks, shape->n_micro_batches);
}

const ScheduleFamily schedule_family_dualpipe = {
    .name = "dualpipe",
    .summary = "two directions at once, forward and backward overlapped (DeepSeek-V3, 2412.19437)",
    .splits_backward = true,
    .overlaps = true,
    .min_chunks = 2,
    .max_chunks = 2,
    .placement = SCHEDULE_PLACEMENT_BIDIR,
    .check = check,
    .build = build,
};

/* --- DualPipeV --- */

static bool
check_v(const ScheduleShape *shape, GError **error)
{
    if (shape->n_micro_batches >= 2 * shape->n_ranks)
        return true;
    return schedule_refuse(error, SHAPE,
                           "schedule dualpipev: microbatches must be at least 2 * pp; got pp "
                           "%" G_GINT64_FORMAT ", microbatches %" G_GINT64_FORMAT,
                           shape->n_ranks, shape->n_micro_batches);
}

const ScheduleFamily schedule_family_dualpipev = {
    .name = "dualpipev",
    .summary = "DualPipe folded into a V: no second copy of the parameters (DeepSeek, 2412.19437)",
    .splits_backward = true,
    .overlaps = true,
    .min_chunks = 2,
    .max_chunks = 2,
    .placement = SCHEDULE_PLACEMENT_V,
    .torch_class = "DualPipeV",
    .check = check_v,
    .build = build,
};
