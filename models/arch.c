#include "models/arch.h"

G_DEFINE_QUARK(model_arch_error, model_arch_error)

const char *const model_family_names[MODEL_FAMILY_N + 1] = {"gpt", "llama", NULL};

void
model_arch_free(ModelArch *arch)
{
    if (arch == NULL)
        return;
    g_free(arch->name);
    g_free(arch->source);
    g_free(arch);
}

ModelArch *
model_arch_copy(const ModelArch *arch)
{
    ModelArch *copy;

    g_return_val_if_fail(arch != NULL, NULL);

    copy = g_new(ModelArch, 1);
    *copy = *arch;
    copy->name = g_strdup(arch->name);
    copy->source = g_strdup(arch->source);
    return copy;
}

char *
model_arch_difference(const ModelArch *arch, const ModelArch *other)
{
    const struct {
        const char *name;
        int64_t a, b;
    } fields[] = {
        {"n_layers", arch->n_layers, other->n_layers},
        {"hidden", arch->hidden, other->hidden},
        {"n_heads", arch->n_heads, other->n_heads},
        {"n_kv_heads", arch->n_kv_heads, other->n_kv_heads},
        {"head_dim", arch->head_dim, other->head_dim},
        {"ffn_hidden", arch->ffn_hidden, other->ffn_hidden},
        {"vocab", arch->vocab, other->vocab},
        {"tied_embeddings", arch->tied_embeddings, other->tied_embeddings},
        {"qkv_bias", arch->qkv_bias, other->qkv_bias},
        {"qk_norm", arch->qk_norm, other->qk_norm},
        {"experts.n_experts", arch->experts.n_experts, other->experts.n_experts},
        {"experts.top_k", arch->experts.top_k, other->experts.top_k},
        {"experts.ffn_hidden", arch->experts.ffn_hidden, other->experts.ffn_hidden},
        {"experts.n_shared", arch->experts.n_shared, other->experts.n_shared},
        {"experts.first_dense_layers", arch->experts.first_dense_layers,
         other->experts.first_dense_layers},
        {"mla.q_lora_rank", arch->mla.q_lora_rank, other->mla.q_lora_rank},
        {"mla.kv_lora_rank", arch->mla.kv_lora_rank, other->mla.kv_lora_rank},
        {"mla.qk_nope_head_dim", arch->mla.qk_nope_head_dim, other->mla.qk_nope_head_dim},
        {"mla.qk_rope_head_dim", arch->mla.qk_rope_head_dim, other->mla.qk_rope_head_dim},
        {"mla.v_head_dim", arch->mla.v_head_dim, other->mla.v_head_dim},
    };

    if (arch->family != other->family)
        return g_strdup_printf("family is %s, not %s", model_family_names[arch->family],
                               model_family_names[other->family]);
    for (size_t i = 0; i < G_N_ELEMENTS(fields); i++)
        if (fields[i].a != fields[i].b)
            return g_strdup_printf("%s is %" G_GINT64_FORMAT ", not %" G_GINT64_FORMAT,
                                   fields[i].name, fields[i].a, fields[i].b);
    return NULL;
}

bool
model_layer_is_moe(const ModelArch *arch, int64_t layer)
{
    return arch->experts.n_experts > 0 && layer >= arch->experts.first_dense_layers;
}

/* --- parameters --- */

static int64_t
ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* LayerNorm has a scale and a shift, RMSNorm a scale. */
static int64_t
norm_parameters(const ModelArch *arch)
{
    return arch->family == MODEL_FAMILY_GPT ? 2 * arch->hidden : arch->hidden;
}

static int64_t
mla_parameters(const ModelArch *arch, int64_t heads)
{
    const ModelMla *mla = &arch->mla;
    int64_t qk_dim = mla->qk_nope_head_dim + mla->qk_rope_head_dim;
    int64_t n = 0;

    if (mla->q_lora_rank > 0) {
        n += arch->hidden * mla->q_lora_rank + mla->q_lora_rank; /* down, norm */
        n += mla->q_lora_rank * heads * qk_dim;
    } else {
        n += arch->hidden * heads * qk_dim;
    }
    n += arch->hidden * (mla->kv_lora_rank + mla->qk_rope_head_dim) + mla->kv_lora_rank;
    n += mla->kv_lora_rank * heads * (mla->qk_nope_head_dim + mla->v_head_dim);
    n += heads * mla->v_head_dim * arch->hidden;
    return n;
}

static int64_t
attention_parameters(const ModelArch *arch, int64_t tp)
{
    int64_t heads = ceil_div(arch->n_heads, tp);
    int64_t kv_heads = ceil_div(arch->n_kv_heads, tp);
    int64_t qkv_columns = (heads + 2 * kv_heads) * arch->head_dim;
    int64_t n;

    if (arch->mla.kv_lora_rank > 0)
        return mla_parameters(arch, heads);
    n = arch->hidden * qkv_columns + heads * arch->head_dim * arch->hidden;
    if (arch->qkv_bias)
        n += qkv_columns;
    if (arch->qk_norm)
        n += 2 * arch->head_dim;
    if (arch->family == MODEL_FAMILY_GPT)
        n += arch->hidden; /* bias of the projection */
    return n;
}

/* An MLP of @width columns on this rank: GELU of one product, or SwiGLU of two. */
static int64_t
mlp_parameters(const ModelArch *arch, int64_t width)
{
    if (arch->family == MODEL_FAMILY_GPT)
        return 2 * arch->hidden * width + width + arch->hidden;
    return 3 * arch->hidden * width;
}

int64_t
model_expert_parameters(const ModelArch *arch, int64_t layer, int64_t ep, int64_t etp)
{
    g_return_val_if_fail(arch != NULL && ep >= 1 && etp >= 1, 0);

    if (!model_layer_is_moe(arch, layer))
        return 0;
    return ceil_div(arch->experts.n_experts, ep) *
           mlp_parameters(arch, ceil_div(arch->experts.ffn_hidden, etp));
}

static int64_t
layer_parameters(const ModelArch *arch, int64_t layer, int64_t tp, int64_t ep, int64_t etp)
{
    const ModelExperts *experts = &arch->experts;
    int64_t n = 2 * norm_parameters(arch) + attention_parameters(arch, tp);

    if (!model_layer_is_moe(arch, layer))
        return n + mlp_parameters(arch, ceil_div(arch->ffn_hidden, tp));
    n += arch->hidden * experts->n_experts; /* router */
    if (experts->n_shared > 0)
        n += mlp_parameters(arch, ceil_div(experts->n_shared * experts->ffn_hidden, tp));
    return n + model_expert_parameters(arch, layer, ep, etp);
}

int64_t
model_part_parameters(const ModelArch *arch, ModelPart part, int64_t layer, int64_t tp, int64_t ep,
                      int64_t etp, bool tied_copy)
{
    int64_t table;

    g_return_val_if_fail(arch != NULL && tp >= 1 && ep >= 1 && etp >= 1, 0);

    table = ceil_div(arch->vocab, tp) * arch->hidden;
    switch (part) {
    case MODEL_PART_EMBEDDING:
        if (arch->vocab > 0 && arch->family == MODEL_FAMILY_GPT)
            table += arch->max_seq_len * arch->hidden;
        return table;
    case MODEL_PART_LAYER:
        return layer_parameters(arch, layer, tp, ep, etp);
    case MODEL_PART_HEAD:
        if (arch->vocab == 0)
            return 0;
        return norm_parameters(arch) + (!arch->tied_embeddings || tied_copy ? table : 0);
    }
    g_return_val_if_reached(0);
}

/* The layers are of two kinds only: before and from first_dense_layers on. */
static int64_t
n_moe_layers(const ModelArch *arch)
{
    return arch->experts.n_experts > 0 ? arch->n_layers - arch->experts.first_dense_layers : 0;
}

int64_t
model_parameters(const ModelArch *arch)
{
    int64_t n_moe, n;

    g_return_val_if_fail(arch != NULL, 0);

    n_moe = n_moe_layers(arch);
    n = model_part_parameters(arch, MODEL_PART_EMBEDDING, 0, 1, 1, 1, false) +
        model_part_parameters(arch, MODEL_PART_HEAD, 0, 1, 1, 1, false);
    if (n_moe < arch->n_layers)
        n += (arch->n_layers - n_moe) * layer_parameters(arch, 0, 1, 1, 1);
    if (n_moe > 0)
        n += n_moe * layer_parameters(arch, arch->n_layers - 1, 1, 1, 1);
    return n;
}

int64_t
model_active_parameters(const ModelArch *arch)
{
    int64_t idle_experts;

    g_return_val_if_fail(arch != NULL, 0);

    idle_experts = arch->experts.n_experts - arch->experts.top_k;
    return model_parameters(arch) -
           n_moe_layers(arch) * idle_experts * mlp_parameters(arch, arch->experts.ffn_hidden);
}

/* --- FLOPs --- */

static double
part_flops(const ModelArch *arch, ModelPart part, int64_t layer, int64_t seq_len)
{
    const ModelShape shape = {
        .batch = 1,
        .tokens = seq_len,
        .tp = 1,
        .cp = 1,
        .ep = 1,
        .dtype = DTYPE_BF16,
        .expert_imbalance = 1.0,
    };
    ModelOp ops[MODEL_MAX_OPS];
    size_t n_ops = model_ops(arch, part, layer, &shape, ops);
    double flops = 0.0;

    for (size_t i = 0; i < n_ops; i++)
        flops += ops[i].forward_flops;
    return flops;
}

double
model_flops_per_iteration(const ModelArch *arch, double n_sequences, int64_t seq_len)
{
    int64_t n_moe;
    double flops;

    g_return_val_if_fail(arch != NULL && seq_len >= 1, 0.0);

    n_moe = n_moe_layers(arch);
    flops = part_flops(arch, MODEL_PART_HEAD, 0, seq_len);
    if (n_moe < arch->n_layers)
        flops += (double)(arch->n_layers - n_moe) * part_flops(arch, MODEL_PART_LAYER, 0, seq_len);
    if (n_moe > 0)
        flops += (double)n_moe * part_flops(arch, MODEL_PART_LAYER, arch->n_layers - 1, seq_len);
    return 3.0 * n_sequences * flops;
}

/* --- shapes --- */

/* One divisor of the model; @tp may also be a multiple of it where @or_multiple. */
typedef struct {
    const char *what;
    int64_t size;
    bool or_multiple;
} TpLimit;

static bool
tp_limit_holds(const TpLimit *limit, int64_t tp)
{
    return limit->size % tp == 0 || (limit->or_multiple && tp % limit->size == 0);
}

/* Returns: (owned) "1, 2, 4": the degrees up to @max that satisfy all limits, at most 16 named. */
static char *
legal_tp(const TpLimit *limits, size_t n_limits, int64_t max)
{
    g_autoptr(GString) text = g_string_new(NULL);
    int n_named = 0;

    for (int64_t tp = 1; tp <= max && n_named < 16; tp++) {
        bool holds = true;

        for (size_t i = 0; i < n_limits && holds; i++)
            holds = tp_limit_holds(&limits[i], tp);
        if (holds) {
            g_string_append_printf(text, "%s%" G_GINT64_FORMAT, n_named > 0 ? ", " : "", tp);
            n_named++;
        }
    }
    return g_string_free(g_steal_pointer(&text), FALSE);
}

static bool
tp_check(const ModelArch *arch, int64_t tp, GError **error)
{
    const ModelExperts *experts = &arch->experts;
    TpLimit limits[4];
    size_t n = 0;

    limits[n++] = (TpLimit){"heads", arch->n_heads, false};
    limits[n++] = (TpLimit){"key/value heads", arch->n_kv_heads, true};
    if (n_moe_layers(arch) < arch->n_layers)
        limits[n++] = (TpLimit){"MLP columns", arch->ffn_hidden, false};
    if (experts->n_experts > 0 && experts->n_shared > 0)
        limits[n++] =
            (TpLimit){"shared experts' columns", experts->n_shared * experts->ffn_hidden, false};
    for (size_t i = 0; i < n; i++) {
        if (!tp_limit_holds(&limits[i], tp)) {
            g_autofree char *legal = legal_tp(limits, n, MIN(arch->n_heads, 4096));

            g_set_error(error, MODEL_ARCH_ERROR, MODEL_ARCH_ERROR_SHAPE,
                        "tp %" G_GINT64_FORMAT " does not divide the %" G_GINT64_FORMAT
                        " %s of %s; legal: %s",
                        tp, limits[i].size, limits[i].what, arch->name, legal);
            return false;
        }
    }
    return true;
}

static bool
ep_check(const ModelArch *arch, int64_t ep, GError **error)
{
    int64_t n_experts = arch->experts.n_experts;

    if (ep == 1 || (n_experts > 0 && n_experts % ep == 0))
        return true;
    if (n_experts == 0) {
        g_set_error(error, MODEL_ARCH_ERROR, MODEL_ARCH_ERROR_SHAPE,
                    "ep %" G_GINT64_FORMAT ": %s has no experts; legal: 1", ep, arch->name);
    } else {
        const TpLimit limit = {"experts", n_experts, false};
        g_autofree char *legal = legal_tp(&limit, 1, n_experts);

        g_set_error(error, MODEL_ARCH_ERROR, MODEL_ARCH_ERROR_SHAPE,
                    "ep %" G_GINT64_FORMAT " does not divide the %" G_GINT64_FORMAT
                    " experts of %s; legal: %s",
                    ep, n_experts, arch->name, legal);
    }
    return false;
}

/* Shares of tokens become shares of heads. */
static bool
cp_check(const ModelArch *arch, const ModelShape *shape, GError **error)
{
    if (!shape->all_to_all || (arch->n_heads % (shape->tp * shape->cp) == 0 &&
                               arch->n_kv_heads % (shape->tp * shape->cp) == 0))
        return true;
    g_set_error(error, MODEL_ARCH_ERROR, MODEL_ARCH_ERROR_SHAPE,
                "cp %" G_GINT64_FORMAT " by all-to-all: tp * cp = %" G_GINT64_FORMAT
                " must divide the %" G_GINT64_FORMAT " heads and %" G_GINT64_FORMAT
                " key/value heads of %s",
                shape->cp, shape->tp * shape->cp, arch->n_heads, arch->n_kv_heads, arch->name);
    return false;
}

static bool
expert_tp_check(const ModelArch *arch, const ModelShape *shape, GError **error)
{
    const int64_t etp = MAX(1, shape->etp);

    if (shape->tp % etp == 0 &&
        (arch->experts.n_experts == 0 || arch->experts.ffn_hidden % etp == 0))
        return true;
    g_set_error(error, MODEL_ARCH_ERROR, MODEL_ARCH_ERROR_SHAPE,
                "expert tp %" G_GINT64_FORMAT " does not divide tp %" G_GINT64_FORMAT
                " and the %" G_GINT64_FORMAT " columns of an expert of %s",
                etp, shape->tp, arch->experts.ffn_hidden, arch->name);
    return false;
}

static bool
size_check(const char *what, int64_t value, int64_t min, int64_t max, GError **error)
{
    if (value >= min && value <= max)
        return true;
    g_set_error(error, MODEL_ARCH_ERROR, MODEL_ARCH_ERROR_SHAPE,
                "%s %" G_GINT64_FORMAT ": expected %" G_GINT64_FORMAT " to %" G_GINT64_FORMAT, what,
                value, min, max);
    return false;
}

/* Whether no count of bytes of one layer reaches saturation. */
static bool
bytes_check(const ModelArch *arch, const ModelShape *shape, GError **error)
{
    const struct {
        ModelPart part;
        int64_t layer;
    } parts[] = {
        {MODEL_PART_EMBEDDING, 0},
        {MODEL_PART_LAYER, 0},
        {MODEL_PART_LAYER, arch->n_layers - 1},
        {MODEL_PART_HEAD, 0},
    };
    ModelOp ops[MODEL_MAX_OPS];

    for (size_t i = 0; i < G_N_ELEMENTS(parts); i++) {
        size_t n_ops = model_ops(arch, parts[i].part, parts[i].layer, shape, ops);
        double bytes = 0.0;

        for (size_t j = 0; j < n_ops; j++)
            bytes += (double)ops[j].forward_bytes + (double)ops[j].backward_bytes +
                     (double)ops[j].saved_bytes + (double)ops[j].comm_bytes;
        if (bytes >= (double)MODEL_MAX_BYTES) {
            g_set_error(error, MODEL_ARCH_ERROR, MODEL_ARCH_ERROR_SHAPE,
                        "%" G_GINT64_FORMAT " sequences of %" G_GINT64_FORMAT
                        " tokens: one layer of %s would touch more than 4.5e15 bytes",
                        shape->batch, shape->context + shape->tokens, arch->name);
            return false;
        }
    }
    return true;
}

bool
model_shape_check(const ModelArch *arch, const ModelShape *shape, GError **error)
{
    g_return_val_if_fail(arch != NULL && shape != NULL, false);

    if (!size_check("micro-batch", shape->batch, 1, MODEL_MAX_SEQ_LEN, error) ||
        !size_check("tokens", shape->tokens, 1, MODEL_MAX_SEQ_LEN, error) ||
        !size_check("context", shape->context, 0, MODEL_MAX_SEQ_LEN, error) ||
        !size_check("tp", shape->tp, 1, MODEL_MAX_HEADS, error) ||
        !size_check("cp", shape->cp, 1, MODEL_MAX_SEQ_LEN, error) ||
        !size_check("ep", shape->ep, 1, MODEL_MAX_EXPERTS, error))
        return false;
    /* Written so that NaN fails. */
    if (!(shape->expert_imbalance >= 1.0 && shape->expert_imbalance <= 1e6)) {
        g_set_error_literal(error, MODEL_ARCH_ERROR, MODEL_ARCH_ERROR_SHAPE,
                            "expert imbalance: expected a factor from 1 to 1e6");
        return false;
    }
    return tp_check(arch, shape->tp, error) && ep_check(arch, shape->ep, error) &&
           cp_check(arch, shape, error) && expert_tp_check(arch, shape, error) &&
           bytes_check(arch, shape, error);
}
