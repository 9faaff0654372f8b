#include "planner/bounds/order_path.h"

#include <string.h>

/* Longer orders are not looked at: their bubbles are small, and this would take as long as to
 * simulate a few of their plans. */
#define MAX_OPS (INT64_C(1) << 18)

const int32_t plan_path_times[PLAN_PATH_N][SCHEDULE_OP_N] = {{20, 40, 21, 19}, {20, 60, 41, 19}};

#define NONE (-1)

typedef struct {
    int32_t end[PLAN_PATH_N];
    int32_t producer; /* index of the op whose message it needs, or NONE */
} Step;

/* A chunk of a rank. */
typedef struct {
    int32_t stage;   /* of all chains */
    int32_t from[2]; /* (rank, chunk) whose message its F needs, and its B or I; NONE */
    int32_t head;    /* what its ops take longer */
} ChunkLinks;

typedef struct {
    const Schedule *schedule; /* (borrowed) */
    int64_t n_virtual_ids;
    ChunkLinks *chunks; /* (owned) [rank * n_chunks + chunk] */
    int32_t
        *sent[2];  /* (owned) [rank * n_virtual_ids + unit] op, NONE before it ran: F, and B or I */
    Step *steps;   /* (owned) [op] */
    int64_t *next; /* (owned) [rank] */
    int64_t *waiting; /* (owned) [rank] 2 * slot + direction that it waits for, or NONE */
    int32_t *ready;   /* (owned) ranks that may go on */
    int32_t n_ready;
} Walk;

static void
walk_clear(Walk *walk)
{
    g_free(walk->chunks);
    g_free(walk->sent[0]);
    g_free(walk->sent[1]);
    g_free(walk->steps);
    g_free(walk->next);
    g_free(walk->waiting);
    g_free(walk->ready);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Walk, walk_clear)

static int32_t
place_of_stage(const Schedule *schedule, int32_t stage, int32_t chain)
{
    return schedule_rank_of_stage(schedule, stage, chain) * schedule->n_chunks +
           schedule_chunk_of_stage(schedule, stage, chain);
}

static void
set_places(Walk *walk)
{
    const Schedule *schedule = walk->schedule;
    const int32_t n = schedule_n_stages(schedule);

    for (int32_t r = 0; r < schedule->n_ranks; r++)
        for (int32_t c = 0; c < schedule->n_chunks; c++) {
            const int32_t chain = schedule_placement_chain(schedule->placement, c);
            const int32_t stage = schedule_stage(schedule, r, c);
            walk->chunks[r * schedule->n_chunks + c] = (ChunkLinks){
                .stage = chain * n + stage,
                .from = {stage > 0 ? place_of_stage(schedule, stage - 1, chain) : NONE,
                         stage < n - 1 ? place_of_stage(schedule, stage + 1, chain) : NONE},
                .head = stage == n - 1 ? PLAN_PATH_HEAD : 0,
            };
        }
}

static void
walk_init(Walk *walk, const Schedule *schedule)
{
    const size_t n_ranks = (size_t)schedule->n_ranks;
    const int64_t n_virtual_ids = schedule_n_virtual_ids(schedule);
    const size_t n_slots = n_ranks * (size_t)n_virtual_ids;

    *walk = (Walk){
        .schedule = schedule,
        .n_virtual_ids = n_virtual_ids,
        .chunks = g_new0(ChunkLinks, n_ranks * (size_t)schedule->n_chunks),
        .sent = {g_new(int32_t, n_slots), g_new(int32_t, n_slots)},
        .steps = g_new0(Step, (size_t)schedule_n_ops(schedule)),
        .next = g_new(int64_t, n_ranks),
        .waiting = g_new(int64_t, n_ranks),
        .ready = g_new(int32_t, n_ranks),
    };
    memset(walk->sent[0], 0xff, n_slots * sizeof *walk->sent[0]);
    memset(walk->sent[1], 0xff, n_slots * sizeof *walk->sent[1]);
    set_places(walk);
    for (int32_t r = 0; r < schedule->n_ranks; r++) {
        walk->next[r] = schedule->rank_begin[r];
        walk->waiting[r] = NONE;
        walk->ready[walk->n_ready++] = schedule->n_ranks - 1 - r;
    }
}

/* The slot of @op's unit at another place of its chain. */
static int64_t
slot_at(const Walk *walk, int32_t chunk, ScheduleOp op)
{
    const int32_t n_chunks = walk->schedule->n_chunks;

    op.chunk = (uint8_t)(chunk % n_chunks);
    return chunk / n_chunks * walk->n_virtual_ids + schedule_virtual_id(walk->schedule, op);
}

/* Op @i of @rank has run, for which another rank may wait. */
static void
send(Walk *walk, int32_t rank, const ChunkLinks *chunk, int direction, int64_t i)
{
    const int64_t slot =
        rank * walk->n_virtual_ids + schedule_virtual_id(walk->schedule, walk->schedule->ops[i]);
    const int32_t to = chunk->from[1 - direction];

    walk->sent[direction][slot] = (int32_t)i;
    if (to == NONE || walk->waiting[to / walk->schedule->n_chunks] != 2 * slot + direction)
        return;
    walk->waiting[to / walk->schedule->n_chunks] = NONE;
    walk->ready[walk->n_ready++] = to / walk->schedule->n_chunks;
}

/* Runs @rank until it waits. */
static void
run_rank(Walk *walk, int32_t rank)
{
    const Schedule *schedule = walk->schedule;
    const int64_t begin = schedule->rank_begin[rank], end = schedule->rank_begin[rank + 1];
    int64_t i = walk->next[rank];

    for (; i < end; i++) {
        const ScheduleOp op = schedule->ops[i];
        const ChunkLinks *chunk = &walk->chunks[rank * schedule->n_chunks + op.chunk];
        const bool is_weight = op.kind == SCHEDULE_OP_BACKWARD_WEIGHT;
        const int direction = op.kind == SCHEDULE_OP_FORWARD ? 0 : 1;
        const int32_t from = is_weight ? NONE : chunk->from[direction];
        Step *step = &walk->steps[i];
        step->producer = NONE;
        if (from != NONE) {
            const int64_t slot = slot_at(walk, from, op);
            step->producer = walk->sent[direction][slot];
            if (step->producer == NONE) {
                walk->waiting[rank] = 2 * slot + direction;
                break;
            }
        }
        for (int path = 0; path < PLAN_PATH_N; path++) {
            int32_t start = i > begin ? step[-1].end[path] : 0;
            if (step->producer != NONE)
                start = MAX(start, walk->steps[step->producer].end[path] +
                                       (from / schedule->n_chunks != rank ? PLAN_PATH_MESSAGE : 0));
            step->end[path] = start + plan_path_times[path][op.kind] + chunk->head;
        }
        if (!is_weight)
            send(walk, rank, chunk, direction, i);
    }
    walk->next[rank] = i;
}

/* False: some rank waits forever. */
static bool
run_all(Walk *walk)
{
    while (walk->n_ready > 0)
        run_rank(walk, walk->ready[--walk->n_ready]);
    for (int32_t r = 0; r < walk->schedule->n_ranks; r++)
        if (walk->next[r] < walk->schedule->rank_begin[r + 1])
            return false;
    return true;
}

/* Follows @way from its end to its begin. */
static void
trace(const Walk *walk, int path, PlanOrderPaths *paths)
{
    const Schedule *schedule = walk->schedule;
    int32_t rank = 0;

    for (int32_t r = 0; r < schedule->n_ranks; r++)
        if (walk->steps[schedule->rank_begin[r + 1] - 1].end[path] >
            walk->steps[schedule->rank_begin[rank + 1] - 1].end[path])
            rank = r;
    paths->last_rank[path] = rank;
    paths->n_ops[path] = 0;
    for (int64_t i = schedule->rank_begin[rank + 1] - 1;;) {
        const ScheduleOp op = schedule->ops[i];
        const ChunkLinks *chunk = &walk->chunks[rank * schedule->n_chunks + op.chunk];
        const Step *step = &walk->steps[i];
        const int32_t start = step->end[path] - plan_path_times[path][op.kind] - chunk->head;
        paths->stages[path * paths->n_stages + chunk->stage].ops[op.kind]++;
        paths->n_ops[path]++;
        if (start == 0)
            break;
        if (i > schedule->rank_begin[rank] && step[-1].end[path] == start) {
            i--;
            continue;
        }
        const int direction = op.kind == SCHEDULE_OP_FORWARD ? 0 : 1;
        const int32_t from = chunk->from[direction];
        if (from / schedule->n_chunks != rank)
            paths->stages[path * paths->n_stages + walk->chunks[from].stage].messages[direction]++;
        rank = from / schedule->n_chunks;
        i = step->producer;
    }
}

PlanOrderPaths *
plan_order_paths_new(const Schedule *schedule)
{
    const int64_t n_ops = schedule_n_ops(schedule);
    g_auto(Walk) walk = {0};

    if (schedule->overlap_pairs != NULL || n_ops > MAX_OPS)
        return NULL;
    walk_init(&walk, schedule);
    if (!run_all(&walk))
        return NULL;
    PlanOrderPaths *paths = g_new0(PlanOrderPaths, 1);
    paths->n_stages =
        schedule_n_stages(schedule) * schedule_placement_n_chains(schedule->placement);
    paths->stages = g_new0(PlanPathStage, (size_t)(PLAN_PATH_N * paths->n_stages));
    for (int path = 0; path < PLAN_PATH_N; path++)
        trace(&walk, path, paths);
    return paths;
}

void
plan_order_paths_free(PlanOrderPaths *paths)
{
    if (paths == NULL)
        return;
    g_free(paths->stages);
    g_free(paths);
}
