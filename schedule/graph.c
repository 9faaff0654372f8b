#include "schedule/graph.h"

#include <string.h>

#include "base/units.h"

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

/* --- positions --- */

#define NOWHERE UINT32_MAX

/* Where every F and every B or I stands in its rank's order.  Building it is the completeness
 * check: afterwards every (rank, micro-batch, chunk, slice) has exactly one F, exactly one B or I,
 * and at most one W, which only an I may have. */
typedef struct {
    int64_t n_virtual_ids; /* of a rank: schedule_virtual_id() is below it */
    /* (owned) [rank * n_virtual_ids + virtual id]: the position of its F, and of its B or I, among
     * the rank's ops. */
    uint32_t *forward, *backward;
} Positions;

static void
positions_free(Positions *positions)
{
    g_free(positions->forward);
    g_free(positions->backward);
    g_free(positions);
}
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Positions, positions_free)

/* Returns: false. */
static bool
fail_op(GError **error, const Schedule *schedule, int32_t rank, ScheduleOp op, const char *what)
{
    char name[32];

    schedule_op_name(schedule, op, name);
    return schedule_refuse(error, INCOMPLETE, "rank %d: %s %s", rank, name, what);
}

static ScheduleOp
op_of_virtual_id(const Schedule *schedule, int64_t virtual_id, ScheduleOpKind kind)
{
    return (ScheduleOp){
        .micro_batch = (int32_t)(virtual_id / schedule->n_slices / schedule->n_chunks),
        .slice = (uint16_t)(virtual_id % schedule->n_slices),
        .chunk = (uint8_t)(virtual_id / schedule->n_slices % schedule->n_chunks),
        .kind = (uint8_t)kind,
    };
}

static bool
check_ranges(const Schedule *schedule, GError **error)
{
    if (schedule->placement == SCHEDULE_PLACEMENT_BIDIR &&
        (schedule->n_chunks != 2 || schedule->n_micro_batches % 2 != 0))
        return schedule_refuse(error, SHAPE,
                               "placement bidir needs 2 chunks and an even number of "
                               "micro-batches, got %d and %d",
                               schedule->n_chunks, schedule->n_micro_batches);
    const int32_t n_micro_batches = schedule_chain_micro_batches(schedule);
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++)
        for (int64_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
            const ScheduleOp op = schedule->ops[i];
            if (op.micro_batch < 0 || op.micro_batch >= n_micro_batches ||
                op.chunk >= schedule->n_chunks || op.slice >= schedule->n_slices ||
                op.kind >= SCHEDULE_OP_N)
                return fail_op(error, schedule, rank, op, "is outside of the schedule's shape");
        }
    return true;
}

/* For a rank with fewer than two ops per virtual id: names the first one without F, or else without
 * B or I.  With n ops, at least one of any n + 1 virtual ids has no F, so looking at those is
 * enough, and memory stays O(ops). */
static void
fail_missing(GError **error, const Schedule *schedule, int32_t rank)
{
    const int64_t n_ops = schedule->rank_begin[rank + 1] - schedule->rank_begin[rank];
    const int64_t n_virtual_ids = MIN(schedule_n_virtual_ids(schedule), n_ops + 1);
    g_autofree uint8_t *seen = g_new0(uint8_t, (size_t)n_virtual_ids);
    bool splits = false;

    for (int64_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
        const ScheduleOp op = schedule->ops[i];
        const int64_t virtual_id = schedule_virtual_id(schedule, op);
        splits = splits || op.kind == SCHEDULE_OP_BACKWARD_INPUT;
        if (virtual_id < n_virtual_ids && op.kind != SCHEDULE_OP_BACKWARD_WEIGHT)
            seen[virtual_id] |= op.kind == SCHEDULE_OP_FORWARD ? 1 : 2;
    }
    for (int64_t virtual_id = 0; virtual_id < n_virtual_ids; virtual_id++) {
        if (seen[virtual_id] == 3)
            continue;
        ScheduleOpKind kind = SCHEDULE_OP_FORWARD;
        if ((seen[virtual_id] & 1) != 0)
            kind = splits ? SCHEDULE_OP_BACKWARD_INPUT : SCHEDULE_OP_BACKWARD;
        fail_op(error, schedule, rank, op_of_virtual_id(schedule, virtual_id, kind), "is missing");
        return;
    }
    g_assert_not_reached();
}

/* Enters a rank's ops into its part of the tables.  Returns false on an op that is twice there. */
static bool
enter_rank(const Schedule *schedule, int32_t rank, uint32_t *forward, uint32_t *backward,
           uint8_t *weights, GError **error)
{
    const int64_t begin = schedule->rank_begin[rank];

    for (int64_t i = begin; i < schedule->rank_begin[rank + 1]; i++) {
        const ScheduleOp op = schedule->ops[i];
        const int64_t virtual_id = schedule_virtual_id(schedule, op);
        if (op.kind == SCHEDULE_OP_BACKWARD_WEIGHT) {
            const uint8_t bit = (uint8_t)(1u << virtual_id % 8);
            if ((weights[virtual_id / 8] & bit) != 0)
                return fail_op(error, schedule, rank, op, "is there twice");
            weights[virtual_id / 8] |= bit;
            continue;
        }
        uint32_t *at =
            op.kind == SCHEDULE_OP_FORWARD ? &forward[virtual_id] : &backward[virtual_id];
        if (*at != NOWHERE) {
            const bool same = schedule->ops[begin + *at].kind == op.kind;
            return fail_op(error, schedule, rank, op,
                           same ? "is there twice" : "is there beside the other kind of backward");
        }
        *at = (uint32_t)(i - begin);
    }
    return true;
}

static bool
check_rank(const Schedule *schedule, int32_t rank, const Positions *positions,
           const uint8_t *weights, GError **error)
{
    const ScheduleOp *ops = schedule->ops + schedule->rank_begin[rank];
    const uint32_t *forward = positions->forward + rank * positions->n_virtual_ids;
    const uint32_t *backward = positions->backward + rank * positions->n_virtual_ids;

    for (int64_t virtual_id = 0; virtual_id < positions->n_virtual_ids; virtual_id++)
        if (forward[virtual_id] == NOWHERE || backward[virtual_id] == NOWHERE) {
            fail_missing(error, schedule, rank);
            return false;
        } else if ((weights[virtual_id / 8] >> virtual_id % 8 & 1) != 0 &&
                   ops[backward[virtual_id]].kind == SCHEDULE_OP_BACKWARD) {
            return fail_op(error, schedule, rank,
                           op_of_virtual_id(schedule, virtual_id, SCHEDULE_OP_BACKWARD_WEIGHT),
                           "belongs to a B, which computes the weights' gradients itself");
        }
    return true;
}

/* Returns: (owned) NULL with SCHEDULE_ERROR_INCOMPLETE naming the first op that is missing, twice
 * there or outside of the schedule's shape, or with SCHEDULE_ERROR_LIMIT.  Memory is O(ops),
 * whatever the shape claims. */
static Positions *
positions_new(const Schedule *schedule, GError **error)
{
    const int64_t n_virtual_ids = schedule_n_virtual_ids(schedule);

    if (!check_ranges(schedule, error))
        return NULL;
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++)
        if ((schedule->rank_begin[rank + 1] - schedule->rank_begin[rank]) / 2 < n_virtual_ids) {
            fail_missing(error, schedule, rank);
            return NULL;
        }
    /* From here on n_ranks * n_virtual_ids <= ops / 2. */
    const size_t n = (size_t)n_virtual_ids * (size_t)schedule->n_ranks;
    const size_t n_bytes = (size_t)n_virtual_ids / 8 + 1;
    g_autoptr(Positions) positions = g_new0(Positions, 1);
    g_autofree uint8_t *weights = g_try_malloc(n_bytes);
    positions->n_virtual_ids = n_virtual_ids;
    positions->forward = g_try_malloc_n(n, sizeof(uint32_t));
    positions->backward = g_try_malloc_n(n, sizeof(uint32_t));
    if (positions->forward == NULL || positions->backward == NULL || weights == NULL)
        return schedule_refuse_null(error, LIMIT, "no memory to check a schedule of " INT " ops",
                                    schedule_n_ops(schedule));
    memset(positions->forward, 0xff, n * sizeof(uint32_t));
    memset(positions->backward, 0xff, n * sizeof(uint32_t));
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++) {
        memset(weights, 0, n_bytes);
        if (!enter_rank(schedule, rank, positions->forward + rank * n_virtual_ids,
                        positions->backward + rank * n_virtual_ids, weights, error) ||
            !check_rank(schedule, rank, positions, weights, error))
            return NULL;
    }
    return g_steal_pointer(&positions);
}

/* The neighbours of a (rank, chunk) in its chain of stages; rank -1: none. */
typedef struct {
    int32_t previous_rank, previous_chunk;
    int32_t next_rank, next_chunk;
} Neighbours;

/* Returns: (owned) array indexed by rank * n_chunks + chunk. */
static Neighbours *
neighbours_new(const Schedule *schedule)
{
    const int32_t n_stages = schedule_n_stages(schedule);
    Neighbours *all = g_new0(Neighbours, (size_t)schedule->n_ranks * (size_t)schedule->n_chunks);

    for (int32_t rank = 0; rank < schedule->n_ranks; rank++)
        for (int32_t chunk = 0; chunk < schedule->n_chunks; chunk++) {
            const int32_t stage = schedule_stage(schedule, rank, chunk);
            Neighbours *here = &all[(int64_t)rank * schedule->n_chunks + chunk];
            *here = (Neighbours){-1, -1, -1, -1};
            if (stage > 0) {
                here->previous_rank = schedule_rank_of_stage(schedule, stage - 1, chunk);
                here->previous_chunk = schedule_chunk_of_stage(schedule, stage - 1, chunk);
            }
            if (stage < n_stages - 1) {
                here->next_rank = schedule_rank_of_stage(schedule, stage + 1, chunk);
                here->next_chunk = schedule_chunk_of_stage(schedule, stage + 1, chunk);
            }
        }
    return all;
}

/* --- edges --- */

/* What linking one rank needs at hand. */
typedef struct {
    ScheduleGraph *graph;
    const Positions *positions;
    const Neighbours *neighbours;
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
    const Positions *positions = linker->positions;
    const ScheduleOp op = schedule->ops[i];
    const int64_t virtual_id = schedule_virtual_id(schedule, op);
    const int64_t row = linker->rank * positions->n_virtual_ids;
    const Neighbours *near =
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
    const Neighbours *neighbours;
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
    const Neighbours *near = &sorter->neighbours[(int64_t)rank * schedule->n_chunks + op.chunk];
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
sort_ops(ScheduleGraph *graph, const Neighbours *neighbours, GError **error)
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
    g_autoptr(Positions) positions = positions_new(schedule, error);
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
        g_autofree Neighbours *neighbours = neighbours_new(schedule);
        for (int32_t rank = 0; rank < schedule->n_ranks; rank++) {
            const Linker linker = {graph, positions, neighbours, rank};
            for (int64_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++)
                if (!link_op(&linker, i, error))
                    return NULL;
        }
        g_clear_pointer(&positions, positions_free); /* before the next big array */
        graph->order = g_try_malloc_n(n_ops, sizeof(int64_t));
        if (graph->order != NULL)
            return sort_ops(graph, neighbours, error) ? g_steal_pointer(&graph) : NULL;
    }
    return schedule_refuse_null(error, LIMIT, "no memory for the dependencies of " INT " ops",
                                schedule_n_ops(schedule));
}
