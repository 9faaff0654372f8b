/*
 * No plan is faster, nor leaner, than the bounds of its point with any slices: random plans with
 * random slices and micro-batches, simulated.  A bound of a search is the least of these over its
 * points, so it holds where they do.
 */
#include "planner/bounds/floor.h"
#include "planner/bounds/point_bound.h"
#include "planner/bounds/rank_kinds.h"
#include "planner/partition/partitions.h"
#include "planner/space/space.h"
#include "profiles/workload/memory.h"
#include "schedule/rank_order.h"
#include "tests/planner/search_case.h"

/* One of each kind of conventions. */
static const PlanFramework frameworks[] = {
    PLAN_FRAMEWORK_DEGAS,         PLAN_FRAMEWORK_DEGAS,           PLAN_FRAMEWORK_MEGATRON_LM,
    PLAN_FRAMEWORK_MEGATRON_CORE, PLAN_FRAMEWORK_MEGATRON_BRIDGE, PLAN_FRAMEWORK_DEEPSPEED,
    PLAN_FRAMEWORK_FSDP,          PLAN_FRAMEWORK_TERAPIPE};

static int64_t
one_of(uint32_t *state, const int64_t *list, size_t n)
{
    return list[draw(state) % n];
}
#define ONE_OF(state, ...)                                                                         \
    one_of(state, (const int64_t[]){__VA_ARGS__}, sizeof((const int64_t[]){__VA_ARGS__}) / 8)

static ModelArch *
random_arch(uint32_t *state)
{
    ModelArch *arch = draw(state) % 4 == 0
                          ? small_arch(ONE_OF(state, 4, 5, 8, 12), draw(state) % 3 == 0 ? 4 : 0,
                                       ONE_OF(state, 0, 8192, 51200))
                          : long_arch(ONE_OF(state, 4, 6, 8), ONE_OF(state, 0, 51200));

    arch->max_seq_len = ONE_OF(state, 256, 2048, 8192, 16384);
    if (arch->experts.n_experts > 0)
        arch->experts.first_dense_layers = (int64_t)(draw(state) % 3);
    if (draw(state) % 2 == 0)
        mix_layers(arch, state);
    return arch;
}

/* @n devices; where @is_mixed half of them slower ones, in a node of their own. */
static Profile *
random_cluster(uint32_t *state, int64_t n, bool is_mixed)
{
    static const char *const names[] = {"p3.16xlarge", "dgx-a100-80g", "dgx-h100"};
    Profile *profile = cluster_of(names[draw(state) % G_N_ELEMENTS(names)], n);
    ModelCluster *cluster = profile->cluster;

    if (!is_mixed)
        return profile;
    ModelDevice slow = g_array_index(cluster->devices, ModelDevice, 0);
    ModelNodes nodes = g_array_index(cluster->nodes, ModelNodes, 0);
    const double share = 0.25 + 0.25 * (double)(draw(state) % 3);
    slow.name = g_strdup("slow");
    for (int i = 0; i < DTYPE_N; i++)
        slow.flops_per_s[i] *= share;
    slow.memory_bytes_per_s *= share;
    g_array_append_val(cluster->devices, slow);
    nodes.n_nodes = 1;
    nodes.n_devices = n / 2;
    g_array_set_size(cluster->nodes, 0);
    nodes.device = (int64_t)(draw(state) % 2);
    g_array_append_val(cluster->nodes, nodes);
    nodes.device = 1 - nodes.device;
    nodes.n_devices = n - n / 2;
    g_array_append_val(cluster->nodes, nodes);
    return profile;
}

/* Cuts of the sequence at random multiples of the degrees' granularity, at most 12 slices. */
static void
cut(uint32_t *state, Plan *plan)
{
    const int64_t granularity = plan_granularity(&plan->degrees, plan->sequence_parallel);
    const int64_t n_cells = plan->seq_len / granularity;
    const int64_t most = MIN(12, n_cells), n = MIN(most, 2 + (int64_t)(draw(state) % 11));
    int64_t left = n_cells;

    g_array_set_size(plan->slices, 0);
    for (int64_t i = 0; i < n; i++) {
        /* Even, or anything. */
        const int64_t rest = n - i - 1, even = left / (n - i);
        const int64_t any = 1 + (int64_t)(draw(state) % (uint32_t)MAX(1, left - rest));
        const int64_t cells = rest == 0              ? left
                              : draw(state) % 2 == 0 ? MAX(1, even)
                                                     : MIN(any, left - rest);
        const int64_t tokens = cells * granularity;
        g_array_append_val(plan->slices, tokens);
        left -= cells;
    }
}

/* Random micro-batches of at most @point->micro_batch sequences. */
static void
regroup(uint32_t *state, const PlanPoint *point, Plan *plan)
{
    int64_t left = point->n_micro_batches * point->micro_batch, most = 0;

    plan->micro_batch_sequences = g_array_new(FALSE, FALSE, sizeof(int64_t));
    while (left > 0) {
        const int64_t n = MIN(left, 1 + (int64_t)(draw(state) % (uint32_t)point->micro_batch));
        g_array_append_val(plan->micro_batch_sequences, n);
        most = MAX(most, n);
        left -= n;
    }
    plan->micro_batch = most;
    plan->n_micro_batches = plan->micro_batch_sequences->len;
}

/* Memory of a device on which the plan of @report just fits. */
static int64_t
device_of(const Profile *profile, const Workload *workload, const Report *report,
          const PlanDegrees *degrees)
{
    int64_t low = 0, high = INT64_MAX / 16; /* it does not fit low, and fits high */

    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        bool fits = true;
        for (int32_t r = 0; r < workload->n_ranks; r++) {
            int64_t static_bytes = 0;
            for (int i = 0; i < TRACE_MEMORY_N; i++)
                static_bytes += workload->ranks[r].static_bytes[i];
            fits =
                fits && g_array_index(report->ranks, ReportRank, (guint)r).peak_memory_bytes <=
                            workload_usable_of(&profile->parameters, degrees, middle, static_bytes);
        }
        *(fits ? &high : &low) = middle;
    }
    return high;
}

/* Whether a plan was drawn that exists; its bounds are checked. */
static bool
check_random_plan(uint32_t *state, int64_t *n_close)
{
    static const char *const names[] = {"terapipe", "seq1f1b", "seq1f1b-interleaved"};
    const int64_t n = ONE_OF(state, 2, 4, 8, 16);
    const bool is_mixed = draw(state) % 5 == 0;
    g_autoptr(ModelArch) arch = random_arch(state);
    g_autoptr(Profile) profile = random_cluster(state, n, is_mixed);
    const ScheduleFamily *family = schedule_family_find(names[draw(state) % 3], NULL);
    PlanRequest request = request_of(arch, profile, 0);
    request.slices_mode = PLAN_SLICES_AUTO;
    request.dtype = draw(state) % 4 == 0 ? DTYPE_FP16 : DTYPE_BF16;
    request.conventions = plan_conventions(frameworks[draw(state) % G_N_ELEMENTS(frameworks)]);
    if (draw(state) % 4 == 0)
        request.conventions.overlap_tp = !request.conventions.overlap_tp;
    if (draw(state) % 3 == 0)
        request.prefetch_layers = (int32_t)(draw(state) % 4);
    const bool fixes_recompute = draw(state) % 2 == 0;
    const int recompute = (int)(draw(state) % PLAN_RECOMPUTE_N);
    request.recompute = fixes_recompute ? recompute : PLAN_AUTO;
    const int64_t pp = ONE_OF(state, 2, 2, 4, 8), tp = ONE_OF(state, 1, 1, 2, 4);
    const int64_t cp = ONE_OF(state, 1, 1, 1, 2), ep = arch->experts.n_experts > 0 ? 2 : 1;
    const int64_t vpp = family->min_chunks > 1 ? 2 + (int64_t)(draw(state) % 3) : 1;
    PlanPoint point = {
        .degrees = {n / (pp * tp * cp), tp, pp, vpp, cp, 1, PLAN_RANK_ORDER_DEFAULT},
        .micro_batch = ONE_OF(state, 1, 1, 2, 3, 4),
        .n_micro_batches = ONE_OF(state, 1, 2, 4, 8, 16),
        .zero_stage = (int32_t)(draw(state) % 4),
        .sequence_parallel = tp > 1 && draw(state) % 2 == 0,
        .is_balanced = draw(state) % 2 == 0,
        .recompute = (PlanRecompute)recompute,
    };
    if (n % (pp * tp * cp) != 0)
        return false;
    if (point.degrees.dp * cp * tp % ep == 0 && draw(state) % 2 == 0)
        point.degrees.ep = ep;
    if (point.degrees.dp * cp == 1)
        point.zero_stage = 0;
    request.global_batch = point.degrees.dp * point.micro_batch * point.n_micro_batches;
    const int64_t length = plan_point_chain_length(&point.degrees, family);
    if (length > arch->n_layers)
        return false;
    g_autoptr(Plan) plan = plan_space_plan(&request, &point, family);
    g_autofree int64_t *even = plan_partition_even(&request, &point, family);
    const int64_t *counts =
        point.is_balanced ? plan_partition_balanced(flights, &request, &point, family) : even;
    g_autofree int *recomputes = g_new(int, plan->stages->len);
    for (guint k = 0; k < plan->stages->len; k++)
        recomputes[k] = fixes_recompute ? recompute : (int)(draw(state) % PLAN_RECOMPUTE_N);
    plan_partition_apply(counts, length, recomputes, plan);
    cut(state, plan);
    if (plan->slices->len < 2)
        return false;
    const bool regroups = plan_point_regroups(&request, &point) && draw(state) % 2 == 0;
    if (regroups)
        regroup(state, &point, plan);
    g_autoptr(Workload) workload = NULL;
    if (!plan_check(plan, arch->n_layers, NULL) ||
        (workload = workload_new(arch, profile, plan, 0, NULL)) == NULL)
        return false;
    const ScheduleShape shape = plan_shape(plan);
    if (!schedule_shape_check(family, &shape, NULL))
        return false;
    g_autoptr(Report) report = NULL;
    g_assert_true(simulate(plan, workload, INT64_MAX, &report, NULL, NULL));

    const PlanLayerShape layer = plan_point_layer_shape(&point);
    const PlanLayerCost *cost = &plan_layer_uniform_cost(flights, &request, &layer, 1)->whole;
    point.n_fast_ranks = plan_rank_fast(flights, &request, &point);
    /* What this plan holds is a limit under which it fits; or a device does on which it just fits. */
    int64_t memory_bytes = report->peak_memory_bytes;
    if (draw(state) % 2 == 0)
        memory_bytes = device_of(profile, workload, report, &point.degrees);
    else
        request.memory_limit_bytes = memory_bytes;
    plan_point_bound_bytes(&request, cost, memory_bytes, &point);
    g_assert_cmpint(point.sliced_bytes, <=, memory_bytes);
    plan_point_set_group(&request, cost, memory_bytes, plan->micro_batch, &point);
    g_assert_cmpint(point.sliced_bytes, <=, memory_bytes);
    const int64_t sliced_ns = plan_point_sliced_ns(&request, cost, &point);
    const int64_t floor_ns = plan_floor_ns(flights, &request, cost, &point, &plan->micro_batch, 1,
                                           counts, memory_bytes, INT64_MAX);
    g_assert_cmpint(sliced_ns, <=, report->iteration_ns);
    g_assert_cmpint(floor_ns, <=, report->iteration_ns);
    *n_close += floor_ns > report->iteration_ns / 10 * 8;
    return true;
}

static void
test_bounds_hold(void)
{
    const int n_plans = g_test_slow() ? 10000 : 400;
    uint32_t state = 77;
    int64_t n_close = 0;

    for (int n = 0; n < n_plans;) {
        /* One memo for one model. */
        flights = plan_memo_new();
        n += check_random_plan(&state, &n_close);
        g_clear_pointer(&flights, plan_memo_free);
    }
    g_test_message("%d plans, %" G_GINT64_FORMAT " at most a quarter above their bound", n_plans,
                   n_close);
    g_assert_cmpint(n_close, >, n_plans / 100);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/planner/bounds-hold/of-random-slices", test_bounds_hold);
    return g_test_run();
}
