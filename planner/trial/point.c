#include "planner/trial/point.h"

#include <math.h>
#include <string.h>

#include "base/units.h"
#include "planner/bounds/point_bound.h"
#include "planner/bounds/rank_kinds.h"
#include "planner/partition/divisions.h"
#include "planner/partition/partitions.h"

/* Layers are divided in all ways where there are no more. */
#define MAX_DIVISIONS 64

/* A family at the point: its sketch, and what it is made of. */
typedef struct {
    PlanTrial *trial;             /* (borrowed) */
    const ScheduleFamily *family; /* (borrowed) */
    PlanSketchInput input;
    PlanSketch sketch;
    int64_t length; /* stages of a chain */
    Plan *plan;     /* (owned, nullable) made once; its stages are set for each try */
} FamilyTrial;

/* --- what the stages recompute --- */

/* (borrowed) the family's plan at the point, made once something is worth a try. */
static Plan *
plan_of(FamilyTrial *f)
{
    const PlanLayerShape shape = plan_point_layer_shape(f->trial->point);

    if (f->plan != NULL)
        return f->plan;
    f->plan = plan_space_plan(f->input.request, f->trial->point, f->family);
    if (!plan_request_slices(f->input.request,
                             plan_granularity(&shape.degrees, shape.sequence_parallel),
                             f->plan->slices))
        g_assert_not_reached(); /* such a point is none of the space */
    return f->plan;
}

/* Tries the layers of the sketch with the recompute kinds @recomputes [stage]; @large as in
 * trial.h. */
static PlanTried
try_recomputes(FamilyTrial *f, const int *recomputes, Report **large)
{
    const int64_t bound_ns = plan_sketch_recomputes_ns(&f->sketch, &f->input, recomputes);

    if (!f->trial->evaluation->is_timeless && plan_trial_is_slow(f->trial, bound_ns)) {
        f->trial->order++;
        f->trial->outcome->pruned++;
        return PLAN_TRIED_PRUNED;
    }
    plan_partition_apply(f->input.counts, f->length, recomputes, plan_of(f));
    return plan_trial_orders(f->trial, f->plan, f->family, large);
}

/* Whether slower kinds on all stages are tried as well: as alternatives, or since there a slower
 * kind may be the faster plan, also where an order is made to fit: with less to keep it waits less.  Orders that
 * are searched for take too long for that. */
static bool
wants_all_recomputes(const FamilyTrial *f)
{
    const PlanLayerShape shape = plan_point_layer_shape(f->trial->point);

    return f->input.request->top > 0 || (f->family->reads_times && !f->family->searches) ||
           plan_layer_recomputes_depend(f->input.request, &shape);
}

/*
 * One stage per rank: each with its fastest kind that fits.  More time for an op never makes an
 * order of ops faster, and a rank's memory is its own, so no other kinds are better.  Where the
 * sketch took a rank for smaller than it is, the simulator says so, and the rank's next kind is
 * tried.
 */
static void
try_own_recomputes(FamilyTrial *f)
{
    const int64_t n = f->sketch.n_stages;
    g_autofree int *recomputes = g_new(int, (size_t)n);

    for (int64_t k = 0; k < n; k++)
        recomputes[k] = f->sketch.recomputes[f->sketch.stages[k].rank];
    for (;;) {
        Report *large = NULL;
        if (try_recomputes(f, recomputes, &large) != PLAN_TRIED_LARGE || large == NULL)
            return;
        bool changed = false, hopeless = false;
        for (int64_t k = 0; k < n; k++) {
            const int32_t rank = f->sketch.stages[k].rank;
            const int64_t limit = f->sketch.usable_bytes[rank];
            if (limit == 0 ||
                g_array_index(large->ranks, ReportRank, rank).peak_memory_bytes <= limit)
                continue;
            recomputes[k] = plan_request_slower_recompute(f->input.request, recomputes[k]);
            hopeless = hopeless || recomputes[k] < 0;
            changed = true;
        }
        report_free(large);
        if (!changed || hopeless)
            return;
    }
}

/* All stages of all ranks with @kind. */
static PlanTried
try_one_recompute(FamilyTrial *f, int kind)
{
    g_autofree int *recomputes = g_new(int, (size_t)f->sketch.n_stages);

    for (int64_t k = 0; k < f->sketch.n_stages; k++)
        recomputes[k] = kind;
    return try_recomputes(f, recomputes, NULL);
}

/* What a chunk holds at each moment, and the workspace of its ops there. */
typedef struct {
    int64_t held[PLAN_MOMENT_N], workspace[PLAN_MOMENT_N];
} ChunkBytes;

static ChunkBytes
chunk_bytes(const FamilyTrial *f, const PlanSketchStage *stage, int recompute)
{
    ChunkBytes bytes;

    for (int moment = 0; moment < PLAN_MOMENT_N; moment++) {
        bytes.held[moment] = plan_sketch_held(&f->input, stage, (PlanMoment)moment, recompute);
        bytes.workspace[moment] =
            plan_sketch_workspace(&f->input, stage, (PlanMoment)moment, recompute);
    }
    return bytes;
}

/* The bytes of @rank with @chunks as they are, after the sketch. */
static int64_t
rank_bytes(const FamilyTrial *f, int32_t rank, const ChunkBytes *chunks, int32_t n_chunks)
{
    int64_t most = 0;

    for (int moment = 0; moment < PLAN_MOMENT_N; moment++) {
        int64_t held = 0, workspace = 0;
        for (int32_t chunk = 0; chunk < n_chunks; chunk++) {
            held += chunks[chunk].held[moment];
            workspace = MAX(workspace, chunks[chunk].workspace[moment]);
        }
        most = MAX(most, held + workspace);
    }
    return f->sketch.static_bytes[rank] + most;
}

/* Of @rank's chunks with a faster kind than @recompute the one that has most in flight, of equal
 * ones the first; there is one. */
static int32_t
fullest_chunk(const FamilyTrial *f, int32_t rank, int recompute, const int *recomputes,
              int32_t n_chunks)
{
    int32_t best = -1;
    int64_t most = -1;

    for (int32_t chunk = 0; chunk < n_chunks; chunk++) {
        const PlanSketchStage *stage = plan_sketch_stage_at(&f->sketch, rank, chunk);
        const int64_t n_in_flight =
            plan_flight_n_held(f->input.flight, rank, PLAN_MOMENT_BACKWARD, 0, stage->chunk);
        if (recomputes[stage - f->sketch.stages] == recompute || n_in_flight <= most)
            continue;
        most = n_in_flight;
        best = chunk;
    }
    return best;
}

/* Chunks: a rank recomputes no more of them than it must, first those that have most in flight.
 * Slower kinds come one after the other, so that it ends with all chunks at the slowest.  Returns
 * whether every rank fits, after the sketch. */
static bool
choose_recomputes(const FamilyTrial *f, int *recomputes)
{
    const PlanSketch *sketch = &f->sketch;
    const PlanRequest *request = f->input.request;
    const int32_t n_chunks = (int32_t)(sketch->n_stages / sketch->n_ranks);
    const int first = plan_request_slower_recompute(request, -1);
    g_autofree ChunkBytes *chunks = g_new(ChunkBytes, (size_t)n_chunks);

    for (int64_t k = 0; k < sketch->n_stages; k++)
        recomputes[k] = first;
    for (int32_t r = 0; r < sketch->n_ranks; r++) {
        const int64_t limit = sketch->usable_bytes[r];
        if (limit == 0)
            continue;
        for (int32_t chunk = 0; chunk < n_chunks; chunk++)
            chunks[chunk] = chunk_bytes(f, plan_sketch_stage_at(sketch, r, chunk), first);
        int64_t bytes = rank_bytes(f, r, chunks, n_chunks);
        for (int recompute = plan_request_slower_recompute(request, first); recompute >= 0;
             recompute = plan_request_slower_recompute(request, recompute))
            for (int32_t n = 0; n < n_chunks && bytes > limit; n++) {
                const int32_t chunk = fullest_chunk(f, r, recompute, recomputes, n_chunks);
                const PlanSketchStage *stage = plan_sketch_stage_at(sketch, r, chunk);
                recomputes[stage - sketch->stages] = recompute;
                chunks[chunk] = chunk_bytes(f, stage, recompute);
                bytes = rank_bytes(f, r, chunks, n_chunks);
            }
        if (bytes > limit)
            return false;
    }
    return true;
}

/* One kind for all stages: the fastest that fits (slower ones take longer), or all that do. */
static void
try_alike(FamilyTrial *f, bool wants_all)
{
    int slowest = 0;

    for (int32_t r = 0; r < f->sketch.n_ranks; r++)
        slowest = MAX(slowest, f->sketch.recomputes[r]);
    for (int kind = slowest; kind >= 0;
         kind = plan_request_slower_recompute(f->input.request, kind))
        if (try_one_recompute(f, kind) != PLAN_TRIED_LARGE && !wants_all)
            break;
}

/* Several stages per rank: one kind for all of them, and, where that is not the fastest there is,
 * each chunk in its own. */
static void
try_shared_recomputes(FamilyTrial *f)
{
    try_alike(f, wants_all_recomputes(f));
    if (f->sketch.fits_plain)
        return;
    g_autofree int *recomputes = g_new(int, (size_t)f->sketch.n_stages);
    if (!choose_recomputes(f, recomputes))
        return;
    bool differ = false;
    for (int64_t k = 1; k < f->sketch.n_stages; k++)
        differ = differ || recomputes[k] != recomputes[0];
    if (differ)
        try_recomputes(f, recomputes, NULL);
}

/* Whether a rank of the sketch has more than is of interest if all its layers have the recompute kind
 * @kind. */
static bool
is_beyond_limit(const FamilyTrial *f, int kind)
{
    for (int32_t r = 0; r < f->sketch.n_ranks; r++)
        if (f->sketch.bytes[r * PLAN_RECOMPUTE_N + kind] > f->trial->limit)
            return true;
    return false;
}

/* The plan of least memory: each rank with the kind that holds least, and all kinds alike. */
static void
try_leanest(FamilyTrial *f)
{
    g_autofree int *recomputes = g_new(int, (size_t)f->sketch.n_stages);

    for (int kind = 0; kind < PLAN_RECOMPUTE_N; kind++)
        if (plan_request_allows(f->input.request, kind) && !is_beyond_limit(f, kind))
            try_one_recompute(f, kind);
    if (f->sketch.shares)
        return;
    for (int64_t k = 0; k < f->sketch.n_stages; k++) {
        const int64_t *bytes = &f->sketch.bytes[f->sketch.stages[k].rank * PLAN_RECOMPUTE_N];
        recomputes[k] = plan_request_slower_recompute(f->input.request, -1);
        for (int kind = recomputes[k]; kind >= 0;
             kind = plan_request_slower_recompute(f->input.request, kind))
            if (bytes[kind] < bytes[recomputes[k]])
                recomputes[k] = kind;
    }
    try_recomputes(f, recomputes, NULL);
}

/* Whether the fastest kind that fits is @kind on every rank. */
static bool
is_own_recompute(const FamilyTrial *f, int kind)
{
    for (int32_t r = 0; r < f->sketch.n_ranks; r++)
        if (f->sketch.recomputes[r] != kind)
            return false;
    return true;
}

/* The least memory of what does not fit, here or at points before: what needs more is not remembered. */
static int64_t
least_known_bytes(const PlanTrial *trial)
{
    return MIN(trial->outcome->least_bytes, trial->evaluation->least_bytes);
}

/* Remembers the sketched layers, which do not fit, each stage with what holds least. */
static void
note_sketched(FamilyTrial *f)
{
    const int recompute = f->input.request->recompute == PLAN_AUTO ? PLAN_RECOMPUTE_FULL
                                                                   : f->input.request->recompute;
    g_autofree int *recomputes = g_new(int, (size_t)f->sketch.n_stages);

    for (int64_t k = 0; k < f->sketch.n_stages; k++)
        recomputes[k] = recompute;
    plan_partition_apply(f->input.counts, f->length, recomputes, plan_of(f));
    plan_trial_note_large(f->trial, f->plan, f->sketch.fullest_bytes);
}

/* Whether the sketched layers may be of less memory than what is known: what ops of each kind and chunk hold,
 * which takes a schedule to know, is asked only where the moments of flight.h leave it open. */
static bool
is_lean_enough(FamilyTrial *f)
{
    const PlanTrial *trial = f->trial;

    if (f->sketch.fullest_bytes > trial->limit)
        return false;
    if (trial->limit == INT64_MAX || (!f->sketch.shares && !f->family->splits_backward))
        return true;
    const ScheduleShape shape = plan_point_shape(f->input.request, trial->point, f->family,
                                                 trial->evaluation->space->n_slices);
    plan_sketch_weigh_fullest(&f->sketch, &f->input,
                              plan_fullest_get(trial->evaluation->memo, f->family, &shape));
    return f->sketch.fullest_bytes <= trial->limit;
}

/* Tries the sketched layers with recompute kinds, unless the sketch says that it is no use. */
static void
try_sketched(FamilyTrial *f)
{
    PlanTrial *trial = f->trial;

    if (!f->sketch.fits) {
        trial->outcome->infeasible++;
        if (f->sketch.fullest_bytes < least_known_bytes(trial))
            note_sketched(f);
        return;
    }
    const bool is_sliced = f->input.n_slices > 1;
    if (trial->evaluation->is_timeless) {
        if (!is_lean_enough(f))
            return;
        if (is_sliced)
            try_alike(f, true);
        else
            try_leanest(f);
    } else if (plan_trial_is_slow(trial, f->sketch.bound_ns)) {
        return;
    } else if (is_sliced) {
        try_alike(f, wants_all_recomputes(f));
    } else if (f->sketch.shares) {
        try_shared_recomputes(f);
    } else {
        for (int kind = 0; kind < PLAN_RECOMPUTE_N && wants_all_recomputes(f); kind++)
            if (plan_request_allows(f->input.request, kind) && !is_own_recompute(f, kind))
                try_one_recompute(f, kind);
        try_own_recomputes(f);
    }
}

/* --- one family --- */

/* Sketches the layers @counts. */
static void
sketch_layers(FamilyTrial *f, const int64_t *counts)
{
    plan_sketch_clear(&f->sketch);
    f->input.counts = counts;
    plan_sketch_init(&f->sketch, &f->input);
    plan_sketch_weigh(&f->sketch, &f->input);
}

/* Whether anything may be too slow: bounds are of use. */
static bool
prunes_by_time(const PlanTrial *trial)
{
    return !trial->evaluation->is_timeless && trial->limit < INT64_MAX;
}

/* Whether nothing of @family can be fast enough at the point; noted if so.  This is known sooner
 * than what ranks hold, and at less cost. */
static bool
is_slow_family(PlanTrial *trial, const PlanRequest *request, const ScheduleFamily *family)
{
    const PlanSpace *space = trial->evaluation->space;
    const PlanPointFamilies alone = plan_point_family(family);

    if (!prunes_by_time(trial))
        return false;
    return plan_trial_is_slow(trial,
                              plan_point_bound_ns(request, plan_space_cost(space, trial->point),
                                                  plan_space_slice_cost(space, trial->point),
                                                  trial->point, &alone));
}

/* Whether layers are divided in all ways; the bounds of balanced points hold of any. */
static bool
divides_in_all_ways(const FamilyTrial *f)
{
    return f->trial->point->is_balanced && !f->trial->evaluation->skips_divisions &&
           plan_divisions_n(f->input.request, f->length) <= MAX_DIVISIONS;
}

/* Whether single stages of whole sequences may be divided so that they fit. */
static bool
may_divide_otherwise(const FamilyTrial *f)
{
    return f->trial->point->is_balanced && !f->sketch.shares && f->input.n_slices == 1 &&
           !f->trial->evaluation->is_timeless && !divides_in_all_ways(f);
}

/* Whether the sketched layers are too slow with any recompute kind; noted if so. */
static bool
is_slow_layout(FamilyTrial *f)
{
    if (!prunes_by_time(f->trial) || may_divide_otherwise(f))
        return false;
    return plan_trial_is_slow(f->trial, plan_sketch_recomputes_ns(&f->sketch, &f->input, NULL));
}

/* A division that fits, in place of one that fits only with recompute, or not at all.  False: there
 * is none, or it is too slow.  @fitted (out, owned by the caller) holds its counts. */
static bool
sketch_fitted(FamilyTrial *f, int64_t **fitted)
{
    const int64_t m = f->trial->point->n_micro_batches;
    /* A division that is too slow need not be found; its bound is that of all. */
    const double longest_s = plan_partition_fitted_bound_s(&f->input, &f->sketch);
    const int64_t bound_ns =
        units_ns_from_s(fmax(0.0, longest_s) * (double)m * (1.0 - 1e-9)) - 3 * m;

    if (longest_s < 0.0 || plan_trial_is_slow(f->trial, bound_ns))
        return false;
    *fitted = g_new(int64_t, (size_t)f->length);
    if (!plan_partition_fitted(&f->input, &f->sketch, *fitted) ||
        memcmp(*fitted, f->input.counts, (size_t)f->length * sizeof **fitted) == 0)
        return false;
    sketch_layers(f, *fitted);
    return true;
}

/* Whether all micro-batches at once, which families that run all forwards first hold, are more than
 * fits, however layers are divided and whatever they recompute; and no nearer to fitting than what
 * is known.  This is known without what ranks hold. */
static bool
is_large_family(const FamilyTrial *f)
{
    const PlanEvaluation *evaluation = f->trial->evaluation;

    if (!f->family->forwards_first || f->input.n_slices > 1)
        return false;
    const int64_t bytes =
        plan_point_forwards_first_bytes(f->input.request, f->input.cost, f->trial->point);
    return bytes > evaluation->memory_limit_bytes && bytes >= evaluation->least_bytes;
}

/* Sets what the family's schedule holds, and from where on a sketch is of no use. */
static void
set_flight(FamilyTrial *f)
{
    ScheduleShape shape = plan_point_shape(f->input.request, f->trial->point, f->family,
                                           f->trial->evaluation->space->n_slices);

    shape.merges =
        false; /* a merged forward takes its memory while a backward gives back as much */
    f->input.flight = plan_flight_get(f->trial->evaluation->memo, f->family, &shape);
    f->input.enough_bytes = least_known_bytes(f->trial);
    f->input.most_bytes = f->trial->evaluation->is_timeless ? f->trial->limit : 0;
}

/* Tries the sketched layers, weighed for the first time. */
static void
try_layout(FamilyTrial *f, bool is_new)
{
    g_autofree int64_t *fitted = NULL;

    set_flight(f);
    plan_sketch_weigh(&f->sketch, &f->input);
    if (is_new)
        try_sketched(f);
    /* More layers where memory is, or where less must be computed again. */
    if (may_divide_otherwise(f) && !f->sketch.fits_plain && sketch_fitted(f, &fitted))
        try_sketched(f);
}

/* What has been tried before all divisions are. */
typedef struct {
    FamilyTrial *trial;
    const int64_t *even, *balanced;
} Division;

/* A PlanDivisionFunc. */
static void
try_division(const int64_t *counts, void *user_data)
{
    const Division *division = user_data;
    FamilyTrial *f = division->trial;
    const size_t n_bytes = (size_t)f->length * sizeof *counts;

    if (memcmp(counts, division->even, n_bytes) == 0 ||
        memcmp(counts, division->balanced, n_bytes) == 0)
        return;
    plan_sketch_clear(&f->sketch);
    f->input.counts = counts;
    plan_sketch_init(&f->sketch, &f->input);
    if (is_slow_layout(f))
        return;
    set_flight(f);
    plan_sketch_weigh(&f->sketch, &f->input);
    try_sketched(f);
}

/* Tries what the point divides: even stages, or balanced and other ones. */
static void
try_layouts(FamilyTrial *f)
{
    const PlanPoint *point = f->trial->point;
    const PlanRequest *request = f->input.request;
    const bool is_large = is_large_family(f);
    /* Even stages need not be made; nor balanced ones where counts may be other ones (PlanRequest.near_tp). */
    if (is_large && (!point->is_balanced || request->near_tp > 0)) {
        f->trial->outcome->infeasible++;
        return;
    }
    g_autofree int64_t *even = plan_partition_even(request, point, f->family);
    const int64_t *counts = point->is_balanced ? plan_partition_balanced(f->trial->evaluation->memo,
                                                                         request, point, f->family)
                                               : even;
    const bool is_new =
        counts == even || memcmp(counts, even, (size_t)f->length * sizeof *even) != 0;
    const Division division = {f, even, counts};

    if (is_large) {
        f->trial->outcome->infeasible += is_new ? 1 : 0;
        return;
    }
    f->input.counts = counts;
    plan_sketch_init(&f->sketch, &f->input);
    if (!is_slow_layout(f))
        try_layout(f, is_new);
    if (divides_in_all_ways(f))
        plan_divisions_each(request, f->length, try_division, (void *)&division);
    plan_sketch_clear(&f->sketch);
    plan_free(f->plan);
}

/* @request  the search's, which may fix less of what stages recompute; @rank_costs as in
 * PlanSketchInput. */
static void
try_family(PlanTrial *trial, const PlanRequest *request, const PlanLayerCost *const *rank_costs,
           const ScheduleFamily *family)
{
    const PlanSpace *space = trial->evaluation->space;
    const PlanPoint *point = trial->point;
    FamilyTrial f = {
        .trial = trial,
        .family = family,
        .input = {.request = request,
                  .point = point,
                  .cost = plan_space_cost(space, point),
                  .slice = plan_space_slice_cost(space, point),
                  .rank_costs = rank_costs,
                  .n_slices = space->n_slices,
                  .family = family,
                  .limits_bytes = trial->limits_bytes,
                  .wants_leanest = trial->evaluation->is_timeless},
        .length = plan_point_chain_length(&point->degrees, family),
    };
    PlanOutcome *outcome = trial->outcome;
    const int64_t n_recomputes = plan_space_n_recomputes(request, point);
    const int64_t before = outcome->simulated + outcome->pruned + outcome->infeasible;

    if (!is_slow_family(trial, request, family))
        try_layouts(&f);
    /* Ways that were not looked at are slower than those that were, or their bound is too high. */
    const int64_t seen = outcome->simulated + outcome->pruned + outcome->infeasible - before;
    outcome->considered += MAX(n_recomputes, seen);
    outcome->pruned += MAX(0, n_recomputes - seen);
}

/* --- one point --- */

/*
 * A pipeline whose stages all recompute alike, as every framework's rules have it: the kinds one
 * after the other, each as if the request fixed it, the fastest first.
 */
static void
try_alike_stages(PlanTrial *trial, const PlanLayerCost *const *rank_costs,
                 const ScheduleFamily *family)
{
    PlanRequest alike = *trial->evaluation->space->request;
    const GPtrArray *found = trial->outcome->found;

    for (int kind = 0; kind < PLAN_RECOMPUTE_N; kind++) {
        if (!plan_request_allows(trial->evaluation->space->request, kind))
            continue;
        alike.recompute = kind;
        try_family(trial, &alike, rank_costs, family);
        for (guint i = 0; i < found->len && alike.top == 0; i++)
            trial->limit = MIN(trial->limit, ((PlanFound *)found->pdata[i])->first);
    }
}

void
plan_evaluate_point(const PlanEvaluation *evaluation, const PlanPoint *point, int64_t limit,
                    PlanOutcome *outcome)
{
    const PlanSpace *space = evaluation->space;
    g_auto(PlanTrial) trial = {0};

    plan_trial_init(&trial, evaluation, point, limit, outcome);
    g_autofree const PlanLayerCost **rank_costs =
        space->n_slices == 1 ? plan_rank_costs(evaluation->memo, space->request, point) : NULL;
    for (guint i = 0; i < space->families->len; i++) {
        const ScheduleFamily *family = space->families->pdata[i];
        if (!plan_space_has_family(space, point, family, space->n_slices))
            continue;
        if (space->request->rules != NULL && point->degrees.pp > 1)
            try_alike_stages(&trial, rank_costs, family);
        else
            try_family(&trial, space->request, rank_costs, family);
    }
}
