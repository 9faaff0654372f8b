/*
 * cli/request/sweep.h - Sweep: one planned job at many sizes, as a table ("degas-sweep").
 *
 * Rows are points: devices x global batch x sequence length, ascending in that order.  A point for
 * which no plan exists is a row with a reason.  All columns, their names and units are in one table
 * (sweep_columns), from which JSON and TSV are written and JSON is read.
 *
 * What is unknown (a price, the tokens of the training) is NaN: null in JSON.
 */
#ifndef CLI_REQUEST_SWEEP_H
#define CLI_REQUEST_SWEEP_H

#include "base/table.h"
#include "cli/request/request.h"
#include "planner/goodput.h"

G_BEGIN_DECLS

/* One row.  Without a plan (is_feasible false) all that follows @reason is 0, NULL, NaN. */
typedef struct {
    int64_t n_devices, global_batch, seq_len;
    bool is_feasible;
    char *reason; /* (owned, nullable) why there is no plan */
    int64_t dp, tp, pp, vpp, cp, ep, micro_batch, n_micro_batches, n_slices, zero_stage;
    char *schedule, *recompute, *offload, *rank_order; /* (owned, nullable) */
    bool sequence_parallel;
    double iteration_s, tokens_per_s, tokens_per_s_per_device;
    double model_flops_per_s_per_device, model_flops_utilization_fraction, bubble_fraction;
    int64_t peak_memory_bytes, memory_limit_bytes;
    double lower_bound_s, optimality_gap_fraction;
    double cost_per_iteration, energy_per_iteration_j;
    double job_mtbf_s, checkpoint_bytes, checkpoint_s, checkpoint_interval_s;
    int64_t checkpoint_interval_iterations;
    double goodput_fraction, checkpoint_loss_fraction, failure_loss_fraction;
    double effective_tokens_per_s; /* tokens_per_s * goodput */
    /* Of the whole training, as if nothing failed; then as it will be. */
    double days, cost, energy_j;
    double effective_days, effective_cost, effective_energy_j;
} SweepPoint;

typedef enum {
    SWEEP_INT64,
    SWEEP_DOUBLE,
    SWEEP_TEXT,
    SWEEP_BOOL,
} SweepKind;

typedef struct {
    const char *name;  /* of the key and the TSV column, with its unit */
    const char *group; /* (nullable) the JSON object that holds it */
    SweepKind kind;
    size_t offset; /* in SweepPoint */
} SweepColumn;

/* Ends with a NULL name. */
extern const SweepColumn sweep_columns[];

/* What goodput is computed from, besides the plans. */
typedef struct {
    double device_mtbf_s; /* INFINITY: nothing fails */
    /* Of the whole storage; 0: PLAN_GOODPUT_BYTES_PER_S_PER_DEVICE for each device of the job. */
    double checkpoint_bytes_per_s;
    double restart_s;
} SweepReliability;

typedef struct {
    char *model, *cluster;         /* (owned) names */
    char *dtype, *objective;       /* (owned) */
    double tokens;                 /* of the training; NaN: not asked for */
    double price_per_device_hour;  /* 0: unknown */
    char *currency, *price_source; /* (owned, nullable) */
    SweepReliability reliability;
    bool is_complete; /* false: interrupted, points are missing */
    GArray *points;   /* of SweepPoint */
} Sweep;

Sweep *sweep_new(void);
void sweep_free(Sweep *sweep);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Sweep, sweep_free)

/* Adds the point of @request with the @plan that was found, or the @reason why none was. */
void sweep_add(Sweep *sweep, const Request *request, const Plan *plan, const char *reason);

/* (owned) the whole file. */
JsonWriter *sweep_write(const Sweep *sweep);
/* Never NULL; errors in @doc. */
Sweep *sweep_read(JsonDoc *doc, const JsonValue *root);

/* (owned) all columns of all points. */
Table *sweep_table(const Sweep *sweep);

static inline const SweepPoint *
sweep_at(const Sweep *sweep, guint i)
{
    return &g_array_index(sweep->points, SweepPoint, i);
}

/* Whether the points differ in a column of int64_t, @offset bytes into SweepPoint. */
bool sweep_varies(const Sweep *sweep, size_t offset);

/* The feasible point of the least value of a column of doubles, the first of equal ones; NULL if
 * it is nowhere known.  @sign  -1: of the largest. */
const SweepPoint *sweep_best(const Sweep *sweep, size_t offset, int sign);

G_END_DECLS

#endif /* CLI_REQUEST_SWEEP_H */
