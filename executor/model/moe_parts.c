#include "executor/model/moe_parts.h"

bool
exec_moe_is_latent(const ExecWidths *w)
{
    return w->arch.experts.latent > 0;
}

/* Whether factors are the softmax over the chosen, as they are. */
bool
exec_moe_has_plain_factors(const ExecWidths *w)
{
    return w->router_scores == EXEC_ROUTER_SOFTMAX && w->router_scale >= 1.0f &&
           w->router_scale <= 1.0f;
}

ExecMoeRouting
exec_moe_cut_routing(const ExecWidths *w, const ExecMoe *moe, ExecCutter *cutter)
{
    ExecMoeRouting r = {0};

    r.expert = exec_cut_words(cutter, moe->n_sent);
    r.weight = exec_cut_words(cutter, moe->n_sent);
    r.slot = exec_cut_words(cutter, moe->n_sent);
    r.row = exec_cut_words(cutter, moe->n_sent);
    r.choice = exec_cut_words(cutter, moe->n_sent);
    if (!exec_moe_has_plain_factors(w))
        r.scores = exec_cut_words(cutter, moe->n_rows * w->n_experts);
    return r;
}

ExecMoeRouting
exec_moe_routing(const ExecWidths *w, const ExecMoe *moe)
{
    return exec_moe_cut_routing(w, moe, &(ExecCutter){.block = moe->routing.data});
}

ExecMoeExperts
exec_moe_cut_experts(const ExecWidths *w, const ExecMoe *moe, ExecCutter *experts,
                     ExecCutter *products)
{
    const int64_t n = moe->n_received;
    ExecMoeExperts x = {0};

    x.arrived = exec_cut_words(experts, n);
    x.inverse = exec_cut_words(experts, n);
    x.weight = exec_cut_words(experts, n);
    x.up = exec_cut(experts, n * w->expert_up);
    x.x = exec_cut(products, n * w->expert_input);
    x.active = moe->repeats_active ? moe->active.data : exec_cut(products, n * w->expert_hidden);
    if (model_has_expert_bias(&w->arch))
        x.stored = exec_cut(products, n);
    if (exec_moe_is_latent(w))
        x.latent = exec_cut(products, moe->n_rows * w->expert_input);
    return x;
}

ExecMoeExperts
exec_moe_experts(const ExecWidths *w, const ExecMoe *moe)
{
    return exec_moe_cut_experts(w, moe,
                                &(ExecCutter){.block = moe->experts.data, .storage = w->storage},
                                &(ExecCutter){.block = moe->products.data, .storage = w->storage});
}

ExecMoeKept
exec_moe_cut_kept(const ExecWidths *w, const ExecMoe *moe, ExecCutter *cutter)
{
    ExecMoeKept kept = {0};

    kept.d_out = exec_cut(cutter, moe->n_received * w->expert_input);
    kept.d_up = exec_cut(cutter, moe->n_received * w->expert_up);
    kept.d_scores = exec_cut(cutter, moe->n_rows * w->n_experts);
    if (exec_moe_is_latent(w)) {
        kept.d_rows = exec_cut(cutter, moe->n_rows * w->hidden);
        kept.d_latent = exec_cut(cutter, moe->n_rows * w->expert_input);
    }
    return kept;
}

ExecMoeKept
exec_moe_kept(const ExecWidths *w, const ExecMoe *moe)
{
    return exec_moe_cut_kept(w, moe, &(ExecCutter){.block = moe->kept.data, .storage = w->storage});
}

/* Takes a block of the pool unless it is taken already.  False once anything of this rank's step
 * has failed: then sizes mean nothing. */
bool
exec_moe_take(const ExecLayer *layer, TraceMemoryOwner owner, int64_t n_bytes, ExecBlock *block)
{
    GError *error = NULL;

    if (layer->comm->error != NULL)
        return false;
    if (block->data == NULL && !exec_pool_take(layer->pool, owner, n_bytes, block, &error))
        exec_comm_fail(layer->comm, error);
    return layer->comm->error == NULL;
}
