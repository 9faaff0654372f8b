/*
 * Tests of planner/search.h: against full enumeration, certificates, threads, what cannot be.
 */
#include "planner/search.h"

#include <string.h>

#include "planner/bound.h"
#include "planner/layer_cost.h"
#include "planner/partition.h"
#include "simulator/simulate.h"

/* --- what is searched --- */

static uint32_t
draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static ModelArch *
small_arch(int64_t n_layers, int64_t n_experts, int64_t vocab)
{
    ModelArch *arch = g_new0(ModelArch, 1);

    *arch = (ModelArch){
        .name = g_strdup("small"),
        .family = MODEL_FAMILY_GPT,
        .n_layers = n_layers,
        .hidden = 512,
        .n_heads = 8,
        .n_kv_heads = 8,
        .head_dim = 64,
        .ffn_hidden = 2048,
        .vocab = vocab,
        .max_seq_len = 512,
        .tied_embeddings = true,
        .qkv_bias = true,
    };
    if (n_experts > 0)
        arch->experts = (ModelExperts){.n_experts = n_experts, .top_k = 2, .ffn_hidden = 512};
    return arch;
}

static Profile *
cluster_of(const char *name, int64_t n_devices)
{
    g_autoptr(GError) error = NULL;
    Profile *profile = profile_load(name, &error);

    g_assert_no_error(error);
    ModelCluster *cluster = model_cluster_resized(profile->cluster, n_devices);
    model_cluster_free(profile->cluster);
    profile->cluster = cluster;
    return profile;
}

static PlanRequest
request_of(const ModelArch *arch, const Profile *profile, int64_t global_batch)
{
    return (PlanRequest){
        .arch = arch,
        .profile = profile,
        .global_batch = global_batch,
        .seq_len = arch->max_seq_len,
        .dtype = DTYPE_BF16,
        .slices_mode = PLAN_SLICES_OFF,
        .recompute = PLAN_AUTO,
        .zero_stage = PLAN_AUTO,
        .offload = PLAN_OFFLOAD_NONE,
        .sequence_parallel = PLAN_AUTO,
        .conventions = plan_conventions(PLAN_FRAMEWORK_DEGAS),
        .threads = 1,
    };
}

/* --- the simulator as objective --- */

static PlanFlights *flights; /* of one test */

static bool
simulate(const Plan *plan, const Workload *workload, Report **report, void *user_data,
         GError **error)
{
    const SimOptions options = {.want_memory = true};
    g_auto(SimResult) result = {0};
    g_autoptr(Schedule) schedule = plan_build_schedule(plan, NULL, error);

    g_assert_nonnull(schedule);
    g_assert_true(sim_run(schedule, workload, &options, &result, error));
    *report = g_steal_pointer(&result.report);
    /* No bound contradicts what is simulated. */
    const ScheduleFamily *family = schedule_family_find(plan->schedule, NULL);
    g_assert_cmpint(plan_bound_ns(plan, workload, family), <=, (*report)->iteration_ns);
    g_assert_cmpint(plan_bound_bytes(plan, workload, family, flights), <=,
                    (*report)->peak_memory_bytes);
    return true;
}

/* --- full enumeration --- */

typedef struct {
    const PlanRequest *request;
    int64_t n_plans;
    int64_t best_ns;     /* INT64_MAX: nothing fits */
    int64_t best_bytes;  /* the least peak of what fits */
    int64_t least_bytes; /* of all */
} Enumeration;

static void
try_plan(Enumeration *all, const Plan *plan)
{
    const PlanRequest *request = all->request;
    g_autoptr(GError) error = NULL;
    g_autoptr(Workload) workload =
        workload_new(request->arch, request->profile, plan, request->memory_limit_bytes, &error);
    g_autoptr(Report) report = NULL;

    g_assert_no_error(error);
    g_assert_true(simulate(plan, workload, &report, NULL, &error));
    all->n_plans++;
    all->least_bytes = MIN(all->least_bytes, report->peak_memory_bytes);
    if (!report->fits)
        return;
    all->best_ns = MIN(all->best_ns, report->iteration_ns);
    all->best_bytes = MIN(all->best_bytes, report->peak_memory_bytes);
}

/* The same plan with stages by plan_partition(). */
static void
try_balanced(Enumeration *all, Plan *plan, const ScheduleFamily *family)
{
    const PlanRequest *request = all->request;
    const int64_t length = family->placement == SCHEDULE_PLACEMENT_BIDIR
                               ? plan->degrees.pp
                               : plan->degrees.pp * plan->degrees.vpp;
    int64_t layer_ns[64], counts[64];
    const PlanPoint point = {
        .degrees = plan->degrees,
        .micro_batch = plan->micro_batch,
        .recompute = g_array_index(plan->stages, PlanStage, 0).recompute,
        .sequence_parallel = plan->sequence_parallel,
    };
    PlanPartition partition = {
        .n_layers = request->arch->n_layers, .n_stages = length, .layer_ns = layer_ns};

    /* More stages than layers are even ones, the first with the embedding alone. */
    if (length > request->arch->n_layers)
        return;
    plan_layer_times(request, &point, layer_ns, &partition.first_ns, &partition.last_ns);
    g_assert_true(plan_partition(&partition, counts, NULL));
    for (guint i = 0, first = 0; i < plan->stages->len; i++) {
        PlanStage *stage = &g_array_index(plan->stages, PlanStage, i);
        first = i % length == 0 ? 0 : first;
        stage->first_layer = first;
        stage->n_layers = counts[i % length];
        first += (guint)counts[i % length];
    }
    try_plan(all, plan);
}

/* All families at fixed degrees and savers. */
static void
try_families(Enumeration *all, PlanRequest fixed)
{
    const ScheduleFamily *const *families = schedule_families();

    for (size_t i = 0; families[i] != NULL; i++) {
        const char *names[2] = {families[i]->name, NULL};
        if (all->request->schedules != NULL &&
            !g_strv_contains(all->request->schedules, families[i]->name))
            continue;
        if (all->request->schedules == NULL && families[i]->searches)
            continue;
        for (fixed.vpp = 1; fixed.vpp <= fixed.arch->n_layers + 1; fixed.vpp++) {
            g_autoptr(GError) error = NULL;
            if (all->request->vpp > 0 ? all->request->vpp != fixed.vpp
                                      : fixed.pp == 1 && fixed.vpp > 1)
                continue;
            /* Halves of a backward are rounded apart: a nanosecond less is no better plan. */
            if (all->request->schedules == NULL && fixed.pp == 1 && fixed.vpp == 1 &&
                families[i]->splits_backward)
                continue;
            fixed.schedules = names;
            /* What does not exist, plan_check() and model_shape_check() refuse. */
            g_autoptr(Plan) plan = plan_from_request(&fixed, &error);
            if (plan == NULL)
                continue;
            g_autoptr(Workload) workload = workload_new(fixed.arch, fixed.profile, plan, 0, NULL);
            if (workload == NULL)
                continue;
            try_plan(all, plan);
            if (fixed.pp > 1)
                try_balanced(all, plan, families[i]);
        }
    }
}

static Enumeration
enumerate(const PlanRequest *request, int64_t n)
{
    Enumeration all = {.request = request,
                       .best_ns = INT64_MAX,
                       .best_bytes = INT64_MAX,
                       .least_bytes = INT64_MAX};
    PlanRequest f = *request;

    for (f.tp = 1; f.tp <= n; f.tp++)
        for (f.pp = 1; f.pp <= n; f.pp++)
            for (f.cp = 1; f.cp <= n; f.cp++)
                for (f.dp = 1; f.dp <= n; f.dp++) {
                    if (f.tp * f.pp * f.cp * f.dp != n ||
                        (request->tp > 0 && f.tp != request->tp) ||
                        (request->pp > 0 && f.pp != request->pp) ||
                        (request->cp > 0 && f.cp != request->cp) ||
                        (request->dp > 0 && f.dp != request->dp) || f.global_batch % f.dp != 0)
                        continue;
                    for (f.micro_batch = 1; f.micro_batch <= f.global_batch; f.micro_batch++)
                        for (f.ep = 1; f.ep <= MAX(1, f.arch->experts.n_experts); f.ep++)
                            for (f.recompute = 0; f.recompute < PLAN_RECOMPUTE_N; f.recompute++)
                                for (f.zero_stage = 0; f.zero_stage <= 3; f.zero_stage++)
                                    for (int sp = 0;
                                         sp <= (f.tp > 1 || request->sequence_parallel == 1);
                                         sp++) {
                                        if (f.global_batch / f.dp % f.micro_batch != 0 ||
                                            (request->micro_batch > 0 &&
                                             request->micro_batch != f.micro_batch) ||
                                            (request->recompute != PLAN_AUTO &&
                                             request->recompute != f.recompute) ||
                                            (request->zero_stage != PLAN_AUTO &&
                                             request->zero_stage != f.zero_stage) ||
                                            (request->sequence_parallel != PLAN_AUTO &&
                                             request->sequence_parallel != sp))
                                            continue;
                                        f.sequence_parallel = sp;
                                        try_families(&all, f);
                                    }
                }
    return all;
}

/* A random problem; most flags fixed, so that the enumeration stays small. */
static PlanRequest
random_request(uint32_t *state, const ModelArch *arch, const Profile *profile)
{
    static const char *const lists[][3] = {
        {"1f1b", NULL}, {"gpipe", "interleaved", NULL}, {"1f1b", "zb-h1", NULL}, {"naive", NULL}};
    PlanRequest request = request_of(arch, profile, (int64_t[]){1, 2, 4, 6, 8}[draw(state) % 5]);

    if (draw(state) % 2 == 0)
        request.schedules = lists[draw(state) % G_N_ELEMENTS(lists)];
    if (draw(state) % 4 != 0)
        request.recompute = (int)(draw(state) % PLAN_RECOMPUTE_N);
    if (draw(state) % 4 != 0)
        request.zero_stage = (int)(draw(state) % 4);
    if (draw(state) % 3 != 0)
        request.cp = 1;
    if (draw(state) % 2 == 0)
        request.pp = 1 + draw(state) % 4;
    if (draw(state) % 4 == 0)
        request.tp = 1 + draw(state) % 4;
    if (draw(state) % 4 == 0)
        request.micro_batch = 1 + draw(state) % 2;
    if (draw(state) % 4 == 0)
        request.sequence_parallel = (int)(draw(state) % 2);
    if (draw(state) % 3 == 0)
        request.vpp = 1 + draw(state) % 3;
    request.conventions = plan_conventions((PlanFramework)(draw(state) % PLAN_FRAMEWORK_N));
    return request;
}

static void
check_against_enumeration(const PlanRequest *request, const Enumeration *all)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) plan = plan_search(request, simulate, NULL, &error);

    if (all->best_ns == INT64_MAX) {
        g_assert_null(plan);
        g_assert_cmpint(error->domain, ==, PLAN_ERROR);
        g_assert_cmpint(error->code, ==,
                        all->n_plans == 0 && error->code == PLAN_ERROR_INVALID
                            ? PLAN_ERROR_INVALID
                            : PLAN_ERROR_INFEASIBLE);
        return;
    }
    g_assert_no_error(error);
    if (request->objective == PLAN_OBJECTIVE_MEMORY) {
        g_assert_cmpint(plan->predicted->peak_memory_bytes, ==, all->best_bytes);
        return;
    }
    g_assert_cmpint(plan->predicted->iteration_ns, ==, all->best_ns);
    g_assert_cmpfloat(plan->lower_bound_s, <=, (double)all->best_ns * 1e-9);
    /* What was simulated and does not fit counts as both. */
    g_assert_cmpint(plan->search.considered, >=, plan->search.pruned + plan->search.simulated);
    g_assert_cmpint(plan->search.considered, <=,
                    plan->search.pruned + plan->search.simulated + plan->search.infeasible);
}

static void
test_equals_full_enumeration(void)
{
    uint32_t state = 11;
    int n_feasible = 0, n_memory = 0;

    flights = plan_flights_new();
    for (int round = 0; round < 500; round++) {
        g_autoptr(ModelArch) arch = small_arch(1 + draw(&state) % 6, draw(&state) % 8 == 0 ? 4 : 0,
                                               draw(&state) % 3 == 0 ? 0 : 8192);
        g_autoptr(Profile) profile =
            cluster_of("p3.16xlarge", (int64_t[]){1, 2, 3, 4, 4, 8}[draw(&state) % 6]);
        const int64_t n = model_cluster_n_devices(profile->cluster);
        PlanRequest request = random_request(&state, arch, profile);
        Enumeration all = enumerate(&request, n);
        if (all.n_plans > 3000)
            continue;
        /* Half of the time a limit that not everything fits. */
        if (all.n_plans > 0 && draw(&state) % 2 == 0) {
            request.memory_limit_bytes = all.least_bytes +
                                         (int64_t)(draw(&state) % 100) * (all.least_bytes / 400) -
                                         all.least_bytes / 50;
            all = enumerate(&request, n);
            n_memory++;
        }
        if (draw(&state) % 8 == 0)
            request.objective = PLAN_OBJECTIVE_MEMORY;
        check_against_enumeration(&request, &all);
        n_feasible += all.best_ns < INT64_MAX;
    }
    g_clear_pointer(&flights, plan_flights_free);
    g_assert_cmpint(n_feasible, >, 200);
    g_assert_cmpint(n_memory, >, 100);
}

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

    flights = plan_flights_new();
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
    g_clear_pointer(&flights, plan_flights_free);
}

static void
test_alternatives_are_the_next_best(void)
{
    g_autoptr(ModelArch) arch = small_arch(4, 0, 0);
    g_autoptr(Profile) profile = cluster_of("p3.16xlarge", 4);
    PlanRequest request = request_of(arch, profile, 8);
    g_autoptr(GError) error = NULL;

    flights = plan_flights_new();
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
    g_clear_pointer(&flights, plan_flights_free);
}

/* --- slices --- */

static void
test_slices_beat_every_equal_cut(void)
{
    g_autoptr(ModelArch) arch = small_arch(8, 0, 0);
    g_autoptr(Profile) profile = cluster_of("p3.16xlarge", 8);
    PlanRequest request = request_of(arch, profile, 2);
    g_autoptr(GError) error = NULL;

    flights = plan_flights_new();
    arch->hidden = 4096;
    arch->n_heads = arch->n_kv_heads = 32;
    arch->head_dim = 128;
    arch->ffn_hidden = 16384;
    arch->max_seq_len = request.seq_len = 2048;
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
        g_assert_true(simulate(equal, workload, &report, NULL, &error));
        g_assert_cmpint(plan->predicted->iteration_ns, <=, report->iteration_ns);
        g_assert_cmpfloat(plan->lower_bound_s * 1e9, <=, (double)report->iteration_ns);
    }
    /* The bound says something: slices alone cannot halve the time again. */
    g_assert_cmpfloat(plan->optimality_gap_fraction, <, 0.5);
    g_clear_pointer(&flights, plan_flights_free);
}

/* --- what cannot be --- */

static void
expect_error(const PlanRequest *request, PlanError code, const char *const *parts)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) plan = NULL;

    flights = plan_flights_new();
    plan = plan_search(request, simulate, NULL, &error);
    g_clear_pointer(&flights, plan_flights_free);
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
    expect_error(&request, PLAN_ERROR_INVALID, PARTS("--tp 3", "8", "--gpus 6"));
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

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/planner/search/equals-full-enumeration", test_equals_full_enumeration);
    g_test_add_func("/planner/search/threads-do-not-change-the-answer",
                    test_threads_do_not_change_the_answer);
    g_test_add_func("/planner/search/alternatives-are-the-next-best",
                    test_alternatives_are_the_next_best);
    g_test_add_func("/planner/search/slices-beat-every-equal-cut",
                    test_slices_beat_every_equal_cut);
    g_test_add_func("/planner/search/contradictions-name-the-flags",
                    test_contradictions_name_the_flags);
    g_test_add_func("/planner/search/fixed-plans-refuse-what-cannot-be",
                    test_fixed_plans_refuse_what_cannot_be);
    g_test_add_func("/planner/search/what-does-not-fit-names-the-way-out",
                    test_what_does_not_fit_names_the_way_out);
    return g_test_run();
}
