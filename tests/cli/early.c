/* Preloaded by tests: a rank of Open MPI that fails before its first word or after its last, as
 * FAULT, FAULT_RANK and FAULT_TIME (a file: when it happened) say. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void
fail(const char *when, int signal, int seconds)
{
    const char *fault = getenv("FAULT"), *rank = getenv("OMPI_COMM_WORLD_RANK");

    if (fault == NULL || strcmp(fault, when) != 0 || rank == NULL ||
        strcmp(rank, getenv("FAULT_RANK")) != 0)
        return;
    sleep(seconds);
    close(open(getenv("FAULT_TIME"), O_CREAT | O_WRONLY, 0600));
    raise(signal);
}

__attribute__((constructor)) static void
begin(void)
{
    fail("stop", SIGSTOP, 0);
    fail("at_once", SIGKILL, 0);
    fail("kill", SIGKILL, 1); /* the watcher has seen it */
}

__attribute__((destructor)) static void
end(void)
{
    fail("end", SIGKILL, 0);
}
