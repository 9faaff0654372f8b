/*
 * Times of plan_search() on whole jobs with one and two threads; --tiny: one small job, as a test.
 */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "planner/search.h"
#include "simulator/simulate.h"

typedef struct {
    const char *model, *cluster;
    int64_t n_devices, global_batch, seq_len;
} Job;

static const Job jobs[] = {
    {"llama3-8b", "dgx-h100", 8, 128, 8192},         {"gpt3-175b", "dgx-a100-80g", 64, 64, 2048},
    {"gpt3-175b", "dgx-a100-80g", 1024, 1536, 2048}, {"deepseek-v3", "dgx-h100", 2048, 4096, 4096},
    {"llama3-405b", "dgx-h100", 16384, 2048, 8192},
};

static const Job tiny[] = {{"gpt2-124m", "dgx-a100-80g", 2, 4, 256}};

static bool
simulate(const Plan *plan, const Workload *workload, int64_t limit_ns, Report **report,
         void *user_data, GError **error)
{
    const SimOptions options = {.want_memory = true};
    g_auto(SimResult) result = {0};
    g_autoptr(Schedule) schedule = plan_build_schedule(plan, NULL, error);

    if (schedule == NULL || !sim_run(schedule, workload, &options, &result, error))
        return false;
    *report = g_steal_pointer(&result.report);
    return true;
}

static bool
run(const Job *job, int64_t threads)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(ModelArch) arch = model_arch_load(job->model, NULL, &error);
    g_autoptr(Profile) profile = arch == NULL ? NULL : profile_load(job->cluster, &error);
    struct rusage usage;

    if (profile == NULL) {
        fprintf(stderr, "%s: %s\n", job->model, error->message);
        return false;
    }
    ModelCluster *cluster = model_cluster_resized(profile->cluster, job->n_devices);
    model_cluster_free(profile->cluster);
    profile->cluster = cluster;
    const PlanRequest request = {
        .arch = arch,
        .profile = profile,
        .global_batch = job->global_batch,
        .seq_len = job->seq_len,
        .dtype = DTYPE_BF16,
        .slices_mode = PLAN_SLICES_AUTO,
        .recompute = PLAN_AUTO,
        .zero_stage = PLAN_AUTO,
        .sequence_parallel = PLAN_AUTO,
        .prefetch_layers = PLAN_PREFETCH_AUTO,
        .conventions = plan_conventions(PLAN_FRAMEWORK_DEGAS),
        .threads = threads,
    };
    const int64_t start_us = g_get_monotonic_time();
    g_autoptr(Plan) plan = plan_search(&request, simulate, NULL, &error);
    const double seconds = (double)(g_get_monotonic_time() - start_us) * 1e-6;
    if (plan == NULL) {
        fprintf(stderr, "%s: %s\n", job->model, error->message);
        return false;
    }
    getrusage(RUSAGE_SELF, &usage);
    printf("%s\t%" G_GINT64_FORMAT "\t%" G_GINT64_FORMAT "\t%.3f\t%" G_GINT64_FORMAT
           "\t%" G_GINT64_FORMAT "\t%.0f\t%ld\t%.6f\n",
           job->model, job->n_devices, threads, seconds, plan->search.considered,
           plan->search.simulated, (double)plan->search.considered / seconds, usage.ru_maxrss,
           (double)plan->predicted->iteration_ns * 1e-9);
    return true;
}

int
main(int argc, char **argv)
{
    const bool is_tiny = argc > 1 && strcmp(argv[1], "--tiny") == 0;
    const Job *list = is_tiny ? tiny : jobs;
    const size_t n = is_tiny ? G_N_ELEMENTS(tiny) : G_N_ELEMENTS(jobs);

    printf("model\tdevices\tthreads\tsearch_s\tconsidered\tsimulated\tconsidered_per_s\t"
           "peak_kib\titeration_s\n");
    for (size_t i = 0; i < n; i++)
        for (int64_t threads = 1; threads <= 2; threads++)
            if (!run(&list[i], threads))
                return 1;
    return 0;
}
