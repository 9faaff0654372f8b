/* Tests of schedule/trace.h: order, invariants, and the file that Perfetto opens. */
#include "schedule/trace.h"

#include <math.h>
#include <string.h>

#include "base/json.h"
#include "tests/schedule/files.h"

static Schedule *
two_ranks(int64_t n_slices)
{
    const ScheduleShape shape = {2, 1, 2, n_slices, 0, NULL};

    return schedule_new("1f1b", &shape, NULL);
}

static void
add(Trace *trace, int32_t rank, TraceStream stream, TraceEventKind kind, int64_t start, int64_t end,
    int32_t peer)
{
    TraceEvent event = {
        .start_ns = start,
        .end_ns = end,
        .rank = rank,
        .peer = peer,
        .bytes = peer >= 0 ? 4096 : 0,
        .stream = (uint8_t)stream,
        .kind = (uint8_t)kind,
    };
    if (kind <= TRACE_EVENT_WAIT)
        event.op.micro_batch = 1;
    if ((int)kind < (int)SCHEDULE_OP_N)
        event.op.kind = (uint8_t)kind;
    g_array_append_val(trace->events, event);
}

static void
add_memory(Trace *trace, int32_t rank, TraceMemoryOwner owner, int64_t at, int64_t delta)
{
    const TraceMemory memory = {at, delta, rank, (uint8_t)owner};

    g_array_append_val(trace->memory, memory);
}

static Trace *
example(int64_t n_slices)
{
    g_autoptr(Schedule) s = two_ranks(n_slices);
    Trace *trace = trace_new(s, true);

    add(trace, 1, TRACE_STREAM_COMPUTE, TRACE_EVENT_FORWARD, 1500, 2500, -1);
    add(trace, 0, TRACE_STREAM_COMPUTE, TRACE_EVENT_FORWARD, 0, 1001, -1);
    add(trace, 0, TRACE_STREAM_SEND, TRACE_EVENT_SEND, 1001, 1499, 1);
    add(trace, 1, TRACE_STREAM_RECEIVE, TRACE_EVENT_RECEIVE, 1001, 1499, 0);
    add(trace, 1, TRACE_STREAM_DP, TRACE_EVENT_DP_REDUCE, 2500, 123456789, -1);
    add(trace, 1, TRACE_STREAM_COMPUTE, TRACE_EVENT_OPTIMIZER, 123456789, 123456790, -1);
    add_memory(trace, 1, TRACE_MEMORY_KV, 7, 12);
    add_memory(trace, 1, TRACE_MEMORY_WEIGHTS, 9, 34); /* rank 0 has more of them */
    add_memory(trace, 0, TRACE_MEMORY_WEIGHTS, 0, INT64_C(1) << 40);
    add_memory(trace, 0, TRACE_MEMORY_ACTIVATIONS, 5, 999);
    add_memory(trace, 0, TRACE_MEMORY_ACTIVATIONS, 5, -999);
    add_memory(trace, 0, TRACE_MEMORY_ACTIVATIONS, 5, 1);
    trace->makespan_ns = 123456790;
    trace->bubble_fraction = 2.0 / 3;
    g_array_index(trace->events, TraceEvent, 0).recompute_fraction = 0.3f;
    trace_sort(trace);
    return trace;
}

static Trace *
load_text(const char *text, GError **error)
{
    g_autofree char *path = file_with(text, -1);
    Trace *trace = trace_load(path, error);

    g_unlink(path);
    return trace;
}

static void
assert_equal(const Trace *a, const Trace *b)
{
    g_assert_cmpint(a->measured, ==, b->measured);
    g_assert_cmpstr(a->schedule, ==, b->schedule);
    g_assert_cmpint(a->n_ranks, ==, b->n_ranks);
    g_assert_cmpint(a->n_chunks, ==, b->n_chunks);
    g_assert_cmpint(a->n_micro_batches, ==, b->n_micro_batches);
    g_assert_cmpint(a->n_slices, ==, b->n_slices);
    g_assert_cmpint(a->makespan_ns, ==, b->makespan_ns);
    g_assert_true(a->bubble_fraction == b->bubble_fraction ||
                  (isnan(a->bubble_fraction) && isnan(b->bubble_fraction)));
    g_assert_cmpuint(a->events->len, ==, b->events->len);
    g_assert_cmpuint(a->memory->len, ==, b->memory->len);
    for (guint i = 0; i < a->events->len; i++) {
        const TraceEvent *x = &g_array_index(a->events, TraceEvent, i);
        const TraceEvent *y = &g_array_index(b->events, TraceEvent, i);
        g_assert_cmpint(x->start_ns, ==, y->start_ns);
        g_assert_cmpint(x->end_ns, ==, y->end_ns);
        g_assert_cmpint(memcmp(&x->op, &y->op, sizeof x->op), ==, 0);
        g_assert_cmpint(x->rank, ==, y->rank);
        g_assert_cmpint(x->peer, ==, y->peer);
        g_assert_cmpint(x->bytes, ==, y->bytes);
        g_assert_cmpint(x->stream, ==, y->stream);
        g_assert_cmpint(x->kind, ==, y->kind);
        g_assert_true(x->recompute_fraction == y->recompute_fraction);
    }
    for (guint i = 0; i < a->memory->len; i++) {
        const TraceMemory *x = &g_array_index(a->memory, TraceMemory, i);
        const TraceMemory *y = &g_array_index(b->memory, TraceMemory, i);
        g_assert_cmpint(x->at_ns, ==, y->at_ns);
        g_assert_cmpint(x->delta_bytes, ==, y->delta_bytes);
        g_assert_cmpint(x->rank, ==, y->rank);
        g_assert_cmpint(x->owner, ==, y->owner);
    }
}

static void
test_round_trip(void)
{
    for (int64_t n_slices = 1; n_slices <= 2; n_slices++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Trace) trace = example(n_slices);
        size_t n_bytes;
        g_assert_true(trace_check(trace, &error));
        g_autofree char *text = trace_to_json(trace, &n_bytes);
        g_autoptr(Trace) back = load_text(text, &error);
        g_assert_no_error(error);
        assert_equal(trace, back);
        g_autofree char *again = trace_to_json(back, &n_bytes);
        g_assert_cmpstr(again, ==, text);
    }
}

/* Times up to 2^51 ns come back to the nanosecond. */
static void
test_times_are_exact(void)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(5);
    g_autoptr(Schedule) s = two_ranks(1);
    g_autoptr(Trace) trace = trace_new(s, false);
    g_autoptr(GError) error = NULL;
    int64_t now = 0;

    for (int i = 0; i < 20000; i++) {
        const int64_t step = (int64_t)(((uint64_t)g_rand_int(rand) << 32 | g_rand_int(rand)) >>
                                       g_rand_int_range(rand, 22, 60));
        add(trace, 0, TRACE_STREAM_COMPUTE, TRACE_EVENT_FORWARD, now, now + step, -1);
        now += step;
        if (now > (INT64_C(1) << 51) - (INT64_C(1) << 41))
            break;
    }
    trace->makespan_ns = now;
    g_assert_cmpint(now, >, INT64_C(1) << 47);
    size_t n_bytes;
    trace_sort(trace);
    g_autofree char *text = trace_to_json(trace, &n_bytes);
    g_autoptr(Trace) back = load_text(text, &error);
    g_assert_no_error(error);
    assert_equal(trace, back);
}

static void
assert_contains(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        g_error("missing %s in %s", part, text);
}

/* What chrome://tracing and Perfetto ask for: INTEROP names them; ts and dur in microseconds. */
static void
test_chrome_form(void)
{
    g_autoptr(Trace) trace = example(1);
    size_t n_bytes;
    g_autofree char *pretty = trace_to_json(trace, &n_bytes);
    g_autofree char *text = g_strdup(pretty);
    char *to = text;

    for (const char *from = pretty; *from != '\0'; from++)
        if (*from != ' ' && *from != '\n')
            *to++ = *from;
    *to = '\0';
    assert_contains(text, "\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    assert_contains(text, "{\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":0.000,\"dur\":1.001,"
                          "\"name\":\"F1.0\",\"cat\":\"F\",\"args\":{\"op\":\"F1.0\"}}");
    assert_contains(text, "\"ts\":123456.789,\"dur\":0.001,\"name\":\"optimizer\"");
    assert_contains(text, "{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":"
                          "\"rank1\"}}");
    assert_contains(text, "{\"ph\":\"M\",\"pid\":1,\"name\":\"process_sort_index\",\"args\":"
                          "{\"sort_index\":1}}");
    assert_contains(text, "{\"ph\":\"M\",\"pid\":0,\"tid\":1,\"name\":\"thread_name\",\"args\":"
                          "{\"name\":\"send\"}}");
    assert_contains(text, "\"tid\":1,\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":1}}");
    assert_contains(text, "{\"ph\":\"s\",\"id\":1,\"pid\":0,\"tid\":1,\"ts\":1.001,\"name\":"
                          "\"activations\",\"cat\":\"message\"}");
    assert_contains(text, "{\"ph\":\"f\",\"bp\":\"e\",\"id\":1,\"pid\":1,\"tid\":2,\"ts\":1.001,"
                          "\"name\":\"activations\",\"cat\":\"message\"}");
    assert_contains(text, "{\"ph\":\"C\",\"pid\":0,\"ts\":0.005,\"name\":\"memory_bytes\",\"args\":"
                          "{\"weights\":1099511627776,\"activations\":999}}");
    assert_contains(text, "{\"ph\":\"C\",\"pid\":1,\"ts\":0.007,\"name\":\"memory_bytes\",\"args\":"
                          "{\"weights\":0,\"kv\":12}}");
}

/* An arrow needs both ends; ids count the arrows. */
static void
test_arrows(void)
{
    g_autoptr(Schedule) s = two_ranks(1);
    g_autoptr(Trace) trace = trace_new(s, false);
    size_t n_bytes;

    add(trace, 0, TRACE_STREAM_SEND, TRACE_EVENT_SEND, 0, 1, 1);
    g_array_index(trace->events, TraceEvent, 0).op.micro_batch = 0; /* nobody receives this one */
    add(trace, 0, TRACE_STREAM_SEND, TRACE_EVENT_SEND, 1, 2, 1);
    add(trace, 1, TRACE_STREAM_RECEIVE, TRACE_EVENT_RECEIVE, 1, 2, 0);
    add(trace, 1, TRACE_STREAM_SEND, TRACE_EVENT_SEND, 1, 2, 0); /* the same op, the other way */
    trace->makespan_ns = 2;
    trace_sort(trace);
    g_autofree char *text = trace_to_json(trace, &n_bytes);
    g_auto(GStrv) starts = g_strsplit(text, "\"ph\": \"s\"", -1);
    g_auto(GStrv) ends = g_strsplit(text, "\"ph\": \"f\"", -1);
    g_assert_cmpuint(g_strv_length(starts), ==, 2);
    g_assert_cmpuint(g_strv_length(ends), ==, 2);
    assert_contains(starts[1], "\"id\": 1, \"pid\": 0, \"tid\": 1, \"ts\": 0.001");
}

/* A share of the time is at most all of it. */
static void
test_bubble_is_a_fraction(void)
{
    for (int i = 0; i < 2; i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Trace) trace = example(1);
        size_t n_bytes;

        trace->bubble_fraction = i == 0 ? 1.0 : 1.5;
        g_autofree char *text = trace_to_json(trace, &n_bytes);
        g_autoptr(Trace) back = load_text(text, &error);
        g_assert_true((back == NULL) == (i == 1));
        if (i == 1)
            assert_contains(error->message, "$.bubble_fraction: ");
    }
}

static void
test_check_says(void)
{
    for (int i = 0; i < 7; i++) {
        static const char *const says[] = {
            "stream compute: F begins at 1000 ns, before F ends at 1001 ns",
            "runs from 5 ns to 4 ns",
            "outside of 0 to 123456790 ns",
            "frees more of kv than it holds",
            "not sorted at",
            "memory is not sorted",
            "outside of the trace",
        };
        g_autoptr(GError) error = NULL;
        g_autoptr(Trace) trace = example(1);
        if (i == 0)
            add(trace, 0, TRACE_STREAM_COMPUTE, TRACE_EVENT_FORWARD, 1000, 1500, -1);
        if (i == 1)
            add(trace, 0, TRACE_STREAM_DP, TRACE_EVENT_DP_REDUCE, 5, 4, -1);
        if (i == 2)
            add(trace, 0, TRACE_STREAM_DP, TRACE_EVENT_DP_REDUCE, 5, 123456791, -1);
        if (i == 3)
            add_memory(trace, 1, TRACE_MEMORY_KV, 8, -13);
        if (i < 4)
            trace_sort(trace);
        if (i == 4)
            add(trace, 0, TRACE_STREAM_DP, TRACE_EVENT_DP_REDUCE, 5, 6, -1);
        if (i == 5)
            add_memory(trace, 0, TRACE_MEMORY_KV, 8, 1);
        if (i == 6)
            add_memory(trace, 1, TRACE_MEMORY_KV, 123456791, 1);
        g_assert_false(trace_check(trace, &error));
        g_assert_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_INCOMPLETE);
        assert_contains(error->message, says[i]);
    }
}

/* Sorting does not depend on the order of the events, and keeps that of memory at one time. */
static void
test_sort_is_total(void)
{
    g_autoptr(Trace) trace = example(1);
    g_autoptr(Trace) other = example(1);
    size_t n_bytes;

    for (guint i = 0; i < other->events->len / 2; i++) {
        TraceEvent *a = &g_array_index(other->events, TraceEvent, i);
        TraceEvent *b = &g_array_index(other->events, TraceEvent, other->events->len - 1 - i);
        const TraceEvent swap = *a;
        *a = *b;
        *b = swap;
    }
    trace_sort(other);
    g_autofree char *a = trace_to_json(trace, &n_bytes);
    g_autofree char *b = trace_to_json(other, &n_bytes);
    g_assert_cmpstr(a, ==, b);
}

#define HEAD                                                                                       \
    "{\"format\":\"degas-trace\",\"version\":1,\"measured\":false,\"schedule\":\"x\","             \
    "\"stages\":1,\"virtual\":1,\"microbatches\":1,\"slices\":1,\"makespan_ns\":1000,"             \
    "\"traceEvents\":["
#define EVENT(ts, dur, cat, args)                                                                  \
    "{\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":" ts ",\"dur\":" dur ",\"cat\":\"" cat               \
    "\",\"args\":{" args "}}"

static void
test_refuses(void)
{
    static const struct {
        const char *text;
        const char *says; /* NULL: fine */
    } cases[] = {
        {HEAD "]}", NULL},
        {HEAD "{\"ph\":\"M\",\"foreign\":[1]}]}", NULL},
        {HEAD EVENT("0", "1", "F", "\"op\":\"F0.0\"") "]}", NULL},
        {HEAD EVENT("0", "1.001", "F", "\"op\":\"F0.0\"") "]}", "outside of 0 to 1000 ns"},
        {HEAD EVENT("-1", "1", "F", "\"op\":\"F0.0\"") "]}", "$.traceEvents[0].ts"},
        {HEAD EVENT("1e300", "1", "F", "\"op\":\"F0.0\"") "]}", "$.traceEvents[0].ts"},
        {HEAD EVENT("0", "1", "F", "\"op\":\"F1.0\"") "]}", "$.traceEvents[0].args.op"},
        {HEAD EVENT("0", "1", "F", "") "]}", "$.traceEvents[0].args"},
        {HEAD EVENT("0", "1", "G", "\"op\":\"F0.0\"") "]}", "$.traceEvents[0].cat"},
        {HEAD EVENT("0", "1", "F", "\"op\":\"F0.0\",\"peer\":-2") "]}",
         "$.traceEvents[0].args.peer"},
        {HEAD EVENT("0", "0.5", "F", "\"op\":\"F0.0\"") "," EVENT("0.4", "0.5", "F",
                                                                  "\"op\":\"F0.0\"") "]}",
         "begins at 400 ns, before F ends at 500 ns"},
        {HEAD "{\"ph\":\"C\",\"pid\":0,\"ts\":0,\"args\":{\"weihgts\":1}}]}", "weihgts"},
        {HEAD "{\"ph\":\"C\",\"pid\":0,\"ts\":0,\"args\":{\"weights\":-1}}]}",
         "$.traceEvents[0].args.weights"},
        {HEAD "7]}", "$.traceEvents[0]"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Trace) trace = load_text(cases[i].text, &error);
        if (cases[i].says == NULL) {
            g_assert_no_error(error);
            g_assert_nonnull(trace);
            continue;
        }
        g_assert_null(trace);
        g_assert_error(error, JSON_ERROR, JSON_ERROR_INVALID);
        assert_contains(error->message, cases[i].says);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/schedule/trace/round-trip", test_round_trip);
    g_test_add_func("/schedule/trace/times-are-exact", test_times_are_exact);
    g_test_add_func("/schedule/trace/chrome-form", test_chrome_form);
    g_test_add_func("/schedule/trace/arrows", test_arrows);
    g_test_add_func("/schedule/trace/bubble-is-a-fraction", test_bubble_is_a_fraction);
    g_test_add_func("/schedule/trace/check-says", test_check_says);
    g_test_add_func("/schedule/trace/sort-is-total", test_sort_is_total);
    g_test_add_func("/schedule/trace/refuses", test_refuses);
    return g_test_run();
}
