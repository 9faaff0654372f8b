/*
 * executor/watch/watcher_listen.h - where ranks find their watcher.
 *
 * Private to executor/watch/watcher.c.
 */
#ifndef EXECUTOR_WATCH_WATCHER_LISTEN_H
#define EXECUTOR_WATCH_WATCHER_LISTEN_H

#include <glib.h>
#include <stdbool.h>

#include "executor/watch/watch_wire.h"

G_BEGIN_DECLS

/*
 * A socket that listens on a free port: of all interfaces, or of the loopback alone.
 *
 * @secret  (out) what a guest must know; random
 * @where   (out, owned) as EXEC_WATCH_VARIABLE has it
 * Returns -1 with errno, and @where untouched.
 */
int exec_watcher_listen(bool other_hosts, char secret[EXEC_WATCH_SECRET + 1], char **where);

G_END_DECLS

#endif /* EXECUTOR_WATCH_WATCHER_LISTEN_H */
