/*
 * executor/measure_rank.h - what one thread of the profiler does, in lockstep with the others.
 *
 * Private to executor/measure*.c.
 */
#ifndef EXECUTOR_MEASURE_RANK_H
#define EXECUTOR_MEASURE_RANK_H

#include <stdatomic.h>

#include "executor/measure.h"
#include "executor/samples.h"
#include "executor/transport.h"
#include "schedule/plan.h"

G_BEGIN_DECLS

/* Shared by all threads. */
typedef struct {
    const ExecMeasureOptions *o; /* (borrowed) with defaults filled in */
    const Plan *plan;            /* (borrowed) three stages on one rank: embedding, layers, head */
    ExecLocalHub *hub;           /* (borrowed) */
    ExecSamples *samples;        /* (borrowed) */
    int32_t n_threads;           /* >= 2: messages need a pair */
    int32_t n_busy;              /* of which compute: the concurrency */
    /* More busy threads than cores: an op takes as long as all of them need for one each. */
    bool shares_cores;
    int64_t *arrived_ns, *finished_ns; /* (borrowed) by thread, between barriers */
    int64_t begin_ns, budget_ns;       /* repetitions end when the budget is spent */
    int32_t min_repetitions, max_repetitions;
    atomic_int n_repetitions; /* finished */
    atomic_bool stop;         /* set by thread 0 between two barriers */
    GMutex mutex;
    GError *error; /* (owned, nullable) the first, under the mutex */
} ExecMeasureShared;

typedef struct {
    ExecMeasureShared *shared;
    int32_t rank;
} ExecMeasureStart;

/* A thread's function; @user_data is an ExecMeasureStart (borrowed until the thread ends). */
gpointer exec_measure_rank_main(gpointer user_data);

G_END_DECLS

#endif /* EXECUTOR_MEASURE_RANK_H */
