/* Compute kernels in PyTorch's traces: products and large elementwise kernels become samples. */
#include "profiles/import_build.h"

#include <math.h>
#include <string.h>

/* Smaller tensors stay in caches, and a kernel's ramp-up is a share of their time. */
#define MIN_STREAM_BYTES (INT64_C(128) << 20)
#define MAX_DIM (INT64_C(1) << 31)
#define MAX_DIMS 8
#define MAX_TS_US 1e18

typedef enum {
    SKIP_OPERATOR,
    SKIP_SHAPE,
    SKIP_FORMAT,
    SKIP_SMALL,
    SKIP_ZERO,
    SKIP_PEAK,
    SKIP_COLLECTIVE,
    SKIP_N,
    TAKEN = SKIP_N,
} Outcome;

static const char *const skip_names[SKIP_N] = {
    [SKIP_OPERATOR] = "of other operators",
    [SKIP_SHAPE] = "without usable Input Dims",
    [SKIP_FORMAT] = "of other number formats",
    [SKIP_SMALL] = "elementwise below 128 MiB",
    [SKIP_ZERO] = "without a time",
    [SKIP_PEAK] = "faster than the device",
    [SKIP_COLLECTIVE] = "beside a collective",
};

/* The operators that are taken: tensor inputs @first to @first + @n_inputs - 1 are read. */
typedef struct {
    const char *name;
    bool is_product;
    size_t first, n_inputs;
} Operator;

static const Operator operators[] = {
    {"aten::mm", true, 0, 2},
    {"aten::addmm", true, 1, 2},
    {"aten::add", false, 0, 2},
    {"aten::add_", false, 0, 2},
    {"aten::mul", false, 0, 2},
    {"aten::mul_", false, 0, 2},
    {"aten::gelu", false, 0, 1},
    {"aten::silu", false, 0, 1},
    {"aten::relu", false, 0, 1},
    {"aten::gelu_backward", false, 0, 2},
    {"aten::silu_backward", false, 0, 2},
};

/* One call of an operator and the kernels that it launched. */
typedef struct {
    const Operator *op;
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
    int64_t n_kernels[SKIP_N + 1];
} Compute;

/* --- what is in an event --- */

static bool
has_text(JsonDoc *doc, const JsonValue *event, const char *key, const char *text)
{
    return json_has(doc, event, key) && json_is_string(json_member(doc, event, key)) &&
           strcmp(json_string(doc, event, key), text) == 0;
}

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

static const Operator *
operator_of(JsonDoc *doc, const JsonValue *event)
{
    for (size_t i = 0; i < G_N_ELEMENTS(operators); i++) {
        if (has_text(doc, event, "name", operators[i].name))
            return &operators[i];
    }
    return NULL;
}

static bool
is_collective(JsonDoc *doc, const JsonValue *event)
{
    return json_has(doc, event, "name") && json_is_string(json_member(doc, event, "name")) &&
           g_str_has_prefix(json_string(doc, event, "name"), "nccl");
}

/* --- first reading: operators, launches, collectives --- */

static void
note_event(Compute *compute, const JsonValue *event)
{
    JsonDoc *doc = compute->doc;
    const JsonValue *args = args_of(doc, event);

    if (has_text(doc, event, "cat", "cpu_op")) {
        const Operator *op = operator_of(doc, event);
        gint64 *id = op == NULL ? NULL : read_id(doc, args, "External id");

        if (id != NULL) {
            const Call call = {.op = op, .event = event, .start_us = INFINITY};

            g_hash_table_insert(compute->calls, id, g_memdup2(&call, sizeof call));
        }
    } else if (has_text(doc, event, "cat", "cuda_runtime") ||
               has_text(doc, event, "cat", "cuda_driver")) {
        gint64 *correlation = read_id(doc, args, "correlation");
        gint64 *id = read_id(doc, args, "External id");

        if (correlation != NULL && id != NULL)
            g_hash_table_insert(compute->launches, g_steal_pointer(&correlation),
                                g_steal_pointer(&id));
        g_free(correlation);
        g_free(id);
    } else if (has_text(doc, event, "cat", "kernel") && is_collective(doc, event) &&
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
    g_autofree gint64 *id = read_id(doc, args, "External id");
    g_autofree gint64 *correlation = read_id(doc, args, "correlation");
    const gint64 *launch =
        correlation == NULL ? NULL : g_hash_table_lookup(compute->launches, correlation);
    Call *call = id != NULL       ? g_hash_table_lookup(compute->calls, id)
                 : launch != NULL ? g_hash_table_lookup(compute->calls, launch)
                                  : NULL;
    double us, start;

    if (call == NULL) {
        compute->n_kernels[SKIP_OPERATOR]++;
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

typedef struct {
    int64_t dims[MAX_DIMS];
    size_t n_dims;
    double n_elements;
    const char *type;
} Tensor;

static const JsonValue *
element(const JsonValue *array, size_t i)
{
    const JsonValue *v = json_first(array);

    while (v != NULL && i-- > 0)
        v = json_next(v);
    return v;
}

/* false where the trace does not say the shape. */
static bool
read_tensor(JsonDoc *doc, const JsonValue *args, size_t i, Tensor *tensor)
{
    const bool has = json_has(doc, args, "Input Dims") && json_has(doc, args, "Input type");
    const JsonValue *dims = has ? json_member(doc, args, "Input Dims") : NULL;
    const JsonValue *types = has ? json_member(doc, args, "Input type") : NULL;
    const JsonValue *shape, *type;

    if (!has || !json_is_array(dims) || !json_is_array(types))
        return false;
    shape = element(dims, i);
    type = element(types, i);
    if (shape == NULL || type == NULL || !json_is_array(shape) || !json_is_string(type))
        return false;
    *tensor = (Tensor){.n_elements = 1.0, .type = json_value_string(doc, type)};
    for (const JsonValue *v = json_first(shape); v != NULL; v = json_next(v)) {
        if (tensor->n_dims == MAX_DIMS || !json_is_number(v))
            return false;
        tensor->dims[tensor->n_dims] = json_value_int64(doc, v, 0, MAX_DIM);
        tensor->n_elements *= (double)tensor->dims[tensor->n_dims++];
    }
    return !json_doc_failed(doc) && tensor->n_dims > 0 && tensor->n_elements > 0.0;
}

/* fp32 products are none: whether they are computed in TF32 the trace does not say. */
static bool
format_of(const char *type, bool is_product, Dtype *dtype)
{
    const bool is_float = strcmp(type, "float") == 0;

    *dtype = is_float ? DTYPE_FP32 : strcmp(type, "c10::Half") == 0 ? DTYPE_FP16 : DTYPE_BF16;
    return is_float ? !is_product : *dtype == DTYPE_FP16 || strcmp(type, "c10::BFloat16") == 0;
}

static bool
is_same_shape(const Tensor *a, const Tensor *b)
{
    return a->n_dims == b->n_dims && memcmp(a->dims, b->dims, a->n_dims * sizeof *a->dims) == 0;
}

/* What a call says; SKIP_... where nothing.  None is faster than the peak of what it ran on. */
static Outcome
make_sample(Compute *compute, const Call *call, ImportSample *sample)
{
    const Operator *op = call->op;
    const JsonValue *args = args_of(compute->doc, call->event);
    Tensor a, b;
    double bytes, least_s;

    *sample = (ImportSample){.kind = op->is_product ? IMPORT_PRODUCT : IMPORT_STREAM,
                             .count = 1,
                             .seconds = call->us / IMPORT_US_PER_S};
    if (!read_tensor(compute->doc, args, op->first, &a) ||
        !read_tensor(compute->doc, args, op->first + op->n_inputs - 1, &b))
        return SKIP_SHAPE;
    if (strcmp(a.type, b.type) != 0 || !format_of(a.type, op->is_product, &sample->dtype))
        return SKIP_FORMAT;
    if (op->is_product) {
        if (a.n_dims != 2 || b.n_dims != 2 || a.dims[1] != b.dims[0])
            return SKIP_SHAPE;
        sample->m = a.dims[0];
        sample->k = a.dims[1];
        sample->n = b.dims[1];
        bytes = a.n_elements + b.n_elements + (double)sample->m * (double)sample->n;
        least_s = 2.0 * a.n_elements * (double)sample->n /
                  profile_peak_flops_per_s(compute->device, sample->dtype);
    } else {
        if (!is_same_shape(&a, &b))
            return SKIP_SHAPE;
        bytes = (double)(op->n_inputs + 1) * a.n_elements;
        least_s = bytes * (double)dtype_bytes(sample->dtype) / compute->device->memory_bytes_per_s;
    }
    bytes *= (double)dtype_bytes(sample->dtype);
    if (bytes > (double)MODEL_MAX_BYTES)
        return SKIP_SHAPE;
    sample->bytes = (int64_t)bytes;
    if (!op->is_product && sample->bytes < MIN_STREAM_BYTES)
        return SKIP_SMALL;
    if (call->us <= 0.0)
        return SKIP_ZERO;
    if (sample->seconds < least_s)
        return SKIP_PEAK;
    return is_beside_collective(compute->spans, call) ? SKIP_COLLECTIVE : TAKEN;
}

static int
by_shape(const void *a, const void *b)
{
    const ImportSample *x = a, *y = b;
    const int64_t keys[][2] = {{x->kind, y->kind}, {x->dtype, y->dtype}, {x->m, y->m},
                               {x->n, y->n},       {x->k, y->k},         {x->bytes, y->bytes}};

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
                           compute->n_kernels[TAKEN]);
    for (int i = 0; i < SKIP_N; i++) {
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
        Outcome outcome;

        if (call->n_kernels == 0)
            continue;
        outcome = make_sample(compute, call, &sample);
        compute->n_kernels[outcome] += call->n_kernels;
        if (outcome == TAKEN)
            g_array_append_val(taken, sample);
    }
    add_medians(compute->import, taken);
}

bool
import_kineto_compute(Import *import, JsonDoc *doc, const JsonValue *events)
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
        if (has_text(doc, v, "cat", "kernel") && !is_collective(doc, v))
            add_kernel(&compute, v);
    }
    take_calls(&compute);
    write_note(&compute);
    return compute.n_kernels[TAKEN] > 0;
}
