/*
 * schedule/rank_order.h - which device has which coordinates: the order of dimensions over ranks.
 *
 * An order names the dimensions from the fastest to the slowest: with "tp-cp-dp-pp", Megatron-LM's
 * default, ranks 0 and 1 differ in tp and pipeline ranks lie farthest apart; "tp-cp-pp-dp" is its
 * --use-tp-pp-dp-mapping.  Experts have no dimension of their own: ep consecutive ranks of a stage
 * share them (plan.h).
 *
 * The devices of a pipeline rank, a stage, are runs of as many as the dimensions before pp have,
 * pp runs apart; with pp slowest one run.  Their index in the stage counts along the other three
 * dimensions in the plan's order.
 *
 * Thread-safety: pure.
 */
#ifndef SCHEDULE_RANK_ORDER_H
#define SCHEDULE_RANK_ORDER_H

#include "schedule/plan.h"

G_BEGIN_DECLS

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

/* Devices of one stage; of one run of them. */
int64_t plan_stage_devices(const PlanDegrees *degrees);
int64_t plan_stage_run(const PlanDegrees *degrees);

/* Device number @index of stage @rank, and back. */
int64_t plan_stage_device(const PlanDegrees *degrees, int64_t rank, int64_t index);
int64_t plan_stage_index(const PlanDegrees *degrees, int64_t device);

/* Whether every stage is one run of devices: pp is the slowest dimension with a degree above 1. */
bool plan_stages_are_runs(const PlanDegrees *degrees);

/* The first of the orders that place the same coordinates on the same devices: dimensions of
 * degree 1 do not count. */
int64_t plan_rank_order_plain(const PlanDegrees *degrees);

/*
 * Whether experts' groups are whole under the order: with more than one rank per expert group, tp,
 * cp and dp keep their order, and a stage's runs hold whole groups, or groups hold whole runs.
 * PLAN_ERROR_INVALID says what does not.
 */
bool plan_rank_order_check(const PlanDegrees *degrees, const PlanConventions *conventions,
                           GError **error);

G_END_DECLS

#endif /* SCHEDULE_RANK_ORDER_H */
