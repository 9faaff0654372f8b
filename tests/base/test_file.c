/* Tests of base/file.h: whole files in and out, and what happens when that is impossible. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* A folder of its own for each test, removed with all that is in it. */
typedef struct {
    char *folder;
    char *path; /* folder/file */
} Place;

static void
set_up(Place *place, const void *data)
{
    place->folder = g_dir_make_tmp("degas-XXXXXX", NULL);
    g_assert_nonnull(place->folder);
    place->path = g_build_filename(place->folder, "file", NULL);
}

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
tear_down(Place *place, const void *data)
{
    g_autoptr(GDir) dir = g_dir_open(place->folder, 0, NULL);
    const char *name;

    while ((name = g_dir_read_name(dir)) != NULL) {
        g_autofree char *path = g_build_filename(place->folder, name, NULL);

        g_remove(path);
    }
    g_rmdir(place->folder);
    g_free(place->folder);
    g_free(place->path);
}

static void
assert_contents(const char *path, const char *expect)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *text = NULL;
    size_t n_bytes = 77;

    g_assert_true(file_read(path, &text, &n_bytes, &error));
    g_assert_no_error(error);
    g_assert_cmpuint(n_bytes, ==, strlen(expect));
    g_assert_cmpstr(text, ==, expect);
}

static void
assert_writes(const char *path, const char *text)
{
    g_autoptr(GError) error = NULL;

    g_assert_true(file_write(path, text, strlen(text), &error));
    g_assert_no_error(error);
}

static void
assert_write_fails(const char *path, const char *text, GFileError code)
{
    g_autoptr(GError) error = NULL;

    g_assert_false(file_write(path, text, strlen(text), &error));
    g_assert_error(error, G_FILE_ERROR, (int)code);
    g_assert_nonnull(strstr(error->message, ": cannot write"));
}

/* --- writing --- */

static void
test_writes_and_reads_back(Place *place, const void *data)
{
    g_autofree char *large = g_malloc(3000000);
    g_autofree char *back = NULL;
    size_t n_bytes;

    assert_writes(place->path, "");
    assert_contents(place->path, "");
    assert_writes(place->path, "first\n");
    assert_contents(place->path, "first\n");
    for (size_t i = 0; i < 3000000; i++)
        large[i] = (char)(i * 7);
    g_assert_true(file_write(place->path, large, 3000000, NULL));
    g_assert_true(file_read(place->path, &back, &n_bytes, NULL));
    g_assert_cmpuint(n_bytes, ==, 3000000);
    g_assert_cmpint(memcmp(large, back, n_bytes), ==, 0);
    g_assert_cmpint(back[n_bytes], ==, 0);
    g_assert_cmpuint(count_entries(place->folder), ==, 1);
}

static void
test_new_files_obey_the_umask(Place *place, const void *data)
{
    mode_t old = umask(027);
    struct stat status;

    assert_writes(place->path, "x");
    umask(old);
    g_assert_cmpint(stat(place->path, &status), ==, 0);
    g_assert_cmpint(status.st_mode & 07777, ==, 0640);
}

static void
test_old_permissions_are_kept(Place *place, const void *data)
{
    struct stat status;

    assert_writes(place->path, "x");
    g_assert_cmpint(chmod(place->path, 0604), ==, 0);
    assert_writes(place->path, "y");
    g_assert_cmpint(stat(place->path, &status), ==, 0);
    g_assert_cmpint(status.st_mode & 07777, ==, 0604);
}

/* Whoever has the old file open keeps reading the old file: it is replaced, not overwritten. */
static void
test_replaces_at_once(Place *place, const void *data)
{
    char buffer[8] = "";
    int fd;

    assert_writes(place->path, "old");
    fd = open(place->path, O_RDONLY);
    assert_writes(place->path, "new");
    g_assert_cmpint(read(fd, buffer, sizeof(buffer)), ==, 3);
    close(fd);
    g_assert_cmpstr(buffer, ==, "old");
    assert_contents(place->path, "new");
}

static void
test_follows_symbolic_links(Place *place, const void *data)
{
    g_autofree char *link = g_build_filename(place->folder, "link", NULL);
    g_autofree char *chain = g_build_filename(place->folder, "chain", NULL);

    g_assert_cmpint(symlink("file", link), ==, 0); /* dangling and relative at first */
    g_assert_cmpint(symlink(link, chain), ==, 0);  /* absolute */
    assert_writes(chain, "one");
    assert_contents(place->path, "one");
    assert_writes(link, "two");
    assert_contents(place->path, "two");
    g_assert_true(g_file_test(link, G_FILE_TEST_IS_SYMLINK));
    g_assert_true(g_file_test(chain, G_FILE_TEST_IS_SYMLINK));
    g_assert_cmpuint(count_entries(place->folder), ==, 3);
}

static void
test_endless_links_are_an_error(Place *place, const void *data)
{
    g_assert_cmpint(symlink("file", place->path), ==, 0);
    assert_write_fails(place->path, "x", G_FILE_ERROR_LOOP);
    g_assert_cmpuint(count_entries(place->folder), ==, 1);
}

static void
test_devices_are_written_not_replaced(Place *place, const void *data)
{
    struct stat status;

    assert_writes("/dev/null", "gone");
    g_assert_cmpint(stat("/dev/null", &status), ==, 0);
    g_assert_true(S_ISCHR(status.st_mode));
    if (access("/dev/full", W_OK) != 0) {
        g_test_skip("no /dev/full");
        return;
    }
    assert_write_fails("/dev/full", "x", G_FILE_ERROR_NOSPC);
    /* also through a link */
    g_assert_cmpint(symlink("/dev/full", place->path), ==, 0);
    assert_write_fails(place->path, "x", G_FILE_ERROR_NOSPC);
    g_assert_cmpuint(count_entries(place->folder), ==, 1);
}

static void
test_pipes_are_written_not_replaced(Place *place, const void *data)
{
    char buffer[16] = "";
    struct stat status;
    int fd;

    g_assert_cmpint(mkfifo(place->path, 0600), ==, 0);
    fd = open(place->path, O_RDONLY | O_NONBLOCK);
    assert_writes(place->path, "through");
    g_assert_cmpint(read(fd, buffer, sizeof(buffer) - 1), ==, 7);
    close(fd);
    g_assert_cmpstr(buffer, ==, "through");
    g_assert_cmpint(stat(place->path, &status), ==, 0);
    g_assert_true(S_ISFIFO(status.st_mode));
}

static void
test_impossible_targets(Place *place, const void *data)
{
    g_autofree char *inside = g_build_filename(place->folder, "none", "file", NULL);
    g_autofree char *slash = g_strconcat(place->folder, "/new/", NULL);
    g_autofree char *below = g_build_filename(place->path, "file", NULL);
    g_autofree char *name = g_strnfill(300, 'n');
    g_autofree char *long_name = g_build_filename(place->folder, name, NULL);

    assert_write_fails("", "x", G_FILE_ERROR_NOENT);
    assert_write_fails(place->folder, "x", G_FILE_ERROR_ISDIR);
    assert_write_fails(slash, "x", G_FILE_ERROR_ISDIR);
    assert_write_fails(inside, "x", G_FILE_ERROR_NOENT);
    assert_write_fails(long_name, "x", G_FILE_ERROR_NAMETOOLONG);
    g_assert_cmpuint(count_entries(place->folder), ==, 0);
    assert_writes(place->path, "a file");
    assert_write_fails(below, "x", G_FILE_ERROR_NOTDIR);
    assert_contents(place->path, "a file");
}

static void
test_messages_name_the_path(Place *place, const void *data)
{
    g_autoptr(GError) write_error = NULL;
    g_autoptr(GError) read_error = NULL;
    char *text;
    size_t n_bytes;

    g_assert_false(file_write("none/\x1b[31m\nx", "x", 1, &write_error));
    g_assert_cmpstr(write_error->message, ==,
                    "none/\\x1b[31m\\nx: cannot write a new file in its folder: No such file or "
                    "directory");
    g_assert_false(file_read("none/x.json", &text, &n_bytes, &read_error));
    g_assert_cmpstr(read_error->message, ==, "none/x.json: cannot read: No such file or directory");
}

/* The disk is full after 4096 bytes: a limit on the size of files does the same. */
static void
test_a_full_disk_leaves_the_old_file(Place *place, const void *data)
{
    g_autofree char *large = g_strnfill(10000, 'x');
    struct rlimit old;
    struct rlimit small;
    bool ok;
    g_autoptr(GError) error = NULL;

    assert_writes(place->path, "old");
    g_assert_cmpint(getrlimit(RLIMIT_FSIZE, &old), ==, 0);
    signal(SIGXFSZ, SIG_IGN);
    small = (struct rlimit){.rlim_cur = 4096, .rlim_max = old.rlim_max};
    g_assert_cmpint(setrlimit(RLIMIT_FSIZE, &small), ==, 0);
    ok = file_write(place->path, large, 10000, &error);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_DFL);
    g_assert_false(ok);
    g_assert_nonnull(strstr(error->message, "cannot write: File too large"));
    assert_contents(place->path, "old");
    g_assert_cmpuint(count_entries(place->folder), ==, 1);
}

/* Root may write everywhere, so it becomes somebody else for this test. */
static void
test_read_only_places_are_left_alone(Place *place, const void *data)
{
    static const uid_t nobody = 65534;
    bool was_root = geteuid() == 0;

    assert_writes(place->path, "old");
    g_assert_cmpint(chmod(place->path, 0400), ==, 0);
    if (was_root) {
        g_assert_cmpint(chown(place->path, nobody, nobody), ==, 0);
        g_assert_cmpint(chown(place->folder, nobody, nobody), ==, 0);
        if (seteuid(nobody) != 0) {
            g_test_skip("cannot give up root's rights");
            return;
        }
    }
    assert_write_fails(place->path, "new", G_FILE_ERROR_ACCES);
    g_assert_cmpint(chmod(place->path, 0600), ==, 0);
    g_assert_cmpint(chmod(place->folder, 0500), ==, 0);
    assert_write_fails(place->path, "new", G_FILE_ERROR_ACCES);
    g_assert_cmpint(chmod(place->folder, 0700), ==, 0);
    if (was_root)
        g_assert_cmpint(seteuid(0), ==, 0);
    assert_contents(place->path, "old");
    g_assert_cmpuint(count_entries(place->folder), ==, 1);
}

/* A killed process with our id left its temporary file: another name is found. */
static void
test_leftovers_are_no_obstacle(Place *place, const void *data)
{
    for (unsigned i = 0; i < 500; i++) {
        g_autofree char *name = g_strdup_printf(".degas-%ld-%u.tmp", (long)getpid(), i);
        g_autofree char *path = g_build_filename(place->folder, name, NULL);

        g_assert_true(g_file_set_contents(path, "leftover", -1, NULL));
    }
    assert_writes(place->path, "written");
    assert_contents(place->path, "written");
    g_assert_cmpuint(count_entries(place->folder), ==, 501);
}

/* --- standard output --- */

/* Runs file_write("-") in a child whose standard output is @fd; returns the error's code, -1: none.
 */
static int
write_to_stdout(int fd)
{
    pid_t child = fork();
    int status;

    if (child == 0) {
        g_autoptr(GError) error = NULL;

        signal(SIGPIPE, SIG_IGN);
        if (fd < 0)
            close(STDOUT_FILENO);
        else
            dup2(fd, STDOUT_FILENO);
        if (file_write("-", "text\n", 5, &error))
            _exit(100);
        _exit(error->domain == G_FILE_ERROR ? error->code : 101);
    }
    g_assert_cmpint(waitpid(child, &status, 0), ==, child);
    g_assert_true(WIFEXITED(status));
    return WEXITSTATUS(status) == 100 ? -1 : WEXITSTATUS(status);
}

static void
test_writes_standard_output(Place *place, const void *data)
{
    int fds[2];
    char buffer[16] = "";
    int full;

    g_assert_cmpint(pipe(fds), ==, 0);
    g_assert_cmpint(write_to_stdout(fds[1]), ==, -1);
    g_assert_cmpint(read(fds[0], buffer, sizeof(buffer)), ==, 5);
    g_assert_cmpstr(buffer, ==, "text\n");
    close(fds[0]);
    g_assert_cmpint(write_to_stdout(fds[1]), ==, G_FILE_ERROR_PIPE);
    close(fds[1]);
    g_assert_cmpint(write_to_stdout(-1), ==, G_FILE_ERROR_BADF);
    full = open("/dev/full", O_WRONLY);
    if (full < 0) {
        g_test_skip("no /dev/full");
        return;
    }
    g_assert_cmpint(write_to_stdout(full), ==, G_FILE_ERROR_NOSPC);
    close(full);
}

/* --- reading --- */

static void
test_unreadable_inputs(Place *place, const void *data)
{
    static const struct {
        const char *path;
        int code;
    } cases[] = {
        {"", G_FILE_ERROR_NOENT},
        {"none/none", G_FILE_ERROR_NOENT},
        {"/", G_FILE_ERROR_ISDIR},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        char *text = NULL;
        size_t n_bytes = 77;

        g_assert_false(file_read(cases[i].path, &text, &n_bytes, &error));
        g_assert_error(error, G_FILE_ERROR, cases[i].code);
        g_assert_null(text);
        g_assert_cmpuint(n_bytes, ==, 77);
        g_assert_false(file_read(cases[i].path, &text, &n_bytes, NULL));
    }
}

static void
test_size_limits(Place *place, const void *data)
{
    g_autoptr(GError) regular = NULL;
    g_autoptr(GError) endless = NULL;
    g_autofree char *message = g_strconcat(place->path, ": larger than the limit of 9 bytes", NULL);
    g_autofree char *text = NULL;
    char *untouched = NULL;
    size_t n_bytes;

    assert_writes(place->path, "0123456789");
    g_assert_true(file_read_max(place->path, 10, &text, &n_bytes, NULL));
    g_assert_cmpuint(n_bytes, ==, 10);
    g_assert_false(file_read_max(place->path, 9, &untouched, &n_bytes, &regular));
    g_assert_error(regular, G_FILE_ERROR, G_FILE_ERROR_FAILED);
    g_assert_cmpstr(regular->message, ==, message);
    g_assert_false(file_read_max("/dev/zero", 1000000, &untouched, &n_bytes, &endless));
    g_assert_error(endless, G_FILE_ERROR, G_FILE_ERROR_FAILED);
    g_assert_null(untouched);
}

/* A file of the system that says its size is 0. */
static void
test_reads_files_without_a_size(Place *place, const void *data)
{
    g_autofree char *text = NULL;
    size_t n_bytes = 0;

    if (access("/proc/self/maps", R_OK) != 0) {
        g_test_skip("no /proc");
        return;
    }
    g_assert_true(file_read("/proc/self/maps", &text, &n_bytes, NULL));
    g_assert_cmpuint(n_bytes, >, 0);
    g_assert_cmpuint(n_bytes, ==, strlen(text));
}

static void
test_reads_pipes(Place *place, const void *data)
{
    g_autofree char *large = g_strnfill(300000, 'p');
    pid_t child;
    int status;

    g_assert_cmpint(mkfifo(place->path, 0600), ==, 0);
    child = fork();
    if (child == 0)
        _exit(file_write(place->path, large, 300000, NULL) ? 0 : 1);
    assert_contents(place->path, large);
    g_assert_cmpint(waitpid(child, &status, 0), ==, child);
    g_assert_cmpint(status, ==, 0);
}

static void
test_reads_standard_input(Place *place, const void *data)
{
    int old = dup(STDIN_FILENO);
    g_autofree char *text = NULL;
    size_t n_bytes = 0;
    int fd;
    bool ok;

    assert_writes(place->path, "from stdin");
    fd = open(place->path, O_RDONLY);
    dup2(fd, STDIN_FILENO);
    close(fd);
    ok = file_read("-", &text, &n_bytes, NULL);
    g_assert_cmpint(fcntl(STDIN_FILENO, F_GETFD), >=, 0); /* still open */
    dup2(old, STDIN_FILENO);
    close(old);
    g_assert_true(ok);
    g_assert_cmpstr(text, ==, "from stdin");
}

static void
test_stdin_that_is_closed_is_an_error(Place *place, const void *data)
{
    pid_t child = fork();
    int status;

    if (child == 0) {
        g_autoptr(GError) error = NULL;
        char *text;
        size_t n_bytes;

        close(STDIN_FILENO);
        _exit(!file_read("-", &text, &n_bytes, &error) &&
                      g_error_matches(error, G_FILE_ERROR, G_FILE_ERROR_BADF)
                  ? 0
                  : 1);
    }
    g_assert_cmpint(waitpid(child, &status, 0), ==, child);
    g_assert_cmpint(status, ==, 0);
}

/* file_move() moves all bytes at an offset, and tells an end of the file and an error apart. */
static void
test_moves_bytes_of_open_files(Place *place, const void *data)
{
    char back[4] = {0};
    const int fd = g_open(place->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);

    g_assert_cmpint(fd, >=, 0);
    g_assert_cmpint(file_move(fd, true, (char[]){"abc"}, 3, 2), ==, 0);
    g_assert_cmpint(file_move(fd, false, back, 3, 2), ==, 0);
    g_assert_cmpstr(back, ==, "abc");
    g_assert_cmpint(file_move(fd, false, back, 3, 3), ==, -1);
    g_assert_cmpint(close(fd), ==, 0);
    g_assert_cmpint(file_move(fd, false, back, 3, 0), ==, EBADF);
}

static void
add(const char *path, void (*test)(Place *, const void *))
{
    g_test_add(path, Place, NULL, set_up, test, tear_down);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    add("/base/file/writes-and-reads-back", test_writes_and_reads_back);
    add("/base/file/new-files-obey-the-umask", test_new_files_obey_the_umask);
    add("/base/file/old-permissions-are-kept", test_old_permissions_are_kept);
    add("/base/file/replaces-at-once", test_replaces_at_once);
    add("/base/file/follows-symbolic-links", test_follows_symbolic_links);
    add("/base/file/endless-links-are-an-error", test_endless_links_are_an_error);
    add("/base/file/devices-are-written-not-replaced", test_devices_are_written_not_replaced);
    add("/base/file/pipes-are-written-not-replaced", test_pipes_are_written_not_replaced);
    add("/base/file/impossible-targets", test_impossible_targets);
    add("/base/file/messages-name-the-path", test_messages_name_the_path);
    add("/base/file/a-full-disk-leaves-the-old-file", test_a_full_disk_leaves_the_old_file);
    add("/base/file/read-only-places-are-left-alone", test_read_only_places_are_left_alone);
    add("/base/file/leftovers-are-no-obstacle", test_leftovers_are_no_obstacle);
    add("/base/file/writes-standard-output", test_writes_standard_output);
    add("/base/file/unreadable-inputs", test_unreadable_inputs);
    add("/base/file/size-limits", test_size_limits);
    add("/base/file/reads-files-without-a-size", test_reads_files_without_a_size);
    add("/base/file/reads-pipes", test_reads_pipes);
    add("/base/file/reads-standard-input", test_reads_standard_input);
    add("/base/file/stdin-that-is-closed-is-an-error", test_stdin_that_is_closed_is_an_error);
    add("/base/file/moves-bytes-of-open-files", test_moves_bytes_of_open_files);
    return g_test_run();
}
