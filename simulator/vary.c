#include "simulator/vary.h"

#include <stdlib.h>
#include <string.h>

#include "base/order.h"
#include "simulator/replica.h"

typedef struct {
    SimVaried varied;
    const SimPeak *peaks;       /* (borrowed, nullable) */
    SimFactors *memory;         /* (owned) */
    int64_t *iteration_ns;      /* (owned) [run] */
    int64_t *peak_memory_bytes; /* (owned) [run] */
    bool *fits;                 /* (owned) [run] */
} Study;

static void
study_clear(Study *study)
{
    sim_varied_clear(&study->varied);
    g_free(study->memory);
    g_free(study->iteration_ns);
    g_free(study->peak_memory_bytes);
    g_free(study->fits);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Study, study_clear)

/* --- all runs --- */

static void
vary_memory(const Study *study, int64_t run, uint64_t key)
{
    const WorkloadRank *ranks = study->varied.program->workload->ranks;

    for (int32_t r = 0; study->peaks != NULL && r < study->varied.program->schedule->n_ranks; r++) {
        const int64_t factor = sim_first_factor(study->memory, sim_draw(~key, (uint64_t)r));
        /* No factor passes 2^11. */
        const int64_t bytes = sim_times_factor(MIN(study->peaks[r].bytes, INT64_MAX >> 11), factor);
        const int64_t limit = workload_usable_bytes(&ranks[r]);
        study->peak_memory_bytes[run] = MAX(study->peak_memory_bytes[run], bytes);
        if (limit > 0 && bytes > limit)
            study->fits[run] = false;
    }
}

static void
run_once(const Study *study, SimReplica *room, int64_t run)
{
    const uint64_t of_run = sim_draw(sim_draw(study->varied.jitter->seed, 0), (uint64_t)run);

    for (int64_t replica = 0; replica < MAX(study->varied.jitter->n_replicas, 1); replica++) {
        const uint64_t key = sim_draw(of_run, (uint64_t)replica);
        const int64_t end_ns = sim_replica_run(&study->varied, room, key);
        study->iteration_ns[run] = MAX(study->iteration_ns[run], end_ns);
        vary_memory(study, run, key);
    }
}

/* A thread's runs: every n-th one. */
typedef struct {
    const Study *study;
    SimReplica replica;
    int64_t first, step;
} Share;

static void *
run_share(void *data)
{
    Share *share = data;

    for (int64_t run = share->first; run < share->study->varied.jitter->n_runs; run += share->step)
        run_once(share->study, &share->replica, run);
    return NULL;
}

static bool
run_all(const Study *study, GError **error)
{
    const int64_t n = CLAMP(study->varied.jitter->n_threads, 1, study->varied.jitter->n_runs);
    g_autofree Share *shares = g_new0(Share, (size_t)n);
    g_autofree GThread **threads = g_new0(GThread *, (size_t)n);
    bool fine = true;

    for (int64_t i = 0; i < n && fine; i++) {
        shares[i] = (Share){.study = study, .first = i, .step = n};
        fine = sim_replica_init(&shares[i].replica, &study->varied, error);
    }
    for (int64_t i = 1; i < n && fine; i++)
        threads[i] = g_thread_new("jitter", run_share, &shares[i]);
    if (fine)
        run_share(&shares[0]);
    for (int64_t i = 0; i < n; i++) {
        if (threads[i] != NULL)
            g_thread_join(threads[i]);
        sim_replica_clear(&shares[i].replica);
    }
    return fine;
}

/* --- the answer --- */

/* Sorts @values; of 10, 50 and 90 % of them the smallest that is not exceeded. */
static void
quantiles(int64_t *values, int64_t n, int64_t result[3])
{
    static const int64_t tenths[3] = {1, 5, 9};

    qsort(values, (size_t)n, sizeof *values, order_int64s);
    for (int i = 0; i < 3; i++)
        result[i] = values[(tenths[i] * n + 9) / 10 - 1];
}

/* Whether no sum of varied times can pass SIM_MAX_NS. */
static bool
check(const SimProgram *program, const Study *study, GError **error)
{
    const double largest = sim_varied_largest(&study->varied);
    double sum_ns = 0;

    for (int64_t cost = 0; cost < program->n_costs; cost++) {
        const SimCostDetail *d = &program->details[cost];
        if (program->counts[cost] > 0)
            sum_ns += (double)program->counts[cost] * (double)(d->op_ns + d->in.ns + d->out.ns);
    }
    for (int32_t r = 0; r < program->schedule->n_ranks; r++) {
        const WorkloadRank *rank = &program->workload->ranks[r];
        sum_ns += (double)rank->dp_reduce_ns + (double)rank->dp_gather_ns;
        sum_ns += (double)rank->optimizer_ns + (double)study->varied.fixed->free_ns[r];
    }
    if (sum_ns * largest < (double)SIM_MAX_NS)
        return true;
    g_set_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_LIMIT,
                "jitter: an iteration could take longer than 146 years");
    return false;
}

static void
summarize(Study *study, ReportJitter *result)
{
    const SimJitter *jitter = study->varied.jitter;
    int64_t n_fit = 0;

    for (int64_t run = 0; run < jitter->n_runs; run++)
        n_fit += study->fits[run];
    *result = (ReportJitter){
        .op_sigma = jitter->op_sigma,
        .correlation_s = jitter->correlation_s,
        .rank_sigma = jitter->rank_sigma,
        .memory_sigma = jitter->memory_sigma,
        .straggler_fraction = jitter->straggler_fraction,
        .straggler_slowdown = MAX(jitter->straggler_slowdown, 1),
        .n_runs = jitter->n_runs,
        .seed = (int64_t)jitter->seed,
        .fit_fraction = (double)n_fit / (double)jitter->n_runs,
    };
    quantiles(study->iteration_ns, jitter->n_runs, result->iteration_ns);
    quantiles(study->peak_memory_bytes, jitter->n_runs, result->peak_memory_bytes);
}

bool
sim_vary(const SimProgram *program, const SimTimes *times, const SimPeak *peaks,
         const SimJitter *jitter, ReportJitter *result, GError **error)
{
    const size_t n = (size_t)jitter->n_runs;

    g_return_val_if_fail(jitter->n_runs >= 1 && jitter->n_runs <= SIM_JITTER_MAX_RUNS, false);
    g_auto(Study) study = {
        .peaks = peaks,
        .iteration_ns = g_new0(int64_t, n),
        .peak_memory_bytes = g_new0(int64_t, n),
        .fits = g_new(bool, n),
    };

    memset(study.fits, true, n);
    if (!sim_varied_init(&study.varied, program, times, jitter, error) ||
        !check(program, &study, error))
        return false;
    study.memory = sim_factors_new(study.varied.z, jitter->memory_sigma, 0.0);
    if (!run_all(&study, error))
        return false;
    summarize(&study, result);
    return true;
}
