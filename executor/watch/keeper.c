#include "executor/watch/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Where the keeper has its two files; all others are closed. */
enum {
    LAUNCHER_FD = 0,
    CHILD_FD = 1
};

/* Until one of the files has something to say: true if @fd has. */
static bool
wait_for(int fd, int other_fd, int limit_ms)
{
    struct pollfd fds[] = {{.fd = fd, .events = POLLIN}, {.fd = other_fd, .events = POLLIN}};

    while (poll(fds, 2, limit_ms) < 0 && errno == EINTR)
        ;
    return fds[0].revents != 0;
}

/* In the keeper, a copy of a process that may have had threads: only what a signal
 * handler may call. */
static void
keep(pid_t child, const char *scratch)
{
    setsid(); /* Ctrl-C is the launcher's */
    if (wait_for(CHILD_FD, LAUNCHER_FD, -1))
        wait_for(LAUNCHER_FD, -1, -1); /* which ends this process, unless it is killed */
    else if (!wait_for(CHILD_FD, -1, EXEC_KEEPER_GRACE_S * 1000))
        kill(-child, SIGKILL);
    if (scratch != NULL)
        execl("/bin/rm", "rm", "-rf", "--", scratch, (char *)NULL);
    _exit(0);
}

void
exec_keeper_start(ExecKeeper *keeper, pid_t child, const char *scratch)
{
    int ends[2];
    const int child_fd = (int)syscall(SYS_pidfd_open, child, 0);

    *keeper = (ExecKeeper){.alive = -1};
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
            *keeper = (ExecKeeper){.pid = pid, .alive = ends[1]};
        else
            close(ends[1]);
    }
    close(child_fd);
}

void
exec_keeper_end(ExecKeeper *keeper)
{
    if (keeper->pid <= 0)
        return;
    kill(keeper->pid, SIGKILL);
    close(keeper->alive);
    while (waitpid(keeper->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    *keeper = (ExecKeeper){.alive = -1};
}
