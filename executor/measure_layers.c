#include <math.h>
#include <stdlib.h>

#include "executor/measure_rank.h"
#include "profiles/measured.h"

/* Timings of a point before the next one is chosen, after one to warm up. */
#define FIRST_REPETITIONS 2

/* The grid grows in this share of the budget, its corners in all of it; the rest is for
 * repetitions. */
#define GRID_SHARE 0.5

/* Layers are timed op by op in every such repetition: it takes as long as whole ones. */
#define KINDS_EVERY 4

static bool
is_interrupted(const ExecMeasureShared *shared)
{
    return shared->o->stop != NULL && g_atomic_int_get(shared->o->stop) != 0;
}

static double
spent_share(const ExecMeasureLayers *job)
{
    return (double)(exec_now_ns() - job->begin_ns) / (double)job->budget_ns;
}

/* --- growing the grid --- */

static int
compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* How far off the other points predict layers at @point: the worst pass's median. */
static double
left_out_error(const ExecMeasureShared *shared, const ExecMeasureLayers *job,
               const ExecGridPoint *point)
{
    double worst = (double)NAN;

    exec_samples_write(shared->samples, job->profile);
    for (int pass = 0; pass < PROFILE_PASS_N; pass++) {
        const ProfileRows rows = {PROFILE_OP_LAYER, (ProfilePass)pass, job->tp};
        g_autoptr(GArray) errors = g_array_new(FALSE, FALSE, sizeof(double));

        profile_measured_left_out(job->profile, &rows, point->batch, point->tokens, errors);
        if (errors->len == 0)
            continue;
        qsort(errors->data, errors->len, sizeof(double), compare_doubles);
        worst = fmax(worst, g_array_index(errors, double, (errors->len - 1) / 2));
    }
    return worst;
}

static void
note_point(const ExecMeasureShared *shared, ExecMeasureLayers *job, size_t candidate)
{
    const ExecGridPoint point = exec_grid_point(job->grid, candidate);

    exec_grid_note(job->grid, candidate, left_out_error(shared, job, &point));
    atomic_store(&job->n_timed, (int)exec_grid_n_timed(job->grid));
}

/* Points that a resumed profile has. */
static void
note_kept_points(const ExecMeasureShared *shared, ExecMeasureLayers *job)
{
    for (size_t i = 0; i < exec_grid_n_candidates(job->grid); i++) {
        const ExecGridPoint point = exec_grid_point(job->grid, i);
        const ProfileMeasurement key = {.op = PROFILE_OP_HEAD,
                                        .pass = PROFILE_PASS_BACKWARD_WEIGHT,
                                        .batch = point.batch,
                                        .tokens = point.tokens,
                                        .tp = job->tp};

        if (exec_samples_count(shared->samples, &key) >= FIRST_REPETITIONS)
            note_point(shared, job, i);
    }
}

static bool
is_out_of_time(const ExecMeasureLayers *job)
{
    return exec_grid_n_timed(job->grid) > 0 && !exec_grid_wants_all(job->grid) &&
           spent_share(job) > (exec_grid_has_corners(job->grid) ? GRID_SHARE : 1.0);
}

static int
next_point(const ExecMeasureShared *shared, const ExecMeasureLayers *job)
{
    return is_interrupted(shared) || is_out_of_time(job) ? -1 : exec_grid_next(job->grid);
}

/* Thread 0 decides between two barriers. */
static bool
choose(ExecMeasureRank *rank, ExecMeasureLayers *job, GError **error)
{
    if (!exec_measure_meet(rank, error))
        return false;
    if (rank->transport.rank == 0)
        job->next = next_point(rank->shared, job);
    return exec_measure_meet(rank, error);
}

static bool
grow_grid(ExecMeasureRank *rank, ExecMeasureLayers *job, GError **error)
{
    for (;;) {
        if (!choose(rank, job, error))
            return false;
        if (job->next < 0)
            return true;
        const size_t candidate = (size_t)job->next;
        const ExecGridPoint point = exec_grid_point(job->grid, candidate);
        for (int i = 0; i <= FIRST_REPETITIONS; i++) {
            rank->record = i > 0;
            if (!exec_measure_point(rank, &point, true, error))
                return false;
        }
        if (!exec_measure_meet(rank, error))
            return false;
        if (rank->transport.rank == 0) {
            note_point(rank->shared, job, candidate);
            if (!job->keep(job->user_data, false, error))
                return false;
        }
    }
}

/* --- repeating --- */

/* Within the budget at most max_repetitions, beyond it at least min_repetitions, but on a machine
 * that is slow or busy with others no more than fit into twice the budget. */
static bool
is_enough(const ExecMeasureShared *shared, const ExecMeasureLayers *job, int32_t repetition)
{
    const int32_t n = atomic_load(&job->n_repetitions);
    const double spent = spent_share(job);

    if (is_interrupted(shared))
        return true;
    if (repetition < 1)
        return false;
    return n >= job->max_repetitions || spent > 2 || (n >= job->min_repetitions && spent > 1);
}

static bool
time_links(ExecMeasureRank *rank, GError **error)
{
    return exec_measure_optimizer(rank, error) && exec_measure_communication(rank, error) &&
           exec_measure_copies(rank, error) && exec_measure_launch(rank, error);
}

/* Repetitions are the outer loop, so that a disturbance of the machine is spread over all rows. */
static bool
repeat(ExecMeasureRank *rank, ExecMeasureLayers *job, GError **error)
{
    ExecMeasureShared *shared = rank->shared;

    for (int32_t repetition = 0; !atomic_load(&shared->stop); repetition++) {
        /* Points are warm, links are not. */
        rank->record = true;
        for (size_t i = 0; repetition > 0 && i < exec_grid_n_timed(job->grid); i++) {
            const ExecGridPoint point = exec_grid_point(job->grid, exec_grid_timed(job->grid, i));
            if (!exec_measure_point(rank, &point, repetition % KINDS_EVERY == 0, error))
                return false;
        }
        rank->record = repetition > 0;
        if ((job->with_links && !time_links(rank, error)) || !exec_measure_meet(rank, error))
            return false;
        if (rank->transport.rank == 0) {
            if (repetition > 0)
                atomic_fetch_add(&job->n_repetitions, 1);
            if (!job->keep(job->user_data, false, error))
                return false;
            atomic_store(&shared->stop, is_enough(shared, job, repetition));
        }
        if (!exec_measure_meet(rank, error))
            return false;
    }
    return true;
}

bool
exec_measure_layers(ExecMeasureRank *rank, GError **error)
{
    ExecMeasureLayers *job = rank->shared->job_data;

    if (rank->transport.rank == 0)
        note_kept_points(rank->shared, job);
    return grow_grid(rank, job, error) && repeat(rank, job, error);
}
