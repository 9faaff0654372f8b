/*
 * tests/models/arch_case.h - built-in models, for tests of models/.
 */
#pragma once

#include "models/arch.h"

/* Returns: (owned) */
static inline ModelArch *
load(const char *name)
{
    g_autoptr(GError) error = NULL;
    ModelArch *arch = model_arch_load(name, NULL, &error);

    g_assert_no_error(error);
    return arch;
}
