/* Tests of planner/space/space.h and planner/cost/memo.h: what threads make by themselves is one space, and
 * what one of them has made is not made again. */
#include "base/parallel.h"
#include "planner/bounds/rank_kinds.h"
#include "planner/bounds/sketch.h"
#include "planner/partition/partitions.h"
#include "planner/space/space.h"
#include "schedule/rank_order.h"
#include "tests/planner/search_case.h"

/* --- the parts of a space --- */

/* Points that are too slow and some that are too large, or that have more chunks than are sliced. */
static const PlanSpaceLimits limits[] = {
    {INT64_C(700) << 20, 50000000, 30000000, 1, NULL},
    {INT64_C(2000) << 20, 20000000, 20000000, 1, NULL},
};

static void
assert_points_equal(const GArray *points, guint from, const PlanPoint *point)
{
    const PlanPoint *of_all = &g_array_index(points, PlanPoint, from);

    g_assert_true(memcmp(&of_all->degrees, &point->degrees, sizeof point->degrees) == 0);
    g_assert_cmpint(of_all->micro_batch, ==, point->micro_batch);
    g_assert_cmpint(of_all->zero_stage, ==, point->zero_stage);
    g_assert_cmpint(of_all->bound_ns, ==, point->bound_ns);
    g_assert_cmpint(of_all->sliced_bound_ns, ==, point->sliced_bound_ns);
}

/* What a request with tp and cp open has is what those with each tp and cp have, one after the other. */
static void
check_parts(const PlanSpaceLimits *within, guint counts[4])
{
    g_autoptr(ModelArch) arch = small_arch(8, 4, 1000);
    g_autoptr(Profile) profile = cluster_of("dgx-a100-40g", 16);
    PlanRequest request = request_of(arch, profile, 32);
    PlanSpace sum = {.least_slow_ns = INT64_MAX, .least_sliced_ns = INT64_MAX};
    guint n = 0, n_chunked = 0;
    int64_t least_bytes = INT64_MAX;

    request.threads = 3;
    request.n_devices = 16;
    request.slices_mode = PLAN_SLICES_AUTO;
    request.rank_order = PLAN_AUTO;
    g_autoptr(PlanSpace) all = plan_space_new(&request, within, NULL);
    g_assert_nonnull(all);
    for (request.tp = 1; request.tp <= 16; request.tp *= 2)
        for (request.cp = 1; request.cp <= 16 / request.tp; request.cp *= 2) {
            g_autoptr(PlanSpace) part = plan_space_new(&request, within, NULL);
            if (part == NULL)
                continue;
            for (guint i = 0; i < part->points->len; i++, n++) {
                const PlanPoint *point = &g_array_index(part->points, PlanPoint, i);
                assert_points_equal(all->points, n, point);
                g_assert_cmpint(g_array_index(all->points, PlanPoint, n).index, ==,
                                sum.n_points + point->index);
            }
            for (guint i = 0; i < part->chunked->len; i++, n_chunked++)
                assert_points_equal(all->chunked, n_chunked,
                                    &g_array_index(part->chunked, PlanPoint, i));
            if (part->n_large > 0)
                least_bytes = MIN(least_bytes, part->least_large.bound_bytes);
            sum.n_points += part->n_points;
            sum.n_slow += part->n_slow;
            sum.n_large += part->n_large;
            sum.least_slow_ns = MIN(sum.least_slow_ns, part->least_slow_ns);
            sum.least_sliced_ns = MIN(sum.least_sliced_ns, part->least_sliced_ns);
        }
    g_assert_cmpuint(all->points->len, ==, n);
    g_assert_cmpuint(all->chunked->len, ==, n_chunked);
    g_assert_cmpint(all->n_points, ==, sum.n_points);
    g_assert_cmpint(all->n_slow, ==, sum.n_slow);
    g_assert_cmpint(all->n_large, ==, sum.n_large);
    g_assert_cmpint(all->least_slow_ns, ==, sum.least_slow_ns);
    g_assert_cmpint(all->least_sliced_ns, ==, sum.least_sliced_ns);
    if (sum.n_large > 0)
        g_assert_cmpint(all->least_large.bound_bytes, ==, least_bytes);
    counts[0] += n;
    counts[1] += n_chunked;
    counts[2] += sum.n_slow > 0;
    counts[3] += sum.n_large > 0;
}

static void
test_parts_make_the_whole(void)
{
    guint counts[4] = {0};

    for (size_t i = 0; i < G_N_ELEMENTS(limits); i++)
        check_parts(&limits[i], counts);
    g_test_message("%u points, %u of many chunks", counts[0], counts[1]);
    g_assert_cmpuint(counts[0], >, 2000);
    g_assert_cmpuint(counts[1], >, 50);
    g_assert_cmpuint(counts[2], ==, 2);
    g_assert_cmpuint(counts[3], ==, 1);
}

/* Each point has the costs of its own layers, whatever it has in common with others. */
static void
test_points_have_their_costs(void)
{
    g_autoptr(ModelArch) arch = small_arch(8, 4, 1000);
    g_autoptr(Profile) profile = cluster_of("dgx-a100-40g", 16);
    const PlanSpaceLimits none = {.memory_bytes = INT64_MAX, .time_ns = INT64_MAX, .sliced_ns = -1};
    g_autoptr(PlanMemo) memo = plan_memo_new();
    PlanRequest request = request_of(arch, profile, 32);
    int n_of_ep[2] = {0}, n_orders = 0;

    arch->experts.first_dense_layers = 2;
    request.memo = memo;
    request.rank_order = PLAN_AUTO;
    request.threads = 2;
    request.n_devices = 16;
    g_autoptr(PlanSpace) space = plan_space_new(&request, &none, NULL);
    g_assert_nonnull(space);
    for (guint i = 0; i < space->points->len; i += 5) {
        const PlanPoint *point = &g_array_index(space->points, PlanPoint, i);
        const PlanLayerShape shape = plan_point_layer_shape(point);
        const PlanLayerCost own = whole_cost(&request, &shape);
        const PlanLayerCost *cost = plan_space_cost(space, point);
        g_assert_true(memcmp(&own, cost, sizeof own) == 0);
        n_of_ep[point->degrees.ep > 1]++;
        n_orders += point->degrees.rank_order != PLAN_RANK_ORDER_DEFAULT;
    }
    g_assert_cmpint(n_of_ep[0], >, 100);
    g_assert_cmpint(n_of_ep[1], >, 100);
    g_assert_cmpint(n_orders, >, 100);
}

/* Of two reasons of one kind that combinations have, the one of the smaller tp is told. */
static void
test_the_first_reason_is_told(void)
{
    g_autoptr(ModelArch) arch = small_arch(8, 0, 1000);
    g_autoptr(Profile) profile = cluster_of("dgx-a100-40g", 16);
    PlanRequest request = request_of(arch, profile, 7);
    g_autoptr(GError) error = NULL;

    request.threads = 3;
    request.n_devices = 16;
    request.pp = 1;
    request.cp = 1;
    /* tp 1 leaves 16 replicas, tp 2 eight, tp 4 four, tp 8 two: 7 is a multiple of none; 8 heads do not
     * divide by 16. */
    g_assert_null(plan_space_new(&request, limits, &error));
    g_assert_nonnull(strstr(error->message, "--dp 16"));
}

/* --- the leanest points --- */

static gint
compare_leaner(gconstpointer a, gconstpointer b)
{
    return plan_point_compare_bytes(a, b);
}

/* Where the leanest points alone are wanted, those that are kept are the leanest of all, and as they were; and
 * the others are no leaner than what is of no interest. */
static void
test_the_leanest_points_are_kept(void)
{
    g_autoptr(ModelArch) arch = small_arch(8, 4, 1000);
    g_autoptr(Profile) profile = cluster_of("dgx-a100-40g", 16);
    const PlanSpaceLimits none = {.memory_bytes = INT64_MAX, .time_ns = INT64_MAX, .sliced_ns = -1};
    PlanRequest request = request_of(arch, profile, 32);

    request.n_devices = 16;
    g_autoptr(PlanSpace) all = plan_space_new(&request, &none, NULL);
    g_array_sort(all->points, compare_leaner);
    for (guint n = 3; n < 1000; n *= 5) {
        PlanSpaceLimits lean = none;
        lean.n_leanest = n;
        lean.leanest_bytes = g_array_index(all->points, PlanPoint, 2 * n).bound_bytes;
        g_autoptr(PlanSpace) some = plan_space_new(&request, &lean, NULL);
        g_assert_cmpuint(some->points->len, <, all->points->len);
        g_assert_cmpint(some->n_points, ==, all->n_points);
        g_array_sort(some->points, compare_leaner);
        for (guint i = 0; i < n; i++) {
            const PlanPoint *point = &g_array_index(some->points, PlanPoint, i);
            g_assert_cmpint(point->index, ==, g_array_index(all->points, PlanPoint, i).index);
            g_assert_true(memcmp(plan_space_cost(some, point),
                                 plan_space_cost(all, &g_array_index(all->points, PlanPoint, i)),
                                 sizeof(PlanLayerCost)) == 0);
        }
        for (guint i = 0; i < some->points->len; i++)
            g_assert_cmpint(g_array_index(some->points, PlanPoint, i).bound_bytes, <=,
                            lean.leanest_bytes);
    }
}

/* --- devices that fill no whole nodes --- */

/* What one family takes at @point is no less than its bounds.  Returns: the sketch's against what it takes. */
static double
check_bounds(const PlanSpace *space, const PlanPoint *point, const ScheduleFamily *family)
{
    const PlanRequest *request = space->request;
    const PlanLayerCost *cost = plan_space_cost(space, point);
    g_autoptr(Plan) plan = plan_space_plan(request, point, family);
    g_autoptr(Workload) workload = workload_new(request->arch, request->profile, plan, 0, NULL);
    g_autofree int64_t *even = plan_partition_even(request, point, family);
    g_autofree const PlanLayerCost **rank_costs = plan_rank_costs(request->memo, request, point);
    g_autofree int *recomputes = g_new0(int, plan->stages->len);
    g_auto(PlanSketch) sketch = {0};
    Report *report = NULL;
    const PlanSketchInput input = {
        .request = request,
        .point = point,
        .cost = cost,
        .slice = cost,
        .rank_costs = rank_costs,
        .n_slices = 1,
        .family = family,
        .flight = plan_bound_flight(plan, request->memo),
        .counts = even,
    };

    g_assert_nonnull(workload);
    g_assert_true(simulate(plan, workload, INT64_MAX, &report, NULL, NULL));
    const int64_t ns = report->iteration_ns;
    report_free(report);
    g_assert_cmpint(point->bound_ns, <=, ns);
    plan_sketch_init(&sketch, &input);
    const int64_t sketch_ns = plan_sketch_recomputes_ns(&sketch, &input, recomputes);
    g_assert_cmpint(sketch_ns, <=, ns);
    for (int32_t r = 0; r < workload->n_ranks; r++) {
        int64_t n[PLAN_PART_N] = {0};
        for (int64_t chunk = 0; chunk < point->degrees.vpp; chunk++)
            for (int i = 0; i < PLAN_PART_N; i++)
                n[i] += plan_sketch_stage_at(&sketch, r, chunk)->n[i];
        const WorkloadRank *rank = &workload->ranks[r];
        const double end_s = plan_sketch_end_s(request, cost, point, n);
        g_assert_cmpfloat(
            end_s * 1e9, <=,
            (double)(rank->dp_reduce_ns + rank->dp_gather_ns + rank->optimizer_ns + 3));
    }
    return (double)sketch_ns / (double)ns;
}

/* Of 12 devices eight are one node and four another: groups of ranks lie otherwise on each. */
static void
test_bounds_hold_on_part_of_a_node(void)
{
    g_autoptr(ModelArch) arch = long_arch(12, 1000);
    g_autoptr(Profile) profile = cluster_of("a100-pcie-80g", 12);
    const PlanSpaceLimits none = {.memory_bytes = INT64_MAX, .time_ns = INT64_MAX, .sliced_ns = -1};
    const char *const families[] = {"1f1b", "interleaved", "zb-h1"};
    g_autoptr(PlanMemo) memo = plan_memo_new();
    PlanRequest request = request_of(arch, profile, 12);
    int n_near = 0, n = 0;

    flights = memo;
    request.memo = memo;
    request.n_devices = 12;
    request.rank_order = PLAN_AUTO;
    request.recompute = PLAN_RECOMPUTE_NONE;
    g_autoptr(PlanSpace) space = plan_space_new(&request, &none, NULL);
    g_assert_nonnull(space);
    for (guint i = 0; i < space->points->len; i += 3) {
        const PlanPoint *point = &g_array_index(space->points, PlanPoint, i);
        const ScheduleFamily *family = schedule_family_find(families[i % 3], NULL);
        if (point->is_balanced || !plan_space_has_family(space, point, family, 1))
            continue;
        n_near += check_bounds(space, point, family) > 0.95;
        n++;
    }
    flights = NULL;
    g_test_message("%d of %d plans within 5 %% of their sketch", n_near, n);
    g_assert_cmpint(n, >, 100);
    g_assert_cmpint(n_near, >, n / 4);
}

/* --- the memo --- */

typedef struct {
    PlanMemoKey memo;
    int64_t number;
} Key;

typedef struct {
    PlanMemo *memo;
    int64_t number;
} Question;

static int n_made[8];

/* The sum of all numbers up to the question's, which the memo has of those before it. */
static void *
make_sum(const void *data)
{
    const Question *asked = data;
    int64_t *sum = g_new(int64_t, 1);

    g_atomic_int_inc(&n_made[asked->number]);
    g_usleep(1000); /* others ask meanwhile */
    *sum = asked->number;
    if (asked->number > 0) {
        const Question before = {asked->memo, asked->number - 1};
        const Key key = {PLAN_MEMO_KEY(Key, PLAN_MEMO_FLOOR), before.number};
        *sum += *(const int64_t *)plan_memo_get(asked->memo, &key.memo, make_sum, &before, g_free);
    }
    return sum;
}

static void
ask_sum(int64_t i, void *user_data)
{
    const Question asked = {user_data, 7 - i % 8};
    const Key key = {PLAN_MEMO_KEY(Key, PLAN_MEMO_FLOOR), asked.number};
    const int64_t *sum = plan_memo_get(user_data, &key.memo, make_sum, &asked, g_free);

    g_assert_cmpint(*sum, ==, asked.number * (asked.number + 1) / 2);
}

static void
test_an_answer_is_made_once(void)
{
    g_autoptr(PlanMemo) memo = plan_memo_new();

    memset(n_made, 0, sizeof n_made);
    parallel_each(64, 8, ask_sum, memo);
    for (size_t i = 0; i < G_N_ELEMENTS(n_made); i++)
        g_assert_cmpint(n_made[i], ==, 1);
}

static void *
make_nothing(const void *data)
{
    g_atomic_int_inc((int *)data);
    g_usleep(1000);
    return NULL;
}

typedef struct {
    PlanMemo *memo;
    int n_asked;
} Nothing;

static void
ask_nothing(int64_t i, void *user_data)
{
    Nothing *nothing = user_data;
    const Key key = {PLAN_MEMO_KEY(Key, PLAN_MEMO_FLOOR), 0};

    g_assert_null(plan_memo_get(nothing->memo, &key.memo, make_nothing, &nothing->n_asked, g_free));
}

static void
test_no_answer_is_not_remembered(void)
{
    g_autoptr(PlanMemo) memo = plan_memo_new();
    Nothing nothing = {memo, 0};

    parallel_each(8, 4, ask_nothing, &nothing);
    g_assert_cmpint(nothing.n_asked, ==, 8);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/planner/space/parts-make-the-whole", test_parts_make_the_whole);
    g_test_add_func("/planner/space/points-have-their-costs", test_points_have_their_costs);
    g_test_add_func("/planner/space/the-first-reason-is-told", test_the_first_reason_is_told);
    g_test_add_func("/planner/space/the-leanest-points-are-kept", test_the_leanest_points_are_kept);
    g_test_add_func("/planner/space/bounds-hold-on-part-of-a-node",
                    test_bounds_hold_on_part_of_a_node);
    g_test_add_func("/planner/memo/an-answer-is-made-once", test_an_answer_is_made_once);
    g_test_add_func("/planner/memo/no-answer-is-not-remembered", test_no_answer_is_not_remembered);
    return g_test_run();
}
