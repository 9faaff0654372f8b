/*
 * Rates of the simulator in ops per second of one core; --tiny: small inputs, as a test.
 *
 * First, that time and memory are linear in ops: the schedule, and whole as below, of 1f1b on 96
 * ranks with ever more micro-batches, the least of a few rounds; the most memory of the process so
 * far.  Then medians of
 *
 *   floor     a bare pass over the dependency arrays: what memory alone allows
 *   first     times of a compiled schedule into memory that nobody has touched yet, as `generate`
 *             writes
 *   sweep     likewise, again: into the same memory
 *   +memory   the sweep, and peaks with their owners
 *   timeline  the sweep, and what every rank holds from each op's start and after its end
 *   trace     the sweep, all events and all memory events
 *   look      the sweep, and a look at links that could fill and do not
 *   p2p       the sweep, the look, and the event engine: a rank's messages, to and from both
 *             neighbours, share one link, which one of them can fill
 *   shared    likewise, with the collectives of the rank's ops on that link too: every op is a flow
 *             besides its message, and most wait for others
 *   compile   from schedule and workload to steps
 *   whole     sim_run() from schedule and workload to report with memory
 *   generate  the schedule itself
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "simulator/account.h"
#include "simulator/contend.h"
#include "simulator/events.h"
#include "simulator/simulate.h"

#define N_ROUNDS 7
/* Larger ones take the engine seconds per round. */
#define MAX_ENGINE_OPS 2000000

typedef struct {
    const char *family;
    ScheduleShape shape;
} Case;

static const Case cases[] = {
    {"1f1b", {96, 1, 1024, 1, 0, NULL}},      {"1f1b", {8, 1, 12500, 1, 0, NULL}},
    {"terapipe", {96, 1, 64, 16, 0, NULL}},   {"1f1b", {96, 1, 5208, 1, 0, NULL}},
    {"terapipe", {96, 1, 326, 16, 0, NULL}},  {"1f1b", {96, 1, 52083, 1, 0, NULL}},
    {"terapipe", {96, 1, 3255, 16, 0, NULL}},
};

static const Case tiny[] = {{"1f1b", {4, 1, 8, 1, 0, NULL}}, {"terapipe", {4, 1, 2, 5, 0, NULL}}};

enum {
    FLOOR,
    FIRST,
    SWEEP,
    MEMORY,
    TIMELINE,
    TRACE,
    LOOK,
    P2P,
    SHARED,
    COMPILE,
    WHOLE,
    GENERATE,
    N_COLUMNS
};

static const char *const columns[N_COLUMNS] = {"floor",    "first",   "sweep", "+memory",
                                               "timeline", "trace",   "look",  "p2p",
                                               "shared",   "compile", "whole", "generate"};

static int
compare_doubles(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;

    return (a > b) - (a < b);
}

static double
now_s(void)
{
    struct timespec t;

    /* Of this thread: what others do on a busy machine does not count. */
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The least that any sweep does: reads every producer in order, and the time it stands for. */
static int64_t
bare_pass(const SimProgram *program, const SimTimes *times)
{
    int64_t most = 0;

    for (int64_t i = 0; i < program->n_ops; i++) {
        const int64_t t = times->ready_ns[program->steps[i].producer];
        most = t > most ? t : most;
    }
    return most;
}

static Workload *
workload_of(const Schedule *schedule)
{
    static const int64_t times[SCHEDULE_OP_N] = {317, 641, 320, 321};
    Workload *workload = workload_new_plain(schedule, times, 411);

    for (int64_t i = 0; i < (int64_t)workload->n_stages * workload->n_slices; i++) {
        workload->ops[i].time_ns[SCHEDULE_OP_FORWARD] += i * 7 % 13;
        workload->ops[i].activation_bytes = 1000 + i;
        workload->ops[i].kv_bytes = 100;
        workload->ops[i].workspace_bytes[SCHEDULE_OP_BACKWARD] = 500;
        workload->ops[i].forward_message.sent_bytes = workload->ops[i].backward_message.sent_bytes =
            411;
    }
    return workload;
}

/* Collectives inside ops, for an eighth of their time. */
static void
give_collectives(Workload *workload)
{
    for (int64_t i = 0; i < (int64_t)workload->n_stages * workload->n_slices; i++) {
        workload->ops[i].traffic_bytes[SCHEDULE_OP_FORWARD][0] = 40;
        workload->ops[i].traffic_bytes[SCHEDULE_OP_BACKWARD][0] = 80;
    }
}

/* Every rank has one link, which carries @bytes_per_s; a message takes 1e9 bytes/s of it. */
static void
give_links(Workload *workload, double bytes_per_s)
{
    const int32_t p = workload->n_ranks;
    WorkloadLinks *links = g_new0(WorkloadLinks, 1);

    links->n_levels = 1;
    links->n_links = p;
    links->senders_fraction = 1;
    links->bytes_per_s = g_new(double, (size_t)p);
    links->begin = g_new(int64_t, (size_t)p + 1);
    links->crossings = g_new0(WorkloadCrossing, (size_t)p);
    for (int32_t r = 0; r < p; r++) {
        links->bytes_per_s[r] = bytes_per_s;
        links->begin[r] = r;
        links->crossings[r].link = r;
    }
    links->begin[p] = p;
    workload->links = links;
}

/* What the simulator spends on times that must be followed event by event: the sweep, the look at
 * the links, the engine. */
static double
contend_s(const Schedule *schedule, Workload *workload, double bytes_per_s)
{
    g_auto(SimTimes) times = {0};
    g_auto(SimNetwork) network = {0};

    if (schedule_n_ops(schedule) > MAX_ENGINE_OPS)
        return NAN;
    give_links(workload, bytes_per_s);
    g_autoptr(SimProgram) program = sim_program_new(schedule, workload, NULL);
    if (program == NULL || !sim_times_init(&times, program, NULL))
        exit(1);
    const double t = now_s();
    sim_program_sweep(program, &times);
    if (!sim_network_init(&network, program, NULL))
        exit(1);
    const int64_t known_ns =
        times.meets ? 0 : sim_network_suffices_until(&network, program, &times);
    if (known_ns < INT64_MAX && !sim_program_contend(program, &network, known_ns, &times, NULL))
        exit(1);
    const double s = now_s() - t;
    g_clear_pointer(&workload->links, workload_links_free);
    return s;
}

/* One round of everything: seconds into @s. */
static void
measure(const Case *c, double s[N_COLUMNS], int64_t *n_ops, int64_t *sink)
{
    g_auto(SimTimes) times = {0};
    g_auto(SimResult) result = {0};
    double t = now_s();
    g_autoptr(Schedule) schedule = schedule_new(c->family, &c->shape, NULL);
    s[GENERATE] = now_s() - t;
    g_autoptr(Workload) workload = workload_of(schedule);
    g_autofree SimPeak *peaks = g_new(SimPeak, (size_t)schedule->n_ranks);
    g_autofree SimLevel *levels = g_new0(SimLevel, (size_t)schedule_n_ops(schedule));
    t = now_s();
    g_autoptr(SimProgram) program = sim_program_new(schedule, workload, NULL);
    s[COMPILE] = now_s() - t;
    t = now_s();
    if (!sim_times_init(&times, program, NULL))
        exit(1);
    sim_program_sweep(program, &times);
    s[FIRST] = now_s() - t;
    t = now_s();
    sim_program_sweep(program, &times);
    s[SWEEP] = now_s() - t;
    t = now_s();
    *sink += bare_pass(program, &times);
    s[FLOOR] = now_s() - t;
    t = now_s();
    sim_program_sweep(program, &times);
    if (!sim_memory_peaks(program, peaks, NULL))
        exit(1);
    s[MEMORY] = now_s() - t;
    t = now_s();
    sim_program_sweep(program, &times);
    sim_memory_levels(program, levels);
    s[TIMELINE] = now_s() - t;
    *sink += levels[program->n_ops - 1].begin_bytes;
    t = now_s();
    sim_program_sweep(program, &times);
    g_autoptr(Trace) trace = sim_events(program, &times, true, NULL);
    s[TRACE] = now_s() - t;
    *n_ops = program->n_ops;
    *sink += trace->makespan_ns + peaks[0].bytes;
    g_clear_pointer(&trace, trace_free);
    g_clear_pointer(&program, sim_program_free);
    s[P2P] = contend_s(schedule, workload, 1e9);
    give_collectives(workload);
    s[LOOK] = contend_s(schedule, workload, 2.2e9);
    s[SHARED] = contend_s(schedule, workload, 1e9);
    t = now_s();
    if (!sim_run(schedule, workload, &(SimOptions){.want_memory = true}, &result, NULL))
        exit(1);
    s[WHOLE] = now_s() - t;
}

static void
measure_size(int64_t n_micro_batches, int n_rounds)
{
    const ScheduleShape shape = {96, 1, n_micro_batches, 1, 0, NULL};
    double generate_s = INFINITY, whole_s = INFINITY;
    int64_t n_ops = 0;
    struct rusage usage;

    for (int round = 0; round < n_rounds; round++) {
        g_auto(SimResult) result = {0};
        double t = now_s();
        g_autoptr(Schedule) schedule = schedule_new("1f1b", &shape, NULL);
        generate_s = fmin(generate_s, now_s() - t);
        g_autoptr(Workload) workload = workload_of(schedule);
        t = now_s();
        if (!sim_run(schedule, workload, &(SimOptions){.want_memory = true}, &result, NULL))
            exit(1);
        whole_s = fmin(whole_s, now_s() - t);
        n_ops = schedule_n_ops(schedule);
    }
    getrusage(RUSAGE_SELF, &usage);
    printf("%" G_GINT64_FORMAT "\t%.3f\t%.3f\t%.1f\t%ld\n", n_ops, 1e3 * generate_s, 1e3 * whole_s,
           1e9 * whole_s / (double)n_ops, usage.ru_maxrss / 1024);
    fflush(stdout);
}

static void
measure_sizes(bool is_tiny)
{
    static const struct {
        int64_t n_micro_batches;
        int n_rounds;
    } sizes[] = {{52, 31}, {521, 15}, {5208, 5}, {52083, 3}, {520833, 1}};

    printf("# linear in ops\nops\tgenerate_ms\twhole_ms\tns_per_op\tpeak_mib\n");
    for (size_t i = 0; i < (is_tiny ? 1 : G_N_ELEMENTS(sizes)); i++)
        measure_size(sizes[i].n_micro_batches, sizes[i].n_rounds);
}

int
main(int argc, char **argv)
{
    const bool is_tiny = argc > 1 && strcmp(argv[1], "--tiny") == 0;
    const Case *list = is_tiny ? tiny : cases;
    const size_t n = is_tiny ? G_N_ELEMENTS(tiny) : G_N_ELEMENTS(cases);
    int64_t sink = 0;

    measure_sizes(is_tiny); /* first: only then is the most memory so far its own */
    printf("\n# simulator, million ops/s\nschedule\tops");
    for (int k = 0; k < N_COLUMNS; k++)
        printf("\t%s", columns[k]);
    printf("\n");
    for (size_t i = 0; i < n; i++) {
        double s[N_COLUMNS][N_ROUNDS];
        int64_t n_ops = 0;
        for (int round = 0; round < N_ROUNDS; round++) {
            double one[N_COLUMNS];
            measure(&list[i], one, &n_ops, &sink);
            for (int k = 0; k < N_COLUMNS; k++)
                s[k][round] = one[k];
        }
        printf("%s p%" G_GINT64_FORMAT "\t%" G_GINT64_FORMAT, list[i].family, list[i].shape.n_ranks,
               n_ops);
        for (int k = 0; k < N_COLUMNS; k++) {
            qsort(s[k], N_ROUNDS, sizeof s[k][0], compare_doubles);
            if (isnan(s[k][N_ROUNDS / 2])) {
                printf("\t-");
                continue;
            }
            printf("\t%.1f", 1e-6 * (double)n_ops / MAX(s[k][N_ROUNDS / 2], 1e-9));
        }
        printf("\n");
        fflush(stdout);
    }
    return sink == 42; /* the sink keeps the passes from being optimised away */
}
