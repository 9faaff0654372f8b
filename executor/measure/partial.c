#include "executor/measure/partial.h"

#include "base/file.h"

#define FORMAT "degas-profile-partial"
#define MAX_REPETITIONS 1000000
#define MAX_SPENT_S 1e9

static void
append_list(GString *text, const char *name, const int64_t *values, size_t n)
{
    g_string_append_printf(text, ", %s ", name);
    for (size_t i = 0; i < n; i++)
        g_string_append_printf(text, "%s%" G_GINT64_FORMAT, i > 0 ? "," : "", values[i]);
}

char *
exec_partial_of(const ExecMeasureOptions *o, const char *device)
{
    g_autoptr(GString) text = g_string_new(NULL);
    g_autoptr(JsonWriter) writer = json_writer_new_compact();
    size_t n_bytes;

    model_arch_write(writer, NULL, o->arch);
    g_autofree char *model = json_writer_steal(writer, &n_bytes);
    g_autofree char *sum = g_compute_checksum_for_string(G_CHECKSUM_SHA256, model, -1);

    g_string_append_printf(text,
                           "%s (%.8s) on %s: %s, sequences of %" G_GINT64_FORMAT
                           ", %" G_GINT64_FORMAT " ranks at once",
                           o->arch->name, sum, device, dtype_names[o->dtype], o->seq_len,
                           o->concurrency);
    append_list(text, "batches", o->batches, o->n_batches);
    append_list(text, "slices", o->slices, o->n_slices);
    append_list(text, "tp", o->tps, o->n_tps);
    return g_string_free(g_steal_pointer(&text), FALSE);
}

bool
exec_partial_write(const ExecPartial *partial, const char *path, GError **error)
{
    g_autoptr(JsonWriter) writer = json_writer_new();
    size_t n_bytes;

    json_write_object(writer, NULL);
    json_write_string(writer, "format", FORMAT);
    json_write_int64(writer, "version", 1);
    json_write_string(writer, "of", partial->of);
    if (partial->between != NULL)
        json_write_string(writer, "between", partial->between);
    json_write_array_inline(writer, "rounds");
    for (guint i = 0; i < partial->rounds->len; i++) {
        const ExecMeasureRound *round = &g_array_index(partial->rounds, ExecMeasureRound, i);
        json_write_object(writer, NULL);
        json_write_double(writer, "spent_s", round->spent_s);
        json_write_int64(writer, "repetitions", round->n_repetitions);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
    exec_variation_keep(partial->variation, writer, "variation");
    exec_samples_keep(partial->samples, writer, "samples");
    json_write_object_end(writer);
    g_autofree char *text = json_writer_steal(writer, &n_bytes);
    return file_write(path, text, n_bytes, error);
}

static void
read_rounds(JsonDoc *doc, const JsonValue *array, GArray *rounds)
{
    if (json_length(array) != rounds->len) {
        json_fail(doc, array, "expected %u rounds", rounds->len);
        return;
    }
    guint i = 0;
    for (const JsonValue *v = json_first(array); v != NULL; v = json_next(v)) {
        g_array_index(rounds, ExecMeasureRound, i++) = (ExecMeasureRound){
            .spent_s = json_double(doc, v, "spent_s", 0.0, MAX_SPENT_S),
            .n_repetitions = (int32_t)json_int64(doc, v, "repetitions", 0, MAX_REPETITIONS),
        };
        json_object_end(doc, v);
    }
}

bool
exec_partial_read(ExecPartial *partial, const char *path, GError **error)
{
    g_autoptr(JsonDoc) doc = json_doc_load(path, error);

    if (doc == NULL)
        return false;
    const JsonValue *root = json_doc_root(doc, FORMAT, 1);
    json_ignore(doc, root, "format");
    json_ignore(doc, root, "version");
    g_autofree char *of = g_strdup(json_string(doc, root, "of"));
    partial->between = g_strdup(json_string_or(doc, root, "between", NULL));
    const JsonValue *rounds = json_array(doc, root, "rounds");
    const JsonValue *samples = json_array(doc, root, "samples");
    const JsonValue *variation = json_object(doc, root, "variation");
    json_object_end(doc, root);
    if (!json_doc_failed(doc) && !g_str_equal(of, partial->of)) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_DATA,
                    "%s: $.of: this was \"%s\", not \"%s\"; go on with the same options, or begin "
                    "without --resume",
                    path, of, partial->of);
        return false;
    }
    read_rounds(doc, rounds, partial->rounds);
    exec_samples_read(partial->samples, doc, samples);
    exec_variation_read(partial->variation, doc, variation);
    return json_doc_finish(doc, error);
}

bool
exec_measure_has_collectives(const char *path)
{
    g_autoptr(JsonDoc) doc = json_doc_load(path, NULL);

    if (doc == NULL)
        return false;
    const JsonValue *root = json_doc_root(doc, FORMAT, 1);
    const bool has = json_is_object(root) && json_has(doc, root, "between");
    json_doc_finish(doc, NULL);
    return has;
}
