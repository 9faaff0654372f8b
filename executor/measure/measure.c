#include "executor/measure/measure.h"

#include <math.h>
#include <unistd.h>

#include "base/file.h"
#include "base/host_steal.h"
#include "executor/device/clock.h"
#include "executor/device/cores.h"
#include "executor/measure/budget.h"
#include "executor/measure/interference.h"
#include "executor/measure/sustained.h"
#include "executor/measure/layers.h"
#include "executor/measure/links.h"
#include "executor/measure/machine.h"
#include "executor/run/run.h"
#include "executor/transport/measured_collectives.h"
#include "profiles/cost/measured.h"

/* The default grid: at most so many slice lengths, halved from the sequence's length; none shorter
 * than the least, below which overheads dominate whatever the shape. */
#define MAX_SLICES 6
#define MIN_SLICE 16
/* On GPUs also three quarters of each, because between powers of two their time is a staircase; below a
 * tile of a product it is flat. */
#define MAX_SLICES_GPU 12
#define MIN_SLICE_GPU 128

/* Defaults of the budget (docs/formats.md). */
#define BUDGET_S 60
#define QUICK_BUDGET_S 12

/* An unfinished profile is written at most so often: then little is lost, and writing takes a small
 * share of the time. */
#define KEEP_EVERY_NS INT64_C(3000000000)

/* A limit that is overrun by more than this share is reported. */
#define TOLD_BEYOND 0.1

/* --- a model that is nearly nothing --- */

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
exec_measure_tiny_plan(Dtype dtype, int64_t n_stages, int64_t n_replicas, int64_t n_micro_batches)
{
    const ModelArch *tiny = &exec_measure_tiny_arch;
    Plan *plan = plan_new();

    plan->dtype = dtype;
    plan->seq_len = tiny->max_seq_len;
    plan->degrees.pp = n_stages;
    plan->degrees.dp = n_replicas;
    plan->n_micro_batches = n_micro_batches;
    plan->global_batch = n_replicas * n_micro_batches;
    g_array_append_val(plan->slices, plan->seq_len);
    plan_set_even_stages(plan, tiny->n_layers, true, SCHEDULE_PLACEMENT_LOOP, PLAN_RECOMPUTE_NONE);
    return plan;
}

/* --- options --- */

/* Lists that were not given; they must outlive the options. */
typedef struct {
    int64_t batches[4], slices[MAX_SLICES_GPU], tps[1];
    size_t n_batches;
} Defaults;

static bool
is_gpu(const ExecMeasureOptions *o)
{
    return exec_device_kind(o->device)->is_gpu;
}

static void
fill_defaults(ExecMeasureOptions *o, Defaults *defaults)
{
    /* On CPUs time is nearly linear in the batch: between 1 and 4 layers are 1 % off, while a shape
     * costs seconds.  On GPUs it is not, and a shape costs little. */
    static const Defaults of_cpus = {.batches = {1, 4}, .n_batches = 2, .tps = {1}};
    static const Defaults of_gpus = {.batches = {1, 2, 4, 8}, .n_batches = 4, .tps = {1}};

    *defaults = is_gpu(o) ? of_gpus : of_cpus;
    if (o->seq_len == 0)
        o->seq_len = o->arch->max_seq_len;
    if (o->concurrency == 0)
        o->concurrency = is_gpu(o) ? 1 : exec_n_cores();
    if (o->budget_s <= 0)
        o->budget_s = o->quick ? QUICK_BUDGET_S : BUDGET_S;
    if (o->batches == NULL) {
        o->batches = defaults->batches;
        o->n_batches = defaults->n_batches;
    }
    if (o->tps == NULL) {
        o->tps = defaults->tps;
        o->n_tps = 1;
    }
    if (o->slices == NULL) {
        const size_t most = is_gpu(o) ? MAX_SLICES_GPU : MAX_SLICES;
        const int64_t least = is_gpu(o) ? MIN_SLICE_GPU : MIN_SLICE;
        o->n_slices = 0;
        o->slices = defaults->slices;
        for (int64_t tokens = o->seq_len;
             o->n_slices < most && (tokens >= least || o->n_slices == 0);
             tokens = (tokens + 1) / 2) {
            defaults->slices[o->n_slices++] = tokens;
            if (is_gpu(o) && o->n_slices < most && tokens % 4 == 0 && tokens / 2 >= least)
                defaults->slices[o->n_slices++] = tokens / 4 * 3;
        }
    }
}

/* @name and @limit  for the message */
static bool
check_list(const char *name, const int64_t *values, size_t n, int64_t most, const char *limit,
           GError **error)
{
    for (size_t i = 0; i < n; i++) {
        if (values[i] >= 1 && values[i] <= most)
            continue;
        return EXEC_FAIL(error, EXEC_ERROR_UNSUPPORTED,
                         "%s: %" G_GINT64_FORMAT " is not between 1 and %s", name, values[i],
                         limit);
    }
    return true;
}

static bool
check_lists(const ExecMeasureOptions *o, GError **error)
{
    if (o->seq_len > o->arch->max_seq_len)
        return EXEC_FAIL(error, EXEC_ERROR_UNSUPPORTED,
                         "--seq-len: %" G_GINT64_FORMAT " is beyond the model's positions",
                         o->seq_len);
    return check_list("concurrency", &o->concurrency, 1, 1024, "1024", error) &&
           check_list("--micro-batch", o->batches, o->n_batches, 65536, "65536", error) &&
           check_list("--slices", o->slices, o->n_slices, o->seq_len, "the sequence's length",
                      error) &&
           check_list("--tp", o->tps, o->n_tps, 1024, "1024", error);
}

/* Whether the executor runs a plan of one stage of the model at @tp: then it can time it. */
static bool
check_model(const ExecMeasureOptions *o, int64_t tp, GError **error)
{
    g_autoptr(Plan) plan = plan_new();

    plan->dtype = o->dtype;
    plan->seq_len = o->seq_len;
    plan->degrees.tp = tp;
    g_array_append_val(plan->slices, o->seq_len);
    plan_set_even_stages(plan, model_n_stacked(o->arch), o->arch->vocab > 0,
                         SCHEDULE_PLACEMENT_LOOP, PLAN_RECOMPUTE_NONE);
    return exec_plan_supported(o->arch, plan, o->device, error);
}

static bool
check_options(const ExecMeasureOptions *o, GError **error)
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
    Defaults defaults;

    fill_defaults(&o, &defaults);
    return check_options(&o, error);
}

/* --- the unfinished profile --- */

/*
 * A file "degas-profile-partial" holds every timing so far: {"format","version","of": what is
 * measured, in words, "between"?: the GPUs between which messages and collectives were timed,
 * "rounds": [{"spent_s","repetitions"}, one for each tensor-parallel degree], "variation": {...},
 * "samples": [...]}.
 */
#define FORMAT "degas-profile-partial"
#define MAX_REPETITIONS 1000000
#define MAX_SPENT_S 1e9

typedef struct {
    double spent_s;
    int32_t n_repetitions;
} Round;

typedef struct {
    char *of;       /* (owned) of partial_of() */
    char *between;  /* (owned, nullable) */
    GArray *rounds; /* (owned) of Round */
    ExecSamples *samples;
    ExecVariation *variation;
} Partial;

static void
append_list(GString *text, const char *name, const int64_t *values, size_t n)
{
    g_string_append_printf(text, ", %s ", name);
    for (size_t i = 0; i < n; i++)
        g_string_append_printf(text, "%s%" G_GINT64_FORMAT, i > 0 ? "," : "", values[i]);
}

/* Returns: (owned) everything that a timing depends on, on one line; @o with defaults filled in. */
static char *
partial_of(const ExecMeasureOptions *o, const ModelArch *arch, const char *device)
{
    g_autoptr(GString) text = g_string_new(NULL);
    g_autoptr(JsonWriter) writer = json_writer_new_compact();
    size_t n_bytes;

    model_arch_write(writer, NULL, arch);
    g_autofree char *model = json_writer_steal(writer, &n_bytes);
    g_autofree char *sum = g_compute_checksum_for_string(G_CHECKSUM_SHA256, model, -1);

    g_string_append_printf(text,
                           "%s (%.8s) on %s: %s, sequences of %" G_GINT64_FORMAT
                           ", %" G_GINT64_FORMAT " ranks at once",
                           arch->name, sum, device, dtype_names[o->dtype], o->seq_len,
                           o->concurrency);
    append_list(text, "batches", o->batches, o->n_batches);
    append_list(text, "slices", o->slices, o->n_slices);
    append_list(text, "tp", o->tps, o->n_tps);
    return g_string_free(g_steal_pointer(&text), FALSE);
}

/* False on a G_FILE_ERROR. */
static bool
partial_write(const Partial *partial, const char *path, GError **error)
{
    g_autoptr(JsonWriter) writer = json_writer_new();
    size_t n_bytes;

    json_write_object(writer, NULL);
    json_write_string(writer, "format", FORMAT);
    json_write_int64(writer, "version", 1);
    json_write_string(writer, "of", partial->of);
    if (partial->between != NULL)
        json_write_string(writer, "between", partial->between);
    json_write_array_inline(writer, "rounds");
    for (guint i = 0; i < partial->rounds->len; i++) {
        const Round *round = &g_array_index(partial->rounds, Round, i);
        json_write_object(writer, NULL);
        json_write_double(writer, "spent_s", round->spent_s);
        json_write_int64(writer, "repetitions", round->n_repetitions);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
    exec_variation_keep(partial->variation, writer, "variation");
    exec_samples_keep(partial->samples, writer, "samples");
    json_write_object_end(writer);
    g_autofree char *text = json_writer_steal(writer, &n_bytes);
    return file_write(path, text, n_bytes, error);
}

static void
read_rounds(JsonDoc *doc, const JsonValue *array, GArray *rounds)
{
    if (json_length(array) != rounds->len) {
        json_fail(doc, array, "expected %u rounds", rounds->len);
        return;
    }
    guint i = 0;
    for (const JsonValue *v = json_first(array); v != NULL; v = json_next(v)) {
        g_array_index(rounds, Round, i++) = (Round){
            .spent_s = json_double(doc, v, "spent_s", 0.0, MAX_SPENT_S),
            .n_repetitions = (int32_t)json_int64(doc, v, "repetitions", 0, MAX_REPETITIONS),
        };
        json_object_end(doc, v);
    }
}

/* Adds what the file holds.  False on G_FILE_ERROR, JSON_ERROR_INVALID, or EXEC_ERROR_DATA: it is
 * of another profile. */
static bool
partial_read(Partial *partial, const char *path, GError **error)
{
    g_autoptr(JsonDoc) doc = json_doc_load(path, error);

    if (doc == NULL)
        return false;
    const JsonValue *root = json_doc_root(doc, FORMAT, 1);
    g_autofree char *of = g_strdup(json_string(doc, root, "of"));
    partial->between = g_strdup(json_string_or(doc, root, "between", NULL));
    const JsonValue *rounds = json_array(doc, root, "rounds");
    const JsonValue *samples = json_array(doc, root, "samples");
    const JsonValue *variation = json_object(doc, root, "variation");
    json_object_end(doc, root);
    if (!json_doc_failed(doc) && !g_str_equal(of, partial->of))
        return EXEC_FAIL(
            error, EXEC_ERROR_DATA,
            "%s: $.of: this was \"%s\", not \"%s\"; go on with the same options, or begin "
            "without --resume",
            path, of, partial->of);
    read_rounds(doc, rounds, partial->rounds);
    exec_samples_read(partial->samples, doc, samples);
    exec_variation_read(partial->variation, doc, variation);
    return json_doc_finish(doc, error);
}

bool
exec_measure_has_collectives(const char *path)
{
    g_autoptr(JsonDoc) doc = json_doc_load(path, NULL);

    if (doc == NULL)
        return false;
    const JsonValue *root = json_doc_root(doc, FORMAT, 1);
    const bool has = json_is_object(root) && json_has(doc, root, "between");
    json_doc_finish(doc, NULL);
    return has;
}

/* --- a profile in the making --- */

typedef struct {
    ExecMeasureOptions o;
    const ModelArch *arch; /* (borrowed) the user's; o.arch has the layers that are timed */
    ModelArch *timed_arch; /* (owned, nullable) o.arch */
    ExecMachine machine;
    Partial partial;
    int64_t *batches;        /* (owned) o.batches: those that fit the device */
    bool is_explicit;        /* the user asked for slices: the whole grid is timed */
    int64_t kept_ns;         /* when the unfinished profile was last written */
    guint round;             /* index into tps */
    int64_t workspace_bytes; /* the most that a backend held for itself */
    bool watches_cores;      /* whether it can be looked at if a thread had its core */
    HostSteal before;        /* before all that is timed */
    ExecMeasureLayers layers;
    ExecBudget budget;
    int64_t begin_ns;
    double before_s;   /* what came before the rounds took */
    double beside_s;   /* what came after them took */
    double required_s; /* what was timed whatever it took */
    double wanted_s;   /* about how long the rounds would take to leave nothing out */
    GString *without;  /* (owned) what there was no time for, in words */
} Measure;

static void
report(const ExecMeasureOptions *o, double fraction, double left_s, const char *what)
{
    if (o->progress != NULL)
        o->progress(fraction, left_s, what, o->user_data);
}

G_GNUC_PRINTF(2, 3)
static void
note(const ExecMeasureOptions *o, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *text = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    if (o->note != NULL)
        o->note(text, o->user_data);
}

/* Adds to what there was no time for. */
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

/* False if somebody asked for an end; what is there is kept. */
static bool
check_interrupted(const Measure *m, GError **error)
{
    const char *path = m->o.partial_path;

    if (m->o.stop == NULL || g_atomic_int_get(m->o.stop) == 0)
        return true;
    if (path != NULL && !partial_write(&m->partial, path, error))
        return false;
    return EXEC_FAIL(error, EXEC_ERROR_INTERRUPTED, "profile: interrupted%s%s",
                     path != NULL ? "; --resume goes on from " : "", path != NULL ? path : "");
}

/* Returns what everything before round @round took, also before an interruption. */
static double
spent_before_s(const Measure *m, guint round)
{
    double sum_s = m->before_s;

    for (guint i = 0; i < round; i++)
        sum_s += g_array_index(m->partial.rounds, Round, i).spent_s;
    return sum_s;
}

static int64_t
largest_batch(const ExecMeasureOptions *o)
{
    int64_t largest = 0;

    for (size_t b = 0; b < o->n_batches; b++)
        largest = MAX(largest, o->batches[b]);
    return largest;
}

/* --- a round --- */

/* Returns how much of the round is done: by time, unless all repetitions come first. */
static double
round_fraction(const ExecMeasureLayers *job)
{
    const double n = (double)atomic_load(&job->n_repetitions);
    const double time =
        (double)(exec_now_ns() - job->begin_ns) / (double)MAX(atomic_load(&job->round_ns), 1);
    /* The grid counts as the first repetition. */
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
    /* What is left is expected to go on at this round's pace. */
    const double done = fraction - begun;
    const double left_s =
        done > 0 ? exec_seconds_since(begin_ns) * (1.0 - fraction) / done : (double)INFINITY;
    g_autofree char *what =
        g_strdup_printf("timing layers, messages and the optimizer: %d shapes, %d repetitions",
                        atomic_load(&m->layers.n_timed), atomic_load(&m->layers.n_repetitions));

    report(&m->o, fraction, left_s, what);
}

/* Thread 0 calls it between meetings: notes how far the round is, and writes that unless it did so
 * a moment ago and need not @now. */
static bool
keep(void *user_data, bool now, GError **error)
{
    Measure *m = user_data;
    const int64_t now_ns = exec_now_ns();

    if (!now && now_ns - m->kept_ns < KEEP_EVERY_NS)
        return true;
    m->kept_ns = now_ns;
    g_array_index(m->partial.rounds, Round, m->round) = (Round){
        .spent_s = (double)(now_ns - m->layers.begin_ns) * 1e-9,
        .n_repetitions = atomic_load(&m->layers.n_repetitions),
    };
    return m->o.partial_path == NULL || partial_write(&m->partial, m->o.partial_path, error);
}

static void
init_layers(Measure *m, ExecGrid *grid)
{
    const Round *kept = &g_array_index(m->partial.rounds, Round, m->round);
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

/* Tells what this round had no time or no memory for. */
static void
tell_round(Measure *m, const ExecGrid *grid, const ExecMeasureShared *shared)
{
    const ExecMeasureLayers *job = &m->layers;
    const int n = atomic_load(&job->n_repetitions);
    g_autofree char *left_out = exec_budget_links_left_out(shared->links);
    g_autofree char *tp =
        m->o.n_tps == 1 ? g_strdup("") : g_strdup_printf(" at tp %" G_GINT64_FORMAT, job->tp);

    if (!job->has_all_points)
        tell_without(m, "%zu of %zu shapes%s", grid->n - grid->timed->len, grid->n, tp);
    if (n < job->min_repetitions)
        tell_without(m, "%d of %d repetitions%s%s", job->min_repetitions - n, job->min_repetitions,
                     tp, job->n_disturbed > 0 ? " that nothing disturbs" : "");
    if (left_out != NULL)
        tell_without(m, "%s", left_out);
    if (shared->too_large_copy_bytes > 0)
        note(&m->o, "copies of %" G_GINT64_FORMAT " bytes and more are left out: %s",
             shared->too_large_copy_bytes, shared->too_large_why);
}

/* Times all layers at one tensor-parallel degree, and in the first round what does not depend on
 * it. */
static bool
time_round(Measure *m, GError **error)
{
    const ExecMeasureOptions *o = &m->o;
    g_autoptr(Plan) plan = exec_measure_plan(o, o->tps[m->round]);
    const int32_t busy = (int32_t)(plan->degrees.tp * plan->degrees.dp);
    const bool shares_cores = !is_gpu(o) && busy > exec_n_cores();
    g_autoptr(ExecGrid) grid = exec_grid_new(o->batches, o->n_batches, o->slices, o->n_slices);
    const int64_t begin_ns = exec_now_ns();
    init_layers(m, grid);
    g_autoptr(ExecBudgetLinks) links = exec_budget_links_new(
        m->budget.is_limit ? EXEC_BUDGET_LINKS_SHARE * (double)m->layers.round_ns * 1e-9
                           : (double)INFINITY);
    ExecMeasureShared shared = {
        .o = o,
        .plan = plan,
        .samples = m->partial.samples,
        .variation = m->partial.variation,
        .n_threads = MAX(busy, 2),
        .n_busy = busy,
        .largest_batch = largest_batch(o),
        .flush_bytes = m->machine.flush_bytes,
        .captures = true,
        .has_optimizer = true,
        .has_collectives = m->partial.between != NULL,
        .links = links,
        .shares_cores = shares_cores,
        .watches_cores = m->watches_cores && !shares_cores,
        .job = exec_measure_layers,
        .job_data = &m->layers,
    };

    exec_measure_start(&shared);
    while (o->progress != NULL && !atomic_load(&shared.stop)) {
        report_round(m, begin_ns);
        g_usleep(100000);
    }
    const bool ok = exec_measure_join(&shared, error) && keep(m, true, error);
    if (ok) {
        m->budget.setup_s = m->layers.setup_s;
        m->required_s += m->layers.required_s;
        m->wanted_s += m->layers.wanted_s;
        tell_round(m, grid, &shared);
    }
    m->workspace_bytes = MAX(m->workspace_bytes, shared.workspace_bytes);
    g_free(shared.too_large_why);
    return ok;
}

/* Leaves out the largest micro-batches, which the device has no memory for; false: there are no
 * others. */
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
    m->o.n_batches = n;
    note(&m->o, "micro-batches of %" G_GINT64_FORMAT " are left out: %s", largest, why->message);
    return true;
}

/* Times a round without the micro-batches that are too large for the device. */
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

/* --- after the rounds --- */

/* Times a layer beside others on 1, 2, 4, ... ranks, up to as many as the device has memory for. */
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
        g_autoptr(GError) why = NULL;

        if (!check_interrupted(m, error))
            return false;
        /* On a GPU it becomes a parameter of the cost model, and is timed in any case. */
        if (!is_gpu(&m->o) &&
            !exec_budget_has_time(&m->budget, before_s + exec_seconds_since(begin_ns),
                                  m->budget.setup_s + exec_interference_expected_s(&in))) {
            tell_without(m, "a layer beside others on %d rank%s and more", n, n > 1 ? "s" : "");
            return true;
        }
        if (exec_interference_time(&in, n, &why))
            continue;
        if (g_error_matches(why, EXEC_ERROR, EXEC_ERROR_MEMORY)) {
            note(&m->o, "a layer beside others, on %d ranks, is left out: %s", n, why->message);
            return true;
        }
        g_propagate_error(error, g_steal_pointer(&why));
        return false;
    }
    return true;
}

/* On hosts the timings' own clock says how busy the cores were.  A failure costs the profile these rows
 * alone. */
static bool
time_sustained(Measure *m, GError **error)
{
    g_autoptr(GError) why = NULL;
    ExecSustained sustained = {
        .o = &m->o,
        .samples = m->partial.samples,
        .profile = m->machine.profile,
        .largest_batch = largest_batch(&m->o),
    };

    if (!is_gpu(&m->o) || exec_sustained_time(&sustained, &why))
        return true;
    if (g_error_matches(why, EXEC_ERROR, EXEC_ERROR_INTERRUPTED)) {
        g_propagate_error(error, g_steal_pointer(&why));
        return false;
    }
    note(&m->o, "how much slower layers become without a break was not timed: %s", why->message);
    return true;
}

/* To which seconds the advice for a budget is rounded. */
#define ROUND_UP_S 10.0

/* Tells what there was no time for, and by how much a limit was overrun. */
static void
note_time(const Measure *m)
{
    const double spent_s = spent_before_s(m, m->partial.rounds->len) + m->beside_s;

    if (m->without->len > 0)
        note(&m->o, "in %g s there was no time for %s", m->budget.total_s, m->without->str);
    if (m->without->len > 0 && m->wanted_s > m->budget.total_s)
        note(&m->o,
             "what lies between the shapes that were timed is interpolated; --budget %.0f would "
             "have time for about all",
             ROUND_UP_S * ceil(m->wanted_s / ROUND_UP_S));
    if (m->budget.is_limit && spent_s > (1.0 + TOLD_BEYOND) * m->budget.total_s)
        note(&m->o,
             "took %.1f s, not %g; %.1f s of them for shapes that are timed whatever they take",
             spent_s, m->budget.total_s, m->required_s);
}

static Profile *
finish(Measure *m, const ExecBackend *backend)
{
    Profile *profile = g_steal_pointer(&m->machine.profile);

    exec_samples_write(m->partial.samples, profile);
    exec_variation_of(m->partial.variation, &profile->variation);
    /* Peaks that exec_run() reports are what its pools hold: nothing for driver or allocator. */
    profile->parameters.context_bytes = 0;
    profile->parameters.allocator_fraction = 0;
    profile->measured_arch = model_arch_copy(m->arch);
    profile->measured_on = exec_machine_describe(m->o.device, backend);
    profile->measured_attention =
        g_strdup(exec_backend_attention_kernel(backend, m->o.arch->head_dim));
    profile->measured_dtype = m->o.dtype;
    profile->measured_concurrency = m->o.concurrency;
    if (m->partial.between != NULL)
        exec_machine_add_gpus(profile, m->partial.between);
    exec_machine_set_workspace(profile, m->workspace_bytes);
    if (is_gpu(&m->o))
        exec_machine_set_parameters(profile);
    profile_measured_fit_errors(profile);
    const HostSteal now = host_steal_now();
    g_autofree char *disturbed = exec_machine_set_disturbed(
        profile, exec_samples_total(m->partial.samples), host_steal_fraction(&m->before, &now));
    if (disturbed != NULL)
        note(&m->o, "%s", disturbed);
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
    m->before_s = exec_seconds_since(m->begin_ns);
    for (m->round = 0; m->round < m->o.n_tps; m->round++)
        if (!check_interrupted(m, error) || !time_round_that_fits(m, error))
            return false;
    report(&m->o, 1, 0, "timing layers beside copies and each other");
    const int64_t begin_ns = exec_now_ns();
    const bool ok = time_interference(m, begin_ns, error) && time_sustained(m, error);
    m->beside_s = exec_seconds_since(begin_ns);
    return ok;
}

/* An interruption keeps what is there, also timings of a point that was not finished. */
static bool
time_all(Measure *m, GError **error)
{
    GError *why = NULL;

    if (!time_rounds(m, &why) && !g_error_matches(why, EXEC_ERROR, EXEC_ERROR_INTERRUPTED)) {
        g_propagate_error(error, why);
        return false;
    }
    g_clear_error(&why);
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
    model_arch_free(m->timed_arch);
    g_free(m->batches);
    g_free(m->partial.of);
    g_free(m->partial.between);
}

static Profile *
measure(Measure *m, GError **error)
{
    if (!check_options(&m->o, error))
        return NULL;
    m->o.arch = m->timed_arch = exec_measure_arch(m->arch, m->o.concurrency);
    /* Opened on this thread, before there are others: blas.h says why. */
    const ExecBackendOptions options = {.storage = m->o.dtype, .attention = m->o.attention};
    g_autoptr(ExecBackend) backend = exec_backend_open_with(m->o.device, &options, error);
    m->watches_cores = !is_gpu(&m->o) && exec_thread_clock_is_fine();
    m->before = host_steal_now();
    if (backend == NULL || !exec_machine_init(&m->machine, m->o.device, m->o.concurrency, error))
        return NULL;
    g_autofree char *name = exec_backend_describe(backend);
    m->partial.of = partial_of(&m->o, m->arch, name);
    if (m->o.resume && m->o.partial_path != NULL &&
        !partial_read(&m->partial, m->o.partial_path, error))
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
    Defaults defaults;
    Measure m = {
        .o = *options,
        .arch = options->arch,
        .is_explicit = options->slices != NULL,
        .begin_ns = exec_now_ns(),
        .without = g_string_new(NULL),
        .partial = {.rounds = g_array_new(FALSE, TRUE, sizeof(Round)),
                    .samples = exec_samples_new(),
                    .variation = exec_variation_new()},
    };

    fill_defaults(&m.o, &defaults);
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
