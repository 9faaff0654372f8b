#include "executor/transport/peers.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/units.h"
#include "executor/device/clock.h"
#include "executor/transport/addresses.h"
#include "executor/transport/local.h"
#include "executor/transport/seal.h"

/* How long a send that waits for room sleeps before it looks for an abort: as long as local.c. */
#define LOOK_MS 20

/* Before the bytes of every message. */
typedef struct {
    int64_t tag, n_bytes;
    uint64_t bytes_seal;
    uint64_t seal; /* of what stands before it here */
} Header;

typedef struct {
    ExecLocalHub *hub; /* (owned) */
    int32_t rank, n_ranks;
    int *fds; /* (owned) by rank; -1: oneself */
    GThread *reader;
} Peers;

/* --- bytes --- */

static bool
read_all(int fd, void *to, size_t n_bytes)
{
    size_t done = 0;

    while (done < n_bytes) {
        const ssize_t n = recv(fd, (char *)to + done, n_bytes - done, MSG_WAITALL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    return true;
}

/* The other side always reads, unless it is stopped: then somebody aborts. */
static bool
write_all(const Peers *p, int32_t to, const void *from, size_t n_bytes, GError **error)
{
    size_t done = 0;

    while (done < n_bytes) {
        const ssize_t n = send(p->fds[to], (const char *)from + done, n_bytes - done,
                               MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0) {
            done += (size_t)n;
            continue;
        }
        struct pollfd wait = {.fd = p->fds[to], .events = POLLOUT};
        if (errno != EAGAIN && errno != EINTR)
            return EXEC_FAIL(error, EXEC_ERROR_RANK_DIED,
                             "rank %d has closed its connection to rank %d", to, p->rank);
        poll(&wait, 1, LOOK_MS);
        if (!exec_abort_check(&p->hub->abort, error))
            return false;
    }
    return true;
}

/* --- meeting --- */

/* "dgp" and the version, a character from '0' on. */
#define MAGIC (UINT32_C(0x64677030) + EXEC_WIRE_VERSION)
#define IS_VERSION(magic) ((magic) >> 8 == MAGIC >> 8)
#define NAME_BYTES 64
#define WHERE_BYTES 256
/* How long a caller may take to say who it is, and a rank that is called to answer. */
#define GREETING_MS 2000
/* How long a rank waits before it calls again. */
#define CALL_AGAIN_US 5000

/* What a caller says first, and what it is answered; the caller confirms the answer with a byte.
 * Texts end in a NUL.  Every version begins with these fields, up to the name. */
typedef struct {
    uint32_t magic;
    int32_t from, to, n_ranks;
    char name[NAME_BYTES];   /* of the run */
    char where[WHERE_BYTES]; /* at which addresses the sender listens; empty on one machine */
} Greeting;

/* How and until when ranks meet. */
typedef struct {
    bool remote; /* between machines */
    char name[NAME_BYTES];
    char own[WHERE_BYTES];
    const char *called;          /* (borrowed) where rank 0 is said to listen */
    char (*wheres)[WHERE_BYTES]; /* (owned) [n_ranks] where each listens, as far as it is known */
    int listener;
    int64_t until_ns;
    GError *other_version; /* (owned, nullable) a rank of this run speaks one */
} Meeting;

static void
meeting_clear(Meeting *meeting)
{
    g_free(meeting->wheres);
    g_clear_error(&meeting->other_version);
    if (meeting->listener >= 0)
        close(meeting->listener);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Meeting, meeting_clear)

/* The abstract name of a rank's socket: it is gone with the process. */
static socklen_t
address_of(const char *secret, int32_t rank, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    const int n = g_snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "degas-%s-%d",
                             secret, rank);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static bool
fail(GError **error, int32_t rank, const char *what)
{
    return EXEC_FAIL(error, EXEC_ERROR_FAILED, "rank %d cannot %s: %s", rank, what,
                     g_strerror(errno));
}

static bool
is_ours(int fd)
{
    struct ucred caller;
    socklen_t size = sizeof caller;

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &caller, &size) == 0 && caller.uid == getuid();
}

/* From now on a read waits for @limit_ms; 0: for ever. */
static void
limit_reads(int fd, int64_t limit_ms)
{
    const struct timeval limit = {.tv_sec = limit_ms / 1000, .tv_usec = limit_ms % 1000 * 1000};

    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
}

static int64_t
left_ms(const Meeting *meeting)
{
    return MAX((meeting->until_ns - exec_now_ns()) / 1000000, 0);
}

static bool
send_greeting(const Peers *p, const Meeting *meeting, int fd, int32_t to)
{
    Greeting greeting = {.magic = MAGIC, .from = p->rank, .to = to, .n_ranks = p->n_ranks};

    g_strlcpy(greeting.name, meeting->name, sizeof greeting.name);
    g_strlcpy(greeting.where, meeting->own, sizeof greeting.where);
    return send(fd, &greeting, sizeof greeting, MSG_NOSIGNAL) == sizeof greeting;
}

/* Whether somebody of this run speaks, to this rank. */
static bool
read_greeting(const Peers *p, Meeting *meeting, int fd, Greeting *greeting)
{
    limit_reads(fd, GREETING_MS);
    if ((!meeting->remote && !is_ours(fd)) ||
        recv(fd, greeting, sizeof *greeting, MSG_WAITALL) != sizeof *greeting ||
        !IS_VERSION(greeting->magic) || greeting->to != p->rank ||
        greeting->n_ranks != p->n_ranks || greeting->from < 0 || greeting->from >= p->n_ranks)
        return false;
    greeting->name[NAME_BYTES - 1] = greeting->where[WHERE_BYTES - 1] = 0;
    if (!g_str_equal(greeting->name, meeting->name))
        return false;
    const uint32_t version = (greeting->magic & 0xff) - '0';
    if (meeting->other_version != NULL)
        return false;
    return exec_check_wire_version(p->rank, greeting->from, version, &meeting->other_version);
}

/* Moves what is known of a rank of another version to @error: false; true: nothing. */
static bool
check_versions(Meeting *meeting, GError **error)
{
    if (meeting->other_version == NULL)
        return true;
    g_propagate_error(error, g_steal_pointer(&meeting->other_version));
    return false;
}

/* Whether whoever listens at the other end of @fd is rank @to, which now knows of this one. */
static bool
greet(const Peers *p, Meeting *meeting, int fd, int32_t to)
{
    Greeting answer;

    return send_greeting(p, meeting, fd, to) && read_greeting(p, meeting, fd, &answer) &&
           answer.from == to && send(fd, "", 1, MSG_NOSIGNAL) == 1;
}

/* Returns a socket to rank @to of this machine, or -1: it is not there yet. */
static int
call_here(const Peers *p, Meeting *meeting, int32_t to)
{
    struct sockaddr_un address;
    const socklen_t size = address_of(meeting->name, to, &address);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, size) == 0 &&
        greet(p, meeting, fd, to))
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

/* The same of a rank on any machine.  Some of its addresses may lead to others from here. */
static int
call_there(const Peers *p, Meeting *meeting, int32_t to)
{
    const char *where = meeting->wheres[to], *colon = strrchr(where, ':');

    if (colon == NULL)
        return -1;
    g_autofree char *hosts = g_strndup(where, (size_t)(colon - where));
    g_auto(GStrv) list = g_strsplit(hosts, ",", -1);
    for (size_t i = 0; list[i] != NULL; i++) {
        g_autofree char *one = g_strconcat(list[i], colon, NULL);
        const int fd = exec_addresses_connect(one);
        if (fd >= 0 && greet(p, meeting, fd, to))
            return fd;
        if (fd >= 0)
            close(fd);
    }
    return -1;
}

/* Calls rank @to, which may not have been started yet, until it answers. */
static bool
call_on(Peers *p, Meeting *meeting, int32_t to, GError **error)
{
    for (;;) {
        p->fds[to] = meeting->remote ? call_there(p, meeting, to) : call_here(p, meeting, to);
        if (p->fds[to] >= 0)
            return true;
        if (!check_versions(meeting, error))
            return false;
        if (left_ms(meeting) == 0)
            return EXEC_FAIL(error, EXEC_ERROR_FAILED, "rank %d on %s cannot reach rank %d%s%s",
                             p->rank, g_get_host_name(), to, meeting->remote ? " at " : "",
                             meeting->remote ? meeting->wheres[to] : "");
        g_usleep(CALL_AGAIN_US);
    }
}

/* Returns: (owned) "rank 2 and 5 others": those that have not come. */
static char *
describe_missing(const Peers *p)
{
    int32_t n = 0, first = 0;

    for (int32_t r = p->n_ranks - 1; r >= 0; r--)
        if (r != p->rank && p->fds[r] < 0) {
            n++;
            first = r;
        }
    return n == 1 ? g_strdup_printf("rank %d", first)
                  : g_strdup_printf("rank %d and %d others", first, n - 1);
}

/* Whoever calls, of the ranks above. */
static bool
answer_one(Peers *p, Meeting *meeting, GError **error)
{
    struct pollfd wait = {.fd = meeting->listener, .events = POLLIN};
    Greeting caller;
    char confirmed;

    const int64_t wait_ms = left_ms(meeting);
    if (wait_ms == 0 || poll(&wait, 1, (int)MIN(wait_ms, INT_MAX)) < 1) {
        g_autofree char *missing = describe_missing(p);
        return left_ms(meeting) > 0 ||
               EXEC_FAIL(error, EXEC_ERROR_FAILED, "rank %d has waited in vain for %s%s%s", p->rank,
                         missing, meeting->remote ? ", who look for rank 0 at " : "",
                         meeting->remote ? meeting->called : "");
    }
    const int fd = accept4(meeting->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return errno == EINTR || errno == EAGAIN || errno == ECONNABORTED ||
               fail(error, p->rank, "answer another rank");
    if (!read_greeting(p, meeting, fd, &caller) || caller.from <= p->rank ||
        p->fds[caller.from] >= 0 || !send_greeting(p, meeting, fd, caller.from) ||
        recv(fd, &confirmed, 1, 0) != 1) {
        close(fd); /* nobody of this run, or one that has not waited for the answer */
        return check_versions(meeting, error);
    }
    if (meeting->remote)
        exec_addresses_no_delay(fd);
    p->fds[caller.from] = fd;
    g_strlcpy(meeting->wheres[caller.from], caller.where, WHERE_BYTES);
    return true;
}

static bool
is_complete(const Peers *p)
{
    bool complete = true;

    for (int32_t r = 0; r < p->n_ranks; r++)
        complete &= r == p->rank || p->fds[r] >= 0;
    return complete;
}

/* Opens this rank's socket to listen at. */
static bool
listen_for_ranks(const Peers *p, Meeting *meeting, GError **error)
{
    struct sockaddr_un address;

    if (meeting->remote) {
        const char *colon = strrchr(meeting->wheres[0], ':');
        const int64_t port = p->rank == 0 && colon != NULL ? strtol(colon + 1, NULL, 10) : 0;
        g_autofree char *own = NULL;

        meeting->listener = exec_addresses_listen(true, (uint16_t)port, &own);
        if (meeting->listener < 0)
            return EXEC_FAIL(error, EXEC_ERROR_FAILED,
                             "rank %d cannot listen on port %d (MASTER_PORT names another): %s",
                             p->rank, (int)port, g_strerror(errno));
        g_strlcpy(meeting->own, own, sizeof meeting->own);
        return true;
    }
    const socklen_t size = address_of(meeting->name, p->rank, &address);
    meeting->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (meeting->listener < 0)
        return fail(error, p->rank, "open a socket");
    return (bind(meeting->listener, (const struct sockaddr *)&address, size) == 0 &&
            listen(meeting->listener, p->n_ranks) == 0) ||
           fail(error, p->rank, "listen for the other ranks");
}

/* Rank 0 tells all where each listens; the others read it. */
static bool
share_wheres(const Peers *p, Meeting *meeting, GError **error)
{
    const size_t n_bytes = (size_t)p->n_ranks * WHERE_BYTES;

    if (p->rank > 0) {
        limit_reads(p->fds[0], MAX(left_ms(meeting), 1));
        if (!read_all(p->fds[0], meeting->wheres, n_bytes))
            return EXEC_FAIL(error, EXEC_ERROR_RANK_DIED,
                             "rank %d: rank 0 has gone before all ranks had come", p->rank);
        for (int32_t r = 0; r < p->n_ranks; r++)
            meeting->wheres[r][WHERE_BYTES - 1] = 0;
        return true;
    }
    for (int32_t r = 1; r < p->n_ranks; r++)
        if (!write_all(p, r, meeting->wheres, n_bytes, error))
            return false;
    return true;
}

static bool
meet(Peers *p, const ExecPeersOptions *o, GError **error)
{
    const char *at = strchr(o->meeting, '@');
    g_auto(Meeting) meeting = {
        .remote = at != NULL,
        .wheres = g_malloc0_n((size_t)p->n_ranks, WHERE_BYTES),
        .listener = -1,
        .until_ns = exec_now_ns() + MAX(EXEC_MEET_NS, units_ns_from_s(o->timeout_s)),
    };

    g_strlcpy(meeting.name, o->meeting,
              at == NULL ? NAME_BYTES : MIN(NAME_BYTES, (size_t)(at - o->meeting) + 1));
    if (at != NULL)
        g_strlcpy(meeting.wheres[0], meeting.called = at + 1, WHERE_BYTES);
    if (!listen_for_ranks(p, &meeting, error))
        return false;
    /* Between machines all meet at rank 0 first, who knows where the others are. */
    bool ok = true;
    if (meeting.remote && p->rank > 0)
        ok = call_on(p, &meeting, 0, error);
    while (ok && meeting.remote && p->rank == 0 && !is_complete(p))
        ok = answer_one(p, &meeting, error);
    if (meeting.remote)
        ok = ok && share_wheres(p, &meeting, error);
    for (int32_t r = meeting.remote ? 1 : 0; ok && r < p->rank; r++)
        ok = call_on(p, &meeting, r, error);
    while (ok && !is_complete(p))
        ok = answer_one(p, &meeting, error);
    for (int32_t r = 0; ok && r < p->n_ranks; r++)
        if (p->fds[r] >= 0)
            limit_reads(p->fds[r], 0);
    return ok;
}

/* --- reading, on a thread of its own --- */

/* A damaged header or message ends the waits of this rank with @error's words; false. */
static bool
refuse_damaged(Peers *p, const GError *error)
{
    exec_abort_set(&p->hub->abort, error->message);
    return false;
}

static ExecMessage
message_of_header(int32_t from, int32_t to)
{
    return (ExecMessage){.from = from, .to = to, .n_bytes = offsetof(Header, seal)};
}

/* False: the connection has ended, or does not bring what was sent. */
static bool
read_message(Peers *p, int32_t from)
{
    const ExecMessage own = message_of_header(from, p->rank);
    g_autoptr(GError) error = NULL;
    Header header;

    if (!read_all(p->fds[from], &header, sizeof header))
        return false;
    if (exec_seal(&own, &header) != header.seal || header.n_bytes < 0) {
        g_set_error(&error, EXEC_ERROR, EXEC_ERROR_FAILED,
                    "the header of a message of rank %d to rank %d was damaged on its way", from,
                    p->rank);
        return refuse_damaged(p, error);
    }
    const ExecMessage message = {from, p->rank, header.tag, header.n_bytes};
    g_autofree char *data = g_try_malloc((size_t)MAX(header.n_bytes, 1));
    if (data == NULL || !read_all(p->fds[from], data, (size_t)header.n_bytes))
        return false;
    if (!exec_check_seal(&message, data, header.bytes_seal, &error))
        return refuse_damaged(p, error);
    return exec_local_hub_deliver(p->hub, from, header.tag, data, header.n_bytes, NULL);
}

/* Until all connections have ended. */
static gpointer
read_main(gpointer user_data)
{
    Peers *p = user_data;
    g_autofree struct pollfd *waits = g_new0(struct pollfd, (size_t)p->n_ranks);
    int32_t n_open = p->n_ranks - 1;

    for (int32_t r = 0; r < p->n_ranks; r++)
        waits[r] = (struct pollfd){.fd = p->fds[r], .events = POLLIN};
    while (n_open > 0) {
        if (poll(waits, (nfds_t)p->n_ranks, -1) < 0)
            continue;
        for (int32_t r = 0; r < p->n_ranks; r++)
            if (waits[r].fd >= 0 && waits[r].revents != 0 && !read_message(p, r)) {
                waits[r].fd = -1;
                n_open--;
            }
    }
    return NULL;
}

/* --- sending --- */

static bool
send_remote(void *user_data, int32_t to, int64_t tag, const void *data, int64_t n_bytes,
            GError **error)
{
    const Peers *p = user_data;
    const ExecMessage own = message_of_header(p->rank, to);
    const ExecMessage message = {p->rank, to, tag, n_bytes};
    Header header = {.tag = tag, .n_bytes = n_bytes, .bytes_seal = exec_seal(&message, data)};

    header.seal = exec_seal(&own, &header);
    return write_all(p, to, &header, sizeof header, error) &&
           write_all(p, to, data, (size_t)n_bytes, error);
}

/* --- lifecycle --- */

static void
free_peers(Peers *p)
{
    for (int32_t r = 0; r < p->n_ranks; r++)
        if (p->fds[r] >= 0)
            shutdown(p->fds[r], SHUT_RDWR);
    if (p->reader != NULL)
        g_thread_join(p->reader);
    for (int32_t r = 0; r < p->n_ranks; r++)
        if (p->fds[r] >= 0)
            close(p->fds[r]);
    exec_local_hub_free(p->hub);
    g_free(p->fds);
    g_free(p);
}

bool
exec_peers_open(const ExecPeersOptions *options, ExecTransport *transport, GError **error)
{
    Peers *p = g_new0(Peers, 1);

    p->rank = options->rank;
    p->n_ranks = options->n_ranks;
    p->hub = exec_local_hub_new(p->n_ranks, 0);
    p->fds = g_new(int, (size_t)p->n_ranks);
    for (int32_t r = 0; r < p->n_ranks; r++)
        p->fds[r] = -1;
    if (!meet(p, options, error)) {
        free_peers(p);
        return false;
    }
    p->hub->remote = (ExecHubRemote){.rank = p->rank, .send = send_remote, .user_data = p};
    p->reader = g_thread_try_new("peers", read_main, p, error);
    if (p->reader == NULL) {
        free_peers(p);
        return false;
    }
    *transport = exec_local_transport(p->hub, p->rank);
    return true;
}

bool
exec_peers_close(ExecTransport *transport, GError **error)
{
    Peers *p = ((ExecLocalHub *)transport->state)->remote.user_data;

    g_autofree int32_t *ranks = exec_ranks_new(p->n_ranks);
    const ExecGroup everyone = {.ranks = ranks, .n = p->n_ranks, .index = p->rank};
    const bool ok = transport->ops->barrier(transport, &everyone, error);
    free_peers(p);
    transport->state = NULL;
    return ok;
}
