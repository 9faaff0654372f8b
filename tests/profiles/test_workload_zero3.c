/* Tests of profiles/workload/zero3.h and prefetch.h: ZeRO 3 - how far ahead weights are gathered,
 * and from where. */
#include "profiles/workload/prefetch.h"
#include "profiles/workload/zero3.h"
#include "tests/profiles/workload_case.h"

/* --- how far ahead --- */

static int32_t
ahead(PlanFramework framework, bool overlap_dp, int64_t layer_elements)
{
    PlanConventions c = plan_conventions(framework);

    c.overlap_dp = overlap_dp;
    return workload_prefetch_layers(PLAN_PREFETCH_AUTO, &c, layer_elements);
}

/* FSDP's next block; DeepSpeed's bucket of 5e7 elements, below 1e9 alive; nothing in 2021. */
static void
test_frameworks_gather_ahead(void)
{
    const PlanConventions c = plan_conventions(PLAN_FRAMEWORK_FSDP);

    g_assert_cmpint(ahead(PLAN_FRAMEWORK_FSDP, true, 1000), ==, 1);
    g_assert_cmpint(ahead(PLAN_FRAMEWORK_DEGAS, false, 1000), ==, 1);
    g_assert_cmpint(ahead(PLAN_FRAMEWORK_MEGATRON_DEEPSPEED, false, 1000), ==, 0);
    g_assert_cmpint(ahead(PLAN_FRAMEWORK_MEGATRON_DEEPSPEED, true, 1000), ==, 1);
    g_assert_cmpint(ahead(PLAN_FRAMEWORK_DEEPSPEED, false, 12500000), ==, 4);
    g_assert_cmpint(ahead(PLAN_FRAMEWORK_DEEPSPEED, false, 12500001), ==, 4);
    g_assert_cmpint(ahead(PLAN_FRAMEWORK_DEEPSPEED, false, 12499999), ==, 5);
    g_assert_cmpint(ahead(PLAN_FRAMEWORK_DEEPSPEED, false, 200000000), ==, 1);
    g_assert_cmpint(ahead(PLAN_FRAMEWORK_DEEPSPEED, false, 1000), ==, PLAN_MAX_PREFETCH);
    g_assert_cmpint(workload_prefetch_layers(3, &c, 1000), ==, 3);
    g_assert_cmpint(workload_prefetch_layers(0, &c, 1000), ==, 0);
}

/* --- time --- */

static double
forward_ns(const Workload *workload)
{
    return (double)workload->ops[0].time_ns[SCHEDULE_OP_FORWARD];
}

/* Of embedding (with @layers of them on the first of three stages) and head: what is beside the
 * layers. */
typedef struct {
    double embedding, layer, head;
} Times;

static Times
compute_times(const Profile *profile, int64_t vocab, PlanSpec spec)
{
    ModelArch arch = gpt(3, vocab);

    spec.zero_stage = 0;
    spec.degrees.pp = 3;
    g_autoptr(Workload) workload = workload_of(&arch, profile, &spec);
    const double of[] = {(double)workload->ops[0].time_ns[SCHEDULE_OP_FORWARD],
                         (double)workload->ops[1].time_ns[SCHEDULE_OP_FORWARD],
                         (double)workload->ops[2].time_ns[SCHEDULE_OP_FORWARD]};
    return (Times){of[0] - of[1], of[1], of[2] - of[1]};
}

/* Over 4 copies: 3/4 of 2 bytes per parameter at 100 GB/s, and 3 steps of 1 us. */
static double
gather_ns(const ModelArch *arch, ModelPart part)
{
    const double n = (double)model_part_parameters(arch, part, 0, 1, 1, 1, false);

    return 1e9 * (0.75 * 2.0 * n / 100e9 + 3e-6);
}

/*
 * Two layers C that compute longer than their gathers G, an embedding that takes next to nothing
 * (E) beside its gather X, and a head H whose gather Y is shorter.  In a forward after many others:
 *   none ahead    every gather is waited for         E + X + 2 (C + G) + H + Y
 *   one ahead     behind the part before             X + 2 C + H
 *   two ahead     X begins with the head before it, after Y, which began with the layer before that
 *                 and has ended: of X is left what the head does not hide
 *                                                  2 C + H + max(E, X - H)
 */
static void
test_gathers_hide_behind_computing(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(2, 8192);
    PlanSpec spec = {.degrees = {4, 1, 1, 1, 1, 1}, .micro_batch = 4, .zero_stage = 3};

    profile->parameters.interference_fraction = 0;
    const Times t = compute_times(profile, 8192, spec);
    const double c = t.layer, e = t.embedding, h = t.head;
    const double g = gather_ns(&arch, MODEL_PART_LAYER);
    const double x = gather_ns(&arch, MODEL_PART_EMBEDDING);
    const double y = gather_ns(&arch, MODEL_PART_HEAD);
    g_test_message("C %.0f G %.0f, E %.0f X %.0f, H %.0f Y %.0f", c, g, e, x, h, y);
    g_assert_true(c > g && x > e && h > y && c > y && y > 0);
    const double expected[] = {e + x + 2 * (c + g) + h + y, x + 2 * c + h,
                               2 * c + h + MAX(e, x - h)};
    for (int32_t depth = 0; depth < 3; depth++) {
        spec.n_ahead = 1 + depth;
        g_autoptr(Workload) workload = workload_of(&arch, profile, &spec);
        assert_near(forward_ns(workload), expected[depth], 1e-5);
    }
    /* What is hidden slows computing down: all of G and Y, E's worth of X. */
    profile->parameters.interference_fraction = 0.5;
    spec.n_ahead = 2;
    g_autoptr(Workload) slowed = workload_of(&arch, profile, &spec);
    assert_near(forward_ns(slowed), expected[1] + 0.5 * (2 * g + y + e), 1e-5);
}

/* However far ahead, the stream of the collectives is full: layers that compute less than their
 * gathers take those, and so do layers that the host launches in less. */
static void
test_a_full_stream_hides_nothing(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(4, 0);
    PlanSpec spec = {.degrees = {4, 1, 1, 1, 1, 1}, .seq_len = 64, .micro_batch = 1};
    double alone_ns[2];

    profile->parameters.interference_fraction = 0;
    for (int slow_host = 0; slow_host < 2; slow_host++) {
        profile->parameters.host_kernel_s = slow_host * 10e-6;
        spec.zero_stage = 0;
        g_autoptr(Workload) alone = workload_of(&arch, profile, &spec);
        alone_ns[slow_host] = forward_ns(alone);
        g_assert_cmpfloat(alone_ns[slow_host], <, 4 * gather_ns(&arch, MODEL_PART_LAYER));
        spec.zero_stage = 3;
        for (int32_t depth = 1; depth <= PLAN_MAX_PREFETCH; depth += 7) {
            spec.n_ahead = 1 + depth;
            g_autoptr(Workload) workload = workload_of(&arch, profile, &spec);
            assert_near(forward_ns(workload), 4 * gather_ns(&arch, MODEL_PART_LAYER), 1e-5);
        }
    }
    g_assert_cmpfloat(alone_ns[1], >, 1.5 * alone_ns[0]);
}

/* Our executor keeps a layer's weights for what it computes again; others gather once more, and FSDP2
 * copies what has come, 2 bytes a weight, which are read and written. */
static void
test_recompute_gathers_again(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(4, 0);
    PlanSpec spec = {.degrees = {4, 1, 1, 1, 1, 1}, .zero_stage = 3, .n_ahead = 1};
    double dp_ns[2][2];

    for (int fsdp = 0; fsdp < 2; fsdp++)
        for (int full = 0; full < 2; full++) {
            spec.framework = fsdp ? PLAN_FRAMEWORK_FSDP : PLAN_FRAMEWORK_DEGAS;
            spec.recompute = full ? PLAN_RECOMPUTE_FULL : PLAN_RECOMPUTE_NONE;
            g_autoptr(Workload) workload = workload_of(&arch, profile, &spec);
            dp_ns[fsdp][full] =
                (double)workload->ops[0].part_ns[SCHEDULE_OP_BACKWARD_INPUT][PROFILE_PART_DP];
        }
    const double gather = 4 * gather_ns(&arch, MODEL_PART_LAYER);
    const double n = (double)model_part_parameters(&arch, MODEL_PART_LAYER, 0, 1, 1, 1, false);
    assert_near(dp_ns[0][0], gather, 1e-5);
    assert_near(dp_ns[0][1], gather, 1e-5);
    assert_near(dp_ns[1][1], 2 * (gather + 4e9 * 4 * n / FIXTURE_MEMORY), 1e-5);
}

/* FSDP2 (since 2024-04) copies what each gather brings (2 + 2 bytes a weight) and the gradients to what is
 * summed (2 read, 4 written); FSDP1 joined the gradients (2 + 2), cast them (2 + 4) and divided them (4 + 4). */
static void
test_fsdp_copies_shards(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(4, 0);
    PlanSpec spec = {.degrees = {4, 1, 1, 1, 1, 1},
                     .framework = PLAN_FRAMEWORK_FSDP,
                     .zero_stage = 3,
                     .n_ahead = 1};
    const double layers_ns =
        4e9 * (double)model_part_parameters(&arch, MODEL_PART_LAYER, 0, 1, 1, 1, false) /
        FIXTURE_MEMORY;
    const double gather = 4 * gather_ns(&arch, MODEL_PART_LAYER);
    double weight_ns[2];

    for (int first = 0; first < 2; first++) {
        spec.stack = first ? 2024 * 12 + 3 - 1 : 2024 * 12 + 4 - 1;
        g_autoptr(Workload) workload = workload_of(&arch, profile, &spec);
        const WorkloadOp *op = &workload->ops[0];

        assert_near((double)op->part_ns[SCHEDULE_OP_FORWARD][PROFILE_PART_DP],
                    gather + (first ? 0.0 : 4 * layers_ns), 1e-5);
        weight_ns[first] = (double)op->part_ns[SCHEDULE_OP_BACKWARD_WEIGHT][PROFILE_PART_DP];
    }
    assert_near(weight_ns[1] - weight_ns[0], (4 + 6 + 8 - 6) * layers_ns, 1e-5);
    spec.framework = PLAN_FRAMEWORK_MEGATRON_CORE;
    g_autoptr(Workload) views = workload_of(&arch, profile, &spec);
    assert_near((double)views->ops[0].part_ns[SCHEDULE_OP_FORWARD][PROFILE_PART_DP], gather, 1e-5);
}

/* --- offloaded parameters --- */

/*
 * A device's own quarter of a layer comes over PCIe at 12 GB/s before every gather; from NVMe at
 * 3 GB/s before that, unless something is ahead of use: then reading is as well.
 */
static void
test_offloaded_parameters_are_fetched(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(4, 0);
    PlanSpec spec = {.degrees = {4, 1, 1, 1, 1, 1},
                     .zero_stage = 3,
                     .offload_parameters = true,
                     .offload = PLAN_OFFLOAD_CPU,
                     .n_ahead = 1};
    const double share =
        2.0 * (double)model_part_parameters(&arch, MODEL_PART_LAYER, 0, 1, 1, 1, false) / 4.0;
    const double gather = gather_ns(&arch, MODEL_PART_LAYER);
    const double copy = 1e9 * share / 12e9, read = 1e9 * share / 3e9;

    profile->parameters.interference_fraction = 0;
    profile->parameters.offload_bytes_per_s = 12e9;
    profile->parameters.nvme_bytes_per_s = 3e9;
    g_autoptr(Workload) cpu = workload_of(&arch, profile, &spec);
    spec.offload = PLAN_OFFLOAD_NVME;
    g_autoptr(Workload) nvme = workload_of(&arch, profile, &spec);
    spec.n_ahead = 2;
    spec.seq_len = 64; /* next to nothing to hide behind */
    g_autoptr(Workload) ahead_of_use = workload_of(&arch, profile, &spec);
    assert_near((double)cpu->ops[0].part_ns[SCHEDULE_OP_FORWARD][PROFILE_PART_DP],
                4 * (gather + copy), 1e-5);
    assert_near((double)nvme->ops[0].part_ns[SCHEDULE_OP_FORWARD][PROFILE_PART_DP],
                4 * (gather + copy + read), 1e-5);
    g_assert_cmpfloat(read, >, gather + copy);
    assert_near(forward_ns(ahead_of_use), 4 * read, 1e-5);
    /* A backward's weight half gathers nothing. */
    g_assert_cmpint(cpu->ops[0].part_ns[SCHEDULE_OP_BACKWARD_WEIGHT][PROFILE_PART_DP], <,
                    (int64_t)(4 * (gather + copy)));
}

/* fp16 with 4 copies, gradients in fp32: 4 bytes of gradient go to the host; weights come back, or
 * stay and are written to NVMe beside 24 bytes of state. */
static void
test_the_optimizer_of_offloaded_parameters(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(4, 0);
    PlanSpec spec = {.degrees = {4, 1, 1, 1, 1, 1}, .zero_stage = 3, .offload = PLAN_OFFLOAD_NVME};
    const double n = (double)model_part_parameters(&arch, MODEL_PART_LAYER, 0, 1, 1, 1, false);

    profile->parameters.offload_bytes_per_s = 12e9;
    profile->parameters.nvme_bytes_per_s = 3e9;
    g_autoptr(Workload) back = workload_of(&arch, profile, &spec);
    spec.offload_parameters = true;
    g_autoptr(Workload) stay = workload_of(&arch, profile, &spec);
    assert_near((double)back->ranks[0].optimizer_ns, 1e9 * n * (6 / 12e9 + 24 / 3e9), 1e-5);
    assert_near((double)stay->ranks[0].optimizer_ns, 1e9 * n * (4 / 12e9 + 26 / 3e9), 1e-5);
}

/* --- memory --- */

/* The layer at work and those ahead of it, 2 bytes a parameter; of offloaded parameters no more.
 * Of a framework whose ops do not count them they are always there. */
static void
test_gathered_layers_take_memory(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(4, 0);
    PlanSpec spec = {
        .degrees = {4, 1, 1, 1, 1, 1}, .zero_stage = 3, .framework = PLAN_FRAMEWORK_FSDP};
    const int64_t n = model_part_parameters(&arch, MODEL_PART_LAYER, 0, 1, 1, 1, false);
    const int64_t layer = 2 * n;

    for (int32_t depth = 0; depth < 4; depth++) {
        spec.n_ahead = 1 + depth;
        g_autoptr(Workload) workload = workload_of(&arch, profile, &spec);
        g_assert_cmpint(owned(workload, 0, TRACE_MEMORY_BUFFERS), ==, (1 + depth) * layer);
        g_assert_null(workload->prefetch);
    }
    spec.framework = PLAN_FRAMEWORK_DEGAS;
    spec.n_ahead = 0;
    g_autoptr(Workload) usual = workload_of(&arch, profile, &spec);
    g_assert_cmpint(owned(usual, 0, TRACE_MEMORY_BUFFERS), ==, 0);
    g_assert_cmpint(owned(usual, 0, TRACE_MEMORY_WEIGHTS), ==, layer);
    spec.offload = PLAN_OFFLOAD_CPU;
    spec.offload_parameters = true;
    g_autoptr(Workload) off = workload_of(&arch, profile, &spec);
    g_assert_cmpint(owned(off, 0, TRACE_MEMORY_WEIGHTS), ==, 0);
    g_assert_cmpint(owned(off, 0, TRACE_MEMORY_OPTIMIZER), ==, 0);
    for (int kind = 0; kind < SCHEDULE_OP_N; kind++)
        g_assert_cmpint(off->ops[0].workspace_bytes[kind], ==, usual->ops[0].workspace_bytes[kind]);
}

/* What the ops of one stage need besides with ZeRO 3, against ZeRO 1. */
static int64_t
more_workspace(const ModelArch *arch, const Profile *profile, PlanSpec spec, ScheduleOpKind kind)
{
    spec.zero_stage = 1;
    g_autoptr(Workload) kept = workload_of(arch, profile, &spec);
    spec.zero_stage = 3;
    g_autoptr(Workload) gathered = workload_of(arch, profile, &spec);

    return gathered->ops[0].workspace_bytes[kind] - kept->ops[0].workspace_bytes[kind];
}

/*
 * A table of 32 M elements, a layer of 12.6 M; weights of 2 bytes, gradients of 4.  While an end is
 * at work, its table is whole, and the layer after it, and in B or W its gradients are.  The head's
 * comes before anything is given back, and in I nothing but its weights; W needs none.
 */
static void
test_large_tables_take_memory(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(2, 32768);
    PlanSpec spec = {.degrees = {4, 1, 1, 1, 1, 1}};
    const int64_t layer = model_part_parameters(&arch, MODEL_PART_LAYER, 0, 1, 1, 1, false);
    const int64_t head = model_part_parameters(&arch, MODEL_PART_HEAD, 0, 1, 1, 1, true);
    const int64_t tables = model_part_parameters(&arch, MODEL_PART_EMBEDDING, 0, 1, 1, 1, false);

    g_assert_cmpint(tables, >, head);
    g_assert_cmpint(more_workspace(&arch, profile, spec, SCHEDULE_OP_FORWARD), ==,
                    2 * (tables + layer));
    g_assert_cmpint(more_workspace(&arch, profile, spec, SCHEDULE_OP_BACKWARD), ==,
                    2 * (head + layer) + 4 * head);
    g_assert_cmpint(more_workspace(&arch, profile, spec, SCHEDULE_OP_BACKWARD_WEIGHT), ==,
                    4 * head);
    /* Small ones: two layers at once. */
    arch = gpt(2, 64);
    g_assert_cmpint(more_workspace(&arch, profile, spec, SCHEDULE_OP_FORWARD), ==, 4 * layer);
    /* Other frameworks' buckets are not counted. */
    arch = gpt(2, 32768);
    spec.framework = PLAN_FRAMEWORK_FSDP;
    g_assert_cmpint(more_workspace(&arch, profile, spec, SCHEDULE_OP_BACKWARD), ==, 0);
}

/*
 * Of @n layers without ends: with a depth of D the part that has r gatherings of later ops ahead
 * has D - r of its own op, if that has so many after it; all of them are in the workspace where
 * none of a later op comes.
 */
static void
test_what_is_ahead_depends_on_later_ops(void)
{
    g_autoptr(Profile) profile = fixture_profile();

    for (int64_t n = 1; n < 5; n++)
        for (int32_t depth = 0; depth < 4; depth++) {
            ModelArch arch = gpt(n, 0);
            PlanSpec spec = {.degrees = {4, 1, 1, 1, 1, 1}, .zero_stage = 3, .n_ahead = 1 + depth};
            const int64_t layer =
                2 * model_part_parameters(&arch, MODEL_PART_LAYER, 0, 1, 1, 1, false);
            const int64_t more = MIN(n, 1 + depth) * layer;
            g_autoptr(Workload) w = workload_of(&arch, profile, &spec);
            g_assert_cmpint(more_workspace(&arch, profile, spec, SCHEDULE_OP_FORWARD), ==, more);
            g_assert_cmpint(more_workspace(&arch, profile, spec, SCHEDULE_OP_BACKWARD), ==,
                            more + 2 * layer);
            g_assert_cmpint(more_workspace(&arch, profile, spec, SCHEDULE_OP_BACKWARD_WEIGHT), ==,
                            2 * layer);
            g_assert_true((w->prefetch == NULL) == (depth == 0));
            const int64_t alone = w->ops[0].workspace_bytes[SCHEDULE_OP_FORWARD] - more;
            for (int32_t r = 1; r <= depth; r++) {
                const int64_t *forward =
                    workload_prefetch_last(w->prefetch, 0, SCHEDULE_OP_FORWARD);
                const int64_t *weight =
                    workload_prefetch_last(w->prefetch, 0, SCHEDULE_OP_BACKWARD_WEIGHT);
                g_assert_cmpint(forward[r - 1], ==,
                                depth - r < n ? alone + (1 + depth - r) * layer
                                              : WORKLOAD_PREFETCH_NONE);
                g_assert_cmpint(weight[r - 1], ==,
                                r < depth ? WORKLOAD_PREFETCH_NONE
                                          : w->ops[0].workspace_bytes[SCHEDULE_OP_BACKWARD_WEIGHT]);
            }
            if (depth > 0) {
                g_assert_cmpint(workload_prefetch_n(w->prefetch, 0, SCHEDULE_OP_FORWARD), ==, n);
                g_assert_cmpint(w->prefetch->most_bytes[0], ==, depth * layer);
                g_assert_cmpint(
                    workload_prefetch_most(w, 0, SCHEDULE_OP_FORWARD, 0), ==,
                    MAX(alone + more, alone + (1 + depth) * layer + (MIN(n, depth) - 1) * layer));
            }
        }
}

/* Its ends are gathered too, where they are, but for a backward's embedding. */
static void
test_ends_are_ahead_too(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(3, 64);
    const PlanSpec spec = {.degrees = {4, 1, 1, 1, 1, 1}, .zero_stage = 3};
    g_autoptr(Workload) w = workload_of(&arch, profile, &spec);
    const int64_t head = 2 * model_part_parameters(&arch, MODEL_PART_HEAD, 0, 1, 1, 1, true);
    const int64_t tables =
        2 * model_part_parameters(&arch, MODEL_PART_EMBEDDING, 0, 1, 1, 1, false);

    g_assert_cmpint(workload_prefetch_n(w->prefetch, 0, SCHEDULE_OP_FORWARD), ==, 5);
    g_assert_cmpint(workload_prefetch_bytes(w->prefetch, 0, SCHEDULE_OP_FORWARD, 0), ==, tables);
    g_assert_cmpint(workload_prefetch_bytes(w->prefetch, 0, SCHEDULE_OP_FORWARD, 4), ==, head);
    for (ScheduleOpKind kind = SCHEDULE_OP_BACKWARD; kind <= SCHEDULE_OP_BACKWARD_INPUT; kind++) {
        g_assert_cmpint(workload_prefetch_n(w->prefetch, 0, kind), ==, 4);
        g_assert_cmpint(workload_prefetch_bytes(w->prefetch, 0, kind, 0), ==, head);
    }
    g_assert_cmpint(workload_prefetch_n(w->prefetch, 0, SCHEDULE_OP_BACKWARD_WEIGHT), ==, 0);
}

/* A last stage of a layer and the head, whose table is more than a layer: it is not ahead of use,
 * and what is after it does not come before it. */
static void
test_a_large_table_is_never_ahead(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(2, 32768);
    PlanSpec spec = {.degrees = {4, 1, 2, 1, 1, 1}, .zero_stage = 3};
    const int64_t layer = 2 * model_part_parameters(&arch, MODEL_PART_LAYER, 0, 1, 1, 1, false);
    const int64_t head = 2 * model_part_parameters(&arch, MODEL_PART_HEAD, 0, 1, 1, 1, true);
    g_autoptr(Workload) one = workload_of(&arch, profile, &spec);
    const int64_t *last = workload_prefetch_last(one->prefetch, 1, SCHEDULE_OP_FORWARD);
    const int64_t forward = one->ops[1].workspace_bytes[SCHEDULE_OP_FORWARD];

    g_assert_cmpint(last[0], ==, forward);
    spec.n_ahead = 3;
    g_autoptr(Workload) two = workload_of(&arch, profile, &spec);
    last = workload_prefetch_last(two->prefetch, 1, SCHEDULE_OP_FORWARD);
    g_assert_cmpint(two->ops[1].workspace_bytes[SCHEDULE_OP_FORWARD], ==, forward);
    g_assert_cmpint(last[0], ==, WORKLOAD_PREFETCH_NONE);
    g_assert_cmpint(last[1], ==, forward);
    spec.n_ahead = 4; /* 3 layers of 12.6 M are more than 33.5 M */
    g_autoptr(Workload) three = workload_of(&arch, profile, &spec);
    g_assert_cmpint(three->ops[1].workspace_bytes[SCHEDULE_OP_FORWARD], ==, forward + layer);
    g_assert_cmpint(3 * layer, >, head);
}

/*
 * With full recompute an I leaves more than it has found, M bytes a layer, all allocated when it
 * begins: the layer before the last, of weights L, has the last one's ahead, but lacks M.
 */
static void
test_an_input_gradient_rises(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(3, 0);
    const int64_t layer = 2 * model_part_parameters(&arch, MODEL_PART_LAYER, 0, 1, 1, 1, false);
    bool is_above[2] = {false, false};

    for (int64_t micro_batch = 1; micro_batch <= 2; micro_batch++) {
        PlanSpec spec = {.degrees = {4, 1, 1, 1, 1, 1},
                         .zero_stage = 3,
                         .micro_batch = micro_batch,
                         .recompute = PLAN_RECOMPUTE_FULL};
        g_autoptr(Workload) w = workload_of(&arch, profile, &spec);
        const WorkloadOp *op = &w->ops[0];
        const int64_t more = (op->weight_activation_bytes - op->activation_bytes) / 3;
        const int64_t gathered = more_workspace(&arch, profile, spec, SCHEDULE_OP_BACKWARD_INPUT);
        g_assert_cmpint(gathered, ==, MAX(layer, 2 * layer - more));
        g_assert_cmpint(workload_prefetch_last(w->prefetch, 0, SCHEDULE_OP_BACKWARD_INPUT)[0], ==,
                        op->workspace_bytes[SCHEDULE_OP_BACKWARD_INPUT] - gathered + layer);
        is_above[gathered > layer] = true;
    }
    g_assert_true(is_above[0] && is_above[1]);
}

/* A table that is larger than the layers ahead is waited for, a backward's embedding needs none. */
static void
test_large_tables_are_waited_for(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(2, 32768);
    PlanSpec spec = {.degrees = {4, 1, 1, 1, 1, 1}, .micro_batch = 4, .zero_stage = 3};
    double dp_ns[4];

    profile->parameters.interference_fraction = 0;
    for (int32_t depth = 0; depth < 4; depth++) {
        spec.n_ahead = 1 + depth;
        g_autoptr(Workload) workload = workload_of(&arch, profile, &spec);
        dp_ns[depth] = (double)workload->ops[0].part_ns[SCHEDULE_OP_FORWARD][PROFILE_PART_DP];
    }
    const double x = gather_ns(&arch, MODEL_PART_EMBEDDING);
    const double layers =
        2 * gather_ns(&arch, MODEL_PART_LAYER) + gather_ns(&arch, MODEL_PART_HEAD);
    assert_near(dp_ns[0], layers + x, 1e-5);
    assert_near(dp_ns[1], x, 1e-5);
    assert_near(dp_ns[2], x, 1e-5);
    g_assert_cmpfloat(dp_ns[3], <, x); /* 3 layers of 12.6 M are more than 35.7 M */
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
#define ADD(name, test) g_test_add_func("/profiles/workload-zero3/" name, test)
    ADD("frameworks-gather-ahead", test_frameworks_gather_ahead);
    ADD("gathers-hide-behind-computing", test_gathers_hide_behind_computing);
    ADD("a-full-stream-hides-nothing", test_a_full_stream_hides_nothing);
    ADD("recompute-gathers-again", test_recompute_gathers_again);
    ADD("fsdp-copies-shards", test_fsdp_copies_shards);
    ADD("offloaded-parameters-are-fetched", test_offloaded_parameters_are_fetched);
    ADD("the-optimizer-of-offloaded-parameters", test_the_optimizer_of_offloaded_parameters);
    ADD("gathered-layers-take-memory", test_gathered_layers_take_memory);
    ADD("large-tables-take-memory", test_large_tables_take_memory);
    ADD("what-is-ahead-depends-on-later-ops", test_what_is_ahead_depends_on_later_ops);
    ADD("ends-are-ahead-too", test_ends_are_ahead_too);
    ADD("a-large-table-is-never-ahead", test_a_large_table_is_never_ahead);
    ADD("an-input-gradient-rises", test_an_input_gradient_rises);
    ADD("large-tables-are-waited-for", test_large_tables_are_waited_for);
#undef ADD
    return g_test_run();
}
