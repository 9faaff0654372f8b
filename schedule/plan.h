/*
 * schedule/plan.h - Plan: how a job is split, in full: degrees, stages, slices, schedule,
 * conventions.
 *
 * Written by planner/ (or by hand), read by all.  A plan file ("degas-plan") also holds the
 * complete model and cluster; those belong to other folders, so this module reads and writes only
 * its own keys and cli/ puts the file together.
 *
 * Ranks of the cluster are numbered by the plan's order of dimensions (rank_order.h): unless it
 * says otherwise tp fastest, then cp, (ep inside dp,) dp, pp slowest, as Megatron-LM's default
 * order tp-cp-ep-dp-pp  [Narayanan et al. 2104.04473].
 */
#pragma once

#include "base/dtype.h"
#include "base/json.h"
#include "schedule/framework.h"
#include "schedule/stack.h"
#include "schedule/report.h"
#include "schedule/schedule.h"

#define PLAN_ERROR (plan_error_quark())
GQuark plan_error_quark(void);

typedef enum {
    PLAN_ERROR_INVALID,    /* degrees, stages, slices contradict each other or the model */
    PLAN_ERROR_INFEASIBLE, /* no plan satisfies the limits; the message names the constraint */
} PlanError;

/* Sets PLAN_ERROR_INVALID with a message as of printf(); the value is false or NULL. */
#define plan_invalid(error, ...)                                                                   \
    (g_set_error(error, PLAN_ERROR, PLAN_ERROR_INVALID, __VA_ARGS__), false)
#define plan_invalid_null(error, ...)                                                              \
    (g_set_error(error, PLAN_ERROR, PLAN_ERROR_INVALID, __VA_ARGS__), NULL)

typedef enum {
    PLAN_RECOMPUTE_NONE,
    PLAN_RECOMPUTE_SELECTIVE,
    PLAN_RECOMPUTE_FULL,
    PLAN_RECOMPUTE_N
} PlanRecompute;
typedef enum {
    PLAN_OFFLOAD_NONE,
    PLAN_OFFLOAD_CPU,
    PLAN_OFFLOAD_NVME,
    PLAN_OFFLOAD_N
} PlanOffload;

extern const char
    *const plan_recompute_names[PLAN_RECOMPUTE_N + 1];           /* "none", "selective", "full" */
extern const char *const plan_offload_names[PLAN_OFFLOAD_N + 1]; /* "none", "cpu", "nvme" */

typedef struct {
    int64_t dp, tp, pp, vpp, cp, ep;
    int64_t
        rank_order; /* index into plan_rank_order_names: how the degrees are laid over devices */
} PlanDegrees;

#define PLAN_MAX_PREFETCH 64
#define PLAN_PREFETCH_AUTO (-1) /* as the framework does: workload_prefetch_layers() */

/* Ranks that share one expert: all of tp, where the stack cannot split experts in another way. */
static inline int64_t
plan_expert_tp(const PlanDegrees *degrees, const PlanConventions *conventions)
{
    if (plan_stack_lacks(conventions, PLAN_FEATURE_EXPERT_FOLDING) != NULL)
        return degrees->tp;
    return conventions->expert_tp > 1 && degrees->tp % conventions->expert_tp == 0
               ? conventions->expert_tp
               : 1;
}

/* Ranks that hold the same expert parameters. */
static inline int64_t
plan_expert_replicas(const PlanDegrees *degrees, const PlanConventions *conventions)
{
    const int64_t n = degrees->dp * degrees->cp * degrees->tp /
                      (degrees->ep * plan_expert_tp(degrees, conventions));

    return n < 1 ? 1 : n;
}

/* Ranks among which ZeRO splits what they all hold of the dense parameters, and of the experts'. */
static inline int64_t
plan_shard_ranks(const PlanDegrees *degrees, const PlanConventions *conventions)
{
    return degrees->dp * degrees->cp / MAX(1, conventions->optimizer_instances);
}

static inline int64_t
plan_expert_shard_ranks(const PlanDegrees *degrees, const PlanConventions *conventions)
{
    return MAX(1, plan_expert_replicas(degrees, conventions) /
                      MAX(1, conventions->optimizer_instances));
}

/* How many groups of replicas each hold all that ZeRO splits. */
static inline int64_t
plan_instances(const PlanConventions *conventions)
{
    return MAX(1, conventions->optimizer_instances);
}

/* One stage: the layers of one chunk of one pipeline rank. */
typedef struct {
    int32_t rank, chunk;
    int64_t first_layer, n_layers;
    bool embedding, head;
    PlanRecompute recompute;
} PlanStage;

/* How layer @i of the stage, from 0, is recomputed: full recompute may end before it. */
static inline PlanRecompute
plan_layer_recompute(const PlanConventions *conventions, const PlanStage *stage, int64_t i)
{
    return stage->recompute == PLAN_RECOMPUTE_FULL && !plan_full_repeats_all(conventions) &&
                   i >= conventions->recompute_layers
               ? PLAN_RECOMPUTE_NONE
               : stage->recompute;
}

/* The first of the layers that full recompute repeats together with layer @i of the stage, from 0: @i
 * itself where each is repeated by itself.  @n_layers  the model's, behind which are MTP modules, each
 * by itself. */
static inline int64_t
plan_recompute_first(const PlanConventions *conventions, const PlanStage *stage, int64_t i,
                     int64_t n_layers)
{
    const int64_t n = conventions->recompute_layers;

    return stage->recompute == PLAN_RECOMPUTE_FULL && plan_full_repeats_all(conventions) && n > 1 &&
                   stage->first_layer + i < n_layers
               ? i - i % n
               : i;
}

typedef struct Plan {
    int64_t global_batch, seq_len;
    Dtype dtype;
    PlanDegrees degrees;
    int64_t micro_batch;     /* sequences of a micro-batch (the largest, when micro_batch_sequences
                                differ) */
    int64_t n_micro_batches; /* per data-parallel replica */
    char *schedule;          /* (owned) family */
    int64_t group;           /* interleaved group; 0: the family's default */
    GArray *stages;          /* of PlanStage, in chain order; n = pp * vpp */
    GArray *slices;          /* of int64_t tokens, in order, sum seq_len; one element: not sliced */
    GArray *micro_batch_sequences; /* (nullable) of int64_t: sequences of each micro-batch when they
                                      differ */
    int32_t zero_stage;
    PlanOffload offload;     /* where the optimizer's state is */
    bool offload_parameters; /* weights too; needs ZeRO 3 [2104.07857] */
    int32_t prefetch_layers; /* ZeRO 3: of how many layers weights are gathered ahead; or
                                PLAN_PREFETCH_AUTO */
    bool sequence_parallel;
    PlanConventions conventions;

    /* Filled by the planner; absent (NULL, NaN, 0) in hand-written plans. */
    Report *predicted;       /* (owned, nullable) */
    double lower_bound_s;    /* NaN: none */
    double physical_bound_s; /* that of predicted; NaN: none */
    double optimality_gap_fraction;
    struct {
        int64_t considered, pruned, simulated, infeasible;
    } search;
    GPtrArray *alternatives; /* (nullable) of (owned) Plan *, best first, without this one */
} Plan;

/* All degrees 1, one micro-batch of one sequence of one token, in bf16, schedule "1f1b", no stages, no
 * slices, conventions of degas, nothing predicted. */
Plan *plan_new(void);
void plan_free(Plan *plan);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Plan, plan_free)
Plan *plan_copy(const Plan *plan);

/*
 * Cuts @n_layers into pp * vpp stages as evenly as possible: floor or ceiling, the longer ones last
 * (where they are better is for the planner to find).  Embedding on the first, head on the last
 * stage; for a model without vocabulary neither.  With placement bidir both chains of pp stages get
 * all layers, chain 0 first.
 */
void plan_set_even_stages(Plan *plan, int64_t n_layers, bool has_vocab, SchedulePlacement placement,
                          PlanRecompute recompute);

/* Sequences of micro-batch @i. */
int64_t plan_micro_batch_sequences(const Plan *plan, int64_t i);

/* How the stages recompute: one of plan_recompute_names; "mixed" if not all alike, "-" without any.
 */
const char *plan_recompute_name(const Plan *plan);

/* Devices the plan uses: dp * tp * pp * cp. */
int64_t plan_n_devices(const Plan *plan);

/* Checks what needs neither model nor cluster beyond @n_layers: degrees >= 1, stages cover all
 * layers once and lie where the schedule's placement says, slices sum to seq_len, micro-batches to
 * the batch, the schedule family accepts the shape.  PLAN_ERROR_INVALID names the key. */
bool plan_check(const Plan *plan, int64_t n_layers, GError **error);

/* Whether the two ops of every pair run one after the other. */
static inline bool
plan_pairs_in_turn(const PlanConventions *conventions)
{
    const PlanFrameworkFacts *facts = plan_framework(conventions->framework);

    return facts->pairs_in_turn && !(facts->merges_pairs && conventions->overlap_ep);
}

/* Whether the schedule of a plan has pairs of a forward and a backward whose experts' collectives
 * run while the other computes. */
static inline bool
plan_merges_pairs(const PlanConventions *conventions, const PlanDegrees *degrees)
{
    return conventions->overlap_ep && degrees->ep > 1 &&
           plan_framework(conventions->framework)->merges_pairs;
}

/* Whether each pass of a plan is merged with one of another micro-batch, which no schedule shows: Megatron-Core's
 * frameworks, and with expert parallelism alone. */
static inline bool
plan_merges_passes(const PlanConventions *conventions, const PlanDegrees *degrees)
{
    return conventions->overlap_ep && degrees->ep > 1 &&
           !plan_framework(conventions->framework)->merges_pairs;
}

/* The shape of the schedule that the plan names. */
ScheduleShape plan_shape(const Plan *plan);

/*
 * Builds the schedule that the plan names.  Returns: (owned) NULL with a SCHEDULE_ERROR.
 * @times  (nullable) for a family that reads them; profiles/workload/schedule_times.h makes them of a
 *         Workload.  NULL: every op takes 1.
 */
Schedule *plan_build_schedule(const Plan *plan, const ScheduleTimes *times, GError **error);

/* Writes the plan's own keys into the object that is open in @writer. */
void plan_write_members(JsonWriter *writer, const Plan *plan);
/* Writes "degrees" alone into such an object. */
void plan_write_degrees(JsonWriter *writer, const PlanDegrees *degrees);
/* Reads the plan's own keys from @object; model and cluster, which may be there too, count as asked
 * for.  Returns: (owned) never NULL; what is wrong is recorded in @doc. */
Plan *plan_read(JsonDoc *doc, const JsonValue *object);
