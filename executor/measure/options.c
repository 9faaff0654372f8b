#include "executor/measure/options.h"

#include <string.h>

#include "executor/device/cores.h"
#include "executor/measure/rank.h"
#include "executor/run/run.h"

/* Layers of the timed stage: weights and activations of more than one layer pass through the cache,
 * as in a pipeline stage. */
#define MAX_LAYERS 4

/* The shortest slice of the default grid: below, overheads dominate whatever the shape. */
#define MIN_SLICE 16

/* Repetitions, and seconds for all of them. */
#define BUDGET_S 60
#define QUICK_BUDGET_S 12

bool
exec_measure_is_gpu(const ExecMeasureOptions *o)
{
    return exec_device_kind(o->device)->is_gpu;
}

void
exec_measure_fill_defaults(ExecMeasureOptions *o, ExecMeasureDefaults *defaults)
{
    static const ExecMeasureDefaults values = {.batches = {1, 2, 4}, .tps = {1}};

    *defaults = values;
    if (o->seq_len == 0)
        o->seq_len = o->arch->max_seq_len;
    if (o->concurrency == 0)
        o->concurrency = exec_measure_is_gpu(o) ? 1 : exec_n_cores();
    if (o->budget_s <= 0)
        o->budget_s = o->quick ? QUICK_BUDGET_S : BUDGET_S;
    if (o->batches == NULL) {
        o->batches = defaults->batches;
        o->n_batches = G_N_ELEMENTS(defaults->batches);
    }
    if (o->tps == NULL) {
        o->tps = defaults->tps;
        o->n_tps = 1;
    }
    if (o->slices == NULL) {
        o->n_slices = 0;
        o->slices = defaults->slices;
        for (int64_t tokens = o->seq_len;
             o->n_slices < EXEC_MEASURE_MAX_SLICES && (tokens >= MIN_SLICE || o->n_slices == 0);
             tokens = (tokens + 1) / 2)
            defaults->slices[o->n_slices++] = tokens;
    }
}

/* @name  for the message. */
static bool
check_list(const char *name, const int64_t *values, size_t n, int64_t most, const char *limit,
           GError **error)
{
    for (size_t i = 0; i < n; i++) {
        if (values[i] >= 1 && values[i] <= most)
            continue;
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_UNSUPPORTED,
                    "%s: %" G_GINT64_FORMAT " is not between 1 and %s", name, values[i], limit);
        return false;
    }
    return true;
}

static bool
check_lists(const ExecMeasureOptions *o, GError **error)
{
    if (o->seq_len > o->arch->max_seq_len) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_UNSUPPORTED,
                    "--seq-len: %" G_GINT64_FORMAT " is beyond the model's positions", o->seq_len);
        return false;
    }
    return check_list("concurrency", &o->concurrency, 1, 1024, "1024", error) &&
           check_list("--micro-batch", o->batches, o->n_batches, 65536, "65536", error) &&
           check_list("--slices", o->slices, o->n_slices, o->seq_len, "the sequence's length",
                      error) &&
           check_list("--tp", o->tps, o->n_tps, 1024, "1024", error);
}

int64_t
exec_measure_n_busy(const ExecMeasureOptions *o, int64_t tp)
{
    return (o->concurrency + tp - 1) / tp * tp;
}

Plan *
exec_measure_plan(const ExecMeasureOptions *o, int64_t tp)
{
    Plan *plan = plan_new();
    const int64_t n_layers =
        CLAMP(o->arch->n_layers / o->concurrency, 1, MIN(MAX_LAYERS, o->arch->n_layers));
    const PlanStage stages[] = {
        {.chunk = EXEC_MEASURE_EMBEDDING, .embedding = true},
        {.chunk = EXEC_MEASURE_LAYERS, .n_layers = n_layers},
        {.chunk = EXEC_MEASURE_HEAD, .first_layer = n_layers, .head = true},
    };

    plan->dtype = o->dtype;
    plan->seq_len = o->seq_len;
    plan->degrees.vpp = G_N_ELEMENTS(stages);
    plan->degrees.tp = tp;
    plan->degrees.dp = exec_measure_n_busy(o, tp) / tp;
    g_array_append_vals(plan->stages, stages, G_N_ELEMENTS(stages));
    g_array_append_val(plan->slices, o->seq_len);
    return plan;
}

/* What the model must be for a plan of one stage is what it must be here. */
static bool
check_model(const ExecMeasureOptions *o, int64_t tp, GError **error)
{
    g_autoptr(Plan) plan = plan_new();

    plan->dtype = o->dtype;
    plan->seq_len = o->seq_len;
    plan->degrees.tp = tp;
    g_array_append_val(plan->slices, o->seq_len);
    plan_set_even_stages(plan, o->arch->n_layers, o->arch->vocab > 0, SCHEDULE_PLACEMENT_LOOP,
                         PLAN_RECOMPUTE_NONE);
    return exec_plan_supported(o->arch, plan, error);
}

bool
exec_measure_check(const ExecMeasureOptions *o, GError **error)
{
    if (!check_lists(o, error))
        return false;
    for (size_t i = 0; i < o->n_tps; i++)
        if (!check_model(o, o->tps[i], error))
            return false;
    return true;
}

bool
exec_measure_supported(const ExecMeasureOptions *options, GError **error)
{
    ExecMeasureOptions o = *options;
    ExecMeasureDefaults defaults;

    exec_measure_fill_defaults(&o, &defaults);
    return exec_measure_check(&o, error);
}
