/* Tests of executor/watch/watcher.h with ranks that are connections of this process: those that do not
 * come are counted. */
#include "executor/watch/watcher.h"

#include "executor/watch/member.h"
#include "executor/transport/transport.h"

#define N_RANKS 8

/* Ranks 0 and 5 come and keep talking; of the others nothing is ever seen. */
static void
test_those_that_do_not_come_are_named(void)
{
    const ExecWatcherOptions options = {.n_ranks = N_RANKS, .timeout_s = 0.5};
    const int32_t there[] = {0, 5};
    g_autoptr(GError) error = NULL;
    g_autoptr(ExecWatcher) watcher = exec_watcher_new(&options, &error);
    ExecMember *members[G_N_ELEMENTS(there)];
    ExecWatcherState state = EXEC_WATCHER_GOING;

    g_assert_no_error(error);
    for (size_t i = 0; i < G_N_ELEMENTS(there); i++) {
        members[i] = exec_member_connect(exec_watcher_where(watcher), there[i], &error);
        g_assert_no_error(error);
    }
    const int64_t begin_us = g_get_monotonic_time();
    while (state == EXEC_WATCHER_GOING) {
        for (size_t i = 0; i < G_N_ELEMENTS(there); i++) {
            ExecWatchRecord record = {.kind = EXEC_WATCH_PULSE, .waiting_for = EXEC_NOT_WAITING};
            exec_member_tell(members[i], &record);
        }
        state = exec_watcher_look(watcher, &error);
        g_usleep(20000);
    }
    /* However short the timeout: a machine may be busy with starting them. */
    g_assert_cmpint(g_get_monotonic_time() - begin_us, >=, 3 * G_USEC_PER_SEC);
    g_assert_cmpint(state, ==, EXEC_WATCHER_FAILED);
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_RANK_HUNG);
    g_assert_true(g_str_has_prefix(error->message, "ranks 1-4, 6, 7 have not started within "));
    g_assert_true(g_str_has_suffix(error->message, " s of the first (2 of 8 have)"));
    for (size_t i = 0; i < G_N_ELEMENTS(there); i++)
        exec_member_free(members[i]);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/watcher/those-that-do-not-come", test_those_that_do_not_come_are_named);
    return g_test_run();
}
