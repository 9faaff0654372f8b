#include <math.h>
#include <stdlib.h>

#include "executor/measure_rank.h"
#include "executor/samples.h"
#include "profiles/measured.h"

/* Timings of a point before the next one is chosen, after one to warm up; one, where time is short.
 */
#define FIRST_REPETITIONS 2

/* The grid grows in this share of the budget, its corners in all of it; the rest is for
 * repetitions. */
#define GRID_SHARE 0.5

/* Of the budget: for the least repetitions. */
#define LATE 1.5

/* Layers are timed op by op in every such repetition: it takes as long as whole ones. */
#define KINDS_EVERY 4

static double
spent_share(const ExecMeasureLayers *job)
{
    return (double)(exec_now_ns() - job->begin_ns) / (double)job->budget_ns;
}

/* --- growing the grid --- */

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
        exec_samples_sort(errors);
        worst = fmax(worst, g_array_index(errors, double, (errors->len - 1) / 2));
    }
    return worst;
}

static void
note_point(const ExecMeasureShared *shared, ExecMeasureLayers *job, size_t candidate,
           double seconds)
{
    const ExecGridPoint point = exec_grid_point(job->grid, candidate);

    exec_grid_note(job->grid, candidate, left_out_error(shared, job, &point), seconds);
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

        if (exec_samples_count(shared->samples, &key) > 0)
            note_point(shared, job, i, 0);
    }
}

static int
next_point(const ExecMeasureLayers *job)
{
    const double budget_s = (double)job->budget_ns * 1e-9;
    const double spent_s = spent_share(job) * budget_s;

    return exec_grid_next(job->grid, budget_s - spent_s, GRID_SHARE * budget_s - spent_s);
}

/* Thread 0 decides between two barriers. */
static bool
choose(ExecMeasureRank *rank, ExecMeasureLayers *job, GError **error)
{
    if (!exec_measure_meet(rank, error))
        return false;
    if (rank->transport.rank == 0)
        job->next = next_point(job);
    return exec_measure_meet(rank, error);
}

/* Whether a point that has been timed @n times is timed once more: FIRST_REPETITIONS, or, where one
 * alone takes so long, once. */
static bool
goes_on(ExecMeasureRank *rank, ExecMeasureLayers *job, int n, bool *more, GError **error)
{
    if (!exec_measure_meet(rank, error))
        return false;
    if (rank->transport.rank == 0)
        job->more = (n < 1 || (n < FIRST_REPETITIONS && spent_share(job) < GRID_SHARE));
    if (!exec_measure_meet(rank, error))
        return false;
    *more = job->more;
    return true;
}

/* Once to warm up, then as often as there is time for. */
static bool
time_point(ExecMeasureRank *rank, ExecMeasureLayers *job, const ExecGridPoint *point,
           GError **error)
{
    bool more = true;

    rank->record = false;
    if (!exec_measure_point(rank, point, false, error))
        return false;
    rank->record = true;
    for (int n = 0; more; n++)
        if (!goes_on(rank, job, n, &more, error) ||
            (more && !exec_measure_point(rank, point, true, error)))
            return false;
    return true;
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
        const int64_t begin_ns = exec_now_ns();
        if (!time_point(rank, job, &point, error) || !exec_measure_meet(rank, error))
            return false;
        if (rank->transport.rank == 0) {
            note_point(rank->shared, job, candidate, (double)(exec_now_ns() - begin_ns) * 1e-9);
            if (!job->keep(job->user_data, false, error))
                return false;
        }
    }
}

/* --- repeating --- */

/* Thread 0's, after @repetition: whether there is time to time all points once more, which takes as
 * long as the last time.  For the least repetitions the budget is LATE times as long. */
static bool
has_time(ExecMeasureLayers *job, int32_t repetition)
{
    const int32_t n = atomic_load(&job->n_repetitions);
    const double spent = spent_share(job);
    /* The grid's points are timed so often, and to warm up. */
    const double one = repetition == 0 ? spent / (FIRST_REPETITIONS + 1) : spent - job->last_spent;

    job->last_spent = spent;
    return n < job->max_repetitions && spent + one <= (n < job->min_repetitions ? LATE : 1.0);
}

static bool
time_links(ExecMeasureRank *rank, GError **error)
{
    return exec_measure_optimizer(rank, error) &&
           (rank->shared->has_collectives || exec_measure_communication(rank, error)) &&
           exec_measure_copies(rank, error) && exec_measure_launch(rank, error);
}

/* Repetitions are the outer loop, so that a disturbance of the machine is spread over all rows.
 * The first is for links, which are not warm yet, as points are. */
static bool
repeat(ExecMeasureRank *rank, ExecMeasureLayers *job, GError **error)
{
    ExecMeasureShared *shared = rank->shared;

    if (!exec_measure_meet(rank, error))
        return false;
    if (rank->transport.rank == 0)
        job->more = false;
    if (!exec_measure_meet(rank, error))
        return false;
    for (int32_t repetition = 0; !atomic_load(&shared->stop); repetition++) {
        rank->record = true;
        for (size_t i = 0; job->more && i < exec_grid_n_timed(job->grid); i++) {
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
            job->more = has_time(job, repetition);
            atomic_store(&shared->stop, repetition > 0 && !job->more);
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
