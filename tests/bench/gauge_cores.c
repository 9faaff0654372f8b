/*
 * How fast this machine computes, over and over, beside whatever else it does: for scripts/loop.sh.
 * usage: gauge_cores > FILE     until SIGTERM or SIGINT
 *
 * A thread on each core multiplies two small matrices every INTERVAL_MS, with the ranks' own
 * kernels, and writes a line: the second since the epoch, the core, the seconds that a product took
 * of the core.  It waits most of the time (half a percent of each core is its own) and counts
 * only its own time, not what a rank computes meanwhile: what is left is the core's clock and what
 * its neighbours on the host leave of it.
 */
#include <glib.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "executor/blas.h"

#define INTERVAL_MS 25
/* 96 KiB of operands: in the second-level cache, after a product that does not count. */
#define SIZE 90
#define N_PRODUCTS 4
#define MAX_CORES 256

typedef struct {
    const ExecBlas *blas;
    int core;
} Gauge;

static volatile sig_atomic_t stopped;

static void
stop(int signal_number)
{
    (void)signal_number;
    stopped = 1;
}

static double
clock_s(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void
multiply(const ExecBlas *blas, const float *a, const float *b, float *c)
{
    blas->sgemm(EXEC_BLAS_ROW_MAJOR, EXEC_BLAS_NO_TRANS, EXEC_BLAS_NO_TRANS, SIZE, SIZE, SIZE, 1, a,
                SIZE, b, SIZE, 0, c, SIZE);
}

static void *
gauge(void *data)
{
    const Gauge *g = data;
    float *a = g_new(float, SIZE *SIZE), *b = g_new(float, SIZE *SIZE);
    float *c = g_new(float, SIZE *SIZE);
    const struct timespec pause = {0, INTERVAL_MS * 1000000};
    cpu_set_t cores;

    CPU_ZERO(&cores);
    CPU_SET((size_t)g->core, &cores);
    if (pthread_setaffinity_np(pthread_self(), sizeof cores, &cores) != 0) {
        fprintf(stderr, "gauge_cores: core %d cannot be had\n", g->core);
        exit(1);
    }
    for (int i = 0; i < SIZE * SIZE; i++)
        a[i] = b[i] = 1e-3f;
    while (!stopped) {
        multiply(g->blas, a, b, c);
        const double begin_s = clock_s(CLOCK_THREAD_CPUTIME_ID);
        for (int i = 0; i < N_PRODUCTS; i++)
            multiply(g->blas, a, b, c);
        const double end_s = clock_s(CLOCK_THREAD_CPUTIME_ID);
        printf("%.3f %d %.9f\n", clock_s(CLOCK_REALTIME), g->core, (end_s - begin_s) / N_PRODUCTS);
        nanosleep(&pause, NULL);
    }
    g_free(a);
    g_free(b);
    g_free(c);
    return NULL;
}

int
main(void)
{
    const struct sigaction action = {.sa_handler = stop};
    const int n = MIN((int)g_get_num_processors(), MAX_CORES);
    Gauge gauges[MAX_CORES];
    pthread_t threads[MAX_CORES];
    GError *error = NULL;
    const ExecBlas *blas = exec_blas_open(&error);

    if (blas == NULL) {
        fprintf(stderr, "gauge_cores: %s\n", error->message);
        return 1;
    }
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 0; i < n; i++) {
        gauges[i] = (Gauge){blas, i};
        if (pthread_create(&threads[i], NULL, gauge, &gauges[i]) != 0)
            return 1;
    }
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
