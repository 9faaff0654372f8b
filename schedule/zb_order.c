#include "schedule/zb_order.h"

#include <string.h>

/* --- lifecycle --- */

bool
zb_order_init(ZbOrder *order, const ZbProblem *problem, GError **error)
{
    *order = (ZbOrder){
        .types = g_try_malloc0_n((size_t)problem->p, (size_t)problem->max_length),
        .length = g_new0(int64_t, (size_t)problem->p),
    };
    if (order->types != NULL)
        return true;
    zb_order_clear(order);
    g_set_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_LIMIT,
                "schedule zb-auto: no memory for the orders of %d ranks", problem->p);
    return false;
}

void
zb_order_clear(ZbOrder *order)
{
    g_clear_pointer(&order->types, g_free);
    g_clear_pointer(&order->length, g_free);
}

void
zb_order_copy(ZbOrder *to, const ZbOrder *from, const ZbProblem *problem)
{
    memcpy(to->types, from->types, (size_t)problem->p * (size_t)problem->max_length);
    memcpy(to->length, from->length, (size_t)problem->p * sizeof(int64_t));
}

bool
zb_times_init(ZbTimes *times, const ZbProblem *problem, GError **error)
{
    const size_t p = (size_t)problem->p, n_channels = (size_t)problem->n_channels;
    const size_t n_ops = p * (size_t)problem->max_length;
    const size_t n_messages = n_channels * (size_t)problem->m;

    *times = (ZbTimes){
        .start_ns = g_try_malloc_n(n_ops, sizeof(int64_t)),
        .channel_index = g_try_malloc_n(n_ops, sizeof(int32_t)),
        .ready_ns = g_try_malloc_n(n_messages, sizeof(int64_t)),
        .sender = g_try_malloc_n(n_messages, sizeof(int32_t)),
        .end_ns = g_new0(int64_t, p),
        .filled = g_new0(int32_t, n_channels),
        .taken = g_new0(int32_t, n_channels),
        .waits = g_new0(int32_t, p),
        .stack = g_new0(int32_t, p),
        .position = g_new0(int64_t, p),
    };
    if (times->start_ns != NULL && times->channel_index != NULL && times->ready_ns != NULL &&
        times->sender != NULL)
        return true;
    zb_times_clear(times);
    g_set_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_LIMIT,
                "schedule zb-auto: no memory for the times of %d ranks", problem->p);
    return false;
}

void
zb_times_clear(ZbTimes *times)
{
    g_free(times->start_ns);
    g_free(times->channel_index);
    g_free(times->ready_ns);
    g_free(times->sender);
    g_free(times->end_ns);
    g_free(times->filled);
    g_free(times->taken);
    g_free(times->waits);
    g_free(times->stack);
    g_free(times->position);
    *times = (ZbTimes){0};
}

/* --- time --- */

static ZbValue
value_of(const ZbProblem *problem, const ZbTimes *times)
{
    int64_t makespan = 0, span = 0, sum = 0;

    for (int32_t r = 0; r < problem->p; r++) {
        const int64_t own = times->end_ns[r] - problem->first_ns[r];
        makespan = MAX(makespan, times->end_ns[r]);
        span = MAX(span, own);
        sum += own / problem->p;
    }
    if (problem->objective == SCHEDULE_OBJECTIVE_SPAN)
        return (ZbValue){span, makespan, sum};
    return (ZbValue){makespan, span, sum};
}

/*
 * Runs a rank until an op's message has not been sent.  Ranks that waited for what it sends are
 * pushed onto the stack.
 */
static int32_t
run_rank(const ZbProblem *problem, const ZbOrder *order, ZbTimes *times, int32_t rank,
         int32_t n_stack)
{
    const uint8_t *types = zb_order_rank(order, problem, rank);
    const ZbOp *ops = &problem->ops[(int64_t)rank * ZB_N_TYPES];
    const int64_t m = problem->m, length = order->length[rank];
    int64_t *start_ns = &times->start_ns[rank * problem->max_length];
    int32_t *unit = &times->channel_index[rank * problem->max_length];
    int64_t now = times->end_ns[rank], i = times->position[rank];

    times->waits[rank] = -1;
    for (; i < length; i++) {
        const ZbOp *op = &ops[types[i]];
        int32_t k = -1;
        if (op->in >= 0) {
            k = times->taken[op->in];
            if (k >= times->filled[op->in]) {
                times->waits[rank] = op->in;
                break;
            }
            times->taken[op->in] = k + 1;
            now = MAX(now, times->ready_ns[op->in * m + k]);
        }
        start_ns[i] = now;
        unit[i] = k;
        now += op->ns;
        if (op->out < 0)
            continue;
        const int64_t message = op->out * m + times->filled[op->out]++;
        times->ready_ns[message] = now + op->message_ns;
        times->sender[message] = (int32_t)i;
        if (times->waits[op->out_rank] == op->out) {
            times->waits[op->out_rank] = -1;
            times->stack[n_stack++] = op->out_rank;
        }
    }
    times->end_ns[rank] = now;
    times->position[rank] = i;
    return n_stack;
}

bool
zb_evaluate(const ZbProblem *problem, const ZbOrder *order, ZbTimes *times, ZbValue *value)
{
    const size_t p = (size_t)problem->p;
    int32_t n_stack = 0;

    memset(times->filled, 0, (size_t)problem->n_channels * sizeof(int32_t));
    memset(times->taken, 0, (size_t)problem->n_channels * sizeof(int32_t));
    memset(times->end_ns, 0, p * sizeof(int64_t));
    memset(times->position, 0, p * sizeof(int64_t));
    /* Rank 0 on top.  No rank is on the stack twice: only who waits is pushed, and pushed only
     * once. */
    for (int32_t r = problem->p - 1; r >= 0; r--) {
        times->waits[r] = -1;
        times->stack[n_stack++] = r;
    }
    while (n_stack > 0) {
        const int32_t rank = times->stack[--n_stack];
        n_stack = run_rank(problem, order, times, rank, n_stack);
    }
    for (int32_t r = 0; r < problem->p; r++)
        if (times->position[r] < order->length[r])
            return false;
    *value = value_of(problem, times);
    return true;
}

/* --- memory --- */

bool
zb_order_fits(const ZbProblem *problem, const ZbOrder *order, int32_t rank)
{
    const uint8_t *types = zb_order_rank(order, problem, rank);
    const ZbOp *ops = &problem->ops[(int64_t)rank * ZB_N_TYPES];
    const int64_t limit = problem->limit_bytes[rank];
    int32_t forwards[ZB_MAX_CHUNKS] = {0}, backwards[ZB_MAX_CHUNKS] = {0};
    int32_t pending[ZB_MAX_CHUNKS] = {0};
    int64_t bytes = 0;

    for (int64_t i = 0; i < order->length[rank]; i++) {
        const int c = zb_chunk(types[i]);
        const int kind = zb_kind(types[i]);
        bytes += ops[types[i]].begin_bytes;
        if (bytes > limit)
            return false;
        bytes += ops[types[i]].end_bytes;
        if (bytes > limit)
            return false;
        switch ((ScheduleOpKind)kind) {
        case SCHEDULE_OP_FORWARD:
            forwards[c]++;
            break;
        case SCHEDULE_OP_BACKWARD:
            backwards[c]++;
            break;
        case SCHEDULE_OP_BACKWARD_INPUT:
            backwards[c]++;
            pending[c]++;
            break;
        default:
            pending[c]--;
            break;
        }
        if (pending[c] < 0 || backwards[c] > forwards[c])
            return false;
    }
    for (int c = 0; c < problem->v; c++)
        if (forwards[c] != problem->m || backwards[c] != problem->m || pending[c] != 0)
            return false;
    return true;
}

/* Invariant: types[0..n) are the fused ops before types[i].  W may have been that of an earlier I:
 * that one then takes the next W, as micro-batches are alike. */
void
zb_order_fuse(const ZbProblem *problem, ZbOrder *order, int32_t rank)
{
    uint8_t *types = zb_order_rank(order, problem, rank);
    int64_t n = 0;

    for (int64_t i = 0; i < order->length[rank]; i++, n++) {
        const int c = zb_chunk(types[i]);
        const uint8_t weight = zb_type(SCHEDULE_OP_BACKWARD_WEIGHT, c);
        const uint8_t whole = zb_type(SCHEDULE_OP_BACKWARD, c);
        types[n] = types[i];
        if (zb_kind(types[i]) == SCHEDULE_OP_BACKWARD_INPUT && i + 1 < order->length[rank] &&
            types[i + 1] == weight &&
            zb_op(problem, rank, whole)->ns <
                zb_op(problem, rank, types[i])->ns + zb_op(problem, rank, weight)->ns) {
            types[n] = whole;
            i++;
        }
    }
    order->length[rank] = n;
}

ZbValue
zb_order_value(const ZbProblem *problem, const ZbOrder *order, ZbTimes *times)
{
    ZbValue value;

    for (int32_t r = 0; r < problem->p; r++)
        if (!zb_order_fits(problem, order, r))
            return ZB_VALUE_NONE;
    return zb_evaluate(problem, order, times, &value) ? value : ZB_VALUE_NONE;
}
