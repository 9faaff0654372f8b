#include "executor/model/mixer.h"

const ExecMixer *
exec_mixer(const ExecWidths *widths)
{
    /* Models with other mixers are refused: exec_model_lacks(). */
    return model_has_state(&widths->arch) ? &exec_mixer_state : &exec_mixer_attention;
}
