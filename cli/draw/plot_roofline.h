/*
 * cli/draw/plot_roofline.h - rooflines: how near ops, or whole plans, come to what a device can do.
 *
 * Of a plan: each op of its layers and head, FLOP/s over FLOPs per byte, below the roof of the
 * device's peak and its memory's bandwidth  [williams2009].  Of a sweep: FLOP/s of a device over
 * the tokens that it gets in an iteration; above each size is what the search proved that no plan
 * exceeds.
 *
 * As cli/draw/plot.h: format by suffix, whole or not at all, equal bytes for equal input.
 */
#ifndef CLI_DRAW_PLOT_ROOFLINE_H
#define CLI_DRAW_PLOT_ROOFLINE_H

#include "cli/request/job.h"
#include "cli/draw/plot.h"
#include "cli/request/sweep.h"

G_BEGIN_DECLS

bool plot_plan_roofline(const Job *job, const PlotOptions *options, const char *path,
                        GError **error);

/* CMD_ERROR_USAGE if no point is feasible. */
bool plot_sweep_roofline(const Sweep *sweep, const PlotOptions *options, const char *path,
                         GError **error);

G_END_DECLS

#endif /* CLI_DRAW_PLOT_ROOFLINE_H */
