/*
 * executor/measure/links.h - times what needs no grid: the optimizer, messages, collectives,
 * copies, kernel launches, and what the executor itself takes for an op.
 *
 * Private to executor/measure/ and its tests.
 */
#pragma once

#include "executor/measure/rank.h"

/* All threads call each of these.  They time what shared->links says there is time for. */

/* The first half of the parameters, and all of them: two points of a line. */
bool exec_measure_optimizer(ExecMeasureRank *rank, GError **error);
/* Messages of the sizes that the grid's points send (between sizes the time is linear), and
 * collectives of 2, 4, ... threads. */
bool exec_measure_communication(ExecMeasureRank *rank, GError **error);

/* All threads call these too; rank 0 copies or launches while the others rest.  Copies that the
 * device has no memory for are left out: shared->too_large_copy_bytes. */
bool exec_measure_copies(ExecMeasureRank *rank, GError **error);
bool exec_measure_launch(ExecMeasureRank *rank, GError **error);

/* Runs a model that is nearly nothing (exec_measure_tiny_arch), on threads of its own: what is left
 * of an op's time is bookkeeping and tiny messages. */
bool exec_measure_overhead(const ExecMeasureOptions *options, ExecSamples *samples, GError **error);
