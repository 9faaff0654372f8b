#include "executor/run/shared.h"

#include <unistd.h>

#include "base/order.h"
#include "base/text.h"
#include "base/units.h"
#include "executor/device/clock.h"

static bool
alloc_steps(ExecShared *shared, GError **error)
{
    size_t n = 0;

    if (!__builtin_mul_overflow((size_t)shared->o.n_steps, (size_t)shared->n_ranks, &n)) {
        shared->losses = g_try_new0(double, n);
        shared->begin_ns = g_try_new0(int64_t, n);
        shared->end_ns = g_try_new0(int64_t, n);
    }
    if (shared->losses != NULL && shared->begin_ns != NULL && shared->end_ns != NULL)
        return true;
    return EXEC_FAIL(error, EXEC_ERROR_MEMORY,
                     "no memory for the record of " INT " steps on %d ranks", shared->o.n_steps,
                     shared->n_ranks);
}

static bool
refuse(GError **error, const char *dir, const char *why, int64_t step)
{
    g_autofree char *shown = text_escape(dir, 200);

    return EXEC_FAIL(error, EXEC_ERROR_UNSUPPORTED, "%s: %s (step " INT ")", shown, why, step);
}

bool
exec_shared_find_checkpoint(const ExecRunOptions *o, ExecCheckpoint **checkpoint, GError **error)
{
    *checkpoint = NULL;
    if (o->checkpoint_dir == NULL)
        return true;
    g_autoptr(GArray) steps = exec_checkpoint_steps(o->checkpoint_dir, error);
    if (steps == NULL)
        return false;
    const int64_t last = steps->len > 0 ? g_array_index(steps, int64_t, steps->len - 1) : -1;
    if (!o->resume)
        return last < 0 ||
               refuse(error, o->checkpoint_dir,
                      "holds checkpoints of an earlier run; --resume goes on from the last", last);
    const int64_t step = o->resume_step >= 0 ? o->resume_step : last;
    if (last < 0 || !g_array_binary_search(steps, &step, order_int64s, NULL))
        return refuse(
            error, o->checkpoint_dir,
            last < 0 ? "holds no complete checkpoint" : "holds no checkpoint of that step", step);
    g_autoptr(ExecCheckpoint) found = exec_checkpoint_open(o->checkpoint_dir, step, error);
    if (found == NULL)
        return false;
    g_autofree char *difference = model_arch_difference(found->arch, o->arch);
    if (difference != NULL)
        return EXEC_FAIL(error, EXEC_ERROR_DATA,
                         "%s: the checkpoint is of another model: %s as in the plan", found->path,
                         difference);
    if (found->seed != o->seed)
        return refuse(error, o->checkpoint_dir, "the checkpoint is of another --seed", step);
    if (found->global_batch != o->plan->global_batch || found->seq_len != o->plan->seq_len)
        return refuse(error, o->checkpoint_dir,
                      "the checkpoint is of another global batch or sequence length", step);
    if (step >= o->n_steps)
        return refuse(error, o->checkpoint_dir, "all --steps are done in the checkpoint", step);
    *checkpoint = g_steal_pointer(&found);
    return true;
}

ExecShared *
exec_shared_new(const ExecRunOptions *options, GError **error)
{
    ExecShared *shared = g_new0(ExecShared, 1);

    g_mutex_init(&shared->mutex);
    g_cond_init(&shared->changed);
    shared->n_users = 1;
    shared->lock = -1;
    shared->o = *options;
    shared->arch = model_arch_copy(options->arch);
    shared->plan = plan_copy(options->plan);
    shared->device = g_strdup(options->device);
    shared->wanted_attention = g_strdup(options->attention);
    shared->predicted_bytes =
        g_memdup2(options->predicted_bytes, (size_t)options->plan->degrees.pp * sizeof(int64_t));
    shared->n_ranks = (int32_t)plan_n_devices(options->plan);
    shared->schedule = options->schedule != NULL ? schedule_copy(options->schedule)
                                                 : plan_build_schedule(options->plan, NULL, error);
    if (shared->schedule != NULL)
        shared->data =
            exec_data_open(options->data_path, options->arch->vocab, options->plan->seq_len,
                           model_n_losses(options->arch), options->seed, error);
    if (shared->data == NULL || !alloc_steps(shared, error) ||
        !exec_shared_find_checkpoint(options, &shared->checkpoint, error)) {
        exec_shared_unref(shared);
        return NULL;
    }
    shared->checkpoint_dir = g_strdup(options->checkpoint_dir);
    shared->offload_dir = g_strdup(options->offload_dir);
    shared->first_step = shared->checkpoint != NULL ? shared->checkpoint->step : 0;
    shared->n_whole_steps = shared->first_step;
    shared->records = g_new0(ExecRankRecord, (size_t)shared->n_ranks);
    for (int32_t i = 0; i < shared->n_ranks; i++)
        atomic_store(&shared->records[i].since_ns, exec_now_ns());
    shared->everyone = exec_ranks_new(shared->n_ranks);
    const ExecTransportKind *transport = exec_transport_kind(options->transport);
    shared->own_rank = transport->in_processes ? options->process_rank : -1;
    shared->nccl = transport->is_nccl;
    shared->watch_where = g_strdup(options->watch_where);
    if (exec_shared_is_distributed(shared))
        shared->clocks = g_new0(ExecClock, (size_t)shared->n_ranks);
    else
        shared->hub = exec_local_hub_new(shared->n_ranks, 0);
    return shared;
}

static void
record_clear(ExecRankRecord *record)
{
    for (size_t i = 0; i < EXEC_TRACED_STEPS; i++) {
        g_clear_pointer(&record->events[i], g_array_unref);
        g_clear_pointer(&record->memory[i], g_array_unref);
    }
    g_clear_pointer(&record->parameters, g_array_unref);
    g_free(record->gradients);
}

void
exec_shared_unref(ExecShared *shared)
{
    g_mutex_lock(&shared->mutex);
    const bool last = --shared->n_users == 0;
    g_mutex_unlock(&shared->mutex);
    if (!last)
        return;
    for (int32_t i = 0; shared->records != NULL && i < shared->n_ranks; i++)
        record_clear(&shared->records[i]);
    g_free(shared->records);
    exec_local_hub_free(shared->hub);
    g_free(shared->everyone);
    g_free(shared->clocks);
    g_free(shared->watch_where);
    g_free(shared->checkpoint_dir);
    g_free(shared->offload_dir);
    exec_checkpoint_free(shared->checkpoint);
    if (shared->lock >= 0)
        close(shared->lock);
    exec_data_free(shared->data);
    schedule_free(shared->schedule);
    plan_free(shared->plan);
    model_arch_free(shared->arch);
    g_free(shared->device);
    g_free(shared->wanted_attention);
    g_free(shared->backend);
    g_free(shared->attention);
    g_free(shared->collectives);
    g_free(shared->predicted_bytes);
    g_free(shared->losses);
    g_free(shared->begin_ns);
    g_free(shared->end_ns);
    g_clear_error(&shared->error);
    g_mutex_clear(&shared->mutex);
    g_cond_clear(&shared->changed);
    g_free(shared);
}

ExecTransport
exec_shared_endpoint(const ExecShared *shared, int32_t rank)
{
    if (shared->hub != NULL)
        return exec_local_transport(shared->hub, rank);
    if (atomic_load(&shared->has_device_endpoint))
        return shared->device_endpoint;
    return atomic_load(&shared->is_open) ? shared->endpoint : (ExecTransport){.rank = rank};
}

void
exec_shared_withdraw_device(ExecShared *shared)
{
    g_mutex_lock(&shared->mutex);
    atomic_store(&shared->has_device_endpoint, false);
    g_mutex_unlock(&shared->mutex);
}

void
exec_shared_step_done(ExecShared *shared, int64_t step, int32_t rank, double loss, int64_t begin_ns,
                      int64_t end_ns)
{
    const int64_t at = step * shared->n_ranks + rank;

    g_mutex_lock(&shared->mutex);
    shared->losses[at] = loss;
    shared->begin_ns[at] = begin_ns;
    shared->end_ns[at] = end_ns;
    g_cond_broadcast(&shared->changed);
    g_mutex_unlock(&shared->mutex);
}

static bool
is_whole(const ExecShared *shared, int64_t step)
{
    for (int32_t rank = 0; rank < shared->n_ranks; rank++)
        if (shared->end_ns[step * shared->n_ranks + rank] == 0)
            return false;
    return true;
}

int64_t
exec_shared_n_whole_steps(ExecShared *shared)
{
    while (shared->n_whole_steps < shared->o.n_steps && is_whole(shared, shared->n_whole_steps))
        shared->n_whole_steps++;
    return shared->n_whole_steps;
}

/* --- times of steps --- */

int64_t
exec_step_begin_ns(const ExecShared *shared, int64_t step)
{
    int64_t begin = INT64_MAX;

    for (int32_t r = 0; r < shared->n_ranks; r++)
        begin = MIN(begin, shared->begin_ns[step * shared->n_ranks + r]);
    return begin;
}

int64_t
exec_step_ns(const ExecShared *shared, int64_t step)
{
    int64_t end = 0;

    for (int32_t r = 0; r < shared->n_ranks; r++)
        end = MAX(end, shared->end_ns[step * shared->n_ranks + r]);
    return end - exec_step_begin_ns(shared, step);
}

double
exec_step_loss(const ExecShared *shared, int64_t step)
{
    double sum = 0;

    for (int32_t r = 0; r < shared->n_ranks; r++)
        sum += shared->losses[step * shared->n_ranks + r];
    return sum / ((double)shared->plan->global_batch * (double)shared->plan->seq_len);
}

int64_t
exec_median_step_ns(const ExecShared *shared, int64_t first, int64_t end)
{
    const size_t n = (size_t)(end - first);
    g_autofree int64_t *times = g_new(int64_t, n);

    for (size_t i = 0; i < n; i++)
        times[i] = exec_step_ns(shared, first + (int64_t)i);
    qsort(times, n, sizeof *times, order_int64s);
    return times[n / 2];
}

/* --- failures --- */

char *
exec_shared_doing(ExecShared *shared, int32_t rank)
{
    static const struct {
        const char *text;
        bool has_step;
    } texts[] = {
        [EXEC_DOING_START] = {"its preparations", false},
        [EXEC_DOING_DATA] = {"reading the data of step", true},
        [EXEC_DOING_OP] = {" of step", true}, /* behind the op */
        [EXEC_DOING_REDUCE] = {"the gradient reduction of step", true},
        [EXEC_DOING_OPTIMIZER] = {"the optimizer of step", true},
        [EXEC_DOING_BARRIER] = {"the barrier before step", true},
        [EXEC_DOING_CHECKPOINT] = {"the checkpoint after step", true},
        [EXEC_DOING_COLLECTIVES] = {"the timing of collectives", false},
        [EXEC_DOING_END] = {"gathering the results", false},
        [EXEC_DOING_NOTHING] = {"nothing, it has ended", false},
    };
    ExecRankRecord *record = &shared->records[rank];
    const int64_t step = atomic_load(&record->step), op = atomic_load(&record->op);
    const int doing = atomic_load(&record->doing);
    char name[32] = "";

    if (doing == EXEC_DOING_OP)
        schedule_op_name(shared->schedule, shared->schedule->ops[op], name);
    return texts[doing].has_step ? g_strdup_printf("%s%s " INT, name, texts[doing].text, step)
                                 : g_strdup(texts[doing].text);
}

/* The error code of a run whose rank has failed with @error: errors of memory, data and files keep
 * theirs, all others mean that the rank died. */
static int
outer_code(const GError *error)
{
    if (error->domain == G_FILE_ERROR)
        return EXEC_ERROR_IO;
    if (error->domain == EXEC_ERROR && error->code != EXEC_ERROR_FAILED)
        return error->code;
    return EXEC_ERROR_RANK_DIED;
}

void
exec_shared_fail(ExecShared *shared, int32_t rank, GError *error)
{
    ExecTransport transport = exec_shared_endpoint(shared, rank);
    g_autofree char *doing = exec_shared_doing(shared, rank);
    g_autofree char *why = g_strdup_printf("rank %d failed in %s: %s", rank, doing, error->message);

    g_mutex_lock(&shared->mutex);
    const bool first = shared->error == NULL;
    if (first)
        shared->error = g_error_new_literal(EXEC_ERROR, outer_code(error), why);
    g_cond_broadcast(&shared->changed);
    g_mutex_unlock(&shared->mutex);
    /* By now the watcher may have put another error in its place. */
    if (first && transport.ops != NULL)
        transport.ops->abort(&transport, why);
    g_error_free(error);
}

void
exec_shared_give_up_checkpoint(const ExecShared *shared, int32_t rank)
{
    const int64_t step = atomic_load(&shared->records[rank].saving_step);

    if (step > 0)
        exec_checkpoint_discard(shared->checkpoint_dir, step);
}
