#include "cli/validate/sources.h"

#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "base/embedded.h"
#include "base/json_fields.h"
#include "models/arch.h"
#include "schedule/framework.h"
#include "schedule/schedule.h"

const char *const validation_quantity_names[] = {"time", "memory", "oom", NULL};

/* --- the file --- */

#define SOURCE(member) JSON_FIELD_OF(ValidationSource, member)
#define NOTE(member) JSON_FIELD_OF(ValidationNote, member)
#define WORD(member) JSON_FIELD_OF(ValidationWord, member)
#define REASON(member) JSON_FIELD_OF(ValidationReason, member)
#define SET(member) JSON_FIELD_OF(ValidationSet, member)

static const char *const memory_names[] = {"none", "allocated", "reserved", NULL};

static const JsonField source_fields[] = {
    {"name", SOURCE(name)},
    {"zero_stage", SOURCE(zero_stage), 0, 3, JSON_OPTIONAL, .usual = -1},
    {"framework", SOURCE(framework)},
    {"attention", SOURCE(attention), .flags = JSON_OPTIONAL},
    {"overlap", SOURCE(overlap), .flags = JSON_OPTIONAL},
    {"dropout", SOURCE(dropout), .flags = JSON_OPTIONAL},
    {"loss", SOURCE(loss), .flags = JSON_OPTIONAL},
    {"quantise", SOURCE(quantise), .flags = JSON_OPTIONAL},
    {"grad_dtype", SOURCE(grad_dtype), .flags = JSON_OPTIONAL},
    {"dated", SOURCE(dated), .flags = JSON_OPTIONAL},
    {"stack", SOURCE(stack), .flags = JSON_OPTIONAL},
    {"schedule", SOURCE(schedule), .flags = JSON_OPTIONAL},
    {"tuned", SOURCE(tuned), .flags = JSON_OPTIONAL},
    {"dtype", SOURCE(dtype), .names = dtype_names},
    {"recompute", SOURCE(recompute)},
    {"sequence_parallel", SOURCE(sequence_parallel), .flags = JSON_OPTIONAL},
    {"expert_tp", SOURCE(expert_tp), .flags = JSON_OPTIONAL},
    {"functional", SOURCE(is_functional), .flags = JSON_OPTIONAL},
    {"vocab", SOURCE(vocab), 1, JSON_MAX_INT, JSON_OPTIONAL},
    {"vocab_multiple", SOURCE(vocab_multiple), 1, JSON_MAX_INT, JSON_OPTIONAL},
    {"vocab_cut", SOURCE(vocab_cut), .flags = JSON_OPTIONAL},
    {"ends_short", SOURCE(ends_short), .flags = JSON_OPTIONAL},
    {"wide_reduction", SOURCE(wide_reduction), .flags = JSON_OPTIONAL},
    {"zero", SOURCE(zero), 0, 3, JSON_OPTIONAL},
    {"lora_rank", SOURCE(lora_rank), 1, MODEL_MAX_LORA_RANK, JSON_OPTIONAL},
    {"lora_modules", SOURCE(lora_modules), .flags = JSON_OPTIONAL},
    {"pipeline_batch", SOURCE(pipeline_batch), 1, JSON_MAX_INT, JSON_OPTIONAL},
    {"pipeline_ranks_before", SOURCE(pipeline_ranks_before), .flags = JSON_OPTIONAL},
    {"pipeline_chunks", SOURCE(pipeline_chunks), 1, SCHEDULE_MAX_CHUNKS, JSON_OPTIONAL},
    {"pipeline_zero", SOURCE(pipeline_zero), 1, 2, JSON_OPTIONAL},
    {"memory", SOURCE(memory), .flags = JSON_OPTIONAL, .names = memory_names},
    {"memory_of_last_rank", SOURCE(memory_of_last_rank), .flags = JSON_OPTIONAL},
    {"why", SOURCE(why)},
    {.key = NULL},
};

static const JsonField note_fields[] = {
    {"key", NOTE(key)},
    {"prefix", NOTE(prefix), .flags = JSON_OPTIONAL},
    {"before", NOTE(before), .flags = JSON_OPTIONAL},
    {"option", NOTE(option)},
    {"value", NOTE(value)},
    {"why", .type = JSON_LENT, .flags = JSON_OPTIONAL}, /* for the reader of the file */
    {.key = NULL},
};

static const JsonField schedule_fields[] = {
    {"prefix", WORD(prefix)},
    {"family", WORD(family)},
    {"sliced", WORD(sliced), .flags = JSON_OPTIONAL},
    {.key = NULL},
};

static const JsonField model_fields[] = {
    {"prefix", WORD(prefix)},
    {"family", WORD(family)},
    {"builtin", WORD(builtin), .flags = JSON_OPTIONAL},
    {"qk_norm", WORD(qk_norm), .flags = JSON_OPTIONAL},
    {"qkv_bias", WORD(qkv_bias), .flags = JSON_OPTIONAL},
    {"refused", WORD(refused), .flags = JSON_OPTIONAL},
    {"why", .type = JSON_LENT, .flags = JSON_OPTIONAL}, /* for the reader of the file */
    {.key = NULL},
};

static const JsonField cluster_fields[] = {
    {"prefix", WORD(prefix)},
    {"node_devices", WORD(node_devices), 1, JSON_MAX_INT, JSON_OPTIONAL},
    {"node_bits_per_s", WORD(node_bits_per_s), 0.0, 1e15, JSON_OPTIONAL},
    {"cluster", WORD(cluster), .flags = JSON_OPTIONAL},
    {"why", .type = JSON_LENT, .flags = JSON_OPTIONAL}, /* for the reader of the file */
    {.key = NULL},
};

static const JsonField dtype_fields[] = {
    {"prefix", WORD(prefix)},
    {"dtype", WORD(dtype), .names = dtype_names},
    {.key = NULL},
};

static const JsonField module_fields[] = {
    {"prefix", WORD(prefix)},
    {"module", WORD(module)},
    {"why", .type = JSON_LENT, .flags = JSON_OPTIONAL}, /* for the reader of the file */
    {.key = NULL},
};

static const JsonField reason_fields[] = {
    {"source", REASON(source)},
    {"model", REASON(model)},
    {"gpu", REASON(gpu)},
    {"dtype", REASON(dtype), .flags = JSON_OPTIONAL},
    {"from", REASON(from), .flags = JSON_OPTIONAL},
    {"before", REASON(before), .flags = JSON_OPTIONAL},
    {"fewer_layers", REASON(fewer_layers), 1, JSON_MAX_INT, JSON_OPTIONAL},
    {"why", REASON(why)},
    {.key = NULL},
};

static const JsonField set_fields[] = {
    {"name", SET(name)},
    {"quantity", SET(quantity), .flags = JSON_OPTIONAL, .names = validation_quantity_names},
    {"sources", JSON_FIELD_AS(JSON_LENTS, ValidationSet, sources)},
    {"max_tp", SET(max_tp), 1, JSON_MAX_INT, JSON_OPTIONAL},
    {"raw_goal", SET(raw_goal), 0.0, 1e15, JSON_OPTIONAL},
    {"calibrated_goal", SET(calibrated_goal), 0.0, 1e15, JSON_OPTIONAL},
    {"others", SET(others), .flags = JSON_OPTIONAL},
    {"left", SET(left), .flags = JSON_OPTIONAL},
    {"lacks", SET(lacks), .flags = JSON_OPTIONAL},
    {.key = NULL},
};

/* Returns: (owned) the rows of array @key, then one of zeros.  @n  (out, nullable) */
static const void *
read_table(JsonDoc *doc, const JsonValue *root, const char *key, const JsonField *fields,
           size_t row_bytes, size_t *n)
{
    GArray *rows = g_array_new(TRUE, TRUE, (guint)row_bytes);

    json_fields_read_rows(doc, json_array(doc, root, key), fields, rows);
    if (n != NULL)
        *n = rows->len;
    return g_array_free(rows, FALSE);
}

/* A name that ends in '*' stands for all that begin so. */
static bool
matches(const char *pattern, const char *name)
{
    const size_t n = strlen(pattern);

    return n > 0 && pattern[n - 1] == '*' ? strncmp(pattern, name, n - 1) == 0
                                          : strcmp(pattern, name) == 0;
}

static const ValidationSource *
find_source(const ValidationConventions *conventions, const char *name, int64_t zero_stage)
{
    const ValidationSource *source = conventions->sources;

    while (source->name[0] != 0 && (!matches(source->name, name) ||
                                    (source->zero_stage >= 0 && source->zero_stage != zero_stage)))
        source++;
    return source;
}

/* Checks that what one table names is in the other, or in degas. */
static void
check_names(JsonDoc *doc, const JsonValue *root, const ValidationConventions *conventions)
{
    const ValidationSource *last = conventions->sources;

    while (last->name != NULL && last->name[0] != 0) {
        if (!g_strv_contains(plan_framework_names(), last->framework))
            json_fail(doc, root, "sources: %s: unknown framework \"%s\"", last->name,
                      last->framework);
        last++;
    }
    if (last->name == NULL)
        json_fail(doc, root, "sources: the last is to be named \"\": it is everybody else's");
    for (const ValidationWord *word = conventions->schedules; word->prefix != NULL; word++)
        if (schedule_family_find(word->family, NULL) == NULL)
            json_fail(doc, root, "schedules: unknown family \"%s\"", word->family);
    for (const ValidationReason *reason = conventions->reasons;
         reason->source != NULL && last->name != NULL; reason++)
        if (find_source(conventions, reason->source, -1)->name[0] == 0)
            json_fail(doc, root, "reasons: no source is named \"%s\"", reason->source);
    for (const ValidationSet *set = conventions->sets; set->name != NULL && last->name != NULL;
         set++)
        for (const char *const *name = set->sources; *name != NULL; name++)
            if (find_source(conventions, *name, -1)->name[0] == 0)
                json_fail(doc, root, "sets: %s: no source is named \"%s\"", set->name, *name);
}

bool
validation_conventions_read(const char *name, const char *text, size_t n_bytes,
                            ValidationConventions *conventions, GError **error)
{
    JsonDoc *doc = json_doc_parse(name, text, n_bytes, error);

    *conventions = (ValidationConventions){.doc = doc};
    if (doc == NULL)
        return false;
    const JsonValue *root = json_doc_root(doc, "degas-sources", 1);
    *conventions = (ValidationConventions){
        .doc = doc,
        .sources = read_table(doc, root, "sources", source_fields, sizeof(ValidationSource), NULL),
        .notes = read_table(doc, root, "notes", note_fields, sizeof(ValidationNote), NULL),
        .schedules =
            read_table(doc, root, "schedules", schedule_fields, sizeof(ValidationWord), NULL),
        .models = read_table(doc, root, "models", model_fields, sizeof(ValidationWord), NULL),
        .clusters = read_table(doc, root, "clusters", cluster_fields, sizeof(ValidationWord), NULL),
        .dtypes = read_table(doc, root, "dtypes", dtype_fields, sizeof(ValidationWord), NULL),
        .modules = read_table(doc, root, "modules", module_fields, sizeof(ValidationWord), NULL),
        .reasons = read_table(doc, root, "reasons", reason_fields, sizeof(ValidationReason), NULL),
    };
    conventions->sets =
        read_table(doc, root, "sets", set_fields, sizeof(ValidationSet), &conventions->n_sets);
    json_object_end(doc, root);
    if (!json_doc_failed(doc))
        check_names(doc, root, conventions);
    return json_doc_finish(doc, error);
}

void
validation_conventions_clear(ValidationConventions *conventions)
{
    const void *const tables[] = {
        conventions->sources, conventions->notes,    conventions->schedules,
        conventions->models,  conventions->clusters, conventions->dtypes,
        conventions->modules, conventions->reasons,  conventions->sets,
    };

    for (size_t i = 0; i < G_N_ELEMENTS(tables); i++)
        g_free((void *)tables[i]);
    json_doc_free(conventions->doc);
}

const ValidationConventions *
validation_conventions(void)
{
    static ValidationConventions conventions;
    static gsize is_read;

    if (g_once_init_enter(&is_read)) {
        static const char path[] = "cli/validate/sources.json";
        const EmbeddedFile *file = embedded_find(path);
        const bool ok = file != NULL &&
                        validation_conventions_read(
                            path, file->text, (size_t)(file->end - file->text), &conventions, NULL);

        if (!ok) /* tests/cli/test_sources.c reads it */
            g_error("failed to allocate what %s says", path);
        g_once_init_leave(&is_read, 1);
    }
    return &conventions;
}

/* --- what it says of a run --- */

const ValidationSource *
validation_source(const MeasuredRow *row)
{
    return find_source(validation_conventions(), row->source, row->zero_stage);
}

/* The first character of a name from @text on that is no blank, "-" or "_". */
static const char *
skip_separators(const char *text)
{
    return text + strspn(text, " -_");
}

/* Whether @text begins with @prefix, where case and what separates words do not matter. */
static bool
begins_loosely(const char *text, const char *prefix)
{
    for (;;) {
        text = skip_separators(text);
        prefix = skip_separators(prefix);
        if (*prefix == 0)
            return true;
        if (g_ascii_tolower(*text++) != g_ascii_tolower(*prefix++))
            return false;
    }
}

const ValidationWord *
validation_word(const ValidationWord *words, const char *text, bool is_name)
{
    for (const ValidationWord *word = words; word->prefix != NULL; word++)
        if (is_name ? begins_loosely(text, word->prefix) : g_str_has_prefix(text, word->prefix))
            return word;
    return NULL;
}

const ValidationWord *
validation_cluster(const MeasuredRow *row)
{
    const ValidationWord *word =
        validation_word(validation_conventions()->clusters, row->gpu, false);

    while (word != NULL && word->node_bits_per_s > 0.0 &&
           word->node_bits_per_s != row->node_bits_per_s)
        word = validation_word(word + 1, row->gpu, false);
    return word;
}

const char *
validation_reason(const MeasuredRow *row)
{
    for (const ValidationReason *r = validation_conventions()->reasons; r->source != NULL; r++)
        if (matches(r->source, row->source) && begins_loosely(row->model, r->model) &&
            g_str_has_prefix(row->gpu, r->gpu) &&
            (r->dtype == NULL || g_str_has_prefix(row->dtype, r->dtype)) &&
            (r->fewer_layers == 0 || row->n_layers < r->fewer_layers) &&
            (r->from == NULL || strcmp(row->stack_date, r->from) >= 0) &&
            (r->before == NULL || strcmp(row->stack_date, r->before) < 0))
            return r->why;
    return NULL;
}

bool
validation_has_quantity(const MeasuredRow *row, ValidationQuantity quantity)
{
    switch (quantity) {
    case VALIDATION_TIME:
        return row->status == MEASURED_STATUS_OK && isfinite(row->iteration_s);
    case VALIDATION_MEMORY:
        return row->status == MEASURED_STATUS_OK && isfinite(row->memory_bytes);
    case VALIDATION_OOM:
        return row->status != MEASURED_STATUS_OTHER;
    }
    g_return_val_if_reached(false);
}

bool
validation_set_has(const ValidationSet *set, const MeasuredRow *row)
{
    return validation_has_quantity(row, (ValidationQuantity)set->quantity) &&
           (set->quantity != VALIDATION_MEMORY ||
            validation_source(row)->memory != VALIDATION_MEMORY_NONE) &&
           (set->sources[0] == NULL || g_strv_contains(set->sources, row->source)) &&
           (set->max_tp == 0 || row->tp <= set->max_tp);
}
