/*
 * base/host_memory.h - how much memory this process may still take.
 *
 * A system that hands out more memory than it has kills a process, or its neighbour, when the pages
 * are written: long after malloc() said yes.  So who is about to fill large arrays asks first, and
 * refuses with the number.
 *
 * Least of: what the system has available (Linux: MemAvailable, which counts caches that it can
 * drop), what the control groups of the process leave, of either version and up to the root (their
 * limit, less what is used, plus caches that have not been read lately), and what is left of its
 * address space (ulimit -v).
 */
#ifndef BASE_HOST_MEMORY_H
#define BASE_HOST_MEMORY_H

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

G_BEGIN_DECLS

/* Smaller arrays are not asked for: asking takes a tenth of a millisecond, filling these 10. */
#define HOST_MEMORY_ASK_BYTES ((size_t)64 << 20)

/*
 * Returns: bytes >= 0, or INT64_MAX where nothing is known.
 * @root  "", or a directory that stands for / in tests
 */
int64_t host_memory_available_bytes(const char *root);

/* Whether an array of @n_bytes can be filled, as far as is known now; small ones always. */
bool host_memory_has(size_t n_bytes);

/* For messages: (owned) ": 1.20 GiB of memory are available", or "" where that is not known. */
char *host_memory_text(void);

G_END_DECLS

#endif /* BASE_HOST_MEMORY_H */
