#include "schedule/positions.h"

#include <string.h>

#include "schedule/build.h"

#define NOWHERE UINT32_MAX

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

/*
 * For a rank with fewer than two ops per virtual id: names the first one without F, or else without
 * B or I.  With n ops, at least one of any n + 1 virtual ids has no F, so looking at those is
 * enough, and memory stays O(ops).
 */
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
check_rank(const Schedule *schedule, int32_t rank, const SchedulePositions *positions,
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

SchedulePositions *
schedule_positions_new(const Schedule *schedule, GError **error)
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
    g_autoptr(SchedulePositions) positions = g_new0(SchedulePositions, 1);
    g_autofree uint8_t *weights = g_try_malloc(n_bytes);
    positions->n_virtual_ids = n_virtual_ids;
    positions->forward = g_try_malloc_n(n, sizeof(uint32_t));
    positions->backward = g_try_malloc_n(n, sizeof(uint32_t));
    if (positions->forward == NULL || positions->backward == NULL || weights == NULL) {
        g_set_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_LIMIT,
                    "no memory to check a schedule of %" G_GINT64_FORMAT " ops",
                    schedule_n_ops(schedule));
        return NULL;
    }
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

void
schedule_positions_free(SchedulePositions *positions)
{
    if (positions == NULL)
        return;
    g_free(positions->forward);
    g_free(positions->backward);
    g_free(positions);
}

ScheduleNeighbours *
schedule_neighbours_new(const Schedule *schedule)
{
    const int32_t n_stages = schedule_n_stages(schedule);
    ScheduleNeighbours *all =
        g_new(ScheduleNeighbours, (size_t)schedule->n_ranks * (size_t)schedule->n_chunks);

    for (int32_t rank = 0; rank < schedule->n_ranks; rank++)
        for (int32_t chunk = 0; chunk < schedule->n_chunks; chunk++) {
            const int32_t stage = schedule_stage(schedule, rank, chunk);
            ScheduleNeighbours *here = &all[(int64_t)rank * schedule->n_chunks + chunk];
            *here = (ScheduleNeighbours){-1, -1, -1, -1};
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
