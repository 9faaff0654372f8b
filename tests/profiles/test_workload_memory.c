/* Tests of profiles/workload/: what a rank holds, by owner (state.h, buffers.h, memory.h). */
#include "profiles/workload/buffers.h"
#include "tests/profiles/workload_case.h"

/* --- memory --- */

/* Bytes per parameter: weight, gradient, optimizer  [2205.05198; 1910.02054 section 3.1]. */
static void
test_bytes_per_parameter(void)
{
    static const struct {
        PlanFramework framework;
        int32_t zero_stage;
        double weight, gradient, optimizer; /* with d = 4 copies */
    } cases[] = {
        {PLAN_FRAMEWORK_MEGATRON_LM, 0, 2, 4, 12},        /* 18 */
        {PLAN_FRAMEWORK_MEGATRON_CORE, 1, 2, 4, 3},       /* 6 + 12/d */
        {PLAN_FRAMEWORK_MEGATRON_DEEPSPEED, 0, 2, 2, 12}, /* 16 */
        {PLAN_FRAMEWORK_MEGATRON_DEEPSPEED, 1, 2, 2, 3},
        {PLAN_FRAMEWORK_MEGATRON_DEEPSPEED, 2, 2, 0.5, 3},
        {PLAN_FRAMEWORK_MEGATRON_DEEPSPEED, 3, 0.5, 0.5, 3},
        {PLAN_FRAMEWORK_FSDP, 3, 1, 1, 2},
        {PLAN_FRAMEWORK_TERAPIPE, 0, 2, 2, 12},
    };
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(8, 0);
    double n = 4.0 * (double)model_part_parameters(&arch, MODEL_PART_LAYER, 0, 2, 1, 1, false);

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        PlanSpec spec = {.degrees = {4, 2, 2, 1, 1, 1},
                         .framework = cases[i].framework,
                         .zero_stage = cases[i].zero_stage};
        g_autoptr(Workload) workload = workload_of(&arch, profile, &spec);

        for (int32_t rank = 0; rank < 2; rank++) {
            assert_near((double)owned(workload, rank, TRACE_MEMORY_WEIGHTS), cases[i].weight * n,
                        1e-6);
            assert_near((double)owned(workload, rank, TRACE_MEMORY_GRADIENTS),
                        cases[i].gradient * n, 1e-6);
            assert_near((double)owned(workload, rank, TRACE_MEMORY_OPTIMIZER),
                        cases[i].optimizer * n, 1e-6);
        }
    }
}

/* 12 bytes of state a parameter: 4 replicas in two groups hold it twice, so each has half of it. */
static void
test_groups_of_replicas_each_hold_the_state(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(8, 0);
    const PlanSpec spec = {
        .degrees = {4, 1, 1, 1, 1, 1}, .framework = PLAN_FRAMEWORK_MEGATRON_CORE, .zero_stage = 1};
    const int64_t n = 8 * model_part_parameters(&arch, MODEL_PART_LAYER, 0, 1, 1, 1, false);

    for (int64_t instances = 1; instances <= 4; instances *= 2) {
        g_autoptr(Plan) plan = plan_of(&arch, &spec);
        plan->conventions.optimizer_instances = instances;
        g_autoptr(Workload) workload = workload_new(&arch, profile, plan, 0, NULL);
        g_assert_cmpint(owned(workload, 0, TRACE_MEMORY_OPTIMIZER), ==, 12 * n * instances / 4);
    }
}

/* torch.distributed.pipelining: room for the inputs of all micro-batches and for the gradients of their results.  With
 * full recompute a stage of two layers keeps one input besides the one that it has received. */
static void
test_pipelines_of_torch_receive_into_buffers_of_their_own(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(8, 51200);
    const int64_t boundary = 2 * 512 * 1024, each[] = {1, 2, 2, 1};
    PlanSpec spec = {.degrees = {1, 1, 4, 1, 1, 1},
                     .framework = PLAN_FRAMEWORK_FSDP,
                     .schedule = "1f1b",
                     .recompute = PLAN_RECOMPUTE_FULL,
                     .dtype = DTYPE_BF16,
                     .stack = 2026 * 12};
    spec.n_micro_batches = 8;
    g_autoptr(Workload) few = workload_of(&arch, profile, &spec);
    spec.n_micro_batches = 32;
    g_autoptr(Workload) many = workload_of(&arch, profile, &spec);

    for (int32_t rank = 0; rank < 4; rank++)
        g_assert_cmpint(owned(many, rank, TRACE_MEMORY_BUFFERS) -
                            owned(few, rank, TRACE_MEMORY_BUFFERS),
                        ==, 24 * each[rank] * boundary);
    g_assert_cmpint(workload_op(few, 0, 1, 0, 0)->activation_bytes, ==, boundary);
    g_assert_cmpint(workload_op(few, 0, 0, 0, 0)->activation_bytes, >=, 2 * boundary);
}

/* Hybrid sharding: of 8 replicas in two groups each shards weights (4), gradients (4) and moments (8) over 4. */
static void
test_hybrid_sharding_shards_in_groups(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(8, 0);
    const PlanSpec spec = {.degrees = {8, 1, 1, 1, 1, 1},
                           .framework = PLAN_FRAMEWORK_FSDP,
                           .zero_stage = 3,
                           .dtype = DTYPE_BF16};
    const int64_t n = 8 * model_part_parameters(&arch, MODEL_PART_LAYER, 0, 1, 1, 1, false);

    for (int64_t instances = 1; instances <= 8; instances *= 2) {
        g_autoptr(Plan) plan = plan_of(&arch, &spec);
        plan->conventions.optimizer_instances = instances;
        g_autoptr(Workload) workload = workload_new(&arch, profile, plan, 0, NULL);
        const int64_t shard = n / (8 / instances);
        g_assert_cmpint(owned(workload, 0, TRACE_MEMORY_WEIGHTS), ==, 4 * shard);
        g_assert_cmpint(owned(workload, 0, TRACE_MEMORY_GRADIENTS), ==, 4 * shard);
        g_assert_cmpint(owned(workload, 0, TRACE_MEMORY_OPTIMIZER), ==, 8 * shard);
        /* A group gathers bf16 and scatters fp32, of which it sends all but its own share; groups add up shards. */
        const double own = 1.0 / (8.0 / (double)instances);
        const double sent = (double)n * (2.0 * (1.0 - own) + 4.0 * (1.0 - own) +
                                         2.0 * 4.0 * own * (1.0 - 1.0 / (double)instances));
        const WorkloadOp *op = workload_op(workload, 0, 0, 0, 0);
        double all = 0.0;
        for (int i = 0; i < MODEL_CLUSTER_MAX_LEVELS; i++)
            all += (double)op->traffic_bytes[SCHEDULE_OP_BACKWARD][i];
        g_assert_cmpfloat_with_epsilon(all, sent, 1e-5 * sent);
    }
}

/* Of each micro-batch of 2 x 512 tokens the head's input of 1024 elements, and the gradient of 51200
 * logits, 2 bytes each: on the last rank, and of no more micro-batches than there are. */
static void
test_deferred_gradients_keep_their_operands(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(8, 51200);
    const PlanSpec spec = {.degrees = {1, 1, 2, 1, 1, 1},
                           .micro_batch = 2,
                           .n_micro_batches = 4,
                           .framework = PLAN_FRAMEWORK_MEGATRON_CORE};
    const int64_t one = 2 * 512 * (1024 + 51200) * 2;
    const struct {
        int64_t limit, kept;
    } cases[] = {{1, 1}, {2, 2}, {100, 4}};
    g_autoptr(Plan) plain = plan_of(&arch, &spec);
    g_autoptr(Workload) without = workload_new(&arch, profile, plain, 0, NULL);

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(Plan) plan = plan_of(&arch, &spec);
        plan->conventions.deferred_gradients = cases[i].limit;
        g_autoptr(Workload) workload = workload_new(&arch, profile, plan, 0, NULL);
        for (int32_t rank = 0; rank < 2; rank++)
            g_assert_cmpint(owned(workload, rank, TRACE_MEMORY_BUFFERS), ==,
                            owned(without, rank, TRACE_MEMORY_BUFFERS) +
                                (rank == 1 ? cases[i].kept * one : 0));
    }
}

/*
 * Layers of 1024 tokens: results of products in attention 1024 x 3072, of the MLP 1024 x 4096, of the head
 * 1024 x 51200, a layer's result 1024 x 1024, 2 bytes each.  Graphs have a pool of their own, so that what
 * their ops need is held beside what the others need, and one gradient of a result.  Graphs of whole layers
 * keep each one's result besides, from forward to backward.
 */
static void
test_graphs_hold_a_pool(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(8, 51200);
    const PlanSpec spec = {.degrees = {1, 1, 2, 1, 1, 1},
                           .micro_batch = 2,
                           .n_micro_batches = 4,
                           .framework = PLAN_FRAMEWORK_MEGATRON_CORE};
    const int64_t unit = 1024 * 1024 * 2;
    const struct {
        PlanGraphs graphs;
        int64_t first, last, kept; /* units: buffers of each rank, activations of a stage */
    } cases[] = {
        {PLAN_GRAPHS_ATTENTION, 3 + 1, 3 + 1, 0},
        {PLAN_GRAPHS_LAYER, 0 + 1, 4 + 1, 4},
        {PLAN_GRAPHS_ITERATION, 0, 0, 0},
    };
    g_autoptr(Plan) plain = plan_of(&arch, &spec);
    g_autoptr(Workload) without = workload_new(&arch, profile, plain, 0, NULL);

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(Plan) plan = plan_of(&arch, &spec);
        plan->conventions.cuda_graphs = cases[i].graphs;
        g_autoptr(Workload) workload = workload_new(&arch, profile, plan, 0, NULL);
        for (int32_t rank = 0; rank < 2; rank++) {
            g_assert_cmpint(owned(workload, rank, TRACE_MEMORY_BUFFERS) -
                                owned(without, rank, TRACE_MEMORY_BUFFERS),
                            ==, unit * (rank == 0 ? cases[i].first : cases[i].last));
            g_assert_cmpint(workload->ops[rank].activation_bytes -
                                without->ops[rank].activation_bytes,
                            ==, unit * cases[i].kept);
        }
    }
}

/*
 * HybridEP (deep_ep, csrc/hybrid_ep/buffer: intranode.cu, internode_doca.cu).  1024 rows of 1024 numbers a rank,
 * 16 experts.  On 8 ranks of a node: room for 8 x 1024 rows of 2 x 1024 bytes, probabilities of 16 experts in
 * fp32 and 1024 / 128 scales.  On two nodes: for 16 x 1024 rows with the probabilities of the node's 8 experts
 * and scales; the rank's own rows with probabilities of all experts and scales; three times the rows that
 * one other node has of it, once with scales.
 */
static void
test_hybridep_takes_buffers(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(2, 0);
    const struct {
        int64_t ep;
        PlanDispatcher dispatcher;
        int64_t bytes;
    } cases[] = {
        {8, PLAN_DISPATCHER_HYBRIDEP, 8 * 1024 * (2048 + 4 * 16 + 32)},
        {16, PLAN_DISPATCHER_HYBRIDEP,
         16 * 1024 * (2048 + 4 * 8 + 32) + 1024 * (2048 + 4 * 16 + 32) +
             1024 * (3 * (2048 + 4 * 8) + 32)},
        {1, PLAN_DISPATCHER_HYBRIDEP, 0},
        {8, PLAN_DISPATCHER_DEEPEP, 0},
    };

    arch.experts = (ModelExperts){.n_experts = 16, .top_k = 2, .ffn_hidden = 512};
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const PlanSpec spec = {.degrees = {16, 1, 1, 1, 1, cases[i].ep},
                               .micro_batch = 2,
                               .framework = PLAN_FRAMEWORK_MEGATRON_CORE};
        g_autoptr(Plan) plan = plan_of(&arch, &spec), plain = plan_of(&arch, &spec);
        plan->conventions.dispatcher = cases[i].dispatcher;
        g_autoptr(Workload) workload = workload_new(&arch, profile, plan, 0, NULL);
        g_autoptr(Workload) without = workload_new(&arch, profile, plain, 0, NULL);
        g_assert_cmpint(owned(workload, 0, TRACE_MEMORY_BUFFERS) -
                            owned(without, 0, TRACE_MEMORY_BUFFERS),
                        ==, cases[i].bytes);
    }
    /* Layers without experts dispatch nothing. */
    arch.experts.n_experts = 0;
    const PlanSpec spec = {.degrees = {16, 1, 1, 1, 1, 1},
                           .framework = PLAN_FRAMEWORK_MEGATRON_CORE};
    g_autoptr(Plan) plan = plan_of(&arch, &spec), plain = plan_of(&arch, &spec);
    plan->conventions.dispatcher = PLAN_DISPATCHER_HYBRIDEP;
    g_autoptr(Workload) workload = workload_new(&arch, profile, plan, 0, NULL);
    g_autoptr(Workload) without = workload_new(&arch, profile, plain, 0, NULL);
    g_assert_cmpint(owned(workload, 0, TRACE_MEMORY_BUFFERS), ==,
                    owned(without, 0, TRACE_MEMORY_BUFFERS));
}

/*
 * torch.distributed.pipelining kept the results of all 4 micro-batches of 2 x 512 tokens, 2 bytes each: of
 * the first stage 1024 elements a token, until PyTorch's PR 153383 of 2025-05; of the last 51200 logits,
 * until torchtitan's PR 1922 of 2025-10.  Without a pipeline none.
 */
static void
test_pipelines_kept_their_results(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(8, 51200);
    const struct {
        int32_t month; /* of 2025 */
        int64_t pp, first, last;
    } cases[] = {
        {4, 2, 1024, 51200}, {5, 2, 0, 51200}, {9, 2, 0, 51200}, {10, 2, 0, 0}, {4, 1, 0, 0},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const PlanSpec spec = {.degrees = {1, 1, cases[i].pp, 1, 1, 1},
                               .micro_batch = 2,
                               .n_micro_batches = 4,
                               .framework = PLAN_FRAMEWORK_TORCHTITAN};
        g_autoptr(Plan) plan = plan_of(&arch, &spec), today = plan_of(&arch, &spec);
        plan->conventions.stack = 2025 * 12 + cases[i].month - 1;
        g_autoptr(Workload) workload = workload_new(&arch, profile, plan, 0, NULL);
        g_autoptr(Workload) without = workload_new(&arch, profile, today, 0, NULL);
        for (int32_t rank = 0; rank < cases[i].pp; rank++)
            g_assert_cmpint(
                owned(workload, rank, TRACE_MEMORY_BUFFERS) -
                    owned(without, rank, TRACE_MEMORY_BUFFERS),
                ==, 4 * 2 * 512 * 2 * (rank == cases[i].pp - 1 ? cases[i].last : cases[i].first));
    }
}

static void
test_fp32_training_takes_16_bytes(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(2, 0);
    PlanSpec spec = {.degrees = {1, 1, 1, 1, 1, 1}};
    g_autoptr(Plan) plan = plan_of(&arch, &spec);
    g_autoptr(Workload) workload = NULL;
    int64_t n = 2 * model_part_parameters(&arch, MODEL_PART_LAYER, 0, 1, 1, 1, false);

    plan->dtype = DTYPE_FP32;
    workload = workload_new(&arch, profile, plan, 0, NULL);
    g_assert_cmpint(owned(workload, 0, TRACE_MEMORY_WEIGHTS), ==, 4 * n);
    g_assert_cmpint(owned(workload, 0, TRACE_MEMORY_GRADIENTS), ==, 4 * n);
    g_assert_cmpint(owned(workload, 0, TRACE_MEMORY_OPTIMIZER), ==, 8 * n);
}

/* Korthikanti et al. 2205.05198 table 2, per layer: s b h (10 + 24/t + 5 a s / (h t)),
 * (s b h / t)(34 + 5 a s / h), selective 34 s b h / t, full 2 s b h. */
static void
test_activation_bytes_are_korthikantis(void)
{
    static const struct {
        PlanRecompute recompute;
        bool sequence_parallel;
        double per_token_and_width; /* s 512, h 1024, a 16, t 4 */
    } cases[] = {
        {PLAN_RECOMPUTE_NONE, false, 10.0 + 24.0 / 4 + 5.0 * 16 * 512 / (1024 * 4)},
        {PLAN_RECOMPUTE_NONE, true, (34.0 + 5.0 * 16 * 512 / 1024) / 4},
        {PLAN_RECOMPUTE_SELECTIVE, false, 10.0 + 24.0 / 4},
        {PLAN_RECOMPUTE_SELECTIVE, true, 34.0 / 4},
        {PLAN_RECOMPUTE_FULL, false, 2.0},
    };
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(6, 0);

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        PlanSpec spec = {.degrees = {1, 4, 2, 1, 1, 1},
                         .micro_batch = 2,
                         .framework = PLAN_FRAMEWORK_MEGATRON_LM,
                         .recompute = cases[i].recompute,
                         .sequence_parallel = cases[i].sequence_parallel};
        g_autoptr(Workload) workload = workload_of(&arch, profile, &spec);
        double sbh = 512.0 * 2.0 * 1024.0, layers = 3.0;
        const WorkloadOp *op = workload_op(workload, 0, 1, 0, 0);

        assert_near((double)op->activation_bytes, layers * sbh * cases[i].per_token_and_width,
                    1e-9);
        g_assert_cmpint(op->kv_bytes, ==, 0);
        /* Between I and W 14 of the products' inputs, 18 of their outputs' gradients  [2401.10241,
         * M_W]: whatever is recomputed; h of every product's row-split output whole. */
        assert_near((double)op->weight_activation_bytes,
                    layers * sbh * (cases[i].sequence_parallel ? 4.0 / 4 : 4.0) +
                        layers * sbh * ((2.0 + 8.0 + 6.0 + 8.0) / 4 + 4.0),
                    1e-9);
        if (cases[i].recompute == PLAN_RECOMPUTE_FULL)
            g_assert_cmpint(op->workspace_bytes[SCHEDULE_OP_BACKWARD], >,
                            (int64_t)(16.0 * sbh)); /* one layer at a time */
    }
}

/* K and V of a slice: 2 * tokens * h / t * 2 bytes per layer; their gradients grow with context. */
static void
test_slices_keep_keys_and_values(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(4, 0);
    PlanSpec spec = {.degrees = {1, 2, 2, 1, 1, 1},
                     .n_slices = 4,
                     .schedule = "terapipe",
                     .framework = PLAN_FRAMEWORK_TERAPIPE,
                     .recompute = PLAN_RECOMPUTE_FULL};
    g_autoptr(Workload) workload = workload_of(&arch, profile, &spec);
    int64_t kv = 2 * 128 * 1024 / 2 * 2 * 2; /* two layers */

    for (int32_t s = 0; s < 4; s++) {
        const WorkloadOp *op = workload_op(workload, 0, 0, 0, s);

        g_assert_cmpint(op->kv_bytes, ==, kv);
        g_assert_cmpint(op->activation_bytes, ==, 2 * 128 * 1024 * 2);
        g_assert_cmpint(op->kv_gradient_bytes, ==, kv);
    }
    /* degas keeps those of all slices in one block, and adds gradients of bf16 in fp32. */
    spec.framework = PLAN_FRAMEWORK_DEGAS;
    spec.schedule = "seq1f1b";
    g_autoptr(Workload) ours = workload_of(&arch, profile, &spec);
    g_assert_cmpint(workload_op(ours, 0, 0, 0, 0)->kv_bytes, ==, 4 * kv);
    g_assert_cmpint(workload_op(ours, 0, 0, 0, 0)->kv_gradient_bytes, ==, 2 * 4 * kv);
    g_assert_cmpint(workload_op(ours, 0, 0, 0, 1)->kv_gradient_bytes, ==, 0);
}

static void
test_memory_limit(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(4, 0);
    PlanSpec spec = {.degrees = {1, 1, 2, 1, 1, 1}};
    g_autoptr(Plan) plan = plan_of(&arch, &spec);
    g_autoptr(Workload) device = workload_new(&arch, profile, plan, 0, NULL);
    g_autoptr(Workload) user = workload_new(&arch, profile, plan, 12345, NULL);

    g_assert_cmpint(device->ranks[1].memory_limit_bytes, ==, 80000000000);
    g_assert_cmpint(user->ranks[1].memory_limit_bytes, ==, 12345);
}

/* The driver and two communicators (dp, tp) take theirs, and of what is left beyond static bytes
 * the allocator loses a fourth of what it hands out; a user's limit is the limit. */
static void
test_what_a_peak_may_reach(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(4, 0);
    PlanSpec spec = {.degrees = {2, 2, 1, 1, 1, 1}, .framework = PLAN_FRAMEWORK_MEGATRON_LM};
    g_autoptr(Workload) workload = NULL;
    int64_t always = 0;

    profile->parameters.driver_bytes = 5e9;
    profile->parameters.communicator_bytes = 1e9;
    profile->parameters.allocator_fraction = 0.25;
    workload = workload_of(&arch, profile, &spec);
    for (int i = 0; i < TRACE_MEMORY_N; i++)
        always += workload->ranks[0].static_bytes[i];
    g_assert_cmpint(workload->ranks[0].memory_limit_bytes, ==, 80000000000);
    assert_near((double)workload_usable_bytes(&workload->ranks[0]),
                (double)always + (73e9 - (double)always) * 0.8, 1e-9);
}

/* Megatron-Core keeps a placeholder for each weight of a layer: 12 h^2 + 9 h of 2 bytes / tp
 * (biases of row-split products whole). */
static void
test_placeholders_of_fused_sums(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(4, 0);
    PlanSpec spec = {.degrees = {1, 1, 1, 1, 1, 1}, .framework = PLAN_FRAMEWORK_MEGATRON_CORE};
    g_autoptr(Workload) core = workload_of(&arch, profile, &spec);
    g_autoptr(Workload) older = NULL;

    g_assert_cmpint(owned(core, 0, TRACE_MEMORY_BUFFERS), ==,
                    2 * (12 * 1024 * 1024 + 3 * 1024 + 1024 + 4096 + 1024));
    spec.framework = PLAN_FRAMEWORK_MEGATRON_LM;
    older = workload_of(&arch, profile, &spec);
    g_assert_cmpint(owned(older, 0, TRACE_MEMORY_BUFFERS), ==, 0);
}

/* Two threads call cuBLAS; deterministic, it has 32 MiB for each at least. */
static void
test_libraries_keep_workspaces(void)
{
    ProfileParameters parameters = {
        .blas_workspace_bytes = 8e6, .workspace_bytes = 4e6, .context_bytes = 1e6};
    PlanConventions conventions = plan_conventions(PLAN_FRAMEWORK_MEGATRON_CORE);

    g_assert_cmpint(workload_library_bytes(&parameters, &conventions), ==, 21000000);
    conventions.deterministic = true;
    g_assert_cmpint(workload_library_bytes(&parameters, &conventions), ==, 5000000 + (64 << 20));
    parameters.blas_workspace_bytes = 40e6;
    g_assert_cmpint(workload_library_bytes(&parameters, &conventions), ==, 85000000);
}

/*
 * While the head's weight gradient is made, Megatron-Core has a placeholder of the table (2 V h)
 * beside the logits' gradient (2 V per token); a fused loss still holds its own, a plain one has
 * given back 4 V per token.
 */
static void
test_placeholder_of_the_table(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(2, 51200);
    PlanSpec spec = {.degrees = {1, 1, 1, 1, 1, 1}, .framework = PLAN_FRAMEWORK_MEGATRON_CORE};
    g_autoptr(Plan) plan = plan_of(&arch, &spec);
    const int64_t logits = INT64_C(51200) * 512, table = INT64_C(51200) * 1024;

    for (int fused = 0; fused < 2; fused++) {
        g_autoptr(Workload) workload = NULL;

        plan->conventions.loss = fused ? PLAN_LOSS_FUSED : PLAN_LOSS_PLAIN;
        workload = workload_new(&arch, profile, plan, 0, NULL);
        g_assert_cmpint(workload_op(workload, 0, 0, 0, 0)->workspace_bytes[SCHEDULE_OP_BACKWARD], ==
                        , fused ? 2 * logits + 2 * table : MAX(2 * logits, 2 * table - 2 * logits));
    }
}

/*
 * The executor takes the blocks of experts' rows layer by layer, when the head has given back what
 * it kept.  512 tokens, h = q = k = v = 1024, f 2048; 1024 rows go out and come in; 2 bytes.
 */
static void
test_experts_take_blocks_behind_the_head(void)
{
    static const PlanRecompute recomputes[] = {PLAN_RECOMPUTE_NONE, PLAN_RECOMPUTE_FULL};
    const int64_t h = 1024, f = 2048, rows = 512, n = 1024, vocab = 64;
    const int64_t head = 2 * rows * (2 * h + vocab), input = 2 * rows * h;
    const int64_t scratch = rows * 5 * h; /* the gradient's partial sums, q's twice, k's and v's */
    const int64_t blocks = n * (h + 2 * f + f) + 2 * n * h + rows * 8;
    const int64_t late = 2 * (blocks + scratch) + 4 * 2 * n;
    /* x and its norm, q, k, v, lse, attention's result, x2 and its norm, rows, SwiGLU, tables. */
    const int64_t saved = 2 * rows * 8 * h + 4 * 16 * rows + 2 * n * (h + 3 * f) + 32 * n;
    /* Inputs of products, 3 h a row and the experts'; gradients of outputs, 4 h, and theirs. */
    const int64_t for_weight = 2 * (rows * (7 * h + 8) + n * (2 * h + 3 * f));
    g_autoptr(Profile) profile = fixture_profile();

    for (size_t i = 0; i < G_N_ELEMENTS(recomputes); i++) {
        const int64_t again = recomputes[i] == PLAN_RECOMPUTE_FULL ? saved : 0;
        PlanSpec spec = {.degrees = {.dp = 2, .tp = 1, .pp = 1, .cp = 1, .ep = 2, .vpp = 1},
                         .recompute = recomputes[i]};
        ModelArch arch = gpt(1, 0);

        arch.family = MODEL_FAMILY_LLAMA;
        arch.qkv_bias = arch.tied_embeddings = false;
        arch.experts = (ModelExperts){.n_experts = 8, .top_k = 2, .ffn_hidden = f};
        g_autoptr(Workload) alone = workload_of(&arch, profile, &spec);
        g_assert_cmpint(alone->ops[0].workspace_bytes[SCHEDULE_OP_BACKWARD], ==,
                        again + late + input);
        g_assert_cmpint(alone->ops[0].activation_bytes, ==, again > 0 ? input : saved);
        /* Forward: two buffers and the results. */
        g_assert_cmpint(alone->ops[0].workspace_bytes[SCHEDULE_OP_FORWARD], ==,
                        again + 2 * 3 * n * h);
        /* I allocates before it starts what is more for W. */
        g_assert_cmpint(alone->ops[0].weight_activation_bytes, ==, for_weight);
        g_assert_cmpint(alone->ops[0].workspace_bytes[SCHEDULE_OP_BACKWARD_INPUT], ==,
                        again + late + 2 * rows * h + input -
                            MAX(0, for_weight - alone->ops[0].activation_bytes));
        arch.vocab = vocab;
        g_autoptr(Workload) ended = workload_of(&arch, profile, &spec);
        g_assert_cmpint(ended->ops[0].workspace_bytes[SCHEDULE_OP_BACKWARD], ==,
                        again + late + input - head);
        /* What comes at the beginning is there beside the largest head. */
        arch.vocab = 1 << 20;
        g_autoptr(Workload) large = workload_of(&arch, profile, &spec);
        g_assert_cmpint(large->ops[0].workspace_bytes[SCHEDULE_OP_BACKWARD], >=,
                        (again > 0 ? 2 * rows * 8 * h : 0) + input);
        g_assert_cmpint(large->ops[0].workspace_bytes[SCHEDULE_OP_BACKWARD], <, late);
        /* Whole gradients come as late, those of a larger table before. */
        spec.zero_stage = 2;
        for (int64_t v = vocab; v <= 64 * vocab; v *= 64) {
            arch.vocab = v;
            g_autoptr(Workload) whole = workload_of(&arch, profile, &spec);
            const int64_t dense =
                model_part_parameters(&arch, MODEL_PART_LAYER, 0, 1, 2, 1, false) -
                model_expert_parameters(&arch, 0, 2, 1);
            g_assert_cmpint(whole->ops[0].workspace_bytes[SCHEDULE_OP_BACKWARD], ==,
                            again + late + input + 4 * dense - 2 * rows * (2 * h + v));
        }
    }
}

/*
 * The executor's blocks of an op are as wide as the widest layer of its stage, and experts' rows
 * come on top.  A dense layer of width F before one of experts, f 2048; 512 tokens, h = q = k = v =
 * 1024; 1024 rows go out and come in; bytes per row of 2-byte elements unless said.
 */
static void
test_kinds_of_layers_share_blocks(void)
{
    static const struct {
        int64_t width;
        bool dense_is_highest; /* in I: the first layer, with what the second has left to W */
    } cases[] = {{1024, false}, {4096, true}};
    const int64_t h = 1024, f = 2048, rows = 512, n = 1024, input = 2 * rows * h;
    /* The experts': gradients of results and first products, a place; two buffers; the router's. */
    const int64_t blocks = 2 * (n * (h + 2 * f + f) + 2 * n * h + rows * 8) + 4 * 2 * n;
    const int64_t late = 2 * n * (h + 3 * f) + 32 * n; /* kept of the rows, and tables */
    /* Attention's half and both norms with their input; 16 heads' sums of exponents. */
    const int64_t half = 2 * rows * 8 * h + 4 * 16 * rows;
    const int64_t experts_for_weight = 2 * (rows * (7 * h + 8) + n * (2 * h + 3 * f));
    g_autoptr(Profile) profile = fixture_profile();

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const int64_t width = cases[i].width;
        /* Gate and up, their product; in B their gradients and the product's. */
        const int64_t dense = half + 2 * rows * 3 * width;
        const int64_t scratch = 2 * rows * (width + MAX(4 * h, 2 * width));
        const int64_t scratch_input = 2 * rows * (width + h);
        const int64_t gradients = 2 * rows * (5 * h + 2 * width);
        PlanSpec spec = {.degrees = {1, 1, 1, 1, 1, 1}, .recompute = PLAN_RECOMPUTE_NONE};
        ModelArch arch = gpt(1, 0);

        arch.family = MODEL_FAMILY_LLAMA;
        arch.qkv_bias = arch.tied_embeddings = false;
        arch.ffn_hidden = width;
        g_autoptr(Workload) alone = workload_of(&arch, profile, &spec);
        const int64_t *workspace = alone->ops[0].workspace_bytes;
        g_assert_cmpint(alone->ops[0].activation_bytes, ==, dense);
        g_assert_cmpint(workspace[SCHEDULE_OP_BACKWARD], ==, scratch + input);
        /* All gradients for W before anything is given back. */
        g_assert_cmpint(workspace[SCHEDULE_OP_BACKWARD_INPUT], ==,
                        scratch_input + gradients + input);

        arch.n_layers = 2;
        arch.experts =
            (ModelExperts){.n_experts = 8, .top_k = 2, .ffn_hidden = f, .first_dense_layers = 1};
        g_autoptr(Workload) kept = workload_of(&arch, profile, &spec);
        workspace = kept->ops[0].workspace_bytes;
        g_assert_cmpint(workspace[SCHEDULE_OP_BACKWARD], ==, scratch + input + blocks);

        /* A stage of experts alone has blocks of its own width, whatever the stage before it has. */
        PlanSpec apart = {.degrees = {.dp = 1, .tp = 1, .pp = 2, .cp = 1, .ep = 1, .vpp = 1}};
        g_autoptr(Workload) behind = workload_of(&arch, profile, &apart);
        arch.experts.first_dense_layers = 0;
        g_autoptr(Workload) experts = workload_of(&arch, profile, &apart);
        arch.experts.first_dense_layers = 1;
        for (int kind = SCHEDULE_OP_BACKWARD; kind <= SCHEDULE_OP_BACKWARD_INPUT; kind++)
            g_assert_cmpint(workload_op(behind, 0, 1, 0, 0)->workspace_bytes[kind], ==,
                            workload_op(experts, 0, 1, 0, 0)->workspace_bytes[kind]);

        spec.recompute = PLAN_RECOMPUTE_FULL;
        g_autoptr(Workload) again = workload_of(&arch, profile, &spec);
        const WorkloadOp *op = &again->ops[0];
        g_assert_cmpint(op->activation_bytes, ==, 2 * input);
        g_assert_cmpint(op->workspace_bytes[SCHEDULE_OP_BACKWARD], ==,
                        dense + late + scratch + input + blocks);
        g_assert_cmpint(op->weight_activation_bytes, ==,
                        experts_for_weight + gradients + 2 * rows * (3 * h + width));
        /* The experts' layer beside room for the dense one's gate and up; then the dense one. */
        const int64_t experts_level =
            half + late + 2 * rows * 2 * width + scratch_input + blocks + 2 * rows * 4 * h + input;
        const int64_t dense_level =
            experts_for_weight - input + dense + scratch_input + gradients + input;
        g_assert_true((dense_level > experts_level) == cases[i].dense_is_highest);
        g_assert_cmpint(op->workspace_bytes[SCHEDULE_OP_BACKWARD_INPUT], ==,
                        MAX(dense_level, experts_level) -
                            (op->weight_activation_bytes - op->activation_bytes));
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
#define ADD(path, function) g_test_add_func("/profiles/workload_memory/" path, function)
    ADD("groups-of-replicas-each-hold-the-state", test_groups_of_replicas_each_hold_the_state);
    ADD("hybrid-sharding-shards-in-groups", test_hybrid_sharding_shards_in_groups);
    ADD("pipelines-of-torch-receive-into-buffers-of-their-own",
        test_pipelines_of_torch_receive_into_buffers_of_their_own);
    ADD("deferred-gradients-keep-their-operands", test_deferred_gradients_keep_their_operands);
    ADD("graphs-hold-a-pool", test_graphs_hold_a_pool);
    ADD("hybridep-takes-buffers", test_hybridep_takes_buffers);
    ADD("pipelines-kept-their-results", test_pipelines_kept_their_results);
    ADD("bytes-per-parameter", test_bytes_per_parameter);
    ADD("fp32-training-takes-16-bytes", test_fp32_training_takes_16_bytes);
    ADD("activation-bytes-are-korthikantis", test_activation_bytes_are_korthikantis);
    ADD("slices-keep-keys-and-values", test_slices_keep_keys_and_values);
    ADD("memory-limit", test_memory_limit);
    ADD("what-a-peak-may-reach", test_what_a_peak_may_reach);
    ADD("placeholders-of-fused-sums", test_placeholders_of_fused_sums);
    ADD("libraries-keep-workspaces", test_libraries_keep_workspaces);
    ADD("placeholder-of-the-table", test_placeholder_of_the_table);
    ADD("experts-take-blocks-behind-the-head", test_experts_take_blocks_behind_the_head);
    ADD("kinds-of-layers-share-blocks", test_kinds_of_layers_share_blocks);
#undef ADD
    return g_test_run();
}
