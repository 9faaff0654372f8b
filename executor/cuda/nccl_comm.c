#include "executor/cuda/nccl_comm.h"

#include <dlfcn.h>
#include <string.h>
#include <time.h>

#include "executor/device/clock.h"

/* --- the library --- */

#define LIBRARY "libnccl.so.2"

char *
exec_nccl_version_text(int version)
{
    return g_strdup_printf("%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

/* False: @missing is one that the library has not. */
static bool
look_up(void *library, ExecNccl *nccl, const char **missing)
{
    const struct {
        const char *name;
        void *to;
    } functions[] = {
#define FUNCTION(f) {"nccl" #f, &nccl->f}
        FUNCTION(GetVersion),   FUNCTION(GetUniqueId),   FUNCTION(CommInitRankConfig),
        FUNCTION(CommFinalize), FUNCTION(CommDestroy),   FUNCTION(CommAbort),
        FUNCTION(AllReduce),    FUNCTION(AllGather),     FUNCTION(CommGetAsyncError),
        FUNCTION(Broadcast),    FUNCTION(Send),          FUNCTION(GetErrorString),
        FUNCTION(Recv),         FUNCTION(GroupStart),    FUNCTION(GetLastError),
        FUNCTION(GroupEnd),     FUNCTION(ReduceScatter),
#undef FUNCTION
    };

    for (size_t i = 0; i < G_N_ELEMENTS(functions); i++) {
        void *found = dlsym(library, functions[i].name);
        memcpy(functions[i].to, &found, sizeof found);
        if (found == NULL && *missing == NULL)
            *missing = functions[i].name;
    }
    return *missing == NULL;
}

static bool
open_library(ExecNccl *nccl, GError **error)
{
    const char *missing = NULL;
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);

    if (library == NULL)
        return EXEC_FAIL(error, EXEC_ERROR_MISSING, "transport nccl: NCCL is not here (%s)",
                         dlerror());
    look_up(library, nccl, &missing);
    if (nccl->GetVersion == NULL || nccl->GetVersion(&nccl->version) != EXEC_NCCL_SUCCESS)
        nccl->version = 0;
    if (nccl->version < EXEC_NCCL_VERSION || missing != NULL) {
        g_autofree char *found = exec_nccl_version_text(nccl->version);
        g_autofree char *needed = exec_nccl_version_text(EXEC_NCCL_VERSION);
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_MISSING,
                    "transport nccl: " LIBRARY " is NCCL %s, %s or newer is needed%s%s", found,
                    needed, missing != NULL ? "; it has no " : "", missing != NULL ? missing : "");
        dlclose(library);
        return false;
    }
    return true;
}

const ExecNccl *
exec_nccl_library(GError **error)
{
    static GMutex mutex;
    static ExecNccl nccl;
    static bool is_open;
    G_GNUC_UNUSED g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&mutex);

    is_open = is_open || open_library(&nccl, error);
    return is_open ? &nccl : NULL;
}

/* Waits spin and sleep as those of mpi/transport.c do.  The poller asks for asynchronous errors
 * every POLL_US: often beside the seconds after which the watcher ends a run, and rarely enough to
 * cost nothing. */
#define SPIN_NS 20000
#define SLEEP_NS 50000
#define POLL_US 20000
/* How long a rank waits for the watcher to say which rank is gone, before it reports NCCL's error.
 */
#define GRACE_NS (INT64_C(2) * 1000000000)

/* --- errors --- */

static bool
is_of_messages(const ExecNcclComm *comm)
{
    return comm->what == EXEC_MEET_MESSAGES;
}

/* Returns: (owned) "ranks 0, 1" */
static char *
members_of(const ExecNcclComm *comm)
{
    g_autoptr(GString) text = g_string_new(is_of_messages(comm) ? "messages of rank" : "ranks");

    for (int32_t i = 0; i < comm->n; i++)
        g_string_append_printf(text, "%s %d",
                               i == 0                 ? ""
                               : is_of_messages(comm) ? " to"
                                                      : ",",
                               comm->ranks[i]);
    return g_string_free(g_steal_pointer(&text), FALSE);
}

/* Returns: (owned) what NCCL says about @result of @call. */
static char *
words_for(const ExecNcclState *state, const ExecNcclComm *comm, int result, const char *call)
{
    g_autofree char *members = members_of(comm);
    const char *last = comm->handle == NULL ? NULL : state->nccl->GetLastError(comm->handle);
    g_autofree char *detail = g_strdup(last == NULL ? "" : last);

    g_strchomp(g_strdelimit(detail, "\n", ' '));
    return g_strdup_printf("transport nccl: %s (%s): %s%s%s", call, members,
                           state->nccl->GetErrorString(result), *detail != '\0' ? ": " : "",
                           detail);
}

static void
pause_since(int64_t begin_ns)
{
    const struct timespec pause = {.tv_nsec = SLEEP_NS};

    if (exec_now_ns() - begin_ns > SPIN_NS)
        nanosleep(&pause, NULL);
}

void
exec_nccl_abort(ExecNcclState *state, const char *reason)
{
    exec_abort_set(&state->abort, reason);
    state->host->ops->abort(state->host, reason);
}

/* An error that only says that another rank is gone: the watcher knows better, in a moment. */
static void
wait_for_watcher(const ExecNcclState *state, int result)
{
    const bool of_others = result == EXEC_NCCL_REMOTE_ERROR || result == EXEC_NCCL_SYSTEM_ERROR;
    const int64_t begin = exec_now_ns();

    while (of_others && exec_now_ns() - begin < GRACE_NS && !atomic_load(&state->abort.is_set))
        pause_since(begin);
}

/* Nothing that is queued on them will be done any more, and their kernels end. */
static void
abort_comms(ExecNcclState *state)
{
    g_mutex_lock(&state->mutex);
    state->broken = true;
    for (guint i = 0; i < state->comms->len; i++) {
        ExecNcclComm *comm = state->comms->pdata[i];
        if (comm->handle != NULL)
            state->nccl->CommAbort(comm->handle);
        comm->handle = NULL;
    }
    g_mutex_unlock(&state->mutex);
}

bool
exec_nccl_is_going(ExecNcclState *state, GError **error)
{
    if (!atomic_load(&state->abort.is_set) && !state->broken)
        return true;
    if (!state->broken)
        abort_comms(state);
    return exec_abort_check(&state->abort, error) &&
           EXEC_FAIL(error, EXEC_ERROR_RANK_DIED, "transport nccl: an earlier call has failed");
}

/* False, always. */
static bool
fail(ExecNcclState *state, const ExecNcclComm *comm, int result, const char *call, GError **error)
{
    g_autofree char *words = words_for(state, comm, result, call);

    wait_for_watcher(state, result);
    if (atomic_load(&state->abort.is_set))
        return exec_nccl_is_going(state, error);
    g_set_error_literal(error, EXEC_ERROR, EXEC_ERROR_FAILED, words);
    abort_comms(state);
    return false;
}

/* --- following --- */

/* What NCCL is at; EXEC_NCCL_SUCCESS: with nothing. */
static int
result_now(const ExecNcclState *state, const ExecNcclComm *comm)
{
    int now = EXEC_NCCL_SUCCESS;
    const int asked = state->nccl->CommGetAsyncError(comm->handle, &now);

    return asked != EXEC_NCCL_SUCCESS ? asked : now;
}

bool
exec_nccl_look(void *user_data, bool waits, GError **error)
{
    ExecNcclState *state = user_data;

    atomic_store(&state->waits, waits);
    if (!waits)
        atomic_store(&state->waited_until_ns, exec_now_ns());
    return !waits || exec_nccl_is_going(state, error);
}

/* @until_ns  0: as long as nobody aborts. */
static bool
follow(ExecNcclState *state, const ExecNcclComm *comm, int result, const char *call,
       int64_t until_ns, GError **error)
{
    const int64_t begin = exec_now_ns();

    for (; result == EXEC_NCCL_IN_PROGRESS; result = result_now(state, comm)) {
        if (!exec_nccl_look(state, true, error))
            return false;
        if (until_ns != 0 && exec_now_ns() > until_ns) {
            g_autofree char *members = members_of(comm);
            g_set_error(error, EXEC_ERROR, EXEC_ERROR_RANK_HUNG,
                        "transport nccl: %s (%s) is not done after %.1f s: some rank has not come",
                        call, members, exec_seconds_since(begin));
            abort_comms(state);
            return false;
        }
        pause_since(begin);
    }
    exec_nccl_look(state, false, NULL);
    return result == EXEC_NCCL_SUCCESS || fail(state, comm, result, call, error);
}

bool
exec_nccl_follow(ExecNcclState *state, const ExecNcclComm *comm, int result, const char *call,
                 GError **error)
{
    return follow(state, comm, result, call, 0, error);
}

/* --- asynchronous errors --- */

/* Returns: (owned, nullable) the first that there is; the mutex is held. */
static char *
find_error(const ExecNcclState *state, int *result)
{
    for (guint i = 0; i < state->comms->len; i++) {
        const ExecNcclComm *comm = state->comms->pdata[i];
        if (comm->handle == NULL)
            continue;
        *result = result_now(state, comm);
        if (*result != EXEC_NCCL_SUCCESS && *result != EXEC_NCCL_IN_PROGRESS)
            return words_for(state, comm, *result, "an asynchronous error");
    }
    return NULL;
}

gpointer
exec_nccl_poll_main(gpointer user_data)
{
    ExecNcclState *state = user_data;
    g_autofree char *words = NULL;
    int result = EXEC_NCCL_SUCCESS;

    g_mutex_lock(&state->mutex);
    while (!state->closing && words == NULL) {
        g_cond_wait_until(&state->ends, &state->mutex, g_get_monotonic_time() + POLL_US);
        words = find_error(state, &result);
    }
    g_mutex_unlock(&state->mutex);
    if (words == NULL)
        return NULL;
    wait_for_watcher(state, result);
    exec_nccl_abort(state, words); /* keeps the watcher's reason, if there is one */
    return NULL;
}

/* --- making --- */

static ExecNcclComm *
find(const ExecNcclState *state, const ExecGroup *group, ExecMeeting what)
{
    for (guint i = 0; i < state->comms->len; i++) {
        ExecNcclComm *known = state->comms->pdata[i];
        if (known->n == group->n && known->what == what &&
            memcmp(known->ranks, group->ranks, (size_t)group->n * sizeof *group->ranks) == 0)
            return known;
    }
    return NULL;
}

/* The first member's, told to all. */
static bool
agree_on_id(ExecNcclState *state, const ExecGroup *group, ExecNcclId *id, GError **error)
{
    const int result = group->index == 0 ? state->nccl->GetUniqueId(id) : EXEC_NCCL_SUCCESS;

    if (result != EXEC_NCCL_SUCCESS)
        return EXEC_FAIL(error, EXEC_ERROR_FAILED, "transport nccl: ncclGetUniqueId: %s",
                         state->nccl->GetErrorString(result));
    return state->host->ops->broadcast(state->host, group, 0, id, sizeof *id, error);
}

/* A byte from the first to the second: NCCL connects two ranks when they first exchange something,
 * for which both must be there; later they will not be at the same time. */
static bool
connect_pair(ExecNcclState *state, const ExecNcclComm *comm, GError **error)
{
    const ExecNccl *nccl = state->nccl;
    void *byte = exec_cuda_alloc_on(state->backend, comm->stream, 1, "a first message", error);

    if (byte == NULL)
        return false;
    const int result = comm->index == 0
                           ? nccl->Send(byte, 1, EXEC_NCCL_UINT8, 1, comm->handle, comm->stream)
                           : nccl->Recv(byte, 1, EXEC_NCCL_UINT8, 0, comm->handle, comm->stream);
    if (!follow(state, comm, result, "the first message", exec_now_ns() + state->meet_ns, error))
        return false;
    TRY_CUDA(cudaFreeAsync(byte, comm->stream), error);
    return true;
}

static bool
make(ExecNcclState *state, ExecNcclComm *comm, const ExecGroup *group, GError **error)
{
    ExecNcclId id = {{0}};
    ExecNcclConfig config = {
        .size = sizeof config,
        .magic = EXEC_NCCL_MAGIC,
        .version = EXEC_NCCL_VERSION,
        .blocking = 0,
        .cga_cluster_size = EXEC_NCCL_UNDEFINED,
        .min_ctas = EXEC_NCCL_UNDEFINED,
        .max_ctas = EXEC_NCCL_UNDEFINED,
        .split_share = EXEC_NCCL_UNDEFINED,
    };

    if (!agree_on_id(state, group, &id, error) ||
        (is_of_messages(comm) && !exec_cuda_open_urgent(&comm->stream, error)))
        return false;
    const int result =
        state->nccl->CommInitRankConfig(&comm->handle, comm->n, id, comm->index, &config);
    return follow(state, comm, result, "ncclCommInitRankConfig", exec_now_ns() + state->meet_ns,
                  error) &&
           (!is_of_messages(comm) || connect_pair(state, comm, error));
}

static void
comm_free(ExecNcclState *state, ExecNcclComm *comm)
{
    if (comm->handle != NULL)
        state->nccl->CommAbort(comm->handle);
    if (is_of_messages(comm) && comm->stream != NULL)
        cudaStreamDestroy(comm->stream);
    g_free(comm->ranks);
    g_free(comm);
}

ExecNcclComm *
exec_nccl_comm(ExecNcclState *state, const ExecGroup *group, ExecMeeting what, GError **error)
{
    ExecNcclComm *comm = find(state, group, what);

    if (comm != NULL || !exec_nccl_is_going(state, error))
        return comm;
    comm = g_new0(ExecNcclComm, 1);
    comm->ranks = g_memdup2(group->ranks, (size_t)group->n * sizeof *group->ranks);
    comm->n = group->n;
    comm->index = group->index;
    comm->what = what;
    if (what == EXEC_MEET_COLLECTIVES)
        comm->stream = exec_cuda_state(state->backend)->share.stream;
    else if (what == EXEC_MEET_ASIDE)
        comm->stream = exec_cuda_state(state->backend)->aside.stream;
    if (!make(state, comm, group, error)) {
        comm_free(state, comm);
        return NULL;
    }
    g_mutex_lock(&state->mutex);
    g_ptr_array_add(state->comms, comm);
    g_mutex_unlock(&state->mutex);
    return comm;
}

/* --- ending --- */

bool
exec_nccl_finish(ExecNcclState *state, GError **error)
{
    for (guint i = 0; i < state->comms->len; i++) {
        ExecNcclComm *comm = state->comms->pdata[i];
        if (!exec_cuda_wait_watched(exec_cuda_state(state->backend), comm->stream, NULL, error) ||
            !follow(state, comm, state->nccl->CommFinalize(comm->handle), "ncclCommFinalize",
                    exec_now_ns() + state->meet_ns, error))
            return false;
        g_mutex_lock(&state->mutex);
        state->nccl->CommDestroy(comm->handle);
        comm->handle = NULL;
        g_mutex_unlock(&state->mutex);
    }
    return true;
}

void
exec_nccl_clear_comms(ExecNcclState *state)
{
    abort_comms(state);
    for (guint i = 0; i < state->comms->len; i++)
        comm_free(state, state->comms->pdata[i]);
    g_ptr_array_unref(state->comms);
}
