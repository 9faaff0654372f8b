#include "executor/measure.h"

#include <string.h>

#include "base/file.h"
#include "executor/measure_rank.h"
#include "executor/pool.h"
#include "executor/run.h"

/* Layers of the timed stage: weights and activations of more than one layer pass through the cache,
 * as in a pipeline stage. */
#define MAX_LAYERS 4

/* The shortest slice of the default grid: below, overheads dominate whatever the shape. */
#define MIN_SLICE 16

/* Defaults of the grid; freed by the caller. */
typedef struct {
    int64_t batches[3], slices[4];
} Grid;

static void
fill_defaults(ExecMeasureOptions *o, Grid *grid)
{
    static const int64_t batches[] = {1, 2, 4};

    if (o->seq_len == 0)
        o->seq_len = o->arch->max_seq_len;
    if (o->concurrency == 0)
        o->concurrency = exec_n_cores();
    if (o->batches == NULL) {
        memcpy(grid->batches, batches, sizeof batches);
        o->batches = grid->batches;
        o->n_batches = G_N_ELEMENTS(batches);
    }
    if (o->slices == NULL) {
        o->n_slices = 0;
        o->slices = grid->slices;
        for (int64_t tokens = o->seq_len;
             o->n_slices < G_N_ELEMENTS(grid->slices) && (tokens >= MIN_SLICE || o->n_slices == 0);
             tokens = (tokens + 1) / 2)
            grid->slices[o->n_slices++] = tokens;
    }
}

static bool
check_grid(const ExecMeasureOptions *o, GError **error)
{
    const char *wrong = NULL;
    int64_t value = 0;

    if (o->seq_len > o->arch->max_seq_len)
        wrong = "--seq-len: %" G_GINT64_FORMAT " is beyond the model's positions",
        value = o->seq_len;
    if (o->concurrency < 1 || o->concurrency > 1024)
        wrong = "concurrency: %" G_GINT64_FORMAT " is not between 1 and 1024",
        value = o->concurrency;
    for (size_t i = 0; i < o->n_batches; i++)
        if (o->batches[i] < 1 || o->batches[i] > 65536)
            wrong = "--micro-batch: %" G_GINT64_FORMAT " is not between 1 and 65536",
            value = o->batches[i];
    for (size_t i = 0; i < o->n_slices; i++)
        if (o->slices[i] < 1 || o->slices[i] > o->seq_len)
            wrong = "--slices: %" G_GINT64_FORMAT " is not between 1 and the sequence's length",
            value = o->slices[i];
    if (wrong == NULL)
        return true;
    g_autofree char *message = g_strdup_printf(wrong, value);
    g_set_error_literal(error, EXEC_ERROR, EXEC_ERROR_UNSUPPORTED, message);
    return false;
}

/* Embedding, layers and head as three chunks of one rank. */
static Plan *
measure_plan(const ExecMeasureOptions *o)
{
    Plan *plan = plan_new();
    const int64_t n_layers =
        CLAMP(o->arch->n_layers / o->concurrency, 1, MIN(MAX_LAYERS, o->arch->n_layers));
    const PlanStage stages[] = {
        {.chunk = 0, .embedding = true},
        {.chunk = 1, .n_layers = n_layers},
        {.chunk = 2, .first_layer = n_layers, .head = true},
    };

    plan->dtype = DTYPE_FP32;
    plan->seq_len = o->seq_len;
    plan->degrees.vpp = G_N_ELEMENTS(stages);
    g_array_append_vals(plan->stages, stages, G_N_ELEMENTS(stages));
    g_array_append_val(plan->slices, o->seq_len);
    return plan;
}

/* What the model must be for a plan of one stage is what it must be here. */
static bool
check_model(const ExecMeasureOptions *o, GError **error)
{
    g_autoptr(Plan) plan = plan_new();

    plan->dtype = DTYPE_FP32;
    plan->seq_len = o->seq_len;
    g_array_append_val(plan->slices, o->seq_len);
    plan_set_even_stages(plan, o->arch->n_layers, o->arch->vocab > 0, SCHEDULE_PLACEMENT_LOOP,
                         PLAN_RECOMPUTE_NONE);
    return exec_plan_supported(o->arch, plan, error);
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

/* A real run of a model so small that its ops are nearly nothing: what is left over per op is the
 * executor's bookkeeping and its (tiny) messages. */
static bool
time_overhead(const ExecMeasureOptions *o, ExecSamples *samples, GError **error)
{
    const ModelArch tiny = {
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
    const ProfileMeasurement key = {.op = PROFILE_OP_OVERHEAD};
    g_autoptr(Plan) plan = plan_new();
    g_auto(ExecRunResult) result = {0};

    plan->dtype = DTYPE_FP32;
    plan->seq_len = 16;
    plan->degrees.pp = MIN(o->concurrency, 2);
    plan->n_microbatches = plan->global_batch = 64;
    g_array_append_val(plan->slices, plan->seq_len);
    plan_set_even_stages(plan, tiny.n_layers, true, SCHEDULE_PLACEMENT_LOOP, PLAN_RECOMPUTE_NONE);
    if (!exec_run(
            &(ExecRunOptions){
                .arch = &tiny,
                .plan = plan,
                .device = o->device,
                .transport = "local",
                .n_steps = 8,
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

/* --- the profile --- */

/* Returns: (owned) "AMD EPYC 9B14, OpenBLAS 0.3.21 Haswell, 1 thread per rank". */
static char *
describe_machine(const ExecBackend *backend)
{
    g_autofree char *library = exec_backend_describe(backend);
    g_autofree char *text = NULL;
    size_t n_bytes;

    if (file_read_max("/proc/cpuinfo", 1 << 24, &text, &n_bytes, NULL)) {
        const char *line = strstr(text, "model name");
        const char *colon = line == NULL ? NULL : strchr(line, ':');
        if (colon != NULL) {
            g_autofree char *name = g_strndup(colon + 1, strcspn(colon + 1, "\n"));
            return g_strdup_printf("%s, %s", g_strstrip(name), library);
        }
    }
    return g_strdup_printf("CPU, %s", library);
}

static void
report(const ExecMeasureOptions *o, double fraction, const char *what)
{
    if (o->progress != NULL)
        o->progress(fraction, what, o->user_data);
}

/* The larger of how far the time and the repetitions are. */
static double
done_fraction(ExecMeasureShared *shared)
{
    const double n = (double)atomic_load(&shared->n_repetitions);
    const double time = (double)(exec_now_ns() - shared->begin_ns) / (double)shared->budget_ns;
    const double minimum = n / (double)shared->min_repetitions;
    const double maximum = n / (double)shared->max_repetitions;

    return CLAMP(MAX(maximum, MIN(time, minimum)), 0.0, 1.0);
}

static bool
time_all(const ExecMeasureOptions *o, const Plan *plan, ExecSamples *samples, GError **error)
{
    const int32_t n_threads = (int32_t)MAX(o->concurrency, 2);
    g_autoptr(ExecLocalHub) hub = exec_local_hub_new(n_threads, 600);
    g_autofree ExecMeasureStart *starts = g_new0(ExecMeasureStart, (size_t)n_threads);
    g_autofree GThread **threads = g_new0(GThread *, (size_t)n_threads);
    g_autofree int64_t *clocks = g_new0(int64_t, 2 * (size_t)n_threads);
    ExecMeasureShared shared = {
        .o = o,
        .plan = plan,
        .hub = hub,
        .samples = samples,
        .n_threads = n_threads,
        .n_busy = (int32_t)o->concurrency,
        .shares_cores = o->concurrency > exec_n_cores(),
        .arrived_ns = clocks,
        .finished_ns = clocks + n_threads,
        .begin_ns = exec_now_ns(),
        .budget_ns = (o->quick ? INT64_C(12) : INT64_C(60)) * 1000000000,
        .min_repetitions = o->quick ? 3 : 7,
        .max_repetitions = o->quick ? 15 : 51,
    };
    g_mutex_init(&shared.mutex);
    for (int32_t i = 0; i < n_threads; i++) {
        starts[i] = (ExecMeasureStart){.shared = &shared, .rank = i};
        threads[i] = g_thread_new("profiler", exec_measure_rank_main, &starts[i]);
    }
    while (o->progress != NULL && !atomic_load(&shared.stop)) {
        report(o, done_fraction(&shared), "timing layers, messages and the optimizer");
        g_mutex_lock(&shared.mutex);
        const bool failed = shared.error != NULL;
        g_mutex_unlock(&shared.mutex);
        if (failed)
            break;
        g_usleep(100000);
    }
    for (int32_t i = 0; i < n_threads; i++)
        g_thread_join(threads[i]);
    g_mutex_clear(&shared.mutex);
    if (shared.error == NULL)
        return true;
    g_propagate_error(error, shared.error);
    return false;
}

Profile *
exec_measure(const ExecMeasureOptions *options, GError **error)
{
    g_return_val_if_fail(options->arch != NULL && options->device != NULL, NULL);
    ExecMeasureOptions o = *options;
    Grid grid = {0};

    fill_defaults(&o, &grid);
    if (!check_grid(&o, error) || !check_model(&o, error))
        return NULL;
    /* On this thread, before there are others: blas.h says why. */
    g_autoptr(ExecBackend) backend = exec_backend_open(o.device, 0, DTYPE_FP32, error);
    if (backend == NULL)
        return NULL;
    g_autoptr(Profile) profile = profile_load("local-cpu", error);
    if (profile == NULL)
        return NULL;
    g_autoptr(Plan) plan = measure_plan(&o);
    g_autoptr(ExecSamples) samples = exec_samples_new();
    report(&o, 0, "timing the executor's overhead");
    if (!time_overhead(&o, samples, error) || !time_all(&o, plan, samples, error))
        return NULL;
    exec_samples_write(samples, profile);
    /* What exec_run() reports is what its pools hold: nothing for driver or allocator. */
    profile->parameters.context_bytes = 0;
    profile->parameters.allocator_fraction = 0;
    profile->measured_arch = model_arch_copy(o.arch);
    profile->measured_on = describe_machine(backend);
    profile->measured_dtype = DTYPE_FP32;
    profile->measured_concurrency = o.concurrency;
    report(&o, 1, "done");
    return g_steal_pointer(&profile);
}
