/*
 * Whole processes of `degas simulate`: one GPT-3 175B iteration over 96 ranks, 64 micro-batches and
 * 16 slices (196 608 ops), from exec() to exit, with the report and the timeline that people see;
 * --tiny: few ops, as a test.
 *
 *   wall_ms  from before the process is made until it has ended, median
 *   cpu_ms   what it took of a processor, median: what counts where others work beside it
 *
 * The first row is a process that does nothing, the second degas without work.
 */
#include <fcntl.h>
#include <glib.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#define N_ROUNDS 31
#define DEGAS "build/release/degas"

typedef struct {
    const char *name, *command;
    bool is_long; /* left out of --tiny */
} Case;

#define GPT3 DEGAS " simulate gpt3-175b --global-batch 64 --pp 96 --slices 16 "

static const Case cases[] = {
    {"nothing", "/bin/true", false},
    {"degas --version", DEGAS " --version", false},
    {"tiny", DEGAS " simulate gpt2-124m dgx-h100 --gpus 4 --global-batch 8 --pp 4", false},
    {"terapipe, H100", GPT3 "dgx-h100 --gpus 96 --schedule terapipe", true},
    {"seq1f1b, H100", GPT3 "dgx-h100 --gpus 96 --schedule seq1f1b", true},
    {"terapipe, A100 x 8, links shared", GPT3 "dgx-a100-80g --gpus 768 --tp 8 --schedule terapipe",
     true},
    {"seq1f1b, A100 x 8, links shared", GPT3 "dgx-a100-80g --gpus 768 --tp 8 --schedule seq1f1b",
     true},
    {"terapipe, V100 x 4, links shared", GPT3 "p3.16xlarge --gpus 384 --tp 4 --schedule terapipe",
     true},
    {"seq1f1b, V100 x 4, links shared", GPT3 "p3.16xlarge --gpus 384 --tp 4 --schedule seq1f1b",
     true},
};

extern char **environ;

static double
now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double
seconds(struct timeval t)
{
    return (double)t.tv_sec + (double)t.tv_usec * 1e-6;
}

static int
compare_doubles(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;

    return (a > b) - (a < b);
}

/* One process: its wall and processor time.  Exits where it fails. */
static void
measure(char **argv, double *wall_s, double *cpu_s)
{
    posix_spawn_file_actions_t actions;
    struct rusage usage;
    pid_t pid;
    int status = 0;

    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    const double t = now_s();
    if (posix_spawn(&pid, argv[0], &actions, NULL, argv, environ) != 0 ||
        wait4(pid, &status, 0, &usage) != pid || status != 0) {
        fprintf(stderr, "bench_process: %s does not run\n", argv[0]);
        exit(1);
    }
    *wall_s = now_s() - t;
    *cpu_s = seconds(usage.ru_utime) + seconds(usage.ru_stime);
    posix_spawn_file_actions_destroy(&actions);
}

int
main(int argc, char **argv)
{
    const bool is_tiny = argc > 1 && strcmp(argv[1], "--tiny") == 0;
    const int n = is_tiny ? 1 : N_ROUNDS;

    printf("# whole processes, medians of %d\nprocess\twall_ms\tcpu_ms\n", n);
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_auto(GStrv) words = g_strsplit(cases[i].command, " ", -1);
        double wall_s[N_ROUNDS], cpu_s[N_ROUNDS];

        if (is_tiny && cases[i].is_long)
            continue;
        for (int round = 0; round < n; round++)
            measure(words, &wall_s[round], &cpu_s[round]);
        qsort(wall_s, (size_t)n, sizeof *wall_s, compare_doubles);
        qsort(cpu_s, (size_t)n, sizeof *cpu_s, compare_doubles);
        printf("%s\t%.2f\t%.2f\n", cases[i].name, 1e3 * wall_s[n / 2], 1e3 * cpu_s[n / 2]);
        fflush(stdout);
    }
    return 0;
}
