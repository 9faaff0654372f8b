/*
 * cli/validate/report.h - what `degas validate` found, as a degas-validation and as a table.
 */
#ifndef CLI_VALIDATE_REPORT_H
#define CLI_VALIDATE_REPORT_H

#include "cli/validate/calibration.h"

G_BEGIN_DECLS

/* Everything about one file or folder. */
typedef struct {
    ValidationRuns runs;
    ValidationPrediction *predictions; /* (owned) one for each of runs.cases */
    CalibrationFolds *folds; /* (owned, nullable) one for each set of validation_conventions() */
} Validation;

void validation_init(Validation *validation);
void validation_clear(Validation *validation);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Validation, validation_clear)

/* The score of @set's rows; false where it has none with its quantity. */
bool validation_score_set(const Validation *validation, const ValidationSet *set,
                          ValidationScore *score);

/* (borrowed, nullable) of a set, if it was cross-validated. */
const CalibrationFolds *validation_folds(const Validation *validation, const ValidationSet *set);

/* Returns: (owned) a finished writer.  @cluster_name (nullable) the one of all rows. */
JsonWriter *validation_write(const Validation *validation, const char *cluster_name);

/* The tables for people, on stdout. */
void validation_print(const Validation *validation);

G_END_DECLS

#endif /* CLI_VALIDATE_REPORT_H */
