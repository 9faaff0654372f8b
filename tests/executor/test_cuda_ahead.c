/* Tests of ZeRO 3 ahead of use on an emulated GPU: weights that become whole in the device's second
 * queue, from other copies or from the host.
 * Test runner: first. */
#include <string.h>

#include "tests/executor/ahead.h"
#include "tests/executor/emulated.h"

/* Streams are threads that lag behind, and memory is full of NaN: what is read too early shows. */
static bool
late_gpu_or_skip(void)
{
    g_setenv("FAKE_CUDA", "async=1", TRUE);
    return emulated_gpu_or_skip();
}

#define N_STEPS 2

/* Emulated kernels take their time. */
static Combo
few_tokens(int32_t depth)
{
    Combo c = ahead_combo(depth);

    c.slices[0] = 4;
    return c;
}

/* Losses of two steps (owned), the ranks sharing the device. */
static double *
losses_on(const Combo *c, const ModelArch *arch)
{
    g_autoptr(Plan) plan = combo_plan(c);
    g_autoptr(GError) error = NULL;
    g_auto(ExecRunResult) result = {0};
    ExecRunOptions options = combo_options(c, arch, plan);

    options.device = "cuda";
    options.verify = false;
    options.n_steps = N_STEPS;
    options.learning_rate = 1e-2f;
    options.init_deviation = 0.05f;
    g_assert_true(exec_run(&options, &result, &error));
    g_assert_no_error(error);
    return g_steal_pointer(&result.losses);
}

static double *
losses_of(const Combo *c)
{
    const ModelArch arch = combo_arch(c);

    return losses_on(c, &arch);
}

static void
test_same_bits_however_far_ahead(void)
{
    if (!late_gpu_or_skip())
        return;
    for (int i = 0; i < 2; i++) {
        Combo c = few_tokens(0);
        c.dtype = i == 0 ? DTYPE_FP32 : DTYPE_BF16;
        c.pp = 1 + i;
        g_autofree double *expected = losses_of(&c);
        g_assert_cmpfloat(expected[N_STEPS - 1], <, expected[0]);
        for (c.prefetch_layers = 1; c.prefetch_layers <= 3; c.prefetch_layers += 2) {
            g_autofree double *losses = losses_of(&c);
            g_assert_cmpint(memcmp(losses, expected, N_STEPS * sizeof *losses), ==, 0);
        }
    }
}

/* From memory that the device reads by itself, or where there is none from other memory; from a
 * file through buffers that are used again; to one copy or two. */
static void
test_same_bits_with_parameters_on_the_host(void)
{
    static const char *const devices[] = {"async=1", "async=1,pinned=0"};

    if (!late_gpu_or_skip())
        return;
    for (int i = 0; i < 2; i++) {
        Combo c = few_tokens(0);
        c.dtype = i == 0 ? DTYPE_FP32 : DTYPE_BF16;
        c.dp = 1 + i;
        c.n_micro_batches = 1;
        c.offload = PLAN_OFFLOAD_CPU;
        ModelArch arch = ahead_arch(&c);
        arch.vocab = 29;
        /* The optimizer's state is stepped by the host in all of them. */
        g_autofree double *expected = losses_on(&c, &arch);
        c.offload_parameters = true;
        for (int to = PLAN_OFFLOAD_CPU; to <= PLAN_OFFLOAD_NVME; to++)
            for (c.prefetch_layers = 0; c.prefetch_layers <= 2; c.prefetch_layers++) {
                c.offload = (PlanOffload)to;
                g_setenv("FAKE_CUDA", devices[c.prefetch_layers % 2], TRUE);
                g_autofree double *losses = losses_on(&c, &arch);
                g_assert_cmpint(memcmp(losses, expected, N_STEPS * sizeof *losses), ==, 0);
            }
    }
}

/* Every opening is in the trace, as on the host (test_offload.c): 2 forwards and 2 backwards.  When
 * a gather begins is up to the streams; that an op's first begins before the op shows in one of a
 * few runs. */
static void
test_gathers_overlap_computing(void)
{
    if (!late_gpu_or_skip())
        return;
    for (int32_t depth = 0; depth < 3; depth++) {
        const Combo c = few_tokens(depth);
        const ModelArch arch = combo_arch(&c);
        AheadGathers gathers = {0};
        for (int run = 0; run < 10 && gathers.n_before == 0; run++) {
            g_autoptr(Trace) trace = ahead_trace("cuda", &c, &arch);
            gathers = ahead_gathers(trace);
            g_assert_cmpint(gathers.n, ==, depth == 0 ? 1 : 2 * 6 + 2 * 5 + 1);
            if (depth == 0)
                break;
        }
        g_test_message("%d ahead: %d gathers, %d began before their op", depth, (int)gathers.n,
                       (int)gathers.n_before);
        g_assert_true((gathers.n_before > 0) == (depth > 0));
    }
}

/* How often the host waits in a step of @n_micro_batches. */
static int64_t
waits_of(Combo c, int64_t n_micro_batches)
{
    c.n_micro_batches = n_micro_batches;
    const int64_t before = emulated_count("fake_n_waits");
    g_autofree double *losses = losses_of(&c);
    return emulated_count("fake_n_waits") - before;
}

/* Only at a step's ends: three times as many ops wait no more often. */
static void
test_nothing_waits_inside_a_step(void)
{
    if (!late_gpu_or_skip())
        return;
    if (emulated_count("fake_n_waits") < 0) {
        g_test_skip("a real GPU does not count how often it is waited for");
        return;
    }
    for (int offload = 0; offload <= 1; offload++)
        for (int32_t depth = 0; depth <= 2; depth += 2) {
            Combo c = few_tokens(depth);
            c.offload = offload ? PLAN_OFFLOAD_CPU : PLAN_OFFLOAD_NONE;
            c.offload_parameters = offload;
            g_assert_cmpint(waits_of(c, 1), ==, waits_of(c, 3));
        }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/cuda-ahead/same-bits-however-far-ahead",
                    test_same_bits_however_far_ahead);
    g_test_add_func("/executor/cuda-ahead/same-bits-with-parameters-on-the-host",
                    test_same_bits_with_parameters_on_the_host);
    g_test_add_func("/executor/cuda-ahead/gathers-overlap-computing",
                    test_gathers_overlap_computing);
    g_test_add_func("/executor/cuda-ahead/nothing-waits-inside-a-step",
                    test_nothing_waits_inside_a_step);
    return g_test_run();
}
