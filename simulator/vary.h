/*
 * simulator/vary.h - runs a compiled program with varied times; what varies is in simulate.h.
 *
 * Internal to simulator/.
 */
#pragma once

#include "simulator/memory.h"
#include "simulator/simulate.h"

/*
 * Runs the iteration jitter->n_runs times with varied times and fills @result.
 *
 * @times  of the run without jitter, found by the sweep or by the engine
 * @peaks  (nullable) one per rank; NULL: memory is not varied, and everything fits
 * Returns false on SCHEDULE_ERROR_LIMIT: no memory, or times that could pass SIM_MAX_NS.
 * Cost: O(runs * replicas * ops), some 3 ns each, shared by the threads; 8 bytes per op and thread.
 */
bool sim_vary(const SimProgram *program, const SimTimes *times, const SimPeak *peaks,
              const SimJitter *jitter, ReportJitter *result, GError **error);
