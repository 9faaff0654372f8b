/*
 * tests/torture/faults.c - a library for LD_PRELOAD that lets chosen calls of degas fail.
 *
 * It counts the calls of the kinds that FAULT_CALL names, in the process that is called degas and in none
 * that it starts, and strikes at one of them:
 *
 *   FAULT_CALL   kinds of calls: open, read, write, fsync, rename, mmap, thread, socket, dlopen, malloc
 *                (of FAULT_LARGE bytes or more: GLib ends a program that gets no small piece); several are
 *                separated by commas
 *   FAULT_AT     the number of the call that fails, from 1; 0: none does
 *   FAULT_ERRNO  its errno; without it each kind has its usual one
 *   FAULT_SIGNAL instead of failing, the call sends this signal to the process, and then goes on
 *   FAULT_HIT    a file that is made when it strikes
 *   FAULT_SHORT  a number: reads and writes of files, pipes and sockets move a part of what they are asked
 *                to, and every third ends with EINTR before anything is moved; the number varies how much
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

typedef enum {
    CALL_OPEN,
    CALL_READ,
    CALL_WRITE,
    CALL_FSYNC,
    CALL_RENAME,
    CALL_MMAP,
    CALL_THREAD,
    CALL_SOCKET,
    CALL_DLOPEN,
    CALL_MALLOC,
    CALL_N,
} Call;

static const struct {
    const char *name;
    int code; /* the errno that it usually fails with */
} calls[CALL_N] = {
    [CALL_OPEN] = {"open", EMFILE},     [CALL_READ] = {"read", EIO},
    [CALL_WRITE] = {"write", ENOSPC},   [CALL_FSYNC] = {"fsync", EIO},
    [CALL_RENAME] = {"rename", EACCES}, [CALL_MMAP] = {"mmap", ENOMEM},
    [CALL_THREAD] = {"thread", EAGAIN}, [CALL_SOCKET] = {"socket", EMFILE},
    [CALL_DLOPEN] = {"dlopen", ENOENT}, [CALL_MALLOC] = {"malloc", ENOMEM},
};

static bool is_struck[CALL_N]; /* kinds that FAULT_CALL names */
static long strike_at, fault_errno, fault_signal, short_seed;
static size_t large_bytes = 32768;
static const char *hit_path;
static atomic_long n_calls, n_moves;
static bool ready;

static long
number(const char *name, long fallback)
{
    const char *text = getenv(name);

    return text == NULL ? fallback : strtol(text, NULL, 10);
}

__attribute__((constructor)) static void
read_environment(void)
{
    const char *kinds = getenv("FAULT_CALL");

    if (strcmp(program_invocation_short_name, "degas") != 0)
        return;
    for (int call = 0; kinds != NULL && call < CALL_N; call++) {
        const size_t length = strlen(calls[call].name);

        for (const char *at = kinds; (at = strstr(at, calls[call].name)) != NULL; at += length)
            is_struck[call] |=
                (at == kinds || at[-1] == ',') && (at[length] == ',' || at[length] == 0);
    }
    strike_at = number("FAULT_AT", 0);
    fault_errno = number("FAULT_ERRNO", 0);
    fault_signal = number("FAULT_SIGNAL", 0);
    short_seed = number("FAULT_SHORT", 0);
    large_bytes = (size_t)number("FAULT_LARGE", 32768);
    hit_path = getenv("FAULT_HIT");
    /* Processes that degas starts are not struck, whatever their names. */
    unsetenv("FAULT_CALL");
    unsetenv("FAULT_SHORT");
    ready = true;
}

/* Whether this call fails; then errno is set. */
static bool
strikes(Call call)
{
    if (!ready || !is_struck[call] || strike_at <= 0 ||
        atomic_fetch_add(&n_calls, 1) + 1 != strike_at)
        return false;
    if (hit_path != NULL) {
        const long fd =
            syscall(SYS_openat, AT_FDCWD, hit_path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

        if (fd >= 0)
            syscall(SYS_close, fd);
    }
    if (fault_signal != 0) {
        kill(getpid(), (int)fault_signal);
        return false;
    }
    errno = fault_errno != 0 ? (int)fault_errno : calls[call].code;
    return true;
}

/* How much of @n bytes is moved now; -1 with errno EINTR: nothing. */
static ssize_t
part(size_t n)
{
    if (!ready || short_seed == 0 || n <= 1)
        return (ssize_t)n;
    const long move = atomic_fetch_add(&n_moves, 1);
    if (move % 3 == 2) {
        errno = EINTR;
        return -1;
    }
    const size_t some = 1 + (size_t)((move * 7919 + short_seed * 104729) % 4093);
    return (ssize_t)(some < n ? some : n);
}

/* The function of that name that this one stands before. */
#define NEXT(name)                                                                                 \
    __extension__({                                                                                \
        __typeof__(&(name)) next;                                                                  \
        *(void **)&next = dlsym(RTLD_NEXT, #name);                                                 \
        next;                                                                                      \
    })

/* --- files --- */

int
open(const char *path, int flags, ...)
{
    va_list arguments;

    va_start(arguments, flags);
    const mode_t mode = va_arg(arguments, mode_t);
    va_end(arguments);
    return strikes(CALL_OPEN) ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...) __attribute__((alias("open")));

FILE *
fopen(const char *path, const char *mode)
{
    return strikes(CALL_OPEN) ? NULL : NEXT(fopen)(path, mode);
}

int
mkdir(const char *path, mode_t mode)
{
    return strikes(CALL_OPEN) ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

ssize_t
read(int fd, void *buffer, size_t n)
{
    const ssize_t some = strikes(CALL_READ) ? -1 : part(n);

    return some < 0 ? -1 : (ssize_t)syscall(SYS_read, fd, buffer, some);
}

ssize_t
pread(int fd, void *buffer, size_t n, off_t at)
{
    const ssize_t some = strikes(CALL_READ) ? -1 : part(n);

    return some < 0 ? -1 : (ssize_t)syscall(SYS_pread64, fd, buffer, some, at);
}

ssize_t
write(int fd, const void *buffer, size_t n)
{
    const ssize_t some = fd != STDERR_FILENO && strikes(CALL_WRITE) ? -1 : part(n);

    return some < 0 ? -1 : (ssize_t)syscall(SYS_write, fd, buffer, some);
}

ssize_t
pwrite(int fd, const void *buffer, size_t n, off_t at)
{
    const ssize_t some = strikes(CALL_WRITE) ? -1 : part(n);

    return some < 0 ? -1 : (ssize_t)syscall(SYS_pwrite64, fd, buffer, some, at);
}

ssize_t
recv(int fd, void *buffer, size_t n, int flags)
{
    const ssize_t some = strikes(CALL_READ) ? -1 : part(n);

    return some < 0 ? -1 : (ssize_t)syscall(SYS_recvfrom, fd, buffer, some, flags, NULL, NULL);
}

ssize_t
send(int fd, const void *buffer, size_t n, int flags)
{
    const ssize_t some = strikes(CALL_WRITE) ? -1 : part(n);

    return some < 0 ? -1 : (ssize_t)syscall(SYS_sendto, fd, buffer, some, flags, NULL, 0);
}

int
fsync(int fd)
{
    return strikes(CALL_FSYNC) ? -1 : (int)syscall(SYS_fsync, fd);
}

int
fdatasync(int fd)
{
    return strikes(CALL_FSYNC) ? -1 : (int)syscall(SYS_fdatasync, fd);
}

int
rename(const char *from, const char *to)
{
    return strikes(CALL_RENAME) ? -1 : NEXT(rename)(from, to);
}

/* --- the rest --- */

void *
mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    return strikes(CALL_MMAP) ? MAP_FAILED
                              : (void *)syscall(SYS_mmap, at, n, protection, flags, fd, offset);
}

int
pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
               void *argument)
{
    return strikes(CALL_THREAD) ? errno : NEXT(pthread_create)(thread, attributes, start, argument);
}

int
socket(int domain, int type, int protocol)
{
    return strikes(CALL_SOCKET) ? -1 : (int)syscall(SYS_socket, domain, type, protocol);
}

int
listen(int fd, int backlog)
{
    return strikes(CALL_SOCKET) ? -1 : (int)syscall(SYS_listen, fd, backlog);
}

/* A tail call: the library's search path is that of the object whose code dlopen() returns to. */
void *
dlopen(const char *path, int flags)
{
    return NEXT(dlopen)(strikes(CALL_DLOPEN) ? "/no/such/library.so" : path, flags);
}

/* --- memory: glibc's own names, as dlsym() itself allocates --- */

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t bytes);
extern void *__libc_realloc(void *old, size_t n);
extern void *__libc_memalign(size_t alignment, size_t n);

void *
malloc(size_t n)
{
    return n >= large_bytes && strikes(CALL_MALLOC) ? NULL : __libc_malloc(n);
}

void *
calloc(size_t n, size_t bytes)
{
    return bytes != 0 && n >= large_bytes / bytes && n * bytes >= large_bytes &&
                   strikes(CALL_MALLOC)
               ? NULL
               : __libc_calloc(n, bytes);
}

void *
realloc(void *old, size_t n)
{
    return n >= large_bytes && strikes(CALL_MALLOC) ? NULL : __libc_realloc(old, n);
}

void *
aligned_alloc(size_t alignment, size_t n)
{
    return n >= large_bytes && strikes(CALL_MALLOC) ? NULL : __libc_memalign(alignment, n);
}

int
posix_memalign(void **at, size_t alignment, size_t n)
{
    if (n >= large_bytes && strikes(CALL_MALLOC))
        return ENOMEM;
    *at = __libc_memalign(alignment, n);
    return *at == NULL ? ENOMEM : 0;
}
