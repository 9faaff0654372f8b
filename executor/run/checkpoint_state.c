#include "executor/run/rank.h"

#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/random.h"
#include "executor/model/state.h"
#include "executor/run/optimize.h"

/* How many values are in host memory at a time. */
#define PIECE 65536
/* No other message is in flight when these are sent. */
#define TAG 0

/* --- what a rank holds --- */

/* As exec_shard_at(), but where the shard has whole rows, all of its elements lie together. */
static int64_t
span_at(const ExecShard *shard, int64_t i, int64_t *n)
{
    if (exec_shard_cols(shard) == shard->cols) {
        *n = exec_shard_n(shard) - i;
        return shard->row_begin * shard->cols + i;
    }
    return exec_shard_at(shard, i, n);
}

/* The sum, over elements that lie together from @offset of the file on, of a mix of their offset
 * and bits. */
static uint64_t
hash_span(const float *values, int64_t n, int64_t offset)
{
    uint64_t sum = 0;

    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        sum += random_at(bits, (uint64_t)(offset + i));
    }
    return sum;
}

static int64_t
n_parts_of(const ExecRank *rank)
{
    return rank->shared->plan->conventions.optimizer_step ? EXEC_CHECKPOINT_PARTS : 1;
}

/* --- a shard and its file --- */

/* A parameter on its way between this rank and its file. */
typedef struct {
    ExecRank *rank;
    const ExecParameter *p;
    bool writes;
    int fd;
    const char *path;
    ExecState state; /* which of the file's parts */
    float *piece;    /* PIECE values */
    uint64_t hash;   /* of what has been moved */
} Transfer;

/* Sets @error to what the errno @code says.  Returns false. */
static bool
failed(const Transfer *t, int code, GError **error)
{
    return EXEC_FAIL(error, EXEC_ERROR_IO, "%s: cannot %s the checkpoint: %s", t->path,
                     t->writes ? "write" : "read", g_strerror(code));
}

/* Moves @n values of the shard from @i on between the file and t->piece. */
static bool
move_piece(Transfer *t, int64_t i, int64_t n, GError **error)
{
    const ExecShard *shard = &t->p->shard;
    const int64_t part_begin = (int64_t)t->state * shard->rows * shard->cols;

    for (int64_t done = 0; done < n;) {
        int64_t together;
        const int64_t offset = part_begin + span_at(shard, i + done, &together);
        together = MIN(together, n - done);
        const int code =
            file_move(t->fd, t->writes, t->piece + done, (size_t)together * sizeof *t->piece,
                      offset * (int64_t)sizeof *t->piece);
        if (code > 0)
            return failed(t, code, error);
        if (code < 0)
            return EXEC_FAIL(error, EXEC_ERROR_DATA, "%s: the checkpoint is cut short", t->path);
        t->hash += hash_span(t->piece + done, together, offset);
        done += together;
    }
    return true;
}

/* Stores master weights that were read as the narrower weights, rounded on the device. */
static bool
store_weights(Transfer *t, int64_t i, int64_t n, GError **error)
{
    ExecModel *model = t->rank->model;
    ExecBlock staging = {0};

    if (t->state != EXEC_STATE_MASTER || model->backend->storage == DTYPE_FP32)
        return true;
    if (!exec_pool_take(model->pool, TRACE_MEMORY_WORKSPACE, PIECE * (int64_t)sizeof *t->piece,
                        &staging, error))
        return false;
    const bool ok = exec_model_write_weights(model, t->p, i, n, t->piece, staging.data, error);
    exec_pool_give(model->pool, &staging);
    return ok;
}

/* Moves this rank's own elements of one part of the file. */
static bool
move_part(Transfer *t, GError **error)
{
    ExecModel *model = t->rank->model;
    int64_t i;
    const int64_t end = exec_model_own_elements(model, t->p, &i) + i;

    for (; i < end; i += PIECE) {
        const int64_t n = MIN(PIECE, end - i);
        const bool ok =
            t->writes
                ? exec_model_move_state(model, false, t->state, t->p, i, n, t->piece, error) &&
                      move_piece(t, i, n, error)
                : move_piece(t, i, n, error) &&
                      exec_model_move_state(model, true, t->state, t->p, i, n, t->piece, error) &&
                      store_weights(t, i, n, error);
        if (!ok)
            return false;
    }
    return true;
}

/* Writes this rank's own elements of a parameter to its file, or reads them; @hash  (out) theirs.
 */
static bool
move_parameter(ExecRank *rank, bool writes, const ExecParameter *p, const char *path, float *piece,
               uint64_t *hash, GError **error)
{
    Transfer t = {.rank = rank, .p = p, .writes = writes, .path = path, .piece = piece};
    bool ok = true;

    t.fd = g_open(path, O_CLOEXEC | (writes ? O_WRONLY | O_CREAT : O_RDONLY), 0666);
    if (t.fd < 0)
        return failed(&t, errno, error);
    for (int64_t part = 0; ok && part < n_parts_of(rank); part++) {
        t.state = (ExecState)part;
        ok = move_part(&t, error);
    }
    if (ok && writes && fsync(t.fd) != 0)
        ok = failed(&t, errno, error);
    /* Some file systems tell of a full disk only here. */
    if (close(t.fd) != 0 && ok && writes)
        ok = failed(&t, errno, error);
    *hash = t.hash;
    return ok;
}

/* --- what a rank writes and reads --- */

static bool
check_shape(const ExecRank *rank, const ExecParameter *p, GError **error)
{
    const ExecCheckpoint *checkpoint = rank->shared->checkpoint;
    const ExecCheckpointParameter *found = exec_checkpoint_find(checkpoint, p->name);

    if (found != NULL && found->rows == p->shard.rows && found->cols == p->shard.cols)
        return true;
    if (found == NULL)
        return EXEC_FAIL(error, EXEC_ERROR_DATA,
                         "%s: the checkpoint is of another model: it has no %s", checkpoint->path,
                         p->name);
    return EXEC_FAIL(error, EXEC_ERROR_DATA,
                     "%s: the checkpoint is of another model: %s is %" G_GINT64_FORMAT
                     " x %" G_GINT64_FORMAT ", the plan's %" G_GINT64_FORMAT " x %" G_GINT64_FORMAT,
                     checkpoint->path, p->name, found->rows, found->cols, p->shard.rows,
                     p->shard.cols);
}

/* Writes this rank's own elements of all parameters to files in @folder, or reads them, and appends
 * what the rank counts of them to @own. */
static bool
move_own(ExecRank *rank, bool writes, const char *folder, GArray *own, GError **error)
{
    g_autofree float *piece = g_new(float, PIECE);

    for (guint i = 0; i < exec_model_n_parameters(rank->model); i++) {
        const ExecParameter *p = exec_model_parameter(rank->model, i);
        const bool counts = exec_rank_speaks_for(rank, i);
        g_autofree char *path = exec_checkpoint_file(folder, p->name);
        ExecCheckpointParameter entry = {.rows = p->shard.rows, .cols = p->shard.cols};
        if (writes && !counts)
            continue;
        /* It moves, however slow the disk. */
        exec_rank_set_doing(rank, writes ? EXEC_DOING_CHECKPOINT : EXEC_DOING_START, 0);
        if ((!writes && !check_shape(rank, p, error)) ||
            !move_parameter(rank, writes, p, path, piece, &entry.hash, error))
            return false;
        g_strlcpy(entry.name, p->name, sizeof entry.name);
        if (counts)
            g_array_append_val(own, entry);
    }
    return writes || rank->backend->ops->synchronize(rank->backend, error);
}

/* --- all ranks together --- */

/* Sorts by name, and makes one of the entries of several ranks, whose hash is the sum. */
static void
merge(GArray *all)
{
    guint n = 0;

    exec_checkpoint_sort(all);
    for (guint i = 0; i < all->len; i++) {
        const ExecCheckpointParameter next = g_array_index(all, ExecCheckpointParameter, i);
        ExecCheckpointParameter *last =
            n == 0 ? NULL : &g_array_index(all, ExecCheckpointParameter, n - 1);
        if (last != NULL && g_str_equal(last->name, next.name))
            last->hash += next.hash;
        else
            g_array_index(all, ExecCheckpointParameter, n++) = next;
    }
    g_array_set_size(all, n);
}

/* Rank 0 adds to @all the entries of the other ranks, which send theirs. */
static bool
gather_parameters(ExecRank *rank, GArray *all, GError **error)
{
    ExecTransport *t = exec_rank_host_transport(rank);
    const size_t size = sizeof(ExecCheckpointParameter);
    int64_t n = all->len;

    if (rank->rank != 0)
        return t->ops->send(t, 0, TAG, &n, sizeof n, error) &&
               t->ops->send(t, 0, TAG, all->data, n * (int64_t)size, error);
    for (int32_t peer = 1; peer < rank->shared->n_ranks; peer++) {
        if (!t->ops->receive(t, peer, TAG, &n, sizeof n, error))
            return false;
        const guint before = all->len;
        g_array_set_size(all, before + (guint)n);
        if (!t->ops->receive(t, peer, TAG, all->data + before * size, n * (int64_t)size, error))
            return false;
    }
    merge(all);
    return true;
}

/* Waits for all ranks. */
static bool
everybody(ExecRank *rank, GError **error)
{
    const ExecGroup everyone = exec_rank_everyone(rank);
    ExecTransport *t = exec_rank_host_transport(rank);

    return t->ops->barrier(t, &everyone, error);
}

/* --- saving --- */

static bool
finish(ExecRank *rank, int64_t n_steps, GArray *parameters, GError **error)
{
    const ExecShared *shared = rank->shared;
    const ExecCheckpoint checkpoint = {
        .step = n_steps,
        .seed = shared->o.seed,
        .global_batch = shared->plan->global_batch,
        .seq_len = shared->plan->seq_len,
        .n_parts = n_parts_of(rank),
        .optimizer = shared->plan->conventions.optimizer,
        .parameters = parameters,
    };

    return exec_checkpoint_finish(shared->checkpoint_dir, &checkpoint, shared->arch, error);
}

static bool
save(ExecRank *rank, int64_t n_steps, GError **error)
{
    const char *dir = rank->shared->checkpoint_dir;
    g_autoptr(GArray) parameters = g_array_new(false, true, sizeof(ExecCheckpointParameter));
    g_autofree char *folder = rank->rank == 0 ? exec_checkpoint_begin(dir, n_steps, error)
                                              : exec_checkpoint_aside(dir, n_steps);

    return folder != NULL && everybody(rank, error) &&
           move_own(rank, true, folder, parameters, error) &&
           gather_parameters(rank, parameters, error) &&
           (rank->rank != 0 || finish(rank, n_steps, parameters, error)) && everybody(rank, error);
}

bool
exec_checkpoint_save(ExecRank *rank, int64_t n_steps, GError **error)
{
    exec_rank_set_doing(rank, EXEC_DOING_CHECKPOINT, 0);
    atomic_store(&rank->record->saving_step, n_steps);
    if (!save(rank, n_steps, error))
        return false;
    atomic_store(&rank->record->saving_step, 0);
    return true;
}

/* --- loading --- */

/* Whether all ranks together have read what was written. */
static bool
check_hashes(const ExecCheckpoint *checkpoint, const GArray *read, GError **error)
{
    for (guint i = 0; i < read->len; i++) {
        const ExecCheckpointParameter *p = &g_array_index(read, ExecCheckpointParameter, i);
        const ExecCheckpointParameter *expected = exec_checkpoint_find(checkpoint, p->name);
        g_autofree char *path = exec_checkpoint_file(checkpoint->path, p->name);
        if (expected != NULL && expected->hash == p->hash)
            continue;
        return EXEC_FAIL(
            error, EXEC_ERROR_DATA,
            "%s: the checkpoint is damaged: its contents are not those that were written", path);
    }
    if (read->len == checkpoint->parameters->len)
        return true;
    return EXEC_FAIL(error, EXEC_ERROR_DATA,
                     "%s: the checkpoint is of another model: it has %u parameters, the plan's %u",
                     checkpoint->path, checkpoint->parameters->len, read->len);
}

bool
exec_checkpoint_load(ExecRank *rank, GError **error)
{
    const ExecCheckpoint *checkpoint = rank->shared->checkpoint;
    g_autoptr(GArray) parameters = g_array_new(false, true, sizeof(ExecCheckpointParameter));

    if (checkpoint->n_parts != n_parts_of(rank))
        return EXEC_FAIL(error, EXEC_ERROR_UNSUPPORTED,
                         "%s: the checkpoint is of a run %s the optimizer's step", checkpoint->path,
                         checkpoint->n_parts == 1 ? "without" : "with");
    if (checkpoint->n_parts > 1 &&
        checkpoint->optimizer != rank->shared->plan->conventions.optimizer)
        return EXEC_FAIL(error, EXEC_ERROR_UNSUPPORTED,
                         "%s: the checkpoint is of a run with --optimizer %s, and the plan has %s",
                         checkpoint->path, plan_optimizer_names[checkpoint->optimizer],
                         plan_optimizer_names[rank->shared->plan->conventions.optimizer]);
    return move_own(rank, false, checkpoint->path, parameters, error) &&
           gather_parameters(rank, parameters, error) &&
           (rank->rank != 0 || check_hashes(checkpoint, parameters, error)) &&
           everybody(rank, error) && exec_rank_gather_weights(rank, error);
}
