/* Tests of profiles/cost/measured.h: what points left out say about the fit. */
#include "profiles/cost/measured.h"

#include <math.h>

/* cost-model.md 7: a constant, work per token, scores of a causal slice. */
static double
exact_s(int64_t batch, int64_t tokens, int64_t context)
{
    const double n = (double)(batch * tokens);

    return 1e-4 + 2e-6 * n + 3e-9 * n * (double)(2 * context + tokens);
}

static Profile *
profile_of(double factor_at_2_64)
{
    static const int64_t batches[] = {1, 2, 4}, slices[] = {256, 64, 16};
    Profile *profile = profile_load("dgx-h100", NULL);

    profile->measured_arch = model_arch_load("gpt2-124m", NULL, NULL);
    g_assert_nonnull(profile->measured_arch);
    for (size_t b = 0; b < G_N_ELEMENTS(batches); b++)
        for (size_t s = 0; s < G_N_ELEMENTS(slices); s++)
            for (int64_t context = 0; context < 256; context += slices[s]) {
                ProfileMeasurement row = {
                    .op = PROFILE_OP_LAYER,
                    .batch = batches[b],
                    .tokens = slices[s],
                    .context = context,
                    .tp = 1,
                    .median_s = exact_s(batches[b], slices[s], context),
                };
                if (batches[b] == 2 && slices[s] == 64)
                    row.median_s *= factor_at_2_64;
                row.p10_s = row.p90_s = row.median_s;
                profile_add(profile, &row);
            }
    return profile;
}

static double
worst_left_out(const Profile *profile, int64_t batch, int64_t tokens, guint expect)
{
    const ProfileRows rows = {PROFILE_OP_LAYER, PROFILE_PASS_FORWARD, 1, NULL};
    g_autoptr(GArray) errors = g_array_new(FALSE, FALSE, sizeof(double));
    double worst = 0;

    profile_measured_left_out(profile, &rows, batch, tokens, errors);
    g_assert_cmpuint(errors->len, ==, expect);
    for (guint i = 0; i < errors->len; i++)
        worst = fmax(worst, g_array_index(errors, double, i));
    return worst;
}

/* Times of the fit's own form are predicted exactly, wherever the point lies. */
static void
test_the_models_form_has_no_error(void)
{
    g_autoptr(Profile) profile = profile_of(1.0);

    g_assert_cmpfloat(worst_left_out(profile, 2, 64, 4), <, 1e-9);
    g_assert_cmpfloat(worst_left_out(profile, 1, 256, 1), <, 1e-9);
}

/* A point that takes 1.25 of the form's time is predicted as 1 / 1.25 of its time by the others:
 * an error of 0.2, which a point that takes part in its own prediction would not show. */
static void
test_a_point_that_does_not_fit_shows(void)
{
    g_autoptr(Profile) profile = profile_of(1.25);

    g_assert_cmpfloat_with_epsilon(worst_left_out(profile, 2, 64, 4), 0.2, 1e-6);
}

/* Outside all others there is nothing to predict it from. */
static void
test_the_only_extreme_is_not_left_out(void)
{
    g_autoptr(Profile) profile = profile_of(1.0);
    const ProfileMeasurement longest = {.op = PROFILE_OP_LAYER,
                                        .batch = 1,
                                        .tokens = 512,
                                        .tp = 1,
                                        .median_s = 1,
                                        .p10_s = 1,
                                        .p90_s = 1};

    profile_add(profile, &longest);
    worst_left_out(profile, 1, 512, 0);
    worst_left_out(profile, 3, 64, 0); /* not there at all */
}

/* Nine points of 1, 4 and 16 contexts, three batches: 63 rows; the fit of all is in the file. */
static void
test_fit_errors_are_in_the_file(void)
{
    g_autoptr(Profile) profile = profile_of(1.25);
    g_autoptr(GError) error = NULL;
    size_t n_bytes;

    profile_measured_fit_errors(profile);
    g_assert_cmpuint(profile->fit_errors->len, ==, 1);
    g_autoptr(JsonWriter) writer = json_writer_new();
    profile_write(writer, NULL, profile);
    g_autofree char *text = json_writer_steal(writer, &n_bytes);
    g_autoptr(JsonDoc) doc = json_doc_parse("profile", text, n_bytes, &error);
    g_assert_no_error(error);
    g_autoptr(Profile) again = profile_read(doc, json_doc_root(doc, "degas-profile", 1));
    g_assert_true(json_doc_finish(doc, &error));
    g_assert_no_error(error);
    g_assert_cmpuint(again->fit_errors->len, ==, 1);
    const ProfileFitError *fit = &g_array_index(again->fit_errors, ProfileFitError, 0);
    g_assert_cmpint(fit->op, ==, PROFILE_OP_LAYER);
    g_assert_cmpint(fit->tp, ==, 1);
    g_assert_cmpint(fit->n_left_out, ==, 63);
    g_assert_cmpfloat_with_epsilon(fit->worst_fraction, 0.2, 1e-6);
    g_assert_cmpfloat(fit->median_fraction, <, 0.1);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/profiles/left-out/the-models-form-has-no-error",
                    test_the_models_form_has_no_error);
    g_test_add_func("/profiles/left-out/a-point-that-does-not-fit-shows",
                    test_a_point_that_does_not_fit_shows);
    g_test_add_func("/profiles/left-out/the-only-extreme-is-not-left-out",
                    test_the_only_extreme_is_not_left_out);
    g_test_add_func("/profiles/left-out/fit-errors-are-in-the-file",
                    test_fit_errors_are_in_the_file);
    return g_test_run();
}
