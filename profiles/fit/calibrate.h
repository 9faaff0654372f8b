/*
 * profiles/fit/calibrate.h - fits the named parameters of the cost model to measured runs.
 *
 * Knows parameters and residuals, not what predicts: the caller evaluates points, for many rows at
 * once and by as many threads as it likes.
 *
 * What is minimised, over the parameters that parameter.h lets be fitted,
 *
 *     sum over rows of huber(r / sigma) + sum over parameters of z^2 / 2
 *
 * r is a row's relative error, z a parameter's distance from its prior in spreads: maximum a
 * posteriori for errors of sigma and priors of one spread.  Huber's loss makes an outlier cost its
 * size and not its square.  How: Gauss-Newton with halving of steps, bounds by an active set.
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
#ifndef PROFILES_FIT_CALIBRATE_H
#define PROFILES_FIT_CALIBRATE_H

#include "profiles/parameter.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

G_BEGIN_DECLS

/* Steps to a spread, and how many spreads a parameter may leave its prior. */
#define PROFILE_CALIBRATE_GRID 256
#define PROFILE_CALIBRATE_MAX_SPREADS 4
/* Relative error of one row that the model does not explain: published times have two to four
 * digits, and repeated runs differ by 2 to 8 %. */
#define PROFILE_CALIBRATE_SIGMA 0.02

/* A point: how many steps of the grid each parameter is from its prior. */
typedef struct {
    int32_t step[PROFILE_PARAMETERS_N];
} ProfilePoint;

/*
 * The parameters of @point around @prior, within their bounds: prior (1 + spread step / grid) where
 * min > 0, else prior + spread step / grid.
 */
ProfileParameters profile_point_parameters(const ProfilePoint *point,
                                           const ProfileParameters *prior);

/*
 * Residuals of all rows at @n points: @residuals[p * n_rows + i] is the relative error of row i, 0
 * where nothing can be said.
 */
typedef void (*ProfileResidualFunc)(const ProfilePoint *points, size_t n, double *residuals,
                                    void *user_data);

typedef struct {
    size_t n_rows;
    const bool *in_training; /* (borrowed, nullable: all) by row */
    ProfileFit fit;          /* which parameters: TIME or MEMORY */
    ProfileResidualFunc residuals;
    void *user_data;
    /* (borrowed, nullable) room of the first Jacobian, (1 + PROFILE_PARAMETERS_N) * n_rows, which
     * does not depend on in_training: several fits of the same rows compute it once. */
    double *first;
    bool *has_first;
} ProfileCalibration;

typedef struct {
    ProfilePoint point;
    bool fitted[PROFILE_PARAMETERS_N];   /* the rows say something about it */
    double spread[PROFILE_PARAMETERS_N]; /* one standard deviation left, in spreads of the prior */
    double objective_before, objective;
    int n_iterations;
} ProfileCalibrated;

/* Cost: some ten evaluations of all rows for each parameter that matters. */
ProfileCalibrated profile_calibrate(const ProfileCalibration *calibration);

/* --- shares of rows, by a hash of their names: a row's share depends on no other row --- */

/* In [0, 1). */
double profile_row_share(const char *id);

/* A seeded bootstrap's @quantile (0 to 1) of the mean of @values; 0 without any. */
double profile_bootstrap_mean(const double *values, size_t n, double quantile);

G_END_DECLS

#endif /* PROFILES_FIT_CALIBRATE_H */
