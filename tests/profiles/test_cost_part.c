/* Tests of parts in profiles/cost/cost.h: sums of ops, what hides behind what, recompute. */
#include "profiles/cost/cost.h"

#include "tests/profiles/layer.h"

/* The sum of the list, op by op. */
static void
test_part_is_the_sum_of_its_ops(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ProfileQuery query = query_of(2, 1024, 0, 8);
    ModelOp ops[MODEL_MAX_OPS];
    size_t n = model_ops(&arch, MODEL_PART_LAYER, 0, &query.shape, ops);
    double compute = 0.0, tp = 0.0;
    ProfileCost cost = profile_cost_part(profile, &query, PROFILE_PASS_FORWARD);

    for (size_t i = 0; i < n; i++) {
        ProfileCost one = profile_cost_op(profile, device_of(profile), &ops[i],
                                          PROFILE_PASS_FORWARD, DTYPE_FP16, query.groups);

        compute += one.part_s[PROFILE_PART_COMPUTE];
        tp += one.part_s[PROFILE_PART_TP];
    }
    g_assert_cmpint(cost.source, ==, PROFILE_SOURCE_MODELLED);
    assert_near(cost.part_s[PROFILE_PART_COMPUTE], compute, 1e-12);
    assert_near(cost.part_s[PROFILE_PART_TP], tp, 1e-12);
    /* Two all-reduces of [2, 1024, 2048] in fp16: 8388608 bytes over 8 ranks. */
    assert_near(tp, 2.0 * (2.0 * 7.0 / 8.0 * 8388608.0 / 100e9 + 14e-6), 1e-12);
}

/* K and V of a ring hide behind the attention of all but the first of 4 shares; PyTorch's, which are gathered at once,
 * forward behind that of the first. */
static void
test_keys_hide_behind_what_is_there(void)
{
    g_autoptr(Profile) profile = fixture_profile();

    for (int torch = 0; torch <= 1; torch++) {
        ProfileQuery query = query_of(1, 512, 0, 1);
        ModelOp ops[MODEL_MAX_OPS];
        double ring_s = 0.0, attention_s = 0.0;
        query.shape.flash_attention = true;
        query.shape.torch_ring = torch == 1;
        query.shape.cp = 4;
        query.groups[MODEL_GROUP_CP] = (ProfileGroup){.stride = 1, .n = 4};
        const size_t n = model_ops(&arch, MODEL_PART_LAYER, 0, &query.shape, ops);
        for (size_t i = 0; i < n; i++) {
            const ProfileCost one = profile_cost_op(profile, device_of(profile), &ops[i],
                                                    PROFILE_PASS_FORWARD, DTYPE_FP16, query.groups);
            ring_s += one.part_s[PROFILE_PART_CP];
            if (ops[i].kind == MODEL_OP_ATTENTION)
                attention_s += one.part_s[PROFILE_PART_COMPUTE];
        }
        const ProfileCost cost = profile_cost_part(profile, &query, PROFILE_PASS_FORWARD);
        g_assert_cmpfloat(ring_s, >, attention_s);
        assert_near(cost.part_s[PROFILE_PART_CP], ring_s - attention_s * (torch == 1 ? 0.25 : 0.75),
                    1e-9);
    }
}

static void
test_input_and_weight_gradients_make_the_backward(void)
{
    g_autoptr(Profile) profile = profile_load("p3.16xlarge", NULL);
    static const ModelPart parts[] = {MODEL_PART_EMBEDDING, MODEL_PART_LAYER, MODEL_PART_HEAD};

    for (size_t i = 0; i < G_N_ELEMENTS(parts); i++) {
        ProfileQuery query = query_of(1, 512, 512, 2);
        ProfileCost b, in, w;
        double sum = 0.0, whole = 0.0;

        query.part = parts[i];
        query.accumulate_bytes_per_weight = 6.0;
        b = profile_cost_part(profile, &query, PROFILE_PASS_BACKWARD);
        in = profile_cost_part(profile, &query, PROFILE_PASS_BACKWARD_INPUT);
        w = profile_cost_part(profile, &query, PROFILE_PASS_BACKWARD_WEIGHT);
        for (int part = 0; part < PROFILE_PART_N; part++) {
            sum += in.part_s[part] + w.part_s[part];
            whole += b.part_s[part];
        }
        assert_near(sum, whole, 1e-9);
        assert_near(in.host_s + w.host_s, b.host_s, 1e-9);
    }
}

/* All passes at once, each product priced once, are those that are asked for one by one. */
static void
test_passes_together_are_those_of_each(void)
{
    static const ModelPart parts[] = {MODEL_PART_EMBEDDING, MODEL_PART_LAYER, MODEL_PART_HEAD};
    static const Dtype dtypes[] = {DTYPE_BF16, DTYPE_FP8};
    g_autoptr(Profile) profile = profile_load("dgx-h100", NULL);
    g_autoptr(ModelArch) experts = model_arch_load("mixtral-8x7b", NULL, NULL);

    for (size_t i = 0; i < G_N_ELEMENTS(parts) * G_N_ELEMENTS(dtypes); i++) {
        ProfileQuery query = query_of(1, 512, 512, 2);
        query.arch = experts;
        query.part = parts[i % G_N_ELEMENTS(parts)];
        query.shape.dtype = dtypes[i / G_N_ELEMENTS(parts)];
        query.shape.cp = query.shape.ep = 2;
        query.groups[MODEL_GROUP_CP] = query.groups[MODEL_GROUP_EP] =
            (ProfileGroup){.stride = 2, .n = 2};
        query.accumulate_bytes_per_weight = 6.0;
        const ProfilePartCosts all = profile_cost_passes(profile, &query);
        for (ProfilePass pass = 0; pass < PROFILE_PASS_N; pass++) {
            const ProfileCost one = profile_cost_part(profile, &query, pass);
            g_assert_true(memcmp(all.passes[pass].part_s, one.part_s, sizeof one.part_s) == 0);
            g_assert_cmpfloat(all.passes[pass].host_s, ==, one.host_s);
        }
        const ProfileCost again = profile_cost_recompute(profile, &query, false);
        if (query.part == MODEL_PART_LAYER)
            g_assert_true(memcmp(all.selective.part_s, again.part_s, sizeof again.part_s) == 0);
    }
}

static void
test_more_tokens_and_more_context_take_longer(void)
{
    static const char *const clusters[] = {"p3.16xlarge", "dgx-h100", "local-cpu"};

    for (size_t i = 0; i < G_N_ELEMENTS(clusters); i++) {
        g_autoptr(Profile) profile = profile_load(clusters[i], NULL);

        for (int pass = 0; pass < PROFILE_PASS_N; pass++) {
            double last_tokens = 0.0, last_context = 0.0;

            for (int64_t n = 64; n <= 4096; n *= 2) {
                ProfileQuery tokens = query_of(1, n, 0, 1), context = query_of(1, 256, n, 1);
                double t = part_s(profile, &tokens, (ProfilePass)pass);
                double c = part_s(profile, &context, (ProfilePass)pass);

                g_assert_cmpfloat(t, >=, last_tokens);
                g_assert_cmpfloat(c, >=, last_context);
                last_tokens = t;
                last_context = c;
            }
        }
    }
}

/* Scores that reach memory cost more than scores that do not. */
static void
test_fused_attention_is_faster(void)
{
    g_autoptr(Profile) profile = profile_load("dgx-a100-80g", NULL);

    for (int64_t n = 512; n <= 8192; n *= 2) {
        ProfileQuery unfused = query_of(1, n, 0, 1), fused = unfused;

        fused.shape.flash_attention = true;
        g_assert_cmpfloat(part_s(profile, &fused, PROFILE_PASS_FORWARD), <,
                          part_s(profile, &unfused, PROFILE_PASS_FORWARD));
        g_assert_cmpfloat(part_s(profile, &fused, PROFILE_PASS_BACKWARD), <,
                          part_s(profile, &unfused, PROFILE_PASS_BACKWARD));
    }
}

/* 100 heads' worth of blocks fill 100 multiprocessors: causal FLOPs at the given fraction of peak;
 * backward 2.5 times. */
static void
test_fused_attention_formula(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelOp op = {
        .kind = MODEL_OP_ATTENTION,
        .count = 100,
        .m = 128,
        .n = 128,
        .k = 128,
        .causal_fraction = 0.5,
        .forward_flops = 4.0 * 100 * 128 * 128 * 128 * 1000, /* larger than its bytes */
        .n_kernels_forward = 1,
        .n_kernels_backward = 3,
    };

    profile->parameters.attention_forward_fraction = 0.5;
    profile->parameters.attention_backward_fraction = 0.25;
    assert_near(op_s(profile, &op, PROFILE_PASS_FORWARD), op.forward_flops / FIXTURE_FLOPS, 1e-12);
    assert_near(op_s(profile, &op, PROFILE_PASS_BACKWARD), 5.0 * op.forward_flops / FIXTURE_FLOPS,
                1e-12);
    /* The first version's kernels: half the rate. */
    op.flash = MODEL_FLASH_FIRST;
    profile->parameters.flash1_fraction = 0.5;
    assert_near(op_s(profile, &op, PROFILE_PASS_FORWARD), 2.0 * op.forward_flops / FIXTURE_FLOPS,
                1e-12);
    op.flash = MODEL_FLASH_SECOND;
    profile->parameters.flash2_fraction = 0.625;
    assert_near(op_s(profile, &op, PROFILE_PASS_FORWARD), 1.6 * op.forward_flops / FIXTURE_FLOPS,
                1e-12);
    /* In Triton: 1.4 times as long as the second forward, as long as the first backward. */
    op.flash = MODEL_FLASH_TRITON;
    assert_near(op_s(profile, &op, PROFILE_PASS_FORWARD),
                1.4 * 1.6 * op.forward_flops / FIXTURE_FLOPS, 1e-12);
    assert_near(op_s(profile, &op, PROFILE_PASS_BACKWARD),
                5.0 * 2.0 * op.forward_flops / FIXTURE_FLOPS, 1e-12);
    op.flash = MODEL_FLASH_FASTEST;
    /* One head more: a second wave. */
    op.count = 101;
    assert_near(op_s(profile, &op, PROFILE_PASS_FORWARD),
                op.forward_flops / FIXTURE_FLOPS * 200.0 / 101.0, 1e-12);
}

/*
 * What a block does once counts as so many keys of a query, and backward as queries of a key: 64 beside the
 * 64 keys that a query of a whole causal sequence of 128 meets double its time.  32 queries behind 96 others
 * meet 112.5 keys each, and a key 28.125 queries.  Heads of 64 and 32 run at once and twice the narrow
 * fraction, wider ones at the whole rate.
 */
static void
test_a_block_of_fused_attention_has_a_constant(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelOp op = {
        .kind = MODEL_OP_ATTENTION,
        .count = 100,
        .m = 128,
        .n = 128,
        .k = 128,
        .causal_fraction = 0.5,
        .needed_fraction = 0.5,
        .forward_flops = 4.0 * 100 * 128 * 128 * 128 * 1000, /* larger than its bytes */
        .n_kernels_forward = 1,
        .n_kernels_backward = 3,
    };
    const double s = op.forward_flops * 0.5 / FIXTURE_FLOPS;

    profile->parameters.attention_forward_keys = 64.0;
    profile->parameters.attention_backward_keys = 32.0;
    assert_near(op_s(profile, &op, PROFILE_PASS_FORWARD), 2.0 * s, 1e-12);
    assert_near(op_s(profile, &op, PROFILE_PASS_BACKWARD), 2.5 * 1.5 * s, 1e-12);
    op.m = 32;
    op.causal_fraction = op.needed_fraction = 112.5 / 128.0;
    op.forward_flops /= 4.0;
    assert_near(op_s(profile, &op, PROFILE_PASS_FORWARD),
                op.forward_flops / FIXTURE_FLOPS * (112.5 + 64.0) / 128.0, 1e-12);
    assert_near(op_s(profile, &op, PROFILE_PASS_BACKWARD),
                2.5 * op.forward_flops / FIXTURE_FLOPS * (28.125 + 32.0) / 32.0, 1e-12);

    profile->parameters.attention_forward_keys = profile->parameters.attention_backward_keys = 0.0;
    profile->parameters.attention_forward_narrow_fraction = 0.5;
    profile->parameters.attention_backward_narrow_fraction = 0.8;
    op.m = 128;
    op.causal_fraction = op.needed_fraction = 0.5;
    op.forward_flops *= 4.0;
    static const struct {
        int64_t k;
        double forward, backward;
    } heads[] = {
        {256, 1.0, 1.0},
        {128, 1.0, 1.0},
        {64, 0.5, 0.8},
        {32, 0.25, 0.64},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(heads); i++) {
        op.k = heads[i].k;
        assert_near(op_s(profile, &op, PROFILE_PASS_FORWARD), s / heads[i].forward, 1e-12);
        assert_near(op_s(profile, &op, PROFILE_PASS_BACKWARD), 2.5 * s / heads[i].backward, 1e-12);
    }
    /* FlashAttention 2 loses less: 299 of 335 and 291 of 322 TFLOP/s on H100. */
    op.k = 64;
    op.flash = MODEL_FLASH_SECOND;
    profile->parameters.flash2_fraction = 1.0;
    assert_near(op_s(profile, &op, PROFILE_PASS_FORWARD), s / 0.89, 1e-12);
    assert_near(op_s(profile, &op, PROFILE_PASS_BACKWARD), 2.5 * s / 0.90, 1e-12);
    /* Triton's kernels lose nothing, nor those of the first version. */
    op.flash = MODEL_FLASH_TRITON;
    assert_near(op_s(profile, &op, PROFILE_PASS_FORWARD), 1.4 * s, 1e-12);
    op.flash = MODEL_FLASH_FIRST;
    profile->parameters.flash1_fraction = 1.0;
    assert_near(op_s(profile, &op, PROFILE_PASS_FORWARD), s, 1e-12);
}

/* Kernels of the layer: norms 1 and 2, four products 1 and 3 (one adds up the bias's gradient),
 * GELU and residuals 1, attention 4 and 7: 13 forward, 26 backward, where the framework needs less
 * for each. */
static void
test_the_slower_of_device_and_host_counts(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ProfileQuery query = query_of(1, 128, 0, 1);
    double device = part_s(profile, &query, PROFILE_PASS_FORWARD);
    ProfileCost again;

    query.host_kernel_s = 1e-3;
    query.host_backward_kernel_s = 0.5e-3;
    assert_near(part_s(profile, &query, PROFILE_PASS_FORWARD), 13e-3, 1e-12);
    assert_near(part_s(profile, &query, PROFILE_PASS_BACKWARD), 13e-3, 1e-12);
    again = profile_cost_recompute(profile, &query, false);
    assert_near(again.host_s, 4e-3, 1e-12);
    query.host_kernel_s = query.host_backward_kernel_s = 1e-12;
    assert_near(part_s(profile, &query, PROFILE_PASS_FORWARD), device, 1e-12);
    /* What a layer takes beyond its kernels: a third forward, two thirds backward. */
    profile->parameters.host_layer_s = 30e-3;
    query.host_kernel_s = query.host_backward_kernel_s = 0.0;
    assert_near(part_s(profile, &query, PROFILE_PASS_FORWARD), 10e-3, 1e-12);
    assert_near(part_s(profile, &query, PROFILE_PASS_BACKWARD), 20e-3, 1e-12);
    profile->parameters.host_layer_s = 0.0;
    /* Collectives are issued too: two per layer forward at tp 8. */
    query = query_of(1, 128, 0, 8);
    profile->parameters.host_collective_s = 5e-3;
    assert_near(part_s(profile, &query, PROFILE_PASS_FORWARD), 10e-3, 1e-12);
}

/* 12 h^2 + 2 norms' scale and shift, 6 bytes each (biases ride with their products). */
static void
test_accumulation_moves_every_weight(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ProfileQuery query = query_of(1, 4096, 0, 1);
    double without = part_s(profile, &query, PROFILE_PASS_BACKWARD), with;

    query.accumulate_bytes_per_weight = 6.0;
    with = part_s(profile, &query, PROFILE_PASS_BACKWARD);
    assert_near(with - without, 6.0 * 12.0 * 2048.0 * 2048.0 / FIXTURE_MEMORY, 2e-3);
    g_assert_cmpfloat(part_s(profile, &query, PROFILE_PASS_FORWARD), ==,
                      part_s(profile,
                             &(ProfileQuery){.arch = &arch,
                                             .part = query.part,
                                             .shape = query.shape,
                                             .groups = {{0, 1, 1}, {0, 1, 1}, {0, 1, 1}}},
                             PROFILE_PASS_FORWARD));
}

/* Inside the product the sum's bytes travel while it computes: 4096 rows keep a product of 2048 x
 * 6144 busy for 1.03 ms and more, in which its 75 MB of sums (6 bytes each) are long read and
 * written. */
static void
test_accumulation_inside_products_hides(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ProfileQuery query = query_of(1, 4096, 0, 1);
    double without = part_s(profile, &query, PROFILE_PASS_BACKWARD), norms = 2.0 * 2.0 * 2048.0;

    query.accumulate_bytes_per_weight = 6.0;
    query.accumulate_in_product = true;
    assert_near(part_s(profile, &query, PROFILE_PASS_BACKWARD),
                without + 6.0 * norms / FIXTURE_MEMORY, 1e-9);
    /* One row: products take as long as their bytes; all of 12 h^2 is moved, as by a kernel. */
    query = query_of(1, 1, 0, 1);
    without = part_s(profile, &query, PROFILE_PASS_BACKWARD);
    query.accumulate_bytes_per_weight = 6.0;
    query.accumulate_in_product = true;
    g_assert_cmpfloat(part_s(profile, &query, PROFILE_PASS_BACKWARD) - without, >,
                      0.8 * 6.0 * 12.0 * 2048.0 * 2048.0 / FIXTURE_MEMORY);
}

static void
test_recompute_repeats_the_forward(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ProfileQuery query = query_of(1, 1024, 0, 8);
    ProfileCost full = profile_cost_recompute(profile, &query, true);
    ProfileCost selective = profile_cost_recompute(profile, &query, false);
    ModelOp ops[MODEL_MAX_OPS];
    size_t n = model_ops(&arch, MODEL_PART_LAYER, 0, &query.shape, ops);
    double core = 0.0;

    for (size_t i = 0; i < n; i++) {
        if (ops[i].core_attention)
            core += op_s(profile, &ops[i], PROFILE_PASS_FORWARD);
    }
    assert_near(profile_cost_s(&full), part_s(profile, &query, PROFILE_PASS_FORWARD), 1e-12);
    assert_near(full.part_s[PROFILE_PART_RECOMPUTE], profile_cost_s(&full), 1e-12);
    assert_near(profile_cost_s(&selective), core, 1e-12);
}

static void
test_tp_hides_behind_computing(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ProfileQuery query = query_of(8, 1024, 0, 8);
    ProfileCost apart = profile_cost_part(profile, &query, PROFILE_PASS_FORWARD), behind;

    query.shape.sequence_parallel = true;
    apart = profile_cost_part(profile, &query, PROFILE_PASS_FORWARD);
    query.overlap_tp = true;
    profile->parameters.interference_fraction = 0.25;
    behind = profile_cost_part(profile, &query, PROFILE_PASS_FORWARD);
    g_assert_cmpfloat(apart.part_s[PROFILE_PART_TP], <, apart.part_s[PROFILE_PART_COMPUTE]);
    g_assert_cmpfloat(behind.part_s[PROFILE_PART_TP], ==, 0.0);
    assert_near(behind.part_s[PROFILE_PART_COMPUTE],
                apart.part_s[PROFILE_PART_COMPUTE] + 0.25 * apart.part_s[PROFILE_PART_TP], 1e-12);
}

/* All-reduces: the forward's are needed at once; the backward's hide behind weight gradients. */
static void
test_all_reduces_hide_in_backward_only(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ProfileQuery query = query_of(8, 1024, 0, 8), overlapped = query;
    ProfileCost apart, behind, weights;

    overlapped.overlap_tp = true;
    apart = profile_cost_part(profile, &query, PROFILE_PASS_FORWARD);
    behind = profile_cost_part(profile, &overlapped, PROFILE_PASS_FORWARD);
    g_assert_cmpfloat(behind.part_s[PROFILE_PART_TP], ==, apart.part_s[PROFILE_PART_TP]);
    apart = profile_cost_part(profile, &query, PROFILE_PASS_BACKWARD);
    behind = profile_cost_part(profile, &overlapped, PROFILE_PASS_BACKWARD);
    weights = profile_cost_part(profile, &query, PROFILE_PASS_BACKWARD_WEIGHT);
    g_assert_cmpfloat(apart.part_s[PROFILE_PART_TP], >, profile_cost_s(&weights));
    assert_near(behind.part_s[PROFILE_PART_TP],
                apart.part_s[PROFILE_PART_TP] - profile_cost_s(&weights), 1e-9);
}

/* What @op computes in @pass. */
static double
product_s(const Profile *profile, const ModelOp *op, ProfilePass pass)
{
    const ProfileCost cost = profile_cost_op(profile, model_cluster_device(profile->cluster, 0), op,
                                             pass, DTYPE_BF16, NULL);

    return cost.part_s[PROFILE_PART_COMPUTE];
}

/*
 * Product by product: of the two inputs of a GPT layer each is gathered again while its gradient is
 * computed, and that is summed while the weight's is; the gathers of the results' gradients are not
 * beside anything.  A forward hides nothing, nor does an I, which has no weight's gradient.
 */
static void
test_inputs_are_summed_beside_products(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ProfileQuery query = query_of(8, 1024, 0, 8);

    profile->parameters.interference_fraction = 0.25;
    for (int sp = 0; sp < 2; sp++) {
        ModelOp ops[MODEL_MAX_OPS];
        double sum_s = 0.0, again_s = 0.0, hidden_s = 0.0;

        query.sums_beside = false;
        query.shape.sequence_parallel = sp;
        const ProfileCost apart = profile_cost_part(profile, &query, PROFILE_PASS_BACKWARD);
        const size_t n = model_ops(&arch, MODEL_PART_LAYER, 0, &query.shape, ops);
        for (size_t i = 0; i < n; i++) {
            const ModelGroup tp = MODEL_GROUP_TP;
            const double comm_s = profile_cost_collective_s(profile, ops[i].backward_comm,
                                                            ops[i].comm_bytes, &query.groups[tp]);
            if (strcmp(ops[i].name, "attention_input") == 0 ||
                strcmp(ops[i].name, "mlp_input") == 0)
                sum_s = comm_s;
            if (strcmp(ops[i].name, "qkv") != 0 && strcmp(ops[i].name, "mlp_up") != 0)
                continue;
            hidden_s += MIN(sum_s, product_s(profile, &ops[i], PROFILE_PASS_BACKWARD_WEIGHT));
            /* Both inputs are as wide. */
            again_s = sp ? sum_s : 0.0;
            hidden_s += MIN(again_s, product_s(profile, &ops[i], PROFILE_PASS_BACKWARD_INPUT));
        }
        query.sums_beside = true;
        const ProfileCost beside = profile_cost_part(profile, &query, PROFILE_PASS_BACKWARD);
        g_assert_cmpfloat(hidden_s, >, 0.0);
        assert_near(beside.part_s[PROFILE_PART_TP], apart.part_s[PROFILE_PART_TP] - hidden_s, 1e-9);
        assert_near(beside.part_s[PROFILE_PART_COMPUTE],
                    apart.part_s[PROFILE_PART_COMPUTE] + 0.25 * hidden_s, 1e-9);
        for (int pass = 0; pass < 2; pass++) {
            const ProfilePass other =
                pass == 0 ? PROFILE_PASS_FORWARD : PROFILE_PASS_BACKWARD_INPUT;
            const ProfileCost with = profile_cost_part(profile, &query, other);
            query.sums_beside = false;
            const ProfileCost without = profile_cost_part(profile, &query, other);
            query.sums_beside = true;
            g_assert_cmpfloat(profile_cost_s(&with), ==, profile_cost_s(&without));
        }
    }
}

/*
 * Korthikanti et al. 2205.05198 table 4: one layer of the 22B model (h 6144, 64 heads), 4 sequences
 * of 2048 tokens, tp 8 on A100; ms.  Its backward sums the inputs' gradients beside products.
 */
static void
test_layer_times_of_the_22b_model(void)
{
    static const struct {
        bool sequence_parallel;
        double forward_ms, backward_ms, full_ms, selective_ms; /* 0: not in the table */
        double tolerance;
    } cases[] = {
        {false, 7.7, 11.9, 19.5, 13.2, 0.08},
        {true, 7.2, 11.8, 0.0, 13.1, 0.04},
    };
    g_autoptr(Profile) profile = profile_load("dgx-a100-80g", NULL);
    g_autoptr(ModelArch) large = model_arch_load("megatron-22b", NULL, NULL);

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        ProfileQuery query = query_of(4, 2048, 0, 8);
        double forward, backward;
        ProfileCost full, selective;

        query.arch = large;
        query.sums_beside = true;
        query.shape.sequence_parallel = cases[i].sequence_parallel;
        query.shape.dropout = true;
        forward = 1e3 * part_s(profile, &query, PROFILE_PASS_FORWARD);
        backward = 1e3 * part_s(profile, &query, PROFILE_PASS_BACKWARD);
        full = profile_cost_recompute(profile, &query, true);
        selective = profile_cost_recompute(profile, &query, false);
        assert_near(forward, cases[i].forward_ms, 0.05);
        assert_near(backward, cases[i].backward_ms, cases[i].tolerance);
        if (cases[i].full_ms > 0.0)
            assert_near(backward + 1e3 * profile_cost_s(&full), cases[i].full_ms, 0.10);
        assert_near(backward + 1e3 * profile_cost_s(&selective), cases[i].selective_ms, 0.12);
    }
}

static void
test_no_vocabulary_no_ends(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch bare = arch;
    ProfileQuery query = query_of(1, 128, 0, 1);

    bare.vocab = 0;
    query.arch = &bare;
    query.part = MODEL_PART_HEAD;
    g_assert_cmpfloat(part_s(profile, &query, PROFILE_PASS_FORWARD), ==, 0.0);
    query.part = MODEL_PART_EMBEDDING;
    g_assert_cmpfloat(part_s(profile, &query, PROFILE_PASS_BACKWARD), ==, 0.0);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
#define ADD(path, function) g_test_add_func("/profiles/cost/" path, function)
    ADD("part-is-the-sum-of-its-ops", test_part_is_the_sum_of_its_ops);
    ADD("keys-hide-behind-what-is-there", test_keys_hide_behind_what_is_there);
    ADD("input-and-weight-gradients-make-the-backward",
        test_input_and_weight_gradients_make_the_backward);
    ADD("passes-together-are-those-of-each", test_passes_together_are_those_of_each);
    ADD("more-tokens-and-more-context-take-longer", test_more_tokens_and_more_context_take_longer);
    ADD("fused-attention-is-faster", test_fused_attention_is_faster);
    ADD("fused-attention-formula", test_fused_attention_formula);
    ADD("a-block-of-fused-attention-has-a-constant",
        test_a_block_of_fused_attention_has_a_constant);
    ADD("the-slower-of-device-and-host-counts", test_the_slower_of_device_and_host_counts);
    ADD("accumulation-moves-every-weight", test_accumulation_moves_every_weight);
    ADD("accumulation-inside-products-hides", test_accumulation_inside_products_hides);
    ADD("recompute-repeats-the-forward", test_recompute_repeats_the_forward);
    ADD("tp-hides-behind-computing", test_tp_hides_behind_computing);
    ADD("all-reduces-hide-in-backward-only", test_all_reduces_hide_in_backward_only);
    ADD("inputs-are-summed-beside-products", test_inputs_are_summed_beside_products);
    ADD("layer-times-of-the-22b-model", test_layer_times_of_the_22b_model);
    ADD("no-vocabulary-no-ends", test_no_vocabulary_no_ends);
    return g_test_run();
}
