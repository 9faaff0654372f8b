/* Tests of executor/run/data.h: what is read does not depend on who reads; hostile files. */
#include "executor/run/data.h"

#include <fcntl.h>
#include <glib/gstdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *directory;

static char *
write_file(const char *name, const void *bytes, size_t n)
{
    char *path = g_build_filename(directory, name, NULL);

    g_assert_true(g_file_set_contents(path, bytes, (gssize)n, NULL));
    return path;
}

/* Every token of a sequence, and the one after the last, is the file's at one run of places. */
static void
test_text_is_bytes(void)
{
    g_autoptr(GError) error = NULL;
    uint8_t bytes[200];
    int32_t tokens[11];

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i + 30);
    g_autofree char *path = write_file("a.txt", bytes, sizeof bytes);
    g_autoptr(ExecData) data = exec_data_open(path, 256, 10, 1, 1, &error);
    g_assert_no_error(error);
    int32_t lowest = INT32_MAX, highest = 0;
    for (int64_t i = 0; i < 2000; i++) {
        g_assert_true(exec_data_sequence(data, i / 7, i % 7, tokens, &error));
        for (int32_t t = 1; t <= 10; t++)
            g_assert_cmpint(tokens[t], ==, tokens[0] + t);
        lowest = MIN(lowest, tokens[0]);
        highest = MAX(highest, tokens[10]);
    }
    /* 2000 draws of 190 beginnings miss an end with probability (189/190)^2000 < 3e-5. */
    g_assert_cmpint(lowest, ==, 30);
    g_assert_cmpint(highest, ==, 229);
}

static void
test_bin_is_little_endian_uint16(void)
{
    g_autoptr(GError) error = NULL;
    const uint8_t bytes[] = {1, 0, 2, 1, 255, 255, 0, 128};
    int32_t tokens[4];
    g_autofree char *path = write_file("a.bin", bytes, sizeof bytes);
    g_autoptr(ExecData) data = exec_data_open(path, 65536, 3, 1, 1, &error);

    g_assert_no_error(error);
    g_assert_true(exec_data_sequence(data, 0, 0, tokens, &error));
    const int32_t expected[] = {1, 258, 65535, 32768};
    g_assert_cmpint(memcmp(tokens, expected, sizeof expected), ==, 0);
}

/* Equal (seed, step, index), equal tokens, in whatever order; other keys, other tokens. */
static void
test_depends_on_seed_step_and_index_only(void)
{
    enum {
        N = 65
    };
    int32_t first[N], again[N], other[N];
    g_autoptr(ExecData) a = exec_data_open(NULL, 300, N - 1, 1, 5, NULL);
    g_autoptr(ExecData) b = exec_data_open(NULL, 300, N - 1, 1, 5, NULL);
    g_autoptr(ExecData) c = exec_data_open(NULL, 300, N - 1, 1, 6, NULL);

    g_assert_true(exec_data_sequence(a, 3, 4, first, NULL));
    g_assert_true(exec_data_sequence(b, 9, 9, again, NULL));
    g_assert_true(exec_data_sequence(b, 3, 4, again, NULL));
    g_assert_cmpint(memcmp(first, again, sizeof first), ==, 0);
    g_assert_true(exec_data_sequence(a, 4, 3, other, NULL));
    g_assert_cmpint(memcmp(first, other, sizeof first), !=, 0);
    g_assert_true(exec_data_sequence(a, 3, 5, other, NULL));
    g_assert_cmpint(memcmp(first, other, sizeof first), !=, 0);
    g_assert_true(exec_data_sequence(c, 3, 4, other, NULL));
    g_assert_cmpint(memcmp(first, other, sizeof first), !=, 0);
    for (size_t i = 0; i < N; i++)
        g_assert_true(first[i] >= 0 && first[i] < 300);
}

static void
test_hostile_files_are_errors(void)
{
    static const struct {
        const char *name, *bytes;
        size_t n;
        int64_t vocab;
        const char *says;
    } cases[] = {
        {"empty.txt", "", 0, 256, "0 tokens are too few"},
        {"short.txt", "0123456789", 10, 256, "at least 11"},
        {"odd.bin", "012345678901234567890123456789", 29, 65536, "29 bytes"},
        {"short.bin", "01234567890123456789", 20, 65536, "10 tokens are too few"},
        {"beyond.txt", "aaaaaaaaaaaazaaaa", 17, 'z', "token 122 at byte 12"},
        {"beyond.bin", "\1\0\1\0\1\0\1\0\1\0\1\0\1\0\1\0\1\0\1\0\1\0\2\1\1\0", 26, 258,
         "token 258 at token 11"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_autofree char *path = write_file(cases[i].name, cases[i].bytes, cases[i].n);
        g_assert_null(exec_data_open(path, cases[i].vocab, 10, 1, 1, &error));
        g_assert_error(error, EXEC_ERROR, EXEC_ERROR_DATA);
        g_assert_true(g_str_has_prefix(error->message, path));
        g_test_message("%s", error->message);
        g_assert_nonnull(strstr(error->message, cases[i].says));
    }
}

static void
test_no_regular_file_is_an_error(void)
{
    g_autofree char *fifo = g_build_filename(directory, "fifo", NULL);
    g_autofree char *missing = g_build_filename(directory, "missing", NULL);
    const char *const paths[] = {directory, fifo, "/dev/zero", missing};

    g_assert_cmpint(mkfifo(fifo, 0600), ==, 0);
    for (size_t i = 0; i < G_N_ELEMENTS(paths); i++) {
        g_autoptr(GError) error = NULL;
        g_assert_null(exec_data_open(paths[i], 256, 10, 1, 1, &error));
        if (paths[i] == missing)
            g_assert_error(error, G_FILE_ERROR, G_FILE_ERROR_NOENT);
        else
            g_assert_error(error, EXEC_ERROR, EXEC_ERROR_DATA);
        g_assert_true(g_str_has_prefix(error->message, paths[i]));
    }
}

/* What MTP modules read beyond a sequence's targets is of the file, too. */
static void
test_tokens_ahead_follow_the_sequence(void)
{
    enum {
        SEQ = 4,
        AHEAD = 3,
        FILE_TOKENS = 8
    };
    static const char bytes[] = "abcdefgh";
    g_autofree char *path = write_file("ahead.txt", bytes, FILE_TOKENS);
    g_autoptr(GError) error = NULL;
    g_autoptr(ExecData) data = exec_data_open(path, 256, SEQ, AHEAD, 1, &error);
    bool seen[2] = {false};

    g_assert_no_error(error);
    for (int64_t i = 0; i < 20; i++) {
        int32_t tokens[SEQ + AHEAD];
        g_assert_true(exec_data_sequence(data, 0, i, tokens, &error));
        g_assert_cmpint(tokens[0] - 'a', <, 2); /* two places are left to begin at */
        seen[tokens[0] - 'a'] = true;
        for (int t = 1; t < SEQ + AHEAD; t++)
            g_assert_cmpint(tokens[t], ==, tokens[0] + t);
    }
    g_assert_true(seen[0] && seen[1]);
    g_assert_null(exec_data_open(path, 256, SEQ, FILE_TOKENS, 1, &error));
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_DATA);
    g_assert_nonnull(strstr(error->message, "a sequence of 4 needs at least 12"));
}

static void
test_truncation_while_reading_is_an_error(void)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *bytes = g_strnfill(100, 'x');
    g_autofree char *path = write_file("truncated.txt", bytes, 100);
    g_autoptr(ExecData) data = exec_data_open(path, 256, 10, 1, 1, &error);
    int32_t tokens[11];

    g_assert_no_error(error);
    g_assert_cmpint(truncate(path, 5), ==, 0);
    g_assert_false(exec_data_sequence(data, 0, 0, tokens, &error));
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_DATA);
    g_assert_nonnull(strstr(error->message, "shorter"));
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    directory = g_dir_make_tmp("degas-data-XXXXXX", NULL);
    g_test_add_func("/executor/data/tokens-ahead-follow-the-sequence",
                    test_tokens_ahead_follow_the_sequence);
    g_test_add_func("/executor/data/text-is-bytes", test_text_is_bytes);
    g_test_add_func("/executor/data/bin-is-little-endian-uint16", test_bin_is_little_endian_uint16);
    g_test_add_func("/executor/data/depends-on-seed-step-and-index-only",
                    test_depends_on_seed_step_and_index_only);
    g_test_add_func("/executor/data/hostile-files-are-errors", test_hostile_files_are_errors);
    g_test_add_func("/executor/data/no-regular-file-is-an-error", test_no_regular_file_is_an_error);
    g_test_add_func("/executor/data/truncation-while-reading-is-an-error",
                    test_truncation_while_reading_is_an_error);
    const int status = g_test_run();
    GDir *dir = g_dir_open(directory, 0, NULL);
    for (const char *name; (name = g_dir_read_name(dir)) != NULL;) {
        g_autofree char *path = g_build_filename(directory, name, NULL);
        g_unlink(path);
    }
    g_dir_close(dir);
    g_rmdir(directory);
    g_free(directory);
    return status;
}
