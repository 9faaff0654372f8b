#include "executor/watch/starting.h"

#include <signal.h>
#include <string.h>

#include "executor/watch/launch.h"
#include "executor/watch/member.h"

char *
exec_proc_text(pid_t pid, const char *name, size_t *n_bytes)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/%s", (int)pid, name);
    char *text = NULL;

    return g_file_get_contents(path, &text, n_bytes, NULL) ? text : NULL;
}

/* stat is "PID (NAME) STATE ..." [proc(5)], and a name may have brackets of its own. */
bool
exec_proc_is_stopped(pid_t pid)
{
    g_autofree char *text = exec_proc_text(pid, "stat", NULL);
    const char *bracket = text == NULL ? NULL : strrchr(text, ')');

    return bracket != NULL && g_str_has_prefix(bracket, ") T");
}

/* Returns: (owned, nullable) the environment that the process was started with. */
static char **
environment_of(pid_t pid)
{
    size_t n_bytes = 0;
    g_autofree char *text = exec_proc_text(pid, "environ", &n_bytes);

    if (text == NULL)
        return NULL;
    GPtrArray *variables = g_ptr_array_new();
    for (size_t at = 0; at < n_bytes; at += strlen(text + at) + 1)
        g_ptr_array_add(variables, g_strdup(text + at));
    g_ptr_array_add(variables, NULL);
    return (char **)g_ptr_array_free(variables, FALSE);
}

/* Returns which rank of the job that is watched at @where the process is; -1: none. */
static int32_t
rank_of(pid_t pid, const char *program, const char *where)
{
    g_autofree char *link = g_strdup_printf("/proc/%d/exe", (int)pid);
    g_autofree char *its_program = g_file_read_link(link, NULL);

    if (its_program == NULL || !g_str_equal(its_program, program))
        return -1;
    g_auto(GStrv) environment = environment_of(pid);
    if (environment == NULL ||
        g_strcmp0(g_environ_getenv(environment, EXEC_WATCH_VARIABLE), where) != 0)
        return -1;
    const ExecJobRank job_rank = exec_job_rank_of(environment);
    return job_rank.role == EXEC_ROLE_LAUNCHED ? job_rank.rank : -1;
}

static void
see(ExecStarting *rank, pid_t pid, int64_t now_ns)
{
    rank->pid = pid;
    rank->gone_ns = 0;
    if (!exec_proc_is_stopped(pid))
        rank->stopped_ns = 0;
    else if (rank->stopped_ns == 0)
        rank->stopped_ns = now_ns;
}

void
exec_starting_look(ExecStarting *ranks, int32_t n_ranks, const char *where, int64_t now_ns)
{
    g_autofree char *program = g_file_read_link("/proc/self/exe", NULL);
    g_autoptr(GDir) processes = g_dir_open("/proc", 0, NULL);
    const char *name;

    if (program == NULL || processes == NULL)
        return;
    for (int32_t r = 0; r < n_ranks; r++)
        if (ranks[r].pid > 0 && ranks[r].gone_ns == 0)
            ranks[r].gone_ns = now_ns; /* until it is seen below */
    while ((name = g_dir_read_name(processes)) != NULL) {
        int64_t pid;
        if (!g_ascii_string_to_signed(name, 10, 2, INT32_MAX, &pid, NULL))
            continue;
        const int32_t rank = rank_of((pid_t)pid, program, where);
        if (rank >= 0 && rank < n_ranks && !ranks[rank].arrived)
            see(&ranks[rank], (pid_t)pid, now_ns);
    }
}

int32_t
exec_starting_gone(const ExecStarting *ranks, int32_t n_ranks)
{
    int32_t first = -1;

    for (int32_t r = 0; r < n_ranks; r++)
        if (!ranks[r].arrived && ranks[r].gone_ns > 0 &&
            (first < 0 || ranks[r].gone_ns < ranks[first].gone_ns))
            first = r;
    return first;
}

int32_t
exec_starting_unseen(const ExecStarting *ranks, int32_t n_ranks)
{
    int32_t missing = -1;

    for (int32_t r = 0; r < n_ranks; r++) {
        if (ranks[r].arrived)
            continue;
        if (missing >= 0)
            return -1;
        missing = r;
    }
    return missing >= 0 && ranks[missing].pid == 0 ? missing : -1;
}

int32_t
exec_starting_stopped(const ExecStarting *ranks, int32_t n_ranks, int64_t limit_ns, int64_t now_ns)
{
    for (int32_t r = 0; r < n_ranks; r++)
        if (!ranks[r].arrived && ranks[r].gone_ns == 0 && ranks[r].stopped_ns > 0 &&
            now_ns - ranks[r].stopped_ns > limit_ns)
            return r;
    return -1;
}

void
exec_starting_kill(ExecStarting *ranks, int32_t n_ranks, const char *where, int64_t now_ns)
{
    exec_starting_look(ranks, n_ranks, where, now_ns);
    for (int32_t r = 0; r < n_ranks; r++)
        if (!ranks[r].arrived && ranks[r].pid > 0 && ranks[r].gone_ns == 0)
            kill(ranks[r].pid, SIGKILL);
}
