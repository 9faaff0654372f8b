/* Rounds: one answer for every number of sequences a round may have, then the cheapest way to make
 * the batch of rounds. */
#include "planner/slices/rounds.h"

#include "planner/slices/apart.h"

PlanSliceTotals
plan_slice_totals(const PlanSliceProblem *problem, const GPtrArray *groups)
{
    const PlanSliceCosts *costs = &problem->costs;
    const int64_t side = costs->n_cells + 1;
    PlanSliceTotals totals = {0};
    int64_t delayed[2] = {0, 0}, round = 0;

    for (guint i = 0; i < groups->len; i++) {
        const PlanSliceGroup *group = groups->pdata[i];
        if (group->round != round) {
            totals.latency += (problem->n_stages - 1) * (delayed[0] + delayed[1]);
            delayed[0] = delayed[1] = 0;
            round = group->round;
        }
        for (int64_t k = 0, c = 0; k < group->slices->len; k++) {
            const int64_t s = g_array_index(group->slices, int64_t, k) / costs->granularity;
            const int64_t at = (group->batch * side + s) * side + c;
            const int64_t t[2] = {costs->cost[at],
                                  problem->backward == NULL ? 0 : problem->backward[at]};
            const int64_t d = problem->delay == NULL ? 0 : problem->delay[group->batch * side + s];
            for (int r = 0; r < (problem->backward == NULL ? 1 : 2); r++) {
                totals.sum += t[r];
                totals.max[r] = MAX(totals.max[r], t[r]);
                delayed[r] = MAX(delayed[r], t[r] + d);
            }
            c += s;
        }
    }
    totals.latency += (problem->n_stages - 1) * (delayed[0] + delayed[1]) + totals.sum;
    return totals;
}

/* --- memory --- */

/* Tokens that a round of @sequences leaves to its largest slice; < 0: it does not fit. */
static int64_t
slice_tokens(const PlanSliceProblem *problem, int64_t sequences)
{
    const int64_t seq_len = problem->costs.n_cells * problem->costs.granularity;
    int64_t kept;

    if (problem->limit_bytes == 0)
        return INT64_MAX;
    if (__builtin_mul_overflow(sequences, seq_len, &kept) ||
        __builtin_mul_overflow(kept, problem->token_bytes, &kept) || kept > problem->limit_bytes)
        return -1;
    return problem->workspace_token_bytes == 0
               ? INT64_MAX
               : (problem->limit_bytes - kept) / problem->workspace_token_bytes;
}

int64_t
plan_slice_round_limit(const PlanSliceProblem *problem)
{
    const int64_t batch = problem->costs.batch;
    int64_t n = 0;

    while (n < batch && slice_tokens(problem, n + 1) >= problem->costs.granularity)
        n++;
    return n == batch ? INT64_MAX : n;
}

/* (owned) the delays, infinite for slices of more than @most tokens. */
static int64_t *
limit_delays(const PlanSliceProblem *problem, int64_t most)
{
    const int64_t side = problem->costs.n_cells + 1, n = (problem->costs.batch + 1) * side;
    int64_t *delay = problem->delay == NULL ? g_new0(int64_t, (size_t)n)
                                            : g_memdup2(problem->delay, (size_t)n * sizeof *delay);

    for (int64_t i = 0; i < n; i++) {
        const int64_t s = i % side * problem->costs.granularity;
        if (s > 0 && i / side > most / s)
            delay[i] = PLAN_SLICE_INFINITE;
    }
    return delay;
}

/* --- all rounds --- */

/* The best way to make x sequences of rounds. */
typedef struct {
    int64_t latency, n_slices; /* latency NEVER: there is none */
    int64_t round;             /* sequences of its largest round */
} RoundSplit;

/* Whether @a is better than @b by the order of ties. */
static bool
is_better(const RoundSplit *a, const RoundSplit *b)
{
    if (a->latency != b->latency)
        return a->latency < b->latency;
    if (a->n_slices != b->n_slices)
        return a->n_slices < b->n_slices;
    return a->round > b->round;
}

/* @ways of 0 .. batch from @rounds of 1 .. n_rounds (nullable entries); @bounds: of least lower
 * bounds. */
static void
combine(const PlanSliceProblem *problem, PlanSliceResult *const *rounds, int64_t n_rounds,
        RoundSplit *splits, int64_t *bounds)
{
    splits[0] = (RoundSplit){0, 0, 0};
    bounds[0] = 0;
    for (int64_t x = 1; x <= problem->costs.batch; x++) {
        splits[x] = (RoundSplit){PLAN_SLICE_NEVER, 0, 0};
        bounds[x] = PLAN_SLICE_NEVER;
        for (int64_t r = 1; r <= MIN(x, n_rounds); r++) {
            const RoundSplit *rest = &splits[x - r];
            if (rounds[r] == NULL || rest->latency >= PLAN_SLICE_NEVER)
                continue;
            const RoundSplit split = {rounds[r]->latency + rest->latency,
                                      plan_slice_count(rounds[r]) + rest->n_slices, r};
            if (split.latency <= PLAN_SLICE_MAX_SUM && is_better(&split, &splits[x]))
                splits[x] = split;
            bounds[x] = MIN(bounds[x], rounds[r]->lower_bound + bounds[x - r]);
        }
    }
}

/* (owned) the answer of @ways; takes the groups out of copies of @rounds. */
static PlanSliceResult *
join(const PlanSliceProblem *problem, PlanSliceResult *const *rounds, int64_t n_rounds,
     const RoundSplit *splits)
{
    PlanSliceResult *result = g_new0(PlanSliceResult, 1);
    int64_t round = 0;

    result->groups = g_ptr_array_new_with_free_func(plan_slice_group_free);
    for (int64_t x = problem->costs.batch; x > 0; x -= splits[x].round, round++) {
        const PlanSliceResult *one = rounds[splits[x].round];
        for (guint i = 0; i < one->groups->len; i++) {
            const PlanSliceGroup *group = one->groups->pdata[i];
            PlanSliceGroup *copy = plan_slice_group_new(group->batch);
            copy->round = round;
            g_array_append_vals(copy->slices, group->slices->data, group->slices->len);
            g_ptr_array_add(result->groups, copy);
        }
    }
    result->n_rounds = round;
    for (int64_t r = 1; r <= n_rounds; r++)
        result->n_solves += rounds[r] == NULL ? 0 : rounds[r]->n_solves;
    return result;
}

/* The best answer of one round of @sequences, NULL if there is none. */
static PlanSliceResult *
solve_one(const PlanSliceProblem *problem, int64_t sequences, PlanSliceRoundFunc solve,
          void *user_data, GError **error)
{
    const int64_t most = slice_tokens(problem, sequences);
    g_autofree int64_t *delay = most == INT64_MAX ? NULL : limit_delays(problem, most);
    PlanSliceProblem one = *problem;

    one.costs.batch = sequences;
    one.limit_bytes = 0;
    if (delay != NULL)
        one.delay = delay;
    return solve(&one, user_data, error);
}

static bool
check_memory(const PlanSliceProblem *problem, int64_t most, GError **error)
{
    if (most > 0)
        return true;
    g_set_error(error, PLAN_SLICE_ERROR, PLAN_SLICE_ERROR_INFEASIBLE,
                "one sequence of %" G_GINT64_FORMAT " tokens does not fit in %" G_GINT64_FORMAT
                " bytes",
                problem->costs.n_cells * problem->costs.granularity, problem->limit_bytes);
    return false;
}

PlanSliceResult *
plan_slice_solve_rounds(const PlanSliceProblem *problem, PlanSliceRoundFunc solve, void *user_data,
                        GError **error)
{
    const int64_t batch = problem->costs.batch;
    const int64_t n_rounds = MIN(plan_slice_round_limit(problem), batch);
    g_autoptr(GPtrArray) rounds =
        g_ptr_array_new_with_free_func((GDestroyNotify)plan_slice_result_free);
    g_autofree RoundSplit *splits = g_new(RoundSplit, (size_t)batch + 1);
    g_autofree int64_t *bounds = g_new(int64_t, (size_t)batch + 1);
    /* All in one round is never worse than in several where only the whole counts. */
    const int64_t first = n_rounds == batch && problem->workspace_token_bytes == 0 ? batch : 1;

    if (!check_memory(problem, n_rounds, error))
        return NULL;
    g_ptr_array_add(rounds, NULL);
    for (int64_t r = 1; r <= n_rounds; r++) {
        GError *failure = NULL;
        g_ptr_array_add(rounds,
                        r < first ? NULL : solve_one(problem, r, solve, user_data, &failure));
        if (failure != NULL) {
            g_propagate_error(error, failure);
            return NULL;
        }
    }
    PlanSliceResult *const *all = (PlanSliceResult *const *)rounds->pdata;
    combine(problem, all, n_rounds, splits, bounds);
    if (splits[batch].latency >= PLAN_SLICE_NEVER) {
        g_set_error(error, PLAN_SLICE_ERROR, PLAN_SLICE_ERROR_INFEASIBLE,
                    "no slicing of %" G_GINT64_FORMAT " sequences of %" G_GINT64_FORMAT
                    " tokens has finite costs, takes less than %" G_GINT64_FORMAT " units%s",
                    batch, problem->costs.n_cells * problem->costs.granularity, PLAN_SLICE_MAX_SUM,
                    problem->limit_bytes > 0 ? " and fits in memory" : "");
        return NULL;
    }
    PlanSliceResult *result = join(problem, all, n_rounds, splits);
    result->lower_bound = bounds[batch];
    return result;
}

static PlanSliceResult *
solve_equal_stages(const PlanSliceProblem *problem, void *user_data, GError **error)
{
    const int64_t others = problem->n_stages - 1;
    const PlanSliceMetric metric = {
        .cost = {problem->costs.cost, problem->backward},
        .key = {problem->costs.cost, problem->backward},
        .delay = problem->delay,
        .weight = {others, others},
        .high = {PLAN_SLICE_MAX_SUM, PLAN_SLICE_MAX_SUM},
    };

    return plan_slice_solve_apart(&problem->costs, &metric, problem->max_group, error);
}

PlanSliceResult *
plan_slice_solve_problem(const PlanSliceProblem *problem, GError **error)
{
    const PlanSliceCosts *costs = &problem->costs;

    g_return_val_if_fail(problem->n_stages >= 1 && problem->max_group >= 0, NULL);
    if (problem->backward == NULL && problem->delay == NULL && problem->limit_bytes == 0)
        return plan_slice_solve(costs, problem->n_stages, problem->max_group, error);
    if (!plan_slice_check_sizes(costs, error))
        return NULL;
    PlanSliceResult *result = plan_slice_solve_rounds(problem, solve_equal_stages, NULL, error);
    if (result == NULL)
        return NULL;
    const PlanSliceTotals totals = plan_slice_totals(problem, result->groups);
    result->latency = totals.latency;
    result->max_slice = totals.max[0];
    result->max_backward = totals.max[1];
    return result;
}
