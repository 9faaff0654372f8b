/* Tests of profiles/workload/: what frozen weights leave of gradients, optimizer, sums and times. */
#include "models/lora.h"
#include "profiles/workload/state.h"
#include "tests/profiles/workload_case.h"

#define BIT(module) (UINT32_C(1) << MODEL_LORA_##module)

/* Of gpt(): r (k + n) of QKV, 1024 x 3072, and of the first product of the MLP, 1024 x 4096. */
#define RANK 8
#define ADAPTERS ((int64_t)RANK * (1024 + 3072 + 1024 + 4096))

static ModelArch
adapted(int64_t n_layers)
{
    ModelArch arch = gpt(n_layers, 51200);

    arch.lora = (ModelLora){RANK, BIT(QKV) | BIT(FC1)};
    return arch;
}

/* fp16 under Megatron: 2 bytes of every weight; of adapters alone 4 of gradients and 12 of the optimizer, the
 * latter over the 4 replicas that ZeRO 1 shards it over. */
static void
test_state_is_weights_and_the_adapters_own(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    const ModelArch plain = gpt(4, 51200), arch = adapted(4);
    const PlanSpec spec = {.degrees = {4, 1, 1, 1, 1, 1, 0},
                           .framework = PLAN_FRAMEWORK_MEGATRON_BRIDGE,
                           .zero_stage = 1};
    g_autoptr(Workload) all = workload_of(&plain, profile, &spec);
    g_autoptr(Workload) few = workload_of(&arch, profile, &spec);
    const int64_t trained = 4 * ADAPTERS;

    g_assert_cmpint(owned(few, 0, TRACE_MEMORY_WEIGHTS), ==,
                    owned(all, 0, TRACE_MEMORY_WEIGHTS) + 2 * trained);
    g_assert_cmpint(owned(few, 0, TRACE_MEMORY_GRADIENTS), ==, 4 * trained);
    g_assert_cmpint(owned(few, 0, TRACE_MEMORY_OPTIMIZER), ==, 12 * trained / 4);
    /* Replicas sum the adapters' gradients, and gather them. */
    g_assert_cmpint(few->ranks[0].dp_reduce_bytes, ==, 4 * trained);
    g_assert_cmpint(few->ranks[0].dp_gather_bytes, ==, 2 * trained);
    g_assert_cmpint(few->ranks[0].optimizer_ns, <, all->ranks[0].optimizer_ns);
}

/* FSDP keeps what it trains in fp32 and casts it; what is frozen is loaded in the 16 bits in which it is used. */
static void
test_fsdp_keeps_frozen_weights_in_16_bits(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    const ModelArch plain = gpt(4, 51200), arch = adapted(4);
    PlanSpec spec = {.degrees = {1, 1, 1, 1, 1, 1, 0}, .framework = PLAN_FRAMEWORK_FSDP};
    g_autoptr(Workload) all = workload_of(&plain, profile, &spec);
    g_autoptr(Workload) few = workload_of(&arch, profile, &spec);
    const int64_t trained = 4 * ADAPTERS, frozen = model_parameters(&plain);

    g_assert_cmpint(owned(all, 0, TRACE_MEMORY_WEIGHTS), ==, 4 * frozen);
    g_assert_cmpint(owned(few, 0, TRACE_MEMORY_WEIGHTS), ==, 2 * frozen + 4 * trained);
}

/* Two ranks with the table of a tied head add up nothing: it is frozen. */
static void
test_copies_of_a_frozen_table_are_not_summed(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    const ModelArch plain = gpt(4, 51200), arch = adapted(4);
    const PlanSpec spec = {.degrees = {1, 1, 2, 1, 1, 1, 0}, .schedule = "1f1b"};
    g_autoptr(Workload) all = workload_of(&plain, profile, &spec);
    g_autoptr(Workload) few = workload_of(&arch, profile, &spec);

    g_assert_cmpint(all->ranks[0].dp_reduce_bytes, ==, 4 * 51200 * 1024);
    g_assert_cmpint(few->ranks[0].dp_reduce_bytes, ==, 0);
    g_assert_cmpint(owned(few, 1, TRACE_MEMORY_WEIGHTS) - owned(all, 1, TRACE_MEMORY_WEIGHTS), ==,
                    2 * 2 * ADAPTERS);
}

/* FSDP gathers all weights and scatters the gradients of adapters alone: the difference of what is sent is that
 * of the frozen gradients, (n - 1) / n of 4 bytes each. */
static void
test_fsdp_scatters_the_adapters_gradients(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    const ModelArch plain = gpt(4, 0), arch = adapted(4);
    ModelArch without = arch;
    const PlanSpec spec = {.degrees = {4, 1, 1, 1, 1, 1, 0},
                           .framework = PLAN_FRAMEWORK_FSDP,
                           .zero_stage = 3,
                           .dtype = DTYPE_BF16};
    without.vocab = 0;
    g_autoptr(Workload) all = workload_of(&plain, profile, &spec);
    g_autoptr(Workload) few = workload_of(&without, profile, &spec);
    const int64_t layer = model_part_parameters(&plain, MODEL_PART_LAYER, 0, 1, 1, 1, false);
    const WorkloadOp *a = workload_op(all, 0, 0, 0, 0), *b = workload_op(few, 0, 0, 0, 0);
    double sent_all = 0.0, sent_few = 0.0;

    for (int i = 0; i < MODEL_CLUSTER_MAX_LEVELS; i++) {
        sent_all += (double)a->traffic_bytes[SCHEDULE_OP_BACKWARD][i];
        sent_few += (double)b->traffic_bytes[SCHEDULE_OP_BACKWARD][i];
    }
    /* One gather of weights in bf16 and one scatter in fp32 of each layer. */
    const double gathered = 0.75 * 4.0 * 2.0 * (double)(layer + ADAPTERS);
    g_assert_cmpfloat_with_epsilon(sent_few, gathered + 0.75 * 4.0 * 4.0 * (double)ADAPTERS,
                                   1e-5 * sent_few);
    g_assert_cmpfloat(sent_all, >, sent_few + 0.7 * 4.0 * 4.0 * (double)(layer - ADAPTERS));
}

/* Of a layer in halves: W has the adapters' products alone, I as long as before but for them. */
static void
test_weights_half_is_the_adapters(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    const ModelArch plain = gpt(4, 51200), arch = adapted(4);
    const PlanSpec spec = {.degrees = {1, 1, 2, 1, 1, 1, 0}, .schedule = "zb-h1"};
    g_autoptr(Workload) all = workload_of(&plain, profile, &spec);
    g_autoptr(Workload) few = workload_of(&arch, profile, &spec);
    const WorkloadOp *a = workload_op(all, 0, 0, 0, 0), *b = workload_op(few, 0, 0, 0, 0);

    g_assert_cmpint(b->time_ns[SCHEDULE_OP_BACKWARD_WEIGHT], <,
                    a->time_ns[SCHEDULE_OP_BACKWARD_WEIGHT] / 2);
    g_assert_cmpint(b->time_ns[SCHEDULE_OP_FORWARD], >, a->time_ns[SCHEDULE_OP_FORWARD]);
    /* From I to W: the inputs of both matrices of both adapters and the gradients of their results. */
    g_assert_cmpint(b->weight_activation_bytes, ==,
                    2 * 2 * 512 * (1024 + RANK + RANK + 3072 + 1024 + RANK + RANK + 4096));
}

/* A checkpoint has the adapters alone: weight, master copy and moments. */
static void
test_checkpoint_is_the_adapters(void)
{
    const ModelArch arch = adapted(4);
    const PlanSpec spec = {.degrees = {1, 1, 1, 1, 1, 1, 0},
                           .framework = PLAN_FRAMEWORK_MEGATRON_BRIDGE};
    g_autoptr(Plan) plan = plan_of(&arch, &spec);

    g_assert_cmpfloat_with_epsilon(workload_checkpoint_bytes(&arch, plan), 14.0 * 4.0 * ADAPTERS,
                                   0.5);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/workload/lora/state-is-weights-and-the-adapters-own",
                    test_state_is_weights_and_the_adapters_own);
    g_test_add_func("/workload/lora/copies-of-a-frozen-table-are-not-summed",
                    test_copies_of_a_frozen_table_are_not_summed);
    g_test_add_func("/workload/lora/fsdp-keeps-frozen-weights-in-16-bits",
                    test_fsdp_keeps_frozen_weights_in_16_bits);
    g_test_add_func("/workload/lora/fsdp-scatters-the-adapters-gradients",
                    test_fsdp_scatters_the_adapters_gradients);
    g_test_add_func("/workload/lora/weights-half-is-the-adapters",
                    test_weights_half_is_the_adapters);
    g_test_add_func("/workload/lora/checkpoint-is-the-adapters", test_checkpoint_is_the_adapters);
    return g_test_run();
}
