/*
 * tests/models/arch_case.h - built-in models, for tests of models/.
 */
#ifndef TESTS_MODELS_ARCH_CASE_H
#define TESTS_MODELS_ARCH_CASE_H

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

#endif /* TESTS_MODELS_ARCH_CASE_H */
