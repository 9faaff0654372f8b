/*
 * executor/cuda/cuda.h - the plugin degas-cuda.so: what its files share.
 *
 * This room computes on NVIDIA GPUs (backend.c) and carries tensors between them by NCCL (nccl.h).
 * The program links nothing of it: it opens the plugin (executor/device/plugin.h) and meets the
 * tables of functions that the plugin exports.  nccl.h alone is included from outside.
 *
 * A rank has a stream of its own on its share of the device.  Every slot queues work in the stream
 * and returns.  Slots return nothing, so the first failure is kept until synchronize() reports it.
 * Device memory comes from a pool of the rank's own, which takes the predicted peak when it is
 * opened: from then on taking and giving memory is arithmetic, without a call that could wait.
 */
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "executor/cuda/kernels.h"
#include "executor/device/backend.h"

/* --- device.c: status codes become GErrors where they appear --- */

/* Each returns true on success; else it returns false and sets @error (nullable), which names the
 * call, the library's own text and the line.  Running out of device memory is EXEC_ERROR_MEMORY, a
 * missing or busy device EXEC_ERROR_MISSING, anything else EXEC_ERROR_FAILED. */
bool exec_cuda_ok(cudaError_t status, const char *call, const char *file, int line, GError **error);
bool exec_cublas_ok(cublasStatus_t status, const char *call, const char *file, int line,
                    GError **error);

/* TRY_CUDA(call, error) and TRY_CUBLAS(call, error) return false from the enclosing function when
 * the call fails. */
#define TRY_STATUS(is_ok, status, call, error)                                                     \
    do {                                                                                           \
        if (!is_ok((status), call, __FILE__, __LINE__, (error)))                                   \
            return false;                                                                          \
    } while (0)
#define TRY_CUDA(call, error) TRY_STATUS(exec_cuda_ok, call, #call, error)
#define TRY_CUBLAS(call, error) TRY_STATUS(exec_cublas_ok, call, #call, error)

/* --- device.c: which devices there are --- */

/* Whether @device can be used.  EXEC_ERROR_MISSING says in a sentence what is wrong: no driver, one
 * that is too old, no such device, or a device that is too old. */
bool exec_cuda_check_device(int device, GError **error);

/* Sets @capability to the device's compute capability: 90 is 9.0. */
bool exec_cuda_capability(int device, int *capability, GError **error);

/* ExecDevicePlugin's. */
bool exec_cuda_device_info(int device, ExecDeviceInfo *info, GError **error);

/* --- share.c: a part of the device's multiprocessors --- */

typedef struct {
    cudaStream_t stream;   /* (owned) its kernels run on the share's multiprocessors only */
    int n_multiprocessors; /* of the share */
    int n_on_device;
    int device;
    bool has_own_context; /* the green context is the thread's own, for the sake of events */
    char *note; /* (owned, nullable) why it is the whole device although a share was asked for */
    bool has_company; /* others compute in the same context, since there are no green ones */
} ExecCudaShare;

/*
 * Opens share @index of @n of @device: a stream of a green context.  For @n = 1, or where the
 * driver has no green contexts, it is a plain stream on the whole device (@note then says why). All
 * @n shares of a device are made at the first call with this @n and stay; shares of another @n use
 * the same multiprocessors as these.  Closed on the thread that opened it and that makes the rank's
 * events and streams: it may have got another context of its own meanwhile.
 */
bool exec_cuda_share_open(int device, int index, int n, ExecCudaShare *share, GError **error);
void exec_cuda_share_close(ExecCudaShare *share);

/* --- product.c: matrix products by cuBLASLt --- */

typedef struct ExecCudaProducts ExecCudaProducts;

/* Scratch memory of matrix products; cuBLAS recommends 32 MiB on Hopper [cuBLAS documentation,
 * cublasSetWorkspace()]. */
#define EXEC_CUDA_PRODUCT_BYTES (INT64_C(32) << 20)

/* What a bf16 product does in one pass; see ExecBackendOps.fuses. */
#define EXEC_CUDA_FUSES (EXEC_FUSES_GELU | EXEC_FUSES_GELU_INPUT | EXEC_FUSES_BIAS_GRADIENT)

/* @backend  (borrowed) whose stream, memory and workspace products use.
 * @n_multiprocessors  how many a product may count on; 0: all of the device.
 * @tunes  shapes are timed; else cuBLASLt's first proposal is used, always the same one. */
ExecCudaProducts *exec_cuda_products_new(ExecBackend *backend, int n_multiprocessors, bool tunes,
                                         GError **error);
bool exec_cuda_products_are_tuned(const ExecCudaProducts *products);
void exec_cuda_products_free(ExecCudaProducts *products);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecCudaProducts, exec_cuda_products_free)

/*
 * Queues the product and what follows it.  cuBLASLt proposes several kernels for a shape.  The
 * first time that the shape is met outside of a graph they are timed, on the operands at hand, and
 * a fused kernel against a bare one with kernels of our own behind it; the fastest is kept.  The
 * host waits for that.  From the second time on a shape costs one look-up.  What cuBLASLt has no
 * fused kernel for is done by kernels of our own.
 */
bool exec_cuda_product(ExecCudaProducts *products, const ExecGemm *gemm, GError **error);

/* --- clock.c: when work on a stream was done, on exec_now_ns()'s clock --- */

/*
 * Times of events are measured from an origin, an event whose time on the host's clock is known;
 * the two clocks drift apart over a step by far less than an op takes.  The origin moves on with
 * every reading, because CUDA gives the distance as a float of milliseconds: after an hour its
 * steps would be 0.25 ms.
 */
typedef struct ExecCudaClock ExecCudaClock;

/* @stream  in which the origin happens. */
ExecCudaClock *exec_cuda_clock_new(cudaStream_t stream, GError **error);
void exec_cuda_clock_free(ExecCudaClock *clock);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecCudaClock, exec_cuda_clock_free)
/* *ns becomes the time at which all that @stream has queued so far is done; it is there after the
 * first reading that follows. */
bool exec_cuda_clock_stamp(ExecCudaClock *clock, cudaStream_t stream, int64_t *ns, GError **error);
/* Reads the stamps of what has been done; stamps of streams that are still at work stay. */
bool exec_cuda_clock_read(ExecCudaClock *clock, GError **error);

/* --- a rank's backend --- */

/* Who looks after something else while the host waits for the device. */
typedef struct {
    /* Called about every 50 us with @waits true, and once with @waits false when the wait is over.
     * False, with an error, ends the wait. */
    bool (*look)(void *user_data, bool waits, GError **error);
    void *user_data; /* (borrowed) */
} ExecCudaWatch;

/* Graphs of work that is launched at once; backend.c. */
typedef struct {
    GHashTable *execs; /* (owned, nullable) key -> cudaGraphExec_t */
    bool captures;     /* work is being captured now, as a graph of the key below */
    int64_t key;       /* of the piece at work; the op's pieces have keys that follow each other */
    int n_pieces;      /* of the op, the one at work included */
    GPtrArray *to_release; /* (owned) memory that was released during the capture */
    cudaStream_t side;     /* (owned) in which memory is taken during a capture */
} ExecCudaGraphs;

/* A second queue beside that of the compute slots; backend.c. */
typedef struct {
    cudaStream_t stream; /* (owned) */
    cudaEvent_t begin;   /* (owned) what the compute slots had queued; used again at once */
    bool is_in;          /* between begin_aside() and end_aside() */
} ExecCudaAside;

typedef struct {
    int device;
    bool has_wgmma;       /* attention by kernels_hopper.cu */
    int max_shared_bytes; /* that a block can have */
    ExecCudaWatch watch;  /* look == NULL: nobody */
    ExecCudaGraphs graphs;
    ExecCudaShare share;
    ExecCudaAside aside;
    cudaMemPool_t pool;
    ExecCudaProducts *products; /* (owned) */
    void *product_workspace;    /* (owned) */
    float *scratch;             /* (owned) for reductions and attention */
    int64_t n_scratch;
    int64_t predicted_bytes; /* ExecBackendOptions.predicted_bytes */
    GError *error;           /* (owned, nullable) the first failure since synchronize() */
    ExecCudaClock *clock;    /* (owned) */
} ExecCudaState;

static inline ExecCudaState *
exec_cuda_state(const ExecBackend *backend)
{
    return backend->state;
}

/* The stream that slots queue in now. */
static inline cudaStream_t
exec_cuda_stream(const ExecBackend *backend)
{
    const ExecCudaState *state = exec_cuda_state(backend);

    return state->aside.is_in ? state->aside.stream : state->share.stream;
}

/* Failures inside slots, defined in backend.c: the first is kept for synchronize(). @error is
 * taken. */
void exec_cuda_keep_error(ExecCudaState *state, GError *error);
void exec_cuda_check(ExecCudaState *state, cudaError_t status, const char *call, const char *file,
                     int line);

/* Waits for @event; the second, or with NULL for @stream, while the state's watch looks after
 * something else.  Both are defined in backend.c. */
bool exec_cuda_wait_event(const ExecCudaState *state, cudaEvent_t event, GError **error);
bool exec_cuda_wait_watched(const ExecCudaState *state, cudaStream_t stream, cudaEvent_t event,
                            GError **error);

/* Opens a stream whose kernels, which are short and waited for, begin before those of the layers
 * when both could; defined in backend.c. */
bool exec_cuda_open_urgent(cudaStream_t *stream, GError **error);

/* In a slot: makes a call that queues work, and keeps what went wrong. */
#define QUEUE(backend, call)                                                                       \
    exec_cuda_check(exec_cuda_state(backend), (call), #call, __FILE__, __LINE__)

/* --- memory.c --- */

/* Makes the rank's pool, and takes from it the predicted peak (given back at once: the pool keeps
 * it) and the workspace of products.  False on EXEC_ERROR_MEMORY. */
bool exec_cuda_memory_open(ExecBackend *backend, GError **error);
/* Waits for the stream. */
void exec_cuda_memory_close(ExecCudaState *state);

/* Scratch memory of @n floats for one op.  When there is none, the failure is kept and NULL
 * returned. */
float *exec_cuda_scratch(ExecBackend *backend, int64_t n);

/* The slots of backend.h with these names. */
void *exec_cuda_alloc(ExecBackend *backend, size_t n_bytes, const char *what, GError **error);
void exec_cuda_release(ExecBackend *backend, void *memory);
void exec_cuda_upload(ExecBackend *backend, size_t n_bytes, const void *host, void *device);
void exec_cuda_download(ExecBackend *backend, size_t n_bytes, const void *device, void *host);
void exec_cuda_copy(ExecBackend *backend, size_t n_bytes, const void *x, void *y);
bool exec_cuda_post(ExecBackend *backend, const void *data, size_t n_bytes, ExecParcel *parcel,
                    GError **error);
void exec_cuda_fetch(ExecBackend *backend, const ExecParcel *parcel, size_t n_bytes, Dtype add,
                     void *to);
/* As exec_cuda_alloc(), in the order of @stream; the memory may be freed in any. */
void *exec_cuda_alloc_on(ExecBackend *backend, cudaStream_t stream, size_t n_bytes,
                         const char *what, GError **error);
