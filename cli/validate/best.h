/*
 * cli/validate/best.h - the best plan that a search finds for a measured job, beside the best that was
 * measured.
 *
 * A search takes the plan of which the model is most wrong in its favour, so its best looks better
 * than the model's mean error says.  Sources whose authors looked for the fastest configuration of
 * each job (ValidationSource.tuned) show by how much.
 */
#pragma once

#include "cli/validate/validation.h"

/* A job (validation_job_name()) of a tuned source. */
typedef struct {
    const ValidationCase *measured; /* (borrowed) its fastest row */
    double predicted_s;             /* for the configuration of that row */
    double planned_s;               /* of the best plan; NaN: there is none */
    char *plan; /* (owned) "dp 8, tp 4, pp 8 x 5, cp 1, ep 1, 1f1b", or why none */
    char *why;  /* (owned, nullable) in what the plan differs from the measured one, and by how much
                   that is predicted wrong */
} ValidationBest;

/*
 * Searches the best plan of each job of @cases that belongs to a tuned source, by its framework,
 * number format and overlap.  Cost: a search for each job, seconds of processor time.
 * @predictions  (borrowed) one for each of @cases
 * @bests        (out) (owned) of ValidationBest, by first appearance
 * Errors: CMD_ERROR_INTERRUPTED.
 */
bool validation_search_bests(const GPtrArray *cases, const ValidationPrediction *predictions,
                             int64_t n_threads, GArray **bests, GError **error);

/* Appends the table of the page docs/validation.md to @text. */
void validation_append_bests(GString *text, const GArray *bests);
