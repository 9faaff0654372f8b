/*
 * cli/validate/accuracy.h - how far predictions were off, by framework and device: the error bar of
 * a plan, and how likely it fits.
 *
 * cli/validate/accuracy.json, which the program carries, has a row for each framework and device of
 * the published runs that `make validation-page` predicts with built-in profiles, raw; "" stands
 * for all frameworks or all devices.  Rows of sources that are functional tests (sources.json) do
 * not count for times.  "utilization" has a row for each device and number format: the highest model
FLOP utilisation that any of these runs measured.  `degas validate --accuracy FILE` writes such a
file.
 *
 * Thread-safety: values; no globals.
 */
#pragma once

#include "cli/validate/validation.h"

/* Measured over predicted: its quantiles from 0 to 1, ACCURACY_QUANTILES of them, evenly. */
#define ACCURACY_QUANTILES 21

typedef struct {
    char *framework, *device;           /* (owned) "": of all */
    int64_t n;                          /* runs */
    double mean_fraction, p90_fraction; /* of |predicted / measured - 1| */
    double ratios[ACCURACY_QUANTILES];
} Accuracy;

void accuracy_clear(Accuracy *accuracy);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Accuracy, accuracy_clear)

/* Writes the file of all cases, rows in a fixed order.  @quantity is VALIDATION_TIME and
 * VALIDATION_MEMORY in turn. */
JsonWriter *accuracy_write(const GPtrArray *cases, const ValidationPrediction *predictions);

/*
 * Finds what is known of @framework on @device: of both, else of all frameworks on the device, and
 * with @anywhere else of all runs; rows of fewer than ACCURACY_LEAST_RUNS runs do not count.
 * @accuracy  (out) cleared by the caller; n is 0 where there is none.
 * Returns: false if there is no memory to look.
 */
#define ACCURACY_LEAST_RUNS 5
bool accuracy_find(ValidationQuantity quantity, const char *framework, const char *device,
                   bool anywhere, Accuracy *accuracy, GError **error);

/*
 * The highest measured model FLOP utilisation.  Of attention's scores it counts those that a causal
 * model needs: what is published counts all, so that long sequences seem to do more than is
 * computed (model_causal_fraction()).
 */
typedef struct {
    char *device, *dtype; /* (owned) "" as device: of all */
    char *source;         /* (owned) who measured it */
    int64_t n;            /* runs that are compared */
    double highest_fraction;
} Utilization;

void utilization_clear(Utilization *utilization);

/* Finds the row of @device and @dtype, else of all devices; rows of fewer than ACCURACY_LEAST_RUNS
 * runs do not count.  @utilization (out) and what is returned are as in accuracy_find(). */
bool utilization_find(const char *device, const char *dtype, Utilization *utilization,
                      GError **error);

/* The share of runs whose measured figure was at most @ratio of the predicted one. */
double accuracy_share(const Accuracy *accuracy, double ratio);

/* The least ratio of measured to predicted that so @share of the runs kept; the inverse. */
double accuracy_ratio(const Accuracy *accuracy, double share);
