#include "executor/watch/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/text.h"
#include "executor/device/clock.h"
#include "executor/device/cores.h"
#include "executor/device/plugin.h"
#include "executor/mpi/transport.h"
#include "executor/watch/member.h"
#include "executor/watch/watcher.h"

/* Nothing of a run is left on this machine 5 s after a rank failed (docs/formats.md).  Of these:
 * how long ranks that were told to end may take before they are killed, ... */
#define CLEAN_UP_S 1.0
/* ... then the process that started them, before it is killed, ... */
#define END_S 1.0
/* ... and that process where it is the launcher that was killed, before the keeper kills it. */
#define KEEPER_GRACE_MS 2000
/* How long rank 0 of an interrupted run may take to write what is done, before all are killed. */
#define WRITE_S 2.5
/* How long a look for output waits; the watcher wants to be asked at least every 100 ms. */
#define LOOK_MS 20
/* How long the last words of mpirun and of its ranks may be on their way after its end: many times
 * LOOK_MS, and little of the 5 s. */
#define LAST_WORDS_NS 300000000
/* Bytes that are kept of what mpirun says, for the message when no rank began: one line of at most
 * WORDS_BYTES becomes it, and banners come before it. */
#define KEPT_NOISE_BYTES 4000
#define WORDS_BYTES 300
/* The longest file of Open MPI 4's: NS_DATA_SEG_SIZE of PMIx (dstore_base.h), through which its
 * processes find one another.  With less mpirun stops in a lock that it could not make. */
#define OPEN_MPI_FILE_BYTES ((rlim_t)1 << 22)
/* Where Open MPI 4 keeps its session and the memory that ranks share. */
#define SESSION_VARIABLE "OMPI_MCA_orte_tmpdir_base"
#define SEGMENTS_VARIABLE "OMPI_MCA_btl_vader_backing_directory"

/* What a shell would say of a process that ended so (waitpid(2)): 128 + N for signal N. */
static int
exit_status(int status)
{
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* --- which rank this process is --- */

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
        const char *also; /* (nullable) without it the others mean something else */
        const char *launcher;
        bool is_mpi;
    } names[] = {
        {EXEC_RANK_VARIABLE, EXEC_RANKS_VARIABLE, NULL, NULL, false},
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", NULL, "mpirun", true},
        {"PMI_RANK", "PMI_SIZE", NULL, "mpirun or srun", true},
        {"PMIX_RANK", "SLURM_STEP_NUM_TASKS", NULL, "srun", true},
        {"RANK", "WORLD_SIZE", "MASTER_ADDR", "torchrun or Kubernetes", false},
        {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", NULL, "srun", false},
    };
    ExecJobRank job_rank = {.role = EXEC_ROLE_ALONE, .n_ranks = 1};

    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        const int64_t rank = number_of(environment, names[i].rank, -1);
        const int64_t n_ranks = number_of(environment, names[i].n_ranks, -1);
        if (rank < 0 || n_ranks <= rank ||
            (names[i].also != NULL && g_environ_getenv(environment, names[i].also) == NULL))
            continue;
        job_rank.rank = (int32_t)rank;
        job_rank.n_ranks = (int32_t)n_ranks;
        job_rank.launcher = names[i].launcher;
        job_rank.has_mpi = names[i].is_mpi;
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

/* --- where ranks meet that somebody else has started --- */

/* Returns: (owned) the first host of Slurm's list: "n01" of "n[01-04,7],m2", "n01-ib0" of
 * "n[01-02]-ib[0-1]". */
static char *
first_host(const char *list)
{
    GString *host = g_string_new(NULL);

    for (const char *at = list; *at != 0 && *at != ','; at++) {
        if (*at != '[') {
            g_string_append_c(host, *at);
            continue;
        }
        at++;
        g_string_append_len(host, at, (gssize)strcspn(at, ",-]"));
        at += strcspn(at, "]");
        if (*at == 0)
            break;
    }
    return g_string_free(host, FALSE);
}

/* Returns the port, and changes it where somebody else listens at MASTER_PORT. */
static int64_t
meeting_port(char **environment)
{
    const int64_t master = number_of(environment, "MASTER_PORT", 0);
    const char *reserved = g_environ_getenv(environment, "SLURM_STEP_RESV_PORTS");

    if (master > 0)
        return g_environ_getenv(environment, "TORCHELASTIC_RUN_ID") != NULL ? master + 1 : master;
    if (reserved != NULL && g_ascii_strtoll(reserved, NULL, 10) > 0)
        return g_ascii_strtoll(reserved, NULL, 10);
    return 20000 + (number_of(environment, "SLURM_JOB_ID", 0) * 16 +
                    number_of(environment, "SLURM_STEP_ID", 0)) %
                       10000;
}

char *
exec_job_meeting_of(char **environment, GError **error)
{
    static const char *const names[] = {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT",
                                        "TORCHELASTIC_RUN_ID"};
    static const char *const lists[] = {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"};
    const char *master = g_environ_getenv(environment, "MASTER_ADDR");
    const int64_t port = meeting_port(environment);
    g_autofree char *host = g_strdup(master);
    g_autoptr(GString) job = g_string_new("degas");

    for (size_t i = 0; host == NULL && i < G_N_ELEMENTS(lists); i++)
        if (g_environ_getenv(environment, lists[i]) != NULL)
            host = first_host(g_environ_getenv(environment, lists[i]));
    if (host == NULL || host[0] == 0 || port > UINT16_MAX)
        return EXEC_FAIL_NULL(error, EXEC_ERROR_MISSING,
                              port > UINT16_MAX ? "MASTER_PORT is no port"
                                                : "nothing says where rank 0 is: MASTER_ADDR or "
                                                  "SLURM_STEP_NODELIST is needed");
    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        const char *value = g_environ_getenv(environment, names[i]);
        g_string_append_printf(job, "\n%s", value == NULL ? "" : value);
    }
    g_autofree char *sum = g_compute_checksum_for_string(G_CHECKSUM_SHA256, job->str, -1);
    return g_strdup_printf("%.32s@%s:%" G_GINT64_FORMAT, sum, host, port);
}

char *
exec_job_meeting(GError **error)
{
    g_auto(GStrv) environment = g_get_environ();
    char *secret = exec_job_secret();

    return secret != NULL ? secret : exec_job_meeting_of(environment, error);
}

/* --- the starter --- */

/* Turns a child of the starter into a rank; does not return. */
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

/* Reaps all ranks; the first that ends badly ends the others.  Returns its exit status, else 0. */
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
        const int code = exit_status(status);
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

/* --- the keeper --- */

/*
 * A process that ends what the launcher started, should the launcher be killed.  mpirun gets
 * SIGTERM when its launcher dies (PR_SET_PDEATHSIG), but while nobody reads its output it may not
 * act on it: Open MPI 4 then stays, waiting for children that are dead.  The keeper sleeps until
 * the launcher or mpirun has ended.  If the launcher was first, mpirun and its process group have
 * KEEPER_GRACE_MS to end by themselves before they get SIGKILL.  Then the folder of the run's files
 * is removed.
 */
typedef struct {
    pid_t pid; /* 0: none */
    int alive; /* the end of a pipe that closes with this process */
} Keeper;

/* Where the keeper has its two files; all others are closed. */
enum {
    LAUNCHER_FD = 0,
    CHILD_FD = 1
};

/* Waits until one of the files has something to say; returns whether @fd has. */
static bool
wait_for(int fd, int other_fd, int limit_ms)
{
    struct pollfd fds[] = {{.fd = fd, .events = POLLIN}, {.fd = other_fd, .events = POLLIN}};

    while (poll(fds, 2, limit_ms) < 0 && errno == EINTR)
        ;
    return fds[0].revents != 0;
}

/* What the keeper does.  It is a copy of a process that may have had threads, so it may only call
 * what a signal handler may (signal-safety(7)). */
static void
keep(pid_t child, const char *scratch)
{
    setsid(); /* Ctrl-C is the launcher's */
    if (wait_for(CHILD_FD, LAUNCHER_FD, -1))
        wait_for(LAUNCHER_FD, -1, -1); /* which ends this process, unless it is killed */
    else if (!wait_for(CHILD_FD, -1, KEEPER_GRACE_MS))
        kill(-child, SIGKILL);
    if (scratch != NULL)
        execl("/bin/rm", "rm", "-rf", "--", scratch, (char *)NULL);
    _exit(0);
}

/* Starts the keeper of @child, which leads a session and is not reaped yet, and of the folder
 * @scratch (nullable).  Without room for one more process, or on a kernel before 5.9, there is
 * none, and nothing else changes. */
static void
keeper_start(Keeper *keeper, pid_t child, const char *scratch)
{
    int ends[2];
    const int child_fd = (int)syscall(SYS_pidfd_open, child, 0);

    *keeper = (Keeper){.alive = -1};
    if (child_fd < 0)
        return;
    if (pipe2(ends, O_CLOEXEC) == 0) {
        const pid_t pid = fork();
        if (pid == 0) {
            if (dup2(ends[0], STDERR_FILENO) < 0 || dup2(child_fd, CHILD_FD) < 0 ||
                dup2(STDERR_FILENO, LAUNCHER_FD) < 0 ||
                syscall(SYS_close_range, CHILD_FD + 1, ~0U, 0) != 0)
                _exit(0);
            keep(child, scratch);
        }
        close(ends[0]);
        if (pid > 0)
            *keeper = (Keeper){.pid = pid, .alive = ends[1]};
        else
            close(ends[1]);
    }
    close(child_fd);
}

/* Ends the keeper and reaps it; its child is left alone. */
static void
keeper_end(Keeper *keeper)
{
    if (keeper->pid <= 0)
        return;
    kill(keeper->pid, SIGKILL);
    close(keeper->alive);
    while (waitpid(keeper->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    *keeper = (Keeper){.alive = -1};
}

/* --- the process that starts the ranks --- */

/* mpirun, or our own starter in its place, and what it and the ranks write. */
typedef struct {
    const char *transport, *name; /* (borrowed) for messages */
    GPid pid;
    int out, err; /* pipes; -1: closed */
    bool ended;
    int status;         /* waitpid's, once it has ended */
    int64_t stopped_ns; /* since when it is known to be stopped (SIGSTOP); 0: it is not */
    GString *output;    /* (borrowed) what the ranks write to standard output */
    GString *noise;     /* (owned) the beginning of what mpirun itself writes to stderr */
    GString *line;      /* (owned) the last line of stderr, incomplete */
    GPtrArray *notes;   /* (owned) the ranks' lines "degas: ..." of stderr, without that */
    char *scratch;      /* (owned, nullable) folder of this run's files that Open MPI shares */
} Mpirun;

static int
remove_one(const char *path, const struct stat *status, int type, struct FTW *place)
{
    remove(path);
    return 0;
}

/* Removes the scratch folder too: an mpirun that is killed leaves its files behind. */
static void
mpirun_clear(Mpirun *mpirun)
{
    if (mpirun->scratch != NULL)
        nftw(mpirun->scratch, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    g_free(mpirun->scratch);
    if (mpirun->out >= 0)
        close(mpirun->out);
    if (mpirun->err >= 0)
        close(mpirun->err);
    g_string_free(mpirun->noise, TRUE);
    g_string_free(mpirun->line, TRUE);
    g_ptr_array_unref(mpirun->notes);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Mpirun, mpirun_clear)

/* Returns: (owned, nullable) the first line of its --version. */
static char *
version_of(const char *program)
{
    const char *const argv[] = {program, "--version", NULL};
    char *text = NULL;

    g_spawn_sync(NULL, (char **)argv, NULL, G_SPAWN_SEARCH_PATH | G_SPAWN_STDERR_TO_DEV_NULL, NULL,
                 NULL, &text, NULL, NULL, NULL); /* without a process @text stays as it is */
    return text;
}

/* Returns: (owned) the mpirun of the MPI that the plugin is built with.  Where several are
 * installed, Debian calls it by the second name. */
static char *
find_mpirun(const char *library, GError **error)
{
    const bool is_open_mpi = g_str_equal(library, "Open MPI");
    const char *const names[] = {"mpirun", is_open_mpi ? "mpirun.openmpi" : "mpirun.mpich", NULL};
    bool any = false;

    for (size_t i = 0; names[i] != NULL; i++) {
        g_autofree char *version = version_of(names[i]);
        any |= version != NULL;
        if (version != NULL && (strstr(version, "Open MPI") != NULL) == is_open_mpi)
            return g_strdup(names[i]);
    }
    return EXEC_FAIL_NULL(
        error, EXEC_ERROR_MISSING,
        any ? "transport mpi: degas-mpi.so was built with %s, mpirun is another MPI's"
            : "transport mpi: mpirun of %s is not in the path",
        library);
}

/* Appends copies of the texts up to the first NULL. */
static void
append(GPtrArray *argv, const char *const *texts)
{
    for (; *texts != NULL; texts++)
        g_ptr_array_add(argv, g_strdup(*texts));
}

/* Appends this program, the ranks' arguments and NULL. */
static void
append_program(GPtrArray *argv, const ExecLaunchOptions *o)
{
    char *program = g_file_read_link("/proc/self/exe", NULL);

    g_ptr_array_add(argv, program != NULL ? program : g_strdup(o->arguments[0]));
    append(argv, (const char *const *)o->arguments + 1);
    g_ptr_array_add(argv, NULL);
}

/* Appends mpirun with its own arguments. */
static void
append_mpirun(GPtrArray *argv, const ExecLaunchOptions *o, const char *mpirun, const char *library)
{
    const bool is_open_mpi = g_str_equal(library, "Open MPI");
    g_autofree char *n_ranks = g_strdup_printf("%d", o->n_ranks);

    append(argv, (const char *const[]){mpirun, "-n", n_ranks, NULL});
    if (o->hosts != NULL)
        append(argv, (const char *const[]){is_open_mpi ? "--host" : "-hosts", o->hosts, NULL});
    if (is_open_mpi && (o->hosts != NULL || o->n_ranks > exec_n_cores()))
        append(argv, (const char *const[]){"--oversubscribe", "--bind-to", "none", NULL});
    if (is_open_mpi)
        append(argv, (const char *const[]){"-x", EXEC_WATCH_VARIABLE, NULL});
}

/* Returns whether files may be as long here as mpirun needs them. */
static bool
check_file_limit(const char *library, GError **error)
{
    struct rlimit limit;

    if (!g_str_equal(library, "Open MPI") || getrlimit(RLIMIT_FSIZE, &limit) != 0 ||
        limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= OPEN_MPI_FILE_BYTES)
        return true;
    return EXEC_FAIL(error, EXEC_ERROR_MISSING,
                     "transport mpi: files may have %" G_GUINT64_FORMAT
                     " bytes here (ulimit -f); those of Open MPI need %" G_GUINT64_FORMAT,
                     (guint64)limit.rlim_cur, (guint64)OPEN_MPI_FILE_BYTES);
}

/* Makes a folder for Open MPI's files, in memory and removed after the run; for runs on this
 * machine alone.  Returns: (owned) @environment with it, or as it was where the user has named a
 * folder. */
static char **
add_scratch(Mpirun *mpirun, char **environment)
{
    if (g_environ_getenv(environment, SESSION_VARIABLE) != NULL ||
        g_environ_getenv(environment, SEGMENTS_VARIABLE) != NULL)
        return environment;
    mpirun->scratch = g_strdup("/dev/shm/degas-XXXXXX");
    if (g_mkdtemp(mpirun->scratch) == NULL) {
        g_clear_pointer(&mpirun->scratch, g_free);
        return environment;
    }
    environment = g_environ_setenv(environment, SESSION_VARIABLE, mpirun->scratch, TRUE);
    return g_environ_setenv(environment, SEGMENTS_VARIABLE, mpirun->scratch, TRUE);
}

/* Runs in the child, before mpirun: gives it a session of its own, so that Ctrl-C reaches the
 * launcher alone, and a signal to end should the launcher be killed (Keeper sees that it does). */
static void
prepare_child(gpointer user_data)
{
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGTERM);
}

/* Returns: (owned, nullable) what to start: mpirun with the ranks' program, or that as starter. */
static GPtrArray *
program_to_start(const ExecLaunchOptions *o, GError **error)
{
    g_autoptr(GPtrArray) argv = g_ptr_array_new_with_free_func(g_free);

    if (!o->without_mpi) {
        const ExecMpiPlugin *plugin =
            exec_plugin_symbol("mpi", EXEC_MPI_PLUGIN, "transport mpi", error);
        if (plugin == NULL || !check_file_limit(plugin->library, error))
            return NULL;
        g_autofree char *mpirun = find_mpirun(plugin->library, error);
        if (mpirun == NULL)
            return NULL;
        append_mpirun(argv, o, mpirun, plugin->library);
    }
    append_program(argv, o);
    return g_steal_pointer(&argv);
}

/* Starts it.  @where  the watcher's, for the ranks.  False on EXEC_ERROR_MISSING: there is no
 * plugin or mpirun, or files may not be as long here (RLIMIT_FSIZE) as Open MPI's, which would hang
 * or break. */
static bool
mpirun_start(Mpirun *mpirun, const ExecLaunchOptions *o, const char *where, GError **error)
{
    g_autoptr(GPtrArray) argv = program_to_start(o, error);
    g_auto(GStrv) environment = g_get_environ();
    g_autoptr(GError) reason = NULL;

    if (argv == NULL)
        return false;
    if (o->without_mpi) {
        g_autofree char *n_ranks = g_strdup_printf("%d", o->n_ranks);
        environment = g_environ_setenv(environment, EXEC_START_VARIABLE, n_ranks, TRUE);
    } else if (o->hosts == NULL) {
        environment = add_scratch(mpirun, environment);
    }
    environment = g_environ_setenv(environment, EXEC_WATCH_VARIABLE, where, TRUE);
    /* Open MPI refuses to run as root unless both are set. */
    environment = g_environ_setenv(environment, "OMPI_ALLOW_RUN_AS_ROOT", "1", TRUE);
    environment = g_environ_setenv(environment, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", TRUE);
    if (g_spawn_async_with_pipes(NULL, (char **)argv->pdata, environment,
                                 G_SPAWN_SEARCH_PATH | G_SPAWN_DO_NOT_REAP_CHILD, prepare_child,
                                 NULL, &mpirun->pid, NULL, &mpirun->out, &mpirun->err, &reason))
        return true;
    mpirun->out = mpirun->err = -1;
    return EXEC_FAIL(error, EXEC_ERROR_MISSING, "transport %s: cannot start %s: %s", o->transport,
                     (const char *)argv->pdata[0], reason->message);
}

/* --- its output --- */

static void
keep_line(Mpirun *mpirun)
{
    if (g_str_has_prefix(mpirun->line->str, "degas: "))
        g_ptr_array_add(mpirun->notes, g_strdup(mpirun->line->str + strlen("degas: ")));
    else if (mpirun->noise->len < KEPT_NOISE_BYTES)
        g_string_append_printf(mpirun->noise, "%s\n", mpirun->line->str);
    g_string_truncate(mpirun->line, 0);
}

static void
read_noise(Mpirun *mpirun, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\n')
            keep_line(mpirun);
        else if (mpirun->line->len < KEPT_NOISE_BYTES)
            g_string_append_c(mpirun->line, text[i]);
    }
}

/* Reads once from a pipe that has something; a pipe that is closed becomes -1. */
static void
read_pipe(Mpirun *mpirun, int *fd)
{
    char buffer[65536];
    const ssize_t n = read(*fd, buffer, sizeof buffer);

    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n <= 0) {
        close(*fd);
        *fd = -1;
    } else if (fd == &mpirun->out) {
        g_string_append_len(mpirun->output, buffer, n);
    } else {
        read_noise(mpirun, buffer, (size_t)n);
    }
}

/* Reads what comes within LOOK_MS. */
static void
mpirun_read(Mpirun *mpirun)
{
    struct pollfd fds[] = {{.fd = mpirun->out, .events = POLLIN},
                           {.fd = mpirun->err, .events = POLLIN}};

    if (poll(fds, 2, LOOK_MS) <= 0)
        return;
    if (fds[0].revents != 0)
        read_pipe(mpirun, &mpirun->out);
    if (fds[1].revents != 0)
        read_pipe(mpirun, &mpirun->err);
}

/* Looks what has become of it, and keeps that in @status or @stopped_ns. */
static bool
mpirun_has_ended(Mpirun *mpirun)
{
    int status;

    if (mpirun->ended ||
        waitpid(mpirun->pid, &status, WNOHANG | WUNTRACED | WCONTINUED) != mpirun->pid)
        return mpirun->ended;
    mpirun->ended = !WIFSTOPPED(status) && !WIFCONTINUED(status);
    mpirun->stopped_ns = WIFSTOPPED(status) ? exec_now_ns() : 0;
    mpirun->status = mpirun->ended ? status : 0;
    return mpirun->ended;
}

/* Reads its pipes to their end (it would crash otherwise) and reaps it.  After a failure it is told
 * to end, and killed after END_S. */
static void
mpirun_finish(Mpirun *mpirun, bool failed)
{
    const int64_t begin = exec_now_ns();
    const int64_t grace = (int64_t)(END_S * 1e9);

    if (failed) {
        kill(mpirun->pid, SIGTERM);
        kill(mpirun->pid, SIGCONT); /* one that is stopped would not hear it */
    }
    while (!mpirun_has_ended(mpirun) || mpirun->out >= 0 || mpirun->err >= 0) {
        mpirun_read(mpirun);
        if (mpirun->out < 0 && mpirun->err < 0)
            g_usleep(1000);
        if (failed && exec_now_ns() - begin > grace) {
            kill(-mpirun->pid, SIGKILL);
            kill(mpirun->pid, SIGKILL);
            if (mpirun_has_ended(mpirun) || exec_now_ns() - begin > 2 * grace)
                break;
        }
    }
}

/* Returns whether a signal ended it, not a rank. */
static bool
mpirun_was_killed(const Mpirun *mpirun)
{
    return mpirun->ended && WIFSIGNALED(mpirun->status);
}

/* Returns: (owned) the line of its words that names a rank which died, else the first one. */
static char *
mpirun_words(const Mpirun *mpirun)
{
    g_auto(GStrv) lines = g_strsplit(mpirun->noise->str, "\n", -1);

    for (size_t i = 0; lines[i] != NULL; i++)
        if (strstr(lines[i], "process rank ") != NULL)
            return text_escape(g_strstrip(lines[i]), WORDS_BYTES);
    for (size_t i = 0; lines[i] != NULL; i++) {
        const char *line = g_strchug(lines[i]);
        size_t letters = 0;
        for (const char *p = line; *p != 0; p++)
            letters += g_ascii_isalpha(*p) != 0;
        if (letters > 8)
            return text_escape(line, WORDS_BYTES);
    }
    if (mpirun_was_killed(mpirun))
        return g_strdup_printf("it was ended by signal %d (%s)", WTERMSIG(mpirun->status),
                               strsignal(WTERMSIG(mpirun->status)));
    return g_strdup("it said nothing");
}

/* --- the launcher --- */

/* @when  " after the last step" */
static void
set_ended_error(const Mpirun *mpirun, int code, const char *when, GError **error)
{
    g_autofree char *words = mpirun_words(mpirun);

    g_set_error(error, EXEC_ERROR, code, "transport %s: %s ended with status %d%s: %s",
                mpirun->transport, mpirun->name, exit_status(mpirun->status), when, words);
}

/* mpirun has ended though the watcher knows of no end of the run: says why, as far as is known. */
static bool
explain_early_end(const Mpirun *mpirun, bool has_started, int *status, GError **error)
{
    if (mpirun->notes->len > 0) { /* a rank has said why, and its status says what kind */
        *status = exit_status(mpirun->status);
        g_set_error_literal(error, EXEC_ERROR, EXEC_ERROR_FAILED,
                            g_ptr_array_index(mpirun->notes, 0));
    } else {
        *status = 0;
        set_ended_error(mpirun, has_started ? EXEC_ERROR_RANK_DIED : EXEC_ERROR_MISSING,
                        has_started ? "" : " before any rank began", error);
    }
    return false;
}

typedef struct {
    const ExecLaunchOptions *o;
    ExecWatcher *watcher;
    bool stops;      /* the ranks were asked to stop */
    int64_t stop_ns; /* since when they are to stop within EXEC_STOP_S; 0: they are not */
    int64_t shown_step, shown_ns;
} Watch;

/* Passes an interruption on to the ranks.  False with EXEC_ERROR_INTERRUPTED when their step takes
 * too long to end. */
static bool
pass_on_stop(Watch *watch, GError **error)
{
    const int stop = watch->o->stop == NULL ? 0 : g_atomic_int_get(watch->o->stop);

    if (stop != 0 && !watch->stops)
        exec_watcher_stop(watch->watcher);
    watch->stops |= stop != 0;
    if (stop == 0 || stop == EXEC_STOP_PATIENTLY)
        return true;
    if (watch->stop_ns == 0)
        watch->stop_ns = exec_now_ns();
    if (exec_seconds_since(watch->stop_ns) <= EXEC_STOP_S)
        return true;
    return EXEC_FAIL(error, EXEC_ERROR_INTERRUPTED,
                     "interrupted; the step did not end within %.1f s", EXEC_STOP_S);
}

/* Rank 0 alone ends, with what is done on its standard output, whose reader this is. */
static void
let_rank_0_write(ExecWatcher *watcher, Mpirun *mpirun, const GError *why)
{
    const int64_t begin = exec_now_ns();

    while (!exec_watcher_abort_rank(watcher, 0, why) && exec_seconds_since(begin) < WRITE_S)
        mpirun_read(mpirun);
}

static void
tell_progress(Watch *watch)
{
    int64_t step;
    double loss;

    if (watch->o->progress == NULL)
        return;
    exec_watcher_progress(watch->watcher, &step, &loss);
    if (step <= watch->shown_step)
        return;
    const int64_t now = exec_now_ns();
    const double step_s =
        (double)(now - watch->shown_ns) * 1e-9 / (double)(step - watch->shown_step);
    watch->shown_step = step;
    watch->shown_ns = now;
    watch->o->progress(step - 1, loss, step_s, watch->o->user_data);
}

/* False when mpirun has been stopped for too long.  Ranks compute without it, but neither begin nor
 * end: all would wait, and an innocent rank would be blamed. */
static bool
judge_stopped(const Watch *watch, const Mpirun *mpirun, GError **error)
{
    const int64_t stopped = mpirun->stopped_ns == 0 ? 0 : exec_now_ns() - mpirun->stopped_ns;

    if (stopped <= exec_watcher_silence_ns(watch->watcher))
        return true;
    return EXEC_FAIL(error, EXEC_ERROR_RANK_HUNG,
                     "transport %s: %s (process %d) is stopped, for %.1f s", mpirun->transport,
                     mpirun->name, (int)mpirun->pid, (double)stopped * 1e-9);
}

/* Watches until the ranks are done (true) or something is wrong. */
static bool
watch_ranks(Watch *watch, Mpirun *mpirun, int *status, GError **error)
{
    int64_t ended_ns = 0;

    for (;;) {
        mpirun_read(mpirun);
        const ExecWatcherState state = exec_watcher_look(watch->watcher, error);
        if (state == EXEC_WATCHER_DONE)
            return true;
        if (state == EXEC_WATCHER_FAILED) {
            /* When mpirun is killed the ranks end with it: the first that did is not to blame. */
            if (g_error_matches(*error, EXEC_ERROR, EXEC_ERROR_RANK_DIED) &&
                mpirun_has_ended(mpirun) && mpirun_was_killed(mpirun)) {
                g_clear_error(error);
                return explain_early_end(mpirun, true, status, error);
            }
            return false;
        }
        tell_progress(watch);
        if (!pass_on_stop(watch, error)) {
            let_rank_0_write(watch->watcher, mpirun, *error);
            exec_watcher_abort(watch->watcher, *error);
            return false;
        }
        if (!mpirun_has_ended(mpirun)) {
            if (judge_stopped(watch, mpirun, error))
                continue;
            exec_watcher_abort(watch->watcher, *error);
            return false;
        }
        if (ended_ns == 0)
            ended_ns = exec_now_ns();
        if (mpirun->out < 0 && mpirun->err < 0 && exec_now_ns() - ended_ns > LAST_WORDS_NS)
            return explain_early_end(mpirun, exec_watcher_has_started(watch->watcher), status,
                                     error);
    }
}

bool
exec_launch(const ExecLaunchOptions *options, GString *output, int *status, GError **error)
{
    const ExecWatcherOptions watcher_options = {
        .n_ranks = options->n_ranks,
        .timeout_s = options->timeout_s,
        .other_hosts = options->hosts != NULL,
    };

    *status = 0;
    g_autoptr(ExecWatcher) watcher = exec_watcher_new(&watcher_options, error);
    if (watcher == NULL)
        return false;
    g_auto(Mpirun) mpirun = {
        .transport = options->transport,
        .name = options->without_mpi ? "the starter of the ranks" : "mpirun",
        .out = -1,
        .err = -1,
        .output = output,
        .noise = g_string_new(NULL),
        .line = g_string_new(NULL),
        .notes = g_ptr_array_new_with_free_func(g_free),
    };
    if (!mpirun_start(&mpirun, options, exec_watcher_where(watcher), error))
        return false;
    Keeper keeper;
    GError *found = NULL;
    keeper_start(&keeper, mpirun.pid, mpirun.scratch);
    exec_watcher_set_starter(watcher, mpirun.pid);
    Watch watch = {.o = options, .watcher = watcher, .shown_ns = exec_now_ns()};
    bool ok = watch_ranks(&watch, &mpirun, status, &found);
    const bool interrupted = g_error_matches(found, EXEC_ERROR, EXEC_ERROR_INTERRUPTED);
    if (!ok)
        exec_watcher_clean_up(watcher, CLEAN_UP_S);
    mpirun_finish(&mpirun, !ok);
    keeper_end(&keeper);
    const int code = exit_status(mpirun.status);
    if (ok && code >= 128) { /* killed after all were done: what was written may not be whole */
        set_ended_error(&mpirun, EXEC_ERROR_RANK_DIED, " after the last step", &found);
        ok = false;
    }
    if (ok)
        *status = code;
    if (interrupted && mpirun.notes->len > 0) { /* rank 0 knows what it has written */
        g_clear_error(&found);
        found = g_error_new_literal(EXEC_ERROR, EXEC_ERROR_INTERRUPTED,
                                    g_ptr_array_index(mpirun.notes, mpirun.notes->len - 1));
    }
    for (guint i = 0; ok && i < mpirun.notes->len; i++)
        if (options->note != NULL)
            options->note(g_ptr_array_index(mpirun.notes, i), options->user_data);
    if (found != NULL)
        g_propagate_error(error, found);
    return ok;
}

/* --- rank 0 of a job that somebody else has started --- */

bool
exec_fork_watcher(int32_t n_ranks, double timeout_s, void (*tell)(const GError *error),
                  char **where, bool *in_child, GError **error)
{
    const ExecWatcherOptions options = {
        .n_ranks = n_ranks,
        .timeout_s = timeout_s,
        .other_hosts = true,
    };
    g_autoptr(ExecWatcher) watcher = exec_watcher_new(&options, error);

    *in_child = false;
    if (watcher == NULL)
        return false;
    *where = g_strdup(exec_watcher_where(watcher));
    const pid_t parent = getpid(), pid = fork();
    if (pid < 0)
        return EXEC_FAIL(error, EXEC_ERROR_FAILED, "cannot start the watcher: %s",
                         g_strerror(errno));
    if (pid > 0)
        return true;
    *in_child = true;
    /* The ranks obey signals for the job; the watcher ends when they have. */
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGUSR1, SIG_IGN);
    for (;;) {
        GError *reason = NULL;
        const ExecWatcherState state = exec_watcher_look(watcher, &reason);
        /* A rank 0 that ended before it could tell any rank of the watcher has said why itself. */
        if (state == EXEC_WATCHER_DONE ||
            (getppid() != parent && !exec_watcher_has_started(watcher)))
            return true;
        if (state == EXEC_WATCHER_FAILED) {
            tell(reason);
            exec_watcher_clean_up(watcher, CLEAN_UP_S);
            g_propagate_error(error, reason);
            return false;
        }
        g_usleep(LOOK_MS * 1000);
    }
}
