#include "executor/measure/layers.h"

#include <math.h>

#include "base/order.h"
#include "executor/device/clock.h"
#include "executor/measure/links.h"
#include "profiles/cost/measured.h"

/* How often a point is timed before the next one is chosen, after one run to warm up, and the first
 * time by the kinds of its ops too; where time is short, once. */
#define FIRST_REPETITIONS 2

/* The share of the round's time in which the grid grows; its corners may take all of the time.  The
 * rest is for repetitions. */
#define GRID_SHARE 0.5

/* In one of so many repetitions layers are also timed by the kinds of their ops, which takes as
 * long once more. */
#define KINDS_EVERY 4
/* Of how many runs of a point its first time consists: the one to warm up, and those above. */
#define FIRST_RUNS (1.0 + FIRST_REPETITIONS + 1.0)

static double
round_s(const ExecMeasureLayers *job)
{
    return (double)atomic_load(&job->round_ns) * 1e-9;
}

/* --- growing the grid --- */

/* Returns how far off the other points predict layers at @point: the median error of the worst kind
 * and pass. */
static double
left_out_error(const ExecMeasureShared *shared, const ExecMeasureLayers *job,
               const ExecGridPoint *point)
{
    const ModelArch *arch = shared->o->arch;
    double worst = (double)NAN;

    exec_samples_write(shared->samples, job->profile);
    for (int i = 0; i < PROFILE_PASS_N * model_n_kinds(arch); i++) {
        const ProfileRows rows = {PROFILE_OP_LAYER, (ProfilePass)(i % PROFILE_PASS_N), job->tp,
                                  exec_measure_kind(arch, i / PROFILE_PASS_N)};
        g_autoptr(GArray) errors = g_array_new(FALSE, FALSE, sizeof(double));

        profile_measured_left_out(job->profile, &rows, point->batch, point->tokens, errors);
        if (errors->len == 0)
            continue;
        g_array_sort(errors, order_doubles);
        worst = fmax(worst, g_array_index(errors, double, (errors->len - 1) / 2));
    }
    return worst;
}

static void
note_point(const ExecMeasureShared *shared, ExecMeasureLayers *job, size_t candidate,
           double seconds)
{
    const ExecGridPoint point = job->grid->candidates[candidate].point;

    exec_grid_note(job->grid, candidate, left_out_error(shared, job, &point), seconds);
    atomic_store(&job->n_timed, (int)job->grid->timed->len);
}

/* Notes the points that a resumed profile has. */
static void
note_kept_points(const ExecMeasureShared *shared, ExecMeasureLayers *job)
{
    for (size_t i = 0; i < job->grid->n; i++) {
        const ExecGridPoint point = job->grid->candidates[i].point;
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
next_point(ExecMeasureRank *rank, const void *about)
{
    const ExecMeasureLayers *job = rank->shared->job_data;
    /* Links are timed once more after the grid. */
    const double spent_s = exec_seconds_since(job->begin_ns) + job->links_s;

    return exec_grid_next(job->grid, round_s(job) - spent_s, GRID_SHARE * round_s(job) - spent_s);
}

/* Whether a point that has been timed @about times is timed once more: FIRST_REPETITIONS in all, or
 * only one where that takes so long. */
static int
is_timed_again(ExecMeasureRank *rank, const void *about)
{
    const ExecMeasureLayers *job = rank->shared->job_data;
    const int *n = about;

    return *n < 1 || (*n < FIRST_REPETITIONS &&
                      exec_seconds_since(job->begin_ns) < GRID_SHARE * round_s(job));
}

/* Once to warm up, then as often as there is time for. */
static bool
time_point(ExecMeasureRank *rank, ExecMeasureLayers *job, const ExecGridPoint *point,
           GError **error)
{
    double once_s[2] = {0}; /* without and with the kinds of its ops */

    rank->record = false;
    if (!exec_measure_point(rank, point, false, error))
        return false;
    rank->record = true;
    for (int n = 0;; n++) {
        int more;
        if (!exec_measure_decide(rank, is_timed_again, &n, &more, error))
            return false;
        if (!more)
            break;
        const int64_t begin_ns = exec_now_ns();
        if (!exec_measure_point(rank, point, n == 0, error))
            return false;
        once_s[n == 0] = exec_seconds_since(begin_ns);
    }
    if (rank->transport.rank == 0)
        for (int by_kind = 0; by_kind <= 1; by_kind++)
            job->points_s[by_kind] += once_s[by_kind];
    return true;
}

static bool
grow_grid(ExecMeasureRank *rank, ExecMeasureLayers *job, GError **error)
{
    for (;;) {
        int next;
        if (!exec_measure_decide(rank, next_point, NULL, &next, error))
            return false;
        if (next < 0)
            return true;
        const ExecGridPoint point = job->grid->candidates[(size_t)next].point;
        const int64_t begin_ns = exec_now_ns();
        if (!time_point(rank, job, &point, error) || !exec_measure_meet(rank, error))
            return false;
        if (rank->transport.rank != 0)
            continue;
        const double seconds = exec_seconds_since(begin_ns);
        if (job->wants_all || job->grid->timed->len == 0)
            job->required_s += seconds;
        note_point(rank->shared, job, (size_t)next, seconds);
        if (!job->keep(job->user_data, false, error))
            return false;
    }
}

/* --- repeating --- */

/* Returns whether there is time for one more repetition, with @by_kind by kind too.  It is expected
 * to take as long as the last one; of the points of a resumed profile that is not known, and counts
 * 0. */
static bool
has_time(const ExecMeasureLayers *job, bool by_kind)
{
    const double points_s =
        job->points_s[by_kind] > 0.0 ? job->points_s[by_kind] : job->points_s[!by_kind];

    return exec_budget_repeats(job->budget, &(ExecBudgetRepetitions){
                                                .round_s = round_s(job),
                                                .spent_s = exec_seconds_since(job->begin_ns),
                                                .expected_s = points_s + job->links_s,
                                                .n = atomic_load(&job->n_repetitions),
                                                .least = job->min_repetitions,
                                                .most = job->max_repetitions,
                                                .n_disturbed = job->n_disturbed,
                                            });
}

static bool
time_points(ExecMeasureRank *rank, ExecMeasureLayers *job, bool by_kind, GError **error)
{
    const int64_t begin_ns = exec_now_ns();

    rank->record = true;
    for (size_t i = 0; i < job->grid->timed->len; i++) {
        const ExecGridPoint point =
            job->grid->candidates[g_array_index(job->grid->timed, size_t, i)].point;
        if (!exec_measure_point(rank, &point, by_kind, error))
            return false;
    }
    if (rank->transport.rank == 0)
        job->points_s[by_kind] = exec_seconds_since(begin_ns);
    return true;
}

static bool
time_links(ExecMeasureRank *rank, ExecMeasureLayers *job, bool record, GError **error)
{
    ExecMeasureShared *shared = rank->shared;
    const int64_t begin_ns = exec_now_ns();

    if (!job->with_links)
        return true;
    if (rank->transport.rank == 0)
        exec_budget_links_begin(shared->links);
    rank->record = record;
    if (!exec_measure_optimizer(rank, error) ||
        !(shared->has_collectives || exec_measure_communication(rank, error)) ||
        !exec_measure_meet(rank, error))
        return false;
    if (rank->transport.rank == 0)
        job->links_s = exec_seconds_since(begin_ns);
    return true;
}

static bool
time_copies(ExecMeasureRank *rank, const ExecMeasureLayers *job, bool record, GError **error)
{
    rank->record = record;
    return !job->with_links ||
           (exec_measure_copies(rank, error) && exec_measure_launch(rank, error));
}

/* Thread 0 calls it after a repetition. */
static bool
end_repetition(ExecMeasureShared *shared, ExecMeasureLayers *job, bool next_by_kind, GError **error)
{
    const ExecSamplesTotal total = exec_samples_total(shared->samples);

    if (exec_budget_counts(total.n - job->before.n, total.n_disturbed - job->before.n_disturbed))
        atomic_fetch_add(&job->n_repetitions, 1);
    else
        job->n_disturbed++;
    job->before = total;
    if (!job->keep(job->user_data, false, error))
        return false;
    atomic_store(&shared->stop, !has_time(job, next_by_kind));
    return true;
}

/* Whether there is time for a first repetition of the points. */
static int
begin_repetitions(ExecMeasureRank *rank, const void *about)
{
    ExecMeasureLayers *job = rank->shared->job_data;

    job->before = exec_samples_total(rank->shared->samples);
    return has_time(job, false);
}

/* Repetitions are the outer loop, so that a disturbance of the machine is spread over all rows.
 * There is at least one; where points take too long, of links alone.  One that was mostly disturbed
 * is made again. */
static bool
repeat(ExecMeasureRank *rank, ExecMeasureLayers *job, GError **error)
{
    ExecMeasureShared *shared = rank->shared;
    int with_points;

    if (!exec_measure_decide(rank, begin_repetitions, NULL, &with_points, error))
        return false;
    for (int32_t repetition = 1; !atomic_load(&shared->stop); repetition++) {
        if (with_points && !time_points(rank, job, repetition % KINDS_EVERY == 0, error))
            return false;
        if (!time_links(rank, job, true, error) || !time_copies(rank, job, true, error) ||
            !exec_measure_meet(rank, error))
            return false;
        if (rank->transport.rank == 0 &&
            !end_repetition(shared, job, (repetition + 1) % KINDS_EVERY == 0, error))
            return false;
        if (!exec_measure_meet(rank, error))
            return false;
        with_points = true; /* else there would be no other repetition */
    }
    return true;
}

/* --- the job --- */

/* Thread 0 calls it.  How long making the ranks took is known now, and that the rounds after this
 * one need ranks too. */
static void
begin_round(const ExecMeasureShared *shared, ExecMeasureLayers *job)
{
    ExecBudget budget = *job->budget;

    job->setup_s = budget.setup_s = exec_seconds_since(job->created_ns);
    if (job->wants_all)
        job->grid->want_all = true;
    atomic_store(&job->round_ns,
                 (int64_t)(exec_budget_round_s(&budget, job->round, job->spent_before_s) * 1e9));
    note_kept_points(shared, job);
}

/* How long a round takes in which the grid has time for all points, and all are then repeated. */
static double
wanted_s(const ExecMeasureLayers *job)
{
    const double grid_s = exec_grid_all_s(job->grid);
    const double once_s = (1.0 + 1.0 / KINDS_EVERY) * grid_s / FIRST_RUNS + job->links_s;

    return fmax((grid_s + 2.0 * job->links_s) / GRID_SHARE,
                grid_s + 2.0 * job->links_s + job->min_repetitions * once_s);
}

/* Copies come after the grid: then layers have the memory that they need. */
bool
exec_measure_layers(ExecMeasureRank *rank, GError **error)
{
    ExecMeasureLayers *job = rank->shared->job_data;

    if (rank->transport.rank == 0)
        begin_round(rank->shared, job);
    if (!time_links(rank, job, false, error) || !grow_grid(rank, job, error))
        return false;
    if (rank->transport.rank == 0) {
        job->has_all_points = exec_grid_next(job->grid, INFINITY, INFINITY) < 0;
        job->wanted_s = wanted_s(job);
    }
    return time_copies(rank, job, false, error) && repeat(rank, job, error);
}
