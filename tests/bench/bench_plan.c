/*
 * Times, memory and certificates of plan_search() on whole jobs with everything open, each in a
 * process of its own, with one and two threads; --tiny: one small job, as a test; a number: that job
 * of the list alone.
 */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "planner/search.h"
#include "simulator/simulate.h"

typedef struct {
    const char *model, *cluster;
    int64_t n_devices, global_batch, seq_len;
    Dtype dtype;
    bool is_mixed; /* half of the devices lie in slower nodes */
} Job;

static const Job jobs[] = {
    {"llama3-8b", "dgx-h100", 8, 128, 8192, DTYPE_BF16, false},
    {"llama3-70b", "dgx-h100", 64, 512, 8192, DTYPE_BF16, false},
    {"llama3-70b", "dgx-h100", 512, 512, 8192, DTYPE_BF16, false},
    {"gpt3-175b", "dgx-a100-80g", 1024, 1536, 2048, DTYPE_BF16, false},
    {"gpt3-13b", "dgx-a100-40g", 64, 256, 2048, DTYPE_BF16, false},
    {"mixtral-8x7b", "dgx-h100", 128, 512, 8192, DTYPE_BF16, false},
    {"deepseek-v3", "dgx-h100", 2048, 15360, 4096, DTYPE_BF16, false},
    {"llama3-405b", "dgx-h100", 16384, 2048, 8192, DTYPE_BF16, false},
    {"gpt3-175b", "p3.16xlarge", 384, 2, 2048, DTYPE_FP16, false},
    {"llama3-8b", "dgx-h100", 64, 8, 131072, DTYPE_BF16, false},
    /* Experts, long contexts, few sequences, two kinds of devices. */
    {"mixtral-8x7b", "dgx-h100", 32, 64, 32768, DTYPE_BF16, false},
    {"deepseek-v2", "dgx-a100-80g", 256, 1024, 4096, DTYPE_BF16, false},
    {"llama3-70b", "dgx-h100", 64, 8, 131072, DTYPE_BF16, false},
    {"llama3-405b", "dgx-h100", 1024, 16, 131072, DTYPE_BF16, false},
    {"gpt3-175b", "p3.16xlarge", 384, 32, 2048, DTYPE_FP16, false},
    {"gpt3-175b", "dgx-a100-80g", 96, 4, 2048, DTYPE_BF16, false},
    {"megatron-530b", "dgx-a100-80g", 280, 8, 2048, DTYPE_BF16, false},
    {"megatron-1t", "dgx-a100-80g", 512, 512, 2048, DTYPE_BF16, false},
    {"llama2-70b", "dgx-a100-80g", 32, 64, 4096, DTYPE_BF16, true},
    {"qwen3-32b", "dgx-h100", 64, 128, 8192, DTYPE_BF16, true},
};

static const Job tiny[] = {{"gpt2-124m", "dgx-a100-80g", 2, 4, 256, DTYPE_BF16, false}};

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

/* Moves half of the nodes to devices of half the rates. */
static void
mix(ModelCluster *cluster)
{
    ModelDevice slow = g_array_index(cluster->devices, ModelDevice, 0);
    ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, 0);
    ModelNodes others = *nodes;

    slow.name = g_strdup("slow");
    for (int i = 0; i < DTYPE_N; i++)
        slow.flops_per_s[i] *= 0.5;
    slow.vector_flops_per_s *= 0.5;
    slow.memory_bytes_per_s *= 0.5;
    others.device = (int64_t)cluster->devices->len;
    nodes->n_nodes /= 2;
    others.n_nodes -= nodes->n_nodes;
    g_array_append_val(cluster->devices, slow);
    g_array_append_val(cluster->nodes, others);
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
    if (job->is_mixed)
        mix(cluster);
    const PlanRequest request = {
        .arch = arch,
        .profile = profile,
        .global_batch = job->global_batch,
        .seq_len = job->seq_len,
        .dtype = job->dtype,
        .slices_mode = PLAN_SLICES_AUTO,
        .rank_order = PLAN_AUTO,
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
    const double cpu_s = (double)usage.ru_utime.tv_sec + (double)usage.ru_utime.tv_usec * 1e-6;
    printf("%s\t%s%s\t%" G_GINT64_FORMAT "\t%" G_GINT64_FORMAT "\t%" G_GINT64_FORMAT
           "\t%" G_GINT64_FORMAT "\t%.2f\t%.2f\t%.1f\t%ld\t%" G_GINT64_FORMAT "\t%" G_GINT64_FORMAT
           "\t%.6f\n",
           job->model, job->cluster, job->is_mixed ? " mixed" : "", job->n_devices,
           job->global_batch, job->seq_len, threads, seconds, cpu_s,
           100.0 * plan->optimality_gap_fraction, usage.ru_maxrss / 1024, plan->search.considered,
           plan->search.simulated, (double)plan->predicted->iteration_ns * 1e-9);
    return true;
}

/* In a process of its own, whose memory is that of this job alone. */
static bool
run_apart(const Job *job, int64_t threads)
{
    int status;

    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        const bool is_done = run(job, threads);
        fflush(stdout);
        _exit(is_done ? 0 : 1);
    }
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

int
main(int argc, char **argv)
{
    const bool is_tiny = argc > 1 && strcmp(argv[1], "--tiny") == 0;
    const Job *list = is_tiny ? tiny : jobs;
    const size_t n = is_tiny ? G_N_ELEMENTS(tiny) : G_N_ELEMENTS(jobs);
    const int64_t only = !is_tiny && argc > 1 ? g_ascii_strtoll(argv[1], NULL, 10) : -1;

    printf(
        "model\tcluster\tdevices\tbatch\ttokens\tthreads\tsearch_s\tcpu_s\tgap_percent\tpeak_mib\t"
        "considered\tsimulated\titeration_s\n");
    for (size_t i = 0; i < n; i++)
        for (int64_t threads = 1; threads <= 2 && (only < 0 || only == (int64_t)i); threads++)
            if (!run_apart(&list[i], threads))
                return 1;
    return 0;
}
