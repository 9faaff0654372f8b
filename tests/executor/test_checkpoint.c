/* Tests of executor/run/checkpoint.h: a checkpoint that is not the one that was written is refused. */
#include "executor/run/checkpoint.h"

#include <glib/gstdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"

#define STEP 20

static char *directory, *folder, *manifest, *weights;

static void
write_bytes(const char *path, const char *bytes, size_t n)
{
    g_assert_true(g_file_set_contents(path, bytes, (gssize)n, NULL));
}

/* Two parameters of 2 x 3 and 1 x 4 values; the manifest's text is @text (out, owned). */
static void
write_checkpoint(char **text, size_t *n_bytes)
{
    static const char zeros[3 * 6 * 4] = {0};
    const ExecCheckpointParameter parameters[] = {
        {.name = "a.weight", .rows = 2, .cols = 3, .hash = 0x0123456789abcdef},
        {.name = "b.bias", .rows = 1, .cols = 4, .hash = UINT64_MAX},
    };
    g_autoptr(ModelArch) arch = model_arch_load("gpt2-124m", NULL, NULL);
    g_autoptr(GArray) both = g_array_new(false, false, sizeof *parameters);
    g_autoptr(GError) error = NULL;

    g_array_append_vals(both, parameters, G_N_ELEMENTS(parameters));
    const ExecCheckpoint checkpoint = {
        .step = STEP,
        .seed = 5,
        .global_batch = 8,
        .seq_len = 64,
        .n_parts = EXEC_CHECKPOINT_PARTS,
        .parameters = both,
    };
    g_autofree char *aside = exec_checkpoint_begin(directory, STEP, &error);
    g_assert_no_error(error);
    for (guint i = 0; i < both->len; i++) {
        g_autofree char *path = exec_checkpoint_file(aside, parameters[i].name);
        write_bytes(path, zeros, (size_t)(parameters[i].rows * parameters[i].cols * 3 * 4));
    }
    g_assert_true(exec_checkpoint_finish(directory, &checkpoint, arch, &error));
    g_assert_no_error(error);
    g_assert_true(g_file_get_contents(manifest, text, n_bytes, NULL));
}

static void
remove_checkpoint(void)
{
    g_autofree char *bias = exec_checkpoint_file(folder, "b.bias");

    g_remove(manifest);
    g_remove(weights);
    g_remove(bias);
    g_assert_cmpint(g_rmdir(folder), ==, 0);
}

/* Opens it; NULL: it is sound.  Returns: (owned) the message. */
static char *
refusal(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(ExecCheckpoint) opened = exec_checkpoint_open(directory, STEP, &error);

    g_assert_true((opened == NULL) == (error != NULL));
    if (error == NULL)
        return NULL;
    g_assert_true(g_error_matches(error, EXEC_ERROR, EXEC_ERROR_DATA) ||
                  g_error_matches(error, JSON_ERROR, JSON_ERROR_INVALID));
    g_assert_true(g_str_has_prefix(error->message, folder));
    return g_strdup(error->message);
}

static void
test_what_was_written_is_read(void)
{
    g_autofree char *text = NULL;
    g_autoptr(GError) error = NULL;
    size_t n_bytes;

    write_checkpoint(&text, &n_bytes);
    g_assert_nonnull(strstr(text, "\"tokens_seen\": 10240,")); /* 20 steps of 8 times 64 */
    g_autoptr(ExecCheckpoint) opened = exec_checkpoint_open(directory, STEP, &error);
    g_assert_no_error(error);
    g_assert_cmpint(opened->step, ==, STEP);
    g_assert_cmpint((int64_t)opened->seed, ==, 5);
    g_assert_cmpint(opened->global_batch, ==, 8);
    g_assert_cmpint(opened->seq_len, ==, 64);
    g_assert_cmpint(opened->n_parts, ==, EXEC_CHECKPOINT_PARTS);
    g_assert_cmpint(opened->arch->n_heads, ==, 12);
    const ExecCheckpointParameter *p = exec_checkpoint_find(opened, "b.bias");
    g_assert_cmpint(p->cols, ==, 4);
    g_assert_true(p->hash == UINT64_MAX);
    remove_checkpoint();
}

/* A bit in every byte of the manifest, another one each time. */
static void
test_every_byte_of_the_manifest_counts(void)
{
    g_autofree char *text = NULL;
    size_t n_bytes;

    write_checkpoint(&text, &n_bytes);
    g_autofree char *hurt = g_memdup2(text, n_bytes);
    for (size_t i = 0; i < n_bytes; i++) {
        hurt[i] = (char)(text[i] ^ 1 << i * 5 % 8);
        write_bytes(manifest, hurt, n_bytes);
        g_autofree char *message = refusal();
        hurt[i] = text[i];
        if (message == NULL)
            g_test_message("byte %zu does not count", i);
        g_assert_nonnull(message);
    }
    remove_checkpoint();
}

static void
test_a_manifest_cut_short_is_refused(void)
{
    g_autofree char *text = NULL;
    size_t n_bytes;

    write_checkpoint(&text, &n_bytes);
    for (size_t n = 0; n < n_bytes; n += 7) {
        write_bytes(manifest, text, n);
        g_autofree char *message = refusal();
        g_assert_nonnull(message);
    }
    remove_checkpoint();
}

/* Version 1: the same less the checksum. */
static void
test_version_1_is_read(void)
{
    g_autofree char *text = NULL;
    size_t n_bytes;

    write_checkpoint(&text, &n_bytes);
    char *checksum = strstr(text, "  \"checksum\"");
    *strstr(text, "2,\n") = '1';
    g_autofree char *both = g_strdup(text);
    const char *next = strchr(checksum, '\n') + 1;
    memmove(checksum, next, strlen(next) + 1);
    write_bytes(manifest, text, strlen(text));
    g_autofree char *message = refusal();
    g_assert_null(message);
    write_bytes(manifest, both, strlen(both)); /* no way around the checksum */
    g_autofree char *unknown = refusal();
    g_assert_nonnull(strstr(unknown, "unknown key"));
    remove_checkpoint();
}

static void
test_only_regular_files_are_opened(void)
{
    const char *const paths[] = {manifest, weights};
    g_autofree char *text = NULL;
    size_t n_bytes;

    for (size_t i = 0; i < G_N_ELEMENTS(paths); i++) {
        write_checkpoint(&text, &n_bytes);
        g_assert_cmpint(g_remove(paths[i]), ==, 0);
        g_autofree char *lacks = refusal();
        g_assert_nonnull(strstr(lacks, "the checkpoint lacks this file"));
        g_assert_true(g_str_has_prefix(lacks, paths[i]));
        g_assert_cmpint(mkfifo(paths[i], 0600), ==, 0); /* to open it takes for ever */
        g_autofree char *message = refusal();
        g_assert_nonnull(strstr(message, "is no regular file"));
        remove_checkpoint();
        g_clear_pointer(&text, g_free);
    }
}

static void
test_a_parameter_of_another_size_is_refused(void)
{
    g_autofree char *text = NULL;
    size_t n_bytes;

    write_checkpoint(&text, &n_bytes);
    g_assert_cmpint(truncate(weights, 71), ==, 0);
    g_autofree char *shorter = refusal();
    g_assert_nonnull(strstr(shorter, "71 bytes instead of 72"));
    g_assert_cmpint(truncate(weights, 73), ==, 0);
    g_autofree char *longer = refusal();
    g_assert_nonnull(strstr(longer, "73 bytes instead of 72"));
    remove_checkpoint();
}

/* A run that went on from step 5 comes to step 20 a second time: of the states up to there the last two
 * stay, and the later ones of the run before are not touched. */
static void
test_a_step_that_is_there_is_replaced(void)
{
    static const struct {
        const char *name;
        bool stays;
    } others[] = {{"step-00000005", false},
                  {"step-00000010", true},
                  {"step-00000030", true},
                  {"step-00000040", true}};
    g_autofree char *text = NULL, *again = NULL;
    size_t n_bytes;

    write_checkpoint(&text, &n_bytes);
    for (size_t i = 0; i < G_N_ELEMENTS(others); i++) {
        g_autofree char *path = g_build_filename(directory, others[i].name, NULL);

        g_assert_cmpint(g_mkdir(path, 0700), ==, 0);
    }
    g_assert_cmpint(truncate(weights, 71), ==, 0);
    write_checkpoint(&again, &n_bytes);
    g_assert_null(refusal());
    for (size_t i = 0; i < G_N_ELEMENTS(others); i++) {
        g_autofree char *path = g_build_filename(directory, others[i].name, NULL);

        g_assert_cmpint(g_rmdir(path) == 0, ==, others[i].stays);
    }
    remove_checkpoint();
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    directory = g_dir_make_tmp("degas-checkpoint-XXXXXX", NULL);
    folder = g_build_filename(directory, "step-00000020", NULL);
    manifest = g_build_filename(folder, "checkpoint.json", NULL);
    weights = exec_checkpoint_file(folder, "a.weight");
    g_test_add_func("/executor/checkpoint/what-was-written-is-read", test_what_was_written_is_read);
    g_test_add_func("/executor/checkpoint/every-byte-of-the-manifest-counts",
                    test_every_byte_of_the_manifest_counts);
    g_test_add_func("/executor/checkpoint/a-manifest-cut-short-is-refused",
                    test_a_manifest_cut_short_is_refused);
    g_test_add_func("/executor/checkpoint/version-1-is-read", test_version_1_is_read);
    g_test_add_func("/executor/checkpoint/only-regular-files-are-opened",
                    test_only_regular_files_are_opened);
    g_test_add_func("/executor/checkpoint/a-parameter-of-another-size-is-refused",
                    test_a_parameter_of_another_size_is_refused);
    g_test_add_func("/executor/checkpoint/a-step-that-is-there-is-replaced",
                    test_a_step_that_is_there_is_replaced);
    const int status = g_test_run();
    g_rmdir(directory);
    g_free(directory);
    g_free(folder);
    g_free(manifest);
    g_free(weights);
    return status;
}
