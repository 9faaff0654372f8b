/*
 * profiles/cost/cost_build.h - what costs of ops and of parts have in common.  Internal to
 * profiles/.
 */
#ifndef PROFILES_COST_COST_BUILD_H
#define PROFILES_COST_COST_BUILD_H

#include "profiles/cost/cost.h"

G_BEGIN_DECLS

/*
 * Rows of @op over @n_ranks (0: of no group), piecewise linear in bytes: constant below the first
 * (latency), along the last segment, or proportional after a single row, above the last.  False
 * without rows.
 */
bool cost_measured_bytes_s(const Profile *profile, ProfileOp op, int64_t n_ranks, int64_t bytes,
                           double *seconds);

/* @bytes through memory, by kernels that memory_fraction stands for. */
double cost_memory_s(const Profile *profile, const ModelDevice *device, double bytes);

/* The weight gradient's product dB = A' dC, moving @more_bytes besides its operands and result. */
double cost_weight_product_s(const Profile *profile, const ModelDevice *device, const ModelOp *op,
                             Dtype dtype, double more_bytes);

/* @op->count products of one shape that one kernel computes, @op->forward_bytes in all: scores of
 * attention, not products of experts. */
double cost_batched_product_s(const Profile *profile, const ModelDevice *device, const ModelOp *op,
                              Dtype dtype);

/* Launches of @pass: kernels, or collectives. */
double cost_n_kernels(const ModelOp *op, ProfilePass pass);

/* The profile's host time in @pass of a layer, beyond its kernels and the framework's
 * (cost-model.md 2.5). */
double cost_host_layer_s(const Profile *profile, const ProfileQuery *query, ProfilePass pass);

/* Host time of the framework to issue @op. */
double cost_host_framework_s(const ProfileQuery *query, const ModelOp *op, ProfilePass pass);

/* Adding the gradients of @ops, as @query says. */
double cost_accumulate_s(const Profile *profile, const ModelDevice *device,
                         const ProfileQuery *query, const ModelOp *ops, size_t n_ops);

G_END_DECLS

#endif /* PROFILES_COST_COST_BUILD_H */
