/* Tests of planner/search.h with slices and micro-batches of any size: against all coarse ones. */
#include "planner/bounds/floor.h"
#include "planner/partition/partitions.h"
#include "planner/run.h"
#include "planner/slices/coarse.h"
#include "planner/slices/grid.h"
#include "planner/trial/slices.h"
#include "schedule/rank_order.h"
#include "tests/planner/search_case.h"

#define CELLS 8

/* The least time of all groupings and of all slicings into multiples of an eighth of the sequence,
 * that fit. */
static int64_t
all_coarse(const PlanRequest *request, const Plan *like)
{
    const int64_t batch = request->global_batch, cell = request->seq_len / CELLS;
    int64_t least = INT64_MAX;

    for (int breaks = 0; breaks < 1 << (batch - 1); breaks++)
        for (int cuts = 1; cuts < 1 << (CELLS - 1); cuts++) {
            g_autoptr(Plan) plan = plan_copy(like);
            g_autoptr(GError) error = NULL;
            g_autoptr(Report) report = NULL;
            g_clear_pointer(&plan->micro_batch_sequences, g_array_unref);
            plan->micro_batch_sequences = g_array_new(FALSE, FALSE, sizeof(int64_t));
            plan->micro_batch = 0;
            for (int64_t x = 0, b = 1; x < batch; x++, b++)
                if (x + 1 == batch || breaks >> x & 1) {
                    g_array_append_val(plan->micro_batch_sequences, b);
                    plan->micro_batch = MAX(plan->micro_batch, b);
                    b = 0;
                }
            plan->n_micro_batches = plan->micro_batch_sequences->len;
            g_array_set_size(plan->slices, 0);
            for (int64_t c = 0, tokens = cell; c < CELLS; c++, tokens += cell)
                if (c + 1 == CELLS || cuts >> c & 1) {
                    g_array_append_val(plan->slices, tokens);
                    tokens = 0;
                }
            g_autoptr(Workload) workload = workload_new(request->arch, request->profile, plan,
                                                        request->memory_limit_bytes, &error);
            g_assert_no_error(error);
            g_assert_true(simulate(plan, workload, INT64_MAX, &report, NULL, &error));
            if (report->fits)
                least = MIN(least, report->iteration_ns);
        }
    return least;
}

static const char *const families[][2] = {{"terapipe"}, {"seq1f1b"}};

/* (owned) long ops, so that slices and micro-batches count. */
static ModelArch *
wide_arch(int64_t seq_len)
{
    ModelArch *arch = small_arch(40, 0, 51200);

    arch->hidden = 5120;
    arch->n_heads = arch->n_kv_heads = 40;
    arch->head_dim = 128;
    arch->ffn_hidden = 20480;
    arch->max_seq_len = seq_len;
    return arch;
}

/* One stage on each device. */
static PlanRequest
pipeline_of(const ModelArch *arch, const Profile *profile, int64_t batch,
            const char *const *schedules)
{
    PlanRequest request = request_of(arch, profile, batch);

    request.dtype = DTYPE_FP16;
    request.pp = model_cluster_n_devices(profile->cluster);
    request.vpp = request.tp = request.dp = request.cp = 1;
    request.recompute = PLAN_RECOMPUTE_NONE;
    request.zero_stage = 0;
    request.sequence_parallel = 0;
    request.schedules = schedules;
    request.slices_mode = PLAN_SLICES_AUTO;
    request.memory_limit_bytes = INT64_C(200) << 30;
    return request;
}

/* What is left of a last wave costs all of it, or three quarters: slices of fractions of a tile
 * gain in the second only. */
static const double tails[] = {1.0, 0.75};

static void
test_no_coarse_groups_and_slices_are_better(void)
{
    static const struct {
        const char *cluster;
        int family;
        int64_t n_stages, batch, seq_len;
    } cases[] = {
        {"p3.16xlarge", 0, 8, 2, 512},  {"p3.16xlarge", 1, 8, 3, 512},
        {"p3.16xlarge", 0, 8, 4, 512},  {"p3.16xlarge", 1, 4, 5, 512},
        {"p3.16xlarge", 0, 4, 5, 512},  {"p3.16xlarge", 1, 4, 5, 2048},
        {"p3.16xlarge", 1, 2, 4, 1024}, {"dgx-h100", 0, 8, 4, 512},
        {"dgx-h100", 1, 8, 2, 1024},    {"dgx-h100", 1, 4, 4, 2048},
    };
    int n_uneven = 0;

    flights = plan_memo_new();
    for (size_t i = 0; i < 2 * G_N_ELEMENTS(cases); i++) {
        const size_t k = i / 2;
        g_autoptr(ModelArch) arch = wide_arch(cases[k].seq_len);
        g_autoptr(Profile) profile = cluster_of(cases[k].cluster, cases[k].n_stages);
        profile->parameters.gemm_tail_fraction = tails[i % 2];
        const PlanRequest request =
            pipeline_of(arch, profile, cases[k].batch, families[cases[k].family]);
        g_autoptr(GError) error = NULL;
        g_autoptr(Plan) plan = plan_search(&request, simulate, NULL, &error);
        g_assert_no_error(error);
        const int64_t least = all_coarse(&request, plan);
        g_assert_cmpint(plan->predicted->iteration_ns, <=, least);
        g_assert_cmpfloat(plan->lower_bound_s * 1e9, <=, (double)least);
        /* Work alone, without what short slices cost and what filling takes, leaves up to 0.83. */
        g_assert_cmpfloat(plan->optimality_gap_fraction, <, 0.6);
        /* It is what the file says. */
        g_autoptr(Workload) workload =
            workload_new(arch, profile, plan, request.memory_limit_bytes, &error);
        g_autoptr(Report) report = NULL;
        g_assert_no_error(error);
        simulate(plan, workload, INT64_MAX, &report, NULL, &error);
        g_assert_cmpint(report->iteration_ns, ==, plan->predicted->iteration_ns);
        n_uneven += plan->micro_batch_sequences != NULL;
    }
    g_assert_cmpint(n_uneven, >, 0);
    g_clear_pointer(&flights, plan_memo_free);
}

/* Nor on stacks of windows, states and attention, in which the stages differ. */
static void
test_no_coarse_slices_of_mixed_stacks_are_better(void)
{
    uint32_t random = 9;
    int n_sliced = 0;

    flights = plan_memo_new();
    for (int i = 0; i < 4; i++) {
        g_autoptr(ModelArch) arch = wide_arch(512);
        g_autoptr(Profile) profile = cluster_of("p3.16xlarge", i < 2 ? 4 : 8);
        const PlanRequest request = pipeline_of(arch, profile, i < 2 ? 5 : 2, families[i % 2]);
        g_autoptr(GError) error = NULL;
        mix_layers(arch, &random);
        g_autoptr(Plan) plan = plan_search(&request, simulate, NULL, &error);
        g_assert_no_error(error);
        g_assert_cmpint(plan->predicted->iteration_ns, <=, all_coarse(&request, plan));
        n_sliced += plan->slices->len > 1;
    }
    g_assert_cmpint(n_sliced, >=, 2);
    g_clear_pointer(&flights, plan_memo_free);
}

/* With attention later slices cost more, and are shorter; a state costs the same behind any context. */
static void
test_slices_of_states_are_equal(void)
{
    flights = plan_memo_new();
    for (int states = 0; states < 2; states++) {
        g_autoptr(ModelArch) arch = wide_arch(16384);
        g_autoptr(Profile) profile = cluster_of("p3.16xlarge", 8);
        const PlanRequest request = pipeline_of(arch, profile, 1, families[0]);
        g_autoptr(GError) error = NULL;
        arch->vocab = 0; /* ends take part in the first and the last stage alone */
        if (states) {
            arch->mixer = MODEL_MIXER_MAMBA2;
            arch->state = (ModelState){.n_heads = 40,
                                       .n_key_heads = 40,
                                       .key_dim = 64,
                                       .value_dim = 128,
                                       .conv = 4,
                                       .chunk = MODEL_STATE_CHUNK};
        }
        g_autoptr(Plan) plan = plan_search(&request, simulate, NULL, &error);
        g_assert_no_error(error);
        const guint n = plan->slices->len;
        const int64_t first = g_array_index(plan->slices, int64_t, 0),
                      last = g_array_index(plan->slices, int64_t, n - 1);
        g_test_message("%u slices of %" G_GINT64_FORMAT " to %" G_GINT64_FORMAT " tokens", n, first,
                       last);
        g_assert_cmpuint(n, >, 2);
        if (states)
            g_assert_cmpint(first, ==, last);
        else
            g_assert_cmpint(first, >, last);
    }
    g_clear_pointer(&flights, plan_memo_free);
}

/* The bound of any slicing, whose certificate may be cut to the answer's time, by itself; and it is
 * worth more than the work alone. */
static void
test_no_slicing_takes_less_than_the_floor(void)
{
    static const char *const clusters[] = {"p3.16xlarge", "dgx-h100"};

    flights = plan_memo_new();
    for (int i = 0; i < 4; i++) {
        g_autoptr(ModelArch) arch = wide_arch(512);
        g_autoptr(Profile) profile = cluster_of(clusters[i / 2], 4);
        g_autoptr(PlanMemo) memo = plan_memo_new();
        PlanRequest request = pipeline_of(arch, profile, 4, families[i % 2]);
        const PlanSpaceLimits limits = {INT64_MAX / 8, INT64_MAX, INT64_MAX, 1};
        g_autoptr(GError) error = NULL;
        PlanRun run;
        request.memo = memo;
        g_autoptr(PlanSpace) space = plan_space_new(&request, &limits, &error);
        g_assert_no_error(error);
        plan_run_init(&run, &request, space, simulate, NULL);
        for (guint k = 0; k < space->points->len; k++) {
            const PlanPoint *point = &g_array_index(space->points, PlanPoint, k);
            if (point->micro_batch < 4 || point->is_balanced)
                continue;
            const ScheduleFamily *family = schedule_family_find(families[i % 2][0], NULL);
            g_autoptr(Plan) plan = plan_space_plan(&request, point, family);
            g_autofree int64_t *even = plan_partition_even(&request, point, family);
            const PlanFloorAsked asked = {memo, &request, point, plan_space_cost(space, point),
                                          even, INT64_MAX};
            const int64_t floor_ns = plan_floor_ns(&asked, &point->micro_batch, 1, INT64_MAX);
            g_assert_cmpint(floor_ns, <=, all_coarse(&request, plan));
            g_assert_cmpint(floor_ns, >, point->sliced_bound_ns);
        }
        plan_run_clear(&run);
    }
    g_clear_pointer(&flights, plan_memo_free);
}

/* --- the grid itself --- */

/* The simulated time of @groups. */
static int64_t
time_of(const PlanRequest *request, const Plan *like, const GPtrArray *groups)
{
    g_autoptr(Plan) plan = plan_copy(like);
    g_autoptr(Report) report = NULL;
    g_autoptr(GError) error = NULL;

    g_array_unref(plan->slices);
    plan->slices = ((PlanSliceGroup *)groups->pdata[0])->slices;
    g_array_ref(plan->slices);
    plan->micro_batch_sequences = g_array_new(FALSE, FALSE, sizeof(int64_t));
    plan->n_micro_batches = groups->len;
    plan->micro_batch = 0;
    for (guint i = 0; i < groups->len; i++) {
        const int64_t batch = ((PlanSliceGroup *)groups->pdata[i])->batch;
        g_array_append_val(plan->micro_batch_sequences, batch);
        plan->micro_batch = MAX(plan->micro_batch, batch);
    }
    g_autoptr(Workload) workload =
        workload_new(request->arch, request->profile, plan, request->memory_limit_bytes, &error);
    g_assert_no_error(error);
    simulate(plan, workload, INT64_MAX, &report, NULL, &error);
    return report->iteration_ns;
}

/* Without a limit all are there, and none takes less than its bounds, of which the sharper one is
 * TeraPipe's time. */
static void
test_grids_are_whole_and_bounded(void)
{
    for (int i = 0; i < 4; i++) {
        g_autoptr(ModelArch) arch = wide_arch(512);
        g_autoptr(Profile) profile = cluster_of(i < 2 ? "p3.16xlarge" : "dgx-h100", 4);
        PlanRequest request = pipeline_of(arch, profile, 3, families[i % 2]);
        g_autoptr(GError) error = NULL;
        const ScheduleFamily *family = schedule_family_find(families[i % 2][0], NULL);
        int n_exact = 0;

        flights = plan_memo_new();
        request.micro_batch = 3;
        g_autoptr(Plan) plan = plan_from_request(&request, &error);
        g_assert_no_error(error);
        const PlanCoarseAsked asked = {&request, plan, true, INT64_MAX};
        g_autoptr(PlanCoarseGrid) grid = plan_coarse_grid_new(&asked);
        g_autoptr(GArray) all = plan_coarse_grid_all(grid, family->forwards_first, INT64_MAX);
        g_assert_cmpuint(all->len, ==, 127 * 4);
        for (guint k = 0; k < all->len; k++) {
            const PlanCoarse *one = &g_array_index(all, PlanCoarse, k);
            const int64_t sharp_ns = plan_coarse_grid_bound_ns(grid, one, family->forwards_first);
            g_autoptr(GPtrArray) groups = plan_coarse_grid_groups(grid, one);
            const int64_t time_ns = time_of(&request, plan, groups);
            g_assert_cmpint(one->bound_ns, <=, sharp_ns);
            g_assert_cmpint(sharp_ns, <=, time_ns);
            g_assert_true(k == 0 || one[-1].bound_ns <= one->bound_ns);
            n_exact += sharp_ns == time_ns;
        }
        if (family->forwards_first)
            g_assert_cmpint(n_exact, >, (int)all->len / 2);
        g_clear_pointer(&flights, plan_memo_free);
    }
}

/* The case of above whose micro-batches differ. */
static void
test_micro_batches_stay_as_asked(void)
{
    g_autoptr(ModelArch) arch = wide_arch(512);
    g_autoptr(Profile) profile = cluster_of("p3.16xlarge", 4);
    PlanRequest request = pipeline_of(arch, profile, 5, families[1]);
    g_autoptr(GError) error = NULL;

    flights = plan_memo_new();
    request.micro_batch = 5;
    g_autoptr(Plan) plan = plan_search(&request, simulate, NULL, &error);
    g_assert_no_error(error);
    g_assert_null(plan->micro_batch_sequences);
    g_assert_cmpint(plan->micro_batch, ==, 5);
    g_clear_pointer(&flights, plan_memo_free);
}

/* Ruling estimates out by their bounds changes none that is of interest, also where slices fit only
 * with recompute. */
static void
test_estimates_are_what_pricing_all_gives(void)
{
    g_autoptr(ModelArch) arch = wide_arch(2048);
    g_autoptr(Profile) profile = cluster_of("dgx-h100", 8);
    PlanRequest request = request_of(arch, profile, 16);
    const PlanSpaceLimits limits = {INT64_C(34) << 30, INT64_MAX, INT64_MAX, 1};
    int n_plain = 0, n_recomputed = 0;
    PlanOutcome outcome;
    PlanRun run;

    request.slices_mode = PLAN_SLICES_AUTO;
    request.memory_limit_bytes = limits.memory_bytes;
    request.vpp = request.cp = 1;
    g_autoptr(PlanSpace) space = plan_space_new(&request, &limits, NULL);
    plan_run_init(&run, &request, space, simulate, NULL);
    plan_outcome_init(&outcome);
    for (guint i = 0; i < space->points->len; i++) {
        const PlanPoint *point = &g_array_index(space->points, PlanPoint, i);
        g_auto(PlanTrial) trial = {0};
        int recompute;
        if (point->sliced_bound_ns == INT64_MAX || point->is_balanced)
            continue;
        plan_trial_init(&trial, &run.evaluation, point, INT64_MAX, &outcome);
        const int64_t all_ns = plan_estimate_trial(&trial, INT64_MAX, &recompute);
        if (all_ns == INT64_MAX)
            continue;
        *(recompute == PLAN_RECOMPUTE_NONE ? &n_plain : &n_recomputed) += 1;
        const int64_t most_ns[] = {all_ns / 2, all_ns - 1, all_ns, 2 * all_ns};
        for (size_t k = 0; k < G_N_ELEMENTS(most_ns); k++) {
            run.evaluation.most_estimate_ns = most_ns[k];
            plan_estimate_slices(&run.evaluation, point, INT64_MAX, &outcome);
            if (all_ns <= most_ns[k])
                g_assert_cmpint(outcome.estimate_ns, ==, all_ns);
            else
                g_assert_cmpint(outcome.estimate_ns, >, most_ns[k]);
        }
    }
    g_assert_cmpint(n_plain, >, 0);
    g_assert_cmpint(n_recomputed, >, 0);
    plan_outcome_clear(&outcome);
    plan_run_clear(&run);
}

/* (owned, nullable) the best sliced plan at the points of @request that are even. */
static Plan *
best_sliced(const PlanRequest *request, int recompute, int64_t limit_bytes)
{
    const PlanSpaceLimits limits = {limit_bytes, INT64_MAX, INT64_MAX, request->vpp};
    PlanRequest one = *request;
    PlanOutcome outcome;
    PlanRun run;
    Plan *best = NULL;

    one.recompute = recompute;
    one.memory_limit_bytes = limit_bytes;
    g_autoptr(PlanSpace) space = plan_space_new(&one, &limits, NULL);
    g_assert_nonnull(space);
    plan_run_init(&run, &one, space, simulate, NULL);
    plan_outcome_init(&outcome);
    for (guint i = 0; i < space->points->len; i++) {
        const PlanPoint *point = &g_array_index(space->points, PlanPoint, i);
        if (!point->is_balanced)
            plan_evaluate_slices(&run.evaluation, point, INT64_MAX, &outcome);
    }
    g_ptr_array_sort(outcome.found, plan_found_compare);
    if (outcome.found->len > 0)
        best = plan_copy(((PlanFound *)outcome.found->pdata[0])->plan);
    plan_outcome_clear(&outcome);
    plan_run_clear(&run);
    return best;
}

static PlanRequest
chunks_of(const ModelArch *arch, const Profile *profile, const PlanDegrees *d)
{
    static const char *const interleaved[] = {"seq1f1b-interleaved", NULL};
    PlanRequest request = request_of(arch, profile, 4 * d->dp);

    request.slices_mode = PLAN_SLICES_AUTO;
    request.schedules = interleaved;
    request.dp = d->dp;
    request.tp = d->tp;
    request.pp = d->pp;
    request.vpp = d->vpp;
    request.cp = d->cp;
    request.micro_batch = 1;
    request.zero_stage = 0;
    request.rank_order = PLAN_AUTO;
    return request;
}

static int64_t
peak_bytes(const Plan *plan)
{
    int64_t most = 0;

    for (guint r = 0; r < plan->predicted->ranks->len; r++)
        most = MAX(most, g_array_index(plan->predicted->ranks, ReportRank, r).peak_memory_bytes);
    return most;
}

/* Where memory is between what slices need with full recompute and with none, some chunks recompute, and the
 * plan is faster than with one kind for all. */
static void
test_chunks_of_slices_recompute_for_themselves(void)
{
    static const PlanDegrees degrees = {.dp = 1, .tp = 1, .pp = 4, .vpp = 5, .cp = 1, .ep = 1};
    g_autoptr(ModelArch) arch = wide_arch(8192);
    g_autoptr(Profile) profile = cluster_of("dgx-a100-80g", 4);
    const PlanRequest request = chunks_of(arch, profile, &degrees);
    int n_full = 0;

    flights = plan_memo_new();
    g_autoptr(Plan) none = best_sliced(&request, PLAN_RECOMPUTE_NONE, INT64_C(1) << 40);
    g_autoptr(Plan) full = best_sliced(&request, PLAN_RECOMPUTE_FULL, INT64_C(1) << 40);
    const int64_t limit_bytes = (peak_bytes(none) + 2 * peak_bytes(full)) / 3;
    g_autoptr(Plan) best = best_sliced(&request, PLAN_AUTO, limit_bytes);
    g_assert_nonnull(best);
    g_assert_cmpint(peak_bytes(best), <=, limit_bytes);
    for (guint k = 0; k < best->stages->len; k++)
        n_full += g_array_index(best->stages, PlanStage, k).recompute == PLAN_RECOMPUTE_FULL;
    g_assert_cmpint(n_full, >, 0);
    g_assert_cmpint(n_full, <, (int)best->stages->len);
    for (int kind = 0; kind < PLAN_RECOMPUTE_N; kind++) {
        g_autoptr(Plan) alike = best_sliced(&request, kind, limit_bytes);
        if (alike != NULL)
            g_assert_cmpint(best->predicted->iteration_ns, <, alike->predicted->iteration_ns);
    }
    g_clear_pointer(&flights, plan_memo_free);
}

/* Replicas and stages on two nodes, long messages: a sliced plan is no faster in another order of ranks. */
static void
test_no_other_rank_order_of_slices_is_faster(void)
{
    static const PlanDegrees degrees = {.dp = 8, .tp = 1, .pp = 2, .vpp = 2, .cp = 1, .ep = 1};
    g_autoptr(ModelArch) arch = small_arch(4, 0, 0);
    g_autoptr(Profile) profile = cluster_of("p3.16xlarge", 16);
    g_autoptr(GError) error = NULL;
    int n_slower = 0;

    arch->max_seq_len = 32768;
    const PlanRequest request = chunks_of(arch, profile, &degrees);
    flights = plan_memo_new();
    g_autoptr(Plan) best = best_sliced(&request, PLAN_AUTO, INT64_C(1) << 40);
    for (int order = 0; order < PLAN_RANK_ORDER_N; order++) {
        g_autoptr(Plan) plan = plan_copy(best);
        g_autoptr(Report) report = NULL;
        plan->degrees.rank_order = order;
        if (!plan_rank_order_check(&plan->degrees, &plan->conventions, NULL))
            continue;
        g_autoptr(Workload) workload = workload_new(arch, profile, plan, 0, &error);
        g_assert_no_error(error);
        g_assert_true(simulate(plan, workload, INT64_MAX, &report, NULL, NULL));
        g_assert_cmpint(report->iteration_ns, >=, best->predicted->iteration_ns);
        n_slower += report->iteration_ns > best->predicted->iteration_ns;
    }
    g_assert_cmpint(n_slower, >, 0);
    g_clear_pointer(&flights, plan_memo_free);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/planner/search-slices/no-coarse-groups-and-slices-are-better",
                    test_no_coarse_groups_and_slices_are_better);
    g_test_add_func("/planner/search-slices/no-coarse-slices-of-mixed-stacks-are-better",
                    test_no_coarse_slices_of_mixed_stacks_are_better);
    g_test_add_func("/planner/search-slices/slices-of-states-are-equal",
                    test_slices_of_states_are_equal);
    g_test_add_func("/planner/search-slices/no-slicing-takes-less-than-the-floor",
                    test_no_slicing_takes_less_than_the_floor);
    g_test_add_func("/planner/search-slices/grids-are-whole-and-bounded",
                    test_grids_are_whole_and_bounded);
    g_test_add_func("/planner/search-slices/micro-batches-stay-as-asked",
                    test_micro_batches_stay_as_asked);
    g_test_add_func("/planner/search-slices/estimates-are-what-pricing-all-gives",
                    test_estimates_are_what_pricing_all_gives);
    g_test_add_func("/planner/search-slices/chunks-recompute-for-themselves",
                    test_chunks_of_slices_recompute_for_themselves);
    g_test_add_func("/planner/search-slices/no-other-rank-order-is-faster",
                    test_no_other_rank_order_of_slices_is_faster);
    return g_test_run();
}
