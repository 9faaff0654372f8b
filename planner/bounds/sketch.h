/*
 * planner/bounds/sketch.h - a plan's ranks without pricing them: what they hold and take at the
 * least.
 *
 * Internal to planner/.  Between the bounds of a point (space.h), which know neither family nor
 * stages, and those of a Workload (bound.h), which costs some hundred times as much: layers of each
 * stage times the costs of layer_cost.h, the family's units in flight, and the reduction of
 * gradients.
 *
 * Memory, per rank and way (what its layers recompute): the static bytes of a Workload, and at the
 * moments of flight.h the units held there, each as small as the smallest slice, and the least
 * workspace, with the least that is gathered for the op then (ZeRO 3 in the executor: what later
 * ops have ahead is not counted).  Exact for one chunk per rank, whole sequences and whole
 * backwards, but for that.
 *
 * Time: as bound.h but for messages, each rank in the fastest way that fits.  With several chunks
 * on a rank each may have its own way; then what must be saved, S, costs at least S times the least
 * time per byte.
 */
#ifndef PLANNER_BOUNDS_SKETCH_H
#define PLANNER_BOUNDS_SKETCH_H

#include "planner/bounds/flight.h"
#include "planner/cost/point.h"

G_BEGIN_DECLS

/* One stage of a chain. */
typedef struct {
    int32_t rank, chunk;
    int64_t n_dense, n_moe; /* layers */
    bool embedding, head;
} PlanSketchStage;

/* What is sketched; borrowed. */
typedef struct {
    const PlanRequest *request;
    const PlanPoint *point;
    const PlanLayerCost *cost;  /* of a micro-batch */
    const PlanLayerCost *slice; /* of one slice of it (layer_cost.h); whole: the same */
    int64_t n_slices;
    const ScheduleFamily *family;
    const PlanFlight *flight;
    const int64_t *counts;       /* layers of each stage of a chain */
    const int64_t *limits_bytes; /* [rank]; 0: none */
    bool wants_leanest;          /* bytes of all ways, not only of those up to the one that fits */
} PlanSketchInput;

typedef struct {
    int64_t n_stages; /* of all chains */
    int32_t n_ranks;
    bool shares;             /* ranks have several stages: ways are bounds of their time only */
    PlanSketchStage *stages; /* (owned) chain after chain */
    /* (owned) [rank * PLAN_RECOMPUTE_N + kind] all layers of the rank in that way */
    int64_t *bytes;
    int64_t *static_bytes; /* (owned) [rank] */
    int64_t *fixed_bytes;  /* (owned) [rank] what is there whatever its layers keep and hold */
    int64_t *usable_bytes; /* (owned) [rank] what its peak may reach; 0: no limit */
    int *recomputes;       /* (owned) [rank] fastest that fits; -1: none does */
    int64_t fullest_bytes; /* of the fullest rank in its leanest way */
    bool fits;             /* every rank in some way */
    bool fits_plain;       /* every rank in the fastest way that is allowed */
    int64_t bound_ns;      /* INT64_MAX unless fits */
} PlanSketch;

static inline bool
plan_sketch_same_contents(const PlanSketchStage *a, const PlanSketchStage *b)
{
    return a->n_dense == b->n_dense && a->n_moe == b->n_moe && a->embedding == b->embedding &&
           a->head == b->head;
}

/* The stage of @rank's @chunk (of bidir: of that chain). */
static inline const PlanSketchStage *
plan_sketch_stage_at(const PlanSketch *sketch, int32_t rank, int64_t chunk)
{
    const PlanSketchStage *block = &sketch->stages[chunk * sketch->n_ranks];

    return block[rank].rank == rank ? &block[rank] : &block[sketch->n_ranks - 1 - rank];
}

/* The stages alone; of @input, flight and limits_bytes need not be set yet. */
void plan_sketch_init(PlanSketch *sketch, const PlanSketchInput *input);
/* Everything else of the sketch. */
void plan_sketch_weigh(PlanSketch *sketch, const PlanSketchInput *input);
void plan_sketch_clear(PlanSketch *sketch);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(PlanSketch, plan_sketch_clear)

/* Sets bound_ns. */
void plan_sketch_bound(PlanSketch *sketch, const PlanSketchInput *input);

/* The bound with all stages in the fastest way that is allowed, whether that fits or not; of a
 * sketch that is not weighed. */
int64_t plan_sketch_plain_ns(const PlanSketch *sketch, const PlanSketchInput *input);

/* The bound with stages in @ways [stage of all chains]. */
int64_t plan_sketch_recomputes_ns(const PlanSketch *sketch, const PlanSketchInput *input,
                                  const int *recomputes);

/* The work of the busiest rank alone, in the fastest way allowed, with its reduction: no bubble. */
int64_t plan_sketch_work_ns(const PlanSketch *sketch, const PlanSketchInput *input);

/* Whether the collectives of every rank lie like those of rank 0. */
bool plan_sketch_ranks_are_alike(const PlanRequest *request, const PlanDegrees *degrees);

/* Layers that ZeRO 3 gathers ahead: workload_plan_prefetch() of plans with such layers. */
int32_t plan_sketch_prefetch(const PlanRequest *request, const PlanLayerCost *cost);

/* What follows the last op of a rank with these layers and cannot be hidden: reducing their
 * gradients, gathering their weights. */
double plan_sketch_end_s(const PlanRequest *request, const PlanLayerCost *cost,
                         const PlanPoint *point, int64_t n_dense, int64_t n_moe);

/* State of the stage's parameters, with the allocator's share. */
int64_t plan_sketch_state_bytes(const PlanSketchInput *input, const PlanSketchStage *stage);

/* What the stage keeps of one micro-batch from F to B if its layers recompute @kind. */
int64_t plan_sketch_stage_kept(const PlanLayerCost *cost, const PlanSketchStage *stage, int kind);

/* What the stage's units hold at @moment; and the workspace of its ops there. */
int64_t plan_sketch_held(const PlanSketchInput *input, const PlanSketchStage *stage,
                         PlanMoment moment, int kind);
int64_t plan_sketch_workspace(const PlanSketchInput *input, const PlanSketchStage *stage,
                              PlanMoment moment, int kind);

/* The time per micro-batch of @stage, both passes, if its layers recompute @kind. */
double plan_sketch_stage_s(const PlanLayerCost *cost, const PlanSketchStage *stage, int kind);

G_END_DECLS

#endif /* PLANNER_BOUNDS_SKETCH_H */
