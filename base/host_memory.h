/*
 * base/host_memory.h - how much memory this process may still take, and large arrays of it.
 *
 * A system that hands out more memory than it has kills a process, or its neighbour, when the pages
 * are written, long after malloc() succeeded.  So code that is about to fill large arrays asks here
 * first, and refuses with a message that says how much memory there is.
 *
 * What a process may still take is the least of: what the system has available (Linux:
 * MemAvailable, which counts caches that it can drop), what the control groups of the process
 * leave, of either version and up to the root (their limit, less what is used, plus caches that
 * have not been read lately), and what is left of its address space (ulimit -v).
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

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

/*
 * Large arrays, whose pages the system hands out in one call.
 *
 * A fresh array costs a page fault per 4 KiB when it is first written: 0.2 us on bare metal, more
 * than 1 us in a virtual machine, as much as computing the ops that it holds.  Where the system
 * can, an array gets its pages in one call; elsewhere nothing changes.
 *
 * Not large pages (MADV_HUGEPAGE): a simulation of 10^7 ops that is run again in the same process
 * takes a tenth less time with them, but the first one in a process, which is what people run, took
 * 1.25 s against 0.49, and its schedule 0.2 s against 0.04: a virtual machine may have to get large
 * free blocks back from its host, at 6 ms per 2 MiB (2026-11-22).
 *
 * Returns: (owned, nullable) room for @n elements of @element_bytes, which are not 0; NULL also
 * where the system would have to kill a process for it.
 */
void *pages_try_malloc(size_t n, size_t element_bytes);

/* As pages_try_malloc(), for what is made and freed again and again: a medium array then mostly has
 * its pages, and asking for them costs more than having them. */
void *pages_try_malloc_again(size_t n, size_t element_bytes);

/* As pages_try_malloc(), all zero. */
void *pages_try_malloc0(size_t n, size_t element_bytes);

/* As pages_try_malloc(), but its pages come one by one, when they are first written. */
void *pages_try_room(size_t n, size_t element_bytes);

/* Gets the whole pages of a fresh @array (nullable) that will be written; returns @array. */
void *pages_prepare(void *array, size_t n_bytes);
