#include "profiles/cost/cost.h"

#include "profiles/cost/cost_build.h"
#include "profiles/cost/measured.h"

#include <math.h>

const char *const profile_source_names[] = {"modelled", "interpolated", "measured", NULL};

double
profile_cost_s(const ProfileCost *cost)
{
    double device_s = 0.0;

    for (int i = 0; i < PROFILE_PART_N; i++)
        device_s += cost->part_s[i];
    return fmax(device_s, cost->host_s);
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

double
cost_memory_s(const Profile *profile, const ModelDevice *device, double bytes)
{
    return bytes / (profile->parameters.memory_fraction * device->memory_bytes_per_s);
}

/* The share of memory bandwidth that the kernels of a memory-bound op reach. */
static double
fraction_of(const ProfileParameters *p, ModelMemoryKind kind)
{
    switch (kind) {
    case MODEL_MEMORY_STREAM:
    case MODEL_MEMORY_COPY:
        return p->memory_fraction;
    case MODEL_MEMORY_LOSS:
        return p->loss_fraction;
    case MODEL_MEMORY_PERMUTE:
        return p->permute_fraction;
    }
    g_return_val_if_reached(p->memory_fraction);
}

static double
n_multiprocessors(const ModelDevice *device)
{
    return device->n_multiprocessors > 0 ? (double)device->n_multiprocessors : 1.0;
}

/* --- products --- */

/* C[m,n] = A[m,k] B[k,n], @count times. */
typedef struct {
    double count, m, n, k;
    double aligned;  /* rate against that of rows which begin at multiples of 16 bytes */
    bool is_grouped; /* products of experts: one launch, uneven sizes */
    bool adds;       /* to a sum in memory: a tile's end reads it besides writing */
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

/*
 * The best of the tiles and splits: waves * time of one tile (cost-model.md 2.1).  A tile's time
 * has a constant share, k_half: filling its pipeline and writing the result.
 */
static double
product_s(const Profile *profile, const ModelDevice *device, Dtype dtype, const Product *product)
{
    const ProfileParameters *p = &profile->parameters;
    double n_sm = n_multiprocessors(device);
    double grouped = product->is_grouped ? p->grouped_fraction : 1.0;
    double rate = grouped * product->aligned * p->gemm_fraction *
                  profile_peak_flops_per_s(device, dtype) / n_sm; /* of one of them */
    double best = INFINITY;

    for (size_t i = 0; i < G_N_ELEMENTS(tiles); i++) {
        double m = fmax(1.0, p->gemm_tile_m * tiles[i].m);
        double n = fmax(1.0, p->gemm_tile_n * tiles[i].n);
        double n_tiles = product->count * ceil(product->m / m) * ceil(product->n / n);

        for (size_t j = 0; j < G_N_ELEMENTS(splits); j++) {
            double split = splits[j];
            double filled = n_tiles * split / n_sm;
            double k = product->k / split + (product->adds ? 2.0 : 1.0) * p->gemm_k_half;
            double tile_s = 2.0 * m * n * k / (rate * tiles[i].fraction);

            /* Waves are no fewer than the tiles fill: this grows with the split. */
            if (filled * tile_s * (1.0 - 1e-9) > best)
                break;
            double waves = fmax(1.0, filled + p->gemm_tail_fraction * (ceil(filled) - filled));
            double seconds = waves * tile_s;

            /* Partial results in fp32 are written and read again. */
            if (split > 1.0)
                seconds += cost_memory_s(profile, device,
                                         8.0 * split * product->count * product->m * product->n);
            best = fmin(best, seconds);
        }
    }
    return best;
}

/* What one load of a kernel for tensor cores takes. */
#define LOAD_BYTES 16

/*
 * The rate of a weight's products, all three of which have rows of k and of n elements: whole loads
 * at once only where both are multiples of 16 bytes.  Half of one reaches the root of what a
 * quarter and less does (cost-model.md 2.1).
 */
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

    return fmax(product_s(profile, device, dtype, product), memory);
}

double
cost_weight_product_s(const Profile *profile, const ModelDevice *device, const ModelOp *op,
                      Dtype dtype, double more_bytes)
{
    const Product product = {.count = (double)op->count,
                             .m = (double)op->k,
                             .n = (double)op->n,
                             .k = (double)op->m,
                             .aligned = aligned(profile, op, dtype),
                             .is_grouped = op->count > 1,
                             .adds = more_bytes > 0.0};

    return gemm_s(profile, device, dtype, &product,
                  (double)op->backward_bytes / 2.0 + (double)op->weight_bytes + more_bytes);
}

double
cost_batched_product_s(const Profile *profile, const ModelDevice *device, const ModelOp *op,
                       Dtype dtype)
{
    const Product product = {
        (double)op->count, (double)op->m, (double)op->n, (double)op->k, 1.0, false, false};

    return gemm_s(profile, device, dtype, &product, (double)op->forward_bytes) +
           profile->parameters.kernel_s;
}

/* The forward product, the input gradient's dA = dC B' and the weight gradient's dB = A' dC.
 * Activations' traffic is halved between the two backward products. */
static double
gemm_pass_s(const Profile *profile, const ModelDevice *device, const ModelOp *op, ProfilePass pass,
            Dtype dtype)
{
    double count = (double)op->count, m = (double)op->m, n = (double)op->n, k = (double)op->k;
    double rate = aligned(profile, op, dtype);
    bool grouped = op->count > 1;
    const Product forward = {count, m, n, k, rate, grouped, false};
    const Product input = {count, m, k, n, rate, grouped, false};
    double weight_bytes = (double)op->weight_bytes;
    double half_bytes = (double)op->backward_bytes / 2.0 + weight_bytes;
    double seconds = 0.0;

    if (pass == PROFILE_PASS_FORWARD)
        return gemm_s(profile, device, dtype, &forward, (double)op->forward_bytes + weight_bytes);
    if (pass != PROFILE_PASS_BACKWARD_WEIGHT)
        seconds += gemm_s(profile, device, dtype, &input, half_bytes);
    if (pass != PROFILE_PASS_BACKWARD_INPUT)
        seconds += cost_weight_product_s(profile, device, op, dtype, 0.0);
    return seconds;
}

/* --- attention --- */

/* Query rows of one block of a fused kernel  [2307.08691: 128 at head size 64 and 128]. */
#define FUSED_BLOCK_ROWS 128.0
/* Backward of a fused kernel computes the scores again: five products against two. */
#define FUSED_BACKWARD_PRODUCTS 2.5

static double
fused_attention_s(const Profile *profile, const ModelDevice *device, const ModelOp *op,
                  bool backward, Dtype dtype)
{
    const ProfileParameters *p = &profile->parameters;
    double version = op->first_flash ? p->flash1_fraction : 1.0;
    double fraction =
        version * (backward ? p->attention_backward_fraction : p->attention_forward_fraction);
    double flops =
        op->forward_flops * op->causal_fraction * (backward ? FUSED_BACKWARD_PRODUCTS : 1.0);
    /* Backward is split over keys, forward over queries. */
    double rows = backward ? (double)op->n : (double)op->m;
    double blocks = (double)op->count * ceil(rows / FUSED_BLOCK_ROWS);
    double n_sm = n_multiprocessors(device);
    double filled = blocks / (n_sm * ceil(blocks / n_sm));
    double bytes = (double)(backward ? op->backward_bytes : op->forward_bytes);

    return fmax(flops / (fraction * filled * profile_peak_flops_per_s(device, dtype)),
                cost_memory_s(profile, device, bytes));
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
    const Product to_scores = {count, m, n, k, 1.0, false, false};
    const Product from_scores = {count, m, k, n, 1.0, false, false};
    const Product from_scores_transposed = {count, n, k, m, 1.0, false, false};
    double products, passes, bytes;

    if (backward) {
        products = product_s(profile, device, dtype, &to_scores) +
                   product_s(profile, device, dtype, &from_scores) +
                   2.0 * product_s(profile, device, dtype, &from_scores_transposed);
        passes = 4.0 * scores_bytes;
        bytes = (double)op->backward_bytes;
    } else {
        products = product_s(profile, device, dtype, &to_scores) +
                   product_s(profile, device, dtype, &from_scores);
        passes = 2.0 * scores_bytes;
        bytes = (double)op->forward_bytes;
    }
    passes = fmin(passes, bytes);
    return fmax(products, cost_memory_s(profile, device, passes)) +
           cost_memory_s(profile, device, bytes - passes);
}

/* --- one op --- */

static ProfilePart
part_of_group(ModelGroup group)
{
    switch (group) {
    case MODEL_GROUP_TP:
        return PROFILE_PART_TP;
    case MODEL_GROUP_CP:
        return PROFILE_PART_CP;
    case MODEL_GROUP_EP:
    case MODEL_GROUP_ETP:
        return PROFILE_PART_EP;
    case MODEL_GROUP_N:
        break;
    }
    g_return_val_if_reached(PROFILE_PART_TP);
}

/* A GEMM's backward has two products, each with half of the launches; other ops have no weight
 * gradient worth a time of its own. */
double
cost_n_kernels(const ModelOp *op, ProfilePass pass)
{
    double backward = (double)op->n_kernels_backward;
    bool is_gemm = op->kind == MODEL_OP_GEMM;

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

/* Constant time of @kernels launches.  Unfused attention has two products forward and four
 * backward; the rest of its kernels, and all of a memory-bound op's, are bound by memory. */
static double
launches_s(const Profile *profile, const ModelOp *op, bool backward, double kernels)
{
    const ProfileParameters *p = &profile->parameters;
    double products = kernels;

    if (op->kind == MODEL_OP_MEMORY)
        products = 0.0;
    else if (op->kind == MODEL_OP_ATTENTION && op->n_kernels_forward > 1)
        products = fmin(kernels, backward ? 4.0 : 2.0);
    return products * p->kernel_s + (kernels - products) * p->memory_kernel_s;
}

/* Copies as they were measured, where they were: each byte is read and written. */
static double
memory_op_s(const Profile *profile, const ModelDevice *device, const ModelOp *op, bool backward)
{
    const int64_t bytes = backward ? op->backward_bytes : op->forward_bytes;
    double seconds;

    if (op->memory_kind == MODEL_MEMORY_COPY &&
        cost_measured_bytes_s(profile, PROFILE_OP_COPY_D2D, 0, bytes / 2, &seconds))
        return seconds;
    return (double)bytes /
           (fraction_of(&profile->parameters, op->memory_kind) * device->memory_bytes_per_s);
}

/* What a collective needs beside it is not there without it. */
static ProfilePart
part_of(const ModelOp *op)
{
    const bool is_copy = op->kind == MODEL_OP_MEMORY && op->memory_kind == MODEL_MEMORY_COPY;

    return is_copy ? part_of_group(op->group) : PROFILE_PART_COMPUTE;
}

ProfileCost
profile_cost_op(const Profile *profile, const ModelDevice *device, const ModelOp *op,
                ProfilePass pass, Dtype dtype, const ProfileGroup *groups)
{
    ProfileCost cost = {.source = PROFILE_SOURCE_MODELLED};
    bool backward = pass != PROFILE_PASS_FORWARD;
    double kernels, seconds = 0.0;

    g_return_val_if_fail(profile != NULL && device != NULL && op != NULL, cost);
    g_return_val_if_fail(pass < PROFILE_PASS_N, cost);

    kernels = cost_n_kernels(op, pass);
    cost.host_s = kernels * profile->parameters.host_kernel_s;
    if (pass == PROFILE_PASS_BACKWARD_WEIGHT && op->kind != MODEL_OP_GEMM)
        return cost;
    if (op->kind == MODEL_OP_COLLECTIVE) {
        ModelComm comm = backward ? op->backward_comm : op->forward_comm;

        cost.host_s = kernels * profile->parameters.host_collective_s;
        if (groups != NULL)
            cost.host_s +=
                kernels * profile->parameters.host_skew_s * (double)(groups[op->group].n - 1);
        if (comm != MODEL_COMM_NONE && groups != NULL)
            cost.part_s[part_of_group(op->group)] =
                profile_cost_collective_s(profile, comm, op->comm_bytes, &groups[op->group]);
        return cost;
    }
    switch (op->kind) {
    case MODEL_OP_GEMM:
        seconds = gemm_pass_s(profile, device, op, pass, dtype);
        break;
    case MODEL_OP_ATTENTION:
        dtype = dtype_stored(dtype);
        /* A fused kernel is one launch by definition; the unfused form has several. */
        seconds = op->n_kernels_forward == 1
                      ? fused_attention_s(profile, device, op, backward, dtype)
                      : unfused_attention_s(profile, device, op, backward, dtype);
        break;
    case MODEL_OP_MEMORY:
        seconds = memory_op_s(profile, device, op, backward);
        break;
    case MODEL_OP_COLLECTIVE:
        break;
    }
    cost.part_s[part_of(op)] = seconds + launches_s(profile, op, backward, kernels);
    return cost;
}

/* --- optimizer --- */

double
profile_cost_optimizer_s(const Profile *profile, const ModelDevice *device, int64_t n_elements,
                         double bytes_per_element)
{
    double seconds;

    g_return_val_if_fail(profile != NULL && device != NULL && n_elements >= 0, 0.0);

    if (n_elements == 0)
        return 0.0;
    if (profile_measured_optimizer(profile, n_elements, &seconds))
        return seconds;
    return cost_memory_s(profile, device, (double)n_elements * bytes_per_element) +
           profile->parameters.kernel_s;
}
