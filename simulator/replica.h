/*
 * simulator/replica.h - one data-parallel replica of an iteration whose times vary.
 *
 * Internal to simulator/.
 */
#ifndef SIMULATOR_REPLICA_H
#define SIMULATOR_REPLICA_H

#include "simulator/jitter.h"
#include "simulator/program.h"
#include "simulator/speed.h"

G_BEGIN_DECLS

/* Durations of what follows a rank's ops. */
typedef struct {
    const SimSpeedLevel *reduce, *optimizer, *gather;
} SimFinishLevels;

/* What varies by what. */
typedef struct {
    const SimProgram *program; /* (borrowed) */
    const SimTimes *fixed;     /* (borrowed) without jitter */
    const SimJitter *jitter;   /* (borrowed) */
    double *z;                 /* (owned) quantiles */
    SimFactors *ops, *ranks;   /* (owned) */
    /* Where speeds are forgotten (jitter.h), instead of ops: */
    SimSpeeds speeds;
    const SimSpeedLevel **level; /* (owned, nullable) [cost] */
    SimFinishLevels *finish;     /* (owned, nullable) [rank] */
    int64_t slowdown;            /* factor of a straggler */
    uint64_t straggler_below;    /* of a draw's upper 53 bits */
} SimVaried;

/* Of what follows a rank's ops. */
typedef struct {
    int64_t optimizer, reduce, gather;
} SimFinishFactors;

/* What one thread works on. */
typedef struct {
    SimCost *costs;                /* (owned) [cost] */
    SimFinishFactors *rank_finish; /* (owned) [rank] */
    int64_t *rank_factors;         /* (owned) [rank] */
    double *x;                     /* (owned, nullable) [rank * members + member] of speed.h */
    SimTimes times;
} SimReplica;

/* All of it outlives @varied.  False on SCHEDULE_ERROR_LIMIT: no memory. */
bool sim_varied_init(SimVaried *varied, const SimProgram *program, const SimTimes *times,
                     const SimJitter *jitter, GError **error);
void sim_varied_clear(SimVaried *varied);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(SimVaried, sim_varied_clear)

/* No duration becomes more than so many times itself. */
double sim_varied_largest(const SimVaried *varied);

/* False on SCHEDULE_ERROR_LIMIT: no memory. */
bool sim_replica_init(SimReplica *replica, const SimVaried *varied, GError **error);
void sim_replica_clear(SimReplica *replica);

/* Returns: when everything of the replica that @key draws has ended, in ns. */
int64_t sim_replica_run(const SimVaried *varied, SimReplica *replica, uint64_t key);

G_END_DECLS

#endif /* SIMULATOR_REPLICA_H */
