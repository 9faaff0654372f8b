/* Tests of executor/model/layer.h, stage.h and model.h: derivatives of the whole model, I and W
 * against B, initial values. */
#include "executor/model/ends.h"
#include "executor/model/stage.h"
#include "executor/model/state.h"

#include <math.h>
#include <string.h>

#include "executor/model/random.h"
#include "executor/run/verify.h"
#include "tests/executor/attention_kinds.h"
#include "tests/executor/kinds.h"
#include "tests/executor/plain.h"

/* GPT, or Llama with heads of an even size; heads times head size need not be the hidden size. */
static ModelArch
small_model(ModelFamily family, bool tied, int64_t n_kv_heads)
{
    const bool gpt = family == MODEL_FAMILY_GPT;

    return (ModelArch){
        .name = (char *)"small",
        .family = family,
        .n_layers = 2,
        .hidden = 16,
        .n_heads = 4,
        .n_kv_heads = n_kv_heads,
        .head_dim = gpt ? 5 : 6,
        .ffn_hidden = 40,
        .vocab = 19,
        .max_seq_len = 14,
        .norm_epsilon = 1e-4,
        .rope_base = 500,
        .tied_embeddings = tied,
        .qkv_bias = gpt,
    };
}

static bool
init_reference(ExecReference *reference, const ModelArch *arch, int64_t batch, int64_t seq_len)
{
    const ExecReferenceOptions options = {
        .arch = arch,
        .global_batch = batch,
        .seq_len = seq_len,
        .device = "reference",
        .seed = 1,
    };

    return exec_reference_init(reference, &options, NULL);
}

/* Four experts of which a row sees @top_k, a shared one, and one dense layer before. */
static ModelArch
small_mixture(int64_t top_k)
{
    ModelArch arch = small_model(MODEL_FAMILY_LLAMA, false, 2);

    arch.experts = (ModelExperts){.n_experts = 4,
                                  .top_k = top_k,
                                  .ffn_hidden = 10,
                                  .n_shared = 1,
                                  .first_dense_layers = 1,
                                  .router_scale = 1};
    return arch;
}

/* With @n MTP modules, whose losses count as much as the model's own. */
static ModelArch
small_modules(int64_t n, bool tied)
{
    ModelArch arch = small_model(MODEL_FAMILY_LLAMA, tied, 2);

    arch.mtp = (ModelMtp){.n = n, .loss_factor = (double)n};
    arch.embedding_scale = 1.5;
    return arch;
}

/* The loss and, when asked, the gradients of one step; weights as they are. */
static double
loss_of(ExecReference *reference, const ExecData *data)
{
    g_autoptr(GError) error = NULL;

    reference->backend->ops->zero(reference->backend,
                                  (size_t)reference->model->layout.n * sizeof(float),
                                  reference->model->gradients.data);
    g_assert_true(exec_reference_step(reference, data, 0, &error));
    g_assert_no_error(error);
    return reference->loss;
}

/*
 * Central differences of every tensor along a random direction.  The loss is a mean of fp32 losses
 * of about 5, with a rounding of some 1e-7; @step = 2e-3 moves it by 4e-3 times the gradient's norm,
 * and the third derivative adds some 1e-3 relative; where ReLU bends, a shorter
 * step cuts fewer corners.
 */
static void
check_model_derivatives(ModelArch arch, double step)
{
    const ModelActivation activation = model_activation(&arch);
    const bool bends =
        activation == MODEL_ACTIVATION_RELU || activation == MODEL_ACTIVATION_RELUGLU;
    const double h = bends ? 2e-4 : step, tolerance = bends ? 0.02 : 0.01;
    g_auto(ExecReference) reference = {0};
    g_autoptr(GError) error = NULL;
    g_autoptr(ExecData) data =
        exec_data_open(NULL, arch.vocab, 13, model_n_losses(&arch), 1, &error);

    g_assert_true(init_reference(&reference, &arch, 3, 13));
    ExecModel *model = reference.model;
    spread_weights(model);
    loss_of(&reference, data);
    g_autofree float *gradients =
        g_memdup2(exec_model_gradients(model), (size_t)model->layout.n * sizeof(float));
    for (guint i = 0; i < exec_model_n_parameters(model); i++) {
        const ExecParameter *p = exec_model_parameter(model, i);
        const uint64_t key = exec_random_key(11, p->name);
        float *w = (float *)model->weights.data + p->offset;
        g_autofree float *old = g_memdup2(w, (size_t)p->n * sizeof *w);
        double expected = 0, norm = 0, f[2];
        for (int64_t j = 0; j < p->n; j++) {
            const double g = (double)gradients[p->offset + j];
            expected += g * (double)exec_random_normal(key, (uint64_t)j);
            norm += g * g;
        }
        for (int side = 0; side < 2; side++) {
            for (int64_t j = 0; j < p->n; j++)
                w[j] = old[j] + (float)(side == 0 ? -h : h) * exec_random_normal(key, (uint64_t)j);
            f[side] = loss_of(&reference, data);
        }
        memcpy(w, old, (size_t)p->n * sizeof *w);
        g_test_message("%s: |g| %.2e, along v %.3e, difference %.3e", p->name, sqrt(norm), expected,
                       (f[1] - f[0]) / (2 * h));
        g_assert_cmpfloat(fabs((f[1] - f[0]) / (2 * h) - expected), <=,
                          tolerance * sqrt(norm) + 5e-7 / h);
        g_assert_cmpfloat(sqrt(norm), >, 5e-3);
    }
}

static void
test_whole_model_derivatives(void)
{
    check_model_derivatives(small_model(MODEL_FAMILY_GPT, true, 4), 2e-3);
    check_model_derivatives(small_model(MODEL_FAMILY_GPT, false, 4), 2e-3);
    check_model_derivatives(small_model(MODEL_FAMILY_GPT, true, 2), 2e-3);
    check_model_derivatives(small_model(MODEL_FAMILY_LLAMA, false, 4), 2e-3);
    check_model_derivatives(small_model(MODEL_FAMILY_LLAMA, true, 1), 2e-3);
    check_model_derivatives(small_mixture(4), 2e-3); /* of fewer the choice would jump */
    for (int64_t n = 1; n <= 2; n++)
        check_model_derivatives(small_modules(n, n == 1), 1e-3);
    for (size_t i = 0; i < G_N_ELEMENTS(kinds_varieties); i++) {
        ModelArch arch = small_model(i % 2 == 0 ? MODEL_FAMILY_LLAMA : MODEL_FAMILY_GPT, false, 4);
        kinds_varieties[i].vary(&arch);
        arch.experts.top_k = arch.experts.n_experts; /* of fewer the choice would jump */
        g_test_message("%s", kinds_varieties[i].name);
        check_model_derivatives(arch, 5e-4);
    }
}

/* The small model with attention of kind @i, in a family where it shows. */
static ModelArch
small_attention(size_t i)
{
    ModelArch arch = small_model(i % 4 == 1 ? MODEL_FAMILY_GPT : MODEL_FAMILY_LLAMA, true, 2);

    arch.head_dim = 6;
    attention_kinds[i].set(&arch);
    return arch;
}

static void
test_attention_derivatives(void)
{
    for (size_t i = 0; i < G_N_ELEMENTS(attention_kinds) - ATTENTION_SPARSE_N; i++) {
        g_test_message("%s", attention_kinds[i].name);
        check_model_derivatives(small_attention(i), 5e-4);
    }
}

/* The factors of two chosen experts of five: backward against central differences, in the scores
 * also of those that were not chosen. */
static void
test_derivatives_of_factors(void)
{
    enum {
        ROWS = 3,
        EXPERTS = 5,
        CHOSEN = 2
    };
    const double h = 1e-3;
    g_autoptr(ExecBackend) backend = exec_backend_open("reference", 0, DTYPE_FP32, NULL);

    for (int kind = EXEC_ROUTER_SOFTMAX; kind <= EXEC_ROUTER_SIGMOID; kind++) {
        float scores[ROWS * EXPERTS], weight[ROWS * CHOSEN], g[ROWS * CHOSEN];
        float d_scores[ROWS * EXPERTS];
        int32_t expert[ROWS * CHOSEN];
        const ExecRoute route = {ROWS, EXPERTS, CHOSEN, (ExecRouterScores)kind,
                                 2.5f, scores,  expert, weight};
        for (int i = 0; i < ROWS * EXPERTS; i++)
            scores[i] = exec_random_normal(3, (uint64_t)i);
        for (int i = 0; i < ROWS * CHOSEN; i++)
            g[i] = exec_random_normal(4, (uint64_t)i);
        backend->ops->route(backend, ROWS, EXPERTS, CHOSEN, scores, expert, weight);
        backend->ops->route_factors_backward(backend, &route, g, d_scores);
        for (int i = 0; i < ROWS * EXPERTS; i++) {
            double f[2] = {0};
            const float old = scores[i];
            for (int side = 0; side < 2; side++) {
                scores[i] = old + (float)(side == 0 ? -h : h);
                backend->ops->route_factors(backend, &route);
                for (int j = 0; j < ROWS * CHOSEN; j++)
                    f[side] += (double)(g[j] * weight[j]);
            }
            scores[i] = old;
            g_assert_cmpfloat(fabs((f[1] - f[0]) / (2 * h) - (double)d_scores[i]), <=, 2e-3);
        }
    }
}

/* --- against the definition --- */

static void
test_loss_equals_definition(void)
{
    enum {
        BATCH = 3,
        TOKENS = 13
    };

    const int n_varieties = G_N_ELEMENTS(kinds_varieties);
    const int n_attentions = G_N_ELEMENTS(attention_kinds);

    const int n_variants = 8 + 2 * (n_varieties + n_attentions);

    for (int variant = 0; variant < n_variants + 4; variant++) {
        ModelArch arch = variant == 6
                             ? small_mixture(2)
                             : small_model(variant < 3 ? MODEL_FAMILY_GPT : MODEL_FAMILY_LLAMA,
                                           variant % 3 != 1, variant % 3 == 2 ? 2 : 4);
        if (variant == 7) {
            arch.n_layers = 4;
            kinds_mix(&arch);
        }
        if (variant > 7 && variant < 8 + 2 * n_varieties)
            kinds_varieties[(variant - 8) / 2].vary(&arch);
        if (variant >= n_variants) {
            arch = small_modules(1 + variant % 2, variant % 4 < 2);
            if (variant >= n_variants + 2)
                arch.mtp.loss_factor = 0; /* the usual one */
        } else if (variant >= 8 + 2 * n_varieties) {
            arch = small_model(variant % 2 == 0 ? MODEL_FAMILY_GPT : MODEL_FAMILY_LLAMA, false, 2);
            arch.head_dim = 6;
            attention_kinds[variant / 2 - 4 - n_varieties].set(&arch);
        }
        g_auto(ExecReference) reference = {0};
        g_autoptr(GError) error = NULL;
        g_autoptr(ExecData) data =
            exec_data_open(NULL, arch.vocab, TOKENS, model_n_losses(&arch), 1, &error);
        int32_t tokens[TOKENS + 1 + MODEL_MAX_MTP];
        double expected = 0;
        g_assert_true(init_reference(&reference, &arch, BATCH, TOKENS));
        spread_weights(reference.model);
        for (int64_t i = 0; i < BATCH; i++) {
            g_assert_true(exec_data_sequence(data, 0, i, tokens, &error));
            expected += plain_loss(&arch, reference.model, tokens, TOKENS) / BATCH;
        }
        g_test_message("variant %d: %.7f against %.7f", variant, loss_of(&reference, data),
                       expected);
        /* fp32 activations between double sums: some 1e-7 each. */
        g_assert_cmpfloat(fabs(loss_of(&reference, data) - expected), <=, 3e-6 * expected);
    }
}

/* --- one stage: slices, I and W --- */

enum {
    SEQ = 13,
    SEQUENCES = 3
};

static int64_t
held_by(const ExecReference *reference)
{
    return exec_pool_used_bytes(reference->pool, TRACE_MEMORY_ACTIVATIONS) +
           exec_pool_used_bytes(reference->pool, TRACE_MEMORY_KV);
}

/* Forward and backward of a micro-batch on a stage with everything, cut as asked; gradients are
 * left in the model.  @held_bytes  (out, nullable) [2] after F and, split, after I; K and V too. */
static double
run_stage(ExecReference *reference, const int64_t *slices, int32_t n_slices, bool split,
          int64_t *held_bytes)
{
    ExecModel *model = reference->model;
    ExecBackend *backend = reference->backend;
    const int64_t sequences = SEQUENCES;
    g_autoptr(GError) error = NULL;
    ExecStageScratch scratch = {0};
    int32_t tokens[2 + MODEL_MAX_MTP][SEQ * SEQUENCES];
    double total = 0;

    for (int32_t i = 0; i < SEQ * SEQUENCES; i++) {
        tokens[0][i] = i * 7 % 19;
        for (int32_t k = 1; k < 2 + MODEL_MAX_MTP; k++)
            tokens[k][i] = k * i * i % 19;
    }
    backend->ops->zero(backend, (size_t)model->layout.n * sizeof(float), model->gradients.data);
    g_assert_true(exec_stage_scratch_init(&scratch,
                                          &(ExecScratchOptions){
                                              .model = model,
                                              .comm = &reference->comm,
                                              .pool = reference->pool,
                                              .sequences = sequences,
                                              .lengths = slices,
                                              .n_slices = n_slices,
                                          },
                                          &error));
    g_autoptr(ExecStageRun) run = exec_stage_run_new(&(ExecStageOptions){
        .model = model,
        .stage = &g_array_index(model->stages, ExecStage, 0),
        .comm = &reference->comm,
        .pool = reference->pool,
        .scratch = &scratch,
        .n_micro_batches = 1,
        .n_slices = n_slices,
        .sequences = &sequences,
        .slices = slices,
        .loss_factor = 1.0f / (SEQ * SEQUENCES),
        .token_step = SEQ * SEQUENCES,
    });
    int64_t at = 0;
    for (int32_t s = 0; s < n_slices; s++) {
        void *x;
        double losses[1 + MODEL_MAX_MTP];
        g_assert_true(exec_stage_begin_forward(run, 0, s, &x, &error));
        exec_stage_forward(run, 0, s, tokens[0] + at * sequences, losses);
        for (int64_t k = 0; k < model_n_losses(&model->widths.arch); k++)
            total += model_loss_weight(&model->widths.arch, k) * losses[k];
        at += slices[s];
    }
    if (held_bytes != NULL)
        held_bytes[0] = held_by(reference);
    for (int32_t s = n_slices - 1; s >= 0; s--) {
        const void *dx;
        at -= slices[s];
        g_assert_true(
            exec_stage_backward(run, 0, s, tokens[0] + at * sequences, split, &dx, &error));
    }
    if (held_bytes != NULL)
        held_bytes[1] = held_by(reference);
    for (int32_t s = 0; split && s < n_slices; s++) {
        exec_stage_backward_weight(run, 0, s);
        at += slices[s];
    }
    exec_stage_scratch_clear(&scratch, reference->pool);
    return total;
}

/* The reference backend rounds each sum once, so only the grouping of sums over slices differs. */
static void
check_slices(ModelArch arch)
{
    static const struct {
        int64_t slices[4];
        int32_t n;
        bool split;
    } cases[] = {
        {{13}, 1, true},        {{5, 8}, 2, false},      {{5, 8}, 2, true},
        {{1, 11, 1}, 3, false}, {{6, 1, 2, 4}, 4, true},
    };
    const int64_t whole = SEQ;
    g_auto(ExecReference) reference = {0};
    g_autoptr(GError) error = NULL;

    g_assert_true(init_reference(&reference, &arch, 1, SEQ));
    ExecModel *model = reference.model;
    spread_weights(model);
    const double expected_loss = run_stage(&reference, &whole, 1, false, NULL);
    g_autofree float *expected =
        g_memdup2(exec_model_gradients(model), (size_t)model->layout.n * sizeof(float));
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const double loss =
            run_stage(&reference, cases[i].slices, cases[i].n, cases[i].split, NULL);
        g_assert_cmpfloat(fabs(loss - expected_loss), <=, 1e-5 * expected_loss);
        for (guint j = 0; j < exec_model_n_parameters(model); j++) {
            const ExecParameter *p = exec_model_parameter(model, j);
            const double e = exec_relative_error(exec_model_gradients(model) + p->offset,
                                                 expected + p->offset, p->n, 0);
            g_assert_cmpfloat(e, <=, 2e-6);
        }
    }
    /* Everything that ops took was given back. */
    g_assert_cmpint(exec_pool_used_bytes(reference.pool, TRACE_MEMORY_ACTIVATIONS), ==, 0);
    g_assert_cmpint(exec_pool_used_bytes(reference.pool, TRACE_MEMORY_KV), ==, 0);
    g_assert_cmpint(exec_pool_used_bytes(reference.pool, TRACE_MEMORY_WORKSPACE), ==, 0);
}

static void
test_slices_and_split_backward_change_nothing(void)
{
    check_slices(small_model(MODEL_FAMILY_GPT, true, 2));
    check_slices(small_model(MODEL_FAMILY_LLAMA, true, 2));
    check_slices(small_mixture(2));
    check_slices(small_modules(2, true));
    for (size_t i = 0; i < G_N_ELEMENTS(attention_kinds); i++) {
        g_test_message("%s", attention_kinds[i].name);
        check_slices(small_attention(i));
    }
}

/*
 * In bf16 slices round what a whole sequence rounds, element by element, but for the order of sums in fp32: were the
 * gradients of K and V added up in bf16, the first token's would be rounded 13 times.
 */
static void
test_many_slices_are_as_exact_as_one(void)
{
    const int64_t whole = SEQ, single[SEQ] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const ModelArch arch = small_model(MODEL_FAMILY_LLAMA, true, 2);
    g_auto(ExecReference) fp32 = {0}, bf16 = {0};
    g_autoptr(GError) error = NULL;

    g_assert_true(init_reference(&fp32, &arch, 1, SEQ));
    bf16.backend = exec_backend_open("reference", 0, DTYPE_BF16, &error);
    g_assert_no_error(error);
    bf16.pool = exec_pool_new(bf16.backend);
    exec_comm_init_alone(&bf16.comm, bf16.backend);
    bf16.plan = g_steal_pointer(&fp32.plan);
    bf16.plan->dtype = DTYPE_BF16;
    bf16.model = exec_model_new(
        &(ExecModelOptions){.arch = &arch, .plan = bf16.plan, .seed = 1, .init_deviation = 0.4f},
        bf16.backend, bf16.pool, &error);
    g_assert_no_error(error);
    run_stage(&bf16, &whole, 1, false, NULL);
    g_autofree float *expected =
        g_memdup2(exec_model_gradients(bf16.model), (size_t)bf16.model->layout.n * sizeof(float));
    run_stage(&bf16, single, SEQ, false, NULL);
    for (guint j = 0; j < exec_model_n_parameters(bf16.model); j++) {
        const ExecParameter *p = exec_model_parameter(bf16.model, j);
        const double e = exec_relative_error(exec_model_gradients(bf16.model) + p->offset,
                                             expected + p->offset, p->n, 0);
        g_test_message("%s: %.1e", p->name, e);
        g_assert_cmpfloat(e, <=, 1e-4);
    }
}

/* --- padding --- */

/* Checks that the elements of @block, of fp32, that no parameter has are zero.  Returns: how many
 * there are. */
static int64_t
check_zeros(const ExecModel *model, const ExecBlock *block)
{
    int64_t n = 0, at = 0;

    for (guint i = 0; i <= exec_model_n_parameters(model); i++) {
        const bool last = i == exec_model_n_parameters(model);
        const ExecParameter *p = last ? NULL : exec_model_parameter(model, i);
        for (; at < (last ? model->layout.n : p->offset); at++, n++)
            g_assert_cmpfloat((double)((const float *)block->data)[at], ==, 0);
        at += last ? 0 : p->n;
    }
    return n;
}

/* 19 tokens in 128 rows: the same loss and gradients as in 19; weights, gradients and moments of
 * the other rows are zero, also after steps with weight decay. */
static void
test_padding_of_tables_stays_zero(void)
{
    const ExecAdamw adamw = {
        .learning_rate = 0.1f,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .epsilon = 1e-8f,
        .weight_decay = 0.1f,
        .step = 1,
    };
    const int64_t whole = SEQ;

    for (int tied = 0; tied < 2; tied++) {
        const ModelArch arch = small_model(MODEL_FAMILY_GPT, tied != 0, 4);
        const ExecModelOptions options = {.arch = &arch, .seed = 1, .optimizer = true};
        ExecReference both[2] = {0};
        double losses[2];
        for (int i = 0; i < 2; i++) {
            ExecModelOptions o = options;
            g_assert_true(init_reference(&both[i], &arch, 1, SEQ));
            both[i].plan->conventions.pads_vocab = i > 0;
            o.plan = both[i].plan;
            exec_model_free(both[i].model);
            both[i].model = exec_model_new(&o, both[i].backend, both[i].pool, NULL);
            spread_weights(both[i].model);
            for (int step = 0; step < 2; step++) {
                losses[i] = run_stage(&both[i], &whole, 1, step > 0, NULL);
                if (step == 0)
                    g_assert_true(exec_model_adamw(both[i].model, &adamw, NULL));
            }
        }
        g_assert_cmpfloat(fabs(losses[1] - losses[0]), <=, 1e-6 * losses[0]);
        const ExecModel *model = both[1].model;
        for (guint i = 0; i < exec_model_n_parameters(model); i++) {
            const ExecParameter *p = exec_model_parameter(model, i);
            const ExecParameter *same = exec_model_find(both[0].model, p->name);
            g_assert_cmpint(p->n, ==, same->n);
            g_assert_cmpfloat(
                exec_relative_error(exec_model_gradients(model) + p->offset,
                                    exec_model_gradients(both[0].model) + same->offset, p->n, 0),
                <=, 2e-6);
        }
        const ExecBlock *blocks[] = {&model->weights, &model->gradients, &model->moments1,
                                     &model->moments2};
        for (size_t i = 0; i < G_N_ELEMENTS(blocks); i++)
            g_assert_cmpint(check_zeros(model, blocks[i]), >=,
                            (tied ? 1 : 2) * (128 - arch.vocab) * arch.hidden);
        exec_reference_clear(&both[0]);
        exec_reference_clear(&both[1]);
    }
}

/* --- memory --- */

/* Rounded up to a cache line. */
static int64_t
padded(int64_t n_bytes)
{
    return (n_bytes + 63) / 64 * 64;
}

/* Of a layer's products: two norms' outputs, attention's and the MLP's; the gradients of q, K and V, proj, up and down. */
static int64_t
both_sides_bytes(const ModelArch *arch, const ExecWidths *w, int64_t rows)
{
    return 4 * padded(rows * arch->hidden * 4) + 2 * padded(rows * w->q_width * 4) +
           padded(rows * w->kv_width * 4) + padded(rows * w->ffn_hidden * 4) +
           padded(rows * w->up_width * 4);
}

/* A stage that recomputes computes the same bits, and holds in between:
 *   selective  the log-sum-exps less: 4 bytes for every row and head of every layer
 *   full       the layers' inputs, K and V where later slices read them, and what the head keeps
 * Between I and W every way holds the same: of every product its input and its output's gradient,
 * and what the head keeps. */
static void
test_recompute_changes_memory_only(void)
{
    static const struct {
        int64_t slices[2];
        int32_t n;
        bool split;
    } cases[] = {{{13}, 1, false}, {{13}, 1, true}, {{5, 8}, 2, false}, {{5, 8}, 2, true}};
    const ModelArch archs[] = {small_model(MODEL_FAMILY_GPT, true, 2),
                               small_model(MODEL_FAMILY_LLAMA, true, 2), small_mixture(2)};

    for (size_t i = 0; i < G_N_ELEMENTS(archs) * G_N_ELEMENTS(cases); i++) {
        const ModelArch *arch = &archs[i / G_N_ELEMENTS(cases)];
        const size_t c = i % G_N_ELEMENTS(cases);
        g_auto(ExecReference) reference = {0};
        int64_t held[PLAN_RECOMPUTE_N][2], saved = 0, kept = 0, for_weight = 0;
        g_assert_true(init_reference(&reference, arch, 1, SEQ));
        ExecModel *model = reference.model;
        spread_weights(model);
        const size_t n_bytes = (size_t)model->layout.n * sizeof(float);
        ExecStage *stage = &g_array_index(model->stages, ExecStage, 0);
        const double expected =
            run_stage(&reference, cases[c].slices, cases[c].n, cases[c].split, held[0]);
        g_autofree float *gradients = g_memdup2(exec_model_gradients(model), n_bytes);
        for (int r = PLAN_RECOMPUTE_SELECTIVE; r <= PLAN_RECOMPUTE_FULL; r++) {
            stage->recompute = (PlanRecompute)r;
            stage->n_repeated = r == PLAN_RECOMPUTE_FULL ? stage->n_layers : 0;
            stage->again = r == PLAN_RECOMPUTE_SELECTIVE ? 1u << PLAN_MODULE_CORE_ATTENTION : 0;
            g_assert_cmpfloat(
                run_stage(&reference, cases[c].slices, cases[c].n, cases[c].split, held[r]), ==,
                expected);
            g_assert_cmpint(memcmp(gradients, exec_model_gradients(model), n_bytes), ==, 0);
        }
        for (int32_t s = 0; s < cases[c].n; s++) {
            const int64_t rows = cases[c].slices[s] * SEQUENCES;
            saved += arch->n_layers * padded(rows * arch->n_heads * 4);
            kept += (arch->n_layers + 1) * padded(rows * arch->hidden * 4) +
                    exec_head_bytes(&model->widths, rows);
            for_weight += exec_head_bytes(&model->widths, rows) +
                          arch->n_layers * both_sides_bytes(arch, &model->kinds[0], rows);
        }
        if (cases[c].n > 1)
            kept += arch->n_layers * padded(SEQ * SEQUENCES * model->kinds[0].kv_width * 4);
        g_assert_cmpint(held[PLAN_RECOMPUTE_NONE][0] - held[PLAN_RECOMPUTE_SELECTIVE][0], ==,
                        saved);
        g_assert_cmpint(held[PLAN_RECOMPUTE_FULL][0], ==, kept);
        for (int r = 0; r < PLAN_RECOMPUTE_N && arch->experts.n_experts == 0; r++)
            g_assert_cmpint(held[r][1], ==, cases[c].split ? for_weight : 0);
        g_assert_cmpint(exec_pool_used_bytes(reference.pool, TRACE_MEMORY_ACTIVATIONS), ==, 0);
        g_assert_cmpint(exec_pool_used_bytes(reference.pool, TRACE_MEMORY_KV), ==, 0);
        g_assert_cmpint(exec_pool_used_bytes(reference.pool, TRACE_MEMORY_WORKSPACE), ==, 0);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/layer/whole-model-derivatives", test_whole_model_derivatives);
    g_test_add_func("/executor/layer/attention-derivatives", test_attention_derivatives);
    g_test_add_func("/executor/layer/derivatives-of-factors", test_derivatives_of_factors);
    g_test_add_func("/executor/layer/loss-equals-definition", test_loss_equals_definition);
    g_test_add_func("/executor/layer/slices-and-split-backward-change-nothing",
                    test_slices_and_split_backward_change_nothing);
    g_test_add_func("/executor/layer/many-slices-are-as-exact-as-one",
                    test_many_slices_are_as_exact_as_one);
    g_test_add_func("/executor/layer/padding-of-tables-stays-zero",
                    test_padding_of_tables_stays_zero);
    g_test_add_func("/executor/layer/recompute-changes-memory-only",
                    test_recompute_changes_memory_only);
    return g_test_run();
}
