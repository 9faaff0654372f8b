/* Tests of the cuda backend on an emulated GPU: every slot against the reference, in both number
 * formats. */
#include "executor/device/backend.h"

#include <math.h>

#include "executor/device/clock.h"
#include "tests/executor/both.h"
#include "tests/executor/tensors.h"

/* --- products --- */

static void
check_product(Both *both, int64_t m, int64_t n, int64_t k, int form)
{
    const bool trans_a = form & 1, trans_b = form & 2, accumulate = form & 4, follows = form & 8;
    const bool c_fp32 = accumulate, gelu = follows && trans_a, slope = follows && !trans_a;
    const int64_t lda = trans_a ? m : k, ldb = trans_b ? k : n;

    if (accumulate && follows)
        return; /* nothing follows a gradient of weights */
    if (!both_shape(both, "product", m, n, k, form))
        return;
    const Pair *a = pair_stored(both, "a", m * k, 1), *b = pair_stored(both, "b", k * n, 1);
    const Pair *c = c_fp32 ? pair_fp32(both, "c", m * n, 1) : pair_stored(both, "c", m * n, 1);
    const Pair *bias = pair_stored(both, "bias", n, 1);
    const Pair *other = pair_stored(both, "other", m * n, 1);
    const Pair *sums = pair_fp32(both, "sums", n, 1); /* of the columns of B, added */

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
                           .bias_gradient = accumulate && !trans_b ? sums->of[i] : NULL,
                       });
    check_pair(both, c, !c_fp32, 1e-5);
    check_pair(both, sums, false, 1e-5);
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

/* Products that are timed first, on what they then compute, give the same results. */
static void
test_timed_products_equal_reference(void)
{
    g_setenv("FAKE_CUDA", "proposals=3", TRUE);
    in_both_formats(check_products);
    g_unsetenv("FAKE_CUDA");
}

/* How long the second of two products of the same shape takes, which adds to @c if @accumulate. */
static double
second_product_s(bool deterministic, bool accumulate)
{
    const ExecBackendOptions options = {.storage = DTYPE_BF16, .deterministic = deterministic};
    g_autoptr(GError) error = NULL;
    g_autoptr(ExecBackend) backend = exec_backend_open_with("cuda", &options, &error);
    double seconds = 0;

    g_assert_no_error(error);
    void *x = backend->ops->alloc(backend, 4096, "test", NULL);
    backend->ops->zero(backend, 4096, x);
    const ExecGemm gemm = {.accumulate = accumulate,
                           .m = 16,
                           .n = 16,
                           .k = 16,
                           .a = x,
                           .lda = 16,
                           .b = x,
                           .ldb = 16,
                           .c = (char *)x + 1024,
                           .ldc = 16};
    for (int i = 0; i < 2; i++) {
        const int64_t begin_ns = exec_now_ns();
        exec_gemm(backend, &gemm);
        backend->ops->synchronize(backend, &error);
        g_assert_no_error(error);
        seconds = exec_seconds_since(begin_ns);
    }
    backend->ops->release(backend, x);
    return seconds;
}

/* cuBLASLt's first proposal takes 200 ms longer than the others. */
static void
test_fastest_proposal_is_kept(void)
{
    if (!emulated_gpu_or_skip() || g_getenv("DEGAS_TEST_GPU") != NULL)
        return;
    g_setenv("FAKE_CUDA", "proposals=3,slow=200", TRUE);
    g_assert_cmpfloat(second_product_s(false, false), <, 0.2);
    g_assert_cmpfloat(second_product_s(false, true), <, 0.2);
    g_assert_cmpfloat(second_product_s(true, false), >=, 0.2);
    /* No memory for trials elsewhere: those of 32 MiB for products are there. */
    g_setenv("FAKE_CUDA", "proposals=3,slow=200,memory=33558528", TRUE);
    g_assert_cmpfloat(second_product_s(false, true), >=, 0.2);
    g_unsetenv("FAKE_CUDA");
}

/* --- rows --- */

/* All tensors begin at element @shift of their memory. */
static void
check_norm(Both *both, int64_t rows, int64_t cols, bool centered, int64_t shift)
{
    if (!both_shape(both, centered ? "LayerNorm" : "RMSNorm", rows, cols, shift))
        return;
    const int64_t n = rows * cols + shift;
    const Pair *x = pair_stored(both, "x", n, 3), *gain = pair_stored(both, "g", cols + shift, 1);
    const Pair *b = pair_stored(both, "s", cols + shift, 1), *y = pair_stored(both, "y", n, 1);
    const Pair *mean = pair_fp32(both, "m", rows, 1), *rstd = pair_fp32(both, "r", rows, 1);
    const Pair *dy = pair_stored(both, "dy", n, 1), *dx = pair_stored(both, "dx", n, 1);
    const Pair *dgain = pair_fp32(both, "dg", cols, 1), *dshift = pair_fp32(both, "ds", cols, 1);

    EACH(both, i, backend)
    {
        const ExecNorm norm = {.rows = rows,
                               .cols = cols,
                               .x = exec_at(backend, x->of[i], shift),
                               .gain = exec_at(backend, gain->of[i], shift),
                               .shift = centered ? exec_at(backend, b->of[i], shift) : NULL,
                               .mean = centered ? mean->of[i] : NULL,
                               .rstd = rstd->of[i],
                               .epsilon = 1e-3f};
        backend->ops->norm_forward(backend, &norm, exec_at(backend, y->of[i], shift));
        backend->ops->norm_backward(backend, &norm, exec_at(backend, dy->of[i], shift),
                                    exec_at(backend, dx->of[i], shift), dgain->of[i],
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

/* Sums of columns of rows that are @extra elements longer, beginning at element @shift. */
static void
check_column_sums(Both *both, int64_t rows, int64_t cols, int64_t extra, int64_t shift)
{
    if (!both_shape(both, "column sums", rows, cols, extra, shift))
        return;
    const Pair *dy = pair_stored(both, "dy", rows * (cols + extra) + shift, 1);
    const Pair *db = pair_fp32(both, "db", cols, 1);

    EACH(both, i, backend)
    backend->ops->bias_backward(backend, rows, cols, exec_at(backend, dy->of[i], shift),
                                cols + extra, db->of[i]);
    check_pair(both, db, false, 1e-5);
}

/* Widths that threads move 16 bytes of at a time, and odd ones; those of one, two and four rounds
 * of a block's threads; more rows than blocks. */
static void
check_rows(Both *both)
{
    static const int64_t shapes[][2] = {{1, 8},    {5, 33},   {20, 64},  {7, 520},   {530, 24},
                                        {2, 1032}, {3, 2051}, {2, 6144}, {1, 12288}, {1, 16384}};

    for (size_t i = 0; i < G_N_ELEMENTS(shapes); i++) {
        const int64_t rows = shapes[i][0], cols = shapes[i][1];
        check_norm(both, rows, cols, true, 0);
        check_norm(both, rows, cols, false, 0);
        check_column_sums(both, rows, cols, 0, 0);
        check_column_sums(both, rows, cols, 3, 0);
        check_column_sums(both, rows, cols, 8, 1);
    }
    check_column_sums(both, 1030, 136, 8, 8); /* several blocks below each other */
    check_column_sums(both, 700, 67, 0, 0);
    check_norm(both, 3, 48, true, 1); /* away from multiples of 16 bytes */
}

static void
test_rows_equal_reference(void)
{
    in_both_formats(check_rows);
}

static void
test_too_wide_norm_is_refused(void)
{
    const ExecNorm norm = {.rows = 1, .cols = 16385};
    g_autoptr(GError) error = NULL;

    if (!emulated_gpu_or_skip())
        return;
    g_autoptr(ExecBackend) backend = exec_backend_open("cuda", 0, DTYPE_BF16, &error);
    g_assert_no_error(error);
    backend->ops->norm_forward(backend, &norm, NULL);
    g_assert_false(backend->ops->synchronize(backend, &error));
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_UNSUPPORTED);
    g_assert_cmpstr(error->message, ==,
                    "device cuda: a norm has 16385 columns; its kernels have registers for 16384");
}

/* --- elements --- */

static void
check_elements_of(Both *both, int64_t n, int64_t shift)
{
    if (!both_shape(both, "elements", n, shift))
        return;
    const Pair *x = pair_stored(both, "x", n + shift, 2), *y = pair_stored(both, "y", n + shift, 1);
    const Pair *sum = pair_stored(both, "sum", n + shift, 1);
    const Pair *g = pair_stored(both, "g", n + shift, 1);

    EACH(both, i, backend)
    {
        /* Away from the beginning of a block: addresses that are no multiples of 16. */
        void *from = exec_at(backend, x->of[i], shift);
        backend->ops->add(backend, n, from, exec_at(backend, sum->of[i], shift));
        backend->ops->gelu_forward(backend, n, from, exec_at(backend, y->of[i], shift));
        backend->ops->gelu_backward(backend, n, from, exec_at(backend, g->of[i], shift));
    }
    check_pair(both, sum, true, 1e-6);
    check_pair(both, y, true, 1e-6);
    check_pair(both, g, true, 1e-6);
}

static void
check_swiglu_and_rope(Both *both)
{
    const int64_t rows = 6, width = 20, heads = 2, dim = 12, sequences = 2, stride = 30;
    const int32_t positions[] = {4, 0, 9};

    if (!both_shape(both, "SwiGLU and rotary positions", rows, width, heads, dim))
        return;
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
        rope.rotary_dim = 6; /* the first half of a head's elements */
        backend->ops->rope(backend, &rope, turned->of[i]);
    }
    check_pair(both, y, true, 1e-6);
    check_pair(both, dx, true, 1e-6);
    check_pair(both, turned, true, 1e-6);
}

/* @n_parts parts in one call, each of one more element than the one before it, from @n on; all begin
 * @shift after where 16 bytes may be moved at once, and every other one decays. */
static void
check_adamw(Both *both, int64_t n_parts, int64_t n, int64_t shift, bool clips)
{
    const int64_t pitch = (n + n_parts + 3) / 4 * 4, all = n_parts * pitch + shift;
    const float clip = 0.3f;

    if (!both_shape(both, "AdamW", n_parts, n, shift, clips))
        return;
    const Pair *master = pair_fp32(both, "p", all, 1), *weights = pair_stored(both, "w", all, 1);
    const Pair *grad = pair_fp32(both, "g", all, 1), *m = pair_fp32(both, "m", all, 1);
    const Pair *factor = pair_of_bytes(both, &clip, sizeof clip);
    g_autofree float *squares = numbers("v", all, 1);
    for (int64_t j = 0; j < all; j++)
        squares[j] = fabsf(squares[j]); /* second moments are not negative */
    Pair *v = pair_of_bytes(both, squares, (size_t)all * sizeof *squares);
    v->n = all;

    EACH(both, i, backend)
    {
        g_autofree ExecAdamwPart *parts = g_new(ExecAdamwPart, n_parts);
        const ExecAdamw constants = {.learning_rate = 0.1f,
                                     .beta1 = 0.9f,
                                     .beta2 = 0.95f,
                                     .epsilon = 1e-8f,
                                     .weight_decay = 0.1f,
                                     .step = 3,
                                     .factor = clips ? factor->of[i] : NULL};
        for (int64_t part = 0; part < n_parts; part++) {
            const int64_t at = part * pitch + shift;
            parts[part] = (ExecAdamwPart){
                .n = n + part,
                .master = (float *)master->of[i] + at,
                .weights =
                    both->storage == DTYPE_FP32 ? NULL : exec_at(backend, weights->of[i], at),
                .grad = (float *)grad->of[i] + at,
                .m = (float *)m->of[i] + at,
                .v = (float *)v->of[i] + at,
                .decays = part % 2 == 0,
            };
        }
        backend->ops->adamw(backend, n_parts, parts, &constants);
    }
    check_pair(both, master, false, 1e-6);
    check_pair(both, weights, true, 1e-6);
    check_pair(both, grad, false, 0); /* zeros, but for those between the parts */
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
    for (int64_t shift = 0; shift <= 1; shift++) {
        check_adamw(both, 1, 3, shift, false);
        check_adamw(both, 1, 2051, shift, true);
        check_adamw(both, 130, 0, shift, true); /* more than one launch has room for */
        check_adamw(both, 3, 1500, shift, false);
    }
}

/* --- the gradient's norm --- */

typedef struct {
    const char *what;
    float first, others; /* 0: normal numbers */
} Gradient;

/* Sums up the squares of @x from @shift on, and once more those of its beginning, on backend @i.
 * Returns the factor that clips this norm to 0.5; @sums  (out) the partial sums, and their sum. */
static double
clip_on(Both *both, int i, const Pair *x, int64_t shift, double sums[EXEC_PARTIAL_SUMS + 1])
{
    ExecBackend *backend = both->of[i];
    const ExecClip none = {0};
    ExecClip joined, *clip = pair_of_bytes(both, &none, sizeof none)->of[i];

    backend->ops->sum_squares(backend, x->n - shift, (float *)x->of[i] + shift, clip);
    backend->ops->sum_squares(backend, MIN(x->n, 5), x->of[i], clip);
    backend->ops->download(backend, sizeof clip->squares, clip->squares, sums);
    backend->ops->clip(backend, EXEC_PARTIAL_SUMS, 0.5, clip);
    backend->ops->download(backend, sizeof joined, clip, &joined);
    both_synchronize(both);
    sums[EXEC_PARTIAL_SUMS] = joined.squares[0];
    return (double)joined.factor;
}

/* An addition in double is wrong by at most 2^-53 of the sum, and there is one for each element. */
static void
check_norm_of(Both *both, const Gradient *gradient, int64_t n, int64_t shift)
{
    double sums[2][EXEC_PARTIAL_SUMS + 1], expected = 0;

    if (!both_shape(both, gradient->what, n, shift))
        return;
    g_autofree float *x = numbers("x", n, 1);
    for (int64_t j = 0; gradient->first != 0 && j < n; j++)
        x[j] = j == 0 ? gradient->first : gradient->others;
    for (int64_t j = 0; j < n; j++)
        expected += ((j >= shift) + (j < 5)) * (double)x[j] * (double)x[j];
    Pair *pair = pair_of_bytes(both, x, (size_t)n * sizeof *x);
    pair->n = n;
    for (int i = 0; i < 2 && !both->failed; i++) {
        const double factor = clip_on(both, i, pair, shift, sums[i]);
        const double sum = sums[i][EXEC_PARTIAL_SUMS], right = fmin(1, 0.5 / sqrt(expected));
        if (!(fabs(sum - expected) <= 0x1p-52 * (double)n * expected))
            both_fail(both, "backend %d: sum %.17g instead of %.17g", i, sum, expected);
        if (!(fabs(factor - right) <= 0x1p-23 * right))
            both_fail(both, "backend %d: factor %.9g instead of %.9g", i, factor, right);
    }
    clip_on(both, 1, pair, shift, sums[0]);
    for (int j = 0; !both->failed && j <= EXEC_PARTIAL_SUMS; j++)
        if (sums[0][j] != sums[1][j])
            both_fail(both, "sum %d: %.17g, the second time %.17g", j, sums[1][j], sums[0][j]);
}

/*
 * Lengths of one element, of less than a block's, of several blocks, of more than all blocks take
 * at once; with and without addresses of 16 bytes.  Then what fp32 cannot add: squares of 1e25 and
 * 1e-30 are beyond its largest and its smallest number, and beside 4096^2 it loses all the ones.
 */
static void
check_norms(Both *both)
{
    static const Gradient gradients[] = {
        {"norm", 0, 0},
        {"norm of a large number", 1e25f, 0},
        {"norm of small numbers", 1e-30f, 1e-30f},
        {"norm of small numbers beside a large one", 4096, 1},
    };
    static const int64_t lengths[] = {1, 3, 2050, 70001, 1100003};

    for (size_t l = 0; l < G_N_ELEMENTS(lengths); l++)
        for (int64_t shift = 0; shift <= 1 && shift < lengths[l]; shift++)
            check_norm_of(both, &gradients[0], lengths[l], shift);
    for (size_t i = 1; i < G_N_ELEMENTS(gradients); i++)
        check_norm_of(both, &gradients[i], 40001, 0);
}

/* The sum says that an element is infinite or no number, wherever it is. */
static void
check_not_finite(Both *both)
{
    const int64_t n = 3001, at[] = {0, 1500, n - 1};

    for (size_t i = 0; i < 2 * G_N_ELEMENTS(at); i++) {
        double sums[EXEC_PARTIAL_SUMS + 1];
        if (!both_shape(both, "norm that is not finite", n, at[i / 2]))
            continue;
        g_autofree float *x = numbers("x", n, 1);
        x[at[i / 2]] = i % 2 == 0 ? INFINITY : NAN;
        Pair *pair = pair_of_bytes(both, x, (size_t)n * sizeof *x);
        pair->n = n;
        clip_on(both, 1, pair, 0, sums);
        if (!both->failed && isfinite(sums[EXEC_PARTIAL_SUMS]))
            both_fail(both, "sum %g", sums[EXEC_PARTIAL_SUMS]);
    }
}

static void
check_clipping(Both *both)
{
    check_norms(both);
    check_not_finite(both);
}

static void
test_norm_equals_reference(void)
{
    in_both_formats(check_clipping);
}

static void
test_elements_equal_reference(void)
{
    in_both_formats(check_elements);
}

/* --- attention --- */

/* What is not plain: 0 or NULL where it is. */
typedef struct {
    const char *name;
    int64_t v_dim, window, chunk, alibi_heads;
    float cap;
    bool sinks;
} AttentionKind;

static void
check_attention_kind(Both *both, const int64_t shape[6], const AttentionKind *kind)
{
    const int64_t sequences = shape[0], heads = shape[1], kv_heads = shape[2], dim = shape[3];
    const int64_t tokens = shape[4], context = shape[5];
    const int64_t v_dim = kind->v_dim > 0 ? kind->v_dim : dim, k_width = kv_heads * dim;
    const int64_t kv_width = k_width + kv_heads * v_dim;
    const int64_t n_q = tokens * sequences * heads * dim, n_out = n_q / dim * v_dim;
    const int64_t n_kv = (context + tokens) * sequences * kv_width;

    if (!both_shape(both, kind->name, sequences, heads, kv_heads, dim, tokens, context))
        return;
    const bool sums = context > 0; /* as slices behind others do; a whole sequence overwrites */
    const Pair *q = pair_stored(both, "q", n_q, 1), *kv = pair_stored(both, "kv", n_kv, 1);
    const Pair *out = pair_stored(both, "out", n_out, 1);
    const Pair *dout = pair_stored(both, "dout", n_out, 1);
    const Pair *dq = pair_stored(both, "dq", n_q, 1),
               *dkv = sums ? pair_fp32(both, "dkv", n_kv, 1) : pair_stored(both, "dkv", n_kv, 1);
    const Pair *lse = pair_fp32(both, "lse", tokens * sequences * heads, 1);
    const Pair *sink = pair_stored(both, "sink", heads, 1),
               *dsink = pair_fp32(both, "ds", heads, 1);

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
                                 .v = exec_at(backend, kv->of[i], k_width),
                                 .kv_stride = kv_width,
                                 .out = out->of[i],
                                 .lse = lse->of[i],
                                 .v_dim = kind->v_dim,
                                 .window = kind->window,
                                 .chunk = kind->chunk,
                                 .cap = kind->cap,
                                 .alibi_heads = kind->alibi_heads,
                                 .first_head = kind->alibi_heads > 0 ? 1 : 0,
                                 .sink = kind->sinks ? sink->of[i] : NULL};
        const ExecAttentionGradients g = {.dout = dout->of[i],
                                          .dq = dq->of[i],
                                          .dk = dkv->of[i],
                                          .dv = sums ? (float *)dkv->of[i] + k_width
                                                     : exec_at(backend, dkv->of[i], k_width),
                                          .sums = sums,
                                          .dsink = kind->sinks ? dsink->of[i] : NULL};
        backend->ops->attention_forward(backend, &a);
        backend->ops->attention_backward(backend, &a, &g);
    }
    check_pair(both, out, true, 1e-6);
    check_pair(both, lse, false, 1e-6);
    check_pair(both, dq, true, 1e-5);
    /* Of bf16, the sum is rounded before it is added, too. */
    check_pair(both, dkv, !sums, sums && both->storage == DTYPE_BF16 ? 0x1p-7 : 1e-5);
    if (kind->sinks) /* terms of random sign, of results that were rounded */
        check_pair(both, dsink, false, both->storage == DTYPE_BF16 ? 0x1p-7 : 1e-5);
}

static void
check_attention(Both *both, const int64_t shape[6])
{
    check_attention_kind(both, shape, &(AttentionKind){.name = "attention"});
}

/* Windows and chunks that are shorter than a warp's rows, and longer; what is seen of the context, and none of it. */
static void
check_attention_kinds(Both *both)
{
    static const AttentionKind kinds[] = {
        {.name = "window", .window = 5},
        {.name = "long window", .window = 40},
        {.name = "chunks", .chunk = 7},
        {.name = "sinks in a window", .window = 33, .sinks = true},
        {.name = "sinks", .sinks = true},
        {.name = "caps", .cap = 0.8f},
        {.name = "slopes", .alibi_heads = 6},
        {.name = "wide values", .v_dim = 72},
        {.name = "narrow values of latents", .v_dim = 10, .window = 50, .cap = 2.0f},
    };
    static const int64_t shapes[][6] = {/* sequences, heads, kv heads, head size, tokens, context */
                                        {2, 4, 2, 20, 70, 0},
                                        {1, 4, 1, 32, 35, 44},
                                        {1, 4, 4, 24, 1, 9}};

    for (size_t k = 0; k < G_N_ELEMENTS(kinds); k++)
        for (size_t i = 0; i < G_N_ELEMENTS(shapes); i++)
            check_attention_kind(both, shapes[i], &kinds[k]);
}

static void
test_attention_of_every_kind_equals_reference(void)
{
    in_both_formats(check_attention_kinds);
}

/* --- heads and latents --- */

/* Groups beside each other in rows that are @extra elements longer; the other half of each is on another rank, and
 * zero. */
static void
check_group_norm(Both *both, int64_t rows, int64_t groups, int64_t cols, bool centred, bool own,
                 int64_t extra)
{
    const int64_t stride = groups * cols + extra, n = rows * groups,
                  n_gains = own ? groups * cols : cols;

    if (!both_shape(both, centred ? "groups' LayerNorm" : "groups' RMSNorm", rows, groups, cols,
                    own, extra))
        return;
    const Pair *x = pair_stored(both, "x", rows * stride, 3);
    const Pair *y = pair_stored(both, "y", rows * stride, 1);
    const Pair *d = pair_stored(both, "d", rows * stride, 1);
    const Pair *gain = pair_stored(both, "g", n_gains, 1);
    const Pair *shift = pair_stored(both, "s", n_gains, 1);
    const Pair *sums = pair_fp32(both, "sums", 2 * n, 1);
    const Pair *d_sums = pair_fp32(both, "d_sums", 2 * n, 1);
    const Pair *dgain = pair_fp32(both, "dg", n_gains, 1);
    const Pair *dshift = pair_fp32(both, "dsh", n_gains, 1);

    EACH(both, i, backend)
    {
        const ExecGroupNorm norm = {.rows = rows,
                                    .groups = groups,
                                    .cols = cols,
                                    .n = 2 * cols,
                                    .centred = centred,
                                    .epsilon = 1e-3f,
                                    .x = x->of[i],
                                    .x_stride = stride,
                                    .gain = gain->of[i],
                                    .shift = centred ? shift->of[i] : NULL,
                                    .gain_step = own ? cols : 0,
                                    .sums = sums->of[i]};
        backend->ops->group_norm_sums(backend, &norm);
        backend->ops->group_norm_forward(backend, &norm, y->of[i], stride);
        backend->ops->group_norm_backward_sums(backend, &norm, d->of[i], stride, d_sums->of[i]);
        backend->ops->group_norm_backward(backend, &norm, d_sums->of[i], d->of[i], stride,
                                          dgain->of[i], centred ? dshift->of[i] : NULL);
    }
    check_pair(both, sums, false, 1e-6);
    check_pair(both, y, true, 1e-5);
    check_pair(both, d_sums, false, 1e-5);
    check_pair(both, d, true, 1e-5);
    check_pair(both, dgain, false, 1e-5);
    check_pair(both, dshift, false, 1e-5);
}

/* A block of every row to many, many to one, and some to some. */
static void
check_blocks(Both *both, const ExecBlocks *b)
{
    if (!both_shape(both, "blocks", b->rows, b->blocks, b->cols, b->from_step, b->to_step))
        return;
    const Pair *x = pair_stored(both, "x", b->rows * b->from_stride, 1);
    const Pair *y = pair_stored(both, "y", b->rows * b->to_stride, 1);
    const Pair *sum = pair_stored(both, "sum", b->rows * b->to_stride, 1);

    EACH(both, i, backend)
    {
        backend->ops->copy_blocks(backend, b, x->of[i], y->of[i]);
        backend->ops->sum_blocks(backend, b, x->of[i], sum->of[i]);
    }
    check_pair(both, y, true, 0);
    check_pair(both, sum, true, 1e-6);
}

static void
check_gate(Both *both, int64_t rows, int64_t cols, bool per_row)
{
    const int64_t n = rows * cols;

    if (!both_shape(both, "gate", rows, cols, per_row))
        return;
    const Pair *x = pair_stored(both, "x", n, 1), *y = pair_stored(both, "y", n, 1);
    const Pair *d = pair_stored(both, "d", n, 1);
    const Pair *z = pair_stored(both, "z", per_row ? rows : n, 2);
    const Pair *dz = pair_stored(both, "dz", per_row ? rows : n, 1);

    EACH(both, i, backend)
    {
        const ExecGate gate = {rows, cols, per_row, x->of[i], z->of[i]};
        backend->ops->gate_forward(backend, &gate, y->of[i]);
        backend->ops->gate_backward(backend, &gate, d->of[i], dz->of[i]);
    }
    check_pair(both, y, true, 1e-6);
    check_pair(both, d, true, 1e-6);
    check_pair(both, dz, true, 1e-5);
}

static void
check_heads(Both *both)
{
    check_group_norm(both, 5, 3, 20, false, false, 0);
    check_group_norm(both, 40, 2, 32, true, false, 6);
    check_group_norm(both, 40, 5, 18, false, true, 3);
    check_group_norm(both, 3, 1, 200, true, true, 0);
    check_blocks(both, &(ExecBlocks){7, 3, 10, 12, 0, 40, 13});
    check_blocks(both, &(ExecBlocks){7, 3, 10, 40, 13, 31, 10});
    check_blocks(both, &(ExecBlocks){300, 1, 33, 40, 0, 33, 0});
    check_gate(both, 9, 70, false);
    check_gate(both, 19, 45, true);
}

static void
test_heads_equal_reference(void)
{
    in_both_formats(check_heads);
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

static void
test_attention_equals_reference(void)
{
    g_setenv(ATTENTION_VARIABLE, "mma", TRUE);
    in_both_formats(check_attentions);
    g_unsetenv(ATTENTION_VARIABLE);
}

/* Capability 8.6 has 99 KiB for a block: too few for tiles of head size 128. */
static void
test_attention_with_little_shared_memory(void)
{
    static const int64_t wide[6] = {1, 1, 1, 128, 20, 0}, narrow[6] = {1, 1, 1, 96, 20, 0};
    Both both = {0};

    if (!emulated_gpu_or_skip())
        return;
    g_setenv("FAKE_CUDA", "shared=101376", TRUE);
    g_setenv(ATTENTION_VARIABLE, "mma", TRUE);
    both_open(&both, DTYPE_BF16);
    check_attention(&both, wide);
    check_attention(&both, narrow);
    both_close(&both);
    g_unsetenv(ATTENTION_VARIABLE);
    g_unsetenv("FAKE_CUDA");
}

/* Attention by wgmma against that by @other: mma on the same device, or, NULL, the reference. */
static void
check_wgmma(const char *other, const int64_t (*shapes)[6], size_t n)
{
    Both both = {.attention = {other, "wgmma"}};

    both_open(&both, DTYPE_BF16);
    for (size_t i = 0; i < n; i++)
        check_attention(&both, shapes[i]);
    both_close(&both);
}

/* Returns whether attention by wgmma, compute capability 9.0's own instructions, is there to be
 * checked, else skips the test. */
static bool
has_wgmma_or_skip(void)
{
    if (!emulated_gpu_or_skip())
        return false;
    g_autoptr(GError) error = NULL;
    g_setenv(ATTENTION_VARIABLE, "wgmma", TRUE);
    ExecBackend *backend = exec_backend_open("cuda", 0, DTYPE_BF16, &error);
    g_unsetenv(ATTENTION_VARIABLE);
    if (backend == NULL && g_getenv("DEGAS_TEST_GPU") != NULL &&
        strstr(error->message, "wgmma is of 9.0 only") != NULL) {
        g_test_skip(error->message);
        return false;
    }
    g_assert_no_error(error);
    g_autofree char *name = backend->ops->describe(backend);
    g_assert_nonnull(strstr(name, "attention by wgmma"));
    exec_backend_close(backend);
    return true;
}

/* Tiles are of 128 queries and keys; two are on the way or in use. */
static void
test_attention_by_wgmma_equals_reference(void)
{
    static const int64_t shapes[][6] = {
        /* sequences, heads, kv heads, head size, tokens, context */
        {1, 1, 1, 64, 1, 0},     {1, 1, 1, 128, 128, 0}, /* one tile */
        {1, 2, 1, 64, 130, 0},   {2, 1, 1, 64, 257, 300},
        {2, 4, 2, 128, 200, 77}, {1, 1, 1, 128, 100, 700}, /* every buffer three times */
    };

    if (has_wgmma_or_skip())
        check_wgmma(NULL, shapes, G_N_ELEMENTS(shapes));
}

/* Shapes of real models, too large for the reference; small ones on the emulated GPU. */
static void
test_attention_by_wgmma_equals_mma(void)
{
    static const int64_t small[][6] = {{1, 2, 1, 64, 130, 40}, {1, 1, 1, 128, 129, 0}};
    static const int64_t real[][6] = {
        {4, 16, 16, 128, 2048, 0}, {16, 12, 12, 64, 1024, 0}, {2, 32, 8, 128, 1000, 3096}};

    if (!has_wgmma_or_skip())
        return;
    if (g_getenv("DEGAS_TEST_GPU") != NULL)
        check_wgmma("mma", real, G_N_ELEMENTS(real));
    else
        check_wgmma("mma", small, G_N_ELEMENTS(small));
}

/* --- embedding and loss --- */

static void
check_embedding(Both *both)
{
    enum {
        ROWS = 70 /* more than two warps look at at once */
    };
    const int64_t rows = ROWS, sequences = 2, cols = 40, first = 2, n_tokens = 9, n_places = 40;
    int32_t tokens[ROWS], positions[ROWS / 2];

    for (int32_t i = 0; i < ROWS; i++)
        tokens[i] = i * 5 % 13; /* some of them elsewhere */
    for (int32_t i = 0; i < ROWS / 2; i++)
        positions[i] = (i * 3 + 5) % (ROWS / 2);
    if (!both_shape(both, "embedding", rows, cols))
        return;
    const Pair *table = pair_stored(both, "t", n_tokens * cols, 1);
    const Pair *places = pair_stored(both, "p", n_places * cols, 1);
    const Pair *x = pair_stored(both, "x", rows * cols, 1);
    const Pair *dx = pair_stored(both, "dx", rows * cols, 1);
    const Pair *dtable = pair_fp32(both, "dt", n_tokens * cols, 1);
    const Pair *dplaces = pair_fp32(both, "dp", n_places * cols, 1);
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
                                 .position = position->of[i],
                                 .scale = 1.75f};
        backend->ops->embedding_forward(backend, &e, table->of[i], places->of[i], x->of[i]);
        backend->ops->embedding_backward(backend, &e, dx->of[i], dtable->of[i], dplaces->of[i]);
    }
    check_pair(both, x, true, 1e-6);
    check_pair(both, dtable, false, 1e-6);
    check_pair(both, dplaces, false, 1e-6);
}

/* The same numbers in storage on both, NaN in the columns from @width on. */
static Pair *
pair_padded(Both *both, const char *name, int64_t rows, int64_t width, int64_t stride)
{
    g_autofree float *x = numbers(name, rows * stride, 3);

    for (int64_t i = 0; i < rows * stride; i++)
        x[i] = i % stride < width ? x[i] : NAN;
    const Pair *fp32 = pair_of_bytes(both, x, (size_t)(rows * stride) * sizeof *x);
    Pair *pair = pair_stored(both, name, rows * stride, 1);
    for (int i = 0; i < 2; i++)
        both->of[i]->ops->to_storage(both->of[i], rows * stride, fp32->of[i], pair->of[i]);
    return pair;
}

/* @n_parts 1: whole rows; else the vocabulary is split and the parts' statistics are joined.
 * Behind a part's columns is padding up to @stride. */
static void
check_cross_entropy(Both *both, int64_t rows, int64_t vocab, int64_t n_parts, int64_t stride)
{
    const int64_t width = vocab / n_parts;
    g_autofree int32_t *targets = g_new(int32_t, (size_t)rows);

    if (!both_shape(both, "cross-entropy", rows, vocab, n_parts, stride))
        return;
    for (int64_t i = 0; i < rows; i++)
        targets[i] = (int32_t)(i * 7 % vocab);
    const Pair *target = pair_of_bytes(both, targets, (size_t)rows * sizeof *targets);
    const Pair *stats = pair_fp32(both, "stats", n_parts * 3 * rows, 1);
    g_autofree const Pair **logits = g_new0(const Pair *, (size_t)n_parts);
    double losses[2] = {0};
    for (int64_t part = 0; part < n_parts; part++)
        logits[part] = pair_padded(both, part == 0 ? "l0" : "l1", rows, width, stride);
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
                    .stride = stride,
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
        both_synchronize(both);
        backend->ops->release(backend, loss);
    }
    if (!both->failed && !(fabs(losses[1] / losses[0] - 1.0) <= 1e-6))
        both_fail(both, "loss: %.9g instead of %.9g", losses[1], losses[0]);
    for (int64_t part = 0; part < n_parts; part++)
        check_pair(both, logits[part], true, 1e-5);
}

static void
check_ends(Both *both)
{
    check_embedding(both);
    check_cross_entropy(both, 5, 7, 1, 7);
    check_cross_entropy(both, 3, 700, 1, 700);
    check_cross_entropy(both, 4, 60, 2, 30);
    check_cross_entropy(both, 3, 257, 1, 384);
    check_cross_entropy(both, 4, 58, 2, 128);
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

    if (!both_shape(both, "experts", rows, n_experts, top_k, cols))
        return;
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
    check_pair(both, expert, false, 0); /* the same choice */
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
    g_test_add_func("/executor/cuda/timed-products-equal-reference",
                    test_timed_products_equal_reference);
    g_test_add_func("/executor/cuda/fastest-proposal-is-kept", test_fastest_proposal_is_kept);
    g_test_add_func("/executor/cuda/rows-equal-reference", test_rows_equal_reference);
    g_test_add_func("/executor/cuda/norm-equals-reference", test_norm_equals_reference);
    g_test_add_func("/executor/cuda/elements-equal-reference", test_elements_equal_reference);
    g_test_add_func("/executor/cuda/attention-equals-reference", test_attention_equals_reference);
    g_test_add_func("/executor/cuda/attention-of-every-kind-equals-reference",
                    test_attention_of_every_kind_equals_reference);
    g_test_add_func("/executor/cuda/heads-equal-reference", test_heads_equal_reference);
    g_test_add_func("/executor/cuda/attention-with-little-shared-memory",
                    test_attention_with_little_shared_memory);
    g_test_add_func("/executor/cuda/too-wide-norm-is-refused", test_too_wide_norm_is_refused);
    g_test_add_func("/executor/cuda/embedding-and-loss-equal-reference",
                    test_embedding_and_loss_equal_reference);
    g_test_add_func("/executor/cuda/experts-equal-reference", test_experts_equal_reference);
    /* Last: what never ran on a GPU may never end there, and takes its time from those behind. */
    g_test_add_func("/executor/cuda/attention-by-wgmma-equals-reference",
                    test_attention_by_wgmma_equals_reference);
    g_test_add_func("/executor/cuda/attention-by-wgmma-equals-mma",
                    test_attention_by_wgmma_equals_mma);
    return g_test_run();
}
