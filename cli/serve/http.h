/*
 * cli/serve/http.h - answers GET requests of programs on this machine, over HTTP/1.1, until told to
 * stop: what `degas serve` stands on.  The main header of the room serve/.
 *
 * The socket is bound to 127.0.0.1 and nothing else.  That alone does not keep out other sites: a
 * page from anywhere, open in a browser here, can send requests to the loopback address.  So a
 * request is refused with 403 unless its Host is 127.0.0.1:PORT or localhost:PORT (a name that was
 * made to mean 127.0.0.1 is another Host), it has no Origin of another site, and its Sec-Fetch-Site,
 * which browsers add and pages cannot change, is same-origin or none where it is there.  Methods
 * other than GET are 405.  Answers forbid to be stored, framed, and read by other sites.
 *
 * libmicrohttpd (Debian: libmicrohttpd12) reads requests; it is opened on demand, since it brings
 * TLS with it, which would slow down every start.  Each connection has a thread, at most
 * HTTP_MAX_CONNECTIONS of them; one that is silent for a minute is closed.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#define HTTP_MAX_CONNECTIONS 32

typedef struct {
    const char *path; /* "/plan" */
    /* Returns: (borrowed, nullable) the value of a parameter behind '?', decoded: hostile text. */
    const char *(*get)(const void *request, const char *name);
    const void *request; /* for get() */
} HttpRequest;

typedef struct {
    int status;       /* 200, 404, ... */
    const char *type; /* (borrowed) "text/html; charset=utf-8" */
    char *body;       /* (owned) UTF-8 */
} HttpAnswer;

/* Fills in @answer, which is 404 with a body of NULL before.  Called from several threads at the
 * same time. */
typedef void (*HttpFunc)(const HttpRequest *request, HttpAnswer *answer, void *user_data);

typedef struct HttpServer HttpServer;

/*
 * Begins to listen.
 * @port  in: the port, 0 for any free one; out: the port
 * Returns: (owned) CMD_ERROR_MISSING (no libmicrohttpd), CMD_ERROR_IO (the port is taken).
 */
HttpServer *http_start(uint16_t *port, HttpFunc func, void *user_data, GError **error);

/* Waits for the requests that are being answered, and ends. */
void http_stop(HttpServer *server);
