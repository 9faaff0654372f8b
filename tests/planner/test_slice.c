/* Tests of planner/slices/slice.h: optimal on every grid, ties, limits. */
#include "planner/slices/slice.h"

#include "tests/bench/slice_costs.h"

/* --- a small deterministic generator --- */

static uint32_t
draw(uint32_t *state)
{
    /* Numerical Recipes' constants; the upper bits are the good ones. */
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static int64_t
cell_at(const PlanSliceCosts *costs, int64_t b, int64_t s, int64_t c)
{
    const int64_t side = costs->n_cells + 1;

    return costs->cost[(b * side + s) * side + c];
}

static int64_t *
random_grid(uint32_t *state, int64_t batch, int64_t n)
{
    const int64_t side = n + 1;
    /* Few values make many ties; holes make some groups impossible. */
    const uint32_t n_values = (uint32_t[]){2, 4, 16, 1000000}[draw(state) % 4];
    const uint32_t holes = (uint32_t[]){0, 0, 10, 40}[draw(state) % 4];
    const bool grows = draw(state) % 2 == 0;
    int64_t *cost = g_new(int64_t, (size_t)((batch + 1) * side * side));

    for (int64_t b = 0; b <= batch; b++)
        for (int64_t s = 0; s <= n; s++)
            for (int64_t c = 0; c <= n; c++) {
                int64_t value = (int64_t)(draw(state) % n_values);
                if (grows)
                    value += b * s * (s + 2 * c);
                if (draw(state) % 100 < holes || b == 0 || s == 0 || s + c > n)
                    value = PLAN_SLICE_INFINITE;
                cost[(b * side + s) * side + c] = value;
            }
    return cost;
}

/* --- oracle 1: all groupings and slicings --- */

#define MAX_SLICES 64

/* A whole answer: groups largest first, b then its slices (in cells), each ended by 0. */
typedef struct {
    int64_t sum, longest, n_slices;
    int64_t text[2 * MAX_SLICES];
    size_t n;
} Answer;

typedef struct {
    const PlanSliceCosts *costs;
    int64_t n_stages, max_group, best_latency;
    Answer best;
    bool found;
} Oracle;

/* The documented order: fewest slices, then largest groups and longest first slices. */
static bool
precedes(const Answer *a, const Answer *b)
{
    if (a->n_slices != b->n_slices)
        return a->n_slices < b->n_slices;
    for (size_t i = 0; i < a->n && i < b->n; i++)
        if (a->text[i] != b->text[i])
            return a->text[i] > b->text[i];
    return false;
}

static void
enumerate(Oracle *oracle, Answer so_far, int64_t left, int64_t b, int64_t context)
{
    const int64_t n = oracle->costs->n_cells;

    if (context == n) {
        so_far.text[so_far.n++] = 0;
        left -= b;
        if (left == 0) {
            const int64_t latency = so_far.sum + (oracle->n_stages - 1) * so_far.longest;
            if (!oracle->found || latency < oracle->best_latency ||
                (latency == oracle->best_latency && precedes(&so_far, &oracle->best))) {
                oracle->best = so_far;
                oracle->best_latency = latency;
                oracle->found = true;
            }
            return;
        }
        for (int64_t next = 1; next <= MIN(b, left); next++) {
            Answer more = so_far;
            more.text[more.n++] = next;
            enumerate(oracle, more, left, next, 0);
        }
        return;
    }
    for (int64_t s = 1; s <= n - context; s++) {
        const int64_t cost = cell_at(oracle->costs, b, s, context);
        if (cost == PLAN_SLICE_INFINITE)
            continue;
        Answer more = so_far;
        more.sum += cost;
        more.longest = MAX(more.longest, cost);
        more.n_slices++;
        more.text[more.n++] = s;
        enumerate(oracle, more, left, b, context + s);
    }
}

static Oracle
exhaustive(const PlanSliceCosts *costs, int64_t n_stages, int64_t max_group)
{
    Oracle oracle = {.costs = costs, .n_stages = n_stages, .max_group = max_group};

    for (int64_t b = 1; b <= MIN(costs->batch, max_group == 0 ? costs->batch : max_group); b++)
        enumerate(&oracle, (Answer){.n = 1, .text = {b}}, costs->batch, b, 0);
    return oracle;
}

/* Checks that @result is a slicing and takes what it says; returns it in the oracle's form. */
static Answer
read_result(const PlanSliceCosts *costs, int64_t n_stages, const PlanSliceResult *result)
{
    Answer answer = {0};
    int64_t sequences = 0, last = INT64_MAX;

    for (guint i = 0; i < result->groups->len; i++) {
        const PlanSliceGroup *group = result->groups->pdata[i];
        int64_t context = 0;
        g_assert_cmpint(group->batch, <=, last);
        last = group->batch;
        sequences += group->batch;
        if (answer.n < MAX_SLICES)
            answer.text[answer.n++] = group->batch;
        for (guint k = 0; k < group->slices->len; k++) {
            const int64_t tokens = g_array_index(group->slices, int64_t, k);
            g_assert_cmpint(tokens % costs->granularity, ==, 0);
            const int64_t s = tokens / costs->granularity;
            const int64_t cost = cell_at(costs, group->batch, s, context);
            answer.sum += cost;
            answer.longest = MAX(answer.longest, cost);
            answer.n_slices++;
            context += s;
            if (answer.n < MAX_SLICES)
                answer.text[answer.n++] = s;
        }
        if (answer.n < MAX_SLICES)
            answer.text[answer.n++] = 0;
        g_assert_cmpint(context, ==, costs->n_cells);
    }
    g_assert_cmpint(sequences, ==, costs->batch);
    g_assert_cmpint(answer.longest, ==, result->max_slice);
    g_assert_cmpint(answer.sum + (n_stages - 1) * answer.longest, ==, result->latency);
    return answer;
}

static void
test_equals_exhaustive_search_and_its_ties(void)
{
    static const int64_t stages[] = {1, 2, 3, 8, 96, 100000};
    uint32_t state = 1;
    int n_feasible = 0;

    for (int round = 0; round < 3000; round++) {
        const int64_t batch = 1 + draw(&state) % 3;
        const int64_t n = 1 + draw(&state) % (batch == 3 ? 4 : 6);
        const int64_t k = stages[draw(&state) % G_N_ELEMENTS(stages)];
        const int64_t max_group = draw(&state) % 3 == 0 ? 1 + draw(&state) % 3 : 0;
        g_autofree int64_t *cost = random_grid(&state, batch, n);
        const PlanSliceCosts costs = {batch, n, 8, cost};
        const Oracle oracle = exhaustive(&costs, k, max_group);
        g_autoptr(GError) error = NULL;
        g_autoptr(PlanSliceResult) result = plan_slice_solve(&costs, k, max_group, &error);
        if (!oracle.found) {
            g_assert_error(error, PLAN_SLICE_ERROR, PLAN_SLICE_ERROR_INFEASIBLE);
            continue;
        }
        n_feasible++;
        g_assert_no_error(error);
        g_assert_cmpint(result->latency, ==, oracle.best_latency);
        const Answer answer = read_result(&costs, k, result);
        g_assert_cmpuint(answer.n, ==, oracle.best.n);
        for (size_t i = 0; i < answer.n; i++)
            g_assert_cmpint(answer.text[i], ==, oracle.best.text[i]);
    }
    g_assert_cmpint(n_feasible, >, 1000);
}

/* --- oracle 2: one plain dynamic program for every cost of the grid as the cap --- */

/* The least sum at @cap, INT64_MAX / 4 if there is none. */
static int64_t
plain_sum(const PlanSliceCosts *costs, int64_t cap, int64_t *longest)
{
    const int64_t n = costs->n_cells, never = INT64_MAX / 4;
    int64_t group[64], cover[64], group_longest[64], cover_longest[64];

    for (int64_t b = 1; b <= costs->batch; b++) {
        int64_t sum[512] = {0}, most[512] = {0};
        for (int64_t i = 1; i <= n; i++) {
            sum[i] = never;
            for (int64_t s = 1; s <= i; s++) {
                const int64_t cost = cell_at(costs, b, s, i - s);
                if (cost <= cap && sum[i - s] + cost < sum[i]) {
                    sum[i] = sum[i - s] + cost;
                    most[i] = MAX(most[i - s], cost);
                }
            }
        }
        group[b] = sum[n];
        group_longest[b] = most[n];
    }
    cover[0] = cover_longest[0] = 0;
    for (int64_t x = 1; x <= costs->batch; x++) {
        cover[x] = never;
        for (int64_t b = 1; b <= x; b++)
            if (group[b] + cover[x - b] < cover[x]) {
                cover[x] = group[b] + cover[x - b];
                cover_longest[x] = MAX(group_longest[b], cover_longest[x - b]);
            }
    }
    *longest = cover_longest[costs->batch];
    return cover[costs->batch];
}

static void
test_equals_all_caps_on_random_grids(void)
{
    static const int64_t stages[] = {2, 3, 12, 48, 1000};
    uint32_t state = 7;

    for (int round = 0; round < 120; round++) {
        /* Longer than a vector of cells, so that rows are cut on both sides. */
        const int64_t batch = 1 + draw(&state) % 2, n = 5 + draw(&state) % 44;
        const int64_t k = stages[draw(&state) % G_N_ELEMENTS(stages)];
        g_autofree int64_t *cost = random_grid(&state, batch, n);
        const PlanSliceCosts costs = {batch, n, 1, cost};
        int64_t best = INT64_MAX / 4;
        for (int64_t b = 1; b <= batch; b++)
            for (int64_t s = 1; s <= n; s++)
                for (int64_t c = 0; c + s <= n; c++) {
                    const int64_t cap = cell_at(&costs, b, s, c);
                    int64_t longest;
                    if (cap == PLAN_SLICE_INFINITE)
                        continue;
                    const int64_t sum = plain_sum(&costs, cap, &longest);
                    if (sum < INT64_MAX / 4)
                        best = MIN(best, sum + (k - 1) * longest);
                }
        g_autoptr(GError) error = NULL;
        g_autoptr(PlanSliceResult) result = plan_slice_solve(&costs, k, 0, &error);
        if (best == INT64_MAX / 4) {
            g_assert_error(error, PLAN_SLICE_ERROR, PLAN_SLICE_ERROR_INFEASIBLE);
            continue;
        }
        g_assert_no_error(error);
        read_result(&costs, k, result);
        g_assert_cmpint(result->latency, ==, best);
    }
}

/* --- known optima --- */

static void
test_reaches_known_optima(void)
{
    /* Proven by another program, a dynamic program at every distinct cost. */
    static const struct {
        SliceCase grid;
        int64_t optimum;
    } cases[] = {
        {{"slow", 2, 2048, 8, 48, 2000000000, 45000000, 610, 256, 0, 0}, 868410403840},
        {{"tiled", 8, 2048, 8, 48, 2000000000, 45000000, 610, 256, 128, 0}, 1525045980160},
        {{"fast", 2, 2048, 8, 96, 60000000, 500000, 20, 128, 0, 0}, 16293210880},
        {{"floor", 8, 2048, 8, 48, 2000000000, 6000000, 80, 3072, 0, 0}, 1098037437440},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const SliceCase *k = &cases[i].grid;
        g_autofree int64_t *cost = slice_case_grid(k);
        const PlanSliceCosts costs = {k->batch, k->seq_len / k->granularity, k->granularity, cost};
        g_autoptr(GError) error = NULL;
        g_autoptr(PlanSliceResult) result = plan_slice_solve(&costs, k->n_stages, 0, &error);
        g_assert_no_error(error);
        read_result(&costs, k->n_stages, result);
        g_assert_cmpint(result->latency, ==, cases[i].optimum);
    }
}

/* --- TeraPipe's solver: caps at fixed gaps of 10 us from the longest down --- */

static int64_t
stepping(const PlanSliceCosts *costs, int64_t n_stages, int64_t gap)
{
    int64_t best = INT64_MAX, cap = 0, longest;

    for (int64_t b = 1; b <= costs->batch; b++)
        for (int64_t s = 1; s <= costs->n_cells; s++)
            cap = MAX(cap, cell_at(costs, b, s, 0));
    while (cap > 0) {
        const int64_t sum = plain_sum(costs, cap, &longest);
        /* With the cap in the place of the maximum a larger cap is never better from here on. */
        if (sum >= INT64_MAX / 4)
            break;
        best = MIN(best, sum + (n_stages - 1) * longest);
        cap = MIN(cap - gap, longest - gap);
    }
    return best;
}

static void
test_is_never_worse_than_stepping_caps(void)
{
    static const SliceCase cases[] = {
        {"slow", 2, 512, 8, 24, 2000000000, 45000000, 610, 64, 0, 0},
        {"fast", 2, 512, 8, 96, 60000000, 500000, 20, 128, 0, 0},
        {"fast, tiled", 3, 384, 8, 48, 20000000, 300000, 20, 32, 64, 0},
        {"fast, noisy", 2, 512, 8, 48, 60000000, 500000, 20, 32, 0, 40000000},
        {"fast, floor", 4, 256, 8, 48, 60000000, 500000, 20, 512, 0, 0},
    };
    bool better = false;

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const SliceCase *k = &cases[i];
        g_autofree int64_t *cost = slice_case_grid(k);
        const PlanSliceCosts costs = {k->batch, k->seq_len / k->granularity, k->granularity, cost};
        g_autoptr(PlanSliceResult) result = plan_slice_solve(&costs, k->n_stages, 0, NULL);
        const int64_t stepped = stepping(&costs, k->n_stages, 10000000); /* 10 us */
        read_result(&costs, k->n_stages, result);
        g_assert_cmpint(result->latency, <=, stepped);
        better = better || result->latency < stepped;
    }
    g_assert_true(better); /* else the cases show nothing */
}

/* --- limits --- */

static void
test_one_stage_takes_the_least_sum(void)
{
    /* 3 cells; one slice of all costs 5, three of one 2 each. */
    int64_t cost[2 * 4 * 4];
    for (size_t i = 0; i < G_N_ELEMENTS(cost); i++)
        cost[i] = 5;
    for (int c = 0; c < 3; c++)
        cost[(4 + 1) * 4 + c] = 2;
    const PlanSliceCosts costs = {1, 3, 16, cost};
    g_autoptr(PlanSliceResult) one = plan_slice_solve(&costs, 1, 0, NULL);
    g_autoptr(PlanSliceResult) three = plan_slice_solve(&costs, 3, 0, NULL);

    g_assert_cmpint(one->latency, ==, 5);
    g_assert_cmpint(((PlanSliceGroup *)one->groups->pdata[0])->slices->len, ==, 1);
    g_assert_cmpint(three->latency, ==, 2 + 2 + 2 + 2 * 2);
    g_assert_cmpint(((PlanSliceGroup *)three->groups->pdata[0])->slices->len, ==, 3);
}

static void
test_latency_beyond_the_limit_is_an_error(void)
{
    int64_t cost[2 * 2 * 2] = {0};
    const PlanSliceCosts costs = {1, 1, 1, cost};
    g_autoptr(GError) error = NULL;
    g_autoptr(PlanSliceResult) result = NULL;

    cost[(2 + 1) * 2] = INT64_C(1) << 55;
    result = plan_slice_solve(&costs, 96, 0, &error);
    g_assert_null(result);
    g_assert_error(error, PLAN_SLICE_ERROR, PLAN_SLICE_ERROR_LIMIT);
    g_clear_error(&error);
    cost[(2 + 1) * 2] = INT64_MAX - 1;
    g_assert_null(plan_slice_solve(&costs, 1, 0, &error));
    g_assert_error(error, PLAN_SLICE_ERROR, PLAN_SLICE_ERROR_LIMIT);
    g_clear_error(&error);
    cost[(2 + 1) * 2] = 1;
    g_assert_null(plan_slice_solve(&costs, INT64_MAX, 0, &error));
    g_assert_error(error, PLAN_SLICE_ERROR, PLAN_SLICE_ERROR_LIMIT);
    cost[(2 + 1) * 2] = INT64_C(1) << 55;
    result = plan_slice_solve(&costs, 31, 0, NULL);
    g_assert_cmpint(result->latency, ==, 31 * (INT64_C(1) << 55));
}

static void
test_sizes_that_overflow_are_an_error(void)
{
    int64_t cost[8] = {0};
    const PlanSliceCosts costs = {INT64_C(1) << 30, INT64_C(1) << 30, 1, cost};
    g_autoptr(GError) error = NULL;

    g_assert_null(plan_slice_solve(&costs, 2, 0, &error));
    g_assert_error(error, PLAN_SLICE_ERROR, PLAN_SLICE_ERROR_LIMIT);
}

static void
test_no_group_is_larger_than_allowed(void)
{
    /* A group costs the same whatever its size: without a limit one group of all is best. */
    int64_t cost[6 * 3 * 3];
    for (size_t i = 0; i < G_N_ELEMENTS(cost); i++)
        cost[i] = 10;
    const PlanSliceCosts costs = {5, 2, 1, cost};
    g_autoptr(PlanSliceResult) free_choice = plan_slice_solve(&costs, 4, 0, NULL);
    g_autoptr(PlanSliceResult) limited = plan_slice_solve(&costs, 4, 2, NULL);

    g_assert_cmpint(free_choice->groups->len, ==, 1);
    g_assert_cmpint(limited->latency, ==, 3 * 10 + 3 * 10);
    g_assert_cmpint(((PlanSliceGroup *)limited->groups->pdata[0])->batch, ==, 2);
    g_assert_cmpint(((PlanSliceGroup *)limited->groups->pdata[2])->batch, ==, 1);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/planner/slice/equals-exhaustive-search-and-its-ties",
                    test_equals_exhaustive_search_and_its_ties);
    g_test_add_func("/planner/slice/equals-all-caps-on-random-grids",
                    test_equals_all_caps_on_random_grids);
    g_test_add_func("/planner/slice/reaches-known-optima", test_reaches_known_optima);
    g_test_add_func("/planner/slice/is-never-worse-than-stepping-caps",
                    test_is_never_worse_than_stepping_caps);
    g_test_add_func("/planner/slice/one-stage-takes-the-least-sum",
                    test_one_stage_takes_the_least_sum);
    g_test_add_func("/planner/slice/latency-beyond-the-limit-is-an-error",
                    test_latency_beyond_the_limit_is_an_error);
    g_test_add_func("/planner/slice/sizes-that-overflow-are-an-error",
                    test_sizes_that_overflow_are_an_error);
    g_test_add_func("/planner/slice/no-group-is-larger-than-allowed",
                    test_no_group_is_larger_than_allowed);
    return g_test_run();
}
