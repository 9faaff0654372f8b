#include "executor/model/mixer.h"

#include "executor/model/layer.h"

const ExecMixer *
exec_mixer(const ExecWidths *widths)
{
    const bool attention = model_has_attention(&widths->arch);

    if (!model_has_state(&widths->arch))
        return &exec_mixer_attention;
    return attention ? &exec_mixer_beside : &exec_mixer_state;
}

void
exec_mixer_weight(const ExecLayer *layer, const void *x, void *kept, const void *dy)
{
    const ExecMixer *mixer = exec_mixer(layer->widths);

    mixer->weight_out(layer, kept, dy);
    mixer->weight_in(layer, x, kept);
}
