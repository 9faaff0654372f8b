/* Tests of profiles/cost/measured.h through profiles/cost/cost.h: rows win, and between them a law
 * holds. */
#include "tests/profiles/layer.h"

#include <math.h>

#include "profiles/cost/measured.h"

/* What a machine with these three coefficients would take. */
static double
law(int64_t batch, int64_t tokens, int64_t context)
{
    double n = (double)batch * (double)tokens;

    return 50e-6 + 2e-6 * n + 1e-9 * n * (2.0 * (double)context + (double)tokens);
}

static Profile *
lawful_profile(void)
{
    Profile *profile = fixture_profile();

    profile->measured_arch = model_arch_copy(&arch);
    profile->measured_dtype = DTYPE_FP16;
    for (int64_t batch = 1; batch <= 4; batch *= 2)
        for (int64_t tokens = 64; tokens <= 256; tokens *= 2)
            for (int64_t context = 0; context <= 256; context += 128) {
                ProfileMeasurement row = {.op = PROFILE_OP_LAYER,
                                          .pass = PROFILE_PASS_FORWARD,
                                          .batch = batch,
                                          .tokens = tokens,
                                          .context = context,
                                          .tp = 1,
                                          .median_s = law(batch, tokens, context)};

                profile_add(profile, &row);
                row.pass = PROFILE_PASS_BACKWARD;
                row.median_s *= 2.0;
                profile_add(profile, &row);
            }
    return profile;
}

static void
test_measured_rows_win(void)
{
    g_autoptr(Profile) profile = lawful_profile();
    ProfileQuery query = query_of(2, 128, 128, 1);
    ProfileCost cost = profile_cost_part(profile, &query, PROFILE_PASS_FORWARD);

    g_assert_cmpint(cost.source, ==, PROFILE_SOURCE_MEASURED);
    assert_near(profile_cost_s(&cost), law(2, 128, 128), 1e-12);
    /* Other formats, degrees and models were not measured. */
    query.shape.dtype = DTYPE_FP32;
    cost = profile_cost_part(profile, &query, PROFILE_PASS_FORWARD);
    g_assert_cmpint(cost.source, ==, PROFILE_SOURCE_MODELLED);
    query = query_of(2, 128, 128, 2);
    cost = profile_cost_part(profile, &query, PROFILE_PASS_FORWARD);
    g_assert_cmpint(cost.source, ==, PROFILE_SOURCE_MODELLED);
}

/* Between two micro-batches by the logarithm of the tokens, beyond them as at the nearest. */
static void
test_work_without_a_break_takes_longer(void)
{
    static const ProfileSustained rows[] = {{1, 64, 1.0}, {4, 256, 1.08}};
    static const struct {
        int64_t batch, tokens;
        double factor;
    } expected[] = {{1, 64, 1.0}, {4, 256, 1.08}, {2, 128, 1.04}, {1, 256, 1.04}, {8, 512, 1.08}};
    g_autoptr(Profile) profile = lawful_profile();
    double alone[G_N_ELEMENTS(expected)];

    for (size_t i = 0; i < G_N_ELEMENTS(expected); i++) {
        const ProfileQuery query = query_of(expected[i].batch, expected[i].tokens, 0, 1);
        const ProfileCost cost = profile_cost_part(profile, &query, PROFILE_PASS_FORWARD);
        alone[i] = profile_cost_s(&cost);
    }
    g_array_append_vals(profile->sustained, rows, G_N_ELEMENTS(rows));
    for (size_t i = 0; i < G_N_ELEMENTS(expected); i++) {
        const ProfileQuery query = query_of(expected[i].batch, expected[i].tokens, 0, 1);
        const ProfileCost cost = profile_cost_part(profile, &query, PROFILE_PASS_FORWARD);
        assert_near(profile_cost_s(&cost), expected[i].factor * alone[i], 1e-12);
    }
}

/* A step is the sum of many ops: a long upper tail counts, 0.3 p10 + 0.4 p50 + 0.3 p90. */
static void
test_rows_count_by_their_means(void)
{
    g_autoptr(Profile) profile = lawful_profile();
    const ProfileQuery query = query_of(2, 128, 128, 1);
    ProfileMeasurement row = {.op = PROFILE_OP_LAYER,
                              .pass = PROFILE_PASS_FORWARD,
                              .batch = 2,
                              .tokens = 128,
                              .context = 128,
                              .tp = 1,
                              .median_s = 1e-3,
                              .p10_s = 0.8e-3,
                              .p90_s = 1.5e-3};

    profile_add(profile, &row);
    ProfileCost cost = profile_cost_part(profile, &query, PROFILE_PASS_FORWARD);
    assert_near(profile_cost_s(&cost), 1.09e-3, 1e-12);

    ProfileMeasurement update = {.op = PROFILE_OP_OPTIMIZER,
                                 .n_elements = 1000,
                                 .median_s = 1e-3,
                                 .p10_s = 0.9e-3,
                                 .p90_s = 1.3e-3};
    double seconds;
    profile_add(profile, &update);
    g_assert_true(profile_measured_optimizer(profile, 500, &seconds));
    assert_near(seconds, 0.53e-3, 1e-12);
    update.n_elements = 3000;
    update.median_s = update.p10_s = 4.06e-3;
    update.p90_s = 4.36e-3;
    profile_add(profile, &update);
    g_assert_true(profile_measured_optimizer(profile, 2000, &seconds));
    assert_near(seconds, 2.605e-3, 1e-12);
}

/* A device works while the host queues: an op takes the longer of the two, whatever its shape; the
 * host's time is the least that was seen. */
static void
test_the_host_queues_meanwhile(void)
{
    g_autoptr(Profile) profile = lawful_profile();
    const ProfileQuery small = query_of(1, 64, 0, 1), large = query_of(4, 256, 256, 1);

    for (guint i = 0; i < profile->measurements->len; i++) {
        ProfileMeasurement *row = &g_array_index(profile->measurements, ProfileMeasurement, i);
        if (row->pass == PROFILE_PASS_FORWARD && row->batch > 1)
            row->queue_s = row->batch == 2 ? 1e-3 : 1.5e-3;
    }
    ProfileCost cost = profile_cost_part(profile, &small, PROFILE_PASS_FORWARD);
    g_assert_cmpfloat(law(1, 64, 0), <, 1e-3);
    assert_near(profile_cost_s(&cost), 1e-3, 1e-12);
    cost = profile_cost_part(profile, &large, PROFILE_PASS_FORWARD);
    g_assert_cmpfloat(law(4, 256, 256), >, 1.5e-3);
    assert_near(profile_cost_s(&cost), law(4, 256, 256), 1e-12);
    cost = profile_cost_part(profile, &small, PROFILE_PASS_BACKWARD);
    assert_near(profile_cost_s(&cost), 2.0 * law(1, 64, 0), 1e-12);
}

/* The law is found again, between the rows and a little beyond them. */
static void
test_between_rows_the_law_holds(void)
{
    static const int64_t shapes[][3] = {{1, 96, 0}, {3, 200, 40}, {2, 64, 192}, {1, 512, 0}};
    g_autoptr(Profile) profile = lawful_profile();

    for (size_t i = 0; i < G_N_ELEMENTS(shapes); i++) {
        ProfileQuery query = query_of(shapes[i][0], shapes[i][1], shapes[i][2], 1);
        ProfileCost cost = profile_cost_part(profile, &query, PROFILE_PASS_BACKWARD);

        g_assert_cmpint(cost.source, ==, PROFILE_SOURCE_INTERPOLATED);
        assert_near(profile_cost_s(&cost), 2.0 * law(shapes[i][0], shapes[i][1], shapes[i][2]),
                    1e-6);
    }
}

/* A row off the law pulls its neighbours, not the far end. */
/* A model whose layers are of two kinds that differ in a window. */
#define TWO_KINDS(first, second, pattern)                                                          \
    "{\"format\":\"degas-model\",\"version\":1,\"name\":\"two\",\"family\":\"llama\","             \
    "\"n_layers\":4,\"hidden\":64,\"n_heads\":4,\"vocab\":512,\"max_seq_len\":1024,\"kinds\":{"    \
    "\"" first "\":{\"ffn_hidden\":128},\"" second "\":{\"ffn_hidden\":128,\"window\":32}},"       \
    "\"layers\":\"" pattern "\"}"

static ModelArch *
parse_model(const char *text)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(JsonDoc) doc = json_doc_parse("model", text, strlen(text), &error);

    g_assert_no_error(error);
    ModelArch *model = model_arch_read(doc, json_doc_root(doc, "degas-model", 1));
    g_assert_true(json_doc_finish(doc, &error));
    return model;
}

static double
forward_s(const Profile *profile, const ModelArch *model, ModelPart part, int64_t layer,
          int64_t tokens, ProfileSource source)
{
    ProfileQuery query = query_of(1, tokens, 0, 1);

    query.arch = model;
    query.part = part;
    query.layer = layer;
    const ProfileCost cost = profile_cost_part(profile, &query, PROFILE_PASS_FORWARD);
    g_assert_cmpint(cost.source, ==, source);
    return profile_cost_s(&cost);
}

/* Rows of each kind of a measured model, and of its head. */
static Profile *
profile_of_two_kinds(void)
{
    Profile *profile = fixture_profile();
    ProfileMeasurement row = {
        .op = PROFILE_OP_LAYER, .pass = PROFILE_PASS_FORWARD, .batch = 1, .tokens = 100, .tp = 1};

    profile->measured_arch = parse_model(TWO_KINDS("full", "near", "2*(full, near)"));
    profile->measured_dtype = DTYPE_FP16;
    row.kind = "full";
    row.median_s = row.p10_s = row.p90_s = 1e-3;
    profile_add(profile, &row);
    row.kind = "near";
    row.median_s = row.p10_s = row.p90_s = 2e-3;
    profile_add(profile, &row);
    row.op = PROFILE_OP_HEAD;
    row.kind = NULL;
    row.median_s = row.p10_s = row.p90_s = 5e-3;
    profile_add(profile, &row);
    return profile;
}

/* One row of a kind: in proportion to tokens. */
static void
test_each_kind_has_its_rows(void)
{
    g_autoptr(Profile) profile = profile_of_two_kinds();
    const ModelArch *own = profile->measured_arch;
    const ProfileSource measured = PROFILE_SOURCE_MEASURED, between = PROFILE_SOURCE_INTERPOLATED;

    assert_near(forward_s(profile, own, MODEL_PART_LAYER, 0, 100, measured), 1e-3, 1e-12);
    assert_near(forward_s(profile, own, MODEL_PART_LAYER, 3, 100, measured), 2e-3, 1e-12);
    assert_near(forward_s(profile, own, MODEL_PART_LAYER, 0, 300, between), 3e-3, 1e-9);
    assert_near(forward_s(profile, own, MODEL_PART_LAYER, 3, 300, between), 6e-3, 1e-9);
    assert_near(forward_s(profile, own, MODEL_PART_HEAD, 0, 100, measured), 5e-3, 1e-12);
}

static void
test_files_keep_kinds(void)
{
    g_autoptr(Profile) profile = profile_of_two_kinds();
    g_autoptr(JsonWriter) writer = json_writer_new();
    g_autoptr(GError) error = NULL;
    size_t n_bytes;

    profile_write(writer, NULL, profile);
    g_autofree char *text = json_writer_steal(writer, &n_bytes);
    g_autoptr(Profile) read = fixture_parse(text, &error);
    g_assert_no_error(error);
    g_assert_cmpuint(read->measurements->len, ==, 3);
    assert_near(
        forward_s(read, read->measured_arch, MODEL_PART_LAYER, 3, 100, PROFILE_SOURCE_MEASURED),
        2e-3, 1e-12);
}

/* In another model the windows are called "full" and come first. */
static void
test_kinds_are_told_apart_by_what_they_are(void)
{
    g_autoptr(Profile) profile = profile_of_two_kinds();
    g_autoptr(ModelArch) other = parse_model(TWO_KINDS("near", "full", "2*(full, near)"));

    assert_near(forward_s(profile, other, MODEL_PART_LAYER, 0, 100, PROFILE_SOURCE_MEASURED), 2e-3,
                1e-12);
    assert_near(forward_s(profile, other, MODEL_PART_LAYER, 1, 100, PROFILE_SOURCE_MEASURED), 1e-3,
                1e-12);
    /* Another kind and other ends were not measured; the kind that is left was. */
    other->kinds[0].ffn_hidden = 256;
    other->vocab = 1024;
    forward_s(profile, other, MODEL_PART_LAYER, 1, 100, PROFILE_SOURCE_MODELLED);
    forward_s(profile, other, MODEL_PART_HEAD, 0, 100, PROFILE_SOURCE_MODELLED);
    assert_near(forward_s(profile, other, MODEL_PART_LAYER, 0, 100, PROFILE_SOURCE_MEASURED), 2e-3,
                1e-12);
}

static void
test_deviations_stay_local(void)
{
    g_autoptr(Profile) profile = lawful_profile();
    ProfileMeasurement row = {.op = PROFILE_OP_LAYER,
                              .pass = PROFILE_PASS_FORWARD,
                              .batch = 4,
                              .tokens = 256,
                              .context = 256,
                              .tp = 1,
                              .median_s = 1.1 * law(4, 256, 256)};
    ProfileQuery near_it = query_of(4, 250, 250, 1), far = query_of(1, 66, 0, 1);

    profile_add(profile, &row);
    g_assert_cmpfloat(part_s(profile, &near_it, PROFILE_PASS_FORWARD), >, 1.05 * law(4, 250, 250));
    assert_near(part_s(profile, &far, PROFILE_PASS_FORWARD), law(1, 66, 0), 0.02);
}

static void
test_one_row_scales_with_tokens(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ProfileMeasurement row = {.op = PROFILE_OP_LAYER,
                              .pass = PROFILE_PASS_FORWARD,
                              .batch = 1,
                              .tokens = 100,
                              .tp = 1,
                              .median_s = 1e-3};
    ProfileQuery query = query_of(1, 300, 0, 1);

    profile->measured_arch = model_arch_copy(&arch);
    profile->measured_dtype = DTYPE_FP16;
    profile_add(profile, &row);
    assert_near(part_s(profile, &query, PROFILE_PASS_FORWARD), 3e-3, 1e-9);
}

/* The slice of one device that has a context-parallel rank's tokens and pairs; the exchange stays
 * modelled. */
static void
test_context_parallel_ranks_compute_as_one_device(void)
{
    g_autoptr(Profile) profile = lawful_profile();
    g_autoptr(Profile) modelled = fixture_profile();
    ProfileQuery query = query_of(2, 256, 64, 1);

    query.shape.cp = 2;
    query.groups[1] = (ProfileGroup){.stride = 1, .n = 2};
    const ProfileCost cost = profile_cost_part(profile, &query, PROFILE_PASS_FORWARD);
    const ProfileCost model = profile_cost_part(modelled, &query, PROFILE_PASS_FORWARD);
    /* 128 tokens of each of 2 sequences, and half of 256 (2 * 64 + 256) pairs. */
    const double expected = 50e-6 + 2e-6 * 256 + 1e-9 * 256 * (2.0 * 64 + 256);

    g_assert_cmpint(cost.source, ==, PROFILE_SOURCE_MEASURED);
    assert_near(cost.part_s[PROFILE_PART_COMPUTE], expected, 1e-9);
    g_assert_cmpfloat(model.part_s[PROFILE_PART_CP], >, 0.0);
    g_assert_cmpfloat(cost.part_s[PROFILE_PART_CP], ==, model.part_s[PROFILE_PART_CP]);
}

/* Rows of tp ranks hold their collectives: only the exchange over cp comes on top. */
static void
test_tensor_parallel_rows_are_whole(void)
{
    g_autoptr(Profile) profile = lawful_profile();
    g_autoptr(Profile) modelled = fixture_profile();
    ProfileQuery query = query_of(2, 256, 64, 2);

    for (guint i = 0; i < profile->measurements->len; i++)
        g_array_index(profile->measurements, ProfileMeasurement, i).tp = 2;
    query.shape.cp = 2;
    query.groups[MODEL_GROUP_CP] = (ProfileGroup){.stride = 2, .n = 2};
    const ProfileCost model = profile_cost_part(modelled, &query, PROFILE_PASS_FORWARD);
    const double expected = 50e-6 + 2e-6 * 256 + 1e-9 * 256 * (2.0 * 64 + 256);

    g_assert_cmpfloat(model.part_s[PROFILE_PART_TP], >, 0.0);
    g_assert_cmpfloat(model.part_s[PROFILE_PART_CP], >, 0.0);
    assert_near(part_s(profile, &query, PROFILE_PASS_FORWARD),
                expected + model.part_s[PROFILE_PART_CP], 1e-9);
}

static void
test_measured_backward_is_split_by_flops(void)
{
    g_autoptr(Profile) profile = lawful_profile();
    ProfileQuery query = query_of(2, 128, 0, 1);
    double input = part_s(profile, &query, PROFILE_PASS_BACKWARD_INPUT);
    double weight = part_s(profile, &query, PROFILE_PASS_BACKWARD_WEIGHT);

    assert_near(input + weight, 2.0 * law(2, 128, 0), 1e-9);
    g_assert_cmpfloat(weight, <, input); /* attention has no weights */
    g_assert_cmpfloat(weight, >, 0.45 * (input + weight));
}

static void
test_optimizer(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ProfileMeasurement row = {.op = PROFILE_OP_OPTIMIZER, .n_elements = 1000, .median_s = 1e-3};

    assert_near(profile_cost_optimizer_s(profile, device_of(profile), 1000000, 28.0), 28e-6, 1e-12);
    g_assert_cmpfloat(profile_cost_optimizer_s(profile, device_of(profile), 0, 28.0), ==, 0.0);
    profile_add(profile, &row);
    assert_near(profile_cost_optimizer_s(profile, device_of(profile), 2000, 28.0), 2e-3, 1e-12);
    row.n_elements = 3000;
    row.median_s = 2e-3;
    profile_add(profile, &row);
    assert_near(profile_cost_optimizer_s(profile, device_of(profile), 2000, 28.0), 1.5e-3, 1e-12);
    assert_near(profile_cost_optimizer_s(profile, device_of(profile), 500, 28.0), 0.5e-3, 1e-12);
    assert_near(profile_cost_optimizer_s(profile, device_of(profile), 6000, 28.0), 3.5e-3, 1e-12);
}

/* Noise may let a larger size be measured as faster; what is larger still takes no less than it. */
static void
test_falling_rows_do_not_fall_on(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ProfileMeasurement row = {.op = PROFILE_OP_COPY_D2H, .bytes = 1000, .median_s = 2e-3};
    double seconds = 0;

    profile_add(profile, &row);
    row.bytes = 2000;
    row.median_s = 1.5e-3;
    profile_add(profile, &row);
    g_assert_true(profile_measured_bytes_s(profile, row.op, row.n_ranks, 1500, &seconds));
    assert_near(seconds, 1.75e-3, 1e-12);
    g_assert_true(profile_measured_bytes_s(profile, row.op, row.n_ranks, 4000, &seconds));
    assert_near(seconds, 1.5e-3, 1e-12);
}

/* Of all rows together a line with a constant fits best, 0.27 + 0.55 n ms: it errs by a square of
 * 0.17, the best multiple of n, 0.6 n ms, by one of 0.2 (n/t is 5/3, 1, 2 and 5/3).  The row of two
 * sequences alone would have the multiple, which meets it.  One sequence takes, with the deviations
 * of the rows near it, 0.98 times 0.82 ms of the line; it would be 1.09 times 0.6 ms. */
static void
test_a_fit_counts_all_rows(void)
{
    static const struct {
        int64_t batch;
        double median_s;
    } rows[] = {{2, 1.2e-3}, {3, 3e-3}, {16, 8e-3}, {20, 12e-3}};
    g_autoptr(Profile) profile = fixture_profile();

    profile->measured_arch = model_arch_copy(&arch);
    profile->measured_dtype = DTYPE_FP16;
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        const ProfileMeasurement row = {.op = PROFILE_OP_LAYER,
                                        .pass = PROFILE_PASS_FORWARD,
                                        .batch = rows[i].batch,
                                        .tokens = 64,
                                        .tp = 1,
                                        .median_s = rows[i].median_s};
        profile_add(profile, &row);
    }
    const ProfileQuery query = query_of(1, 64, 0, 1);
    const ProfileCost cost = profile_cost_part(profile, &query, PROFILE_PASS_FORWARD);
    g_assert_cmpfloat_with_epsilon(profile_cost_s(&cost), 0.8e-3, 0.03e-3);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
#define ADD(path, function) g_test_add_func("/profiles/measured/" path, function)
    ADD("without-a-break", test_work_without_a_break_takes_longer);
    ADD("measured-rows-win", test_measured_rows_win);
    ADD("the-host-queues-meanwhile", test_the_host_queues_meanwhile);
    ADD("rows-count-by-their-means", test_rows_count_by_their_means);
    ADD("between-rows-the-law-holds", test_between_rows_the_law_holds);
    ADD("deviations-stay-local", test_deviations_stay_local);
    ADD("one-row-scales-with-tokens", test_one_row_scales_with_tokens);
    ADD("context-parallel-ranks-compute-as-one-device",
        test_context_parallel_ranks_compute_as_one_device);
    ADD("tensor-parallel-rows-are-whole", test_tensor_parallel_rows_are_whole);
    ADD("measured-backward-is-split-by-flops", test_measured_backward_is_split_by_flops);
    ADD("each-kind-has-its-rows", test_each_kind_has_its_rows);
    ADD("files-keep-kinds", test_files_keep_kinds);
    ADD("kinds-are-told-apart-by-what-they-are", test_kinds_are_told_apart_by_what_they_are);
    ADD("optimizer", test_optimizer);
    ADD("a-fit-counts-all-rows", test_a_fit_counts_all_rows);
    ADD("falling-rows-do-not-fall-on", test_falling_rows_do_not_fall_on);
    return g_test_run();
}
