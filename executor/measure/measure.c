#include "executor/measure/measure.h"

#include <math.h>
#include <unistd.h>

#include "base/host_steal.h"
#include "executor/device/cores.h"
#include "executor/measure/budget.h"
#include "executor/transport/measured_collectives.h"
#include "executor/measure/interference.h"
#include "executor/measure/machine.h"
#include "executor/measure/options.h"
#include "executor/measure/partial.h"
#include "executor/measure/rank.h"
#include "executor/measure/tiny.h"
#include "executor/device/clock.h"
#include "profiles/cost/measured.h"

/* What is there is written at most so often. */
#define KEEP_EVERY_NS INT64_C(3000000000)

/* One profile in the making. */
typedef struct {
    ExecMeasureOptions o;
    ExecMachine machine;
    ExecPartial partial;
    int64_t *batches;        /* (owned) o.batches: those that fit */
    bool is_explicit;        /* slices were asked for: the whole grid */
    int64_t kept_ns;         /* when it was last written */
    guint round;             /* index into tps */
    int64_t workspace_bytes; /* most that a backend held for itself */
    bool watches_cores;      /* where it can be: whether a thread had its core */
    HostSteal before;        /* of all that is timed */
    ExecMeasureLayers layers;
    ExecBudget budget;
    int64_t begin_ns;
    double before_s;   /* what there was before the rounds took */
    double beside_s;   /* what was behind them took */
    double required_s; /* what was timed whatever it took */
    GString *without;  /* (owned) what there was no time for, in words */
} Measure;

/* More than this share above a limit is told. */
#define TOLD_BEYOND 0.1

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

/* --- time --- */

static double
seconds_since(int64_t begin_ns)
{
    return (double)(exec_now_ns() - begin_ns) * 1e-9;
}

/* By everything before round @round, in an interrupted profile too. */
static double
spent_before_s(const Measure *m, guint round)
{
    double sum_s = m->before_s;

    for (guint i = 0; i < round; i++)
        sum_s += g_array_index(m->partial.rounds, ExecMeasureRound, i).spent_s;
    return sum_s;
}

G_GNUC_PRINTF(2, 3)
static void
tell_without(Measure *m, const char *format, ...)
{
    va_list arguments;

    if (m->without->len > 0)
        g_string_append(m->without, "; ");
    va_start(arguments, format);
    g_string_append_vprintf(m->without, format, arguments);
    va_end(arguments);
}

/* --- layers and links --- */

/* By time, unless all repetitions come first. */
static double
round_fraction(const ExecMeasureLayers *job)
{
    const double n = (double)atomic_load(&job->n_repetitions);
    const double time =
        (double)(exec_now_ns() - job->begin_ns) / (double)MAX(atomic_load(&job->round_ns), 1);
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

    if (!now && now_ns - m->kept_ns < KEEP_EVERY_NS)
        return true;
    m->kept_ns = now_ns;
    g_array_index(m->partial.rounds, ExecMeasureRound, m->round) = (ExecMeasureRound){
        .spent_s = (double)(now_ns - m->layers.begin_ns) * 1e-9,
        .n_repetitions = atomic_load(&m->layers.n_repetitions),
    };
    return m->o.partial_path == NULL || exec_partial_write(&m->partial, m->o.partial_path, error);
}

static void
init_layers(Measure *m, ExecGrid *grid)
{
    const ExecMeasureRound *kept = &g_array_index(m->partial.rounds, ExecMeasureRound, m->round);

    const double before_s = spent_before_s(m, m->round);
    const int64_t now_ns = exec_now_ns();

    m->layers = (ExecMeasureLayers){
        .grid = grid,
        .profile = m->machine.profile,
        .tp = m->o.tps[m->round],
        .budget = &m->budget,
        .created_ns = now_ns,
        .begin_ns = now_ns - (int64_t)(kept->spent_s * 1e9),
        .round = m->round,
        .spent_before_s = before_s,
        .round_ns = (int64_t)(exec_budget_round_s(&m->budget, m->round, before_s) * 1e9),
        .wants_all = m->is_explicit,
        .min_repetitions = m->o.quick ? 3 : 7,
        .max_repetitions = m->o.quick ? 15 : 51,
        .n_repetitions = kept->n_repetitions,
        .with_links = m->round == 0,
        .keep = keep,
        .user_data = m,
    };
}

/* (owned, nullable) NULL: all are timed */
static ExecBudgetLinks *
new_links(const Measure *m)
{
    return m->budget.is_limit
               ? exec_budget_links_new(EXEC_BUDGET_LINKS_SHARE * (double)m->layers.round_ns * 1e-9)
               : NULL;
}

/* What this round had no time for. */
static void
tell_round(Measure *m, const ExecGrid *grid, const ExecBudgetLinks *links)
{
    const ExecMeasureLayers *job = &m->layers;
    const int n = atomic_load(&job->n_repetitions);
    g_autofree char *left_out = links == NULL ? NULL : exec_budget_links_left_out(links);
    g_autofree char *tp =
        m->o.n_tps == 1 ? g_strdup("") : g_strdup_printf(" at tp %" G_GINT64_FORMAT, job->tp);

    if (!job->has_all_points)
        tell_without(m, "%zu of %zu shapes%s",
                     exec_grid_n_candidates(grid) - exec_grid_n_timed(grid),
                     exec_grid_n_candidates(grid), tp);
    if (n < job->min_repetitions)
        tell_without(m, "%d of %d repetitions%s%s", job->min_repetitions - n, job->min_repetitions,
                     tp, job->n_disturbed > 0 ? " that nothing disturbs" : "");
    if (left_out != NULL)
        tell_without(m, "%s", left_out);
}

static int64_t
largest_batch(const ExecMeasureOptions *o)
{
    int64_t largest = 0;

    for (size_t b = 0; b < o->n_batches; b++)
        largest = MAX(largest, o->batches[b]);
    return largest;
}

static void
note(const ExecMeasureOptions *o, const char *text)
{
    if (o->note != NULL)
        o->note(text, o->user_data);
}

static void
note_copies(const ExecMeasureOptions *o, const ExecMeasureShared *shared)
{
    if (shared->too_large_copy_bytes == 0)
        return;
    g_autofree char *text =
        g_strdup_printf("copies of %" G_GINT64_FORMAT " bytes and more are left out: %s",
                        shared->too_large_copy_bytes, shared->too_large_why);
    note(o, text);
}

/* All layers at one tensor-parallel degree, and, once, what does not depend on it. */
static bool
time_round(Measure *m, GError **error)
{
    const ExecMeasureOptions *o = &m->o;
    const int32_t busy = (int32_t)exec_measure_n_busy(o, o->tps[m->round]);
    const bool shares_cores = !exec_measure_is_gpu(o) && busy > exec_n_cores();
    g_autoptr(Plan) plan = exec_measure_plan(o, o->tps[m->round]);
    g_autoptr(ExecGrid) grid = exec_grid_new(o->batches, o->n_batches, o->slices, o->n_slices);
    g_autoptr(ExecLocalHub) hub = exec_local_hub_new(MAX(busy, 2), 600);
    const int64_t begin_ns = exec_now_ns();
    init_layers(m, grid);
    g_autoptr(ExecBudgetLinks) links = new_links(m);
    ExecMeasureThreads threads = {
        .shared = {.o = o,
                   .plan = plan,
                   .hub = hub,
                   .samples = m->partial.samples,
                   .variation = m->partial.variation,
                   .n_threads = MAX(busy, 2),
                   .n_busy = busy,
                   .largest_batch = largest_batch(o),
                   .flush_bytes = m->machine.flush_bytes,
                   .has_optimizer = true,
                   .has_collectives = m->partial.between != NULL,
                   .links = links,
                   .shares_cores = shares_cores,
                   .watches_cores = m->watches_cores && !shares_cores,
                   .job = exec_measure_layers,
                   .job_data = &m->layers},
    };

    exec_measure_start(&threads);
    while (o->progress != NULL && !atomic_load(&threads.shared.stop)) {
        report_round(m, begin_ns);
        g_usleep(100000);
    }
    const bool ok = exec_measure_join(&threads, error) && keep(m, true, error);
    if (ok) {
        m->budget.setup_s = m->layers.setup_s;
        m->required_s += m->layers.required_s;
        tell_round(m, grid, links);
        note_copies(o, &threads.shared);
    }
    m->workspace_bytes = MAX(m->workspace_bytes, threads.shared.workspace_bytes);
    g_free(threads.shared.too_large_why);
    return ok;
}

/* --- what does not fit --- */

/* The device has no memory for it; false: there is no other. */
static bool
drop_largest_batch(Measure *m, const GError *why)
{
    const int64_t largest = largest_batch(&m->o);
    size_t n = 0;

    for (size_t i = 0; i < m->o.n_batches; i++)
        if (m->batches[i] != largest)
            m->batches[n++] = m->batches[i];
    if (n == 0)
        return false;
    g_autofree char *text = g_strdup_printf(
        "micro-batches of %" G_GINT64_FORMAT " are left out: %s", largest, why->message);
    m->o.n_batches = n;
    note(&m->o, text);
    return true;
}

/* Without the batches that are too large for the device. */
static bool
time_round_that_fits(Measure *m, GError **error)
{
    for (;;) {
        GError *why = NULL;

        if (time_round(m, &why))
            return true;
        if (!g_error_matches(why, EXEC_ERROR, EXEC_ERROR_MEMORY) || !drop_largest_batch(m, why)) {
            g_propagate_error(error, why);
            return false;
        }
        g_error_free(why);
    }
}

/* Several ranks may be too many for the device. */
static bool
time_interference(Measure *m, int64_t begin_ns, GError **error)
{
    const int64_t most = exec_interference_most_ranks(&m->o);
    const double before_s = spent_before_s(m, m->partial.rounds->len);
    ExecInterference in = {
        .o = &m->o,
        .samples = m->partial.samples,
        .profile = m->machine.profile,
        .largest_batch = largest_batch(&m->o),
        .watches_cores = m->watches_cores,
    };

    exec_samples_write(m->partial.samples, m->machine.profile);
    for (int32_t n = 1; n <= most; n *= 2) {
        GError *why = NULL;

        if (!check_interrupted(m, error))
            return false;
        /* On a GPU it becomes a parameter of the cost model: it is timed in any case. */
        if (!exec_measure_is_gpu(&m->o) &&
            !exec_budget_has_time(&m->budget, before_s + seconds_since(begin_ns),
                                  m->budget.setup_s + exec_interference_expected_s(&in))) {
            tell_without(m, "a layer beside others on %d rank%s and more", n, n > 1 ? "s" : "");
            return true;
        }
        if (exec_interference_time(&in, n, &why))
            continue;
        if (!g_error_matches(why, EXEC_ERROR, EXEC_ERROR_MEMORY)) {
            g_propagate_error(error, why);
            return false;
        }
        g_autofree char *text =
            g_strdup_printf("a layer beside others, on %d ranks, is left out: %s", n, why->message);
        note(&m->o, text);
        g_error_free(why);
        break;
    }
    return true;
}

/* What there was no time for, and by how much a limit was overrun. */
static void
note_time(const Measure *m)
{
    const double spent_s = spent_before_s(m, m->partial.rounds->len) + m->beside_s;

    if (m->without->len > 0) {
        g_autofree char *text =
            g_strdup_printf("in %g s there was no time for %s", m->budget.total_s, m->without->str);
        note(&m->o, text);
    }
    if (m->budget.is_limit && spent_s > (1.0 + TOLD_BEYOND) * m->budget.total_s) {
        g_autofree char *text = g_strdup_printf(
            "took %.1f s, not %g; %.1f s of them for shapes that are timed whatever they take",
            spent_s, m->budget.total_s, m->required_s);
        note(&m->o, text);
    }
}

/* What others had the cores for while layers and copies were timed. */
static void
note_disturbed(const Measure *m, Profile *profile)
{
    const HostSteal now = host_steal_now();
    g_autofree char *text = exec_machine_set_disturbed(
        profile, exec_samples_total(m->partial.samples), host_steal_fraction(&m->before, &now));

    if (text != NULL)
        note(&m->o, text);
}

/* --- the profile --- */

static Profile *
finish(Measure *m, const ExecBackend *backend)
{
    Profile *profile = g_steal_pointer(&m->machine.profile);

    exec_samples_write(m->partial.samples, profile);
    exec_variation_of(m->partial.variation, &profile->variation);
    /* What exec_run() reports is what its pools hold: nothing for driver or allocator. */
    profile->parameters.context_bytes = 0;
    profile->parameters.allocator_fraction = 0;
    profile->measured_arch = model_arch_copy(m->o.arch);
    profile->measured_on = exec_machine_describe(m->o.device, backend);
    profile->measured_attention = g_strdup(exec_backend_attention_kernel(backend));
    profile->measured_dtype = m->o.dtype;
    profile->measured_concurrency = m->o.concurrency;
    if (m->partial.between != NULL)
        exec_machine_add_gpus(profile, m->partial.between);
    exec_machine_set_workspace(profile, m->workspace_bytes);
    if (exec_measure_is_gpu(&m->o))
        exec_machine_set_parameters(profile);
    profile_measured_fit_errors(profile);
    note_disturbed(m, profile);
    note_time(m);
    if (m->o.partial_path != NULL)
        unlink(m->o.partial_path);
    report(&m->o, 1, 0, "done");
    return profile;
}

static bool
time_rounds(Measure *m, GError **error)
{
    const ProfileMeasurement overhead = {.op = PROFILE_OP_OVERHEAD};

    const int64_t most = exec_interference_most_ranks(&m->o);

    for (int64_t n = 1; n <= most; n *= 2)
        m->budget.n_beside++;
    report(&m->o, 0, (double)INFINITY, "timing the executor's overhead");
    if (exec_samples_count(m->partial.samples, &overhead) == 0 &&
        !exec_measure_overhead(&m->o, m->partial.samples, error))
        return false;
    m->before_s = seconds_since(m->begin_ns);
    for (m->round = 0; m->round < m->o.n_tps; m->round++)
        if (!check_interrupted(m, error) || !time_round_that_fits(m, error))
            return false;
    report(&m->o, 1, 0, "timing layers beside copies and each other");
    const int64_t begin_ns = exec_now_ns();
    const bool ok = time_interference(m, begin_ns, error);
    m->beside_s = seconds_since(begin_ns);
    return ok;
}

/* What is there is kept, also of a point that was being timed. */
static bool
time_all(Measure *m, GError **error)
{
    GError *why = NULL;

    if (time_rounds(m, &why))
        return check_interrupted(m, error);
    if (!g_error_matches(why, EXEC_ERROR, EXEC_ERROR_INTERRUPTED)) {
        g_propagate_error(error, why);
        return false;
    }
    g_error_free(why);
    return check_interrupted(m, error);
}

static void
measure_clear(Measure *m)
{
    profile_free(m->machine.profile);
    exec_samples_free(m->partial.samples);
    exec_variation_free(m->partial.variation);
    g_array_unref(m->partial.rounds);
    g_string_free(m->without, TRUE);
    g_free(m->batches);
    g_free(m->partial.of);
    g_free(m->partial.between);
}

static Profile *
measure(Measure *m, GError **error)
{
    if (!exec_measure_check(&m->o, error))
        return NULL;
    /* On this thread, before there are others: blas.h says why. */
    g_autoptr(ExecBackend) backend = exec_backend_open(m->o.device, 0, m->o.dtype, error);
    m->watches_cores = !exec_measure_is_gpu(&m->o) && exec_thread_clock_is_fine();
    m->before = host_steal_now();
    if (backend == NULL || !exec_machine_init(&m->machine, m->o.device, m->o.concurrency, error))
        return NULL;
    g_autofree char *name = exec_backend_describe(backend);
    m->partial.of = exec_partial_of(&m->o, name);
    if (m->o.resume && m->o.partial_path != NULL &&
        !exec_partial_read(&m->partial, m->o.partial_path, error))
        return NULL;
    if (m->partial.between == NULL && m->o.collectives != NULL &&
        !exec_collectives_from_text(m->o.collectives, m->partial.samples, &m->partial.between,
                                    error))
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
        .begin_ns = exec_now_ns(),
        .without = g_string_new(NULL),
        .partial = {.rounds = g_array_new(FALSE, TRUE, sizeof(ExecMeasureRound)),
                    .samples = exec_samples_new(),
                    .variation = exec_variation_new()},
    };

    exec_measure_fill_defaults(&m.o, &defaults);
    m.batches = g_memdup2(m.o.batches, m.o.n_batches * sizeof *m.batches);
    m.o.batches = m.batches;
    g_array_set_size(m.partial.rounds, (guint)m.o.n_tps);
    m.budget = (ExecBudget){
        .total_s = m.o.budget_s,
        .is_limit = options->budget_s > 0 || options->quick,
        .n_rounds = (int64_t)m.o.n_tps,
    };
    Profile *profile = measure(&m, error);
    measure_clear(&m);
    return profile;
}
