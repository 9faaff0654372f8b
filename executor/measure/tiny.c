#include "executor/measure/tiny.h"

#include "executor/run/run.h"

/* --- the model --- */

const ModelArch exec_measure_tiny_arch = {
    .name = (char *)"tiny",
    .family = MODEL_FAMILY_GPT,
    .n_layers = 2,
    .hidden = 16,
    .n_heads = 1,
    .n_kv_heads = 1,
    .head_dim = 16,
    .ffn_hidden = 16,
    .vocab = 16,
    .max_seq_len = 16,
    .tied_embeddings = true,
    .qkv_bias = true,
};

Plan *
exec_measure_tiny_plan(Dtype dtype, int64_t n_stages, int64_t n_copies, int64_t n_micro_batches)
{
    const ModelArch *tiny = &exec_measure_tiny_arch;
    Plan *plan = plan_new();

    plan->dtype = dtype;
    plan->seq_len = tiny->max_seq_len;
    plan->degrees.pp = n_stages;
    plan->degrees.dp = n_copies;
    plan->n_micro_batches = n_micro_batches;
    plan->global_batch = n_copies * n_micro_batches;
    g_array_append_val(plan->slices, plan->seq_len);
    plan_set_even_stages(plan, tiny->n_layers, true, SCHEDULE_PLACEMENT_LOOP, PLAN_RECOMPUTE_NONE);
    return plan;
}

/* --- overhead --- */

/* Time of the traced step that a rank neither computes nor waits, per op. */
static double
overhead_of(const Trace *trace, int32_t rank, int64_t *n_ops)
{
    int64_t first = INT64_MAX, last = 0, accounted = 0;

    *n_ops = 0;
    for (guint i = 0; i < trace->events->len; i++) {
        const TraceEvent *event = &g_array_index(trace->events, TraceEvent, i);
        if (event->rank != rank || event->stream != TRACE_STREAM_COMPUTE ||
            event->kind == TRACE_EVENT_OPTIMIZER)
            continue;
        first = MIN(first, event->start_ns);
        last = MAX(last, event->end_ns);
        accounted += event->end_ns - event->start_ns;
        *n_ops += event->kind != TRACE_EVENT_WAIT;
    }
    return (double)(last - first - accounted) * 1e-9;
}

bool
exec_measure_overhead(const ExecMeasureOptions *o, ExecSamples *samples, GError **error)
{
    const ProfileMeasurement key = {.op = PROFILE_OP_OVERHEAD};
    g_autoptr(Plan) plan =
        exec_measure_tiny_plan(o->dtype, MIN(o->concurrency, 2), 1, o->quick ? 16 : 64);
    g_auto(ExecRunResult) result = {0};

    if (!exec_run(
            &(ExecRunOptions){
                .arch = &exec_measure_tiny_arch,
                .plan = plan,
                .device = o->device,
                .transport = "local",
                .n_steps = o->quick ? 3 : 8,
                .seed = 1,
                .want_trace = true,
            },
            &result, error))
        return false;
    for (int32_t rank = 0; rank < plan->degrees.pp; rank++) {
        int64_t n_ops;
        const double seconds = overhead_of(result.trace, rank, &n_ops);
        exec_samples_add(samples, &key, MAX(seconds, 0) / (double)MAX(n_ops, 1));
    }
    return true;
}
