/* Tests of executor/model/state_mixer.c and state_parts.h: counts of parameters, loss and every
 * gradient against a second implementation in double (states.h), and runs on many ranks, in slices
 * and with every way to recompute against one device. */
#include "executor/model/state_parts.h"

#include "executor/model/random.h"
#include "executor/run/verify.h"
#include "tests/executor/combo.h"
#include "tests/executor/states.h"
#include "tests/executor/tensors.h"

enum {
    BATCH = 2,
    TOKENS = 13
};

static ModelArch
small_model(int which)
{
    ModelArch arch = {
        .name = (char *)"small",
        .family = MODEL_FAMILY_LLAMA,
        .n_layers = 2,
        .hidden = 16,
        .n_heads = 4,
        .n_kv_heads = 4,
        .head_dim = 4,
        .ffn_hidden = 24,
        .vocab = 19,
        .max_seq_len = TOKENS,
        .norm_epsilon = 1e-4,
        .rope_base = 500,
        .tied_embeddings = true,
    };

    states_set(&arch, which);
    return arch;
}

/* --- parameters --- */

/* As many on every tp rank as models/parameters.c says. */
static void
test_counts(void)
{
    for (int which = 0; which < STATES_N; which++)
        for (int64_t tp = 1; tp <= 4; tp *= 2) {
            const ModelArch arch = small_model(which);
            Combo c = combo_default();
            c.tp = tp;
            g_autoptr(Plan) plan = combo_plan(&c);
            for (int32_t index = 0; index < tp; index++) {
                const ExecModelOptions options = {.arch = &arch, .plan = plan, .tp_index = index};
                ExecLayout layout = exec_layout_new(&options);
                int64_t n = 0;
                for (guint i = 0; i < layout.parameters->len; i++) {
                    const ExecParameter *p = &g_array_index(layout.parameters, ExecParameter, i);
                    n += g_str_has_prefix(p->name, "layer.1.") ? p->n : 0;
                }
                g_assert_cmpint(n, ==,
                                model_part_parameters(&arch, MODEL_PART_LAYER, 1, tp, 1, 1, false));
                exec_layout_clear(&layout);
            }
        }
}

/* Decays, steps and Mamba's A begin where the papers have them. */
static void
test_initial_values(void)
{
    for (int which = 0; which < STATES_N; which++) {
        const ModelArch arch = small_model(which);
        g_auto(ExecReference) reference = {0};
        const ExecReferenceOptions options = {
            .arch = &arch, .global_batch = 1, .seq_len = 4, .device = "reference", .seed = 1};
        g_assert_true(exec_reference_init(&reference, &options, NULL));
        const float *a = plain_weight(reference.model, 1, "state_a_log");
        const float *steps = plain_weight(reference.model, 1, "state_step_bias");
        for (int64_t i = 0; a != NULL && i < arch.state.n_heads; i++) {
            if (arch.mixer == MODEL_MIXER_MAMBA)
                g_assert_cmpfloat(fabs(exp((double)a[i * arch.state.key_dim + 3]) - 4), <, 1e-5);
            else
                g_assert_cmpfloat(fabs(exp((double)a[i]) - 8.5), <, 7.5);
        }
        for (int64_t i = 0; steps != NULL && i < arch.state.n_heads; i++)
            g_assert_cmpfloat(fabs(log10(states_softplus((double)steps[i])) + 2), <=, 1 + 1e-5);
    }
}

/* --- against the definition --- */

static double
defined_loss(const ModelArch *arch, const ExecModel *model, const ExecData *data)
{
    int32_t tokens[TOKENS + 1];
    double loss = 0;

    for (int64_t i = 0; i < BATCH; i++) {
        g_assert_true(exec_data_sequence(data, 0, i, tokens, NULL));
        loss += states_loss(arch, model, tokens, TOKENS) / BATCH;
    }
    return loss;
}

/* The definition's difference between both sides of the weights @w of @p, h apart along a random
 * direction, less what the gradient says of it. */
static double
difference(const ModelArch *arch, ExecModel *model, const ExecData *data, const ExecParameter *p,
           double h)
{
    const uint64_t key = exec_random_key(11, p->name);
    float *w = (float *)model->weights.data + p->offset;
    const float *g = exec_model_gradients(model) + p->offset;
    g_autofree float *old = g_memdup2(w, (size_t)p->n * sizeof *w);
    double result = 0;

    for (int side = -1; side <= 1; side += 2) {
        for (int64_t j = 0; j < p->n; j++) {
            w[j] = old[j] + (float)(side * h) * exec_random_normal(key, (uint64_t)j);
            result -= side * (double)w[j] * (double)g[j] / (2 * h);
        }
        result += side * defined_loss(arch, model, data) / (2 * h);
    }
    memcpy(w, old, (size_t)p->n * sizeof *w);
    return result;
}

/* Central differences of the definition's loss, extrapolated from h and 2 h to 0, of each tensor. */
static void
check_gradients(const ModelArch *arch, ExecReference *reference, const ExecData *data)
{
    const double h = 1e-5;
    ExecModel *model = reference->model;

    for (guint i = 0; i < exec_model_n_parameters(model); i++) {
        const ExecParameter *p = exec_model_parameter(model, i);
        const float *g = exec_model_gradients(model) + p->offset;
        const double error =
            (4 * difference(arch, model, data, p, h) - difference(arch, model, data, p, 2 * h)) / 3;
        const double norm = sqrt(dot(g, g, p->n));
        g_test_message("%s: |g| %.2e, off by %.2e", p->name, norm, error);
        g_assert_cmpfloat(fabs(error), <=, 1e-4 * norm + 1e-7);
        g_assert_cmpfloat(norm, >, 1e-4);
    }
}

static void
test_definition(void)
{
    for (int which = 0; which < STATES_N; which++) {
        const ModelArch arch = small_model(which);
        g_auto(ExecReference) reference = {0};
        g_autoptr(GError) error = NULL;
        g_autoptr(ExecData) data = exec_data_open(NULL, arch.vocab, TOKENS, 1, 1, &error);
        const ExecReferenceOptions options = {.arch = &arch,
                                              .global_batch = BATCH,
                                              .seq_len = TOKENS,
                                              .device = "reference",
                                              .seed = 1};
        g_assert_true(exec_reference_init(&reference, &options, NULL));
        spread_weights(reference.model);
        g_assert_true(exec_reference_step(&reference, data, 0, &error));
        g_assert_no_error(error);
        const double expected = defined_loss(&arch, reference.model, data);
        g_test_message("mixer %s: loss %.8f, defined %.8f", model_mixer_names[arch.mixer],
                       reference.loss, expected);
        g_assert_cmpfloat(fabs(reference.loss - expected), <=, 3e-6 * expected);
        check_gradients(&arch, &reference, data);
    }
}

/* --- split runs --- */

/* Each mixer beside attention, cut in every way at once: gradients within 1e-5 of one device's. */
static void
test_split_runs(void)
{
    for (int which = 0; which < STATES_N; which++)
        for (int way = 0; way < 9; way++) {
            Combo c = combo_default();
            c.family = MODEL_FAMILY_LLAMA;
            c.state = which + 1;
            memcpy(c.slices, (int64_t[]){1, 12, 11, 0}, sizeof c.slices);
            c.n_layers = 4;
            switch (way) {
            case 0:
                c.tp = 2;
                c.sequence_parallel = true;
                memcpy(c.slices, (int64_t[]){2, 12, 10, 0}, sizeof c.slices);
                break;
            case 1:
                c.pp = 2;
                c.recompute = PLAN_RECOMPUTE_FULL;
                break;
            case 2:
                c.dp = 2;
                c.zero_stage = 3;
                c.recompute = PLAN_RECOMPUTE_SELECTIVE;
                break;
            case 3:
                /* Vectors of one or two heads hold little but rounding. */
                c.tp = which < STATES_HEADS_N ? 2 : 4;
                c.schedule = "zb-h1";
                c.recompute = (PlanRecompute)(which % PLAN_RECOMPUTE_N);
                c.uneven = true;
                memcpy(c.slices, (int64_t[]){24, 0, 0, 0}, sizeof c.slices);
                break;
            case 4:
                c.dtype = DTYPE_BF16;
                c.tp = 2;
                break;
            case 5:
                c.cp = 2; /* pieces of 6 tokens and, in order, of 5 and 1 */
                memcpy(c.slices, (int64_t[]){12, 10, 2, 0}, sizeof c.slices);
                c.recompute = (PlanRecompute)(which % PLAN_RECOMPUTE_N);
                break;
            case 6:
                c.cp = 2;
                c.tp = 2;
                c.zero_stage = 1;
                memcpy(c.slices, (int64_t[]){24, 0, 0, 0}, sizeof c.slices);
                c.recompute = PLAN_RECOMPUTE_SELECTIVE;
                break;
            case 7:
                c.cp = c.pp = 2;
                c.schedule = "zb-h1";
                memcpy(c.slices, (int64_t[]){24, 0, 0, 0}, sizeof c.slices);
                break;
            case 8:
                /* Heads that tp * cp does not divide: each rank has all of them. */
                c.cp = 3;
                c.tp = 2;
                memcpy(c.slices, (int64_t[]){24, 0, 0, 0}, sizeof c.slices);
                break;
            }
            g_assert_true(combo_supported(&c));
            combo_check(&c);
        }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/state-mixer/counts", test_counts);
    g_test_add_func("/executor/state-mixer/initial-values", test_initial_values);
    g_test_add_func("/executor/state-mixer/definition", test_definition);
    g_test_add_func("/executor/state-mixer/split-runs", test_split_runs);
    return g_test_run();
}
