#include "schedule/graph.h"

#include <string.h>

#include "schedule/build.h"
#include "schedule/positions.h"

/* Ops named in a cycle's message; longer cycles are cut. */
#define CYCLE_SHOWN 12

void
schedule_graph_free(ScheduleGraph *graph)
{
    if (graph == NULL)
        return;
    g_free(graph->producer);
    g_free(graph->consumer);
    g_free(graph->order);
    g_free(graph);
}

int32_t
schedule_graph_rank(const Schedule *schedule, int64_t index)
{
    /* rank_begin[low] <= index < rank_begin[high] */
    int32_t low = 0, high = schedule->n_ranks;

    while (high - low > 1) {
        const int32_t middle = low + (high - low) / 2;
        if (schedule->rank_begin[middle] <= index)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* --- edges --- */

/* What linking one rank needs at hand. */
typedef struct {
    ScheduleGraph *graph;
    const SchedulePositions *positions;
    const ScheduleNeighbours *neighbours;
    int32_t rank;
} Linker;

/* Fails unless @needed (a position on the same rank) is before op @i. */
static bool
check_before(const Linker *linker, int64_t i, uint32_t needed, GError **error)
{
    const Schedule *schedule = linker->graph->schedule;
    const int64_t begin = schedule->rank_begin[linker->rank];
    char name[32], other[32];

    if (begin + needed < i)
        return true;
    schedule_op_name(schedule, schedule->ops[i], name);
    schedule_op_name(schedule, schedule->ops[begin + needed], other);
    return schedule_refuse(error, DEADLOCK,
                           "rank %d waits in %s for %s, which comes later in its own order",
                           linker->rank, name, other);
}

/* Op @i needs unit @unit of @table (positions->forward or ->backward) on @from. */
static bool
link_message(const Linker *linker, int64_t i, int32_t from, const uint32_t *table,
             int64_t virtual_id, GError **error)
{
    const uint32_t at = table[from * linker->positions->n_virtual_ids + virtual_id];

    if (from == linker->rank)
        return check_before(linker, i, at, error);
    const int64_t producer = linker->graph->schedule->rank_begin[from] + at;
    linker->graph->producer[i] = producer;
    linker->graph->consumer[producer] = i;
    return true;
}

static bool
link_op(const Linker *linker, int64_t i, GError **error)
{
    const Schedule *schedule = linker->graph->schedule;
    const SchedulePositions *positions = linker->positions;
    const ScheduleOp op = schedule->ops[i];
    const int64_t virtual_id = schedule_virtual_id(schedule, op);
    const int64_t row = linker->rank * positions->n_virtual_ids;
    const ScheduleNeighbours *near =
        &linker->neighbours[(int64_t)linker->rank * schedule->n_chunks + op.chunk];
    const bool forward = op.kind == SCHEDULE_OP_FORWARD;
    const uint32_t *table = forward ? positions->forward : positions->backward;
    const int32_t from = forward ? near->previous_rank : near->next_rank;
    const int32_t chunk = forward ? near->previous_chunk : near->next_chunk;
    const int32_t slice = op.slice + (forward ? -1 : 1); /* whose op comes first */

    if (op.kind == SCHEDULE_OP_BACKWARD_WEIGHT)
        return check_before(linker, i, positions->backward[row + virtual_id], error);
    if (!forward && !check_before(linker, i, positions->forward[row + virtual_id], error))
        return false;
    if (slice >= 0 && slice < schedule->n_slices &&
        !check_before(linker, i, table[row + virtual_id + slice - op.slice], error))
        return false;
    return from < 0 ||
           link_message(linker, i, from, table,
                        virtual_id + (int64_t)(chunk - op.chunk) * schedule->n_slices, error);
}

/* --- order --- */

/* A worklist over ranks: each runs until it needs a message that was not sent yet. */
typedef struct {
    ScheduleGraph *graph;
    const ScheduleNeighbours *neighbours;
    int64_t *next;  /* (owned) [rank] its first op that did not run */
    int32_t *ready; /* (owned) stack of ranks that may go on; each is there at most once */
    bool *waiting;  /* (owned) [rank] stopped at next[rank] */
    uint8_t *done;  /* (owned) bit per op */
    int32_t n_ready;
    int64_t n_done;
} Sorter;

static bool
is_done(const Sorter *sorter, int64_t op)
{
    return (sorter->done[op / 8] >> op % 8 & 1) != 0;
}

/* Wakes the rank that waits for op @i's message, if one does. */
static void
wake_consumer(Sorter *sorter, int32_t rank, int64_t i)
{
    const Schedule *schedule = sorter->graph->schedule;
    const int64_t consumer = sorter->graph->consumer[i];

    if (consumer == SCHEDULE_GRAPH_NONE)
        return;
    const ScheduleOp op = schedule->ops[i];
    const ScheduleNeighbours *near =
        &sorter->neighbours[(int64_t)rank * schedule->n_chunks + op.chunk];
    const int32_t to = op.kind == SCHEDULE_OP_FORWARD ? near->next_rank : near->previous_rank;
    if (sorter->waiting[to] && sorter->next[to] == consumer) {
        sorter->waiting[to] = false;
        sorter->ready[sorter->n_ready++] = to;
    }
}

static void
run_rank(Sorter *sorter, int32_t rank)
{
    const ScheduleGraph *graph = sorter->graph;
    const int64_t end = graph->schedule->rank_begin[rank + 1];

    while (sorter->next[rank] < end) {
        const int64_t i = sorter->next[rank];
        if (graph->producer[i] != SCHEDULE_GRAPH_NONE && !is_done(sorter, graph->producer[i])) {
            sorter->waiting[rank] = true;
            return;
        }
        graph->order[sorter->n_done++] = i;
        sorter->done[i / 8] = (uint8_t)(sorter->done[i / 8] | 1u << i % 8);
        sorter->next[rank]++;
        wake_consumer(sorter, rank, i);
    }
}

/* Names the cycle that the waiting ranks contain. */
static void
fail_cycle(const Sorter *sorter, GError **error)
{
    const Schedule *schedule = sorter->graph->schedule;
    g_autofree bool *seen = g_new0(bool, (size_t)schedule->n_ranks);
    g_autoptr(GString) text = g_string_new(NULL);
    int32_t rank = 0;

    while (!sorter->waiting[rank])
        rank++;
    /* Every waiting rank waits for an op of another waiting rank: the walk ends in a cycle. */
    while (!seen[rank]) {
        seen[rank] = true;
        rank = schedule_graph_rank(schedule, sorter->graph->producer[sorter->next[rank]]);
    }
    const int32_t first = rank;
    int32_t n_shown = 0;
    do {
        char name[32], other[32];
        const int64_t i = sorter->next[rank];
        const int64_t producer = sorter->graph->producer[i];
        const int32_t from = schedule_graph_rank(schedule, producer);
        schedule_op_name(schedule, schedule->ops[i], name);
        schedule_op_name(schedule, schedule->ops[producer], other);
        if (n_shown == 0)
            g_string_append_printf(text, "rank %d waits in %s for %s of rank %d", rank, name, other,
                                   from);
        else if (n_shown < CYCLE_SHOWN)
            g_string_append_printf(text, ", which waits in %s for %s of rank %d", name, other,
                                   from);
        else if (n_shown == CYCLE_SHOWN)
            g_string_append(text, ", and so on");
        n_shown++;
        rank = from;
    } while (rank != first);
    g_set_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_DEADLOCK, "deadlock: %s", text->str);
}

static bool
sort_ops(ScheduleGraph *graph, const ScheduleNeighbours *neighbours, GError **error)
{
    const Schedule *schedule = graph->schedule;
    const size_t n_ranks = (size_t)schedule->n_ranks;
    const int64_t n_ops = schedule_n_ops(schedule);
    Sorter sorter = {
        .graph = graph,
        .neighbours = neighbours,
        .next = g_memdup2(schedule->rank_begin, n_ranks * sizeof(int64_t)),
        .ready = g_new(int32_t, n_ranks),
        .waiting = g_new0(bool, n_ranks),
        .done = g_malloc0((size_t)n_ops / 8 + 1),
    };

    for (int32_t rank = schedule->n_ranks - 1; rank >= 0; rank--)
        sorter.ready[sorter.n_ready++] = rank;
    while (sorter.n_ready > 0)
        run_rank(&sorter, sorter.ready[--sorter.n_ready]);
    const bool complete = sorter.n_done == n_ops;
    if (!complete)
        fail_cycle(&sorter, error);
    g_free(sorter.next);
    g_free(sorter.ready);
    g_free(sorter.waiting);
    g_free(sorter.done);
    return complete;
}

ScheduleGraph *
schedule_graph_new(const Schedule *schedule, GError **error)
{
    g_return_val_if_fail(schedule != NULL, NULL);
    g_autoptr(SchedulePositions) positions = schedule_positions_new(schedule, error);
    if (positions == NULL)
        return NULL;
    const size_t n_ops = (size_t)schedule_n_ops(schedule);
    g_autoptr(ScheduleGraph) graph = g_new0(ScheduleGraph, 1);
    graph->schedule = schedule;
    graph->producer = g_try_malloc_n(n_ops, sizeof(int64_t));
    graph->consumer = g_try_malloc_n(n_ops, sizeof(int64_t));
    if (graph->producer != NULL && graph->consumer != NULL) {
        memset(graph->producer, 0xff, n_ops * sizeof(int64_t));
        memset(graph->consumer, 0xff, n_ops * sizeof(int64_t));
        g_autofree ScheduleNeighbours *neighbours = schedule_neighbours_new(schedule);
        for (int32_t rank = 0; rank < schedule->n_ranks; rank++) {
            const Linker linker = {graph, positions, neighbours, rank};
            for (int64_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++)
                if (!link_op(&linker, i, error))
                    return NULL;
        }
        g_clear_pointer(&positions, schedule_positions_free); /* before the next big array */
        graph->order = g_try_malloc_n(n_ops, sizeof(int64_t));
        if (graph->order != NULL)
            return sort_ops(graph, neighbours, error) ? g_steal_pointer(&graph) : NULL;
    }
    g_set_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_LIMIT,
                "no memory for the dependencies of %" G_GINT64_FORMAT " ops",
                schedule_n_ops(schedule));
    return NULL;
}
