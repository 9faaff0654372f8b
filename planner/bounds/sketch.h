/*
 * planner/bounds/sketch.h - what the ranks of a candidate hold and take at the least, without
 * pricing its ops.
 *
 * A sketch lies between the bounds of a point, which know neither family nor stages, and those of a
 * Workload (plan_bound.h), which cost some hundred times as much.  It is made of the costs of
 * layers (cost/layer_cost.h) times the layers of each stage, what the family's schedule has in
 * flight, the reduction of gradients and the optimizer's step.
 *
 * Memory, by rank and recompute kind: the static bytes of a Workload; at each moment of flight.h
 * what is in flight there, each as small as the smallest slice; the least workspace; and the least
 * that is gathered for the op then (with ZeRO 3 in degas's executor; what is gathered ahead for
 * later ops is not counted).  It is exact, except for that, with one chunk per rank, whole
 * sequences, whole backwards and dense layers of one kind.
 *
 * Time: the bound of plan_bound.h without messages, each rank with the fastest recompute kind that
 * fits.  With several chunks on a rank each of them may have its own kind: then what must be saved
 * costs at least the least time per byte.
 *
 * Thread-safety: a sketch belongs to one thread.
 */
#pragma once

#include <string.h>

#include "planner/bounds/flight.h"
#include "planner/bounds/fullest.h"
#include "planner/cost/point.h"

/* One stage of a chain. */
typedef struct {
    int32_t rank, chunk;
    int64_t n[PLAN_PART_N]; /* layers of each kind; 1 or 0 of each end */
} PlanSketchStage;

/* What is sketched.  Everything is borrowed. */
typedef struct {
    const PlanRequest *request;
    const PlanPoint *point;
    const PlanLayerCost *cost;  /* of a micro-batch */
    const PlanLayerCost *slice; /* of one slice of it; equal to cost where sequences are whole */
    /* (nullable) [rank] of whole micro-batches where the rank lies (rank_kinds.h), for times; NULL: cost */
    const PlanLayerCost *const *rank_costs;
    int64_t n_slices;
    const ScheduleFamily *family;
    const PlanFlight *flight;
    const int64_t *counts;       /* layers of each stage of a chain */
    const int64_t *limits_bytes; /* [rank] memory limit; 0: none */
    bool wants_leanest; /* bytes of all recompute kinds, not only up to the first one that fits */
    /* Where plans are compared by their memory: what is larger is of no interest, and weighing ends at the first
     * such rank; no time is asked for.  0: they are compared by their times. */
    int64_t most_bytes;
    /* Where ranks have several stages: of what does not fit, and whose fullest rank has so many bytes or more,
     * nothing else is asked, and weighing ends there; 0: all is asked. */
    int64_t enough_bytes;
} PlanSketchInput;

typedef struct {
    int64_t n_stages; /* of all chains */
    int32_t n_ranks;
    bool shares;             /* ranks have several stages, which may differ in recompute kind */
    PlanSketchStage *stages; /* (owned) chain after chain */
    int64_t *bytes; /* (owned) [rank * PLAN_RECOMPUTE_N + recompute kind of all its layers] */
    int64_t *static_bytes; /* (owned) [rank] */
    int64_t *fixed_bytes;  /* (owned) [rank] the part of static_bytes that no layer brings */
    int64_t *usable_bytes; /* (owned) [rank] what its peak may reach; 0: no limit */
    int *recomputes;       /* (owned) [rank] the fastest kind that fits; -1: none does */
    int64_t fullest_bytes; /* of the fullest rank, with the kind that holds least */
    bool fits;             /* every rank fits with some kind */
    bool fits_plain;       /* every rank fits with the fastest kind that is allowed */
    int64_t bound_ns;      /* no plan takes less; INT64_MAX unless fits, and with most_bytes */
} PlanSketch;

/* Whether two stages have the same layers and ends. */
static inline bool
plan_sketch_same_contents(const PlanSketchStage *a, const PlanSketchStage *b)
{
    return memcmp(a->n, b->n, sizeof a->n) == 0;
}

/* (borrowed) the stage of @rank's @chunk; of bidir the chunk names the chain. */
static inline const PlanSketchStage *
plan_sketch_stage_at(const PlanSketch *sketch, int32_t rank, int64_t chunk)
{
    const PlanSketchStage *block = &sketch->stages[chunk * sketch->n_ranks];

    return block[rank].rank == rank ? &block[rank] : &block[sketch->n_ranks - 1 - rank];
}

/* Sketches the stages alone; flight and limits_bytes of @input need not be set yet. */
void plan_sketch_init(PlanSketch *sketch, const PlanSketchInput *input);
/* Adds everything else. */
void plan_sketch_weigh(PlanSketch *sketch, const PlanSketchInput *input);
/* Raises bytes and fullest_bytes of a sketch that is weighed with all recompute kinds (wants_leanest) to
 * what ranks hold at the ops of @fullest, which costs more; what fits with which kind is left as it is.
 * @fullest  of the schedule, with whatever it merges */
void plan_sketch_weigh_fullest(PlanSketch *sketch, const PlanSketchInput *input,
                               const PlanFullest *fullest);
void plan_sketch_clear(PlanSketch *sketch);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(PlanSketch, plan_sketch_clear)

/* --- bytes --- */

/* Returns: how many layers ZeRO 3 gathers ahead: workload_plan_prefetch() of plans with such
 * layers. */
int32_t plan_sketch_prefetch(const PlanRequest *request, const PlanLayerCost *cost);

/* Returns: the state of the parameters of @n of each part on one device, with what the allocator
 * adds. */
int64_t plan_sketch_state_bytes(const PlanSketchInput *input, const int64_t n[PLAN_PART_N]);

/* Returns: what @n of each part keep of one micro-batch from F to B if the layers have the
 * recompute kind @kind. */
int64_t plan_sketch_kept(const PlanLayerCost *cost, const int64_t n[PLAN_PART_N], int kind);

/* Returns: what a whole backward of a stage of @n of each part has besides at the least, whatever its slice:
 * gathered weights and gradients that are not reduced yet.  @input needs no flight. */
int64_t plan_sketch_whole_bytes(const PlanSketchInput *input, const int64_t n[PLAN_PART_N]);

/* Returns: what @stage holds in flight at @moment; and the workspace of its ops there. */
int64_t plan_sketch_held(const PlanSketchInput *input, const PlanSketchStage *stage,
                         PlanMoment moment, int kind);
int64_t plan_sketch_workspace(const PlanSketchInput *input, const PlanSketchStage *stage,
                              PlanMoment moment, int kind);

/* --- time: defined in sketch_time.c --- */

/* Sets bound_ns of a sketch that is weighed and fits. */
void plan_sketch_bound(PlanSketch *sketch, const PlanSketchInput *input);

/* Returns: the bound with the recompute kinds @recomputes [stage of all chains]; NULL: with the
 * fastest kind that is allowed on all stages.  It need not fit, nor the sketch be weighed. */
int64_t plan_sketch_recomputes_ns(const PlanSketch *sketch, const PlanSketchInput *input,
                                  const int *recomputes);

/* Returns: the work of the busiest rank alone, with the fastest recompute kind that is allowed, and
 * its reduction: no bubble. */
int64_t plan_sketch_work_ns(const PlanSketch *sketch, const PlanSketchInput *input);

/* Returns: the time per micro-batch of @n of each part, both passes, if the layers have the
 * recompute kind @kind. */
double plan_sketch_passes_s(const PlanLayerCost *cost, const int64_t n[PLAN_PART_N], int kind);

/* Whether the groups of every rank lie on the cluster as those of rank 0 do. */
bool plan_sketch_ranks_are_alike(const PlanRequest *request, const PlanDegrees *degrees);

/* Returns: what follows the last op of a rank with @n of each part and cannot be hidden: reducing
 * their gradients on the rank whose groups take least, and those of a table that another rank has too; the
 * optimizer's step, and gathering their weights. */
double plan_sketch_end_s(const PlanRequest *request, const PlanLayerCost *cost,
                         const PlanPoint *point, const int64_t n[PLAN_PART_N]);

/* Returns: the same of an average rank, however the parts are divided; 0 with measured rows. */
double plan_sketch_average_end_s(const PlanRequest *request, const PlanLayerCost *cost,
                                 const PlanPoint *point);
