#include "executor/run.h"

#include <math.h>
#include <string.h>

#include "base/text.h"
#include "executor/pool.h"
#include "executor/rank.h"
#include "executor/verify.h"

/* How long ranks that were told to stop may take before they are left behind. */
#define GRACE_US (2 * G_USEC_PER_SEC)
/* Without --timeout: of any wait, and before the first step has shown how long a step takes. */
#define DEFAULT_TIMEOUT_NS (INT64_C(30) * 1000000000)
#define DEFAULT_FIRST_TIMEOUT_NS (INT64_C(600) * 1000000000)

void
exec_run_result_clear(ExecRunResult *result)
{
    g_free(result->losses);
    g_free(result->step_s);
    g_clear_pointer(&result->busy_s, g_array_unref);
    g_clear_pointer(&result->peak_memory_bytes, g_array_unref);
    g_clear_pointer(&result->trace, trace_free);
    g_free(result->worst_tensor);
    g_free(result->backend);
    *result = (ExecRunResult){0};
}

/* --- steps --- */

static int64_t
step_begin_ns(const ExecShared *shared, int64_t step)
{
    int64_t begin = INT64_MAX;

    for (int32_t r = 0; r < shared->n_ranks; r++)
        begin = MIN(begin, shared->begin_ns[step * shared->n_ranks + r]);
    return begin;
}

static int64_t
step_ns(const ExecShared *shared, int64_t step)
{
    int64_t end = 0;

    for (int32_t r = 0; r < shared->n_ranks; r++)
        end = MAX(end, shared->end_ns[step * shared->n_ranks + r]);
    return end - step_begin_ns(shared, step);
}

static double
step_loss(const ExecShared *shared, int64_t step)
{
    double sum = 0;

    for (int32_t r = 0; r < shared->n_ranks; r++)
        sum += shared->losses[step * shared->n_ranks + r];
    return sum / ((double)shared->plan->global_batch * (double)shared->plan->seq_len);
}

static int
compare_int64(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* Of steps [first, end). */
static int64_t
median_step_ns(const ExecShared *shared, int64_t first, int64_t end)
{
    const size_t n = (size_t)(end - first);
    g_autofree int64_t *times = g_new(int64_t, n);

    for (size_t i = 0; i < n; i++)
        times[i] = step_ns(shared, first + (int64_t)i);
    qsort(times, n, sizeof *times, compare_int64);
    return times[n / 2];
}

/* --- watching --- */

static int64_t
limit_ns(const ExecShared *shared, int64_t n_steps_done)
{
    if (shared->o.timeout_s > 0)
        return (int64_t)(shared->o.timeout_s * 1e9);
    if (n_steps_done == 0)
        return DEFAULT_FIRST_TIMEOUT_NS;
    return MAX(DEFAULT_TIMEOUT_NS,
               20 * median_step_ns(shared, MAX(0, n_steps_done - 15), n_steps_done));
}

/* Since it last began something or a wait of it ended. */
static int64_t
idle_ns(const ExecShared *shared, int32_t rank)
{
    const int64_t began = atomic_load(&shared->records[rank].since_ns);
    const int64_t waited = exec_local_hub_waited_until_ns(shared->hub, rank);

    return exec_now_ns() - MAX(began, waited);
}

static bool
has_ended(const ExecShared *shared, int32_t rank)
{
    return atomic_load(&shared->records[rank].doing) == EXEC_DOING_NOTHING;
}

/* The end of the chain of waits that begins at @rank; -1 when it bites its own tail. */
static int32_t
chain_end(ExecShared *shared, int32_t rank)
{
    for (int32_t hops = 0; hops <= shared->n_ranks; hops++) {
        const int32_t next = exec_local_hub_waiting_for(shared->hub, rank);
        if (next == EXEC_NOT_WAITING || has_ended(shared, next))
            return rank;
        rank = next;
    }
    return -1;
}

/* Every thread publishes what it does since when, and the hub who waits for whom; so the culprit is
 * known: the one at the end of a chain of waits, when it has not moved for the limit either. */
static GError *
find_hung(ExecShared *shared, int64_t limit, int32_t *culprit)
{
    for (int32_t rank = 0; rank < shared->n_ranks; rank++) {
        if (has_ended(shared, rank) || idle_ns(shared, rank) <= limit)
            continue;
        const int32_t end = chain_end(shared, rank);
        *culprit = end < 0 ? rank : end;
        if (idle_ns(shared, *culprit) <= limit)
            continue;
        g_autofree char *doing = exec_rank_doing(shared, *culprit);
        g_autofree char *waiting =
            *culprit == rank ? g_strdup("") : g_strdup_printf("; rank %d waits for it", rank);
        return g_error_new(EXEC_ERROR, EXEC_ERROR_RANK_HUNG,
                           end < 0 ? "rank %d waits in a circle in %s for %.1f s%s"
                                   : "rank %d hangs in %s for %.1f s%s",
                           *culprit, doing, (double)idle_ns(shared, *culprit) * 1e-9, waiting);
    }
    return NULL;
}

/* Tells the caller about steps that have ended since the last call; the mutex is held. */
static void
report_progress(ExecShared *shared, int64_t *n_reported)
{
    while (shared->error == NULL && *n_reported < shared->n_steps_done / shared->n_ranks) {
        const int64_t step = (*n_reported)++;
        const double loss = step_loss(shared, step);
        const double step_s = (double)step_ns(shared, step) * 1e-9;
        if (shared->o.progress == NULL)
            continue;
        g_mutex_unlock(&shared->mutex);
        shared->o.progress(step, loss, step_s, shared->o.user_data);
        g_mutex_lock(&shared->mutex);
    }
}

/* Until all threads have ended, or some have not within the grace after a failure.  Returns whether
 * all have. */
static bool
watch(ExecShared *shared)
{
    int64_t n_reported = 0, grace_end = 0;
    bool all_ended;

    g_mutex_lock(&shared->mutex);
    while (shared->n_threads > 0) {
        g_cond_wait_until(&shared->changed, &shared->mutex, g_get_monotonic_time() + 50000);
        report_progress(shared, &n_reported);
        if (shared->error != NULL) {
            const int64_t now = g_get_monotonic_time();
            grace_end = grace_end == 0 ? now + GRACE_US : grace_end;
            if (now >= grace_end)
                break;
            continue;
        }
        int32_t culprit = 0;
        GError *hung = find_hung(shared, limit_ns(shared, n_reported), &culprit);
        if (hung == NULL)
            continue;
        ExecTransport transport = exec_local_transport(shared->hub, culprit);
        shared->failed_rank = culprit;
        shared->error = hung;
        g_mutex_unlock(&shared->mutex);
        exec_transport_abort(&transport, hung->message);
        g_mutex_lock(&shared->mutex);
    }
    report_progress(shared, &n_reported);
    all_ended = shared->n_threads == 0;
    g_mutex_unlock(&shared->mutex);
    return all_ended;
}

/* Starts all ranks, watches them, and joins those that end. */
static bool
run_ranks(ExecShared *shared, GError **error)
{
    g_autofree GThread **threads = g_new0(GThread *, (size_t)shared->n_ranks);
    int32_t n_started = 0;

    for (; n_started < shared->n_ranks; n_started++) {
        g_autofree char *name = g_strdup_printf("rank %d", n_started);
        g_autofree ExecRankStart *start = g_new(ExecRankStart, 1);
        *start = (ExecRankStart){.shared = shared, .rank = n_started};
        g_mutex_lock(&shared->mutex);
        shared->n_threads++;
        shared->n_users++;
        g_mutex_unlock(&shared->mutex);
        GError *reason = NULL;
        threads[n_started] = g_thread_try_new(name, exec_rank_main, start, &reason);
        if (threads[n_started] == NULL) {
            g_mutex_lock(&shared->mutex);
            shared->n_threads--;
            shared->n_users--;
            g_mutex_unlock(&shared->mutex);
            exec_shared_fail(shared, n_started, reason);
            break;
        }
        g_steal_pointer(&start);
    }
    const bool all_ended = watch(shared);
    for (int32_t i = 0; i < n_started; i++) {
        if (all_ended)
            g_thread_join(threads[i]);
        else
            g_thread_unref(threads[i]);
    }
    g_mutex_lock(&shared->mutex);
    const bool ok = shared->error == NULL;
    if (!ok)
        g_propagate_error(error, g_error_copy(shared->error));
    g_mutex_unlock(&shared->mutex);
    return ok;
}

/* --- results --- */

/* The step nearest to the median of those whose events are kept, the earliest of equals; the first
 * step, which allocates, only when there is no other. */
static int64_t
choose_traced_step(const ExecShared *shared)
{
    const int64_t n = shared->o.n_steps;
    const int64_t first = n > 1 ? 1 : 0;
    const int64_t median = median_step_ns(shared, first, n);
    int64_t best = n - 1;

    for (int64_t step = n - 1; step >= MAX(first, n - EXEC_TRACED_STEPS); step--)
        if (ABS(step_ns(shared, step) - median) <= ABS(step_ns(shared, best) - median))
            best = step;
    return best;
}

/* Compute time of a rank without its waits. */
static int64_t
busy_ns(const GArray *events)
{
    int64_t busy = 0;

    for (guint i = 0; i < events->len; i++) {
        const TraceEvent *event = &g_array_index(events, TraceEvent, i);
        if (event->stream == TRACE_STREAM_COMPUTE && event->kind != TRACE_EVENT_WAIT)
            busy += event->end_ns - event->start_ns;
    }
    return busy;
}

static Trace *
assemble_trace(const ExecShared *shared, int64_t step)
{
    const size_t at = (size_t)(step % EXEC_TRACED_STEPS);
    const int64_t begin = step_begin_ns(shared, step);
    Trace *trace = trace_new(shared->schedule, true);

    trace->makespan_ns = step_ns(shared, step);
    const int32_t stride = shared->n_ranks / (int32_t)shared->plan->degrees.pp;
    for (int32_t r = 0; r < shared->n_ranks; r += stride) {
        const ExecRankRecord *record = &shared->records[r];
        const int64_t late = shared->begin_ns[step * shared->n_ranks + r] - begin;
        for (guint i = 0; i < record->events[at]->len; i++) {
            TraceEvent event = g_array_index(record->events[at], TraceEvent, i);
            event.start_ns -= begin;
            event.end_ns -= begin;
            g_array_append_val(trace->events, event);
        }
        for (guint i = 0; i < record->memory[at]->len; i++) {
            TraceMemory memory = g_array_index(record->memory[at], TraceMemory, i);
            memory.at_ns += memory.at_ns == 0 ? 0 : late;
            g_array_append_val(trace->memory, memory);
        }
    }
    trace_sort(trace);
    return trace;
}

static void
collect(const ExecShared *shared, ExecRunResult *result)
{
    const int64_t n = shared->o.n_steps, traced = choose_traced_step(shared);
    double idle = 0;

    result->n_steps = n;
    result->losses = g_new(double, (size_t)n);
    result->step_s = g_new(double, (size_t)n);
    for (int64_t step = 0; step < n; step++) {
        result->losses[step] = step_loss(shared, step);
        result->step_s[step] = (double)step_ns(shared, step) * 1e-9;
    }
    result->traced_step = traced;
    result->busy_s = g_array_new(false, false, sizeof(double));
    result->peak_memory_bytes = g_array_new(false, false, sizeof(int64_t));
    for (int32_t r = 0; r < shared->n_ranks; r++) {
        const ExecRankRecord *record = &shared->records[r];
        const double busy = (double)busy_ns(record->events[traced % EXEC_TRACED_STEPS]) * 1e-9;
        idle += result->step_s[traced] - busy;
        g_array_append_val(result->busy_s, busy);
        g_array_append_val(result->peak_memory_bytes, record->peak_memory_bytes);
    }
    result->bubble_fraction = idle / (result->step_s[traced] * (double)shared->n_ranks);
    if (shared->o.want_trace)
        result->trace = assemble_trace(shared, traced);
}

static bool
check_options(const ExecRunOptions *options, GError **error)
{
    static const char *const transports[] = {"local", "mpi", "nccl", NULL};

    if (!g_str_equal(options->transport, "local")) {
        g_autofree char *shown = text_escape(options->transport, 64);
        g_autofree char *suggestion = text_suggestion(options->transport, transports);
        const bool known = g_strv_contains(transports, options->transport);
        g_set_error(error, EXEC_ERROR, known ? EXEC_ERROR_MISSING : EXEC_ERROR_UNSUPPORTED,
                    known ? "transport %s is not built%s; use --transport local"
                          : "transport \"%s\" is unknown%s (expected local, mpi or nccl)",
                    shown, known ? "" : suggestion);
        return false;
    }
    return exec_plan_supported(options->arch, options->plan, error);
}

bool
exec_run(const ExecRunOptions *options, ExecRunResult *result, GError **error)
{
    g_return_val_if_fail(options->arch != NULL && options->plan != NULL, false);
    g_return_val_if_fail(options->device != NULL && options->transport != NULL, false);
    g_return_val_if_fail(options->n_steps >= 1, false);
    *result = (ExecRunResult){0};
    if (!check_options(options, error))
        return false;
    /* On this thread, before there are others: blas.h says why. */
    g_autoptr(ExecBackend) backend =
        exec_backend_open(options->device, 0, options->plan->dtype, error);
    if (backend == NULL)
        return false;
    ExecShared *shared = exec_shared_new(options, error);
    if (shared == NULL)
        return false;
    bool ok = run_ranks(shared, error);
    if (ok) {
        collect(shared, result);
        result->backend = exec_backend_describe(backend);
        ok = !options->verify || exec_verify(shared, result, error);
    }
    exec_shared_unref(shared);
    if (!ok)
        exec_run_result_clear(result);
    return ok;
}
