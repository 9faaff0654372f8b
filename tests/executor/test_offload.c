/* Tests of executor/model/offload.h: pieces in memory and in a file, and training with the same
 * bits. */
#include "executor/model/offload.h"

#include <glib/gstdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/executor/ahead.h"

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
twice_and_part(ExecBackend *host, int64_t at, int64_t n, void *const *parts, void *user_data,
               GError **error)
{
    Stepping *s = user_data;

    g_assert_cmpint(at, ==, s->at);
    s->at += n;
    if (at == s->fails_at) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_FAILED, "enough");
        return false;
    }
    for (int32_t p = 0; p < 3; p++) {
        float *x = parts[p];
        for (int64_t i = 0; i < n; i++)
            x[i] = 2 * x[i] + (float)p;
    }
    return true;
}

static void
check_values(ExecOffload *offload, int64_t n, int n_steps)
{
    g_autofree float *values = g_new(float, (size_t)n + 1);

    for (int32_t part = 0; part < 3; part++) {
        g_assert_true(exec_offload_move(offload, false, part, 0, n, values, NULL));
        for (int64_t i = 0; i < n; i++)
            g_assert_cmpfloat(values[i], ==, expected_value(i, part, n_steps));
    }
    /* Across the border of two pieces. */
    if (n > EXEC_OFFLOAD_PIECE + 5) {
        g_assert_true(
            exec_offload_move(offload, false, 2, EXEC_OFFLOAD_PIECE - 5, 10, values, NULL));
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
            g_assert_true(exec_offload_move(offload, false, 1, 0, n, values, NULL));
            for (int64_t j = 0; j < n; j++)
                g_assert_cmpfloat(values[j], ==, 0);
            for (int64_t j = 0; j < n; j++)
                values[j] = expected_value(j, 0, 0);
            for (int32_t part = 0; part < 3; part++)
                g_assert_true(exec_offload_move(offload, true, part, 0, n, values, NULL));
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

/* Losses of four steps (owned), and what the first rank's device holds of the optimizer and of
 * weights before the first op. */
static double *
losses_of(const Combo *c, int64_t *state_bytes, int64_t *weight_bytes)
{
    const ModelArch arch = ahead_arch(c);
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
    *state_bytes = *weight_bytes = 0;
    for (guint i = 0; i < result.trace->memory->len; i++) {
        const TraceMemory *event = &g_array_index(result.trace->memory, TraceMemory, i);
        if (event->owner == TRACE_MEMORY_OPTIMIZER)
            *state_bytes += event->delta_bytes;
        if (event->owner == TRACE_MEMORY_WEIGHTS)
            *weight_bytes += event->delta_bytes;
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
            int64_t held, other, weights, weights_off;
            c.dtype = dtype == 0 ? DTYPE_FP32 : DTYPE_BF16;
            c.zero_stage = zero_stage;
            c.dp = zero_stage > 0 ? 2 : 1;
            g_autofree double *expected = losses_of(&c, &held, &weights);
            const ModelArch arch = ahead_arch(&c);
            const double state =
                (double)model_parameters(&arch) / (double)c.dp * (c.dtype == DTYPE_FP32 ? 8 : 12);
            /* Units are rounded up to a cache line for every copy. */
            g_assert_cmpfloat((double)held, >=, state);
            g_assert_cmpfloat((double)held, <=, 1.01 * state);
            for (int to = PLAN_OFFLOAD_CPU; to <= PLAN_OFFLOAD_NVME; to++) {
                c.offload = (PlanOffload)to;
                g_autofree double *losses = losses_of(&c, &other, &weights_off);
                g_assert_cmpint(memcmp(losses, expected, 4 * sizeof *losses), ==, 0);
                g_assert_cmpint(other, ==, 0);
                g_assert_cmpint(weights_off, ==, weights);
            }
        }
}

/* Weights too: on the device are those of norms alone, whole, 2 of every layer and the last one;
 * and however far ahead others are fetched and gathered, also over one copy. */
static void
test_offloaded_parameters_have_the_same_bits(void)
{
    for (int i = 0; i < 8; i++) {
        Combo c = combo_default();
        int64_t held, weights;
        c.dtype = i % 2 == 0 ? DTYPE_FP32 : DTYPE_BF16;
        c.zero_stage = 3;
        c.dp = i / 2 % 2 == 0 ? 2 : 1;
        c.pp = i / 4 == 0 ? 1 : 2;
        c.n_layers = 4;
        const ModelArch arch = ahead_arch(&c);
        g_autofree double *expected = losses_of(&c, &held, &weights);
        for (int to = PLAN_OFFLOAD_CPU; to <= PLAN_OFFLOAD_NVME; to++)
            for (int32_t depth = 0; depth < 4; depth++) {
                Combo off = c;
                off.offload = (PlanOffload)to;
                off.offload_parameters = true;
                off.prefetch_layers = depth;
                g_autofree double *losses = losses_of(&off, &held, &weights);
                g_assert_cmpint(memcmp(losses, expected, 4 * sizeof *losses), ==, 0);
                g_assert_cmpint(held, ==, 0);
                g_assert_cmpint(weights, <=, (2 * arch.n_layers + 1) * 2 * arch.hidden * 4 + 4096);
            }
    }
}

/* What is fetched ahead is what was written, of any part, piece or slot; narrow parts too. */
static void
test_fetches(void)
{
    enum {
        N = 3 * EXEC_OFFLOAD_PIECE + 100
    };
    const size_t n_fetched = 70000;

    for (int to = PLAN_OFFLOAD_CPU; to <= PLAN_OFFLOAD_NVME; to++) {
        const ExecOffloadOptions options = {.to = (PlanOffload)to,
                                            .device = "reference",
                                            .parameters = true,
                                            .narrow = true,
                                            .n_fetches = 2,
                                            .storage = DTYPE_BF16};
        g_autoptr(GError) error = NULL;
        g_autoptr(ExecOffload) offload = exec_offload_new(&options, N, 2, &error);
        g_assert_no_error(error);
        g_autofree float *wide = g_new(float, N);
        g_autofree uint16_t *narrow = g_new(uint16_t, N);
        for (int64_t i = 0; i < N; i++) {
            wide[i] = (float)i;
            narrow[i] = (uint16_t)(7 * i);
        }
        g_assert_true(exec_offload_move(offload, true, 1, 0, N, wide, &error));
        g_assert_true(exec_offload_move(offload, true, 2, 0, N, narrow, &error));
        for (int64_t at = 0; at + (int64_t)n_fetched < N; at += 30000) {
            g_assert_true(exec_offload_fetch(offload, 0, 1, at, (int64_t)n_fetched, &error));
            g_assert_true(exec_offload_fetch(offload, 1, 2, at, (int64_t)n_fetched - 1, &error));
            const uint16_t *b = exec_offload_fetched(offload, 1, &error);
            const float *a = exec_offload_fetched(offload, 0, &error);
            g_assert_cmpint(memcmp(a, wide + at, n_fetched * sizeof *a), ==, 0);
            g_assert_cmpint(memcmp(b, narrow + at, (n_fetched - 1) * sizeof *b), ==, 0);
        }
    }
}

/* Cuts the files of rank 1 short before its second backward, as they have no name: through the
 * process's own table of them. */
static bool
cut_files(int32_t rank, int64_t step, ScheduleOp op, void *user_data, GError **error)
{
    const char *dir = user_data;

    if (rank != 1 || op.kind != SCHEDULE_OP_BACKWARD || op.micro_batch != 1)
        return true;
    for (int fd = 3; fd < 256; fd++) {
        g_autofree char *link = g_strdup_printf("/proc/self/fd/%d", fd);
        g_autofree char *to = g_file_read_link(link, NULL);
        if (to != NULL && g_str_has_prefix(to, dir) && strstr(to, "offload-rank1") != NULL)
            g_assert_cmpint(ftruncate(fd, 0), ==, 0);
    }
    return true;
}

/* One line that names the rank, the op and the file. */
static void
test_a_short_file_is_named(void)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *dir = g_dir_make_tmp("degas-test-XXXXXX", &error);
    Combo c = combo_default();
    c.zero_stage = 3;
    c.dp = 2;
    c.n_layers = 4;
    c.offload = PLAN_OFFLOAD_NVME;
    c.offload_parameters = true;
    const ModelArch arch = ahead_arch(&c);
    g_autoptr(Plan) plan = combo_plan(&c);
    g_auto(ExecRunResult) result = {0};
    ExecRunOptions options = combo_options(&c, &arch, plan);

    options.verify = false;
    options.offload_dir = dir;
    options.before_op = cut_files;
    options.before_op_data = dir;
    g_assert_false(exec_run(&options, &result, &error));
    g_test_message("%s", error->message);
    g_assert_nonnull(strstr(error->message, "rank 1 failed in B1.0 of step 0: "));
    g_assert_nonnull(strstr(error->message, "degas-offload-rank1-"));
    g_assert_nonnull(strstr(error->message, "cannot read the offloaded state: "));
    g_assert_null(strchr(error->message, '\n'));
    g_assert_cmpint(g_rmdir(dir), ==, 0);
}

/* --- ahead of use --- */

/*
 * Gathers are under way while ops compute: one that ends in an op for which it is the first began
 * in the op before, whatever that waited for, and they follow each other on their stream.  Of 2
 * forwards with tables, 4 layers and the head, and 2 backwards with head and layers, every opening
 * is in the trace; norms are gathered at the end of the step.
 */
static void
test_gathers_overlap_computing(void)
{
    for (int32_t depth = 0; depth < 3; depth++) {
        const Combo c = ahead_combo(depth);
        const ModelArch arch = ahead_arch(&c);
        g_autoptr(Trace) trace = ahead_trace("cpu", &c, &arch);
        const AheadGathers gathers = ahead_gathers(trace);
        g_test_message("%d ahead: %d gathers, %d beside ops, %d in two of them", depth,
                       (int)gathers.n, (int)gathers.n_beside, (int)gathers.n_across);
        g_assert_cmpint(gathers.n, ==, depth == 0 ? 1 : 2 * 6 + 2 * 5 + 1);
        g_assert_cmpint(gathers.n_beside, ==, depth == 0 ? 0 : 2 * 6 + 2 * 5);
        g_assert_cmpint(gathers.n_across, ==, depth == 0 ? 0 : 3);
        g_assert_cmpint(gathers.n_before, ==, depth == 0 ? 0 : 4);
    }
}

/* Tables of more bytes than the layers ahead: every op's first opening is one, and begins in the
 * op; layers are ahead of use all the same.  Before the head there are two layers' places, so only
 * with three ahead it fits. */
static void
test_large_tables_are_not_ahead(void)
{
    for (int32_t depth = 1; depth < 4; depth++) {
        const Combo c = ahead_combo(depth);
        ModelArch arch = ahead_arch(&c);
        arch.vocab = 2000; /* 128 thousand elements, a layer has 50 */
        g_autoptr(Trace) trace = ahead_trace("cpu", &c, &arch);
        const AheadGathers gathers = ahead_gathers(trace);
        g_assert_cmpint(gathers.n, ==, 2 * 6 + 2 * 5 + 1);
        g_assert_cmpint(gathers.n_before, ==, depth < 3 ? 0 : 4);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/offload/pieces", test_pieces);
    g_test_add_func("/executor/offload/files-have-no-name", test_files_have_no_name);
    g_test_add_func("/executor/offload/fetches", test_fetches);
    g_test_add_func("/executor/offload/offloaded-parameters-have-the-same-bits",
                    test_offloaded_parameters_have_the_same_bits);
    g_test_add_func("/executor/offload/a-short-file-is-named", test_a_short_file_is_named);
    g_test_add_func("/executor/offload/gathers-overlap-computing", test_gathers_overlap_computing);
    g_test_add_func("/executor/offload/large-tables-are-not-ahead",
                    test_large_tables_are_not_ahead);
    g_test_add_func("/executor/offload/training-has-the-same-bits",
                    test_training_has_the_same_bits);
    return g_test_run();
}
