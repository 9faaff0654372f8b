#include "executor/transport/collective.h"

#include <string.h>

/* Tags of collectives; messages' are >= 0. */
enum {
    TAG_REDUCE_SCATTER = -1,
    TAG_ALL_GATHER = -2,
    TAG_BARRIER = -3,
    TAG_ALL_TO_ALL = -4,
    TAG_BROADCAST = -5,
    TAG_EXCHANGE = -6, /* in two halves: whole ones may come in between */
};

/* --- adding --- */

void
exec_add(Dtype dtype, void *to, const void *from, int64_t n)
{
    g_return_if_fail(dtype == DTYPE_FP32 || dtype == DTYPE_BF16);
    if (dtype == DTYPE_FP32) {
        float *sum = to;
        const float *x = from;
        for (int64_t i = 0; i < n; i++)
            sum[i] += x[i];
    } else {
        uint16_t *sum = to;
        const uint16_t *x = from;
        for (int64_t i = 0; i < n; i++)
            sum[i] = bf16_from_float(bf16_to_float(sum[i]) + bf16_to_float(x[i]));
    }
}

/* --- rings --- */

/* Chunk @chunk (modulo the group) of @data. */
typedef struct {
    char *data;
    int64_t n_bytes;
} Chunk;

static Chunk
chunk_at(const ExecGroup *group, Dtype dtype, void *data, int64_t n, int32_t chunk)
{
    const int64_t i = (chunk % group->n + group->n) % group->n;
    const int64_t begin = exec_group_chunk_begin(group, n, i);

    return (Chunk){
        .data = (char *)data + begin * dtype_bytes(dtype),
        .n_bytes = (exec_group_chunk_begin(group, n, i + 1) - begin) * dtype_bytes(dtype),
    };
}

/* The member @distance places further round the ring. */
static int32_t
neighbour(const ExecGroup *group, int32_t distance)
{
    return group->ranks[((group->index + distance) % group->n + group->n) % group->n];
}

static bool
pass_on(ExecTransport *transport, const ExecGroup *group, int64_t tag, Dtype add, Chunk out,
        Chunk in, GError **error)
{
    const int64_t own = transport->wire->segment_bytes, most = own > 0 ? own : EXEC_SEGMENT_BYTES;

    for (int64_t at = 0; at < MAX(out.n_bytes, in.n_bytes); at += most) {
        const int64_t n_out = MIN(most, out.n_bytes - at);
        const int64_t n_in = MIN(most, in.n_bytes - at);
        const bool lends = transport->wire->lend != NULL && out.n_bytes >= most;
        if (n_out > 0 && !(lends ? transport->wire->lend : transport->wire->post)(
                             transport, neighbour(group, 1), tag, out.data + at, n_out, error))
            return false;
        if (n_in > 0 && !transport->wire->take(transport, neighbour(group, -1), tag, add,
                                               in.data + at, n_in, error))
            return false;
    }
    return true;
}

/* The caller may change @data again, also after a failure (@ok: there was none). */
static bool
take_back(ExecTransport *transport, const void *data, int64_t n_bytes, bool ok, GError **error)
{
    if (transport->wire->lend == NULL || n_bytes == 0)
        return ok;
    ok = ok && transport->wire->regain(transport, data, n_bytes, error);
    if (!ok)
        transport->wire->withdraw(transport);
    return ok;
}

/* n-1 steps; in step s member i sends chunk i-1-s onwards and adds chunk i-2-s from behind (all
 * modulo n), so that after the last one chunk i is complete: the sum begins at member i+1 and goes
 * round the ring in order.  What was sent does not change any more. */
bool
exec_wire_reduce_scatter(ExecTransport *transport, const ExecGroup *group, Dtype dtype, void *data,
                         int64_t n, GError **error)
{
    bool ok = true;

    for (int32_t s = 0; s < group->n - 1 && ok; s++)
        ok = pass_on(transport, group, TAG_REDUCE_SCATTER, dtype,
                     chunk_at(group, dtype, data, n, group->index - 1 - s),
                     chunk_at(group, dtype, data, n, group->index - 2 - s), error);
    return take_back(transport, data, n * dtype_bytes(dtype), ok, error);
}

/* In step s member i sends chunk i-s and receives chunk i-1-s. */
bool
exec_wire_all_gather(ExecTransport *transport, const ExecGroup *group, Dtype dtype, void *data,
                     int64_t n, GError **error)
{
    bool ok = true;

    for (int32_t s = 0; s < group->n - 1 && ok; s++)
        ok = pass_on(transport, group, TAG_ALL_GATHER, EXEC_TAKE_COPY,
                     chunk_at(group, dtype, data, n, group->index - s),
                     chunk_at(group, dtype, data, n, group->index - 1 - s), error);
    return take_back(transport, data, n * dtype_bytes(dtype), ok, error);
}

bool
exec_wire_all_reduce(ExecTransport *transport, const ExecGroup *group, Dtype dtype, void *data,
                     int64_t n, GError **error)
{
    return exec_wire_reduce_scatter(transport, group, dtype, data, n, error) &&
           exec_wire_all_gather(transport, group, dtype, data, n, error);
}

/* --- permutations --- */

static void
give_oneself(ExecTransport *transport, const void *from, void *to, int64_t n_bytes)
{
    if (transport->wire->copy != NULL)
        transport->wire->copy(transport, from, to, n_bytes);
    else if (n_bytes > 0)
        memcpy(to, from, (size_t)n_bytes);
}

/* Round d: to the member d places on: not all send to one at once. */
static bool
post_pieces(ExecTransport *transport, const ExecGroup *group, int64_t tag,
            const ExecExchange *exchange, GError **error)
{
    const char *out = exchange->out;
    char *in = exchange->in;
    const int32_t own = group->index;

    g_return_val_if_fail(exchange->out_bytes[own] == exchange->in_bytes[own], false);
    give_oneself(transport, out + exec_piece_begin(exchange->out_bytes, own),
                 in + exec_piece_begin(exchange->in_bytes, own), exchange->out_bytes[own]);
    for (int32_t d = 1; d < group->n; d++) {
        const int32_t to = (own + d) % group->n;
        if (!transport->wire->post(transport, group->ranks[to], tag,
                                   out + exec_piece_begin(exchange->out_bytes, to),
                                   exchange->out_bytes[to], error))
            return false;
    }
    return true;
}

/* Round d: from the one d places back. */
static bool
take_pieces(ExecTransport *transport, const ExecGroup *group, int64_t tag,
            const ExecExchange *exchange, GError **error)
{
    char *in = exchange->in;

    for (int32_t d = 1; d < group->n; d++) {
        const int32_t from = (group->index + group->n - d) % group->n;
        if (!transport->wire->take(transport, group->ranks[from], tag, EXEC_TAKE_COPY,
                                   in + exec_piece_begin(exchange->in_bytes, from),
                                   exchange->in_bytes[from], error))
            return false;
    }
    return true;
}

bool
exec_wire_all_to_all(ExecTransport *transport, const ExecGroup *group, const ExecExchange *exchange,
                     GError **error)
{
    return post_pieces(transport, group, TAG_ALL_TO_ALL, exchange, error) &&
           take_pieces(transport, group, TAG_ALL_TO_ALL, exchange, error);
}

bool
exec_wire_begin_exchange(ExecTransport *transport, const ExecGroup *group,
                         const ExecExchange *exchange, GError **error)
{
    return post_pieces(transport, group, TAG_EXCHANGE, exchange, error);
}

bool
exec_wire_end_exchange(ExecTransport *transport, const ExecGroup *group,
                       const ExecExchange *exchange, GError **error)
{
    return take_pieces(transport, group, TAG_EXCHANGE, exchange, error);
}

/* A binomial tree: counted from the root, member v hears from v without its highest bit, and then
 * tells v + 2^k for every 2^k beyond that bit. */
bool
exec_wire_broadcast(ExecTransport *transport, const ExecGroup *group, int32_t root, void *data,
                    int64_t n_bytes, GError **error)
{
    const int32_t v = (group->index - root + group->n) % group->n;
    int32_t step = 1;

    g_return_val_if_fail(root >= 0 && root < group->n, false);
    while (step <= v)
        step *= 2;
    if (v > 0 && !transport->wire->take(transport, group->ranks[(v - step / 2 + root) % group->n],
                                        TAG_BROADCAST, EXEC_TAKE_COPY, data, n_bytes, error))
        return false;
    for (; v + step < group->n; step *= 2)
        if (!transport->wire->post(transport, group->ranks[(v + step + root) % group->n],
                                   TAG_BROADCAST, data, n_bytes, error))
            return false;
    return true;
}

/* Dissemination: after round k a member knows that 2^(k+1) members behind it have arrived
 * [Hensgen, Finkel, Manber 1988]. */
bool
exec_wire_barrier(ExecTransport *transport, const ExecGroup *group, GError **error)
{
    for (int32_t step = 1; step < group->n; step *= 2)
        if (!transport->wire->post(transport, neighbour(group, step), TAG_BARRIER, NULL, 0,
                                   error) ||
            !transport->wire->take(transport, neighbour(group, -step), TAG_BARRIER, EXEC_TAKE_COPY,
                                   NULL, 0, error))
            return false;
    return true;
}
