/*
 * executor/run/shared.h - ExecShared is what all ranks of a run share in this process: the plan,
 * the data, the times and losses of all steps, what each rank is doing, and the first failure.
 *
 * With transport `local` all ranks are threads of this process.  With `mpi` and `nccl` this process
 * has one of them, and rank 0's process gathers what the others leave behind (gather.c).
 *
 * An ExecShared is freed by the last who uses it: a rank that hangs keeps it alive after the run
 * has been given up.  So it holds copies of what the caller lent.
 *
 * Threads: what is under the mutex is said below; records are written by their rank alone, and read
 * by others after the rank has ended, but for the atomics.
 *
 * Private to executor/run/.
 */
#pragma once

#include <stdatomic.h>

#include "executor/run/checkpoint.h"
#include "executor/run/data.h"
#include "executor/run/run.h"
#include "executor/transport/local.h"
#include "executor/transport/transport.h"

/* What a rank is doing, for the watch and for messages. */
typedef enum {
    EXEC_DOING_START,
    EXEC_DOING_DATA, /* it reads training data */
    EXEC_DOING_OP,
    EXEC_DOING_REDUCE,
    EXEC_DOING_OPTIMIZER,
    EXEC_DOING_BARRIER,
    EXEC_DOING_CHECKPOINT,
    EXEC_DOING_COLLECTIVES, /* it times them, for a profile */
    EXEC_DOING_END,         /* results are gathered */
    EXEC_DOING_NOTHING,     /* it has ended */
} ExecDoing;

/* What one rank leaves behind. */
typedef struct {
    atomic_int doing; /* ExecDoing */
    atomic_int_fast64_t op, step, since_ns;
    atomic_int_fast64_t saving_step; /* of the checkpoint that is being written; 0: none */

    int64_t peak_memory_bytes;
    /* (owned) Ring of the last EXEC_TRACED_STEPS steps: step s is at s modulo that. */
    GArray *events[EXEC_TRACED_STEPS]; /* of TraceEvent, with times of the monotonic clock */
    GArray *memory[EXEC_TRACED_STEPS]; /* of TraceMemory */
    float *gradients;                  /* (owned, nullable) of step 0, for verification */
    GArray *parameters;                /* (owned, nullable) of ExecParameter, likewise */
} ExecRankRecord;

/* What to subtract from the times of another process's clock: a straight line between two readings,
 * before the first step and after the last. */
typedef struct {
    int64_t at_ns[2];     /* when they were read, on that clock */
    int64_t offset_ns[2]; /* how far it was ahead of rank 0's */
    int64_t error_ns;     /* how wrong an offset may be */
} ExecClock;

typedef struct {
    ModelArch *arch;          /* (owned) */
    Plan *plan;               /* (owned) */
    Schedule *schedule;       /* (owned) */
    ExecData *data;           /* (owned) */
    ExecLocalHub *hub;        /* (owned, nullable) transport local */
    char *device;             /* (owned) */
    char *wanted_attention;   /* (owned, nullable) ExecRunOptions.attention */
    int64_t *predicted_bytes; /* (owned, nullable) [pp] */
    ExecRunOptions o;         /* ranks may not follow its pointers, which are the caller's */
    int32_t n_ranks;
    int32_t *everyone; /* (owned) 0, 1, ... n_ranks - 1 */

    /* Where ranks are processes: */
    int32_t own_rank;       /* -1: ranks are threads */
    ExecTransport endpoint; /* valid while is_open */
    atomic_bool is_open;
    bool nccl;                     /* the transport */
    ExecTransport device_endpoint; /* wraps the other; valid while has_device_endpoint */
    atomic_bool has_device_endpoint;
    ExecClock *clocks; /* (owned) n_ranks; rank 0's process */

    char *offload_dir;          /* (owned, nullable) */
    char *checkpoint_dir;       /* (owned, nullable) where to save */
    ExecCheckpoint *checkpoint; /* (owned, nullable) to go on from */
    int64_t first_step;         /* steps done in that checkpoint, else 0 */
    int lock;                   /* of checkpoint.h, held by this process; -1: none */

    /* Written by rank 0 before it ends: */
    char *collectives;      /* (owned, nullable) */
    double stolen_fraction; /* base/host_steal.h */

    atomic_bool stop_wanted; /* the run ends before the next step */

    ExecRankRecord *records; /* (owned) n_ranks */

    GMutex mutex;
    GCond changed;
    /* Under the mutex: */
    /* (owned) by step * n_ranks + rank; begin and end on the monotonic clock, end 0 until the rank
     * has ended the step */
    double *losses;
    int64_t *begin_ns, *end_ns;
    int64_t n_whole_steps; /* a lower bound; see exec_shared_n_whole_steps() */
    char *backend;         /* (owned, nullable) what the first rank computes with */
    char *attention;       /* (owned, nullable) */
    char *watch_where;     /* (owned, nullable) where the watcher listens */
    int32_t n_threads;     /* still running */
    int32_t n_users;       /* threads and the caller */
    GError *error;         /* (owned, nullable) the first failure */
} ExecShared;

/* Returns: an ExecShared with one user, the caller; NULL on EXEC_ERROR_MEMORY, a SCHEDULE_ERROR, or
 * an error of the data or of the checkpoint. */
ExecShared *exec_shared_new(const ExecRunOptions *options, GError **error);

/* One user less; the last one frees it. */
void exec_shared_unref(ExecShared *shared);

/* Opens the checkpoint that the options ask to go on from.  @checkpoint  (out, owned) NULL: the run
 * begins at step 0.  EXEC_ERROR_UNSUPPORTED where the options contradict the checkpoint. */
bool exec_shared_find_checkpoint(const ExecRunOptions *options, ExecCheckpoint **checkpoint,
                                 GError **error);

static inline bool
exec_shared_is_distributed(const ExecShared *shared)
{
    return shared->own_rank >= 0;
}

/* The endpoint of @rank, for what any thread may ask of it; its ops are NULL before it is open. */
ExecTransport exec_shared_endpoint(const ExecShared *shared, int32_t rank);

/* From now on nobody asks the endpoint that wraps another: its owner may free it. */
void exec_shared_withdraw_device(ExecShared *shared);

/* Notes that @rank has ended @step, with times of this process's clock. */
void exec_shared_step_done(ExecShared *shared, int64_t step, int32_t rank, double loss,
                           int64_t begin_ns, int64_t end_ns);

/* Keeps the first failure of the run and stops all ranks.  @error is taken. */
void exec_shared_fail(ExecShared *shared, int32_t rank, GError *error);

/* Removes what @rank was saving when it failed.  Called only when the failure has been reported,
 * and the watcher, where there is one, knows of it: else other ranks would fail first, because the
 * folder is gone. */
void exec_shared_give_up_checkpoint(const ExecShared *shared, int32_t rank);

/* Returns: (owned) what @rank is doing: "F3.0s1 of step 2", "the gradient reduction of step 0", ...
 */
char *exec_shared_doing(ExecShared *shared, int32_t rank);

/* --- times of steps; the caller holds the mutex, or all threads have ended --- */

/* How many steps all ranks have ended. */
int64_t exec_shared_n_whole_steps(ExecShared *shared);

/* When the first rank began the step. */
int64_t exec_step_begin_ns(const ExecShared *shared, int64_t step);

/* From the first rank's begin to the last one's end. */
int64_t exec_step_ns(const ExecShared *shared, int64_t step);

/* The loss, as a mean over the tokens of the global batch. */
double exec_step_loss(const ExecShared *shared, int64_t step);

/* The median time of steps [first, end). */
int64_t exec_median_step_ns(const ExecShared *shared, int64_t first, int64_t end);
