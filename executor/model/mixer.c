#include "executor/model/mixer.h"

static const ExecMixer *const mixers[MODEL_MIXER_N] = {
    [MODEL_MIXER_ATTENTION] = &exec_mixer_attention,
};

const ExecMixer *
exec_mixer(const ExecWidths *widths)
{
    const ExecMixer *mixer = mixers[widths->arch.mixer];

    g_assert(mixer != NULL); /* models with others are refused: exec_model_lacks() */
    return mixer;
}
