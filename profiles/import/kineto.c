/* PyTorch traces: NCCL kernels, and compute kernels joined to the operators that launched them. */
#include "profiles/import/messages.h"
#include "profiles/import/operators.h"

#include <math.h>
#include <string.h>

#include "base/order.h"
#include "base/units.h"

static const char *const skip_names[IMPORT_SKIP_N] = {
    [IMPORT_SKIP_OPERATOR] = "of other operators",
    [IMPORT_SKIP_SHAPE] = "without usable Input Dims",
    [IMPORT_SKIP_UNSAID] = "without Concrete Inputs",
    [IMPORT_SKIP_FORMAT] = "of other number formats",
    [IMPORT_SKIP_STRIDES] = "of tensors with gaps or another order",
    [IMPORT_SKIP_SMALL] = "bound by memory, below 128 MiB",
    [IMPORT_SKIP_ZERO] = "without a time",
    [IMPORT_SKIP_PEAK] = "faster than the device",
    [IMPORT_SKIP_COLLECTIVE] = "beside a collective",
};

/* One call of an operator and the kernels that it launched. */
typedef struct {
    const ImportOperator *op;
    const JsonValue *event;
    double us, start_us, end_us;
    int64_t n_kernels;
    const char *type; /* (static, nullable) of numbers, as the first kernel's name says it */
} Call;

typedef struct {
    double start_us, end_us; /* of collectives, by start; the ends' running maximum */
} Span;

typedef struct {
    Import *import;
    JsonDoc *doc;
    const ModelDevice *device;
    const ImportLaunches *launches;
    GHashTable *calls; /* (owned) External id -> Call (owned) */
    GArray *spans;     /* (owned) of Span */
    int64_t n_kernels[IMPORT_SKIP_N + 1];
} Compute;

/* --- first reading: operators, collectives --- */

static void
note_event(Compute *compute, const JsonValue *event)
{
    JsonDoc *doc = compute->doc;
    const ImportEvent kind = import_event_kind(doc, event);

    if (kind == IMPORT_EVENT_OPERATOR) {
        const ImportOperator *op = import_operator(import_event_text(doc, event, "name"));
        const gint64 id = op == NULL ? -1 : import_event_id(doc, import_event_args(doc, event));
        const Call call = {.op = op, .event = event, .start_us = INFINITY};

        if (id >= 0)
            g_hash_table_insert(compute->calls, g_memdup2(&id, sizeof id),
                                g_memdup2(&call, sizeof call));
    } else if (kind == IMPORT_EVENT_NCCL && json_has(doc, event, "ts")) {
        const double start = import_event_start_us(doc, event);
        const Span span = {start, start + import_event_us(doc, event)};

        g_array_append_val(compute->spans, span);
    }
}

static void
sort_spans(GArray *spans)
{
    g_array_sort(spans, order_doubles); /* by their start, which a Span begins with */
    for (guint i = 1; i < spans->len; i++) {
        Span *span = &g_array_index(spans, Span, i);

        span->end_us = fmax(span->end_us, g_array_index(spans, Span, i - 1).end_us);
    }
}

static bool
is_beside_collective(const GArray *spans, const Call *call)
{
    guint low = 0, high = spans->len; /* the first span that begins at or after the call's end */

    while (low < high) {
        const guint middle = low + (high - low) / 2;

        if (g_array_index(spans, Span, middle).start_us < call->end_us)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 && g_array_index(spans, Span, low - 1).end_us > call->start_us;
}

/* --- second reading: kernels to their calls --- */

static void
add_kernel(Compute *compute, const JsonValue *event)
{
    JsonDoc *doc = compute->doc;
    const gint64 id =
        import_launches_operator(compute->launches, doc, import_event_args(doc, event));
    Call *call = g_hash_table_lookup(compute->calls, &id);

    if (call == NULL) {
        compute->n_kernels[IMPORT_SKIP_OPERATOR]++;
        return;
    }
    if (call->n_kernels == 0)
        call->type = import_kernel_type(import_event_text(doc, event, "name"));
    double us = import_event_us(doc, event);
    double start = import_event_start_us(doc, event);
    call->us += us;
    call->start_us = call->n_kernels == 0 ? start : fmin(call->start_us, start);
    call->end_us = call->n_kernels == 0 ? start + us : fmax(call->end_us, start + us);
    call->n_kernels++;
}

/* --- calls to samples --- */

/* What a call says; why nothing where it is not taken. */
static ImportOutcome
sample_of(Compute *compute, const Call *call, ImportSample *sample)
{
    const ImportOutcome outcome =
        import_call_sample(compute->doc, import_event_args(compute->doc, call->event), call->op,
                           call->type, compute->device, call->us / IMPORT_US_PER_S, sample);

    return outcome == IMPORT_TAKEN && is_beside_collective(compute->spans, call)
               ? IMPORT_SKIP_COLLECTIVE
               : outcome;
}

static int
by_shape(const void *a, const void *b)
{
    const ImportSample *x = a, *y = b;
    const int64_t keys[][2] = {
        {x->kind, y->kind},
        {x->memory_kind, y->memory_kind},
        {x->backward, y->backward},
        {x->dtype, y->dtype},
        {x->count, y->count},
        {x->m, y->m},
        {x->n, y->n},
        {x->k, y->k},
        {x->bytes, y->bytes},
        {x->causal_fraction < 1.0, y->causal_fraction < 1.0},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(keys); i++) {
        ORDER_BY(keys[i][0], keys[i][1]);
    }
    return 0;
}

static int
by_shape_and_time(const void *a, const void *b)
{
    const ImportSample *x = a, *y = b;
    const int shape = by_shape(a, b);

    return shape != 0 ? shape : ORDER(x->seconds, y->seconds);
}

/* One sample for each shape: the median (the lower of two). */
static void
add_medians(Import *import, GArray *taken)
{
    g_array_sort(taken, by_shape_and_time);
    for (guint first = 0, end; first < taken->len; first = end) {
        const ImportSample *sample = &g_array_index(taken, ImportSample, first);

        for (end = first + 1; end < taken->len; end++) {
            if (by_shape(sample, &g_array_index(taken, ImportSample, end)) != 0)
                break;
        }
        g_array_append_val(import->samples,
                           g_array_index(taken, ImportSample, first + (end - first - 1) / 2));
    }
}

static void
write_note(const Compute *compute, GString *note)
{
    g_string_append_printf(note, INT " compute kernels taken", compute->n_kernels[IMPORT_TAKEN]);
    for (int i = 0; i < IMPORT_SKIP_N; i++) {
        if (compute->n_kernels[i] > 0)
            g_string_append_printf(note, ", " INT " skipped: %s", compute->n_kernels[i],
                                   skip_names[i]);
    }
}

static void
take_calls(Compute *compute)
{
    g_autoptr(GArray) taken = g_array_new(FALSE, TRUE, sizeof(ImportSample));
    GHashTableIter iter;
    gpointer value;

    g_hash_table_iter_init(&iter, compute->calls);
    while (!json_doc_failed(compute->doc) && g_hash_table_iter_next(&iter, NULL, &value)) {
        const Call *call = value;
        ImportSample sample;

        if (call->n_kernels == 0)
            continue;
        ImportOutcome outcome = sample_of(compute, call, &sample);
        compute->n_kernels[outcome] += call->n_kernels;
        if (outcome == IMPORT_TAKEN)
            g_array_append_val(taken, sample);
    }
    add_medians(compute->import, taken);
}

/* Compute kernels among @events become samples; @note says what became of each.  Returns whether
 * any was taken. */
static bool
take_compute(Import *import, JsonDoc *doc, const JsonValue *events, const ImportLaunches *launches,
             GString *note)
{
    g_autoptr(GHashTable) calls =
        g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, g_free);
    g_autoptr(GArray) spans = g_array_new(FALSE, TRUE, sizeof(Span));
    Compute compute = {.import = import,
                       .doc = doc,
                       .device = model_cluster_device(import->profile->cluster, 0),
                       .launches = launches,
                       .calls = calls,
                       .spans = spans};

    JSON_EACH (v, events, doc)
        note_event(&compute, v);
    sort_spans(spans);
    JSON_EACH (v, events, doc) {
        if (import_event_kind(doc, v) == IMPORT_EVENT_KERNEL)
            add_kernel(&compute, v);
    }
    take_calls(&compute);
    write_note(&compute, note);
    return compute.n_kernels[IMPORT_TAKEN] > 0;
}

bool
import_events(Import *import, JsonDoc *doc, const JsonValue *root)
{
    const JsonValue *events = json_array(doc, root, "traceEvents");
    g_autoptr(ImportLaunches) launches = import_launches_new(doc, events);
    g_autoptr(GString) note = g_string_new(NULL);

    const bool computes =
        !json_doc_failed(doc) && take_compute(import, doc, events, launches, note);
    const bool communicates =
        !json_doc_failed(doc) && import_messages(import, doc, root, events, launches, note);
    import->note = g_string_free(g_steal_pointer(&note), FALSE);
    return communicates || computes;
}

void
import_kineto(Import *import, JsonDoc *doc, const JsonValue *root)
{
    if (!import_events(import, doc, root))
        json_fail(doc, json_array(doc, root, "traceEvents"),
                  "no NCCL kernel with its message in it, no compute kernel that is "
                  "taken: %s",
                  import->note);
}
