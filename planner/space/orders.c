#include "planner/space/orders.h"

#include <string.h>

#include "base/real.h"
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

/* A collective of a layer. */
typedef struct {
    ModelOp op;
    double before_s[2]; /* [pass] in the default order */
} Comm;

/* Those of a kind of layers. */
typedef struct {
    GArray *comms; /* (owned, nullable) of Comm; NULL: not yet known */
    double all_s;  /* before_s of all of them */
} KindComms;

struct PlanSpaceComms {
    ProfileGroup groups[MODEL_GROUP_N]; /* in the default order */
    KindComms kinds[MODEL_MAX_KINDS];
};

PlanSpaceComms *
plan_space_comms_new(void)
{
    return g_new0(PlanSpaceComms, 1);
}

static void
forget_comms(PlanSpaceComms *comms)
{
    for (int i = 0; i < MODEL_MAX_KINDS; i++) {
        g_clear_pointer(&comms->kinds[i].comms, g_array_unref);
        comms->kinds[i].all_s = 0.0;
    }
}

void
plan_space_comms_free(PlanSpaceComms *comms)
{
    if (comms == NULL)
        return;
    forget_comms(comms);
    g_free(comms);
}

/* The groups of a point's layers in the default order and in the point's. */
typedef struct {
    const ProfileQuery *before; /* (borrowed) */
    ProfileQuery after;
    bool alike[MODEL_GROUP_N]; /* collectives take as long in both */
} Orders;

static ProfileQuery
query_in_order(const PlanRequest *request, const PlanPoint *point, int64_t order)
{
    PlanLayerShape shape = plan_point_layer_shape(point);

    shape.degrees.rank_order = order;
    return plan_layer_query(request, &shape, 0);
}

static Orders
orders_of(const PlanRequest *request, const ProfileQuery *before, const PlanPoint *point)
{
    Orders orders = {.before = before,
                     .after = query_in_order(request, point, point->degrees.rank_order)};

    for (int i = 0; i < MODEL_GROUP_N; i++)
        orders.alike[i] = profile_groups_cost_alike(request->profile, &before->groups[i],
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

static double
comm_s(const PlanRequest *request, const ModelOp *op, int pass, const ProfileGroup *group)
{
    return profile_cost_collective_s(request->profile,
                                     pass == 0 ? op->forward_comm : op->backward_comm,
                                     profile_carried_bytes(request->profile, op, group), group);
}

/* (borrowed from @comms) The collectives of layers of kind @kind. */
static const KindComms *
comms_of(const PlanRequest *request, const ProfileQuery *before, int kind, PlanSpaceComms *comms)
{
    KindComms *of_kind = &comms->kinds[kind];
    ModelOp ops[MODEL_MAX_OPS];

    if (memcmp(comms->groups, before->groups, sizeof comms->groups) != 0) {
        forget_comms(comms);
        memcpy(comms->groups, before->groups, sizeof comms->groups);
    }
    if (of_kind->comms != NULL)
        return of_kind;
    of_kind->comms = g_array_new(FALSE, FALSE, sizeof(Comm));
    const size_t n = model_ops(request->arch, MODEL_PART_LAYER,
                               model_first_of_kind(request->arch, kind), &before->shape, ops);
    for (size_t i = 0; i < n; i++) {
        Comm comm = {.op = ops[i]};
        if (ops[i].kind != MODEL_OP_COLLECTIVE)
            continue;
        for (int pass = 0; pass < 2; pass++) {
            comm.before_s[pass] = comm_s(request, &ops[i], pass, &before->groups[ops[i].group]);
            of_kind->all_s += comm.before_s[pass];
        }
        g_array_append_val(of_kind->comms, comm);
    }
    return of_kind;
}

/* What both passes of a layer's collectives may take less in the point's order than in the default:
 * those of context parallelism, some of which hide, all of it. */
static double
saved_s(const PlanRequest *request, const Orders *orders, int kind, PlanSpaceComms *comms)
{
    double sum = 0.0;

    if (is_alike(request, orders, model_first_of_kind(request->arch, kind)))
        return 0.0;
    const GArray *all = comms_of(request, orders->before, kind, comms)->comms;
    for (guint i = 0; i < all->len; i++) {
        const Comm *comm = &g_array_index(all, Comm, i);
        const ModelGroup group = comm->op.group;
        /* No order has tp nearer than the default. */
        if (orders->alike[group] || (group == MODEL_GROUP_TP && (request->conventions.overlap_tp ||
                                                                 orders->before->sums_beside)))
            continue;
        for (int pass = 0; pass < 2; pass++) {
            const double before_s = comm->before_s[pass];
            const double after_s = comm_s(request, &comm->op, pass, &orders->after.groups[group]);
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

/* Of layers that take @work_s in a micro-batch; rounding, as in plan_point_bound_ns(). */
static int64_t
rounded_ns(const PlanRequest *request, const PlanPoint *point, double work_s)
{
    const double bound_s =
        (double)point->n_micro_batches * real_max(0.0, work_s) / (double)point->degrees.pp;
    const int64_t ns = units_ns_from_s(bound_s * (1.0 - 1e-9));
    const int64_t lost_ns = 2 * point->n_micro_batches * model_n_stacked(request->arch) + 2;

    return MAX(0, ns - lost_ns);
}

/* What sums of a few terms lose. */
#define LOST 1e-9

int64_t
plan_space_order_ns(const PlanRequest *request, const PlanLayerCost *cost, const PlanPoint *point,
                    PlanSpaceComms *comms, bool overlaps, int64_t most_ns)
{
    const bool hides = overlaps && !plan_pairs_in_turn(&request->conventions);
    double work_s = 0.0, saved_all_s = 0.0;

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
    if (hides)
        return rounded_ns(request, point, work_s);
    const ProfileQuery before = query_in_order(request, point, PLAN_RANK_ORDER_DEFAULT);
    for (int i = 0; i < cost->n_kinds; i++)
        if (cost->n[i] > 0)
            saved_all_s += (double)cost->n[i] * comms_of(request, &before, i, comms)->all_s;
    const int64_t least_ns = rounded_ns(request, point, work_s - saved_all_s * (1.0 + LOST));
    if (least_ns > most_ns)
        return least_ns;
    const Orders orders = orders_of(request, &before, point);
    for (int i = 0; i < cost->n_kinds; i++)
        if (cost->n[i] > 0)
            work_s -= (double)cost->n[i] * saved_s(request, &orders, i, comms);
    return rounded_ns(request, point, work_s);
}
