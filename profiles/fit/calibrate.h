/*
 * profiles/fit/calibrate.h - fits the parameters of the cost model to measured rows.
 *
 * The room profiles/fit/ knows parameters and residuals, but nothing that predicts: the caller
 * computes the residuals of many rows at a point, by as many threads as it likes.  `degas
 * calibrate` fits to measured iterations, and importers fit to measured kernels.
 *
 * What is minimised, over the parameters that parameter.h lets be fitted,
 *
 *     sum over rows of huber(r / sigma) + sum over parameters of z^2 / 2
 *
 * where r is the relative error of a row and z the distance of a parameter from its prior in
 * spreads: the maximum a posteriori for errors of sigma and priors of one spread.  Rows of several
 * machines have a distance for each machine; those of two machines are correlated by
 * PROFILE_CALIBRATE_ALIKE, since both show what the model lacks, and each what it is itself.  With Huber's
 * loss an outlier costs its size and not its square.  The method is Gauss-Newton with damped steps
 * [marquardt1963];
 * an active set keeps the bounds.
 *
 * Sigma is what no parameter can explain of a row's error.  It is chosen among PROFILE_CALIBRATE_SIGMA times 1, 2, 4,
 * 8, 16 and infinity, with which the prior is kept: the one with which fits to nine tenths of the rows predict
 * the other tenth best, by first derivatives at the prior, or the largest that is no more than half a standard error
 * worse.  So rows that say nothing about rows like themselves move nothing (cost-model.md 4, Fits).
 *
 * Bit-reproducible on any processor, because
 * - a parameter is not a real number but a step of a fixed grid, PROFILE_CALIBRATE_GRID to a
 * spread, and value(step) is two roundings of + and *: what is compared, kept and written is an
 * integer;
 * - only + - * / and sqrt are used, which IEEE 754 rounds exactly; no exp, log or pow, whose last
 *   bit depends on the processor that the C library finds;
 * - sums run over rows in their order, whatever threads evaluated them;
 * - predictions are integers of nanoseconds and bytes before they come here.
 *
 * Thread-safety: pure but for the caller's function.
 */
#pragma once

#include "profiles/parameter.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Steps to a spread, and how many spreads a parameter may leave its prior. */
#define PROFILE_CALIBRATE_GRID 256
#define PROFILE_CALIBRATE_MAX_SPREADS 4
/* The least relative error of a row that no model can explain: published times have two to four digits,
 * and repeated runs differ by 2 to 8 %. */
#define PROFILE_CALIBRATE_SIGMA 0.02

/* Machines that rows may be of, and how their parameters' distances from the priors are correlated: as much of the
 * variance is the machine's own as is common to all (cost-model.md 4, Fits). */
#define PROFILE_CALIBRATE_MAX_MACHINES 8
#define PROFILE_CALIBRATE_ALIKE 0.5

/* How many steps of the grid each parameter is away from its prior. */
typedef struct {
    int32_t step[PROFILE_PARAMETERS_N];
} ProfilePoint;

/* The parameters of @point around @prior, within their bounds: prior (1 + spread step / grid) where
 * min > 0, else prior + spread step / grid. */
ProfileParameters profile_point_parameters(const ProfilePoint *point,
                                           const ProfileParameters *prior);

/* Residuals of all rows at @n points, of which each is one of every machine, one machine's behind another's:
 * @residuals[p * n_rows + i] is the relative error of row i at the p-th point of its machine, 0 where nothing can be
 * said. */
typedef void (*ProfileResidualFunc)(const ProfilePoint *points, size_t n, double *residuals,
                                    void *user_data);

typedef struct {
    size_t n_rows;
    const bool *in_training; /* (borrowed, nullable) [row] whether it is fitted to; NULL: all are */
    /* (borrowed, nullable) [row] of which machine it is, below n_machines; NULL: all are of one */
    const int *machine;
    int n_machines; /* at most PROFILE_CALIBRATE_MAX_MACHINES; 0: one */
    ProfileFit fit; /* which parameters: TIME or MEMORY */
    double sigma;   /* 0: it is chosen */
    ProfileResidualFunc residuals;
    void *user_data;
    /* (borrowed, nullable) Room for the first Jacobian, (1 + PROFILE_PARAMETERS_N) * n_rows
     * numbers. It does not depend on in_training, so that several fits of the same rows share it;
     * *has_first says whether it is there. */
    double *first;
    bool *has_first;
} ProfileCalibration;

typedef struct {
    ProfilePoint point[PROFILE_CALIBRATE_MAX_MACHINES]; /* of each machine */
    bool fitted
        [PROFILE_PARAMETERS_N]; /* the rows say something about it, also about rows like them */
    /* One standard deviation left, in spreads of the prior, of each machine. */
    double spread[PROFILE_CALIBRATE_MAX_MACHINES][PROFILE_PARAMETERS_N];
    double sigma;                       /* chosen; INFINITY: no parameter was moved */
    double objective_before, objective; /* with that sigma */
    int n_iterations;
} ProfileCalibrated;

/* Cost: some ten evaluations of all rows for each parameter that matters. */
ProfileCalibrated profile_calibrate(const ProfileCalibration *calibration);

/* A number in [0, 1) made from the name of a row alone, by which rows are put into folds. */
double profile_row_share(const char *id);

/* The @quantile (0 to 1) of the mean of @values in a seeded bootstrap; 0 without values. */
double profile_bootstrap_mean(const double *values, size_t n, double quantile);
