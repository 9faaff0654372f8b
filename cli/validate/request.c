/* A measured run as a request; declared in cli/validate/validation.h. */
#include "cli/validate/validation.h"

#include "base/json.h"
#include "cli/recipe/layout_string.h"
#include "cli/validate/row_model.h"
#include "profiles/profile.h"
#include "schedule/framework.h"
#include "schedule/schedule.h"

#include <math.h>
#include <string.h>

G_DEFINE_QUARK(validation_error, validation_error)

/* --- what a row leaves open --- */

/* The row with its blanks filled where something stated implies them. */
static bool
fill_degrees(MeasuredRow *row, bool is_searched, GError **error)
{
    const int64_t model_parallel = measured_note_count(row, "model-parallel size", 0);

    row->cp = MAX(1, row->cp);
    row->ep = MAX(1, row->ep);
    /* 2104.04473 uses tensor parallelism up to the devices of a node, then the pipeline. */
    if (row->tp == 0 && row->pp == 0 && model_parallel > 0) {
        row->tp = MIN(MAX(1, row->devices_per_node), model_parallel);
        row->pp = model_parallel / row->tp;
    }
    if (row->tp == 0 || row->pp == 0)
        return validation_unstated(error, "tp or pp is not stated");
    if (row->dp == 0 && row->n_devices > 0)
        row->dp = row->n_devices / (row->tp * row->pp * row->cp);
    if (row->dp == 0)
        return validation_unstated(error, "the number of devices is not stated");
    if (row->micro_batch == 0 && !is_searched)
        return validation_unstated(error, "micro_batch is not stated");
    if (row->seq_len == 0)
        return validation_unstated(error, "seq is not stated");
    /* Where only memory is shown: enough micro-batches to fill the pipeline. */
    if (row->global_batch == 0)
        row->global_batch = row->dp * row->micro_batch *
                            (row->n_micro_batches > 0 ? row->n_micro_batches : 2 * row->pp);
    return true;
}

/* Chunks of an interleaved schedule whose number is not stated: the least that divides the layers
 * of a rank, as in every row of 2104.04473 table 1 that states it (15 layers: 3, 10: 2, 6: 2,
 * 3: 3). */
static int64_t
usual_chunks(const MeasuredRow *row)
{
    const int64_t layers = row->n_layers / row->pp;
    int64_t chunks = 2;

    while (chunks < layers && layers % chunks != 0)
        chunks++;
    return chunks;
}

/* Sequences of a micro-batch into which the pipeline of @source cuts what the row calls one. */
static int64_t
pipeline_batch_of(const MeasuredRow *row, const ValidationSource *source)
{
    const bool by_ranks = source->pipeline_ranks_before != NULL && row->stack_date[0] != 0 &&
                          strcmp(row->stack_date, source->pipeline_ranks_before) < 0;

    return by_ranks && row->micro_batch % row->pp == 0 ? row->micro_batch / row->pp
                                                       : source->pipeline_batch;
}

/* --- how it was run --- */

/* Adds to or takes from a list of words with commas. */
static void
change_words(GString *words, const char *change)
{
    const bool takes = change[0] == '-';
    g_auto(GStrv) old = g_strsplit(words->str, ",", -1);

    g_string_truncate(words, 0);
    for (char **word = old; *word != NULL; word++)
        if (strcmp(*word, "none") != 0 && strcmp(*word, change + takes) != 0)
            g_string_append_printf(words, "%s%s", words->len > 0 ? "," : "", *word);
    if (!takes)
        g_string_append_printf(words, "%s%s", words->len > 0 ? "," : "", change);
    if (words->len == 0)
        g_string_append(words, "none");
}

/* Returns: (owned, nullable) the value that the row's columns and notes give @option, or
 * @fallback: the last row of the table counts, but values of "overlap" add up. */
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
            found = strstr(row->notes, note->key) != NULL || strstr(row->id, note->key) != NULL ||
                    strstr(row->model, note->key) != NULL;
        } else {
            value = measured_text(row, note->key);
            found = value != NULL && g_str_has_prefix(value, note->prefix);
        }
        if (!found || (note->before != NULL && strcmp(row->stack_date, note->before) >= 0))
            continue;
        if (adds)
            change_words(text, note->value);
        else
            g_string_assign(text, note->value);
    }
    return text->len == 0 ? NULL : g_strdup(text->str);
}

/* Attention of packed samples is within each: as many sequences as short as these, whose tokens are the
 * row's. */
static void
unpack_samples(MeasuredRow *row)
{
    g_autofree char *value = option_of_notes(row, "samples", NULL);
    const int64_t tokens = value == NULL ? 0 : g_ascii_strtoll(value, NULL, 10);

    if (tokens <= 0 || row->seq_len % tokens != 0)
        return;
    const int64_t packed = row->seq_len / tokens;
    row->seq_len = tokens;
    row->micro_batch *= packed;
    row->global_batch *= packed;
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

/* The plan's recompute; of modules by name selective. */
static const char *
recompute_of(const MeasuredRow *row, const ValidationSource *source)
{
    static const struct {
        const char *word, *recompute;
    } words[] = {
        {"none", "none"},
        {"full", "full"},
        {"selective", "selective"},
        {"block", "full"},
    };
    const char *text = row->recompute[0] != 0 ? row->recompute : row->recompute_modules;

    if (text[0] == 0)
        return source->recompute;
    for (size_t i = 0; i < G_N_ELEMENTS(words); i++) {
        if (g_str_has_prefix(text, words[i].word))
            return words[i].recompute;
    }
    return text == row->recompute ? NULL : "selective";
}

/* Which modules selective recompute repeats: words between +, blanks and brackets, of which those
 * that the table "modules" knows count.  Where it knows none, the framework's own count. */
static void
write_modules(JsonWriter *writer, const MeasuredRow *row)
{
    const char *inside = strchr(row->recompute, '[');
    const char *text = row->recompute_modules[0] != 0 ? row->recompute_modules
                       : inside != NULL               ? inside
                                                      : "";
    g_auto(GStrv) words = g_strsplit_set(text, "+ []", -1);
    g_autoptr(GPtrArray) modules = g_ptr_array_new();

    for (char **word = words; *word != NULL; word++) {
        const ValidationWord *module =
            validation_word(validation_conventions()->modules, *word, false);
        if (**word != 0 && module != NULL && strlen(module->prefix) == strlen(*word) &&
            !g_ptr_array_find_with_equal_func(modules, module->module, g_str_equal, NULL))
            g_ptr_array_add(modules, (char *)module->module);
    }
    if (modules->len == 0)
        return;
    json_write_array_inline(writer, "recompute_modules");
    for (guint i = 0; i < modules->len; i++)
        json_write_string(writer, NULL, g_ptr_array_index(modules, i));
    json_write_array_end(writer);
}

/* Slices of equal computing: a layer of a GPT takes 12 h^2 n products for n tokens, and h n^2 / 2 * 2
 * for their scores, so slice i ends where n (12 h + n) is i of N parts, at a multiple of tp
 * [Seq1F1B, uniform_comp]. */
static void
write_even_slices(JsonWriter *writer, const MeasuredRow *row, int64_t n_slices)
{
    const double width = 12.0 * (double)row->hidden, tokens = (double)row->seq_len;
    const double all = tokens * (width + tokens);
    int64_t end = 0;

    json_write_array_inline(writer, "slices");
    for (int64_t i = 1; i <= n_slices; i++) {
        const double part = all * (double)i / (double)n_slices;
        const double place = (sqrt(width * width + 4.0 * part) - width) / 2.0;
        const int64_t next =
            i == n_slices ? row->seq_len : (int64_t)round(place / (double)row->tp) * row->tp;

        json_write_int64(writer, NULL, next - end);
        end = next;
    }
    json_write_array_end(writer);
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
        const int64_t n = g_ascii_strtoll(splits, NULL, 10);
        if (strcmp(row->slices_kind, "uniform_comp") == 0)
            write_even_slices(writer, row, n);
        else
            json_write_int64(writer, "slices", n);
        return true;
    }
    if (scheme == NULL)
        return validation_unstated(error, "the slices are not stated");
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
    const int64_t n_stages = row->pp * vpp, layers = validation_n_stacked(row);

    if (n_stages < 2)
        return true;
    if ((layers + 2) % n_stages != 0)
        return validation_unstated(error, "the layers of each stage are not stated");
    json_write_array_inline(writer, "stage_layers");
    for (int64_t i = 0; i < n_stages; i++)
        json_write_int64(writer, NULL, (layers + 2) / n_stages - (i == 0 || i == n_stages - 1));
    json_write_array_end(writer);
    return true;
}

/* Megatron's --pipeline-model-parallel-layout. */
static bool
write_layout(JsonWriter *writer, const MeasuredRow *row, int64_t vpp, GError **error)
{
    g_autofree char *message = NULL;
    g_autoptr(GArray) stages = layout_string_read(row->pp_layout, &message);

    if (stages == NULL)
        return validation_unstated(error, "pp_layout is none that we read: %s", message);
    if (stages->len != row->pp * vpp)
        return validation_unstated(error, "pp_layout has other stages than pp x vpp");
    json_write_array_inline(writer, "stage_layers");
    for (guint i = 0; i < stages->len; i++) {
        const LayoutStage *stage = &g_array_index(stages, LayoutStage, i);

        json_write_int64(writer, NULL, stage->n_layers + stage->n_mtp);
    }
    json_write_array_end(writer);
    return true;
}

/* Which layers are in which stage.  Where layers do not divide evenly, but would with the embedding
 * and the loss counted as layers, these are (Megatron's account_for_..._in_pipeline_split). */
static bool
write_stages(JsonWriter *writer, const MeasuredRow *row, const ValidationSource *source,
             int64_t vpp, GError **error)
{
    const int64_t n_stages = row->pp * vpp, layers = validation_n_stacked(row);

    if (row->pp_layout[0] == 'E')
        return write_layout(writer, row, vpp, error);
    if (source->ends_short || (layers % n_stages != 0 && (layers + 2) % n_stages == 0))
        return write_short_ends(writer, row, vpp, error);
    return true;
}

/* The family and the chunks of a row's schedule. */
static const char *
schedule_of(const MeasuredRow *row, const ValidationSource *source, int64_t *vpp)
{
    const ValidationWord *schedule =
        validation_word(validation_conventions()->schedules, row->schedule, false);
    const char *family = schedule == NULL ? NULL : schedule->family;

    *vpp = MAX(1, row->vpp);
    if (row->schedule[0] == 0)
        family = source->schedule != NULL && row->pp > 1
                     ? source->schedule
                     : schedule_family_usual(row->vpp, false)->name;
    g_autofree char *chunks = option_of_notes(row, "chunks", NULL);
    if (chunks != NULL && row->pp > 1 && row->vpp <= 1 && row->n_layers % row->pp == 0) {
        *vpp = row->n_layers / row->pp;
        return *vpp > 1 ? "interleaved" : family;
    }
    if (family != NULL && schedule_family_find(family, NULL)->min_chunks > 1 && row->vpp <= 1)
        *vpp = source->pipeline_chunks > 0 ? source->pipeline_chunks
               : source->ends_short        ? (row->n_layers + 2) / row->pp
                                           : usual_chunks(row);
    return family;
}

static bool
write_schedule(JsonWriter *writer, const MeasuredRow *row, const ValidationSource *source,
               GError **error)
{
    const ValidationWord *schedule =
        validation_word(validation_conventions()->schedules, row->schedule, false);
    int64_t vpp;
    const char *family = schedule_of(row, source, &vpp);

    if (family == NULL)
        return validation_unstated(error, "the schedule is none that we know");
    json_write_string(writer, "schedule", family);
    if (vpp > 1)
        json_write_int64(writer, "vpp", vpp);
    if (schedule != NULL && schedule->sliced && !write_slices(writer, row, error))
        return false;
    return write_stages(writer, row, source, vpp, error);
}

/* Which communication overlaps; messages of the pipeline only where the framework's do at all. */
static void
write_overlap(JsonWriter *writer, const MeasuredRow *row, const ValidationSource *source)
{
    g_autofree char *words = option_of_notes(row, "overlap", source->overlap);
    g_autoptr(GString) list = g_string_new(words);
    int64_t vpp;
    const char *family = schedule_of(row, source, &vpp);
    int framework = 0;

    if (words == NULL)
        return;
    while (strcmp(plan_framework_names()[framework], source->framework) != 0)
        framework++;
    if (family == NULL || !plan_framework_overlaps_pp((PlanFramework)framework, family, vpp))
        change_words(list, "-pp");
    json_write_string(writer, "overlap", list->str);
}

/* "tp-pp-dp": a dimension that is not named has one rank, and goes after tp. */
static void
write_rank_order(JsonWriter *writer, const MeasuredRow *row)
{
    g_autoptr(GString) order = g_string_new(row->rank_order);

    if (strstr(order->str, "cp") == NULL && g_str_has_prefix(order->str, "tp"))
        g_string_insert(order, 2, "-cp");
    json_write_string(writer, "rank_order", order->str);
}

static int64_t
zero_of(const MeasuredRow *row, const ValidationSource *source)
{
    const int64_t stated = row->zero_stage >= 0 ? row->zero_stage
                           : row->fsdp == 1     ? 3
                                                : source->zero;

    return source->pipeline_zero > 0 && row->pp > 1 && stated == 3 ? source->pipeline_zero : stated;
}

/* How the job was split; what a search looks for. */
static void
write_split(JsonWriter *writer, const MeasuredRow *row, const ValidationSource *source)
{
    const struct {
        const char *name;
        int64_t value;
    } counts[] = {
        {"dp", row->dp}, {"tp", row->tp}, {"pp", row->pp},
        {"cp", row->cp}, {"ep", row->ep}, {"micro_batch", row->micro_batch},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(counts); i++)
        json_write_int64(writer, counts[i].name, counts[i].value);
    if (row->sequence_parallel == 1 ||
        (row->sequence_parallel < 0 && source->sequence_parallel && row->tp > 1))
        json_write_bool(writer, "sequence_parallel", true);
    if (measured_count(row, row->n_experts, "num-experts", 0) > 0)
        json_write_int64(writer, "expert_tp",
                         measured_count(row, row->expert_tp, "expert-tensor-parallel-size",
                                        source->expert_tp ? row->tp : 1));
    if (row->rank_order[0] != 0)
        write_rank_order(writer, row);
}

static bool
has_adapters(const MeasuredRow *row)
{
    return row->peft[0] != 0 && strcmp(row->peft, "none") != 0;
}

/* Adapters beside frozen weights, as the row or its source says. */
static bool
write_adapters(JsonWriter *writer, const MeasuredRow *row, const ValidationSource *source,
               GError **error)
{
    const int64_t rank = row->lora_rank > 0 ? row->lora_rank : source->lora_rank;
    const char *modules = row->lora_modules[0] != 0 ? row->lora_modules : source->lora_modules;

    if (!has_adapters(row))
        return true;
    if (g_ascii_strcasecmp(row->peft, "lora") != 0)
        return validation_unstated(error, "adapters that are no plain LoRA: \"%s\"", row->peft);
    if (rank == 0)
        return validation_unstated(error, "the rank of the adapters is not stated");
    json_write_int64(writer, "lora_rank", rank);
    if (modules != NULL) {
        g_autofree char *words = g_strdelimit(g_strdup(modules), "+ ", ',');
        json_write_string(writer, "lora_modules", words);
    }
    return true;
}

/* Adapters are Megatron-Bridge's, on the same Megatron-Core. */
static const char *
framework_of(const MeasuredRow *row, const ValidationSource *source)
{
    return has_adapters(row) && strcmp(source->framework, "megatron-core") == 0 ? "megatron-bridge"
                                                                                : source->framework;
}

static bool
write_flags(JsonWriter *writer, const MeasuredRow *row, const ValidationSource *source,
            bool is_searched, GError **error)
{
    const char *dtype = dtype_of(row, source), *recompute = recompute_of(row, source);

    if (dtype == NULL)
        return validation_unstated(error, "the number format is none that we know");
    if (recompute == NULL)
        return validation_unstated(error, "the recompute is none that we know");
    json_write_int64(writer, "global_batch", row->global_batch);
    json_write_int64(writer, "seq_len", row->seq_len);
    if (is_searched)
        json_write_int64(writer, "gpus", row->dp * row->tp * row->pp * row->cp);
    else
        write_split(writer, row, source);
    json_write_string(writer, "recompute", recompute);
    if (strcmp(recompute, "selective") == 0)
        write_modules(writer, row);
    if (zero_of(row, source) > 0)
        json_write_int64(writer, "zero", zero_of(row, source));
    json_write_string(writer, "dtype", dtype);
    json_write_string(writer, "framework", framework_of(row, source));
    if (!write_adapters(writer, row, source, error))
        return false;
    if (source->dated && row->stack_date[0] != 0)
        json_write_string(writer, "stack", row->stack_date);
    else if (source->stack != NULL)
        json_write_string(writer, "stack", source->stack);
    write_option(writer, row, "attention", source->attention);
    write_overlap(writer, row, source);
    write_option(writer, row, "kernels", NULL);
    write_option(writer, row, "dropout", source->dropout);
    write_option(writer, row, "loss", source->loss);
    if (source->wide_reduction)
        json_write_string(writer, "wide_reduction", "on");
    if (source->vocab_cut)
        json_write_bool(writer, "pad_vocab", false);
    write_option(writer, row, "cp_comm_type", NULL);
    write_option(writer, row, "grad_dtype", source->grad_dtype);
    write_option(writer, row, "cuda_graphs", NULL);
    write_option(writer, row, "quantise", source->quantise);
    if (strcmp(source->framework, "megatron-core") == 0)
        write_option(writer, row, "dispatcher", NULL);
    if (strcmp(source->framework, "megatron-core") == 0)
        write_option(writer, row, "expert_capacity", NULL);
    write_option(writer, row, "deterministic_kernels", NULL);
    if (zero_of(row, source) == 1)
        write_option(writer, row, "optimizer_instances", NULL);
    write_option(writer, row, "defer_gradients", NULL);
    write_option(writer, row, "optimizer", NULL);
    return is_searched || write_schedule(writer, row, source, error);
}

/* Where whole nodes do not divide the job, and nodes of so many devices do. */
static void
write_node_devices(JsonWriter *writer, const MeasuredRow *row, const ValidationWord *cluster)
{
    g_autoptr(Profile) profile = profile_load(cluster->cluster, NULL);
    int64_t first, n;

    if (profile == NULL)
        return;
    model_cluster_node(profile->cluster, 0, &first, &n);
    const int64_t devices = row->dp * row->tp * row->pp * row->cp;
    if (devices > n && devices % n != 0 && devices % cluster->node_devices == 0)
        json_write_int64(writer, "node_devices", cluster->node_devices);
}

static char *
request_of(const MeasuredRow *row, const char *cluster, bool is_searched, GError **error)
{
    const ValidationSource *source = validation_source(row);
    const ValidationWord *of_device = validation_cluster(row);
    g_autoptr(JsonWriter) writer = json_writer_new_compact();
    MeasuredRow filled = *row;

    if (cluster == NULL) {
        if (of_device == NULL || of_device->cluster == NULL) {
            validation_unstated(error, "no cluster of these devices is built in");
            return NULL;
        }
        cluster = of_device->cluster;
    }
    g_autofree char *refused = option_of_notes(row, "refused", NULL);
    if (refused != NULL) {
        validation_unstated(error, "%s", refused);
        return NULL;
    }
    if (!fill_degrees(&filled, is_searched, error))
        return NULL;
    if (source->pipeline_batch > 0 && filled.pp > 1)
        filled.micro_batch = pipeline_batch_of(&filled, source);
    unpack_samples(&filled);
    json_write_object(writer, NULL);
    json_write_string(writer, "id", row->id);
    if (!validation_write_model(writer, &filled, source, error))
        return NULL;
    json_write_string(writer, "cluster", cluster);
    if (of_device != NULL && of_device->node_devices > 0)
        write_node_devices(writer, &filled, of_device);
    if (!write_flags(writer, &filled, source, is_searched, error))
        return NULL;
    json_write_object_end(writer);
    return json_writer_steal(writer, NULL);
}

char *
validation_request(const MeasuredRow *row, const char *cluster, GError **error)
{
    return request_of(row, cluster, false, error);
}

char *
validation_search_request(const MeasuredRow *row, GError **error)
{
    return request_of(row, NULL, true, error);
}
