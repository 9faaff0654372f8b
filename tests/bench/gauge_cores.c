/*
 * How fast this machine computes, over and over, beside whatever else it does: for scripts/loop.sh.
 * usage: gauge_cores > FILE     until SIGTERM or SIGINT
 *
 * A thread on each core multiplies two small matrices every INTERVAL_MS, with the ranks' own
 * kernels, and writes a line: the second since the epoch, the core, the seconds that a product took
 * of the core; and of the time since its last line the seconds that the core was idle, and those
 * that the host took away (/proc/stat; steps of 10 ms).  It waits most of the time (one percent
 * of each core is its own) and counts only its own time, not what a rank computes meanwhile: what
 * is left is the core's clock and what its neighbours on the host leave of it.
 *
 * A core that was idle has to wake up first and computes slower than the busy one that a rank has:
 * who compares steps leaves those lines out.
 */
#include <glib.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "executor/device/blas.h"

#define INTERVAL_MS 10
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

/* Of a core since the machine was started. */
typedef struct {
    double idle_s, stolen_s;
} Times;

static Times
times_of(int core)
{
    g_autofree char *name = g_strdup_printf("cpu%d ", core);
    g_autofree char *line = NULL;
    size_t size = 0;
    FILE *stat = fopen("/proc/stat", "re");
    Times times = {0};

    while (stat != NULL && getline(&line, &size, stat) > 0) {
        /* user nice system idle iowait irq softirq steal, in ticks */
        double ticks[8];
        if (g_str_has_prefix(line, name) &&
            sscanf(line + strlen(name), "%lf %lf %lf %lf %lf %lf %lf %lf", &ticks[0], &ticks[1],
                   &ticks[2], &ticks[3], &ticks[4], &ticks[5], &ticks[6], &ticks[7]) == 8) {
            const double tick_s = 1.0 / (double)sysconf(_SC_CLK_TCK);
            times = (Times){(ticks[3] + ticks[4]) * tick_s, ticks[7] * tick_s};
            break;
        }
    }
    if (stat != NULL)
        fclose(stat);
    return times;
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
    Times before = times_of(g->core);
    while (!stopped) {
        multiply(g->blas, a, b, c);
        const double begin_s = clock_s(CLOCK_THREAD_CPUTIME_ID);
        for (int i = 0; i < N_PRODUCTS; i++)
            multiply(g->blas, a, b, c);
        const double end_s = clock_s(CLOCK_THREAD_CPUTIME_ID);
        const Times now = times_of(g->core);
        printf("%.3f %d %.9f %.2f %.2f\n", clock_s(CLOCK_REALTIME), g->core,
               (end_s - begin_s) / N_PRODUCTS, now.idle_s - before.idle_s,
               now.stolen_s - before.stolen_s);
        before = now;
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
