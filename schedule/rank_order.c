#include "schedule/rank_order.h"

#include <string.h>

#include "base/units.h"

const char *const plan_rank_order_names[PLAN_RANK_ORDER_N + 1] = {
    "tp-cp-dp-pp", "tp-cp-pp-dp", "tp-dp-cp-pp", "tp-dp-pp-cp", "tp-pp-cp-dp",
    "tp-pp-dp-cp", "cp-tp-dp-pp", "cp-tp-pp-dp", "cp-dp-tp-pp", "cp-dp-pp-tp",
    "cp-pp-tp-dp", "cp-pp-dp-tp", "dp-tp-cp-pp", "dp-tp-pp-cp", "dp-cp-tp-pp",
    "dp-cp-pp-tp", "dp-pp-tp-cp", "dp-pp-cp-tp", "pp-tp-cp-dp", "pp-tp-dp-cp",
    "pp-cp-tp-dp", "pp-cp-dp-tp", "pp-dp-tp-cp", "pp-dp-cp-tp", NULL,
};

/* The dimension that stands at place @i of an order's name. */
static inline PlanDim
dim_at(int64_t order, int i)
{
    static const PlanDim dims['t' + 1] = {
        ['t'] = PLAN_DIM_TP, ['c'] = PLAN_DIM_CP, ['d'] = PLAN_DIM_DP, ['p'] = PLAN_DIM_PP};

    return dims[(unsigned char)plan_rank_order_names[order][3 * i]];
}

int
plan_rank_order_find(const char *name)
{
    int order = 0;

    while (order < PLAN_RANK_ORDER_N && strcmp(name, plan_rank_order_names[order]) != 0)
        order++;
    return order < PLAN_RANK_ORDER_N ? order : -1;
}

void
plan_rank_order_dims(int64_t order, PlanDim dims[PLAN_DIM_N])
{
    g_return_if_fail(order >= 0 && order < PLAN_RANK_ORDER_N);

    for (int i = 0; i < PLAN_DIM_N; i++)
        dims[i] = dim_at(order, i);
}

int64_t
plan_degree(const PlanDegrees *d, PlanDim dim)
{
    const int64_t degrees[PLAN_DIM_N] = {d->tp, d->cp, d->dp, d->pp};

    return degrees[dim];
}

void
plan_strides(const PlanDegrees *d, int64_t strides[PLAN_DIM_N])
{
    const int64_t degrees[PLAN_DIM_N] = {d->tp, d->cp, d->dp, d->pp};
    int64_t stride = 1;

    for (int i = 0; i < PLAN_DIM_N; i++) {
        const PlanDim dim = dim_at(d->rank_order, i);
        strides[dim] = stride;
        stride *= degrees[dim];
    }
}

int64_t
plan_device_at(const PlanDegrees *d, const PlanCoordinates *coordinates)
{
    int64_t strides[PLAN_DIM_N], device = 0;

    plan_strides(d, strides);
    for (int dim = 0; dim < PLAN_DIM_N; dim++)
        device += coordinates->at[dim] * strides[dim];
    return device;
}

PlanCoordinates
plan_coordinates_of(const PlanDegrees *d, int64_t device)
{
    int64_t strides[PLAN_DIM_N];
    PlanCoordinates coordinates;

    plan_strides(d, strides);
    for (int dim = 0; dim < PLAN_DIM_N; dim++)
        coordinates.at[dim] = device / strides[dim] % plan_degree(d, (PlanDim)dim);
    return coordinates;
}

int64_t
plan_stage_devices(const PlanDegrees *d)
{
    return d->dp * d->cp * d->tp;
}

int64_t
plan_stage_run(const PlanDegrees *d)
{
    int64_t strides[PLAN_DIM_N];

    if (d->rank_order == PLAN_RANK_ORDER_DEFAULT)
        return plan_stage_devices(d);
    plan_strides(d, strides);
    return strides[PLAN_DIM_PP];
}

int64_t
plan_stage_device(const PlanDegrees *d, int64_t rank, int64_t index)
{
    const int64_t run = plan_stage_run(d);

    return (index / run * d->pp + rank) * run + index % run;
}

int64_t
plan_stage_index(const PlanDegrees *d, int64_t device)
{
    const int64_t run = plan_stage_run(d);

    return device / run / d->pp * run + device % run;
}

bool
plan_stages_are_runs(const PlanDegrees *d)
{
    return d->pp == 1 || plan_stage_run(d) == plan_stage_devices(d);
}

/* Whether @order gives every device the same coordinates as the order of @d. */
static bool
is_same_order(const PlanDegrees *d, int64_t order)
{
    PlanDegrees other = *d;
    int64_t mine[PLAN_DIM_N], strides[PLAN_DIM_N];

    if (order == d->rank_order)
        return true;
    other.rank_order = order;
    plan_strides(d, mine);
    plan_strides(&other, strides);
    for (int dim = 0; dim < PLAN_DIM_N; dim++)
        if (plan_degree(d, (PlanDim)dim) != 1 && strides[dim] != mine[dim])
            return false;
    return true;
}

int64_t
plan_rank_order_plain(const PlanDegrees *d)
{
    int64_t order = 0;

    while (!is_same_order(d, order))
        order++;
    return order;
}

bool
plan_rank_order_is_default(const PlanDegrees *d)
{
    return is_same_order(d, PLAN_RANK_ORDER_DEFAULT);
}

bool
plan_rank_order_check(const PlanDegrees *d, const PlanConventions *conventions, GError **error)
{
    const int64_t group = d->ep * plan_expert_tp(d, conventions), run = plan_stage_run(d);
    int64_t strides[PLAN_DIM_N];

    if (group == 1 || plan_rank_order_is_default(d))
        return true;
    plan_strides(d, strides);
    const bool keeps =
        (d->tp == 1 || ((d->cp == 1 || strides[PLAN_DIM_TP] < strides[PLAN_DIM_CP]) &&
                        (d->dp == 1 || strides[PLAN_DIM_TP] < strides[PLAN_DIM_DP]))) &&
        (d->cp == 1 || d->dp == 1 || strides[PLAN_DIM_CP] < strides[PLAN_DIM_DP]);
    if (!keeps)
        return plan_invalid(
            error, "rank_order %s: with ep above 1, tp must come before cp and cp before dp",
            plan_rank_order_names[d->rank_order]);
    if (run % group == 0 || group % run == 0)
        return true;
    return plan_invalid(error,
                        "rank_order %s: groups of ep * expert_tp = " INT
                        " ranks must divide the " INT " ranks before pp, or be a multiple of them",
                        plan_rank_order_names[d->rank_order], group, run);
}
