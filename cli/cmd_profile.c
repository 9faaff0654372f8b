/* degas profile: measures what layers, messages and the optimizer cost on this machine. */
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "cli/request/command.h"
#include "cli/request/output.h"
#include "cli/request/subject.h"
#include "cli/run/processes.h"
#include "executor/measure/attention.h"
#include "executor/measure/measure.h"
#include "executor/watch/launch.h"

static const char *const dtypes[] = {"fp32", "bf16", NULL};

static const OptionInfo options_table[] = {
    {"device", "NAME", "measure this device: cpu (default), reference or cuda",
     .list = exec_device_names, .common = true},
    {"seq-len", "N", "make sequences of N tokens; default: the model's"},
    {"batches", "LIST", "time micro-batches of so many sequences; default: 1,4, on GPUs 1,2,4,8"},
    {"slices", "LIST",
     "time slices of so many tokens; default: the sequence, its half, a quarter and so on, on GPUs "
     "three quarters of each, too, as needed"},
    {"dtype", "NAME",
     "compute in this number format: fp32 (default on the CPU) or bf16 (default on a GPU)",
     .words = dtypes},
    {"concurrency", "N",
     "keep N ranks busy at the same time; default: one for each core; on a GPU 1, and if more, "
     "they share it"},
    {"gpus", "N",
     "time messages and collectives between N GPUs, with NCCL; default: all; 1: they are not "
     "timed"},
    {"tp", "LIST", "time layers at these tensor-parallel degrees; default: 1", .common = true},
    {"quick", NULL, "time fewer shapes, less often: under two minutes", .common = true},
    {"budget", "S",
     "measure for S seconds; default: 12 with --quick, else 60 for layers and messages",
     .common = true},
    {"resume", NULL,
     "go on from FILE.partial, in which -o FILE keeps what is measured until all is",
     .common = true},
    {"json", NULL, "print the degas-profile object"},
    {"output", "FILE", "write the profile to FILE", .common = true},
    {NULL, NULL, NULL},
};

/* --- progress --- */

#define PROGRESS_INTERVAL_US (G_USEC_PER_SEC / 10)
#define PROGRESS_WIDTH 70

typedef struct {
    int64_t begin_us, last_us;
    bool shown;
} Progress;

/* One line, rewritten; nothing in the first half second. */
static void
show_progress(double fraction, double left_s, const char *what, void *user_data)
{
    Progress *progress = user_data;
    const int64_t now_us = g_get_monotonic_time();

    if (now_us - progress->begin_us < G_USEC_PER_SEC / 2 ||
        now_us - progress->last_us < PROGRESS_INTERVAL_US)
        return;
    progress->last_us = now_us;
    progress->shown = true;
    g_autofree char *left =
        isfinite(left_s) ? g_strdup_printf("%.0f s left  ", ceil(left_s)) : g_strdup("");
    g_autofree char *line = g_strconcat(left, what, NULL);
    fprintf(stderr, "\r%3d %%  %-*.*s", (int)(fraction * 100), PROGRESS_WIDTH, PROGRESS_WIDTH,
            line);
}

/* --- the table --- */

/* (owned) "1 x 128", "1.05 M elements", "128 KiB, 2 ranks" */
static char *
describe_shape(const ProfileMeasurement *row)
{
    if (profile_op_has_shape(row->op)) {
        if (row->tp == 1)
            return g_strdup_printf(INT " x " INT, row->batch, row->tokens);
        return g_strdup_printf(INT " x " INT ", tp " INT, row->batch, row->tokens, row->tp);
    }
    if (row->op == PROFILE_OP_OPTIMIZER)
        return g_strdup_printf("%s elements", units_format_count((double)row->n_elements).text);
    if (row->op == PROFILE_OP_OVERHEAD || row->op == PROFILE_OP_LAUNCH)
        return g_strdup(row->op == PROFILE_OP_LAUNCH ? "per kernel" : "per op");
    if (row->op == PROFILE_OP_P2P || row->n_ranks == 0)
        return g_strdup(units_format_bytes((double)row->bytes).text);
    return g_strdup_printf("%s, " INT " ranks", units_format_bytes((double)row->bytes).text,
                           row->n_ranks);
}

/* Whether a measured row of @op includes the model's ops of @kind; rows of whole parts have all. */
static bool
counts_in(ProfileOp op, ModelOpKind kind)
{
    if (op == PROFILE_OP_LAYER_ATTENTION)
        return kind == MODEL_OP_ATTENTION;
    return op <= PROFILE_OP_HEAD || (op == PROFILE_OP_LAYER_GEMM && kind == MODEL_OP_GEMM);
}

/* A layer of the row's kind. */
static int64_t
layer_of(const Profile *profile, const ProfileMeasurement *row)
{
    for (int64_t layer = 0; row->kind != NULL && layer < model_n_stacked(profile->measured_arch);
         layer++)
        if (g_str_equal(row->kind,
                        model_kind_name(profile->measured_arch,
                                        model_layer_kind(profile->measured_arch, layer))))
            return layer;
    return 0;
}

/* FLOPs of a timed part, or of one kind of its ops, in its pass, as the model counts them; 0: not a
 * part. */
static double
flops_of(const Profile *profile, const ProfileMeasurement *row)
{
    const ModelPart part = row->op == PROFILE_OP_EMBEDDING ? MODEL_PART_EMBEDDING
                           : row->op == PROFILE_OP_HEAD    ? MODEL_PART_HEAD
                                                           : MODEL_PART_LAYER;
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

    if (!profile_op_has_shape(row->op) || !model_shape_check(profile->measured_arch, &shape, NULL))
        return 0.0;
    const size_t n_ops =
        model_ops(profile->measured_arch, part, layer_of(profile, row), &shape, ops);
    for (size_t i = 0; i < n_ops; i++)
        if (counts_in(row->op, ops[i].kind))
            flops +=
                row->pass == PROFILE_PASS_FORWARD ? ops[i].forward_flops : ops[i].backward_flops;
    /* Halves of the backward: no count of their own. */
    return row->pass <= PROFILE_PASS_BACKWARD ? flops : 0.0;
}

/* (owned) GFLOP/s of parts, GB/s of messages, a little apart from the column before. */
static char *
describe_rate(const Profile *profile, const ProfileMeasurement *row)
{
    const double flops = flops_of(profile, row);

    if (flops > 0.0)
        return g_strdup_printf("  %s GFLOP/s", output_number(flops / row->median_s * 1e-9).text);
    if (row->bytes > 0)
        return g_strdup_printf("  %s GB/s",
                               output_number((double)row->bytes / row->median_s * 1e-9).text);
    return g_strdup("  ");
}

/* Whether no other row of the same op and number of ranks has more bytes. */
static bool
is_largest(const Profile *profile, const ProfileMeasurement *row)
{
    for (guint i = 0; i < profile->measurements->len; i++) {
        const ProfileMeasurement *other =
            &g_array_index(profile->measurements, ProfileMeasurement, i);
        if (other->op == row->op && other->n_ranks == row->n_ranks && other->bytes > row->bytes)
            return false;
    }
    return true;
}

/* Whether a screen has room for @row: of layers whole passes without context are shown; of other
 * ops one shape. */
static bool
is_shown(const Profile *profile, const ProfileMeasurement *row)
{
    if (!profile_op_has_shape(row->op))
        return row->op <= PROFILE_OP_OVERHEAD || is_largest(profile, row);
    for (guint i = 0; row->op != PROFILE_OP_LAYER && i < profile->measurements->len; i++) {
        const ProfileMeasurement *other =
            &g_array_index(profile->measurements, ProfileMeasurement, i);
        if (other->op == row->op && g_strcmp0(other->kind, row->kind) == 0 &&
            (other->batch < row->batch ||
             (other->batch == row->batch && other->tokens > row->tokens)))
            return false;
    }
    return row->context == 0 && row->pass <= PROFILE_PASS_BACKWARD;
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

/* Prints the errors of layers only. */
static void
print_fit_errors(const Profile *profile)
{
    for (guint i = 0; i < profile->fit_errors->len; i++) {
        const ProfileFitError *error = &g_array_index(profile->fit_errors, ProfileFitError, i);
        if (error->op != PROFILE_OP_LAYER)
            continue;
        output_printf("between shapes, layer %s%s%s, tp " INT ": off by %s (median), %s "
                      "(worst) at " INT " shapes left out\n",
                      error->kind != NULL ? error->kind : "", error->kind != NULL ? " " : "",
                      profile_pass_names[error->pass], error->tp,
                      output_percent(error->median_fraction).text,
                      output_percent(error->worst_fraction).text, error->n_left_out);
    }
}

static void
print_interference(const Profile *profile)
{
    for (guint i = 0; i < profile->interference->len; i++) {
        const ProfileInterference *row =
            &g_array_index(profile->interference, ProfileInterference, i);
        g_autofree char *ranks =
            row->n_ranks == 1 ? g_strdup("") : g_strdup_printf(", " INT " ranks", row->n_ranks);
        output_printf("beside %s%s: a layer takes %.2f of its time alone\n",
                      profile_beside_names[row->beside], ranks, row->factor);
    }
}

static void
print_sustained(const Profile *profile)
{
    for (guint i = 0; i < profile->sustained->len; i++) {
        const ProfileSustained *row = &g_array_index(profile->sustained, ProfileSustained, i);
        output_printf("without a break: a layer of " INT " x " INT
                      " tokens takes %.2f of its time after a pause\n",
                      row->batch, row->tokens, row->factor);
    }
}

static void
print_for_people(const Profile *profile)
{
    g_autoptr(OutputTable) table = output_table_new("<op|<pass|<shape|median|spread|<  rate");
    guint n_hidden = 0;

    output_printf("%s: %s; " INT " ranks busy at once\n", profile->measured_arch->name,
                  profile->measured_on, profile->measured_concurrency);
    for (guint i = 0; i < profile->measurements->len; i++) {
        const ProfileMeasurement *row =
            &g_array_index(profile->measurements, ProfileMeasurement, i);
        if (!is_shown(profile, row)) {
            n_hidden++;
            continue;
        }
        g_autofree char *op =
            g_strjoin(" ", profile_op_names[row->op], row->kind, NULL); /* ends at a NULL kind */
        output_table_row(table, op,
                         profile_op_has_shape(row->op) ? profile_pass_names[row->pass] : "", NULL);
        output_table_take(table, describe_shape(row));
        output_table_row(table, output_seconds(row->median_s).text,
                         output_percent(spread(row)).text, NULL);
        output_table_take(table, describe_rate(profile, row));
    }
    output_table_print(table, 0);
    if (n_hidden > 0)
        output_printf("and %u more rows: slices with context, halves of backward, other shapes\n",
                      n_hidden);
    print_fit_errors(profile);
    print_interference(profile);
    print_sustained(profile);
}

/* Everything that was asked for. */
typedef struct {
    ExecMeasureOptions exec;
    int64_t n_gpus;
    int64_t n_between;              /* GPUs between which collectives are timed; 0: none */
    char *partial;                  /* (owned, nullable) */
    GArray *batches, *slices, *tps; /* (owned, nullable) */
    char *collectives, *why_not;    /* (owned, nullable) */
} Asked;

static void
asked_clear(Asked *asked)
{
    g_free(asked->partial);
    g_clear_pointer(&asked->batches, g_array_unref);
    g_clear_pointer(&asked->slices, g_array_unref);
    g_clear_pointer(&asked->tps, g_array_unref);
    g_free(asked->collectives);
    g_free(asked->why_not);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Asked, asked_clear)

/* --- messages and collectives between GPUs, over NCCL ---
 *
 * They need a process for every GPU.  The command starts itself once for each, as degas run
 * --transport nccl does (cli/run/processes.h); it begins with this, before it has touched a GPU
 * itself.
 */

/* Seconds for them, and what a model's gradients are cut to: beyond, time is a straight line. */
#define SHARE_OF_BUDGET 0.15
#define DEFAULT_BUDGET_S 10.0
#define QUICK_BUDGET_S 2.0
#define LEAST_BYTES (INT64_C(64) << 10)
#define MOST_BYTES (INT64_C(256) << 20)

static double
budget_s(const ExecMeasureOptions *o)
{
    if (o->budget_s > 0)
        return SHARE_OF_BUDGET * o->budget_s;
    return o->quick ? QUICK_BUDGET_S : DEFAULT_BUDGET_S;
}

/* The nearest power of four of 4 KiB that holds the model's gradients in fp32. */
static int64_t
most_bytes(const ModelArch *arch)
{
    const double wanted = 4.0 * (double)model_parameters(arch);
    int64_t bytes = LEAST_BYTES;

    while (bytes < MOST_BYTES && (double)bytes < wanted)
        bytes *= 4;
    return bytes;
}

/* The kind of device that NCCL is for. */
static const char *
nccl_device(void)
{
    const char *const *name = exec_device_names();

    while (!exec_device_kind(*name)->has_nccl)
        name++;
    return *name;
}

static ExecRunOptions
run_options(const Asked *asked, const Plan *plan)
{
    return (ExecRunOptions){
        .arch = &exec_measure_tiny_arch,
        .plan = plan,
        .device = nccl_device(),
        .transport = "nccl",
        .n_steps = 1,
        .seed = 1,
        .stop = asked->exec.stop,
        .collectives_s = budget_s(&asked->exec),
        .collectives_bytes = most_bytes(asked->exec.arch),
    };
}

/* The life of a process that was started.  Returns its exit status, or -1 with @error. */
static int
run_rank(const Asked *asked, GError **error)
{
    const ExecJobRank job_rank = exec_job_rank();
    g_autoptr(Plan) plan =
        exec_measure_tiny_plan(asked->exec.dtype, 1, MAX(job_rank.n_ranks, 1), 1);
    ExecRunOptions exec = run_options(asked, plan);
    g_auto(ExecRunResult) result = {0};
    g_autofree char *where = NULL;
    const int status =
        run_processes_begin(&exec, &(RunProcessesOptions){.stop = exec.stop}, &where, error);

    if (status != RUN_PROCESSES_RANK)
        return status;
    if (!exec_run(&exec, &result, error)) {
        run_processes_fail(&exec, result.told, *error);
        return -1;
    }
    if (result.is_mine)
        output_text(result.collectives);
    return 0;
}

/* (owned, nullable) NULL: they can be timed, over @n_gpus */
static char *
reason_not_to(const Asked *asked, int64_t n_gpus)
{
    g_autoptr(GError) error = NULL;

    if (asked->exec.concurrency > 1)
        return g_strdup("--concurrency makes ranks of one GPU");
    if (n_gpus < 2)
        return g_strdup("there is one GPU");
    g_autoptr(Plan) plan = exec_measure_tiny_plan(asked->exec.dtype, 1, n_gpus, 1);
    ExecRunOptions exec = run_options(asked, plan);
    exec.without_mpi = true;
    return exec_run_check(&exec, &error) ? NULL : g_strdup(error->message);
}

/* Layers over several ranks would be timed on shares of one GPU, in a profile of whole ones. */
static bool
check_tp(const ExecMeasureOptions *o, GError **error)
{
    for (size_t i = 0; i < o->n_tps; i++) {
        if (o->tps[i] == 1)
            continue;
        return cmd_fail(
            error, CMD_ERROR_USAGE,
            "--tp: " INT ": layers are timed on one GPU, whose profile with "
            "the collectives between all prices the others; leave it out, or give --gpus 1 "
            "for shares of one GPU",
            o->tps[i]);
    }
    return true;
}

/* Whether messages and collectives between GPUs are timed, and between how many: asked->n_between, or 0
 * and asked->why_not, unless nobody asked for them.  False on a usage error. */
static bool
decide_between_gpus(Asked *asked, GError **error)
{
    const ExecMeasureOptions *exec = &asked->exec;

    if (!exec_device_kind(exec->device)->has_nccl ||
        (exec->resume && exec_measure_has_collectives(exec->partial_path)))
        return true;
    g_autoptr(GError) no_gpu = NULL;
    const int32_t n_devices = exec_backend_n_devices(nccl_device(), &no_gpu);
    /* Who says that hosts are not what they seem wants a proof of function on what is there. */
    const bool is_proof = g_getenv("NCCL_HOSTID") != NULL;
    const int64_t n_gpus = asked->n_gpus > 0 ? asked->n_gpus : MAX(n_devices, is_proof ? 2 : 1);

    if (n_devices < 0 || asked->n_gpus == 1) /* exec_measure() says what is wrong */
        return true;
    if (n_gpus > n_devices && !is_proof)
        return cmd_fail(error, CMD_ERROR_USAGE, "--gpus: " INT ": this machine has %d", n_gpus,
                        n_devices);
    asked->why_not = reason_not_to(asked, n_gpus);
    if (asked->why_not != NULL)
        return true;
    asked->n_between = n_gpus;
    return check_tp(exec, error);
}

/* Times them: sets asked->collectives.  False on what exec_run() fails with: the message names the
 * rank. */
static bool
time_between_gpus(Asked *asked, GError **error)
{
    if (asked->n_between == 0)
        return true;
    g_autoptr(Plan) plan = exec_measure_tiny_plan(asked->exec.dtype, 1, asked->n_between, 1);
    ExecRunOptions exec = run_options(asked, plan);
    g_autoptr(GString) output = g_string_new(NULL);
    g_autofree char *where = NULL;
    const RunProcessesOptions processes = {.stop = exec.stop, .output = output};
    if (run_processes_begin(&exec, &processes, &where, error) < 0)
        return false;
    asked->collectives = g_string_free(g_steal_pointer(&output), FALSE);
    asked->exec.collectives = asked->collectives;
    return true;
}

/* --- the command --- */

/* (owned, nullable) beside the product, if that is a file */
static char *
partial_path(const char *output)
{
    return output == NULL || g_str_equal(output, "-") ? NULL
                                                      : g_strconcat(output, ".partial", NULL);
}

static void
tell_note(const char *text, void *user_data)
{
    output_note("profile: %s", text);
}

static void
take_list(const GArray *list, const int64_t **values, size_t *n)
{
    if (list == NULL)
        return;
    *values = (const int64_t *)(const void *)list->data;
    *n = list->len;
}

static bool
read_asked(Options *options, const ModelArch *arch, Asked *asked, GError **error)
{
    static const Dtype dtype_of[] = {DTYPE_FP32, DTYPE_BF16};
    const char *const *devices = exec_device_names();
    const char *device = devices[options_choice(options, "device", 0)];

    *asked = (Asked){
        .n_gpus = options_int64(options, "gpus", 1, MODEL_CLUSTER_MAX_DEVICES, 0),
        .partial = partial_path(options_string(options, "output", NULL)),
        .batches = options_int64s(options, "batches", 1, 65536),
        .slices = options_int64s(options, "slices", 1, MODEL_MAX_SEQ_LEN),
        .tps = options_int64s(options, "tp", 1, 1024),
    };
    asked->exec = (ExecMeasureOptions){
        .arch = arch,
        .device = device,
        .dtype =
            dtype_of[options_choice(options, "dtype", exec_device_kind(device)->is_gpu ? 1 : 0)],
        .seq_len = options_int64(options, "seq-len", 1, MODEL_MAX_SEQ_LEN, 0),
        .concurrency = options_int64(options, "concurrency", 1, 1024, 0),
        .quick = options_has(options, "quick"),
        .budget_s = (double)options_int64(options, "budget", 1, 1000000, 0),
        .partial_path = asked->partial,
        .resume = options_has(options, "resume"),
        .note = tell_note,
    };
    take_list(asked->batches, &asked->exec.batches, &asked->exec.n_batches);
    take_list(asked->slices, &asked->exec.slices, &asked->exec.n_slices);
    take_list(asked->tps, &asked->exec.tps, &asked->exec.n_tps);
    if (!options_finish(options, error))
        return false;
    if (asked->exec.resume && asked->partial == NULL)
        return cmd_fail(error, CMD_ERROR_USAGE,
                        "profile: --resume needs -o FILE: it goes on from FILE.partial");
    return exec_measure_supported(&asked->exec, error);
}

/* Seconds for comparing attention kernels, if the budget does not say less: opening a device takes
 * some of them. */
#define MOST_ATTENTION_S 20.0
#define LEAST_ATTENTION_S 10.0

static double
attention_s(const ExecMeasureOptions *o)
{
    return o->budget_s > 0 ? CLAMP(o->budget_s, LEAST_ATTENTION_S, MOST_ATTENTION_S)
                           : MOST_ATTENTION_S;
}

static Profile *
measure(Asked *asked, GError **error)
{
    Progress progress = {.begin_us = g_get_monotonic_time()};
    ExecMeasureOptions *o = &asked->exec;
    /* First of all: it needs a process that has not used the device. */
    const ExecAttentionChoice attention = exec_measure_choose_attention(
        o->device, o->arch, o->dtype, o->seq_len > 0 ? o->seq_len : o->arch->max_seq_len,
        attention_s(o));
    g_autofree char *why = attention.why;

    if (why != NULL)
        output_note("profile: attention by %s: %s", attention.kernel, why);
    o->attention = attention.kernel;
    if (isatty(STDERR_FILENO)) {
        asked->exec.progress = show_progress;
        asked->exec.user_data = &progress;
    }
    Profile *profile = time_between_gpus(asked, error) ? exec_measure(o, error) : NULL;
    o->user_data = NULL; /* nobody shows progress from here on */
    o->progress = NULL;
    if (profile != NULL)
        profile->measured_attention_why = g_steal_pointer(&why);
    if (progress.shown)
        fprintf(stderr, "\r%-*s\r", PROGRESS_WIDTH + 8, "");
    return profile;
}

static int
run(Options *options, GError **error)
{
    const char *output = options_string(options, "output", NULL);
    g_autoptr(ModelArch) arch = request_load_model(options_argument(options, 0), error);
    g_auto(Asked) asked = {0};

    if (arch == NULL || !read_asked(options, arch, &asked, error))
        return -1;
    asked.exec.stop = cmd_interrupt_watch();
    const ExecRole role = exec_job_rank().role;
    if (role == EXEC_ROLE_STARTER || role == EXEC_ROLE_LAUNCHED)
        return run_rank(&asked, error);
    const bool json = options_has(options, "json");
    const bool is_kept = json || output != NULL;
    if (exec_backend_n_devices(asked.exec.device, error) < 0 || !decide_between_gpus(&asked, error))
        return -1;
    /* Said before, as measuring takes a minute. */
    if (!is_kept)
        output_note("profile: what is measured will be shown, but not kept; -o FILE writes it");
    g_autoptr(Profile) profile = measure(&asked, error);
    if (profile == NULL)
        return -1;
    if (json || output != NULL) {
        JsonWriter *writer = json_writer_new();
        profile_write(writer, NULL, profile);
        if (!output_json_both(writer, output, json, error))
            return -1;
    }
    if (!json && g_strcmp0(output, "-") != 0)
        print_for_people(profile);
    warn_if_disturbed(profile);
    if (asked.why_not != NULL)
        output_note("profile: messages and collectives between GPUs were not timed: %s",
                    asked.why_not);
    return 0;
}

const Command cmd_profile = {
    .name = "profile",
    .usage = "MODEL [--device cpu|cuda] [--tp LIST] [--slices LIST] [--quick] -o profile.json",
    .summary = "measure what a model's layers cost on this machine",
    .details =
        "Times the executor's own code, with one rank busy on each core. It times as many shapes\n"
        "(micro-batches and slices) as are needed to interpolate between them. The file also says\n"
        "how far off the interpolation is at shapes that it did not use. degas plan and degas\n"
        "simulate take the file as CLUSTER. After an interruption (exit status 9) --resume goes "
        "on\n"
        "from FILE.partial.\n",
    .options = {options_table},
    .min_arguments = 1,
    .max_arguments = 1,
    .common = true,
    .run = run,
};
