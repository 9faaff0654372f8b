/*
 * Slices AUTO: which points of a space are worth slicing, and their slices.
 *
 * Slicing a point takes as long as hundreds of plans of whole sequences, so points are estimated
 * first, by the bound of one equal slicing.
 */
#include "planner/run.h"
#include "planner/bounds/floor.h"

#include <stdlib.h>

/* Points whose slicing is estimated, at a millisecond each; and found, at a tenth of a second. */
#define MAX_ESTIMATED 384
#define MAX_SLICED 24
/* Points whose bound is sharpened, at some milliseconds each. */
#define MAX_SHARP 24
/* Estimates of a space that is looked at closely. */
#define SMALL_SPACE 64
/* Slices that cannot gain one part in so many are not looked for. */
#define LEAST_GAIN 50

int64_t
plan_run_least_gain(int64_t limit)
{
    return limit - limit / LEAST_GAIN;
}

static int
compare_by_slices(const void *a, const void *b)
{
    const PlanPoint *x = *(const PlanPoint *const *)a, *y = *(const PlanPoint *const *)b;

    if (x->sliced_bound_ns != y->sliced_bound_ns)
        return x->sliced_bound_ns < y->sliced_bound_ns ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* One way to slice everything but families and chunks, and what it may take. */
typedef struct {
    PlanPoint point;
    int64_t estimate_ns;
} Sliced;

static int
compare_estimates(const void *a, const void *b)
{
    const Sliced *x = a, *y = b;

    if (x->estimate_ns != y->estimate_ns)
        return x->estimate_ns < y->estimate_ns ? -1 : 1;
    return x->point.index < y->point.index ? -1 : x->point.index > y->point.index;
}

/* Whether slices at @point may be worth it. */
static bool
may_gain(const PlanRun *run, const PlanPoint *point)
{
    return point->sliced_bound_ns != INT64_MAX &&
           point->sliced_bytes <= run->evaluation.memory_limit_bytes &&
           point->sliced_bound_ns <= plan_run_least_gain(plan_run_limit(run));
}

/* Whether @point is estimated: even stages with the fewest chunks. */
static bool
is_estimated(const PlanRun *run, const PlanPoint *point)
{
    return point->degrees.vpp == MAX(1, run->request->vpp) && !point->is_balanced &&
           may_gain(run, point);
}

/* Better slices than equal ones gain little: what is estimated to take longer than this stays
 * behind the best.  Of few points, the best slices may take a fifth less. */
static int64_t
most_estimate_ns(const PlanRun *run, guint n_estimated)
{
    const int64_t least = plan_run_least_gain(plan_run_limit(run));

    return n_estimated < SMALL_SPACE && least < INT64_MAX / 2 ? least / 4 * 5 : least;
}

/* (owned) GArray of Sliced, best estimate first. */
static GArray *
estimate_points(PlanRun *run, const PlanPoint *const *points)
{
    const guint n = run->space->points->len;
    GArray *all = g_array_new(FALSE, FALSE, sizeof(Sliced));
    g_autofree PlanWave *wave = g_new0(PlanWave, 1);

    for (guint i = 0; i < n && all->len < MAX_ESTIMATED; i++)
        if (is_estimated(run, points[i])) {
            const Sliced sliced = {.point = *points[i], .estimate_ns = INT64_MAX};
            g_array_append_val(all, sliced);
        }
    run->evaluation.most_estimate_ns = most_estimate_ns(run, all->len);
    wave->evaluate = plan_estimate_slices;
    for (guint first = 0; first < all->len && !plan_evaluation_is_stopped(&run->evaluation);
         first += PLAN_WAVE) {
        wave->n = (int)MIN(PLAN_WAVE, all->len - first);
        for (int k = 0; k < wave->n; k++)
            wave->points[k] = &g_array_index(all, Sliced, first + (guint)k).point;
        plan_run_threads(run, wave);
        for (int k = 0; k < wave->n; k++) {
            g_array_index(all, Sliced, first + (guint)k).estimate_ns =
                wave->outcomes[k].estimate_ns;
            plan_outcome_clear(&wave->outcomes[k]);
        }
    }
    if (all->len > 1)
        qsort(all->data, all->len, sizeof(Sliced), compare_estimates);
    return all;
}

/* Whether @point is @like with other chunks or stages. */
static bool
is_variant(const PlanPoint *point, const PlanPoint *like)
{
    const PlanDegrees *a = &point->degrees, *b = &like->degrees;

    return a->dp == b->dp && a->tp == b->tp && a->pp == b->pp && a->cp == b->cp && a->ep == b->ep &&
           a->rank_order == b->rank_order && a->vpp <= MAX(b->vpp, PLAN_RUN_SLICED_CHUNKS) &&
           point->micro_batch == like->micro_batch && point->zero_stage == like->zero_stage &&
           point->offload == like->offload && point->sequence_parallel == like->sequence_parallel;
}

/* How long @point takes at the least with any slices; 0: nothing is known.  All families that slice
 * lie in a loop, so they have the same stages. */
static int64_t
floor_ns(const PlanRun *run, const PlanPoint *point)
{
    const PlanSpace *space = run->space;

    for (guint i = 0; i < space->families->len; i++) {
        const ScheduleFamily *family = space->families->pdata[i];
        if (!family->slices || !plan_space_has_family(space, point, family, 2))
            continue;
        g_autofree int64_t *even = plan_partition_even(run->request, point, family);
        return plan_floor_ns(
            run->request, point,
            point->is_balanced
                ? plan_partition_balanced(run->evaluation.memo, run->request, point, family)
                : even);
    }
    return 0;
}

/*
 * Lowers the run's bound to that of all slicings of the space; @points by sliced_bound_ns.  A
 * point's sharper bound costs milliseconds, so it is taken of those that matter: least
 * sliced_bound_ns first, until a sharper one is less than what follows.
 */
static void
bound_points(PlanRun *run, const PlanPoint *const *points)
{
    int64_t least = INT64_MAX;
    int n_sharp = 0;

    for (guint i = 0; i < run->space->points->len; i++) {
        const PlanPoint *point = points[i];
        int64_t bound_ns = point->sliced_bound_ns;
        if (point->sliced_bytes > run->evaluation.memory_limit_bytes)
            continue;
        if (bound_ns >= MIN(least, run->lower_bound_ns))
            break;
        if (n_sharp++ < MAX_SHARP && !plan_evaluation_is_stopped(&run->evaluation))
            bound_ns = MAX(bound_ns, floor_ns(run, point));
        least = MIN(least, bound_ns);
    }
    run->lower_bound_ns = MIN(run->lower_bound_ns, least);
}

/* By estimate; the variants of one after the other. */
void
plan_run_slices(PlanRun *run)
{
    const guint n = run->space->points->len;
    g_autofree const PlanPoint **points = plan_run_sort(run, compare_by_slices);
    g_autofree PlanWave *wave = g_new0(PlanWave, 1);
    g_autofree bool *tried = g_new0(bool, n);
    int n_tried = 0;

    g_autoptr(GArray) all = estimate_points(run, points);
    wave->evaluate = plan_evaluate_slices;
    for (guint k = 0; k < all->len && n_tried < MAX_SLICED; k++) {
        if (plan_evaluation_is_stopped(&run->evaluation))
            break;
        const Sliced *sliced = &g_array_index(all, Sliced, k);
        if (sliced->estimate_ns > most_estimate_ns(run, all->len))
            break;
        wave->n = 0;
        for (guint i = 0; i < n && wave->n < PLAN_SLICED_WAVE; i++)
            if (!tried[i] && is_variant(points[i], &sliced->point) && may_gain(run, points[i])) {
                wave->points[wave->n++] = points[i];
                tried[i] = true;
            }
        n_tried += wave->n;
        plan_run_wave(run, wave);
    }
    bound_points(run, points);
}
