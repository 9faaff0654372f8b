/* Tests of the end of a step: the learning rate, clipping by the global norm and AdamW against a
 * trainer written here, on one rank and on shards. */
#include "executor/model/state.h"
#include "executor/run/muon.h"
#include "executor/run/optimize.h"

#include <math.h>

#include "executor/run/verify.h"
#include "tests/executor/combo.h"
#include "tests/executor/emulated.h"

/* --- the learning rate --- */

/* (s + 1) / 10 of the peak up to step 9; then constant, or with a decay over n steps
 * 0.1 + 0.9 (1 + cos(pi (s - 9) / (n - 10))) / 2 of it until step n - 1, a tenth from there on. */
static void
test_learning_rate(void)
{
    static const struct {
        int64_t decay_steps, step;
        double rate;
    } cases[] = {
        {0, 0, 0.1},     {0, 4, 0.5},     {0, 9, 1},
        {0, 10, 1},      {0, 100000, 1},  {110, 0, 0.1},
        {110, 9, 1},     {110, 59, 0.55}, /* half way: cos = 0 */
        {110, 109, 0.1}, {110, 500, 0.1}, {110, 34, 0.1 + 0.9 * 0.8535533905932737}, /* cos pi/4 */
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const ExecRunOptions options = {.learning_rate = 1, .decay_steps = cases[i].decay_steps};
        g_assert_cmpfloat(fabs(exec_learning_rate(&options, cases[i].step) - cases[i].rate), <=,
                          1e-12);
    }
}

/* --- training --- */

enum {
    N_STEPS = 12
};

#define PEAK 2e-2
#define DECAY_STEPS 16

typedef struct {
    double losses[N_STEPS];
    int n_clipped;
} Training;

/* --- Muon in double, from its definition --- */

static double *
product(int64_t m, int64_t n, int64_t k, const double *a, const double *b, bool trans_b)
{
    double *c = g_new0(double, (size_t)(m * n));

    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            for (int64_t l = 0; l < k; l++)
                c[i * n + j] += a[i * k + l] * (trans_b ? b[j * k + l] : b[l * n + j]);
    return c;
}

/* X / |X|, then five times 3.4445 X - 4.7750 X X' X + 2.0315 X X' X X' X, which is the same whichever
 * side is the longer one. */
static void
orthogonalise_plainly(int64_t rows, int64_t cols, double *x)
{
    double squares = 0;

    for (int64_t i = 0; i < rows * cols; i++)
        squares += x[i] * x[i];
    for (int64_t i = 0; i < rows * cols; i++)
        x[i] /= sqrt(squares);
    for (int step = 0; step < 5; step++) {
        g_autofree double *gram = product(rows, rows, cols, x, x, true);
        g_autofree double *cubic = product(rows, cols, rows, gram, x, false);
        g_autofree double *quintic = product(rows, cols, rows, gram, cubic, false);
        for (int64_t i = 0; i < rows * cols; i++)
            x[i] = 3.4445 * x[i] - 4.7750 * cubic[i] + 2.0315 * quintic[i];
    }
}

/* How a weight of a layer is cut: k beside v, gate beside up, and each expert below the others. */
static void
shape_of(const Combo *c, const ModelArch *arch, const ExecParameter *p, int64_t *rows,
         int64_t *cols)
{
    const bool is_expert = strstr(p->name, "experts_") != NULL;
    const bool halves = strstr(p->name, "kv.weight") != NULL ||
                        (strstr(p->name, "_up.weight") != NULL && c->family == MODEL_FAMILY_LLAMA);

    *rows = is_expert ? p->shard.rows / arch->experts.n_experts : p->shard.rows;
    *cols = halves ? p->shard.cols / 2 : p->shard.cols;
}

static void
muon_plainly(const Combo *c, const ExecModel *model, const ModelArch *arch, const ExecParameter *p,
             double scale, double rate, double *m)
{
    const int64_t width = p->shard.cols;
    float *weights = (float *)model->weights.data + p->offset;
    const float *gradients = exec_model_gradients(model) + p->offset;
    int64_t rows, cols;

    shape_of(c, arch, p, &rows, &cols);
    g_autofree double *x = g_new(double, (size_t)(rows * cols));
    for (int64_t r = 0; r < p->shard.rows; r += rows)
        for (int64_t b = 0; b < width; b += cols) {
            for (int64_t i = 0; i < rows * cols; i++) {
                const int64_t at = (r + i / cols) * width + b + i % cols;
                const double g = scale * (double)gradients[at];
                m[p->offset + at] = 0.95 * m[p->offset + at] + 0.05 * g;
                x[i] = 0.05 * g + 0.95 * m[p->offset + at];
            }
            orthogonalise_plainly(rows, cols, x);
            for (int64_t i = 0; i < rows * cols; i++) {
                float *weight = weights + (r + i / cols) * width + b + i % cols;
                *weight = (float)((1 - 0.1 * rate) * (double)*weight -
                                  rate * 0.2 * sqrt((double)MAX(rows, cols)) * x[i]);
            }
        }
}

static bool
is_muon(const Combo *c, const ExecParameter *p)
{
    return c->optimizer == PLAN_OPTIMIZER_MUON && g_str_has_prefix(p->name, "layer.") &&
           g_str_has_suffix(p->name, ".weight");
}

/* One AdamW step in double [Loshchilov and Hutter 1711.05101 algorithm 2], gradients scaled. */
static void
step_plainly(const Combo *c, const ModelArch *arch, const ExecReference *reference, double scale,
             int64_t step, double *m, double *v)
{
    const ExecRunOptions options = {.learning_rate = (float)PEAK, .decay_steps = DECAY_STEPS};
    const double rate = exec_learning_rate(&options, step);
    const ExecModel *model = reference->model;

    for (guint i = 0; i < exec_model_n_parameters(model); i++) {
        const ExecParameter *p = exec_model_parameter(model, i);
        if (is_muon(c, p)) {
            muon_plainly(c, model, arch, p, scale, rate, m);
            continue;
        }
        for (int64_t j = p->offset; j < p->offset + p->n; j++) {
            float *weight = (float *)model->weights.data + j;
            const double g = scale * (double)exec_model_gradients(model)[j];
            m[j] = 0.9 * m[j] + 0.1 * g;
            v[j] = 0.95 * v[j] + 0.05 * g * g;
            const double m_hat = m[j] / (1 - pow(0.9, (double)step + 1));
            const double v_hat = v[j] / (1 - pow(0.95, (double)step + 1));
            const double decay = p->shard.rows > 1 ? 0.1 * (double)*weight : 0;
            *weight = (float)((double)*weight - rate * (m_hat / (sqrt(v_hat) + 1e-8) + decay));
        }
    }
}

static Training
train_plainly(const Combo *c, double limit)
{
    const ModelArch arch = combo_arch(c);
    g_autoptr(Plan) plan = combo_plan(c);
    const ExecRunOptions like = combo_options(c, &arch, plan);
    g_auto(ExecReference) reference = {0};
    g_autoptr(ExecData) data =
        exec_data_open(NULL, arch.vocab, plan->seq_len, model_n_losses(&arch), like.seed, NULL);
    Training training = {0};

    g_assert_true(exec_reference_init(&reference,
                                      &(ExecReferenceOptions){
                                          .arch = &arch,
                                          .global_batch = plan->global_batch,
                                          .seq_len = plan->seq_len,
                                          .device = "reference",
                                          .seed = like.seed,
                                          .init_deviation = like.init_deviation,
                                      },
                                      NULL));
    const ExecModel *model = reference.model;
    g_autofree double *m = g_new0(double, (size_t)model->layout.n),
                      *v = g_new0(double, (size_t)model->layout.n);
    for (int64_t step = 0; step < N_STEPS; step++) {
        double norm = 0;
        memset(model->gradients.data, 0, (size_t)model->gradients.n_bytes);
        g_assert_true(exec_reference_step(&reference, data, step, NULL));
        for (int64_t i = 0; i < model->layout.n; i++)
            norm += pow((double)exec_model_gradients(model)[i], 2);
        norm = sqrt(norm);
        training.losses[step] = reference.loss;
        training.n_clipped += norm > limit;
        step_plainly(c, &arch, &reference, norm > limit ? limit / norm : 1, step, m, v);
    }
    return training;
}

/* Losses of @c's run with everything that the plain trainer does.  Returns: steps clipped.
 * @device  NULL: a usual one.  @limit  of the gradient's norm. */
static int
check_training(const Combo *c, const char *device, double limit)
{
    const ModelArch arch = combo_arch(c);
    g_autoptr(Plan) plan = combo_plan(c);
    g_autoptr(GError) error = NULL;
    g_auto(ExecRunResult) result = {0};
    g_autofree char *text = combo_text(c);
    ExecRunOptions options = combo_options(c, &arch, plan);
    const Training expected = train_plainly(c, limit);
    double worst = 0;

    options.n_steps = N_STEPS;
    options.verify = false;
    if (device != NULL)
        options.device = device;
    options.learning_rate = (float)PEAK;
    options.decay_steps = DECAY_STEPS;
    options.clip_norm = (float)limit;
    g_assert_true(exec_run(&options, &result, &error));
    g_assert_no_error(error);
    for (int i = 0; i < N_STEPS; i++)
        worst = fmax(worst, fabs(result.losses[i] - expected.losses[i]));
    g_test_message("%s: %.1e, %d of %d steps clipped", text, worst, expected.n_clipped, N_STEPS);
    g_assert_cmpfloat(worst, <=, c->optimizer == PLAN_OPTIMIZER_MUON ? 1e-6 : 1e-4);
    return expected.n_clipped;
}

static void
test_training_equals_plain_trainer(void)
{
    int n_clipped = 0, n = 0;

    for (int32_t zero_stage = 0; zero_stage <= 3; zero_stage++)
        for (int variant = 0; variant < 4; variant++) {
            Combo c = combo_default();
            c.zero_stage = zero_stage;
            c.family = variant % 2 == 0 ? MODEL_FAMILY_GPT : MODEL_FAMILY_LLAMA;
            c.dp = variant == 0 ? 1 : 2;
            c.n_micro_batches = 4 / c.dp;
            c.tp = variant == 2 ? 2 : 1;
            c.sequence_parallel = variant == 2;
            c.cp = variant == 3 ? 2 : 1;
            c.pp = variant == 1 ? 2 : 1;
            if (variant == 3) {
                c.n_experts = 4;
                c.ep = 2;
            }
            c.offload = variant == 1 ? PLAN_OFFLOAD_CPU : PLAN_OFFLOAD_NONE;
            n_clipped += check_training(&c, NULL, 1);
            n += N_STEPS;
        }
    /* Many steps of each kind, or one of them would not be tested. */
    g_assert_cmpint(n_clipped, >=, n / 4);
    g_assert_cmpint(n_clipped, <=, n - n / 10);
}

/* Matrices cut by tp, and by ZeRO over dp, cp and ep, beside whole ones; K and V on several ranks; those of MTP
 * modules, of which the projection is cut by columns. */
static void
test_muon_equals_plain_trainer(void)
{
    for (int32_t zero_stage = 0; zero_stage <= 3; zero_stage++)
        for (int variant = 0; variant < 7; variant++) {
            Combo c = combo_default();
            c.optimizer = PLAN_OPTIMIZER_MUON;
            c.zero_stage = zero_stage;
            c.family = variant % 2 == 0 ? MODEL_FAMILY_GPT : MODEL_FAMILY_LLAMA;
            c.dp = variant == 0 ? 1 : 2;
            c.n_micro_batches = 4 / c.dp;
            c.tp = variant == 2 || variant >= 4 ? 2 : 1;
            c.sequence_parallel = variant == 2;
            c.cp = variant == 3 ? 2 : 1;
            c.pp = variant == 1 ? 2 : 1;
            if (variant == 4) { /* all ranks have the same head, or two have each of two */
                c.tp = zero_stage % 2 == 0 ? 2 : 4;
                c.n_kv_heads = c.tp / 2;
            }
            if (variant == 3 || variant == 5) {
                c.n_experts = 4;
                c.n_shared = variant == 5;
                c.ep = 2;
            }
            if (variant == 6) {
                c.family = MODEL_FAMILY_LLAMA;
                c.mtp = 1 + zero_stage % 2;
                c.pp = 1 + zero_stage / 2;
            }
            check_training(&c, NULL, 1);
        }
}

/* Losses of a run of @c with Muon (owned). */
static double *
muon_losses(const Combo *c)
{
    const ModelArch arch = combo_arch(c);
    g_autoptr(Plan) plan = combo_plan(c);
    g_autoptr(GError) error = NULL;
    g_auto(ExecRunResult) result = {0};
    ExecRunOptions options = combo_options(c, &arch, plan);

    options.n_steps = N_STEPS;
    options.verify = false;
    options.learning_rate = (float)PEAK;
    options.decay_steps = DECAY_STEPS;
    options.clip_norm = 1;
    g_assert_true(exec_run(&options, &result, &error));
    g_assert_no_error(error);
    return g_steal_pointer(&result.losses);
}

/* With MTP modules, and beside each mixer with a state, split runs stay on one device's path; each is split in one
 * of four ways. */
static void
test_muon_of_every_kind(void)
{
    for (int i = 0; i <= STATES_N + 1; i++) {
        const int variant = i % 4;
        Combo one = combo_default();
        one.family = MODEL_FAMILY_LLAMA;
        one.optimizer = PLAN_OPTIMIZER_MUON;
        one.n_layers = 4;
        one.state = MAX(0, i - 1);
        one.mtp = i < 2 ? 1 + i : 0;
        one.n_micro_batches = 4;
        Combo c = one;
        c.dp = variant == 1 ? 1 : 2;
        c.n_micro_batches = 4 / c.dp;
        c.tp = variant == 1 || variant == 3 ? 2 : 1;
        c.pp = variant == 2 ? 2 : 1;
        c.zero_stage = variant == 0 ? 1 : variant == 2 ? 3 : variant == 3 ? 2 : 0;
        g_autofree char *text = combo_text(&c);
        g_autofree double *expected = muon_losses(&one), *losses = muon_losses(&c);
        double worst = 0;
        for (int s = 0; s < N_STEPS; s++)
            worst = fmax(worst, fabs(losses[s] - expected[s]));
        g_test_message("%s: %.1e", text, worst);
        g_assert_cmpfloat(worst, <=, 1e-6);
    }
}

/* Singular values of what comes out are between 0.68 and 1.21 where those that come in are not tiny
 * [Jordan et al. 2024]: rows of the smaller side are nearly orthogonal. */
static void
test_muon_orthogonalises(void)
{
    enum {
        ROWS = 6,
        COLS = 10
    };
    g_autoptr(ExecBackend) backend = exec_backend_open("reference", 0, DTYPE_FP32, NULL);
    float x[ROWS * COLS], turned[ROWS * COLS], zeros[ROWS * COLS] = {0};

    for (int i = 0; i < ROWS * COLS; i++) {
        x[i] = (float)sin(7.3 * i * i + i);
        turned[i % COLS * ROWS + i / COLS] = x[i];
    }
    exec_muon_orthogonalise(backend, ROWS, COLS, x);
    exec_muon_orthogonalise(backend, COLS, ROWS, turned);
    exec_muon_orthogonalise(backend, ROWS, COLS, zeros);
    for (int i = 0; i < ROWS; i++) {
        double squares = 0;
        for (int j = 0; j < COLS; j++) {
            squares += (double)x[i * COLS + j] * (double)x[i * COLS + j];
            g_assert_cmpfloat_with_epsilon((double)x[i * COLS + j], (double)turned[j * ROWS + i],
                                           1e-5);
            g_assert_cmpfloat((double)zeros[i * COLS + j], ==, 0);
        }
        g_assert_cmpfloat(squares, >, 0.68 * 0.68);
        g_assert_cmpfloat(squares, <, 1.21 * 1.21);
    }
}

/* --- on a device, which nobody waits for --- */

static bool
late_gpu_or_skip(void)
{
    g_setenv("FAKE_CUDA", "async=1", TRUE);
    return emulated_gpu_or_skip();
}

/* One rank, whose factor never leaves the device, and several; state that is stepped by the host.
 */
static void
test_training_on_a_gpu(void)
{
    int n_clipped = 0;

    if (!late_gpu_or_skip())
        return;
    for (int variant = 0; variant < 3; variant++) {
        Combo c = combo_default();
        c.slices[0] = 6;
        c.dp = variant == 0 ? 1 : 2;
        c.n_micro_batches = 1;
        c.zero_stage = variant;
        c.offload = variant == 2 ? PLAN_OFFLOAD_CPU : PLAN_OFFLOAD_NONE;
        n_clipped += check_training(&c, "cuda", 2.5);
    }
    g_assert_cmpint(n_clipped, >, 3);
    g_assert_cmpint(n_clipped, <, 3 * N_STEPS);
}

/* How often a run of @n_steps copied to the host and waited for the device. */
static void
count_run(const Combo *c, int64_t n_steps, float clip_norm, int64_t *n_downloads, int64_t *n_waits)
{
    const ModelArch arch = combo_arch(c);
    g_autoptr(Plan) plan = combo_plan(c);
    g_autoptr(GError) error = NULL;
    g_auto(ExecRunResult) result = {0};
    ExecRunOptions options = combo_options(c, &arch, plan);
    const int64_t downloads = emulated_count("fake_n_downloads");
    const int64_t waits = emulated_count("fake_n_waits");

    options.n_steps = n_steps;
    options.verify = false;
    options.device = "cuda";
    options.clip_norm = clip_norm;
    g_assert_true(exec_run(&options, &result, &error));
    g_assert_no_error(error);
    *n_downloads = emulated_count("fake_n_downloads") - downloads;
    *n_waits = emulated_count("fake_n_waits") - waits;
}

/* A step's clipping copies one number to the host, whatever the model.  One rank alone waits for
 * nothing; of several each waits once, for what it gives to the others. */
static void
test_clipping_downloads_one_number(void)
{
    enum {
        N = 3
    };

    if (!late_gpu_or_skip())
        return;
    if (emulated_count("fake_n_waits") < 0) {
        g_test_skip("a real GPU does not count how often it is waited for");
        return;
    }
    for (int64_t n_ranks = 1; n_ranks <= 2; n_ranks++) {
        int64_t n_downloads[2], n_waits[2];
        Combo c = combo_default();
        c.slices[0] = 6;
        c.pp = n_ranks;
        for (int clips = 0; clips <= 1; clips++)
            count_run(&c, N, clips ? 1e-3f : 0, &n_downloads[clips], &n_waits[clips]);
        g_assert_cmpint(n_downloads[1] - n_downloads[0], ==, N * n_ranks);
        g_assert_cmpint(n_waits[1] - n_waits[0], ==, n_ranks == 1 ? 0 : N * n_ranks);
    }
}

/* One gradient of a rank that is alone is @value. */
static bool
step_with(const char *device, float value, GError **error)
{
    const Combo c = combo_default();
    const ModelArch arch = combo_arch(&c);
    g_autoptr(Plan) plan = combo_plan(&c);
    g_autoptr(GArray) none = g_array_new(false, false, sizeof(ExecSharedParameter));
    g_autoptr(ExecBackend) backend = exec_backend_open(device, 0, DTYPE_FP32, NULL);
    g_autoptr(ExecPool) pool = exec_pool_new(backend);
    g_autoptr(ExecModel) model = exec_model_new(
        &(ExecModelOptions){.arch = &arch, .plan = plan, .init_deviation = 0.2f, .optimizer = true},
        backend, pool, NULL);
    ExecShared shared = {.plan = plan, .n_ranks = 1, .o = combo_options(&c, &arch, plan)};
    ExecRankRecord record = {0};
    ExecRank rank = {
        .shared = &shared,
        .record = &record,
        .backend = backend,
        .model = model,
        .shared_parameters = none,
    };

    shared.o.clip_norm = 1;
    backend->ops->upload(backend, sizeof value, &value,
                         exec_model_gradients(model) + exec_model_parameter(model, 3)->offset);
    return exec_rank_optimize(&rank, error);
}

static void
test_a_gradient_that_is_not_finite_ends_the_run(void)
{
    static const char *const devices[] = {"reference", "cuda"};

    for (size_t i = 0; i < G_N_ELEMENTS(devices); i++) {
        if (i == 1 && !late_gpu_or_skip())
            return;
        for (int bad = 0; bad < 2; bad++) {
            g_autoptr(GError) error = NULL;
            g_assert_false(step_with(devices[i], bad == 0 ? NAN : INFINITY, &error));
            g_assert_error(error, EXEC_ERROR, EXEC_ERROR_FAILED);
            g_assert_cmpstr(error->message, ==,
                            "the gradient is not finite (learning rate too high?)");
        }
        g_assert_true(step_with(devices[i], 1e30f, NULL));
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/optimize/learning-rate", test_learning_rate);
    g_test_add_func("/executor/optimize/training-equals-plain-trainer",
                    test_training_equals_plain_trainer);
    g_test_add_func("/executor/optimize/muon-equals-plain-trainer", test_muon_equals_plain_trainer);
    g_test_add_func("/executor/optimize/muon-of-every-kind", test_muon_of_every_kind);
    g_test_add_func("/executor/optimize/muon-orthogonalises", test_muon_orthogonalises);
    g_test_add_func("/executor/optimize/training-on-a-gpu", test_training_on_a_gpu);
    g_test_add_func("/executor/optimize/clipping-downloads-one-number",
                    test_clipping_downloads_one_number);
    g_test_add_func("/executor/optimize/a-gradient-that-is-not-finite-ends-the-run",
                    test_a_gradient_that_is_not_finite_ends_the_run);
    return g_test_run();
}
