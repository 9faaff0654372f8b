/* PyTorch traces: NCCL kernels, and compute kernels joined to the operators that launched them. */
#include "profiles/import/operators.h"

#include <math.h>
#include <string.h>

#define MAX_TS_US 1e18

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
} Call;

typedef struct {
    double start_us, end_us; /* of collectives, by start; the ends' running maximum */
} Span;

typedef struct {
    Import *import;
    JsonDoc *doc;
    const ModelDevice *device;
    GHashTable *calls;    /* (owned) External id -> Call (owned) */
    GHashTable *launches; /* (owned) correlation of a launch -> its External id */
    GArray *spans;        /* (owned) of Span */
    int64_t n_kernels[IMPORT_SKIP_N + 1];
} Compute;

/* --- what is in an event --- */

static const JsonValue *
args_of(JsonDoc *doc, const JsonValue *event)
{
    return json_has(doc, event, "args") ? json_object_or_null(doc, event, "args") : NULL;
}

/* Owned by the caller; NULL where the event has none. */
static gint64 *
read_id(JsonDoc *doc, const JsonValue *args, const char *key)
{
    gint64 id;

    if (args == NULL || !json_has(doc, args, key))
        return NULL;
    id = json_int64(doc, args, key, 0, JSON_MAX_INT);
    return g_memdup2(&id, sizeof id);
}

/* Of what a kernel or a launch belongs to; with PyTorch before 2.0 the key is in lower case. */
static gint64 *
read_external_id(JsonDoc *doc, const JsonValue *args)
{
    gint64 *id = read_id(doc, args, "External id");

    return id != NULL ? id : read_id(doc, args, "external id");
}

/* The text of @key; "" where it is none. */
static const char *
text_of(JsonDoc *doc, const JsonValue *event, const char *key)
{
    return json_has(doc, event, key) && json_is_string(json_member(doc, event, key))
               ? json_string(doc, event, key)
               : "";
}

static bool
is_collective(JsonDoc *doc, const JsonValue *event)
{
    return g_str_has_prefix(text_of(doc, event, "name"), "nccl");
}

/* --- first reading: operators, launches, collectives --- */

static void
note_event(Compute *compute, const JsonValue *event)
{
    JsonDoc *doc = compute->doc;
    const JsonValue *args = args_of(doc, event);
    const char *category = text_of(doc, event, "cat");

    if (strcmp(category, "cpu_op") == 0) {
        const ImportOperator *op = import_operator(text_of(doc, event, "name"));
        gint64 *id = op == NULL ? NULL : read_id(doc, args, "External id");

        if (id != NULL) {
            const Call call = {.op = op, .event = event, .start_us = INFINITY};

            g_hash_table_insert(compute->calls, id, g_memdup2(&call, sizeof call));
        }
    } else if (strcmp(category, "cuda_runtime") == 0 || strcmp(category, "cuda_driver") == 0) {
        gint64 *correlation = read_id(doc, args, "correlation");
        gint64 *id = read_external_id(doc, args);

        if (correlation != NULL && id != NULL)
            g_hash_table_insert(compute->launches, g_steal_pointer(&correlation),
                                g_steal_pointer(&id));
        g_free(correlation);
        g_free(id);
    } else if (strcmp(category, "kernel") == 0 && is_collective(doc, event) &&
               json_has(doc, event, "ts")) {
        const double start = json_double(doc, event, "ts", -MAX_TS_US, MAX_TS_US);
        const Span span = {start, start + json_double(doc, event, "dur", 0.0, IMPORT_MAX_US)};

        g_array_append_val(compute->spans, span);
    }
}

static int
by_start(const void *a, const void *b)
{
    const Span *x = a, *y = b;

    return (x->start_us > y->start_us) - (x->start_us < y->start_us);
}

static void
sort_spans(GArray *spans)
{
    g_array_sort(spans, by_start);
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
    const JsonValue *args = args_of(doc, event);
    g_autofree gint64 *id = read_external_id(doc, args);
    g_autofree gint64 *correlation = read_id(doc, args, "correlation");
    const gint64 *launch =
        correlation == NULL ? NULL : g_hash_table_lookup(compute->launches, correlation);
    Call *call = id != NULL       ? g_hash_table_lookup(compute->calls, id)
                 : launch != NULL ? g_hash_table_lookup(compute->calls, launch)
                                  : NULL;
    double us, start;

    if (call == NULL) {
        compute->n_kernels[IMPORT_SKIP_OPERATOR]++;
        return;
    }
    us = json_double(doc, event, "dur", 0.0, IMPORT_MAX_US);
    start = json_double(doc, event, "ts", -MAX_TS_US, MAX_TS_US);
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
        import_call_sample(compute->doc, args_of(compute->doc, call->event), call->op,
                           compute->device, call->us / IMPORT_US_PER_S, sample);

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
        if (keys[i][0] != keys[i][1])
            return keys[i][0] < keys[i][1] ? -1 : 1;
    }
    return 0;
}

static int
by_shape_and_time(const void *a, const void *b)
{
    const ImportSample *x = a, *y = b;
    const int shape = by_shape(a, b);

    return shape != 0 ? shape : (x->seconds > y->seconds) - (x->seconds < y->seconds);
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
write_note(Compute *compute)
{
    g_autoptr(GString) text = g_string_new(NULL);

    g_string_append_printf(text, "%" G_GINT64_FORMAT " compute kernels taken",
                           compute->n_kernels[IMPORT_TAKEN]);
    for (int i = 0; i < IMPORT_SKIP_N; i++) {
        if (compute->n_kernels[i] > 0)
            g_string_append_printf(text, ", %" G_GINT64_FORMAT " skipped: %s",
                                   compute->n_kernels[i], skip_names[i]);
    }
    compute->import->note = g_string_free(g_steal_pointer(&text), FALSE);
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
        ImportOutcome outcome;

        if (call->n_kernels == 0)
            continue;
        outcome = sample_of(compute, call, &sample);
        compute->n_kernels[outcome] += call->n_kernels;
        if (outcome == IMPORT_TAKEN)
            g_array_append_val(taken, sample);
    }
    add_medians(compute->import, taken);
}

/* Compute kernels among @events become samples; the note says what became of each.  Returns whether
 * any was taken. */
static bool
take_compute(Import *import, JsonDoc *doc, const JsonValue *events)
{
    g_autoptr(GHashTable) calls =
        g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, g_free);
    g_autoptr(GHashTable) launches =
        g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, g_free);
    g_autoptr(GArray) spans = g_array_new(FALSE, TRUE, sizeof(Span));
    Compute compute = {.import = import,
                       .doc = doc,
                       .device = model_cluster_device(import->profile->cluster, 0),
                       .calls = calls,
                       .launches = launches,
                       .spans = spans};

    for (const JsonValue *v = json_first(events); v != NULL && !json_doc_failed(doc);
         v = json_next(v))
        note_event(&compute, v);
    sort_spans(spans);
    for (const JsonValue *v = json_first(events); v != NULL && !json_doc_failed(doc);
         v = json_next(v)) {
        if (strcmp(text_of(doc, v, "cat"), "kernel") == 0 && !is_collective(doc, v))
            add_kernel(&compute, v);
    }
    take_calls(&compute);
    write_note(&compute);
    return compute.n_kernels[IMPORT_TAKEN] > 0;
}

/* --- NCCL kernels --- */

/* NCCL's names of number formats in the trace -> bytes. */
static int64_t
element_bytes(const char *dtype)
{
    static const struct {
        const char *name;
        int64_t bytes;
    } kinds[] = {
        {"Float", 4}, {"Half", 2}, {"BFloat16", 2}, {"Double", 8},        {"Int", 4},
        {"Long", 8},  {"Byte", 1}, {"Char", 1},     {"Float8_e4m3fn", 1},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(kinds); i++) {
        if (strcmp(kinds[i].name, dtype) == 0)
            return kinds[i].bytes;
    }
    return 0;
}

/* One kind of collective of one size. */
typedef struct {
    const char *op;
    int64_t n_ranks, bytes;
    double us; /* the shortest: a kernel spans the wait for its peers */
} Kernel;

/* Whole buffers in nccl-tests' convention: what leaves of all_gather, what arrives of a
 * reduce_scatter is a rank's share. */
static bool
read_kernel(JsonDoc *doc, const JsonValue *event, Kernel *kernel)
{
    static const struct {
        const char *collective, *op;
        bool is_share;
    } kinds[] = {
        {"allreduce", "all_reduce", false},
        {"all_reduce", "all_reduce", false},
        {"_allgather_base", "all_gather", true},
        {"all_gather", "all_gather", true},
        {"_reduce_scatter_base", "reduce_scatter", false},
        {"reduce_scatter", "reduce_scatter", false},
        {"all_to_all", "alltoall", false},
        {"all_to_allv", "alltoall", false},
        {"send", "sendrecv", false},
        {"recv", "sendrecv", false},
    };
    const JsonValue *args = json_object(doc, event, "args");
    const char *collective = json_string(doc, args, "Collective name");
    const int64_t n = json_int64(doc, args, "In msg nelems", 0, JSON_MAX_INT / 8);
    const int64_t bytes = element_bytes(json_string(doc, args, "dtype"));
    const int64_t group = json_int64(doc, args, "Group size", 1, MODEL_CLUSTER_MAX_DEVICES);

    *kernel = (Kernel){.n_ranks = group, .us = json_double(doc, event, "dur", 0.0, IMPORT_MAX_US)};
    for (size_t i = 0; i < G_N_ELEMENTS(kinds); i++) {
        if (strcmp(kinds[i].collective, collective) != 0)
            continue;
        kernel->op = kinds[i].op;
        if (__builtin_mul_overflow(n * bytes, kinds[i].is_share ? group : 1, &kernel->bytes))
            json_fail(doc, args, "a message beyond all memory");
    }
    return !json_doc_failed(doc) && kernel->op != NULL && kernel->bytes > 0 && kernel->us > 0.0 &&
           group >= 2;
}

static bool
is_nccl_kernel(JsonDoc *doc, const JsonValue *event)
{
    return json_is_object(event) && json_has(doc, event, "args") &&
           strcmp(text_of(doc, event, "cat"), "kernel") == 0 &&
           g_str_has_prefix(json_string(doc, event, "name"), "nccl") &&
           json_has(doc, json_object(doc, event, "args"), "Collective name");
}

void
import_kineto(Import *import, JsonDoc *doc, const JsonValue *root)
{
    const JsonValue *events = json_array(doc, root, "traceEvents");
    g_autoptr(GArray) kernels = g_array_new(FALSE, TRUE, sizeof(Kernel));
    bool computes;

    for (const JsonValue *v = json_first(events); v != NULL && !json_doc_failed(doc);
         v = json_next(v)) {
        Kernel kernel;
        guint i = 0;

        if (!is_nccl_kernel(doc, v) || !read_kernel(doc, v, &kernel))
            continue;
        for (; i < kernels->len; i++) {
            Kernel *known = &g_array_index(kernels, Kernel, i);

            if (strcmp(known->op, kernel.op) == 0 && known->n_ranks == kernel.n_ranks &&
                known->bytes == kernel.bytes) {
                known->us = fmin(known->us, kernel.us);
                break;
            }
        }
        if (i == kernels->len)
            g_array_append_val(kernels, kernel);
    }
    computes = !json_doc_failed(doc) && take_compute(import, doc, events);
    if (!json_doc_failed(doc) && kernels->len == 0 && !computes)
        json_fail(doc, events,
                  "no NCCL kernel with its message in it, no compute kernel that is "
                  "taken: %s",
                  import->note);
    for (guint i = 0; i < kernels->len && !json_doc_failed(doc); i++) {
        const Kernel *kernel = &g_array_index(kernels, Kernel, i);
        const double seconds = kernel->us / IMPORT_US_PER_S;

        import_collective(import, kernel->op, kernel->n_ranks, kernel->bytes, seconds, seconds);
    }
}
