#include "cli/validate/regret.h"

#include <math.h>

#include "cli/request/output.h"

char *
validation_job_name(const MeasuredRow *row)
{
    return g_strdup_printf("%s|%s|" INT "|%s|" INT "|" INT "|" INT "|%s", row->source, row->gpu,
                           row->n_devices, row->model, row->n_layers, row->global_batch,
                           row->seq_len, row->dtype);
}

/* The rank of @values[i], from 0: how many are less, and half of the others that are equal. */
static double
rank_of(const double *values, size_t n, size_t i)
{
    double rank = -0.5;

    for (size_t j = 0; j < n; j++)
        rank += values[j] < values[i] ? 1.0 : values[j] == values[i] ? 0.5 : 0.0;
    return rank;
}

double
validation_rank_correlation(const double *a, const double *b, size_t n)
{
    const double mean = ((double)n - 1.0) / 2.0;
    double ab = 0.0, aa = 0.0, bb = 0.0;

    for (size_t i = 0; i < n; i++) {
        const double x = rank_of(a, n, i) - mean, y = rank_of(b, n, i) - mean;

        ab += x * y;
        aa += x * x;
        bb += y * y;
    }
    return aa > 0.0 && bb > 0.0 ? ab / sqrt(aa * bb) : NAN;
}

/* The measured and predicted times of a job's rows. */
typedef struct {
    GArray *measured, *predicted; /* of double */
} Times;

static void
times_free(void *data)
{
    Times *times = data;

    g_array_unref(times->measured);
    g_array_unref(times->predicted);
    g_free(times);
}

/* Measured time of the row that is predicted fastest over the best, less 1. */
static double
regret_of(const double *measured, const double *predicted, size_t n)
{
    size_t chosen = 0;
    double best = measured[0];

    for (size_t i = 1; i < n; i++) {
        if (predicted[i] < predicted[chosen])
            chosen = i;
        best = fmin(best, measured[i]);
    }
    return measured[chosen] / best - 1.0;
}

ValidationRegret
validation_regret(const GPtrArray *cases, const ValidationPrediction *predictions,
                  const ValidationSet *set)
{
    g_autoptr(GHashTable) jobs = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, times_free);
    g_autoptr(GPtrArray) order = g_ptr_array_new(); /* of Times, by first appearance */
    ValidationRegret regret = {0, 0, 0.0, 0.0, 0.0};
    size_t n_ranked = 0;

    for (guint i = 0; i < cases->len; i++) {
        const ValidationCase *one = cases->pdata[i];
        const double error = validation_error_of(VALIDATION_TIME, one->row, &predictions[i]);

        if (!isfinite(error) || (set != NULL && !validation_set_has(set, one->row)))
            continue;
        char *name = validation_job_name(one->row);
        Times *times = g_hash_table_lookup(jobs, name);
        if (times == NULL) {
            times = g_new0(Times, 1);
            times->measured = g_array_new(FALSE, FALSE, sizeof(double));
            times->predicted = g_array_new(FALSE, FALSE, sizeof(double));
            g_ptr_array_add(order, times);
            g_hash_table_insert(jobs, name, times);
        } else {
            g_free(name);
        }
        g_array_append_val(times->measured, one->row->iteration_s);
        g_array_append_val(times->predicted, predictions[i].iteration_s);
    }
    for (guint i = 0; i < order->len; i++) {
        const Times *times = order->pdata[i];
        const double *measured = &g_array_index(times->measured, double, 0);
        const double *predicted = &g_array_index(times->predicted, double, 0);
        const size_t n = times->measured->len;

        if (n < REGRET_MIN_ROWS)
            continue;
        const double one = regret_of(measured, predicted, n);
        const double correlation = validation_rank_correlation(measured, predicted, n);
        regret.n_jobs++;
        regret.n_rows += n;
        regret.mean += one;
        regret.worst = fmax(regret.worst, one);
        if (isfinite(correlation)) {
            regret.correlation += correlation;
            n_ranked++;
        }
    }
    regret.mean /= (double)regret.n_jobs;
    regret.correlation /= (double)n_ranked;
    if (regret.n_jobs == 0)
        regret.worst = NAN;
    return regret;
}
