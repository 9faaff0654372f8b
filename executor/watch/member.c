#include "executor/watch/member.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "executor/device/clock.h"
#include "executor/transport/addresses.h"
#include "executor/transport/seal.h"
#include "executor/watch/starting.h"

/* How long a watcher may take to read what a rank tells it, before it is as good as gone. */
#define TELL_MS 2000
/* How often a rank looks whether the process that started it is stopped: often enough to tell it
 * well within the watcher's 3 s, and 20 pulses a second cost few reads of /proc. */
#define LOOK_AT_STARTER_NS 250000000

struct ExecMember {
    int fd;
    int32_t rank;
    ExecWatchRecord in; /* arriving: its first in_bytes bytes */
    size_t in_bytes;
    int64_t looked_ns;          /* when this process last looked at the one that started it */
    int64_t starter_stopped_ns; /* since when that one is stopped; 0: it is not */
};

/* --- connecting --- */

char *
exec_watch_machine(void)
{
    g_autofree char *boot = NULL;
    g_autofree char *space = g_file_read_link("/proc/self/ns/pid", NULL);

    g_file_get_contents("/proc/sys/kernel/random/boot_id", &boot, NULL, NULL);
    return g_strdup_printf("%s %s", boot == NULL ? "?" : g_strchomp(boot),
                           space == NULL ? "?" : space);
}

static void
say_hello(ExecMember *member, const char *secret)
{
    ExecWatchRecord record = {.kind = EXEC_WATCH_HELLO};
    g_autofree char *machine = exec_watch_machine();

    g_snprintf(record.text, sizeof record.text, "%s\n%s\n%s", secret, g_get_host_name(), machine);
    exec_member_tell(member, &record);
}

ExecMember *
exec_member_connect(const char *where, int32_t rank, GError **error)
{
    g_auto(GStrv) halves = g_strsplit(where, "@", 2);

    if (halves[0] == NULL || halves[1] == NULL)
        return EXEC_FAIL_NULL(error, EXEC_ERROR_FAILED,
                              EXEC_WATCH_VARIABLE " is not of this program");
    const int fd = exec_addresses_connect(halves[1]);
    if (fd < 0)
        return EXEC_FAIL_NULL(error, EXEC_ERROR_FAILED,
                              "rank %d on %s cannot reach the watcher of its run at %s", rank,
                              g_get_host_name(), halves[1]);
    ExecMember *member = g_new0(ExecMember, 1);
    member->fd = fd;
    member->rank = rank;
    say_hello(member, halves[0]);
    return member;
}

void
exec_member_free(ExecMember *member)
{
    if (member == NULL)
        return;
    close(member->fd);
    g_free(member);
}

void
exec_member_keep_until_exit(ExecMember *member)
{
    g_free(member);
}

/* --- the process that started this one --- */

/* Writes into @record its name and for how long it has been stopped, if it is. */
static void
tell_of_starter(ExecMember *member, ExecWatchRecord *record)
{
    const int64_t now = exec_now_ns();
    const pid_t starter = getppid();

    if (now - member->looked_ns > LOOK_AT_STARTER_NS) {
        member->looked_ns = now;
        if (!exec_proc_is_stopped(starter))
            member->starter_stopped_ns = 0;
        else if (member->starter_stopped_ns == 0)
            member->starter_stopped_ns = now;
    }
    if (member->starter_stopped_ns == 0)
        return;
    g_autofree char *name = exec_proc_text(starter, "comm", NULL);
    record->starter_stopped_ns = MAX(now - member->starter_stopped_ns, 1);
    record->starter_pid = (int32_t)starter;
    g_strlcpy(record->starter, name == NULL ? "?" : g_strchomp(name), sizeof record->starter);
}

/* The run ends.  A starter that is stopped would not hear of it, and stay behind. */
static void
wake_starter(void)
{
    if (exec_proc_is_stopped(getppid()))
        kill(getppid(), SIGCONT);
}

/* --- talking --- */

void
exec_member_tell(ExecMember *member, ExecWatchRecord *record)
{
    size_t done = 0;

    record->rank = member->rank;
    record->pid = (int32_t)getpid();
    tell_of_starter(member, record);
    exec_watch_seal(record);
    while (done < sizeof *record) {
        const ssize_t n =
            send(member->fd, (const char *)record + done, sizeof *record - done, MSG_NOSIGNAL);
        if (n > 0) {
            done += (size_t)n;
            continue;
        }
        struct pollfd wait = {.fd = member->fd, .events = POLLOUT};
        /* A watcher that does not read for so long is as good as gone. */
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return;
        if (n < 0 && errno == EAGAIN && poll(&wait, 1, TELL_MS) <= 0)
            return;
    }
}

static uint64_t
seal_of(const ExecWatchRecord *record)
{
    const ExecMessage message = {.from = record->rank, .n_bytes = sizeof *record};
    ExecWatchRecord bare = *record;

    bare.seal = 0;
    return exec_seal(&message, &bare);
}

void
exec_watch_seal(ExecWatchRecord *record)
{
    record->magic = EXEC_WATCH_MAGIC;
    record->version = EXEC_WATCH_VERSION;
    record->seal = seal_of(record);
}

GError *
exec_watch_version_error(int32_t rank, uint32_t rank_version, uint32_t watcher_version)
{
    return g_error_new(EXEC_ERROR, EXEC_ERROR_FAILED,
                       "rank %d speaks version %u to the watcher of its run, which speaks version "
                       "%u: all ranks need the same degas",
                       rank, rank_version, watcher_version);
}

ExecWatchRead
exec_watch_read(int fd, ExecWatchRecord *record, size_t *n_bytes)
{
    const ssize_t n = recv(fd, (char *)record + *n_bytes, sizeof *record - *n_bytes, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return EXEC_WATCH_READ_NOTHING;
    if (n <= 0)
        return EXEC_WATCH_READ_END;
    *n_bytes += (size_t)n;
    if (*n_bytes < sizeof *record)
        return EXEC_WATCH_READ_NOTHING;
    *n_bytes = 0;
    const bool is_whole = record->seal == seal_of(record);
    record->text[sizeof record->text - 1] = 0;
    record->starter[sizeof record->starter - 1] = 0;
    if (record->magic != EXEC_WATCH_MAGIC)
        return EXEC_WATCH_READ_DAMAGED;
    if (record->version != EXEC_WATCH_VERSION)
        return EXEC_WATCH_READ_VERSION;
    return is_whole ? EXEC_WATCH_READ_RECORD : EXEC_WATCH_READ_DAMAGED;
}

ExecOrder
exec_member_order(ExecMember *member, int wait_ms, GError **error)
{
    struct pollfd wait = {.fd = member->fd, .events = POLLIN};

    poll(&wait, 1, wait_ms);
    const ExecWatchRead read = exec_watch_read(member->fd, &member->in, &member->in_bytes);
    if (read == EXEC_WATCH_READ_NOTHING)
        return EXEC_ORDER_NONE;
    if (read == EXEC_WATCH_READ_RECORD && member->in.kind == EXEC_WATCH_STOP)
        return EXEC_ORDER_STOP;
    if (read == EXEC_WATCH_READ_RECORD && member->in.kind == EXEC_WATCH_BYE)
        return EXEC_ORDER_BYE;
    if (read == EXEC_WATCH_READ_DAMAGED) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_FAILED,
                    "what the watcher of this run told rank %d was damaged on its way: its "
                    "checksum is not the one that was sent",
                    member->rank);
        return EXEC_ORDER_UNREADABLE;
    }
    if (read == EXEC_WATCH_READ_VERSION) {
        g_propagate_error(
            error, exec_watch_version_error(member->rank, EXEC_WATCH_VERSION, member->in.version));
        return EXEC_ORDER_UNREADABLE;
    }
    wake_starter();
    if (read == EXEC_WATCH_READ_RECORD) {
        g_set_error_literal(error, EXEC_ERROR, member->in.code, member->in.text);
        return EXEC_ORDER_ABORT;
    }
    g_set_error(error, EXEC_ERROR, EXEC_ERROR_RANK_DIED,
                "the watcher of this run has ended: rank %d stops", member->rank);
    return EXEC_ORDER_LOST;
}
