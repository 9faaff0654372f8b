/*
 * cli/request/slice_costs.h - the grid of slice times that `degas slices` minimises over, from a
 * file.
 *
 * Two kinds of files, told apart by content:
 *   TeraPipe's measurements, {"b_s_c": {"forward_mean": s, "backward_mean": s, ...}, ...}: b
 * sequences, s new tokens, c tokens of context, seconds of one layer; the slice's time is forward
 * plus backward. Points that were not measured are interpolated as TeraPipe does [2102.07988
 * section 3.3, eq. 8]: t(b, s, c) = t(b, s, 0) + a0 + a1 s + a2 c + a3 s c with t(b, s, 0) linear
 * between measured s, and the plane fitted to the points with context by least squares, never below
 * t(b, s, 0).  Slices longer than the longest measured of their b, and b's without a point, did not
 * fit in memory: infinite.  An optional "communication_mean" is the message of the slice, one way.
 * NumPy's .npy: float64 seconds, C order, shape (B + 1, L/g + 1, L/g + 1),
 * index [b][s/g][c/g].
 *
 * Times become integer picoseconds, rounded once.
 */
#ifndef CLI_REQUEST_SLICE_COSTS_H
#define CLI_REQUEST_SLICE_COSTS_H

#include "planner/slices/slice.h"

G_BEGIN_DECLS

#define SLICE_COSTS_PER_S 1e12 /* the unit of the grid: picoseconds */

/* Which times of a file. */
typedef enum {
    SLICE_COSTS_BOTH, /* of both directions; or what a .npy holds */
    SLICE_COSTS_FORWARD,
    SLICE_COSTS_BACKWARD,
    SLICE_COSTS_MESSAGE, /* 0 where there is none */
} SliceCostsPart;

/*
 * Returns: (owned, g_free) the grid for PlanSliceCosts.cost, or NULL on JSON_ERROR_INVALID,
 * CMD_ERROR_INPUT, CMD_ERROR_LIMIT or G_FILE_ERROR.
 * @part            all but BOTH of a .npy are CMD_ERROR_INPUT; but MESSAGE, which gives NULL
 * without an error.
 * @shape           batch, n_cells and granularity; cost is not read.
 * @n_approximated  (out) points that were interpolated.
 */
int64_t *slice_costs_load(const char *path, SliceCostsPart part, const PlanSliceCosts *shape,
                          int64_t *n_approximated, GError **error);

G_END_DECLS

#endif /* CLI_REQUEST_SLICE_COSTS_H */
