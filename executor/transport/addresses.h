/*
 * executor/transport/addresses.h - where a process listens for others, as one text that they can
 * be told: "10.0.0.7,127.0.0.1:24012", all addresses of its machine and the port.
 *
 * The watcher of a run (executor/watch/watcher.h) and ranks that meet by sockets (peers.h) use it.
 * It listens by IPv4; it connects by whatever a name leads to.
 *
 * Private to executor/.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * Listens on all interfaces with @other_hosts, else on the loopback alone.
 *
 * @port   0: one that is free
 * @where  (out, owned) this machine's addresses, the loopback last, and the port
 * Returns a socket that does not block, or -1 with errno, and @where untouched.
 */
int exec_addresses_listen(bool other_hosts, uint16_t port, char **where);

/* Tries the addresses or names of @where in turn, each for 2 s at most.  Returns a socket that does
 * not block and does not delay small messages, or -1: nobody listens at any of them. */
int exec_addresses_connect(const char *where);

/* Makes a socket that was accepted send small messages at once, which otherwise wait up to 40 ms
 * for the receiver's acknowledgement. */
void exec_addresses_no_delay(int fd);
