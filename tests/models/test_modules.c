/* Tests of models/modules.h: what each module of selective recompute repeats and frees, by hand. */
#include "models/modules.h"

#define S INT64_C(256) /* tokens of one sequence */
#define H INT64_C(512)
#define F INT64_C(1536)
#define E INT64_C(2) /* bytes of bf16 */

static ModelArch
dense(void)
{
    return (ModelArch){.name = (char *)"test",
                       .family = MODEL_FAMILY_LLAMA,
                       .n_layers = 2,
                       .hidden = H,
                       .n_heads = 8,
                       .n_kv_heads = 8,
                       .head_dim = 64,
                       .ffn_hidden = F,
                       .max_seq_len = 2048};
}

static ModelArch
experts(void)
{
    ModelArch arch = dense();

    arch.experts = (ModelExperts){.n_experts = 16, .top_k = 4, .ffn_hidden = 256, .n_shared = 2};
    return arch;
}

static ModelArch
latent(void)
{
    ModelArch arch = dense();

    arch.mla = (ModelMla){.q_lora_rank = 192,
                          .kv_lora_rank = 128,
                          .qk_nope_head_dim = 64,
                          .qk_rope_head_dim = 32,
                          .v_head_dim = 48};
    arch.head_dim = 96;
    return arch;
}

/* What a layer frees, K and V of slices apart, and the FLOPs that it runs again. */
typedef struct {
    int64_t bytes, kv_bytes;
    double flops;
    int n_again;
} Freed;

static Freed
freed_of(const ModelArch *arch, uint32_t set, bool row_blocks)
{
    const ModelShape shape = {.batch = 1,
                              .tokens = S,
                              .tp = 1,
                              .cp = 1,
                              .ep = 1,
                              .dtype = DTYPE_BF16,
                              .flash_attention = true,
                              .expert_imbalance = 1.0,
                              .recompute_modules = set,
                              .row_blocks = row_blocks};
    ModelOp ops[MODEL_MAX_OPS];
    const size_t n = model_ops(arch, MODEL_PART_LAYER, 0, &shape, ops);
    Freed sum = {0};

    for (size_t i = 0; i < n; i++) {
        sum.bytes += ops[i].again_bytes;
        sum.kv_bytes += ops[i].again_kv_bytes;
        sum.flops += ops[i].again_fraction * ops[i].forward_flops;
        sum.n_again += ops[i].again_fraction > 0.0;
    }
    return sum;
}

static Freed
freed(const ModelArch *arch, uint32_t set)
{
    return freed_of(arch, set, false);
}

#define BIT(module) (UINT32_C(1) << (module))
#define SCORES (2.0 * 8 * (double)(S * S) * (64 + 64)) /* 2 for each multiply-add */

static void
test_modules(void)
{
    const ModelArch mlp = dense(), moe = experts(), mla = latent();
    const int64_t rows = 4 * S, fe = 256,
                  fs = 512; /* to experts; of an expert; of both shared ones */
    const struct {
        const ModelArch *arch;
        uint32_t set;
        int64_t bytes, kv_bytes;
        double flops;
    } cases[] = {
        /* Row sums of the softmax; the result is the projection's. */
        {&mlp, BIT(MODEL_MODULE_CORE_ATTENTION), 4 * 8 * S, 0, SCORES},
        {&mlp, 0, 4 * 8 * S, 0, SCORES},
        /* The results of both norms, which the products behind them keep. */
        {&mlp, BIT(MODEL_MODULE_LAYERNORM), 2 * S * H * E, 0, 0},
        /* Gate, up, and the input of the way down; all three products run again. */
        {&mlp, BIT(MODEL_MODULE_MLP), 3 * S * F * E, 0, 6.0 * (double)(S * H * F)},
        {&mlp, BIT(MODEL_MODULE_MLP) | BIT(MODEL_MODULE_LAYERNORM), 3 * S * F * E + 2 * S * H * E,
         0, 6.0 * (double)(S * H * F)},
        /* The input of the experts' second products. */
        {&moe, BIT(MODEL_MODULE_MOE_ACTIVATION), rows * fe * E, 0, 0},
        {&moe, BIT(MODEL_MODULE_SHARED_EXPERTS), 3 * S * fs * E, 0, 6.0 * (double)(S * H * fs)},
        /* Scores in fp32 and what was chosen, rows at experts, and within experts; and the shared. */
        {&moe, BIT(MODEL_MODULE_MOE),
         4 * S * 16 + 8 * rows + rows * H * E + 3 * rows * fe * E + 3 * S * fs * E, 0,
         2.0 * (double)(S * H * 16) + 6.0 * (double)(rows * H * fe) + 6.0 * (double)(S * H * fs)},
        /* One in the other: nothing counts twice. */
        {&moe, BIT(MODEL_MODULE_MOE) | BIT(MODEL_MODULE_SHARED_EXPERTS),
         4 * S * 16 + 8 * rows + rows * H * E + 3 * rows * fe * E + 3 * S * fs * E, 0,
         2.0 * (double)(S * H * 16) + 6.0 * (double)(rows * H * fe) + 6.0 * (double)(S * H * fs)},
        /* Queries [8, 96]; keys [8, 96] and values [8, 48]. */
        {&mla, BIT(MODEL_MODULE_MLA_UP), S * 8 * 96 * E, S * 8 * (96 + 48) * E,
         2.0 * (double)(S * 192 * 8 * 96) + 2.0 * (double)(S * 128 * 8 * (64 + 48))},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const Freed f = freed(cases[i].arch, cases[i].set);
        g_test_message("%zu", i);
        g_assert_cmpint(f.bytes, ==, cases[i].bytes);
        g_assert_cmpint(f.kv_bytes, ==, cases[i].kv_bytes);
        g_assert_cmpfloat_with_epsilon(f.flops, cases[i].flops, 1e-9 * (1 + cases[i].flops));
        g_assert_cmpint(f.n_again, >, 0);
    }
}

/* degas's own executor does not run the product down again: two products of three. */
static void
test_repetition_ends_with_what_is_read(void)
{
    const ModelArch mlp = dense();
    const Freed f = freed_of(&mlp, BIT(MODEL_MODULE_MLP), true);

    g_assert_cmpint(f.bytes, ==, 3 * S * F * E);
    g_assert_cmpfloat_with_epsilon(f.flops, 4.0 * (double)(S * H * F), 1e-3);
}

/* Where results alone are normed, products read the layer's input as it is, and nothing is freed; degas's own
 * executor keeps the norms of parallel blocks, others repeat both, or the one that both halves read. */
static void
test_norms_that_are_there(void)
{
    ModelArch arch = dense();

    arch.norm_place = MODEL_NORM_PLACE_POST;
    g_assert_cmpint(freed(&arch, BIT(MODEL_MODULE_LAYERNORM)).bytes, ==, 0);
    g_assert_cmpint(freed(&arch, BIT(MODEL_MODULE_LAYERNORM)).n_again, ==, 0);
    arch.norm_place = MODEL_NORM_PLACE_SANDWICH;
    g_assert_cmpint(freed(&arch, BIT(MODEL_MODULE_LAYERNORM)).bytes, ==, 2 * S * H * E);
    arch.norm_place = MODEL_NORM_PLACE_PRE;
    arch.blocks = MODEL_BLOCKS_PARALLEL;
    g_assert_cmpint(freed(&arch, BIT(MODEL_MODULE_LAYERNORM)).bytes, ==, 2 * S * H * E);
    g_assert_cmpint(freed_of(&arch, BIT(MODEL_MODULE_LAYERNORM), true).bytes, ==, 0);
    arch.blocks = MODEL_BLOCKS_PARALLEL_ONE_NORM;
    g_assert_cmpint(freed(&arch, BIT(MODEL_MODULE_LAYERNORM)).bytes, ==, S * H * E);
}

/* A module that the layer has not does nothing. */
static void
test_absent_modules_do_nothing(void)
{
    const ModelArch mlp = dense();
    const Freed f = freed(&mlp, BIT(MODEL_MODULE_MOE) | BIT(MODEL_MODULE_MLA_UP) |
                                    BIT(MODEL_MODULE_MOE_ACTIVATION));

    g_assert_cmpint(f.bytes + f.kv_bytes, ==, 0);
    g_assert_cmpint(f.n_again, ==, 0);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/models/modules/free-and-repeat", test_modules);
    g_test_add_func("/models/modules/repetition-ends-with-what-is-read",
                    test_repetition_ends_with_what_is_read);
    g_test_add_func("/models/modules/norms-that-are-there", test_norms_that_are_there);
    g_test_add_func("/models/modules/absent", test_absent_modules_do_nothing);
    return g_test_run();
}
