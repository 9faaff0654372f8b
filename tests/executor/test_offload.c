/* Tests of executor/offload.h: pieces in memory and in a file, and training with the same bits. */
#include "executor/offload.h"

#include <glib/gstdio.h>
#include <string.h>

#include "tests/executor/combo.h"

/* --- pieces --- */

/* Element i of part p of the state after k steps of "twice, and one more for every part":
 * x -> 2 x + p, from i. */
static float
expected_value(int64_t i, int32_t part, int n_steps)
{
    float x = (float)(i % 1000);

    for (int k = 0; k < n_steps; k++)
        x = 2 * x + (float)part;
    return x;
}

typedef struct {
    int64_t at; /* where the next piece must begin */
    int64_t fails_at;
} Stepping;

static bool
twice_and_part(ExecBackend *host, int64_t at, int64_t n, float *const *parts, void *user_data,
               GError **error)
{
    Stepping *s = user_data;

    g_assert_cmpint(at, ==, s->at);
    s->at += n;
    if (at == s->fails_at) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_FAILED, "enough");
        return false;
    }
    for (int32_t p = 0; p < 3; p++)
        for (int64_t i = 0; i < n; i++)
            parts[p][i] = 2 * parts[p][i] + (float)p;
    return true;
}

static void
check_values(ExecOffload *offload, int64_t n, int n_steps)
{
    g_autofree float *values = g_new(float, (size_t)n + 1);

    for (int32_t part = 0; part < 3; part++) {
        g_assert_true(exec_offload_read(offload, part, 0, n, values, NULL));
        for (int64_t i = 0; i < n; i++)
            g_assert_cmpfloat(values[i], ==, expected_value(i, part, n_steps));
    }
    /* Across the border of two pieces. */
    if (n > EXEC_OFFLOAD_PIECE + 5) {
        g_assert_true(exec_offload_read(offload, 2, EXEC_OFFLOAD_PIECE - 5, 10, values, NULL));
        for (int64_t i = 0; i < 10; i++)
            g_assert_cmpfloat(values[i], ==,
                              expected_value(EXEC_OFFLOAD_PIECE - 5 + i, 2, n_steps));
    }
}

static void
test_pieces(void)
{
    static const int64_t lengths[] = {0, 7, EXEC_OFFLOAD_PIECE, 5 * EXEC_OFFLOAD_PIECE + 123};

    for (int to = PLAN_OFFLOAD_CPU; to <= PLAN_OFFLOAD_NVME; to++)
        for (size_t i = 0; i < G_N_ELEMENTS(lengths); i++) {
            const int64_t n = lengths[i];
            const ExecOffloadOptions options = {.to = (PlanOffload)to, .device = "reference"};
            g_autoptr(GError) error = NULL;
            g_autoptr(ExecOffload) offload = exec_offload_new(&options, n, 3, &error);
            g_assert_no_error(error);
            g_autofree float *values = g_new0(float, (size_t)n + 1);
            /* Zeros at first. */
            g_assert_true(exec_offload_read(offload, 1, 0, n, values, NULL));
            for (int64_t j = 0; j < n; j++)
                g_assert_cmpfloat(values[j], ==, 0);
            for (int64_t j = 0; j < n; j++)
                values[j] = expected_value(j, 0, 0);
            for (int32_t part = 0; part < 3; part++)
                g_assert_true(exec_offload_write(offload, part, 0, n, values, NULL));
            for (int step = 1; step <= 3; step++) {
                Stepping s = {.fails_at = -1};
                g_assert_true(exec_offload_each(offload, twice_and_part, &s, &error));
                g_assert_cmpint(s.at, ==, n);
                check_values(offload, n, step);
            }
            Stepping s = {.fails_at = n > EXEC_OFFLOAD_PIECE ? EXEC_OFFLOAD_PIECE : 0};
            if (n > 0) {
                g_assert_false(exec_offload_each(offload, twice_and_part, &s, &error));
                g_assert_error(error, EXEC_ERROR, EXEC_ERROR_FAILED);
            }
        }
}

/* --- files --- */

static void
test_files_have_no_name(void)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *dir = g_dir_make_tmp("degas-test-XXXXXX", &error);
    const ExecOffloadOptions options = {
        .to = PLAN_OFFLOAD_NVME, .rank = 3, .dir = dir, .device = "reference"};
    g_autoptr(ExecOffload) offload = exec_offload_new(&options, 1000, 2, &error);

    g_assert_no_error(error);
    g_autoptr(GDir) files = g_dir_open(dir, 0, &error);
    g_assert_null(g_dir_read_name(files));
    g_assert_cmpint(g_rmdir(dir), ==, 0);
    /* The folder is gone: the next rank has nowhere to go. */
    g_assert_null(exec_offload_new(&options, 1000, 2, &error));
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_IO);
    g_assert_nonnull(strstr(error->message, dir));
    g_assert_nonnull(strstr(error->message, "degas-offload-rank3-"));
}

/* --- training --- */

/* Several pieces of state: 200 thousand parameters on a rank that has all of them. */
static ModelArch
wide_arch(const Combo *c)
{
    ModelArch arch = combo_arch(c);

    arch.hidden = 64;
    arch.head_dim = 16;
    arch.ffn_hidden = 256;
    arch.vocab = 1500;
    return arch;
}

/* Losses of four steps (owned), and what the first rank's device holds of the optimizer. */
static double *
losses_of(const Combo *c, int64_t *state_bytes)
{
    const ModelArch arch = wide_arch(c);
    g_autoptr(Plan) plan = combo_plan(c);
    g_autoptr(GError) error = NULL;
    g_auto(ExecRunResult) result = {0};
    ExecRunOptions options = combo_options(c, &arch, plan);

    options.device = "reference";
    options.verify = false;
    options.want_trace = true;
    options.n_steps = 4;
    options.learning_rate = 1e-2f;
    options.init_deviation = 0.05f;
    g_assert_true(exec_run(&options, &result, &error));
    g_assert_no_error(error);
    *state_bytes = 0;
    for (guint i = 0; i < result.trace->memory->len; i++) {
        const TraceMemory *event = &g_array_index(result.trace->memory, TraceMemory, i);
        if (event->owner == TRACE_MEMORY_OPTIMIZER)
            *state_bytes += event->delta_bytes;
    }
    return g_steal_pointer(&result.losses);
}

/* The same loops step the state wherever it is; and it is not on the device: two moments, and
 * masters beside bf16, of the rank's share of the parameters. */
static void
test_training_has_the_same_bits(void)
{
    for (int dtype = 0; dtype < 2; dtype++)
        for (int32_t zero_stage = 0; zero_stage <= 3; zero_stage++) {
            Combo c = combo_default();
            int64_t held, other;
            c.dtype = dtype == 0 ? DTYPE_FP32 : DTYPE_BF16;
            c.zero_stage = zero_stage;
            c.dp = zero_stage > 0 ? 2 : 1;
            g_autofree double *expected = losses_of(&c, &held);
            const ModelArch arch = wide_arch(&c);
            const double state =
                (double)model_parameters(&arch) / (double)c.dp * (c.dtype == DTYPE_FP32 ? 8 : 12);
            /* Units are rounded up to a cache line for every copy. */
            g_assert_cmpfloat((double)held, >=, state);
            g_assert_cmpfloat((double)held, <=, 1.01 * state);
            for (int to = PLAN_OFFLOAD_CPU; to <= PLAN_OFFLOAD_NVME; to++) {
                c.offload = (PlanOffload)to;
                g_autofree double *losses = losses_of(&c, &other);
                g_assert_cmpint(memcmp(losses, expected, 4 * sizeof *losses), ==, 0);
                g_assert_cmpint(other, ==, 0);
            }
        }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/offload/pieces", test_pieces);
    g_test_add_func("/executor/offload/files-have-no-name", test_files_have_no_name);
    g_test_add_func("/executor/offload/training-has-the-same-bits",
                    test_training_has_the_same_bits);
    return g_test_run();
}
