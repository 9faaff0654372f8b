/*
 * tests/simulator/oracle.h - a slow simulator that shares nothing with simulator/.
 *
 * Every op looks for the ops it needs by walking all ops, O(n^2) in all, and every message is
 * looked up by stage: no graph, no steps, no tables.  Written from the text of schedule/schedule.h,
 * simulator/simulate.h, simulator/finish.h and profiles/workload/workload.h.
 */
#pragma once

#include <string.h>

#include "profiles/workload/prefetch.h"

typedef struct {
    ScheduleOp op;
    int32_t rank, stage, chain;
    bool done, has_weight;
    int64_t begin, start, end, free; /* receive, op, send on the compute stream */
    int64_t message_ns;              /* of the messages it needs and sends */
} OracleOp;

typedef struct {
    const Schedule *schedule;
    const Workload *workload;
    int64_t n;
    OracleOp *ops;                         /* (owned) */
    int64_t *free, *busy, *first, *finish; /* (owned) [rank] */
    int64_t *peak, *peak_time;             /* (owned) [rank] */
    int64_t (*owner)[TRACE_MEMORY_N];      /* (owned) [rank] at the peak */
    int32_t *in_flight;                    /* (owned) [rank] */
    int64_t *dp_until, *waited;            /* (owned) [rank] */
    int64_t makespan, span;
} Oracle;

static inline const WorkloadOp *
oracle_workload(const Oracle *o, const OracleOp *op, int32_t stage)
{
    const Workload *w = o->workload;
    const int64_t class_ =
        w->class_of_micro_batch == NULL ? 0 : w->class_of_micro_batch[op->op.micro_batch];
    const int64_t at = ((int64_t)op->chain * w->n_stages + stage) * w->n_classes + class_;

    return &w->ops[at * w->n_slices + op->op.slice];
}

/* Whether op @a runs backward for the gradient of the input. */
static inline bool
oracle_is_input_gradient(const OracleOp *a)
{
    return a->op.kind == SCHEDULE_OP_BACKWARD || a->op.kind == SCHEDULE_OP_BACKWARD_INPUT;
}

/* The op of @like's chain and micro-batch at (@stage, @slice): its F, or its B or I; or NULL. */
static inline OracleOp *
oracle_find(const Oracle *o, const OracleOp *like, int32_t stage, int32_t slice, bool backward)
{
    for (int64_t i = 0; i < o->n; i++) {
        OracleOp *a = &o->ops[i];
        if (a->chain == like->chain && a->stage == stage && a->op.slice == slice &&
            a->op.micro_batch == like->op.micro_batch &&
            (backward ? oracle_is_input_gradient(a) : a->op.kind == SCHEDULE_OP_FORWARD))
            return a;
    }
    return NULL;
}

/* The message that @op gets from stage @from, or that it sends: its time, 0 on one rank. */
static inline int64_t
oracle_message(const Oracle *o, const OracleOp *op, int32_t from, int32_t to)
{
    const Schedule *s = o->schedule;

    if (from < 0 || to < 0 || from >= o->workload->n_stages || to >= o->workload->n_stages ||
        schedule_rank_of_stage(s, from, op->chain) == schedule_rank_of_stage(s, to, op->chain))
        return 0;
    return workload_message(oracle_workload(o, op, from), from < to)->ns;
}

/* Of the message from @op's stage to stage @to: what a blocked sender need not wait for. */
static inline int64_t
oracle_buffered(const Oracle *o, const OracleOp *op, int32_t to)
{
    const WorkloadOp *w = oracle_workload(o, op, op->stage);

    return oracle_message(o, op, op->stage, to) == 0
               ? 0
               : workload_message(w, op->stage < to)->buffered_ns;
}

/* --- beside ops (simulator/finish.h) --- */

static inline bool
oracle_is_backward(const OracleOp *a)
{
    return a->op.kind != SCHEDULE_OP_FORWARD;
}

/* Whether @op is the first F of its chunk on its rank, or the last that is none; and how many
 * chunks had theirs before. */
static inline bool
oracle_is_edge(const Oracle *o, const OracleOp *op, bool first, int32_t *before)
{
    const int64_t begin = o->schedule->rank_begin[op->rank];
    const int64_t end = o->schedule->rank_begin[op->rank + 1], at = op - o->ops;
    bool seen[SCHEDULE_MAX_CHUNKS] = {false};

    *before = 0;
    if (oracle_is_backward(op) == first)
        return false;
    for (int64_t i = first ? begin : at + 1; i < (first ? at : end); i++)
        if (oracle_is_backward(&o->ops[i]) != first && o->ops[i].op.chunk == op->op.chunk)
            return false;
    for (int64_t i = begin; i < at; i++) {
        const OracleOp *a = &o->ops[i];
        bool edge = oracle_is_backward(a) != first && !seen[a->op.chunk];
        for (int64_t j = i + 1; !first && edge && j < end; j++)
            edge = !oracle_is_backward(&o->ops[j]) || o->ops[j].op.chunk != a->op.chunk;
        *before += edge;
        seen[a->op.chunk] = seen[a->op.chunk] || edge;
    }
    return true;
}

/* Part @i of @n of @all. */
static inline int64_t
oracle_part(int64_t all, int64_t n, int64_t i)
{
    return (all + n - 1 - i) / n;
}

/* The end of @ns of computing from @t on, slowed while rank @r's dp stream works. */
static inline int64_t
oracle_compute(const Oracle *o, int32_t r, int64_t t, int64_t ns)
{
    const double speed = 1 / (1 + o->workload->interference_fraction);
    const double beside = (double)MAX(0, o->dp_until[r] - t);

    if (beside == 0)
        return t + ns;
    if ((int64_t)((double)ns / speed + 0.5) <= o->dp_until[r] - t)
        return t + (int64_t)((double)ns / speed + 0.5);
    return o->dp_until[r] + (int64_t)(MAX(0.0, (double)ns - beside * speed) + 0.5);
}

/* The end of @op, with what it waits for and what runs behind it. */
static inline int64_t
oracle_end(Oracle *o, const OracleOp *op, int64_t ns)
{
    const Workload *w = o->workload;
    const WorkloadRank *work = &w->ranks[op->rank];
    const int64_t n_chunks = o->schedule->n_chunks, n = MAX(1, work->n_buckets);
    int64_t t = op->start, there = 0;
    int32_t before;

    if (w->overlap_gather && oracle_is_edge(o, op, true, &before)) {
        for (int32_t i = 0; i < before; i++)
            there += oracle_part(work->dp_gather_ns, n_chunks, i);
        for (int64_t k = 0; k < n; k++) {
            there += oracle_part(oracle_part(work->dp_gather_ns, n_chunks, before), n, k);
            o->waited[op->rank] += MAX(0, there - t);
            t = oracle_compute(o, op->rank, MAX(t, there), oracle_part(ns, n, k));
        }
        return t;
    }
    if (!w->overlap_dp || work->dp_reduce_ns + work->dp_reduce_bytes == 0 ||
        !oracle_is_edge(o, op, false, &before))
        return oracle_compute(o, op->rank, t, ns);
    for (int64_t k = 0; k < n; k++) {
        t = oracle_compute(o, op->rank, t, oracle_part(ns, n, k));
        o->dp_until[op->rank] =
            MAX(t, o->dp_until[op->rank]) +
            oracle_part(oracle_part(work->dp_reduce_ns, n_chunks, before), n, k);
    }
    return t;
}

/* Runs @op if what it needs has run.  @free is when its rank is free. */
static inline bool
oracle_try(Oracle *o, OracleOp *op)
{
    const bool forward = op->op.kind == SCHEDULE_OP_FORWARD;
    const bool weight = op->op.kind == SCHEDULE_OP_BACKWARD_WEIGHT;
    const bool blocking = o->workload->blocking_messages;
    const int32_t from = weight ? -1 : forward ? op->stage - 1 : op->stage + 1;
    const int32_t to = weight ? -1 : forward ? op->stage + 1 : op->stage - 1;
    const int64_t in = oracle_message(o, op, from, op->stage);
    const int64_t out = oracle_message(o, op, op->stage, to);
    const OracleOp *needs[3] = {NULL, NULL, NULL};
    int64_t begin = o->free[op->rank];

    if (from >= 0 && from < o->workload->n_stages)
        needs[0] = oracle_find(o, op, from, op->op.slice, !forward);
    if (weight || !forward)
        needs[1] = oracle_find(o, op, op->stage, op->op.slice, weight);
    if (forward && op->op.slice > 0)
        needs[2] = oracle_find(o, op, op->stage, op->op.slice - 1, false);
    if (!forward && !weight && op->op.slice + 1 < o->workload->n_slices)
        needs[2] = oracle_find(o, op, op->stage, op->op.slice + 1, true);
    for (int i = 0; i < 3; i++)
        if (needs[i] != NULL && !needs[i]->done)
            return false;
    for (int i = 0; i < 3; i++)
        if (needs[i] != NULL)
            begin = MAX(begin, needs[i]->end + (i == 0 && !blocking ? in : 0));
    op->begin = begin;
    op->start = begin + (blocking ? in : 0);
    op->end = oracle_end(o, op,
                         oracle_workload(o, op, op->stage)->time_ns[op->op.kind] +
                             o->workload->op_overhead_ns);
    op->free = op->end + (blocking ? out - oracle_buffered(o, op, to) : 0);
    op->message_ns = in + out;
    op->done = true;
    o->free[op->rank] = op->free;
    o->busy[op->rank] += op->free - op->begin;
    return true;
}

/* When rank @r has reduced its gradients. */
static inline int64_t
oracle_reduced(const Oracle *o, int32_t r)
{
    if (!o->workload->overlap_dp)
        return MAX(o->free[r], o->dp_until[r]) + o->workload->ranks[r].dp_reduce_ns;
    return MAX(o->free[r], o->dp_until[r]);
}

/* Gatherings of op @i of the schedule, in its order; returns how many, at most 64. */
static inline int64_t
oracle_gatherings(const Oracle *o, int64_t i, int64_t bytes[64])
{
    const OracleOp *op = &o->ops[i];
    const WorkloadPrefetch *ahead = o->workload->prefetch;
    const int64_t place = (int64_t)op->chain * o->workload->n_stages + op->stage;
    const int64_t begin = ahead->begin[place], end = ahead->begin[place + 1];
    int64_t n = 0;

    if (op->op.kind == SCHEDULE_OP_FORWARD)
        for (int64_t k = begin; k < end; k++)
            bytes[n++] = ahead->bytes[k];
    else if (op->op.kind != SCHEDULE_OP_BACKWARD_WEIGHT)
        for (int64_t k = end - 1; k >= begin + ahead->is_first[place]; k--)
            bytes[n++] = ahead->bytes[k];
    return n;
}

/* The workspace of op @i of rank @r: for each part of the op that has some of later ops ahead, what
 * is under way when that part is at work. */
static inline int64_t
oracle_workspace(const Oracle *o, int32_t r, int64_t i)
{
    const WorkloadOp *w = oracle_workload(o, &o->ops[i], o->ops[i].stage);
    const ScheduleOpKind kind = (ScheduleOpKind)o->ops[i].op.kind;
    const WorkloadPrefetch *ahead = o->workload->prefetch;
    int64_t most = w->workspace_bytes[kind], row[64];

    for (int32_t later = 1; ahead != NULL && later <= ahead->depth; later++) {
        const int64_t last =
            ahead->last_bytes[((w - o->workload->ops) * SCHEDULE_OP_N + kind) * ahead->depth +
                              later - 1];
        const int64_t n = oracle_gatherings(o, i, row), own = ahead->depth - later;
        int64_t prefetches = 0, n_bytes = 0, left = later;
        if (last == WORKLOAD_PREFETCH_NONE || own > n)
            continue;
        for (int64_t k = n - own; k < n; k++)
            prefetches += row[k];
        for (int64_t j = i + 1; left > 0 && j < o->schedule->rank_begin[r + 1]; j++) {
            const int64_t n_next = oracle_gatherings(o, j, row);
            for (int64_t k = 0; k < n_next && left > 0; k++, left--) {
                prefetches += row[k];
                if (prefetches > ahead->most_bytes[r])
                    left = 1; /* the last that is looked at */
                else
                    n_bytes += row[k];
            }
        }
        most = MAX(most, last + n_bytes);
    }
    return most;
}

static inline void
oracle_memory(Oracle *o, int32_t r)
{
    int64_t now[TRACE_MEMORY_N], in_flight = 0;

    memcpy(now, o->workload->ranks[r].static_bytes, sizeof now);
    for (int64_t i = o->schedule->rank_begin[r] - 1; i < o->schedule->rank_begin[r + 1]; i++) {
        int64_t sum = 0, at = 0;
        if (i >= o->schedule->rank_begin[r]) {
            const OracleOp *op = &o->ops[i];
            const WorkloadOp *w = oracle_workload(o, op, op->stage);
            at = op->start;
            now[TRACE_MEMORY_WORKSPACE] += oracle_workspace(o, r, i);
            if (op->op.kind == SCHEDULE_OP_FORWARD) {
                now[TRACE_MEMORY_ACTIVATIONS] += w->activation_bytes;
                now[TRACE_MEMORY_KV] += w->kv_bytes;
                in_flight++;
            }
            if (op->op.kind == SCHEDULE_OP_BACKWARD_INPUT && op->has_weight)
                now[TRACE_MEMORY_ACTIVATIONS] +=
                    MAX(0, w->weight_activation_bytes - w->activation_bytes);
            /* The first backward of a micro-batch, that of its last slice. */
            if (oracle_is_input_gradient(op) && op->op.slice == o->schedule->n_slices - 1)
                for (int32_t s = 0; s < o->schedule->n_slices; s++)
                    now[TRACE_MEMORY_KV] += w[-s].kv_gradient_bytes;
            o->in_flight[r] = MAX(o->in_flight[r], (int32_t)in_flight);
        }
        for (int k = 0; k < TRACE_MEMORY_N; k++)
            sum += now[k];
        if (i < o->schedule->rank_begin[r] || sum > o->peak[r]) {
            o->peak[r] = sum;
            o->peak_time[r] = at;
            memcpy(o->owner[r], now, sizeof now);
        }
        if (i < o->schedule->rank_begin[r])
            continue;
        const OracleOp *op = &o->ops[i];
        const WorkloadOp *w = oracle_workload(o, op, op->stage);
        now[TRACE_MEMORY_WORKSPACE] -= oracle_workspace(o, r, i);
        if (oracle_is_input_gradient(op)) {
            now[TRACE_MEMORY_KV] -= w->kv_bytes + w->kv_gradient_bytes;
            now[TRACE_MEMORY_ACTIVATIONS] -=
                op->has_weight ? MAX(0, w->activation_bytes - w->weight_activation_bytes)
                               : w->activation_bytes;
        } else if (op->op.kind == SCHEDULE_OP_BACKWARD_WEIGHT) {
            now[TRACE_MEMORY_ACTIVATIONS] -= w->weight_activation_bytes;
        }
        in_flight -= op->op.kind != SCHEDULE_OP_FORWARD && !op->has_weight;
    }
    g_assert_cmpint(in_flight, ==, 0);
    g_assert_cmpint(memcmp(now, o->workload->ranks[r].static_bytes, sizeof now), ==, 0);
}

/* Fails the test if the schedule cannot run. */
static inline Oracle *
oracle_new(const Schedule *schedule, const Workload *workload)
{
    const size_t p = (size_t)schedule->n_ranks;
    Oracle *o = g_new0(Oracle, 1);
    bool moved = true;

    *o = (Oracle){.schedule = schedule, .workload = workload, .n = schedule_n_ops(schedule)};
    o->ops = g_new0(OracleOp, (size_t)o->n + 1);
    o->free = g_new0(int64_t, p);
    o->busy = g_new0(int64_t, p);
    o->first = g_new0(int64_t, p);
    o->finish = g_new0(int64_t, p);
    o->peak = g_new0(int64_t, p);
    o->peak_time = g_new0(int64_t, p);
    o->owner = g_malloc0(p * sizeof *o->owner);
    o->in_flight = g_new0(int32_t, p);
    o->dp_until = g_new0(int64_t, p);
    o->waited = g_new0(int64_t, p);
    for (int32_t r = 0; r < schedule->n_ranks; r++)
        for (int64_t i = schedule->rank_begin[r]; i < schedule->rank_begin[r + 1]; i++) {
            const ScheduleOp op = schedule->ops[i];
            o->ops[i] =
                (OracleOp){.op = op,
                           .rank = r,
                           .stage = schedule_stage(schedule, r, op.chunk),
                           .chain = schedule->placement == SCHEDULE_PLACEMENT_BIDIR ? op.chunk : 0};
        }
    for (int64_t i = 0; i < o->n; i++)
        for (int64_t j = 0; j < o->n; j++) {
            const OracleOp *a = &o->ops[i], *b = &o->ops[j];
            if (oracle_is_input_gradient(a) && b->op.kind == SCHEDULE_OP_BACKWARD_WEIGHT &&
                a->rank == b->rank && a->op.micro_batch == b->op.micro_batch &&
                a->op.chunk == b->op.chunk && a->op.slice == b->op.slice)
                o->ops[i].has_weight = true;
        }
    for (int32_t r = 0; r < schedule->n_ranks; r++)
        o->dp_until[r] = workload->overlap_gather ? workload->ranks[r].dp_gather_ns : 0;
    while (moved) {
        moved = false;
        for (int32_t r = 0; r < schedule->n_ranks; r++)
            for (int64_t i = schedule->rank_begin[r]; i < schedule->rank_begin[r + 1]; i++) {
                if (o->ops[i].done)
                    continue;
                if (!oracle_try(o, &o->ops[i]))
                    break;
                moved = true;
            }
    }
    for (int64_t i = 0; i < o->n; i++)
        g_assert_true(o->ops[i].done);
    for (int32_t r = 0; r < schedule->n_ranks; r++) {
        const WorkloadRank *work = &workload->ranks[r];
        const int64_t reduced = oracle_reduced(o, r);
        const int64_t gather = workload->overlap_gather ? 0 : work->dp_gather_ns;
        o->busy[r] += reduced - o->free[r] + work->optimizer_ns + gather;
        o->finish[r] = reduced + work->optimizer_ns + gather;
        o->first[r] = o->ops[schedule->rank_begin[r]].begin;
        o->makespan = MAX(o->makespan, o->finish[r]);
        o->span = MAX(o->span, o->finish[r] - o->first[r]);
        oracle_memory(o, r);
    }
    return o;
}

static inline void
oracle_free(Oracle *o)
{
    g_free(o->ops);
    g_free(o->free);
    g_free(o->busy);
    g_free(o->first);
    g_free(o->finish);
    g_free(o->peak);
    g_free(o->peak_time);
    g_free(o->owner);
    g_free(o->in_flight);
    g_free(o->dp_until);
    g_free(o->waited);
    g_free(o);
}
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Oracle, oracle_free)
