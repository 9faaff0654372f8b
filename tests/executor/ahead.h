/*
 * tests/executor/ahead.h - ZeRO 3 ahead of use, for tests of it on several devices.
 */
#pragma once

#include "tests/executor/combo.h"

/* Several pieces of state: 200 thousand parameters on a rank that has all of them.  No table is
 * larger than a layer, so all can be ahead of use. */
static inline ModelArch
ahead_arch(const Combo *c)
{
    ModelArch arch = combo_arch(c);

    arch.hidden = 64;
    arch.head_dim = 16;
    arch.ffn_hidden = 256;
    arch.vocab = 700;
    return arch;
}

/* Over two copies, 4 layers. */
static inline Combo
ahead_combo(int32_t depth)
{
    Combo c = combo_default();

    c.zero_stage = 3;
    c.dp = 2;
    c.n_layers = 4;
    c.prefetch_layers = depth;
    return c;
}

/* The trace of a step. */
static inline Trace *
ahead_trace(const char *device, const Combo *c, const ModelArch *arch)
{
    g_autoptr(Plan) plan = combo_plan(c);
    g_autoptr(GError) error = NULL;
    g_auto(ExecRunResult) result = {0};
    ExecRunOptions options = combo_options(c, arch, plan);

    options.device = device;
    options.verify = false;
    options.want_trace = true;
    g_assert_true(exec_run(&options, &result, &error));
    g_assert_no_error(error);
    return g_steal_pointer(&result.trace);
}

/* How many ops of rank 0 the event was under way in. */
static inline int64_t
ahead_n_ops_beside(const Trace *trace, const TraceEvent *event)
{
    int64_t n = 0;

    for (guint i = 0; i < trace->events->len; i++) {
        const TraceEvent *op = &g_array_index(trace->events, TraceEvent, i);
        n += op->kind <= TRACE_EVENT_BACKWARD_WEIGHT && op->stream == TRACE_STREAM_COMPUTE &&
             op->rank == 0 && event->start_ns < op->end_ns && event->end_ns > op->start_ns;
    }
    return n;
}

/* Gathers of rank 0: all, those beside an op, beside more than one, and those that began before the
 * op that opens them. */
typedef struct {
    int64_t n, n_beside, n_across, n_before;
} AheadGathers;

/* When the op begins that opens gather @number: a forward opens tables, 4 layers and the head, a
 * backward the head and the layers.  INT64_MIN: none does, it is the end of the step. */
static inline int64_t
ahead_op_begins_ns(const Trace *trace, int64_t number)
{
    for (guint i = 0; i < trace->events->len; i++) {
        const TraceEvent *op = &g_array_index(trace->events, TraceEvent, i);
        if (op->kind > TRACE_EVENT_BACKWARD_WEIGHT || op->stream != TRACE_STREAM_COMPUTE ||
            op->rank != 0)
            continue;
        number -= op->kind == TRACE_EVENT_FORWARD ? 6 : 5;
        if (number < 0)
            return op->start_ns;
    }
    return INT64_MIN;
}

/* They follow each other on their stream. */
static inline AheadGathers
ahead_gathers(const Trace *trace)
{
    AheadGathers gathers = {0};
    int64_t last_ns = INT64_MIN;

    for (guint i = 0; i < trace->events->len; i++) {
        const TraceEvent *gather = &g_array_index(trace->events, TraceEvent, i);
        if (gather->stream != TRACE_STREAM_DP || gather->kind != TRACE_EVENT_DP_GATHER ||
            gather->rank != 0)
            continue;
        gathers.n_before += gather->start_ns < ahead_op_begins_ns(trace, gathers.n);
        gathers.n++;
        g_assert_cmpint(gather->start_ns, >=, last_ns);
        g_assert_cmpint(gather->end_ns, >=, gather->start_ns);
        last_ns = gather->end_ns;
        const int64_t n = ahead_n_ops_beside(trace, gather);
        gathers.n_beside += n > 0;
        gathers.n_across += n > 1;
    }
    return gathers;
}
