#include "cli/run/breakdown.h"

#include <stdlib.h>

#include "base/order.h"
#include "base/text.h"
#include "base/units.h"

const char *const breakdown_names[BREAKDOWN_N + 1] = {
    "forward",   "backward", "backward_input", "backward_weight", "compute", "busy",
    "optimizer", "dp",       "messages",       "dispatch",        "waiting", NULL,
};

const char *const breakdown_titles[BREAKDOWN_N + 1] = {
    "forward",          "backward",
    "input gradients",  "weight gradients",
    "computing",        "busy",
    "optimizer",        "data-parallel communication",
    "messages",         "dispatch between ops",
    "waiting (bubble)", NULL,
};

bool
breakdown_has(BreakdownLevel level, BreakdownClass class_)
{
    switch (class_) {
    case BREAKDOWN_COMPUTE:
        return level == BREAKDOWN_LEVEL_COMPUTE;
    case BREAKDOWN_BUSY:
        return level == BREAKDOWN_LEVEL_BUSY;
    case BREAKDOWN_OPTIMIZER:
    case BREAKDOWN_DP:
    case BREAKDOWN_MESSAGES:
        return level <= BREAKDOWN_LEVEL_COMPUTE;
    case BREAKDOWN_WAITING:
        return true;
    default:
        return level == BREAKDOWN_LEVEL_OPS;
    }
}

/* --- of a trace --- */

/* Where an event begins (+1) or ends (-1). */
typedef struct {
    int64_t at_ns;
    int32_t delta;
    uint8_t class_;
} Edge;

static uint8_t
class_of(const TraceEvent *event)
{
    static const uint8_t classes[TRACE_EVENT_N] = {
        [TRACE_EVENT_FORWARD] = BREAKDOWN_FORWARD,
        [TRACE_EVENT_BACKWARD] = BREAKDOWN_BACKWARD,
        [TRACE_EVENT_BACKWARD_INPUT] = BREAKDOWN_BACKWARD_INPUT,
        [TRACE_EVENT_BACKWARD_WEIGHT] = BREAKDOWN_BACKWARD_WEIGHT,
        [TRACE_EVENT_SEND] = BREAKDOWN_MESSAGES,
        [TRACE_EVENT_RECEIVE] = BREAKDOWN_MESSAGES,
        [TRACE_EVENT_WAIT] = BREAKDOWN_WAITING,
        [TRACE_EVENT_DP_REDUCE] = BREAKDOWN_DP,
        [TRACE_EVENT_DP_GATHER] = BREAKDOWN_DP,
        [TRACE_EVENT_OPTIMIZER] = BREAKDOWN_OPTIMIZER,
        [TRACE_EVENT_EXCHANGE] = BREAKDOWN_MESSAGES,
    };

    return classes[event->kind];
}

static int
compare_edges(const void *a, const void *b)
{
    const Edge *x = a, *y = b;

    ORDER_BY(x->at_ns, y->at_ns);
    return ORDER(x->delta, y->delta);
}

/* The class of a moment in which @open events of each class go on. */
static int
class_of_moment(const int32_t open[BREAKDOWN_N], bool between_events, bool measured)
{
    for (int class_ = 0; class_ < BREAKDOWN_N; class_++)
        if (open[class_] > 0)
            return class_;
    return measured && between_events ? BREAKDOWN_DISPATCH : BREAKDOWN_WAITING;
}

/* Adds a rank's times; @edges is scratch. */
static void
add_rank(const Trace *trace, guint first, guint end, GArray *edges, int64_t class_ns[BREAKDOWN_N])
{
    int32_t open[BREAKDOWN_N] = {0};
    int64_t now_ns = 0;

    g_array_set_size(edges, 0);
    for (guint i = first; i < end; i++) {
        const TraceEvent *event = &g_array_index(trace->events, TraceEvent, i);
        const Edge edge[2] = {{event->start_ns, 1, class_of(event)},
                              {event->end_ns, -1, class_of(event)}};
        g_array_append_vals(edges, edge, 2);
    }
    qsort(edges->data, edges->len, sizeof(Edge), compare_edges);
    /* Up to now_ns all time is given to classes; open counts the events that go on there.  An end
     * sorts before a begin of the same time, so an event without length may count -1 for a moment
     * that has no length either. */
    for (guint i = 0; i < edges->len; i++) {
        const Edge *edge = &g_array_index(edges, Edge, i);
        class_ns[class_of_moment(open, i > 0, trace->measured)] += edge->at_ns - now_ns;
        now_ns = edge->at_ns;
        open[edge->class_] += edge->delta;
    }
    class_ns[BREAKDOWN_WAITING] += trace->makespan_ns - now_ns;
}

Breakdown
breakdown_of_trace(const Trace *trace)
{
    g_autoptr(GArray) edges = g_array_new(FALSE, FALSE, sizeof(Edge));
    Breakdown breakdown = {
        .level = BREAKDOWN_LEVEL_OPS,
        .iteration_s = units_s_from_ns(trace->makespan_ns),
    };
    int64_t n_seen = 0;

    for (guint i = 0, end; i < trace->events->len; i = end) {
        const int32_t rank = g_array_index(trace->events, TraceEvent, i).rank;
        int64_t class_ns[BREAKDOWN_N] = {0};
        for (end = i; end < trace->events->len; end++)
            if (g_array_index(trace->events, TraceEvent, end).rank != rank)
                break;
        add_rank(trace, i, end, edges, class_ns);
        for (int class_ = 0; class_ < BREAKDOWN_N; class_++)
            breakdown.class_s[class_] += units_s_from_ns(class_ns[class_]);
        n_seen++;
    }
    /* Ranks without any event wait all the time. */
    breakdown.n_ranks = MAX(n_seen, trace->n_ranks);
    breakdown.class_s[BREAKDOWN_WAITING] +=
        breakdown.iteration_s * (double)(breakdown.n_ranks - n_seen);
    for (int class_ = 0; class_ < BREAKDOWN_N; class_++)
        breakdown.class_s[class_] /= (double)breakdown.n_ranks;
    return breakdown;
}

/* --- of other files --- */

static Breakdown
of_report(const Report *report)
{
    Breakdown breakdown = {
        .level = BREAKDOWN_LEVEL_COMPUTE,
        .iteration_s = units_s_from_ns(report->iteration_ns),
        .n_ranks = report->ranks->len,
    };

    breakdown.class_s[BREAKDOWN_COMPUTE] = report->breakdown.compute_s + report->breakdown.tp_s +
                                           report->breakdown.cp_s + report->breakdown.ep_s +
                                           report->breakdown.recompute_s;
    breakdown.class_s[BREAKDOWN_OPTIMIZER] = report->breakdown.optimizer_s;
    breakdown.class_s[BREAKDOWN_DP] = report->breakdown.dp_s;
    breakdown.class_s[BREAKDOWN_MESSAGES] = report->breakdown.pp_s;
    breakdown.class_s[BREAKDOWN_WAITING] = report->breakdown.bubble_s;
    return breakdown;
}

/* Longer times are refused, so that thousands of them can be added without overflow. */
#define MAX_S 1e15

static void
read_classes(JsonDoc *doc, const JsonValue *object, Breakdown *breakdown)
{
    breakdown->level = BREAKDOWN_LEVEL_OPS;
    breakdown->iteration_s = 0.0;
    for (int class_ = 0; class_ < BREAKDOWN_N; class_++) {
        if (!breakdown_has(BREAKDOWN_LEVEL_OPS, (BreakdownClass)class_))
            continue;
        breakdown->class_s[class_] = json_double(doc, object, breakdown_names[class_], 0, MAX_S);
        breakdown->iteration_s += breakdown->class_s[class_];
    }
    json_object_end(doc, object);
}

/* @varied  (nullable) older runs and those without timings have none. */
static void
read_varied(JsonDoc *doc, const JsonValue *varied, Breakdown *breakdown)
{
    if (varied == NULL)
        return;
    for (size_t i = 0; i < REPORT_SHARES_N; i++)
        breakdown->varied_s[i] = json_double(doc, varied, report_share_names[i], 0, MAX_S);
    json_ignore(doc, varied, "op_sigma_fraction");
    json_ignore(doc, varied, "correlation_s");
    json_ignore(doc, varied, "rank_sigma_fraction");
    json_object_end(doc, varied);
}

/* Older runs do not tell, others do not know. */
static void
read_stolen(JsonDoc *doc, const JsonValue *root, Breakdown *breakdown)
{
    const JsonValue *stolen = json_member(doc, root, "stolen_fraction");

    breakdown->tells_stolen = stolen != NULL && !json_is_null(stolen);
    if (breakdown->tells_stolen)
        breakdown->stolen_fraction = json_value_double(doc, stolen, 0.0, 1.0);
}

static void
read_run(JsonDoc *doc, Breakdown *breakdown)
{
    static const char *const of_no_use[] = {
        "steps",         "predicted_step_s", "prediction_error_fraction",   "tokens_per_s",
        "losses",        "bubble_fraction",  "predicted_bubble_fraction",   "traced_step",
        "verify",        "backend",          "predicted_peak_memory_bytes", "first_step",
        "clock_error_s", "steps_s",
    };
    const JsonValue *root = json_doc_root(doc, "degas-run", 1);
    const JsonValue *step = json_object(doc, root, "step_s");
    const double median_s = json_double(doc, step, "median", 0, MAX_S);
    const JsonValue *ranks = json_array(doc, root, "ranks");
    const JsonValue *classes = json_object_or_null(doc, root, "breakdown_s");
    double busy_s = 0.0;

    read_varied(doc, json_object_or_null(doc, root, "predicted_varied_step_s"), breakdown);
    read_stolen(doc, root, breakdown);
    json_ignore(doc, step, "p10");
    json_ignore(doc, step, "p90");
    json_object_end(doc, step);
    breakdown->n_ranks = (int64_t)json_length(ranks);
    JSON_EACH (v, ranks, doc) {
        if (json_is_object(v))
            busy_s += json_double(doc, v, "busy_s", 0, MAX_S);
        else
            json_fail(doc, v, "expected an object");
    }
    if (breakdown->n_ranks == 0)
        json_fail(doc, ranks, "expected at least one rank");
    for (size_t i = 0; i < G_N_ELEMENTS(of_no_use); i++)
        json_ignore(doc, root, of_no_use[i]);
    json_object_end(doc, root);
    if (json_doc_failed(doc))
        return;
    if (classes != NULL) {
        read_classes(doc, classes, breakdown);
        return;
    }
    breakdown->level = BREAKDOWN_LEVEL_BUSY;
    breakdown->iteration_s = median_s;
    breakdown->class_s[BREAKDOWN_BUSY] = busy_s / (double)breakdown->n_ranks;
    breakdown->class_s[BREAKDOWN_WAITING] = median_s - breakdown->class_s[BREAKDOWN_BUSY];
    if (breakdown->class_s[BREAKDOWN_WAITING] < 0.0)
        json_fail(doc, ranks, "ranks are busy for longer than a step");
}

static bool
read_report(JsonDoc *doc, const JsonValue *object, Breakdown *breakdown, GError **error)
{
    g_autoptr(Report) report = report_read(doc, object);

    if (!json_doc_finish(doc, error))
        return false;
    *breakdown = of_report(report);
    return true;
}

static bool
read_plan(JsonDoc *doc, Breakdown *breakdown, GError **error)
{
    const JsonValue *root = json_doc_root(doc, "degas-plan", 1);
    const JsonValue *predicted = json_object_or_null(doc, root, "predicted");

    if (predicted == NULL)
        json_fail(doc, root, "the plan has no prediction; try: degas simulate PLAN --trace t.json");
    if (!json_doc_finish(doc, error))
        return false;
    return read_report(doc, predicted, breakdown, error);
}

bool
breakdown_load(const char *path, Breakdown *breakdown, GError **error)
{
    static const char *const formats[] = {"degas-trace", "degas-report", "degas-run", "degas-plan",
                                          NULL};
    g_autoptr(JsonDoc) doc = json_doc_load(path, error);
    const char *format = doc == NULL ? NULL : json_doc_format(doc);

    *breakdown = (Breakdown){0};
    if (doc == NULL)
        return false;
    if (g_strcmp0(format, "degas-trace") == 0) {
        g_autoptr(Trace) trace = trace_read(doc, error);
        if (trace == NULL)
            return false;
        *breakdown = breakdown_of_trace(trace);
        breakdown->measured = trace->measured;
        return true;
    }
    if (g_strcmp0(format, "degas-report") == 0)
        return read_report(doc, json_doc_root(doc, "degas-report", 1), breakdown, error);
    if (g_strcmp0(format, "degas-plan") == 0)
        return read_plan(doc, breakdown, error);
    if (g_strcmp0(format, "degas-run") == 0) {
        read_run(doc, breakdown);
        breakdown->measured = true;
        return json_doc_finish(doc, error);
    }
    g_autofree char *shown = text_escape(format == NULL ? "" : format, 40);
    g_autofree char *suggestion = text_suggestion(format == NULL ? "" : format, formats);
    json_fail(
        doc, NULL, "expected a degas-trace, degas-report, degas-run or degas-plan, got %s%s%s%s",
        format == NULL ? "no \"format\"" : "\"", shown, format == NULL ? "" : "\"", suggestion);
    return json_doc_finish(doc, error);
}

/* --- use --- */

/* Moves a class into another one. */
static void
move(Breakdown *breakdown, BreakdownClass from, BreakdownClass to)
{
    breakdown->class_s[to] += breakdown->class_s[from];
    breakdown->class_s[from] = 0.0;
}

/* Adds up classes until @breakdown tells as little as @level; one that tells no more stays. */
static void
coarsen(Breakdown *breakdown, BreakdownLevel level)
{
    if (breakdown->level < BREAKDOWN_LEVEL_COMPUTE && level >= BREAKDOWN_LEVEL_COMPUTE) {
        for (int class_ = BREAKDOWN_FORWARD; class_ <= BREAKDOWN_BACKWARD_WEIGHT; class_++)
            move(breakdown, (BreakdownClass)class_, BREAKDOWN_COMPUTE);
        move(breakdown, BREAKDOWN_DISPATCH, BREAKDOWN_COMPUTE);
        breakdown->level = BREAKDOWN_LEVEL_COMPUTE;
    }
    if (breakdown->level < BREAKDOWN_LEVEL_BUSY && level >= BREAKDOWN_LEVEL_BUSY) {
        move(breakdown, BREAKDOWN_COMPUTE, BREAKDOWN_BUSY);
        move(breakdown, BREAKDOWN_OPTIMIZER, BREAKDOWN_BUSY);
        move(breakdown, BREAKDOWN_DP, BREAKDOWN_WAITING);
        move(breakdown, BREAKDOWN_MESSAGES, BREAKDOWN_WAITING);
        breakdown->level = BREAKDOWN_LEVEL_BUSY;
    }
}

/* Whether some of its backwards are an op each, whether some are two. */
static bool
has_whole(const Breakdown *breakdown)
{
    return breakdown->class_s[BREAKDOWN_BACKWARD] > 0.0;
}

static bool
has_halves(const Breakdown *breakdown)
{
    return breakdown->class_s[BREAKDOWN_BACKWARD_INPUT] > 0.0 ||
           breakdown->class_s[BREAKDOWN_BACKWARD_WEIGHT] > 0.0;
}

void
breakdown_match(Breakdown *breakdowns, size_t n)
{
    BreakdownLevel level = BREAKDOWN_LEVEL_OPS;
    bool is_same = true;

    for (size_t i = 0; i < n; i++) {
        level = MAX(level, breakdowns[i].level);
        is_same &= has_whole(&breakdowns[i]) == has_whole(&breakdowns[0]) &&
                   has_halves(&breakdowns[i]) == has_halves(&breakdowns[0]);
    }
    for (size_t i = 0; i < n; i++) {
        if (!is_same) {
            move(&breakdowns[i], BREAKDOWN_BACKWARD_INPUT, BREAKDOWN_BACKWARD);
            move(&breakdowns[i], BREAKDOWN_BACKWARD_WEIGHT, BREAKDOWN_BACKWARD);
        }
        coarsen(&breakdowns[i], level);
    }
}

void
breakdown_write(JsonWriter *writer, const char *key, const Breakdown *breakdown)
{
    json_write_object_inline(writer, key);
    for (int class_ = 0; class_ < BREAKDOWN_N; class_++)
        if (breakdown_has(breakdown->level, (BreakdownClass)class_))
            json_write_double(writer, breakdown_names[class_], breakdown->class_s[class_]);
    json_write_object_end(writer);
}
