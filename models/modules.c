#include "models/modules.h"

#include <string.h>

/* What a module frees of the activations that an op keeps. */
typedef enum {
    FREES_INPUT = 1, /* what its weight's gradient reads */
    FREES_REST = 2,  /* everything else but K and V */
    FREES_KEYS = 4,  /* K and V, unless later slices read them */
    FREES_ALL = FREES_INPUT | FREES_REST,
} Frees;

typedef struct {
    const char *const *again; /* (nullable) ops that run again */
    const char *const
        *until_kept; /* (nullable) ... where the repetition ends with the last result that
                               the backward reads, as degas's executor does (shape->row_blocks) */
    const char *const
        *freed;  /* (nullable) ops that keep less; a layer without them has no such module */
    Frees frees; /* ... namely without this */
    bool core;   /* both are those with core_attention */
} Module;

static const char *const norms[] = {"norm1", "norm2", NULL};
/* The first products behind them, each of which keeps the norm's result: of both halves; of the second. */
static const char *const behind_norms[] = {"qkv",    "q",      "kv_down", "mixer_in",
                                           "mlp_up", "router", NULL};
static const char *const behind_norm2[] = {"mlp_up", "router", NULL};
static const char *const mlp[] = {"mlp_input", "mlp_up",     "mlp_gate", "mlp_activation",
                                  "mlp_down",  "mlp_output", NULL};
static const char *const mlp_until_kept[] = {"mlp_input", "mlp_up", "mlp_gate", "mlp_activation",
                                             NULL};
static const char *const shared_until_kept[] = {"shared_input", "shared_up", "shared_activation",
                                                NULL};
static const char *const in_mlp[] = {"mlp_activation", "mlp_down", NULL};
static const char *const shared[] = {
    "shared_input", "shared_up",   "shared_gate",   "shared_activation",
    "shared_gated", "shared_down", "shared_output", NULL};
static const char *const moe[] = {
    "router",         "route",       "latent_down",     "permute",
    "map_gather",     "map_read",    "dispatch",        "sort",
    "experts_gather", "pad",         "experts_up",      "experts_activation",
    "experts_down",   "unpad",       "experts_scatter", "sort_back",
    "combine",        "unpermute",   "latent_up",       "experts_merge",
    "shared_input",   "shared_up",   "shared_gate",     "shared_activation",
    "shared_gated",   "shared_down", "shared_output",   NULL};
/* The router keeps the input of the whole. */
static const char *const in_moe[] = {
    "route",     "latent_down",       "experts_up",   "experts_activation", "experts_down",
    "latent_up", "shared_activation", "shared_gated", "shared_down",        NULL};
static const char *const in_shared[] = {"shared_activation", "shared_gated", "shared_down", NULL};
static const char *const activation[] = {"experts_activation", NULL};
static const char *const behind_activation[] = {"experts_down", NULL};
static const char *const projections[] = {"latent", "q_up", "kv_up", "rope", NULL};
static const char *const projected[] = {"q_up", "kv_up", NULL};

static const Module modules[MODEL_MODULE_N] = {
    [MODEL_MODULE_CORE_ATTENTION] = {.core = true, .frees = FREES_ALL},
    [MODEL_MODULE_LAYERNORM] = {norms, NULL, behind_norms, FREES_INPUT},
    [MODEL_MODULE_MLP] = {mlp, mlp_until_kept, in_mlp, FREES_ALL},
    [MODEL_MODULE_MOE] = {moe, NULL, in_moe, FREES_ALL},
    [MODEL_MODULE_MOE_ACTIVATION] = {activation, NULL, behind_activation, FREES_INPUT},
    [MODEL_MODULE_MLA_UP] = {projections, NULL, projected, FREES_REST | FREES_KEYS},
    [MODEL_MODULE_SHARED_EXPERTS] = {shared, shared_until_kept, in_shared, FREES_ALL},
};

static bool
has_name(const char *const *names, const char *name)
{
    for (; names != NULL && *names != NULL; names++)
        if ((*names)[0] == name[0] && strcmp(*names, name) == 0)
            return true;
    return false;
}

/* What the module's lists call @op: adapters are where their products are. */
static const char *
name_of(const ModelOp *op)
{
    return op->adapts != NULL ? op->adapts : op->name;
}

static bool
has_op(const OpsList *list, const char *name)
{
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(list->ops[i].name, name) == 0)
            return true;
    return false;
}

/* Whether module @m frees what @op keeps.  Where results alone are normed a first product reads the layer's input as
 * it is. */
static bool
frees(const OpsList *list, int m, const ModelOp *op)
{
    if (modules[m].core)
        return op->core_attention;
    return has_name(modules[m].freed, name_of(op)) &&
           (m != MODEL_MODULE_LAYERNORM ||
            has_op(list, has_name(behind_norm2, name_of(op)) ? "norm2" : "norm1"));
}

/* The modules of @set that the layer has.  degas's executor keeps the norms of parallel blocks. */
static uint32_t
present(const OpsList *list, uint32_t set)
{
    uint32_t found = 0;

    if (list->shape->row_blocks && list->arch->blocks != MODEL_BLOCKS_SERIAL)
        set &= ~(UINT32_C(1) << MODEL_MODULE_LAYERNORM);
    for (int m = 0; m < MODEL_MODULE_N; m++)
        for (size_t i = 0; (set & ~found) >> m & 1 && i < list->n; i++)
            if (modules[m].core || frees(list, m, &list->ops[i]))
                found |= UINT32_C(1) << m;
    return found;
}

void
ops_set_modules(OpsList *list)
{
    const uint32_t asked = list->shape->recompute_modules;
    const uint32_t set =
        present(list, asked == 0 ? UINT32_C(1) << MODEL_MODULE_CORE_ATTENTION : asked);

    /* A gate reads the shared experts' result, so that their repetition goes to its end. */
    const bool gated = list->arch->experts.shared_gate;

    for (size_t i = 0; i < list->n; i++) {
        ModelOp *op = &list->ops[i];
        unsigned freed = 0;

        op->again_fraction = 0.0;
        for (uint32_t left = set; left != 0; left &= left - 1) {
            const int m = g_bit_nth_lsf(left, -1);
            const Module *module = &modules[m];
            const char *const *again = list->shape->row_blocks && module->until_kept != NULL &&
                                               !(gated && m == MODEL_MODULE_SHARED_EXPERTS)
                                           ? module->until_kept
                                           : module->again;
            if ((module->core && op->core_attention) || has_name(again, name_of(op)))
                op->again_fraction = 1.0;
            if (frees(list, m, op))
                freed |= module->frees;
        }
        const int64_t input = op->saved_for_weight_bytes;
        op->again_bytes = (freed & FREES_INPUT ? input : 0) +
                          (freed & FREES_REST ? op->saved_bytes - input - op->saved_kv_bytes : 0);
        op->again_kv_bytes = freed & FREES_KEYS ? op->saved_kv_bytes : 0;
    }
}
