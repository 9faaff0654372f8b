#include "executor/device/blas.h"

#include <dlfcn.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "executor/device/backend.h"

#if defined(__x86_64__)
/* Family from cpuid leaf 1: base family plus extended family. */
static unsigned
cpu_family(void)
{
    unsigned a = 0, b = 0, c = 0, d = 0;

    if (!__get_cpuid(1, &a, &b, &c, &d))
        return 0;
    return (a >> 8 & 0xf) + (a >> 20 & 0xff);
}
#endif

/*
 * Returns: (nullable) what OPENBLAS_CORETYPE should be on this processor; NULL: leave it to
 * OpenBLAS.
 *
 * sgemm, one thread, GFLOP/s at 256x768x768, 256x768x256, 64x64x64:
 *   Zen 4 (family 0x19): Haswell 110 110 90, Cooperlake 105 105 85, SkylakeX 105 104 85,
 *     Zen 108 104 74 [measured 2025-11 with OpenBLAS 0.3.21]: its 512-bit operations are two of
 *     256, so the wide kernels win nothing and pay for their larger tiles.
 *   Emerald Rapids: Cooperlake or SkylakeX 150 to 184, Haswell 45 to 80, Prescott (the library's
 *     own choice) 10 to 34.
 * Zen 5 (family 0x1a) has 512-bit units, so it takes SkylakeX (not measured).
 */
static const char *
blas_core_type(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    const bool narrow = __builtin_cpu_is("amd") && cpu_family() <= 0x19;

    if (avx512 && !narrow)
        return __builtin_cpu_supports("avx512bf16") && !__builtin_cpu_is("amd") ? "Cooperlake"
                                                                                : "SkylakeX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return "Haswell";
#endif
    return NULL;
}

/* Kernels without AVX2 on a processor that has it: the report should say so. */
static bool
is_slow(const char *core)
{
    static const char *const fast[] = {
        "Haswell", "Zen", "Excavator", "SkylakeX", "Cooperlake", "SapphireRapids", NULL};

    if (blas_core_type() == NULL)
        return false;
    for (size_t i = 0; fast[i] != NULL; i++)
        if (g_ascii_strcasecmp(core, fast[i]) == 0)
            return false;
    return true;
}

/* "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..." -> "OpenBLAS 0.3.21"; the core's name after it. */
static char *
describe(void *library)
{
    char *(*config)(void) = NULL, *(*core)(void) = NULL;
    g_autoptr(GString) text = g_string_new(NULL);

    *(void **)&config = dlsym(library, "openblas_get_config");
    *(void **)&core = dlsym(library, "openblas_get_corename");
    g_auto(GStrv) words = g_strsplit(config != NULL ? config() : "BLAS", " ", -1);
    g_string_append(text, words[0]);
    if (words[0] != NULL && words[1] != NULL && g_ascii_isdigit(words[1][0]))
        g_string_append_printf(text, " %s", words[1]);
    if (core != NULL) {
        g_string_append_printf(text, " %s", core());
        if (is_slow(core()))
            g_string_append_printf(text,
                                   " (slow kernels: this processor has AVX2 or more; unset "
                                   "OPENBLAS_CORETYPE or set it to %s)",
                                   blas_core_type());
    }
    return g_string_free(g_steal_pointer(&text), FALSE);
}

/* Sets a variable unless the user did; says whether it has to be taken back. */
static bool
set_default(const char *name, const char *value)
{
    return value != NULL && g_getenv(name) == NULL && g_setenv(name, value, FALSE);
}

static void *
open_library(void)
{
    const bool core = set_default("OPENBLAS_CORETYPE", blas_core_type());
    const bool threads = set_default("OPENBLAS_NUM_THREADS", "1");
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);

    if (core)
        g_unsetenv("OPENBLAS_CORETYPE");
    if (threads)
        g_unsetenv("OPENBLAS_NUM_THREADS");
    return library;
}

const ExecBlas *
exec_blas_open(GError **error)
{
    static GMutex mutex;
    static ExecBlas blas;
    void (*set_threads)(int) = NULL;
    G_GNUC_UNUSED g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&mutex);

    if (blas.sgemm != NULL)
        return &blas;
    void *library = open_library();
    if (library == NULL)
        return EXEC_FAIL_NULL(
            error, EXEC_ERROR_MISSING,
            "device cpu: OpenBLAS cannot be opened (%s); install libopenblas0, or use "
            "--device reference",
            dlerror());
    *(void **)&blas.sgemm = dlsym(library, "cblas_sgemm");
    *(void **)&set_threads = dlsym(library, "openblas_set_num_threads");
    if (blas.sgemm == NULL) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_MISSING,
                    "device cpu: libopenblas.so.0 has no cblas_sgemm");
        dlclose(library);
        return NULL;
    }
    if (set_threads != NULL)
        set_threads(1);
    blas.description = describe(library);
    return &blas;
}
