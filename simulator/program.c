#include "simulator/program.h"

#include <string.h>

#include "base/host_memory.h"
#include "simulator/ahead.h"
#include "simulator/compile.h"
#include "simulator/pairs.h"

/* --- costs --- */

/* The message between @from's stage and the next or last one (@step), priced by @from. */
static SimMessage
message_between(const SimProgram *program, const WorkloadOp *from, int32_t rank, int32_t peer,
                bool forward)
{
    SimMessage message = {.peer = peer};

    if (peer < 0 || peer == rank)
        return message;
    message.ns = forward ? from->forward_message_ns : from->backward_message_ns;
    message.bytes = forward ? from->forward_message_bytes : from->backward_message_bytes;
    message.exists = message.ns > 0 || message.bytes > 0;
    message.compute_ns = program->workload->blocking_messages ? message.ns : 0;
    return message;
}

/* As above, for its sender, who need not wait for what the transport buffers. */
static SimMessage
message_from(const SimProgram *program, const WorkloadOp *op, int32_t rank, int32_t peer,
             bool forward)
{
    SimMessage message = message_between(program, op, rank, peer, forward);
    const int64_t buffered_ns = forward ? op->forward_buffered_ns : op->backward_buffered_ns;

    message.compute_ns = MAX(0, message.compute_ns - buffered_ns);
    return message;
}

/* The ranks of the stages before, at and after a place in a chain; -1: there is none. */
typedef struct {
    int32_t previous, here, next;
} Neighbours;

static SimCostDetail
detail_of(const SimProgram *program, const WorkloadOp *op, const Neighbours *neighbours, int kind)
{
    const Workload *workload = program->workload;
    /* The op of the same class and slice, one stage on. */
    const ptrdiff_t stage = (ptrdiff_t)workload->n_classes * workload->n_slices;
    const int64_t time_ns =
        op->time_ns[kind == SIM_KIND_LONE_INPUT ? SCHEDULE_OP_BACKWARD_INPUT : kind];
    SimCostDetail detail = {.rank = neighbours->here, .op_ns = time_ns + workload->op_overhead_ns};

    if (kind == SCHEDULE_OP_FORWARD) {
        const WorkloadOp *from = neighbours->previous < 0 ? NULL : op - stage;
        detail.in = message_between(program, from, neighbours->here, neighbours->previous, true);
        detail.out = message_from(program, op, neighbours->here, neighbours->next, true);
    } else if (kind != SCHEDULE_OP_BACKWARD_WEIGHT) {
        const WorkloadOp *from = neighbours->next < 0 ? NULL : op + stage;
        detail.in = message_between(program, from, neighbours->here, neighbours->next, false);
        detail.out = message_from(program, op, neighbours->here, neighbours->previous, false);
    }
    return detail;
}

static bool
fail_limit(GError **error, const char *what)
{
    g_set_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_LIMIT, "workload: %s", what);
    return false;
}

/* Times of @op and what it sends, each in [0, SIM_MAX_NS / 8]: their sums below cannot overflow. */
static bool
check_op(const WorkloadOp *op, GError **error)
{
    for (int kind = 0; kind < SCHEDULE_OP_N; kind++) {
        if (op->time_ns[kind] < 0 || op->time_ns[kind] > SIM_MAX_NS / 8)
            return fail_limit(error, "an op's time is negative or longer than 18 years");
        for (int part = 0; part < PROFILE_PART_N; part++)
            if (op->part_ns[kind][part] < 0 || op->part_ns[kind][part] > op->time_ns[kind])
                return fail_limit(error, "a part of an op's time is negative or longer than all");
    }
    if (op->forward_message_ns < 0 || op->forward_message_ns > SIM_MAX_NS / 8 ||
        op->backward_message_ns < 0 || op->backward_message_ns > SIM_MAX_NS / 8 ||
        op->forward_buffered_ns < 0 || op->backward_buffered_ns < 0 ||
        op->forward_message_bytes < 0 || op->backward_message_bytes < 0)
        return fail_limit(error, "a message is negative or takes longer than 18 years");
    return true;
}

static bool
check_shape(const Schedule *schedule, const Workload *workload, GError **error)
{
    const int32_t n_chains = schedule_placement_n_chains(schedule->placement);
    const struct {
        const char *name;
        int32_t have, want;
    } sizes[] = {
        {"ranks", workload->n_ranks, schedule->n_ranks},
        {"stages", workload->n_stages, schedule_n_stages(schedule)},
        {"slices", workload->n_slices, schedule->n_slices},
        {"chains of stages", workload->n_chains, n_chains},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++)
        if (sizes[i].have != sizes[i].want) {
            g_set_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_SHAPE,
                        "the times are for %d %s, the schedule has %d", sizes[i].have,
                        sizes[i].name, sizes[i].want);
            return false;
        }
    if (workload->n_classes < 1)
        return fail_limit(error, "there is no class of micro-batches");
    if (workload->op_overhead_ns < 0 || workload->op_overhead_ns > SIM_MAX_NS / 8)
        return fail_limit(error, "an op's overhead is negative or longer than 18 years");
    const int32_t n_micro_batches = schedule_chain_micro_batches(schedule);
    for (int32_t m = 0; workload->class_of_micro_batch != NULL && m < n_micro_batches; m++)
        if (workload->class_of_micro_batch[m] < 0 ||
            workload->class_of_micro_batch[m] >= workload->n_classes) {
            g_set_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_SHAPE,
                        "micro-batch %d is of class %d, and there are %d", m,
                        workload->class_of_micro_batch[m], workload->n_classes);
            return false;
        }
    return true;
}

bool
sim_fail_memory(GError **error, int64_t n, const char *what)
{
    g_autofree char *available = host_memory_text();

    g_set_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_LIMIT,
                "no memory for %" G_GINT64_FORMAT " %s%s", n, what, available);
    return false;
}

/* Fills costs and details of the ops of one stage, from @cost on. */
static void
price_stage(SimProgram *program, int32_t chain, int32_t stage, int64_t cost)
{
    const Schedule *schedule = program->schedule;
    const Workload *workload = program->workload;
    const int64_t end = cost + (int64_t)workload->n_classes * workload->n_slices * SIM_KIND_N;
    const Neighbours neighbours = {
        .previous = stage > 0 ? schedule_rank_of_stage(schedule, stage - 1, chain) : -1,
        .here = schedule_rank_of_stage(schedule, stage, chain),
        .next = stage + 1 < workload->n_stages ? schedule_rank_of_stage(schedule, stage + 1, chain)
                                               : -1,
    };

    for (; cost < end; cost++) {
        const WorkloadOp *op = sim_program_workload_op(program, cost);
        const SimCostDetail d = detail_of(program, op, &neighbours, (int)(cost % SIM_KIND_N));
        program->details[cost] = d;
        program->costs[cost] = (SimCost){
            .busy_ns = d.in.compute_ns + d.op_ns + d.out.compute_ns,
            .rank = neighbours.here,
            .lag_ns = workload->blocking_messages ? -d.out.compute_ns : d.out.ns,
            .stream = workload->links != NULL && !workload->blocking_messages && d.out.ns > 0
                          ? sim_stream(program, neighbours.here, d.out.peer)
                          : 0,
        };
    }
}

static bool
price(SimProgram *program, GError **error)
{
    const Workload *w = program->workload;
    const int64_t per_stage = (int64_t)w->n_classes * w->n_slices;
    const int64_t n_ops = (int64_t)w->n_chains * w->n_stages * per_stage;

    program->n_costs = n_ops * SIM_KIND_N;
    if (program->n_costs <= UINT32_MAX) {
        program->costs = pages_try_malloc((size_t)program->n_costs, sizeof(SimCost));
        program->details = pages_try_malloc((size_t)program->n_costs, sizeof(SimCostDetail));
        program->counts = g_try_new0(int64_t, (size_t)program->n_costs);
    }
    if (program->costs == NULL || program->details == NULL || program->counts == NULL)
        return sim_fail_memory(error, program->n_costs, "different ops");
    for (int64_t i = 0; i < n_ops; i++)
        if (!check_op(&w->ops[i], error))
            return false;
    for (int32_t chain = 0; chain < w->n_chains; chain++)
        for (int32_t stage = 0; stage < w->n_stages; stage++)
            price_stage(program, chain, stage,
                        ((int64_t)chain * w->n_stages + stage) * per_stage * SIM_KIND_N);
    return true;
}

/* --- the whole --- */

/* All that every rank does one after the other stays below SIM_MAX_NS. */
static bool
check_sum(const SimProgram *program, GError **error)
{
    const Workload *workload = program->workload;
    int64_t sum = 0;

    for (int64_t cost = 0; cost < program->n_costs; cost++) {
        int64_t all;
        if (program->counts[cost] == 0)
            continue;
        const SimCostDetail *d = &program->details[cost];
        if (__builtin_mul_overflow(d->op_ns + d->in.ns + d->out.ns, program->counts[cost], &all) ||
            __builtin_add_overflow(sum, all, &sum) || sum > SIM_MAX_NS)
            return fail_limit(error, "the iteration could take longer than 146 years");
    }
    for (int32_t rank = 0; rank < workload->n_ranks; rank++) {
        const WorkloadRank *r = &workload->ranks[rank];
        if (r->dp_reduce_ns < 0 || r->dp_gather_ns < 0 || r->optimizer_ns < 0 ||
            r->dp_reduce_bytes < 0 || r->dp_gather_bytes < 0)
            return fail_limit(error, "a reduction, gathering or optimizer step is negative");
        if (__builtin_add_overflow(sum, r->dp_reduce_ns, &sum) ||
            __builtin_add_overflow(sum, r->dp_gather_ns, &sum) ||
            __builtin_add_overflow(sum, r->optimizer_ns, &sum) || sum > SIM_MAX_NS)
            return fail_limit(error, "the iteration could take longer than 146 years");
    }
    return true;
}

SimProgram *
sim_program_new(const Schedule *schedule, const Workload *workload, GError **error)
{
    g_return_val_if_fail(schedule != NULL && workload != NULL, NULL);
    if (!check_shape(schedule, workload, error))
        return NULL;
    g_autoptr(SimProgram) program = g_new0(SimProgram, 1);
    program->schedule = schedule;
    program->workload = workload;
    program->n_ops = schedule_n_ops(schedule);
    if (!price(program, error) || !sim_program_compile(program, error) ||
        !check_sum(program, error) || !sim_ahead_init(program, error))
        return NULL;
    sim_pairs_init(program);
    sim_beside_init(&program->beside, program);
    return g_steal_pointer(&program);
}

void
sim_program_free(SimProgram *program)
{
    if (program == NULL)
        return;
    g_free(program->steps);
    g_free(program->step_of);
    g_free(program->first);
    g_free(program->costs);
    g_free(program->details);
    g_free(program->counts);
    g_free(program->ahead_bytes);
    g_free(program->in_flight);
    g_free(program->first_forward);
    g_free(program->last_backward);
    g_free(program->pairs);
    g_free(program->pair_kinds);
    g_free(program->kind_of_pair);
    sim_beside_clear(&program->beside);
    g_free(program);
}
