/*
 * planner/modules.h - which sets of modules selective recompute may repeat, where a request leaves it
 * to the search (`--recompute-modules auto`).
 *
 * A module is of use if its repetition frees activations of some kind of layer.  Up to
 * PLAN_MODULES_WHOLE of them give all their sets.  Of more the sets are a chain: modules in the order
 * of seconds that their repetition takes for each byte that it frees, the first one, the first two,
 * and so on.  Times and bytes of modules are nearly sums (a module inside another frees nothing
 * more), and of sums the chain has the solutions of the fractional knapsack (Dantzig 1957): the
 * least time for each memory, but for one module.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "planner/cost/request.h"

/* So many modules are combined in every way: 15 sets. */
#define PLAN_MODULES_WHOLE 4

/* Returns: (owned) sets of PlanModules (uint32_t), the cheapest first, of those that the request's rules
 * allow; none where its recompute is not open to them, or no module is of use. */
GArray *plan_module_sets(const PlanRequest *request);
