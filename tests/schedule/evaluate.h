/*
 * tests/schedule/evaluate.h - what a schedule takes when every op has a fixed time.
 *
 * An oracle of its own: it knows the dependencies from the text of schedule/schedule.h and shares
 * no code with graph.c.  No communication time; an op starts when its rank is free and its inputs
 * are there.
 */
#pragma once

#include "schedule/schedule.h"

typedef struct {
    bool complete; /* false: deadlock */
    int64_t makespan, span;
    int64_t busy[64], begin[64], end[64];
    int32_t peak[64];
} Evaluation;

typedef struct {
    const Schedule *schedule;
    int64_t *end; /* [(rank, unit, F or B/I)] end time, -1 before */
} Evaluator;

static inline int64_t *
evaluator_end(const Evaluator *e, int32_t rank, int64_t virtual_id, bool backward)
{
    return &e->end[(rank * schedule_n_virtual_ids(e->schedule) + virtual_id) * 2 + backward];
}

/* The end of the F or B/I of (m, stage, s), or 0 if there is no such stage. */
static inline int64_t
evaluator_stage_end(const Evaluator *e, ScheduleOp op, int32_t stage, bool backward)
{
    if (stage < 0 || stage >= schedule_n_stages(e->schedule))
        return 0;
    const int32_t rank = schedule_rank_of_stage(e->schedule, stage, op.chunk);
    op.chunk = (uint8_t)schedule_chunk_of_stage(e->schedule, stage, op.chunk);
    return *evaluator_end(e, rank, schedule_virtual_id(e->schedule, op), backward);
}

/* The earliest start by the op's inputs, or -1 if one is not there yet. */
static inline int64_t
evaluator_ready(const Evaluator *e, int32_t rank, ScheduleOp op)
{
    const int64_t virtual_id = schedule_virtual_id(e->schedule, op);
    const int32_t stage = schedule_stage(e->schedule, rank, op.chunk);
    int64_t needs[3] = {0, 0, 0};

    switch ((ScheduleOpKind)op.kind) {
    case SCHEDULE_OP_FORWARD:
        needs[0] = evaluator_stage_end(e, op, stage - 1, false);
        needs[1] = op.slice > 0 ? *evaluator_end(e, rank, virtual_id - 1, false) : 0;
        break;
    case SCHEDULE_OP_BACKWARD:
    case SCHEDULE_OP_BACKWARD_INPUT:
        needs[0] = evaluator_stage_end(e, op, stage + 1, true);
        needs[1] = *evaluator_end(e, rank, virtual_id, false);
        needs[2] = op.slice + 1 < e->schedule->n_slices
                       ? *evaluator_end(e, rank, virtual_id + 1, true)
                       : 0;
        break;
    default:
        needs[0] = *evaluator_end(e, rank, virtual_id, true);
        break;
    }
    int64_t ready = 0;
    for (int i = 0; i < 3; i++) {
        if (needs[i] < 0)
            return -1;
        ready = MAX(ready, needs[i]);
    }
    return ready;
}

static inline bool
evaluator_has_weight(const Schedule *s, int32_t rank, ScheduleOp op)
{
    for (int64_t i = s->rank_begin[rank]; i < s->rank_begin[rank + 1]; i++)
        if (s->ops[i].kind == SCHEDULE_OP_BACKWARD_WEIGHT &&
            schedule_virtual_id(s, s->ops[i]) == schedule_virtual_id(s, op))
            return true;
    return false;
}

/* In flight as the files of the authors' programs count it; quadratic, for small schedules. */
static inline int32_t
evaluate_peak(const Schedule *s, int32_t rank)
{
    int32_t now = 0, peak = 0;

    for (int64_t i = s->rank_begin[rank]; i < s->rank_begin[rank + 1]; i++) {
        const ScheduleOp op = s->ops[i];
        if (op.kind == SCHEDULE_OP_FORWARD)
            now++;
        else if (op.kind != SCHEDULE_OP_BACKWARD_INPUT || !evaluator_has_weight(s, rank, op))
            now--;
        peak = MAX(peak, now);
    }
    return peak;
}

/* @times  by ScheduleOpKind. */
static inline Evaluation
evaluate(const Schedule *schedule, const int64_t times[SCHEDULE_OP_N])
{
    Evaluation result = {.complete = true};
    const size_t n = (size_t)schedule_n_virtual_ids(schedule) * (size_t)schedule->n_ranks * 2;
    g_autofree int64_t *end = g_new(int64_t, n);
    g_autofree int64_t *next =
        g_memdup2(schedule->rank_begin, sizeof(int64_t) * (size_t)(schedule->n_ranks + 1));
    const Evaluator e = {schedule, end};
    bool moved = true;

    g_assert_cmpint(schedule->n_ranks, <=, 64);
    for (size_t i = 0; i < n; i++)
        end[i] = -1;
    while (moved) {
        moved = false;
        for (int32_t r = 0; r < schedule->n_ranks; r++)
            for (; next[r] < schedule->rank_begin[r + 1]; next[r]++) {
                const ScheduleOp op = schedule->ops[next[r]];
                const int64_t ready = evaluator_ready(&e, r, op);
                if (ready < 0)
                    break;
                const int64_t start = MAX(ready, result.end[r]);
                if (next[r] == schedule->rank_begin[r])
                    result.begin[r] = start;
                result.end[r] = start + times[op.kind];
                result.busy[r] += times[op.kind];
                if (op.kind != SCHEDULE_OP_BACKWARD_WEIGHT)
                    *evaluator_end(&e, r, schedule_virtual_id(schedule, op),
                                   op.kind != SCHEDULE_OP_FORWARD) = result.end[r];
                moved = true;
            }
    }
    for (int32_t r = 0; r < schedule->n_ranks; r++) {
        result.complete = result.complete && next[r] == schedule->rank_begin[r + 1];
        result.makespan = MAX(result.makespan, result.end[r]);
        result.span = MAX(result.span, result.end[r] - result.begin[r]);
        result.peak[r] = evaluate_peak(schedule, r);
    }
    return result;
}

static const int64_t unit_times[SCHEDULE_OP_N] = {1, 2, 1, 1};

/* (owned) the ops of a rank in one line, separated by spaces. */
static inline char *
rank_text(const Schedule *schedule, int32_t rank)
{
    GString *text = g_string_new(NULL);

    for (int64_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
        char name[32];
        schedule_op_name(schedule, schedule->ops[i], name);
        g_string_append_printf(text, "%s%s", text->len > 0 ? " " : "", name);
    }
    return g_string_free(text, false);
}

/* A schedule of any order, for checkers: ranks' ops as text, "F0.0 B0.0". */
static inline Schedule *
schedule_from_text(const ScheduleShape *shape, SchedulePlacement placement,
                   const char *const *ranks)
{
    int64_t n_ops = 0;

    for (int64_t r = 0; r < shape->n_ranks; r++)
        for (const char *c = ranks[r]; *c != '\0'; c++)
            n_ops += *c == '.';
    Schedule *schedule = schedule_alloc("test", shape, placement, n_ops, NULL);
    int64_t n = 0;
    for (int32_t r = 0; r < schedule->n_ranks; r++) {
        g_auto(GStrv) words = g_strsplit(ranks[r], " ", -1);
        for (size_t i = 0; words[i] != NULL; i++)
            if (*words[i] != '\0')
                g_assert_true(schedule_op_parse(schedule, words[i], &schedule->ops[n++]));
        schedule->rank_begin[r + 1] = n;
    }
    return schedule;
}
