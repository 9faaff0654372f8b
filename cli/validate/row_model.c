#include "cli/validate/row_model.h"

#include <string.h>

#include "cli/validate/validation.h"
#include "models/arch.h"

bool
validation_unstated(GError **error, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    if (error != NULL)
        *error = g_error_new_valist(VALIDATION_ERROR, VALIDATION_ERROR_UNSTATED, format, args);
    va_end(args);
    return false;
}

int64_t
validation_n_stacked(const MeasuredRow *row)
{
    return row->n_layers + MAX(0, row->n_mtp);
}

/* What the row says of experts, in place of what @experts has; n_experts == 0: the model has
 * none. */
static void
read_experts(const MeasuredRow *row, ModelExperts *experts)
{
    const int64_t ffn = row->ffn_hidden > 0 ? row->ffn_hidden : 4 * row->hidden;

    experts->n_experts = measured_count(row, row->n_experts, "num-experts", experts->n_experts);
    if (experts->n_experts == 0)
        return;
    experts->top_k =
        measured_count(row, row->top_k, "moe-router-topk", experts->top_k > 0 ? experts->top_k : 2);
    experts->ffn_hidden = measured_count(row, row->expert_ffn, "moe-ffn-hidden-size",
                                         experts->ffn_hidden > 0 ? experts->ffn_hidden : ffn);
    if (row->n_shared >= 0) {
        experts->n_shared = row->n_shared;
        experts->shared_hidden = 0;
    }
    if (row->dense_layers >= 0)
        experts->first_dense_layers = row->dense_layers;
}

/* The vocabulary, padded or cut as the source's runs do. */
static int64_t
vocab_of(const MeasuredRow *row, const ValidationSource *source, int64_t usual)
{
    const int64_t vocab = row->vocab >= 0 ? row->vocab : usual;
    const int64_t multiple = source->vocab_multiple * row->tp;

    if (multiple > 0)
        return (vocab + multiple - 1) / multiple * multiple;
    return source->vocab_cut ? vocab / row->tp * row->tp : vocab;
}

/* --- a built-in model --- */

/* A model whose layers are of kinds keeps its widths; @stated ones that are others are an error. */
static bool
set_kinds(ModelArch *arch, const MeasuredRow *row, GError **error)
{
    const struct {
        const char *column;
        int64_t stated, own;
    } widths[] = {
        {"hidden", row->hidden, arch->hidden},           {"heads", row->n_heads, arch->n_heads},
        {"kv_heads", row->n_kv_heads, arch->n_kv_heads}, {"ffn", row->ffn_hidden, arch->ffn_hidden},
        {"head_dim", row->head_dim, arch->head_dim},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(widths); i++)
        if (widths[i].stated > 0 && widths[i].stated != widths[i].own)
            return validation_unstated(error,
                                       "%s is not that of the built-in model of this name, whose "
                                       "layers are of several kinds",
                                       widths[i].column);
    if (row->n_layers > 0 && row->n_layers != arch->n_layers) {
        if (row->n_layers % arch->n_pattern != 0)
            return validation_unstated(error, "layers are of several kinds, and which ones of them "
                                              "were left out is not stated");
        arch->n_layers = row->n_layers;
    }
    for (int32_t i = 0; i < arch->n_kinds; i++)
        if (arch->kinds[i].experts.n_experts > 0)
            read_experts(row, &arch->kinds[i].experts);
    model_arch_settle(arch);
    return true;
}

static void
set_widths(ModelArch *arch, const MeasuredRow *row)
{
    const bool is_mla = arch->mla.kv_lora_rank > 0;
    const struct {
        int64_t stated, *width;
    } widths[] = {
        {row->n_layers, &arch->n_layers},
        {row->hidden, &arch->hidden},
        {row->n_heads, &arch->n_heads},
        {is_mla ? row->n_heads : row->n_kv_heads, &arch->n_kv_heads},
        {row->ffn_hidden, &arch->ffn_hidden},
        {is_mla ? 0 : row->head_dim, &arch->head_dim},
    };

    if (!is_mla && row->head_dim == 0 && row->hidden > 0 && row->n_heads > 0 &&
        (row->hidden != arch->hidden || row->n_heads != arch->n_heads))
        arch->head_dim = row->hidden / row->n_heads;
    for (size_t i = 0; i < G_N_ELEMENTS(widths); i++)
        if (widths[i].stated > 0)
            *widths[i].width = widths[i].stated;
    read_experts(row, &arch->experts);
    arch->experts.first_dense_layers = MIN(arch->experts.first_dense_layers, arch->n_layers);
}

/* The built-in model @name with what the columns say; blanks of @row become what it has. */
static bool
write_builtin(JsonWriter *writer, MeasuredRow *row, const ValidationSource *source,
              const char *name, GError **error)
{
    g_autoptr(ModelArch) arch = model_arch_load(name, NULL, error);

    if (arch == NULL)
        return false;
    g_free(arch->name);
    arch->name = g_strdup(row->model);
    if (arch->n_kinds == 0)
        set_widths(arch, row);
    else if (!set_kinds(arch, row, error))
        return false;
    arch->vocab = vocab_of(row, source, arch->vocab);
    arch->mtp.n = MAX(0, row->n_mtp);
    row->n_layers = arch->n_layers;
    row->hidden = arch->hidden;
    row->n_heads = arch->n_heads;
    model_arch_write(writer, "model", arch);
    return true;
}

/* --- a model of the columns --- */

static void
write_experts(JsonWriter *writer, const MeasuredRow *row)
{
    ModelExperts experts = {0};

    read_experts(row, &experts);
    if (experts.n_experts == 0)
        return;
    json_write_object(writer, "experts");
    json_write_int64(writer, "n_experts", experts.n_experts);
    json_write_int64(writer, "top_k", experts.top_k);
    json_write_int64(writer, "ffn_hidden", experts.ffn_hidden);
    if (experts.n_shared > 0)
        json_write_int64(writer, "n_shared", experts.n_shared);
    if (experts.first_dense_layers > 0)
        json_write_int64(writer, "first_dense_layers", experts.first_dense_layers);
    json_write_object_end(writer);
}

static void
write_widths(JsonWriter *writer, const MeasuredRow *row, const ValidationSource *source,
             const ValidationWord *model)
{
    const char *family = model->family;
    const bool gated = measured_note_is(row, "swiglu", "True") || strcmp(family, "llama") == 0;

    json_write_object(writer, "model");
    json_write_string(writer, "name", row->model);
    json_write_string(writer, "family", gated ? "llama" : family);
    json_write_int64(writer, "n_layers", row->n_layers);
    json_write_int64(writer, "hidden", row->hidden);
    json_write_int64(writer, "n_heads", row->n_heads);
    if (row->n_kv_heads > 0)
        json_write_int64(writer, "n_kv_heads", row->n_kv_heads);
    if (row->head_dim > 0)
        json_write_int64(writer, "head_dim", row->head_dim);
    if (model->qk_norm)
        json_write_bool(writer, "qk_norm", true);
    if (model->qkv_bias)
        json_write_bool(writer, "qkv_bias", true);
    if (row->ffn_hidden > 0)
        json_write_int64(writer, "ffn_hidden", row->ffn_hidden);
    else if (gated) /* --ffn-hidden-size of Megatron's --swiglu: 2/3 of 4 h */
        json_write_int64(writer, "ffn_hidden", row->hidden * 8 / 3 / 64 * 64);
    json_write_int64(writer, "vocab", vocab_of(row, source, source->vocab));
    json_write_int64(writer, "max_seq_len", row->seq_len);
    if (measured_note_is(row, "untie-embeddings-and-output-weights", "True"))
        json_write_bool(writer, "tied_embeddings", false);
    else if (gated && strcmp(family, "llama") != 0)
        json_write_bool(writer, "tied_embeddings", true);
    write_experts(writer, row);
    if (row->n_mtp > 0) {
        json_write_object(writer, "mtp");
        json_write_int64(writer, "n", row->n_mtp);
        json_write_object_end(writer);
    }
    json_write_object_end(writer);
}

bool
validation_write_model(JsonWriter *writer, MeasuredRow *row, const ValidationSource *source,
                       GError **error)
{
    const ValidationWord *model =
        validation_word(validation_conventions()->models, row->model, true);

    if (model == NULL)
        return validation_unstated(error, "no family is known for the model");
    if (model->refused != NULL)
        return validation_unstated(error, "%s", model->refused);
    if (row->n_mtp > MODEL_MAX_MTP)
        return validation_unstated(error, "more than %d MTP modules", MODEL_MAX_MTP);
    if (model->builtin != NULL)
        return write_builtin(writer, row, source, model->builtin, error);
    if (row->n_layers == 0 || row->hidden == 0 || row->n_heads == 0)
        return validation_unstated(error, "layers, hidden or heads are not stated");
    write_widths(writer, row, source, model);
    return true;
}
