#include "executor/run/rank.h"

#include <string.h>

#include "executor/device/clock.h"
#include "executor/watch/member.h"

/* When these messages are sent, all those of a step have been received, so any tag is free. */
#define TAG 0
#define ROUNDS 64

/* --- clocks --- */

/* Reads rank @peer's clock: sets what to subtract from its times. */
static bool
ask_peer(ExecRank *rank, int32_t peer, ExecClock *clock, bool at_end, GError **error)
{
    ExecTransport *t = exec_rank_host_transport(rank);
    int64_t best = INT64_MAX;

    for (int round = 0; round < ROUNDS; round++) {
        int64_t there = 0;
        const int64_t begin = exec_now_ns();
        if (!t->ops->send(t, peer, TAG, &there, sizeof there, error) ||
            !t->ops->receive(t, peer, TAG, &there, sizeof there, error))
            return false;
        const int64_t end = exec_now_ns();
        if (end - begin >= best)
            continue;
        best = end - begin;
        clock->offset_ns[at_end] = there - (begin + best / 2);
        clock->at_ns[at_end] = there;
    }
    clock->error_ns = MAX(clock->error_ns, (best + 1) / 2);
    if (!at_end) {
        clock->offset_ns[1] = clock->offset_ns[0];
        clock->at_ns[1] = clock->at_ns[0];
    }
    return true;
}

static bool
answer(ExecRank *rank, GError **error)
{
    ExecTransport *t = exec_rank_host_transport(rank);

    for (int round = 0; round < ROUNDS; round++) {
        int64_t now = 0;
        if (!t->ops->receive(t, 0, TAG, &now, sizeof now, error))
            return false;
        now = exec_now_ns();
        if (!t->ops->send(t, 0, TAG, &now, sizeof now, error))
            return false;
    }
    return true;
}

bool
exec_gather_clocks(ExecRank *rank, bool at_end, GError **error)
{
    ExecShared *shared = rank->shared;

    if (!exec_shared_is_distributed(shared))
        return true;
    if (rank->rank != 0)
        return answer(rank, error);
    for (int32_t peer = 1; peer < shared->n_ranks; peer++)
        if (!ask_peer(rank, peer, &shared->clocks[peer], at_end, error))
            return false;
    return true;
}

/* Translates @time_ns of a rank's clock to rank 0's: between two readings the offset is linear. */
static int64_t
on_our_clock(const ExecClock *clock, int64_t time_ns)
{
    const int64_t span = clock->at_ns[1] - clock->at_ns[0];
    const int64_t drift = clock->offset_ns[1] - clock->offset_ns[0];
    const double part = span > 0 ? (double)(time_ns - clock->at_ns[0]) / (double)span : 0.0;

    return time_ns - clock->offset_ns[0] - (int64_t)((double)drift * part);
}

/* --- machines --- */

/* Longer than exec_watch_machine()'s. */
#define MACHINE_BYTES 256

bool
exec_gather_local_rank(ExecRank *rank, int32_t *local_rank, GError **error)
{
    ExecTransport *t = exec_rank_host_transport(rank);
    const ExecGroup everyone = exec_rank_everyone(rank);
    const size_t n_bytes = (size_t)everyone.n * MACHINE_BYTES;
    g_autofree char *own = exec_watch_machine();
    g_autofree char *machines = g_new0(char, n_bytes);

    g_strlcpy(machines + (size_t)rank->rank * MACHINE_BYTES, own, MACHINE_BYTES);
    if (!t->ops->all_gather(t, &everyone, DTYPE_FP8, machines, (int64_t)n_bytes, error))
        return false;
    *local_rank = 0;
    for (int32_t r = 0; r < rank->rank; r++)
        *local_rank += strcmp(machines + (size_t)r * MACHINE_BYTES, own) == 0;
    return true;
}

/* --- steps --- */

typedef struct {
    double loss;
    int64_t begin_ns, end_ns;
} StepReport;

bool
exec_gather_step(ExecRank *rank, GError **error)
{
    ExecShared *shared = rank->shared;
    ExecTransport *t = exec_rank_host_transport(rank);
    const int64_t first = rank->step * shared->n_ranks;
    StepReport report;

    if (!exec_shared_is_distributed(shared))
        return true;
    if (rank->rank != 0) {
        const int64_t own = first + rank->rank;
        report = (StepReport){shared->losses[own], shared->begin_ns[own], shared->end_ns[own]};
        return t->ops->send(t, 0, TAG, &report, sizeof report, error);
    }
    for (int32_t peer = 1; peer < shared->n_ranks; peer++) {
        if (!t->ops->receive(t, peer, TAG, &report, sizeof report, error))
            return false;
        const ExecClock *clock = &shared->clocks[peer];
        exec_shared_step_done(shared, rank->step, peer, report.loss,
                              on_our_clock(clock, report.begin_ns),
                              on_our_clock(clock, report.end_ns));
    }
    return true;
}

/* --- records --- */

/* Sends @data to rank 0, or receives it from @peer there: the same code describes a record on both
 * sides. */
static bool
move(ExecRank *rank, int32_t peer, void *data, int64_t n_bytes, GError **error)
{
    ExecTransport *t = exec_rank_host_transport(rank);

    if (n_bytes == 0)
        return true;
    return rank->rank != 0 ? t->ops->send(t, 0, TAG, data, n_bytes, error)
                           : t->ops->receive(t, peer, TAG, data, n_bytes, error);
}

/* @array  (nullable) of elements of @element_bytes; received, it is NULL where the sender had none.
 */
static bool
move_array(ExecRank *rank, int32_t peer, size_t element_bytes, GArray **array, GError **error)
{
    int64_t n_bytes = *array == NULL ? -1 : (int64_t)((*array)->len * element_bytes);

    if (!move(rank, peer, &n_bytes, sizeof n_bytes, error))
        return false;
    if (rank->rank == 0) {
        g_clear_pointer(array, g_array_unref);
        if (n_bytes < 0)
            return true;
        *array = g_array_new(false, false, (guint)element_bytes);
        g_array_set_size(*array, (guint)((size_t)n_bytes / element_bytes));
    }
    if (n_bytes < 0)
        return true;
    g_assert(*array != NULL);
    return move(rank, peer, (*array)->data, n_bytes, error);
}

static bool
move_gradients(ExecRank *rank, int32_t peer, ExecRankRecord *record, GError **error)
{
    const int64_t float_bytes = (int64_t)sizeof *record->gradients;
    int64_t n_bytes = record->gradients == NULL ? 0 : rank->model->layout.n * float_bytes;

    if (!move(rank, peer, &n_bytes, sizeof n_bytes, error))
        return false;
    if (rank->rank == 0 && n_bytes > 0) {
        record->gradients = g_try_malloc((size_t)n_bytes);
        if (record->gradients == NULL)
            return EXEC_FAIL(error, EXEC_ERROR_MEMORY,
                             "no memory for the gradients of rank %d to verify", peer);
    }
    return move(rank, peer, record->gradients, n_bytes, error);
}

static bool
move_record(ExecRank *rank, int32_t peer, ExecRankRecord *record, GError **error)
{
    for (size_t i = 0; i < EXEC_TRACED_STEPS; i++)
        if (!move_array(rank, peer, sizeof(TraceEvent), &record->events[i], error) ||
            !move_array(rank, peer, sizeof(TraceMemory), &record->memory[i], error))
            return false;
    return move(rank, peer, &record->peak_memory_bytes, sizeof record->peak_memory_bytes, error) &&
           move_array(rank, peer, sizeof(ExecParameter), &record->parameters, error) &&
           move_gradients(rank, peer, record, error);
}

/* Translates the times of events to rank 0's clock. */
static void
align(const ExecClock *clock, GArray *events)
{
    for (guint i = 0; events != NULL && i < events->len; i++) {
        TraceEvent *event = &g_array_index(events, TraceEvent, i);
        event->start_ns = on_our_clock(clock, event->start_ns);
        event->end_ns = on_our_clock(clock, event->end_ns);
    }
}

/* Translates the times of steps once more: their reports came when only the first reading of the
 * clock was known. */
static void
align_steps(ExecShared *shared, int32_t from)
{
    const ExecClock *clock = &shared->clocks[from];

    g_mutex_lock(&shared->mutex);
    for (int64_t step = shared->first_step; step < exec_shared_n_whole_steps(shared); step++) {
        int64_t *begin = &shared->begin_ns[step * shared->n_ranks + from];
        int64_t *end = &shared->end_ns[step * shared->n_ranks + from];
        *begin = on_our_clock(clock, *begin + clock->offset_ns[0]);
        *end = on_our_clock(clock, *end + clock->offset_ns[0]);
    }
    g_mutex_unlock(&shared->mutex);
}

bool
exec_gather_record(ExecRank *rank, GError **error)
{
    ExecShared *shared = rank->shared;

    if (!exec_shared_is_distributed(shared))
        return true;
    if (rank->rank != 0)
        return move_record(rank, 0, rank->record, error);
    for (int32_t peer = 1; peer < shared->n_ranks; peer++) {
        if (!move_record(rank, peer, &shared->records[peer], error))
            return false;
        for (size_t i = 0; i < EXEC_TRACED_STEPS; i++)
            align(&shared->clocks[peer], shared->records[peer].events[i]);
        align_steps(shared, peer);
    }
    return true;
}
