#include "models/huggingface_import.h"

#include <string.h>

#include "base/units.h"

void
hf_warn(const HfImport *import, const char *format, ...)
{
    va_list arguments;

    if (import->warnings == NULL)
        return;
    va_start(arguments, format);
    g_ptr_array_add(import->warnings, g_strdup_vprintf(format, arguments));
    va_end(arguments);
}

bool
hf_has(const HfImport *import, const char *key)
{
    const JsonValue *value = json_member(import->doc, import->config, key);

    return value != NULL && !json_is_null(value);
}

const char *
hf_pick(const HfImport *import, const char *keys)
{
    g_auto(GStrv) list = g_strsplit(keys, "|", -1);

    for (int i = 0; list[i] != NULL; i++)
        if (hf_has(import, list[i]))
            return g_intern_string(list[i]);
    return g_intern_string(list[0]);
}

int64_t
hf_number_or(const HfImport *import, const char *keys, int64_t min, int64_t max, int64_t fallback)
{
    const char *key = hf_pick(import, keys);

    return hf_has(import, key) ? json_int64(import->doc, import->config, key, min, max) : fallback;
}

int64_t
hf_number(const HfImport *import, const char *keys, int64_t min, int64_t max)
{
    return json_int64(import->doc, import->config, hf_pick(import, keys), min, max);
}

int64_t
hf_number_from(const HfImport *import, const char *keys, int64_t max, int64_t fallback)
{
    return fallback > 0 ? hf_number_or(import, keys, 1, max, fallback)
                        : hf_number(import, keys, 1, max);
}

double
hf_real_or(const HfImport *import, const JsonValue *object, const char *key, double min, double max,
           double fallback)
{
    const JsonValue *value = json_member(import->doc, object, key);

    return value == NULL || json_is_null(value) ? fallback
                                                : json_double(import->doc, object, key, min, max);
}

double
hf_factor(const HfImport *import, const char *key)
{
    const double value = hf_real_or(import, import->config, key, 1e-9, 1e9, 1.0);

    return value == 1.0 ? 0.0 : value;
}

bool
hf_flag_or(const HfImport *import, const char *key, bool fallback)
{
    return hf_has(import, key) ? json_bool(import->doc, import->config, key) : fallback;
}

const JsonValue *
hf_array_of(const HfImport *import, const char *key)
{
    return json_array_or_null(import->doc, import->config, key);
}

/* --- what layers mix with --- */

static void
set_mix(HfImport *import, int64_t layer, const JsonValue *value)
{
    static const struct {
        const char *word;
        HfMix mix;
    } words[] = {
        {"full_attention", HF_MIX_FULL},
        {"attention", HF_MIX_FULL},
        {"global", HF_MIX_FULL},
        {"indexed_attention", HF_MIX_FULL},
        {"*", HF_MIX_FULL},
        {"sliding_attention", HF_MIX_SLIDING},
        {"local", HF_MIX_SLIDING},
        {"chunked_attention", HF_MIX_CHUNKED},
        {"linear_attention", HF_MIX_STATE},
        {"mamba", HF_MIX_STATE},
        {"conv", HF_MIX_STATE},
        {"recurrent", HF_MIX_STATE},
        {"mlp", HF_MIX_NONE},
        {"moe", HF_MIX_NONE},
    };
    const char *word = json_value_string(import->doc, value);

    if (layer >= import->arch->n_layers)
        return;
    for (size_t i = 0; i < G_N_ELEMENTS(words); i++)
        if (strcmp(words[i].word, word) == 0) {
            import->mix[layer] = (uint8_t)words[i].mix;
            return;
        }
    json_fail(import->doc, value, "a type of layers that is not known here");
}

bool
hf_read_mixes(HfImport *import, const char *key)
{
    const JsonValue *types = hf_array_of(import, key);
    int64_t layer = 0;

    if (types == NULL || json_length(types) == 0)
        return false;
    JSON_EACH (v, types, import->doc)
        set_mix(import, layer++, v);
    if (layer < import->arch->n_layers && !json_doc_failed(import->doc))
        json_fail(import->doc, types, "%d types for " INT " layers", (int)layer,
                  import->arch->n_layers);
    return true;
}

void
hf_set_every(HfImport *import, int64_t n, HfMix others)
{
    for (int64_t layer = 0; layer < import->arch->n_layers && n > 1; layer++)
        if ((layer + 1) % n != 0)
            import->mix[layer] = (uint8_t)others;
}
