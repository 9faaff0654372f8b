/*
 * GLib's mutexes and conditions as those of POSIX, for builds with SAN=thread.
 *
 * GLib makes its own of futexes, in a library that the thread sanitizer does not see into: every
 * access that one of them guards would be reported as a race.  Functions of the program go before
 * those of a library, so these are what the program's own locks are; GLib's inner ones stay its
 * own. For the same reason G_SLICE=always-malloc must be in the environment (run_tests.sh): slices
 * go from thread to thread under an inner lock.  So does what a queue or a pool of threads hands on, and
 * what is made once: the sanitizer is told.
 */
#include <dlfcn.h>
#include <glib.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

/* What GLib does inside, under locks of its own, is not watched.  Nor is the number of an error domain, which
 * G_DEFINE_QUARK() keeps in a variable q without a lock: whoever comes first or second stores the same.  Open MPI's
 * transport of TCP takes two locks in either order while one thread opens it, and its launcher's threads share what
 * no lock of the program guards. */
const char *__tsan_default_suppressions(void);

const char *
__tsan_default_suppressions(void)
{
    return "called_from_lib:libglib-2.0.so\n"
           "deadlock:mca_btl_tcp.so\n"
           "race:libpmix.so\n"
           "race:libopen-pal.so\n"
           "race:_quark\n"
           "race:^q.\n";
}

/* A zeroed GMutex or GCond is ready: what it stands for is made at its first use, and of two
 * threads that do so at once one loses. */
static void *
made_once(gpointer *place, void *(*make)(void))
{
    void *found = __atomic_load_n(place, __ATOMIC_ACQUIRE);

    if (found != NULL)
        return found;
    void *own = make();
    if (__atomic_compare_exchange_n(place, &found, own, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return own;
    free(own);
    return found;
}

static void *
make_mutex(void)
{
    pthread_mutex_t *mutex = g_malloc0(sizeof *mutex);

    pthread_mutex_init(mutex, NULL);
    return mutex;
}

static void *
make_cond(void)
{
    pthread_cond_t *cond = g_malloc0(sizeof *cond);
    pthread_condattr_t attributes;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC); /* of g_get_monotonic_time() */
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
    return cond;
}

static pthread_mutex_t *
mutex_of(GMutex *mutex)
{
    return made_once(&mutex->p, make_mutex);
}

static pthread_cond_t *
cond_of(GCond *cond)
{
    return made_once(&cond->p, make_cond);
}

void
g_mutex_init(GMutex *mutex)
{
    mutex->p = NULL;
}

void
g_mutex_clear(GMutex *mutex)
{
    if (mutex->p != NULL)
        pthread_mutex_destroy(mutex->p);
    free(mutex->p);
}

void
g_mutex_lock(GMutex *mutex)
{
    pthread_mutex_lock(mutex_of(mutex));
}

gboolean
g_mutex_trylock(GMutex *mutex)
{
    return pthread_mutex_trylock(mutex_of(mutex)) == 0;
}

void
g_mutex_unlock(GMutex *mutex)
{
    pthread_mutex_unlock(mutex_of(mutex));
}

void
g_cond_init(GCond *cond)
{
    cond->p = NULL;
}

void
g_cond_clear(GCond *cond)
{
    if (cond->p != NULL)
        pthread_cond_destroy(cond->p);
    free(cond->p);
}

void
g_cond_wait(GCond *cond, GMutex *mutex)
{
    pthread_cond_wait(cond_of(cond), mutex_of(mutex));
}

gboolean
g_cond_wait_until(GCond *cond, GMutex *mutex, gint64 end_time)
{
    const struct timespec end = {
        .tv_sec = end_time / G_USEC_PER_SEC,
        .tv_nsec = end_time % G_USEC_PER_SEC * 1000,
    };

    return pthread_cond_timedwait(cond_of(cond), mutex_of(mutex), &end) == 0;
}

void
g_cond_signal(GCond *cond)
{
    pthread_cond_signal(cond_of(cond));
}

void
g_cond_broadcast(GCond *cond)
{
    pthread_cond_broadcast(cond_of(cond));
}

/* --- what is made once, queues and pools of threads --- */

/* Of the sanitizer: what is done before a release of @address happens before what follows an acquire. */
void __tsan_acquire(void *address);
void __tsan_release(void *address);

/* What is made once: GLib's macro reads @location by an atomic of the program, before it calls these. */
gboolean(g_once_init_enter)(volatile void *location)
{
    gboolean (*enter)(volatile void *);

    *(void **)&enter = dlsym(RTLD_NEXT, "g_once_init_enter");
    const gboolean is_first = enter(location);
    if (!is_first) /* it waited for the one who made it */
        __tsan_acquire((void *)location);
    return is_first;
}

void(g_once_init_leave)(volatile void *location, gsize result)
{
    void (*leave)(volatile void *, gsize);

    *(void **)&leave = dlsym(RTLD_NEXT, "g_once_init_leave");
    __tsan_release((void *)location);
    leave(location, result);
}

void
g_async_queue_push(GAsyncQueue *queue, gpointer data)
{
    void (*push)(GAsyncQueue *, gpointer);

    *(void **)&push = dlsym(RTLD_NEXT, "g_async_queue_push");
    __tsan_release(queue);
    push(queue, data);
}

gpointer
g_async_queue_timeout_pop(GAsyncQueue *queue, guint64 timeout_us)
{
    gpointer (*pop)(GAsyncQueue *, guint64);

    *(void **)&pop = dlsym(RTLD_NEXT, "g_async_queue_timeout_pop");
    gpointer data = pop(queue, timeout_us);
    if (data != NULL)
        __tsan_acquire(queue);
    return data;
}

/* What a pool is given; threads are used again, in other pools too. */
static char handed_on;

/* What a pool calls. */
typedef struct {
    GFunc function;
    gpointer user_data;
} Called;

static void
call(gpointer data, gpointer user_data)
{
    const Called *called = user_data;

    __tsan_acquire(&handed_on);
    called->function(data, called->user_data);
}

/* Its Called is never given back, as pools that are freed may still have threads that end. */
GThreadPool *
g_thread_pool_new(GFunc func, gpointer user_data, gint max_threads, gboolean exclusive,
                  GError **error)
{
    GThreadPool *(*make)(GFunc, gpointer, gint, gboolean, GError **);
    Called *called = g_new(Called, 1);

    *called = (Called){func, user_data};
    *(void **)&make = dlsym(RTLD_NEXT, "g_thread_pool_new");
    return make(call, called, max_threads, exclusive, error);
}

gboolean
g_thread_pool_push(GThreadPool *pool, gpointer data, GError **error)
{
    gboolean (*push)(GThreadPool *, gpointer, GError **);

    *(void **)&push = dlsym(RTLD_NEXT, "g_thread_pool_push");
    __tsan_release(&handed_on);
    return push(pool, data, error);
}
