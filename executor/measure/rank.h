/*
 * executor/measure/rank.h - one thread of the profiler: a rank that times stages in lockstep with
 * the other threads.
 *
 * A job (ExecMeasureShared.job) is what all threads run: layers.h and interference.h have one each.
 * Stages are run by the executor's own code (executor/model/stage.h), between two stamps of the
 * device's clock.
 *
 * Private to executor/measure/ and its tests.
 */
#pragma once

#include <stdatomic.h>

#include "executor/measure/budget.h"
#include "executor/measure/grid.h"
#include "executor/measure/kinds.h"
#include "executor/measure/measure.h"
#include "executor/measure/variation.h"
#include "executor/model/stage.h"
#include "executor/transport/device.h"
#include "executor/transport/local.h"
#include "executor/transport/samples.h"
#include "schedule/plan.h"

typedef struct ExecMeasureRank ExecMeasureRank;

/* What all threads of a job share. */
typedef struct {
    /* Filled in by the caller. */
    const ExecMeasureOptions *o; /* (borrowed) with defaults filled in */
    const Plan *plan;            /* (borrowed) of exec_measure_plan() */
    ExecSamples *samples;        /* (borrowed) */
    ExecVariation *variation;    /* (borrowed, nullable) */
    int32_t n_threads;           /* >= 2: messages need a pair */
    int32_t n_busy;              /* how many of them compute: the concurrency */
    int64_t largest_batch;       /* of the micro-batches that the job runs */
    int64_t flush_bytes;         /* written to empty the caches; 0: they cannot be emptied */
    /* Ops are launched as graphs, where those of a run are.  Not while other threads begin something new: what
     * they load waits for the whole context, and that ends a capture. */
    bool captures;
    bool has_optimizer;     /* whether ranks hold the optimizer's state */
    bool has_collectives;   /* collectives between GPUs are known: none are timed on one */
    bool shares_cores;      /* more threads are busy than there are cores: exec_measure_begin() */
    bool watches_cores;     /* whether it is looked at if a thread had its core: never on a GPU, nor
                             * where cores are shared */
    ExecBudgetLinks *links; /* (borrowed) thread 0's */
    bool (*job)(ExecMeasureRank *rank, GError **error);
    void *job_data; /* (borrowed) */

    /* The threads', zeroed by the caller. */
    GThread **threads;                 /* (owned) */
    atomic_int n_begun;                /* threads that have taken their number */
    ExecLocalHub *hub;                 /* (owned) */
    int64_t *arrived_ns, *finished_ns; /* (owned together) by thread, between meetings */
    int decision;                      /* thread 0's: exec_measure_decide() */
    atomic_bool stop;
    atomic_bool is_started, is_done; /* of what runs beside a layer: interference.c */
    int64_t link_begin_ns;           /* thread 0's */
    /* Thread 0's: copies of so many bytes and more are left out, and why; 0: none. */
    int64_t too_large_copy_bytes;
    char *too_large_why; /* (owned by the caller, nullable) */
    GMutex mutex;
    GError *error; /* (owned, nullable) the first, under the mutex */
    int64_t
        workspace_bytes; /* the most that a backend held for itself at the end, under the mutex */
} ExecMeasureShared;

/* The stages of the plan, by chunk: from EXEC_MEASURE_LAYERS on one for each kind of layer; the
 * last one is the head. */
enum {
    EXEC_MEASURE_EMBEDDING,
    EXEC_MEASURE_LAYERS,
};

/* Returns: (owned) a model with the layers that are timed: of each kind of @arch a few, one kind
 * after the other, so that a stage has layers of one kind. */
ModelArch *exec_measure_arch(const ModelArch *arch, int64_t concurrency);

/* Returns: (interned, nullable) the kind's name in rows; NULL where all layers are of one kind. */
const char *exec_measure_kind(const ModelArch *arch, int32_t kind);

/* Returns: (owned) the plan that ranks are made from: embedding, layers of each kind and head as chunks of
 * one rank, and tp times dp ranks, which are @o's concurrency in whole groups of @tp.  The
 * vocabulary is padded on GPUs, as in degas's plans for them. */
Plan *exec_measure_plan(const ExecMeasureOptions *o, int64_t tp);

/* An op whose stamps have not been read yet. */
typedef struct {
    ProfileMeasurement key;
    double share;     /* of the time between the stamps, for the row */
    ExecSample cache; /* EXEC_SAMPLE_TIME, _COLD or _WARM: what the caches held */
    int64_t begin_ns, end_ns;
    int64_t queue_ns;                       /* how long the host took to queue it; 0: not known */
    int64_t thread_begin_ns, thread_end_ns; /* exec_thread_ns() before and after these */
} ExecMeasureTiming;

#define EXEC_MEASURE_MAX_TIMINGS 1024

struct ExecMeasureRank {
    ExecMeasureShared *shared;
    ExecTransport transport, host_transport;
    ExecTransport *device_transport; /* (owned, nullable) */
    ExecBackend *backend;            /* (owned) */
    ExecPool *pool;                  /* (owned) */
    ExecComm comm;
    ExecModel *model; /* (owned) */
    ExecStageScratch scratch;
    ExecKinds *kinds;                /* (owned) */
    bool by_kind;                    /* ops are timed by kind, not whole */
    bool captures;                   /* ops are launched as graphs, as in a run */
    ExecSample cache;                /* of ops that are timed now: ExecMeasureTiming */
    int64_t queue_begin_ns;          /* of the op that is being timed */
    ExecBlock message, x, dx, flush; /* x, dx: what stages get from their neighbours */
    int32_t *tokens;                 /* (owned by the backend) */
    double *losses;                  /* (owned by the backend) */
    int32_t *members;                /* (owned) all threads */
    bool busy;                       /* computes; else the thread only keeps pace */
    bool record;                     /* false in repetitions that only warm up */
    ExecMeasureTiming *timings;      /* (owned) EXEC_MEASURE_MAX_TIMINGS */
    int n_timings;
    GArray *slices, *sequences; /* (owned) of int64_t, of the stage run */
};

/* --- threads --- */

/* Starts the threads; each makes a rank and runs the job. */
void exec_measure_start(ExecMeasureShared *shared);
/* Waits until all have ended; false with the error of the first that failed. */
bool exec_measure_join(ExecMeasureShared *shared, GError **error);

/* Waits until all threads have come; the caller's work on the device is done before.  False also on
 * EXEC_ERROR_INTERRUPTED, once somebody has asked for an end: the thread that sees it first ends
 * the others. */
bool exec_measure_meet(ExecMeasureRank *rank, GError **error);

/* All threads call it: thread 0 alone calls @decide, while the others wait, and all get what it
 * returned.  @about  (nullable) is handed on. */
bool exec_measure_decide(ExecMeasureRank *rank,
                         int (*decide)(ExecMeasureRank *rank, const void *about), const void *about,
                         int *decision, GError **error);

/* --- timing --- */

/*
 * Times what is queued between the two, on the device's own clock; the row of @key gets @share of
 * it at the next exec_measure_collect().  The device is kept busy before the first stamp for about
 * as long as the host took to queue the op before (the least time so far, and half as much again):
 * else the time of an op of many short kernels is the host's.  What the host takes becomes
 * ProfileMeasurement.queue_s.  Where cores are shared the threads go in step, so all busy ones call
 * it.
 */
bool exec_measure_begin(ExecMeasureRank *rank, const ProfileMeasurement *key, double share,
                        GError **error);
bool exec_measure_end(ExecMeasureRank *rank, const ProfileMeasurement *key, double share,
                      GError **error);

/* Empties the device's caches, where that is possible. */
void exec_measure_empty_caches(ExecMeasureRank *rank);

/* The same with an idle device, and nobody is waited for. */
bool exec_measure_begin_plain(ExecMeasureRank *rank, GError **error);
void exec_measure_end_plain(ExecMeasureRank *rank, const ProfileMeasurement *key, double share);

/* Returns the seconds of a timing whose stamps have been read. */
static inline double
exec_measure_seconds(const ExecMeasureTiming *timing)
{
    return (double)(timing->end_ns - timing->begin_ns) * 1e-9;
}

/* Returns whether somebody else had the thread's core meanwhile; false if that cannot be told. */
bool exec_measure_is_disturbed(const ExecMeasureRank *rank, const ExecMeasureTiming *timing);

/* Waits for the work, and adds the timings to the samples if they are recorded. */
bool exec_measure_collect(ExecMeasureRank *rank, GError **error);

/* --- stages --- */

/* Returns: (owned) a run of @stage: @n_micro_batches of the point's batch, in slices of its length,
 * of which the last may be shorter.  One at a time: the next call changes what this one reads. */
ExecStageRun *exec_measure_stage_run(ExecMeasureRank *rank, int32_t stage,
                                     const ExecGridPoint *point, int32_t n_micro_batches);

/* Runs one op of @run without timing it, on the input that its neighbours would have sent. */
bool exec_measure_run_op(ExecMeasureRank *rank, ExecStageRun *run, int32_t stage, ProfilePass pass,
                         int32_t micro_batch, int32_t slice, GError **error);

/* Times one op of @run. */
bool exec_measure_op(ExecMeasureRank *rank, ExecStageRun *run, int32_t stage, ProfilePass pass,
                     int32_t micro_batch, int32_t slice, GError **error);

/* Times embedding, layers and head at @point: every context and pass and, with @by_kind, layers
 * once more by the kinds of their ops and, where caches can be emptied, with cold and with warm
 * ones. */
bool exec_measure_point(ExecMeasureRank *rank, const ExecGridPoint *point, bool by_kind,
                        GError **error);
