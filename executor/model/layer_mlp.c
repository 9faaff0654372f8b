/* The MLP of a layer, and of its shared experts: layer.h. */
#include "executor/model/linear.h"

static int64_t
ffn_of(const ExecLayer *layer)
{
    return layer->moe != NULL ? layer->widths->shared_hidden : layer->widths->ffn_hidden;
}

static ExecLinear
up_of(const ExecLayer *layer)
{
    const ExecWidths *w = layer->widths;

    return (ExecLinear){
        .rows = exec_slice_rows(&layer->slice),
        .inputs = w->hidden,
        .cols = w->gated ? 2 * ffn_of(layer) : ffn_of(layer),
        .weight = &layer->tensors->mlp_up_weight,
        .bias = &layer->tensors->mlp_up_bias,
    };
}

static ExecLinear
down_of(const ExecLayer *layer)
{
    const ExecWidths *w = layer->widths;

    return (ExecLinear){
        .rows = exec_slice_rows(&layer->slice),
        .inputs = ffn_of(layer),
        .cols = w->hidden,
        .weight = &layer->tensors->mlp_down_weight,
        .bias = &layer->tensors->mlp_down_bias,
    };
}

void
exec_mlp_forward(const ExecLayer *layer, void *y)
{
    const ExecLinear up = up_of(layer), down = down_of(layer);
    const ExecLayerActivations *a = &layer->a;
    const bool gated = layer->widths->gated;

    exec_linear_forward(layer->backend, &up, exec_gather_rows(layer, a->norm2),
                        gated ? NULL : a->active, a->up);
    if (gated)
        layer->backend->ops->swiglu_forward(layer->backend, down.rows, down.inputs, a->up,
                                            a->active);
    exec_row_split_forward(layer, &down, a->active, a->x2, y);
}

void *
exec_mlp_backward(const ExecLayer *layer, void *d_up, const void *dy)
{
    const ExecLinear up = up_of(layer), down = down_of(layer);
    const ExecLayerScratch *scratch = layer->scratch;

    if (layer->widths->gated) {
        exec_linear_backward(layer->backend, &down, dy, false, NULL, scratch->d_active);
        layer->backend->ops->swiglu_backward(layer->backend, down.rows, down.inputs, layer->a.up,
                                             scratch->d_active, d_up);
    } else {
        exec_linear_backward(layer->backend, &down, dy, false, layer->a.up, d_up);
    }
    exec_linear_backward(layer->backend, &up, d_up, false, NULL, scratch->partial);
    return exec_reduce_rows(layer, scratch->partial);
}

void
exec_mlp_weight(const ExecLayer *layer, const void *d_up, const void *d_down)
{
    const ExecLinear up = up_of(layer), down = down_of(layer);

    exec_linear_weight(layer->backend, &down, layer->a.active, d_down);
    exec_linear_weight(layer->backend, &up, exec_gather_rows(layer, layer->a.norm2), d_up);
}
