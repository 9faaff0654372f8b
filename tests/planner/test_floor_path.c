/*
 * The paths of bounds/floor_path.h through orders of slices in chunks: where ranks wait for what no work, way or round
 * of a rank tells, the bound of a plan's cell is near to what the plan takes, and never above it.
 */
#include "planner/bounds/floor.h"
#include "planner/bounds/point_bound.h"
#include "planner/partition/partitions.h"
#include "planner/space/space.h"
#include "schedule/rank_order.h"
#include "tests/planner/search_case.h"

/* One pipeline of one replica, whose micro-batches have sizes that add up to a batch. */
typedef struct {
    const char *name;
    int64_t n_ranks, n_chunks, n_layers, vocab;
    int64_t sizes[4], slices[9]; /* sequences and tokens, up to a 0 */
    double least_share;          /* of what the plan takes is its cell's bound */
} Case;

/* Without paths the shares are 0.89, 0.90, 0.90, 0.85, 0.90 and 0.90.  What is left is what ops take: attention to all
 * context, and tiles. */
static const Case cases[] = {
    {"stages of one layer and of two", 8, 2, 24, 0, {1, 1, 1}, {512, 512, 512, 512}, 0.96},
    {"the same in three chunks", 6, 3, 24, 0, {1, 1, 1}, {512, 512, 512, 512}, 0.96},
    {"the same on few ranks", 4, 3, 16, 0, {1, 1}, {512, 512, 512, 512}, 0.96},
    {"a head", 4, 2, 8, 51200, {1, 1}, {256, 256, 256, 256, 256, 256, 256, 256}, 0.98},
    {"the large micro-batch first", 4, 2, 8, 0, {2, 1}, {1024, 1024}, 0.96},
    {"the large micro-batch last", 4, 2, 8, 0, {1, 2}, {1024, 1024}, 0.96},
};

static int64_t
sum_of(const int64_t *sizes, int64_t *n, int64_t *largest)
{
    int64_t sum = 0;

    for (*n = 0, *largest = 0; sizes[*n] > 0; ++*n) {
        sum += sizes[*n];
        *largest = MAX(*largest, sizes[*n]);
    }
    return sum;
}

static void
check_case(const Case *one)
{
    int64_t n, largest, longest = 0, n_slices = 0;
    const int64_t batch = sum_of(one->sizes, &n, &largest);
    g_autoptr(PlanMemo) memo = plan_memo_new();
    ModelArch *arch = long_arch(one->n_layers, one->vocab);
    g_autoptr(Profile) profile = cluster_of("dgx-a100-80g", one->n_ranks);
    PlanRequest request = request_of(arch, profile, batch);
    const PlanPoint point = {
        .degrees = {1, 1, one->n_ranks, one->n_chunks, 1, 1, PLAN_RANK_ORDER_DEFAULT},
        .micro_batch = batch,
        .n_micro_batches = 1,
    };
    flights = memo;
    const ScheduleFamily *family = schedule_family_find("seq1f1b-interleaved", NULL);

    request.slices_mode = PLAN_SLICES_AUTO;
    request.recompute = PLAN_RECOMPUTE_NONE;
    g_autoptr(Plan) plan = plan_space_plan(&request, &point, family);
    g_array_set_size(plan->slices, 0);
    for (; n_slices < 8 && one->slices[n_slices] > 0; n_slices++) {
        g_array_append_val(plan->slices, one->slices[n_slices]);
        longest = MAX(longest, one->slices[n_slices]);
    }
    plan->micro_batch_sequences = g_array_new(FALSE, FALSE, sizeof(int64_t));
    g_array_append_vals(plan->micro_batch_sequences, one->sizes, (guint)n);
    plan->micro_batch = largest;
    plan->n_micro_batches = n;
    g_autoptr(Workload) workload = workload_new(arch, profile, plan, 0, NULL);
    g_assert_nonnull(workload);
    g_autoptr(Report) report = NULL;
    g_assert_true(simulate(plan, workload, INT64_MAX, &report, NULL, NULL));
    g_autofree int64_t *even = plan_partition_even(&request, &point, family);
    const PlanLayerShape layer = plan_point_layer_shape(&point);
    const PlanLayerCost *cost = &plan_layer_uniform_cost(memo, &request, &layer, 1)->whole;
    const PlanFloorAsked asked = {memo, &request, &point, cost, even, INT64_MAX};
    const double share = (double)longest / (double)plan->seq_len;
    const PlanFloorCell cell = {n, n_slices, n_slices, share, share};
    const int64_t bound_ns = plan_floor_cell_ns(&asked, largest, &cell);
    const double part = (double)bound_ns / (double)report->iteration_ns;

    g_test_message("%s: %.4f of what the plan takes", one->name, part);
    g_assert_cmpint(bound_ns, <=, report->iteration_ns);
    if (part < one->least_share)
        g_test_fail_printf("%s: the bound is %.4f of what the plan takes, %.2f expected", one->name,
                           part, one->least_share);
    model_arch_free(arch);
    flights = NULL;
}

static void
test_paths_tell_what_an_order_waits(void)
{
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++)
        check_case(&cases[i]);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/planner/floor-path/tells-what-an-order-waits",
                    test_paths_tell_what_an_order_waits);
    return g_test_run();
}
