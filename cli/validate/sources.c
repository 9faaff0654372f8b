#include "cli/validate/sources.h"

#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "base/embedded.h"
#include "base/json.h"
#include "schedule/framework.h"
#include "schedule/schedule.h"

const char *const validation_quantity_names[] = {"time", "memory", "oom", NULL};

/* --- the file --- */

typedef enum {
    FIELD_TEXT,
    FIELD_TEXT_OR_NULL,
    FIELD_TEXTS, /* an array of at most VALIDATION_MAX_SOURCES */
    FIELD_CHOICE,
    FIELD_COUNT, /* absent: 0 */
    FIELD_STAGE, /* absent: -1 */
    FIELD_NUMBER,
    FIELD_SWITCH,
    FIELD_REMARK, /* text for the reader of the file */
} FieldKind;

/* A key of a row and the member that it is read into. */
typedef struct {
    const char *key; /* NULL ends a table */
    FieldKind kind;
    size_t offset;
    const char *const *names; /* of FIELD_CHOICE; of FIELD_TEXT (nullable): the texts that may be */
} Field;

#define SOURCE(member) offsetof(ValidationSource, member)
#define NOTE(member) offsetof(ValidationNote, member)
#define WORD(member) offsetof(ValidationWord, member)
#define SET(member) offsetof(ValidationSet, member)

static const char *const memory_names[] = {"none", "allocated", "reserved", NULL};

static const Field source_fields[] = {
    {"name", FIELD_TEXT, SOURCE(name), NULL},
    {"zero_stage", FIELD_STAGE, SOURCE(zero_stage), NULL},
    {"framework", FIELD_TEXT, SOURCE(framework), NULL},
    {"attention", FIELD_TEXT_OR_NULL, SOURCE(attention), NULL},
    {"overlap", FIELD_TEXT_OR_NULL, SOURCE(overlap), NULL},
    {"dropout", FIELD_TEXT_OR_NULL, SOURCE(dropout), NULL},
    {"loss", FIELD_TEXT_OR_NULL, SOURCE(loss), NULL},
    {"dtype", FIELD_TEXT, SOURCE(dtype), dtype_names},
    {"recompute", FIELD_TEXT, SOURCE(recompute), NULL},
    {"sequence_parallel", FIELD_SWITCH, SOURCE(sequence_parallel), NULL},
    {"expert_tp", FIELD_SWITCH, SOURCE(expert_tp), NULL},
    {"vocab", FIELD_COUNT, SOURCE(vocab), NULL},
    {"vocab_multiple", FIELD_COUNT, SOURCE(vocab_multiple), NULL},
    {"vocab_cut", FIELD_SWITCH, SOURCE(vocab_cut), NULL},
    {"ends_short", FIELD_SWITCH, SOURCE(ends_short), NULL},
    {"memory", FIELD_CHOICE, SOURCE(memory), memory_names},
    {"memory_of_last_rank", FIELD_SWITCH, SOURCE(memory_of_last_rank), NULL},
    {"why", FIELD_TEXT, SOURCE(why), NULL},
    {NULL, FIELD_TEXT, 0, NULL},
};

static const Field note_fields[] = {
    {"key", FIELD_TEXT, NOTE(key), NULL},
    {"prefix", FIELD_TEXT_OR_NULL, NOTE(prefix), NULL},
    {"option", FIELD_TEXT, NOTE(option), NULL},
    {"value", FIELD_TEXT, NOTE(value), NULL},
    {"why", FIELD_REMARK, 0, NULL},
    {NULL, FIELD_TEXT, 0, NULL},
};

static const Field schedule_fields[] = {
    {"prefix", FIELD_TEXT, WORD(prefix), NULL},
    {"family", FIELD_TEXT, WORD(family), NULL},
    {"sliced", FIELD_SWITCH, WORD(sliced), NULL},
    {NULL, FIELD_TEXT, 0, NULL},
};

static const Field model_fields[] = {
    {"prefix", FIELD_TEXT, WORD(prefix), NULL},
    {"family", FIELD_TEXT, WORD(family), NULL},
    {"builtin", FIELD_TEXT_OR_NULL, WORD(builtin), NULL},
    {"why", FIELD_REMARK, 0, NULL},
    {NULL, FIELD_TEXT, 0, NULL},
};

static const Field cluster_fields[] = {
    {"prefix", FIELD_TEXT, WORD(prefix), NULL},
    {"node_bits_per_s", FIELD_NUMBER, WORD(node_bits_per_s), NULL},
    {"cluster", FIELD_TEXT_OR_NULL, WORD(cluster), NULL},
    {"why", FIELD_REMARK, 0, NULL},
    {NULL, FIELD_TEXT, 0, NULL},
};

static const Field dtype_fields[] = {
    {"prefix", FIELD_TEXT, WORD(prefix), NULL},
    {"dtype", FIELD_TEXT, WORD(dtype), dtype_names},
    {NULL, FIELD_TEXT, 0, NULL},
};

static const Field set_fields[] = {
    {"name", FIELD_TEXT, SET(name), NULL},
    {"quantity", FIELD_CHOICE, SET(quantity), validation_quantity_names},
    {"sources", FIELD_TEXTS, SET(sources), NULL},
    {"max_tp", FIELD_COUNT, SET(max_tp), NULL},
    {"raw_goal", FIELD_NUMBER, SET(raw_goal), NULL},
    {"calibrated_goal", FIELD_NUMBER, SET(calibrated_goal), NULL},
    {"others", FIELD_TEXT_OR_NULL, SET(others), NULL},
    {"lacks", FIELD_TEXT_OR_NULL, SET(lacks), NULL},
    {NULL, FIELD_TEXT, 0, NULL},
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

static void
read_field(JsonDoc *doc, const JsonValue *object, const Field *field, void *row)
{
    void *member = (char *)row + field->offset;

    switch (field->kind) {
    case FIELD_TEXT:
        *(const char **)member = json_string(doc, object, field->key);
        if (field->names != NULL)
            (void)json_enum(doc, object, field->key, field->names);
        return;
    case FIELD_TEXT_OR_NULL:
        *(const char **)member = json_string_or(doc, object, field->key, NULL);
        return;
    case FIELD_TEXTS:
        read_texts(doc, object, field->key, member);
        return;
    case FIELD_CHOICE:
        *(int *)member = json_enum_or(doc, object, field->key, field->names, 0);
        return;
    case FIELD_COUNT:
        *(int64_t *)member = json_int64_or(doc, object, field->key, 1, JSON_MAX_INT, 0);
        return;
    case FIELD_STAGE:
        *(int64_t *)member = json_int64_or(doc, object, field->key, 0, 3, -1);
        return;
    case FIELD_NUMBER:
        *(double *)member = json_double_or(doc, object, field->key, 0.0, 1e15, 0.0);
        return;
    case FIELD_SWITCH:
        *(bool *)member = json_bool_or(doc, object, field->key, false);
        return;
    case FIELD_REMARK:
        (void)json_string_or(doc, object, field->key, NULL);
        return;
    }
}

/* Returns: (owned) the rows of array @key, then one of zeros.  @n  (out, nullable) */
static const void *
read_table(JsonDoc *doc, const JsonValue *root, const char *key, const Field *fields,
           size_t row_bytes, size_t *n)
{
    const JsonValue *array = json_array(doc, root, key);
    char *rows = g_malloc0_n(json_length(array) + 1, row_bytes);
    size_t n_rows = 0;

    for (const JsonValue *v = json_first(array); v != NULL && !json_doc_failed(doc);
         v = json_next(v)) {
        if (!json_is_object(v)) {
            json_fail(doc, v, "expected an object");
            break;
        }
        for (const Field *field = fields; field->key != NULL; field++)
            read_field(doc, v, field, rows + n_rows * row_bytes);
        json_object_end(doc, v);
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
    const JsonValue *root;

    *conventions = (ValidationConventions){.doc = doc};
    if (doc == NULL)
        return false;
    root = json_doc_root(doc, "degas-sources", 1);
    *conventions = (ValidationConventions){
        .doc = doc,
        .sources = read_table(doc, root, "sources", source_fields, sizeof(ValidationSource), NULL),
        .notes = read_table(doc, root, "notes", note_fields, sizeof(ValidationNote), NULL),
        .schedules =
            read_table(doc, root, "schedules", schedule_fields, sizeof(ValidationWord), NULL),
        .models = read_table(doc, root, "models", model_fields, sizeof(ValidationWord), NULL),
        .clusters = read_table(doc, root, "clusters", cluster_fields, sizeof(ValidationWord), NULL),
        .dtypes = read_table(doc, root, "dtypes", dtype_fields, sizeof(ValidationWord), NULL),
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
