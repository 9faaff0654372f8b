/* Tests of ops in profiles/cost/cost.h: roofline, quantisation, host. */
#include "profiles/cost/cost.h"

#include "tests/profiles/layer.h"

static ModelOp
gemm(int64_t count, int64_t m, int64_t n, int64_t k)
{
    return (ModelOp){
        .kind = MODEL_OP_GEMM,
        .count = count,
        .m = m,
        .n = n,
        .k = k,
        .forward_flops = 2.0 * (double)count * (double)m * (double)n * (double)k,
        .backward_flops = 4.0 * (double)count * (double)m * (double)n * (double)k,
        .weight_bytes = 2 * count * n * k,
        .forward_bytes = 2 * count * (m * k + m * n),
        .backward_bytes = 4 * count * (m * k + m * n),
        .n_kernels_forward = 1,
        .n_kernels_backward = 2,
    };
}

/* 1280 x 1280 is one wave of 100 tiles of 128 x 128: every multiprocessor at its peak. */
static void
test_full_wave_runs_at_peak(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelOp op = gemm(1, 1280, 1280, 8192);

    assert_near(op_s(profile, &op, PROFILE_PASS_FORWARD), op.forward_flops / FIXTURE_FLOPS, 1e-12);
    profile->parameters.gemm_fraction = 0.5;
    assert_near(op_s(profile, &op, PROFILE_PASS_FORWARD), 2.0 * op.forward_flops / FIXTURE_FLOPS,
                1e-12);
    /* As many steps of k again. */
    profile->parameters.gemm_k_half = 8192;
    assert_near(op_s(profile, &op, PROFILE_PASS_FORWARD), 4.0 * op.forward_flops / FIXTURE_FLOPS,
                1e-12);
}

/* Kernels of an exchange count as communication of its group; the same kernels beside it do not. */
static void
test_kernels_of_an_exchange_count_as_it(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelOp op = {.kind = MODEL_OP_MEMORY,
                  .memory_kind = MODEL_MEMORY_PERMUTE,
                  .group = MODEL_GROUP_EP,
                  .count = 1,
                  .forward_bytes = 1000 * 1000 * 1000};
    const ModelDevice *device = model_cluster_device(profile->cluster, 0);

    for (int in = 0; in < 2; in++) {
        op.in_exchange = in == 1;
        const ProfileCost cost =
            profile_cost_op(profile, device, &op, PROFILE_PASS_FORWARD, DTYPE_BF16, NULL);
        const double expected_s =
            1e9 / (profile->parameters.permute_fraction * device->memory_bytes_per_s);
        assert_near(cost.part_s[in == 1 ? PROFILE_PART_EP : PROFILE_PART_COMPUTE], expected_s,
                    1e-12);
        assert_near(profile_cost_device_s(&cost), expected_s, 1e-12);
    }
}

/* 110 tiles on 100 multiprocessors: 1.1 waves, and of the 0.9 that are idle the stated share. */
static void
test_last_wave_is_paid_in_part(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelOp wave = gemm(1, 1280, 1280, 8192), more = gemm(1, 1280, 1408, 8192);
    double one;

    /* No part of k is worth a tile of its own. */
    profile->parameters.gemm_k_half = 819200.0;
    one = op_s(profile, &wave, PROFILE_PASS_FORWARD);
    /* Half tiles at 0.9 of the rate would do: 220 in 2.2 waves of half the work. */
    profile->parameters.gemm_tail_fraction = 0.5;
    assert_near(op_s(profile, &more, PROFILE_PASS_FORWARD) / one,
                MIN(1.1 + 0.5 * 0.9, (2.2 + 0.5 * 0.8) / 2.0 / 0.9), 1e-12);
    profile->parameters.gemm_tail_fraction = 0.0;
    assert_near(op_s(profile, &more, PROFILE_PASS_FORWARD) / one, 1.1, 1e-12);
    assert_near(op_s(profile, &wave, PROFILE_PASS_FORWARD), one, 1e-12);
}

/* fp16 rows of 1280 elements begin at multiples of 16 bytes, of 1284 at 8, of 1282 at 4, of 1281 at
 * 2; whether of the result or of what is multiplied. */
static void
test_rows_out_of_line_are_slow(void)
{
    static const struct {
        int64_t width;
        double rate;
    } cases[] = {{1280, 1.0}, {1272, 1.0}, {1276, 0.5}, {1274, 0.25}, {1273, 0.25}};
    g_autoptr(Profile) profile = fixture_profile();
    double wide[2], in_line[2];

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        ModelOp to = gemm(1, 1280, cases[i].width, 8192), from = gemm(1, 8192, 1280, 1280);

        from.k = cases[i].width;
        for (int backward = 0; backward < 2; backward++) {
            const ProfilePass pass = backward ? PROFILE_PASS_BACKWARD : PROFILE_PASS_FORWARD;

            profile->parameters.gemm_unaligned_fraction = 1.0;
            in_line[0] = op_s(profile, &to, pass);
            in_line[1] = op_s(profile, &from, pass);
            profile->parameters.gemm_unaligned_fraction = 0.25;
            wide[0] = op_s(profile, &to, pass);
            wide[1] = op_s(profile, &from, pass);
            assert_near(wide[0], in_line[0] / cases[i].rate, 1e-12);
            assert_near(wide[1], in_line[1] / cases[i].rate, 1e-12);
        }
    }
}

/* A weight gradient that is added to a sum pays the end of a tile twice: k + 2 k_half steps. */
static void
test_sums_in_memory_end_tiles_twice(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ProfileQuery query = query_of(4, 2048, 0, 1);
    double fused, plain;

    profile->parameters.gemm_k_half = 8192.0;
    query.accumulate_in_product = true;
    plain = part_s(profile, &query, PROFILE_PASS_BACKWARD_WEIGHT);
    query.accumulate_bytes_per_weight = 1e-6;
    fused = part_s(profile, &query, PROFILE_PASS_BACKWARD_WEIGHT);
    /* k is the 4 * 2048 tokens: (k + 2 k) / (k + k) = 1.5. */
    assert_near(fused, 1.5 * plain, 1e-3);
}

/* Loss and permutation reach shares of their own. */
static void
test_kinds_of_memory_bound_ops(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelOp op = {.kind = MODEL_OP_MEMORY, .forward_bytes = 1000000, .n_kernels_forward = 1};
    const double one = op_s(profile, &op, PROFILE_PASS_FORWARD);

    profile->parameters.loss_fraction = 0.5;
    profile->parameters.permute_fraction = 0.25;
    assert_near(op_s(profile, &op, PROFILE_PASS_FORWARD), one, 1e-12);
    op.memory_kind = MODEL_MEMORY_LOSS;
    assert_near(op_s(profile, &op, PROFILE_PASS_FORWARD), 2.0 * one, 1e-12);
    op.memory_kind = MODEL_MEMORY_PERMUTE;
    assert_near(op_s(profile, &op, PROFILE_PASS_FORWARD), 4.0 * one, 1e-12);
}

/* Heads come and go by two all-to-alls each way, of which nothing is hidden. */
static void
test_exchanged_heads_are_waited_for(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ProfileQuery query = query_of(1, 4096, 0, 1);
    ProfileGroup group = {.stride = 1, .n = 4};
    double expected;

    query.shape.flash_attention = query.shape.all_to_all = true;
    query.shape.cp = 4;
    query.groups[MODEL_GROUP_CP] = group;
    expected =
        profile_cost_collective_s(profile, MODEL_COMM_ALL_TO_ALL, 1024 * 3 * 2048 * 2, &group) +
        profile_cost_collective_s(profile, MODEL_COMM_ALL_TO_ALL, 1024 * 2048 * 2, &group);
    g_assert_cmpfloat(expected, >, 0.0);
    for (int backward = 0; backward < 2; backward++) {
        ProfileCost cost = profile_cost_part(
            profile, &query, backward ? PROFILE_PASS_BACKWARD : PROFILE_PASS_FORWARD);

        assert_near(cost.part_s[PROFILE_PART_CP], expected, 1e-12);
    }
}

/* A collective of n ranks waits for n - 1 other hosts. */
static void
test_collectives_wait_for_the_slowest_host(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    const ModelOp op = {.kind = MODEL_OP_COLLECTIVE,
                        .group = MODEL_GROUP_TP,
                        .forward_comm = MODEL_COMM_ALL_REDUCE,
                        .comm_bytes = 1024,
                        .n_kernels_forward = 1};
    const ProfileGroup groups[MODEL_GROUP_N] = {{.stride = 1, .n = 8}};
    ProfileCost cost;

    profile->parameters.host_collective_s = 1e-4;
    profile->parameters.host_skew_s = 1e-5;
    cost =
        profile_cost_op(profile, device_of(profile), &op, PROFILE_PASS_FORWARD, DTYPE_FP16, groups);
    assert_near(cost.host_s, 1e-4 + 7e-5, 1e-12);
}

/* One row more than whole tiles pays for another row of tiles, at least of the smallest. */
static void
test_tiles_are_computed_whole(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelOp whole = gemm(1, 1280, 1280, 8192), more = gemm(1, 1281, 1280, 8192);
    double ratio =
        op_s(profile, &more, PROFILE_PASS_FORWARD) / op_s(profile, &whole, PROFILE_PASS_FORWARD);

    g_assert_cmpfloat(ratio, >, 1.05);
    g_assert_cmpfloat(ratio, <, 2.01); /* never more than a second wave */
    /* Over many waves: three rows of half tiles at 0.9 of the rate instead of one of whole ones. */
    whole = gemm(1, 128, 128000, 8192);
    more = gemm(1, 129, 128000, 8192);
    assert_near(op_s(profile, &more, PROFILE_PASS_FORWARD) /
                    op_s(profile, &whole, PROFILE_PASS_FORWARD),
                3.0 * 0.5 / 0.9, 1e-9);
}

/* One row: 2 n k bytes of weights against 2 n k operations. */
static void
test_thin_product_is_bound_by_its_weights(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelOp op = gemm(1, 1, 8192, 8192);
    double bytes = 2.0 * (8192.0 * 8192.0 + 8192.0 + 8192.0);

    assert_near(op_s(profile, &op, PROFILE_PASS_FORWARD), bytes / FIXTURE_MEMORY, 1e-12);
    profile->parameters.gemm_memory_fraction = 0.5;
    assert_near(op_s(profile, &op, PROFILE_PASS_FORWARD), 2.0 * bytes / FIXTURE_MEMORY, 1e-12);
}

static void
test_never_faster_than_the_roofline(void)
{
    g_autoptr(Profile) profile = fixture_profile();

    for (int64_t m = 1; m < 40000; m = m * 3 + 1)
        for (int64_t n = 8; n < 40000; n = n * 5 + 3)
            for (int64_t k = 8; k < 40000; k *= 7) {
                ModelOp op = gemm(1, m, n, k);
                double bytes = (double)(op.forward_bytes + op.weight_bytes);
                double t = op_s(profile, &op, PROFILE_PASS_FORWARD);

                g_assert_cmpfloat(t, >=, op.forward_flops / FIXTURE_FLOPS * (1 - 1e-12));
                g_assert_cmpfloat(t, >=, bytes / FIXTURE_MEMORY * (1 - 1e-12));
            }
}

/* But for the step from odd rows to even ones, rows-out-of-line-are-slow. */
static void
test_longer_sides_take_no_less(void)
{
    g_autoptr(Profile) profile = profile_load("dgx-a100-80g", NULL);
    double last[3] = {0};

    profile->parameters.gemm_unaligned_fraction = 1.0;
    for (int64_t size = 16; size < 20000; size += 307) {
        ModelOp ops[3] = {gemm(1, size, 3072, 1024), gemm(1, 3072, size, 1024),
                          gemm(1, 3072, 1024, size)};

        for (size_t i = 0; i < 3; i++) {
            double t = op_s(profile, &ops[i], PROFILE_PASS_FORWARD);

            g_assert_cmpfloat(t, >=, last[i]);
            last[i] = t;
        }
    }
}

/* dA[m,k] = dC[m,n] B', dB[k,n] = A' dC: the shapes of two forward products. */
static void
test_backward_is_two_products(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelOp op = gemm(1, 1280, 1000, 5120);
    ModelOp input = gemm(1, 1280, 5120, 1000), weight = gemm(1, 5120, 1000, 1280);
    double i = op_s(profile, &input, PROFILE_PASS_FORWARD);
    double w = op_s(profile, &weight, PROFILE_PASS_FORWARD);

    assert_near(op_s(profile, &op, PROFILE_PASS_BACKWARD_INPUT), i, 1e-12);
    assert_near(op_s(profile, &op, PROFILE_PASS_BACKWARD_WEIGHT), w, 1e-12);
    assert_near(op_s(profile, &op, PROFILE_PASS_BACKWARD), i + w, 1e-12);
}

static void
test_grouped_products_have_their_own_fraction(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelOp one = gemm(1, 1280, 1280, 8192), four = gemm(4, 1280, 1280, 8192);
    double alone = op_s(profile, &one, PROFILE_PASS_FORWARD);

    profile->parameters.grouped_fraction = 0.5;
    assert_near(op_s(profile, &one, PROFILE_PASS_FORWARD), alone, 1e-12);
    assert_near(op_s(profile, &four, PROFILE_PASS_FORWARD), 8.0 * alone, 1e-12);
    /* Quantised ones have another. */
    const ModelDevice *device = model_cluster_device(profile->cluster, 0);
    ProfileCost cost =
        profile_cost_op(profile, device, &one, PROFILE_PASS_FORWARD, DTYPE_FP8, NULL);
    const double quantised = profile_cost_device_s(&cost);
    profile->parameters.grouped_fp8_fraction = 0.25;
    cost = profile_cost_op(profile, device, &four, PROFILE_PASS_FORWARD, DTYPE_FP8, NULL);
    assert_near(profile_cost_device_s(&cost), 16.0 * quantised, 1e-12);
    four.one_kernel = true; /* it finds the sizes of all products in memory */
    assert_near(op_s(profile, &four, PROFILE_PASS_FORWARD), 4.0 * alone, 1e-12);
}

/* The fixture's 16 devices: the largest of 16 normal numbers is about 1.60085, of 8 about 1.23929.
 * Memory does not follow the clock, and a node's eight devices are those of the shares. */
static void
test_job_waits_for_its_slowest_device(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    const ModelOp product = gemm(1, 1280, 1280, 8192);
    const ModelOp memory = {
        .kind = MODEL_OP_MEMORY, .forward_bytes = 1000000, .n_kernels_forward = 1};
    const double alone = op_s(profile, &product, PROFILE_PASS_FORWARD);
    const double moved = op_s(profile, &memory, PROFILE_PASS_FORWARD);

    profile->parameters.device_spread = 0.1;
    assert_near(op_s(profile, &product, PROFILE_PASS_FORWARD), alone * (1.0 + 0.1 * 0.36159), 1e-5);
    assert_near(op_s(profile, &memory, PROFILE_PASS_FORWARD), moved, 1e-12);
    g_autoptr(ModelCluster) node = model_cluster_resized(profile->cluster, 8);
    ModelCluster *whole = profile->cluster;
    profile->cluster = node;
    assert_near(op_s(profile, &product, PROFILE_PASS_FORWARD), alone, 1e-12);
    profile->cluster = whole;
}

static void
test_memory_bound_op(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelOp op = {
        .kind = MODEL_OP_MEMORY,
        .forward_bytes = 1000000000,
        .backward_bytes = 1500000000,
        .n_kernels_forward = 2,
        .n_kernels_backward = 3,
    };

    profile->parameters.memory_fraction = 0.5;
    profile->parameters.memory_kernel_s = 1e-6;
    assert_near(op_s(profile, &op, PROFILE_PASS_FORWARD), 2e-3 + 2e-6, 1e-12);
    assert_near(op_s(profile, &op, PROFILE_PASS_BACKWARD), 3e-3 + 3e-6, 1e-12);
    assert_near(op_s(profile, &op, PROFILE_PASS_BACKWARD_INPUT), 3e-3 + 3e-6, 1e-12);
    g_assert_cmpfloat(op_s(profile, &op, PROFILE_PASS_BACKWARD_WEIGHT), ==, 0.0);
    op.memory_kind = MODEL_MEMORY_WORDS; /* needs no ramp */
    profile->parameters.kernel_s = 1e-7;
    assert_near(op_s(profile, &op, PROFILE_PASS_FORWARD), 2e-3 + 2e-7, 1e-12);
}

/* Of unfused attention's 5 kernels forward 2 are products, of its 8 backward 4. */
static void
test_constants_by_kind_of_kernel(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelOp op = {
        .kind = MODEL_OP_ATTENTION,
        .count = 1,
        .m = 1,
        .n = 1,
        .k = 1,
        .n_kernels_forward = 5,
        .n_kernels_backward = 8,
    };
    double forward = op_s(profile, &op, PROFILE_PASS_FORWARD);
    double backward = op_s(profile, &op, PROFILE_PASS_BACKWARD);

    profile->parameters.kernel_s = 1e-6;
    profile->parameters.memory_kernel_s = 100e-6;
    assert_near(op_s(profile, &op, PROFILE_PASS_FORWARD), forward + 302e-6, 1e-9);
    assert_near(op_s(profile, &op, PROFILE_PASS_BACKWARD), backward + 404e-6, 1e-9);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
#define ADD(path, function) g_test_add_func("/profiles/cost/" path, function)
    ADD("full-wave-runs-at-peak", test_full_wave_runs_at_peak);
    ADD("last-wave-is-paid-in-part", test_last_wave_is_paid_in_part);
    ADD("sums-in-memory-end-tiles-twice", test_sums_in_memory_end_tiles_twice);
    ADD("kinds-of-memory-bound-ops", test_kinds_of_memory_bound_ops);
    ADD("exchanged-heads-are-waited-for", test_exchanged_heads_are_waited_for);
    ADD("rows-out-of-line-are-slow", test_rows_out_of_line_are_slow);
    ADD("collectives-wait-for-the-slowest-host", test_collectives_wait_for_the_slowest_host);
    ADD("kernels-of-an-exchange-count-as-it", test_kernels_of_an_exchange_count_as_it);
    ADD("tiles-are-computed-whole", test_tiles_are_computed_whole);
    ADD("thin-product-is-bound-by-its-weights", test_thin_product_is_bound_by_its_weights);
    ADD("never-faster-than-the-roofline", test_never_faster_than_the_roofline);
    ADD("longer-sides-take-no-less", test_longer_sides_take_no_less);
    ADD("backward-is-two-products", test_backward_is_two_products);
    ADD("job-waits-for-its-slowest-device", test_job_waits_for_its_slowest_device);
    ADD("grouped-products-have-their-own-fraction", test_grouped_products_have_their_own_fraction);
    ADD("memory-bound-op", test_memory_bound_op);
    ADD("constants-by-kind-of-kernel", test_constants_by_kind_of_kernel);
    return g_test_run();
}
