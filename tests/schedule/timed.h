/*
 * tests/schedule/timed.h - what a schedule takes and holds with times of its own per stage.
 *
 * An oracle: from the text of schedule/schedule.h and simulator/simulate.h (messages that overlap:
 * start = max(free(rank), end(producer) + message)), by running through all ranks again and again;
 * it shares no code with schedule/.
 */
#pragma once

#include "schedule/schedule.h"

typedef struct {
    bool complete; /* false: deadlock */
    int64_t makespan_ns, span_ns;
    int64_t peak_bytes[64];
} Timed;

static inline const ScheduleStageTimes *
timed_stage(const ScheduleTimes *times, int32_t stage)
{
    return &times->stages[times->n_stages == 1 ? 0 : stage];
}

static inline int64_t
timed_op_ns(const ScheduleStageTimes *stage, int kind)
{
    switch (kind) {
    case SCHEDULE_OP_FORWARD:
        return stage->forward_ns;
    case SCHEDULE_OP_BACKWARD_INPUT:
        return stage->input_ns;
    case SCHEDULE_OP_BACKWARD_WEIGHT:
        return stage->weight_ns;
    default:
        return stage->backward_ns > 0 ? stage->backward_ns : stage->input_ns + stage->weight_ns;
    }
}

/* When the inputs of @op are there, by the ends of F and of B or I, [stage][micro-batch], -1: not
 * yet.  -1 if one is missing. */
static inline int64_t
timed_ready(const Schedule *s, const ScheduleTimes *times, int32_t rank, ScheduleOp op,
            const int64_t *forward_end, const int64_t *backward_end)
{
    const int32_t stage = schedule_stage(s, rank, op.chunk), m = s->n_micro_batches;
    const bool is_forward = op.kind == SCHEDULE_OP_FORWARD;
    const int32_t from = is_forward ? stage - 1 : stage + 1;
    int64_t ready = 0;

    if (op.kind == SCHEDULE_OP_BACKWARD_WEIGHT)
        return backward_end[stage * m + op.micro_batch];
    if (!is_forward) {
        ready = forward_end[stage * m + op.micro_batch];
        if (ready < 0)
            return -1;
    }
    if (from < 0 || from >= schedule_n_stages(s))
        return ready;
    const int64_t end = (is_forward ? forward_end : backward_end)[from * m + op.micro_batch];
    if (end < 0)
        return -1;
    const bool travels = schedule_rank_of_stage(s, from, 0) != rank;
    const ScheduleStageTimes *sender = timed_stage(times, from);
    const int64_t message = is_forward ? sender->forward_message_ns : sender->backward_message_ns;
    return MAX(ready, end + (travels ? message : 0));
}

/* Bytes held at most, F adding at its start, everything else changing at its end. */
static inline int64_t
timed_peak(const Schedule *s, const ScheduleTimes *times, int32_t rank)
{
    int64_t now = 0, peak = 0;
    bool counted = times->limit_bytes == NULL;

    for (int64_t i = 0; i < times->n_stages; i++)
        counted = counted && times->stages[i].activation_bytes == 0 &&
                  times->stages[i].weight_activation_bytes == 0;
    for (int64_t i = s->rank_begin[rank]; i < s->rank_begin[rank + 1]; i++) {
        const ScheduleStageTimes *stage =
            timed_stage(times, schedule_stage(s, rank, s->ops[i].chunk));
        const int64_t all = counted ? 1 : stage->activation_bytes;
        const int64_t kept = counted ? 1 : stage->weight_activation_bytes;
        switch ((ScheduleOpKind)s->ops[i].kind) {
        case SCHEDULE_OP_FORWARD:
            now += all;
            break;
        case SCHEDULE_OP_BACKWARD:
            now -= all;
            break;
        case SCHEDULE_OP_BACKWARD_INPUT:
            now += kept - all;
            break;
        default:
            now -= kept;
            break;
        }
        peak = MAX(peak, now);
    }
    return peak;
}

static inline Timed
timed_run(const Schedule *s, const ScheduleTimes *times)
{
    const size_t n = (size_t)schedule_n_stages(s) * (size_t)s->n_micro_batches;
    g_autofree int64_t *forward_end = g_new(int64_t, n);
    g_autofree int64_t *backward_end = g_new(int64_t, n);
    int64_t next[64], free_ns[64] = {0}, begin_ns[64] = {0};
    Timed result = {.complete = true};
    bool moved = true;

    g_assert_cmpint(s->n_ranks, <=, 64);
    for (size_t i = 0; i < n; i++)
        forward_end[i] = backward_end[i] = -1;
    for (int32_t r = 0; r < s->n_ranks; r++)
        next[r] = s->rank_begin[r];
    while (moved) {
        moved = false;
        for (int32_t r = 0; r < s->n_ranks; r++)
            for (; next[r] < s->rank_begin[r + 1]; next[r]++) {
                const ScheduleOp op = s->ops[next[r]];
                const int32_t stage = schedule_stage(s, r, op.chunk);
                const int64_t ready = timed_ready(s, times, r, op, forward_end, backward_end);
                if (ready < 0)
                    break;
                const int64_t start = MAX(ready, free_ns[r]);
                if (next[r] == s->rank_begin[r])
                    begin_ns[r] = start;
                free_ns[r] = start + timed_op_ns(timed_stage(times, stage), op.kind);
                if (op.kind == SCHEDULE_OP_FORWARD)
                    forward_end[stage * s->n_micro_batches + op.micro_batch] = free_ns[r];
                else if (op.kind != SCHEDULE_OP_BACKWARD_WEIGHT)
                    backward_end[stage * s->n_micro_batches + op.micro_batch] = free_ns[r];
                moved = true;
            }
    }
    for (int32_t r = 0; r < s->n_ranks; r++) {
        result.complete = result.complete && next[r] == s->rank_begin[r + 1];
        result.makespan_ns = MAX(result.makespan_ns, free_ns[r]);
        result.span_ns = MAX(result.span_ns, free_ns[r] - begin_ns[r]);
        result.peak_bytes[r] = timed_peak(s, times, r);
    }
    return result;
}

/* What a rank may hold: the least of limit_bytes and limit_micro_batches. */
static inline int64_t
timed_limit(const Schedule *s, const ScheduleTimes *times, int32_t rank)
{
    int64_t limit = times->limit_bytes == NULL ? INT64_MAX : times->limit_bytes[rank];
    int64_t one = 0;

    if (times->limit_micro_batches == 0)
        return limit;
    for (int32_t c = 0; c < s->n_chunks; c++)
        one += timed_stage(times, schedule_stage(s, rank, c))->activation_bytes;
    if (one == 0)
        one = s->n_chunks;
    return MIN(limit, one * times->limit_micro_batches);
}

static inline bool
timed_fits(const Schedule *s, const ScheduleTimes *times)
{
    for (int32_t r = 0; r < s->n_ranks; r++)
        if (timed_peak(s, times, r) > timed_limit(s, times, r))
            return false;
    return true;
}
