/*
 * executor/cuda/nccl_comm.h - NCCL's library and its communicators, for nccl.c.
 *
 * What is used of NCCL's interface is declared here, so that a build needs no nccl.h: the library
 * is opened at run time, and its C interface has kept these functions since 2.18.  Where there is
 * an nccl.h, tests/executor/nccl_interface.c compares the two when it is compiled.
 *
 * Private to nccl.c and nccl_comm.c.
 */
#pragma once

#include <limits.h>
#include <stdatomic.h>

#include "executor/cuda/cuda.h"
#include "executor/cuda/nccl.h"

/* --- NCCL's --- */

typedef enum {
    EXEC_NCCL_SUCCESS = 0,
    EXEC_NCCL_SYSTEM_ERROR = 2,
    EXEC_NCCL_REMOTE_ERROR = 6,
    EXEC_NCCL_IN_PROGRESS = 7,
} ExecNcclResult;

enum {
    EXEC_NCCL_UINT8 = 1,
    EXEC_NCCL_FLOAT32 = 7,
    EXEC_NCCL_BFLOAT16 = 9,
};

enum {
    EXEC_NCCL_SUM = 0,
};

typedef struct {
    char bytes[128];
} ExecNcclId;

/* ncclConfig_t as of 2.18; newer ones read as much as it has. */
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share;
} ExecNcclConfig;

/* What NCCL_CONFIG_INITIALIZER of nccl.h sets. */
#define EXEC_NCCL_MAGIC 0xcafebeefu
#define EXEC_NCCL_VERSION 21800 /* of the interface above, and the lowest */
#define EXEC_NCCL_UNDEFINED INT_MIN

typedef void *ExecNcclHandle; /* ncclComm_t */

/* The functions, by their names without "nccl". */
typedef struct {
    int (*GetVersion)(int *version);
    int (*GetUniqueId)(ExecNcclId *id);
    int (*CommInitRankConfig)(ExecNcclHandle *comm, int n, ExecNcclId id, int rank,
                              ExecNcclConfig *config);
    int (*CommFinalize)(ExecNcclHandle comm);
    int (*CommDestroy)(ExecNcclHandle comm);
    int (*CommAbort)(ExecNcclHandle comm);
    int (*CommGetAsyncError)(ExecNcclHandle comm, int *error);
    const char *(*GetErrorString)(int result);
    const char *(*GetLastError)(ExecNcclHandle comm);
    int (*AllReduce)(const void *from, void *to, size_t n, int type, int op, ExecNcclHandle comm,
                     cudaStream_t stream);
    int (*ReduceScatter)(const void *from, void *to, size_t n_each, int type, int op,
                         ExecNcclHandle comm, cudaStream_t stream);
    int (*AllGather)(const void *from, void *to, size_t n_each, int type, ExecNcclHandle comm,
                     cudaStream_t stream);
    int (*Broadcast)(const void *from, void *to, size_t n, int type, int root, ExecNcclHandle comm,
                     cudaStream_t stream);
    int (*Send)(const void *from, size_t n, int type, int to, ExecNcclHandle comm,
                cudaStream_t stream);
    int (*Recv)(void *to, size_t n, int type, int from, ExecNcclHandle comm, cudaStream_t stream);
    int (*GroupStart)(void);
    int (*GroupEnd)(void);
    int version;
} ExecNccl;

/* Returns: (borrowed, for ever) the library, opened at the first call; NULL, with a sentence, on
 * EXEC_ERROR_MISSING. */
const ExecNccl *exec_nccl_library(GError **error);

/* Returns: (owned) "2.28.9" for 22809. */
char *exec_nccl_version_text(int version);

/* --- communicators --- */

typedef struct {
    ExecNcclHandle handle;
    int32_t *ranks; /* (owned) */
    int32_t n, index;
    ExecMeeting what; /* its use; uses have communicators apart, so that none waits for another */
    cudaStream_t stream; /* of its own (owned) for messages; else the backend's, or its one aside */
} ExecNcclComm;

/* A message that has arrived or is on its way. */
typedef struct {
    int32_t from;
    int64_t tag, n_bytes;
    void *memory;
    cudaEvent_t arrived; /* (owned) */
} ExecNcclLetter;

typedef struct {
    const ExecNccl *nccl;
    ExecTransport *host;
    ExecBackend *backend;
    int32_t rank;
    int64_t meet_ns;
    GPtrArray *comms;    /* of ExecNcclComm */
    GArray *letters;     /* of ExecNcclLetter */
    cudaEvent_t written; /* (owned) a copy to send is complete; used again at once */
    bool broken;         /* communicators are aborted */
    atomic_bool waits;   /* for the device or NCCL */
    atomic_int_fast64_t waited_until_ns;
    GThread *poller; /* asks NCCL for asynchronous errors, whatever the host is doing */
    GMutex mutex;    /* of the list of communicators, their handles and @closing */
    GCond ends;
    bool closing;
    ExecAbort abort;
} ExecNcclState;

/* Returns: (borrowed) the communicator of these ranks for this use.  It is made when they first ask
 * for it, for which all members must come.  NULL with an error. */
ExecNcclComm *exec_nccl_comm(ExecNcclState *state, const ExecGroup *group, ExecMeeting what,
                             GError **error);

/* Waits until NCCL has carried out a call that returned @result; its work is then in the stream,
 * not done.  @call names it in errors. */
bool exec_nccl_follow(ExecNcclState *state, const ExecNcclComm *comm, int result, const char *call,
                      GError **error);

/* Makes every wait of this process fail, from any thread; the first reason is kept. */
void exec_nccl_abort(ExecNcclState *state, const char *reason);

/* Whether the run may go on.  After exec_nccl_abort() or a failure it may not: then the
 * communicators are aborted. */
bool exec_nccl_is_going(ExecNcclState *state, GError **error);

/* What the poller's thread runs: looks for asynchronous errors until the state closes. */
gpointer exec_nccl_poll_main(gpointer state);

/* ExecCudaWatch's look: notes whether the host waits, and answers exec_nccl_is_going(). */
bool exec_nccl_look(void *state, bool waits, GError **error);

/* Ends the communicators, together with all other members. */
bool exec_nccl_finish(ExecNcclState *state, GError **error);
/* Aborts the communicators that have not been ended, and frees all. */
void exec_nccl_clear_comms(ExecNcclState *state);
