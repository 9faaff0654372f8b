#include "executor/measure.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "executor/measure_machine.h"
#include "executor/measure_options.h"
#include "executor/measure_partial.h"
#include "executor/measure_rank.h"
#include "executor/run.h"
#include "profiles/measured.h"

/* Of the budget, for what runs beside a layer on so many ranks. */
#define BESIDE_SHARE 0.05

/* What is there is written at most so often. */
#define KEEP_EVERY_NS INT64_C(3000000000)

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

    plan->dtype = o->dtype;
    plan->seq_len = 16;
    plan->degrees.pp = MIN(o->concurrency, 2);
    plan->n_microbatches = plan->global_batch = o->quick ? 16 : 64;
    g_array_append_val(plan->slices, plan->seq_len);
    plan_set_even_stages(plan, tiny.n_layers, true, SCHEDULE_PLACEMENT_LOOP, PLAN_RECOMPUTE_NONE);
    if (!exec_run(
            &(ExecRunOptions){
                .arch = &tiny,
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

/* --- threads --- */

/* One profile in the making. */
typedef struct {
    ExecMeasureOptions o;
    ExecMachine machine;
    ExecPartial partial;
    bool is_explicit; /* slices were asked for: the whole grid */
    int64_t kept_ns;  /* when it was last written */
    guint round;      /* index into tps */
    ExecMeasureLayers layers;
} Measure;

/* Threads of one job, and what they share. */
typedef struct {
    ExecMeasureShared shared;
    ExecMeasureStart *starts; /* (owned) */
    GThread **threads;        /* (owned) */
    int64_t *clocks;          /* (owned) */
} Threads;

static void
start_threads(Threads *t)
{
    const int32_t n = t->shared.n_threads;

    t->starts = g_new0(ExecMeasureStart, (size_t)n);
    t->threads = g_new0(GThread *, (size_t)n);
    t->clocks = g_new0(int64_t, 2 * (size_t)n);
    t->shared.arrived_ns = t->clocks;
    t->shared.finished_ns = t->clocks + n;
    g_mutex_init(&t->shared.mutex);
    for (int32_t i = 0; i < n; i++) {
        t->starts[i] = (ExecMeasureStart){.shared = &t->shared, .rank = i};
        t->threads[i] = g_thread_new("profiler", exec_measure_rank_main, &t->starts[i]);
    }
}

static bool
join_threads(Threads *t, GError **error)
{
    for (int32_t i = 0; i < t->shared.n_threads; i++)
        g_thread_join(t->threads[i]);
    g_mutex_clear(&t->shared.mutex);
    g_free(t->starts);
    g_free(t->threads);
    g_free(t->clocks);
    if (t->shared.error == NULL)
        return true;
    g_propagate_error(error, t->shared.error);
    return false;
}

static void
report(const ExecMeasureOptions *o, double fraction, double left_s, const char *what)
{
    if (o->progress != NULL)
        o->progress(fraction, left_s, what, o->user_data);
}

/* False, with what is there kept, if somebody asked for an end. */
static bool
check_interrupted(const Measure *m, GError **error)
{
    const char *path = m->o.partial_path;

    if (m->o.stop == NULL || g_atomic_int_get(m->o.stop) == 0)
        return true;
    if (path != NULL && !exec_partial_write(&m->partial, path, error))
        return false;
    g_set_error(error, EXEC_ERROR, EXEC_ERROR_INTERRUPTED, "profile: interrupted%s%s",
                path != NULL ? "; --resume goes on from " : "", path != NULL ? path : "");
    return false;
}

/* --- layers and links --- */

/* By time, unless all repetitions come first. */
static double
round_fraction(const ExecMeasureLayers *job)
{
    const double n = (double)atomic_load(&job->n_repetitions);
    const double time = (double)(exec_now_ns() - job->begin_ns) / (double)job->budget_ns;
    /* The grid is the first of them. */
    const double minimum = (n + 1.0) / ((double)job->min_repetitions + 1.0);
    const double maximum = n / (double)job->max_repetitions;

    return CLAMP(fmax(maximum, fmin(time, minimum)), 0.0, 1.0);
}

static void
report_round(const Measure *m, int64_t begin_ns)
{
    const double n_rounds = (double)m->o.n_tps;
    const double begun = (double)m->round / n_rounds;
    const double fraction = begun + round_fraction(&m->layers) / n_rounds;
    const double spent_s = (double)(exec_now_ns() - begin_ns) * 1e-9;
    /* This round's pace holds for what is left. */
    const double done = fraction - begun;
    const double left_s = done > 0 ? spent_s * (1.0 - fraction) / done : (double)INFINITY;
    g_autofree char *what =
        g_strdup_printf("timing layers, messages and the optimizer: %d shapes, %d repetitions",
                        atomic_load(&m->layers.n_timed), atomic_load(&m->layers.n_repetitions));

    report(&m->o, fraction, left_s, what);
}

/* Thread 0's, between barriers. */
static bool
keep(void *user_data, bool now, GError **error)
{
    Measure *m = user_data;
    const int64_t now_ns = exec_now_ns();

    if (m->o.partial_path == NULL || (!now && now_ns - m->kept_ns < KEEP_EVERY_NS))
        return true;
    m->kept_ns = now_ns;
    g_array_index(m->partial.rounds, ExecMeasureRound, m->round) = (ExecMeasureRound){
        .spent_s = (double)(now_ns - m->layers.begin_ns) * 1e-9,
        .n_repetitions = atomic_load(&m->layers.n_repetitions),
    };
    return exec_partial_write(&m->partial, m->o.partial_path, error);
}

static void
init_layers(Measure *m, ExecGrid *grid)
{
    const ExecMeasureRound *kept = &g_array_index(m->partial.rounds, ExecMeasureRound, m->round);

    m->layers = (ExecMeasureLayers){
        .grid = grid,
        .profile = m->machine.profile,
        .tp = m->o.tps[m->round],
        .begin_ns = exec_now_ns() - (int64_t)(kept->spent_s * 1e9),
        .budget_ns = (int64_t)(m->o.budget_s / (double)m->o.n_tps * 1e9),
        .min_repetitions = m->o.quick ? 3 : 7,
        .max_repetitions = m->o.quick ? 15 : 51,
        .n_repetitions = kept->n_repetitions,
        .with_links = m->round == 0,
        .keep = keep,
        .user_data = m,
    };
    if (m->is_explicit)
        exec_grid_want_all(grid);
}

/* All layers at one tensor-parallel degree, and, once, what does not depend on it. */
static bool
time_round(Measure *m, GError **error)
{
    const ExecMeasureOptions *o = &m->o;
    const int32_t busy = (int32_t)exec_measure_n_busy(o, o->tps[m->round]);
    g_autoptr(Plan) plan = exec_measure_plan(o, o->tps[m->round]);
    g_autoptr(ExecGrid) grid = exec_grid_new(o->batches, o->n_batches, o->slices, o->n_slices);
    g_autoptr(ExecLocalHub) hub = exec_local_hub_new(MAX(busy, 2), 600);
    const int64_t begin_ns = exec_now_ns();
    Threads threads = {
        .shared = {.o = o,
                   .plan = plan,
                   .hub = hub,
                   .samples = m->partial.samples,
                   .n_threads = MAX(busy, 2),
                   .n_busy = busy,
                   .flush_bytes = m->machine.flush_bytes,
                   .has_optimizer = true,
                   .shares_cores = !exec_measure_is_gpu(o) && busy > exec_n_cores(),
                   .job = exec_measure_layers,
                   .job_data = &m->layers},
    };

    init_layers(m, grid);
    start_threads(&threads);
    while (o->progress != NULL && !atomic_load(&threads.shared.stop)) {
        report_round(m, begin_ns);
        g_usleep(100000);
    }
    return join_threads(&threads, error) && keep(m, true, error);
}

/* --- interference --- */

static int
compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double
percentile(const GArray *sorted, guint hundredths)
{
    return g_array_index(sorted, double, (sorted->len - 1) * hundredths / 100);
}

static void
add_factors(Profile *profile, int64_t n_ranks, const ExecMeasureBeside *beside, double alone_s)
{
    for (int i = 0; i < PROFILE_BESIDE_N; i++) {
        const GArray *seconds = beside->seconds[i];
        if (seconds->len == 0 || (n_ranks == 1 && i == PROFILE_BESIDE_NOTHING))
            continue;
        const ProfileInterference row = {
            .beside = (ProfileBeside)i,
            .n_ranks = n_ranks,
            .factor = percentile(seconds, 50) / alone_s,
            .p10 = percentile(seconds, 10) / alone_s,
            .p90 = percentile(seconds, 90) / alone_s,
        };
        g_array_append_val(profile->interference, row);
    }
}

/* @alone_s  of a rank that has the device for itself; set by the first call, with one rank. */
static bool
time_beside(Measure *m, int32_t n_ranks, double *alone_s, GError **error)
{
    const ExecMeasureOptions *o = &m->o;
    /* One to copy, two to reduce, where nobody waits for a core. */
    const int32_t n_threads = MAX(n_ranks, exec_measure_is_gpu(o) || exec_n_cores() >= 3 ? 3 : 2);
    g_autoptr(Plan) plan = exec_measure_plan(o, 1);
    g_autoptr(ExecLocalHub) hub = exec_local_hub_new(n_threads, 600);
    ExecMeasureBeside beside = {
        .deadline_ns = exec_now_ns() + (int64_t)(BESIDE_SHARE * o->budget_s * 1e9),
    };
    Threads threads = {
        .shared = {.o = o,
                   .plan = plan,
                   .hub = hub,
                   .samples = m->partial.samples,
                   .n_threads = n_threads,
                   .n_busy = n_ranks,
                   .job = exec_measure_beside,
                   .job_data = &beside},
    };

    for (int i = 0; i < PROFILE_BESIDE_N; i++)
        beside.seconds[i] = g_array_new(FALSE, FALSE, sizeof(double));
    start_threads(&threads);
    const bool ok = join_threads(&threads, error);
    for (int i = 0; i < PROFILE_BESIDE_N; i++)
        qsort(beside.seconds[i]->data, beside.seconds[i]->len, sizeof(double), compare_doubles);
    if (ok && n_ranks == 1)
        *alone_s = percentile(beside.seconds[PROFILE_BESIDE_NOTHING], 50);
    if (ok)
        add_factors(m->machine.profile, n_ranks, &beside, *alone_s);
    for (int i = 0; i < PROFILE_BESIDE_N; i++)
        g_array_unref(beside.seconds[i]);
    return ok;
}

/* A GPU is cut into as many shares as pipelines on it have stages; cores are there or not. */
static bool
time_interference(Measure *m, GError **error)
{
    const int64_t most = exec_measure_is_gpu(&m->o) ? MAX(m->o.concurrency, 4)
                                                    : MIN(m->o.concurrency, exec_n_cores());
    double alone_s = 1;

    for (int32_t n = 1; n <= most; n *= 2)
        if (!check_interrupted(m, error) || !time_beside(m, n, &alone_s, error))
            return false;
    return true;
}

/* --- parameters that were measured --- */

static const ProfileMeasurement *
largest_row(const Profile *profile, ProfileOp op)
{
    const ProfileMeasurement *found = NULL;

    for (guint i = 0; i < profile->measurements->len; i++) {
        const ProfileMeasurement *row =
            &g_array_index(profile->measurements, ProfileMeasurement, i);
        if (row->op == op)
            found = row;
    }
    return found;
}

static void
set_parameter(Profile *profile, const char *name, double value, const char *source)
{
    for (int i = 0; i < PROFILE_PARAMETERS_N; i++) {
        const ProfileParameterInfo *info = &profile_parameter_info[i];
        if (!g_str_equal(info->name, name))
            continue;
        profile_parameter_set(&profile->parameters, i, CLAMP(value, info->min, info->max));
        g_free(profile->parameter_sources[i]);
        profile->parameter_sources[i] = g_strdup(source);
    }
}

/* Host ranks compute, copy and communicate in turn, and pay for calls inside their ops: nothing of
 * this is theirs. */
static void
set_device_parameters(Profile *profile, const ExecBackend *backend)
{
    const ProfileMeasurement *launch = largest_row(profile, PROFILE_OP_LAUNCH);
    const ProfileMeasurement *out = largest_row(profile, PROFILE_OP_COPY_D2H);

    set_parameter(profile, "workspace_bytes", (double)exec_backend_workspace_bytes(backend),
                  "what the backend holds for itself");
    if (launch != NULL)
        set_parameter(profile, "host_kernel_s", launch->median_s, "measured: launch");
    if (out != NULL && out->median_s > 0)
        set_parameter(profile, "offload_bytes_per_s", (double)out->bytes / out->median_s,
                      "measured: copy_d2h, pageable memory");
    for (guint i = 0; i < profile->interference->len; i++) {
        const ProfileInterference *row =
            &g_array_index(profile->interference, ProfileInterference, i);
        if (row->beside == PROFILE_BESIDE_ALL_REDUCE)
            set_parameter(profile, "interference_fraction", row->factor - 1.0,
                          "measured: a layer beside all_reduce");
        if (row->beside == PROFILE_BESIDE_COPY_D2D)
            set_parameter(profile, "message_interference_fraction", row->factor - 1.0,
                          "measured: a layer beside copy_d2d");
    }
}

/* --- the profile --- */

static Profile *
finish(Measure *m, const ExecBackend *backend)
{
    Profile *profile = g_steal_pointer(&m->machine.profile);

    exec_samples_write(m->partial.samples, profile);
    /* What exec_run() reports is what its pools hold: nothing for driver or allocator. */
    profile->parameters.context_bytes = 0;
    profile->parameters.allocator_fraction = 0;
    profile->measured_arch = model_arch_copy(m->o.arch);
    profile->measured_on = exec_machine_describe(m->o.device, backend);
    profile->measured_dtype = m->o.dtype;
    profile->measured_concurrency = m->o.concurrency;
    if (exec_measure_is_gpu(&m->o))
        set_device_parameters(profile, backend);
    profile_measured_fit_errors(profile);
    if (m->o.partial_path != NULL)
        unlink(m->o.partial_path);
    report(&m->o, 1, 0, "done");
    return profile;
}

static bool
time_all(Measure *m, GError **error)
{
    const ProfileMeasurement overhead = {.op = PROFILE_OP_OVERHEAD};

    report(&m->o, 0, (double)INFINITY, "timing the executor's overhead");
    if (exec_samples_count(m->partial.samples, &overhead) == 0 &&
        !time_overhead(&m->o, m->partial.samples, error))
        return false;
    report(&m->o, 0, (double)INFINITY, "timing layers beside copies and each other");
    if (!time_interference(m, error))
        return false;
    for (m->round = 0; m->round < m->o.n_tps; m->round++)
        if (!check_interrupted(m, error) || !time_round(m, error) || !check_interrupted(m, error))
            return false;
    return true;
}

static void
measure_clear(Measure *m)
{
    profile_free(m->machine.profile);
    exec_samples_free(m->partial.samples);
    g_array_unref(m->partial.rounds);
    g_free(m->partial.of);
}

static Profile *
measure(Measure *m, GError **error)
{
    if (!exec_measure_check(&m->o, error))
        return NULL;
    /* On this thread, before there are others: blas.h says why. */
    g_autoptr(ExecBackend) backend = exec_backend_open(m->o.device, 0, m->o.dtype, error);
    if (backend == NULL || !exec_machine_init(&m->machine, m->o.device, m->o.concurrency, error))
        return NULL;
    g_autofree char *name = exec_backend_describe(backend);
    m->partial.of = exec_partial_of(&m->o, name);
    if (m->o.resume && m->o.partial_path != NULL &&
        !exec_partial_read(&m->partial, m->o.partial_path, error))
        return NULL;
    if (!time_all(m, error))
        return NULL;
    return finish(m, backend);
}

Profile *
exec_measure(const ExecMeasureOptions *options, GError **error)
{
    g_return_val_if_fail(options->arch != NULL && options->device != NULL, NULL);
    ExecMeasureDefaults defaults;
    Measure m = {
        .o = *options,
        .is_explicit = options->slices != NULL,
        .partial = {.rounds = g_array_new(FALSE, TRUE, sizeof(ExecMeasureRound)),
                    .samples = exec_samples_new()},
    };

    exec_measure_fill_defaults(&m.o, &defaults);
    g_array_set_size(m.partial.rounds, (guint)m.o.n_tps);
    Profile *profile = measure(&m, error);
    measure_clear(&m);
    return profile;
}
