/* MPI's own collectives, each on a communicator of its group; in deterministic runs collective.h's.
 */
#include <limits.h>
#include <string.h>

#include "executor/mpi/state.h"

typedef struct {
    int32_t *ranks; /* (owned) */
    int32_t n;
    MPI_Comm comm;
} Group;

/* The group's communicator, made at its first meeting; MPI_COMM_NULL with an error. */
static MPI_Comm
comm_of(State *state, const ExecGroup *group, GError **error)
{
    MPI_Group world, members;
    Group new_group = {.n = group->n};

    for (guint i = 0; i < state->groups->len; i++) {
        const Group *known = &g_array_index(state->groups, Group, i);
        if (known->n == group->n &&
            memcmp(known->ranks, group->ranks, (size_t)group->n * sizeof *group->ranks) == 0)
            return known->comm;
    }
    int code = MPI_Comm_group(state->messages, &world);
    if (code == MPI_SUCCESS)
        code = MPI_Group_incl(world, group->n, group->ranks, &members);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_create_group(state->messages, members, 0, &new_group.comm);
    if (code != MPI_SUCCESS) {
        mpi_failed("MPI_Comm_create_group", code, error);
        return MPI_COMM_NULL;
    }
    MPI_Group_free(&world);
    MPI_Group_free(&members);
    MPI_Comm_set_errhandler(new_group.comm, MPI_ERRORS_RETURN);
    new_group.ranks = g_memdup2(group->ranks, (size_t)group->n * sizeof *group->ranks);
    g_array_append_val(state->groups, new_group);
    return new_group.comm;
}

static void
add_bf16(void *from, void *to, int *n, MPI_Datatype *type)
{
    exec_add(DTYPE_BF16, to, from, *n);
}

static MPI_Datatype
mpi_type(Dtype dtype)
{
    return dtype_bytes(dtype) == 4 ? MPI_FLOAT : dtype_bytes(dtype) == 2 ? MPI_UINT16_T : MPI_BYTE;
}

static MPI_Op
mpi_sum(const State *state, Dtype dtype)
{
    return dtype == DTYPE_BF16 ? state->add_bf16 : MPI_SUM;
}

/* Whether MPI's own collective is to be used: allowed, needed, and within its counts. */
static bool
is_native(const ExecTransport *transport, const ExecGroup *group, int64_t n)
{
    return !((const State *)transport->state)->deterministic && group->n > 1 && n <= INT_MAX;
}

static bool
finish(ExecTransport *transport, MPI_Request *request, GError **error)
{
    return mpi_wait(transport, request, EXEC_WAITING_FOR_GROUP, MPI_STATUS_IGNORE, error);
}

bool
mpi_all_reduce(ExecTransport *transport, const ExecGroup *group, Dtype dtype, void *data, int64_t n,
               GError **error)
{
    State *state = transport->state;
    MPI_Request request;

    g_return_val_if_fail(dtype == DTYPE_FP32 || dtype == DTYPE_BF16, false);
    if (!is_native(transport, group, n))
        return exec_wire_reduce_scatter(&mpi_wire, transport, group, dtype, data, n, error) &&
               exec_wire_all_gather(&mpi_wire, transport, group, dtype, data, n, error);
    const MPI_Comm comm = comm_of(state, group, error);
    if (comm == MPI_COMM_NULL)
        return false;
    TRY_MPI(MPI_Iallreduce(MPI_IN_PLACE, data, (int)n, mpi_type(dtype), mpi_sum(state, dtype), comm,
                           &request));
    return finish(transport, &request, error);
}

/* Counts and offsets of the chunks. */
static void
cut(const ExecGroup *group, int64_t n, int *counts, int *begins)
{
    for (int32_t i = 0; i < group->n; i++) {
        begins[i] = (int)exec_group_chunk_begin(group, n, i);
        counts[i] = (int)exec_group_chunk_begin(group, n, i + 1) - begins[i];
    }
}

bool
mpi_reduce_scatter(ExecTransport *transport, const ExecGroup *group, Dtype dtype, void *data,
                   int64_t n, GError **error)
{
    State *state = transport->state;
    MPI_Request request;

    g_return_val_if_fail(dtype == DTYPE_FP32 || dtype == DTYPE_BF16, false);
    if (!is_native(transport, group, n))
        return exec_wire_reduce_scatter(&mpi_wire, transport, group, dtype, data, n, error);
    g_autofree int *counts = g_new(int, (size_t)group->n);
    g_autofree int *begins = g_new(int, (size_t)group->n);
    const MPI_Comm comm = comm_of(state, group, error);
    if (comm == MPI_COMM_NULL)
        return false;
    cut(group, n, counts, begins);
    TRY_MPI(MPI_Ireduce_scatter(MPI_IN_PLACE, data, counts, mpi_type(dtype), mpi_sum(state, dtype),
                                comm, &request));
    if (!finish(transport, &request, error))
        return false;
    /* MPI leaves this member's sum at the beginning. */
    memmove((char *)data + begins[group->index] * dtype_bytes(dtype), data,
            (size_t)counts[group->index] * (size_t)dtype_bytes(dtype));
    return true;
}

bool
mpi_all_gather(ExecTransport *transport, const ExecGroup *group, Dtype dtype, void *data, int64_t n,
               GError **error)
{
    MPI_Request request;

    if (!is_native(transport, group, n))
        return exec_wire_all_gather(&mpi_wire, transport, group, dtype, data, n, error);
    g_autofree int *counts = g_new(int, (size_t)group->n);
    g_autofree int *begins = g_new(int, (size_t)group->n);
    const MPI_Comm comm = comm_of(transport->state, group, error);
    if (comm == MPI_COMM_NULL)
        return false;
    cut(group, n, counts, begins);
    TRY_MPI(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, counts, begins,
                            mpi_type(dtype), comm, &request));
    return finish(transport, &request, error);
}

static int64_t
total(const int64_t *n_bytes, int32_t n)
{
    int64_t sum = 0;

    for (int32_t i = 0; i < n; i++)
        sum += n_bytes[i];
    return sum;
}

/* Nothing is added here, so MPI's own serves deterministic runs too. */
bool
mpi_all_to_all(ExecTransport *transport, const ExecGroup *group, const ExecExchange *exchange,
               GError **error)
{
    const int32_t g = group->n;
    MPI_Request request;

    /* All members must choose alike, and do not know each other's totals: by messages. */
    if (((const State *)transport->state)->deterministic || g == 1)
        return exec_wire_all_to_all(&mpi_wire, transport, group, exchange, error);
    if (!mpi_check_length(total(exchange->out_bytes, g), error) ||
        !mpi_check_length(total(exchange->in_bytes, g), error))
        return false;
    g_autofree int *numbers = g_new(int, (size_t)g * 4);
    int *out_counts = numbers, *out_begins = numbers + g, *in_counts = numbers + 2 * g,
        *in_begins = numbers + 3 * g;
    for (int32_t i = 0; i < g; i++) {
        out_counts[i] = (int)exchange->out_bytes[i];
        in_counts[i] = (int)exchange->in_bytes[i];
        out_begins[i] = i == 0 ? 0 : out_begins[i - 1] + out_counts[i - 1];
        in_begins[i] = i == 0 ? 0 : in_begins[i - 1] + in_counts[i - 1];
    }
    const MPI_Comm comm = comm_of(transport->state, group, error);
    if (comm == MPI_COMM_NULL)
        return false;
    TRY_MPI(MPI_Ialltoallv(exchange->out, out_counts, out_begins, MPI_BYTE, exchange->in, in_counts,
                           in_begins, MPI_BYTE, comm, &request));
    return finish(transport, &request, error);
}

bool
mpi_broadcast(ExecTransport *transport, const ExecGroup *group, int32_t root, void *data,
              int64_t n_bytes, GError **error)
{
    MPI_Request request;

    if (!is_native(transport, group, n_bytes))
        return exec_wire_broadcast(&mpi_wire, transport, group, root, data, n_bytes, error);
    const MPI_Comm comm = comm_of(transport->state, group, error);
    if (comm == MPI_COMM_NULL)
        return false;
    TRY_MPI(MPI_Ibcast(data, (int)n_bytes, MPI_BYTE, root, comm, &request));
    return finish(transport, &request, error);
}

bool
mpi_barrier(ExecTransport *transport, const ExecGroup *group, GError **error)
{
    MPI_Request request;

    if (!is_native(transport, group, 0))
        return exec_wire_barrier(&mpi_wire, transport, group, error);
    const MPI_Comm comm = comm_of(transport->state, group, error);
    if (comm == MPI_COMM_NULL)
        return false;
    TRY_MPI(MPI_Ibarrier(comm, &request));
    return finish(transport, &request, error);
}

/* --- lifecycle --- */

bool
mpi_collectives_open(State *state, GError **error)
{
    state->groups = g_array_new(false, false, sizeof(Group));
    TRY_MPI(MPI_Op_create(add_bf16, 1, &state->add_bf16));
    return true;
}

bool
mpi_collectives_close(State *state, GError **error)
{
    for (guint i = 0; i < state->groups->len; i++) {
        Group *group = &g_array_index(state->groups, Group, i);
        TRY_MPI(MPI_Comm_free(&group->comm));
        g_free(group->ranks);
    }
    g_array_unref(state->groups);
    TRY_MPI(MPI_Op_free(&state->add_bf16));
    return true;
}
