/* Tests of optimizers in the Workload: bytes of state and seconds of a step, by hand. */
#include "profiles/workload/matrices.h"

#include "tests/profiles/workload_case.h"

#define H INT64_C(1024)
#define LAYER_MATRICES (12 * H * H) /* qkv 3, proj 1, up 4, down 4 */
#define VOCAB INT64_C(1000)

/* A device whose products take exactly flops / FIXTURE_FLOPS: one tile is one wave. */
static Profile *
plain_profile(void)
{
    Profile *profile = fixture_profile();

    g_array_index(profile->cluster->devices, ModelDevice, 0).n_multiprocessors = 1;
    return profile;
}

static double
step_s(const ModelArch *arch, const Profile *profile, const PlanSpec *spec, PlanOptimizer optimizer,
       PlanMuonTp mode)
{
    g_autoptr(Plan) plan = plan_of(arch, spec);
    g_autoptr(Workload) workload = NULL;

    plan->conventions.optimizer = optimizer;
    plan->conventions.muon_tp = mode;
    workload = workload_new(arch, profile, plan, 0, NULL);
    return 1e-9 * (double)workload->ranks[0].optimizer_ns;
}

static int64_t
state_bytes(const ModelArch *arch, const Profile *profile, const PlanSpec *spec,
            PlanOptimizer optimizer)
{
    g_autoptr(Plan) plan = plan_of(arch, spec);
    g_autoptr(Workload) workload = NULL;

    plan->conventions.optimizer = optimizer;
    workload = workload_new(arch, profile, plan, 0, NULL);
    return owned(workload, 0, TRACE_MEMORY_OPTIMIZER);
}

/* Of 2 layers and a table of 1000 rows, in fp16 with a master copy of 4 bytes: AdamW keeps 12 bytes of
 * each parameter; Muon 8 of matrices; 8-bit AdamW 6 and 8 of each 256 but for the embedding's tables. */
static void
test_state(void)
{
    const ModelArch two = gpt(2, VOCAB);
    g_autoptr(Profile) profile = fixture_profile();
    const PlanSpec spec = {.degrees = {1, 1, 1, 1, 1, 1},
                           .framework = PLAN_FRAMEWORK_MEGATRON_CORE};
    const int64_t rows = 1024; /* 1000 padded to a multiple of 128 */
    const int64_t tables = (rows + two.max_seq_len) * H;
    const int64_t layers = 2 * model_part_parameters(&two, MODEL_PART_LAYER, 0, 1, 1, 1, false);
    const int64_t all = tables + layers + 2 * H; /* and the last norm */
    const int64_t own = all - tables;

    g_assert_cmpint(state_bytes(&two, profile, &spec, PLAN_OPTIMIZER_ADAMW), ==, 12 * all);
    g_assert_cmpint(state_bytes(&two, profile, &spec, PLAN_OPTIMIZER_MUON), ==,
                    12 * all - 4 * 2 * LAYER_MATRICES);
    g_assert_cmpint(state_bytes(&two, profile, &spec, PLAN_OPTIMIZER_ADAMW8BIT), ==,
                    12 * tables + 6 * own + 8 * ((own + 255) / 256));
}

/* ZeRO 1 on 64 replicas: Megatron gives whole matrices to replicas, so one has at least the largest
 * [1024, 4096]; DeepSpeed cuts them. */
static void
test_whole_matrices_are_shared_out(void)
{
    const ModelArch two = gpt(2, 0);
    g_autoptr(Profile) profile = fixture_profile();
    const int64_t vectors =
        2 * (model_part_parameters(&two, MODEL_PART_LAYER, 0, 1, 1, 1, false) - LAYER_MATRICES);
    const PlanSpec megatron = {
        .degrees = {16, 1, 1, 1, 1, 1}, .framework = PLAN_FRAMEWORK_MEGATRON_CORE, .zero_stage = 1};
    const PlanSpec deepspeed = {
        .degrees = {16, 1, 1, 1, 1, 1}, .framework = PLAN_FRAMEWORK_DEEPSPEED, .zero_stage = 1};
    const int64_t rest = (vectors + 15) / 16 * 12;

    g_assert_cmpint(state_bytes(&two, profile, &megatron, PLAN_OPTIMIZER_MUON), ==,
                    rest + 8 * 4 * H * H);
    g_assert_cmpint(state_bytes(&two, profile, &deepspeed, PLAN_OPTIMIZER_MUON), ==,
                    rest + 8 * 2 * LAYER_MATRICES / 16);
}

/* X X^T: 2 a^2 b, its square 2 a^3, times X: 2 a^2 b. */
static void
test_flops(void)
{
    g_assert_cmpfloat(workload_muon_flops(3, 5), ==, 5.0 * (4 * 9 * 5 + 2 * 27));
    g_assert_cmpfloat(workload_muon_flops(5, 3), ==, workload_muon_flops(3, 5));
}

/* Without tp: FLOPs over the rate, and 2 (4 + 4) + 2 + 12 bytes of each matrix' parameter in place of
 * AdamW's 38. */
static void
test_step(void)
{
    const ModelArch two = gpt(2, 0);
    g_autoptr(Profile) profile = plain_profile();
    const PlanSpec spec = {.degrees = {1, 1, 1, 1, 1, 1}, .framework = PLAN_FRAMEWORK_MEGATRON_LM};
    const double n = 2.0 * (double)model_part_parameters(&two, MODEL_PART_LAYER, 0, 1, 1, 1, false);
    const double h3 = (double)(H * H * H), matrices = 2.0 * (double)LAYER_MATRICES;
    /* [h, 3h], [h, h], and two of [h, 4h]: 5 (4 (3 + 1 + 4 + 4) + 4 * 2) h^3. */
    const double flops = 2.0 * 5.0 * 56.0 * h3;

    assert_near(step_s(&two, profile, &spec, PLAN_OPTIMIZER_ADAMW, 0), 38.0 * n / FIXTURE_MEMORY,
                1e-6);
    assert_near(step_s(&two, profile, &spec, PLAN_OPTIMIZER_MUON, 0),
                (38.0 * n - 8.0 * matrices) / FIXTURE_MEMORY + flops / FIXTURE_FLOPS, 1e-6);
    assert_near(step_s(&two, profile, &spec, PLAN_OPTIMIZER_ADAMW8BIT, 0),
                (2.0 * (2.0 + 8.0 / 256.0 + 4.0) + 14.0) * n / FIXTURE_MEMORY, 1e-6);
}

/* With tp 2, seconds beyond AdamW-like traffic, for one layer of [h, 3h], [h, h], [h, 4h], [4h, h]:
 * columns of the first and third are split, rows of the others. */
static void
test_tp_modes(void)
{
    const ModelArch one = gpt(1, 0);
    g_autoptr(Profile) profile = plain_profile();
    const PlanSpec spec = {.degrees = {1, 2, 1, 1, 1, 1}, .framework = PLAN_FRAMEWORK_MEGATRON_LM};
    const double h2 = (double)(H * H), rate = FIXTURE_FLOPS, h3 = h2 * (double)H;
    const double own = (double)model_part_parameters(&one, MODEL_PART_LAYER, 0, 2, 1, 1, false);
    const double traffic_s = (38.0 * own - 8.0 * 6.0 * h2) / FIXTURE_MEMORY;
    const double whole = 5.0 * 56.0 * h3;
    /* Over 2 ranks of 100 GB/s; bytes are those of the whole buffer: half of them travel. */
    const double gathers_s = 4.0 * 12.0 * h2 / 2.0 / 100e9 + 4.0 * 1e-6;
    /* Of parts: smaller sides h (of [h, 1.5 h]), h/2, h, h. */
    const double parts = 5.0 * ((4 * 1.5 + 2) + (4 * 0.25 * 1 + 2 * 0.125) + 2 * (4 * 2 + 2)) * h3;
    /* With u = h: 4 (1.5 + 0.5 + 2 + 2) + 4 * 2. */
    const double spread = 5.0 * 32.0 * h3;
    const double sums_s = 4.0 * 5.0 * (4.0 * h2 / 100e9 + 2e-6);
    const double exchange_s = 2.0 * (4.0 * 6.0 * h2 / 2.0 / 100e9 + 1e-6);
    const double expected[PLAN_MUON_N] = {
        [PLAN_MUON_DUPLICATED] = whole / rate + gathers_s,
        [PLAN_MUON_DISTRIBUTED] = spread / rate + sums_s,
        [PLAN_MUON_BLOCKWISE] = parts / rate,
        [PLAN_MUON_LAYER_SHARDED] = whole / 2.0 / rate + exchange_s,
    };

    for (int mode = 0; mode < PLAN_MUON_N; mode++) {
        g_test_message("%s", plan_muon_tp_names[mode]);
        assert_near(step_s(&one, profile, &spec, PLAN_OPTIMIZER_MUON, (PlanMuonTp)mode),
                    traffic_s + expected[mode], 1e-3);
    }
}

/* 8 experts on 2 ranks: each has 4 of each of their matrices, which no tp splits; the router is one
 * matrix, which all have. */
static void
test_experts(void)
{
    ModelArch moe = gpt(1, 0);
    WorkloadMatrix matrices[MODEL_MAX_OPS];
    const PlanDegrees degrees = {2, 2, 1, 1, 1, 2};
    const PlanConventions conventions = plan_conventions(PLAN_FRAMEWORK_MEGATRON_CORE);

    moe.experts = (ModelExperts){.n_experts = 8, .top_k = 2, .ffn_hidden = 512};
    const size_t n = workload_matrices(&moe, 0, &degrees, &conventions, DTYPE_BF16, matrices);
    const WorkloadMatrixElements own = workload_matrix_elements(matrices, n);

    g_assert_cmpint(own.expert, ==, 4 * 2 * H * 512);
    g_assert_cmpint(own.largest_expert, ==, H * 512);
    g_assert_cmpint(own.dense, ==, 3 * H * H / 2 + H * H / 2 + H * 8);
    for (size_t i = 0; i < n; i++)
        g_assert_cmpint(matrices[i].count, ==, matrices[i].expert ? 4 : 1);
}

#define ADD(name, function) g_test_add_func("/profiles/optimizers/" name, function)

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    ADD("state", test_state);
    ADD("whole-matrices-are-shared-out", test_whole_matrices_are_shared_out);
    ADD("flops", test_flops);
    ADD("step", test_step);
    ADD("tp-modes", test_tp_modes);
    ADD("experts", test_experts);
    return g_test_run();
}
