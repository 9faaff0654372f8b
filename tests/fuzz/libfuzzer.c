/* The targets for libFuzzer (clang -fsanitize=fuzzer): FUZZ_TARGET names the one. */
#include "tests/fuzz/targets.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static int target;

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *name = g_getenv("FUZZ_TARGET");

    while (target < fuzz_n_targets() && g_strcmp0(fuzz_target_name(target), name) != 0)
        target++;
    if (target == fuzz_n_targets())
        g_error("FUZZ_TARGET names no target");
    fuzz_init();
    return 0;
}

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    fuzz_try(target, bytes, n);
    return 0;
}
