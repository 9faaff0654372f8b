#include "planner/sliced.h"

#include <stdlib.h>
#include <string.h>

#include "base/order.h"
#include "base/parallel.h"
#include "planner/bounds/floor.h"
#include "planner/bounds/point_bound.h"
#include "planner/partition/partitions.h"
#include "planner/trial/slices.h"

/* Points whose slicing is estimated, at a millisecond each; and found, at a tenth of a second. */
#define MAX_ESTIMATED 384
#define MAX_SLICED 24
/* Sharper bounds of all points, stages and sizes of micro-batches together, at some 10 us each. */
#define MAX_FLOORS (1 << 16)
/* How many of them are taken at once, all against what was known before: enough for many threads.  More
 * where those before have lowered nothing. */
#define FLOORS_AT_ONCE 32
#define MOST_FLOORS_AT_ONCE 256
/* Points that hold down the bound of all slicings, and are sliced for it. */
#define MAX_LEAST 2
#define MAX_LEAST_SIZES 4 /* of micro-batches, in even and balanced stages */
/* Estimates of a space that is looked at closely. */
#define SMALL_SPACE 64
/* Points that are sliced at once: each takes as long as hundreds of others. */
#define SLICED_WAVE 16
/* Slices that cannot gain one part in so many are not looked for. */
#define LEAST_GAIN 50

int64_t
plan_sliced_least_gain(int64_t limit)
{
    return limit - limit / LEAST_GAIN;
}

static int
compare_by_slices(const void *a, const void *b)
{
    const PlanPoint *x = *(const PlanPoint *const *)a, *y = *(const PlanPoint *const *)b;

    ORDER_BY(x->sliced_bound_ns, y->sliced_bound_ns);
    return ORDER(x->index, y->index);
}

/* A point of any family and number of chunks, and what it may take with slices. */
typedef struct {
    PlanPoint point;
    int64_t estimate_ns;
} Sliced;

static int
compare_estimates(const void *a, const void *b)
{
    const Sliced *x = a, *y = b;

    ORDER_BY(x->estimate_ns, y->estimate_ns);
    return ORDER(x->point.index, y->point.index);
}

/* Whether slices at @point may be worth it. */
static bool
may_gain(const PlanRun *run, const PlanPoint *point)
{
    return point->sliced_bound_ns != INT64_MAX &&
           point->sliced_bytes <= run->evaluation.memory_limit_bytes &&
           point->sliced_bound_ns <= plan_sliced_least_gain(plan_run_limit(run));
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
    const int64_t least = plan_sliced_least_gain(plan_run_limit(run));

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
           a->rank_order == b->rank_order && a->vpp <= MAX(b->vpp, PLAN_SLICED_CHUNKS) &&
           point->micro_batch == like->micro_batch && point->zero_stage == like->zero_stage &&
           point->offload == like->offload && point->sequence_parallel == like->sequence_parallel;
}

/* Plans whose sharper bound is one number: some points have them in common, with other sizes of
 * micro-batches. */
typedef struct {
    PlanDegrees degrees;
    int64_t group, n_sequences, zero_stage, offload, sequence_parallel, is_balanced;
} FloorKey;

static guint
floor_key_hash(gconstpointer key)
{
    const guint8 *bytes = key;
    guint hash = 5381;

    for (size_t i = 0; i < sizeof(FloorKey); i++)
        hash = hash * 33 + bytes[i];
    return hash;
}

static gboolean
floor_key_equal(gconstpointer a, gconstpointer b)
{
    return memcmp(a, b, sizeof(FloorKey)) == 0;
}

/* A point whose sharper bound is to be taken, with all sizes of its largest micro-batch for which it may be
 * below what is known. */
typedef struct {
    const PlanRun *run; /* (borrowed) */
    PlanPoint point;
    const ScheduleFamily *family; /* which gives the stages */
    int64_t groups[PLAN_POINT_MAX_REGROUPED + 1];
    int n_groups;
    bool is_bounded;  /* else the bound without any floor stands */
    int64_t known_ns; /* larger bounds are of no use */
    int64_t least_ns; /* the bound, which a floor may raise */
} FloorTask;

/* The bound of all slicings, as far as it is known. */
typedef struct {
    const PlanRun *run;
    GHashTable *seen; /* (owned) of (owned) FloorKey: what has been bounded */
    GArray *tasks;    /* (owned) of FloorTask: what is bounded next, all at once */
    int64_t least_ns; /* of what has been bounded */
    int n_left;       /* sharper bounds that may be taken */
    guint n_at_once;
    /* The points of the least bounds, the least one last. */
    PlanPoint least[MAX_LEAST];
    int n_least;
} Floors;

/* Whether @point with micro-batches of up to @group sequences is met for the first time. */
static bool
is_new(Floors *floors, const PlanPoint *point, int64_t group)
{
    FloorKey *key = g_new0(FloorKey, 1);

    key->degrees = point->degrees;
    key->group = group;
    key->n_sequences = point->n_micro_batches * point->micro_batch;
    key->zero_stage = point->zero_stage;
    key->offload = (int64_t)point->offload;
    key->sequence_parallel = point->sequence_parallel;
    key->is_balanced = point->is_balanced;
    return g_hash_table_add(floors->seen, key);
}

/* Keeps @point, whose bound is the least so far, in place of the one of the largest bound. */
static void
note_least(Floors *floors, const PlanPoint *point)
{
    if (floors->n_least == MAX_LEAST)
        memmove(floors->least, floors->least + 1, (MAX_LEAST - 1) * sizeof *floors->least);
    else
        floors->n_least++;
    floors->least[floors->n_least - 1] = *point;
}

/* ParallelFunc: how long the point of task number @i takes at the least with any slices: the least over
 * the sizes of its largest micro-batch. */
static void
bound_task(int64_t i, void *user_data)
{
    FloorTask *task = &g_array_index((GArray *)user_data, FloorTask, i);
    const PlanRun *run = task->run;
    const PlanPoint *point = &task->point;

    if (!task->is_bounded)
        return;
    g_autofree int64_t *even = plan_partition_even(run->request, point, task->family);
    const PlanFloorAsked asked = {
        .memo = run->evaluation.memo,
        .request = run->request,
        .point = point,
        .cost = plan_space_cost(run->space, point),
        .counts = point->is_balanced ? plan_partition_balanced(run->evaluation.memo, run->request,
                                                               point, task->family)
                                     : even,
        .memory_bytes = run->evaluation.memory_limit_bytes,
    };
    const int64_t floor_ns = plan_floor_ns(&asked, task->groups, task->n_groups, task->known_ns);
    task->least_ns = MAX(task->least_ns, floor_ns);
}

/* Bounds all tasks in the run's threads, and lowers the bound to theirs in their order: so the number of
 * threads changes nothing, nor does it matter that they did not know of each other. */
static void
bound_tasks(Floors *floors)
{
    const PlanRun *run = floors->run;
    const int64_t before_ns = floors->least_ns;

    parallel_each(floors->tasks->len, run->request->threads, bound_task, floors->tasks);
    for (guint i = 0; i < floors->tasks->len; i++) {
        const FloorTask *task = &g_array_index(floors->tasks, FloorTask, i);
        if (task->least_ns >= floors->least_ns)
            continue;
        note_least(floors, &task->point);
        floors->least_ns = task->least_ns;
    }
    floors->n_at_once = floors->least_ns < before_ns
                            ? FLOORS_AT_ONCE
                            : MIN(2 * floors->n_at_once, MOST_FLOORS_AT_ONCE);
    g_array_set_size(floors->tasks, 0);
}

/* Adds the task of @point in the stages of @family, unless its bound without a floor says enough. */
static void
add_task(Floors *floors, const PlanPoint *point, const ScheduleFamily *family)
{
    const PlanRun *run = floors->run;
    const PlanRequest *request = run->request;
    const PlanLayerCost *cost = plan_space_cost(run->space, point);
    const int64_t memory_bytes = run->evaluation.memory_limit_bytes;
    FloorTask task = {.run = run,
                      .point = *point,
                      .family = family,
                      .known_ns = floors->least_ns,
                      .least_ns = INT64_MAX};

    for (int64_t group = point->micro_batch;
         group == point->micro_batch || (group >= 1 && plan_point_regroups(request, point));
         group--) {
        PlanPoint one = *point;
        plan_point_set_group(request, cost, memory_bytes, group, &one);
        if (one.sliced_bytes > memory_bytes || !is_new(floors, point, group))
            continue;
        const int64_t bound_ns = plan_point_sliced_ns(request, cost, &one);
        if (bound_ns >= floors->least_ns)
            continue;
        task.least_ns = MIN(task.least_ns, bound_ns);
        task.groups[task.n_groups++] = group;
    }
    if (task.n_groups == 0)
        return;
    task.is_bounded = floors->n_left-- > 0;
    g_array_append_val(floors->tasks, task);
}

/* The same in the point's own stages.  All families that slice lie in a loop, so they have the same
 * stages. */
static void
add_point(Floors *floors, const PlanPoint *point)
{
    const PlanSpace *space = floors->run->space;

    for (guint i = 0; i < space->families->len; i++) {
        const ScheduleFamily *family = space->families->pdata[i];
        if (!family->slices || !plan_space_has_family(space, point, family, 2))
            continue;
        add_task(floors, point, family);
        return;
    }
}

/* The same of @point, of space->chunked, with all numbers of chunks that are too many to be sliced,
 * even and balanced. */
static void
add_chunked(Floors *floors, const PlanPoint *point)
{
    PlanPoint one = *point;

    for (; one.degrees.vpp > MAX(floors->run->request->vpp, PLAN_SLICED_CHUNKS); one.degrees.vpp--)
        for (int balanced = 0; balanced <= 1; balanced++) {
            one.is_balanced = balanced == 1;
            add_point(floors, &one);
        }
}

/* Lowers the run's bound to that of all slicings of the space: points of the least sliced_bound_ns
 * first, until what is known is less than what follows, or until many were bounded sharply. */
static void
bound_points(PlanRun *run, Floors *floors)
{
    const PlanSpace *space = run->space;
    const guint n = space->points->len, n_all = n + space->chunked->len;
    g_autofree const PlanPoint **points = g_new(const PlanPoint *, n_all);
    g_autoptr(GHashTable) seen =
        g_hash_table_new_full(floor_key_hash, floor_key_equal, g_free, NULL);
    g_autoptr(GArray) tasks = g_array_new(FALSE, FALSE, sizeof(FloorTask));

    *floors = (Floors){.run = run,
                       .seen = seen,
                       .tasks = tasks,
                       .least_ns = run->lower_bound_ns,
                       .n_left = MAX_FLOORS,
                       .n_at_once = FLOORS_AT_ONCE};
    for (guint i = 0; i < n_all; i++)
        points[i] = i < n ? &g_array_index(space->points, PlanPoint, i)
                          : &g_array_index(space->chunked, PlanPoint, i - n);
    if (n_all > 1)
        qsort(points, n_all, sizeof *points, compare_by_slices);
    for (guint i = 0; i < n_all && points[i]->sliced_bound_ns < floors->least_ns; i++) {
        const PlanPoint *point = points[i];
        if (point->sliced_bytes > run->evaluation.memory_limit_bytes)
            continue;
        if (plan_evaluation_is_stopped(&run->evaluation)) {
            floors->least_ns = point->sliced_bound_ns;
            break;
        }
        if (point->degrees.vpp > MAX(run->request->vpp, PLAN_SLICED_CHUNKS))
            add_chunked(floors, point);
        else
            add_point(floors, point);
        if (tasks->len >= floors->n_at_once)
            bound_tasks(floors);
    }
    bound_tasks(floors);
    run->lower_bound_ns = floors->least_ns;
}

/* Whether both differ in the size of micro-batches alone, or in the stages. */
static bool
are_regrouped(const PlanPoint *a, const PlanPoint *b)
{
    return memcmp(&a->degrees, &b->degrees, sizeof a->degrees) == 0 &&
           a->zero_stage == b->zero_stage && a->offload == b->offload &&
           a->sequence_parallel == b->sequence_parallel;
}

/* Sets @found to points like @least, which has more chunks than others that are sliced, with each size of
 * micro-batches: space->chunked has each of them once, for all numbers of chunks.  Returns: how many. */
static int
chunked_points(const PlanRun *run, const PlanPoint *least, PlanPoint found[MAX_LEAST_SIZES])
{
    const GArray *chunked = run->space->chunked;
    int n = 0;

    for (guint i = chunked->len; i-- > 0 && n < MAX_LEAST_SIZES;) {
        PlanPoint one = g_array_index(chunked, PlanPoint, i);
        one.degrees.vpp = least->degrees.vpp;
        one.is_balanced = least->is_balanced;
        if (are_regrouped(&one, least) && may_gain(run, &one))
            found[n++] = one;
    }
    return n;
}

/* Slices the points of the least bounds with each size of micro-batches, unless they were. */
static void
slice_least(PlanRun *run, const Floors *floors, const PlanPoint **points, bool *tried)
{
    const guint n = run->space->points->len;
    const int64_t most_chunks = MAX(run->request->vpp, PLAN_SLICED_CHUNKS);
    g_autofree PlanWave *wave = g_new0(PlanWave, 1);
    PlanPoint chunked[MAX_LEAST_SIZES];

    wave->evaluate = plan_evaluate_slices;
    run->evaluation.slices_briefly = true;
    for (int k = floors->n_least - 1; k >= 0 && !plan_evaluation_is_stopped(&run->evaluation);
         k--) {
        const PlanPoint *least = &floors->least[k];
        const bool is_chunked = least->degrees.vpp > most_chunks;
        wave->n = is_chunked ? chunked_points(run, least, chunked) : 0;
        for (int i = 0; i < wave->n; i++)
            wave->points[i] = &chunked[i];
        /* The smallest micro-batches have the largest bounds. */
        for (guint i = n; i-- > 0 && wave->n < MAX_LEAST_SIZES && !is_chunked;)
            if (!tried[i] && are_regrouped(points[i], least) && may_gain(run, points[i])) {
                wave->points[wave->n++] = points[i];
                tried[i] = true;
            }
        plan_run_wave(run, wave);
    }
}

void
plan_sliced_search(PlanRun *run)
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
        for (guint i = 0; i < n && wave->n < SLICED_WAVE; i++)
            if (!tried[i] && is_variant(points[i], &sliced->point) && may_gain(run, points[i])) {
                wave->points[wave->n++] = points[i];
                tried[i] = true;
            }
        n_tried += wave->n;
        plan_run_wave(run, wave);
    }
    if (run->request->skips_bound)
        return;
    g_autofree Floors *floors = g_new(Floors, 1);
    bound_points(run, floors);
    slice_least(run, floors, points, tried);
}
