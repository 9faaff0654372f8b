/*
 * cli/validate/validation.h - predictions of measured runs, and how far off they are.
 *
 * A case is a row, its request, and the plan that it describes; it can be predicted with any
 * parameters of its cluster, by any number of threads.  err = (predicted - measured) / measured.
 *
 * Errors: CMD_ERROR_INPUT names file and line.
 */
#ifndef CLI_VALIDATE_VALIDATION_H
#define CLI_VALIDATE_VALIDATION_H

#include "cli/request/job.h"
#include "cli/validate/request.h"

G_BEGIN_DECLS

typedef struct {
    const MeasuredRow *row; /* (borrowed) of a table, or own_row */
    MeasuredRow own_row;    /* of a run */
    char *own_id;           /* (owned, nullable) its name */
    const ValidationSource *source;
    char *request_text;   /* (owned, nullable) its line for simulate --batch */
    Job *job;             /* (owned, nullable) model, cluster and plan */
    char *why_not;        /* (owned, nullable) why there is none of these */
    bool is_other_device; /* why_not is that the cluster has other devices */
} ValidationCase;

/*
 * A case of one of our own runs: a plan file and what `degas run --json` said of it.
 * @cluster  (borrowed) takes the place of the plan's, cut or extended to its devices.
 * Returns: (owned) for validation_runs_add_case().
 */
ValidationCase *validation_case_of_run(const char *plan_path, const char *run_path,
                                       const Profile *cluster, GError **error);

/* What came out of a case; NaN where nothing did. */
typedef struct {
    double iteration_s;
    double memory_bytes; /* what the source's figure counts */
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

/*
 * Predicts one case.  @parameters (nullable) take the place of the cluster's.  A plan that cannot
 * be simulated gives NaN.  Pure: callable from any thread.
 */
ValidationPrediction validation_predict(const ValidationCase *one,
                                        const ProfileParameters *parameters);

/* Predicts all cases with the cluster's own parameters into (owned) an array. */
ValidationPrediction *validation_predict_all(const GPtrArray *cases, int64_t n_threads);

/*
 * What calibration makes small, at @parameters (nullable): the signed relative error of the case's
 * time or memory; for VALIDATION_OOM the share of the limit by which the predicted peak is on the
 * wrong side of it, 0 on the right one.  NaN where nothing is known.  Pure.
 */
double validation_residual(const ValidationCase *one, ValidationQuantity quantity,
                           const ProfileParameters *parameters);

/* --- errors --- */

/* Of a quantity over some rows; fractions, NaN without rows. */
typedef struct {
    size_t n;
    double mape, bias, median, worst; /* mean of |err|, mean, median of |err|, largest |err| */
} ValidationErrors;

/* @errors  (borrowed) n signed relative errors; summed in this order. */
ValidationErrors validation_errors(const double *errors, size_t n);

/* Out-of-memory as a yes-or-no answer. */
typedef struct {
    size_t n, n_oom;             /* rows with an answer; those that ran out */
    size_t n_predicted, n_right; /* predicted to run out; of them rightly */
    double precision, recall;    /* NaN where nothing is predicted, nothing happened */
} ValidationOom;

/* What a set's rows amount to. */
typedef struct {
    ValidationErrors errors;
    ValidationOom oom;
} ValidationScore;

/* The signed relative error of @quantity, NaN where one side is unknown. */
double validation_error_of(ValidationQuantity quantity, const MeasuredRow *row,
                           const ValidationPrediction *prediction);

/*
 * Scores the cases that @set has; NULL: all that have @quantity.
 */
ValidationScore validation_score(const GPtrArray *cases, const ValidationPrediction *predictions,
                                 const ValidationSet *set, ValidationQuantity quantity);

G_END_DECLS

#endif /* CLI_VALIDATE_VALIDATION_H */
