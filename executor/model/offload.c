#include "executor/model/offload.h"

#include <string.h>
#include <unistd.h>

#include "executor/model/offload_state.h"

static int64_t
piece_length(const ExecOffload *offload, int64_t piece)
{
    return MIN(EXEC_OFFLOAD_PIECE, offload->n - piece * EXEC_OFFLOAD_PIECE);
}

/* --- lifecycle --- */

static bool
open_host(ExecOffload *offload, const ExecOffloadOptions *options, GError **error)
{
    const Dtype storage = options->narrow ? options->storage : DTYPE_FP32;

    offload->host = g_str_equal(options->device, "reference")
                        ? NULL
                        : exec_backend_open("cpu", 0, storage, NULL);
    if (offload->host == NULL)
        offload->host = exec_backend_open("reference", 0, storage, error);
    return offload->host != NULL;
}

static bool
no_memory(GError **error)
{
    g_set_error(error, EXEC_ERROR, EXEC_ERROR_MEMORY, "no host memory for what is offloaded");
    return false;
}

/* Unspecified contents; false: there is none. */
static bool
memory_take(const ExecOffload *offload, size_t n_bytes, ExecOffloadMemory *memory)
{
    ExecBackend *device = offload->uploads_to;

    *memory = (ExecOffloadMemory){.n_bytes = n_bytes};
    if (device != NULL && device->ops->alloc_host != NULL)
        memory->bytes = device->ops->alloc_host(device, n_bytes);
    memory->is_of_device = memory->bytes != NULL;
    if (memory->bytes == NULL)
        memory->bytes = g_try_malloc(n_bytes);
    if (memory->bytes == NULL)
        memory->n_bytes = 0;
    return memory->bytes != NULL || n_bytes == 0;
}

static void
memory_give(const ExecOffload *offload, ExecOffloadMemory *memory)
{
    if (memory->is_of_device)
        offload->uploads_to->ops->release_host(offload->uploads_to, memory->bytes);
    else
        g_free(memory->bytes);
    *memory = (ExecOffloadMemory){0};
}

static bool
take_memory(ExecOffload *offload, PlanOffload to, GError **error)
{
    const size_t n = (size_t)exec_offload_piece_bytes(offload);
    size_t all;
    bool ok = true;

    if (to == PLAN_OFFLOAD_CPU) {
        ok = !__builtin_mul_overflow((size_t)offload->n_pieces, n, &all) &&
             memory_take(offload, all, &offload->memory);
        if (ok && all > 0)
            memset(offload->memory.bytes, 0, all);
    } else {
        for (int i = 0; i < EXEC_OFFLOAD_N_BUFFERS && ok; i++)
            ok = (offload->buffers[i] = g_try_malloc0(n)) != NULL;
    }
    return ok || no_memory(error);
}

ExecOffload *
exec_offload_new(const ExecOffloadOptions *options, int64_t n, int32_t n_parts, GError **error)
{
    g_return_val_if_fail(options->to != PLAN_OFFLOAD_NONE && n_parts < EXEC_OFFLOAD_MAX_PARTS,
                         NULL);
    g_autoptr(ExecOffload) offload = g_new0(ExecOffload, 1);

    offload->n = n;
    offload->n_parts = n_parts + options->narrow;
    for (int32_t i = 0; i < n_parts; i++)
        offload->element_bytes[i] = sizeof(float);
    offload->element_bytes[n_parts] = dtype_bytes(options->storage);
    offload->parameters = options->parameters;
    offload->uploads_to = options->uploads_to;
    offload->n_fetches = options->n_fetches;
    offload->fetches = g_new0(ExecOffloadFetch, (size_t)options->n_fetches + 1);
    offload->n_moves = 2 * EXEC_OFFLOAD_N_BUFFERS + options->n_fetches;
    offload->moves = g_new0(ExecOffloadMove, (size_t)offload->n_moves);
    offload->n_pieces = (n + EXEC_OFFLOAD_PIECE - 1) / EXEC_OFFLOAD_PIECE;
    offload->fd = -1;
    g_mutex_init(&offload->mutex);
    g_cond_init(&offload->changed);
    if (!open_host(offload, options, error) || !take_memory(offload, options->to, error))
        return NULL;
    if (options->to == PLAN_OFFLOAD_CPU)
        return g_steal_pointer(&offload);
    if (!exec_offload_open_file(offload, options, error))
        return NULL;
    offload->mover = g_thread_new("offload", exec_offload_move_in_background, offload);
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
    for (int i = 0; i < EXEC_OFFLOAD_N_BUFFERS; i++)
        g_free(offload->buffers[i]);
    for (int i = 0; i < offload->n_fetches; i++)
        memory_give(offload, &offload->fetches[i].buffer);
    g_free(offload->fetches);
    g_free(offload->moves);
    exec_backend_close(offload->host);
    memory_give(offload, &offload->memory);
    g_free(offload->path);
    g_free(offload);
}

/* --- single values --- */

static bool
move_now(ExecOffload *offload, bool writes, int32_t part, int64_t at, int64_t n, char *values,
         GError **error)
{
    g_return_val_if_fail(part >= 0 && part < offload->n_parts && at + n <= offload->n, false);
    const int code = exec_offload_move_values(offload, writes, part, at, n, values);

    return code == 0 || exec_offload_failed(offload, writes ? "write" : "read", code, error);
}

bool
exec_offload_read(ExecOffload *offload, int32_t part, int64_t at, int64_t n, void *values,
                  GError **error)
{
    return move_now(offload, false, part, at, n, values, error);
}

bool
exec_offload_write(ExecOffload *offload, int32_t part, int64_t at, int64_t n, const void *values,
                   GError **error)
{
    return move_now(offload, true, part, at, n, (char *)values, error);
}

/* --- ahead of use --- */

static bool
make_room(const ExecOffload *offload, ExecOffloadFetch *fetch, GError **error)
{
    const size_t n_bytes = (size_t)(fetch->n * offload->element_bytes[fetch->part]);

    if (n_bytes <= fetch->buffer.n_bytes)
        return true;
    memory_give(offload, &fetch->buffer);
    return memory_take(offload, n_bytes, &fetch->buffer) || no_memory(error);
}

bool
exec_offload_fetch(ExecOffload *offload, int slot, int32_t part, int64_t at, int64_t n,
                   GError **error)
{
    g_return_val_if_fail(part >= 0 && part < offload->n_parts && at + n <= offload->n, false);
    g_return_val_if_fail(slot >= 0 && slot < offload->n_fetches, false);
    ExecOffloadFetch *fetch = &offload->fetches[slot];

    fetch->part = part;
    fetch->at = at;
    fetch->n = n;
    fetch->is_here = false;
    /* In host memory it lies already. */
    if (offload->fd < 0)
        return true;
    if (!make_room(offload, fetch, error))
        return false;
    fetch->number = exec_offload_ask(offload, (ExecOffloadMove){.slot = slot});
    return true;
}

const void *
exec_offload_fetched(ExecOffload *offload, int slot, GError **error)
{
    ExecOffloadFetch *fetch = &offload->fetches[slot];

    if (offload->fd >= 0)
        return exec_offload_wait_for(offload, fetch->number, error) ? fetch->buffer.bytes : NULL;
    if (fetch->is_here)
        return fetch->buffer.bytes;
    if (!make_room(offload, fetch, error))
        return NULL;
    exec_offload_move_values(offload, false, fetch->part, fetch->at, fetch->n, fetch->buffer.bytes);
    fetch->is_here = true;
    return fetch->buffer.bytes;
}

bool
exec_offload_upload(ExecOffload *offload, int slot, ExecBackend *backend, void *to, GError **error)
{
    const ExecOffloadFetch *fetch = &offload->fetches[slot];
    const int64_t e = offload->element_bytes[fetch->part];

    if (offload->fd >= 0) {
        if (!exec_offload_wait_for(offload, fetch->number, error))
            return false;
        backend->ops->upload(backend, (size_t)(fetch->n * e), fetch->buffer.bytes, to);
        return true;
    }
    for (int64_t done = 0; done < fetch->n;) {
        const ExecOffloadRun run =
            exec_offload_run_at(offload, fetch->part, fetch->at + done, fetch->n - done);
        backend->ops->upload(backend, run.n_bytes, offload->memory.bytes + run.offset,
                             (char *)to + done * e);
        done += run.n;
    }
    return true;
}

bool
exec_offload_has_buffers(const ExecOffload *offload)
{
    return offload->fd >= 0;
}

ExecBackend *
exec_offload_host(ExecOffload *offload)
{
    return offload->host;
}

/* --- pieces --- */

static bool
step_piece(ExecOffload *offload, int64_t piece, char *data, ExecOffloadFunc step, void *user_data,
           GError **error)
{
    void *parts[EXEC_OFFLOAD_MAX_PARTS];

    for (int32_t i = 0; i < offload->n_parts; i++)
        parts[i] = data + exec_offload_part_at(offload, i);
    return step(offload->host, piece * EXEC_OFFLOAD_PIECE, piece_length(offload, piece), parts,
                user_data, error);
}

/* A buffer is read into again two pieces after it was written from: moves are done in order, so the
 * reading comes after the writing. */
static bool
step_file(ExecOffload *offload, ExecOffloadFunc step, void *user_data, GError **error)
{
    int64_t last = offload->n_pieces > 0
                       ? exec_offload_ask(offload, (ExecOffloadMove){.piece = 0, .slot = -1})
                       : -1;
    bool ok = true;

    for (int64_t piece = 0; piece < offload->n_pieces && ok; piece++) {
        ok = exec_offload_wait_for(offload, last, error);
        if (ok && piece + 1 < offload->n_pieces)
            last = exec_offload_ask(offload, (ExecOffloadMove){.piece = piece + 1, .slot = -1});
        ok = ok && step_piece(offload, piece, offload->buffers[piece % EXEC_OFFLOAD_N_BUFFERS],
                              step, user_data, error);
        if (ok) {
            const int64_t written = exec_offload_ask(
                offload, (ExecOffloadMove){.writes = true, .piece = piece, .slot = -1});
            last = piece + 1 < offload->n_pieces ? last : written;
        }
    }
    return exec_offload_wait_for(offload, last, ok ? error : NULL) && ok;
}

bool
exec_offload_each(ExecOffload *offload, ExecOffloadFunc step, void *user_data, GError **error)
{
    if (offload->fd >= 0)
        return step_file(offload, step, user_data, error);
    for (int64_t piece = 0; piece < offload->n_pieces; piece++)
        if (!step_piece(offload, piece,
                        offload->memory.bytes + piece * exec_offload_piece_bytes(offload), step,
                        user_data, error))
            return false;
    return true;
}
