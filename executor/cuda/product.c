#include "executor/cuda/cuda.h"

#include <string.h>

/*
 * Row-major C[m,n] = A B is, read by columns, C^T[n,m] = B^T A^T: cuBLASLt's left operand is our B,
 * its right one our A, and the strides stay.
 */

/* What a plan depends on.  Keys are compared as bytes, so there is no padding. */
typedef struct {
    int64_t m, n, k, lda, ldb, ldc;
    int32_t trans_a, trans_b, adds, c_fp32, epilogue, unused;
    int32_t alignment_bytes[4]; /* of A, B, what is added, the result: 16 to 256 */
} Key;
G_STATIC_ASSERT(sizeof(Key) == 6 * sizeof(int64_t) + 10 * sizeof(int32_t));

/* NULL algorithm: cuBLASLt has none for this key. */
typedef struct {
    Key key;
    bool exists;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
} ProductPlan;

struct ExecCudaProducts {
    cublasLtHandle_t handle;
    Dtype storage;
    void *workspace;
    int n_multiprocessors;
    cudaStream_t stream;
    GHashTable *plans; /* Key of a ProductPlan -> it (owned) */
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
exec_cuda_products_new(Dtype storage, void *workspace, int n_multiprocessors, cudaStream_t stream,
                       GError **error)
{
    cublasLtHandle_t handle = NULL;

    if (!exec_cublas_ok(cublasLtCreate(&handle), "cublasLtCreate", __FILE__, __LINE__, error))
        return NULL;
    ExecCudaProducts *products = g_new0(ExecCudaProducts, 1);
    *products = (ExecCudaProducts){
        .handle = handle,
        .storage = storage,
        .workspace = workspace,
        .n_multiprocessors = n_multiprocessors,
        .stream = stream,
        .plans = g_hash_table_new_full(hash_key, equal_keys, NULL, free_plan),
    };
    return products;
}

void
exec_cuda_products_free(ExecCudaProducts *products)
{
    if (products == NULL)
        return;
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
    const cudaDataType_t in = data_type(p->storage), out = k->c_fp32 ? CUDA_R_32F : in;

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

/* The library's first choice; plan->exists stays false where it has none. */
static bool
choose_algorithm(const ExecCudaProducts *p, ProductPlan *plan, GError **error)
{
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t result;
    int n_results = 0;

    TRY_CUBLAS(cublasLtMatmulPreferenceCreate(&preference), error);
    const bool ok = set_preference(&plan->key, preference, error);
    if (ok) {
        const cublasStatus_t status =
            cublasLtMatmulAlgoGetHeuristic(p->handle, plan->operation, plan->b, plan->a, plan->c,
                                           plan->c, preference, 1, &result, &n_results);
        plan->exists = status == CUBLAS_STATUS_SUCCESS && n_results > 0;
        if (plan->exists)
            plan->algorithm = result.algo;
    }
    cublasLtMatmulPreferenceDestroy(preference);
    return ok;
}

/* Returns: (borrowed, nullable) the plan of @key; NULL with @error set. */
static ProductPlan *
plan_for(ExecCudaProducts *p, const Key *key, GError **error)
{
    ProductPlan *plan = g_hash_table_lookup(p->plans, key);

    if (plan != NULL)
        return plan;
    plan = g_new0(ProductPlan, 1);
    memcpy(&plan->key, key, sizeof *key);
    if (!set_operation(p, plan, error) || !set_layouts(p, plan, error) ||
        !choose_algorithm(p, plan, error)) {
        free_plan(plan);
        return NULL;
    }
    g_hash_table_insert(p->plans, &plan->key, plan);
    return plan;
}

/* --- a product --- */

static int32_t
alignment_of(const void *pointer)
{
    const uintptr_t lowest = (uintptr_t)pointer & -(uintptr_t)pointer;

    return pointer == NULL || lowest > 256 ? 256 : (int32_t)lowest;
}

/* The epilogue that does all of @g's followers, or -1. */
static int32_t
fused_epilogue(const ExecCudaProducts *p, const ExecGemm *g)
{
    /* Its auxiliary matrix is read 16 bytes at a time. */
    const bool aux_fits = p->storage == DTYPE_BF16 && g->n % 8 == 0 && !g->c_fp32;

    if (g->gelu != NULL)
        return !aux_fits || g->residual != NULL ? -1
               : g->bias != NULL                ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS
                                                : CUBLASLT_EPILOGUE_GELU_AUX;
    if (g->gelu_input != NULL)
        return aux_fits && g->bias == NULL ? CUBLASLT_EPILOGUE_DGELU : -1;
    return g->bias != NULL && !g->c_fp32 ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/* @done  (out) false where cuBLASLt has no kernel for this epilogue; then nothing was queued. */
static bool
multiply(ExecCudaProducts *p, const ExecGemm *g, int32_t epilogue, bool *done, GError **error)
{
    const bool gelu =
        epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    const void *added = g->residual != NULL ? g->residual : g->c;
    void *result = gelu ? g->gelu : g->c;
    void *aux = gelu ? g->c : (void *)g->gelu_input;
    const float one = 1.0f, beta = g->accumulate || g->residual != NULL ? 1.0f : 0.0f;
    const Key key = {
        .m = g->m,
        .n = g->n,
        .k = g->k,
        .lda = g->lda,
        .ldb = g->ldb,
        .ldc = g->ldc,
        .trans_a = g->trans_a,
        .trans_b = g->trans_b,
        .adds = beta != 0.0f,
        .c_fp32 = g->c_fp32,
        .epilogue = epilogue,
        .alignment_bytes = {alignment_of(g->a), alignment_of(g->b), alignment_of(added),
                            alignment_of(result)},
    };
    ProductPlan *plan = plan_for(p, &key, error);
    if (plan == NULL)
        return false;
    *done = plan->exists;
    if (!plan->exists)
        return true;
    if (epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS)
        SET(plan->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, g->bias);
    if (gelu || epilogue == CUBLASLT_EPILOGUE_DGELU)
        SET(plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
    TRY_CUBLAS(cublasLtMatmul(p->handle, plan->operation, &one, g->b, plan->b, g->a, plan->a, &beta,
                              added, plan->c, result, plan->c, &plan->algorithm, p->workspace,
                              EXEC_CUDA_PRODUCT_BYTES, p->stream),
               error);
    return true;
}

/* Bias, residual and GELU after a bare product, each in a pass of its own. */
static bool
follow(ExecCudaProducts *p, const ExecGemm *g, GError **error)
{
    const Dtype out = g->c_fp32 ? DTYPE_FP32 : p->storage;

    TRY_CUDA(kernels_bias_residual(out, g->m, g->n, g->bias, NULL, g->c, g->ldc, p->stream), error);
    if (g->gelu != NULL)
        TRY_CUDA(kernels_gelu_forward(p->storage, g->m * g->n, g->c, g->gelu, p->stream), error);
    if (g->gelu_input != NULL)
        TRY_CUDA(kernels_gelu_backward(p->storage, g->m * g->n, g->gelu_input, g->c, p->stream),
                 error);
    return true;
}

bool
exec_cuda_product(ExecCudaProducts *p, const ExecGemm *g, GError **error)
{
    const int32_t fused = fused_epilogue(p, g);
    bool done = false;

    if (g->m == 0 || g->n == 0)
        return true;
    if (fused >= 0 && !multiply(p, g, fused, &done, error))
        return false;
    if (done)
        return true;
    if (!multiply(p, g, CUBLASLT_EPILOGUE_DEFAULT, &done, error))
        return false;
    if (!done)
        return EXEC_FAIL(error, EXEC_ERROR_FAILED,
                         "cuBLASLt has no kernel for a product of %" G_GINT64_FORMAT
                         " x %" G_GINT64_FORMAT " x %" G_GINT64_FORMAT,
                         g->m, g->n, g->k);
    return follow(p, g, error);
}
