#include "executor/watcher.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/units.h"
#include "executor/pool.h"
#include "executor/starting.h"
#include "executor/watch.h"
#include "executor/watch_wire.h"
#include "executor/watcher_listen.h"

/* A process that is not stopped speaks 20 times a second; a thread that only sleeps and speaks is
 * scheduled within this on the busiest machine. */
#define SILENCE_NS (INT64_C(3) * 1000000000)
/* Until rank 0 knows how long a step takes. */
#define FIRST_LIMIT_NS (INT64_C(600) * 1000000000)
/* From the start of the run until a rank says hello; a launcher may hang on a host that is not
 * there. */
#define START_NS (INT64_C(120) * 1000000000)
/* How often ranks that have not said hello are looked for: starting.h. */
#define LOOK_FOR_STARTING_NS 250000000
/* A rank that says it has failed may be the victim of one whose death shows a moment later. */
#define FAILURE_SETTLES_NS 200000000
/* After which the watcher itself was stopped, not all ranks at once. */
#define OWN_PAUSE_NS 1000000000

typedef struct {
    int fd; /* -1: not there (yet, or any more) */
    bool said_hello, done;
    ExecWatchRecord in, last; /* arriving; the last one complete */
    size_t n_in;
    int64_t heard_ns;     /* when */
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
    bool failed, stops; /* the ranks have been told to end: at once; after their step */
    int64_t looked_ns;
    int64_t failure_ns; /* when a rank first said it had failed; 0: none has */
    int32_t failure_rank;
    int64_t begin_ns;
};

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
    watcher->begin_ns = watcher->looked_ns = exec_now_ns();
    watcher->listener = exec_watcher_listen(options->other_hosts, watcher->secret, &watcher->where);
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
    g_free(watcher);
}

const char *
exec_watcher_where(const ExecWatcher *watcher)
{
    return watcher->where;
}

/* --- reading --- */

static void
look_for_starting(ExecWatcher *watcher, int64_t now)
{
    exec_starting_look(watcher->starting, watcher->o.n_ranks, watcher->where, now);
    watcher->looked_for_starting_ns = now;
}

/* What a rank does that has not said more than hello. */
#define PREPARATIONS "its preparations"

typedef enum {
    READ_NOTHING,
    READ_RECORD,
    READ_END,
} Read;

static Read
read_record(Line *line)
{
    const ssize_t n =
        recv(line->fd, (char *)&line->in + line->n_in, sizeof line->in - line->n_in, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return READ_NOTHING;
    if (n <= 0)
        return READ_END;
    line->n_in += (size_t)n;
    if (line->n_in < sizeof line->in)
        return READ_NOTHING;
    line->n_in = 0;
    line->in.text[sizeof line->in.text - 1] = 0;
    return line->in.magic == EXEC_WATCH_MAGIC ? READ_RECORD : READ_END;
}

/* 512 bytes fit any socket's buffer; a rank that is gone needs no order. */
static void
tell(const Line *line, ExecWatchRecord record)
{
    record.magic = EXEC_WATCH_MAGIC;
    if (line->fd >= 0)
        (void)!send(line->fd, &record, sizeof record, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* A guest that knows the secret becomes its rank's line; others are shown the door. */
static void
admit(ExecWatcher *watcher, Line *guest)
{
    g_auto(GStrv) parts = g_strsplit(guest->in.text, "\n", 3);
    const int32_t rank = guest->in.rank;

    if (guest->in.kind != EXEC_WATCH_HELLO || g_strv_length(parts) != 3 ||
        !g_str_equal(parts[0], watcher->secret) || rank < 0 || rank >= watcher->o.n_ranks ||
        watcher->lines[rank].said_hello) {
        close(guest->fd);
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
    g_strlcpy(watcher->lines[rank].last.text, PREPARATIONS, sizeof watcher->lines[rank].last.text);
    watcher->lines[rank].last.waiting_for = EXEC_NOT_WAITING;
    if (watcher->stops) /* before it came */
        tell(&watcher->lines[rank], (ExecWatchRecord){.kind = EXEC_WATCH_STOP});
}

static void
read_guests(ExecWatcher *watcher)
{
    int fd;

    while ((fd = accept4(watcher->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        const Line guest = {.fd = fd};
        g_array_append_val(watcher->guests, guest);
    }
    for (guint i = watcher->guests->len; i-- > 0;) {
        Line *guest = &g_array_index(watcher->guests, Line, i);
        const Read read = read_record(guest);
        if (read == READ_NOTHING)
            continue;
        if (read == READ_RECORD)
            admit(watcher, guest);
        else
            close(guest->fd);
        g_array_remove_index_fast(watcher->guests, i);
    }
}

/* Returns: (owned) "rank 2 (process 5112 on node7)" */
static char *
describe_rank(const ExecWatcher *watcher, int32_t rank)
{
    const Line *line = &watcher->lines[rank];
    const pid_t seen = watcher->starting[rank].pid;

    if (line->host != NULL)
        return g_strdup_printf("rank %d (process %d on %s)", rank, line->last.pid, line->host);
    return seen == 0
               ? g_strdup_printf("rank %d", rank)
               : g_strdup_printf("rank %d (process %d on %s)", rank, (int)seen, g_get_host_name());
}

/* A rank's line has ended without a word: it died, or it was ended because one that had not said
 * hello had died before.  Returns: (owned) */
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

/* Everything that has arrived on a rank's line; its end without a word is its death. */
static void
read_line(ExecWatcher *watcher, int32_t rank, GError **error)
{
    Line *line = &watcher->lines[rank];
    Read read;

    while (line->fd >= 0 && (read = read_record(line)) != READ_NOTHING) {
        if (read == READ_END) {
            close(line->fd);
            line->fd = -1;
            if (line->done || line->last.kind == EXEC_WATCH_FAILED || *error != NULL)
                return;
            *error = death_of(watcher, rank);
            return;
        }
        line->last = line->in;
        line->heard_ns = exec_now_ns();
        line->done |= line->in.kind == EXEC_WATCH_DONE;
        if (line->in.kind == EXEC_WATCH_FAILED && watcher->failure_ns == 0) {
            watcher->failure_ns = line->heard_ns;
            watcher->failure_rank = rank;
        }
    }
}

/* --- judging --- */

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
        const Line *line = &watcher->lines[rank];
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
        const Line *line = &watcher->lines[r];
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

/* Somebody must notice a rank that never comes. */
static void
judge_start(ExecWatcher *watcher, int64_t now, GError **error)
{
    int32_t n_there = 0, missing = -1;

    for (int32_t r = watcher->o.n_ranks; r-- > 0;) {
        n_there += watcher->lines[r].said_hello;
        missing = watcher->lines[r].said_hello ? missing : r;
    }
    if (missing < 0)
        return;
    if (now - watcher->looked_for_starting_ns > LOOK_FOR_STARTING_NS)
        look_for_starting(watcher, now);
    const int32_t stopped = exec_starting_stopped(watcher->starting, watcher->o.n_ranks,
                                                  exec_watcher_silence_ns(watcher), now);
    if (stopped >= 0)
        *error = stopped_error(watcher, stopped, PREPARATIONS,
                               now - watcher->starting[stopped].stopped_ns);
    else if (now - watcher->begin_ns > START_NS)
        *error = g_error_new(EXEC_ERROR, EXEC_ERROR_RANK_HUNG,
                             "rank %d has not started within %.0f s (%d of %d have)", missing,
                             (double)(now - watcher->begin_ns) * 1e-9, n_there, watcher->o.n_ranks);
}

static void
judge_failure(ExecWatcher *watcher, int64_t now, GError **error)
{
    if (watcher->failure_ns == 0 || now - watcher->failure_ns < FAILURE_SETTLES_NS)
        return;
    const ExecWatchRecord *last = &watcher->lines[watcher->failure_rank].last;
    *error = g_error_new(EXEC_ERROR, last->code, "%s", last->text);
}

/* --- looking --- */

static void
tell_all(ExecWatcher *watcher, ExecWatchRecord record)
{
    for (int32_t r = 0; r < watcher->o.n_ranks; r++)
        tell(&watcher->lines[r], record);
}

ExecWatcherState
exec_watcher_look(ExecWatcher *watcher, GError **error)
{
    const int64_t now = exec_now_ns();
    GError *found = NULL;
    int32_t n_done = 0;

    read_guests(watcher);
    for (int32_t r = 0; r < watcher->o.n_ranks; r++) {
        Line *line = &watcher->lines[r];
        if (now - watcher->looked_ns > OWN_PAUSE_NS)
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
        judge_failure(watcher, now, &found);
    if (found == NULL && watcher->failure_ns == 0)
        judge_silence(watcher, now, &found);
    if (found == NULL && watcher->failure_ns == 0)
        judge_progress(watcher, now, &found);
    if (found == NULL)
        judge_start(watcher, now, &found);
    if (found == NULL)
        return EXEC_WATCHER_GOING;
    exec_watcher_abort(watcher, found);
    g_propagate_error(error, found);
    return EXEC_WATCHER_FAILED;
}

/* --- telling --- */

void
exec_watcher_stop(ExecWatcher *watcher)
{
    watcher->stops = true;
    tell_all(watcher, (ExecWatchRecord){.kind = EXEC_WATCH_STOP});
}

void
exec_watcher_abort(ExecWatcher *watcher, const GError *why)
{
    ExecWatchRecord record = {.kind = EXEC_WATCH_ABORT, .code = why->code};

    watcher->failed = true;
    g_strlcpy(record.text, why->message, sizeof record.text);
    tell_all(watcher, record);
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
    const int64_t begin = exec_now_ns(), limit = units_ns_from_s(limit_s);
    g_autofree char *machine = exec_watch_machine();
    bool any = true, killed = false;

    /* Who has not said hello cannot be told, and has nothing to write. */
    exec_starting_kill(watcher->starting, watcher->o.n_ranks, watcher->where, begin);
    while (any && exec_now_ns() - begin < 2 * limit) {
        GError *ignored = NULL;
        any = false;
        for (int32_t r = 0; r < watcher->o.n_ranks; r++) {
            read_line(watcher, r, &ignored);
            any |= watcher->lines[r].fd >= 0;
            if (!killed && exec_now_ns() - begin > limit)
                kill_line(&watcher->lines[r], machine);
        }
        killed |= exec_now_ns() - begin > limit;
        g_clear_error(&ignored);
        g_usleep(10000);
    }
}

bool
exec_watcher_has_started(const ExecWatcher *watcher)
{
    for (int32_t r = 0; r < watcher->o.n_ranks; r++)
        if (watcher->lines[r].said_hello)
            return true;
    return false;
}

void
exec_watcher_progress(const ExecWatcher *watcher, int64_t *step, double *loss)
{
    const Line *line = &watcher->lines[0];
    const bool is_known = line->said_hello && line->last.kind != EXEC_WATCH_HELLO;

    *step = is_known ? line->last.step : -1;
    *loss = line->last.loss;
}
