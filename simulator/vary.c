#include "simulator/vary.h"

#include <stdlib.h>
#include <string.h>

#include "base/order.h"
#include "base/parallel.h"
#include "simulator/factors.h"
#include "simulator/finish.h"

/* What follows a rank's ops. */
typedef enum {
    PART_REDUCE,
    PART_OPTIMIZER,
    PART_GATHER,
    PART_N
} FinishPart;

/* What varies by what. */
typedef struct {
    const SimProgram *program; /* (borrowed) */
    const SimTimes *fixed;     /* (borrowed) without jitter */
    const SimJitter *jitter;   /* (borrowed) */
    double *z;                 /* (owned) quantiles */
    SimFactors *ops, *ranks;   /* (owned) */
    /* Where speeds are forgotten (SimJitter.correlation_s), instead of ops: */
    SimSpeeds speeds;
    const SimSpeedLevel **level; /* (owned, nullable) [cost] */
    /* (owned, nullable) [rank * PART_N + part] of what follows its ops */
    const SimSpeedLevel **finish;
    int64_t slowdown;         /* factor of a straggler */
    uint64_t straggler_below; /* of a draw's upper 53 bits */
} SimVaried;

/* What one thread works on. */
typedef struct {
    SimCost *costs;          /* (owned) [cost] */
    int64_t *finish_factors; /* (owned) [rank * PART_N + part] */
    int64_t *rank_factors;   /* (owned) [rank] */
    double *x; /* (owned, nullable) [rank * members + member] X of its device [factors.h] */
    SimTimes times;
} SimReplica;

/* --- what varies by what --- */

static void
varied_clear(SimVaried *varied)
{
    sim_speeds_clear(&varied->speeds);
    g_free(varied->z);
    g_free(varied->ops);
    g_free(varied->ranks);
    g_free(varied->level);
    g_free(varied->finish);
}

/* How long each part takes of what follows a rank's ops, without jitter. */
static void
set_parts(const SimFinish *finish, int64_t part_ns[PART_N])
{
    part_ns[PART_REDUCE] = finish->optimizer_start_ns - finish->free_ns;
    part_ns[PART_OPTIMIZER] = finish->optimizer_end_ns - finish->optimizer_start_ns;
    part_ns[PART_GATHER] = finish->end_ns - finish->optimizer_end_ns;
}

/* By how long it takes what varies how much. */
static bool
set_levels(SimVaried *varied, GError **error)
{
    const SimProgram *program = varied->program;
    SimSpeeds *speeds = &varied->speeds;

    varied->level = g_try_new(const SimSpeedLevel *, (size_t)program->n_costs);
    if (varied->level == NULL)
        return sim_fail_memory(error, program->n_costs, "different ops");
    varied->finish = g_new(const SimSpeedLevel *, (size_t)program->schedule->n_ranks *PART_N);
    for (int64_t cost = 0; cost < program->n_costs; cost++)
        varied->level[cost] = sim_speeds_level(speeds, program->costs[cost].busy_ns);
    for (int32_t r = 0; r < program->schedule->n_ranks; r++) {
        int64_t part_ns[PART_N];
        set_parts(&varied->fixed->finish[r], part_ns);
        for (int part = 0; part < PART_N; part++)
            varied->finish[r * PART_N + part] = sim_speeds_level(speeds, part_ns[part]);
    }
    return true;
}

/* All of it outlives @varied.  False on SCHEDULE_ERROR_LIMIT: no memory. */
static bool
varied_init(SimVaried *varied, const SimProgram *program, const SimTimes *times,
            const SimJitter *jitter, GError **error)
{
    const bool forgets = jitter->correlation_s > 0;
    const double rank_sigma = jitter->rank_sigma;
    double *z = g_new(double, SIM_VARY_QUANTILES);

    sim_vary_quantiles(z);
    *varied = (SimVaried){
        .program = program,
        .fixed = times,
        .jitter = jitter,
        .z = z,
        .ops = sim_factors_new(z, jitter->op_sigma, 0.0),
        .ranks = sim_factors_new(z, rank_sigma, forgets ? -rank_sigma * rank_sigma / 2 : 0.0),
        .speeds = {.sigma = jitter->op_sigma, .correlation_s = jitter->correlation_s, .z = z},
        .slowdown = (int64_t)(MAX(jitter->straggler_slowdown, 1) * (double)SIM_FACTOR_ONE + 0.5),
        .straggler_below = (uint64_t)(jitter->straggler_fraction * 9007199254740992.0 /* 2^53 */),
    };
    return !forgets || set_levels(varied, error);
}

static double
last_of(const SimFactors *factors)
{
    return (double)factors->of[SIM_VARY_QUANTILES - 1] / (double)SIM_FACTOR_ONE;
}

/* Returns: no duration becomes more than so many times itself. */
static double
largest_factor(const SimVaried *varied)
{
    const double of_op =
        varied->level != NULL ? sim_speeds_largest(&varied->speeds) : last_of(varied->ops);

    return of_op * last_of(varied->ranks) * ((double)varied->slowdown / (double)SIM_FACTOR_ONE);
}

/* --- room --- */

static int64_t
n_members(const SimVaried *varied)
{
    return MAX(varied->jitter->n_members, 1);
}

/* False on SCHEDULE_ERROR_LIMIT: no memory. */
static bool
replica_init(SimReplica *replica, const SimVaried *varied, GError **error)
{
    const SimProgram *program = varied->program;
    const size_t n_ranks = (size_t)program->schedule->n_ranks;

    *replica = (SimReplica){
        .costs = g_try_new(SimCost, (size_t)program->n_costs),
        .finish_factors = g_new(int64_t, n_ranks * PART_N),
        .rank_factors = g_new(int64_t, n_ranks),
        .x = varied->level == NULL ? NULL : g_new(double, n_ranks *(size_t)n_members(varied)),
    };
    if (!sim_times_init(&replica->times, program, error))
        return false;
    if (replica->costs != NULL)
        return true;
    return sim_fail_memory(error, program->n_costs, "different ops");
}

static void
replica_clear(SimReplica *replica)
{
    g_free(replica->costs);
    g_free(replica->finish_factors);
    g_free(replica->rank_factors);
    g_free(replica->x);
    sim_times_clear(&replica->times);
}

/* --- factors --- */

/* Each device draws for itself; @random is of the first. */
static uint64_t
random_of(uint64_t random, int64_t member)
{
    return member == 0 ? random : random_at(random, (uint64_t)member);
}

/* The slowest of its members: each is a device of its own. */
static int64_t
rank_factor(const SimVaried *varied, uint64_t random)
{
    int64_t slowest = 0;

    for (int64_t member = 0; member < n_members(varied); member++) {
        const uint64_t own = random_of(random, member);
        int64_t factor = sim_first_factor(varied->ranks, own);
        if ((random_mix(~own) >> 11) < varied->straggler_below)
            factor = sim_times_factor(factor, varied->slowdown);
        slowest = MAX(slowest, factor);
    }
    return slowest;
}

/* Of an op of @rank that begins @gap_ns after its last: that of its slowest member. */
static int64_t
next_factor(const SimVaried *varied, SimReplica *replica, int32_t rank, const SimSpeedLevel *level,
            int64_t gap_ns, uint64_t random)
{
    const int64_t n = n_members(varied);
    int64_t slowest = 0;

    for (int64_t member = 0; member < n; member++) {
        const int64_t factor = sim_speed_next(&varied->speeds, &replica->x[rank * n + member],
                                              level, gap_ns, random_of(random, member));
        slowest = MAX(slowest, factor);
    }
    return slowest;
}

static void
first_speeds(const SimVaried *varied, SimReplica *replica, int32_t rank, uint64_t random)
{
    const int64_t n = n_members(varied);

    for (int64_t member = 0; member < n; member++)
        replica->x[rank * n + member] = sim_speed_first(&varied->speeds, random_of(random, member));
}

static void
vary_ranks(const SimVaried *varied, SimReplica *replica, uint64_t key)
{
    const SimProgram *program = varied->program;

    for (int32_t r = 0; r < program->schedule->n_ranks; r++) {
        const uint64_t random = random_at(key, (uint64_t)r), other = random_mix(~random);
        const int64_t factor = rank_factor(varied, random);
        replica->rank_factors[r] = factor;
        if (varied->level != NULL) {
            first_speeds(varied, replica, r, other);
            continue;
        }
        int64_t *finish = &replica->finish_factors[r * PART_N];
        finish[PART_REDUCE] = sim_second_factor(varied->ops, other);
        finish[PART_OPTIMIZER] = sim_times_factor(sim_first_factor(varied->ops, other), factor);
        finish[PART_GATHER] = sim_second_factor(varied->ops, random);
    }
    for (int64_t cost = 0; cost < program->n_costs; cost++) {
        const SimCost *fixed = &program->costs[cost];
        const int64_t factor = replica->rank_factors[fixed->rank];
        replica->costs[cost] = (SimCost){
            .busy_ns = sim_times_factor(fixed->busy_ns, factor),
            /* Of a blocking send the sender waits as part of what keeps it busy. */
            .lag_ns = fixed->lag_ns < 0 ? -sim_times_factor(-fixed->lag_ns, factor) : fixed->lag_ns,
            .rank = fixed->rank,
        };
    }
}

static int64_t
op_factor(const SimVaried *varied, SimReplica *replica, uint32_t cost, int64_t gap_ns,
          uint64_t random)
{
    if (varied->level == NULL)
        return sim_first_factor(varied->ops, random);
    return next_factor(varied, replica, varied->program->costs[cost].rank, varied->level[cost],
                       gap_ns, random);
}

/* A message of an op of @factor that lasts @lag_ns, or a sender's wait that is part of the op
 * (< 0). */
static int64_t
varied_lag(const SimVaried *varied, uint32_t cost, int64_t factor, uint64_t random, int64_t lag_ns)
{
    if (lag_ns < 0)
        return -sim_times_factor(-lag_ns, factor);
    return sim_times_factor(lag_ns,
                            varied->level == NULL
                                ? sim_second_factor(varied->ops, random)
                                : sim_speed_alone(&varied->speeds, varied->level[cost], random));
}

/* Pair @k, as the sweep has it; one factor for both steps. */
static void
vary_pair(const SimVaried *varied, SimReplica *replica, SimClock clock, uint64_t key, int64_t k)
{
    const SimProgram *program = varied->program;
    const int64_t i = program->pairs[k];
    const SimStep *step = &program->steps[i];
    const SimCost *costs[2] = {&replica->costs[step[0].cost], &replica->costs[step[1].cost]};
    const int32_t rank = costs[0]->rank;
    const uint64_t random[2] = {random_at(key, (uint64_t)i), random_at(key, (uint64_t)i + 1)};
    const int64_t pair_ns = sim_times_factor(program->pair_kinds[program->kind_of_pair[k]].ns,
                                             replica->rank_factors[rank]);
    const int64_t begin_ns =
        MAX(sim_clock_begin(clock, step[0].producer, rank), clock.ready_ns[step[1].producer]);
    const int64_t factor =
        op_factor(varied, replica, step[0].cost, begin_ns - clock.free_ns[rank], random[0]);
    const int64_t free_ns = begin_ns + sim_times_factor(pair_ns, factor);
    for (int which = 0; which < 2; which++)
        sim_clock_end(
            clock, i + which, rank, 0, free_ns,
            varied_lag(varied, step[which].cost, factor, random[which], costs[which]->lag_ns));
}

/* sim_program_sweep() with a factor for every op and message. */
static void
vary_ops(const SimVaried *varied, SimReplica *replica, uint64_t key)
{
    const SimProgram *program = varied->program;
    const SimTimes *fixed = varied->fixed;
    const SimClock clock = {replica->times.ready_ns, replica->times.free_ns, NULL};
    const GArray *longer = fixed->longer;
    guint next_longer = 0;
    int64_t next_pair = 0;

    memset(clock.free_ns, 0, sizeof *clock.free_ns * (size_t)program->schedule->n_ranks);
    clock.ready_ns[0] = 0;
    for (int64_t i = 0; i < program->n_ops; i++) {
        if (next_pair < program->n_pairs && program->pairs[next_pair] == i) {
            vary_pair(varied, replica, clock, key, next_pair++);
            i++;
            continue;
        }
        const SimStep step = program->steps[i];
        const SimCost cost = replica->costs[step.cost];
        const uint64_t random = random_at(key, (uint64_t)i);
        int64_t busy = cost.busy_ns, lag = cost.lag_ns;
        if (fixed->followed != NULL) {
            const SimOpTimes at = sim_times_step(fixed, program, (uint32_t)i);
            busy = sim_times_factor(at.free_ns - at.begin_ns, replica->rank_factors[cost.rank]);
            lag = lag < 0 ? lag : fixed->ready_ns[i + 1] - at.free_ns;
        } else if (next_longer < longer->len &&
                   g_array_index(longer, SimLonger, next_longer).step == i) {
            busy += sim_times_factor(g_array_index(longer, SimLonger, next_longer++).extra_ns,
                                     replica->rank_factors[cost.rank]);
        }
        const int64_t begin_ns = sim_clock_begin(clock, step.producer, cost.rank);
        const int64_t factor =
            op_factor(varied, replica, step.cost, begin_ns - clock.free_ns[cost.rank], random);
        sim_clock_end(clock, i, cost.rank, 0, begin_ns + sim_times_factor(busy, factor),
                      varied_lag(varied, step.cost, factor, random, lag));
    }
}

/* What follows a rank's ops, one after the other, at the speed that its last op left. */
static void
vary_finish(const SimVaried *varied, SimReplica *replica, int32_t rank, uint64_t key)
{
    const uint64_t random = random_at(key, (uint64_t)rank);
    int64_t *factors = &replica->finish_factors[rank * PART_N];

    for (int part = 0; part < PART_N; part++)
        factors[part] = next_factor(varied, replica, rank, varied->finish[rank * PART_N + part], 0,
                                    random_at(random, (uint64_t)part + 1));
    factors[PART_OPTIMIZER] =
        sim_times_factor(factors[PART_OPTIMIZER], replica->rank_factors[rank]);
}

/* The replica's end of everything. */
static int64_t
end_of(const SimVaried *varied, SimReplica *replica, uint64_t key)
{
    int64_t end_ns = 0;

    for (int32_t r = 0; r < varied->program->schedule->n_ranks; r++) {
        int64_t part_ns[PART_N], rank_end_ns = replica->times.free_ns[r];
        set_parts(&varied->fixed->finish[r], part_ns);
        if (varied->level != NULL)
            vary_finish(varied, replica, r, key);
        for (int part = 0; part < PART_N; part++)
            rank_end_ns +=
                sim_times_factor(part_ns[part], replica->finish_factors[r * PART_N + part]);
        end_ns = MAX(end_ns, rank_end_ns);
    }
    return end_ns;
}

/* Returns: when everything of the replica that @key draws has ended, in ns. */
static int64_t
replica_run(const SimVaried *varied, SimReplica *replica, uint64_t key)
{
    vary_ranks(varied, replica, random_mix(key ^ 1));
    vary_ops(varied, replica, key);
    return end_of(varied, replica, random_mix(key ^ 2));
}

/* --- all runs --- */

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
    varied_clear(&study->varied);
    g_free(study->memory);
    g_free(study->iteration_ns);
    g_free(study->peak_memory_bytes);
    g_free(study->fits);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Study, study_clear)

static void
vary_memory(const Study *study, int64_t run, uint64_t key)
{
    const WorkloadRank *ranks = study->varied.program->workload->ranks;

    for (int32_t r = 0; study->peaks != NULL && r < study->varied.program->schedule->n_ranks; r++) {
        const int64_t factor = sim_first_factor(study->memory, random_at(~key, (uint64_t)r));
        /* No factor passes 2^11. */
        const int64_t bytes = sim_times_factor(MIN(study->peaks[r].bytes, INT64_MAX >> 11), factor);
        const int64_t limit = workload_usable_bytes(&ranks[r]);
        study->peak_memory_bytes[run] = MAX(study->peak_memory_bytes[run], bytes);
        if (limit > 0 && bytes > limit)
            study->fits[run] = false;
    }
}

/* Whether all runs take the same time: memory alone varies. */
static bool
is_steady(const SimJitter *jitter)
{
    return jitter->op_sigma == 0 && jitter->rank_sigma == 0 && jitter->straggler_fraction == 0;
}

/* @steady_ns  in, out: how long a run took where all take the same time; < 0: none was made yet. */
static void
run_once(const Study *study, SimReplica *room, int64_t run, int64_t *steady_ns)
{
    const uint64_t of_run = random_at(random_at(study->varied.jitter->seed, 0), (uint64_t)run);

    for (int64_t replica = 0; replica < MAX(study->varied.jitter->n_replicas, 1); replica++) {
        const uint64_t key = random_at(of_run, (uint64_t)replica);
        if (*steady_ns < 0 || !is_steady(study->varied.jitter))
            *steady_ns = replica_run(&study->varied, room, key);
        study->iteration_ns[run] = MAX(study->iteration_ns[run], *steady_ns);
        vary_memory(study, run, key);
    }
}

/* What one thread does: every n-th run. */
typedef struct {
    const Study *study;
    SimReplica replica;
    int64_t first, step;
} Share;

static void
run_share(int64_t i, void *user_data)
{
    Share *share = (Share *)user_data + i;
    int64_t steady_ns = -1;

    for (int64_t run = share->first; run < share->study->varied.jitter->n_runs; run += share->step)
        run_once(share->study, &share->replica, run, &steady_ns);
}

static bool
run_all(const Study *study, GError **error)
{
    const int64_t n = CLAMP(study->varied.jitter->n_threads, 1, study->varied.jitter->n_runs);
    g_autofree Share *shares = g_new0(Share, (size_t)n);
    bool fine = true;

    for (int64_t i = 0; i < n && fine; i++) {
        shares[i] = (Share){.study = study, .first = i, .step = n};
        fine = replica_init(&shares[i].replica, &study->varied, error);
    }
    if (fine)
        parallel_each(n, n, run_share, shares);
    for (int64_t i = 0; i < n; i++)
        replica_clear(&shares[i].replica);
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
    const double largest = largest_factor(&study->varied);
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
    return schedule_refuse(error, LIMIT, "jitter: an iteration could take longer than 146 years");
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
    if (!varied_init(&study.varied, program, times, jitter, error) ||
        !check(program, &study, error))
        return false;
    study.memory = sim_factors_new(study.varied.z, jitter->memory_sigma, 0.0);
    if (!run_all(&study, error))
        return false;
    summarize(&study, result);
    return true;
}
