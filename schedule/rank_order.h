/*
 * schedule/rank_order.h - which device has which coordinates: the order of dimensions over ranks.
 *
 * An order names the dimensions from the fastest to the slowest: with "tp-cp-dp-pp", Megatron-LM's
 * default, ranks 0 and 1 differ in tp and pipeline ranks lie farthest apart; "tp-cp-pp-dp" is its
 * --use-tp-pp-dp-mapping.  Experts have no dimension of their own: ep consecutive ranks of a stage
 * share them (plan.h).
 *
 * The devices of one pipeline rank ("stage" here) are not always consecutive: they form runs of
 * consecutive devices, each as long as the product of the degrees of the dimensions before pp, and
 * the next run begins pp runs later; with pp slowest there is one run.  A device's index in its
 * stage counts along the other three dimensions in the plan's order.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "schedule/plan.h"

typedef enum {
    PLAN_DIM_TP,
    PLAN_DIM_CP,
    PLAN_DIM_DP,
    PLAN_DIM_PP,
    PLAN_DIM_N
} PlanDim;

/* All permutations; 0 is Megatron-LM's default, 1 its --use-tp-pp-dp-mapping. */
#define PLAN_RANK_ORDER_N 24
#define PLAN_RANK_ORDER_DEFAULT 0
#define PLAN_RANK_ORDER_PP_BEFORE_DP 1
extern const char *const plan_rank_order_names[PLAN_RANK_ORDER_N + 1];

/* The order of that name; -1: there is none. */
int plan_rank_order_find(const char *name);

/* The dimensions of @order, fastest first. */
void plan_rank_order_dims(int64_t order, PlanDim dims[PLAN_DIM_N]);

/* Where a device is in the plan, by PlanDim. */
typedef struct {
    int64_t at[PLAN_DIM_N];
} PlanCoordinates;

int64_t plan_degree(const PlanDegrees *degrees, PlanDim dim);

/* How many devices apart neighbours along each dimension are. */
void plan_strides(const PlanDegrees *degrees, int64_t strides[PLAN_DIM_N]);

int64_t plan_device_at(const PlanDegrees *degrees, const PlanCoordinates *coordinates);
PlanCoordinates plan_coordinates_of(const PlanDegrees *degrees, int64_t device);

/* How many devices one stage has, and how many are in one run of consecutive ones. */
int64_t plan_stage_devices(const PlanDegrees *degrees);
int64_t plan_stage_run(const PlanDegrees *degrees);

/* The device with @index in stage @rank, and the index of a device in its stage. */
int64_t plan_stage_device(const PlanDegrees *degrees, int64_t rank, int64_t index);
int64_t plan_stage_index(const PlanDegrees *degrees, int64_t device);

/* Whether every stage is one run of devices: pp is the slowest dimension with a degree above 1. */
bool plan_stages_are_runs(const PlanDegrees *degrees);

/* Returns: the first of the orders that give every device the same coordinates as this one: the
 * position of a dimension of degree 1 makes no difference. */
int64_t plan_rank_order_plain(const PlanDegrees *degrees);

/* Returns: that order is PLAN_RANK_ORDER_DEFAULT; is asked for each message of each plan. */
bool plan_rank_order_is_default(const PlanDegrees *degrees);

/* Whether the order keeps expert groups together: with more than one rank in an expert group, tp,
 * cp and dp must keep their order, and a stage's runs must hold whole groups, or groups whole runs.
 * Returns false with PLAN_ERROR_INVALID, which names what does not. */
bool plan_rank_order_check(const PlanDegrees *degrees, const PlanConventions *conventions,
                           GError **error);
