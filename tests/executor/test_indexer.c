/* Tests of executor/model/attention_indexer.c: counts of parameters, the loss and every gradient against a second
 * implementation in double (plain.h).  test_layer.c and test_matrix.c cut it. */
#include "executor/model/random.h"
#include "executor/run/verify.h"
#include "tests/executor/attention_kinds.h"
#include "tests/executor/plain.h"
#include "tests/executor/tensors.h"

enum {
    BATCH = 2,
    TOKENS = 13
};

static ModelArch
small_model(size_t kind)
{
    ModelArch arch = {
        .name = (char *)"small",
        .family = MODEL_FAMILY_LLAMA,
        .n_layers = 2,
        .hidden = 16,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 6,
        .ffn_hidden = 24,
        .vocab = 19,
        .max_seq_len = TOKENS,
        .norm_epsilon = 1e-2,
        .rope_base = 500,
        .tied_embeddings = true,
    };

    attention_kinds[kind].set(&arch);
    return arch;
}

static void
test_counts(void)
{
    for (size_t kind = 0; kind < G_N_ELEMENTS(attention_kinds); kind++) {
        const ModelArch arch = small_model(kind);
        g_auto(ExecReference) reference = {0};
        int64_t n = 0;
        g_assert_true(exec_reference_init(
            &reference,
            &(ExecReferenceOptions){
                .arch = &arch, .global_batch = 1, .seq_len = TOKENS, .device = "reference"},
            NULL));
        for (guint i = 0; i < exec_model_n_parameters(reference.model); i++)
            n += exec_model_parameter(reference.model, i)->n;
        g_assert_cmpint(n, ==, model_parameters(&arch));
    }
}

/* The loss, and what the indexers learn from, both means over all tokens. */
typedef struct {
    double loss, divergence;
} Defined;

static Defined
defined(const ModelArch *arch, const ExecModel *model, const ExecData *data)
{
    int32_t tokens[TOKENS + 1];
    Defined d = {0};

    plain_divergence = 0;
    for (int64_t i = 0; i < BATCH; i++) {
        g_assert_true(exec_data_sequence(data, 0, i, tokens, NULL));
        d.loss += plain_loss(arch, model, tokens, TOKENS) / BATCH;
    }
    d.divergence = plain_divergence / (BATCH * TOKENS);
    return d;
}

/* Its difference between both sides of the weights of @p, h apart along a random direction, less what the gradient
 * says of it.  An indexer's parameters do not change the loss, nor do others learn from the divergence. */
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
        const Defined d = defined(arch, model, data);
        result += side * (strstr(p->name, ".index_") != NULL ? d.divergence : d.loss) / (2 * h);
    }
    memcpy(w, old, (size_t)p->n * sizeof *w);
    return result;
}

/* Central differences, extrapolated from h and 2 h to 0, of each tensor. */
static void
check_gradients(const ModelArch *arch, ExecModel *model, const ExecData *data)
{
    const double h = 1e-5;

    for (guint i = 0; i < exec_model_n_parameters(model); i++) {
        const ExecParameter *p = exec_model_parameter(model, i);
        const float *g = exec_model_gradients(model) + p->offset;
        const double error =
            (4 * difference(arch, model, data, p, h) - difference(arch, model, data, p, 2 * h)) / 3;
        const double norm = sqrt(dot(g, g, p->n));
        g_test_message("%s: |g| %.2e, off by %.2e", p->name, norm, error);
        g_assert_cmpfloat(fabs(error), <=, 1e-5 * norm + 1e-7);
        g_assert_cmpfloat(norm, >, 1e-4);
    }
}

static void
test_definition(void)
{
    static const char *const devices[] = {"reference", "cpu"};

    for (size_t i = 0; i < G_N_ELEMENTS(devices) * ATTENTION_SPARSE_N; i++) {
        const ModelArch arch =
            small_model(G_N_ELEMENTS(attention_kinds) - 1 - i % ATTENTION_SPARSE_N);
        const char *device = devices[i / ATTENTION_SPARSE_N];
        g_auto(ExecReference) reference = {0};
        g_autoptr(GError) error = NULL;
        g_autoptr(ExecData) data = exec_data_open(NULL, arch.vocab, TOKENS, 1, 1, &error);
        const ExecReferenceOptions options = {
            .arch = &arch, .global_batch = BATCH, .seq_len = TOKENS, .device = device, .seed = 1};
        if (!exec_reference_init(&reference, &options, &error)) {
            g_test_message("%s: %s", device, error->message);
            continue;
        }
        spread_weights(reference.model);
        g_assert_true(exec_reference_step(&reference, data, 0, &error));
        const Defined d = defined(&arch, reference.model, data);
        g_test_message("%s: loss %.8f, defined %.8f, divergence %.3f", device, reference.loss,
                       d.loss, d.divergence);
        g_assert_cmpfloat(fabs(reference.loss - d.loss), <=, 3e-6 * d.loss);
        g_assert_cmpfloat(d.divergence, >, 0.01);
        check_gradients(&arch, reference.model, data);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/indexer/counts", test_counts);
    g_test_add_func("/executor/indexer/definition", test_definition);
    return g_test_run();
}
