/*
 * cli/validate/error_bar.h - how right a plan's prediction is, as far as published runs like it say:
 * by how much predicted times were off, and how likely the plan fits (cli/validate/accuracy.h).
 */
#pragma once

#include "cli/validate/accuracy.h"

/* What is known of predictions like that of a job; n is 0 where there are no runs. */
typedef struct {
    Accuracy time, memory;
    Utilization highest; /* what runs on such devices in such a number format reached */
    double causal_utilization_fraction; /* of the job, to be compared with it; NaN: not known */
    const char *device;                 /* (borrowed) of the job's cluster */
    bool is_known; /* one kind of device, and no measured profile: docs/loop.md has those */
    bool is_mixed; /* several kinds of device */
} ErrorBar;

void error_bar_clear(ErrorBar *bar);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(ErrorBar, error_bar_clear)

/* Fills @bar, which the caller clears and which borrows of @job.
 * @report  (nullable) what is predicted of @job.
 * Returns: false if there is no memory to look. */
bool error_bar_find(const Job *job, const Report *report, ErrorBar *bar, GError **error);

/* Returns: the share of runs whose peak, off as it was, leaves that of @report within @limit_bytes
 * (0: the report's limit); NaN: not known. */
double error_bar_fit(const ErrorBar *bar, const Report *report, int64_t limit_bytes);

/* Prints by how much such predictions were off, of which runs @fit_fraction is, and whether the
 * utilisation is above all that were measured. */
void error_bar_print(const ErrorBar *bar, double fit_fraction);

/* Writes the member "error" of a plan: {"time": {"framework","device","runs","mean_fraction",
 * "p90_fraction"}, "memory": {...}, "highest_utilization": {"device","dtype","runs","fraction",
 * "source"}, "fit_fraction"}; what is not known is null. */
void error_bar_write(JsonWriter *writer, const ErrorBar *bar, double fit_fraction);
