#include "models/lora.h"

#include <string.h>

const char *const model_lora_module_names[MODEL_LORA_N + 1] = {
    "linear_qkv", "linear_q",        "linear_k",      "linear_v",   "linear_proj",
    "linear_fc1", "linear_fc1_gate", "linear_fc1_up", "linear_fc2", NULL};

/* What others call them. */
static const struct {
    const char *word;
    ModelLoraModule module;
} spellings[] = {
    {"q_proj", MODEL_LORA_Q},
    {"k_proj", MODEL_LORA_K},
    {"v_proj", MODEL_LORA_V},
    {"o_proj", MODEL_LORA_PROJ},
    {"qkv_proj", MODEL_LORA_QKV},
    {"gate_proj", MODEL_LORA_FC1_GATE},
    {"up_proj", MODEL_LORA_FC1_UP},
    {"gate_up_proj", MODEL_LORA_FC1},
    {"down_proj", MODEL_LORA_FC2},
    {"wq", MODEL_LORA_Q},
    {"wk", MODEL_LORA_K},
    {"wv", MODEL_LORA_V},
    {"wo", MODEL_LORA_PROJ},
    {"w1", MODEL_LORA_FC1_GATE},
    {"attention_qkv", MODEL_LORA_QKV},
    {"attention_dense", MODEL_LORA_PROJ},
    {"mlp_fc1", MODEL_LORA_FC1},
    {"mlp_fc2", MODEL_LORA_FC2},
    {"w2", MODEL_LORA_FC2},
    {"w3", MODEL_LORA_FC1_UP},
};

ModelLoraModule
model_lora_module(const char *word)
{
    for (int i = 0; i < MODEL_LORA_N; i++)
        if (strcmp(word, model_lora_module_names[i]) == 0)
            return (ModelLoraModule)i;
    for (size_t i = 0; i < G_N_ELEMENTS(spellings); i++)
        if (strcmp(word, spellings[i].word) == 0)
            return spellings[i].module;
    return MODEL_LORA_N;
}

uint32_t
model_lora_read_modules(const char *words, char **message)
{
    g_auto(GStrv) parts = g_strsplit(words, ",", -1);
    uint32_t modules = 0;

    for (size_t i = 0; parts[i] != NULL; i++) {
        const char *word = g_strstrip(parts[i]);
        const ModelLoraModule module = model_lora_module(word);

        if (strcmp(word, "all-linear") == 0) {
            modules |= MODEL_LORA_ALL_LINEAR;
        } else if (module == MODEL_LORA_N) {
            g_autofree char *names = g_strjoinv(", ", (char **)(uintptr_t)model_lora_module_names);
            *message = g_strdup_printf("\"%s\" is no module that has adapters: expected some of "
                                       "%s, all-linear",
                                       word, names);
            return 0;
        } else {
            modules |= UINT32_C(1) << module;
        }
    }
    if (modules == 0)
        *message = g_strdup("expected modules");
    return modules;
}

char *
model_lora_write_modules(uint32_t modules)
{
    const char *names[MODEL_LORA_N + 1] = {NULL};
    size_t n = 0;

    for (int i = 0; i < MODEL_LORA_N; i++)
        if (modules >> i & 1)
            names[n++] = model_lora_module_names[i];
    return g_strjoinv(",", (char **)(uintptr_t)names);
}

/* --- the adapters of a layer --- */

static bool
has(const ModelArch *arch, ModelLoraModule module)
{
    return (arch->lora.modules >> module & 1) != 0;
}

/* Whether @arch's layers have a product that is @module's. */
static bool
is_there(const ModelArch *arch, ModelLoraModule module)
{
    const bool plain = model_has_attention(arch) && !model_has_mla(arch);
    const bool dense = arch->ffn == MODEL_FFN_MLP && arch->experts.n_experts == 0;

    switch (module) {
    case MODEL_LORA_QKV:
    case MODEL_LORA_Q:
    case MODEL_LORA_K:
    case MODEL_LORA_V:
        return plain;
    case MODEL_LORA_PROJ:
        return model_has_attention(arch);
    case MODEL_LORA_FC1:
    case MODEL_LORA_FC2:
        return dense;
    case MODEL_LORA_FC1_GATE:
    case MODEL_LORA_FC1_UP:
        return dense && model_is_gated(arch);
    case MODEL_LORA_N:
        break;
    }
    g_return_val_if_reached(false);
}

size_t
model_lora_adapters(const ModelArch *kind, int64_t tp, ModelLoraAdapter adapters[MODEL_LORA_N])
{
    const int64_t heads = model_ceil_div(kind->n_heads, tp);
    const int64_t keys = model_ceil_div(kind->n_kv_heads, tp) * kind->head_dim;
    const int64_t values = model_ceil_div(kind->n_kv_heads, tp) * model_v_dim(kind);
    const int64_t qkv = model_qkv_columns(kind, tp), width = model_ceil_div(kind->ffn_hidden, tp);
    const int64_t h = kind->hidden;
    const ModelLoraAdapter all[MODEL_LORA_N] = {
        {MODEL_LORA_QKV, h, qkv, false},
        {MODEL_LORA_Q, h, qkv - keys - values, false},
        {MODEL_LORA_K, h, keys, false},
        {MODEL_LORA_V, h, values, false},
        {MODEL_LORA_PROJ, heads * model_v_dim(kind), h, true},
        {MODEL_LORA_FC1, h, (model_is_gated(kind) ? 2 : 1) * width, false},
        {MODEL_LORA_FC1_GATE, h, width, false},
        {MODEL_LORA_FC1_UP, h, width, false},
        {MODEL_LORA_FC2, width, h, true},
    };
    size_t n = 0;

    g_return_val_if_fail(tp >= 1, 0);
    for (int i = 0; i < MODEL_LORA_N; i++)
        if (kind->lora.rank > 0 && has(kind, (ModelLoraModule)i) &&
            is_there(kind, (ModelLoraModule)i))
            adapters[n++] = all[i];
    return n;
}

int64_t
model_lora_parameters(const ModelArch *kind, int64_t tp)
{
    ModelLoraAdapter adapters[MODEL_LORA_N];
    const size_t n = model_lora_adapters(kind, tp, adapters);
    const int64_t rank = kind->lora.rank, part = model_ceil_div(rank, tp);
    int64_t sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += adapters[i].splits_rows
                   ? adapters[i].k * rank + rank * model_ceil_div(adapters[i].n, tp)
                   : adapters[i].k * part + rank * adapters[i].n;
    return sum;
}

/* --- what cannot be --- */

/* Whether any layer has a product that is @module's. */
static bool
any_layer_has(const ModelArch *arch, ModelLoraModule module)
{
    for (int32_t i = 0; i < model_n_kinds(arch); i++) {
        const ModelArch kind = model_kind_arch(arch, i);
        if (is_there(&kind, module))
            return true;
    }
    return false;
}

static bool
any_layer_has_experts(const ModelArch *arch)
{
    for (int32_t i = 0; i < model_n_kinds(arch); i++)
        if (model_kind_arch(arch, i).experts.n_experts > 0)
            return true;
    return false;
}

char *
model_lora_refusal(const ModelArch *arch)
{
    /* Both of a row are beside the same weights. */
    static const ModelLoraModule twice[][2] = {
        {MODEL_LORA_QKV, MODEL_LORA_Q},      {MODEL_LORA_QKV, MODEL_LORA_K},
        {MODEL_LORA_QKV, MODEL_LORA_V},      {MODEL_LORA_FC1, MODEL_LORA_FC1_GATE},
        {MODEL_LORA_FC1, MODEL_LORA_FC1_UP},
    };

    if (arch->lora.rank == 0)
        return NULL;
    if (arch->mtp.n > 0)
        return g_strdup("adapters of MTP modules are not modelled");
    for (int i = MODEL_LORA_FC1; i <= MODEL_LORA_FC2; i++)
        if (has(arch, (ModelLoraModule)i) && any_layer_has_experts(arch))
            return g_strdup_printf("adapters of experts are not modelled: leave %s out",
                                   model_lora_module_names[i]);
    for (size_t i = 0; i < G_N_ELEMENTS(twice); i++)
        if (has(arch, twice[i][0]) && has(arch, twice[i][1]))
            return g_strdup_printf("%s and %s are adapters of the same weights",
                                   model_lora_module_names[twice[i][0]],
                                   model_lora_module_names[twice[i][1]]);
    for (int i = 0; i < MODEL_LORA_N; i++)
        if (has(arch, (ModelLoraModule)i) && !any_layer_has(arch, (ModelLoraModule)i))
            return g_strdup_printf(
                "no layer of the model has a product %s that may have an adapter",
                model_lora_module_names[i]);
    return NULL;
}
