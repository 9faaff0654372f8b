#include "executor/watch/watcher.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "executor/device/clock.h"
#include "executor/transport/transport.h"
#include "executor/watch/watcher_listen.h"
#include "executor/watch/watcher_state.h"

/* After which the watcher itself was stopped, not all ranks at once. */
#define OWN_PAUSE_NS 1000000000

/* --- lifecycle --- */

ExecWatcher *
exec_watcher_new(const ExecWatcherOptions *options, GError **error)
{
    g_return_val_if_fail(options->n_ranks >= 1, NULL);
    ExecWatcher *watcher = g_new0(ExecWatcher, 1);

    watcher->o = *options;
    watcher->guests = g_array_new(false, true, sizeof(ExecWatcherLine));
    watcher->lines = g_new0(ExecWatcherLine, (size_t)options->n_ranks);
    for (int32_t r = 0; r < options->n_ranks; r++)
        watcher->lines[r].fd = -1;
    watcher->starting = g_new0(ExecStarting, (size_t)options->n_ranks);
    watcher->machine = exec_watch_machine();
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
line_clear(ExecWatcherLine *line)
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
        line_clear(&g_array_index(watcher->guests, ExecWatcherLine, i));
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

/* --- reading --- */

typedef enum {
    READ_NOTHING,
    READ_RECORD,
    READ_END,
} Read;

static Read
read_record(ExecWatcherLine *line)
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
tell(const ExecWatcherLine *line, ExecWatchRecord record)
{
    record.magic = EXEC_WATCH_MAGIC;
    if (line->fd >= 0)
        (void)!send(line->fd, &record, sizeof record, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* A guest that knows the secret becomes its rank's line; others are shown the door. */
static void
admit(ExecWatcher *watcher, ExecWatcherLine *guest)
{
    g_auto(GStrv) parts = g_strsplit(guest->in.text, "\n", 3);
    const int32_t rank = guest->in.rank;

    if (guest->in.kind != EXEC_WATCH_HELLO || g_strv_length(parts) != 3 ||
        !g_str_equal(parts[0], watcher->secret) || rank < 0 || rank >= watcher->o.n_ranks ||
        watcher->lines[rank].said_hello) {
        close(guest->fd);
        return;
    }
    watcher->lines[rank] = (ExecWatcherLine){
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
    g_strlcpy(watcher->lines[rank].last.text, EXEC_WATCHER_PREPARATIONS,
              sizeof watcher->lines[rank].last.text);
    watcher->lines[rank].last.waiting_for = EXEC_NOT_WAITING;
    if (watcher->stops) /* before it came */
        tell(&watcher->lines[rank], (ExecWatchRecord){.kind = EXEC_WATCH_STOP});
}

static void
read_guests(ExecWatcher *watcher)
{
    int fd;

    while ((fd = accept4(watcher->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        const ExecWatcherLine guest = {.fd = fd};
        g_array_append_val(watcher->guests, guest);
    }
    for (guint i = watcher->guests->len; i-- > 0;) {
        ExecWatcherLine *guest = &g_array_index(watcher->guests, ExecWatcherLine, i);
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

/* Everything that has arrived on a rank's line; its end without a word is its death. */
static void
read_line(ExecWatcher *watcher, int32_t rank, GError **error)
{
    ExecWatcherLine *line = &watcher->lines[rank];
    Read read;

    while (line->fd >= 0 && (read = read_record(line)) != READ_NOTHING) {
        if (read == READ_END) {
            close(line->fd);
            line->fd = -1;
            if (line->done || line->last.kind == EXEC_WATCH_FAILED || *error != NULL)
                return;
            *error = exec_watcher_death(watcher, rank);
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
        ExecWatcherLine *line = &watcher->lines[r];
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
        found = exec_watcher_judge(watcher, now);
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
kill_line(const ExecWatcherLine *line, const char *machine)
{
    if (line->fd >= 0 && g_strcmp0(line->machine, machine) == 0 && line->last.pid > 1)
        kill(line->last.pid, SIGKILL);
}

void
exec_watcher_clean_up(ExecWatcher *watcher, double limit_s)
{
    const int64_t begin = exec_now_ns(), limit = (int64_t)(limit_s * 1e9);
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
    for (int32_t r = 0; r < watcher->o.n_ranks; r++)
        if (watcher->lines[r].said_hello)
            return true;
    return false;
}

void
exec_watcher_progress(const ExecWatcher *watcher, int64_t *step, double *loss)
{
    const ExecWatcherLine *line = &watcher->lines[0];
    const bool is_known = line->said_hello && line->last.kind != EXEC_WATCH_HELLO;

    *step = is_known ? line->last.step : -1;
    *loss = line->last.loss;
}
