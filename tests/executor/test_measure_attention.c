/* Tests of executor/measure/attention.h on an emulated GPU, whose newer kernels are faster or slower, wrong,
 * or never end, as it is told. */
#include "executor/measure/attention.h"

#include "executor/device/clock.h"
#include "tests/executor/emulated.h"

static const ModelArch arch = {
    .name = (char *)"one head",
    .family = MODEL_FAMILY_GPT,
    .n_layers = 1,
    .hidden = 64,
    .n_heads = 1,
    .n_kv_heads = 1,
    .head_dim = 64,
    .ffn_hidden = 64,
    .vocab = 16,
    .max_seq_len = 16,
    .norm_epsilon = MODEL_USUAL_NORM_EPSILON,
    .rope_base = MODEL_USUAL_ROPE_BASE,
};

#define LIMIT_S 30

static void
test_newer_kernels_have_to_earn_it(void)
{
    static const struct {
        const char *fake;
        double limit_s;
        const char *kernel, *why;
    } cases[] = {
        {"device_us=10,mma_us=10000", LIMIT_S, "wgmma",
         "wgmma is *.?? times as fast as mma (heads of 64, 16 tokens), its values are 0.00* apart"},
        {"device_us=10,wgmma_us=30000", LIMIT_S, "mma",
         "wgmma is 0.?? times as fast as mma (heads of 64, 16 tokens), its values are 0.00* apart"},
        {"device_us=10,mma_us=10000,wgmma_wrong=1", LIMIT_S, "mma",
         "wgmma is *.?? times as fast as mma *apart: wrong"},
        {"wgmma_hang=1", 2, "mma", "wgmma did not end within 2 s"},
        {"downloads=0", LIMIT_S, "mma", "the comparison fails: *unspecified launch failure*"},
        {"capability=80", LIMIT_S, NULL, NULL}, /* it has the older ones only */
        {"driver=0", LIMIT_S, NULL, NULL},      /* who opens it will say what is wrong */
    };

    if (!emulated_gpu_or_skip())
        return;
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const int64_t begin_ns = exec_now_ns();
        g_setenv("FAKE_CUDA", cases[i].fake, TRUE);
        const ExecAttentionChoice choice = exec_measure_choose_attention(
            "cuda", &arch, DTYPE_BF16, arch.max_seq_len, cases[i].limit_s);
        g_assert_cmpfloat(exec_seconds_since(begin_ns), <, cases[i].limit_s + 20);
        g_test_message("%s: %s", cases[i].fake, choice.why != NULL ? choice.why : "no choice");
        g_assert_cmpstr(choice.kernel, ==, cases[i].kernel);
        g_assert_true((choice.why == NULL) == (cases[i].why == NULL));
        if (choice.why != NULL && !g_pattern_match_simple(cases[i].why, choice.why))
            g_error("%s: %s", cases[i].fake, choice.why);
        g_free(choice.why);
    }
    g_unsetenv("FAKE_CUDA");
}

/* Neither other number formats and devices, nor what the environment has decided. */
static void
test_where_there_is_nothing_to_choose(void)
{
    ExecAttentionChoice choice =
        exec_measure_choose_attention("cpu", &arch, DTYPE_BF16, arch.max_seq_len, LIMIT_S);

    g_assert_null(choice.kernel);
    if (!emulated_gpu_or_skip())
        return;
    choice = exec_measure_choose_attention("cuda", &arch, DTYPE_FP32, arch.max_seq_len, LIMIT_S);
    g_assert_null(choice.kernel);
    g_setenv("DEGAS_CUDA_ATTENTION", "mma", TRUE);
    choice = exec_measure_choose_attention("cuda", &arch, DTYPE_BF16, arch.max_seq_len, LIMIT_S);
    g_assert_null(choice.kernel);
    g_unsetenv("DEGAS_CUDA_ATTENTION");
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/measure-attention/newer-kernels-have-to-earn-it",
                    test_newer_kernels_have_to_earn_it);
    g_test_add_func("/executor/measure-attention/where-there-is-nothing-to-choose",
                    test_where_there_is_nothing_to_choose);
    return g_test_run();
}
