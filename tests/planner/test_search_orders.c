/*
 * Tests of planner/search.h: orders of dimensions over ranks, against full enumeration on small
 * clusters of two and three levels.
 */
#include "planner/bounds/point_bound.h"
#include "planner/partition/partitions.h"
#include "planner/space/orders.h"
#include "tests/planner/search_case.h"
#include "tests/profiles/fixture.h"

#define N_DEVICES 8

/* --- problems --- */

/* Nodes of @n_devices, switches of @n_inner inside; rates in GB/s, latency outside in us. */
static Profile *
cluster_new(int64_t n_devices, int64_t n_inner, int inside, int device, int node, int latency)
{
    g_autofree char *inner = n_inner == 0
                                 ? g_strdup("")
                                 : g_strdup_printf("{\"name\":\"switch\",\"group_devices\":%d,"
                                                   "\"bytes_per_s\":%de9,\"latency_s\":1e-6},",
                                                   (int)n_inner, 4 * inside);
    g_autofree char *text = g_strdup_printf(
        FIXTURE_HEAD "{\"name\":\"c\",\"devices\":[" FIXTURE_DEVICE "],"
                     "\"nodes\":[{\"device\":\"D\",\"n_devices\":%d,\"n_nodes\":%d}],\"levels\":["
                     "%s{\"name\":\"in\",\"group_devices\":%d,\"bytes_per_s\":%de9,"
                     "\"latency_s\":2e-6},{\"name\":\"out\",\"group_devices\":0,"
                     "\"bytes_per_s\":%de8,\"shared_bytes_per_s\":%de8,\"latency_s\":%de-6}]},"
                     "\"cost\":" FIXTURE_COST "}",
        (int)n_devices, (int)(N_DEVICES / n_devices), inner, (int)n_devices, inside, device, node,
        latency);
    g_autoptr(GError) error = NULL;
    Profile *profile = fixture_parse(text, &error);

    g_assert_no_error(error);
    return profile;
}

static Profile *
random_cluster(uint32_t *state)
{
    const int64_t n_devices = (int64_t[]){2, 4, 4, 8}[draw(state) % 4];
    const int device = 1 + (int)(draw(state) % 40);

    return cluster_new(n_devices, n_devices == 4 && draw(state) % 2 == 0 ? 2 : 0,
                       10 + (int)(draw(state) % 90), device,
                       device * (1 + (int)(draw(state) % n_devices)), 2 + (int)(draw(state) % 20));
}

/* Nodes of one kind, then of another that is @slower times slower. */
static Profile *
mixed_cluster(uint32_t *state)
{
    const int64_t n_devices = draw(state) % 2 == 0 ? 2 : 4;
    const int slower = 1 + (int)(draw(state) % 3), n_first = 1 + (int)(draw(state) % 3);
    const int n_nodes = (int)(N_DEVICES / n_devices);
    const int device = 1 + (int)(draw(state) % 40);
    g_autofree char *text = g_strdup_printf(
        FIXTURE_HEAD
        "{\"name\":\"c\",\"devices\":[" FIXTURE_DEVICE ",{\"name\":\"E\",\"flops_per_s\":{\"fp16\":"
        "%de12,\"fp32\":10e12},\"vector_flops_per_s\":10e12,\"memory_bytes\":80000000000,"
        "\"memory_bytes_per_s\":%de11,\"n_multiprocessors\":100,\"power_w\":100}],"
        "\"nodes\":[{\"device\":\"D\",\"n_devices\":%d,\"n_nodes\":%d},"
        "{\"device\":\"E\",\"n_devices\":%d,\"n_nodes\":%d}],\"levels\":["
        "{\"name\":\"in\",\"group_devices\":%d,\"bytes_per_s\":%de9,\"latency_s\":2e-6},"
        "{\"name\":\"out\",\"group_devices\":0,\"bytes_per_s\":%de8,\"shared_bytes_per_s\":%de8,"
        "\"latency_s\":1e-5}]},\"cost\":" FIXTURE_COST "}",
        100 / slower, 10 / slower, (int)n_devices, MIN(n_first, n_nodes - 1), (int)n_devices,
        MAX(1, n_nodes - n_first), (int)n_devices, 10 + (int)(draw(state) % 90), device,
        device * (int)n_devices);
    g_autoptr(GError) error = NULL;
    Profile *profile = fixture_parse(text, &error);

    g_assert_no_error(error);
    return profile;
}

/* Layers all alike, so that even stages are balanced ones, and too many to be divided in all ways
 * (partition/divisions.h). */
static ModelArch *
random_arch(uint32_t *state)
{
    ModelArch *arch = small_arch(72, draw(state) % 4 == 0 ? 4 : 0, 0);

    arch->max_seq_len = (int64_t[]){256, 1024, 4096}[draw(state) % 3];
    return arch;
}

static PlanRequest
random_request(uint32_t *state, const ModelArch *arch, const Profile *profile)
{
    static const char *const lists[][2] = {{"1f1b", NULL}, {"gpipe", NULL}, {"zb-h1", NULL}};
    PlanRequest request = request_of(arch, profile, (int64_t[]){4, 8, 16}[draw(state) % 3]);

    request.dtype = DTYPE_FP16;
    request.rank_order = PLAN_AUTO;
    request.schedules = lists[draw(state) % G_N_ELEMENTS(lists)];
    request.vpp = 1;
    request.memory_limit_bytes = INT64_C(1) << 50; /* what fits is another question */
    request.recompute = PLAN_RECOMPUTE_NONE;
    request.zero_stage = (int)(draw(state) % 4);
    request.sequence_parallel = 0;
    request.conventions = plan_conventions((PlanFramework)(draw(state) % PLAN_FRAMEWORK_N));
    /* Most of them fixed: free ones are seldom such that the order matters. */
    if (draw(state) % 8 != 0) {
        request.tp = 1 + (int)(draw(state) % 2);
        request.pp = (int64_t[]){1, 2, 4}[draw(state) % 3];
        request.cp = 1 + (int)(draw(state) % 2);
    }
    return request;
}

/* --- full enumeration --- */

typedef struct {
    int64_t ns, default_ns; /* the least of all, of the default order */
    int n;
} Best;

/* The bounds of the plan's point, and of its order in the first place, hold of it. */
static void
check_bounds(const PlanRequest *request, const Plan *plan, int64_t ns)
{
    const PlanPointFamilies families =
        plan_point_family(schedule_family_find(plan->schedule, NULL));
    PlanPoint point = {.degrees = plan->degrees,
                       .micro_batch = plan->micro_batch,
                       .n_micro_batches = plan->n_micro_batches,
                       .zero_stage = plan->zero_stage};
    const PlanLayerShape shape = plan_point_layer_shape(&point);
    PlanLayerShape plain = shape;
    plain.degrees.rank_order = PLAN_RANK_ORDER_DEFAULT;
    const PlanLayerCost cost = whole_cost(request, &shape);
    const PlanLayerCost before = whole_cost(request, &plain);

    plan_point_bound_bytes(request, &cost, INT64_MAX, &point);
    g_assert_cmpint(plan_point_bound_ns(request, &cost, &cost, &point, &families), <=, ns);
    g_autoptr(PlanSpaceComms) comms = plan_space_comms_new();
    const int64_t sharp_ns =
        plan_space_order_ns(request, &before, &point, comms, families.overlaps, INT64_MAX);
    const int64_t least_ns =
        plan_space_order_ns(request, &before, &point, comms, families.overlaps, 0);
    g_assert_cmpint(least_ns, <=, sharp_ns);
    g_assert_cmpint(sharp_ns, <=, ns);
}

/* All micro-batches and expert degrees in all orders. */
static void
try_degrees(const PlanRequest *request, PlanRequest fixed, Best *best)
{
    for (fixed.micro_batch = 1; fixed.micro_batch <= fixed.global_batch; fixed.micro_batch *= 2)
        for (fixed.ep = 1; fixed.ep <= MAX(1, fixed.arch->experts.n_experts); fixed.ep++)
            for (fixed.rank_order = 0; fixed.rank_order < PLAN_RANK_ORDER_N; fixed.rank_order++) {
                g_autoptr(GError) error = NULL;
                g_autoptr(Report) report = NULL;
                g_autoptr(Plan) plan = plan_from_request(&fixed, NULL);
                if (plan == NULL)
                    continue;
                g_autoptr(Workload) workload =
                    workload_new(fixed.arch, fixed.profile, plan, 0, NULL);
                if (workload == NULL)
                    continue;
                g_assert_true(simulate(plan, workload, INT64_MAX, &report, NULL, &error));
                check_bounds(request, plan, report->iteration_ns);
                best->n++;
                best->ns = MIN(best->ns, report->iteration_ns);
                if (fixed.rank_order == PLAN_RANK_ORDER_DEFAULT)
                    best->default_ns = MIN(best->default_ns, report->iteration_ns);
            }
}

static Best
enumerate(const PlanRequest *request)
{
    Best best = {INT64_MAX, INT64_MAX, 0};
    PlanRequest f = *request;

    for (f.tp = 1; f.tp <= N_DEVICES; f.tp *= 2)
        for (f.pp = 1; f.pp * f.tp <= N_DEVICES; f.pp *= 2)
            for (f.cp = 1; f.cp * f.pp * f.tp <= N_DEVICES; f.cp *= 2) {
                f.dp = N_DEVICES / f.tp / f.pp / f.cp;
                if ((request->tp > 0 && f.tp != request->tp) ||
                    (request->pp > 0 && f.pp != request->pp) ||
                    (request->cp > 0 && f.cp != request->cp))
                    continue;
                try_degrees(request, f, &best);
            }
    return best;
}

/* How many problems had another order than the default, which must then be better. */
typedef struct {
    int n_better, n_orders;
} Tally;

static void
check_problem(const PlanRequest *request, int problem, Tally *tally)
{
    g_autoptr(GError) error = NULL;

    flights = plan_memo_new();
    const Best best = enumerate(request);
    g_autoptr(Plan) plan = best.n == 0 ? NULL : plan_search(request, simulate, NULL, &error);
    plan_memo_free(flights);
    if (best.n == 0)
        return;
    g_assert_no_error(error);
    g_test_message("problem %d: %d plans, %s, %" G_GINT64_FORMAT " ns, default %" G_GINT64_FORMAT,
                   problem, best.n, plan_rank_order_names[plan->degrees.rank_order], best.ns,
                   best.default_ns);
    g_assert_cmpint(plan->predicted->iteration_ns, ==, best.ns);
    g_assert_cmpfloat(plan->lower_bound_s, <=, (double)best.ns * 1e-9);
    tally->n_better += best.ns < best.default_ns;
    tally->n_orders += plan->degrees.rank_order != PLAN_RANK_ORDER_DEFAULT;
    g_assert_cmpint(plan->degrees.rank_order != PLAN_RANK_ORDER_DEFAULT, ==,
                    best.ns < best.default_ns);
}

static void
test_equals_full_enumeration(void)
{
    uint32_t state = 2026;
    Tally tally = {0};

    for (int i = 0; i < 266; i++) {
        g_autoptr(Profile) profile = random_cluster(&state);
        g_autoptr(ModelArch) arch = random_arch(&state);
        const PlanRequest request = random_request(&state, arch, profile);
        check_problem(&request, i, &tally);
    }
    g_test_message("%d problems with a better order than the default", tally.n_better);
    g_assert_cmpint(tally.n_better, ==, tally.n_orders);
    g_assert_cmpint(tally.n_better, >=, 15);
}

/* Two kinds of devices: as many layers as stages, so that balanced stages are even ones here too.
 */
static void
test_mixed_clusters_equal_full_enumeration(void)
{
    uint32_t state = 1122;
    Tally tally = {0};

    for (int i = 0; i < 100; i++) {
        g_autoptr(Profile) profile = mixed_cluster(&state);
        g_autoptr(ModelArch) arch = random_arch(&state);
        PlanRequest request = random_request(&state, arch, profile);
        request.pp = request.pp > 0 ? request.pp : 2;
        request.tp = request.tp > 0 ? request.tp : 1;
        arch->n_layers = request.pp;
        g_assert_cmpint(model_cluster_n_devices(profile->cluster), ==, N_DEVICES);
        check_problem(&request, i, &tally);
    }
    g_test_message("%d problems with a better order than the default", tally.n_better);
    g_assert_cmpint(tally.n_better, ==, tally.n_orders);
    g_assert_cmpint(tally.n_better, >=, 10);
}

/*
 * Two stages and two replicas on two nodes of two devices, long sequences of a thin model: messages
 * are large, gradients small.  Only pp before dp has the messages inside the nodes.
 */
static void
test_slow_network_wants_pipelines_inside_nodes(void)
{
    g_autoptr(Profile) profile = cluster_new(2, 0, 100, 10, 10, 10);
    g_autoptr(ModelArch) arch = small_arch(8, 0, 0);
    arch->max_seq_len = 8192;
    PlanRequest request = request_of(arch, profile, 8);
    static const char *const schedules[] = {"1f1b", NULL};

    request.dtype = DTYPE_FP16;
    request.tp = request.cp = request.vpp = 1;
    request.pp = 2;
    request.schedules = schedules;
    for (int threads = 1; threads <= 8; threads *= 2) {
        g_autoptr(GError) error = NULL;
        flights = plan_memo_new();
        request.threads = threads;
        request.rank_order = PLAN_RANK_ORDER_DEFAULT;
        g_autoptr(Plan) plain = plan_search(&request, simulate, NULL, &error);
        request.rank_order = PLAN_AUTO;
        g_autoptr(Plan) plan = plan_search(&request, simulate, NULL, &error);
        plan_memo_free(flights);
        g_assert_no_error(error);
        g_assert_cmpint(plan_rank_order_plain(&plan->degrees), ==, PLAN_RANK_ORDER_PP_BEFORE_DP);
        g_assert_cmpint(plan->predicted->iteration_ns, <, plain->predicted->iteration_ns);
        static int64_t considered, ns;
        if (threads > 1) {
            g_assert_cmpint(plan->search.considered, ==, considered);
            g_assert_cmpint(plan->predicted->iteration_ns, ==, ns);
        }
        considered = plan->search.considered;
        ns = plan->predicted->iteration_ns;
    }
}

/* What is remembered of layers, and how they are divided, is not taken for that of the same degrees
 * in an order in which their groups lie farther apart. */
static void
test_remembered_costs_know_the_order(void)
{
    g_autoptr(ModelArch) arch = long_arch(40, 204800);
    g_autoptr(Profile) profile = cluster_of("dgx-h100", 16);
    g_autoptr(PlanMemo) memo = plan_memo_new();
    const PlanRequest request = request_of(arch, profile, 16);
    const int64_t orders[] = {PLAN_RANK_ORDER_DEFAULT, plan_rank_order_find("pp-dp-cp-tp")};
    const ScheduleFamily *family = schedule_family_find("1f1b", NULL);
    const int64_t *counts[2];
    double forward_s[2];

    for (int i = 0; i < 2; i++) {
        const PlanLayerShape shape = {.degrees = {2, 4, 2, 1, 1, 1, orders[i]}, .micro_batch = 1};
        const PlanPoint point = {.degrees = shape.degrees, .micro_batch = 1, .is_balanced = true};
        g_autoptr(PlanMemo) own = plan_memo_new();
        counts[i] = plan_partition_balanced(memo, &request, &point, family);
        const int64_t *alone = plan_partition_balanced(own, &request, &point, family);
        g_assert_cmpint(counts[i][0], ==, alone[0]);
        forward_s[i] = plan_layer_uniform_cost(memo, &request, &shape, 1)->whole.all.forward_s;
        g_assert_true(forward_s[i] == whole_cost(&request, &shape).all.forward_s);
    }
    g_assert_cmpfloat(forward_s[0], <, forward_s[1]);
    /* The head weighs as much as fewer layers where these are slower. */
    g_assert_cmpint(counts[0][0], >, counts[1][0]);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/planner/search-orders/equals-full-enumeration", test_equals_full_enumeration);
    g_test_add_func("/planner/search-orders/mixed-clusters-equal-full-enumeration",
                    test_mixed_clusters_equal_full_enumeration);
    g_test_add_func("/planner/search-orders/slow-network-wants-pipelines-inside-nodes",
                    test_slow_network_wants_pipelines_inside_nodes);
    g_test_add_func("/planner/search-orders/remembered-costs-know-the-order",
                    test_remembered_costs_know_the_order);
    return g_test_run();
}
