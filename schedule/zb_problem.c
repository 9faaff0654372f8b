#include "schedule/zb_order.h"

#include "base/saturate.h"

#include <string.h>

/* Sums of times stay below this, so that adding two of them cannot overflow. */
#define MAX_TOTAL (INT64_MAX / 8)

/* --- the problem --- */

#define refuse(error, code, ...)                                                                   \
    (g_set_error(error, SCHEDULE_ERROR, code, "schedule zb-auto: " __VA_ARGS__), false)

static const ScheduleStageTimes unit_times = {
    .forward_ns = 1,
    .input_ns = 1,
    .weight_ns = 1,
};

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
        return refuse(error, SCHEDULE_ERROR_SHAPE,
                      "times of %" G_GINT64_FORMAT " stages, expected 1 or %" G_GINT64_FORMAT,
                      times->n_stages, n_stages);
    for (int64_t s = 0; s < n_stages; s++)
        if (!add_stage(&times->stages[times->n_stages == 1 ? 0 : s], shape->n_micro_batches,
                       &total_ns, &total_bytes))
            return refuse(error, SCHEDULE_ERROR_SHAPE,
                          "times and bytes of stage %" G_GINT64_FORMAT
                          " must not be negative, nor the sum of all stages and micro-batches "
                          "above %" G_GINT64_FORMAT,
                          s, MAX_TOTAL);
    if (times->limit_micro_batches < 0)
        return refuse(error, SCHEDULE_ERROR_SHAPE,
                      "the memory limit must be at least 1 micro-batch, got %" G_GINT64_FORMAT,
                      times->limit_micro_batches);
    if ((int)times->objective < 0 || times->objective >= SCHEDULE_OBJECTIVE_N)
        return refuse(error, SCHEDULE_ERROR_SHAPE, "unknown objective %d", (int)times->objective);
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
            return refuse(error, SCHEDULE_ERROR_SHAPE,
                          "rank %d may hold %" G_GINT64_FORMAT
                          " bytes, one micro-batch needs %" G_GINT64_FORMAT,
                          r, limit, one);
        problem->limit_bytes[r] = limit;
    }
    return true;
}

/* The channel that @kind of @stage reads: stages' forwards, then their backwards. */
static int32_t
channel_of(int32_t n_stages, int32_t stage, bool backward)
{
    return backward ? n_stages + stage : stage;
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

    /* The last stage's F passes its micro-batch to its own backward. */
    ops[SCHEDULE_OP_FORWARD] = (ZbOp){
        .ns = times->forward_ns,
        .message_ns = after == rank ? 0 : times->forward_message_ns,
        .begin_bytes = times->activation_bytes,
        .in = stage == 0 ? -1 : channel_of(n, stage, false),
        .out = stage == n - 1 ? channel_of(n, stage, true) : channel_of(n, stage + 1, false),
        .in_rank = before,
        .out_rank = after,
    };
    ops[SCHEDULE_OP_BACKWARD_INPUT] = (ZbOp){
        .ns = times->input_ns,
        .message_ns = before == rank ? 0 : times->backward_message_ns,
        .end_bytes = times->weight_activation_bytes - times->activation_bytes,
        .in = channel_of(n, stage, true),
        .out = stage == 0 ? -1 : channel_of(n, stage - 1, true),
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
