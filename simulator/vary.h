/*
 * simulator/vary.h - runs a compiled program with varied times; what varies is in jitter.h.
 *
 * Internal to simulator/.
 */
#ifndef SIMULATOR_VARY_H
#define SIMULATOR_VARY_H

#include "simulator/jitter.h"
#include "simulator/memory.h"

G_BEGIN_DECLS

/*
 * @times  of the run without jitter, by the sweep or by the engine.
 * @peaks  (nullable) one per rank; without, memory is not varied and everything fits.
 * Returns false on SCHEDULE_ERROR_LIMIT: no memory, or times that could pass SIM_MAX_NS.
 * Cost: O(runs * replicas * ops), some 3 ns each, shared by the threads; 8 bytes per op and
 * thread.
 */
bool sim_vary(const SimProgram *program, const SimTimes *times, const SimPeak *peaks,
              const SimJitter *jitter, ReportJitter *result, GError **error);

/* The @i-th of SIM_VARY_QUANTILES equally likely values of a normal variable, exactly the same on
 * every machine. */
#define SIM_VARY_QUANTILES 4096
void sim_vary_quantiles(double z[SIM_VARY_QUANTILES]);
/* exp(x) for |x| <= 16, correct to 1e-14 relative, exactly the same on every machine. */
double sim_vary_exp(double x);

G_END_DECLS

#endif /* SIMULATOR_VARY_H */
