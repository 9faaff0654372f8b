#include "executor/model/lacks.h"

/* Where a thing cannot be computed. */
typedef enum {
    NOWHERE = 1, /* on no device */
    ON_GPU,      /* on devices whose kind is plain_only; the host's backends compute it */
    WITH_CP,     /* where cp is more than 1 */
} Where;

/* A thing that is there or not. */
typedef struct {
    bool is_there;
    Where where;
    const char *what;
} Thing;

static const char *
first_of(const Thing *things, size_t n, const Plan *plan, const ExecDeviceKind *kind)
{
    const bool applies[] = {
        [NOWHERE] = true,
        [ON_GPU] = kind->plain_only,
        [WITH_CP] = plan->degrees.cp > 1,
    };

    for (size_t i = 0; i < n; i++)
        if (things[i].is_there && applies[things[i].where])
            return things[i].what;
    return NULL;
}

static const char *
kind_lacks(const ModelArch *layer, const Plan *plan, const ExecDeviceKind *kind)
{
    const ModelExperts *experts = &layer->experts;
    const bool moe = experts->n_experts > 0;
    const ModelActivation activation = model_activation(layer);
    const ModelNorm norm = model_norm(layer);
    const int64_t rotated = model_has_mla(layer)    ? layer->mla.qk_rope_head_dim
                            : layer->rotary_dim > 0 ? layer->rotary_dim
                                                    : layer->head_dim;
    const Thing things[] = {
        /* The mixer. */
        {model_has_state(layer), ON_GPU, "mixers with a state on GPUs"},
        {model_has_state(layer) && layer->mixer != MODEL_MIXER_MAMBA &&
             layer->state.n_key_heads % plan->degrees.tp != 0,
         NOWHERE, "states whose key heads tp does not divide"},
        /* Attention. */
        {layer->indexer.n_heads > 0, ON_GPU, "an indexer of sparse attention"},
        {layer->indexer.n_heads > 0, WITH_CP, "an indexer of sparse attention on cp ranks"},
        {layer->indexer.n_heads > 0 && model_positions(layer) == MODEL_POSITIONS_ROTARY &&
             rotated > layer->indexer.head_dim,
         NOWHERE, "an indexer whose heads are shorter than what of them is rotated"},
        /* The block. */
        {layer->residual_scale > 0.0, ON_GPU, "scaled residuals"},
        {activation != MODEL_ACTIVATION_SWIGLU && activation != MODEL_ACTIVATION_GELU, ON_GPU,
         "activations but SwiGLU and GELU"},
        {norm != MODEL_NORM_RMS && norm != MODEL_NORM_LAYER, ON_GPU,
         "norms without shift or scale"},
        /* Experts. */
        {moe && experts->n_redundant > 0, NOWHERE, "copies of hot experts"},
        {moe && experts->router_scores == MODEL_ROUTER_SOFTMAX_ALL, ON_GPU,
         "router_scores softmax-all (only softmax)"},
        {moe && experts->router_scores == MODEL_ROUTER_SIGMOID, ON_GPU,
         "router_scores sigmoid (only softmax)"},
        {moe && (experts->router_scale < 1.0 || experts->router_scale > 1.0), ON_GPU,
         "models whose router_scale is not 1"},
        {experts->latent > 0, ON_GPU, "latent experts"},
        {experts->shared_gate, ON_GPU, "a gate of shared experts"},
        {moe && (experts->router_bias || model_has_expert_bias(layer)), ON_GPU,
         "experts with biases"},
    };

    return first_of(things, G_N_ELEMENTS(things), plan, kind);
}

static const char *
ends_lack(const ModelArch *arch, const Plan *plan, const ExecDeviceKind *kind)
{
    const Thing things[] = {
        {arch->vocab == 0, NOWHERE, "models without a vocabulary (there is no loss to train)"},
        {arch->lora.rank > 0, NOWHERE, "adapters beside frozen weights (LoRA)"},
        {arch->mtp.n > 0, ON_GPU, "MTP modules"},
        {arch->mtp.n > 0 && arch->hidden % plan->degrees.tp != 0, NOWHERE,
         "MTP modules whose width tp does not divide"},
        {arch->mtp.n > 0 && model_positions(arch) == MODEL_POSITIONS_LEARNED, NOWHERE,
         "MTP modules beside learned positions"},
        {arch->mtp.n > 0 && arch->embedding_norm, NOWHERE,
         "MTP modules beside a norm of the embedding"},
        {plan_optimizer(plan->conventions.optimizer)->orthogonalises, ON_GPU, "Muon"},
        {model_norm(arch) != MODEL_NORM_RMS && model_norm(arch) != MODEL_NORM_LAYER, ON_GPU,
         "norms without shift or scale"},
        {model_positions(arch) == MODEL_POSITIONS_LEARNED && arch->position_rows > 0 &&
             arch->position_rows < plan->seq_len,
         NOWHERE, "sequences that are longer than the table of positions"},
        {arch->logits_scale > 0.0, ON_GPU, "scaled logits"},
        {arch->logits_cap > 0.0, ON_GPU, "capped logits"},
    };

    return first_of(things, G_N_ELEMENTS(things), plan, kind);
}

const char *
exec_model_lacks(const ModelArch *arch, const Plan *plan, const ExecDeviceKind *kind)
{
    const char *what = NULL;

    for (int32_t i = 0; i < model_n_kinds(arch) && what == NULL; i++) {
        const ModelArch layer = model_kind_arch(arch, i);
        what = kind_lacks(&layer, plan, kind);
    }
    return what != NULL ? what : ends_lack(arch, plan, kind);
}
