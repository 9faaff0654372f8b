/* Answers: read out of the dynamic programs' sums, and compared. */
#include "planner/slices/grid.h"

PlanSliceGroup *
plan_slice_group_new(int64_t batch)
{
    PlanSliceGroup *group = g_new(PlanSliceGroup, 1);

    *group = (PlanSliceGroup){.batch = batch, .slices = g_array_new(FALSE, FALSE, sizeof(int64_t))};
    return group;
}

void
plan_slice_group_free(void *data)
{
    PlanSliceGroup *group = data;

    g_array_unref(group->slices);
    g_free(group);
}

void
plan_slice_result_free(PlanSliceResult *result)
{
    if (result == NULL)
        return;
    g_clear_pointer(&result->groups, g_ptr_array_unref);
    g_free(result);
}

int64_t
plan_slice_count(const PlanSliceResult *result)
{
    int64_t n = 0;

    for (guint i = 0; i < result->groups->len; i++)
        n += ((PlanSliceGroup *)result->groups->pdata[i])->slices->len;
    return n;
}

int
plan_slice_result_compare(const PlanSliceResult *a, const PlanSliceResult *b)
{
    int64_t difference = plan_slice_count(a) - plan_slice_count(b);

    for (guint i = 0; difference == 0 && i < MIN(a->groups->len, b->groups->len); i++) {
        const PlanSliceGroup *x = a->groups->pdata[i], *y = b->groups->pdata[i];
        difference = y->batch - x->batch;
        for (guint k = 0; difference == 0 && k < MIN(x->slices->len, y->slices->len); k++)
            difference =
                g_array_index(y->slices, int64_t, k) - g_array_index(x->slices, int64_t, k);
    }
    return (difference > 0) - (difference < 0);
}

/* --- out of the sums --- */

/* The longest slice of one best way through group @b. */
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
        if (b != seen)
            longest = MAX(longest, longest_of_group(grid, b, cap));
        seen = b;
        x -= b;
    }
    return longest;
}

/* count[c]: the fewest slices among the ways of least sum; INT32_MAX if there is none. */
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

/* The way through group @b of least sum, fewest slices, longest first. */
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
