/*
 * models/modules.h - the modules of a layer that selective recompute may run again: one table says
 * which ops of model_ops() each runs again, and which of the activations that they keep it frees.
 *
 * The modules are Megatron-Core's (--recompute-modules; transformer_config.py: recompute_modules) and
 * PyTorch's policy over ops.  Several may be chosen at once.
 *
 * Internal to models/.  The modules are named in ops.h.
 */
#pragma once

#include "models/ops_list.h"

/* Sets what selective recompute repeats, and does not keep, of all ops of a layer: those of
 * shape->recompute_modules, or of the core of attention where that set is empty. */
void ops_set_modules(OpsList *list);
