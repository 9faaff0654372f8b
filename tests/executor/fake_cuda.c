/*
 * tests/executor/fake_cuda.c - the CUDA runtime, driver and cuBLASLt functions that the cuda
 * backend calls, on the CPU: with gpu_on_host.cc it makes a degas-cuda.so that needs no GPU, so
 * that everything but the speed of the backend is tested.
 *
 * Streams do their work at once.  Device memory is host memory, filled with NaN, and counted.
 * FAKE_CUDA, a list like "driver=0,memory=1000000", makes the device answer as broken ones do:
 *   driver=N   version of the driver (0: none)       devices=N   how many there are
 *   capability=N  (90)                                memory=N    bytes on the device
 *   busy=1     another process has it                 green=0     a driver without green contexts
 *   launch=N   the N-th copy and every later one fails
 *   downloads=0  copies to the host fail
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
#include <time.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int64_t used_bytes, n_copies;

static int64_t
knob(const char *name, int64_t standard)
{
    const char *list = getenv("FAKE_CUDA");
    const size_t n = strlen(name);

    for (const char *at = list; at != NULL && *at != '\0';) {
        if (strncmp(at, name, n) == 0 && at[n] == '=')
            return strtoll(at + n + 1, NULL, 10);
        at = strchr(at, ',');
        at = at == NULL ? NULL : at + 1;
    }
    return standard;
}

/* --- devices --- */

cudaError_t
cudaDriverGetVersion(int *version)
{
    *version = (int)knob("driver", 13000);
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
    if (knob("driver", 13000) < CUDART_VERSION)
        return cudaErrorInsufficientDriver;
    *count = (int)knob("devices", 1);
    return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
}

cudaError_t
cudaSetDevice(int device)
{
    return knob("busy", 0) ? cudaErrorDevicesUnavailable : cudaSuccess;
}

#define N_MULTIPROCESSORS 132

cudaError_t
cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    const int capability = (int)knob("capability", 90);

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
    default:
        return cudaErrorInvalidValue;
    }
}

cudaError_t
cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    memset(properties, 0, sizeof *properties);
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

/* --- streams and events --- */

cudaError_t
cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    *stream = malloc(1);
    return cudaSuccess;
}

cudaError_t
cudaStreamDestroy(cudaStream_t stream)
{
    free(stream);
    return cudaSuccess;
}

cudaError_t
cudaStreamSynchronize(cudaStream_t stream)
{
    return n_copies >= knob("launch", INT64_MAX) ? cudaErrorLaunchFailure : cudaSuccess;
}

/* An event is the time at which it was recorded; the stream has no work left then. */
cudaError_t
cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    *event = calloc(1, sizeof(struct timespec));
    return cudaSuccess;
}

cudaError_t
cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, 0);
}

cudaError_t
cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    return cudaSuccess;
}

cudaError_t
cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    clock_gettime(CLOCK_MONOTONIC, (struct timespec *)event);
    return cudaSuccess;
}

cudaError_t
cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    const struct timespec *a = (const struct timespec *)from, *b = (const struct timespec *)to;

    *ms = (float)((double)(b->tv_sec - a->tv_sec) * 1e3 + (double)(b->tv_nsec - a->tv_nsec) * 1e-6);
    return cudaSuccess;
}

cudaError_t
cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    return cudaSuccess;
}

/* --- memory --- */

typedef struct {
    int64_t n_bytes;
    char pad[256 - sizeof(int64_t)];
} Header;

cudaError_t
cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *properties)
{
    *pool = malloc(1);
    return cudaSuccess;
}

cudaError_t
cudaMemPoolDestroy(cudaMemPool_t pool)
{
    free(pool);
    return cudaSuccess;
}

cudaError_t
cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    return cudaSuccess;
}

cudaError_t
cudaMemGetInfo(size_t *n_free, size_t *n_total)
{
    *n_total = (size_t)knob("memory", INT64_C(1) << 36);
    *n_free = *n_total - (size_t)used_bytes;
    return cudaSuccess;
}

cudaError_t
cudaMallocFromPoolAsync(void **memory, size_t n_bytes, cudaMemPool_t pool, cudaStream_t stream)
{
    pthread_mutex_lock(&mutex);
    const bool fits = used_bytes + (int64_t)n_bytes <= knob("memory", INT64_C(1) << 36);
    if (fits)
        used_bytes += (int64_t)n_bytes;
    pthread_mutex_unlock(&mutex);
    if (!fits)
        return cudaErrorMemoryAllocation;
    Header *header = aligned_alloc(256, sizeof *header + (n_bytes + 255) / 256 * 256);
    header->n_bytes = (int64_t)n_bytes;
    memset(header + 1, 0xff, n_bytes);
    *memory = header + 1;
    return cudaSuccess;
}

cudaError_t
cudaFreeAsync(void *memory, cudaStream_t stream)
{
    Header *header = (Header *)memory - 1;

    pthread_mutex_lock(&mutex);
    used_bytes -= header->n_bytes;
    pthread_mutex_unlock(&mutex);
    free(header);
    return cudaSuccess;
}

cudaError_t
cudaMemcpyAsync(void *to, const void *from, size_t n_bytes, enum cudaMemcpyKind kind,
                cudaStream_t stream)
{
    pthread_mutex_lock(&mutex);
    n_copies++;
    pthread_mutex_unlock(&mutex);
    if (kind == cudaMemcpyDeviceToHost && knob("downloads", 1) == 0)
        return cudaErrorLaunchFailure;
    memmove(to, from, n_bytes);
    return cudaSuccess;
}

cudaError_t
cudaMemsetAsync(void *memory, int value, size_t n_bytes, cudaStream_t stream)
{
    memset(memory, value, n_bytes);
    return cudaSuccess;
}

/* --- green contexts --- */

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
    *stream = malloc(1);
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
    };

    *found = cudaDriverEntryPointSymbolNotFound;
    for (size_t i = 0; i < sizeof functions / sizeof functions[0] && knob("green", 1); i++)
        if (strcmp(functions[i].name, name) == 0) {
            memcpy(function, &functions[i].function, sizeof *function);
            *found = cudaDriverEntryPointSuccess;
        }
    return cudaSuccess;
}

/* --- cuBLASLt --- */

typedef struct {
    int32_t trans_a, trans_b, epilogue;
    const void *bias;
    void *aux;
    int64_t aux_ld;
} Operation;

typedef struct {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld;
} Layout;

cublasStatus_t
cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = malloc(1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtDestroy(cublasLtHandle_t handle)
{
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

/* Has nothing for fused epilogues of more than 64 columns, so that the ways around are tested. */
cublasStatus_t
cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                               cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                               cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                               cublasLtMatmulPreference_t preference, int n_asked,
                               cublasLtMatmulHeuristicResult_t *results, int *n_results)
{
    const Operation *o = (const Operation *)operation;

    memset(results, 0, sizeof *results);
    *n_results =
        o->epilogue == CUBLASLT_EPILOGUE_DEFAULT || ((const Layout *)c)->rows <= 64 ? 1 : 0;
    return *n_results > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
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

cublasStatus_t
cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void *alpha,
               const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
               cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
               cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
               const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t n_workspace,
               cudaStream_t stream)
{
    const Operation *o = (const Operation *)operation;
    const Layout *la = (const Layout *)a_layout, *lb = (const Layout *)b_layout;
    const Layout *lc = (const Layout *)c_layout, *ld = (const Layout *)d_layout;
    const Layout aux = {ld->type, ld->rows, ld->cols, o->aux_ld};
    const Layout bias = {ld->type, ld->rows, 1, (int64_t)ld->rows};
    const bool has_bias =
        o->epilogue == CUBLASLT_EPILOGUE_BIAS || o->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    const bool has_gelu =
        o->epilogue == CUBLASLT_EPILOGUE_GELU_AUX || o->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    const int64_t n_inner = (int64_t)(o->trans_a ? la->rows : la->cols);

    for (int64_t col = 0; col < (int64_t)ld->cols; col++)
        for (int64_t row = 0; row < (int64_t)ld->rows; row++) {
            double sum = 0;
            for (int64_t i = 0; i < n_inner; i++)
                sum += (double)(o->trans_a ? load(la, a, i, row) : load(la, a, row, i)) *
                       (double)(o->trans_b ? load(lb, b, col, i) : load(lb, b, i, col));
            sum *= (double)*(const float *)alpha;
            if (*(const float *)beta != 0.0f)
                sum += (double)(*(const float *)beta * load(lc, c, row, col));
            if (has_bias)
                sum += (double)load(&bias, o->bias, row, 0);
            if (o->epilogue == CUBLASLT_EPILOGUE_DGELU)
                sum *= gelu_slope((double)load(&aux, o->aux, row, col));
            if (has_gelu) {
                store(&aux, o->aux, row, col, (float)sum);
                sum = gelu(sum);
            }
            store(ld, d, row, col, (float)sum);
        }
    return CUBLAS_STATUS_SUCCESS;
}
