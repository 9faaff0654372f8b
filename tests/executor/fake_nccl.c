/*
 * tests/executor/fake_nccl.c - a libnccl.so.2 for the emulated GPU: processes or threads of one
 * machine exchange bytes through files that they all map.
 *
 * As in NCCL: calls return before the work is done, which waits in its stream; a send is done when
 * it has been received; communicators that do not block say so until all members are there; the
 * first call on one waits for all members' first call; two ranks of a host on a device are refused;
 * who is gone is an asynchronous error, and the work ends only by ncclCommAbort().
 *
 * FAKE_NCCL, a list like "rank=1,async=5":
 *   version=N      the library's (22809)           init=C   communicators fail with result C
 *   missing=1      communicators are never complete
 *   call=N         the N-th call with data returns ncclInvalidUsage
 *   async=N        ... is followed by ncclSystemError
 *   hang=N         ... never ends                   kill=N   ... ends the process
 *   rank=R         in rank R's process only (DEGAS_RANK)
 */
#include <cuda_runtime_api.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "executor/cuda/nccl_comm.h"

#include "tests/executor/fake_knob.h"

#define MAX_RANKS 16
#define CHANNEL_BYTES 4096 /* far less than a message */

/* Of a sender and a receiver; counts of bytes since the beginning. */
typedef struct {
    atomic_uint_fast64_t n_sent, n_taken;
    char data[CHANNEL_BYTES];
} Channel;

/* What all members map. */
typedef struct {
    atomic_int n_joined;
    atomic_bool has_called[MAX_RANKS];
    int pid[MAX_RANKS];
    char host[MAX_RANKS][128], bus[MAX_RANKS][32];
    Channel channels[MAX_RANKS][MAX_RANKS]; /* from, to */
} Segment;

typedef struct {
    Segment *segment;
    char path[128];
    int rank, n;
    atomic_int result; /* an asynchronous error */
    atomic_bool aborted, has_called;
    atomic_int n_running;
} Comm;

enum {
    RESULT_INVALID_USAGE = 5,
};

/* --- knobs --- */

static int64_t
knob(const char *name, int64_t standard)
{
    return fake_knob_of("FAKE_NCCL", name, standard);
}

/* Of faults, which are one rank's where FAKE_NCCL says so. */
static int64_t
fault(const char *name, int64_t standard)
{
    const int64_t rank = knob("rank", -1);
    const char *own = getenv("DEGAS_RANK");

    return rank >= 0 && (own == NULL || atoll(own) != rank) ? standard : knob(name, standard);
}

static atomic_int_fast64_t n_calls; /* with data */

/* --- communicators --- */

int
ncclGetVersion(int *version)
{
    *version = (int)fault("version", 22809);
    return EXEC_NCCL_SUCCESS;
}

const char *
ncclGetErrorString(int result)
{
    static const char *const texts[] = {
        "no error",
        "unhandled cuda error",
        "unhandled system error",
        "internal error",
        "invalid argument",
        "invalid usage",
        "remote process exited or there was a network error",
        "NCCL operation in progress",
    };

    return texts[result & 7];
}

const char *
ncclGetLastError(void *comm)
{
    return comm != NULL && atomic_load(&((Comm *)comm)->result) == RESULT_INVALID_USAGE
               ? "Duplicate GPU detected\n"
               : "";
}

/* A file of zeros. */
int
ncclGetUniqueId(ExecNcclId *id)
{
    const char *folder = getenv("TMPDIR");

    memset(id, 0, sizeof *id);
    snprintf(id->bytes, sizeof id->bytes, "%s/degas-nccl-XXXXXX", folder != NULL ? folder : "/tmp");
    const int fd = mkstemp(id->bytes);
    if (fd < 0 || ftruncate(fd, sizeof(Segment)) != 0)
        return EXEC_NCCL_SYSTEM_ERROR;
    close(fd);
    return EXEC_NCCL_SUCCESS;
}

static bool
has_duplicates(const Segment *s, int n)
{
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n; j++)
            if (strcmp(s->host[i], s->host[j]) == 0 && strcmp(s->bus[i], s->bus[j]) == 0)
                return true;
    return false;
}

int
ncclCommInitRankConfig(void **handle, int n, ExecNcclId id, int rank, ExecNcclConfig *config)
{
    const int fd = open(id.bytes, O_RDWR);
    const char *host = getenv("NCCL_HOSTID");
    int device = 0;

    if (config->magic != EXEC_NCCL_MAGIC || config->blocking != 0 || n > MAX_RANKS || fd < 0)
        return RESULT_INVALID_USAGE;
    Comm *comm = calloc(1, sizeof *comm);
    comm->segment = mmap(NULL, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    comm->rank = rank;
    comm->n = n;
    snprintf(comm->path, sizeof comm->path, "%s", id.bytes);
    Segment *s = comm->segment;
    s->pid[rank] = (int)getpid();
    snprintf(s->host[rank], sizeof s->host[rank], "%s", host != NULL ? host : "this host");
    cudaGetDevice(&device);
    cudaDeviceGetPCIBusId(s->bus[rank], sizeof s->bus[rank], device);
    if (atomic_fetch_add(&s->n_joined, 1) + 1 == n)
        unlink(comm->path);
    *handle = comm;
    return EXEC_NCCL_IN_PROGRESS;
}

/* Whether all members have made their first call: NCCL connects them then. */
static bool
is_connected(const Comm *comm)
{
    for (int i = 0; i < comm->n; i++)
        if (!atomic_load(&comm->segment->has_called[i]))
            return false;
    return true;
}

int
ncclCommGetAsyncError(void *handle, int *result)
{
    Comm *comm = handle;
    const Segment *s = comm->segment;

    *result = atomic_load(&comm->result);
    if (*result != EXEC_NCCL_SUCCESS)
        return EXEC_NCCL_SUCCESS;
    if (atomic_load(&s->n_joined) < comm->n || fault("missing", 0))
        *result = EXEC_NCCL_IN_PROGRESS;
    else if (has_duplicates(s, comm->n))
        atomic_store(&comm->result, *result = RESULT_INVALID_USAGE);
    else if (fault("init", 0))
        atomic_store(&comm->result, *result = (int)fault("init", 0));
    else if (atomic_load(&comm->has_called) && !is_connected(comm))
        *result = EXEC_NCCL_IN_PROGRESS;
    return EXEC_NCCL_SUCCESS;
}

static int
leave(Comm *comm)
{
    while (atomic_load(&comm->n_running) > 0)
        usleep(50);
    munmap(comm->segment, sizeof(Segment));
    free(comm);
    return EXEC_NCCL_SUCCESS;
}

int
ncclCommAbort(void *handle)
{
    Comm *comm = handle;

    atomic_store(&comm->aborted, true);
    unlink(comm->path); /* where some have never come */
    return leave(comm);
}

int
ncclCommFinalize(void *handle)
{
    return EXEC_NCCL_SUCCESS;
}

int
ncclCommDestroy(void *handle)
{
    return leave(handle);
}

/* --- transfers --- */

typedef struct {
    bool sends;
    int peer;
    char *data;
    size_t n_bytes, n_done;
} Transfer;

/* Some bytes; false: none could be moved. */
static bool
move_some(Comm *comm, Transfer *t)
{
    Channel *c = t->sends ? &comm->segment->channels[comm->rank][t->peer]
                          : &comm->segment->channels[t->peer][comm->rank];
    const uint64_t sent = atomic_load(&c->n_sent), taken = atomic_load(&c->n_taken);
    const size_t room = t->sends ? CHANNEL_BYTES - (size_t)(sent - taken) : (size_t)(sent - taken);
    const size_t left = t->n_bytes - t->n_done, n = left < room ? left : room;

    for (size_t i = 0; i < n; i++) {
        char *byte = &c->data[((t->sends ? sent : taken) + i) % CHANNEL_BYTES];
        if (t->sends)
            *byte = t->data[t->n_done + i];
        else
            t->data[t->n_done + i] = *byte;
    }
    atomic_fetch_add(t->sends ? &c->n_sent : &c->n_taken, n);
    t->n_done += n;
    return n > 0;
}

static bool
is_done(const Comm *comm, const Transfer *t)
{
    const Channel *c = &comm->segment->channels[comm->rank][t->peer];

    /* A send, when the receiver has it all. */
    return t->n_done == t->n_bytes &&
           (!t->sends || atomic_load(&c->n_taken) >= atomic_load(&c->n_sent));
}

/* One on the same channel that began earlier and is not done. */
static bool
has_to_wait(const Comm *comm, const Transfer *transfers, int i)
{
    for (int j = 0; j < i; j++)
        if (transfers[j].sends == transfers[i].sends && transfers[j].peer == transfers[i].peer &&
            !is_done(comm, &transfers[j]))
            return true;
    return false;
}

static void
look_for_the_dead(Comm *comm)
{
    for (int i = 0; i < comm->n; i++)
        if (kill(comm->segment->pid[i], 0) != 0 && errno == ESRCH)
            atomic_store(&comm->result, EXEC_NCCL_REMOTE_ERROR);
}

/* All at once; false when the communicator was aborted. */
static bool
move_all(Comm *comm, Transfer *transfers, int n)
{
    for (int64_t round = 1;; round++) {
        bool all = true, any = false;
        if (atomic_load(&comm->aborted))
            return false;
        for (int i = 0; i < n; i++) {
            if (is_done(comm, &transfers[i]))
                continue;
            all = false;
            any |= !has_to_wait(comm, transfers, i) && move_some(comm, &transfers[i]);
        }
        if (all)
            return true;
        if (any)
            continue;
        usleep(20);
        if (round % 500 == 0)
            look_for_the_dead(comm);
    }
}

/* --- work in streams --- */

typedef enum {
    WORK_TRANSFERS,
    WORK_ALL_REDUCE,
    WORK_REDUCE_SCATTER,
} WorkKind;

typedef struct {
    Comm *comm;
    WorkKind kind;
    Transfer *transfers; /* (owned) */
    int n_transfers;
    const char *from; /* of sums */
    char *to;
    size_t n_bytes;
    int type;
    bool hangs;
} Work;

static float
load(int type, const char *x, size_t i)
{
    float value;

    if (type == EXEC_NCCL_FLOAT32) {
        memcpy(&value, x + 4 * i, 4);
    } else {
        uint16_t half;
        memcpy(&half, x + 2 * i, 2);
        const uint32_t bits = (uint32_t)half << 16;
        memcpy(&value, &bits, 4);
    }
    return value;
}

static void
store(int type, char *x, size_t i, float value)
{
    uint32_t bits;

    memcpy(&bits, &value, 4);
    if (type == EXEC_NCCL_FLOAT32) {
        memcpy(x + 4 * i, &bits, 4);
    } else {
        const uint16_t half = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
        memcpy(x + 2 * i, &half, 2);
    }
}

/* The first member adds in the order of ranks and tells all. */
static bool
sum(Comm *comm, const Work *w, char *total)
{
    const size_t n = w->n_bytes / (w->type == EXEC_NCCL_FLOAT32 ? 4 : 2);
    char *other = malloc(w->n_bytes + 1);
    bool ok = true;

    memcpy(total, w->from, w->n_bytes);
    for (int r = 1; ok && r < comm->n && comm->rank == 0; r++) {
        ok = move_all(comm, &(Transfer){false, r, other, w->n_bytes, 0}, 1);
        for (size_t i = 0; ok && i < n; i++)
            store(w->type, total, i, load(w->type, total, i) + load(w->type, other, i));
    }
    for (int r = 1; ok && r < comm->n && comm->rank == 0; r++)
        ok = move_all(comm, &(Transfer){true, r, total, w->n_bytes, 0}, 1);
    if (comm->rank != 0)
        ok = move_all(comm, &(Transfer){true, 0, total, w->n_bytes, 0}, 1) &&
             move_all(comm, &(Transfer){false, 0, total, w->n_bytes, 0}, 1);
    free(other);
    return ok;
}

static void
run_sum(Comm *comm, const Work *w)
{
    char *total = malloc(w->n_bytes + 1);
    const size_t each = w->n_bytes / (size_t)comm->n;

    if (sum(comm, w, total)) {
        if (w->kind == WORK_ALL_REDUCE)
            memcpy(w->to, total, w->n_bytes);
        else
            memcpy(w->to, total + (size_t)comm->rank * each, each);
    }
    free(total);
}

static void
run_work(void *data)
{
    Work *w = data;
    Comm *comm = w->comm;

    while (w->hangs && !atomic_load(&comm->aborted))
        usleep(1000);
    if (w->kind == WORK_TRANSFERS)
        move_all(comm, w->transfers, w->n_transfers);
    else
        run_sum(comm, w);
    free(w->transfers);
    free(w);
    atomic_fetch_sub(&comm->n_running, 1);
}

/* --- groups --- */

static _Thread_local int depth;
static _Thread_local Work *grouped; /* (owned) transfers of the open group */
static _Thread_local cudaStream_t grouped_stream;

static int
submit(const Work *work, cudaStream_t stream)
{
    Comm *comm = work->comm;
    Work *w = malloc(sizeof *w);
    const int64_t call = atomic_fetch_add(&n_calls, 1) + 1;

    *w = *work;
    if (call == fault("kill", 0)) {
        usleep(200000); /* so that the watcher has heard of this op */
        raise(SIGKILL);
    }
    if (call == fault("call", 0)) {
        free(w->transfers);
        free(w);
        return RESULT_INVALID_USAGE;
    }
    if (call == fault("async", 0))
        atomic_store(&comm->result, EXEC_NCCL_SYSTEM_ERROR);
    w->hangs = call == fault("async", 0) || call == fault("hang", 0);
    atomic_fetch_add(&comm->n_running, 1);
    atomic_store(&comm->has_called, true);
    atomic_store(&comm->segment->has_called[comm->rank], true);
    cudaLaunchHostFunc(stream, run_work, w);
    return is_connected(comm) ? EXEC_NCCL_SUCCESS : EXEC_NCCL_IN_PROGRESS;
}

int
ncclGroupStart(void)
{
    depth++;
    return EXEC_NCCL_SUCCESS;
}

int
ncclGroupEnd(void)
{
    Work *work = grouped;

    if (--depth > 0 || work == NULL)
        return EXEC_NCCL_SUCCESS;
    grouped = NULL;
    const int result = submit(work, grouped_stream);
    free(work);
    return result;
}

/* Into the open group, or one of its own. */
static int
add_transfer(Comm *comm, bool sends, int peer, const void *data, size_t n_bytes,
             cudaStream_t stream)
{
    if (grouped == NULL) {
        grouped = calloc(1, sizeof *grouped);
        grouped->comm = comm;
        grouped_stream = stream;
    }
    grouped->transfers =
        realloc(grouped->transfers, sizeof(Transfer) * (size_t)(grouped->n_transfers + 1));
    grouped->transfers[grouped->n_transfers++] =
        (Transfer){sends, peer, (char *)(uintptr_t)data, n_bytes, 0};
    return EXEC_NCCL_SUCCESS;
}

/* --- calls with data --- */

int
ncclSend(const void *from, size_t n, int type, int to, void *comm, cudaStream_t stream)
{
    ncclGroupStart();
    add_transfer(comm, true, to, from, n, stream);
    return ncclGroupEnd();
}

int
ncclRecv(void *to, size_t n, int type, int from, void *comm, cudaStream_t stream)
{
    ncclGroupStart();
    add_transfer(comm, false, from, to, n, stream);
    return ncclGroupEnd();
}

int
ncclBroadcast(const void *from, void *to, size_t n, int type, int root, void *handle,
              cudaStream_t stream)
{
    Comm *comm = handle;

    if (from != to) /* in place only: all that is asked here */
        return RESULT_INVALID_USAGE;
    ncclGroupStart();
    for (int r = 0; r < comm->n; r++)
        if (r != root && (comm->rank == root || comm->rank == r))
            add_transfer(comm, comm->rank == root, comm->rank == root ? r : root, to, n, stream);
    return ncclGroupEnd();
}

int
ncclAllGather(const void *from, void *to, size_t n_each, int type, void *handle,
              cudaStream_t stream)
{
    Comm *comm = handle;

    if (from != (char *)to + (size_t)comm->rank * n_each)
        return RESULT_INVALID_USAGE;
    ncclGroupStart();
    for (int r = 0; r < comm->n; r++)
        ncclBroadcast((char *)to + (size_t)r * n_each, (char *)to + (size_t)r * n_each, n_each,
                      type, r, comm, stream);
    return ncclGroupEnd();
}

static int
reduce(WorkKind kind, const void *from, void *to, size_t n, int type, Comm *comm,
       cudaStream_t stream)
{
    const Work work = {
        .comm = comm,
        .kind = kind,
        .from = from,
        .to = to,
        .n_bytes = n * (type == EXEC_NCCL_FLOAT32 ? 4 : 2),
        .type = type,
    };

    return submit(&work, stream);
}

int
ncclAllReduce(const void *from, void *to, size_t n, int type, int op, void *comm,
              cudaStream_t stream)
{
    return reduce(WORK_ALL_REDUCE, from, to, n, type, comm, stream);
}

int
ncclReduceScatter(const void *from, void *to, size_t n_each, int type, int op, void *comm,
                  cudaStream_t stream)
{
    return reduce(WORK_REDUCE_SCATTER, from, to, n_each * (size_t)((Comm *)comm)->n, type, comm,
                  stream);
}
