/* Tests of executor/layer.h, stage.h and model.h: derivatives of the whole model, I and W against
 * B, initial values. */
#include "executor/stage.h"

#include <math.h>
#include <string.h>

#include "executor/random.h"
#include "executor/verify.h"

static ModelArch
small_model(bool tied, int64_t n_kv_heads)
{
    return (ModelArch){
        .name = (char *)"small",
        .family = MODEL_FAMILY_GPT,
        .n_layers = 2,
        .hidden = 16,
        .n_heads = 4,
        .n_kv_heads = n_kv_heads,
        .head_dim = 5, /* heads times head size need not be the hidden size */
        .ffn_hidden = 40,
        .vocab = 19,
        .max_seq_len = 14,
        .tied_embeddings = tied,
        .qkv_bias = true,
    };
}

/* The loss and, when asked, the gradients of one step; weights as they are. */
static double
loss_of(ExecReference *reference, const ExecData *data)
{
    g_autoptr(GError) error = NULL;

    reference->backend->ops->zero(reference->backend, (size_t)reference->model->n * sizeof(float),
                                  reference->model->gradients.data);
    g_assert_true(exec_reference_step(reference, data, 0, &error));
    g_assert_no_error(error);
    return reference->loss;
}

/* Initial weights are so small that attention is nearly uniform and its gradients vanish beside the
 * others': spread everything out. */
static void
spread_weights(ExecModel *model)
{
    for (guint i = 0; i < model->parameters->len; i++) {
        const ExecParameter *p = &g_array_index(model->parameters, ExecParameter, i);
        const uint64_t key = exec_random_key(3, p->name);
        for (int64_t j = 0; j < p->n; j++) {
            float *w = &model->weights.data[p->offset + j];
            *w +=
                (p->init == EXEC_INIT_NORMAL ? 0.4f : 0.2f) * exec_random_normal(key, (uint64_t)j);
        }
    }
}

/*
 * Central differences of every tensor along a random direction.  The loss is a mean of fp32 losses
 * of about 5, with a rounding of some 1e-7; h = 2e-3 moves it by 4e-3 times the gradient's norm,
 * and the third derivative adds some 1e-3 relative.
 */
static void
check_model_derivatives(bool tied, int64_t n_kv_heads)
{
    const double h = 2e-3;
    const ModelArch arch = small_model(tied, n_kv_heads);
    g_auto(ExecReference) reference = {0};
    g_autoptr(GError) error = NULL;
    g_autoptr(ExecData) data = exec_data_open(NULL, arch.vocab, 13, 1, &error);

    g_assert_true(exec_reference_init(&reference, &arch, 3, 13, "reference", 1, &error));
    ExecModel *model = reference.model;
    spread_weights(model);
    loss_of(&reference, data);
    g_autofree float *gradients =
        g_memdup2(model->gradients.data, (size_t)model->n * sizeof(float));
    for (guint i = 0; i < model->parameters->len; i++) {
        const ExecParameter *p = &g_array_index(model->parameters, ExecParameter, i);
        const uint64_t key = exec_random_key(11, p->name);
        float *w = model->weights.data + p->offset;
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
        g_assert_cmpfloat(fabs((f[1] - f[0]) / (2 * h) - expected), <=, 0.01 * sqrt(norm) + 1e-4);
        g_assert_cmpfloat(sqrt(norm), >, 5e-3);
    }
}

static void
test_whole_model_derivatives(void)
{
    check_model_derivatives(true, 4);
    check_model_derivatives(false, 4);
    check_model_derivatives(true, 2);
}

/* --- the model against GPT-2's definition, written again, in double, one token at a time --- */

static const float *
weight(const ExecModel *model, int64_t layer, const char *name)
{
    char full[64];

    if (layer < 0)
        g_strlcpy(full, name, sizeof full);
    else
        g_snprintf(full, sizeof full, "layer.%d.%s", (int)layer, name);
    for (guint i = 0; i < model->parameters->len; i++) {
        const ExecParameter *p = &g_array_index(model->parameters, ExecParameter, i);
        if (g_str_equal(p->name, full))
            return model->weights.data + p->offset;
    }
    g_error("no parameter %s", full);
}

/* y[n] = x[k] W[k,n] + b */
static void
plain_linear(const double *x, const float *w, const float *b, int64_t k, int64_t n, double *y)
{
    for (int64_t j = 0; j < n; j++) {
        y[j] = (double)b[j];
        for (int64_t i = 0; i < k; i++)
            y[j] += x[i] * (double)w[i * n + j];
    }
}

static void
plain_norm(const double *x, const float *gain, const float *shift, int64_t n, double *y)
{
    double mean = 0, variance = 0;

    for (int64_t i = 0; i < n; i++)
        mean += x[i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        variance += (x[i] - mean) * (x[i] - mean) / (double)n;
    for (int64_t i = 0; i < n; i++)
        y[i] = (x[i] - mean) / sqrt(variance + 1e-5) * (double)gain[i] + (double)shift[i];
}

#define PLAIN_MAX 64

/* softmax(q k / sqrt(d)) v of token @t; @qkv rows are q, k, v. */
static void
plain_attention(const ModelArch *arch, double qkv[][PLAIN_MAX], int64_t t, double *out)
{
    const int64_t d = arch->head_dim, q_width = arch->n_heads * d;
    const int64_t kv_width = arch->n_kv_heads * d;

    for (int64_t h = 0; h < arch->n_heads; h++) {
        const int64_t kv = h * arch->n_kv_heads / arch->n_heads * d;
        double weights[PLAIN_MAX], sum = 0;
        for (int64_t j = 0; j <= t; j++) {
            double score = 0;
            for (int64_t i = 0; i < d; i++)
                score += qkv[t][h * d + i] * qkv[j][q_width + kv + i];
            weights[j] = exp(score / sqrt((double)d));
            sum += weights[j];
        }
        for (int64_t i = 0; i < d; i++) {
            out[h * d + i] = 0;
            for (int64_t j = 0; j <= t; j++)
                out[h * d + i] += weights[j] / sum * qkv[j][q_width + kv_width + kv + i];
        }
    }
}

static void
plain_layer(const ModelArch *arch, const ExecModel *model, int64_t layer, int64_t n_tokens,
            double x[][PLAIN_MAX])
{
    const int64_t h = arch->hidden, q_width = arch->n_heads * arch->head_dim;
    const int64_t qkv_width = q_width + 2 * arch->n_kv_heads * arch->head_dim;
    double qkv[PLAIN_MAX][PLAIN_MAX], a[PLAIN_MAX], b[PLAIN_MAX];

    for (int64_t t = 0; t < n_tokens; t++) {
        plain_norm(x[t], weight(model, layer, "norm1.gain"), weight(model, layer, "norm1.shift"), h,
                   a);
        plain_linear(a, weight(model, layer, "qkv.weight"), weight(model, layer, "qkv.bias"), h,
                     qkv_width, qkv[t]);
    }
    for (int64_t t = 0; t < n_tokens; t++) {
        plain_attention(arch, qkv, t, a);
        plain_linear(a, weight(model, layer, "proj.weight"), weight(model, layer, "proj.bias"),
                     q_width, h, b);
        for (int64_t i = 0; i < h; i++)
            x[t][i] += b[i];
        plain_norm(x[t], weight(model, layer, "norm2.gain"), weight(model, layer, "norm2.shift"), h,
                   a);
        plain_linear(a, weight(model, layer, "mlp_up.weight"), weight(model, layer, "mlp_up.bias"),
                     h, arch->ffn_hidden, b);
        for (int64_t i = 0; i < arch->ffn_hidden; i++)
            b[i] *= 0.5 * (1 + tanh(sqrt(2 / G_PI) * (b[i] + 0.044715 * pow(b[i], 3))));
        plain_linear(b, weight(model, layer, "mlp_down.weight"),
                     weight(model, layer, "mlp_down.bias"), arch->ffn_hidden, h, a);
        for (int64_t i = 0; i < h; i++)
            x[t][i] += a[i];
    }
}

/* Mean loss over the tokens of one sequence. */
static double
plain_loss(const ModelArch *arch, const ExecModel *model, const int32_t *tokens, int64_t n_tokens)
{
    const float *table = weight(model, -1, "embedding.token");
    const float *head = arch->tied_embeddings ? table : weight(model, -1, "head.weight");
    const float *position = weight(model, -1, "embedding.position");
    double x[PLAIN_MAX][PLAIN_MAX], y[PLAIN_MAX], loss = 0;

    for (int64_t t = 0; t < n_tokens; t++)
        for (int64_t i = 0; i < arch->hidden; i++)
            x[t][i] = (double)table[tokens[t] * arch->hidden + i] +
                      (double)position[t * arch->hidden + i];
    for (int64_t l = 0; l < arch->n_layers; l++)
        plain_layer(arch, model, l, n_tokens, x);
    for (int64_t t = 0; t < n_tokens; t++) {
        double logits[PLAIN_MAX] = {0}, sum = 0;
        plain_norm(x[t], weight(model, -1, "norm.gain"), weight(model, -1, "norm.shift"),
                   arch->hidden, y);
        for (int64_t v = 0; v < arch->vocab; v++) {
            for (int64_t i = 0; i < arch->hidden; i++)
                logits[v] += y[i] * (double)head[v * arch->hidden + i];
            sum += exp(logits[v]);
        }
        loss += (log(sum) - logits[tokens[t + 1]]) / (double)n_tokens;
    }
    return loss;
}

static void
test_loss_equals_gpt2_definition(void)
{
    enum {
        BATCH = 3,
        TOKENS = 13
    };

    for (int variant = 0; variant < 3; variant++) {
        const ModelArch arch = small_model(variant != 1, variant == 2 ? 2 : 4);
        g_auto(ExecReference) reference = {0};
        g_autoptr(GError) error = NULL;
        g_autoptr(ExecData) data = exec_data_open(NULL, arch.vocab, TOKENS, 1, &error);
        int32_t tokens[TOKENS + 1];
        double expected = 0;
        g_assert_true(
            exec_reference_init(&reference, &arch, BATCH, TOKENS, "reference", 1, &error));
        spread_weights(reference.model);
        for (int64_t i = 0; i < BATCH; i++) {
            g_assert_true(exec_data_sequence(data, 0, i, tokens, &error));
            expected += plain_loss(&arch, reference.model, tokens, TOKENS) / BATCH;
        }
        /* fp32 activations between double sums: some 1e-7 each. */
        g_assert_cmpfloat(fabs(loss_of(&reference, data) - expected), <=, 3e-6 * expected);
    }
}

/* --- one stage: slices, I and W --- */

enum {
    SEQ = 13,
    SEQUENCES = 3
};

/* Forward and backward of a micro-batch on a stage with everything, cut as asked; gradients are
 * left in the model. */
static double
run_stage(ExecReference *reference, const int64_t *slices, int32_t n_slices, bool split)
{
    ExecModel *model = reference->model;
    ExecBackend *backend = reference->backend;
    const int64_t sequences = SEQUENCES;
    g_autoptr(GError) error = NULL;
    ExecStageScratch scratch = {0};
    int32_t tokens[SEQ * SEQUENCES], targets[SEQ * SEQUENCES];
    double total = 0;

    for (int32_t i = 0; i < SEQ * SEQUENCES; i++) {
        tokens[i] = i * 7 % 19;
        targets[i] = i * i % 19;
    }
    backend->ops->zero(backend, (size_t)model->n * sizeof(float), model->gradients.data);
    g_assert_true(exec_stage_scratch_init(&scratch, &model->widths, sequences, SEQ, backend,
                                          reference->pool, &error));
    g_autoptr(ExecStageRun) run = exec_stage_run_new(&(ExecStageOptions){
        .widths = &model->widths,
        .stage = &g_array_index(model->stages, ExecStage, 0),
        .backend = backend,
        .pool = reference->pool,
        .scratch = &scratch,
        .n_microbatches = 1,
        .n_slices = n_slices,
        .sequences = &sequences,
        .slices = slices,
        .loss_factor = 1.0f / (SEQ * SEQUENCES),
        .splits_backward = split,
    });
    int64_t at = 0;
    for (int32_t s = 0; s < n_slices; s++) {
        float *x;
        double loss;
        g_assert_true(exec_stage_begin_forward(run, 0, s, &x, &error));
        exec_stage_forward(run, 0, s, tokens + at * sequences, targets + at * sequences, &loss);
        total += loss;
        at += slices[s];
    }
    for (int32_t s = n_slices - 1; s >= 0; s--) {
        const float *dx;
        at -= slices[s];
        g_assert_true(exec_stage_backward(run, 0, s, tokens + at * sequences, &dx, &error));
    }
    for (int32_t s = 0; split && s < n_slices; s++) {
        exec_stage_backward_weight(run, 0, s, tokens + at * sequences);
        at += slices[s];
    }
    exec_stage_scratch_clear(&scratch, reference->pool);
    return total;
}

/* The reference backend rounds each sum once, so only the grouping of sums over slices differs. */
static void
test_slices_and_split_backward_change_nothing(void)
{
    static const struct {
        int64_t slices[4];
        int32_t n;
        bool split;
    } cases[] = {
        {{13}, 1, true},        {{5, 8}, 2, false},      {{5, 8}, 2, true},
        {{1, 11, 1}, 3, false}, {{6, 1, 2, 4}, 4, true},
    };
    const ModelArch arch = small_model(true, 2);
    const int64_t whole = SEQ;
    g_auto(ExecReference) reference = {0};
    g_autoptr(GError) error = NULL;

    g_assert_true(exec_reference_init(&reference, &arch, 1, SEQ, "reference", 1, &error));
    ExecModel *model = reference.model;
    spread_weights(model);
    const double expected_loss = run_stage(&reference, &whole, 1, false);
    g_autofree float *expected = g_memdup2(model->gradients.data, (size_t)model->n * sizeof(float));
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const double loss = run_stage(&reference, cases[i].slices, cases[i].n, cases[i].split);
        g_assert_cmpfloat(fabs(loss - expected_loss), <=, 1e-5 * expected_loss);
        for (guint j = 0; j < model->parameters->len; j++) {
            const ExecParameter *p = &g_array_index(model->parameters, ExecParameter, j);
            const double e = exec_relative_error(model->gradients.data + p->offset,
                                                 expected + p->offset, p->n, 0);
            g_assert_cmpfloat(e, <=, 2e-6);
        }
    }
    /* Everything that ops took was given back. */
    g_assert_cmpint(exec_pool_used_bytes(reference.pool, TRACE_MEMORY_ACTIVATIONS), ==, 0);
    g_assert_cmpint(exec_pool_used_bytes(reference.pool, TRACE_MEMORY_KV), ==, 0);
    g_assert_cmpint(exec_pool_used_bytes(reference.pool, TRACE_MEMORY_WORKSPACE), ==, 0);
}

/* --- parameters --- */

/* A parameter's initial value is the same wherever the stage boundaries are. */
static void
test_initial_values_do_not_depend_on_degrees(void)
{
    const ModelArch arch = small_model(true, 4);
    g_auto(ExecReference) one = {0};
    g_autoptr(Plan) plan = plan_new();
    g_autoptr(GError) error = NULL;
    const int64_t seq_len = SEQ;
    double deviation = 0;
    int64_t n_normal = 0;

    g_assert_true(exec_reference_init(&one, &arch, 1, SEQ, "reference", 42, &error));
    plan->seq_len = seq_len;
    plan->degrees.pp = 2;
    g_array_append_val(plan->slices, seq_len);
    plan_set_even_stages(plan, 2, true, SCHEDULE_PLACEMENT_LOOP, PLAN_RECOMPUTE_NONE);
    int64_t n_found = 0;
    for (int32_t rank = 0; rank < 2; rank++) {
        g_autoptr(ExecPool) pool = exec_pool_new(one.backend);
        g_autoptr(ExecModel) model =
            exec_model_new(&arch, plan, rank, 42, true, one.backend, pool, &error);
        g_assert_no_error(error);
        g_assert_nonnull(exec_model_shared_table(model, &arch, plan, rank));
        for (guint i = 0; i < model->parameters->len; i++) {
            const ExecParameter *p = &g_array_index(model->parameters, ExecParameter, i);
            for (guint j = 0; j < one.model->parameters->len; j++) {
                const ExecParameter *q = &g_array_index(one.model->parameters, ExecParameter, j);
                if (!g_str_equal(p->name, q->name))
                    continue;
                n_found++;
                g_assert_cmpint(p->n, ==, q->n);
                g_assert_cmpint(memcmp(model->weights.data + p->offset,
                                       one.model->weights.data + q->offset,
                                       (size_t)p->n * sizeof(float)),
                                ==, 0);
            }
        }
        /* Four buffers of the same size: weights, gradients, two moments. */
        g_assert_cmpint(exec_pool_used_bytes(pool, TRACE_MEMORY_OPTIMIZER), ==,
                        2 * exec_pool_used_bytes(pool, TRACE_MEMORY_WEIGHTS));
        g_assert_cmpint(exec_model_weight_bytes(&arch, plan, rank), ==,
                        exec_pool_used_bytes(pool, TRACE_MEMORY_WEIGHTS));
    }
    /* 2 tables, 2 layers of 12, 2 of the last norm, and the table's copy. */
    g_assert_cmpint(n_found, ==, 2 + 24 + 2 + 1);

    for (guint i = 0; i < one.model->parameters->len; i++) {
        const ExecParameter *p = &g_array_index(one.model->parameters, ExecParameter, i);
        for (int64_t j = 0; p->init == EXEC_INIT_NORMAL && j < p->n; j++, n_normal++)
            deviation += pow((double)(one.model->weights.data[p->offset + j] / p->deviation), 2);
    }
    /* The mean of n squares of variance about 2 is 1 within 5 sqrt(2 / n). */
    g_assert_cmpfloat(fabs(deviation / (double)n_normal - 1), <, 5 * sqrt(2.0 / (double)n_normal));
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/layer/whole-model-derivatives", test_whole_model_derivatives);
    g_test_add_func("/executor/layer/loss-equals-gpt2-definition",
                    test_loss_equals_gpt2_definition);
    g_test_add_func("/executor/layer/slices-and-split-backward-change-nothing",
                    test_slices_and_split_backward_change_nothing);
    g_test_add_func("/executor/layer/initial-values-do-not-depend-on-degrees",
                    test_initial_values_do_not_depend_on_degrees);
    return g_test_run();
}
