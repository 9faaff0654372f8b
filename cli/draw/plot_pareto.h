/*
 * cli/draw/plot_pareto.h - pictures of trade-offs: time against memory of plans, days against cost
 * of sizes.
 *
 * What something else beats in both is pale; the rest is the front, a line of steps.
 *
 * As cli/draw/plot.h: format by suffix, whole or not at all, equal bytes for equal input.
 */
#ifndef CLI_DRAW_PLOT_PARETO_H
#define CLI_DRAW_PLOT_PARETO_H

#include "cli/request/job.h"
#include "cli/draw/plot.h"
#include "cli/request/sweep.h"

G_BEGIN_DECLS

/* The plan and its alternatives.  CMD_ERROR_USAGE without any, or without predictions. */
bool plot_plan_pareto(const Job *job, const PlotOptions *options, const char *path, GError **error);

/*
 * Days and cost of the training; without --tokens, tokens/s and cost (or energy, or devices) per
 * token.  CMD_ERROR_USAGE if no point is feasible.
 */
bool plot_sweep_pareto(const Sweep *sweep, const PlotOptions *options, const char *path,
                       GError **error);

G_END_DECLS

#endif /* CLI_DRAW_PLOT_PARETO_H */
