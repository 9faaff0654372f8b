#include "planner/bounds/plan_bound.h"

#include "planner/bounds/flow.h"
#include "profiles/workload/prefetch.h"

/* One stage of one chain. */
typedef struct {
    int32_t rank;
    int64_t work_ns;             /* of all its ops */
    int64_t chain_ns;            /* of them, what its neighbours in the chain wait for */
    int64_t wait_ns;             /* before its first forward can begin */
    int64_t drain_ns;            /* after its last backward until stage 0's last one has ended */
    int64_t longest_backward_ns; /* what a reduction may hide behind */
    int64_t receive_ns;          /* the longest receive that blocks before a forward */
} Stage;

typedef struct {
    const Plan *plan;
    const Workload *workload;
    bool splits;
    bool overlaps;   /* ops in pairs hide collectives behind computing */
    Schedule shape;  /* only where stages lie */
    int64_t *counts; /* (owned) micro-batches of each class in one chain */
} Bound;

static const WorkloadOp *
op_at(const Bound *bound, int32_t chain, int32_t stage, int32_t class_, int32_t slice)
{
    return workload_op_of_class(bound->workload, chain, stage, class_, slice);
}

static int32_t
rank_at(const Bound *bound, int32_t chain, int32_t stage)
{
    return schedule_rank_of_stage(&bound->shape, stage, chain);
}

static int64_t
least_ns(const Bound *bound, const WorkloadOp *op, ScheduleOpKind kind)
{
    return workload_least_ns(bound->workload, op, kind);
}

/* Times of both passes with the op's overhead; an unsplit B, or its halves. */
static int64_t
backward_ns(const Bound *bound, const WorkloadOp *op)
{
    const int64_t overhead = bound->workload->op_overhead_ns;
    const int64_t whole = least_ns(bound, op, SCHEDULE_OP_BACKWARD) + overhead;
    const int64_t halves = least_ns(bound, op, SCHEDULE_OP_BACKWARD_INPUT) +
                           least_ns(bound, op, SCHEDULE_OP_BACKWARD_WEIGHT) + 2 * overhead;

    return bound->splits ? MIN(whole, halves) : whole;
}

/* The part of a backward that the stage before waits for. */
static int64_t
gradient_ns(const Bound *bound, const WorkloadOp *op)
{
    const int64_t whole = least_ns(bound, op, SCHEDULE_OP_BACKWARD);

    return bound->workload->op_overhead_ns +
           (bound->splits ? MIN(whole, least_ns(bound, op, SCHEDULE_OP_BACKWARD_INPUT)) : whole);
}

static int64_t
forward_ns(const Bound *bound, const WorkloadOp *op)
{
    return least_ns(bound, op, SCHEDULE_OP_FORWARD) + bound->workload->op_overhead_ns;
}

/* The most of both passes that overlapped pairs hide: a pair computes all that its ops compute.  Where passes are
 * merged it is left out of their times. */
static int64_t
hidden_ns(const Bound *bound, const WorkloadOp *op)
{
    if (!bound->overlaps || bound->workload->blocking_messages || bound->workload->pair_ns < 0 ||
        bound->workload->merges_pairs)
        return 0;
    return plan_sum_ns(workload_collectives_ns(op, SCHEDULE_OP_FORWARD),
                       MAX(workload_collectives_ns(op, SCHEDULE_OP_BACKWARD),
                           plan_sum_ns(workload_collectives_ns(op, SCHEDULE_OP_BACKWARD_INPUT),
                                       workload_collectives_ns(op, SCHEDULE_OP_BACKWARD_WEIGHT))));
}

/* How long the stage's compute stream is in messages of one (class, slice). */
static int64_t
blocked_ns(const Bound *bound, int32_t chain, int32_t stage, int32_t class_, int32_t slice)
{
    const WorkloadOp *op = op_at(bound, chain, stage, class_, slice);
    const int32_t rank = rank_at(bound, chain, stage);
    int64_t ns = 0;

    if (!bound->workload->blocking_messages)
        return 0;
    if (stage > 0 && rank_at(bound, chain, stage - 1) != rank)
        ns += op_at(bound, chain, stage - 1, class_, slice)->forward_message.ns +
              workload_send_ns(&op->backward_message);
    if (stage + 1 < bound->workload->n_stages && rank_at(bound, chain, stage + 1) != rank)
        ns += op_at(bound, chain, stage + 1, class_, slice)->backward_message.ns +
              workload_send_ns(&op->forward_message);
    return ns;
}

/* How long a first slice takes at the least, over all classes, from @stage to the next one. */
static int64_t
forward_step_ns(const Bound *bound, int32_t chain, int32_t stage)
{
    const Workload *w = bound->workload;
    int64_t least = INT64_MAX;

    for (int32_t c = 0; c < w->n_classes; c++) {
        const WorkloadOp *op = op_at(bound, chain, stage, c, 0);
        int64_t ns = forward_ns(bound, op);
        if (!w->blocking_messages &&
            rank_at(bound, chain, stage + 1) != rank_at(bound, chain, stage))
            ns += op->forward_message.ns;
        /* Blocking: the receive before it; its own send is the next stage's receive. */
        if (w->blocking_messages && stage > 0 &&
            rank_at(bound, chain, stage - 1) != rank_at(bound, chain, stage))
            ns += op_at(bound, chain, stage - 1, c, 0)->forward_message.ns;
        least = MIN(least, ns);
    }
    return least;
}

/* How long the gradient of a first slice takes at the least, over all classes, from @stage to the
 * end of the backward of the stage before; blocking sends of @stage run meanwhile. */
static int64_t
backward_step_ns(const Bound *bound, int32_t chain, int32_t stage)
{
    const Workload *w = bound->workload;
    int64_t least = INT64_MAX;

    for (int32_t c = 0; c < w->n_classes; c++) {
        int64_t ns = gradient_ns(bound, op_at(bound, chain, stage - 1, c, 0));
        if (rank_at(bound, chain, stage - 1) != rank_at(bound, chain, stage))
            ns += op_at(bound, chain, stage, c, 0)->backward_message.ns;
        least = MIN(least, ns);
    }
    return least;
}

static int64_t
own_send_ns(const Bound *bound, int32_t chain, int32_t stage)
{
    const Workload *w = bound->workload;
    int64_t most = 0;

    if (!w->blocking_messages || stage == 0 ||
        rank_at(bound, chain, stage - 1) == rank_at(bound, chain, stage))
        return 0;
    for (int32_t c = 0; c < w->n_classes; c++)
        most = MAX(most, workload_send_ns(&op_at(bound, chain, stage, c, 0)->backward_message));
    return most;
}

static int64_t
receive_of_ns(const Bound *bound, int32_t chain, int32_t stage)
{
    const Workload *w = bound->workload;
    int64_t most = 0;

    if (!w->blocking_messages || stage == 0 ||
        rank_at(bound, chain, stage - 1) == rank_at(bound, chain, stage))
        return 0;
    for (int32_t c = 0; c < w->n_classes; c++)
        most = MAX(most, op_at(bound, chain, stage - 1, c, 0)->forward_message.ns);
    return most;
}

static void
fill_chain(const Bound *bound, int32_t chain, Stage *stages)
{
    const Workload *w = bound->workload;

    for (int32_t k = 0; k < w->n_stages; k++) {
        Stage *stage = &stages[k];
        *stage =
            (Stage){.rank = rank_at(bound, chain, k), .receive_ns = receive_of_ns(bound, chain, k)};
        if (k > 0) {
            stage->wait_ns =
                plan_sum_ns(stages[k - 1].wait_ns, forward_step_ns(bound, chain, k - 1));
            stage->drain_ns =
                plan_sum_ns(stages[k - 1].drain_ns, backward_step_ns(bound, chain, k));
        }
        for (int32_t c = 0; c < w->n_classes; c++)
            for (int32_t s = 0; s < w->n_slices; s++) {
                const WorkloadOp *op = op_at(bound, chain, k, c, s);
                const int64_t forward = forward_ns(bound, op);
                const int64_t blocked = blocked_ns(bound, chain, k, c, s);
                const int64_t once =
                    plan_sum_ns(plan_sum_ns(forward, backward_ns(bound, op)), blocked);
                const int64_t chained =
                    plan_sum_ns(plan_sum_ns(forward, gradient_ns(bound, op)), blocked);
                const int64_t least = MAX(0, once - hidden_ns(bound, op));
                stage->work_ns =
                    plan_sum_ns(stage->work_ns, plan_product_ns(bound->counts[c], least));
                stage->chain_ns =
                    plan_sum_ns(stage->chain_ns, plan_product_ns(bound->counts[c], chained));
                const int64_t backward =
                    least_ns(bound, op, SCHEDULE_OP_BACKWARD) + w->op_overhead_ns;
                stage->longest_backward_ns = MAX(stage->longest_backward_ns, backward);
            }
    }
    /* drain so far counts from the end of the op; the rank is busy with the send after it. */
    for (int32_t k = 0; k < w->n_stages; k++)
        stages[k].drain_ns = MAX(0, stages[k].drain_ns - own_send_ns(bound, chain, k));
}

/* What a rank does after its last op and cannot hide. */
static int64_t
end_ns(const Workload *w, int32_t rank, int32_t n_pieces, int64_t longest_backward_ns)
{
    const WorkloadRank *r = &w->ranks[rank];
    /* With overlap at least the last of n equal pieces ends no sooner than the op that it is
     * behind plus what is longer than that. */
    const int64_t reduce =
        w->overlap_dp ? MAX(0, r->dp_reduce_ns / n_pieces - longest_backward_ns) : r->dp_reduce_ns;

    /* What is gathered ahead of the first forwards hides behind them, but for the first bucket. */
    return plan_sum_ns(reduce,
                       plan_sum_ns(r->optimizer_ns, w->overlap_gather ? 0 : r->dp_gather_ns));
}

/* How long a rank's first op, or the receive before it that takes up to @receive_ns, waits at the
 * least: weights are gathered while the rank receives. */
static int64_t
begin_ns(const Workload *w, int32_t rank, int32_t n_pieces, int64_t wait_ns, int64_t receive_ns)
{
    const WorkloadRank *r = &w->ranks[rank];
    const int64_t gather_ns = r->dp_gather_ns / n_pieces / MAX(1, r->n_buckets);

    return w->overlap_gather ? MAX(wait_ns, gather_ns - receive_ns) : wait_ns;
}

int64_t *
plan_bound_counts(const Plan *plan, const Workload *workload)
{
    const int64_t n = plan->n_micro_batches / workload->n_chains;
    int64_t *counts = g_new0(int64_t, (size_t)workload->n_classes);

    if (workload->class_of_micro_batch == NULL)
        counts[0] = n;
    for (int64_t i = 0; workload->class_of_micro_batch != NULL && i < n; i++)
        counts[workload->class_of_micro_batch[i]]++;
    return counts;
}

static Bound
bound_new(const Plan *plan, const Workload *workload, const ScheduleFamily *family)
{
    return (Bound){
        .plan = plan,
        .workload = workload,
        .splits = family->splits_backward,
        .overlaps = family->overlaps,
        .shape = {.n_ranks = workload->n_ranks,
                  .n_chunks = (int32_t)plan->degrees.vpp,
                  .placement = family->placement},
        .counts = plan_bound_counts(plan, workload),
    };
}

int64_t
plan_bound_end_ns(const Plan *plan, const Workload *workload)
{
    return end_ns(workload, 0, (int32_t)plan->degrees.vpp, INT64_MAX / 2);
}

int64_t
plan_bound_ns(const Plan *plan, const Workload *workload, const ScheduleFamily *family)
{
    Bound bound = bound_new(plan, workload, family);
    const int32_t n = workload->n_stages;
    G_GNUC_UNUSED g_autofree int64_t *counts = bound.counts;
    g_autofree Stage *stages = g_new0(Stage, (size_t)(n * workload->n_chains));
    int64_t best = 0;

    for (int32_t chain = 0; chain < workload->n_chains; chain++)
        fill_chain(&bound, chain, stages + chain * n);
    const int64_t first_end_ns = plan_bound_end_ns(plan, workload);
    /* Stages of a rank are found by walking all: p * (p v) small steps would be more. */
    g_autofree Stage *ranks = g_new0(Stage, (size_t)workload->n_ranks);
    for (int32_t r = 0; r < workload->n_ranks; r++)
        ranks[r].wait_ns = ranks[r].drain_ns = INT64_MAX;
    for (int32_t i = 0; i < n * workload->n_chains; i++) {
        Stage *rank = &ranks[stages[i].rank];
        rank->work_ns = plan_sum_ns(rank->work_ns, stages[i].work_ns);
        rank->wait_ns = MIN(rank->wait_ns, stages[i].wait_ns);
        rank->drain_ns = MIN(rank->drain_ns, stages[i].drain_ns);
        rank->longest_backward_ns = MAX(rank->longest_backward_ns, stages[i].longest_backward_ns);
        rank->receive_ns = MAX(rank->receive_ns, stages[i].receive_ns);
    }
    for (int32_t r = 0; r < workload->n_ranks; r++) {
        const int64_t end =
            end_ns(workload, r, (int32_t)plan->degrees.vpp, ranks[r].longest_backward_ns);
        const int64_t drain = bound.splits || workload->n_chains > 1
                                  ? 0
                                  : plan_sum_ns(ranks[r].drain_ns, first_end_ns);
        const int64_t begin = begin_ns(workload, r, (int32_t)plan->degrees.vpp, ranks[r].wait_ns,
                                       ranks[r].receive_ns);
        best = MAX(best, plan_sum_ns(plan_sum_ns(begin, ranks[r].work_ns), MAX(end, drain)));
    }
    for (int32_t i = 0; i < n * workload->n_chains; i++) {
        const int64_t after =
            end_ns(workload, stages[i / n * n].rank, (int32_t)plan->degrees.vpp, INT64_MAX / 2);
        best = MAX(best, plan_sum_ns(plan_sum_ns(stages[i].wait_ns, stages[i].chain_ns),
                                     plan_sum_ns(stages[i].drain_ns, after)));
    }
    if (!family->slices || workload->n_ranks == 1)
        return best;
    const int64_t flow_ns = plan_sum_ns(
        plan_bound_flow_ns(workload, plan->n_micro_batches, family->forwards_first), first_end_ns);
    return MAX(best, flow_ns);
}

/* What the ops of a stage take and keep, each the least over (class, slice); only int64_t. */
typedef struct {
    int64_t time_ns[SCHEDULE_OP_N];
    int64_t message_ns[2]; /* to the next stage, and to the one before */
    int64_t kept_bytes[2]; /* from F to B, and from I to W */
    int64_t
        left_bytes; /* what the half of an I keeps more than the whole did: the I allocates it first */
    int64_t workspace_bytes[SCHEDULE_OP_N];
} LeastOp;

static void
lower(int64_t *least, int64_t value)
{
    *least = MIN(*least, value);
}

static LeastOp
least_op(const Bound *bound, int32_t chain, int32_t stage)
{
    const Workload *w = bound->workload;
    const WorkloadOp *ops = op_at(bound, chain, stage, 0, 0);
    LeastOp least;

    for (size_t i = 0; i < sizeof least / sizeof(int64_t); i++)
        ((int64_t *)&least)[i] = INT64_MAX;
    for (int32_t i = 0; i < w->n_classes * w->n_slices; i++) {
        const WorkloadOp *op = &ops[i];
        for (int kind = 0; kind < SCHEDULE_OP_N; kind++) {
            lower(&least.time_ns[kind], least_ns(bound, op, (ScheduleOpKind)kind));
            lower(&least.workspace_bytes[kind], op->workspace_bytes[kind]);
        }
        lower(&least.message_ns[0], op->forward_message.ns);
        lower(&least.message_ns[1], op->backward_message.ns);
        lower(&least.kept_bytes[0], plan_sum_ns(op->activation_bytes, op->kv_bytes));
        lower(&least.kept_bytes[1], op->weight_activation_bytes);
        lower(&least.left_bytes, MAX(0, op->weight_activation_bytes - op->activation_bytes));
    }
    return least;
}

/* Of the ops that start at @moment. */
static int64_t
moment_workspace(const Bound *bound, const LeastOp *least, int moment)
{
    const int64_t *bytes = least->workspace_bytes;

    if (moment == PLAN_MOMENT_FORWARD)
        return bytes[SCHEDULE_OP_FORWARD];
    return bound->splits ? MIN(bytes[SCHEDULE_OP_BACKWARD], bytes[SCHEDULE_OP_BACKWARD_INPUT])
                         : bytes[SCHEDULE_OP_BACKWARD];
}

int64_t
plan_bound_path_ns(const Plan *plan, const Workload *workload, const PlanFlight *flight)
{
    const ScheduleFamily *family = schedule_family_find(plan->schedule, NULL);
    const Bound bound = bound_new(plan, workload, family);
    G_GNUC_UNUSED g_autofree int64_t *counts = bound.counts;
    int64_t best = 0;

    for (int path = 0; path < PLAN_PATH_N && flight->paths != NULL; path++) {
        int64_t ns = end_ns(workload, flight->paths->last_rank[path], (int32_t)plan->degrees.vpp,
                            INT64_MAX / 2);
        for (int32_t i = 0; i < flight->paths->n_stages; i++) {
            const PlanPathStage *on = plan_order_paths_stage(flight->paths, path, i);
            const LeastOp least = least_op(&bound, i / workload->n_stages, i % workload->n_stages);
            for (int kind = 0; kind < SCHEDULE_OP_N; kind++)
                if (on->ops[kind] > 0)
                    ns = plan_sum_ns(
                        ns, plan_product_ns(on->ops[kind], plan_sum_ns(least.time_ns[kind],
                                                                       workload->op_overhead_ns)));
            for (int k = 0; k < 2; k++)
                if (on->messages[k] > 0)
                    ns = plan_sum_ns(ns, plan_product_ns(on->messages[k], least.message_ns[k]));
        }
        best = MAX(best, ns);
    }
    return best;
}

/* What activations may take on @rank at the most: @workspace_bytes is the least of its ops. */
static int64_t
room_bytes(const WorkloadRank *rank, int64_t workspace_bytes)
{
    const int64_t usable = workload_usable_bytes(rank);
    int64_t taken = workspace_bytes;

    for (int owner = 0; owner < TRACE_MEMORY_N; owner++)
        taken = plan_sum_ns(taken, rank->static_bytes[owner]);
    return usable == 0 ? INT64_MAX : MAX(0, usable - taken);
}

/* The least message to stage @to from @from, if there is such a stage on another rank; @half: 0 of forwards. */
static int64_t
message_to_ns(const Bound *bound, int32_t to, int32_t from, int half)
{
    if (from < 0 || from == bound->workload->n_stages ||
        rank_at(bound, 0, from) == rank_at(bound, 0, to))
        return 0;
    return least_op(bound, 0, from).message_ns[half];
}

int64_t
plan_bound_order_ns(const Plan *plan, const Workload *workload)
{
    const ScheduleFamily *family = schedule_family_find(plan->schedule, NULL);
    const int32_t n = workload->n_stages, p = workload->n_ranks;

    if (family->bound_ns == NULL)
        return 0;
    const Bound bound = bound_new(plan, workload, family);
    G_GNUC_UNUSED g_autofree int64_t *counts = bound.counts;
    g_autofree ScheduleStageTimes *stages = g_new(ScheduleStageTimes, (size_t)n);
    g_autofree int64_t *limits = g_new(int64_t, (size_t)p);
    g_autofree int64_t *workspace = g_new(int64_t, (size_t)p);
    int64_t end = INT64_MAX;

    for (int32_t r = 0; r < p; r++)
        workspace[r] = INT64_MAX;
    for (int32_t k = 0; k < n; k++) {
        const LeastOp least = least_op(&bound, 0, k);
        const int64_t overhead = workload->op_overhead_ns;
        const bool blocks = workload->blocking_messages;
        /* A message that blocks is counted once, in the op that waits for it. */
        const int64_t before = blocks ? message_to_ns(&bound, k, k - 1, 0) : 0;
        const int64_t after = blocks ? message_to_ns(&bound, k, k + 1, 1) : 0;
        stages[k] = (ScheduleStageTimes){
            .forward_ns = least.time_ns[SCHEDULE_OP_FORWARD] + overhead + before,
            .input_ns = least.time_ns[SCHEDULE_OP_BACKWARD_INPUT] + overhead + after,
            .weight_ns = least.time_ns[SCHEDULE_OP_BACKWARD_WEIGHT] + overhead,
            .backward_ns = least.time_ns[SCHEDULE_OP_BACKWARD] + overhead + after,
            .forward_message_ns = blocks ? 0 : least.message_ns[0],
            .backward_message_ns = blocks ? 0 : least.message_ns[1],
            .activation_bytes = least.kept_bytes[0],
            .weight_activation_bytes = least.kept_bytes[1],
        };
        for (int moment = 0; moment < PLAN_MOMENT_N; moment++)
            lower(&workspace[rank_at(&bound, 0, k)], moment_workspace(&bound, &least, moment));
    }
    for (int32_t r = 0; r < p; r++) {
        limits[r] = room_bytes(&workload->ranks[r], workspace[r]);
        end = MIN(end, end_ns(workload, r, (int32_t)plan->degrees.vpp, INT64_MAX / 2));
    }
    const ScheduleTimes times = {
        .stages = stages,
        .n_stages = n,
        .limit_bytes = limits,
        .objective = SCHEDULE_OBJECTIVE_MAKESPAN,
    };
    ScheduleShape shape = plan_shape(plan);
    shape.times = &times;
    return plan_sum_ns(family->bound_ns(&shape), end);
}

/* --- bytes --- */

const PlanFlight *
plan_bound_flight(const Plan *plan, PlanMemo *memo)
{
    const ScheduleShape shape = plan_shape(plan);

    return plan_flight_get(memo, schedule_family_find(plan->schedule, NULL), &shape);
}

int64_t
plan_bound_bytes(const Plan *plan, const Workload *workload, const PlanFlight *flight)
{
    const ScheduleFamily *family = schedule_family_find(plan->schedule, NULL);
    const Bound bound = bound_new(plan, workload, family);
    G_GNUC_UNUSED g_autofree int64_t *counts = bound.counts;
    const size_t n_moments = (size_t)workload->n_ranks * PLAN_MOMENT_N;
    g_autofree int64_t *held = g_new0(int64_t, n_moments);
    g_autofree int64_t *workspace = g_new(int64_t, n_moments);
    g_autofree int64_t *alone = g_new0(int64_t, (size_t)workload->n_ranks);
    int64_t most = 0;

    for (size_t i = 0; i < n_moments; i++)
        workspace[i] = INT64_MAX;
    /* A stage is a chunk of its rank; for bidir the chunk names the chain. */
    for (int32_t chain = 0; chain < workload->n_chains; chain++)
        for (int32_t k = 0; k < workload->n_stages; k++) {
            const int32_t r = rank_at(&bound, chain, k);
            const int32_t chunk = workload->n_chains > 1 ? chain : k / workload->n_ranks;
            const LeastOp least = least_op(&bound, chain, k);
            for (int moment = 0; moment < PLAN_MOMENT_N; moment++) {
                const size_t at = (size_t)r * PLAN_MOMENT_N + (size_t)moment;
                for (int half = 0; half < 2; half++)
                    held[at] = plan_sum_ns(
                        held[at], plan_product_ns(plan_flight_n_held(flight, r, (PlanMoment)moment,
                                                                     half, chunk),
                                                  least.kept_bytes[half]));
                lower(&workspace[at], moment_workspace(&bound, &least, moment));
                /* Each stage has its own op once, and that what it keeps itself. */
                const int64_t own_bytes = moment_workspace(&bound, &least, moment);
                alone[r] = MAX(alone[r], plan_sum_ns(least.kept_bytes[0], own_bytes));
            }
        }
    for (int32_t r = 0; r < workload->n_ranks; r++) {
        int64_t bytes = 0;
        for (int owner = 0; owner < TRACE_MEMORY_N; owner++)
            bytes = plan_sum_ns(bytes, workload->ranks[r].static_bytes[owner]);
        most = MAX(most, plan_sum_ns(bytes, alone[r]));
        for (int moment = 0; moment < PLAN_MOMENT_N; moment++) {
            const size_t at = (size_t)r * PLAN_MOMENT_N + (size_t)moment;
            most = MAX(most, plan_sum_ns(bytes, plan_sum_ns(held[at], workspace[at])));
        }
    }
    return most;
}

const PlanFullest *
plan_bound_fullest(const Plan *plan, PlanMemo *memo)
{
    const ScheduleShape shape = plan_shape(plan);

    return plan_fullest_get(memo, schedule_family_find(plan->schedule, NULL), &shape);
}

/* The least workspace of @op with the weights that it has whole for those after it, over all classes and slices.
 * @stages  [rank * chunks + chunk] the number of each stage, chain after chain; @room  [prefetch depth] */
static int64_t
fullest_workspace(const Workload *w, const PlanFullestOp *op, const int32_t *stages, int64_t *room)
{
    const int64_t n_each = (int64_t)w->n_classes * w->n_slices;
    const int64_t first = stages[op->chunk] * n_each;
    const ScheduleOpKind kind = (ScheduleOpKind)op->kind;
    WorkloadLater later = {.bytes = room};
    int64_t least = INT64_MAX;

    for (int i = op->n_next; w->prefetch != NULL && i-- > 0;)
        workload_prefetch_put_before(w, &later, stages[op->next_chunk[i]] * n_each,
                                     (ScheduleOpKind)op->next_kind[i]);
    for (int64_t i = first; i < first + n_each; i++)
        least = MIN(least, w->prefetch == NULL
                               ? w->ops[i].workspace_bytes[kind]
                               : workload_prefetch_workspace(w, &later, i, kind, op->rank));
    return least;
}

int64_t
plan_bound_fullest_bytes(const Plan *plan, const Workload *workload, const PlanFullest *fullest)
{
    const ScheduleFamily *family = schedule_family_find(plan->schedule, NULL);
    const Bound bound = bound_new(plan, workload, family);
    G_GNUC_UNUSED g_autofree int64_t *counts = bound.counts;
    const int32_t n_chunks = fullest->n_chunks;
    const size_t n_all = (size_t)workload->n_ranks * (size_t)n_chunks;
    int64_t most = 0;

    if (fullest->n_ops == 0)
        return 0;
    g_autofree LeastOp *ops = g_new(LeastOp, n_all);
    g_autofree int32_t *stages = g_new(int32_t, n_all);
    g_autofree int64_t *room =
        g_new(int64_t, workload->prefetch == NULL ? 1 : workload->prefetch->depth);
    for (int32_t i = 0; i < workload->n_chains * workload->n_stages; i++) {
        const int32_t chain = i / workload->n_stages, k = i % workload->n_stages;
        const int32_t at = rank_at(&bound, chain, k) * n_chunks +
                           schedule_placement_chunk(family->placement, workload->n_ranks, k, chain);
        stages[at] = i;
        ops[at] = least_op(&bound, chain, k);
    }
    for (int32_t i = 0; i < fullest->n_ops; i++) {
        const PlanFullestOp *op = &fullest->ops[i];
        const LeastOp *chunks = &ops[op->rank * n_chunks];
        int64_t bytes = fullest_workspace(workload, op, &stages[op->rank * n_chunks], room);
        bytes = plan_sum_ns(bytes, op->halves ? chunks[op->chunk].left_bytes : 0);
        for (int owner = 0; owner < TRACE_MEMORY_N; owner++)
            bytes = plan_sum_ns(bytes, workload->ranks[op->rank].static_bytes[owner]);
        for (int32_t c = 0; c < n_chunks; c++)
            for (int half = 0; half < 2; half++)
                bytes = plan_sum_ns(bytes, plan_product_ns(plan_fullest_n_held(fullest, i, half, c),
                                                           chunks[c].kept_bytes[half]));
        most = MAX(most, bytes);
    }
    return most;
}
