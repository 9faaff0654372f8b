#include "cli/validate/calibration.h"

#include "base/order.h"
#include "base/parallel.h"
#include "base/random.h"
#include "base/real.h"
#include "profiles/fit/likeness.h"

#include <math.h>
#include <string.h>

/* --- residuals --- */

/* A case at all points. */
typedef struct {
    const ValidationCase *one;
    ValidationQuantity quantity;
    const ProfilePoint *points; /* of its machine, @n_machines apart */
    size_t n_points, n_machines;
    double *residuals; /* one for each point, @stride apart */
    size_t stride;
} Work;

static void
evaluate_case(int64_t i, void *user_data)
{
    const Work *work = (const Work *)user_data + i;

    for (size_t p = 0; p < work->n_points; p++) {
        const ProfileParameters parameters = profile_point_parameters(
            &work->points[p * work->n_machines], &work->one->job->profile->parameters);
        const double residual = validation_residual(work->one, work->quantity, &parameters);

        work->residuals[p * work->stride] = isfinite(residual) ? residual : 0.0;
    }
}

/* A ProfileResidualFunc. */
static void
evaluate(const ProfilePoint *points, size_t n, double *residuals, void *user_data)
{
    const Calibration *calibration = user_data;
    const GPtrArray *cases = calibration->cases;
    g_autofree Work *work = g_new(Work, MAX(1, cases->len));

    for (guint i = 0; i < cases->len; i++)
        work[i] = (Work){cases->pdata[i],
                         calibration->quantity,
                         points + calibration->machine[i],
                         n,
                         (size_t)MAX(1, calibration->n_machines),
                         &residuals[i],
                         cases->len};
    parallel_each(cases->len, calibration->n_threads, evaluate_case, work);
}

/* --- rows --- */

static const char *
cluster_of(const Calibration *calibration, guint i)
{
    return ((const ValidationCase *)calibration->cases->pdata[i])->job->profile->cluster->name;
}

/* Numbers the clusters of the cases. */
static void
set_machines(Calibration *calibration)
{
    const guint n = calibration->cases->len;
    guint firsts[PROFILE_CALIBRATE_MAX_MACHINES]; /* a case of each */

    calibration->machine = g_new(int, MAX(1, n));
    for (guint i = 0; i < n; i++) {
        int m = 0;

        while (m < calibration->n_machines &&
               strcmp(cluster_of(calibration, firsts[m]), cluster_of(calibration, i)) != 0)
            m++;
        if (m == calibration->n_machines && m < PROFILE_CALIBRATE_MAX_MACHINES)
            firsts[calibration->n_machines++] = i;
        calibration->machine[i] = MIN(m, PROFILE_CALIBRATE_MAX_MACHINES - 1);
    }
}

void
calibration_init(Calibration *calibration, const GPtrArray *all, const ValidationSet *set,
                 ValidationQuantity quantity, int64_t n_threads)
{
    *calibration =
        (Calibration){.cases = g_ptr_array_new(), .quantity = quantity, .n_threads = n_threads};
    for (guint i = 0; i < all->len; i++) {
        ValidationCase *one = all->pdata[i];

        if (one->job != NULL && validation_has_quantity(one->row, quantity) &&
            (set == NULL || validation_set_has(set, one->row)) &&
            isfinite(validation_residual(one, quantity, NULL)))
            g_ptr_array_add(calibration->cases, one);
    }
    set_machines(calibration);
}

void
calibration_clear(Calibration *calibration)
{
    g_clear_pointer(&calibration->cases, g_ptr_array_unref);
    g_clear_pointer(&calibration->machine, g_free);
}

/* --- fits --- */

static ProfileCalibration
problem_of(const Calibration *calibration, const bool *in_training)
{
    return (ProfileCalibration){
        .n_rows = calibration->cases->len,
        .in_training = in_training,
        .machine = calibration->machine,
        .n_machines = calibration->n_machines,
        .fit = calibration->quantity == VALIDATION_TIME ? PROFILE_FIT_TIME : PROFILE_FIT_MEMORY,
        /* Rows that are told right have no error, and so no derivative by which it could be chosen. */
        .sigma = calibration->quantity == VALIDATION_OOM ? PROFILE_CALIBRATE_SIGMA : 0.0,
        .residuals = evaluate,
        .user_data = (void *)calibration,
    };
}

ProfileCalibrated
calibration_fit(const Calibration *calibration, const bool *in_training)
{
    const ProfileCalibration problem = problem_of(calibration, in_training);

    return profile_calibrate(&problem);
}

double *
calibration_errors(const Calibration *calibration, const ProfilePoint *point)
{
    double *errors = g_new0(double, MAX(1, calibration->cases->len));

    evaluate(point, 1, errors, (void *)calibration);
    return errors;
}

/* --- rows that are alike --- */

/* What the rows of tables differ in: model, machine, split and kernels. */
static ProfileLikeness
likeness_of(const ValidationCase *one)
{
    const Plan *plan = one->job->plan;
    const PlanDegrees *degrees = &plan->degrees;
    const PlanConventions *conventions = &plan->conventions;
    const ModelArch *arch = one->job->arch;
    const PlanStage *stage = &g_array_index(plan->stages, PlanStage, 0);
    const double numbers[] = {
        (double)model_cluster_n_devices(one->job->profile->cluster),
        (double)arch->hidden,
        (double)arch->n_layers,
        (double)plan->seq_len,
        (double)plan->global_batch,
        (double)plan->micro_batch,
        (double)degrees->dp,
        (double)degrees->tp,
        (double)degrees->pp,
        (double)degrees->vpp,
        (double)degrees->cp,
        (double)degrees->ep,
        (double)plan->slices->len,
    };
    const uint64_t words[] = {
        random_hash(one->job->profile->cluster->name),
        random_hash(plan->schedule),
        (uint64_t)plan->dtype,
        (uint64_t)stage->recompute,
        (uint64_t)plan->zero_stage,
        (uint64_t)conventions->framework,
        (uint64_t)conventions->attention,
        (uint64_t)conventions->kernels,
        (uint64_t)conventions->dispatcher,
        (uint64_t)conventions->cuda_graphs,
        (uint64_t)conventions->overlap_ep,
    };
    ProfileLikeness likeness;

    G_STATIC_ASSERT(sizeof numbers == sizeof likeness.numbers &&
                    sizeof words == sizeof likeness.words);
    memcpy(likeness.numbers, numbers, sizeof numbers);
    memcpy(likeness.words, words, sizeof words);
    return likeness;
}

/* Returns: (owned) */
static ProfileLikeness *
likenesses(const GPtrArray *cases)
{
    ProfileLikeness *rows = g_new(ProfileLikeness, MAX(1, cases->len));

    for (guint i = 0; i < cases->len; i++)
        rows[i] = likeness_of(cases->pdata[i]);
    return rows;
}

/* Returns: (owned) @errors when every prediction is divided by 1 + the error to be expected of it. */
static double *
errors_less_expected(const ProfileLikeness *rows, size_t n, const bool *in_training,
                     const double *errors)
{
    double *left = g_new(double, MAX(1, n));

    profile_likeness_expect(rows, n, in_training, errors, left);
    for (size_t i = 0; i < n; i++) /* a time stays one */
        left[i] = (1.0 + errors[i]) / real_max(0.1, 1.0 + left[i]) - 1.0;
    return left;
}

/* --- folds --- */

void
calibration_folds_clear(CalibrationFolds *folds)
{
    g_clear_pointer(&folds->cases, g_ptr_array_unref);
    g_clear_pointer(&folds->errors, g_free);
}

/* How well the rows of one fold are told to run out of memory. */
static ValidationOom
oom_of_fold(const Calibration *calibration, const double *errors, const bool *in_training)
{
    ValidationOom oom = {0};

    for (guint i = 0; i < calibration->cases->len; i++) {
        const ValidationCase *one = calibration->cases->pdata[i];
        const bool happened = one->row->status == MEASURED_STATUS_OOM;
        /* Residuals of this kind are not 0 exactly where the prediction is wrong. */
        const bool predicted = happened == (errors[i] == 0.0);

        if (in_training[i])
            continue;
        oom.n_oom += happened;
        oom.n_predicted += predicted;
        oom.n_right += happened && predicted;
    }
    oom.precision = (double)oom.n_right / (double)oom.n_predicted;
    oom.recall = (double)oom.n_right / (double)oom.n_oom;
    return oom;
}

/* The median of the finite numbers among those that lie @offset bytes into each score. */
static double
median_over(const ValidationOom *scores, int64_t n, size_t offset)
{
    double values[CALIBRATION_MAX_FOLDS];
    size_t n_values = 0;

    for (int64_t i = 0; i < n; i++) {
        const double value = *(const double *)(const void *)((const char *)&scores[i] + offset);

        if (isfinite(value))
            values[n_values++] = value;
    }
    if (n_values == 0)
        return NAN;
    qsort(values, n_values, sizeof *values, order_doubles);
    return (values[(n_values - 1) / 2] + values[n_values / 2]) / 2.0;
}

/* The errors of the rows that some fit has not seen: as many rows, and each as often, as without a fit. */
static ValidationErrors
errors_of_held_out(const double *errors, size_t n)
{
    g_autofree double *held_out = g_new(double, MAX(1, n));
    size_t n_held_out = 0;

    for (size_t i = 0; i < n; i++) {
        if (isfinite(errors[i]))
            held_out[n_held_out++] = errors[i];
    }
    return validation_errors(held_out, n_held_out);
}

CalibrationFolds
calibration_cross_validate(const Calibration *calibration, int64_t n_folds)
{
    const guint n = calibration->cases->len;
    g_autofree bool *in_training = g_new(bool, MAX(1, n));
    g_autofree double *first = g_new(double, (1 + PROFILE_PARAMETERS_N) * (size_t)n + 1);
    bool has_first = false;
    g_autofree ProfileLikeness *rows = likenesses(calibration->cases);
    g_autofree double *alike = g_new(double, MAX(1, n)); /* what is left of each row's error */
    ValidationOom scores[CALIBRATION_MAX_FOLDS];
    CalibrationFolds folds = {0};

    g_return_val_if_fail(n_folds >= 2 && n_folds <= CALIBRATION_MAX_FOLDS, folds);

    folds.cases = g_ptr_array_ref(calibration->cases);
    folds.errors = g_new(double, MAX(1, n));
    for (guint i = 0; i < n; i++)
        folds.errors[i] = alike[i] = NAN;
    for (int64_t f = 0; f < n_folds; f++) {
        ProfileCalibration problem = problem_of(calibration, in_training);
        guint n_held_out = 0;

        for (guint i = 0; i < n; i++) {
            const ValidationCase *one = calibration->cases->pdata[i];
            const double share = profile_row_share(one->row->id);

            in_training[i] = (n <= n_folds ? (int64_t)i : (int64_t)(share * (double)n_folds)) != f;
            n_held_out += !in_training[i];
        }
        if (n_held_out == 0 || n_held_out == n)
            continue;
        problem.first = first;
        problem.has_first = &has_first;
        ProfileCalibrated fitted = profile_calibrate(&problem);
        g_autofree double *errors = calibration_errors(calibration, fitted.point);
        g_autofree double *left = errors_less_expected(rows, n, in_training, errors);
        scores[folds.n_folds++] = oom_of_fold(calibration, errors, in_training);
        for (guint i = 0; i < n; i++) {
            if (in_training[i])
                continue;
            folds.errors[i] = errors[i];
            alike[i] = left[i];
        }
    }
    folds.held_out = errors_of_held_out(folds.errors, n);
    folds.alike = errors_of_held_out(alike, n);
    folds.precision = median_over(scores, folds.n_folds, offsetof(ValidationOom, precision));
    folds.recall = median_over(scores, folds.n_folds, offsetof(ValidationOom, recall));
    return folds;
}
