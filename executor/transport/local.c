#include "executor/transport/local.h"

#include <stdatomic.h>
#include <string.h>

#include "base/units.h"
#include "executor/device/cores.h"
#include "executor/transport/collective.h"
#include "executor/transport/mailbox.h"

/* Waking a sleeping thread costs 50 to 100 us on a virtual machine, so a rank with a core of its
 * own spins that long first; one without sleeps at once and leaves the core to the others. */
#define SPIN_NS 100000

ExecLocalHub *
exec_local_hub_new(int32_t n_ranks, double timeout_s)
{
    g_return_val_if_fail(n_ranks >= 1, NULL);
    ExecLocalHub *hub = g_new0(ExecLocalHub, 1);

    hub->n_ranks = n_ranks;
    hub->timeout_ns = units_ns_from_s(timeout_s);
    hub->spin_ns = n_ranks <= exec_n_cores() ? SPIN_NS : 0;
    hub->boxes = g_new0(ExecMailbox, (size_t)n_ranks);
    exec_abort_init(&hub->abort);
    for (int32_t i = 0; i < n_ranks; i++)
        exec_mailbox_init(&hub->boxes[i]);
    return hub;
}

void
exec_local_hub_free(ExecLocalHub *hub)
{
    if (hub == NULL)
        return;
    for (int32_t i = 0; i < hub->n_ranks; i++)
        exec_mailbox_clear(&hub->boxes[i]);
    exec_abort_clear(&hub->abort);
    g_free(hub->boxes);
    g_free(hub);
}

/* --- messages --- */

bool
exec_local_hub_deliver(ExecLocalHub *hub, int32_t from, int64_t tag, const void *data,
                       int64_t n_bytes, GError **error)
{
    const ExecMail header = {.from = from, .to = hub->remote.rank, .tag = tag, .n_bytes = n_bytes};

    return exec_mailbox_put(hub->boxes, &header, data, false, error);
}

/* @lend  as exec_mailbox_put(); to other processes bytes are gone when they are sent. */
static bool
give(ExecTransport *transport, int32_t to, int64_t tag, const void *data, int64_t n_bytes,
     bool lend, GError **error)
{
    ExecLocalHub *hub = transport->state;
    const ExecHubRemote *remote = &hub->remote;
    const ExecMail header = {.from = transport->rank, .to = to, .tag = tag, .n_bytes = n_bytes};

    g_return_val_if_fail(to >= 0 && to < hub->n_ranks && n_bytes >= 0, false);
    if (!exec_abort_check(&hub->abort, error))
        return false;
    const bool sent = remote->send != NULL && to != remote->rank
                          ? remote->send(remote->user_data, to, tag, data, n_bytes, error)
                          : exec_mailbox_put(hub->boxes, &header, data, lend, error);
    transport->sent_bytes += sent ? n_bytes : 0;
    return sent;
}

static bool
post(ExecTransport *transport, int32_t to, int64_t tag, const void *data, int64_t n_bytes,
     GError **error)
{
    return give(transport, to, tag, data, n_bytes, false, error);
}

/* --- waiting --- */

/* The clock of exec_now_ns(), as GLib's timed waits read it.  A test may put another clock in place
 * of exec_now_ns(), for what is measured; how long a thread waits for another stays real. */
static int64_t
wait_clock_ns(void)
{
    return 1000 * g_get_monotonic_time();
}

static void
spin(ExecLocalHub *hub, ExecMailbox *box, int64_t seen, int64_t until_ns)
{
    while (atomic_load(&box->n_changes) == seen && !atomic_load(&hub->abort.is_set) &&
           wait_clock_ns() < until_ns) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
}

/* Sleeps until something changes, an abort, or the deadline; the mutex is held.  Wakes up now and
 * then in any case: an abort between the check and the wait must not be missed for long. */
static void
sleep_until_change(ExecLocalHub *hub, ExecMailbox *box, int64_t deadline_ns)
{
    int64_t pause_us = 20000;

    if (hub->timeout_ns > 0)
        pause_us = CLAMP((deadline_ns - wait_clock_ns()) / 1000 + 1, 1, pause_us);
    exec_mailbox_sleep(box, g_get_monotonic_time() + pause_us);
}

/* What a rank waits for in its mailbox, asked with the mutex held: EXEC_NOT_WAITING once it is
 * there, else the rank that it depends on. */
typedef int32_t (*WaitsFor)(ExecMailbox *box, void *what);

/* False with RANK_DIED or RANK_HUNG. */
static bool
wait_until(ExecTransport *transport, WaitsFor waits_for, void *what, GError **error)
{
    ExecLocalHub *hub = transport->state;
    ExecMailbox *box = &hub->boxes[transport->rank];
    int32_t peer;

    g_mutex_lock(&box->mutex);
    transport->waited_ns = 0;
    if ((peer = waits_for(box, what)) == EXEC_NOT_WAITING) {
        g_mutex_unlock(&box->mutex);
        return true;
    }
    const int64_t begin = wait_clock_ns(), deadline = begin + hub->timeout_ns;
    const int64_t spin_until = begin + hub->spin_ns;
    atomic_store(&box->waiting_for, peer);
    while ((peer = waits_for(box, what)) != EXEC_NOT_WAITING && !atomic_load(&hub->abort.is_set)) {
        const int64_t seen = atomic_load(&box->n_changes);
        const int64_t now = wait_clock_ns();
        if (hub->timeout_ns > 0 && now >= deadline)
            break;
        if (now < spin_until) {
            g_mutex_unlock(&box->mutex);
            spin(hub, box, seen, spin_until);
            g_mutex_lock(&box->mutex);
        } else {
            sleep_until_change(hub, box, deadline);
        }
    }
    g_mutex_unlock(&box->mutex);
    transport->waited_ns = wait_clock_ns() - begin;
    atomic_store(&box->waited_until_ns, begin + transport->waited_ns);
    atomic_store(&box->waiting_for, EXEC_NOT_WAITING);
    if (peer != EXEC_NOT_WAITING && exec_abort_check(&hub->abort, error))
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_RANK_HUNG,
                    "rank %d has waited %.1f s for a message of rank %d", transport->rank,
                    (double)transport->waited_ns * 1e-9, peer);
    return peer == EXEC_NOT_WAITING;
}

typedef struct {
    int32_t from;
    int64_t tag;
    ExecMail *mail; /* (out) */
} Wanted;

static int32_t
waits_for_mail(ExecMailbox *box, void *what)
{
    Wanted *wanted = what;

    wanted->mail = exec_mailbox_find(box, wanted->from, wanted->tag);
    return wanted->mail == NULL ? wanted->from : EXEC_NOT_WAITING;
}

static int32_t
waits_for_place(ExecMailbox *box, void *what)
{
    const ExecAwaited *destination = what;

    return destination->got_bytes < 0 ? destination->from : EXEC_NOT_WAITING;
}

/* Bytes that were lent. */
typedef struct {
    const void *data;
    int64_t n_bytes;
} Lent;

static int32_t
waits_for_loans(ExecMailbox *box, void *what)
{
    const Lent *lent = what;

    return exec_mailbox_borrower(box, lent->data, lent->n_bytes);
}

/* --- slots --- */

static bool
send_message(ExecTransport *transport, int32_t to, int64_t tag, const void *data, int64_t n_bytes,
             GError **error)
{
    g_return_val_if_fail(tag >= 0, false);
    return post(transport, to, tag, data, n_bytes, error);
}

/* ExecWire's, too. */
static bool
lend(ExecTransport *transport, int32_t to, int64_t tag, const void *data, int64_t n_bytes,
     GError **error)
{
    return give(transport, to, tag, data, n_bytes, true, error);
}

static bool
regain(ExecTransport *transport, const void *data, int64_t n_bytes, GError **error)
{
    return wait_until(transport, waits_for_loans, &(Lent){data, n_bytes}, error);
}

/* ExecWire's take. */
static bool
take(ExecTransport *transport, int32_t from, int64_t tag, Dtype add, void *data, int64_t n_bytes,
     GError **error)
{
    ExecLocalHub *hub = transport->state;
    Wanted wanted = {.from = from, .tag = tag};

    if (!wait_until(transport, waits_for_mail, &wanted, error))
        return false;
    const int64_t length = wanted.mail->n_bytes;
    if (length == n_bytes && add != EXEC_TAKE_COPY)
        exec_add(add, data, exec_mail_data(wanted.mail), n_bytes / dtype_bytes(add));
    else if (length == n_bytes && n_bytes > 0)
        memcpy(data, exec_mail_data(wanted.mail), (size_t)n_bytes);
    exec_mailbox_dispose(hub->boxes, wanted.mail);
    return exec_check_length(transport, from, n_bytes, length, error);
}

static ExecMailbox *
box_of(const ExecTransport *transport)
{
    return &((ExecLocalHub *)transport->state)->boxes[transport->rank];
}

static bool
expect(ExecTransport *transport, int32_t from, int64_t tag, void *data, int64_t n_bytes,
       GError **error)
{
    ExecLocalHub *hub = transport->state;
    const ExecMail header = {.from = from, .tag = tag, .n_bytes = n_bytes};

    if (data != NULL)
        exec_mailbox_expect(hub->boxes, transport->rank, &header, data);
    return true;
}

/* What was awaited at @data has arrived. */
static bool
receive_awaited(ExecTransport *transport, ExecAwaited *destination, GError **error)
{
    ExecMailbox *box = box_of(transport);

    if (!wait_until(transport, waits_for_place, destination, error))
        return false;
    const ExecAwaited got = *destination;
    g_mutex_lock(&box->mutex);
    exec_mailbox_take_awaited(box, destination);
    g_mutex_unlock(&box->mutex);
    return exec_check_length(transport, got.from, got.n_bytes, got.got_bytes, error);
}

static bool
receive_message(ExecTransport *transport, int32_t from, int64_t tag, void *data, int64_t n_bytes,
                GError **error)
{
    ExecMailbox *box = box_of(transport);

    g_return_val_if_fail(from >= 0 && from < transport->n_ranks, false);
    g_mutex_lock(&box->mutex);
    ExecAwaited *destination = exec_mailbox_awaited(box, from, tag, data);
    g_mutex_unlock(&box->mutex);
    return destination != NULL ? receive_awaited(transport, destination, error)
                               : take(transport, from, tag, EXEC_TAKE_COPY, data, n_bytes, error);
}

static void
withdraw(ExecTransport *transport)
{
    ExecLocalHub *hub = transport->state;

    exec_mailbox_withdraw(hub->boxes, hub->n_ranks, transport->rank);
}

static const ExecWire wire = {
    .post = post, .take = take, .lend = lend, .regain = regain, .withdraw = withdraw};

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
    ExecMailbox *box = box_of(transport);

    g_mutex_lock(&box->mutex);
    const int64_t bytes = box->buffer_bytes;
    g_mutex_unlock(&box->mutex);
    return bytes;
}

static void
abort_all(ExecTransport *transport, const char *reason)
{
    ExecLocalHub *hub = transport->state;

    exec_abort_set(&hub->abort, reason);
    for (int32_t i = 0; i < hub->n_ranks; i++) {
        g_mutex_lock(&hub->boxes[i].mutex);
        g_cond_broadcast(&hub->boxes[i].changed);
        g_mutex_unlock(&hub->boxes[i].mutex);
    }
}

static const ExecTransportOps ops = {
    .name = "local",
    .send = send_message,
    .receive = receive_message,
    EXEC_WIRE_COLLECTIVES,
    .barrier = exec_wire_barrier,
    .expect = expect,
    .lend = lend,
    .regain = regain,
    .withdraw = withdraw,
    EXEC_OWN_ANSWERS,
    .abort = abort_all,
};

ExecTransport
exec_local_transport(ExecLocalHub *hub, int32_t rank)
{
    return (ExecTransport){
        .ops = &ops, .rank = rank, .n_ranks = hub->n_ranks, .wire = &wire, .state = hub};
}
