/*
 * tests/planner/slice_case.h - random and large problems of the slicer's variants, random answers,
 * and what the simulator makes of answers.
 */
#pragma once

#include "planner/slices/orders.h"
#include "schedule/schedule.h"
#include "simulator/simulate.h"
#include "tests/bench/slice_costs.h"

#define MAX_STAGES 5

typedef struct {
    int64_t latency, n_slices;
} Best;

static inline uint32_t
draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* --- a random problem --- */

typedef struct {
    PlanSliceProblem problem;
    PlanSliceStage stages[MAX_STAGES];
    int64_t *grids[2 * MAX_STAGES]; /* (owned, nullable) */
    int64_t *delay;                 /* (owned, nullable) */
    bool differ;
} Case;

static inline void
case_clear(Case *k)
{
    for (int i = 0; i < 2 * MAX_STAGES; i++)
        g_free(k->grids[i]);
    g_free(k->delay);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Case, case_clear)

static inline int64_t *
random_grid(uint32_t *state, int64_t batch, int64_t n)
{
    const int64_t side = n + 1;
    const uint32_t n_values = (uint32_t[]){2, 4, 16, 100000}[draw(state) % 4];
    const uint32_t holes = (uint32_t[]){0, 0, 0, 15}[draw(state) % 4];
    const int64_t growth = draw(state) % 3;
    int64_t *cost = g_new(int64_t, (size_t)((batch + 1) * side * side));

    for (int64_t b = 0; b <= batch; b++)
        for (int64_t s = 0; s <= n; s++)
            for (int64_t c = 0; c <= n; c++) {
                int64_t value = 1 + (int64_t)(draw(state) % n_values);
                value += growth * b * s * (s + 2 * c);
                if (draw(state) % 100 < holes || b == 0 || s == 0 || s + c > n)
                    value = PLAN_SLICE_INFINITE;
                cost[(b * side + s) * side + c] = value;
            }
    return cost;
}

static inline void
draw_case(uint32_t *state, Case *k, bool differ, int64_t max_batch, int64_t max_cells)
{
    const int64_t batch = 1 + draw(state) % max_batch, n = 1 + draw(state) % max_cells;
    const bool apart = draw(state) % 2 == 0;

    *k = (Case){.differ = differ};
    PlanSliceProblem *p = &k->problem;
    p->costs = (PlanSliceCosts){batch, n, 8, NULL};
    p->n_stages = 1 + draw(state) % MAX_STAGES;
    p->max_group = draw(state) % 4 == 0 ? 1 + draw(state) % 2 : 0;
    for (int64_t i = 0; i < (differ ? p->n_stages : 1); i++) {
        const bool is_new = i == 0 || draw(state) % 2 == 0;
        if (is_new)
            k->grids[2 * i] = random_grid(state, batch, n);
        if (is_new && apart)
            k->grids[2 * i + 1] = random_grid(state, batch, n);
        k->stages[i] =
            (PlanSliceStage){is_new ? k->grids[2 * i] : k->stages[i - 1].forward,
                             is_new ? k->grids[2 * i + 1] : k->stages[i - 1].backward,
                             differ && draw(state) % 2 ? 0.25 * (1 + draw(state) % 12) : 1.0};
    }
    p->costs.cost = k->grids[0];
    p->backward = k->grids[1];
    for (int64_t i = differ ? p->n_stages : 1; i < MAX_STAGES; i++)
        k->stages[i] = k->stages[0];
    if (draw(state) % 2 == 0) {
        k->delay = g_new0(int64_t, (size_t)((batch + 1) * (n + 1)));
        for (int64_t i = 0; i < (batch + 1) * (n + 1); i++)
            k->delay[i] = draw(state) % 5;
        p->delay = k->delay;
    }
    if (draw(state) % 2 == 0) {
        p->token_bytes = 1 + draw(state) % 3;
        p->workspace_token_bytes = draw(state) % 3;
        p->limit_bytes = (int64_t)(1 + draw(state) % (batch + 1)) * n * 8 * p->token_bytes +
                         (int64_t)(draw(state) % 40);
    }
}

/* --- what a slice takes --- */

typedef struct {
    int64_t batch, tokens, context; /* in cells */
} Job;

/* A stage's time of a job; INT64_MAX: none. */
static inline int64_t
job_time(const Case *k, int64_t stage, int r, Job job)
{
    const int64_t side = k->problem.costs.n_cells + 1;
    const PlanSliceStage *s = &k->stages[stage];
    const int64_t t =
        (r == 0 ? s->forward : s->backward)[(job.batch * side + job.tokens) * side + job.context];

    /* Factors are quarters, times far below 2^52: exact; a tie goes to the even. */
    if (t == PLAN_SLICE_INFINITE)
        return INT64_MAX;
    const int64_t quarters = t * (int64_t)(4 * s->factor), rest = quarters % 4;
    return quarters / 4 + (rest == 3 || (rest == 2 && quarters / 4 % 2 == 1));
}

/* That it is a slicing which fits; returns its slices. */
static inline int64_t
check_answer(const Case *k, const PlanSliceResult *result)
{
    const PlanSliceProblem *p = &k->problem;
    int64_t sequences = 0, n_slices = 0, round = 0, in_round = 0, largest = 0;

    for (guint i = 0; i < result->groups->len; i++) {
        const PlanSliceGroup *group = result->groups->pdata[i];
        int64_t tokens = 0;
        if (group->round != round) {
            g_assert_cmpint(group->round, ==, round + 1);
            round++;
            in_round = largest = 0;
        }
        in_round += group->batch;
        for (guint j = 0; j < group->slices->len; j++) {
            const int64_t length = g_array_index(group->slices, int64_t, j);
            tokens += length;
            largest = MAX(largest, length * group->batch);
        }
        if (p->limit_bytes > 0)
            g_assert_cmpint(in_round * p->costs.n_cells * 8 * p->token_bytes +
                                largest * p->workspace_token_bytes,
                            <=, p->limit_bytes);
        if (p->max_group > 0)
            g_assert_cmpint(group->batch, <=, p->max_group);
        g_assert_cmpint(tokens, ==, p->costs.n_cells * 8);
        sequences += group->batch;
        n_slices += group->slices->len;
    }
    g_assert_cmpint(sequences, ==, p->costs.batch);
    g_assert_cmpint(result->n_rounds, ==, round + 1);
    return n_slices;
}

/* --- the simulator --- */

/* (owned) the times of @groups, each a class of its own, cut into as many slices. */
static inline Workload *
make_workload(const Case *k, const GPtrArray *groups, const Schedule *schedule)
{
    static const int64_t nothing[SCHEDULE_OP_N];
    const int64_t side = k->problem.costs.n_cells + 1;
    Workload *workload = workload_new_plain(schedule, nothing, 0);
    const int32_t n = workload->n_slices;

    workload->class_of_micro_batch = g_new(int32_t, groups->len);
    workload->n_classes = (int32_t)groups->len;
    g_free(workload->ops);
    workload->ops = g_new0(WorkloadOp, (gsize)(workload->n_stages * workload->n_classes * n));
    for (int32_t i = 0; i < workload->n_classes; i++) {
        const PlanSliceGroup *group = groups->pdata[i];
        workload->class_of_micro_batch[i] = i;
        for (int32_t stage = 0; stage < workload->n_stages; stage++)
            for (int64_t j = 0, c = 0; j < n; j++) {
                const Job job = {group->batch, g_array_index(group->slices, int64_t, j) / 8, c};
                WorkloadOp *op = &workload->ops[(stage * workload->n_classes + i) * n + (int32_t)j];
                op->time_ns[SCHEDULE_OP_FORWARD] = job_time(k, stage, 0, job);
                op->time_ns[SCHEDULE_OP_BACKWARD] = job_time(k, stage, 1, job);
                const int64_t tokens = 8 * job.batch * job.tokens;
                op->activation_bytes = tokens * k->problem.token_bytes / schedule->n_chunks;
                op->workspace_bytes[SCHEDULE_OP_FORWARD] =
                    op->workspace_bytes[SCHEDULE_OP_BACKWARD] =
                        tokens * k->problem.workspace_token_bytes;
                if (k->delay != NULL && stage + 1 < workload->n_stages)
                    op->forward_message.ns = k->delay[job.batch * side + job.tokens];
                if (k->delay != NULL && stage > 0)
                    op->backward_message.ns = k->delay[job.batch * side + job.tokens];
                c += job.tokens;
            }
    }
    return workload;
}

/* The simulator's makespan of @groups under @family; INT64_MAX: a slice cannot be, or too much. */
static inline int64_t
simulate(const Case *k, const char *family, int64_t n_chunks, const GPtrArray *groups)
{
    const PlanSliceGroup *first = groups->pdata[0];
    const ScheduleShape shape = {.n_ranks = k->problem.n_stages / n_chunks,
                                 .n_chunks = n_chunks,
                                 .n_micro_batches = groups->len,
                                 .n_slices = first->slices->len};
    const SimOptions options = {.want_memory = true};
    g_autoptr(Schedule) schedule = schedule_new(family, &shape, NULL);
    g_auto(SimResult) result = {0};
    g_autoptr(GError) error = NULL;

    g_assert_nonnull(schedule);
    g_autoptr(Workload) workload = make_workload(k, groups, schedule);
    for (int32_t i = 0; i < workload->n_stages * workload->n_classes * workload->n_slices; i++)
        if (workload->ops[i].time_ns[SCHEDULE_OP_FORWARD] == INT64_MAX ||
            workload->ops[i].time_ns[SCHEDULE_OP_BACKWARD] == INT64_MAX)
            return INT64_MAX;
    sim_run(schedule, workload, &options, &result, &error);
    g_assert_no_error(error);
    if (k->problem.limit_bytes > 0 && result.report->peak_memory_bytes > k->problem.limit_bytes)
        return INT64_MAX;
    return result.report->iteration_ns;
}

static inline bool
is_common(const GPtrArray *groups)
{
    const GArray *first = ((const PlanSliceGroup *)groups->pdata[0])->slices;

    for (guint i = 1; i < groups->len; i++)
        if (((const PlanSliceGroup *)groups->pdata[i])->slices->len != first->len)
            return false;
    return true;
}

static inline void
free_groups(GPtrArray *groups)
{
    for (guint i = 0; i < groups->len; i++) {
        g_array_unref(((PlanSliceGroup *)groups->pdata[i])->slices);
        g_free(groups->pdata[i]);
    }
    g_ptr_array_unref(groups);
}

/* A device whose directions and stages differ. */
static inline void
large_case(Case *k, const SliceCase *grid, int64_t n_stages, double last_factor)
{
    const int64_t n = grid->seq_len / 8, side = n + 1;

    *k = (Case){.differ = true};
    k->problem.costs = (PlanSliceCosts){grid->batch, n, 8, NULL};
    k->problem.n_stages = n_stages;
    k->grids[0] = slice_case_grid(grid);
    k->grids[1] = slice_case_grid(grid);
    k->delay = g_new0(int64_t, (size_t)((grid->batch + 1) * side));
    for (int64_t i = side; i < (grid->batch + 1) * side; i++)
        k->delay[i] = 5000000 + 10000 * (i / side) * (i % side);
    for (int64_t i = 0; i < (grid->batch + 1) * side * side; i++)
        if (k->grids[1][i] != PLAN_SLICE_INFINITE)
            k->grids[1][i] = k->grids[1][i] * 2 - grid->start; /* one launch, twice the work */
    for (int64_t i = 0; i < n_stages; i++)
        k->stages[i] = (PlanSliceStage){k->grids[0], k->grids[1],
                                        i == 0 || i == n_stages - 1 ? last_factor : 1.0};
    k->problem.costs.cost = k->grids[0];
    k->problem.backward = k->grids[1];
    k->problem.delay = k->delay;
}

static const SliceCase large[] = {
    {"slow", 2, 512, 8, 24, 2000000000, 45000000, 610, 64, 0, 0},
    {"fast", 2, 512, 8, 96, 60000000, 500000, 20, 128, 0, 0},
    {"fast, tiled", 3, 384, 8, 48, 20000000, 300000, 20, 32, 64, 0},
    {"fast, noisy", 2, 512, 8, 48, 60000000, 500000, 20, 32, 0, 40000000},
};

/* (owned by free_groups()) a random answer; with @common slices in all groups. */
static inline GPtrArray *
random_groups(uint32_t *state, const Case *k, bool common)
{
    GPtrArray *groups = g_ptr_array_new();
    const uint32_t most = 1 + draw(state) % (uint32_t)k->problem.costs.n_cells;

    for (int64_t x = k->problem.costs.batch; x > 0;) {
        PlanSliceGroup *one = g_new0(PlanSliceGroup, 1);
        *one = (PlanSliceGroup){1 + draw(state) % x, 0, g_array_new(FALSE, FALSE, sizeof(int64_t))};
        const PlanSliceGroup *first = groups->len == 0 ? NULL : groups->pdata[0];
        if (common && first != NULL)
            g_array_append_vals(one->slices, first->slices->data, first->slices->len);
        for (int64_t c = common && first != NULL ? k->problem.costs.n_cells : 0;
             c < k->problem.costs.n_cells;) {
            const int64_t s = MIN(1 + draw(state) % most, k->problem.costs.n_cells - c);
            const int64_t tokens = 8 * s;
            g_array_append_val(one->slices, tokens);
            c += s;
        }
        x -= one->batch;
        g_ptr_array_add(groups, one);
    }
    return groups;
}
