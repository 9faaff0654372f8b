/* Tests of profiles/workload/workload.h: what experts, the optimizer and buckets cost, by hand. */
#include "profiles/workload/workload.h"

#include "profiles/workload/ops.h"
#include "tests/profiles/workload_case.h"

/* 512 tokens to 2 experts each, [1024] in fp16, there and back: half of it to the other rank. */
static void
test_experts_exchange_rows(void)
{
    static const double imbalances[] = {1.0, 2.0, 3.5};
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch moe = gpt(2, 0);
    PlanSpec spec = {.degrees = {4, 1, 1, 1, 1, 2}, .framework = PLAN_FRAMEWORK_MEGATRON_CORE};
    g_autoptr(Plan) plan = NULL;

    moe.experts = (ModelExperts){.n_experts = 8, .top_k = 2, .ffn_hidden = 4096};
    plan = plan_of(&moe, &spec);
    for (size_t i = 0; i < G_N_ELEMENTS(imbalances); i++) {
        const double bytes = imbalances[i] * 512.0 * 2.0 * 1024.0 * 2.0;
        g_autoptr(Workload) workload = NULL;

        plan->conventions.expert_imbalance = imbalances[i];
        workload = workload_new(&moe, profile, plan, 0, NULL);
        assert_near((double)workload_op(workload, 0, 0, 0, 0)
                        ->part_ns[SCHEDULE_OP_FORWARD][PROFILE_PART_EP],
                    1e9 * 2.0 * 2.0 * (bytes / 2.0 / 100e9 + 1e-6), 1e-4);
    }
}

/*
 * Bytes per parameter of a step: moments and master copy read and written (24), the weight, the
 * gradient for the norm, for the step, zeroed (12), and in 16 bits copied to fp32 (4).
 * Offloaded:
 * the gradient out and the weight in over PCIe at 10 GB/s, the state's 24 bytes over NVMe at 2.
 */
static void
test_optimizer_step(void)
{
    static const struct {
        PlanFramework framework;
        int32_t zero_stage;
        PlanOffload offload;
        double seconds_per_parameter;
    } cases[] = {
        {PLAN_FRAMEWORK_MEGATRON_LM, 0, PLAN_OFFLOAD_NONE, 38.0 / 1e12},
        {PLAN_FRAMEWORK_DEEPSPEED, 0, PLAN_OFFLOAD_NONE, 42.0 / 1e12},
        {PLAN_FRAMEWORK_DEEPSPEED, 2, PLAN_OFFLOAD_NONE, 42.0 / 4.0 / 1e12},
        {PLAN_FRAMEWORK_DEEPSPEED, 3, PLAN_OFFLOAD_NONE, 42.0 / 4.0 / 1e12},
        {PLAN_FRAMEWORK_MEGATRON_LM, 0, PLAN_OFFLOAD_CPU, 6.0 / 10e9},
        {PLAN_FRAMEWORK_DEEPSPEED, 1, PLAN_OFFLOAD_CPU, 4.0 / 4.0 / 10e9},
        {PLAN_FRAMEWORK_DEEPSPEED, 1, PLAN_OFFLOAD_NVME, (4.0 / 10e9 + 24.0 / 2e9) / 4.0},
    };
    const ModelArch four = gpt(4, 0);
    const double n =
        4.0 * (double)model_part_parameters(&four, MODEL_PART_LAYER, 0, 1, 1, 1, false);
    g_autoptr(Profile) profile = fixture_profile();

    profile->parameters.offload_bytes_per_s = 10e9;
    profile->parameters.nvme_bytes_per_s = 2e9;
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        PlanSpec spec = {.degrees = {4, 1, 1, 1, 1, 1},
                         .framework = cases[i].framework,
                         .zero_stage = cases[i].zero_stage};
        g_autoptr(Plan) plan = plan_of(&four, &spec);
        g_autoptr(Workload) workload = NULL;

        plan->offload = cases[i].offload;
        workload = workload_new(&four, profile, plan, 0, NULL);
        g_test_message("%zu", i);
        assert_near((double)workload->ranks[0].optimizer_ns,
                    1e9 * n * cases[i].seconds_per_parameter, 1e-4);
    }
}

/* degas waits for K and V of all cp ranks and copies them; others' rings hide behind attention. */
static void
test_own_executor_gathers_keys(void)
{
    static const PlanFramework frameworks[] = {PLAN_FRAMEWORK_DEGAS, PLAN_FRAMEWORK_MEGATRON_CORE};
    const ModelArch four = gpt(4, 0);
    g_autoptr(Profile) profile = fixture_profile();
    int64_t exchange_ns[2];

    for (size_t i = 0; i < 2; i++) {
        PlanSpec spec = {.degrees = {1, 1, 1, 1, 2, 1}, .framework = frameworks[i]};
        g_autoptr(Workload) workload = workload_of(&four, profile, &spec);

        exchange_ns[i] = workload->ops[0].part_ns[SCHEDULE_OP_FORWARD][PROFILE_PART_CP];
    }
    g_assert_cmpint(exchange_ns[0], >, exchange_ns[1]);
}

/*
 * Megatron-Core, bytes per parameter of the rank's share: moments and master copy (24), the
 * gradient for its norm, clipped, for the step (16), in fp16 unscaled (8), in 16 bits copied to
 * fp32 (6), the master copy and the weight cast from it (6).  Of all that the rank holds: the
 * gradient zeroed and looked through for NaN, and scaled where more than one rank adds up.
 */
static void
test_megatron_core_step(void)
{
    static const struct {
        Dtype dtype, grad_dtype;
        int64_t dp, cp;
        int32_t zero_stage;
        double share, whole;
    } cases[] = {
        {DTYPE_BF16, DTYPE_FP32, 1, 1, 0, 46.0, 8.0},
        {DTYPE_BF16, DTYPE_FP32, 4, 1, 0, 46.0, 16.0},
        {DTYPE_BF16, DTYPE_FP32, 4, 1, 1, 46.0, 16.0},
        {DTYPE_BF16, DTYPE_FP32, 2, 2, 1, 46.0, 16.0},
        {DTYPE_FP16, DTYPE_FP32, 1, 1, 0, 54.0, 8.0},
        {DTYPE_BF16, DTYPE_BF16, 4, 1, 1, 52.0, 8.0},
    };
    const ModelArch four = gpt(4, 0);
    const double n =
        4.0 * (double)model_part_parameters(&four, MODEL_PART_LAYER, 0, 1, 1, 1, false);
    g_autoptr(Profile) profile = fixture_profile();

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const int64_t copies = cases[i].dp * cases[i].cp;
        PlanSpec spec = {.degrees = {cases[i].dp, 1, 1, 1, cases[i].cp, 1},
                         .framework = PLAN_FRAMEWORK_MEGATRON_CORE,
                         .dtype = cases[i].dtype,
                         .zero_stage = cases[i].zero_stage};
        g_autoptr(Plan) plan = plan_of(&four, &spec);
        g_autoptr(Workload) workload = NULL;

        plan->conventions.grad_dtype = cases[i].grad_dtype;
        workload = workload_new(&four, profile, plan, 0, NULL);
        g_test_message("%zu", i);
        assert_near((double)workload->ranks[0].optimizer_ns,
                    n / 1e3 *
                        (cases[i].share / (cases[i].zero_stage > 0 ? (double)copies : 1.0) +
                         cases[i].whole),
                    1e-4);
    }
}

/* 8 layers of 12.6e6 parameters, 100.8e6 in all, in buckets of max(40e6, 1e6 dp) elements
 * (Megatron), 5e8 (DeepSpeed), 25 MiB (DDP, gradients of 2 bytes), a layer (degas). */
static void
test_buckets(void)
{
    static const struct {
        PlanFramework framework;
        int64_t dp, pp, vpp;
        int32_t n;
    } cases[] = {
        {PLAN_FRAMEWORK_MEGATRON_LM, 4, 1, 1, 3},    {PLAN_FRAMEWORK_MEGATRON_CORE, 4, 1, 1, 3},
        {PLAN_FRAMEWORK_MEGATRON_CORE, 64, 1, 1, 2}, /* 64e6 */
        {PLAN_FRAMEWORK_MEGATRON_CORE, 4, 2, 1, 2},  {PLAN_FRAMEWORK_MEGATRON_CORE, 4, 2, 2, 1},
        {PLAN_FRAMEWORK_DEEPSPEED, 4, 1, 1, 1},      {PLAN_FRAMEWORK_TERAPIPE, 4, 1, 1, 8},
        {PLAN_FRAMEWORK_DEGAS, 4, 1, 1, 8},          {PLAN_FRAMEWORK_DEGAS, 4, 2, 2, 2},
    };
    const ModelArch eight = gpt(8, 0);
    g_autoptr(Profile) profile = fixture_profile();
    ModelCluster *large = model_cluster_resized(profile->cluster, 128);

    model_cluster_free(profile->cluster);
    profile->cluster = large;
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        PlanSpec spec = {.degrees = {cases[i].dp, 1, cases[i].pp, cases[i].vpp, 1, 1},
                         .n_micro_batches = 4,
                         .schedule = cases[i].vpp > 1 ? "interleaved" : "1f1b",
                         .framework = cases[i].framework};
        g_autoptr(Workload) workload = workload_of(&eight, profile, &spec);

        g_test_message("%zu", i);
        g_assert_cmpint(workload->ranks[0].n_buckets, ==, cases[i].n);
    }
}

/* torchtitan's models rotate by complex numbers, a user's own under FSDP do not; both let tp ranks add up parts where
 * torch.compile overlaps them, which Megatron's overlap does not. */
static void
test_compiled_programs(void)
{
    static const struct {
        PlanFramework framework;
        bool overlap, rotary, parts;
    } cases[] = {
        {PLAN_FRAMEWORK_TORCHTITAN, true, true, true},
        {PLAN_FRAMEWORK_TORCHTITAN, false, true, false},
        {PLAN_FRAMEWORK_FSDP, true, false, true},
        {PLAN_FRAMEWORK_MEGATRON_CORE, true, false, false},
    };
    g_autoptr(Profile) profile = fixture_profile();

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const PlanConventions conventions = {.framework = cases[i].framework,
                                             .overlap_tp = cases[i].overlap};
        ModelShape shape = {0};

        g_test_message("%zu", i);
        workload_set_conventions(&conventions, &profile->parameters, &shape);
        g_assert_cmpint(shape.complex_rotary, ==, cases[i].rotary);
        g_assert_cmpint(shape.sums_parts, ==, cases[i].parts);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
#define ADD(path, function) g_test_add_func("/profiles/workload_costs/" path, function)
    ADD("experts-exchange-rows", test_experts_exchange_rows);
    ADD("optimizer-step", test_optimizer_step);
    ADD("megatron-core-step", test_megatron_core_step);
    ADD("buckets", test_buckets);
    ADD("compiled-programs", test_compiled_programs);
    ADD("own-executor-gathers-keys", test_own_executor_gathers_keys);
#undef ADD
    return g_test_run();
}
