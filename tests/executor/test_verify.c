/* Tests of executor/run/verify.h: the distance of two tensors, by its formula, and which tensors are compared. */
#include "executor/run/verify.h"

#include <glib/gstdio.h>
#include <math.h>
#include <unistd.h>

#include "tests/executor/job.h"

/* |actual - expected| over |expected|; over the floor's norm where that is larger; 0 of equal ones. */
static void
test_relative_error(void)
{
    static const float threes[] = {3, 4}, off[] = {3, 4.5F}, opposite[] = {-3, -4}, zero[2] = {0};
    static const float wild[] = {3, NAN}, endless[] = {3, INFINITY};

    g_assert_cmpfloat(exec_relative_error(threes, threes, 2, 0), ==, 0);
    g_assert_cmpfloat_with_epsilon(exec_relative_error(off, threes, 2, 0), 0.5 / 5, 1e-12);
    g_assert_cmpfloat_with_epsilon(exec_relative_error(opposite, threes, 2, 0), 2, 1e-12);
    g_assert_cmpfloat_with_epsilon(exec_relative_error(zero, threes, 2, 0), 1, 1e-12);
    /* 5 / (1e-3 * 1e5 * sqrt(2)) */
    g_assert_cmpfloat_with_epsilon(exec_relative_error(zero, threes, 2, 1e5),
                                   5 / (EXEC_VERIFY_FLOOR * 1e5 * sqrt(2)), 1e-12);
    g_assert_cmpfloat_with_epsilon(exec_relative_error(threes, zero, 2, 1),
                                   5 / (EXEC_VERIFY_FLOOR * sqrt(2)), 1e-9);
    g_assert_true(isinf(exec_relative_error(threes, zero, 2, 0)));
    g_assert_true(isinf(exec_relative_error(wild, threes, 2, 1)));
    g_assert_true(isinf(exec_relative_error(endless, threes, 2, 1)));
    g_assert_cmpfloat(exec_relative_error(NULL, NULL, 0, 1), ==, 0);
}

/* A run of two ranks that both have the whole model, with the gradients of the reference. */
typedef struct {
    ModelArch arch;
    Plan *plan;
    ExecData *data;
    ExecReference reference;
    ExecRankRecord records[2];
    double loss;
    ExecShared shared;
} Run;

static Run *
run_new(float deviation)
{
    Run *run = g_new0(Run, 1);
    GError *error = NULL;

    run->arch = model(false);
    run->arch.n_layers = 1;
    run->plan = plan_of(&(Job){"gpipe", 1, 1, 1, 1, 2, "6", SCHEDULE_PLACEMENT_LOOP}, 1);
    run->data = exec_data_open(NULL, run->arch.vocab, 6, 1, 7, &error);
    g_assert_no_error(error);
    exec_reference_init(&run->reference,
                        &(ExecReferenceOptions){.arch = &run->arch,
                                                .global_batch = 2,
                                                .seq_len = 6,
                                                .device = "reference",
                                                .seed = 7,
                                                .init_deviation = deviation},
                        &error);
    g_assert_no_error(error);
    exec_reference_step(&run->reference, run->data, 0, &error);
    g_assert_no_error(error);
    run->loss = run->reference.loss;
    for (int rank = 0; rank < 2; rank++) {
        const ExecModel *whole = run->reference.model;
        GArray *parameters = g_array_new(FALSE, FALSE, sizeof(ExecParameter));
        int64_t n = 0;

        for (guint i = 0; i < exec_model_n_parameters(whole); i++) {
            g_array_append_val(parameters, *exec_model_parameter(whole, i));
            n = MAX(n, exec_model_parameter(whole, i)->offset + exec_model_parameter(whole, i)->n);
        }
        run->records[rank] = (ExecRankRecord){
            .gradients = g_memdup2(exec_model_gradients(whole), (size_t)n * sizeof(float)),
            .parameters = parameters,
        };
    }
    run->shared = (ExecShared){
        .arch = &run->arch,
        .plan = run->plan,
        .data = run->data,
        .o = {.seed = 7, .init_deviation = deviation, .verify_tolerance = 1e-5},
        .n_ranks = 2,
        .records = run->records,
    };
    return run;
}

static void
run_free(Run *run)
{
    for (int rank = 0; rank < 2; rank++) {
        g_free(run->records[rank].gradients);
        g_array_unref(run->records[rank].parameters);
    }
    exec_reference_clear(&run->reference);
    exec_data_free(run->data);
    plan_free(run->plan);
    g_free(run);
}
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Run, run_free)

/* Verifies, and asserts which tensor is the worst (NULL: all are equal). */
static void
assert_worst(Run *run, const char *tensor, int rank, double e)
{
    ExecRunResult result = {.losses = &run->loss};
    g_autofree char *name = NULL;
    GError *error = NULL;

    g_assert_true(exec_verify(&run->shared, &result, &error));
    g_assert_no_error(error);
    g_assert_true(result.verified && result.passed == (tensor == NULL));
    if (tensor != NULL) {
        name = g_strdup_printf("%s on rank %d", tensor, rank);
        g_assert_cmpstr(result.worst_tensor, ==, name);
    }
    g_assert_true(fabs(result.max_gradient_error - e) <= 1e-5 * e);
    g_free(result.worst_tensor);
}

static double
sum_of_squares(const float *values, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += (double)values[i] * (double)values[i];
    return sum;
}

static double
rms_of_all(const Run *run)
{
    const GArray *parameters = run->records[0].parameters;
    double squares = 0, n = 0;

    for (guint i = 0; i < parameters->len; i++) {
        const ExecParameter *p = &g_array_index(parameters, ExecParameter, i);

        squares += sum_of_squares(run->records[0].gradients + p->offset, p->n);
        n += (double)p->n;
    }
    return sqrt(squares / n);
}

/* Every tensor of every rank is compared: one element that is 1 too large is found in each, and is as far off
 * as the norm of the tensor says, or that of the floor: of weights near 0 most gradients are below it. */
static void
test_every_tensor(void)
{
    static const float deviations[] = {0, 1e-4F};
    int n_below = 0;

    for (size_t k = 0; k < G_N_ELEMENTS(deviations); k++) {
        g_autoptr(Run) run = run_new(deviations[k]);
        const GArray *parameters = run->records[0].parameters;
        const double rms = rms_of_all(run);

        g_assert_cmpuint(parameters->len, >, 10);
        assert_worst(run, NULL, 0, 0);
        for (guint i = 0; i < 2 * parameters->len; i++) {
            const int rank = i < parameters->len ? 0 : 1;
            const ExecParameter *p = &g_array_index(parameters, ExecParameter, i % parameters->len);
            float *values = run->records[rank].gradients + p->offset;
            const double norm = sqrt(sum_of_squares(values, p->n));
            const double floor = EXEC_VERIFY_FLOOR * rms * sqrt((double)p->n);
            const float right = values[p->n - 1];

            n_below += norm < floor;
            values[p->n - 1] += 1;
            assert_worst(run, p->name, rank, 1 / MAX(norm, floor));
            values[p->n - 1] = right;
        }
    }
    g_assert_cmpint(n_below, >, 4);
}

/* A rank may hold one element alone, in which rows cancel: of a vector it is measured by the root mean square of
 * the whole vector, of a matrix by itself or the floor. */
static void
test_one_element(void)
{
    g_autoptr(Run) run = run_new(0);
    const double rms = rms_of_all(run);
    ExecParameter *p;

    run->shared.n_ranks = 1;
    for (guint i = 0; i < run->records[1].parameters->len; i++) {
        /* the smallest element that is not 0 */
        int64_t smallest = -1;
        const ExecParameter *whole = &g_array_index(run->records[1].parameters, ExecParameter, i);
        const float *values = run->records[1].gradients + whole->offset;

        for (int64_t j = 0; j < whole->n; j++) {
            if (values[j] != 0 && (smallest < 0 || fabsf(values[j]) < fabsf(values[smallest])))
                smallest = j;
        }
        g_assert_cmpint(smallest, >=, 0);
        g_array_set_size(run->records[0].parameters, 0);
        g_array_append_val(run->records[0].parameters, *whole);
        p = &g_array_index(run->records[0].parameters, ExecParameter, 0);
        p->n = 1;
        p->offset = 0;
        p->shard.row_begin = smallest / whole->shard.cols;
        p->shard.n_rows = 1;
        p->shard.runs[0].begin = smallest % whole->shard.cols;
        p->shard.runs[0].n = 1;
        run->records[0].gradients[0] = values[smallest] + 1;
        const double alone = MAX(fabs((double)values[smallest]), EXEC_VERIFY_FLOOR * rms);
        const double vector = sqrt(sum_of_squares(values, whole->n) / (double)whole->n);
        assert_worst(run, p->name, 0, 1 / (p->shard.rows == 1 ? MAX(alone, vector) : alone));
    }
}

/* Makes the gradient of the first or last tensor of @rank @times as large: off by times - 1. */
static void
scale(Run *run, int rank, bool first, float times)
{
    const GArray *parameters = run->records[rank].parameters;
    const ExecParameter *p =
        &g_array_index(parameters, ExecParameter, first ? 0 : parameters->len - 1);

    for (int64_t i = 0; i < p->n; i++)
        run->records[rank].gradients[p->offset + i] *= times;
}

/* Of several wrong ones the worst is named, wherever it stands. */
static void
test_worst(void)
{
    for (int order = 0; order < 4; order++) {
        g_autoptr(Run) run = run_new(0);
        const bool worst_first = order & 1;
        const int worst_rank = order >> 1;
        const GArray *parameters = run->records[0].parameters;

        scale(run, worst_rank, worst_first, 3);
        scale(run, worst_rank, !worst_first, 2);
        scale(run, 1 - worst_rank, false, 2.5F);
        assert_worst(
            run,
            g_array_index(parameters, ExecParameter, worst_first ? 0 : parameters->len - 1).name,
            worst_rank, 2);
    }
}

/* Gradients may be right, and the loss wrong. */
static void
test_loss(void)
{
    g_autoptr(Run) run = run_new(0);

    for (int side = -1; side <= 1; side += 2) {
        ExecRunResult result = {.losses = &run->loss};

        run->loss = run->reference.loss * (1 + 0.9e-5 * side);
        g_assert_true(exec_verify(&run->shared, &result, NULL) && result.passed);
        run->loss = run->reference.loss * (1 + 1.1e-5 * side);
        g_free(g_steal_pointer(&result.worst_tensor));
        g_assert_true(exec_verify(&run->shared, &result, NULL) && !result.passed);
        g_assert_cmpfloat(result.reference_loss, ==, run->reference.loss);
        g_free(result.worst_tensor);
    }
}

/* Data that cannot be read any more is an error, and verifies nothing. */
static void
test_no_reference(void)
{
    g_autoptr(Run) run = run_new(0);
    ExecRunResult result = {.losses = &run->loss};
    g_autoptr(GError) error = NULL;
    g_autofree char *bytes = g_strnfill(100, 'x'), *path = NULL;
    const int fd = g_file_open_tmp("verify-XXXXXX", &path, &error);

    g_assert_no_error(error);
    g_assert_cmpint(write(fd, bytes, 100), ==, 100);
    exec_data_free(run->data);
    run->shared.data = run->data = exec_data_open(path, run->arch.vocab, 6, 1, 7, &error);
    g_assert_no_error(error);
    g_assert_cmpint(ftruncate(fd, 5), ==, 0);
    g_assert_false(exec_verify(&run->shared, &result, &error));
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_DATA);
    g_assert_false(result.verified);
    close(fd);
    g_unlink(path);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/verify/relative-error", test_relative_error);
    g_test_add_func("/executor/verify/every-tensor", test_every_tensor);
    g_test_add_func("/executor/verify/one-element", test_one_element);
    g_test_add_func("/executor/verify/worst", test_worst);
    g_test_add_func("/executor/verify/loss", test_loss);
    g_test_add_func("/executor/verify/no-reference", test_no_reference);
    return g_test_run();
}
