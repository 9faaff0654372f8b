/*
 * Tests of planner/slices/problem.h and stages.h: against all answers, each timed by walking
 * the pipeline; and against the simulator.
 */
#include "tests/planner/slice_case.h"

#define MAX_JOBS 64

/* Walks the jobs through the pipeline; INT64_MAX if one is impossible. */
static int64_t
pass_time(const Case *k, int r, const Job *jobs, int n_jobs)
{
    const int64_t n = k->problem.n_stages, side = k->problem.costs.n_cells + 1;
    int64_t end[MAX_STAGES] = {0};

    for (int j = 0; j < n_jobs; j++)
        for (int64_t i = 0; i < n; i++) {
            const int64_t stage = r == 0 ? i : n - 1 - i;
            const int64_t t = job_time(k, stage, r, jobs[j]);
            const int64_t d =
                k->delay == NULL ? 0 : k->delay[jobs[j].batch * side + jobs[j].tokens];
            const int64_t before = i == 0 ? 0 : end[r == 0 ? stage - 1 : stage + 1] + d;
            if (t == INT64_MAX)
                return INT64_MAX;
            end[stage] = MAX(end[stage], before) + t;
        }
    return end[r == 0 ? n - 1 : 0];
}

static int64_t
round_time(const Case *k, const Job *jobs, int n_jobs)
{
    Job back[MAX_JOBS];
    const int64_t forward = pass_time(k, 0, jobs, n_jobs);

    if (k->stages[0].backward == NULL || forward == INT64_MAX)
        return forward;
    for (int first = 0, end; first < n_jobs; first = end) {
        for (end = first + 1; end < n_jobs && jobs[end].context > 0;)
            end++;
        for (int j = first; j < end; j++)
            back[first + end - 1 - j] = jobs[j];
    }
    const int64_t backward = pass_time(k, 1, back, n_jobs);
    return backward == INT64_MAX ? backward : forward + backward;
}

/* All ways to go on with @left sequences behind the last job's group. */
static void
try_all(const Case *k, Job *jobs, int n_jobs, int64_t left, int64_t largest, Best *best)
{
    const int64_t n = k->problem.costs.n_cells;
    const int64_t context = n_jobs == 0 ? n : jobs[n_jobs - 1].context + jobs[n_jobs - 1].tokens;

    if (context == n && left == 0) {
        const int64_t time = round_time(k, jobs, n_jobs);
        if (time < best->latency || (time == best->latency && n_jobs < best->n_slices))
            *best = (Best){time, n_jobs};
        return;
    }
    const int64_t first = context == n ? 1 : jobs[n_jobs - 1].batch;
    const int64_t last = context == n ? left : first;
    for (int64_t b = first; b <= last; b++)
        for (int64_t s = 1; s <= n - context % n; s++) {
            if ((k->problem.max_group > 0 && b > k->problem.max_group) || b * s * 8 > largest)
                continue;
            jobs[n_jobs] = (Job){b, s, context % n};
            try_all(k, jobs, n_jobs + 1, context == n ? left - b : left, largest, best);
        }
}

/* The best way to make @x sequences of rounds. */
static Best
all_rounds(const Case *k, int64_t x, const Best *rounds)
{
    Best best = {INT64_MAX, 0};

    if (x == 0)
        return (Best){0, 0};
    for (int64_t r = 1; r <= x; r++) {
        const Best rest = all_rounds(k, x - r, rounds);
        if (rounds[r].latency == INT64_MAX || rest.latency == INT64_MAX)
            continue;
        const Best sum = {rounds[r].latency + rest.latency, rounds[r].n_slices + rest.n_slices};
        if (sum.latency < best.latency ||
            (sum.latency == best.latency && sum.n_slices < best.n_slices))
            best = sum;
    }
    return best;
}

static Best
exhaustive(const Case *k)
{
    const PlanSliceProblem *p = &k->problem;
    Best rounds[8];
    Job jobs[MAX_JOBS];

    for (int64_t r = 1; r <= p->costs.batch; r++) {
        const int64_t left = p->limit_bytes - r * p->costs.n_cells * 8 * p->token_bytes;
        const int64_t largest = p->limit_bytes == 0 || (left >= 0 && p->workspace_token_bytes == 0)
                                    ? INT64_MAX
                                : left < 0 ? 0
                                           : left / p->workspace_token_bytes;
        rounds[r] = (Best){INT64_MAX, 0};
        try_all(k, jobs, 0, r, largest, &rounds[r]);
    }
    return all_rounds(k, p->costs.batch, rounds);
}

/* --- what an answer says of itself --- */

static void
equals_all_answers(bool differ, int n_cases, int64_t max_batch, int64_t max_cells)
{
    uint32_t state = differ ? 99 : 5;
    int n_feasible = 0, n_rounds = 0, n_apart = 0, n_single = 0;

    for (int i = 0; i < n_cases; i++) {
        g_auto(Case) k;
        draw_case(&state, &k, differ, max_batch, max_cells);
        const Best best = exhaustive(&k);
        g_autoptr(GError) error = NULL;
        g_autoptr(PlanSliceResult) result =
            differ ? plan_slice_solve_stages(&k.problem, k.stages, &error)
                   : plan_slice_solve_problem(&k.problem, &error);
        if (best.latency == INT64_MAX) {
            g_assert_error(error, PLAN_SLICE_ERROR, PLAN_SLICE_ERROR_INFEASIBLE);
            continue;
        }
        g_assert_no_error(error);
        g_assert_cmpint(result->latency, ==, best.latency);
        g_assert_cmpint(result->lower_bound, ==, best.latency);
        g_assert_cmpint(check_answer(&k, result), ==, best.n_slices);
        n_feasible++;
        n_rounds += result->n_rounds > 1;
        n_apart += k.stages[0].backward != NULL;
        n_single += result->n_rounds == 1 && k.problem.limit_bytes > 0;
    }
    g_assert_cmpint(n_feasible, >, n_cases / 3);
    g_assert_cmpint(n_rounds, >, n_cases / 20);
    g_assert_cmpint(n_single, >, n_cases / 20);
    g_assert_cmpint(n_apart, >, n_cases / 5);
}

static void
test_equals_all_answers(void)
{
    equals_all_answers(false, 1500, 3, 5);
}

static void
test_stages_that_differ_equal_all_answers(void)
{
    equals_all_answers(true, 400, 3, 4);
}

static void
test_the_simulator_says_the_same(void)
{
    uint32_t state = 17;
    int n_simulated = 0, n_groups = 0;

    for (int i = 0; i < 400; i++) {
        g_auto(Case) k;
        const bool differ = i % 2 == 0;
        draw_case(&state, &k, differ, 4, 5);
        k.problem.limit_bytes = 0;
        if (k.stages[0].backward == NULL)
            continue;
        g_autoptr(PlanSliceResult) result =
            differ ? plan_slice_solve_stages(&k.problem, k.stages, NULL)
                   : plan_slice_solve_problem(&k.problem, NULL);
        if (result == NULL || !is_common(result->groups))
            continue;
        g_assert_cmpint(simulate(&k, "terapipe", 1, result->groups), ==, result->latency);
        n_simulated++;
        n_groups += result->groups->len > 1;
    }
    g_assert_cmpint(n_simulated, >, 100);
    g_assert_cmpint(n_groups, >, 20);
}

/* --- larger grids: TeraPipe's stepping caps, and bounds --- */

#define MAX_CELLS 64

/* (owned, nullable) the least sum of both directions at stage 0 with no slice above @cap. */
static GPtrArray *
plain_answer(const Case *k, int64_t cap, int64_t *longest)
{
    const int64_t n = k->problem.costs.n_cells, batch = k->problem.costs.batch, side = n + 1;
    int64_t sum[4][MAX_CELLS + 1], last[4][MAX_CELLS + 1], cover[4] = {0}, group[4] = {0};
    GPtrArray *groups = NULL;

    for (int64_t b = 1; b <= batch; b++) {
        sum[b][0] = 0;
        for (int64_t i = 1; i <= n; i++) {
            sum[b][i] = INT64_MAX / 4;
            for (int64_t s = 1; s <= i; s++) {
                const int64_t at = (b * side + s) * side + i - s;
                const int64_t t = k->stages[0].forward[at] + k->stages[0].backward[at];
                if (t <= cap && sum[b][i - s] + t < sum[b][i]) {
                    sum[b][i] = sum[b][i - s] + t;
                    last[b][i] = s;
                }
            }
        }
        cover[b] = INT64_MAX / 4;
        for (int64_t x = 1; x <= b; x++)
            if (sum[x][n] + cover[b - x] < cover[b]) {
                cover[b] = sum[x][n] + cover[b - x];
                group[b] = x;
            }
    }
    if (cover[batch] >= INT64_MAX / 4)
        return NULL;
    groups = g_ptr_array_new();
    *longest = 0;
    for (int64_t x = batch; x > 0; x -= group[x]) {
        PlanSliceGroup *one = g_new0(PlanSliceGroup, 1);
        *one = (PlanSliceGroup){group[x], 0, g_array_new(FALSE, FALSE, sizeof(int64_t))};
        for (int64_t i = n; i > 0; i -= last[group[x]][i]) {
            const int64_t s = last[group[x]][i], tokens = 8 * s;
            const int64_t at = (group[x] * side + s) * side + i - s;
            *longest = MAX(*longest, k->stages[0].forward[at] + k->stages[0].backward[at]);
            g_array_prepend_val(one->slices, tokens);
        }
        g_ptr_array_add(groups, one);
    }
    return groups;
}

static void
test_is_never_worse_than_stepping_caps(void)
{
    bool better = false;

    for (size_t i = 0; i < 2 * G_N_ELEMENTS(large); i++) {
        g_auto(Case) k;
        const bool differ = i % 2 == 1;
        large_case(&k, &large[i / 2], MAX_STAGES, differ ? 1.25 : 1.0);
        g_autoptr(PlanSliceResult) result =
            differ ? plan_slice_solve_stages(&k.problem, k.stages, NULL)
                   : plan_slice_solve_problem(&k.problem, NULL);
        int64_t stepped = INT64_MAX, longest;
        for (int64_t cap = INT64_MAX / 4; cap > 0; cap = longest - 10000000) { /* 10 us */
            GPtrArray *groups = plain_answer(&k, cap, &longest);
            if (groups == NULL)
                break;
            stepped = MIN(stepped, plan_slice_stages_time(&k.problem, k.stages, groups));
            free_groups(groups);
        }
        g_assert_cmpint(result->latency, ==,
                        plan_slice_stages_time(&k.problem, k.stages, result->groups));
        g_assert_cmpint(result->latency, <=, stepped);
        g_assert_cmpint(result->lower_bound, <=, result->latency);
        if (!differ) /* proven */
            g_assert_cmpint(result->lower_bound, ==, result->latency);
        better = better || result->latency < stepped;
    }
    g_assert_true(better); /* else the cases show nothing */
}

static void
test_bounds_are_below_every_answer(void)
{
    uint32_t state = 3;

    for (size_t i = 0; i < G_N_ELEMENTS(large); i++) {
        g_auto(Case) k;
        large_case(&k, &large[i], 2 + draw(&state) % 4, 0.75 + 0.25 * (double)(i % 3));
        g_autoptr(PlanSliceResult) result = plan_slice_solve_stages(&k.problem, k.stages, NULL);
        /* The ends are slower or faster by a quarter: little is left open. */
        g_assert_cmpfloat((double)result->lower_bound, >, 0.8 * (double)result->latency);
        for (int n = 0; n < 300; n++) {
            GPtrArray *groups = random_groups(&state, &k, false);
            const int64_t time = plan_slice_stages_time(&k.problem, k.stages, groups);
            g_assert_cmpint(result->lower_bound, <=, time);
            g_assert_cmpint(result->latency, <=, time);
            free_groups(groups);
        }
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/planner/slice-problem/equals-all-answers", test_equals_all_answers);
    g_test_add_func("/planner/slice-problem/stages-that-differ-equal-all-answers",
                    test_stages_that_differ_equal_all_answers);
    g_test_add_func("/planner/slice-problem/the-simulator-says-the-same",
                    test_the_simulator_says_the_same);
    g_test_add_func("/planner/slice-problem/is-never-worse-than-stepping-caps",
                    test_is_never_worse_than_stepping_caps);
    g_test_add_func("/planner/slice-problem/bounds-are-below-every-answer",
                    test_bounds_are_below_every_answer);
    return g_test_run();
}
