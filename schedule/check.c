#include "schedule/check.h"

#include "schedule/graph.h"

/* One forward, one backward, and neither can need the other. */
static bool
can_overlap(const Schedule *schedule, ScheduleOp a, ScheduleOp b)
{
    const bool bidir = schedule->placement == SCHEDULE_PLACEMENT_BIDIR;

    if (a.kind == SCHEDULE_OP_BACKWARD_WEIGHT || b.kind == SCHEDULE_OP_BACKWARD_WEIGHT ||
        (a.kind == SCHEDULE_OP_FORWARD) == (b.kind == SCHEDULE_OP_FORWARD))
        return false;
    return a.micro_batch != b.micro_batch || (bidir && a.chunk != b.chunk);
}

bool
schedule_check_pairs(const Schedule *schedule, GError **error)
{
    const GArray *pairs = schedule->overlap_pairs;
    int64_t least = 0;
    int32_t rank = 0;

    for (guint k = 0; pairs != NULL && k < pairs->len; k++) {
        const int64_t i = g_array_index(pairs, int64_t, k);
        while (rank < schedule->n_ranks && i >= schedule->rank_begin[rank + 1])
            rank++;
        if (i < least || rank == schedule->n_ranks || i + 1 >= schedule->rank_begin[rank + 1])
            return schedule_refuse(
                error, SHAPE,
                "overlapped pair %u is not two ops of one rank, apart from the others", k);
        least = i + 2;
        if (can_overlap(schedule, schedule->ops[i], schedule->ops[i + 1]))
            continue;
        char first[32], second[32];
        schedule_op_name(schedule, schedule->ops[i], first);
        schedule_op_name(schedule, schedule->ops[i + 1], second);
        return schedule_refuse(error, SHAPE,
                               "rank %d: %s and %s cannot run overlapped; expected a forward and a "
                               "backward of different micro-batches",
                               rank, first, second);
    }
    return true;
}

bool
schedule_check(const Schedule *schedule, GError **error)
{
    g_return_val_if_fail(schedule != NULL, false);
    g_autoptr(ScheduleGraph) graph = schedule_graph_new(schedule, error);
    return graph != NULL && schedule_check_pairs(schedule, error);
}
