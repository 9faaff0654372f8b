/* A measured run as a request; declared in cli/validate/validation.h. */
#include "cli/validate/validation.h"

#include "base/json.h"
#include "models/arch.h"
#include "schedule/schedule.h"

#include <string.h>

G_DEFINE_QUARK(validation_error, validation_error)

static bool G_GNUC_PRINTF(2, 3) unstated(GError **error, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    if (error != NULL)
        *error = g_error_new_valist(VALIDATION_ERROR, VALIDATION_ERROR_UNSTATED, format, args);
    va_end(args);
    return false;
}

static bool
note_is(const MeasuredRow *row, const char *key, const char *value)
{
    g_autofree char *note = measured_note(row->notes, key);

    return note != NULL && strcmp(note, value) == 0;
}

static int64_t
note_count(const MeasuredRow *row, const char *key, int64_t fallback)
{
    g_autofree char *note = measured_note(row->notes, key);

    return note == NULL ? fallback : g_ascii_strtoll(note, NULL, 10);
}

/* --- what a row leaves open --- */

/* The row with its blanks filled where something stated implies them. */
static bool
fill_degrees(MeasuredRow *row, GError **error)
{
    const int64_t model_parallel = note_count(row, "model-parallel size", 0);

    row->cp = MAX(1, row->cp);
    row->ep = MAX(1, row->ep);
    /* 2104.04473 uses tensor parallelism up to the devices of a node, then the pipeline. */
    if (row->tp == 0 && row->pp == 0 && model_parallel > 0) {
        row->tp = MIN(MAX(1, row->devices_per_node), model_parallel);
        row->pp = model_parallel / row->tp;
    }
    if (row->tp == 0 || row->pp == 0)
        return unstated(error, "tp or pp is not stated");
    if (row->dp == 0 && row->n_devices > 0)
        row->dp = row->n_devices / (row->tp * row->pp * row->cp);
    if (row->dp == 0)
        return unstated(error, "the number of devices is not stated");
    if (row->micro_batch == 0)
        return unstated(error, "micro_batch is not stated");
    if (row->seq_len == 0)
        return unstated(error, "seq is not stated");
    /* Where only memory is shown: enough micro-batches to fill the pipeline. */
    if (row->global_batch == 0)
        row->global_batch = row->dp * row->micro_batch *
                            (row->n_micro_batches > 0 ? row->n_micro_batches : 2 * row->pp);
    return true;
}

/*
 * Chunks of an interleaved schedule whose number is not stated: the least that divides the layers
 * of a rank, as in every row of 2104.04473 table 1 that states it (15 layers: 3, 10: 2, 6: 2,
 * 3: 3).
 */
static int64_t
usual_chunks(const MeasuredRow *row)
{
    const int64_t layers = row->n_layers / row->pp;
    int64_t chunks = 2;

    while (chunks < layers && layers % chunks != 0)
        chunks++;
    return chunks;
}

/* --- the model --- */

/* The built-in model with what the columns say. */
static bool
write_builtin(JsonWriter *writer, const MeasuredRow *row, const char *name, GError **error)
{
    g_autoptr(ModelArch) arch = model_arch_load(name, NULL, error);

    if (arch == NULL)
        return false;
    g_free(arch->name);
    arch->name = g_strdup(row->model);
    if (row->n_layers > 0)
        arch->n_layers = row->n_layers;
    if (row->vocab >= 0)
        arch->vocab = row->vocab;
    if (row->ffn_hidden > 0)
        arch->ffn_hidden = row->ffn_hidden;
    model_arch_write(writer, "model", arch);
    return true;
}

static void
write_experts(JsonWriter *writer, const MeasuredRow *row)
{
    const int64_t n_experts = note_count(row, "num-experts", 0);
    const int64_t ffn = row->ffn_hidden > 0 ? row->ffn_hidden : 4 * row->hidden;

    if (n_experts == 0)
        return;
    json_write_object(writer, "experts");
    json_write_int64(writer, "n_experts", n_experts);
    json_write_int64(writer, "top_k", note_count(row, "moe-router-topk", 2));
    json_write_int64(writer, "ffn_hidden", note_count(row, "moe-ffn-hidden-size", ffn));
    json_write_object_end(writer);
}

static void
write_widths(JsonWriter *writer, const MeasuredRow *row, const ValidationSource *source,
             const char *family)
{
    const bool gated = note_is(row, "swiglu", "True") || strcmp(family, "llama") == 0;
    int64_t vocab = row->vocab >= 0 ? row->vocab : source->vocab;

    if (source->vocab_multiple > 0) {
        const int64_t multiple = source->vocab_multiple * row->tp;

        vocab = (vocab + multiple - 1) / multiple * multiple;
    } else if (source->vocab_cut) {
        vocab = vocab / row->tp * row->tp;
    }
    json_write_object(writer, "model");
    json_write_string(writer, "name", row->model);
    json_write_string(writer, "family", gated ? "llama" : family);
    json_write_int64(writer, "n_layers", row->n_layers);
    json_write_int64(writer, "hidden", row->hidden);
    json_write_int64(writer, "n_heads", row->n_heads);
    if (row->n_kv_heads > 0)
        json_write_int64(writer, "n_kv_heads", row->n_kv_heads);
    if (row->ffn_hidden > 0)
        json_write_int64(writer, "ffn_hidden", row->ffn_hidden);
    else if (gated) /* --ffn-hidden-size of Megatron's --swiglu: 2/3 of 4 h */
        json_write_int64(writer, "ffn_hidden", row->hidden * 8 / 3 / 64 * 64);
    json_write_int64(writer, "vocab", vocab);
    json_write_int64(writer, "max_seq_len", row->seq_len);
    if (note_is(row, "untie-embeddings-and-output-weights", "True"))
        json_write_bool(writer, "tied_embeddings", false);
    else if (gated && strcmp(family, "llama") != 0)
        json_write_bool(writer, "tied_embeddings", true);
    write_experts(writer, row);
    json_write_object_end(writer);
}

static bool
write_model(JsonWriter *writer, const MeasuredRow *row, const ValidationSource *source,
            GError **error)
{
    const ValidationWord *model =
        validation_word(validation_conventions()->models, row->model, true);

    if (model == NULL)
        return unstated(error, "no family is known for the model");
    if (model->builtin != NULL)
        return write_builtin(writer, row, model->builtin, error);
    if (row->n_layers == 0 || row->hidden == 0 || row->n_heads == 0)
        return unstated(error, "layers, hidden or heads are not stated");
    write_widths(writer, row, source, model->family);
    return true;
}

/* --- how it was run --- */

/* Returns: (owned, nullable) the value that the row's notes give @option, or @fallback: the last
 * note counts, but values of "overlap" add up. */
static char *
option_of_notes(const MeasuredRow *row, const char *option, const char *fallback)
{
    g_autoptr(GString) text = g_string_new(fallback);
    const bool adds = strcmp(option, "overlap") == 0;

    for (const ValidationNote *note = validation_conventions()->notes; note->key != NULL; note++) {
        g_autofree char *value = NULL;
        bool found;

        if (strcmp(note->option, option) != 0)
            continue;
        if (note->prefix == NULL) {
            found = strstr(row->notes, note->key) != NULL || strstr(row->id, note->key) != NULL;
        } else {
            value = measured_note(row->notes, note->key);
            found = value != NULL && g_str_has_prefix(value, note->prefix);
        }
        if (!found)
            continue;
        if (!adds || strcmp(text->str, "none") == 0)
            g_string_truncate(text, 0);
        if (adds && strstr(text->str, note->value) != NULL)
            continue;
        g_string_append_printf(text, "%s%s", text->len > 0 ? "," : "", note->value);
    }
    return text->len == 0 ? NULL : g_strdup(text->str);
}

static void
write_option(JsonWriter *writer, const MeasuredRow *row, const char *option, const char *fallback)
{
    g_autofree char *value = option_of_notes(row, option, fallback);

    if (value != NULL)
        json_write_string(writer, option, value);
}

static const char *
dtype_of(const MeasuredRow *row, const ValidationSource *source)
{
    const ValidationWord *word =
        validation_word(validation_conventions()->dtypes, row->dtype, false);

    if (row->dtype[0] == 0)
        return source->dtype;
    return word == NULL ? NULL : word->dtype;
}

static const char *
recompute_of(const MeasuredRow *row, const ValidationSource *source)
{
    static const char *const words[] = {"none", "full", "selective"};

    if (row->recompute[0] == 0)
        return source->recompute;
    for (size_t i = 0; i < G_N_ELEMENTS(words); i++) {
        if (g_str_has_prefix(row->recompute, words[i]))
            return words[i];
    }
    return NULL;
}

/* "slicing scheme [(1, [512] * 4)] * 8" or "[(1, [704, 688, 656])] * 32": tokens of the slices of
 * one sequence. */
static bool
write_slices(JsonWriter *writer, const MeasuredRow *row, GError **error)
{
    const char *scheme = strstr(row->notes, "slicing scheme [(1, [");
    const char *splits = strstr(row->notes, " sequence splits");
    g_autoptr(GArray) slices = g_array_new(FALSE, FALSE, sizeof(int64_t));

    if (scheme == NULL && splits != NULL) {
        while (splits > row->notes && g_ascii_isdigit(splits[-1]))
            splits--;
        json_write_int64(writer, "slices", g_ascii_strtoll(splits, NULL, 10));
        return true;
    }
    if (scheme == NULL)
        return unstated(error, "the slices are not stated");
    char *p = (char *)scheme + strlen("slicing scheme [(1, [");
    for (;;) {
        const int64_t tokens = g_ascii_strtoll(p, &p, 10);

        g_array_append_val(slices, tokens);
        if (*p != ',')
            break;
        p++;
    }
    if (slices->len == 1 && g_str_has_prefix(p, "] * ")) {
        const int64_t tokens = g_array_index(slices, int64_t, 0);

        for (int64_t n = g_ascii_strtoll(p + 4, NULL, 10); n > 1 && slices->len < 65536; n--)
            g_array_append_val(slices, tokens);
    }
    if (slices->len == 1)
        return true;
    json_write_array_inline(writer, "slices");
    for (guint i = 0; i < slices->len; i++)
        json_write_int64(writer, NULL, g_array_index(slices, int64_t, i));
    json_write_array_end(writer);
    return true;
}

/* First and last stage with one layer less than the others. */
static bool
write_short_ends(JsonWriter *writer, const MeasuredRow *row, int64_t vpp, GError **error)
{
    const int64_t n_stages = row->pp * vpp;

    if (n_stages < 2)
        return true;
    if ((row->n_layers + 2) % n_stages != 0 || row->n_layers + 2 == n_stages)
        return unstated(error, "stages of no layers are not modelled");
    json_write_array_inline(writer, "stage_layers");
    for (int64_t i = 0; i < n_stages; i++)
        json_write_int64(writer, NULL,
                         (row->n_layers + 2) / n_stages - (i == 0 || i == n_stages - 1));
    json_write_array_end(writer);
    return true;
}

static bool
write_schedule(JsonWriter *writer, const MeasuredRow *row, const ValidationSource *source,
               GError **error)
{
    const ValidationWord *schedule =
        validation_word(validation_conventions()->schedules, row->schedule, false);
    const char *family = schedule == NULL ? NULL : schedule->family;
    int64_t vpp = MAX(1, row->vpp);

    if (row->schedule[0] == 0)
        family = schedule_family_usual(row->vpp, false)->name;
    if (family == NULL)
        return unstated(error, "the schedule is none that we know");
    if (schedule_family_find(family, NULL)->min_chunks > 1 && row->vpp <= 1)
        vpp = source->ends_short ? (row->n_layers + 2) / row->pp : usual_chunks(row);
    json_write_string(writer, "schedule", family);
    if (vpp > 1)
        json_write_int64(writer, "vpp", vpp);
    if (schedule != NULL && schedule->sliced && !write_slices(writer, row, error))
        return false;
    return !source->ends_short || write_short_ends(writer, row, vpp, error);
}

static bool
write_flags(JsonWriter *writer, const MeasuredRow *row, const ValidationSource *source,
            GError **error)
{
    const char *dtype = dtype_of(row, source), *recompute = recompute_of(row, source);
    const struct {
        const char *name;
        int64_t value;
    } counts[] = {
        {"global_batch", row->global_batch},
        {"seq_len", row->seq_len},
        {"dp", row->dp},
        {"tp", row->tp},
        {"pp", row->pp},
        {"cp", row->cp},
        {"ep", row->ep},
        {"micro_batch", row->micro_batch},
    };

    if (dtype == NULL)
        return unstated(error, "the number format is none that we know");
    if (recompute == NULL)
        return unstated(error, "the recompute is none that we know");
    for (size_t i = 0; i < G_N_ELEMENTS(counts); i++)
        json_write_int64(writer, counts[i].name, counts[i].value);
    json_write_string(writer, "dtype", dtype);
    json_write_string(writer, "recompute", recompute);
    if (row->zero_stage > 0)
        json_write_int64(writer, "zero", row->zero_stage);
    if (row->sequence_parallel == 1 ||
        (row->sequence_parallel < 0 && source->sequence_parallel && row->tp > 1))
        json_write_bool(writer, "sequence_parallel", true);
    json_write_string(writer, "framework", source->framework);
    write_option(writer, row, "attention", source->attention);
    write_option(writer, row, "overlap", source->overlap);
    write_option(writer, row, "kernels", NULL);
    write_option(writer, row, "dropout", source->dropout);
    write_option(writer, row, "loss", source->loss);
    if (source->vocab_cut)
        json_write_bool(writer, "pad_vocab", false);
    write_option(writer, row, "cp_comm_type", NULL);
    if (note_count(row, "num-experts", 0) > 0)
        json_write_int64(
            writer, "expert_tp",
            note_count(row, "expert-tensor-parallel-size", source->expert_tp ? row->tp : 1));
    write_option(writer, row, "deterministic_kernels", NULL);
    return write_schedule(writer, row, source, error);
}

char *
validation_request(const MeasuredRow *row, const char *cluster, GError **error)
{
    const ValidationSource *source = validation_source(row);
    const ValidationWord *of_device = validation_cluster(row);
    g_autoptr(JsonWriter) writer = json_writer_new_compact();
    MeasuredRow filled = *row;

    if (cluster == NULL) {
        if (of_device == NULL || of_device->cluster == NULL) {
            unstated(error, "no cluster of these devices is built in");
            return NULL;
        }
        cluster = of_device->cluster;
    }
    if (!fill_degrees(&filled, error))
        return NULL;
    json_write_object(writer, NULL);
    json_write_string(writer, "id", row->id);
    if (!write_model(writer, &filled, source, error))
        return NULL;
    json_write_string(writer, "cluster", cluster);
    if (!write_flags(writer, &filled, source, error))
        return NULL;
    json_write_object_end(writer);
    return json_writer_steal(writer, NULL);
}
