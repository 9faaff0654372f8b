#include "executor/model/offload_state.h"

#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <string.h>
#include <unistd.h>

/* --- where values lie --- */

int64_t
exec_offload_part_at(const ExecOffload *offload, int32_t part)
{
    int64_t at = 0;

    for (int32_t i = 0; i < part; i++)
        at += EXEC_OFFLOAD_PIECE * offload->element_bytes[i];
    return at;
}

int64_t
exec_offload_piece_bytes(const ExecOffload *offload)
{
    return exec_offload_part_at(offload, offload->n_parts);
}

/* --- the file --- */

bool
exec_offload_failed(const ExecOffload *offload, const char *what, int code, GError **error)
{
    g_set_error(error, EXEC_ERROR, EXEC_ERROR_IO, "%s: cannot %s the %s: %s", offload->path, what,
                offload->parameters ? "offloaded state" : "optimizer's state", g_strerror(code));
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

bool
exec_offload_open_file(ExecOffload *offload, const ExecOffloadOptions *options, GError **error)
{
    const int64_t n_bytes = offload->n_pieces * exec_offload_piece_bytes(offload);
    g_autofree char *name = g_strdup_printf("degas-offload-rank%d-XXXXXX", options->rank);

    offload->path =
        g_build_filename(options->dir != NULL ? options->dir : g_get_tmp_dir(), name, NULL);
    offload->fd = g_mkstemp_full(offload->path, O_RDWR | O_CLOEXEC, 0600);
    if (offload->fd < 0)
        return exec_offload_failed(offload, "make the file for", errno, error);
    if (g_unlink(offload->path) != 0)
        return exec_offload_failed(offload, "make the file for", errno, error);
    const int code = n_bytes == 0 ? 0 : posix_fallocate(offload->fd, 0, (off_t)n_bytes);
    return code == 0 || exec_offload_failed(offload, "make room for", code, error);
}

ExecOffloadRun
exec_offload_run_at(const ExecOffload *offload, int32_t part, int64_t at, int64_t n)
{
    const int64_t e = offload->element_bytes[part];
    const int64_t piece = at / EXEC_OFFLOAD_PIECE, in_piece = at % EXEC_OFFLOAD_PIECE;
    const int64_t together = MIN(n, EXEC_OFFLOAD_PIECE - in_piece);

    return (ExecOffloadRun){
        .n = together,
        .offset = piece * exec_offload_piece_bytes(offload) + exec_offload_part_at(offload, part) +
                  in_piece * e,
        .n_bytes = (size_t)(together * e),
    };
}

int
exec_offload_move_values(ExecOffload *offload, bool writes, int32_t part, int64_t at, int64_t n,
                         char *values)
{
    for (int64_t done = 0; done < n;) {
        const ExecOffloadRun run = exec_offload_run_at(offload, part, at + done, n - done);
        char *own = values + done * offload->element_bytes[part];
        if (offload->fd < 0) {
            char *kept = offload->memory.bytes + run.offset;
            memcpy(writes ? kept : own, writes ? own : kept, run.n_bytes);
        } else {
            const int code = move_bytes(offload->fd, writes, own, run.n_bytes, (off_t)run.offset);
            if (code != 0)
                return code;
        }
        done += run.n;
    }
    return 0;
}

/* --- the mover --- */

static int
do_move(ExecOffload *offload, const ExecOffloadMove *move)
{
    const int64_t n_bytes = exec_offload_piece_bytes(offload);

    if (move->slot >= 0) {
        const ExecOffloadFetch *fetch = &offload->fetches[move->slot];
        return exec_offload_move_values(offload, false, fetch->part, fetch->at, fetch->n,
                                        fetch->buffer.bytes);
    }
    return move_bytes(offload->fd, move->writes,
                      offload->buffers[move->piece % EXEC_OFFLOAD_N_BUFFERS], (size_t)n_bytes,
                      (off_t)(move->piece * n_bytes));
}

gpointer
exec_offload_move_in_background(gpointer user_data)
{
    ExecOffload *offload = user_data;

    g_mutex_lock(&offload->mutex);
    for (;;) {
        while (offload->n_done == offload->n_asked && !offload->quits)
            g_cond_wait(&offload->changed, &offload->mutex);
        if (offload->n_done == offload->n_asked)
            break;
        const ExecOffloadMove move = offload->moves[offload->n_done % offload->n_moves];
        g_mutex_unlock(&offload->mutex);
        const int code = do_move(offload, &move);
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

int64_t
exec_offload_ask(ExecOffload *offload, ExecOffloadMove move)
{
    g_mutex_lock(&offload->mutex);
    const int64_t number = offload->n_asked++;
    offload->moves[number % offload->n_moves] = move;
    g_cond_broadcast(&offload->changed);
    g_mutex_unlock(&offload->mutex);
    return number;
}

bool
exec_offload_wait_for(ExecOffload *offload, int64_t number, GError **error)
{
    g_mutex_lock(&offload->mutex);
    while (offload->n_done <= number)
        g_cond_wait(&offload->changed, &offload->mutex);
    const int code = offload->failed;
    const bool writing = offload->failed_writing;
    g_mutex_unlock(&offload->mutex);
    return code == 0 || exec_offload_failed(offload, writing ? "write" : "read", code, error);
}
