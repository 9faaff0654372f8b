/*
 * executor/run/rank.h - one rank's thread: interprets its pipeline rank's ops, step after step.
 *
 * With transport `local` all ranks are threads of this process; with `mpi` this process has one of
 * them, and rank 0's gathers what the others leave behind (gather.h).
 *
 * All ranks share one ExecShared, which nobody frees before the last of them has left it: a rank
 * that hangs keeps it alive.  So it holds copies of what the caller lent.
 *
 * Private to executor/.
 */
#ifndef EXECUTOR_RUN_RANK_H
#define EXECUTOR_RUN_RANK_H

#include <stdatomic.h>

#include "executor/run/checkpoint.h"
#include "executor/run/data.h"
#include "executor/run/run.h"
#include "executor/transport/local.h"
#include "executor/transport/transport.h"

G_BEGIN_DECLS

/* What a rank is doing, for the watchdog and for messages. */
typedef enum {
    EXEC_DOING_START,
    EXEC_DOING_DATA, /* reads it */
    EXEC_DOING_OP,
    EXEC_DOING_REDUCE,
    EXEC_DOING_OPTIMIZER,
    EXEC_DOING_BARRIER,
    EXEC_DOING_CHECKPOINT,
    EXEC_DOING_COLLECTIVES, /* times them, for a profile */
    EXEC_DOING_END,         /* gathers results */
    EXEC_DOING_NOTHING,     /* has ended */
} ExecDoing;

/* What one rank leaves behind; written by its thread, read by others after it ended, but for the
 * atomics. */
typedef struct {
    atomic_int doing; /* ExecDoing */
    atomic_int_fast64_t op, step, since_ns;
    atomic_int_fast64_t saving_step; /* of the checkpoint that is being written; 0: none */

    int64_t peak_memory_bytes;
    /* (owned) ring of the last EXEC_TRACED_STEPS steps: events of step s are at s modulo that. */
    GArray *events[EXEC_TRACED_STEPS]; /* of TraceEvent, times absolute */
    GArray *memory[EXEC_TRACED_STEPS]; /* of TraceMemory */
    float *gradients;                  /* (owned, nullable) of step 0, for verification */
    GArray *parameters;                /* (owned, nullable) of ExecParameter, likewise */
} ExecRankRecord;

/* Another process's clock: subtract the offset, a straight line between two readings at_ns on it.
 */
typedef struct {
    int64_t at_ns[2], offset_ns[2]; /* at the beginning, at the end */
    int64_t error_ns;               /* what an offset may be off by */
} ExecClock;

typedef struct {
    ModelArch *arch;          /* (owned) */
    Plan *plan;               /* (owned) */
    Schedule *schedule;       /* (owned) */
    ExecData *data;           /* (owned) */
    ExecLocalHub *hub;        /* (owned, nullable) transport local */
    char *device;             /* (owned) */
    int64_t *predicted_bytes; /* (owned, nullable) [pp] */
    ExecRunOptions o;         /* pointers to the caller's things are not to be used by ranks */
    int32_t n_ranks;
    int32_t *everyone; /* (owned) 0, 1, ... n_ranks - 1 */

    /* Of a rank in a process of its own: */
    int32_t own_rank;       /* -1: the ranks are threads */
    ExecTransport endpoint; /* when is_open */
    atomic_bool is_open;
    bool nccl;                     /* the transport */
    ExecTransport device_endpoint; /* when has_device_endpoint: wraps the other */
    atomic_bool has_device_endpoint;
    /* (owned, nullable) under the mutex: what the first rank computes with */
    char *backend, *attention;
    char *watch_where; /* (owned, nullable) under the mutex: where the watcher listens */
    ExecClock *clocks; /* (owned) n_ranks; of rank 0 */

    char *collectives;          /* (owned, nullable) rank 0's, once it has ended */
    double stolen_fraction;     /* rank 0's, once it has ended: base/host_steal.h */
    char *offload_dir;          /* (owned, nullable) */
    char *checkpoint_dir;       /* (owned, nullable) where to save */
    ExecCheckpoint *checkpoint; /* (owned, nullable) to go on from */
    int64_t first_step;         /* steps done in the checkpoint, else 0 */
    int lock;                   /* checkpoint.h's, of this process; -1: none */

    atomic_bool stop_wanted; /* end before the next step */

    /* [step * n_ranks + rank]; begin and end on the monotonic clock */
    double *losses;
    int64_t *begin_ns, *end_ns;
    ExecRankRecord *records; /* (owned) n_ranks */

    GMutex mutex;
    GCond changed;
    /* Under the mutex: */
    int64_t n_whole_steps; /* a lower bound; see exec_shared_n_whole_steps() */
    int32_t n_threads;     /* still running */
    int32_t n_users;       /* threads and the caller */
    GError *error;         /* (owned, nullable) the first failure */
    int32_t failed_rank;
} ExecShared;

/* NULL on EXEC_ERROR_MEMORY or a SCHEDULE_ERROR. */
ExecShared *exec_shared_new(const ExecRunOptions *options, GError **error);
void exec_shared_unref(ExecShared *shared);

/* The checkpoint that the options ask to go on from; NULL: from the beginning.  EXEC_ERROR_
 * UNSUPPORTED where they contradict what is there. */
bool exec_shared_find_checkpoint(const ExecRunOptions *options, ExecCheckpoint **checkpoint,
                                 GError **error);

/* A thread's function; @user_data is an ExecRankStart, taken. */
typedef struct {
    ExecShared *shared;
    int32_t rank;
} ExecRankStart;
gpointer exec_rank_main(gpointer user_data);

static inline bool
exec_shared_is_distributed(const ExecShared *shared)
{
    return shared->own_rank >= 0;
}

/* What any thread may ask of a rank's endpoint; ops are NULL before it is open. */
ExecTransport exec_shared_endpoint(const ExecShared *shared, int32_t rank);

/* From now on nobody asks the endpoint that wraps another: it may go. */
void exec_shared_withdraw_device(ExecShared *shared);

/* Notes that @rank has ended @step, on this process's clock. */
void exec_shared_step_done(ExecShared *shared, int64_t step, int32_t rank, double loss,
                           int64_t begin_ns, int64_t end_ns);

/* Steps that all ranks have ended; the mutex is held. */
int64_t exec_shared_n_whole_steps(ExecShared *shared);

/* Records the first failure and stops everybody.  @error is taken. */
void exec_shared_fail(ExecShared *shared, int32_t rank, GError *error);

/* After a failure has been reported, to the watcher where there is one: removes what the rank was
 * saving.  Not before, or others would fail for want of the folder, and say so first. */
void exec_shared_give_up_checkpoint(const ExecShared *shared, int32_t rank);

/* Returns: (owned) "F3.0s1 of step 2", "the gradient reduction of step 0", ... */
char *exec_rank_doing(ExecShared *shared, int32_t rank);

G_END_DECLS

#endif /* EXECUTOR_RUN_RANK_H */
