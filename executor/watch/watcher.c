#include "executor/watch/watcher.h"

#include <errno.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/units.h"
#include "executor/device/clock.h"
#include "executor/transport/addresses.h"
#include "executor/watch/member.h"
#include "executor/watch/starting.h"
#include "executor/watch/watch.h"

/* A process that is not stopped speaks 20 times a second.  On the busiest machine a thread that
 * only sleeps and speaks gets a core within this time. */
#define SILENCE_NS (INT64_C(3) * 1000000000)
/* From the start until the first rank says hello, since a launcher may hang on a host that is not
 * there: about as long as Linux tries to connect to one (127 s, tcp(7)). */
#define START_NS (INT64_C(120) * 1000000000)
/* From the first rank that says hello to the last.  They are started together, so this is as long
 * as a rank may hang by default. */
#define ARRIVAL_NS (INT64_C(30) * 1000000000)
/* How often ranks that have not said hello are looked for: a look reads a link for every process of
 * the machine, and four a second notice one that is stopped well within SILENCE_NS. */
#define LOOK_FOR_STARTING_NS 250000000
/* How long the first failure that a rank tells is not yet believed to be the cause: it may be the
 * consequence of another rank's death, which shows a moment later. */
#define FAILURE_SETTLES_NS 200000000
/* How many connections may be open that have not said hello, besides one for each rank.  Whoever can
 * reach the port may open more: the oldest is closed then, which a rank is only for a moment. */
#define MAX_GUESTS 64
/* What a rank is doing that has not said more than hello. */
#define PREPARATIONS "its preparations"

/* The watcher's side of a connection. */
typedef struct {
    int fd; /* -1: not connected yet, or any more */
    bool said_hello, done;
    ExecWatchRecord in, last; /* arriving: its first in_bytes bytes; the last one complete */
    size_t in_bytes;
    int64_t heard_ns;     /* when the last one arrived */
    char *host, *machine; /* (owned) of the hello */
} Line;

struct ExecWatcher {
    ExecWatcherOptions o;
    int listener;
    char secret[EXEC_WATCH_SECRET + 1];
    char *where;            /* (owned) */
    GArray *guests;         /* of Line: connected, no hello yet */
    Line *lines;            /* (owned) by rank */
    ExecStarting *starting; /* (owned) by rank */
    int64_t looked_for_starting_ns;
    int32_t own_starter_pid; /* 0: somebody else has started the ranks */
    char *machine;           /* (owned) this one: exec_watch_machine() */
    bool failed;             /* the ranks have been told to end at once */
    bool stops;              /* they have been told to end after their step */
    int64_t looked_ns;
    int64_t failure_ns; /* when a rank first said it had failed; 0: none has */
    int32_t failure_rank;
    int64_t begin_ns, first_hello_ns; /* of the watch; of any rank, 0: none yet */
};

/* --- listening --- */

static bool
make_secret(char *secret)
{
    uint8_t random[EXEC_WATCH_SECRET / 2];

    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return false;
    for (size_t i = 0; i < sizeof random; i++)
        g_snprintf(secret + 2 * i, 3, "%02x", random[i]);
    return true;
}

/*
 * Listens on a free port, of all interfaces with @other_hosts, else of the loopback alone.
 *
 * @secret  (out) random: what a guest must know
 * @where   (out, owned) what EXEC_WATCH_VARIABLE is for the ranks
 * Returns a socket, or -1 with errno, and @where untouched.
 */
static int
listen_for_ranks(bool other_hosts, char secret[EXEC_WATCH_SECRET + 1], char **where)
{
    g_autofree char *addresses = NULL;

    if (!make_secret(secret))
        return -1;
    const int fd = exec_addresses_listen(other_hosts, 0, &addresses);
    if (fd >= 0)
        *where = g_strdup_printf("%s@%s", secret, addresses);
    return fd;
}

/* --- lifecycle --- */

ExecWatcher *
exec_watcher_new(const ExecWatcherOptions *options, GError **error)
{
    g_return_val_if_fail(options->n_ranks >= 1, NULL);
    ExecWatcher *watcher = g_new0(ExecWatcher, 1);

    watcher->o = *options;
    watcher->guests = g_array_new(false, true, sizeof(Line));
    watcher->lines = g_new0(Line, (size_t)options->n_ranks);
    for (int32_t r = 0; r < options->n_ranks; r++)
        watcher->lines[r].fd = -1;
    watcher->starting = g_new0(ExecStarting, (size_t)options->n_ranks);
    watcher->machine = exec_watch_machine();
    watcher->begin_ns = watcher->looked_ns = exec_now_ns();
    watcher->listener = listen_for_ranks(options->other_hosts, watcher->secret, &watcher->where);
    if (watcher->listener >= 0)
        return watcher;
    g_set_error(error, EXEC_ERROR, EXEC_ERROR_FAILED, "cannot listen for the ranks: %s",
                g_strerror(errno));
    exec_watcher_free(watcher);
    return NULL;
}

static void
line_clear(Line *line)
{
    if (line->fd >= 0)
        close(line->fd);
    line->fd = -1;
    g_free(line->host);
    g_free(line->machine);
}

void
exec_watcher_free(ExecWatcher *watcher)
{
    if (watcher == NULL)
        return;
    for (int32_t r = 0; r < watcher->o.n_ranks; r++)
        line_clear(&watcher->lines[r]);
    for (guint i = 0; i < watcher->guests->len; i++)
        line_clear(&g_array_index(watcher->guests, Line, i));
    g_array_unref(watcher->guests);
    if (watcher->listener >= 0)
        close(watcher->listener);
    g_free(watcher->lines);
    g_free(watcher->starting);
    g_free(watcher->where);
    g_free(watcher->machine);
    g_free(watcher);
}

const char *
exec_watcher_where(const ExecWatcher *watcher)
{
    return watcher->where;
}

void
exec_watcher_set_starter(ExecWatcher *watcher, int32_t pid)
{
    watcher->own_starter_pid = pid;
}

/* --- telling --- */

/* The 512 bytes fit any socket's buffer, so nothing waits; a rank that is gone needs no order. */
static void
tell(const Line *line, ExecWatchRecord record)
{
    exec_watch_seal(&record);
    if (line->fd >= 0)
        (void)!send(line->fd, &record, sizeof record, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void
tell_all(ExecWatcher *watcher, ExecWatchRecord record)
{
    for (int32_t r = 0; r < watcher->o.n_ranks; r++)
        tell(&watcher->lines[r], record);
}

void
exec_watcher_stop(ExecWatcher *watcher)
{
    watcher->stops = true;
    tell_all(watcher, (ExecWatchRecord){.kind = EXEC_WATCH_STOP});
}

static void read_line(ExecWatcher *watcher, int32_t rank, GError **error);

static ExecWatchRecord
abort_record(const GError *why)
{
    ExecWatchRecord record = {.kind = EXEC_WATCH_ABORT, .code = why->code};

    g_strlcpy(record.text, why->message, sizeof record.text);
    return record;
}

void
exec_watcher_abort(ExecWatcher *watcher, const GError *why)
{
    watcher->failed = true;
    tell_all(watcher, abort_record(why));
}

bool
exec_watcher_abort_rank(ExecWatcher *watcher, int32_t rank, const GError *why)
{
    GError *ignored = NULL;

    if (!watcher->failed)
        tell(&watcher->lines[rank], abort_record(why));
    watcher->failed = true;
    read_line(watcher, rank, &ignored);
    g_clear_error(&ignored);
    return watcher->lines[rank].fd < 0;
}

/* --- judging --- */

/* Returns: (owned) "rank 2 (process 5112 on node7)", less where that is not known. */
static char *
describe_rank(const ExecWatcher *watcher, int32_t rank)
{
    const Line *line = &watcher->lines[rank];
    const pid_t seen = watcher->starting[rank].pid;

    if (line->host == NULL && seen == 0)
        return g_strdup_printf("rank %d", rank);
    return g_strdup_printf("rank %d (process %d on %s)", rank,
                           line->host != NULL ? line->last.pid : (int)seen,
                           line->host != NULL ? line->host : g_get_host_name());
}

/* Returns: (owned) "rank 3" or "ranks 2, 4-7": those that are marked. */
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

static void
look_for_starting(ExecWatcher *watcher, int64_t now_ns)
{
    exec_starting_look(watcher->starting, watcher->o.n_ranks, watcher->where, now_ns);
    watcher->looked_for_starting_ns = now_ns;
}

/* @rank's connection has closed without a word.  It died, or it was ended because another rank had
 * died before it could connect: then that one is named.  Returns: (owned) */
static GError *
death_of(ExecWatcher *watcher, int32_t rank)
{
    int32_t gone = exec_starting_gone(watcher->starting, watcher->o.n_ranks);

    if (gone < 0 && !watcher->o.other_hosts) {
        look_for_starting(watcher, exec_now_ns());
        gone = exec_starting_unseen(watcher->starting, watcher->o.n_ranks);
    }
    g_autofree char *who = describe_rank(watcher, gone >= 0 ? gone : rank);

    return g_error_new(EXEC_ERROR, EXEC_ERROR_RANK_DIED, "%s died in %s", who,
                       gone >= 0 ? PREPARATIONS : watcher->lines[rank].last.text);
}

int64_t
exec_watcher_silence_ns(const ExecWatcher *watcher)
{
    const int64_t timeout = units_ns_from_s(watcher->o.timeout_s);

    return timeout > 0 ? MIN(timeout, SILENCE_NS) : SILENCE_NS;
}

/* How long a rank may not move. */
static int64_t
progress_limit_ns(const ExecWatcher *watcher)
{
    const int64_t known = watcher->lines[0].last.limit_ns;

    if (watcher->o.timeout_s > 0)
        return units_ns_from_s(watcher->o.timeout_s);
    return known > 0 ? known : EXEC_WATCH_FIRST_LIMIT_NS;
}

static GError *
stopped_error(const ExecWatcher *watcher, int32_t rank, const char *doing, int64_t ns)
{
    g_autofree char *who = describe_rank(watcher, rank);

    return g_error_new(EXEC_ERROR, EXEC_ERROR_RANK_HUNG, "%s is stopped in %s: silent for %.1f s",
                       who, doing, (double)ns * 1e-9);
}

/* Each judge_...() returns (owned, nullable) what is wrong at @now_ns of its kind. */

static GError *
judge_silence(const ExecWatcher *watcher, int64_t now_ns)
{
    const int64_t limit_ns = exec_watcher_silence_ns(watcher);

    for (int32_t rank = 0; rank < watcher->o.n_ranks; rank++) {
        const Line *line = &watcher->lines[rank];
        if (line->fd >= 0 && !line->done && now_ns - line->heard_ns > limit_ns)
            return stopped_error(watcher, rank, line->last.text, now_ns - line->heard_ns);
    }
    return NULL;
}

static GError *
judge_progress(const ExecWatcher *watcher, int64_t now_ns)
{
    const int32_t n = watcher->o.n_ranks;
    g_autofree ExecWatched *ranks = g_new0(ExecWatched, (size_t)n);
    ExecHung hung;

    for (int32_t r = 0; r < n; r++) {
        const Line *line = &watcher->lines[r];
        ranks[r] = (ExecWatched){
            .ended = line->done || !line->said_hello,
            .idle_ns = line->last.idle_ns + now_ns - line->heard_ns,
            .waiting_for = CLAMP(line->last.waiting_for, EXEC_WAITING_FOR_GROUP, n - 1),
        };
    }
    if (!exec_watch_find_hung(ranks, n, progress_limit_ns(watcher), &hung))
        return NULL;
    g_autofree char *who = describe_rank(watcher, hung.culprit);
    return exec_watch_hung_error(&hung, who, watcher->lines[hung.culprit].last.text,
                                 ranks[hung.culprit].idle_ns);
}

/* Whether the rank says that the process that started it is stopped.  The caller's own child does
 * not count: the caller sees that itself. */
static bool
has_stopped_starter(const ExecWatcher *watcher, int32_t rank)
{
    const Line *line = &watcher->lines[rank];

    return line->fd >= 0 && !line->done && line->last.starter_stopped_ns > 0 &&
           (line->last.starter_pid != watcher->own_starter_pid ||
            g_strcmp0(line->machine, watcher->machine) != 0);
}

/* Ranks compute without the process that started them, but without it they neither begin nor end:
 * all would wait, and an innocent rank would be blamed. */
static GError *
judge_starters(const ExecWatcher *watcher, int64_t now_ns)
{
    const int32_t n = watcher->o.n_ranks;
    /* Somebody else's mpirun may be stopped from a terminal, and go on. */
    const int64_t limit_ns = watcher->own_starter_pid > 0 ? exec_watcher_silence_ns(watcher)
                                                          : progress_limit_ns(watcher);

    for (int32_t first = 0; first < n; first++) {
        const Line *line = &watcher->lines[first];
        const int64_t stopped_ns = line->last.starter_stopped_ns + now_ns - line->heard_ns;
        if (!has_stopped_starter(watcher, first) || stopped_ns <= limit_ns)
            continue;
        g_autofree bool *its = g_new0(bool, (size_t)n);
        for (int32_t r = 0; r < n; r++)
            its[r] = has_stopped_starter(watcher, r) &&
                     watcher->lines[r].last.starter_pid == line->last.starter_pid &&
                     g_strcmp0(watcher->lines[r].machine, line->machine) == 0;
        g_autofree char *who = describe_ranks(its, n);
        return g_error_new(EXEC_ERROR, EXEC_ERROR_RANK_HUNG,
                           "%s (process %d on %s), which started %s, is stopped, for %.1f s",
                           line->last.starter, line->last.starter_pid, line->host, who,
                           (double)stopped_ns * 1e-9);
    }
    return NULL;
}

/* How long the last rank may connect after the first.  Where somebody else has started the ranks,
 * rank 0 connects before MPI has begun, so the others may take as long as a start. */
static int64_t
arrival_limit_ns(const ExecWatcher *watcher)
{
    if (watcher->o.timeout_s > 0)
        return MAX(units_ns_from_s(watcher->o.timeout_s), SILENCE_NS);
    return watcher->own_starter_pid > 0 ? ARRIVAL_NS : START_NS;
}

/* Reports ranks that have not connected in time.  A rank whose process is visible on this machine
 * is still starting; it is not reported before START_NS. */
static GError *
judge_arrivals(const ExecWatcher *watcher, int64_t now_ns)
{
    const int32_t n = watcher->o.n_ranks;
    const bool any = watcher->first_hello_ns > 0;
    const int64_t waited_ns = now_ns - (any ? watcher->first_hello_ns : watcher->begin_ns);
    g_autofree bool *late = g_new0(bool, (size_t)n);
    int32_t n_late = 0, n_there = 0;

    if (waited_ns <= (any ? arrival_limit_ns(watcher) : START_NS))
        return NULL;
    for (int32_t r = 0; r < n; r++) {
        const ExecStarting *starting = &watcher->starting[r];
        const bool runs_here = starting->pid > 0 && starting->gone_ns == 0;
        n_there += starting->arrived;
        late[r] = !starting->arrived && (!runs_here || now_ns - watcher->begin_ns > START_NS);
        n_late += late[r];
    }
    if (n_late == 0)
        return NULL;
    g_autofree char *who = describe_ranks(late, n);
    return g_error_new(EXEC_ERROR, EXEC_ERROR_RANK_HUNG,
                       "%s %s not started within %.1f s%s (%d of %d have)", who,
                       n_late == 1 ? "has" : "have", (double)waited_ns * 1e-9,
                       any ? " of the first" : "", n_there, n);
}

/* Looks for the ranks that have not connected, if there are any. */
static GError *
judge_start(ExecWatcher *watcher, int64_t now_ns)
{
    bool all_there = true;

    for (int32_t r = 0; r < watcher->o.n_ranks; r++)
        all_there &= watcher->starting[r].arrived;
    if (all_there)
        return NULL;
    if (now_ns - watcher->looked_for_starting_ns > LOOK_FOR_STARTING_NS)
        look_for_starting(watcher, now_ns);
    const int32_t stopped = exec_starting_stopped(watcher->starting, watcher->o.n_ranks,
                                                  exec_watcher_silence_ns(watcher), now_ns);
    return stopped >= 0 ? stopped_error(watcher, stopped, PREPARATIONS,
                                        now_ns - watcher->starting[stopped].stopped_ns)
                        : judge_arrivals(watcher, now_ns);
}

/* Of a rank that has said itself that it failed. */
static GError *
judge_failure(const ExecWatcher *watcher, int64_t now_ns)
{
    const ExecWatchRecord *last = &watcher->lines[watcher->failure_rank].last;

    return now_ns - watcher->failure_ns < FAILURE_SETTLES_NS
               ? NULL
               : g_error_new_literal(EXEC_ERROR, last->code, last->text);
}

static GError *
judge(ExecWatcher *watcher, int64_t now_ns)
{
    GError *found = NULL;

    if (watcher->failure_ns > 0)
        found = judge_failure(watcher, now_ns);
    else if ((found = judge_silence(watcher, now_ns)) == NULL &&
             (found = judge_starters(watcher, now_ns)) == NULL)
        found = judge_progress(watcher, now_ns);
    return found != NULL ? found : judge_start(watcher, now_ns);
}

/* --- reading --- */

/* Makes a guest that knows the secret its rank's line; closes the connection of any other.  A rank
 * that knows the secret and speaks another version is kept in @error unless one is known already. */
static void
admit(ExecWatcher *watcher, Line *guest, bool is_our_version, GError **error)
{
    g_auto(GStrv) parts = g_strsplit(guest->in.text, "\n", 3);
    const int32_t rank = guest->in.rank;

    if (guest->in.kind != EXEC_WATCH_HELLO || g_strv_length(parts) != 3 ||
        !g_str_equal(parts[0], watcher->secret) || rank < 0 || rank >= watcher->o.n_ranks ||
        watcher->lines[rank].said_hello) {
        close(guest->fd);
        return;
    }
    if (!is_our_version) {
        close(guest->fd);
        if (*error == NULL)
            *error = exec_watch_version_error(rank, guest->in.version, EXEC_WATCH_VERSION);
        return;
    }
    watcher->lines[rank] = (Line){
        .fd = guest->fd,
        .said_hello = true,
        .last = guest->in,
        .heard_ns = exec_now_ns(),
        .host = g_strdup(parts[1]),
        .machine = g_strdup(parts[2]),
    };
    watcher->starting[rank].arrived = true;
    if (watcher->first_hello_ns == 0)
        watcher->first_hello_ns = watcher->lines[rank].heard_ns;
    g_strlcpy(watcher->lines[rank].last.text, PREPARATIONS, sizeof watcher->lines[rank].last.text);
    watcher->lines[rank].last.waiting_for = EXEC_NOT_WAITING;
    if (watcher->stops) /* the others were told before this one connected */
        tell(&watcher->lines[rank], (ExecWatchRecord){.kind = EXEC_WATCH_STOP});
}

static void
read_guests(ExecWatcher *watcher, GError **error)
{
    GArray *guests = watcher->guests;
    int fd;

    /* As many at a time as may stay: a flood of callers never takes all of the process's files. */
    for (guint n = 0; n < MAX_GUESTS + (guint)watcher->o.n_ranks; n++) {
        fd = accept4(watcher->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            break;
        const Line guest = {.fd = fd};
        g_array_append_val(guests, guest);
    }
    for (guint i = guests->len; i-- > 0;) {
        Line *guest = &g_array_index(guests, Line, i);
        const ExecWatchRead read = exec_watch_read(guest->fd, &guest->in, &guest->in_bytes);
        if (read == EXEC_WATCH_READ_NOTHING)
            continue;
        if (read == EXEC_WATCH_READ_RECORD || read == EXEC_WATCH_READ_VERSION)
            admit(watcher, guest, read == EXEC_WATCH_READ_RECORD, error);
        else
            close(guest->fd);
        g_array_remove_index(guests, i);
    }
    while (guests->len > MAX_GUESTS + (guint)watcher->o.n_ranks) {
        close(g_array_index(guests, Line, 0).fd);
        g_array_remove_index(guests, 0);
    }
}

/* Returns: (owned) what is wrong with bytes that a rank told us and that are no record of ours. */
static GError *
unreadable(int32_t rank, ExecWatchRead read, const ExecWatchRecord *record)
{
    if (read == EXEC_WATCH_READ_VERSION)
        return exec_watch_version_error(rank, record->version, EXEC_WATCH_VERSION);
    return g_error_new(EXEC_ERROR, EXEC_ERROR_FAILED,
                       "what rank %d told the watcher of its run was damaged on its way: its "
                       "checksum is not the one that was sent",
                       rank);
}

/* Reads everything that has arrived on a rank's line.  A line that closes without a word is the
 * rank's death, which is kept in @error unless one is known already. */
static void
read_line(ExecWatcher *watcher, int32_t rank, GError **error)
{
    Line *line = &watcher->lines[rank];
    ExecWatchRead read;

    while (line->fd >= 0 && (read = exec_watch_read(line->fd, &line->in, &line->in_bytes)) !=
                                EXEC_WATCH_READ_NOTHING) {
        if (read == EXEC_WATCH_READ_END) {
            close(line->fd);
            line->fd = -1;
            if (!line->done && line->last.kind != EXEC_WATCH_FAILED && *error == NULL)
                *error = death_of(watcher, rank);
            return;
        }
        if (read != EXEC_WATCH_READ_RECORD) {
            if (*error == NULL)
                *error = unreadable(rank, read, &line->in);
            continue;
        }
        line->last = line->in;
        line->heard_ns = exec_now_ns();
        line->done |= line->in.kind == EXEC_WATCH_DONE;
        if (line->in.wants_stop != 0 && !watcher->stops)
            exec_watcher_stop(watcher);
        if (line->in.kind == EXEC_WATCH_FAILED && watcher->failure_ns == 0) {
            watcher->failure_ns = line->heard_ns;
            watcher->failure_rank = rank;
        }
    }
}

/* --- looking --- */

ExecWatcherState
exec_watcher_look(ExecWatcher *watcher, GError **error)
{
    const int64_t now = exec_now_ns();
    GError *found = NULL;
    int32_t n_done = 0;

    read_guests(watcher, &found);
    for (int32_t r = 0; r < watcher->o.n_ranks; r++) {
        Line *line = &watcher->lines[r];
        if (now - watcher->looked_ns > EXEC_WATCH_OWN_PAUSE_NS)
            line->heard_ns = now;
        read_line(watcher, r, &found);
        n_done += line->done;
    }
    watcher->looked_ns = now;
    if (watcher->failed)
        return EXEC_WATCHER_GOING;
    if (found == NULL && n_done == watcher->o.n_ranks) {
        tell_all(watcher, (ExecWatchRecord){.kind = EXEC_WATCH_BYE});
        return EXEC_WATCHER_DONE;
    }
    if (found == NULL)
        found = judge(watcher, now);
    if (found == NULL)
        return EXEC_WATCHER_GOING;
    exec_watcher_abort(watcher, found);
    g_propagate_error(error, found);
    return EXEC_WATCHER_FAILED;
}

static void
kill_line(const Line *line, const char *machine)
{
    if (line->fd >= 0 && g_strcmp0(line->machine, machine) == 0 && line->last.pid > 1)
        kill(line->last.pid, SIGKILL);
}

void
exec_watcher_clean_up(ExecWatcher *watcher, double limit_s)
{
    const int64_t begin = exec_now_ns(), limit = (int64_t)(limit_s * 1e9);
    bool any = true, killed = false;

    /* Ranks that have not said hello cannot be told, and have nothing to write. */
    exec_starting_kill(watcher->starting, watcher->o.n_ranks, watcher->where, begin);
    while (any && exec_now_ns() - begin < 2 * limit) {
        GError *ignored = NULL;
        any = false;
        for (int32_t r = 0; r < watcher->o.n_ranks; r++) {
            read_line(watcher, r, &ignored);
            any |= watcher->lines[r].fd >= 0;
            if (!killed && exec_now_ns() - begin > limit)
                kill_line(&watcher->lines[r], watcher->machine);
        }
        killed |= exec_now_ns() - begin > limit;
        g_clear_error(&ignored);
        g_usleep(10000);
    }
}

bool
exec_watcher_has_started(const ExecWatcher *watcher)
{
    return watcher->first_hello_ns > 0;
}

void
exec_watcher_progress(const ExecWatcher *watcher, int64_t *step, double *loss)
{
    const Line *line = &watcher->lines[0];
    const bool is_known = line->said_hello && line->last.kind != EXEC_WATCH_HELLO;

    *step = is_known ? line->last.step : -1;
    *loss = line->last.loss;
}
