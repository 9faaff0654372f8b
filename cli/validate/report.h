/*
 * cli/validate/report.h - Validation: what `degas validate` found, written as a degas-validation or
 * printed as a table.
 */
#pragma once

#include "cli/validate/best.h"
#include "cli/validate/calibration.h"

/* Everything that was found in one file or folder. */
typedef struct {
    ValidationRuns runs;
    ValidationPrediction *predictions; /* (owned) one for each of runs.cases */
    CalibrationFolds *folds; /* (owned, nullable) one for each set of validation_conventions() */
    GArray *bests; /* (owned, nullable) of ValidationBest: what searches found for the jobs */
} Validation;

void validation_init(Validation *validation);
void validation_clear(Validation *validation);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Validation, validation_clear)

/* Scores the rows that @set has.  Returns false where none of them has its quantity. */
bool validation_score_set(const Validation *validation, const ValidationSet *set,
                          ValidationScore *score);

/* Returns: (borrowed, nullable) the errors of @set on rows that fits have not seen; NULL where it
 * was not cross-validated. */
const CalibrationFolds *validation_folds(const Validation *validation, const ValidationSet *set);

/* Returns: (owned) a writer that holds the whole degas-validation.
 * @cluster_name  (nullable) the cluster for which all rows were predicted, if they all were. */
JsonWriter *validation_write(const Validation *validation, const char *cluster_name);

/* Prints the tables for people on stdout. */
void validation_print(const Validation *validation);

/* Appends the errors by framework and half-year of the rows' stacks to @text.  Defined in stacks.c. */
void validation_append_stacks(GString *text, const Validation *validation);

/*
 * Writes the page docs/validation.md to @path: the table, a picture for each set, and for missed
 * goals the columns of the rows that the errors go with.  The pictures are written to
 * pictures/validation-SET-QUANTITY.svg beside the page, where the folder must exist.  Errors:
 * G_FILE_ERROR, CMD_ERROR_MISSING (no gnuplot).  Defined in page.c.
 */
bool validation_page_write(const Validation *validation, const char *path, GError **error);

/*
 * Writes one page of HTML to @path (cli/draw/page.h): what validation_print() has printed since
 * output_keep(), and a picture for each set; of one's own rows, which are of no set, one of all.
 * Errors: G_FILE_ERROR.  Defined in page.c.
 */
bool validation_html_write(const Validation *validation, const char *title, const char *footer,
                           const char *path, GError **error);
