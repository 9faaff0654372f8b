/* Tests of MTP modules in models/: parameters, FLOPs and ops from their definition, and their key in files. */
#include "models/ops.h"

#include <string.h>

#include "tests/models/arch_case.h"

/* --- counts --- */

/* DeepSeek-V3's README_WEIGHTS.md: "11.5B unique parameters, excluding the shared 0.9B Embedding and
 * 0.9B output Head".  By 2412.19437 section 4.2: MLA, 257 experts, router, norms; then the module's
 * projection and three norms. */
static void
test_parameters_are_those_that_are_published(void)
{
    const int64_t h = 7168, heads = 128;
    const int64_t mla = h * 1536 + 1536 + 1536 * heads * 192 + h * (512 + 64) + 512 +
                        512 * heads * (128 + 128) + heads * 128 * h;
    const int64_t layer = mla + 257 * 3 * h * 2048 + 256 * h + 2 * h;
    g_autoptr(ModelArch) arch = load("deepseek-v3");
    const int64_t main = model_parameters(arch), active = model_active_parameters(arch);

    g_assert_cmpint(arch->mtp.n, ==, 0);
    g_assert_cmpint(arch->mtp.published, ==, 1);
    arch->mtp.n = 1;
    g_assert_cmpint(model_parameters(arch) - main, ==, layer + 2 * h * h + 3 * h);
    g_assert_cmpfloat_with_epsilon((double)(model_parameters(arch) - main), 11.5e9, 0.15e9);
    /* Its files have 685 B in all, with copies of embedding and head. */
    g_assert_cmpfloat_with_epsilon((double)(model_parameters(arch) + 2 * 129280 * h), 685e9, 0.6e9);
    /* "2.4B unique activated", with embedding and head: 8 + 1 experts of a token. */
    g_assert_cmpint(model_active_parameters(arch) - active, ==,
                    layer + 2 * h * h + 3 * h - 248 * 3 * h * 2048);
    /* Over 4 tensor-parallel ranks: the projection's columns. */
    arch->mtp.n = 2;
    g_assert_cmpint(model_parameters(arch) - main, ==, 2 * (layer + 2 * h * h + 3 * h));
    const int64_t without = model_part_parameters(arch, MODEL_PART_LAYER, 60, 4, 1, 1, false);
    g_assert_cmpint(model_part_parameters(arch, MODEL_PART_LAYER, 61, 4, 1, 1, false) - without, ==,
                    2 * h * h / 4 + 3 * h);
    g_assert_cmpint(model_table_parameters(arch, 4), ==, 129280 / 4 * h);
}

/* Megatron-LM's count (training.py): a layer more, 2 h h of the projection, and logits once more. */
static void
test_flops_are_a_layers_the_projections_and_the_logits(void)
{
    g_autoptr(ModelArch) arch = load("llama3-8b");
    const double s = 4096, h = 4096, one = model_flops_per_iteration(arch, 1, 4096);
    arch->n_layers++;
    const double layer = model_flops_per_iteration(arch, 1, 4096) - one;

    arch->n_layers--;
    arch->mtp.n = 1;
    g_assert_cmpfloat_with_epsilon(model_flops_per_iteration(arch, 1, 4096) - one,
                                   layer + 3 * 2 * s * (2 * h * h + h * 128256), 1e3);
}

/* --- ops --- */

static const ModelOp *
op_named(const ModelOp *ops, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(ops[i].name, name) == 0)
            return &ops[i];
    g_error("no op %s", name);
}

static int64_t
sum_of(const ModelOp *ops, size_t n, const char *name, bool saved)
{
    int64_t sum = 0;

    for (size_t i = 0; i < n; i++)
        if (name == NULL || strcmp(ops[i].name, name) == 0)
            sum += saved ? ops[i].saved_bytes : 1;
    return sum;
}

static void
test_ops_are_those_of_the_definition(void)
{
    g_autoptr(ModelArch) arch = load("deepseek-v3");
    ModelShape shape = {.batch = 1,
                        .tokens = 4096,
                        .tp = 4,
                        .cp = 1,
                        .ep = 1,
                        .sequence_parallel = true,
                        .flash_attention = true,
                        .dtype = DTYPE_BF16,
                        .expert_imbalance = 1};
    ModelOp ops[MODEL_MAX_OPS], head[MODEL_MAX_OPS], heads[MODEL_MAX_OPS], layer[MODEL_MAX_OPS];
    const int64_t rows = 4096, h = 7168;
    const size_t n_head = model_ops(arch, MODEL_PART_HEAD, 0, &shape, head);

    arch->mtp.n = 2;
    const size_t n_layer = model_ops(arch, MODEL_PART_LAYER, 60, &shape, layer);
    const size_t n = model_ops(arch, MODEL_PART_LAYER, 62, &shape, ops);
    const size_t n_heads = model_ops(arch, MODEL_PART_HEAD, 0, &shape, heads);
    const ModelOp *proj = op_named(ops, n, "mtp_proj");
    g_assert_cmpint(proj->m, ==, rows);
    g_assert_cmpint(proj->k, ==, 2 * h);
    g_assert_cmpint(proj->n, ==, h / 4);
    g_assert_cmpint(proj->saved_bytes, ==, 2 * rows / 4 * 2 * h);
    g_assert_cmpint(op_named(ops, n, "mtp_input")->comm_bytes, ==, 2 * rows * 2 * h);
    const ModelOp *gather = op_named(ops, n, "mtp_gather");
    g_assert_cmpint(gather->comm_bytes, ==, 2 * rows * h);
    g_assert_cmpint(gather->forward_comm, ==, MODEL_COMM_ALL_GATHER);
    g_assert_cmpint(gather->backward_comm, ==, MODEL_COMM_ALL_GATHER);
    /* Kept besides the layer's: token numbers, inputs of three norms and of the projection. */
    g_assert_cmpint(sum_of(ops, n, NULL, true) - sum_of(layer, n_layer, NULL, true), ==,
                    8 * rows + (3 + 2) * 2 * rows / 4 * h);
    g_assert_cmpstr(ops[n - 1].name, ==, "mtp_final_norm");
    /* The head is alike, three times, but for the model's final norm. */
    g_assert_cmpint(sum_of(heads, n_heads, "logits", false), ==, 3);
    g_assert_cmpint(sum_of(heads, n_heads, "final_norm", false), ==, 1);
    g_assert_cmpint((int64_t)n_heads, ==, 3 * ((int64_t)n_head - 1) + 1);
    g_assert_cmpint(sum_of(heads, n_heads, "loss", true), ==, 3 * 4 * rows * 129280 / 4);
    g_assert_true(model_shape_check(arch, &shape, NULL));
}

/* --- files --- */

#define TOP "{\"family\":\"llama\",\"n_layers\":4,\"hidden\":64,\"n_heads\":4,\"max_seq_len\":128,"
#define EXPERTS                                                                                    \
    "\"experts\":{\"n_experts\":4,\"top_k\":2,\"ffn_hidden\":32,\"first_dense_layers\":1},"

static ModelArch *
parse(const char *text, GError **error)
{
    g_autoptr(JsonDoc) doc = json_doc_parse("m.json", text, strlen(text), error);

    if (doc == NULL)
        return NULL;
    g_autoptr(ModelArch) arch = model_arch_read(doc, json_doc_root(doc, NULL, 1));
    return json_doc_finish(doc, error) ? g_steal_pointer(&arch) : NULL;
}

static void
test_modules_are_layers_of_a_kind_of_their_own(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(ModelArch) arch =
        parse(TOP EXPERTS "\"vocab\":100,\"mtp\":{\"n\":2,\"kind\":\"dense\"}}", &error);
    g_autoptr(JsonWriter) writer = json_writer_new();
    int64_t counts[MODEL_MAX_KINDS];

    g_assert_no_error(error);
    g_assert_cmpint(model_n_stacked(arch), ==, 6);
    g_assert_cmpint(model_n_kinds(arch), ==, 3);
    g_assert_cmpint(model_layer_kind(arch, 3), ==, 1);
    g_assert_cmpint(model_layer_kind(arch, 4), ==, 2);
    g_assert_cmpint(model_layer_kind(arch, 5), ==, 2);
    g_assert_cmpint(model_first_of_kind(arch, 2), ==, 4);
    model_count_kinds(arch, counts);
    g_assert_cmpint(counts[2], ==, 2);
    g_assert_cmpstr(model_kind_name(arch, 2), ==, "mtp");
    g_assert_false(model_layer_is_moe(arch, 4));
    g_assert_cmpint(model_n_moe_layers(arch), ==, 3);
    for (int64_t n = 0; n <= 6; n++)
        g_assert_cmpint(model_n_mtp_before(arch, n), ==, MAX(0, n - 4));
    model_arch_write(writer, NULL, arch);
    g_autofree char *text = json_writer_steal(writer, NULL);
    g_autoptr(ModelArch) again = parse(text, &error);
    g_assert_no_error(error);
    g_assert_cmpint(again->mtp.kind, ==, arch->mtp.kind);
    g_assert_null(model_arch_difference(arch, again));
    /* Of the last layer's kind unless it is said; that is a difference. */
    again->mtp.kind = 0;
    g_assert_true(model_layer_is_moe(again, 4));
    g_autofree char *difference = model_arch_difference(arch, again);
    g_assert_cmpstr(difference, ==, "MTP modules' experts.n_experts is 0, not 4");
    again->mtp.kind = arch->mtp.kind;
    again->mtp.loss_factor = 0.25;
    g_autofree char *factor = model_arch_difference(arch, again);
    g_assert_cmpstr(factor, ==, "mtp.loss_factor is 0, not 0.25");
    again->mtp.loss_factor = MODEL_USUAL_MTP_LOSS_FACTOR;
    g_assert_null(model_arch_difference(arch, again));
    again->mtp.n = 1;
    g_autofree char *fewer = model_arch_difference(arch, again);
    g_assert_cmpstr(fewer, ==, "mtp.n is 2, not 1");
}

static void
test_what_is_wrong_is_said(void)
{
    static const struct {
        const char *text, *expect;
    } cases[] = {
        {TOP "\"vocab\":0,\"mtp\":{\"n\":1}}",
         "$.mtp.n: mtp.n 1: MTP modules predict tokens, and the model has no vocabulary (vocab 0)"},
        {TOP EXPERTS "\"vocab\":9,\"mtp\":{\"n\":1,\"kind\":\"dens\"}}",
         "$.mtp.kind: expected \"dense\" or \"experts\", got \"dens\"; did you mean \"dense\"?"},
        {TOP "\"vocab\":9,\"mtp\":{\"n\":5}}", "$.mtp.n: expected an integer from 0 to 4, got 5"},
        {TOP "\"vocab\":9,\"mtp\":{\"m\":1}}", "$.mtp.m: unknown key"},
        {TOP "\"vocab\":9,\"mtp\":{\"n\":1,\"loss_factor\":0}}",
         "$.mtp.loss_factor: expected a number from 1e-09 to 1000000000, got 0"},
        {TOP "\"vocab\":9,\"mtp\":1}", "$.mtp: expected an object"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(ModelArch) arch = parse(cases[i].text, &error);

        g_assert_null(arch);
        g_assert_error(error, JSON_ERROR, JSON_ERROR_INVALID);
        if (strstr(error->message, cases[i].expect) == NULL)
            g_error("%s, not %s", error->message, cases[i].expect);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/models/mtp/parameters-are-those-that-are-published",
                    test_parameters_are_those_that_are_published);
    g_test_add_func("/models/mtp/flops-are-a-layers-the-projections-and-the-logits",
                    test_flops_are_a_layers_the_projections_and_the_logits);
    g_test_add_func("/models/mtp/ops-are-those-of-the-definition",
                    test_ops_are_those_of_the_definition);
    g_test_add_func("/models/mtp/modules-are-layers-of-a-kind-of-their-own",
                    test_modules_are_layers_of_a_kind_of_their_own);
    g_test_add_func("/models/mtp/what-is-wrong-is-said", test_what_is_wrong_is_said);
    return g_test_run();
}
