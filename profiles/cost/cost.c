#include "profiles/cost/cost.h"

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
    double best = INFINITY;

    for (size_t i = 0; i < G_N_ELEMENTS(tiles); i++) {
        const double m = real_max(1.0, p->gemm_tile_m * tiles[i].m);
        const double n = real_max(1.0, p->gemm_tile_n * tiles[i].n);
        const double rows =
            product->bound == PRODUCT_SLICED_ROWS ? product->m : ceil(product->m / m) * m;
        const double k = product->k + (product->adds ? 2.0 : 1.0) * p->gemm_k_half;
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
            double k = product->k / split + (product->adds ? 2.0 : 1.0) * p->gemm_k_half;
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

static double
weight_product_s(const Profile *profile, const ModelDevice *device, const ModelOp *op, Dtype dtype,
                 double more_bytes, bool sliced)
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

/* The format of a product's operands. */
static Dtype
operand_dtype(const ModelOp *op, Dtype dtype)
{
    return op->stored_operands ? dtype_stored(dtype) : dtype;
}

/* What else the host launches for the op: the kernels that quantise, one for each product. */
static double
n_quantising(const ModelOp *op, ProfilePass pass)
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
           n_quantising(op, pass) * profile->parameters.kernel_s;
}

/* Applying the scales to the results of a quantised product's backward, where it has not done so. */
static double
rescale_s(const Profile *profile, const ModelDevice *device, const ModelOp *op, ProfilePass pass)
{
    const double input = (double)op->m * (double)op->k, weight = (double)op->n * (double)op->k;
    const bool both = pass == PROFILE_PASS_BACKWARD;
    const double elements = (both || pass == PROFILE_PASS_BACKWARD_INPUT ? input : 0.0) +
                            (both || pass == PROFILE_PASS_BACKWARD_WEIGHT ? weight : 0.0);

    if (op->rescale_bytes <= 0.0 || op->stored_operands || elements <= 0.0)
        return 0.0;
    return profile_cost_memory_s(profile, device, (double)op->count * elements * op->rescale_bytes);
}

/* The forward product, the input gradient's dA = dC B' and the weight gradient's dB = A' dC.
 * Activations' traffic is halved between the two backward products. */
static double
gemm_pass_s(const Profile *profile, const ModelDevice *device, const ModelOp *op, ProfilePass pass,
            Dtype dtype, bool sliced)
{
    const ProductBound bound = sliced ? PRODUCT_SLICED_ROWS : PRODUCT_TIMED;
    double count = (double)op->count, m = (double)op->m, n = (double)op->n, k = (double)op->k;
    double rate = aligned(profile, op, dtype);
    bool grouped = op->count > 1 && !op->one_kernel;
    const Product forward = {count, m, n, k, rate, grouped, false, bound};
    const Product input = {count, m, k, n, rate, grouped, false, bound};
    double weight_bytes = (double)op->weight_bytes;
    double half_bytes = (double)op->backward_bytes / 2.0 + weight_bytes;
    double seconds = 0.0;

    if (pass == PROFILE_PASS_FORWARD)
        return gemm_s(profile, device, dtype, &forward, (double)op->forward_bytes + weight_bytes);
    if (pass != PROFILE_PASS_BACKWARD_WEIGHT)
        seconds += gemm_s(profile, device, dtype, &input, half_bytes);
    if (pass != PROFILE_PASS_BACKWARD_INPUT)
        seconds += weight_product_s(profile, device, op, dtype, 0.0, sliced);
    return seconds;
}

/* --- attention --- */

/* Query rows of one block of a fused kernel  [2307.08691: 128 at head size 64 and 128]. */
#define FUSED_BLOCK_ROWS 128.0
/* Backward of a fused kernel computes the scores again: five products against two. */
#define FUSED_BACKWARD_PRODUCTS 2.5

static double
fused_attention_s(const Profile *profile, const ModelDevice *device, const ModelOp *op,
                  bool backward, Dtype dtype, bool sliced)
{
    const ProfileParameters *p = &profile->parameters;
    const double versions[] = {1.0, p->flash1_fraction, p->flash2_fraction};
    double version = versions[op->flash_version];
    double fraction =
        version * (backward ? p->attention_backward_fraction : p->attention_forward_fraction);
    double flops =
        op->forward_flops * op->causal_fraction * (backward ? FUSED_BACKWARD_PRODUCTS : 1.0);
    /* Backward is split over keys, forward over queries. */
    double rows = backward ? (double)op->n : (double)op->m;
    double blocks = (double)op->count * ceil(rows / FUSED_BLOCK_ROWS);
    double n_sm = n_multiprocessors(device);
    double filled = sliced ? 1.0 : blocks / (n_sm * ceil(blocks / n_sm));
    double bytes = (double)(backward ? op->backward_bytes : op->forward_bytes);

    return real_max(slowness(profile) * flops /
                        (fraction * filled * profile_peak_flops_per_s(device, dtype)),
                    profile_cost_memory_s(profile, device, bytes));
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

/* A GEMM's backward has two products, each with half of the launches; other ops have no weight
 * gradient worth a time of its own. */
static double
n_kernels(const ModelOp *op, ProfilePass pass)
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
 * backward; the rest of its kernels, and all of a memory-bound op's, are bound by memory.  Those
 * on a few words need no ramp. */
static double
launches_s(const Profile *profile, const ModelOp *op, bool backward, double kernels)
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

/* As profile_cost_op(); @sliced: of an op on whole sequences, what no slices of them take less than
 * together. */
static ProfileCost
op_cost(const Profile *profile, const ModelDevice *device, const ModelOp *op, ProfilePass pass,
        Dtype dtype, const ProfileGroup *groups, bool sliced)
{
    ProfileCost cost = {.source = PROFILE_SOURCE_MODELLED};
    bool backward = pass != PROFILE_PASS_FORWARD;
    double kernels, seconds = 0.0;

    kernels = n_kernels(op, pass);
    cost.host_s = (kernels + n_quantising(op, pass)) * profile->parameters.host_kernel_s;
    if (pass == PROFILE_PASS_BACKWARD_WEIGHT && op->kind != MODEL_OP_GEMM)
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
    case MODEL_OP_GEMM:
        seconds = gemm_pass_s(profile, device, op, pass, operand_dtype(op, dtype), sliced) +
                  quantise_s(profile, device, op, pass) + rescale_s(profile, device, op, pass);
        break;
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
    case MODEL_OP_COLLECTIVE:
        break;
    }
    /* What a collective needs beside it is not there without it. */
    const bool is_copy =
        op->kind == MODEL_OP_MEMORY && (op->memory_kind == MODEL_MEMORY_COPY || op->in_exchange);
    cost.part_s[is_copy ? part_of_group[op->group] : PROFILE_PART_COMPUTE] =
        seconds + launches_s(profile, op, backward, kernels);
    return cost;
}

ProfileCost
profile_cost_op(const Profile *profile, const ModelDevice *device, const ModelOp *op,
                ProfilePass pass, Dtype dtype, const ProfileGroup *groups)
{
    g_return_val_if_fail(profile != NULL && device != NULL && op != NULL, (ProfileCost){0});
    g_return_val_if_fail(pass < PROFILE_PASS_N, (ProfileCost){0});

    return op_cost(profile, device, op, pass, dtype, groups, false);
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
    return profile_cost_memory_s(profile, device, (double)n_elements * bytes_per_element) +
           profile->parameters.kernel_s;
}

/* --- parts: the sum of a part's ops, what hides behind what, and the host --- */

static void
add_cost(ProfileCost *sum, const ProfileCost *cost)
{
    for (int i = 0; i < PROFILE_PART_N; i++)
        sum->part_s[i] += cost->part_s[i];
    sum->host_s += cost->host_s;
}

/*
 * Hides up to @behind_s of @hidden_s, communication of @part, behind computing, which slows down
 * meanwhile; what is longer stays visible.
 *
 * K and V travel while the scores of what has arrived are computed  [ring attention, 2310.01889]:
 * behind the attention of all but the first share.
 *
 * Tensor parallelism: with sequence parallelism gathers and scatters are cut up and travel while
 * the product next to them computes [userbuffers of Transformer Engine].  An all-reduce cannot: its
 * result is needed whole.  Only the input gradient's hides, behind the weight gradient's products
 * [2205.05198, 5.3: the baseline overlaps these two].
 *
 * Experts: the forward of one micro-batch and the backward of another are merged layer by layer, and
 * the all-to-alls of each hide behind the computing of the other [2412.19437 3.2.1; Megatron-Core's
 * combined 1F1B].  Both passes have as much to hide, and about as much to hide it behind, as if each
 * hid behind its own.
 */
static void
hide(const Profile *profile, ProfilePart part, double hidden_s, double behind_s, ProfileCost *cost)
{
    hidden_s = real_min(hidden_s, behind_s);
    cost->part_s[part] -= hidden_s;
    cost->part_s[PROFILE_PART_COMPUTE] += profile->parameters.interference_fraction * hidden_s;
}

/* Calls of the framework by which each pass of a layer grows where passes are merged: five parts
 * (attention, dispatch, experts, combine, what follows) each pass events between two
 * streams and call autograd for themselves (cost-model.md 2.5). */
#define MERGED_CALLS 10.0

/* Of the framework for a kernel of @pass. */
static double
framework_kernel_s(const ProfileQuery *query, ProfilePass pass)
{
    return pass == PROFILE_PASS_FORWARD ? query->host_kernel_s : query->host_backward_kernel_s;
}

static double
merging_s(const Profile *profile, const ProfileQuery *query, ProfilePass pass)
{
    if (query->part != MODEL_PART_LAYER || !query->overlap_ep ||
        query->shape.graphs >= (int)MODEL_SCOPE_LAYER)
        return 0.0;
    return MERGED_CALLS * (framework_kernel_s(query, pass) + profile->parameters.host_kernel_s);
}

/* Forward has a third of a layer's host time, backward two thirds: it issues two kernels for each
 * of the forward's. */
static double
host_layer_s(const Profile *profile, const ProfileQuery *query, ProfilePass pass)
{
    if (query->part != MODEL_PART_LAYER || query->shape.graphs >= (int)MODEL_SCOPE_LAYER)
        return 0.0;
    return profile->parameters.host_layer_s / 3.0 * (pass == PROFILE_PASS_BACKWARD ? 2.0 : 1.0);
}

/* Products of experts are one call of the framework, whose library launches them in a loop; so are,
 * about, what is done to each expert's rows. */
static double
host_framework_s(const ProfileQuery *query, const ModelOp *op, ProfilePass pass)
{
    const bool loops = op->kind == MODEL_OP_GEMM || op->kind == MODEL_OP_MEMORY;
    const double n = loops ? (double)MAX(1, op->count) : 1.0;

    return op->kind == MODEL_OP_COLLECTIVE ? 0.0
                                           : (n_kernels(op, pass) + n_quantising(op, pass)) / n *
                                                 framework_kernel_s(query, pass);
}

/* Experts with quantised operands, which are tensors of their own, unless one kernel takes all. */
static double
host_experts_s(const ProfileQuery *query, const ModelOp *op, ProfilePass pass)
{
    return op->expert && !op->one_kernel ? n_quantising(op, pass) * query->host_expert_s : 0.0;
}

/* Host time of @op, @host_s without the framework: none where a graph holds it. */
static double
host_of_op_s(const ProfileQuery *query, const ModelOp *op, ProfilePass pass, double host_s)
{
    return op->captured
               ? 0.0
               : host_s + host_framework_s(query, op, pass) + host_experts_s(query, op, pass);
}

/* What an op takes of device and host, and its kernels. */
typedef struct {
    double device_s, host_s, n_kernels;
} OpTime;

/*
 * How long the device rests in a layer whose host waits, before it launches op @first, until the device
 * has come so far.  From then on both begin at once: an op begins when the one before it has ended and
 * its first kernel is launched, and ends no sooner than its last kernel takes after its launch.  The
 * ops before @first are those of the next layer, up to its wait.
 */
static double
rest_s(const OpTime *times, size_t n, size_t first)
{
    double device_s = 0.0, host_s = 0.0, busy_s = 0.0;

    for (size_t i = 0; i < n; i++) {
        const OpTime *op = &times[(first + i) % n];
        const double kernels = fmax(1.0, op->n_kernels);
        const double begin_s = fmax(device_s, host_s + op->host_s / kernels);

        host_s += op->host_s;
        device_s = fmax(begin_s + op->device_s, host_s + op->device_s / kernels);
        busy_s += op->device_s;
    }
    return device_s - busy_s;
}

/* Adding the gradients of this pass to what earlier passes left: one kernel per weight, or inside
 * the products that make them, which then read and write more while they compute. */
static double
accumulate_s(const Profile *profile, const ModelDevice *device, const ProfileQuery *query,
             const ModelOp *ops, size_t n_ops)
{
    double seconds = 0.0;

    if (query->accumulate_bytes_per_weight <= 0.0)
        return 0.0;
    for (size_t i = 0; i < n_ops; i++) {
        const Dtype dtype = operand_dtype(&ops[i], query->shape.dtype);
        double bytes = (double)ops[i].weight_bytes / (double)dtype_bytes(dtype) *
                       query->accumulate_bytes_per_weight;

        if (ops[i].weight_bytes == 0)
            continue;
        if (query->accumulate_in_product && ops[i].kind == MODEL_OP_GEMM)
            seconds += weight_product_s(profile, device, &ops[i], dtype, bytes, false) -
                       weight_product_s(profile, device, &ops[i], dtype, 0.0, false);
        else
            seconds += profile_cost_memory_s(profile, device, bytes) + profile->parameters.kernel_s;
    }
    return seconds;
}

/* Lists the ops that @query is about.  @sliced: as any slices of its sequences may have them at the
 * least. */
static size_t
list_ops(const ProfileQuery *query, bool sliced, ModelOp ops[MODEL_MAX_OPS])
{
    ModelShape shape = query->shape;

    /* A softmax kernel that the sequence is too long for may take a slice. */
    if (sliced)
        shape.softmax_keys = 0;
    const size_t n_ops = model_ops(query->arch, query->part, query->layer, &shape, ops);
    /* Each expert's rows are rounded to whole ones. */
    for (size_t i = 0; sliced && i < n_ops; i++)
        if (ops[i].kind == MODEL_OP_GEMM && ops[i].count > 1)
            ops[i].m = MAX(0, ops[i].m - 1);
    return n_ops;
}

/*
 * Sums the ops that were listed for @query.
 * @accumulated_s  what adding the gradients of the pass takes.
 * @sliced: at most what any slices of the sequences of @query take together, without what depends
 * on how many they are.  Why: what ops take is added and hidden by functions f of several times
 * that grow with each of them and have f(x + y) <= f(x) + f(y), f(a x) = a f(x): sums, maxima, and
 * c + t - (1 - i) min(t, q a), where a is a part of c, 0 <= i, q <= 1.  So the sum of f over slices
 * is at least f of sums, and f of what bounds these.
 */
static ProfileCost
sum_ops(const Profile *profile, const ModelDevice *device, const ProfileQuery *query,
        ProfilePass pass, bool sliced, const ModelOp *ops, size_t n_ops, double accumulated_s)
{
    ProfileCost sum = {.source = PROFILE_SOURCE_MODELLED};
    const bool hides_tp =
        query->overlap_tp && (pass == PROFILE_PASS_FORWARD || !query->overlap_tp_forward);
    double ring_s = 0.0, attention_s = 0.0, weight_products_s = 0.0;
    OpTime times[MODEL_MAX_OPS];
    size_t waits = MODEL_MAX_OPS;
    const double cp = (double)query->shape.cp;

    if (n_ops == 0)
        return sum;
    for (size_t i = 0; i < n_ops; i++) {
        ProfileCost cost =
            op_cost(profile, device, &ops[i], pass, query->shape.dtype, query->groups, sliced);

        cost.host_s = host_of_op_s(query, &ops[i], pass, cost.host_s);
        add_cost(&sum, &cost);
        times[i] = (OpTime){profile_cost_device_s(&cost), cost.host_s, n_kernels(&ops[i], pass)};
        if (ops[i].after_wait)
            waits = i;
        if (ops[i].kind == MODEL_OP_ATTENTION)
            attention_s += cost.part_s[PROFILE_PART_COMPUTE];
        if (hides_tp && ops[i].kind == MODEL_OP_GEMM && pass == PROFILE_PASS_BACKWARD)
            weight_products_s += weight_product_s(
                profile, device, &ops[i], operand_dtype(&ops[i], query->shape.dtype), 0.0, sliced);
        ring_s += cost.part_s[PROFILE_PART_CP];
    }
    if (!sliced && (pass == PROFILE_PASS_BACKWARD || pass == PROFILE_PASS_BACKWARD_WEIGHT))
        sum.part_s[PROFILE_PART_COMPUTE] += accumulated_s;
    /* An all-to-all, or a gathering, is needed whole before attention begins. */
    if (ring_s > 0.0 && !query->shape.all_to_all && !query->shape.gathered_kv)
        hide(profile, PROFILE_PART_CP, ring_s, attention_s * (cp - 1.0) / cp, &sum);
    if (hides_tp)
        hide(profile, PROFILE_PART_TP, sum.part_s[PROFILE_PART_TP],
             query->shape.sequence_parallel ? sum.part_s[PROFILE_PART_COMPUTE] : weight_products_s,
             &sum);
    if (query->overlap_ep)
        hide(profile, PROFILE_PART_EP, sum.part_s[PROFILE_PART_EP],
             sum.part_s[PROFILE_PART_COMPUTE], &sum);
    sum.host_s += host_layer_s(profile, query, pass) + merging_s(profile, query, pass);
    /* Where passes are merged the device has the other one to do. */
    if (waits < n_ops && pass == PROFILE_PASS_FORWARD && !sliced && !query->overlap_ep)
        sum.host_s = fmax(sum.host_s, profile_cost_device_s(&sum) + rest_s(times, n_ops, waits));
    return sum;
}

/* Whether the model has the part that @query is about. */
static bool
has_part(const ProfileQuery *query)
{
    return query->arch->vocab > 0 || query->part == MODEL_PART_LAYER;
}

/* What selective recompute repeats of the listed ops. */
static ProfileCost
repeated_ops(const Profile *profile, const ModelDevice *device, const ProfileQuery *query,
             const ModelOp *ops, size_t n_ops)
{
    ProfileCost sum = {.source = PROFILE_SOURCE_MODELLED};

    for (size_t i = 0; i < n_ops; i++) {
        if (ops[i].again_fraction <= 0.0)
            continue;
        ProfileCost cost = profile_cost_op(profile, device, &ops[i], PROFILE_PASS_FORWARD,
                                           query->shape.dtype, query->groups);
        sum.part_s[PROFILE_PART_RECOMPUTE] += ops[i].again_fraction * profile_cost_device_s(&cost);
        sum.host_s += host_of_op_s(query, &ops[i], PROFILE_PASS_FORWARD, cost.host_s);
    }
    return sum;
}

ProfileCost
profile_cost_part(const Profile *profile, const ProfileQuery *query, ProfilePass pass)
{
    ProfileCost cost = {.source = PROFILE_SOURCE_MODELLED};
    ModelOp ops[MODEL_MAX_OPS];

    g_return_val_if_fail(profile != NULL && query != NULL && pass < PROFILE_PASS_N, cost);

    if (!has_part(query))
        return cost;
    const ModelDevice *device = model_cluster_device(profile->cluster, query->rank);
    const size_t n_ops = list_ops(query, false, ops);
    const double accumulated_s =
        pass == PROFILE_PASS_FORWARD ? 0.0 : accumulate_s(profile, device, query, ops, n_ops);
    cost = sum_ops(profile, device, query, pass, false, ops, n_ops, accumulated_s);
    profile_measured_part(profile, query, pass, &cost);
    return cost;
}

ProfilePartCosts
profile_cost_passes(const Profile *profile, const ProfileQuery *query)
{
    ProfilePartCosts costs = {0};
    ModelOp ops[MODEL_MAX_OPS];

    g_return_val_if_fail(profile != NULL && query != NULL, costs);

    if (!has_part(query))
        return costs;
    const ModelDevice *device = model_cluster_device(profile->cluster, query->rank);
    const size_t n_ops = list_ops(query, false, ops);
    const double accumulated_s = accumulate_s(profile, device, query, ops, n_ops);
    for (ProfilePass pass = 0; pass < PROFILE_PASS_N; pass++) {
        costs.passes[pass] =
            sum_ops(profile, device, query, pass, false, ops, n_ops, accumulated_s);
        profile_measured_part(profile, query, pass, &costs.passes[pass]);
    }
    if (query->part == MODEL_PART_LAYER)
        costs.selective = repeated_ops(profile, device, query, ops, n_ops);
    return costs;
}

ProfileCost
profile_cost_again(const ProfileCost *forward)
{
    ProfileCost again = {.source = forward->source, .host_s = forward->host_s};

    again.part_s[PROFILE_PART_RECOMPUTE] = profile_cost_device_s(forward);
    return again;
}

ProfileCost
profile_cost_recompute(const Profile *profile, const ProfileQuery *query, bool full)
{
    ModelOp ops[MODEL_MAX_OPS];

    g_return_val_if_fail(profile != NULL && query != NULL, (ProfileCost){0});

    if (full) {
        const ProfileCost forward = profile_cost_part(profile, query, PROFILE_PASS_FORWARD);

        return profile_cost_again(&forward);
    }
    return repeated_ops(profile, model_cluster_device(profile->cluster, query->rank), query, ops,
                        list_ops(query, false, ops));
}

/* --- what slicing cannot save --- */

/* Measured collectives and copies keep to no law: products with weights alone, at the rate of whole
 * tiles. */
static double
products_s(const Profile *profile, const ProfileQuery *query, ProfilePass pass)
{
    const ModelDevice *device = model_cluster_device(profile->cluster, query->rank);
    const double n_products = pass == PROFILE_PASS_FORWARD ? 1.0 : 2.0;
    ModelOp ops[MODEL_MAX_OPS];
    const size_t n = model_ops(query->arch, query->part, query->layer, &query->shape, ops);
    double seconds = 0.0;

    for (size_t i = 0; i < n; i++) {
        /* Each expert's rows are rounded to whole ones. */
        const double m = (double)ops[i].m - (ops[i].count > 1 ? 1.0 : 0.0);
        if (ops[i].kind == MODEL_OP_GEMM && ops[i].weight_bytes > 0)
            seconds += 2.0 * (double)ops[i].count * real_max(0.0, m) * (double)ops[i].n *
                       (double)ops[i].k /
                       profile_peak_flops_per_s(device, operand_dtype(&ops[i], query->shape.dtype));
    }
    return n_products * seconds / profile->parameters.gemm_fraction;
}

/* The same where the profile has measured rows. */
static double
measured_floor_s(const Profile *profile, const ProfileQuery *query, ProfilePass pass)
{
    double seconds, input_s, weight_s;

    if (!profile_measured_sliced_floor(profile, query, pass, &seconds))
        return products_s(profile, query, pass);
    /* Halves that were measured apart may take less than the whole. */
    if (pass == PROFILE_PASS_BACKWARD &&
        profile_measured_sliced_floor(profile, query, PROFILE_PASS_BACKWARD_INPUT, &input_s) &&
        profile_measured_sliced_floor(profile, query, PROFILE_PASS_BACKWARD_WEIGHT, &weight_s))
        seconds = real_min(seconds, input_s + weight_s);
    return seconds;
}

/* What selective recompute repeats of the ops that were listed for any slices. */
static double
repeated_floor_s(const Profile *profile, const ModelDevice *device, const ProfileQuery *query,
                 const ModelOp *ops, size_t n_ops)
{
    double seconds = 0.0;

    for (size_t i = 0; i < n_ops; i++)
        if (ops[i].again_fraction > 0.0)
            seconds +=
                ops[i].again_fraction * op_cost(profile, device, &ops[i], PROFILE_PASS_FORWARD,
                                                query->shape.dtype, query->groups, true)
                                            .part_s[PROFILE_PART_COMPUTE];
    return seconds;
}

ProfileSlicedFloors
profile_cost_sliced_floors(const Profile *profile, const ProfileQuery *query)
{
    const ModelDevice *device = model_cluster_device(profile->cluster, query->rank);
    ProfileSlicedFloors floors = {0};
    ModelOp ops[MODEL_MAX_OPS];

    if (!has_part(query))
        return floors;
    if (profile->measurements->len > 0) {
        floors.forward_s = measured_floor_s(profile, query, PROFILE_PASS_FORWARD);
        floors.backward_s = measured_floor_s(profile, query, PROFILE_PASS_BACKWARD);
        return floors;
    }
    const size_t n_ops = list_ops(query, true, ops);
    const ProfileCost forward =
        sum_ops(profile, device, query, PROFILE_PASS_FORWARD, true, ops, n_ops, 0.0);
    const ProfileCost backward =
        sum_ops(profile, device, query, PROFILE_PASS_BACKWARD, true, ops, n_ops, 0.0);
    floors.forward_s = profile_cost_device_s(&forward);
    floors.backward_s = profile_cost_device_s(&backward);
    if (query->part == MODEL_PART_LAYER)
        floors.selective_s = repeated_floor_s(profile, device, query, ops, n_ops);
    return floors;
}

double
profile_cost_sliced_attention_floor_s(const Profile *profile, const ProfileQuery *query,
                                      ProfilePass pass)
{
    const ModelDevice *device = model_cluster_device(profile->cluster, query->rank);
    const bool backward = pass != PROFILE_PASS_FORWARD;
    ModelShape shape = query->shape;
    ModelOp ops[MODEL_MAX_OPS];
    double seconds = 0.0;

    if (profile->measurements->len > 0 || query->overlap_tp)
        return 0.0;
    shape.softmax_keys = 0;
    const size_t n = model_ops(query->arch, query->part, query->layer, &shape, ops);
    for (size_t i = 0; i < n; i++)
        if (ops[i].kind == MODEL_OP_ATTENTION)
            seconds +=
                op_cost(profile, device, &ops[i], pass, query->shape.dtype, query->groups, true)
                    .part_s[PROFILE_PART_COMPUTE] -
                launches_s(profile, &ops[i], backward, n_kernels(&ops[i], pass));
    return seconds;
}

/* One pass of a slice of the listed ops. */
static ProfileSliceFloor
slice_floor(const Profile *profile, const ModelDevice *device, const ProfileQuery *query,
            ProfilePass pass, const ModelOp *ops, size_t n_ops)
{
    const bool backward = pass != PROFILE_PASS_FORWARD;
    const bool is_ring = !query->shape.all_to_all && !query->shape.gathered_kv;
    ProfileSliceFloor floor = {.host_s = host_layer_s(profile, query, pass)};

    for (size_t i = 0; i < n_ops; i++) {
        const ProfileCost cost =
            profile_cost_op(profile, device, &ops[i], pass, query->shape.dtype, query->groups);
        floor.host_s += host_of_op_s(query, &ops[i], pass, cost.host_s);
        /* Attention depends on the context, all but its launches. */
        if (ops[i].kind == MODEL_OP_ATTENTION)
            floor.device_s += launches_s(profile, &ops[i], backward, n_kernels(&ops[i], pass));
        else
            floor.device_s += cost.part_s[PROFILE_PART_COMPUTE];
        /* Collectives of tp, and those of a ring, may hide. */
        floor.device_s += cost.part_s[PROFILE_PART_EP] +
                          (query->overlap_tp ? 0.0 : cost.part_s[PROFILE_PART_TP]) +
                          (is_ring ? 0.0 : cost.part_s[PROFILE_PART_CP]);
    }
    if (pass == PROFILE_PASS_BACKWARD)
        floor.device_s += accumulate_s(profile, device, query, ops, n_ops);
    return floor;
}

ProfileSliceFloors
profile_cost_slice_floors(const Profile *profile, const ProfileQuery *query)
{
    const ModelDevice *device = model_cluster_device(profile->cluster, query->rank);
    ModelShape shape = query->shape;
    ModelOp ops[MODEL_MAX_OPS];

    if (profile->measurements->len > 0)
        return (ProfileSliceFloors){0};
    /* A kernel that this slice is too odd for may take a longer one. */
    shape.softmax_keys = 0;
    const size_t n = model_ops(query->arch, query->part, query->layer, &shape, ops);
    return (ProfileSliceFloors){
        slice_floor(profile, device, query, PROFILE_PASS_FORWARD, ops, n),
        slice_floor(profile, device, query, PROFILE_PASS_BACKWARD, ops, n),
    };
}
