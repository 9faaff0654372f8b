/*
 * profiles/cost_build.h - what costs of ops and of parts have in common.  Internal to profiles/.
 */
#ifndef PROFILES_COST_BUILD_H
#define PROFILES_COST_BUILD_H

#include "profiles/cost.h"

G_BEGIN_DECLS

/* @bytes through memory, by kernels that memory_fraction stands for. */
double cost_memory_s(const Profile *profile, const ModelDevice *device, double bytes);

/* The weight gradient's product dB = A' dC, moving @more_bytes besides its operands and result. */
double cost_weight_product_s(const Profile *profile, const ModelDevice *device, const ModelOp *op,
                             Dtype dtype, double more_bytes);

G_END_DECLS

#endif /* PROFILES_COST_BUILD_H */
