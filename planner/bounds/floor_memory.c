#include "planner/bounds/floor_memory.h"

#include <math.h>

#include "base/real.h"
#include "planner/bounds/point_bound.h"
#include "planner/bounds/sketch.h"
#include "profiles/workload/buffers.h"

/* Fewer bytes than a slice's ops may keep because each of them rounds: as in plan_point_set_group(). */
#define ROUNDING (1.0 - 1e-3)

/* What @n of each part keep of one micro-batch in slices with the recompute kind @kind. */
static double
kept_bytes(const PlanLayerCost *cost, const int64_t n[PLAN_PART_N], int kind)
{
    double sum = 0.0;

    for (int i = 0; i < PLAN_PART_N; i++)
        sum += (double)n[i] * (double)cost->parts[i].sliced_bytes[kind];
    return sum;
}

/* The least of the kinds that the request allows. */
static double
least_kept(const PlanRequest *request, const PlanLayerCost *cost, const int64_t n[PLAN_PART_N])
{
    double least = INFINITY;

    for (int kind = 0; kind < PLAN_RECOMPUTE_N; kind++)
        if (plan_request_allows(request, kind))
            least = real_min(least, kept_bytes(cost, n, kind));
    return least;
}

/* What @kind adds to the time of @n of each part of one micro-batch at the least, whatever its slices:
 * as plan_point_sliced_rate() has it. */
static double
added_s(const PlanLayerCost *cost, const int64_t n[PLAN_PART_N], int plain, int kind)
{
    double sum = 0.0;

    for (int i = 0; i < cost->n_kinds; i++)
        sum +=
            (double)n[i] * real_max(0.0, plan_point_sliced_added_s(&cost->parts[i], plain, kind));
    return sum;
}

/* Sets what stage @k of @n of each part keeps and adds with each kind. */
static void
set_kinds(const PlanRequest *request, const PlanLayerCost *cost, const PlanPoint *point,
          const int64_t n[PLAN_PART_N], int64_t k, PlanFloorMemory *memory)
{
    const int plain = plan_request_fastest_recompute(request);

    for (int kind = 0; kind < PLAN_RECOMPUTE_N; kind++) {
        const bool is_allowed = plan_request_allows(request, kind);
        memory->kind_bytes[k][kind] =
            ROUNDING / (double)point->micro_batch * kept_bytes(cost, n, kind);
        memory->kind_s[k][kind] =
            is_allowed ? (double)point->n_micro_batches * added_s(cost, n, plain, kind) : INFINITY;
    }
}

/* Gradients of keys and values of one micro-batch. */
static double
kv_gradient_bytes(const PlanLayerCost *cost, const int64_t n[PLAN_PART_N])
{
    double sum = 0.0;

    for (int i = 0; i < PLAN_PART_N; i++)
        sum += (double)n[i] * (double)cost->parts[i].kv_gradient_bytes;
    return sum;
}

void
plan_floor_memory_init(PlanFloorMemory *memory, const PlanRequest *request,
                       const PlanLayerCost *cost, const PlanPoint *point, const int64_t *counts,
                       int64_t memory_bytes)
{
    const int64_t pp = point->degrees.pp, vpp = point->degrees.vpp;
    /* All families that slice have whole backwards. */
    const PlanSketchInput input = {.request = request,
                                   .point = point,
                                   .cost = cost,
                                   .family = schedule_family_usual(vpp, true)};
    const int plain = plan_request_fastest_recompute(request);
    const double n_sequences = (double)(point->n_micro_batches * point->micro_batch);
    const double share = ROUNDING / (double)point->micro_batch;
    const bool has_vocab = request->arch->vocab > 0;
    const double library_bytes =
        (double)workload_library_bytes(&request->profile->parameters, &request->conventions);
    g_autofree int64_t(*parts)[PLAN_PART_N] = g_malloc0((size_t)pp * sizeof *parts);
    g_autofree double *kept = g_new0(double, (size_t)pp), *whole = g_new0(double, (size_t)pp);

    *memory = (PlanFloorMemory){
        .pp = pp,
        .vpp = vpp,
        .group = vpp > 1 ? request->group : 0,
        .kept_bytes = g_new(double, (size_t)(pp * vpp)),
        .least_bytes = g_new(double, (size_t)(pp * vpp)),
        .kind_bytes = g_malloc0((size_t)(pp * vpp) * sizeof *memory->kind_bytes),
        .kind_s = g_malloc0((size_t)(pp * vpp) * sizeof *memory->kind_s),
        .kv_bytes = g_new(double, (size_t)pp),
        .usable_bytes = g_new(double, (size_t)pp),
        .saving_rate = plan_point_sliced_rate(request, cost),
        .always_fits = true,
    };
    for (int64_t k = 0, begin = 0; k < pp * vpp; begin += counts[k++]) {
        int64_t n[PLAN_PART_N] = {0};
        plan_layer_count(request, begin, begin + counts[k], n);
        set_kinds(request, cost, point, n, k, memory);
        memory->kept_bytes[k] = share * kept_bytes(cost, n, plain);
        memory->least_bytes[k] = share * least_kept(request, cost, n);
        memory->kv_bytes[k % pp] = share * kv_gradient_bytes(cost, n);
        kept[k % pp] += memory->kept_bytes[k];
        n[PLAN_PART_EMBEDDING] = has_vocab && k == 0;
        n[PLAN_PART_HEAD] = has_vocab && k == pp * vpp - 1;
        whole[k % pp] = (double)plan_sketch_whole_bytes(&input, n);
        for (int i = 0; i < PLAN_PART_N; i++)
            parts[k % pp][i] += n[i];
    }
    for (int64_t r = 0; r < pp; r++) {
        memory->usable_bytes[r] = plan_point_usable_bytes(
            request, &point->degrees, memory_bytes,
            (double)plan_sketch_state_bytes(&input, parts[r]) + library_bytes);
        memory->usable_bytes[r] -= whole[r];
        if (n_sequences * (kept[r] + memory->kv_bytes[r]) > memory->usable_bytes[r])
            memory->always_fits = false;
    }
    /* Where it is not known what slices keep, recompute is free. */
    if (isinf(memory->saving_rate))
        memory->always_fits = true;
}

void
plan_floor_memory_clear(PlanFloorMemory *memory)
{
    g_clear_pointer(&memory->kept_bytes, g_free);
    g_clear_pointer(&memory->least_bytes, g_free);
    g_clear_pointer(&memory->kind_bytes, g_free);
    g_clear_pointer(&memory->kind_s, g_free);
    g_clear_pointer(&memory->kv_bytes, g_free);
    g_clear_pointer(&memory->usable_bytes, g_free);
}

/* Sequences of the first @n micro-batches at the least. */
static double
first_sequences(const PlanFloorCut *cut, int64_t n)
{
    return (double)MAX(n, cut->n_sequences - (cut->n_micro_batches - n) * cut->largest);
}

/* Sequences that the first @n slices of a chunk's micro-batches from number @from on hold at the least:
 * each micro-batch has one, and all up to some number have what those behind have no room for. */
static double
slices_sequences(const PlanFloorCut *cut, int64_t from, int64_t n)
{
    const int64_t whole = MIN(n / cut->n_slices, cut->n_micro_batches - from);
    const int64_t rest = from + whole < cut->n_micro_batches ? n % cut->n_slices : 0;
    const double part =
        rest == 0 ? 0.0 : real_max(0.0, 1.0 - (double)(cut->n_slices - rest) * cut->longest);
    const bool is_uniform = cut->n_micro_batches * cut->largest == cut->n_sequences;

    return real_max((double)whole,
                    first_sequences(cut, from + whole) - (double)(from * cut->largest)) +
           part * (is_uniform ? (double)cut->largest : 1.0);
}

/* Of all chunks of a rank: bytes with the fastest kind and with the leanest, and the most sequences of
 * any chunk; and the gradients of keys and values, which both have. */
typedef struct {
    double kept, least, most, gradients;
} Sums;

static void
add_chunk(const PlanFloorMemory *memory, int64_t k, double sequences, Sums *sums)
{
    sums->kept += sequences * memory->kept_bytes[k];
    sums->least += sequences * memory->least_bytes[k];
    sums->most = real_max(sums->most, sequences);
}

/* What the fastest kind adds with which one sequence on rank @r, which has one chunk, keeps no more than
 * @usable bytes. */
static double
fitting_kind_s(const PlanFloorMemory *memory, int64_t r, double usable)
{
    double least = INFINITY;

    for (int kind = 0; kind < PLAN_RECOMPUTE_N; kind++)
        if (memory->kind_bytes[r][kind] * (1.0 - 1e-9) <= usable)
            least = real_min(least, memory->kind_s[r][kind]);
    return least;
}

/* What has to be recomputed for what @sums say. */
static double
sums_s(const PlanFloorMemory *memory, const PlanFloorCut *cut, const Sums *sums, int64_t r)
{
    const double usable = memory->usable_bytes[r] - sums->gradients * (1.0 - 1e-9);
    const double excess = sums->kept * (1.0 - 1e-9) - usable;

    if (excess <= 0.0)
        return 0.0;
    if (memory->saving_rate == 0.0 || sums->least * (1.0 - 1e-9) > usable)
        return INFINITY;
    return memory->vpp == 1 ? fitting_kind_s(memory, r, usable / sums->most)
                            : excess / sums->most / memory->saving_rate * (double)cut->n_sequences;
}

/* What rank @r holds in all chunks at the least at a backward of some group of at most @group
 * micro-batches: of the group with most sequences, at the first one of the largest of its micro-batches. */
static void
add_largest_group(const PlanFloorMemory *memory, const PlanFloorCut *cut, int64_t group, int64_t r,
                  Sums *sums)
{
    const int64_t n_groups = (cut->n_micro_batches + group - 1) / group;
    const bool is_known = cut->group > 0 || memory->group > 0;
    const double sequences = ceil((double)cut->n_sequences / (double)n_groups);
    const double largest = memory->vpp == 1 ? sequences
                           : is_known       ? ceil(sequences / (double)group)
                                            : 1.0;

    sums->gradients = (memory->vpp == 1 ? 1.0 : largest) * memory->kv_bytes[r];
    for (int64_t chunk = 0; chunk < memory->vpp - 1; chunk++)
        add_chunk(memory, chunk * memory->pp + r, sequences, sums);
    add_chunk(memory, (memory->vpp - 1) * memory->pp + r, largest, sums);
}

double
plan_floor_forced_s(const PlanFloorMemory *memory, const PlanFloorCut *cut, int64_t r)
{
    const int64_t m = cut->n_micro_batches, pp = memory->pp, last = memory->vpp - 1;
    const int64_t k = cut->n_slices, after = (pp - 1 - r) * (last > 0 ? 2 : 1);
    int64_t group = MIN(m, last == 0 ? 1 + after / k : (pp + k - 1) / k);
    Sums first = {0}, largest = {0}, largest_group = {0};

    if (memory->always_fits)
        return 0.0;
    if (memory->group > 0 || cut->group > 0)
        group = MIN(m, MAX(memory->group, cut->group));
    for (int64_t chunk = 0; chunk <= last; chunk++)
        add_chunk(memory, chunk * pp + r, (double)cut->largest, &largest);
    largest.gradients = (double)cut->largest * memory->kv_bytes[r];
    first.gradients = first_sequences(cut, 1) * memory->kv_bytes[r];
    add_largest_group(memory, cut, group, r, &largest_group);
    const int64_t in_group = last == 0 ? k + after : MIN(group * k, k + after);
    for (int64_t chunk = 0; chunk < last; chunk++) {
        const int64_t next = MIN(group, m - group) * k; /* the next group's slices in a chunk */
        const int64_t here = CLAMP(k + after - in_group - chunk * next, 0, next);
        const double sequences =
            first_sequences(cut, group) + (here > 0 ? slices_sequences(cut, group, here) : 0.0);
        add_chunk(memory, chunk * pp + r, sequences, &first);
    }
    add_chunk(memory, last * pp + r, slices_sequences(cut, 0, in_group), &first);
    return real_max(
        sums_s(memory, cut, &first, r),
        real_max(sums_s(memory, cut, &largest, r), sums_s(memory, cut, &largest_group, r)));
}
