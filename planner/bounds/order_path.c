#include "planner/bounds/order_path.h"

#include "schedule/graph.h"

/* Longer orders are not looked at: their bubbles are small, and this would take as long as to
 * simulate a few of their plans. */
#define MAX_OPS (INT64_C(1) << 18)

const int32_t plan_path_times[PLAN_PATH_N][SCHEDULE_OP_N] = {{20, 40, 21, 19}, {20, 60, 41, 19}};

/* An op at each of the typical times. */
typedef struct {
    int32_t end[PLAN_PATH_N];
    int32_t rank;
} Step;

/* A chunk of a rank. */
typedef struct {
    int32_t stage; /* chain after chain */
    int32_t head;  /* what its ops take longer */
} Chunk;

typedef struct {
    const ScheduleGraph *graph; /* (borrowed) */
    Chunk *chunks;              /* (owned) [rank * n_chunks + chunk] */
    Step *steps;                /* (owned) [op] */
    PlanOrderPaths *paths;      /* (borrowed) */
} Walk;

static const Chunk *
chunk_of(const Walk *walk, int64_t i)
{
    const Schedule *schedule = walk->graph->schedule;

    /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): every op is of a rank. */
    return &walk->chunks[walk->steps[i].rank * schedule->n_chunks + schedule->ops[i].chunk];
}

static void
set_chunks(Walk *walk)
{
    const Schedule *schedule = walk->graph->schedule;
    const int32_t n = schedule_n_stages(schedule);

    for (int32_t r = 0; r < schedule->n_ranks; r++) {
        for (int32_t c = 0; c < schedule->n_chunks; c++) {
            const int32_t stage = schedule_stage(schedule, r, c);
            walk->chunks[r * schedule->n_chunks + c] =
                (Chunk){schedule_placement_chain(schedule->placement, c) * n + stage,
                        stage == n - 1 ? PLAN_PATH_HEAD : 0};
        }
        for (int64_t i = schedule->rank_begin[r]; i < schedule->rank_begin[r + 1]; i++)
            walk->steps[i].rank = r;
    }
}

/* Sets the end of every op: after the op before it on its rank, and the message that it needs. */
static void
set_ends(Walk *walk)
{
    const ScheduleGraph *graph = walk->graph;
    const Schedule *schedule = graph->schedule;
    const int64_t n_ops = schedule_n_ops(schedule);

    for (int64_t k = 0; k < n_ops; k++) {
        const int64_t i = graph->order[k], producer = graph->producer[i];
        const int32_t head = chunk_of(walk, i)->head;
        Step *step = &walk->steps[i];
        const bool is_first = i == schedule->rank_begin[step->rank];
        for (int path = 0; path < PLAN_PATH_N; path++) {
            int32_t start = is_first ? 0 : step[-1].end[path];
            if (producer != SCHEDULE_GRAPH_NONE)
                start = MAX(start, walk->steps[producer].end[path] + PLAN_PATH_MESSAGE);
            step->end[path] = start + plan_path_times[path][schedule->ops[i].kind] + head;
        }
    }
}

/* Follows @path from the last end to time 0. */
static void
trace(const Walk *walk, int path)
{
    const Schedule *schedule = walk->graph->schedule;
    PlanOrderPaths *paths = walk->paths;
    PlanPathStage *stages = &paths->stages[path * paths->n_stages];
    int64_t i = schedule->rank_begin[1] - 1;

    /* Every op is of a rank, which set_ends() has been at.
     * NOLINTBEGIN(clang-analyzer-core.UndefinedBinaryOperatorResult,clang-analyzer-core.uninitialized.Assign) */
    for (int32_t r = 1; r < schedule->n_ranks; r++)
        if (walk->steps[schedule->rank_begin[r + 1] - 1].end[path] > walk->steps[i].end[path])
            i = schedule->rank_begin[r + 1] - 1;
    paths->last_rank[path] = walk->steps[i].rank;
    /* NOLINTEND(clang-analyzer-core.UndefinedBinaryOperatorResult,clang-analyzer-core.uninitialized.Assign) */
    for (;;) {
        const int kind = schedule->ops[i].kind;
        const Chunk *chunk = chunk_of(walk, i);
        const Step *step = &walk->steps[i];
        const int32_t start = step->end[path] - plan_path_times[path][kind] - chunk->head;
        stages[chunk->stage].ops[kind]++;
        paths->n_ops[path]++;
        if (start == 0)
            return;
        if (i > schedule->rank_begin[step->rank] && step[-1].end[path] == start) {
            i--;
            continue;
        }
        i = walk->graph->producer[i];
        stages[chunk_of(walk, i)->stage].messages[kind == SCHEDULE_OP_FORWARD ? 0 : 1]++;
    }
}

PlanOrderPaths *
plan_order_paths_new(const Schedule *schedule)
{
    const int64_t n_ops = schedule_n_ops(schedule);

    if (schedule->overlap_pairs != NULL || n_ops > MAX_OPS)
        return NULL;
    g_autoptr(ScheduleGraph) graph = schedule_graph_new(schedule, NULL);
    if (graph == NULL)
        return NULL;
    g_autofree Step *steps = g_new(Step, (size_t)n_ops);
    g_autofree Chunk *chunks = g_new(Chunk, (size_t)(schedule->n_ranks * schedule->n_chunks));
    PlanOrderPaths *paths = g_new0(PlanOrderPaths, 1);
    Walk walk = {graph, chunks, steps, paths};
    paths->n_stages =
        schedule_n_stages(schedule) * schedule_placement_n_chains(schedule->placement);
    paths->stages = g_new0(PlanPathStage, (size_t)(PLAN_PATH_N * paths->n_stages));
    set_chunks(&walk);
    set_ends(&walk);
    for (int path = 0; path < PLAN_PATH_N; path++)
        trace(&walk, path);
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
