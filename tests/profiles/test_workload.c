/* Tests of profiles/workload/workload.h: times, reductions, memory and refusals of whole plans. */
#include "tests/profiles/workload_case.h"

/* --- times --- */

static void
test_parts_sum_to_the_time(void)
{
    g_autoptr(Profile) profile = profile_load("dgx-a100-80g", NULL);
    ModelArch arch = gpt(8, 51200);
    PlanSpec spec = {.degrees = {1, 2, 4, 1, 1, 1, 0},
                     .n_micro_batches = 4,
                     .framework = PLAN_FRAMEWORK_MEGATRON_LM,
                     .recompute = PLAN_RECOMPUTE_FULL};
    g_autoptr(Workload) workload = workload_of(&arch, profile, &spec);

    for (int32_t stage = 0; stage < 4; stage++) {
        const WorkloadOp *op = workload_op(workload, 0, stage, 0, 0);

        for (int kind = 0; kind < SCHEDULE_OP_N; kind++) {
            int64_t sum = 0;

            for (int part = 0; part < PROFILE_PART_N; part++) {
                g_assert_cmpint(op->part_ns[kind][part], >=, 0);
                sum += op->part_ns[kind][part];
            }
            g_assert_cmpint(op->time_ns[kind], >, 0);
            g_assert_cmpint(sum, ==, op->time_ns[kind]);
        }
        /* Recompute is in B and I only. */
        g_assert_cmpint(op->part_ns[SCHEDULE_OP_FORWARD][PROFILE_PART_RECOMPUTE], ==, 0);
        g_assert_cmpint(op->part_ns[SCHEDULE_OP_BACKWARD][PROFILE_PART_RECOMPUTE], >, 0);
        g_assert_cmpint(op->part_ns[SCHEDULE_OP_BACKWARD_INPUT][PROFILE_PART_RECOMPUTE], >, 0);
        g_assert_cmpint(op->part_ns[SCHEDULE_OP_BACKWARD_WEIGHT][PROFILE_PART_RECOMPUTE], ==, 0);
    }
}

/* Middle stages are alike, the head makes the last one longer, twice the layers twice the time. */
static void
test_stages(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch small = gpt(4, 51200), large = gpt(8, 51200);
    PlanSpec spec = {.degrees = {1, 1, 4, 1, 1, 1, 0}};
    g_autoptr(Workload) a = workload_of(&small, profile, &spec);
    g_autoptr(Workload) b = workload_of(&large, profile, &spec);
    const int64_t *one = workload_op(a, 0, 1, 0, 0)->time_ns;
    const int64_t *two = workload_op(b, 0, 1, 0, 0)->time_ns;

    g_assert_cmpint(workload_op(a, 0, 2, 0, 0)->time_ns[0], ==, one[0]);
    g_assert_cmpint(workload_op(a, 0, 3, 0, 0)->time_ns[0], >, one[0]);
    assert_near((double)two[0], 2.0 * (double)one[0], 1e-5);
    assert_near((double)two[1], 2.0 * (double)one[1], 1e-5);
}

/* Later slices see more context; all together at least the time of the whole sequence. */
static void
test_slices_grow_with_context(void)
{
    g_autoptr(Profile) profile = profile_load("p3.16xlarge", NULL);
    ModelArch arch = gpt(4, 0);
    PlanSpec spec = {.degrees = {1, 1, 4, 1, 1, 1, 0},
                     .seq_len = 2048,
                     .schedule = "terapipe",
                     .framework = PLAN_FRAMEWORK_TERAPIPE};
    g_autoptr(Workload) whole = workload_of(&arch, profile, &spec);
    g_autoptr(Workload) sliced = NULL;
    int64_t sum = 0, last = 0;

    spec.n_slices = 8;
    sliced = workload_of(&arch, profile, &spec);
    g_assert_cmpint(sliced->n_slices, ==, 8);
    for (int32_t s = 0; s < 8; s++) {
        int64_t t = workload_op(sliced, 0, 1, 0, s)->time_ns[SCHEDULE_OP_FORWARD];

        g_assert_cmpint(t, >=, last);
        last = t;
        sum += t;
    }
    g_assert_cmpint(sum, >=, workload_op(whole, 0, 1, 0, 0)->time_ns[SCHEDULE_OP_FORWARD]);
}

static void
test_classes_of_micro_batches(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(4, 0);
    PlanSpec spec = {.degrees = {1, 1, 2, 1, 1, 1, 0}, .n_micro_batches = 3};
    g_autoptr(Plan) plan = plan_of(&arch, &spec);
    static const int64_t sizes[] = {2, 1, 2};
    g_autoptr(Workload) workload = NULL;
    g_autoptr(GError) error = NULL;

    plan->micro_batch_sequences = g_array_new(FALSE, FALSE, sizeof(int64_t));
    g_array_append_vals(plan->micro_batch_sequences, sizes, 3);
    plan->micro_batch = 2;
    plan->global_batch = 5;
    workload = workload_new(&arch, profile, plan, 0, &error);
    g_assert_no_error(error);
    g_assert_cmpint(workload->n_classes, ==, 2);
    g_assert_true(workload_op(workload, 0, 0, 0, 0) == workload_op(workload, 0, 0, 2, 0));
    g_assert_cmpint(workload_op(workload, 0, 0, 0, 0)->forward_message.bytes, ==,
                    2 * workload_op(workload, 0, 0, 1, 0)->forward_message.bytes);
}

/* --- after the last op --- */

/* Gradients in fp32 over 4 copies inside a node: all-reduce 2 * 3/4 B; ZeRO 1 scatters them and
 * gathers fp16 weights. */
static void
test_gradient_reduction(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(4, 0);
    PlanSpec spec = {.degrees = {4, 1, 1, 1, 1, 1, 0}, .framework = PLAN_FRAMEWORK_MEGATRON_LM};
    int64_t n = 4 * model_part_parameters(&arch, MODEL_PART_LAYER, 0, 1, 1, 1, false);
    g_autoptr(Workload) plain = workload_of(&arch, profile, &spec);
    g_autoptr(Workload) zero = NULL;

    g_assert_cmpint(plain->ranks[0].dp_reduce_bytes, ==, 4 * n);
    g_assert_cmpint(plain->ranks[0].dp_gather_bytes, ==, 0);
    assert_near((double)plain->ranks[0].dp_reduce_ns, 1e9 * (1.5 * 4.0 * (double)n / 100e9 + 6e-6),
                1e-5);
    spec.zero_stage = 1;
    zero = workload_of(&arch, profile, &spec);
    assert_near((double)zero->ranks[0].dp_reduce_ns, 1e9 * (0.75 * 4.0 * (double)n / 100e9 + 3e-6),
                1e-5);
    g_assert_cmpint(zero->ranks[0].dp_gather_bytes, ==, 2 * n);
    assert_near((double)zero->ranks[0].dp_gather_ns, 1e9 * (0.75 * 2.0 * (double)n / 100e9 + 3e-6),
                1e-5);
    assert_near(4.0 * (double)zero->ranks[0].optimizer_ns, (double)plain->ranks[0].optimizer_ns,
                1e-3);
    spec.zero_stage = 3;
    g_clear_pointer(&zero, workload_free);
    zero = workload_of(&arch, profile, &spec);
    g_assert_cmpint(zero->ranks[0].dp_reduce_ns, ==, 0); /* inside the ops */
}

/* Gradients of 2 bytes that are summed in fp32: an all-reduce of 4 bytes each over 4 copies, with ZeRO 1
 * too, and 24 bytes each through a memory of 1e12 bytes/s.  Those of 4 bytes are as they were. */
static void
test_reduction_in_fp32(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(4, 0);
    const PlanSpec spec = {
        .degrees = {4, 1, 1, 1, 1, 1, 0}, .framework = PLAN_FRAMEWORK_MEGATRON_LM, .zero_stage = 1};
    const double n =
        4.0 * (double)model_part_parameters(&arch, MODEL_PART_LAYER, 0, 1, 1, 1, false);
    const double expected_s[] = {1.5 * 4.0 * n / 100e9 + 6e-6 + 24.0 * n / 1e12,
                                 0.75 * 4.0 * n / 100e9 + 3e-6};
    const Dtype formats[] = {DTYPE_BF16, DTYPE_FP32};

    for (size_t i = 0; i < G_N_ELEMENTS(formats); i++) {
        g_autoptr(Plan) plan = plan_of(&arch, &spec);
        g_autoptr(GError) error = NULL;

        plan->conventions.grad_dtype = formats[i];
        plan->conventions.wide_reduction = true;
        g_autoptr(Workload) workload = workload_new(&arch, profile, plan, 0, &error);
        g_assert_no_error(error);
        assert_near((double)workload->ranks[0].dp_reduce_ns, 1e9 * expected_s[i], 1e-5);
        g_assert_cmpint(workload->ranks[0].dp_reduce_bytes, ==, (int64_t)(4.0 * n));
    }
}

/*
 * ZeRO 3 over 4 copies inside a node, fp16.  A gather: 3/4 of 2 bytes per parameter at 100 GB/s, 3
 * steps of 1 us for each of 4 matrices.  DeepSpeed of 2021 waits for it and copies: 3 passes over
 * the tensor at 1 TB/s.  Backward gathers again, once more for what is computed again, and
 * scatters.  FSDP hides all of that, but for its copies at 1 TB/s: of two gathers 2 + 2 bytes each, of
 * gradients 2 read and 4 written.
 */
static void
test_zero3_waits_for_every_gather(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(4, 0);
    PlanSpec spec = {.degrees = {4, 1, 1, 1, 1, 1, 0},
                     .micro_batch = 8,
                     .framework = PLAN_FRAMEWORK_MEGATRON_DEEPSPEED,
                     .zero_stage = 3};
    double n = (double)model_part_parameters(&arch, MODEL_PART_LAYER, 0, 1, 1, 1, false);
    double gather = 0.75 * 2.0 * n / 100e9 + 4.0 * 3e-6 + 3.0 * 2.0 * n / 1e12;
    g_autoptr(Workload) none = workload_of(&arch, profile, &spec);
    g_autoptr(Workload) full = NULL, prefetched = NULL;

    assert_near((double)none->ops[0].part_ns[SCHEDULE_OP_FORWARD][PROFILE_PART_DP], 4e9 * gather,
                1e-6);
    assert_near((double)none->ops[0].part_ns[SCHEDULE_OP_BACKWARD][PROFILE_PART_DP], 8e9 * gather,
                1e-6);
    spec.recompute = PLAN_RECOMPUTE_FULL;
    full = workload_of(&arch, profile, &spec);
    assert_near((double)full->ops[0].part_ns[SCHEDULE_OP_BACKWARD][PROFILE_PART_DP], 12e9 * gather,
                1e-6);
    spec.framework = PLAN_FRAMEWORK_FSDP;
    prefetched = workload_of(&arch, profile, &spec);
    assert_near((double)prefetched->ops[0].part_ns[SCHEDULE_OP_BACKWARD][PROFILE_PART_DP],
                4e9 * 14.0 * n / 1e12, 1e-6);
}

/* The two ends of the pipeline add their gradients of the shared table, whose 1000 rows Megatron
 * pads to 1024. */
static void
test_tied_tables_are_reduced(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(3, 1000);
    PlanSpec spec = {.degrees = {1, 1, 3, 1, 1, 1, 0}, .framework = PLAN_FRAMEWORK_MEGATRON_LM};
    g_autoptr(Workload) workload = workload_of(&arch, profile, &spec);

    g_assert_cmpint(workload->ranks[0].dp_reduce_bytes, ==, 1024 * 1024 * 4);
    g_assert_cmpint(workload->ranks[1].dp_reduce_bytes, ==, 0);
    g_assert_cmpint(workload->ranks[2].dp_reduce_bytes, ==, 1024 * 1024 * 4);
}

static void
test_optimizer_step_is_a_convention(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(2, 0);
    PlanSpec spec = {.degrees = {1, 1, 1, 1, 1, 1, 0}};
    g_autoptr(Plan) plan = plan_of(&arch, &spec);
    g_autoptr(Workload) with = workload_new(&arch, profile, plan, 0, NULL), without = NULL;

    plan->conventions.optimizer_step = false;
    without = workload_new(&arch, profile, plan, 0, NULL);
    g_assert_cmpint(with->ranks[0].optimizer_ns, >, 0);
    g_assert_cmpint(without->ranks[0].optimizer_ns, ==, 0);
}

/* --- experts --- */

static void
test_experts_are_spread_and_reduced_apart(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(2, 0);
    PlanSpec spec = {.degrees = {4, 1, 1, 1, 1, 2, 0}, .framework = PLAN_FRAMEWORK_MEGATRON_CORE};
    g_autoptr(Workload) workload = NULL;
    int64_t expert, dense;

    arch.experts = (ModelExperts){.n_experts = 8, .top_k = 2, .ffn_hidden = 4096};
    expert = 2 * model_expert_parameters(&arch, 0, 2, 1);
    dense = 2 * model_part_parameters(&arch, MODEL_PART_LAYER, 0, 1, 2, 1, false) - expert;
    spec.zero_stage = 1;
    workload = workload_of(&arch, profile, &spec);
    g_assert_cmpint(owned(workload, 0, TRACE_MEMORY_WEIGHTS), ==, 2 * (dense + expert));
    /* 4 copies of dense parameters, 2 of experts. */
    assert_near((double)owned(workload, 0, TRACE_MEMORY_OPTIMIZER),
                12.0 * ((double)dense / 4.0 + (double)expert / 2.0), 1e-6);
    g_assert_cmpint(
        workload_op(workload, 0, 0, 0, 0)->part_ns[SCHEDULE_OP_FORWARD][PROFILE_PART_EP], >, 0);
}

/* tp ranks that share experts hold half of each, of which there are half as many copies; the load
 * of the fullest rank is the plan's, else the profile's. */
static void
test_experts_shared_and_loaded_unevenly(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(2, 0);
    PlanSpec spec = {.degrees = {4, 2, 1, 1, 1, 2, 0},
                     .framework = PLAN_FRAMEWORK_MEGATRON_CORE,
                     .zero_stage = 1,
                     .sequence_parallel = true};
    g_autoptr(Plan) plan = NULL;
    g_autoptr(Workload) whole = NULL, shared = NULL, uneven = NULL, profiled = NULL;
    g_autoptr(Workload) limited = NULL;
    int64_t expert, dense, ep_ns;

    arch.experts = (ModelExperts){.n_experts = 8, .top_k = 2, .ffn_hidden = 4096};
    plan = plan_of(&arch, &spec);
    g_assert_cmpint(plan_expert_replicas(&plan->degrees, &plan->conventions), ==, 4);
    whole = workload_new(&arch, profile, plan, 0, NULL);
    plan->conventions.expert_tp = 2;
    g_assert_cmpint(plan_expert_replicas(&plan->degrees, &plan->conventions), ==, 2);
    shared = workload_new(&arch, profile, plan, 0, NULL);
    expert = 2 * model_expert_parameters(&arch, 0, 2, 2);
    dense = 2 * model_part_parameters(&arch, MODEL_PART_LAYER, 0, 2, 2, 2, false) - expert;
    g_assert_cmpint(owned(shared, 0, TRACE_MEMORY_WEIGHTS), ==, 2 * (dense + expert));
    g_assert_cmpint(owned(shared, 0, TRACE_MEMORY_OPTIMIZER), ==, 12 * (dense / 4 + expert / 2));
    plan->conventions.expert_tp = 0;
    plan->conventions.expert_imbalance = 2.0;
    uneven = workload_new(&arch, profile, plan, 0, NULL);
    plan->conventions.expert_imbalance = 0.0;
    profile->parameters.expert_imbalance = 2.0;
    profiled = workload_new(&arch, profile, plan, 0, NULL);
    profile->parameters.expert_imbalance = 1.0;
    plan->conventions.expert_capacity = 2.0;
    limited = workload_new(&arch, profile, plan, 0, NULL);
    ep_ns = workload_op(whole, 0, 0, 0, 0)->part_ns[SCHEDULE_OP_FORWARD][PROFILE_PART_EP];
    /* Bytes twice; the fixture's latency is 0 but for rounding and a link's. */
    g_assert_cmpint(workload_op(uneven, 0, 0, 0, 0)->part_ns[SCHEDULE_OP_FORWARD][PROFILE_PART_EP],
                    >, 3 * ep_ns / 2);
    g_assert_cmpint(
        workload_op(uneven, 0, 0, 0, 0)->part_ns[SCHEDULE_OP_FORWARD][PROFILE_PART_EP], ==,
        workload_op(profiled, 0, 0, 0, 0)->part_ns[SCHEDULE_OP_FORWARD][PROFILE_PART_EP]);
    /* A capacity of twice the mean: rows as if so uneven, but nothing is counted. */
    g_assert_cmpint(owned(limited, 0, TRACE_MEMORY_WEIGHTS), ==,
                    owned(uneven, 0, TRACE_MEMORY_WEIGHTS));
    g_assert_cmpint(
        workload_op(limited, 0, 0, 0, 0)->part_ns[SCHEDULE_OP_FORWARD][PROFILE_PART_EP], ==,
        workload_op(profiled, 0, 0, 0, 0)->part_ns[SCHEDULE_OP_FORWARD][PROFILE_PART_EP]);
}

/* --- two directions --- */

/* Every rank holds a stage of each direction, and its mirror image the same two. */
static void
test_both_directions_hold_parameters(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(8, 0);
    PlanSpec spec = {.degrees = {1, 1, 4, 2, 1, 1, 0},
                     .n_micro_batches = 8,
                     .schedule = "dualpipe",
                     .framework = PLAN_FRAMEWORK_MEGATRON_LM};
    g_autoptr(Plan) plan = plan_of(&arch, &spec);
    g_autoptr(GError) error = NULL;
    g_autoptr(Workload) workload = NULL;
    int64_t n = 4 * model_part_parameters(&arch, MODEL_PART_LAYER, 0, 1, 1, 1, false);

    plan_set_even_stages(plan, arch.n_layers, false, SCHEDULE_PLACEMENT_BIDIR, PLAN_RECOMPUTE_NONE);
    workload = workload_new(&arch, profile, plan, 0, &error);
    g_assert_no_error(error);
    g_assert_cmpint(workload->n_chains, ==, 2);
    g_assert_cmpint(workload->n_stages, ==, 4);
    for (int32_t rank = 0; rank < 4; rank++) {
        g_assert_cmpint(owned(workload, rank, TRACE_MEMORY_WEIGHTS), ==, 2 * n);
        g_assert_cmpint(workload->ranks[rank].dp_reduce_bytes, ==, 4 * n);
    }
    g_assert_cmpint(workload_op(workload, 1, 2, 0, 0)->time_ns[SCHEDULE_OP_FORWARD], ==,
                    workload_op(workload, 0, 2, 0, 0)->time_ns[SCHEDULE_OP_FORWARD]);
}

/* The largest model and sequence that are not refused: sums saturate and stay sums. */
static void
test_huge_models_saturate(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(MODEL_MAX_LAYERS, 0);
    PlanSpec spec = {.degrees = {1, 1, 1, 1, 1, 1, 0}, .seq_len = 1 << 20, .micro_batch = 64};
    g_autoptr(Plan) plan = plan_of(&arch, &spec);
    g_autoptr(GError) error = NULL;
    g_autoptr(Workload) workload = workload_new(&arch, profile, plan, 0, &error);
    const WorkloadOp *op;

    g_assert_no_error(error);
    op = workload_op(workload, 0, 0, 0, 0);
    g_assert_cmpint(op->time_ns[SCHEDULE_OP_BACKWARD], >, 0);
    g_assert_cmpint(op->activation_bytes, >, INT64_C(1) << 50);
    g_assert_cmpint(op->activation_bytes, >=, op->weight_activation_bytes);
}

/* --- refusals --- */

static void
test_impossible_degrees_are_refused(void)
{
    static const struct {
        PlanDegrees degrees;
        int64_t seq_len, n_slices;
        bool sequence_parallel;
        PlanError code;
        const char *expect;
    } cases[] = {
        {{1, 3, 1, 1, 1, 1, 0}, 512, 1, false, PLAN_ERROR_INVALID, "legal: 1, 2, 4, 8, 16"},
        {{2, 1, 1, 1, 1, 2, 0}, 512, 1, false, PLAN_ERROR_INVALID, "ep 2"},
        {{1, 1, 1, 1, 4, 1, 0},
         516,
         1,
         false,
         PLAN_ERROR_INVALID,
         "2 * cp must divide seq_len 516"},
        {{1, 1, 1, 1, 4, 1, 0}, 24, 4, false, PLAN_ERROR_INVALID, "cp 4 does not divide 6 tokens"},
        {{1, 8, 1, 1, 1, 1, 0}, 516, 1, true, PLAN_ERROR_INVALID, "sequence parallelism tp 8"},
        {{4, 2, 4, 1, 1, 1, 0}, 512, 1, false, PLAN_ERROR_INFEASIBLE, "needs 32 devices"},
    };
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(4, 0);

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        PlanSpec spec = {.degrees = cases[i].degrees,
                         .seq_len = cases[i].seq_len,
                         .n_slices = cases[i].n_slices,
                         .schedule = cases[i].n_slices > 1 ? "terapipe" : "gpipe",
                         .sequence_parallel = cases[i].sequence_parallel};
        g_autoptr(Plan) plan = plan_of(&arch, &spec);
        g_autoptr(GError) error = NULL;

        g_assert_null(workload_new(&arch, profile, plan, 0, &error));
        g_assert_error(error, PLAN_ERROR, (int)cases[i].code);
        g_test_message("%s", error->message);
        g_assert_nonnull(strstr(error->message, cases[i].expect));
    }
}

static void
test_ends_must_match_the_vocabulary(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch with = gpt(4, 1000), without = gpt(4, 0);
    PlanSpec spec = {.degrees = {1, 1, 2, 1, 1, 1, 0}};
    g_autoptr(Plan) plan = plan_of(&with, &spec);
    g_autoptr(GError) error = NULL;

    g_assert_null(workload_new(&without, profile, plan, 0, &error));
    g_assert_error(error, PLAN_ERROR, PLAN_ERROR_INVALID);
    g_assert_nonnull(strstr(error->message, "no vocabulary"));
}

/* --- plain --- */

static void
test_plain_times(void)
{
    static const int64_t time_ns[SCHEDULE_OP_N] = {1, 2, 3, 4};
    ScheduleShape shape = {.n_ranks = 3, .n_chunks = 1, .n_micro_batches = 2, .n_slices = 1};
    g_autoptr(Schedule) schedule = schedule_new("gpipe", &shape, NULL);
    g_autoptr(Workload) workload = workload_new_plain(schedule, time_ns, 7);

    for (int32_t stage = 0; stage < 3; stage++) {
        const WorkloadOp *op = workload_op(workload, 0, stage, 0, 0);

        for (int kind = 0; kind < SCHEDULE_OP_N; kind++)
            g_assert_cmpint(op->time_ns[kind], ==, time_ns[kind]);
        g_assert_cmpint(op->forward_message.ns, ==, stage < 2 ? 7 : 0);
        g_assert_cmpint(op->backward_message.ns, ==, stage > 0 ? 7 : 0);
    }
}

/* --- TeraPipe, setting (10) --- */

/* Forward (or backward, seen from the last stage) of @n units through @stages equal stages with
 * blocking messages: every unit is received, computed, and sent as far as nobody buffers it. */
static double
sweep_ns(int32_t stages, int32_t n, const int64_t *op_ns, const int64_t *in_ns,
         const int64_t *out_ns)
{
    g_autofree double *ready = g_new0(double, n); /* when the stage before ended the unit */

    for (int32_t stage = 0; stage < stages; stage++) {
        double free = 0.0;

        for (int32_t i = 0; i < n; i++) {
            double start = MAX(free, ready[i]) + (stage > 0 ? (double)in_ns[i] : 0.0);

            ready[i] = start + (double)op_ns[i];
            free = ready[i] + (stage + 1 < stages ? (double)out_ns[i] : 0.0);
        }
    }
    return ready[n - 1];
}

static double
terapipe_setting_10_s(const Profile *profile, int64_t n_slices)
{
    g_autoptr(ModelArch) arch = model_arch_load("gpt3-175b", NULL, NULL);
    PlanSpec spec = {.degrees = {1, 8, 48, 1, 1, 1},
                     .n_micro_batches = 2,
                     .seq_len = 2048,
                     .n_slices = n_slices,
                     .schedule = n_slices > 1 ? "terapipe" : "gpipe",
                     .framework = PLAN_FRAMEWORK_TERAPIPE};
    g_autoptr(Workload) workload = NULL;
    int32_t n = (int32_t)(2 * n_slices);
    g_autofree int64_t *op = g_new(int64_t, n), *in = g_new(int64_t, n), *out = g_new(int64_t, n);
    double total = 0.0;

    arch->vocab = 0; /* its benchmark has neither embedding nor head */
    workload = workload_of(arch, profile, &spec);
    for (int kind = SCHEDULE_OP_FORWARD; kind <= SCHEDULE_OP_BACKWARD; kind++) {
        bool forward = kind == SCHEDULE_OP_FORWARD;

        for (int32_t i = 0; i < n; i++) {
            int32_t s = i % (int32_t)n_slices;
            const WorkloadOp *w =
                workload_op(workload, 0, 24, 0, forward ? s : (int32_t)n_slices - 1 - s);

            op[i] = w->time_ns[kind];
            in[i] = workload_message(w, forward)->ns;
            out[i] = in[i] - workload_message(w, forward)->buffered_ns;
        }
        total += sweep_ns(48, n, op, in, out);
    }
    return 1e-9 * (total + (double)workload->ranks[0].optimizer_ns);
}

/* Li et al. 2102.07988, setting (10): 5.822 s with whole sequences, 1.160 s with 16 slices of 128;
 * nothing in the profile was fitted to either. */
static void
test_terapipe_setting_10(void)
{
    g_autoptr(Profile) profile = profile_load("p3.16xlarge", NULL);
    ModelCluster *cluster = model_cluster_resized(profile->cluster, 384);
    double whole, sliced;

    model_cluster_free(profile->cluster);
    profile->cluster = cluster;
    whole = terapipe_setting_10_s(profile, 1);
    sliced = terapipe_setting_10_s(profile, 16);
    g_test_message("%.3f s (5.822), %.3f s (1.160)", whole, sliced);
    assert_near(whole, 5.822, 0.25);
    assert_near(sliced, 1.160, 0.25);
    g_assert_cmpfloat(whole / sliced, >, 3.5);
    g_assert_cmpfloat(whole / sliced, <, 7.0);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
#define ADD(path, function) g_test_add_func("/profiles/workload/" path, function)
    ADD("parts-sum-to-the-time", test_parts_sum_to_the_time);
    ADD("stages", test_stages);
    ADD("slices-grow-with-context", test_slices_grow_with_context);
    ADD("classes-of-micro-batches", test_classes_of_micro_batches);
    ADD("experts-shared-and-loaded-unevenly", test_experts_shared_and_loaded_unevenly);
    ADD("gradient-reduction", test_gradient_reduction);
    ADD("reduction-in-fp32", test_reduction_in_fp32);
    ADD("zero3-waits-for-every-gather", test_zero3_waits_for_every_gather);
    ADD("tied-tables-are-reduced", test_tied_tables_are_reduced);
    ADD("optimizer-step-is-a-convention", test_optimizer_step_is_a_convention);
    ADD("experts-are-spread-and-reduced-apart", test_experts_are_spread_and_reduced_apart);
    ADD("both-directions-hold-parameters", test_both_directions_hold_parameters);
    ADD("huge-models-saturate", test_huge_models_saturate);
    ADD("impossible-degrees-are-refused", test_impossible_degrees_are_refused);
    ADD("ends-must-match-the-vocabulary", test_ends_must_match_the_vocabulary);
    ADD("plain-times", test_plain_times);
    ADD("terapipe-setting-10", test_terapipe_setting_10);
#undef ADD
    return g_test_run();
}
