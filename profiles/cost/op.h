/*
 * profiles/cost/op.h - what one op takes on a device.
 *
 *   products       max(FLOPs / rate(m, n, k), bytes / memory rate) + launch; the rate follows from
 *                  tiles and waves
 *   attention      one fused kernel: FLOPs at its own share of peak; else two batched products and
 *                  the traffic of the softmax between them
 *   memory-bound   bytes / (share of the memory's rate) + launch  [roofline: Williams 2009]
 *   host           an op takes no less than the host needs to launch its kernels
 *
 * Formulas and their sources: docs/cost-model.md.  Thread-safety: pure.
 */
#pragma once

#include "profiles/cost/collective.h"

typedef enum {
    PROFILE_SOURCE_MODELLED,
    PROFILE_SOURCE_INTERPOLATED, /* between measured shapes */
    PROFILE_SOURCE_MEASURED,
} ProfileSource;

extern const char *const profile_source_names[]; /* "modelled", "interpolated", "measured" */

/* What an op spends its time on. */
typedef enum {
    PROFILE_PART_COMPUTE,
    PROFILE_PART_TP, /* collectives of tensor parallelism */
    PROFILE_PART_CP,
    PROFILE_PART_EP,
    PROFILE_PART_RECOMPUTE,
    PROFILE_PART_DP, /* ZeRO 3 gathers parameters and reduces gradients inside the op */
    PROFILE_PART_N,
} ProfilePart;

/* What an op takes: the larger of the sum of part_s and host_s. */
typedef struct {
    double part_s[PROFILE_PART_N]; /* on the compute stream of the device */
    double host_s;                 /* for the host to issue it */
    ProfileSource source;
} ProfileCost;

/* Seconds of all parts on the device. */
double profile_cost_device_s(const ProfileCost *cost);

/* Seconds of an op: the larger of device and host. */
double profile_cost_s(const ProfileCost *cost);

/* The peak rate of @device for @dtype, or for the nearest wider format that it has a rate for;
 * always above 0. */
double profile_peak_flops_per_s(const ModelDevice *device, Dtype dtype);

/* Whether ranks that have both devices wait for @a: its peak is lower, of equal ones its memory's rate. */
bool profile_is_slower(const ModelDevice *a, const ModelDevice *b, Dtype dtype);

/* Seconds to move @bytes through the memory of @device at the share memory_fraction of its rate. */
double profile_cost_memory_s(const Profile *profile, const ModelDevice *device, double bytes);

/*
 * The modelled cost of one op on @device in @pass, host time included.
 * @groups  (nullable) by ModelGroup: over which devices its collectives run; NULL: they cost
 * nothing.
 */
ProfileCost profile_cost_op(const Profile *profile, const ModelDevice *device, const ModelOp *op,
                            ProfilePass pass, Dtype dtype, const ProfileGroup *groups);

/* Seconds of @op->count products of one shape that one kernel computes, such as the scores of
 * attention; the products of experts differ in size and are asked of profile_cost_op(). */
double profile_cost_batched_product_s(const Profile *profile, const ModelDevice *device,
                                      const ModelOp *op, Dtype dtype);

/* --- for the sums of ops in cost.c --- */

/* As profile_cost_op(); with @sliced of an op on whole sequences, what no slices of them take less
 * than together. */
ProfileCost profile_cost_sliced_op(const Profile *profile, const ModelDevice *device,
                                   const ModelOp *op, ProfilePass pass, Dtype dtype,
                                   const ProfileGroup *groups, bool sliced);

/* Sets @costs to those of profile_cost_op() in each pass; each product is priced once. */
void profile_cost_op_passes(const Profile *profile, const ModelDevice *device, const ModelOp *op,
                            Dtype dtype, const ProfileGroup *groups,
                            ProfileCost costs[PROFILE_PASS_N]);

/* One product with weights, of operands of format @dtype, which moves @more_bytes besides; with
 * @sliced no more than any slices of its rows take together. */
double profile_cost_weight_product_s(const Profile *profile, const ModelDevice *device,
                                     const ModelOp *op, Dtype dtype, double more_bytes,
                                     bool sliced);

/* The format of a product's operands where the part computes in @dtype. */
Dtype profile_op_dtype(const ModelOp *op, Dtype dtype);

/* Kernels of the op in @pass.  A GEMM's backward has two products, each with half of the launches;
 * other ops have no weight gradient worth a time of its own. */
double profile_op_kernels(const ModelOp *op, ProfilePass pass);

/* What else the host launches for the op: the kernels that quantise, one for each product. */
double profile_op_quantising(const ModelOp *op, ProfilePass pass);

/* What the blocks of fused attention do once for their rows in FORWARD or BACKWARD, whatever the context:
 * linear in the rows, and never more than the op has of it; 0 of other ops (cost-model.md 2.2). */
double profile_op_attention_rows_s(const Profile *profile, const ModelDevice *device,
                                   const ModelOp *op, ProfilePass pass, Dtype dtype);

/* What blocks of keys do once in the backward of fused attention over whole sequences, which slices repeat for all
 * keys of their contexts; 0 where memory decides, a window bounds the keys, and of other ops. */
double profile_op_attention_keys_s(const Profile *profile, const ModelDevice *device,
                                   const ModelOp *op, Dtype dtype);

/* Constant time of @kernels launches. */
double profile_op_launches_s(const Profile *profile, const ModelOp *op, bool backward,
                             double kernels);
