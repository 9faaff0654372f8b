#include "executor/run/gather.h"

#include <string.h>

#include "executor/device/clock.h"
#include "executor/watch/member.h"

/* Every message of a step has been received when these are sent, so any tag is free. */
#define TAG 0
#define ROUNDS 64

/* --- clocks --- */

/* Of rank @peer's clock against this one's: what to subtract from its times. */
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

/* @time_ns of a rank's clock, on rank 0's: the offset is a straight line between two readings. */
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

static bool
send_array(ExecRank *rank, const GArray *array, GError **error)
{
    ExecTransport *t = exec_rank_host_transport(rank);
    const int64_t none = -1;

    if (array == NULL)
        return t->ops->send(t, 0, TAG, &none, sizeof none, error);
    const int64_t n_bytes = (int64_t)array->len * g_array_get_element_size((GArray *)array);
    return t->ops->send(t, 0, TAG, &n_bytes, sizeof n_bytes, error) &&
           (n_bytes == 0 || t->ops->send(t, 0, TAG, array->data, n_bytes, error));
}

/* @array  (out, nullable) of @element bytes each; NULL where the sender had none. */
static bool
receive_array(ExecRank *rank, int32_t from, size_t element, GArray **array, GError **error)
{
    ExecTransport *t = exec_rank_host_transport(rank);
    int64_t n_bytes = 0;

    if (!t->ops->receive(t, from, TAG, &n_bytes, sizeof n_bytes, error))
        return false;
    g_clear_pointer(array, g_array_unref);
    if (n_bytes < 0)
        return true;
    *array = g_array_new(false, false, (guint)element);
    g_array_set_size(*array, (guint)((size_t)n_bytes / element));
    return n_bytes == 0 || t->ops->receive(t, from, TAG, (*array)->data, n_bytes, error);
}

static bool
send_record(ExecRank *rank, GError **error)
{
    const ExecRankRecord *record = rank->record;
    ExecTransport *t = exec_rank_host_transport(rank);
    const int64_t n_floats = record->gradients == NULL ? 0 : rank->model->layout.n;

    for (size_t i = 0; i < EXEC_TRACED_STEPS; i++)
        if (!send_array(rank, record->events[i], error) ||
            !send_array(rank, record->memory[i], error))
            return false;
    return t->ops->send(t, 0, TAG, &record->peak_memory_bytes, sizeof record->peak_memory_bytes,
                        error) &&
           send_array(rank, record->parameters, error) &&
           t->ops->send(t, 0, TAG, &n_floats, sizeof n_floats, error) &&
           (n_floats == 0 ||
            t->ops->send(t, 0, TAG, record->gradients, n_floats * (int64_t)sizeof(float), error));
}

static bool
receive_gradients(ExecRank *rank, int32_t from, ExecRankRecord *record, GError **error)
{
    ExecTransport *t = exec_rank_host_transport(rank);
    int64_t n_floats = 0;

    if (!t->ops->receive(t, from, TAG, &n_floats, sizeof n_floats, error))
        return false;
    if (n_floats == 0)
        return true;
    record->gradients = g_try_new(float, (size_t)n_floats);
    if (record->gradients == NULL) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_MEMORY,
                    "no memory for the gradients of rank %d to verify", from);
        return false;
    }
    return t->ops->receive(t, from, TAG, record->gradients, n_floats * (int64_t)sizeof(float),
                           error);
}

static void
align(const ExecClock *clock, GArray *events)
{
    for (guint i = 0; events != NULL && i < events->len; i++) {
        TraceEvent *event = &g_array_index(events, TraceEvent, i);
        event->start_ns = on_our_clock(clock, event->start_ns);
        event->end_ns = on_our_clock(clock, event->end_ns);
    }
}

/* The reports of steps came when only the first reading of the clock was known. */
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

static bool
receive_record(ExecRank *rank, int32_t from, GError **error)
{
    ExecShared *shared = rank->shared;
    ExecRankRecord *record = &shared->records[from];
    ExecTransport *t = exec_rank_host_transport(rank);

    for (size_t i = 0; i < EXEC_TRACED_STEPS; i++) {
        if (!receive_array(rank, from, sizeof(TraceEvent), &record->events[i], error) ||
            !receive_array(rank, from, sizeof(TraceMemory), &record->memory[i], error))
            return false;
        align(&shared->clocks[from], record->events[i]);
    }
    align_steps(shared, from);
    return t->ops->receive(t, from, TAG, &record->peak_memory_bytes,
                           sizeof record->peak_memory_bytes, error) &&
           receive_array(rank, from, sizeof(ExecParameter), &record->parameters, error) &&
           receive_gradients(rank, from, record, error);
}

bool
exec_gather_record(ExecRank *rank, GError **error)
{
    if (!exec_shared_is_distributed(rank->shared))
        return true;
    if (rank->rank != 0)
        return send_record(rank, error);
    for (int32_t peer = 1; peer < rank->shared->n_ranks; peer++)
        if (!receive_record(rank, peer, error))
            return false;
    return true;
}
