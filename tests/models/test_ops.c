/* Tests of models/ops.h, model_ops(): activations, collectives, FLOPs and bytes of a layer. */
#include "tests/models/ops_case.h"

/* --- activations --- */

/* 2205.05198 table 2, fp16 with dropout, bytes per layer. */
static void
test_activations_are_korthikantis_table_2(void)
{
    static const struct {
        const char *name;
        int64_t batch;
    } models[] = {{"megatron-22b", 4}, {"gpt3-175b", 1}, {"megatron-530b", 1}, {"megatron-1t", 2}};

    for (size_t i = 0; i < G_N_ELEMENTS(models); i++) {
        g_autoptr(ModelArch) arch = load(models[i].name);
        ModelShape shape = plain_shape(models[i].batch, 2048);
        int64_t s = 2048, b = models[i].batch, h = arch->hidden, a = arch->n_heads;

        shape.dropout = true;
        for (int64_t t = 1; t <= 8; t *= 2) {
            int64_t scores = 5 * a * s * s * b / t; /* s b h . 5 a s / (h t) */

            shape.tp = t;
            shape.sequence_parallel = false;
            g_assert_cmpint(sum(arch, MODEL_PART_LAYER, 0, &shape, SAVED), ==,
                            10 * s * b * h + 24 * s * b * h / t + scores);
            g_assert_cmpint(sum(arch, MODEL_PART_LAYER, 0, &shape, SAVED_BUT_CORE), ==,
                            10 * s * b * h + 24 * s * b * h / t);
            g_assert_cmpint(model_boundary_bytes(arch, &shape), ==, 2 * s * b * h);
            shape.sequence_parallel = true;
            g_assert_cmpint(sum(arch, MODEL_PART_LAYER, 0, &shape, SAVED), ==,
                            34 * s * b * h / t + scores);
            g_assert_cmpint(sum(arch, MODEL_PART_LAYER, 0, &shape, SAVED_BUT_CORE), ==,
                            34 * s * b * h / t);
            g_assert_cmpint(model_boundary_bytes(arch, &shape), ==, 2 * s * b * h / t);
        }
    }
}

/* Without dropout and at e bytes per element: e s b h (4 + 12/t) + e a s^2 b / t. */
static void
test_activations_scale_with_the_element(void)
{
    static const Dtype dtypes[] = {DTYPE_FP32, DTYPE_BF16};
    g_autoptr(ModelArch) arch = load("gpt3-1b");

    for (size_t i = 0; i < G_N_ELEMENTS(dtypes); i++) {
        ModelShape shape = plain_shape(3, 256);
        int64_t sbh = 256 * 3 * 2048, e = dtype_bytes(dtypes[i]);

        shape.dtype = dtypes[i];
        shape.tp = 4;
        g_assert_cmpint(sum(arch, MODEL_PART_LAYER, 0, &shape, SAVED), ==,
                        e * sbh * (4 + 12 / 4) + e * 16 * 256 * 256 * 3 / 4);
    }
}

/* fp8: per row norms 2 . 2h, products' inputs 2 . h; split: q, k, v 3 . 2h, the projection's input
 * h, GELU's input 2 . 4h and output 4h; softmax 2 bytes per score.  Messages stay in bf16. */
static void
test_fp8_is_for_products_only(void)
{
    g_autoptr(ModelArch) arch = load("gpt3-1b");
    ModelShape shape = plain_shape(2, 256);
    int64_t sbh = 256 * 2 * 2048;

    shape.dtype = DTYPE_FP8;
    shape.tp = 2;
    g_assert_cmpint(sum(arch, MODEL_PART_LAYER, 0, &shape, SAVED), ==,
                    sbh * 6 + sbh * 19 / 2 + 2 * 16 * 256 * 256 * 2 / 2);
    g_assert_cmpint(model_boundary_bytes(arch, &shape), ==, 2 * sbh);
    shape.flash_attention = true;
    g_assert_cmpint(sum(arch, MODEL_PART_LAYER, 0, &shape, SAVED), ==,
                    sbh * 6 + sbh * (19 + 2) / 2 + 4 * 256 * 2 * 16 / 2);
}

/* Products of layers have quantised operands; the head, and the router of experts, have not: the
 * logits of 512 rows read 512 x 2048 inputs and write 512 x 51200 results of 2 bytes. */
static void
test_what_is_quantised(void)
{
    g_autoptr(ModelArch) arch = load("gpt3-1b"), moe = load("mixtral-8x7b");
    ModelShape shape = plain_shape(2, 256);
    ModelOp ops[MODEL_MAX_OPS];

    shape.dtype = DTYPE_FP8;
    const ModelOp *up = find_in_layer(arch, 0, &shape, "mlp_up", ops);
    g_assert_false(up->stored_operands);
    g_assert_cmpfloat(up->quantised_forward, ==, 512.0 * 2048.0);
    g_assert_cmpfloat(up->quantised_backward, ==, 512.0 * 4.0 * 2048.0);
    g_assert_cmpint(up->weight_bytes, ==, 2048 * 8192 + 8192);
    const ModelOp *router = find_in_layer(moe, 0, &shape, "router", ops);
    g_assert_true(router->stored_operands);
    g_assert_cmpint(router->weight_bytes, ==, 2 * 4096 * 8);
    g_assert_false(find_in_layer(moe, 0, &shape, "experts_up", ops)->stored_operands);
    const size_t n = model_ops(arch, MODEL_PART_HEAD, 0, &shape, ops);
    const ModelOp *logits = NULL;
    for (size_t i = 0; i < n; i++)
        if (strcmp(ops[i].name, "logits") == 0)
            logits = &ops[i];
    g_assert_nonnull(logits);
    g_assert_true(logits->stored_operands);
    g_assert_cmpfloat(logits->quantised_forward, ==, 0.0);
    g_assert_cmpint(logits->weight_bytes, ==, 2 * 2048 * arch->vocab);
    g_assert_cmpint(logits->forward_bytes, ==, 2 * 512 * (2048 + arch->vocab));
    shape.dtype = DTYPE_BF16;
    g_assert_true(find_in_layer(arch, 0, &shape, "mlp_up", ops)->stored_operands);
}

/* Fused attention keeps a 4-byte log-sum-exp per row and head in place of the scores. */
static void
test_flash_attention_keeps_no_scores(void)
{
    g_autoptr(ModelArch) arch = load("gpt3-1b");
    ModelShape shape = plain_shape(2, 2048);
    ModelOp ops[MODEL_MAX_OPS];
    int64_t sbh = 2048 * 2 * 2048;

    shape.dropout = true;
    shape.tp = 2;
    g_assert_cmpint(find_in_layer(arch, 0, &shape, "attention", ops)->n_kernels_forward, >, 1);
    shape.flash_attention = true;
    g_assert_cmpint(sum(arch, MODEL_PART_LAYER, 0, &shape, SAVED), ==,
                    sbh * (10 + 24 / 2) + 4 * 2048 * 2 * 16 / 2);
    g_assert_cmpint(find_in_layer(arch, 0, &shape, "attention", ops)->n_kernels_forward, ==, 1);
}

/*
 * Llama with grouped queries, bf16, per row: norms 2 . 2h, products' inputs 2 . 2h, q and the
 * output 2 . 2h/t, k and v 2 . 2 kv d/t, SwiGLU's inputs and result 3 . 2f/t; no dropout whatever
 * the framework.
 */
static void
test_llama_activations(void)
{
    g_autoptr(ModelArch) arch = load("llama3-8b");
    ModelShape shape = plain_shape(1, 1024);
    int64_t rows = 1024, h = 4096, f = 14336, kv_width = 8 * 128;

    shape.dtype = DTYPE_BF16;
    shape.dropout = true;
    shape.flash_attention = true;
    for (int64_t t = 1; t <= 8; t *= 2) {
        int64_t split = (4 * h + 4 * kv_width + 6 * f + 4 * 32) * rows / t;

        shape.tp = t;
        shape.sequence_parallel = false;
        g_assert_cmpint(sum(arch, MODEL_PART_LAYER, 0, &shape, SAVED), ==, 8 * h * rows + split);
        shape.sequence_parallel = true;
        g_assert_cmpint(sum(arch, MODEL_PART_LAYER, 0, &shape, SAVED), ==,
                        8 * h * rows / t + split);
        g_assert_cmpint(sum(arch, MODEL_PART_LAYER, 0, &shape, SAVED_KV), ==,
                        4 * kv_width * rows / t);
    }
}

/*
 * PyTorch's operations one by one, bf16, tp 4, per element (docs/cost-model.md 2.2, 2.3): RMSNorm
 * 36 bytes forward and 92 backward, keeps 6; rotary 20 and 22 of q and k, keeps 2; SwiGLU 10 and 18
 * of its result, keeps 6.  Fused norms leave the other two.
 */
static void
test_eager_modules_move_every_intermediate(void)
{
    g_autoptr(ModelArch) arch = load("llama3-8b");
    ModelShape shape = plain_shape(2, 512);
    int64_t rows = 1024, h = 4096, f = 14336 / 4, qk = (4096 + 1024) / 4;
    ModelOp ops[MODEL_MAX_OPS];
    const ModelOp *op;

    shape.dtype = DTYPE_BF16;
    shape.tp = 4;
    shape.eager = shape.eager_norms = true;
    op = find_in_layer(arch, 0, &shape, "norm1", ops);
    g_assert_cmpint(op->forward_bytes, ==, 36 * rows * h);
    g_assert_cmpint(op->backward_bytes, ==, 92 * rows * h);
    g_assert_cmpint(op->saved_bytes, ==, 8 * rows * h);
    op = find_in_layer(arch, 0, &shape, "rope", ops);
    g_assert_cmpint(op->forward_bytes, ==, 20 * rows * qk);
    g_assert_cmpint(op->backward_bytes, ==, 22 * rows * qk);
    g_assert_cmpint(op->saved_bytes, ==, 2 * rows * qk);
    op = find_in_layer(arch, 0, &shape, "mlp_activation", ops);
    g_assert_cmpint(op->forward_bytes, ==, 10 * rows * f);
    g_assert_cmpint(op->backward_bytes, ==, 18 * rows * f);
    g_assert_cmpint(op->saved_bytes, ==, 6 * rows * f);
    shape.eager_norms = false;
    op = find_in_layer(arch, 0, &shape, "norm1", ops);
    g_assert_cmpint(op->forward_bytes, ==, 4 * rows * h);
    g_assert_cmpint(op->saved_bytes, ==, 2 * rows * h);
    op = find_in_layer(arch, 0, &shape, "rope", ops);
    g_assert_cmpint(op->forward_bytes, ==, 20 * rows * qk);
}

/* 2 + 4 bytes of the cast, 8 of the product, 4 + 2 of the cast back, each way, of queries and of keys; what is not
 * compiled keeps the results besides those of the product.  Models with norms of both have tables instead. */
static void
test_complex_rotation_is_not_compiled(void)
{
    g_autoptr(ModelArch) arch = load("llama3-8b");
    g_autoptr(ModelArch) normed = load("qwen3-32b");
    ModelShape shape = plain_shape(2, 512);
    const int64_t elements = 1024 * (4096 + 1024), of_normed = 1024 * (64 + 8) * 128;
    ModelOp ops[MODEL_MAX_OPS];
    const ModelOp *op;

    shape.dtype = DTYPE_BF16;
    shape.complex_rotary = true;
    for (int eager = 0; eager < 2; eager++) {
        shape.eager = eager == 1;
        op = find_in_layer(arch, 0, &shape, "rope", ops);
        g_assert_cmpint(op->forward_bytes, ==, 20 * elements);
        g_assert_cmpint(op->backward_bytes, ==, 20 * elements);
        g_assert_cmpint(op->saved_bytes, ==, eager * 2 * elements);
        g_assert_cmpint(op->n_kernels_forward, ==, 6);
    }
    shape.eager = false;
    op = find_in_layer(normed, 0, &shape, "rope", ops);
    g_assert_cmpint(op->forward_bytes, ==, 4 * of_normed);
}

/* 14 bytes per logit forward, 22 backward, 10 kept, two gradients in fp32: of the whole vocabulary
 * on every tp rank, where the logits of all ranks are gathered, or of its share. */
static void
test_eager_loss_is_split_where_told(void)
{
    g_autoptr(ModelArch) arch = load("llama3-8b");
    ModelShape shape = plain_shape(1, 512);
    int64_t logits = 512 * arch->vocab;
    ModelOp ops[MODEL_MAX_OPS] = {{0}};
    const ModelOp *op;

    shape.dtype = DTYPE_BF16;
    shape.tp = 4;
    shape.eager = true;
    model_ops(arch, MODEL_PART_HEAD, 0, &shape, ops);
    op = find(ops, MODEL_MAX_OPS, "loss");
    g_assert_cmpint(op->forward_bytes, ==, 14 * logits);
    g_assert_cmpint(op->backward_bytes, ==, 22 * logits);
    g_assert_cmpint(op->saved_bytes, ==, 10 * logits);
    g_assert_cmpint(op->backward_transient_bytes, ==, 8 * logits);
    op = find(ops, MODEL_MAX_OPS, "logits_gather");
    g_assert_cmpint(op->forward_comm, ==, MODEL_COMM_ALL_GATHER);
    g_assert_cmpint(op->comm_bytes, ==, 2 * logits);
    g_assert_null(find(ops, MODEL_MAX_OPS, "loss_sum"));

    ModelOp split[MODEL_MAX_OPS] = {{0}};
    shape.splits_eager_loss = true;
    model_ops(arch, MODEL_PART_HEAD, 0, &shape, split);
    op = find(split, MODEL_MAX_OPS, "loss");
    g_assert_cmpint(op->forward_bytes, ==, 14 * logits / 4);
    g_assert_cmpint(op->backward_bytes, ==, 22 * logits / 4);
    g_assert_cmpint(op->saved_bytes, ==, 10 * logits / 4);
    g_assert_cmpint(op->backward_transient_bytes, ==, 8 * logits / 4);
    op = find(split, MODEL_MAX_OPS, "loss_sum");
    g_assert_cmpint(op->comm_bytes, ==, INT64_C(4) * 512);
    g_assert_null(find(split, MODEL_MAX_OPS, "logits_gather"));
}

/*
 * PyTorch's own loss, whatever modules are fused, of logits that the loop gives back: their logarithms in
 * fp32 (4) stay, forward has the logits in both formats besides (2 + 4), backward two gradients in fp32
 * (8).  Compiled: read twice, and again for the gradient (2 bytes each); the logits stay, and backward has
 * their gradient.
 */
static void
test_whole_loss_of_torch(void)
{
    g_autoptr(ModelArch) arch = load("llama3-8b");
    ModelShape shape = plain_shape(1, 512);
    const int64_t logits = 512 * arch->vocab;
    ModelOp ops[MODEL_MAX_OPS] = {{0}}, compiled[MODEL_MAX_OPS] = {{0}};
    const ModelOp *op;

    shape.dtype = DTYPE_BF16;
    shape.torch_loss = shape.drops_logits = shape.splits_eager_loss = true;
    model_ops(arch, MODEL_PART_HEAD, 0, &shape, ops);
    op = find(ops, MODEL_MAX_OPS, "loss");
    g_assert_cmpint(op->forward_bytes, ==, 14 * logits);
    g_assert_cmpint(op->backward_bytes, ==, 22 * logits);
    g_assert_cmpint(op->saved_bytes, ==, 4 * logits);
    g_assert_cmpint(op->forward_transient_bytes, ==, 6 * logits);
    g_assert_cmpint(op->backward_transient_bytes, ==, 8 * logits);
    shape.compiled_loss = true;
    model_ops(arch, MODEL_PART_HEAD, 0, &shape, compiled);
    op = find(compiled, MODEL_MAX_OPS, "loss");
    g_assert_cmpint(op->forward_bytes, ==, 4 * logits);
    g_assert_cmpint(op->backward_bytes, ==, 4 * logits);
    g_assert_cmpint(op->saved_bytes, ==, 2 * logits);
    g_assert_cmpint(op->forward_transient_bytes, ==, 0);
    g_assert_cmpint(op->backward_transient_bytes, ==, 2 * logits);
}

/* Softmax between casts to fp32 and back: 24 bytes per score more forward, 26 backward, 4 kept. */
static void
test_eager_softmax(void)
{
    g_autoptr(ModelArch) arch = load("llama3-8b");
    ModelShape shape = plain_shape(1, 1024), eager = shape;
    int64_t scores = INT64_C(32) * 1024 * 1024;
    ModelOp fused_ops[MODEL_MAX_OPS], ops[MODEL_MAX_OPS];
    const ModelOp *fused = find_in_layer(arch, 0, &shape, "attention", fused_ops), *op;

    eager.eager_softmax = true;
    op = find_in_layer(arch, 0, &eager, "attention", ops);
    g_assert_cmpint(op->forward_bytes - fused->forward_bytes, ==, 24 * scores);
    g_assert_cmpint(op->backward_bytes - fused->backward_bytes, ==, 26 * scores);
    g_assert_cmpint(op->saved_bytes - fused->saved_bytes, ==, 4 * scores);
}

/* TeraPipe's in fp16: a mask in place (4), a softmax from 2 to 4 bytes (6) and a cast back (6) in place of a
 * kernel's 4; backward a cast (6) and the softmax's gradient (10) in place of 6; 4 are kept besides. */
static void
test_half_softmax(void)
{
    g_autoptr(ModelArch) arch = load("gpt3-13b");
    ModelShape shape = plain_shape(1, 1024);
    const int64_t scores = INT64_C(40) * 1024 * 1024;
    ModelOp fused_ops[MODEL_MAX_OPS], ops[MODEL_MAX_OPS];

    shape.dtype = DTYPE_FP16;
    const ModelOp *fused = find_in_layer(arch, 0, &shape, "attention", fused_ops);
    shape.eager_softmax = shape.half_softmax = true;
    const ModelOp *op = find_in_layer(arch, 0, &shape, "attention", ops);
    g_assert_cmpint(op->forward_bytes - fused->forward_bytes, ==, 12 * scores);
    g_assert_cmpint(op->backward_bytes - fused->backward_bytes, ==, 10 * scores);
    g_assert_cmpint(op->saved_bytes - fused->saved_bytes, ==, 4 * scores);
    /* In bf16 there is no such softmax. */
    shape.dtype = DTYPE_BF16;
    op = find_in_layer(arch, 0, &shape, "attention", ops);
    g_assert_cmpint(op->forward_bytes - fused->forward_bytes, ==, 24 * scores);
}

/*
 * A cache of keys and values of 2048 tokens, 2 * 5120 numbers of 2 bytes each: T = 41 943 040 bytes.  A slice of 512
 * after 512 writes a quarter of T (read and written); backward makes T zeros and copies the half that it read,
 * adds the next slice's gradient (3 T), copies T and clears its quarter.  The last slice reads all, and has
 * none after it.
 */
static void
test_kv_cache(void)
{
    g_autoptr(ModelArch) arch = load("gpt3-13b");
    ModelShape shape = plain_shape(1, 512);
    const int64_t whole = 2048 * 2 * 5120 * 2;
    ModelOp ops[MODEL_MAX_OPS];

    shape.caches_kv = true;
    shape.whole_tokens = 2048;
    shape.context = 512;
    const ModelOp *op = find_in_layer(arch, 0, &shape, "kv_cache", ops);
    g_assert_cmpint(op->forward_bytes, ==, whole / 2);
    g_assert_cmpint(op->backward_bytes, ==, whole + whole + 3 * whole + 2 * whole + whole / 4);
    shape.context = 1536;
    op = find_in_layer(arch, 0, &shape, "kv_cache", ops);
    g_assert_cmpint(op->backward_bytes, ==, 2 * whole + whole / 4);
}

/*
 * Megatron's softmax kernel takes 17 to 2048 keys and multiples of 4 of queries, keys and
 * (sequence, head) pairs.  Else, in fp16 per score: forward a cast (6), scale (8), mask (8),
 * softmax (8) and a cast back (6) instead of 4 bytes; backward casts (12), the softmax's gradient
 * (12), mask and scale (16) instead of 6; 4 bytes are kept besides.
 */
static void
test_softmax_kernel_takes_some_shapes(void)
{
    static const struct {
        int64_t batch, tokens, tp;
        Dtype dtype;
        bool eager;
    } cases[] = {
        {1, 1024, 8, DTYPE_FP16, true},  /* 16 heads / 8: 2 pairs */
        {2, 1024, 8, DTYPE_FP16, false}, /* 4 */
        {3, 1024, 8, DTYPE_BF16, true},  /* 6 */
        {1, 1024, 4, DTYPE_FP16, false}, /* 4 */
        {1, 2048, 1, DTYPE_FP16, false}, {1, 2052, 1, DTYPE_FP16, true},
        {1, 1022, 1, DTYPE_FP16, true},  {1, 16, 1, DTYPE_FP16, true},
        {1, 20, 1, DTYPE_FP16, false},   {1, 1024, 8, DTYPE_FP32, false},
    };
    g_autoptr(ModelArch) arch = load("gpt3-1b");

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        ModelShape shape = plain_shape(cases[i].batch, cases[i].tokens), one_kernel;
        const int64_t scores =
            cases[i].eager * cases[i].batch * 16 / cases[i].tp * cases[i].tokens * cases[i].tokens;
        ModelOp fused_ops[MODEL_MAX_OPS], ops[MODEL_MAX_OPS];
        const ModelOp *fused, *op;

        shape.tp = cases[i].tp;
        shape.dtype = cases[i].dtype;
        one_kernel = shape;
        shape.softmax_keys = 2048;
        fused = find_in_layer(arch, 0, &one_kernel, "attention", fused_ops);
        op = find_in_layer(arch, 0, &shape, "attention", ops);
        g_assert_cmpint(op->forward_bytes - fused->forward_bytes, ==, 32 * scores);
        g_assert_cmpint(op->backward_bytes - fused->backward_bytes, ==, 34 * scores);
        g_assert_cmpint(op->saved_bytes - fused->saved_bytes, ==, 4 * scores);
        g_assert_cmpint(op->n_kernels_forward - fused->n_kernels_forward, ==, 4 * cases[i].eager);
        g_assert_cmpint(op->n_kernels_backward - fused->n_kernels_backward, ==, 4 * cases[i].eager);
    }
}

/* Megatron's --make-vocab-size-divisible-by 128: 50257 tokens over tp 2 are 25129 columns, then 197
 * times 128. */
static void
test_vocabularies_are_padded(void)
{
    static const int64_t columns[][3] = {
        {1, 0, 50257}, {2, 0, 25129}, {1, 128, 50304}, {2, 128, 25216}};
    g_autoptr(ModelArch) arch = load("gpt2-124m");

    for (size_t i = 0; i < G_N_ELEMENTS(columns); i++) {
        ModelShape shape = plain_shape(1, 1024);
        ModelOp ops[MODEL_MAX_OPS];
        const ModelOp *logits = NULL;

        shape.tp = columns[i][0];
        shape.vocab_multiple = columns[i][1];
        const size_t n = model_ops(arch, MODEL_PART_HEAD, 0, &shape, ops);
        for (size_t j = 0; j < n; j++)
            if (strcmp(ops[j].name, "logits") == 0)
                logits = &ops[j];
        g_assert_nonnull(logits);
        g_assert_cmpint(logits->n, ==, columns[i][2]);
        /* The table is, too. */
        const ModelArch padded = model_arch_padded(arch, shape.tp, shape.vocab_multiple);
        g_assert_cmpint(model_part_parameters(&padded, MODEL_PART_HEAD, 0, shape.tp, 1, 1, true),
                        ==, (columns[i][2] + 2) * arch->hidden);
    }
}

/* 2205.05198 section 4.3: the last norm's input 2 s b h, the projection's 2 s b h, logits 4 s b
 * v/t; the embedding's dropout mask s b h.  (Token numbers, 8 bytes, are ours.) */
static void
test_embedding_and_head_activations(void)
{
    g_autoptr(ModelArch) arch = load("megatron-22b");
    ModelShape shape = plain_shape(4, 2048);
    int64_t sb = 4 * 2048, h = 6144, v = 51200, t = 8;

    shape.dropout = true;
    shape.tp = t;
    g_assert_cmpint(sum(arch, MODEL_PART_HEAD, 0, &shape, SAVED), ==, 4 * sb * h + 4 * sb * v / t);
    g_assert_cmpint(sum(arch, MODEL_PART_EMBEDDING, 0, &shape, SAVED), ==, sb * h + 8 * sb);
    shape.sequence_parallel = true;
    g_assert_cmpint(sum(arch, MODEL_PART_HEAD, 0, &shape, SAVED), ==,
                    4 * sb * h / t + 4 * sb * v / t);
    g_assert_cmpint(sum(arch, MODEL_PART_EMBEDDING, 0, &shape, SAVED), ==, sb * h / t + 8 * sb);
}

/* Inputs of the products: h, h, h/t, 4h/t per row of a GPT layer; gradients of their outputs: 3h/t,
 * h, 4h/t, h.  On one device 14 and 18 of the 32 s b h that Zero Bubble keeps from I to W
 * [2401.10241, M_W]. */
static void
test_weight_gradients_need_both_sides_of_products(void)
{
    g_autoptr(ModelArch) arch = load("gpt3-1b");
    ModelShape shape = plain_shape(2, 512);

    shape.tp = 2;
    g_assert_cmpint(sum(arch, MODEL_PART_LAYER, 0, &shape, SAVED_FOR_WEIGHT), ==,
                    2 * 2 * 512 * (2048 + 2048 + 2048 / 2 + 4 * 2048 / 2));
    g_assert_cmpint(sum(arch, MODEL_PART_LAYER, 0, &shape, OUTPUT_GRADIENT), ==,
                    2 * 2 * 512 * (3 * 2048 / 2 + 2048 + 4 * 2048 / 2 + 2048));
    shape.tp = 1;
    g_assert_cmpint(sum(arch, MODEL_PART_LAYER, 0, &shape, SAVED_FOR_WEIGHT) +
                        sum(arch, MODEL_PART_LAYER, 0, &shape, OUTPUT_GRADIENT),
                    ==, 32 * 2 * 512 * 2048);
}

/* --- slices --- */

/*
 * A sequence cut into slices: scores, FLOPs of the products and K, V add up to the whole whatever
 * the cut; the needed scores add up to s (s + 1) / 2.
 */
static void
test_slices_add_up_to_the_sequence(void)
{
    static const int64_t cuts[][5] = {
        {2048}, {1024, 1024}, {704, 688, 656}, {1, 2047}, {512, 512, 512, 504, 8}};
    g_autoptr(ModelArch) arch = load("gpt3-13b");
    ModelShape whole = plain_shape(2, 2048);
    double s = 2048.0;

    for (size_t i = 0; i < G_N_ELEMENTS(cuts); i++) {
        int64_t kv = 0, context = 0, products = 0;
        double needed = 0.0, qkv_flops = 0.0;
        ModelOp ops[MODEL_MAX_OPS];

        for (size_t j = 0; j < 5 && cuts[i][j] > 0; j++) {
            ModelShape slice = plain_shape(2, cuts[i][j]);
            const ModelOp *op;

            slice.context = context;
            op = find_in_layer(arch, 0, &slice, "attention", ops);
            g_assert_cmpint(op->m, ==, cuts[i][j]);
            g_assert_cmpint(op->n, ==, context + cuts[i][j]);
            g_assert_cmpint(op->count, ==, 2 * 40);
            needed += op->causal_fraction * (double)op->m * (double)op->n;
            qkv_flops += find_in_layer(arch, 0, &slice, "qkv", ops)->forward_flops;
            kv += sum(arch, MODEL_PART_LAYER, 0, &slice, SAVED_KV);
            products += sum(arch, MODEL_PART_LAYER, 0, &slice, SAVED_FOR_WEIGHT);
            context += cuts[i][j];
        }
        g_assert_cmpint(context, ==, 2048);
        g_assert_cmpfloat_with_epsilon(needed, s * (s + 1.0) / 2.0, 1e-6);
        g_assert_cmpfloat_with_epsilon(qkv_flops, 2.0 * 2.0 * s * 5120.0 * 3.0 * 5120.0, 1.0);
        g_assert_cmpint(kv, ==, 2 * 2 * 2 * 2048 * 5120);
        g_assert_cmpint(products, ==, sum(arch, MODEL_PART_LAYER, 0, &whole, SAVED_FOR_WEIGHT));
    }
}

/* --- weights --- */

/* The list's weights are the layer's parameters, for every model and split. */
static void
test_weights_are_the_parameters(void)
{
    static const int64_t splits[][2] = {{1, 1}, {2, 1}, {4, 2}, {8, 8}, {16, 1}};
    static const ModelPart parts[] = {MODEL_PART_LAYER, MODEL_PART_HEAD};
    g_autoptr(GPtrArray) names = model_arch_builtin_names();
    int n_checked = 0;

    for (guint i = 0; i < names->len; i++) {
        g_autoptr(ModelArch) arch = load(g_ptr_array_index(names, i));

        for (size_t j = 0; j < G_N_ELEMENTS(splits); j++) {
            ModelShape shape = plain_shape(4, 1024);

            shape.tp = splits[j][0];
            shape.ep = splits[j][1];
            if (!model_shape_check(arch, &shape, NULL))
                continue;
            for (size_t k = 0; k < G_N_ELEMENTS(parts); k++) {
                int64_t last = arch->n_layers - 1;

                g_assert_cmpint(
                    sum(arch, parts[k], last, &shape, WEIGHT), ==,
                    2 * model_part_parameters(arch, parts[k], last, shape.tp, shape.ep, 1, true));
                g_assert_cmpint(
                    sum(arch, parts[k], 0, &shape, WEIGHT), ==,
                    2 * model_part_parameters(arch, parts[k], 0, shape.tp, shape.ep, 1, true));
            }
            n_checked++;
        }
    }
    g_assert_cmpint(n_checked, >, 60);
}

/* --- robustness --- */

/* Rows that do not divide: the fullest rank's share, never nothing. */
static void
test_divisions_round_up(void)
{
    g_autoptr(ModelArch) arch = load("gpt3-1b");
    ModelShape shape = plain_shape(1, 7);
    ModelOp ops[MODEL_MAX_OPS];

    shape.tp = 8;
    shape.cp = 2;
    shape.sequence_parallel = true;
    g_assert_cmpint(find_in_layer(arch, 0, &shape, "qkv", ops)->m, ==, 4);
    g_assert_cmpint(find(ops, MODEL_MAX_OPS, "norm1")->saved_bytes, ==, 2 * 2048);
}

/* The largest sizes that pass single checks saturate: no overflow, nothing negative. */
static void
test_huge_shapes_saturate(void)
{
    g_autoptr(GPtrArray) names = model_arch_builtin_names();

    for (guint i = 0; i < names->len; i++) {
        g_autoptr(ModelArch) arch = load(g_ptr_array_index(names, i));
        ModelShape shape = plain_shape(MODEL_MAX_SEQ_LEN, MODEL_MAX_SEQ_LEN);
        ModelOp ops[MODEL_MAX_OPS];

        shape.context = MODEL_MAX_SEQ_LEN;
        shape.dropout = true;
        shape.expert_imbalance = 1e6;
        for (int part = MODEL_PART_EMBEDDING; part <= MODEL_PART_HEAD; part++) {
            size_t n = model_ops(arch, (ModelPart)part, arch->n_layers - 1, &shape, ops);

            for (size_t j = 0; j < n; j++) {
                g_assert_cmpint(ops[j].forward_bytes, >=, 0);
                g_assert_cmpint(ops[j].forward_bytes, <=, MODEL_MAX_BYTES);
                g_assert_cmpint(ops[j].backward_bytes, >=, 0);
                g_assert_cmpint(ops[j].backward_bytes, <=, MODEL_MAX_BYTES);
                g_assert_cmpint(ops[j].saved_bytes, >=, 0);
                g_assert_cmpint(ops[j].saved_bytes, <=, MODEL_MAX_BYTES);
                g_assert_cmpint(ops[j].comm_bytes, <=, MODEL_MAX_BYTES);
                g_assert_true(isfinite(ops[j].forward_flops));
            }
        }
        g_assert_false(model_shape_check(arch, &shape, NULL));
    }
}

/* No op launches nothing in forward or moves nothing; parts of saved_bytes are parts. */
static void
test_every_op_does_something(void)
{
    g_autoptr(GPtrArray) names = model_arch_builtin_names();

    for (guint i = 0; i < names->len; i++) {
        g_autoptr(ModelArch) arch = load(g_ptr_array_index(names, i));
        ModelShape shape = plain_shape(1, 64);
        ModelOp ops[MODEL_MAX_OPS];
        size_t n;

        shape.cp = 2;
        shape.ep = arch->experts.n_experts > 0 ? 2 : 1;
        n = model_ops(arch, MODEL_PART_LAYER, arch->n_layers - 1, &shape, ops);
        for (size_t j = 0; j < n; j++) {
            const ModelOp *op = &ops[j];
            bool is_collective = op->kind == MODEL_OP_COLLECTIVE;

            g_assert_cmpint(op->n_kernels_forward + op->n_kernels_backward, >, 0);
            g_assert_cmpint(is_collective ? op->comm_bytes : op->forward_bytes, >, 0);
            g_assert_cmpint(is_collective, ==, op->forward_bytes == 0);
            g_assert_cmpint(op->saved_kv_bytes + op->saved_for_weight_bytes, <=, op->saved_bytes);
            if (op->kind == MODEL_OP_GEMM)
                g_assert_cmpfloat(op->forward_flops, <=,
                                  2.0 * (double)op->count * (double)op->m * (double)op->n *
                                      (double)op->k);
        }
    }
}

/*
 * Backward, in bytes: LayerNorm reads the gradient and the input and writes the gradient, 3 e an
 * element, and with sums apart reads two of them again, 5 e; the gradients of qkv, up and down, 3 h, 4 h
 * and h columns, are read for their biases' sums, and so is that of proj.  The rows behind tp's sums
 * are a rank's own with sequence parallelism.
 */
static void
test_sums_of_biases_and_norms(void)
{
    g_autoptr(ModelArch) arch = load("gpt3-1b"); /* h = 2048 */
    ModelOp ops[MODEL_MAX_OPS], joined[MODEL_MAX_OPS];
    ModelShape shape = plain_shape(2, 512);
    const int64_t rows = 2 * 512, h = 2048;
    int64_t sums = 0, kernels = 0, joined_kernels = 0;
    size_t n, n_joined = model_ops(arch, MODEL_PART_LAYER, 0, &shape, joined);

    g_assert_cmpint(find(joined, n_joined, "norm1")->backward_bytes, ==, 3 * 2 * rows * h);
    g_assert_null(find(joined, n_joined, "bias_sum"));
    shape.sums_biases = shape.sums_norms = true;
    n = model_ops(arch, MODEL_PART_LAYER, 0, &shape, ops);
    g_assert_cmpint(find(ops, n, "norm1")->backward_bytes, ==, 5 * 2 * rows * h);
    for (size_t i = 0; i < n; i++) {
        sums += strcmp(ops[i].name, "bias_sum") == 0 ? ops[i].backward_bytes : 0;
        kernels += ops[i].n_kernels_backward;
    }
    for (size_t i = 0; i < n_joined; i++)
        joined_kernels += joined[i].n_kernels_backward;
    g_assert_cmpint(sums, ==, 2 * rows * (3 + 1 + 4 + 1) * h);
    g_assert_cmpint(kernels, ==, joined_kernels);
    shape.tp = 2;
    shape.sequence_parallel = true;
    n = model_ops(arch, MODEL_PART_LAYER, 0, &shape, ops);
    sums = 0;
    for (size_t i = 0; i < n; i++)
        sums += strcmp(ops[i].name, "bias_sum") == 0 ? ops[i].backward_bytes : 0;
    g_assert_cmpint(sums, ==, 2 * rows * (3 + 1 + 4 + 1) * h / 2);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
#define ADD(path, function) g_test_add_func("/models/ops/" path, function)
    ADD("activations-are-korthikantis-table-2", test_activations_are_korthikantis_table_2);
    ADD("activations-scale-with-the-element", test_activations_scale_with_the_element);
    ADD("what-is-quantised", test_what_is_quantised);
    ADD("fp8-is-for-products-only", test_fp8_is_for_products_only);
    ADD("flash-attention-keeps-no-scores", test_flash_attention_keeps_no_scores);
    ADD("llama-activations", test_llama_activations);
    ADD("eager-modules-move-every-intermediate", test_eager_modules_move_every_intermediate);
    ADD("complex-rotation-is-not-compiled", test_complex_rotation_is_not_compiled);
    ADD("eager-loss-is-split-where-told", test_eager_loss_is_split_where_told);
    ADD("whole-loss-of-torch", test_whole_loss_of_torch);
    ADD("eager-softmax", test_eager_softmax);
    ADD("half-softmax", test_half_softmax);
    ADD("kv-cache", test_kv_cache);
    ADD("softmax-kernel-takes-some-shapes", test_softmax_kernel_takes_some_shapes);
    ADD("vocabularies-are-padded", test_vocabularies_are_padded);
    ADD("embedding-and-head-activations", test_embedding_and_head_activations);
    ADD("weight-gradients-need-both-sides-of-products",
        test_weight_gradients_need_both_sides_of_products);
    ADD("slices-add-up-to-the-sequence", test_slices_add_up_to_the_sequence);
    ADD("weights-are-the-parameters", test_weights_are_the_parameters);
    ADD("divisions-round-up", test_divisions_round_up);
    ADD("huge-shapes-saturate", test_huge_shapes_saturate);
    ADD("every-op-does-something", test_every_op_does_something);
    ADD("sums-of-biases-and-norms", test_sums_of_biases_and_norms);
#undef ADD
    return g_test_run();
}
