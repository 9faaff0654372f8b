#include "schedule/zb_order.h"

#include <string.h>

#include "base/saturate.h"
#include "base/units.h"

/* --- the problem --- */

/* Sums of times stay below this, so that adding two of them cannot overflow. */
#define MAX_TOTAL (INT64_MAX / 8)

#define refuse(error, code, ...) schedule_refuse(error, code, "schedule zb-auto: " __VA_ARGS__)

static const ScheduleStageTimes unit_times = {.forward_ns = 1, .input_ns = 1, .weight_ns = 1};

/* Whether micro-batches are counted, not weighed. */
static bool
has_no_bytes(const ScheduleTimes *times)
{
    if (times->limit_bytes != NULL)
        return false;
    for (int64_t s = 0; s < times->n_stages; s++)
        if (times->stages[s].activation_bytes != 0 || times->stages[s].weight_activation_bytes != 0)
            return false;
    return true;
}

/* Adds m times every number of @stage to @total.  Returns false on a negative number or overflow.
 */
static bool
add_stage(const ScheduleStageTimes *stage, int64_t m, int64_t *total_ns, int64_t *total_bytes)
{
    const int64_t ns[] = {stage->forward_ns,         stage->input_ns,
                          stage->weight_ns,          stage->backward_ns,
                          stage->forward_message_ns, stage->backward_message_ns};
    const int64_t bytes[] = {stage->activation_bytes, stage->weight_activation_bytes};

    for (size_t i = 0; i < G_N_ELEMENTS(ns) + G_N_ELEMENTS(bytes); i++) {
        const bool is_time = i < G_N_ELEMENTS(ns);
        int64_t value = is_time ? ns[i] : bytes[i - G_N_ELEMENTS(ns)];
        int64_t *total = is_time ? total_ns : total_bytes;
        if (value < 0 || __builtin_mul_overflow(value, m, &value) ||
            __builtin_add_overflow(*total, value, total) || *total > MAX_TOTAL)
            return false;
    }
    return true;
}

static bool
check_times(const ScheduleShape *shape, const ScheduleTimes *times, GError **error)
{
    const int64_t n_stages = shape->n_ranks * shape->n_chunks;
    int64_t total_ns = 0, total_bytes = 0;

    if (times->stages == NULL || (times->n_stages != 1 && times->n_stages != n_stages))
        return refuse(error, SHAPE, "times of " INT " stages, expected 1 or " INT, times->n_stages,
                      n_stages);
    for (int64_t s = 0; s < n_stages; s++)
        if (!add_stage(&times->stages[times->n_stages == 1 ? 0 : s], shape->n_micro_batches,
                       &total_ns, &total_bytes))
            return refuse(
                error, SHAPE,
                "times and bytes of stage " INT
                " must not be negative, nor the sum of all stages and micro-batches above " INT,
                s, MAX_TOTAL);
    if (times->limit_micro_batches < 0)
        return refuse(error, SHAPE, "the memory limit must be at least 1 micro-batch, got " INT,
                      times->limit_micro_batches);
    if ((int)times->objective < 0 || times->objective >= SCHEDULE_OBJECTIVE_N)
        return refuse(error, SHAPE, "unknown objective %d", (int)times->objective);
    return true;
}

/* Bytes that one micro-batch alone needs on a rank: all chunks' F, then each I and W. */
static int64_t
bytes_of_one(const ZbProblem *problem, int32_t rank)
{
    int64_t held = 0, peak;

    for (int c = 0; c < problem->v; c++)
        held += zb_op(problem, rank, zb_type(SCHEDULE_OP_FORWARD, c))->begin_bytes;
    peak = held;
    for (int c = problem->v - 1; c >= 0; c--) {
        held += zb_op(problem, rank, zb_type(SCHEDULE_OP_BACKWARD_INPUT, c))->end_bytes;
        peak = MAX(peak, held);
        held += zb_op(problem, rank, zb_type(SCHEDULE_OP_BACKWARD_WEIGHT, c))->end_bytes;
    }
    return peak;
}

/* Bytes of @n micro-batches' activations; INT64_MAX beyond. */
static int64_t
bytes_of_forwards(const ZbProblem *problem, int32_t rank, int64_t n)
{
    int64_t bytes = 0;

    for (int c = 0; c < problem->v; c++)
        bytes += zb_op(problem, rank, zb_type(SCHEDULE_OP_FORWARD, c))->begin_bytes;
    return saturate_product(bytes, n, INT64_MAX);
}

static bool
set_limits(ZbProblem *problem, const ScheduleTimes *times, GError **error)
{
    int64_t n = times->limit_micro_batches;

    /* As much as ZB-H2 and ZB-2p may hold  [2401.10241]. */
    if (n == 0 && times->limit_bytes == NULL)
        n = 2 * (int64_t)problem->p;
    for (int32_t r = 0; r < problem->p; r++) {
        const int64_t one = bytes_of_one(problem, r);
        int64_t limit = n == 0 ? INT64_MAX : bytes_of_forwards(problem, r, n);
        if (times->limit_bytes != NULL)
            limit = MIN(limit, times->limit_bytes[r]);
        if (limit < one)
            return refuse(error, SHAPE,
                          "rank %d may hold " INT " bytes, one micro-batch needs " INT, r, limit,
                          one);
        problem->limit_bytes[r] = limit;
    }
    return true;
}

static void
set_ops(ZbProblem *problem, const Schedule *placed, int32_t rank, int32_t chunk,
        const ScheduleStageTimes *times)
{
    const int32_t n = problem->p * problem->v;
    const int32_t stage = schedule_stage(placed, rank, chunk);
    const int32_t before = stage == 0 ? -1 : schedule_rank_of_stage(placed, stage - 1, 0);
    const int32_t after = stage == n - 1 ? rank : schedule_rank_of_stage(placed, stage + 1, 0);
    ZbOp *ops = &problem->ops[(int64_t)rank * ZB_N_TYPES + chunk * SCHEDULE_OP_N];

    /* A stage's F reads channel @stage, its backward channel n + @stage.  The last stage's F passes
     * its micro-batch to its own backward. */
    ops[SCHEDULE_OP_FORWARD] = (ZbOp){
        .ns = times->forward_ns,
        .message_ns = after == rank ? 0 : times->forward_message_ns,
        .begin_bytes = times->activation_bytes,
        .in = stage == 0 ? -1 : stage,
        .out = stage == n - 1 ? n + stage : stage + 1,
        .in_rank = before,
        .out_rank = after,
    };
    ops[SCHEDULE_OP_BACKWARD_INPUT] = (ZbOp){
        .ns = times->input_ns,
        .message_ns = before == rank ? 0 : times->backward_message_ns,
        .end_bytes = times->weight_activation_bytes - times->activation_bytes,
        .in = n + stage,
        .out = stage == 0 ? -1 : n + stage - 1,
        .in_rank = after,
        .out_rank = before,
    };
    ops[SCHEDULE_OP_BACKWARD] = ops[SCHEDULE_OP_BACKWARD_INPUT];
    ops[SCHEDULE_OP_BACKWARD].ns =
        times->backward_ns > 0 ? times->backward_ns : times->input_ns + times->weight_ns;
    ops[SCHEDULE_OP_BACKWARD].end_bytes = -times->activation_bytes;
    ops[SCHEDULE_OP_BACKWARD_WEIGHT] = (ZbOp){
        .ns = times->weight_ns,
        .end_bytes = -times->weight_activation_bytes,
        .in = -1,
        .out = -1,
        .in_rank = -1,
        .out_rank = -1,
    };
    if (ops[SCHEDULE_OP_BACKWARD].ns < times->input_ns + times->weight_ns)
        problem->may_fuse = true;
}

/* When micro-batch 0 reaches each rank. */
static void
set_first(ZbProblem *problem)
{
    for (int32_t r = 1; r < problem->p; r++) {
        const ZbOp *f = zb_op(problem, r - 1, zb_type(SCHEDULE_OP_FORWARD, 0));
        problem->first_ns[r] = problem->first_ns[r - 1] + f->ns + f->message_ns;
    }
}

bool
zb_problem_init(ZbProblem *problem, const ScheduleShape *shape, GError **error)
{
    static const ScheduleTimes defaults = {.stages = &unit_times, .n_stages = 1};
    const ScheduleTimes *times = shape->times == NULL ? &defaults : shape->times;
    const Schedule placed = {
        .n_ranks = (int32_t)shape->n_ranks,
        .n_chunks = (int32_t)shape->n_chunks,
        .placement = SCHEDULE_PLACEMENT_V,
    };

    *problem = (ZbProblem){
        .p = (int32_t)shape->n_ranks,
        .v = (int32_t)shape->n_chunks,
        .m = (int32_t)shape->n_micro_batches,
        .n_channels = (int32_t)(2 * shape->n_ranks * shape->n_chunks),
        .max_length = 3 * shape->n_chunks * shape->n_micro_batches,
        .objective = times->objective,
    };
    if (!check_times(shape, times, error))
        return false;
    const bool counted = has_no_bytes(times);
    problem->ops = g_new0(ZbOp, (size_t)problem->p * ZB_N_TYPES);
    problem->limit_bytes = g_new0(int64_t, (size_t)problem->p);
    problem->first_ns = g_new0(int64_t, (size_t)problem->p);
    for (int32_t r = 0; r < problem->p; r++)
        for (int32_t c = 0; c < problem->v; c++) {
            const int32_t stage = times->n_stages == 1 ? 0 : schedule_stage(&placed, r, c);
            ScheduleStageTimes here = times->stages[stage];
            if (counted)
                here.activation_bytes = here.weight_activation_bytes = 1;
            set_ops(problem, &placed, r, c, &here);
        }
    if (!set_limits(problem, times, error)) {
        zb_problem_clear(problem);
        return false;
    }
    set_first(problem);
    return true;
}

void
zb_problem_clear(ZbProblem *problem)
{
    g_clear_pointer(&problem->ops, g_free);
    g_clear_pointer(&problem->limit_bytes, g_free);
    g_clear_pointer(&problem->first_ns, g_free);
}

/* --- orders and their times --- */

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
    return refuse(error, LIMIT, "no memory for the orders of %d ranks", problem->p);
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
    return refuse(error, LIMIT, "no memory for the times of %d ranks", problem->p);
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

/* Runs a rank until an op's message has not been sent.  Ranks that waited for what it sends are
 * pushed onto the stack. */
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
    /* Rank 0 on top.  No rank is on the stack twice: only who waits is pushed, and once. */
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
        if (kind == SCHEDULE_OP_FORWARD) {
            forwards[c]++;
        } else if (kind == SCHEDULE_OP_BACKWARD_WEIGHT) {
            pending[c]--;
        } else {
            backwards[c]++;
            pending[c] += kind == SCHEDULE_OP_BACKWARD_INPUT;
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
