/*
 * executor/measure/grid.h - which (batch, slice length) the profiler times next.
 *
 * Every point costs the time of a whole sequence, and most lie on the curve through the others.  So
 * the corners come first, then always the point that is farthest from those that are timed, where
 * distances count more around points that the others predicted badly; the grid ends when the last
 * few points were predicted within EXEC_GRID_TARGET before they were timed.
 *
 * A point is begun only if there is time for it: it takes as long as the nearest one that is timed,
 * in proportion to the batch.  Before there is one, the cheapest corner: it is timed whatever it
 * takes.
 *
 * Distances are Euclidean in (log2 batch, log2 tokens).  Deterministic: ties go to the earlier
 * candidate.  Private to executor/measure*.c.
 */
#ifndef EXECUTOR_MEASURE_GRID_H
#define EXECUTOR_MEASURE_GRID_H

#include <glib.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

G_BEGIN_DECLS

/* Predicted this well a point teaches nothing: timings repeat no better. */
#define EXEC_GRID_TARGET 0.02
/* So many points in a row end the grid. */
#define EXEC_GRID_N_GOOD 3

typedef struct {
    int64_t batch, tokens;
} ExecGridPoint;

typedef struct ExecGrid ExecGrid;

/* Candidates are all pairs, batches outermost. */
ExecGrid *exec_grid_new(const int64_t *batches, size_t n_batches, const int64_t *slices,
                        size_t n_slices);
void exec_grid_free(ExecGrid *grid);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecGrid, exec_grid_free)

/* From now on the grid ends only when all candidates are timed, however long they take: somebody
 * asked for these. */
void exec_grid_want_all(ExecGrid *grid);

size_t exec_grid_n_candidates(const ExecGrid *grid);
ExecGridPoint exec_grid_point(const ExecGrid *grid, size_t candidate);

/* The candidate to time next, -1: the grid is good enough, or there is no time for any.
 * @corners_s, @others_s  how long a corner may take, and any other point when corners are timed. */
int exec_grid_next(const ExecGrid *grid, double corners_s, double others_s);

/* Candidate @candidate is timed, in @seconds; @error is how far off the others predicted it, NaN
 * where they could not (it lies outside them). */
void exec_grid_note(ExecGrid *grid, size_t candidate, double error, double seconds);

/* Those timed, in the order in which they were. */
size_t exec_grid_n_timed(const ExecGrid *grid);
size_t exec_grid_timed(const ExecGrid *grid, size_t i);
bool exec_grid_is_timed(const ExecGrid *grid, size_t candidate);

G_END_DECLS

#endif /* EXECUTOR_MEASURE_GRID_H */
