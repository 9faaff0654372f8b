/*
 * Tests of planner/search.h: certificates, threads, slices, what cannot be; test_search_space.c has
 * the full enumeration.
 */
#include <math.h>

#include "base/units.h"
#include "tests/planner/search_case.h"

/* --- the answer --- */

static char *
text_of(const Plan *plan)
{
    g_autoptr(JsonWriter) writer = json_writer_new();

    json_write_object(writer, NULL);
    plan_write_members(writer, plan);
    json_write_object_end(writer);
    return json_writer_steal(writer, NULL);
}

static void
test_threads_do_not_change_the_answer(void)
{
    g_autoptr(ModelArch) arch = small_arch(8, 0, 50000);
    g_autoptr(Profile) profile = cluster_of("p3.16xlarge", 16);
    PlanRequest request = request_of(arch, profile, 16);
    g_autofree char *first = NULL;

    flights = plan_memo_new();
    request.slices_mode = PLAN_SLICES_AUTO;
    request.top = 3;
    for (request.threads = 1; request.threads <= 8; request.threads *= 2) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Plan) plan = plan_search(&request, simulate, NULL, &error);
        g_assert_no_error(error);
        g_autofree char *text = text_of(plan);
        if (first == NULL)
            first = g_steal_pointer(&text);
        else
            g_assert_cmpstr(text, ==, first);
    }
    g_clear_pointer(&flights, plan_memo_free);
}

static int64_t n_simulated;

/* A PlanEvaluateFunc: simulate(), counted. */
static bool
count_simulations(const Plan *plan, const Workload *workload, int64_t limit_ns, Report **report,
                  void *user_data, GError **error)
{
    n_simulated++;
    return simulate(plan, workload, limit_ns, report, user_data, error);
}

/* Fixes one thing, or changes the memory, and says so: what-if number @i of a request. */
static bool
ask_what_if(PlanRequest *request, int i)
{
    static const int64_t memories[] = {16000000000, 1300000000, 1000000000, 900000000, 800000000};
    int64_t *const degrees[] = {&request->pp, &request->tp, &request->dp, &request->micro_batch};

    if (i < 16)
        *degrees[i / 4] = INT64_C(1) << i % 4;
    else if (i < 16 + PLAN_RECOMPUTE_N)
        request->recompute = i - 16;
    else if (i < 20 + (int)G_N_ELEMENTS(memories))
        request->memory_limit_bytes = memories[MAX(0, i - 20)];
    else
        return false;
    return true;
}

/* What-ifs in one memo, after the whole search, whose limit is the lowest, find the plans that they find
 * alone, and simulate less. */
static void
test_what_ifs_share_what_they_simulate(void)
{
    g_autoptr(ModelArch) arch = small_arch(8, 0, 50000);
    g_autoptr(Profile) profile = cluster_of("p3.16xlarge", 8);
    int64_t n_alone = 0, n_shared = 0;

    flights = plan_memo_new();
    for (int64_t memory_bytes = 0; memory_bytes < 1000000000; memory_bytes += 900000000) {
        g_autoptr(PlanMemo) memo = plan_memo_new();
        for (int i = -1;; i++) {
            PlanRequest request = request_of(arch, profile, 16);
            request.memory_limit_bytes = memory_bytes;
            request.skips_bound = request.is_terse = true;
            if (i >= 0 && !ask_what_if(&request, i))
                break;
            n_simulated = 0;
            g_autoptr(Plan) alone = plan_search(&request, count_simulations, NULL, NULL);
            n_alone += n_simulated;
            request.memo = memo;
            n_simulated = 0;
            g_autoptr(Plan) shared = plan_search(&request, count_simulations, NULL, NULL);
            n_shared += n_simulated;
            g_assert_true((alone == NULL) == (shared == NULL));
            g_autofree char *one = alone == NULL ? NULL : text_of(alone);
            g_autofree char *other = shared == NULL ? NULL : text_of(shared);
            g_assert_cmpstr(one, ==, other);
        }
    }
    g_test_message("%" G_GINT64_FORMAT " simulations alone, %" G_GINT64_FORMAT " with one memo",
                   n_alone, n_shared);
    g_assert_cmpint(n_shared, <, n_alone * 7 / 8);
    g_clear_pointer(&flights, plan_memo_free);
}

static void
test_alternatives_are_the_next_best(void)
{
    g_autoptr(ModelArch) arch = small_arch(4, 0, 0);
    g_autoptr(Profile) profile = cluster_of("p3.16xlarge", 4);
    PlanRequest request = request_of(arch, profile, 8);
    g_autoptr(GError) error = NULL;

    flights = plan_memo_new();
    request.top = 5;
    g_autoptr(Plan) plan = plan_search(&request, simulate, NULL, &error);
    g_assert_no_error(error);
    g_assert_cmpuint(plan->alternatives->len, ==, 5);
    int64_t last_ns = plan->predicted->iteration_ns;
    for (guint i = 0; i < plan->alternatives->len; i++) {
        const Plan *other = plan->alternatives->pdata[i];
        g_assert_cmpint(other->predicted->iteration_ns, >=, last_ns);
        last_ns = other->predicted->iteration_ns;
        g_assert_true(plan_check(other, arch->n_layers, NULL));
    }
    g_clear_pointer(&flights, plan_memo_free);
}

/* --- stopped --- */

static void
test_stopped_has_the_first_plan_if_it_waits(void)
{
    static const int stop = 1;
    static const struct {
        int64_t vpp;
        PlanObjective objective;
        bool waits;
    } cases[] = {
        {0, PLAN_OBJECTIVE_TIME, true},    {2, PLAN_OBJECTIVE_TIME, true}, /* no narrower search */
        {0, PLAN_OBJECTIVE_MEMORY, true},  {0, PLAN_OBJECTIVE_ENERGY, true},
        {0, PLAN_OBJECTIVE_TIME, false},   {2, PLAN_OBJECTIVE_TIME, false},
        {0, PLAN_OBJECTIVE_ENERGY, false},
    };
    g_autoptr(ModelArch) arch = small_arch(8, 0, 8192);
    g_autoptr(Profile) profile = cluster_of("p3.16xlarge", 8);

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        PlanRequest request = request_of(arch, profile, 16);
        g_autoptr(GError) error = NULL;

        flights = plan_memo_new();
        request.vpp = cases[i].vpp;
        request.objective = cases[i].objective;
        request.stop = &stop;
        request.waits = cases[i].waits;
        g_autoptr(Plan) plan = plan_search(&request, simulate, NULL, &error);
        g_clear_pointer(&flights, plan_memo_free);
        if (!cases[i].waits) {
            g_assert_null(plan);
            g_assert_error(error, PLAN_ERROR, PLAN_ERROR_INFEASIBLE);
            g_assert_nonnull(strstr(error->message, "stopped"));
            continue;
        }
        g_assert_no_error(error);
        g_assert_true(plan->predicted->fits && plan->predicted->iteration_ns > 0);
        g_assert_true(plan_check(plan, arch->n_layers, NULL));
        /* What was not looked at may be faster, but not than the bound. */
        g_assert_cmpfloat(plan->lower_bound_s, >=, 0);
        g_assert_cmpfloat(plan->lower_bound_s, <=, units_s_from_ns(plan->predicted->iteration_ns));
    }
}

/* Stops the search at one simulation, and counts those of it. */
typedef struct {
    int stop, n_done, n_first;
} Stopping;

static bool
simulate_and_stop(const Plan *plan, const Workload *workload, int64_t limit_ns, Report **report,
                  void *user_data, GError **error)
{
    Stopping *stopping = user_data;

    if (++stopping->n_done == stopping->n_first)
        g_atomic_int_set(&stopping->stop, 1);
    return simulate(plan, workload, limit_ns, report, NULL, error);
}

/* Once there is a plan, a stopped search begins no other point; its first two points have three plans
 * each. */
static void
test_stopped_simulates_no_more(void)
{
    g_autoptr(ModelArch) arch = small_arch(8, 0, 8192);
    g_autoptr(Profile) profile = cluster_of("p3.16xlarge", 8);
    int n_stopped = 0;

    for (int n = 1; n <= 12; n++) {
        Stopping stopping = {.n_first = n};
        PlanRequest request = request_of(arch, profile, 64);
        g_autoptr(GError) error = NULL;

        flights = plan_memo_new();
        request.threads = 1;
        request.top = 8;
        request.stop = &stopping.stop;
        request.waits = true;
        g_autoptr(Plan) plan = plan_search(&request, simulate_and_stop, &stopping, &error);
        g_clear_pointer(&flights, plan_memo_free);
        g_assert_no_error(error);
        g_assert_nonnull(plan);
        n_stopped += stopping.stop;
        if (stopping.stop != 0)
            g_assert_cmpint(stopping.n_done, <=, n + 6);
    }
    g_assert_cmpint(n_stopped, >, 6);
}

/* --- objectives --- */

/*
 * A model that fits one device is cheapest there, and needs least energy: more devices of the same
 * price and power save less time than they add.
 */
static void
check_number_of_devices(PlanObjective objective)
{
    g_autoptr(ModelArch) arch = small_arch(4, 0, 8192);
    g_autoptr(Profile) profile = cluster_of("p3.16xlarge", 8);
    PlanRequest request = request_of(arch, profile, 8);
    g_autoptr(GError) error = NULL;
    double best = INFINITY;

    flights = plan_memo_new();
    request.objective = objective;
    g_autoptr(Plan) plan = plan_search(&request, simulate, NULL, &error);
    g_assert_no_error(error);
    /* The oracle: the fastest plan for each number. */
    request.objective = PLAN_OBJECTIVE_TIME;
    for (request.n_devices = 1; request.n_devices <= 8; request.n_devices *= 2) {
        g_autoptr(Plan) fastest = plan_search(&request, simulate, NULL, &error);
        g_assert_no_error(error);
        best = fmin(best, (double)fastest->predicted->iteration_ns * (double)request.n_devices);
    }
    g_assert_cmpfloat((double)plan->predicted->iteration_ns * (double)plan_n_devices(plan), ==,
                      best);
    g_assert_cmpint(plan_n_devices(plan), <, 8);
    g_clear_pointer(&flights, plan_memo_free);
}

static void
test_cost_chooses_the_number_of_devices(void)
{
    check_number_of_devices(PLAN_OBJECTIVE_COST);
}

static void
test_energy_chooses_the_number_of_devices(void)
{
    check_number_of_devices(PLAN_OBJECTIVE_ENERGY);
}

/* --- two kinds of devices --- */

/* The second node has devices of half the rate: it gets fewer layers, and the plan is no slower
 * than even stages. */
static void
test_slower_devices_get_fewer_layers(void)
{
    g_autoptr(ModelArch) arch = small_arch(12, 0, 0);
    g_autoptr(Profile) profile = cluster_of("p3.16xlarge", 16);
    PlanRequest request = request_of(arch, profile, 16);
    g_autoptr(GError) error = NULL;
    ModelCluster *cluster = profile->cluster;
    ModelDevice slow = g_array_index(cluster->devices, ModelDevice, 0);

    slow.name = g_strdup("slow");
    for (int i = 0; i < DTYPE_N; i++)
        slow.flops_per_s[i] /= 2.0;
    slow.memory_bytes_per_s /= 2.0;
    g_array_append_val(cluster->devices, slow);
    g_array_index(cluster->nodes, ModelNodes, 0).n_nodes = 1;
    ModelNodes second = g_array_index(cluster->nodes, ModelNodes, 0);
    second.device = 1;
    g_array_append_val(cluster->nodes, second);
    g_assert_cmpint(model_cluster_n_devices(cluster), ==, 16);

    flights = plan_memo_new();
    request.pp = 2, request.tp = request.cp = 1, request.dp = 8;
    request.schedules = (const char *const[]){"1f1b", NULL};
    g_autoptr(Plan) plan = plan_search(&request, simulate, NULL, &error);
    g_assert_no_error(error);
    g_assert_cmpint(g_array_index(plan->stages, PlanStage, 0).n_layers, >,
                    g_array_index(plan->stages, PlanStage, 1).n_layers);
    g_clear_pointer(&flights, plan_memo_free);
}

/* --- slices --- */

static void
test_slices_beat_every_equal_cut(void)
{
    g_autoptr(ModelArch) arch = long_arch(8, 0);
    g_autoptr(Profile) profile = cluster_of("p3.16xlarge", 8);
    PlanRequest request = request_of(arch, profile, 2);
    g_autoptr(GError) error = NULL;

    flights = plan_memo_new();
    request.dtype = DTYPE_FP16;
    request.pp = 8;
    request.tp = request.dp = request.cp = request.micro_batch = 1;
    request.recompute = PLAN_RECOMPUTE_NONE;
    request.zero_stage = 0;
    request.sequence_parallel = 0;
    request.schedules = (const char *const[]){"terapipe", NULL};
    request.slices_mode = PLAN_SLICES_AUTO;
    g_autoptr(Plan) plan = plan_search(&request, simulate, NULL, &error);
    g_assert_no_error(error);
    g_assert_cmpuint(plan->slices->len, >, 1);
    request.slices_mode = PLAN_SLICES_UNIFORM;
    for (request.n_slices = 1; request.n_slices <= 64; request.n_slices++) {
        g_autoptr(Plan) equal = plan_from_request(&request, &error);
        g_assert_no_error(error);
        g_autoptr(Workload) workload = workload_new(arch, profile, equal, 0, &error);
        g_autoptr(Report) report = NULL;
        g_assert_true(simulate(equal, workload, INT64_MAX, &report, NULL, &error));
        g_assert_cmpint(plan->predicted->iteration_ns, <=, report->iteration_ns);
        g_assert_cmpfloat(plan->lower_bound_s * 1e9, <=, (double)report->iteration_ns);
    }
    /* What is proven of every slicing is the work of products: here a third of the time, of which
     * bubbles, attention and short kernels take the rest. */
    g_assert_cmpfloat(plan->optimality_gap_fraction, <, 0.7);
    g_assert_cmpfloat(plan->lower_bound_s, >, 0.0);
    g_clear_pointer(&flights, plan_memo_free);
}

/* --- what cannot be --- */

static void
expect_error(const PlanRequest *request, PlanError code, const char *const *parts)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) plan = NULL;

    flights = plan_memo_new();
    plan = plan_search(request, simulate, NULL, &error);
    g_clear_pointer(&flights, plan_memo_free);
    g_assert_null(plan);
    g_assert_error(error, PLAN_ERROR, (int)code);
    for (; *parts != NULL; parts++)
        if (strstr(error->message, *parts) == NULL)
            g_error("\"%s\" does not say \"%s\"", error->message, *parts);
}

#define PARTS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void
test_contradictions_name_the_flags(void)
{
    g_autoptr(ModelArch) arch = small_arch(4, 0, 8192);
    g_autoptr(Profile) profile = cluster_of("p3.16xlarge", 8);
    const PlanRequest plain = request_of(arch, profile, 8);
    PlanRequest request = plain;

    request.tp = 3;
    expect_error(&request, PLAN_ERROR_INVALID, PARTS("--tp 3", "8 heads", "1, 2, 4, 8"));
    request = plain;
    request.pp = 3;
    expect_error(&request, PLAN_ERROR_INVALID, PARTS("--pp 3", "8", "--gpus 6"));
    request = plain;
    request.dp = 2, request.tp = 2, request.pp = 4, request.cp = 1, request.n_devices = 8;
    expect_error(&request, PLAN_ERROR_INVALID,
                 PARTS("--dp 2 --tp 2 --pp 4 --cp 1", "16 devices", "there are 8"));
    request = plain;
    request.pp = 8;
    expect_error(&request, PLAN_ERROR_INVALID, PARTS("--pp 8", "4 layers"));
    request = plain;
    request.global_batch = 6, request.dp = 4;
    expect_error(&request, PLAN_ERROR_INVALID, PARTS("--global-batch 6", "--dp 4"));
    request = plain;
    request.dp = 2, request.micro_batch = 3;
    expect_error(&request, PLAN_ERROR_INVALID,
                 PARTS("--global-batch 8", "--dp 2", "--micro-batch 3"));
    request = plain;
    request.schedules = (const char *const[]){"1f1c", NULL};
    expect_error(&request, PLAN_ERROR_INVALID, PARTS("--schedule", "1f1b"));
    request = plain;
    request.global_batch = 0;
    expect_error(&request, PLAN_ERROR_INVALID, PARTS("--global-batch", "at least 1, got 0"));
    request = plain;
    request.tp = -2;
    expect_error(&request, PLAN_ERROR_INVALID, PARTS("--tp", "-2"));
    request = plain;
    request.slices_mode = PLAN_SLICES_GIVEN;
    request.slices = (const int64_t[]){100, 200};
    request.n_slices = 2;
    expect_error(&request, PLAN_ERROR_INVALID, PARTS("--slices", "300", "512"));
    request = plain;
    request.n_devices = 1000;
    expect_error(&request, PLAN_ERROR_INFEASIBLE, PARTS("1000 devices", "--gpus 1000"));
}

static void
test_fixed_plans_refuse_what_cannot_be(void)
{
    g_autoptr(ModelArch) arch = small_arch(4, 0, 8192);
    g_autoptr(Profile) profile = cluster_of("p3.16xlarge", 8);
    static const struct {
        int64_t dp, tp, pp, vpp, cp, micro_batch, global_batch;
        const char *says;
    } cases[] = {
        {INT64_C(1) << 53, INT64_C(1) << 53, 1, 1, 1, 1, 8, "--dp"},
        {1, INT64_C(1) << 20, INT64_C(1) << 20, 1, INT64_C(1) << 20, 1, 8, "--pp"},
        {1, 1, INT64_C(1) << 20, 256, 1, 1, 8, "layers"},
        {-1, 1, 1, 1, 1, 1, 8, "--dp"},
        {3, 1, 1, 1, 1, 1, 8, "--global-batch 8"},
        {1, 1, 1, 1, 1, 3, 8, "--micro-batch 3"},
        {1, 1, 1, 1, 1, 1, INT64_C(1) << 53, "microbatches"},
        {1, 1, 2, 1, 3, 1, 8, "cp"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        PlanRequest request = request_of(arch, profile, cases[i].global_batch);
        g_autoptr(GError) error = NULL;
        request.dp = cases[i].dp;
        request.tp = cases[i].tp;
        request.pp = cases[i].pp;
        request.vpp = cases[i].vpp;
        request.cp = cases[i].cp;
        request.micro_batch = cases[i].micro_batch;
        g_assert_null(plan_from_request(&request, &error));
        g_assert_error(error, PLAN_ERROR, PLAN_ERROR_INVALID);
        if (strstr(error->message, cases[i].says) == NULL)
            g_error("\"%s\" does not say \"%s\"", error->message, cases[i].says);
    }
}

static void
test_what_does_not_fit_names_the_way_out(void)
{
    g_autoptr(ModelArch) arch = small_arch(4, 0, 8192);
    g_autoptr(Profile) profile = cluster_of("p3.16xlarge", 1);
    PlanRequest request = request_of(arch, profile, 4);
    g_autoptr(GError) error = NULL;

    arch->hidden = 4096;
    arch->n_heads = arch->n_kv_heads = 32;
    arch->head_dim = 128;
    arch->ffn_hidden = 16384;
    /* 800 M parameters at 18 bytes are 14.5e9 bytes; activations of a batch without recompute are
     * what does not fit into 16 GiB. */
    request.global_batch = 64;
    request.micro_batch = 8;
    request.recompute = PLAN_RECOMPUTE_NONE;
    expect_error(&request, PLAN_ERROR_INFEASIBLE,
                 PARTS("memory", "GiB of 16.0 GiB", "no recompute", "fits with --recompute full"));
    /* 6 times the layers fit on no single device. */
    arch->n_layers = 24;
    request.micro_batch = 0;
    request.recompute = PLAN_AUTO;
    expect_error(&request, PLAN_ERROR_INFEASIBLE, PARTS("full recompute", "fits with --"));
    request.offload = PLAN_OFFLOAD_CPU;
    expect_error(&request, PLAN_ERROR_INFEASIBLE, PARTS("offload cpu", "fits with --gpus 2"));
}

/* Eight layers in eight stages on two ranks, every second one without its feed-forward: a loop has all of the long ones
 * on one rank, a wave two on each. */
static void
test_a_wave_spreads_a_pattern(void)
{
    g_autoptr(ModelArch) arch = small_arch(8, 0, 0);
    g_autoptr(Profile) profile = cluster_of("p3.16xlarge", 2);
    ModelArch *kinds = g_new0(ModelArch, MODEL_MAX_KINDS);
    PlanRequest request = request_of(arch, profile, 32);
    int64_t layer_ns[8], end_ns[2], loop_ns = 0;

    for (int i = 0; i < 2; i++) {
        kinds[i] = model_kind_arch(arch, 0);
        kinds[i].name = g_strdup(i == 0 ? "long" : "short");
        kinds[i].source = NULL;
    }
    kinds[1].ffn = MODEL_FFN_NONE;
    arch->kinds = kinds;
    arch->n_kinds = 2;
    arch->n_pattern = 8;
    arch->pattern = g_new(uint8_t, 8);
    for (int i = 0; i < 8; i++)
        arch->pattern[i] = (uint8_t)(i % 2);
    request.dp = request.tp = request.cp = request.ep = request.micro_batch = 1;
    request.pp = 2;
    request.vpp = 4;
    request.recompute = PLAN_RECOMPUTE_NONE;
    request.top = 1;
    g_autoptr(GError) error = NULL;
    flights = plan_memo_new();
    g_autoptr(Plan) plan = plan_search(&request, simulate, NULL, &error);
    g_assert_no_error(error);
    const PlanLayerShape shape = {plan->degrees, 1, plan->sequence_parallel};
    plan_layer_times(&request, &shape, PLAN_RECOMPUTE_NONE, 0, layer_ns, end_ns);
    for (int i = 0; i < 8; i += 2)
        loop_ns += 32 * layer_ns[i];
    g_assert_cmpstr(plan->schedule, ==, "hanayo");
    g_assert_cmpint(plan->predicted->iteration_ns, <, loop_ns);
    /* What was best before is the next best, and the bound is no later than either. */
    const Plan *next = plan->alternatives->pdata[0];
    g_assert_cmpint(next->predicted->iteration_ns, >, loop_ns);
    g_assert_cmpfloat(plan->lower_bound_s, <=, units_s_from_ns(plan->predicted->iteration_ns));

    /* Frameworks that do not run it, and who names a schedule, get none. */
    const char *const names[] = {"interleaved", NULL};
    request.schedules = names;
    g_autoptr(Plan) named = plan_search(&request, simulate, NULL, NULL);
    g_assert_cmpstr(named->schedule, ==, "interleaved");
    request.schedules = NULL;
    request.conventions = plan_conventions(PLAN_FRAMEWORK_MEGATRON_CORE);
    request.model_runs = true;
    plan_request_set_rules(&request);
    g_autoptr(Plan) ruled = plan_search(&request, simulate, NULL, &error);
    g_assert_no_error(error);
    g_assert_cmpstr(ruled->schedule, ==, "interleaved");
    g_clear_pointer(&flights, plan_memo_free);
}

/* Where least memory is asked for plans are simulated to their end only for the answer: for all of it. */
static void
test_least_memory_has_exact_alternatives(void)
{
    g_autoptr(ModelArch) arch = small_arch(8, 0, 1000);
    g_autoptr(Profile) profile = cluster_of("dgx-a100-40g", 8);
    PlanRequest request = request_of(arch, profile, 16);
    const Plan *before = NULL;

    flights = plan_memo_new();
    request.objective = PLAN_OBJECTIVE_MEMORY;
    request.n_devices = 8;
    request.top = 3;
    g_autoptr(Plan) best = plan_search(&request, simulate, NULL, NULL);
    g_assert_nonnull(best);
    g_assert_cmpuint(best->alternatives->len, ==, 3);
    for (guint i = 0; i < 4; i++) {
        const Plan *plan = i == 0 ? best : best->alternatives->pdata[i - 1];
        g_autoptr(Workload) workload = workload_new(arch, profile, plan, 0, NULL);
        Report *report = NULL;
        g_assert_true(simulate(plan, workload, INT64_MAX, &report, NULL, NULL));
        g_assert_cmpint(plan->predicted->iteration_ns, ==, report->iteration_ns);
        g_assert_cmpint(plan->predicted->peak_memory_bytes, ==, report->peak_memory_bytes);
        g_assert_true(before == NULL ||
                      before->predicted->peak_memory_bytes < report->peak_memory_bytes ||
                      (before->predicted->peak_memory_bytes == report->peak_memory_bytes &&
                       before->predicted->iteration_ns <= report->iteration_ns));
        report_free(report);
        before = plan;
    }
    g_clear_pointer(&flights, plan_memo_free);
}

/* An order that is made to fit waits where much is kept: the fastest kind of recompute that fits is not always the
 * best, and the search finds what the best of the kinds alone would be. */
static void
test_orders_made_to_fit_try_every_recompute(void)
{
    static const char *const wave[] = {"hanayo", NULL};
    g_autoptr(ModelArch) arch = small_arch(6, 4, 0);
    g_autoptr(Profile) profile = cluster_of("p3.16xlarge", 3);
    PlanRequest request = request_of(arch, profile, 4);
    int n_slower = 0;

    request.dp = request.tp = request.cp = request.ep = 1;
    request.pp = 3;
    request.vpp = 2;
    request.micro_batch = 2;
    request.zero_stage = 0;
    request.schedules = wave;
    flights = plan_memo_new();
    for (int64_t limit = 700; limit < 900; limit += 5) {
        int64_t best_ns = INT64_MAX, kept_most = INT64_MAX;
        request.memory_limit_bytes = limit * 1000000;
        for (int kind = 0; kind < PLAN_RECOMPUTE_N; kind++) {
            request.recompute = kind;
            g_autoptr(Plan) plan = plan_search(&request, simulate, NULL, NULL);
            if (plan == NULL)
                continue;
            kept_most = kept_most == INT64_MAX ? plan->predicted->iteration_ns : kept_most;
            best_ns = MIN(best_ns, plan->predicted->iteration_ns);
        }
        n_slower += best_ns < kept_most;
        request.recompute = PLAN_AUTO;
        g_autoptr(Plan) plan = plan_search(&request, simulate, NULL, NULL);
        g_assert_true((plan != NULL) == (best_ns < INT64_MAX));
        if (plan != NULL)
            g_assert_cmpint(plan->predicted->iteration_ns, <=, best_ns);
    }
    g_assert_cmpint(n_slower, >, 0);
    g_clear_pointer(&flights, plan_memo_free);
}

/* A PlanEvaluateFunc that counts in @user_data the orders that are searched for. */
static bool
count_orders(const Plan *plan, const Workload *workload, int64_t limit_ns, Report **report,
             void *user_data, GError **error)
{
    *(int *)user_data += schedule_family_find(plan->schedule, NULL)->searches;
    return simulate(plan, workload, limit_ns, report, NULL, error);
}

/* An order is searched for only where it may win, and what wins is the best of all orders: who asks for more
 * plans than there are gets every one. */
static void
test_orders_are_searched_where_they_may_win(void)
{
    static const char *const searched[] = {"zb-auto", NULL};
    g_autoptr(ModelArch) arch = small_arch(8, 0, 0);
    g_autoptr(Profile) profile = cluster_of("p3.16xlarge", 4);
    PlanRequest request = request_of(arch, profile, 4);
    int n_all = 0, n_few = 0;

    request.tp = request.cp = request.micro_batch = 1;
    request.zero_stage = 0;
    request.sequence_parallel = 0;
    request.schedules = searched;
    flights = plan_memo_new();
    for (int64_t limit = 600; limit <= 1000; limit += 400) {
        request.memory_limit_bytes = limit * 1000000;
        request.top = 10000;
        g_autoptr(Plan) all = plan_search(&request, count_orders, &n_all, NULL);
        request.top = 0;
        g_autoptr(Plan) best = plan_search(&request, count_orders, &n_few, NULL);
        g_assert_true((all == NULL) == (best == NULL));
        if (all == NULL)
            continue;
        g_assert_cmpint(best->predicted->iteration_ns, ==, all->predicted->iteration_ns);
        g_assert_cmpfloat(best->lower_bound_s, <=, units_s_from_ns(best->predicted->iteration_ns));
        request.top = 2;
        g_autoptr(Plan) three = plan_search(&request, count_orders, &n_few, NULL);
        for (guint i = 0; i < 2 && i < all->alternatives->len; i++)
            g_assert_cmpint(((Plan *)three->alternatives->pdata[i])->predicted->iteration_ns, ==,
                            ((Plan *)all->alternatives->pdata[i])->predicted->iteration_ns);
    }
    g_test_message("%d orders, and %d where they may win", n_all, n_few);
    g_assert_cmpint(n_few, >, 0);
    g_assert_cmpint(2 * n_few, <, n_all);
    g_clear_pointer(&flights, plan_memo_free);
}

/* What is said to be near only spares time, also where the request cannot have it: chunks on one rank. */
static void
test_what_is_near_may_be_wrong(void)
{
    static const char *const names[] = {"gpipe", "interleaved", NULL};
    g_autoptr(ModelArch) arch = small_arch(4, 0, 8192);
    g_autoptr(Profile) profile = cluster_of("p3.16xlarge", 2);
    PlanRequest request = request_of(arch, profile, 6);

    request.schedules = names;
    request.pp = request.cp = 1;
    request.micro_batch = 2;
    request.zero_stage = 0;
    request.memory_limit_bytes = 961636211; /* so that chunks recompute for themselves */
    request.conventions = plan_conventions(PLAN_FRAMEWORK_TERAPIPE);
    flights = plan_memo_new();
    g_autoptr(Plan) plan = plan_search(&request, simulate, NULL, NULL);
    g_assert_nonnull(plan);
    request.near_pp = 4;
    request.near_vpp = 3;
    for (request.near_tp = 1; request.near_tp <= 2; request.near_tp++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Plan) told = plan_search(&request, simulate, NULL, &error);
        g_assert_no_error(error);
        g_assert_cmpint(told->predicted->iteration_ns, ==, plan->predicted->iteration_ns);
    }
    g_clear_pointer(&flights, plan_memo_free);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/planner/search/least-memory-has-exact-alternatives",
                    test_least_memory_has_exact_alternatives);
    g_test_add_func("/planner/search/threads-do-not-change-the-answer",
                    test_threads_do_not_change_the_answer);
    g_test_add_func("/planner/search/what-ifs-share-what-they-simulate",
                    test_what_ifs_share_what_they_simulate);
    g_test_add_func("/planner/search/alternatives-are-the-next-best",
                    test_alternatives_are_the_next_best);
    g_test_add_func("/planner/search/stopped-has-the-first-plan-if-it-waits",
                    test_stopped_has_the_first_plan_if_it_waits);
    g_test_add_func("/planner/search/stopped-simulates-no-more", test_stopped_simulates_no_more);
    g_test_add_func("/planner/search/cost-chooses-the-number-of-devices",
                    test_cost_chooses_the_number_of_devices);
    g_test_add_func("/planner/search/energy-chooses-the-number-of-devices",
                    test_energy_chooses_the_number_of_devices);
    g_test_add_func("/planner/search/slower-devices-get-fewer-layers",
                    test_slower_devices_get_fewer_layers);
    g_test_add_func("/planner/search/slices-beat-every-equal-cut",
                    test_slices_beat_every_equal_cut);
    g_test_add_func("/planner/search/contradictions-name-the-flags",
                    test_contradictions_name_the_flags);
    g_test_add_func("/planner/search/fixed-plans-refuse-what-cannot-be",
                    test_fixed_plans_refuse_what_cannot_be);
    g_test_add_func("/planner/search/what-does-not-fit-names-the-way-out",
                    test_what_does_not_fit_names_the_way_out);
    g_test_add_func("/planner/search/a-wave-spreads-a-pattern", test_a_wave_spreads_a_pattern);
    g_test_add_func("/planner/search/what-is-near-may-be-wrong", test_what_is_near_may_be_wrong);
    g_test_add_func("/planner/search/orders-are-searched-where-they-may-win",
                    test_orders_are_searched_where_they_may_win);
    g_test_add_func("/planner/search/orders-made-to-fit-try-every-recompute",
                    test_orders_made_to_fit_try_every_recompute);
    return g_test_run();
}
