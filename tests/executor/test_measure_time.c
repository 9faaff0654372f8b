/* Tests of the time that executor/measure/measure.h takes, on a clock that goes on only when it is read: so
 * the machine's load does not count. */
#include "executor/measure/measure.h"

#include <stdatomic.h>
#include <string.h>

#include "executor/device/clock.h"

/* --- the clock --- */

#define READING_NS INT64_C(10000)

static atomic_llong now_ns;
static int64_t reading_ns = READING_NS;

/* In place of executor/device/clock.c's. */
int64_t
exec_now_ns(void)
{
    return atomic_fetch_add(&now_ns, reading_ns);
}

/* --- a profile --- */

static const ModelArch small = {
    .name = (char *)"small",
    .family = MODEL_FAMILY_GPT,
    .n_layers = 2,
    .hidden = 16,
    .n_heads = 2,
    .n_kv_heads = 2,
    .head_dim = 8,
    .ffn_hidden = 16,
    .vocab = 16,
    .max_seq_len = 32,
    .norm_epsilon = MODEL_USUAL_NORM_EPSILON,
    .rope_base = MODEL_USUAL_ROPE_BASE,
    .tied_embeddings = true,
};

typedef struct {
    double took_s;
    GString *told; /* (owned) all notes, a line each */
    int n_shapes, n_links;
    guint n_beside;
} Measured;

static void
keep_note(const char *text, void *user_data)
{
    Measured *measured = user_data;

    g_string_append_printf(measured->told, "%s\n", text);
}

static Measured
measure(bool quick, double budget_s, const int64_t *tps, size_t n_tps)
{
    Measured measured = {.told = g_string_new(NULL)};
    g_autoptr(GError) error = NULL;
    const int64_t begin_ns = exec_now_ns();
    static const int64_t batches[] = {1, 2, 4};
    g_autoptr(Profile) profile = exec_measure(&(ExecMeasureOptions){.arch = &small,
                                                                    .batches = batches,
                                                                    .n_batches = 3,
                                                                    .device = "reference",
                                                                    .concurrency = 1,
                                                                    .tps = tps,
                                                                    .n_tps = n_tps,
                                                                    .quick = quick,
                                                                    .budget_s = budget_s,
                                                                    .note = keep_note,
                                                                    .user_data = &measured},
                                              &error);

    measured.took_s = (double)(exec_now_ns() - begin_ns) * 1e-9;
    g_assert_no_error(error);
    for (guint i = 0; i < profile->measurements->len; i++) {
        const ProfileMeasurement *row =
            &g_array_index(profile->measurements, ProfileMeasurement, i);
        measured.n_shapes += row->op == PROFILE_OP_HEAD && row->context == 0 &&
                             row->pass == PROFILE_PASS_BACKWARD_WEIGHT;
        measured.n_links += row->op >= PROFILE_OP_OPTIMIZER && row->op != PROFILE_OP_OVERHEAD;
    }
    measured.n_beside = profile->interference->len;
    return measured;
}
/* --- tests --- */

static const int64_t tps[] = {1, 2};

/* Whatever the limit, what is measured is within a tenth of it, more where it is longer, and what
 * is not is told. */
static void
test_limits_hold(void)
{
    static const double limits_s[] = {0.03, 0.06, 0.12};

    for (size_t n_tps = 1; n_tps <= 2; n_tps++) {
        int first_shapes = 0;

        for (size_t i = 0; i < G_N_ELEMENTS(limits_s); i++) {
            const double limit_s = limits_s[i] * (double)n_tps;
            const Measured measured = measure(true, limit_s, tps, n_tps);

            g_assert_cmpfloat(measured.took_s, <=, 1.1 * limit_s);
            g_assert_cmpfloat(measured.took_s, >=, 0.6 * limit_s);
            g_assert_cmpint(measured.n_shapes, >=, 1);
            g_assert_cmpint(measured.n_links, >, 0);
            g_assert_nonnull(strstr(measured.told->str, " s there was no time for "));
            g_assert_nonnull(strstr(measured.told->str, n_tps == 1 ? "of 6 shapes" : "at tp 2"));
            g_assert_null(strstr(measured.told->str, "took"));
            g_string_free(measured.told, TRUE);
            if (i == 0)
                first_shapes = measured.n_shapes;
            else if (i + 1 == G_N_ELEMENTS(limits_s))
                g_assert_cmpint(measured.n_shapes, >, first_shapes);
        }
    }
}

/* Beside nothing that is asked for less than a shape takes: one is timed, and links of one size;
 * what runs beside a layer is not, and by how much it was overrun is told. */
static void
test_what_is_timed_in_any_case(void)
{
    const Measured measured = measure(true, 0.001, tps, 1);
    const Measured enough = measure(true, 10, tps, 1);

    g_assert_cmpint(measured.n_shapes, ==, 1);
    g_assert_cmpint(measured.n_links, >, 0);
    g_assert_cmpint(measured.n_links, <, enough.n_links);
    g_assert_cmpuint(measured.n_beside, ==, 0);
    g_assert_nonnull(strstr(measured.told->str, "in 0.001 s there was no time for 5 of 6 shapes; 2 "
                                                "of 3 repetitions; "));
    g_assert_nonnull(strstr(measured.told->str, "a layer beside others on 1 rank and more\n"));
    g_assert_nonnull(strstr(measured.told->str, " s, not 0.001; 0.0"));
    /* The advice is no less than what is enough, and no more than what that leaves over. */
    g_assert_nonnull(strstr(measured.told->str, "; --budget 10 would have time for about all\n"));
    /* With enough time there is nothing to tell. */
    g_assert_cmpuint(enough.n_beside, >, 0);
    g_assert_cmpstr(enough.told->str, ==, "");
    g_string_free(measured.told, TRUE);
    g_string_free(enough.told, TRUE);
}

/* Nobody asked for a limit: all links, what runs beside a layer and the least repetitions are
 * there, though a reading of the clock takes so long that there is no time for any of it. */
static void
test_without_a_limit_all_is_timed(void)
{
    Measured measured;

    reading_ns = INT64_C(100000000);
    measured = measure(false, 0, tps, 1);
    reading_ns = READING_NS;
    const Measured enough = measure(true, 10, tps, 1);

    g_assert_cmpint(measured.n_shapes, ==, 1);
    g_assert_cmpfloat(measured.took_s, >, 60);
    g_assert_cmpuint(measured.n_beside, ==, enough.n_beside);
    g_assert_null(strstr(measured.told->str, "p2p"));
    g_assert_null(strstr(measured.told->str, "beside"));
    g_assert_null(strstr(measured.told->str, "took"));
    g_string_free(measured.told, TRUE);
    g_string_free(enough.told, TRUE);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/measure-time/limits-hold", test_limits_hold);
    g_test_add_func("/executor/measure-time/what-is-timed-in-any-case",
                    test_what_is_timed_in_any_case);
    g_test_add_func("/executor/measure-time/without-a-limit-all-is-timed",
                    test_without_a_limit_all_is_timed);
    return g_test_run();
}
