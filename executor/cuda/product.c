#include "executor/cuda/cuda.h"

#include <math.h>
#include <string.h>

/* Row-major C[m,n] = A B is, read by columns, C^T[n,m] = B^T A^T: cuBLASLt's left operand is our B,
 * its right one our A, and the strides stay. */

/* How many of cuBLASLt's proposals are timed, how often each, and by how much one has to be faster
 * than those before it: times of short products vary by some percent. */
#define N_PROPOSALS 8
#define N_REPEATS 4
#define GAIN 0.97f

/* What a plan depends on.  Keys are compared as bytes, so there is no padding. */
typedef struct {
    int64_t m, n, k, lda, ldb, ldc;
    int32_t trans_a, trans_b, adds, c_fp32, epilogue, unused;
    int32_t alignment_bytes[6]; /* of A, B and the members of Operands: 256, 16 or what is less */
} Key;
G_STATIC_ASSERT(sizeof(Key) == 6 * sizeof(int64_t) + 12 * sizeof(int32_t));

typedef struct {
    Key key;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c;
    int n_proposals; /* 0: cuBLASLt has no kernel for this key, or what replaces it is faster */
    cublasLtMatmulAlgo_t proposals[N_PROPOSALS]; /* the first is used */
    bool is_timed;
} ProductPlan;

/* What a product reads and writes besides A and B. */
typedef struct {
    const void *added;
    void *result;
    void *bias; /* that is added, or becomes the sums of the columns of B */
    void *aux;  /* the epilogue's second matrix */
} Operands;

struct ExecCudaProducts {
    ExecBackend *backend; /* (borrowed) */
    cublasLtHandle_t handle;
    int n_multiprocessors;
    bool tunes;
    cudaEvent_t begin, end; /* (owned, nullable) of what is timed */
    GHashTable *plans;      /* Key of a ProductPlan -> it (owned) */
};

/* --- plans by shape --- */

static guint
hash_key(gconstpointer data)
{
    const unsigned char *bytes = data;
    guint hash = 2166136261u; /* FNV-1a */

    for (size_t i = 0; i < sizeof(Key); i++)
        hash = (hash ^ bytes[i]) * 16777619u;
    return hash;
}

static gboolean
equal_keys(gconstpointer a, gconstpointer b)
{
    return memcmp(a, b, sizeof(Key)) == 0;
}

static void
free_plan(gpointer data)
{
    ProductPlan *plan = data;

    if (plan->operation != NULL)
        cublasLtMatmulDescDestroy(plan->operation);
    if (plan->a != NULL)
        cublasLtMatrixLayoutDestroy(plan->a);
    if (plan->b != NULL)
        cublasLtMatrixLayoutDestroy(plan->b);
    if (plan->c != NULL)
        cublasLtMatrixLayoutDestroy(plan->c);
    g_free(plan);
}

ExecCudaProducts *
exec_cuda_products_new(ExecBackend *backend, int n_multiprocessors, bool tunes, GError **error)
{
    cublasLtHandle_t handle = NULL;

    if (!exec_cublas_ok(cublasLtCreate(&handle), "cublasLtCreate", __FILE__, __LINE__, error))
        return NULL;
    ExecCudaProducts *products = g_new0(ExecCudaProducts, 1);
    *products = (ExecCudaProducts){
        .backend = backend,
        .handle = handle,
        .n_multiprocessors = n_multiprocessors,
        .tunes = tunes,
        .plans = g_hash_table_new_full(hash_key, equal_keys, NULL, free_plan),
    };
    return products;
}

bool
exec_cuda_products_are_tuned(const ExecCudaProducts *products)
{
    return products->tunes;
}

void
exec_cuda_products_free(ExecCudaProducts *products)
{
    if (products == NULL)
        return;
    if (products->begin != NULL)
        cudaEventDestroy(products->begin);
    if (products->end != NULL)
        cudaEventDestroy(products->end);
    g_hash_table_unref(products->plans);
    cublasLtDestroy(products->handle);
    g_free(products);
}

/* --- making a plan --- */

static cudaDataType_t
data_type(Dtype dtype)
{
    return dtype == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* Sets an attribute of a product's description to the value of a variable. */
#define SET(description, attribute, value)                                                         \
    TRY_CUBLAS(cublasLtMatmulDescSetAttribute(description, attribute, &(value), sizeof(value)),    \
               error)

static bool
set_operation(const ExecCudaProducts *p, ProductPlan *plan, GError **error)
{
    const cublasOperation_t of_b = plan->key.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t of_a = plan->key.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t epilogue = plan->key.epilogue, sms = p->n_multiprocessors;
    const int64_t aux_ld = plan->key.n;

    TRY_CUBLAS(cublasLtMatmulDescCreate(&plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), error);
    SET(plan->operation, CUBLASLT_MATMUL_DESC_TRANSA, of_b);
    SET(plan->operation, CUBLASLT_MATMUL_DESC_TRANSB, of_a);
    SET(plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    if (sms > 0)
        SET(plan->operation, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, sms);
    if (epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
        epilogue == CUBLASLT_EPILOGUE_DGELU)
        SET(plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, aux_ld);
    return true;
}

static bool
set_layouts(const ExecCudaProducts *p, ProductPlan *plan, GError **error)
{
    const Key *k = &plan->key;
    const cudaDataType_t in = data_type(p->backend->storage), out = k->c_fp32 ? CUDA_R_32F : in;

    TRY_CUBLAS(cublasLtMatrixLayoutCreate(&plan->b, in, (uint64_t)(k->trans_b ? k->k : k->n),
                                          (uint64_t)(k->trans_b ? k->n : k->k), k->ldb),
               error);
    TRY_CUBLAS(cublasLtMatrixLayoutCreate(&plan->a, in, (uint64_t)(k->trans_a ? k->m : k->k),
                                          (uint64_t)(k->trans_a ? k->k : k->m), k->lda),
               error);
    TRY_CUBLAS(cublasLtMatrixLayoutCreate(&plan->c, out, (uint64_t)k->n, (uint64_t)k->m, k->ldc),
               error);
    return true;
}

static bool
set_preference(const Key *key, cublasLtMatmulPreference_t preference, GError **error)
{
    const uint64_t workspace = EXEC_CUDA_PRODUCT_BYTES;
    /* In cuBLASLt's order: its A is our B. */
    const uint32_t alignment[4] = {
        (uint32_t)key->alignment_bytes[1], (uint32_t)key->alignment_bytes[0],
        (uint32_t)key->alignment_bytes[2], (uint32_t)key->alignment_bytes[3]};
    static const cublasLtMatmulPreferenceAttributes_t attributes[4] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};

    TRY_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference,
                                                    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                    &workspace, sizeof workspace),
               error);
    for (size_t i = 0; i < G_N_ELEMENTS(alignment); i++)
        TRY_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, attributes[i], &alignment[i],
                                                        sizeof alignment[i]),
                   error);
    return true;
}

/* What the library proposes, the best by its own judgement first. */
static bool
ask_for_proposals(const ExecCudaProducts *p, ProductPlan *plan, GError **error)
{
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t results[N_PROPOSALS];

    TRY_CUBLAS(cublasLtMatmulPreferenceCreate(&preference), error);
    const bool ok = set_preference(&plan->key, preference, error);
    if (ok && cublasLtMatmulAlgoGetHeuristic(p->handle, plan->operation, plan->b, plan->a, plan->c,
                                             plan->c, preference, p->tunes ? N_PROPOSALS : 1,
                                             results, &plan->n_proposals) != CUBLAS_STATUS_SUCCESS)
        plan->n_proposals = 0;
    for (int i = 0; i < plan->n_proposals; i++)
        plan->proposals[i] = results[i].algo;
    cublasLtMatmulPreferenceDestroy(preference);
    return ok;
}

/* --- a product --- */

static int32_t
alignment_of(const void *pointer)
{
    const uintptr_t lowest = (uintptr_t)pointer & -(uintptr_t)pointer;

    return pointer == NULL || lowest >= 256 ? 256 : (int32_t)MIN(lowest, 16);
}

static cudaStream_t
stream_of(const ExecCudaProducts *p)
{
    return exec_cuda_state(p->backend)->share.stream;
}

/* Scratch of our column sums, and behind it room for the sums of @g's columns; NULL when there is
 * none. */
static float *
sums_scratch(const ExecCudaProducts *p, const ExecGemm *g)
{
    return exec_cuda_scratch(p->backend, KERNELS_BIAS_SCRATCH_FLOATS + g->n);
}

/* The epilogue that does as much as there is one for of what follows @g. */
static int32_t
fused_epilogue(const ExecCudaProducts *p, const ExecGemm *g)
{
    /* Its auxiliary matrix is read 16 bytes at a time. */
    const bool aux_fits = p->backend->storage == DTYPE_BF16 && g->n % 8 == 0 && !g->c_fp32;

    if (g->gelu != NULL)
        return !aux_fits || g->residual != NULL ? CUBLASLT_EPILOGUE_DEFAULT
               : g->bias != NULL                ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS
                                                : CUBLASLT_EPILOGUE_GELU_AUX;
    if (g->gelu_input != NULL)
        return aux_fits && g->bias == NULL ? CUBLASLT_EPILOGUE_DGELU : CUBLASLT_EPILOGUE_DEFAULT;
    if (g->bias_gradient != NULL) /* of cuBLASLt's A, which may not be transposed */
        return g->trans_b ? CUBLASLT_EPILOGUE_DEFAULT : CUBLASLT_EPILOGUE_BGRADA;
    return g->bias != NULL && !g->c_fp32 ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

static Operands
operands_of(const ExecCudaProducts *p, const ExecGemm *g, int32_t epilogue)
{
    Operands o = {g->residual != NULL ? g->residual : g->c, g->c, NULL, NULL};

    if (epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
        o.result = g->gelu;
        o.aux = g->c;
    }
    if (epilogue == CUBLASLT_EPILOGUE_DGELU)
        o.aux = (void *)g->gelu_input;
    if (epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS)
        o.bias = (void *)g->bias;
    if (epilogue == CUBLASLT_EPILOGUE_BGRADA)
        o.bias = sums_scratch(p, g) + KERNELS_BIAS_SCRATCH_FLOATS;
    return o;
}

static bool
set_pointers(const ProductPlan *plan, const Operands *o, GError **error)
{
    if (o->bias != NULL)
        SET(plan->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, o->bias);
    if (o->aux != NULL)
        SET(plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, o->aux);
    return true;
}

static bool
adds(const ExecGemm *g)
{
    return g->accumulate || g->residual != NULL;
}

/* Returns: (borrowed, nullable) the plan of @g with @epilogue; NULL with @error set. */
static ProductPlan *
plan_for(ExecCudaProducts *p, const ExecGemm *g, int32_t epilogue, GError **error)
{
    const Operands o = operands_of(p, g, epilogue);
    const Key key = {
        .m = g->m,
        .n = g->n,
        .k = g->k,
        .lda = g->lda,
        .ldb = g->ldb,
        .ldc = g->ldc,
        .trans_a = g->trans_a,
        .trans_b = g->trans_b,
        .adds = adds(g),
        .c_fp32 = g->c_fp32,
        .epilogue = epilogue,
        .alignment_bytes = {alignment_of(g->a), alignment_of(g->b), alignment_of(o.added),
                            alignment_of(o.result), alignment_of(o.bias), alignment_of(o.aux)},
    };
    ProductPlan *plan = g_hash_table_lookup(p->plans, &key);

    if (plan != NULL)
        return plan;
    plan = g_new0(ProductPlan, 1);
    memcpy(&plan->key, &key, sizeof key);
    /* Proposals depend on how the pointers are aligned. */
    if (!set_operation(p, plan, error) || !set_layouts(p, plan, error) ||
        !set_pointers(plan, &o, error) || !ask_for_proposals(p, plan, error)) {
        free_plan(plan);
        return NULL;
    }
    g_hash_table_insert(p->plans, &plan->key, plan);
    return plan;
}

/* What the plan's epilogue leaves to do after the product, in passes of their own. */
static bool
follow(const ExecCudaProducts *p, const ProductPlan *plan, const ExecGemm *g, GError **error)
{
    const Dtype storage = p->backend->storage, out = g->c_fp32 ? DTYPE_FP32 : storage;
    const cudaStream_t stream = stream_of(p);
    float *const scratch = g->bias_gradient == NULL ? NULL : sums_scratch(p, g);

    /* cuBLASLt writes the sums and cannot add them. */
    if (plan->key.epilogue == CUBLASLT_EPILOGUE_BGRADA)
        TRY_CUDA(kernels_add(DTYPE_FP32, g->n, scratch + KERNELS_BIAS_SCRATCH_FLOATS,
                             g->bias_gradient, stream),
                 error);
    if (plan->key.epilogue != CUBLASLT_EPILOGUE_DEFAULT)
        return true;
    TRY_CUDA(kernels_bias_residual(out, g->m, g->n, g->bias, NULL, g->c, g->ldc, stream), error);
    if (g->gelu != NULL)
        TRY_CUDA(kernels_gelu_forward(storage, g->m * g->n, g->c, g->gelu, stream), error);
    if (g->gelu_input != NULL)
        TRY_CUDA(kernels_gelu_backward(storage, g->m * g->n, g->gelu_input, g->c, stream), error);
    if (g->bias_gradient != NULL)
        TRY_CUDA(kernels_bias_backward(storage, g->k, g->n, g->b, g->ldb, g->bias_gradient, scratch,
                                       stream),
                 error);
    return true;
}

/* By the plan's proposal @i, and what follows it.  @status  (out) cuBLASLt's answer; unless that is
 * a success nothing was queued. */
static bool
multiply(const ExecCudaProducts *p, const ProductPlan *plan, const ExecGemm *g, int i,
         cublasStatus_t *status, GError **error)
{
    const Operands o = operands_of(p, g, plan->key.epilogue);
    const float one = 1.0f, beta = adds(g) ? 1.0f : 0.0f;

    if (!set_pointers(plan, &o, error))
        return false;
    *status = cublasLtMatmul(p->handle, plan->operation, &one, g->b, plan->b, g->a, plan->a, &beta,
                             o.added, plan->c, o.result, plan->c, &plan->proposals[i],
                             exec_cuda_state(p->backend)->product_workspace,
                             EXEC_CUDA_PRODUCT_BYTES, stream_of(p));
    return *status != CUBLAS_STATUS_SUCCESS || follow(p, plan, g, error);
}

/* --- choosing the fastest --- */

/* *ms becomes the time of N_REPEATS products by proposal @i, with what follows them. */
static bool
time_proposal(const ExecCudaProducts *p, const ProductPlan *plan, const ExecGemm *g, int i,
              float *ms, GError **error)
{
    cublasStatus_t status;

    *ms = INFINITY;
    for (int n = -1; n < N_REPEATS; n++) { /* the one before may have to load the kernel */
        if (n == 0)
            TRY_CUDA(cudaEventRecord(p->begin, stream_of(p)), error);
        if (!multiply(p, plan, g, i, &status, error))
            return false;
        if (status != CUBLAS_STATUS_SUCCESS)
            return true;
    }
    TRY_CUDA(cudaEventRecord(p->end, stream_of(p)), error);
    if (!exec_cuda_wait_event(exec_cuda_state(p->backend), p->end, error))
        return false;
    TRY_CUDA(cudaEventElapsedTime(ms, p->begin, p->end), error);
    return true;
}

/* Makes the fastest proposal of the plan its first; *ms becomes its time. */
static bool
time_plan(const ExecCudaProducts *p, ProductPlan *plan, const ExecGemm *g, float *ms,
          GError **error)
{
    int fastest = 0;

    plan->is_timed = true;
    *ms = INFINITY;
    for (int i = 0; i < plan->n_proposals; i++) {
        float one_ms;
        if (!time_proposal(p, plan, g, i, &one_ms, error))
            return false;
        if (one_ms < GAIN * *ms) {
            *ms = one_ms;
            fastest = i;
        }
    }
    if (isinf(*ms))
        plan->n_proposals = 0;
    plan->proposals[0] = plan->proposals[fastest];
    return true;
}

/* Times the plan, and if it is fused, too, the bare product with followers, which replaces it where
 * it is faster. */
static bool
time_both(ExecCudaProducts *p, ProductPlan *plan, const ExecGemm *g, const ExecGemm *trial,
          GError **error)
{
    float ms, bare_ms;

    if (p->begin == NULL)
        TRY_CUDA(cudaEventCreate(&p->begin), error);
    if (p->end == NULL)
        TRY_CUDA(cudaEventCreate(&p->end), error);
    if (!time_plan(p, plan, trial, &ms, error))
        return false;
    if (plan->key.epilogue == CUBLASLT_EPILOGUE_DEFAULT)
        return true;
    ProductPlan *bare = plan_for(p, g, CUBLASLT_EPILOGUE_DEFAULT, error);
    if (bare == NULL || !time_plan(p, bare, trial, &bare_ms, error))
        return false;
    if (bare_ms < GAIN * ms)
        plan->n_proposals = 0;
    return true;
}

/* The product itself, which follows, overwrites what the trials write; where it adds, they write
 * elsewhere.  Without memory for that, cuBLASLt's first proposal stays. */
static bool
tune(ExecCudaProducts *p, ProductPlan *plan, const ExecGemm *g, GError **error)
{
    const ExecCudaState *state = exec_cuda_state(p->backend);
    const int64_t n = (g->m - 1) * g->ldc + g->n, n_sums = (g->n + 63) / 64 * 64;
    ExecGemm trial = *g;

    plan->is_timed = true;
    if (!g->accumulate && g->bias_gradient == NULL)
        return time_both(p, plan, g, &trial, error);
    float *elsewhere = exec_cuda_alloc(
        p->backend, (size_t)(n_sums * 4 + n * (g->c_fp32 ? 4 : dtype_bytes(p->backend->storage))),
        "trials of a product", NULL);
    if (elsewhere == NULL)
        return true;
    trial.c = elsewhere + n_sums;
    if (g->bias_gradient != NULL)
        trial.bias_gradient = elsewhere;
    const bool ok = time_both(p, plan, g, &trial, error);
    exec_cuda_release(p->backend, elsewhere);
    QUEUE(p->backend, cudaStreamSynchronize(stream_of(p)));
    /* What the pool has beyond the predicted peak goes back to the device, which other ranks may
     * share. */
    QUEUE(p->backend, cudaMemPoolTrimTo(state->pool, (size_t)state->predicted_bytes));
    return ok;
}

/* Returns: (borrowed, nullable) the plan that @g is computed by; NULL with @error set. */
static ProductPlan *
chosen_plan(ExecCudaProducts *p, const ExecGemm *g, GError **error)
{
    int32_t epilogue = fused_epilogue(p, g);

    for (;; epilogue = CUBLASLT_EPILOGUE_DEFAULT) {
        ProductPlan *plan = plan_for(p, g, epilogue, error);
        /* Nothing is timed in a graph, whose work does not begin yet; one proposal needs no timing.
         */
        if (plan == NULL ||
            (plan->n_proposals > 1 && !plan->is_timed &&
             !exec_cuda_state(p->backend)->graphs.captures && !tune(p, plan, g, error)))
            return NULL;
        if (plan->n_proposals > 0 || epilogue == CUBLASLT_EPILOGUE_DEFAULT)
            return plan;
    }
}

bool
exec_cuda_product(ExecCudaProducts *p, const ExecGemm *g, GError **error)
{
    cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;

    if (g->m == 0 || g->n == 0)
        return true;
    if (g->bias_gradient != NULL && sums_scratch(p, g) == NULL)
        return true; /* the failure is kept */
    ProductPlan *plan = chosen_plan(p, g, error);
    if (plan == NULL)
        return false;
    if (plan->n_proposals == 0)
        return EXEC_FAIL(error, EXEC_ERROR_FAILED,
                         "cuBLASLt has no kernel for a product of %" G_GINT64_FORMAT
                         " x %" G_GINT64_FORMAT " x %" G_GINT64_FORMAT,
                         g->m, g->n, g->k);
    return multiply(p, plan, g, 0, &status, error) &&
           exec_cublas_ok(status, "cublasLtMatmul", __FILE__, __LINE__, error);
}
