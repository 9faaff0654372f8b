#include "base/host_memory.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/units.h"

/* The first number of the line of @root/@path that begins with @key, or -1: there is none. */
static int64_t
read_number(const char *root, const char *path, const char *key)
{
    g_autofree char *file = g_strconcat(root, path, NULL);
    g_autofree char *text = NULL;
    char *end;

    if (!g_file_get_contents(file, &text, NULL, NULL))
        return -1;
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!g_str_has_prefix(line, key))
            continue;
        const uint64_t number = g_ascii_strtoull(line + strlen(key), &end, 10);
        return end == line + strlen(key) ? -1 : (int64_t)MIN(number, (uint64_t)INT64_MAX);
    }
    return -1;
}

/* What a version of control groups calls its files. */
typedef struct {
    const char *prefix; /* of its line in /proc/self/cgroup, behind the number */
    const char *directory, *limit, *used, *inactive;
} Version;

/* What the group at @path leaves. */
static int64_t
group_bytes(const char *root, const Version *version, const char *path)
{
    g_autofree char *limit = g_strconcat(version->directory, path, version->limit, NULL);
    g_autofree char *used = g_strconcat(version->directory, path, version->used, NULL);
    g_autofree char *stat = g_strconcat(version->directory, path, "/memory.stat", NULL);
    const int64_t limit_bytes = read_number(root, limit, "");
    const int64_t used_bytes = read_number(root, used, "");

    if (limit_bytes < 0 || used_bytes < 0)
        return INT64_MAX;
    /* Of what is used, as much can be dropped. */
    const int64_t inactive_bytes = read_number(root, stat, version->inactive);
    return MAX(limit_bytes - (used_bytes - CLAMP(inactive_bytes, 0, used_bytes)), 0);
}

/* The least that the process's group and those above it leave. */
static int64_t
groups_bytes(const char *root, const Version *version, const char *groups)
{
    int64_t least = INT64_MAX;
    const char *line = strstr(groups, version->prefix);

    if (line == NULL)
        return least;
    line += strlen(version->prefix);
    g_autofree char *path = g_strndup(line, strcspn(line, "\n"));
    for (char *end = path + strlen(path); end != NULL; end = strrchr(path, '/')) {
        *end = '\0';
        const int64_t bytes = group_bytes(root, version, path); /* once: it changes */
        least = MIN(least, bytes);
    }
    return least;
}

/* What is left of the address space. */
static int64_t
address_bytes(void)
{
    struct rlimit limit;
    const int64_t n_pages = read_number("", "/proc/self/statm", "");

    if (n_pages < 0 || getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return INT64_MAX;
    return MAX((int64_t)MIN(limit.rlim_cur, (rlim_t)INT64_MAX) - n_pages * sysconf(_SC_PAGESIZE),
               0);
}

int64_t
host_memory_available_bytes(const char *root)
{
    static const Version versions[] = {
        {":memory:", "/sys/fs/cgroup/memory", "/memory.limit_in_bytes", "/memory.usage_in_bytes",
         "total_inactive_file"},
        {"0::", "/sys/fs/cgroup", "/memory.max", "/memory.current", "inactive_file"},
    };
    g_autofree char *file = g_strconcat(root, "/proc/self/cgroup", NULL);
    g_autofree char *groups = NULL;
    const int64_t available_kib = read_number(root, "/proc/meminfo", "MemAvailable:");
    const int64_t left_bytes = address_bytes();

    int64_t least =
        available_kib < 0 || available_kib > INT64_MAX / 1024 ? INT64_MAX : available_kib * 1024;
    least = MIN(least, left_bytes);
    if (!g_file_get_contents(file, &groups, NULL, NULL))
        return least;
    for (size_t i = 0; i < G_N_ELEMENTS(versions); i++) {
        const int64_t bytes = groups_bytes(root, &versions[i], groups);
        least = MIN(least, bytes);
    }
    return least;
}

bool
host_memory_has(size_t n_bytes)
{
    return n_bytes < HOST_MEMORY_ASK_BYTES || n_bytes <= (uint64_t)host_memory_available_bytes("");
}

char *
host_memory_text(void)
{
    const int64_t available_bytes = host_memory_available_bytes("");

    if (available_bytes == INT64_MAX)
        return g_strdup("");
    return g_strdup_printf(": %s of memory are available",
                           units_format_bytes((double)available_bytes).text);
}

/* --- large arrays --- */

/* Below this malloc() hands out memory that was used before. */
#define MEDIUM_BYTES ((size_t)256 << 10)
/* From this on it does not, however often such an array was made and freed before. */
#define LARGE_BYTES ((size_t)4 << 20)

void *
pages_prepare(void *array, size_t n_bytes)
{
#ifdef MADV_POPULATE_WRITE
    if (array == NULL || n_bytes < MEDIUM_BYTES)
        return array;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = ((uintptr_t)array + page - 1) / page * page;
    const uintptr_t end = ((uintptr_t)array + n_bytes) / page * page;
    (void)madvise((void *)begin, end - begin, MADV_POPULATE_WRITE);
#endif
    return array;
}

void *
pages_try_room(size_t n, size_t element_bytes)
{
    return n > SIZE_MAX / element_bytes || !host_memory_has(n * element_bytes)
               ? NULL
               : g_try_malloc_n(n, element_bytes);
}

void *
pages_try_malloc(size_t n, size_t element_bytes)
{
    return pages_prepare(pages_try_room(n, element_bytes), n * element_bytes);
}

void *
pages_try_malloc_again(size_t n, size_t element_bytes)
{
    void *array = pages_try_room(n, element_bytes);

    return n * element_bytes < LARGE_BYTES ? array : pages_prepare(array, n * element_bytes);
}

void *
pages_try_malloc0(size_t n, size_t element_bytes)
{
    if (n > SIZE_MAX / element_bytes || !host_memory_has(n * element_bytes))
        return NULL;
    return pages_prepare(g_try_malloc0_n(n, element_bytes), n * element_bytes);
}
