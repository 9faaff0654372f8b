/*
 * profiles/workload/step.h - how long the optimizer's step takes on a device.
 *
 * A function of a plan's numbers and conventions, which needs no Workload: the planner bounds plans
 * with the one that Workloads are made of.  Formula and sources: docs/cost-model.md 5.2.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "profiles/profile.h"
#include "profiles/workload/state.h"

/* What of a plan the step depends on.  All pointers are borrowed. */
typedef struct {
    const PlanDegrees *degrees;
    const PlanConventions *conventions;
    Dtype dtype;
    int32_t zero_stage;
    PlanOffload offload;
    bool offload_parameters;
} WorkloadStep;

/*
 * Returns: seconds of @step on @device, whose stages have the parameters @n before ZeRO splits them;
 * 0 where the conventions have no step.  Unless the profile has measured the optimizer, it is linear
 * in the parameters that the device updates, plus a constant.  What Muon computes is not in it.
 */
double workload_step_s(const Profile *profile, const ModelDevice *device, const WorkloadStep *step,
                       const WorkloadParameters *n);
