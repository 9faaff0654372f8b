/*
 * cli/validate/calibration.h - fits the parameters of a profile to measured rows, and tells how
 * right the result is on rows that it has not seen.
 *
 * What a fit leaves is expected of rows like those that it was fitted to (profiles/fit/likeness.h): of a
 * row that no fit has seen there are two predictions, with the parameters alone, as a profile holds
 * them, and less the error that rows like it had.
 *
 * It connects profiles/fit/calibrate.h, which fits residuals, with the simulator, which predicts: a
 * row's residual is validation_residual().  Each cluster has a point of parameters of its own, correlated with
 * the others' (calibrate.h), which say something about one that has no rows in the fit.
 *
 * Deterministic: several threads predict rows, but each row has a place of its own.
 */
#pragma once

#include "cli/validate/validation.h"
#include "profiles/fit/calibrate.h"

/* The rows to fit. */
typedef struct {
    GPtrArray *cases;            /* of (borrowed) ValidationCase */
    int *machine;                /* [case] (owned) which of the machines it is of */
    int n_machines;              /* different clusters, in the order of their first cases; those
                                    beyond PROFILE_CALIBRATE_MAX_MACHINES count as the last */
    ValidationQuantity quantity; /* of all rows the same */
    int64_t n_threads;
} Calibration;

/* Fills in @calibration with those cases of @all that can be predicted, have a measured @quantity
 * and, if @set is not NULL, belong to it. */
void calibration_init(Calibration *calibration, const GPtrArray *all, const ValidationSet *set,
                      ValidationQuantity quantity, int64_t n_threads);
void calibration_clear(Calibration *calibration);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Calibration, calibration_clear)

/* Fits the parameters to the rows whose @in_training is true; NULL: to all. */
ProfileCalibrated calibration_fit(const Calibration *calibration, const bool *in_training);

/* Returns: (owned) the signed relative errors of all rows at @point, one of each machine, as
 * validation_residual() has them. */
double *calibration_errors(const Calibration *calibration, const ProfilePoint *point);

/* The errors of rows, each predicted by a fit that has not seen it. */
typedef struct {
    int64_t n_folds;           /* how many folds have rows */
    ValidationErrors held_out; /* of the rows of all folds together, so beside what they are raw */
    ValidationErrors alike;    /* ... of what is left when rows like them are asked, too */
    double precision, recall;  /* medians over the folds, for VALIDATION_OOM */
    GPtrArray *cases;          /* (owned) the rows */
    double *errors;            /* (owned) of each row; NaN: there was no fit without it */
} CalibrationFolds;

void calibration_folds_clear(CalibrationFolds *folds);

#define CALIBRATION_MAX_FOLDS 20

/* Cuts the rows into @n_folds parts (2 to CALIBRATION_MAX_FOLDS), fits the parameters to the others
 * of each part, and predicts it.  A row's part follows from its id alone; of at most @n_folds rows
 * each is a part. */
CalibrationFolds calibration_cross_validate(const Calibration *calibration, int64_t n_folds);
