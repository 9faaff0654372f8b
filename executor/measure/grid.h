/*
 * executor/measure/grid.h - which (batch, slice length) the profiler times next.
 *
 * Every point costs the time of a whole sequence, and most points lie on the curve through the
 * others.  So the corners come first, then always the point that is farthest from those that are
 * timed, where distances count more around points that the others predicted badly.  The grid ends
 * when the last few points were predicted within EXEC_GRID_TARGET before they were timed.
 *
 * A point is begun only if there is time for it.  It is expected to take as long as the nearest one
 * that is timed, in proportion to the batch.  The first point is the cheapest corner, which is
 * timed whatever it takes.
 *
 * Distances are Euclidean in (log2 batch, log2 tokens).  Deterministic: of equally good points the
 * earlier candidate is taken.  Private to executor/measure/ and its tests.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Below this error a point was predicted well and teaches nothing: timings repeat no better. */
#define EXEC_GRID_TARGET 0.02
/* So many points in a row that were predicted well end the grid. */
#define EXEC_GRID_N_GOOD 3

typedef struct {
    int64_t batch, tokens;
} ExecGridPoint;

typedef struct {
    ExecGridPoint point;
    bool is_timed, is_corner;
    double error, seconds; /* of exec_grid_note() */
} ExecGridCandidate;

typedef struct {
    ExecGridCandidate *candidates; /* (owned) */
    size_t n;
    GArray *timed; /* (owned) of size_t: which candidates are timed, in that order */
    size_t n_good; /* how many of the last ones in a row were predicted well */
    /* Set by the caller: the user asked for these points, and the grid ends only when all are
     * timed, however long they take. */
    bool want_all;
} ExecGrid;

/* Returns: (owned) a grid whose candidates are all pairs, batches outermost. */
ExecGrid *exec_grid_new(const int64_t *batches, size_t n_batches, const int64_t *slices,
                        size_t n_slices);
void exec_grid_free(ExecGrid *grid);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecGrid, exec_grid_free)

/*
 * Returns the candidate to time next; -1: the grid is good enough, or there is no time for any.
 *
 * @corners_s, @others_s  how long a corner may take, and how long any other point once the corners
 *                        are timed
 */
int exec_grid_next(const ExecGrid *grid, double corners_s, double others_s);

/* Notes that @candidate was timed, in @seconds.  @error is how far off the others predicted it; NaN
 * where they could not, because it lies outside of them. */
void exec_grid_note(ExecGrid *grid, size_t candidate, double error, double seconds);

/* Returns how long all candidates take, @grid's timed ones as they took and the others as they are
 * expected to; 0 before the first is timed. */
double exec_grid_all_s(const ExecGrid *grid);
