/* Tests of profiles/cost/cost.h: kinds of costs, worked out by hand on the fixture. */
#include "profiles/cost/cost.h"

#include "tests/profiles/layer.h"

static double
cost_s(const Profile *profile, const ModelOp *op, ProfilePass pass, Dtype dtype)
{
    ProfileCost cost = profile_cost_op(profile, device_of(profile), op, pass, dtype, NULL);

    return profile_cost_s(&cost);
}

/* --- one device --- */

/*
 * 100 heads of 1280 x 1280 scores, head size 128: a product is 2 100 1280^2 128 operations in whole
 * waves of whole tiles, P = 0.419 ms; the scores are S = 328 MB, 0.328 ms at 1 TB/s.  Forward two
 * products, of 4 passes two beside them; backward four, of 7 passes four.
 */
static void
test_unfused_attention(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    const double scores = 100.0 * 1280.0 * 1280.0;
    const double product_s = 2.0 * scores * 128.0 / FIXTURE_FLOPS;
    const double pass_s = 2.0 * scores / FIXTURE_MEMORY;
    const ModelOp op = {
        .kind = MODEL_OP_ATTENTION,
        .count = 100,
        .m = 1280,
        .n = 1280,
        .k = 128,
        .causal_fraction = 0.5, /* not skipped */
        .forward_flops = 4.0 * scores * 128.0,
        .forward_bytes = INT64_C(4) * 2 * 163840000,
        .backward_bytes = INT64_C(7) * 2 * 163840000,
        .n_kernels_forward = 4,
        .n_kernels_backward = 7,
    };

    g_assert_cmpfloat(product_s, >, pass_s);
    assert_near(cost_s(profile, &op, PROFILE_PASS_FORWARD, DTYPE_FP16),
                2.0 * product_s + 2.0 * pass_s, 1e-12);
    assert_near(cost_s(profile, &op, PROFILE_PASS_BACKWARD, DTYPE_FP16),
                4.0 * product_s + 3.0 * pass_s, 1e-12);
    /* A quarter of the bandwidth: passes beside the products take longer than these. */
    profile->parameters.memory_fraction = 0.25;
    assert_near(cost_s(profile, &op, PROFILE_PASS_FORWARD, DTYPE_FP16), 16.0 * pass_s, 1e-12);
    assert_near(cost_s(profile, &op, PROFILE_PASS_BACKWARD, DTYPE_FP16), 28.0 * pass_s, 1e-12);
}

/*
 * One tile of 128 x 128, k = 102400: four tiles of 64 x 64 in 16 parts occupy 64 of 100
 * multiprocessors, each 2 64^2 6400 operations at 0.75 of 1e12 per second; the parts are written
 * and read in fp32.
 */
static void
test_long_products_are_cut_in_k(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    const ModelOp op = {
        .kind = MODEL_OP_GEMM, .count = 1, .m = 128, .n = 128, .k = 102400, .n_kernels_forward = 1};

    assert_near(cost_s(profile, &op, PROFILE_PASS_FORWARD, DTYPE_FP16),
                2.0 * 64.0 * 64.0 * 6400.0 / 0.75e12 + 8.0 * 16.0 * 128.0 * 128.0 / FIXTURE_MEMORY,
                1e-12);
}

/* Formats without a rate of their own compute in the next wider one that has one. */
static void
test_formats(void)
{
    static const struct {
        Dtype dtype;
        double fixture_flops, h100_flops;
    } cases[] = {
        {DTYPE_FP8, 100e12, 1978.9e12}, {DTYPE_BF16, 100e12, 989.4e12},
        {DTYPE_FP16, 100e12, 989.4e12}, {DTYPE_TF32, 10e12, 494.7e12},
        {DTYPE_FP32, 10e12, 66.9e12},
    };
    g_autoptr(Profile) fixture = fixture_profile(), h100 = profile_load("dgx-h100", NULL);
    const ModelOp product = {
        .kind = MODEL_OP_GEMM, .count = 1, .m = 1280, .n = 1280, .k = 8192, .n_kernels_forward = 1};
    const ModelOp attention = {.kind = MODEL_OP_ATTENTION,
                               .count = 128,
                               .m = 8192,
                               .n = 8192,
                               .k = 128,
                               .causal_fraction = 0.5,
                               .forward_flops = 4.0 * 128 * 8192 * 8192 * 128.0,
                               .n_kernels_forward = 1};

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        assert_near(profile_peak_flops_per_s(device_of(h100), cases[i].dtype), cases[i].h100_flops,
                    2e-3);
        assert_near(cost_s(fixture, &product, PROFILE_PASS_FORWARD, cases[i].dtype),
                    2.0 * 1280.0 * 1280.0 * 8192.0 / cases[i].fixture_flops, 1e-12);
    }
    /* Scores of fp8 training are computed in bf16. */
    g_assert_cmpfloat(cost_s(h100, &attention, PROFILE_PASS_FORWARD, DTYPE_FP8), ==,
                      cost_s(h100, &attention, PROFILE_PASS_FORWARD, DTYPE_BF16));
    g_assert_cmpfloat(cost_s(h100, &product, PROFILE_PASS_FORWARD, DTYPE_FP8), <,
                      0.6 * cost_s(h100, &product, PROFILE_PASS_FORWARD, DTYPE_BF16));
}

/*
 * Filling a tile's pipeline and writing its result takes as long in any format.  One wave of an H100's 132
 * multiprocessors, tiles of 128 x 128: 192 steps of k in bf16 are 2 128 128 192 132 / 989.4e12 = 0.84 us, in fp8, which
 * takes twice as many steps in a second, 384 steps and the same 0.84 us.
 */
static void
test_a_tile_ends_as_slowly_in_any_format(void)
{
    g_autoptr(Profile) profile = profile_load("dgx-h100", NULL);
    const ModelOp op = {.kind = MODEL_OP_GEMM,
                        .count = 1,
                        .m = 128 * 12,
                        .n = 128 * 11,
                        .k = 65536,
                        .n_kernels_forward = 1};
    const double constant_s = 2.0 * 128.0 * 128.0 * 192.0 * 132.0 / 989.4e12;

    profile->parameters.gemm_fraction = 1.0;
    profile->parameters.fp8_fraction = 1.0;
    profile->parameters.device_spread = 0.0;
    for (int i = 0; i < 2; i++) {
        const Dtype dtype = i == 0 ? DTYPE_BF16 : DTYPE_FP8;

        profile->parameters.gemm_k_half = 0.0;
        const double without_s = cost_s(profile, &op, PROFILE_PASS_FORWARD, dtype);
        profile->parameters.gemm_k_half = 192.0;
        assert_near(cost_s(profile, &op, PROFILE_PASS_FORWARD, dtype) - without_s, constant_s,
                    1e-3);
    }
}

/*
 * 1280 x 1280 x 8192 in fp8 at half of the rate for products in fp8 (the fixture has one rate), and
 * 5 bytes for each number that is quantised: forward the input's 1280 8192, backward the gradient's
 * 1280 1280 once, though two products read it.  The weight's gradient alone quantises nothing, and
 * operands that stay as they are stored cost what they cost in bf16.  With nvfp4 it is the same.  An op
 * that says how many bytes its numbers take has these.
 */
static void
test_quantised_operands(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    const double product = 2.0 * 1280.0 * 1280.0 * 8192.0 / FIXTURE_FLOPS;
    ModelOp op = {.kind = MODEL_OP_GEMM,
                  .count = 1,
                  .m = 1280,
                  .n = 1280,
                  .k = 8192,
                  .quantised_forward = 1280.0 * 8192.0,
                  .quantised_backward = 1280.0 * 1280.0,
                  .n_kernels_forward = 1,
                  .n_kernels_backward = 2};

    profile->parameters.fp8_fraction = 0.5;
    profile->parameters.quantise_bytes = 5.0;
    for (Dtype dtype = DTYPE_FP8; dtype <= DTYPE_NVFP4; dtype++) {
        op.stored_operands = false;
        assert_near(cost_s(profile, &op, PROFILE_PASS_FORWARD, dtype),
                    2.0 * product + 5.0 * 1280.0 * 8192.0 / FIXTURE_MEMORY, 1e-12);
        /* 1280 x 8192 tiles of 128 x 128 in 100 multiprocessors: 6.4 and 1 waves. */
        const double input_gradient = cost_s(profile, &op, PROFILE_PASS_BACKWARD_INPUT, dtype);
        const double weight_gradient = cost_s(profile, &op, PROFILE_PASS_BACKWARD_WEIGHT, dtype);
        assert_near(input_gradient - weight_gradient, 5.0 * 1280.0 * 1280.0 / FIXTURE_MEMORY, 1e-9);
        assert_near(cost_s(profile, &op, PROFILE_PASS_BACKWARD, dtype),
                    input_gradient + weight_gradient, 1e-12);
    }
    op.stored_operands = false;
    op.quantise_bytes = 10.0;
    assert_near(cost_s(profile, &op, PROFILE_PASS_FORWARD, DTYPE_FP8),
                2.0 * product + 10.0 * 1280.0 * 8192.0 / FIXTURE_MEMORY, 1e-12);
    /* Scales applied afterwards: to m k numbers of the input's gradient, to n k of the weight's. */
    op.rescale_bytes = 0.0;
    const double input = cost_s(profile, &op, PROFILE_PASS_BACKWARD_INPUT, DTYPE_FP8);
    const double weight = cost_s(profile, &op, PROFILE_PASS_BACKWARD_WEIGHT, DTYPE_FP8);
    const double both = cost_s(profile, &op, PROFILE_PASS_BACKWARD, DTYPE_FP8);
    const double forward = cost_s(profile, &op, PROFILE_PASS_FORWARD, DTYPE_FP8);
    const double rescale = 4.0 * 1280.0 * 8192.0 / FIXTURE_MEMORY;
    op.rescale_bytes = 4.0;
    assert_near(cost_s(profile, &op, PROFILE_PASS_BACKWARD_INPUT, DTYPE_FP8), input + rescale,
                1e-12);
    assert_near(cost_s(profile, &op, PROFILE_PASS_BACKWARD_WEIGHT, DTYPE_FP8), weight + rescale,
                1e-12);
    assert_near(cost_s(profile, &op, PROFILE_PASS_BACKWARD, DTYPE_FP8), both + 2.0 * rescale,
                1e-12);
    assert_near(cost_s(profile, &op, PROFILE_PASS_FORWARD, DTYPE_FP8), forward, 1e-12);
    op.stored_operands = true;
    op.quantised_forward = 0.0;
    assert_near(cost_s(profile, &op, PROFILE_PASS_FORWARD, DTYPE_FP8), product, 1e-12);
}

/* A sequence of 2048 through a layer of @moe, which becomes GPT with 4 experts, over 2 ranks. */
static ProfileQuery
query_of_experts(ModelArch *moe)
{
    ProfileQuery query = query_of(1, 2048, 0, 1);

    *moe = arch;
    moe->experts = (ModelExperts){.n_experts = 4, .top_k = 2, .ffn_hidden = 8192};
    query.arch = moe;
    query.shape.ep = 2;
    query.groups[MODEL_GROUP_EP] = (ProfileGroup){.stride = 1, .n = 2};
    return query;
}

/*
 * A layer of GPT with 4 experts over 2 ranks: its two all-to-alls each way hide behind computing at
 * the price of interference_fraction of their time.  Graphs take the host's time away: that of the
 * router's kernels, of attention's too, of all.
 */
static void
test_experts_hide_and_graphs_hold(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch moe;
    ProfileQuery query = query_of_experts(&moe);

    profile->parameters.interference_fraction = 0.25;
    profile->parameters.host_kernel_s = 1e-6;
    const ProfileCost plain = profile_cost_part(profile, &query, PROFILE_PASS_FORWARD);
    /* 2 (1 us + half of 2048 2 2048 2 bytes at 100 GB/s) */
    const double exchanges = 2.0 * (1e-6 + 2048.0 * 2048.0 * 2.0 / 100e9);
    assert_near(plain.part_s[PROFILE_PART_EP], exchanges, 1e-9);
    query.overlap_ep = true;
    const ProfileCost merged = profile_cost_part(profile, &query, PROFILE_PASS_FORWARD);
    g_assert_cmpfloat_with_epsilon(merged.part_s[PROFILE_PART_EP], 0.0, 1e-15);
    assert_near(merged.part_s[PROFILE_PART_COMPUTE],
                plain.part_s[PROFILE_PART_COMPUTE] + 0.25 * exchanges, 1e-9);
    /* Five parts with two calls each. */
    assert_near(merged.host_s - plain.host_s, 10e-6, 1e-9);
    /* The framework's calls: two norms, 3 dense products, attention's 4, two residuals, 8 that route,
     * GELU, two sorts, and one for each of the experts' products although 2 experts are here. */
    query.overlap_ep = false;
    query.host_kernel_s = 1e-3;
    assert_near(profile_cost_part(profile, &query, PROFILE_PASS_FORWARD).host_s - plain.host_s,
                24e-3, 1e-9);
    query.host_kernel_s = 0.0;

    double last = plain.host_s;
    for (ModelScope graphs = MODEL_SCOPE_ROUTER; graphs <= MODEL_SCOPE_LAYER; graphs++) {
        query.shape.graphs = (int)graphs;
        const double host = profile_cost_part(profile, &query, PROFILE_PASS_FORWARD).host_s;

        g_assert_cmpfloat(host, <, last);
        /* norm, router, and 8 kernels that route */
        if (graphs == MODEL_SCOPE_ROUTER)
            assert_near(last - host, 10e-6, 1e-9);
        last = host;
    }
    g_assert_cmpfloat(last, ==, 0.0);
}

/*
 * The same layer, whose host waits for the counts of rows before it launches the dispatch.  A host that is
 * slower than the device has launched the permutation last: when it ends, (2048 + 4096) rows of 2048 numbers
 * later, the host goes on.  A host that takes no time is there at once, and nothing waits backward, nor where
 * passes are merged, nor in a graph of the whole iteration.
 */
static void
test_hosts_wait_for_counts(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch moe;
    ProfileQuery query = query_of_experts(&moe);

    query.host_kernel_s = query.host_backward_kernel_s = 1.0;
    query.shape.host_counts = true;
    const double permute_s =
        (2048.0 + 4096.0) * 2048.0 * 2.0 / (profile->parameters.permute_fraction * FIXTURE_MEMORY);
    assert_near(profile_cost_part(profile, &query, PROFILE_PASS_FORWARD).host_s, 24.0 + permute_s,
                1e-12);
    /* Before the permutation of one copy a row the last are the 8 kernels that route: 12 bytes a score and 8
     * a choice, an eighth after the last launch. */
    query.shape.one_copy = true;
    query.shape.ep = 1;
    assert_near(profile_cost_part(profile, &query, PROFILE_PASS_FORWARD).host_s,
                24.0 + (12.0 * 2048.0 * 4.0 + 8.0 * 4096.0) / FIXTURE_MEMORY / 8.0, 1e-12);
    query.shape.one_copy = false;
    query.shape.ep = 2;
    const double backward = profile_cost_part(profile, &query, PROFILE_PASS_BACKWARD).host_s;
    query.shape.host_counts = false;
    g_assert_cmpfloat(profile_cost_part(profile, &query, PROFILE_PASS_BACKWARD).host_s, ==,
                      backward);
    query.shape.host_counts = true;
    query.overlap_ep = true;
    assert_near(profile_cost_part(profile, &query, PROFILE_PASS_FORWARD).host_s, 24.0 + 10.0,
                1e-12);
    query.overlap_ep = false;
    query.host_kernel_s = query.host_backward_kernel_s = 0.0;
    const ProfileCost cost = profile_cost_part(profile, &query, PROFILE_PASS_FORWARD);
    assert_near(cost.host_s, profile_cost_device_s(&cost), 1e-12);
    /* A quick one launches what follows the wait later than the device is done, and then is ahead of it: on one rank
     * that is the first of the four experts' products, which have 1 ns together; of one copy a row the permutation. */
    query.host_kernel_s = 1e-9;
    query.shape.ep = 1;
    for (int one_copy = 0; one_copy <= 1; one_copy++) {
        query.shape.one_copy = one_copy == 1;
        const ProfileCost quick = profile_cost_part(profile, &query, PROFILE_PASS_FORWARD);
        assert_near(quick.host_s - profile_cost_device_s(&quick), one_copy == 1 ? 1e-9 : 1e-9 / 4,
                    1e-5);
    }
    query.shape.one_copy = false;
    query.shape.ep = 2;
    query.host_kernel_s = 0.0;
    query.shape.graphs = (int)MODEL_SCOPE_ITERATION;
    g_assert_cmpfloat(profile_cost_part(profile, &query, PROFILE_PASS_FORWARD).host_s, ==, 0.0);
    query.shape.graphs = 0;
    query.shape.host_counts = false;
    /* Two products of two experts each, in each pass, where operands are quantised. */
    query.host_expert_s = 1.0;
    g_assert_cmpfloat(profile_cost_part(profile, &query, PROFILE_PASS_FORWARD).host_s, ==, 0.0);
    query.shape.dtype = DTYPE_FP8;
    assert_near(profile_cost_part(profile, &query, PROFILE_PASS_FORWARD).host_s, 4.0, 1e-12);
    assert_near(profile_cost_part(profile, &query, PROFILE_PASS_BACKWARD).host_s, 4.0, 1e-12);
    query.shape.graphs = (int)MODEL_SCOPE_ITERATION;
    g_assert_cmpfloat(profile_cost_part(profile, &query, PROFILE_PASS_FORWARD).host_s, ==, 0.0);
}

/*
 * The head over 3200 tokens of 2048, 51200 words: 2 3200 2048 51200 operations (whole waves) each
 * for logits and, backward, two gradients; the loss moves 2 + 36 and 2 + 12 bytes per logit; the
 * final norm less than half a percent.  The embedding: three passes over its result at most (the
 * words' rows, the positions', the sum).
 */
static void
test_ends(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ProfileQuery query = query_of(1, 3200, 0, 1);
    const double logits = 3200.0 * 51200.0, product_s = 2.0 * logits * 2048.0 / FIXTURE_FLOPS;
    double forward, backward;

    query.part = MODEL_PART_HEAD;
    forward = part_s(profile, &query, PROFILE_PASS_FORWARD);
    backward = part_s(profile, &query, PROFILE_PASS_BACKWARD);
    assert_near(forward, product_s + 38.0 * logits / FIXTURE_MEMORY, 5e-3);
    assert_near(backward, 2.0 * product_s + 14.0 * logits / FIXTURE_MEMORY, 5e-3);
    profile->parameters.loss_fraction = 0.5;
    assert_near(part_s(profile, &query, PROFILE_PASS_FORWARD) - forward,
                38.0 * logits / FIXTURE_MEMORY, 1e-9);
    assert_near(part_s(profile, &query, PROFILE_PASS_BACKWARD) - backward,
                14.0 * logits / FIXTURE_MEMORY, 1e-9);
    query.part = MODEL_PART_EMBEDDING;
    g_assert_cmpfloat(part_s(profile, &query, PROFILE_PASS_FORWARD), >=,
                      2.0 * 2.0 * 3200.0 * 2048.0 / FIXTURE_MEMORY);
    g_assert_cmpfloat(part_s(profile, &query, PROFILE_PASS_FORWARD), <=,
                      8.0 * 2.0 * 3200.0 * 2048.0 / FIXTURE_MEMORY);
}

/* --- what is split --- */

/* Gathers and scatters of sequence parallelism are the halves of the all-reduces. */
static void
test_sequence_parallelism_moves_the_same(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ProfileQuery without = query_of(2, 1024, 0, 8), with = without;

    with.shape.sequence_parallel = true;
    for (int pass = PROFILE_PASS_FORWARD; pass <= PROFILE_PASS_BACKWARD; pass++) {
        ProfileCost a = profile_cost_part(profile, &without, (ProfilePass)pass);
        ProfileCost b = profile_cost_part(profile, &with, (ProfilePass)pass);
        const double all_reduces = 2.0 * (2.0 * 7.0 / 8.0 * 8388608.0 / 100e9 + 14e-6);
        /* Backward gathers the column-parallel products' inputs again for their weights. */
        const double gathers = pass == PROFILE_PASS_FORWARD ? 0.0 : 0.5 * all_reduces;

        assert_near(a.part_s[PROFILE_PART_TP], all_reduces, 1e-12);
        assert_near(b.part_s[PROFILE_PART_TP], all_reduces + gathers, 1e-12);
    }
}

/* K and V go round behind the attention of the three shares of four that arrive meanwhile. */
static void
test_ring_hides_behind_attention(void)
{
    g_autoptr(Profile) profile = fixture_profile();

    profile->parameters.interference_fraction = 0.25;
    for (int64_t tokens = 256; tokens <= 65536; tokens *= 16) {
        ProfileQuery query = query_of(1, tokens, 0, 1);
        ModelOp ops[MODEL_MAX_OPS];
        double ring = 0.0, attention = 0.0, compute = 0.0, hidden;
        ProfileCost cost;
        size_t n;

        query.shape.flash_attention = true;
        query.shape.cp = 4;
        query.groups[MODEL_GROUP_CP] = (ProfileGroup){.stride = 1, .n = 4};
        n = model_ops(&arch, MODEL_PART_LAYER, 0, &query.shape, ops);
        for (size_t i = 0; i < n; i++) {
            ProfileCost one = profile_cost_op(profile, device_of(profile), &ops[i],
                                              PROFILE_PASS_FORWARD, DTYPE_FP16, query.groups);

            compute += one.part_s[PROFILE_PART_COMPUTE];
            ring += one.part_s[PROFILE_PART_CP];
            attention += ops[i].kind == MODEL_OP_ATTENTION ? one.part_s[PROFILE_PART_COMPUTE] : 0.0;
        }
        hidden = MIN(ring, 0.75 * attention);
        cost = profile_cost_part(profile, &query, PROFILE_PASS_FORWARD);
        g_assert_cmpfloat(ring, >, 0.0);
        g_assert_cmpfloat_with_epsilon(cost.part_s[PROFILE_PART_CP], ring - hidden, 1e-12 * ring);
        assert_near(cost.part_s[PROFILE_PART_COMPUTE], compute + 0.25 * hidden, 1e-12);
        /* K and V, 2 [tokens, 2048] of 2 bytes: 3 steps of a quarter at 100 GB/s. */
        assert_near(ring, 0.75 * 8192.0 * (double)tokens / 100e9 + 3e-6, 1e-9);
    }
}

/* Gathered K and V are waited for, and so are the copies around the gathering: at the rate of
 * memory, or of the copies that were measured. */
static void
test_gathering_does_not_hide(void)
{
    const int64_t bytes = INT64_C(4096) * 2 * 2048 * 2;
    const ProfileGroup group = {.stride = 1, .n = 4};
    const ProfileMeasurement copy = {
        .op = PROFILE_OP_COPY_D2D, .bytes = bytes / 4, .median_s = 1e-3};
    g_autoptr(Profile) profile = fixture_profile();
    ProfileQuery query = query_of(1, 4096, 0, 1);

    profile->parameters.interference_fraction = 0.25;
    query.shape.flash_attention = query.shape.gathered_kv = true;
    query.shape.cp = 4;
    query.groups[MODEL_GROUP_CP] = group;
    const double gather = profile_cost_collective_s(profile, MODEL_COMM_ALL_GATHER, bytes, &group);
    const double scatter =
        profile_cost_collective_s(profile, MODEL_COMM_REDUCE_SCATTER, bytes, &group);
    /* Read and written: a quarter and all; backward 5.5 times all besides, cost-model.md 3.1. */
    for (int measured = 0; measured < 2; measured++) {
        const double once = measured ? 4e-3 : 2.0 * (double)bytes / FIXTURE_MEMORY;
        const ProfileCost forward = profile_cost_part(profile, &query, PROFILE_PASS_FORWARD);
        const ProfileCost backward = profile_cost_part(profile, &query, PROFILE_PASS_BACKWARD);
        const ProfileCost weight = profile_cost_part(profile, &query, PROFILE_PASS_BACKWARD_WEIGHT);

        assert_near(forward.part_s[PROFILE_PART_CP], gather + 1.25 * once, 1e-9);
        assert_near(backward.part_s[PROFILE_PART_CP], gather + scatter + 3.125 * once, 1e-9);
        g_assert_cmpfloat(weight.part_s[PROFILE_PART_CP], ==, 0.0);
        profile_add(profile, &copy);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
#define ADD(path, function) g_test_add_func("/profiles/cost_kinds/" path, function)
    ADD("unfused-attention", test_unfused_attention);
    ADD("long-products-are-cut-in-k", test_long_products_are_cut_in_k);
    ADD("formats", test_formats);
    ADD("a-tile-ends-as-slowly-in-any-format", test_a_tile_ends_as_slowly_in_any_format);
    ADD("quantised-operands", test_quantised_operands);
    ADD("experts-hide-and-graphs-hold", test_experts_hide_and_graphs_hold);
    ADD("hosts-wait-for-counts", test_hosts_wait_for_counts);
    ADD("ends", test_ends);
    ADD("sequence-parallelism-moves-the-same", test_sequence_parallelism_moves_the_same);
    ADD("ring-hides-behind-attention", test_ring_hides_behind_attention);
    ADD("gathering-does-not-hide", test_gathering_does_not_hide);
#undef ADD
    return g_test_run();
}
