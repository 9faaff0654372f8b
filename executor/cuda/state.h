/*
 * executor/cuda/state.h - a rank's CUDA backend: its state, and its parts in cuda_*.c.
 *
 * Private to the CUDA plugin.
 */
#ifndef EXECUTOR_CUDA_STATE_H
#define EXECUTOR_CUDA_STATE_H

#include "executor/cuda/cuda.h"

G_BEGIN_DECLS

/* Who looks after something else while the host waits for the device. */
typedef struct {
    /* Called about every 50 us with @waits, and once without when the wait is over; false ends the
     * wait, with an error. */
    bool (*look)(void *user_data, bool waits, GError **error);
    void *user_data; /* (borrowed) */
} ExecCudaWatch;

/* Of cuda_graph.c. */
typedef struct {
    GHashTable *execs; /* (owned, nullable) key -> cudaGraphExec_t */
    bool captures;     /* now, with: */
    int64_t key;
    GPtrArray *to_release; /* (owned) memory that was released meanwhile */
    cudaStream_t side;     /* (owned) for memory that is taken meanwhile */
} ExecCudaGraphs;

/* Of cuda_aside.c. */
typedef struct {
    cudaStream_t stream; /* (owned) */
    cudaEvent_t begin;   /* (owned) what the compute slots had queued; used again at once */
    bool is_in;          /* between begin_aside() and end_aside() */
} ExecCudaAside;

typedef struct {
    int device;
    bool has_wgmma;      /* and may use it: attention by kernels_flash_hopper_*.cu */
    ExecCudaWatch watch; /* look == NULL: nobody */
    ExecCudaGraphs graphs;
    ExecCudaShare share;
    ExecCudaAside aside;
    cudaMemPool_t pool;
    ExecCudaProducts *products; /* (owned) */
    void *product_workspace;    /* (owned) */
    float *scratch;             /* (owned) of reductions and attention */
    int64_t n_scratch;
    int64_t predicted_bytes; /* 0: unknown */
    GError *error;           /* (owned, nullable) the first failure since synchronize() */
    ExecCudaClock *clock;    /* (owned) */
} ExecCudaState;

static inline ExecCudaState *
exec_cuda_state(const ExecBackend *backend)
{
    return backend->state;
}

/* That slots queue in now. */
static inline cudaStream_t
exec_cuda_stream(const ExecBackend *backend)
{
    const ExecCudaState *state = exec_cuda_state(backend);

    return state->aside.is_in ? state->aside.stream : state->share.stream;
}

/* --- failures inside slots, which return nothing: the first is kept for synchronize() --- */

/* @error is taken. */
void exec_cuda_keep_error(ExecCudaState *state, GError *error);
void exec_cuda_check(ExecCudaState *state, cudaError_t status, const char *call, const char *file,
                     int line);

/* In a slot: queues and keeps what went wrong. */
#define QUEUE(backend, call)                                                                       \
    exec_cuda_check(exec_cuda_state(backend), (call), #call, __FILE__, __LINE__)

/* --- cuda_memory.c --- */

/* The rank's pool, and in it the predicted peak and the workspace of products; false on
 * EXEC_ERROR_MEMORY. */
bool exec_cuda_memory_open(ExecBackend *backend, GError **error);
/* Waits for the stream. */
void exec_cuda_memory_close(ExecCudaState *state);

/* Memory for @n floats of one op; NULL, and the failure is kept, when there is none. */
float *exec_cuda_scratch(ExecBackend *backend, int64_t n);

/* Slots of backend.h. */
void *exec_cuda_alloc(ExecBackend *backend, size_t n_bytes, const char *what, GError **error);
/* In the order of another stream than the backend's; to be freed in any. */
void *exec_cuda_alloc_on(ExecBackend *backend, cudaStream_t stream, size_t n_bytes,
                         const char *what, GError **error);
void exec_cuda_release(ExecBackend *backend, void *memory);
void exec_cuda_upload(ExecBackend *backend, size_t n_bytes, const void *host, void *device);
void exec_cuda_download(ExecBackend *backend, size_t n_bytes, const void *device, void *host);
void exec_cuda_copy(ExecBackend *backend, size_t n_bytes, const void *x, void *y);
bool exec_cuda_post(ExecBackend *backend, const void *data, size_t n_bytes, ExecParcel *parcel,
                    GError **error);
void exec_cuda_fetch(ExecBackend *backend, const ExecParcel *parcel, size_t n_bytes, Dtype add,
                     void *to);

/* --- cuda_graph.c --- */

void exec_cuda_begin_graph(ExecBackend *backend, int64_t key);
void exec_cuda_end_graph(ExecBackend *backend);
void exec_cuda_graphs_clear(ExecCudaGraphs *graphs);

/* --- cuda_aside.c --- */

bool exec_cuda_aside_open(ExecCudaAside *aside, GError **error);
/* Waits for the stream. */
void exec_cuda_aside_close(ExecCudaAside *aside);

/* Slots of backend.h. */
void exec_cuda_begin_aside(ExecBackend *backend);
void exec_cuda_end_aside(ExecBackend *backend, ExecMark **mark);
void exec_cuda_join(ExecBackend *backend, ExecMark *mark);
bool exec_cuda_await(ExecBackend *backend, ExecMark *mark, GError **error);
void exec_cuda_forget(ExecBackend *backend, ExecMark *mark);
void *exec_cuda_alloc_host(ExecBackend *backend, size_t n_bytes);
void exec_cuda_release_host(ExecBackend *backend, void *memory);

/* --- backend_cuda.c --- */

/* The host waits until @event has happened, or the watch ends the wait. */
bool exec_cuda_wait_event(const ExecCudaState *state, cudaEvent_t event, GError **error);

bool exec_cuda_synchronize(ExecBackend *backend, GError **error);
void exec_cuda_stamp(ExecBackend *backend, int64_t *ns);
char *exec_cuda_describe(const ExecBackend *backend);
const char *exec_cuda_attention_kernel(const ExecBackend *backend);
int64_t exec_cuda_workspace_bytes(const ExecBackend *backend);
void exec_cuda_close(ExecBackend *backend);

/* --- cuda_slots.c: the tables; what products fuse depends on the number format --- */

extern const ExecBackendOps exec_cuda_fp32_ops, exec_cuda_bf16_ops;

G_END_DECLS

#endif /* EXECUTOR_CUDA_STATE_H */
