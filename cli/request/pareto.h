/*
 * cli/request/pareto.h - the Pareto front of a plan: time against memory, exactly.
 *
 * Each plan of the front is the fastest within its memory: the epsilon-constraint method  [Haimes,
 * Lasdon, Wismer 1971], a search for each limit between the least memory that any plan needs and
 * the best plan's.  On given devices cost and energy are in proportion to time, so this is the
 * front of all four objectives.
 *
 * Errors: CMD_ERROR_INTERRUPTED.
 */
#ifndef CLI_REQUEST_PARETO_H
#define CLI_REQUEST_PARETO_H

#include "cli/request/request.h"

G_BEGIN_DECLS

/*
 * Replaces the alternatives of @plan, the fastest of @request, by up to @n more plans of the front,
 * the fastest first.
 */
bool pareto_find(const Request *request, Plan *plan, int64_t n, GError **error);

/* Whether none of @plans is at least as fast and as small as @plan, and better in one of both. */
bool pareto_is_front(const Plan *plan, const Plan *const *plans, size_t n);

G_END_DECLS

#endif /* CLI_REQUEST_PARETO_H */
