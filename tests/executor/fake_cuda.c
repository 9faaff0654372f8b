/*
 * tests/executor/fake_cuda.c - the CUDA runtime, driver and cuBLASLt functions that the cuda
 * backend calls, on the CPU: with gpu_on_host.cc it makes a degas-cuda.so that needs no GPU, so
 * that everything but the speed of the backend is tested.
 *
 * Streams, events and graphs are in fake_streams.c.  Device memory is host memory, filled with NaN,
 * and counted.  FAKE_CUDA, a list like "driver=0,memory=1000000", makes the device answer as broken
 * ones do:
 *   driver=N   version of the driver (0: none)       devices=N   how many there are
 *   capability=N  (90)                                memory=N    bytes on the device
 *   busy=1     another process has it                 green=0     a driver without green contexts
 *   launch=N   the N-th copy and every later one fails       name=N      it is an "NVIDIA HN"
 *   downloads=0  copies to the host fail              async=1   fake_streams.h
 *   graphs=0   streams cannot be captured             pinned=0    no host memory that it reads
 *   wgmma_wrong=1  products are                      wgmma_hang=1   kernels with them never end
 *   wgmma_us=N, mma_us=N   kernels with such products take so much longer
 *   foreign_events=0  streams take no events of another context; -1: those of green contexts
 *              take none
 *   capture_us=N   a capture takes so long
 *   fast_clock=N   the events' clock is so many thousandths faster than the host's
 *   shared=N   bytes of shared memory that a block can have
 *   proposals=N  of kernels for a product (1)         slow=N     ms that its first proposal takes
 * more
 */
#include <cublasLt.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/executor/fake_streams.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int64_t used_bytes, n_copies, n_downloads; /* under the mutex */

/* --- devices --- */

cudaError_t
cudaDriverGetVersion(int *version)
{
    *version = (int)fake_knob("driver", 13000);
    return cudaSuccess;
}

cudaError_t
cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t
cudaGetDeviceCount(int *count)
{
    if (fake_knob("driver", 13000) < CUDART_VERSION)
        return cudaErrorInsufficientDriver;
    *count = (int)fake_knob("devices", 1);
    return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
}

static _Thread_local int current_device;

cudaError_t
cudaGetDevice(int *device)
{
    *device = current_device;
    return cudaSuccess;
}

cudaError_t
cudaSetDevice(int device)
{
    current_device = device;
    fake_set_context(NULL);
    return fake_knob("busy", 0) ? cudaErrorDevicesUnavailable : cudaSuccess;
}

#define N_MULTIPROCESSORS 132

cudaError_t
cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    const int capability = (int)fake_knob("capability", 90);

    switch ((int)attribute) {
    case cudaDevAttrComputeCapabilityMajor:
        *value = capability / 10;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = capability % 10;
        return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
        *value = N_MULTIPROCESSORS;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = (int)fake_knob("shared", 227 << 10);
        return cudaSuccess;
    case cudaDevAttrL2CacheSize:
        *value = 1 << 16;
        return cudaSuccess;
    case cudaDevAttrClockRate:
        *value = 1500000; /* kHz */
        return cudaSuccess;
    case cudaDevAttrMemoryClockRate:
        *value = 2000000;
        return cudaSuccess;
    case cudaDevAttrGlobalMemoryBusWidth:
        *value = 4096;
        return cudaSuccess;
    default:
        return cudaErrorInvalidValue;
    }
}

cudaError_t
cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    memset(properties, 0, sizeof *properties);
    if (fake_knob("name", 0) > 0)
        snprintf(properties->name, sizeof properties->name, "NVIDIA H%d",
                 (int)fake_knob("name", 0));
    else
        snprintf(properties->name, sizeof properties->name, "emulated GPU");
    return cudaSuccess;
}

const char *
cudaGetErrorName(cudaError_t status)
{
    return status == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorX";
}

const char *
cudaGetErrorString(cudaError_t status)
{
    return status == cudaErrorLaunchFailure ? "unspecified launch failure" : "emulated failure";
}

cudaError_t
cudaGetLastError(void)
{
    return cudaSuccess;
}

cudaError_t
cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value)
{
    return cudaSuccess;
}

cudaError_t
cudaDeviceGetPCIBusId(char *bus, int n, int device)
{
    snprintf(bus, (size_t)n, "0000:%02x:00.0", device + 1);
    return cudaSuccess;
}

/* What a stream's work came to. */
cudaError_t fake_stream_status(void);

cudaError_t
fake_stream_status(void)
{
    return n_copies >= fake_knob("launch", INT64_MAX) ? cudaErrorLaunchFailure : cudaSuccess;
}

/* --- memory --- */

#define ARENA_BYTES ((size_t)64 << 20)

typedef struct {
    int64_t n_bytes;
    char pad[256 - sizeof(int64_t)];
} Header;

cudaError_t
cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *properties)
{
    fake_end_captures_of_others();
    *pool = malloc(1);
    return cudaSuccess;
}

cudaError_t
cudaMemPoolDestroy(cudaMemPool_t pool)
{
    fake_end_captures_of_others();
    free(pool);
    return cudaSuccess;
}

cudaError_t
cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    return cudaSuccess;
}

cudaError_t
cudaMemPoolTrimTo(cudaMemPool_t pool, size_t n_bytes)
{
    return cudaSuccess;
}

cudaError_t
cudaMemGetInfo(size_t *n_free, size_t *n_total)
{
    *n_total = (size_t)fake_knob("memory", INT64_C(1) << 36);
    *n_free = *n_total - (size_t)used_bytes;
    return cudaSuccess;
}

cudaError_t
cudaMallocFromPoolAsync(void **memory, size_t n_bytes, cudaMemPool_t pool, cudaStream_t stream)
{
    if (fake_stream_is_captured(stream)) /* a node of the graph, whose memory is the graph's */
        return cudaErrorStreamCaptureUnsupported;
    pthread_mutex_lock(&mutex);
    const bool fits = used_bytes + (int64_t)n_bytes <= fake_knob("memory", INT64_C(1) << 36);
    if (fits)
        used_bytes += (int64_t)n_bytes;
    pthread_mutex_unlock(&mutex);
    if (!fits)
        return cudaErrorMemoryAllocation;
    Header *header = aligned_alloc(256, sizeof *header + (n_bytes + 255) / 256 * 256);
    header->n_bytes = (int64_t)n_bytes;
    /* Bytes that nobody has written are NaN; of an arena, the beginning: touching all takes half a second. */
    memset(header + 1, 0xff, n_bytes < ARENA_BYTES ? n_bytes : ARENA_BYTES);
    *memory = header + 1;
    return cudaSuccess;
}

static void
free_memory(void *data)
{
    Header *header = *(Header **)data - 1;

    pthread_mutex_lock(&mutex);
    used_bytes -= header->n_bytes;
    pthread_mutex_unlock(&mutex);
    free(header);
}

cudaError_t
cudaFreeAsync(void *memory, cudaStream_t stream)
{
    fake_submit(stream, free_memory, &memory, sizeof memory);
    return cudaSuccess;
}

typedef struct {
    void *to;
    const void *from; /* NULL: what follows */
    size_t n_bytes;
} Copy;

static void
run_copy(void *data)
{
    const Copy *c = data;

    memmove(c->to, c->from != NULL ? c->from : c + 1, c->n_bytes);
}

/* --- host memory that the device reads by itself --- */

typedef struct Pinned Pinned;
struct Pinned {
    Pinned *next;
    size_t n_bytes;
    _Alignas(64) char bytes[];
};

static Pinned *pinned; /* under the mutex */

cudaError_t
cudaHostAlloc(void **memory, size_t n_bytes, unsigned flags)
{
    if (fake_knob("pinned", 1) == 0)
        return cudaErrorMemoryAllocation;
    fake_end_captures_of_others();
    Pinned *new = aligned_alloc(64, (sizeof *new + n_bytes + 63) / 64 * 64);
    new->n_bytes = n_bytes;
    memset(new->bytes, 0xff, n_bytes);
    pthread_mutex_lock(&mutex);
    new->next = pinned;
    pinned = new;
    pthread_mutex_unlock(&mutex);
    *memory = new->bytes;
    return cudaSuccess;
}

cudaError_t
cudaFreeHost(void *memory)
{
    pthread_mutex_lock(&mutex);
    Pinned **at = &pinned;
    while (*at != NULL && (*at)->bytes != memory)
        at = &(*at)->next;
    Pinned *found = *at;
    if (found != NULL)
        *at = found->next;
    pthread_mutex_unlock(&mutex);
    free(found);
    return found != NULL ? cudaSuccess : cudaErrorInvalidValue;
}

static bool
is_pinned(const char *memory)
{
    pthread_mutex_lock(&mutex);
    const Pinned *p = pinned;
    while (p != NULL && (memory < p->bytes || memory >= p->bytes + p->n_bytes))
        p = p->next;
    pthread_mutex_unlock(&mutex);
    return p != NULL;
}

/* From pageable memory, which may change at once: with the bytes themselves. */
static void
submit_upload(void *to, const void *from, size_t n_bytes, cudaStream_t stream)
{
    Copy *c = malloc(sizeof *c + n_bytes);

    *c = (Copy){to, NULL, n_bytes};
    memcpy(c + 1, from, n_bytes);
    fake_submit(stream, run_copy, c, sizeof *c + n_bytes);
    free(c);
}

cudaError_t
cudaMemcpyAsync(void *to, const void *from, size_t n_bytes, enum cudaMemcpyKind kind,
                cudaStream_t stream)
{
    const Copy copy = {to, from, n_bytes};

    pthread_mutex_lock(&mutex);
    n_copies++;
    n_downloads += kind == cudaMemcpyDeviceToHost;
    pthread_mutex_unlock(&mutex);
    if (kind == cudaMemcpyDeviceToHost && fake_knob("downloads", 1) == 0)
        return cudaErrorLaunchFailure;
    if (kind == cudaMemcpyHostToDevice && !is_pinned(from))
        submit_upload(to, from, n_bytes, stream);
    else
        fake_submit(stream, run_copy, &copy, sizeof copy);
    return cudaSuccess;
}

int64_t fake_n_downloads(void);

/* How often anything has been copied to the host so far. */
int64_t
fake_n_downloads(void)
{
    pthread_mutex_lock(&mutex);
    const int64_t n = n_downloads;
    pthread_mutex_unlock(&mutex);
    return n;
}

typedef struct {
    void *memory;
    int value;
    size_t n_bytes;
} Fill;

static void
run_fill(void *data)
{
    const Fill *f = data;

    memset(f->memory, f->value, f->n_bytes);
}

cudaError_t
cudaMemsetAsync(void *memory, int value, size_t n_bytes, cudaStream_t stream)
{
    const Fill fill = {memory, value, n_bytes};

    fake_submit(stream, run_fill, &fill, sizeof fill);
    return cudaSuccess;
}

/* --- driver functions --- */

/* Of fake_tensor_map.c. */
CUresult fake_tensor_map_encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                void *memory, const cuuint64_t *size, const cuuint64_t *stride,
                                const cuuint32_t *box, const cuuint32_t *every,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);

static CUresult
device_resource(CUdevice device, CUdevResource *resource, CUdevResourceType type)
{
    memset(resource, 0, sizeof *resource);
    resource->type = type;
    resource->sm.smCount = N_MULTIPROCESSORS;
    return CUDA_SUCCESS;
}

/* Hopper cuts multiples of 8. */
static CUresult
split(CUdevResource *parts, unsigned *n_parts, const CUdevResource *all, CUdevResource *rest,
      unsigned flags, unsigned least)
{
    const unsigned size = (least + 7) / 8 * 8;
    const unsigned n = all->sm.smCount / size < *n_parts ? all->sm.smCount / size : *n_parts;

    for (unsigned i = 0; i < n; i++) {
        parts[i] = *all;
        parts[i].sm.smCount = size;
    }
    *n_parts = n;
    return CUDA_SUCCESS;
}

static CUresult
describe_resource(CUdevResourceDesc *description, CUdevResource *resource, unsigned n)
{
    *description = NULL;
    return CUDA_SUCCESS;
}

static CUresult
create_context(CUgreenCtx *context, CUdevResourceDesc description, CUdevice device, unsigned flags)
{
    *context = malloc(1);
    return CUDA_SUCCESS;
}

static CUresult
create_stream(CUstream *stream, CUgreenCtx context, unsigned flags, int priority)
{
    *stream = fake_stream_new(context);
    return CUDA_SUCCESS;
}

static CUresult
context_of_green(CUcontext *context, CUgreenCtx green)
{
    *context = (CUcontext)green;
    return CUDA_SUCCESS;
}

static CUresult
set_current(CUcontext context)
{
    fake_set_context(context);
    return CUDA_SUCCESS;
}

cudaError_t
cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                 unsigned long long flags,
                                 enum cudaDriverEntryPointQueryResult *found)
{
    static const struct {
        const char *name;
        void (*function)(void);
    } functions[] = {
        {"cuDeviceGetDevResource", (void (*)(void))device_resource},
        {"cuDevSmResourceSplitByCount", (void (*)(void))split},
        {"cuDevResourceGenerateDesc", (void (*)(void))describe_resource},
        {"cuGreenCtxCreate", (void (*)(void))create_context},
        {"cuGreenCtxStreamCreate", (void (*)(void))create_stream},
        {"cuCtxFromGreenCtx", (void (*)(void))context_of_green},
        {"cuCtxSetCurrent", (void (*)(void))set_current},
        {"cuTensorMapEncodeTiled", (void (*)(void))fake_tensor_map_encode},
    };
    const bool is_green = strcmp(name, "cuTensorMapEncodeTiled") != 0;

    *found = cudaDriverEntryPointSymbolNotFound;
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++)
        if (strcmp(functions[i].name, name) == 0 && (!is_green || fake_knob("green", 1))) {
            memcpy(function, &functions[i].function, sizeof *function);
            *found = cudaDriverEntryPointSuccess;
        }
    return cudaSuccess;
}

/* --- cuBLASLt --- */

typedef struct {
    int32_t trans_a, trans_b, epilogue;
    void *bias, *aux;
    int64_t aux_ld;
} Operation;

typedef struct {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld;
} Layout;

size_t
cublasLtGetVersion(void)
{
    return 130000;
}

cublasStatus_t
cublasLtCreate(cublasLtHandle_t *handle)
{
    fake_end_captures_of_others();
    *handle = malloc(1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtDestroy(cublasLtHandle_t handle)
{
    fake_end_captures_of_others();
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

const char *
cublasLtGetStatusName(cublasStatus_t status)
{
    return "CUBLAS_STATUS_X";
}

cublasStatus_t
cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *operation, cublasComputeType_t compute,
                         cudaDataType_t scale)
{
    *operation = calloc(1, sizeof(Operation));
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation)
{
    free(operation);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                               cublasLtMatmulDescAttributes_t attribute, const void *value,
                               size_t n_bytes)
{
    Operation *o = (Operation *)operation;

    switch ((int)attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        memcpy(&o->trans_a, value, n_bytes);
        break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
        memcpy(&o->trans_b, value, n_bytes);
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        memcpy(&o->epilogue, value, n_bytes);
        break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        memcpy(&o->bias, value, n_bytes);
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        memcpy(&o->aux, value, n_bytes);
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        memcpy(&o->aux_ld, value, n_bytes);
        break;
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
        break;
    default:
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type, uint64_t rows,
                           uint64_t cols, int64_t ld)
{
    Layout *l = malloc(sizeof *l);

    *l = (Layout){type, rows, cols, ld};
    *layout = (cublasLtMatrixLayout_t)l;
    return (uint64_t)ld < rows ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    free(layout);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    *preference = malloc(1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    free(preference);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                     cublasLtMatmulPreferenceAttributes_t attribute,
                                     const void *value, size_t n_bytes)
{
    return CUBLAS_STATUS_SUCCESS;
}

/* Has nothing for fused epilogues of more than 64 columns, so that the ways around are tested. Like
 * the library, it wants to see the epilogue's pointers, and has sums of the columns of A only where
 * that is not transposed. */
cublasStatus_t
cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                               cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                               cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                               cublasLtMatmulPreference_t preference, int n_asked,
                               cublasLtMatmulHeuristicResult_t *results, int *n_results)
{
    const Operation *o = (const Operation *)operation;

    const int64_t n = fake_knob("proposals", 1);

    *n_results = 0;
    if ((o->epilogue == CUBLASLT_EPILOGUE_BGRADA && (o->trans_a || o->bias == NULL)) ||
        (o->epilogue != CUBLASLT_EPILOGUE_DEFAULT && ((const Layout *)c)->rows > 64))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    for (; *n_results < n_asked && *n_results < n; ++*n_results) {
        memset(&results[*n_results], 0, sizeof *results);
        results[*n_results].algo.data[0] = (uint64_t)*n_results;
    }
    return CUBLAS_STATUS_SUCCESS;
}

static float
load(const Layout *l, const void *x, int64_t row, int64_t col)
{
    const int64_t at = col * l->ld + row;
    uint32_t bits;
    float value;

    if (l->type == CUDA_R_32F)
        return ((const float *)x)[at];
    bits = (uint32_t)((const uint16_t *)x)[at] << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void
store(const Layout *l, void *x, int64_t row, int64_t col, float value)
{
    const int64_t at = col * l->ld + row;
    uint32_t bits;

    if (l->type == CUDA_R_32F) {
        ((float *)x)[at] = value;
        return;
    }
    memcpy(&bits, &value, sizeof bits);
    ((uint16_t *)x)[at] =
        value != value ? 0x7fff : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static double
gelu(double x)
{
    return 0.5 * x * (1.0 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

static double
gelu_slope(double x)
{
    const double t = tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x));

    return 0.5 * (1.0 + t) +
           0.5 * x * (1.0 - t * t) * 0.79788456080286535588 * (1.0 + 3.0 * 0.044715 * x * x);
}

typedef struct {
    Operation operation;
    Layout a_layout, b_layout, c_layout, d_layout;
    const void *a, *b, *c;
    void *d;
    float alpha, beta;
    uint64_t proposal;
} Product;

static void
run_product(void *data)
{
    const Product *p = data;
    const Operation *o = &p->operation;
    const Layout *la = &p->a_layout, *lb = &p->b_layout, *lc = &p->c_layout, *ld = &p->d_layout;
    const Layout aux = {ld->type, ld->rows, ld->cols, o->aux_ld};
    const Layout bias = {ld->type, ld->rows, 1, (int64_t)ld->rows};
    const bool has_bias =
        o->epilogue == CUBLASLT_EPILOGUE_BIAS || o->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    const bool has_gelu =
        o->epilogue == CUBLASLT_EPILOGUE_GELU_AUX || o->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    const int64_t n_inner = (int64_t)(o->trans_a ? la->rows : la->cols);

    if (p->proposal == 0 && fake_knob("slow", 0) > 0)
        usleep((useconds_t)fake_knob("slow", 0) * 1000);
    if (o->epilogue == CUBLASLT_EPILOGUE_BGRADA) /* written, not added */
        for (int64_t row = 0; row < (int64_t)ld->rows; row++) {
            double sum = 0;
            for (int64_t i = 0; i < n_inner; i++)
                sum += (double)load(la, p->a, row, i);
            store(&bias, o->bias, row, 0, (float)sum);
        }
    for (int64_t col = 0; col < (int64_t)ld->cols; col++)
        for (int64_t row = 0; row < (int64_t)ld->rows; row++) {
            double sum = 0;
            for (int64_t i = 0; i < n_inner; i++)
                sum += (double)(o->trans_a ? load(la, p->a, i, row) : load(la, p->a, row, i)) *
                       (double)(o->trans_b ? load(lb, p->b, col, i) : load(lb, p->b, i, col));
            sum *= (double)p->alpha;
            if (p->beta != 0.0f)
                sum += (double)(p->beta * load(lc, p->c, row, col));
            if (has_bias)
                sum += (double)load(&bias, o->bias, row, 0);
            if (o->epilogue == CUBLASLT_EPILOGUE_DGELU)
                sum *= gelu_slope((double)load(&aux, o->aux, row, col));
            if (has_gelu) {
                store(&aux, o->aux, row, col, (float)sum);
                sum = gelu(sum);
            }
            store(ld, p->d, row, col, (float)sum);
        }
}

cublasStatus_t
cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void *alpha,
               const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
               cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
               cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
               const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t n_workspace,
               cudaStream_t stream)
{
    const Product product = {
        .operation = *(const Operation *)operation,
        .a_layout = *(const Layout *)a_layout,
        .b_layout = *(const Layout *)b_layout,
        .c_layout = *(const Layout *)c_layout,
        .d_layout = *(const Layout *)d_layout,
        .a = a,
        .b = b,
        .c = c,
        .d = d,
        .alpha = *(const float *)alpha,
        .beta = *(const float *)beta,
        .proposal = algorithm->data[0],
    };

    fake_submit(stream, run_product, &product, sizeof product);
    return CUBLAS_STATUS_SUCCESS;
}
