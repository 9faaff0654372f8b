#include "executor/run/supervise.h"

#include "base/units.h"
#include "executor/run/rank.h"
#include "executor/watch/launch.h"
#include "executor/watch/member.h"
#include "executor/device/clock.h"
#include "executor/watch/watch.h"

/* How long ranks that were told to stop may take before they are left behind. */
#define GRACE_US (2 * G_USEC_PER_SEC)
/* How long any wait may take without --timeout; before the first step has shown how long a step
 * takes it is EXEC_WATCH_FIRST_LIMIT_NS. */
#define DEFAULT_TIMEOUT_NS (INT64_C(30) * 1000000000)
/* How often the watch looks. */
#define LOOK_US 50000
/* Starting MPI, allocating and initialising may take longer than any op; waiting for another rank
 * may not, for that one has this time. */
#define PREPARATIONS_NS (INT64_C(60) * 1000000000)
/* How long the watcher may take to answer when it has been told of a failure. */
#define VERDICT_MS 3000

/* --- what the watch sees of a rank --- */

/* What the watch of this process remembers between its looks. */
typedef struct {
    int64_t looked_ns;  /* time of the last look */
    int64_t resumed_ns; /* when this process went on after it had been stopped; 0: it was not */
    ExecMember *member; /* (owned, nullable) the connection to the watcher */
    bool told;          /* the watcher prints the error */
    bool done;          /* the watcher has given its last order */
} Line;

static int64_t
limit_ns(const ExecShared *shared, int64_t n_steps_done)
{
    if (shared->o.timeout_s > 0)
        return units_ns_from_s(shared->o.timeout_s);
    if (n_steps_done == shared->first_step)
        return EXEC_WATCH_FIRST_LIMIT_NS;
    return MAX(
        DEFAULT_TIMEOUT_NS,
        20 * exec_median_step_ns(shared, MAX(shared->first_step, n_steps_done - 15), n_steps_done));
}

static ExecWatched
look_at(const ExecShared *shared, const Line *line, int32_t rank)
{
    const ExecRankRecord *record = &shared->records[rank];
    const ExecTransport endpoint = exec_shared_endpoint(shared, rank);
    const bool is_open = endpoint.ops != NULL;
    /* First of all: who ends a wait says when before it says that it waits no more, so that it is not taken for one that
     * has not moved since before the wait. */
    const int32_t waiting_for = is_open ? endpoint.ops->waiting_for(&endpoint) : EXEC_NOT_WAITING;
    const int64_t began = atomic_load(&record->since_ns);
    const int64_t waited = is_open ? endpoint.ops->waited_until_ns(&endpoint) : 0;
    const int doing = atomic_load(&record->doing);
    const int64_t moved = MAX(began, waited);
    const int64_t idle = exec_now_ns() - MAX(moved, line->resumed_ns);
    const bool prepares = exec_shared_is_distributed(shared) && doing == EXEC_DOING_START &&
                          waiting_for == EXEC_NOT_WAITING;

    return (ExecWatched){
        .ended = doing == EXEC_DOING_NOTHING,
        .idle_ns = prepares ? MAX(0, idle - PREPARATIONS_NS) : idle,
        .waiting_for = waiting_for,
    };
}

/* --- watching threads --- */

/* Sets the run's error if a rank hangs; the mutex is held. */
static void
judge(ExecShared *shared, const Line *line, int64_t limit)
{
    g_autofree ExecWatched *ranks = g_new0(ExecWatched, (size_t)shared->n_ranks);
    ExecHung hung;

    for (int32_t rank = 0; rank < shared->n_ranks; rank++)
        ranks[rank] = look_at(shared, line, rank);
    if (!exec_watch_find_hung(ranks, shared->n_ranks, limit, &hung))
        return;
    g_autofree char *doing = exec_shared_doing(shared, hung.culprit);
    g_autofree char *who = g_strdup_printf("rank %d", hung.culprit);
    shared->error = exec_watch_hung_error(&hung, who, doing, ranks[hung.culprit].idle_ns);
}

/* --- being watched --- */

/* Connects to the watcher once its address is known; the mutex is held. */
static void
connect_line(ExecShared *shared, Line *line)
{
    if (line->member == NULL && shared->watch_where != NULL && shared->error == NULL)
        line->member = exec_member_connect(shared->watch_where, shared->own_rank, &shared->error);
}

/* Whether somebody wants the run to end, as ExecRunOptions.stop. */
static int
stop_of(const ExecShared *shared)
{
    return shared->o.stop == NULL ? 0 : g_atomic_int_get(shared->o.stop);
}

static void
send_pulse(ExecShared *shared, Line *line, int64_t n_steps_done)
{
    const ExecWatched own = look_at(shared, line, shared->own_rank);
    g_autofree char *doing = exec_shared_doing(shared, shared->own_rank);
    ExecWatchRecord record = {
        .kind = EXEC_WATCH_PULSE,
        .waiting_for = own.waiting_for,
        .step = n_steps_done,
        .idle_ns = own.idle_ns,
        .wants_stop = stop_of(shared) != 0,
    };

    if (shared->own_rank == 0) {
        record.limit_ns = limit_ns(shared, n_steps_done);
        record.loss =
            n_steps_done > shared->first_step ? exec_step_loss(shared, n_steps_done - 1) : 0.0;
    }
    g_strlcpy(record.text, doing, sizeof record.text);
    exec_member_tell(line->member, &record);
}

/* Does what the watcher says; the mutex is held. */
static void
obey(ExecShared *shared, Line *line, int wait_ms)
{
    GError *why = NULL;

    switch (exec_member_order(line->member, wait_ms, &why)) {
    case EXEC_ORDER_NONE:
        return;
    case EXEC_ORDER_STOP:
        atomic_store(&shared->stop_wanted, true);
        return;
    case EXEC_ORDER_BYE:
        line->done = true;
        return;
    case EXEC_ORDER_ABORT:
        line->told = true;
        break;
    case EXEC_ORDER_UNREADABLE: /* the watcher is told of it */
        g_clear_error(&shared->error);
        shared->error = why;
        return;
    case EXEC_ORDER_LOST: /* nobody is left to tell it, but one speaks for all */
        line->told = shared->own_rank != 0;
        break;
    }
    g_clear_error(&shared->error);
    shared->error = why;
    line->done = true;
}

/* Tells the watcher that the rank is done or has failed, and waits for its last order. */
static void
hang_up(ExecShared *shared, Line *line)
{
    ExecWatchRecord record = {.kind = EXEC_WATCH_DONE};

    if (line->member == NULL || line->done)
        return;
    if (shared->error != NULL) {
        record.kind = EXEC_WATCH_FAILED;
        record.code = shared->error->code;
        g_strlcpy(record.text, shared->error->message, sizeof record.text);
    }
    exec_member_tell(line->member, &record);
    const int64_t end_us = g_get_monotonic_time() + VERDICT_MS * 1000;
    while (!line->done && g_get_monotonic_time() < end_us)
        obey(shared, line, VERDICT_MS);
}

/* --- the watch --- */

/* Tells the caller about steps that have ended since the last call; the mutex is held. */
static void
report_progress(ExecShared *shared, int64_t *n_reported)
{
    while (shared->error == NULL && *n_reported < exec_shared_n_whole_steps(shared)) {
        const int64_t step = (*n_reported)++;
        const double loss = exec_step_loss(shared, step);
        const double step_s = (double)exec_step_ns(shared, step) * 1e-9;
        if (shared->o.progress == NULL)
            continue;
        g_mutex_unlock(&shared->mutex);
        shared->o.progress(step, loss, step_s, shared->o.user_data);
        g_mutex_lock(&shared->mutex);
    }
}

/* An interruption that lasts too long becomes an error, unless it leaves the step its time; the
 * mutex is held. */
static void
watch_stop(ExecShared *shared, int64_t *stop_us)
{
    const int stop = stop_of(shared);

    if (stop == 0)
        return;
    atomic_store(&shared->stop_wanted, true);
    if (stop == EXEC_STOP_PATIENTLY)
        return;
    if (*stop_us == 0)
        *stop_us = g_get_monotonic_time();
    if ((double)(g_get_monotonic_time() - *stop_us) * 1e-6 > EXEC_STOP_S)
        shared->error = g_error_new(EXEC_ERROR, EXEC_ERROR_INTERRUPTED,
                                    "interrupted; the step did not end within %.1f s", EXEC_STOP_S);
}

/* Looks once at all ranks of this process; the mutex is held.  Only the first error counts. */
static void
look(ExecShared *shared, Line *line, int64_t n_steps_done, int64_t *stop_us)
{
    const int64_t now = exec_now_ns();

    if (line->looked_ns > 0 && now - line->looked_ns > EXEC_WATCH_OWN_PAUSE_NS)
        line->resumed_ns = now;
    line->looked_ns = now;
    if (exec_shared_is_distributed(shared)) {
        connect_line(shared, line);
        if (line->member != NULL) {
            send_pulse(shared, line, n_steps_done);
            obey(shared, line, 0);
        }
    } else {
        judge(shared, line, limit_ns(shared, n_steps_done));
    }
    if (shared->error == NULL)
        watch_stop(shared, stop_us);
    if (shared->error == NULL)
        return;
    /* The endpoint is still there: a rank that ends takes the mutex before it closes its own. */
    ExecTransport endpoint = exec_shared_endpoint(shared, MAX(shared->own_rank, 0));
    if (endpoint.ops != NULL)
        endpoint.ops->abort(&endpoint, shared->error->message);
}

/* Watches until all threads have ended, or the grace after a failure is over.  Returns: whether all
 * have ended. */
static bool
watch(ExecShared *shared, Line *line)
{
    int64_t n_reported = shared->first_step, grace_end = 0, stop_us = 0;

    g_mutex_lock(&shared->mutex);
    while (shared->n_threads > 0) {
        g_cond_wait_until(&shared->changed, &shared->mutex, g_get_monotonic_time() + LOOK_US);
        report_progress(shared, &n_reported);
        if (shared->error == NULL) {
            look(shared, line, n_reported, &stop_us);
            continue;
        }
        const int64_t now = g_get_monotonic_time();
        grace_end = grace_end == 0 ? now + GRACE_US : grace_end;
        /* The process will end, and all its threads with it: they need not be waited for. */
        if (now >= grace_end || exec_shared_is_distributed(shared))
            break;
    }
    report_progress(shared, &n_reported);
    hang_up(shared, line);
    const bool all_ended = shared->n_threads == 0;
    g_mutex_unlock(&shared->mutex);
    return all_ended;
}

/* Returns: (owned) the thread; NULL if the system has no thread left: then the run has failed. */
static GThread *
start_rank(ExecShared *shared, int32_t rank)
{
    g_autofree char *name = g_strdup_printf("rank %d", rank);
    g_autofree ExecRankStart *start = g_new(ExecRankStart, 1);
    GError *reason = NULL;

    *start = (ExecRankStart){.shared = shared, .rank = rank};
    g_mutex_lock(&shared->mutex);
    shared->n_threads++;
    shared->n_users++;
    g_mutex_unlock(&shared->mutex);
    GThread *thread = g_thread_try_new(name, exec_rank_main, start, &reason);
    if (thread != NULL) {
        g_steal_pointer(&start);
        return thread;
    }
    g_mutex_lock(&shared->mutex);
    shared->n_threads--;
    shared->n_users--;
    g_mutex_unlock(&shared->mutex);
    exec_shared_fail(shared, rank, reason);
    return NULL;
}

bool
exec_supervise(ExecShared *shared, bool *told, GError **error)
{
    const bool is_distributed = exec_shared_is_distributed(shared);
    const int32_t first = is_distributed ? shared->own_rank : 0;
    const int32_t end = is_distributed ? first + 1 : shared->n_ranks;
    g_autofree GThread **threads = g_new0(GThread *, (size_t)(end - first));
    int32_t n_started = 0;
    Line line = {0};

    for (; first + n_started < end; n_started++) {
        threads[n_started] = start_rank(shared, first + n_started);
        if (threads[n_started] == NULL)
            break;
    }
    const bool all_ended = watch(shared, &line);
    for (int32_t i = 0; i < n_started; i++) {
        if (all_ended)
            g_thread_join(threads[i]);
        else
            g_thread_unref(threads[i]);
    }
    g_mutex_lock(&shared->mutex);
    const bool ok = shared->error == NULL;
    if (!ok && is_distributed)
        exec_shared_give_up_checkpoint(shared, shared->own_rank);
    if (!ok)
        g_propagate_error(error, g_error_copy(shared->error));
    g_mutex_unlock(&shared->mutex);
    *told = line.told;
    if (ok)
        exec_member_free(line.member);
    else
        exec_member_keep_until_exit(line.member);
    return ok;
}
