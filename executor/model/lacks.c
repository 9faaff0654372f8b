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
    const bool gpt = layer->family == MODEL_FAMILY_GPT, moe = experts->n_experts > 0;
    const ModelActivation activation = model_activation(layer);
    const ModelNorm norm = model_norm(layer);
    const bool mla = layer->mla.kv_lora_rank > 0;
    const Thing things[] = {
        /* The mixer. */
        {layer->mixer == MODEL_MIXER_ATTENTION_MAMBA2, NOWHERE, "attention beside Mamba-2"},
        {model_has_state(layer), ON_GPU, "mixers with a state on GPUs"},
        {model_has_state(layer), WITH_CP, "mixers with a state on cp ranks"},
        {model_has_state(layer) && layer->mixer != MODEL_MIXER_MAMBA &&
             layer->state.n_key_heads % plan->degrees.tp != 0,
         NOWHERE, "states whose key heads tp does not divide"},
        {layer->mixer == MODEL_MIXER_MAMBA && layer->state.conv == 0, NOWHERE,
         "Mamba without a convolution"},
        {model_has_state(layer) && layer->state.inner_norms, NOWHERE,
         "norms of Mamba's B, C and time steps"},
        /* Attention. */
        {mla, ON_GPU, "multi-head latent attention"},
        {layer->window > 0, ON_GPU, "windows"},
        {layer->chunk > 0, ON_GPU, "chunked attention"},
        {layer->indexer.n_heads > 0, NOWHERE, "an indexer of sparse attention"},
        {mla && layer->sinks, NOWHERE, "sinks of latent attention"},
        {layer->sinks, ON_GPU, "sinks"},
        {layer->output_gate != MODEL_OUTPUT_GATE_NONE, ON_GPU, "gates of attention's result"},
        {mla && layer->qk_norm, NOWHERE, "qk_norm of latent attention"},
        {layer->qk_norm, ON_GPU, "models with qk_norm"},
        {layer->attention_cap > 0.0, ON_GPU, "capped scores"},
        {layer->rotary_dim > 0, ON_GPU, "heads that are rotated in part"},
        {layer->v_dim > 0, ON_GPU, "values of a size of their own"},
        {model_positions(layer) == MODEL_POSITIONS_ALIBI, ON_GPU, "ALiBi"},
        /* The block. */
        {layer->residual_scale > 0.0, ON_GPU, "scaled residuals"},
        {activation != MODEL_ACTIVATION_SWIGLU && activation != MODEL_ACTIVATION_GELU, ON_GPU,
         "activations but SwiGLU and GELU"},
        {norm != MODEL_NORM_RMS && norm != MODEL_NORM_LAYER, ON_GPU,
         "norms without shift or scale"},
        /* Experts. */
        {moe && gpt, NOWHERE, "experts in models of family gpt"},
        {moe && experts->router_scores == MODEL_ROUTER_SOFTMAX_ALL, NOWHERE,
         "router_scores softmax-all (only softmax)"},
        {moe && experts->router_scores == MODEL_ROUTER_SIGMOID, NOWHERE,
         "router_scores sigmoid (only softmax)"},
        {moe && (experts->router_scale < 1.0 || experts->router_scale > 1.0), NOWHERE,
         "models whose router_scale is not 1"},
        {experts->latent > 0, NOWHERE, "latent experts"},
        {experts->shared_gate, NOWHERE, "a gate of shared experts"},
        {experts->router_bias || experts->bias, NOWHERE, "experts with biases"},
    };

    return first_of(things, G_N_ELEMENTS(things), plan, kind);
}

static const char *
ends_lack(const ModelArch *arch, const Plan *plan, const ExecDeviceKind *kind)
{
    const Thing things[] = {
        {arch->vocab == 0, NOWHERE, "models without a vocabulary (there is no loss to train)"},
        {arch->mtp.n > 0, NOWHERE, "MTP modules"},
        {plan_optimizer(plan->conventions.optimizer)->orthogonalises, ON_GPU, "Muon"},
        {model_norm(arch) != MODEL_NORM_RMS && model_norm(arch) != MODEL_NORM_LAYER, ON_GPU,
         "norms without shift or scale"},
        {arch->head_bias, NOWHERE, "a head with a bias"},
        {arch->embedding_norm, NOWHERE, "a normed embedding"},
        {arch->no_final_norm, NOWHERE, "a head without a norm"},
        {arch->position_rows > 0, NOWHERE, "a table of positions of a length of its own"},
        {arch->embedding_scale > 0.0 || arch->logits_scale > 0.0, NOWHERE,
         "scaled embeddings or logits"},
        {arch->logits_cap > 0.0, NOWHERE, "capped logits"},
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
