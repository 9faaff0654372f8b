#include "executor/measure/grid.h"

#include <math.h>

/* --- corners --- */

static void
bounds(const int64_t *values, size_t n, int64_t *least, int64_t *most)
{
    *least = *most = values[0];
    for (size_t i = 1; i < n; i++) {
        *least = MIN(*least, values[i]);
        *most = MAX(*most, values[i]);
    }
}

ExecGrid *
exec_grid_new(const int64_t *batches, size_t n_batches, const int64_t *slices, size_t n_slices)
{
    g_return_val_if_fail(n_batches > 0 && n_slices > 0, NULL);
    ExecGrid *grid = g_new0(ExecGrid, 1);
    int64_t least_batch, most_batch, least_slice, most_slice;

    bounds(batches, n_batches, &least_batch, &most_batch);
    bounds(slices, n_slices, &least_slice, &most_slice);
    grid->candidates = g_new0(ExecGridCandidate, n_batches * n_slices);
    grid->timed = g_array_new(FALSE, FALSE, sizeof(size_t));
    for (size_t b = 0; b < n_batches; b++)
        for (size_t s = 0; s < n_slices; s++)
            grid->candidates[grid->n++] = (ExecGridCandidate){
                .point = {batches[b], slices[s]},
                .is_corner = (batches[b] == least_batch || batches[b] == most_batch) &&
                             (slices[s] == least_slice || slices[s] == most_slice),
                .error = (double)NAN,
            };
    return grid;
}

void
exec_grid_free(ExecGrid *grid)
{
    if (grid == NULL)
        return;
    g_free(grid->candidates);
    g_array_unref(grid->timed);
    g_free(grid);
}

/* --- the next one --- */

static double
distance(const ExecGridPoint *a, const ExecGridPoint *b)
{
    return hypot(log2((double)a->batch / (double)b->batch),
                 log2((double)a->tokens / (double)b->tokens));
}

/* A candidate beside the timed points that are nearest to it. */
typedef struct {
    double distance;
    double error;   /* how badly one of them was predicted, at the worst */
    double seconds; /* expected of the candidate, from the first of them */
} Near;

static Near
nearest(const ExecGrid *grid, const ExecGridCandidate *candidate)
{
    Near near = {.distance = INFINITY, .error = EXEC_GRID_TARGET};

    for (size_t i = 0; i < grid->timed->len; i++) {
        const ExecGridCandidate *timed = &grid->candidates[g_array_index(grid->timed, size_t, i)];
        const double d = distance(&candidate->point, &timed->point);
        const double error = fmax(EXEC_GRID_TARGET, isnan(timed->error) ? 0.0 : timed->error);

        if (d < near.distance)
            near = (Near){d, error,
                          timed->seconds * (double)candidate->point.batch /
                              (double)timed->point.batch};
        else if (d == near.distance)
            near.error = fmax(near.error, error);
    }
    return near;
}

static bool
is_possible(const ExecGrid *grid, const ExecGridCandidate *candidate, double most_s)
{
    return !candidate->is_timed &&
           (grid->want_all || grid->timed->len == 0 || nearest(grid, candidate).seconds <= most_s);
}

/* Whether @a is less work than @b: fewer sequences, then fewer slices. */
static bool
is_cheaper(const ExecGridPoint *a, const ExecGridPoint *b)
{
    return a->batch != b->batch ? a->batch < b->batch : a->tokens > b->tokens;
}

int
exec_grid_next(const ExecGrid *grid, double corners_s, double others_s)
{
    bool has_corners = true;
    double best = 0.0;
    int next = -1;

    for (size_t i = 0; i < grid->n; i++) {
        const ExecGridCandidate *candidate = &grid->candidates[i];

        if (!candidate->is_corner)
            continue;
        has_corners &= candidate->is_timed;
        if (is_possible(grid, candidate, corners_s) &&
            (next < 0 || is_cheaper(&candidate->point, &grid->candidates[next].point)))
            next = (int)i;
    }
    if (next >= 0 || (grid->n_good >= EXEC_GRID_N_GOOD && !grid->want_all))
        return next;
    for (size_t i = 0; i < grid->n; i++) {
        const ExecGridCandidate *candidate = &grid->candidates[i];

        /* Where corners take too long, the other points may take what corners may. */
        if (candidate->is_corner ||
            !is_possible(grid, candidate, has_corners ? others_s : corners_s))
            continue;
        const Near near = nearest(grid, candidate);
        const double value = near.distance * near.error;
        if (next < 0 || value > best) {
            best = value;
            next = (int)i;
        }
    }
    return next;
}

void
exec_grid_note(ExecGrid *grid, size_t candidate, double error, double seconds)
{
    g_return_if_fail(candidate < grid->n);
    if (grid->candidates[candidate].is_timed)
        return;
    grid->candidates[candidate].is_timed = true;
    grid->candidates[candidate].error = error;
    grid->candidates[candidate].seconds = seconds;
    g_array_append_val(grid->timed, candidate);
    if (!isnan(error))
        grid->n_good = error < EXEC_GRID_TARGET ? grid->n_good + 1 : 0;
}

double
exec_grid_all_s(const ExecGrid *grid)
{
    double sum_s = 0.0;

    for (size_t i = 0; grid->timed->len > 0 && i < grid->n; i++) {
        const ExecGridCandidate *candidate = &grid->candidates[i];
        sum_s += candidate->is_timed ? candidate->seconds : nearest(grid, candidate).seconds;
    }
    return sum_s;
}
