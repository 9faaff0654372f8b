/* Tests of executor/measure/measure.h and samples.h: what a profile holds and that it describes runs.  That
 * predictions from it meet measured steps is shown end to end, not by timing inside a test.
 * Test runner: alone: it measures times. */
#include "executor/measure/measure.h"
#include "executor/device/cores.h"
#include "executor/transport/transport.h"

#include <math.h>
#include <glib/gstdio.h>
#include <string.h>

#include "executor/transport/samples.h"

static ModelArch
model(void)
{
    return (ModelArch){
        .name = (char *)"small",
        .family = MODEL_FAMILY_GPT,
        .n_layers = 2,
        .hidden = 32,
        .n_heads = 2,
        .n_kv_heads = 2,
        .head_dim = 16,
        .ffn_hidden = 128,
        .vocab = 64,
        .max_seq_len = 64,
        .norm_epsilon = MODEL_USUAL_NORM_EPSILON,
        .rope_base = MODEL_USUAL_ROPE_BASE,
        .tied_embeddings = true,
        .qkv_bias = true,
    };
}

static const char *
fast_device(void)
{
    g_autoptr(ExecBackend) cpu = exec_backend_open("cpu", 0, DTYPE_FP32, NULL);

    return cpu != NULL ? "cpu" : "reference";
}

static const ProfileMeasurement *
find(const Profile *profile, ProfileOp op, ProfilePass pass, int64_t batch, int64_t tokens,
     int64_t context)
{
    for (guint i = 0; i < profile->measurements->len; i++) {
        const ProfileMeasurement *row =
            &g_array_index(profile->measurements, ProfileMeasurement, i);
        if (row->op == op && row->pass == pass && row->batch == batch && row->tokens == tokens &&
            row->context == context)
            return row;
    }
    return NULL;
}

static int64_t
count(const Profile *profile, ProfileOp op)
{
    int64_t n = 0;

    for (guint i = 0; i < profile->measurements->len; i++)
        n += g_array_index(profile->measurements, ProfileMeasurement, i).op == op;
    return n;
}

static void
note_progress(double fraction, double left_s, const char *what, void *user_data)
{
    double *last = user_data;

    g_assert_cmpfloat(fraction, >=, 0);
    g_assert_cmpfloat(fraction, <=, 1);
    g_assert_nonnull(what);
    g_assert_cmpfloat(left_s, >=, 0);
    *last = fraction;
}

/* Median time of a layer's backward of 64 tokens, @concurrency ranks busy; reference loops take
 * nearly a millisecond for it. */
static double
layer_s(const ModelArch *arch, int64_t concurrency)
{
    static const int64_t batch = 1, slice = 64;
    g_autoptr(GError) error = NULL;
    g_autoptr(Profile) profile = exec_measure(
        &(ExecMeasureOptions){
            .arch = arch,
            .device = "reference",
            .batches = &batch,
            .n_batches = 1,
            .slices = &slice,
            .n_slices = 1,
            .concurrency = concurrency,
            .quick = true,
        },
        &error);

    g_assert_no_error(error);
    return find(profile, PROFILE_OP_LAYER, PROFILE_PASS_BACKWARD, batch, slice, 0)->median_s;
}

/* Three times as many ranks as cores: each has a third of a core.  Half of that is asserted, for
 * machines that do other things too. */
static void
test_ranks_share_cores(void)
{
    const ModelArch arch = model();

    g_assert_cmpfloat(layer_s(&arch, 3 * exec_n_cores()), >, 1.5 * layer_s(&arch, 1));
}

/* Every (batch, slice, context) that slices of the asked lengths meet, every pass, of layers,
 * embedding and head; messages of each size; and the file can be written and read. */
static void
test_grid_is_complete(void)
{
    static const int64_t batches[] = {1, 3}, slices[] = {64, 24};
    static const struct {
        int64_t tokens, context;
    } shapes[] = {{64, 0}, {24, 0}, {24, 24}, {16, 48}};
    static const ProfileOp parts[] = {PROFILE_OP_LAYER, PROFILE_OP_EMBEDDING, PROFILE_OP_HEAD};
    const ModelArch arch = model();
    g_autoptr(GError) error = NULL;
    double fraction = 0;
    g_autoptr(Profile) profile = exec_measure(
        &(ExecMeasureOptions){
            .arch = &arch,
            .device = fast_device(),
            .batches = batches,
            .n_batches = G_N_ELEMENTS(batches),
            .slices = slices,
            .n_slices = G_N_ELEMENTS(slices),
            .concurrency = 2,
            .quick = true,
            .progress = note_progress,
            .user_data = &fraction,
        },
        &error);

    g_assert_no_error(error);
    g_assert_cmpfloat(fraction, ==, 1);
    for (size_t p = 0; p < G_N_ELEMENTS(parts); p++)
        for (size_t b = 0; b < G_N_ELEMENTS(batches); b++)
            for (size_t s = 0; s < G_N_ELEMENTS(shapes); s++)
                for (int pass = PROFILE_PASS_FORWARD; pass < PROFILE_PASS_N; pass++) {
                    const ProfileMeasurement *row =
                        find(profile, parts[p], (ProfilePass)pass, batches[b], shapes[s].tokens,
                             shapes[s].context);
                    g_assert_nonnull(row);
                    g_assert_true(row->median_s > 0 && row->median_s < 1);
                    g_assert_true(row->p10_s <= row->median_s && row->median_s <= row->p90_s);
                }
    g_assert_cmpint(count(profile, PROFILE_OP_LAYER), ==, 4 * 2 * 4);
    /* 1 x 64, 1 x 24, 3 x 64, 3 x 24 tokens. */
    g_assert_cmpint(count(profile, PROFILE_OP_P2P), ==, 4);
    g_assert_cmpint(count(profile, PROFILE_OP_OPTIMIZER), ==, 2);
    g_assert_cmpint(count(profile, PROFILE_OP_OVERHEAD), ==, 1);
    g_assert_cmpint(count(profile, PROFILE_OP_ALL_REDUCE), >=, 3);
    g_assert_true(profile_matches(profile, &arch));
    g_assert_cmpint(profile->measured_concurrency, ==, 2);
    g_assert_nonnull(profile->measured_on);

    g_autoptr(JsonWriter) writer = json_writer_new();
    size_t n_bytes;
    profile_write(writer, NULL, profile);
    g_autofree char *text = json_writer_steal(writer, &n_bytes);
    g_autoptr(JsonDoc) doc = json_doc_parse("profile", text, n_bytes, &error);
    g_autoptr(Profile) again = profile_read(doc, json_doc_root(doc, "degas-profile", 1));
    g_assert_true(json_doc_finish(doc, &error));
    g_assert_no_error(error);
    g_assert_cmpint(again->measurements->len, ==, profile->measurements->len);
}

/* --- the adaptive grid --- */

/* Lists that were not given are chosen from within the budget.  Nine shapes of three batches and
 * three slices would take the reference loops seconds; in 20 ms no more than the corners are begun,
 * but at least one is. */
static void
test_budget_bounds_the_grid(void)
{
    const ModelArch arch = model();
    g_autoptr(GError) error = NULL;
    g_autoptr(Profile) profile = exec_measure(&(ExecMeasureOptions){.arch = &arch,
                                                                    .device = "reference",
                                                                    .concurrency = 1,
                                                                    .quick = true,
                                                                    .budget_s = 0.02},
                                              &error);
    int n_shapes = 0;

    g_assert_no_error(error);
    for (guint i = 0; i < profile->measurements->len; i++) {
        const ProfileMeasurement *row =
            &g_array_index(profile->measurements, ProfileMeasurement, i);
        n_shapes += row->op == PROFILE_OP_HEAD && row->pass == PROFILE_PASS_BACKWARD_WEIGHT &&
                    row->context == 0;
    }
    g_assert_cmpint(n_shapes, >=, 1);
    g_assert_cmpint(n_shapes, <=, 4);
    g_assert_nonnull(find(profile, PROFILE_OP_LAYER, PROFILE_PASS_FORWARD, 1, 64, 0));
}

/* Four corners lie in each other's box: each can be left out, in every pass of every part. */
static void
test_left_out_shapes_are_in_the_profile(void)
{
    static const int64_t batches[] = {1, 2}, slices[] = {64, 32};
    const ModelArch arch = model();
    g_autoptr(GError) error = NULL;
    g_autoptr(Profile) profile = exec_measure(&(ExecMeasureOptions){.arch = &arch,
                                                                    .device = fast_device(),
                                                                    .batches = batches,
                                                                    .n_batches = 2,
                                                                    .slices = slices,
                                                                    .n_slices = 2,
                                                                    .concurrency = 1,
                                                                    .quick = true,
                                                                    .budget_s = 1},
                                              &error);

    g_assert_no_error(error);
    g_assert_cmpuint(profile->fit_errors->len, ==, 3 * PROFILE_PASS_N);
    for (guint i = 0; i < profile->fit_errors->len; i++) {
        const ProfileFitError *fit = &g_array_index(profile->fit_errors, ProfileFitError, i);
        g_assert_cmpint(fit->n_left_out, ==, 2 * (1 + 2)); /* one slice, or two, of two batches */
        g_assert_cmpfloat(fit->median_fraction, <=, fit->worst_fraction);
        g_assert_cmpfloat(fit->worst_fraction, >, 0);
    }
}

/* Of one rank's layer the kinds are there in every pass that has them, and take no more than a
 * few times the layer (stamps cost, other programs disturb). */
static void
test_kinds_of_ops_are_timed(void)
{
    static const int64_t batch = 1, slice = 64;
    const ModelArch arch = model();
    g_autoptr(GError) error = NULL;
    g_autoptr(Profile) profile = exec_measure(&(ExecMeasureOptions){.arch = &arch,
                                                                    .device = "reference",
                                                                    .batches = &batch,
                                                                    .n_batches = 1,
                                                                    .slices = &slice,
                                                                    .n_slices = 1,
                                                                    .concurrency = 1,
                                                                    .quick = true,
                                                                    .budget_s = 1},
                                              &error);
    g_assert_no_error(error);
    for (int pass = PROFILE_PASS_FORWARD; pass < PROFILE_PASS_N; pass++) {
        const ProfileMeasurement *layer =
            find(profile, PROFILE_OP_LAYER, (ProfilePass)pass, 1, 64, 0);
        double sum = 0;

        for (int op = PROFILE_OP_LAYER_GEMM; op <= PROFILE_OP_LAYER_OTHER; op++) {
            const ProfileMeasurement *row =
                find(profile, (ProfileOp)op, (ProfilePass)pass, 1, 64, 0);
            sum += row == NULL ? 0 : row->median_s;
        }
        g_assert_nonnull(find(profile, PROFILE_OP_LAYER_GEMM, (ProfilePass)pass, 1, 64, 0));
        /* Gradients of weights have no attention in them. */
        g_assert_true(
            (pass == PROFILE_PASS_BACKWARD_WEIGHT) ==
            (find(profile, PROFILE_OP_LAYER_ATTENTION, (ProfilePass)pass, 1, 64, 0) == NULL));
        g_assert_cmpfloat(sum, >, 0.3 * layer->median_s);
        g_assert_cmpfloat(sum, <, 3 * layer->median_s);
    }
}

/* Two ranks with half of a layer each; the whole layer too. */
static void
test_tensor_parallel_rows(void)
{
    static const int64_t batch = 1, slice = 64, tps[] = {1, 2};
    const ModelArch arch = model();
    g_autoptr(GError) error = NULL;
    g_autoptr(Profile) profile = exec_measure(&(ExecMeasureOptions){.arch = &arch,
                                                                    .device = fast_device(),
                                                                    .batches = &batch,
                                                                    .n_batches = 1,
                                                                    .slices = &slice,
                                                                    .n_slices = 1,
                                                                    .tps = tps,
                                                                    .n_tps = 2,
                                                                    .concurrency = 1,
                                                                    .quick = true,
                                                                    .budget_s = 2},
                                              &error);
    int64_t n[3] = {0};

    g_assert_no_error(error);
    for (guint i = 0; i < profile->measurements->len; i++) {
        const ProfileMeasurement *row =
            &g_array_index(profile->measurements, ProfileMeasurement, i);
        if (row->op == PROFILE_OP_LAYER)
            n[row->tp]++;
    }
    g_assert_cmpint(n[1], ==, PROFILE_PASS_N);
    g_assert_cmpint(n[2], ==, PROFILE_PASS_N);
}

/* --- going on --- */

typedef struct {
    int stop;
    double at; /* interrupts when so much is done */
} Interruption;

static void
interrupt_at(double fraction, double left_s, const char *what, void *user_data)
{
    Interruption *interruption = user_data;

    if (fraction > 0 && fraction >= interruption->at)
        g_atomic_int_set(&interruption->stop, 1);
}

/* What had been timed before the interruption is in the second profile, and is not timed again;
 * what was kept for another profile is refused. */
static void
test_an_interrupted_profile_goes_on(void)
{
    static const int64_t batch = 1, slice = 64;
    const ModelArch arch = model();
    g_autoptr(GError) error = NULL;
    g_autofree char *folder = g_dir_make_tmp("degas-test-XXXXXX", &error);
    g_autofree char *path = g_build_filename(folder, "p.json.partial", NULL);
    Interruption interruption = {.at = 0.5};
    ExecMeasureOptions options = {
        .arch = &arch,
        .device = fast_device(),
        .batches = &batch,
        .n_batches = 1,
        .slices = &slice,
        .n_slices = 1,
        .concurrency = 1,
        .quick = true,
        .budget_s = 600, /* so that 15 repetitions end it, not time */
        .partial_path = path,
        .stop = &interruption.stop,
        .progress = interrupt_at,
        .user_data = &interruption,
    };

    g_assert_null(exec_measure(&options, &error));
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_INTERRUPTED);
    g_assert_nonnull(strstr(error->message, "--resume goes on from"));
    g_clear_error(&error);
    g_assert_true(g_file_test(path, G_FILE_TEST_EXISTS));

    /* Of other options: refused. */
    options.resume = true;
    options.stop = NULL;
    options.progress = NULL;
    options.seq_len = 48;
    static const int64_t shorter = 48;
    options.slices = &shorter;
    g_assert_null(exec_measure(&options, &error));
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_DATA);
    g_assert_nonnull(strstr(error->message, "$.of: this was"));
    g_clear_error(&error);

    /* A timing that no clock would give, to know it again. */
    g_autofree char *text = NULL;
    g_assert_true(g_file_get_contents(path, &text, NULL, &error));
    char *overhead = strstr(text, "\"op\": \"overhead\"");
    g_assert_nonnull(overhead);
    char *seconds = strstr(overhead, "\"seconds\": [");
    g_assert_nonnull(seconds);
    seconds += strlen("\"seconds\": [");
    const size_t n_old = strcspn(seconds, "]");
    g_assert_cmpuint(n_old, >, 4);
    memset(seconds, ' ', n_old);
    memcpy(seconds, "1234", 4);
    g_assert_true(g_file_set_contents(path, text, -1, &error));

    options.seq_len = 0;
    options.slices = &slice;
    g_autoptr(Profile) profile = exec_measure(&options, &error);
    g_assert_no_error(error);
    g_assert_nonnull(find(profile, PROFILE_OP_LAYER, PROFILE_PASS_FORWARD, 1, 64, 0));
    const ProfileMeasurement *row = find(profile, PROFILE_OP_OVERHEAD, 0, 0, 0, 0);
    g_assert_nonnull(row);
    g_assert_cmpfloat(row->median_s, ==, 1234);
    g_assert_false(g_file_test(path, G_FILE_TEST_EXISTS));
    g_assert_cmpint(g_rmdir(folder), ==, 0);
}

/* Percentiles by definition: of 1..11 the median is 6, the 10th percentile 2, the 90th 10. */
static void
test_samples_become_percentiles(void)
{
    const ModelArch arch = model();
    g_autoptr(GError) error = NULL;
    g_autoptr(Profile) profile = profile_load("local-cpu", &error);
    g_autoptr(ExecSamples) samples = exec_samples_new();
    const ProfileMeasurement key = {.op = PROFILE_OP_LAYER, .batch = 1, .tokens = 2, .tp = 1};
    ProfileMeasurement other = key;

    g_assert_no_error(error);
    other.context = 2;
    for (int i = 11; i >= 1; i--) {
        exec_samples_add(samples, &key, i, false);
        exec_samples_add(samples, &other, 7, false);
    }
    profile->measured_arch = model_arch_copy(&arch);
    exec_samples_write(samples, profile);
    const ProfileMeasurement *row = find(profile, PROFILE_OP_LAYER, PROFILE_PASS_FORWARD, 1, 2, 0);
    g_assert_nonnull(row);
    g_assert_cmpfloat(row->median_s, ==, 6);
    g_assert_cmpfloat(row->p10_s, ==, 2);
    g_assert_cmpfloat(row->p90_s, ==, 10);
    row = find(profile, PROFILE_OP_LAYER, PROFILE_PASS_FORWARD, 1, 2, 2);
    g_assert_nonnull(row);
    g_assert_cmpfloat(row->median_s, ==, 7);
}

static void
test_impossible_grids_are_refused(void)
{
    static const int64_t zero = 0, huge = 1000;
    const ModelArch gpt = model();
    ModelArch copied = gpt;
    copied.experts = (ModelExperts){.n_experts = 4, .top_k = 2, .ffn_hidden = 32, .n_redundant = 2};
    const struct {
        ExecMeasureOptions options;
        int code;
        const char *says;
    } cases[] = {
        {{.arch = &gpt, .device = "reference", .batches = &zero, .n_batches = 1},
         EXEC_ERROR_UNSUPPORTED,
         "--micro-batch: 0"},
        {{.arch = &gpt, .device = "reference", .slices = &huge, .n_slices = 1},
         EXEC_ERROR_UNSUPPORTED,
         "--slices: 1000"},
        {{.arch = &gpt, .device = "reference", .seq_len = 65}, EXEC_ERROR_UNSUPPORTED, "65"},
        {{.arch = &gpt, .device = "reference", .concurrency = -1}, EXEC_ERROR_UNSUPPORTED, "-1"},
        {{.arch = &gpt, .device = "cuda"}, EXEC_ERROR_MISSING, "degas-cuda.so"},
        {{.arch = &copied, .device = "reference"}, EXEC_ERROR_UNSUPPORTED, "copies of hot experts"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_assert_null(exec_measure(&cases[i].options, &error));
        g_assert_error(error, EXEC_ERROR, cases[i].code);
        g_assert_nonnull(strstr(error->message, cases[i].says));
    }
}

/* Experts behind a dense layer: rows of each kind in every pass; what was measured is the user's
 * model, not the layers that were arranged for it. */
static void
test_each_kind_of_layer_is_timed(void)
{
    static const int64_t one = 1, slice = 64;
    static const char *const kinds[] = {"dense", "experts"};
    ModelArch arch = model();
    g_autoptr(GError) error = NULL;

    arch.n_layers = 3;
    arch.experts =
        (ModelExperts){.n_experts = 2, .top_k = 1, .ffn_hidden = 32, .first_dense_layers = 1};
    g_autoptr(Profile) profile = exec_measure(
        &(ExecMeasureOptions){
            .arch = &arch,
            .device = fast_device(),
            .batches = &one,
            .n_batches = 1,
            .slices = &slice,
            .n_slices = 1,
            .concurrency = 1,
            .quick = true,
            .budget_s = 0.1,
        },
        &error);
    int n[G_N_ELEMENTS(kinds)] = {0};

    g_assert_no_error(error);
    for (guint i = 0; i < profile->measurements->len; i++) {
        const ProfileMeasurement *row =
            &g_array_index(profile->measurements, ProfileMeasurement, i);
        for (size_t k = 0; row->op == PROFILE_OP_LAYER && k < G_N_ELEMENTS(kinds); k++)
            n[k] += g_strcmp0(row->kind, kinds[k]) == 0;
        g_assert_true(row->op != PROFILE_OP_HEAD || row->kind == NULL);
    }
    g_assert_cmpint(n[0], ==, PROFILE_PASS_N);
    g_assert_cmpint(n[1], ==, PROFILE_PASS_N);
    g_assert_cmpint(count(profile, PROFILE_OP_LAYER), ==, 2 * PROFILE_PASS_N);
    g_assert_cmpint(profile->measured_arch->n_layers, ==, 3);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/measure/ranks-share-cores", test_ranks_share_cores);
    g_test_add_func("/executor/measure/each-kind-of-layer-is-timed",
                    test_each_kind_of_layer_is_timed);
    g_test_add_func("/executor/measure/grid-is-complete", test_grid_is_complete);
    g_test_add_func("/executor/measure/budget-bounds-the-grid", test_budget_bounds_the_grid);
    g_test_add_func("/executor/measure/left-out-shapes-are-in-the-profile",
                    test_left_out_shapes_are_in_the_profile);
    g_test_add_func("/executor/measure/kinds-of-ops-are-timed", test_kinds_of_ops_are_timed);
    g_test_add_func("/executor/measure/tensor-parallel-rows", test_tensor_parallel_rows);
    g_test_add_func("/executor/measure/an-interrupted-profile-goes-on",
                    test_an_interrupted_profile_goes_on);
    g_test_add_func("/executor/measure/samples-become-percentiles",
                    test_samples_become_percentiles);
    g_test_add_func("/executor/measure/impossible-grids-are-refused",
                    test_impossible_grids_are_refused);
    return g_test_run();
}
