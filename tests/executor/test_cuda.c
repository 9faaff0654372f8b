/* Tests of the cuda backend on an emulated GPU: every slot against the reference, in both number
 * formats. */
#include "executor/device/backend.h"

#include <math.h>

#include "tests/executor/both.h"
#include "tests/executor/tensors.h"

/* --- products --- */

static void
check_product(Both *both, int64_t m, int64_t n, int64_t k, int form)
{
    const bool trans_a = form & 1, trans_b = form & 2, accumulate = form & 4, follows = form & 8;
    const bool c_fp32 = accumulate, gelu = follows && trans_a, slope = follows && !trans_a;
    const int64_t lda = trans_a ? m : k, ldb = trans_b ? k : n;
    const Pair *a = pair_stored(both, "a", m * k, 1), *b = pair_stored(both, "b", k * n, 1);
    const Pair *c = c_fp32 ? pair_fp32(both, "c", m * n, 1) : pair_stored(both, "c", m * n, 1);
    const Pair *bias = pair_stored(both, "bias", n, 1);
    const Pair *other = pair_stored(both, "other", m * n, 1);

    if (accumulate && follows)
        return; /* nothing follows a gradient of weights */
    EACH(both, i, backend)
    exec_gemm(backend, &(ExecGemm){
                           .trans_a = trans_a,
                           .trans_b = trans_b,
                           .accumulate = accumulate,
                           .c_fp32 = c_fp32,
                           .m = m,
                           .n = n,
                           .k = k,
                           .a = a->of[i],
                           .lda = lda,
                           .b = b->of[i],
                           .ldb = ldb,
                           .c = c->of[i],
                           .ldc = n,
                           .bias = !accumulate && !slope ? bias->of[i] : NULL,
                           .residual = !accumulate && !follows ? other->of[i] : NULL,
                           .gelu = gelu ? other->of[i] : NULL,
                           .gelu_input = slope ? other->of[i] : NULL,
                       });
    check_pair(both, c, !c_fp32, 1e-5);
    if (gelu)
        check_pair(both, other, true, 1e-5);
}

static void
check_products(Both *both)
{
    static const int64_t shapes[][3] = {{1, 1, 1}, {3, 5, 7}, {16, 64, 32}, {24, 72, 16}};

    for (size_t i = 0; i < G_N_ELEMENTS(shapes); i++)
        for (int form = 0; form < 16; form++)
            check_product(both, shapes[i][0], shapes[i][1], shapes[i][2], form);
}

static void
test_products_equal_reference(void)
{
    in_both_formats(check_products);
}

/* --- rows --- */

static void
check_norm(Both *both, int64_t rows, int64_t cols, bool centered)
{
    const Pair *x = pair_stored(both, "x", rows * cols, 3), *gain = pair_stored(both, "g", cols, 1);
    const Pair *shift = pair_stored(both, "s", cols, 1),
               *y = pair_stored(both, "y", rows * cols, 1);
    const Pair *mean = pair_fp32(both, "m", rows, 1), *rstd = pair_fp32(both, "r", rows, 1);
    const Pair *dy = pair_stored(both, "dy", rows * cols, 1);
    const Pair *dx = pair_stored(both, "dx", rows * cols, 1);
    const Pair *dgain = pair_fp32(both, "dg", cols, 1), *dshift = pair_fp32(both, "ds", cols, 1);

    EACH(both, i, backend)
    {
        const ExecNorm norm = {.rows = rows,
                               .cols = cols,
                               .x = x->of[i],
                               .gain = gain->of[i],
                               .shift = centered ? shift->of[i] : NULL,
                               .mean = centered ? mean->of[i] : NULL,
                               .rstd = rstd->of[i]};
        backend->ops->norm_forward(backend, &norm, y->of[i]);
        backend->ops->norm_backward(backend, &norm, dy->of[i], dx->of[i], dgain->of[i],
                                    centered ? dshift->of[i] : NULL);
    }
    check_pair(both, y, true, 1e-6);
    check_pair(both, rstd, false, 1e-6);
    check_pair(both, dx, true, 1e-5);
    check_pair(both, dgain, false, 1e-5);
    if (centered) {
        check_pair(both, mean, false, 1e-5);
        check_pair(both, dshift, false, 1e-5);
    }
}

static void
check_rows(Both *both)
{
    static const int64_t shapes[][2] = {{1, 8}, {5, 33}, {300, 64}, {7, 520}};

    for (size_t i = 0; i < G_N_ELEMENTS(shapes); i++) {
        const int64_t rows = shapes[i][0], cols = shapes[i][1];
        check_norm(both, rows, cols, true);
        check_norm(both, rows, cols, false);
        const Pair *dy = pair_stored(both, "dy", rows * (cols + 3), 1);
        const Pair *db = pair_fp32(both, "db", cols, 1);
        EACH(both, j, backend)
        backend->ops->bias_backward(backend, rows, cols, dy->of[j], cols + 3, db->of[j]);
        check_pair(both, db, false, 1e-5);
    }
}

static void
test_rows_equal_reference(void)
{
    in_both_formats(check_rows);
}

/* --- elements --- */

static void
check_elements_of(Both *both, int64_t n, int64_t shift)
{
    const Pair *x = pair_stored(both, "x", n + shift, 2), *y = pair_stored(both, "y", n + shift, 1);
    const Pair *sum = pair_stored(both, "sum", n + shift, 1);
    const Pair *f = pair_fp32(both, "f", n, 1), *g = pair_stored(both, "g", n + shift, 1);

    EACH(both, i, backend)
    {
        /* Away from the beginning of a block: addresses that are no multiples of 16. */
        void *from = exec_at(backend, x->of[i], shift);
        backend->ops->add(backend, n, from, exec_at(backend, sum->of[i], shift));
        backend->ops->gelu_forward(backend, n, from, exec_at(backend, y->of[i], shift));
        backend->ops->gelu_backward(backend, n, from, exec_at(backend, g->of[i], shift));
        backend->ops->scale(backend, n, 0.3f, f->of[i]);
    }
    check_pair(both, sum, true, 1e-6);
    check_pair(both, y, true, 1e-6);
    check_pair(both, g, true, 1e-6);
    check_pair(both, f, false, 1e-6);
}

static void
check_swiglu_and_rope(Both *both)
{
    const int64_t rows = 6, width = 20, heads = 2, dim = 12, sequences = 2, stride = 30;
    const int32_t positions[] = {4, 0, 9};
    const Pair *x = pair_stored(both, "x", rows * 2 * width, 1);
    const Pair *y = pair_stored(both, "y", rows * width, 1);
    const Pair *dy = pair_stored(both, "dy", rows * width, 1);
    const Pair *dx = pair_stored(both, "dx", rows * 2 * width, 1);
    const Pair *turned = pair_stored(both, "turned", rows * stride, 1);
    const Pair *turns = pair_fp32(both, "turns", 11 * dim, 1);
    const Pair *place = pair_of_bytes(both, positions, sizeof positions);

    EACH(both, i, backend)
    {
        ExecRope rope = {.rows = rows,
                         .sequences = sequences,
                         .n_heads = heads,
                         .head_dim = dim,
                         .stride = stride,
                         .position = place->of[i],
                         .turns = turns->of[i]};
        backend->ops->swiglu_forward(backend, rows, width, x->of[i], y->of[i]);
        backend->ops->swiglu_backward(backend, rows, width, x->of[i], dy->of[i], dx->of[i]);
        backend->ops->rope(backend, &rope, turned->of[i]);
        rope.inverse = true;
        rope.turns = (const float *)turns->of[i] + dim;
        backend->ops->rope(backend, &rope, turned->of[i]);
    }
    check_pair(both, y, true, 1e-6);
    check_pair(both, dx, true, 1e-6);
    check_pair(both, turned, true, 1e-6);
}

static void
check_adamw(Both *both)
{
    const int64_t n = 700;
    const Pair *master = pair_fp32(both, "p", n, 1), *weights = pair_stored(both, "w", n, 1);
    const Pair *grad = pair_fp32(both, "g", n, 1), *m = pair_fp32(both, "m", n, 1);
    g_autofree float *squares = numbers("v", n, 1);
    for (int64_t j = 0; j < n; j++)
        squares[j] = fabsf(squares[j]); /* second moments are not negative */
    Pair *v = pair_of_bytes(both, squares, (size_t)n * sizeof *squares);
    v->n = n;
    const ExecAdamw constants = {.learning_rate = 0.1f,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.95f,
                                 .epsilon = 1e-8f,
                                 .weight_decay = 0.1f,
                                 .step = 3};

    EACH(both, i, backend)
    {
        backend->ops->adamw(backend, n, master->of[i],
                            both->storage == DTYPE_FP32 ? NULL : weights->of[i], grad->of[i],
                            m->of[i], v->of[i], &constants);
    }
    check_pair(both, master, false, 1e-6);
    check_pair(both, weights, true, 1e-6);
    check_pair(both, m, false, 1e-6);
    check_pair(both, v, false, 1e-6);
}

static void
check_elements(Both *both)
{
    check_elements_of(both, 1, 0);
    check_elements_of(both, 4099, 0);
    check_elements_of(both, 600, 3);
    check_swiglu_and_rope(both);
    check_adamw(both);
}

static void
test_elements_equal_reference(void)
{
    in_both_formats(check_elements);
}

/* --- attention --- */

static void
check_attention(Both *both, const int64_t shape[6])
{
    const int64_t sequences = shape[0], heads = shape[1], kv_heads = shape[2], dim = shape[3];
    const int64_t tokens = shape[4], context = shape[5], kv_width = kv_heads * dim;
    const int64_t n_q = tokens * sequences * heads * dim;
    const int64_t n_kv = (context + tokens) * sequences * 2 * kv_width;
    const Pair *q = pair_stored(both, "q", n_q, 1), *kv = pair_stored(both, "kv", n_kv, 1);
    const Pair *out = pair_stored(both, "out", n_q, 1), *dout = pair_stored(both, "dout", n_q, 1);
    const Pair *dq = pair_stored(both, "dq", n_q, 1), *dkv = pair_stored(both, "dkv", n_kv, 1);
    const Pair *lse = pair_fp32(both, "lse", tokens * sequences * heads, 1);

    EACH(both, i, backend)
    {
        const ExecAttention a = {.sequences = sequences,
                                 .n_heads = heads,
                                 .n_kv_heads = kv_heads,
                                 .head_dim = dim,
                                 .tokens = tokens,
                                 .context = context,
                                 .scale = (float)(1.0 / sqrt((double)dim)),
                                 .q = q->of[i],
                                 .k = kv->of[i],
                                 .v = exec_at(backend, kv->of[i], kv_width),
                                 .kv_stride = 2 * kv_width,
                                 .out = out->of[i],
                                 .lse = lse->of[i]};
        const ExecAttentionGradients g = {.dout = dout->of[i],
                                          .dq = dq->of[i],
                                          .dk = dkv->of[i],
                                          .dv = exec_at(backend, dkv->of[i], kv_width)};
        backend->ops->attention_forward(backend, &a);
        backend->ops->attention_backward(backend, &a, &g);
    }
    check_pair(both, out, true, 1e-6);
    check_pair(both, lse, false, 1e-6);
    check_pair(both, dq, true, 1e-5);
    check_pair(both, dkv, true, 1e-5);
}

/* Tensor cores take probabilities and their gradients as bf16, one rounding more: 2^-9 of each of
 * many terms of random sign, so well inside the 2^-7 of the result's own rounding. */
static void
check_attentions(Both *both)
{
    static const int64_t on_tensor_cores[][6] = {
        /* sequences, heads, kv heads, head size, tokens, context */
        {1, 1, 1, 32, 64, 0},  {2, 2, 1, 32, 33, 70},  {1, 2, 2, 64, 130, 1},
        {1, 2, 1, 96, 20, 40}, {1, 1, 1, 128, 72, 60},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(attention_shapes); i++)
        check_attention(both, attention_shapes[i]);
    for (size_t i = 0; i < G_N_ELEMENTS(on_tensor_cores); i++)
        check_attention(both, on_tensor_cores[i]);
}

#define ATTENTION_VARIABLE "DEGAS_CUDA_ATTENTION"

static void
test_attention_equals_reference(void)
{
    g_setenv(ATTENTION_VARIABLE, "mma", TRUE);
    in_both_formats(check_attentions);
    g_unsetenv(ATTENTION_VARIABLE);
}

/*
 * By wgmma, compute capability 9.0's own instructions; with tiles of 128 queries and keys, of which
 * two are on the way or in use.
 */
static void
check_attentions_by_wgmma(Both *both)
{
    static const int64_t shapes[][6] = {
        /* sequences, heads, kv heads, head size, tokens, context */
        {1, 1, 1, 64, 1, 0},     {1, 1, 1, 128, 128, 0}, /* one tile */
        {1, 2, 1, 64, 130, 0},   {2, 1, 1, 64, 257, 300},
        {2, 4, 2, 128, 200, 77}, {1, 1, 1, 128, 100, 700}, /* every buffer three times */
    };
    g_autofree char *name = both->of[1]->ops->describe(both->of[1]);

    g_assert_nonnull(strstr(name, "attention by wgmma"));
    for (size_t i = 0; i < G_N_ELEMENTS(shapes); i++)
        check_attention(both, shapes[i]);
}

static void
test_attention_by_wgmma_equals_reference(void)
{
    Both both = {0};

    if (!emulated_gpu_or_skip())
        return;
    g_setenv(ATTENTION_VARIABLE, "wgmma", TRUE);
    g_autoptr(GError) error = NULL;
    ExecBackend *backend = exec_backend_open("cuda", 0, DTYPE_BF16, &error);
    if (backend == NULL && g_getenv("DEGAS_TEST_GPU") != NULL &&
        strstr(error->message, "wgmma is of 9.0 only") != NULL) {
        g_test_skip(error->message);
    } else {
        g_assert_no_error(error);
        exec_backend_close(backend);
        both_open(&both, DTYPE_BF16);
        check_attentions_by_wgmma(&both);
        both_close(&both);
    }
    g_unsetenv(ATTENTION_VARIABLE);
}

/* --- embedding and loss --- */

static void
check_embedding(Both *both)
{
    const int32_t tokens[] = {3, 9, 3, 3, 0, 11, 9, 3}, positions[] = {5, 2, 0, 7};
    const int64_t rows = 8, sequences = 2, cols = 40, first = 2, n_tokens = 9;
    const Pair *table = pair_stored(both, "t", n_tokens * cols, 1);
    const Pair *places = pair_stored(both, "p", 8 * cols, 1), *x = pair_stored(both, "x", 320, 1);
    const Pair *dx = pair_stored(both, "dx", rows * cols, 1);
    const Pair *dtable = pair_fp32(both, "dt", n_tokens * cols, 1);
    const Pair *dplaces = pair_fp32(both, "dp", 8 * cols, 1);
    const Pair *token = pair_of_bytes(both, tokens, sizeof tokens);
    const Pair *position = pair_of_bytes(both, positions, sizeof positions);

    EACH(both, i, backend)
    {
        const ExecEmbedding e = {.rows = rows,
                                 .sequences = sequences,
                                 .cols = cols,
                                 .first_token = first,
                                 .n_tokens = n_tokens,
                                 .token = token->of[i],
                                 .position = position->of[i]};
        backend->ops->embedding_forward(backend, &e, table->of[i], places->of[i], x->of[i]);
        backend->ops->embedding_backward(backend, &e, dx->of[i], dtable->of[i], dplaces->of[i]);
    }
    check_pair(both, x, true, 1e-6);
    check_pair(both, dtable, false, 1e-6);
    check_pair(both, dplaces, false, 1e-6);
}

/* @n_parts 1: whole rows; else the vocabulary is split and the parts' statistics are joined. */
static void
check_cross_entropy(Both *both, int64_t rows, int64_t vocab, int64_t n_parts)
{
    const int64_t width = vocab / n_parts;
    g_autofree int32_t *targets = g_new(int32_t, (size_t)rows);

    for (int64_t i = 0; i < rows; i++)
        targets[i] = (int32_t)(i * 7 % vocab);
    const Pair *target = pair_of_bytes(both, targets, (size_t)rows * sizeof *targets);
    const Pair *stats = pair_fp32(both, "stats", n_parts * 3 * rows, 1);
    g_autofree const Pair **logits = g_new0(const Pair *, (size_t)n_parts);
    double losses[2];
    for (int64_t part = 0; part < n_parts; part++)
        logits[part] = pair_stored(both, part == 0 ? "l0" : "l1", rows * width, 3);
    EACH(both, i, backend)
    {
        double nothing = NAN;
        double *loss = backend->ops->alloc(backend, sizeof *loss, "test", NULL);
        backend->ops->upload(backend, sizeof *loss, &nothing, loss);
        for (int64_t pass = n_parts > 1 ? 0 : 1; pass < 2; pass++)
            for (int64_t part = 0; part < n_parts; part++) {
                const ExecCrossEntropy e = {
                    .rows = rows,
                    .vocab = width,
                    .first = part * width,
                    .target = target->of[i],
                    .factor = 0.125f,
                    .logits = logits[part]->of[i],
                    .stats = n_parts > 1 ? stats->of[i] : NULL,
                    .n_parts = n_parts,
                    .loss = loss,
                };
                if (pass == 0)
                    backend->ops->cross_entropy_stats(backend, &e,
                                                      (float *)stats->of[i] + part * 3 * rows);
                else
                    backend->ops->cross_entropy(backend, &e);
            }
        backend->ops->download(backend, sizeof *loss, loss, &losses[i]);
        g_assert_true(backend->ops->synchronize(backend, NULL));
        backend->ops->release(backend, loss);
    }
    g_assert_cmpfloat(fabs(losses[1] / losses[0] - 1.0), <=, 1e-6);
    for (int64_t part = 0; part < n_parts; part++)
        check_pair(both, logits[part], true, 1e-5);
}

static void
check_ends(Both *both)
{
    check_embedding(both);
    check_cross_entropy(both, 5, 7, 1);
    check_cross_entropy(both, 3, 700, 1);
    check_cross_entropy(both, 4, 60, 2);
}

static void
test_embedding_and_loss_equal_reference(void)
{
    in_both_formats(check_ends);
}

/* --- experts --- */

static void
check_experts_of(Both *both, int64_t rows, int64_t n_experts, int64_t top_k, int64_t cols)
{
    const int64_t n = rows * top_k;
    g_autofree int32_t *order = g_new(int32_t, (size_t)n);

    for (int64_t i = 0; i < n; i++)
        order[i] = (int32_t)((i * 5 + 3) % rows);
    const Pair *from = pair_of_bytes(both, order, (size_t)n * sizeof *order);
    const Pair *scores = pair_fp32(both, "scores", rows * n_experts, 1);
    const Pair *expert = pair_fp32(both, "expert", n, 1), *weight = pair_fp32(both, "w", n, 1);
    const Pair *dweight = pair_fp32(both, "dw", n, 1);
    const Pair *dscores = pair_stored(both, "ds", rows * n_experts, 1);
    const Pair *x = pair_stored(both, "x", rows * cols, 1);
    const Pair *gathered = pair_stored(both, "g", n * cols, 1);
    const Pair *sum = pair_stored(both, "sum", rows * cols, 1);
    const Pair *dot = pair_fp32(both, "dot", rows, 1);

    EACH(both, i, backend)
    {
        const ExecBackendOps *ops = backend->ops;
        ops->route(backend, rows, n_experts, top_k, scores->of[i], expert->of[i], weight->of[i]);
        ops->route_backward(backend, rows, n_experts, top_k, expert->of[i], weight->of[i],
                            dweight->of[i], dscores->of[i]);
        ops->gather_rows(backend, n, exec_storage_bytes(backend, cols), from->of[i], x->of[i],
                         gathered->of[i]);
        ops->sum_rows(backend, rows, cols, top_k, from->of[i], gathered->of[i], sum->of[i]);
        ops->scale_rows(backend, rows, cols, weight->of[i], sum->of[i]);
        ops->dot_rows(backend, rows, cols, x->of[i], sum->of[i], dot->of[i]);
    }
    g_autofree float *expected = read_back(both->of[0], expert->of[0], n, false);
    g_autofree float *actual = read_back(both->of[1], expert->of[1], n, false);
    g_assert_true(memcmp(expected, actual, (size_t)n * sizeof *actual) == 0); /* the same choice */
    check_pair(both, weight, false, 1e-6);
    check_pair(both, dscores, true, 1e-5);
    check_pair(both, gathered, true, 0);
    check_pair(both, sum, true, 1e-6);
    /* Its operands differ by a rounding of bf16. */
    check_pair(both, dot, false, both->storage == DTYPE_BF16 ? 0x1p-7 : 1e-5);
}

static void
check_experts(Both *both)
{
    check_experts_of(both, 5, 4, 2, 7);
    check_experts_of(both, 300, 8, 2, 64);
}

static void
test_experts_equal_reference(void)
{
    in_both_formats(check_experts);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/cuda/products-equal-reference", test_products_equal_reference);
    g_test_add_func("/executor/cuda/rows-equal-reference", test_rows_equal_reference);
    g_test_add_func("/executor/cuda/elements-equal-reference", test_elements_equal_reference);
    g_test_add_func("/executor/cuda/attention-equals-reference", test_attention_equals_reference);
    g_test_add_func("/executor/cuda/embedding-and-loss-equal-reference",
                    test_embedding_and_loss_equal_reference);
    g_test_add_func("/executor/cuda/experts-equal-reference", test_experts_equal_reference);
    /* Last: what never ran on a GPU may never end there, and takes its time from those behind. */
    g_test_add_func("/executor/cuda/attention-by-wgmma-equals-reference",
                    test_attention_by_wgmma_equals_reference);
    return g_test_run();
}
