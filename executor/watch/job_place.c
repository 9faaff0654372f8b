/* Which of a run's processes this one is, and what the starter of launch.h does. */
#include "executor/watch/launch.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "executor/watch/watch_wire.h"

static int64_t
number_of(char **environment, const char *variable, int64_t otherwise)
{
    const char *text = g_environ_getenv(environment, variable);
    int64_t value;

    return text != NULL && g_ascii_string_to_signed(text, 10, 0, INT32_MAX, &value, NULL)
               ? value
               : otherwise;
}

ExecJobRank
exec_job_rank(void)
{
    g_auto(GStrv) environment = g_get_environ();

    return exec_job_rank_of(environment);
}

ExecJobRank
exec_job_rank_of(char **environment)
{
    static const struct {
        const char *rank, *n_ranks;
    } names[] = {
        {EXEC_RANK_VARIABLE, EXEC_RANKS_VARIABLE},
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
        {"PMI_RANK", "PMI_SIZE"},
        {"PMIX_RANK", "SLURM_NTASKS"},
        {"SLURM_PROCID", "SLURM_NTASKS"},
    };
    ExecJobRank job_rank = {.role = EXEC_ROLE_ALONE, .n_ranks = 1};

    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        const int64_t rank = number_of(environment, names[i].rank, -1);
        if (rank < 0)
            continue;
        job_rank.rank = (int32_t)rank;
        job_rank.n_ranks = (int32_t)number_of(environment, names[i].n_ranks, 1);
        break;
    }
    if (g_environ_getenv(environment, EXEC_START_VARIABLE) != NULL)
        job_rank.role = EXEC_ROLE_STARTER;
    else if (g_environ_getenv(environment, EXEC_WATCH_VARIABLE) != NULL)
        job_rank.role = EXEC_ROLE_LAUNCHED;
    else if (job_rank.n_ranks > 1)
        job_rank.role = EXEC_ROLE_JOINED;
    return job_rank;
}

char *
exec_job_secret(void)
{
    const char *where = g_getenv(EXEC_WATCH_VARIABLE);

    if (where == NULL || g_getenv(EXEC_RANK_VARIABLE) == NULL)
        return NULL;
    return g_strndup(where, strcspn(where, "@"));
}

/* --- the starter --- */

/* In the child.  Does not return. */
static void
become_rank(int32_t rank, int32_t n_ranks, pid_t starter, char **arguments)
{
    g_autofree char *rank_text = g_strdup_printf("%d", rank);
    g_autofree char *ranks_text = g_strdup_printf("%d", n_ranks);

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != starter)
        _exit(1);
    g_unsetenv(EXEC_START_VARIABLE);
    g_setenv(EXEC_RANK_VARIABLE, rank_text, TRUE);
    g_setenv(EXEC_RANKS_VARIABLE, ranks_text, TRUE);
    execv("/proc/self/exe", arguments);
    _exit(1);
}

static void
end_ranks(const pid_t *ranks, int32_t n_ranks)
{
    for (int32_t r = 0; r < n_ranks; r++)
        if (ranks[r] > 0)
            kill(ranks[r], SIGTERM);
}

/* Reaps them all; the first bad end ends the others. */
static int
wait_for_ranks(pid_t *ranks, int32_t n_ranks)
{
    int first_bad = 0;

    for (;;) {
        int status = 0;
        const pid_t pid = waitpid(-1, &status, 0);
        if (pid < 0 && errno == EINTR)
            continue;
        if (pid < 0)
            return first_bad;
        for (int32_t r = 0; r < n_ranks; r++)
            if (ranks[r] == pid)
                ranks[r] = 0;
        const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        if (code == 0 || first_bad != 0)
            continue;
        first_bad = code;
        end_ranks(ranks, n_ranks);
    }
}

int
exec_start_ranks(char **arguments)
{
    g_auto(GStrv) environment = g_get_environ();
    const int32_t n_ranks = (int32_t)number_of(environment, EXEC_START_VARIABLE, 0);
    g_autofree pid_t *ranks = g_new0(pid_t, (size_t)MAX(n_ranks, 1));
    const pid_t self = getpid();

    for (int32_t r = 0; r < n_ranks; r++) {
        ranks[r] = fork();
        if (ranks[r] == 0)
            become_rank(r, n_ranks, self, arguments);
        if (ranks[r] < 0) {
            end_ranks(ranks, r);
            wait_for_ranks(ranks, r);
            return 1;
        }
    }
    return wait_for_ranks(ranks, n_ranks);
}
