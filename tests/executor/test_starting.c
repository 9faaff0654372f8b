/* Tests of executor/watch/starting.h: this program, started once more as a rank, is found, seen
 * stopped, killed and missed. */
#include "executor/watch/starting.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "executor/watch/launch.h"
#include "executor/watch/member.h"

#define WHERE "secret@127.0.0.1:1"
#define N_RANKS 3
/* What the child is told to be: it sleeps. */
#define SLEEPER "--sleeper"

/* Rank 1 of a run that is watched at @where. */
static pid_t
start_rank_1(const char *where)
{
    const char *const argv[] = {"/proc/self/exe", SLEEPER, NULL};
    g_auto(GStrv) environment = g_get_environ();
    g_autoptr(GError) error = NULL;
    GPid pid;

    environment = g_environ_setenv(environment, EXEC_WATCH_VARIABLE, where, TRUE);
    environment = g_environ_setenv(environment, EXEC_RANK_VARIABLE, "1", TRUE);
    environment = g_environ_setenv(environment, EXEC_RANKS_VARIABLE, "3", TRUE);
    g_spawn_async(NULL, (char **)argv, environment, G_SPAWN_DO_NOT_REAP_CHILD, NULL, NULL, &pid,
                  &error);
    g_assert_no_error(error);
    return pid;
}

static void
wait_until_stopped(pid_t pid)
{
    int status;

    g_assert_cmpint(kill(pid, SIGSTOP), ==, 0);
    g_assert_cmpint(waitpid(pid, &status, WUNTRACED), ==, pid);
    g_assert_true(WIFSTOPPED(status));
}

static void
test_a_rank_is_found_and_missed(void)
{
    const pid_t pid = start_rank_1(WHERE);
    ExecStarting ranks[N_RANKS] = {0};
    int status;

    exec_starting_look(ranks, N_RANKS, WHERE, 10);
    g_assert_cmpint(ranks[1].pid, ==, pid);
    g_assert_cmpint(ranks[0].pid, ==, 0);
    g_assert_cmpint(ranks[2].pid, ==, 0);
    g_assert_cmpint(exec_starting_gone(ranks, N_RANKS), ==, -1);
    g_assert_cmpint(exec_starting_stopped(ranks, N_RANKS, 0, 1000), ==, -1);

    wait_until_stopped(pid);
    exec_starting_look(ranks, N_RANKS, WHERE, 20);
    exec_starting_look(ranks, N_RANKS, WHERE, 30);
    g_assert_cmpint(exec_starting_stopped(ranks, N_RANKS, 10, 30), ==, -1);
    g_assert_cmpint(exec_starting_stopped(ranks, N_RANKS, 9, 30), ==, 1);
    kill(pid, SIGCONT);
    g_assert_cmpint(waitpid(pid, &status, WCONTINUED), ==, pid);
    exec_starting_look(ranks, N_RANKS, WHERE, 40);
    g_assert_cmpint(exec_starting_stopped(ranks, N_RANKS, 0, 1000), ==, -1);

    exec_starting_kill(ranks, N_RANKS, WHERE, 50);
    g_assert_cmpint(waitpid(pid, &status, 0), ==, pid);
    g_assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    exec_starting_look(ranks, N_RANKS, WHERE, 60);
    exec_starting_look(ranks, N_RANKS, WHERE, 70);
    g_assert_cmpint(exec_starting_gone(ranks, N_RANKS), ==, 1);
    g_assert_cmpint(ranks[1].gone_ns, ==, 60);
}

/* Of two that are gone the first is to blame: the launcher ends the others for it. */
static void
test_the_first_to_go_is_blamed(void)
{
    const ExecStarting ranks[] = {{.pid = 7, .gone_ns = 30},
                                  {.pid = 8},
                                  {.pid = 9, .gone_ns = 20},
                                  {.pid = 10, .gone_ns = 10, .arrived = true}};

    g_assert_cmpint(exec_starting_gone(ranks, 4), ==, 2);
}

/* The only one missing died before anybody looked; of two nobody knows, and one that was seen may
 * only be slow. */
static void
test_the_only_one_never_seen_is_blamed(void)
{
    const ExecStarting one[] = {{.arrived = true}, {0}, {.arrived = true}};
    const ExecStarting two[] = {{.arrived = true}, {0}, {0}};
    const ExecStarting slow[] = {{.arrived = true}, {.pid = 7}, {.arrived = true}};
    const ExecStarting none[] = {{.arrived = true}, {.arrived = true}, {.arrived = true}};

    g_assert_cmpint(exec_starting_unseen(one, 3), ==, 1);
    g_assert_cmpint(exec_starting_unseen(two, 3), ==, -1);
    g_assert_cmpint(exec_starting_unseen(slow, 3), ==, -1);
    g_assert_cmpint(exec_starting_unseen(none, 3), ==, -1);
}

/* Neither another run's rank nor one that has said hello. */
static void
test_others_are_left_alone(void)
{
    const pid_t pid = start_rank_1("another@127.0.0.1:1");
    ExecStarting ranks[N_RANKS] = {0};
    int status;

    exec_starting_kill(ranks, N_RANKS, WHERE, 10);
    g_assert_cmpint(ranks[1].pid, ==, 0);
    ranks[1].arrived = true;
    exec_starting_kill(ranks, N_RANKS, "another@127.0.0.1:1", 20);
    g_assert_cmpint(ranks[1].pid, ==, 0);
    g_assert_cmpint(waitpid(pid, &status, WNOHANG), ==, 0);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
}

int
main(int argc, char **argv)
{
    if (argc > 1 && g_str_equal(argv[1], SLEEPER)) {
        sleep(60);
        return 0;
    }
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/starting/a-rank-is-found-and-missed",
                    test_a_rank_is_found_and_missed);
    g_test_add_func("/executor/starting/the-first-to-go-is-blamed", test_the_first_to_go_is_blamed);
    g_test_add_func("/executor/starting/the-only-one-never-seen-is-blamed",
                    test_the_only_one_never_seen_is_blamed);
    g_test_add_func("/executor/starting/others-are-left-alone", test_others_are_left_alone);
    return g_test_run();
}
