/*
 * base/parallel.h - pieces of work that do not meet, in several threads.
 *
 * Pieces are begun in their order, each by the first thread that is free, so which thread does
 * which piece is not known: a result must not depend on it.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

/* Does piece @i of the work. */
typedef void (*ParallelFunc)(int64_t i, void *user_data);

/*
 * Calls @func for each i in [0, n), in up to @n_threads threads of which the caller's is one.  A
 * thread that cannot be had is not needed: those that are there do all pieces.  Returns when all
 * are done.
 */
void parallel_each(int64_t n, int64_t n_threads, ParallelFunc func, void *user_data);
