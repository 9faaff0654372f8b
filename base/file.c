#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"

/* Same limit as the kernel's (MAXSYMLINKS). */
#define MAX_SYMLINKS 40
/* Temporary names tried before giving up; each clash is a leftover of a killed process. */
#define MAX_TEMP_NAMES 1000

/* Always false, so that callers can return it. */
static bool
fail(GError **error, int code, const char *path, const char *what)
{
    g_autofree char *shown = text_escape(path, 1024);

    g_set_error(error, G_FILE_ERROR, (int)g_file_error_from_errno(code), "%s: %s: %s", shown, what,
                g_strerror(code));
    return false;
}

static bool
fail_too_big(GError **error, const char *path, size_t max_bytes)
{
    g_autofree char *shown = text_escape(path, 1024);

    g_set_error(error, G_FILE_ERROR, G_FILE_ERROR_FAILED, "%s: larger than the limit of %zu bytes",
                shown, max_bytes);
    return false;
}

/* Reads to the end of @fd; more than @max_bytes is an error.  @size_hint may be 0. */
static bool
read_all(int fd, const char *path, size_t size_hint, size_t max_bytes, char **contents,
         size_t *n_bytes, GError **error)
{
    size_t capacity = size_hint + 2; /* the NUL, and one more so that the end is seen at once */
    size_t length = 0;
    g_autofree char *buffer = g_try_malloc(capacity);

    if (buffer == NULL)
        return fail(error, ENOMEM, path, "cannot read");
    for (;;) {
        ssize_t n = read(fd, buffer + length, capacity - length - 1);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail(error, errno, path, "cannot read");
        if (n == 0)
            break;
        length += (size_t)n;
        if (length > max_bytes)
            return fail_too_big(error, path, max_bytes);
        if (capacity - length < 2) {
            size_t larger = capacity < 32768 ? 65536 : capacity * 2; /* max_bytes bounds it */
            char *moved = g_try_realloc(buffer, larger);

            if (moved == NULL)
                return fail(error, ENOMEM, path, "cannot read");
            buffer = moved;
            capacity = larger;
        }
    }
    buffer[length] = 0;
    *contents = g_steal_pointer(&buffer);
    *n_bytes = length;
    return true;
}

bool
file_read_max(const char *path, size_t max_bytes, char **contents, size_t *n_bytes, GError **error)
{
    int fd;
    struct stat status;
    bool ok;

    g_return_val_if_fail(path != NULL && contents != NULL && n_bytes != NULL, false);
    g_return_val_if_fail(max_bytes <= FILE_MAX_BYTES, false);

    bool is_stdin = strcmp(path, "-") == 0;
    do {
        fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return fail(error, errno, path, "cannot read");
    if (fstat(fd, &status) != 0)
        ok = fail(error, errno, path, "cannot read");
    else if (S_ISDIR(status.st_mode))
        ok = fail(error, EISDIR, path, "cannot read");
    else if (S_ISREG(status.st_mode) && status.st_size > (off_t)max_bytes)
        ok = fail_too_big(error, path, max_bytes);
    else
        ok = read_all(fd, path, S_ISREG(status.st_mode) ? (size_t)status.st_size : 0, max_bytes,
                      contents, n_bytes, error);
    if (!is_stdin)
        close(fd);
    return ok;
}

bool
file_read(const char *path, char **contents, size_t *n_bytes, GError **error)
{
    return file_read_max(path, FILE_MAX_BYTES, contents, n_bytes, error);
}

/* Returns 0 or errno. */
static int
write_all(int fd, const char *data, size_t n_bytes)
{
    while (n_bytes > 0) {
        ssize_t n = write(fd, data, n_bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno;
        data += n;
        n_bytes -= (size_t)n;
    }
    return 0;
}

/* Some file systems cannot sync (EINVAL, ENOTSUP); that is no failure to write. */
static int
sync_fd(int fd)
{
    int rc;

    do {
        rc = fsync(fd);
    } while (rc != 0 && errno == EINTR);
    return rc == 0 || errno == EINVAL || errno == ENOTSUP || errno == EROFS ? 0 : errno;
}

static bool
write_stdout(const char *data, size_t n_bytes, GError **error)
{
    int code = 0;

    /* What the program printed before must come before. */
    if (fflush(stdout) != 0)
        code = errno;
    if (code == 0)
        code = write_all(STDOUT_FILENO, data, n_bytes);
    return code == 0 || fail(error, code, "standard output", "cannot write");
}

/* For devices and pipes, which cannot be replaced. */
static bool
write_directly(const char *path, const char *data, size_t n_bytes, GError **error)
{
    int fd;

    do {
        fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return fail(error, errno, path, "cannot write");
    int code = write_all(fd, data, n_bytes);
    if (close(fd) != 0 && code == 0 && errno != EINTR)
        code = errno;
    return code == 0 || fail(error, code, path, "cannot write");
}

/* Returns: (owned) what @path is after following the symbolic links of its last component, whose
 * end need not exist; NULL with errno ELOOP. */
static char *
follow_links(const char *path)
{
    g_autofree char *here = g_strdup(path);

    for (int i = 0; i < MAX_SYMLINKS; i++) {
        g_autofree char *target = g_file_read_link(here, NULL);
        g_autofree char *folder = g_path_get_dirname(here);

        if (target == NULL)
            return g_steal_pointer(&here);
        g_free(here);
        here = g_path_is_absolute(target) ? g_steal_pointer(&target)
                                          : g_build_filename(folder, target, NULL);
    }
    errno = ELOOP;
    return NULL;
}

/* Opens a new file in @folder; its permissions obey the umask, which mkstemp() would not. */
static int
open_temp(const char *folder, char **name)
{
    static atomic_uint counter;

    for (int i = 0; i < MAX_TEMP_NAMES; i++) {
        unsigned n = atomic_fetch_add(&counter, 1);
        g_autofree char *base = g_strdup_printf(".degas-%ld-%u.tmp", (long)getpid(), n);
        g_autofree char *path = g_build_filename(folder, base, NULL);
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);

        if (fd >= 0) {
            *name = g_steal_pointer(&path);
            return fd;
        }
        if (errno != EEXIST && errno != EINTR)
            return -1;
    }
    return -1;
}

/* Writes @temp, open as @fd, and closes it; returns 0 or errno. */
static int
fill_temp(int fd, const struct stat *old, const char *data, size_t n_bytes)
{
    int code = write_all(fd, data, n_bytes);

    if (code == 0 && old != NULL && fchmod(fd, old->st_mode & 07777) != 0)
        code = errno;
    if (code == 0)
        code = sync_fd(fd);
    if (close(fd) != 0 && code == 0 && errno != EINTR)
        code = errno;
    return code;
}

void
file_hold_signals(sigset_t *before)
{
    static const int signals[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    sigset_t held;

    sigemptyset(&held);
    for (size_t i = 0; i < G_N_ELEMENTS(signals); i++)
        sigaddset(&held, signals[i]);
    pthread_sigmask(SIG_BLOCK, &held, before);
}

/* @old  (nullable) the status of the regular file that is replaced. */
static bool
replace_uninterrupted(const char *path, const struct stat *old, const char *data, size_t n_bytes,
                      GError **error)
{
    g_autofree char *target = follow_links(path);
    g_autofree char *temp = NULL;

    if (target == NULL)
        return fail(error, errno, path, "cannot write");
    /* A rename would replace it all the same. */
    if (old != NULL && faccessat(AT_FDCWD, target, W_OK, AT_EACCESS) != 0)
        return fail(error, errno, path, "cannot write");
    g_autofree char *folder = g_path_get_dirname(target);
    int fd = open_temp(folder, &temp);
    if (fd < 0)
        return fail(error, errno, path, "cannot write a new file in its folder");
    int code = fill_temp(fd, old, data, n_bytes);
    if (code == 0 && rename(temp, target) != 0)
        code = errno;
    if (code != 0) {
        unlink(temp);
        return fail(error, code, path, "cannot write");
    }
    /* The file is complete by now; a folder that cannot be synced changes nothing about that. */
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        sync_fd(fd);
        close(fd);
    }
    return true;
}

static bool
replace(const char *path, const struct stat *old, const char *data, size_t n_bytes, GError **error)
{
    sigset_t before;

    file_hold_signals(&before);
    const bool ok = replace_uninterrupted(path, old, data, n_bytes, error);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return ok;
}

bool
file_write(const char *path, const char *data, size_t n_bytes, GError **error)
{
    struct stat status;

    g_return_val_if_fail(path != NULL && (data != NULL || n_bytes == 0), false);

    if (strcmp(path, "-") == 0 || strcmp(path, "/dev/stdout") == 0)
        return write_stdout(data, n_bytes, error);
    /* A trailing slash names a folder even where there is none. */
    if (path[0] == 0 || g_str_has_suffix(path, "/"))
        return fail(error, path[0] == 0 ? ENOENT : EISDIR, path, "cannot write");
    if (stat(path, &status) != 0) {
        if (errno != ENOENT)
            return fail(error, errno, path, "cannot write");
        return replace(path, NULL, data, n_bytes, error);
    }
    if (S_ISDIR(status.st_mode))
        return fail(error, EISDIR, path, "cannot write");
    if (S_ISREG(status.st_mode))
        return replace(path, &status, data, n_bytes, error);
    return write_directly(path, data, n_bytes, error);
}

int
file_move(int fd, bool writes, void *bytes, size_t n_bytes, int64_t offset)
{
    for (size_t done = 0; done < n_bytes;) {
        char *at = (char *)bytes + done;
        const off_t from = (off_t)offset + (off_t)done;
        const ssize_t moved =
            writes ? pwrite(fd, at, n_bytes - done, from) : pread(fd, at, n_bytes - done, from);
        if (moved < 0 && errno != EINTR)
            return errno;
        if (moved == 0)
            return -1;
        done += moved > 0 ? (size_t)moved : 0;
    }
    return 0;
}
