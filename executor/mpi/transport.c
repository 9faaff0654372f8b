#include "executor/mpi/transport.h"

#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "executor/device/clock.h"
#include "executor/device/plugin.h"
#include "executor/transport/collective.h"
#include "executor/transport/seal.h"

EXEC_PLUGIN_DEFINE_ABI

/*
 * A wait spins for SPIN_NS, in which a message of a rank of the same machine comes if it is under
 * way; gives its core away until YIELD_NS, which is what waking a sleeping thread costs (50 to
 * 100 us, local.c), so that sleeping earlier gains nothing; and then sleeps SLEEP_NS at a time,
 * half of that.  What it costs is in transport.h.
 */
#define SPIN_NS 20000
#define YIELD_NS 100000
#define SLEEP_NS 50000

/* What follows every message that has bytes, with its tag. */
typedef struct {
    uint64_t version, seal;
} Trailer;

/* A buffer of a send under way, of an expected message, or spare. */
typedef struct Piece Piece;
struct Piece {
    Piece *next;
    MPI_Request request, trailer_request; /* MPI_REQUEST_NULL: done */
    Trailer trailer;
    int64_t tag, n_bytes;
    int32_t peer;     /* of a send, of an expected message */
    const void *lent; /* (borrowed, nullable) what is sent; NULL: data[] */
    void *place;      /* (borrowed, nullable) where it is expected; NULL: data[] */
    int64_t room_bytes;
    _Alignas(64) char data[];
};

typedef struct {
    MPI_Comm messages, wire; /* point to point, and collective.h's messages */
    MPI_Op add_bf16;
    bool deterministic;
    int64_t max_tag;
    Piece *sends, *expected, *spare; /* (owned) */
    GArray *groups;                  /* (owned) of Group: communicators */
    Trailer trailer;                 /* of the message that is received now */
    ExecAbort abort;
    atomic_int waiting_for;
    atomic_int_fast64_t waited_until_ns, buffer_bytes;
} State;

/* --- errors --- */

/* Returns false with EXEC_ERROR_FAILED: the call's name and what MPI says. */
static bool
mpi_failed(const char *call, int code, GError **error)
{
    char text[MPI_MAX_ERROR_STRING + 1] = "unknown error";
    int n = 0;

    MPI_Error_string(code, text, &n);
    return EXEC_FAIL(error, EXEC_ERROR_FAILED, "%.*s: %s", (int)strcspn(call, "("), call, text);
}

/* Converts a code of MPI into a GError that names the call, and returns false from the function. */
#define TRY_MPI(call)                                                                              \
    do {                                                                                           \
        const int code_ = (call);                                                                  \
        if (code_ != MPI_SUCCESS)                                                                  \
            return mpi_failed(#call, code_, error);                                                \
    } while (0)

/* --- pieces --- */

/* Of a message of @n_bytes with room for it, or, where it lies elsewhere, without. */
static Piece *
piece_new(State *state, int64_t n_bytes, bool elsewhere, GError **error)
{
    const int64_t room_bytes = elsewhere ? 0 : n_bytes;

    for (Piece **at = &state->spare; *at != NULL; at = &(*at)->next) {
        Piece *piece = *at;
        if (piece->room_bytes != room_bytes)
            continue;
        *at = piece->next;
        piece->n_bytes = n_bytes;
        piece->lent = NULL;
        piece->place = NULL;
        return piece;
    }
    Piece *piece = aligned_alloc(64, (sizeof(Piece) + (size_t)room_bytes + 63) / 64 * 64);
    if (piece == NULL)
        return EXEC_FAIL_NULL(error, EXEC_ERROR_MEMORY,
                              "no memory for a message of %" G_GINT64_FORMAT " bytes", n_bytes);
    *piece = (Piece){.n_bytes = n_bytes,
                     .room_bytes = room_bytes,
                     .request = MPI_REQUEST_NULL,
                     .trailer_request = MPI_REQUEST_NULL};
    atomic_fetch_add(&state->buffer_bytes, room_bytes);
    return piece;
}

static void
piece_give_back(State *state, Piece *piece)
{
    piece->next = state->spare;
    state->spare = piece;
}

static void
free_pieces(Piece *piece)
{
    while (piece != NULL) {
        Piece *next = piece->next;
        free(piece);
        piece = next;
    }
}

/* Lets MPI work, and takes back the buffers of sends that have left. */
static bool
poll_transfers(ExecTransport *transport, GError **error)
{
    State *state = transport->state;
    int done = 0;

    for (Piece *piece = state->expected; piece != NULL; piece = piece->next)
        if (piece->request != MPI_REQUEST_NULL)
            TRY_MPI(MPI_Test(&piece->request, &done, MPI_STATUS_IGNORE));
    for (Piece **at = &state->sends; *at != NULL;) {
        Piece *piece = *at;
        TRY_MPI(MPI_Test(&piece->request, &done, MPI_STATUS_IGNORE));
        if (done)
            TRY_MPI(MPI_Test(&piece->trailer_request, &done, MPI_STATUS_IGNORE));
        if (done) {
            *at = piece->next;
            piece_give_back(state, piece);
        } else {
            at = &piece->next;
        }
    }
    return true;
}

/* --- waiting --- */

/* Returns when @request is done.  @peer is what waiting_for() says meanwhile. */
static bool
wait_for(ExecTransport *transport, MPI_Request *request, int32_t peer, MPI_Status *status,
         GError **error)
{
    State *state = transport->state;
    const struct timespec pause = {.tv_nsec = SLEEP_NS};
    int done = 0;

    transport->waited_ns = 0;
    TRY_MPI(MPI_Test(request, &done, status));
    if (done)
        return true;
    const int64_t begin = exec_now_ns();
    atomic_store(&state->waiting_for, peer);
    while (!done) {
        const int64_t waited = exec_now_ns() - begin;
        if (waited > YIELD_NS)
            nanosleep(&pause, NULL);
        else if (waited > SPIN_NS)
            sched_yield();
        if (!exec_abort_check(&state->abort, error))
            return false;
        TRY_MPI(MPI_Test(request, &done, status));
    }
    transport->waited_ns = exec_now_ns() - begin;
    atomic_store(&state->waited_until_ns, begin + transport->waited_ns);
    atomic_store(&state->waiting_for, EXEC_NOT_WAITING);
    return true;
}

/* --- messages --- */

static bool
check_tag(const State *state, int64_t tag, GError **error)
{
    if (tag <= state->max_tag)
        return true;
    return EXEC_FAIL(
        error, EXEC_ERROR_UNSUPPORTED,
        "transport mpi: the plan has more messages than this MPI has tags (%" G_GINT64_FORMAT ")",
        state->max_tag);
}

/* MPI counts in int. */
static bool
check_length(int64_t n_bytes, GError **error)
{
    if (n_bytes <= INT_MAX)
        return true;
    return EXEC_FAIL(error, EXEC_ERROR_UNSUPPORTED,
                     "transport mpi: a message of %" G_GINT64_FORMAT " bytes is beyond MPI's %d",
                     n_bytes, INT_MAX);
}

/* @lend  from where it lies, without a copy. */
static bool
give_on(ExecTransport *transport, MPI_Comm comm, int32_t to, int64_t tag, const void *data,
        int64_t n_bytes, bool lend, GError **error)
{
    State *state = transport->state;

    if (!check_length(n_bytes, error) || !check_tag(state, tag, error) ||
        !exec_abort_check(&state->abort, error) || !poll_transfers(transport, error))
        return false;
    Piece *piece = piece_new(state, n_bytes, lend, error);
    if (piece == NULL)
        return false;
    piece->peer = to;
    piece->lent = lend ? data : NULL;
    if (!lend && n_bytes > 0)
        memcpy(piece->data, data, (size_t)n_bytes);
    int code = MPI_Isend(lend ? data : piece->data, (int)n_bytes, MPI_BYTE, to, (int)tag, comm,
                         &piece->request);
    if (code == MPI_SUCCESS && n_bytes > 0) {
        const ExecMessage message = {transport->rank, to, tag, n_bytes};
        piece->trailer = (Trailer){.version = EXEC_WIRE_VERSION, .seal = exec_seal(&message, data)};
        code = MPI_Isend(&piece->trailer, sizeof piece->trailer, MPI_BYTE, to, (int)tag, comm,
                         &piece->trailer_request);
    }
    if (code != MPI_SUCCESS) {
        piece_give_back(state, piece);
        return mpi_failed("MPI_Isend", code, error);
    }
    piece->next = state->sends;
    state->sends = piece;
    transport->sent_bytes += n_bytes;
    return true;
}

static bool
send_message(ExecTransport *transport, int32_t to, int64_t tag, const void *data, int64_t n_bytes,
             GError **error)
{
    g_return_val_if_fail(tag >= 0, false);
    return give_on(transport, ((State *)transport->state)->messages, to, tag, data, n_bytes, false,
                   error);
}

static bool
lend(ExecTransport *transport, int32_t to, int64_t tag, const void *data, int64_t n_bytes,
     GError **error)
{
    g_return_val_if_fail(tag >= 0, false);
    return give_on(transport, ((State *)transport->state)->messages, to, tag, data, n_bytes, true,
                   error);
}

static bool
regain(ExecTransport *transport, const void *data, int64_t n_bytes, GError **error)
{
    const char *begin = data;

    for (Piece *piece = ((State *)transport->state)->sends; piece != NULL; piece = piece->next) {
        const char *lent = piece->lent;
        const bool meant =
            data == NULL || (lent < begin + n_bytes && begin < lent + piece->n_bytes);
        if (lent != NULL && meant &&
            !wait_for(transport, &piece->request, piece->peer, MPI_STATUS_IGNORE, error))
            return false;
    }
    return poll_transfers(transport, error);
}

static bool
check_received(const ExecTransport *transport, const MPI_Status *status, int32_t from,
               int64_t n_bytes, GError **error)
{
    int length = 0;

    TRY_MPI(MPI_Get_count(status, MPI_BYTE, &length));
    return exec_check_length(transport, from, n_bytes, length, error);
}

/* Waits for the trailer of a message that has arrived at @data, and compares. */
static bool
check_trailer(ExecTransport *transport, const ExecMessage *message, const void *data,
              const Trailer *trailer, MPI_Request *request, GError **error)
{
    const int64_t waited_ns = transport->waited_ns;

    if (!wait_for(transport, request, message->from, MPI_STATUS_IGNORE, error))
        return false;
    transport->waited_ns += waited_ns;
    return exec_check_wire_version(transport->rank, message->from, trailer->version, error) &&
           exec_check_seal(message, data, trailer->seal, error);
}

static bool
receive_on(ExecTransport *transport, MPI_Comm comm, int32_t from, int64_t tag, void *data,
           int64_t n_bytes, GError **error)
{
    State *state = transport->state;
    MPI_Request request;
    MPI_Status status;

    if (!check_length(n_bytes, error) || !check_tag(state, tag, error))
        return false;
    TRY_MPI(MPI_Irecv(data, (int)n_bytes, MPI_BYTE, from, (int)tag, comm, &request));
    if (!wait_for(transport, &request, from, &status, error) ||
        !check_received(transport, &status, from, n_bytes, error))
        return false;
    if (n_bytes == 0)
        return true;
    const ExecMessage message = {from, transport->rank, tag, n_bytes};
    TRY_MPI(MPI_Irecv(&state->trailer, sizeof state->trailer, MPI_BYTE, from, (int)tag, comm,
                      &request));
    return check_trailer(transport, &message, data, &state->trailer, &request, error);
}

static bool
expect(ExecTransport *transport, int32_t from, int64_t tag, void *data, int64_t n_bytes,
       GError **error)
{
    State *state = transport->state;

    if (!check_length(n_bytes, error) || !check_tag(state, tag, error))
        return false;
    Piece *piece = piece_new(state, n_bytes, data != NULL, error);
    if (piece == NULL)
        return false;
    piece->peer = from;
    piece->tag = tag;
    piece->place = data;
    piece->next = NULL;
    TRY_MPI(MPI_Irecv(data != NULL ? data : piece->data, (int)n_bytes, MPI_BYTE, from, (int)tag,
                      state->messages, &piece->request));
    if (n_bytes > 0)
        TRY_MPI(MPI_Irecv(&piece->trailer, sizeof piece->trailer, MPI_BYTE, from, (int)tag,
                          state->messages, &piece->trailer_request));
    Piece **at = &state->expected;
    while (*at != NULL)
        at = &(*at)->next;
    *at = piece;
    return true;
}

static bool
receive_message(ExecTransport *transport, int32_t from, int64_t tag, void *data, int64_t n_bytes,
                GError **error)
{
    State *state = transport->state;
    MPI_Status status;

    g_return_val_if_fail(tag >= 0 && from >= 0 && from < transport->n_ranks, false);
    for (Piece **at = &state->expected; *at != NULL; at = &(*at)->next) {
        Piece *piece = *at;
        if (piece->peer != from || piece->tag != tag || piece->n_bytes != n_bytes ||
            (piece->place != NULL && piece->place != data))
            continue;
        /* poll() may have completed it already: then the status is gone, MPI checked the length. */
        const bool was_done = piece->request == MPI_REQUEST_NULL;
        transport->waited_ns = 0;
        if (!was_done && (!wait_for(transport, &piece->request, from, &status, error) ||
                          !check_received(transport, &status, from, n_bytes, error)))
            return false;
        const void *bytes = piece->place == NULL ? piece->data : piece->place;
        const ExecMessage message = {from, transport->rank, tag, n_bytes};
        if (n_bytes > 0 && !check_trailer(transport, &message, bytes, &piece->trailer,
                                          &piece->trailer_request, error))
            return false;
        if (piece->place == NULL)
            memcpy(data, piece->data, (size_t)n_bytes);
        *at = piece->next;
        piece_give_back(state, piece);
        return true;
    }
    return receive_on(transport, state->messages, from, tag, data, n_bytes, error);
}

/* --- collectives out of messages --- */

static bool
wire_post(ExecTransport *transport, int32_t to, int64_t tag, const void *data, int64_t n_bytes,
          GError **error)
{
    return give_on(transport, ((State *)transport->state)->wire, to, -tag, data, n_bytes, false,
                   error);
}

static bool
wire_take(ExecTransport *transport, int32_t from, int64_t tag, Dtype add, void *data,
          int64_t n_bytes, GError **error)
{
    State *state = transport->state;

    if (add == EXEC_TAKE_COPY)
        return receive_on(transport, state->wire, from, -tag, data, n_bytes, error);
    Piece *piece = piece_new(state, n_bytes, false, error);
    if (piece == NULL)
        return false;
    const bool ok = receive_on(transport, state->wire, from, -tag, piece->data, n_bytes, error);
    if (ok)
        exec_add(add, data, piece->data, n_bytes / dtype_bytes(add));
    piece_give_back(state, piece);
    return ok;
}

static const ExecWire wire = {.post = wire_post, .take = wire_take};

/* --- collectives: MPI's own, or in deterministic runs collective.h's --- */

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
    return wait_for(transport, request, EXEC_WAITING_FOR_GROUP, MPI_STATUS_IGNORE, error);
}

static bool
all_reduce(ExecTransport *transport, const ExecGroup *group, Dtype dtype, void *data, int64_t n,
           GError **error)
{
    State *state = transport->state;
    MPI_Request request;

    g_return_val_if_fail(dtype == DTYPE_FP32 || dtype == DTYPE_BF16, false);
    if (!is_native(transport, group, n))
        return exec_wire_all_reduce(transport, group, dtype, data, n, error);
    const MPI_Comm comm = comm_of(state, group, error);
    if (comm == MPI_COMM_NULL)
        return false;
    TRY_MPI(MPI_Iallreduce(MPI_IN_PLACE, data, (int)n, mpi_type(dtype), mpi_sum(state, dtype), comm,
                           &request));
    return finish(transport, &request, error);
}

/* Returns: (owned) the chunks' lengths, then where they begin. */
static int *
cut(const ExecGroup *group, int64_t n)
{
    int *counts = g_new(int, 2 * (size_t)group->n), *begins = counts + group->n;

    for (int32_t i = 0; i < group->n; i++) {
        begins[i] = (int)exec_group_chunk_begin(group, n, i);
        counts[i] = (int)exec_group_chunk_begin(group, n, i + 1) - begins[i];
    }
    return counts;
}

static bool
reduce_scatter(ExecTransport *transport, const ExecGroup *group, Dtype dtype, void *data, int64_t n,
               GError **error)
{
    State *state = transport->state;
    MPI_Request request;

    g_return_val_if_fail(dtype == DTYPE_FP32 || dtype == DTYPE_BF16, false);
    if (!is_native(transport, group, n))
        return exec_wire_reduce_scatter(transport, group, dtype, data, n, error);
    g_autofree int *counts = cut(group, n);
    const int *begins = counts + group->n;
    const MPI_Comm comm = comm_of(state, group, error);
    if (comm == MPI_COMM_NULL)
        return false;
    TRY_MPI(MPI_Ireduce_scatter(MPI_IN_PLACE, data, counts, mpi_type(dtype), mpi_sum(state, dtype),
                                comm, &request));
    if (!finish(transport, &request, error))
        return false;
    /* MPI leaves this member's sum at the beginning. */
    memmove((char *)data + begins[group->index] * dtype_bytes(dtype), data,
            (size_t)counts[group->index] * (size_t)dtype_bytes(dtype));
    return true;
}

static bool
all_gather(ExecTransport *transport, const ExecGroup *group, Dtype dtype, void *data, int64_t n,
           GError **error)
{
    MPI_Request request;

    if (!is_native(transport, group, n))
        return exec_wire_all_gather(transport, group, dtype, data, n, error);
    g_autofree int *counts = cut(group, n);
    const int *begins = counts + group->n;
    const MPI_Comm comm = comm_of(transport->state, group, error);
    if (comm == MPI_COMM_NULL)
        return false;
    TRY_MPI(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, counts, begins,
                            mpi_type(dtype), comm, &request));
    return finish(transport, &request, error);
}

/* Nothing is added here, so MPI's own serves deterministic runs too. */
static bool
all_to_all(ExecTransport *transport, const ExecGroup *group, const ExecExchange *exchange,
           GError **error)
{
    const int32_t g = group->n;
    MPI_Request request;

    /* All members must choose alike, and do not know each other's totals: by messages. */
    if (((const State *)transport->state)->deterministic || g == 1)
        return exec_wire_all_to_all(transport, group, exchange, error);
    if (!check_length(exec_piece_begin(exchange->out_bytes, g), error) ||
        !check_length(exec_piece_begin(exchange->in_bytes, g), error))
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

static bool
broadcast(ExecTransport *transport, const ExecGroup *group, int32_t root, void *data,
          int64_t n_bytes, GError **error)
{
    MPI_Request request;

    if (!is_native(transport, group, n_bytes))
        return exec_wire_broadcast(transport, group, root, data, n_bytes, error);
    const MPI_Comm comm = comm_of(transport->state, group, error);
    if (comm == MPI_COMM_NULL)
        return false;
    TRY_MPI(MPI_Ibcast(data, (int)n_bytes, MPI_BYTE, root, comm, &request));
    return finish(transport, &request, error);
}

static bool
barrier(ExecTransport *transport, const ExecGroup *group, GError **error)
{
    MPI_Request request;

    if (!is_native(transport, group, 0))
        return exec_wire_barrier(transport, group, error);
    const MPI_Comm comm = comm_of(transport->state, group, error);
    if (comm == MPI_COMM_NULL)
        return false;
    TRY_MPI(MPI_Ibarrier(comm, &request));
    return finish(transport, &request, error);
}

/* --- what others ask --- */

static void
abort_waits(ExecTransport *transport, const char *reason)
{
    State *state = transport->state;

    exec_abort_set(&state->abort, reason);
}

static int32_t
waiting_for(const ExecTransport *transport)
{
    return atomic_load(&((State *)transport->state)->waiting_for);
}

static int64_t
waited_until_ns(const ExecTransport *transport)
{
    return atomic_load(&((State *)transport->state)->waited_until_ns);
}

static int64_t
buffer_bytes(const ExecTransport *transport)
{
    return atomic_load(&((State *)transport->state)->buffer_bytes);
}

/* --- lifecycle --- */

static const ExecTransportOps ops = {
    .name = "mpi",
    .send = send_message,
    .receive = receive_message,
    EXEC_OWN_COLLECTIVES,
    .expect = expect,
    .lend = lend,
    .regain = regain,
    .poll = poll_transfers,
    EXEC_OWN_ANSWERS,
    .abort = abort_waits,
};

static bool
open_state(State *state, GError **error)
{
    int *tag_ub = NULL, found = 0;

    TRY_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    TRY_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &state->messages));
    TRY_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &state->wire));
    TRY_MPI(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, (void *)&tag_ub, &found));
    state->max_tag = found ? *tag_ub : 32767; /* what every MPI has [MPI 4.0, 9.1.2] */
    state->groups = g_array_new(false, false, sizeof(Group));
    TRY_MPI(MPI_Op_create(add_bf16, 1, &state->add_bf16));
    return true;
}

static bool
open_mpi(int32_t n_ranks, bool deterministic, ExecTransport *transport, GError **error)
{
    int n = 0, rank = 0, provided = 0;

    /* The timer's default slack of 50 us would double every sleep. */
    prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
    TRY_MPI(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided));
    TRY_MPI(MPI_Comm_size(MPI_COMM_WORLD, &n));
    TRY_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    if (n != n_ranks)
        return EXEC_FAIL(error, EXEC_ERROR_UNSUPPORTED,
                         "the plan has %d ranks, but %d processes were started", n_ranks, n);
    State *state = g_new0(State, 1);
    state->deterministic = deterministic;
    exec_abort_init(&state->abort);
    atomic_init(&state->waiting_for, EXEC_NOT_WAITING);
    *transport =
        (ExecTransport){.ops = &ops, .rank = rank, .n_ranks = n, .wire = &wire, .state = state};
    return open_state(state, error);
}

static bool
close_mpi(ExecTransport *transport, GError **error)
{
    State *state = transport->state;

    while (state->sends != NULL)
        if (!wait_for(transport, &state->sends->request, EXEC_WAITING_FOR_GROUP, MPI_STATUS_IGNORE,
                      error) ||
            !poll_transfers(transport, error))
            return false;
    for (guint i = 0; i < state->groups->len; i++) {
        Group *group = &g_array_index(state->groups, Group, i);
        TRY_MPI(MPI_Comm_free(&group->comm));
        g_free(group->ranks);
    }
    g_array_unref(state->groups);
    TRY_MPI(MPI_Op_free(&state->add_bf16));
    TRY_MPI(MPI_Comm_free(&state->wire));
    TRY_MPI(MPI_Comm_free(&state->messages));
    TRY_MPI(MPI_Finalize());
    free_pieces(state->expected);
    free_pieces(state->spare);
    exec_abort_clear(&state->abort);
    g_free(state);
    transport->state = NULL;
    return true;
}

extern const ExecMpiPlugin exec_mpi_plugin;
const ExecMpiPlugin exec_mpi_plugin = {
#if defined(OPEN_MPI)
    .library = "Open MPI",
#elif defined(MPICH)
    .library = "MPICH",
#else
    .library = "MPI",
#endif
    .open = open_mpi,
    .close = close_mpi,
};
