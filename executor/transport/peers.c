#include "executor/transport/peers.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "executor/device/clock.h"
#include "executor/transport/local.h"

/* How long a send that waits for room sleeps before it looks for an abort: as long as local.c. */
#define LOOK_MS 20

typedef struct {
    int64_t tag, n_bytes;
} Header;

typedef struct {
    ExecLocalHub *hub; /* (owned) */
    int32_t rank, n_ranks;
    int *fds; /* (owned) by rank; -1: oneself */
    GThread *reader;
} Peers;

/* --- meeting --- */

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

/* To rank @to, which may not have been started yet. */
static bool
call_on(Peers *p, const char *secret, int32_t to, int64_t until_ns, GError **error)
{
    struct sockaddr_un address;
    const socklen_t size = address_of(secret, to, &address);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return fail(error, p->rank, "open a socket");
    p->fds[to] = fd;
    while (connect(fd, (const struct sockaddr *)&address, size) != 0) {
        if (exec_now_ns() > until_ns)
            return fail(error, p->rank, "reach the other ranks");
        g_usleep(2000);
    }
    if (!is_ours(fd) || send(fd, &p->rank, sizeof p->rank, MSG_NOSIGNAL) != sizeof p->rank)
        return fail(error, p->rank, "reach the other ranks");
    return true;
}

/* Whoever calls, of the ranks above. */
static bool
answer_one(Peers *p, int listener, int64_t until_ns, GError **error)
{
    struct pollfd wait = {.fd = listener, .events = POLLIN};
    int32_t from = -1;
    /* Read once: a negative limit would be none. */
    const int64_t left_ms = (until_ns - exec_now_ns()) / 1000000;

    errno = ETIMEDOUT;
    if (poll(&wait, 1, (int)MAX(left_ms, 0)) != 1)
        return fail(error, p->rank, "wait for the other ranks any longer");
    const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return fail(error, p->rank, "answer another rank");
    if (!is_ours(fd) || recv(fd, &from, sizeof from, MSG_WAITALL) != sizeof from ||
        from <= p->rank || from >= p->n_ranks || p->fds[from] >= 0) {
        close(fd); /* nobody of this run */
        return true;
    }
    p->fds[from] = fd;
    return true;
}

static int32_t
n_missing(const Peers *p)
{
    int32_t n = 0;

    for (int32_t r = 0; r < p->n_ranks; r++)
        n += r != p->rank && p->fds[r] < 0;
    return n;
}

static bool
meet(Peers *p, const char *secret, GError **error)
{
    const int64_t until_ns = exec_now_ns() + EXEC_MEET_NS;
    struct sockaddr_un address;
    const socklen_t size = address_of(secret, p->rank, &address);
    const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (listener < 0)
        return fail(error, p->rank, "open a socket");
    bool ok = bind(listener, (const struct sockaddr *)&address, size) == 0 &&
              listen(listener, p->n_ranks) == 0;
    if (!ok)
        fail(error, p->rank, "listen for the other ranks");
    for (int32_t r = 0; ok && r < p->rank; r++)
        ok = call_on(p, secret, r, until_ns, error);
    while (ok && n_missing(p) > 0)
        ok = answer_one(p, listener, until_ns, error);
    close(listener);
    return ok;
}

/* --- reading, on a thread of its own --- */

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

/* False: the connection has ended. */
static bool
read_message(Peers *p, int32_t from)
{
    Header header;

    if (!read_all(p->fds[from], &header, sizeof header))
        return false;
    g_autofree char *data = g_try_malloc((size_t)MAX(header.n_bytes, 1));
    return data != NULL && read_all(p->fds[from], data, (size_t)header.n_bytes) &&
           exec_local_hub_deliver(p->hub, from, header.tag, data, header.n_bytes, NULL);
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

static bool
send_remote(void *user_data, int32_t to, int64_t tag, const void *data, int64_t n_bytes,
            GError **error)
{
    const Peers *p = user_data;
    const Header header = {.tag = tag, .n_bytes = n_bytes};

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
exec_peers_open(const char *secret, int32_t rank, int32_t n_ranks, ExecTransport *transport,
                GError **error)
{
    Peers *p = g_new0(Peers, 1);

    p->rank = rank;
    p->n_ranks = n_ranks;
    p->hub = exec_local_hub_new(n_ranks, 0);
    p->fds = g_new(int, (size_t)n_ranks);
    for (int32_t r = 0; r < n_ranks; r++)
        p->fds[r] = -1;
    if (!meet(p, secret, error)) {
        free_peers(p);
        return false;
    }
    p->hub->remote = (ExecHubRemote){.rank = rank, .send = send_remote, .user_data = p};
    p->reader = g_thread_new("peers", read_main, p);
    *transport = exec_local_transport(p->hub, rank);
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
