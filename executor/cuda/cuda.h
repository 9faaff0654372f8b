/*
 * executor/cuda/cuda.h - what the files of the CUDA backend share.
 *
 * A rank has a stream of its own on its share of the device; every slot queues work there and
 * returns.  Failures are kept (the first one) until synchronize() reports them, because slots
 * return nothing.  Device memory comes from a pool of the rank's own: after reserve() taking and
 * giving is arithmetic, without a call that could wait.
 *
 * Private to the CUDA plugin.
 */
#ifndef EXECUTOR_CUDA_CUDA_H
#define EXECUTOR_CUDA_CUDA_H

#include "executor/cuda/kernels.h"
#include "executor/device/try.h"

G_BEGIN_DECLS

/* Scratch memory of matrix products; cuBLAS asks for 32 MiB on Hopper. */
#define EXEC_CUDA_PRODUCT_BYTES (INT64_C(32) << 20)

/* --- cuda_status.c --- */

/* Whether @device can be used; no driver, one too old, no device, one too old: a sentence each. */
bool exec_cuda_check_device(int device, GError **error);

/* --- cuda_share.c: a part of the device's multiprocessors --- */

typedef struct {
    cudaStream_t stream;   /* (owned) its kernels run on the share's multiprocessors only */
    int n_multiprocessors; /* of the share */
    int n_on_device;
    char *note; /* (owned, nullable) why it is not a share although one was asked for */
} ExecCudaShare;

/*
 * Share @index of @n of @device: a green context's stream, or, for n = 1 or where the driver has no
 * green contexts, a plain stream (then @note says so).  All @n shares of a device are made at the
 * first call with this @n; other ways to cut the device share its multiprocessors with them.
 */
bool exec_cuda_share_open(int device, int index, int n, ExecCudaShare *share, GError **error);
void exec_cuda_share_close(ExecCudaShare *share);

/* --- cuda_product.c: matrix products by cuBLASLt --- */

typedef struct ExecCudaProducts ExecCudaProducts;

/* @workspace  (borrowed) device memory of EXEC_CUDA_PRODUCT_BYTES.
 * @n_multiprocessors  that products may count on; 0: all. */
ExecCudaProducts *exec_cuda_products_new(Dtype storage, void *workspace, int n_multiprocessors,
                                         cudaStream_t stream, GError **error);
void exec_cuda_products_free(ExecCudaProducts *products);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecCudaProducts, exec_cuda_products_free)

/*
 * The product and what follows it.  Plans are kept by shape, so that from the second time on a call
 * costs one look-up.  What cuBLASLt has no fused kernel for is done by kernels_*.cu.
 */
bool exec_cuda_product(ExecCudaProducts *products, const ExecGemm *gemm, GError **error);

/* What a bf16 product does in one pass. */
#define EXEC_CUDA_FUSES (EXEC_FUSES_GELU | EXEC_FUSES_GELU_INPUT)

/* --- cuda_clock.c: when work on the stream was done, on exec_now_ns()'s clock --- */

/*
 * Events count from an origin whose time on the host's clock is known; the two clocks' drift over a
 * step is far below an op.  The origin moves on with every reading, because the distance is a
 * float: after an hour its steps would be 0.25 ms.
 */
typedef struct ExecCudaClock ExecCudaClock;

/* @stream  of the origin. */
ExecCudaClock *exec_cuda_clock_new(cudaStream_t stream, GError **error);
void exec_cuda_clock_free(ExecCudaClock *clock);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecCudaClock, exec_cuda_clock_free)
/* *ns becomes the time of what @stream has queued by now, at the next reading after it. */
bool exec_cuda_clock_stamp(ExecCudaClock *clock, cudaStream_t stream, int64_t *ns, GError **error);
/* After one stream has been waited for; of another, stamps may remain. */
bool exec_cuda_clock_read(ExecCudaClock *clock, GError **error);

/* --- device.c: what a device and its software say about themselves --- */

/* ExecDevicePlugin's. */
bool exec_cuda_device_info(int device, ExecDeviceInfo *info, GError **error);

G_END_DECLS

#endif /* EXECUTOR_CUDA_CUDA_H */
