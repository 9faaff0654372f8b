#include "planner/bounds/link_bound.h"

#include <math.h>

#include "planner/bounds/plan_bound.h"

/* For what floats, doubles and the simulator's own tolerance leave open. */
#define MARGIN 1e-5

/* How long links are busy, in ns: [2 * link] out, [2 * link + 1] in. */
typedef struct {
    const WorkloadLinks *links; /* (borrowed) */
    double *busy_ns;            /* (borrowed) */
} Busy;

/* What one device of a rank sends to a level, or receives from there, in @ns. */
typedef struct {
    int32_t rank, level;
    bool out;
    double bytes, ns, senders_fraction;
} Transfer;

/* How long it keeps the link of @crossing busy, ns. */
static double
crossing_ns(const Busy *busy, const WorkloadCrossing *crossing, const Transfer *transfer)
{
    const double n =
        crossing->n_devices == 0 ? 1.0 : transfer->senders_fraction * crossing->n_devices;

    return 1e9 * n * transfer->bytes / busy->links->bytes_per_s[crossing->link];
}

/* (borrowed) the crossings of @transfer, to before *end. */
static const WorkloadCrossing *
crossings_of(const Busy *busy, const Transfer *transfer, const WorkloadCrossing **end)
{
    const WorkloadLinks *links = busy->links;
    const int64_t at = (int64_t)transfer->rank * links->n_levels + transfer->level;

    *end = &links->crossings[links->begin[at + 1]];
    return &links->crossings[links->begin[at]];
}

/* The longest that one of its links is busy: beyond its own time the simulator slows it down as a whole. */
static double
longest_ns(const Busy *busy, const Transfer *transfer)
{
    const WorkloadCrossing *end;
    double most = 0.0;

    for (const WorkloadCrossing *c = crossings_of(busy, transfer, &end); c < end; c++)
        most = fmax(most, crossing_ns(busy, c, transfer));
    return most;
}

static void
add(const Busy *busy, const Transfer *transfer, double times)
{
    const WorkloadCrossing *end;

    for (const WorkloadCrossing *c = crossings_of(busy, transfer, &end); c < end; c++)
        busy->busy_ns[2 * c->link + (transfer->out ? 0 : 1)] +=
            times * crossing_ns(busy, c, transfer);
}

/* @times collectives of @rank that take @ns and are waited for during @seen_ns; @bytes by level, each way. */
static void
add_collectives(const Busy *busy, int32_t rank, const double *bytes, int64_t ns, int64_t seen_ns,
                double times)
{
    double most = 0.0;

    for (int32_t level = 0; level < busy->links->n_levels; level++)
        if (bytes[level] > 0.0)
            most += longest_ns(busy, &(Transfer){rank, level, true, bytes[level], (double)ns, 1.0});
    if (ns <= 0 || most > (double)seen_ns)
        return;
    for (int32_t level = 0; level < busy->links->n_levels; level++)
        for (int out = 0; out < 2 && bytes[level] > 0.0; out++)
            add(busy, &(Transfer){rank, level, out == 1, bytes[level], (double)ns, 1.0}, times);
}

static void
add_op(const Busy *busy, const WorkloadOp *op, int32_t rank, ScheduleOpKind kind, double times)
{
    double bytes[MODEL_CLUSTER_MAX_LEVELS];

    for (int32_t level = 0; level < MODEL_CLUSTER_MAX_LEVELS; level++)
        bytes[level] = (double)op->traffic_bytes[kind][level];
    add_collectives(busy, rank, bytes, op->time_ns[kind], workload_collectives_ns(op, kind), times);
}

static void
add_message(const Busy *busy, const WorkloadMessage *message, int32_t rank, int32_t peer,
            double times)
{
    Transfer transfer = {rank,
                         message->level,
                         true,
                         (double)message->sent_bytes,
                         (double)message->ns,
                         busy->links->senders_fraction};

    if (rank == peer || message->ns <= 0 || message->sent_bytes <= 0)
        return;
    double most = longest_ns(busy, &transfer);
    transfer.rank = peer;
    most = fmax(most, longest_ns(busy, &transfer));
    times *= fmin(1.0, (double)message->ns / fmax(most, 1.0));
    transfer.out = false;
    add(busy, &transfer, times);
    transfer.rank = rank;
    transfer.out = true;
    add(busy, &transfer, times);
}

/* Adds the less of what a backward keeps links busy as one op and as two. */
static void
add_split(const Busy *busy, const WorkloadOp *op, int32_t rank, double times, double *ways[2])
{
    const int32_t n = 2 * busy->links->n_links;

    for (int way = 0; way < 2; way++)
        for (int32_t i = 0; i < n; i++)
            ways[way][i] = 0.0;
    add_op(&(Busy){busy->links, ways[0]}, op, rank, SCHEDULE_OP_BACKWARD, times);
    add_op(&(Busy){busy->links, ways[1]}, op, rank, SCHEDULE_OP_BACKWARD_INPUT, times);
    add_op(&(Busy){busy->links, ways[1]}, op, rank, SCHEDULE_OP_BACKWARD_WEIGHT, times);
    for (int32_t i = 0; i < n; i++)
        busy->busy_ns[i] += fmin(ways[0][i], ways[1][i]);
}

/* All ops of one stage, and what it sends. */
static void
add_stage(const Busy *busy, const Workload *w, const ScheduleFamily *family, const Schedule *shape,
          int32_t chain, int32_t stage, const int64_t *counts, double *ways[2])
{
    const int32_t rank = schedule_rank_of_stage(shape, stage, chain);

    for (int32_t c = 0; c < w->n_classes; c++)
        for (int32_t s = 0; s < w->n_slices; s++) {
            const WorkloadOp *op = workload_op_of_class(w, chain, stage, c, s);
            const double times = (double)counts[c];
            add_op(busy, op, rank, SCHEDULE_OP_FORWARD, times);
            if (family->splits_backward)
                add_split(busy, op, rank, times, ways);
            else
                add_op(busy, op, rank, SCHEDULE_OP_BACKWARD, times);
            if (stage + 1 < w->n_stages)
                add_message(busy, &op->forward_message, rank,
                            schedule_rank_of_stage(shape, stage + 1, chain), times);
            if (stage > 0)
                add_message(busy, &op->backward_message, rank,
                            schedule_rank_of_stage(shape, stage - 1, chain), times);
        }
}

int64_t
plan_bound_links_ns(const Plan *plan, const Workload *workload)
{
    const ScheduleFamily *family = schedule_family_find(plan->schedule, NULL);
    const WorkloadLinks *links = workload->links;
    double most_ns = 0.0;

    if (links == NULL || links->n_links == 0 || family->overlaps ||
        plan_merges_pairs(&plan->conventions, &plan->degrees))
        return 0;
    const Schedule shape = {.n_ranks = workload->n_ranks,
                            .n_chunks = (int32_t)plan->degrees.vpp,
                            .placement = family->placement};
    const size_t n = 2 * (size_t)links->n_links;
    g_autofree double *all = g_new0(double, 3 * n);
    g_autofree int64_t *counts = plan_bound_counts(plan, workload);
    const Busy busy = {links, all};
    double *ways[2] = {all + n, all + 2 * n};

    for (int32_t chain = 0; chain < workload->n_chains; chain++)
        for (int32_t stage = 0; stage < workload->n_stages; stage++)
            add_stage(&busy, workload, family, &shape, chain, stage, counts, ways);
    for (int32_t r = 0; r < workload->n_ranks; r++) {
        const WorkloadRank *rank = &workload->ranks[r];
        add_collectives(&busy, r, rank->dp_reduce_traffic_bytes, rank->dp_reduce_ns,
                        rank->dp_reduce_ns, 1.0);
        add_collectives(&busy, r, rank->dp_gather_traffic_bytes, rank->dp_gather_ns,
                        rank->dp_gather_ns, 1.0);
    }
    for (size_t i = 0; i < n; i++)
        most_ns = fmax(most_ns, all[i]);
    return (int64_t)fmin(most_ns * (1.0 - MARGIN), 9e18);
}
