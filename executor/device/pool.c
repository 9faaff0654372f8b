#include "executor/device/pool.h"

/* Every block ever allocated. */
typedef struct {
    void *data;
    int64_t n_bytes;
    bool taken;
} Slab;

struct ExecPool {
    ExecBackend *backend; /* (borrowed) */
    GArray *slabs;        /* of Slab */
    int64_t used_bytes[TRACE_MEMORY_N];
    int64_t total_bytes, peak_bytes;
    GArray *events; /* (borrowed, nullable) */
    int32_t rank;
    int64_t start_ns;
};

ExecPool *
exec_pool_new(ExecBackend *backend)
{
    ExecPool *pool = g_new0(ExecPool, 1);

    pool->backend = backend;
    pool->slabs = g_array_new(false, false, sizeof(Slab));
    return pool;
}

void
exec_pool_free(ExecPool *pool)
{
    if (pool == NULL)
        return;
    for (guint i = 0; i < pool->slabs->len; i++)
        pool->backend->ops->release(pool->backend, g_array_index(pool->slabs, Slab, i).data);
    g_array_unref(pool->slabs);
    g_free(pool);
}

static void
record(ExecPool *pool, TraceMemoryOwner owner, int64_t delta_bytes, int64_t at_ns)
{
    const TraceMemory event = {
        .at_ns = at_ns,
        .delta_bytes = delta_bytes,
        .rank = pool->rank,
        .owner = (uint8_t)owner,
    };

    g_array_append_val(pool->events, event);
}

void
exec_pool_count(ExecPool *pool, TraceMemoryOwner owner, int64_t n_bytes)
{
    pool->used_bytes[owner] += n_bytes;
    pool->total_bytes += n_bytes;
    pool->peak_bytes = MAX(pool->peak_bytes, pool->total_bytes);
    if (pool->events != NULL)
        record(pool, owner, n_bytes, exec_now_ns() - pool->start_ns);
}

/* The smallest free slab that fits and wastes no more than a quarter; a schedule has few sizes. */
static Slab *
find_free(ExecPool *pool, int64_t n_bytes)
{
    Slab *best = NULL;

    for (guint i = 0; i < pool->slabs->len; i++) {
        Slab *slab = &g_array_index(pool->slabs, Slab, i);
        if (!slab->taken && slab->n_bytes >= n_bytes && slab->n_bytes <= n_bytes + n_bytes / 4 &&
            (best == NULL || slab->n_bytes < best->n_bytes))
            best = slab;
    }
    return best;
}

bool
exec_pool_take(ExecPool *pool, TraceMemoryOwner owner, int64_t n_bytes, ExecBlock *block,
               GError **error)
{
    Slab *slab = find_free(pool, n_bytes);

    if (n_bytes < 0)
        return EXEC_FAIL(error, EXEC_ERROR_MEMORY, "what %s need is more than memory can hold",
                         trace_memory_names[owner]);
    if (slab == NULL) {
        Slab new_slab = {.n_bytes = n_bytes};
        new_slab.data = pool->backend->ops->alloc(pool->backend, (size_t)n_bytes,
                                                  trace_memory_names[owner], error);
        if (new_slab.data == NULL)
            return false;
        g_array_append_val(pool->slabs, new_slab);
        slab = &g_array_index(pool->slabs, Slab, pool->slabs->len - 1);
    }
    slab->taken = true;
    *block = (ExecBlock){.data = slab->data, .n_bytes = n_bytes, .owner = owner};
    exec_pool_count(pool, owner, n_bytes);
    return true;
}

void
exec_pool_give(ExecPool *pool, ExecBlock *block)
{
    if (block->data == NULL)
        return;
    for (guint i = 0; i < pool->slabs->len; i++) {
        Slab *slab = &g_array_index(pool->slabs, Slab, i);
        if (slab->data == block->data)
            slab->taken = false;
    }
    exec_pool_count(pool, block->owner, -block->n_bytes);
    *block = (ExecBlock){0};
}

int64_t
exec_pool_used_bytes(const ExecPool *pool, TraceMemoryOwner owner)
{
    return pool->used_bytes[owner];
}

int64_t
exec_pool_peak_bytes(const ExecPool *pool)
{
    return pool->peak_bytes;
}

void
exec_pool_record(ExecPool *pool, GArray *events, int32_t rank, int64_t start_ns)
{
    pool->events = events;
    pool->rank = rank;
    pool->start_ns = start_ns;
    for (int owner = 0; events != NULL && owner < TRACE_MEMORY_N; owner++)
        if (pool->used_bytes[owner] != 0)
            record(pool, (TraceMemoryOwner)owner, pool->used_bytes[owner], 0);
}
