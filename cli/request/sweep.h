/*
 * cli/request/sweep.h - Sweep: the best plans of one job at many sizes, as a table ("degas-sweep").
 *
 * Each row is a point: a number of devices, a global batch and a sequence length, in ascending
 * order of the three.  A size that no plan fits is a row with the reason.  One table in sweep.c has
 * all columns with their names and units; JSON and TSV are written, and JSON is read, by it.
 *
 * What is unknown (a price, the tokens of the training) is NaN here and null in JSON.
 */
#pragma once

#include "base/table.h"
#include "cli/request/request.h"
#include "planner/goodput.h"

/* One row.  Without a plan (is_feasible false) all members behind @reason are 0, NULL or NaN. */
typedef struct {
    int64_t n_devices, global_batch, seq_len;
    bool is_feasible;
    char *reason;        /* (owned, nullable) why there is no plan */
    char *cluster;       /* (owned, nullable) its cluster; NULL: the sweep has one */
    guint search;        /* of which search it is (sizes.h); not in files */
    PlanDegrees degrees; /* the order of ranks in a file is rank_order */
    int64_t micro_batch, n_micro_batches, n_slices, zero_stage;
    char *schedule, *recompute, *offload, *rank_order; /* (owned, nullable) */
    bool sequence_parallel;
    double iteration_s, tokens_per_s, tokens_per_s_per_device;
    double model_flops_per_s_per_device, model_flops_utilization_fraction, bubble_fraction;
    int64_t peak_memory_bytes, memory_limit_bytes;
    double lower_bound_s, optimality_gap_fraction;
    double cost_per_iteration, energy_per_iteration_j;
    PlanGoodput goodput;
    double checkpoint_bytes, effective_tokens_per_s; /* tokens_per_s * goodput */
    /* Of the whole training, as if nothing failed; then as it will be. */
    double days, cost, energy_j;
    double effective_days, effective_cost, effective_energy_j;
} SweepPoint;

/* How often devices fail, and what a failure costs: goodput is computed from this and the plans. */
typedef struct {
    double device_mtbf_s; /* mean time between failures of one device; INFINITY: nothing fails */
    /* How fast the whole storage takes a checkpoint; 0: PLAN_GOODPUT_BYTES_PER_S_PER_DEVICE for
     * each device of the job. */
    double checkpoint_bytes_per_s;
    double restart_s; /* from a failure until training goes on */
} SweepReliability;

typedef struct {
    char *model, *cluster;         /* (owned) names */
    char *dtype, *objective;       /* (owned) */
    double tokens;                 /* of the whole training; NaN: not asked for */
    double within_days, budget;    /* what it may take and cost; NaN: anything */
    double price_per_device_hour;  /* 0: unknown */
    char *currency, *price_source; /* (owned, nullable) */
    SweepReliability reliability;
    bool is_complete; /* false: the sweep was interrupted, points are missing */
    GArray *points;   /* of SweepPoint */
} Sweep;

Sweep *sweep_new(void);
void sweep_free(Sweep *sweep);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Sweep, sweep_free)

/* Adds the point of @request with the @plan that was found, or the @reason why none was. */
void sweep_add(Sweep *sweep, const Request *request, const Plan *plan, const char *reason);

/* Returns: (owned) a writer that holds the whole file. */
JsonWriter *sweep_write(const Sweep *sweep);
/* Reads such a file.  Returns: (owned) never NULL; what is wrong is recorded in @doc. */
Sweep *sweep_read(JsonDoc *doc, const JsonValue *root);

/* Returns: (owned) all columns of all points. */
Table *sweep_table(const Sweep *sweep);

static inline const SweepPoint *
sweep_at(const Sweep *sweep, guint i)
{
    return &g_array_index(sweep->points, SweepPoint, i);
}

/* Whether @point has a plan that ends within the days and costs no more than the budget. */
bool sweep_makes_it(const Sweep *sweep, const SweepPoint *point);

/*
 * The answer: of the points that make it the one that costs least, or with a budget alone the one
 * that ends first; where prices are not known the one that takes the least device time.  Without
 * tokens to train, that of which an iteration takes least of the sweep's objective.
 * Returns: (borrowed, nullable) the first of equal ones; NULL: none makes it.
 */
const SweepPoint *sweep_answer(const Sweep *sweep);

/* Whether the points differ in a column of int64_t, @offset bytes into SweepPoint. */
bool sweep_varies(const Sweep *sweep, size_t offset);

/* The feasible point with the smallest value in a column of doubles, @offset bytes into SweepPoint;
 * with @sign -1 the one with the largest.  The first of equal ones; NULL if the value is nowhere
 * known. */
const SweepPoint *sweep_best(const Sweep *sweep, size_t offset, int sign);
