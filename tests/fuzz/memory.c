/*
 * What makes an execution of a target cheap, for the many (docs/quality.md 2): the linker gives calls of these
 * functions to those here (--wrap).  The input is read from memory instead of a file, and a built-in model or
 * cluster is parsed once, and copied for each input.  What degas does with the bytes is the same.
 */
#include <string.h>

#include "base/embedded.h"
#include "base/file.h"
#include "models/arch.h"
#include "profiles/profile.h"
#include "tests/fuzz/targets.h"

bool __real_file_read_max(const char *path, size_t max_bytes, char **contents, size_t *n_bytes,
                          GError **error);
bool __wrap_file_read_max(const char *path, size_t max_bytes, char **contents, size_t *n_bytes,
                          GError **error);
bool __wrap_file_read(const char *path, char **contents, size_t *n_bytes, GError **error);
Profile *__real_profile_load(const char *name_or_path, GError **error);
Profile *__wrap_profile_load(const char *name_or_path, GError **error);
ModelArch *__real_model_arch_load(const char *name_or_path, GPtrArray **warnings, GError **error);
ModelArch *__wrap_model_arch_load(const char *name_or_path, GPtrArray **warnings, GError **error);

/* libFuzzer's own look at each comparison of strings, which its dictionary makes up for. */
void __wrap___sanitizer_weak_hook_memcmp(void);
void __wrap___sanitizer_weak_hook_strcmp(void);
void __wrap___sanitizer_weak_hook_strncmp(void);
void
__wrap___sanitizer_weak_hook_memcmp(void)
{
}
void
__wrap___sanitizer_weak_hook_strcmp(void)
{
}
void
__wrap___sanitizer_weak_hook_strncmp(void)
{
}

/* The one input; another file is read as it is. */
static const char *input_path;
static const uint8_t *input;
static size_t n_input;

void
fuzz_keep(const char *path, const uint8_t *bytes, size_t n)
{
    input_path = path;
    input = bytes;
    n_input = n;
}

bool
__wrap_file_read_max(const char *path, size_t max_bytes, char **contents, size_t *n_bytes,
                     GError **error)
{
    if (input_path == NULL || strcmp(path, input_path) != 0 || n_input > max_bytes)
        return __real_file_read_max(path, max_bytes, contents, n_bytes, error);
    *contents = g_malloc(n_input + 1);
    if (n_input > 0)
        memcpy(*contents, input, n_input);
    (*contents)[n_input] = 0;
    *n_bytes = n_input;
    return true;
}

bool
__wrap_file_read(const char *path, char **contents, size_t *n_bytes, GError **error)
{
    return __wrap_file_read_max(path, FILE_MAX_BYTES, contents, n_bytes, error);
}

static bool
is_builtin(const char *folder, const char *name)
{
    g_autofree char *path = g_strconcat(folder, name, ".json", NULL);

    return embedded_find(path) != NULL;
}

Profile *
__wrap_profile_load(const char *name_or_path, GError **error)
{
    static GHashTable *known; /* name -> Profile */

    if (known == NULL)
        known = g_hash_table_new(g_str_hash, g_str_equal);
    Profile *profile = g_hash_table_lookup(known, name_or_path);
    if (profile == NULL) {
        profile = __real_profile_load(name_or_path, error);
        if (profile == NULL || !is_builtin("profiles/", name_or_path))
            return profile;
        g_hash_table_insert(known, g_strdup(name_or_path), profile);
    }
    return profile_copy(profile);
}

ModelArch *
__wrap_model_arch_load(const char *name_or_path, GPtrArray **warnings, GError **error)
{
    static GHashTable *known; /* name -> ModelArch */

    if (known == NULL)
        known = g_hash_table_new(g_str_hash, g_str_equal);
    ModelArch *arch = g_hash_table_lookup(known, name_or_path);
    if (arch == NULL) {
        arch = __real_model_arch_load(name_or_path, warnings, error);
        if (arch == NULL || !is_builtin("models/", name_or_path))
            return arch;
        g_hash_table_insert(known, g_strdup(name_or_path), arch);
    } else if (warnings != NULL) {
        *warnings = g_ptr_array_new_with_free_func(g_free); /* a built-in model has none */
    }
    return model_arch_copy(arch);
}
