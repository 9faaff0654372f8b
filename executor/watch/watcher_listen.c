#include "executor/watch/watcher_listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

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

/* This machine's addresses, the loopback last (first when nobody else is to reach it). */
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
exec_watcher_listen(bool other_hosts, char secret[EXEC_WATCH_SECRET + 1], char **where)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_addr.s_addr = htonl(other_hosts ? INADDR_ANY : INADDR_LOOPBACK),
    };
    socklen_t size = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -1;
    if (bind(fd, (const struct sockaddr *)&address, sizeof address) != 0 ||
        listen(fd, SOMAXCONN) != 0 || getsockname(fd, (struct sockaddr *)&address, &size) != 0 ||
        !make_secret(secret)) {
        const int code = errno;
        close(fd);
        errno = code;
        return -1;
    }
    GString *text = g_string_new(NULL);
    g_string_append_printf(text, "%s@", secret);
    append_addresses(text, other_hosts);
    g_string_append_printf(text, ":%u", ntohs(address.sin_port));
    *where = g_string_free(text, FALSE);
    return fd;
}
