/* How many virtual micro-batches a rank of a schedule holds at most. */
#pragma once

#include "schedule/schedule.h"

/* (owned) one bit per virtual micro-batch: whether the rank has a W of it.  NULL if it has no W at
 * all. */
static inline uint8_t *
weight_bits(const Schedule *schedule, int32_t rank)
{
    uint8_t *bits = NULL;

    for (int64_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
        if (schedule->ops[i].kind != SCHEDULE_OP_BACKWARD_WEIGHT)
            continue;
        if (bits == NULL)
            bits = g_new0(uint8_t, (size_t)schedule_n_virtual_ids(schedule) / 8 + 1);
        const int64_t virtual_id = schedule_virtual_id(schedule, schedule->ops[i]);
        bits[virtual_id / 8] = (uint8_t)(bits[virtual_id / 8] | 1u << virtual_id % 8);
    }
    return bits;
}

/* The largest number of (micro-batch, chunk, slice) triples in flight on @rank: F counts up at its
 * start; B, or W, or an I without a W, down.  Cost: O(ops of the rank). */
static inline int32_t
peak_in_flight(const Schedule *schedule, int32_t rank)
{
    g_return_val_if_fail(rank >= 0 && rank < schedule->n_ranks, 0);
    g_autofree uint8_t *bits = weight_bits(schedule, rank);
    int64_t in_flight = 0, peak = 0;

    for (int64_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
        const ScheduleOp op = schedule->ops[i];
        const int64_t virtual_id = schedule_virtual_id(schedule, op);
        if (op.kind == SCHEDULE_OP_FORWARD) {
            in_flight++;
            peak = MAX(peak, in_flight);
        } else if (op.kind != SCHEDULE_OP_BACKWARD_INPUT || bits == NULL ||
                   (bits[virtual_id / 8] >> virtual_id % 8 & 1) == 0) {
            in_flight--;
        }
    }
    return (int32_t)peak;
}
