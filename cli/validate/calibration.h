/*
 * cli/validate/calibration.h - fits the parameters of a profile to measured rows, and says how
 * right the result is on rows that it has not seen.
 *
 * Connects profiles/fit/calibrate.h with the simulator: a row's residual is the relative error of
 * its prediction; of a row that tells only whether it ran out of memory, how far the predicted peak
 * is on the wrong side of the limit.  All rows share one point of parameters: the same distance
 * from each cluster's own prior.
 *
 * Deterministic: rows are predicted by several threads, but each into its own place.
 */
#ifndef CLI_VALIDATE_CALIBRATION_H
#define CLI_VALIDATE_CALIBRATION_H

#include "cli/validate/validation.h"
#include "profiles/fit/calibrate.h"

G_BEGIN_DECLS

/* Rows to fit, with what is known of each. */
typedef struct {
    GPtrArray *cases;            /* of (borrowed) ValidationCase */
    ValidationQuantity quantity; /* the same of all */
    int64_t n_threads;
} Calibration;

/* Those cases of @all that can be predicted and have @quantity; @set (nullable) has them. */
void calibration_init(Calibration *calibration, const GPtrArray *all, const ValidationSet *set,
                      ValidationQuantity quantity, int64_t n_threads);
void calibration_clear(Calibration *calibration);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Calibration, calibration_clear)

/* @in_training  (nullable: all) by row. */
ProfileCalibrated calibration_fit(const Calibration *calibration, const bool *in_training);

/* Signed relative errors of all rows at @point: (owned). */
double *calibration_errors(const Calibration *calibration, const ProfilePoint *point);

/* Errors on held-out parts of the rows, each predicted by a fit to the others. */
typedef struct {
    int64_t n_folds;          /* that have rows */
    ValidationErrors median;  /* medians over the folds of each number; n: rows of all */
    double precision, recall; /* the same, for VALIDATION_OOM */
    GPtrArray *cases;         /* (owned) the rows */
    double *errors;           /* (owned) of each row, by the fit that has not seen it; NaN: none */
} CalibrationFolds;

void calibration_folds_clear(CalibrationFolds *folds);

#define CALIBRATION_MAX_FOLDS 20

/* A row's fold follows from its id alone.  Below @n_folds rows: each row is a fold. */
CalibrationFolds calibration_cross_validate(const Calibration *calibration, int64_t n_folds);

G_END_DECLS

#endif /* CLI_VALIDATE_CALIBRATION_H */
