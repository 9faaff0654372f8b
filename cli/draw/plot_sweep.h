/*
 * cli/draw/plot_sweep.h - pictures of a Sweep: how training scales, and what each size costs.
 *
 * As cli/draw/plot.h: format by suffix, whole or not at all, equal bytes for equal input.
 */
#ifndef CLI_DRAW_PLOT_SWEEP_H
#define CLI_DRAW_PLOT_SWEEP_H

#include "cli/draw/plot.h"
#include "cli/request/sweep.h"

G_BEGIN_DECLS

/*
 * Two panels over devices, a logarithmic axis: tokens/s with the line of ideal scaling from the
 * smallest size of each series, and efficiency against it.  A series is a batch and a sequence
 * length.  CMD_ERROR_USAGE if no point is feasible.
 */
bool plot_sweep_throughput(const Sweep *sweep, const PlotOptions *options, const char *path,
                           GError **error);

G_END_DECLS

#endif /* CLI_DRAW_PLOT_SWEEP_H */
