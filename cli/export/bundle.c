#include "cli/export/bundle.h"

#include <errno.h>
#include <glib/gstdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"
#include "cli/draw/describe.h"
#include "cli/request/command.h"
#include "cli/request/output.h"

/* How long before its time limit Slurm announces a job's end, and how long Kubernetes leaves a pod
 * that it has told to end: a step and a checkpoint of most plans. */
#define NOTICE_S "120"
/* Job names of Kubernetes are labels of 63 characters, to which it adds "-worker-NNN". */
#define NAME_BYTES 40

void
export_bundle_set(ExportBundle *bundle, const char *name, const char *value, const char *why)
{
    const ExportVariable variable = {.name = name, .value = value, .why = why};

    g_array_append_val(bundle->variables, variable);
}

/* --- where it runs --- */

typedef struct {
    char *name; /* (owned) of the job: letters, digits and hyphens */
    int64_t n_nodes, n_ranks, ranks_per_node;
    bool has_gpus;
} Where;

static void
where_clear(Where *where)
{
    g_free(where->name);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Where, where_clear)

/* Returns: (owned) the model's name as a DNS label that begins with a letter [RFC 1035]. */
static char *
name_of_job(const char *model)
{
    GString *name = g_string_new(g_ascii_isalpha(model[0]) ? NULL : "plan-");

    for (const char *at = model; *at != 0 && name->len < NAME_BYTES; at++)
        if (g_ascii_isalnum(*at))
            g_string_append_c(name, g_ascii_tolower(*at));
        else if (name->len > 0 && name->str[name->len - 1] != '-')
            g_string_append_c(name, '-');
    while (name->len > 0 && name->str[name->len - 1] == '-')
        g_string_truncate(name, name->len - 1);
    return g_string_free(name, FALSE);
}

bool
export_has_gpus(const Job *job)
{
    return !g_str_has_prefix(model_cluster_device(job->profile->cluster, 0)->name, "cpu");
}

/* Nodes that have as many of the plan's devices each. */
static bool
find_nodes(Where *where, const Job *job, int64_t gpus_per_node, GError **error)
{
    const GArray *nodes = job->profile->cluster->nodes;
    const ModelNodes *first = &g_array_index(nodes, ModelNodes, 0);
    const int64_t per_node = gpus_per_node > 0 ? gpus_per_node : first->n_devices;
    int64_t n_alike = 0;

    *where = (Where){
        .n_ranks = plan_n_devices(job->plan),
        .has_gpus = export_has_gpus(job),
    };
    for (guint i = 0; i < nodes->len; i++) {
        const ModelNodes *kind = &g_array_index(nodes, ModelNodes, i);
        if (kind->device != first->device || kind->n_devices != first->n_devices)
            break;
        n_alike += kind->n_devices * kind->n_nodes;
    }
    if ((gpus_per_node == 0 && n_alike < where->n_ranks) ||
        (where->n_ranks > per_node && where->n_ranks % per_node != 0))
        return cmd_fail(error, CMD_ERROR_NO,
                        "--bundle: the plan's " INT " devices are not whole nodes of " INT
                        " that are alike; --gpus-per-node says how many ranks a node has",
                        where->n_ranks, per_node);
    where->ranks_per_node = MIN(per_node, where->n_ranks);
    where->n_nodes = where->n_ranks / where->ranks_per_node;
    where->name = name_of_job(job->arch->name);
    return true;
}

/* --- the files --- */

typedef struct {
    const char *name; /* (borrowed) */
    bool is_program;
    char *text; /* (owned) */
    size_t n_bytes;
} File;

static void
file_clear(gpointer file)
{
    g_free(((File *)file)->text);
}

/* @text  (taken) */
static void
add(GArray *files, const char *name, bool is_program, GString *text)
{
    const File file = {name, is_program, text->str, text->len};

    g_string_free(text, FALSE);
    g_array_append_val(files, file);
}

static void
add_environment(GArray *files, const ExportBundle *bundle, const Where *where)
{
    GString *text = g_string_new("# Sourced by rank.sh.  What is set before stays as it is.\n");

    for (guint i = 0; i < bundle->variables->len; i++) {
        const ExportVariable *variable = &g_array_index(bundle->variables, ExportVariable, i);

        g_string_append_printf(text, "\n# %s\n", variable->why);
        if (variable->value == NULL)
            g_string_append_printf(text, "unset %s\n", variable->name);
        else
            g_string_append_printf(text, ": \"${%s=%s}\"\nexport %s\n", variable->name,
                                   variable->value, variable->name);
    }
    if (where->has_gpus)
        g_string_append(text, "\n# NCCL says in the log why a communicator could not be made.\n"
                              ": \"${NCCL_DEBUG=WARN}\"\nexport NCCL_DEBUG\n");
    if (where->n_nodes > 1)
        g_string_append(text, "\n# Where hosts have several networks, the one by which ranks "
                              "meet:\n# export NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME=eth0\n");
    add(files, "env.sh", false, text);
}

static void
add_rank(GArray *files, const ExportBundle *bundle)
{
    GString *text = g_string_new("#!/bin/sh\n"
                                 "# What every rank runs; srun, torchrun or mpirun says which it "
                                 "is.  Status 9: the end of the job was announced.\n"
                                 "# shellcheck disable=SC2046,SC2086 # several options in one "
                                 "variable\n"
                                 "set -eu\n"
                                 "cd \"$(dirname \"$0\")\"\n"
                                 ". ./env.sh\n");

    if (bundle->prepare != NULL)
        g_string_append(text, bundle->prepare);
    if (bundle->is_degas)
        g_string_append_printf(text, "exec %s\n", bundle->program);
    else
        g_string_append_printf(
            text,
            "# srun says it in its own words, torchrun and Kubernetes in PyTorch's.\n"
            "if [ -z \"${RANK-}\" ] && [ -n \"${SLURM_STEP_NUM_TASKS-}\" ]; then\n"
            "    export RANK=\"$SLURM_PROCID\" WORLD_SIZE=\"$SLURM_STEP_NUM_TASKS\" "
            "LOCAL_RANK=\"$SLURM_LOCALID\"\n"
            "fi\n"
            "%s &\n"
            "program=$!\n"
            "announced=\n"
            "trap 'announced=1; kill -s TERM \"$program\" 2>/dev/null || :' TERM\n"
            "while :; do\n"
            "    status=0\n"
            "    wait \"$program\" || status=$? # a signal interrupts it\n"
            "    kill -0 \"$program\" 2>/dev/null || break\n"
            "done\n"
            "[ -z \"$announced\" ] || status=9\n"
            "exit \"$status\"\n",
            bundle->program);
    add(files, "rank.sh", true, text);
}

static void
add_slurm(GArray *files, const ExportBundle *bundle, const Where *where)
{
    GString *text = g_string_new("#!/bin/bash\n");

    g_string_append_printf(text,
                           "#SBATCH --job-name=%s\n"
                           "#SBATCH --nodes=" INT "\n"
                           "#SBATCH --ntasks-per-node=" INT "\n",
                           where->name, where->n_nodes, where->ranks_per_node);
    if (where->has_gpus)
        g_string_append_printf(text, "#SBATCH --gpus-per-node=" INT "\n", where->ranks_per_node);
    if (where->has_gpus && where->n_nodes > 1)
        g_string_append(text, "#SBATCH --exclusive\n");
    g_string_append_printf(
        text,
        "#SBATCH --requeue\n"
        "#SBATCH --open-mode=append\n"
        "#SBATCH --signal=B:USR1@" NOTICE_S "\n"
        "#SBATCH --output=%%x-%%j.log\n"
        "\n"
        "# Submit it from its folder, which all nodes see: sbatch job.sbatch\n"
        "set -u\n"
        "if ! cd \"${BUNDLE:-${SLURM_SUBMIT_DIR:-.}}\" || [ ! -x rank.sh ]; then\n"
        "    echo \"job.sbatch: submit it from its folder, or set BUNDLE to that\" >&2\n"
        "    exit 2\n"
        "fi\n"
        "MASTER_ADDR=${MASTER_ADDR:-$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)}"
        "\n"
        "MASTER_PORT=${MASTER_PORT:-$((20000 + SLURM_JOB_ID %% 10000))}\n"
        "export MASTER_ADDR MASTER_PORT\n"
        "\n"
        "# Slurm announces the end by USR1, " NOTICE_S
        " s before the time limit.  By TERM it tells\n"
        "# the ranks itself, when a job of a higher priority needs the nodes.\n"
        "# %s\n"
        "announced=\n"
        "# shellcheck disable=SC2317 # trap calls it\n"
        "announce() {\n"
        "    announced=1\n"
        "    scancel --signal=TERM \"$SLURM_JOB_ID.0\"\n"
        "}\n"
        "trap announce USR1\n"
        "srun --mpi=none --kill-on-bad-exit=1 ./rank.sh </dev/null &\n"
        "ranks=$!\n"
        "while kill -0 \"$ranks\" 2>/dev/null; do\n"
        "    wait \"$ranks\" # a signal interrupts it\n"
        "done\n"
        "wait \"$ranks\"\n"
        "status=$?\n"
        "\n"
        "# Queued again where the ranks were told to end, unless somebody has cancelled the job.\n"
        "if [ $status = 9 ] || { [ -n \"$announced\" ] && [ $status != 0 ]; }; then\n"
        "    case \"$(scontrol show job --oneliner \"$SLURM_JOB_ID\")\" in\n"
        "    *JobState=CANCELLED*) ;;\n"
        "    *) scontrol requeue \"$SLURM_JOB_ID\" ;;\n"
        "    esac\n"
        "fi\n"
        "exit $status\n",
        bundle->on_end);
    add(files, "job.sbatch", true, text);
}

/* The container of a pod; @gpus 0: it computes nothing. */
static void
append_pod(GString *text, const char *role, int64_t n, const char *container, const char *command,
           int64_t gpus)
{
    if (n == 0)
        return;
    g_string_append_printf(text,
                           "    %s:\n"
                           "      replicas: " INT "\n"
                           "      restartPolicy: OnFailure\n"
                           "      template:\n"
                           "        spec:\n"
                           "          terminationGracePeriodSeconds: " NOTICE_S "\n"
                           "          containers:\n"
                           "            - name: %s\n"
                           "              image: example.org/yours:latest # with the framework\n"
                           "              command: %s\n",
                           role, n, container, command);
    if (gpus > 0)
        g_string_append_printf(text,
                               "              resources:\n"
                               "                limits:\n"
                               "                  nvidia.com/gpu: " INT "\n"
                               "              securityContext:\n"
                               "                capabilities:\n"
                               "                  add: [IPC_LOCK] # memory for RDMA is pinned\n",
                               gpus);
    g_string_append(text, "              volumeMounts:\n"
                          "                - {name: bundle, mountPath: /bundle}\n"
                          "                - {name: shm, mountPath: /dev/shm}\n"
                          "          volumes:\n"
                          "            - name: bundle # this folder, which all pods see\n"
                          "              persistentVolumeClaim: {claimName: bundle}\n"
                          "            - name: shm # ranks of a node exchange through it\n"
                          "              emptyDir: {medium: Memory}\n");
}

static void
add_kubernetes(GArray *files, const ExportBundle *bundle, const Where *where)
{
    const int64_t gpus = where->has_gpus ? where->ranks_per_node : 0;
    GString *text = g_string_new("# Before kubectl apply -f job.yaml: your image, and the volume "
                                 "that holds this folder.\n");

    g_string_append_printf(text,
                           "apiVersion: kubeflow.org/%s\n"
                           "kind: %s\n"
                           "metadata:\n"
                           "  name: %s\n"
                           "spec:\n"
                           "  runPolicy:\n"
                           "    cleanPodPolicy: Running\n"
                           "    backoffLimit: 10\n",
                           bundle->is_degas ? "v2beta1" : "v1",
                           bundle->is_degas ? "MPIJob" : "PyTorchJob", where->name);
    if (bundle->is_degas) {
        g_autofree char *command =
            g_strdup_printf("[mpirun, --allow-run-as-root, --bind-to, none, -n, \"" INT
                            "\", -x, TRANSPORT=%s, /bundle/rank.sh]",
                            where->n_ranks, where->has_gpus ? "nccl" : "mpi");

        g_string_append_printf(text,
                               "  slotsPerWorker: " INT "\n"
                               "  mpiReplicaSpecs:\n",
                               where->ranks_per_node);
        append_pod(text, "Launcher", 1, "launcher", command, 0);
        append_pod(text, "Worker", where->n_nodes, "worker", "[/usr/sbin/sshd, -De]", gpus);
    } else {
        static const char command[] = "[torchrun, --no-python, /bundle/rank.sh]";

        g_string_append_printf(text,
                               "  nprocPerNode: \"" INT "\"\n"
                               "  pytorchReplicaSpecs:\n",
                               where->ranks_per_node);
        append_pod(text, "Master", 1, "pytorch", command, gpus);
        append_pod(text, "Worker", where->n_nodes - 1, "pytorch", command, gpus);
    }
    add(files, "job.yaml", false, text);
}

/* --- what it says --- */

/* Returns: (owned) the name as a span of code in Markdown, in which nothing has a meaning. */
static char *
span_of(const char *name)
{
    g_autofree char *line = text_escape(name, 100);

    return g_strdup_printf("`%s`", g_strdelimit(line, "`", '\''));
}

static void
append_prediction(GString *text, const Report *report)
{
    g_string_append_printf(
        text,
        "\n## The prediction\n\n"
        "| | |\n|---|---|\n"
        "| a step | %s |\n"
        "| tokens a second, all devices | %s |\n"
        "| model FLOP/s of a device | %s |\n"
        "| model FLOPs utilization (arXiv:2104.04473, without recompute) | %s |\n"
        "| bubble | %s |\n",
        output_seconds((double)report->iteration_ns * 1e-9).text,
        output_number(report->tokens_per_s).text,
        units_format_flops(report->model_flops_per_s_per_device).text,
        output_percent(report->model_flops_utilization_fraction).text,
        output_percent(report->bubble_fraction).text);
    if (report->memory_limit_bytes > 0)
        g_string_append_printf(text, "| memory of a device | %s%s |\n",
                               units_format_bytes((double)report->memory_limit_bytes).text,
                               report->fits ? "" : ", **which is too little**");
    g_string_append(text,
                    "\n| pipeline rank | busy | bubble | memory at its peak | of it weights | "
                    "gradients | optimizer | activations |\n|---|---|---|---|---|---|---|---|\n");
    for (guint i = 0; i < report->ranks->len; i++) {
        const ReportRank *rank = &g_array_index(report->ranks, ReportRank, i);
        const int64_t *bytes = rank->memory_bytes;

        g_string_append_printf(text, "| %u | %s | %s | %s | %s | %s | %s | %s |\n", i,
                               output_seconds((double)rank->busy_ns * 1e-9).text,
                               output_seconds((double)rank->bubble_ns * 1e-9).text,
                               units_format_bytes((double)rank->peak_memory_bytes).text,
                               units_format_bytes((double)bytes[TRACE_MEMORY_WEIGHTS]).text,
                               units_format_bytes((double)bytes[TRACE_MEMORY_GRADIENTS]).text,
                               units_format_bytes((double)bytes[TRACE_MEMORY_OPTIMIZER]).text,
                               units_format_bytes((double)bytes[TRACE_MEMORY_ACTIVATIONS]).text);
    }
}

static void
append_comparison(GString *text, const ExportBundle *bundle)
{
    g_string_append(text, "\n## What is measured\n\n");
    if (bundle->is_degas)
        g_string_append(text, "The run prints its times beside the predicted ones, and writes "
                              "`measured.json`:\n\n"
                              "```\n"
                              "degas simulate plan.json --trace predicted.json\n"
                              "degas compare predicted.json measured.json\n"
                              "```\n");
    else
        g_string_append_printf(
            text,
            "- Time: %s Leave out the first ten steps.\n"
            "- Memory: `torch.cuda.max_memory_allocated()` of a rank stands beside its line above; "
            "what `nvidia-smi` shows has the driver, NCCL and the allocator's cache besides.\n"
            "- Where the time goes: `degas simulate plan.json --trace predicted.json` writes what "
            "each rank should do, for ui.perfetto.dev beside a trace of the PyTorch profiler.\n"
            "- A profile of your machine from such a trace, or from nccl-tests, makes the next "
            "prediction better:\n\n"
            "```\n"
            "degas import trace.json --cluster CLUSTER.json -o ours.json\n"
            "degas plan MODEL ours.json ...\n"
            "```\n",
            bundle->time_is);
}

static void
add_readme(GArray *files, const ExportTarget *target, const ExportSource *source,
           const ExportBundle *bundle, const Where *where, const Report *report)
{
    const Plan *plan = source->job->plan;
    g_autofree char *model = span_of(source->job->arch->name);
    g_autofree char *cluster = span_of(source->job->profile->cluster->name);
    g_autofree char *split = describe_split(&plan->degrees);
    g_autofree char *note = target->note == NULL ? NULL : target->note(source);
    GString *text = g_string_new(NULL);

    g_string_append_printf(
        text,
        "# %s on %s\n\n" INT " x " INT " tokens, %s, schedule %s, " INT " micro-batches of " INT
        ", ZeRO %d, recompute %s: on " INT " node%s with " INT
        " device%s each. Made by `degas export --to %s --bundle`.\n",
        model, cluster, plan->global_batch, plan->seq_len, split, plan->schedule,
        plan->n_micro_batches, plan->micro_batch, plan->zero_stage, plan_recompute_name(plan),
        where->n_nodes, where->n_nodes == 1 ? "" : "s", where->ranks_per_node,
        where->ranks_per_node == 1 ? "" : "s", target->name);
    g_string_append_printf(
        text,
        "\n## Run it\n\n"
        "| by | |\n|---|---|\n"
        "| Slurm | `sbatch job.sbatch`, in this folder, which all nodes see |\n"
        "| Kubernetes | `kubectl apply -f job.yaml`, with your image and volume in "
        "it; needs the %s |\n",
        bundle->is_degas ? "MPI operator (MPIJob v2beta1)"
                         : "Kubeflow training operator (PyTorchJob v1)");
    if (!bundle->is_degas)
        g_string_append_printf(text,
                               "| hand | on each node `torchrun --no-python --nnodes " INT
                               " --nproc-per-node " INT " --node-rank NODE --master-addr HOST "
                               "rank.sh` |\n",
                               where->n_nodes, where->ranks_per_node);
    g_string_append_printf(text,
                           "\n`env.sh` has what may be changed, with its reason. %s\n\n"
                           "The end of a Slurm job, at its time limit or because another job needs "
                           "the nodes, is announced to the ranks. %s The job is then queued again. "
                           "Kubernetes announces the end of a pod so, too.\n",
                           bundle->yours, bundle->on_end);
    if (note != NULL)
        g_string_append_printf(text, "\nThe exporter notes: %s.\n", note);
    append_prediction(text, report);
    append_comparison(text, bundle);
    add(files, "README.md", false, text);
}

/* --- all of it --- */

/* What the target's exporter writes, and the CSV of the schedule where the target wants it. */
static bool
add_configs(GArray *files, const ExportTarget *target, const ExportSource *source,
            const ExportBundle *bundle, GError **error)
{
    File config = {.name = bundle->config}, csv = {.name = bundle->csv};

    if (config.name != NULL &&
        (config.text = target->write(source, &config.n_bytes, error)) != NULL)
        g_array_append_val(files, config);
    if (csv.name != NULL && (config.name == NULL || config.text != NULL) &&
        (csv.text = schedule_to_csv(source->schedule, &csv.n_bytes, error)) != NULL)
        g_array_append_val(files, csv);
    return (config.name == NULL || config.text != NULL) && (csv.name == NULL || csv.text != NULL);
}

static void
add_plan(GArray *files, const Job *job)
{
    g_autoptr(JsonWriter) writer = job_write(job);
    File file = {.name = "plan.json"};

    file.text = json_writer_steal(writer, &file.n_bytes);
    g_array_append_val(files, file);
}

/* Whether @dir may become the bundle. */
static bool
check_folder(const char *dir, GError **error)
{
    g_autoptr(GDir) old = g_dir_open(dir, 0, NULL);

    if (old != NULL ? g_dir_read_name(old) == NULL : !g_file_test(dir, G_FILE_TEST_EXISTS))
        return true;
    g_set_error(error, G_FILE_ERROR, G_FILE_ERROR_EXIST,
                "%s: exists and is %s; a bundle is a folder of its own", dir,
                old == NULL ? "no folder" : "not empty");
    return false;
}

static bool
write_file(const char *dir, const File *file, GError **error)
{
    g_autofree char *path = g_build_filename(dir, file->name, NULL);
    struct stat status;

    if (!file_write(path, file->text, file->n_bytes, error))
        return false;
    return !file->is_program || (stat(path, &status) == 0 &&
                                 chmod(path, status.st_mode | (status.st_mode & 0444) >> 2) == 0);
}

static void
remove_folder(const char *dir, const GArray *files)
{
    for (guint i = 0; i < files->len; i++) {
        g_autofree char *path = g_build_filename(dir, g_array_index(files, File, i).name, NULL);
        unlink(path);
    }
    rmdir(dir);
}

static bool
write_folder(const char *dir, const GArray *files, GError **error)
{
    g_autofree char *end = g_strdup(dir);

    while (strlen(end) > 1 && g_str_has_suffix(end, "/"))
        end[strlen(end) - 1] = 0;
    g_autofree char *aside = g_strdup_printf("%s.part-%d", end, (int)getpid());
    if (mkdir(aside, 0777) != 0) {
        g_set_error(error, G_FILE_ERROR, (gint)g_file_error_from_errno(errno),
                    "%s: cannot be written: %s", dir, g_strerror(errno));
        return false;
    }
    bool ok = true;
    for (guint i = 0; ok && i < files->len; i++)
        ok = write_file(aside, &g_array_index(files, File, i), error);
    if (ok && rename(aside, end) != 0) { /* an empty folder is replaced */
        ok = false;
        g_set_error(error, G_FILE_ERROR, (gint)g_file_error_from_errno(errno),
                    "%s: cannot be written: %s", dir, g_strerror(errno));
    }
    if (!ok)
        remove_folder(aside, files);
    return ok;
}

bool
export_bundle_write(const ExportTarget *target, const ExportSource *source,
                    const ExportBundleOptions *options, const char *dir, GError **error)
{
    g_autoptr(GArray) files = g_array_new(false, false, sizeof(File));
    g_autoptr(GArray) variables = g_array_new(false, false, sizeof(ExportVariable));
    const JobOptions how = {.memory_limit_bytes = options->memory_limit};
    ExportBundle bundle = {.variables = variables};
    g_auto(JobSimulation) simulation = {0};
    g_auto(Where) where = {0};

    g_array_set_clear_func(files, file_clear);
    if (!check_folder(dir, error) ||
        !find_nodes(&where, source->job, options->gpus_per_node, error) ||
        !job_simulate(source->job, &how, &simulation, error))
        return false;
    target->bundle(source, &bundle);
    if (!add_configs(files, target, source, &bundle, error))
        return false;
    add_plan(files, source->job);
    add_environment(files, &bundle, &where);
    add_rank(files, &bundle);
    add_slurm(files, &bundle, &where);
    add_kubernetes(files, &bundle, &where);
    add_readme(files, target, source, &bundle, &where, simulation.result.report);
    sigset_t before;
    file_hold_signals(&before);
    const bool ok = write_folder(dir, files, error);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return ok;
}
