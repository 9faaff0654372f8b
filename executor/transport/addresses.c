#include "executor/transport/addresses.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* How long one address may take to answer.  A host may list several that lead nowhere from here,
 * and each of them may use up this time; where there is a way, it takes milliseconds. */
#define CONNECT_MS 2000

/* Appends this machine's addresses, the loopback last; only that one unless @other_hosts. */
static void
append_addresses(GString *where, bool other_hosts)
{
    struct ifaddrs *all = NULL;

    if (other_hosts && getifaddrs(&all) == 0) {
        for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
            char text[INET_ADDRSTRLEN];
            if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET ||
                (i->ifa_flags & IFF_LOOPBACK) != 0 || (i->ifa_flags & IFF_UP) == 0)
                continue;
            const struct sockaddr_in *in = (const struct sockaddr_in *)(void *)i->ifa_addr;
            if (inet_ntop(AF_INET, &in->sin_addr, text, sizeof text) != NULL)
                g_string_append_printf(where, "%s,", text);
        }
        freeifaddrs(all);
    }
    g_string_append(where, "127.0.0.1");
}

int
exec_addresses_listen(bool other_hosts, uint16_t port, char **where)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons(port),
        .sin_addr.s_addr = htonl(other_hosts ? INADDR_ANY : INADDR_LOOPBACK),
    };
    socklen_t size = sizeof address;
    const int yes = 1;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -1;
    /* A run that goes on where another has just ended listens on the same port. */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(fd, (const struct sockaddr *)&address, sizeof address) != 0 ||
        listen(fd, SOMAXCONN) != 0 || getsockname(fd, (struct sockaddr *)&address, &size) != 0) {
        const int code = errno;
        close(fd);
        errno = code;
        return -1;
    }
    GString *text = g_string_new(NULL);
    append_addresses(text, other_hosts);
    g_string_append_printf(text, ":%u", ntohs(address.sin_port));
    *where = g_string_free(text, FALSE);
    return fd;
}

static bool
finish_connecting(int fd)
{
    struct pollfd wait = {.fd = fd, .events = POLLOUT};
    int code = 0;
    socklen_t size = sizeof code;

    return poll(&wait, 1, CONNECT_MS) == 1 &&
           getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &size) == 0 && code == 0;
}

static int
connect_to(const char *host, const char *port)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int fd = -1;

    if (getaddrinfo(host, port, &hints, &found) != 0)
        return -1;
    for (const struct addrinfo *a = found; a != NULL && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
            continue;
        if (connect(fd, a->ai_addr, a->ai_addrlen) != 0 &&
            (errno != EINPROGRESS || !finish_connecting(fd))) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(found);
    return fd;
}

void
exec_addresses_no_delay(int fd)
{
    const int yes = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

int
exec_addresses_connect(const char *where)
{
    const char *colon = strrchr(where, ':');
    int fd = -1;

    if (colon == NULL)
        return -1;
    g_autofree char *hosts = g_strndup(where, (size_t)(colon - where));
    g_auto(GStrv) list = g_strsplit(hosts, ",", -1);
    for (size_t i = 0; list[i] != NULL && fd < 0; i++)
        fd = connect_to(list[i], colon + 1);
    if (fd >= 0)
        exec_addresses_no_delay(fd);
    return fd;
}
