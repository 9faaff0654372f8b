#include "cli/run/processes.h"

#include <string.h>
#include <unistd.h>

#include "cli/request/command.h"
#include "cli/request/output.h"
#include "executor/transport/transport.h"
#include "executor/watch/launch.h"
#include "executor/watch/member.h"

static void
pass_on_note(const char *text, void *user_data)
{
    output_note("%s", text);
}

/* Returns: (owned) the arguments that this process was started with. */
static GPtrArray *
own_arguments(GError **error)
{
    g_autofree char *text = NULL;
    size_t n_bytes = 0;

    if (!g_file_get_contents("/proc/self/cmdline", &text, &n_bytes, error))
        return NULL;
    GPtrArray *arguments = g_ptr_array_new_with_free_func(g_free);
    for (size_t at = 0; at < n_bytes; at += strlen(text + at) + 1)
        g_ptr_array_add(arguments, g_strdup(text + at));
    g_ptr_array_add(arguments, NULL);
    return arguments;
}

static int
launch(const ExecRunOptions *exec, const RunProcessesOptions *options, GError **error)
{
    g_autoptr(GString) own = g_string_new(NULL);
    GString *output = options->output != NULL ? options->output : own;
    GError *reason = NULL;
    int status = 0;

    if (!exec_run_check(exec, error))
        return -1;
    g_autoptr(GPtrArray) arguments = own_arguments(error);
    if (arguments == NULL)
        return -1;
    const ExecLaunchOptions launch_options = {
        .transport = exec->transport,
        .without_mpi = exec->without_mpi,
        .n_ranks = (int32_t)plan_n_devices(exec->plan),
        .timeout_s = exec->timeout_s,
        .hosts = options->hosts,
        .arguments = (char **)arguments->pdata,
        .stop = options->stop,
        .progress = options->progress,
        .note = options->output == NULL ? pass_on_note : NULL,
        .user_data = options->user_data,
    };
    const bool ok = exec_launch(&launch_options, output, &status, &reason);
    /* The product is whole, or rank 0 had nothing to say; after a failure only an interrupted run
     * has one. */
    if (output == own && (ok || g_error_matches(reason, EXEC_ERROR, EXEC_ERROR_INTERRUPTED)))
        output_text(output->str);
    if (ok)
        return status;
    if (status > 0) { /* a rank has said what kind of error it is */
        g_set_error_literal(error, CMD_ERROR, status, reason->message);
        g_error_free(reason);
    } else {
        g_propagate_error(error, reason);
    }
    return -1;
}

static void
tell(const GError *error)
{
    output_note("%s", error->message);
}

/* NCCL refuses two ranks of one host on one device.  Whoever says by NCCL_HOSTID that hosts are not
 * what they seem gets a host of its own for every rank that we have started: a proof of function
 * on one device (docs/gpu.md). */
static void
set_host_id(const ExecRunOptions *exec, int32_t rank)
{
    const char *id = g_getenv("NCCL_HOSTID");

    if (!exec->without_mpi || id == NULL)
        return;
    g_autofree char *own = g_strdup_printf("%s-%d", id, rank);
    g_setenv("NCCL_HOSTID", own, TRUE);
}

/* Whether the ranks meet without MPI.  One machine needs it for NCCL as little as for tcp. */
static bool
meets_without_mpi(const ExecRunOptions *exec, const RunProcessesOptions *options,
                  const ExecJobRank *job_rank, bool is_ours)
{
    const ExecTransportKind *kind = exec_transport_kind(exec->transport);

    if (job_rank->role == EXEC_ROLE_LAUNCHED)
        return is_ours;
    return kind->without_mpi || (kind->is_nccl && options->hosts == NULL && !job_rank->has_mpi);
}

/* Whether a rank that somebody else has started can meet the others. */
static bool
check_joined(const ExecRunOptions *exec, const ExecJobRank *job_rank, GError **error)
{
    if (!exec->without_mpi)
        return job_rank->has_mpi ||
               cmd_fail(error, CMD_ERROR_MISSING,
                        "transport %s: %s has started the ranks without MPI: start them by srun "
                        "--mpi=pmix or mpirun, or use --transport tcp",
                        exec->transport, job_rank->launcher);
    g_autofree char *meeting = exec_job_meeting(error);
    return meeting != NULL &&
           (plan_n_devices(exec->plan) == job_rank->n_ranks ||
            cmd_fail(error, CMD_ERROR_NO, "the plan has " INT " ranks, but %s has started %d",
                     plan_n_devices(exec->plan), job_rank->launcher, job_rank->n_ranks));
}

/* The part of a rank that somebody else has started: as run_processes_begin(). */
static int
join(const ExecRunOptions *exec, const ExecJobRank *job_rank, char **where, GError **error)
{
    bool in_child = false;

    if (!check_joined(exec, job_rank, error))
        return -1;
    if (job_rank->rank > 0)
        return RUN_PROCESSES_RANK;
    const bool ok =
        exec_run_check(exec, error) &&
        exec_fork_watcher(job_rank->n_ranks, exec->timeout_s, tell, where, &in_child, error);
    if (in_child)
        _exit(ok ? 0 : cmd_exit_status(*error));
    return ok ? RUN_PROCESSES_RANK : -1;
}

int
run_processes_begin(ExecRunOptions *exec, const RunProcessesOptions *options, char **where,
                    GError **error)
{
    const ExecJobRank job_rank = exec_job_rank();
    g_autofree char *secret = exec_job_secret();
    int status = RUN_PROCESSES_RANK;

    if (job_rank.role == EXEC_ROLE_STARTER) {
        g_autoptr(GPtrArray) arguments = own_arguments(error);

        return arguments == NULL ? -1 : exec_start_ranks((char **)arguments->pdata);
    }
    exec->without_mpi = meets_without_mpi(exec, options, &job_rank, secret != NULL);
    exec->other_machines = options->hosts != NULL || job_rank.role == EXEC_ROLE_JOINED;
    if (job_rank.role == EXEC_ROLE_ALONE)
        return launch(exec, options, error);
    set_host_id(exec, job_rank.rank);
    exec->process_rank = job_rank.rank;
    if (job_rank.role == EXEC_ROLE_LAUNCHED)
        *where = g_strdup(g_getenv(EXEC_WATCH_VARIABLE));
    else
        status = join(exec, &job_rank, where, error);
    if (status == -1)
        run_processes_fail(exec, false, *error);
    exec->watch_where = *where;
    return status;
}

bool
run_processes_check_alone(ExecRunOptions *exec, GError **error)
{
    const ExecJobRank job_rank = exec_job_rank();

    if (job_rank.role != EXEC_ROLE_JOINED)
        return true;
    exec->process_rank = job_rank.rank;
    cmd_fail(error, CMD_ERROR_USAGE,
             "run: %s has started %d copies of this run: with --transport mpi, tcp or nccl each is "
             "a rank, with local each is a run of its own",
             job_rank.launcher, job_rank.n_ranks);
    run_processes_fail(exec, false, *error);
    return false;
}

void
run_processes_fail(const ExecRunOptions *exec, bool told, const GError *error)
{
    const int status = cmd_exit_status(error);
    /* What is wrong with the command, the plan or the launcher is so for all ranks: one says it.  A
     * rank that has lost the others before it had a watcher is told of by theirs. */
    const bool is_everybodys = (status <= CMD_ERROR_INPUT || error->domain == CMD_ERROR ||
                                g_error_matches(error, EXEC_ERROR, EXEC_ERROR_RANK_DIED)) &&
                               exec->process_rank > 0 && exec_job_rank().role == EXEC_ROLE_JOINED;

    /* mpirun ends all ranks after the first that ends badly: the one that says it goes first. */
    if (is_everybodys)
        g_usleep(500000);
    if (told || is_everybodys)
        _exit(status);
}
