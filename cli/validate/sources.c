#include "cli/validate/sources.h"

#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "base/embedded.h"
#include "base/json_fields.h"
#include "schedule/framework.h"
#include "schedule/schedule.h"

const char *const validation_quantity_names[] = {"time", "memory", "oom", NULL};

/* --- the file --- */

#define SOURCE(member) JSON_FIELD_OF(ValidationSource, member)
#define NOTE(member) JSON_FIELD_OF(ValidationNote, member)
#define WORD(member) JSON_FIELD_OF(ValidationWord, member)
#define SET(member) JSON_FIELD_OF(ValidationSet, member)

#define OPTIONAL JSON_FIELD_OPTIONAL
static const char *const memory_names[] = {"none", "allocated", "reserved", NULL};

static const JsonField source_fields[] = {
    {"name", JSON_FIELD_LENT, SOURCE(name)},
    {"zero_stage", JSON_FIELD_INT, SOURCE(zero_stage), 0, 3, OPTIONAL},
    {"framework", JSON_FIELD_LENT, SOURCE(framework)},
    {"attention", JSON_FIELD_LENT, SOURCE(attention), .flags = OPTIONAL},
    {"overlap", JSON_FIELD_LENT, SOURCE(overlap), .flags = OPTIONAL},
    {"dropout", JSON_FIELD_LENT, SOURCE(dropout), .flags = OPTIONAL},
    {"loss", JSON_FIELD_LENT, SOURCE(loss), .flags = OPTIONAL},
    {"dtype", JSON_FIELD_LENT, SOURCE(dtype), .names = dtype_names},
    {"recompute", JSON_FIELD_LENT, SOURCE(recompute)},
    {"sequence_parallel", JSON_FIELD_BOOL, SOURCE(sequence_parallel), .flags = OPTIONAL},
    {"expert_tp", JSON_FIELD_BOOL, SOURCE(expert_tp), .flags = OPTIONAL},
    {"vocab", JSON_FIELD_INT, SOURCE(vocab), 1, JSON_MAX_INT, OPTIONAL},
    {"vocab_multiple", JSON_FIELD_INT, SOURCE(vocab_multiple), 1, JSON_MAX_INT, OPTIONAL},
    {"vocab_cut", JSON_FIELD_BOOL, SOURCE(vocab_cut), .flags = OPTIONAL},
    {"ends_short", JSON_FIELD_BOOL, SOURCE(ends_short), .flags = OPTIONAL},
    {"memory", JSON_FIELD_INT, SOURCE(memory), .flags = OPTIONAL, .names = memory_names},
    {"memory_of_last_rank", JSON_FIELD_BOOL, SOURCE(memory_of_last_rank), .flags = OPTIONAL},
    {"why", JSON_FIELD_LENT, SOURCE(why)},
    {.key = NULL},
};

static const JsonField note_fields[] = {
    {"key", JSON_FIELD_LENT, NOTE(key)},
    {"prefix", JSON_FIELD_LENT, NOTE(prefix), .flags = OPTIONAL},
    {"option", JSON_FIELD_LENT, NOTE(option)},
    {"value", JSON_FIELD_LENT, NOTE(value)},
    {"why", JSON_FIELD_LENT, .flags = OPTIONAL}, /* for the reader of the file */
    {.key = NULL},
};

static const JsonField schedule_fields[] = {
    {"prefix", JSON_FIELD_LENT, WORD(prefix)},
    {"family", JSON_FIELD_LENT, WORD(family)},
    {"sliced", JSON_FIELD_BOOL, WORD(sliced), .flags = OPTIONAL},
    {.key = NULL},
};

static const JsonField model_fields[] = {
    {"prefix", JSON_FIELD_LENT, WORD(prefix)},
    {"family", JSON_FIELD_LENT, WORD(family)},
    {"builtin", JSON_FIELD_LENT, WORD(builtin), .flags = OPTIONAL},
    {"why", JSON_FIELD_LENT, .flags = OPTIONAL}, /* for the reader of the file */
    {.key = NULL},
};

static const JsonField cluster_fields[] = {
    {"prefix", JSON_FIELD_LENT, WORD(prefix)},
    {"node_bits_per_s", JSON_FIELD_DOUBLE, WORD(node_bits_per_s), 0.0, 1e15, OPTIONAL},
    {"cluster", JSON_FIELD_LENT, WORD(cluster), .flags = OPTIONAL},
    {"why", JSON_FIELD_LENT, .flags = OPTIONAL}, /* for the reader of the file */
    {.key = NULL},
};

static const JsonField dtype_fields[] = {
    {"prefix", JSON_FIELD_LENT, WORD(prefix)},
    {"dtype", JSON_FIELD_LENT, WORD(dtype), .names = dtype_names},
    {.key = NULL},
};

static const JsonField set_fields[] = {
    {"name", JSON_FIELD_LENT, SET(name)},
    {"quantity", JSON_FIELD_INT, SET(quantity), .flags = OPTIONAL,
     .names = validation_quantity_names},
    {"max_tp", JSON_FIELD_INT, SET(max_tp), 1, JSON_MAX_INT, OPTIONAL},
    {"raw_goal", JSON_FIELD_DOUBLE, SET(raw_goal), 0.0, 1e15, OPTIONAL},
    {"calibrated_goal", JSON_FIELD_DOUBLE, SET(calibrated_goal), 0.0, 1e15, OPTIONAL},
    {"others", JSON_FIELD_LENT, SET(others), .flags = OPTIONAL},
    {"lacks", JSON_FIELD_LENT, SET(lacks), .flags = OPTIONAL},
    {.key = NULL},
};

static void
read_texts(JsonDoc *doc, const JsonValue *object, const char *key, const char **texts)
{
    const JsonValue *array = json_array(doc, object, key);
    size_t n = 0;

    for (const JsonValue *v = json_first(array); v != NULL && n < VALIDATION_MAX_SOURCES;
         v = json_next(v))
        texts[n++] = json_value_string(doc, v);
    if (json_length(array) > VALIDATION_MAX_SOURCES)
        json_fail(doc, array, "expected at most %d names", VALIDATION_MAX_SOURCES);
}

/* Returns: (owned) the rows of array @key, then one of zeros.
 * @usual  (nullable) a row with the values of absent keys; NULL: zeros
 * @n      (out, nullable) */
static const void *
read_table(JsonDoc *doc, const JsonValue *root, const char *key, const JsonField *fields,
           size_t row_bytes, const void *usual, size_t *n)
{
    const JsonValue *array = json_array(doc, root, key);
    char *rows = g_malloc0_n(json_length(array) + 1, row_bytes);
    size_t n_rows = 0;

    for (const JsonValue *v = json_first(array); v != NULL && !json_doc_failed(doc);
         v = json_next(v)) {
        char *row = rows + n_rows * row_bytes;

        if (!json_is_object(v)) {
            json_fail(doc, v, "expected an object");
            break;
        }
        if (usual != NULL)
            memcpy(row, usual, row_bytes);
        if (fields == set_fields)
            read_texts(doc, v, "sources", ((ValidationSet *)(void *)row)->sources);
        json_fields_read_object(doc, v, fields, row);
        n_rows++;
    }
    if (n != NULL)
        *n = n_rows;
    return rows;
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
    const ValidationSource usual = {.zero_stage = -1};

    *conventions = (ValidationConventions){.doc = doc};
    if (doc == NULL)
        return false;
    const JsonValue *root = json_doc_root(doc, "degas-sources", 1);
    *conventions = (ValidationConventions){
        .doc = doc,
        .sources =
            read_table(doc, root, "sources", source_fields, sizeof(ValidationSource), &usual, NULL),
        .notes = read_table(doc, root, "notes", note_fields, sizeof(ValidationNote), NULL, NULL),
        .schedules =
            read_table(doc, root, "schedules", schedule_fields, sizeof(ValidationWord), NULL, NULL),
        .models = read_table(doc, root, "models", model_fields, sizeof(ValidationWord), NULL, NULL),
        .clusters =
            read_table(doc, root, "clusters", cluster_fields, sizeof(ValidationWord), NULL, NULL),
        .dtypes = read_table(doc, root, "dtypes", dtype_fields, sizeof(ValidationWord), NULL, NULL),
    };
    conventions->sets = read_table(doc, root, "sets", set_fields, sizeof(ValidationSet), NULL,
                                   &conventions->n_sets);
    json_object_end(doc, root);
    if (!json_doc_failed(doc))
        check_names(doc, root, conventions);
    return json_doc_finish(doc, error);
}

void
validation_conventions_clear(ValidationConventions *conventions)
{
    const void *const tables[] = {
        conventions->sources,  conventions->notes,  conventions->schedules, conventions->models,
        conventions->clusters, conventions->dtypes, conventions->sets,
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

        g_assert(ok); /* tests/cli/test_sources.c reads it */
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

const ValidationWord *
validation_word(const ValidationWord *words, const char *text, bool ignore_case)
{
    for (const ValidationWord *word = words; word->prefix != NULL; word++) {
        const size_t n = strlen(word->prefix);

        if ((ignore_case ? g_ascii_strncasecmp : strncmp)(text, word->prefix, n) == 0)
            return word;
    }
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
           g_strv_contains(set->sources, row->source) &&
           (set->max_tp == 0 || row->tp <= set->max_tp);
}
