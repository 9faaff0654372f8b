#include "executor/transport/device.h"

#include <stdlib.h>

#include "executor/transport/collective.h"

/* Of the messages of collectives, whose tags are negative: beyond those of any schedule. */
#define WIRE_TAG (INT64_C(1) << 62)

typedef struct {
    ExecTransport outer; /* whose state this is */
    ExecTransport *inner;
    ExecBackend *backend;
    char *staging; /* (owned) host memory */
    size_t n_staging;
} Device;

static inline Device *
device_of(const ExecTransport *transport)
{
    return transport->state;
}

/* Host memory for @n_bytes; NULL with EXEC_ERROR_MEMORY. */
static char *
staging_for(Device *d, size_t n_bytes, GError **error)
{
    if (d->staging != NULL && n_bytes <= d->n_staging)
        return d->staging;
    free(d->staging);
    d->n_staging = (n_bytes + n_bytes / 4 + 64) & ~(size_t)63;
    d->staging = aligned_alloc(64, d->n_staging);
    if (d->staging == NULL) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_MEMORY,
                    "no host memory for %zu bytes of a message on its way", n_bytes);
        d->n_staging = 0;
    }
    return d->staging;
}

/* @data is in the staging memory, and everything before it has been done. */
static char *
bring_to_host(Device *d, const void *data, size_t n_bytes, GError **error)
{
    char *host = staging_for(d, n_bytes, error);

    if (host == NULL)
        return NULL;
    d->backend->ops->download(d->backend, n_bytes, data, host);
    return d->backend->ops->synchronize(d->backend, error) ? host : NULL;
}

/* Counters of the inner endpoint are the outer's. */
static bool
counted(ExecTransport *transport, bool ok)
{
    const Device *d = device_of(transport);

    transport->sent_bytes = d->inner->sent_bytes;
    transport->waited_ns = d->inner->waited_ns;
    return ok;
}

/* --- on the device: a message is a parcel's handle --- */

static bool
post(ExecTransport *transport, int32_t to, int64_t tag, const void *data, int64_t n_bytes,
     GError **error)
{
    Device *d = device_of(transport);
    ExecParcel parcel;

    if (!d->backend->ops->post(d->backend, data, (size_t)n_bytes, &parcel, error) ||
        !d->inner->ops->send(d->inner, to, tag, &parcel, sizeof parcel, error))
        return false;
    d->inner->sent_bytes += n_bytes - (int64_t)sizeof parcel;
    return counted(transport, true);
}

static bool
fetch(ExecTransport *transport, int32_t from, int64_t tag, Dtype add, void *data, int64_t n_bytes,
      GError **error)
{
    Device *d = device_of(transport);
    ExecParcel parcel;

    if (!d->inner->ops->receive(d->inner, from, tag, &parcel, sizeof parcel, error))
        return false;
    d->backend->ops->fetch(d->backend, &parcel, (size_t)n_bytes, add, data);
    return counted(transport, true);
}

static bool
fetch_message(ExecTransport *transport, int32_t from, int64_t tag, void *data, int64_t n_bytes,
              GError **error)
{
    return fetch(transport, from, tag, EXEC_TAKE_COPY, data, n_bytes, error);
}

static bool
wire_post(ExecTransport *transport, int32_t to, int64_t tag, const void *data, int64_t n_bytes,
          GError **error)
{
    return post(transport, to, WIRE_TAG - tag, data, n_bytes, error);
}

static bool
wire_take(ExecTransport *transport, int32_t from, int64_t tag, Dtype add, void *data,
          int64_t n_bytes, GError **error)
{
    return fetch(transport, from, WIRE_TAG - tag, add, data, n_bytes, error);
}

static void
wire_copy(ExecTransport *transport, const void *from, void *to, int64_t n_bytes)
{
    const Device *d = device_of(transport);

    if (n_bytes > 0)
        d->backend->ops->copy(d->backend, (size_t)n_bytes, from, to);
}

/* The host queues some dozen calls for a segment, which take about as long as the device takes for 16 MiB. */
#define SEGMENT_BYTES (INT64_C(16) << 20)

static const ExecWire wire = {
    .segment_bytes = SEGMENT_BYTES, .post = wire_post, .take = wire_take, .copy = wire_copy};

/* --- through host memory --- */

static bool
send_staged(ExecTransport *transport, int32_t to, int64_t tag, const void *data, int64_t n_bytes,
            GError **error)
{
    Device *d = device_of(transport);
    const char *host = bring_to_host(d, data, (size_t)n_bytes, error);

    return host != NULL &&
           counted(transport, d->inner->ops->send(d->inner, to, tag, host, n_bytes, error));
}

static bool
receive_staged(ExecTransport *transport, int32_t from, int64_t tag, void *data, int64_t n_bytes,
               GError **error)
{
    Device *d = device_of(transport);
    char *host = staging_for(d, (size_t)n_bytes, error);

    if (host == NULL || !d->inner->ops->receive(d->inner, from, tag, host, n_bytes, error))
        return false;
    d->backend->ops->upload(d->backend, (size_t)n_bytes, host, data);
    return counted(transport, true);
}

typedef bool (*InPlace)(ExecTransport *, const ExecGroup *, Dtype, void *, int64_t, GError **);

static bool
staged(ExecTransport *transport, InPlace collective, const ExecGroup *group, Dtype dtype,
       void *data, int64_t n, GError **error)
{
    Device *d = device_of(transport);
    const size_t n_bytes = (size_t)(n * dtype_bytes(dtype));
    char *host = bring_to_host(d, data, n_bytes, error);

    if (host == NULL || !collective(d->inner, group, dtype, host, n, error))
        return false;
    d->backend->ops->upload(d->backend, n_bytes, host, data);
    return counted(transport, true);
}

/* The slot of that name. */
#define STAGED(slot)                                                                               \
    static bool slot(ExecTransport *transport, const ExecGroup *group, Dtype dtype, void *data,    \
                     int64_t n, GError **error)                                                    \
    {                                                                                              \
        return staged(transport, device_of(transport)->inner->ops->slot, group, dtype, data, n,    \
                      error);                                                                      \
    }
STAGED(reduce_scatter)
STAGED(all_gather)
STAGED(all_reduce)

static bool
all_to_all(ExecTransport *transport, const ExecGroup *group, const ExecExchange *exchange,
           GError **error)
{
    Device *d = device_of(transport);
    const size_t n_out = (size_t)exec_piece_begin(exchange->out_bytes, group->n);
    const size_t n_in = (size_t)exec_piece_begin(exchange->in_bytes, group->n);
    const size_t at_in = (n_out + 63) & ~(size_t)63;
    ExecExchange staged_exchange = *exchange;

    /* Sized for both before the first download: growing would lose it. */
    if (staging_for(d, at_in + n_in, error) == NULL)
        return false;
    char *host = bring_to_host(d, exchange->out, n_out, error);
    if (host == NULL)
        return false;
    staged_exchange.out = host;
    staged_exchange.in = host + at_in;
    if (!d->inner->ops->all_to_all(d->inner, group, &staged_exchange, error))
        return false;
    d->backend->ops->upload(d->backend, n_in, staged_exchange.in, exchange->in);
    return counted(transport, true);
}

static bool
broadcast(ExecTransport *transport, const ExecGroup *group, int32_t root, void *data,
          int64_t n_bytes, GError **error)
{
    Device *d = device_of(transport);
    char *host = bring_to_host(d, data, (size_t)n_bytes, error);

    if (host == NULL || !d->inner->ops->broadcast(d->inner, group, root, host, n_bytes, error))
        return false;
    d->backend->ops->upload(d->backend, (size_t)n_bytes, host, data);
    return counted(transport, true);
}

/* --- lifecycle --- */

static bool
barrier(ExecTransport *transport, const ExecGroup *group, GError **error)
{
    Device *d = device_of(transport);

    return d->backend->ops->synchronize(d->backend, error) &&
           counted(transport, d->inner->ops->barrier(d->inner, group, error));
}

static void
abort_ranks(ExecTransport *transport, const char *reason)
{
    ExecTransport *inner = device_of(transport)->inner;

    inner->ops->abort(inner, reason);
}

static const ExecTransportOps posting_ops = {
    .name = "device",
    .send = post,
    .receive = fetch_message,
    EXEC_WIRE_COLLECTIVES,
    .barrier = barrier,
    .abort = abort_ranks,
};

static const ExecTransportOps staging_ops = {
    .name = "device",
    .send = send_staged,
    .receive = receive_staged,
    EXEC_OWN_COLLECTIVES,
    .abort = abort_ranks,
};

ExecTransport *
exec_device_transport_new(ExecTransport *inner, ExecBackend *backend, bool shares_device)
{
    Device *d = g_new0(Device, 1);

    d->inner = inner;
    d->backend = backend;
    const bool posts = shares_device && backend->ops->post != NULL;
    d->outer = (ExecTransport){.ops = posts ? &posting_ops : &staging_ops,
                               .rank = inner->rank,
                               .n_ranks = inner->n_ranks,
                               .queues = posts,
                               .wire = &wire,
                               .state = d};
    return &d->outer;
}

void
exec_device_transport_free(ExecTransport *transport)
{
    if (transport == NULL)
        return;
    free(device_of(transport)->staging);
    g_free(device_of(transport));
}
