/* degas run: executes a plan and lays what it measured beside what was predicted. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "cli/draw/plot.h"
#include "cli/request/command.h"
#include "cli/request/job.h"
#include "cli/request/output.h"
#include "cli/run/processes.h"
#include "cli/run/report.h"
#include "executor/transport/transport.h"

/* Iterations with times that vary. */
#define VARIED_RUNS 200

static const OptionInfo options_table[] = {
    {"steps", "N", "make N optimizer steps; default: 10", .common = true},
    {"device", "NAME", "run on this device: cpu (default), reference or cuda",
     .list = exec_device_names, .common = true},
    {"threads", "N", "give each rank N threads, with --device reference; default: 1"},
    {"transport", "NAME",
     "let ranks exchange by this transport: local (as threads, default), mpi (as processes; starts "
     "mpirun), tcp "
     "(as processes without MPI), nccl (as processes with a GPU each)",
     .list = exec_transport_names, .common = true},
    {"hosts", "LIST", "let mpirun start the ranks on these hosts: node1,node2", .common = true},
    {"data", "FILE",
     "train on the text in FILE (each byte is a token) or on a .bin of tokens; default: synthetic "
     "data",
     .common = true},
    {"seed", "N", "draw the initial weights and the data from seed N; default: 0", .common = true},
    {"lr", "X",
     "let AdamW learn at rate X, which it reaches after 10 steps of warm-up; default: 0.001",
     .common = true},
    {"lr-decay", "N",
     "let the learning rate fall along a cosine to a tenth at step N; default: it stays"},
    {"clip", "X", "scale gradients down to this global norm; 0: never; default: 1"},
    {"offload-dir", "DIR",
     "keep the files of a plan with offload nvme in DIR; default: TMPDIR or /tmp"},
    {"trace", "FILE", "write the measured trace of the step that took the median time",
     .common = true},
    {"verify", NULL, "compare loss and all gradients with one device; exit status 1 if they differ",
     .common = true},
    {"timeout", "TIME",
     "end with exit status 8 when a rank is stuck for this long; default: 30s, or 20 median steps "
     "if that is longer"},
    {"deterministic", NULL,
     "give the same bits in each run: by MPI all add in the same order as local ranks, which "
     "always do; NCCL uses one algorithm for all sizes; CUDA chooses no kernel of a product by its "
     "time"},
    {"no-graphs", NULL,
     "launch the kernels of each op one by one, not as one CUDA graph, as GPUs do where an op has "
     "no "
     "collectives"},
    {"balance-experts", NULL,
     "send tokens to experts in turn, not by the router: time and memory are those of a balanced "
     "router, but the model learns nothing of use"},
    {"checkpoint", "DIR", "save the training state in DIR at the end", .common = true},
    {"checkpoint-every", "N", "save it every N steps, too, with --checkpoint"},
    {"resume", NULL, "go on from the last state in --checkpoint DIR until --steps are done",
     .common = true},
    {"resume-step", "N", "go on from the state after step N in --checkpoint DIR"},
    PAGE_OPTION,
    {"json", NULL, "print a degas-run object", .common = true},
    {"output", "FILE", "write the JSON to FILE", .common = true},
    {NULL, NULL, NULL},
};

static bool
read_checkpoints(Options *options, ExecRunOptions *exec, GError **error)
{
    exec->checkpoint_dir = options_string(options, "checkpoint", NULL);
    exec->checkpoint_every = options_int64(options, "checkpoint-every", 1, INT64_MAX, 0);
    exec->resume = options_has(options, "resume") || options_has(options, "resume-step");
    exec->resume_step = options_int64(options, "resume-step", 0, INT64_MAX, -1);
    if (exec->checkpoint_dir == NULL && (exec->resume || exec->checkpoint_every > 0))
        options_fail(options, exec->resume ? "resume" : "checkpoint-every", "needs --checkpoint");
    if (exec->resume && exec->verify)
        options_fail(options, "verify", "compares the first step, which --resume leaves out");
    return options_finish(options, error);
}

/* Reads the flags into @exec, which borrows texts from @options.  Usage errors name the flag. */
static bool
read_run(Options *options, ExecRunOptions *exec, GError **error)
{
    const char *const *devices = exec_device_names();
    const char *const *transports = exec_transport_names();

    *exec = (ExecRunOptions){
        .n_steps = options_int64(options, "steps", 1, 1000000, 10),
        .device = devices[options_choice(options, "device", 0)],
        .n_threads = (int)options_int64(options, "threads", 1, 1024, 1),
        .transport = transports[options_choice(options, "transport", 0)],
        .data_path = options_string(options, "data", NULL),
        .seed = (uint64_t)options_int64(options, "seed", 0, INT64_MAX, 0),
        .learning_rate = (float)options_quantity(options, "lr", UNITS_KIND_NUMBER, 1e-3),
        .decay_steps = options_int64(options, "lr-decay", 1, INT64_MAX, 0),
        .clip_norm = (float)options_quantity(options, "clip", UNITS_KIND_NUMBER, 1.0),
        .offload_dir = options_string(options, "offload-dir", NULL),
        .verify = options_has(options, "verify"),
        .timeout_s = options_quantity(options, "timeout", UNITS_KIND_S, 0.0),
        .deterministic = options_has(options, "deterministic"),
        .balance_experts = options_has(options, "balance-experts"),
        .want_trace = true,
    };
    const ExecDeviceKind *kind = exec_device_kind(exec->device);
    const ExecTransportKind *transport = exec_transport_kind(exec->transport);
    if (exec->n_threads > 1 && !kind->has_threads)
        options_fail(options, "threads", "needs --device reference; on others ranks compute apart");
    if (options_has(options, "hosts") && (!transport->in_processes || transport->without_mpi))
        options_fail(options, "hosts", "needs --transport mpi or nccl");
    exec->graphs = kind->has_graphs && !options_has(options, "no-graphs");
    if (options_has(options, "no-graphs") && !kind->has_graphs)
        options_fail(options, "no-graphs", "needs --device cuda");
    if (exec->balance_experts && exec->verify)
        options_fail(options, "verify",
                     "does not go with --balance-experts: one device routes by its router");
    if (exec->balance_experts && options_has(options, "checkpoint"))
        options_fail(options, "checkpoint",
                     "does not go with --balance-experts, which trains a model of no use");
    if (transport->is_nccl && !kind->has_nccl)
        options_fail(options, "transport", "nccl needs --device cuda");
    if (options_has(options, "timeout") && exec->timeout_s <= 0.0)
        options_fail(options, "timeout", "expected a time above 0");
    if (g_strcmp0(options_string(options, "trace", NULL), "-") == 0 &&
        (g_strcmp0(options_string(options, "output", NULL), "-") == 0 ||
         (options_has(options, "json") && !options_has(options, "output"))))
        options_fail(options, "trace", "standard output is taken by --json");
    if (!isfinite(exec->learning_rate))
        options_fail(options, "lr", "is beyond a float");
    if (!isfinite(exec->clip_norm) || exec->clip_norm < 0)
        options_fail(options, "clip", "expected a float that is not negative");
    return read_checkpoints(options, exec, error);
}

/* --- one run --- */

typedef struct {
    Job *job;
    /* The same plan in the simulator, with the plan file's own profile.  Its report is NULL, and
     * @unpredicted says why, where that prices nothing. */
    JobSimulation simulation;
    GError *unpredicted;      /* (owned, nullable) */
    int64_t *predicted_bytes; /* (owned, nullable) [pp] */
    ExecRunOptions exec;
    ExecRunResult result;
    char *where; /* (owned, nullable) of the watcher */
} Run;

static void
run_clear(Run *run)
{
    job_free(run->job);
    job_simulation_clear(&run->simulation);
    g_clear_error(&run->unpredicted);
    g_free(run->predicted_bytes);
    exec_run_result_clear(&run->result);
    g_free(run->where);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Run, run_clear)

/* --- progress --- */

#define PROGRESS_INTERVAL_US G_USEC_PER_SEC

typedef struct {
    int64_t n_steps, last_us;
} Progress;

/* At most a line a second, on a terminal only. */
static void
show_progress(int64_t step, double loss, double step_s, void *user_data)
{
    Progress *progress = user_data;
    const int64_t now_us = g_get_monotonic_time();

    if (now_us - progress->last_us < PROGRESS_INTERVAL_US && step + 1 < progress->n_steps)
        return;
    progress->last_us = now_us;
    fprintf(stderr, "step " INT " of " INT ": loss %.4f, %s\n", step + 1, progress->n_steps, loss,
            output_seconds(step_s).text);
}

/* --- the page --- */

static bool
write_page(const Run *run, const RunReport *report, Options *options, GError **error)
{
    static const char *const products[] = {"trace", "html", NULL};
    g_autofree char *footer = options_command_line(options, "run", products);
    g_autofree char *title = html_title(run->job);
    g_autoptr(HtmlPage) page = page_new(title);

    page_card(page, "measured step", output_seconds(report->median_s).text);
    if (isfinite(report->predicted_s)) {
        page_card(page, "predicted", output_seconds(report->predicted_s).text);
        page_card(page, "error of the prediction",
                  output_percent(report->predicted_s / report->median_s - 1.0).text);
    }
    page_card(page, "tokens per second",
              units_format_count((double)(run->job->plan->global_batch * run->job->plan->seq_len) /
                                 report->median_s)
                  .text);
    if (run->result.trace != NULL)
        html_add_iteration(page, run->job, NULL, run->result.trace);
    page_heading(page, "Measured beside predicted", NULL);
    page_kept(page);
    return page_write(page, footer, options_string(options, "html", NULL), error);
}

/* --- the command --- */

static bool
write_products(const Run *run, const RunReport *report, Options *options, GError **error)
{
    const char *output = options_string(options, "output", NULL);
    const char *trace = options_string(options, "trace", NULL);
    const bool json = options_has(options, "json");

    if (trace != NULL && run->result.trace != NULL) {
        size_t n_bytes;
        g_autofree char *text = trace_to_json(run->result.trace, &n_bytes);
        if (!file_write(trace, text, n_bytes, error))
            return false;
    }
    if ((json || output != NULL) && !output_json_both(run_report_json(report), output, json, error))
        return false;
    const bool is_page = options_has(options, "html");
    const bool is_silent = json || g_strcmp0(output, "-") == 0 || g_strcmp0(trace, "-") == 0 ||
                           page_takes_stdout(options);
    if (is_page)
        output_keep(is_silent);
    if (!is_silent || is_page)
        run_report_print(report);
    return !is_page || write_page(run, report, options, error);
}

/* Notes where the prediction is missing, or of another machine. */
static void
warn_of_prediction(const Run *run)
{
    const int64_t concurrency = run->job->profile->measured_concurrency;

    if (run->unpredicted != NULL)
        output_note("run: no prediction to compare with: %s", run->unpredicted->message);
    else if (concurrency > 0 && run->result.busy_s->len > concurrency)
        output_note("run: the plan has %u ranks, its profile was measured with " INT
                    " busy at once: the prediction is of a machine with more cores (degas profile "
                    "--concurrency %u)",
                    run->result.busy_s->len, concurrency, run->result.busy_s->len);
}

/* Its schedule is what is run; the peaks are what the ranks take. */
static void
simulate(Run *run)
{
    const Conditions varied = conditions_of_profile(VARIED_RUNS);
    const bool varies = run->job->profile->variation.is_known;
    const JobOptions how = {.conditions = varies ? &varied : NULL};

    if (!job_simulate(run->job, &how, &run->simulation, &run->unpredicted))
        return;
    const GArray *ranks = run->simulation.result.report->ranks;
    run->predicted_bytes = g_new(int64_t, ranks->len);
    for (guint i = 0; i < ranks->len; i++)
        run->predicted_bytes[i] = g_array_index(ranks, ReportRank, i).peak_memory_bytes;
}

/* The plan and what goes with it. */
static bool
load(Run *run, const char *path, GError **error)
{
    run->job = job_load(path, error);
    if (run->job == NULL)
        return false;
    if (run->exec.balance_experts && run->job->arch->experts.n_experts == 0)
        return cmd_fail(error, CMD_ERROR_USAGE,
                        "run: --balance-experts: the plan's model has no experts");
    run->exec.arch = run->job->arch;
    run->exec.plan = run->job->plan;
    run->exec.attention = run->job->profile->measured_attention;
    run->exec.verify_tolerance = exec_verify_tolerance(run->job->plan->dtype);
    simulate(run);
    run->exec.schedule = run->simulation.schedule;
    run->exec.predicted_bytes = run->predicted_bytes;
    return true;
}

/* Notes where the run computed attention otherwise than the profile's measurements. */
static void
warn_of_other_attention(const Run *run)
{
    const char *profiled = run->job->profile->measured_attention, *used = run->result.attention;

    if (profiled != NULL && used != NULL && !g_str_equal(profiled, used))
        output_note(
            "run: attention was by %s, in the plan's profile by %s (DEGAS_CUDA_ATTENTION, or "
            "another device): the prediction is not of this run",
            used, profiled);
}

/* Tells how it went, when all is written.  Returns the exit status. */
static int
conclude(const Run *run)
{
    const ExecRunResult *result = &run->result;
    g_autofree char *stolen = run_report_stolen_text(result->stolen_fraction);

    warn_of_other_attention(run);
    if (result->interrupted) {
        output_note("run: interrupted after step " INT " of " INT "%s: what is done is written",
                    result->first_step + result->n_steps, run->exec.n_steps,
                    result->trace == NULL ? ", in a step that would not end" : "");
        return CMD_ERROR_INTERRUPTED;
    }
    if (result->verified && !result->passed) {
        output_note("run: verification failed: the gradient of %s has a relative error of %g, the "
                    "tolerance is %g",
                    result->worst_tensor, result->max_gradient_error, run->exec.verify_tolerance);
        return CMD_ERROR_NO;
    }
    if (stolen != NULL)
        output_note("run: %s", stolen);
    return 0;
}

/* The executor, in this process or, with mpi, in others too.  Returns RUN_PROCESSES_RANK where
 * there is a result to tell, else the exit status or -1. */
static int
execute(Run *run, Options *options, Progress *progress, GError **error)
{
    const char *path = options_argument(options, 0);
    const bool in_processes = exec_transport_kind(run->exec.transport)->in_processes;

    run->exec.stop = cmd_interrupt_watch();
    cmd_interrupt_patiently();
    if (isatty(STDERR_FILENO)) {
        run->exec.progress = show_progress;
        run->exec.user_data = progress;
    }
    if (!in_processes && !options_has(options, "transport") &&
        !run_processes_check_alone(&run->exec, error))
        return -1;
    if (in_processes) {
        const RunProcessesOptions processes = {
            .hosts = options_string(options, "hosts", NULL),
            .stop = run->exec.stop,
            .progress = run->exec.progress,
            .user_data = progress,
        };
        const int status = run_processes_begin(&run->exec, &processes, &run->where, error);
        if (status != RUN_PROCESSES_RANK)
            return status;
    }
    if (!exec_run(&run->exec, &run->result, error)) {
        cmd_blame_file(path, error);
        if (in_processes)
            run_processes_fail(&run->exec, run->result.told, *error);
        return -1;
    }
    return run->result.is_mine ? RUN_PROCESSES_RANK : 0;
}

static int
run(Options *options, GError **error)
{
    const char *path = options_argument(options, 0);
    g_auto(Run) one = {0};
    RunReport report;
    Progress progress = {0};

    if (!read_run(options, &one.exec, error) || !page_check(options, error))
        return -1;
    if (exec_transport_kind(one.exec.transport)->in_processes && g_str_equal(path, "-")) {
        g_set_error(error, CMD_ERROR, CMD_ERROR_USAGE,
                    "run: --transport %s: every rank reads the plan: give a file, not -",
                    one.exec.transport);
        return -1;
    }
    if (!load(&one, path, error))
        return -1;
    progress = (Progress){.n_steps = one.exec.n_steps, .last_us = g_get_monotonic_time()};
    const int status = execute(&one, options, &progress, error);
    if (status != RUN_PROCESSES_RANK)
        return status;
    warn_of_prediction(&one);
    run_report_init(&report, one.job, &one.exec, &one.result, one.simulation.result.report);
    if (!write_products(&one, &report, options, error))
        return -1;
    return conclude(&one);
}

const Command cmd_run = {
    .name = "run",
    .usage = "PLAN.json [--steps N] [--data FILE] [--trace t.json] [--verify] [--json]",
    .summary = "run a plan; print measured times beside predicted ones",
    .details =
        "Trains the plan's model for some steps and prints the measured step time beside the\n"
        "predicted one. Each rank is a thread on this machine; with --transport mpi, tcp or nccl\n"
        "it is a process, here or on another host, that degas, mpirun, srun, torchrun or\n"
        "Kubernetes has started. Ctrl-C, SIGTERM and SIGUSR1 end the run after the current step,\n"
        "and what is done is written. To compare with the prediction, op class by op class:\n"
        "\n"
        "  degas run plan.json --trace measured.json\n"
        "  degas simulate plan.json --trace predicted.json\n"
        "  degas compare predicted.json measured.json\n",
    .options = {options_table},
    .min_arguments = 1,
    .max_arguments = 1,
    .common = true,
    .run = run,
};
