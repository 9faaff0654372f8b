/*
 * executor/device/pool.h - a rank's memory: blocks taken and given back, with owners.
 *
 * Given blocks are kept for the next take of their size, or of at most a quarter less: so that from
 * the second step on no op allocates, also where the router of experts changes sizes a little.
 * Bytes in use are counted by owner and, when asked, recorded as events of a measured Trace: the
 * same events that the simulator predicts.
 *
 * Thread-safety: none; one pool belongs to one rank.
 */
#ifndef EXECUTOR_DEVICE_POOL_H
#define EXECUTOR_DEVICE_POOL_H

#include "executor/device/backend.h"
#include "executor/device/clock.h"
#include "schedule/trace.h"

G_BEGIN_DECLS

typedef struct ExecPool ExecPool;

/* data == NULL: nothing taken. */
typedef struct {
    void *data;
    int64_t n_bytes;
    TraceMemoryOwner owner;
} ExecBlock;

/* @backend  (borrowed) must outlive the pool. */
ExecPool *exec_pool_new(ExecBackend *backend);
/* Blocks still taken are released with it. */
void exec_pool_free(ExecPool *pool);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecPool, exec_pool_free)

/* Returns false on EXEC_ERROR_MEMORY, also for negative @n_bytes: a product that did not fit.
 * Contents are unspecified. */
bool exec_pool_take(ExecPool *pool, TraceMemoryOwner owner, int64_t n_bytes, ExecBlock *block,
                    GError **error);
/* A block that was not taken is left alone. */
void exec_pool_give(ExecPool *pool, ExecBlock *block);

/* Counts bytes that somebody else holds for this rank (a backend's workspace). */
void exec_pool_count(ExecPool *pool, TraceMemoryOwner owner, int64_t n_bytes);

int64_t exec_pool_used_bytes(const ExecPool *pool, TraceMemoryOwner owner);
int64_t exec_pool_peak_bytes(const ExecPool *pool);

/*
 * From now on events go to @events (borrowed, nullable: stop), as TraceMemory of @rank with times
 * from @start_ns on the monotonic clock; what is in use now becomes events at 0.
 */
void exec_pool_record(ExecPool *pool, GArray *events, int32_t rank, int64_t start_ns);

G_END_DECLS

#endif /* EXECUTOR_DEVICE_POOL_H */
