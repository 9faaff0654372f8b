/* Preloaded by tests/long/fire.sh: a rank that goes wrong, or its wire, in the process whose rank of
 * Open MPI is FIRE_RANK (without MPI: in the process itself) and which is called degas.
 *
 *   FIRE      kill, stop, full (files may not grow any more), clock (the time of day is a day later),
 *             at the FIRE_AT-th moment: a message of some bytes sent by MPI, or a write to a file where there is no MPI;
 *             drop, delay, corrupt: what is done to that message
 *   FIRE_TIME a file that is made when it happens; it names the folder of Open MPI's files, if there is one */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#ifdef WITH_MPI
#include <mpi.h>
#endif

static atomic_long n_moments;
static atomic_bool is_later;

/* Whether the fault is @fault. */
static bool
is(const char *fault)
{
    return strcmp(getenv("FIRE"), fault) == 0;
}

/* Whether it happens now; what concerns the whole process is done here. */
static bool
strikes(void)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    const char *folder = getenv("OMPI_MCA_orte_tmpdir_base");
    const struct rlimit nothing = {.rlim_cur = 0, .rlim_max = 0};

    if (getenv("FIRE") == NULL || strcmp(program_invocation_short_name, "degas") != 0 ||
        (rank != NULL && strcmp(rank, getenv("FIRE_RANK")) != 0) ||
        atomic_fetch_add(&n_moments, 1) + 1 != atol(getenv("FIRE_AT")))
        return false;
    const int fd = open(getenv("FIRE_TIME"), O_CREAT | O_WRONLY, 0600);
    if (folder != NULL)
        syscall(SYS_write, fd, folder, strlen(folder));
    close(fd);
    if (is("kill"))
        raise(SIGKILL);
    if (is("stop"))
        raise(SIGSTOP);
    if (is("full")) {
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &nothing);
    }
    atomic_store(&is_later, is("clock"));
    return true;
}

int
clock_gettime(clockid_t clock, struct timespec *now)
{
    const int status = (int)syscall(SYS_clock_gettime, clock, now);

    if (clock == CLOCK_REALTIME && atomic_load(&is_later))
        now->tv_sec += 86400;
    return status;
}

#ifdef WITH_MPI
int
MPI_Isend(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
          MPI_Request *request)
{
    static char damaged[1 << 20];
    const struct timespec pause = {.tv_nsec = 300000000};

    if (n == 0 || !strikes())
        return PMPI_Isend(data, n, type, to, tag, comm, request);
    if (is("drop")) {
        *request = MPI_REQUEST_NULL;
        return MPI_SUCCESS;
    }
    if (is("delay"))
        nanosleep(&pause, NULL);
    if (!is("corrupt") || n > (int)sizeof damaged)
        return PMPI_Isend(data, n, type, to, tag, comm, request);
    memcpy(damaged, data, (size_t)n);
    damaged[(unsigned)(tag * 31 + n) % (unsigned)n] ^= (char)(1 << n % 8);
    return PMPI_Isend(damaged, n, type, to, tag, comm, request);
}
#else
ssize_t
pwrite(int fd, const void *data, size_t n, off_t at)
{
    strikes();
    return (ssize_t)syscall(SYS_pwrite64, fd, data, n, at);
}

ssize_t
write(int fd, const void *data, size_t n)
{
    strikes();
    return (ssize_t)syscall(SYS_write, fd, data, n);
}
#endif
