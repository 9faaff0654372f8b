/* Tests of profiles/workload/physical.h: each of the three terms beside a number from its formula. */
#include "profiles/workload/physical.h"

#include "tests/profiles/workload_case.h"

static void
assert_bound(const ModelArch *arch, const ModelCluster *cluster, int64_t n, int64_t sequences,
             int64_t tokens, double expected)
{
    const double bound = workload_physical_bound_s(arch, cluster, n, sequences, tokens, DTYPE_FP16);

    g_assert_cmpfloat_with_epsilon(bound / expected, 1.0, 1e-9);
}

/* 72 B s l h^2 (1 + s / (6 h) + V / (12 l h))  [2104.04473, without recompute], of whose scores
 * (s + 1) / (2 s) are needed. */
static void
test_flops_at_the_peak(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    const ModelArch arch = gpt(24, 51200);
    const double products = 72.0 * 32 * 512 * 24 * 1024.0 * 1024.0;
    const double scores = products * 512 / (6.0 * 1024) * 513 / 1024;
    const double logits = products * 51200 / (12.0 * 24 * 1024);

    for (int64_t n = 1; n <= 16; n *= 2)
        assert_bound(&arch, profile->cluster, n, 32, 512,
                     (products + scores + logits) / ((double)n * FIXTURE_FLOPS));
}

/* 356 837 376 weights of 2 bytes, read and written, less 50 MB and 100 times 512 KiB of caches:
 * 12 l h^2 + 13 l h + (V + 2048) h + 2 h. */
static void
test_weights_at_the_bandwidth(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    const ModelArch arch = gpt(24, 51200);
    ModelDevice *device = &g_array_index(profile->cluster->devices, ModelDevice, 0);

    device->l2_bytes = 50000000;
    assert_bound(&arch, profile->cluster, 1, 1, 1,
                 2.0 * (2.0 * 356837376 - 50e6 - 52428800.0) / FIXTURE_MEMORY);
}

/* Two numbers of one token over links of 1 B/s at both levels; or the weights without room, if these
 * are fewer; nothing where all fit. */
static void
test_tokens_or_weights_over_all_links(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    const ModelArch arch = gpt(24, 51200);
    ModelDevice *device = &g_array_index(profile->cluster->devices, ModelDevice, 0);
    const int64_t bytes = 2 * model_active_parameters(&arch);

    for (guint i = 0; i < 2; i++) {
        ModelLevel *level = &g_array_index(profile->cluster->levels, ModelLevel, i);
        level->bytes_per_s = 1.0;
        level->shared_bytes_per_s = 0.0;
    }
    device->memory_bytes = bytes / 2;
    assert_bound(&arch, profile->cluster, 16, 1, 1, 2.0 * 2.0 / (16 * 2.0));
    device->memory_bytes = bytes - 2;
    assert_bound(&arch, profile->cluster, 16, 1, 1, 2.0 / (16 * 2.0));
    device->memory_bytes = bytes;
    g_assert_cmpfloat(workload_physical_bound_s(&arch, profile->cluster, 16, 1, 1, DTYPE_FP16), <,
                      1e-5);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/physical/flops", test_flops_at_the_peak);
    g_test_add_func("/physical/weights", test_weights_at_the_bandwidth);
    g_test_add_func("/physical/network", test_tokens_or_weights_over_all_links);
    return g_test_run();
}
