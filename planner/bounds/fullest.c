#include "planner/bounds/fullest.h"

#include <string.h>

/* Larger schedules are not built only to count. */
#define MAX_OPS (INT64_C(1) << 21)

static void
fullest_free(gpointer data)
{
    PlanFullest *fullest = data;

    g_free(fullest->ops);
    g_free(fullest->held);
    g_free(fullest);
}

/* Where a walk over a rank's ops is. */
typedef struct {
    int32_t now[2 * SCHEDULE_MAX_CHUNKS]; /* whole, then half, by chunk */
    int32_t n_whole, n_half;
    bool splits; /* the rank has Ws, so that an I leaves a half */
    /* Of each kind and chunk its fullest op so far, by either measure. */
    struct {
        int32_t most[2]; /* held, then whole; or half, then whole; -1: there was none */
        int32_t at;      /* its place in ops */
    } fullest[PLAN_FULLEST_N][SCHEDULE_OP_N][SCHEDULE_MAX_CHUNKS];
} Walk;

static void
note(PlanFullest *fullest, int32_t op, const int32_t *now)
{
    uint16_t *held = &fullest->held[(int64_t)op * 2 * fullest->n_chunks];

    for (int32_t i = 0; i < 2 * fullest->n_chunks; i++)
        held[i] = (uint16_t)MIN(now[i], UINT16_MAX);
}

/* Sets which ops come after op @i of the schedule on its rank. */
static void
set_next(const Schedule *schedule, int32_t rank, int64_t i, PlanFullestOp *op)
{
    op->n_next = 0;
    while (++i < schedule->rank_begin[rank + 1] && op->n_next < PLAN_FULLEST_NEXT) {
        const ScheduleOp *next = &schedule->ops[i];
        if (next->kind == SCHEDULE_OP_BACKWARD_WEIGHT)
            continue;
        op->next_chunk[op->n_next] = next->chunk;
        op->next_kind[op->n_next++] = next->kind;
    }
}

/* Op @i of the schedule, of @rank, starts; @walk has what is held then. */
static void
start(Walk *walk, const Schedule *schedule, int32_t rank, int64_t i, PlanFullest *fullest)
{
    const ScheduleOp *op = &schedule->ops[i];

    for (int by = 0; by < (walk->splits ? PLAN_FULLEST_N : 1); by++) {
        const int32_t first = walk->n_half + (by == 0 ? walk->n_whole : 0);
        int32_t *most = walk->fullest[by][op->kind][op->chunk].most;
        int32_t *at = &walk->fullest[by][op->kind][op->chunk].at;
        if (first < most[0] || (first == most[0] && walk->n_whole <= most[1]))
            continue;
        if (most[0] < 0) {
            *at = fullest->n_ops++;
            fullest->ops[*at] = (PlanFullestOp){
                .rank = rank,
                .chunk = op->chunk,
                .kind = op->kind,
                .by_halves = by == 1,
                .halves = walk->splits && op->kind == SCHEDULE_OP_BACKWARD_INPUT,
            };
        }
        most[0] = first;
        most[1] = walk->n_whole;
        note(fullest, *at, walk->now);
        set_next(schedule, rank, i, &fullest->ops[*at]);
    }
}

static void
walk_rank(const Schedule *schedule, int32_t rank, Walk *walk, PlanFullest *fullest)
{
    const int64_t begin = schedule->rank_begin[rank], end = schedule->rank_begin[rank + 1];
    const int32_t n_chunks = schedule->n_chunks;

    *walk = (Walk){0};
    memset(walk->fullest, -1, sizeof walk->fullest);
    for (int64_t i = begin; i < end && !walk->splits; i++)
        walk->splits = schedule->ops[i].kind == SCHEDULE_OP_BACKWARD_WEIGHT;
    for (int64_t i = begin; i < end; i++) {
        const ScheduleOp op = schedule->ops[i];
        if (op.kind == SCHEDULE_OP_FORWARD) {
            walk->now[op.chunk]++;
            walk->n_whole++;
        }
        start(walk, schedule, rank, i, fullest);
        if (op.kind == SCHEDULE_OP_BACKWARD_WEIGHT) {
            walk->now[n_chunks + op.chunk]--;
            walk->n_half--;
        } else if (op.kind != SCHEDULE_OP_FORWARD) {
            walk->now[op.chunk]--;
            walk->n_whole--;
            if (op.kind == SCHEDULE_OP_BACKWARD_INPUT && walk->splits) {
                walk->now[n_chunks + op.chunk]++;
                walk->n_half++;
            }
        }
    }
}

/* Whether a schedule of @shape is small enough to be built. */
static bool
is_small(const ScheduleShape *shape)
{
    int64_t n_ops;

    return !__builtin_mul_overflow(shape->n_micro_batches * 3, shape->n_chunks * shape->n_slices,
                                   &n_ops) &&
           !__builtin_mul_overflow(n_ops, shape->n_ranks, &n_ops) && n_ops <= MAX_OPS;
}

/* PlanMemoMakeFunc. */
static void *
make_fullest(const void *data)
{
    const ScheduleFamily *family = ((const PlanMemoShape *)data)->family;
    const ScheduleShape *shape = ((const PlanMemoShape *)data)->shape;
    PlanFullest *fullest = g_new0(PlanFullest, 1);

    fullest->n_chunks = (int32_t)shape->n_chunks;
    if (family->reads_times || shape->merges || !is_small(shape))
        return fullest;
    g_autoptr(Schedule) schedule = schedule_new(family->name, shape, NULL);
    if (schedule == NULL || schedule->overlap_pairs != NULL ||
        schedule->n_chunks != fullest->n_chunks)
        return fullest;
    const size_t n_most =
        (size_t)schedule->n_ranks * (size_t)schedule->n_chunks * SCHEDULE_OP_N * PLAN_FULLEST_N;
    g_autofree Walk *walk = g_new(Walk, 1);
    fullest->ops = g_new(PlanFullestOp, n_most);
    fullest->held = g_new(uint16_t, n_most * 2 * (size_t)schedule->n_chunks);
    for (int32_t r = 0; r < schedule->n_ranks; r++)
        walk_rank(schedule, r, walk, fullest);
    /* Most families have two or three kinds of ops. */
    fullest->ops = g_renew(PlanFullestOp, fullest->ops, fullest->n_ops);
    fullest->held =
        g_renew(uint16_t, fullest->held, (size_t)fullest->n_ops * 2 * (size_t)schedule->n_chunks);
    return fullest;
}

const PlanFullest *
plan_fullest_get(PlanMemo *memo, const ScheduleFamily *family, const ScheduleShape *shape)
{
    return plan_memo_get_of_shape(memo, PLAN_MEMO_FULLEST, &(PlanMemoShape){family, shape},
                                  make_fullest, fullest_free);
}
