#include "planner/slices/grid.h"

#include <string.h>

#include "base/units.h"

/* Values of one vector; rows are padded to it. */
#define LANES 8

/* Unaligned, and allowed to look at plain arrays. */
typedef int64_t Lanes __attribute__((vector_size(8 * LANES), aligned(8), may_alias));

/* One copy of the inner loops per instruction set, chosen when the program starts.  Not under
 * sanitizers: their run time is not there yet when the choice is made. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) &&       \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define VECTOR_CODE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define VECTOR_CODE
#endif

static inline int64_t
padded(int64_t n)
{
    return (n + LANES - 1) / LANES * LANES;
}

/* --- inner loops: @n is a whole number of vectors --- */

/* min of cells[i] + rest[i] over the cells of a key of at most @cap. */
VECTOR_CODE static int64_t
least_sum(const int64_t *cells, const int64_t *keys, const int64_t *rest, int64_t n, int64_t cap)
{
    const Lanes caps = (Lanes){0} + cap;
    const Lanes never = (Lanes){0} + PLAN_SLICE_NEVER;
    Lanes least = never;

    for (int64_t i = 0; i < n; i += LANES) {
        const Lanes cost = *(const Lanes *)(cells + i);
        const Lanes sum = cost + *(const Lanes *)(rest + i);
        const Lanes lower = (*(const Lanes *)(keys + i) <= caps) & (sum < least);
        least = (sum & lower) | (least & ~lower);
    }
    int64_t result = PLAN_SLICE_NEVER;
    for (int i = 0; i < LANES; i++)
        result = MIN(result, least[i]);
    return result;
}

/* reach[i] = min(reach[i], start + cells[i]) over the cells of a key of at most @cap. */
VECTOR_CODE static void
lower_sums(const int64_t *cells, const int64_t *keys, int64_t *reach, int64_t n, int64_t start,
           int64_t cap)
{
    const Lanes caps = (Lanes){0} + cap;
    const Lanes starts = (Lanes){0} + start;

    for (int64_t i = 0; i < n; i += LANES) {
        const Lanes cost = *(const Lanes *)(cells + i);
        const Lanes old = *(const Lanes *)(reach + i);
        const Lanes sum = cost + starts;
        const Lanes lower = (*(const Lanes *)(keys + i) <= caps) & (sum < old);
        *(Lanes *)(reach + i) = (sum & lower) | (old & ~lower);
    }
}

/* last[i] = value where cells[i] <= cap. */
VECTOR_CODE static void
note_lengths(const int64_t *cells, int64_t *last, int64_t n, int64_t value, int64_t cap)
{
    const Lanes caps = (Lanes){0} + cap;
    const Lanes values = (Lanes){0} + value;
    int64_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        const Lanes fits = *(const Lanes *)(cells + i) <= caps;
        const Lanes old = *(const Lanes *)(last + i);
        *(Lanes *)(last + i) = (values & fits) | (old & ~fits);
    }
    for (; i < n; i++)
        if (cells[i] <= cap)
            last[i] = value;
}

VECTOR_CODE int64_t
plan_slice_grid_find(const int64_t *cells, int64_t from, int64_t n, int64_t low, int64_t high)
{
    const Lanes lows = (Lanes){0} + low, highs = (Lanes){0} + high;
    int64_t i = from;

    for (; i < n && i % LANES != 0; i++)
        if (cells[i] > low && cells[i] <= high)
            return i;
    for (; i + LANES <= n; i += LANES) {
        const Lanes cost = *(const Lanes *)(cells + i);
        const Lanes inside = (cost > lows) & (cost <= highs);
        int64_t any = 0;
        for (int k = 0; k < LANES; k++)
            any |= inside[k];
        if (any != 0)
            break;
    }
    for (; i < n; i++)
        if (cells[i] > low && cells[i] <= high)
            return i;
    return n;
}

/* --- the copy --- */

/* Returns: NULL. */
static PlanSliceGrid *
fail_limit(const PlanSliceCosts *costs, GError **error)
{
    return plan_slice_refuse_null(error, LIMIT,
                                  "no memory to slice " INT " sequences of " INT
                                  " cells: use a coarser granularity",
                                  costs->batch, costs->n_cells);
}

bool
plan_slice_metric_cell(const PlanSliceMetric *metric, int64_t at, int64_t side, int64_t b,
                       int64_t s, int64_t *cost, int64_t *key)
{
    const int64_t delay = metric->delay == NULL ? 0 : metric->delay[b * side + s];

    *cost = *key = 0;
    for (int r = 0; r < 2; r++) {
        if (metric->cost[r] != NULL &&
            (metric->cost[r][at] > PLAN_SLICE_MAX_SUM || delay > PLAN_SLICE_MAX_SUM ||
             (*cost += metric->cost[r][at]) > PLAN_SLICE_MAX_SUM))
            return false;
        if (metric->key[r] == NULL)
            continue;
        int64_t one = metric->key[r][at];
        if (one > PLAN_SLICE_MAX_SUM || (one += delay) > metric->high[r])
            return false;
        if (__builtin_mul_overflow(MAX(one, metric->low[r]), metric->weight[r], &one) ||
            __builtin_add_overflow(*key, one, key) || *key > PLAN_SLICE_MAX_SUM)
            return false;
    }
    return true;
}

/* The costs and keys of one group: [s][c]. */
typedef struct {
    const int64_t *cost, *key; /* (borrowed) */
    int64_t *own;              /* (owned, nullable) where a metric makes them */
} Plane;

static void
plane_clear(Plane *plane)
{
    g_free(plane->own);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Plane, plane_clear)

static void
plane_set(Plane *plane, const PlanSliceCosts *costs, const PlanSliceMetric *metric, int64_t b)
{
    const int64_t n = costs->n_cells, side = n + 1, first = b * side * side;

    if (metric == NULL) {
        plane->cost = plane->key = costs->cost + first;
        return;
    }
    int64_t *cost = plane->own, *key = plane->own + side * side;
    for (int64_t s = 1; s <= n; s++)
        for (int64_t c = 0; c <= n - s; c++) {
            const int64_t at = s * side + c;
            if (!plan_slice_metric_cell(metric, first + at, side, b, s, &cost[at], &key[at]))
                cost[at] = key[at] = PLAN_SLICE_INFINITE;
        }
    plane->cost = cost;
    plane->key = key;
}

/* @last: per context the longest length of a key of at most @cap, 0 if none. */
static void
find_row_lengths(const Plane *plane, int64_t n, int64_t cap, int64_t *last)
{
    memset(last, 0, (size_t)n * sizeof *last);
    for (int64_t s = 1; s <= n; s++)
        note_lengths(plane->key + s * (n + 1), last, n - s + 1, s, cap);
}

/* Transposes in blocks of LANES contexts by 64 lengths: whole cache lines on both sides. */
static void
copy_group(PlanSliceGrid *grid, const Plane *plane, int64_t b, int64_t cap)
{
    const int64_t n = grid->n_cells, block = 64;
    const size_t *row = grid->row + (b - 1) * n;
    const PlanSliceWindow *window = grid->windows + (b - 1) * n;

    for (int64_t c0 = 0; c0 < n; c0 += LANES) {
        const int64_t c1 = MIN(c0 + LANES, n);
        int64_t longest = 0;
        for (int64_t c = c0; c < c1; c++)
            longest = MAX(longest, window[c].end);
        for (int64_t s0 = 1; s0 <= longest; s0 += block) {
            for (int64_t c = c0; c < c1; c++) {
                const int64_t s1 = MIN(MIN(s0 + block - 1, window[c].end), n - c);
                int64_t *cost = grid->cells + row[c] - 1, *key = grid->keys + row[c] - 1;
                for (int64_t s = s0; s <= s1; s++) {
                    const int64_t at = s * (n + 1) + c;
                    const bool fits = plane->key[at] <= cap;
                    cost[s] = fits ? plane->cost[at] : PLAN_SLICE_NEVER;
                    key[s] = fits ? plane->key[at] : PLAN_SLICE_NEVER;
                }
            }
        }
        for (int64_t c = c0; c < c1; c++)
            for (int64_t s = n - c; s < window[c].end; s++)
                grid->cells[row[c] + (size_t)s] = grid->keys[row[c] + (size_t)s] = PLAN_SLICE_NEVER;
    }
}

/* Lays the rows of group @b out after the first *@n_values. */
static void
place_rows(PlanSliceGrid *grid, const Plane *plane, int64_t b, int64_t cap, int64_t *last,
           size_t *n_values)
{
    const int64_t n = grid->n_cells;

    find_row_lengths(plane, n, cap, last);
    for (int64_t c = 0; c < n; c++) {
        grid->row[(b - 1) * n + c] = *n_values;
        grid->windows[(b - 1) * n + c] = (PlanSliceWindow){0, (int32_t)padded(last[c])};
        *n_values += (size_t)padded(last[c]);
    }
}

/* Everything but the cells; false: no memory. */
static bool
allocate(PlanSliceGrid *grid)
{
    /* The caller holds (batch + 1) (n + 1)^2 costs: no product here overflows. */
    const size_t n_rows = (size_t)(grid->n_groups * grid->n_cells);
    const size_t n_sums = (size_t)(grid->n_groups * grid->stride);

    grid->n_state = 2 * n_sums + (size_t)grid->batch + 1 + n_rows;
    grid->state = g_try_malloc_n(grid->n_state, sizeof *grid->state);
    grid->row = g_try_malloc_n(n_rows, sizeof *grid->row);
    grid->count = g_try_malloc_n(n_sums, sizeof *grid->count);
    if (grid->state == NULL || grid->row == NULL || grid->count == NULL)
        return false;
    G_STATIC_ASSERT(sizeof(PlanSliceWindow) == sizeof *grid->state);
    grid->rest = grid->state;
    grid->before = grid->rest + n_sums;
    grid->cover = grid->before + n_sums;
    grid->windows = (PlanSliceWindow *)(grid->cover + grid->batch + 1);
    return true;
}

static void
copy_costs(PlanSliceGrid *grid, const PlanSliceCosts *costs, const PlanSliceMetric *metric,
           int64_t cap, Plane *plane)
{
    for (int64_t b = 1; b <= grid->n_groups; b++) {
        plane_set(plane, costs, metric, b);
        copy_group(grid, plane, b, cap);
    }
}

PlanSliceGrid *
plan_slice_grid_new(const PlanSliceCosts *costs, const PlanSliceMetric *metric, int64_t n_groups,
                    int64_t cap, GError **error)
{
    const int64_t n = costs->n_cells;
    g_autoptr(PlanSliceGrid) grid = g_new0(PlanSliceGrid, 1);
    g_auto(Plane) plane = {0};
    g_autofree int64_t *last = g_try_malloc_n((size_t)n, sizeof *last);
    size_t n_values = 0;

    g_return_val_if_fail(cap <= PLAN_SLICE_MAX_SUM, NULL);
    grid->batch = costs->batch;
    grid->n_groups = n_groups;
    grid->n_cells = n;
    grid->stride = padded(n + 1 + LANES); /* a padded row reads past the last context */
    if (metric != NULL)
        plane.own = g_try_malloc_n(2 * (size_t)((n + 1) * (n + 1)), sizeof *plane.own);
    if (last == NULL || (metric != NULL && plane.own == NULL) || !allocate(grid))
        return fail_limit(costs, error);
    for (int64_t b = 1; b <= n_groups; b++) {
        plane_set(&plane, costs, metric, b);
        place_rows(grid, &plane, b, cap, last, &n_values);
    }
    grid->cells = g_try_malloc_n(MAX(n_values, 1), sizeof *grid->cells);
    grid->keys =
        metric == NULL ? grid->cells : g_try_malloc_n(MAX(n_values, 1), sizeof *grid->keys);
    if (grid->cells == NULL || grid->keys == NULL)
        return fail_limit(costs, error);
    copy_costs(grid, costs, metric, cap, &plane);
    return g_steal_pointer(&grid);
}

void
plan_slice_grid_free(PlanSliceGrid *grid)
{
    if (grid == NULL)
        return;
    if (grid->keys != grid->cells)
        g_free(grid->keys);
    g_free(grid->cells);
    g_free(grid->row);
    g_free(grid->state);
    g_free(grid->count);
    g_free(grid);
}

/* --- windows --- */

int64_t *
plan_slice_grid_save(const PlanSliceGrid *grid)
{
    return g_memdup2(grid->state, grid->n_state * sizeof *grid->state);
}

void
plan_slice_grid_restore(PlanSliceGrid *grid, const int64_t *saved)
{
    memcpy(grid->state, saved, grid->n_state * sizeof *saved);
}

/* @others_sum: what an answer through this row costs beside the cell and what follows it. */
static PlanSliceWindow
narrow_row(const int64_t *cells, const int64_t *keys, const int64_t *rest, PlanSliceWindow window,
           int64_t others_sum, const PlanSliceInterest *interest)
{
#define SURVIVES(i)                                                                                \
    (keys[i] <= interest->high && rest[i] <= PLAN_SLICE_MAX_SUM &&                                 \
     others_sum + cells[i] + rest[i] + interest->others * MAX(keys[i], interest->low) <=           \
         interest->best)
    while (window.first < window.end && !SURVIVES(window.first))
        window.first++;
    while (window.first < window.end && !SURVIVES(window.end - 1))
        window.end--;
#undef SURVIVES
    if (window.first == window.end)
        return (PlanSliceWindow){0, 0};
    return (PlanSliceWindow){window.first / LANES * LANES, (int32_t)padded(window.end)};
}

void
plan_slice_grid_narrow(PlanSliceGrid *grid, const PlanSliceInterest *interest)
{
    for (int64_t b = 1; b <= grid->n_groups; b++) {
        const int64_t *before = grid->before + (b - 1) * grid->stride;
        const int64_t *rest = grid->rest + (b - 1) * grid->stride;
        const int64_t cover = grid->cover[grid->batch - b];
        if (!plan_slice_grid_has_group(grid, b))
            continue;
        for (int64_t c = 0; c < grid->n_cells; c++) {
            const int64_t at = (b - 1) * grid->n_cells + c;
            PlanSliceWindow *window = &grid->windows[at];
            if (window->first == window->end)
                continue;
            if (before[c] > PLAN_SLICE_MAX_SUM || rest[c] > PLAN_SLICE_MAX_SUM ||
                cover > PLAN_SLICE_MAX_SUM || before[c] + rest[c] + cover > interest->best)
                *window = (PlanSliceWindow){0, 0};
            else
                *window = narrow_row(grid->cells + grid->row[at], grid->keys + grid->row[at],
                                     rest + c + 1, *window, before[c] + cover, interest);
        }
    }
}

/* --- the programs --- */

/* cover from rest: cover[x] is final once all b <= x were tried. */
static void
solve_cover(PlanSliceGrid *grid)
{
    grid->cover[0] = 0;
    for (int64_t x = 1; x <= grid->batch; x++) {
        int64_t least = PLAN_SLICE_NEVER;
        for (int64_t b = 1; b <= MIN(x, grid->n_groups); b++)
            least = MIN(least, grid->rest[(b - 1) * grid->stride] + grid->cover[x - b]);
        grid->cover[x] = least;
    }
}

int64_t
plan_slice_grid_solve(PlanSliceGrid *grid, int64_t cap)
{
    const int64_t n = grid->n_cells;

    for (int64_t b = 1; b <= grid->n_groups; b++) {
        int64_t *rest = grid->rest + (b - 1) * grid->stride;
        const size_t *row = grid->row + (b - 1) * n;
        const PlanSliceWindow *window = grid->windows + (b - 1) * n;
        rest[0] = PLAN_SLICE_NEVER;
        if (!plan_slice_grid_has_group(grid, b))
            continue;
        rest[n] = 0;
        for (int64_t c = n + 1; c < grid->stride; c++)
            rest[c] = PLAN_SLICE_NEVER;
        /* rest[c + 1 ..] is final. */
        for (int64_t c = n - 1; c >= 0; c--)
            rest[c] = least_sum(
                grid->cells + row[c] + window[c].first, grid->keys + row[c] + window[c].first,
                rest + c + 1 + window[c].first, window[c].end - window[c].first, cap);
    }
    solve_cover(grid);
    return grid->cover[grid->batch];
}

void
plan_slice_grid_solve_before(PlanSliceGrid *grid, int64_t cap)
{
    const int64_t n = grid->n_cells;

    for (int64_t b = 1; b <= grid->n_groups; b++) {
        if (!plan_slice_grid_has_group(grid, b))
            continue;
        int64_t *before = grid->before + (b - 1) * grid->stride;
        const size_t *row = grid->row + (b - 1) * n;
        const PlanSliceWindow *window = grid->windows + (b - 1) * n;
        before[0] = 0;
        for (int64_t c = 1; c < grid->stride; c++)
            before[c] = PLAN_SLICE_NEVER;
        /* before[0 .. c] is final. */
        for (int64_t c = 0; c < n; c++)
            if (before[c] < PLAN_SLICE_NEVER)
                lower_sums(grid->cells + row[c] + window[c].first,
                           grid->keys + row[c] + window[c].first, before + c + 1 + window[c].first,
                           window[c].end - window[c].first, before[c], cap);
    }
}

/* --- answers, read out of the sums --- */

/* The longest slice of one best slicing of group @b. */
static int64_t
longest_of_group(const PlanSliceGrid *grid, int64_t b, int64_t cap)
{
    const int64_t n = grid->n_cells;
    const int64_t *rest = grid->rest + (b - 1) * grid->stride;
    int64_t longest = 0;

    for (int64_t c = 0; c < n;) {
        const int64_t *cells = grid->cells + grid->row[(b - 1) * n + c];
        const int64_t *keys = grid->keys + grid->row[(b - 1) * n + c];
        const PlanSliceWindow window = grid->windows[(b - 1) * n + c];
        int64_t s = window.first + 1;
        while (s <= window.end && (keys[s - 1] > cap || cells[s - 1] + rest[c + s] != rest[c]))
            s++;
        g_assert(s <= window.end);
        longest = MAX(longest, keys[s - 1]);
        c += s;
    }
    return longest;
}

int64_t
plan_slice_grid_longest(const PlanSliceGrid *grid, int64_t cap)
{
    int64_t longest = 0, seen = 0;

    g_return_val_if_fail(grid->cover[grid->batch] < PLAN_SLICE_NEVER, 0);
    for (int64_t x = grid->batch; x > 0;) {
        int64_t b = MIN(x, grid->n_groups);
        while (grid->rest[(b - 1) * grid->stride] + grid->cover[x - b] != grid->cover[x])
            b--;
        if (b != seen) {
            const int64_t of_group = longest_of_group(grid, b, cap);
            longest = MAX(longest, of_group);
        }
        seen = b;
        x -= b;
    }
    return longest;
}

/* count[c]: the fewest slices of all slicings of least sum; INT32_MAX if there is none. */
static void
count_slices(PlanSliceGrid *grid, int64_t b, int64_t cap)
{
    const int64_t n = grid->n_cells;
    const int64_t *rest = grid->rest + (b - 1) * grid->stride;
    int32_t *count = grid->count + (b - 1) * grid->stride;

    count[n] = 0;
    for (int64_t c = n - 1; c >= 0; c--) {
        const int64_t *cells = grid->cells + grid->row[(b - 1) * n + c];
        const int64_t *keys = grid->keys + grid->row[(b - 1) * n + c];
        const PlanSliceWindow window = grid->windows[(b - 1) * n + c];
        count[c] = INT32_MAX;
        if (rest[c] == PLAN_SLICE_NEVER)
            continue;
        for (int64_t s = window.first + 1; s <= window.end; s++)
            if (keys[s - 1] <= cap && cells[s - 1] + rest[c + s] == rest[c])
                count[c] = MIN(count[c], count[c + s] + 1);
    }
}

/* The slicing of group @b of least sum, fewest slices, longest first. */
static PlanSliceGroup *
group_new(const PlanSliceGrid *grid, int64_t b, int64_t cap, int64_t granularity,
          int64_t *max_slice)
{
    const int64_t n = grid->n_cells;
    const int64_t *rest = grid->rest + (b - 1) * grid->stride;
    const int32_t *count = grid->count + (b - 1) * grid->stride;
    PlanSliceGroup *group = plan_slice_group_new(b);

    for (int64_t c = 0; c < n;) {
        const int64_t *cells = grid->cells + grid->row[(b - 1) * n + c];
        const int64_t *keys = grid->keys + grid->row[(b - 1) * n + c];
        int64_t s = grid->windows[(b - 1) * n + c].end;
        while (keys[s - 1] > cap || cells[s - 1] + rest[c + s] != rest[c] ||
               count[c + s] != count[c] - 1)
            s--;
        const int64_t tokens = s * granularity;
        g_array_append_val(group->slices, tokens);
        *max_slice = MAX(*max_slice, keys[s - 1]);
        c += s;
    }
    return group;
}

PlanSliceResult *
plan_slice_grid_answer(PlanSliceGrid *grid, int64_t cap, int64_t granularity)
{
    g_autofree int64_t *fewest = g_new(int64_t, (size_t)grid->batch + 1);
    PlanSliceResult *result = g_new0(PlanSliceResult, 1);

    g_assert(grid->cover[grid->batch] < PLAN_SLICE_NEVER);
    for (int64_t b = 1; b <= grid->n_groups; b++)
        if (plan_slice_grid_has_group(grid, b))
            count_slices(grid, b, cap);
    /* fewest[x]: slices of the cheapest cover of x sequences. */
    fewest[0] = 0;
    for (int64_t x = 1; x <= grid->batch; x++) {
        fewest[x] = INT64_MAX;
        if (grid->cover[x] == PLAN_SLICE_NEVER)
            continue;
        for (int64_t b = 1; b <= MIN(x, grid->n_groups); b++) {
            const int64_t at = (b - 1) * grid->stride;
            if (grid->rest[at] + grid->cover[x - b] == grid->cover[x])
                fewest[x] = MIN(fewest[x], grid->count[at] + fewest[x - b]);
        }
    }
    result->groups = g_ptr_array_new_with_free_func(plan_slice_group_free);
    int64_t b = grid->n_groups;
    for (int64_t x = grid->batch; x > 0; x -= b) {
        for (b = MIN(b, x);; b--) {
            g_assert(b >= 1); /* some group reaches the cheapest cover */
            const int64_t at = (b - 1) * grid->stride;
            if (grid->rest[at] + grid->cover[x - b] == grid->cover[x] &&
                grid->count[at] + fewest[x - b] == fewest[x])
                break;
        }
        g_ptr_array_add(result->groups, group_new(grid, b, cap, granularity, &result->max_slice));
    }
    return result;
}
