#include "executor/offload.h"

#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_PARTS = 3,
    N_BUFFERS = 3, /* one read into, one stepped, one written from */
};

/* Moves of pieces between file and buffers, done in the order they were asked for. */
typedef struct {
    bool writes;
    int64_t piece;
} Move;

struct ExecOffload {
    int64_t n, n_pieces;
    int32_t n_parts;
    ExecBackend *host; /* (owned) */
    float *memory;     /* (owned, nullable) all pieces: cpu */

    int fd;                    /* -1: cpu */
    char *path;                /* (owned) for messages */
    float *buffers[N_BUFFERS]; /* (owned) piece i's is i modulo N_BUFFERS */
    GThread *mover;
    GMutex mutex;
    GCond changed;
    /* Under the mutex: */
    Move moves[2 * N_BUFFERS]; /* move i is at i modulo their number */
    int64_t n_asked, n_done;
    bool quits;
    int failed; /* errno of the first move that failed, or 0 */
    bool failed_writing;
};

static int64_t
piece_elements(const ExecOffload *offload)
{
    return (int64_t)EXEC_OFFLOAD_PIECE * offload->n_parts;
}

static int64_t
piece_length(const ExecOffload *offload, int64_t piece)
{
    return MIN(EXEC_OFFLOAD_PIECE, offload->n - piece * EXEC_OFFLOAD_PIECE);
}

/* --- the file --- */

static bool
file_failed(const ExecOffload *offload, const char *what, int code, GError **error)
{
    g_set_error(error, EXEC_ERROR, EXEC_ERROR_IO, "%s: cannot %s the optimizer's state: %s",
                offload->path, what, g_strerror(code));
    return false;
}

/* 0, or errno; the end of the file is EIO: somebody has cut it. */
static int
move_bytes(int fd, bool writes, char *bytes, size_t n_bytes, off_t at)
{
    while (n_bytes > 0) {
        const ssize_t moved =
            writes ? pwrite(fd, bytes, n_bytes, at) : pread(fd, bytes, n_bytes, at);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0)
            return moved == 0 ? EIO : errno;
        bytes += moved;
        at += moved;
        n_bytes -= (size_t)moved;
    }
    return 0;
}

static bool
open_file(ExecOffload *offload, const ExecOffloadOptions *options, GError **error)
{
    const int64_t n_bytes = offload->n_pieces * piece_elements(offload) * (int64_t)sizeof(float);
    g_autofree char *name = g_strdup_printf("degas-offload-rank%d-XXXXXX", options->rank);

    offload->path =
        g_build_filename(options->dir != NULL ? options->dir : g_get_tmp_dir(), name, NULL);
    offload->fd = g_mkstemp_full(offload->path, O_RDWR | O_CLOEXEC, 0600);
    if (offload->fd < 0)
        return file_failed(offload, "make the file for", errno, error);
    if (g_unlink(offload->path) != 0)
        return file_failed(offload, "make the file for", errno, error);
    const int code = n_bytes == 0 ? 0 : posix_fallocate(offload->fd, 0, (off_t)n_bytes);
    return code == 0 || file_failed(offload, "make room for", code, error);
}

/* --- the mover --- */

static gpointer
move_in_background(gpointer user_data)
{
    ExecOffload *offload = user_data;
    const int64_t n = piece_elements(offload);
    const size_t n_bytes = (size_t)n * sizeof(float);

    g_mutex_lock(&offload->mutex);
    for (;;) {
        while (offload->n_done == offload->n_asked && !offload->quits)
            g_cond_wait(&offload->changed, &offload->mutex);
        if (offload->n_done == offload->n_asked)
            break;
        const Move move = offload->moves[offload->n_done % (2 * N_BUFFERS)];
        g_mutex_unlock(&offload->mutex);
        const int code =
            move_bytes(offload->fd, move.writes, (char *)offload->buffers[move.piece % N_BUFFERS],
                       n_bytes, (off_t)((size_t)move.piece * n_bytes));
        g_mutex_lock(&offload->mutex);
        if (code != 0 && offload->failed == 0) {
            offload->failed = code;
            offload->failed_writing = move.writes;
        }
        offload->n_done++;
        g_cond_broadcast(&offload->changed);
    }
    g_mutex_unlock(&offload->mutex);
    return NULL;
}

/* Returns: the move's number.  No more than N_BUFFERS are ever under way. */
static int64_t
ask(ExecOffload *offload, bool writes, int64_t piece)
{
    g_mutex_lock(&offload->mutex);
    const int64_t number = offload->n_asked++;
    offload->moves[number % (2 * N_BUFFERS)] = (Move){writes, piece};
    g_cond_broadcast(&offload->changed);
    g_mutex_unlock(&offload->mutex);
    return number;
}

static bool
wait_for(ExecOffload *offload, int64_t number, GError **error)
{
    g_mutex_lock(&offload->mutex);
    while (offload->n_done <= number)
        g_cond_wait(&offload->changed, &offload->mutex);
    const int code = offload->failed;
    const bool writing = offload->failed_writing;
    g_mutex_unlock(&offload->mutex);
    return code == 0 || file_failed(offload, writing ? "write" : "read", code, error);
}

/* --- lifecycle --- */

static bool
open_host(ExecOffload *offload, const char *device, GError **error)
{
    offload->host =
        g_str_equal(device, "reference") ? NULL : exec_backend_open("cpu", 0, DTYPE_FP32, NULL);
    if (offload->host == NULL)
        offload->host = exec_backend_open("reference", 0, DTYPE_FP32, error);
    return offload->host != NULL;
}

static bool
take_memory(ExecOffload *offload, PlanOffload to, GError **error)
{
    const int64_t n = piece_elements(offload);
    bool ok = true;

    if (to == PLAN_OFFLOAD_CPU) {
        offload->memory = g_try_new0(float, (size_t)(offload->n_pieces * n));
        ok = offload->memory != NULL || offload->n == 0;
    } else {
        for (int i = 0; i < N_BUFFERS && ok; i++)
            ok = (offload->buffers[i] = g_try_new0(float, (size_t)n)) != NULL;
    }
    if (!ok)
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_MEMORY,
                    "no host memory for the optimizer's state");
    return ok;
}

ExecOffload *
exec_offload_new(const ExecOffloadOptions *options, int64_t n, int32_t n_parts, GError **error)
{
    g_return_val_if_fail(options->to != PLAN_OFFLOAD_NONE && n_parts <= MAX_PARTS, NULL);
    g_autoptr(ExecOffload) offload = g_new0(ExecOffload, 1);

    offload->n = n;
    offload->n_parts = n_parts;
    offload->n_pieces = (n + EXEC_OFFLOAD_PIECE - 1) / EXEC_OFFLOAD_PIECE;
    offload->fd = -1;
    g_mutex_init(&offload->mutex);
    g_cond_init(&offload->changed);
    if (!open_host(offload, options->device, error) || !take_memory(offload, options->to, error))
        return NULL;
    if (options->to == PLAN_OFFLOAD_CPU)
        return g_steal_pointer(&offload);
    if (!open_file(offload, options, error))
        return NULL;
    offload->mover = g_thread_new("offload", move_in_background, offload);
    return g_steal_pointer(&offload);
}

void
exec_offload_free(ExecOffload *offload)
{
    if (offload == NULL)
        return;
    if (offload->mover != NULL) {
        g_mutex_lock(&offload->mutex);
        offload->quits = true;
        g_cond_broadcast(&offload->changed);
        g_mutex_unlock(&offload->mutex);
        g_thread_join(offload->mover);
    }
    if (offload->fd >= 0)
        close(offload->fd);
    g_mutex_clear(&offload->mutex);
    g_cond_clear(&offload->changed);
    for (int i = 0; i < N_BUFFERS; i++)
        g_free(offload->buffers[i]);
    exec_backend_close(offload->host);
    g_free(offload->memory);
    g_free(offload->path);
    g_free(offload);
}

/* --- single values --- */

static bool
move_values(ExecOffload *offload, bool writes, int32_t part, int64_t at, int64_t n, float *values,
            GError **error)
{
    g_return_val_if_fail(part >= 0 && part < offload->n_parts && at + n <= offload->n, false);
    for (int64_t done = 0; done < n;) {
        const int64_t piece = (at + done) / EXEC_OFFLOAD_PIECE;
        const int64_t in_piece = (at + done) % EXEC_OFFLOAD_PIECE;
        const int64_t together = MIN(n - done, EXEC_OFFLOAD_PIECE - in_piece);
        const size_t n_bytes = (size_t)together * sizeof *values;
        const int64_t place =
            piece * piece_elements(offload) + part * (int64_t)EXEC_OFFLOAD_PIECE + in_piece;
        if (offload->fd < 0) {
            memcpy(writes ? offload->memory + place : values + done,
                   writes ? values + done : offload->memory + place, n_bytes);
        } else {
            const int code = move_bytes(offload->fd, writes, (char *)(values + done), n_bytes,
                                        (off_t)(place * (int64_t)sizeof *values));
            if (code != 0)
                return file_failed(offload, writes ? "write" : "read", code, error);
        }
        done += together;
    }
    return true;
}

bool
exec_offload_read(ExecOffload *offload, int32_t part, int64_t at, int64_t n, float *values,
                  GError **error)
{
    return move_values(offload, false, part, at, n, values, error);
}

bool
exec_offload_write(ExecOffload *offload, int32_t part, int64_t at, int64_t n, const float *values,
                   GError **error)
{
    return move_values(offload, true, part, at, n, (float *)values, error);
}

/* --- pieces --- */

static bool
step_piece(ExecOffload *offload, int64_t piece, float *data, ExecOffloadFunc step, void *user_data,
           GError **error)
{
    float *parts[MAX_PARTS];

    for (int32_t i = 0; i < offload->n_parts; i++)
        parts[i] = data + i * EXEC_OFFLOAD_PIECE;
    return step(offload->host, piece * EXEC_OFFLOAD_PIECE, piece_length(offload, piece), parts,
                user_data, error);
}

/* A buffer is read into again two pieces after it was written from: moves are done in order, so the
 * reading comes after the writing. */
static bool
step_file(ExecOffload *offload, ExecOffloadFunc step, void *user_data, GError **error)
{
    int64_t last = offload->n_pieces > 0 ? ask(offload, false, 0) : -1;
    bool ok = true;

    for (int64_t piece = 0; piece < offload->n_pieces && ok; piece++) {
        ok = wait_for(offload, last, error);
        if (ok && piece + 1 < offload->n_pieces)
            last = ask(offload, false, piece + 1);
        ok = ok && step_piece(offload, piece, offload->buffers[piece % N_BUFFERS], step, user_data,
                              error);
        if (ok) {
            const int64_t written = ask(offload, true, piece);
            last = piece + 1 < offload->n_pieces ? last : written;
        }
    }
    return wait_for(offload, last, ok ? error : NULL) && ok;
}

bool
exec_offload_each(ExecOffload *offload, ExecOffloadFunc step, void *user_data, GError **error)
{
    if (offload->fd >= 0)
        return step_file(offload, step, user_data, error);
    for (int64_t piece = 0; piece < offload->n_pieces; piece++)
        if (!step_piece(offload, piece, offload->memory + piece * piece_elements(offload), step,
                        user_data, error))
            return false;
    return true;
}
