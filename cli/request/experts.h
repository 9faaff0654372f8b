/*
 * cli/request/experts.h - the load of experts as a distribution: --expert-load, as the simulation of a job
 * answers it.
 *
 * A prediction has one imbalance (--expert-imbalance).  Here steps are drawn (models/expert_load.h), and
 * the job is simulated with the imbalances that half and 95 % of the steps do not exceed.  Times and bytes
 * grow with the imbalance, so these are the quantiles of time and memory; and memory grows linearly with it,
 * which tells the share of steps that fit.
 */
#pragma once

#include "base/json.h"
#include "cli/request/options.h"
#include "models/arch.h"
#include "schedule/plan.h"
#include "schedule/report.h"

#include <glib.h>

/* What --expert-load says; n_steps 0: nothing. */
typedef struct {
    double zipf;
    GArray *counts; /* (owned, nullable) of double, shape (n_layers, n_experts) */
    int64_t n_layers, n_experts;
    int64_t n_steps;
    uint64_t seed;
} ExpertsAsked;

/* Reads "even", "zipf:S" or a table of counts, then [,STEPS[,SEED]]; mistakes are recorded in @options. */
void experts_read(ExpertsAsked *asked, Options *options);
void experts_clear(ExpertsAsked *asked);

/* Simulates one plan: sets the iteration's time and the highest peak.  Returns: false with @error. */
typedef bool (*ExpertsSimulate)(const PlanConventions *conventions, int64_t *iteration_ns,
                                int64_t *peak_bytes, void *user_data, GError **error);

/*
 * Draws the steps of @asked for @plan, and fills report->load.
 * @usable_bytes  what the fullest rank may hold; 0: not known, and everything fits.
 * Errors: CMD_ERROR_USAGE where the model has no experts, or other ones than the counts.
 */
bool experts_vary(const ExpertsAsked *asked, const ModelArch *arch, const Plan *plan,
                  int64_t usable_bytes, ExpertsSimulate simulate, void *user_data, Report *report,
                  GError **error);
