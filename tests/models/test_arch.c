/* Tests of models/arch.h less its op list: parameters, FLOPs, shape checks. */
#include "models/ops.h"

#include <math.h>
#include <string.h>

#include "tests/models/arch_case.h"

/* --- parameters --- */

/*
 * Exact counts: of the released weights, or P = 12 l h^2 (1 + 13/(12 h) + (V + s)/(12 l h)) of
 * 2104.04473 equation 2, plus the final norm's 2 h.
 */
static void
test_parameters_are_the_released_counts(void)
{
    static const struct {
        const char *name;
        int64_t parameters;
    } cases[] = {
        {"gpt2-124m", 124439808},          {"gpt2-1.5b", 1557611200},
        {"llama2-7b", 6738415616},         {"llama2-13b", 13015864320},
        {"llama2-70b", 68976648192},       {"llama3-8b", 8030261248},
        {"llama3-70b", 70553706496},       {"llama3-405b", 405853388800},
        {"mixtral-8x7b", 46702792704},     {"qwen3-32b", 32762123264},
        {"gemma3-12b", 11766034176},       {"glm-4.5-air", 106852245504},
        {"deepseek-v2-lite", 15706484224}, {"llama4-scout", 107769861120},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(ModelArch) arch = load(cases[i].name);

        g_test_message("%s", cases[i].name);
        g_assert_cmpint(model_parameters(arch), ==, cases[i].parameters);
    }
}

static void
test_parameters_round_to_the_published_ones(void)
{
    /* 2104.04473 table 1 and 2205.05198 table 3 (one digit after the point), 2102.07988 table 1
     * (whole 10^9, without embedding: 0.12e9 for 1b), 2412.19437 (671B; 37B active), 2401.04088
     * (12.9B active), 2512.20848 (31.6B; 3.6B active with embeddings); of the larger Nemotron 3 their
     * names (120B-A12B, 550B-A55B, which may leave a table of 1.07B out). */
    static const struct {
        const char *name;
        bool active;
        double billions, tolerance;
    } cases[] = {
        {"megatron-1.7b", false, 1.7, 0.05},     {"megatron-3.6b", false, 3.6, 0.05},
        {"megatron-7.5b", false, 7.5, 0.05},     {"megatron-18.4b", false, 18.4, 0.05},
        {"megatron-39.1b", false, 39.1, 0.05},   {"megatron-76.1b", false, 76.1, 0.05},
        {"megatron-145.6b", false, 145.6, 0.05}, {"megatron-310.1b", false, 310.1, 0.05},
        {"megatron-530b", false, 529.6, 0.05},   {"megatron-1t", false, 1008.0, 0.05},
        {"megatron-22b", false, 22.0, 0.5},      {"gpt3-1b", false, 1.0, 0.5},
        {"gpt3-13b", false, 13.0, 0.5},          {"gpt3-44b", false, 44.0, 0.5},
        {"gpt3-175b", false, 175.0, 0.5},        {"deepseek-v3", false, 671.0, 0.5},
        {"deepseek-v3", true, 37.0, 0.6},        {"mixtral-8x7b", true, 12.9, 0.05},
        {"llama2-7b", true, 6.74, 0.005},        {"nemotron3-nano", false, 31.6, 0.05},
        {"nemotron3-nano", true, 3.6, 0.05},     {"nemotron3-super", false, 120.0, 1.0},
        {"nemotron3-super", true, 12.0, 1.0},    {"nemotron3-ultra", false, 550.0, 5.0},
        {"nemotron3-ultra", true, 55.0, 1.2},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(ModelArch) arch = load(cases[i].name);
        int64_t n = cases[i].active ? model_active_parameters(arch) : model_parameters(arch);

        g_test_message("%s: %.3f", cases[i].name, (double)n / 1e9);
        g_assert_cmpfloat_with_epsilon((double)n / 1e9, cases[i].billions, cases[i].tolerance);
    }
}

static void
test_megatron_parameters_follow_equation_2(void)
{
    g_autoptr(GPtrArray) names = model_arch_builtin_names();
    int n_checked = 0;

    for (guint i = 0; i < names->len; i++) {
        g_autoptr(ModelArch) arch = load(g_ptr_array_index(names, i));
        int64_t l = arch->n_layers, h = arch->hidden;

        if (arch->family != MODEL_FAMILY_GPT)
            continue;
        /* 12 l h^2 + 13 l h + (V + s) h, and the final norm. */
        g_assert_cmpint(model_parameters(arch), ==,
                        12 * l * h * h + 13 * l * h + (arch->vocab + arch->max_seq_len) * h +
                            2 * h);
        n_checked++;
    }
    g_assert_cmpint(n_checked, >=, 17);
}

/* tp and ep shares add up to the whole and what is replicated. */
static void
test_shares_add_up(void)
{
    g_autoptr(ModelArch) gpt = load("gpt3-175b");
    g_autoptr(ModelArch) llama = load("llama3-70b");
    g_autoptr(ModelArch) mixtral = load("mixtral-8x7b");
    int64_t h = gpt->hidden;

    for (int64_t t = 1; t <= 8; t *= 2) {
        /* Replicated: two norms (4 h) and the biases of the two row-split products (2 h). */
        g_assert_cmpint(t * model_part_parameters(gpt, MODEL_PART_LAYER, 0, t, 1, 1, false), ==,
                        model_part_parameters(gpt, MODEL_PART_LAYER, 0, 1, 1, 1, false) +
                            (t - 1) * 6 * h);
        g_assert_cmpint(t * model_part_parameters(llama, MODEL_PART_LAYER, 0, t, 1, 1, false), ==,
                        model_part_parameters(llama, MODEL_PART_LAYER, 0, 1, 1, 1, false) +
                            (t - 1) * 2 * llama->hidden);
        g_assert_cmpint(t * model_part_parameters(llama, MODEL_PART_EMBEDDING, 0, t, 1, 1, false),
                        ==, llama->vocab * llama->hidden);
        g_assert_cmpint(t * model_expert_parameters(mixtral, 0, t, 1), ==,
                        8 * 3 * mixtral->hidden * 14336);
    }
    /* 16 ranks share 8 key/value heads: each holds one of 128 columns, not half of one. */
    g_assert_cmpint(model_part_parameters(llama, MODEL_PART_LAYER, 0, 16, 1, 1, false), ==,
                    2 * 8192 + 8192 * (4 + 2 * 1) * 128 + 4 * 128 * 8192 + 3 * 8192 * 28672 / 16);
    /* tp does not divide experts. */
    g_assert_cmpint(8 * model_expert_parameters(mixtral, 0, 4, 8), ==,
                    model_expert_parameters(mixtral, 0, 4, 1));
}

static void
test_vocabulary_is_padded_to_tp(void)
{
    g_autoptr(ModelArch) arch = load("gpt2-124m");

    /* 50257 = 8 * 6282 + 1 */
    g_assert_cmpint(model_part_parameters(arch, MODEL_PART_EMBEDDING, 0, 8, 1, 1, false), ==,
                    (6283 + 1024) * 768);
    g_assert_cmpint(model_part_parameters(arch, MODEL_PART_HEAD, 0, 8, 1, 1, false), ==, 2 * 768);
    g_assert_cmpint(model_part_parameters(arch, MODEL_PART_HEAD, 0, 8, 1, 1, true), ==,
                    2 * 768 + 6283 * 768);
}

static void
test_without_vocabulary_there_are_layers_only(void)
{
    g_autoptr(ModelArch) arch = load("gpt3-1b");
    const ModelShape shape = {
        .batch = 1, .tokens = 8, .tp = 1, .cp = 1, .ep = 1, .expert_imbalance = 1.0};
    ModelOp ops[MODEL_MAX_OPS];

    arch->vocab = 0;
    g_assert_cmpint(model_parameters(arch), ==, 24 * (12 * 2048 * 2048 + 13 * 2048));
    g_assert_cmpuint(model_ops(arch, MODEL_PART_HEAD, 0, &shape, ops), ==, 0);
    g_assert_cmpuint(model_ops(arch, MODEL_PART_EMBEDDING, 0, &shape, ops), ==, 0);
}

/* --- FLOPs --- */

/*
 * 2104.04473 equation 3 counts a recomputed forward of the layers:
 * F = 96 B s l h^2 (1 + s/(6h) + V/(16 l h)); its terms are 4 forwards of the layers and 3 of the
 * head, so that F = 4/3 (ours - head) + head, head = 6 B s h V.
 */
static void
test_flops_are_megatrons_equation_3(void)
{
    static const char *const names[] = {"megatron-1.7b", "megatron-22b", "megatron-1t",
                                        "gpt3-175b"};

    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autoptr(ModelArch) arch = load(names[i]);
        double b = 512.0, s = 2048.0, l = (double)arch->n_layers, h = (double)arch->hidden;
        double vocab = (double)arch->vocab;
        double published =
            96.0 * b * s * l * h * h * (1.0 + s / (6.0 * h) + vocab / (16.0 * l * h));
        double head = 6.0 * b * s * h * vocab;
        double ours = model_flops_per_iteration(arch, b, 2048);

        g_assert_cmpfloat_with_epsilon(4.0 / 3.0 * (ours - head) + head, published,
                                       1e-12 * published);
    }
}

/*
 * 6 N per token and 12 l h s of attention [PaLM 2204.02311 appendix B], N the parameters of the
 * products one token meets: all but norms and the looked-up table.
 */
static void
test_flops_are_6n_and_attention(void)
{
    static const char *const names[] = {"llama2-7b", "llama3-405b", "mixtral-8x7b"};

    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autoptr(ModelArch) arch = load(names[i]);
        int64_t s = 4096, h = arch->hidden;
        double n = (double)(model_active_parameters(arch) - arch->vocab * h -
                            (2 * arch->n_layers + 1) * h);
        double attention = 12.0 * (double)arch->n_layers * (double)h * (double)s;
        double expect = 3.0 * (double)s * (6.0 * n + attention);

        g_assert_cmpfloat_with_epsilon(model_flops_per_iteration(arch, 3.0, s), expect,
                                       1e-12 * expect);
    }
}

/* --- shapes --- */

static void
test_shapes_are_checked(void)
{
    static const struct {
        const char *model;
        int64_t batch, tokens, context, tp, cp, ep;
        double expert_imbalance;
        const char *expect; /* NULL: sound */
    } cases[] = {
        {"gpt3-175b", 1, 2048, 0, 8, 1, 1, 1.0, NULL},
        {"gpt3-175b", 1, 2048, 0, 5, 1, 1, 1.0,
         "tp 5 does not divide the 96 heads of gpt3-175b; legal: 1, 2,"},
        {"gpt2-1.5b", 1, 1024, 0, 2, 1, 1, 1.0, "legal: 1, 5, 25"},
        {"llama3-70b", 1, 2048, 0, 16, 1, 1, 1.0, NULL},
        /* 40 heads, 13824 columns */
        {"llama2-13b", 1, 2048, 0, 5, 1, 1, 1.0, "MLP columns"},
        {"mixtral-8x7b", 1, 2048, 0, 1, 1, 4, 1.5, NULL},
        {"mixtral-8x7b", 1, 2048, 0, 1, 1, 3, 1.0, "legal: 1, 2, 4, 8"},
        {"mixtral-8x7b", 1, 2048, 0, 1, 1, 16, 1.0, "legal: 1, 2, 4, 8"},
        {"llama3-8b", 1, 2048, 0, 1, 1, 2, 1.0, "llama3-8b has no experts"},
        {"deepseek-v3", 1, 4096, 0, 8, 1, 64, 1.0, NULL},
        {"gpt3-1b", 1, 2048, 0, 0, 1, 1, 1.0, "tp 0"},
        {"gpt3-1b", 1, 2048, 0, -8, 1, 1, 1.0, "tp -8"},
        {"gpt3-1b", 1, 2048, 0, 1, 0, 1, 1.0, "cp 0"},
        {"gpt3-1b", 1, 2048, 0, 1, 1, 0, 1.0, "ep 0"},
        {"gpt3-1b", 1, 0, 0, 1, 1, 1, 1.0, "tokens 0"},
        {"gpt3-1b", 0, 2048, 0, 1, 1, 1, 1.0, "micro-batch 0"},
        {"gpt3-1b", 1, 2048, -1, 1, 1, 1, 1.0, "context -1"},
        {"gpt3-1b", 1, 2048, 0, 1, 1, 1, 0.5, "imbalance"},
        {"gpt3-1b", 1, 2048, 0, 1, 1, 1, (double)NAN, "imbalance"},
        {"gpt3-1b", INT64_MAX, 2048, 0, 1, 1, 1, 1.0, "micro-batch"},
        {"gpt3-1b", 1, 1 << 30, 0, 1, 1, 1, 1.0, "more than 4.5e15 bytes"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const ModelShape shape = {
            .batch = cases[i].batch,
            .tokens = cases[i].tokens,
            .context = cases[i].context,
            .tp = cases[i].tp,
            .cp = cases[i].cp,
            .ep = cases[i].ep,
            .dtype = DTYPE_BF16,
            .expert_imbalance = cases[i].expert_imbalance,
        };
        g_autoptr(ModelArch) arch = load(cases[i].model);
        g_autoptr(GError) error = NULL;
        bool sound = model_shape_check(arch, &shape, &error);

        g_test_message("%s: %s", cases[i].model, error ? error->message : "sound");
        g_assert_cmpint(sound, ==, cases[i].expect == NULL);
        g_assert_cmpint(sound, ==, error == NULL);
        if (cases[i].expect != NULL) {
            g_assert_error(error, MODEL_ARCH_ERROR, MODEL_ARCH_ERROR_SHAPE);
            g_assert_nonnull(strstr(error->message, cases[i].expect));
        }
    }
}

/* --- differences --- */

static void
test_a_difference_is_named(void)
{
    g_autoptr(ModelArch) arch = load("mixtral-8x7b");
    g_autoptr(ModelArch) other = model_arch_copy(arch);
    int64_t *const fields[] = {
        &other->n_layers,
        &other->hidden,
        &other->n_heads,
        &other->n_kv_heads,
        &other->head_dim,
        &other->ffn_hidden,
        &other->vocab,
        &other->experts.n_experts,
        &other->experts.top_k,
        &other->experts.ffn_hidden,
        &other->experts.n_shared,
        &other->experts.first_dense_layers,
        &other->mla.q_lora_rank,
        &other->mla.kv_lora_rank,
        &other->mla.v_head_dim,
        &other->mla.qk_nope_head_dim,
        &other->mla.qk_rope_head_dim,
    };
    double *const reals[] = {&other->norm_epsilon, &other->rope_base, &other->experts.router_scale};
    bool *const switches[] = {&other->tied_embeddings, &other->qkv_bias, &other->qk_norm};

    g_free(other->name);
    other->name = g_strdup("another");
    other->max_seq_len *= 2;
    g_assert_null(model_arch_difference(arch, other));
    for (size_t i = 0; i < G_N_ELEMENTS(fields); i++) {
        const int64_t was = *fields[i];
        *fields[i] = was + 1;
        g_autofree char *difference = model_arch_difference(arch, other);
        g_autofree char *values =
            g_strdup_printf("%" G_GINT64_FORMAT ", not %" G_GINT64_FORMAT, was, was + 1);
        g_assert_nonnull(difference);
        g_assert_true(g_str_has_suffix(difference, values));
        *fields[i] = was;
    }
    for (size_t i = 0; i < G_N_ELEMENTS(switches); i++) {
        *switches[i] ^= true;
        g_autofree char *difference = model_arch_difference(arch, other);
        g_assert_nonnull(difference);
        *switches[i] ^= true;
    }
    for (size_t i = 0; i < G_N_ELEMENTS(reals); i++) {
        const double was = *reals[i];
        *reals[i] = was * 1.5;
        g_autofree char *difference = model_arch_difference(arch, other);
        g_assert_nonnull(difference);
        *reals[i] = was;
    }
    other->experts.router_scores = MODEL_ROUTER_SIGMOID;
    g_autofree char *scores = model_arch_difference(arch, other);
    g_assert_cmpstr(scores, ==, "experts.router_scores is softmax, not sigmoid");
    other->experts.router_scores = arch->experts.router_scores;
    other->norm_epsilon = 1e-6;
    g_autofree char *epsilon = model_arch_difference(arch, other);
    g_assert_cmpstr(epsilon, ==, "norm_epsilon is 1e-05, not 1e-06");
    other->family = MODEL_FAMILY_GPT;
    g_autofree char *difference = model_arch_difference(arch, other);
    g_assert_cmpstr(difference, ==, "family is llama, not gpt");
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/models/arch/parameters-are-the-released-counts",
                    test_parameters_are_the_released_counts);
    g_test_add_func("/models/arch/parameters-round-to-the-published-ones",
                    test_parameters_round_to_the_published_ones);
    g_test_add_func("/models/arch/megatron-parameters-follow-equation-2",
                    test_megatron_parameters_follow_equation_2);
    g_test_add_func("/models/arch/shares-add-up", test_shares_add_up);
    g_test_add_func("/models/arch/vocabulary-is-padded-to-tp", test_vocabulary_is_padded_to_tp);
    g_test_add_func("/models/arch/without-vocabulary-there-are-layers-only",
                    test_without_vocabulary_there_are_layers_only);
    g_test_add_func("/models/arch/flops-are-megatrons-equation-3",
                    test_flops_are_megatrons_equation_3);
    g_test_add_func("/models/arch/flops-are-6n-and-attention", test_flops_are_6n_and_attention);
    g_test_add_func("/models/arch/shapes-are-checked", test_shapes_are_checked);
    g_test_add_func("/models/arch/a-difference-is-named", test_a_difference_is_named);
    return g_test_run();
}
