/*
 * cli/explain/costs.h - `degas simulate --explain`: the largest costs of the busiest rank and the
 * largest holders of memory of the fullest, with formula, parameters and their sources.
 */
#ifndef CLI_EXPLAIN_COSTS_H
#define CLI_EXPLAIN_COSTS_H

#include "cli/request/job.h"

G_BEGIN_DECLS

/* On stdout. */
bool explain_costs_print(const Job *job, const Report *report, GError **error);

/* The member "explanation" of an open object. */
bool explain_costs_write(JsonWriter *writer, const Job *job, const Report *report, GError **error);

G_END_DECLS

#endif /* CLI_EXPLAIN_COSTS_H */
