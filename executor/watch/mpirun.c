#include "executor/watch/mpirun.h"

#include <errno.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/text.h"
#include "executor/device/cores.h"
#include "executor/device/plugin.h"
#include "executor/device/clock.h"
#include "executor/mpi/transport.h"
#include "executor/watch/watch_wire.h"

/* It was told to end, before it is killed. */
#define END_S 1.0
/* Of what it says, for the message when no rank began. */
#define KEPT_NOISE 4000
/* The longest file of Open MPI 4's: NS_DATA_SEG_SIZE of PMIx (dstore_base.h), through which its
 * processes find one another.  With less mpirun stops in a lock that it could not make. */
#define OPEN_MPI_FILE_BYTES ((rlim_t)1 << 22)
/* Where Open MPI 4 keeps its session and the memory that ranks share. */
#define SESSION_VARIABLE "OMPI_MCA_orte_tmpdir_base"
#define SEGMENTS_VARIABLE "OMPI_MCA_btl_vader_backing_directory"

/* --- lifecycle --- */

void
exec_mpirun_init(ExecMpirun *mpirun, const ExecLaunchOptions *o, GString *output)
{
    *mpirun = (ExecMpirun){
        .transport = o->transport,
        .name = o->without_mpi ? "the starter of the ranks" : "mpirun",
        .out = -1,
        .err = -1,
        .output = output,
        .noise = g_string_new(NULL),
        .line = g_string_new(NULL),
        .notes = g_ptr_array_new_with_free_func(g_free),
    };
}

static int
remove_one(const char *path, const struct stat *status, int type, struct FTW *place)
{
    remove(path);
    return 0;
}

void
exec_mpirun_clear(ExecMpirun *mpirun)
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

/* --- starting --- */

/* Returns: (owned, nullable) the first line of its --version. */
static char *
version_of(const char *program)
{
    const char *const argv[] = {program, "--version", NULL};
    char *text = NULL;

    if (!g_spawn_sync(NULL, (char **)argv, NULL, G_SPAWN_SEARCH_PATH | G_SPAWN_STDERR_TO_DEV_NULL,
                      NULL, NULL, &text, NULL, NULL, NULL))
        return NULL;
    return text;
}

/* Returns: (owned) the mpirun of the plugin's MPI; Debian calls it so where there are several. */
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
    g_set_error(error, EXEC_ERROR, EXEC_ERROR_MISSING,
                any ? "transport mpi: degas-mpi.so was built with %s, mpirun is another MPI's"
                    : "transport mpi: mpirun of %s is not in the path",
                library);
    return NULL;
}

/* This program with the arguments of the ranks, and the end. */
static void
add_program(const ExecLaunchOptions *o, GPtrArray *argv)
{
    char *program = g_file_read_link("/proc/self/exe", NULL);

    g_ptr_array_add(argv, program != NULL ? program : g_strdup(o->arguments[0]));
    for (size_t i = 1; o->arguments[i] != NULL; i++)
        g_ptr_array_add(argv, g_strdup(o->arguments[i]));
    g_ptr_array_add(argv, NULL);
}

/* Returns: (owned) the arguments of mpirun and, behind them, the program's. */
static GPtrArray *
mpirun_arguments(const ExecLaunchOptions *o, const char *mpirun, const char *library)
{
    GPtrArray *argv = g_ptr_array_new_with_free_func(g_free);
    const bool is_open_mpi = g_str_equal(library, "Open MPI");

    g_ptr_array_add(argv, g_strdup(mpirun));
    g_ptr_array_add(argv, g_strdup("-n"));
    g_ptr_array_add(argv, g_strdup_printf("%d", o->n_ranks));
    if (o->hosts != NULL) {
        g_ptr_array_add(argv, g_strdup(is_open_mpi ? "--host" : "-hosts"));
        g_ptr_array_add(argv, g_strdup(o->hosts));
    }
    if (is_open_mpi && (o->hosts != NULL || o->n_ranks > exec_n_cores())) {
        g_ptr_array_add(argv, g_strdup("--oversubscribe"));
        g_ptr_array_add(argv, g_strdup("--bind-to"));
        g_ptr_array_add(argv, g_strdup("none"));
    }
    if (is_open_mpi) {
        g_ptr_array_add(argv, g_strdup("-x"));
        g_ptr_array_add(argv, g_strdup(EXEC_WATCH_VARIABLE));
    }
    add_program(o, argv);
    return argv;
}

/* Whether mpirun can write what it has to. */
static bool
check_file_limit(const char *library, GError **error)
{
    struct rlimit limit;

    if (!g_str_equal(library, "Open MPI") || getrlimit(RLIMIT_FSIZE, &limit) != 0 ||
        limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= OPEN_MPI_FILE_BYTES)
        return true;
    g_set_error(error, EXEC_ERROR, EXEC_ERROR_MISSING,
                "transport mpi: files may have %" G_GUINT64_FORMAT
                " bytes here (ulimit -f); those of Open MPI need %" G_GUINT64_FORMAT,
                (guint64)limit.rlim_cur, (guint64)OPEN_MPI_FILE_BYTES);
    return false;
}

/* Open MPI's files, on this machine alone, into a folder that goes with the run.  Returns: (owned)
 * @environment with that */
static char **
add_scratch(ExecMpirun *mpirun, char **environment)
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

/* In the child, before mpirun: a session of its own, so that Ctrl-C reaches the launcher alone, and
 * an end of its own should the launcher be killed (keeper.h sees to it). */
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
    GPtrArray *argv;

    if (!o->without_mpi) {
        const ExecMpiPlugin *plugin =
            exec_plugin_symbol("mpi", EXEC_MPI_PLUGIN, "transport mpi", error);
        if (plugin == NULL || !check_file_limit(plugin->library, error))
            return NULL;
        g_autofree char *mpirun = find_mpirun(plugin->library, error);
        return mpirun == NULL ? NULL : mpirun_arguments(o, mpirun, plugin->library);
    }
    argv = g_ptr_array_new_with_free_func(g_free);
    add_program(o, argv);
    return argv;
}

bool
exec_mpirun_start(ExecMpirun *mpirun, const ExecLaunchOptions *o, const char *where, GError **error)
{
    g_autoptr(GPtrArray) argv = program_to_start(o, error);
    g_auto(GStrv) environment = g_get_environ();
    GError *reason = NULL;

    if (argv == NULL)
        return false;
    if (o->without_mpi) {
        g_autofree char *n_ranks = g_strdup_printf("%d", o->n_ranks);
        environment = g_environ_setenv(environment, EXEC_START_VARIABLE, n_ranks, TRUE);
    } else if (o->hosts == NULL) {
        environment = add_scratch(mpirun, environment);
    }
    environment = g_environ_setenv(environment, EXEC_WATCH_VARIABLE, where, TRUE);
    /* It asks root to say so twice. */
    environment = g_environ_setenv(environment, "OMPI_ALLOW_RUN_AS_ROOT", "1", TRUE);
    environment = g_environ_setenv(environment, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", TRUE);
    if (g_spawn_async_with_pipes(NULL, (char **)argv->pdata, environment,
                                 G_SPAWN_SEARCH_PATH | G_SPAWN_DO_NOT_REAP_CHILD, prepare_child,
                                 NULL, &mpirun->pid, NULL, &mpirun->out, &mpirun->err, &reason))
        return true;
    g_set_error(error, EXEC_ERROR, EXEC_ERROR_MISSING, "transport %s: cannot start %s: %s",
                o->transport, (const char *)argv->pdata[0], reason->message);
    g_error_free(reason);
    mpirun->out = mpirun->err = -1;
    return false;
}

/* --- its output --- */

static void
keep_line(ExecMpirun *mpirun)
{
    if (g_str_has_prefix(mpirun->line->str, "degas: "))
        g_ptr_array_add(mpirun->notes, g_strdup(mpirun->line->str + strlen("degas: ")));
    else if (mpirun->noise->len < KEPT_NOISE)
        g_string_append_printf(mpirun->noise, "%s\n", mpirun->line->str);
    g_string_truncate(mpirun->line, 0);
}

static void
read_noise(ExecMpirun *mpirun, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\n')
            keep_line(mpirun);
        else if (mpirun->line->len < KEPT_NOISE)
            g_string_append_c(mpirun->line, text[i]);
    }
}

/* One read of a pipe that has something; a closed one becomes -1. */
static void
read_pipe(ExecMpirun *mpirun, int *fd)
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

void
exec_mpirun_read(ExecMpirun *mpirun)
{
    struct pollfd fds[] = {{.fd = mpirun->out, .events = POLLIN},
                           {.fd = mpirun->err, .events = POLLIN}};

    if (poll(fds, 2, EXEC_MPIRUN_LOOK_MS) <= 0)
        return;
    if (fds[0].revents != 0)
        read_pipe(mpirun, &mpirun->out);
    if (fds[1].revents != 0)
        read_pipe(mpirun, &mpirun->err);
}

bool
exec_mpirun_has_ended(ExecMpirun *mpirun)
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

void
exec_mpirun_finish(ExecMpirun *mpirun, bool failed)
{
    const int64_t begin = exec_now_ns();
    const int64_t grace = (int64_t)(END_S * 1e9);

    if (failed) {
        kill(mpirun->pid, SIGTERM);
        kill(mpirun->pid, SIGCONT); /* one that is stopped would not hear it */
    }
    while (!exec_mpirun_has_ended(mpirun) || mpirun->out >= 0 || mpirun->err >= 0) {
        exec_mpirun_read(mpirun);
        if (mpirun->out < 0 && mpirun->err < 0)
            g_usleep(1000);
        if (failed && exec_now_ns() - begin > grace) {
            kill(-mpirun->pid, SIGKILL);
            kill(mpirun->pid, SIGKILL);
            if (exec_mpirun_has_ended(mpirun) || exec_now_ns() - begin > 2 * grace)
                break;
        }
    }
}

bool
exec_mpirun_was_killed(const ExecMpirun *mpirun)
{
    return mpirun->ended && WIFSIGNALED(mpirun->status);
}

char *
exec_mpirun_words(const ExecMpirun *mpirun)
{
    g_auto(GStrv) lines = g_strsplit(mpirun->noise->str, "\n", -1);

    for (size_t i = 0; lines[i] != NULL; i++)
        if (strstr(lines[i], "process rank ") != NULL)
            return text_escape(g_strstrip(lines[i]), 300);
    for (size_t i = 0; lines[i] != NULL; i++) {
        const char *line = g_strchug(lines[i]);
        size_t letters = 0;
        for (const char *p = line; *p != 0; p++)
            letters += g_ascii_isalpha(*p) != 0;
        if (letters > 8)
            return text_escape(line, 300);
    }
    if (exec_mpirun_was_killed(mpirun))
        return g_strdup_printf("it was ended by signal %d (%s)", WTERMSIG(mpirun->status),
                               strsignal(WTERMSIG(mpirun->status)));
    return g_strdup("it said nothing");
}

int
exec_mpirun_status(const ExecMpirun *mpirun)
{
    return WIFEXITED(mpirun->status) ? WEXITSTATUS(mpirun->status) : 128 + WTERMSIG(mpirun->status);
}
