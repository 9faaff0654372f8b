#include "executor/run/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/order.h"
#include "base/text.h"
#include "base/units.h"

/* The ranks of a run that was killed end sooner [measured: 2.8 s]. */
#define LOCK_PATIENCE_US (5 * G_USEC_PER_SEC)
/* How many complete checkpoints are kept. */
#define KEPT 2
/* Version 1 had no checksum of the manifest. */
#define VERSION 2
#define CHECKSUM_DIGITS 64

void
exec_checkpoint_free(ExecCheckpoint *checkpoint)
{
    if (checkpoint == NULL)
        return;
    g_free(checkpoint->path);
    g_clear_pointer(&checkpoint->arch, model_arch_free);
    g_clear_pointer(&checkpoint->parameters, g_array_unref);
    g_free(checkpoint);
}

static bool
io_failed(GError **error, const char *path, const char *what, int code)
{
    g_autofree char *shown = text_escape(path, 300);

    return EXEC_FAIL(error, EXEC_ERROR_IO, "%s: %s: %s", shown, what, g_strerror(code));
}

/* --- names --- */

char *
exec_checkpoint_file(const char *folder, const char *parameter)
{
    return g_strdup_printf("%s/%s.bin", folder, parameter);
}

/* Returns: (owned) the folder of a checkpoint that is complete ("step"), being written (".step") or
 * being removed (".gone"). */
static char *
folder_of(const char *dir, const char *what, int64_t step)
{
    return g_strdup_printf("%s/%s-%08" G_GINT64_FORMAT, dir, what, step);
}

char *
exec_checkpoint_aside(const char *dir, int64_t step)
{
    return folder_of(dir, ".step", step);
}

/* The step of the checkpoint's folder @name; -1 if it is no checkpoint's. */
static int64_t
step_of_name(const char *name)
{
    int64_t step;

    return g_str_has_prefix(name, "step-") &&
                   g_ascii_string_to_signed(name + strlen("step-"), 10, 0, INT64_MAX, &step, NULL)
               ? step
               : -1;
}

GArray *
exec_checkpoint_steps(const char *dir, GError **error)
{
    g_autoptr(GArray) steps = g_array_new(false, false, sizeof(int64_t));
    g_autoptr(GError) reason = NULL;
    g_autoptr(GDir) opened = g_dir_open(dir, 0, &reason);
    const char *name;

    if (opened == NULL) {
        const bool is_missing = g_error_matches(reason, G_FILE_ERROR, G_FILE_ERROR_NOENT);
        if (!is_missing)
            g_set_error_literal(error, EXEC_ERROR, EXEC_ERROR_IO, reason->message);
        return is_missing ? g_steal_pointer(&steps) : NULL;
    }
    while ((name = g_dir_read_name(opened)) != NULL) {
        const int64_t step = step_of_name(name);
        if (step >= 0)
            g_array_append_val(steps, step);
    }
    g_array_sort(steps, order_int64s);
    return g_steal_pointer(&steps);
}

/* --- reading --- */

/* Whether there is a regular file of @expected bytes (-1: of any size).  Others are not opened: to
 * open a FIFO might take for ever. */
static bool
check_file(const char *path, int64_t expected, GError **error)
{
    struct stat status;

    if (stat(path, &status) != 0) {
        if (errno != ENOENT)
            return io_failed(error, path, "cannot read the checkpoint", errno);
        return EXEC_FAIL(error, EXEC_ERROR_DATA, "%s: the checkpoint lacks this file", path);
    }
    if (!S_ISREG(status.st_mode))
        return EXEC_FAIL(error, EXEC_ERROR_DATA,
                         "%s: the checkpoint is damaged: this is no regular file", path);
    if (expected < 0 || status.st_size == expected)
        return true;
    return EXEC_FAIL(error, EXEC_ERROR_DATA,
                     "%s: the checkpoint is damaged: " INT " bytes instead of " INT, path,
                     (int64_t)status.st_size, expected);
}

static void
read_parameter(JsonDoc *doc, const JsonValue *value, ExecCheckpoint *checkpoint)
{
    ExecCheckpointParameter p = {
        .rows = json_int64(doc, value, "rows", 1, JSON_MAX_INT),
        .cols = json_int64(doc, value, "cols", 1, JSON_MAX_INT),
    };
    const char *name = json_string(doc, value, "name");
    int64_t bytes;

    /* The name becomes a file's. */
    if (strlen(name) >= sizeof p.name || *name == 0 || *name == '.' || strchr(name, '/') != NULL)
        json_fail(doc, json_member(doc, value, "name"), "is no parameter's name");
    g_strlcpy(p.name, name, sizeof p.name);
    const char *hash = json_string(doc, value, "hash");
    if (strlen(hash) != 16 || !g_ascii_string_to_unsigned(hash, 16, 0, UINT64_MAX, &p.hash, NULL))
        json_fail(doc, json_member(doc, value, "hash"), "expected 16 hexadecimal digits");
    if (__builtin_mul_overflow(p.rows, p.cols, &bytes) || bytes > INT64_MAX / 16)
        json_fail(doc, value, "is larger than any file");
    json_object_end(doc, value);
    g_array_append_val(checkpoint->parameters, p);
}

static int
compare_parameters(const void *a, const void *b)
{
    return strcmp(((const ExecCheckpointParameter *)a)->name,
                  ((const ExecCheckpointParameter *)b)->name);
}

void
exec_checkpoint_sort(GArray *parameters)
{
    g_array_sort(parameters, compare_parameters);
}

const ExecCheckpointParameter *
exec_checkpoint_find(const ExecCheckpoint *checkpoint, const char *name)
{
    ExecCheckpointParameter wanted;
    guint at;

    g_strlcpy(wanted.name, name, sizeof wanted.name);
    return g_array_binary_search(checkpoint->parameters, &wanted, compare_parameters, &at)
               ? &g_array_index(checkpoint->parameters, ExecCheckpointParameter, at)
               : NULL;
}

/* Writes the checksum of @text into it at @digits: SHA-256 of all its bytes, with the character 0
 * at
 * @digits. */
static void
seal(char *text, size_t n_bytes, char *digits)
{
    memset(digits, '0', CHECKSUM_DIGITS);
    g_autofree char *sum =
        g_compute_checksum_for_data(G_CHECKSUM_SHA256, (const guchar *)text, n_bytes);
    memcpy(digits, sum, CHECKSUM_DIGITS);
}

/* Compares the checksum, where the version has one, with that of the text. */
static void
check_checksum(JsonDoc *doc, const JsonValue *root, const char *text, size_t n_bytes)
{
    if (json_int64(doc, root, "version", 1, VERSION) == 1)
        return;
    const char *said = json_string(doc, root, "checksum");
    g_autofree char *sealed = g_memdup2(text, n_bytes + 1);
    char *digits = strlen(said) == CHECKSUM_DIGITS ? strstr(sealed, said) : NULL;
    if (digits != NULL)
        seal(sealed, n_bytes, digits);
    if (digits == NULL || memcmp(sealed, text, n_bytes) != 0)
        json_fail(doc, json_member(doc, root, "checksum"),
                  "the checkpoint is damaged: the file is not the one that was written");
}

static ExecCheckpoint *
read_manifest(const char *path, GError **error)
{
    g_autofree char *text = NULL;
    size_t n_bytes;

    if (!check_file(path, -1, error) ||
        !file_read_max(path, JSON_MAX_BYTES, &text, &n_bytes, error))
        return NULL;
    g_autoptr(JsonDoc) doc = json_doc_parse(path, text, n_bytes, error);
    if (doc == NULL)
        return NULL;
    g_autoptr(ExecCheckpoint) checkpoint = g_new0(ExecCheckpoint, 1);
    const JsonValue *root = json_doc_root(doc, "degas-checkpoint", VERSION);
    check_checksum(doc, root, text, n_bytes);
    checkpoint->parameters = g_array_new(false, true, sizeof(ExecCheckpointParameter));
    checkpoint->step = json_int64(doc, root, "step", 0, JSON_MAX_INT);
    checkpoint->seed = (uint64_t)json_int64(doc, root, "seed", 0, JSON_MAX_INT);
    checkpoint->global_batch = json_int64(doc, root, "global_batch", 1, JSON_MAX_INT);
    checkpoint->seq_len = json_int64(doc, root, "seq_len", 1, JSON_MAX_INT);
    json_ignore(doc, root, "tokens_seen");
    checkpoint->n_parts = json_int64(doc, root, "parts", 1, EXEC_CHECKPOINT_PARTS);
    checkpoint->optimizer = (PlanOptimizer)json_enum_or(doc, root, "optimizer",
                                                        plan_optimizer_names, PLAN_OPTIMIZER_ADAMW);
    checkpoint->arch = model_arch_read(doc, json_object(doc, root, "model"));
    const JsonValue *parameters = json_array(doc, root, "parameters");
    for (const JsonValue *v = json_first(parameters); v != NULL; v = json_next(v))
        read_parameter(doc, v, checkpoint);
    json_object_end(doc, root);
    if (!json_doc_finish(doc, error))
        return NULL;
    exec_checkpoint_sort(checkpoint->parameters);
    return g_steal_pointer(&checkpoint);
}

ExecCheckpoint *
exec_checkpoint_open(const char *dir, int64_t step, GError **error)
{
    g_autofree char *folder = folder_of(dir, "step", step);
    g_autofree char *manifest = g_build_filename(folder, "checkpoint.json", NULL);
    g_autoptr(ExecCheckpoint) checkpoint = read_manifest(manifest, error);

    if (checkpoint == NULL)
        return NULL;
    checkpoint->path = g_steal_pointer(&folder);
    if (checkpoint->step != step)
        return EXEC_FAIL_NULL(error, EXEC_ERROR_DATA, "%s: is of step " INT ", not of its folder's",
                              manifest, checkpoint->step);
    for (guint i = 0; i < checkpoint->parameters->len; i++) {
        const ExecCheckpointParameter *p =
            &g_array_index(checkpoint->parameters, ExecCheckpointParameter, i);
        const int64_t n_bytes = p->rows * p->cols * (int64_t)sizeof(float) * checkpoint->n_parts;
        g_autofree char *path = exec_checkpoint_file(checkpoint->path, p->name);
        if (!check_file(path, n_bytes, error))
            return NULL;
    }
    return g_steal_pointer(&checkpoint);
}

/* --- removing --- */

/* Removes a folder with its files; it holds no folders.  Nobody reads what cannot be removed. */
static void
remove_folder(const char *path)
{
    g_autoptr(GDir) opened = g_dir_open(path, 0, NULL);
    const char *name;

    while (opened != NULL && (name = g_dir_read_name(opened)) != NULL) {
        g_autofree char *file = g_build_filename(path, name, NULL);
        g_unlink(file);
    }
    g_rmdir(path);
}

/* Removes a folder: first its name, at once, then its files.  So no other process writes into it or
 * names it from then on, and if rank 0 has named it before, it keeps its files. */
static void
remove_named(const char *dir, const char *folder, int64_t step)
{
    g_autofree char *gone = folder_of(dir, ".gone", step);

    if (g_rename(folder, gone) == 0)
        remove_folder(gone);
}

/* Removes what runs that were killed had begun to write or to remove. */
static void
sweep(const char *dir)
{
    g_autoptr(GDir) opened = g_dir_open(dir, 0, NULL);
    const char *name;

    while (opened != NULL && (name = g_dir_read_name(opened)) != NULL) {
        g_autofree char *path = g_build_filename(dir, name, NULL);
        if ((*name == '.' && step_of_name(name + 1) >= 0) || g_str_has_prefix(name, ".gone-"))
            remove_folder(path);
    }
}

/* --- the lock --- */

/* Returns: (owned) who holds the lock, as its file says. */
static char *
holder_of(int fd)
{
    char text[128] = {0};
    const ssize_t n = pread(fd, text, sizeof text - 1, 0);

    return text_escape(n > 0 ? g_strchomp(text) : "another process", 120);
}

static bool
take_lock(int fd, int kind)
{
    const int64_t end = g_get_monotonic_time() + LOCK_PATIENCE_US;

    while (flock(fd, kind | LOCK_NB) != 0) {
        if ((errno != EWOULDBLOCK && errno != EINTR) || g_get_monotonic_time() >= end)
            return false;
        g_usleep(50000);
    }
    return true;
}

int
exec_checkpoint_lock(const char *dir, bool leads, GError **error)
{
    g_autofree char *path = g_build_filename(dir, "lock", NULL);

    if (g_mkdir_with_parents(dir, 0777) != 0) {
        io_failed(error, dir, "cannot make the folder", errno);
        return -1;
    }
    const int fd = g_open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) {
        io_failed(error, path, "cannot open", errno);
        return -1;
    }
    if (take_lock(fd, leads ? LOCK_EX : LOCK_SH)) {
        if (leads) {
            g_autofree char *who =
                g_strdup_printf("process %d on %s\n", (int)getpid(), g_get_host_name());
            if (ftruncate(fd, 0) != 0 || pwrite(fd, who, strlen(who), 0) < 0)
                (void)0; /* only a message would be poorer */
            (void)flock(fd, LOCK_SH);
            sweep(dir);
        }
        return fd;
    }
    g_autofree char *holder = holder_of(fd);
    g_set_error(error, EXEC_ERROR, EXEC_ERROR_IO, "%s: another run saves here (%s)", dir, holder);
    close(fd);
    return -1;
}

/* --- writing --- */

static bool
sync_folder(const char *path, GError **error)
{
    const int fd = g_open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    const bool ok = fd >= 0 && fsync(fd) == 0;
    const int code = errno;

    if (fd >= 0)
        close(fd);
    return ok || io_failed(error, path, "cannot write the checkpoint", code);
}

char *
exec_checkpoint_begin(const char *dir, int64_t step, GError **error)
{
    g_autofree char *aside = exec_checkpoint_aside(dir, step);

    remove_folder(aside);
    if (g_mkdir(aside, 0777) != 0) {
        io_failed(error, aside, "cannot make the folder", errno);
        return NULL;
    }
    return g_steal_pointer(&aside);
}

void
exec_checkpoint_discard(const char *dir, int64_t step)
{
    g_autofree char *aside = exec_checkpoint_aside(dir, step);

    remove_named(dir, aside, step);
}

static char *
manifest_text(const ExecCheckpoint *checkpoint, const ModelArch *arch, size_t *n_bytes)
{
    g_autoptr(JsonWriter) writer = json_writer_new();
    g_autofree char *unsealed = g_strnfill(CHECKSUM_DIGITS, '0');

    json_write_object(writer, NULL);
    json_write_string(writer, "format", "degas-checkpoint");
    json_write_int64(writer, "version", VERSION);
    json_write_string(writer, "checksum", unsealed);
    json_write_int64(writer, "step", checkpoint->step);
    json_write_int64(writer, "seed", (int64_t)checkpoint->seed);
    json_write_int64(writer, "global_batch", checkpoint->global_batch);
    json_write_int64(writer, "seq_len", checkpoint->seq_len);
    json_write_int64(writer, "tokens_seen",
                     checkpoint->step * checkpoint->global_batch * checkpoint->seq_len);
    json_write_int64(writer, "parts", checkpoint->n_parts);
    if (checkpoint->optimizer != PLAN_OPTIMIZER_ADAMW)
        json_write_string(writer, "optimizer", plan_optimizer_names[checkpoint->optimizer]);
    model_arch_write(writer, "model", arch);
    json_write_array(writer, "parameters");
    for (guint i = 0; i < checkpoint->parameters->len; i++) {
        const ExecCheckpointParameter *p =
            &g_array_index(checkpoint->parameters, ExecCheckpointParameter, i);
        char hash[17];
        g_snprintf(hash, sizeof hash, "%016" G_GINT64_MODIFIER "x", p->hash);
        json_write_object_inline(writer, NULL);
        json_write_string(writer, "name", p->name);
        json_write_int64(writer, "rows", p->rows);
        json_write_int64(writer, "cols", p->cols);
        json_write_string(writer, "hash", hash);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
    json_write_object_end(writer);
    char *text = json_writer_steal(writer, n_bytes);
    seal(text, *n_bytes, strstr(text, unsealed)); /* the first that is so long: before all names */
    return text;
}

/* Removes all but the last KEPT states up to @now.  Later ones are of the run that this one went
 * back before; they stay until it comes to their steps. */
static void
remove_old(const char *dir, int64_t now)
{
    g_autoptr(GArray) steps = exec_checkpoint_steps(dir, NULL);

    while (steps != NULL && steps->len > 0 && g_array_index(steps, int64_t, steps->len - 1) > now)
        g_array_set_size(steps, steps->len - 1);
    for (guint i = 0; steps != NULL && i + KEPT < steps->len; i++) {
        const int64_t step = g_array_index(steps, int64_t, i);
        g_autofree char *folder = folder_of(dir, "step", step);
        remove_named(dir, folder, step);
    }
}

bool
exec_checkpoint_finish(const char *dir, const ExecCheckpoint *checkpoint, const ModelArch *arch,
                       GError **error)
{
    g_autofree char *aside = exec_checkpoint_aside(dir, checkpoint->step);
    g_autofree char *folder = folder_of(dir, "step", checkpoint->step);
    g_autofree char *manifest = g_build_filename(aside, "checkpoint.json", NULL);
    size_t n_bytes;
    g_autofree char *text = manifest_text(checkpoint, arch, &n_bytes);
    g_autoptr(GError) reason = NULL;

    if (!file_write(manifest, text, n_bytes, &reason))
        return EXEC_FAIL(error, EXEC_ERROR_IO, "%s", reason->message);
    if (!sync_folder(aside, error))
        return false;
    bool is_named = g_rename(aside, folder) == 0;
    if (!is_named && (errno == ENOTEMPTY || errno == EEXIST)) {
        /* A run that went on from an earlier state has come to this step again. */
        remove_named(dir, folder, checkpoint->step);
        is_named = g_rename(aside, folder) == 0;
    }
    if (!is_named)
        return io_failed(error, folder, "cannot name the checkpoint", errno);
    if (!sync_folder(dir, error))
        return false;
    remove_old(dir, checkpoint->step);
    return true;
}
