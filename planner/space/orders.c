#include "planner/space/orders.h"

#include <math.h>
#include <string.h>

#include "base/units.h"

/* Whether an order before number @n of @counts has the same groups everywhere. */
static bool
is_known(const ProfileMeshCounts *counts, int n)
{
    for (int i = 0; i < n; i++)
        if (memcmp(&counts[i], &counts[n], sizeof counts[n]) == 0)
            return true;
    return false;
}

/* Whether layers cost the same with the model's groups as in @order; both are aligned. */
static bool
layers_are_alike(const PlanRequest *request, const PlanDegrees *degrees, int64_t order)
{
    PlanDegrees d = *degrees;

    d.rank_order = order;
    const ProfileMesh here = plan_layer_mesh(request, degrees);
    const ProfileMesh there = plan_layer_mesh(request, &d);
    for (int i = 0; i < MODEL_GROUP_N; i++) {
        const ProfileGroup a = profile_group_at(&here, (ProfileGroupKind)i, 0);
        const ProfileGroup b = profile_group_at(&there, (ProfileGroupKind)i, 0);
        if (!profile_groups_cost_alike(request->profile, &a, &b))
            return false;
    }
    return true;
}

/* Whether ranks may lie in the order of @d. */
static bool
may_have_order(const PlanRequest *request, const PlanDegrees *d)
{
    PlanRuleCase c = plan_request_case(request);

    c.degrees = *d;
    return plan_rank_order_check(d, &request->conventions, NULL) &&
           plan_rules_keep(&c, PLAN_ASPECT_ORDER, NULL);
}

int
plan_space_orders(const PlanRequest *request, const PlanDegrees *degrees,
                  uint32_t sets[PLAN_RANK_ORDER_N], GError **error)
{
    ProfileMeshCounts counts[PLAN_RANK_ORDER_N];
    bool is_aligned[PLAN_RANK_ORDER_N] = {false}; /* [set] */
    PlanDegrees d = *degrees;
    int n = 0, n_counts = 0;

    d.rank_order = MAX(PLAN_RANK_ORDER_DEFAULT, request->rank_order);
    if (request->rank_order != PLAN_AUTO || request->objective == PLAN_OBJECTIVE_MEMORY) {
        sets[0] = UINT32_C(1) << d.rank_order;
        return plan_rank_order_check(&d, &request->conventions, error) ? 1 : 0;
    }
    for (d.rank_order = 0; d.rank_order < PLAN_RANK_ORDER_N; d.rank_order++) {
        const ProfileMesh mesh = plan_layer_mesh(request, &d);
        int at = 0;
        if (plan_rank_order_plain(&d) != d.rank_order || !may_have_order(request, &d))
            continue;
        const bool aligned = profile_mesh_is_aligned(&mesh);
        if (aligned) {
            profile_mesh_counts(&mesh, &counts[n_counts]);
            if (is_known(counts, n_counts))
                continue;
            n_counts++;
        }
        while (at < n && !(aligned && is_aligned[at] &&
                           layers_are_alike(request, &d, g_bit_nth_lsf(sets[at], -1))))
            at++;
        if (at == n) {
            sets[n] = 0;
            is_aligned[n++] = aligned;
        }
        sets[at] |= UINT32_C(1) << d.rank_order;
    }
    return n;
}

/* The groups of a point's layers in the default order and in the point's. */
typedef struct {
    ProfileQuery before, after;
    bool alike[MODEL_GROUP_N]; /* collectives take as long in both */
} Orders;

static Orders
orders_of(const PlanRequest *request, const PlanPoint *point)
{
    const PlanLayerShape shape = plan_point_layer_shape(point);
    PlanLayerShape plain = shape;

    plain.degrees.rank_order = PLAN_RANK_ORDER_DEFAULT;
    Orders orders = {.before = plan_layer_query(request, &plain, 0),
                     .after = plan_layer_query(request, &shape, 0)};
    for (int i = 0; i < MODEL_GROUP_N; i++)
        orders.alike[i] = profile_groups_cost_alike(request->profile, &orders.before.groups[i],
                                                    &orders.after.groups[i]);
    return orders;
}

/* Whether no collective of @layer takes longer in one of both orders. */
static bool
is_alike(const PlanRequest *request, const Orders *orders, int64_t layer)
{
    const bool has_experts = model_layer_is_moe(request->arch, layer);

    for (int i = 0; i < MODEL_GROUP_N; i++)
        if (!orders->alike[i] && (has_experts || (i != MODEL_GROUP_EP && i != MODEL_GROUP_ETP)))
            return false;
    return true;
}

/* What both passes of a layer's collectives may take less in the point's order than in the default:
 * those of context parallelism, some of which hide, all of it. */
static double
saved_s(const PlanRequest *request, const Orders *orders, int64_t layer)
{
    const ProfileQuery *before = &orders->before, *after = &orders->after;
    ModelOp ops[MODEL_MAX_OPS];
    double sum = 0.0;

    if (is_alike(request, orders, layer))
        return 0.0;
    const size_t n = model_ops(request->arch, MODEL_PART_LAYER, layer, &before->shape, ops);
    for (size_t i = 0; i < n; i++) {
        const ModelGroup group = ops[i].group;
        const ModelComm comm[2] = {ops[i].forward_comm, ops[i].backward_comm};
        /* No order has tp nearer than the default. */
        if (ops[i].kind != MODEL_OP_COLLECTIVE || orders->alike[group] ||
            (group == MODEL_GROUP_TP && request->conventions.overlap_tp))
            continue;
        for (int pass = 0; pass < 2; pass++) {
            const double before_s = profile_cost_collective_s(
                request->profile, comm[pass],
                profile_carried_bytes(request->profile, &ops[i], &before->groups[group]),
                &before->groups[group]);
            const double after_s = profile_cost_collective_s(
                request->profile, comm[pass],
                profile_carried_bytes(request->profile, &ops[i], &after->groups[group]),
                &after->groups[group]);
            /* What may hide is seen no less when it takes longer. */
            if (group == MODEL_GROUP_CP ||
                (group != MODEL_GROUP_TP && request->conventions.overlap_ep))
                sum += after_s < before_s ? before_s : 0.0;
            else
                sum += before_s - after_s;
        }
    }
    return sum;
}

int64_t
plan_space_order_ns(const PlanRequest *request, const PlanLayerCost *cost, const PlanPoint *point,
                    bool overlaps)
{
    const bool hides = overlaps && !plan_pairs_in_turn(&request->conventions);
    double work_s = 0.0;

    /* Least costs of several kinds of nodes, sums over slices and measured times do not say what
     * of them is collectives. */
    if (request->profile->cluster->nodes->len > 1 || plan_request_n_slices(request) > 1 ||
        request->profile->measurements->len > 0)
        return 0;
    /* An op takes the larger of device and host; the device's part is what changes. */
    for (int i = 0; i < PLAN_PART_N; i++) {
        const PlanPartCost *part = &cost->parts[i];
        work_s += (double)cost->n[i] *
                  (part->forward_s + part->backward_s -
                   (hides ? part->hidden_s
                          : part->forward_slack_s + part->host_slack_s[PLAN_RECOMPUTE_NONE]));
    }
    const Orders orders = orders_of(request, point);
    for (int i = 0; i < cost->n_kinds && !hides; i++)
        if (cost->n[i] > 0)
            work_s -= (double)cost->n[i] *
                      saved_s(request, &orders, model_first_of_kind(request->arch, i));
    const double bound_s =
        (double)point->n_micro_batches * fmax(0.0, work_s) / (double)point->degrees.pp;
    /* Rounding, as in plan_point_bound_ns(). */
    const int64_t ns = units_ns_from_s(bound_s * (1.0 - 1e-9));
    return MAX(0, ns - 2 * point->n_micro_batches * model_n_stacked(request->arch) - 2);
}
