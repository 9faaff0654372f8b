#include "executor/cuda/nccl.h"

#include <stdlib.h>
#include <string.h>

#include "executor/cuda/nccl_comm.h"
#include "executor/device/clock.h"

/* Of announcements, on the host transport: the one that no message of a step has (gather.c's). */
#define ANNOUNCEMENT_TAG 1

/* What its sender says of a message that it has handed to NCCL. */
typedef struct {
    int64_t tag, n_bytes;
} Announcement;

static inline ExecNcclState *
state_of(const ExecTransport *transport)
{
    return transport->state;
}

/* --- messages --- */

static ExecNcclComm *
direction(ExecNcclState *state, int32_t from, int32_t to, GError **error)
{
    const int32_t ranks[] = {from, to};
    const ExecGroup pair = {.ranks = ranks, .n = 2, .index = state->rank == to};

    return exec_nccl_comm(state, &pair, EXEC_MEET_MESSAGES, error);
}

/* @stream goes on when what the other has been given so far is done. */
static bool
order_streams(ExecNcclState *state, cudaStream_t first, cudaStream_t then, GError **error)
{
    TRY_CUDA(cudaEventRecord(state->written, first), error);
    TRY_CUDA(cudaStreamWaitEvent(then, state->written, 0), error);
    return true;
}

/* Between two stages of this rank: a letter that is here as soon as it is written. */
static bool
keep_letter(ExecNcclState *state, int64_t tag, void *copy, int64_t n_bytes, GError **error)
{
    ExecNcclLetter letter = {.from = state->rank, .tag = tag, .n_bytes = n_bytes, .memory = copy};

    TRY_CUDA(cudaEventCreateWithFlags(&letter.arrived, cudaEventDisableTiming), error);
    g_array_append_val(state->letters, letter);
    TRY_CUDA(cudaEventRecord(letter.arrived, exec_cuda_stream(state->backend)), error);
    return true;
}

/* To another rank. */
static bool
post_letter(ExecNcclState *state, int32_t to, int64_t tag, void *copy, int64_t n_bytes,
            GError **error)
{
    ExecTransport *host = state->host;
    const Announcement announcement = {.tag = tag, .n_bytes = n_bytes};
    const ExecNcclComm *comm = direction(state, state->rank, to, error);

    if (comm == NULL ||
        !order_streams(state, exec_cuda_stream(state->backend), comm->stream, error) ||
        !host->ops->send(host, to, ANNOUNCEMENT_TAG, &announcement, sizeof announcement, error))
        return false;
    const int result =
        state->nccl->Send(copy, (size_t)n_bytes, EXEC_NCCL_UINT8, 1, comm->handle, comm->stream);
    if (!exec_nccl_follow(state, comm, result, "ncclSend", error))
        return false;
    TRY_CUDA(cudaFreeAsync(copy, comm->stream), error);
    return true;
}

static bool
send_message(ExecTransport *transport, int32_t to, int64_t tag, const void *data, int64_t n_bytes,
             GError **error)
{
    ExecNcclState *state = state_of(transport);

    if (!exec_nccl_is_going(state, error))
        return false;
    void *copy = exec_cuda_alloc(state->backend, (size_t)n_bytes, "a message", error);
    if (copy == NULL)
        return false;
    exec_cuda_copy(state->backend, (size_t)n_bytes, data, copy);
    transport->sent_bytes += n_bytes;
    return to == state->rank ? keep_letter(state, tag, copy, n_bytes, error)
                             : post_letter(state, to, tag, copy, n_bytes, error);
}

/* Receives what @comm's sender sends next into memory of its own. */
static bool
begin_letter(ExecNcclState *state, const ExecNcclComm *comm, const Announcement *announced,
             GError **error)
{
    ExecNcclLetter letter = {
        .from = comm->ranks[0],
        .tag = announced->tag,
        .n_bytes = announced->n_bytes,
        .memory = exec_cuda_alloc_on(state->backend, comm->stream, (size_t)announced->n_bytes,
                                     "a message", error),
    };

    if (letter.memory == NULL)
        return false;
    TRY_CUDA(cudaEventCreateWithFlags(&letter.arrived, cudaEventDisableTiming), error);
    g_array_append_val(state->letters, letter);
    const int result = state->nccl->Recv(letter.memory, (size_t)letter.n_bytes, EXEC_NCCL_UINT8, 0,
                                         comm->handle, comm->stream);
    if (!exec_nccl_follow(state, comm, result, "ncclRecv", error))
        return false;
    TRY_CUDA(cudaEventRecord(letter.arrived, comm->stream), error);
    return true;
}

static bool
find_letter(ExecNcclState *state, int32_t from, int64_t tag, ExecNcclLetter *letter)
{
    for (guint i = 0; i < state->letters->len; i++) {
        *letter = g_array_index(state->letters, ExecNcclLetter, i);
        if (letter->from != from || letter->tag != tag)
            continue;
        g_array_remove_index(state->letters, i); /* equal ones stay in order */
        return true;
    }
    return false;
}

/* The host waits until the message is announced; the device, until it is there. */
static bool
wait_for_letter(ExecTransport *transport, int32_t from, int64_t tag, ExecNcclLetter *letter,
                GError **error)
{
    ExecNcclState *state = state_of(transport);
    ExecTransport *host = state->host;
    Announcement announced;

    transport->waited_ns = 0;
    while (!find_letter(state, from, tag, letter)) {
        const ExecNcclComm *comm = direction(state, from, state->rank, error);
        if (comm == NULL ||
            !host->ops->receive(host, from, ANNOUNCEMENT_TAG, &announced, sizeof announced,
                                error) ||
            !begin_letter(state, comm, &announced, error))
            return false;
        transport->waited_ns += host->waited_ns;
    }
    return true;
}

static bool
receive_message(ExecTransport *transport, int32_t from, int64_t tag, void *data, int64_t n_bytes,
                GError **error)
{
    ExecNcclState *state = state_of(transport);
    ExecNcclLetter letter;

    if (!exec_nccl_is_going(state, error) || !wait_for_letter(transport, from, tag, &letter, error))
        return false;
    TRY_CUDA(cudaStreamWaitEvent(exec_cuda_stream(state->backend), letter.arrived, 0), error);
    TRY_CUDA(cudaEventDestroy(letter.arrived), error);
    const bool ok = exec_check_length(transport, from, n_bytes, letter.n_bytes, error);
    if (ok)
        exec_cuda_copy(state->backend, (size_t)n_bytes, letter.memory, data);
    exec_cuda_release(state->backend, letter.memory);
    return ok;
}

/* --- collectives --- */

static int
nccl_type(Dtype dtype)
{
    return dtype == DTYPE_FP32   ? EXEC_NCCL_FLOAT32
           : dtype == DTYPE_BF16 ? EXEC_NCCL_BFLOAT16
                                 : EXEC_NCCL_UINT8;
}

/* The group's communicator of the queue at hand, when there is something to do with it. */
static const ExecNcclComm *
comm_for(ExecTransport *transport, const ExecGroup *group, GError **error)
{
    ExecNcclState *state = state_of(transport);
    const bool aside = exec_cuda_state(state->backend)->aside.is_in;
    const ExecNcclComm *comm =
        exec_nccl_comm(state, group, aside ? EXEC_MEET_ASIDE : EXEC_MEET_COLLECTIVES, error);

    return comm != NULL && exec_nccl_is_going(state, error) ? comm : NULL;
}

static void
count_ring(ExecTransport *transport, const ExecGroup *group, int64_t n_bytes)
{
    transport->sent_bytes += n_bytes / group->n * (group->n - 1);
}

static bool
all_reduce(ExecTransport *transport, const ExecGroup *group, Dtype dtype, void *data, int64_t n,
           GError **error)
{
    ExecNcclState *state = state_of(transport);

    g_return_val_if_fail(dtype == DTYPE_FP32 || dtype == DTYPE_BF16, false);
    if (group->n == 1 || n == 0)
        return true;
    const ExecNcclComm *comm = comm_for(transport, group, error);
    if (comm == NULL)
        return false;
    const int result = state->nccl->AllReduce(data, data, (size_t)n, nccl_type(dtype),
                                              EXEC_NCCL_SUM, comm->handle, comm->stream);
    count_ring(transport, group, 2 * n * dtype_bytes(dtype));
    return exec_nccl_follow(state, comm, result, "ncclAllReduce", error);
}

/* NCCL's chunks are equal; where ours are not, the whole sum serves. */
static bool
reduce_scatter(ExecTransport *transport, const ExecGroup *group, Dtype dtype, void *data, int64_t n,
               GError **error)
{
    ExecNcclState *state = state_of(transport);
    const int64_t n_each = n / group->n;

    g_return_val_if_fail(dtype == DTYPE_FP32 || dtype == DTYPE_BF16, false);
    if (n % group->n != 0)
        return all_reduce(transport, group, dtype, data, n, error);
    if (group->n == 1 || n == 0)
        return true;
    const ExecNcclComm *comm = comm_for(transport, group, error);
    if (comm == NULL)
        return false;
    char *own = (char *)data + group->index * n_each * dtype_bytes(dtype);
    const int result = state->nccl->ReduceScatter(data, own, (size_t)n_each, nccl_type(dtype),
                                                  EXEC_NCCL_SUM, comm->handle, comm->stream);
    count_ring(transport, group, n * dtype_bytes(dtype));
    return exec_nccl_follow(state, comm, result, "ncclReduceScatter", error);
}

/* What a call of a group that has not ended returned: that it was begun is a success. */
static int
begun(int result)
{
    return result == EXEC_NCCL_IN_PROGRESS ? EXEC_NCCL_SUCCESS : result;
}

/* Ends the group of calls, the last of which gave @result. */
static int
end_group(const ExecNccl *nccl, int result)
{
    const int ended = nccl->GroupEnd();

    return result != EXEC_NCCL_SUCCESS ? result : ended;
}

/* Unequal chunks: each from its member to all, in one group. */
static int
gather_unequal(const ExecNccl *nccl, const ExecNcclComm *comm, const ExecGroup *group,
               int64_t element, char *data, int64_t n)
{
    int result = nccl->GroupStart();

    for (int32_t i = 0; i < group->n && result == EXEC_NCCL_SUCCESS; i++) {
        const int64_t begin = exec_group_chunk_begin(group, n, i);
        const int64_t n_own = exec_group_chunk_begin(group, n, i + 1) - begin;
        char *chunk = data + begin * element;
        if (n_own > 0)
            result = begun(nccl->Broadcast(chunk, chunk, (size_t)(n_own * element), EXEC_NCCL_UINT8,
                                           i, comm->handle, comm->stream));
    }
    return end_group(nccl, result);
}

static bool
all_gather(ExecTransport *transport, const ExecGroup *group, Dtype dtype, void *data, int64_t n,
           GError **error)
{
    ExecNcclState *state = state_of(transport);
    const int64_t n_bytes = n * dtype_bytes(dtype), each = n_bytes / group->n;

    if (group->n == 1 || n == 0)
        return true;
    const ExecNcclComm *comm = comm_for(transport, group, error);
    if (comm == NULL)
        return false;
    const int result =
        n % group->n == 0
            ? state->nccl->AllGather((char *)data + group->index * each, data, (size_t)each,
                                     EXEC_NCCL_UINT8, comm->handle, comm->stream)
            : gather_unequal(state->nccl, comm, group, dtype_bytes(dtype), data, n);
    count_ring(transport, group, n_bytes);
    return exec_nccl_follow(state, comm, result, "ncclAllGather", error);
}

/* A send to and a receive from every other member, in one group. */
static int
exchange_pieces(const ExecNccl *nccl, const ExecNcclComm *comm, const ExecExchange *e)
{
    int64_t at_out = 0, at_in = 0;
    int result = nccl->GroupStart();

    for (int32_t i = 0; i < comm->n && result == EXEC_NCCL_SUCCESS; i++) {
        if (i != comm->index && e->out_bytes[i] > 0)
            result = begun(nccl->Send((const char *)e->out + at_out, (size_t)e->out_bytes[i],
                                      EXEC_NCCL_UINT8, i, comm->handle, comm->stream));
        if (result == EXEC_NCCL_SUCCESS && i != comm->index && e->in_bytes[i] > 0)
            result = begun(nccl->Recv((char *)e->in + at_in, (size_t)e->in_bytes[i],
                                      EXEC_NCCL_UINT8, i, comm->handle, comm->stream));
        at_out += e->out_bytes[i];
        at_in += e->in_bytes[i];
    }
    return end_group(nccl, result);
}

static bool
all_to_all(ExecTransport *transport, const ExecGroup *group, const ExecExchange *exchange,
           GError **error)
{
    ExecNcclState *state = state_of(transport);
    const int32_t own = group->index;

    g_return_val_if_fail(exchange->out_bytes[own] == exchange->in_bytes[own], false);
    if (exchange->out_bytes[own] > 0)
        exec_cuda_copy(state->backend, (size_t)exchange->out_bytes[own],
                       (const char *)exchange->out + exec_piece_begin(exchange->out_bytes, own),
                       (char *)exchange->in + exec_piece_begin(exchange->in_bytes, own));
    if (group->n == 1)
        return true;
    const ExecNcclComm *comm = comm_for(transport, group, error);
    if (comm == NULL)
        return false;
    transport->sent_bytes +=
        exec_piece_begin(exchange->out_bytes, group->n) - exchange->out_bytes[own];
    return exec_nccl_follow(state, comm, exchange_pieces(state->nccl, comm, exchange),
                            "ncclSend and ncclRecv", error);
}

static bool
broadcast(ExecTransport *transport, const ExecGroup *group, int32_t root, void *data,
          int64_t n_bytes, GError **error)
{
    ExecNcclState *state = state_of(transport);

    if (group->n == 1 || n_bytes == 0)
        return true;
    const ExecNcclComm *comm = comm_for(transport, group, error);
    if (comm == NULL)
        return false;
    const int result = state->nccl->Broadcast(data, data, (size_t)n_bytes, EXEC_NCCL_UINT8, root,
                                              comm->handle, comm->stream);
    transport->sent_bytes += group->index == root ? n_bytes : 0;
    return exec_nccl_follow(state, comm, result, "ncclBroadcast", error);
}

static bool
barrier(ExecTransport *transport, const ExecGroup *group, GError **error)
{
    ExecNcclState *state = state_of(transport);

    if (!state->backend->ops->synchronize(state->backend, error) ||
        !state->host->ops->barrier(state->host, group, error))
        return false;
    transport->waited_ns = state->host->waited_ns;
    return true;
}

static bool
meet(ExecTransport *transport, const ExecGroup *group, ExecMeeting what, GError **error)
{
    return exec_nccl_comm(state_of(transport), group, what, error) != NULL;
}

/* --- what others ask --- */

static int32_t
waiting_for(const ExecTransport *transport)
{
    const ExecNcclState *state = state_of(transport);
    const int32_t host = state->host->ops->waiting_for(state->host);

    if (host != EXEC_NOT_WAITING)
        return host;
    return atomic_load(&state->waits) ? EXEC_WAITING_FOR_GROUP : EXEC_NOT_WAITING;
}

static int64_t
waited_until_ns(const ExecTransport *transport)
{
    const ExecNcclState *state = state_of(transport);

    return MAX(state->host->ops->waited_until_ns(state->host),
               (int64_t)atomic_load(&state->waited_until_ns));
}

static int64_t
buffer_bytes(const ExecTransport *transport)
{
    const ExecTransport *host = state_of(transport)->host;

    return host->ops->buffer_bytes(host);
}

static void
abort_all(ExecTransport *transport, const char *reason)
{
    exec_nccl_abort(state_of(transport), reason);
}

static const ExecTransportOps ops = {
    .name = "nccl",
    .send = send_message,
    .receive = receive_message,
    EXEC_OWN_COLLECTIVES,
    .meet = meet,
    EXEC_OWN_ANSWERS,
    .abort = abort_all,
};

/* --- who has what --- */

/* What every rank must know of all others. */
typedef struct {
    char host[320]; /* as NCCL tells hosts apart */
    char bus[32];
    int32_t device, version;
} Facts;

static bool
exchange_facts(const ExecNcclState *state, const ExecNcclOptions *options, Facts *facts,
               GError **error)
{
    ExecTransport *host = state->host;
    Facts *own = &facts[state->rank];
    const char *id = g_getenv("NCCL_HOSTID");
    g_autofree int32_t *ranks = exec_ranks_new(host->n_ranks);

    const ExecGroup everyone = {.ranks = ranks, .n = host->n_ranks, .index = state->rank};
    g_strlcpy(own->host, id != NULL ? id : options->machine, sizeof own->host);
    own->device = exec_cuda_state(state->backend)->device;
    own->version = state->nccl->version;
    TRY_CUDA(cudaDeviceGetPCIBusId(own->bus, sizeof own->bus, own->device), error);
    return host->ops->all_gather(host, &everyone, DTYPE_FP8, facts,
                                 (int64_t)sizeof *facts * host->n_ranks, error);
}

static bool
check_versions(const Facts *facts, int32_t n_ranks, GError **error)
{
    for (int32_t i = 1; i < n_ranks; i++) {
        if (facts[i].version == facts[0].version)
            continue;
        g_autofree char *first = exec_nccl_version_text(facts[0].version);
        g_autofree char *other = exec_nccl_version_text(facts[i].version);
        return EXEC_FAIL(error, EXEC_ERROR_UNSUPPORTED,
                         "transport nccl: rank 0 has NCCL %s, rank %d has %s: all need the same",
                         first, i, other);
    }
    return true;
}

static bool
check_devices(const Facts *facts, int32_t n_ranks, GError **error)
{
    for (int32_t i = 0; i < n_ranks; i++)
        for (int32_t j = i + 1; j < n_ranks; j++)
            if (strcmp(facts[i].host, facts[j].host) == 0 &&
                strcmp(facts[i].bus, facts[j].bus) == 0)
                return EXEC_FAIL(
                    error, EXEC_ERROR_UNSUPPORTED,
                    "transport nccl: ranks %d and %d have the same device, cuda:%d (%s), "
                    "which NCCL refuses; ranks on one device: --transport local",
                    i, j, facts[i].device, facts[i].bus);
    return true;
}

static bool
check_facts(const ExecNcclState *state, const ExecNcclOptions *options, GError **error)
{
    const int32_t n_ranks = state->host->n_ranks;
    g_autofree Facts *facts = g_new0(Facts, (size_t)n_ranks);

    return exchange_facts(state, options, facts, error) && check_versions(facts, n_ranks, error) &&
           check_devices(facts, n_ranks, error);
}

/* --- lifecycle --- */

static bool
check_library(GError **error)
{
    return exec_nccl_library(error) != NULL;
}

static char *
describe_library(void)
{
    g_autofree char *version = exec_nccl_version_text(exec_nccl_library(NULL)->version);

    return g_strconcat("NCCL ", version, NULL);
}

static void
stop_polling(ExecNcclState *state)
{
    g_mutex_lock(&state->mutex);
    state->closing = true;
    g_cond_broadcast(&state->ends);
    g_mutex_unlock(&state->mutex);
    if (state->poller != NULL)
        g_thread_join(state->poller);
    state->poller = NULL;
}

static void
free_nccl(ExecTransport *transport)
{
    ExecNcclState *state = transport->state;

    if (state == NULL)
        return;
    exec_cuda_state(state->backend)->watch = (ExecCudaWatch){0};
    stop_polling(state);
    exec_nccl_clear_comms(state);
    for (guint i = 0; i < state->letters->len; i++)
        cudaEventDestroy(g_array_index(state->letters, ExecNcclLetter, i).arrived);
    g_array_unref(state->letters);
    if (state->written != NULL)
        cudaEventDestroy(state->written);
    g_mutex_clear(&state->mutex);
    g_cond_clear(&state->ends);
    exec_abort_clear(&state->abort);
    g_free(state);
    transport->state = NULL;
}

static bool
open_nccl(ExecTransport *host, ExecBackend *backend, const ExecNcclOptions *options,
          ExecTransport *transport, GError **error)
{
    const ExecNccl *nccl = exec_nccl_library(error);

    if (nccl == NULL)
        return false;
    ExecNcclState *state = g_new0(ExecNcclState, 1);
    state->nccl = nccl;
    state->host = host;
    state->backend = backend;
    state->rank = host->rank;
    state->meet_ns = options->timeout_ns > 0 ? options->timeout_ns : EXEC_MEET_NS;
    state->comms = g_ptr_array_new();
    state->letters = g_array_new(false, false, sizeof(ExecNcclLetter));
    g_mutex_init(&state->mutex);
    exec_abort_init(&state->abort);
    g_cond_init(&state->ends);
    *transport = (ExecTransport){
        .ops = &ops, .rank = host->rank, .n_ranks = host->n_ranks, .queues = true, .state = state};
    TRY_CUDA(cudaEventCreateWithFlags(&state->written, cudaEventDisableTiming), error);
    exec_cuda_state(backend)->watch = (ExecCudaWatch){.look = exec_nccl_look, .user_data = state};
    state->poller = g_thread_try_new("nccl", exec_nccl_poll_main, state, error);
    return state->poller != NULL && check_facts(state, options, error);
}

static bool
close_nccl(ExecTransport *transport, GError **error)
{
    return exec_nccl_finish(transport->state, error);
}

extern const ExecNcclPlugin exec_nccl_plugin;
const ExecNcclPlugin exec_nccl_plugin = {
    .check = check_library,
    .open = open_nccl,
    .describe = describe_library,
    .close = close_nccl,
    .free = free_nccl,
};
