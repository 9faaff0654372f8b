/* Tests of profiles/profile.h: loading, built-in clusters, JSON both ways, measured rows. */
#include "profiles/profile.h"
#include "schedule/stack.h"

#include <sched.h>

#include "tests/profiles/fixture.h"

static char *
to_json(const Profile *profile)
{
    g_autoptr(JsonWriter) writer = json_writer_new();

    profile_write(writer, NULL, profile);
    return json_writer_steal(writer, NULL);
}

/* docs/formats.md: the names that must exist. */
static const char *const names[] = {
    "a100-80g-4xhdr", "a100-pcie-80g", "dgx-a100-40g", "dgx-a100-80g", "dgx-b200",
    "dgx-h100",       "dgx-h200",      "gb200-nvl72",  "local-cpu",    "p3.16xlarge",
};

/* A new cluster is one data file, which must hold what these do. */
static void
test_every_builtin_loads_and_names_sources(void)
{
    g_autoptr(GPtrArray) builtin = profile_builtin_names();

    for (size_t i = 0; i < G_N_ELEMENTS(names); i++)
        g_assert_true(g_ptr_array_find_with_equal_func(builtin, names[i], g_str_equal, NULL));
    for (guint i = 0; i < builtin->len; i++) {
        const char *name = g_ptr_array_index(builtin, i);
        g_autoptr(GError) error = NULL;
        g_autoptr(Profile) profile = profile_load(name, &error);

        g_assert_no_error(error);
        g_assert_cmpstr(profile->name, ==, name);
        g_assert_cmpuint(profile->cluster->sources->len, >=, 1);
        g_assert_cmpint(model_cluster_n_devices(profile->cluster), >=, 1);
        g_assert_cmpuint(profile->measurements->len, ==, 0);
    }
}

/* Data sheets, as a second pair of eyes on the files. */
static void
test_data_sheets(void)
{
    static const struct {
        const char *name;
        Dtype dtype;
        double flops_per_s, memory_bytes_per_s, link_bytes_per_s, node_bytes_per_s;
        int64_t memory_gb, node_devices;
    } cases[] = {
        {"p3.16xlarge", DTYPE_FP16, 125e12, 900e9, 150e9, 3.125e9, 16, 8},
        {"dgx-a100-40g", DTYPE_BF16, 312e12, 1555e9, 300e9, 200e9, 40, 8},
        {"dgx-a100-80g", DTYPE_BF16, 312e12, 2039e9, 300e9, 200e9, 80, 8},
        {"a100-80g-4xhdr", DTYPE_BF16, 312e12, 2039e9, 300e9, 100e9, 80, 8},
        {"dgx-h100", DTYPE_FP8, 1978.9e12, 3350e9, 450e9, 400e9, 80, 8},
        {"dgx-h200", DTYPE_BF16, 989.4e12, 4800e9, 450e9, 400e9, 141, 8},
        {"dgx-b200", DTYPE_BF16, 2250e12, 8000e9, 900e9, 400e9, 180, 8},
        {"gb200-nvl72", DTYPE_FP8, 5000e12, 8000e9, 900e9, 3600e9, 186, 72},
        {"gb300-nvl72", DTYPE_NVFP4, 15000e12, 8000e9, 900e9, 7200e9, 279, 72},
        {"dgx-b300", DTYPE_NVFP4, 13500e12, 8000e9, 900e9, 800e9, 269, 8}, /* 2.1 * 1024 / 8 */
        {"h100-96g", DTYPE_BF16, 989.4e12, 2400e9, 450e9, 400e9, 96, 8},
        {"h20", DTYPE_FP8, 296e12, 4000e9, 450e9, 400e9, 96, 8},
        {"h800", DTYPE_BF16, 989.4e12, 3350e9, 200e9, 400e9, 80, 8},
        {"rtx-4090", DTYPE_FP8, 330.3e12, 1008e9, 32e9, 25e9, 24, 8},
        {"l40s", DTYPE_BF16, 362e12, 864e9, 32e9, 25e9, 48, 8},
        {"rtx-5060-ti", DTYPE_BF16, 47.4e12, 448e9, 32e9, 25e9, 16, 8},
        {"rtx-pro-6000", DTYPE_FP8, 1007.6e12, 1792e9, 64e9, 100e9, 96, 8},
        {"mi300x", DTYPE_BF16, 1307.4e12, 5300e9, 448e9, 400e9, 192, 8},
        {"mi325x", DTYPE_FP8, 2614.9e12, 6000e9, 448e9, 400e9, 256, 8},
        {"mi355x", DTYPE_BF16, 2516.6e12, 8000e9, 537.6e9, 400e9, 288, 8},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(Profile) profile = profile_load(cases[i].name, NULL);
        const ModelCluster *cluster = profile->cluster;
        const ModelDevice *device = model_cluster_device(cluster, 0);
        const GArray *levels = cluster->levels;
        const ModelLevel *outer = &g_array_index(levels, ModelLevel, levels->len - 1);
        const ModelLevel *inner = &g_array_index(levels, ModelLevel, levels->len - 2);

        g_assert_cmpfloat(device->flops_per_s[cases[i].dtype], ==, cases[i].flops_per_s);
        g_assert_cmpfloat(device->memory_bytes_per_s, ==, cases[i].memory_bytes_per_s);
        /* GB or GiB, as the maker counts. */
        g_assert_cmpint(device->memory_bytes, >=, cases[i].memory_gb * 1000000000);
        g_assert_cmpint(device->memory_bytes, <=, cases[i].memory_gb << 30);
        g_assert_cmpint(inner->group_devices, ==, cases[i].node_devices);
        g_assert_cmpfloat(inner->bytes_per_s, ==, cases[i].link_bytes_per_s);
        g_assert_cmpfloat(outer->shared_bytes_per_s, ==, cases[i].node_bytes_per_s);
    }
}

static void
test_local_cpu_has_the_cores_we_may_use(void)
{
    g_autoptr(Profile) profile = profile_load("local-cpu", NULL);
    cpu_set_t set;

    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        g_test_skip("this system does not tell the processors of a process");
        return;
    }
    g_assert_cmpint(model_cluster_n_devices(profile->cluster), ==, CPU_COUNT(&set));
}

static void
test_defaults_are_within_their_bounds(void)
{
    for (int i = 0; i < PROFILE_PARAMETERS_N; i++) {
        const ProfileParameterInfo *info = &profile_parameter_info[i];

        g_assert_cmpfloat(info->min, <=, info->value);
        g_assert_cmpfloat(info->value, <=, info->max);
        /* Calibration needs to know how far to look, and only then. */
        g_assert_true((info->fit == PROFILE_FIT_FIXED) == (info->spread == 0.0));
        g_assert_cmpfloat(info->spread, >=, 0.0);
    }
}

/* Row i of the table is the member of that name, and no other. */
static void
test_parameters_by_row_are_those_by_name(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ProfileParameters *p = &profile->parameters;

    for (int i = 0; i < PROFILE_PARAMETERS_N; i++)
        profile_parameter_set(p, i, i + 0.5);
    for (int i = 0; i < PROFILE_PARAMETERS_N; i++)
        g_assert_cmpfloat(profile_parameter(p, i), ==, i + 0.5);
    g_assert_cmpstr(profile_parameter_info[0].name, ==, "gemm_fraction");
    g_assert_cmpfloat(p->gemm_fraction, ==, 0.5);
    g_assert_cmpstr(profile_parameter_info[PROFILE_PARAMETERS_N - 1].name, ==,
                    "allocator_fraction");
    g_assert_cmpfloat(p->allocator_fraction, ==, PROFILE_PARAMETERS_N - 0.5);
}

static void
test_unknown_name_suggests_the_nearest(void)
{
    g_autoptr(GError) error = NULL;

    g_assert_null(profile_load("p3.16xlrage", &error));
    g_assert_error(error, G_FILE_ERROR, G_FILE_ERROR_NOENT);
    g_assert_nonnull(strstr(error->message, "did you mean \"p3.16xlarge\""));
}

static const ProfileMeasurement rows[] = {
    {.op = PROFILE_OP_LAYER,
     .pass = PROFILE_PASS_BACKWARD,
     .batch = 1,
     .tokens = 64,
     .context = 0,
     .tp = 1,
     .median_s = 3e-3,
     .p10_s = 2e-3,
     .p90_s = 4e-3,
     .queue_s = 5e-4,
     .cold_s = 6e-3,
     .warm_s = 1e-3},
    {.op = PROFILE_OP_LAYER,
     .pass = PROFILE_PASS_FORWARD,
     .batch = 1,
     .tokens = 64,
     .context = 64,
     .tp = 1,
     .median_s = 2e-3,
     .p10_s = 2e-3,
     .p90_s = 2e-3},
    {.op = PROFILE_OP_LAYER,
     .pass = PROFILE_PASS_FORWARD,
     .batch = 1,
     .tokens = 64,
     .context = 0,
     .tp = 1,
     .median_s = 1e-3,
     .p10_s = 1e-3,
     .p90_s = 1e-3},
    {.op = PROFILE_OP_OPTIMIZER,
     .n_elements = 1000,
     .median_s = 1e-6,
     .p10_s = 1e-6,
     .p90_s = 1e-6},
    {.op = PROFILE_OP_P2P,
     .bytes = 4096,
     .n_ranks = 2,
     .median_s = 1e-5,
     .p10_s = 1e-5,
     .p90_s = 1e-5},
    {.op = PROFILE_OP_ALL_REDUCE,
     .bytes = 4096,
     .n_ranks = 4,
     .median_s = 1e-5,
     .p10_s = 1e-5,
     .p90_s = 1e-5},
    {.op = PROFILE_OP_OVERHEAD, .median_s = 5e-6, .p10_s = 5e-6, .p90_s = 5e-6},
};

static Profile *
measured_profile(void)
{
    Profile *profile = fixture_profile();

    profile->measured_arch = model_arch_load("gpt-mini", NULL, NULL);
    profile->measured_on = g_strdup("a machine, a \"library\"");
    profile->measured_attention = g_strdup("wgmma");
    profile->measured_attention_why = g_strdup("it is faster");
    profile->measured_concurrency = 2;
    profile->measured_disturbed_fraction = 0.125;
    profile->parameter_sources[0] = g_strdup("fitted to \"a.csv\"");
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++)
        profile_add(profile, &rows[i]);
    return profile;
}

static void
test_round_trip_keeps_every_byte(void)
{
    g_autoptr(Profile) profile = measured_profile();
    g_autofree char *text = NULL, *again = NULL;
    g_autoptr(Profile) read = NULL;
    g_autoptr(GError) error = NULL;

    profile->parameters.gemm_k_half = 0.1; /* no short binary fraction */
    text = to_json(profile);
    read = fixture_parse(text, &error);
    g_assert_no_error(error);
    again = to_json(read);
    g_assert_cmpstr(text, ==, again);
    g_assert_cmpuint(read->measurements->len, ==, G_N_ELEMENTS(rows));
    g_assert_cmpint(memcmp(read->measurements->data, profile->measurements->data, sizeof rows), ==,
                    0);
    g_assert_cmpfloat(read->parameters.gemm_k_half, ==, 0.1);
    g_assert_cmpint(read->measured_concurrency, ==, 2);
    g_assert_cmpfloat(read->measured_disturbed_fraction, ==, 0.125);
    g_assert_cmpstr(read->measured_on, ==, profile->measured_on);
    g_assert_cmpstr(read->measured_attention, ==, "wgmma");
    g_assert_cmpstr(read->measured_attention_why, ==, "it is faster");
    g_assert_cmpstr(read->parameter_sources[0], ==, profile->parameter_sources[0]);
    g_assert_null(read->parameter_sources[1]);
}

static void
test_copy_is_deep(void)
{
    g_autoptr(Profile) profile = measured_profile();
    g_autofree char *text = to_json(profile);
    Profile *copy = profile_copy(profile);
    g_autofree char *copied = to_json(copy);

    g_assert_cmpstr(text, ==, copied);
    profile_add(copy, &(ProfileMeasurement){.op = PROFILE_OP_OPTIMIZER, .n_elements = 5});
    profile_free(copy);
    g_assert_cmpuint(profile->measurements->len, ==, G_N_ELEMENTS(rows));
}

/* By op, pass, tp, batch, tokens, context; a row with equal keys is replaced. */
static void
test_rows_stay_sorted_and_unique(void)
{
    g_autoptr(Profile) profile = measured_profile();
    const ProfileMeasurement *sorted =
        (const ProfileMeasurement *)(const void *)profile->measurements->data;
    ProfileMeasurement changed = rows[1];

    g_assert_cmpfloat(sorted[0].median_s, ==, 1e-3); /* forward, context 0 */
    g_assert_cmpfloat(sorted[1].median_s, ==, 2e-3); /* forward, context 64 */
    g_assert_cmpfloat(sorted[2].median_s, ==, 3e-3); /* backward */
    g_assert_cmpint(sorted[6].op, ==, PROFILE_OP_OVERHEAD);
    changed.median_s = 7e-3;
    profile_add(profile, &changed);
    g_assert_cmpuint(profile->measurements->len, ==, G_N_ELEMENTS(rows));
    g_assert_cmpfloat(g_array_index(profile->measurements, ProfileMeasurement, 1).median_s, ==,
                      7e-3);
}

static void
test_matches_the_layer_not_the_depth(void)
{
    g_autoptr(Profile) profile = measured_profile();
    g_autoptr(ModelArch) arch = model_arch_load("gpt-mini", NULL, NULL);

    arch->n_layers = 3;
    g_assert_true(profile_matches(profile, arch));
    arch->ffn_hidden++;
    g_assert_false(profile_matches(profile, arch));
}

#define WITH_COST(cost) FIXTURE_HEAD FIXTURE_CLUSTER ",\"cost\":{" cost "}}"
#define WITH_SOURCES(sources) FIXTURE_HEAD FIXTURE_CLUSTER ",\"cost_sources\":{" sources "}}"
#define WITH_BEFORE(members) FIXTURE_HEAD FIXTURE_CLUSTER ",\"cost_before\":[{" members "}]}"
#define WITH_ROWS(rows) FIXTURE_HEAD FIXTURE_CLUSTER ",\"measured\":[" rows "]}"
#define WITH_LEVELS(levels)                                                                        \
    FIXTURE_HEAD                                                                                   \
    "{\"name\":\"c\",\"devices\":[" FIXTURE_DEVICE "],"                                            \
    "\"nodes\":[{\"device\":\"D\",\"n_devices\":8,\"n_nodes\":2}],\"levels\":[" levels "]}}"
#define WITH_NODES(nodes)                                                                          \
    FIXTURE_HEAD "{\"name\":\"c\",\"devices\":[" FIXTURE_DEVICE "],\"nodes\":[" nodes "],"         \
                 "\"levels\":" FIXTURE_LEVELS "}}"
#define OVERHEAD "{\"op\":\"overhead\",\"median_s\":1e-6}"

/* Factors of later months count, each once; the newest stack has none of them. */
static void
test_stacks(void)
{
    static const char text[] = WITH_COST("\"fp8_fraction\":1.0");
    static const struct {
        const char *stack;
        double fp8_fraction;
    } stacks[] = {
        {"2025-07", 1.0},       {"2025-06", 0.9},       {"2025-02", 0.9},
        {"2025-01", 0.9 * 0.8}, {"2020-01", 0.9 * 0.8},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(stacks); i++) {
        g_autoptr(JsonDoc) doc = json_doc_parse("test.json", text, strlen(text), NULL);
        g_autoptr(Profile) profile = profile_read(doc, json_doc_root(doc, "degas-profile", 1));
        const ProfileStackFactor factors[] = {{.before = 2025 * 12 + 6, .factor = 0.9},
                                              {.before = 2025 * 12 + 1, .factor = 0.8}};
        int32_t stack;

        for (size_t j = 0; j < G_N_ELEMENTS(factors); j++) {
            ProfileStackFactor factor = factors[j];
            while (strcmp(profile_parameter_info[factor.parameter].name, "fp8_fraction") != 0)
                factor.parameter++;
            g_array_append_val(profile->stack_factors, factor);
        }
        g_assert_true(plan_stack_read(stacks[i].stack, &stack));
        profile_set_stack(profile, stack);
        g_assert_cmpfloat_with_epsilon(profile->parameters.fp8_fraction, stacks[i].fp8_fraction,
                                       1e-12);
        g_assert_cmpuint(profile->stack_factors->len, ==, 0);
        /* Again: nothing is left to count twice. */
        profile_set_stack(profile, stack);
        g_assert_cmpfloat_with_epsilon(profile->parameters.fp8_fraction, stacks[i].fp8_fraction,
                                       1e-12);
    }
}

static void
test_hostile_files(void)
{
    static const struct {
        const char *text, *expect;
    } cases[] = {
        {"", "test.json"},
        {"{\"format\":\"degas-plan\",\"version\":1}", "format"},
        {FIXTURE_HEAD "{}}", "$.cluster"},
        {WITH_COST("\"gemm_fraction\":0"), "$.cost.gemm_fraction"},
        {WITH_COST("\"gemm_fraction\":1.5"), "$.cost.gemm_fraction"},
        {WITH_COST("\"gemm_fraction\":NaN"), "test.json"},
        {WITH_COST("\"gemm_fractoin\":0.5"), "did you mean \"gemm_fraction\""},
        {WITH_COST("\"kernel_s\":-1e-6"), "$.cost.kernel_s"},
        {WITH_COST("\"kernel_s\":1e999"), "kernel_s"},
        {WITH_SOURCES("\"gemm_fractoin\":\"x\""), "did you mean \"gemm_fraction\""},
        {WITH_SOURCES("\"gemm_fraction\":0.5"), "$.cost_sources.gemm_fraction"},
        {WITH_BEFORE("\"stack\":\"2025-2\",\"parameter\":\"fp8_fraction\",\"factor\":0.9"),
         "$.cost_before[0].stack: expected a month"},
        {WITH_BEFORE("\"stack\":\"2025-02\",\"parameter\":\"fp8\",\"factor\":0.9"),
         "$.cost_before[0].parameter: expected a parameter"},
        {WITH_BEFORE("\"stack\":\"2025-02\",\"parameter\":\"fp8_fraction\",\"factor\":0"),
         "$.cost_before[0].factor"},
        {WITH_BEFORE("\"stack\":\"2025-02\",\"parameter\":\"fp8_fraction\""), "factor"},
        {WITH_ROWS("{\"op\":\"lair\",\"median_s\":1}"), "layer"},
        {WITH_ROWS("{\"op\":\"overhead\"}"), "median_s"},
        {WITH_ROWS("{\"op\":\"overhead\",\"median_s\":-1}"), "$.measured[0].median_s"},
        {WITH_ROWS("{\"op\":\"overhead\",\"median_s\":1,\"tokens\":8}"), "tokens"},
        {WITH_ROWS("{\"op\":\"overhead\",\"median_s\":1,\"p90_s\":0.5}"), "p10_s <= median_s"},
        {WITH_ROWS("{\"op\":\"p2p\",\"bytes\":-1,\"median_s\":1}"), "$.measured[0].bytes"},
        {WITH_ROWS("{\"op\":\"layer\",\"pass\":\"forward\",\"batch\":1,\"tokens\":8,"
                   "\"median_s\":1}"),
         "measured_model"},
        {FIXTURE_HEAD FIXTURE_CLUSTER
         ",\"measured_model\":{\"format\":\"degas-model\",\"version\":1,\"name\":\"m\","
         "\"family\":\"gpt\",\"n_layers\":2,\"hidden\":64,\"n_heads\":4,\"vocab\":64,"
         "\"max_seq_len\":64},\"measured\":[{\"op\":\"layer\",\"pass\":\"forward\",\"batch\":1,"
         "\"tokens\":8,\"kind\":\"dense\",\"median_s\":1}]}",
         "$.measured[0].kind: \"dense\": expected a kind of layer"},
        {WITH_ROWS(OVERHEAD "," OVERHEAD), "$.measured[1]"},
        {WITH_LEVELS(""), "level"},
        {WITH_LEVELS("{\"name\":\"x\",\"group_devices\":0,\"bytes_per_s\":-1,\"latency_s\":0}"),
         "bytes_per_s"},
        {WITH_LEVELS("{\"name\":\"x\",\"group_devices\":8,\"bytes_per_s\":1,\"latency_s\":0}"),
         "group_devices"},
        {WITH_LEVELS("{\"name\":\"x\",\"group_devices\":3,\"bytes_per_s\":1,\"latency_s\":0},"
                     "{\"name\":\"y\",\"group_devices\":8,\"bytes_per_s\":1,\"latency_s\":0},"
                     "{\"name\":\"z\",\"group_devices\":0,\"bytes_per_s\":1,\"latency_s\":0}"),
         "group_devices 3 of one level does not divide the 8"},
        {WITH_NODES("{\"device\":\"D\",\"n_devices\":0,\"n_nodes\":1}"), "n_devices"},
        {WITH_NODES("{\"device\":\"E\",\"n_devices\":8,\"n_nodes\":1}"), "device"},
        {WITH_NODES("{\"device\":\"D\",\"n_devices\":16777216,\"n_nodes\":16777216}"), "devices"},
        {FIXTURE_HEAD FIXTURE_CLUSTER ",\"measurd\":[]}", "did you mean \"measured\""},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;

        g_assert_null(fixture_parse(cases[i].text, &error));
        g_assert_error(error, JSON_ERROR, JSON_ERROR_INVALID);
        g_test_message("%s", error->message);
        g_assert_nonnull(strstr(error->message, cases[i].expect));
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/profiles/profile/every-builtin-loads-and-names-sources",
                    test_every_builtin_loads_and_names_sources);
    g_test_add_func("/profiles/profile/data-sheets", test_data_sheets);
    g_test_add_func("/profiles/profile/local-cpu-has-the-cores-we-may-use",
                    test_local_cpu_has_the_cores_we_may_use);
    g_test_add_func("/profiles/profile/defaults-are-within-their-bounds",
                    test_defaults_are_within_their_bounds);
    g_test_add_func("/profiles/profile/parameters-by-row-are-those-by-name",
                    test_parameters_by_row_are_those_by_name);
    g_test_add_func("/profiles/profile/unknown-name-suggests-the-nearest",
                    test_unknown_name_suggests_the_nearest);
    g_test_add_func("/profiles/profile/round-trip-keeps-every-byte",
                    test_round_trip_keeps_every_byte);
    g_test_add_func("/profiles/profile/copy-is-deep", test_copy_is_deep);
    g_test_add_func("/profiles/profile/rows-stay-sorted-and-unique",
                    test_rows_stay_sorted_and_unique);
    g_test_add_func("/profiles/profile/matches-the-layer-not-the-depth",
                    test_matches_the_layer_not_the_depth);
    g_test_add_func("/profiles/profile/hostile-files", test_hostile_files);
    g_test_add_func("/profile/stacks", test_stacks);
    return g_test_run();
}
