/*
 * base/pages.h - fresh pages for large arrays, in bulk.
 *
 * A fresh array costs a page fault per 4 KiB when it is first written: 0.2 us on bare metal, more
 * than 1 us in a virtual machine, as much as computing the ops that it holds.  Where the system
 * can, an array gets its pages in one call; elsewhere nothing changes.
 *
 * Not large pages (MADV_HUGEPAGE): a simulation of 10^7 ops that is run again in the same process
 * takes a tenth less time with them, but the first one in a process, which is what people run, took
 * 1.25 s against 0.49, and its schedule 0.2 s against 0.04: a virtual machine may have to get large
 * free blocks back from its host, at 6 ms per 2 MiB (2026-11-22).
 */
#ifndef BASE_PAGES_H
#define BASE_PAGES_H

#include <glib.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/host_memory.h"

G_BEGIN_DECLS

/* Below this malloc() hands out memory that was used before. */
#define PAGES_MEDIUM_BYTES ((size_t)256 << 10)
/* From this on it does not, however often such an array was made and freed before. */
#define PAGES_LARGE_BYTES ((size_t)4 << 20)

/* Gets the whole pages of a fresh array that will be written; returns @array (nullable). */
static inline void *
pages_prepare(void *array, size_t n_bytes)
{
#ifdef MADV_POPULATE_WRITE
    if (array == NULL || n_bytes < PAGES_MEDIUM_BYTES)
        return array;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = ((uintptr_t)array + page - 1) / page * page;
    const uintptr_t end = ((uintptr_t)array + n_bytes) / page * page;
    (void)madvise((void *)begin, end - begin, MADV_POPULATE_WRITE);
#endif
    return array;
}

/* (owned, nullable) memory without pages, where the system has as much. */
static inline void *
pages_try_room(size_t n, size_t element_bytes)
{
    return n > SIZE_MAX / element_bytes || !host_memory_has(n * element_bytes)
               ? NULL
               : g_try_malloc_n(n, element_bytes);
}

/* (owned, nullable) room for @n elements of @size bytes, which are not 0; NULL also where the
 * system would have to kill somebody for it [host_memory.h]. */
static inline void *
pages_try_malloc(size_t n, size_t element_bytes)
{
    return pages_prepare(pages_try_room(n, element_bytes), n * element_bytes);
}

/* (owned, nullable) likewise for what is made and freed again and again: a medium array then mostly
 * has its pages, and asking for them costs more than having them. */
static inline void *
pages_try_malloc_again(size_t n, size_t element_bytes)
{
    void *array = pages_try_room(n, element_bytes);

    return n * element_bytes < PAGES_LARGE_BYTES ? array : pages_prepare(array, n * element_bytes);
}

/* (owned, nullable) as the first, all zero. */
static inline void *
pages_try_malloc0(size_t n, size_t element_bytes)
{
    if (n > SIZE_MAX / element_bytes || !host_memory_has(n * element_bytes))
        return NULL;
    return pages_prepare(g_try_malloc0_n(n, element_bytes), n * element_bytes);
}

G_END_DECLS

#endif /* BASE_PAGES_H */
