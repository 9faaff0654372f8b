/*
 * profiles/workload/ops.h - what a plan's conventions make of an op: its kernels, and the adding of
 * gradients.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "models/ops.h"
#include "profiles/cost/cost.h"
#include "schedule/framework.h"

/* Sets the seconds that a framework's host needs for each kernel, and for each expert, beyond
 * host_kernel_s: as much slower as the machine's hosts are in launching. */
void workload_set_host(PlanFramework framework, const ProfileParameters *parameters,
                       ProfileQuery *query);

/* Sets the members of @shape that conventions decide: which kernels run, whether dropout masks are
 * kept, how experts and attention are split over ranks. */
void workload_set_conventions(const PlanConventions *conventions,
                              const ProfileParameters *parameters, ModelShape *shape);

/*
 * Bytes that adding the gradient of one weight to those of earlier backwards moves through memory,
 * as the mean over the @n backwards of an iteration (cost-model.md 2.4).  Grows with @n.
 * @in_product  the product that makes a gradient adds it (plan_framework_fuses_accumulation())
 */
double workload_accumulate_bytes(Dtype dtype, const PlanConventions *conventions, bool in_product,
                                 double n);
