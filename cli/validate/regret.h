/*
 * cli/validate/regret.h - what choosing a split by prediction costs: the choice, not only the time.
 *
 * A job is a model on some devices with some batch, whatever splits it: rows of one source with the
 * same model, layers, devices, batch, sequence and number format.  Of a job that was measured in
 * several ways somebody who trusts the predictions runs the one that is predicted fastest; the
 * regret is its measured time over the best measured, less 1.
 *
 * Pure.
 */
#pragma once

#include "cli/validate/validation.h"

/* Jobs of fewer measured rows leave no choice worth the name. */
#define REGRET_MIN_ROWS 3

/* Returns: (owned) a text that is equal for the rows of one job. */
char *validation_job_name(const MeasuredRow *row);

typedef struct {
    size_t n_jobs, n_rows;
    double mean, worst; /* regrets; NaN without jobs */
    /* The mean over jobs of Spearman's rank correlation between predicted and measured times; equal
     * times share the mean of their ranks. */
    double correlation;
} ValidationRegret;

/* The regret over all jobs of @set (nullable: all rows) with at least REGRET_MIN_ROWS rows whose
 * time is both measured and predicted. */
ValidationRegret validation_regret(const GPtrArray *cases, const ValidationPrediction *predictions,
                                   const ValidationSet *set);

/* Spearman's correlation of @n pairs; NaN where one side is all equal.  @n >= 2. */
double validation_rank_correlation(const double *a, const double *b, size_t n);
