/*
 * No plan is faster, nor leaner, than the bounds of its point with any slices: random plans with
 * random slices and micro-batches, simulated.  A bound of a search is the least of these over its
 * points, so it holds where they do.
 */
#include <math.h>

#include "planner/bounds/floor.h"
#include "planner/bounds/point_bound.h"
#include "planner/bounds/rank_kinds.h"
#include "planner/partition/partitions.h"
#include "planner/space/orders.h"
#include "planner/space/space.h"
#include "profiles/workload/buffers.h"
#include "schedule/rank_order.h"
#include "tests/planner/search_case.h"

/* One of each kind of conventions. */
static const PlanFramework frameworks[] = {
    PLAN_FRAMEWORK_DEGAS,         PLAN_FRAMEWORK_DEGAS,           PLAN_FRAMEWORK_MEGATRON_LM,
    PLAN_FRAMEWORK_MEGATRON_CORE, PLAN_FRAMEWORK_MEGATRON_BRIDGE, PLAN_FRAMEWORK_DEEPSPEED,
    PLAN_FRAMEWORK_FSDP,          PLAN_FRAMEWORK_TERAPIPE};

/* What plans are drawn from.  Where little happens besides what a bound counts, plans come near to it, and
 * a bound that says a little too much is seen. */
typedef struct {
    const char *name;
    int32_t share; /* of 100 plans */
    bool
        is_plain; /* one kind of layers and of devices; the layers and a pipeline are all that there is */
    bool has_head; /* plain layers, and an embedding and a head */
    bool is_far;   /* each rank is a node of a slow network, and its layers are narrow */
    bool
        is_full; /* as much memory as the plan needs; micro-batches are long, and cut into many slices */
    bool is_long;  /* attention takes most of the time */
    bool gathers;  /* ZeRO 3, whose collectives take long */
    bool is_mixed; /* half of the devices are slower ones */
    bool is_odd;   /* tensor parallelism over numbers that do not divide a node's devices */
} Family;

/* Of the 10 000 draws of make test-long, the first ones that see wrong formulas that 400 do not see
 * (docs/bounds.md). */
static const int biting_draws[] = {1932, 2082, 2369, 8153};

static const Family plan_families[] = {
    {.name = "anything", .share = 30},
    {.name = "two kinds of devices", .share = 6, .is_plain = true, .is_mixed = true},
    {.name = "groups across nodes", .share = 6, .is_plain = true, .is_odd = true},
    {.name = "plain pipelines", .share = 12, .is_plain = true},
    {.name = "pipelines with a head", .share = 10, .is_plain = true, .has_head = true},
    {.name = "messages", .share = 8, .is_plain = true, .is_far = true},
    {.name = "full memory", .share = 16, .is_plain = true, .is_full = true},
    {.name = "long contexts", .share = 6, .is_plain = true, .is_long = true},
    {.name = "gathers", .share = 6, .is_plain = true, .has_head = true, .gathers = true},
};

static int64_t
one_of(uint32_t *state, const int64_t *list, size_t n)
{
    return list[draw(state) % n];
}
#define ONE_OF(state, ...)                                                                         \
    one_of(state, (const int64_t[]){__VA_ARGS__}, sizeof((const int64_t[]){__VA_ARGS__}) / 8)

static ModelArch *
plain_arch(uint32_t *state, const Family *family)
{
    ModelArch *arch =
        family->is_far || family->is_long
            ? small_arch(ONE_OF(state, 4, 6, 8, 9, 16), 0, 0)
            : long_arch(ONE_OF(state, 4, 5, 6, 8, 9, 12), family->has_head ? 51200 : 0);

    if (family->is_odd) {
        arch->n_heads = arch->n_kv_heads = 48;
        arch->hidden = 48 * arch->head_dim;
        arch->ffn_hidden = 4 * arch->hidden;
    }
    arch->max_seq_len = family->is_long   ? ONE_OF(state, 16384, 65536)
                        : family->is_full ? ONE_OF(state, 8192, 16384)
                                          : ONE_OF(state, 1024, 2048, 4096, 8192);
    return arch;
}

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
    if (draw(state) % 4 == 0)
        adapt(arch, state);
    return arch;
}

/* Half of the @n devices become slower ones, in a node of their own. */
static void
mix_devices(uint32_t *state, int64_t n, ModelCluster *cluster)
{
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
}

static Profile *
random_cluster(uint32_t *state, int64_t n, bool is_mixed)
{
    static const char *const names[] = {"p3.16xlarge", "dgx-a100-80g", "dgx-h100"};
    Profile *profile = cluster_of(names[draw(state) % G_N_ELEMENTS(names)], n);

    if (is_mixed)
        mix_devices(state, n, profile->cluster);
    return profile;
}

/* Cuts of the sequence at random multiples of the degrees' granularity, at most @most_slices. */
static void
cut(uint32_t *state, int64_t most_slices, Plan *plan)
{
    const int64_t granularity = plan_granularity(&plan->degrees, plan->sequence_parallel);
    const int64_t n_cells = plan->seq_len / granularity;
    const int64_t most = MIN(most_slices, n_cells);
    const int64_t n = MIN(most, 2 + (int64_t)(draw(state) % (uint32_t)(most_slices - 1)));
    /* 0: all even; 1: anything, the first ones mostly long; 2: the last ones; else some of both */
    const uint32_t shape = draw(state) % 5;
    int64_t left = n_cells;

    g_array_set_size(plan->slices, 0);
    for (int64_t i = 0; i < n; i++) {
        /* Even, or anything. */
        const int64_t rest = n - i - 1, even = left / (n - i);
        const int64_t any = 1 + (int64_t)(draw(state) % (uint32_t)MAX(1, left - rest));
        const bool is_even = shape == 0 || (shape > 2 && draw(state) % 2 == 0);
        const int64_t cells = rest == 0 ? left : is_even ? MAX(1, even) : MIN(any, left - rest);
        const int64_t tokens = cells * granularity;
        g_array_insert_val(plan->slices, shape == 2 ? 0 : plan->slices->len, tokens);
        left -= cells;
    }
}

static gint
compare_sizes(gconstpointer a, gconstpointer b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* Random micro-batches of at most @point->micro_batch sequences, half of the time the small ones first. */
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
    if (draw(state) % 2 == 0)
        g_array_sort(plan->micro_batch_sequences, compare_sizes);
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

/* Everything of a plan but its slices. */
typedef struct {
    ModelArch *arch;              /* (owned) */
    Profile *profile;             /* (owned) */
    const ScheduleFamily *family; /* (borrowed) */
    PlanRequest request;
    PlanPoint point;
    int64_t n_devices, most_slices;
    int recompute; /* of all stages; -1: each its own */
} Drawn;

static void
drawn_clear(Drawn *drawn)
{
    model_arch_free(drawn->arch);
    profile_free(drawn->profile);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Drawn, drawn_clear)

static const ScheduleFamily *
random_schedule(uint32_t *state)
{
    static const char *const names[] = {"terapipe", "seq1f1b", "seq1f1b-interleaved"};

    return schedule_family_find(names[draw(state) % 3], NULL);
}

/* Any model, cluster, conventions and degrees. */
static void
draw_anything(uint32_t *state, Drawn *drawn)
{
    const int64_t n = ONE_OF(state, 2, 4, 8, 16);
    const bool is_mixed = draw(state) % 5 == 0;
    PlanRequest *request = &drawn->request;

    drawn->n_devices = n;
    drawn->most_slices = 12;
    drawn->arch = random_arch(state);
    drawn->profile = random_cluster(state, n, is_mixed);
    drawn->family = random_schedule(state);
    *request = request_of(drawn->arch, drawn->profile, 0);
    request->dtype = draw(state) % 4 == 0 ? DTYPE_FP16 : DTYPE_BF16;
    request->conventions = plan_conventions(frameworks[draw(state) % G_N_ELEMENTS(frameworks)]);
    if (draw(state) % 4 == 0)
        request->conventions.overlap_tp = !request->conventions.overlap_tp;
    if (draw(state) % 3 == 0)
        request->prefetch_layers = (int32_t)(draw(state) % 4);
    drawn->recompute = draw(state) % 2 == 0 ? (int)(draw(state) % PLAN_RECOMPUTE_N) : -1;
    const int64_t pp = ONE_OF(state, 2, 2, 4, 8), tp = ONE_OF(state, 1, 1, 2, 4);
    const int64_t cp = ONE_OF(state, 1, 1, 1, 2);
    const int64_t ep = drawn->arch->experts.n_experts > 0 ? 2 : 1;
    drawn->point = (PlanPoint){
        .degrees = {n / (pp * tp * cp), tp, pp, 1, cp, 1, PLAN_RANK_ORDER_DEFAULT},
        .micro_batch = ONE_OF(state, 1, 1, 2, 3, 4),
        .n_micro_batches = ONE_OF(state, 1, 2, 4, 8, 16),
        .zero_stage = (int32_t)(draw(state) % 4),
        .sequence_parallel = tp > 1 && draw(state) % 2 == 0,
        .is_balanced = draw(state) % 2 == 0,
    };
    if (drawn->point.degrees.dp * cp * tp % ep == 0 && draw(state) % 2 == 0)
        drawn->point.degrees.ep = ep;
    if (drawn->point.degrees.dp * cp == 1)
        drawn->point.zero_stage = 0;
}

/* A pipeline of one replica. */
static void
draw_plain(uint32_t *state, const Family *family, Drawn *drawn)
{
    static const char *const names[] = {"dgx-a100-80g", "dgx-h100"};
    const int64_t pp = ONE_OF(state, 2, 4, 8), tp = family->is_far   ? 8
                                                    : family->is_odd ? ONE_OF(state, 3, 6)
                                                                     : 1;
    const int64_t dp = family->gathers ? ONE_OF(state, 2, 4, 8) : 1;
    const bool is_slow = family->is_far || (family->gathers && draw(state) % 2 == 0);

    drawn->n_devices = pp * tp * dp;
    drawn->most_slices = family->is_full && draw(state) % 2 == 0 ? 40 : 16;
    drawn->arch = plain_arch(state, family);
    drawn->profile = cluster_of(is_slow ? "p3.16xlarge" : names[draw(state) % 2], drawn->n_devices);
    if (family->is_mixed)
        mix_devices(state, drawn->n_devices, drawn->profile->cluster);
    drawn->family = random_schedule(state);
    drawn->request = request_of(drawn->arch, drawn->profile, 0);
    if (family->gathers)
        drawn->request.prefetch_layers = (int32_t)(draw(state) % 4);
    drawn->recompute = family->is_full && draw(state) % 2 == 0 ? -1 : PLAN_RECOMPUTE_NONE;
    drawn->point = (PlanPoint){
        .degrees = {dp, tp, pp, 1, 1, 1, PLAN_RANK_ORDER_DEFAULT},
        .micro_batch = ONE_OF(state, 1, 1, 2, 4),
        .zero_stage = family->gathers ? 3 : 0,
        .n_micro_batches = ONE_OF(state, 1, 2, 4, 8, 16),
        .is_balanced = draw(state) % 2 == 0,
    };
}

/* Makes @point the one of a search that has plans in its order of ranks among others, if there is one. */
static void
set_order(const PlanRequest *request, PlanPoint *point)
{
    PlanRequest open = *request;
    uint32_t sets[PLAN_RANK_ORDER_N];

    open.rank_order = PLAN_AUTO;
    const int n = plan_space_orders(&open, &point->degrees, sets, NULL);
    for (int i = 0; i < n; i++)
        if ((sets[i] >> point->degrees.rank_order & 1) != 0) {
            point->orders = sets[i];
            point->degrees.rank_order = g_bit_nth_lsf(sets[i], -1);
            return;
        }
}

/* Whether a plan of @kind was drawn that exists; its bounds are checked.  @number: of the draw, for messages. */
static bool
check_random_plan(uint32_t *state, const Family *kind, int number, int64_t *n_close)
{
    g_auto(Drawn) drawn = {0};

    if (kind->is_plain)
        draw_plain(state, kind, &drawn);
    else
        draw_anything(state, &drawn);
    const ModelArch *arch = drawn.arch;
    const Profile *profile = drawn.profile;
    const ScheduleFamily *family = drawn.family;
    PlanRequest request = drawn.request;
    PlanPoint point = drawn.point;
    const int64_t n = drawn.n_devices, pp = point.degrees.pp;
    const bool fixes_recompute = drawn.recompute >= 0;
    request.slices_mode = PLAN_SLICES_AUTO;
    request.recompute = fixes_recompute ? drawn.recompute : PLAN_AUTO;
    point.recompute = fixes_recompute ? (PlanRecompute)drawn.recompute : PLAN_RECOMPUTE_NONE;
    if (family->min_chunks > 1)
        point.degrees.vpp = 2 + (int64_t)(draw(state) % 3);
    if (n % (pp * point.degrees.tp * point.degrees.cp) != 0)
        return false;
    request.global_batch = point.degrees.dp * point.micro_batch * point.n_micro_batches;
    const int64_t length = plan_point_chain_length(&point.degrees, family);
    if (length > arch->n_layers)
        return false;
    /* Of its own numbers, since the biting draws are those of the others. */
    uint32_t orders = 99u + 2654435761u * (uint32_t)number;
    if ((!kind->is_plain || kind->gathers) && draw(&orders) % 2 == 0)
        point.degrees.rank_order = (int64_t)(draw(&orders) % PLAN_RANK_ORDER_N);
    if (!plan_rank_order_check(&point.degrees, &request.conventions, NULL))
        return false;
    g_autoptr(Plan) plan = plan_space_plan(&request, &point, family);
    g_autofree int64_t *even = plan_partition_even(&request, &point, family);
    const int64_t *counts =
        point.is_balanced ? plan_partition_balanced(flights, &request, &point, family) : even;
    g_autofree int *recomputes = g_new(int, plan->stages->len);
    const bool all_again = draw(state) % 2 == 0;
    for (guint k = 0; k < plan->stages->len; k++)
        recomputes[k] = fixes_recompute              ? drawn.recompute
                        : kind->is_full && all_again ? PLAN_RECOMPUTE_FULL
                                                     : (int)(draw(state) % PLAN_RECOMPUTE_N);
    plan_partition_apply(counts, length, recomputes, plan);
    cut(state, drawn.most_slices, plan);
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

    set_order(&request, &point);
    const PlanLayerShape layer = plan_point_layer_shape(&point);
    const PlanLayerCost *cost = &plan_layer_uniform_cost(flights, &request, &layer, 1)->whole;
    point.n_fast_ranks = plan_rank_fast(flights, &request, &point);
    /* What this plan holds is a limit under which it fits; or a device does on which it just fits. */
    int64_t memory_bytes = report->peak_memory_bytes;
    const bool is_unlimited = kind->is_plain && !kind->is_full && draw(state) % 2 == 0;
    if (is_unlimited)
        memory_bytes = INT64_MAX;
    else if (draw(state) % 2 == 0)
        memory_bytes = device_of(profile, workload, report, &point.degrees);
    else
        request.memory_limit_bytes = memory_bytes;
    plan_point_bound_bytes(&request, cost, memory_bytes, &point);
    g_assert_cmpint(point.sliced_bytes, <=, memory_bytes);
    plan_point_set_group(&request, cost, memory_bytes, plan->micro_batch, &point);
    g_assert_cmpint(point.sliced_bytes, <=, memory_bytes);
    const int64_t sliced_ns = plan_point_sliced_ns(&request, cost, &point);
    const PlanFloorAsked asked = {flights, &request, &point, cost, counts, memory_bytes};
    const int64_t floor_ns = plan_floor_ns(&asked, &plan->micro_batch, 1, INT64_MAX);
    /* With a limit rough prices rule out what is above it: this plan is not. */
    const int64_t limited_ns =
        plan_floor_ns(&asked, &plan->micro_batch, 1, report->iteration_ns + 1);
    /* Its own cell alone, which is nearer, and one that has it somewhere inside. */
    const int64_t k = plan->slices->len;
    int64_t longest = 0;
    for (guint i = 0; i < plan->slices->len; i++)
        longest = MAX(longest, g_array_index(plan->slices, int64_t, i));
    const double share = (double)longest / (double)plan->seq_len;
    const PlanFloorCell own = {plan->n_micro_batches, k, k, share, share};
    const int64_t fewer = (int64_t)(draw(state) % 4), more = (int64_t)(draw(state) % 4);
    const PlanFloorCell wide = {plan->n_micro_batches, MAX(2, k - fewer), k + more,
                                share / (1.0 + 0.01 * (double)(draw(state) % 100)),
                                fmin(1.0, share * (1.0 + 0.01 * (double)(draw(state) % 100)))};
    const int64_t own_ns = plan_floor_cell_ns(&asked, plan->micro_batch, &own);
    const int64_t wide_ns = plan_floor_cell_ns(&asked, plan->micro_batch, &wide);
    const int64_t most_ns = MAX(MAX(sliced_ns, floor_ns), MAX(own_ns, wide_ns));
    if (most_ns > report->iteration_ns || floor_ns > own_ns || limited_ns > report->iteration_ns)
        g_test_fail_printf(
            "draw %d of %s: bounds %" G_GINT64_FORMAT ", %" G_GINT64_FORMAT ", %" G_GINT64_FORMAT
            ", %" G_GINT64_FORMAT " ns, the plan takes %" G_GINT64_FORMAT,
            number, kind->name, sliced_ns, floor_ns, own_ns, wide_ns, report->iteration_ns);
    *n_close += own_ns > report->iteration_ns / 10 * 8;
    return true;
}

/* Draws plan number @n: the same whatever was drawn before. */
static void
check_draw(int n, int64_t *n_close)
{
    const Family *family = plan_families;
    uint32_t state = 77u + 2654435761u * (uint32_t)n;
    bool is_drawn = false;

    for (int32_t at = n % 100; at >= family->share; family++)
        at -= family->share;
    while (!is_drawn) {
        /* One memo for one model. */
        flights = plan_memo_new();
        is_drawn = check_random_plan(&state, family, n, n_close);
        g_clear_pointer(&flights, plan_memo_free);
    }
}

static void
test_bounds_hold(void)
{
    const int n_plans = g_test_slow() ? 10000 : 400;
    int64_t n_close = 0;

    for (int n = 0; n < n_plans; n++)
        check_draw(n, &n_close);
    for (size_t i = 0; i < G_N_ELEMENTS(biting_draws) && !g_test_slow(); i++)
        check_draw(biting_draws[i], &n_close);
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
