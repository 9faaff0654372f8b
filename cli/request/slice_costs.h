/*
 * cli/request/slice_costs.h - reads the grid of slice times over which `degas slices` minimises.
 *
 * There are two kinds of files, told apart by their content.
 *
 * TeraPipe's measurements are an object {"b_s_c": {"forward_mean": t, "backward_mean": t, ...},
 * ...} with the seconds that one layer takes for b sequences of s new tokens behind c tokens of
 * context; the slice's time is forward plus backward.  An optional "communication_mean" is the time
 * of the slice's message, one way.  Points that were not measured are interpolated as TeraPipe does
 * [2102.07988 section 3.3, eq. 8]:
 *
 *   t(b, s, c) = t(b, s, 0) + max(0, a0 + a1 s + a2 c + a3 s c)
 *
 * t(b, s, 0) is linear between measured s; the plane is fitted by least squares to the points with
 * context.  Slices that are longer than the longest measured one of their b, and all slices of a b
 * without a point, did not fit in memory: their time is infinite.
 *
 * NumPy's .npy has float64 seconds in C order, of shape (B + 1, L/g + 1, L/g + 1), indexed
 * [b][s/g][c/g].
 *
 * Times become integer picoseconds, rounded once.
 */
#pragma once

#include "planner/slices/slice.h"

#define SLICE_COSTS_PER_S 1e12 /* the unit of the grid: picoseconds */

/* Which of a file's times are read. */
typedef enum {
    SLICE_COSTS_BOTH, /* forward plus backward; of a .npy its only times */
    SLICE_COSTS_FORWARD,
    SLICE_COSTS_BACKWARD,
    SLICE_COSTS_MESSAGE, /* 0 where the file has none */
} SliceCostsPart;

/*
 * Returns: (owned, g_free) the grid for PlanSliceCosts.cost, or NULL on JSON_ERROR_INVALID,
 * CMD_ERROR_INPUT, CMD_ERROR_LIMIT or G_FILE_ERROR.
 * @part            a .npy has BOTH only: MESSAGE gives NULL without an error, the others are
 *                  CMD_ERROR_INPUT
 * @shape           batch, n_cells and granularity; cost is not read
 * @n_approximated  (out) how many points were interpolated
 */
int64_t *slice_costs_load(const char *path, SliceCostsPart part, const PlanSliceCosts *shape,
                          int64_t *n_approximated, GError **error);
