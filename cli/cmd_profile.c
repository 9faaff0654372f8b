/* degas profile: measures what layers, messages and the optimizer cost on this machine. */
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/output.h"
#include "cli/request.h"
#include "executor/measure.h"

static const OptionInfo options_table[] = {
    {.name = "device", .value = "NAME", .help = "cpu (default), reference or cuda"},
    {.name = "seq-len", .value = "N", .help = "tokens of a sequence (the model's)"},
    {.name = "batches", .value = "LIST", .help = "sequences of a micro-batch (1,2,4)"},
    {.name = "slices", .value = "LIST", .help = "tokens of slices (halves of the sequence)"},
    {.name = "concurrency", .value = "N", .help = "ranks that are busy at once (the cores)"},
    {.name = "tp", .value = "LIST", .help = "tensor-parallel degrees (1)"},
    {.name = "quick", .help = "fewer repetitions"},
    {.name = "json", .help = "print the degas-profile object"},
    {.name = "output", .value = "FILE", .help = "write the profile to FILE", .letter = 'o'},
    {.name = NULL},
};

/* --- progress --- */

#define PROGRESS_INTERVAL_US (G_USEC_PER_SEC / 10)

typedef struct {
    int64_t begin_us, last_us;
    bool shown;
} Progress;

/* One line, rewritten; nothing in the first half second. */
static void
show_progress(double fraction, const char *what, void *user_data)
{
    Progress *progress = user_data;
    const int64_t now_us = g_get_monotonic_time();

    if (now_us - progress->begin_us < G_USEC_PER_SEC / 2 ||
        now_us - progress->last_us < PROGRESS_INTERVAL_US)
        return;
    progress->last_us = now_us;
    progress->shown = true;
    fprintf(stderr, "\r%3d %%  %-60.60s", (int)(fraction * 100), what);
}

static void
end_progress(const Progress *progress)
{
    if (progress->shown)
        fprintf(stderr, "\r%-68s\r", "");
}

/* --- the table --- */

/* (owned) "1 x 128", "1.05 M elements", "128 KiB, 2 ranks" */
static char *
describe_shape(const ProfileMeasurement *row)
{
    g_autofree char *count = NULL;

    switch (row->op) {
    case PROFILE_OP_LAYER:
    case PROFILE_OP_EMBEDDING:
    case PROFILE_OP_HEAD:
        return g_strdup_printf("%" G_GINT64_FORMAT " x %" G_GINT64_FORMAT, row->batch, row->tokens);
    case PROFILE_OP_OPTIMIZER:
        count = units_format_count((double)row->n_elements);
        return g_strdup_printf("%s elements", count);
    case PROFILE_OP_P2P:
        return units_format_bytes((double)row->bytes);
    case PROFILE_OP_ALL_REDUCE:
        count = units_format_bytes((double)row->bytes);
        return g_strdup_printf("%s, %" G_GINT64_FORMAT " ranks", count, row->n_ranks);
    default:
        return g_strdup("per op");
    }
}

/* FLOPs of a timed part in its pass, as the model counts them; 0: not a part. */
static double
flops_of(const Profile *profile, const ProfileMeasurement *row)
{
    static const ModelPart parts[] = {
        [PROFILE_OP_LAYER] = MODEL_PART_LAYER,
        [PROFILE_OP_EMBEDDING] = MODEL_PART_EMBEDDING,
        [PROFILE_OP_HEAD] = MODEL_PART_HEAD,
    };
    const ModelShape shape = {
        .batch = row->batch,
        .tokens = row->tokens,
        .context = row->context,
        .tp = row->tp,
        .cp = 1,
        .ep = 1,
        .dtype = profile->measured_dtype,
        .expert_imbalance = 1.0,
    };
    ModelOp ops[MODEL_MAX_OPS];
    double flops = 0.0;

    if (row->op > PROFILE_OP_HEAD || !model_shape_check(profile->measured_arch, &shape, NULL))
        return 0.0;
    const size_t n_ops = model_ops(profile->measured_arch, parts[row->op], 0, &shape, ops);
    for (size_t i = 0; i < n_ops; i++)
        flops += row->pass == PROFILE_PASS_FORWARD ? ops[i].forward_flops : ops[i].backward_flops;
    /* Halves of the backward: no count of their own. */
    return row->pass <= PROFILE_PASS_BACKWARD ? flops : 0.0;
}

/* (owned) GFLOP/s of parts, GB/s of messages. */
static char *
describe_rate(const Profile *profile, const ProfileMeasurement *row)
{
    const double flops = flops_of(profile, row);
    g_autofree char *number = NULL;

    if (flops > 0.0) {
        number = output_number(flops / row->median_s * 1e-9);
        return g_strdup_printf("%s GFLOP/s", number);
    }
    if (row->bytes > 0) {
        number = output_number((double)row->bytes / row->median_s * 1e-9);
        return g_strdup_printf("%s GB/s", number);
    }
    return g_strdup("");
}

static bool
is_part(ProfileOp op)
{
    return op == PROFILE_OP_LAYER || op == PROFILE_OP_EMBEDDING || op == PROFILE_OP_HEAD;
}

/* What a screen holds: slices without context; of embedding and head one shape. */
static bool
is_shown(const Profile *profile, const ProfileMeasurement *row)
{
    if (!is_part(row->op))
        return true;
    for (guint i = 0; row->op != PROFILE_OP_LAYER && i < profile->measurements->len; i++) {
        const ProfileMeasurement *other =
            &g_array_index(profile->measurements, ProfileMeasurement, i);
        if (other->op == row->op && (other->batch < row->batch ||
                                     (other->batch == row->batch && other->tokens > row->tokens)))
            return false;
    }
    return row->context == 0;
}

/* Half of what 80 % of the repetitions span, against the median. */
static double
spread(const ProfileMeasurement *row)
{
    return (row->p90_s - row->p10_s) / 2.0 / row->median_s;
}

/* On a quiet machine a layer's timings spread by a few percent. */
#define QUIET_SPREAD 0.2

/* Tells when most layers' timings were disturbed: predictions from them would be, too. */
static void
warn_if_disturbed(const Profile *profile)
{
    guint n = 0, n_disturbed = 0;

    for (guint i = 0; i < profile->measurements->len; i++) {
        const ProfileMeasurement *row =
            &g_array_index(profile->measurements, ProfileMeasurement, i);
        n += row->op == PROFILE_OP_LAYER;
        n_disturbed += row->op == PROFILE_OP_LAYER && spread(row) > QUIET_SPREAD;
    }
    if (2 * n_disturbed > n)
        output_note("profile: the machine is busy: %u of %u timings of layers spread by more than "
                    "20 %%; measure again when it is quiet",
                    n_disturbed, n);
}

static void
print_for_people(const Profile *profile)
{
    static const char *const header[] = {"<op",    "<pass",   "<shape", "median",
                                         "spread", "<  rate", NULL};
    g_autoptr(OutputTable) table = output_table_new(header);
    guint n_hidden = 0;

    output_printf("%s: %s; %" G_GINT64_FORMAT " ranks busy at once\n", profile->measured_arch->name,
                  profile->measured_on, profile->measured_concurrency);
    for (guint i = 0; i < profile->measurements->len; i++) {
        const ProfileMeasurement *row =
            &g_array_index(profile->measurements, ProfileMeasurement, i);
        if (!is_shown(profile, row)) {
            n_hidden++;
            continue;
        }
        g_autofree char *rate = describe_rate(profile, row);

        output_table_add(table, profile_op_names[row->op]);
        output_table_add(table, is_part(row->op) ? profile_pass_names[row->pass] : "");
        output_table_take(table, describe_shape(row));
        output_table_take(table, output_seconds(row->median_s));
        output_table_take(table, output_percent(spread(row)));
        output_table_printf(table, "  %s", rate);
    }
    output_table_print(table, 0);
    if (n_hidden > 0)
        output_printf("and %u more rows: slices with context, embedding and head\n", n_hidden);
}

/* --- the command --- */

static bool
check_tp(Options *options, GError **error)
{
    g_autoptr(GArray) degrees = options_int64s(options, "tp", 1, 1 << 20);

    if (!options_finish(options, error))
        return false;
    for (guint i = 0; degrees != NULL && i < degrees->len; i++) {
        const int64_t tp = g_array_index(degrees, int64_t, i);
        if (tp == 1)
            continue;
        g_set_error(error, CMD_ERROR, CMD_ERROR_NO,
                    "profile: --tp %" G_GINT64_FORMAT
                    ": this executor cannot run tensor parallelism yet",
                    tp);
        return false;
    }
    return true;
}

static Profile *
measure(const ModelArch *arch, Options *options, GError **error)
{
    static const char *const devices[] = {"cpu", "reference", "cuda", NULL};
    Progress progress = {.begin_us = g_get_monotonic_time()};
    g_autoptr(GArray) batches = options_int64s(options, "batches", 1, 65536);
    g_autoptr(GArray) slices = options_int64s(options, "slices", 1, MODEL_MAX_SEQ_LEN);
    ExecMeasureOptions exec = {
        .arch = arch,
        .device = devices[options_choice(options, "device", devices, 0)],
        .seq_len = options_int64(options, "seq-len", 1, MODEL_MAX_SEQ_LEN, 0),
        .concurrency = options_int64(options, "concurrency", 1, 1024, 0),
        .quick = options_switch(options, "quick"),
    };

    if (!check_tp(options, error) || !options_finish(options, error))
        return NULL;
    if (batches != NULL) {
        exec.batches = (const int64_t *)(const void *)batches->data;
        exec.n_batches = batches->len;
    }
    if (slices != NULL) {
        exec.slices = (const int64_t *)(const void *)slices->data;
        exec.n_slices = slices->len;
    }
    if (isatty(STDERR_FILENO)) {
        exec.progress = show_progress;
        exec.user_data = &progress;
    }
    Profile *profile = exec_measure(&exec, error);
    end_progress(&progress);
    return profile;
}

static int
run(Options *options, GError **error)
{
    const char *output = options_string(options, "output", NULL);
    g_autoptr(ModelArch) arch = request_load_model(options_argument(options, 0), error);
    g_autoptr(Profile) profile = NULL;

    if (arch == NULL)
        return -1;
    profile = measure(arch, options, error);
    if (profile == NULL)
        return -1;
    const bool json = options_switch(options, "json");
    if (json || output != NULL) {
        g_autoptr(JsonWriter) writer = json_writer_new();
        profile_write(writer, NULL, profile);
        if (!output_json(writer, output, error))
            return -1;
    }
    if (!json && g_strcmp0(output, "-") != 0)
        print_for_people(profile);
    warn_if_disturbed(profile);
    if (!json && output == NULL)
        output_note("profile: not kept; write it with -o FILE");
    return 0;
}

const Command cmd_profile = {
    .name = "profile",
    .usage = "MODEL [--device cpu|cuda] [--slices LIST] [--quick] -o profile.json",
    .summary = "measure what a model's layers cost on this machine",
    .details =
        "Times the executor's own code with as many ranks busy at once as there are cores. The\n"
        "file is a cluster for degas plan and degas simulate.\n",
    .options = {options_table},
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
