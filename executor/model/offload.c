#include "executor/model/offload.h"

#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

enum {
    MAX_ARRAYS = 4,
    N_BUFFERS = 3, /* one piece is read into the first, one stepped, one written from the third */
};

/* Host memory. */
typedef struct {
    char *bytes; /* (owned, nullable) */
    size_t n_bytes;
    bool is_of_device; /* taken by alloc_host() of uploads_to */
} Memory;

/* What the mover's thread is asked to do: to move a piece between file and buffer, or to fetch. */
typedef struct {
    bool writes;
    int64_t piece; /* if slot is -1 */
    int slot;      /* of the fetch; -1: it moves a piece */
} Move;

/* What exec_offload_fetch() was asked for. */
typedef struct {
    int32_t array;
    int64_t at, n;
    Memory buffer;
    int64_t number; /* file: of the move */
    bool is_here;   /* host memory: it has been copied into the buffer */
} Fetch;

struct ExecOffload {
    int64_t n, n_pieces;
    int32_t n_arrays;
    int64_t element_bytes[MAX_ARRAYS]; /* by array */
    bool parameters;
    ExecBackend *host;       /* (owned) */
    ExecBackend *uploads_to; /* (borrowed, nullable) */
    Memory memory;           /* of all pieces; cpu only */

    int fd;                   /* -1: cpu */
    char *path;               /* (owned) for messages */
    char *buffers[N_BUFFERS]; /* (owned) piece i's is i modulo N_BUFFERS */
    Fetch *fetches;           /* (owned) n_fetches */
    int n_fetches;
    GThread *mover;
    GMutex mutex;
    GCond changed;
    /* Under the mutex: */
    Move *moves; /* (owned) ring of n_moves: move i is at i modulo that */
    int64_t n_moves;
    int64_t n_asked, n_done;
    bool quits;
    int failed; /* errno of the first move that failed, or 0 */
    bool failed_writing;
};

/* Elements that lie together: those of one piece. */
typedef struct {
    int64_t n;
    int64_t offset_bytes; /* in memory or the file */
    size_t n_bytes;
} Span;

/* --- where values lie --- */

/* Where an array begins in a piece; of the array after the last: a piece's bytes. */
static int64_t
array_at(const ExecOffload *offload, int32_t array)
{
    int64_t at = 0;

    for (int32_t i = 0; i < array; i++)
        at += EXEC_OFFLOAD_PIECE * offload->element_bytes[i];
    return at;
}

static int64_t
piece_bytes(const ExecOffload *offload)
{
    return array_at(offload, offload->n_arrays);
}

static int64_t
piece_length(const ExecOffload *offload, int64_t piece)
{
    return MIN(EXEC_OFFLOAD_PIECE, offload->n - piece * EXEC_OFFLOAD_PIECE);
}

/* The elements from @at on, @n at most, that lie together with the first. */
static Span
span_at(const ExecOffload *offload, int32_t array, int64_t at, int64_t n)
{
    const int64_t e = offload->element_bytes[array];
    const int64_t piece = at / EXEC_OFFLOAD_PIECE, in_piece = at % EXEC_OFFLOAD_PIECE;
    const int64_t together = MIN(n, EXEC_OFFLOAD_PIECE - in_piece);

    return (Span){
        .n = together,
        .offset_bytes = piece * piece_bytes(offload) + array_at(offload, array) + in_piece * e,
        .n_bytes = (size_t)(together * e),
    };
}

/* --- the file --- */

/* Sets @error: the errno @code ended what was done to the file.  Returns false. */
static bool
failed(const ExecOffload *offload, const char *what, int code, GError **error)
{
    return EXEC_FAIL(error, EXEC_ERROR_IO, "%s: cannot %s the %s: %s", offload->path, what,
                     offload->parameters ? "offloaded state" : "optimizer's state",
                     g_strerror(code));
}

/* Returns: 0, or errno; at the end of the file EIO, since somebody has cut it. */
static int
move_bytes(int fd, bool writes, char *bytes, size_t n_bytes, int64_t offset)
{
    const int code = file_move(fd, writes, bytes, n_bytes, offset);

    return code < 0 ? EIO : code;
}

/* Makes the file, removes its name, and reserves its blocks. */
static bool
open_file(ExecOffload *offload, const ExecOffloadOptions *options, GError **error)
{
    const int64_t n_bytes = offload->n_pieces * piece_bytes(offload);
    g_autofree char *name = g_strdup_printf("degas-offload-rank%d-XXXXXX", options->rank);

    offload->path =
        g_build_filename(options->dir != NULL ? options->dir : g_get_tmp_dir(), name, NULL);
    offload->fd = g_mkstemp_full(offload->path, O_RDWR | O_CLOEXEC, 0600);
    if (offload->fd < 0)
        return failed(offload, "make the file for", errno, error);
    if (g_unlink(offload->path) != 0)
        return failed(offload, "make the file for", errno, error);
    const int code = n_bytes == 0 ? 0 : posix_fallocate(offload->fd, 0, (off_t)n_bytes);
    return code == 0 || failed(offload, "make room for", code, error);
}

/* Copies @n elements of @array from @at on between @values and memory or the file.  Returns: 0, or
 * errno. */
static int
move_values(ExecOffload *offload, bool writes, int32_t array, int64_t at, int64_t n, char *values)
{
    for (int64_t done = 0; done < n;) {
        const Span span = span_at(offload, array, at + done, n - done);
        char *own = values + done * offload->element_bytes[array];
        if (offload->fd < 0) {
            char *kept = offload->memory.bytes + span.offset_bytes;
            memcpy(writes ? kept : own, writes ? own : kept, span.n_bytes);
        } else {
            const int code = move_bytes(offload->fd, writes, own, span.n_bytes, span.offset_bytes);
            if (code != 0)
                return code;
        }
        done += span.n;
    }
    return 0;
}

/* --- the mover --- */

static int
do_move(ExecOffload *offload, const Move *move)
{
    const int64_t n_bytes = piece_bytes(offload);

    if (move->slot >= 0) {
        const Fetch *fetch = &offload->fetches[move->slot];
        return move_values(offload, false, fetch->array, fetch->at, fetch->n, fetch->buffer.bytes);
    }
    return move_bytes(offload->fd, move->writes, offload->buffers[move->piece % N_BUFFERS],
                      (size_t)n_bytes, move->piece * n_bytes);
}

/* The mover's thread. */
static gpointer
move_in_background(gpointer user_data)
{
    ExecOffload *offload = user_data;

    g_mutex_lock(&offload->mutex);
    for (;;) {
        while (offload->n_done == offload->n_asked && !offload->quits)
            g_cond_wait(&offload->changed, &offload->mutex);
        if (offload->n_done == offload->n_asked)
            break;
        const Move move = offload->moves[offload->n_done % offload->n_moves];
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

/* Returns: the move's number.  Moves are done in the order in which they are asked for; there are
 * never more at once than N_BUFFERS of pieces and a fetch for each slot. */
static int64_t
ask(ExecOffload *offload, Move move)
{
    g_mutex_lock(&offload->mutex);
    const int64_t number = offload->n_asked++;
    offload->moves[number % offload->n_moves] = move;
    g_cond_broadcast(&offload->changed);
    g_mutex_unlock(&offload->mutex);
    return number;
}

/* Waits until move @number is done; false if any move so far has failed. */
static bool
wait_for(ExecOffload *offload, int64_t number, GError **error)
{
    g_mutex_lock(&offload->mutex);
    while (offload->n_done <= number)
        g_cond_wait(&offload->changed, &offload->mutex);
    const int code = offload->failed;
    const bool writing = offload->failed_writing;
    g_mutex_unlock(&offload->mutex);
    return code == 0 || failed(offload, writing ? "write" : "read", code, error);
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
    return EXEC_FAIL(error, EXEC_ERROR_MEMORY, "no host memory for what is offloaded");
}

/* Takes memory with unspecified contents; false: there is none. */
static bool
memory_take(const ExecOffload *offload, size_t n_bytes, Memory *memory)
{
    ExecBackend *device = offload->uploads_to;

    *memory = (Memory){.n_bytes = n_bytes};
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
memory_give(const ExecOffload *offload, Memory *memory)
{
    if (memory->is_of_device)
        offload->uploads_to->ops->release_host(offload->uploads_to, memory->bytes);
    else
        g_free(memory->bytes);
    *memory = (Memory){0};
}

static bool
take_memory(ExecOffload *offload, PlanOffload to, GError **error)
{
    const size_t n = (size_t)piece_bytes(offload);
    size_t all;
    bool ok = true;

    if (to == PLAN_OFFLOAD_CPU) {
        ok = !__builtin_mul_overflow((size_t)offload->n_pieces, n, &all) &&
             memory_take(offload, all, &offload->memory);
        if (ok && all > 0)
            memset(offload->memory.bytes, 0, all);
    } else {
        for (int i = 0; i < N_BUFFERS && ok; i++)
            ok = (offload->buffers[i] = g_try_malloc0(n)) != NULL;
    }
    return ok || no_memory(error);
}

ExecOffload *
exec_offload_new(const ExecOffloadOptions *options, int64_t n, int32_t n_arrays, GError **error)
{
    g_return_val_if_fail(options->to != PLAN_OFFLOAD_NONE && n_arrays < MAX_ARRAYS, NULL);
    g_autoptr(ExecOffload) offload = g_new0(ExecOffload, 1);

    offload->n = n;
    offload->n_arrays = n_arrays + options->narrow;
    for (int32_t i = 0; i < n_arrays; i++)
        offload->element_bytes[i] = sizeof(float);
    offload->element_bytes[n_arrays] = dtype_bytes(options->storage);
    offload->parameters = options->parameters;
    offload->uploads_to = options->uploads_to;
    offload->n_fetches = options->n_fetches;
    offload->fetches = g_new0(Fetch, (size_t)options->n_fetches + 1);
    offload->n_moves = 2 * N_BUFFERS + options->n_fetches;
    offload->moves = g_new0(Move, (size_t)offload->n_moves);
    offload->n_pieces = (n + EXEC_OFFLOAD_PIECE - 1) / EXEC_OFFLOAD_PIECE;
    offload->fd = -1;
    g_mutex_init(&offload->mutex);
    g_cond_init(&offload->changed);
    if (!open_host(offload, options, error) || !take_memory(offload, options->to, error))
        return NULL;
    if (options->to == PLAN_OFFLOAD_CPU)
        return g_steal_pointer(&offload);
    if (!open_file(offload, options, error))
        return NULL;
    offload->mover = g_thread_try_new("offload", move_in_background, offload, error);
    return offload->mover == NULL ? NULL : g_steal_pointer(&offload);
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

bool
exec_offload_move(ExecOffload *offload, bool writes, int32_t array, int64_t at, int64_t n,
                  void *values, GError **error)
{
    g_return_val_if_fail(array >= 0 && array < offload->n_arrays && at + n <= offload->n, false);
    const int code = move_values(offload, writes, array, at, n, values);

    return code == 0 || failed(offload, writes ? "write" : "read", code, error);
}

/* --- reading before use --- */

static bool
make_room(const ExecOffload *offload, Fetch *fetch, GError **error)
{
    const size_t n_bytes = (size_t)(fetch->n * offload->element_bytes[fetch->array]);

    if (n_bytes <= fetch->buffer.n_bytes)
        return true;
    memory_give(offload, &fetch->buffer);
    return memory_take(offload, n_bytes, &fetch->buffer) || no_memory(error);
}

bool
exec_offload_fetch(ExecOffload *offload, int slot, int32_t array, int64_t at, int64_t n,
                   GError **error)
{
    g_return_val_if_fail(array >= 0 && array < offload->n_arrays && at + n <= offload->n, false);
    g_return_val_if_fail(slot >= 0 && slot < offload->n_fetches, false);
    Fetch *fetch = &offload->fetches[slot];

    fetch->array = array;
    fetch->at = at;
    fetch->n = n;
    fetch->is_here = false;
    /* The elements are in host memory already. */
    if (offload->fd < 0)
        return true;
    if (!make_room(offload, fetch, error))
        return false;
    fetch->number = ask(offload, (Move){.slot = slot});
    return true;
}

void *
exec_offload_fetched(ExecOffload *offload, int slot, GError **error)
{
    Fetch *fetch = &offload->fetches[slot];

    if (offload->fd >= 0)
        return wait_for(offload, fetch->number, error) ? fetch->buffer.bytes : NULL;
    if (fetch->is_here)
        return fetch->buffer.bytes;
    if (!make_room(offload, fetch, error))
        return NULL;
    move_values(offload, false, fetch->array, fetch->at, fetch->n, fetch->buffer.bytes);
    fetch->is_here = true;
    return fetch->buffer.bytes;
}

bool
exec_offload_upload(ExecOffload *offload, int slot, ExecBackend *backend, void *to, GError **error)
{
    const Fetch *fetch = &offload->fetches[slot];
    const int64_t e = offload->element_bytes[fetch->array];

    if (offload->fd >= 0) {
        if (!wait_for(offload, fetch->number, error))
            return false;
        backend->ops->upload(backend, (size_t)(fetch->n * e), fetch->buffer.bytes, to);
        return true;
    }
    for (int64_t done = 0; done < fetch->n;) {
        const Span span = span_at(offload, fetch->array, fetch->at + done, fetch->n - done);
        backend->ops->upload(backend, span.n_bytes, offload->memory.bytes + span.offset_bytes,
                             (char *)to + done * e);
        done += span.n;
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
    void *arrays[MAX_ARRAYS];

    for (int32_t i = 0; i < offload->n_arrays; i++)
        arrays[i] = data + array_at(offload, i);
    return step(offload->host, piece * EXEC_OFFLOAD_PIECE, piece_length(offload, piece), arrays,
                user_data, error);
}

/* The buffer that a piece is read into was written from three pieces before.  Moves are done in
 * order, so the writing has ended by then. */
static bool
step_file(ExecOffload *offload, ExecOffloadFunc step, void *user_data, GError **error)
{
    int64_t last = offload->n_pieces > 0 ? ask(offload, (Move){.piece = 0, .slot = -1}) : -1;
    bool ok = true;

    for (int64_t piece = 0; piece < offload->n_pieces && ok; piece++) {
        ok = wait_for(offload, last, error);
        if (ok && piece + 1 < offload->n_pieces)
            last = ask(offload, (Move){.piece = piece + 1, .slot = -1});
        ok = ok && step_piece(offload, piece, offload->buffers[piece % N_BUFFERS], step, user_data,
                              error);
        if (ok) {
            const int64_t written =
                ask(offload, (Move){.writes = true, .piece = piece, .slot = -1});
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
        if (!step_piece(offload, piece, offload->memory.bytes + piece * piece_bytes(offload), step,
                        user_data, error))
            return false;
    return true;
}
