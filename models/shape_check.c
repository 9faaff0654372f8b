/* Which degrees divide a model; model_shape_check() of models/ops.h. */
#include <math.h>

#include "base/units.h"
#include "models/ops.h"

#define refuse(error, ...)                                                                         \
    (g_set_error(error, MODEL_ARCH_ERROR, MODEL_ARCH_ERROR_SHAPE, __VA_ARGS__), false)

#define MAX_TP_LIMITS 6

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
            g_string_append_printf(text, "%s" INT, n_named > 0 ? ", " : "", tp);
            n_named++;
        }
    }
    return g_string_free(g_steal_pointer(&text), FALSE);
}

/* What tp divides in layers like @arch. */
static size_t
tp_limits(const ModelArch *arch, TpLimit limits[MAX_TP_LIMITS])
{
    size_t n = 0;

    if (model_has_attention(arch)) {
        limits[n++] = (TpLimit){"heads", arch->n_heads, false};
        limits[n++] = (TpLimit){"key/value heads", arch->n_kv_heads, true};
    }
    if (model_has_state(arch)) {
        limits[n++] = (TpLimit){"heads of the state", arch->state.n_heads, false};
        limits[n++] = (TpLimit){"key heads of the state", arch->state.n_key_heads, true};
    }
    if (arch->ffn != MODEL_FFN_NONE && arch->experts.n_experts == 0)
        limits[n++] = (TpLimit){"MLP columns", arch->ffn_hidden, false};
    if (model_shared_hidden(&arch->experts) > 0)
        limits[n++] =
            (TpLimit){"shared experts' columns", model_shared_hidden(&arch->experts), false};
    return n;
}

/* Has limits of all kinds of layers, those with attention first. */
static bool
tp_check(const ModelArch *arch, int64_t tp, GError **error)
{
    TpLimit limits[MODEL_MAX_KINDS * MAX_TP_LIMITS];
    size_t n = 0;

    for (int32_t i = 0; i < model_n_kinds(arch); i++) {
        const ModelArch kind = model_kind_arch(arch, i);
        n += tp_limits(&kind, limits + n);
    }
    for (size_t i = 0; i < n; i++) {
        if (!tp_limit_holds(&limits[i], tp)) {
            g_autofree char *legal = legal_tp(limits, n, MIN(limits[0].size, 4096));

            return refuse(error, "tp " INT " does not divide the " INT " %s of %s; legal: %s", tp,
                          limits[i].size, limits[i].what, arch->name, legal);
        }
    }
    return true;
}

static bool
ep_check(const ModelArch *arch, int64_t ep, GError **error)
{
    TpLimit limits[MODEL_MAX_KINDS];
    size_t n = 0;

    for (int32_t i = 0; i < model_n_kinds(arch); i++) {
        const int64_t n_experts = model_kind_arch(arch, i).experts.n_experts;
        if (n_experts > 0)
            limits[n++] = (TpLimit){"experts", n_experts, false};
    }
    if (n == 0 && ep > 1)
        return refuse(error, "ep " INT ": %s has no experts; legal: 1", ep, arch->name);
    for (size_t i = 0; i < n; i++) {
        if (limits[i].size % ep == 0)
            continue;
        g_autofree char *legal = legal_tp(limits, n, limits[i].size);
        return refuse(error, "ep " INT " does not divide the " INT " experts of %s; legal: %s", ep,
                      limits[i].size, arch->name, legal);
    }
    return true;
}

/* Whether @n local heads can be shared by @cp ranks, or each of them can be for several ranks. */
static bool
divides_either(int64_t n, int64_t cp)
{
    return n % cp == 0 || cp % n == 0;
}

/* What a scan of @kind demands where cp ranks exchange heads for tokens: a share of the heads for each, and keys
 * that these share  [Megatron-Core: mamba_context_parallel.py].  Ranks that pass states on have all heads. */
static bool
scan_check(const ModelArch *arch, const ModelArch *kind, const ModelShape *shape, GError **error)
{
    const ModelState *state = &kind->state;
    const int64_t parts = shape->tp * shape->cp;

    if (shape->cp == 1 || !model_has_state(kind) || model_passes_states(shape))
        return true;
    if (state->n_heads % parts != 0)
        return refuse(
            error, "cp " INT ": tp * cp = " INT " must divide the " INT " heads of the state of %s",
            shape->cp, parts, state->n_heads, arch->name);
    if (!divides_either(MAX(1, state->n_key_heads / shape->tp), shape->cp))
        return refuse(error,
                      "cp " INT ": tp * cp = " INT " must divide the " INT
                      " key heads of the state of %s, or be a multiple of them",
                      shape->cp, parts, state->n_key_heads, arch->name);
    return true;
}

/* Shares of tokens become shares of heads: where attention is asked to, and around scans. */
static bool
cp_check(const ModelArch *arch, const ModelShape *shape, GError **error)
{
    const int64_t parts = shape->tp * shape->cp;

    for (int32_t i = 0; i < model_n_kinds(arch); i++) {
        const ModelArch kind = model_kind_arch(arch, i);
        if (shape->all_to_all && model_has_attention(&kind) &&
            (kind.n_heads % parts != 0 || kind.n_kv_heads % parts != 0))
            return refuse(error,
                          "cp " INT " by all-to-all: tp * cp = " INT " must divide the " INT
                          " heads and " INT " key/value heads of %s",
                          shape->cp, parts, kind.n_heads, kind.n_kv_heads, arch->name);
        if (!scan_check(arch, &kind, shape, error))
            return false;
    }
    return true;
}

static bool
expert_tp_check(const ModelArch *arch, const ModelShape *shape, GError **error)
{
    const int64_t etp = MAX(1, shape->etp);

    for (int32_t i = 0; i < model_n_kinds(arch); i++) {
        const ModelExperts experts = model_kind_arch(arch, i).experts;
        if (shape->tp % etp != 0 || (experts.n_experts > 0 && experts.ffn_hidden % etp != 0))
            return refuse(error,
                          "expert tp " INT " does not divide tp " INT " and the " INT
                          " columns of an expert of %s",
                          etp, shape->tp, experts.ffn_hidden, arch->name);
    }
    return true;
}

/* Whether no count of bytes of one layer reaches saturation. */
static bool
bytes_check(const ModelArch *arch, const ModelShape *shape, GError **error)
{
    ModelOp ops[MODEL_MAX_OPS];

    /* The ends, then the kinds. */
    for (int32_t i = -2; i < model_n_kinds(arch); i++) {
        const ModelPart part = i == -2   ? MODEL_PART_EMBEDDING
                               : i == -1 ? MODEL_PART_HEAD
                                         : MODEL_PART_LAYER;
        const int64_t layer = i < 0 ? 0 : model_first_of_kind(arch, i);
        size_t n_ops = layer < 0 ? 0 : model_ops(arch, part, layer, shape, ops);
        double bytes = 0.0;

        for (size_t j = 0; j < n_ops; j++)
            bytes += (double)ops[j].forward_bytes + (double)ops[j].backward_bytes +
                     (double)ops[j].saved_bytes + (double)ops[j].comm_bytes;
        if (bytes >= (double)MODEL_MAX_BYTES)
            return refuse(error,
                          INT " sequences of " INT
                              " tokens: one layer of %s would touch more than 4.5e15 bytes",
                          shape->batch, shape->context + shape->tokens, arch->name);
    }
    return true;
}

bool
model_shape_check(const ModelArch *arch, const ModelShape *shape, GError **error)
{
    g_return_val_if_fail(arch != NULL && shape != NULL, false);

    const struct {
        const char *what;
        int64_t value, min, max;
    } sizes[] = {
        {"micro-batch", shape->batch, 1, MODEL_MAX_SEQ_LEN},
        {"tokens", shape->tokens, 1, MODEL_MAX_SEQ_LEN},
        {"context", shape->context, 0, MODEL_MAX_SEQ_LEN},
        {"tp", shape->tp, 1, MODEL_MAX_HEADS},
        {"cp", shape->cp, 1, MODEL_MAX_SEQ_LEN},
        {"ep", shape->ep, 1, MODEL_MAX_EXPERTS},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++)
        if (sizes[i].value < sizes[i].min || sizes[i].value > sizes[i].max)
            return refuse(error, "%s " INT ": expected " INT " to " INT, sizes[i].what,
                          sizes[i].value, sizes[i].min, sizes[i].max);
    /* Written so that NaN fails. */
    if (!(shape->expert_imbalance >= 1.0 && shape->expert_imbalance <= 1e6))
        return refuse(error, "expert imbalance: expected a factor from 1 to 1e6");
    return tp_check(arch, shape->tp, error) && ep_check(arch, shape->ep, error) &&
           cp_check(arch, shape, error) && expert_tp_check(arch, shape, error) &&
           bytes_check(arch, shape, error);
}
