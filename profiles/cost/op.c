#include "profiles/cost/op.h"

#include "base/real.h"
#include "profiles/cost/measured.h"

#include <math.h>

const char *const profile_source_names[] = {"modelled", "interpolated", "measured", NULL};

double
profile_cost_device_s(const ProfileCost *cost)
{
    double sum = 0.0;

    for (int i = 0; i < PROFILE_PART_N; i++)
        sum += cost->part_s[i];
    return sum;
}

double
profile_cost_s(const ProfileCost *cost)
{
    return real_max(profile_cost_device_s(cost), cost->host_s);
}

/* --- rates --- */

double
profile_peak_flops_per_s(const ModelDevice *device, Dtype dtype)
{
    while (device->flops_per_s[dtype] <= 0.0 && dtype_wider(dtype) != dtype)
        dtype = dtype_wider(dtype);
    return device->flops_per_s[dtype] > 0.0 ? device->flops_per_s[dtype]
                                            : device->vector_flops_per_s;
}

bool
profile_is_slower(const ModelDevice *a, const ModelDevice *b, Dtype dtype)
{
    const double rate_a = profile_peak_flops_per_s(a, dtype);
    const double rate_b = profile_peak_flops_per_s(b, dtype);

    if (rate_a != rate_b)
        return rate_a < rate_b;
    return a->memory_bytes_per_s < b->memory_bytes_per_s;
}

double
profile_cost_memory_s(const Profile *profile, const ModelDevice *device, double bytes)
{
    return bytes / (profile->parameters.memory_fraction * device->memory_bytes_per_s);
}

/* The share of memory bandwidth that the kernels of a memory-bound op reach. */
static double
fraction_of(const ProfileParameters *p, ModelMemoryKind kind)
{
    switch (kind) {
    case MODEL_MEMORY_STREAM:
    case MODEL_MEMORY_WORDS:
    case MODEL_MEMORY_COPY:
        return p->memory_fraction;
    case MODEL_MEMORY_LOSS:
        return p->loss_fraction;
    case MODEL_MEMORY_PERMUTE:
        return p->permute_fraction;
    }
    g_return_val_if_reached(p->memory_fraction);
}

/* Shares of peak are those of the eight devices of a node. */
#define NODE_DEVICES 8.0

/* The mean of the largest of n normal numbers  [Cramer 1946, 28.6.13]. */
static double
mean_largest(double n)
{
    const double a = sqrt(2.0 * log(n));

    return a - (log(log(n)) + log(4.0 * G_PI)) / (2.0 * a);
}

/* The same over the cluster's devices.  Each product asks, as a rule about one cluster, and the
 * logarithms take as long as the rest of a product: a thread keeps its last answer. */
static double
mean_slowest(double n)
{
    static _Thread_local double last_n, last_mean;

    if (n != last_n) {
        last_mean = mean_largest(n);
        last_n = n;
    }
    return last_mean;
}

/* How much longer the slowest device of the cluster, for which all others wait, takes for what power
 * limits: products and attention (cost-model.md 2.1). */
static double
slowness(const Profile *profile)
{
    const double n = (double)model_cluster_n_devices(profile->cluster);
    const double spread = profile->parameters.device_spread;

    return spread <= 0.0 || n <= NODE_DEVICES
               ? 1.0
               : 1.0 + spread * (mean_slowest(n) - mean_largest(NODE_DEVICES));
}

static double
n_multiprocessors(const ModelDevice *device)
{
    return device->n_multiprocessors > 0 ? (double)device->n_multiprocessors : 1.0;
}

/* --- products --- */

/* What is asked of a product: its time, or no more than the sum over any slices of its rows takes
 * at the least, where the tokens are the rows of the result, or what is summed over. */
typedef enum {
    PRODUCT_TIMED,
    PRODUCT_SLICED_ROWS,
    PRODUCT_SLICED_SUMS
} ProductBound;

/* C[m,n] = A[m,k] B[k,n], @count times. */
typedef struct {
    double count, m, n, k;
    double aligned;  /* rate against that of rows which begin at multiples of 16 bytes */
    bool is_grouped; /* products of experts: one launch, uneven sizes */
    bool adds;       /* to a sum in memory: a tile's end reads it besides writing */
    ProductBound bound;
} Product;

/* Smaller tiles fill the device better and load each operand more often: fewer operations per byte
 * read from the L2 cache.  Shares of the largest tile's rate as in NVIDIA's matrix multiplication
 * guide, figure 3: 256x128 against 128x128 and 64x64 (cost-model.md 2.1). */
static const struct {
    double m, n, fraction;
} tiles[] = {
    {1.0, 1.0, 1.00},
    {1.0, 0.5, 0.90},
    {0.5, 1.0, 0.90},
    {0.5, 0.5, 0.75},
};
/* Into how many parts the inner dimension may be cut. */
static const double splits[] = {1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0};

/* Of a product's tiles on the whole device. */
static double
product_rate(const Profile *profile, const ModelDevice *device, Dtype dtype, const Product *product)
{
    const ProfileParameters *p = &profile->parameters;
    const bool is_quantised = dtype_is_quantised(dtype);
    const double grouped = !product->is_grouped ? 1.0
                           : is_quantised       ? p->grouped_fp8_fraction
                                                : p->grouped_fraction;
    const double quantised = is_quantised ? p->fp8_fraction : 1.0;

    return grouped * product->aligned * quantised * p->gemm_fraction *
           profile_peak_flops_per_s(device, dtype) / slowness(profile);
}

/* The constant share of a tile in steps of k.  It is a time, so that there are more steps in a format that
 * takes them faster (cost-model.md 2.6). */
static double
constant_steps(const Profile *profile, const ModelDevice *device, Dtype dtype,
               const Product *product)
{
    const double ends = product->adds ? 2.0 : 1.0;
    const double faster = dtype_is_quantised(dtype)
                              ? profile_peak_flops_per_s(device, dtype) /
                                    profile_peak_flops_per_s(device, dtype_stored(dtype))
                              : 1.0;

    return ends * faster * profile->parameters.gemm_k_half;
}

/* A lower bound of product_s() over all ways to cut the tokens: of no tile and split are there
 * fewer waves than its tiles fill, and what tiles cover is at least the tokens, and all of whole
 * tiles in the dimensions that are not cut.  So it is linear in the tokens, plus what each product
 * has once. */
static double
sliced_product_s(const Profile *profile, const ModelDevice *device, Dtype dtype,
                 const Product *product)
{
    const ProfileParameters *p = &profile->parameters;
    const double rate = product_rate(profile, device, dtype, product);
    const double constant = constant_steps(profile, device, dtype, product);
    double best = INFINITY;

    for (size_t i = 0; i < G_N_ELEMENTS(tiles); i++) {
        const double m = real_max(1.0, p->gemm_tile_m * tiles[i].m);
        const double n = real_max(1.0, p->gemm_tile_n * tiles[i].n);
        const double rows =
            product->bound == PRODUCT_SLICED_ROWS ? product->m : ceil(product->m / m) * m;
        const double k = product->k + constant;
        best = real_min(best, 2.0 * product->count * rows * ceil(product->n / n) * n * k /
                                  (rate * tiles[i].fraction));
    }
    return best;
}

/* The best of the tiles and splits: waves * time of one tile (cost-model.md 2.1).  A tile's time
 * has a constant share, k_half: filling its pipeline and writing the result. */
static double
product_s(const Profile *profile, const ModelDevice *device, Dtype dtype, const Product *product)
{
    const ProfileParameters *p = &profile->parameters;
    double n_sm = n_multiprocessors(device);
    double rate = product_rate(profile, device, dtype, product) / n_sm; /* of one of them */
    const double constant = constant_steps(profile, device, dtype, product);
    double best = INFINITY;

    if (product->bound != PRODUCT_TIMED)
        return sliced_product_s(profile, device, dtype, product);
    for (size_t i = 0; i < G_N_ELEMENTS(tiles); i++) {
        double m = real_max(1.0, p->gemm_tile_m * tiles[i].m);
        double n = real_max(1.0, p->gemm_tile_n * tiles[i].n);
        double n_tiles = product->count * ceil(product->m / m) * ceil(product->n / n);

        for (size_t j = 0; j < G_N_ELEMENTS(splits); j++) {
            double split = splits[j];
            double filled = n_tiles * split / n_sm;
            double k = product->k / split + constant;
            double tile_s = 2.0 * m * n * k / (rate * tiles[i].fraction);

            /* Waves are no fewer than the tiles fill: this grows with the split. */
            if (filled * tile_s * (1.0 - 1e-9) > best)
                break;
            double waves = real_max(1.0, filled + p->gemm_tail_fraction * (ceil(filled) - filled));
            double seconds = waves * tile_s;

            /* Partial results in fp32 are written and read again. */
            if (split > 1.0)
                seconds += profile_cost_memory_s(
                    profile, device, 8.0 * split * product->count * product->m * product->n);
            best = real_min(best, seconds);
        }
    }
    return best;
}

/* What one load of a kernel for tensor cores takes. */
#define LOAD_BYTES 16

/* The rate of a weight's products, all three of which have rows of k and of n elements: whole loads
 * at once only where both are multiples of 16 bytes.  Half of one reaches the root of what a
 * quarter and less does (cost-model.md 2.1). */
static double
aligned(const Profile *profile, const ModelOp *op, Dtype dtype)
{
    const int64_t widths = op->k | op->n;
    const int64_t bytes = (widths & -widths) * dtype_bytes(dtype);
    const double fraction = profile->parameters.gemm_unaligned_fraction;

    if (bytes == 0 || bytes >= LOAD_BYTES)
        return 1.0;
    return bytes == LOAD_BYTES / 2 ? sqrt(fraction) : fraction;
}

static double
gemm_s(const Profile *profile, const ModelDevice *device, Dtype dtype, const Product *product,
       double bytes)
{
    double memory = bytes / (profile->parameters.gemm_memory_fraction * device->memory_bytes_per_s);

    return real_max(product_s(profile, device, dtype, product), memory);
}

double
profile_cost_weight_product_s(const Profile *profile, const ModelDevice *device, const ModelOp *op,
                              Dtype dtype, double more_bytes, bool sliced)
{
    const Product product = {.count = (double)op->count,
                             .m = (double)op->k,
                             .n = (double)op->n,
                             .k = (double)op->m,
                             .aligned = aligned(profile, op, dtype),
                             .is_grouped = op->count > 1 && !op->one_kernel,
                             .adds = more_bytes > 0.0,
                             .bound = sliced ? PRODUCT_SLICED_SUMS : PRODUCT_TIMED};

    return gemm_s(profile, device, dtype, &product,
                  (double)op->backward_bytes / 2.0 + (double)op->weight_bytes + more_bytes);
}

double
profile_cost_batched_product_s(const Profile *profile, const ModelDevice *device, const ModelOp *op,
                               Dtype dtype)
{
    const Product product = {.count = (double)op->count,
                             .m = (double)op->m,
                             .n = (double)op->n,
                             .k = (double)op->k,
                             .aligned = 1.0};

    return gemm_s(profile, device, dtype, &product, (double)op->forward_bytes) +
           profile->parameters.kernel_s;
}

Dtype
profile_op_dtype(const ModelOp *op, Dtype dtype)
{
    return op->stored_operands ? dtype_stored(dtype) : dtype;
}

double
profile_op_quantising(const ModelOp *op, ProfilePass pass)
{
    const bool forward = pass == PROFILE_PASS_FORWARD;

    if ((forward ? op->quantised_forward : op->quantised_backward) <= 0.0 ||
        pass == PROFILE_PASS_BACKWARD_WEIGHT)
        return 0.0;
    return (double)op->count;
}

/* Quantising the operands of a product that are no weights, forward its input, backward the gradient
 * of its output, which both products read (cost-model.md 2.6). */
static double
quantise_s(const Profile *profile, const ModelDevice *device, const ModelOp *op, ProfilePass pass)
{
    const double elements =
        pass == PROFILE_PASS_FORWARD ? op->quantised_forward : op->quantised_backward;
    /* Since Blackwell, which has nvfp4, products take operands in either order. */
    const double transposed = device->flops_per_s[DTYPE_NVFP4] > 0.0 ? 0.0 : op->transpose_bytes;
    const double bytes = op->quantise_bytes > 0.0 ? op->quantise_bytes + transposed
                                                  : profile->parameters.quantise_bytes;

    if (elements <= 0.0 || pass == PROFILE_PASS_BACKWARD_WEIGHT)
        return 0.0;
    return profile_cost_memory_s(profile, device, elements * bytes) +
           profile_op_quantising(op, pass) * profile->parameters.kernel_s;
}

/* Applying the scales to the results of a quantised product's backward, where it has not done so. */
static double
rescale_s(const Profile *profile, const ModelDevice *device, const ModelOp *op, ProfilePass pass)
{
    const double input = (double)op->m * (double)op->k, weight = (double)op->n * (double)op->k;
    const bool both = pass == PROFILE_PASS_BACKWARD;
    const bool of_weight = !op->frozen && (both || pass == PROFILE_PASS_BACKWARD_WEIGHT);
    const double elements =
        (both || pass == PROFILE_PASS_BACKWARD_INPUT ? input : 0.0) + (of_weight ? weight : 0.0);

    if (op->rescale_bytes <= 0.0 || op->stored_operands || elements <= 0.0)
        return 0.0;
    return profile_cost_memory_s(profile, device, (double)op->count * elements * op->rescale_bytes);
}

/* The forward product, or the input gradient's dA = dC B'.  Activations' traffic is halved between the
 * two backward products. */
static double
rows_product_s(const Profile *profile, const ModelDevice *device, const ModelOp *op, bool backward,
               Dtype dtype, bool sliced)
{
    const double n = (double)op->n, k = (double)op->k, weight_bytes = (double)op->weight_bytes;
    const Product product = {.count = (double)op->count,
                             .m = (double)op->m,
                             .n = backward ? k : n,
                             .k = backward ? n : k,
                             .aligned = aligned(profile, op, dtype),
                             .is_grouped = op->count > 1 && !op->one_kernel,
                             .bound = sliced ? PRODUCT_SLICED_ROWS : PRODUCT_TIMED};

    return gemm_s(profile, device, dtype, &product,
                  backward ? (double)op->backward_bytes / 2.0 + weight_bytes
                           : (double)op->forward_bytes + weight_bytes);
}

/* The products of a weight: forward, the input gradient's, and the weight gradient's dB = A' dC. */
typedef struct {
    double forward_s, input_s, weight_s;
} Products;

/* Those of @pass; the others are 0. */
static Products
products_of(const Profile *profile, const ModelDevice *device, const ModelOp *op, ProfilePass pass,
            Dtype dtype, bool sliced)
{
    Products products = {0};

    if (pass == PROFILE_PASS_FORWARD) {
        products.forward_s = rows_product_s(profile, device, op, false, dtype, sliced);
        return products;
    }
    if (pass != PROFILE_PASS_BACKWARD_WEIGHT)
        products.input_s = rows_product_s(profile, device, op, true, dtype, sliced);
    if (pass != PROFILE_PASS_BACKWARD_INPUT && !op->frozen)
        products.weight_s = profile_cost_weight_product_s(profile, device, op, dtype, 0.0, sliced);
    return products;
}

/* --- attention --- */

/* Query rows of one block of a fused kernel  [2307.08691: 128 at head size 64 and 128]. */
#define FUSED_BLOCK_ROWS 128.0
/* Backward of a fused kernel computes the scores again: five products against two. */
#define FUSED_BACKWARD_PRODUCTS 2.5
/* FlashAttention 2 is "1.3-1.5x faster than FlashAttention in Triton in the forward pass and around
 * 2x faster in the backward pass", which is as much as than its own first version  [2307.08691, 4.1]. */
#define TRITON_FORWARD (1.0 / 1.4)

/* The rate of @op's kernel against that of the fastest. */
static double
kernel_rate(const ProfileParameters *p, const ModelOp *op, bool backward)
{
    switch (op->flash) {
    case MODEL_FLASH_FASTEST:
        return 1.0;
    case MODEL_FLASH_FIRST:
        return p->flash1_fraction;
    case MODEL_FLASH_SECOND:
        return p->flash2_fraction;
    case MODEL_FLASH_TRITON:
        return backward ? p->flash1_fraction : TRITON_FORWARD * p->flash2_fraction;
    }
    g_return_val_if_reached(1.0);
}

/* Head size from which on kernels reach their rate; narrower heads have more exponentials for each
 * operation.  Of FlashAttention 2 at 64, forward and backward: 299 of 335 and 291 of 322 TFLOP/s; of
 * Triton's, 363 of 378 and 403 of 395: its products, like those of the first version, are slow enough
 * [shah2024, figures 5 and 6]. */
#define FUSED_HEAD_SIZE 128.0
#define SECOND_FORWARD_NARROW 0.89
#define SECOND_BACKWARD_NARROW 0.90

/* The rate of @op's kernel at its head size against that at FUSED_HEAD_SIZE: as much less at each halving. */
static double
narrow_rate(const ProfileParameters *p, const ModelOp *op, bool backward)
{
    const double fastest =
        backward ? p->attention_backward_narrow_fraction : p->attention_forward_narrow_fraction;
    const double halvings = log2(FUSED_HEAD_SIZE / real_max(1.0, (double)op->k));

    if (halvings <= 0.0 || op->flash == MODEL_FLASH_FIRST || op->flash == MODEL_FLASH_TRITON)
        return 1.0;
    if (op->flash == MODEL_FLASH_FASTEST)
        return pow(fastest, halvings);
    return pow(real_max(fastest, backward ? SECOND_BACKWARD_NARROW : SECOND_FORWARD_NARROW),
               halvings);
}

/*
 * What a block of a fused kernel does once, however few keys (backward: queries) it meets, against what
 * it does with those: loads its rows, fills the pipeline, writes results, and computes whole tiles on the
 * diagonal  [shah2024; cost-model.md 2.2].
 */
static double
block_share(const ProfileParameters *p, const ModelOp *op, bool backward)
{
    const double met = (backward ? (double)op->m : (double)op->n) * op->needed_fraction;
    const double once = backward ? p->attention_backward_keys : p->attention_forward_keys;

    return once / real_max(1.0, met);
}

/* What a fused kernel of needed scores alone takes where its blocks leave no multiprocessor idle. */
static double
fused_scores_s(const Profile *profile, const ModelDevice *device, const ModelOp *op, bool backward,
               Dtype dtype)
{
    const ProfileParameters *p = &profile->parameters;
    const double fraction =
        kernel_rate(p, op, backward) * narrow_rate(p, op, backward) *
        (backward ? p->attention_backward_fraction : p->attention_forward_fraction);
    const double flops =
        op->forward_flops * op->causal_fraction * (backward ? FUSED_BACKWARD_PRODUCTS : 1.0);

    return slowness(profile) * flops / (fraction * profile_peak_flops_per_s(device, dtype));
}

double
profile_op_attention_rows_s(const Profile *profile, const ModelDevice *device, const ModelOp *op,
                            ProfilePass pass, Dtype dtype)
{
    const bool backward = pass != PROFILE_PASS_FORWARD;
    const double once = backward ? profile->parameters.attention_backward_keys
                                 : profile->parameters.attention_forward_keys;
    const double keys = (double)op->n * op->needed_fraction;

    if (op->kind != MODEL_OP_ATTENTION || op->n_kernels_forward != 1)
        return 0.0;
    return fused_scores_s(profile, device, op, backward, dtype_stored(dtype)) *
           real_min(once / real_max(1.0, keys), block_share(&profile->parameters, op, backward));
}

static double
fused_attention_s(const Profile *profile, const ModelDevice *device, const ModelOp *op,
                  bool backward, Dtype dtype, bool sliced)
{
    const double scores_s = fused_scores_s(profile, device, op, backward, dtype);
    /* Backward is split over keys, forward over queries. */
    double rows = backward ? (double)op->n : (double)op->m;
    double blocks = (double)op->count * ceil(rows / FUSED_BLOCK_ROWS);
    double n_sm = n_multiprocessors(device);
    double filled = sliced ? 1.0 : blocks / (n_sm * ceil(blocks / n_sm));
    double bytes = (double)(backward ? op->backward_bytes : op->forward_bytes);

    return real_max(scores_s * (1.0 + block_share(&profile->parameters, op, backward)) / filled,
                    profile_cost_memory_s(profile, device, bytes));
}

double
profile_op_attention_keys_s(const Profile *profile, const ModelDevice *device, const ModelOp *op,
                            Dtype dtype)
{
    if (op->kind != MODEL_OP_ATTENTION || op->n_kernels_forward != 1 ||
        op->needed_fraction < op->causal_fraction)
        return 0.0;
    const double scores_s = fused_scores_s(profile, device, op, true, dtype_stored(dtype));
    const double keys_s = scores_s * block_share(&profile->parameters, op, true);

    return scores_s + keys_s < profile_cost_memory_s(profile, device, (double)op->backward_bytes)
               ? 0.0
               : keys_s;
}

/*
 * Two batched products forward, four backward, over all m n scores, and the softmax between them.
 * Of the passes over the scores that op->forward_bytes counts, one per product belongs to the
 * products (which overlap them with computing), the rest to the kernels between (cost-model.md
 * 2.2).
 */
static double
unfused_attention_s(const Profile *profile, const ModelDevice *device, const ModelOp *op,
                    bool backward, Dtype dtype)
{
    double count = (double)op->count, m = (double)op->m, n = (double)op->n, k = (double)op->k;
    double scores_bytes = count * m * n * (double)dtype_bytes(dtype);
    const Product to_scores = {count, m, n, k, 1.0, false, false, PRODUCT_TIMED};
    const Product from_scores = {count, m, k, n, 1.0, false, false, PRODUCT_TIMED};
    const Product from_scores_transposed = {count, n, k, m, 1.0, false, false, PRODUCT_TIMED};
    const double bytes = (double)(backward ? op->backward_bytes : op->forward_bytes);
    const double passes = real_min((backward ? 4.0 : 2.0) * scores_bytes, bytes);
    double products = product_s(profile, device, dtype, &to_scores) +
                      product_s(profile, device, dtype, &from_scores);

    if (backward)
        products += 2.0 * product_s(profile, device, dtype, &from_scores_transposed);
    return real_max(products, profile_cost_memory_s(profile, device, passes)) +
           profile_cost_memory_s(profile, device, bytes - passes);
}

/* --- scans --- */

/* Backward of a scan's kernels computes the states again, then two products for each of the
 * forward's. */
#define SCAN_BACKWARD_PRODUCTS 1.5

/* At the shares of the peak that fused attention reaches: both are chains of small products whose
 * operands stay on the chip. */
static double
scan_s(const Profile *profile, const ModelDevice *device, const ModelOp *op, bool backward,
       Dtype dtype)
{
    const ProfileParameters *p = &profile->parameters;
    const double fraction =
        backward ? p->attention_backward_fraction : p->attention_forward_fraction;
    const double flops = backward ? op->backward_flops * SCAN_BACKWARD_PRODUCTS : op->forward_flops;
    const double bytes = (double)(backward ? op->backward_bytes : op->forward_bytes);

    return real_max(slowness(profile) * flops /
                        (fraction * profile_peak_flops_per_s(device, dtype)),
                    profile_cost_memory_s(profile, device, bytes));
}

/* --- one op --- */

static const ProfilePart part_of_group[MODEL_GROUP_N] = {
    [MODEL_GROUP_TP] = PROFILE_PART_TP,
    [MODEL_GROUP_CP] = PROFILE_PART_CP,
    [MODEL_GROUP_EP] = PROFILE_PART_EP,
    [MODEL_GROUP_ETP] = PROFILE_PART_EP,
};

double
profile_op_kernels(const ModelOp *op, ProfilePass pass)
{
    double backward = (double)op->n_kernels_backward;
    /* Half of them make the gradient of the weight. */
    const bool is_gemm = op->kind == MODEL_OP_GEMM && !op->frozen;

    switch (pass) {
    case PROFILE_PASS_FORWARD:
        return (double)op->n_kernels_forward;
    case PROFILE_PASS_BACKWARD:
        return backward;
    case PROFILE_PASS_BACKWARD_INPUT:
        return is_gemm ? backward / 2.0 : backward;
    case PROFILE_PASS_BACKWARD_WEIGHT:
        return is_gemm ? backward / 2.0 : 0.0;
    case PROFILE_PASS_N:
        break;
    }
    g_return_val_if_reached(0.0);
}

/* Unfused attention has two products forward and four
 * backward; the rest of its kernels, and all of a memory-bound op's, are bound by memory.  Those
 * on a few words need no ramp. */
double
profile_op_launches_s(const Profile *profile, const ModelOp *op, bool backward, double kernels)
{
    const ProfileParameters *p = &profile->parameters;
    double products = kernels;

    if (op->kind == MODEL_OP_MEMORY && op->memory_kind == MODEL_MEMORY_WORDS)
        return kernels * p->kernel_s;
    if (op->kind == MODEL_OP_MEMORY)
        products = 0.0;
    else if (op->kind == MODEL_OP_ATTENTION && op->n_kernels_forward > 1)
        products = real_min(kernels, backward ? 4.0 : 2.0);
    return products * p->kernel_s + (kernels - products) * p->memory_kernel_s;
}

/* Copies as they were measured, where they were: each byte is read and written. */
static double
memory_op_s(const Profile *profile, const ModelDevice *device, const ModelOp *op, bool backward)
{
    const int64_t bytes = backward ? op->backward_bytes : op->forward_bytes;
    double seconds;

    if (op->memory_kind == MODEL_MEMORY_COPY &&
        profile_measured_bytes_s(profile, PROFILE_OP_COPY_D2D, 0, bytes / 2, &seconds))
        return seconds;
    return (double)bytes /
           (fraction_of(&profile->parameters, op->memory_kind) * device->memory_bytes_per_s);
}

/* Scores of slices are those before them and their own, at least half of the whole sequence's, or
 * those that a window needs; what a pass over them takes bounds what products and passes take. */
static double
sliced_unfused_attention_s(const Profile *profile, const ModelDevice *device, const ModelOp *op,
                           bool backward)
{
    return real_min(0.5, op->needed_fraction) *
           profile_cost_memory_s(profile, device,
                                 (double)(backward ? op->backward_bytes : op->forward_bytes));
}

/* What the host takes to launch a pass of @op, which is no collective. */
static double
host_s(const Profile *profile, const ModelOp *op, ProfilePass pass)
{
    return (profile_op_kernels(op, pass) + profile_op_quantising(op, pass)) *
           profile->parameters.host_kernel_s;
}

/* A pass of a product with weights that takes @seconds for its products. */
static ProfileCost
product_cost(const Profile *profile, const ModelDevice *device, const ModelOp *op, ProfilePass pass,
             double seconds)
{
    const bool backward = pass != PROFILE_PASS_FORWARD;
    ProfileCost cost = {.source = PROFILE_SOURCE_MODELLED, .host_s = host_s(profile, op, pass)};

    cost.part_s[PROFILE_PART_COMPUTE] =
        seconds + quantise_s(profile, device, op, pass) + rescale_s(profile, device, op, pass) +
        profile_op_launches_s(profile, op, backward, profile_op_kernels(op, pass));
    return cost;
}

ProfileCost
profile_cost_sliced_op(const Profile *profile, const ModelDevice *device, const ModelOp *op,
                       ProfilePass pass, Dtype dtype, const ProfileGroup *groups, bool sliced)
{
    ProfileCost cost = {.source = PROFILE_SOURCE_MODELLED};
    bool backward = pass != PROFILE_PASS_FORWARD;
    double kernels, seconds = 0.0;

    if (op->kind == MODEL_OP_GEMM) {
        const Products products =
            products_of(profile, device, op, pass, profile_op_dtype(op, dtype), sliced);
        return product_cost(profile, device, op, pass,
                            products.forward_s + products.input_s + products.weight_s);
    }
    kernels = profile_op_kernels(op, pass);
    cost.host_s = host_s(profile, op, pass);
    if (pass == PROFILE_PASS_BACKWARD_WEIGHT)
        return cost;
    if (op->kind == MODEL_OP_COLLECTIVE) {
        ModelComm comm = backward ? op->backward_comm : op->forward_comm;

        cost.host_s = kernels * profile->parameters.host_collective_s;
        if (groups != NULL)
            cost.host_s +=
                kernels * profile->parameters.host_skew_s * (double)(groups[op->group].n - 1);
        if (comm != MODEL_COMM_NONE && groups != NULL)
            cost.part_s[part_of_group[op->group]] = profile_cost_collective_s(
                profile, comm, profile_carried_bytes(profile, op, &groups[op->group]),
                &groups[op->group]);
        return cost;
    }
    switch (op->kind) {
    case MODEL_OP_ATTENTION:
        dtype = dtype_stored(dtype);
        /* A fused kernel is one launch by definition; the unfused form has several. */
        seconds = op->n_kernels_forward == 1
                      ? fused_attention_s(profile, device, op, backward, dtype, sliced)
                  : sliced ? sliced_unfused_attention_s(profile, device, op, backward)
                           : unfused_attention_s(profile, device, op, backward, dtype);
        break;
    case MODEL_OP_SCAN:
        seconds = scan_s(profile, device, op, backward, dtype_stored(dtype));
        break;
    case MODEL_OP_MEMORY:
        seconds = memory_op_s(profile, device, op, backward);
        break;
    case MODEL_OP_GEMM:
    case MODEL_OP_COLLECTIVE:
        break;
    }
    /* What a collective needs beside it is not there without it. */
    const bool is_copy =
        op->kind == MODEL_OP_MEMORY && (op->memory_kind == MODEL_MEMORY_COPY || op->in_exchange);
    cost.part_s[is_copy ? part_of_group[op->group] : PROFILE_PART_COMPUTE] =
        seconds + profile_op_launches_s(profile, op, backward, kernels);
    return cost;
}

ProfileCost
profile_cost_op(const Profile *profile, const ModelDevice *device, const ModelOp *op,
                ProfilePass pass, Dtype dtype, const ProfileGroup *groups)
{
    g_return_val_if_fail(profile != NULL && device != NULL && op != NULL, (ProfileCost){0});
    g_return_val_if_fail(pass < PROFILE_PASS_N, (ProfileCost){0});

    return profile_cost_sliced_op(profile, device, op, pass, dtype, groups, false);
}

void
profile_cost_op_passes(const Profile *profile, const ModelDevice *device, const ModelOp *op,
                       Dtype dtype, const ProfileGroup *groups, ProfileCost costs[PROFILE_PASS_N])
{
    if (op->kind != MODEL_OP_GEMM) {
        for (ProfilePass pass = 0; pass < PROFILE_PASS_N; pass++)
            costs[pass] =
                pass == PROFILE_PASS_BACKWARD_INPUT
                    ? costs[PROFILE_PASS_BACKWARD]
                    : profile_cost_sliced_op(profile, device, op, pass, dtype, groups, false);
        return;
    }
    const Dtype operands = profile_op_dtype(op, dtype);
    const double forward_s = rows_product_s(profile, device, op, false, operands, false);
    const Products back = products_of(profile, device, op, PROFILE_PASS_BACKWARD, operands, false);
    const double seconds[PROFILE_PASS_N] = {
        [PROFILE_PASS_FORWARD] = forward_s,
        [PROFILE_PASS_BACKWARD] = back.input_s + back.weight_s,
        [PROFILE_PASS_BACKWARD_INPUT] = back.input_s,
        [PROFILE_PASS_BACKWARD_WEIGHT] = back.weight_s,
    };
    for (ProfilePass pass = 0; pass < PROFILE_PASS_N; pass++)
        costs[pass] = product_cost(profile, device, op, pass, seconds[pass]);
}
