/*
 * Tests of base/file.h when the system fails: each call in turn, with each error that matters.
 *
 * The functions below stand before those of the C library in the link order, so that base/file.c
 * calls them; they fail when told to and go to the kernel otherwise.
 */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef enum {
    CALL_NONE,
    CALL_READ,
    CALL_WRITE,
    CALL_FSYNC,
    CALL_FCHMOD,
    CALL_CLOSE,
    CALL_RENAME,
    CALL_OPEN,
    CALL_FSTAT,
    CALL_FFLUSH,
    CALL_MALLOC,
    CALL_REALLOC,
} Call;

/* The n_before-th call from now of this kind fails n_times with this errno. */
static struct {
    Call call;
    int n_before;
    int n_times;
    int code;
} fault;

static bool
strikes(Call call)
{
    if (fault.call != call || fault.n_before-- > 0 || fault.n_times-- <= 0)
        return false;
    errno = fault.code;
    return true;
}

ssize_t
read(int fd, void *buffer, size_t n)
{
    return strikes(CALL_READ) ? -1 : (ssize_t)syscall(SYS_read, fd, buffer, n);
}

/* Without a fault at most 1000 bytes at a time, as a pipe may do. */
ssize_t
write(int fd, const void *buffer, size_t n)
{
    return strikes(CALL_WRITE) ? -1 : (ssize_t)syscall(SYS_write, fd, buffer, n < 1000 ? n : 1000);
}

int
fsync(int fd)
{
    return strikes(CALL_FSYNC) ? -1 : (int)syscall(SYS_fsync, fd);
}

int
fchmod(int fd, mode_t mode)
{
    return strikes(CALL_FCHMOD) ? -1 : (int)syscall(SYS_fchmod, fd, mode);
}

int
close(int fd)
{
    int rc = (int)syscall(SYS_close, fd);

    return strikes(CALL_CLOSE) ? -1 : rc;
}

int
rename(const char *from, const char *to)
{
    return strikes(CALL_RENAME) ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int
open(const char *path, int flags, ...)
{
    mode_t mode = 0;

    if (flags & O_CREAT) {
        va_list args;

        va_start(args, flags);
        mode = va_arg(args, mode_t);
        va_end(args);
    }
    return strikes(CALL_OPEN) ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int
fstat(int fd, struct stat *status)
{
    return strikes(CALL_FSTAT) ? -1 : fstatat(fd, "", status, AT_EMPTY_PATH);
}

int
fflush(FILE *stream)
{
    return strikes(CALL_FFLUSH) ? EOF : fflush_unlocked(stream);
}

gpointer
g_try_malloc(gsize n_bytes)
{
    return strikes(CALL_MALLOC) ? NULL : malloc(n_bytes > 0 ? n_bytes : 1);
}

gpointer
g_try_realloc(gpointer memory, gsize n_bytes)
{
    return strikes(CALL_REALLOC) ? NULL : realloc(memory, n_bytes > 0 ? n_bytes : 1);
}

/* --- */

static unsigned
count_entries(const char *folder)
{
    g_autoptr(GDir) dir = g_dir_open(folder, 0, NULL);
    unsigned n = 0;

    while (g_dir_read_name(dir) != NULL)
        n++;
    return n;
}

static void
set_fault(Call call, int n_before, int n_times, int code)
{
    fault.call = call;
    fault.n_before = n_before;
    fault.n_times = n_times;
    fault.code = code;
}

/* Returns the errno-like code of the error, or -1 without one. */
static int
write_under_fault(const char *path, const char *text, size_t n_bytes)
{
    g_autoptr(GError) error = NULL;
    bool ok = file_write(path, text, n_bytes, &error);

    set_fault(CALL_NONE, 0, 0, 0);
    g_assert_cmpint(ok, ==, error == NULL);
    if (ok)
        return -1;
    g_assert_true(error->domain == G_FILE_ERROR);
    return error->code;
}

/* An error keeps the old file and leaves nothing else; success leaves the new one and nothing else.
 */
static void
test_failing_calls_keep_the_old_file(void)
{
    static const struct {
        Call call;
        int n_before;
        int n_times;
        int code;
        int expect; /* a GFileError, or -1 for success */
    } cases[] = {
        {CALL_WRITE, 0, 1, ENOSPC, G_FILE_ERROR_NOSPC},
        {CALL_WRITE, 2, 1, EIO, G_FILE_ERROR_IO}, /* after a part */
        {CALL_WRITE, 1, 3, EINTR, -1},            /* interruptions are invisible */
        {CALL_FSYNC, 0, 1, EIO, G_FILE_ERROR_IO},
        {CALL_FSYNC, 0, 2, EINTR, -1},
        {CALL_FSYNC, 0, 1, EINVAL, -1}, /* a file system that cannot sync */
        {CALL_FSYNC, 0, 1, ENOTSUP, -1},
        {CALL_FSYNC, 1, 1, EIO, -1}, /* the folder's: the file is there already */
        {CALL_FCHMOD, 0, 1, EPERM, G_FILE_ERROR_PERM},
        {CALL_CLOSE, 0, 1, EIO, G_FILE_ERROR_IO}, /* late news from a network */
        {CALL_CLOSE, 0, 1, EINTR, -1},
        {CALL_CLOSE, 1, 1, EIO, -1}, /* the folder's */
        {CALL_RENAME, 0, 1, EXDEV, G_FILE_ERROR_FAILED},
        {CALL_RENAME, 0, 1, EROFS, G_FILE_ERROR_ROFS},
        {CALL_OPEN, 0, 1, EMFILE, G_FILE_ERROR_MFILE},
        {CALL_OPEN, 0, 3, EEXIST, -1}, /* leftovers */
        {CALL_OPEN, 0, 3, EINTR, -1},
        {CALL_OPEN, 0, 5000, EEXIST, G_FILE_ERROR_EXIST}, /* gives up in the end */
        {CALL_OPEN, 1, 1, EMFILE, -1},                    /* the folder's */
    };
    g_autofree char *folder = g_dir_make_tmp("degas-XXXXXX", NULL);
    g_autofree char *path = g_build_filename(folder, "file", NULL);
    g_autofree char *text = g_strnfill(5000, 'n');

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *back = NULL;
        size_t n_bytes;

        g_assert_true(file_write(path, "old", 3, NULL));
        set_fault(cases[i].call, cases[i].n_before, cases[i].n_times, cases[i].code);
        g_assert_cmpint(write_under_fault(path, text, 5000), ==, cases[i].expect);
        g_assert_true(file_read(path, &back, &n_bytes, NULL));
        g_assert_cmpstr(back, ==, cases[i].expect == -1 ? text : "old");
        g_assert_cmpuint(count_entries(folder), ==, 1);
    }
    g_remove(path);
    /* nor is there a file where there was none */
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        if (cases[i].expect == -1 || cases[i].call == CALL_FCHMOD)
            continue;
        set_fault(cases[i].call, cases[i].n_before, cases[i].n_times, cases[i].code);
        g_assert_cmpint(write_under_fault(path, text, 5000), ==, cases[i].expect);
        g_assert_cmpuint(count_entries(folder), ==, 0);
    }
    g_rmdir(folder);
}

static void
test_failing_calls_on_devices(void)
{
    set_fault(CALL_OPEN, 0, 1, EACCES);
    g_assert_cmpint(write_under_fault("/dev/null", "x", 1), ==, G_FILE_ERROR_ACCES);
    set_fault(CALL_OPEN, 0, 1, EINTR);
    g_assert_cmpint(write_under_fault("/dev/null", "x", 1), ==, -1);
    set_fault(CALL_WRITE, 0, 1, EIO);
    g_assert_cmpint(write_under_fault("/dev/null", "x", 1), ==, G_FILE_ERROR_IO);
    set_fault(CALL_CLOSE, 0, 1, EIO);
    g_assert_cmpint(write_under_fault("/dev/null", "x", 1), ==, G_FILE_ERROR_IO);
}

static void
test_failing_calls_on_standard_output(void)
{
    set_fault(CALL_FFLUSH, 0, 1, ENOSPC); /* of what was printed before */
    g_assert_cmpint(write_under_fault("-", "# x\n", 4), ==, G_FILE_ERROR_NOSPC);
    set_fault(CALL_WRITE, 0, 1, EPIPE);
    g_assert_cmpint(write_under_fault("/dev/stdout", "# x\n", 4), ==, G_FILE_ERROR_PIPE);
    set_fault(CALL_WRITE, 0, 2, EINTR);
    g_assert_cmpint(write_under_fault("-", "# x\n", 4), ==, -1);
}

static void
test_failing_reads(void)
{
    static const struct {
        const char *path; /* NULL: a regular file */
        Call call;
        int n_before;
        int n_times;
        int code;
        int expect;
    } cases[] = {
        {NULL, CALL_OPEN, 0, 1, EINTR, -1},
        {NULL, CALL_OPEN, 0, 1, ENFILE, G_FILE_ERROR_NFILE},
        {NULL, CALL_READ, 0, 2, EINTR, -1},
        {NULL, CALL_READ, 0, 1, EIO, G_FILE_ERROR_IO},
        {NULL, CALL_READ, 1, 1, EIO, G_FILE_ERROR_IO}, /* at the end */
        {NULL, CALL_FSTAT, 0, 1, EIO, G_FILE_ERROR_IO},
        {NULL, CALL_MALLOC, 0, 1, ENOMEM, G_FILE_ERROR_NOMEM},
        {"/dev/zero", CALL_REALLOC, 1, 1, ENOMEM, G_FILE_ERROR_NOMEM},
    };
    g_autofree char *folder = g_dir_make_tmp("degas-XXXXXX", NULL);
    g_autofree char *path = g_build_filename(folder, "file", NULL);

    g_assert_true(file_write(path, "text", 4, NULL));
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_autofree char *text = NULL;
        size_t n_bytes;
        bool ok;

        set_fault(cases[i].call, cases[i].n_before, cases[i].n_times, cases[i].code);
        ok = file_read(cases[i].path != NULL ? cases[i].path : path, &text, &n_bytes, &error);
        set_fault(CALL_NONE, 0, 0, 0);
        g_assert_cmpint(ok, ==, cases[i].expect == -1);
        if (ok) {
            g_assert_cmpstr(text, ==, "text");
        } else {
            g_assert_error(error, G_FILE_ERROR, cases[i].expect);
            g_assert_null(text);
        }
    }
    g_remove(path);
    g_rmdir(folder);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/base/file-faults/failing-calls-keep-the-old-file",
                    test_failing_calls_keep_the_old_file);
    g_test_add_func("/base/file-faults/failing-calls-on-devices", test_failing_calls_on_devices);
    g_test_add_func("/base/file-faults/failing-calls-on-standard-output",
                    test_failing_calls_on_standard_output);
    g_test_add_func("/base/file-faults/failing-reads", test_failing_reads);
    return g_test_run();
}
