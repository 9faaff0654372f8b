/*
 * cli/validate/validation.h - predicts measured runs, and tells how far off the predictions are.
 *
 * The main header of the room validate/, which lays predictions beside published measurements:
 * tables of runs (measured.h), the conventions of their sources (sources.h), fits (calibration.h),
 * what is printed (report.h).  The commands validate and calibrate come in.
 *
 * A case is a row of measurements with its request and the plan that it describes.  It can be
 * predicted with any parameters of its cluster, by several threads.  An error is (predicted -
 * measured) / measured.
 *
 * Errors: CMD_ERROR_INPUT names file and line.
 */
#pragma once

#include "cli/request/job.h"
#include "cli/validate/sources.h"

#define VALIDATION_ERROR (validation_error_quark())
GQuark validation_error_quark(void);

typedef enum {
    VALIDATION_ERROR_UNSTATED, /* a row does not say enough; rows that lack the same have the same
                                  message */
} ValidationError;

/*
 * Writes a measured run as a request of `degas simulate --batch`.  This is the only way from a row
 * to a prediction, so what `degas validate` scores is what `degas simulate --batch` answers to the
 * same line; `degas validate --requests FILE` writes the lines.  Defined in request.c.
 * @cluster  (nullable) a name or path; NULL: the built-in cluster of the row's devices
 * Returns: (owned) one line of JSON with its line feed; NULL with VALIDATION_ERROR_UNSTATED.
 */
char *validation_request(const MeasuredRow *row, const char *cluster, GError **error);

/* The same job as a request of `degas plan`: how it is split and scheduled is open.
 * Defined in request.c. */
char *validation_search_request(const MeasuredRow *row, GError **error);

typedef struct {
    const MeasuredRow *row; /* (borrowed) a row of a table, or own_row */
    MeasuredRow own_row;    /* of one of our own runs */
    char *own_id;           /* (owned, nullable) the name of that run */
    const ValidationSource *source;
    char *request_text;   /* (owned, nullable) its line for simulate --batch */
    Job *job;             /* (owned, nullable) model, cluster and plan */
    char *why_not;        /* (owned, nullable) why there is no job */
    bool is_other_device; /* there is none since the cluster has other devices */
} ValidationCase;

/*
 * Makes a case of one of our own runs: a plan file and what `degas run --json` said of it.
 * @cluster  (borrowed) takes the place of the plan's cluster, cut or extended to the plan's devices
 * Returns: (owned) for validation_runs_add_case().
 */
ValidationCase *validation_case_of_run(const char *plan_path, const char *run_path,
                                       const Profile *cluster, GError **error);

/* The prediction of a case; NaN where it cannot be predicted. */
typedef struct {
    double iteration_s;
    double memory_bytes;         /* of what the source's figure counts */
    double utilization_fraction; /* model FLOPs over the devices' peak, as of the report */
    bool fits;
} ValidationPrediction;

/* Tables of measured runs and their cases: what `degas validate` and `degas calibrate` read. */
typedef struct {
    GPtrArray *cases;    /* of ValidationCase: of all tables, in order; owned by parts */
    GPtrArray *bad_rows; /* of (owned) char *: what is wrong with rows that were left out */
    GPtrArray *tables;   /* of (owned) MeasuredTable */
    GPtrArray *parts;    /* of (owned) GPtrArray of ValidationCase, one for each table or run */
} ValidationRuns;

void validation_runs_init(ValidationRuns *runs);
void validation_runs_clear(ValidationRuns *runs);

/*
 * Adds the table at @path and the cases of its rows.
 * @cluster   (nullable) (borrowed) all rows are of it, @cluster_name its name or path; rows that
 * say another device are cases without a plan.  NULL: each row's built-in cluster.
 * @skip_bad  rows that are wrong in themselves, or that no machine can have measured, are described
 * in bad_rows and left out; else the first is an error.
 */
bool validation_runs_add_table(ValidationRuns *runs, const char *path, const Profile *cluster,
                               const char *cluster_name, bool skip_bad, GError **error);

/* Adds one @case (taken). */
void validation_runs_add_case(ValidationRuns *runs, ValidationCase *one);

/* Tells on stderr which rows were left out. */
void validation_runs_tell_bad_rows(const ValidationRuns *runs);

/* Predicts all cases with their clusters' own parameters.  Returns: (owned) one prediction for
 * each. */
ValidationPrediction *validation_predict_all(const GPtrArray *cases, int64_t n_threads);

/*
 * The number that calibration makes small: the signed relative error of the case's time or memory,
 * predicted with @parameters (nullable: the cluster's own); for VALIDATION_OOM the share of the
 * memory limit by which the predicted peak is on the wrong side of it, and 0 where it is on the
 * right side. NaN where one side is unknown.  Pure.
 */
double validation_residual(const ValidationCase *one, ValidationQuantity quantity,
                           const ProfileParameters *parameters);

/* --- errors --- */

/* The errors of a quantity over some rows, as fractions; NaN without rows. */
typedef struct {
    size_t n;
    double mape, bias, median, worst; /* mean of |err|, mean, median of |err|, largest |err| */
} ValidationErrors;

/* @errors  (borrowed) @n signed relative errors, which are summed in this order. */
ValidationErrors validation_errors(const double *errors, size_t n);

/* How often it was predicted rightly that a run ends for want of memory. */
typedef struct {
    size_t n, n_oom; /* rows that were predicted; those of them that ran out of memory */
    size_t n_predicted, n_right; /* rows that were predicted to run out; those of them that did */
    double precision, recall;    /* NaN where none was predicted to run out, or none did */
} ValidationOom;

/* Both for the rows of a set. */
typedef struct {
    ValidationErrors errors;
    ValidationOom oom;
} ValidationScore;

/* The signed relative error of @quantity, NaN where one side is unknown. */
double validation_error_of(ValidationQuantity quantity, const MeasuredRow *row,
                           const ValidationPrediction *prediction);

/* Scores the cases that belong to @set; NULL: all that have @quantity. */
ValidationScore validation_score(const GPtrArray *cases, const ValidationPrediction *predictions,
                                 const ValidationSet *set, ValidationQuantity quantity);
