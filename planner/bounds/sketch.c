#include "planner/bounds/sketch.h"

#include <string.h>

#include "base/saturate.h"
#include "profiles/workload/buffers.h"
#include "profiles/workload/state.h"
#include "profiles/workload/zero3.h"

/* Far beyond any memory, and sums of a few do not overflow. */
#define MOST_BYTES (INT64_MAX / 16)

static int64_t
plus(int64_t a, int64_t b)
{
    return saturate_sum(a, b, MOST_BYTES);
}

static int64_t
times(int64_t n, int64_t bytes)
{
    return saturate_product(n, bytes, MOST_BYTES);
}

/* --- stages --- */

static void
set_stages(PlanSketch *sketch, const PlanSketchInput *input)
{
    const PlanDegrees *d = &input->point->degrees;
    const int64_t length = plan_point_chain_length(d, input->family);
    const SchedulePlacement placement = input->family->placement;
    const int64_t n_chains = schedule_placement_n_chains(placement);
    const bool has_vocab = input->request->arch->vocab > 0;

    sketch->n_ranks = (int32_t)d->pp;
    sketch->n_stages = length * n_chains;
    sketch->shares = sketch->n_stages > d->pp;
    sketch->stages = g_new0(PlanSketchStage, (size_t)sketch->n_stages);
    for (int64_t chain = 0, i = 0; chain < n_chains; chain++)
        for (int64_t k = 0, first = 0; k < length; k++, i++) {
            const int64_t last = first + input->counts[k];
            sketch->stages[i] = (PlanSketchStage){
                .rank =
                    schedule_placement_rank(placement, (int32_t)d->pp, (int32_t)k, (int32_t)chain),
                .chunk =
                    schedule_placement_chunk(placement, (int32_t)d->pp, (int32_t)k, (int32_t)chain),
                .n = {[PLAN_PART_EMBEDDING] = has_vocab && k == 0,
                      [PLAN_PART_HEAD] = has_vocab && k == length - 1},
            };
            plan_layer_count(input->request, first, last, sketch->stages[i].n);
            first = last;
        }
}

/* --- bytes --- */

int64_t
plan_sketch_kept(const PlanLayerCost *cost, const int64_t n[PLAN_PART_N], int kind)
{
    int64_t kept = 0;

    for (int i = 0; i < PLAN_PART_N; i++)
        kept = plus(kept, times(n[i], cost->parts[i].kept_bytes[kind]));
    return kept;
}

/* Likewise from I to W. */
static int64_t
weight_kept(const PlanLayerCost *cost, const int64_t n[PLAN_PART_N])
{
    int64_t kept = 0;

    for (int i = 0; i < PLAN_PART_N; i++)
        kept = plus(kept, times(n[i], cost->parts[i].weight_bytes));
    return kept;
}

static int64_t
part_workspace(const PlanSketchInput *input, const PlanPartCost *part, PlanMoment moment, int kind)
{
    if (moment == PLAN_MOMENT_FORWARD)
        return part->forward_workspace_bytes[kind];
    /* A schedule of halves may have whole backwards too. */
    return input->family->splits_backward
               ? MIN(part->input_workspace_bytes[kind], part->backward_workspace_bytes[kind])
               : part->backward_workspace_bytes[kind];
}

/* --- gathered weights --- */

/* The model's first. */
static int64_t
first_layer_elements(const PlanLayerCost *cost)
{
    const PlanPartCost *layer = &cost->parts[cost->first_kind];

    return layer->parameters.dense + layer->parameters.expert;
}

int32_t
plan_sketch_prefetch(const PlanRequest *request, const PlanLayerCost *cost)
{
    return workload_prefetch_layers(request->prefetch_layers, &request->conventions,
                                    first_layer_elements(cost));
}

static int64_t
element_bytes(const PlanRequest *request)
{
    return dtype_bytes(dtype_stored(request->dtype));
}

/* Bytes of @dense and @expert parameters that are whole for the time of an op only. */
static int64_t
apart_bytes(const PlanSketchInput *input, int64_t dense, int64_t expert)
{
    const PlanRequest *request = input->request;
    const WorkloadSharding sharding = {input->point->zero_stage, input->point->offload,
                                       request->offload_parameters};

    return times(workload_gathered_elements(&input->point->degrees, &sharding,
                                            &request->conventions, dense, expert),
                 element_bytes(request));
}

static int64_t
n_layers_of(const PlanSketchStage *stage)
{
    int64_t n = 0;

    for (int i = 0; i < PLAN_PART_EMBEDDING; i++)
        n += stage->n[i];
    return n;
}

/* The smallest kind of layer, of those that @n has. */
static int64_t
least_gathered_layer(const PlanSketchInput *input, const int64_t n[PLAN_PART_N])
{
    const PlanPartCost *parts = input->cost->parts;
    int64_t least = INT64_MAX;

    for (int i = 0; i < input->cost->n_kinds; i++)
        if (n[i] > 0) {
            const int64_t bytes =
                apart_bytes(input, parts[i].parameters.dense, parts[i].parameters.expert);
            least = MIN(least, bytes);
        }
    return least == INT64_MAX ? 0 : least;
}

/* The gradients of @dense and @expert parameters that replicas are to reduce: whole while the part is
 * at work. */
static int64_t
gradient_bytes(const PlanSketchInput *input, int64_t dense, int64_t expert)
{
    const PlanDegrees *d = &input->point->degrees;
    const PlanConventions *conventions = &input->request->conventions;
    const int64_t shared =
        (d->dp * d->cp > 1 ? dense : 0) + (plan_expert_replicas(d, conventions) > 1 ? expert : 0);

    return times(shared,
                 workload_parameter_bytes(input->request->dtype, conventions).gradient_bytes);
}

/* Where ops count it: what a whole backward, or a W, has of gradients that are not reduced yet when it has
 * gathered as much as least_gathered() says: those of the head, or of the smallest kind of layer that may
 * be its last. */
static int64_t
stage_gradients(const PlanSketchInput *input, const PlanSketchStage *stage)
{
    const PlanPartCost *parts = input->cost->parts, *head = &parts[PLAN_PART_HEAD];
    int64_t least = INT64_MAX;

    if (!workload_counts_gathered(input->point->zero_stage, &input->request->conventions))
        return 0;
    if (stage->n[PLAN_PART_HEAD] > 0)
        return gradient_bytes(
            input,
            head->parameters.trained_dense +
                plan_layer_table(input->request, input->cost->tied_parameters).trained_dense,
            0);
    for (int i = 0; i < input->cost->n_kinds; i++)
        if (stage->n[i] > 0) {
            const int64_t bytes = gradient_bytes(input, parts[i].parameters.trained_dense,
                                                 parts[i].parameters.trained_expert);
            least = MIN(least, bytes);
        }
    return least == INT64_MAX ? 0 : least;
}

/* The same at @moment: an I makes none. */
static int64_t
least_gradients(const PlanSketchInput *input, const PlanSketchStage *stage, PlanMoment moment)
{
    return moment != PLAN_MOMENT_BACKWARD || input->family->splits_backward
               ? 0
               : stage_gradients(input, stage);
}

/*
 * Where ops count it (profiles/workload/prefetch.c): the least that an op of @stage has gathered
 * when it has most, beside its workspace.  A forward's first layer has those after it ahead, a
 * backward's head, or last layer, those before it; an I may have most when its last layer is at
 * work, with which it ends.
 */
static int64_t
least_gathered(const PlanSketchInput *input, const PlanSketchStage *stage, PlanMoment moment)
{
    if (!workload_counts_gathered(input->point->zero_stage, &input->request->conventions))
        return 0;
    const int32_t depth = plan_sketch_prefetch(input->request, input->cost);
    const int64_t n = n_layers_of(stage);
    const int64_t layer = least_gathered_layer(input, stage->n);
    const PlanPartCost *head = &input->cost->parts[PLAN_PART_HEAD];
    int64_t bytes = times(MIN(n, 1 + depth), layer);

    if (moment != PLAN_MOMENT_FORWARD && stage->n[PLAN_PART_HEAD] > 0)
        bytes = plus(apart_bytes(input, head->parameters.dense + input->cost->tied_parameters, 0),
                     times(MIN(n, depth), layer));
    return moment == PLAN_MOMENT_INPUT ? MIN(bytes, times(MIN(n, 1), layer)) : bytes;
}

/* What all ops have gathered where they do not count it. */
static int64_t
gathered_always(const PlanSketchInput *input)
{
    const PlanRequest *request = input->request;

    if (input->point->zero_stage < 3 ||
        workload_counts_gathered(input->point->zero_stage, &request->conventions))
        return 0;
    return times((1 + plan_sketch_prefetch(request, input->cost)) *
                     first_layer_elements(input->cost),
                 element_bytes(request));
}

int64_t
plan_sketch_workspace(const PlanSketchInput *input, const PlanSketchStage *stage, PlanMoment moment,
                      int kind)
{
    /* Where an I takes its blocks at once (share_blocks() of profiles/workload/memory.c), they are
     * as large as the leanest kind of its layers needs, and the others add to them as they come. */
    const bool shares = moment != PLAN_MOMENT_FORWARD && input->family->splits_backward &&
                        plan_framework(input->request->conventions.framework)->row_blocks;
    int64_t most = 0, least = INT64_MAX;

    for (int i = 0; i < PLAN_PART_N; i++) {
        if (stage->n[i] == 0)
            continue;
        const int64_t own = part_workspace(input, &input->slice->parts[i], moment, kind);
        if (shares && i < MODEL_MAX_KINDS)
            least = MIN(least, own);
        else
            most = MAX(most, own);
    }
    if (least < INT64_MAX)
        most = MAX(most, least);
    return plus(most, least_gathered(input, stage, moment));
}

int64_t
plan_sketch_whole_bytes(const PlanSketchInput *input, const int64_t n[PLAN_PART_N])
{
    PlanSketchStage stage = {0};

    memcpy(stage.n, n, sizeof stage.n);
    return plus(least_gathered(input, &stage, PLAN_MOMENT_BACKWARD),
                least_gradients(input, &stage, PLAN_MOMENT_BACKWARD));
}

/* --- static bytes --- */

/* Bytes of parameters on one device. */
static int64_t
parameter_bytes(const PlanSketchInput *input, const WorkloadParameterCounts *n)
{
    return plan_layer_state_bytes(input->request, &input->point->degrees, input->point->zero_stage,
                                  input->point->offload, n);
}

/* A copy of the vocabulary's table that a stage of @n parts has without the embedding: for a tied
 * head, or for MTP modules. */
static int64_t
own_table(const PlanSketchInput *input, const int64_t n[PLAN_PART_N])
{
    const PlanLayerCost *cost = input->cost;

    if (n[PLAN_PART_EMBEDDING] > 0)
        return 0;
    if (n[PLAN_PART_HEAD] > 0 && cost->tied_parameters > 0)
        return cost->tied_parameters;
    return input->request->arch->mtp.n > 0 && n[cost->n_kinds - 1] > 0 ? cost->table_parameters : 0;
}

static void
add_parameters(const PlanSketchInput *input, const int64_t n[PLAN_PART_N],
               WorkloadParameterCounts *sum)
{
    const WorkloadParameterCounts table = plan_layer_table(input->request, own_table(input, n));

    for (int i = 0; i < PLAN_PART_N; i++)
        plan_layer_add_parameters(sum, &input->cost->parts[i].parameters, n[i]);
    plan_layer_add_parameters(sum, &table, 1);
}

int64_t
plan_sketch_state_bytes(const PlanSketchInput *input, const int64_t n[PLAN_PART_N])
{
    WorkloadParameterCounts sum = {0};

    add_parameters(input, n, &sum);
    return parameter_bytes(input, &sum);
}

/* What @rank's parameters, messages and gathered layers take, as profiles/workload/memory.c says
 * but for a framework's placeholders: never more. */
static void
set_static(PlanSketch *sketch, const PlanSketchInput *input, int32_t rank)
{
    const PlanRequest *request = input->request;
    const ProfileParameters *parameters = &request->profile->parameters;
    const int64_t length = plan_point_chain_length(&input->point->degrees, input->family);
    WorkloadParameterCounts sum = {0};
    int64_t tables = 0, buffers;
    bool sends = false, receives = false, embeds = false;

    for (int64_t chunk = 0; chunk < sketch->n_stages / sketch->n_ranks; chunk++) {
        const PlanSketchStage *stage = plan_sketch_stage_at(sketch, rank, chunk);
        const int64_t at = (stage - sketch->stages) % length;
        add_parameters(input, stage->n, &sum);
        embeds = embeds || stage->n[PLAN_PART_EMBEDDING] > 0;
        tables += own_table(input, stage->n);
        sends = sends || (at < length - 1 && stage[1].rank != rank);
        receives = receives || (at > 0 && stage[-1].rank != rank);
    }
    /* A table is there once. */
    const WorkloadParameterCounts again =
        plan_layer_table(request, embeds ? tables : MAX(0, tables - input->cost->table_parameters));
    plan_layer_add_parameters(&sum, &again, -1);
    buffers = times((sends ? 1 : 0) + (receives ? 1 : 0), input->cost->boundary_bytes);
    buffers = plus(buffers, gathered_always(input));
    buffers = plus(buffers, workload_library_bytes(parameters, &request->conventions));
    sketch->static_bytes[rank] = plus(parameter_bytes(input, &sum), buffers);
    sketch->fixed_bytes[rank] = buffers;
    /* Whoever has a layer has it whole once in a while. */
    if (workload_counts_gathered(input->point->zero_stage, &request->conventions))
        sketch->fixed_bytes[rank] = plus(buffers, least_gathered_layer(input, input->cost->n));
}

/* What a stage keeps of one slice with one recompute kind, and the workspace of its ops. */
typedef struct {
    int64_t kept, weight_kept;
    int64_t workspace[PLAN_MOMENT_N];
} SliceBytes;

/* Stages of hybrids whose contents are looked for among those before. */
#define MAX_CONTENTS 8

/* (owned) [stage * PLAN_RECOMPUTE_N + kind], for the recompute kinds that are allowed; most stages
 * are as one before. */
static SliceBytes *
slice_bytes_new(const PlanSketch *sketch, const PlanSketchInput *input)
{
    SliceBytes *slices = g_new(SliceBytes, (size_t)sketch->n_stages * PLAN_RECOMPUTE_N);
    int64_t known[MAX_CONTENTS];
    int n_known = 0;

    for (int64_t k = 0; k < sketch->n_stages; k++) {
        const PlanSketchStage *stage = &sketch->stages[k];
        SliceBytes *of_stage = &slices[k * PLAN_RECOMPUTE_N];
        int like = 0;
        while (like < n_known && !plan_sketch_same_contents(stage, &sketch->stages[known[like]]))
            like++;
        if (like < n_known) {
            memcpy(of_stage, &slices[known[like] * PLAN_RECOMPUTE_N],
                   PLAN_RECOMPUTE_N * sizeof *of_stage);
            continue;
        }
        if (n_known < MAX_CONTENTS)
            known[n_known++] = k;
        for (int kind = 0; kind < PLAN_RECOMPUTE_N; kind++) {
            if (!plan_request_allows(input->request, kind))
                continue;
            of_stage[kind].kept = plan_sketch_kept(input->slice, stage->n, kind);
            of_stage[kind].weight_kept = weight_kept(input->slice, stage->n);
            for (int moment = 0; moment < PLAN_MOMENT_N; moment++)
                of_stage[kind].workspace[moment] =
                    plus(plan_sketch_workspace(input, stage, (PlanMoment)moment, kind),
                         least_gradients(input, stage, (PlanMoment)moment));
        }
    }
    return slices;
}

static int64_t
held_bytes(const PlanFlight *flight, const PlanSketchStage *stage, PlanMoment moment, int64_t kept,
           int64_t weight_kept)
{
    const int32_t whole = plan_flight_n_held(flight, stage->rank, moment, 0, stage->chunk);
    const int32_t half = plan_flight_n_held(flight, stage->rank, moment, 1, stage->chunk);
    const int64_t held = times(whole, kept);

    return half == 0 ? held : plus(held, times(half, weight_kept));
}

int64_t
plan_sketch_held(const PlanSketchInput *input, const PlanSketchStage *stage, PlanMoment moment,
                 int kind)
{
    return held_bytes(input->flight, stage, moment, plan_sketch_kept(input->slice, stage->n, kind),
                      weight_kept(input->slice, stage->n));
}

/* Of @rank with the recompute kind @kind on all its layers. */
static int64_t
rank_bytes(const PlanSketch *sketch, const PlanSketchInput *input, const SliceBytes *slices,
           int32_t rank, int kind)
{
    const int64_t n_chunks = sketch->n_stages / sketch->n_ranks;
    int64_t most = 0;

    for (int moment = 0; moment < PLAN_MOMENT_N; moment++) {
        int64_t held = 0, workspace = INT64_MAX;
        for (int64_t chunk = 0; chunk < n_chunks; chunk++) {
            const PlanSketchStage *stage = plan_sketch_stage_at(sketch, rank, chunk);
            const SliceBytes *one = &slices[(stage - sketch->stages) * PLAN_RECOMPUTE_N + kind];
            held = plus(held, held_bytes(input->flight, stage, (PlanMoment)moment, one->kept,
                                         one->weight_kept));
            workspace = MIN(workspace, one->workspace[moment]);
            /* Each chunk has its own op once, and that what it keeps itself. */
            most = MAX(most, plus(one->kept, one->workspace[moment]));
        }
        most = MAX(most, plus(held, workspace));
    }
    return plus(sketch->static_bytes[rank], most);
}

/* A limit that the user gives is meant as it stands. */
static int64_t
usable_bytes(const PlanSketch *sketch, const PlanSketchInput *input, int32_t rank)
{
    const int64_t limit = input->limits_bytes[rank];

    return input->request->memory_limit_bytes > 0 || limit == 0
               ? limit
               : workload_usable_of(&input->request->profile->parameters, &input->point->degrees,
                                    limit, sketch->static_bytes[rank]);
}

/* Whether a rank of @bytes is more than what is known. */
static bool
is_of_no_interest(const PlanSketchInput *input, int64_t bytes)
{
    return input->most_bytes > 0 && bytes > input->most_bytes;
}

static void
set_bytes(PlanSketch *sketch, const PlanSketchInput *input)
{
    sketch->fits = sketch->fits_plain = true;
    for (int32_t r = 0; r < sketch->n_ranks; r++) {
        set_static(sketch, input, r);
        if (is_of_no_interest(input, sketch->static_bytes[r])) {
            sketch->fullest_bytes = sketch->static_bytes[r];
            return;
        }
    }
    g_autofree SliceBytes *slices = slice_bytes_new(sketch, input);
    for (int32_t r = 0; r < sketch->n_ranks; r++) {
        int64_t *bytes = &sketch->bytes[r * PLAN_RECOMPUTE_N], leanest = INT64_MAX;
        bool is_plain = true;
        const int64_t limit = usable_bytes(sketch, input, r);
        sketch->usable_bytes[r] = limit;
        sketch->recomputes[r] = -1;
        for (int kind = 0; kind < PLAN_RECOMPUTE_N; kind++) {
            bytes[kind] = INT64_MAX;
            if (!plan_request_allows(input->request, kind))
                continue;
            bytes[kind] = rank_bytes(sketch, input, slices, r, kind);
            leanest = MIN(leanest, bytes[kind]);
            if (sketch->recomputes[r] < 0 && (limit == 0 || bytes[kind] <= limit)) {
                sketch->recomputes[r] = kind;
                sketch->fits_plain = sketch->fits_plain && is_plain;
                if (!input->wants_leanest)
                    break;
            }
            is_plain = false;
        }
        sketch->fits = sketch->fits && sketch->recomputes[r] >= 0;
        sketch->fullest_bytes = MAX(sketch->fullest_bytes, leanest);
        if (!sketch->fits && sketch->shares && input->enough_bytes > 0 &&
            sketch->fullest_bytes >= input->enough_bytes)
            break;
        if (is_of_no_interest(input, sketch->fullest_bytes))
            break;
    }
    sketch->fits_plain = sketch->fits_plain && sketch->fits;
}

/* --- the fullest ops --- */

/* What ops of @kind of @stage, which @slice is of, have while they run: a W at least the gradients that it
 * makes. */
static int64_t
op_workspace(const PlanSketchInput *input, const PlanSketchStage *stage, const SliceBytes *slice,
             ScheduleOpKind kind)
{
    switch (kind) {
    case SCHEDULE_OP_FORWARD:
        return slice->workspace[PLAN_MOMENT_FORWARD];
    case SCHEDULE_OP_BACKWARD:
        return slice->workspace[PLAN_MOMENT_BACKWARD];
    case SCHEDULE_OP_BACKWARD_INPUT:
        return slice->workspace[PLAN_MOMENT_INPUT];
    default:
        return stage_gradients(input, stage);
    }
}

/* Where ops count it: the least of the weights that @op has whole for those after it (profiles/workload/prefetch.h)
 * when its last part is at work, as far as these are layers, of which as many as are gathered ahead are never too
 * many.  0 of several parts of which the others are no longer there by then. */
static int64_t
later_bytes(const PlanSketch *sketch, const PlanSketchInput *input, const PlanFullestOp *op)
{
    const PlanSketchStage *own = plan_sketch_stage_at(sketch, op->rank, op->chunk);
    const bool has_one =
        n_layers_of(own) == 1 && own->n[PLAN_PART_EMBEDDING] == 0 && own->n[PLAN_PART_HEAD] == 0;
    int64_t left = plan_sketch_prefetch(input->request, input->cost), bytes = 0;

    if (!workload_counts_gathered(input->point->zero_stage, &input->request->conventions) ||
        (op->kind != SCHEDULE_OP_BACKWARD_WEIGHT && !has_one))
        return 0;
    for (int i = 0; i < op->n_next && left > 0; i++) {
        const PlanSketchStage *stage = plan_sketch_stage_at(sketch, op->rank, op->next_chunk[i]);
        const bool forward = op->next_kind[i] == SCHEDULE_OP_FORWARD;
        const int64_t n = MIN(left, n_layers_of(stage));
        if (stage->n[forward ? PLAN_PART_EMBEDDING : PLAN_PART_HEAD] > 0)
            break;
        bytes = plus(bytes, times(n, least_gathered_layer(input, stage->n)));
        left -= n;
        if (stage->n[forward ? PLAN_PART_HEAD : PLAN_PART_EMBEDDING] > 0)
            break;
    }
    return bytes;
}

/* What its rank holds when op number @i of @fullest starts, all its stages with the recompute kind @kind. */
static int64_t
fullest_bytes(const PlanSketch *sketch, const PlanSketchInput *input, const PlanFullest *fullest,
              const SliceBytes *slices, int32_t i, int kind)
{
    const PlanFullestOp *op = &fullest->ops[i];
    const PlanSketchStage *own = plan_sketch_stage_at(sketch, op->rank, op->chunk);
    const SliceBytes *own_slice = &slices[(own - sketch->stages) * PLAN_RECOMPUTE_N + kind];
    int64_t bytes = plus(op_workspace(input, own, own_slice, (ScheduleOpKind)op->kind),
                         later_bytes(sketch, input, op));

    bytes = plus(bytes, sketch->static_bytes[op->rank]);
    bytes = plus(bytes, op->halves ? MAX(0, own_slice->weight_kept - own_slice->kept) : 0);

    for (int32_t c = 0; c < fullest->n_chunks; c++) {
        const PlanSketchStage *stage = plan_sketch_stage_at(sketch, op->rank, c);
        const SliceBytes *one = &slices[(stage - sketch->stages) * PLAN_RECOMPUTE_N + kind];
        bytes = plus(bytes, times(plan_fullest_n_held(fullest, i, 0, c), one->kept));
        bytes = plus(bytes, times(plan_fullest_n_held(fullest, i, 1, c), one->weight_kept));
    }
    return bytes;
}

void
plan_sketch_weigh_fullest(PlanSketch *sketch, const PlanSketchInput *input,
                          const PlanFullest *fullest)
{
    g_autofree SliceBytes *slices = slice_bytes_new(sketch, input);

    for (int32_t i = 0; i < fullest->n_ops; i++)
        for (int kind = 0; kind < PLAN_RECOMPUTE_N; kind++) {
            int64_t *bytes = &sketch->bytes[fullest->ops[i].rank * PLAN_RECOMPUTE_N + kind];
            if (!plan_request_allows(input->request, kind))
                continue;
            const int64_t at_op = fullest_bytes(sketch, input, fullest, slices, i, kind);
            *bytes = MAX(*bytes, at_op);
        }
    for (int32_t r = 0; r < sketch->n_ranks; r++) {
        int64_t leanest = INT64_MAX;
        for (int kind = 0; kind < PLAN_RECOMPUTE_N; kind++)
            leanest = MIN(leanest, sketch->bytes[r * PLAN_RECOMPUTE_N + kind]);
        sketch->fullest_bytes = MAX(sketch->fullest_bytes, leanest);
    }
}

/* --- lifecycle --- */

void
plan_sketch_init(PlanSketch *sketch, const PlanSketchInput *input)
{
    *sketch = (PlanSketch){.bound_ns = INT64_MAX};
    set_stages(sketch, input);
}

void
plan_sketch_weigh(PlanSketch *sketch, const PlanSketchInput *input)
{
    const size_t n = (size_t)sketch->n_ranks;

    sketch->bytes = g_new(int64_t, n * PLAN_RECOMPUTE_N);
    sketch->static_bytes = g_new(int64_t, n);
    sketch->fixed_bytes = g_new(int64_t, n);
    sketch->usable_bytes = g_new0(int64_t, n);
    sketch->recomputes = g_new(int, n);
    set_bytes(sketch, input);
    if (sketch->fits && input->most_bytes == 0)
        plan_sketch_bound(sketch, input);
}

void
plan_sketch_clear(PlanSketch *sketch)
{
    g_clear_pointer(&sketch->stages, g_free);
    g_clear_pointer(&sketch->bytes, g_free);
    g_clear_pointer(&sketch->static_bytes, g_free);
    g_clear_pointer(&sketch->fixed_bytes, g_free);
    g_clear_pointer(&sketch->usable_bytes, g_free);
    g_clear_pointer(&sketch->recomputes, g_free);
}
