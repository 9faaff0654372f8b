/* Tests of adapters beside frozen weights in models/: parameters, FLOPs, ops and bytes from their definition
 * [2106.09685], words and what is refused. */
#include "models/lora.h"

#include "tests/models/ops_case.h"

#define BIT(module) (UINT32_C(1) << MODEL_LORA_##module)

/* Llama 3 70B with adapters of rank 16 beside the modules of @modules. */
static ModelArch *
llama(uint32_t modules)
{
    ModelArch *arch = load("llama3-70b");

    arch->lora = (ModelLora){16, modules};
    return arch;
}

/* Whether the layer's op @name is there. */
static bool
has_op(const ModelArch *arch, const ModelShape *shape, const char *name)
{
    ModelOp ops[MODEL_MAX_OPS];
    const size_t n = model_ops(arch, MODEL_PART_LAYER, 0, shape, ops);

    return find(ops, n, name) != NULL;
}

/* --- counts --- */

/* r (k + n) of each product: 8192 x 10240 makes queries, keys and values, 8192 x 8192 the result, 28672 is the
 * MLP's width. */
static void
test_parameters_are_those_of_two_narrow_matrices(void)
{
    const int64_t h = 8192, f = 28672, r = 16;
    g_autoptr(ModelArch) plain = load("llama3-70b");
    g_autoptr(ModelArch) joined = llama(MODEL_LORA_USUAL);
    g_autoptr(ModelArch) apart = llama(MODEL_LORA_ALL_LINEAR);
    g_autoptr(ModelArch) qkv = llama(BIT(QKV));
    const int64_t fused = r * (h + 10240 + h + h + h + 2 * f + f + h);

    g_assert_cmpint(model_trained_parameters(qkv), ==, 80 * r * (h + 10240));
    g_assert_cmpint(model_trained_parameters(joined), ==, 80 * fused);
    /* Queries, keys, values, gate and up each have an A of their own. */
    g_assert_cmpint(model_trained_parameters(apart), ==, 80 * (fused + r * (2 * h + h)));
    g_assert_cmpint(model_trained_parameters(plain), ==, model_parameters(plain));
    g_assert_cmpint(model_parameters(qkv) - model_parameters(plain), ==, 80 * r * (h + 10240));
    g_assert_cmpint(model_part_trained(qkv, MODEL_PART_HEAD, 0, 1, 1, 1, false), ==, 0);
    g_assert_cmpint(model_part_trained(qkv, MODEL_PART_EMBEDDING, 0, 1, 1, 1, false), ==, 0);
}

/* Columns: A's rank is split, and B's columns; rows: A's columns, and B's columns.  3 does not divide 16. */
static void
test_tensor_parallel_ranks_split_both_matrices(void)
{
    const int64_t h = 8192, r = 16;
    g_autoptr(ModelArch) qkv = llama(BIT(QKV));
    g_autoptr(ModelArch) proj = llama(BIT(PROJ));

    g_assert_cmpint(model_part_trained(qkv, MODEL_PART_LAYER, 0, 4, 1, 1, false), ==,
                    r / 4 * h + r * 10240 / 4);
    g_assert_cmpint(model_part_trained(proj, MODEL_PART_LAYER, 0, 4, 1, 1, false), ==,
                    h / 4 * r + r * h / 4);
    qkv->lora.rank = 3;
    g_assert_cmpint(model_part_trained(qkv, MODEL_PART_LAYER, 0, 4, 1, 1, false), ==,
                    1 * h + 3 * 10240 / 4);
}

/* Twice the forward of frozen products, three times that of adapters and of attention.  Megatron-Bridge
 * publishes 735 TFLOP/s at 2643 tokens/s on H100 (performance summary 26.06): 278 GFLOP a token of frozen
 * products, since it counts attention of packed samples, which are short. */
static void
test_flops_leave_frozen_weights_gradients_out(void)
{
    const double s = 4096, h = 8192, r = 16, f = 28672;
    g_autoptr(ModelArch) plain = load("llama3-70b");
    g_autoptr(ModelArch) qkv = llama(BIT(QKV));
    const double products = h * 10240 + h * h + 3 * h * f;
    const double frozen = 2 * s * (80 * products + h * 128256);
    const double adapters = 2 * s * 80 * r * (h + 10240);

    g_assert_cmpfloat_with_epsilon(model_flops_per_iteration(plain, 1, 4096) -
                                       model_flops_per_iteration(qkv, 1, 4096),
                                   frozen - 3 * adapters, 1e6);
    g_assert_cmpfloat_with_epsilon(2 * frozen / s, 735e12 / 2643.0, 0.002 * 735e12 / 2643.0);
}

/* --- ops --- */

/* One sequence of 512 tokens in bf16 with attention in one kernel. */
static ModelShape
shape_of(int64_t tp)
{
    ModelShape shape = plain_shape(1, 512);

    shape.dtype = DTYPE_BF16;
    shape.flash_attention = true;
    shape.tp = tp;
    shape.sequence_parallel = tp > 1;
    return shape;
}

/* Frozen: the norms' inputs, queries, keys, values, attention's result and its sums, SwiGLU's two inputs;
 * products keep nothing.  An adapter keeps what its two matrices read. */
static void
test_frozen_products_keep_no_input(void)
{
    const int64_t rows = 512, h = 8192, f = 28672, r = 16;
    const int64_t frozen = 2 * rows * (2 * h + 10240 + h + 2 * f) + 4 * rows * 64;
    const ModelShape shape = shape_of(1);
    g_autoptr(ModelArch) plain = load("llama3-70b");
    g_autoptr(ModelArch) qkv = llama(BIT(QKV));
    g_autoptr(ModelArch) proj = llama(BIT(PROJ));
    g_autoptr(ModelArch) fc = llama(BIT(FC1) | BIT(FC2));

    g_assert_cmpint(sum(plain, MODEL_PART_LAYER, 0, &shape, SAVED), ==,
                    frozen + 2 * rows * (2 * h + f));
    g_assert_cmpint(sum(qkv, MODEL_PART_LAYER, 0, &shape, SAVED), ==, frozen + 2 * rows * (h + r));
    g_assert_cmpint(sum(qkv, MODEL_PART_LAYER, 0, &shape, SAVED_FOR_WEIGHT), ==,
                    2 * rows * (h + r));
    /* What its A reads is attention's result, which is kept in any case. */
    g_assert_cmpint(sum(proj, MODEL_PART_LAYER, 0, &shape, SAVED), ==, frozen + 2 * rows * r);
    g_assert_cmpint(sum(fc, MODEL_PART_LAYER, 0, &shape, SAVED), ==,
                    frozen + 2 * rows * (h + r + f + r));
    /* The head's product, too; its loss keeps what it kept. */
    g_assert_cmpint(sum(plain, MODEL_PART_HEAD, 0, &shape, SAVED) -
                        sum(qkv, MODEL_PART_HEAD, 0, &shape, SAVED),
                    ==, 2 * rows * h);
    g_assert_cmpint(sum(qkv, MODEL_PART_EMBEDDING, 0, &shape, SAVED), ==, 0);
}

static void
test_backward_of_frozen_products_is_one_product(void)
{
    ModelOp ops[MODEL_MAX_OPS];
    const ModelShape shape = shape_of(1);
    g_autoptr(ModelArch) qkv = llama(BIT(QKV));
    size_t n = model_ops(qkv, MODEL_PART_LAYER, 0, &shape, ops);
    const ModelOp *base = find(ops, n, "qkv"), *a = find(ops, n, "qkv_lora_a"),
                  *b = find(ops, n, "qkv_lora_b"), *norm = find(ops, n, "norm2");

    g_assert_true(base->frozen && norm->frozen && !a->frozen && !b->frozen);
    g_assert_cmpfloat_with_epsilon(base->backward_flops, base->forward_flops, 0.5);
    g_assert_cmpfloat_with_epsilon(a->backward_flops, 2 * a->forward_flops, 0.5);
    g_assert_cmpint(base->n_kernels_backward, ==, 1);
    g_assert_cmpint(base->output_gradient_bytes, ==, 0);
    g_assert_cmpint(a->m, ==, 512);
    g_assert_cmpint(a->k, ==, 8192);
    g_assert_cmpint(a->n, ==, 16);
    g_assert_cmpint(b->k, ==, 16);
    g_assert_cmpint(b->n, ==, 10240);
    /* They follow their product, and come before what reads the sum. */
    g_assert_true(base + 1 == a && a + 1 == b);
    g_assert_true(find(ops, n, "rope") > find(ops, n, "qkv_lora_add"));
    n = model_ops(qkv, MODEL_PART_EMBEDDING, 0, &shape, ops);
    for (size_t i = 0; i < n; i++)
        g_assert_cmpint(ops[i].backward_bytes + ops[i].n_kernels_backward, ==, 0);
}

/* Adapters have operands in bf16 where other products quantise theirs. */
static void
test_adapters_are_not_quantised(void)
{
    ModelOp ops[MODEL_MAX_OPS];
    ModelShape shape = shape_of(1);
    g_autoptr(ModelArch) qkv = llama(BIT(QKV));
    shape.dtype = DTYPE_FP8;
    shape.transpose_bytes = 3.0;
    const size_t n = model_ops(qkv, MODEL_PART_LAYER, 0, &shape, ops);

    g_assert_false(find(ops, n, "qkv")->stored_operands);
    g_assert_true(find(ops, n, "qkv_lora_a")->stored_operands);
    g_assert_cmpint(find(ops, n, "qkv_lora_a")->saved_bytes, ==, 2 * 512 * 8192);
    /* Nothing is summed over rows. */
    g_assert_cmpfloat_with_epsilon(find(ops, n, "qkv")->transpose_bytes, 0.0, 1e-12);
}

/* With sequence parallelism over 4 ranks: no input is gathered again; columns gather narrow rows, rows add these
 * up and gather whole ones, in backward too. */
static void
test_tensor_parallel_adapters_exchange_narrow_rows(void)
{
    ModelOp ops[MODEL_MAX_OPS];
    const ModelShape shape = shape_of(4);
    g_autoptr(ModelArch) plain = load("llama3-70b");
    g_autoptr(ModelArch) both = llama(BIT(QKV) | BIT(PROJ));
    g_assert_true(has_op(plain, &shape, "attention_input_again"));
    g_assert_false(has_op(both, &shape, "attention_input_again"));
    g_assert_false(has_op(both, &shape, "mlp_input_again"));
    g_assert_true(has_op(both, &shape, "attention_input"));
    const ModelOp *narrow = find_in_layer(both, 0, &shape, "qkv_lora_a_gather", ops),
                  *sum_ = find_in_layer(both, 0, &shape, "proj_lora_a_sum", ops),
                  *whole = find_in_layer(both, 0, &shape, "proj_lora_b_gather", ops);
    const size_t n = MODEL_MAX_OPS;
    g_assert_cmpint(narrow->comm_bytes, ==, 2 * 512 * 16);
    g_assert_cmpint(narrow->forward_comm, ==, MODEL_COMM_ALL_GATHER);
    g_assert_cmpint(narrow->backward_comm, ==, MODEL_COMM_ALL_REDUCE);
    g_assert_cmpint(sum_->forward_comm, ==, MODEL_COMM_ALL_REDUCE);
    g_assert_cmpint(sum_->comm_bytes, ==, 2 * 512 * 16);
    g_assert_cmpint(whole->comm_bytes, ==, 2 * 512 * 8192);
    g_assert_cmpint(whole->backward_comm, ==, MODEL_COMM_ALL_GATHER);
    g_assert_cmpint(find(ops, n, "qkv_lora_a")->n, ==, 4);
    g_assert_cmpint(find(ops, n, "proj_lora_b")->n, ==, 2048);
    g_assert_cmpint(find(ops, n, "proj_lora_b")->k, ==, 16);
    /* Whole rows of the input are kept. */
    g_assert_cmpint(find(ops, n, "qkv_lora_a")->saved_bytes, ==, 2 * 512 * 8192);
}

/* Where the norms are computed again, what the adapter reads is not kept either. */
static void
test_recomputed_norms_free_the_adapters_input(void)
{
    ModelOp ops[MODEL_MAX_OPS];
    ModelShape shape = shape_of(1);
    g_autoptr(ModelArch) qkv = llama(BIT(QKV));
    shape.recompute_modules = UINT32_C(1) << MODEL_MODULE_LAYERNORM;
    const size_t n = model_ops(qkv, MODEL_PART_LAYER, 0, &shape, ops);

    g_assert_cmpint(find(ops, n, "qkv_lora_a")->again_bytes, ==, 2 * 512 * 8192);
    g_assert_cmpint(find(ops, n, "qkv")->again_bytes, ==, 0);
}

/* --- words --- */

static void
test_words_of_others_are_read(void)
{
    static const struct {
        const char *words;
        uint32_t modules;
    } rows[] = {
        {"linear_qkv, linear_fc2", BIT(QKV) | BIT(FC2)},
        {"q_proj,v_proj", BIT(Q) | BIT(V)},
        {"wq,wk,wv,wo,w1,w2,w3", MODEL_LORA_ALL_LINEAR},
        {"all-linear", MODEL_LORA_ALL_LINEAR},
        {"attention_qkv,attention_dense,mlp_fc1,mlp_fc2", MODEL_LORA_USUAL},
    };
    g_autofree char *none = NULL, *wrong = NULL;
    g_autofree char *written = model_lora_write_modules(MODEL_LORA_USUAL);

    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autofree char *message = NULL;
        g_assert_cmpuint(model_lora_read_modules(rows[i].words, &message), ==, rows[i].modules);
        g_assert_null(message);
    }
    g_assert_cmpstr(written, ==, "linear_qkv,linear_proj,linear_fc1,linear_fc2");
    g_assert_cmpuint(model_lora_read_modules("linear_qkv,lm_head", &wrong), ==, 0);
    g_assert_nonnull(strstr(wrong, "lm_head"));
    g_assert_cmpuint(model_lora_read_modules("", &none), ==, 0);
    g_assert_nonnull(none);
}

static void
test_what_cannot_be_is_refused_by_name(void)
{
    static const struct {
        const char *model;
        uint32_t modules;
        int64_t n_mtp;
        const char *part; /* of the message; NULL: it can be */
    } rows[] = {
        {"llama3-8b", MODEL_LORA_USUAL, 0, NULL},
        {"llama3-8b", BIT(QKV) | BIT(V), 0, "linear_qkv and linear_v"},
        {"llama3-8b", BIT(FC1) | BIT(FC1_UP), 0, "linear_fc1 and linear_fc1_up"},
        {"llama3-8b", BIT(QKV), 1, "MTP"},
        {"gpt3-175b", BIT(FC1_GATE), 0, "linear_fc1_gate"},
        {"mixtral-8x7b", BIT(FC1), 0, "experts"},
        {"mixtral-8x7b", BIT(QKV) | BIT(PROJ), 0, NULL},
        {"deepseek-v3", BIT(QKV), 0, "linear_qkv"},
        {"deepseek-v3", BIT(PROJ), 0, NULL},
        {"nemotron-h-56b", BIT(QKV) | BIT(FC2), 0, NULL},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autoptr(ModelArch) arch = load(rows[i].model);
        arch->lora = (ModelLora){8, rows[i].modules};
        arch->mtp.n = rows[i].n_mtp;
        g_autofree char *message = model_lora_refusal(arch);

        g_test_message("%s %x", rows[i].model, (unsigned)rows[i].modules);
        if (rows[i].part == NULL)
            g_assert_null(message);
        else
            g_assert_nonnull(message != NULL ? strstr(message, rows[i].part) : NULL);
    }
}

/* Layers of hybrids without attention have none of its adapters, and those that have it have them. */
static void
test_kinds_have_what_their_layers_have(void)
{
    g_autoptr(ModelArch) arch = load("nemotron-h-56b");
    int64_t counts[MODEL_MAX_KINDS], sum_ = 0, n_attention = 0;
    arch->lora = (ModelLora){8, BIT(QKV)};
    model_count_kinds(arch, counts);

    for (int32_t i = 0; i < model_n_kinds(arch); i++) {
        const ModelArch kind = model_kind_arch(arch, i);
        const bool attends = model_has_attention(&kind);
        n_attention += attends ? counts[i] : 0;
        sum_ += attends ? counts[i] * 8 * (kind.hidden + model_qkv_columns(&kind, 1)) : 0;
    }
    g_assert_cmpint(n_attention, >, 0);
    g_assert_cmpint(n_attention, <, arch->n_layers);
    g_assert_cmpint(model_trained_parameters(arch), ==, sum_);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/lora/parameters-are-those-of-two-narrow-matrices",
                    test_parameters_are_those_of_two_narrow_matrices);
    g_test_add_func("/lora/tensor-parallel-ranks-split-both-matrices",
                    test_tensor_parallel_ranks_split_both_matrices);
    g_test_add_func("/lora/flops-leave-frozen-weights-gradients-out",
                    test_flops_leave_frozen_weights_gradients_out);
    g_test_add_func("/lora/frozen-products-keep-no-input", test_frozen_products_keep_no_input);
    g_test_add_func("/lora/backward-of-frozen-products-is-one-product",
                    test_backward_of_frozen_products_is_one_product);
    g_test_add_func("/lora/adapters-are-not-quantised", test_adapters_are_not_quantised);
    g_test_add_func("/lora/tensor-parallel-adapters-exchange-narrow-rows",
                    test_tensor_parallel_adapters_exchange_narrow_rows);
    g_test_add_func("/lora/recomputed-norms-free-the-adapters-input",
                    test_recomputed_norms_free_the_adapters_input);
    g_test_add_func("/lora/words-of-others-are-read", test_words_of_others_are_read);
    g_test_add_func("/lora/what-cannot-be-is-refused-by-name",
                    test_what_cannot_be_is_refused_by_name);
    g_test_add_func("/lora/kinds-have-what-their-layers-have",
                    test_kinds_have_what_their_layers_have);
    return g_test_run();
}
