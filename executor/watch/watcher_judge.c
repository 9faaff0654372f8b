/* What is wrong with the ranks of a run: watcher.h. */
#include "base/units.h"
#include "executor/device/clock.h"
#include "executor/watch/watch.h"
#include "executor/watch/watcher_state.h"

/* A process that is not stopped speaks 20 times a second; a thread that only sleeps and speaks is
 * scheduled within this on the busiest machine. */
#define SILENCE_NS (INT64_C(3) * 1000000000)
/* Until rank 0 knows how long a step takes. */
#define FIRST_LIMIT_NS (INT64_C(600) * 1000000000)
/* From the start of the run until a rank says hello; a launcher may hang on a host that is not
 * there. */
#define START_NS (INT64_C(120) * 1000000000)
/* From the first rank that says hello to the last: they are started together. */
#define ARRIVAL_NS (INT64_C(30) * 1000000000)
/* How often ranks that have not said hello are looked for: starting.h. */
#define LOOK_FOR_STARTING_NS 250000000
/* A rank that says it has failed may be the victim of one whose death shows a moment later. */
#define FAILURE_SETTLES_NS 200000000

/* --- words --- */

/* Returns: (owned) "rank 2 (process 5112 on node7)" */
static char *
describe_rank(const ExecWatcher *watcher, int32_t rank)
{
    const ExecWatcherLine *line = &watcher->lines[rank];
    const pid_t seen = watcher->starting[rank].pid;

    if (line->host != NULL)
        return g_strdup_printf("rank %d (process %d on %s)", rank, line->last.pid, line->host);
    return seen == 0
               ? g_strdup_printf("rank %d", rank)
               : g_strdup_printf("rank %d (process %d on %s)", rank, (int)seen, g_get_host_name());
}

/* --- those that were there --- */

static void
look_for_starting(ExecWatcher *watcher, int64_t now)
{
    exec_starting_look(watcher->starting, watcher->o.n_ranks, watcher->where, now);
    watcher->looked_for_starting_ns = now;
}

GError *
exec_watcher_death(ExecWatcher *watcher, int32_t rank)
{
    int32_t gone = exec_starting_gone(watcher->starting, watcher->o.n_ranks);

    if (gone < 0 && !watcher->o.other_hosts) {
        look_for_starting(watcher, exec_now_ns());
        gone = exec_starting_unseen(watcher->starting, watcher->o.n_ranks);
    }
    g_autofree char *who = describe_rank(watcher, gone >= 0 ? gone : rank);

    return g_error_new(EXEC_ERROR, EXEC_ERROR_RANK_DIED, "%s died in %s", who,
                       gone >= 0 ? EXEC_WATCHER_PREPARATIONS : watcher->lines[rank].last.text);
}

int64_t
exec_watcher_silence_ns(const ExecWatcher *watcher)
{
    const int64_t timeout = units_ns_from_s(watcher->o.timeout_s);

    return timeout > 0 ? MIN(timeout, SILENCE_NS) : SILENCE_NS;
}

static GError *
stopped_error(const ExecWatcher *watcher, int32_t rank, const char *doing, int64_t ns)
{
    g_autofree char *who = describe_rank(watcher, rank);

    return g_error_new(EXEC_ERROR, EXEC_ERROR_RANK_HUNG, "%s is stopped in %s: silent for %.1f s",
                       who, doing, (double)ns * 1e-9);
}

static void
judge_silence(ExecWatcher *watcher, int64_t now, GError **error)
{
    const int64_t limit = exec_watcher_silence_ns(watcher);

    for (int32_t rank = 0; rank < watcher->o.n_ranks; rank++) {
        const ExecWatcherLine *line = &watcher->lines[rank];
        if (line->fd < 0 || line->done || now - line->heard_ns <= limit)
            continue;
        *error = stopped_error(watcher, rank, line->last.text, now - line->heard_ns);
        return;
    }
}

static int64_t
limit_ns(const ExecWatcher *watcher)
{
    const int64_t known = watcher->lines[0].last.limit_ns;

    if (watcher->o.timeout_s > 0)
        return units_ns_from_s(watcher->o.timeout_s);
    return known > 0 ? known : FIRST_LIMIT_NS;
}

static void
judge_progress(ExecWatcher *watcher, int64_t now, GError **error)
{
    const int32_t n = MAX(watcher->o.n_ranks, 1);
    g_autofree ExecWatched *ranks = g_new0(ExecWatched, (size_t)n);
    ExecHung hung;

    for (int32_t r = 0; r < n; r++) {
        const ExecWatcherLine *line = &watcher->lines[r];
        ranks[r] = (ExecWatched){
            .ended = line->done || !line->said_hello,
            .idle_ns = line->last.idle_ns + now - line->heard_ns,
            .waiting_for = CLAMP(line->last.waiting_for, EXEC_WAITING_FOR_GROUP, n - 1),
        };
    }
    if (!exec_watch_find_hung(ranks, n, limit_ns(watcher), &hung))
        return;
    g_autofree char *who = describe_rank(watcher, hung.culprit);
    *error = exec_watch_hung_error(&hung, who, watcher->lines[hung.culprit].last.text,
                                   ranks[hung.culprit].idle_ns);
}

/* --- those that start them, and those that start --- */

/* Returns: (owned) "rank 3" or "ranks 2, 4-7": of those marked. */
static char *
describe_ranks(const bool *marked, int32_t n_ranks)
{
    GString *text = g_string_new(NULL);
    int32_t n = 0;

    for (int32_t first = 0; first < n_ranks; first++) {
        int32_t last = first;
        if (!marked[first])
            continue;
        while (last + 1 < n_ranks && marked[last + 1])
            last++;
        if (last == first + 1)
            last = first; /* "2, 3" */
        n += last - first + 1;
        g_string_append_printf(text, text->len > 0 ? ", %d" : "%d", first);
        if (last > first)
            g_string_append_printf(text, "-%d", last);
        first = last;
    }
    g_string_prepend(text, n == 1 ? "rank " : "ranks ");
    return g_string_free(text, FALSE);
}

/* Whether the rank says that the process that started it is stopped: one that the launcher does not
 * see itself. */
static bool
has_stopped_starter(const ExecWatcher *watcher, int32_t rank)
{
    const ExecWatcherLine *line = &watcher->lines[rank];

    return line->fd >= 0 && !line->done && line->last.starter_stopped_ns > 0 &&
           (line->last.starter_pid != watcher->own_starter_pid ||
            g_strcmp0(line->machine, watcher->machine) != 0);
}

/* Somebody else's mpirun may be stopped from a terminal, and go on. */
static int64_t
starter_limit_ns(const ExecWatcher *watcher)
{
    return watcher->own_starter_pid > 0 ? exec_watcher_silence_ns(watcher) : limit_ns(watcher);
}

/* Ranks compute without the process that started them, but neither begin nor end: all would wait,
 * and one of them look guilty. */
static void
judge_starters(ExecWatcher *watcher, int64_t now, GError **error)
{
    const int32_t n = MAX(watcher->o.n_ranks, 1);
    int32_t first = 0;
    int64_t stopped_ns = 0;

    for (; first < n; first++) {
        const ExecWatcherLine *line = &watcher->lines[first];
        stopped_ns = line->last.starter_stopped_ns + now - line->heard_ns;
        if (has_stopped_starter(watcher, first) && stopped_ns > starter_limit_ns(watcher))
            break;
    }
    if (first == n)
        return;
    const ExecWatcherLine *line = &watcher->lines[first];
    g_autofree bool *its = g_new0(bool, (size_t)n);
    for (int32_t r = 0; r < n; r++)
        its[r] = has_stopped_starter(watcher, r) &&
                 watcher->lines[r].last.starter_pid == line->last.starter_pid &&
                 g_strcmp0(watcher->lines[r].machine, line->machine) == 0;
    g_autofree char *who = describe_ranks(its, n);
    *error = g_error_new(EXEC_ERROR, EXEC_ERROR_RANK_HUNG,
                         "%s (process %d on %s), which started %s, is stopped, for %.1f s",
                         line->last.starter, line->last.starter_pid, line->host, who,
                         (double)stopped_ns * 1e-9);
}

/* From the first rank that has said hello to the last.  Where another has started them rank 0 says
 * so before MPI has begun. */
static int64_t
arrival_limit_ns(const ExecWatcher *watcher)
{
    if (watcher->o.timeout_s > 0)
        return MAX(units_ns_from_s(watcher->o.timeout_s), SILENCE_NS);
    return watcher->own_starter_pid > 0 ? ARRIVAL_NS : START_NS;
}

/* Ranks that do not come: all of those that have not, but those that are seen here to run. */
static void
judge_arrivals(const ExecWatcher *watcher, int64_t now, GError **error)
{
    const int32_t n = MAX(watcher->o.n_ranks, 1);
    const bool any = watcher->first_hello_ns > 0;
    const int64_t waited = now - (any ? watcher->first_hello_ns : watcher->begin_ns);
    g_autofree bool *late = g_new0(bool, (size_t)n);
    int32_t n_late = 0, n_there = 0;

    if (waited <= (any ? arrival_limit_ns(watcher) : START_NS))
        return;
    for (int32_t r = 0; r < n; r++) {
        const ExecStarting *starting = &watcher->starting[r];
        const bool runs_here = starting->pid > 0 && starting->gone_ns == 0;
        n_there += starting->arrived;
        late[r] = !starting->arrived && (!runs_here || now - watcher->begin_ns > START_NS);
        n_late += late[r];
    }
    if (n_late == 0)
        return;
    g_autofree char *who = describe_ranks(late, n);
    *error = g_error_new(EXEC_ERROR, EXEC_ERROR_RANK_HUNG,
                         "%s %s not started within %.1f s%s (%d of %d have)", who,
                         n_late == 1 ? "has" : "have", (double)waited * 1e-9,
                         any ? " of the first" : "", n_there, n);
}

/* Somebody must notice a rank that never comes. */
static void
judge_start(ExecWatcher *watcher, int64_t now, GError **error)
{
    bool all_there = true;

    for (int32_t r = 0; r < watcher->o.n_ranks; r++)
        all_there &= watcher->starting[r].arrived;
    if (all_there)
        return;
    if (now - watcher->looked_for_starting_ns > LOOK_FOR_STARTING_NS)
        look_for_starting(watcher, now);
    const int32_t stopped = exec_starting_stopped(watcher->starting, watcher->o.n_ranks,
                                                  exec_watcher_silence_ns(watcher), now);
    if (stopped >= 0)
        *error = stopped_error(watcher, stopped, EXEC_WATCHER_PREPARATIONS,
                               now - watcher->starting[stopped].stopped_ns);
    else
        judge_arrivals(watcher, now, error);
}

static void
judge_failure(ExecWatcher *watcher, int64_t now, GError **error)
{
    if (watcher->failure_ns == 0 || now - watcher->failure_ns < FAILURE_SETTLES_NS)
        return;
    const ExecWatchRecord *last = &watcher->lines[watcher->failure_rank].last;
    *error = g_error_new(EXEC_ERROR, last->code, "%s", last->text);
}

GError *
exec_watcher_judge(ExecWatcher *watcher, int64_t now)
{
    GError *found = NULL;

    judge_failure(watcher, now, &found);
    if (found == NULL && watcher->failure_ns == 0)
        judge_silence(watcher, now, &found);
    if (found == NULL && watcher->failure_ns == 0)
        judge_starters(watcher, now, &found);
    if (found == NULL && watcher->failure_ns == 0)
        judge_progress(watcher, now, &found);
    if (found == NULL)
        judge_start(watcher, now, &found);
    return found;
}
