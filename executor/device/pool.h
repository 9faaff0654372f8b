/*
 * executor/device/pool.h - the memory of a rank: blocks that ops take and give back, counted by
 * what they are for.
 *
 * A block that is given back is kept for the next request of its size, or of up to a quarter less.
 * So no op allocates from the second step on, even where the router of experts changes sizes a
 * little.  Bytes in use are counted by owner (TraceMemoryOwner) and, when asked for, recorded as
 * events of a measured Trace: the same events that the simulator predicts.
 *
 * Thread-safety: none; one pool belongs to one rank.
 */
#pragma once

#include "executor/device/backend.h"
#include "executor/device/clock.h"
#include "schedule/trace.h"

typedef struct ExecPool ExecPool;

/* A block that was taken; data == NULL: none. */
typedef struct {
    void *data;
    int64_t n_bytes;
    TraceMemoryOwner owner;
} ExecBlock;

/* @backend  (borrowed) must outlive the pool. */
ExecPool *exec_pool_new(ExecBackend *backend);
/* Also releases blocks that have not been given back. */
void exec_pool_free(ExecPool *pool);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecPool, exec_pool_free)

/* Takes a block whose contents are unspecified.  False on EXEC_ERROR_MEMORY, which a negative
 * @n_bytes gives too: it comes of a product beyond int64_t. */
bool exec_pool_take(ExecPool *pool, TraceMemoryOwner owner, int64_t n_bytes, ExecBlock *block,
                    GError **error);
/* Gives the block back and empties it; does nothing with an empty one. */
void exec_pool_give(ExecPool *pool, ExecBlock *block);

/* Counts bytes that somebody else holds for this rank, such as a backend's workspace. */
void exec_pool_count(ExecPool *pool, TraceMemoryOwner owner, int64_t n_bytes);

int64_t exec_pool_used_bytes(const ExecPool *pool, TraceMemoryOwner owner);
int64_t exec_pool_peak_bytes(const ExecPool *pool);

/*
 * Appends a TraceMemory of @rank to @events (borrowed) for every change from now on; NULL stops it.
 * Times count from @start_ns on exec_now_ns()'s clock; what is in use now becomes events at time 0.
 */
void exec_pool_record(ExecPool *pool, GArray *events, int32_t rank, int64_t start_ns);
