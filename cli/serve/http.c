#include "cli/serve/http.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/request/command.h"

/* --- libmicrohttpd's C interface, whose numbers never change [gnu.org/software/libmicrohttpd] --- */

typedef struct MHD_Daemon MHD_Daemon;
typedef struct MHD_Connection MHD_Connection;
typedef struct MHD_Response MHD_Response;

enum {
    MHD_NO = 0,
    MHD_YES = 1,
    USE_THREAD_PER_CONNECTION = 4,
    USE_INTERNAL_POLLING_THREAD = 8,
    USE_AUTO = 65536,
    OPTION_END = 0,
    OPTION_CONNECTION_LIMIT = 2,
    OPTION_CONNECTION_TIMEOUT = 3,
    OPTION_LISTEN_SOCKET = 12,
    HEADER_KIND = 1,
    GET_ARGUMENT_KIND = 8,
    RESPMEM_MUST_FREE = 1,
    TIMEOUT_S = 60,
};

typedef int (*AccessFunc)(void *cls, MHD_Connection *connection, const char *url,
                          const char *method, const char *version, const char *data, size_t *n_data,
                          void **state);

struct HttpServer {
    MHD_Daemon *(*start_daemon)(unsigned flags, uint16_t port, void *, void *, AccessFunc, void *,
                                ...);
    void (*stop_daemon)(MHD_Daemon *);
    const char *(*lookup)(MHD_Connection *, int kind, const char *name);
    MHD_Response *(*response)(size_t n, void *body, int mode);
    int (*add_header)(MHD_Response *, const char *name, const char *value);
    int (*queue)(MHD_Connection *, unsigned status, MHD_Response *);
    void (*destroy)(MHD_Response *);
    MHD_Daemon *daemon;
    HttpFunc func;
    void *user_data;
    uint16_t port;
};

static bool
open_library(HttpServer *server, GError **error)
{
    const struct {
        const char *name;
        void *slot;
    } functions[] = {
        {"MHD_start_daemon", &server->start_daemon},
        {"MHD_stop_daemon", &server->stop_daemon},
        {"MHD_lookup_connection_value", &server->lookup},
        {"MHD_create_response_from_buffer", &server->response},
        {"MHD_add_response_header", &server->add_header},
        {"MHD_queue_response", &server->queue},
        {"MHD_destroy_response", &server->destroy},
    };
    void *library = dlopen("libmicrohttpd.so.12", RTLD_NOW | RTLD_LOCAL);

    for (size_t i = 0; i < G_N_ELEMENTS(functions); i++) {
        void *function = library == NULL ? NULL : dlsym(library, functions[i].name);

        if (function == NULL)
            return cmd_fail(error, CMD_ERROR_MISSING,
                            "serve needs libmicrohttpd; install libmicrohttpd12");
        memcpy(functions[i].slot, &function, sizeof function);
    }
    return true;
}

/* --- one request --- */

/* What HttpRequest.request points to. */
typedef struct {
    const HttpServer *server;
    MHD_Connection *connection;
} Asked;

static const char *
get_argument(const void *request, const char *name)
{
    const Asked *asked = request;

    return asked->server->lookup(asked->connection, GET_ARGUMENT_KIND, name);
}

/* Whether @text is @prefix and one of this server's names with its port. */
static bool
is_here(const HttpServer *server, const char *text, const char *prefix)
{
    g_autofree char *by_number = g_strdup_printf("%s127.0.0.1:%d", prefix, server->port);
    g_autofree char *by_name = g_strdup_printf("%slocalhost:%d", prefix, server->port);

    return g_str_equal(text, by_number) || g_str_equal(text, by_name);
}

/* (nullable) why this is no request of a page of ours. */
static const char *
why_refused(const Asked *asked)
{
    const HttpServer *server = asked->server;
    const char *host = server->lookup(asked->connection, HEADER_KIND, "Host");
    const char *origin = server->lookup(asked->connection, HEADER_KIND, "Origin");
    const char *site = server->lookup(asked->connection, HEADER_KIND, "Sec-Fetch-Site");

    if (host == NULL || !is_here(server, host, ""))
        return "this is another host\n";
    if ((origin != NULL && !is_here(server, origin, "http://")) ||
        (site != NULL && !g_str_equal(site, "same-origin") && !g_str_equal(site, "none")))
        return "requests of other sites are refused\n";
    return NULL;
}

static int
send_answer(const Asked *asked, HttpAnswer *answer)
{
    static const char *const headers[][2] = {
        {"Cache-Control", "no-store"},
        {"Content-Security-Policy", "frame-ancestors 'none'"},
        {"Cross-Origin-Resource-Policy", "same-origin"},
        {"Referrer-Policy", "no-referrer"},
        {"X-Content-Type-Options", "nosniff"},
    };
    const HttpServer *server = asked->server;
    const size_t n = strlen(answer->body);
    MHD_Response *response = server->response(n, g_strdup(answer->body), RESPMEM_MUST_FREE);

    if (response == NULL)
        return MHD_NO;
    server->add_header(response, "Content-Type", answer->type);
    for (size_t i = 0; i < G_N_ELEMENTS(headers); i++)
        server->add_header(response, headers[i][0], headers[i][1]);
    const int done = server->queue(asked->connection, (unsigned)answer->status, response);
    server->destroy(response);
    return done;
}

static int
answer_request(void *user_data, MHD_Connection *connection, const char *url, const char *method,
               const char *version, const char *data, size_t *n_data, void **state)
{
    static int seen;
    const HttpServer *server = user_data;
    const Asked asked = {server, connection};
    const HttpRequest request = {.path = url, .get = get_argument, .request = &asked};
    HttpAnswer answer = {.status = 404, .type = "text/plain; charset=utf-8"};

    const char *why = why_refused(&asked);
    if (why != NULL) {
        answer.status = 403;
        answer.body = g_strdup(why);
    } else if (!g_str_equal(method, "GET")) {
        answer.status = 405;
        answer.body = g_strdup("only GET is answered\n");
    } else if (*state == NULL || *n_data > 0) {
        /* It calls once when the headers are there, for each part of what follows them, and at its
         * end. */
        *state = &seen;
        *n_data = 0;
        return MHD_YES;
    } else {
        server->func(&request, &answer, server->user_data);
        if (answer.body == NULL)
            answer.body = g_strdup("there is no such page\n");
    }
    const int done = send_answer(&asked, &answer);
    g_free(answer.body);
    return done;
}

/* --- the server --- */

/* A socket that listens on the loopback address; -1 with CMD_ERROR_IO. */
static int
listen_here(uint16_t *port, GError **error)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
        .sin_port = htons(*port),
    };
    socklen_t size = sizeof address;
    const int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
        bind(fd, (const struct sockaddr *)&address, sizeof address) == 0 &&
        listen(fd, HTTP_MAX_CONNECTIONS) == 0 &&
        getsockname(fd, (struct sockaddr *)&address, &size) == 0) {
        *port = ntohs(address.sin_port);
        return fd;
    }
    cmd_fail(error, CMD_ERROR_IO, "serve: cannot listen on 127.0.0.1 port %d: %s", *port,
             g_strerror(errno));
    if (fd >= 0)
        close(fd);
    return -1;
}

HttpServer *
http_start(uint16_t *port, HttpFunc func, void *user_data, GError **error)
{
    HttpServer *server = g_new0(HttpServer, 1);
    const int fd = open_library(server, error) ? listen_here(port, error) : -1;

    server->func = func;
    server->user_data = user_data;
    server->port = *port;
    if (fd >= 0) {
        g_assert(server->start_daemon != NULL); /* the library is open */
        server->daemon =
            server->start_daemon(USE_THREAD_PER_CONNECTION | USE_INTERNAL_POLLING_THREAD | USE_AUTO,
                                 *port, NULL, NULL, answer_request, server, OPTION_LISTEN_SOCKET,
                                 fd, OPTION_CONNECTION_LIMIT, (unsigned)HTTP_MAX_CONNECTIONS,
                                 OPTION_CONNECTION_TIMEOUT, (unsigned)TIMEOUT_S, OPTION_END);
        if (server->daemon == NULL) {
            cmd_fail(error, CMD_ERROR_LIMIT,
                     "serve: libmicrohttpd cannot start: no thread or no memory for it");
            close(fd);
        }
    }
    if (server->daemon == NULL)
        g_clear_pointer(&server, g_free);
    return server;
}

void
http_stop(HttpServer *server)
{
    server->stop_daemon(server->daemon);
    g_free(server);
}
