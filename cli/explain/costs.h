/*
 * cli/explain/costs.h - explains a simulated iteration (degas simulate --explain): the largest
 * costs of the busiest rank and the largest holders of memory of the fullest, each with its
 * formula, the parameters that it rests on, and where their values come from.
 */
#ifndef CLI_EXPLAIN_COSTS_H
#define CLI_EXPLAIN_COSTS_H

#include "cli/request/job.h"

G_BEGIN_DECLS

/* Prints them for people on stdout.  Errors: those of profile_explain(). */
bool explain_costs_print(const Job *job, const Report *report, GError **error);

/* Writes them as the member "explanation" of an open object. */
bool explain_costs_write(JsonWriter *writer, const Job *job, const Report *report, GError **error);

G_END_DECLS

#endif /* CLI_EXPLAIN_COSTS_H */
