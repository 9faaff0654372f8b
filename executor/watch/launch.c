#include "executor/watch/launch.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "executor/watch/keeper.h"
#include "executor/watch/mpirun.h"
#include "executor/device/clock.h"
#include "executor/watch/watcher.h"

/* Ranks that were told to end, before they are killed. */
#define CLEAN_UP_S 1.0
/* Rank 0 that was interrupted, to write what is done. */
#define WRITE_S 2.5

/* --- how it went --- */

/* mpirun has ended though the watcher knows of no end of the run. */
static bool
explain_early_end(const ExecMpirun *mpirun, bool has_started, int *status, GError **error)
{
    g_autofree char *words = exec_mpirun_words(mpirun);

    *status = exec_mpirun_status(mpirun);
    if (mpirun->notes->len > 0) { /* a rank has said why, and its status says what kind */
        g_set_error_literal(error, EXEC_ERROR, EXEC_ERROR_FAILED,
                            g_ptr_array_index(mpirun->notes, 0));
        return false;
    }
    *status = 0;
    g_set_error(error, EXEC_ERROR, has_started ? EXEC_ERROR_RANK_DIED : EXEC_ERROR_MISSING,
                "transport %s: %s ended with status %d%s: %s", mpirun->transport, mpirun->name,
                exec_mpirun_status(mpirun), has_started ? "" : " before any rank began", words);
    return false;
}

/* After all ranks were done mpirun or one of them was killed: what they wrote may not be whole. */
static bool
check_late_end(const ExecMpirun *mpirun, GError **error)
{
    if (exec_mpirun_status(mpirun) < 128)
        return true;
    g_autofree char *words = exec_mpirun_words(mpirun);
    g_set_error(error, EXEC_ERROR, EXEC_ERROR_RANK_DIED,
                "transport %s: %s ended with status %d after the last step: %s", mpirun->transport,
                mpirun->name, exec_mpirun_status(mpirun), words);
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

/* Ranks that mpirun has started compute without it, but neither begin nor end: all would wait, and
 * one of them look guilty. */
static bool
judge_stopped(const Watch *watch, const ExecMpirun *mpirun, GError **error)
{
    const int64_t stopped = mpirun->stopped_ns == 0 ? 0 : exec_now_ns() - mpirun->stopped_ns;

    if (stopped <= exec_watcher_silence_ns(watch->watcher))
        return true;
    g_set_error(error, EXEC_ERROR, EXEC_ERROR_RANK_HUNG,
                "transport %s: %s (process %d) is stopped, for %.1f s", mpirun->transport,
                mpirun->name, (int)mpirun->pid, (double)stopped * 1e-9);
    return false;
}

/* Until the ranks are done (true), or something is wrong. */
static bool
watch_ranks(Watch *watch, ExecMpirun *mpirun, int *status, GError **error)
{
    int64_t ended_ns = 0;

    for (;;) {
        exec_mpirun_read(mpirun);
        const ExecWatcherState state = exec_watcher_look(watch->watcher, error);
        if (state == EXEC_WATCHER_DONE)
            return true;
        if (state == EXEC_WATCHER_FAILED) {
            /* Ranks end with an mpirun that is killed: the first of them is not to blame. */
            if (g_error_matches(*error, EXEC_ERROR, EXEC_ERROR_RANK_DIED) &&
                exec_mpirun_has_ended(mpirun) && exec_mpirun_was_killed(mpirun)) {
                g_clear_error(error);
                return explain_early_end(mpirun, true, status, error);
            }
            return false;
        }
        tell_progress(watch);
        if (!pass_on_stop(watch, error)) {
            exec_watcher_abort(watch->watcher, *error);
            return false;
        }
        if (!exec_mpirun_has_ended(mpirun)) {
            if (judge_stopped(watch, mpirun, error))
                continue;
            exec_watcher_abort(watch->watcher, *error);
            return false;
        }
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
    g_auto(ExecMpirun) mpirun;
    exec_mpirun_init(&mpirun, options, output);
    if (!exec_mpirun_start(&mpirun, options, exec_watcher_where(watcher), error))
        return false;
    ExecKeeper keeper;
    GError *found = NULL;
    exec_keeper_start(&keeper, mpirun.pid, mpirun.scratch);
    exec_watcher_set_starter(watcher, mpirun.pid);
    Watch watch = {.o = options, .watcher = watcher, .shown_ns = exec_now_ns()};
    bool ok = watch_ranks(&watch, &mpirun, status, &found);
    const bool interrupted = g_error_matches(found, EXEC_ERROR, EXEC_ERROR_INTERRUPTED);
    if (!ok)
        exec_watcher_clean_up(watcher, interrupted ? WRITE_S : CLEAN_UP_S);
    exec_mpirun_finish(&mpirun, !ok);
    exec_keeper_end(&keeper);
    ok = ok && check_late_end(&mpirun, &found);
    if (ok)
        *status = exec_mpirun_status(&mpirun);
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
        g_usleep(EXEC_MPIRUN_LOOK_MS * 1000);
    }
}
