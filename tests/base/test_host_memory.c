/* Tests of base/host_memory.h: systems made of files, limits of a process, arrays that are refused.
 */
#include "base/host_memory.h"

#include <glib/gstdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAS_SANITIZER /* gcc */
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HAS_SANITIZER /* clang */
#endif
#endif

#define GIB (INT64_C(1) << 30)

typedef struct {
    const char *path, *text;
} File;

static void
remove_all(const char *path)
{
    g_autoptr(GDir) dir = g_dir_open(path, 0, NULL);

    for (const char *name; dir != NULL && (name = g_dir_read_name(dir)) != NULL;) {
        g_autofree char *child = g_build_filename(path, name, NULL);
        remove_all(child);
    }
    g_assert_cmpint(g_remove(path), ==, 0);
}

/* Returns: (owned) the root of a system of these files. */
static char *
system_of(const File *files)
{
    char *root = g_dir_make_tmp("degas-XXXXXX", NULL);

    for (; files->path != NULL; files++) {
        g_autofree char *path = g_strconcat(root, files->path, NULL);
        g_autofree char *dir = g_path_get_dirname(path);
        g_assert_cmpint(g_mkdir_with_parents(dir, 0700), ==, 0);
        g_assert_true(g_file_set_contents(path, files->text, -1, NULL));
    }
    return root;
}

/* What is available there. */
static int64_t
available_on(const File *files)
{
    g_autofree char *root = system_of(files);
    const int64_t bytes = host_memory_available_bytes(root);
    remove_all(root);
    return bytes;
}

#define MEMINFO                                                                                    \
    {                                                                                              \
        "/proc/meminfo", "MemTotal:  16777216 kB\nMemFree: 1024 kB\nMemAvailable:    8388608 kB\n" \
    }

static void
test_the_least_counts(void)
{
    static const struct {
        File files[9];
        int64_t expect;
    } cases[] = {
        {{{NULL, NULL}}, INT64_MAX},
        {{MEMINFO}, 8 * GIB},
        {{{"/proc/meminfo", "MemAvailable: 9223372036854775807 kB\n"}}, INT64_MAX},
        /* version 2: 4 GiB, of which 3 are used, 1 of them by what can be dropped */
        {{MEMINFO,
          {"/proc/self/cgroup", "0::/user/job\n"},
          {"/sys/fs/cgroup/user/job/memory.max", "4294967296\n"},
          {"/sys/fs/cgroup/user/job/memory.current", "3221225472\n"},
          {"/sys/fs/cgroup/user/job/memory.stat", "anon 1\ninactive_file 1073741824\n"}},
         2 * GIB},
        /* the group above has less; no limit is "max" */
        {{MEMINFO,
          {"/proc/self/cgroup", "0::/user/job\n"},
          {"/sys/fs/cgroup/user/job/memory.max", "max\n"},
          {"/sys/fs/cgroup/user/job/memory.current", "0\n"},
          {"/sys/fs/cgroup/user/memory.max", "2147483648\n"},
          {"/sys/fs/cgroup/user/memory.current", "1073741824\n"}},
         GIB},
        /* version 1, in a container: the path is another's, the root is its own */
        {{MEMINFO,
          {"/proc/self/cgroup", "12:cpu:/x\n4:memory:/docker/1234\n0::/\n"},
          {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "3221225472\n"},
          {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "2147483648\n"},
          {"/sys/fs/cgroup/memory/memory.stat", "inactive_file 5\ntotal_inactive_file 0\n"}},
         GIB},
        /* version 1 without a limit has a large one; more used than allowed leaves nothing */
        {{MEMINFO,
          {"/proc/self/cgroup", "4:memory:/\n"},
          {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
          {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n"}},
         8 * GIB},
        {{{"/proc/self/cgroup", "0::/\n"},
          {"/sys/fs/cgroup/memory.max", "5\n"},
          {"/sys/fs/cgroup/memory.current", "6\n"}},
         0},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++)
        g_assert_cmpint(available_on(cases[i].files), ==, cases[i].expect);
}

/* What is asked for twice may be more the second time. */
static void
test_reads_a_group_once(void)
{
    static const File files[] = {
        {"/proc/self/cgroup", "0::/job\n"},
        {"/sys/fs/cgroup/job/memory.max", "3\n"},
        {"/sys/fs/cgroup/job/memory.current", "2\n"},
        {"/sys/fs/cgroup/job/memory.stat", "inactive_file 1\n"},
        {NULL, NULL},
    };
    g_autofree char *root = system_of(files);
    g_autofree char *group = g_build_filename(root, "sys/fs/cgroup/job", NULL);
    char events[4096];
    const int watch = inotify_init1(IN_NONBLOCK);
    int n_files = 0;

    if (watch < 0 || inotify_add_watch(watch, group, IN_OPEN) < 0) {
        g_test_skip("the system does not tell who opens files");
    } else {
        g_assert_cmpint(host_memory_available_bytes(root), ==, 2);
        const ssize_t n_bytes = read(watch, events, sizeof events);
        for (ssize_t at = 0; at < n_bytes; n_files++) {
            struct inotify_event event;
            memcpy(&event, events + at, sizeof event);
            at += (ssize_t)(sizeof event + event.len);
        }
        g_assert_cmpint(n_files, ==, 3);
    }
    if (watch >= 0)
        close(watch);
    remove_all(root);
}

#ifndef HAS_SANITIZER
/* In a process of its own that may have a tenth of a TiB of addresses: 0 if all is as it should. */
static int
with_a_limit(void)
{
    const rlim_t limit = (rlim_t)100 * (rlim_t)GIB;
    const int64_t before = host_memory_available_bytes("/nowhere");

    if (before != INT64_MAX || setrlimit(RLIMIT_AS, &(struct rlimit){limit, limit}) != 0)
        return 1;
    const int64_t available = host_memory_available_bytes("/nowhere");
    if (available <= 0 || available >= (int64_t)limit)
        return 2;
    if (host_memory_has((size_t)limit))
        return 3;
    return pages_try_malloc((size_t)limit, 1) != NULL || pages_try_malloc0((size_t)limit, 1) != NULL
               ? 4
               : 0;
}
#endif

static void
test_addresses_count(void)
{
#ifdef HAS_SANITIZER
    g_test_skip("the sanitizer needs all of the address space");
#else
    int status = -1;
    const pid_t child = fork();

    if (child == 0)
        _exit(with_a_limit());
    g_assert_cmpint(waitpid(child, &status, 0), ==, child);
    g_assert_cmpint(status, ==, 0);
#endif
}

static void
test_small_arrays_are_not_asked_for(void)
{
    g_assert_true(host_memory_has(0));
    g_assert_true(host_memory_has(HOST_MEMORY_ASK_BYTES - 1));
    g_assert_false(host_memory_has(SIZE_MAX / 2));
}

/* More than there is now, though malloc() would give it: memory that nobody has written is free. */
static void
test_arrays_that_cannot_be_filled_are_refused(void)
{
    const int64_t available = host_memory_available_bytes("");

    if (available == INT64_MAX) {
        g_test_skip("what is available is not known here");
        return;
    }
    g_assert_null(pages_try_room((size_t)(available + available / 64), 1));
    g_assert_null(pages_try_room(SIZE_MAX / 2, 4));
    g_autofree void *small = pages_try_room(1000, 4);
    g_assert_nonnull(small);
}

static void
test_text_has_the_number(void)
{
    g_autofree char *text = host_memory_text();

    g_assert_true(g_pattern_match_simple(": * of memory are available", text));
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/base/host-memory/reads-a-group-once", test_reads_a_group_once);
    g_test_add_func("/base/host-memory/the-least-counts", test_the_least_counts);
    g_test_add_func("/base/host-memory/addresses-count", test_addresses_count);
    g_test_add_func("/base/host-memory/small-arrays-are-not-asked-for",
                    test_small_arrays_are_not_asked_for);
    g_test_add_func("/base/host-memory/arrays-that-cannot-be-filled-are-refused",
                    test_arrays_that_cannot_be_filled_are_refused);
    g_test_add_func("/base/host-memory/text-has-the-number", test_text_has_the_number);
    return g_test_run();
}
