/* How models/arch.h reads, checks, compares and writes a model. */
#include "models/arch.h"

#include <string.h>

#include "base/json_fields.h"
#include "base/units.h"
#include "models/lora.h"
#include "models/pattern.h"

/* --- keys --- */

#define ARCH(member) JSON_FIELD_OF(ModelArch, member)
#define EXPERTS(member) JSON_FIELD_OF(ModelExperts, member)
#define MLA(member) JSON_FIELD_OF(ModelMla, member)
#define INDEXER(member) JSON_FIELD_OF(ModelIndexer, member)
#define STATE(member) JSON_FIELD_OF(ModelState, member)
#define SPARSE (JSON_OPTIONAL | JSON_SPARSE)

const char *const model_mixer_names[MODEL_MIXER_N + 1] = {
    "attention", "delta_net",        "kda",  "mamba2", "mamba", "lightning",
    "conv",      "attention_mamba2", "none", NULL};
static const char *const ffn_names[MODEL_FFN_N + 1] = {"mlp", "none", NULL};
static const char *const activation_names[MODEL_ACTIVATION_N + 1] = {
    "usual", "swiglu", "geglu", "reluglu", "gelu", "relu2", "relu", "silu", NULL};
static const char *const norm_names[MODEL_NORM_N + 1] = {"usual",       "rms",   "layer",
                                                         "layer_scale", "plain", NULL};
static const char *const norm_place_names[MODEL_NORM_PLACE_N + 1] = {"pre", "post", "sandwich",
                                                                     NULL};
static const char *const blocks_names[MODEL_BLOCKS_N + 1] = {"serial", "parallel",
                                                             "parallel_one_norm", NULL};
static const char *const positions_names[MODEL_POSITIONS_N + 1] = {"usual", "rotary", "learned",
                                                                   "none",  "alibi",  NULL};
static const char *const qk_norm_kind_names[MODEL_QK_NORM_N + 1] = {"head", "row", "heads", "plain",
                                                                    NULL};
static const char *const output_gate_names[MODEL_OUTPUT_GATE_N + 1] = {"none", "element", "head",
                                                                       NULL};

static const JsonField experts_fields[] = {
    {"n_experts", EXPERTS(n_experts), 1, MODEL_MAX_EXPERTS},
    {"top_k", EXPERTS(top_k), 1, MODEL_MAX_EXPERTS},
    {"ffn_hidden", EXPERTS(ffn_hidden), 1, MODEL_MAX_FFN_HIDDEN},
    {"n_shared", EXPERTS(n_shared), 0, MODEL_MAX_EXPERTS, JSON_OPTIONAL},
    {"first_dense_layers", EXPERTS(first_dense_layers), 0, MODEL_MAX_LAYERS, JSON_OPTIONAL},
    {"router_scores", EXPERTS(router_scores), .flags = SPARSE, .names = model_router_scores_names},
    {"router_scale", EXPERTS(router_scale), 1e-9, 1e9, SPARSE, 1},
    {"shared_hidden", EXPERTS(shared_hidden), 0, MODEL_MAX_FFN_HIDDEN, SPARSE},
    {"latent", EXPERTS(latent), 0, MODEL_MAX_HIDDEN, SPARSE},
    {"n_redundant", EXPERTS(n_redundant), 0, MODEL_MAX_EXPERTS, SPARSE},
    {"shared_gate", EXPERTS(shared_gate), .flags = SPARSE},
    {"router_bias", EXPERTS(router_bias), .flags = SPARSE},
    {"bias", EXPERTS(bias), .flags = SPARSE},
    {.key = NULL},
};

static const JsonField mla_fields[] = {
    {"q_lora_rank", MLA(q_lora_rank), 0, MODEL_MAX_HIDDEN, JSON_OPTIONAL},
    {"kv_lora_rank", MLA(kv_lora_rank), 1, MODEL_MAX_HIDDEN},
    {"qk_nope_head_dim", MLA(qk_nope_head_dim), 1, MODEL_MAX_HEADS},
    {"qk_rope_head_dim", MLA(qk_rope_head_dim), 0, MODEL_MAX_HEADS},
    {"v_head_dim", MLA(v_head_dim), 1, MODEL_MAX_HEADS},
    {.key = NULL},
};

static const JsonField indexer_fields[] = {
    {"n_heads", INDEXER(n_heads), 1, MODEL_MAX_HEADS},
    {"head_dim", INDEXER(head_dim), 1, MODEL_MAX_HEADS},
    {"top_k", INDEXER(top_k), 1, MODEL_MAX_SEQ_LEN},
    {.key = NULL},
};

static const JsonField state_fields[] = {
    {"n_heads", STATE(n_heads), 1, MODEL_MAX_HIDDEN},
    {"n_key_heads", STATE(n_key_heads), 1, MODEL_MAX_HIDDEN, JSON_OPTIONAL},
    {"key_dim", STATE(key_dim), 1, MODEL_MAX_HEADS},
    {"value_dim", STATE(value_dim), 1, MODEL_MAX_HEADS},
    {"conv", STATE(conv), 0, MODEL_MAX_HEADS, SPARSE},
    {"rank", STATE(rank), 0, MODEL_MAX_HIDDEN, SPARSE},
    {"chunk", STATE(chunk), 1, MODEL_MAX_SEQ_LEN, SPARSE, .usual = MODEL_STATE_CHUNK},
    {"conv_bias", STATE(conv_bias), .flags = SPARSE},
    {"bias", STATE(bias), .flags = SPARSE},
    {"no_norm", STATE(no_norm), .flags = SPARSE},
    {"inner_norms", STATE(inner_norms), .flags = SPARSE},
    {.key = NULL},
};

static const JsonField name_fields[] = {
    {"name", ARCH(name), .flags = JSON_OPTIONAL},
    {"source", ARCH(source), .flags = JSON_OPTIONAL | JSON_SPARSE},
    {"family", ARCH(family), .names = model_family_names},
    {.key = NULL},
};

/* The stack, the ends, and layers: what kinds may give themselves stands in two tables, since files
 * have had some of these keys before those of the ends.  Sizes that are optional have usual values,
 * which follow from others. */
static const JsonField stack_fields[] = {
    {"n_layers", ARCH(n_layers), 1, MODEL_MAX_LAYERS},
    {"hidden", ARCH(hidden), 1, MODEL_MAX_HIDDEN},
    {.key = NULL},
};

static const JsonField width_fields[] = {
    {"n_heads", ARCH(n_heads), 1, MODEL_MAX_HEADS},
    {"n_kv_heads", ARCH(n_kv_heads), 1, MODEL_MAX_HEADS, JSON_OPTIONAL},
    {"head_dim", ARCH(head_dim), 1, MODEL_MAX_HEADS, JSON_OPTIONAL},
    {"ffn_hidden", ARCH(ffn_hidden), 1, MODEL_MAX_FFN_HIDDEN, JSON_OPTIONAL},
    {.key = NULL},
};

static const JsonField end_fields[] = {
    {"vocab", ARCH(vocab), 0, MODEL_MAX_VOCAB},
    {"max_seq_len", ARCH(max_seq_len), 1, MODEL_MAX_SEQ_LEN},
    {"tied_embeddings", ARCH(tied_embeddings), .flags = JSON_OPTIONAL},
    {"head_bias", ARCH(head_bias), .flags = SPARSE},
    {"embedding_norm", ARCH(embedding_norm), .flags = SPARSE},
    {"no_final_norm", ARCH(no_final_norm), .flags = SPARSE},
    {"position_rows", ARCH(position_rows), 0, MODEL_MAX_SEQ_LEN, SPARSE},
    {"embedding_scale", ARCH(embedding_scale), 0.0, 1e9, SPARSE},
    {"logits_scale", ARCH(logits_scale), 0.0, 1e9, SPARSE},
    {"logits_cap", ARCH(logits_cap), 0.0, 1e9, SPARSE},
    {.key = NULL},
};

static const JsonField layer_fields[] = {
    {"qkv_bias", ARCH(qkv_bias), .flags = JSON_OPTIONAL},
    {"proj_bias", ARCH(proj_bias), .flags = JSON_OPTIONAL | JSON_SPARSE},
    {"qk_norm", ARCH(qk_norm), .flags = JSON_OPTIONAL},
    {"norm_epsilon", ARCH(norm_epsilon), 1e-30, 1, SPARSE, MODEL_USUAL_NORM_EPSILON},
    {"rope_base", ARCH(rope_base), 1, 1e12, SPARSE, MODEL_USUAL_ROPE_BASE},
    {"mixer", ARCH(mixer), .flags = SPARSE, .names = model_mixer_names},
    {"ffn", ARCH(ffn), .flags = SPARSE, .names = ffn_names},
    {"window", ARCH(window), 0, MODEL_MAX_SEQ_LEN, SPARSE},
    {"chunk", ARCH(chunk), 0, MODEL_MAX_SEQ_LEN, SPARSE},
    {"positions", ARCH(positions), .flags = SPARSE, .names = positions_names},
    {"rotary_dim", ARCH(rotary_dim), 0, MODEL_MAX_HEADS, SPARSE},
    {"v_dim", ARCH(v_dim), 0, MODEL_MAX_HEADS, SPARSE},
    {"sinks", ARCH(sinks), .flags = SPARSE},
    {"output_gate", ARCH(output_gate), .flags = SPARSE, .names = output_gate_names},
    {"qk_norm_kind", ARCH(qk_norm_kind), .flags = SPARSE, .names = qk_norm_kind_names},
    {"attention_cap", ARCH(attention_cap), 0.0, 1e9, SPARSE},
    {"attention_scale", ARCH(attention_scale), 0.0, 1e9, SPARSE},
    {"residual_scale", ARCH(residual_scale), 0.0, 1e9, SPARSE},
    {"activation", ARCH(activation), .flags = SPARSE, .names = activation_names},
    {"mlp_bias", ARCH(mlp_bias), .flags = SPARSE},
    {"norm", ARCH(norm), .flags = SPARSE, .names = norm_names},
    {"norm_place", ARCH(norm_place), .flags = SPARSE, .names = norm_place_names},
    {"blocks", ARCH(blocks), .flags = SPARSE, .names = blocks_names},
    {.key = NULL},
};

/* "kind" is a word of the model's own. */
static const JsonField mtp_fields[] = {
    {"n", ARCH(mtp.n), 0, MODEL_MAX_MTP, JSON_OPTIONAL},
    {"published", ARCH(mtp.published), 0, MODEL_MAX_LAYERS, SPARSE},
    {"loss_factor", ARCH(mtp.loss_factor), 1e-9, 1e9, SPARSE},
    {.key = NULL},
};

enum {
    MTP_LOSS_FACTOR = 2 /* its row */
};

/* Objects within a layer, which are all 0 where the layer has no such thing. */
static const struct {
    const char *key;
    const JsonField *fields;
    size_t offset, size;
} layer_objects[] = {
    {"experts", experts_fields, offsetof(ModelArch, experts), sizeof(ModelExperts)},
    {"mla", mla_fields, offsetof(ModelArch, mla), sizeof(ModelMla)},
    {"indexer", indexer_fields, offsetof(ModelArch, indexer), sizeof(ModelIndexer)},
    {"state", state_fields, offsetof(ModelArch, state), sizeof(ModelState)},
};

static void *
object_of(const ModelArch *arch, size_t i)
{
    return (char *)(uintptr_t)arch + layer_objects[i].offset;
}

/* --- differences --- */

/* (owned) The value of a member as messages show it. */
static char *
member_text(const JsonField *field, const void *record)
{
    char text[G_ASCII_DTOSTR_BUF_SIZE];

    if (field->type == JSON_DOUBLE)
        return g_strdup(
            g_ascii_formatd(text, sizeof text, "%.15g",
                            *(const double *)(const void *)((const char *)record + field->offset)));
    const int64_t value = json_field_int64(field, record);
    return field->names != NULL ? g_strdup(field->names[value]) : g_strdup_printf(INT, value);
}

/* Returns: (owned, nullable) the first difference in the members that @fields names. */
static char *
difference_in(const char *prefix, const JsonField *fields, const void *a, const void *b)
{
    for (const JsonField *field = fields; field->key != NULL; field++) {
        if (memcmp((const char *)a + field->offset, (const char *)b + field->offset, field->size) ==
                0 ||
            strcmp(field->key, "max_seq_len") == 0)
            continue;
        g_autofree char *x = member_text(field, a), *y = member_text(field, b);
        return g_strdup_printf("%s%s is %s, not %s", prefix, field->key, x, y);
    }
    return NULL;
}

/* Of the objects within a layer. */
static char *
objects_difference(const char *prefix, const ModelArch *a, const ModelArch *b)
{
    for (size_t i = 0; i < G_N_ELEMENTS(layer_objects); i++) {
        g_autofree char *inner = g_strconcat(prefix, layer_objects[i].key, ".", NULL);
        char *difference =
            difference_in(inner, layer_objects[i].fields, object_of(a, i), object_of(b, i));
        if (difference != NULL)
            return difference;
    }
    return NULL;
}

/* Of what a layer is. */
static char *
layer_difference(const char *prefix, const ModelArch *a, const ModelArch *b)
{
    char *difference;

    if ((difference = difference_in(prefix, width_fields, a, b)) != NULL ||
        (difference = difference_in(prefix, layer_fields, a, b)) != NULL)
        return difference;
    return objects_difference(prefix, a, b);
}

/* Of MTP modules; what the makers had is no difference. */
static char *
mtp_difference(const ModelArch *arch, const ModelArch *other)
{
    if (arch->mtp.n != other->mtp.n)
        return g_strdup_printf("mtp.n is " INT ", not " INT, arch->mtp.n, other->mtp.n);
    if (arch->mtp.n == 0)
        return NULL;
    const double weight = model_loss_weight(arch, 1), other_weight = model_loss_weight(other, 1);
    if (weight < other_weight || weight > other_weight)
        return difference_in("mtp.", &mtp_fields[MTP_LOSS_FACTOR], arch, other);
    const ModelArch a = model_layer_arch(arch, arch->n_layers),
                    b = model_layer_arch(other, other->n_layers);
    return layer_difference("MTP modules' ", &a, &b);
}

/* Of adapters, which are of all layers and ends. */
static char *
lora_difference(const ModelArch *arch, const ModelArch *other)
{
    const ModelLora *a = &arch->lora, *b = &other->lora;

    if (a->rank != b->rank)
        return g_strdup_printf("lora.rank is " INT ", not " INT, a->rank, b->rank);
    if (a->rank == 0 || a->modules == b->modules)
        return NULL;
    g_autofree char *x = model_lora_write_modules(a->modules);
    g_autofree char *y = model_lora_write_modules(b->modules);
    return g_strdup_printf("lora.modules is %s, not %s", x, y);
}

static bool
lora_is_equal(const ModelArch *arch, const ModelArch *other)
{
    g_autofree char *difference = lora_difference(arch, other);
    return difference == NULL;
}

static char *
kinds_difference(const ModelArch *arch, const ModelArch *other)
{
    if (arch->n_kinds != other->n_kinds)
        return g_strdup_printf("it names %d kinds of layers, not %d", (int)arch->n_kinds,
                               (int)other->n_kinds);
    for (int64_t layer = 0; layer < arch->n_layers && arch->n_kinds > 0; layer++) {
        const ModelArch a = model_layer_arch(arch, layer), b = model_layer_arch(other, layer);
        g_autofree char *prefix = g_strdup_printf("layer " INT "'s ", layer);
        char *difference = layer_difference(prefix, &a, &b);
        if (difference != NULL)
            return difference;
    }
    return NULL;
}

char *
model_arch_difference(const ModelArch *arch, const ModelArch *other)
{
    /* What named kinds do not have from the top does not matter. */
    const bool is_named = arch->n_kinds > 0 || other->n_kinds > 0;
    char *difference;

    if (arch->family != other->family)
        return g_strdup_printf("family is %s, not %s", model_family_names[arch->family],
                               model_family_names[other->family]);
    if ((difference = difference_in("", stack_fields, arch, other)) != NULL ||
        (!is_named && (difference = difference_in("", width_fields, arch, other)) != NULL) ||
        (difference = difference_in("", end_fields, arch, other)) != NULL ||
        (difference = mtp_difference(arch, other)) != NULL ||
        (difference = lora_difference(arch, other)) != NULL)
        return difference;
    if (is_named)
        return kinds_difference(arch, other);
    return (difference = difference_in("", layer_fields, arch, other)) != NULL
               ? difference
               : objects_difference("", arch, other);
}

bool
model_kinds_are_alike(const ModelArch *arch, int32_t kind, const ModelArch *other,
                      int32_t other_kind)
{
    const ModelArch a = model_kind_arch(arch, kind), b = model_kind_arch(other, other_kind);

    /* A module reads the embedding, too. */
    if (a.is_mtp != b.is_mtp || (a.is_mtp && !model_ends_are_alike(arch, other)) ||
        arch->family != other->family || arch->hidden != other->hidden ||
        !lora_is_equal(arch, other))
        return false;
    g_autofree char *difference = layer_difference("", &a, &b);
    return difference == NULL;
}

bool
model_ends_are_alike(const ModelArch *arch, const ModelArch *other)
{
    if (arch->family != other->family || arch->hidden != other->hidden ||
        arch->mtp.n != other->mtp.n || arch->norm != other->norm ||
        arch->positions != other->positions || !lora_is_equal(arch, other))
        return false;
    g_autofree char *difference = difference_in("", end_fields, arch, other);
    return difference == NULL;
}

/* --- what follows from other fields --- */

/* 2/3 of 4 hidden, rounded up to a multiple of 256 [Touvron et al.'s code; 2302.13971 section 2.2]
 */
static int64_t
usual_ffn_hidden(const ModelArch *arch)
{
    if (arch->family == MODEL_FAMILY_GPT)
        return 4 * arch->hidden;
    return (8 * arch->hidden / 3 + 255) / 256 * 256;
}

/* n_kv_heads and head_dim, which MLA fixes; 0 where the object has none. */
static void
complete_heads(JsonDoc *doc, const JsonValue *object, ModelArch *arch)
{
    const int64_t head_dim = arch->mla.qk_nope_head_dim + arch->mla.qk_rope_head_dim;

    if (arch->n_kv_heads == 0)
        arch->n_kv_heads = arch->n_heads;
    if (arch->mla.kv_lora_rank == 0) {
        if (arch->head_dim == 0 && arch->hidden % arch->n_heads != 0)
            json_fail(doc, object,
                      "n_heads " INT " does not divide hidden " INT ", and there is no head_dim",
                      arch->n_heads, arch->hidden);
        if (arch->head_dim == 0)
            arch->head_dim = MAX(arch->hidden / arch->n_heads, 1);
        return;
    }
    if (arch->n_kv_heads != arch->n_heads)
        json_fail(doc, json_member(doc, object, "n_kv_heads"),
                  "with \"mla\": expected n_heads, " INT, arch->n_heads);
    if (arch->head_dim != 0 && arch->head_dim != head_dim)
        json_fail(doc, json_member(doc, object, "head_dim"),
                  "with \"mla\": expected qk_nope_head_dim + qk_rope_head_dim, " INT, head_dim);
    arch->head_dim = head_dim;
}

/* --- what is not plain --- */

const char *
model_arch_unusual(const ModelArch *arch)
{
    const ModelExperts *experts = &arch->experts;
    const struct {
        bool is_there;
        const char *what;
    } things[] = {
        {arch->n_kinds > 0, "layers of named kinds"},
        {arch->mixer == MODEL_MIXER_NONE, "layers without attention"},
        {arch->mixer != MODEL_MIXER_ATTENTION, "mixers with a state"},
        {arch->ffn != MODEL_FFN_MLP, "layers without an MLP"},
        {arch->window > 0, "windows"},
        {arch->chunk > 0, "chunked attention"},
        {arch->indexer.n_heads > 0, "an indexer of sparse attention"},
        {arch->sinks, "sinks"},
        {arch->output_gate != MODEL_OUTPUT_GATE_NONE, "gates of attention's result"},
        {arch->qk_norm_kind != MODEL_QK_NORM_HEAD, "norms of queries and keys but by head"},
        {arch->attention_cap > 0.0, "capped scores"},
        {arch->attention_scale > 0.0, "scores with a scale of their own"},
        {arch->residual_scale > 0.0, "scaled residuals"},
        {arch->rotary_dim > 0, "heads that are rotated in part"},
        {arch->v_dim > 0, "values of a size of their own"},
        {arch->positions != MODEL_POSITIONS_USUAL, "positions unlike the family's"},
        {arch->activation != MODEL_ACTIVATION_USUAL, "an activation unlike the family's"},
        {arch->norm != MODEL_NORM_USUAL, "norms unlike the family's"},
        {arch->norm_place != MODEL_NORM_PLACE_PRE, "norms behind attention and MLP"},
        {arch->blocks != MODEL_BLOCKS_SERIAL, "parallel blocks"},
        {arch->mlp_bias, "an MLP with biases"},
        {experts->latent > 0, "latent experts"},
        {experts->n_redundant > 0, "copies of hot experts"},
        {experts->shared_hidden > 0, "shared experts of a width of their own"},
        {experts->shared_gate, "a gate of shared experts"},
        {experts->router_bias || experts->bias, "experts with biases"},
        {arch->head_bias, "a head with a bias"},
        {arch->embedding_norm, "a normed embedding"},
        {arch->no_final_norm, "a head without a norm"},
        {arch->position_rows > 0, "a table of positions of a length of its own"},
        {arch->embedding_scale > 0.0 || arch->logits_scale > 0.0, "scaled embeddings or logits"},
        {arch->logits_cap > 0.0, "capped logits"},
        {arch->lora.rank > 0, "adapters (LoRA)"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(things); i++)
        if (things[i].is_there)
            return things[i].what;
    return NULL;
}

/* --- checks --- */

/* Where @key of a degas model stands; in foreign files, whose keys differ, the whole object. */
static const JsonValue *
place(JsonDoc *doc, const JsonValue *value, const char *outer, const char *key)
{
    if (json_has(doc, value, "model_type"))
        return value;
    if (outer != NULL && json_has(doc, value, outer))
        value = json_member(doc, value, outer);
    return json_is_object(value) && json_has(doc, value, key) ? json_member(doc, value, key)
                                                              : value;
}

static void
check_state(JsonDoc *doc, const JsonValue *value, const ModelArch *arch)
{
    const ModelState *state = &arch->state;

    if (state->n_heads == 0)
        json_fail(doc, place(doc, value, NULL, "mixer"), "mixer \"%s\": expected \"state\", too",
                  model_mixer_names[arch->mixer]);
    else if (state->n_heads % state->n_key_heads != 0)
        json_fail(doc, place(doc, value, "state", "n_key_heads"),
                  "n_key_heads " INT " does not divide the state's n_heads " INT,
                  state->n_key_heads, state->n_heads);
    else if (arch->mixer == MODEL_MIXER_MAMBA && state->rank == 0)
        json_fail(doc, place(doc, value, "state", "rank"), "mixer \"%s\": expected a rank",
                  model_mixer_names[arch->mixer]);
}

/* What a layer may not be. */
static void
check_layer(JsonDoc *doc, const JsonValue *value, const ModelArch *arch)
{
    const ModelExperts *experts = &arch->experts;

    if (model_has_state(arch))
        check_state(doc, value, arch);
    if (arch->mixer == MODEL_MIXER_NONE && arch->ffn == MODEL_FFN_NONE)
        json_fail(doc, place(doc, value, NULL, "mixer"),
                  "a layer with neither a mixer nor a feed-forward");
    else if (arch->n_heads % arch->n_kv_heads != 0)
        json_fail(doc, place(doc, value, NULL, "n_kv_heads"),
                  "n_kv_heads " INT " does not divide n_heads " INT, arch->n_kv_heads,
                  arch->n_heads);
    else if (model_positions(arch) == MODEL_POSITIONS_ROTARY && arch->mla.kv_lora_rank == 0 &&
             (arch->rotary_dim > 0 ? arch->rotary_dim : arch->head_dim) % 2 != 0)
        json_fail(doc, place(doc, value, NULL, arch->rotary_dim > 0 ? "rotary_dim" : "head_dim"),
                  "%s " INT ": expected an even number (rotary pairs)",
                  arch->rotary_dim > 0 ? "rotary_dim" : "head_dim",
                  arch->rotary_dim > 0 ? arch->rotary_dim : arch->head_dim);
    else if (arch->rotary_dim > arch->head_dim)
        json_fail(doc, place(doc, value, NULL, "rotary_dim"),
                  "rotary_dim " INT " is more than head_dim, " INT, arch->rotary_dim,
                  arch->head_dim);
    else if (arch->mla.qk_rope_head_dim % 2 != 0)
        json_fail(doc, place(doc, value, "mla", "qk_rope_head_dim"),
                  "qk_rope_head_dim " INT ": expected an even number (rotary pairs)",
                  arch->mla.qk_rope_head_dim);
    else if (arch->window > 0 && arch->chunk > 0)
        json_fail(doc, place(doc, value, NULL, "chunk"),
                  "both a window and chunks: expected one of them");
    else if (arch->window > arch->max_seq_len)
        json_fail(doc, place(doc, value, NULL, "window"),
                  "window " INT " is longer than max_seq_len, " INT, arch->window,
                  arch->max_seq_len);
    else if (arch->chunk > arch->max_seq_len)
        json_fail(doc, place(doc, value, NULL, "chunk"),
                  "chunk " INT " is longer than max_seq_len, " INT, arch->chunk, arch->max_seq_len);
    else if (experts->top_k > experts->n_experts)
        json_fail(doc, place(doc, value, "experts", "top_k"),
                  "top_k " INT " is more than the " INT " experts", experts->top_k,
                  experts->n_experts);
    else if (experts->n_shared == 0 && (experts->shared_hidden > 0 || experts->shared_gate))
        json_fail(doc, place(doc, value, "experts", "n_shared"),
                  "expected n_shared, since there is something of shared experts");
    else if (!(model_parameters_estimate(arch) < (double)MODEL_MAX_PARAMETERS))
        json_fail(doc, value, "too large: more than 9e15 parameters");
}

void
model_arch_check(JsonDoc *doc, const JsonValue *value, const ModelArch *arch)
{
    if (json_doc_failed(doc))
        return;
    if (arch->experts.first_dense_layers > arch->n_layers)
        json_fail(doc, place(doc, value, "experts", "first_dense_layers"),
                  "first_dense_layers " INT " is more than the " INT " layers",
                  arch->experts.first_dense_layers, arch->n_layers);
    if (arch->mtp.n > 0 && arch->vocab == 0)
        json_fail(doc, place(doc, value, "mtp", "n"),
                  "mtp.n " INT
                  ": MTP modules predict tokens, and the model has no vocabulary (vocab 0)",
                  arch->mtp.n);
    if (arch->n_kinds == 0)
        check_layer(doc, value, arch);
    g_autofree char *refusal = json_doc_failed(doc) ? NULL : model_lora_refusal(arch);
    if (refusal != NULL)
        json_fail(doc, place(doc, value, NULL, "lora"), "%s", refusal);
    for (int32_t i = 0; i < arch->n_kinds && !json_doc_failed(doc); i++) {
        const char *name = arch->kinds[i].name;
        const bool is_ours = json_has(doc, value, "kinds");
        check_layer(doc, is_ours ? place(doc, json_member(doc, value, "kinds"), NULL, name) : value,
                    &arch->kinds[i]);
    }
}

/* --- reading --- */

static void
read_format(JsonDoc *doc, const JsonValue *object)
{
    if (json_has(doc, object, "format") &&
        strcmp(json_string(doc, object, "format"), "degas-model") != 0)
        json_fail(doc, json_member(doc, object, "format"), "expected \"degas-model\"");
    json_int64_or(doc, object, "version", 1, 1, 1);
}

/* The objects within a layer; one that is null is not there, one that is absent stays as it is. */
static void
read_objects(JsonDoc *doc, const JsonValue *object, ModelArch *arch)
{
    for (size_t i = 0; i < G_N_ELEMENTS(layer_objects); i++) {
        const char *key = layer_objects[i].key;
        const JsonValue *inner = json_object_or_null(doc, object, key);

        if (!json_has(doc, object, key))
            continue;
        memset(object_of(arch, i), 0, layer_objects[i].size);
        if (inner == NULL)
            continue;
        arch->state.chunk =
            object_of(arch, i) == &arch->state ? MODEL_STATE_CHUNK : arch->state.chunk;
        if (object_of(arch, i) == &arch->experts)
            arch->experts.router_scale = 1;
        json_fields_read_object(doc, inner, layer_objects[i].fields, object_of(arch, i));
    }
    if (arch->state.n_key_heads == 0)
        arch->state.n_key_heads = arch->state.n_heads;
    if (arch->ffn == MODEL_FFN_NONE)
        arch->experts = (ModelExperts){0};
}

/* Reads what @fields names and is there into @arch. */
static void
read_given(JsonDoc *doc, const JsonValue *object, const JsonField *fields, ModelArch *arch)
{
    for (const JsonField *field = fields; field->key != NULL; field++) {
        JsonField one[2] = {*field, {.key = NULL}};
        one[0].flags |= JSON_OPTIONAL;
        json_fields_read(doc, object, one, arch);
    }
}

static void
read_kind(JsonDoc *doc, const JsonValue *object, const char *name, const ModelArch *arch,
          ModelArch *kind)
{
    *kind = *arch;
    kind->source = NULL;
    kind->kinds = NULL;
    kind->pattern = NULL;
    kind->n_kinds = 0;
    kind->mtp = (ModelMtp){0};
    kind->name = g_strdup(name);
    if (!json_is_object(object)) {
        json_fail(doc, object, "expected an object with keys of a layer");
        return;
    }
    read_given(doc, object, width_fields, kind);
    read_given(doc, object, layer_fields, kind);
    read_objects(doc, object, kind);
    if (json_has(doc, object, "n_heads") || json_has(doc, object, "mla"))
        kind->n_kv_heads = json_has(doc, object, "n_kv_heads") ? kind->n_kv_heads : 0;
    if (json_has(doc, object, "mla"))
        kind->head_dim = json_has(doc, object, "head_dim") ? kind->head_dim : 0;
    complete_heads(doc, object, kind);
    if (kind->experts.first_dense_layers > 0)
        json_fail(doc, object,
                  "first_dense_layers: with \"kinds\", \"layers\" says which layers "
                  "have experts");
    json_object_end(doc, object);
}

static bool
is_name(const char *name)
{
    if (!g_ascii_isalpha(*name) || strlen(name) > MODEL_MAX_KIND_NAME)
        return false;
    for (; *name != '\0'; name++)
        if (!g_ascii_isalnum(*name) && *name != '_' && *name != '-')
            return false;
    return true;
}

static void
read_pattern(JsonDoc *doc, const JsonValue *object, ModelArch *arch)
{
    const char *names[MODEL_MAX_NAMED_KINDS + 1] = {NULL};
    const char *text = json_string(doc, object, "layers");
    const JsonValue *mtp = json_object_or_null(doc, object, "mtp");
    const char *of_mtp = mtp == NULL ? "" : json_string_or(doc, mtp, "kind", "");
    g_autofree char *message = NULL;

    if (json_doc_failed(doc))
        return;
    for (int32_t i = 0; i < arch->n_kinds; i++)
        names[i] = arch->kinds[i].name;
    arch->pattern = model_pattern_read(text, names, arch->n_layers, &message);
    arch->n_pattern = arch->n_layers;
    if (arch->pattern == NULL)
        json_fail(doc, json_member(doc, object, "layers"), "%s", message);
    for (int32_t i = 0; i < arch->n_kinds && arch->pattern != NULL; i++)
        if (memchr(arch->pattern, i, (size_t)arch->n_pattern) == NULL &&
            strcmp(names[i], of_mtp) != 0)
            json_fail(doc, json_member(doc, json_member(doc, object, "kinds"), names[i]),
                      "no layer is of this kind");
}

static void
read_kinds(JsonDoc *doc, const JsonValue *object, ModelArch *arch)
{
    const JsonValue *kinds = json_object_or_null(doc, object, "kinds");

    if (kinds == NULL) {
        if (json_has(doc, object, "layers"))
            json_fail(doc, json_member(doc, object, "layers"),
                      "expected \"kinds\", too, whose names it has");
        return;
    }
    if (json_length(kinds) == 0 || json_length(kinds) > MODEL_MAX_NAMED_KINDS) {
        json_fail(doc, kinds, "expected 1 to %d kinds of layers", MODEL_MAX_NAMED_KINDS);
        return;
    }
    arch->kinds = g_new0(ModelArch, MODEL_MAX_NAMED_KINDS);
    JSON_EACH (kind, kinds, doc) {
        const char *name = json_key(kind);
        if (!is_name(name))
            json_fail(doc, kind,
                      "expected a name of at most %d letters, digits, - and _, a letter "
                      "first",
                      MODEL_MAX_KIND_NAME);
        read_kind(doc, json_member(doc, kinds, name), name, arch, &arch->kinds[arch->n_kinds++]);
    }
    if (!json_doc_failed(doc))
        read_pattern(doc, object, arch);
    model_arch_settle(arch);
}

/* After the kinds, of which it may name one. */
static void
read_mtp(JsonDoc *doc, const JsonValue *object, ModelArch *arch)
{
    const JsonValue *mtp = json_object_or_null(doc, object, "mtp");
    const char *names[MODEL_MAX_KINDS + 1] = {NULL};

    if (mtp == NULL)
        return;
    for (int32_t i = 0; i < model_n_kinds(arch); i++)
        names[i] = model_kind_name(arch, i);
    json_fields_read(doc, mtp, mtp_fields, arch);
    if (json_has(doc, mtp, "kind"))
        arch->mtp.kind = 1 + (int32_t)json_enum(doc, mtp, "kind", names);
    json_object_end(doc, mtp);
}

static void
read_lora(JsonDoc *doc, const JsonValue *object, ModelArch *arch)
{
    const JsonValue *lora = json_object_or_null(doc, object, "lora");

    if (lora == NULL)
        return;
    arch->lora.rank = json_int64(doc, lora, "rank", 1, MODEL_MAX_LORA_RANK);
    arch->lora.modules = MODEL_LORA_USUAL;
    if (json_has(doc, lora, "modules")) {
        g_autofree char *message = NULL;

        arch->lora.modules = model_lora_read_modules(json_string(doc, lora, "modules"), &message);
        if (message != NULL)
            json_fail(doc, json_member(doc, lora, "modules"), "%s", message);
    }
    json_object_end(doc, lora);
}

void
model_arch_settle(ModelArch *arch)
{
    for (int32_t i = 0; i < arch->n_kinds && arch->experts.n_experts == 0; i++)
        arch->experts = arch->kinds[i].experts;
}

ModelArch *
model_arch_read(JsonDoc *doc, const JsonValue *object)
{
    ModelArch *arch = g_new0(ModelArch, 1);

    read_format(doc, object);
    arch->name = g_strdup("custom");
    json_fields_read(doc, object, name_fields, arch);
    arch->tied_embeddings = arch->qkv_bias = arch->family == MODEL_FAMILY_GPT;
    arch->norm_epsilon = MODEL_USUAL_NORM_EPSILON;
    arch->rope_base = MODEL_USUAL_ROPE_BASE;
    json_fields_read(doc, object, stack_fields, arch);
    json_fields_read(doc, object, width_fields, arch);
    json_fields_read(doc, object, end_fields, arch);
    json_fields_read(doc, object, layer_fields, arch);
    read_objects(doc, object, arch);
    complete_heads(doc, object, arch);
    if (arch->ffn_hidden == 0)
        arch->ffn_hidden = usual_ffn_hidden(arch);
    if (!json_doc_failed(doc))
        read_kinds(doc, object, arch);
    if (!json_doc_failed(doc))
        read_mtp(doc, object, arch);
    if (!json_doc_failed(doc))
        read_lora(doc, object, arch);
    json_object_end(doc, object);
    model_arch_check(doc, object, arch);
    return arch;
}

/* --- writing --- */

/* Writes those of the members that differ from @base's. */
static void
write_differing(JsonWriter *writer, const JsonField *fields, const ModelArch *arch,
                const ModelArch *base)
{
    for (const JsonField *field = fields; field->key != NULL; field++) {
        JsonField one[2] = {*field, {.key = NULL}};
        const char *a = (const char *)arch + field->offset, *b = (const char *)base + field->offset;
        one[0].flags &= ~(unsigned)JSON_SPARSE;
        if (memcmp(a, b, field->size) != 0)
            json_fields_write(writer, one, arch);
    }
}

static void
write_kind(JsonWriter *writer, const ModelArch *kind, const ModelArch *arch)
{
    static const char nothing[sizeof(ModelArch)];

    json_write_object_inline(writer, kind->name);
    write_differing(writer, width_fields, kind, arch);
    write_differing(writer, layer_fields, kind, arch);
    for (size_t i = 0; i < G_N_ELEMENTS(layer_objects); i++) {
        const JsonField *fields = layer_objects[i].fields;
        g_autofree char *difference =
            difference_in("", fields, object_of(kind, i), object_of(arch, i));
        g_autofree char *there = difference_in("", fields, object_of(kind, i), nothing);
        if (difference != NULL && there != NULL)
            json_fields_write_object(writer, layer_objects[i].key, fields, object_of(kind, i));
        else if (difference != NULL)
            json_write_null(writer, layer_objects[i].key);
    }
    json_write_object_end(writer);
}

static void
write_mtp(JsonWriter *writer, const ModelArch *arch)
{
    if (arch->mtp.n == 0 && arch->mtp.published == 0)
        return;
    json_write_object_inline(writer, "mtp");
    json_fields_write(writer, mtp_fields, arch);
    if (arch->mtp.kind > 0)
        json_write_string(writer, "kind", model_kind_name(arch, arch->mtp.kind - 1));
    json_write_object_end(writer);
}

static void
write_lora(JsonWriter *writer, const ModelArch *arch)
{
    if (arch->lora.rank == 0)
        return;
    g_autofree char *modules = model_lora_write_modules(arch->lora.modules);
    json_write_object_inline(writer, "lora");
    json_write_int64(writer, "rank", arch->lora.rank);
    json_write_string(writer, "modules", modules);
    json_write_object_end(writer);
}

static void
write_kinds(JsonWriter *writer, const ModelArch *arch)
{
    const char *names[MODEL_MAX_NAMED_KINDS + 1] = {NULL};
    g_autofree uint8_t *pattern = g_new(uint8_t, (size_t)arch->n_layers);
    int64_t n[MODEL_MAX_KINDS];

    /* A model that was cut short may have none of some. */
    model_count_kinds(arch, n);
    json_write_object(writer, "kinds");
    for (int32_t i = 0; i < arch->n_kinds; i++) {
        names[i] = arch->kinds[i].name;
        if (n[i] > 0 || i == arch->mtp.kind - 1)
            write_kind(writer, &arch->kinds[i], arch);
    }
    json_write_object_end(writer);
    for (int64_t layer = 0; layer < arch->n_layers; layer++)
        pattern[layer] = (uint8_t)model_layer_kind(arch, layer);
    g_autofree char *text = model_pattern_write(pattern, arch->n_layers, names);
    json_write_string(writer, "layers", text);
}

void
model_arch_write(JsonWriter *writer, const char *key, const ModelArch *arch)
{
    static const char nothing[sizeof(ModelArch)];

    g_return_if_fail(writer != NULL && arch != NULL);

    json_write_object(writer, key);
    json_write_string(writer, "format", "degas-model");
    json_write_int64(writer, "version", 1);
    json_fields_write(writer, name_fields, arch);
    json_fields_write(writer, stack_fields, arch);
    json_fields_write(writer, width_fields, arch);
    json_fields_write(writer, end_fields, arch);
    json_fields_write(writer, layer_fields, arch);
    for (size_t i = 0; i < G_N_ELEMENTS(layer_objects); i++) {
        g_autofree char *there =
            difference_in("", layer_objects[i].fields, object_of(arch, i), nothing);
        if (there != NULL)
            json_fields_write_object(writer, layer_objects[i].key, layer_objects[i].fields,
                                     object_of(arch, i));
    }
    write_mtp(writer, arch);
    write_lora(writer, arch);
    if (arch->n_kinds > 0)
        write_kinds(writer, arch);
    json_write_object_end(writer);
}
