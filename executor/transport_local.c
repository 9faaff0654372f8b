/*
 * executor/transport_local.c - ranks as threads of one process; see transport.h.
 *
 * A mailbox belongs to its receiver: a mutex, a condition, the queue of messages in the order of
 * sending, and the buffers that were received and wait for the next message that fits.
 */
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "executor/collective.h"

/* Waking a sleeping thread costs 50 to 100 us on a virtual machine, so a rank with a core of its
 * own spins that long first; one without sleeps at once and leaves the core to the others. */
#define SPIN_NS 100000

typedef struct Message Message;
struct Message {
    Message *next;
    int64_t tag, n_bytes;
    int64_t room_bytes;
    int32_t from;
    _Alignas(64) char data[];
};

typedef struct {
    GMutex mutex;
    GCond arrived;
    Message *first, **last; /* (owned) queue; last points at the final next */
    Message *spare;         /* (owned) */
    int64_t buffer_bytes;   /* of queue and spares */
    atomic_int_fast64_t n_arrived;
    atomic_int waiting_for;
    atomic_int_fast64_t waited_until_ns;
} Mailbox;

struct ExecLocalHub {
    int32_t n_ranks;
    int64_t timeout_ns; /* 0: none */
    int64_t spin_ns;
    Mailbox *boxes; /* (owned) n_ranks */
    atomic_bool aborted;
    GMutex reason_mutex;
    char *reason;         /* (owned) set before aborted */
    ExecHubRemote remote; /* send == NULL: all ranks are here */
};

static int64_t
now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int32_t
exec_n_cores(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
    return (int32_t)g_get_num_processors();
}

ExecLocalHub *
exec_local_hub_new(int32_t n_ranks, double timeout_s)
{
    g_return_val_if_fail(n_ranks >= 1, NULL);
    ExecLocalHub *hub = g_new0(ExecLocalHub, 1);

    hub->n_ranks = n_ranks;
    hub->timeout_ns = (int64_t)(timeout_s * 1e9);
    hub->spin_ns = n_ranks <= exec_n_cores() ? SPIN_NS : 0;
    hub->boxes = g_new0(Mailbox, (size_t)n_ranks);
    g_mutex_init(&hub->reason_mutex);
    for (int32_t i = 0; i < n_ranks; i++) {
        Mailbox *box = &hub->boxes[i];
        g_mutex_init(&box->mutex);
        g_cond_init(&box->arrived);
        box->last = &box->first;
        atomic_init(&box->n_arrived, 0);
        atomic_init(&box->waiting_for, EXEC_NOT_WAITING);
        atomic_init(&box->waited_until_ns, 0);
    }
    return hub;
}

static void
free_messages(Message *message)
{
    while (message != NULL) {
        Message *next = message->next;
        free(message);
        message = next;
    }
}

void
exec_local_hub_free(ExecLocalHub *hub)
{
    if (hub == NULL)
        return;
    for (int32_t i = 0; i < hub->n_ranks; i++) {
        free_messages(hub->boxes[i].first);
        free_messages(hub->boxes[i].spare);
        g_mutex_clear(&hub->boxes[i].mutex);
        g_cond_clear(&hub->boxes[i].arrived);
    }
    g_mutex_clear(&hub->reason_mutex);
    g_free(hub->boxes);
    g_free(hub->reason);
    g_free(hub);
}

/* --- messages --- */

bool
exec_local_hub_check(ExecLocalHub *hub, GError **error)
{
    if (!atomic_load(&hub->aborted))
        return true;
    g_mutex_lock(&hub->reason_mutex);
    g_set_error_literal(error, EXEC_ERROR, EXEC_ERROR_RANK_DIED, hub->reason);
    g_mutex_unlock(&hub->reason_mutex);
    return false;
}

/* The smallest spare that has room, not more than four times as much, else new; called without the
 * mutex. */
static Message *
message_new(Mailbox *box, int64_t n_bytes, GError **error)
{
    Message **best = NULL;

    g_mutex_lock(&box->mutex);
    for (Message **at = &box->spare; *at != NULL; at = &(*at)->next)
        if ((*at)->room_bytes >= n_bytes && (*at)->room_bytes <= 4 * n_bytes &&
            (best == NULL || (*at)->room_bytes < (*best)->room_bytes))
            best = at;
    Message *message = best == NULL ? NULL : *best;
    if (message != NULL)
        *best = message->next;
    g_mutex_unlock(&box->mutex);
    if (message == NULL) {
        const size_t size = (sizeof(Message) + (size_t)n_bytes + 63) / 64 * 64;
        message = aligned_alloc(64, size);
        if (message == NULL) {
            g_set_error(error, EXEC_ERROR, EXEC_ERROR_MEMORY,
                        "no memory for a message of %" G_GINT64_FORMAT " bytes", n_bytes);
            return NULL;
        }
        message->room_bytes = n_bytes;
        g_mutex_lock(&box->mutex);
        box->buffer_bytes += n_bytes;
        g_mutex_unlock(&box->mutex);
    }
    message->n_bytes = n_bytes;
    return message;
}

static void
message_give_back(Mailbox *box, Message *message)
{
    g_mutex_lock(&box->mutex);
    message->next = box->spare;
    box->spare = message;
    g_mutex_unlock(&box->mutex);
}

/* A copy of @data at the end of the queue of @to. */
static bool
put(ExecLocalHub *hub, int32_t from, int32_t to, int64_t tag, const void *data, int64_t n_bytes,
    GError **error)
{
    Mailbox *box = &hub->boxes[to];
    Message *message = message_new(box, n_bytes, error);

    if (message == NULL)
        return false;
    message->next = NULL;
    message->tag = tag;
    message->from = from;
    if (n_bytes > 0)
        memcpy(message->data, data, (size_t)n_bytes);
    g_mutex_lock(&box->mutex);
    *box->last = message;
    box->last = &message->next;
    atomic_fetch_add(&box->n_arrived, 1);
    g_cond_signal(&box->arrived);
    g_mutex_unlock(&box->mutex);
    return true;
}

void
exec_local_hub_set_remote(ExecLocalHub *hub, const ExecHubRemote *remote)
{
    hub->remote = *remote;
}

const ExecHubRemote *
exec_local_hub_remote(const ExecLocalHub *hub)
{
    return &hub->remote;
}

bool
exec_local_hub_deliver(ExecLocalHub *hub, int32_t from, int64_t tag, const void *data,
                       int64_t n_bytes, GError **error)
{
    return put(hub, from, hub->remote.rank, tag, data, n_bytes, error);
}

static bool
post(ExecTransport *transport, int32_t to, int64_t tag, const void *data, int64_t n_bytes,
     GError **error)
{
    ExecLocalHub *hub = transport->state;
    const ExecHubRemote *remote = &hub->remote;

    g_return_val_if_fail(to >= 0 && to < hub->n_ranks && n_bytes >= 0, false);
    if (!exec_local_hub_check(hub, error))
        return false;
    const bool sent = remote->send != NULL && to != remote->rank
                          ? remote->send(remote->user_data, to, tag, data, n_bytes, error)
                          : put(hub, transport->rank, to, tag, data, n_bytes, error);
    transport->bytes_sent += sent ? n_bytes : 0;
    return sent;
}

/* Takes the first message that matches out of the queue; the mutex is held. */
static Message *
find(Mailbox *box, int32_t from, int64_t tag)
{
    for (Message **at = &box->first; *at != NULL; at = &(*at)->next) {
        Message *message = *at;
        if (message->from != from || message->tag != tag)
            continue;
        *at = message->next;
        if (message->next == NULL)
            box->last = at;
        return message;
    }
    return NULL;
}

static void
spin(ExecLocalHub *hub, Mailbox *box, int64_t seen, int64_t until_ns)
{
    while (atomic_load(&box->n_arrived) == seen && !atomic_load(&hub->aborted) &&
           now_ns() < until_ns) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
}

/* Sleeps until something arrives, an abort, or the deadline; the mutex is held.  Wakes up now and
 * then in any case: an abort between the check and the wait must not be missed for long. */
static void
sleep_until_arrival(ExecLocalHub *hub, Mailbox *box, int64_t deadline_ns)
{
    int64_t pause_us = 20000;

    if (hub->timeout_ns > 0)
        pause_us = CLAMP((deadline_ns - now_ns()) / 1000 + 1, 1, pause_us);
    g_cond_wait_until(&box->arrived, &box->mutex, g_get_monotonic_time() + pause_us);
}

/* Waits for the message; NULL with RANK_DIED or RANK_HUNG. */
static Message *
wait_for(ExecTransport *transport, int32_t from, int64_t tag, GError **error)
{
    ExecLocalHub *hub = transport->state;
    Mailbox *box = &hub->boxes[transport->rank];
    Message *message = NULL;

    g_mutex_lock(&box->mutex);
    message = find(box, from, tag);
    transport->waited_ns = 0;
    if (message != NULL) {
        g_mutex_unlock(&box->mutex);
        return message;
    }
    const int64_t begin = now_ns(), deadline = begin + hub->timeout_ns;
    int64_t spin_until = begin + hub->spin_ns;
    atomic_store(&box->waiting_for, from);
    while ((message = find(box, from, tag)) == NULL && !atomic_load(&hub->aborted)) {
        const int64_t seen = atomic_load(&box->n_arrived);
        const int64_t now = now_ns();
        if (hub->timeout_ns > 0 && now >= deadline)
            break;
        if (now < spin_until) {
            g_mutex_unlock(&box->mutex);
            spin(hub, box, seen, spin_until);
            g_mutex_lock(&box->mutex);
        } else {
            sleep_until_arrival(hub, box, deadline);
        }
    }
    g_mutex_unlock(&box->mutex);
    transport->waited_ns = now_ns() - begin;
    atomic_store(&box->waited_until_ns, begin + transport->waited_ns);
    atomic_store(&box->waiting_for, EXEC_NOT_WAITING);
    if (message == NULL && exec_local_hub_check(hub, error))
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_RANK_HUNG,
                    "rank %d has waited %.1f s for a message of rank %d", transport->rank,
                    (double)transport->waited_ns * 1e-9, from);
    return message;
}

/* --- slots --- */

static bool
send_message(ExecTransport *transport, int32_t to, int64_t tag, const void *data, int64_t n_bytes,
             GError **error)
{
    g_return_val_if_fail(tag >= 0, false);
    return post(transport, to, tag, data, n_bytes, error);
}

/* ExecWire's take. */
static bool
take(ExecTransport *transport, int32_t from, int64_t tag, Dtype add, void *data, int64_t n_bytes,
     GError **error)
{
    ExecLocalHub *hub = transport->state;
    Message *message = wait_for(transport, from, tag, error);

    if (message == NULL)
        return false;
    const int64_t length = message->n_bytes;
    if (length == n_bytes && add != EXEC_TAKE_COPY)
        exec_add(add, data, message->data, n_bytes / dtype_bytes(add));
    else if (length == n_bytes && n_bytes > 0)
        memcpy(data, message->data, (size_t)n_bytes);
    message_give_back(&hub->boxes[transport->rank], message);
    if (length != n_bytes)
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_FAILED,
                    "rank %d expected %" G_GINT64_FORMAT " bytes of rank %d, got %" G_GINT64_FORMAT,
                    transport->rank, n_bytes, from, length);
    return length == n_bytes;
}

static bool
receive_message(ExecTransport *transport, int32_t from, int64_t tag, void *data, int64_t n_bytes,
                GError **error)
{
    g_return_val_if_fail(from >= 0 && from < transport->n_ranks, false);
    return take(transport, from, tag, EXEC_TAKE_COPY, data, n_bytes, error);
}

static const ExecWire wire = {.post = post, .take = take};

static bool
reduce_scatter(ExecTransport *transport, const ExecGroup *group, Dtype dtype, void *data, int64_t n,
               GError **error)
{
    return exec_wire_reduce_scatter(&wire, transport, group, dtype, data, n, error);
}

static bool
all_gather(ExecTransport *transport, const ExecGroup *group, Dtype dtype, void *data, int64_t n,
           GError **error)
{
    return exec_wire_all_gather(&wire, transport, group, dtype, data, n, error);
}

static bool
all_reduce(ExecTransport *transport, const ExecGroup *group, Dtype dtype, void *data, int64_t n,
           GError **error)
{
    return reduce_scatter(transport, group, dtype, data, n, error) &&
           all_gather(transport, group, dtype, data, n, error);
}

static bool
all_to_all(ExecTransport *transport, const ExecGroup *group, const ExecExchange *exchange,
           GError **error)
{
    return exec_wire_all_to_all(&wire, transport, group, exchange, error);
}

static bool
broadcast(ExecTransport *transport, const ExecGroup *group, int32_t root, void *data,
          int64_t n_bytes, GError **error)
{
    return exec_wire_broadcast(&wire, transport, group, root, data, n_bytes, error);
}

static bool
barrier(ExecTransport *transport, const ExecGroup *group, GError **error)
{
    return exec_wire_barrier(&wire, transport, group, error);
}

static Mailbox *
box_of(const ExecTransport *transport)
{
    return &((ExecLocalHub *)transport->state)->boxes[transport->rank];
}

static int32_t
waiting_for(const ExecTransport *transport)
{
    return atomic_load(&box_of(transport)->waiting_for);
}

static int64_t
waited_until_ns(const ExecTransport *transport)
{
    return atomic_load(&box_of(transport)->waited_until_ns);
}

static int64_t
buffer_bytes(const ExecTransport *transport)
{
    Mailbox *box = box_of(transport);

    g_mutex_lock(&box->mutex);
    const int64_t bytes = box->buffer_bytes;
    g_mutex_unlock(&box->mutex);
    return bytes;
}

static void
abort_all(ExecTransport *transport, const char *reason)
{
    ExecLocalHub *hub = transport->state;

    g_mutex_lock(&hub->reason_mutex);
    if (hub->reason == NULL)
        hub->reason = g_strdup(reason);
    g_mutex_unlock(&hub->reason_mutex);
    atomic_store(&hub->aborted, true);
    for (int32_t i = 0; i < hub->n_ranks; i++) {
        g_mutex_lock(&hub->boxes[i].mutex);
        g_cond_broadcast(&hub->boxes[i].arrived);
        g_mutex_unlock(&hub->boxes[i].mutex);
    }
}

static const ExecTransportOps ops = {
    .name = "local",
    .send = send_message,
    .receive = receive_message,
    .all_reduce = all_reduce,
    .reduce_scatter = reduce_scatter,
    .all_gather = all_gather,
    .all_to_all = all_to_all,
    .broadcast = broadcast,
    .barrier = barrier,
    .waiting_for = waiting_for,
    .waited_until_ns = waited_until_ns,
    .buffer_bytes = buffer_bytes,
    .abort = abort_all,
};

ExecTransport
exec_local_transport(ExecLocalHub *hub, int32_t rank)
{
    return (ExecTransport){.ops = &ops, .rank = rank, .n_ranks = hub->n_ranks, .state = hub};
}

void
exec_transport_abort(ExecTransport *transport, const char *reason)
{
    transport->ops->abort(transport, reason);
}
