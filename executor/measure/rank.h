/*
 * executor/measure/rank.h - what one thread of the profiler is, and what it does in lockstep with
 * the others.
 *
 * Private to executor/measure*.c.
 */
#ifndef EXECUTOR_MEASURE_RANK_H
#define EXECUTOR_MEASURE_RANK_H

#include <stdatomic.h>

#include "executor/measure/measure.h"
#include "executor/measure/budget.h"
#include "executor/measure/grid.h"
#include "executor/measure/kinds.h"
#include "executor/transport/local.h"
#include "executor/transport/samples.h"
#include "executor/model/stage.h"
#include "executor/transport/device.h"
#include "executor/measure/variation.h"
#include "schedule/plan.h"

G_BEGIN_DECLS

typedef struct ExecMeasureRank ExecMeasureRank;

/* Shared by all threads. */
typedef struct {
    const ExecMeasureOptions *o; /* (borrowed) with defaults filled in */
    const Plan *plan;            /* (borrowed) three stages on one rank: embedding, layers, head */
    ExecLocalHub *hub;           /* (borrowed) */
    ExecSamples *samples;        /* (borrowed) */
    ExecVariation *variation;    /* (borrowed, nullable) */
    int32_t n_threads;           /* >= 2: messages need a pair */
    int32_t n_busy;              /* of which compute: the concurrency */
    int64_t largest_batch;       /* that the job runs */
    int64_t flush_bytes;         /* written before every op, to empty the cache; 0: none */
    bool has_optimizer;          /* state for it is wanted */
    bool has_collectives;        /* between GPUs: none between ranks of one */
    ExecBudgetLinks *links;      /* (borrowed, nullable) thread 0's; NULL: all are timed */
    bool times_link;             /* between barriers: whether the next one is */
    int64_t link_begin_ns;       /* thread 0's */
    /* More busy threads than cores: an op takes as long as all of them need for one each. */
    bool shares_cores;
    int64_t *arrived_ns, *finished_ns; /* (borrowed) by thread, between barriers */
    /* Whether a thread had its core is looked at: never on a GPU, nor where cores are shared. */
    bool watches_cores;
    bool (*job)(ExecMeasureRank *rank, GError **error);
    void *job_data; /* (borrowed) of the job's file */
    atomic_bool stop;
    atomic_bool is_started, is_done; /* of what runs beside: measure_beside.c */
    /* Thread 0's: copies of so many bytes and more are left out, and why; 0: none. */
    int64_t too_large_copy_bytes;
    char *too_large_why; /* (owned, nullable) */
    GMutex mutex;
    GError *error;           /* (owned, nullable) the first, under the mutex */
    int64_t workspace_bytes; /* under the mutex: most that a backend held for itself at the end */
} ExecMeasureShared;

static inline bool
exec_measure_is_interrupted(const ExecMeasureShared *shared)
{
    return shared->o->stop != NULL && g_atomic_int_get(shared->o->stop) != 0;
}

/* The stages of the plan, by chunk. */
enum {
    EXEC_MEASURE_EMBEDDING,
    EXEC_MEASURE_LAYERS,
    EXEC_MEASURE_HEAD,
    EXEC_MEASURE_STAGES,
};

/* An op whose stamps are not read yet. */
typedef struct {
    ProfileMeasurement key;
    double share;
    int64_t begin_ns, end_ns;
    int64_t thread_begin_ns, thread_end_ns; /* exec_thread_ns() before and behind these */
} ExecMeasureTiming;

#define EXEC_MEASURE_MAX_TIMINGS 1024

struct ExecMeasureRank {
    ExecMeasureShared *shared;
    ExecTransport transport, host_transport;
    ExecDeviceTransport *device_transport; /* (owned, nullable) */
    ExecBackend *backend;                  /* (owned) */
    ExecPool *pool;                        /* (owned) */
    ExecComm comm;
    ExecModel *model; /* (owned) */
    ExecStageScratch scratch;
    ExecKinds *kinds;                /* (owned) */
    bool by_kind;                    /* ops are timed by kind, not whole */
    ExecBlock message, x, dx, flush; /* x, dx: what stages get */
    int32_t *tokens;                 /* (owned by the backend) */
    double *loss;                    /* (owned by the backend) */
    int32_t *members;                /* (owned) all threads */
    bool busy;                       /* computes; else only keeps pace */
    bool record;                     /* not in warming repetitions */
    ExecMeasureTiming *timings;      /* (owned) EXEC_MEASURE_MAX_TIMINGS */
    int n_timings;
    GArray *slices, *sequences; /* (owned) of int64_t, of the stage run */
};

/* --- measure_rank.c --- */

typedef struct {
    ExecMeasureShared *shared;
    int32_t rank;
} ExecMeasureStart;

/* A thread's function; @user_data is an ExecMeasureStart (borrowed until the thread ends). */
gpointer exec_measure_rank_main(gpointer user_data);

/* --- measure_threads.c --- */

/* Threads of one job, and what they share. */
typedef struct {
    ExecMeasureShared shared; /* the caller's to fill, but for clocks, mutex and error */
    ExecMeasureStart *starts; /* (owned) */
    GThread **threads;        /* (owned) */
    int64_t *clocks;          /* (owned) */
} ExecMeasureThreads;

void exec_measure_start(ExecMeasureThreads *threads);
/* Waits for them all; false with the error of the first that failed. */
bool exec_measure_join(ExecMeasureThreads *threads, GError **error);

/* --- measure_rank.c --- */

/* Before every meeting and every op: EXEC_ERROR_INTERRUPTED once somebody has asked for an end.
 * The thread that sees it first ends the others. */
bool exec_measure_goes_on(const ExecMeasureRank *rank, GError **error);

/* All threads meet; before it the rank's work is done. */
bool exec_measure_meet(ExecMeasureRank *rank, GError **error);

/*
 * Times what is queued between the two, on the device's own clock; the row of @key gets @share of
 * it at the next exec_measure_collect().  With cold caches, where the device can say so
 * (shared->flush_bytes); in step with all other busy threads where cores are shared, so all of them
 * call it.
 */
bool exec_measure_begin(ExecMeasureRank *rank, GError **error);
bool exec_measure_end(ExecMeasureRank *rank, const ProfileMeasurement *key, double share,
                      GError **error);

/* The same as it comes: caches as they are, nobody waited for. */
bool exec_measure_begin_plain(ExecMeasureRank *rank, GError **error);
void exec_measure_end_plain(ExecMeasureRank *rank, const ProfileMeasurement *key, double share);

/* Whether somebody else had the thread's core meanwhile; false where that cannot be told. */
bool exec_measure_is_disturbed(const ExecMeasureRank *rank, const ExecMeasureTiming *timing);

/* Waits for the work and adds the samples. */
bool exec_measure_collect(ExecMeasureRank *rank, GError **error);

/* --- measure_stage.c --- */

/* A run of @stage: @n_micro_batches of the point's batch in slices of its length (the last one
 * shorter), which cover the sequence.  One at a time: the next call changes what this one reads. */
ExecStageRun *exec_measure_stage_run(ExecMeasureRank *rank, int32_t stage,
                                     const ExecGridPoint *point, int32_t n_micro_batches);

/* One op of @run, timed. */
bool exec_measure_op(ExecMeasureRank *rank, ExecStageRun *run, int32_t stage, ProfilePass pass,
                     int32_t micro_batch, int32_t slice, GError **error);

/* Embedding, layers and head at @point: every context, pass and, with @by_kind, kind of op. */
bool exec_measure_point(ExecMeasureRank *rank, const ExecGridPoint *point, bool by_kind,
                        GError **error);

/* --- measure_links.c: what needs no grid --- */

bool exec_measure_optimizer(ExecMeasureRank *rank, GError **error);
bool exec_measure_communication(ExecMeasureRank *rank, GError **error);
bool exec_measure_copies(ExecMeasureRank *rank, GError **error);
bool exec_measure_launch(ExecMeasureRank *rank, GError **error);

/* --- measure_layers.c --- */

/* The state of the job that times layers; thread 0's between barriers. */
typedef struct {
    ExecGrid *grid;   /* (borrowed) */
    Profile *profile; /* (borrowed) what is known, for predictions between points */
    int64_t tp;
    const ExecBudget *budget; /* (borrowed) without the time that setting up takes */
    int64_t created_ns;       /* before the threads were started */
    int64_t begin_ns;         /* before created_ns by what a resumed profile took */
    int64_t round;
    double spent_before_s;    /* before this round */
    _Atomic int64_t round_ns; /* this round's part of the budget */
    bool wants_all;           /* points were asked for: all are timed */
    int32_t min_repetitions, max_repetitions;
    atomic_int n_repetitions; /* finished that count, those of a resumed profile included */
    int32_t n_disturbed;      /* finished that do not: exec_budget_counts() */
    ExecSamplesTotal before;  /* this repetition */
    atomic_int n_timed;       /* points of the grid */
    bool with_links;          /* also what does not depend on tp */
    bool (*keep)(void *user_data, bool now, GError **error); /* writes what is there to a file */
    void *user_data;
    int next;            /* between barriers: the point for all to time */
    bool more;           /* between barriers: whether it, or all of them, are timed once more */
    double links_s;      /* what the last pass over the links took */
    double points_s[2];  /* what timing all points took the last time: whole, and by kind too */
    double required_s;   /* out: what the points took that are timed whatever they take */
    bool has_all_points; /* out: no point is missing for want of time */
    double setup_s;      /* out: what making the ranks took */
} ExecMeasureLayers;

bool exec_measure_layers(ExecMeasureRank *rank, GError **error);

/* --- measure_beside.c --- */

/* Forwards in a row: what runs beside them lasts longer than one. */
#define EXEC_MEASURE_FORWARDS 4

/* A layer's time on a share of the device, alone and beside what its job_data, an
 * ExecMeasureBeside, gets samples of. */
typedef struct {
    ExecGridPoint point; /* one slice of it */
    /* (owned) of double; thread 0's: those that were disturbed apart */
    GArray *seconds[PROFILE_BESIDE_N], *disturbed[PROFILE_BESIDE_N];
    int64_t deadline_ns; /* no more repetitions after it */
    bool more;           /* between barriers */
} ExecMeasureBeside;

bool exec_measure_beside(ExecMeasureRank *rank, GError **error);

G_END_DECLS

#endif /* EXECUTOR_MEASURE_RANK_H */
