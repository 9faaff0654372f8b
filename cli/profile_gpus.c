#include "cli/profile_gpus.h"

#include "cli/request/command.h"
#include "cli/request/output.h"
#include "cli/run_processes.h"
#include "executor/watch/launch.h"

/* Seconds for them, and what a model's gradients are cut to: beyond, time is a straight line. */
#define SHARE_OF_BUDGET 0.15
#define DEFAULT_BUDGET_S 10.0
#define QUICK_BUDGET_S 2.0
#define LEAST_BYTES (INT64_C(64) << 10)
#define MOST_BYTES (INT64_C(256) << 20)

/* --- what is run --- */

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
run_options(const ProfileGpusOptions *options, const Plan *plan)
{
    return (ExecRunOptions){
        .arch = &exec_measure_tiny_arch,
        .plan = plan,
        .device = nccl_device(),
        .transport = "nccl",
        .n_steps = 1,
        .seed = 1,
        .stop = options->measure->stop,
        .collectives_s = budget_s(options->measure),
        .collectives_bytes = most_bytes(options->measure->arch),
    };
}

/* --- a rank --- */

bool
profile_gpus_is_rank(void)
{
    const ExecJobRank job_rank = exec_job_rank();

    return job_rank.role == EXEC_ROLE_STARTER || job_rank.role == EXEC_ROLE_LAUNCHED;
}

int
profile_gpus_run_rank(const ProfileGpusOptions *options, GError **error)
{
    const ExecJobRank job_rank = exec_job_rank();
    g_autoptr(Plan) plan =
        exec_measure_tiny_plan(options->measure->dtype, 1, MAX(job_rank.n_ranks, 1), 1);
    ExecRunOptions exec = run_options(options, plan);
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

/* --- the process that starts them --- */

/* (owned, nullable) NULL: they can be timed, over @n_gpus */
static char *
reason_not_to(const ProfileGpusOptions *options, int64_t n_gpus)
{
    g_autoptr(GError) error = NULL;

    if (options->measure->concurrency > 1)
        return g_strdup("--concurrency makes ranks of one GPU");
    if (n_gpus < 2)
        return g_strdup("there is one GPU");
    g_autoptr(Plan) plan = exec_measure_tiny_plan(options->measure->dtype, 1, n_gpus, 1);
    ExecRunOptions exec = run_options(options, plan);
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
        g_set_error(error, CMD_ERROR, CMD_ERROR_USAGE,
                    "--tp: %" G_GINT64_FORMAT ": layers are timed on one GPU, whose profile with "
                    "the collectives between all prices the others; leave it out, or give --gpus 1 "
                    "for shares of one GPU",
                    o->tps[i]);
        return false;
    }
    return true;
}

bool
profile_gpus_time(const ProfileGpusOptions *options, char **collectives, char **why_not,
                  GError **error)
{
    g_autoptr(GError) no_gpu = NULL;
    const int32_t n_devices = exec_backend_n_devices(nccl_device(), &no_gpu);
    /* Who says that hosts are not what they seem wants a proof of function on what is there. */
    const bool is_proof = g_getenv("NCCL_HOSTID") != NULL;
    const int64_t n_gpus = options->n_gpus > 0 ? options->n_gpus : MAX(n_devices, is_proof ? 2 : 1);

    *collectives = *why_not = NULL;
    if (n_devices < 0 || options->n_gpus == 1) /* exec_measure() says what is wrong */
        return true;
    if (n_gpus > n_devices && !is_proof) {
        g_set_error(error, CMD_ERROR, CMD_ERROR_USAGE,
                    "--gpus: %" G_GINT64_FORMAT ": this machine has %d", n_gpus, n_devices);
        return false;
    }
    *why_not = reason_not_to(options, n_gpus);
    if (*why_not != NULL)
        return true;
    if (!check_tp(options->measure, error))
        return false;
    g_autoptr(Plan) plan = exec_measure_tiny_plan(options->measure->dtype, 1, n_gpus, 1);
    ExecRunOptions exec = run_options(options, plan);
    g_autoptr(GString) output = g_string_new(NULL);
    g_autofree char *where = NULL;
    const RunProcessesOptions processes = {.stop = exec.stop, .output = output};
    if (run_processes_begin(&exec, &processes, &where, error) < 0)
        return false;
    *collectives = g_string_free(g_steal_pointer(&output), FALSE);
    return true;
}
