/*
 * profiles/workload/zero3.h - when ZeRO 3 gathers the weights of a layer.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "models/arch.h"
#include "schedule/plan.h"

/* Whether each op counts what is gathered while it runs: weights (ZeRO 3), and gradients until they
 * are reduced (ZeRO 2 and 3).  Otherwise static bytes have room for gathered weights. */
static inline bool
workload_counts_gathered(int32_t zero_stage, const PlanConventions *conventions)
{
    return zero_stage >= 2 && plan_framework(conventions->framework)->counts_gathered;
}

/* How many layers, of @layer_elements on a device each, have their weights gathered ahead of the
 * layer that computes: @given unless that is PLAN_PREFETCH_AUTO, else what the framework does
 * (cost-model.md 5.3). */
int32_t workload_prefetch_layers(int32_t given, const PlanConventions *conventions,
                                 int64_t layer_elements);

/* The same for @plan, by the elements of its first layer. */
int32_t workload_plan_prefetch(const ModelArch *arch, const Plan *plan);

/* How often ZeRO 3 gathers a layer for its backward: twice where it is recomputed in full with
 * weights that are gathered for that, else once. */
int64_t workload_zero3_gathers(const PlanConventions *conventions, PlanRecompute recompute);
