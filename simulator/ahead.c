#include "simulator/ahead.h"

#include "base/host_memory.h"
#include "profiles/workload/prefetch.h"

/* The first gatherings of the ops after the one at hand, of one rank. */
typedef struct {
    const WorkloadPrefetch *ahead; /* (borrowed) */
    int64_t most_bytes;            /* of the rank */
    int64_t *bytes;                /* (owned) [depth] */
    int32_t n;
} Later;

/* One op as the Workload knows it. */
typedef struct {
    int64_t index; /* into Workload.ops */
    int64_t stage; /* chain after chain */
    ScheduleOpKind kind;
} Op;

static Op
op_at(const SimProgram *program, int64_t i)
{
    const Workload *w = program->workload;
    const uint32_t cost = program->steps[program->step_of[i]].cost;
    const int kind = (int)(cost % SIM_KIND_N);
    const int64_t index = cost / SIM_KIND_N;

    return (Op){
        .index = index,
        .stage = index / ((int64_t)w->n_classes * w->n_slices),
        .kind = kind == SIM_KIND_LONE_INPUT ? SCHEDULE_OP_BACKWARD_INPUT : (ScheduleOpKind)kind,
    };
}

/* Of at most @n gatherings, which begin with the first after the op, in @room_bytes. */
static int64_t
sum_of(const Later *later, int32_t n, int64_t room_bytes)
{
    int64_t sum = 0;

    for (int32_t i = 0; i < MIN(n, later->n) && later->bytes[i] <= room_bytes - sum; i++)
        sum += later->bytes[i];
    return sum;
}

/* The workspace of @op with what it has of later ops. */
static int64_t
workspace_of(const SimProgram *program, const Later *later, const Op *op)
{
    const WorkloadPrefetch *ahead = later->ahead;
    const int64_t *last = workload_prefetch_last(ahead, op->index, op->kind);
    int64_t left = workload_prefetch_n(ahead, op->stage, op->kind), own_bytes = 0;
    int64_t most = program->workload->ops[op->index].workspace_bytes[op->kind];

    /* From its last part on backwards: one more of its own gatherings is ahead, one less of others.
     */
    for (int32_t n = ahead->depth; n > 0; n--) {
        if (last[n - 1] != WORKLOAD_PREFETCH_NONE)
            most = MAX(most, last[n - 1] + sum_of(later, n, later->most_bytes - own_bytes));
        if (left == 0)
            break;
        own_bytes += workload_prefetch_bytes(ahead, op->stage, op->kind, --left);
    }
    return most;
}

/* The gatherings of @op come before those. */
static void
put_before(Later *later, const Op *op)
{
    const WorkloadPrefetch *ahead = later->ahead;
    const int32_t n = (int32_t)MIN(ahead->depth, workload_prefetch_n(ahead, op->stage, op->kind));

    later->n = MIN(later->n + n, ahead->depth);
    for (int32_t i = later->n - 1; i >= n; i--)
        later->bytes[i] = later->bytes[i - n];
    for (int32_t i = 0; i < n; i++)
        later->bytes[i] = workload_prefetch_bytes(ahead, op->stage, op->kind, i);
}

bool
sim_ahead_init(SimProgram *program, GError **error)
{
    const Schedule *schedule = program->schedule;
    const WorkloadPrefetch *ahead = program->workload->prefetch;

    if (ahead == NULL)
        return true;
    program->ahead_bytes =
        pages_try_malloc((size_t)MAX(program->n_ops, 1), sizeof *program->ahead_bytes);
    if (program->ahead_bytes == NULL)
        return sim_fail_memory(error, program->n_ops, "ops");
    g_autofree int64_t *bytes = g_new(int64_t, ahead->depth);
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++) {
        Later later = {.ahead = ahead, .most_bytes = ahead->most_bytes[rank], .bytes = bytes};
        for (int64_t i = schedule->rank_begin[rank + 1] - 1; i >= schedule->rank_begin[rank]; i--) {
            const Op op = op_at(program, i);
            program->ahead_bytes[i] = workspace_of(program, &later, &op) -
                                      program->workload->ops[op.index].workspace_bytes[op.kind];
            put_before(&later, &op);
        }
    }
    return true;
}
