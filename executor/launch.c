#include "executor/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/text.h"
#include "executor/keeper.h"
#include "executor/plugin.h"
#include "executor/pool.h"
#include "executor/transport.h"
#include "executor/transport_mpi.h"
#include "executor/watch_wire.h"
#include "executor/watcher.h"

/* Ranks that were told to end, before they are killed; then mpirun, before it is. */
#define CLEAN_UP_S 1.0
/* Rank 0 that was interrupted, to write what is done. */
#define WRITE_S 2.5
/* Of what mpirun says, for the message when no rank began. */
#define KEPT_NOISE 4000
#define LOOK_MS 20

/* --- mpirun --- */

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

/* In the child, before mpirun: a session of its own, so that Ctrl-C reaches the launcher alone, and
 * an end of its own should the launcher be killed (keeper.h sees to it). */
static void
prepare_child(gpointer user_data)
{
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGTERM);
}

/* mpirun, or the starter in its place. */
typedef struct {
    const char *transport, *name; /* (borrowed) for messages */
    GPid pid;
    int out, err; /* -1: closed */
    bool ended;
    int status;       /* wait's, once it has ended */
    GString *output;  /* (borrowed) */
    GString *noise;   /* (owned) the beginning of stderr that is not the ranks' */
    GString *line;    /* (owned) of stderr, incomplete */
    GPtrArray *notes; /* (owned) lines "degas: ..." */
} Mpirun;

static void
mpirun_clear(Mpirun *mpirun)
{
    if (mpirun->out >= 0)
        close(mpirun->out);
    if (mpirun->err >= 0)
        close(mpirun->err);
    g_string_free(mpirun->noise, TRUE);
    g_string_free(mpirun->line, TRUE);
    g_ptr_array_unref(mpirun->notes);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Mpirun, mpirun_clear)

/* Returns: (owned, nullable) what to start: mpirun with the ranks' program, or that as starter. */
static GPtrArray *
program_to_start(const ExecLaunchOptions *o, GError **error)
{
    GPtrArray *argv;

    if (!o->without_mpi) {
        const ExecMpiPlugin *plugin =
            exec_plugin_symbol("mpi", EXEC_MPI_PLUGIN, "transport mpi", error);
        g_autofree char *mpirun = plugin == NULL ? NULL : find_mpirun(plugin->library, error);
        return mpirun == NULL ? NULL : mpirun_arguments(o, mpirun, plugin->library);
    }
    argv = g_ptr_array_new_with_free_func(g_free);
    add_program(o, argv);
    return argv;
}

static bool
start(const ExecLaunchOptions *o, const char *where, Mpirun *mpirun, GError **error)
{
    g_autoptr(GPtrArray) argv = program_to_start(o, error);
    g_auto(GStrv) environment = g_get_environ();
    GError *reason = NULL;

    if (argv == NULL)
        return false;
    if (o->without_mpi) {
        g_autofree char *n_ranks = g_strdup_printf("%d", o->n_ranks);
        environment = g_environ_setenv(environment, EXEC_START_VARIABLE, n_ranks, TRUE);
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
keep_line(Mpirun *mpirun)
{
    if (g_str_has_prefix(mpirun->line->str, "degas: "))
        g_ptr_array_add(mpirun->notes, g_strdup(mpirun->line->str + strlen("degas: ")));
    else if (mpirun->noise->len < KEPT_NOISE)
        g_string_append_printf(mpirun->noise, "%s\n", mpirun->line->str);
    g_string_truncate(mpirun->line, 0);
}

static void
read_noise(Mpirun *mpirun, const char *text, size_t n)
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

/* What comes within LOOK_MS. */
static void
read_output(Mpirun *mpirun)
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

static bool
has_ended(Mpirun *mpirun)
{
    if (!mpirun->ended && waitpid(mpirun->pid, &mpirun->status, WNOHANG) == mpirun->pid)
        mpirun->ended = true;
    return mpirun->ended;
}

/* Reads its pipes to their end (it would crash otherwise) and reaps it; kills it after a while. */
static void
finish_mpirun(Mpirun *mpirun, bool failed)
{
    const int64_t begin = exec_now_ns();
    const int64_t grace = (int64_t)(CLEAN_UP_S * 1e9);

    if (failed)
        kill(mpirun->pid, SIGTERM);
    while (!has_ended(mpirun) || mpirun->out >= 0 || mpirun->err >= 0) {
        read_output(mpirun);
        if (mpirun->out < 0 && mpirun->err < 0)
            g_usleep(1000);
        if (failed && exec_now_ns() - begin > grace) {
            kill(-mpirun->pid, SIGKILL);
            kill(mpirun->pid, SIGKILL);
            if (has_ended(mpirun) || exec_now_ns() - begin > 2 * grace)
                break;
        }
    }
}

/* --- how it went --- */

/* Returns: (owned) of what mpirun said the line that names a rank which died, else the first one
 * with words. */
static char *
telling_words(const GString *noise)
{
    g_auto(GStrv) lines = g_strsplit(noise->str, "\n", -1);

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
    return g_strdup("it said nothing");
}

static int
exit_status(const Mpirun *mpirun)
{
    return WIFEXITED(mpirun->status) ? WEXITSTATUS(mpirun->status) : 128 + WTERMSIG(mpirun->status);
}

/* mpirun has ended though the watcher knows of no end of the run. */
static bool
explain_early_end(const Mpirun *mpirun, bool has_started, int *status, GError **error)
{
    g_autofree char *words = telling_words(mpirun->noise);

    *status = exit_status(mpirun);
    if (mpirun->notes->len > 0) { /* a rank has said why, and its status says what kind */
        g_set_error_literal(error, EXEC_ERROR, EXEC_ERROR_FAILED,
                            g_ptr_array_index(mpirun->notes, 0));
        return false;
    }
    *status = 0;
    g_set_error(error, EXEC_ERROR, has_started ? EXEC_ERROR_RANK_DIED : EXEC_ERROR_MISSING,
                "transport %s: %s ended with status %d%s: %s", mpirun->transport, mpirun->name,
                exit_status(mpirun), has_started ? "" : " before any rank began", words);
    return false;
}

/* After all ranks were done mpirun or one of them was killed: what they wrote may not be whole. */
static bool
check_late_end(const Mpirun *mpirun, GError **error)
{
    if (exit_status(mpirun) < 128)
        return true;
    g_autofree char *words = telling_words(mpirun->noise);
    g_set_error(error, EXEC_ERROR, EXEC_ERROR_RANK_DIED,
                "transport %s: %s ended with status %d after the last step: %s", mpirun->transport,
                mpirun->name, exit_status(mpirun), words);
    return false;
}

typedef struct {
    const ExecLaunchOptions *o;
    ExecWatcher *watcher;
    int64_t stop_ns; /* when the ranks were asked to stop; 0: not yet */
    int64_t shown_step, shown_ns;
} Watch;

/* Passes an interruption on, and lets it not last: false with EXEC_ERROR_INTERRUPTED. */
static bool
pass_on_stop(Watch *watch, GError **error)
{
    if (watch->o->stop == NULL || g_atomic_int_get(watch->o->stop) == 0)
        return true;
    if (watch->stop_ns == 0) {
        watch->stop_ns = exec_now_ns();
        exec_watcher_stop(watch->watcher);
    }
    if ((double)(exec_now_ns() - watch->stop_ns) * 1e-9 <= EXEC_STOP_S)
        return true;
    g_set_error(error, EXEC_ERROR, EXEC_ERROR_INTERRUPTED,
                "interrupted; the step did not end within %.1f s", EXEC_STOP_S);
    return false;
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

/* Until the ranks are done (true), or something is wrong. */
static bool
watch_ranks(Watch *watch, Mpirun *mpirun, int *status, GError **error)
{
    int64_t ended_ns = 0;

    for (;;) {
        read_output(mpirun);
        const ExecWatcherState state = exec_watcher_look(watch->watcher, error);
        if (state == EXEC_WATCHER_DONE)
            return true;
        if (state == EXEC_WATCHER_FAILED)
            return false;
        tell_progress(watch);
        if (!pass_on_stop(watch, error)) {
            exec_watcher_abort(watch->watcher, *error);
            return false;
        }
        if (!has_ended(mpirun))
            continue;
        if (ended_ns == 0)
            ended_ns = exec_now_ns();
        /* Its last words and those of the ranks may still be on their way. */
        if (mpirun->out < 0 && mpirun->err < 0 && exec_now_ns() - ended_ns > 300000000)
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
    if (!start(options, exec_watcher_where(watcher), &mpirun, error))
        return false;
    ExecKeeper keeper;
    GError *found = NULL;
    exec_keeper_start(&keeper, mpirun.pid);
    Watch watch = {.o = options, .watcher = watcher, .shown_ns = exec_now_ns()};
    bool ok = watch_ranks(&watch, &mpirun, status, &found);
    const bool interrupted = g_error_matches(found, EXEC_ERROR, EXEC_ERROR_INTERRUPTED);
    if (!ok)
        exec_watcher_clean_up(watcher, interrupted ? WRITE_S : CLEAN_UP_S);
    finish_mpirun(&mpirun, !ok);
    exec_keeper_end(&keeper);
    ok = ok && check_late_end(&mpirun, &found);
    if (ok)
        *status = exit_status(&mpirun);
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

/* --- joined --- */

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
    if (pid < 0) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_FAILED, "cannot start the watcher: %s",
                    g_strerror(errno));
        return false;
    }
    if (pid > 0)
        return true;
    *in_child = true;
    /* Signals for the job are the ranks' to obey; the watcher ends when they have. */
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    for (;;) {
        GError *reason = NULL;
        const ExecWatcherState state = exec_watcher_look(watcher, &reason);
        /* Rank 0 that ended before any rank could be told where the watcher is said why itself. */
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
