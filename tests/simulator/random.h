/*
 * tests/simulator/random.h - seeded random schedules and workloads; plain workloads by hand.
 *
 * A random schedule is the order in which a random choice among the ops that could run next runs
 * them: so it can run, and nothing else is regular about it.
 */
#pragma once

#include "base/random.h"
#include "profiles/workload/prefetch.h"
#include "schedule/check.h"

/* In [low, high]. */
static inline int64_t
random_in(uint64_t *state, int64_t low, int64_t high)
{
    return low + (int64_t)(random_next(state) % (uint64_t)(high - low + 1));
}

/* --- schedules --- */

/* (owned) */
static inline Schedule *
new_schedule(const char *family, int64_t p, int64_t v, int64_t m, int64_t slices)
{
    const ScheduleShape shape = {
        .n_ranks = p, .n_chunks = v, .n_micro_batches = m, .n_slices = slices};
    g_autoptr(GError) error = NULL;
    Schedule *schedule = schedule_new(family, &shape, &error);

    g_assert_no_error(error);
    return schedule;
}

enum {
    RANDOM_F,
    RANDOM_BI,
    RANDOM_W,
    RANDOM_STATES
};

typedef struct {
    Schedule *schedule;
    uint8_t *split; /* [rank * units + unit] 0: B; 1: I and W; 2: I alone */
    bool *done;     /* [(rank * units + unit) * RANDOM_STATES + F, B or I, W] */
} RandomBuilder;

static inline bool *
random_done(const RandomBuilder *b, int32_t rank, ScheduleOp op, int state)
{
    const int64_t n_virtual_ids = schedule_n_virtual_ids(b->schedule);

    return &b->done[(rank * n_virtual_ids + schedule_virtual_id(b->schedule, op)) * RANDOM_STATES +
                    state];
}

/* Whether the (F: 0; B or I: 1) of @op's micro-batch and slice at @stage is done, or not there. */
static inline bool
random_stage_done(const RandomBuilder *b, ScheduleOp op, int32_t stage, int state)
{
    if (stage < 0 || stage >= schedule_n_stages(b->schedule))
        return true;
    const int32_t chain = op.chunk;
    op.chunk = (uint8_t)schedule_chunk_of_stage(b->schedule, stage, chain);
    return *random_done(b, schedule_rank_of_stage(b->schedule, stage, chain), op, state);
}

/* Whether step @state of @op's unit on @rank may run now. */
static inline bool
random_may_run(const RandomBuilder *b, int32_t rank, ScheduleOp op, int state)
{
    const int32_t stage = schedule_stage(b->schedule, rank, op.chunk);
    ScheduleOp beside = op;

    if (*random_done(b, rank, op, state))
        return false;
    if (state == RANDOM_F) {
        beside.slice--;
        return (op.slice == 0 || *random_done(b, rank, beside, RANDOM_F)) &&
               random_stage_done(b, op, stage - 1, RANDOM_F);
    }
    if (state == RANDOM_W)
        return *random_done(b, rank, op, RANDOM_BI);
    beside.slice++;
    return *random_done(b, rank, op, RANDOM_F) &&
           (op.slice == b->schedule->n_slices - 1 || *random_done(b, rank, beside, RANDOM_BI)) &&
           random_stage_done(b, op, stage + 1, RANDOM_BI);
}

/* Picks one of the ops that may run: reservoir sampling over (rank, unit, state). */
static inline int32_t
random_pick(const RandomBuilder *b, uint64_t *state, ScheduleOp *picked)
{
    const Schedule *s = b->schedule;
    const int64_t n_virtual_ids = schedule_n_virtual_ids(s);
    int32_t rank = -1;
    int64_t n = 0;

    for (int32_t r = 0; r < s->n_ranks; r++)
        for (int64_t virtual_id = 0; virtual_id < n_virtual_ids; virtual_id++)
            for (int k = 0; k < RANDOM_STATES; k++) {
                const uint8_t split = b->split[r * n_virtual_ids + virtual_id];
                ScheduleOp op = {.micro_batch = (int32_t)(virtual_id / s->n_slices / s->n_chunks),
                                 .chunk = (uint8_t)(virtual_id / s->n_slices % s->n_chunks),
                                 .slice = (uint16_t)(virtual_id % s->n_slices)};
                if ((k == RANDOM_W && split != 1) || !random_may_run(b, r, op, k))
                    continue;
                if (random_in(state, 0, n++) != 0)
                    continue;
                op.kind = k == RANDOM_F   ? SCHEDULE_OP_FORWARD
                          : k == RANDOM_W ? SCHEDULE_OP_BACKWARD_WEIGHT
                          : split == 0    ? SCHEDULE_OP_BACKWARD
                                          : SCHEDULE_OP_BACKWARD_INPUT;
                *picked = op;
                rank = r;
            }
    return rank;
}

/* (owned) At most some 100 ops. */
static inline Schedule *
random_schedule(uint64_t *state)
{
    const SchedulePlacement placement = (SchedulePlacement)random_in(state, 0, 2);
    const ScheduleShape shape = {
        .n_ranks = random_in(state, 1, 4),
        .n_chunks = placement == SCHEDULE_PLACEMENT_BIDIR ? 2 : random_in(state, 1, 3),
        .n_micro_batches = placement == SCHEDULE_PLACEMENT_BIDIR ? 2 * random_in(state, 1, 2)
                                                                 : random_in(state, 1, 3),
        .n_slices = random_in(state, 1, 3),
    };
    const int64_t most =
        shape.n_ranks * shape.n_chunks * shape.n_micro_batches * shape.n_slices * 3;
    Schedule *s = schedule_alloc("random", &shape, placement, most, NULL);
    const int64_t n_virtual_ids = schedule_n_virtual_ids(s);
    const size_t n = (size_t)(n_virtual_ids * shape.n_ranks);
    g_autofree uint8_t *split = g_new0(uint8_t, n);
    g_autofree bool *done = g_new0(bool, n *RANDOM_STATES);
    g_autofree ScheduleOp *ops = g_new(ScheduleOp, (size_t)most);
    g_autofree int32_t *ranks = g_new(int32_t, (size_t)most);
    const RandomBuilder b = {s, split, done};
    const int64_t style = random_in(state, 0, 3); /* all B, all I and W, all I, mixed */
    int64_t n_ops = 0;

    for (size_t i = 0; i < n; i++)
        split[i] = (uint8_t)(style == 3 ? random_in(state, 0, 2) : style);
    while ((ranks[n_ops] = random_pick(&b, state, &ops[n_ops])) >= 0) {
        const ScheduleOp op = ops[n_ops];
        const int k = op.kind == SCHEDULE_OP_FORWARD           ? RANDOM_F
                      : op.kind == SCHEDULE_OP_BACKWARD_WEIGHT ? RANDOM_W
                                                               : RANDOM_BI;
        *random_done(&b, ranks[n_ops], op, k) = true;
        if (++n_ops == most)
            break;
    }
    int64_t at = 0;
    for (int32_t r = 0; r < s->n_ranks; r++) {
        for (int64_t i = 0; i < n_ops; i++)
            if (ranks[i] == r)
                s->ops[at++] = ops[i];
        s->rank_begin[r + 1] = at;
    }
    return s;
}

/* Makes pairs of some neighbours that may be one; they may wait for each other. */
static inline void
random_pairs(uint64_t *state, Schedule *schedule)
{
    g_clear_pointer(&schedule->overlap_pairs, g_array_unref);
    schedule->overlap_pairs = g_array_new(FALSE, FALSE, sizeof(int64_t));
    for (int32_t r = 0; r < schedule->n_ranks; r++)
        for (int64_t i = schedule->rank_begin[r]; i + 1 < schedule->rank_begin[r + 1]; i++) {
            g_array_append_val(schedule->overlap_pairs, i);
            if (random_in(state, 0, 1) == 0 || !schedule_check_pairs(schedule, NULL))
                g_array_set_size(schedule->overlap_pairs, schedule->overlap_pairs->len - 1);
            else
                i++;
        }
}

/* --- workloads --- */

/* (owned) all zero, for @schedule's shape. */
static inline Workload *
empty_workload(const Schedule *schedule, int32_t n_classes)
{
    Workload *w = g_new0(Workload, 1);

    w->n_stages = schedule_n_stages(schedule);
    w->n_ranks = schedule->n_ranks;
    w->n_classes = n_classes;
    w->n_slices = schedule->n_slices;
    w->n_chains = schedule->placement == SCHEDULE_PLACEMENT_BIDIR ? 2 : 1;
    w->ops = g_new0(WorkloadOp, (size_t)w->n_chains * (size_t)w->n_stages * (size_t)n_classes *
                                    (size_t)w->n_slices);
    w->ranks = g_new0(WorkloadRank, (size_t)w->n_ranks);
    return w;
}

static inline int64_t
workload_n_ops(const Workload *w)
{
    return (int64_t)w->n_chains * w->n_stages * w->n_classes * w->n_slices;
}

/* (owned) the same times for every op of a kind. */
static inline Workload *
plain_workload(const Schedule *schedule, const int64_t time_ns[SCHEDULE_OP_N], int64_t message_ns)
{
    Workload *w = empty_workload(schedule, 1);

    for (int64_t i = 0; i < workload_n_ops(w); i++) {
        for (int kind = 0; kind < SCHEDULE_OP_N; kind++) {
            w->ops[i].time_ns[kind] = time_ns[kind];
            w->ops[i].part_ns[kind][PROFILE_PART_COMPUTE] = time_ns[kind];
        }
        w->ops[i].forward_message.ns = w->ops[i].backward_message.ns = message_ns;
    }
    return w;
}

/* Splits a time into parts that sum to it. */
static inline void
random_parts(uint64_t *state, int64_t time_ns, int64_t part_ns[PROFILE_PART_N])
{
    int64_t left = time_ns;

    for (int part = PROFILE_PART_N - 1; part > 0; part--) {
        part_ns[part] = random_in(state, 0, left / 2);
        left -= part_ns[part];
    }
    part_ns[PROFILE_PART_COMPUTE] = left;
}

/* (owned, nullable) What @w's stages gather ahead of use, by a sequence of its own. */
static inline WorkloadPrefetch *
random_ahead(uint64_t state, const Workload *w, int64_t largest)
{
    const size_t n_stages = (size_t)w->n_chains * (size_t)w->n_stages;
    WorkloadPrefetch *ahead;

    if (random_in(&state, 0, 1) == 0)
        return NULL;
    ahead = g_new0(WorkloadPrefetch, 1);
    ahead->depth = (int32_t)random_in(&state, 1, 4);
    ahead->most_bytes = g_new0(int64_t, w->n_ranks);
    ahead->begin = g_new0(int64_t, n_stages + 1);
    ahead->is_first = g_new0(int8_t, n_stages);
    for (int32_t r = 0; r < w->n_ranks; r++)
        ahead->most_bytes[r] = random_in(&state, 0, ahead->depth * largest);
    for (size_t k = 0; k < n_stages; k++) {
        const int64_t n = random_in(&state, 0, 4);
        ahead->begin[k + 1] = ahead->begin[k] + n;
        ahead->is_first[k] = n > 0 && random_in(&state, 0, 1) != 0;
    }
    ahead->bytes = g_new0(int64_t, MAX(1, ahead->begin[n_stages]));
    for (int64_t i = 0; i < ahead->begin[n_stages]; i++)
        ahead->bytes[i] = random_in(&state, 1, largest);
    const int64_t n_last = workload_n_ops(w) * SCHEDULE_OP_N * ahead->depth;
    ahead->last_bytes = g_new0(int64_t, n_last);
    for (int64_t i = 0; i < n_last; i++)
        ahead->last_bytes[i] = random_in(&state, 0, 3) == 0 ? WORKLOAD_PREFETCH_NONE
                                                            : random_in(&state, -largest, largest);
    return ahead;
}

/* (owned) everything different from everything; zeros and ties are common with small @largest. */
static inline Workload *
random_workload(uint64_t *state, const Schedule *schedule, int64_t largest)
{
    Workload *w = empty_workload(schedule, (int32_t)random_in(state, 1, 3));

    if (w->n_classes > 1) {
        w->class_of_micro_batch = g_new(int32_t, (size_t)schedule->n_micro_batches);
        for (int32_t m = 0; m < schedule->n_micro_batches; m++)
            w->class_of_micro_batch[m] = (int32_t)random_in(state, 0, w->n_classes - 1);
    }
    for (int64_t i = 0; i < workload_n_ops(w); i++) {
        WorkloadOp *op = &w->ops[i];
        for (int kind = 0; kind < SCHEDULE_OP_N; kind++) {
            op->time_ns[kind] = random_in(state, 0, largest);
            random_parts(state, op->time_ns[kind], op->part_ns[kind]);
            op->workspace_bytes[kind] = random_in(state, 0, largest);
        }
        op->forward_message.ns = random_in(state, 0, largest);
        op->forward_message.buffered_ns = random_in(state, 0, op->forward_message.ns);
        op->forward_message.bytes = random_in(state, 0, largest);
        op->backward_message.ns = random_in(state, 0, largest);
        op->backward_message.buffered_ns = random_in(state, 0, op->backward_message.ns);
        op->backward_message.bytes = random_in(state, 0, largest);
        op->activation_bytes = random_in(state, 0, largest);
        op->weight_activation_bytes = random_in(state, 0, 2 * op->activation_bytes);
        op->kv_bytes = random_in(state, 0, largest);
        op->kv_gradient_bytes = random_in(state, 0, largest);
    }
    for (int32_t r = 0; r < w->n_ranks; r++) {
        WorkloadRank *rank = &w->ranks[r];
        rank->dp_reduce_ns = random_in(state, 0, 2 * largest);
        rank->dp_reduce_bytes = random_in(state, 0, largest);
        rank->dp_gather_ns = random_in(state, 0, largest);
        rank->dp_gather_bytes = random_in(state, 0, largest);
        rank->n_buckets = (int32_t)random_in(state, 0, 4);
        rank->optimizer_ns = random_in(state, 0, largest);
        rank->memory_limit_bytes = random_in(state, 0, 8 * largest);
        for (int owner = 0; owner < TRACE_MEMORY_N; owner++)
            rank->static_bytes[owner] = random_in(state, 0, largest);
    }
    w->blocking_messages = random_in(state, 0, 1) != 0;
    w->overlap_dp = random_in(state, 0, 1) != 0;
    w->overlap_gather = random_in(state, 0, 1) != 0;
    w->interference_fraction =
        random_in(state, 0, 1) != 0 ? 0.0 : (double)random_in(state, 1, 99) / 100;
    w->op_overhead_ns = random_in(state, 0, 3);
    w->prefetch = random_ahead(*state, w, largest);
    return w;
}

/* --- links --- */

/*
 * Gives @workload links of two levels, and traffic on them: every rank has a port to each level, of
 * @port_bytes_per_s, and its devices a way out to the second with those of its node (@node, by
 * rank), of @node_bytes_per_s.  Most things take about 1 byte per ns: 1e9 bytes per second.
 */
static inline void
random_links(uint64_t *state, const Schedule *schedule, Workload *w, const int32_t *node,
             double port_bytes_per_s, double node_bytes_per_s)
{
    WorkloadLinks *links = g_new0(WorkloadLinks, 1);
    const int32_t p = schedule->n_ranks;
    int64_t n = 0;

    links->n_levels = 2;
    links->n_links = 3 * p;
    links->senders_fraction = random_in(state, 0, 1) != 0 ? 1 : 0.5;
    links->bytes_per_s = g_new(double, 3 * (size_t)p);
    links->begin = g_new(int64_t, 2 * (size_t)p + 1);
    links->crossings = g_new(WorkloadCrossing, 3 * (size_t)p);
    for (int32_t r = 0; r < p; r++) {
        links->bytes_per_s[r] = links->bytes_per_s[p + r] = port_bytes_per_s;
        links->bytes_per_s[2 * p + r] = node_bytes_per_s;
        links->begin[2 * r] = n;
        links->crossings[n++] = (WorkloadCrossing){r, 0};
        links->begin[2 * r + 1] = n;
        links->crossings[n++] = (WorkloadCrossing){p + r, 0};
        links->crossings[n++] =
            (WorkloadCrossing){2 * p + node[r], (int32_t)random_in(state, 1, 4)};
    }
    links->begin[2 * p] = n;
    for (int64_t i = 0; i < workload_n_ops(w); i++) {
        WorkloadOp *op = &w->ops[i];
        op->forward_message.sent_bytes = random_in(state, 0, 2 * op->forward_message.ns);
        op->backward_message.sent_bytes = random_in(state, 0, 2 * op->backward_message.ns);
        op->forward_message.level = (int32_t)random_in(state, 0, 1);
        op->backward_message.level = (int32_t)random_in(state, 0, 1);
        for (int kind = 0; kind < SCHEDULE_OP_N; kind++)
            for (int level = 0; level < 2; level++)
                if (random_in(state, 0, 2) == 0)
                    op->traffic_bytes[kind][level] = (float)random_in(state, 0, op->time_ns[kind]);
    }
    for (int32_t r = 0; r < p; r++)
        for (int level = 0; level < 2; level++) {
            w->ranks[r].dp_reduce_traffic_bytes[level] =
                (double)random_in(state, 0, w->ranks[r].dp_reduce_ns);
            w->ranks[r].dp_gather_traffic_bytes[level] =
                (double)random_in(state, 0, w->ranks[r].dp_gather_ns);
        }
    w->links = links;
}
