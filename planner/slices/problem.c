#include "planner/slices/problem.h"

#include "base/units.h"

/* --- memory --- */

/* Returns: how many tokens, of all its sequences together, the largest slice of a round of
 * @sequences may have; < 0: the round does not fit. */
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

/* The sequences of the largest round that fits; 0: none does. */
static int64_t
round_limit(const PlanSliceProblem *problem)
{
    const int64_t batch = problem->costs.batch;
    int64_t n = 0;

    while (n < batch && slice_tokens(problem, n + 1) >= problem->costs.granularity)
        n++;
    return n;
}

/* Returns: (owned) the delays, infinite for slices of more than @most tokens. */
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

/* The best division of x sequences into rounds. */
typedef struct {
    int64_t latency, n_slices; /* latency NEVER: there is none */
    int64_t round;             /* sequences of the round that comes first, the largest */
    int64_t lower_bound;       /* of every division */
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

/* Fills @splits [x], for x sequences, from the answers of @rounds [1 .. n_rounds] (nullable
 * entries). */
static void
split_batch(const PlanSliceProblem *problem, PlanSliceResult *const *rounds, int64_t n_rounds,
            RoundSplit *splits)
{
    splits[0] = (RoundSplit){0};
    for (int64_t x = 1; x <= problem->costs.batch; x++) {
        splits[x] = (RoundSplit){.latency = PLAN_SLICE_NEVER, .lower_bound = PLAN_SLICE_NEVER};
        for (int64_t r = 1; r <= MIN(x, n_rounds); r++) {
            const RoundSplit *rest = &splits[x - r];
            if (rounds[r] == NULL || rest->latency >= PLAN_SLICE_NEVER)
                continue;
            RoundSplit split = {
                rounds[r]->latency + rest->latency, plan_slice_count(rounds[r]) + rest->n_slices, r,
                MIN(splits[x].lower_bound, rounds[r]->lower_bound + rest->lower_bound)};
            splits[x].lower_bound = split.lower_bound;
            if (split.latency <= PLAN_SLICE_MAX_SUM && is_better(&split, &splits[x]))
                splits[x] = split;
        }
    }
}

/* Returns: (owned) the answer that @splits says, its groups copied from @rounds. */
static PlanSliceResult *
join(const PlanSliceProblem *problem, PlanSliceResult *const *rounds, int64_t n_rounds,
     const RoundSplit *splits)
{
    PlanSliceResult *result = g_new0(PlanSliceResult, 1);

    result->groups = g_ptr_array_new_with_free_func(plan_slice_group_free);
    result->lower_bound = splits[problem->costs.batch].lower_bound;
    for (int64_t x = problem->costs.batch; x > 0; x -= splits[x].round, result->n_rounds++) {
        GPtrArray *groups = plan_slice_groups_copy(rounds[splits[x].round]->groups);
        for (guint i = 0; i < groups->len; i++)
            ((PlanSliceGroup *)groups->pdata[i])->round = result->n_rounds;
        g_ptr_array_extend_and_steal(result->groups, groups);
    }
    for (int64_t r = 1; r <= n_rounds; r++)
        result->n_solves += rounds[r] == NULL ? 0 : rounds[r]->n_solves;
    return result;
}

/* Adds the best answer of one round of @sequences to @rounds; NULL: there is none. */
static bool
solve_one(const PlanSliceProblem *problem, int64_t sequences, PlanSliceRoundFunc solve,
          void *user_data, GPtrArray *rounds, GError **error)
{
    const int64_t most = slice_tokens(problem, sequences);
    g_autofree int64_t *delay = most == INT64_MAX ? NULL : limit_delays(problem, most);
    PlanSliceProblem one = *problem;
    PlanSliceResult *result;

    one.costs.batch = sequences;
    one.limit_bytes = 0;
    if (delay != NULL)
        one.delay = delay;
    if (!solve(&one, user_data, &result, error))
        return false;
    g_ptr_array_add(rounds, result);
    return true;
}

PlanSliceResult *
plan_slice_solve_rounds(const PlanSliceProblem *problem, PlanSliceRoundFunc solve, void *user_data,
                        GError **error)
{
    const int64_t batch = problem->costs.batch;
    const int64_t n_rounds = round_limit(problem);
    g_autoptr(GPtrArray) rounds =
        g_ptr_array_new_with_free_func((GDestroyNotify)plan_slice_result_free);
    g_autofree RoundSplit *splits = g_new(RoundSplit, (size_t)batch + 1);
    /* All in one round is never worse than in several where only the whole counts. */
    const int64_t first = n_rounds == batch && problem->workspace_token_bytes == 0 ? batch : 1;

    if (n_rounds == 0)
        return plan_slice_refuse_null(
            error, INFEASIBLE, "one sequence of " INT " tokens does not fit in " INT " bytes",
            problem->costs.n_cells * problem->costs.granularity, problem->limit_bytes);
    g_ptr_array_set_size(rounds, (gint)first);
    for (int64_t r = first; r <= n_rounds; r++)
        if (!solve_one(problem, r, solve, user_data, rounds, error))
            return NULL;
    PlanSliceResult *const *all = (PlanSliceResult *const *)rounds->pdata;
    split_batch(problem, all, n_rounds, splits);
    if (splits[batch].latency >= PLAN_SLICE_NEVER)
        return plan_slice_refuse_null(error, INFEASIBLE,
                                      "no slicing of " INT " sequences of " INT
                                      " tokens has finite costs, takes less than " INT " units%s",
                                      batch, problem->costs.n_cells * problem->costs.granularity,
                                      PLAN_SLICE_MAX_SUM,
                                      problem->limit_bytes > 0 ? " and fits in memory" : "");
    return join(problem, all, n_rounds, splits);
}

/* --- equal stages --- */

/* PlanSliceRoundFunc. */
static bool
solve_equal_stages(const PlanSliceProblem *problem, void *user_data, PlanSliceResult **result,
                   GError **error)
{
    const int64_t others = problem->n_stages - 1;
    const PlanSliceMetric metric = {
        .cost = {problem->costs.cost, problem->backward},
        .key = {problem->costs.cost, problem->backward},
        .delay = problem->delay,
        .weight = {others, others},
        .high = {PLAN_SLICE_MAX_SUM, PLAN_SLICE_MAX_SUM},
    };

    return plan_slice_solve_apart(&problem->costs, &metric, problem->max_group, result, error);
}

/* Sets the latency and longest slices of @result, round by round, by the formulas of problem.h. */
static void
set_totals(const PlanSliceProblem *problem, PlanSliceResult *result)
{
    const int64_t *const times[2] = {problem->costs.cost, problem->backward};
    int64_t longest[2] = {0, 0}, max[2] = {0, 0}, sum = 0, waits = 0, round = 0;

    for (guint i = 0; i < result->groups->len; i++) {
        const PlanSliceGroup *group = result->groups->pdata[i];
        if (group->round != round) {
            waits += longest[0] + longest[1];
            longest[0] = longest[1] = 0;
            round = group->round;
        }
        for (PlanSliceStep step = {0}; plan_slice_next(&problem->costs, group, &step);)
            for (int r = 0; r < 2 && times[r] != NULL; r++) {
                const int64_t t = times[r][step.at];
                sum += t;
                max[r] = MAX(max[r], t);
                longest[r] = MAX(longest[r], t + plan_slice_delay(problem, step.row));
            }
    }
    result->latency = sum + (problem->n_stages - 1) * (waits + longest[0] + longest[1]);
    result->max_slice = max[0];
    result->max_backward = max[1];
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
    set_totals(problem, result);
    return result;
}
