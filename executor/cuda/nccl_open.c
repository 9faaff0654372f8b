/* The plugin's part of transport_nccl.h: opening and closing an endpoint. */
#include "executor/cuda/nccl_comm.h"

#include <string.h>

#define MEET_NS (INT64_C(60) * 1000000000)

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
    g_autofree int32_t *ranks = g_new(int32_t, (size_t)host->n_ranks);

    for (int32_t i = 0; i < host->n_ranks; i++)
        ranks[i] = i;
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
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_UNSUPPORTED,
                    "transport nccl: rank 0 has NCCL %s, rank %d has %s: all need the same", first,
                    i, other);
        return false;
    }
    return true;
}

static bool
check_devices(const Facts *facts, int32_t n_ranks, GError **error)
{
    for (int32_t i = 0; i < n_ranks; i++)
        for (int32_t j = i + 1; j < n_ranks; j++)
            if (strcmp(facts[i].host, facts[j].host) == 0 &&
                strcmp(facts[i].bus, facts[j].bus) == 0) {
                g_set_error(error, EXEC_ERROR, EXEC_ERROR_UNSUPPORTED,
                            "transport nccl: ranks %d and %d have the same device, cuda:%d (%s), "
                            "which NCCL refuses; ranks on one device: --transport local",
                            i, j, facts[i].device, facts[i].bus);
                return false;
            }
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
    g_free(state->reason);
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
    state->meet_ns = options->timeout_ns > 0 ? options->timeout_ns : MEET_NS;
    state->comms = g_ptr_array_new();
    state->letters = g_array_new(false, false, sizeof(ExecNcclLetter));
    g_mutex_init(&state->mutex);
    g_cond_init(&state->ends);
    *transport = (ExecTransport){.ops = &exec_nccl_ops,
                                 .rank = host->rank,
                                 .n_ranks = host->n_ranks,
                                 .queues = true,
                                 .state = state};
    TRY_CUDA(cudaEventCreateWithFlags(&state->written, cudaEventDisableTiming), error);
    exec_cuda_state(backend)->watch = (ExecCudaWatch){.look = exec_nccl_look, .user_data = state};
    state->poller = g_thread_new("nccl", exec_nccl_poll_main, state);
    return check_facts(state, options, error);
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
